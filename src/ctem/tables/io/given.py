"""What a user gives to a fitted model: tables and conditions, read as the columns of fit were.

Text in a column that held numbers, booleans or dates in fit is read by the reader of CSV files: ``pandas.read_csv``
leaves dates as text, which a model that was fitted in the shell has as dates. Times with a zone are never taken for
times without: a column of times in a zone is kept as moments of UTC, beside which others would be off by hours unseen.
"""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ctem.tables.io.cells import Cells, is_gap, object_cells
from ctem.tables.io.csv_text import as_type
from ctem.tables.io.dtypes import TEXT, Dtype, arrow_type, zone_of
from ctem.tables.io.frame import Frame, TableType, check_finite, read_frame
from ctem.tables.io.natives import read_arrow
from ctem.tables.io.recognition import Reading, read_written, recognised
from ctem.tables.io.writings import Writing

__all__ = [
    "given_values",
    "matched",
    "moment_of",
    "named",
    "partial_frame",
    "positions",
    "read_as_fitted",
    "renamed",
    "text_types",
    "with_notations",
]


def text_types(table_type: TableType) -> dict[str, Any]:
    """The pyarrow types in which the cells of a CSV file are to be read; a column that is left out is read as text.

    >>> import numpy as np
    >>> text_types(read_frame(np.zeros((1, 2), int)).table_type)
    {'x0': DataType(int64), 'x1': DataType(int64)}
    """
    plain = [field for field in table_type.fields if field.written is None]
    return {field.name: _cell_type(field.dtype) for field in plain}


def read_as_fitted(frame: Frame, table_type: TableType, what: str = "X") -> Frame:
    """The frame with columns of text as the numbers, booleans and dates that they were in fit.

    A cell of another kind is an error that names it, and so are times with a zone where fit had none.

    >>> import pandas as pd
    >>> fitted = read_frame(pd.DataFrame({"day": pd.to_datetime(["2020-01-01"])})).table_type
    >>> read_as_fitted(read_frame(pd.DataFrame({"day": ["2020-01-05", None]})), fitted).columns["day"].to_list()
    [datetime.datetime(2020, 1, 5, 0, 0), None]
    """
    _check_zones(frame, table_type, what)
    frame = read_written(frame, table_type)
    columns = dict(frame.columns)
    for field in table_type.fields:
        cells, kind = columns.get(field.name), _cell_type(field.dtype)
        if cells is not None and _is_text(cells) and field.written is None and str(kind) not in TEXT:
            text = pa.array(cells.named(None), pa.string())
            read = read_arrow(field.name, as_type(field.name, text, kind, cells.first))
            columns[field.name] = replace(read, first=cells.first)
    return replace(frame, columns=columns)


def with_notations(frame: Frame, table_type: TableType) -> Frame:
    """The frame with columns of text as numbers and dates, in the notation of fit or, where fit had none, in their own.

    >>> import pandas as pd
    >>> fitted = read_frame(pd.DataFrame({"day": pd.to_datetime(["2020-01-05"])})).table_type
    >>> with_notations(read_frame(pd.DataFrame({"day": ["2020-02-01", None]})), fitted).columns["day"].type
    'moment'
    """
    native = [
        field.name
        for field in table_type.fields
        if field.written is None and str(_cell_type(field.dtype)) not in TEXT
    ]
    text = {name: "category" for name in frame.columns if name not in native}
    return recognised(read_written(frame, table_type), Reading(), text)


def _is_text(cells: Cells) -> bool:
    """Whether cells are text, of which some is there, and no declared categories."""
    texts = all(isinstance(label, str) for label in cells.labels)
    return cells.type == "label" and not cells.declared and texts and not cells.missing.all()


def _cell_type(dtype: Dtype) -> Any:
    """The pyarrow type of cells of CSV: times in the finest unit, and labels in that of those that are listed."""
    labels = dtype.get("categories") or [""]
    if not isinstance(labels[0], str):
        return pa.array(labels).type
    kind = arrow_type(dtype)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ns" if kind.unit == "ns" else "us", kind.tz)
    if pa.types.is_dictionary(kind) or pa.types.is_null(kind) or pa.types.is_time(kind):
        return pa.string()
    return kind


def _check_zones(frame: Frame, table_type: TableType, what: str) -> None:
    """An error where a column has times with a zone and in fit had them without, or the other way round."""
    fitted = {field.name: zone_of(field.dtype) for field in table_type.fields}
    in_utc = [field.name for field in table_type.fields if _written_in_utc(field.written)]
    for field in (field for field in frame.table_type.fields if field.name not in in_utc):
        cells, zone = frame.columns[field.name], zone_of(field.dtype)
        other = bool(zone) != bool(fitted.get(field.name, zone))
        if other and cells.type == "moment" and not cells.missing.all():
            got = f"times in {zone}" if zone else "times without a zone"
            raise _mixed_up(what, field.name, fitted[field.name], got)


def _written_in_utc(written: Mapping[str, Any] | None) -> bool:
    """Whether a column of text in fit held moments of UTC, as in 2013-01-01T11:00:00Z."""
    if written is None or written["kind"] != "date":
        return False
    return written["suffix"] in ("Z", "+00:00", "+0000") or "%z" in written["formats"][0]


def renamed(frame: Frame, table_type: TableType) -> Frame:
    """The frame with the column names of another table, by position.

    >>> table_type = read_frame([[1.0, 2.0]]).table_type
    >>> renamed(read_frame([[3.0, 4.0]]), table_type).table_type.names
    ('x0', 'x1')
    """
    pairs = list(zip(frame.table_type.fields, table_type.names, strict=True))
    fields = tuple(replace(field, name=name) for field, name in pairs)
    columns = {name: frame.columns[field.name] for field, name in pairs}
    return read_as_fitted(Frame(replace(frame.table_type, fields=fields), columns), table_type)


def matched(frame: Frame, table_type: TableType, needed: Collection[str]) -> Frame:
    """The columns of fit by name, in its order; others are not used, and those that are not there count as missing.

    Both are named in a warning, the second only of columns that are needed. Other names in place of needed ones are an
    error: they are likely the same columns renamed.

    >>> import pandas as pd
    >>> fitted = read_frame(pd.DataFrame({"a": [1.0], "b": [2.0]})).table_type
    >>> matched(read_frame(pd.DataFrame({"b": [3.0]})), fitted, needed=["b"]).columns["a"].missing
    array([ True])
    """
    names = table_type.names
    extra = [name for name in frame.columns if name not in names]
    absent = [name for name in needed if name not in frame.columns]
    if (extra and absent) or len(extra) == len(frame.columns):
        raise ValueError(
            "X: The feature names should match those that were passed during fit. "
            f"Not seen in fit: {_listed(extra)}; seen in fit, now absent: {_listed(absent) or 'none'}. Rename them."
        )
    if extra:
        warnings.warn(f"X: not in the model, and not used: {_listed(extra)}.", UserWarning, stacklevel=4)
    if absent:
        warnings.warn(f"X: without {_listed(absent)}, counted as missing.", UserWarning, stacklevel=4)
    frame = read_as_fitted(frame, table_type)
    gap = Cells("label", np.full(len(frame), -1), np.ones(len(frame), bool))
    return Frame(frame.table_type, {name: frame.columns.get(name, gap) for name in names})


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + ", …" * (len(names) > 5)


def partial_frame(given: Any, table_type: TableType) -> tuple[Frame, list[str]]:
    """A frame of all columns from some of them, a dict of one row or a table, and which; the others are missing.

    >>> frame, known = partial_frame({"x1": 2.0}, read_frame([[1.0, 2.0]]).table_type)
    >>> [cells.missing.tolist() for cells in frame.columns.values()], known
    ([[True], [False]], ['x1'])
    """
    if isinstance(given, Mapping):
        values = given_values("given", given, table_type)
        listed = [field.name for field in table_type.fields if "categories" in field.dtype]
        columns = {name: _one_cell(name, value, name in listed) for name, value in values.items()}
    else:
        columns = dict(read_as_fitted(read_frame(given), table_type).columns)
    if unknown := [name for name in columns if name not in table_type.names]:
        raise ValueError(f"given: expected some of the columns {list(table_type.names)}; got {unknown[0]!r}.")
    n = len(next(iter(columns.values()))) if columns else 1
    gap = Cells("label", np.full(n, -1), np.ones(n, bool))
    return Frame(table_type, {name: columns.get(name, gap) for name in table_type.names}), list(columns)


def _one_cell(name: str, value: Any, listed: bool = False) -> Cells:
    """A Python object as a column of one cell: a label if the column lists what it may hold."""
    value = value.item() if isinstance(value, np.bool_ | np.number) else value
    if listed and isinstance(value, str | int | float | bool) and not is_gap(value):
        return Cells("label", np.zeros(1, np.int64), np.zeros(1, bool), (value,))
    if isinstance(value, dt.timedelta | np.timedelta64):
        span = np.array([value], "m8[us]").view(np.int64)
        return Cells("duration", span, np.zeros(1, bool), unit="us")
    row = np.empty(1, object)
    row[0] = value
    cells = object_cells(name, row)[1]
    check_finite(name, cells)
    return cells


def given_values(what: str, given: Mapping[str, Any], table_type: TableType) -> dict[str, Any]:
    """Conditions on columns, read as these were in fit: text such as "$1,200" or "Jan-2015", and dates and times.

    Dates and times become Python's moments, of UTC where the column has a zone.

    >>> from ctem.tables.io.recognition import Reading, recognised
    >>> frame = recognised(read_frame([["Jan-2015"], ["Mar-2015"]]), Reading(), {})
    >>> given_values("given", {"x0": ("Feb-2015", None)}, frame.table_type)
    {'x0': (24181, None)}
    """
    fields = {field.name: field for field in table_type.fields}
    values = dict(given)
    for name, field in ((name, fields[name]) for name in given if name in fields):
        kind = arrow_type(field.dtype)
        if field.written is not None:
            values[name] = _value(name, values[name], Writing.from_json(field.written))
        if "intervals" in field.dtype:
            values[name] = _changed_each(values[name], _as_label)
        if "times" in field.dtype:
            values[name] = _changed_each(values[name], _dated)
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            in_utc = partial(_in_utc, what, name, zone=getattr(kind, "tz", None) or "")
            values[name] = _changed_each(values[name], in_utc)
    return values


def _changed_each(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value that is changed, or a range or a set with each of its values changed."""
    if isinstance(value, tuple | list | set | frozenset):
        return type(value)(_changed_each(item, change) for item in value)
    return change(value)


def _as_label(value: Any) -> Any:
    """An interval of pandas as the label that it is in a categorical of intervals."""
    return str(value) if hasattr(value, "left") and hasattr(value, "right") else value


def _dated(value: Any) -> Any:
    """A moment as the label that it is in a categorical of moments."""
    moment = moment_of(value)
    return value if moment is None or isinstance(moment, str) else str(moment)


def _value(name: str, value: Any, writing: Writing) -> Any:
    """A value, or the values of a range or a set; a date may also be written in ISO's way."""
    if writing.kind == "label":
        return value
    if isinstance(value, tuple) and writing.kind == "clock" and len(value) == 2:
        ranges = writing.between(name, *value)
        return ranges[0] if len(ranges) == 1 else ranges
    if isinstance(value, tuple):
        return tuple(_value(name, item, writing) for item in value)
    if isinstance(value, list | set | frozenset):
        values = []
        for item in value:
            part = _value(name, item, writing)
            values += part if isinstance(item, tuple) and isinstance(part, list) else [part]
        return values
    if isinstance(value, dt.time):
        value = value.strftime("%H:%M:%S")
    if not isinstance(value, str):
        return value
    moment = moment_of(value) if writing.kind == "date" and writing.parsed(value) is None else value
    return _read(name, value, writing) if isinstance(moment, str) else moment


def _read(name: str, value: str, writing: Writing) -> Any:
    """A cell of text, read as its column was in fit."""
    cells = writing.cells(name, object_cells(name, np.array([value], object))[1])
    return replace(cells, text=None).to_list()[0]


def _in_utc(what: str, name: str, value: Any, zone: str) -> Any:
    """A moment as Python has it, of UTC where its column has a zone."""
    moment = moment_of(value)
    if isinstance(moment, str):
        raise ValueError(
            f"{what}: column {name!r}: expected dates or times, such as '2020-01-05 09:00'; got {value!r}."
        )
    if isinstance(moment, dt.datetime) and moment.tzinfo is not None:
        if zone:
            return moment.astimezone(dt.UTC).replace(tzinfo=None)
        raise _mixed_up(what, name, zone, f"{value} with a zone")
    if zone and isinstance(moment, dt.date):
        raise _mixed_up(what, name, zone, f"{value} without one")
    return moment


def moment_of(value: Any) -> Any:
    """Text as the moment that it is in ISO's way, if it does, and moments of libraries as Python's; else as it is.

    >>> moment_of("2020-03"), moment_of(np.datetime64("2020-03-01")), moment_of("soon")
    (datetime.datetime(2020, 3, 1, 0, 0), datetime.datetime(2020, 3, 1, 0, 0), 'soon')
    """
    if isinstance(value, np.datetime64):
        return value if np.isnat(value) else value.astype("M8[us]").item()
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime(warn=False) if value == value else value
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day)
    if not isinstance(value, str) or not value:
        return value
    try:
        return dt.datetime.fromisoformat(value)
    except ValueError:
        pass
    try:
        return np.datetime64(value).astype("M8[us]").item()
    except ValueError:
        return value


def _mixed_up(what: str, name: str, zone: str, got: str) -> ValueError:
    if zone:
        return ValueError(
            f"{what}: column {name!r} holds times in {zone}; got {got}. "
            f"Give them with their zone, as in pd.Timestamp('2020-01-05 09:00', tz={zone!r})."
        )
    return ValueError(
        f"{what}: column {name!r} holds times without a zone; got {got}. Give them as fit had them, without."
    )


def named(given: Mapping[Any, Any], table_type: TableType) -> dict[Any, Any]:
    """Conditions by the names of columns as text: whole numbers name columns of a table that are named by numbers.

    Elsewhere a whole number is a position; what is neither stays as it is, for an error that lists the names.

    >>> import pandas as pd
    >>> named({7: 0.5}, read_frame(pd.DataFrame({3: [1.0], 7: [2.0]})).table_type)
    {'7': 0.5}
    """
    places = ((key, _place(key, table_type), value) for key, value in given.items())
    return {key if j is None else table_type.names[j]: value for key, j, value in places}


def _place(column: Any, table_type: TableType) -> int | None:
    """The position of a column that is named or counted; None if there is none."""
    originals = [field.original for field in table_type.fields]
    if not isinstance(column, int | np.integer) or isinstance(column, bool):
        return table_type.names.index(column) if column in table_type.names else None
    if any(isinstance(original, int) for original in originals):
        return originals.index(int(column)) if int(column) in originals else None
    return int(column) if 0 <= column < len(originals) else None


def positions(what: str, columns: Iterable[str | int], table_type: TableType) -> list[int]:
    """Positions of columns that are named or counted from 0, each once; numbers that are names are names.

    >>> positions("given", ["x1", 0], read_frame([[1.0, 2.0]]).table_type)
    [1, 0]
    """
    if isinstance(columns, str):
        raise ValueError(f"{what}: expected a list of columns; write {what}=[{columns!r}].")
    if isinstance(columns, Mapping):
        raise ValueError(
            f"{what}: expected a list of columns, whose values are those of X; write {what}={list(columns)}. "
            "Conditions are for sample(given=…) and probability(event, given)."
        )
    asked = list(columns)
    places = list[int]()
    for column in asked:
        if (place := _place(column, table_type)) is None:
            raise ValueError(
                f"{what}: expected names or positions of {list(table_type.names)}; got {column!r}."
            )
        places.append(place)
    if len(set(places)) < len(places):
        raise ValueError(f"{what}: expected each column once; got {asked}.")
    return places
