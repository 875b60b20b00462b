"""What a notebook shows of a fitted model: the kinds of its columns, how it was fitted, and how good it is."""

from __future__ import annotations

from html import escape
from typing import Any

from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from ctem.estimators.questions import Questions
from ctem.tables.answers.markup import Picture, spark, table_html

__all__ = ["InNotebook"]

MOST = 30  # columns whose distribution is drawn
FEW = 8  # values of a column that are drawn as bars of their own


class InNotebook(Questions):
    """What a notebook shows of a ``CTEM``, which inherits this.

    >>> from ctem import CTEM
    >>> issubclass(CTEM, InNotebook)
    True
    """

    def _repr_html_(self) -> str:
        """The fitted model; scikit-learn's diagram of the settings before that."""
        try:
            check_is_fitted(self)
        except NotFittedError:
            return str(estimator_html_repr(self))
        return _summary(self) + table_html(("column", "kind", "expected", "why"), _columns(self))

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def _summary(model: Any) -> str:
    """One paragraph: what was fitted, for how long, and how it does on rows that it had not seen."""
    facts = model.describe()
    held = model.held_out_
    fit = f"fitted on {facts['rows']:,} rows, {facts['steps']:,} steps in {facts['seconds']:.0f} s"
    said = "; ".join([fit, *([] if held is None else [str(held).replace(" -", " −")])])
    return f"<p><b>{escape(type(model).__name__)}</b> {escape(said)}</p>"


def _columns(model: Any) -> list[list[Any]]:
    columns = model.describe()["columns"]
    drawn = len(columns) <= MOST
    pictures = [_picture(model, j) if drawn else "" for j in range(len(columns))]
    return [
        [each["name"], each["kind"], picture, each["reason"]]
        for each, picture in zip(columns, pictures, strict=True)
    ]


def _picture(model: Any, j: int) -> Picture:
    """What the model expects of a column when nothing is known."""
    if not model.schema_.owner[j]:
        return Picture("")
    found = model.conditional({}, j).distribution
    listed = not found.has_mean or len(found.cells) <= FEW
    return Picture(spark(found.probability[0] if listed else found.histogram()[0]))
