"""Samplers made of kernels and of samplers."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ctem.energies import LogPotential
from ctem.matching.kernels import Kernel
from ctem.samplers.sampler import Info, Sampler, current, evaluated, expect_positive, metropolis

__all__ = ["Adapted", "Alternate", "MetropolisHastings"]


class MetropolisHastings:
    """Any comparison kernel k as a proposal: log_accept = f(y) − f(x) − log k(y|x) + log k(x|y).

    A pair that the loss compares is a move that this sampler weighs: the same kernel serves both. A
    :class:`~ctem.matching.kernels.Mixture` is weighed by the part that made the move, which is again invariant.

    Arguments:
        kernel: the proposal; its columns move.

    >>> from ctem.matching.kernels import HammingOne
    >>> from ctem.spaces import Category, Space
    >>> sampler = MetropolisHastings(HammingOne(Space([Category(2)] * 5)))
    >>> x, info = sampler.step(lambda x: x.sum(-1), torch.zeros(3, 5), torch.Generator())
    >>> x.sum(-1)  # uphill moves are always accepted
    tensor([1., 1., 1.])
    """

    def __init__(self, kernel: Kernel):
        if not isinstance(kernel, Kernel):
            raise TypeError(f"kernel: expected a ctem.matching.kernels.Kernel; got {kernel!r}.")
        self.kernel = kernel

    def __repr__(self) -> str:
        return f"MetropolisHastings({self.kernel!r})"

    def step(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Info]:
        """One move of every chain."""
        (y,), (log_ratio,) = self.kernel.compare(x, generator)
        return metropolis(x, y, evaluated(f, y) - current(f, x) - log_ratio, generator)


class Alternate:
    """One step of each sampler in turn: mixed rows move in their real and in their discrete columns.

    Acceptance is the mean over the samplers.

    >>> from ctem.samplers import MALA, Gibbs
    >>> from ctem.spaces import Category, Real, Space
    >>> space = Space([Real(), Category(3)])
    >>> Alternate(MALA(space, 0.1), Gibbs(space))
    Alternate(MALA(step=0.1), Gibbs(columns=['x1']))
    """

    def __init__(self, *samplers: Sampler):
        for sampler in samplers:
            if not isinstance(sampler, Sampler):
                raise TypeError(f"samplers: expected objects with a `step`; got {sampler!r}.")
        if not samplers:
            raise ValueError("samplers: expected at least one; got none.")
        self.samplers = samplers

    def __repr__(self) -> str:
        return f"Alternate({', '.join(map(repr, self.samplers))})"

    def step(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Info]:
        """One move of every chain by every sampler."""
        rates = []
        for sampler in self.samplers:
            x, info = sampler.step(f, x, generator)
            rates.append(info.acceptance)
        return x, Info(torch.stack(rates).mean(0))


class Adapted:
    """A sampler whose step size follows a target acceptance: log step += rate · (acceptance − target).

    For burn-in and for annealing down noise levels, where the right step shrinks with the level. While it adapts it
    is not exactly invariant; ``frozen()`` is the plain sampler with the step reached so far.

    Arguments:
        make: from a step size to a sampler, e.g. ``lambda step: MALA(space, step)``.
        step: where to start.
        target: mean acceptance to aim at; 0.57 suits MALA and its discrete relatives.
        rate: how fast to follow.

    >>> from ctem.samplers import MALA
    >>> from ctem.spaces import Real, Space
    >>> sampler = Adapted(lambda step: MALA(Space([Real()]), step), step=100.0)
    >>> x, _ = sampler.step(lambda x: -(x**2).sum(-1) / 2, torch.zeros(9, 1), torch.Generator())
    >>> sampler.step_size < 100.0  # too bold: hardly a move was accepted
    True
    """

    def __init__(
        self, make: Callable[[float], Sampler], step: float, target: float = 0.57, rate: float = 0.5
    ):
        self.make, self.step_size = make, expect_positive("step", step)
        self.target, self.rate = target, expect_positive("rate", rate)
        if not 0 < target < 1:
            raise ValueError(f"target: expected an acceptance in (0, 1); got {target}.")

    def __repr__(self) -> str:
        return f"Adapted({self.frozen()!r}, target={self.target})"

    def frozen(self) -> Sampler:
        """The sampler at the present step size."""
        return self.make(self.step_size)

    def step(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Info]:
        """One move of every chain, then one of the step size."""
        x, info = self.frozen().step(f, x, generator)
        self.step_size *= math.exp(self.rate * (float(info.acceptance.mean()) - self.target))
        return x, info
