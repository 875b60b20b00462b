r"""Real cells beside sampled ones: every column by itself, and every pair of columns.

Shares of slots differ by the total variation ½ Σ |p − q|; that two samples of one law of sizes n and m differ by
½ Σ √(2/π · p(1−p)(1/n + 1/m)) on average is the part of chance. The dependence of two columns is their mutual
information in nats, after grouping, less (r−1)(c−1)/2n, which is what independent columns would show (Miller 1955).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctem.report.axes import Axis
from ctem.tables.io.cells import Cells

__all__ = ["Marginal", "Pair", "compare_column", "compare_pairs", "mutual_information"]

SURE, SMALL = 5.0, 0.02  # spreads beyond chance, and least share, of a difference that is an alarm
GROUPS = 8  # of an ordered column, in dependence
Vector = NDArray[np.float64]
Slots = NDArray[np.int64]


@dataclass(frozen=True)
class Marginal:
    """The shares of a column's slots, real and sampled, how much they differ, and how much chance alone would.

    >>> shares = np.array([0.5, 0.5])
    >>> Marginal(None, shares, shares, 0.0, 0.01, 0).difference
    0.0
    """

    axis: Axis
    real: Vector
    sampled: Vector
    difference: float
    chance: float
    missing: int

    @property
    def is_off(self) -> bool:
        """Whether the difference is beyond chance, about one time in a thousand, and large enough to matter.

        A sum of k absolute normal deviations spreads by √(π/2 − 1)/√k of its mean.
        """
        spread = math.sqrt((math.pi / 2 - 1) / self.axis.size)
        return self.difference > max(self.chance * (1 + SURE * spread), SMALL)


@dataclass(frozen=True)
class Pair:
    """Two columns by position, and their dependence in nats, real and sampled.

    >>> Pair(0, 1, 0.7, 0.6).real
    0.7
    """

    first: int
    second: int
    real: float
    sampled: float


def compare_column(axis: Axis, real: Cells, sampled: Cells) -> Marginal:
    """One column, real beside sampled.

    >>> from ctem.tables.encoding.codecs import Labels
    >>> from ctem.report.axes import lay_out
    >>> cells = Cells("bool", np.array([True, False, True, True]), np.zeros(4, bool))
    >>> axis = lay_out("b", Labels("bool", (False, True), (0, 1), (1.0, 1.0)), cells)
    >>> compare_column(axis, cells, cells).real
    array([0.75, 0.25])
    """
    counts = [_counts(axis.slots(cells), axis.size) for cells in (real, sampled)]
    n, m = (max(float(count.sum()), 1.0) for count in counts)
    p, q = counts[0] / n, counts[1] / m
    pooled = (counts[0] + counts[1]) / (n + m)
    spread = np.sqrt(2 / math.pi * pooled * (1 - pooled) * (1 / n + 1 / m))
    return Marginal(axis, p, q, float(abs(p - q).sum() / 2), float(spread.sum() / 2), int(real.missing.sum()))


def compare_pairs(
    marginals: Sequence[Marginal], real: Mapping[str, Cells], sampled: Mapping[str, Cells]
) -> list[Pair]:
    """All pairs of columns, the most dependent first.

    >>> compare_pairs([], {}, {})
    []
    """
    groups = [_groups(marginal) for marginal in marginals]
    sizes = [int(group.max()) + 1 for group in groups]
    nats = []
    for table in (real, sampled):
        slots = [m.axis.slots(table[m.axis.name]) for m in marginals]
        codes = [np.append(group, -1)[slot] for group, slot in zip(groups, slots, strict=True)]
        nats.append(mutual_information(codes, sizes))
    pairs = [
        Pair(i, j, float(nats[0][i, j]), float(nats[1][i, j]))
        for i in range(len(sizes))
        for j in range(i + 1, len(sizes))
    ]
    return sorted(pairs, key=lambda pair: -pair.real)


def mutual_information(codes: Sequence[Slots], sizes: Sequence[int]) -> Vector:
    """I(i, j) = Σ p log p / (p_i p_j) of every pair of coded columns over the rows where both are known, (d, d).

    Less its expected value for independent columns, and at least 0. −1 codes a missing cell.

    >>> a = np.array([0, 1] * 100)
    >>> mutual_information([a, a, np.arange(200) // 100], [2, 2, 2]).round(2)
    array([[0.  , 0.69, 0.  ],
           [0.69, 0.  , 0.  ],
           [0.  , 0.  , 0.  ]])
    """
    d = len(sizes)
    out = np.zeros((d, d))
    if d < 2:
        return out
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    flags = [code[:, None] == np.arange(k) for code, k in zip(codes, sizes, strict=True)]
    table = np.concatenate(flags, 1).astype(np.float32)
    for i in range(d - 1):
        joint = (table[:, starts[i] : starts[i] + sizes[i]].T @ table[:, starts[i + 1] :]).astype(np.float64)
        out[i, i + 1 :] = _information(joint, starts[i + 1 :] - starts[i + 1])
    return np.maximum(out + out.T, 0.0)


def _information(joint: Vector, starts: Slots) -> Vector:
    """From counts (r, Σ c): one table after the other, each starting at its start."""
    rows = np.add.reduceat(joint, starts, axis=1)
    columns = joint.sum(0)
    n = rows.sum(0)
    total = np.maximum(n, 1.0)
    cells = np.add.reduceat(_xlogx(joint).sum(0), starts)
    margins = _xlogx(rows).sum(0) + np.add.reduceat(_xlogx(columns), starts)
    filled = np.add.reduceat((columns > 0).astype(np.float64), starts)
    excess = ((rows > 0).sum(0) - 1) * (filled - 1) / (2 * total)
    return np.where(n > 0, (cells - margins + _xlogx(n)) / total - excess, 0.0)


def _xlogx(value: Vector) -> Vector:
    return np.asarray(value * np.log(np.where(value > 0, value, 1.0)))


def _counts(slots: Slots, size: int) -> Vector:
    return np.bincount(slots[slots >= 0], minlength=size).astype(np.float64)


def _groups(marginal: Marginal) -> Slots:
    """The group of every slot: its own for a category, eighths of the rows for an ordered column."""
    size = marginal.axis.size
    if not marginal.axis.ordered or size <= GROUPS:
        return np.arange(size)
    middle = np.cumsum(marginal.real) - marginal.real / 2
    group = np.minimum((middle * GROUPS).astype(np.int64), GROUPS - 1)
    return np.unique(group, return_inverse=True)[1].reshape(-1)
