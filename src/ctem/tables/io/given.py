"""What a user gives to a fitted model: a table in the names of fit, part of a row, names of columns."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctem.tables.io.cells import Cells, is_gap, object_cells
from ctem.tables.io.frame import Frame, TableType, check_finite, read_frame
from ctem.tables.io.textual import read_as_fitted
from ctem.tables.io.writings import Writing
from ctem.tables.io.zones import changed_each, given_moments, moment_of

__all__ = ["given_values", "matched", "named", "partial_frame", "positions", "renamed"]


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
        values = given_moments("given", given_values(given, table_type), table_type)
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


def given_values(given: Mapping[str, Any], table_type: TableType) -> dict[str, Any]:
    """Conditions on columns with the text in them, such as "$1,200" or "Jan-2015", read as its column was in fit.

    >>> from ctem.tables.io.recognition import Reading, recognised
    >>> frame = recognised(read_frame([["Jan-2015"], ["Mar-2015"]]), Reading(), {})
    >>> given_values({"x0": ("Feb-2015", None)}, frame.table_type)
    {'x0': (24181, None)}
    """
    fields = {field.name: field for field in table_type.fields}
    values = {}
    for name, value in given.items():
        field = fields.get(name)
        if field is not None and field.written is not None:
            value = _value(name, value, Writing.from_json(field.written))
        values[name] = changed_each(value, _dated) if field is not None and "times" in field.dtype else value
    return values


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
