"""Dtypes that may come out of a file: those that ``read_frame`` records, and no other.

A saved model says in plain JSON what its table was made of. A dtype names what a library is asked to make, and how
large a cell is, so it is checked before any library sees it; none has to be installed for that.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ctem.tables.io.cells import Dtype
from ctem.tables.io.natives import POLARS

__all__ = ["cell_type", "check_dtype"]

WIDEST = 2**16  # characters of a NumPy string
UNITS = ("s", "ms", "us", "ns")
OBJECTS = ("str", "bool", "int", "decimal", "float", "datetime", "date")
WHOLE = r"u?int(8|16|32|64)"
PANDAS = rf"{WHOLE}|U?Int(8|16|32|64)|[Ff]loat(16|32|64)|bool(ean)?|(datetime|timedelta)64\[[^\]]{{1,80}}\]"
ARROW = rf"{WHOLE}|halffloat|float|double|bool|null|date32|date64"
CELLS = {  # how the words of all libraries begin, in lower case
    "label": r"text|string|category|categorical|enum|dictionary",
    "moment": r"date|timestamp",
    "duration": r"timedelta|duration",
    "bool": r"bool",
    "number": r"u?int|float|double|halffloat|decimal",
}
TEXT = ("string", "large_string", "string_view")


def check_dtype(name: str, backend: str, dtype: Any) -> None:
    """An error unless a dtype is one that a column of this library can have had.

    >>> check_dtype("age", "pandas", {"pandas": "Int64"})
    >>> check_dtype("age", "polars", {"polars": "read_csv"})
    Traceback (most recent call last):
    ...
    ValueError: kind: column 'age' has no dtype of polars: {'polars': 'read_csv'}.
    """
    checks = {"numpy": _numpy, "pandas": _pandas, "polars": _polars, "pyarrow": _arrow}
    if not isinstance(dtype, dict) or not checks[backend](dtype):
        raise ValueError(f"kind: column {name!r} has no dtype of {backend}: {str(dtype)[:80]}.")


def cell_type(dtype: Dtype) -> str:
    """The type of the cells of a column of this dtype: "number", "bool", "moment", "duration", "label"; empty: none.

    >>> cell_type({"pandas": "Int64"}), cell_type({"arrow": "text", "value": "string"}), cell_type({"numpy": "<M8[s]"})
    ('number', 'label', 'moment')
    """
    if isinstance(dtype.get("arrow"), dict):
        return cell_type(dtype["arrow"])
    if "object" in dtype:
        word = {"str": "text", "datetime": "timestamp"}.get(str(dtype["object"]), str(dtype["object"]))
    elif "numpy" in dtype:
        kind = np.dtype(str(dtype["numpy"])).kind
        word = {"U": "text", "M": "date", "m": "duration", "b": "bool"}.get(kind, "float")
    else:
        word = next((str(dtype[key]) for key in ("pandas", "polars", "arrow") if key in dtype), "").lower()
    for found, pattern in CELLS.items():
        if re.match(pattern, word):
            return found
    return ""


def _numpy(dtype: Dtype) -> bool:
    text = dtype.get("numpy")
    if text == "object":
        return _object(dtype)
    if not isinstance(text, str) or not re.fullmatch(
        r"[<>|=]?[fiubMmU][0-9]{0,6}(\[[0-9a-zA-Z]{1,12}\])?", text
    ):
        return False
    made = np.dtype(text)
    return made.kind != "U" or made.itemsize <= 4 * WIDEST


def _pandas(dtype: Dtype) -> bool:
    kind = dtype.get("pandas")
    if kind == "arrow":
        return isinstance(dtype.get("arrow"), dict) and _arrow(dtype["arrow"])
    if kind == "object":
        return _object(dtype)
    if kind == "text":
        return dtype.get("storage") in ("python", "pyarrow") and isinstance(dtype.get("nan"), bool)
    if kind == "category":
        return isinstance(dtype.get("ordered"), bool) and _categories(dtype)
    return isinstance(kind, str) and re.fullmatch(PANDAS, kind) is not None


def _categories(dtype: Dtype) -> bool:
    if "times" in dtype:
        return dtype.get("unit") in UNITS and _all(dtype["times"], int)
    if "intervals" in dtype:
        sides = [dtype["intervals"].get(side) for side in ("left", "right")]
        fine = dtype.get("closed") in ("left", "right", "both", "neither") and all(
            _all(s, int | float) for s in sides
        )
        return fine and re.fullmatch(rf"{WHOLE}|float(16|32|64)", str(dtype.get("subtype"))) is not None
    return _all(dtype.get("categories"), str | int | float) and isinstance(dtype.get("of"), str)


def _polars(dtype: Dtype) -> bool:
    base = dtype.get("polars")
    if base == "Enum":
        return _all(dtype.get("categories"), str)
    if base in ("Datetime", "Duration"):
        return dtype.get("unit") in UNITS and isinstance(dtype.get("zone"), str | None)
    if base == "Decimal":
        return _precise(dtype, 38)
    return isinstance(base, str) and base in POLARS


def _arrow(dtype: Dtype) -> bool:
    kind = dtype.get("arrow")
    if kind == "text":
        return dtype.get("value") in TEXT
    if kind == "dictionary":
        fine = isinstance(dtype.get("ordered"), bool) and _all(dtype.get("categories"), str | int | None)
        both = f"{dtype.get('index')} {dtype.get('value')}"
        return fine and re.fullmatch(rf"{WHOLE} ({'|'.join(TEXT)}|{WHOLE})", both) is not None
    if kind in ("timestamp", "duration"):
        return dtype.get("unit") in UNITS and isinstance(dtype.get("zone"), str | None)
    if kind == "decimal":
        return dtype.get("bits", 128) in (32, 64, 128, 256) and _precise(dtype, 76)
    return isinstance(kind, str) and re.fullmatch(ARROW, kind) is not None


def _object(dtype: Dtype) -> bool:
    return dtype.get("object") in OBJECTS and isinstance(dtype.get("nan"), bool)


def _precise(dtype: Dtype, most: int) -> bool:
    precision, scale = dtype.get("precision"), dtype.get("scale")
    both = all(isinstance(value, int) and not isinstance(value, bool) for value in (precision, scale))
    return both and 1 <= precision <= most and abs(scale) <= most  # type: ignore[operator, arg-type]


def _all(values: Any, kind: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)
