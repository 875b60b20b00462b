r"""Counts of pairs of labels: what a column of very many labels has to do with other columns of listed values.

With n(i, v) rows in which label i meets value v of another column, N(v) = Σ_i n(i, v), T(v) the number of labels that v
meets, and a distribution b to back off to,

    P(i | v) = (n(i, v) − δ 1{n > 0} + (β + δ T(v)) b(i)) / (N(v) + β)

has Dirichlet's back-off (δ = 0) and Kneser and Ney's absolute discount (β = 0) for its ends. β and δ are those under
which every row is most likely given all the others.

Reference: S. F. Chen, J. Goodman, An empirical study of smoothing techniques for language modeling, 1999.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctem.tables.encoding.codecs import Codec, Labels
from ctem.tables.encoding.lookup import find
from ctem.tables.io.cells import Cells

__all__ = ["BackOff", "LabelPair", "PairIndex", "find_pairs", "left_out_shares", "slots"]

Vector = NDArray[np.float64]
Places = NDArray[np.int64]
MOST_COLUMNS = 64  # that a column of many labels is counted with
KEPT = 8  # of them, at most
MOST_COUNTS = 2**22  # of a file
PAIRS = 20_000  # by which back-off is chosen
STRENGTHS = tuple(np.geomspace(0.01, 1e5, 22).tolist())
DISCOUNTS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)
EVIDENCE, SURE = 20.0, 4.0  # nats that counts must gain in all, and standard errors


class BackOff(NamedTuple):
    """How counts are shrunk, and how likely rows are then.

    >>> BackOff(1.0, 0.5, -0.2).log_prob
    -0.2
    """

    strength: float  # β
    discount: float  # δ
    log_prob: float  # the mean over rows, each given all others


class PairIndex:
    """Counts of pairs by one of their sides: the pairs of every key lie side by side.

    Arguments:
        key, other, counts: of every pair, which comes once.
        keys, others: how many there may be of each.

    >>> index = PairIndex(np.array([0, 0, 1]), np.array([2, 0, 2]), np.array([5, 1, 3]), 2, 3)
    >>> index.other, index.rows, index.kinds
    (array([0, 2, 2]), array([6., 3.]), array([2, 1]))
    """

    def __init__(self, key: Places, other: Places, counts: Places, keys: int, others: int):
        order = np.lexsort((other, key))
        self.key, self.other, self.count, self.others = key[order], other[order], counts[order], others
        self.code = self.key * others + self.other
        self.start = np.searchsorted(self.key, np.arange(keys + 1))
        self.rows, self.kinds = np.bincount(key, counts, keys), np.diff(self.start)

    def of(self, key: Places, other: Places) -> Places:
        """How often each pair was seen."""
        code = key * self.others + other
        at = np.searchsorted(self.code, code).clip(0, len(self.code) - 1)
        return np.where(self.code[at] == code, self.count[at], 0)

    def spread(self, key: Places) -> tuple[Places, Places]:
        """All pairs of the keys of rows: which row, and which pair, one after the other."""
        kinds = self.kinds[key]
        row = np.repeat(np.arange(len(key)), kinds)
        first = np.repeat(self.start[key] - np.cumsum(kinds) + kinds, kinds)
        return row, first + np.arange(len(row))

    def repeated(self) -> PairIndex:
        """Without what was seen once, whatever its key: the other rows know nothing of it."""
        again = np.bincount(self.other, self.count, self.others)[self.other] > 1
        key, other, count = self.key[again], self.other[again], self.count[again]
        return PairIndex(key, other, count, len(self.kinds), self.others)

    def back_off(self, base: Vector, keys: slice = slice(None)) -> BackOff:
        """The back-off under which rows are most likely given all others.

        Arguments:
            base: b of what every pair holds beside its key.
            keys: those that are to be shrunk.
        """
        of = np.zeros(len(self.kinds), bool)
        of[keys] = True
        some = np.flatnonzero(of[self.key])
        some = some[np.linspace(0, len(some) - 1, min(len(some), PAIRS)).astype(np.int64)]
        count, key, base = self.count[some], self.key[some], base[some]
        left, rows, kinds = count - 1, self.rows[key] - 1, self.kinds[key] - (count == 1)

        def log_prob(strength: float, discount: float) -> float:
            mass = left - discount * (left > 0) + (strength + discount * kinds) * base
            return float((np.log(mass / (rows + strength)) * count).sum()) / max(1, int(count.sum()))

        strength, discount = max(product(STRENGTHS, DISCOUNTS), key=lambda pair: log_prob(*pair))
        return BackOff(strength, discount, log_prob(strength, discount))


@dataclass(frozen=True)
class LabelPair:
    """How often the labels of a column meet the values of another.

    Arguments:
        column: of very many labels.
        partner: the other column.
        labels, values, counts: pairs that were seen: the slot of the label, that of the value, and rows.
        gain: nats that the partner gives about a label, each row given all others.

    >>> pair = LabelPair("city", "state", (0, 1), (3, 3), (2, 1), 0.4)
    >>> LabelPair.from_json(pair.to_json(), {"city": Labels("label", ("a", "b"), (0, 0), (0.5, 0.5))})
    Traceback (most recent call last):
    ...
    ValueError: pairs: expected two columns of labels; got 'city', 'state'
    """

    column: str
    partner: str
    labels: tuple[int, ...]
    values: tuple[int, ...]
    counts: tuple[int, ...]
    gain: float

    def to_json(self) -> dict[str, Any]:
        """These counts as plain JSON."""
        lists = {"labels": list(self.labels), "values": list(self.values), "counts": list(self.counts)}
        return {"column": self.column, "partner": self.partner, **lists, "gain": self.gain}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], codecs: Mapping[str, Codec]) -> LabelPair:
        """The counts that ``to_json`` wrote, of columns with these codecs; anything else is refused."""
        column, partner, gain = data["column"], data["partner"], float(data["gain"])
        one, other = codecs.get(column), codecs.get(partner)
        if not isinstance(one, Labels) or not isinstance(other, Labels) or not one.apart or one is other:
            raise ValueError(f"pairs: expected two columns of labels; got {column!r:.40}, {partner!r:.40}")
        lists = tuple(tuple(data[key]) for key in ("labels", "values", "counts"))
        fine = len({len(count) for count in lists}) == 1 and 1 <= len(lists[0]) <= MOST_COUNTS
        fine = fine and all(type(count) is int and 0 <= count < 2**40 for some in lists for count in some)
        fine = fine and max(lists[0]) < one.slots and max(lists[1]) < other.slots and min(lists[2]) > 0
        fine = fine and 0 <= gain < np.inf
        if not fine or len(set(zip(*lists[:2], strict=True))) < len(lists[0]):
            raise ValueError(f"pairs: expected labels of {column!r:.40}, values and counts, each pair once")
        return cls(column, partner, lists[0], lists[1], lists[2], gain)


def find_pairs(codecs: Mapping[str, Codec], cells: Mapping[str, Cells]) -> tuple[LabelPair, ...]:
    """Counts of the columns with labels that share a code, with the columns that predict them best, the best first.

    Every row is predicted from all others. Columns that are independent of each other gain nothing.

    >>> find_pairs({}, {})
    ()
    """
    listed = {name: codec for name, codec in codecs.items() if isinstance(codec, Labels)}
    many = [name for name, codec in listed.items() if codec.can_be_apart]
    if not many:
        return ()
    listed = {name: codec.kept_apart() if name in many else codec for name, codec in listed.items()}
    names = list(dict.fromkeys([*many, *listed]))[:MOST_COLUMNS]
    n = min(len(cells[name]) for name in names)  # a sketch has values beside its rows
    slot = {name: slots(name, listed[name], cells[name])[:n] for name in names}
    pairs = []
    for name in many:
        tried = [_pair(name, other, slot) for other in names if other != name]
        kept = sorted((pair for pair in tried if pair is not None), key=lambda pair: -pair.gain)
        pairs += kept[:KEPT]
    return tuple(pairs)


def slots(name: str, codec: Labels, cells: Cells) -> Places:
    """The slot of every cell (``ctem.densities.anyorder.apart``); −1 where it is missing or was never seen.

    >>> city = Labels("label", ("a", "b", "c"), (0, 1, 0), (0.5, 1.0, 0.5)).kept_apart()
    >>> slots("city", city, Cells("label", np.array([0, 1]), np.zeros(2, bool), ("c", "b")))
    array([1, 2])
    """
    return np.append(codec.slot_of_value, [-1, -1])[find(name, cells, codec)]


def _pair(column: str, partner: str, slot: Mapping[str, Places]) -> LabelPair | None:
    """The counts of two columns; None where neither predicts the other."""
    label, value = slot[column], slot[partner]
    there = (label >= 0) & (value >= 0)
    label, value = label[there], value[there]
    if not len(label):
        return None
    wide = int(value.max()) + 1
    pairs, counts = np.unique(label * wide + value, return_counts=True)
    index = PairIndex(pairs % wide, pairs // wide, counts, wide, int(label.max()) + 1)
    again = index.repeated()
    gain, error = _gain(again, again.back_off(left_out_shares(again)))
    if gain * len(label) < EVIDENCE or gain < SURE * error:
        return None
    labels, values = (pairs // wide).tolist(), (pairs % wide).tolist()
    return LabelPair(column, partner, tuple(labels), tuple(values), tuple(counts.tolist()), gain)


def left_out_shares(index: PairIndex) -> Vector:
    """For every pair the share of what it holds beside its key among all other rows.

    >>> left_out_shares(PairIndex(np.array([0, 1, 1]), np.array([2, 2, 0]), np.array([1, 1, 2]), 2, 3))
    array([0.33333333, 0.33333333, 0.33333333])
    """
    rows = np.bincount(index.other, index.count)
    return np.asarray((rows[index.other] - 1) / max(rows.sum() - 1, 1))


def _gain(index: PairIndex, shrinkage: BackOff) -> tuple[float, float]:
    """Nats by which rows are likelier than by shares alone, each given all others, and their standard error."""
    base, count, (strength, discount, _) = left_out_shares(index), index.count, shrinkage
    left, rows, kinds = count - 1, index.rows[index.key] - 1, index.kinds[index.key] - (count == 1)
    mass = left - discount * (left > 0) + (strength + discount * kinds) * base
    if not len(count):
        return 0.0, 0.0
    gains = np.log(mass / (rows + strength)) - np.log(base)
    gain = np.average(gains, weights=count)
    error = np.sqrt(np.average((gains - gain) ** 2, weights=count) / count.sum())
    return float(gain), float(error)
