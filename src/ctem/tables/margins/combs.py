"""How likely each value of a rounded column is, of which most may lie on a coarser lattice than the finest does.

An age of 0.42 among whole ones makes a lattice of hundredths. Without a share of their own, whole ages that were never
seen would be as unlikely as any hundredth, and hundredths as likely as all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.tables.margins.rhythms import Smooth

__all__ = ["Comb", "coarser_steps", "countable", "outer_ends", "with_points"]

MULTIPLES = (1000, 500, 200, 100, 60, 50, 24, 20, 12, 10, 5, 4, 2)  # of a step, that a coarser one may be
FEWEST = 5  # rows on a coarser lattice, at least
MOST_POINTS = 20_000
RARE = 4.0  # standard deviations beyond which a normal number hardly lies
OFF = 1e-4  # of a step, that a value may lie off its lattice

Vector = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Comb:
    """The values of a column, each on one or several lattices, and what a smooth map makes of them.

    Arguments:
        counts: rows of each value; 0 for one that may come.
        low, high: probabilities of the smooth map below and up to its cell.
        coarsest: the coarsest lattice that it lies on, the finest being 0.
        mass: of its cell on that lattice, which adds up to 1 over all of the lattice that is on no coarser one.
        share: of the rows on each lattice.
        kinds: different values among these.

    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> values, counts = np.array([0.42, 1.0, 2.0, 3.0, 4.0]), np.array([1, 25, 30, 25, 20])
    >>> smooth = MonotoneMap.fit(np.repeat(values, counts))
    >>> comb = Comb.fit(smooth, values, counts, [0.01, 1.0])
    >>> comb.kinds, comb.share.round(2)
    (array([1, 4]), array([0.01, 0.99]))
    """

    counts: Places
    low: Vector
    high: Vector
    coarsest: Places
    mass: Vector
    share: Vector
    kinds: Places

    @classmethod
    def fit(cls, smooth: Smooth, values: Vector, counts: Places, steps: Sequence[float]) -> Comb:
        """The comb of values, in order, on lattices of these steps, the finest first."""
        low, high = _edges(smooth, values, steps[0])
        before = np.concatenate([low[:1], high[:-1]])
        low = np.where(low - before < 1e-6 * (high - low), before, low)  # neighbours touch, to rounding
        which, mass = np.zeros(len(values), np.int64), high - low
        for k, step in enumerate(steps[1:], 1):
            on = _on(values, step)
            below, above = (np.clip(edge, low[0], high[-1]) for edge in _edges(smooth, values, step))
            which[on], mass[on] = k, (above - below)[on]
        total = np.bincount(which, mass, len(steps))
        total[0] = high[-1] - low[0] - (high - low)[which > 0].sum()  # with the cells between values
        share = np.bincount(which, counts, len(steps)) / counts.sum()
        kinds = np.bincount(which[counts > 0], minlength=len(steps))
        return cls(counts, low, high, which, mass / total[which], share, kinds)

    def left_out(self, alpha: float) -> float:
        """Mean log-probability of every row given the others, if the smooth map weighs as much as ``alpha`` rows."""
        seen = self.counts > 0
        counts, mass, which = self.counts[seen], self.mass[seen], self.coarsest[seen]
        weight = (alpha * self.share + self.kinds)[which] - (counts == 1)
        n = counts.sum()
        rows = np.maximum(counts - 2, 0) + weight * mass
        with np.errstate(
            divide="ignore"
        ):  # −inf: a row that the others make impossible; this comb is not taken
            return float(counts @ np.log(rows / (n - 1 + alpha))) / float(n)

    def knots(self, alpha: float) -> tuple[Vector, Vector]:
        """Where pieces of F meet, and F there (``ctem.tables.margins.preferred``)."""
        window, weight = self.high[-1] - self.low[0], alpha * self.share + self.kinds
        unit = window / (self.counts.sum() + alpha)
        mass = unit * (self.counts - (self.counts > 0) + weight[self.coarsest] * self.mass)
        before = np.concatenate([self.low[:1], self.high[:-1]])
        fine = window - (self.high - self.low)[self.coarsest > 0].sum()
        top = self.low[0] + np.cumsum(unit * weight[0] * (self.low - before) / fine + mass)
        knots, first = np.unique(np.stack([self.low, self.high], 1), return_index=True)
        heights = np.stack([top - mass, top], 1).ravel()[first]
        heights[[0, -1]] = knots[[0, -1]]
        return knots, heights


def coarser_steps(values: Vector, counts: Places, width: float) -> list[float]:
    """The steps of coarser lattices that most rows lie on, or most of those that are left; the finest first.

    >>> coarser_steps(np.array([0.42, 0.5, 1.0, 2.0, 3.0]), np.array([1, 9, 30, 40, 30]), 0.01)
    [0.5, 1.0]
    """
    place = values / width
    if not bool((np.abs(place - np.rint(place)) < OFF * np.maximum(1.0, np.abs(place) * 1e-9)).all()):
        return []
    steps, left, last = list[float](), counts.astype(np.float64), 0
    for times in MULTIPLES:
        on = _on(values, times * width)
        rows, fine = left[on].sum(), last % times == 0
        if fine and rows >= FEWEST and rows > (1 + 1 / times) / 2 * left.sum():
            steps.insert(0, times * width)
            left, last = np.where(on, 0.0, left), times
    return steps


def countable(ends: tuple[float, float], step: float) -> bool:
    """Whether all points of a lattice between two ends can be listed.

    A lattice of which only the seen points are listed would take those for all that there are.

    >>> countable((0.0, 100.0), 1.0), countable((0.0, 100.0), 1e-6)
    (True, False)
    """
    return (ends[1] - ends[0]) / step < MOST_POINTS


def with_points(
    values: Vector,
    counts: Places,
    steps: Sequence[float],
    ends: tuple[float, float],
    without: Sequence[float] = (),
) -> tuple[Vector, Places]:
    """The values with all points of coarser lattices between two ends, which have no rows, but for some.

    >>> with_points(np.array([0.5, 1.0, 4.0]), np.array([1, 5, 5]), [1.0], (0.5, 5.1))[0]
    array([0.5, 1. , 2. , 3. , 4. , 5. ])
    """
    every, rows = [values], [counts]
    for step in steps:
        first, last = np.ceil(ends[0] / step - OFF), np.floor(ends[1] / step + OFF)
        points = step * np.arange(first, last + 1)
        taken = np.sort(np.concatenate([values, np.array(without, np.float64)]))
        near = np.searchsorted(taken, points - step * OFF)
        known = np.abs(taken[near.clip(0, len(taken) - 1)] - points) <= step * OFF
        every.append(points[~known])
        rows.append(np.zeros(int((~known).sum()), np.int64))
    joined, counted = np.concatenate(every), np.concatenate(rows)
    order = np.argsort(joined, kind="stable")
    apart = np.diff(joined[order], prepend=-np.inf) > min(steps) * OFF  # a point of two lattices comes once
    return joined[order][apart], counted[order][apart]


def outer_ends(smooth: Smooth, values: Vector) -> tuple[float, float]:
    """How far new values may lie outside those in order: as far again as these span, but where hardly any would.

    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> values = np.arange(100.0)
    >>> low, high = outer_ends(MonotoneMap.fit(values), values)
    >>> -99 <= low < 0 and 99 < high <= 198
    True
    """
    span = values[-1] - values[0]
    low, high = smooth.inverse(torch.tensor([-RARE, RARE], dtype=torch.float64)).tolist()
    return float(max(low, values[0] - span)), float(min(high, values[-1] + span))


def _on(values: Vector, step: float) -> NDArray[np.bool_]:
    place = values / step
    return np.asarray(np.abs(place - np.rint(place)) < OFF)


def _edges(smooth: Smooth, values: Vector, width: float) -> tuple[Vector, Vector]:
    """Probabilities of the smooth map at both ends of the cells of values."""
    both: Tensor = torch.from_numpy(np.concatenate([values - width / 2, values + width / 2]))
    low, high = torch.special.ndtr(smooth(both)).view(2, -1).numpy()
    return low, high
