"""Orders that a density keeps: a start is not after its end, a part no more than the whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctem.tables.encoding.codecs import Codec
from ctem.tables.io.cells import Cells
from ctem.tables.relations.kept_rules import SHOWN, examples_fit, kept_share, rows_in_words
from ctem.tables.relations.quantities import Quantity, quantity_of
from ctem.tables.relations.wishes import Wishes

__all__ = ["KeptOrder", "find_orders", "orders_in_words"]

Vector = NDArray[np.float64]
MOST_COLUMNS = 64  # that are compared with each other
EVIDENCE = (
    20  # rows, at least, that are near to equality, that are not equal, and that chance would get wrong
)
NEAR = 0.25  # of the spread of a difference, within which rows are near to equality
DISTINCT = (
    16  # values of the lower column, half of which occur near to equality, or half of all if they are fewer
)
BROKEN = 0.001  # share of rows that may break an order
UNSURE = 0.1  # share of rows in which chance must break an order that some rows break


@dataclass(frozen=True)
class KeptOrder:
    """A column that is at most another in (nearly) all rows.

    Arguments:
        low, high: the columns.
        share: of these rows, those that keep the order; a little less than 1 where all do.
        rows: that could break it: not those in which the lower column is least, or the higher one greatest.
        broken: of these, those that do not keep it.
        examples: the first few of them, counted from 0.

    >>> KeptOrder("start", "end", 0.999, 1000, 0, ()).in_words()
    'never above end'
    """

    low: str
    high: str
    share: float
    rows: int
    broken: int
    examples: tuple[int, ...]

    def in_words(self) -> str:
        """The order as a sentence about the lower column, with the rows that break it.

        >>> KeptOrder("start", "end", 0.99, 500, 2, (3, 8)).in_words()
        'at most end but in 2 rows of 500 (such as row 3)'
        """
        if not self.broken:
            return f"never above {self.high}"
        return f"at most {self.high} but in {rows_in_words(self.rows, self.broken, self.examples)}"

    def to_json(self) -> dict[str, Any]:
        """This order as plain JSON."""
        return {**asdict(self), "examples": list(self.examples)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], names: Collection[str]) -> KeptOrder:
        """The order that ``to_json`` wrote, of two of these columns; anything else is refused."""
        low, high, share, examples = data["low"], data["high"], float(data["share"]), tuple(data["examples"])
        rows, broken = data["rows"], data["broken"]
        fine = {low, high} <= set(names) and low != high
        fine = fine and all(type(count) is int and count >= 0 for count in (rows, broken, *examples))
        if (
            not fine
            or broken > rows
            or share != kept_share(rows, broken)
            or not examples_fit(examples, broken)
        ):
            raise ValueError(f"order: expected two columns of numbers and a share in (0, 1); got {low!r:.40}")
        return cls(low, high, share, rows, broken, examples)


def orders_in_words(orders: Sequence[KeptOrder]) -> str:
    """Orders of one lower column as a sentence: those that no row breaks in one list.

    >>> kept = [KeptOrder("a", high, 0.99, 98, 0, ()) for high in "bcd"]
    >>> orders_in_words([*kept, KeptOrder("a", "e", 0.98, 98, 1, (7,))])
    'never above b, c and d; at most e but in 1 row of 98 (row 7)'
    """
    highs = [order.high for order in orders if not order.broken]
    listed = " and ".join(filter(None, [", ".join(highs[:-1]), *highs[-1:]]))
    broken = [order.in_words() for order in orders if order.broken]
    return "; ".join([*([f"never above {listed}"] if highs else []), *broken])


def find_orders(
    codecs: Mapping[str, Codec], cells: Mapping[str, Cells], wishes: Wishes
) -> tuple[KeptOrder, ...]:
    """The orders between columns of numbers, or of moments, or of durations; those that are asked for first.

    Many rows are near to equality on the one side of it and hardly any on the other, and if the columns had nothing to
    do with each other, many rows would break the order: a tenth, if some rows do break it. That of columns of a few
    values must hold in all rows: else networks, which see the values, know more than its share.

    >>> from ctem.tables.schema import Schema
    >>> from ctem.tables.io.frame import read_frame
    >>> rng = np.random.default_rng(0)
    >>> start = rng.integers(0, 1000, 500)
    >>> X = np.column_stack([start, start + rng.geometric(0.02, 500) - 1])
    >>> [(order.low, order.high) for order in Schema.fit(read_frame(X)).orders]
    [('x0', 'x1')]
    """
    made = {name: quantity_of(codec, ()) for name, codec in codecs.items()}
    known = {name: size for name, size in made.items() if size is not None and size.kind != "label"}
    n = min((len(cells[name]) for name in known), default=0)
    values = {name: quantity.of_cells(name, cells[name])[:n] for name, quantity in known.items()}
    pairs = [pair for pair in wishes.orders if _comparable(*pair, known)]
    with np.errstate(all="ignore"):
        for a, b in combinations(list(known)[:MOST_COLUMNS], 2):
            widths = known[a].width, known[b].width
            if known[a].kind == known[b].kind:
                pairs += [pair for pair in ((a, b), (b, a)) if _ordered(*pair, values, max(widths))]
        wanted = [pair for pair in dict.fromkeys(pairs) if not wishes.refuse_order(*pair)]
        return tuple(_order(*pair, values) for pair in wanted)


def _comparable(low: str, high: str, known: Mapping[str, Quantity]) -> bool:
    """Whether an order can be asked for; an error with the reason where it cannot."""
    if not {low, high} <= known.keys() or low == high or known[low].kind != known[high].kind:
        raise ValueError(f"rules: expected two columns of numbers, or of moments, in '{low} <= {high}'.")
    return True


def _ordered(a: str, b: str, values: Mapping[str, Vector], width: float) -> bool:
    low, high = values[a], values[b]
    there = ~np.isnan(low) & ~np.isnan(high)
    gap, n = (high - low)[there], int(there.sum())
    below = int((gap < 0).sum())
    if n < EVIDENCE or below > BROKEN * n:
        return False
    spread = min(float(part.std()) for part in (gap, low[there], high[there]))
    close = there & (np.abs(high - low) <= max(NEAR * spread, width))
    values_near = len(np.unique(low[close]))
    chance = (np.random.default_rng(0).permutation(high[there]) < low[there]).sum()
    apart = int((gap > 0).sum())
    some = int(close.sum()) - below
    lower, higher = len(np.unique(low[there])), len(np.unique(high[there]))
    diverse = 2 * values_near >= min(DISTINCT, lower)
    if below and (max(lower, higher) <= DISTINCT or chance < UNSURE * n):
        return False
    return bool(min(some, chance, apart) >= EVIDENCE and EVIDENCE * below <= min(some, chance) and diverse)


def _order(low: str, high: str, values: Mapping[str, Vector]) -> KeptOrder:
    there = ~np.isnan(values[low]) & ~np.isnan(values[high])
    lower, higher = values[low][there], values[high][there]
    broken = np.flatnonzero(values[low] > values[high])
    rows = min(
        int((lower > higher.min(initial=np.inf)).sum()), int((higher < lower.max(initial=-np.inf)).sum())
    )
    share = kept_share(rows, len(broken))
    return KeptOrder(low, high, share, rows, len(broken), tuple(broken[:SHOWN].tolist()))
