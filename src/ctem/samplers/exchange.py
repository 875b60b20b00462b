"""Samplers for laws with several modes: proposals of a normalised density, and chains at several temperatures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ctem.bases import ProductBase
from ctem.energies import LogPotential
from ctem.samplers.sampler import Info, Sampler, current, evaluated, metropolis

__all__ = ["Independence", "ReplicaExchange"]


class Independence:
    """Proposals drawn from a density q, whatever the state: log_accept = f(y) − f(x) − log q(y) + log q(x).

    With q fitted to the samples of f (an any-order density), this jumps between modes; the mean acceptance is at least
    1 − TV(q, ρ), and every accepted row is as good as independent.

    Arguments:
        proposal: q, with ``sample`` and a normalised ``log_prob``.

    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> Independence(base).step(base.log_prob, torch.zeros(4, 3), torch.Generator())[1].acceptance
    tensor([1., 1., 1., 1.])
    """

    def __init__(self, proposal: ProductBase):
        self.proposal = proposal

    def step(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Info]:
        """One proposal for every chain."""
        y = self.proposal.sample(len(x), generator).to(x)
        log_q = evaluated(self.proposal.log_prob, torch.cat([x, y])).double().view(2, -1)
        gap = evaluated(f, y).double() - current(f, x).double()
        return metropolis(x, y, (gap + log_q[0] - log_q[1]).to(x.dtype), generator)


class ReplicaExchange:
    """Chains at the temperatures of a ladder, f_t = (1 − t) log b + t f, that move and then swap with a neighbour.

    The rows of x are n/T groups of T chains, the first of each at t = 1: rows ``x[::T]`` are the samples. A swap of
    neighbours at t < u is accepted with probability exp((u − t)(g(x_t) − g(x_u))), g = f − log b; even and odd
    neighbours take turns at random. Acceptance is that of the swaps.

    Arguments:
        sampler: what moves all chains between swaps.
        base: b, where t = 0, with a normalised ``log_prob``.
        temperatures: t of the chains of a group, falling from 1.

    >>> from ctem.samplers import Gibbs
    >>> from ctem.spaces import Category, Space
    >>> space = Space([Category(2)] * 3)
    >>> sampler = ReplicaExchange(Gibbs(space), ProductBase(space), [1.0, 0.5, 0.0])
    >>> x, info = sampler.step(lambda x: x.sum(-1), torch.zeros(12, 3), torch.Generator())
    >>> x[::3].shape
    torch.Size([4, 3])
    """

    def __init__(self, sampler: Sampler, base: ProductBase, temperatures: Sequence[float]):
        ladder = [float(t) for t in temperatures]
        falling = all(a > b for a, b in pairwise(ladder))
        if len(ladder) < 2 or ladder[0] != 1 or not falling or ladder[-1] < 0:
            raise ValueError(f"temperatures: expected numbers that fall from 1, at least 0; got {ladder}.")
        self.sampler, self.base, self.ladder = sampler, base, ladder

    def step(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Info]:
        """One move of every chain, then one round of swaps."""
        T = len(self.ladder)
        if len(x) % T:
            raise ValueError(f"x: expected a multiple of {T} rows, one for each temperature; got {len(x)}.")
        t = torch.tensor(self.ladder, dtype=x.dtype, device=x.device)

        def path(rows: Tensor) -> Tensor:
            at = t.repeat(len(rows) // T)  # a sampler that evaluates more rows repeats them all
            return (1 - at) * self.base.log_prob(rows).to(rows.dtype) + at * f(rows)

        x, _ = self.sampler.step(path, x, generator)
        gap = (current(f, x) - evaluated(self.base.log_prob, x).to(x.dtype)).view(-1, T)
        odd = int(torch.randint(min(2, T - 1), (), generator=generator, device=generator.device))
        rows = x.view(-1, T, x.shape[1])
        first = torch.arange(odd, T - 1, 2, device=x.device)
        log_accept = (t[first] - t[first + 1]) * (gap[:, first + 1] - gap[:, first])
        draw = torch.rand(log_accept.shape, generator=generator, dtype=x.dtype, device=x.device)
        take = (draw.log() < log_accept).unsqueeze(-1)
        y = rows.clone()
        y[:, first] = torch.where(take, rows[:, first + 1], rows[:, first])
        y[:, first + 1] = torch.where(take, rows[:, first], rows[:, first + 1])
        rate = log_accept.clamp(max=0).exp().mean(-1, keepdim=True).expand(-1, T)
        return y.view(x.shape), Info(rate.flatten())
