"""The run loops: many steps at one level, or down a ladder of noise levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ctem.energies import LogPotential
from ctem.samplers.sampler import Sampler
from ctem.spaces import Space, as_rows
from ctem.training.progress import showing

__all__ = ["Annealed", "Run", "anneal", "run"]

T = TypeVar("T")


class Run(NamedTuple):
    """Where the chains ended, how often they moved, and where they went.

    >>> Run(torch.zeros(3, 2), 0.5, None).acceptance
    0.5
    """

    x: Tensor  # (n, d)
    acceptance: float  # mean over chains and steps
    trace: Tensor | None  # (draws, n, d)


class Annealed(NamedTuple):
    """Where the chains ended, and how often they moved at each level.

    >>> Annealed(torch.zeros(3, 2), (0.5, 0.4)).acceptance
    (0.5, 0.4)
    """

    x: Tensor  # (n, d)
    acceptance: tuple[float, ...]  # one per level, from the largest level to the smallest


def run(
    sampler: Sampler,
    f: LogPotential,
    x: ArrayLike,
    steps: int,
    generator: torch.Generator,
    *,
    thin: int | None = None,
    progress: bool = False,
) -> Run:
    """n chains, side by side, for a number of steps.

    Arguments:
        sampler: what moves them.
        f: the log-potential.
        x: where they start, shape (n, d).
        steps: number of steps.
        generator: the randomness, on the device of x.
        thin: keep every thin-th state in ``trace``, shape (steps // thin, n, d); None keeps none.
        progress: show a bar.

    >>> from ctem.samplers import MALA
    >>> from ctem.spaces import Real, Space
    >>> sampler, g = MALA(Space([Real()]), 0.5), torch.Generator().manual_seed(0)
    >>> run(sampler, lambda x: -(x**2).sum(-1) / 2, torch.zeros(4, 1), 10, g, thin=2).trace.shape
    torch.Size([5, 4, 1])
    """
    x = as_rows(x)
    _expect_whole("steps", steps)
    if thin is not None:
        _expect_whole("thin", thin)
    total, kept = torch.zeros((), device=x.device), []
    for i in tracked(range(steps), "sampling", progress):
        x, info = sampler.step(f, x, generator)
        total = total + info.acceptance.mean()
        if thin is not None and (i + 1) % thin == 0:
            kept.append(x)
    trace = None if thin is None else torch.stack(kept) if kept else x.new_empty(0, *x.shape)
    return Run(x, float(total) / steps, trace)


def anneal(
    sampler: Sampler | Callable[[float], Sampler],
    f: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    levels: Sequence[float],
    steps: int,
    generator: torch.Generator,
    *,
    progress: bool = False,
) -> Annealed:
    """Samples by following ρ_s from the largest noise level to the smallest.

    With ``MetropolisHastings(HammingOne(space))`` this is the paper's reverse-time Metropolis sampler.

    Arguments:
        sampler: one sampler, or a function from the level to one (its step may shrink with the noise).
        f: the noise-conditional log-potential f(x, s), for rows (n, d) and levels (n,).
        x: where the chains start, shape (n, d): draws from the base.
        levels: the levels s; they are visited from large to small.
        steps: steps at each level.
        generator: the randomness, on the device of x.
        progress: show a bar.

    >>> from ctem.energies import NoisyMLP
    >>> from ctem.samplers import Gibbs
    >>> from ctem.spaces import Category, Space
    >>> space = Space([Category(2)] * 4)
    >>> g = torch.Generator().manual_seed(0)
    >>> anneal(Gibbs(space), NoisyMLP(space), torch.zeros(5, 4), [0.1, 1.0], 3, g).acceptance
    (1.0, 1.0)
    """
    _expect_whole("steps", steps)
    if len(levels) == 0:
        raise ValueError("levels: expected at least one; got none.")
    rates = []
    for level in tracked(sorted(map(float, levels), reverse=True), "annealing", progress):
        mover = sampler if isinstance(sampler, Sampler) else sampler(level)
        x, rate, _ = run(mover, _at_level(f, level), x, steps, generator)
        rates.append(rate)
    return Annealed(x, tuple(rates))


class _AtLevel:
    """f(·, s) as a log-potential."""

    def __init__(self, f: Any, level: float):
        self.f, self.level = f, level

    def __call__(self, x: Tensor) -> Tensor:
        return self.f(x, x.new_full(x.shape[:-1], self.level))


class _FeaturedAtLevel(_AtLevel):
    """f(·, s) of a network that is differentiable in its features, for informed samplers."""

    @property
    def space(self) -> Space:
        return self.f.space

    def on_features(self, h: Tensor) -> Tensor:
        return self.f.on_features(h, h.new_full(h.shape[:-1], self.level))


def _at_level(f: Callable[[Tensor, Tensor], Tensor], level: float) -> LogPotential:
    return (_FeaturedAtLevel if hasattr(f, "on_features") else _AtLevel)(f, level)


def tracked(items: Sequence[T], text: str, progress: bool) -> Iterator[T]:
    """The items, while it is shown how many are done."""
    with showing(text, len(items), progress) as report:
        for done, item in enumerate(items, 1):
            yield item
            report(done, "")


def _expect_whole(name: str, value: int) -> None:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: expected a whole number ≥ 1; got {value!r}.")
