"""How often rows break the rules and orders of a table: of drawn rows, or of new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctem.tables.io.cells import Cells
from ctem.tables.relations.kept_orders import KeptOrder
from ctem.tables.relations.kept_rules import KeptRule
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
    rows = _Rows(schema, columns)
    with np.errstate(all="ignore"):
        return [*map(rows.of_rule, schema.rules), *map(rows.of_order, schema.orders)]


class _Rows:
    """Cells as numbers."""

    def __init__(self, schema: Schema, columns: Mapping[str, Cells]):
        made = {name: quantity_of(inferred.codec, ()) for name, inferred in schema.columns.items()}
        self.quantities = {name: known for name, known in made.items() if known is not None}
        self.numbers = {name: known.of_cells(name, columns[name]) for name, known in self.quantities.items()}

    def of_rule(self, rule: KeptRule) -> Breach:
        """Rows that do not hold what a rule names."""
        quantity, value = self.quantities[rule.target], self.numbers[rule.target]
        implied = quantity.rounded(rule.named(self.numbers))
        words = f"{rule.target} {rule.formula()}"
        return _counted(words, np.abs(implied - value) - ALIKE * quantity.width, rule.broken / rule.rows)

    def of_order(self, order: KeptOrder) -> Breach:
        """Rows whose lower number is the higher one."""
        slack = ALIKE * min(self.quantities[name].width for name in (order.low, order.high))
        over = self.numbers[order.low] - self.numbers[order.high]
        return _counted(f"{order.low} ≤ {order.high}", over - slack, order.broken / order.rows)


def _counted(words: str, over: NDArray[np.float64], expected: float) -> Breach:
    """By how much each row breaks it: nan where it does not apply."""
    return Breach(words, int((~np.isnan(over)).sum()), int((over > 0).sum()), expected)
