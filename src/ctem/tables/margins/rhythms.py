"""The map of a column of moments that knows which hours of the day, or hours or days of the week, are busy.

Orders are made by day and hardly ever at night, and shares are traded on no Sunday. A smooth density over the calendar
would spread them over all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.tables.margins.monotone import MonotoneMap

__all__ = ["DAY", "WEEK", "Rhythm", "Smooth", "smooth_from_json"]

DAY, WEEK = 1.0, 7.0  # periods, in units of X
MOST = 0.9  # of the rows: how many hours hold so many


@dataclass(frozen=True)
class Rhythm:
    """An increasing map from a column of moments, in days, to roughly N(0, 1): x = T(W(X)).

        W(start + period (k + p)) = start + period (k + F(p)),        k whole, 0 ≤ p < 1

    F is the distribution function of the place p within a day or week, piecewise linear through ``edges`` → ``below``.
    W is a clock that runs by the share of the rows: fast through busy hours, and hardly at all through the night. A
    density of W(X) that is smooth over the calendar then has the rhythm F′ in every period, and stays normalised.

    Where X is of UTC and the wall clock is o_i ahead of it between two of its changes, W(X + o_i) + c_i takes the place
    of W(X), with the c_i that make it continuous: hours are those of the wall clock, the one that comes twice as well.

    Arguments:
        inner: T, fitted to W(X).
        period: 1 or 7 days.
        start: a moment at which a period begins, by the wall clock.
        edges, below: both from 0 to 1, and increasing.
        turns: the X at which the wall clock is set forward or back, increasing.
        offsets: days that it is ahead before the first of them, and after each.

    >>> curve = MonotoneMap(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
    >>> rhythm = Rhythm(curve, DAY, 0.0, (0.0, 0.5, 1.0), (0.0, 0.1, 1.0))
    >>> X = torch.tensor([3.25, 3.75], dtype=torch.float64)
    >>> Y, log_rate = rhythm.wound(X)
    >>> Y.numpy().round(2), log_rate.exp().numpy().round(2)
    (array([3.05, 3.55]), array([0.2, 1.8]))
    >>> bool(torch.allclose(rhythm.inverse(rhythm(X)), X))
    True
    """

    inner: MonotoneMap
    period: float
    start: float
    edges: tuple[float, ...]
    below: tuple[float, ...]
    turns: tuple[float, ...] = ()
    offsets: tuple[float, ...] = (0.0,)

    @property
    def location(self) -> float:
        """Where the column lies."""
        return self.inner.location

    @property
    def scale(self) -> float:
        """How wide it is."""
        return self.inner.scale

    @property
    def smooth(self) -> Rhythm:
        """The map without steps of preferred values: itself, since a row at night is a strange one."""
        return self

    def fit(self, X: NDArray[np.float64]) -> Rhythm:
        """The same rhythm with T fitted to X."""
        return replace(self, inner=MonotoneMap.fit(self.wound(torch.from_numpy(X))[0].numpy()))

    def __call__(self, X: Tensor) -> Tensor:
        """x = T(W(X)), float64."""
        return self.inner(self.wound(X)[0])

    def with_log_slope(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """x and log dx/dX = log T′(W(X)) + log F′."""
        Y, log_rate = self.wound(X)
        x, log_slope = self.inner.with_log_slope(Y)
        return x, log_slope + log_rate

    def inverse(self, x: Tensor) -> Tensor:
        """The X that x stands for."""
        Y = self.inner.inverse(x)
        _, offsets, constants, reached = (part.to(x.device) for part in self._wall)
        i = torch.searchsorted(reached, Y.detach().contiguous(), right=True)
        return self._through(Y - constants[i], 1)[0] - offsets[i]

    def wound(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """W(X) and log W′(X)."""
        turns, offsets, constants, _ = (part.to(X.device) for part in self._wall)
        i = torch.searchsorted(turns, X.detach().contiguous(), right=True)
        Y, log_rate = self._through(X + offsets[i], 0)
        return Y + constants[i], log_rate

    @cached_property
    def _wall(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The turns, the offsets, what makes W continuous, and W at the turns."""
        turns, offsets = (torch.tensor(each, dtype=torch.float64) for each in (self.turns, self.offsets))
        before, after = (self._through(turns + each, 0)[0] for each in (offsets[:-1], offsets[1:]))
        constants = torch.cat([turns.new_zeros(1), (before - after).cumsum(0)])
        return turns, offsets, constants, before + constants[:-1]

    def _through(self, X: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """W (axis 0) or its inverse (axis 1), and the logarithm of its rate."""
        table = self._table.to(X.device)
        along, across = table[axis], table[1 - axis]
        periods = (X - self.start) / self.period
        whole = periods.detach().floor()
        p = periods - whole
        i = torch.searchsorted(along, p.detach().contiguous(), right=True).clamp(1, len(along) - 1)
        rate = (across[i] - across[i - 1]) / (along[i] - along[i - 1])
        place = across[i - 1] + rate * (p - along[i - 1])
        return self.start + self.period * (whole + place), torch.where(X.isnan(), torch.nan, rate.log())

    @cached_property
    def _table(self) -> Tensor:
        return torch.tensor([self.edges, self.below], dtype=torch.float64)

    def as_quiet(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """The share of the rows that come at times no busier than those of X; nan for nan.

        >>> curve = MonotoneMap(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
        >>> Rhythm(curve, DAY, 0.0, (0.0, 0.5, 1.0), (0.0, 0.1, 1.0)).as_quiet(np.array([3.25, 3.75]))
        array([0.1, 1. ])
        """
        share = np.diff(self.below)
        rate = np.log(share / np.diff(self.edges))
        here = self.wound(torch.from_numpy(X))[1].numpy()[:, None]
        return np.where(np.isnan(X), np.nan, (share * (rate <= here + 1e-9)).sum(1))

    def in_words(self) -> str:
        """What is rhythmic, and in how many hours, or on how many days of the week, most rows lie.

        >>> curve = MonotoneMap(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
        >>> Rhythm(curve, DAY, 0.0, (0.0, 0.5, 1.0), (0.0, 0.1, 1.0)).in_words()
        'the time of day follows a daily rhythm: nine in ten rows within 12 of 24 hours'
        """
        width, share = np.diff(self.edges), np.diff(self.below)
        busiest = np.argsort(-share / width, kind="stable")
        rows, room = (np.concatenate([[0.0], np.cumsum(values[busiest])]) for values in (share, width))
        if self.period == WEEK and np.allclose(np.array(self.edges) * WEEK % 1, 0):
            days = math.ceil(float(np.interp(MOST, rows, room)) * WEEK - 1e-6)
            return f"the weekday follows a weekly rhythm: nine in ten rows on {days} of 7 days"
        whole = 24 * self.period
        least = max(1.0, float(np.interp(MOST, rows, room)) * whole)
        hours = f"nine in ten rows within {least:.0f} of {whole:.0f} hours"
        if self.period == DAY:
            return f"the time of day follows a daily rhythm: {hours}"
        return f"weekday and time of day follow a weekly rhythm: {hours}"

    def to_json(self) -> dict[str, Any]:
        """This map as plain JSON."""
        both = {"edges": list(self.edges), "below": list(self.below)}
        wall = {"turns": list(self.turns), "offsets": list(self.offsets)}
        return {"inner": self.inner.to_json(), "period": self.period, "start": self.start, **both, **wall}


Smooth = MonotoneMap | Rhythm


def smooth_from_json(data: Mapping[str, Any]) -> Smooth:
    """The map that ``to_json`` wrote; anything else is refused.

    >>> curve = MonotoneMap(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
    >>> smooth_from_json(Rhythm(curve, WEEK, 0.0, (0.0, 0.5, 1.0), (0.0, 0.1, 1.0)).to_json()).below
    (0.0, 0.1, 1.0)
    """
    if "period" not in data:
        return MonotoneMap.from_json(data)
    period, start = float(data["period"]), float(data["start"])
    edges, below = (tuple(map(float, data[key])) for key in ("edges", "below"))
    both = np.array([edges, below]) if len(edges) == len(below) >= 2 else np.zeros((2, 2))
    whole = (both[:, 0] == 0).all() and (both[:, -1] == 1).all() and (np.diff(both, axis=1) > 0).all()
    if period not in (DAY, WEEK) or not np.isfinite(start) or not whole:
        raise ValueError(
            "rhythm: expected a period of 1 or 7 days, a finite start, and edges and shares below them that "
            "increase from 0 to 1."
        )
    turns, offsets = (tuple(map(float, data[key])) for key in ("turns", "offsets"))
    return Rhythm(
        MonotoneMap.from_json(data["inner"]), period, start, edges, below, *_checked_wall(turns, offsets)
    )


def _checked_wall(turns: tuple[float, ...], offsets: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    """Turns and offsets that a wall clock can have: it is set by hours, seldom, and is within a day of UTC."""
    apart = np.diff([-math.inf, *turns, math.inf])
    ahead = np.array(offsets)
    possible = len(offsets) == len(turns) + 1 and bool((apart > DAY).all() and (np.abs(ahead) < DAY).all())
    if not possible or not np.isfinite(turns).all():
        raise ValueError(
            "rhythm: expected turns of a wall clock, more than a day apart, and one offset more, each within a day."
        )
    return turns, offsets
