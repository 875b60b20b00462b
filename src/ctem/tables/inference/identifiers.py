"""Columns that name the rows or describe them in free text, and hold nothing that other rows could share."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctem.tables.io.cells import Cells

__all__ = ["left_out"]

FEWEST = 20  # rows, below which all values may differ by chance
COUNTED = 300  # rows from which whole numbers without a gap are counts, and no years, wherever they begin
UNIQUE = 0.9  # distinct values a row, from which text names its rows
PROSE, WORDS = 0.5, 4  # distinct values a row, and words in each on average, from which text is prose
NAMED = re.compile(
    r"(^|[\W_])(id|ids|uuid|guid|key|index|rownames?|row|no|nr|num|number)$|[a-z]I[dD]$|^unnamed: ?\d+$|^$",
    re.IGNORECASE,
)
FORM = 0.95  # share of different values of a form that shows whom or what they name
FORMS = {
    "email addresses": re.compile(r"[^\s@]+@[^\s@]+\.[a-zA-Z]{2,}"),
    "web addresses": re.compile(r"(https?://|www\.)\S+", re.IGNORECASE),
    "phone numbers": re.compile(r"\+?\(?\d(?:[\s()./-]*\d){6,14}"),
    "keys": re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE),
    "street addresses": re.compile(
        r"\d+[a-z]?\s.*\b(st|street|ave|avenue|rd|road|blvd|ln|lane|dr|drive|way|court|ct|place|pl)\b.*",
        re.IGNORECASE,
    ),
}
PERSONAL = re.compile(
    r"(^|[\W_])(e?-?mail|phone|telephone|mobile|fax|ssn|passport|iban|street|address|surname|"
    r"(first|last|full|given|family|maiden|middle)[\W_]?name)([\W_]|$)",
    re.IGNORECASE,
)
PERSON = re.compile(r"[A-Z][^\W\d_]+(?:[ ,.'-]+[A-Z][^\W\d_]*\.?){1,3}")
OFTEN, MANY = 0.5, 50  # distinct values a row, and different ones, from which names of persons name them
CAMEL = re.compile(r"[a-z]I[dD]$")


def left_out(name: str, cells: Cells, distinct: NDArray[Any]) -> tuple[str, str] | None:
    """The kind ("identifier" or "text") and the reason, if a column should be left out of a density; else None.

    >>> keys = np.arange(1, 41)
    >>> left_out("order_id", Cells("int", keys, np.zeros(40, bool)), keys)
    ('identifier', 'whole numbers that differ in every row, and its name: they name the rows; left out')
    >>> left_out("year", Cells("int", 1980 + keys, np.zeros(40, bool)), 1980 + keys)
    >>> bookings = np.arange(10_000, 10_500)
    >>> left_out("booking", Cells("int", bookings, np.zeros(500, bool)), bookings)
    ('identifier', 'counts the rows from 10000 to 10499; left out')
    """
    n = int((~cells.missing).sum())
    if n < FEWEST:
        return None
    if cells.type == "label" and not cells.declared:
        return _text(name, cells, distinct, n)
    if cells.type == "int" and len(distinct) == n:
        return _numbers(name, distinct, n)
    return None


def _text(name: str, cells: Cells, distinct: NDArray[Any], n: int) -> tuple[str, str] | None:
    share = len(distinct) / n
    rows = "every row" if share == 1 else "nearly every row" if share > 0.99 else f"{share:.0%} of the rows"
    words = np.mean([str(cells.labels[int(code)]).count(" ") + 1 for code in distinct[:1000]])
    if share > PROSE and words >= WORDS:
        return "text", f"prose, another in {rows}; left out"
    if share > UNIQUE:
        return "identifier", f"text that differs in {rows}: it names the rows; left out"
    texts = [str(cells.labels[int(code)]).strip() for code in distinct[:1000]]
    for what, form in FORMS.items():
        if np.mean([form.fullmatch(text) is not None for text in texts]) >= FORM and len(distinct) >= FEWEST:
            return "identifier", f"{what}: they name persons or things; left out"
    many = share > OFTEN and len(distinct) >= MANY
    if many and (
        PERSONAL.search(name) or np.mean([PERSON.fullmatch(text) is not None for text in texts]) >= FORM
    ):
        return "identifier", f"names or addresses, another in {rows}; left out"
    return None


def _numbers(name: str, distinct: NDArray[Any], n: int) -> tuple[str, str] | None:
    if NAMED.search(name) or CAMEL.search(name):
        words = "whole numbers that differ in every row, and its name: they name the rows; left out"
        return "identifier", words
    first, last = int(distinct[0]), int(distinct[-1])
    if last - first == n - 1 and (first in (0, 1) or n >= COUNTED):
        return "identifier", f"counts the rows from {first} to {last}; left out"
    return None
