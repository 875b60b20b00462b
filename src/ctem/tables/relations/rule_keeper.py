"""The rules of a table as its density asks for them: about encoded columns (``ctem.densities.anyorder.rules``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.densities.anyorder.apart import Counted, Paired
from ctem.densities.anyorder.limits import Bounds
from ctem.densities.anyorder.rules import Named, Within
from ctem.tables.encoding.codecs import Labels
from ctem.tables.relations.kept_orders import KeptOrder
from ctem.tables.relations.kept_rules import KeptRule
from ctem.tables.relations.pair_keeper import PairKeeper
from ctem.tables.relations.quantities import ALIKE, Quantity

__all__ = ["RuleKeeper"]

Vector = NDArray[np.float64]
MOST_CASES, MOST = 2**22, 2**26  # values of a column times cases that are compared at once, and in all


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
        self.above = {name: [order for order in orders if order.high == name] for name in self.quantities}
        self.below = {name: [order for order in orders if order.low == name] for name in self.quantities}
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
        return bool(self.naming[name] or self.above[name] or self.below[name] or self._listed_takers(name))

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
        return Named(place, torch.from_numpy(np.nan_to_num(share)).to(x))

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
        """What rules leave for a listed column j that others follow from: the values that would name what these hold.

        A value for which a rule names nothing is left. A rule does not apply where one of its other columns is hidden.
        """
        name = self.names.get(j, "")
        numbers = _Numbers(self.quantities, x, visible)
        rules = [
            rule for rule in self._listed_takers(name) if numbers.any([*rule.columns, rule.target], name)
        ]
        sets = [self._within(rule, name, numbers, x) for rule in rules]
        span = self._span(name, numbers) if name in self.quantities else None
        return sets if span is None else [*sets, self._between(name, *span, x)]

    def paired(self, j: int) -> Sequence[Paired]:
        """What was counted of the codes of column j with other columns, the best first."""
        return self.pairs.paired(j)

    def counted(self, x: Tensor, visible: Tensor, j: int) -> tuple[Counted, int] | None:
        """The labels of column j that share code 0, and how many these are; None where they are not distinguished."""
        return self.pairs.counted(x, visible, j)

    def bounds(self, x: Tensor, visible: Tensor, j: int) -> Bounds | None:
        """Between which numbers orders leave the real encoded column j."""
        name = self.names.get(j, "")
        span = self._span(name, _Numbers(self.quantities, x, visible)) if name in self.quantities else None
        if span is None:
            return None
        low, high, share = span
        quantity = self.quantities[name]
        ends = (
            np.nan_to_num(quantity.limit(low, True), nan=-np.inf),
            np.nan_to_num(quantity.limit(high, False), nan=np.inf),
        )
        return Bounds(*(torch.from_numpy(part).to(x) for part in (*ends, share)))

    def _span(self, name: str, numbers: _Numbers) -> tuple[Vector, Vector, Vector] | None:
        """The greatest number that a column is no less than, the least one that it is no more than, and how surely.

        nan for none; None where no row has any.
        """
        lower = [order for order in self.above[name] if numbers.any([order.low])]
        upper = [order for order in self.below[name] if numbers.any([order.high])]
        if not lower and not upper:
            return None
        none = np.full(len(numbers.x), np.nan)
        low = np.fmax.reduce([none, *(numbers[order.low] for order in lower)])
        high = np.fmin.reduce([none, *(numbers[order.high] for order in upper)])
        share = min(order.share for order in (*lower, *upper))
        return low, high, np.full(len(none), share)

    def _between(self, name: str, low: Vector, high: Vector, share: Vector, x: Tensor) -> Within:
        """The codes of a column that lie in a span: of labels, or of frequent values and the rest, which always may."""
        quantity = self.quantities[name]
        listed = quantity.listed if isinstance(quantity.codec, Labels) else quantity.atoms
        slack = ALIKE * quantity.width
        first, last = np.nan_to_num(low, nan=-np.inf)[:, None], np.nan_to_num(high, nan=np.inf)[:, None]
        with np.errstate(invalid="ignore"):
            allowed = ~((listed < first - slack) | (listed > last + slack))
        decided = ~(np.isnan(low) & np.isnan(high)) & allowed.any(1)
        return Within(
            torch.from_numpy(allowed).to(x.device), torch.from_numpy(np.where(decided, share, np.nan)).to(x)
        )

    def _listed_takers(self, name: str) -> list[KeptRule]:
        listed = isinstance(self.quantities[name].codec, Labels) if name in self.quantities else False
        return self.taking[name] if listed else []

    def _within(self, rule: KeptRule, name: str, numbers: _Numbers, x: Tensor) -> Within:
        taken, target = self.quantities[name], self.quantities[rule.target]
        others = [column for column in (*rule.columns, rule.target) if column != name]
        shown = np.stack([numbers[column] for column in others], 1)
        cases, case = np.unique(np.nan_to_num(shown, nan=np.inf), axis=0, return_inverse=True)
        k, known = len(taken.listed), np.isfinite(cases).all(1)
        known &= len(cases) * k <= MOST  # else it would take too long, and the rule does not apply
        allowed, decided = np.ones((len(cases), k), bool), np.zeros(len(cases), bool)
        for some in np.array_split(np.flatnonzero(known), max(1, len(cases) * k // MOST_CASES)):
            every = {column: np.repeat(cases[some, i], k) for i, column in enumerate(others)}
            every[name] = np.tile(taken.listed, len(some))
            implied = target.rounded(rule.named(every)).reshape(-1, k)
            with np.errstate(invalid="ignore"):
                right = np.abs(implied - cases[some, -1:]) <= ALIKE * target.width
            allowed[some], decided[some] = right | np.isnan(implied), right.any(1)
        share = np.where(decided, rule.share, np.nan)[case.reshape(-1)]
        chosen = torch.from_numpy(allowed[case.reshape(-1)]).to(x.device)
        return Within(chosen, torch.from_numpy(share).to(x))


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
