"""A mixed law of twelve columns with known density: clusters of independent columns of every kind."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import torch
from numpy.random import default_rng
from numpy.typing import NDArray
from scipy.special import gammaln, i0e
from torch import Tensor

from ctem.spaces import Angle, Category, Column, Ordinal, Real, Space

__all__ = ["MixedClusters"]

REALS, ANGLES, LABELS, COUNTS = 4, 1, (2, 3, 4, 6), (5, 9, 12)


class MixedClusters:
    r"""ρ(x) = Σ_k w_k Π_j ρ_jk(x_j) on four reals, an angle, four categories and three ordinals.

    Within a cluster a real is normal, an angle von Mises, an ordinal binomial and a category a table; between clusters
    their parameters differ, so that all columns depend on each other.

    Arguments:
        clusters: how many.
        seed: of the parameters.

    >>> law = MixedClusters()
    >>> X = law.sample(1000, seed=0)
    >>> law.space.dim, X.shape, law.log_density(X).shape
    (12, (1000, 12), torch.Size([1000]))
    """

    def __init__(self, clusters: int = 6, seed: int = 0):
        rng = default_rng(seed)
        self.weights = rng.dirichlet(np.full(clusters, 4.0))
        self.means = 2 * rng.standard_normal((clusters, REALS))
        self.scales = rng.uniform(0.3, 1.0, (clusters, REALS))
        self.directions = rng.uniform(0, 2 * np.pi, clusters)
        self.focus = rng.uniform(1.0, 6.0, clusters)
        self.tables = [rng.dirichlet(np.ones(k), clusters) for k in LABELS]
        self.odds = rng.uniform(0.1, 0.9, (clusters, len(COUNTS)))
        columns: list[Column] = [
            *[Real()] * REALS,
            *[Angle()] * ANGLES,
            *map(Category, LABELS),
            *map(Ordinal, COUNTS),
        ]
        self.space = Space(columns)

    def sample(self, n: int, seed: int) -> NDArray[np.float64]:
        """Draw n rows, shape (n, 12)."""
        rng = default_rng(seed)
        k = rng.choice(len(self.weights), n, p=self.weights)
        reals = self.means[k] + self.scales[k] * rng.standard_normal((n, REALS))
        angle = rng.vonmises(self.directions[k] - np.pi, self.focus[k]) + np.pi
        labels = [(rng.uniform(size=(n, 1)) > table.cumsum(1)[k]).sum(1) for table in self.tables]
        labels = [np.minimum(code, size - 1) for code, size in zip(labels, LABELS, strict=True)]
        counts = rng.binomial(np.array(COUNTS) - 1, self.odds[k])
        return np.column_stack([reals, angle % (2 * np.pi), *labels, counts]).astype(np.float64)

    def log_density(self, X: Tensor | NDArray[np.float64]) -> Tensor:
        """log ρ at the rows X, shape (n, 12) → (n,)."""
        x = np.asarray(X, dtype=np.float64)[:, None]  # (n, 1, 12) against clusters
        ends = list(accumulate([REALS, ANGLES, len(LABELS)]))
        reals, angle, labels, counts = np.split(x, ends, axis=-1)
        z = (reals - self.means) / self.scales
        each = np.log(self.weights) - (z**2 / 2 + np.log(self.scales) + math.log(2 * math.pi) / 2).sum(-1)
        turn = np.cos(angle[..., 0] - self.directions) - 1
        each = each + self.focus * turn - np.log(2 * np.pi * i0e(self.focus))
        for j, table in enumerate(self.tables):
            each = each + np.log(table).T[labels[:, 0, j].astype(int)]
        top = np.array(COUNTS) - 1
        choices = gammaln(top + 1) - gammaln(counts + 1) - gammaln(top - counts + 1)
        each = each + (choices + counts * np.log(self.odds) + (top - counts) * np.log1p(-self.odds)).sum(-1)
        return torch.as_tensor(each).logsumexp(-1)
