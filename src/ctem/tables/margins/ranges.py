"""Preferred ranges of a column of numbers: spikes, edges and gaps that a smooth map cannot follow.

A tenth of the rows may lie within a millionth of the range, or none between two values. The smooth map T makes such a
column roughly N(0, 1); Φ(T(X)) would be uniform if it were exactly so, and its histogram with blocks of any width, as
many as the rows support, is what remains (Bayesian blocks: Scargle, Norris, Jackson and Chiang 2013).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from ctem.tables.margins.preferred import FURTHEST, PreferredValues
from ctem.tables.margins.rhythms import Smooth

__all__ = ["fit_ranges", "likeliest_blocks"]

CELLS = 2048  # of as many rows each, whose edges blocks may have
LEAST = 1e-13  # probability between edges, so that float64 can resolve them
FALSE_ALARMS = 0.05  # probability of an edge where there is none
SEEN = 0.5  # of what a block costs, that an edge must gain in some window to be looked at
PSEUDO = 0.5  # rows that every block has beside its own, laid out evenly over all blocks
FOLDS, ERRORS, GAIN = (
    3,
    2.0,
    0.01,
)  # ranges must be better on rows left out, by so many errors and nats per row
ROWS = 20_000  # that this is judged by, at most
FEWEST = 50  # rows below which no range can be distinguished from chance

Vector = NDArray[np.float64]
Map = Smooth | PreferredValues


def fit_ranges(smooth: Smooth, other: Map, X: Vector) -> Map:
    """The smooth map with preferred ranges where they are better on rows left out, else the other map.

    Arguments:
        smooth: T, fitted to X.
        other: what else the column may have: T itself, or its preferred values.
        X: the values, sorted; those that share a cell of a lattice laid out over it.

    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> rng = np.random.default_rng(0)
    >>> X = np.sort(np.concatenate([rng.uniform(0, 1, 900), rng.uniform(0.3, 0.3001, 100)]))
    >>> smooth = MonotoneMap.fit(X)
    >>> found = fit_ranges(smooth, smooth, X)
    >>> low, high = torch.special.ndtr(found(torch.tensor([0.3, 0.3001], dtype=torch.float64)))
    >>> round(float(high - low), 2)
    0.1
    """
    blocked = _blocked(smooth, X) if len(X) >= FEWEST else smooth
    if blocked is smooth:
        return other
    rng = np.random.default_rng(0)
    some = X if len(X) <= ROWS else np.sort(rng.choice(X, ROWS, replace=False))
    fold = rng.permutation(len(some)) % FOLDS
    gain = np.concatenate([_gain(smooth, other, some[fold != k], some[fold == k]) for k in range(FOLDS)])
    error = float(gain.std()) / math.sqrt(len(gain))
    return blocked if gain.mean() > max(GAIN, ERRORS * error) else other


def _gain(smooth: Smooth, other: Map, X: Vector, left_out: Vector) -> Vector:
    """How much likelier rows left out are with ranges fitted to the rest."""
    return _log_density(_blocked(smooth.fit(X), X), left_out) - _log_density(other, left_out)


def _log_density(transform: Map, X: Vector) -> Vector:
    x, log_slope = transform.with_log_slope(torch.from_numpy(X))
    return np.asarray((log_slope - x * x / 2 - 0.5 * math.log(2 * math.pi)).numpy())


def _blocked(smooth: Smooth, X: Vector) -> Map:
    """The smooth map with a histogram of Φ(T(X)) where |T(X)| < ``FURTHEST``, for sorted X."""
    low, high = torch.special.ndtr(torch.tensor([-FURTHEST, FURTHEST], dtype=torch.float64)).tolist()
    place = (torch.special.ndtr(smooth(torch.from_numpy(X))).numpy() - low) / (high - low)
    place = place[(place > 0) & (place < 1)]
    edges, before = _blocks(place)
    if len(edges) < 3:
        return smooth
    rows, blocks = np.diff(before), len(edges) - 1
    mass = (rows + PSEUDO * blocks * np.diff(edges)) / (len(place) + PSEUDO * blocks)
    heights = np.concatenate([[0.0], np.cumsum(mass)[:-1], [1.0]])
    knots, heights = (low + (high - low) * values for values in (edges, heights))
    return PreferredValues(smooth, tuple(knots.tolist()), tuple(heights.tolist()), ranges=True)


def _blocks(p: Vector) -> tuple[Vector, Vector]:
    """Edges of the likeliest blocks of sorted probabilities, and the rows before each.

    >>> edges, before = _blocks(np.concatenate([np.linspace(0.0001, 0.1, 500), np.linspace(0.11, 0.99, 40)]))
    >>> edges.round(1).tolist(), before.tolist()
    ([0.0, 0.1, 1.0], [0.0, 499.0, 540.0])
    """
    return likeliest_blocks(*_candidates(p))


def likeliest_blocks(edges: Vector, before: Vector) -> tuple[Vector, Vector]:
    """Those edges between which the rate is constant, and the rows before each.

    Every block costs what makes one false edge in twenty uniform samples; the best last block before each edge is found
    from left to right, among those that can still be the best (Killick, Fearnhead and Eckley 2012).

    Arguments:
        edges: the edges that blocks may have, from 0 to 1.
        before: the rows before each, from 0 to all.

    >>> likeliest_blocks(np.linspace(0, 1, 5), np.array([0.0, 1.0, 2.0, 102.0, 202.0]))[0]
    array([0. , 0.5, 1. ])
    """
    n = float(before[-1])
    cost = 4 - math.log(73.53 * FALSE_ALARMS * n**-0.478)
    seen = _steps(edges, before) > SEEN * cost
    seen[[0, -1]] = True
    edges, before = edges[seen], before[seen]
    best, last, starts = np.zeros(len(edges)), np.zeros(len(edges), np.int64), np.zeros(1, np.int64)
    for i in range(1, len(edges)):
        rows = before[i] - before[starts]
        fitness = best[starts] + rows * np.log(np.maximum(rows, 1.0) / (n * (edges[i] - edges[starts])))
        last[i] = starts[fitness.argmax()]
        best[i] = fitness.max() - cost
        starts = np.append(starts[fitness >= best[i]], i)  # the others can begin no block that ends later
    cuts = [len(edges) - 1]
    while cuts[-1]:
        cuts.append(int(last[cuts[-1]]))
    return edges[cuts[::-1]], before[cuts[::-1]]


def _steps(edges: Vector, before: Vector) -> Vector:
    """By how many nats rows are likelier, at each edge, with one rate before and another after it: in the best window.

    Windows reach 1, 2, 4, … edges to either side. An edge that none of them sees is no end of a block, so that blocks
    need not be looked for there, which takes time that grows with the square of the edges.

    >>> _steps(np.linspace(0, 1, 5), np.array([0.0, 1.0, 2.0, 102.0, 202.0])).argmax()
    np.int64(2)
    """
    last, out, width = len(edges) - 1, np.zeros(len(edges)), 1
    place = np.arange(len(edges))
    while width <= last:
        low, high = np.maximum(place - width, 0), np.minimum(place + width, last)
        left = before - before[low], edges - edges[low]
        right = before[high] - before, edges[high] - edges
        both = left[0] + right[0], left[1] + right[1]
        out = np.maximum(out, _log_rate(*left) + _log_rate(*right) - _log_rate(*both))
        width *= 2
    return out


def _log_rate(rows: Vector, room: Vector) -> Vector:
    """The log-likelihood of so many rows at their own rate; 0 of none."""
    return np.asarray(rows * np.log(np.maximum(rows, 1.0) / np.maximum(room, LEAST)))


def _candidates(p: Vector) -> tuple[Vector, Vector]:
    """Edges halfway between rows, as many rows apart, and the rows before each."""
    before = np.unique(np.linspace(0, len(p), min(CELLS, len(p)) + 1).round().astype(np.int64))
    inner = before[1:-1]
    edges = np.concatenate([[0.0], (p[inner - 1] + p[inner]) / 2, [1.0]])
    apart = np.concatenate([[True], np.diff(edges[:-1]) > LEAST, [True]])
    apart[:-1] &= edges[:-1] < 1 - LEAST
    return edges[apart], before[apart].astype(np.float64)
