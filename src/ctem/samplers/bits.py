r"""Moves on bits, thousands of chains at once, informed by the gradient in the codes.

A log-density is any callable f(x, s) of codes x (n, d) and levels s (n,), differentiable in x as if the codes were real
numbers, such as a U-Net. To first order, the gain of flipping bit i is

    d_i = (1 − 2x_i) ∂f/∂x_i ≈ f(x with bit i flipped) − f(x).

Every move here leaves exp f(·, s) invariant once its step is fixed. What is known where the chains stand goes
over from step to step, and nothing waits for the device. Levels are those of :class:`~ctem.matching.noise.Noise`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

__all__ = ["BitState", "BitTarget", "FlipJump", "LangevinFlips", "Move", "PathFlips"]

LevelDensity = Callable[[Tensor, Tensor], Tensor]


class BitState(NamedTuple):
    """Where the chains are, and what is known there; None where it has not been asked for.

    >>> BitState(torch.zeros(4, 9)).value is None
    True
    """

    x: Tensor  # (n, d)
    value: Tensor | None = None  # (n,) f(x, s)
    gain: Tensor | None = None  # (n, d), −inf where a bit is fixed


class BitTarget:
    """f(·, s) at one level for n chains, with the bits that may move.

    Arguments:
        log_density: f(x, s).
        level: s.
        fixed: bits that stay, (d,) or (n, d) bool, or None.
        batch_size: chains evaluated at once, which bounds the memory.
        before: the target of the level before, for jumps from there.

    >>> target = BitTarget(lambda x, s: x.sum(-1), 0.5)
    >>> target.informed(BitState(torch.tensor([[0.0, 1.0]]))).gain
    tensor([[ 1., -1.]])
    >>> target.evaluations
    2
    """

    def __init__(
        self,
        log_density: LevelDensity,
        level: float,
        fixed: Tensor | None = None,
        batch_size: int = 4096,
        before: BitTarget | None = None,
    ):
        self.log_density, self.level, self.fixed, self.batch_size = log_density, level, fixed, batch_size
        self.before = before
        self.evaluations = 0  # of f per chain; a gradient counts as one more

    def valued(self, state: BitState) -> BitState:
        """The state with f(x, s)."""
        if state.value is not None:
            return state
        self.evaluations += 1
        with torch.no_grad():
            parts = [self._f(part, self.level) for part in state.x.split(self.batch_size)]
        return state._replace(value=torch.cat(parts))

    def informed(self, state: BitState, ahead: Tensor | float = 0.0) -> BitState:
        """The state with f(x, s + ahead) and the first-order gain of every flip."""
        if state.gain is not None:
            return state
        self.evaluations += 2
        values, slopes = [], []
        for part in state.x.detach().split(self.batch_size):
            leaf = part.clone().requires_grad_()
            with torch.enable_grad():
                value = self._f(leaf, self.level + ahead)
                (slope,) = torch.autograd.grad(value.sum(), leaf)
            values.append(value.detach())
            slopes.append(slope)
        gain = (1 - 2 * state.x) * torch.cat(slopes)
        return BitState(state.x, torch.cat(values), self.masked(gain, -math.inf))

    def masked(self, table: Tensor, value: float) -> Tensor:
        """The table (n, d) with a value at the fixed bits."""
        return table if self.fixed is None else table.masked_fill(self.fixed, value)

    def accepted(
        self, here: BitState, there: BitState, log_accept: Tensor, generator: torch.Generator
    ) -> tuple[BitState, Tensor]:
        """Each chain at ``there`` with probability min(1, exp log_accept), else ``here``; and that probability."""
        take = uniform(log_accept, generator).log() < log_accept
        parts = [
            None if a is None or b is None else torch.where(take if a.ndim == 1 else take.unsqueeze(-1), b, a)
            for a, b in zip(here, there, strict=True)
        ]
        return BitState(*parts), log_accept.clamp(max=0).exp()  # type: ignore[arg-type]

    def _f(self, x: Tensor, level: Tensor | float) -> Tensor:
        values = self.log_density(x, torch.zeros_like(x[:, 0]) + level)
        if values.shape != x.shape[:1]:
            raise ValueError(f"log_density: expected shape ({len(x)},); got {tuple(values.shape)}.")
        return values


class Move(Protocol):
    """A kernel on bits, and how often it acts at each level.

    >>> move: Move = LangevinFlips(times=5)
    """

    @property
    def times(self) -> int:
        """Steps at each level."""
        ...

    def move(
        self, state: BitState, target: BitTarget, step: Tensor, generator: torch.Generator
    ) -> tuple[BitState, Tensor]:
        """One step of every chain, and the probability with which each was accepted; step is a number > 0."""
        ...


@dataclass(frozen=True)
class FlipJump:
    """Metropolis with uniformly drawn flips; at decreasing levels, the paper's reverse-time Metropolis–Hastings.

    The paper names the sampler and no more: one uniformly drawn bit a step is the plainest reading.

    Arguments:
        times: steps at each level.
        flips: bits flipped at once.

    >>> from ctem.samplers import anneal_bits
    >>> x = torch.zeros(2, 3)
    >>> out = anneal_bits(lambda x, s: 99 * x.sum(-1), x, [1.0], [FlipJump(times=50)], torch.Generator())
    >>> out.x.sum(-1)
    tensor([3., 3.])
    """

    times: int = 100
    flips: int = 1

    def move(
        self, state: BitState, target: BitTarget, step: Tensor, generator: torch.Generator
    ) -> tuple[BitState, Tensor]:
        """One step of every chain."""
        here = target.valued(state)
        race = uniform(here.x, generator)
        bits = target.masked(race, -1.0).topk(self.flips, -1).indices
        there = target.valued(BitState(here.x.scatter(-1, bits, 1 - here.x.gather(-1, bits))))
        return target.accepted(here, there, value_of(there) - value_of(here), generator)


@dataclass(frozen=True)
class LangevinFlips:
    r"""Discrete Langevin: every bit flips on its own with log-odds d_i/2 + log step, Metropolis-corrected as a whole.

    step is the odds of a flip where f is flat, e^{−1/2α} in the terms of :class:`~ctem.samplers.DiscreteLangevin`. One
    evaluation and gradient a step, whatever the number of bits. Zhang, Liu & Liu 2022.

    Arguments:
        times: steps at each level.
        step: where to start; it goes over from level to level.
        acceptance: mean acceptance that the step follows in the first half of a level, or None to keep the step.

    >>> from ctem.samplers import anneal_bits
    >>> out = anneal_bits(lambda x, s: x.sum(-1), torch.zeros(4, 9), [0.5], [LangevinFlips(20)], torch.Generator())
    >>> len(out.steps), out.evaluations
    (1, 42)
    """

    times: int = 20
    step: float = 0.1
    acceptance: float | None = 0.57

    def move(
        self, state: BitState, target: BitTarget, step: Tensor, generator: torch.Generator
    ) -> tuple[BitState, Tensor]:
        """One step of every chain."""
        here = target.informed(state)
        out = gain_of(here) / 2 + step.log()
        flip = uniform(here.x, generator) < torch.sigmoid(out)
        there = target.informed(BitState(torch.where(flip, 1 - here.x, here.x)))
        back = gain_of(there) / 2 + step.log()
        log_ratio = log_flips(back, flip) - log_flips(out, flip)
        return target.accepted(here, there, value_of(there) - value_of(here) + log_ratio, generator)


@dataclass(frozen=True)
class PathFlips:
    r"""Gibbs-with-gradients along a path: up to ``flips`` different bits one after the other, weighed as a whole.

    A path i_1, …, i_L draws each bit ∝ exp(d_i/2) among those not yet flipped, with the gains of its start; its
    length L is uniform in 1 … flips. The way back runs through the same bits in reverse, with the gains of its end:

        log_accept = f(y) − f(x) + log q(i_L, …, i_1 | y) − log q(i_1, …, i_L | x)

    flips = 1 is Gibbs-with-gradients (Grathwohl et al. 2021); the paths are PAFS (Sun et al. 2022).

    Arguments:
        times: steps at each level.
        flips: longest path.

    >>> from ctem.samplers import anneal_bits
    >>> out = anneal_bits(lambda x, s: 9 * x.sum(-1), torch.zeros(2, 9), [0.5], [PathFlips(30)], torch.Generator())
    >>> out.x.sum(-1)
    tensor([9., 9.])
    """

    times: int = 20
    flips: int = 8

    def move(
        self, state: BitState, target: BitTarget, step: Tensor, generator: torch.Generator
    ) -> tuple[BitState, Tensor]:
        """One step of every chain."""
        here = target.informed(state)
        out = gain_of(here) / 2
        path = (out - (-uniform(here.x, generator).log()).log()).topk(self.flips, -1).indices  # Gumbel race
        length = 1 + (uniform(path[:, :1], generator, out.dtype) * self.flips).floor()
        walked = torch.arange(self.flips, device=path.device) < length
        flip = torch.zeros_like(out, dtype=torch.bool).scatter(-1, path, walked)
        there = target.informed(BitState(torch.where(flip, 1 - here.x, here.x)))
        log_q = _log_path(out, path, walked, flip, backwards=False)
        log_back = _log_path(gain_of(there) / 2, path, walked, flip, backwards=True)
        return target.accepted(here, there, value_of(there) - value_of(here) + log_back - log_q, generator)


def log_flips(odds: Tensor, flip: Tensor) -> Tensor:
    """log-probability of independent flips with the given log-odds, shape (n,)."""
    return torch.where(flip, logsigmoid(odds), logsigmoid(-odds)).sum(-1)


def _log_path(score: Tensor, path: Tensor, walked: Tensor, flip: Tensor, backwards: bool) -> Tensor:
    """log-probability of the walked part of a path (n, L) without replacement, bits drawn ∝ exp score.

    What is left to draw from at i_k is what never flips and i_k, …, i_L; on the way back, i_k, …, i_1.
    """
    rest = score.masked_fill(flip, -math.inf).logsumexp(-1, keepdim=True)
    chosen = score.gather(-1, path)
    open_ = torch.where(walked, chosen, -math.inf)
    left = open_.logcumsumexp(-1) if backwards else open_.flip(-1).logcumsumexp(-1).flip(-1)
    return torch.where(walked, chosen - torch.logaddexp(left, rest), 0.0).sum(-1)


def uniform(like: Tensor, generator: torch.Generator, dtype: torch.dtype | None = None) -> Tensor:
    return torch.rand(like.shape, generator=generator, dtype=dtype or like.dtype, device=like.device)


def value_of(state: BitState) -> Tensor:
    assert state.value is not None
    return state.value


def gain_of(state: BitState) -> Tensor:
    assert state.gain is not None
    return state.gain


def check_bits(x: Tensor, levels: Sequence[float], fixed: Tensor | None) -> None:
    if x.ndim != 2 or not len(x) or not x.is_floating_point() or not bool(((x == 0) | (x == 1)).all()):
        raise ValueError(
            f"x: expected codes 0.0 and 1.0 of shape (n, d), n ≥ 1; got {x.dtype} of shape {tuple(x.shape)}, "
            "or other values."
        )
    if not levels or not all(level > 0 for level in levels):
        raise ValueError(f"levels: expected levels > 0, at least one; got {list(levels)}.")
    if fixed is not None and (fixed.dtype != torch.bool or fixed.shape not in (x.shape, x.shape[1:])):
        raise ValueError(
            f"fixed: expected bools of shape {tuple(x.shape[1:])} or {tuple(x.shape)}; "
            f"got {fixed.dtype}, {tuple(fixed.shape)}."
        )
