"""Annealed chains on bits: down a ladder of noise levels, with informed moves that adapt at each.

``anneal_bits`` is to bits what ``anneal`` is to any space. Its moves are FlipJump, LangevinFlips and
PathFlips in ``ctem.samplers.bits``, Renoise and Denoise in ``ctem.samplers.reverse``; all are in ``ctem.samplers``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ctem.samplers.bits import BitState, BitTarget, LevelDensity, Move, check_bits
from ctem.training.progress import showing

__all__ = ["AnnealedBits", "anneal_bits"]


class AnnealedBits(NamedTuple):
    """Where the chains ended, and what happened on the way; levels from the largest to the smallest.

    >>> AnnealedBits(torch.zeros(3, 2), (1.0,), ((0.5, 0.6),), ((0.1, None),), 40).acceptance[0]
    (0.5, 0.6)
    """

    x: Tensor  # (n, d)
    levels: tuple[float, ...]
    acceptance: tuple[tuple[float, ...], ...]  # of each level and move, after its step was fixed
    steps: tuple[tuple[float | None, ...], ...]  # the step that each level and move ended with
    evaluations: int  # of f per chain; a gradient counts as one more

    def tuned(self, moves: Sequence[Any]) -> Callable[[float], list[Any]]:
        """The same moves with fixed steps, log-linear in log s between the levels: exact, also as AIS moves.

        >>> out = AnnealedBits(torch.zeros(3, 2), (1.0, 0.1), ((0.5,), (0.5,)), ((0.1,), (0.001,)), 40)
        >>> from ctem.samplers import LangevinFlips
        >>> round(out.tuned([LangevinFlips()])(0.1**0.5)[0].step, 4)
        0.01
        """

        def at(level: float) -> list[Any]:
            return [
                replace(move, step=self._step(i, level), acceptance=None) if _adaptable(move) else move
                for i, move in enumerate(moves)
            ]

        return at

    def _step(self, i: int, level: float) -> float:
        pairs = zip(self.levels, self.steps, strict=True)
        known = sorted((math.log(s), math.log(step)) for s, row in pairs if (step := row[i]))
        u = min(max(math.log(level), known[0][0]), known[-1][0])
        for (a, low), (b, high) in pairwise(known):
            if u <= b:
                return math.exp(low + (high - low) * (u - a) / (b - a))
        return math.exp(known[-1][1])


def anneal_bits(
    log_density: LevelDensity,
    x: Tensor,
    levels: Sequence[float],
    moves: Sequence[Move] | Callable[[float], Sequence[Move]],
    generator: torch.Generator,
    *,
    fixed: Tensor | None = None,
    batch_size: int = 4096,
    progress: bool = False,
) -> AnnealedBits:
    """Samples by following exp f(·, s) from the largest noise level to the smallest, every move in turn at each.

    The chains end at the smallest level, with its noise; ``denoise_bits`` takes it away.

    Arguments:
        log_density: f(x, s), a network of numbers and noise levels.
        x: codes 0 and 1 (n, d) where the chains start: draws from the base, or an image to complete.
        levels: the levels s > 0; they are visited from large to small.
        moves: the moves, or a function from the level to them (as many at every level).
        generator: the randomness, on the device of x.
        fixed: bits that keep their values, (d,) or (n, d) bool: sampling given these.
        batch_size: chains evaluated at once.
        progress: show a bar with the acceptance of every move.

    >>> from ctem.bases import ProductBase
    >>> from ctem.samplers import Denoise, LangevinFlips, PathFlips
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 16))
    >>> f = lambda x, s: (x[:, :-1] * x[:, 1:]).sum(1) / (1 + s)  # neighbours agree
    >>> g = torch.Generator().manual_seed(0)
    >>> moves = [Denoise(base), LangevinFlips(4), PathFlips(2)]
    >>> anneal_bits(f, base.sample(3, g), [0.1, 1.0], moves, g).x.shape
    torch.Size([3, 16])
    """
    ladder = sorted(map(float, levels), reverse=True)
    check_bits(x, ladder, fixed)
    at = moves if callable(moves) else lambda level: moves
    _check_moves(at(ladder[0]), x, fixed)
    sizes: dict[int, Tensor] = {}  # of the adapting moves; they go over from level to level
    rates, steps, evaluations = [], [], 0
    target: BitTarget | None = None
    with showing("annealing", len(ladder), progress) as report:
        for level in ladder:
            target = BitTarget(log_density, level, fixed, batch_size, before=target)
            state, rate, step = visit(target, BitState(x), at(level), sizes, generator)
            x = state.x
            evaluations += target.evaluations + (0 if target.before is None else target.before.evaluations)
            target.evaluations, target.before = 0, None
            rates.append(rate)
            steps.append(step)
            report(len(rates), f"s = {level:.3g}  accepted " + " ".join(f"{r:.2f}" for r in rate))
    return AnnealedBits(x, tuple(ladder), tuple(rates), tuple(steps), evaluations)


def visit(
    target: BitTarget,
    state: BitState,
    moves: Sequence[Move],
    sizes: dict[int, Tensor],
    generator: torch.Generator,
) -> tuple[BitState, tuple[float, ...], tuple[float | None, ...]]:
    """All moves at one level; where they led, their acceptance and their steps, with one wait for the device."""
    rates = []
    for i, move in enumerate(moves):
        wanted: float | None = getattr(move, "acceptance", None)
        adapting = 0 if wanted is None else (move.times + 1) // 2
        size = sizes.get(i) if wanted is not None else None
        if size is None:
            size = state.x.new_tensor(getattr(move, "step", 1.0))
        kept = []
        for k in range(move.times):
            state, accepted = move.move(state, target, size, generator)
            if k < adapting and wanted is not None:
                size = (size * (2 * (k + 1) ** -0.6 * (accepted.mean() - wanted)).exp()).clamp(1e-6, 1.0)
            if k >= adapting or move.times == adapting:
                kept.append(accepted.mean())
        sizes[i] = size
        rates.append(torch.stack(kept).mean())
    measured = torch.stack(rates).tolist()
    for move, rate in zip(moves, measured, strict=True):
        if math.isnan(rate):
            raise FloatingPointError(
                f"log-acceptance is nan at level {target.level:g} in {move!r}: look for nan in f."
            )
    ended = [float(sizes[i]) if _adaptable(move) else None for i, move in enumerate(moves)]
    return state, tuple(measured), tuple(ended)


def _adaptable(move: Any) -> bool:
    return hasattr(move, "step")


def _check_moves(moves: Sequence[Move], x: Tensor, fixed: Tensor | None) -> None:
    if not moves:
        raise ValueError("moves: expected at least one; got none.")
    free = x.shape[1] - (0 if fixed is None else int(fixed.sum(-1).max()))
    for move in moves:
        if move.times < 1:
            raise ValueError(f"times: expected at least 1; got {move!r}.")
        if not 0 < getattr(move, "flips", 1) <= free:
            raise ValueError(f"flips: expected 1 to {free}, the bits that are free; got {move!r}.")
