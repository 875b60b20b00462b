"""CSV files in their dialects: what is between cells, whether the first line has names, and in which encoding."""

from __future__ import annotations

import codecs
import csv
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.csv

from ctem.tables.io import csv_rows
from ctem.tables.io.csv_rows import block, block_rows, line_of, lines

__all__ = ["Dialect", "in_utf8", "read_csv"]

DELIMITERS = ",;\t|"
PEEKED = 20  # lines that are looked at
EXCEL = re.compile(rb'(?:\xef\xbb\xbf)?"?sep=(.)"?', re.IGNORECASE)
FIRST_LINE = re.compile(rb'(?:[^"\r\n]++|"[^"]*+")*+')
NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*")
Batches = Iterator[Any]  # of pyarrow record batches


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is laid out, as the user sets it; None leaves it to the file.

    Arguments:
        header: whether the first line names the columns.
        separator: the character between cells; " " is one blank or several.
        encoding: of the text, a name that Python knows; UTF-8 when None.

    >>> Dialect(separator="\\\\t").separator
    '\\t'
    """

    header: bool | None = None
    separator: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "separator", {"\\t": "\t", "tab": "\t"}.get(self.separator or "", self.separator)
        )
        sep = self.separator
        if sep is not None and (len(sep) != 1 or not sep.isascii() or sep.isalnum() or sep in '"\r\n'):
            raise ValueError(
                f"--sep: expected one character such as ',' or ';', \\t for a tab or ' ' for blanks; got {sep!r}."
            )
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError:
            raise ValueError(
                f"--encoding: expected a name such as ISO-8859-1 or UTF-16; got {self.encoding!r}."
            ) from None

    def check_unused(self, name: str) -> None:
        """An error if a layout is set for a file that is no CSV.

        >>> Dialect().check_unused("t.parquet")
        """
        if self != Dialect():
            raise ValueError(
                f"{name}: expected a CSV file with --sep, --no-header or --encoding; it is none."
            )


def in_utf8(encoding: str = "ISO-8859-1") -> str:
    """What to do about text of another encoding.

    >>> in_utf8("UTF-16")
    'If it is text of another encoding, name it: --encoding UTF-16'
    """
    return f"If it is text of another encoding, name it: --encoding {encoding}"


def read_csv(name: str, stream: Any, dialect: Dialect | None = None) -> tuple[list[str], Batches]:
    """The names in the first line of a stream, and record batches of the cells below as text.

    >>> names, batches = read_csv("demo", io.BytesIO(b"a;b\\r007;NA\\r"))
    >>> names, [batch.to_pydict() for batch in batches]
    (['a', 'b'], [{'a': ['007'], 'b': ['NA']}])
    """
    dialect = dialect or Dialect()
    if dialect.encoding is not None:
        stream = io.BufferedReader(
            pa.transcoding_input_stream(pa.PythonFile(stream, "r"), dialect.encoding, "utf-8")
        )
    head, line, separator = block(stream), 1, dialect.separator
    first, end = _first_line(name, head)
    if excel := EXCEL.fullmatch(first):
        separator = separator or excel[1].decode("latin-1")
        head, line = head[end:], 2
        first, end = _first_line(name, head)
    text = _text(name, first)
    delimiter = separator or max(DELIMITERS, key=re.sub(r'"[^"]*"', "", text).count)
    cells = _cells(name, text, delimiter)
    if not any(cell.strip() for cell in cells):
        where = line + lines(first)
        raise ValueError(f"{name}, line {where}: expected the names of columns; the line is empty.")
    if dialect.header is False:
        head = head.removeprefix(codecs.BOM_UTF8)
    else:
        head, line = head[end:], line + lines(first) + 1
    blocks = block_rows(name, stream, delimiter, len(cells), line, head)
    start = next(blocks, (line, b""))
    if dialect.header is not False:
        _check_names(name, cells, dialect)
    _check_separator(name, text, start[1], dialect, delimiter, len(cells))
    names = [f"x{j}" for j in range(len(cells))] if dialect.header is False else cells
    if not start[1].strip(b"\r\n"):
        raise ValueError(f"{name}: expected rows below the line of names; got none.")
    return names, _batches(name, names, delimiter, start, blocks)


def _batches(
    name: str, names: list[str], delimiter: str, start: tuple[int, bytes], blocks: Iterator[tuple[int, bytes]]
) -> Batches:
    """The cells of every block as record batches."""
    for line, content in chain([start], blocks):
        if content.strip(b"\r\n"):
            yield from _parsed(name, names, delimiter, line, content).to_batches()


def _parsed(name: str, names: list[str], delimiter: str, line: int, content: bytes) -> Any:
    """A table of text; an error has the line of a row with too many cells or too few."""
    content = _single_blanks(content) if delimiter == " " else content
    try:
        return pa.csv.read_csv(
            pa.BufferReader(content),
            # one thread, which knows the numbers of rows
            pa.csv.ReadOptions(column_names=names, block_size=len(content) + 1, use_threads=False),
            pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            pa.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), null_values=[""], strings_can_be_null=True
            ),
        )
    except pa.ArrowInvalid as error:
        match = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", str(error), re.DOTALL)
        if match is None:
            raise
        number, expected, got, text = match.groups()
        where = line + line_of(content, delimiter, int(number))
        raise ValueError(
            f"{name}, line {where}: expected {expected} columns, got {got}: {text[: csv_rows.LOOKED]!r}."
        ) from None


def _single_blanks(content: bytes) -> bytes:
    """Rows whose cells have blanks between them, with one blank each, and none at the ends of a line."""
    content = re.sub(rb"(?m)^[ \t]+|[ \t]+(?=\r?$)", b"", content)
    return re.sub(rb'("(?:[^"]|"")*+")|[ \t]+', lambda match: match[1] or b" ", content)


def _first_line(name: str, content: bytes) -> tuple[bytes, int]:
    """The line of names, which quotes may break into several, and where the next line begins."""
    end = FIRST_LINE.match(content).end()  # type: ignore[union-attr]  # it matches any bytes
    ended, most = content[end : end + 1] in (b"\r", b"\n"), csv_rows.BLOCK
    if not ended and len(content) >= most:
        raise ValueError(f"{name}: expected a first line of at most {most} bytes, with the names; got more.")
    if content[end : end + 1] == b'"':
        raise ValueError(f"{name}, line 1: a quote is opened in the line of names and never closed.")
    return content[:end], end + (2 if content[end : end + 2] == b"\r\n" else 1)


def _text(name: str, line: bytes) -> str:
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(
            f"{name}: expected CSV in UTF-8, Parquet or Arrow; the first line is not text. "
            + in_utf8("UTF-16" if line[:2] in (b"\xff\xfe", b"\xfe\xff") else "ISO-8859-1")
        ) from None


def _cells(name: str, text: str, delimiter: str) -> list[str]:
    """The cells of a line."""
    text = _single_blanks(text.encode()).decode() if delimiter == " " else text
    try:
        return next(csv.reader([text], delimiter=delimiter), [""])
    except csv.Error as error:
        raise ValueError(
            f"{name}: expected a line of names; the first one cannot be read ({error})."
        ) from None


def _check_names(name: str, cells: list[str], dialect: Dialect) -> None:
    """An error where the first line is a row rather than names: a name twice, or numbers in no order alone."""
    advice = "If the first line is a row and has no names, add --no-header"
    twice = next((cell for cell in cells if cells.count(cell) > 1), None)
    if twice is not None:
        raise ValueError(
            f"{name}: expected each column name once; {twice!r} comes {cells.count(twice)} times. "
            f"Rename them. {advice}."
        )
    numbers = [float(cell) for cell in cells if NUMBER.fullmatch(cell)]
    whole = len(cells) > 1 and all(number.is_integer() for number in numbers)
    rising = all(a < b for a, b in pairwise(numbers)) and (len(numbers) > 1 or whole)
    if dialect.header or not numbers or rising:
        return  # years, and the numbers that pandas gives to columns, go up
    if len(numbers) == len(cells):
        raise ValueError(
            f"{name}: expected names in the first line; got numbers: {', '.join(map(repr, cells[:3]))}. "
            f"{advice}; if they are names, --header."
        )
    first = next(cell for cell in cells if NUMBER.fullmatch(cell))
    warnings.warn(
        f"{name}: {first!r} is taken for the name of a column. {advice}; if it is a name, --header.",
        UserWarning,
        stacklevel=2,
    )


def _check_separator(
    name: str, first: str, content: bytes, dialect: Dialect, delimiter: str, columns: int
) -> None:
    """An error where every line is one cell, of as many words each: blanks may be meant to separate cells."""
    if dialect.separator is not None or columns > 1 or delimiter in first:
        return
    below = [line.decode(errors="replace") for line in content.splitlines()[:PEEKED] if line.strip()]
    words = {len(line.split()) for line in (first, *below)}
    if below and '"' not in "".join((first, *below)) and words != {1} and len(words) == 1:
        raise ValueError(
            f"{name}: expected a comma, semicolon, tab or bar between cells; every line has {words.pop()} words. "
            "Use --sep ' ' if blanks separate cells, --sep , if a line is one cell."
        )
