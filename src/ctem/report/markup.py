"""HTML from text: what a user wrote is escaped here and nowhere else."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from ctem.report.axes import plain_text

__all__ = ["error_bar", "name_of", "signed", "tag", "text"]


def text(value: Any, longest: int = 400) -> str:
    """Any value as escaped text on one line.

    >>> text("<script>")
    '&lt;script&gt;'
    """
    return escape(plain_text(value, longest))


def name_of(name: str) -> str:
    """A user's word as escaped text that keeps its own direction and may break after an underscore.

    >>> name_of("a & b_c")
    '<bdi>a &amp; b_<wbr>c</bdi>'
    """
    return f"<bdi>{text(name, 60).replace('_', '_<wbr>')}</bdi>"


def signed(value: float, form: str) -> str:
    """A number with a true minus sign, and none before a zero.

    >>> signed(-1.25, ".1f"), signed(-0.001, ".1f")
    ('−1.2', '0.0')
    """
    written = format(value, form)
    return format(0.0, form) if float(written) == 0 else written.replace("-", "−")


def error_bar(value: float) -> str:
    """A standard error, to two figures.

    >>> error_bar(0.01234), error_bar(math.nan)
    ('0.012', 'unknown')
    """
    if math.isnan(value):
        return "unknown"
    return "0" if value == 0 else f"{value:.2g}" if value < 1 else f"{value:.2f}"


def tag(name: str, inside: str, kind: str = "", **attributes: str) -> str:
    """An element around HTML that is already safe.

    >>> tag("td", "1.5", "n", title='"x"')
    '<td class="n" title="&quot;x&quot;">1.5</td>'
    """
    given = {"class": kind, **{key.replace("_", "-"): value for key, value in attributes.items()}}
    written = "".join(f' {key}="{escape(value)}"' for key, value in given.items() if value)
    return f"<{name}{written}>{inside}</{name}>"
