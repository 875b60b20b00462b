"""Columns that are functions of one other or of two: looked for in some rows, tested on rows left out and by chance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctem.tables.encoding.codecs import Codec
from ctem.tables.io.cells import Cells
from ctem.tables.relations.functions import MOST_KEYS, Function, Lookup
from ctem.tables.relations.kept_rules import SHOWN, KeptRule, Term, kept_share
from ctem.tables.relations.quantities import ALIKE, CURVES, NUMBER_PARTS, part_of, quantity_of
from ctem.tables.relations.sum_search import closed_functions
from ctem.tables.relations.wishes import Wishes

__all__ = ["find_rules"]

Vector = NDArray[np.float64]
Codes = NDArray[np.int64]
ROWS, TESTED = 4000, 20_000  # rows in which functions are looked for, and in which they are tested
MOST_COLUMNS, MOST_PAIRED = 128, 32  # columns that are compared with each other, and in pairs
EVIDENCE, OF_PAIRS = (
    20.0,
    40.0,
)  # rows that chance would get wrong, at least: of one column; of two, or either alone
CHANCE = 0.1  # of those, that a function may get wrong
LEAST, LEAST_CLOSED = 0.9, 0.95  # share of the rows that hold what is looked up, and what is calculated
FINEST = 1e-5  # lattice of numbers that are looked up
MOST = 4  # rules of a column
LATE = 0.05  # share of missing cells by which a column has more gaps than another
PER_KEY = {
    "label": 1.5,
    "moment": 2.5,
    "number": 5.0,
}  # rows a key, at least: fewer would be learned by heart
OF_TWO = 3.0  # the same of two columns
OFTEN = 200  # rows a key from which on networks learn how a listed column determines another
BANDED = 0.25  # changes of value a key, below which neighbours of a number determine its value
SPARSE = 100  # combinations of values a row, from which on rows that are alike are copies
CLOSED = 400  # rows that are made to test what a rule means for others
STRAIGHT, LIKE_A_LINE = (
    0.05,
    0.8,
)  # how near a line, in ranges of the middle half, and in which share of the rows
MAJORITY = 0.5  # share of the rows of a key that hold its value, more than


def find_rules(
    codecs: Mapping[str, Codec], cells: Mapping[str, Cells], wishes: Wishes
) -> tuple[KeptRule, ...]:
    """The rules of a table, the better ones of every column first; what is asked for before all others.

    Rows that are copies of others count once. A look-up is tested by leaving out each row: the value that the other
    rows with its key mostly hold must be right, and where chance alone would be wrong in many rows. Of two columns each
    must be wrong in many rows without the other. Among a few listed values it must hold in all rows: when it does not,
    networks that see the codes know more than its share.

    >>> rng = np.random.default_rng(0)
    >>> from ctem.tables.schema import Schema
    >>> from ctem.tables.io.frame import read_frame
    >>> hour, minute = rng.integers(24, size=500), rng.integers(60, size=500)
    >>> X = np.column_stack([hour, minute, 100 * hour + minute])
    >>> [f"{rule.target} {rule.formula()}" for rule in Schema.fit(read_frame(X)).rules if rule.leads]
    ['x2 = 100 · x0 + x1']
    """
    with np.errstate(all="ignore"):
        search = _Search(codecs, cells)
        requested = [search.requested(*each) for each in wishes.rules]
        candidates = [*requested, *search.closed(), *search.looked_up()]
        wanted = [rule for rule in candidates if not wishes.refuse(rule.target, rule.columns)]
        kept = search.chosen(wanted, requested)
        gaps = {name: float(each.missing.mean()) for name, each in cells.items()}
        return _led(kept, [search.rank(rule, kept, gaps) for rule in kept])


class _View:
    """A column or a part of it, in all rows and as codes in those that are searched."""

    def __init__(self, term: Term, value: Vector, rows: Codes):
        self.term, self.value = term, value
        self.codes = _codes(value[rows])
        self.distinct = int(self.codes.max(initial=-1)) + 1


class _Search:
    def __init__(self, codecs: Mapping[str, Codec], cells: Mapping[str, Cells]):
        made = {name: quantity_of(codec, ()) for name, codec in codecs.items()}
        self.quantities = {name: each for name, each in made.items() if each is not None}
        self.names = list(self.quantities)[:MOST_COLUMNS]
        n = min((len(cells[name]) for name in self.names), default=0)
        self.n, few = n, np.linspace(0, n - 1, min(n, ROWS)).astype(np.int64)
        self.value = {name: self.quantities[name].of_cells(name, cells[name])[:n] for name in self.names}
        self.rows = few[_first_of_copies([self.value[name][few] for name in self.names])] if n else few
        self.views = [_View(Term(name), self.value[name], self.rows) for name in self.names]
        self.parts = [
            _View(*each, self.rows) for name in self.names for each in self._parts(name, cells[name])
        ]
        self.codes = _compact([view.codes for view in self.views])

    def _parts(self, name: str, cells: Cells) -> Iterator[tuple[Term, Vector]]:
        """The parts of a column that vary and differ from it; moments in a zone have none."""
        whole = len(np.unique(self.value[name][self.rows]))
        for part in () if cells.zone else self.quantities[name].parts:
            value = part_of(self.value[name], part)
            if 1 < len(np.unique(value[self.rows][~np.isnan(value[self.rows])])) < whole:
                yield Term(name, part), value

    def _curves(self) -> Iterator[tuple[Term, Vector]]:
        """The curves of numbers that nearly are a line of some other column, in the rows that are searched."""
        names = [name for name in self.names if self.quantities[name].kind == "number"]
        if len(names) < 2:
            return
        lines = np.stack([_standard(self.value[name][self.rows]) for name in names])
        for i, name in enumerate(names):
            for part in CURVES:
                curved = part_of(self.value[name][self.rows], part)
                known = ~np.isnan(lines) & ~np.isnan(curved)
                if not known[i].any() or known[i].sum() < LEAST_CLOSED * (~np.isnan(lines[i])).sum():
                    continue
                near = np.abs(np.abs(lines) - np.abs(_standard(curved))) < STRAIGHT
                alike = (near & known).sum(1) >= LIKE_A_LINE * known.sum(1).clip(1)
                if alike.any() and not alike[i]:
                    yield Term(name, part), curved

    def closed(self) -> Iterator[KeptRule]:
        """Sums and products, of numbers and their curves."""
        numeric = [
            view for view in (*self.views, *self.parts) if self.quantities[view.term.column].kind != "label"
        ]
        columns = [*((view.term, view.value[self.rows]) for view in numeric), *self._curves()]
        whole = [name for name in self.names if self.quantities[name].kind != "label"]
        targets = {name: (self.value[name][self.rows], self.quantities[name]) for name in whole}
        for target, terms, function in closed_functions(columns, targets, MOST_PAIRED):
            rule = self._rule(target, terms, function)
            if rule is None or 1 - rule.broken / rule.rows < LEAST_CLOSED:
                continue
            known = ~np.isnan([self.value[name] for name in (target, *rule.columns)]).any(0)
            if rule.rows >= LEAST_CLOSED * known.sum():  # else it is a quotient that often divides by 0
                yield rule

    def requested(self, target: str, columns: tuple[str, ...]) -> KeptRule:
        """The requested rule by which a column follows from others: calculated if it can be, or looked up."""
        sentence = f"{target} from {' and '.join(columns)}"
        if not {target, *columns} <= set(self.names):
            raise ValueError(f"rules: expected columns that the density has in {sentence!r}.")
        views = tuple(view for name in columns for view in self.views if view.term.column == name)
        pairs = [(view.term, view.value[self.rows]) for view in views]
        targets = {target: (self.value[target][self.rows], self.quantities[target])}
        numeric = all(self.quantities[name].kind != "label" for name in (target, *columns))
        for _, terms, function in closed_functions(pairs, targets, MOST_PAIRED) if numeric else ():
            rule = self._rule(target, terms, function)
            if rule is not None and set(rule.columns) == set(columns):
                return rule
        codes = _joined([_codes(view.value) for view in views])
        wrong, known, _ = _left_out(codes, _codes(self.value[target]))
        table = self._table(views, target, wrong, known, 0.0) if len(views) <= 2 else None
        if (rule := self._rule(target, tuple(view.term for view in views), table)) is None:
            raise ValueError(
                f"rules: {sentence!r} names no value: it is no sum, and no pair of values repeats."
            )
        return rule

    def looked_up(self) -> Iterator[KeptRule]:
        """The rules by which one column determines another, or two where none does."""
        done = set()
        for view in (*self.views, *self.parts):
            if self._fine(view):
                for target in self._candidates(view.codes, {view.term.column}, EVIDENCE):
                    rule = self._tested((view,), target, EVIDENCE)
                    if rule is not None:
                        done.add(target)
                        yield rule
        some = [view for view in self.views if self._fine(view)][:MOST_PAIRED]
        for pair in combinations(some, 2):
            wide = pair[1].distinct
            both = np.where(
                (pair[0].codes < 0) | (pair[1].codes < 0), -1, pair[0].codes * wide + pair[1].codes
            )
            without = {view.term.column for view in pair} | done
            for target in self._candidates(both, without, OF_PAIRS):
                if (rule := self._tested(pair, target, OF_PAIRS)) is not None:
                    yield rule

    def _fine(self, view: _View) -> bool:
        """Whether values of a view repeat, on a lattice that can be looked up."""
        return 2 <= view.distinct < len(self.rows) and self.quantities[view.term.column].width >= FINEST

    def _candidates(self, key: Codes, without: set[str], evidence: float) -> list[str]:
        """The columns that rows with the same key agree in, far more often than by chance."""
        order = np.argsort(key, kind="stable")
        order = order[key[order] >= 0]
        same = key[order[1:]] == key[order[:-1]]
        first, second = self.codes[order[:-1][same]], self.codes[order[1:][same]]
        known = (first >= 0) & (second >= 0)
        pairs, apart = known.sum(0), ((first != second) & known).sum(0)
        by_chance = pairs * self._differing
        often = (by_chance >= evidence) & (apart <= 1.5 * CHANCE * by_chance)
        often &= apart <= 2 * (1 - LEAST) * pairs
        return [name for name, fine in zip(self.names, often, strict=True) if fine and name not in without]

    @cached_property
    def _differing(self) -> Vector:
        """The probability that two rows differ, for each column."""
        shares = (np.bincount(codes[codes >= 0]) / max(1, (codes >= 0).sum()) for codes in self.codes.T)
        return np.array([1 - (share**2).sum() for share in shares])

    def _tested(self, views: tuple[_View, ...], target: str, evidence: float) -> KeptRule | None:
        """The look-up of a target by one view or two, if it holds in rows left out."""
        rows = (
            self.rows if self.n <= ROWS else np.linspace(0, self.n - 1, min(self.n, TESTED)).astype(np.int64)
        )
        value = _codes(self.value[target][rows])
        each = [_codes(view.value[rows]) for view in views]
        wrong, known, by_chance = _left_out(_joined(each), value)
        if len(views) > 1:
            by_chance = min(by_chance, *(_alone(codes, _joined(each), value, known) for codes in each))
        if by_chance < evidence or wrong > min(CHANCE * by_chance, (1 - LEAST) * known):
            return None
        table = self._table(views, target, wrong, known, self._per_key(views))
        rule = self._rule(target, tuple(view.term for view in views), table)
        return None if rule is not None and rule.broken and self._learnable(rule) else rule

    def _learnable(self, rule: KeptRule) -> bool:
        """Whether networks learn it from codes that they see often, and then know better when it is broken."""
        listed = all(len(self.quantities[name].listed) for name in (rule.target, *rule.columns))
        often = isinstance(rule.function, Lookup) and OFTEN * len(rule.function.values) <= rule.rows
        return often and listed and not any(term.part for term in rule.terms)

    def _per_key(self, views: tuple[_View, ...]) -> float:
        if len(views) > 1:
            return OF_TWO
        key = self.quantities[views[0].term.column]
        return PER_KEY.get("label" if len(key.listed) else key.kind, PER_KEY["number"])

    def _table(
        self, views: tuple[_View, ...], target: str, wrong: int, known: int, per_key: float
    ) -> Function | None:
        """The value that most rows of every key hold, from all rows."""
        value = self.value[target]
        there = ~np.isnan(value) & ~np.any([np.isnan(view.value) for view in views], axis=0)
        keys, key = _distinct([view.value[there] for view in views])
        values, code = np.unique(value[there], return_inverse=True)
        cells, count = np.unique(key.reshape(-1) * len(values) + code, return_counts=True)
        order = np.lexsort((-count, cells // len(values)))
        first = order[np.unique((cells // len(values))[order], return_index=True)[1]]
        rows = np.bincount(key.reshape(-1))
        kept = np.flatnonzero(count[first] > MAJORITY * rows)
        if not 1 <= len(kept) <= MOST_KEYS or len(kept) * per_key > len(code):
            return None
        named = values[cells[first] % len(values)]
        hits, totals = tuple(count[first][kept].tolist()), tuple(rows[kept].tolist())
        share = (known - wrong + 1) / (known + 2)
        by_column = tuple(tuple(column) for column in keys[kept].T.tolist())
        banded = len(views) == 1 and self.quantities[views[0].term.column].kind != "label"
        banded = banded and (np.diff(named[kept]) != 0).sum() < BANDED * len(kept)
        return Lookup(by_column, tuple(named[kept].tolist()), hits, totals, share, bool(banded))

    def _rule(self, target: str, terms: tuple[Term, ...], function: Function | None) -> KeptRule | None:
        """The rule, with the rows of the table that keep it and break it; None where it names nothing."""
        if function is None:
            return None
        quantity, value = self.quantities[target], self.value[target]
        rule = KeptRule(target, terms, function, 0.5, 0.5, 0, 0, (), False)
        implied = quantity.rounded(rule.named(self.value))
        there = ~np.isnan(implied) & ~np.isnan(value)
        with np.errstate(invalid="ignore"):
            wrong = there & ~(np.abs(implied - value) <= ALIKE * quantity.width)
        rows, broken = int(there.sum()), np.flatnonzero(wrong)
        if not rows:
            return None
        differ = (quantity.codes(implied) != quantity.codes(value)) & there
        share = kept_share(rows, len(broken))
        agree = max(share, (rows - int(differ.sum()) + 1) / (rows + 2)) if not len(quantity.listed) else share
        some = tuple(broken[:SHOWN].tolist())
        return replace(rule, share=share, agree=agree, rows=rows, broken=len(broken), examples=some)

    def rank(self, rule: KeptRule, rules: list[KeptRule], gaps: Mapping[str, float]) -> tuple[float, ...]:
        """By which rules lead: the least first.

        First come those whose column has no fewer gaps than what it follows from: a column with gaps comes late, since
        they may depend on what the others hold. Then what is calculated, from many columns before few: an hour and a
        minute are learned more easily than the clock time that they make up. Then those from which the others follow:
        a speed that is rounded is one of a distance and a time, not they of it. Of a label and its number, the label.
        What one column says comes before what two say: two flags of a year name none where both are set.
        """
        broken = round(rule.broken / rule.rows, 2)
        late = any(gaps[name] > gaps[rule.target] + LATE for name in rule.columns)
        listed = len(self.quantities[rule.target].listed) > 0
        if isinstance(rule.function, Lookup):
            return late, True, broken, len(rule.terms), rule.function.complexity, listed
        terms, closure = -len(rule.terms), -self._closure(rule, rules)
        return late, False, terms, closure, broken, rule.function.complexity, listed

    def _closure(self, rule: KeptRule, rules: list[KeptRule]) -> float:
        """The share of rows, in tenths, that keep other rules about the same columns if this one determines its column.

        What it takes is put together anew, and moved by a few cells.
        """
        about = {rule.target, *rule.columns}
        others = [other for other in rules if other is not rule and {other.target, *other.columns} == about]
        if isinstance(rule.function, Lookup) or not others:
            return 1.0
        rng, numbers = np.random.default_rng(0), dict[str, Vector]()
        for name in rule.columns:
            known = self.value[name][~np.isnan(self.value[name])]
            quantity = self.quantities[name]
            moved = rng.choice(known, CLOSED) + quantity.width * rng.integers(-2, 3, CLOSED)
            numbers[name] = quantity.rounded(moved)
        numbers[rule.target] = self.quantities[rule.target].rounded(rule.named(numbers))
        kept = []
        for other in others:
            quantity = self.quantities[other.target]
            implied, value = quantity.rounded(other.named(numbers)), numbers[other.target]
            there = ~np.isnan(implied) & ~np.isnan(value)
            right = np.abs(implied[there] - value[there]) <= ALIKE * quantity.width
            kept.append(float(right.mean()) if there.any() else 0.0)
        return round(min(kept), 1)

    def chosen(self, rules: list[KeptRule], requested: list[KeptRule]) -> list[KeptRule]:
        """The rules that are kept: of every column a few, those that are calculated before those that are looked up."""
        place = {name: i for i, name in enumerate(self.names)}

        def quality(rule: KeptRule) -> tuple[int, bool, int, bool, int]:
            looked_up = isinstance(rule.function, Lookup)
            digits = looked_up and any(term.part in NUMBER_PARTS for term in rule.terms)
            return place[rule.target], looked_up, len(rule.terms), digits, rule.function.complexity

        kept: dict[str, list[KeptRule]] = {}
        for rule in sorted(rules, key=lambda rule: (rule not in requested, quality(rule))):
            others = kept.setdefault(rule.target, [])
            same = any(set(rule.columns) == set(other.columns) for other in others)
            if not same and len(others) < MOST:
                others.append(rule)
        return [rule for of_column in kept.values() for rule in of_column]


def _led(rules: list[KeptRule], ranks: list[tuple[float, ...]]) -> tuple[KeptRule, ...]:
    """The rules, some of which put their column after the others, without a circle; those of the least rank first."""
    before: dict[str, set[str]] = {}
    leading = set()

    def behind(name: str) -> set[str]:
        return {name}.union(*(behind(other) for other in before.get(name, ())))

    for i in sorted(range(len(rules)), key=ranks.__getitem__):
        rule = rules[i]
        circle = any(rule.target in behind(name) for name in rule.columns)
        if rule.target not in before and not circle:
            before[rule.target] = set(rule.columns)
            leading.add(i)
    return tuple(replace(rule, leads=i in leading) for i, rule in enumerate(rules))


def _first_of_copies(columns: list[Vector]) -> NDArray[np.bool_]:
    """Which rows are no copy of an earlier one; all of them in a table of few values, where chance makes copies."""
    key, cases = np.zeros(len(columns[0]), np.int64), 0.0
    for column in columns:
        codes = _codes(column) + 1
        cases += math.log(int(codes.max(initial=0)) + 1)
        key = np.unique(key * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True)[1].reshape(-1)
    first = np.full(len(key), cases <= math.log(SPARSE * len(key)))
    first[np.unique(key, return_index=True)[1]] = True
    return first


def _standard(value: Vector) -> Vector:
    """Numbers less their median, over the range of their middle half, so that a few far ones do not count."""
    low, middle, high = (
        np.nanquantile(value, [0.25, 0.5, 0.75]) if np.isfinite(value).any() else (0.0, 0.0, 0.0)
    )
    return np.asarray((value - middle) / max(high - low, 1e-300))


def _codes(value: Vector) -> Codes:
    """Numbers as codes 0 … k − 1, −1 for nan."""
    codes, known = np.full(len(value), -1, np.int64), ~np.isnan(value)
    codes[known] = np.unique(value[known], return_inverse=True)[1].reshape(-1)
    return codes


def _distinct(columns: list[Vector]) -> tuple[Vector, Codes]:
    """The different rows of these columns, sorted, and which of them each row is."""
    if len(columns) == 1:  # many times as fast
        keys, key = np.unique(columns[0], return_inverse=True)
        return keys[:, None], key
    return np.unique(np.stack(columns, 1), axis=0, return_inverse=True)


def _compact(columns: list[Codes]) -> NDArray[np.signedinteger[Any]]:
    """Codes of several columns as one array (n, columns) of the smallest type, since they are compared very often."""
    if not columns:
        return np.zeros((0, 0), np.int64)
    most = max(int(codes.max(initial=0)) for codes in columns)
    return np.stack(columns, 1).astype(np.min_scalar_type(-1 - most))


def _joined(each: list[Codes]) -> Codes:
    """Codes of several columns as one, −1 where one of them is."""
    key = each[0]
    for codes in each[1:]:
        both = (key >= 0) & (codes >= 0)
        key = np.where(both, key * (int(codes.max(initial=0)) + 1) + codes, -1)
    return key


def _alone(key: Codes, joined: Codes, value: Codes, known: int) -> float:
    """How many of the rows that two columns name would be wrong by one of the two alone, both of them shown.

    >>> _alone(np.array([0, 0, 0, 0]), np.array([0, 0, 1, 1]), np.array([5, 5, 6, 6]), 4)
    4.0
    """
    wrong, of, _ = _left_out(np.where(joined >= 0, key, -1), value)
    return wrong * known / of if of else math.inf


def _left_out(key: Codes, value: Codes) -> tuple[int, int, float]:
    """Rows whose value is not what the other rows with their key mostly hold, rows with others, and wrong by chance.

    >>> _left_out(np.array([0, 0, 0, 1, 1, 2]), np.array([5, 5, 5, 6, 7, 5]))
    (2, 5, 2.0)
    """
    there = (key >= 0) & (value >= 0)
    key, value = np.unique(key[there], return_inverse=True)[1].reshape(-1), value[there]
    wide = int(value.max(initial=0)) + 1
    cells, cell, count = np.unique(key * wide + value, return_inverse=True, return_counts=True)
    of = cells // wide
    order = np.lexsort((-count, of))
    start = np.unique(of[order], return_index=True)[1]
    best = np.zeros(len(start), np.int64)
    best[:] = count[order[start]]
    next_one = np.append(order, 0)[start + 1]
    second = np.where((start + 1 < len(order)) & (of[next_one] == np.arange(len(start))), count[next_one], 0)
    here = count[cell.reshape(-1)]
    other = np.where(here == best[key], np.where(best[key] == second[key], best[key], second[key]), best[key])
    known = np.bincount(key)[key] >= 2 if len(key) else np.zeros(0, bool)
    wrong = known & ~((here - 1 >= 1) & (here - 1 >= other))
    most = np.bincount(value[known]).max(initial=0) if known.any() else 0
    return int(wrong.sum()), int(known.sum()), float(known.sum() - most)
