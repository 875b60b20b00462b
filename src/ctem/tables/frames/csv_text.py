"""CSV as it is written: cells are read as text and stay that text; what they say is found out beside it.

A table is copied cell by cell, so that 00084, 1e3, NA and numbers of forty digits come out as they went in. ``typed``
gives the same rows as numbers, dates, booleans and gaps, for a model. Needs pyarrow.
"""

from __future__ import annotations

import csv
import importlib
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["CsvWriter", "completed", "in_utf8", "read_csv", "typed"]

BLOCK = 2**22  # bytes at a time; also the longest line
NULLS = ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
         "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")  # fmt: skip
IN_UTF8 = "Text of an older encoding becomes UTF-8 by: iconv -f {encoding} -t UTF-8 {name} > new.csv"
SPELLINGS = (("True", "False"), ("TRUE", "FALSE"), ("1", "0"))
SPECIAL = '[",\r\n]|^ | $|^$'  # cells that are written in quotes
Table = Any  # pyarrow.Table; pyarrow is optional


def in_utf8(name: str, encoding: str = "ISO-8859-1") -> str:
    """How a file of another encoding becomes one that can be read.

    >>> in_utf8("my table.csv")
    "Text of an older encoding becomes UTF-8 by: iconv -f ISO-8859-1 -t UTF-8 'my table.csv' > new.csv"
    """
    file = "old.csv" if name == "standard input" else shlex.quote(name)
    return IN_UTF8.format(encoding=encoding, name=file)


def read_csv(name: str, stream: Any) -> tuple[list[str], Iterable[Any]]:
    """The names in the first line of a stream, and record batches of the cells below as text.

    >>> import io
    >>> names, batches = read_csv("demo", io.BytesIO(b"a;b\\r007;NA\\r"))
    >>> names, [batch.to_pydict() for batch in batches]
    (['a', 'b'], [{'a': ['007'], 'b': ['NA']}])
    """
    pa, pacsv = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.csv")
    line, rest = _first_line(name, stream)
    names, delimiter = _header(name, line)
    reader = pacsv.open_csv(
        rest,
        pacsv.ReadOptions(column_names=names, block_size=BLOCK),
        pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        pacsv.ConvertOptions(
            column_types={each: pa.string() for each in names}, null_values=[""], strings_can_be_null=True
        ),
    )
    return names, reader


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


class _Rest:
    """What follows some bytes that were read too many."""

    def __init__(self, start: bytes, stream: Any):
        self.start, self.stream, self.closed = start, stream, False

    def read(self, size: int = -1) -> bytes:
        if not self.start:
            return self.stream.read(size)
        size = len(self.start) if size < 0 else size
        found, self.start = self.start[:size], self.start[size:]
        return found


def _first_line(name: str, stream: Any) -> tuple[bytes, Any]:
    """The line of names, which quotes may break into several, and the stream after it; lines may end in CR alone."""
    line = stream.readline(BLOCK)
    while line.count(b'"') % 2 and len(line) < BLOCK and (more := stream.readline(BLOCK)):
        line += more
    pieces = line.rstrip(b"\r\n").split(b"\r")
    count = 1
    while b"\r".join(pieces[:count]).count(b'"') % 2 and count < len(pieces):
        count += 1
    first = b"\r".join(pieces[:count])
    if count < len(pieces):
        return first, _Rest(line[len(first) + 1 :], stream)
    if len(line) >= BLOCK:
        raise ValueError(f"{name}: expected a first line of at most {BLOCK} bytes, with the names; got more.")
    return first, stream


def _header(name: str, line: bytes) -> tuple[list[str], str]:
    """The names in the first line, and the delimiter: of comma, semicolon, tab and bar, what is most in it."""
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(
            f"{name}: expected CSV in UTF-8, Parquet or Arrow; the first line is not text. "
            + in_utf8(name, "UTF-16" if line[:2] in (b"\xff\xfe", b"\xfe\xff") else "ISO-8859-1")
        ) from None
    delimiter = max(",;\t|", key=re.sub(r'"[^"]*"', "", text).count)
    try:
        return next(csv.reader([text], delimiter=delimiter), [""]), delimiter
    except csv.Error as error:
        raise ValueError(
            f"{name}: expected a line of names; the first one cannot be read ({error})."
        ) from None


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
    times = [pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ns", "UTC")]
    for kind in (pa.int64(), pa.float64(), pa.bool_(), pa.date32(), *times):
        try:
            return trimmed.cast(kind)
        except pa.ArrowInvalid:
            continue
    return column


def _cast(name: str, column: Any, kind: Any) -> Any:
    """The column in a type; an error names the first cell that has no such value."""
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
            f"column {name!r}, row {row}: expected {_in_words(kind)}, as in fit; got {trimmed[row].as_py()!r}."
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
