r"""Tails of the conditionals of real columns: beyond all rows a network guesses, and the margin knows.

Few rows lie beyond ±c. Let a conditional ρ have the mass m above c. If m is near 1, other columns cause it, and ρ is
believed; if it is small, what lies there is the spill of a wide part of ρ, and has the shape of the margin, φ:

    ρ(t) ← w ρ(t) + m (1 − w) φ(t) / Φ(−c)      for t > c, and likewise below −c, with w = m⁴.

The mass above c is m as before, so that the density stays normalised. With w = m the wide parts of several columns that
depend on each other took each other out further and further.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from scipy.special import ndtri
from torch import Tensor

__all__ = ["Tails", "outermost"]

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
LEAST = 1e-30  # mass
DOUBT = 4  # power of m that w is


def outermost(rows: int) -> float:
    """The c beyond which one of so many rows lies, on either side.

    >>> round(outermost(1000), 2)
    3.09
    """
    return float(-ndtri(1 / max(rows, 3)))


class Tails(NamedTuple):
    """Where the tails of some densities begin, and the mass below both ends by those densities.

    >>> tails = Tails(2.0, torch.tensor([[[0.1, 0.9]]], dtype=torch.float64))
    >>> tails.log_prob(torch.zeros(1, 1, 2), torch.tensor([[1.9, 2.1]])).exp()[0, 0, 0]
    tensor(1.)
    """

    reach: float  # c
    below: Tensor  # (members, n, 2), float64

    def log_prob(self, log_p: Tensor, t: Tensor) -> Tensor:
        """log ρ of numbers t (n, q), from that of the densities as they were, (members, n, q)."""
        m = torch.where(t < 0, self.below[..., :1], 1 - self.below[..., 1:]).clamp_min(LEAST)
        log_m, log_rest = m.log().to(log_p.dtype), torch.log1p(-(m**DOUBT)).to(log_p.dtype)
        margin = log_m + log_rest - t**2 / 2 - LOG_SQRT_2PI - math.log(self._beyond)
        return torch.where(t.abs() > self.reach, torch.logaddexp(DOUBT * log_m + log_p, margin), log_p)

    def cdf(self, below: Tensor, t: Tensor) -> Tensor:
        """The mass below numbers t (n, q), from that of the densities as they were, (members, n, q)."""
        low, high = self.below[..., :1], 1 - self.below[..., 1:]
        margin = torch.special.ndtr(-t.abs()) / self._beyond
        under, over = (
            m**DOUBT * mass + m * (1 - m**DOUBT) * margin for m, mass in ((low, below), (high, 1 - below))
        )
        return torch.where(t < -self.reach, under, torch.where(t > self.reach, 1 - over, below))

    def draw(self, t: Tensor, generator: torch.Generator) -> Tensor:
        """Numbers (n,) from those beyond the ends that the densities as they were, one for each row, have drawn."""
        m = torch.where(t < 0, self.below[0, :, 0], 1 - self.below[0, :, 1])
        u = torch.rand(2, len(t), generator=generator, dtype=torch.float64, device=t.device)
        margin = -torch.special.ndtri((u[0] * self._beyond).clamp_min(LEAST))
        return torch.where(u[1] < m**DOUBT, t, margin.to(t.dtype).copysign(t))

    @property
    def _beyond(self) -> float:
        """Φ(−c)."""
        return 0.5 * math.erfc(self.reach / math.sqrt(2))
