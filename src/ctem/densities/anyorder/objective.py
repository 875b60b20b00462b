r"""The objective of the any-order density: all values of every hidden column compared at once.

Constant-target matching compares the data value of a column with another one. Comparing it with *all* others at once by
the log rule is −log ρ(x_j | x_V): what order-agnostic autoregressive networks minimise (Uria, Murray and Larochelle
2014; Hoogeboom et al. 2022). With |V| uniform on 0 … d − 1 and V uniform given its size, d times the expected mean over
hidden columns is the mean of −log ρ(x) over all orders of the columns.

There are 2^d visible sets, and a density by the chain rule in a few orders meets only the d that begin each of them. So
once those orders are known, half of the rows rehearse them: they show the beginning of an order, and half of their
weight is on the column that comes next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ctem.densities.anyorder.network import AnyOrderNet, Clear

__all__ = ["COARSEST", "FINEST", "REHEARSED", "HiddenColumns", "Questions"]

FINEST, COARSEST = 1e-5, 1e-2  # noise levels at which real columns are learned
REHEARSED = 0.5  # share of rows that show the beginning of an order
NEXT = 0.5  # weight of the column that comes next, in such a row
SLIGHT = 1e-6  # below any weight of a row's columns together that are asked at all


class Questions(NamedTuple):
    """What rows are asked: columns to show, and the weight of every column's answer, 0 for one that is shown.

    >>> Questions(torch.zeros(1, 4, 3, dtype=torch.bool), torch.full((1, 4, 3), 1 / 3)).weight.sum(-1)
    tensor([[1., 1., 1., 1.]])
    """

    shown: Tensor  # (members, n, d)
    weight: Tensor  # (members, n, d)


@dataclass(frozen=True)
class HiddenColumns:
    """Mean −log ρ(x_j | x_V) over the columns j that a random visible set V hides, and over rows and members.

    The real columns of a row, seen or asked, are noised at a level that is drawn for it, log-uniform on
    [``finest``, ``coarsest``]; the network has the level as an input, so that one can be chosen afterwards.

    Arguments:
        parents: for a real column that exists only where a category has code 0, that category.
        finest, coarsest: range of the noise level.
        places: of each column in the orders that are rehearsed, (orders, d); None before they are known.
        rehearsed: share of the rows that rehearse them.
        late: the share of missing cells of each column, (d,); None if nothing is missing.
        alone: which columns are not asked, (d,), because they depend on nothing; None if all are.

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
    places: Tensor | None = None
    rehearsed: float = REHEARSED
    late: Tensor | None = None
    alone: Tensor | None = None

    def __call__(self, net: AnyOrderNet, x0: Tensor, generator: torch.Generator) -> Tensor:
        """The mean loss over rows x0 (members, n, d); nan marks a missing cell, which stays hidden, unasked.

        If the network has ties, their cells are behind the columns (``ctem.densities.anyorder.ties.Ties.all_ends``).
        """
        x0, ends = net.parted(x0)
        x, level = self.noised(net, torch.where(x0.isnan(), 0.0, x0), generator)
        return -self.log_prob(net, x0, x, self.questions(x0, generator), level, ends)

    def log_prob(
        self,
        net: AnyOrderNet,
        x0: Tensor,
        x: Tensor,
        asked: Questions,
        level: Tensor,
        ends: Tensor | None = None,
    ) -> Tensor:
        """Mean log ρ(x_j | x_V) over what is asked, rows and members; V is what is shown and not nan in x0."""
        observed = ~x0.isnan()
        clear = None if ends is None else Clear(torch.where(observed, x0, 0.0), ends)
        log_p = net.log_conditionals(x, asked.shown & observed, level, clear)
        return (torch.where(observed & ~asked.shown, log_p, 0.0) * asked.weight).sum(-1).mean()

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

    def questions(self, x0: Tensor, generator: torch.Generator) -> Questions:
        """A random question for each row of x0 (members, n, d).

        It is drawn without a look at what is missing: a cell may be absent because of the value that is asked.
        """
        asked = self._of_all(x0, generator)
        if self.alone is None:
            return asked
        weight = torch.where(self.alone, 0.0, asked.weight)
        return Questions(asked.shown, weight / weight.sum(-1, keepdim=True).clamp_min(SLIGHT))

    def _of_all(self, x0: Tensor, generator: torch.Generator) -> Questions:
        """``questions`` about every column."""
        count = 0 if self.places is None else round(self.rehearsed * x0.shape[-2])
        shown = self.visible_sets(x0[..., count:, :], generator)
        if self.places is None or not count:
            return Questions(shown, _even(shown))
        place, at = self._begun(self.places, len(x0), count, generator)
        begun = place < at
        weight = NEXT * (place == at).to(x0.dtype) + (1 - NEXT) * _even(begun)
        return Questions(torch.cat([begun, shown], -2), torch.cat([weight, _even(shown)], -2))

    def visible_sets(self, x0: Tensor, generator: torch.Generator) -> Tensor:
        """A random set of columns to show for each row, of the shape of x0, its size uniform on 0 … d − 1.

        The continuous part of a column is not shown without its parent. Where a chosen cell is missing, all columns
        with fewer gaps are shown as well. Otherwise such a row would be asked more often than a complete one with
        little to see, and complete columns would lean towards what rows with gaps hold.
        """
        members, n, d = x0.shape
        size = _sizes(members, n, d, generator)
        u = torch.rand(x0.shape, generator=generator, device=generator.device)
        chosen = u < u.sort(-1).values.gather(-1, size)
        for child, parent in self.parents.items():
            chosen[..., parent] |= chosen[..., child]
        return chosen if self.late is None else chosen | (self.late < self._latest_gap(x0, chosen, self.late))

    def _latest_gap(self, x0: Tensor, chosen: Tensor, late: Tensor) -> Tensor:
        """How late the latest chosen cell that is missing comes, (members, n, 1); −1 where none is."""
        absent = x0.isnan()
        for child, parent in self.parents.items():
            absent[..., child] = absent[..., parent]  # the nan of a part that does not exist is none
        return torch.where(chosen & absent, late, -1.0).amax(-1, keepdim=True)

    def _begun(
        self, places: Tensor, members: int, count: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """The places (members, count, d) of the columns in an order for each row, and how many are shown."""
        orders, d = places.shape
        size = _sizes(members, count, d, generator)
        which = torch.randint(orders, (members, count), generator=generator, device=generator.device)
        return places[which], size


def _sizes(members: int, n: int, d: int, generator: torch.Generator) -> Tensor:
    """Numbers on 0 … d − 1 (members, n, 1), one from each n-th part of the range: far less variance than at random."""
    u = torch.rand(members, n, 1, generator=generator, device=generator.device)
    part = torch.arange(n, device=generator.device).unsqueeze(1)
    return ((part + u) / n * d).long().clamp(max=d - 1)


def _even(shown: Tensor) -> Tensor:
    """The same weight for every hidden column of a row."""
    hidden = ~shown
    return hidden / hidden.sum(-1, keepdim=True).clamp_min(1)
