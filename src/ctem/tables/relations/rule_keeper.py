"""The rules of a table as its density asks for them: about encoded columns (``ctem.densities.anyorder.rules``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.densities.anyorder.apart import Counted, Paired
from ctem.densities.anyorder.limits import Bounds
from ctem.densities.anyorder.rules import Named, Within
from ctem.tables.encoding.codecs import Labels
from ctem.tables.relations.functions import Affine
from ctem.tables.relations.kept_orders import KeptOrder
from ctem.tables.relations.kept_rules import KeptRule
from ctem.tables.relations.pair_keeper import PairKeeper
from ctem.tables.relations.quantities import ALIKE, Quantity

__all__ = ["ImpliedOrder", "RuleKeeper", "implied_orders"]

Vector = NDArray[np.float64]
MOST_CASES = 2**22  # values of a column times rows that are compared at once


class RuleKeeper:
    """Rules, applied to encoded rows.

    Arguments:
        rules: the better ones of a column first.
        orders: of columns.
        quantities: of the columns that they are about.
        pairs: what was counted of labels.

    >>> from ctem.tables.relations.functions import Affine
    >>> from ctem.tables.relations.kept_rules import Term
    >>> from ctem.tables.relations.quantities import quantity_of
    >>> grade = Labels("int", (1, 2, 3), (0, 1, 2), (1.0,) * 3)
    >>> rule = KeptRule("b", (Term("a"),), Affine((-1.0,), 4.0), 0.99, 0.99, 80, 0, (), True)
    >>> keeper = RuleKeeper([rule], [], {"a": quantity_of(grade, (0,)), "b": quantity_of(grade, (1,))})
    >>> shown = torch.tensor([[True, False]])
    >>> keeper.after, keeper.named(torch.zeros(1, 2), shown, 1).value
    ({1: frozenset({0})}, tensor([2]))
    """

    def __init__(
        self,
        rules: Sequence[KeptRule],
        orders: Sequence[KeptOrder],
        quantities: Mapping[str, Quantity],
        pairs: PairKeeper | None = None,
    ):
        self.quantities, self.pairs = dict(quantities), PairKeeper([], {}) if pairs is None else pairs
        self.orders = implied_orders(orders)
        self.above = {
            name: [order for order in self.orders if order.high == name] for name in self.quantities
        }
        self.below = {name: [order for order in self.orders if order.low == name] for name in self.quantities}
        self.names = {j: name for name, each in self.quantities.items() for j in each.owner}
        self.naming = {name: [rule for rule in rules if rule.target == name] for name in self.quantities}
        self.taking = {name: [rule for rule in rules if name in rule.columns] for name in self.quantities}
        self.after = {
            j: frozenset(i for name in rule.columns for i in self.quantities[name].owner)
            for rule in rules
            if rule.leads
            for j in self.quantities[rule.target].owner
        }

    def about(self, j: int) -> bool:
        """Whether some rule may apply to encoded column j."""
        name = self.names.get(j)
        if name is None or self.pairs.about(j):
            return name is not None
        ordered = self.above[name] or self.below[name] or self._ordered_sums(name)
        return bool(self.naming[name] or ordered or self._listed_takers(name))

    def named(self, x: Tensor, visible: Tensor, j: int) -> Named | None:
        """The value of encoded column j that rules name, by the first of them that knows one."""
        if not self.naming.get(name := self.names.get(j, "")):
            return None
        quantity, numbers = self.quantities[name], _Numbers(self.quantities, x, visible)
        value, share = np.full(len(x), np.nan), np.full(len(x), np.nan)
        for rule in self.naming[name]:
            if not numbers.any(rule.columns) or not np.isnan(value).any():
                continue
            implied, odds = quantity.rounded(rule.named(numbers)), rule.shares(numbers)
            odds = self._of_part(rule, quantity, j, odds)
            fresh = np.isnan(value) & ~np.isnan(implied)
            value, share = np.where(fresh, implied, value), np.where(fresh, odds, share)
        place = self._placed(quantity, value, j).to(x.device)
        gap = quantity.codec.state and j == quantity.owner[0]
        return Named(place, torch.from_numpy(np.nan_to_num(share)).to(x), gap)

    def _of_part(self, rule: KeptRule, quantity: Quantity, j: int, share: Vector) -> Vector:
        """The share of one encoded column of the target: whether the value is a frequent one, then which number."""
        if len(quantity.owner) == 1:
            return share
        return (
            np.full_like(share, rule.agree)
            if j == quantity.owner[0]
            else np.minimum(share / rule.agree, rule.agree)
        )

    def _placed(self, quantity: Quantity, value: Vector, j: int) -> Tensor:
        """Codes, or the ends of cells, of values in encoded column j."""
        real = not isinstance(quantity.codec, Labels) and j == quantity.owner[-1]
        return quantity.ends(value).float() if real else torch.from_numpy(quantity.codes(value))

    def within(self, x: Tensor, visible: Tensor, j: int) -> list[Within]:
        """What rules leave for a listed column j that others follow from.

        Those are the values that would name what the others hold or, where that is hidden, what orders leave for them.
        A value for which a rule names nothing is left. A rule does not apply where one of its other columns is hidden.
        """
        name = self.names.get(j, "")
        numbers = _Numbers(self.quantities, x, visible)
        rules = [rule for rule in self._listed_takers(name) if numbers.any(rule.columns, name)]
        spans = [(rule, self._span_of_target(rule, numbers)) for rule in rules]
        return [self._within(rule, name, span, numbers) for rule, span in spans if span is not None]

    def ordered(self, x: Tensor, visible: Tensor, j: int) -> Within | None:
        """The codes that orders leave for a discrete column j, of labels or of frequent values and the rest."""
        bounded = self._quantity_and_span(x, visible, j)
        if bounded is None:
            return None
        quantity, span = bounded
        listed = quantity.listed if isinstance(quantity.codec, Labels) else quantity.atoms
        slack = ALIKE * quantity.width
        with np.errstate(invalid="ignore"):
            allowed = ~((listed < span.low[:, None] - slack) | (listed > span.high[:, None] + slack))
        share = np.where(allowed.any(1), span.share, np.nan)
        return Within(torch.from_numpy(allowed).to(x.device), torch.from_numpy(share).to(x))

    def paired(self, j: int) -> Sequence[Paired]:
        """What was counted of the codes of column j with other columns, the best first."""
        return self.pairs.paired(j)

    def counted(self, x: Tensor, visible: Tensor, j: int) -> tuple[Counted, int] | None:
        """The labels of column j that share code 0, and how many these are; None where they are not distinguished."""
        return self.pairs.counted(x, visible, j)

    def bounds(self, x: Tensor, visible: Tensor, j: int) -> Bounds | None:
        """Between which numbers orders leave the real encoded column j."""
        bounded = self._quantity_and_span(x, visible, j)
        if bounded is None:
            return None
        quantity, span = bounded
        low = np.nan_to_num(quantity.limit(span.low, True), nan=-np.inf)
        high = np.nan_to_num(quantity.limit(span.high, False), nan=np.inf)
        share = np.nan_to_num(span.share, nan=1.0)
        return Bounds(*(torch.from_numpy(part).to(x) for part in (low, high, share)))

    def _quantity_and_span(self, x: Tensor, visible: Tensor, j: int) -> tuple[Quantity, _Span] | None:
        """The quantity of encoded column j, and between which numbers orders leave it; None where none does."""
        name = self.names.get(j, "")
        span = self._span(name, _Numbers(self.quantities, x, visible))
        return None if span is None else (self.quantities[name], span)

    def _span(self, name: str, numbers: _Numbers) -> _Span | None:
        """What orders leave for a column: its own, and those of sums that take it."""
        spans = [self._span_by_orders(name, numbers)]
        spans += [self._span_of_term(rule, name, numbers) for rule in self._ordered_sums(name)]
        return _intersection(spans, len(numbers.x))

    def _span_by_orders(self, name: str, numbers: _Numbers, width: float | None = None) -> _Span | None:
        """What its own orders leave for a column.

        Another that is hidden counts as what rules name for it, or as the end that it has. Cells that are alike are
        those of the finer column of the two, so that ends are moved inward by what a wider one is allowed beyond them.

        Arguments:
            name: of the column.
            numbers: of the rows.
            width: of the cells for which ends are asked; the column's own when None.
        """
        none, spans = np.full(len(numbers.x), np.nan), list[_Span | None]()
        width = self.quantities[name].width if width is None else width
        for order in (*self.above.get(name, ()), *self.below.get(name, ())):
            lower = order.low == name
            other = order.high if lower else order.low
            end, last = self._shown_or_named(other, numbers), self.quantities[other].extent[lower]
            coarse = ALIKE * max(width - self.quantities[other].width, 0.0)
            end = np.where(np.isnan(end), last, end) + (-coarse if lower else coarse)
            share = np.where(np.isnan(end), np.nan, order.share)
            spans.append(_Span(none, end, share) if lower else _Span(end, none, share))
        return _intersection(spans, len(none))

    def _shown_or_named(self, name: str, numbers: _Numbers) -> Vector:
        """The numbers of a column, and where they are hidden what the first rule that knows one names."""
        value = numbers[name]
        for rule in self.naming[name]:
            if np.isnan(value).any() and numbers.any(rule.columns):
                implied = self.quantities[name].rounded(rule.named(numbers))
                value = np.where(np.isnan(value), implied, value)
        return value

    def _ordered_sums(self, name: str) -> list[KeptRule]:
        """The sums that have an order and take a column, once and whole."""
        return [
            rule
            for rule in self.taking.get(name, ())
            if isinstance(rule.function, Affine)
            and (self.above[rule.target] or self.below[rule.target])
            and [term.part for term in rule.terms if term.column == name] == [""]
        ]

    def _span_of_term(self, rule: KeptRule, name: str, numbers: _Numbers) -> _Span | None:
        """What the orders of a sum leave for one of its terms, given the others."""
        if not numbers.any(rule.columns, name) or not isinstance(rule.function, Affine):
            return None
        factor = rule.function.factors[rule.columns.index(name)]
        span = self._span_by_orders(rule.target, numbers, abs(factor) * self.quantities[name].width)
        if span is None:
            return None
        shown = {column: numbers[column] for column in rule.columns if column != name}
        rest = rule.named({**shown, name: np.zeros(len(numbers.x))})
        low, high = (span.low - rest) / factor, (span.high - rest) / factor
        share = np.where(np.isnan(rest), np.nan, span.share)
        return _Span(low, high, share) if factor > 0 else _Span(high, low, share)

    def _span_of_target(self, rule: KeptRule, numbers: _Numbers) -> _Span | None:
        """Where the column of a rule lies: at what it holds or, where that is hidden, where orders leave it."""
        shown = numbers[rule.target]
        slack = ALIKE * self.quantities[rule.target].width
        span = self._span_by_orders(rule.target, numbers)
        if span is None:
            share = np.where(np.isnan(shown), np.nan, rule.share)
            return None if np.isnan(shown).all() else _Span(shown - slack, shown + slack, share)
        low, high = (np.where(np.isnan(shown), end, shown) for end in (span.low, span.high))
        share = np.where(np.isnan(shown), rule.share * span.share, rule.share)
        return _Span(low - slack, high + slack, share)

    def _listed_takers(self, name: str) -> list[KeptRule]:
        listed = isinstance(self.quantities[name].codec, Labels) if name in self.quantities else False
        return self.taking[name] if listed else []

    def _within(self, rule: KeptRule, name: str, span: _Span, numbers: _Numbers) -> Within:
        """The codes of a listed column for which a rule names a number of a span, or none."""
        n, listed = len(span.low), self.quantities[name].listed
        shown = {column: numbers[column] for column in rule.columns if column != name}
        allowed, decided = np.ones((n, len(listed)), bool), np.zeros(n, bool)
        for some in np.array_split(np.arange(n), max(1, n * len(listed) // MOST_CASES)):
            keys = (
                np.stack([value[some] for value in shown.values()], 1) if shown else np.zeros((len(some), 1))
            )
            cases, case = np.unique(keys, axis=0, return_inverse=True)
            every = {column: np.repeat(cases[:, i], len(listed)) for i, column in enumerate(shown)}
            every[name] = np.tile(listed, len(cases))
            implied = self.quantities[rule.target].rounded(rule.named(every)).reshape(-1, len(listed))
            implied = implied[case.reshape(-1)]
            with np.errstate(invalid="ignore"):
                outside = (implied < span.low[some, None]) | (implied > span.high[some, None])
            allowed[some], decided[some] = ~outside, (~outside & ~np.isnan(implied)).any(1)
        share = torch.from_numpy(np.where(decided, span.share, np.nan)).to(numbers.x)
        return Within(torch.from_numpy(allowed).to(numbers.x.device), share)


class ImpliedOrder(NamedTuple):
    """A column that is at most another, and how likely it is that a row keeps to that.

    >>> ImpliedOrder("start", "end", 0.99).low
    'start'
    """

    low: str
    high: str
    share: float


def implied_orders(orders: Sequence[KeptOrder]) -> list[ImpliedOrder]:
    """The orders, and what follows from several of them: a part is no more than what its whole has room in.

    >>> each = {"share": 0.9, "rows": 8, "broken": 0, "examples": ()}
    >>> [order[:2] for order in implied_orders([KeptOrder("a", "b", **each), KeptOrder("b", "c", **each)])]
    [('a', 'b'), ('b', 'c'), ('a', 'c')]
    """
    share = {(order.low, order.high): order.share for order in orders}
    for middle in dict.fromkeys(order.high for order in orders):
        lows = [low for low, high in share if high == middle]
        highs = [high for low, high in share if low == middle]
        for low, high in product(lows, highs):
            if low != high:
                share.setdefault((low, high), share[low, middle] * share[middle, high])
    return [ImpliedOrder(*ends, likely) for ends, likely in share.items()]


class _Span(NamedTuple):
    """Between which numbers a column lies in rows, nan for no end, and how surely; nan where nothing is known."""

    low: Vector
    high: Vector
    share: Vector


def _intersection(spans: Sequence[_Span | None], n: int) -> _Span | None:
    """What all spans leave, as surely as the least sure of them; None where they leave everything in all n rows."""
    some = [span for span in spans if span is not None]
    low, high, share = (np.array([np.full(n, np.nan), *(span[end] for span in some)]) for end in range(3))
    joined = _Span(np.fmax.reduce(low), np.fmin.reduce(high), np.fmin.reduce(share))
    return None if np.isnan(joined.share).all() else joined


class _Numbers(dict[str, Vector]):
    """The numbers of columns of encoded rows, read when they are asked for."""

    def __init__(self, quantities: Mapping[str, Quantity], x: Tensor, visible: Tensor):
        super().__init__()
        self.quantities, self.x, self.visible = quantities, x.detach(), visible

    def __missing__(self, name: str) -> Vector:
        self[name] = self.quantities[name].of_rows(self.x, self.visible)
        return self[name]

    def any(self, names: Sequence[str], but: str = "") -> bool:
        """Whether some row shows something of each of these columns."""
        return all(
            bool(self.visible[:, list(self.quantities[name].owner)].any()) for name in names if name != but
        )
