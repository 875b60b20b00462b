"""What every peer knows of the columns one by one: the cells of a table and their probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
import torch
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from scipy.special import logsumexp, ndtr, ndtri
from scipy.stats import multivariate_normal
from sklearn.covariance import LedoitWolf
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity
from torch import Tensor

from ctem import Recipe, train
from ctem.tables.encoding.codecs import Labels, Numbers
from ctem.tables.io.frame import read_frame
from ctem.tables.margins.monotone import MonotoneMap
from ctem.tables.margins.preferred import PreferredValues
from ctem.tables.schema import Schema
from ctem.training import Loss
from experiments.sweep import need

EDGE = 1e-12  # of [0, 1]: z stays within ±7
BINS = 16  # of a number, in the tree
PSEUDO = 0.5  # added to every count
COMPONENTS, BANDWIDTHS = (1, 4, 16, 64), (0.1, 0.2, 0.4, 0.8)  # of a mixture; of kernels
CLASSES = 12  # values of one or two columns by which others are Gaussian, at most
HELD = 500  # rows that such a choice is made by, at most
LATTICE_STEPS = 60  # halvings that find a cell
Array = np.ndarray


def bound(log_density: Array) -> Array:
    """log of the mean over draws, (draws, n) → (n,)."""
    return logsumexp(log_density, axis=0) - math.log(len(log_density))


def resolution(schema: Schema) -> dict[str, float]:
    """Width of every column of numbers; a number without one has no probability as written."""
    widths = {n: c.codec.lattice.width for n, c in schema.columns.items() if isinstance(c.codec, Numbers)}
    if continuous := [name for name, width in widths.items() if not width]:
        raise ValueError(f"column {continuous[0]!r}: expected numbers on a lattice; got a continuous column.")
    return widths


@dataclass(frozen=True)
class LabelMargin:
    """Smoothed frequencies of listed values."""

    values: list
    edges: Array  # of the cells of [0, 1], (k + 1,)

    @classmethod
    def fit(cls, cells: Array, codec: Labels) -> LabelMargin:
        values = list(codec.values)
        counts = pd.Series(cells).value_counts().reindex(values, fill_value=0).to_numpy() + PSEUDO
        edges = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
        return cls(values, edges)

    def cell(self, cells: Array) -> tuple[Array, Array, Array]:
        """lo, hi and log P of each cell."""
        place = {value: i for i, value in enumerate(self.values)}
        index = np.array([place[value] for value in cells])
        lo, hi = self.edges[index], self.edges[index + 1]
        return lo, hi, np.log(hi - lo)

    def value(self, u: Array) -> Array:
        index = np.clip(np.searchsorted(self.edges, u, side="right") - 1, 0, len(self.values) - 1)
        return np.array(self.values)[index]

    def bins(self) -> Array:
        return self.edges


@dataclass(frozen=True)
class NumberMargin:
    """A smooth part of mass m under the curve T, and steps: P(X ≤ x) = m Φ(T(x + w/2)) + Σ_{steps ≤ x} mass.

    The steps are the atoms of the schema, or all values of the training rows, m being the share of values seen once
    (Good and Turing): whichever is likelier on the training rows, each left out in turn.
    """

    curve: MonotoneMap | PreferredValues
    width: float
    origin: float
    steps: Array
    below: Array  # mass of the steps before each, and of all, (k + 1,)

    @classmethod
    def fit(cls, cells: Array, codec: Numbers) -> NumberMargin:
        found, counts = np.unique(cells, return_counts=True)
        smooth = cls._made(codec, found, np.where(np.isin(found, codec.atoms), counts, 0), len(cells))
        lumpy = cls._made(codec, found, np.where(counts > 1, counts, 0), len(cells))
        # a row left out takes one from the count of its value, and a value left with one is no step
        gone = np.select([counts > 2, counts == 2], [1, 2], 0) / (len(cells) + 2 * PSEUDO)
        left_out = np.maximum(np.exp(lumpy.cell(found)[2]) - gone, 1e-300)
        return lumpy if counts @ np.log(left_out) > counts @ smooth.cell(found)[2] else smooth

    @classmethod
    def _made(cls, codec: Numbers, values: Array, counts: Array, n: int) -> NumberMargin:
        mass = np.concatenate([[0.0], np.cumsum(counts[counts > 0]) / (n + 2 * PSEUDO)])
        return cls(codec.transform, codec.lattice.width, float(values[0]), values[counts > 0], mass)

    @property
    def smooth(self) -> float:
        return 1 - float(self.below[-1])

    def cell(self, cells: Array) -> tuple[Array, Array, Array]:
        """lo, hi and log P of each cell."""
        before, after = self._z(cells - self.width / 2), self._z(cells + self.width / 2)
        upper = before > 0  # in the upper tail the difference keeps its digits only from above
        part = np.where(upper, ndtr(-before) - ndtr(-after), ndtr(after) - ndtr(before))
        left, right = (self.below[np.searchsorted(self.steps, cells, side=s)] for s in ("left", "right"))
        p = np.maximum(self.smooth * part + right - left, 1e-300)
        lo = self.smooth * ndtr(before) + left
        return lo, lo + p, np.log(p)

    def value(self, u: Array) -> Array:
        """The cell with lo ≤ u < hi, found by halving."""
        low, high = np.full(len(u), -(2.0**40)), np.full(len(u), 2.0**40)
        for _ in range(LATTICE_STEPS):
            middle = np.floor((low + high) / 2)
            above = self.upto(middle) > u
            high, low = np.where(above, middle, high), np.where(above, low, middle)
        return self.origin + self.width * high

    def upto(self, index: Array) -> Array:
        """P(X ≤ the cell of that index)."""
        x = self.origin + self.width * index
        steps = self.below[np.searchsorted(self.steps, x + self.width / 4)]
        return self.smooth * ndtr(self._z(x + self.width / 2)) + steps

    def bins(self) -> Array:
        """Edges in [0, 1] of about BINS bins that cut no cell."""
        index = np.rint((self.value(np.arange(1, BINS) / BINS) - self.origin) / self.width)
        edges = np.unique(np.concatenate([self.upto(index), self.upto(index - 1)]))
        return np.concatenate([[0.0], edges[(edges > 1e-6) & (edges < 1 - 1e-6)], [1.0]])

    def _z(self, X: Array) -> Array:
        return self.curve(torch.as_tensor(X, dtype=torch.float64)).numpy()


class Margins:
    """The margins of a table, by the schema of its training rows."""

    def __init__(self, train: pd.DataFrame):
        self.schema = Schema.fit(read_frame(train))
        resolution(self.schema)
        self.like = train.iloc[:1]
        self.parts: dict[str, LabelMargin | NumberMargin] = {}
        for name, choice in self.schema.columns.items():
            cells, codec = _plain(train[name]), choice.codec
            if isinstance(codec, Labels):
                self.parts[name] = LabelMargin.fit(cells, codec)
            elif isinstance(codec, Numbers):
                self.parts[name] = NumberMargin.fit(cells, codec)

    def cells(self, frame: pd.DataFrame) -> tuple[Array, Array, Array]:
        """lo, hi and log P_j, each (n, d)."""
        found = [part.cell(_plain(frame[name])) for name, part in self.parts.items()]
        return tuple(np.stack(each, 1) for each in zip(*found, strict=True))

    def frame(self, u: Array) -> pd.DataFrame:
        """The rows whose cells hold u (n, d); constant columns come back too."""
        columns = {}
        for name in self.like:
            if name in self.parts:
                columns[name] = self.parts[name].value(u[:, list(self.parts).index(name)])
            else:
                columns[name] = np.repeat(self.like[name].to_numpy(), len(u))
        return pd.DataFrame(columns).astype(self.like.dtypes.to_dict())


def _plain(column: pd.Series) -> Array:
    numeric = pd.api.types.is_numeric_dtype(column)
    return column.to_numpy(np.float64) if numeric else column.astype(object).to_numpy()


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
        c = [self.log_c(within(lo, hi, self.rng)) for _ in range(draws)]
        return log_p.sum(1) + bound(np.stack(c))

    def sample(self, n: int) -> pd.DataFrame:
        return self.margins.frame(self.uniforms(n))


class Independent(Peer):
    """c = 1."""


class Copula(Peer):
    """Gaussian copula: c(u) = N(z; 0, R) / Π φ(z_j), z = Φ⁻¹(u); R the correlation of the training rows' z."""

    def fit(self, lo: Array, hi: Array) -> None:
        z = np.concatenate([ndtri(within(lo, hi, self.rng)) for _ in range(4)])
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


class Smooth(Peer):
    """A density q of scikit-learn on z = Φ⁻¹(u): c(u) = q(z) / Π φ(z_j); the best of a few, by a tenth of the rows."""

    def candidates(self, rows: int) -> list:
        raise NotImplementedError

    def fit(self, lo: Array, hi: Array) -> None:
        z, order = ndtri(within(lo, hi, self.rng)), self.rng.permutation(len(lo))
        held, kept = z[order[: len(z) // 10][:HELD]], z[order[len(z) // 10 :]]
        fits = (q.fit(kept) for q in self.candidates(len(kept)))
        self.density = max(fits, key=lambda q: q.score_samples(held).mean())

    def log_c(self, u: Array) -> Array:
        z = ndtri(u)
        return self.density.score_samples(z) + (0.5 * z**2 + 0.5 * math.log(2 * math.pi)).sum(1)

    def uniforms(self, n: int) -> Array:
        drawn = self.density.sample(n)
        return np.clip(ndtr(drawn[0] if isinstance(drawn, tuple) else drawn), EDGE, 1 - EDGE)


class Mixture(Smooth):
    """A mixture of Gaussians with full covariances, each with a hundred rows to learn from where there are several."""

    def candidates(self, rows: int) -> list:
        few = {"random_state": self.seed, "reg_covar": 1e-4, "tol": 1e-2, "max_iter": 300}
        return [GaussianMixture(k, **few) for k in COMPONENTS if 100 * k <= max(rows, 100)]


class ByClass(Peer):
    """A Gaussian of the other z for each value of one label, or of two: the labels that a tenth of the rows prefer."""

    def fit(self, lo: Array, hi: Array) -> None:
        u, order = within(lo, hi, self.rng), self.rng.permutation(len(lo))
        held, kept = u[order[: len(u) // 10][:HELD]], u[order[len(u) // 10 :]]
        labels = [
            part.edges if isinstance(part, LabelMargin) else None for part in self.margins.parts.values()
        ]
        few = [j for j, edges in enumerate(labels) if edges is not None]
        sets = [some for count in (1, 2) for some in combinations(few, count)]
        sets = [some for some in sets if math.prod(len(labels[j]) - 1 for j in some) <= CLASSES]
        given = {some: _Given(some, labels, kept) for some in sets}
        self.best = max(given, key=lambda some: given[some].log_c(held).mean(), default=None)
        self.given = None if self.best is None else _Given(self.best, labels, u)

    def log_c(self, u: Array) -> Array:
        return np.zeros(len(u)) if self.given is None else self.given.log_c(u)

    def uniforms(self, n: int) -> Array:
        u = self.rng.random((n, len(self.margins.parts)))
        return u if self.given is None else self.given.drawn(u, self.rng)


class _Given:
    """Values of some columns and their shares, with a Gaussian of the other z each, drawn to a sphere as needed."""

    def __init__(self, some: tuple[int, ...], labels: list, u: Array):
        self.some, self.edges = some, [labels[j] for j in some]
        self.shape = tuple(len(edges) - 1 for edges in self.edges)
        z, value = self._parts(u)
        alone = np.ones(())
        for edges in self.edges:
            alone = np.multiply.outer(alone, np.diff(edges))
        alone = alone.ravel()
        counts = np.bincount(value, minlength=len(alone)) + len(alone) * alone
        self.share, self.log_c_of = counts / counts.sum(), np.log(counts / counts.sum() / alone)
        of = [z[value == k] for k in range(len(alone))]
        self.normals = [_normal(rows if len(rows) > 1 else z) for rows in of]

    def _parts(self, u: Array) -> tuple[Array, Array]:
        """The other z, and which value."""
        places = [
            np.clip(np.searchsorted(edges, u[:, j], side="right") - 1, 0, len(edges) - 2)
            for j, edges in zip(self.some, self.edges, strict=True)
        ]
        return ndtri(np.delete(u, self.some, 1)), np.ravel_multi_index(places, self.shape)

    def log_c(self, u: Array) -> Array:
        z, value = self._parts(u)
        out = self.log_c_of[value] + 0.5 * (z**2 + math.log(2 * math.pi)).sum(1)
        for k in np.unique(value):
            rows = value == k
            out[rows] += multivariate_normal(*self.normals[k]).logpdf(z[rows])
        return out

    def drawn(self, u: Array, rng: np.random.Generator) -> Array:
        """Rows of c, from independent ones."""
        out, value = u.copy(), rng.choice(len(self.share), size=len(u), p=self.share)
        for j, edges, place in zip(self.some, self.edges, np.unravel_index(value, self.shape), strict=True):
            out[:, j] = edges[place] + (edges[place + 1] - edges[place]) * u[:, j]
        rest = np.delete(np.arange(u.shape[1]), self.some)
        for k in np.unique(value):
            rows = value == k
            z = rng.multivariate_normal(*self.normals[k], rows.sum())
            out[np.ix_(rows, rest)] = np.clip(ndtr(z), EDGE, 1 - EDGE)
        return out


def _normal(z: Array) -> tuple[Array, Array]:
    """Mean and covariance, which is drawn to a sphere by Ledoit and Wolf, and is never singular."""
    fitted = LedoitWolf().fit(z)
    return fitted.location_, 0.99 * fitted.covariance_ + 0.01 * np.eye(z.shape[1])


class Kernels(Smooth):
    """A kernel density estimate."""

    def candidates(self, rows: int) -> list:
        return [KernelDensity(bandwidth=h, rtol=1e-3) for h in BANDWIDTHS]


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
        every: int = 200,
        patience: int = 6,
        loss: Loss | None = None,
    ) -> None:
        zuko = need("zuko")
        with torch.random.fork_rng(devices=[]):  # zuko initialises from the global generator
            torch.manual_seed(self.seed)
            flow = zuko.flows.NSF(lo.shape[1], transforms=3, hidden_features=(128, 128), bins=8)
        self.device, self.flow = device, flow.to(device)
        cells = torch.as_tensor(np.concatenate([lo, hi], 1), device=device)
        order = torch.as_tensor(self.rng.permutation(len(lo)), device=device)
        held, kept = order[: len(lo) // 10], order[len(lo) // 10 :]
        recipe = Recipe(
            steps=steps,
            batch_size=batch_size,
            schedule="constant",
            weight_decay=1e-4,
            clip=5.0,
            evaluate_every=min(every, steps),
            patience=patience,
            seed=self.seed,
        )
        judged = cells[held].repeat(4, 1)
        self.history = train(self.flow, loss or flow_loss, cells[kept], recipe, held_out=judged)

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


def within(lo: Array, hi: Array, rng: np.random.Generator) -> Array:
    """A place in every cell."""
    return np.clip(lo + (hi - lo) * rng.random(lo.shape), EDGE, 1 - EDGE)


def flow_loss(flow: torch.nn.Module, cells: Tensor, generator: torch.Generator) -> Tensor:
    """Mean −log q of z at a uniform point of every row's cells (n, 2d), lower edges first."""
    return -flow().log_prob(_scores(*cells.chunk(2, -1), generator)).mean()


def _scores(lo: Tensor, hi: Tensor, generator: torch.Generator) -> Tensor:
    u = torch.rand(lo.shape, generator=generator, dtype=torch.float64, device=lo.device)
    return torch.special.ndtri((lo + (hi - lo) * u).clamp(EDGE, 1 - EDGE)).float()


def _information(table: Array) -> float:
    p = table / table.sum()
    return float((p * np.log(p / (p.sum(1, keepdims=True) * p.sum(0, keepdims=True)))).sum())


def _draw(p: Array, rng: np.random.Generator) -> Array:
    total = np.cumsum(p, axis=1)
    return (rng.random((len(p), 1)) * total[:, -1:] > total).sum(1)
