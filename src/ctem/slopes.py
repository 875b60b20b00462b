r"""All conditionals of one visible set at once: first-order comparisons, and the chain rule on a potential's slope.

A hidden bit enters the network as v_j = 0, the middle of −1 and 1. The comparison of its two values, column j shown, is
then the slope of the scalar potential there,

    g(x_j = 1; V ∪ j) − g(x_j = 0; V ∪ j) = 2 ∂g/∂v_j (x; V) + third order,

so that one pass and one gradient compare both values of *every* hidden column, where finite differences need two passes
for each. :class:`Slopes` is constant-target matching on these pairs with the log rule, averaged over visible sets.
Conditionals defined by the slopes are normalised, and so is their product in any order: an exact likelihood, and
samples without MCMC, from d gradients of one scalar instead of 2d passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from ctem.bases import ProductBase
from ctem.chain import Drawn, rows_to_fill

__all__ = ["SlopeChain", "Slopes"]


class Sloped(Protocol):
    """A potential on bits with the slopes of its hidden columns, e.g. ImageNet."""

    def slopes(self, x: Tensor, level: Tensor) -> Tensor: ...


def _odds(base: ProductBase) -> Tensor:
    if set(base.space.sizes) != {2}:
        raise ValueError(f"base: expected columns of two values; got sizes {sorted(set(base.space.sizes))}.")
    log_b = base.log_table[base.rows]
    return log_b[:, 1] - log_b[:, 0]


def _levels(x: Tensor, visible: Tensor) -> Tensor:
    return torch.where(visible, 0.0, math.inf).to(x.dtype)


@dataclass(frozen=True)
class Slopes:
    """Mean −log ρ(x_j | x_V) over the hidden columns of a random visible set, its size uniform on 0 … d − 1.

    Times d, its expectation is the mean of −log ρ(x) over all orders of the columns.

    Arguments:
        base: the base of the bits.

    >>> from ctem.spaces import Category, Space
    >>> from ctem.unet import ImageNet
    >>> base = ProductBase(Space([Category(2)] * 16))
    >>> g = ImageNet(base, shape=(4, 4), channels=(8, 16))
    >>> round(Slopes(base)(g, torch.zeros(8, 16), torch.Generator().manual_seed(0)).item(), 4)  # no skill yet
    0.6931
    """

    base: ProductBase

    def __call__(self, g: Sloped, x0: Tensor, generator: torch.Generator) -> Tensor:
        """The mean loss over rows x0 (n, d) of 0 and 1."""
        n, d = x0.shape
        u = torch.rand(n, d + 1, generator=generator, dtype=x0.dtype, device=x0.device)
        # one size from each n-th part of the range: far less variance than n independent ones
        part = torch.arange(n, dtype=x0.dtype, device=x0.device).unsqueeze(1)
        size = ((part + u[:, d:]) / n * d).floor().clamp(max=d - 1)
        visible = u[:, :d].argsort(-1).argsort(-1) < size
        score = _odds(self.base) + g.slopes(x0, _levels(x0, visible))
        loss = softplus(score) - x0 * score
        return (torch.where(visible, 0.0, loss).sum(-1) / (d - size.squeeze(1))).mean()


class SlopeChain:
    """The chain rule with conditionals ρ(x_j = 1 | x_V) = σ(log b_j(1)/b_j(0) + 2 ∂g/∂v_j): exact, whatever g is.

    Arguments:
        g: a potential with slopes.
        base: its base.

    >>> from ctem.spaces import Category, Space
    >>> from ctem.unet import ImageNet
    >>> base = ProductBase(Space([Category(2)] * 16))
    >>> chain = SlopeChain(ImageNet(base, shape=(4, 4), channels=(8, 16)), base)  # untrained: the base itself
    >>> chain.log_prob(torch.zeros(1, 16), range(16)) / math.log(2)
    tensor([-16.])
    """

    def __init__(self, g: Sloped, base: ProductBase):
        self.g, self.base, self.odds = g, base, _odds(base)

    def orders(self, count: int, generator: torch.Generator) -> list[list[int]]:
        """Random orders of the columns."""
        return [torch.randperm(self.base.space.dim, generator=generator).tolist() for _ in range(count)]

    def scores(self, x: Tensor, visible: Tensor) -> Tensor:
        """log ρ(x_j = 1 | x_V)/ρ(x_j = 0 | x_V) of every hidden column, (n, d)."""
        with torch.no_grad():
            return self.odds + self.g.slopes(torch.where(visible, x, 0.0), _levels(x, visible))

    def log_prob(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """log ρ(x) in the given order, (n,)."""
        visible = torch.zeros_like(x, dtype=torch.bool)
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for j in order:
            score = self.scores(x, visible)[:, j].double()
            total += logsigmoid(torch.where(x[:, j] > 0, score, -score))
            visible[:, j] = True
        return total.to(x.dtype)

    def sample(
        self,
        n: int,
        generator: torch.Generator,
        order: Sequence[int] | None = None,
        given: Tensor | None = None,
    ) -> Drawn:
        """n rows, column after column, without MCMC; or the nan cells of ``given`` (n, d), drawn given the others."""
        order = self.orders(1, torch.Generator().manual_seed(0))[0] if order is None else order
        x = rows_to_fill(self.base, n, order, given)
        total = x.new_zeros(n)
        for j in order:
            todo = x[:, j].isnan()
            if not bool(todo.any()):
                continue
            score = self.scores(x, ~x.isnan())[:, j]
            one = torch.rand(n, generator=generator, dtype=x.dtype, device=x.device) < torch.sigmoid(score)
            x[:, j] = torch.where(todo, one.to(x.dtype), x[:, j])
            total += torch.where(todo, logsigmoid(torch.where(one, score, -score)), 0.0)
        return Drawn(x, total)
