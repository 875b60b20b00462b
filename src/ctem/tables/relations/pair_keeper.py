"""Counts of pairs of labels as a density asks for them: about encoded rows (``ctem.tables.relations.label_pairs``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.densities.anyorder.apart import slots_of
from ctem.tables.encoding.codecs import Labels
from ctem.tables.relations.label_pairs import LabelPair, PairIndex, left_out_shares

__all__ = ["ByCounts", "CodeCounts", "LabelColumn", "LabelCounts", "PairKeeper", "ShrunkCodes"]

Vector = NDArray[np.float64]
Places = NDArray[np.int64]
LEAST = 1e-9  # probability of a code that is backed off to, at least
HALF = 0.5  # rows that every code counts beside its own, in a margin


class LabelColumn(NamedTuple):
    """A column of labels and the encoded column that it owns.

    >>> LabelColumn(Labels("label", ("a", "b", "c"), (0, 0, 1), (0.5, 0.5, 1.0)).kept_apart(), 4).codes(np.arange(3))
    array([0, 0, 1])
    """

    codec: Labels
    at: int

    def shown(self, x: Tensor, visible: Tensor) -> Places:
        """The slot of every row; −1 where it is hidden."""
        number = torch.where(visible[:, self.at], x[:, self.at].detach(), 0.0)
        slot = slots_of(number, self.codec.shared) if self.codec.apart else number.long()
        return torch.where(visible[:, self.at], slot, -1).cpu().numpy()

    def codes(self, slot: Places) -> Places:
        """The code of every slot."""
        return np.maximum(slot - max(self.codec.shared - 1, 0), 0)


@dataclass(frozen=True)
class ShrunkCodes:
    """Codes of a column given labels of another, by shrunk counts (``ctem.densities.anyorder.apart.Weights``).

    Arguments:
        index: counts of codes by labels.
        base: the network's log-probabilities of the codes given those of the other column.
        prior: what counts back off to, of the same shape.
        code: of every label.
        strength, discount: how the counts of every label are shrunk.

    >>> index, half = PairIndex(np.array([0]), np.array([1]), np.array([3]), 1, 2), np.full((1, 2), 0.5)
    >>> ShrunkCodes(index, half, half, np.zeros(1, int), np.ones(1), np.zeros(1)).log_weights(np.array([0])).exp()
    tensor([[0.2500, 1.7500]], dtype=torch.float64)
    """

    index: PairIndex
    base: Vector
    prior: Vector
    code: Places
    strength: Vector
    discount: Vector

    def log_weights(self, slot: Places) -> Tensor:
        """log of how much likelier every code is with each label than by the network, (n, codes)."""
        index, strength, discount = self.index, self.strength[slot], self.discount[slot]
        total = index.rows[slot] + strength
        left = (strength + discount * index.kinds[slot]) / total
        out = left[:, None] * self.prior[self.code[slot]]
        row, pair = index.spread(slot)
        out[row, index.other[pair]] += (index.count[pair] - discount[row]) / total[row]
        return torch.from_numpy(np.log(out / self.base[self.code[slot]]))


class CodeCounts:
    """How often the codes of a column come with each label of another (``ctem.densities.anyorder.apart.Paired``).

    Arguments:
        given: the other column.
        target: the column.
        slots, codes, counts: pairs, some of them several times.
        gain: nats that one gives about the other.

    >>> city = Labels("label", ("a", "b", "c"), (0, 0, 1), (0.5, 0.5, 1.0)).kept_apart()
    >>> state = Labels("label", ("N", "S"), (0, 1), (1.0, 1.0))
    >>> pair = LabelPair("city", "state", (0, 1), (0, 1), (3, 3), 0.4)
    >>> keeper = PairKeeper([pair], {"city": LabelColumn(city, 0), "state": LabelColumn(state, 1)})
    >>> (counts,) = keeper.paired(1)
    >>> counts.shrunk(torch.full((2, 2), 0.5)).log_weights(np.array([0])).exp() > 1
    tensor([[ True, False]])
    """

    def __init__(
        self,
        given: LabelColumn,
        target: LabelColumn,
        slots: Places,
        codes: Places,
        counts: Places,
        gain: float,
    ):
        self.column, self.target, self.gain = given, target, gain
        size = target.codec.size
        pairs, place = np.unique(slots * size + codes, return_inverse=True)
        rows = np.bincount(place.reshape(-1), counts).astype(np.int64)
        self.index = PairIndex(pairs // size, pairs % size, rows, given.codec.slots, size)

    @property
    def given(self) -> int:
        """The encoded column that is given."""
        return self.column.at

    def shown(self, x: Tensor, visible: Tensor) -> Places:
        """The label of every row; −1 where it is hidden."""
        return self.column.shown(x, visible)

    def shrunk(self, base: Tensor) -> ShrunkCodes:
        """The codes given labels, from what a network learned of them given codes alone (codes of the other, codes).

        Counts of rare labels, and of the others, back off to the network, or to the margin if that is better.
        """
        index, shared = self.index, self.column.codec.shared
        code = self.column.codes(np.arange(len(index.kinds)))
        learned = np.maximum(base.double().cpu().numpy(), LEAST)
        prior, strength, discount = learned.copy(), np.ones(len(code)), np.zeros(len(code))
        for keys in (slice(shared), slice(shared, None)):
            priors = learned, np.broadcast_to(self._margin(keys), learned.shape)
            fits = [index.back_off(one[code[index.key], index.other], keys) for one in priors]
            best = max((0, 1), key=lambda k: fits[k].log_prob)
            prior[code[keys]] = priors[best][code[keys]]
            strength[keys], discount[keys] = fits[best].strength, fits[best].discount
        return ShrunkCodes(index, learned, prior, code, strength, discount)

    def _margin(self, keys: slice) -> Vector:
        """Shares of the codes among the rows of some labels."""
        part = slice(*self.index.start[[*keys.indices(len(self.index.kinds))][:2]])
        rows = np.bincount(self.index.other[part], self.index.count[part], self.index.others) + HALF
        return np.asarray(rows / rows.sum())


class LabelCounts:
    """How often the labels that share a code come with each value of another column.

    Arguments:
        given: the other column.
        own: the column.
        slots, labels, counts: pairs, each once.

    >>> city = LabelColumn(Labels("label", ("a", "b", "c"), (0, 0, 1), (0.5, 0.5, 1.0)).kept_apart(), 0)
    >>> state = LabelColumn(Labels("label", ("N", "S"), (0, 1), (1.0, 1.0)), 1)
    >>> counts = LabelCounts(state, city, np.array([0, 1]), np.array([0, 1]), np.array([3, 3]))
    >>> counts.drawn(np.array([1, 0]), np.array([0.2, 0.9]))
    array([1, 0])
    """

    def __init__(self, given: LabelColumn, named: LabelColumn, slots: Places, labels: Places, counts: Places):
        rare, self.column = labels < named.codec.shared, given
        shares = np.array(named.codec.shares)[np.argsort(named.codec.slot_of_value)][: named.codec.shared]
        self.shares = shares / shares.sum()
        self.index = PairIndex(slots[rare], labels[rare], counts[rare], given.codec.slots, named.codec.shared)
        again = self.index.repeated()
        self.back_off = again.back_off(left_out_shares(again))
        self.kept = self.index.count - self.back_off.discount
        self.running = np.append(0.0, np.cumsum(self.kept))

    def total(self, slot: Places) -> Vector:
        """What counts are divided by."""
        return np.asarray(self.index.rows[slot] + self.back_off.strength)

    def left(self, slot: Places) -> Vector:
        """What is left to the shares."""
        return (self.back_off.strength + self.back_off.discount * self.index.kinds[slot]) / self.total(slot)

    def seen(self, slot: Places, label: Places) -> Vector:
        """The part of each pair that was counted."""
        count = self.index.of(slot, label)
        return (count - self.back_off.discount * (count > 0)) / self.total(slot)

    def drawn(self, slot: Places, u: Vector) -> Places:
        """A label that was seen with each value, by its counts."""
        start, end = self.index.start[slot], self.index.start[slot + 1]
        low, high = self.running[start], self.running[end]
        at = np.searchsorted(self.running, low + u * (high - low), "right") - 1
        return self.index.other[np.clip(at, start, end - 1)]


class _Part(NamedTuple):
    """Rows that one pair of columns applies to, and the value of the partner in each."""

    counts: LabelCounts
    row: Places
    value: Places


@dataclass(frozen=True)
class ByCounts:
    """Labels by how often they meet what is shown, each row by the best pair of columns that it shows.

    Arguments:
        shares: of the labels.
        which: the pair of columns by which each row goes, −1 for none.
        value: the slot of the partner in each row.
        pairs: of columns.

    >>> found = ByCounts(np.array([0.5, 0.5]), np.array([-1]), np.array([0]), ())
    >>> found.table()
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """

    shares: Vector
    which: Places
    value: Places
    pairs: tuple[LabelCounts, ...]

    def log_ratio(self, place: Tensor) -> Tensor:
        """log Q(i)/s(i) of a label i for each row, (n,)."""
        label, out = place.cpu().numpy(), np.zeros(len(self.which))
        for counts, row, value in self._parts():
            out[row] = np.log(counts.seen(value, label[row]) / self.shares[label[row]] + counts.left(value))
        return torch.from_numpy(out).to(place.device)

    def table(self) -> Tensor:
        """Q(i) of all labels, (n, labels)."""
        out = np.repeat(self.shares[None], len(self.which), 0)
        for counts, row, value in self._parts():
            out[row] *= counts.left(value)[:, None]
            some, pair = counts.index.spread(value)
            out[row[some], counts.index.other[pair]] += counts.kept[pair] / counts.total(value)[some]
        return torch.from_numpy(out)

    def draw(self, generator: torch.Generator) -> Tensor:
        """A label for each row, (n,)."""
        n, device = len(self.which), generator.device
        u, v = torch.rand(2, n, generator=generator, dtype=torch.float64, device=device).cpu().numpy()
        label = np.searchsorted(np.cumsum(self.shares), u, "right").clip(0, len(self.shares) - 1)
        for counts, row, value in self._parts():
            counted = (v[row] >= counts.left(value)) & (counts.index.kinds[value] > 0)
            label[row[counted]] = counts.drawn(value[counted], u[row[counted]])
        return torch.from_numpy(label)

    def rows(self, index: Tensor) -> ByCounts:
        """Those of these rows."""
        chosen = index.cpu().numpy()
        return ByCounts(self.shares, self.which[chosen], self.value[chosen], self.pairs)

    def _parts(self) -> list[_Part]:
        rows = [(counts, np.flatnonzero(self.which == k)) for k, counts in enumerate(self.pairs)]
        return [_Part(counts, row, self.value[row]) for counts, row in rows if len(row)]


class PairKeeper:
    """Counts of pairs of labels, applied to encoded rows.

    Arguments:
        pairs: the better ones of a column first.
        columns: by name.

    >>> PairKeeper([], {}).about(0)
    False
    """

    def __init__(self, pairs: Sequence[LabelPair], columns: Mapping[str, LabelColumn]):
        self.naming: dict[int, tuple[LabelCounts, ...]] = {}
        codes: dict[tuple[int, int], CodeCounts] = {}
        for pair in pairs:
            first, second = columns[pair.column], columns[pair.partner]
            label, value, counts = (np.array(column) for column in (pair.labels, pair.values, pair.counts))
            named = LabelCounts(second, first, value, label, counts)
            self.naming[first.at] = (*self.naming.get(first.at, ()), named)
            sides = (first, second, label, second.codes(value)), (second, first, value, first.codes(label))
            for given, target, slot, code in sides:
                if (given.at, target.at) not in codes:
                    codes[given.at, target.at] = CodeCounts(given, target, slot, code, counts, pair.gain)
        ranked = sorted(codes.values(), key=lambda pair: -pair.gain)
        self.weighing = {j: tuple(counts for counts in ranked if counts.target.at == j) for _, j in codes}

    def about(self, j: int) -> bool:
        """Whether something was counted with encoded column j."""
        return j in self.weighing

    def paired(self, j: int) -> tuple[CodeCounts, ...]:
        """What was counted of the codes of column j, the best first."""
        return self.weighing.get(j, ())

    def counted(self, x: Tensor, visible: Tensor, j: int) -> tuple[ByCounts, int] | None:
        """The labels of column j that share a code, and how many these are; None where they are not distinguished."""
        if j not in self.naming:
            return None
        which, value = np.full(len(x), -1), np.zeros(len(x), np.int64)
        for k, counts in enumerate(self.naming[j]):
            slot = counts.column.shown(x, visible)
            rows = (which < 0) & (slot >= 0)
            which[rows], value[rows] = k, slot[rows]
        shares = self.naming[j][0].shares
        return ByCounts(shares, which, value, self.naming[j]), len(shares)
