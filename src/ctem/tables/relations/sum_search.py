"""Columns of numbers that are sums or products of others, in whatever unit: found by a few rows, counted in many."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctem.tables.relations.functions import Affine, Function, Product
from ctem.tables.relations.kept_rules import Term
from ctem.tables.relations.quantities import Quantity

__all__ = ["closed_functions"]

Vector = NDArray[np.float64]
Column = tuple[Term, Vector]
FEWER = 300  # rows in which a function is tried first
THIN = 5  # of so many, every so many are looked at before all of them
FEW = 4  # every so many of them give the factor of a product
TRIALS = 6  # small sets of rows that a function is fitted to
PROMISING = 0.25  # share of rows that it hits then, at least
SHARE = 0.95  # and in the end
DISTINCT = 8  # values of a column that is calculated, at least
EVIDENCE, CHANCE = (
    20,
    0.1,
)  # rows that the most frequent value would miss, at least; of which a function may miss
NEAR, NEARLY = 3.5, 0.02  # cells by which it misses nearly, and of the rows that it hits, how often at most
SLACK = 1e-7  # of a number, for rounding
POWERS = ((1, 1), (1, -1), (-1, 1), (1, -2), (-2, 1))
MANY = 24  # columns at most among which sums of three and more are looked for
LARGEST = 1e12  # factor or constant


def closed_functions(
    columns: Sequence[Column], targets: Mapping[str, tuple[Vector, Quantity]], most: int
) -> Iterator[tuple[str, tuple[Term, ...], Function]]:
    """Targets, what they are calculated from, and how.

    Arguments:
        columns: that a function may take, and their numbers (n,).
        targets: columns by name, their numbers (n,) and what these are.
        most: columns that are tried in pairs.

    >>> x = np.random.default_rng(0).normal(size=200).round(2)
    >>> from ctem.tables.encoding.codecs import Labels
    >>> from ctem.tables.relations.quantities import quantity_of
    >>> celsius = np.arange(200.0)
    >>> grade = quantity_of(Labels("float", tuple(1.8 * celsius + 32), tuple(range(200)), (1.0,) * 200), (0,))
    >>> [f for *_, f in closed_functions([(Term("celsius"), celsius)], {"fahrenheit": (1.8 * celsius + 32, grade)}, 9)]
    [Affine(factors=(1.8,), constant=32.0)]
    """
    trial = _Trial(targets)
    if not trial.names:
        return
    done: set[tuple[str, str]] = set()
    for term, value in sorted(
        columns, key=lambda column: not column[0].part
    ):  # the hundreds, not a hundredth, rounded
        ruled = {target for target, name in done if name == term.column}
        for target, function in trial.sums([value], {term.column} | ruled):
            done.add((target, term.column))
            yield target, (term,), function
    whole = [column for column in columns if not column[0].part][:most]
    summed: set[str] = set()
    for pair in combinations(whole, 2):
        names = {term.column for term, _ in pair}
        without = names | {target for target, name in done if name in names}
        if without >= set(trial.names):
            continue
        for target, function in trial.sums([value for _, value in pair], without):
            summed.add(target)
            yield target, tuple(term for term, _ in pair), function
        for target, product in trial.products([value for _, value in pair], without):
            yield target, tuple(term for term, _ in pair), product
    if 4 <= len(whole) <= MANY:
        yield from _many(whole, trial, summed | {target for target, _ in done})


class _Trial:
    """Targets, and what hits them."""

    def __init__(self, targets: Mapping[str, tuple[Vector, Quantity]]):
        fine = {name: target for name, target in targets.items() if _diverse(target[0])}
        self.names = list(fine)
        self.width = np.array([quantity.width for _, quantity in fine.values()])
        self.y = np.stack([value for value, _ in fine.values()], 1) if fine else np.zeros((0, 0))
        self.few = np.linspace(0, len(self.y) - 1, min(len(self.y), FEWER)).astype(np.int64)
        self.mode = np.array([_mode(column) for column in self.y.T])
        self.informative = ~np.isnan(self.y) & (self.y != self.mode)  # a frequent value is hit by chance
        y = self.y[self.few]
        self.tried = _Tried(y, self.informative[self.few], self.width / 2 + SLACK * np.abs(y))
        self.step = max(1, THIN * len(y) // FEWER)
        self.thin = self.tried.every(self.step)
        self.rng = np.random.default_rng(0)

    def sums(self, values: list[Vector], without: set[str]) -> Iterator[tuple[str, Affine]]:
        """The targets that are factors times these numbers and a constant."""
        x = np.stack([*values, np.ones(len(self.y))], 1)
        tried = x[self.few]
        known = np.flatnonzero(~np.isnan(tried).any(1))
        if len(known) < EVIDENCE:
            return
        best, factors = np.zeros(len(self.names)), np.zeros((x.shape[1], len(self.names)))
        for _ in range(TRIALS):
            some = known[_spread(tried[known, 0], x.shape[1], self.rng)]
            solution = _solved(tried[some], self.tried.y[some])
            if solution is None:
                continue
            share = self._share(tried, solution)
            better = share > best
            best, factors = np.where(better, share, best), np.where(better, solution, factors)
        for j in np.flatnonzero(best >= PROMISING).tolist():
            if self.names[j] not in without and (function := self._fitted(x, j, factors[:, j])) is not None:
                yield self.names[j], function

    def products(self, values: list[Vector], without: set[str]) -> Iterator[tuple[str, Product]]:
        """The targets that are a factor times powers of these numbers."""
        tried = [value[self.few] for value in values]
        for powers in POWERS:
            raised = _raised(tried, powers)
            with np.errstate(all="ignore"):
                ratio = self.tried.y[::FEW] / raised[::FEW, None]
            usable = np.isfinite(ratio) & (ratio != 0) & self.tried.informative[::FEW]
            if not usable.any():
                continue
            ratio = np.sort(np.where(usable, ratio, np.nan), axis=0)  # nan last
            middle = usable.sum(0) // 2
            factor = np.nan_to_num(np.take_along_axis(ratio, middle[None].clip(max=len(ratio) - 1), 0)[0])
            share = self._share(raised[:, None], factor[None])
            for j in np.flatnonzero(share >= PROMISING).tolist():
                if self.names[j] in without:
                    continue
                if (exact := self._simple(_raised(values, powers), j, factor[j])) is not None:
                    yield self.names[j], Product(powers, exact)

    def _share(self, x: Vector, factors: Vector) -> Vector:
        """Of the rows that are tried with a number but the most frequent one, those that x @ factors hits, (targets,).

        0 for targets that some of the rows show to be far from ``PROMISING``: those are nearly all.
        """
        likely = np.flatnonzero(self.thin.hit(x[:: self.step] @ factors) >= PROMISING / 2)
        share = np.zeros(len(self.names))
        if len(likely):
            value = x @ (factors[:, likely] if factors.shape[1] > 1 else factors)
            share[likely] = self.tried.of(likely).hit(value)
        return share

    def _gap(self, value: Vector, j: int) -> tuple[Vector, Vector]:
        """How far target j is off a value, in cells, and its numbers, in rows that have both."""
        there = ~np.isnan(value) & ~np.isnan(self.y[:, j])
        y = self.y[there, j]
        return (np.abs(value[there] - y) - SLACK * np.abs(y)) / self.width[j], y

    def _hits(self, value: Vector, j: int) -> int:
        return int((self._gap(value, j)[0] <= 0.5).sum())

    def _holds(self, value: Vector, j: int) -> bool:
        """Whether target j has this value: in nearly all rows, hardly ever nearly, and not by chance."""
        gap, y = self._gap(value, j)
        hits, near = int((gap <= 0.5).sum()), int(((gap > 0.5) & (gap <= NEAR)).sum())
        missed = int((y != self.mode[j]).sum())
        fine = missed >= EVIDENCE and len(y) - hits <= CHANCE * missed
        return fine and hits >= SHARE * len(y) and near <= NEARLY * hits

    def _fitted(self, x: Vector, j: int, factors: Vector) -> Affine | None:
        """The sum, by least squares on the rows that it hits, in simple numbers if these do as well."""
        for _ in range(3):
            value = x @ factors
            near = np.abs(value - self.y[:, j]) <= 1.5 * self.width[j] + SLACK * np.abs(value)
            if near.sum() <= x.shape[1]:
                return None
            factors = np.linalg.lstsq(x[near], self.y[near, j], rcond=None)[0]
        if not self._holds(x @ factors, j):
            return None
        factors = self._simplest(x, j, factors)
        if not factors[:-1].all() or np.abs(factors).max() > LARGEST:
            return None
        return Affine(tuple(factors[:-1].tolist()), float(factors[-1]))

    def _simplest(self, x: Vector, j: int, factors: Vector) -> Vector:
        """The first of ever longer numbers that hits as many rows."""
        least = self._hits(x @ factors, j)
        for digits in range(7):
            short = np.round(factors, digits)
            if self._hits(x @ short, j) >= least:
                return short + 0.0
        ratios = np.array([float(Fraction(factor).limit_denominator(360)) for factor in factors.tolist()])
        return ratios if self._hits(x @ ratios, j) >= least else factors

    def _simple(self, raised: Vector, j: int, factor: float) -> float | None:
        """The factor of a product, by least squares on the rows that it hits, as a short number; None if it fails."""
        for _ in range(3):
            near = np.abs(raised * factor - self.y[:, j]) <= 1.5 * self.width[j] + SLACK * np.abs(
                self.y[:, j]
            )
            near &= raised != 0
            if near.sum() < EVIDENCE:
                return None
            factor = float((raised[near] * self.y[near, j]).sum() / (raised[near] ** 2).sum())
        if not self._holds(raised * factor, j) or not 1 / LARGEST < abs(factor) < LARGEST:
            return None
        least = self._hits(raised * factor, j)
        scale = math.floor(math.log10(abs(factor)))
        for digits in range(1, 9):
            short = round(factor, digits - 1 - scale)
            if self._hits(raised * short, j) >= least:
                return short
        ratio = float(Fraction(factor).limit_denominator(360))
        return ratio if self._hits(raised * ratio, j) >= least else factor


class _Tried(NamedTuple):
    """The numbers of targets in some rows, (n, k)."""

    y: Vector
    informative: NDArray[np.bool_]
    within: Vector  # how near to it a value hits a number

    def hit(self, value: Vector) -> Vector:
        """Of the informative rows that have a value (n, k), the share in which it hits, (k,)."""
        there = ~np.isnan(value) & self.informative
        with np.errstate(invalid="ignore"):
            near = np.abs(value - self.y) <= self.within
        return np.asarray((near & there).sum(0) / there.sum(0).clip(1))

    def every(self, step: int) -> _Tried:
        """Every so many of the rows."""
        return _Tried(self.y[::step].copy(), self.informative[::step].copy(), self.within[::step].copy())

    def of(self, targets: NDArray[np.int64]) -> _Tried:
        """Some of the targets."""
        return _Tried(self.y[:, targets], self.informative[:, targets], self.within[:, targets])


def _raised(values: Sequence[Vector], powers: Sequence[int]) -> Vector:
    """The product of powers of two columns of numbers; nan where it is no number."""
    with np.errstate(all="ignore"):
        raised = np.prod([value**power for value, power in zip(values, powers, strict=True)], axis=0)
    return np.where(np.isfinite(raised), raised, np.nan)


def _many(
    columns: Sequence[Column], trial: _Trial, done: set[str]
) -> Iterator[tuple[str, tuple[Term, ...], Affine]]:
    """Targets that are sums of three columns and more.

    Where a target is one, least squares on a few rows, those that broke it left out, leave nothing over; factors of
    columns that are not part of it are zero.
    """
    for j, target in enumerate(trial.names):
        others = [column for column in columns if column[0].column != target]
        if target in done or len(others) < 3:
            continue
        x = np.stack([*(value for _, value in others), np.ones(len(trial.y))], 1)
        if (function := _sparse(x, j, trial)) is not None:
            factors, constant = function
            kept = np.flatnonzero(factors)
            if len(kept) >= 3:
                terms = tuple(others[i][0] for i in kept.tolist())
                yield target, terms, Affine(tuple(factors[kept].tolist()), constant)


def _sparse(x: Vector, j: int, trial: _Trial) -> tuple[Vector, float] | None:
    """Factors and constant of a sum that holds, most of them zero; None if there is none."""
    known = np.flatnonzero(~np.isnan(x).any(1) & ~np.isnan(trial.y[:, j]))
    if len(known) < 4 * x.shape[1]:
        return None
    for _ in range(TRIALS):
        some = trial.rng.choice(known, 2 * x.shape[1], replace=False)
        scale = np.abs(x[some]).max(0).clip(1e-300)
        solution = np.linalg.lstsq(x[some] / scale, trial.y[some, j], rcond=1e-9)[0] / scale
        short = np.array([float(Fraction(value).limit_denominator(360)) for value in solution.tolist()])
        short = np.where(np.abs(short - solution) < 1e-4 * np.maximum(1, np.abs(solution)), short, solution)
        if trial._share(x[trial.few], short[:, None])[j] >= SHARE and trial._holds(x @ short, j):
            return short[:-1], float(short[-1])
    return None


def _diverse(value: Vector) -> bool:
    """Whether a column has enough values, of which none is nearly all."""
    known = value[~np.isnan(value)]
    counts = np.unique(known, return_counts=True)[1]
    return len(counts) >= DISTINCT and len(known) - int(counts.max()) >= EVIDENCE


def _mode(value: Vector) -> float:
    """The most frequent number."""
    known, counts = np.unique(value[~np.isnan(value)], return_counts=True)
    return float(known[counts.argmax()])


def _spread(x: Vector, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Places of as many numbers, each from another part of their range."""
    order, n = np.argsort(x, kind="stable"), len(x)
    part = np.linspace(0, n, count + 1).astype(np.int64)
    places = [int(rng.integers(low, max(high, low + 1))) for low, high in pairwise(part.tolist())]
    return order[np.minimum(places, n - 1)]


def _solved(x: Vector, y: Vector) -> Vector | None:
    """Factors (k, targets) with x · factors = y for square x, zero for targets that lack a number; None if singular."""
    scale = np.abs(x).max(0)
    if not scale.all() or np.linalg.cond(x / scale) > 1e8:
        return None
    return np.asarray(np.linalg.solve(x / scale, np.nan_to_num(y)) / scale[:, None])
