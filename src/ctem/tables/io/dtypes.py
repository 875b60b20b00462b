"""Dtypes of columns as plain JSON, which a saved model keeps: what a library has, and the Arrow type that holds it.

A dtype out of a file names what a library is asked to make, and how large a cell is, so it is checked before any
library sees it: its words are those that ``read_frame`` records, and no other.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["Dtype", "arrow_dtype", "arrow_type", "cell_type", "check_dtype", "zone_of"]

Dtype = dict[str, Any]

WIDEST = 2**16  # characters of a NumPy string
WORDS = {  # what a column of each library may be, by the first word of its dtype
    "numpy": r"object|[<>|=]?[fiubMmU][0-9]{0,6}(\[[0-9a-zA-Z]{1,12}\])?",
    "pandas": r"object|text|category|arrow|bool(ean)?|[uU]?[iI]nt(8|16|32|64)|[fF]loat(16|32|64)|"
    r"(datetime|timedelta)64\[[^\]]{1,80}\]",
    "polars": r"U?Int(8|16|32|64|128)|Float(32|64)|Boolean|String|Categorical|Enum|Date|Datetime|Duration|Decimal|"
    r"Time|Null",
    "arrow": r"text|dictionary|decimal|timestamp|duration|u?int(8|16|32|64)|halffloat|float|double|bool|null|"
    r"date32|date64|time(32\[m?s\]|64\[[un]s\])",
}
OBJECTS = {
    "str": pa.string(),
    "bool": pa.bool_(),
    "int": pa.int64(),
    "decimal": pa.float64(),
    "float": pa.float64(),
    "datetime": pa.timestamp("us"),
    "date": pa.date32(),
    "time": pa.time64("us"),
}
TEXT = ("string", "large_string", "string_view")
PLAIN = {  # words of pandas, polars and Arrow in lower case, other than those of Arrow
    **{"boolean": "bool", "float16": "halffloat", "float32": "float", "float64": "double", "date": "date32"},
    **dict.fromkeys(("text", "category", "categorical", "enum", "int128", "uint128"), "string"),
    "time": "time64[ns]",
}


def arrow_type(dtype: Dtype) -> Any:
    """The pyarrow type of the cells of a column; labels are text, unless an Arrow table lists them.

    >>> arrow_type({"pandas": "Int64"}), arrow_type({"polars": "Datetime", "unit": "us", "zone": "Asia/Tokyo"})
    (DataType(int64), TimestampType(timestamp[us, tz=Asia/Tokyo]))
    """
    if isinstance(dtype.get("arrow"), dict):
        return arrow_type(dtype["arrow"])
    if "object" in dtype:
        return OBJECTS[dtype["object"]]
    if "numpy" in dtype:
        return _numpy_type(np.dtype(dtype["numpy"]))
    word = next(dtype[key] for key in ("pandas", "polars", "arrow") if key in dtype)
    times = re.fullmatch(r"(datetime|timedelta)64\[(\w+)(?:, (.+))?\]", word)
    what, unit, zone = times.groups() if times else (word.lower(), dtype.get("unit"), dtype.get("zone"))
    if what in ("datetime", "timestamp"):
        return pa.timestamp(unit, zone)
    if what in ("timedelta", "duration"):
        return pa.duration(unit)
    if what == "decimal":
        return getattr(pa, f"decimal{dtype.get('bits', 128)}")(dtype["precision"], dtype["scale"])
    if word == "dictionary":
        index, value = (pa.type_for_alias(dtype[part]) for part in ("index", "value"))
        return pa.dictionary(index, value, dtype["ordered"])
    return pa.type_for_alias(dtype["value"] if word == "text" and "value" in dtype else PLAIN.get(what, what))


def _numpy_type(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "Mm":
        unit = np.datetime_data(dtype)[0]
        fine = unit if unit in ("s", "ms", "us", "ns") else "s"
        return pa.duration(fine) if dtype.kind == "m" else pa.date32() if unit == "D" else pa.timestamp(fine)
    if dtype.kind == "f":
        return pa.float64()  # which long doubles are read as, too
    return pa.string() if dtype.kind == "U" else pa.from_numpy_dtype(dtype.newbyteorder("="))


def arrow_dtype(kind: Any, labels: list[Any]) -> Dtype:
    """The type of a pyarrow column as plain JSON.

    Arguments:
        labels: of a dictionary.

    >>> arrow_dtype(pa.timestamp("s", "UTC"), [])
    {'arrow': 'timestamp', 'unit': 's', 'zone': 'UTC'}
    """
    types = pa.types
    if types.is_dictionary(kind):
        spec = {"arrow": "dictionary", "value": str(kind.value_type), "index": str(kind.index_type)}
        return {**spec, "categories": labels, "ordered": bool(kind.ordered)}
    if str(kind) in TEXT:
        return {"arrow": "text", "value": str(kind)}
    if types.is_timestamp(kind):
        return {"arrow": "timestamp", "unit": kind.unit, "zone": kind.tz}
    if types.is_duration(kind):
        return {"arrow": "duration", "unit": kind.unit}
    if types.is_decimal(kind):
        return {"arrow": "decimal", "precision": kind.precision, "scale": kind.scale, "bits": kind.bit_width}
    return {"arrow": re.sub(r"\[(day|ms)\]", "", str(kind)) if types.is_date(kind) else str(kind)}


def zone_of(dtype: Dtype) -> str:
    """The zone that a column's times are in; empty for times without one and for what is no time.

    >>> zone_of({"pandas": "datetime64[us, Asia/Tokyo]"}), zone_of({"arrow": "timestamp", "unit": "s", "zone": None})
    ('Asia/Tokyo', '')
    """
    return getattr(arrow_type(dtype), "tz", None) or ""


def cell_type(dtype: Dtype) -> str:
    """The type of the cells of a column of this dtype: "number", "bool", "moment", "duration" or "label".

    >>> cell_type({"pandas": "Int64"}), cell_type({"arrow": "text", "value": "string"}), cell_type({"numpy": "<M8[s]"})
    ('number', 'label', 'moment')
    """
    kind, types = arrow_type(dtype), pa.types
    if types.is_date(kind) or types.is_timestamp(kind):
        return "moment"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    return "bool" if types.is_boolean(kind) else "duration" if types.is_duration(kind) else "label"


def check_dtype(name: str, backend: str, dtype: Any) -> None:
    """An error unless a dtype is one that a column of this library can have had.

    >>> check_dtype("age", "pandas", {"pandas": "Int64"})
    >>> check_dtype("age", "polars", {"polars": "read_csv"})
    Traceback (most recent call last):
    ...
    ValueError: kind: column 'age' has no dtype of polars: {'polars': 'read_csv'}.
    """
    try:
        fine = _is_known("arrow" if backend == "pyarrow" else backend, dtype)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, pa.ArrowException):
        fine = False
    if not fine:
        raise ValueError(f"kind: column {name!r} has no dtype of {backend}: {str(dtype)[:80]}.")


def _is_known(library: str, dtype: Dtype) -> bool:
    """Whether a dtype has the words of a library, and all that goes with them; where it has not, some checks raise."""
    word = dtype[library]
    if not re.fullmatch(WORDS[library], word) or not isinstance(dtype.get("zone"), str | None):
        return False
    if library == "numpy" and word != "object":
        return np.dtype(word).kind != "U" or np.dtype(word).itemsize <= 4 * WIDEST
    if (library, word) == ("pandas", "arrow"):
        return _is_known("arrow", dtype["arrow"])
    if word == "object":
        return dtype["object"] in OBJECTS and isinstance(dtype["nan"], bool)
    if (library, word) == ("pandas", "text"):
        return dtype["storage"] in ("python", "pyarrow") and isinstance(dtype["nan"], bool)
    if word in ("category", "dictionary") and not isinstance(dtype["ordered"], bool):
        return False
    if word == "category":
        return _lists(dtype)
    if word == "dictionary":
        types = f"{dtype['index']} {dtype['value']}"
        fine = re.fullmatch(rf"u?int\d+ ({'|'.join(TEXT)}|u?int\d+)", types)
        return bool(fine) and _all(dtype["categories"], str | int | None)
    if (library, word) == ("arrow", "text"):
        return dtype["value"] in TEXT
    return (word != "Enum" or _all(dtype["categories"], str)) and arrow_type(dtype) is not None


def _lists(dtype: Dtype) -> bool:
    """Whether the categories of a pandas column are there."""
    if "times" in dtype:
        return dtype["unit"] in ("s", "ms", "us", "ns") and _all(dtype["times"], int)
    if "intervals" in dtype:
        numbers = all(_all(dtype["intervals"][side], int | float) for side in ("left", "right"))
        closed = dtype["closed"] in ("left", "right", "both", "neither")
        return numbers and closed and np.dtype(dtype["subtype"]).kind in "iuf"
    return _all(dtype["categories"], str | int | float) and isinstance(dtype["of"], str)


def _all(values: Any, kind: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)
