"""Columns of Arrow: read to ``Cells``, and made of them in a type."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctem.tables.io.cells import Cells, counts_of, label_codes, plain_cells, unsupported, whole_numbers
from ctem.tables.io.dtypes import TEXT

__all__ = ["read_arrow", "write_arrow"]


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
