"""The map of dates that are all the first day of a month, or all the last: hardly any mass is left to other days."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ctem.tables.margins.lattices import Lattice
from ctem.tables.margins.preferred import FURTHEST, LEFT, NARROWEST, PreferredValues, rising
from ctem.tables.margins.rhythms import Smooth

__all__ = ["Months", "on_months"]

FEWEST = 6  # different months that are no chance
MOST = 5000  # months that may come

Vector = NDArray[np.float64]


class Months(NamedTuple):
    """The months of some dates, which are the first day or the last of theirs.

    >>> Months.of(np.cumsum([0.0, 31, 28, 31, 30, 31, 30, 31]), Lattice("moment", "D", step=1.0, width=1.0))
    Months(first=0, last=7, step=1, end=False, clock=0.0)
    """

    first: int  # months since January 1970
    last: int
    step: int  # 3 for quarters, 12 for years
    end: bool  # the last day
    clock: float  # the time of that day, in days

    @classmethod
    def of(cls, X: Vector, lattice: Lattice) -> Months | None:
        """Of sorted dates in days, or None where they are other days, or too few to tell."""
        if lattice.type != "moment" or lattice.width != 1.0 or X[-1] - X[0] > 31 * MOST:
            return None
        moments = np.unique(X + lattice.shift / lattice.per)
        days, clock = np.floor(moments).astype("M8[D]"), float(moments[0] % 1)
        if len(days) < FEWEST:
            return None
        for end in (False, True):
            months = (days + int(end)).astype("M8[M]")
            if (months.astype("M8[D]") == days + int(end)).all():
                count = months.astype(np.int64) - end
                return cls(int(count[0]), int(count[-1]), int(np.gcd.reduce(np.diff(count))), end, clock)
        return None

    def in_words(self) -> str:
        """Which days of which months.

        >>> Months(0, 24, 12, end=False, clock=0.0).in_words()
        'all of them the first of a month, every 12 months'
        """
        day = "last" if self.end else "first"
        return f"all of them the {day} of a month" + (f", every {self.step} months" if self.step > 1 else "")

    def days(self) -> Vector:
        """Their moments, those of as many months before and of as many after, in days since 1970.

        >>> Months(0, 1, 1, end=True, clock=0.5).days()
        array([-0.5, 30.5, 58.5, 89.5])
        """
        span = max(self.last - self.first, self.step)
        months = np.arange(self.first - span, self.last + span + 1, self.step) + self.end
        return np.asarray(
            months.astype("M8[M]").astype("M8[D]").astype(np.float64) - float(self.end) + self.clock
        )


def on_months(inner: Smooth | PreferredValues, months: Months, lattice: Lattice) -> Smooth | PreferredValues:
    """The map with next to no mass on days that are not the first (or last) of these months.

    A month has the mass of all days that are nearest to its own; beyond as much time again the map is as it was.

    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> smooth = MonotoneMap(100.0, 80.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
    >>> months, days = Months(0, 7, 1, end=False, clock=0.0), Lattice("moment", "D", step=1.0, width=1.0)
    >>> monthly = on_months(smooth, months, days)
    >>> edges = torch.tensor([58.5, 59.5, 89.5, 90.5], dtype=torch.float64)
    >>> torch.special.ndtr(monthly(edges)).diff().numpy().round(3)
    array([0.117, 0.   , 0.148])
    """
    own = months.days() - lattice.shift / lattice.per
    between = np.concatenate(
        [[1.5 * own[0] - 0.5 * own[1]], own[:-1] + np.diff(own) / 2, [1.5 * own[-1] - 0.5 * own[-2]]]
    )
    smooth = inner.smooth if isinstance(inner, PreferredValues) else inner
    before, share = (each(torch.from_numpy(between)) for each in (smooth, inner))
    low, high = (torch.special.ndtr(smooth(torch.from_numpy(own + side / 2))) for side in (-1, 1))
    near = (before[:-1].abs() < FURTHEST) & (before[1:].abs() < FURTHEST) & (high - low > NARROWEST)
    if not near.any():
        return inner
    mass = torch.special.ndtr(torch.stack([share[:-1], share[1:]], 1)[near])
    left = LEFT * mass.diff(dim=1)
    ends = torch.special.ndtr(torch.tensor([-FURTHEST, FURTHEST], dtype=torch.float64))
    knots = torch.cat([ends[:1], torch.stack([low, high], 1)[near].flatten(), ends[1:]]).numpy()
    heights = torch.cat([ends[:1], (mass + torch.cat([left, -left], 1)).flatten(), ends[1:]]).numpy()
    kept = rising(heights) & rising(knots)
    return PreferredValues(smooth, tuple(knots[kept].tolist()), tuple(heights[kept].tolist()))
