"""CSV as it is written: cells are read as text and stay that text; their values are read beside it.

A table is copied cell by cell, so that 00084, 1e3, NA and numbers of forty digits come out as they went in. ``typed``
gives the same rows as numbers, dates, booleans and gaps, for a model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ctem.tables.io.recognition import gaps_of, plain_type
from ctem.tables.io.writings import GAPS, MARKERS

__all__ = ["CsvWriter", "as_type", "completed", "typed", "typed_as"]

SPELLINGS = (("True", "False"), ("TRUE", "FALSE"), ("1", "0"))
SPECIAL = '[",\r\n]|^ | $|^$'  # cells that are written in quotes
NOUNS = (  # a cell of every pyarrow type
    (pa.types.is_integer, "a whole number"),
    (pa.types.is_floating, "a number"),
    (pa.types.is_boolean, "true or false"),
    (pa.types.is_date, "a date"),
    (pa.types.is_duration, "a number of ticks"),
    (pa.types.is_decimal, "a decimal number"),
)
Table = Any  # pyarrow.Table


def typed(table: Table, decimal: str | None = None, kinds: Mapping[str, str] | None = None) -> Table:
    """A table of text with each column as whole numbers, numbers, booleans, dates or times, if all its cells are such.

    00084 is text, and so are True and 5,0: a model reads them, and they come back as they were.

    Arguments:
        table: of text.
        decimal: a comma leaves numbers with a point as text, which a model reads.
        kinds: of some columns, as the user requested.

    >>> text = pa.table({"a": ["1", "NA"], "b": [" 1.5", "2"], "c": ["x", "3"]})
    >>> [str(field.type) for field in typed(text).schema], typed(text)["a"].to_pylist()
    (['int64', 'double', 'string'], [1, None])
    """
    pairs = zip(table.column_names, table.columns, strict=True)
    return pa.table({name: _inferred(text, decimal == ",", (kinds or {}).get(name)) for name, text in pairs})


def typed_as(table: Table, types: Mapping[str, Any]) -> Table:
    """A table of text with some columns in types that they must have; an error names the cell that has no such value.

    >>> typed_as(pa.table({"a": ["1", "NA"], "b": ["2", "3"]}), {"a": pa.int64()}).to_pydict()
    {'a': [1, None], 'b': ['2', '3']}
    """
    pairs = zip(table.column_names, table.columns, strict=True)
    return pa.table({n: as_type(n, text, types[n]) if n in types else text for n, text in pairs})


def completed(written: Any, missing: Any, filled: Any) -> Any:
    """A column as it is written, with filled cells, in its type if it has one, where a mask has a missing one.

    >>> completed(pa.array(["007", "NA"]), [False, True], pa.array([7, 8])).to_pylist()
    ['007', '8']
    """
    kind = written.type
    if pa.types.is_null(kind):
        return filled
    if str(kind) == "string_view":  # which if_else does not know
        return completed(written.cast(pa.string()), missing, filled).cast(kind)
    if str(filled.type) == "bool" and str(kind) == "string":
        for yes, no in SPELLINGS:
            if pc.any(pc.is_in(written, value_set=pa.array([yes, no]))).as_py():
                filled = pc.if_else(filled, yes, no)
                break
    return pc.if_else(pa.array(missing), filled.cast(kind), written)


class CsvWriter:
    """Tables as CSV: a line of names, then rows; only cells that need it are in quotes, and a missing cell is empty.

    >>> import io
    >>> out = io.BytesIO()
    >>> CsvWriter(out, ["n", "note"]).write_table(pa.table({"n": [1.5, None], "note": ["a, b", "c"]}))
    >>> out.getvalue().decode().splitlines()
    ['n,note', '1.5,"a, b"', ',c']
    """

    def __init__(self, stream: Any, names: list[str]):
        self.stream = stream
        stream.write((",".join(_quoted(pa.array(names, pa.string())).to_pylist()) + "\n").encode())

    def write_table(self, table: Table) -> None:
        """Write the rows of a table."""
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


def _gaps(column: Any, marks: Sequence[str]) -> Any:
    """The column with what stands for a missing cell as null, and other text as it is."""
    gone = pc.is_in(pc.utf8_trim_whitespace(column), value_set=pa.array(marks))
    return pc.if_else(gone, pa.scalar(None, pa.string()), column)


def _inferred(column: Any, comma: bool, kind: str | None) -> Any:
    """Text in the type that all its cells are of; text if there is none."""
    known = _trimmed(column)
    if known.null_count == len(known):
        return pa.chunked_array([pa.nulls(len(column))])
    points = comma and pc.any(pc.match_substring(known, ".")).as_py()
    plain = None if points else plain_type(known)
    return _gaps(column, gaps_of(kind)) if plain is None else known.cast(plain)


def _trimmed(column: Any) -> Any:
    """Text as numbers, dates and times are written in it: without blanks and plus signs, and with null for any mark."""
    text = pc.utf8_trim_whitespace(_gaps(column, MARKERS))
    return pc.replace_substring_regex(text, r"^\+(\d|\.)", r"\1")


def as_type(name: str, column: Any, kind: Any, first: int = 0) -> Any:
    """A column of text in a type; an error names the first cell that has no such value, by its row.

    >>> as_type("n", pa.array(["1.0", "NA"]), pa.int64()).to_pylist()
    [1, None]
    """
    if str(kind) in ("string", "large_string", "string_view"):
        return _gaps(column, GAPS).cast(kind)
    trimmed = _shortest(_trimmed(column), kind)
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
    if pa.types.is_integer(kind):
        return pc.replace_substring_regex(column, r"(\d)\.0*$", r"\1")
    if pa.types.is_date(kind):
        return pc.replace_substring_regex(column, r"(\d)[ T]00:00(:00(\.0*)?)?$", r"\1")
    return column


def _first_failure(column: Any, kind: Any) -> int:
    """The first row whose cell cannot be cast."""

    def fails_up_to(row: int) -> bool:
        try:
            column.slice(0, row + 1).cast(kind)
        except pa.ArrowInvalid:
            return True
        return False

    return bisect_left(range(len(column)), True, key=fails_up_to)


def _in_words(kind: Any) -> str:
    if pa.types.is_timestamp(kind):
        return f"a date and time {'with its' if kind.tz else 'without an'} offset from UTC"
    return next((words for test, words in NOUNS if test(kind)), str(kind))


def _written(name: str, column: Any) -> Any:
    """Cells as they stand in a file; an error names a column whose cells cannot."""
    try:
        text = column.cast(pa.string())
    except pa.ArrowException:
        raise ValueError(
            f"column {name!r}: expected cells that CSV can hold; got {column.type}. Write Parquet (-o NAME.parquet)."
        ) from None
    return text if pa.types.is_primitive(column.type) else _quoted(text)


def _quoted(text: Any) -> Any:
    """Cells of text, those that need it in quotes."""
    within = pc.replace_substring(text, '"', '""')
    quoted = pc.binary_join_element_wise('"', within, '"', "")
    return pc.if_else(pc.match_substring_regex(text, SPECIAL), quoted, text)
