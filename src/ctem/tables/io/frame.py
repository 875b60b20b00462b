"""Tables in and out: NumPy arrays, pandas, polars and pyarrow, each answered in its own type.

``read_frame`` turns a table into a ``Frame`` of plain columns and remembers in a ``TableType``, which is plain JSON,
what came in; ``build_frame`` makes a table of that type from columns: same library, names, dtypes and categories.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import narwhals as nw
import numpy as np
import pyarrow as pa

from ctem.tables.io.cells import Cells, cast_numbers, object_array, object_cells, plain_cells, whole_numbers
from ctem.tables.io.dtypes import Dtype, arrow_type, check_dtype, zone_of
from ctem.tables.io.natives import (
    read_pandas,
    read_polars,
    read_pyarrow,
    write_arrow,
    write_pandas,
    write_polars,
)
from ctem.tables.io.writings import Writing

__all__ = ["Field", "Frame", "TableType", "build_frame", "from_records", "read_frame"]

BACKENDS = ("numpy", "pandas", "polars", "pyarrow")
LONG = 2**16  # rows from which on columns are read side by side


@dataclass(frozen=True)
class Field:
    """A column of a table: the name we use, the name that came in, its dtype in plain JSON, and how text in it is read.

    >>> Field("x0", "x0", {"numpy": "<f8"}).name
    'x0'
    """

    name: str
    original: str | int
    dtype: Dtype
    written: dict[str, Any] | None = None  # a ``Writing`` as JSON; None for what is as it looks

    def as_text(self, cells: Cells) -> Cells:
        """Cells with numbers, dates and times as the text that they were in the table, if they were text."""
        return cells if self.written is None else Writing.from_json(self.written).labels(cells)

    def displayed(self, cells: Cells) -> Cells:
        """Cells whose ``to_list`` has what a reader of the table would write.

        Moments are in their zone; times of day and months, which are counted from somewhere, are text.

        >>> months = Field("due", "due", {}, Writing("month", "Jan-2015", formats=("%b-%Y",)).to_json())
        >>> months.displayed(Cells("int", np.array([24180]), np.zeros(1, bool))).to_list()
        ['Jan-2015']
        """
        if cells.type == "moment":
            return replace(cells, zone=zone_of(self.dtype))
        if self.written is None or cells.type not in ("int", "float"):
            return cells
        writing = Writing.from_json(self.written)
        return replace(cells, text=writing.text) if writing.kind in ("clock", "month") else cells


@dataclass(frozen=True)
class TableType:
    """What came in: the library, and name and dtype of every column.

    >>> table_type = read_frame(np.zeros((3, 2))).table_type
    >>> table_type.backend, table_type.names
    ('numpy', ('x0', 'x1'))
    >>> TableType.from_json(table_type.to_json()) == table_type
    True
    """

    backend: str
    fields: tuple[Field, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, as text."""
        return tuple(field.name for field in self.fields)

    def without(self, names: Collection[str]) -> TableType:
        """The same, less some columns.

        >>> read_frame(np.zeros((3, 2))).table_type.without(["x0"]).names
        ('x1',)
        """
        return replace(self, fields=tuple(field for field in self.fields if field.name not in names))

    def to_json(self) -> dict[str, Any]:
        """This record as plain JSON."""
        return {"backend": self.backend, "fields": [asdict(field) for field in self.fields]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableType:
        """The record that ``to_json`` wrote; anything else is refused."""
        try:
            backend, fields = data["backend"], tuple(Field(**field) for field in data["fields"])
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"kind: expected a backend and fields of name, original, dtype; {error!r}."
            ) from None
        if backend not in BACKENDS:
            raise ValueError(f"kind: expected a backend of {', '.join(BACKENDS)}; got {backend!r}.")
        for field in fields:
            _check_field(backend, field)
        if len({field.name for field in fields}) < len(fields) or not fields:
            raise ValueError("kind: expected at least one column, each name once.")
        return cls(backend, fields)


@dataclass(frozen=True)
class Frame:
    """A table as plain columns.

    >>> frame = read_frame(np.array([[1.0, np.nan], [2.0, 3.0]]))
    >>> len(frame), frame.columns["x1"].missing
    (2, array([ True, False]))
    """

    table_type: TableType
    columns: dict[str, Cells]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def displayed(self) -> Frame:
        """The same, every column displayed as ``Field.displayed`` has it."""
        fields = self.table_type.fields
        return replace(self, columns={f.name: f.displayed(self.columns[f.name]) for f in fields})


def from_records(X: Any) -> Any:
    """A list of dicts, as JSON has rows, as a table of pandas or polars if one is installed, else of pyarrow.

    A name that a row does not have is missing. Anything else is returned as it is.

    >>> from_records([{"a": 1, "b": "x"}, {"a": 2}])["b"].isna().tolist()
    [False, True]
    """
    if not isinstance(X, list | tuple) or not X or not all(isinstance(row, Mapping) for row in X):
        return X
    names = list(dict.fromkeys(name for row in X for name in row))
    columns = {name: [row.get(name) for row in X] for name in names}
    for library in ("pandas", "polars"):
        if importlib.util.find_spec(library) is not None:
            return importlib.import_module(library).DataFrame(columns)
    return pa.table(columns)


def read_frame(X: Any) -> Frame:
    """A table as a Frame; every cell is checked here, once.

    Taken: 2-D NumPy arrays (or lists) of numbers, booleans, text, dates or objects, pandas and polars DataFrames,
    pyarrow Tables, lists of dicts. Missing: nan, None, NaT, pd.NA, null, and what a masked array hides. Infinities are
    refused.

    >>> import pandas as pd
    >>> read_frame(pd.DataFrame({"city": ["Oslo", None]})).columns["city"].to_list()
    ['Oslo', None]
    """
    if hasattr(X, "toarray") and hasattr(X, "nnz"):
        raise TypeError(
            "X: sparse data was passed, but dense data is required. Use '.toarray()' to convert to a dense array."
        )
    X = from_records(X)
    try:
        table = nw.from_native(X, eager_only=True, allow_series=True, pass_through=True)
    except nw.exceptions.DuplicateError:
        raise _duplicates(X.columns) from None
    if isinstance(table, nw.Series):
        raise ValueError(_one_dimensional(f"1D array instead: a {type(X).__name__}"))
    frame = _read_table(table) if isinstance(table, nw.DataFrame) else _read_array(X)
    for name, cells in frame.columns.items():
        check_finite(name, cells)
    return frame


def build_frame(table_type: TableType, columns: Mapping[str, Cells]) -> Any:
    """A table of the recorded type from columns.

    >>> frame = read_frame(np.array([[1, 2], [3, 4]], dtype=np.int16))
    >>> build_frame(frame.table_type, frame.columns)
    array([[1, 2],
           [3, 4]], dtype=int16)
    """
    absent = [name for name in table_type.names if name not in columns]
    if absent:
        raise ValueError(f"columns: expected {list(table_type.names)}; {absent[0]!r} is not there.")
    cells = [field.as_text(columns[field.name]) for field in table_type.fields]
    pairs = list(zip(table_type.fields, cells, strict=True))
    if table_type.backend == "numpy":
        vectors = [_vector(f, c) for f, c in pairs]
        return np.column_stack(vectors).astype(table_type.fields[0].dtype["numpy"], copy=False)
    if table_type.backend == "polars":
        named = [write_polars(f.name, f.dtype, c).rename(str(f.original)) for f, c in pairs]
        return _library("polars").DataFrame(named)
    if table_type.backend == "pyarrow":
        made = [
            write_arrow(f.name, arrow_type(f.dtype), c, tuple(f.dtype.get("categories", ())))
            for f, c in pairs
        ]
        return pa.Table.from_arrays(made, names=[str(f.original) for f in table_type.fields])
    pd = _library("pandas")
    frame = pd.concat([write_pandas(f.name, f.dtype, c) for f, c in pairs], axis=1)
    frame.columns = pd.Index([f.original for f in table_type.fields])
    return frame


def _read_table(table: nw.DataFrame[Any]) -> Frame:
    backend = table.implementation.name.lower()
    if backend not in BACKENDS:
        raise TypeError(f"X: expected a NumPy array, pandas, polars or pyarrow table; got one of {backend}.")
    native = table.to_native()
    originals = list(native.column_names if backend == "pyarrow" else native.columns)
    _check_shape(table.shape)
    names = [_text_name(original) for original in originals]
    if len(set(names)) < len(names):
        raise _duplicates(names)
    natives = [
        native.iloc[:, j] if backend == "pandas" else native[original] for j, original in enumerate(originals)
    ]
    read = {"pandas": read_pandas, "polars": read_polars, "pyarrow": read_pyarrow}[backend]
    if len(table) < LONG:
        read_columns = list(map(read, names, natives))
    else:
        with ThreadPoolExecutor() as pool:  # text is looked up without Python's lock
            read_columns = list(pool.map(read, names, natives))
    fields, columns = [], {}
    for name, original, (dtype, cells) in zip(names, originals, read_columns, strict=True):
        fields.append(Field(name, original if isinstance(original, str) else int(original), dtype))
        columns[name] = cells
    return Frame(TableType(backend, tuple(fields)), columns)


def _read_array(X: Any) -> Frame:
    if X is None or isinstance(X, str | bytes | dict | set) or hasattr(X, "collect"):
        hint = "; collect() it first" if hasattr(X, "collect") else ""
        raise TypeError(
            f"X: expected a 2-D NumPy array, pandas, polars or pyarrow table; got {type(X).__name__}{hint}."
        )
    array = _as_array(X)
    if array.dtype.kind == "c":
        raise ValueError("X: Complex data not supported; give real and imaginary parts as two columns.")
    if array.ndim != 2:
        raise ValueError(_one_dimensional(f"{array.ndim}D array instead, shape {array.shape}"))
    _check_shape(array.shape)
    fields, columns = [], {}
    masked = np.ma.getmaskarray(X) if isinstance(X, np.ma.MaskedArray) else None
    for j in range(array.shape[1]):
        name = f"x{j}"
        dtype, columns[name] = _read_vector(name, array[:, j], None if masked is None else masked[:, j])
        fields.append(Field(name, name, dtype))
    return Frame(TableType("numpy", tuple(fields)), columns)


def _as_array(X: Any) -> np.ndarray[Any, Any]:
    if isinstance(X, np.ndarray) or not isinstance(X, list | tuple):
        return np.asarray(X)
    try:
        array = np.asarray(X)
    except ValueError:
        raise ValueError("X: expected rows of one length; got a ragged list.") from None
    mixed = array.dtype.kind == "U" and not all(isinstance(cell, str) for row in X for cell in row)
    return np.asarray(X, object) if mixed else array  # NumPy would turn numbers beside text into text


def _read_vector(
    name: str, values: np.ndarray[Any, Any], masked: np.ndarray[Any, Any] | None
) -> tuple[Dtype, Cells]:
    """A column of an array; cells that a masked array hides are missing, whatever lies under the mask."""
    if values.dtype == object:
        seen = values.copy()
        seen[slice(0) if masked is None else masked] = None
        dtype, cells = object_cells(name, seen)
        return {"numpy": "object", **dtype}, cells
    return {"numpy": values.dtype.str}, plain_cells(name, values, masked)


def _vector(field: Field, cells: Cells) -> np.ndarray[Any, Any]:
    if field.dtype["numpy"] == "object":
        return object_array(field.dtype, cells)
    dtype = np.dtype(field.dtype["numpy"])
    if dtype.kind == "U":
        return np.array([label or "" for label in cells.to_list()], dtype)
    if dtype.kind in "Mm":
        counts = whole_numbers(cells, np.dtype(np.int64)).view(f"{dtype.kind}8[{cells.unit}]")
        return np.where(cells.missing, np.array("NaT", dtype), counts.astype(dtype))
    return cast_numbers(field.name, cells, dtype)


def _check_shape(shape: tuple[int, ...]) -> None:
    for count, word in ((shape[1], "feature"), (shape[0], "sample")):
        if count == 0:
            raise ValueError(
                f"X: Found array with 0 {word}(s) (shape={tuple(shape)}) while a minimum of 1 is required."
            )


def check_finite(name: str, cells: Cells) -> None:
    """Refuse infinity, by its column and row.

    >>> check_finite("n", Cells("float", np.array([1.0, np.nan]), np.array([False, True])))
    """
    if cells.type != "float":
        return
    bad = np.isinf(cells.values) & ~cells.missing
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"column {name!r}, row {row}: expected a finite number or NaN (missing); got infinity "
            f"({cells.values[row]}). Drop the row or mark the cell missing."
        )


def _check_field(backend: str, field: Field) -> None:
    plain = isinstance(field.name, str) and type(field.original) in (str, int)
    if not plain or str(field.original) != field.name:
        raise ValueError(f"kind: expected a text name, as it was; got {field.name!r}, {field.original!r}.")
    check_dtype(field.name, backend, field.dtype)
    if field.written is not None:
        Writing.from_json(field.written)


def _text_name(original: Any) -> str:
    if isinstance(original, str | int | np.integer) and not isinstance(original, bool):
        return str(original)
    raise TypeError(
        f"X: expected column names of text or whole numbers; got {original!r}. Rename the columns."
    )


def _duplicates(names: Iterable[Any]) -> ValueError:
    counts = Counter(map(str, names))
    name, times = counts.most_common(1)[0]
    return ValueError(f"X: expected each column name once; {name!r} comes {times} times. Rename them.")


def _one_dimensional(what: str) -> str:
    return (
        f"X: Expected 2D array, got {what}. Reshape your data either using array.reshape(-1, 1) if it has a single "
        "column or array.reshape(1, -1) if it is a single row."
    )


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(
            f"the table that was fitted came from {name}; install {name} to get one back."
        ) from None
