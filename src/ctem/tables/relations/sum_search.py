"""Columns of numbers that are sums or products of others, in whatever unit: found by a few rows, counted in many.

Columns are tried with all targets and in many pairs at once, and most are refused by a few rows: arrays have groups of
columns (p), trials (t), targets (k) and rows (r), in this order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ctem.tables.relations.functions import Affine, Function, Product
from ctem.tables.relations.kept_rules import Term
from ctem.tables.relations.quantities import Quantity

__all__ = ["closed_functions"]

Vector = NDArray[np.float64]
Places = NDArray[np.int64]
Mask = NDArray[np.bool_]
Column = tuple[Term, Vector]
FEWER = 300  # rows in which a function is tried first
THIN = 5  # of so many, every so many are looked at before all of them
FEW = 4  # every so many of them give the factor of a product
TRIALS = 6  # small sets of rows that a function is fitted to
PROMISING = 0.25  # share of rows that it hits then, at least
LIKELY = 0.6  # when it is fitted to all of these rows
SHARE = 0.95  # and in the end
AT_ONCE = 2**18  # numbers that are compared at once
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
    trial = _Trial([value for _, value in columns], targets)
    if not trial.names:
        return
    terms, done, summed = [term for term, _ in columns], set[tuple[str, str]](), set[str]()
    alone = sorted(
        range(len(terms)), key=lambda i: not terms[i].part
    )  # the hundreds, not a hundredth, rounded
    groups = np.array(alone, np.int64)[:, None]
    for p, j, function in trial.sums(groups, _asked(groups, terms, trial.names, done)):
        term, target = terms[alone[p]], trial.names[j]
        if (target, term.column) not in done:
            done.add((target, term.column))
            yield target, (term,), function
    whole = [i for i, term in enumerate(terms) if not term.part][:most]
    groups = np.array(list(combinations(whole, 2)), np.int64).reshape(-1, 2)
    asked = _asked(groups, terms, trial.names, done)
    found: list[tuple[int, int, Affine | Product]] = [
        *trial.sums(groups, asked),
        *trial.products(groups, asked),
    ]
    for p, j, closed in sorted(found, key=lambda each: each[0]):
        summed |= {trial.names[j]} if isinstance(closed, Affine) else set()
        yield trial.names[j], tuple(terms[i] for i in groups[p]), closed
    if 4 <= len(whole) <= MANY:
        some = [columns[i] for i in whole]
        yield from _many(some, trial, summed | {target for target, _ in done})


def _asked(
    groups: Places, terms: Sequence[Term], names: Sequence[str], done: Collection[tuple[str, str]]
) -> Mask:
    """The targets (p, k) that groups of columns are tried for: not their own, nor what one of them determines."""
    own = [[term.column == target or (target, term.column) in done for target in names] for term in terms]
    closed: Mask = np.array(own, bool).reshape(-1, len(names))
    return np.asarray(~closed[groups].any(1))


class _Trial:
    """Columns, targets, and what hits them."""

    def __init__(self, columns: Sequence[Vector], targets: Mapping[str, tuple[Vector, Quantity]]):
        fine = {name: target for name, target in targets.items() if _diverse(target[0])}
        self.names = list(fine)
        self.width = np.array([quantity.width for _, quantity in fine.values()])
        self.y = np.stack([value for value, _ in fine.values()]) if fine else np.zeros((0, 0))
        self.mode = np.array([_mode(value) for value in self.y])
        self.x = np.stack([*columns, np.ones_like(columns[0])]) if columns else np.zeros((0, 0))
        n = self.y.shape[1]
        few = np.linspace(0, n - 1, min(n, FEWER)).astype(np.int64)
        self.few, self.few_x, self.few_y = few, self.x[:, few], self.y[:, few]
        self.thin = slice(None, None, max(1, THIN * len(few) // FEWER))
        # beyond it a value does not hit; a frequent one is hit by chance
        self.reach = self.width[:, None] / 2 + SLACK * np.abs(self.few_y)
        self.allowed = np.where(self.few_y != self.mode[:, None], self.reach, np.nan)
        self.rng = np.random.default_rng(0)

    def sums(self, groups: Places, asked: Mask) -> Iterator[tuple[int, int, Affine]]:
        """Which groups (p, columns), which targets that are asked for, and the sum of factors times these numbers."""
        known: Mask = np.asarray(~np.isnan(self.few_x)[groups].any(1))
        tried = np.flatnonzero((known.sum(1) >= EVIDENCE) & asked.any(1))
        groups = np.concatenate([groups, np.full_like(groups[:, :1], len(self.x) - 1)], 1)
        for some in self._pieces(tried, TRIALS):
            p, j, factors = self._by_trials(groups[some], known[some], asked[some])
            likely = self._likely(self.few_x[groups[some[p]]], j, factors)
            for i in np.flatnonzero(likely).tolist():
                x = self.x[groups[some[p[i]]]].T
                if (function := self._fitted(x, int(j[i]), factors[i])) is not None:
                    yield int(some[p[i]]), int(j[i]), function

    def _by_trials(self, groups: Places, known: Mask, asked: Mask) -> tuple[Places, Places, Vector]:
        """Places of groups, targets that sums of them hit in ``PROMISING`` rows, and the factors (cases, columns)."""
        x, count = self.few_x[groups], groups.shape[1]
        rows = np.stack([_spread(x[p, 0], known[p], count, self.rng) for p in range(len(x))])
        each = np.arange(len(x))[:, None, None, None]
        a = x[each, np.arange(count), rows[..., None]]
        factors, solved = _solved(a, np.moveaxis(self.few_y[:, rows], 0, -1))
        thin = x[:, None, :, self.thin]
        share = self._share(factors.swapaxes(2, 3) @ thin, known[:, None, self.thin])
        p, t, j = np.nonzero((share >= PROMISING / 2) & solved[..., None] & asked[:, None])
        chosen = factors[p, t, :, j]
        share = self._share_of((chosen[:, None] @ x[p])[:, 0], j)
        case = p * len(self.names) + j
        order = np.lexsort((t, -share, case))
        best = order[np.unique(case[order], return_index=True)[1]]
        best = best[share[best] >= PROMISING]
        return p[best], j[best], chosen[best]

    def _likely(self, x: Vector, j: Places, factors: Vector) -> Mask:
        """Whether sums (cases, columns) of x (cases, columns, r) hit targets j in most of the few rows.

        As they are, or fitted by least squares to the rows that they nearly hit.
        """
        y = self.few_y[j]
        value = (factors[:, None] @ x)[:, 0]
        likely = self._share_of(value, j) >= LIKELY
        for _ in range(3):
            near = np.abs(value - y) <= self.reach[j] + self.width[j, None]
            count = near.sum(1).clip(1)[:, None]
            inside = np.where(near[:, None], x[:, :-1], 0.0)
            middle, level = inside.sum(2) / count, np.where(near, y, 0.0).sum(1, keepdims=True) / count
            apart = np.where(near[:, None], inside - middle[..., None], 0.0)
            scale = np.abs(apart).max(2).clip(1e-300)
            apart /= scale[..., None]
            rest = np.where(near, y - level, 0.0)
            inverse = np.linalg.pinv(apart @ apart.swapaxes(1, 2), hermitian=True)
            slope = (inverse @ (apart @ rest[..., None]))[..., 0] / scale
            value = level + (slope[:, None] @ (x[:, :-1] - middle[..., None]))[:, 0]
        return likely | (self._share_of(value, j) >= LIKELY)

    def products(self, groups: Places, asked: Mask) -> Iterator[tuple[int, int, Product]]:
        """Which groups, which targets that are asked for, and the factor times powers of these numbers."""
        for some in self._pieces(np.flatnonzero(asked.any(1)), 1):
            for powers in POWERS:
                raised = _raised(self.few_x[groups[some]], powers)
                p, j, factor = self._by_ratios(raised, asked[some])
                for i in np.flatnonzero(self._likely_product(raised[p], j, factor)).tolist():
                    value = _raised(self.x[groups[some[p[i]]]][None], powers)[0]
                    if (exact := self._simple(value, int(j[i]), float(factor[i]))) is not None:
                        yield int(some[p[i]]), int(j[i]), Product(powers, exact)

    def _by_ratios(self, raised: Vector, asked: Mask) -> tuple[Places, Places, Vector]:
        """Places of groups, targets that numbers (p, r) times a factor hit in ``PROMISING`` rows, and that factor."""
        part = slice(None, None, FEW)
        wanted = np.where(np.isnan(self.allowed), np.nan, self.few_y)[:, part]
        ratio = wanted / raised[:, None, part]
        ratio = np.sort(np.where(np.isfinite(ratio) & (ratio != 0), ratio, np.nan), axis=2)  # nan last
        middle = (~np.isnan(ratio)).sum(2) // 2
        at = middle.clip(max=ratio.shape[2] - 1)[..., None]
        factor = np.nan_to_num(np.take_along_axis(ratio, at, 2)[..., 0])
        thin = raised[:, None, self.thin]
        share = self._share(factor[:, None, :, None] * thin[:, None], ~np.isnan(thin))[:, 0]
        p, j = np.nonzero((share >= PROMISING / 2) & asked)
        share = self._share_of(raised[p] * factor[p, j, None], j)
        p, j = p[share >= PROMISING], j[share >= PROMISING]
        return p, j, factor[p, j]

    def _likely_product(self, raised: Vector, j: Places, factor: Vector) -> Mask:
        """Whether numbers (cases, r) times a factor hit targets j in most of the few rows, as ``_likely``."""
        y, value = self.few_y[j], raised * factor[:, None]
        likely = self._share_of(value, j) >= LIKELY
        for _ in range(3):
            near = (np.abs(value - y) <= self.reach[j] + self.width[j, None]) & (raised != 0)
            inside = np.where(near, raised, 0.0)
            fitted = (inside * np.where(near, y, 0.0)).sum(1) / (inside**2).sum(1)
            value = raised * fitted[:, None]
        return likely | (self._share_of(value, j) >= LIKELY)

    def _pieces(self, groups: Places, trials: int) -> list[Places]:
        """Groups, as many as are looked at at once."""
        each = trials * len(self.names) * len(self.few[self.thin])
        return [
            groups[i : i + max(1, AT_ONCE // each)] for i in range(0, len(groups), max(1, AT_ONCE // each))
        ]

    def _share(self, value: Vector, known: Mask) -> Vector:
        """Of the thin rows with a number but the most frequent one, those that values (p, t, k, r) hit."""
        allowed, y = self.allowed[:, self.thin], self.few_y[:, self.thin]
        count = known.astype(np.float64) @ (~np.isnan(allowed)).T.astype(np.float64)
        value = np.subtract(value, y, out=value)
        return (np.abs(value, out=value) <= allowed).sum(-1) / count.clip(1)

    def _share_of(self, value: Vector, j: Places) -> Vector:
        """The same of all of the few rows for one target j of values (cases, r)."""
        allowed = self.allowed[j]
        count = (~np.isnan(value) & ~np.isnan(allowed)).sum(1)
        return np.asarray((np.abs(value - self.few_y[j]) <= allowed).sum(1) / count.clip(1))

    def _gap(self, value: Vector, j: int) -> tuple[Vector, Vector]:
        """How far target j is off a value, in cells, and its numbers, in rows that have both."""
        there = ~np.isnan(value) & ~np.isnan(self.y[j])
        y = self.y[j, there]
        return (np.abs(value[there] - y) - SLACK * np.abs(y)) / self.width[j], y

    def _hits(self, value: Vector, j: int) -> int:
        return int((self._gap(value, j)[0] <= 0.5).sum())

    def _holds(self, value: Vector, j: int) -> bool:
        """Whether target j has this value: in nearly all rows, hardly ever nearly, and not by chance."""
        gap, y = self._gap(value, j)
        hits, near = int((gap <= 0.5).sum()), int(((gap > 0.5) & (gap <= NEAR)).sum())
        missed = len(y) - int(np.unique(y, return_counts=True)[1].max(initial=0))
        fine = missed >= EVIDENCE and len(y) - hits <= CHANCE * missed
        return fine and hits >= SHARE * len(y) and near <= NEARLY * hits

    def _fitted(self, x: Vector, j: int, factors: Vector) -> Affine | None:
        """The sum, by least squares on the rows that it hits, in simple numbers if these do as well."""
        for _ in range(3):
            value = x @ factors
            near = np.abs(value - self.y[j]) <= 1.5 * self.width[j] + SLACK * np.abs(value)
            if near.sum() <= x.shape[1]:
                return None
            factors = np.linalg.lstsq(x[near], self.y[j, near], rcond=None)[0]
        factors = self._simplest(x, j, factors)
        if not self._holds(x @ factors, j):
            return None
        if not factors[:-1].all() or np.abs(factors).max() > LARGEST:
            return None
        return Affine(tuple(factors[:-1].tolist()), float(factors[-1]))

    def _simplest(self, x: Vector, j: int, factors: Vector) -> Vector:
        """The first of ever longer numbers that hits as many rows, with the constant that these factors leave."""
        least = self._hits(x @ factors, j)
        for digits in range(7):
            short = np.round(factors, digits)
            rest = np.nanmedian(self.y[j] - x[:, :-1] @ short[:-1])
            for constant in (short[-1], np.round(rest, digits)):
                short[-1] = constant
                if self._hits(x @ short, j) >= least:
                    return short + 0.0
        ratios = np.array([float(Fraction(factor).limit_denominator(360)) for factor in factors.tolist()])
        return ratios if self._hits(x @ ratios, j) >= least else factors

    def _simple(self, raised: Vector, j: int, factor: float) -> float | None:
        """The factor of a product, by least squares on the rows that it hits, as a short number; None if it fails."""
        for _ in range(3):
            near = np.abs(raised * factor - self.y[j]) <= 1.5 * self.width[j] + SLACK * np.abs(self.y[j])
            near &= raised != 0
            if near.sum() < EVIDENCE:
                return None
            factor = float((raised[near] * self.y[j, near]).sum() / (raised[near] ** 2).sum())
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
        x = np.stack([*(value for _, value in others), np.ones(trial.y.shape[1])], 1)
        if (function := _sparse(x, j, trial)) is not None:
            factors, constant = function
            kept = np.flatnonzero(factors)
            if len(kept) >= 3:
                terms = tuple(others[i][0] for i in kept.tolist())
                yield target, terms, Affine(tuple(factors[kept].tolist()), constant)


def _sparse(x: Vector, j: int, trial: _Trial) -> tuple[Vector, float] | None:
    """Factors and constant of a sum that holds, most of them zero; None if there is none."""
    known = np.flatnonzero(~np.isnan(x).any(1) & ~np.isnan(trial.y[j]))
    if len(known) < 4 * x.shape[1]:
        return None
    for _ in range(TRIALS):
        some = trial.rng.choice(known, 2 * x.shape[1], replace=False)
        scale = np.abs(x[some]).max(0).clip(1e-300)
        solution = np.linalg.lstsq(x[some] / scale, trial.y[j, some], rcond=1e-9)[0] / scale
        short = np.array([float(Fraction(value).limit_denominator(360)) for value in solution.tolist()])
        short = np.where(np.abs(short - solution) < 1e-4 * np.maximum(1, np.abs(solution)), short, solution)
        if trial._share_of((x[trial.few] @ short)[None], np.array([j]))[0] >= SHARE and trial._holds(
            x @ short, j
        ):
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


def _raised(x: Vector, powers: Sequence[int]) -> Vector:
    """The product of powers of numbers (p, columns, r); nan for what is not finite."""
    with np.errstate(all="ignore"):
        raised = np.prod([x[:, i] ** power for i, power in enumerate(powers)], axis=0)
    return np.where(np.isfinite(raised), raised, np.nan)


def _spread(x: Vector, known: Mask, count: int, rng: np.random.Generator) -> Places:
    """Rows (t, count) of those that are known, each from another part of the range of x."""
    order = np.flatnonzero(known)
    order = order[np.argsort(x[order], kind="stable")]
    part = np.linspace(0, len(order), count + 1).astype(np.int64)
    places = rng.integers(part[:-1], np.maximum(part[1:], part[:-1] + 1), (TRIALS, count))
    return order[np.minimum(places, len(order) - 1)]


def _solved(x: Vector, y: Vector) -> tuple[Vector, Mask]:
    """Factors (p, t, columns, k) with x · factors = y for square x, 0 for a y that is nan; and which x are regular."""
    scale = np.abs(x).max(2, keepdims=True)
    regular = (scale > 0).all((2, 3))
    scaled = np.where(regular[..., None, None], x / np.where(scale > 0, scale, 1.0), np.eye(x.shape[-1]))
    regular &= np.linalg.cond(scaled) <= 1e8
    scaled = np.where(regular[..., None, None], scaled, np.eye(x.shape[-1]))
    return np.linalg.solve(scaled, np.nan_to_num(y)) / np.where(scale > 0, scale, 1.0).swapaxes(2, 3), regular
