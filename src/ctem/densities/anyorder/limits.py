r"""Numbers between bounds that other columns set: an end is not before its start, a part no more than the whole.

With the mass m of a density ρ between the bounds, and the share s that keep them of the rows that could break them,

    ρ(t) ← (1 − (1 − m)(1 − s)) ρ(t) / m  between them,      (1 − s) ρ(t)  elsewhere,

which is normalised, and never takes mass from what lies between. Where m is too small to divide by, ρ(t) / m is even
between the bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from ctem.densities.anyorder.numbers import FAR

__all__ = ["BEYOND", "Bounds", "Limits", "Unlimited"]

BEYOND = 100.0  # stands for infinity
LEAST = 1e-9  # mass that can be divided by
ROUNDS, HALVINGS = (
    4,
    40,
)  # of draws that may fall outside, then of the interval that the others are looked for in


class Bounds(NamedTuple):
    """Between which encoded numbers a column lies in rows, and how many rows that could lie elsewhere do not.

    >>> Bounds(torch.tensor([0.0]), torch.tensor([torch.inf]), torch.tensor([0.99])).low
    tensor([0.])
    """

    low: Tensor  # (n,), −inf for none
    high: Tensor  # (n,), inf for none
    share: Tensor  # (n,)


class Unlimited(Protocol):
    """A density of a number for each of n rows, without bounds.

    >>> from ctem.densities.anyorder import NumberDensity
    >>> from ctem.densities.anyorder.numbers import NumberHead
    >>> head = NumberHead()
    >>> plain: Unlimited = NumberDensity(head, torch.zeros(1, 2, head.size), torch.zeros(2), torch.ones(2))
    >>> plain.cdf(torch.zeros(2, 1)).shape
    torch.Size([2, 1])
    """

    def draw(self, generator: torch.Generator) -> Tensor:
        """A number for each row, (n,)."""

    def cdf(self, values: Tensor) -> Tensor:
        """The mass below several numbers for each row, (n, q)."""

    def rows(self, index: Tensor) -> Self:
        """Those of these rows."""


class Limits(NamedTuple):
    """Bounds, and what they make of a density.

    >>> bounds = Bounds(torch.tensor([0.0]), torch.tensor([torch.inf]), torch.tensor([0.9]))
    >>> limits = Limits.of(bounds, torch.tensor([0.5]).double())  # half of the mass is above 0
    >>> limits.log_prob(torch.zeros(1, 2), torch.tensor([[1.0, -1.0]])).exp()
    tensor([[1.9000, 0.1000]])
    """

    ends: Tensor  # (n, 2)
    share: Tensor  # (n,) of the mass within them
    log_in: Tensor  # (n,): added to log ρ within; nan where ρ counts as even there
    log_out: Tensor  # (n,): added to log ρ elsewhere

    @classmethod
    def of(cls, bounds: Bounds, inside: Tensor) -> Limits:
        """By the mass of a density within bounds, (n,); where these are none, or contradict each other, it stays."""
        ends = torch.stack([bounds.low, bounds.high], 1)
        open_ended = torch.isinf(ends).all(1) | (bounds.low >= bounds.high)
        open_ended |= (bounds.low >= FAR) | (bounds.high <= -FAR)
        inside = torch.where(open_ended, 1.0, inside.clamp(0, 1))
        ends = torch.where(open_ended.unsqueeze(1), ends.new_tensor([-torch.inf, torch.inf]), ends)
        beyond = 1 - bounds.share.double()
        share = 1 - (1 - inside) * beyond
        log_in = torch.where(inside > LEAST, (share / inside.clamp_min(LEAST)).log(), torch.nan)
        return cls(ends, share, log_in.to(ends.dtype), beyond.log().to(ends.dtype))

    def log_prob(self, log_p: Tensor, t: Tensor) -> Tensor:
        """log ρ of numbers t (n, q) from that of the density without bounds, (n, q)."""
        low, high = self.ends.unsqueeze(1).unbind(-1)
        within = log_p + self.log_in.unsqueeze(1)
        first, last = self._even()
        even = (self.share / (last - first)).log().to(log_p.dtype).unsqueeze(1)
        even = torch.where((t >= first.unsqueeze(1)) & (t <= last.unsqueeze(1)), even, -torch.inf)
        within = torch.where(self.log_in.isnan().unsqueeze(1), even, within)
        return torch.where((t >= low) & (t <= high), within, log_p + self.log_out.unsqueeze(1))

    def draw(self, density: Unlimited, generator: torch.Generator) -> Tensor:
        """A number for each row, by the density without bounds."""
        u = torch.rand(len(self.share), generator=generator, dtype=torch.float64, device=self.share.device)
        wanted, out = u < self.share, density.draw(generator)
        for _ in range(ROUNDS):
            again = (self._contain(out) != wanted).nonzero().squeeze(1)
            if not len(again):
                return out
            out[again] = density.rows(again).draw(generator)
        rest = (~self._contain(out) & wanted).nonzero().squeeze(1)
        if len(rest):
            out[rest] = self.rows(rest)._searched(density.rows(rest).cdf, generator).to(out.dtype)
        return out

    def _contain(self, t: Tensor) -> Tensor:
        return (t >= self.ends[:, 0]) & (t <= self.ends[:, 1])

    def rows(self, index: Tensor) -> Limits:
        """Those of these rows."""
        return Limits(*(part[index] for part in self))

    def _even(self) -> tuple[Tensor, Tensor]:
        """The ends of the interval within the bounds that a density counts as even on, where it has no mass."""
        low, high = self.ends.double().clamp(-FAR, FAR).unbind(-1)
        return low, torch.maximum(high, low + 1e-6)

    def _searched(self, cdf: Callable[[Tensor], Tensor], generator: torch.Generator) -> Tensor:
        """Numbers within the bounds, by halving; even ones where the density has no mass there."""
        low, high = self._even()
        u = torch.rand(len(low), generator=generator, dtype=torch.float64, device=low.device)
        even, below = low + u * (high - low), cdf(torch.stack([low, high], 1))
        goal = below[:, 0] + u * (below[:, 1] - below[:, 0])
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            above = cdf(middle.unsqueeze(1)).squeeze(1) > goal
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return torch.where(self.log_in.isnan(), even, (low + high) / 2)
