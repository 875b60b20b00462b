"""What a notebook shows of answers: small tables in HTML with pictures in SVG, and nothing that is run or loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, time
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Picture", "cell_text", "spark", "table_html"]

Vector = NDArray[np.float64]
BAR = "#3f7fcf"  # to be seen on white and on black
LEFT = ' style="text-align: left"'


def spark(shares: Sequence[float] | Vector, width: int = 120, height: int = 26) -> str:
    """Bars as a small picture, the highest as high as the picture.

    >>> spark([0.5, 0.5])[:4]
    '<svg'
    """
    top, wide = max(max(shares), 1e-300), width / len(shares)
    bars = "".join(
        f'<rect x="{i * wide:.1f}" y="{height * (1 - share / top):.1f}" width="{max(wide - 0.5, 0.5):.1f}" '
        f'height="{height * share / top:.1f}"/>'
        for i, share in enumerate(shares)
    )
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg role="img" aria-label="distribution" {size} fill="{BAR}">{bars}</svg>'


class Picture(str):
    """Markup that is shown as it is.

    >>> Picture("<svg></svg>")
    '<svg></svg>'
    """


def table_html(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """A table; everything in it but pictures is escaped. Notebooks align cells to the right: columns of text go left.

    >>> table_html(["n"], [[7]])
    '<table><thead><tr><th>n</th></tr></thead><tbody><tr><td>7</td></tr></tbody></table>'
    >>> table_html(["a"], [["<b>"]])[-64:]
    '<td style="text-align: left">&lt;b&gt;</td></tr></tbody></table>'
    """
    kept = [list(row) for row in rows]
    style = ["" if all(map(_is_number, column)) else LEFT for column in zip(*kept, strict=True)] or [
        ""
    ] * len(head)
    top = "".join(f"<th{left}>{escape(name)}</th>" for name, left in zip(head, style, strict=True))
    cells = [[f"<td{left}>{_cell(cell)}</td>" for cell, left in zip(row, style, strict=True)] for row in kept]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    below = f'<caption style="caption-side: bottom">{escape(caption)}</caption>' if caption else ""
    return f"<table>{below}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _cell(value: Any) -> str:
    return str(value) if isinstance(value, Picture) else escape(str(value))


def cell_text(value: Any, spread: float = 0.0) -> str:
    """A value for people: numbers to four figures, moments to the minute, or to the day where so much is uncertain.

    Arguments:
        value: a cell.
        spread: the standard deviation of a moment, in days.

    >>> cell_text(3.14159265), cell_text(500001.0), cell_text("Oslo"), cell_text(datetime(2025, 1, 6))
    ('3.142', '500001', 'Oslo', '2025-01-06')
    >>> cell_text(datetime(2025, 1, 6, 11, 23, 43)), cell_text(datetime(2025, 1, 6, 11, 23, 43), spread=4.0)
    ('2025-01-06 11:23', '2025-01-06')
    """
    if isinstance(value, datetime):
        bare = spread >= 1 or value.time() == time()
        return f"{value:%Y-%m-%d}" if bare else f"{value:%Y-%m-%d %H:%M}"
    if value is None:
        return "missing"
    if not isinstance(value, float):
        return str(value) if str(value).strip() else f'"{value}"'
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
