"""The map of a column that knows how often each of its values, or ranges of them, occurs.

People prefer some numbers: a carat of 1.00 to one of 0.99, an eighth of an inch to a ninth. Such a column has no smooth
density, and a smooth one would pay for it in every row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.tables.margins.combs import Comb, coarser_steps, countable, outer_ends, with_points
from ctem.tables.margins.rhythms import Smooth, smooth_from_json

__all__ = ["PreferredValues", "map_from_json", "rising", "without_cells"]

MAX_VALUES = 20_000  # of a column that this is fitted to
WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)  # of the smooth map against the counts, in rows per row
GAIN = 0.01  # nats per row that it must be worth
FURTHEST = 6.0  # |T(X)| of a value that counts: beyond, float64 cannot resolve neighbouring probabilities
NARROWEST = 1e-14  # smooth probability of a cell that counts, for the same reason
LEFT = 1e-9  # of the mass of a cell that is taken out: heights must rise

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class PreferredValues:
    """An increasing map from a rounded column to roughly N(0, 1): x = Φ⁻¹(F(Φ(T(X)))).

    F is piecewise linear through ``knots`` → ``heights``, both probabilities, and the identity beyond them. Its pieces
    are the cells of the values, and what lies between: with n_v rows of each of K values, n in all, and the smooth
    map's mass q_v of a cell,

        P(v) = ( n_v − 1 + (α + K) q_v ) / (n + α),

    so that values seen once, and unseen ones, follow it (Good and Turing's advice). Where most values lie on a coarser
    lattice, as whole ages among a few in months do, each lattice has its share s of the rows, its K values and its
    cells, and P(v) has (α s + K) q_v of the coarsest lattice of v (``ctem.tables.margins.combs``). With ``ranges`` the
    pieces are ranges of a column instead (``ctem.tables.margins.ranges``).

    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> X = np.repeat([0.3, 0.7, 1.0, 1.01, 1.5], [40, 30, 90, 10, 20])
    >>> X = np.concatenate([X, np.round(np.random.default_rng(0).uniform(0.2, 2, 50), 2)])
    >>> preferred = PreferredValues.fit(MonotoneMap.fit(X), X, 0.01)
    >>> values = torch.tensor([0.99, 1.0], dtype=torch.float64)
    >>> low, high = (torch.special.ndtr(preferred(values + h)) for h in (-0.005, 0.005))
    >>> (high - low).numpy().round(2)
    array([0.01, 0.39])
    >>> bool(torch.allclose(preferred.inverse(preferred(values)), values))
    True
    """

    smooth: Smooth
    knots: tuple[float, ...]
    heights: tuple[float, ...]
    ranges: bool = False

    @property
    def location(self) -> float:
        """Where the column lies."""
        return self.smooth.location

    @property
    def scale(self) -> float:
        """How wide it is."""
        return self.smooth.scale

    @classmethod
    def fit(
        cls, smooth: Smooth, X: Vector, width: float, atoms: Sequence[float] = ()
    ) -> Smooth | PreferredValues:
        """The map for values X of a column rounded to ``width``, or the smooth one where no value is preferred.

        The weight α is chosen by the likelihood of every row under the others. Values far out keep to the smooth map.
        The ``atoms`` of the column are not among X, and do not come back among new values.
        """
        values, counts = _cells(smooth, X, width)
        if len(values) < 2 or len(values) > MAX_VALUES or counts.max() < 2:
            return smooth
        combs = [Comb.fit(smooth, values, counts, [width])]
        ends = outer_ends(smooth, values)
        if steps := [step for step in coarser_steps(values, counts, width) if countable(ends, step)]:
            points = _near(smooth, *with_points(values, counts, steps, ends, atoms), width)
            combs.append(Comb.fit(smooth, *points, [width, *steps]))
        n, nats = int(counts.sum()), float(counts @ np.log(combs[0].mass)) / int(counts.sum())
        nats_of = {
            (k, weight): comb.left_out(weight * n) for k, comb in enumerate(combs) for weight in WEIGHTS
        }
        k, best = max(nats_of, key=nats_of.__getitem__)
        if nats_of[k, best] < nats + GAIN:
            return smooth
        knots, heights = combs[k].knots(best * n)
        kept = rising(heights)
        return cls(smooth, tuple(knots[kept].tolist()), tuple(heights[kept].tolist()))

    def __call__(self, X: Tensor) -> Tensor:
        """x = Φ⁻¹(F(Φ(T(X)))), float64."""
        return self._through(self.smooth(X), 0)[0]

    def with_log_slope(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """x and log dx/dX = log T′(X) + log F′ + log φ(T(X))/φ(x)."""
        t, log_slope = self.smooth.with_log_slope(X)
        x, rate = self._through(t, 0)
        return x, log_slope + rate.log() + (x * x - t * t) / 2

    def inverse(self, x: Tensor) -> Tensor:
        """The X that x stands for."""
        return self.smooth.inverse(self._through(x, 1)[0])

    def _through(self, t: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Forward (axis 0) or back (axis 1), and the rate F′; the identity beyond the knots."""
        table = self._table.to(t.device)
        along, across = table[axis], table[1 - axis]
        p = torch.special.ndtr(t)
        i = torch.searchsorted(along, p.contiguous(), right=True).clamp(1, len(along) - 1)
        left, bottom = along[i - 1], across[i - 1]
        rate = (across[i] - bottom) / (along[i] - left)
        x = torch.special.ndtri((bottom + rate * (p - left)).clamp(across[0], across[-1]))
        inside = (p > along[0]) & (p < along[-1])
        return torch.where(inside, x, t), torch.where(inside, rate, 1.0)

    @cached_property
    def _table(self) -> Tensor:
        return torch.tensor([self.knots, self.heights], dtype=torch.float64)

    def to_json(self) -> dict[str, Any]:
        """This map as plain JSON."""
        both = {"knots": list(self.knots), "heights": list(self.heights)}
        return {"inner": self.smooth.to_json(), **both, "ranges": self.ranges}


def without_cells(inner: Smooth | PreferredValues, values: Vector, width: float) -> Smooth | PreferredValues:
    """The map with next to no mass in the cells of some values, which are atoms and have a probability of their own.

    What they had is spread over all others in proportion, so that the atoms and the cells of all others add up to 1.

    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> smooth = MonotoneMap(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
    >>> edges = torch.tensor([-0.5, 0.5], dtype=torch.float64)
    >>> bool(torch.special.ndtr(without_cells(smooth, np.array([0.0]), 1.0)(edges)).diff() < 1e-9)
    True
    """
    smooth, steps = (inner.smooth, inner.knots) if isinstance(inner, PreferredValues) else (inner, ())
    low, high = (smooth(torch.from_numpy(values + side * width / 2)) for side in (-1, 1))
    near = (low.abs() < FURTHEST) & (high.abs() < FURTHEST)
    cells = torch.special.ndtr(torch.stack([low, high], 1)[near])
    cells = cells[cells[:, 1] - cells[:, 0] > NARROWEST]
    if not len(cells):
        return inner
    ends = torch.special.ndtr(torch.tensor([-FURTHEST, FURTHEST], dtype=torch.float64))
    knots = torch.cat([ends, cells.flatten(), torch.tensor(steps, dtype=torch.float64)]).unique()
    knots = knots[rising(knots.numpy())]
    inside = ((knots[:-1, None] >= cells[:, 0]) & (knots[1:, None] <= cells[:, 1])).any(1)
    mass = _before(inner, knots).diff() * torch.where(inside, LEFT, 1.0)
    heights = torch.cat([ends[:1], ends[0] + (ends[1] - ends[0]) * mass.cumsum(0) / mass.sum()])
    kept = rising(heights.numpy())
    return PreferredValues(smooth, tuple(knots[kept].tolist()), tuple(heights[kept].tolist()))


def map_from_json(data: Mapping[str, Any]) -> Smooth | PreferredValues:
    """The map that ``to_json`` wrote; anything else is refused.

    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> smooth = MonotoneMap(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
    >>> map_from_json(PreferredValues(smooth, (0.2, 0.8), (0.2, 0.8)).to_json()).knots
    (0.2, 0.8)
    """
    if "heights" not in data:
        return smooth_from_json(data)
    knots, heights = (tuple(map(float, data[key])) for key in ("knots", "heights"))
    both = np.array([knots, heights]) if len(knots) == len(heights) >= 2 else np.zeros((2, 0))
    fine = both.size and bool((np.diff(both, axis=1) > 0).all()) and both.min() >= 0 and both.max() <= 1
    if not fine or not np.allclose(both[0, [0, -1]], both[1, [0, -1]], rtol=0, atol=1e-9):
        raise ValueError(
            "preferred values: expected increasing knots and heights in [0, 1] that begin and end together."
        )
    return PreferredValues(smooth_from_json(data["inner"]), knots, heights, bool(data.get("ranges", False)))


def _before(inner: Smooth | PreferredValues, p: Tensor) -> Tensor:
    """F of probabilities of the smooth map."""
    if not isinstance(inner, PreferredValues):
        return p
    return torch.from_numpy(np.interp(p.numpy(), [0.0, *inner.knots, 1.0], [0.0, *inner.heights, 1.0]))


def _cells(smooth: Smooth, X: Vector, width: float) -> tuple[Vector, NDArray[np.int64]]:
    """Values that count, and their rows; rounding errors of a value are that value."""
    values, counts = np.unique(X, return_counts=True)
    first = np.flatnonzero(np.diff(values, prepend=-np.inf) > width / 2)
    return _near(smooth, values[first], np.add.reduceat(counts, first), width)


def _near(
    smooth: Smooth, values: Vector, counts: NDArray[np.int64], width: float
) -> tuple[Vector, NDArray[np.int64]]:
    """Values that are not too far out, and whose cells are not too narrow, for float64."""
    t = smooth(torch.from_numpy(np.concatenate([values - width / 2, values + width / 2]))).view(2, -1)
    low, high = torch.special.ndtr(t)
    near = ((t.abs() < FURTHEST).all(0) & (high - low > NARROWEST)).numpy()
    return values[near], counts[near]


def rising(heights: Vector) -> NDArray[np.bool_]:
    """Both ends, and what lies above all before it and below the last.

    Near 1 a narrow cell can have less mass than float64 sums can resolve.

    >>> rising(np.array([0.0, 0.4, 0.4, 0.7, 1.0]))
    array([ True,  True, False,  True,  True])
    """
    highest = np.maximum.accumulate(heights)
    inner = (heights[1:-1] > highest[:-2]) & (heights[1:-1] < heights[-1])
    return np.concatenate([[True], inner, [True]])
