"""What was observed, as it stands in the user's table: an imputed table takes from the model only its missing cells."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import narwhals as nw
import numpy as np

from ctem.tables.io.cells import Cells
from ctem.tables.io.csv_text import completed
from ctem.tables.io.dtypes import Dtype
from ctem.tables.io.frame import Frame, build_frame

__all__ = ["filled", "with_observed"]


def filled(frame: Frame, columns: Mapping[str, Cells], X: Any) -> Any:
    """The table X, read as ``frame``, with the missing cells of some columns filled in; other columns stay as they are.

    >>> from ctem.tables.io.frame import read_frame
    >>> X = np.array([[1.0, np.nan]])
    >>> frame = read_frame(X)
    >>> filled(frame, {"x1": frame.columns["x0"]}, X)
    array([[1., 1.]])
    """
    gone = {name: cells.missing for name, cells in frame.columns.items()}
    new = [
        field
        for field in frame.table_type.fields
        if field.name in columns
        and not _can_hold(field.dtype, frame.columns[field.name], columns[field.name])
    ]
    known = {name: cells for name, cells in columns.items() if name not in {field.name for field in new}}
    made = build_frame(
        frame.table_type, {name: known.get(name, cells) for name, cells in frame.columns.items()}
    )
    made = with_observed(made, X, gone)
    for field in new:
        values = field.as_text(columns[field.name]).to_list()
        made = _with_column(made, list(gone).index(field.name), values)
    return made


def _can_hold(dtype: Dtype, old: Cells, made: Cells) -> bool:
    """Whether a column is of a type for what fills it; one without values may be of any."""
    if not old.missing.all() or "object" in dtype:
        return True
    if (old.type == "label" and not old.labels) or {"null", "Null"} & {str(word) for word in dtype.values()}:
        return False
    return old.type == made.type or {old.type, made.type} <= {"int", "float"}


def _with_column(table: Any, j: int, values: list[Any]) -> Any:
    """A table with other values in a column, in the type that its library gives them."""
    if isinstance(table, np.ndarray):
        table = table.astype(object)
        table[:, j] = values
        return table
    frame = nw.from_native(table, eager_only=True)
    column = nw.new_series(frame.columns[j], values, backend=frame.implementation)
    return frame.with_columns(column).to_native()


def with_observed(filled: Any, X: Any, missing: Mapping[str, Any]) -> Any:
    """A filled table with every observed cell, and the index, of the table X that it was made from.

    Decimals, text and Python objects have no exact place among the numbers of a model: 12345678901234567890.12 and
    "$1200" in, the same out. Other cells come back exactly by themselves.

    Arguments:
        filled: the table that was made, of the library and the dtypes of X.
        X: the table as it came.
        missing: which cells were missing, by column, in the order of X.

    >>> from decimal import Decimal
    >>> X = np.array([[Decimal("0.1234567890123456789")], [None]])
    >>> filled = np.array([[Decimal("0.123456789012346")], [Decimal("0.2")]])
    >>> with_observed(filled, X, {"x0": np.array([False, True])})[:, 0].tolist()
    [Decimal('0.1234567890123456789'), Decimal('0.2')]
    """
    library = type(filled).__module__.partition(".")[0]
    masks = list(missing.values())
    if library == "numpy":
        return np.where(np.stack(masks, 1), filled, np.asarray(X)) if filled.dtype == object else filled
    return {"pandas": _pandas, "polars": _polars, "pyarrow": _arrow}[library](filled, X, masks)


def _pandas(filled: Any, X: Any, masks: list[Any]) -> Any:
    filled.index = X.index
    for j, gone in enumerate(masks):
        if str(X.dtypes.iloc[j]).startswith(("object", "str")) or "decimal" in str(X.dtypes.iloc[j]):
            column = X.iloc[:, j].copy()
            column[gone] = filled.iloc[:, j][gone]
            filled.isetitem(j, column)
    return filled


def _polars(filled: Any, X: Any, masks: list[Any]) -> Any:
    pl = importlib.import_module("polars")
    pairs = zip(X.get_columns(), filled.get_columns(), masks, strict=True)
    made = {old.name: pl.when(pl.Series(gone)).then(new).otherwise(old) for old, new, gone in pairs}
    return filled.with_columns(**made)


def _arrow(filled: Any, X: Any, masks: list[Any]) -> Any:
    for j, gone in enumerate(masks):
        X = X.set_column(j, X.schema.field(j), completed(X.column(j), gone, filled.column(j)))
    return X
