"""How well sampled rows pass for real ones, beside how well real ones do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import RepeatedStratifiedKFold, cross_val_score

from ctem.tables.answers.missingness import Missingness
from ctem.tables.io.frame import Frame
from ctem.tables.schema import Schema

__all__ = ["Realism", "realism", "realism_of_tables", "rows_to_compare"]

ROWS, CELLS = 1000, 2**16  # of each kind, at most: each column of a drawn row takes a pass
FEWEST = 50  # of each kind, at least
FOLDS, REPEATS = 3, 3


class Realism(NamedTuple):
    """How little boosted trees separate sampled rows from real ones, from 0 to 1; ``ceiling`` is that of real rows.

    >>> str(Realism(0.92, 0.97))
    'samples pass for real rows with 0.92 (real rows themselves: 0.97)'
    """

    samples: float
    ceiling: float

    def __str__(self) -> str:
        return (
            f"samples pass for real rows with {self.samples:.2f} (real rows themselves: {self.ceiling:.2f})"
        )


def rows_to_compare(columns: int) -> int:
    """How many rows of each kind are compared, of so many encoded columns.

    >>> rows_to_compare(columns=15), rows_to_compare(columns=500)
    (1000, 131)
    """
    return min(ROWS, max(2 * FEWEST, CELLS // max(columns, 1)))


def realism(real: NDArray[np.float32], sampled: NDArray[np.float32], seed: int = 0) -> Realism | None:
    """1 − mean over folds of (2 max(AUC, ½) − 1), of a classifier that was not shown the rows; None for too few.

    Arguments:
        real, sampled: encoded rows (n, d) and (m, d); nan marks a gap, which the trees see.
        seed: of the choice of rows, of folds and of trees.

    >>> rng = np.random.default_rng(0)
    >>> real, far = rng.normal(size=(400, 2)), rng.normal(5, 1, size=(400, 2))
    >>> realism(real, far).samples < 0.01, realism(real, rng.normal(size=(400, 2))).samples > 0.8
    (True, True)
    """
    rng = np.random.default_rng(seed)
    n = min(len(real), len(sampled), ROWS)
    if n < FEWEST:
        return None
    real, sampled = (rng.permutation(rows)[: 2 * n] for rows in (real, sampled))
    halves = np.array_split(real, 2)
    return Realism(_passing(real[:n], sampled[:n], seed), _passing(halves[0], halves[1], seed))


def realism_of_tables(
    schema: Schema,
    missingness: Missingness | None,
    real: Frame,
    sampled: Frame,
    generator: torch.Generator,
    seed: int = 0,
) -> Realism | None:
    """``realism`` of a table and of sampled rows, which get gaps in the columns in which the table has some.

    >>> from ctem.tables.io.frame import read_frame
    >>> few = read_frame(np.arange(20.0)[:, None])
    >>> realism_of_tables(Schema.fit(few), None, few, few, torch.Generator()) is None  # too few rows
    True
    """
    if missingness is not None:
        sampled = missingness.as_in(real, sampled, generator)
    x, drawn = (schema.encode(rows).x.numpy() for rows in (real, sampled))
    return realism(x, drawn, seed)


def _passing(one: NDArray[np.float32], other: NDArray[np.float32], seed: int) -> float:
    rows, whose = np.concatenate([one, other]), np.repeat([0, 1], [len(one), len(other)])
    trees = HistGradientBoostingClassifier(max_iter=30, max_leaf_nodes=15, random_state=seed)
    folds = RepeatedStratifiedKFold(n_splits=FOLDS, n_repeats=REPEATS, random_state=seed)
    area = cross_val_score(trees, rows, whose, cv=folds, scoring="roc_auc", error_score="raise")
    return float(1 - (2 * np.maximum(area, 0.5) - 1).mean())
