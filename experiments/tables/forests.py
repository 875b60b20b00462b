"""Peers that grow trees, with the probability that each gives a row: adversarial random forests, energy-based boosting.

Neither package says how likely a row is; both hold what is needed. The leaf of a tree of arfpy is a product of
truncated normals and of shares of labels, and trees are averaged. NRGBoost's energy lacks a constant: every round
multiplies it by a mean over rows of the model, which NRGBoost has drawn already to grow the next tree. Both are given
the dependence alone, u in [0, 1]^d, as all peers here are: arfpy as z = Φ⁻¹(u), NRGBoost in as many equal bins as it
takes.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri

from experiments.sweep import need
from experiments.tables.peers import EDGE, PSEUDO, Array, LabelMargin, Peer, within

LEAST = 1e-3  # spread of a number in a leaf
BINS = 255  # of a number: what NRGBoost's codes can tell apart
SHRINKAGE, STEPS = 0.15, 100  # NRGBoost's defaults: of a round; of Gibbs sampling


class Rows(Peer):
    """A dependence that is learned from numbers and codes of labels instead of u."""

    @property
    def labels(self) -> dict[int, LabelMargin]:
        parts = enumerate(self.margins.parts.values())
        return {j: part for j, part in parts if isinstance(part, LabelMargin)}

    def codes(self, u: Array, j: int) -> Array:
        """Which label of column j every row has."""
        edges = self.labels[j].edges
        return np.clip(np.searchsorted(edges, u[:, j], side="right") - 1, 0, len(edges) - 2)

    def placed(self, codes: Array, j: int) -> Array:
        """Anywhere in the cells of labels."""
        edges = self.labels[j].edges
        return edges[codes] + np.diff(edges)[codes] * self.rng.random(len(codes))


class Forest(Rows):
    """Adversarial random forests (arfpy, Watson et al. 2023), with half a row more for every label of a leaf."""

    def fit(self, lo: Array, hi: Array, *, trees: int = 30) -> None:
        package, x = need("arfpy.arf"), self._table(within(lo, hi, self.rng))
        np.random.seed(self.seed)  # noqa: NPY002  arfpy draws from the global generator
        with as_arfpy_wants():
            self.arf = package.arf(x, num_trees=trees, random_state=self.seed)
            self.arf.forde()
        leaves = self.arf.clf.apply(self.arf.x_real)
        self.trees = [self._tree(t, leaves[:, t]) for t in range(trees)]

    def _table(self, u: Array) -> pd.DataFrame:
        x = pd.DataFrame(ndtri(u))
        for j, part in self.labels.items():
            x[j] = pd.Categorical.from_codes(self.codes(u, j), categories=range(len(part.values)))
        return x

    def _tree(self, t: int, leaf: Array) -> tuple[Array, Array, dict[int, Array]]:
        """The leaves of a tree, log of how often each is met, and what is needed of every column."""
        found, place, counts = np.unique(leaf, return_inverse=True, return_counts=True)
        x = self.arf.x_real.to_numpy(float)
        ends = need("arfpy.utils").bnd_fun(t, x.shape[1], self.arf.clf, list(range(x.shape[1])))
        low, high = (
            ends.pivot(index="leaf", columns="variable", values=v).loc[found] for v in ("min", "max")
        )
        tables = {}
        for j in range(x.shape[1]):
            if j in self.labels:
                size = len(self.labels[j].values)
                table = np.bincount(place * size + x[:, j].astype(int), minlength=len(found) * size)
                code = np.arange(size)
                inside = (code > low[[j]].to_numpy()) & (code <= high[[j]].to_numpy())
                share = table.reshape(-1, size) + PSEUDO * inside
                share = np.log(np.maximum(share / share.sum(1, keepdims=True), 1e-300))
                tables[j] = share - np.log(np.diff(self.labels[j].edges))
                continue
            mean = np.bincount(place, x[:, j]) / counts
            spread = np.sqrt(np.bincount(place, (x[:, j] - mean[place]) ** 2) / np.maximum(counts - 1, 1))
            spread = np.maximum(spread, LEAST)
            a, b = ((edge[j].to_numpy() - mean) / spread for edge in (low, high))
            tables[j] = np.stack([mean, spread, _log_between(a, b)])
        return found, np.log(counts / len(x)), tables

    def log_c(self, u: Array) -> Array:
        rows = self._table(u)
        for j in self.labels:
            rows[j] = rows[j].cat.codes
        leaves, x = self.arf.clf.apply(rows), rows.to_numpy(float)
        each = [self._log_c(x, leaves[:, t], *tree) for t, tree in enumerate(self.trees)]
        return logsumexp(each, axis=0) - np.log(len(each))

    def _log_c(
        self, x: Array, leaf: Array, found: Array, log_share: Array, tables: dict[int, Array]
    ) -> Array:
        place = np.searchsorted(found, leaf)
        out = log_share[place]
        for j, table in tables.items():
            if j in self.labels:
                out = out + table[place, x[:, j].astype(int)]
                continue
            mean, spread, log_mass = table[:, place]
            normal = -0.5 * ((x[:, j] - mean) / spread) ** 2 - np.log(spread) - log_mass
            out = out + normal + 0.5 * x[:, j] ** 2
        return out

    def uniforms(self, n: int) -> Array:
        with as_arfpy_wants():
            drawn = self.arf.forge(n)
        u = np.clip(ndtr(drawn.drop(columns=list(self.labels)).to_numpy(float)), EDGE, 1 - EDGE)
        out = np.empty((n, drawn.shape[1]))
        out[:, [j for j in range(drawn.shape[1]) if j not in self.labels]] = u
        for j in self.labels:
            out[:, j] = self.placed(drawn[j].to_numpy(int), j)
        return out


class Boosted(Rows):
    """NRGBoost (Bravo 2025) with its defaults; as many rounds as a tenth of the rows like best."""

    def fit(self, lo: Array, hi: Array, *, trees: int = 200) -> None:
        need("nrgboost")
        domains, laws = need("nrgboost.domain"), need("nrgboost.distribution")
        codes, order = self._codes(within(lo, hi, self.rng)), self.rng.permutation(len(lo))
        held, kept = codes[order[: len(codes) // 10]], codes[order[len(codes) // 10 :]]
        sizes = [len(self.labels[j].values) if j in self.labels else BINS for j in range(codes.shape[1])]
        kinds = [
            domains.FiniteIntSet if j in self.labels else domains.FiniteIntRange for j in range(len(sizes))
        ]
        domain = domains.ProductDomain([kind(size) for kind, size in zip(kinds, sizes, strict=True)])
        rows = laws.EmpiricalMultivariateDistribution(domain, np.ascontiguousarray(kept.T))
        self.model, grown = self._untrained(rows)
        bounds = [need("nrgboost.tree.generative").constraints.max_ratio_in_leaf(2)]
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numba's; the other is a bar
            self.model.fit(rows, num_trees=trees, shrinkage=SHRINKAGE, constraints=bounds, seed=self.seed)
        log_z = np.log(len(kept)) + np.concatenate([[0.0], np.cumsum(grown)])  # it begins with so many rows
        energies = [energy.mean() for energy in self.model.predict(held, cumulative=True)]
        self.rounds = int(np.argmax(np.array(energies) - log_z))
        self.log_z, self.wide = log_z[self.rounds], self._widths()

    def _untrained(self, rows: Any) -> tuple[Any, list[float]]:
        """A model of independent columns, and a list to which every round adds the logarithm of its constant."""
        ensemble, grown = need("nrgboost.tree.ensemble").GenerativeBoostingTreeEstimator, []

        class Counted(ensemble):
            def line_search(self, leaf_sums, leaf_values):
                step, gains = super().line_search(leaf_sums, leaf_values)
                drawn = leaf_sums[1] / leaf_sums[1].sum()  # how many rows of the model a leaf has
                grown.append(float(logsumexp(SHRINKAGE * step * leaf_values, b=drawn)))
                return step, gains

        return Counted.from_distribution_marginals(rows, uniform_mixture=0.1), grown

    def _codes(self, u: Array) -> Array:
        each = [self.codes(u, j) if j in self.labels else (u[:, j] * BINS) for j in range(u.shape[1])]
        return np.stack(each, 1).astype(np.uint8)

    def _widths(self) -> list[Array]:
        """log of the lengths of all bins."""
        flat, count = np.full(BINS, -np.log(BINS)), len(self.margins.parts)
        return [np.log(np.diff(self.labels[j].edges)) if j in self.labels else flat for j in range(count)]

    def log_c(self, u: Array) -> Array:
        codes = self._codes(u)
        wide = sum(of[codes[:, j]] for j, of in enumerate(self.wide))
        return self.model.predict(codes, stop=self.rounds) - self.log_z - wide

    def uniforms(self, n: int) -> Array:
        chain = self.model.sample_points(STEPS, n, stop_round=self.rounds, seed=self.rng)
        codes = chain.reshape(n, STEPS, -1)[:, -1]
        out = (codes + self.rng.random(codes.shape)) / BINS
        for j in self.labels:
            out[:, j] = self.placed(codes[:, j], j)
        return np.clip(out, EDGE, 1 - EDGE)


@contextlib.contextmanager
def as_arfpy_wants() -> Iterator[None]:
    """With a name that NumPy 2.4 dropped; without what arfpy prints, and pandas warns of."""
    renamed = mock.patch.object(np, "in1d", np.isin, create=True)
    with renamed, contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _log_between(a: Array, b: Array) -> Array:
    """log(Φ(b) − Φ(a)), from the side where it keeps its digits."""
    a, b = np.where(a > 0, -b, a), np.where(a > 0, -a, b)
    return log_ndtr(b) + np.log1p(-np.exp(np.minimum(log_ndtr(a) - log_ndtr(b), -1e-12)))
