"""A real column: which of its values are atoms, which lattice the others lie on, where it ends, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ctem.spaces import Real
from ctem.tables.encoding.codecs import Numbers
from ctem.tables.encoding.lookup import in_words
from ctem.tables.inference.sentinels import sentinels
from ctem.tables.io.cells import Cells
from ctem.tables.margins.bounds import Bounded, natural_ends, with_ends
from ctem.tables.margins.calendars import with_rhythm
from ctem.tables.margins.lattices import Lattice
from ctem.tables.margins.monotone import MonotoneMap
from ctem.tables.margins.months import Months, on_months
from ctem.tables.margins.preferred import PreferredValues, without_cells
from ctem.tables.margins.ranges import fit_ranges
from ctem.tables.margins.rhythms import Rhythm, Smooth

__all__ = ["fit_numbers"]

# a share of the rows, and so many times its neighbours' median count
ATOM_RULES = ((0.05, 5.0), (0.02, 20.0))
STRAYS, MAX_STRAYS = 0.1, 8  # at most this share of the rows, and so many values, beside a coarser lattice
ATOM_ROWS = 10  # at least, by these rules
LONE_ROWS, LONE_TIMES = 20, 50.0  # so many rows, and so many times the rows per cell around
MAX_ATOMS = 128
FEW_WHOLE = 32  # values that a coarser lattice must have more of
VAST = 1e308  # sums and differences of larger numbers overflow
LEAST_WORTH = 3  # numbers that weighted ones stand for, at least
HEAVY = 20.0  # robust standard deviations from the median
TOUCHING = 1e-6  # of a cell, between a value and the point of the lattice that it is


def fit_numbers(
    name: str,
    cells: Cells,
    distinct: NDArray[Any],
    counts: NDArray[Any],
    requested: Real,
    state: bool,
    reserve: bool,
    weights: NDArray[np.float64] | None = None,
) -> tuple[Numbers, str]:
    """The codec of a real column, and the reason in words.

    Arguments:
        distinct, counts: the values in order, and how often each occurs.
        requested: by the user, for its ends.
        state: a missing cell is a value of its own.
        reserve: values beyond the ends keep some probability.
        weights: how many rows each cell stands for, (n,), or None.

    >>> cells = Cells("int", np.arange(60) % 40, np.zeros(60, bool))
    >>> distinct, counts = np.unique(cells.values, return_counts=True)
    >>> fit_numbers("n", cells, distinct, counts, Real(), False, False)[1]
    'whole numbers; never below 0'
    """
    codes = sentinels(cells, distinct, counts)
    ends = _ends(name, cells, distinct[~codes], counts[~codes], requested)
    if cells.type == "float" and np.abs(distinct[[0, -1]]).max() > VAST:
        raise ValueError(
            f"column {name!r}: values from {distinct[0]:g} to {distinct[-1]:g} span more than float64 can hold. "
            "Rescale it, or drop the extreme rows."
        )
    heavy = _atoms(distinct, counts) | _off_lattice(cells, distinct, counts) | codes
    is_atom = np.isin(cells.values, distinct[heavy]) if heavy.any() else np.zeros(len(cells), bool)
    lattice = Lattice.fit(replace(cells, missing=cells.missing | is_atom))
    X = lattice.measure(cells)
    atoms = np.unique(X[~cells.missing & is_atom])
    smooth_part = ~np.isnan(X) & ~np.isin(X, atoms)
    rest = np.sort(X[smooth_part])
    stands = rest
    if weights is not None and (weights != weights[0]).any():
        stands = _weighted(X[smooth_part], weights[smooth_part], lattice.width)
    try:
        transform = _transform(stands, lattice, atoms.tolist(), cells.zone)
    except ValueError as error:
        raise ValueError(f"column {name!r}: {error} Rescale it, or drop the extreme rows.") from None
    months = Months.of(rest, lattice)
    if months is not None:
        transform = on_months(transform, months, lattice)
    free = transform
    if lattice.width:  # the continuous part must not draw atoms that are points of the lattice
        off = (lattice.snap(torch.from_numpy(atoms)) - torch.from_numpy(atoms)).abs()
        free = without_cells(transform, atoms[(off <= TOUCHING * lattice.width).numpy()], lattice.width)
    cut = with_ends(free, lattice, ends[:2], ends.requested)
    new = (len(X) + 1.0) ** -2 if reserve and isinstance(cut, Bounded) else 0.0
    codec = Numbers(lattice, cut, tuple(atoms.tolist()), state, new, (float(rest[0]), float(rest[-1])))
    why = _why(cells, lattice, months, transform, rest, distinct[heavy], counts[heavy], state)
    words = [why, *([] if cut is free else [ends.in_words()]), *_codes_in_words(cells, distinct[codes])]
    return codec, "; ".join(words)


def _weighted(X: NDArray[np.float64], weights: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """Sorted numbers without weights that are spread as these are, as many as these are worth: (Σ w)² / Σ w².

    Those of a continuous column lie between them, as quantiles do, so that none is repeated; the ends are there.

    >>> _weighted(np.array([2.0, 1.0, 3.0, 4.0]), np.array([3.0, 3.0, 1.0, 1.0]), width=1.0)
    array([1., 2., 4.])
    """
    order = np.argsort(X, kind="stable")
    X, weights = X[order], weights[order]
    share = np.cumsum(weights) / weights.sum()
    count = max(round(float(weights.sum() ** 2 / (weights**2).sum())), min(len(X), LEAST_WORTH))
    places = (np.arange(count) + 0.5) / count
    if width:
        chosen = X[np.searchsorted(share, places).clip(max=len(X) - 1)]
    else:
        chosen = np.interp(places, share - weights / weights.sum() / 2, X)
    chosen[[0, -1]] = X[[0, -1]]
    return np.asarray(chosen)


def _transform(
    X: NDArray[np.float64], lattice: Lattice, atoms: Sequence[float], zone: str = ""
) -> Smooth | PreferredValues:
    """The map of sorted X on this lattice: smooth, or with a rhythm, preferred values or ranges."""
    even = _spread(X, lattice.width)
    smooth = with_rhythm(MonotoneMap.fit(even), X, even, lattice, zone)
    other = PreferredValues.fit(smooth, X, lattice.width, atoms) if lattice.width else smooth
    return fit_ranges(smooth, other, even)


class Ends(NamedTuple):
    """Between which values a column lies, and whether the user requested it.

    >>> Ends(0.0, math.inf, requested=False).in_words()
    'never below 0'
    """

    low: float
    high: float
    requested: bool

    def in_words(self) -> str:
        """Where the density ends."""
        if math.isfinite(self.low) and math.isfinite(self.high):
            words = f"never beyond {self.low:g} … {self.high:g}"
        else:
            words = f"never below {self.low:g}" if math.isfinite(self.low) else f"never above {self.high:g}"
        return f"{words}, as requested" if self.requested else words


def _ends(name: str, cells: Cells, distinct: NDArray[Any], counts: NDArray[Any], requested: Real) -> Ends:
    """The ends that the user requests, or those that the values suggest."""
    low, high = natural_ends(distinct, cells.type, counts)
    if (requested.low, requested.high) == (None, None):
        return Ends(low, high, requested=False)
    if cells.unit:
        raise ValueError(f"column {name!r} holds {in_words(cells.type)}: Real(low=…, high=…) is for numbers.")
    ends = Ends(
        low if requested.low is None else requested.low,
        high if requested.high is None else requested.high,
        requested=True,
    )
    if distinct[0] < ends.low or distinct[-1] > ends.high:
        raise ValueError(
            f"column {name!r} holds {distinct[0]:g} … {distinct[-1]:g}: expected all within {requested!r} of kinds=."
        )
    return ends


def _atoms(distinct: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values, in order, stand out above the three values on either side: by count, or by rows per cell."""
    frequent = []
    total, last = counts.sum(), len(counts) - 1
    cell = float(_apart(distinct[1:], distinct[:-1]).min(initial=np.inf))
    for i in np.flatnonzero(counts >= min(max(ATOM_RULES[-1][0] * total, ATOM_ROWS), LONE_ROWS)).tolist():
        first = max(0, i - 3)
        near = np.delete(counts[first : i + 4], i - first)
        room = float(_apart(distinct[[min(last, i + 3)]], distinct[[first]])[0])
        excess = counts[i] / max(float(np.median(near)), 1.0)
        listed = any(
            counts[i] >= max(share * total, ATOM_ROWS) and excess >= times for share, times in ATOM_RULES
        )
        with np.errstate(over="ignore"):
            spread = counts[i] * room >= LONE_TIMES * near.sum() * cell
        if listed or (counts[i] >= LONE_ROWS and spread and excess > 1):
            frequent.append(i)
    frequent = sorted(frequent, key=lambda i: -counts[i])[:MAX_ATOMS]
    out = np.zeros(len(counts), bool)
    out[frequent if len(counts) - len(frequent) >= 3 else []] = True
    return out


def _apart(high: NDArray[Any], low: NDArray[Any]) -> NDArray[np.float64]:
    """high − low ≥ 0 as float64; of whole numbers modulo 2⁶⁴ first, so that large neighbours stay apart."""
    if high.dtype.kind in "iu":
        return np.asarray((high.astype(np.uint64) - low.astype(np.uint64)).astype(np.float64))
    with np.errstate(over="ignore"):
        return np.asarray(high - low)


def _off_lattice(cells: Cells, distinct: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.bool_]:
    """Which whole numbers keep a column off the lattice of tens, hundreds, … that nearly all its rows lie on."""
    none = np.zeros(len(distinct), bool)
    if cells.type not in ("int", "float") or not bool((distinct == np.rint(distinct)).all()):
        return none
    for step in (10_000, 1000, 100, 10):
        off = np.fmod(distinct, step) != 0
        few = off.sum() <= MAX_STRAYS and counts[off].sum() <= STRAYS * counts.sum()
        if few and (~off).sum() > FEW_WHOLE:
            return np.asarray(off)
    return none


def _spread(X: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """Sorted X with the rows that share a value laid out evenly over its cell."""
    if not width:
        return X
    _, first, inverse, counts = np.unique(X, return_index=True, return_inverse=True, return_counts=True)
    place = (np.arange(len(X)) - first[inverse] + 0.5) / counts[inverse]
    return np.asarray(X + width * (place - 0.5))


def _why(
    cells: Cells,
    lattice: Lattice,
    months: Months | None,
    transform: Smooth | PreferredValues,
    rest: NDArray[np.float64],
    atoms: NDArray[Any],
    counts: NDArray[Any],
    state: bool,
) -> str:
    n, words = int((~cells.missing).sum()), []
    if len(atoms):
        most = [_displayed(atoms[i], cells) for i in np.argsort(-counts, kind="stable")]
        kind = "a value of its own" if len(most) == 1 else f"{len(most)} values of their own"
        words.append(f"{_some(most)} in {_share(int(counts.sum()), n)}: {kind} beside a continuous part")
    if state:
        words.append("missing is a value of its own")
    words.append(_steps_in_words(cells, lattice))
    if months is not None:
        words[-1] += f", {months.in_words()}"
    if isinstance(transform.smooth, Rhythm):
        words.append(transform.smooth.in_words())
    if isinstance(transform, PreferredValues) and transform.ranges:
        words.append(f"some ranges are preferred: {len(transform.knots) - 1} of them have their own share")
    elif isinstance(transform, PreferredValues) and months is None:
        values, times = np.unique(rest, return_counts=True)
        often = lattice.restore(torch.from_numpy(values[np.argsort(-times, kind="stable")[:3]])).values
        some = ", ".join(_displayed(value, cells) for value in often)
        words.append(f"some values are preferred ({some}, …): each has its own share")
    distance = float(np.abs(rest[[0, -1]] / transform.scale - transform.location / transform.scale).max())
    if transform.location == 0 and distance > HEAVY and (rest[0] > 0 or rest[-1] < 0):
        orders = math.log10(max(abs(rest[0]), abs(rest[-1]))) - math.log10(min(abs(rest[0]), abs(rest[-1])))
        words.append(f"over {orders:.0f} orders of magnitude: by its logarithm")
    elif distance > HEAVY:
        words.append(f"heavy tails: up to {distance:.3g} times the usual spread from the middle")
    return "; ".join(words)


def _steps_in_words(cells: Cells, lattice: Lattice) -> str:
    """What numbers these are, and how finely they are written.

    >>> cells = Cells("int", np.arange(0, 5000, 50), np.zeros(100, bool))
    >>> _steps_in_words(cells, Lattice.fit(cells))
    'whole numbers in steps of 50'
    """
    if not lattice.width:
        return "numbers"
    if not lattice.step:
        return f"numbers of which some are equal, the others at least {lattice.width:g} apart"
    step = _span(lattice.width) if lattice.unit else f"{lattice.width:g}"
    source = {"int": "whole numbers", "moment": "dates", "duration": "durations"}.get(cells.type)
    known = cells.values[~cells.missing]
    if source is None and bool((known == np.rint(known)).all()):  # as pandas has whole numbers beside gaps
        source = "whole numbers"
    if source is None:
        return f"rounded to {step}"
    return source if step in ("1", "1 day") else f"{source} in steps of {step}"


def _span(days: float) -> str:
    """A time in words.

    >>> _span(1.0), _span(7.0), _span(1 / 1440), _span(1 / 86400 / 4)
    ('1 day', '7 days', '1 minute', '0.25 seconds')
    """
    for unit, each in (("day", 1.0), ("hour", 24.0), ("minute", 1440.0)):
        n = round(days * each)
        if n and math.isclose(days * each, n, rel_tol=1e-9):
            return f"{n} {unit}{'s' if n > 1 else ''}"
    seconds = f"{days * 86400:g}"
    return f"{seconds} second{'' if seconds == '1' else 's'}"


def _some(values: list[str]) -> str:
    """The first three of several values.

    >>> _some(["1", "2"]), _some(["1", "2", "3", "4"])
    ('1 and 2', '1, 2, 3, …')
    """
    if len(values) > 3:
        return ", ".join(values[:3]) + ", …"
    return " and ".join([", ".join(values[:-1]), values[-1]] if len(values) > 1 else values)


def _share(rows: int, n: int) -> str:
    """A number of rows, as a share where that is clearer.

    >>> _share(31, 100), _share(3, 891), _share(1, 891)
    ('31% of the rows', '3 rows', '1 row')
    """
    if rows >= 0.01 * n:
        return f"{rows / n:.0%} of the rows"
    return f"{rows} row{'s' * (rows > 1)}"


def _codes_in_words(cells: Cells, codes: NDArray[Any]) -> list[str]:
    if not len(codes):
        return []
    listed = " and ".join(_displayed(value, cells) for value in codes)
    one = len(codes) == 1
    words = f"{listed} {'looks' if one else 'look'} like {'a code' if one else 'codes'} for missing"
    return [f"{words}: if so, make {'it' if one else 'them'} missing"]


def _displayed(value: Any, cells: Cells) -> str:
    if cells.text is not None:
        return cells.text(value)
    if not cells.unit:
        return f"{value + 0:g}"  # 0, not -0
    ticks = np.array(value, np.int64)
    if cells.type == "moment":
        return str(np.datetime_as_string(ticks.view(f"M8[{cells.unit}]"), unit="auto"))
    return str(ticks.view(f"m8[{cells.unit}]"))
