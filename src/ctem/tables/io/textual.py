"""Text in a column that held numbers, booleans or dates in fit, read by the reader of CSV files.

``pandas.read_csv`` leaves dates as text, which a model that was fitted in the shell has as dates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from ctem.tables.io.arrow import read_arrow
from ctem.tables.io.cells import Cells
from ctem.tables.io.csv_text import as_type
from ctem.tables.io.dtypes import TEXT, Dtype, arrow_type
from ctem.tables.io.frame import Frame, TableType
from ctem.tables.io.recognition import read_written
from ctem.tables.io.zones import check_zones

__all__ = ["read_as_fitted", "text_types"]


def text_types(table_type: TableType) -> dict[str, Any]:
    """The pyarrow types in which the cells of a CSV file are to be read; a column that is left out is read as text.

    >>> import numpy as np
    >>> from ctem.tables.io.frame import read_frame
    >>> text_types(read_frame(np.zeros((1, 2), int)).table_type)
    {'x0': DataType(int64), 'x1': DataType(int64)}
    """
    plain = [field for field in table_type.fields if field.written is None]
    return {field.name: _cell_type(field.dtype) for field in plain}


def read_as_fitted(frame: Frame, table_type: TableType, what: str = "X") -> Frame:
    """The frame with columns of text as the numbers, booleans and dates that they were in fit.

    A cell of another kind is an error that names it, and so are times with a zone where fit had none.

    >>> import pandas as pd
    >>> from ctem.tables.io.frame import read_frame
    >>> fitted = read_frame(pd.DataFrame({"day": pd.to_datetime(["2020-01-01"])})).table_type
    >>> read_as_fitted(read_frame(pd.DataFrame({"day": ["2020-01-05", None]})), fitted).columns["day"].to_list()
    [datetime.datetime(2020, 1, 5, 0, 0), None]
    """
    check_zones(frame, table_type, what)
    frame = read_written(frame, table_type)
    columns = dict(frame.columns)
    for field in table_type.fields:
        cells = columns.get(field.name)
        if cells is None or not _is_text(cells) or field.written is not None:
            continue
        if str(kind := _cell_type(field.dtype)) not in TEXT:
            columns[field.name] = _read(field.name, cells, kind)
    return replace(frame, columns=columns)


def _is_text(cells: Cells) -> bool:
    """Whether cells are text, of which some is there, and no declared categories."""
    texts = all(isinstance(label, str) for label in cells.labels)
    return cells.type == "label" and not cells.declared and texts and not cells.missing.all()


def _read(name: str, cells: Cells, kind: Any) -> Cells:
    text = pa.array(cells.named(None), pa.string())
    return replace(read_arrow(name, as_type(name, text, kind, cells.first)), first=cells.first)


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
