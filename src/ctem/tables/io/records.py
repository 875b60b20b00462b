"""Rows as dicts name → value, as JSON has them: a table of pandas or polars, where one is installed, or of pyarrow."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

__all__ = ["from_records"]


def from_records(X: Any) -> Any:
    """A list of dicts as a table, in which a name that a row does not have is missing; anything else as it is.

    >>> from_records([{"a": 1, "b": "x"}, {"a": 2}])["b"].isna().tolist()
    [False, True]
    """
    if not isinstance(X, list | tuple) or not X or not all(isinstance(row, Mapping) for row in X):
        return X
    names = list(dict.fromkeys(name for row in X for name in row))
    columns = {name: [row.get(name) for row in X] for name in names}
    for library, table in (("pandas", "DataFrame"), ("polars", "DataFrame")):
        if importlib.util.find_spec(library) is not None:
            return getattr(importlib.import_module(library), table)(columns)
    return pa.table(columns)
