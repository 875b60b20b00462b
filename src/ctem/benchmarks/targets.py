"""Toy densities with known truth: the paper's continuous and mixed data sets.

A target has a ``space``, draws rows with ``sample(n, seed)``, and knows its ``log_density(X)`` and
``grad_log_density(X)``, in float64 and the user's units. The order of the random draws is part of the
definition: with seeds 0–4, Silverman's rule and SD-KDE have the published errors to three digits in two dimensions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import default_rng
from numpy.typing import NDArray
from torch import Tensor

from ctem.spaces import Category, Real, Space

__all__ = [
    "PAPER_2D",
    "Banana",
    "GaussianMixture",
    "LabelledRing",
    "Quadrature",
    "Spiral",
    "TwoGaussians",
    "TwoRings",
    "grid",
]

Rows = Tensor | NDArray[np.float64]

MAX_PAIRS = 2**20  # row–centre pairs held in memory at once


class Quadrature(NamedTuple):
    """Points ``X``, shape (m, 2), and trapezoid ``weights``, shape (m,): ∫ g ≈ Σ_i w_i g(X_i).

    >>> Quadrature(torch.zeros(1, 2), torch.ones(1)).weights
    tensor([1.])
    """

    X: Tensor
    weights: Tensor


def grid(bounds: tuple[float, float], points: int = 200) -> Quadrature:
    """The regular grid on the square [low, high]², with its trapezoidal weights.

    Arguments:
        bounds: (low, high), the same on both axes.
        points: grid points per axis; the second coordinate runs fastest.

    >>> X, weights = grid((0.0, 2.0), points=3)
    >>> X.shape, weights.sum()
    (torch.Size([9, 2]), tensor(4., dtype=torch.float64))
    """
    low, high = bounds
    if not low < high:
        raise ValueError(f"bounds: expected low < high; got {bounds}.")
    if points < 2:
        raise ValueError(f"points: expected at least 2; got {points}.")
    axis = torch.linspace(low, high, points, dtype=torch.float64)
    w = torch.full_like(axis, (high - low) / (points - 1))
    w[[0, -1]] /= 2
    return Quadrature(torch.cartesian_prod(axis, axis), torch.outer(w, w).flatten())


class GaussianNodes:
    """Isotropic Gaussians, ρ(x) = Σ_k w_k N(x; m_k, s² I).

    With ℓ_k(x) = log w_k + (x·m_k − |m_k|²/2)/s² everything follows from one (n, k) array:

        log ρ(x) = logsumexp_k ℓ_k − |x|²/(2s²) − d/2 log(2πs²)
        ∇ log ρ(x) = (Σ_k P(k | x) m_k − x)/s²,   P(k | x) = softmax_k ℓ_k.

    Rows are taken in chunks, so memory stays bounded when there are thousands of centres.

    Arguments:
        centres: m, shape (k, d).
        scale: s.
        log_weights: log w, shape (k,); equal weights when absent.
    """

    def __init__(self, centres: Tensor, scale: float, log_weights: Tensor | None = None):
        k = len(centres)
        self.centres = centres
        self.scale = scale
        self.log_weights = centres.new_full((k,), -math.log(k)) if log_weights is None else log_weights

    def log_density(self, X: Rows) -> Tensor:
        """log ρ at the rows X, shape (n, d) → (n,)."""
        x = _rows(X, self.centres.shape[1])
        peak = torch.cat([self._logits(part).logsumexp(-1) for part in self._chunks(x)])
        variance = self.scale**2
        return peak - x.square().sum(-1) / (2 * variance) - x.shape[1] / 2 * math.log(2 * math.pi * variance)

    def grad_log_density(self, X: Rows) -> Tensor:
        """∇ log ρ at the rows X, shape (n, d) → (n, d)."""
        x = _rows(X, self.centres.shape[1])
        nearest = [self._logits(part).softmax(-1) @ self.centres.to(x) for part in self._chunks(x)]
        return (torch.cat(nearest) - x) / self.scale**2

    def posterior(self, X: Rows) -> Tensor:
        """P(k | x), the probability that centre k made the row, shape (n, d) → (n, k)."""
        return self._logits(_rows(X, self.centres.shape[1])).softmax(-1)

    def _logits(self, x: Tensor) -> Tensor:
        m = self.centres.to(x)
        return self.log_weights.to(x) + (x @ m.T - m.square().sum(-1) / 2) / self.scale**2

    def _chunks(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.chunk(1 + len(x) * len(self.centres) // MAX_PAIRS)


class Spiral(GaussianNodes):
    """A noisy two-turn Archimedean spiral, ρ(x) = ∫₀¹ N(x; c(t), 0.09 I) dt with c(t) = pol(1 + 3t, 4πt).

    The integral is a midpoint rule with 4000 nodes, that is, a mixture of 4000 Gaussians on the curve.

    >>> Spiral().sample(2, seed=0).shape
    (2, 2)
    >>> Spiral().log_density(torch.zeros(1, 2))
    tensor([-8.5675], dtype=torch.float64)
    """

    space = Space([Real(), Real()])
    bounds = (-6.0, 6.0)

    def __init__(self) -> None:
        t = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
        super().__init__(_polar(1 + 3 * t, 4 * math.pi * t), scale=0.3)

    def sample(self, n: int, seed: int) -> NDArray[np.float64]:
        """Draw n rows, shape (n, 2): t, then the noise of the first column, then of the second."""
        rng = default_rng(seed)
        t = rng.uniform(0, 1, n)
        curve = np.stack([(1 + 3 * t) * np.cos(4 * np.pi * t), (1 + 3 * t) * np.sin(4 * np.pi * t)], axis=1)
        return curve + 0.3 * rng.standard_normal((2, n)).T


class TwoGaussians(GaussianNodes):
    """An equal mixture of N((1, 1), 0.25 I) and N((−1, −1), 0.25 I).

    >>> TwoGaussians().grad_log_density(torch.tensor([[0.0, 0.0]]))
    tensor([[0., 0.]], dtype=torch.float64)
    """

    space = Space([Real(), Real()])
    bounds = (-4.0, 4.0)

    def __init__(self) -> None:
        super().__init__(torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64), scale=0.5)

    def sample(self, n: int, seed: int) -> NDArray[np.float64]:
        """Draw n rows, shape (n, 2): the component, then the noise."""
        return _sample_mixture(self.centres, self.scale, n, seed)


class GaussianMixture(GaussianNodes):
    """Four unit Gaussians with means 3e₁, 3e₂, 3e₃, 3e₄ and equal weights; the paper has d = 10 and 30.

    Arguments:
        dim: d, at least 4.

    >>> GaussianMixture(10).sample(5000, seed=0).shape
    (5000, 10)
    """

    def __init__(self, dim: int):
        if dim < 4:
            raise ValueError(f"dim: expected at least 4, one axis for each mean; got {dim}.")
        super().__init__(3 * torch.eye(4, dim, dtype=torch.float64), scale=1.0)
        self.space = Space([Real()] * dim)

    def sample(self, n: int, seed: int) -> NDArray[np.float64]:
        """Draw n rows, shape (n, d): the component, then the noise."""
        return _sample_mixture(self.centres, self.scale, n, seed)


class Banana:
    """A bent Gaussian: x₁ ~ N(0, 4), x₂ = (x₁² − 4)/2 + e with e ~ N(0, 1).

        ρ(x) = exp(−x₁²/8 − e²/2)/(4π)

    The paper's square ``bounds`` leaves 5 % of the mass outside.

    >>> Banana().log_density(torch.tensor([[0.0, -2.0]])).exp()
    tensor([0.0796], dtype=torch.float64)
    """

    space = Space([Real(), Real()])
    bounds = (-6.0, 6.0)

    def sample(self, n: int, seed: int) -> NDArray[np.float64]:
        """Draw n rows, shape (n, 2): the first column, then the noise of the second."""
        rng = default_rng(seed)
        x1 = 2 * rng.standard_normal(n)
        return np.stack([x1, 0.5 * (x1**2 - 4) + rng.standard_normal(n)], axis=1)

    def log_density(self, X: Rows) -> Tensor:
        """log ρ at the rows X, shape (n, 2) → (n,)."""
        x1, x2 = _rows(X, 2).unbind(-1)
        e = x2 - 0.5 * (x1**2 - 4)
        return -(x1**2) / 8 - e**2 / 2 - math.log(4 * math.pi)

    def grad_log_density(self, X: Rows) -> Tensor:
        """∇ log ρ = (−x₁/4 + e x₁, −e) at the rows X, shape (n, 2) → (n, 2)."""
        x1, x2 = _rows(X, 2).unbind(-1)
        e = x2 - 0.5 * (x1**2 - 4)
        return torch.stack([-x1 / 4 + e * x1, -e], dim=-1)


class TwoRings:
    """Two rings of radius 1 and 2: a uniform angle and r ~ ½ Σ_k N(k, 0.1²), so that

        ρ(x) = ½ Σ_{k=1,2} N(r; k, 0.1²)/(2πr),   r = |x|.

    The density has a harmless pole at the origin, where N(0; 1, 0.1²) ≈ 1e-21.

    >>> TwoRings().log_density(torch.tensor([[1.0, 0.0]])).exp()
    tensor([0.3175], dtype=torch.float64)
    """

    space = Space([Real(), Real()])
    bounds = (-3.0, 3.0)

    def sample(self, n: int, seed: int) -> NDArray[np.float64]:
        """Draw n rows, shape (n, 2): the ring, then the radial noise, then the angle."""
        rng = default_rng(seed)
        c = rng.integers(0, 2, n)
        r = 1 + c + 0.1 * rng.standard_normal(n)
        t = rng.uniform(0, 2 * np.pi, n)
        return np.stack([r * np.cos(t), r * np.sin(t)], axis=1)

    def log_density(self, X: Rows) -> Tensor:
        """log ρ at the rows X, shape (n, 2) → (n,)."""
        r = _rows(X, 2).square().sum(-1).sqrt()
        return self._logits(r).logsumexp(-1) - (2 * math.pi * r).log()

    def grad_log_density(self, X: Rows) -> Tensor:
        """∇ log ρ = [Σ_k P(k | r)(k − r)/0.1² − 1/r] x/r at the rows X, shape (n, 2) → (n, 2)."""
        x = _rows(X, 2)
        r = x.square().sum(-1).sqrt()
        ring = self._logits(r).softmax(-1) @ r.new_tensor([1.0, 2.0])
        return (((ring - r) / 0.1**2 - 1 / r) / r).unsqueeze(-1) * x

    @staticmethod
    def _logits(r: Tensor) -> Tensor:
        z = (r.unsqueeze(-1) - r.new_tensor([1.0, 2.0])) / 0.1
        return -z.square() / 2 - math.log(2 * 0.1 * math.sqrt(2 * math.pi))


class LabelledRing:
    """Points with labels on R² × {0 … K−1}: p(x, y) = π_y N(x; μ_y, I), μ_y = pol(R, 2πy/K).

    Arguments:
        separation: R, the ring's radius in units of the noise.
        labels: K.
        seed: draws the label prior π ∝ Unif[1, 1.5].

    >>> ring = LabelledRing()
    >>> ring.sample(1000, seed=0).shape, ring.weights.shape
    ((1000, 3), torch.Size([16]))
    >>> round(ring.label_probabilities(torch.zeros(1, 2)).sum().item(), 6)
    1.0
    """

    def __init__(self, separation: float = 2.0, labels: int = 16, seed: int = 0):
        if not separation >= 0:
            raise ValueError(f"separation: expected a radius ≥ 0; got {separation}.")
        self.space = Space({"x0": Real(), "x1": Real(), "label": Category(labels)})
        self.bounds = (-separation - 4.0, separation + 4.0)
        raw = torch.as_tensor(default_rng(seed).uniform(1.0, 1.5, labels))
        self.weights = raw / raw.sum()
        angle = 2 * math.pi * torch.arange(labels, dtype=torch.float64) / labels
        self._marginal = GaussianNodes(_polar(separation, angle), scale=1.0, log_weights=self.weights.log())
        self.centres = self._marginal.centres

    def sample(self, n: int, seed: int) -> NDArray[np.float64]:
        """Draw n rows, shape (n, 3): the label, then the noise of the point."""
        rng = default_rng(seed)
        y = rng.choice(len(self.weights), n, p=self.weights.numpy())
        return np.column_stack([self.centres.numpy()[y] + rng.standard_normal((n, 2)), y])

    def log_density(self, X: Rows) -> Tensor:
        """log p(x, y) at the rows X = (x, y), shape (n, 3) → (n,)."""
        x, y = self._split(X)
        gap = x - self.centres.to(x)[y]
        return self.weights.to(x).log()[y] - gap.square().sum(-1) / 2 - math.log(2 * math.pi)

    def grad_log_density(self, X: Rows) -> Tensor:
        """(∇ₓ log p, 0) = (μ_y − x, 0) at the rows X = (x, y), shape (n, 3) → (n, 3)."""
        x, y = self._split(X)
        return torch.cat([self.centres.to(x)[y] - x, torch.zeros_like(x[:, :1])], dim=-1)

    def log_density_x(self, x: Rows) -> Tensor:
        """The marginal log p(x) = log Σ_y p(x, y) at the points x, shape (n, 2) → (n,)."""
        return self._marginal.log_density(x)

    def label_probabilities(self, x: Rows) -> Tensor:
        """The posterior p(y | x) at the points x, shape (n, 2) → (n, K)."""
        return self._marginal.posterior(x)

    def _split(self, X: Rows) -> tuple[Tensor, Tensor]:
        rows = _rows(X, 3)
        y = rows[:, 2].detach()
        known = (y == y.floor()) & (y >= 0) & (y < len(self.weights))
        if not known.all():
            raise ValueError(f"label: expected a code in 0 … {len(self.weights) - 1}; got {y[~known][0]:g}.")
        return rows[:, :2], y.long()


def _rows(X: Rows, dim: int) -> Tensor:
    x = torch.as_tensor(X, dtype=torch.float64)
    if x.ndim != 2 or x.shape[1] != dim:
        raise ValueError(f"X: expected shape (n, {dim}); got {tuple(x.shape)}.")
    return x


def _polar(r: Tensor | float, t: Tensor) -> Tensor:
    return torch.stack([r * t.cos(), r * t.sin()], dim=-1)


def _sample_mixture(centres: Tensor, scale: float, n: int, seed: int) -> NDArray[np.float64]:
    rng = default_rng(seed)
    means = centres.numpy()[rng.integers(0, len(centres), n)]
    return np.asarray(means + scale * rng.standard_normal(means.shape))


PAPER_2D: tuple[Spiral | TwoGaussians | Banana | TwoRings, ...] = (
    Spiral(),
    TwoGaussians(),
    Banana(),
    TwoRings(),
)
