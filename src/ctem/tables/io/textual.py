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

from ctem.tables.io.arrow import read_arrow
from ctem.tables.io.cells import Cells, Dtype
from ctem.tables.io.csv_text import as_type
from ctem.tables.io.dtypes import cell_type
from ctem.tables.io.frame import Frame, TableType
from ctem.tables.io.zones import zone_of

__all__ = ["read_text"]


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
    pa = importlib.import_module("pyarrow")
    labels = np.array([*cells.labels, None], object)
    text = pa.array(labels[np.where(cells.missing, len(cells.labels), cells.values)], pa.string())
    return replace(read_arrow(name, as_type(name, text, kind, cells.first))[1], first=cells.first)


def _arrow_type(dtype: Dtype) -> Any:
    """The pyarrow type of numbers, booleans and moments of a column; None for others, and without pyarrow."""
    if importlib.util.find_spec("pyarrow") is None:
        return None
    pa, inner = importlib.import_module("pyarrow"), dtype.get("arrow")
    whole = re.search(r"u?int|[iu]\d", str({**dtype, **inner} if isinstance(inner, dict) else dtype).lower())
    kinds = {
        "bool": pa.bool_(),
        "moment": pa.date32() if _is_day(dtype) else pa.timestamp("us", zone_of(dtype) or None),
        "number": pa.float64() if whole is None else pa.uint64() if whole[0][0] == "u" else pa.int64(),
    }
    return kinds.get(cell_type(dtype))


def _is_day(dtype: Dtype) -> bool:
    """Whether moments are days."""
    if isinstance(dtype.get("arrow"), dict):
        return _is_day(dtype["arrow"])
    return any(str(value).lower() in ("date", "date32", "date64") for value in dtype.values())
