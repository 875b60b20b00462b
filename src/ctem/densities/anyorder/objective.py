r"""The objective of the any-order density: all values of every hidden column compared at once.

Constant-target matching compares the data value of a column with another one. Comparing it with *all* others at once by
the log rule is −log ρ(x_j | x_V): what order-agnostic autoregressive networks minimise (Uria, Murray and Larochelle
2014; Hoogeboom et al. 2022). With |V| uniform on 0 … d − 1 and V uniform given its size, d times the expected mean over
hidden columns is the mean of −log ρ(x) over all orders of the columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ctem.densities.anyorder.network import AnyOrderNet

__all__ = ["COARSEST", "FINEST", "HiddenColumns"]

FINEST, COARSEST = 1e-5, 1e-2  # noise levels at which real columns are learned


@dataclass(frozen=True)
class HiddenColumns:
    """Mean −log ρ(x_j | x_V) over the columns j that a random visible set V hides, and over rows and members.

    The real columns of a row, seen or asked, are noised at a level that is drawn for it, log-uniform on
    [``finest``, ``coarsest``]; the network is told the level, so that one can be chosen afterwards.

    Arguments:
        parents: for a real column that exists only where a category has code 0, that category.
        finest, coarsest: range of the noise level.

    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Category, Space
    >>> net = AnyOrderNet(ProductBase(Space([Category(2)] * 16)), width=8, members=2)
    >>> rows = torch.zeros(2, 8, 16)
    >>> round(HiddenColumns()(net, rows, torch.Generator().manual_seed(0)).item(), 4)  # no skill yet
    0.6931
    """

    parents: Mapping[int, int] = field(default_factory=dict)
    finest: float = FINEST
    coarsest: float = COARSEST

    def __call__(self, net: AnyOrderNet, x0: Tensor, generator: torch.Generator) -> Tensor:
        """The mean loss over rows x0 (members, n, d); nan marks a missing cell, which stays hidden, unasked."""
        x, level = self.noised(net, torch.where(x0.isnan(), 0.0, x0), generator)
        return -self.log_prob(net, x0, x, self.visible_sets(x0, generator), level)

    def log_prob(self, net: AnyOrderNet, x0: Tensor, x: Tensor, chosen: Tensor, level: Tensor) -> Tensor:
        """Mean log ρ(x_j | x_V) over hidden columns, rows and members; V is what is chosen and not nan in x0."""
        observed = ~x0.isnan()
        log_p = net.log_conditionals(x, chosen & observed, level)
        told = torch.where(observed & ~chosen, log_p, 0.0).sum(-1)
        return (told / (~chosen).sum(-1).clamp_min(1)).mean()

    def noised(self, net: AnyOrderNet, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Rows with noise on their real columns, and its level (members, n, 1)."""
        level = torch.full_like(x[..., :1], self.finest)
        if not net.space.reals:
            return x, level
        u = torch.rand(level.shape, generator=generator, dtype=x.dtype, device=x.device)
        level = level * (u * math.log(self.coarsest / self.finest)).exp()
        xi = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        noisy = (-level).exp() * x + (-torch.expm1(-2 * level)).sqrt() * xi
        return torch.where(net.base.is_real, noisy, x), level

    def visible_sets(self, x0: Tensor, generator: torch.Generator) -> Tensor:
        """A random set of columns to show for each row, of the shape of x0, its size uniform on 0 … d − 1.

        It is drawn without a look at what is missing: a cell may be absent because of the value that is asked. For the
        same reason the continuous part of a column is not shown without its parent.
        """
        (n, d), device = x0.shape[-2:], generator.device
        u = torch.rand(*x0.shape[:-1], d + 1, generator=generator, device=device)
        # one size from each n-th part of the range: far less variance than n independent ones
        part = torch.arange(n, device=device).unsqueeze(1)
        size = ((part + u[..., d:]) / n * d).floor().clamp(max=d - 1)
        chosen = u[..., :d].argsort(-1).argsort(-1) < size
        for child, parent in self.parents.items():
            chosen[..., parent] |= chosen[..., child]
        return chosen
