"""Samplers that move all real columns along the gradient; discrete columns stay."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ctem.energies import LogPotential
from ctem.samplers.sampler import (
    Info,
    checked,
    expect_finite,
    expect_positive,
    expect_rows,
    metropolis,
)
from ctem.spaces import Space

__all__ = ["MALA", "Langevin"]


class Langevin:
    """Unadjusted Langevin dynamics, the paper's sampler: x ← x + η ∇f(x) + √(2η) ξ, ξ ~ N(0, I).

    Its stationary law is ρ only as η → 0; :class:`MALA` removes the bias.

    Arguments:
        space: the space; its real columns move.
        step: η, in squared encoded units.

    >>> from ctem.spaces import Real, Space
    >>> sampler = Langevin(Space([Real()]), step=0.01)
    >>> x, info = sampler.step(lambda x: -(x**2).sum(-1) / 2, torch.zeros(4, 1), torch.Generator())
    >>> x.shape, info.acceptance
    (torch.Size([4, 1]), tensor([1., 1., 1., 1.]))
    """

    def __init__(self, space: Space, step: float):
        self.space = space
        self.columns = _real_columns(self, space)
        self.step_size = expect_positive("step", step)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(step={self.step_size:g})"

    def step(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Info]:
        """One move of every chain."""
        expect_rows(x, self.space)
        _, slope = _value_and_grad(f, x, self.columns)
        y, _ = self._propose(x, slope, generator)
        y = self.space.folded(y)
        if not bool(y.isfinite().all()):
            raise FloatingPointError(f"{self!r} left the finite numbers; try a smaller step.")
        return y, Info(x.new_ones(len(x)))

    def _propose(self, x: Tensor, slope: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        noise = torch.randn(slope.shape, generator=generator, dtype=x.dtype, device=x.device)
        y = x.detach().clone()
        y[:, self.columns] += self.step_size * slope + math.sqrt(2 * self.step_size) * noise
        return y, noise


class MALA(Langevin):
    """Metropolis-adjusted Langevin: the same proposal, accepted so that ρ is exactly invariant.

        log q(y|x) = −‖y − x − η ∇f(x)‖² / 4η + const

    Arguments:
        space: the space; its real columns move.
        step: η; about 1.6 d^(−1/3) times the squared scale of ρ accepts 57 % in d dimensions.

    >>> from ctem.spaces import Real, Space
    >>> sampler = MALA(Space([Real()]), step=0.5)
    >>> x, info = sampler.step(lambda x: -(x**2).sum(-1) / 2, torch.zeros(4, 1), torch.Generator())
    >>> bool((info.acceptance > 0.5).all())
    True
    """

    def step(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Info]:
        """One move of every chain."""
        expect_rows(x, self.space)
        here, slope = _value_and_grad(f, x, self.columns)
        expect_finite(here)
        y, noise = self._propose(x, slope, generator)
        there, slope_back = _value_and_grad(f, y, self.columns)
        back = (x - y)[:, self.columns] - self.step_size * slope_back
        forward = (noise**2).sum(-1) / 2  # −log q(y|x), as y − x − η∇f = √(2η) ξ
        log_accept = there - here + forward - (back**2).sum(-1) / (4 * self.step_size)
        empty = (there == -math.inf) | ~self.space.inside(y)  # its gradient may be nan
        x, info = metropolis(x, y, torch.where(empty, -math.inf, log_accept), generator)
        return self.space.folded(x), info


def _real_columns(sampler: Langevin, space: Space) -> list[int]:
    if not space.reals:
        raise ValueError(f"{type(sampler).__name__} moves real columns; {space!r} has none.")
    return list(space.reals)


def _value_and_grad(f: LogPotential, x: Tensor, columns: list[int]) -> tuple[Tensor, Tensor]:
    """f(x) and its gradient in the given columns only: codes are no place to differentiate."""
    leaf = x.detach()[:, columns].requires_grad_()
    with torch.enable_grad():
        whole = x.detach().clone()
        whole[:, columns] = leaf
        values = checked(f(whole), x)
        (slope,) = torch.autograd.grad(values.sum(), leaf)
    return values.detach(), slope
