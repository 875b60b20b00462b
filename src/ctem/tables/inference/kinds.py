"""Which codec a column gets, and why: the kind is read off the values, or requested by the user.

* text that differs in (nearly) every row, prose, keys: left out;
* other text, booleans, categoricals: labels; beyond 256 values the rare ones share a code, and are kept
  apart by counts of pairs where these gain something (``ctem.tables.relations.label_pairs``);
* ordered categoricals, and numbers of few values (up to 32, or 128 that repeat a hundred times): ordinal;
* whole numbers, dates, rounded numbers: real, spread over the width of their rounding;
* other numbers: real;
* a value with ≥ 5 % of the rows and 5 times its neighbours, or ≥ 2 % and 20 times, or ≥ 20 rows and 50 times
  what its surroundings hold per cell: a value of its own (an atom) beside the real part; and so are the few
  whole numbers that keep all others off a lattice of tens, hundreds or thousands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctem.spaces import Angle, Category, Column, Ordinal, Real
from ctem.tables.encoding.codecs import Codec, Constant, Labels, LeftOut
from ctem.tables.encoding.lookup import in_words
from ctem.tables.inference.identifiers import left_out
from ctem.tables.inference.numbers import fit_numbers
from ctem.tables.io.cells import Cells, Label

__all__ = ["InferredColumn", "infer_column", "kind_names", "requested_kind"]

MAX_CODES = 256
FEW_WHOLE = 32
SOME_WHOLE, MANY_ROWS = 128, 100  # so many values, if each has so many rows on average
FEW_FLOATS = 10
MAX_ORDERED = 64
MAX_SPAN = 256  # whole numbers from the least to the greatest, gaps included
MAX_ORDINAL = 1024
# last of hours, minutes, days, percent, …
LAST = (*(6, 7, 11, 12, 23, 24, 30, 31, 52, 53, 59, 60), *(99, 100, 364, 365, 366))

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


def requested_kind(name: str, requested: Any) -> Column:
    """The kind that the user requests for a column, as a Real, Category or Ordinal.

    >>> requested_kind("age", "ordinal"), requested_kind("age", Real)
    (Ordinal(size=0), Real(location=0.0, scale=1.0))
    """
    kind = BY_NAME.get(requested) if isinstance(requested, str) else requested
    made = kind() if isinstance(kind, type) and issubclass(kind, Real | Category) else kind
    if not isinstance(made, Real | Category) or isinstance(made, Angle):
        raise TypeError(f"kinds: expected Real(), Category() or Ordinal() for {name!r}; got {requested!r}.")
    if isinstance(made, Real) and (made.location, made.scale) != (0.0, 1.0):
        raise ValueError(f"kinds: expected Real() for {name!r}, whose units are learned; got {made!r}.")
    return made


def kind_names(requested: Mapping[str, Any] | None) -> dict[str, str]:
    """The kinds that the user requests, as words.

    >>> kind_names({"age": Real(low=0.0), "city": "category"})
    {'age': 'real', 'city': 'category'}
    """
    words = {kind: word for word, kind in BY_NAME.items()}
    return {name: words[type(requested_kind(name, kind))] for name, kind in (requested or {}).items()}


def infer_column(
    name: str,
    cells: Cells,
    requested: Column | None,
    state: bool,
    reserve: bool = False,
    named: bool = False,
    weights: NDArray[np.float64] | None = None,
) -> InferredColumn:
    """The codec of one column, fitted.

    Arguments:
        requested: the kind that the user asked for, or None to read the kind off the values.
        state: a missing cell is a value of its own, if there is one.
        reserve: listed values keep some probability for those that were never seen.
        named: leave out columns that name the rows, which an array without names cannot.
        weights: how many rows each cell stands for, (n,): values of their own stand out by them, rare labels have
            their shares by them, and the curve of numbers is that of these rows.

    >>> cells = Cells("int", np.array([3, 1, 2] * 20), np.zeros(60, bool))
    >>> infer_column("n", cells, None, False).kind, infer_column("n", cells, Real(), False).reason
    ('ordinal', 'whole numbers; never below 0')
    """
    known = cells.values[~cells.missing]
    state = state and bool(cells.missing.any())
    distinct, counts = np.unique(known, return_counts=True)
    new = _unseen_mass(counts) if reserve else 0.0
    if weights is not None:
        counts = np.bincount(np.searchsorted(distinct, known), weights[~cells.missing], len(distinct))
    if len(distinct) == 0:
        return InferredColumn(Constant(cells.type, (), cells.unit, new), "constant", "always missing")
    declared = cells.declared and len(cells.labels) > 1
    if len(distinct) == 1 and not declared and not state:
        value = (cells.labels[int(distinct[0])] if cells.type == "label" else distinct[0].item(),)
        return InferredColumn(Constant(cells.type, value, cells.unit, new), "constant", "one value")
    if isinstance(requested, Real) and (cells.type in ("label", "bool") or len(distinct) < 2):
        what = "one value" if len(distinct) < 2 else in_words(cells.type)
        raise ValueError(f"column {name!r} holds {what}: it cannot be Real(); use Category() or Ordinal().")
    if requested is None and named and (odd := left_out(name, cells, distinct)):
        return InferredColumn(LeftOut(cells.type, cells.unit), *odd)
    few = _few(cells, distinct, len(known))
    if isinstance(requested, Category) or (requested is None and few):
        return _discrete(name, cells, distinct, counts, requested, state, few, new)
    wish = requested if isinstance(requested, Real) else Real()
    codec, why = fit_numbers(name, cells, distinct, counts, wish, state, reserve, weights)
    return InferredColumn(codec, "real", why)


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
    requested: Column | None,
    state: bool,
    few: str,
    new: float,
) -> InferredColumn:
    values, weights, note = _listed(cells, distinct, counts)
    has_order = (
        cells.ordered and len(values) <= MAX_ORDERED if cells.type == "label" else cells.type != "bool"
    )
    ordered = isinstance(requested, Ordinal) or (requested is None and has_order)
    reason = few or f"{len(values)} values"
    if requested is not None:
        reason = f"as requested; {reason}"
    if ordered and len(values) > MAX_ORDINAL:
        raise ValueError(
            f"column {name!r} holds {len(values)} values; Ordinal() takes at most {MAX_ORDINAL}: "
            "use Real() or Category()."
        )
    if isinstance(requested, Category) and requested.size not in (0, len(values)):
        raise ValueError(
            f"column {name!r}: expected {requested.size} values, as requested in kinds=; got {len(values)}."
        )
    if state:
        ordered, note = False, note + "; missing is one more value"
    codes, shares = np.arange(len(values)), np.ones(len(values))
    if not ordered and len(values) > MAX_CODES:
        codes, shares = _lump(weights)
        rest, mass = len(values) - MAX_CODES + 1, weights[codes == 0].sum() / weights.sum()
        note += (
            f"; the {rest} rarest, {mass:.1%} of the rows, are learned together, each by its share of them"
        )
    codec = Labels(
        cells.type, values, tuple(codes.tolist()), tuple(shares.tolist()), cells.unit, ordered, state, new
    )
    return InferredColumn(codec, "ordinal" if ordered else "category", reason + note)


def _listed(
    cells: Cells, distinct: NDArray[Any], counts: NDArray[Any]
) -> tuple[tuple[Label, ...], NDArray[Any], str]:
    """The values with codes, their counts, and a note."""
    if cells.type == "label":
        if cells.declared:
            weights = np.zeros(len(cells.labels), counts.dtype)
            weights[distinct] = counts
            unseen = int((weights == 0).sum())
            return cells.labels, weights, f" ({unseen} declared but unseen)" if unseen else ""
        order = sorted(range(len(distinct)), key=lambda i: cells.labels[int(distinct[i])])
        return tuple(cells.labels[int(distinct[i])] for i in order), counts[order], ""
    if cells.type == "bool":
        return (False, True), np.array([counts[distinct == v].sum() for v in (False, True)]), ""
    low, high = distinct[0].item(), distinct[-1].item()
    whole = cells.type in ("int", "float") and low == int(low) and bool((distinct == np.rint(distinct)).all())
    span = int(high) - int(low) + 1 if whole else 0
    dense = whole and span <= min(MAX_SPAN, 2 * len(distinct))
    if dense and (len(distinct) < span or len(distinct) > FEW_WHOLE):
        room = span // 10 if len(distinct) > FEW_WHOLE else 0  # a new row may lie a little outside
        low, top = int(low) - room if low < 0 else max(0, int(low) - room), int(high)
        high = top if top in LAST else top + room
        every = np.arange(low, high + 1).astype(distinct.dtype)
        weights = np.zeros(len(every), counts.dtype)
        weights[np.searchsorted(every, distinct)] = counts
        return tuple(every.tolist()), weights, f", and any from {low} to {high} may come"
    return tuple(distinct.tolist()), counts, ""


def _lump(weights: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Codes by rank 1 … 255, the rest together as 0, with their shares of it; unseen values count half."""
    order = np.argsort(-weights, kind="stable")
    codes = np.zeros(len(weights), np.int64)
    codes[order[: MAX_CODES - 1]] = np.arange(1, MAX_CODES)
    rare = order[MAX_CODES - 1 :]
    shares = np.ones(len(weights))
    mass = np.maximum(weights[rare], 0.5)
    shares[rare] = mass / mass.sum()
    return codes, shares
