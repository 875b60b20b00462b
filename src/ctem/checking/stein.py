r"""Whether rows are samples of a log-potential, by its Stein operator: no constant and no other samples are needed.

Under ρ ∝ exp f the operator of an exact process has mean zero at any function. With a kernel k it acts on both rows,

    bits:  Σ_ij h_i(x) h_j(y) [k(x^i, y^j) − k(x^i, y) − k(x, y^j) + k(x, y)],   h_i(x) = σ(f(x^i) − f(x)), x^i one flip
    reals: ∇·∇' k + ∇k·s(y) + ∇'k·s(x) + k s(x)·s(y),   s = ∇f

and the mean over pairs of rows is the squared kernelised Stein discrepancy (Liu, Lee & Jordan 2016; Chwialkowski,
Strathmann & Gretton 2016; on bits with Barker's rates, which are bounded: Hodgkinson, Salomone & Roosta 2020).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ctem.checking.potential import Counted
from ctem.energies import grad_log_density
from ctem.samplers.sampler import evaluated
from ctem.spaces import Space

__all__ = ["Stein", "stein_test"]

ROWS = 800  # that are compared in pairs
MAX_BITS = 1024
BOOTSTRAPS = 1000
SURE = 6.0  # deviations of the bootstrap


class Stein(NamedTuple):
    """The mean of the Stein kernel over pairs of rows, and what it would be by chance.

    >>> Stein(0.5, 0.1, 0.3).rejects
    False
    """

    value: float
    deviation: float  # of the same with random signs
    largest: float  # of the same with random signs

    @property
    def rejects(self) -> bool:
        """Whether the rows are not of the log-potential: beyond all of the bootstrap, and beyond six deviations."""
        return self.value > max(self.largest, SURE * self.deviation)


def stein_test(f: Counted, space: Space, x: Tensor, generator: torch.Generator) -> Stein | None:
    """The discrepancy of rows x from exp f with its bootstrap; None where there is neither a gradient nor bits.

    Rows are taken as independent: under ρ random signs ε_a ε_b leave the law of the sum over pairs as it is.

    >>> from ctem.spaces import Real
    >>> g, space = torch.Generator().manual_seed(0), Space([Real()])
    >>> f = Counted(lambda x: -(x**2).sum(-1) / 2, space)
    >>> x = torch.randn(400, 1, generator=g)
    >>> stein_test(f, space, x, g).rejects, stein_test(f, space, 2 * x, g).rejects
    (False, True)
    """
    x = x[:ROWS]
    if set(space.sizes) == {2} and space.dim <= MAX_BITS:
        table = _of_bits(f, x)
    elif not space.discretes and not space.bounded and not space.angles and f.has_gradient(x):
        table = _of_reals(f, x)
    else:
        return None
    table = table.fill_diagonal_(0.0)
    n = len(x)
    signs = 2.0 * torch.randint(2, (BOOTSTRAPS, n), generator=generator, device=x.device).double() - 1
    chance = (signs @ table * signs).sum(1) / (n * (n - 1))
    return Stein(float(table.sum()) / (n * (n - 1)), float(chance.std()), float(chance.max()))


def _of_bits(f: Counted, x: Tensor) -> Tensor:
    """The Stein kernel of pairs of rows (n, n), with k = exp(−H/ℓ), H the number of bits that differ, ℓ its mean."""
    (n, d), here = x.shape, evaluated(f, x).double()
    gains = []
    for i in range(d):
        y = x.clone()
        y[:, i] = 1 - y[:, i]
        gains.append(evaluated(f, y).double() - here)
    h, s = torch.sigmoid(torch.stack(gains, 1)), 2 * x.double() - 1
    apart = (d - s @ s.T) / 2
    scale = float(apart.sum()) / (n * (n - 1)) + 1e-9
    equal, other = (
        math.expm1(-1 / scale),
        math.expm1(1 / scale),
    )  # k(x^i, y)/k − 1 where bit i is equal, or is not
    level, turn = (equal + other) / 2, (equal - other) / 2
    one = level * h.sum(1, keepdim=True) + turn * (h * s) @ s.T  # Σ_i h_i(x) (r_i − 1), row x and column y
    alone = [-2 * r - r**2 for r in (equal, other)]  # what i = j has beside (r_i − 1)²
    same = (alone[0] + alone[1]) / 2 * (h @ h.T) + (alone[0] - alone[1]) / 2 * ((h * s) @ (h * s).T)
    return (-apart / scale).exp() * (one * one.T + same)


def _of_reals(f: Counted, x: Tensor) -> Tensor:
    """The Stein kernel of pairs of rows (n, n), with k = (1 + |x − y|²/ℓ²)^{−1/2}, ℓ the median distance."""
    s, d = grad_log_density(f, x).double(), x.shape[1]
    x = x.double()
    distance = torch.cdist(x, x)
    scale = float(distance[distance > 0].median()) ** 2
    q = 1 + distance**2 / scale
    M, along = x @ s.T, (x * s).sum(1)
    across = (along.unsqueeze(1) + along - M - M.T) / scale  # (x − y)·(s(x) − s(y))/ℓ²
    trace = d / scale * q**-1.5 - 3 * distance**2 / scale**2 * q**-2.5
    return q**-0.5 * (s @ s.T) + q**-1.5 * across + trace
