"""CSV files as blocks of whole rows, each beside the line on which it begins; a quote that is left open is an error.

A quote begins a cell, or is part of its text: ``5" pipe`` is a cell. Within a cell in quotes a quote is doubled. Rows
are cut here, in the thread that asks for them, so that no reader in the background is left alone when a command ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

__all__ = ["block", "block_rows", "cell_class", "line_of", "lines"]

BLOCK = 2**22  # bytes at a time; also the longest row
BLANKS = b" \t"
LOOKED = 40  # characters of a cell that a message shows
ROWS = 3  # lines within one cell that all look like rows


def cell_class(delimiter: str) -> bytes:
    """What ends a cell within a row, as the inside of a class of a regular expression; a blank stands for any blanks.

    >>> cell_class(";"), cell_class(" ")
    (b';', b' \\t')
    """
    return BLANKS if delimiter == " " else re.escape(delimiter).encode()


def lines(content: bytes) -> int:
    """How many lines end in the content: by LF, CR LF or CR.

    >>> lines(b"a\\nb\\r\\nc\\rd")
    3
    """
    return content.count(b"\n") + content.count(b"\r") - content.count(b"\r\n")


def line_of(content: bytes, delimiter: str, row: int) -> int:
    """How many lines are before the row of this number, from 1; an empty line is no row.

    >>> line_of(b'a,"x\\ny"\\n\\nb,5"\\n', ",", 2)
    3
    """
    ends = cell_class(delimiter)
    cell = rb'(?:"(?:[^"]|"")*+"[^' + ends + rb"\r\n]*+|[^" + ends + rb"\r\n]*+)"
    start, seen = 0, 0
    for cell_end in re.finditer(cell + rb"(?:[" + ends + rb"]|(\r\n|\r|\n|\Z))", content):
        if cell_end[1] is None:
            continue
        seen += content[start : cell_end.start(1)] != b""
        if seen == row:
            return lines(content[:start])
        start = cell_end.end()
    raise ValueError(f"row: expected at most {seen}; got {row}.")


def block(stream: Any) -> bytes:
    """The next ``BLOCK`` bytes of a stream, and one more where CR LF would be cut in two.

    >>> import io
    >>> block(io.BytesIO(b"a,b\\r\\n"))
    b'a,b\\r\\n'
    """
    content: bytes = stream.read(BLOCK)
    return content + stream.read(1) if content.endswith(b"\r") else content


def block_rows(
    name: str, stream: Any, delimiter: str, columns: int, line: int, held: bytes = b""
) -> Iterator[tuple[int, bytes]]:
    """The rows of a stream in blocks of about ``BLOCK`` bytes, each with the number of its first line.

    Arguments:
        name: of the file, for messages.
        stream: of bytes.
        delimiter: between cells; " " is one blank or several.
        columns: of a row.
        line: of the file on which the rows begin.
        held: what was read of the stream already, from the beginning of a row.

    >>> import io
    >>> list(block_rows("demo", io.BytesIO(b'1,"x\\ny"\\n2,z\\n'), ",", 2, line=2))
    [(2, b'1,"x\\ny"\\n2,z\\n')]
    >>> list(block_rows("demo", io.BytesIO(b'1,x\\n2,"y\\n3,z\\n'), ",", 2, line=2))
    Traceback (most recent call last):
    ...
    ValueError: demo, line 3: a quote is opened and never closed: '"y\\n3,z\\n'. ...
    """
    quotes, ended = _Quotes(name, delimiter, columns), False
    while not ended:
        more = block(stream)
        ended = not more
        content = held + more
        end = quotes.end_of_rows(content, line, ended)
        if len(content) - end > BLOCK:
            raise ValueError(
                f"{name}, line {line + lines(content[:end])}: expected a row of at most {BLOCK} bytes; got more. "
                "Is a quote left open?"
            )
        whole, held = content[:end], content[end:]
        if whole:
            yield line, whole
        line += lines(whole)


class _Quotes:
    """Cells in quotes: where they begin and end, and what cannot be meant."""

    def __init__(self, name: str, delimiter: str, columns: int):
        ends = cell_class(delimiter)
        self.name, self.columns = name, columns
        self.delimiter = re.compile(
            b"[" + ends + b"]+" if delimiter == " " else re.escape(delimiter).encode()
        )
        after = b"" if delimiter == " " else b" *+"
        plain = rb'"[^"\r\n]*+(?:""[^"\r\n]*+)*+"' + after
        text = rb'[^"' + ends + rb"\r\n][^" + ends + rb"\r\n]*+"
        self.cells = re.compile(b"(?:(?:" + plain + b"|" + text + b")?+[" + ends + rb"\r\n])*+")
        self.quoted = re.compile(rb'"[^"]*+(?:""[^"]*+)*+"')
        self.after = re.compile(after + rb"(?:[" + ends + rb"\r\n]|\Z)")

    def end_of_rows(self, content: bytes, line: int, ended: bool) -> int:
        """Where the last whole row of the content ends; all of it is whole at the end of a file."""
        spans, opened = self._spans(content, line, ended)
        if ended:
            if opened is not None:
                what = "a quote is opened and never closed"
                self._refuse(content, line, opened, len(content), what, "Close it, or remove it")
            return len(content)
        before = len(content) if opened is None else opened
        for start, end in (*reversed(spans), (0, 0)):
            if last := _last_line(content, end, before):
                return last
            before = start
        return 0

    def _spans(self, content: bytes, line: int, ended: bool) -> tuple[list[tuple[int, int]], int | None]:
        """The cells in quotes that hold line ends, and where a quote is opened that is not closed yet.

        All cells that are not in quotes, or in quotes on one line, are passed in one go.
        """
        spans, at = list[tuple[int, int]](), 0
        while b'"' in content:
            passed = self.cells.match(content, at)
            start = passed.end() if passed else at
            if content[start : start + 1] != b'"':
                return spans, None  # the end, or a cell that is not
            cell = self.quoted.match(content, start)
            if cell is None or (cell.end() == len(content) and not ended):
                return spans, start
            at = cell.end()
            self._check(content, line, start, at)
            spans.append((start, at))
        return spans, None

    def _check(self, content: bytes, line: int, start: int, end: int) -> None:
        """An error for text behind a closing quote, and for a cell that swallows rows."""
        if not self.after.match(content, end):
            what = "text follows a cell in quotes"
            self._refuse(content, line, start, end + LOOKED, what, "Within quotes, a quote is doubled")
        inside = content[start:end].splitlines()[1:-1]
        if len(inside) >= ROWS and self.columns > 1 and all(map(self._is_row, inside)):
            what = f"a quote is closed {len(inside) + 1} lines later, and the lines between look like rows"
            advice = "Remove the quote; if the cell is meant, read the file by pandas and fit in Python"
            self._refuse(content, line, start, end, what, advice)

    def _is_row(self, text: bytes) -> bool:
        return len(self.delimiter.findall(text.strip())) == self.columns - 1

    def _refuse(self, content: bytes, line: int, start: int, end: int, what: str, advice: str) -> None:
        text = content[start : min(end, start + LOOKED)].decode(errors="replace")
        raise ValueError(f"{self.name}, line {line + lines(content[:start])}: {what}: {text!r}. {advice}.")


def _last_line(content: bytes, start: int, end: int) -> int:
    """Where the last line within a part of the content ends; 0 if none does."""
    return 1 + max(content.rfind(b"\n", start, end), content.rfind(b"\r", start, end))
