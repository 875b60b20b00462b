"""What a notebook shows of a fitted model: the kinds of its columns, how it was fitted, and how good it is."""

from __future__ import annotations

from html import escape
from typing import Any

from ctem.tables.answers.markup import Picture, spark, table_html

__all__ = ["model_html"]

MOST = 30  # columns whose distribution is drawn
FEW = 8  # values of a column that are drawn as bars of their own


def model_html(model: Any) -> str:
    """What a notebook shows of a fitted model.

    >>> import numpy as np
    >>> from ctem import CTEM
    >>> model_html(CTEM(max_steps=2, width=8, members=1, random_state=0).fit(np.arange(100.0)[:, None]))[:14]
    '<p><b>CTEM</b>'
    """
    return _summary(model) + table_html(("column", "kind", "expected", "why"), _columns(model))


def _summary(model: Any) -> str:
    """One paragraph: what was fitted, for how long, and how it does on rows that it had not seen."""
    facts = model.describe()
    fit = f"fitted on {facts['rows']:,} rows, {facts['steps']:,} steps in {facts['seconds']:.0f} s"
    words = f"{fit}; {str(model.held_out_).replace(' -', ' −')}"
    return f"<p><b>{escape(type(model).__name__)}</b> {escape(words)}</p>"


def _columns(model: Any) -> list[list[Any]]:
    columns = model.describe()["columns"]
    drawn = len(columns) <= MOST
    pictures = [_picture(model, j) if drawn else "" for j in range(len(columns))]
    return [
        [column["name"], column["kind"], picture, column["reason"]]
        for column, picture in zip(columns, pictures, strict=True)
    ]


def _picture(model: Any, j: int) -> Picture:
    """What the model expects of a column when nothing is known."""
    if not model.schema_.owner[j]:
        return Picture("")
    distribution = model.conditional({}, j).distribution
    listed = not distribution.has_mean or len(distribution.cells) <= FEW
    return Picture(spark(distribution.probability[0] if listed else distribution.histogram()[0]))
