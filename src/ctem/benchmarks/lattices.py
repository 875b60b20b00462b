r"""Spins with exact truth: Ising and Potts on a torus, Ising on random graphs; exact samples by Swendsen–Wang.

All are pairs of sites with a coupling, on codes 0 … q − 1:

    Ising:  f(x) = Σ_ij K_ij s_i s_j,  s = 2x − 1           Potts:  f(x) = β Σ_ij [x_i = x_j]

The sum runs over the edges of the graph, each once: where the literature writes x'Jx with a symmetric J, K = 2J.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from ctem.spaces import Category, Space

__all__ = ["Ising", "Potts", "RandomIsing", "kaufman_log_z", "torus_edges", "transfer_log_z"]

MAX_ROW_STATES = 2**13  # states of a row of a lattice that a transfer matrix may have
BLOCK = 64  # columns of its power at a time


class _Spins:
    """Sites 0 … d − 1 with couplings along edges.

    Arguments:
        states: q.
        edges: (e, 2), pairs of sites.
        couplings: β_e of [x_i = x_j], (e,); for Ising it is 2K.
    """

    def __init__(self, sites: int, states: int, edges: NDArray[np.int64], couplings: NDArray[np.float64]):
        self.space = Space([Category(states)] * sites)
        self.states, self.edges, self.couplings = states, edges, couplings

    def log_potential(self, x: Tensor) -> Tensor:
        """f at codes (n, d), shape (n,)."""
        first, second, beta = self._tensors(x)
        return ((x[..., first] == x[..., second]) * beta).sum(-1)

    def __call__(self, x: Tensor) -> Tensor:
        """f: the object is itself a log-potential."""
        return self.log_potential(x)

    def sample(self, n: int, seed: int, sweeps: int = 50) -> NDArray[np.float64]:
        """n independent chains of Swendsen–Wang from random states, (n, d) codes.

        A sweep joins equal neighbours with probability 1 − e^{−β} (unequal ones, if q = 2, where β < 0) and shifts
        every cluster by a random number of states: far from the critical slowing of single flips.
        """
        rng = default_rng(seed)
        x = rng.integers(0, self.states, (n, self.space.dim))
        for _ in range(sweeps):
            x = self._sweep(x, rng)
        return x.astype(np.float64)

    def _sweep(self, x: NDArray[np.int64], rng: Generator) -> NDArray[np.int64]:
        n, d = x.shape
        equal = x[:, self.edges[:, 0]] == x[:, self.edges[:, 1]]
        satisfied = equal == (self.couplings > 0)
        joined = satisfied & (rng.uniform(size=equal.shape) < -np.expm1(-np.abs(self.couplings)))
        row, edge = joined.nonzero()
        ends = row * d + self.edges[edge, 0], row * d + self.edges[edge, 1]
        graph = coo_array((np.ones(len(row), np.int8), ends), shape=(n * d, n * d))
        count, cluster = connected_components(graph, directed=False)
        shift = rng.integers(0, self.states, count)[cluster].reshape(n, d)
        return np.asarray((x + shift) % self.states)

    def _tensors(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second = torch.as_tensor(self.edges.T, device=x.device)
        return first, second, torch.as_tensor(self.couplings, dtype=x.dtype, device=x.device)


class _IsingSpins(_Spins):
    """Spins of two states with Σ K s_i s_j, which is differentiable in the codes."""

    def __init__(self, sites: int, edges: NDArray[np.int64], couplings: NDArray[np.float64]):
        super().__init__(sites, 2, edges, 2 * couplings)
        self._J: Tensor | None = None  # as it was last needed

    def log_potential(self, x: Tensor) -> Tensor:
        """f at codes (n, d), shape (n,)."""
        if self._J is None or self._J.device != x.device or self._J.dtype != x.dtype:
            self._J = torch.as_tensor(self.coupling_matrix, dtype=x.dtype, device=x.device)
        s = 2 * x - 1
        return ((s @ self._J) * s).sum(-1)

    @property
    def coupling_matrix(self) -> NDArray[np.float64]:
        """J with f = x'Jx for spins x, symmetric, (d, d)."""
        J = np.zeros((self.space.dim, self.space.dim))
        np.add.at(J, (self.edges[:, 0], self.edges[:, 1]), self.couplings / 4)
        return np.asarray(J + J.T)

    def coupling_floor(self, n: int, seed: int, samples: int = 20_000) -> float:
        """−log RMSE of J that maximum likelihood reaches with n rows when it knows which couplings are not zero.

        The variance of an estimate of K is the diagonal of I⁻¹/n, with I the covariance of the s_i s_j of the edges;
        −inf where that has no inverse in these samples, because some spins never differ.
        """
        s = 2 * self.sample(samples, seed) - 1
        pairs = s[:, self.edges[:, 0]] * s[:, self.edges[:, 1]]
        strength = np.linalg.eigvalsh(np.cov(pairs.T) * n)
        if strength[0] <= strength[-1] * len(strength) * np.finfo(float).eps:
            return -math.inf
        total = 2 * (1 / strength).sum() / 4  # J = K/2, twice in the matrix
        return float(-0.5 * np.log(total / self.space.dim**2))


class Ising(_IsingSpins):
    """Ising spins on a torus, with log Z by Kaufman's formula where K > 0.

    Arguments:
        side: L of an L × L torus, at least 3.
        coupling: K.

    >>> lattice = Ising(4, 0.3)
    >>> from ctem.partition import log_z_enumerate
    >>> abs(log_z_enumerate(lattice, lattice.space, dtype=torch.float64).value - lattice.log_z) < 1e-10
    True
    """

    def __init__(self, side: int, coupling: float):
        edges = torus_edges(side, side)
        super().__init__(side * side, edges, np.full(len(edges), float(coupling)))
        self.side, self.coupling = side, coupling

    @property
    def log_z(self) -> float:
        """log Σ_x exp f(x): Kaufman's formula for K > 0, a transfer matrix else."""
        if self.coupling > 0:
            return kaufman_log_z(self.side, self.side, self.coupling)
        edges = 2 * self.side**2
        return transfer_log_z(self.side, self.side, 2, 2 * self.coupling) - edges * self.coupling


class Potts(_Spins):
    """Potts spins on a torus, with log Z by a transfer matrix.

    Arguments:
        side: L of an L × L torus, at least 3.
        states: q, with q^L ≤ 8192 for log Z.
        coupling: β.

    >>> Potts(3, 3, 0.0).log_z == 9 * math.log(3)
    True
    """

    def __init__(self, side: int, states: int, coupling: float):
        edges = torus_edges(side, side)
        super().__init__(side * side, states, edges, np.full(len(edges), float(coupling)))
        self.side, self.coupling = side, coupling

    @property
    def log_z(self) -> float:
        """log Σ_x exp f(x)."""
        return transfer_log_z(self.side, self.side, self.states, self.coupling)


class RandomIsing(_IsingSpins):
    """Ising spins on an Erdős–Rényi graph, its couplings drawn from N(0, spread²).

    Arguments:
        nodes: d.
        degree: mean number of neighbours.
        spread: standard deviation of K.
        seed: of the graph and its couplings.

    >>> RandomIsing(30, 4.0, 0.2, seed=0).sample(5, seed=1).shape
    (5, 30)
    """

    def __init__(self, nodes: int, degree: float, spread: float, seed: int):
        rng = default_rng(seed)
        first, second = np.triu_indices(nodes, 1)
        there = rng.uniform(size=len(first)) < degree / (nodes - 1)
        edges = np.stack([first[there], second[there]], 1)
        super().__init__(nodes, edges, spread * rng.standard_normal(len(edges)))


def torus_edges(height: int, width: int) -> NDArray[np.int64]:
    """Pairs of neighbouring sites of a torus, each once, (2·height·width, 2).

    >>> torus_edges(3, 3).shape
    (18, 2)
    """
    if min(height, width) < 3:
        raise ValueError(
            f"height, width: expected at least 3, or neighbours meet twice; got {height}, {width}."
        )
    site = np.arange(height * width).reshape(height, width)
    right, down = np.roll(site, -1, 1), np.roll(site, -1, 0)
    return np.concatenate([np.stack([site.ravel(), other.ravel()], 1) for other in (right, down)])


def kaufman_log_z(height: int, width: int, coupling: float) -> float:
    """log Z of Ising spins on a torus with K > 0, exact for any size (Kaufman 1949).

    >>> round(kaufman_log_z(16, 16, 0.4407), 6)
    238.647169
    """
    if not coupling > 0:
        raise ValueError(f"coupling: expected K > 0; got {coupling}.")
    turn = np.cos(np.pi * np.arange(2 * height) / height)
    gamma = np.arccosh(np.cosh(2 * coupling) / np.tanh(2 * coupling) - turn)
    gamma[0] = 2 * coupling + np.log(np.tanh(coupling))  # signed: it changes sign at the critical point
    half, decay = np.abs(width * gamma / 2), np.exp(-np.abs(width * gamma))
    cosh, sinh = half + np.log1p(decay), half + np.log1p(-decay)
    sign = np.array([1.0, 1.0, 1.0, np.sign(gamma[0])])
    terms = np.array([cosh[1::2].sum(), sinh[1::2].sum(), cosh[0::2].sum(), sinh[0::2].sum()])
    top = terms.max()
    total = top + np.log((sign * np.exp(terms - top)).sum())
    return float(total - np.log(2) + height * width / 2 * np.log(2 * np.sinh(2 * coupling)))


def transfer_log_z(height: int, width: int, states: int, coupling: float) -> float:
    """log Z of Potts spins on a torus by its transfer matrix: tr(V^height), V over the states of a row.

    Between rows V is a product over sites of the q × q matrices 1 + (e^β − 1)I, and a shift of all codes changes
    nothing, so that rows whose first site is 0 are enough.

    >>> lattice = Ising(10, 0.2)
    >>> abs(transfer_log_z(10, 10, 2, 0.4) - 200 * 0.2 - lattice.log_z) < 1e-10
    True
    """
    if states**width > MAX_ROW_STATES:
        raise ValueError(f"states, width: expected at most {MAX_ROW_STATES} row states; got {states**width}.")
    rows = np.stack(np.unravel_index(np.arange(states**width), (states,) * width))  # (width, q^width)
    within = np.exp(coupling * (rows == np.roll(rows, -1, 0)).sum(0))[:, None]
    starts = np.arange(states ** (width - 1))  # rows whose first site is 0
    parts = []
    for some in np.array_split(starts, 1 + len(starts) // BLOCK):
        table, log_scale = np.zeros((len(within), len(some))), 0.0
        table[some, np.arange(len(some))] = 1.0
        for _ in range(height):
            table *= within
            for site in range(width):
                column = table.reshape(states**site, states, -1)
                table = (column.sum(1, keepdims=True) + math.expm1(coupling) * column).reshape(table.shape)
            top = table.max()
            table, log_scale = table / top, log_scale + math.log(top)
        parts.append(math.log(table[some, np.arange(len(some))].sum()) + log_scale)
    return float(np.logaddexp.reduce(parts) + math.log(states))
