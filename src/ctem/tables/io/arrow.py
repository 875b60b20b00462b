"""Columns of pyarrow tables: read to ``Cells``, and written back in the type they had.

The type is recorded as plain JSON; pyarrow is imported only when there is a table of its kind.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from ctem.tables.io.cells import (
    Cells,
    Dtype,
    Read,
    counts_of,
    empty_cells,
    filled_numbers,
    label_codes,
    number_cells,
    unsupported,
)

__all__ = ["read_arrow", "write_arrow"]


def read_arrow(name: str, column: Any) -> Read:
    """A pyarrow array or chunked array, with its type as JSON.

    >>> import pyarrow as pa
    >>> read_arrow("t", pa.array([0, None], pa.timestamp("s", "UTC")))[0]
    {'arrow': 'timestamp', 'unit': 's', 'zone': 'UTC'}
    """
    pa, types = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.types")
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if types.is_null(kind):
        return {"arrow": "null"}, empty_cells(len(array))
    if types.is_dictionary(kind) or _is_text(types, kind):
        return _read_arrow_labels(pa, types, name, array, missing)
    if types.is_date(kind) or types.is_timestamp(kind) or types.is_duration(kind):
        return _read_arrow_times(pa, types, array, missing)
    if types.is_decimal(kind):
        numbers = array.cast(pa.float64()).fill_null(float("nan")).to_numpy()
        spec = {"arrow": "decimal", "precision": kind.precision, "scale": kind.scale, "bits": kind.bit_width}
        return spec, number_cells(name, numbers, missing)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        numbers = array.fill_null(False if types.is_boolean(kind) else 0).to_numpy(zero_copy_only=False)
        return {"arrow": str(kind)}, number_cells(name, numbers, missing)
    raise unsupported(name, kind)


def write_arrow(name: str, dtype: Dtype, cells: Cells) -> Any:
    """Cells as a pyarrow array of the recorded type.

    >>> write_arrow("n", {"arrow": "int8"}, Cells("int", np.array([1, 2]), np.array([False, True]))).to_pylist()
    [1, None]
    """
    pa = importlib.import_module("pyarrow")
    kind = dtype["arrow"]
    if kind == "null":
        return pa.nulls(len(cells))
    if kind in ("dictionary", "text"):
        value = pa.type_for_alias(dtype["value"])
        labels = tuple(dtype["categories"]) if kind == "dictionary" else cells.labels
        index = pa.int32() if kind == "text" else pa.type_for_alias(dtype["index"])
        codes = pa.array(np.maximum(label_codes(name, cells, labels), 0), mask=cells.missing).cast(index)
        if kind == "text":
            return pa.array(labels, pa.large_string()).take(codes).cast(value)
        return pa.DictionaryArray.from_arrays(codes, pa.array(labels, value), ordered=dtype["ordered"])
    if kind in ("date32", "date64", "timestamp", "duration"):
        made = (
            pa.timestamp(dtype["unit"], dtype["zone"])
            if kind == "timestamp"
            else (pa.duration(dtype["unit"]) if kind == "duration" else getattr(pa, kind)())
        )
        counts = counts_of(cells, dtype.get("unit", "D"), np.int32 if kind == "date32" else np.int64)
        return pa.array(counts * (86_400_000 if kind == "date64" else 1), mask=cells.missing).cast(made)
    if kind == "decimal":
        made = getattr(pa, f"decimal{dtype.get('bits', 128)}")(dtype["precision"], dtype["scale"])
        numbers = np.round(cells.values.astype(np.float64), dtype["scale"])
        return pa.array(numbers, mask=cells.missing).cast(made)
    made = pa.type_for_alias(kind)
    return pa.array(filled_numbers(cells, np.dtype(made.to_pandas_dtype())), made, mask=cells.missing)


def _read_arrow_labels(pa: Any, types: Any, name: str, array: Any, missing: Any) -> Read:
    kind = array.type
    given = types.is_dictionary(kind)
    coded = array if given else array.dictionary_encode()
    if given and not (_is_text(types, kind.value_type) or types.is_integer(kind.value_type)):
        raise unsupported(name, kind)
    labels = coded.dictionary.to_pylist()
    codes = coded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    cells = Cells(
        "label", codes, missing, tuple(labels), declared=given, ordered=given and bool(kind.ordered)
    )
    if not given:
        return {"arrow": "text", "value": str(kind)}, cells
    spec = {"arrow": "dictionary", "value": str(kind.value_type), "index": str(kind.index_type)}
    return {**spec, "categories": labels, "ordered": bool(kind.ordered)}, cells


def _read_arrow_times(pa: Any, types: Any, array: Any, missing: Any) -> Read:
    kind = array.type
    if types.is_date(kind):
        days = array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        name = "date32" if types.is_date32(kind) else "date64"
        return {"arrow": name}, Cells("moment", days.fill_null(0).to_numpy(), missing, unit="D")
    counts = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if types.is_duration(kind):
        return {"arrow": "duration", "unit": kind.unit}, Cells("duration", counts, missing, unit=kind.unit)
    return (
        {"arrow": "timestamp", "unit": kind.unit, "zone": kind.tz},
        Cells("moment", counts, missing, unit=kind.unit),
    )


def _is_text(types: Any, kind: Any) -> bool:
    return types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view"
