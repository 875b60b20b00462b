"""Numbers and dates that look like codes for something else: 999, −1, 1e20, 1900-01-01."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctem.tables.io.cells import Cells

__all__ = ["sentinels"]

NINES = (99, 999, 9999, 99_999, 999_999, 9_999_999, 99_999_999, 999_999_999)
CODES = (*NINES, *(-code for code in (1, 8, 9, *NINES)), 1e10, 1e15, 1e20, 1e30, -1e10, -1e20, -1e30)
DAYS = ("0001-01-01", "1582-10-15", "1753-01-01", "1899-12-30", "1899-12-31", "1900-01-01", "1970-01-01")
LATE_DAYS = ("2038-01-19", "2099-12-31", "2199-12-31", "2262-04-11", "2999-12-31", "9999-12-31")
APART = 0.5  # of the range of the other values, between a code and the nearest of them
MOST = 0.3  # of the rows


def sentinels(
    cells: Cells, distinct: NDArray[Any], counts: NDArray[Any], most: float = MOST
) -> NDArray[np.bool_]:
    """Which values of a column of numbers or dates, in order, look like codes.

    A usual code (nines, −1, a power of ten, the first or the last day of some calendar) that lies apart from all other
    values; or the one negative number, −1, −9, −99 and so on, of a column that is otherwise never negative.

    Arguments:
        distinct, counts: the values in order, and how often each occurs.
        most: the share of the rows that a code may have.

    >>> ages = np.array([3, 17, 30, 44, 61, 82, 999])
    >>> sentinels(Cells("int", ages, np.zeros(7, bool)), ages, np.ones(7, int))
    array([False, False, False, False, False, False,  True])
    """
    marked = np.zeros(len(distinct), bool)
    known = np.isin(distinct, _codes(cells, distinct.dtype))
    for i in (0, len(distinct) - 1):
        rest = np.delete(distinct, np.append(np.flatnonzero(marked), i))
        if known[i] and len(rest) > 2 and counts[i] <= most * counts.sum():
            negative = cells.type in ("int", "float") and distinct[i] < 0 <= rest[0]
            low, high, at = float(rest[0]), float(rest[-1]), float(distinct[i])
            marked[i] = negative or max(low - at, at - high) > APART * (high - low)
    return marked


def _codes(cells: Cells, dtype: np.dtype[Any]) -> NDArray[Any]:
    if cells.type in ("int", "float"):
        whole = dtype.kind in "iu"
        room = np.iinfo(dtype) if whole else np.finfo(dtype)
        return np.array([code for code in CODES if float(room.min) <= code <= float(room.max)]).astype(dtype)
    if cells.type != "moment":
        return np.empty(0, dtype)
    days = np.array([*DAYS, *LATE_DAYS], "M8[D]")
    ticks = days.astype(f"M8[{cells.unit}]")  # nanoseconds reach from 1677 to 2262
    return np.asarray(ticks[ticks.astype("M8[D]") == days].view(np.int64))
