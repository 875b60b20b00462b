"""Columns that name the rows or tell about them in free text, and say nothing that other rows could share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from ctem.spaces import Column
from ctem.tables.frames.cells import Cells

__all__ = ["LeftOut", "left_out"]

FEWEST = 20  # rows, below which all values may differ by chance
UNIQUE = 0.9  # distinct values a row, from which text names its rows
PROSE, WORDS = 0.5, 4  # distinct values a row, and words in each on average, from which text is prose
NAMED = re.compile(
    r"(^|[\W_])(id|ids|uuid|guid|key|index|rownames?|row|no|nr|num|number)$|[a-z]I[dD]$|^unnamed: ?\d+$|^$",
    re.IGNORECASE,
)
CAMEL = re.compile(r"[a-z]I[dD]$")


@dataclass(frozen=True)
class LeftOut:
    """A column that the density leaves out: identifiers and prose. It has no density, and nothing is drawn for it.

    >>> LeftOut("label").decode(torch.empty(2, 0)).to_list()
    [None, None]
    """

    type: str
    unit: str = ""

    def columns(self, name: str) -> dict[str, Column]:
        """No encoded column."""
        return {}

    def encode(self, name: str, cells: Cells) -> tuple[Tensor, Tensor]:
        """Nothing, whatever the cells hold."""
        n = len(cells)
        return torch.empty(n, 0, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)

    def unseen(self, name: str, cells: Cells) -> Tensor:
        """No cell."""
        return torch.zeros(len(cells), dtype=torch.bool)

    def decode(self, x: Tensor, generator: Generator | None = None) -> Cells:
        """Missing cells."""
        values = np.zeros(len(x), {"float": np.float64, "bool": bool}.get(self.type, np.int64))
        labels = ("",) if self.type == "label" else ()
        return Cells(self.type, values, np.ones(len(x), bool), labels, self.unit)

    def to_json(self) -> dict[str, Any]:
        """This codec as plain JSON."""
        return {"codec": "left out", "type": self.type, "unit": self.unit, "reserve": 0.0}


def left_out(name: str, cells: Cells, distinct: NDArray[Any]) -> tuple[str, str] | None:
    """The kind ("identifier" or "text") and the reason, if a column should be left out of a density; else None.

    >>> keys = np.arange(1, 41)
    >>> left_out("order_id", Cells("int", keys, np.zeros(40, bool)), keys)
    ('identifier', 'whole numbers that differ in every row, and its name: they name the rows; left out')
    """
    n = int((~cells.missing).sum())
    if n < FEWEST:
        return None
    if cells.type == "label" and not cells.declared:
        return _text(cells, distinct, n)
    if cells.type == "int" and len(distinct) == n:
        return _numbers(name, distinct, n)
    return None


def _text(cells: Cells, distinct: NDArray[Any], n: int) -> tuple[str, str] | None:
    share = len(distinct) / n
    shown = "every row" if share == 1 else "nearly every row" if share > 0.99 else f"{share:.0%} of the rows"
    words = np.mean([str(cells.labels[int(code)]).count(" ") + 1 for code in distinct[:1000]])
    if share > PROSE and words >= WORDS:
        return "text", f"prose, another in {shown}; left out"
    if share > UNIQUE:
        return "identifier", f"text that differs in {shown}: it names the rows; left out"
    return None


def _numbers(name: str, distinct: NDArray[Any], n: int) -> tuple[str, str] | None:
    if NAMED.search(name) or CAMEL.search(name):
        return (
            "identifier",
            "whole numbers that differ in every row, and its name: they name the rows; left out",
        )
    if int(distinct[0]) in (0, 1) and int(distinct[-1]) - int(distinct[0]) == n - 1:
        return "identifier", f"counts the rows from {int(distinct[0])} to {int(distinct[-1])}; left out"
    return None
