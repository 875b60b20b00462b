"""How often rows break the rules and orders of a table: of drawn rows, or of new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctem.tables.io.cells import Cells
from ctem.tables.relations.quantities import ALIKE, quantity_of
from ctem.tables.schema import Schema

__all__ = ["Breach", "breaches"]


class Breach(NamedTuple):
    """A rule or an order, how many rows it applies to, and how many of them break it.

    >>> print(Breach("state follows from city", 1000, 2, 0.001))
    state follows from city: broken in 2 of 1,000 rows (0.20%; in the table 0.10%)
    """

    words: str
    rows: int
    broken: int
    expected: float  # share of the rows of fit that broke it

    def __str__(self) -> str:
        share = self.broken / max(1, self.rows)
        ours = (
            f"broken in {self.broken:,} of {self.rows:,} rows ({share:.2%}; in the table {self.expected:.2%})"
        )
        return f"{self.words}: {ours}"


def breaches(schema: Schema, columns: Mapping[str, Cells]) -> list[Breach]:
    """Every rule and order of a schema, and how often cells break it.

    >>> from ctem.tables.io.frame import read_frame
    >>> rng = np.random.default_rng(0)
    >>> hour, minute = rng.integers(24, size=500), rng.integers(60, size=500)
    >>> frame = read_frame(np.column_stack([hour, minute, 100 * hour + minute]))
    >>> breaches(Schema.fit(frame), frame.columns)[-1]
    Breach(words='x2 = 100 · x0 + x1', rows=500, broken=0, expected=0.0)
    """
    made = {name: quantity_of(inferred.codec, ()) for name, inferred in schema.columns.items()}
    quantities = {name: quantity for name, quantity in made.items() if quantity is not None}
    numbers = {name: quantity.of_cells(name, columns[name]) for name, quantity in quantities.items()}
    broken = []
    with np.errstate(all="ignore"):
        for rule in schema.rules:
            quantity = quantities[rule.target]
            away = np.abs(quantity.rounded(rule.named(numbers)) - numbers[rule.target])
            words, share = f"{rule.target} {rule.formula()}", rule.broken / rule.rows
            broken.append(_counted(words, away - ALIKE * quantity.width, share))
        for order in schema.orders:
            slack = ALIKE * min(quantities[name].width for name in (order.low, order.high))
            over = numbers[order.low] - numbers[order.high]
            broken.append(_counted(f"{order.low} ≤ {order.high}", over - slack, order.broken / order.rows))
    return broken


def _counted(words: str, over: NDArray[np.float64], expected: float) -> Breach:
    """By how much each row breaks it: nan where it does not apply."""
    return Breach(words, int((~np.isnan(over)).sum()), int((over > 0).sum()), expected)
