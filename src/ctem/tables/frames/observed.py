"""What was observed, as it stands in the user's table: an imputed table takes from the model only its missing cells."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ctem.tables.frames.cells import Cells
from ctem.tables.frames.csv_text import completed
from ctem.tables.frames.frame import Frame, build_frame

__all__ = ["filled", "with_observed"]


def filled(own: Frame, columns: Mapping[str, Cells], X: Any) -> Any:
    """The table X, read as ``own``, with the missing cells of some columns filled in; other columns stay as they are.

    >>> from ctem.tables.frames.frame import read_frame
    >>> X = np.array([[1.0, np.nan]])
    >>> filled(own := read_frame(X), {"x1": own.columns["x0"]}, X)
    array([[1., 1.]])
    """
    gone = {name: cells.missing for name, cells in own.columns.items()}
    made = build_frame(
        own.table_type, {name: columns.get(name, cells) for name, cells in own.columns.items()}
    )
    return with_observed(made, X, gone)


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
