"""The seven planar laws behind the 32-bit sets, each with its density: points of the plane, before they become bits.

The laws are those of the generators that the field shares (FFJORD's, in EB-GFN's version). A law has ``draw(n, rng)``
and ``log_density(p)``, in float64.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from ctem.benchmarks.targets import GaussianNodes

__all__ = ["PLANES", "Plane"]

NODES = 1500  # of a curve
MAX_PAIRS = 2**20  # point–node pairs held in memory at once
LOG_2PI = math.log(2 * math.pi)


class Plane(Protocol):
    """A law on the plane; a new one writes ``draw`` and ``log_density``.

    >>> PLANES["moons"].draw(3, np.random.default_rng(0)).shape
    (3, 2)
    """

    def draw(self, n: int, rng: Generator) -> NDArray[np.float64]:
        """n points, shape (n, 2)."""
        ...

    def log_density(self, p: Tensor) -> Tensor:
        """log ρ at points (n, 2), shape (n,)."""
        ...

    def log_mass(self, p: Tensor, side: float) -> Tensor:
        """log of the probability of small squares around points (n, 2), shape (n,)."""
        return self.log_density(p) + 2 * math.log(side)


class _Curve(Plane):
    """A point on curves plus a normal error: equally likely nodes c, X = c + s ξ."""

    def __init__(self, nodes: Tensor, noise: float):
        self.law = GaussianNodes(nodes, noise)

    def draw(self, n: int, rng: Generator) -> NDArray[np.float64]:
        centres = self.law.centres.numpy()[rng.integers(0, len(self.law.centres), n)]
        return np.asarray(centres + self.law.scale * rng.standard_normal((n, 2)))

    def log_density(self, p: Tensor) -> Tensor:
        return self.law.log_density(p)


class _Circles(Plane):
    """Circles of radius 3 and 1.5, s = 0.24: ρ = ½ Σ_R exp(−(r − R)²/2s²) e^{−z} I₀(z)/2πs² with z = rR/s²."""

    def draw(self, n: int, rng: Generator) -> NDArray[np.float64]:
        radius, t = rng.choice([3.0, 1.5], n), rng.uniform(0, 2 * np.pi, n)
        circle = np.stack([radius * np.cos(t), radius * np.sin(t)], 1)
        return np.asarray(circle + 0.24 * rng.standard_normal((n, 2)))

    def log_density(self, p: Tensor) -> Tensor:
        r, radius, s = p.norm(dim=-1, keepdim=True), torch.tensor([3.0, 1.5]).to(p), 0.24
        bessel = torch.special.i0e(r * radius / s**2).log()
        each = -((r - radius) ** 2) / (2 * s**2) + bessel - LOG_2PI - 2 * math.log(s)
        return each.logsumexp(-1) - math.log(2)


class _Pinwheel(Plane):
    """Five bent arms: (a, b) ~ N((1, 0), diag(.3², .1²)), turned by −(2πk/5 + e^a/4), times 2.

    A turn keeps the radius, so a point of radius r and angle θ came from angle ψ with ψ − e^{r cos ψ}/4 = θ + 2πk/5.
    The slope in ψ is 1 + b e^a/4, so that the fixed point is unique unless |b| is beyond four deviations.
    """

    def draw(self, n: int, rng: Generator) -> NDArray[np.float64]:
        a, b = 1 + 0.3 * rng.standard_normal(n), 0.1 * rng.standard_normal(n)
        turn = 2 * np.pi * rng.integers(0, 5, n) / 5 + np.exp(a) / 4
        rotated = np.stack([a * np.cos(turn) + b * np.sin(turn), b * np.cos(turn) - a * np.sin(turn)], 1)
        return np.asarray(2 * rotated)

    def log_density(self, p: Tensor) -> Tensor:
        r, theta = p.norm(dim=-1) / 2, torch.atan2(p[:, 1], p[:, 0])
        arms = theta + 2 * math.pi / 5 * torch.arange(5).to(p).unsqueeze(1)  # (5, n)
        psi = torch.zeros_like(arms)
        for _ in range(80):
            target = arms + (r * psi.cos()).exp() / 4
            psi = 0.5 * (psi + torch.remainder(target - psi + math.pi, 2 * math.pi) - math.pi + psi)
        a, b = r * psi.cos(), r * psi.sin()
        left = torch.remainder(psi - arms - a.exp() / 4 + math.pi, 2 * math.pi) - math.pi
        slope = (1 + b * a.exp() / 4).abs()
        log_p = -((a - 1) ** 2) / 0.18 - b**2 / 0.02 - LOG_2PI - math.log(0.3 * 0.1) - slope.log()
        return torch.where(left.abs() < 1e-6, log_p, -math.inf).logsumexp(0) - math.log(5 * 4)


class _TwoSpirals(Plane):
    """±(c(t) + u)/3 + .1ξ: c(t) = t(−cos t, sin t), t of density 2t/(3π)² on [0, 3π], u uniform on [0, ½]².

    Along the curve each coordinate is uniform plus normal: a difference of two normal distribution functions.
    """

    def draw(self, n: int, rng: Generator) -> NDArray[np.float64]:
        t = np.sqrt(rng.uniform(size=n)) * 3 * np.pi
        curve = np.stack([-np.cos(t) * t, np.sin(t) * t], 1) + rng.uniform(0, 0.5, (n, 2))
        sign = rng.choice([-1.0, 1.0], (n, 1))
        return np.asarray(sign * curve / 3 + 0.1 * rng.standard_normal((n, 2)))

    def log_density(self, p: Tensor) -> Tensor:
        t = 3 * math.pi * _midpoints(NODES).sqrt()
        corner = (torch.stack([-t.cos() * t, t.sin() * t], -1) / 3).to(p)
        parts = p.chunk(1 + len(p) * NODES // MAX_PAIRS)
        both = [torch.stack([_smoothed(q, corner), _smoothed(-q, corner)]).mean(0) for q in parts]
        return torch.cat(both).log()


class _Checkerboard(Plane):
    """Uniform on eight squares of side 2 of the board [−4, 4]²."""

    def draw(self, n: int, rng: Generator) -> NDArray[np.float64]:
        x = rng.uniform(-2, 2, n)
        y = rng.uniform(size=n) - 2 * rng.integers(0, 2, n) + np.floor(x) % 2
        return 2 * np.stack([x, y], 1)

    def log_density(self, p: Tensor) -> Tensor:
        return self.log_mass(p, 1e-9) - 2 * math.log(1e-9)

    def log_mass(self, p: Tensor, side: float) -> Tensor:
        """Exact also where a small square lies across an edge of the board."""
        (even_x, odd_x), (even_y, odd_y) = (self._strips(c / 2, side / 2) for c in p.unbind(-1))
        return (even_x * even_y + odd_x * odd_y).log() + 2 * math.log(side) - math.log(32)

    @staticmethod
    def _strips(middle: Tensor, length: float) -> tuple[Tensor, Tensor]:
        """The share of each interval in [−2, −1] ∪ [0, 1], and in [−1, 0] ∪ [1, 2]."""

        def share(first: float) -> Tensor:
            low, high = (middle + sign * length / 2 - first for sign in (-1, 1))
            return (high.clamp(0, 1) - low.clamp(0, 1)) / length

        return share(-2.0) + share(0.0), share(-1.0) + share(1.0)


def _smoothed(p: Tensor, corner: Tensor) -> Tensor:
    """The mean over nodes of the density of corner + Unif[0, 1/6]² + N(0, .1² I) at p (n, 2), shape (n,)."""
    width, s = 0.5 / 3, 0.1
    z = (p.unsqueeze(1) - corner) / s  # (n, nodes, 2)
    mass = (torch.special.ndtr(z) - torch.special.ndtr(z - width / s)) / width
    return mass.prod(-1).mean(1).clamp_min(1e-300)


def _midpoints(count: int) -> Tensor:
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def _swissroll() -> _Curve:
    t = 1.5 * math.pi * (1 + 2 * _midpoints(NODES))
    return _Curve(torch.stack([t * t.cos(), t * t.sin()], -1) / 5, 0.2)


def _moons() -> _Curve:
    t = math.pi * _midpoints(NODES // 2)
    outer = torch.stack([t.cos(), t.sin()], -1)
    both = torch.cat([outer, torch.tensor([1.0, 0.5], dtype=torch.float64) - outer])
    return _Curve(2 * both - torch.tensor([1.0, 0.2], dtype=torch.float64), 0.2)


def _eight_gaussians() -> _Curve:
    t = math.pi / 4 * torch.arange(8, dtype=torch.float64)
    return _Curve(torch.stack([t.cos(), t.sin()], -1) * 4 / 1.414, 0.5 / 1.414)


PLANES: dict[str, Plane] = {
    "2spirals": _TwoSpirals(),
    "8gaussians": _eight_gaussians(),
    "circles": _Circles(),
    "moons": _moons(),
    "pinwheel": _Pinwheel(),
    "swissroll": _swissroll(),
    "checkerboard": _Checkerboard(),
}
