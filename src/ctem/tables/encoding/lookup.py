"""Where a cell stands among the listed values of a column, and the error for one that is not among them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ctem.tables.io.cells import Cells, Label, counts_of

__all__ = ["Listing", "cells_of", "find", "in_words", "never_seen"]

WIDEST = 2**12  # whole numbers that are looked up in a table rather than searched for


class Listing(Protocol):
    """A column of listed values, in order: of what type and unit they are, and the probability of any other.

    >>> from ctem.tables.encoding.codecs import Constant
    >>> listing: Listing = Constant("int", (7,))
    """

    @property
    def type(self) -> str: ...

    @property
    def values(self) -> tuple[Label, ...]: ...

    @property
    def unit(self) -> str: ...

    @property
    def reserve(self) -> float: ...


def find(name: str, cells: Cells, codec: Listing) -> NDArray[np.int64]:
    """The place of every cell in the codec's values, −1 where missing, −2 where it was never seen.

    That is an error where the codec has no reserve, and so is text where numbers were, or the reverse.

    >>> cells = Cells("int", np.array([7, 8, 0]), np.array([False, False, True]))
    >>> from ctem.tables.encoding.codecs import Constant
    >>> find("n", cells, Constant("int", (7,), reserve=0.01))
    array([ 0, -2, -1])
    """
    if cells.missing.all():
        return np.full(len(cells), -1)
    if cells.type == "label":
        place = {value: i for i, value in enumerate(codec.values)}
        table = np.array([place.get(label, -2) for label in cells.labels])
        index = table[np.where(cells.missing, 0, cells.values)]
    else:
        index = _search(cells, codec)
    index = np.where(cells.missing, -1, index)
    if (index == -2).any():
        _check_type(name, cells, codec)
        if not codec.reserve:
            raise never_seen(name, cells, codec, int(np.argmax(index == -2)))
    return index


def _check_type(name: str, cells: Cells, codec: Listing) -> None:
    """An error for text where numbers were: that is another column, not a new value; some text among them is new."""
    plain = {"bool": "number", "int": "number", "float": "number"}
    given, known = plain.get(cells.type, cells.type), plain.get(codec.type, codec.type)
    if cells.type == "label" and not all(isinstance(label, str) for label in cells.labels):
        given = "number"
    if codec.values and known == "label" and not isinstance(codec.values[0], str):
        known = "number"
    if given != known and codec.values:
        raise TypeError(
            f"column {name!r}: expected {in_words(codec.type)}, as in fit; got {in_words(cells.type)}."
        )


def _search(cells: Cells, codec: Listing) -> NDArray[np.int64]:
    if not codec.values or isinstance(codec.values[0], str):
        return np.full(len(cells), -2)
    values = counts_of(cells, codec.unit) if codec.unit and cells.unit else cells.values
    known = np.array(codec.values)
    if values.dtype == known.dtype == np.int64 and -WIDEST < known.min() <= known.max() < WIDEST:
        first, last = int(known.min()) - 1, int(known.max()) + 1
        place = np.full(last - first + 1, -2)
        place[known - first] = np.arange(len(known))
        return np.asarray(place[np.clip(values, first, last) - first])
    order = np.argsort(known, kind="stable")
    at = np.minimum(np.searchsorted(known[order], values), len(known) - 1)
    return np.where(known[order][at] == values, order[at], -2)


def never_seen(name: str, cells: Cells, codec: Listing, row: int) -> ValueError:
    """The error for a value that fit never saw.

    >>> from ctem.tables.encoding.codecs import Constant
    >>> print(never_seen("n", Cells("int", np.array([8]), np.zeros(1, bool)), Constant("int", (7,)), 0))
    column 'n' holds 8 in row 0; in fit it was always 7, so it has no density elsewhere: drop the column, or fit on ...
    """
    pick = slice(row, row + 1)
    (value,) = _texts(Cells(cells.type, cells.values[pick], cells.missing[pick], cells.labels, cells.unit))
    known = _texts(cells_of(codec, np.arange(min(2, len(codec.values)))))
    if len(known) < 2:  # a constant column
        return ValueError(
            f"column {name!r} holds {value} in row {cells.first + row}; in fit it was always "
            f"{known[0] if known else 'missing'}, so it has no density elsewhere: drop the column, or fit on rows "
            "where it varies."
        )
    advice = (
        "" if codec.type in ("label", "bool") else f"; kinds={{{name!r}: Real()}} in fit takes any number"
    )
    return ValueError(
        f"column {name!r} holds {value} in row {cells.first + row}, not seen in fit; "
        f"known: {', '.join(known)}, … ({len(codec.values)} in all){advice}."
    )


def _texts(cells: Cells) -> list[str]:
    """Values as Python writes them, cut if long."""
    values = (v if isinstance(v, str | int | float | bool) else str(v) for v in cells.to_list())
    texts = map(repr, values)
    return [text if len(text) <= 60 else text[:57] + "…" + text[0] for text in texts]


def cells_of(codec: Listing, index: NDArray[np.int64]) -> Cells:
    """Cells of the codec's type from places in its values, missing at −1.

    >>> from ctem.tables.encoding.codecs import Constant
    >>> cells_of(Constant("int", (7,)), np.array([0, -1])).to_list()
    [7, None]
    """
    missing = index < 0
    if codec.type == "label":
        return Cells("label", index, missing, codec.values)
    store: Any = {"bool": bool, "float": np.float64}.get(codec.type, np.int64)
    if codec.type == "int" and any(int(value) >= 2**63 for value in codec.values):
        store = np.uint64
    values = np.array(codec.values or (0,), store)[np.where(missing, 0, index)]
    return Cells(codec.type, values, missing, unit=codec.unit)


def in_words(kind: str) -> str:
    """Several cells of a type.

    >>> in_words("label")
    'text or categories'
    """
    return {
        "label": "text or categories",
        "bool": "booleans",
        "int": "whole numbers",
        "float": "numbers",
        "moment": "dates",
        "duration": "durations",
    }[kind]
