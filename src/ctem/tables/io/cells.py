"""One column of a table as plain NumPy arrays, whatever library it came from.

A ``Cells`` holds floats, whole numbers, booleans, labels (codes into a list of values), moments (dates and times since
1970) or durations, and a mask of the missing ones. NumPy columns and columns of Python objects are read and written
here, those of Arrow by ``ctem.tables.io.natives``, and those of other libraries by way of Arrow.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from numbers import Integral, Real
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cells"]

Label = str | int | float | bool
Array = NDArray[Any]
Mask = NDArray[np.bool_]

PYTHON = {"date": "D", "datetime": "us"}  # units of Python's own moments
OBJECTS: dict[str, Any] = {  # classes of Python objects; the first that fits counts
    "str": str,
    "bool": bool | np.bool_,
    "int": Integral,
    "decimal": Decimal,
    "float": Real,
    "datetime": dt.datetime,
    "date": dt.date,
    "time": dt.time,
}


@dataclass(frozen=True)
class Cells:
    """A column: its values, and which of them are missing.

    Arguments:
        type: "float", "int", "bool", "label", "moment" or "duration".
        values: float64; int64 or uint64; bool; codes into ``labels``; counts of ``unit``. Anything where missing.
        missing: a mask, shape (n,).
        labels: the values that codes stand for.
        unit: "D", "s", "ms", "us" or "ns", of moments and durations.
        declared: the labels were declared by the table (a categorical), so they count even if unseen.
        ordered: the order of the labels is meant.
        first: the number of the first row, for messages.
        zone: the display time zone of moments, which are of UTC.
        text: how a value is displayed, where numbers stand for text.

    >>> cells = Cells("label", np.array([1, 0, 0]), np.array([False, False, True]), ("Bergen", "Oslo"))
    >>> cells.to_list()
    ['Oslo', 'Bergen', None]
    """

    type: str
    values: Array
    missing: Mask
    labels: tuple[Label, ...] = ()
    unit: str = ""
    declared: bool = False
    ordered: bool = False
    first: int = 0
    zone: str = ""
    text: Callable[[Any], str] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def to_list(self) -> list[Any]:
        """The values as Python objects, None where missing: times to the microsecond, and within Python's calendar.

        >>> Cells("moment", np.array([10**9 + 1]), np.zeros(1, bool), unit="ns").to_list()
        [datetime.datetime(1970, 1, 1, 0, 0, 1)]
        """
        if self.type == "label":
            return self.named(None).tolist()
        values, display = self.values, self.text
        if self.type in ("moment", "duration"):
            values = self._times()
            if self.unit == "ns":  # which Python has not
                values = values.astype(f"{values.dtype.kind}8[us]")
            elif self.type == "moment":  # beyond its calendar NumPy returns plain integers
                room = dt.timedelta(days=1 if self.zone else 0)  # so that every zone has it
                ends = np.array([dt.datetime.min + room, dt.datetime.max - room], "M8[us]")
                values = np.clip(values, *ends.astype(values.dtype))
        if self.zone:
            zone = tzinfo_of(self.zone)
            display = lambda moment: moment.replace(tzinfo=dt.UTC).astimezone(zone)  # noqa: E731
        known = zip(values.tolist(), self.missing.tolist(), strict=True)
        if display is None:
            return [None if gone else value for value, gone in known]
        return [None if gone else display(value) for value, gone in known]

    def _times(self) -> Array:
        """Moments or durations as NumPy has them."""
        return self.values.astype(f"{'M' if self.type == 'moment' else 'm'}8[{self.unit}]")

    def displayed_like(self, example: Cells) -> Cells:
        """The same cells, displayed as others of their column are."""
        return replace(self, zone=example.zone, text=example.text)

    def named(self, gap: Any) -> Array:
        """The labels of every cell as Python objects, with a stand-in where missing.

        >>> Cells("label", np.array([0, 0]), np.array([False, True]), ("Oslo",)).named("?")
        array(['Oslo', '?'], dtype=object)
        """
        return np.array([*self.labels, gap], object)[np.where(self.missing, -1, self.values)]

    def to_numpy(self) -> Array:
        """The values as an array: numbers and times without a zone in their own dtype, else objects.

        Missing ones are nan, NaT or None.

        >>> Cells("int", np.array([1, 2]), np.array([False, True])).to_numpy()
        array([ 1., nan])
        """
        objects = self.type == "label" or self.zone or self.text is not None
        if objects or (self.type == "bool" and self.missing.any()):
            return np.array([*self.to_list(), None], object)[:-1]
        if self.type in ("moment", "duration"):
            times = self._times()
            return np.where(self.missing, np.array("NaT", times.dtype), times)
        return np.where(self.missing, np.nan, self.values) if self.missing.any() else self.values


def tzinfo_of(zone: str) -> dt.tzinfo:
    """A zone of the calendar of zones, or an offset such as "+02:00", as Python has it.

    >>> tzinfo_of("UTC+02:00")
    datetime.timezone(datetime.timedelta(seconds=7200))
    """
    offset = re.fullmatch(r"(?:UTC)?([+-])(\d\d):(\d\d)", zone)
    if not offset:
        return ZoneInfo(zone)
    span = dt.timedelta(hours=int(offset[2]), minutes=int(offset[3]))
    return dt.timezone(-span if offset[1] == "-" else span)


def plain_cells(name: str, values: Array, missing: Mask | None = None) -> Cells:
    """A NumPy array of numbers, booleans, times or text as cells.

    >>> plain_cells("a", np.array([1.5, np.nan])).missing
    array([False,  True])
    """
    kind, gone = values.dtype.kind, np.zeros(len(values), bool) if missing is None else missing
    if kind == "f":
        floats = values.astype(np.float64)
        return Cells("float", floats, gone | np.isnan(floats))
    if kind in "iu":
        return Cells("int", values.astype(np.uint64 if values.dtype == np.uint64 else np.int64), gone)
    if kind == "b":
        return Cells("bool", values, gone)
    if kind in "Mm":
        unit = np.datetime_data(values.dtype)[0]
        fine = unit if unit in ("D", "s", "ms", "us", "ns") else "D" if unit in "YMW" else "s"
        fixed = values.astype(f"{kind}8[{fine}]")
        nat = np.isnat(fixed)
        counts = np.where(nat, 0, fixed.view(np.int64))
        return Cells("moment" if kind == "M" else "duration", counts, gone | nat, unit=fine)
    if kind == "U":
        labels, codes = np.unique(values, return_inverse=True)
        return Cells("label", codes.reshape(-1).astype(np.int64), gone, tuple(labels.tolist()))
    if kind == "c":
        raise ValueError(f"column {name!r}: Complex data not supported; give real and imaginary parts apart.")
    raise unsupported(name, values.dtype)


def object_cells(name: str, values: Array, missing: Mask | None = None) -> tuple[dict[str, Any], Cells]:
    """A column of Python objects: all of one type, else an error that names two rows that differ."""
    gone = np.fromiter(map(is_gap, values), bool, len(values)) if missing is None else missing
    known = values[~gone].tolist()
    where = np.flatnonzero(~gone)
    types = {
        cls: next((kind for kind, base in OBJECTS.items() if issubclass(cls, base)), None)
        for cls in set(map(type, known))
    }
    kinds = set(types.values())
    if kinds == {"int", "float"}:
        kinds = {"float"}
    if len(kinds) > 1 or None in kinds:
        raise _mixed(name, known, where, types)
    kind = (kinds.pop() if kinds else None) or "str"
    nan = bool(gone.any()) and isinstance(values[int(np.argmax(gone))], float)
    return {"object": kind, "nan": nan}, _object_values(name, kind, known, gone)


def object_array(dtype: dict[str, Any], cells: Cells) -> Array:
    """Cells as an array of Python objects of the type that came in."""
    kind, gap = dtype["object"], float("nan") if dtype["nan"] else None
    if kind == "str" and cells.type == "label":
        return cells.named(gap)
    if kind in PYTHON:
        cells = replace(cells, values=counts_of(cells, PYTHON[kind]), unit=PYTHON[kind])
    plain: dict[str, Callable[[Any], Any]] = {"decimal": Decimal, "float": float, "int": int, "bool": bool}
    convert = (plain | {"time": dt.time.fromisoformat}).get(kind, lambda value: value)
    source = np.char.mod("%.15g", cells.values).tolist() if kind == "decimal" else cells.to_list()
    out = np.empty(len(cells), object)
    pairs = zip(source, cells.missing.tolist(), strict=True)
    out[:] = [gap if gone else convert(value) for value, gone in pairs]
    return out


def cast_numbers(name: str, cells: Cells, dtype: np.dtype[Any]) -> Array:
    """Whole or real numbers in the given NumPy dtype, held at its limits where a draw passes them."""
    if dtype.kind in "iub":
        if cells.missing.any():
            row = int(np.argmax(cells.missing))
            raise ValueError(
                f"column {name!r}, row {row}: a {dtype} column cannot hold a missing value; "
                "impute it, or give the table in a nullable dtype."
            )
        return whole_numbers(cells, dtype)
    real = np.where(cells.missing, np.nan, cells.values.astype(np.float64))
    limit = float(np.finfo(dtype).max)
    return np.clip(real, -limit, limit).astype(dtype)


def whole_numbers(cells: Cells, dtype: np.dtype[Any]) -> Array:
    """Integers or booleans in the given dtype, held at its limits; zero where missing."""
    values = np.where(cells.missing, cells.values.dtype.type(0), cells.values)
    if dtype.kind == "b":
        return values.astype(bool)
    limits = np.iinfo(dtype)
    if values.dtype.kind == "f":
        near = np.clip(np.rint(values), float(limits.min), float(limits.max))
        inside = near < float(limits.max)  # the largest int64 is no float: casting its neighbour would wrap
        return np.where(inside, np.where(inside, near, 0).astype(dtype), dtype.type(limits.max))
    held = np.iinfo(values.dtype)
    return np.clip(values, max(limits.min, held.min), min(limits.max, held.max)).astype(dtype)


def counts_of(cells: Cells, unit: str, dtype: type[np.signedinteger[Any]] = np.int64) -> Array:
    """Moments or durations as counts of a unit, whatever they were given in; held at limits, zero where missing.

    >>> counts_of(Cells("moment", np.array([2, 3]), np.array([False, True]), unit="D"), "s")
    array([172800,      0])
    """
    counts = whole_numbers(cells, np.dtype(np.int64))
    if cells.unit not in ("", unit):
        letter = "M" if cells.type == "moment" else "m"
        counts = counts.view(f"{letter}8[{cells.unit}]").astype(f"{letter}8[{unit}]").view(np.int64)
    return np.clip(counts, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)


def factorise(values: Sequence[Any], missing: Mask) -> tuple[NDArray[np.int64], tuple[Label, ...]]:
    """Codes in order of first appearance, −1 where missing.

    >>> factorise(["b", "a", "b"], np.zeros(3, bool))
    (array([0, 1, 0]), ('b', 'a'))
    """
    seen: dict[Any, int] = {}
    codes = np.full(len(missing), -1, np.int64)
    codes[~missing] = [seen.setdefault(value, len(seen)) for value in values]
    return codes, tuple(seen)


def label_codes(name: str, cells: Cells, labels: tuple[Label, ...]) -> Any:
    if cells.missing.all():
        return np.full(len(cells), -1, np.int64)
    place = {label: code for code, label in enumerate(labels)}
    strange = [label for label in cells.labels if label not in place]
    if strange:
        raise ValueError(f"column {name!r}: expected one of its categories; got {strange[0]!r}.")
    table = np.array([place[label] for label in cells.labels], np.int64)
    return np.where(cells.missing, -1, table[np.where(cells.missing, 0, cells.values)])


def unsupported(name: str, dtype: Any) -> TypeError:
    return TypeError(
        f"column {name!r}: expected numbers, text, booleans, categories, dates or times; got {dtype}. "
        "Turn it into one of these, or drop it."
    )


def is_gap(value: Any) -> bool:
    """Whether a Python object marks a missing cell.

    >>> is_gap(float("nan")), is_gap(np.datetime64("NaT")), is_gap("")
    (True, True, False)
    """
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    if isinstance(value, float | np.floating):
        return bool(value != value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _mixed(name: str, known: list[Any], where: Array, types: dict[type, str | None]) -> TypeError:
    odd = next((cls for cls, kind in types.items() if kind is None), None)
    if odd is not None:
        row = next(int(i) for i, value in zip(where, known, strict=True) if type(value) is odd)
        return TypeError(
            f"column {name!r}, row {row}: a cell's argument must be a string or a real number, a boolean or a date; "
            f"got {odd.__name__}. Turn the column into one of these first."
        )
    first = {types[type(value)]: int(i) for i, value in zip(reversed(where), reversed(known), strict=True)}
    kinds = ", ".join(f"{kind} (row {row})" for kind, row in sorted(first.items(), key=lambda item: item[1]))
    return TypeError(
        f"column {name!r}: expected values of one type; got {kinds}. "
        "Turn the column into text or numbers first."
    )


def _object_values(name: str, kind: str, known: list[Any], gone: Mask) -> Cells:
    if kind == "str":
        codes, labels = factorise(known, gone)
        return Cells("label", codes, gone, tuple(str(label) for label in labels))
    if kind == "time":
        if any(value.tzinfo is not None for value in known):
            raise TypeError(f"column {name!r}: expected times of day without a zone; got {known[0]}.")
        codes, labels = factorise(known, gone)
        return Cells("label", codes, gone, _clock_text(labels))
    if kind == "datetime" and any(value.tzinfo is not None for value in known):
        raise TypeError(
            f"column {name!r}: expected times without a zone in a column of Python objects; "
            "use the table library's own time dtype."
        )
    if kind in PYTHON:
        values = np.zeros(len(gone), np.int64)
        values[~gone] = np.array(known, f"M8[{PYTHON[kind]}]").view(np.int64)
        return Cells("moment", values, gone, unit=PYTHON[kind])
    whole = np.uint64 if kind == "int" and max(known) >= 2**63 else np.int64
    store, fill = {"bool": (bool, False), "int": (whole, 0)}.get(kind, (np.float64, np.nan))
    values = np.full(len(gone), fill, store)
    try:
        values[~gone] = known
    except OverflowError:
        wide = next(value for value in known if not -(2**63) <= value < 2**63)
        raise ValueError(f"column {name!r}: expected whole numbers of 64 bits; got {wide}.") from None
    return Cells(kind if kind in ("bool", "int") else "float", values, gone)


def _clock_text(times: Sequence[Any]) -> tuple[str, ...]:
    """Times of day as text, all to the minute or all to the second; what is finer is cut off."""
    spec = "seconds" if any(time.second for time in times) else "minutes"
    return tuple(time.isoformat(spec) for time in times)
