"""Columns of numbers that repeat others, or are the sum or the difference of two, in many rows of a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.densities.anyorder.numbers import FAR
from ctem.tables.encoding.codecs import Codec, Numbers
from ctem.tables.io.cells import Cells
from ctem.tables.margins.bounds import Bounded

__all__ = ["CodecUnits", "Formula", "find_formulas", "measured", "width_of"]

ROWS, FEWER = 4000, 1000  # that formulas are counted in; and for sums first
LEAST, SHARE = 20, 0.01  # rows in which a formula holds, at least, and their share
TIMES = 5.0  # as often as it misses by a cell or a few
MOST = 6  # formulas of a column
COPIES, SUMS = 256, 48  # columns of numbers, at most, among which copies and sums are looked for
WORTH, NATS = 0.02, 4.0  # nats a row that a formula must be worth; what it is worth where it holds,
AGAIN = 0.25  # and what part of that where another one holds as well
NEAR, STEP, SMOOTH = (
    12,
    0.05,
    7,
)  # bins on either side of equality, their width in scores, and over how many to smooth
DISTINCT, ALIKE = 10, 0.5  # values in these rows, at least, and the share of the most frequent one, at most
EXACT = 2**52  # below, float64 has whole numbers and their halves
OFF = 0.3  # of a cell, that a value may lie off the lattice
FINEST = 4e-6  # of a column's scale: what float32 can resolve
CLOSEST = 1e-6  # half the width of a cell in an encoded column, at least, for the same reason

Vector = NDArray[np.float64]
Terms = tuple[tuple[int, int], ...]


class Formula(NamedTuple):
    """A column that is the sum of signed others in a share of the rows; with a share of 0, that is often near to it.

    >>> Formula("total", (("net", 1), ("tax", 1)), 0.97).in_words()
    '= net + tax in 97% of the rows'
    """

    target: str
    terms: tuple[tuple[str, int], ...]
    share: float

    def in_words(self) -> str:
        """The formula and its share.

        >>> Formula("total_bedrooms", (("households", 1),), 0.0).in_words()
        'close to households'
        """
        first, *others = sorted(self.terms, key=lambda term: -term[1])
        rest = "".join(f" {'+' if sign > 0 else '−'} {name}" for name, sign in others)
        return f"= {first[0]}{rest} in {self.share:.0%} of the rows" if self.share else f"close to {first[0]}"

    def to_json(self) -> list[Any]:
        """This formula as plain JSON."""
        return [self.target, [list(term) for term in self.terms], self.share]

    @classmethod
    def from_json(cls, data: Sequence[Any], names: Sequence[str]) -> Formula:
        """The formula that ``to_json`` wrote, about some of these columns."""
        target, terms, share = data
        signed = tuple((str(name), int(sign)) for name, sign in terms)
        columns = [target, *(name for name, _ in signed)]
        fine = 1 <= len(signed) <= 2 and len(set(columns)) == len(columns) and set(columns) <= set(names)
        fine = fine and all(sign in (-1, 1) for _, sign in signed) and any(sign > 0 for _, sign in signed)
        if not (fine and 0 <= float(share) <= 1):
            raise ValueError(f"formula: expected a column, signed others and a share; got {data!r}")
        return cls(str(target), signed, float(share))


def find_formulas(codecs: Mapping[str, Codec], cells: Mapping[str, Cells]) -> tuple[Formula, ...]:
    """The formulas that hold in many rows, and far more often than they nearly hold; and columns that are close.

    Only rows count in which the column that is explained is in its continuous part. Two columns are close if the
    distribution of their difference, in the score of the one that is explained, has an edge or a peak near zero: a
    payment is no larger than the bill, households need bedrooms.

    >>> from ctem.tables.schema import Schema
    >>> from ctem.tables.io.frame import read_frame
    >>> X = np.random.default_rng(0).integers(0, 10_000, (500, 3))
    >>> X[:300, 2] = X[:300, 0] + X[:300, 1]
    >>> [formula.in_words() for formula in Schema.fit(read_frame(X)).formulas]
    ['= x2 − x1 in 60% of the rows', '= x2 − x0 in 60% of the rows', '= x0 + x1 in 60% of the rows']
    """
    formulas: list[Formula] = []
    for group in _groups(codecs).values():
        formulas += _Search(group, cells).formulas()
    place = {name: i for i, name in enumerate(codecs)}
    return tuple(sorted(formulas, key=lambda formula: (place[formula.target], -formula.share)))


def _groups(codecs: Mapping[str, Codec]) -> dict[tuple[str, str], dict[str, Numbers]]:
    """Columns of numbers that compare: plain ones, and moments or durations in one unit."""
    groups: dict[tuple[str, str], dict[str, Numbers]] = {}
    for name, codec in codecs.items():
        if isinstance(codec, Numbers) and abs(codec.lattice.shift) < EXACT:
            kind = codec.lattice.type if codec.lattice.unit else "number"
            groups.setdefault((kind, codec.lattice.unit), {})[name] = codec
    return groups


class _Search:
    """Columns that compare, in some rows of the table."""

    def __init__(self, codecs: Mapping[str, Numbers], cells: Mapping[str, Cells]):
        self.names = list(codecs)[:COPIES]
        chosen = [codecs[name] for name in self.names]
        n = min(len(cells[name]) for name in self.names)  # a sketch adds what its sample of the rows missed
        rows = np.linspace(0, n - 1, min(n, ROWS)).astype(np.int64)
        self.values = np.stack(
            [measured(codecs[name], _sampled(cells[name], rows)) for name in self.names], 1
        )
        self.distinct, place = np.unique(self.values, return_inverse=True)
        self.place = place.reshape(self.values.shape)
        self.width = np.array([width_of(codec) for codec in chosen])
        atoms = [[atom + _shift(codec) for atom in codec.atoms] for codec in chosen]
        free = [~np.isin(v, a) & ~np.isnan(v) for v, a in zip(self.values.T, atoms, strict=True)]
        self.free = np.stack(free, 1)
        self.first = _first_of_copies(self.values)
        self.codecs = chosen
        self.summed = len(chosen) <= SUMS and all(codec.lattice.type != "moment" for codec in chosen)

    def formulas(self) -> list[Formula]:
        """The formulas of every column that are worth most."""
        every = [dict(self._near(j)) for j in range(len(self.names))]
        copies = (
            (j, ((i, 1),)) for i in range(len(self.names)) for j in self._explained(((i, 1),), slice(None))
        )
        for j, terms in chain(copies, self._sums() if self.summed else ()):
            every[j].setdefault(terms, 0.0)
        return [formula for j, worth in enumerate(every) for formula in self._chosen(j, worth)]

    def _chosen(self, j: int, worth: dict[Terms, float]) -> Iterator[Formula]:
        """The formulas of column j one after the other: next is the one that is worth most beside those before it."""
        hits = {terms: self._hits(terms)[0][:, j] for terms in worth}
        hits = {terms: rows & self._diverse(rows, j) for terms, rows in hits.items()}
        left, total = dict(worth), float(self.free[:, j].sum())
        covered = np.zeros(len(self.values), bool)

        def value(terms: Terms) -> float:
            new, again = (hits[terms] & ~covered).sum(), (hits[terms] & covered).sum()
            return float(left[terms] + NATS * (new + AGAIN * again) / total)

        while left and len(worth) - len(left) < MOST:
            best = max(left, key=value)
            if value(best) < WORTH:
                return
            named = tuple((self.names[i], sign) for i, sign in best)
            share = float(hits[best].sum() / total)
            yield Formula(self.names[j], named, share if share >= SHARE else 0.0)
            covered |= hits[best]
            del left[best]

    def _diverse(self, rows: NDArray[np.bool_], j: int) -> bool:
        """Whether column j has many values in these rows."""
        _, counts = np.unique(self.values[rows, j], return_counts=True)
        return len(counts) >= DISTINCT and bool(counts.max() <= ALIKE * counts.sum())

    def _near(self, j: int) -> Iterator[tuple[Terms, float]]:
        """The columns that are close to column j, and what that is worth in nats a row.

        Rows that are copies of others count once: the differences in them are the same, which looks like a peak.
        """
        rng = np.random.default_rng(0)
        if len(self.names) > SUMS:
            return
        scores, total = self._scores(j, self.distinct)[self.place], (self.free[:, j] & self.first).sum()
        gap = np.abs(self.values - self.values[:, [j]])
        every = ~(gap <= np.minimum(self.width, self.width[j]) / 2) & ~np.isnan(scores) & self.free[:, [j]]
        for i in np.flatnonzero(every[self.first].sum(0) >= 10 * LEAST).tolist():
            if i != j:
                rows = every[:, i]
                own, other, first = scores[rows, j], scores[rows, i], self.first[rows]
                chance = _sharpness((own - rng.permutation(other))[first])
                worth = (_sharpness((own - other)[first]) - chance - NEAR) / total
                if worth >= WORTH:
                    yield ((i, 1),), worth

    def _scores(self, j: int, values: Vector) -> Vector:
        """Values as the encoded column j has them; nan where it cannot."""
        transform, X = self.codecs[j].transform, values - _shift(self.codecs[j])
        low, high = transform.edges if isinstance(transform, Bounded) else (-math.inf, math.inf)
        inside = (low < X) & (high > X)
        x = transform(torch.from_numpy(np.where(inside, X, transform.location))).numpy()
        return np.where(inside, x, np.nan)

    def _sums(self) -> Iterator[tuple[int, Terms]]:
        few = slice(None, None, max(1, len(self.values) // FEWER))
        for i, k in combinations(range(len(self.names)), 2):
            for two in (((i, 1), (k, 1)), ((i, 1), (k, -1)), ((k, 1), (i, -1))):
                if self._explained(two, few):
                    yield from ((j, two) for j in self._explained(two, slice(None)))

    def _explained(self, terms: Terms, rows: slice) -> list[int]:
        """The columns that these terms explain in enough of the rows."""
        hits, near = self._hits(terms, rows)
        if len(terms) > 1:  # with nothing added, it is a copy
            hits = hits & (self.values[rows][:, [i for i, _ in terms]] != 0).all(1, keepdims=True)
        count, part = hits.sum(0), len(hits) / len(self.values)
        enough = (count >= LEAST * part) & (count >= SHARE * self.free[rows].sum(0))
        enough &= count >= TIMES * near.sum(0) / 6
        enough[[i for i, _ in terms]] = False
        return np.flatnonzero(enough).tolist()

    def _hits(self, terms: Terms, rows: slice = slice(None)) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """For every column in which rows the terms hit it, and where they miss it by three cells at most."""
        finest = np.minimum(self.width, min(self.width[i] for i, _ in terms))
        with np.errstate(over="ignore", invalid="ignore"):
            total = sum(sign * self.values[rows, i] for i, sign in terms)
            gap = np.abs(self.values[rows] - np.asarray(total)[:, None])
        hits = (gap <= finest / 2) & self.free[rows]
        return hits, (gap <= 3.5 * finest) & self.free[rows] & ~hits


def _first_of_copies(values: Vector) -> NDArray[np.bool_]:
    """Which rows (n, d) are no copy of an earlier one.

    >>> _first_of_copies(np.array([[1.0, np.nan], [2.0, 0.0], [1.0, np.nan]]))
    array([ True,  True, False])
    """
    first = np.zeros(len(values), bool)
    first[np.unique(np.where(np.isnan(values), np.inf, values), axis=0, return_index=True)[1]] = True
    return first


def _sharpness(gap: Vector) -> float:
    """How much better a histogram of differences near 0 fits them than a smooth one: nats, of all of them."""
    close = gap[np.abs(gap) <= STEP * NEAR]  # counting all would take several times as long
    count = np.histogram(close, STEP * np.arange(-NEAR, NEAR + 1))[0].astype(np.float64)
    smooth = np.convolve(np.pad(count, SMOOTH // 2, mode="edge"), np.full(SMOOTH, 1 / SMOOTH), "valid")
    seen = count > 0
    return float((count[seen] * np.log(count[seen] / smooth[seen])).sum() - count.sum() + smooth.sum())


def width_of(codec: Numbers) -> float:
    """The width of the cell of a value, as far as float32 can distinguish it from its neighbours.

    >>> from ctem.tables.margins.lattices import Lattice
    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> curve = MonotoneMap(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
    >>> width_of(Numbers(Lattice("float", step=0.1, width=0.1), curve))
    0.1
    """
    return max(codec.lattice.width, FINEST * codec.transform.scale)


def _shift(codec: Numbers) -> float:
    return codec.lattice.shift / codec.lattice.per


def _sampled(cells: Cells, rows: NDArray[np.int64]) -> Cells:
    return Cells(cells.type, cells.values[rows], cells.missing[rows], unit=cells.unit)


def measured(codec: Numbers, cells: Cells) -> Vector:
    """The numbers of cells, days for moments and durations, nan where missing.

    >>> from ctem.tables.margins.lattices import Lattice
    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> curve = MonotoneMap(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
    >>> measured(Numbers(Lattice("int"), curve), Cells("int", np.array([7]), np.zeros(1, bool)))
    array([7.])
    """
    return codec.lattice.measure(cells) + _shift(codec)


class CodecUnits:
    """What encoded rows stand for, by the codecs of a table (``ctem.densities.anyorder.ties.Units``).

    Arguments:
        codecs: for each encoded real column, its codec.
        parents: for a real column that exists only where a category has code 0, that category.

    >>> from ctem.tables.margins.lattices import Lattice
    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> curve = MonotoneMap(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
    >>> units = CodecUnits({0: Numbers(Lattice("float", step=0.1, width=0.1), curve)}, {})
    >>> units.values(torch.tensor([[0.5]]), 0)  # sinh 0.5 = 0.521, on the lattice
    tensor([0.5000], dtype=torch.float64)
    """

    def __init__(self, codecs: Mapping[int, Numbers], parents: Mapping[int, int]):
        self.codecs, self.parents = dict(codecs), dict(parents)
        self.decoded = {j: _Kept(partial(_decoded, codec)) for j, codec in self.codecs.items()}
        self.ends = {j: _Kept(partial(_ends, codec)) for j, codec in self.codecs.items()}

    def values(self, x: Tensor, j: int) -> Tensor:
        """The values, float64 (n,), of a real column j of rows x (n, d)."""
        codec, X = self.codecs[j], self.decoded[j](x[:, j].detach().contiguous())
        if j in self.parents:
            atoms = torch.tensor([0.0, *codec.atoms, math.nan], dtype=torch.float64, device=x.device)
            code = x[:, self.parents[j]].long().clamp(0, len(atoms) - 1)
            X = torch.where(code > 0, atoms[code], X)
        return X + _shift(codec)

    def cells(self, value: Tensor, j: int) -> Tensor:
        """The ends of the cell of a value in the encoded column j, (n, 2); nan where it has none."""
        return self.ends[j](value - _shift(self.codecs[j]))

    def width(self, j: int) -> float:
        """Of the cell of a value of column j."""
        return width_of(self.codecs[j])


class _Kept:
    """A function of numbers (n,), each by itself; the chain rule asks it for the same ones many times."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        self.function = function
        self.known = self.values = torch.zeros(0)  # numbers in order, and the function of each

    def __call__(self, x: Tensor) -> Tensor:
        if len(self.known) and self.known.device == x.device:
            place = torch.searchsorted(self.known, x).clamp_max(len(self.known) - 1)
            if torch.equal(self.known[place], x):
                return self.values[place]
        self.known, place = x.unique(return_inverse=True)
        self.values = self.function(self.known)
        return self.values[place]


def _decoded(codec: Numbers, x: Tensor) -> Tensor:
    return codec.lattice.snap(codec.transform.inverse(x.double()))


def _ends(codec: Numbers, X: Tensor) -> Tensor:
    """The ends of the cells of values (n,) in the encoded column, (n, 2); nan for those that have none."""
    width = width_of(codec)
    low, high = codec.transform.edges if isinstance(codec.transform, Bounded) else (-math.inf, math.inf)
    point = codec.lattice.snap(X)
    fits = (point > low) & (point < high) & ((point - X).abs() < OFF * width)
    for atom in codec.atoms:
        fits &= (point - atom).abs() > OFF * width
    point = torch.where(fits, point, codec.transform.location)
    both = torch.cat([point - width / 2, point + width / 2]).clamp(low, high)
    ends = _inside(codec, point, codec.transform(both).view(2, -1).T)
    middle = ends.mean(1, keepdim=True)
    half = (ends[:, 1:] - middle).clamp_min(CLOSEST)
    fits = fits & (middle.squeeze(1).abs() < FAR)
    return torch.where(fits.unsqueeze(1), torch.cat([middle - half, middle + half], 1), math.nan)


def _inside(codec: Numbers, point: Tensor, ends: Tensor) -> Tensor:
    """Cells (n, 2) that reach an end of their column, and so infinitely far, cut where they have the right width.

    That is the width in X times the slope in the middle, or what reaches as far beyond the middle as the other end.
    """
    out = ends.abs() > FAR
    if not bool(out.any()):
        return ends
    middle, log_slope = codec.transform.with_log_slope(point)
    width = log_slope.exp() * width_of(codec)
    low = torch.minimum(ends[:, 1] - width, 2 * middle - ends[:, 1])
    high = torch.maximum(ends[:, 0] + width, 2 * middle - ends[:, 0])
    cut = torch.where(out, torch.stack([low, high], 1), ends)
    return torch.where(out.all(1, keepdim=True), ends, cut)
