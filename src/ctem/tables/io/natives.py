"""Columns of Arrow, pandas and polars: read to ``Cells``, and written back in the dtype they had.

Those of pandas and polars go by way of Arrow. Each of the two has ``read_…(name, column) -> (dtype, cells)`` and
``write_…(name, dtype, cells)``, where ``dtype`` is plain JSON, and is imported only if a table of its kind is there.
"""

from __future__ import annotations

import datetime as dt
import importlib
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctem.tables.io.cells import (
    Cells,
    Label,
    cast_numbers,
    counts_of,
    label_codes,
    object_array,
    object_cells,
    plain_cells,
    unsupported,
    whole_numbers,
)
from ctem.tables.io.dtypes import TEXT, WORDS, Dtype, arrow_dtype, arrow_type

__all__ = [
    "read_arrow",
    "read_pandas",
    "read_polars",
    "read_pyarrow",
    "write_arrow",
    "write_pandas",
    "write_polars",
]


def read_arrow(name: str, column: Any) -> Cells:
    """A pyarrow array or chunked array; times of day are text, in which ``ctem.tables.io.recognition`` finds them.

    >>> read_arrow("t", pa.array([0, None], pa.timestamp("s", "UTC"))).unit
    's'
    """
    array, types = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column, pa.types
    kind, missing = array.type, array.is_null().to_numpy(zero_copy_only=False)
    if types.is_null(kind):
        return Cells("label", np.full(len(array), -1, np.int64), missing)
    if types.is_dictionary(kind) or str(kind) in TEXT:
        return _read_labels(name, array, missing)
    if types.is_time(kind):
        text = array.cast(pa.time32("s"), safe=False).cast(pa.string())
        short = pc.all(pc.ends_with(text, ":00")).as_py()
        return read_arrow(name, pc.utf8_slice_codeunits(text, 0, 5) if short else text)
    if types.is_date(kind):
        days = array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        return Cells("moment", days.fill_null(0).to_numpy(), missing, unit="D")
    if types.is_timestamp(kind) or types.is_duration(kind):
        counts = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return Cells("moment" if types.is_timestamp(kind) else "duration", counts, missing, unit=kind.unit)
    array = array.cast(pa.float64()) if types.is_decimal(kind) else array
    if not (types.is_integer(array.type) or types.is_floating(array.type) or types.is_boolean(kind)):
        raise unsupported(name, kind)
    numbers = array.fill_null(False if types.is_boolean(kind) else 0).to_numpy(zero_copy_only=False)
    return plain_cells(name, numbers, missing)


def _read_labels(name: str, array: Any, missing: Any) -> Cells:
    given = pa.types.is_dictionary(array.type)
    coded = array if given else array.dictionary_encode()
    if not (str(coded.type.value_type) in TEXT or pa.types.is_integer(coded.type.value_type)):
        raise unsupported(name, array.type)
    codes = coded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    labels, ordered = tuple(coded.dictionary.to_pylist()), given and bool(array.type.ordered)
    return Cells("label", codes, missing, labels, declared=given, ordered=ordered)


def read_pyarrow(name: str, column: Any) -> tuple[Dtype, Cells]:
    """A pyarrow column, with its type as JSON.

    >>> read_pyarrow("n", pa.array([1, None], pa.int8()))[0]
    {'arrow': 'int8'}
    """
    cells = read_arrow(name, column)
    return arrow_dtype(column.type, list(cells.labels)), cells


def write_arrow(name: str, kind: Any, cells: Cells, categories: tuple[Any, ...] = ()) -> Any:
    """Cells as a pyarrow array of a type; numbers and times are held at its limits.

    Arguments:
        categories: that a dictionary lists.

    >>> write_arrow("n", pa.int8(), Cells("int", np.array([1, 300]), np.array([False, False]))).to_pylist()
    [1, 127]
    """
    types, gone = pa.types, cells.missing
    if types.is_null(kind):
        return pa.nulls(len(cells))
    if types.is_time(kind):
        times = pa.array([dt.time.fromisoformat(str(label)) for label in cells.labels], pa.time64("us"))
        return times.cast(kind).take(_codes(cells))
    if types.is_dictionary(kind):
        codes = np.maximum(label_codes(name, cells, categories), 0)
        values = pa.array(categories, kind.value_type)
        return pa.DictionaryArray.from_arrays(
            pa.array(codes, mask=gone).cast(kind.index_type), values, ordered=kind.ordered
        )
    if str(kind) in TEXT:
        return pa.array(cells.labels, pa.large_string()).take(_codes(cells)).cast(kind)
    if types.is_temporal(kind):
        counts = counts_of(cells, getattr(kind, "unit", "D"), np.int32 if types.is_date32(kind) else np.int64)
        counts = counts * (86_400_000 if types.is_date64(kind) else 1)
        return pa.array(counts, mask=gone).cast(kind)
    if types.is_decimal(kind):
        return pa.array(np.round(cells.values.astype(np.float64), kind.scale), mask=gone).cast(kind)
    dtype = np.dtype(kind.to_pandas_dtype())
    if dtype.kind in "iub":
        return pa.array(whole_numbers(cells, dtype), kind, mask=gone)
    limit = float(np.finfo(dtype).max)
    numbers = np.clip(np.where(gone, 0.0, cells.values.astype(np.float64)), -limit, limit)
    return pa.array(numbers.astype(dtype), kind, mask=gone)


def _codes(cells: Cells) -> Any:
    """The codes of labels, null where missing."""
    return pa.array(np.maximum(cells.values, 0), pa.int64(), mask=cells.missing | (cells.values < 0))


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
        spec, cells = read_pyarrow(name, pa.array(column))
        return {"pandas": "arrow", "arrow": spec}, cells
    if isinstance(dtype, pd.StringDtype):
        spec = {"pandas": "text", "storage": dtype.storage, "nan": dtype.na_value is not pd.NA}
        return spec, read_arrow(name, pa.array(column, from_pandas=True))
    missing = column.isna().to_numpy()
    if isinstance(dtype, np.dtype) and dtype.kind != "O":
        return {"pandas": str(dtype)}, plain_cells(name, column.to_numpy(), missing)
    if isinstance(dtype, np.dtype) and pd.api.types.infer_dtype(column, skipna=True) == "string":
        nan = bool(missing.any()) and isinstance(column.iloc[int(missing.argmax())], float)
        codes, labels = pd.factorize(column)
        cells = Cells("label", codes.astype(np.int64, copy=False), missing, tuple(map(str, labels)))
        return {"pandas": "object", "object": "str", "nan": nan}, cells
    if isinstance(dtype, np.dtype):
        spec, cells = object_cells(name, column.to_numpy(), missing)
        return {"pandas": "object", **spec}, cells
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
