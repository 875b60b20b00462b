"""Which codec a column gets, and why: the kind is read off the values, or said by the user.

* text, booleans, categoricals: labels; beyond 256 values the rare ones share a code;
* ordered categoricals, and numbers of few values (up to 32, or 128 that repeat a hundred times): ordinal;
* whole numbers, dates, rounded numbers: real, dequantised by the width of their lattice;
* other numbers: real;
* a value with ≥ 5 % of the rows and 5 times its neighbours, or ≥ 2 % and 20 times, or ≥ 20 rows and 50 times
  what its surroundings hold per cell: an atom beside the real part; and so are the few whole numbers that keep all
  others off a lattice of tens, hundreds or thousands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctem.spaces import Category, Column, Ordinal, Real
from ctem.tables.columns.codecs import Codec, Constant, Labels, Numbers
from ctem.tables.columns.lattices import Lattice
from ctem.tables.columns.monotone import MonotoneMap
from ctem.tables.columns.preferred import PreferredValues
from ctem.tables.frames.cells import Cells, Label

__all__ = ["InferredColumn", "infer_column", "requested_kind"]

MAX_CODES = 256
FEW_WHOLE = 32
SOME_WHOLE, MANY_ROWS = 128, 100  # so many values, if each has so many rows on average
FEW_FLOATS = 10
MAX_ORDERED = 64
MAX_SPAN = 256  # whole numbers from the least to the greatest, gaps included
MAX_ORDINAL = 1024
# a share of the rows, and so many times its neighbours' median count
ATOM_RULES = ((0.05, 5.0), (0.02, 20.0))
STRAYS, MAX_STRAYS = 0.1, 8  # at most this share of the rows, and so many values, beside a coarser lattice
LONE_ROWS, LONE_TIMES = 20, 50.0  # so many rows, and so many times the rows per cell around
MAX_ATOMS = 128
VAST = 1e308  # sums and differences of larger numbers overflow
HEAVY = 20.0  # robust standard deviations from the median

BY_NAME: dict[Any, type[Column]] = {"real": Real, "category": Category, "ordinal": Ordinal}


@dataclass(frozen=True)
class InferredColumn:
    """A column's codec, what kind of column that is, and the reason in words.

    >>> infer_column("b", Cells("bool", np.array([True, False]), np.zeros(2, bool)), None, False).reason
    'booleans'
    """

    codec: Codec
    kind: str
    reason: str


def requested_kind(name: str, said: Any) -> Column:
    """What the user said of a column as a Real, Category or Ordinal.

    >>> requested_kind("age", "ordinal"), requested_kind("age", Real)
    (Ordinal(size=0), Real(location=0.0, scale=1.0))
    """
    found = BY_NAME.get(said) if isinstance(said, str) else said
    made = found() if isinstance(found, type) and issubclass(found, Real | Category) else found
    if not isinstance(made, Real | Category):
        raise TypeError(f"kinds: expected Real(), Category() or Ordinal() for {name!r}; got {said!r}.")
    if isinstance(made, Real) and made != Real():
        raise ValueError(f"kinds: expected Real() for {name!r}, whose units are learned; got {made!r}.")
    return made


def infer_column(
    name: str, cells: Cells, said: Column | None, state: bool, reserve: bool = False
) -> InferredColumn:
    """The codec of one column, fitted.

    Arguments:
        said: the kind that the user asked for, or None to read the kind off the values.
        state: a missing cell is a value of its own, if there is one.
        reserve: listed values keep some probability for those that were never seen.

    >>> cells = Cells("int", np.array([3, 1, 2] * 20), np.zeros(60, bool))
    >>> infer_column("n", cells, None, False).kind, infer_column("n", cells, Real(), False).reason
    ('ordinal', 'whole numbers: dequantised by a width of 1')
    """
    known = cells.values[~cells.missing]
    state = state and bool(cells.missing.any())
    distinct, counts = np.unique(known, return_counts=True)
    new = _unseen_mass(counts) if reserve else 0.0
    if len(distinct) == 0:
        return InferredColumn(Constant(cells.type, (), cells.unit, new), "constant", "always missing")
    declared = cells.declared and len(cells.labels) > 1
    if len(distinct) == 1 and not declared and not state:
        value = (cells.labels[int(distinct[0])] if cells.type == "label" else distinct[0].item(),)
        return InferredColumn(Constant(cells.type, value, cells.unit, new), "constant", "one value")
    if isinstance(said, Real) and (cells.type in ("label", "bool") or len(distinct) < 2):
        what = (
            "one value" if len(distinct) < 2 else "booleans" if cells.type == "bool" else "text or categories"
        )
        raise ValueError(f"column {name!r} holds {what}: it cannot be Real(); say Category() or Ordinal().")
    few = _few(cells, distinct, len(known))
    if isinstance(said, Category) or (said is None and few):
        return _discrete(name, cells, distinct, counts, said, state, few, new)
    return _real(name, cells, distinct, counts, state)


def _unseen_mass(counts: NDArray[Any]) -> float:
    """Good and Turing's estimate of the probability of a new value, the share of values that were seen once.

    With none of them it is not 0 but 1/(n + 1)², so that a new value has a finite score.

    >>> _unseen_mass(np.array([5, 3, 1, 1])) == (2 + 1 / 11) / 11
    True
    """
    n, once = int(counts.sum()), int((counts == 1).sum())
    return min(0.5, (once + 1 / (n + 1)) / (n + 1))


def _few(cells: Cells, distinct: NDArray[Any], n: int) -> str:
    """Why a column is discrete; empty if it is not."""
    if cells.type == "bool":
        return "booleans"
    if cells.type == "label":
        kind = "ordered categories" if cells.ordered else "categories" if cells.declared else "text"
        return f"{kind}, {len(cells.labels if cells.declared else distinct)} values"
    k = len(distinct)
    words = {"int": "whole numbers", "moment": "dates", "duration": "durations"}.get(cells.type, "numbers")
    if cells.type == "float" and bool((distinct == np.rint(distinct)).all()):
        words = "whole numbers"
    limit, repeats = (FEW_FLOATS, 5) if words == "numbers" else (FEW_WHOLE, 2)
    few = k <= 2 or (k <= limit and n >= repeats * k)
    if words == "whole numbers" and k <= SOME_WHOLE and n >= MANY_ROWS * k:
        few = few or float(distinct[-1]) - float(distinct[0]) < min(MAX_SPAN, 2 * k)
    return f"{words}, {k} values" if few else ""


def _discrete(
    name: str,
    cells: Cells,
    distinct: NDArray[Any],
    counts: NDArray[Any],
    said: Column | None,
    state: bool,
    few: str,
    new: float,
) -> InferredColumn:
    values, weights, note = _listed(cells, distinct, counts)
    ordered = isinstance(said, Ordinal) or (said is None and _has_order(cells, len(values)))
    reason = few or f"{len(values)} values"
    if said is not None:
        reason = f"as said; {reason}"
    if ordered and len(values) > MAX_ORDINAL:
        raise ValueError(
            f"column {name!r} holds {len(values)} values; Ordinal() takes at most {MAX_ORDINAL}: "
            "say Real() or Category()."
        )
    if isinstance(said, Category) and said.size not in (0, len(values)):
        raise ValueError(
            f"column {name!r}: expected {said.size} values, as said in kinds=; got {len(values)}."
        )
    if state:
        ordered, note = False, note + "; missing is one more value"
    codes, shares = np.arange(len(values)), np.ones(len(values))
    if not ordered and len(values) > MAX_CODES:
        codes, shares = _lump(weights)
        rest, mass = len(values) - MAX_CODES + 1, weights[codes == MAX_CODES - 1].sum() / weights.sum()
        note += f"; the {rest} rarest share one code ({mass:.1%} of rows)"
    codec = Labels(
        cells.type, values, tuple(codes.tolist()), tuple(shares.tolist()), cells.unit, ordered, state, new
    )
    return InferredColumn(codec, "ordinal" if ordered else "category", reason + note)


def _has_order(cells: Cells, count: int) -> bool:
    if cells.type == "label":
        return cells.ordered and count <= MAX_ORDERED
    return cells.type != "bool"


def _listed(
    cells: Cells, distinct: NDArray[Any], counts: NDArray[Any]
) -> tuple[tuple[Label, ...], NDArray[Any], str]:
    """The values with codes, their counts, and a note."""
    if cells.type == "label":
        if cells.declared:
            weights = np.zeros(len(cells.labels), np.int64)
            weights[distinct] = counts
            unseen = int((weights == 0).sum())
            return cells.labels, weights, f" ({unseen} declared but unseen)" if unseen else ""
        order = sorted(range(len(distinct)), key=lambda i: cells.labels[int(distinct[i])])
        return tuple(cells.labels[int(distinct[i])] for i in order), counts[order], ""
    if cells.type == "bool":
        return (False, True), np.array([int(counts[distinct == v].sum()) for v in (False, True)]), ""
    low, high = distinct[0].item(), distinct[-1].item()
    whole = cells.type in ("int", "float") and low == int(low) and bool((distinct == np.rint(distinct)).all())
    span = int(high) - int(low) + 1 if whole else 0
    dense = whole and span <= min(MAX_SPAN, 2 * len(distinct))
    if dense and (len(distinct) < span or len(distinct) > FEW_WHOLE):
        room = span // 10 if len(distinct) > FEW_WHOLE else 0  # a new row may lie a little outside
        low, high = int(low) - room if low < 0 else max(0, int(low) - room), int(high) + room
        every = np.arange(low, high + 1).astype(distinct.dtype)
        weights = np.zeros(len(every), np.int64)
        weights[np.searchsorted(every, distinct)] = counts
        return tuple(every.tolist()), weights, f", all from {low} to {high} allowed"
    return tuple(distinct.tolist()), counts, ""


def _lump(weights: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Codes by rank 0 … 254, the rest together as 255, with their shares of it; unseen values count half."""
    order = np.argsort(-weights, kind="stable")
    codes = np.full(len(weights), MAX_CODES - 1)
    codes[order[: MAX_CODES - 1]] = np.arange(MAX_CODES - 1)
    rare = order[MAX_CODES - 1 :]
    shares = np.ones(len(weights))
    mass = np.maximum(weights[rare], 0.5)
    shares[rare] = mass / mass.sum()
    return codes, shares


def _real(
    name: str, cells: Cells, distinct: NDArray[Any], counts: NDArray[Any], state: bool
) -> InferredColumn:
    if cells.type == "float" and np.abs(distinct[[0, -1]]).max() > VAST:
        raise ValueError(
            f"column {name!r}: values from {distinct[0]:g} to {distinct[-1]:g} span more than float64 can hold. "
            "Rescale it, or drop the extreme rows."
        )
    heavy = _atoms(distinct, counts) | _off_lattice(cells, distinct, counts)
    lattice = Lattice.fit(_picked(cells, ~np.isin(cells.values, distinct[heavy]) if heavy.any() else None))
    X = lattice.measure(cells)
    atoms = (
        np.unique(X[~cells.missing & np.isin(cells.values, distinct[heavy])]) if heavy.any() else np.empty(0)
    )
    rest = np.sort(X[~np.isnan(X) & ~np.isin(X, atoms)])
    try:
        smooth = MonotoneMap.fit(_spread(rest, lattice.width))
    except ValueError as error:
        raise ValueError(f"column {name!r}: {error} Rescale it, or drop the extreme rows.") from None
    transform = PreferredValues.fit(smooth, rest, lattice.width) if lattice.width else smooth
    codec = Numbers(lattice, transform, tuple(atoms.tolist()), state)
    return InferredColumn(
        codec, "real", _why(cells, lattice, transform, rest, distinct[heavy], counts[heavy], state)
    )


def _atoms(distinct: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.bool_]:
    """Which values, in order, stand out above the three values on either side: by count, or by rows per cell."""
    found = []
    total, last = counts.sum(), len(counts) - 1
    cell = float(_apart(distinct[1:], distinct[:-1]).min(initial=np.inf))
    for i in np.flatnonzero(counts >= min(ATOM_RULES[-1][0] * total, LONE_ROWS)).tolist():
        first = max(0, i - 3)
        near = np.delete(counts[first : i + 4], i - first)
        room = float(_apart(distinct[[min(last, i + 3)]], distinct[[first]])[0])
        excess = counts[i] / max(float(np.median(near)), 1.0)
        listed = any(counts[i] >= share * total and excess >= times for share, times in ATOM_RULES)
        with np.errstate(over="ignore"):
            spread = counts[i] * room >= LONE_TIMES * near.sum() * cell
        if listed or (counts[i] >= LONE_ROWS and spread and excess > 1):
            found.append(i)
    found = sorted(found, key=lambda i: -counts[i])[:MAX_ATOMS]
    out = np.zeros(len(counts), bool)
    out[found if len(counts) - len(found) >= 3 else []] = True
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
        if (
            off.sum() <= MAX_STRAYS
            and counts[off].sum() <= STRAYS * counts.sum()
            and (~off).sum() > FEW_WHOLE
        ):
            return np.asarray(off)
    return none


def _picked(cells: Cells, keep: NDArray[np.bool_] | None) -> Cells:
    gone = cells.missing if keep is None else cells.missing | ~keep
    return Cells(cells.type, cells.values, gone, unit=cells.unit)


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
    transform: MonotoneMap | PreferredValues,
    rest: NDArray[np.float64],
    atoms: NDArray[Any],
    counts: NDArray[Any],
    state: bool,
) -> str:
    n, words = int((~cells.missing).sum()), []
    if len(atoms):
        most = [_shown(atoms[i], cells) for i in np.argsort(-counts, kind="stable")]
        some, part = ", ".join(most[:3]) + ", …" * (len(most) > 3), f"{counts.sum() / n:.0%}"
        kind = "an atom" if len(most) == 1 else f"{len(most)} atoms"
        words.append(f"{part} are {some}: {kind} plus a continuous part")
    if state:
        words.append("missing is an atom")
    if lattice.step:
        days = " day" if lattice.width == 1 else " days"
        step = f"{lattice.width:g}{days if lattice.unit else ''}"
        source = {"int": "whole numbers", "moment": "dates", "duration": "durations"}.get(cells.type)
        words.append(f"{source or f'rounded to {step}'}: dequantised by a width of {step}")
    elif lattice.width:
        words.append(f"tied values: dequantised by the smallest gap, {lattice.width:g}")
    else:
        words.append("numbers")
    if isinstance(transform, PreferredValues):
        values, times = np.unique(rest, return_counts=True)
        often = lattice.restore(torch.from_numpy(values[np.argsort(-times, kind="stable")[:3]])).values
        some = ", ".join(_shown(value, cells) for value in often)
        words.append(f"some values are preferred ({some}, …): each has its own share")
    distance = float(np.abs(rest[[0, -1]] / transform.scale - transform.location / transform.scale).max())
    if distance > HEAVY:
        words.append(f"heavy tails: up to {distance:.3g} robust deviations out, through asinh")
    return "; ".join(words)


def _shown(value: Any, cells: Cells) -> str:
    if not cells.unit:
        return f"{value:g}"
    ticks = np.array(value, np.int64)
    if cells.type == "moment":
        return str(np.datetime_as_string(ticks.view(f"M8[{cells.unit}]"), unit="auto"))
    return str(ticks.view(f"m8[{cells.unit}]"))
