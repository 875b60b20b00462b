r"""Reverse diffusion on bits: jumps that take noise away, as they are and as exact Metropolis moves.

A bit at level s is redrawn from b with probability 1 − e^{−s}. With π_v the law of bit i given the others at level s,
the law of the same bit before the last Δ of noise is

    m_v = e^Δ (π_v − (1 − e^{−Δ}) b_v),

and x_i came from v with probability ∝ m_v q_Δ(x_i|v). The odds of π come from first-order gains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ctem.bases import ProductBase
from ctem.samplers.bits import (
    BitState,
    BitTarget,
    LevelDensity,
    check_bits,
    gain_of,
    log_flips,
    uniform,
    value_of,
)

__all__ = ["Denoise", "Renoise", "denoise_bits"]

FURTHEST = 10.0  # Δ of a jump: beyond, float32 holds too little of e^{−Δ} to undo the noise


@dataclass(frozen=True)
class Renoise:
    r"""A block move that is exact: noise the bits by Δ more, then denoise them, Metropolis-corrected.

    z ~ q_Δ(·|x) keeps the joint law exp f(x, s) q_Δ(z|x); then y ~ r(·|z), the reverse-diffusion proposal of
    ``denoise_bits`` from s + Δ to s with the gains of f(·, s + Δ) at z, is weighed against x:

        log_accept = f(y) + log q_Δ(z|y) + log r(x|z) − f(x) − log q_Δ(z|x) − log r(y|z)

    Arguments:
        base: b, which the noise redraws from.
        times: steps at each level.
        step: Δ to start with; it goes over from level to level.
        acceptance: mean acceptance that the step follows in the first half of a level, or None to keep the step.

    >>> from ctem.samplers import anneal_bits
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 4))
    >>> out = anneal_bits(lambda x, s: 0 * x.sum(-1), torch.zeros(5, 4), [0.5], [Renoise(base)], torch.Generator())
    >>> out.acceptance  # f = log b: the proposal is exact
    ((1.0,),)
    """

    base: ProductBase
    times: int = 20
    step: float = 0.05
    acceptance: float | None = 0.57

    def move(
        self, state: BitState, target: BitTarget, step: Tensor, generator: torch.Generator
    ) -> tuple[BitState, Tensor]:
        """One step of every chain."""
        here = target.valued(state)
        u, fresh = uniform(here.x, generator), self.base.sample(len(here.x), generator).to(here.x.dtype)
        fresh = torch.where(u < (-step).exp(), here.x, fresh)
        z = fresh if target.fixed is None else torch.where(target.fixed, here.x, fresh)
        gain = gain_of(target.informed(BitState(z), step))
        undo = target.masked(_undo(self.base, z, gain, step), -math.inf)
        y = torch.where(uniform(z, generator) < torch.sigmoid(undo), 1 - z, z)
        there = target.valued(BitState(y))
        gap = value_of(there) - value_of(here)
        noise = _log_noise(self.base, z, y, step) - _log_noise(self.base, z, here.x, step)
        back = log_flips(undo, here.x != z) - log_flips(undo, y != z)
        return target.accepted(here, there, gap + noise + back, generator)


@dataclass(frozen=True)
class Denoise:
    """The reverse-diffusion jump (tau-leaping) from the level before to this one, by ``denoise_bits``. Not exact.

    It moves all bits at once and independently of each other, with first-order gains, and nothing corrects it: put
    exact moves after it. It does nothing at the first level. Acceptance is reported as 1.

    Arguments:
        base: b, which the noise redraws from.

    >>> from ctem.samplers import anneal_bits
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 4))
    >>> x, g = torch.zeros(5, 4), torch.Generator()
    >>> anneal_bits(lambda x, s: 0 * x.sum(-1), x, [0.5, 1.0], [Denoise(base)], g).evaluations
    2
    """

    base: ProductBase
    times: int = 1

    def __post_init__(self) -> None:
        if self.times != 1:
            raise ValueError(f"times: expected 1, a level is left once; got {self.times}.")

    def move(
        self, state: BitState, target: BitTarget, step: Tensor, generator: torch.Generator
    ) -> tuple[BitState, Tensor]:
        """One jump of every chain."""
        sure = torch.ones_like(state.x[:, 0])
        if target.before is None:
            return state, sure
        _check_jump(target.before.level, target.level)
        gain = gain_of(target.before.informed(BitState(state.x)))
        delta = sure[0] * (target.before.level - target.level)
        return BitState(_denoised(self.base, state.x, gain, delta, generator)), sure


def denoise_bits(
    log_density: LevelDensity,
    x: Tensor,
    level: float,
    base: ProductBase,
    generator: torch.Generator,
    *,
    to: float = 0.0,
    fixed: Tensor | None = None,
    batch_size: int = 4096,
) -> Tensor:
    r"""One jump of reverse diffusion from level s down to ``to``, all bits at once; 0 is the data. Not exact.

    The bits are drawn as if independent, by first-order gains: good for small Δ = s − to, where few change.

    Arguments:
        log_density, x, fixed, batch_size: as in :func:`~ctem.samplers.annealed.anneal_bits`; x is at the given level.
        level: s.
        base: b, which the noise redraws from.
        generator: the randomness, on the device of x.
        to: the level to reach.

    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 2))
    >>> f = lambda x, s: 5 * x.sum(-1)  # ones, but for the noise
    >>> denoise_bits(f, torch.ones(1, 2), 0.01, base, torch.Generator())
    tensor([[1., 1.]])
    """
    if not 0 <= to < level:
        raise ValueError(f"to: expected a level in [0, {level}); got {to}.")
    check_bits(x, [level], fixed)
    _check_jump(level, to)
    gain = gain_of(BitTarget(log_density, level, fixed, batch_size).informed(BitState(x)))
    return _denoised(base, x, gain, torch.full_like(x[0, 0], level - to), generator)


def _check_jump(level: float, to: float) -> None:
    if not level - to <= FURTHEST:
        raise ValueError(
            f"levels: expected a jump of at most {FURTHEST:g}; got one from {level:g} to {to:g}, which "
            "cannot be undone: begin at a smaller level, or take smaller steps."
        )


def _denoised(
    base: ProductBase, x: Tensor, gain: Tensor, delta: Tensor, generator: torch.Generator
) -> Tensor:
    odds = torch.where(gain == -math.inf, -math.inf, _undo(base, x, gain, delta))  # fixed bits stay
    return torch.where(uniform(x, generator) < torch.sigmoid(odds), 1 - x, x)


def _undo(base: ProductBase, z: Tensor, gain: Tensor, delta: Tensor) -> Tensor:
    """Log-odds that each bit of z (n, d) was the other value before the last Δ of noise."""
    redrawn, b = -torch.expm1(-delta), base.column_log_prob(z).exp()
    other = (torch.sigmoid(gain) - redrawn * (1 - b)) / (1 - redrawn)  # m of the other value, if π is right
    return torch.logit(other.clamp(1e-6, 1 - 1e-6)) + (redrawn * b).log() - (1 - redrawn * (1 - b)).log()


def _log_noise(base: ProductBase, z: Tensor, x: Tensor, delta: Tensor) -> Tensor:
    """log q_Δ(z|x), shape (n,)."""
    redrawn, b = -torch.expm1(-delta), base.column_log_prob(z).exp()
    return torch.where(z == x, (1 - redrawn * (1 - b)).log(), (redrawn * b).log()).sum(-1)
