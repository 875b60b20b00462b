"""Toy distributions on a 91 × 91 grid, with exact cell probabilities.

Each set is a point on a curve plus Gaussian noise, cut into cells by one fixed box: the extent of the curve
and four standard deviations more. Boundary cells reach to infinity, for samples and for the truth, so both
live on the same 8281 states and the truth sums to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.random import default_rng
from numpy.typing import NDArray
from sklearn.datasets import make_moons, make_swiss_roll
from torch import Tensor

from ctem.spaces import Ordinal, Space

__all__ = ["EightGaussians", "Moons", "SwissRoll"]

CELLS = 91  # per axis
NODES = 4000  # quadrature nodes along a curve
MARGIN = 4.0  # noise standard deviations between the curve and the box


class _Quantised:
    """A curve with noise, X = c + s ξ with c uniform on ``nodes`` and ξ ~ N(0, I), cut into cells.

    Arguments:
        nodes: quadrature nodes c_j on the curve, shape (m, 2), equally weighted.
        noise: s.
        draw: n points of a seed before they are cut into cells, (n, 2).
    """

    space = Space([Ordinal(CELLS), Ordinal(CELLS)])

    def __init__(self, nodes: Tensor, noise: float, draw: Callable[[int, int], NDArray[np.float64]]):
        self.nodes = nodes
        self._draw = draw
        self.noise = noise
        self.low = nodes.amin(0) - MARGIN * noise
        self.high = nodes.amax(0) + MARGIN * noise

    def points(self, n: int, seed: int) -> NDArray[np.float64]:
        """Draw n rows before quantisation, shape (n, 2)."""
        return self._draw(n, seed)

    def sample(self, n: int, seed: int) -> NDArray[np.float64]:
        """Draw n rows of codes 0 … 90, shape (n, 2)."""
        low, high = self.low.numpy(), self.high.numpy()
        codes = np.floor((self.points(n, seed) - low) / (high - low) * CELLS)
        return np.asarray(codes.clip(0, CELLS - 1))

    def probabilities(self) -> Tensor:
        """The exact probability of every cell, shape (8281,), in the order of ``space.states()``.

            P(a, b) = 1/m Σ_j P(X₁ in a | c_j) P(X₂ in b | c_j)

        Each factor is a difference of normal distribution functions, so this is one matrix product.
        """
        first, second = self._axis_masses(0), self._axis_masses(1)
        return (first.T @ second / len(self.nodes)).flatten()

    def cell_centres(self) -> Tensor:
        """The middle of every cell in the units of ``points``, shape (8281, 2)."""
        return self.low + (self.space.states(torch.float64) + 0.5) / CELLS * (self.high - self.low)

    def _axis_masses(self, axis: int) -> Tensor:
        """P(cell | node) along one axis, shape (m, 91), accurate to relative precision in both tails."""
        edges = torch.linspace(float(self.low[axis]), float(self.high[axis]), CELLS + 1, dtype=torch.float64)
        edges[0], edges[-1] = -math.inf, math.inf
        z = (edges - self.nodes[:, axis : axis + 1]) / (self.noise * math.sqrt(2))
        left, right = z[:, :-1], z[:, 1:]
        mirror = left > 0  # a difference keeps its digits only in the lower tail; torch's ndtr not even there
        left, right = torch.where(mirror, -right, left), torch.where(mirror, -left, right)
        return (torch.erfc(-right) - torch.erfc(-left)) / 2


class Moons(_Quantised):
    """Two interleaved half-circles with uniform angle and noise 0.05, as in scikit-learn.

    >>> Moons().sample(1000, seed=0).shape, Moons().probabilities().shape
    ((1000, 2), torch.Size([8281]))
    """

    def __init__(self) -> None:
        t = math.pi * _midpoints(NODES // 2)
        outer = torch.stack([t.cos(), t.sin()], dim=-1)
        nodes = torch.cat([outer, torch.tensor([1.0, 0.5]) - outer])
        super().__init__(nodes, 0.05, lambda n, seed: make_moons(n, noise=0.05, random_state=seed)[0])


class SwissRoll(_Quantised):
    """A spiral t (cos t, sin t) with t = 1.5π(1 + 2u), u ~ Unif[0, 1], and noise 0.5, as in scikit-learn.

    >>> SwissRoll().sample(2, seed=0)
    array([[12., 26.],
           [55.,  9.]])
    """

    def __init__(self) -> None:
        t = 1.5 * math.pi * (1 + 2 * _midpoints(NODES))
        nodes = torch.stack([t * t.cos(), t * t.sin()], dim=-1)  # the first and last column of scikit-learn's
        super().__init__(
            nodes, 0.5, lambda n, seed: make_swiss_roll(n, noise=0.5, random_state=seed)[0][:, [0, 2]]
        )


class EightGaussians(_Quantised):
    """Eight equal Gaussians of standard deviation 0.1 on a circle of radius 2.

    >>> EightGaussians().mode_of_cell().bincount().shape
    torch.Size([8])
    """

    def __init__(self) -> None:
        t = math.pi / 4 * torch.arange(8, dtype=torch.float64)
        super().__init__(torch.stack([2 * t.cos(), 2 * t.sin()], dim=-1), 0.1, self._components)

    def _components(self, n: int, seed: int) -> NDArray[np.float64]:
        """The component, then the noise."""
        rng = default_rng(seed)
        means = self.nodes.numpy()[rng.integers(0, 8, n)]
        return np.asarray(means + self.noise * rng.standard_normal((n, 2)))

    def mode_of_cell(self) -> Tensor:
        """The component 0 … 7 whose centre is nearest to each cell's middle, shape (8281,)."""
        return torch.cdist(self.cell_centres(), self.nodes).argmin(-1)


def _midpoints(count: int) -> Tensor:
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count
