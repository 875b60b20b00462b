r"""All conditionals of one visible set at once: first-order comparisons.

A hidden column enters the network as zeros, the mean of its features φ under the base. The comparison of two of its
values, column j shown, is then to first order a slope of the scalar potential there,

    g(x_j = v; V ∪ j) − g(x_j = u; V ∪ j) ≈ (φ_j(v) − φ_j(u)) · ∂g/∂φ_j (x; V),

so that one pass and one gradient compare all values of *every* hidden discrete column, where finite differences need a
pass for each value. A real column has hat functions as its features (``ctem.conditionals``); they are seen by no one
but its own conditional, so that their slopes are linear in the last layer and need no gradient.

:class:`Slopes` is constant-target matching of all values of a column at once with the log rule, averaged over visible
sets. Conditionals defined by the slopes are normalised, and so is their product in any order (``ctem.chain``): an exact
likelihood, and samples without MCMC, in d passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ctem.bases import ProductBase
from ctem.conditionals import Coefficients, Curve, Splines, Values
from ctem.spacetime import show

__all__ = ["Sloped", "Slopes", "mean_of_hidden"]


class Sloped(nn.Module):
    """A potential whose slopes are the coefficients of its one-column conditionals, e.g. ClockNet or ImageNet.

    It has ``values``, ``splines`` if real columns have conditionals too, and ``coefficients``.

    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Real, Space
    >>> g = ClockNet(ProductBase(Space([Real(), Category(2)])), width=8, slopes=True).eval()
    >>> x, hidden = torch.tensor([[0.0, 1.0]]), torch.full((1, 2), torch.inf)
    >>> g.log_conditionals(x, hidden, x, torch.zeros(1, 1)).exp()  # untrained: N(0, 1) and ½
    tensor([[0.3990, 0.5000]], grad_fn=<ExpBackward0>)
    """

    base: ProductBase
    values: Values
    splines: Splines | None

    def coefficients(self, x: Tensor, level: Tensor, clock: Tensor) -> Coefficients:
        """Of every conditional at the level ``clock`` (n, 1), given x at these levels; void for visible columns."""
        raise NotImplementedError

    def log_conditionals(
        self, x: Tensor, level: Tensor, target: Tensor, clock: Tensor, some: Tensor | None = None
    ) -> Tensor:
        """log ρ(target_j | x at these levels) of every column, (n, d).

        ``some`` (n, m) are places among the real columns to which each row is limited; the others have 0.
        """
        values, curve = self.coefficients(x, level, clock)
        out = self.values.log_prob(target, values)
        if self.splines is None or curve is None:
            return out
        t = target.index_select(1, self.values.reals)
        if some is None:
            return out.index_copy(1, self.values.reals, self.splines.log_prob(t, curve))
        log_p = self.splines.log_prob(t.gather(1, some), curve.at(some))
        return out.index_copy(1, self.values.reals, torch.zeros_like(t).scatter(1, some, log_p))

    def conditional(self, x: Tensor, level: Tensor, j: int, values: Tensor, clock: Tensor) -> Tensor:
        """log ρ(value | x at these levels) of values (n, q) of column j: all of a discrete one, any of a real one."""
        found = self.coefficients(x, level, clock)
        if self.values.sizes[j]:
            return self.values.column(found.values, j)
        splines, curve = self._one(found, j)
        return splines.log_density(values.unsqueeze(1), curve).squeeze(1)

    def draw(
        self, x: Tensor, level: Tensor, j: int, clock: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """A value of column j for each row and its log-density, (n,) each."""
        found = self.coefficients(x, level, clock)
        if self.values.sizes[j]:
            log_p = self.values.column(found.values, j)
            code = torch.multinomial(log_p.exp(), 1, generator=generator)
            return code.squeeze(1).to(x.dtype), log_p.gather(1, code).squeeze(1)
        splines, curve = self._one(found, j)
        t, log_q = splines.draw(curve, generator)
        return t.squeeze(1), log_q.squeeze(1)

    def _one(self, found: Coefficients, j: int) -> tuple[Splines, Curve]:
        if self.splines is None or found.curve is None:
            raise ValueError(f"column {j}: real columns of this potential have no slopes.")
        place = self.base.space.reals.index(j)
        return self.splines, Curve(*(part[:, place : place + 1] for part in found.curve))


@dataclass(frozen=True)
class Slopes:
    """Mean −log ρ(x_j | x_V) over the hidden columns of a random visible set V, its size uniform on 0 … d − 1.

    d times its expectation is the mean of −log ρ(x) over all orders of the columns. Real columns, seen or asked, are at
    a level that each row draws.

    Arguments:
        base: the base.
        floor: lowest level of real columns.
        high: highest level of real columns, which is drawn log-uniformly; None leaves them at the floor.
        parents: for a real column that exists only where a category has code 0, that category.
        most: real columns of a row that are asked at a time; random ones stand for the others.

    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 16))
    >>> objective, g = Slopes(base), ClockNet(base, width=8, slopes=True)
    >>> round(objective(g, torch.zeros(8, 16), torch.Generator().manual_seed(0)).item(), 4)  # no skill yet
    0.6931
    """

    base: ProductBase
    floor: float = 1e-3
    high: float | None = None
    parents: Mapping[int, int] = field(default_factory=dict)
    most: int = 16

    def __call__(self, g: Sloped, x0: Tensor, generator: torch.Generator) -> Tensor:
        """The mean loss over rows x0 (n, d); nan marks a missing cell, which stays hidden and counts nothing."""
        observed = ~x0.isnan()
        chosen = self.sets(len(x0), generator)
        shown = show(
            self.base, torch.where(observed, x0, 0.0), chosen & observed, self.floor, self.high, generator
        )
        asked, some = observed & ~chosen, None
        weight = asked.to(x0.dtype)
        if len(self.base.space.reals) > self.most:
            some, share = self._some(asked, g.values.reals, generator)
            weight = weight * share
        log_p = g.log_conditionals(shown.x, shown.level, shown.x, shown.clock, some)
        return -mean_of_hidden(log_p * weight, chosen)

    def sets(self, n: int, generator: torch.Generator) -> Tensor:
        """A random set of columns to show for each of n rows, (n, d), its size uniform on 0 … d − 1.

        It is drawn without a look at what is missing: a cell may be absent because of the value that is asked. For the
        same reason no part of a column is shown without its parent.
        """
        d, device = self.base.space.dim, generator.device
        u = torch.rand(n, d + 1, generator=generator, device=device)
        # one size from each n-th part of the range: far less variance than n independent ones
        part = torch.arange(n, device=device).unsqueeze(1)
        size = ((part + u[:, d:]) / n * d).floor().clamp(max=d - 1)
        chosen = u[:, :d].argsort(-1).argsort(-1) < size
        for child, parent in self.parents.items():
            chosen[:, parent] |= chosen[:, child]
        return chosen

    def _some(self, asked: Tensor, reals: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A few places of asked real columns for each row (n, most), and weights (n, d) so that they stand for all."""
        real = asked & self.base.is_real
        mine = real.index_select(1, reals)
        u = torch.rand(mine.shape, generator=generator, device=asked.device)
        some = (mine + u / 2).topk(self.most).indices
        share = real.sum(1, keepdim=True) / mine.gather(1, some).sum(1, keepdim=True).clamp_min(1)
        return some, torch.where(self.base.is_real, share, 1.0)


def mean_of_hidden(log_p: Tensor, chosen: Tensor) -> Tensor:
    """The mean over rows of the mean over the columns that are not chosen to be shown, log_p being 0 for missing ones.

    >>> mean_of_hidden(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([[False, False], [False, True]]))
    tensor(2.2500)
    """
    return (log_p.sum(-1) / (~chosen).sum(-1).clamp_min(1)).mean()
