r"""Learning trees by scikit-learn's histogram boosting, and taking them out of it as plain arrays.

Two questions are asked. Which rows are of the data and which are drawn: a classifier whose logit, less the log of the
odds, is log ρ/b at its best (noise-contrastive estimation, the pooled form of comparing pairs). And how large a weight
is on average given some cells: a regression with a logarithmic link.

What is read here of scikit-learn has no public name: ``_predictors``, ``_bin_mapper`` and ``_baseline_prediction``.
tests/test_trees.py compares what comes out with scikit-learn's own answers.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from ctem.densities.tilted.trees import BINS, LEAVES, Split, Trees

__all__ = ["Boosting", "free_threads"]

STEADY, HIGHEST = 400, 0.2  # trees at one rate before it doubles, and what it becomes at most
LOOK = 50  # trees between two looks at the clock, where there is one

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Boosting:
    """How trees are learned.

    Arguments:
        sizes: of the columns: how many codes each has, 0 for numbers.
        rate: of learning, at first; what is left to learn after hundreds of trees is learned at twice the rate.
        trees: at most so many.
        rows: of a leaf, at least.
        patience: trees without a better held-out loss after which it ends.
        seed: of the rows that are held out.
        until: moment of ``time.perf_counter`` after which no more trees are begun, a few at a time.

    >>> rng = np.random.default_rng(0)
    >>> trees = Boosting([0], trees=20).ratio(rng.normal(1, 1, (2000, 1)), rng.normal(0, 1, (2000, 1)))
    >>> import torch
    >>> bool(trees(torch.tensor([[2.0]])) > trees(torch.tensor([[-2.0]])))
    True
    """

    sizes: Sequence[int]
    rate: float = 0.1
    trees: int = 400
    rows: int = 40
    patience: int = 10
    seed: int = 0
    until: float | None = None

    def ratio(
        self,
        data: Matrix,
        drawn: Matrix,
        data_weight: Matrix | None = None,
        drawn_weight: Matrix | None = None,
    ) -> Trees:
        """g ≈ log of the density of ``data`` over that of ``drawn`` (n, d), each with weights (n,) or without."""
        weights = [
            np.ones(len(rows)) if weight is None else weight * (len(rows) / weight.sum())
            for rows, weight in ((data, data_weight), (drawn, drawn_weight))
        ]
        rows, target = np.concatenate([data, drawn]), np.repeat([1, 0], [len(data), len(drawn)])
        even = data_weight is None and drawn_weight is None
        trees = self._learned(
            HistGradientBoostingClassifier, rows, target, None if even else np.concatenate(weights)
        )
        return trees.shifted(math.log(len(drawn) / len(data)))

    def log_mean(self, rows: Matrix, weight: Matrix) -> Trees:
        """h ≈ log E[weight | row] for rows (n, d) with nan where a cell is hidden."""
        return self._learned(HistGradientBoostingRegressor, rows, weight, None, loss="poisson")

    def stages(self) -> list[tuple[float, int]]:
        """Rates, and the number of trees up to which each holds.

        >>> Boosting([0], rate=0.05, trees=1600).stages()
        [(0.05, 400), (0.1, 800), (0.2, 1600)]
        >>> Boosting([0], trees=300).stages()
        [(0.1, 300)]
        >>> Boosting([0], rate=0.1, trees=1600).stages()
        [(0.1, 400), (0.2, 1600)]
        >>> Boosting([0], rate=0.1, trees=130, until=0.0).stages()
        [(0.1, 50), (0.1, 100), (0.1, 130)]
        """
        ends = [*range(STEADY, self.trees, STEADY), self.trees]
        rates = [max(min(self.rate * 2.0**k, HIGHEST), self.rate) for k in range(len(ends))]
        stages = sorted(dict(zip(rates, ends, strict=True)).items())
        if self.until is None:
            return stages
        looks = sorted({*range(LOOK, self.trees, LOOK), *(end for _, end in stages)})
        return [(next(rate for rate, last in stages if end <= last), end) for end in looks]

    def _learned(self, kind: Any, rows: Matrix, target: Matrix, weight: Matrix | None, **how: Any) -> Trees:
        coded = [j for j, size in enumerate(self.sizes) if 0 < size < BINS]
        order = [
            *coded,
            *(j for j in range(len(self.sizes)) if j not in coded),
        ]  # codes first, as scikit-learn sorts
        known = {j: np.unique(rows[~np.isnan(rows[:, j]), j]) for j in coded}
        inputs = rows[:, order].copy()
        for place, j in enumerate(coded):
            there = ~np.isnan(inputs[:, place])
            inputs[there, place] = np.searchsorted(known[j], inputs[there, place])
        mixed = np.random.default_rng(self.seed).permutation(len(rows))
        model = kind(
            warm_start=True,
            max_leaf_nodes=LEAVES,
            min_samples_leaf=self.rows,
            l2_regularization=1.0,
            early_stopping=True,
            validation_fraction=0.15,
            n_iter_no_change=self.patience,
            categorical_features=list(range(len(coded))) or None,
            random_state=self.seed,
            **how,
        )
        inputs, target, weight = inputs[mixed], target[mixed], None if weight is None else weight[mixed]
        with threadpool_limits(free_threads(), user_api="openmp"):
            for rate, end in self.stages():
                model.set_params(learning_rate=rate, max_iter=end)
                model.fit(inputs, target, weight)
                if model.n_iter_ < end or (self.until is not None and time.perf_counter() > self.until):
                    break
        return _extracted(model, order, known)


def free_threads() -> int:
    """Threads that find a core of their own: on a busy machine threads that wait for each other are slower than one.

    The load of the last minute beyond this process's own threads is that of others; none where it is not known.

    >>> free_threads() >= 1
    True
    """
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, min(threads, round(cores - max(load - threads, 0.0))))


def _extracted(model: Any, order: Sequence[int], known: dict[int, Matrix]) -> Trees:
    """The trees of a fitted model up to the best held-out loss, for columns in their own order."""
    best = int(np.argmax(model.validation_score_))
    predictors = [predictor[0] for predictor in model._predictors[:best]]
    thresholds: list[Any] = [None] * len(order)
    for place, j in enumerate(order):
        thresholds[j] = None if j in known else model._bin_mapper.bin_thresholds_[place]
    trees = [_tree(predictor, order, known, thresholds) for predictor in predictors]
    splits, values, weights = map(list, zip(*trees, strict=True)) if trees else ([], [], [])
    bias = float(np.ravel(model._baseline_prediction)[0])
    return Trees.build(thresholds, splits, values, weights, bias)


def _tree(
    predictor: Any, order: Sequence[int], known: dict[int, Matrix], thresholds: Sequence[Any]
) -> tuple[list[Split], list[float], list[float]]:
    """Splits, the root's first, and the values and weights of the leaves."""
    nodes = predictor.nodes
    splits: list[Split] = []
    values: list[float] = []
    weights: list[float] = []

    def visit(i: int) -> int:
        """The bits of the leaves below node i."""
        node = nodes[i]
        if node["is_leaf"]:
            values.append(float(node["value"]))
            weights.append(float(node["count"]))
            return 1 << (len(values) - 1)
        place = len(splits)
        j = order[node["feature_idx"]]
        splits.append(Split(j, np.zeros(BINS, bool), 0, 0))
        left, right = visit(int(node["left"])), visit(int(node["right"]))
        goes = _right(node, predictor.raw_left_cat_bitsets, known.get(j), thresholds[j])
        splits[place] = Split(j, goes, left, right)
        return left | right

    visit(0)
    return splits, values, weights


def _right(node: Any, bitsets: Any, known: Matrix | None, thresholds: Any) -> NDArray[np.bool_]:
    """For every bin of the column that decides at a node, whether rows go right, (BINS,)."""
    missing = not node["missing_go_to_left"]
    if known is None:
        bins = len(thresholds) + 1
        goes = np.arange(BINS) > int(np.searchsorted(thresholds, node["num_threshold"]))
        goes[bins:] = missing
        return np.asarray(goes)
    left = np.unpackbits(bitsets[node["bitset_idx"]].astype("<u4").view(np.uint8), bitorder="little")
    goes = np.full(BINS, missing)
    goes[known.astype(np.int64)] = left[: len(known)] == 0
    return goes
