"""Columns that follow from others: class and pclass mean the same, the state follows from the city."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctem.tables.io.cells import Cells

__all__ = ["Rule", "codes_of", "rules"]

Codes = NDArray[np.int64]
MOST_VALUES = 500  # of a column that a rule may be about
MOST_COLUMNS = 100  # that are compared with each other
LOOKED_AT = 20_000  # rows, before all are
HOLDS = 0.99  # of the rows
CHANCE = 0.05  # of the exceptions that there would be if the columns had nothing to do with each other
EVIDENCE = 20  # rows that would be exceptions then


class Rule(NamedTuple):
    """``column`` is a function of the column ``of``, and the other way round if ``mutual``, but in the broken rows.

    >>> Rule("who", "adult_male", False, np.array([7])).column
    'adult_male'
    """

    of: str
    column: str
    mutual: bool
    broken: NDArray[np.int64]


def codes_of(cells: Cells) -> Codes:
    """The cells as whole numbers 0 … k − 1, −1 where missing.

    >>> codes_of(Cells("float", np.array([2.5, 1.0, 2.5]), np.array([False, False, True])))
    array([ 1,  0, -1])
    """
    codes = np.full(len(cells), -1, np.int64)
    _, codes[~cells.missing] = np.unique(cells.values[~cells.missing], return_inverse=True)
    return codes


def rules(columns: Mapping[str, Codes]) -> list[Rule]:
    """Which columns follow from which; of several that a column follows from, that of the fewest values.

    Arguments:
        columns: name → codes, −1 where missing.

    >>> city = np.arange(600) % 6
    >>> [(r.of, r.column, r.mutual) for r in rules({"city": city, "state": city // 2, "code": city + 10})]
    [('city', 'code', True), ('city', 'state', False)]
    """
    few = {name: codes for name, codes in columns.items() if 2 <= codes.max(initial=-1) + 1 <= MOST_VALUES}
    few = dict(list(few.items())[:MOST_COLUMNS])
    pairs = {(a, b): _exceptions(few[a], few[b]) for a, b in permutations(few, 2)}
    odd = {pair: broken for pair, broken in pairs.items() if broken is not None}
    same = {(a, b) for a, b in odd if (b, a) in odd}
    first = {name: next(a for a in few if (a, name) in same or a == name) for name in few}
    mutual = [Rule(a, b, True, np.union1d(odd[a, b], odd[b, a])) for b, a in first.items() if a != b]
    nearest: dict[str, str] = {}  # of rules in one direction, those from columns of the fewest values
    for a, b in (pair for pair in odd if pair not in same and all(first[name] == name for name in pair)):
        if b not in nearest or few[a].max() < few[nearest[b]].max():
            nearest[b] = a
    return mutual + [Rule(a, b, False, odd[a, b]) for b, a in nearest.items()]


def _exceptions(a: Codes, b: Codes) -> Codes | None:
    """The rows in which b is not what it mostly is given a; None if there is no such rule."""
    rows = np.flatnonzero((a >= 0) & (b >= 0))
    some = rows if len(rows) <= LOOKED_AT else np.random.default_rng(0).choice(rows, LOOKED_AT, replace=False)
    chance = int((~_kept(a[some], np.random.default_rng(1).permutation(b[some]))).sum())
    if chance < EVIDENCE or (~_kept(a[some], b[some])).sum() > min(CHANCE * chance, (1 - HOLDS) * len(some)):
        return None
    return rows[~_kept(a[rows], b[rows])]


def _kept(a: Codes, b: Codes) -> NDArray[np.bool_]:
    """Which rows hold the most common value of b given a."""
    wide = int(b.max(initial=0)) + 1
    counts = np.bincount(a * wide + b, minlength=(int(a.max(initial=0)) + 1) * wide).reshape(-1, wide)
    return np.asarray(counts.argmax(1)[a] == b)
