"""What columns have to do with each other: formulas, rules, orders and counts of pairs of labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ctem.tables.encoding.codecs import Codec
from ctem.tables.io.cells import Cells
from ctem.tables.relations.formulas import Formula, find_formulas
from ctem.tables.relations.kept_orders import KeptOrder, find_orders, orders_in_words
from ctem.tables.relations.kept_rules import KeptRule
from ctem.tables.relations.label_pairs import LabelPair, find_pairs
from ctem.tables.relations.rule_search import find_rules
from ctem.tables.relations.wishes import Wishes

__all__ = ["Relations", "relations"]


class Relations(NamedTuple):
    """What columns have to do with each other.

    >>> Relations((Formula("total_bedrooms", (("households", 1),), 0.0),), (), (), ()).in_words()
    {'total_bedrooms': 'close to households'}
    """

    formulas: tuple[Formula, ...]  # that a network learns to use
    rules: tuple[KeptRule, ...]  # that hold in nearly all rows, and are none of those
    orders: tuple[KeptOrder, ...]
    pairs: tuple[LabelPair, ...]  # of rare labels of columns that have very many

    def in_words(self) -> dict[str, str]:
        """The first rule of every column that has one, or its most frequent formula; and the orders."""
        remarks = {formula.target: formula.in_words() for formula in reversed(self.formulas)}
        remarks |= {rule.target: rule.in_words() for rule in reversed(self.rules)}
        for low in dict.fromkeys(order.low for order in self.orders):
            words = orders_in_words([order for order in self.orders if order.low == low])
            remarks[low] = "; ".join(filter(None, [remarks.get(low), words]))
        for name in dict.fromkeys(pair.column for pair in self.pairs):
            partners = ", ".join(pair.partner for pair in self.pairs if pair.column == name)
            words = f"rare labels also by how often they meet {partners}"
            remarks[name] = "; ".join(filter(None, [remarks.get(name), words]))
        return remarks


def relations(
    codecs: Mapping[str, Codec], cells: Mapping[str, Cells], wishes: Wishes | None = None
) -> Relations:
    """What columns have to do with each other, looked for in cells, and what is asked for.

    >>> relations({}, {})
    Relations(formulas=(), rules=(), orders=(), pairs=())
    """
    wishes = Wishes() if wishes is None else wishes
    rules, formulas = find_rules(codecs, cells, wishes), list[Formula]()
    ruled = {(rule.target, frozenset(rule.columns)) for rule in rules}
    for formula in find_formulas(codecs, cells):
        terms = frozenset(name for name, _ in formula.terms)
        if (formula.target, terms) not in ruled and not wishes.refuse(formula.target, terms):
            formulas.append(formula)
    same = {frozenset((rule.target, *rule.columns)) for rule in rules}
    all_orders = find_orders(codecs, cells, wishes)
    orders = tuple(order for order in all_orders if frozenset((order.low, order.high)) not in same)
    return Relations(tuple(formulas), rules, orders, find_pairs(codecs, cells))
