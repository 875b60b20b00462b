"""The page: findings as one self-contained HTML document, readable without scripts but for its explorer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from ctem.report.explorer import policy
from ctem.report.findings import Findings, Mean
from ctem.report.markup import error_bar, signed, tag, text, times_likelier
from ctem.report.notes import notes
from ctem.report.sections import sections

__all__ = ["page"]

Section = tuple[str, str, str, str]  # mark, title, words, content
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
ENDING = "Made by ctem. This file loads nothing from outside; no script runs but that of “Ask the model”."


def page(findings: Findings, origin: Mapping[str, Any], seed: int, ask: Section | None = None) -> str:
    """The document.

    Arguments:
        findings: the content.
        origin: label → value, where all this comes from.
        seed: of the choice and spread of points.
        ask: the section of ``ctem.report.explorer``, which comes after the table.

    >>> import numpy as np
    >>> from ctem import CTEM
    >>> from ctem.report.findings import examine
    >>> X = np.random.default_rng(0).normal(size=(120, 1))
    >>> page(examine(CTEM(max_steps=5, width=8, members=1, random_state=0).fit(X), X, None, 100, 0), {}, 0)[:15]
    '<!DOCTYPE html>'
    """
    table, *rest = sections(findings, origin, seed)
    parts = [table, *([] if ask is None else [ask]), *rest]
    links = "".join(tag("a", title, href=f"#{mark}") for mark, title, _, _ in parts)
    body = "".join(_section(*part) for part in parts)
    style = files("ctem.report").joinpath("style.css").read_text("utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}{policy(body)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>ctem report</title><style>{style}</style></head>\n"
        f"<body><header>{_opening(findings)}{tag('nav', links)}</header>\n"
        f"<main>{body}{tag('footer', ENDING)}</main></body></html>\n"
    )


def _section(mark: str, title: str, about: str, content: str) -> str:
    left = tag("div", tag("h2", title) + about, "about")
    return tag("section", left + tag("div", content), id=mark) + "\n"


def _opening(findings: Findings) -> str:
    scores, rows, columns = findings.scores[0], findings.rows, len(findings.columns)
    share = findings.missing / (rows * columns)
    gaps = (
        f"{findings.missing:,} cells ({share:.1%}) are missing" if findings.missing else "no cell is missing"
    )
    gain, of_rows = findings.gain
    tiles = [
        _tile(
            signed(gain.value, "+.2f"),
            gain,
            f"nats per row better than independent columns: {times_likelier(gain.value)} times likelier, on {of_rows}",
            "main",
        ),
        *([] if findings.realism is None else [_realism_tile(findings)]),
        _tile(
            signed(scores.model.value, ".2f"),
            scores.model,
            f"log-density per row, mean of {scores.model.n:,} {scores.rows}",
        ),
        _tile(f"{rows:,}", None, f"rows in {columns:,} columns; {gaps}"),
    ]
    watch = notes(findings)
    listed = "".join(tag("li", text(note)) for note in watch)
    body = tag("ul", listed) if watch else tag("p", "Nothing stands out.")
    return (
        tag("p", _eyebrow(findings), "eyebrow")
        + tag("h1", _headline(gain))
        + tag("p", _lead(findings), "lead")
        + tag("div", "".join(tiles), "tiles")
        + tag("div", tag("h2", "What to watch") + body, "watch")
    )


def _eyebrow(findings: Findings) -> str:
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return " · ".join(["ctem", "density report", *([text(findings.name, 80)] if findings.name else []), when])


def _headline(gain: Mean) -> str:
    if not gain.value > 2 * (gain.stderr if gain.n > 1 else math.inf):
        return "The columns look almost independent to this model"
    return (
        f"A typical row is {times_likelier(gain.value)} times likelier than if its columns were independent"
    )


def _lead(findings: Findings) -> str:
    kinds = [column.kind for column in findings.columns]
    parts = [f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds), key=kinds.count, reverse=True)]
    part = ""
    if findings.looked_at < findings.rows:
        part = f" Scores and pictures use {findings.looked_at:,} rows chosen at random."
    return f"Fitted on {findings.fitted_rows:,} rows. Columns: {', '.join(parts)}.{part}"


def _tile(number: str, mean: Mean | None, caption: str, kind: str = "") -> str:
    error = "" if mean is None else f" <small>± {error_bar(mean.stderr)}</small>"
    return tag("div", f"<b>{number}{error}</b>{tag('span', text(caption))}", f"tile {kind}".strip())


def _realism_tile(findings: Findings) -> str:
    assert findings.realism is not None
    ceiling = f"real rows themselves: {findings.realism.ceiling:.2f}"
    caption = f"how well {findings.n_samples:,} samples pass for real rows, 1 at best ({ceiling})"
    return _tile(f"{findings.realism.samples:.2f}", None, caption)
