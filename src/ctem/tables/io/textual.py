"""Text in a column that held numbers, booleans or dates in fit, read by the reader of CSV files.

``pandas.read_csv`` leaves dates as text, which a model that was fitted in the shell has as dates.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ctem.tables.io.arrow import read_arrow
from ctem.tables.io.cells import Cells, Dtype
from ctem.tables.io.csv_text import as_type
from ctem.tables.io.dtypes import cell_type
from ctem.tables.io.frame import Frame, TableType
from ctem.tables.io.zones import zone_of

__all__ = ["read_text", "text_types"]


def text_types(table_type: TableType) -> dict[str, Any]:
    """The pyarrow types in which the cells of a CSV file are to be read; a column that is left out is read as text.

    >>> import numpy as np
    >>> from ctem.tables.io.frame import read_frame
    >>> text_types(read_frame(np.zeros((1, 2), int)).table_type)
    {'x0': DataType(int64), 'x1': DataType(int64)}
    """
    plain = [field for field in table_type.fields if field.written is None]
    return {field.name: _arrow_type(field.dtype) or pa.string() for field in plain}


def read_text(frame: Frame, table_type: TableType) -> Frame:
    """The frame with columns of text as the numbers, booleans and dates that they were in fit.

    A cell that says nothing of the kind is an error that names it.

    >>> import pandas as pd
    >>> from ctem.tables.io.frame import read_frame
    >>> fitted = read_frame(pd.DataFrame({"day": pd.to_datetime(["2020-01-01"])})).table_type
    >>> read_text(read_frame(pd.DataFrame({"day": ["2020-01-05", None]})), fitted).columns["day"].to_list()
    [datetime.datetime(2020, 1, 5, 0, 0), None]
    """
    columns = dict(frame.columns)
    for field in table_type.fields:
        cells = columns.get(field.name)
        if cells is None or not _is_text(cells) or field.written is not None:
            continue
        if (kind := _arrow_type(field.dtype)) is not None:
            columns[field.name] = _read(field.name, cells, kind)
    return replace(frame, columns=columns)


def _is_text(cells: Cells) -> bool:
    """Whether cells are text, of which some is there, and no declared categories."""
    texts = all(isinstance(label, str) for label in cells.labels)
    return cells.type == "label" and not cells.declared and texts and not cells.missing.all()


def _read(name: str, cells: Cells, kind: Any) -> Cells:
    text = pa.array(cells.named(None), pa.string())
    return replace(read_arrow(name, as_type(name, text, kind, cells.first))[1], first=cells.first)


def _arrow_type(dtype: Dtype) -> Any:
    """The pyarrow type of numbers, booleans and moments of a column, or of the labels that it lists; None for text."""
    if isinstance(dtype.get("arrow"), dict):
        return _arrow_type(dtype["arrow"])
    if "categories" in dtype and not isinstance(next(iter(dtype["categories"]), ""), str):
        return pa.array(dtype["categories"]).type
    words = " ".join(
        str(dtype[key]) for key in ("object", "numpy", "pandas", "polars", "arrow") if key in dtype
    )
    whole = re.search(r"u?int|[iu]\d", words.lower())
    unit = dtype.get("unit") or next(iter(re.findall(r"\[(s|ms|us|ns)\b", words)), "us")
    finest = "ns" if unit == "ns" else "us"
    kinds = {
        "bool": pa.bool_(),
        "moment": pa.date32() if _is_day(dtype) else pa.timestamp(finest, zone_of(dtype) or None),
        "duration": pa.duration(unit),
        "number": pa.float64() if whole is None else pa.uint64() if whole[0][0] == "u" else pa.int64(),
    }
    return kinds.get(cell_type(dtype))


def _is_day(dtype: Dtype) -> bool:
    """Whether moments are days."""
    return any(str(value).lower() in ("date", "date32", "date64") for value in dtype.values())
