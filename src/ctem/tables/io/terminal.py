"""What reaches a terminal: lines that it displays and does not obey.

Names of columns, paths and the provenance of a model come from others. What is not printable in them (control and
escape characters, marks that turn the direction of writing) is shown as Python writes it in a string: \\x1b, \\u202e.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["PrintableStream", "note", "print_columns", "printable"]


def printable(text: Any) -> str:
    """Text that a terminal shows and does not obey.

    >>> print(printable("age\\x1b[2J\\u202e"))
    age\\x1b[2J\\u202e
    """
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in str(text))


def note(text: str) -> None:
    """A line on standard error, if there is one.

    >>> from contextlib import redirect_stderr
    >>> with redirect_stderr(sys.stdout):
    ...     note("done\\n")
    ctem: done\\n
    """
    if sys.stderr is not None:
        print(f"ctem: {printable(text)}", file=sys.stderr)


def print_columns(columns: Iterable[Mapping[str, Any]], title: str) -> None:
    """A table of columns with their kinds and the reasons for them, on standard output.

    Of a fitted model, also how many nats the other columns give about each on unseen rows.

    >>> print_columns([{"name": "age", "kind": "real", "reason": "71 values"}], "344 rows")
             344 rows
    ┏━━━━━━━━┳━━━━━━┳━━━━━━━━━━━┓
    ┃ column ┃ kind ┃ why       ┃
    ┡━━━━━━━━╇━━━━━━╇━━━━━━━━━━━┩
    │ age    │ real │ 71 values │
    └────────┴──────┴───────────┘
    """
    columns = list(columns)
    known = any(column.get("nats_from_others") is not None for column in columns)
    table = Table("column", "kind", "why", title=escape(printable(title)))
    if known:
        table.add_column("from others", justify="right")
    for column in columns:
        words = [column[key] for key in ("name", "kind", "reason")]
        table.add_row(
            *(escape(printable(word)) for word in words),
            *([_nats(column["nats_from_others"])] if known else []),
        )
    Console().print(table)


def _nats(value: float | None) -> str:
    """Nats in a table: 0 is 0, and nothing stands for what is not known.

    >>> _nats(0.0), _nats(0.1234), _nats(None)
    ('0', '0.12', '')
    """
    return "" if value is None else f"{value:.2f}" if value else "0"


class PrintableStream:
    """A stream of bytes to a terminal, which shows the lines and obeys none: what is not printable is written out.

    >>> import io
    >>> out = io.BytesIO()
    >>> PrintableStream(out).write(b"a,b\\nx,\\x1b[2J\\n")
    11
    >>> print(out.getvalue().decode(), end="")
    a,b
    x,\\x1b[2J
    """

    def __init__(self, stream: Any):
        self.stream = stream

    def write(self, content: bytes) -> int:
        """Write lines."""
        lines = content.decode("utf8", "backslashreplace").split("\n")
        self.stream.write("\n".join(map(printable, lines)).encode("utf8", "backslashreplace"))
        return len(content)

    def flush(self) -> None:
        """Send what is waiting."""
        self.stream.flush()
