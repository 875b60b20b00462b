"""Columns of pandas and polars: read to ``Cells`` by way of Arrow, and written back in the dtype they had.

Each library is handled by a pair ``read_…(name, column) -> (dtype, cells)`` and ``write_…(name, dtype, cells)``,
where ``dtype`` is plain JSON. Neither library is imported unless a table of its kind is there.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ctem.tables.io.arrow import read_arrow, write_arrow
from ctem.tables.io.cells import (
    Cells,
    Label,
    cast_numbers,
    label_codes,
    object_array,
    object_cells,
    plain_cells,
    unsupported,
)
from ctem.tables.io.dtypes import WORDS, Dtype, arrow_dtype, arrow_type

__all__ = ["read_pandas", "read_polars", "write_pandas", "write_polars"]


def read_pandas(name: str, column: Any) -> tuple[Dtype, Cells]:
    """A pandas column, with its dtype as JSON.

    >>> import pandas as pd
    >>> read_pandas("n", pd.Series([1, None], dtype="Int64"))[0]
    {'pandas': 'Int64'}
    """
    pd = importlib.import_module("pandas")
    dtype = column.dtype
    if isinstance(dtype, pd.SparseDtype):
        raise TypeError(f"column {name!r} is sparse; dense data is required: use .sparse.to_dense().")
    if isinstance(dtype, pd.CategoricalDtype):
        return _read_categorical(pd, name, column)
    if isinstance(dtype, pd.ArrowDtype):
        array = pa.array(column)
        cells = read_arrow(name, array)
        return {"pandas": "arrow", "arrow": arrow_dtype(array.type, list(cells.labels))}, cells
    if isinstance(dtype, pd.StringDtype):
        spec: Dtype = {"pandas": "text", "storage": dtype.storage, "nan": dtype.na_value is not pd.NA}
        return spec, read_arrow(name, pa.array(column, from_pandas=True))
    missing, objects = column.isna().to_numpy(), isinstance(dtype, np.dtype) and dtype.kind == "O"
    if objects and pd.api.types.infer_dtype(column, skipna=True) == "string":
        nan = bool(missing.any()) and isinstance(column.iloc[int(missing.argmax())], float)
        spec = {"pandas": "object", "object": "str", "nan": nan}
        codes, labels = pd.factorize(column)
        return spec, Cells("label", codes.astype(np.int64, copy=False), missing, tuple(map(str, labels)))
    if objects:
        spec, cells = object_cells(name, column.to_numpy(), missing)
        return {"pandas": "object", **spec}, cells
    if isinstance(dtype, np.dtype):
        return {"pandas": str(dtype)}, plain_cells(name, column.to_numpy(), missing)
    if not re.fullmatch(WORDS["pandas"], str(dtype)):
        raise unsupported(name, dtype)
    return {"pandas": str(dtype)}, read_arrow(name, pa.array(column, from_pandas=True))


def write_pandas(name: str, dtype: Dtype, cells: Cells) -> Any:
    """Cells as a pandas Series of the recorded dtype.

    >>> write_pandas("n", {"pandas": "Int64"}, Cells("int", np.array([1, 2]), np.array([False, True]))).tolist()
    [1, <NA>]
    """
    pd = importlib.import_module("pandas")
    kind = dtype["pandas"]
    if kind == "category":
        categories = _categories(pd, dtype)
        codes = label_codes(name, cells, _labels(categories))
        return pd.Series(pd.Categorical.from_codes(codes, categories, dtype["ordered"]))
    if kind == "object":
        return pd.Series(object_array(dtype, cells), dtype=object)
    held = arrow_type(dtype)
    if kind == "arrow":
        made = pd.ArrowDtype(held)
    elif kind == "text":
        choice = {"na_value": np.nan} if dtype["nan"] else {}  # pandas before 2.3 has no such choice
        made, held = pd.StringDtype(dtype["storage"], **choice), pa.large_string()
    else:
        made = pd.api.types.pandas_dtype(kind)
    if isinstance(made, np.dtype) and made.kind not in "Mm":
        return pd.Series(cast_numbers(name, cells, made))
    labels = tuple(dtype["arrow"].get("categories", ())) if kind == "arrow" else ()
    array = write_arrow(name, held, cells, labels)
    return pd.Series(
        array.to_pandas().astype(made) if isinstance(made, np.dtype) else made.__from_arrow__(array)
    )


def read_polars(name: str, column: Any) -> tuple[Dtype, Cells]:
    """A polars Series, with its dtype as JSON.

    >>> import polars as pl
    >>> read_polars("b", pl.Series(["x", None]))[1].to_list()
    ['x', None]
    """
    dtype, base = column.dtype, str(column.dtype.base_type())
    if not re.fullmatch(WORDS["polars"], base):
        raise unsupported(name, dtype)
    spec: Dtype = {"polars": base}
    if base == "Enum":
        spec["categories"] = dtype.categories.to_list()
    elif base in ("Date", "Datetime", "Duration"):
        unit = "D" if base == "Date" else dtype.time_unit
        spec |= {"unit": unit, "zone": getattr(dtype, "time_zone", None)}
    elif base == "Decimal":
        spec |= {"precision": dtype.precision, "scale": dtype.scale}
    elif base.endswith("Int128"):  # of text the same is made as in a CSV file
        column = column.cast(importlib.import_module("polars").String)
    cells = read_arrow(name, column.to_arrow())
    return spec, replace(cells, declared=base == "Enum", ordered=False)


def write_polars(name: str, dtype: Dtype, cells: Cells) -> Any:
    """Cells as a polars Series of the recorded dtype.

    >>> cells = Cells("label", np.array([0, 1]), np.array([False, True]), ("x",))
    >>> write_polars("b", {"polars": "String"}, cells).to_list()
    ['x', None]
    """
    pl = importlib.import_module("polars")
    base = dtype["polars"]
    if not re.fullmatch(WORDS["polars"], base):
        raise ValueError(f"column {name!r}: expected a dtype of polars; got {base!r}.")
    if base == "Enum":
        label_codes(name, cells, tuple(dtype["categories"]))
        return pl.Series(write_arrow(name, pa.large_string(), cells)).cast(pl.Enum(dtype["categories"]))
    made = pl.Series(write_arrow(name, arrow_type(dtype), cells))
    return made if base in ("Datetime", "Duration", "Decimal") else made.cast(getattr(pl, base))


def _read_categorical(pd: Any, name: str, column: Any) -> tuple[Dtype, Cells]:
    categories = column.cat.categories
    if categories.dtype.kind == "M" and getattr(categories.dtype, "tz", None) is None:
        unit = np.datetime_data(categories.dtype)[0]
        spec: Dtype = {"times": categories.to_numpy().view(np.int64).tolist(), "unit": unit}
    elif isinstance(categories.dtype, pd.IntervalDtype):
        if categories.dtype.subtype.kind not in "iuf":
            raise unsupported(name, categories.dtype)
        edges = {side: getattr(categories, side).tolist() for side in ("left", "right")}
        spec = {"intervals": edges, "closed": categories.closed, "subtype": str(categories.dtype.subtype)}
    else:
        values = categories.tolist()
        if not all(isinstance(value, str | int | float | bool) for value in values):
            raise unsupported(name, f"categories of type {categories.dtype}")
        spec = {"categories": values, "of": str(categories.dtype)}
    codes, ordered = column.cat.codes.to_numpy().astype(np.int64), bool(column.cat.ordered)
    cells = Cells("label", codes, codes < 0, _labels(categories), declared=True, ordered=ordered)
    return {"pandas": "category", "ordered": ordered, **spec}, cells


def _categories(pd: Any, dtype: Dtype) -> Any:
    if "times" in dtype:
        return pd.DatetimeIndex(np.array(dtype["times"], np.int64).view(f"M8[{dtype['unit']}]"))
    if "intervals" in dtype:
        left, right = (np.array(dtype["intervals"][side], dtype["subtype"]) for side in ("left", "right"))
        return pd.IntervalIndex.from_arrays(left, right, closed=dtype["closed"])
    return pd.Index(dtype["categories"], dtype=dtype["of"])


def _labels(categories: Any) -> tuple[Label, ...]:
    return tuple(v if isinstance(v, str | int | float | bool) else str(v) for v in categories.tolist())
