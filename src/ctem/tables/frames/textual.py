"""Text in a column that held numbers, booleans or dates in fit, read by the reader of CSV files.

``pandas.read_csv`` leaves dates as text, which a model that was fitted in the shell has as dates.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import replace
from typing import Any

import numpy as np

from ctem.tables.frames.arrow import read_arrow
from ctem.tables.frames.cells import Cells, Dtype
from ctem.tables.frames.csv_text import as_type
from ctem.tables.frames.frame import Frame, TableType
from ctem.tables.frames.zones import holds_moments, zone_of

__all__ = ["read_text"]

LIBRARIES = ("numpy", "pandas", "polars", "arrow", "object")


def read_text(frame: Frame, table_type: TableType) -> Frame:
    """The frame with columns of text as the numbers, booleans and dates that they were in fit.

    A cell that says nothing of the kind is an error that names it.

    >>> import pandas as pd
    >>> from ctem.tables.frames.frame import read_frame
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
    pa = importlib.import_module("pyarrow")
    labels = np.array([*cells.labels, None], object)
    text = pa.array(labels[np.where(cells.missing, len(cells.labels), cells.values)], pa.string())
    return replace(read_arrow(name, as_type(name, text, kind, cells.first))[1], first=cells.first)


def _arrow_type(dtype: Dtype) -> Any:
    """The pyarrow type of numbers, booleans and moments of a column; None for others, and without pyarrow."""
    if importlib.util.find_spec("pyarrow") is None:
        return None
    pa = importlib.import_module("pyarrow")
    inner = dtype["arrow"] if isinstance(dtype.get("arrow"), dict) else dtype
    word = next((str(inner[key]) for key in LIBRARIES if key in inner), "")
    word = word if "numpy" in inner else word.lower()  # <U1 is text, <u1 a number
    if holds_moments(dtype):
        day = word in ("date", "date32", "date64")
        return pa.date32() if day else pa.timestamp("us", zone_of(dtype) or None)
    if "times" in dtype or "categories" in dtype or "intervals" in dtype:
        return None
    for kind, pattern in (
        (pa.bool_(), r"bool(ean)?|\|b1"),
        (pa.uint64(), r"uint\d+|[<|]u\d"),
        (pa.int64(), r"int\d*|[<|]i\d"),
        (pa.float64(), r"(float|double|halffloat)\d*|[<|]f\d|decimal"),
    ):
        if re.fullmatch(pattern, str(inner.get("object", word)).lower() if word == "object" else word):
            return kind
    return None
