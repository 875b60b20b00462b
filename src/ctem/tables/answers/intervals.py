r"""Central intervals of single cells that hold as often as they should, whatever the model.

A value x of column j is as far out, given the other observed cells of its row, as

    p(x) = min(1, 2 min(P(X_j ≤ x | others), P(X_j ≥ x | others)))

and the interval between the quantiles t/2 and 1 − t/2 holds the values with p ≥ t. Of n held-out cells of the column,
each asked of a network that has not seen its row, t is the ⌊(1 − c)(n + 1)⌋-th smallest p: the interval then holds a
new cell with probability at least about c, if gaps do not depend on what they hide (conformal prediction). A model that
is too sure of itself, as one of few rows may be, gets longer intervals for it.

That t is of single networks, since only one of them has not seen a given held-out row. Their mean is wider and errs
less, so that between its quantiles an interval holds more than c. So the ends are the medians, over the networks, of
their own quantiles; of an even number of networks, the mean of the two in the middle, which holds what it should where
the outer one of the two would hold more.

Reference: V. Chernozhukov, K. Wüthrich, Y. Zhu, Distributional conformal prediction, 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ctem.tables.answers.density import TableDensity
from ctem.tables.answers.distributions import ColumnDistribution
from ctem.tables.answers.heldout import EVERY
from ctem.tables.io.cells import Cells
from ctem.tables.io.frame import Frame
from ctem.tables.io.rows import taken

__all__ = ["Intervals", "tail"]

Vector = NDArray[np.float64]
TIE = 1e-6  # so that a value as far out as the tail lies within


def tail(p: Vector, coverage: float) -> float:
    """t such that a new p-value is at least t with probability at least ``coverage``; 0 where p (n,) has too few.

    >>> tail(np.array([0.9, 0.1, 0.3, 0.5]), 0.6)
    0.3
    >>> tail(np.array([0.9, 0.1]), 0.9)
    0.0
    """
    k = int((1 - coverage) * (len(p) + 1) * (1 + 1e-9))
    return float(np.sort(p)[k - 1]) if k else 0.0


@dataclass(frozen=True)
class Intervals:
    """Intervals of the missing cells of a table, calibrated on held-out rows.

    Arguments:
        table: the fitted density.
        parts: members with rows that they have not seen (``ctem.tables.answers.heldout.held_out_parts``).

    >>> from ctem import CTEM
    >>> from ctem.tables.answers.heldout import held_out_parts
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = CTEM(max_steps=2, width=8, members=2, batch_size=16, random_state=0).fit(X)
    >>> table, frame = TableDensity(model.schema_, model.density_), model.as_frame([[0.0, None]])
    >>> low, high = Intervals(table, held_out_parts(table, model.as_frame(X), model.seed_, 2000)).of(frame, 0.9)
    >>> bool(low["x1"].values < high["x1"].values)
    True
    """

    table: TableDensity
    parts: Sequence[tuple[int, Frame]]

    def of(self, frame: Frame, coverage: float) -> list[dict[str, Cells]]:
        """The columns of a frame, missing cells at their lower ends, and at their upper ones; labels stay missing."""
        asked = sorted({member for member, _ in self.parts}) or [EVERY]
        each = [self._by(self.table.of_member(member), frame, coverage) for member in asked]
        return [
            {name: _middle([ends[side][name] for ends in each], upper=bool(side)) for name in frame.columns}
            for side in (0, 1)
        ]

    def _by(self, table: TableDensity, frame: Frame, coverage: float) -> list[dict[str, Cells]]:
        """Lower and upper ends by one network."""

        def half(distribution: ColumnDistribution, name: str) -> float:
            """What lies beyond each end."""
            return (tail(self._p_values(name), coverage) if distribution.has_mean else 1 - coverage) / 2

        return table.summarised(
            frame,
            lambda distribution, name: distribution.quantile(half(distribution, name)),
            lambda distribution, name: distribution.quantile(1 - half(distribution, name) * (1 - TIE)),
        )

    def _p_values(self, name: str) -> Vector:
        """Of the held-out cells of a column of numbers, (n,)."""
        if name not in self._known:
            p = [np.empty(0)]
            for member, frame in self.parts:
                known = taken(frame, ~frame.columns[name].missing)
                if len(known):
                    expected = self.table.of_member(member).conditional(
                        known, list(frame.columns).index(name)
                    )
                    p.append(expected.p_values(known.columns[name]))
            self._known[name] = np.concatenate(p)
        return self._known[name]

    @cached_property
    def _known(self) -> dict[str, Vector]:
        return {}


def _middle(cells: Sequence[Cells], upper: bool) -> Cells:
    """The medians of several columns, row by row; a whole number for whole ones, outward where it lies between two.

    >>> one, two = (Cells("int", np.array(values), np.zeros(2, bool)) for values in ([1, 9], [4, 3]))
    >>> _middle([one, two], upper=False).values, _middle([one, two], upper=True).values
    (array([2, 6]), array([3, 6]))
    """
    ranked = np.sort([column.values for column in cells], axis=0)
    low, high = ranked[(len(ranked) - 1) // 2], ranked[len(ranked) // 2]
    if low.dtype.kind == "f":
        middle = np.where(low == high, low, low / 2 + high / 2)
    elif low.dtype.kind == "b":
        middle = high if upper else low
    else:
        middle = low // 2 + high // 2 + (low % 2 + high % 2 + upper) // 2  # a sum could be too large
    return replace(cells[0], values=middle)
