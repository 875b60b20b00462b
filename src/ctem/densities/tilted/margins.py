r"""The last part of an energy of trees: one tree a column, after which draws have the margins of the data.

Trees that tell rows from draws by their odds say well how likely a row is, and still may leave a column a few per cent
away from where it was. Among all sums h of functions of single columns the likelihood of g + h is highest where the
draws, weighted by e^{g + h}, fall into the bins of every column as often as the data do: a convex problem, solved by
going from column to column (iterative proportional fitting; W. E. Deming and F. F. Stephan, 1940). Shares that differ
by no more than chance are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.densities.tilted.trees import BINS, LEAVES, Split, Trees

__all__ = ["levelled"]

SWEEPS = 10  # over all columns, at most
CHANCE = 1.5  # standard errors of the log of a ratio of shares, which are not made up for
Vector = NDArray[np.float64]


def levelled(
    data: Tensor,
    drawn: Tensor,
    log_w: Tensor,
    sizes: Sequence[int],
    *,
    highest: float = math.inf,
    weight: Tensor | None = None,
    recut: Callable[[int, Tensor], Tensor] = lambda j, cuts: cuts,
) -> Trees:
    """Trees by which draws (m, d) with the logs of their weights (m,) have the margins of the data (n, d).

    Arguments:
        sizes: of the columns, 0 for numbers.
        highest: where the logs of weights are cut, with the trees' part in them.
        weight: of the rows of the data (n,).
        recut: moves the cuts of a column so that none divides a cell of rounded values.

    >>> coins = torch.tensor([[0.0], [1.0]])
    >>> data = coins.repeat_interleave(torch.tensor([9000, 1000]), 0)
    >>> levelled(data, coins.repeat(5000, 1), torch.zeros(10_000), [2])(coins).exp()  # nearly 1.8 and .2
    tensor([1.7528, 0.2108], dtype=torch.float64)
    """
    cuts = [None if 0 < size < BINS else _cuts(data[:, j], j, recut) for j, size in enumerate(sizes)]
    none = Trees.build(cuts, [], [], [], bias=0.0)
    rows = np.ones(len(data)) if weight is None else weight.cpu().numpy().astype(np.float64)
    leaf, place = [], []
    for j, coded in enumerate(each is None for each in cuts):
        bins, own = (none.binned(x[:, j], j).cpu().numpy() for x in (drawn, data))
        leaf.append(_leaves(np.bincount(own, rows, BINS), coded))
        place.append((leaf[j][bins], np.bincount(leaf[j][own], rows, LEAVES)))
    log = log_w.double().cpu().numpy().copy()
    top = min(log.max(), highest)
    added = np.zeros((len(sizes), LEAVES))
    for _ in range(SWEEPS):
        for j, (at, there) in enumerate(place):
            tilt = np.exp(np.minimum(log, highest) - top)
            ratio = _ratio(there * (rows.sum() / (rows**2).sum()), np.bincount(at, tilt, LEAVES), tilt)
            added[j] += ratio
            log += ratio[at]
    some = np.flatnonzero(added.any(1)).tolist()
    splits = [_splits(j, leaf[j]) for j in some]
    values, weights = [added[j].tolist() for j in some], [place[j][1].tolist() for j in some]
    return Trees.build(cuts, splits, values, weights, bias=0.0)


def _cuts(column: Tensor, j: int, recut: Callable[[int, Tensor], Tensor]) -> list[float]:
    """The ends of bins with as many rows each, increasing; with one for missing cells they are as many as leaves."""
    known = column[~column.isnan()].double().cpu().numpy()
    ends = np.quantile(known, np.arange(1, LEAVES - 1) / (LEAVES - 1)) if len(known) else np.empty(0)
    return torch.unique(recut(j, torch.from_numpy(np.unique(ends)))).tolist()


def _leaves(counts: NDArray[Any], coded: bool) -> NDArray[np.int64]:
    """The leaf of every bin: its own, but one for all codes that are not among the most frequent."""
    if not coded:
        return np.minimum(np.arange(BINS), LEAVES - 1)
    leaf = np.full(BINS, LEAVES - 1)
    often = np.argsort(-counts, kind="stable")[: LEAVES - 1]
    leaf[often] = np.arange(len(often))
    return leaf


def _ratio(expected: Vector, found: NDArray[Any], tilt: Vector) -> Vector:
    """The logs of what shares of the data are to those of the draws, as far as they are more than chance.

    Arguments:
        expected: rows of every leaf, as many as they are worth.
        found: weights of the draws of every leaf.
        tilt: weights of all draws.
    """
    worth = tilt.sum() ** 2 / (tilt**2).sum()
    found = found * (worth / tilt.sum())
    ratio = np.log((expected + 1) / expected.sum()) - np.log((found + 1) / found.sum())
    beyond = np.abs(ratio) - CHANCE * np.sqrt(1 / (expected + 1) + 1 / (found + 1))
    return np.where(expected + found > 0, np.sign(ratio) * np.maximum(beyond, 0.0), 0.0)


def _splits(column: int, leaf: NDArray[np.int64]) -> list[Split]:
    """The splits of a tree whose leaves are these groups of the bins of a column, the root's first."""
    splits: list[Split] = []

    def visit(first: int, last: int) -> int:
        """The bits of the leaves from first to last."""
        if first == last:
            return 1 << first
        place, middle = len(splits), (first + last + 1) // 2
        splits.append(Split(column, leaf >= middle, 0, 0))
        left, right = visit(first, middle - 1), visit(middle, last)
        splits[place] = Split(column, leaf >= middle, left, right)
        return left | right

    visit(0, LEAVES - 1)
    return splits
