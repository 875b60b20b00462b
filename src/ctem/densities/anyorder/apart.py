r"""Columns of more labels than a network has codes for: rare ones share code 0, and differ behind the point.

Label i of those that share the code is the encoded number (i + 1) / 2¹⁷, which float32 holds exactly: a network, which
rounds down, sees code 0, and what was counted (``ctem.tables.relations.pair_keeper``) predicts the label. With
shares s(i) of the labels among the rows of the code,

    ρ(i | x_V) = ρ(0 | x_V) Q(i | x_V),      Σ_i Q(i | x_V) = 1,

as a density relative to s, ρ(0 | x_V) Q(i | x_V) / s(i); the schema adds log s(i). The number 0 is the code without a
label: nothing but s is known of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.densities.choices import choose

__all__ = ["MOST_APART", "ApartProbabilities", "Counted", "placed", "slots_of", "weighed"]

MOST_APART = 2**17 - 1  # labels that share the code


def placed(slot: Tensor, apart: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The encoded number of each slot: first the ``apart`` labels that share code 0, then the other codes.

    >>> placed(torch.tensor([0, 1, 2]), apart=2) * 2**17
    tensor([1.0000e+00, 2.0000e+00, 1.3107e+05])
    """
    behind = (slot + 1).to(dtype) / (MOST_APART + 1)
    return torch.where(slot < apart, behind, (slot - apart + 1).to(dtype))


def slots_of(value: Tensor, apart: int) -> Tensor:
    """The slot of each encoded number, which has no gap; −1 for code 0 without a label.

    >>> slots_of(placed(torch.arange(5), apart=3), apart=3)
    tensor([0, 1, 2, 3, 4])
    """
    behind = (value * (MOST_APART + 1)).round().long() - 1
    return torch.where(value < 1, behind, value.long() + apart - 1)


class Counted(Protocol):
    """Q(i | x_V) of the labels that share code 0, for each of n rows.

    >>> from ctem.tables.relations.pair_keeper import ByCounts
    >>> nothing = torch.tensor([-1]).numpy()  # is shown
    >>> found: Counted = ByCounts(torch.tensor([0.25, 0.75]).numpy(), nothing, nothing, ())
    >>> found.table()
    tensor([[0.2500, 0.7500]])
    """

    def log_ratio(self, place: Tensor) -> Tensor:
        """log Q(i)/s(i) of a label i for each row, (n,)."""

    def table(self) -> Tensor:
        """Q(i) of all labels, (n, labels)."""

    def draw(self, generator: torch.Generator) -> Tensor:
        """A label for each row, (n,)."""

    def rows(self, index: Tensor) -> Counted:
        """Those of these rows."""


class Weights(Protocol):
    """What labels that are shown add about codes to what a network predicts."""

    def log_weights(self, slot: NDArray[np.int64]) -> Tensor:
        """log of how much likelier every code is with each label than by the network, (n, codes)."""


class Paired(Protocol):
    """Counts of the codes of one column with the labels of another."""

    @property
    def given(self) -> int:
        """The other column."""

    def shown(self, x: Tensor, visible: Tensor) -> NDArray[np.int64]:
        """The label of every row; −1 where it is hidden."""

    def shrunk(self, base: Tensor) -> Weights:
        """The codes given labels, from a network's log-probabilities given codes alone (codes of the other, codes)."""


def weighed(
    log_p: Tensor, pairs: Sequence[Paired], x: Tensor, visible: Tensor, shrunk: Callable[[Paired], Weights]
) -> Tensor:
    """Log-probabilities of codes (n, k) from those of a network, each row by the best pair of columns that it shows.

    >>> weighed(torch.tensor([[0.5, 0.5]]).log(), [], torch.zeros(1, 2), torch.ones(1, 2) > 0, lambda pair: pair).exp()
    tensor([[0.5000, 0.5000]])
    """
    left = np.ones(len(x), bool)
    for pair in pairs:
        slot = pair.shown(x, visible)
        rows = np.flatnonzero(left & (slot >= 0))
        if len(rows):
            left[rows], where = False, torch.from_numpy(rows).to(log_p.device)
            weights = shrunk(pair).log_weights(slot[rows]).to(log_p)
            log_p = log_p.index_copy(0, where, (log_p[where] + weights).log_softmax(-1))
    return log_p


@dataclass(frozen=True)
class ApartProbabilities:
    """The conditional of a column of labels of which some share code 0 (``ctem.densities.chain.Conditional``).

    Arguments:
        log_p: of the codes (n, k).
        counted: of the labels that share code 0.
        apart: how many these are.

    >>> from ctem.tables.relations.pair_keeper import ByCounts
    >>> nothing = torch.tensor([-1]).numpy()  # is shown
    >>> by_shares = ByCounts(torch.tensor([0.25, 0.75]).numpy(), nothing, nothing, ())
    >>> ApartProbabilities(torch.tensor([[0.6, 0.4]]).log(), by_shares, 2).table()[1].exp()
    tensor([[0.1500, 0.4500, 0.4000]])
    """

    log_p: Tensor
    counted: Counted
    apart: int

    def log_prob(self, value: Tensor) -> Tensor:
        """log ρ of encoded numbers (n,), relative to the shares of labels in their code."""
        slot = slots_of(value, self.apart)
        label = (slot >= 0) & (slot < self.apart)
        ratio = self.counted.log_ratio(torch.where(label, slot, 0)).to(self.log_p)
        log_p = self.log_p.gather(1, value.long().unsqueeze(1)).squeeze(1)
        return log_p + torch.where(label, ratio, 0.0)

    def table(self) -> tuple[Tensor, Tensor]:
        """All labels as encoded numbers (q,), and log ρ of each (n, q)."""
        q = self.apart + self.log_p.shape[1] - 1
        values = placed(torch.arange(q, device=self.log_p.device), self.apart, self.log_p.dtype)
        shared = self.log_p[:, :1] + self.counted.table().to(self.log_p).log()
        return values, torch.cat([shared, self.log_p[:, 1:]], 1)

    def draw(self, generator: torch.Generator) -> Tensor:
        """An encoded number for each row, (n,)."""
        code = choose(self.log_p.exp(), generator)
        label = placed(self.counted.draw(generator).to(code.device), self.apart, self.log_p.dtype)
        return torch.where(code > 0, code.to(self.log_p.dtype), label)

    def rows(self, index: Tensor) -> ApartProbabilities:
        """Those of these rows."""
        return ApartProbabilities(self.log_p[index], self.counted.rows(index), self.apart)
