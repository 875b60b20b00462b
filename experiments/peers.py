"""Peers of the table experiments, all under one measure: the probability of a row as it is written.

Every column is a list of labels or a lattice of numbers of width w, so a row is one cell of a product of lattices, and
log P(row) is compared in nats. With margins P_j and cells [lo_j, hi_j] of their distribution functions,

    log P(row) = Σ_j log P_j(cell) + log E_{u ~ U(lo, hi)} c(u),      c the density of the dependence on [0, 1]^d,

where the mean of a few draws stands for the expectation: a lower bound in expectation, for every system alike.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
from collections.abc import Mapping
from unittest import mock

import numpy as np
import pandas as pd
import torch
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from scipy.special import ndtr, ndtri
from torch import Tensor

from ctem.table.frames import read_frame
from ctem.table.schema import Schema
from detection import need
from margins import EDGE, Margins, bound, resolution

__all__ = ["Copula", "Flow", "Independent", "Margins", "Peer", "Tree", "arf_samples", "bound", "resolution"]

Array = np.ndarray


class Peer:
    """Margins with a dependence c on [0, 1]^d; subclasses say what c is.

    Arguments:
        train: the training rows.
        seed: of everything random.
        options: of the subclass's ``fit``.
    """

    def __init__(self, train: pd.DataFrame, seed: int, **options):
        self.margins, self.rng, self.seed = Margins(train), np.random.default_rng(seed), seed
        self.fit(*self.margins.cells(train)[:2], **options)

    def fit(self, lo: Array, hi: Array) -> None:
        """Learn c."""

    def log_c(self, u: Array) -> Array:
        """log c (n,)."""
        return np.zeros(len(u))

    def uniforms(self, n: int) -> Array:
        """Draws from c (n, d)."""
        return self.rng.random((n, len(self.margins.parts)))

    def log_prob(self, frame: pd.DataFrame, draws: int) -> Array:
        """log P of every row as written (n,)."""
        lo, hi, log_p = self.margins.cells(frame)
        c = [self.log_c(_within(lo, hi, self.rng)) for _ in range(draws)]
        return log_p.sum(1) + bound(np.stack(c))

    def sample(self, n: int) -> pd.DataFrame:
        return self.margins.frame(self.uniforms(n))


class Independent(Peer):
    """c = 1."""


class Copula(Peer):
    """Gaussian copula: c(u) = N(z; 0, R) / Π φ(z_j), z = Φ⁻¹(u); R the correlation of the training rows' z."""

    def fit(self, lo: Array, hi: Array) -> None:
        z = np.concatenate([ndtri(_within(lo, hi, self.rng)) for _ in range(4)])
        r = np.corrcoef(z.T)
        # near-singular correlations are pulled to independence, a hundredth of the way
        self.r = 0.99 * r + 0.01 * np.eye(len(r))
        self.gap = np.linalg.inv(self.r) - np.eye(len(r))

    def log_c(self, u: Array) -> Array:
        z = ndtri(u)
        return -0.5 * (np.linalg.slogdet(self.r)[1] + np.einsum("ni,ij,nj->n", z, self.gap, z))

    def uniforms(self, n: int) -> Array:
        z = self.rng.standard_normal((n, len(self.r))) @ np.linalg.cholesky(self.r).T
        return np.clip(ndtr(z), EDGE, 1 - EDGE)


class Tree(Peer):
    """Chow–Liu tree on bins that cut no cell: c(u) = P(bins) / Π P_j(bin), smoothed counts."""

    def fit(self, lo: Array, hi: Array) -> None:
        self.edges = [part.bins() for part in self.margins.parts.values()]
        codes = self._codes((lo + hi) / 2)
        d = codes.shape[1]
        weight = np.zeros((d, d))
        for i in range(d):
            for j in range(i):
                weight[i, j] = _information(self._joint(codes, i, j)) + 1e-9
        tree = minimum_spanning_tree(-weight)
        order, parent = breadth_first_order(tree + tree.T, 0, directed=False)
        self.order, self.parent = order.tolist(), parent.tolist()
        self.log_root = np.log(self._joint(codes, 0, 0).diagonal() / self._joint(codes, 0, 0).trace())
        tables = {j: self._joint(codes, self.parent[j], j) for j in self.order[1:]}
        self.log_given = {j: np.log(t / t.sum(1, keepdims=True)) for j, t in tables.items()}

    def log_c(self, u: Array) -> Array:
        codes = self._codes(u)
        total = self.log_root[codes[:, 0]] if self.order else np.zeros(len(u))
        for j in self.order[1:]:
            total = total + self.log_given[j][codes[:, self.parent[j]], codes[:, j]]
        for j, edges in enumerate(self.edges):
            total = total - np.log(np.diff(edges))[codes[:, j]]
        return total

    def uniforms(self, n: int) -> Array:
        codes = np.zeros((n, len(self.edges)), int)
        codes[:, 0] = _draw(np.exp(self.log_root)[None].repeat(n, 0), self.rng)
        for j in self.order[1:]:
            codes[:, j] = _draw(np.exp(self.log_given[j])[codes[:, self.parent[j]]], self.rng)
        u = self.rng.random(codes.shape)
        bins = [(e[codes[:, j]], e[codes[:, j] + 1]) for j, e in enumerate(self.edges)]
        return np.stack([a + (b - a) * u[:, j] for j, (a, b) in enumerate(bins)], 1)

    def _codes(self, u: Array) -> Array:
        found = [np.searchsorted(e, u[:, j], side="right") - 1 for j, e in enumerate(self.edges)]
        return np.stack([np.clip(f, 0, len(e) - 2) for f, e in zip(found, self.edges, strict=True)], 1)

    def _joint(self, codes: Array, i: int, j: int) -> Array:
        """Counts of the pair, smoothed towards independence by as many rows as the longer side has bins."""
        a, b = np.diff(self.edges[i]), np.diff(self.edges[j])
        table = np.zeros((len(a), len(b)))
        np.add.at(table, (codes[:, i], codes[:, j]), 1.0)
        return table + max(table.shape) * (np.outer(a, b) if i != j else np.diag(a))


class Flow(Peer):
    """zuko's neural spline flow on z = Φ⁻¹(u), dequantised afresh in every batch, stopped by held-out rows."""

    def fit(
        self,
        lo: Array,
        hi: Array,
        *,
        device: str = "cpu",
        steps: int = 4000,
        batch_size: int = 512,
        patience: int = 6,
    ) -> None:
        zuko = need("zuko")
        with torch.random.fork_rng(devices=[]):  # zuko initialises from the global generator
            torch.manual_seed(self.seed)
            flow = zuko.flows.NSF(lo.shape[1], transforms=3, hidden_features=(128, 128), bins=8)
        self.device, self.flow = device, flow.to(device)
        generator = torch.Generator(device).manual_seed(self.seed)
        edges = [torch.as_tensor(each, device=device) for each in (lo, hi)]
        order = torch.as_tensor(self.rng.permutation(len(lo)), device=device)
        held, kept = order[: len(lo) // 10], order[len(lo) // 10 :]
        fixed = torch.cat([_scores(*(e[held] for e in edges), generator) for _ in range(4)])
        adam = torch.optim.AdamW(self.flow.parameters(), lr=1e-3, weight_decay=1e-4)
        best, state, waited = math.inf, copy.deepcopy(flow.state_dict()), 0
        for step in range(1, steps + 1):
            rows = kept[torch.randint(len(kept), (batch_size,), generator=generator, device=device)]
            loss = -self.flow().log_prob(_scores(*(e[rows] for e in edges), generator)).mean()
            adam.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.flow.parameters(), 5.0)
            adam.step()
            if step % 200 and step < steps:
                continue
            now = float(np.mean([-float(self._log_q(part).mean()) for part in fixed.split(8192)]))
            waited = waited + 1 if now >= best else 0
            if now < best:
                best, state = now, copy.deepcopy(self.flow.state_dict())
            if waited >= patience:
                break
        self.flow.load_state_dict(state)
        self.steps = step

    def log_c(self, u: Array) -> Array:
        z = torch.as_tensor(ndtri(u), dtype=torch.float32, device=self.device)
        log_q = torch.cat([self._log_q(part) for part in z.split(8192)]).double()
        normal = -0.5 * z.double().square() - 0.5 * math.log(2 * math.pi)
        return (log_q - normal.sum(1)).cpu().numpy()

    def uniforms(self, n: int) -> Array:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # zuko samples from the global generator
            torch.manual_seed(self.seed)
            z = torch.cat([self.flow().sample((min(8192, n - at),)) for at in range(0, n, 8192)])
        return np.clip(ndtr(z.double().cpu().numpy()), EDGE, 1 - EDGE)

    @torch.no_grad()
    def _log_q(self, z: Tensor) -> Tensor:
        return self.flow().log_prob(z)


def arf_samples(train: pd.DataFrame, n: int, seed: int) -> pd.DataFrame:
    """n rows from adversarial random forests with arfpy's defaults; numbers rounded to the lattice they came from."""
    arf = need("arfpy.arf").arf
    # arfpy 0.1.1 looks columns up by position, which pandas 3 allows only if that is their name
    plain = train.reset_index(drop=True).set_axis(range(train.shape[1]), axis=1)
    labels = [j for j in plain if not pd.api.types.is_numeric_dtype(plain[j])]
    np.random.seed(seed)  # noqa: NPY002  arfpy draws from the global generator
    # … and calls a name that NumPy 2.4 dropped
    with mock.patch.object(np, "in1d", np.isin, create=True), contextlib.redirect_stdout(io.StringIO()):
        forest = arf(plain.astype({j: "category" for j in labels}), random_state=seed)
        forest.forde()
        fake = forest.forge(n).set_axis(list(train), axis=1)
    return snapped(fake, resolution(Schema.fit(read_frame(train))))


def snapped(fake: pd.DataFrame, widths: Mapping[str, float]) -> pd.DataFrame:
    """Numbers at the resolution of their column, so that digits alone do not give a sample away."""
    out = fake.copy()
    for name in fake:
        if name in widths:
            decimals = max(0, math.ceil(-math.log10(widths[name]) - 1e-9))
            out[name] = (np.rint(fake[name].astype(float) / widths[name]) * widths[name]).round(decimals)
        elif pd.api.types.is_numeric_dtype(fake[name]):
            out[name] = np.rint(fake[name])
    return out


def _within(lo: Array, hi: Array, rng: np.random.Generator) -> Array:
    return np.clip(lo + (hi - lo) * rng.random(lo.shape), EDGE, 1 - EDGE)


def _scores(lo: Tensor, hi: Tensor, generator: torch.Generator) -> Tensor:
    u = torch.rand(lo.shape, generator=generator, dtype=torch.float64, device=lo.device)
    return torch.special.ndtri((lo + (hi - lo) * u).clamp(EDGE, 1 - EDGE)).float()


def _information(table: Array) -> float:
    p = table / table.sum()
    return float((p * np.log(p / (p.sum(1, keepdims=True) * p.sum(0, keepdims=True)))).sum())


def _draw(p: Array, rng: np.random.Generator) -> Array:
    total = np.cumsum(p, axis=1)
    return (rng.random((len(p), 1)) * total[:, -1:] > total).sum(1)
