"""Rules that a density keeps: a column is a function of one other, or of a few, in nearly all rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctem.tables.relations.functions import Affine, Function, Lookup, Product, function_from_json
from ctem.tables.relations.quantities import CURVES, MOMENT_PARTS, NUMBER_PARTS, part_of

__all__ = ["KeptRule", "Term", "examples_fit", "kept_share", "rows_in_words"]

Vector = NDArray[np.float64]
SHOWN = 5  # rows that break a rule and are named


def kept_share(rows: int, broken: int) -> float:
    """How likely a row keeps what all of some rows keep but so many: a little less than 1 where all do.

    >>> kept_share(98, 0)
    0.99
    """
    return (rows - broken + 1) / (rows + 2)


def examples_fit(examples: Sequence[int], broken: int) -> bool:
    """Whether these are the first few of so many rows.

    >>> examples_fit((3, 7), 2), examples_fit((7, 3), 2), examples_fit((3,), 2)
    (True, False, False)
    """
    return len(examples) == min(broken, SHOWN) and all(a < b for a, b in pairwise(examples))


def rows_in_words(rows: int, broken: int, examples: Sequence[int]) -> str:
    """How many rows break a rule, with the first of them.

    >>> rows_in_words(5000, 1, [7]), rows_in_words(5000, 2000, [3, 8])
    ('1 row of 5,000 (row 7)', '2,000 rows of 5,000 (such as row 3)')
    """
    if broken == 1:
        return f"1 row of {rows:,} (row {examples[0]})"
    return f"{broken:,} rows of {rows:,} (such as row {examples[0]})"


class Term(NamedTuple):
    """A column, or a part or a curve of it, that a rule takes.

    >>> Term("born", "year").in_words()
    'year of born'
    """

    column: str
    part: str = ""

    def in_words(self) -> str:
        """The part of the column."""
        return f"{self.part} of {self.column}" if self.part else self.column


@dataclass(frozen=True)
class KeptRule:
    """A column that is a function of others in nearly all rows.

    Arguments:
        target: the column.
        terms: what the function takes.
        function: names the value.
        share: of the rows for which it names one, those that hold it; a little less than 1 where all do.
        agree: the same of the value being one of the frequent ones of the column, or none of them.
        rows: for which it names a value.
        broken: of these, those that do not hold it.
        examples: the first few of them, counted from 0.
        leads: whether the column comes after the others in the orders of the chain rule.

    >>> rule = KeptRule("time", (Term("h"), Term("min")), Affine((100.0, 1.0), 0.0), 0.99, 0.99, 200, 1, (7,), True)
    >>> rule.in_words()
    '= 100 · h + min but in 1 row of 200 (row 7)'
    """

    target: str
    terms: tuple[Term, ...]
    function: Function
    share: float
    agree: float
    rows: int
    broken: int
    examples: tuple[int, ...]
    leads: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it takes."""
        return tuple(term.column for term in self.terms)

    def named(self, numbers: Mapping[str, Vector]) -> Vector:
        """The value that it names for each row of the numbers of columns; nan for none."""
        return self.function.named(self._taken(numbers))

    def shares(self, numbers: Mapping[str, Vector]) -> Vector:
        """How likely that value is."""
        taken = self._taken(numbers)
        if isinstance(self.function, Lookup):
            return self.function.shares(taken)
        return np.full(len(taken[0]), self.share)

    def _taken(self, numbers: Mapping[str, Vector]) -> list[Vector]:
        return [part_of(numbers[term.column], term.part) for term in self.terms]

    def in_words(self) -> str:
        """The function, and the rows that break it."""
        if not self.broken:
            return f"{self.formula()} in all rows"
        return f"{self.formula()} but in {rows_in_words(self.rows, self.broken, self.examples)}"

    def formula(self) -> str:
        """The function in words."""
        words = [term.in_words() for term in self.terms]
        if isinstance(self.function, Lookup):
            return f"follows from {' and '.join(words)}"
        if isinstance(self.function, Affine):
            return f"= {_sum(words, self.function)}"
        return f"= {_product(words, self.function)}"

    def to_json(self) -> dict[str, Any]:
        """This rule as plain JSON."""
        plain = {key: value for key, value in asdict(self).items() if key not in ("terms", "function")}
        terms = [list(term) for term in self.terms]
        return {**plain, "examples": list(self.examples), "terms": terms, "function": self.function.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], names: Collection[str]) -> KeptRule:
        """The rule that ``to_json`` wrote, about some of these columns; anything else is refused."""
        terms = tuple(Term(str(column), str(part)) for column, part in data["terms"])
        function, target = function_from_json(data["function"]), str(data["target"])
        share, agree = float(data["share"]), float(data["agree"])
        rows, broken, examples = data["rows"], data["broken"], tuple(data["examples"])
        known = {target, *(term.column for term in terms)} <= set(names)
        parts = all(term.part in ("", *MOMENT_PARTS, *NUMBER_PARTS, *CURVES) for term in terms)
        fine = known and parts and target not in (term.column for term in terms)
        fine = fine and len(set(terms)) == len(terms) == function.columns and 0 < share <= agree < 1
        fine = fine and all(type(count) is int and count >= 0 for count in (rows, broken, *examples))
        fine = fine and broken <= rows and examples_fit(examples, broken) and isinstance(data["leads"], bool)
        if not fine or share != kept_share(rows, broken):
            raise ValueError(
                f"rule: expected a column, others, a function of them and its share; got {target!r:.40}"
            )
        return cls(target, terms, function, share, agree, rows, broken, examples, data["leads"])


def _sum(words: list[str], function: Affine) -> str:
    """Signed terms and a constant.

    >>> _sum(["h", "m"], Affine((60.0, -1.0), 0.5))
    '60 · h − m + 0.5'
    """
    pairs = sorted(zip(function.factors, words, strict=True), key=lambda pair: pair[0] < 0)
    parts = [(factor, word if abs(factor) == 1 else f"{abs(factor):.6g} · {word}") for factor, word in pairs]
    if function.constant or not parts:
        parts.append((function.constant, f"{abs(function.constant):.6g}"))
    first = ("−" if parts[0][0] < 0 else "") + parts[0][1]
    return first + "".join(f" {'−' if factor < 0 else '+'} {word}" for factor, word in parts[1:])


def _product(words: list[str], function: Product) -> str:
    """Factors, then what they are divided by.

    >>> _product(["mass", "height"], Product((1, -2), 1.0))
    'mass / height²'
    """
    raised = {1: "", 2: "²", 3: "³", 4: "⁴"}
    pairs = list(zip(words, function.powers, strict=True))
    above = [f"{word}{raised[power]}" for word, power in pairs if power > 0]
    below = [f"{word}{raised[-power]}" for word, power in pairs if power < 0]
    if function.factor != 1 or not above:
        above.insert(0, f"{function.factor:.6g}")
    return " · ".join(above) + "".join(f" / {word}" for word in below)
