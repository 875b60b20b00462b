"""Whether the moments of a column follow a daily or a weekly rhythm, or its dates a weekly one, and which."""

from __future__ import annotations

import datetime as dt
import math
from bisect import bisect_left
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from ctem.tables.io.cells import tzinfo_of
from ctem.tables.margins.lattices import Lattice
from ctem.tables.margins.monotone import MonotoneMap
from ctem.tables.margins.ranges import ERRORS, FEWEST, FOLDS, GAIN, PSEUDO, ROWS, likeliest_blocks
from ctem.tables.margins.rhythms import DAY, WEEK, Rhythm, Smooth

__all__ = ["AROUND", "SECONDS", "beginning", "with_rhythm"]

GRID = {DAY: 1440, WEEK: 2016}  # places of a period where the rate may change: every minute, every five
COARSEST = 0.5  # days between moments that have a time of day
CYCLES = 4  # different days or weeks in which there are rows, at least
TRICKLE = (
    1e-3  # of the rows may come at any time: an hour of no mass at all, encoded in float32, has no width
)
SECONDS, EPOCH = 86_400, dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
AROUND = 3652.0  # days before the first moment and after the last for which it is known when clocks are set
CALENDAR = -62_091.0, 193_587.0  # of the years from 1800 to 2500, in which they are
MOST_CELLS, WHOLE = 10**9, 1e-3  # cells of a lattice in a period, and how near to a whole number they are

Vector = NDArray[np.float64]


def with_rhythm(smooth: MonotoneMap, X: Vector, even: Vector, lattice: Lattice, zone: str = "") -> Smooth:
    """The map with a daily or weekly rhythm, if days or weeks left out are likelier with it; else the smooth one.

    Arguments:
        smooth: T, fitted to the values.
        X: the values, sorted.
        even: the same, those that share a cell of the lattice laid out over it.
        lattice: what they lie on; only moments and dates have a rhythm.
        zone: in whose hours they are lived, where X is of UTC.

    >>> rng = np.random.default_rng(0)
    >>> X = np.sort(np.round((rng.integers(0, 100, 500) + rng.uniform(8, 18, 500) / 24) * 1440) / 1440)
    >>> smooth = MonotoneMap.fit(X)
    >>> with_rhythm(smooth, X, X, Lattice("moment", "s", 0, 60.0, 0.0, width=1 / 1440)).in_words()
    'the time of day follows a daily rhythm: nine in ten rows within 9 of 24 hours'
    >>> with_rhythm(smooth, X, X, Lattice("float", width=1 / 1440)) is smooth
    True
    """
    if lattice.type != "moment" or lattice.width > DAY or len(X) < FEWEST:
        return smooth
    best: Rhythm | None = None
    turns, offsets = _wall_clock(zone, lattice, float(X[0]), float(X[-1]))
    X = X + np.array(offsets)[np.searchsorted(turns, X, "right")]  # by the wall clock
    some = X if len(X) <= ROWS else np.sort(np.random.default_rng(0).choice(X, ROWS, replace=False))
    start = beginning(lattice, offsets[0])
    for period in (DAY, WEEK) if lattice.width <= COARSEST else (WEEK,):
        if not _fits(period, lattice.width):
            continue
        rhythm = _rhythm(smooth, X, lattice, period, start)
        if len(rhythm.edges) > 2 and _better(rhythm, best, some, lattice):
            best = rhythm
    return smooth if best is None else replace(best, turns=turns, offsets=offsets).fit(even)


def _wall_clock(zone: str, lattice: Lattice, first: float, last: float) -> tuple[tuple[float, ...], ...]:
    """When the clock of a zone is set, in units of X around its values, and by how many days it is ahead of UTC.

    Cells of hours, of which an hour more or less is no whole number, have the hours of the first offset throughout.

    >>> turns, offsets = _wall_clock("Europe/Oslo", Lattice("moment", "s"), 19_000.0, 19_100.0)
    >>> len(turns), sorted({round(24 * ahead) for ahead in offsets})
    (41, [1, 2])
    """
    if not zone:
        return (), (0.0,)
    known, middle = tzinfo_of(zone), lattice.shift / lattice.per
    lowest, highest = (middle + end for end in (first - AROUND, last + AROUND))
    days = np.arange(max(lowest, CALENDAR[0]), min(highest, CALENDAR[1]), WEEK) * SECONDS
    ahead = [_ahead(known, int(second)) for second in days]
    changes = [i for i in range(1, len(ahead)) if ahead[i] != ahead[i - 1]]
    turns = [_turn(known, int(days[i - 1]), int(days[i])) / SECONDS - middle for i in changes]
    offsets = [ahead[i] / SECONDS for i in (0, *changes)] if ahead else [0.0]
    steps = (np.array(offsets) - offsets[0]) / lattice.width if lattice.width else np.zeros(1)
    if lattice.width > DAY / GRID[DAY] and np.abs(steps - np.rint(steps)).max() > WHOLE:
        return (), (offsets[0],)
    return tuple(turns), tuple(offsets)


def _ahead(zone: dt.tzinfo, second: int) -> float:
    """Seconds that a zone is ahead of UTC at a moment."""
    offset = (EPOCH + dt.timedelta(seconds=second)).astimezone(zone).utcoffset()
    assert offset is not None  # as of every moment with a zone
    return offset.total_seconds()


def _turn(zone: dt.tzinfo, before: int, after: int) -> int:
    """The second at which a zone first differs from what it was ``before``."""
    was = _ahead(zone, before)
    return 1 + before + bisect_left(range(before + 1, after), True, key=lambda at: _ahead(zone, at) != was)


def _rhythm(smooth: MonotoneMap, X: Vector, lattice: Lattice, period: float, start: float) -> Rhythm:
    """The likeliest rhythm of X with this period: a histogram of as many blocks as the rows speak for."""
    edges = _grid(period, lattice.width)
    place = ((X - start) / period) % 1.0
    before = np.concatenate([[0.0], np.cumsum(np.histogram(place, edges)[0])])
    edges, before = likeliest_blocks(edges, before)
    blocks = len(edges) - 1
    pseudo = max(PSEUDO * blocks, TRICKLE * len(X))
    mass = (np.diff(before) + pseudo * np.diff(edges)) / (len(X) + pseudo)
    below = [0.0, *np.cumsum(mass)[:-1].tolist(), 1.0]
    return Rhythm(smooth, period, start, tuple(edges.tolist()), tuple(below))


def beginning(lattice: Lattice, ahead: float) -> float:
    """The X of a clock so many days ahead at which the cell of a midnight, or of the moment next to it, begins.

    >>> beginning(Lattice("moment", "s", 0, 60.0, 30.0, width=1 / 1440), 0.0) * 1440
    0.0
    """
    midnight, origin = -lattice.shift % (int(WEEK) * lattice.per), lattice.origin + ahead * lattice.per
    steps = round((midnight - origin) / lattice.step)
    return (origin + steps * lattice.step) / lattice.per - lattice.width / 2


def _fits(period: float, width: float) -> bool:
    """Whether the rate can change between cells of the lattice alone, or these are finer than any change of it.

    Within a cell it must not: every row of the cell would be where the rate is highest, and the density no density.

    >>> _fits(1.0, 0.25), _fits(1.0, 7 / 24)
    (True, False)
    """
    return _divides(period, width) or width <= period / GRID[period]


def _divides(period: float, width: float) -> bool:
    cells = period / width
    return cells <= MOST_CELLS and abs(cells - round(cells)) <= WHOLE


def _grid(period: float, width: float) -> Vector:
    """Where in a period the rate may change: between cells of the lattice, where they fit into it.

    >>> _grid(1.0, 0.25)
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    grid = np.linspace(0.0, 1.0, GRID[period] + 1)
    if not _divides(period, width):
        return grid
    whole = round(period / width)
    return np.asarray(np.unique(np.rint(grid * whole)) / whole)


def _better(rhythm: Rhythm, other: Rhythm | None, X: Vector, lattice: Lattice) -> bool:
    """Whether periods left out are likelier by this rhythm, fitted to the rest, than by the other or none."""
    _, cycle = np.unique(np.floor((X - rhythm.start) / rhythm.period), return_inverse=True)
    cycles = int(cycle.max()) + 1
    if cycles < CYCLES:
        return False
    fold = (np.random.default_rng(0).permutation(cycles) % FOLDS)[cycle]
    gain = np.zeros(len(X))
    for k in range(FOLDS):
        rest, out = X[fold != k], X[fold == k]
        gain[fold == k] = _log_rate(rhythm, rest, out, lattice) - _log_rate(other, rest, out, lattice)
    surplus = np.bincount(cycle, gain - gain.mean())
    error = math.sqrt(float((surplus**2).sum())) / len(X)
    return bool(gain.mean() > max(GAIN, ERRORS * error))


def _log_rate(rhythm: Rhythm | None, X: Vector, left_out: Vector, lattice: Lattice) -> Vector:
    """How much likelier a rhythm fitted to X makes moments left out than no rhythm."""
    if rhythm is None:
        return np.zeros(len(left_out))
    fitted = _rhythm(rhythm.inner, X, lattice, rhythm.period, rhythm.start)
    return np.asarray(fitted.wound(torch.from_numpy(left_out))[1].numpy())
