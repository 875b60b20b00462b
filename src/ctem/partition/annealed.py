"""log Z of a noise-conditional log-density on bits, by annealing along its own noise levels in both directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ctem.bases import ProductBase
from ctem.partition.log_z import estimate
from ctem.partition.sampled import Bracket
from ctem.samplers.annealed import visit
from ctem.samplers.bits import BitState, BitTarget, LevelDensity, Move, check_bits, value_of
from ctem.samplers.reverse import Denoise

__all__ = ["log_z_levels"]


def log_z_levels(
    log_density: LevelDensity,
    base: ProductBase,
    x: Tensor,
    levels: Sequence[float],
    moves: Sequence[Move] | Callable[[float], Sequence[Move]],
    generator: torch.Generator,
    *,
    batch_size: int = 4096,
) -> Bracket:
    r"""log Σ_x exp f(x, s) at the smallest level, from below and from above: E lower ≤ log Z ≤ E upper.

    Forward, from base draws down the ladder ∞ = s_0 > s_1 > … > s_K with f(·, ∞) = log b, and reverse, from x up:

        log w = Σ_k f(x_{k−1}, s_k) − f(x_{k−1}, s_{k−1}),     x_k moved from x_{k−1} by moves that keep exp f(·, s_k)

    Neighbouring levels differ by a little noise, so that this path is far shorter than the straight one of
    :func:`~ctem.partition.sampled.log_z_bracket`. As many chains as rows in x.

    Arguments:
        log_density: f(x, s), a network of numbers and noise levels.
        base: b, the law at s = ∞.
        x: (nearly) exact, independent samples of exp f at the smallest level, codes (n, d), as from ``anneal_bits``.
        levels: the ladder, in any order; the largest should be close to the base.
        moves: exact moves with fixed steps, or a function from the level to them, such as ``AnnealedBits.tuned``.
        generator: the randomness, on the device of x.
        batch_size: chains evaluated at once.

    >>> from ctem.samplers import FlipJump
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 4))
    >>> f, x = lambda x, s: base.log_prob(x) + 3, torch.zeros(200, 4)
    >>> round(log_z_levels(f, base, x, [0.1, 1.0], [FlipJump(1)], torch.Generator()).lower.value, 6)
    3.0
    """
    ladder = sorted(map(float, levels), reverse=True)
    check_bits(x, ladder, None)
    at = moves if callable(moves) else lambda level: moves
    for move in [move for level in ladder for move in at(level)]:
        if isinstance(move, Denoise) or getattr(move, "acceptance", None) is not None:
            raise ValueError(f"moves: expected exact ones with fixed steps (acceptance=None); got {move!r}.")
    ends = BitTarget(lambda x, s: base.log_prob(x), math.inf)
    stations = [ends, *(BitTarget(log_density, level, batch_size=batch_size) for level in ladder)]
    start = base.sample(len(x), generator).to(x.dtype)
    lower = estimate(level_weights(stations, start, at, generator)[0], "annealed levels")
    upper = estimate(level_weights(stations[::-1], x, at, generator)[0], "reverse annealed levels")
    return Bracket(lower, upper._replace(value=-upper.value))


def level_weights(
    stations: Sequence[BitTarget],
    x: Tensor,
    moves: Callable[[float], Sequence[Move]],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """log w of each chain from the first station, where x are exact samples, to the last; and where it ended."""
    state = stations[0].valued(BitState(x))
    log_w = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for i, (here, there) in enumerate(pairwise(stations)):
        if i:
            state, _, _ = visit(here, state, moves(here.level), {}, generator)
        # with the gains, which the first move needs; log b has none
        ahead = (there.informed if there.level < math.inf else there.valued)(BitState(state.x))
        log_w += value_of(ahead).double() - value_of(here.valued(state)).double()
        state = ahead
    return log_w, state.x
