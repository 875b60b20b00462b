"""HTML from text: what a user wrote is escaped here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from typing import Any

from ctem.report.axes import plain_text

__all__ = ["error_bar", "folding", "name_of", "signed", "table", "tag", "text", "times_likelier"]


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


def times_likelier(nats: float) -> str:
    """How many times as likely a row is that has so many nats more.

    >>> times_likelier(2.0), times_likelier(9.0), times_likelier(50.0), times_likelier(-1.0)
    ('7.4', '8,103', '5e+21', '0.37')
    """
    ratio = math.exp(min(nats, 700.0))
    if ratio < 1:
        return f"{ratio:.2g}"
    return f"{ratio:,.0f}" if 10 <= ratio < 1e6 else f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0e}"


def folding(value: str, longest: int = 90) -> str:
    """Text that is opened by a click where it is long, so that a table stays low; whole where it is not.

    >>> folding("short"), folding("a long reason", 9)
    ('short', '<details><summary>a long r…</summary>a long reason</details>')
    """
    return (
        text(value)
        if len(value) <= longest
        else tag("details", tag("summary", text(value, longest)) + text(value))
    )


def error_bar(value: float) -> str:
    """A standard error, to two figures.

    >>> error_bar(0.01234), error_bar(math.nan)
    ('0.012', 'unknown')
    """
    if math.isnan(value):
        return "unknown"
    return "0" if value == 0 else f"{value:.2g}" if value < 1 else f"{value:.2f}"


def table(heads: Iterable[tuple[str, str]], rows: Iterable[str], kind: str = "stack") -> str:
    """A table with a head of (name, class) and rows of cells, HTML that is already safe.

    >>> table([("rows", "n")], [tag("td", "7")], "")
    '<table><thead><tr><th class="n">rows</th></tr></thead><tbody><tr><td>7</td></tr></tbody></table>'
    """
    head = tag("tr", "".join(tag("th", name, of) for name, of in heads))
    body = "".join(tag("tr", row) for row in rows)
    return tag("table", tag("thead", head) + tag("tbody", body), kind)


def tag(name: str, inside: str, kind: str = "", **attributes: str) -> str:
    """An element around HTML that is already safe.

    >>> tag("td", "1.5", "n", title='"x"')
    '<td class="n" title="&quot;x&quot;">1.5</td>'
    """
    given = {"class": kind, **{key.replace("_", "-"): value for key, value in attributes.items()}}
    written = "".join(f' {key}="{escape(value)}"' for key, value in given.items() if value)
    return f"<{name}{written}>{inside}</{name}>"
