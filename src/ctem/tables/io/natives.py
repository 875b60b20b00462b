"""Columns of pandas and polars tables: read to ``Cells``, and written back in the dtype they had.

Each library is handled by a pair ``read_…(name, column) -> (dtype, cells)`` and ``write_…(name, dtype, cells)``,
where ``dtype`` is plain JSON. None of the libraries is imported unless a table of its kind is there.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from ctem.tables.io.arrow import read_arrow, write_arrow
from ctem.tables.io.cells import (
    Cells,
    Dtype,
    Label,
    Read,
    cast_numbers,
    counts_of,
    empty_cells,
    filled_numbers,
    label_codes,
    number_cells,
    object_array,
    object_cells,
    unsupported,
)

__all__ = ["read_pandas", "read_polars", "write_pandas", "write_polars"]

POLARS = (
    *(f"{sign}{bits}" for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)),
    *(
        "Float32",
        "Float64",
        "Boolean",
        "String",
        "Categorical",
        "Enum",
        "Date",
        "Datetime",
        "Duration",
        "Decimal",
        "Null",
    ),
)


def read_pandas(name: str, column: Any) -> Read:
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
        arrow, cells = read_arrow(name, importlib.import_module("pyarrow").array(column))
        return {"pandas": "arrow", "arrow": arrow}, cells
    if isinstance(dtype, pd.StringDtype):
        spec = {"pandas": "text", "storage": dtype.storage, "nan": dtype.na_value is not pd.NA}
        return spec, _pandas_text(pd, column)
    objects = isinstance(dtype, np.dtype) and dtype.kind == "O"
    if objects and pd.api.types.infer_dtype(column, skipna=True) == "string":
        cells = _pandas_text(pd, column)
        nan = bool(cells.missing.any()) and isinstance(column.iloc[int(cells.missing.argmax())], float)
        return {"pandas": "object", "object": "str", "nan": nan}, cells
    missing = column.isna().to_numpy()
    if objects:
        spec, cells = object_cells(name, column.to_numpy(), missing)
        return {"pandas": "object", **spec}, cells
    return {"pandas": str(dtype)}, _pandas_numbers(pd, name, column, missing)


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
        made = pd.CategoricalDtype(categories, ordered=dtype["ordered"])
        return pd.Series(pd.Categorical.from_codes(codes, dtype=made))
    if kind == "arrow":
        array = write_arrow(name, dtype["arrow"], cells)
        return pd.Series(pd.arrays.ArrowExtensionArray(array))
    if kind == "object":
        return pd.Series(object_array(dtype, cells), dtype=object)
    if kind == "text":
        choice = {"na_value": np.nan} if dtype["nan"] else {}  # pandas before 2.3 has no such choice
        text = pd.StringDtype(dtype["storage"], **choice)
        return pd.Series(
            text.__from_arrow__(write_arrow(name, {"arrow": "text", "value": "large_string"}, cells))
        )
    made = pd.api.types.pandas_dtype(kind)
    if made.kind in "Mm":
        return _pandas_times(pd, made, cells)
    if isinstance(made, np.dtype):
        return pd.Series(cast_numbers(name, cells, made))
    values = pd.Series(filled_numbers(cells, np.dtype(made.numpy_dtype)), dtype=made)
    return values.mask(cells.missing) if cells.missing.any() else values


def read_polars(name: str, column: Any) -> Read:
    """A polars Series, with its dtype as JSON.

    >>> import polars as pl
    >>> read_polars("b", pl.Series(["x", None]))[1].to_list()
    ['x', None]
    """
    pl = importlib.import_module("polars")
    dtype, missing = column.dtype, column.is_null().to_numpy()
    base = str(dtype.base_type())
    if dtype == pl.Null:
        return {"polars": base}, empty_cells(len(column))
    if base == "String":
        return {"polars": base}, read_arrow(name, column.to_arrow())[1]
    if base in ("Categorical", "Enum"):
        declared = base == "Enum"
        labels = (
            dtype.categories if declared else column.drop_nulls().unique(maintain_order=True).cast(pl.String)
        )
        codes = column.cast(pl.Enum(labels)).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
        kept = tuple(labels.to_list())
        spec: Dtype = {"polars": base, "categories": list(kept)} if declared else {"polars": base}
        return spec, Cells("label", codes, missing, kept, declared=declared)
    if base in ("Date", "Datetime", "Duration"):
        unit = "D" if base == "Date" else dtype.time_unit
        counts = column.to_physical().cast(pl.Int64).fill_null(0).to_numpy()
        spec = {"polars": base, "unit": unit, "zone": getattr(dtype, "time_zone", None)}
        return spec, Cells("duration" if base == "Duration" else "moment", counts, missing, unit=unit)
    if base == "Decimal":
        numbers = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        return {"polars": base, "precision": dtype.precision, "scale": dtype.scale}, number_cells(
            name, numbers, missing
        )
    if base in POLARS:
        fill = False if base == "Boolean" else 0
        return {"polars": base}, number_cells(name, column.fill_null(fill).to_numpy(), missing)
    raise unsupported(name, dtype)


def write_polars(name: str, dtype: Dtype, cells: Cells) -> Any:
    """Cells as a polars Series of the recorded dtype.

    >>> cells = Cells("label", np.array([0, 1]), np.array([False, True]), ("x",))
    >>> write_polars("b", {"polars": "String"}, cells).to_list()
    ['x', None]
    """
    pl = importlib.import_module("polars")
    base = dtype["polars"]
    if base not in POLARS:
        raise ValueError(f"column {name!r}: expected a polars dtype of {', '.join(POLARS)}; got {base!r}.")
    gaps = pl.Series(cells.missing)
    if base == "Null":
        return pl.Series([None] * len(cells), dtype=pl.Null)
    if base in ("String", "Categorical", "Enum"):
        labels = tuple(dtype["categories"]) if base == "Enum" else tuple(map(str, cells.labels))
        codes = pl.Series(label_codes(name, cells, labels)).cast(pl.UInt32, strict=False)
        made = pl.Enum(labels) if base == "Enum" else getattr(pl, base)()
        return pl.Series(labels, dtype=pl.String).gather(codes).cast(made)
    if base in ("Date", "Datetime", "Duration"):
        made = {"Date": lambda: pl.Date, "Datetime": lambda: pl.Datetime(dtype["unit"], dtype["zone"])}.get(
            base, lambda: pl.Duration(dtype["unit"])
        )()
        counts = counts_of(cells, dtype["unit"], np.int32 if base == "Date" else np.int64)
        return pl.select(pl.when(~gaps).then(pl.Series(counts))).to_series().cast(made)
    if base == "Decimal":
        made = pl.Decimal(dtype["precision"], dtype["scale"])
        numbers = pl.Series(np.round(cells.values.astype(np.float64), dtype["scale"]))
    else:
        made = getattr(pl, base)()
        numbers = pl.Series(filled_numbers(cells, np.dtype(_NUMPY_NAMES.get(base, base.lower()))))
    return pl.select(pl.when(~gaps).then(numbers)).to_series().cast(made)


_NUMPY_NAMES = {"Boolean": "bool"}


def _pandas_text(pd: Any, column: Any) -> Cells:
    codes, labels = pd.factorize(column)
    return Cells("label", codes.astype(np.int64, copy=False), codes < 0, tuple(map(str, labels)))


def _read_categorical(pd: Any, name: str, column: Any) -> Read:
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
    codes = column.cat.codes.to_numpy().astype(np.int64)
    ordered = bool(column.cat.ordered)
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


def _pandas_numbers(pd: Any, name: str, column: Any, missing: Any) -> Cells:
    dtype = column.dtype
    kind = dtype.kind if pd.api.types.pandas_dtype(str(dtype)) == dtype else "?"
    if kind == "M" and getattr(dtype, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    if kind in "Mm" or isinstance(dtype, np.dtype):
        return number_cells(name, column.to_numpy(), missing)
    if kind in "iufb":
        fill = {"f": np.nan, "b": False}.get(kind, 0)
        return number_cells(name, column.to_numpy(dtype=dtype.numpy_dtype, na_value=fill), missing)
    raise unsupported(name, dtype)


def _pandas_times(pd: Any, made: Any, cells: Cells) -> Any:
    unit = getattr(made, "unit", None) or np.datetime_data(made)[0]
    times = np.where(cells.missing, np.iinfo(np.int64).min, counts_of(cells, unit))
    series = pd.Series(times.view(f"{made.kind}8[{unit}]"))
    zone = getattr(made, "tz", None)
    return series if zone is None else series.dt.tz_localize("UTC").dt.tz_convert(zone)
