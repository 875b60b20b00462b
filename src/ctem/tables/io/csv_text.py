"""CSV as it is written: cells are read as text and stay that text; what they say is found out beside it.

A table is copied cell by cell, so that 00084, 1e3, NA and numbers of forty digits come out as they went in. ``typed``
gives the same rows as numbers, dates, booleans and gaps, for a model. Needs pyarrow.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ctem.tables.io.recognition import written_dates

__all__ = ["CsvWriter", "as_type", "completed", "typed"]

NULLS = ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
         "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")  # fmt: skip
SPELLINGS = (("True", "False"), ("TRUE", "FALSE"), ("1", "0"))
SPECIAL = '[",\r\n]|^ | $|^$'  # cells that are written in quotes
Table = Any  # pyarrow.Table; pyarrow is optional


def typed(table: Table, types: Mapping[str, Any] | None = None, decimal: str | None = None) -> Table:
    """A table of text with each column as whole numbers, numbers, booleans, dates or times, if all its cells are such.

    Arguments:
        table: of text.
        types: pyarrow types that columns must have; other columns stay text. Read off the cells when None.
        decimal: a comma leaves numbers with a point as text, which a model reads.

    >>> pa = importlib.import_module("pyarrow")
    >>> text = pa.table({"a": ["1", "NA"], "b": [" 1.5", "2"], "c": ["x", "3"]})
    >>> [str(field.type) for field in typed(text).schema], typed(text)["a"].to_pylist()
    (['int64', 'double', 'string'], [1, None])
    """
    for i, name in enumerate(table.column_names):
        cells = _gaps(table.column(i))
        made = _inferred(cells, decimal == ",") if types is None else _cast(name, cells, types.get(name))
        table = table.set_column(i, name, made)
    return table


def completed(written: Any, missing: Any, filled: Any) -> Any:
    """A column as it is written, with filled cells, in its type if it has one, where a mask says that one is missing.

    >>> pa = importlib.import_module("pyarrow")
    >>> completed(pa.array(["007", "NA"]), [False, True], pa.array([7, 8])).to_pylist()
    ['007', '8']
    """
    pa, pc = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.compute")
    kind = written.type
    if pa.types.is_null(kind):
        return filled
    if str(kind) == "string_view":  # which if_else does not know
        return completed(written.cast(pa.string()), missing, filled).cast(kind)
    spelled = str(filled.type) == "bool" and str(kind) == "string"
    made = _spelled(pc, written, filled) if spelled else filled.cast(kind)
    return pc.if_else(pa.array(missing), made, written)


class CsvWriter:
    """Tables as CSV: a line of names, then rows; only cells that need it are in quotes, and a missing cell is empty.

    >>> import io
    >>> out, pa = io.BytesIO(), importlib.import_module("pyarrow")
    >>> CsvWriter(out, ["n", "say"]).write_table(pa.table({"n": [1.5, None], "say": ["a, b", "c"]}))
    >>> out.getvalue().decode().splitlines()
    ['n,say', '1.5,"a, b"', ',c']
    """

    def __init__(self, stream: Any, names: list[str]):
        self.stream = stream
        pa = importlib.import_module("pyarrow")
        stream.write((",".join(_quoted(pa.array(names, pa.string())).to_pylist()) + "\n").encode())

    def write_table(self, table: Table) -> None:
        """Write the rows of a table."""
        pc = importlib.import_module("pyarrow.compute")
        for batch in table.to_batches():
            columns = [_written(name, batch[name]) for name in batch.schema.names]
            lines = pc.binary_join_element_wise(
                *columns, ",", null_handling="replace", null_replacement=""
            ).to_pylist()
            if len(columns) == 1:
                lines = [line or '""' for line in lines]  # an empty line is no row
            self.stream.write(("\n".join(lines) + "\n").encode() if lines else b"")

    def close(self) -> None:
        """Nothing is left to write."""


def _gaps(column: Any) -> Any:
    """The column with what stands for a missing cell as null, and other text as it is."""
    pa, pc = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.compute")
    gone = pc.is_in(pc.utf8_trim_whitespace(column), value_set=pa.array(NULLS))
    return pc.if_else(gone, pa.scalar(None, pa.string()), column)


def _inferred(column: Any, comma: bool) -> Any:
    """The first type of which every cell is one; text if there is none.

    00084 is text, and so are True and 5,0: a model reads them, and they come back as they were.
    """
    pa, pc = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.compute")
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column))])
    trimmed = pc.utf8_trim_whitespace(column)
    codes = pc.any(pc.match_substring_regex(trimmed, r"^[+-]?0\d+$")).as_py()
    spelled = any(pc.all(pc.is_in(trimmed.drop_null(), pa.array(pair))).as_py() for pair in SPELLINGS[:2])
    if codes or spelled or (comma and pc.any(pc.match_substring(trimmed, ".")).as_py()):
        return column
    times = [pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("s", "ms", "us", "ns")]
    for kind in (pa.int64(), pa.uint64(), pa.float64(), pa.bool_(), pa.date32(), *times):
        try:
            made = trimmed.cast(kind)
        except pa.ArrowInvalid:
            continue
        if pa.types.is_floating(kind):
            return column if _merged(trimmed, made) else made
        return column if pa.types.is_temporal(kind) and _other_notation(trimmed, made) else made
    return column


def _merged(text: Any, numbers: Any) -> bool:
    """Whether whole numbers that differ are one float64: those of so many digits name something, and stay text."""
    pc = importlib.import_module("pyarrow.compute")
    whole = pc.all(pc.match_substring_regex(text, r"^[+-]?\d{16,}$")).as_py()
    return bool(whole) and pc.count_distinct(numbers).as_py() < pc.count_distinct(text).as_py()


def _other_notation(text: Any, moments: Any) -> bool:
    """Whether moments would be written otherwise than they were, in a notation that a model keeps: they stay text."""
    pa, pc = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.compute")
    if pc.all(pc.equal(moments.cast(pa.string()), text)).as_py():
        return False
    known = text.drop_null().unique().to_pylist()
    return written_dates(known) is not None


def as_type(name: str, column: Any, kind: Any, first: int = 0) -> Any:
    """A column of text in a type; an error names the first cell that has no such value, by its row.

    >>> pa = importlib.import_module("pyarrow")
    >>> as_type("n", pa.array(["1.0", "NA"]), pa.int64()).to_pylist()
    [1, None]
    """
    return _cast(name, _gaps(column), kind, first)


def _cast(name: str, column: Any, kind: Any, first: int = 0) -> Any:
    pa = importlib.import_module("pyarrow")
    if kind is None or str(kind) in ("string", "large_string", "string_view"):
        return column if kind is None else column.cast(kind)
    trimmed = _shortest(importlib.import_module("pyarrow.compute").utf8_trim_whitespace(column), kind)
    step = pa.int64() if pa.types.is_duration(kind) else kind  # text has no cast to durations of its own
    try:
        return trimmed.cast(step).cast(kind)
    except pa.ArrowInvalid:
        row = _first_failure(trimmed, step)
        raise ValueError(
            f"column {name!r}, row {first + row}: expected {_in_words(kind)}, as in fit; got {trimmed[row].as_py()!r}."
        ) from None


def _shortest(column: Any, kind: Any) -> Any:
    """Whole numbers without their .0, as pandas writes them beside gaps, and dates without a midnight."""
    types, pc = importlib.import_module("pyarrow.types"), importlib.import_module("pyarrow.compute")
    if types.is_integer(kind):
        return pc.replace_substring_regex(column, r"(\d)\.0*$", r"\1")
    if types.is_date(kind):
        return pc.replace_substring_regex(column, r"(\d)[ T]00:00(:00(\.0*)?)?$", r"\1")
    return column


def _first_failure(column: Any, kind: Any) -> int:
    """The first row whose cell cannot be cast, by halving."""
    pa, low, high = importlib.import_module("pyarrow"), 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            column.slice(low, middle - low).cast(kind)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def _in_words(kind: Any) -> str:
    types = importlib.import_module("pyarrow.types")
    tests = {
        "a whole number": types.is_integer,
        "a number": types.is_floating,
        "true or false": types.is_boolean,
    }
    tests |= {
        "a date": types.is_date,
        "a number of ticks": types.is_duration,
        "a decimal number": types.is_decimal,
    }
    if types.is_timestamp(kind):
        return "a date and time" + (" with its offset from UTC" if kind.tz else " without an offset from UTC")
    return next((words for words, test in tests.items() if test(kind)), str(kind))


def _spelled(pc: Any, written: Any, filled: Any) -> Any:
    """Booleans as a column writes them."""
    pa = importlib.import_module("pyarrow")
    for yes, no in SPELLINGS:
        if pc.any(pc.is_in(written, value_set=pa.array([yes, no]))).as_py():
            return pc.if_else(filled, yes, no)
    return filled.cast(written.type)


def _written(name: str, column: Any) -> Any:
    """Cells as they stand in a file; an error names a column whose cells cannot."""
    pa = importlib.import_module("pyarrow")
    try:
        text = column.cast(pa.string())
    except pa.ArrowException:
        raise ValueError(
            f"column {name!r}: expected cells that CSV can hold; got {column.type}. Write Parquet (-o NAME.parquet)."
        ) from None
    return text if pa.types.is_primitive(column.type) else _quoted(text)


def _quoted(text: Any) -> Any:
    """Cells of text, those that need it in quotes."""
    pc = importlib.import_module("pyarrow.compute")
    within = pc.replace_substring(text, '"', '""')
    quoted = pc.binary_join_element_wise('"', within, '"', "")
    return pc.if_else(pc.match_substring_regex(text, SPECIAL), quoted, text)
