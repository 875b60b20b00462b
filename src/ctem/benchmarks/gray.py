"""The seven 32-bit sets of the discrete-energy literature, at a fixed scale, with their entropy floors.

A point of the plane is multiplied by a scale, cut to a sign and 15 bits per coordinate, and the magnitudes are written
in Gray code. No model can score better than the entropy of the law in the mean: print the floor beside every number.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.random import default_rng
from numpy.typing import NDArray
from torch import Tensor

from ctem.benchmarks.planes import PLANES
from ctem.spaces import Category, Space

__all__ = ["GRAY_SETS", "GraySet"]

BITS = 15  # of a magnitude
REACH = {  # largest coordinate among the first 5000 points of seed 1 of EB-GFN's generator, which fixes the scale
    "2spirals": 3.4809860937794617,
    "8gaussians": 4.19477653503418,
    "circles": 3.7805778980255127,
    "moons": 3.669443368911743,
    "pinwheel": 3.9460595007278956,
    "swissroll": 3.2659385204315186,
    "checkerboard": 3.9994155029388017,
}
FLOORS = {  # nats, by quadrature of the planar density; tests compare them with the mean surprise of draws
    "2spirals": 20.0373,
    "8gaussians": 19.9789,
    "circles": 20.5535,
    "moons": 19.7181,
    "pinwheel": 19.5467,
    "swissroll": 20.1415,
    "checkerboard": 20.6768,
}
GRAY_SETS = tuple(REACH)


class GraySet:
    """One of the seven sets: rows of 32 bits with their law.

    Arguments:
        name: one of ``GRAY_SETS``.

    >>> bits = GraySet("moons").sample(1000, seed=0)
    >>> bits.shape, round(GraySet("moons").floor, 3)
    ((1000, 32), 19.718)
    """

    space = Space([Category(2)] * 2 * (BITS + 1))

    def __init__(self, name: str):
        if name not in REACH:
            raise ValueError(f"name: expected one of {', '.join(GRAY_SETS)}; got {name!r}.")
        self.name, self.plane = name, PLANES[name]
        self.scale = 2**BITS / (REACH[name] + 2)
        self.floor = FLOORS[name]  # nats: the entropy, by quadrature; no model scores better in the mean

    def sample(self, n: int, seed: int) -> NDArray[np.float64]:
        """Draw n rows of bits, shape (n, 32): sign and Gray code of the first coordinate, then of the second."""
        return self.bits(self.plane.draw(n, default_rng(seed)))

    def bits(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Points of the plane (n, 2) as rows of bits (n, 32)."""
        whole = np.minimum(np.floor(np.abs(points) * self.scale), 2**BITS - 1).astype(np.int64)
        gray = whole ^ (whole >> 1)
        digits = (gray[..., None] >> np.arange(BITS - 1, -1, -1)) & 1  # (n, 2, 15)
        sign = (points < 0).astype(np.int64)[..., None]
        return np.concatenate([sign, digits], -1).reshape(len(points), -1).astype(np.float64)

    def points(self, x: Tensor) -> Tensor:
        """The middle of each row's cell in the plane, shape (n, 32) → (n, 2), float64."""
        digits = x.double().unflatten(-1, (2, BITS + 1))
        sign, gray = digits[..., 0], digits[..., 1:].long()
        binary = gray.cumsum(-1) % 2  # Gray code: each binary digit is the parity of those up to it
        place = 2 ** torch.arange(BITS - 1, -1, -1, device=x.device)
        return (1 - 2 * sign) * ((binary * place).sum(-1) + 0.5) / self.scale

    def log_density(self, x: Tensor | NDArray[np.float64]) -> Tensor:
        """log of the probability of each row of bits, (n,): that of its cell in the plane."""
        points = self.points(torch.as_tensor(x))
        return self.plane.log_mass(points, 1 / self.scale)
