"""Persistent contrastive divergence: maximum likelihood by chains that go on from step to step of the training."""

from __future__ import annotations

import torch
from torch import Tensor

from ctem.energies import LogPotential, expect_values
from ctem.matching.losses import Base
from ctem.matching.rivals import Objective
from ctem.samplers.sampler import Sampler

__all__ = ["PersistentDivergence"]


class PersistentDivergence(Objective):
    """E f(y) − E f(x) with y moved by a few steps of a sampler from a buffer of chains (Tieleman 2008).

    Its gradient is that of the negative log-likelihood if the chains are samples of exp f. Its value means nothing, so
    that nothing can be stopped by it: train without held-out rows.

    Arguments:
        sampler: what moves the chains: ``Gibbs``, ``GibbsWithGradients``, ``DiscreteLangevin``, ``MALA``, …
        base: where chains begin, and begin again.
        steps: of the sampler for each step of training.
        chains: in the buffer, drawn from at random; None has one for each row of a batch, which goes on in its place.
        renewed: share of the moved chains that begin again.

    >>> from ctem.bases import ProductBase
    >>> from ctem.samplers import Gibbs
    >>> from ctem.spaces import Category, Space
    >>> space = Space([Category(2)] * 3)
    >>> loss = PersistentDivergence(Gibbs(space), ProductBase(space), steps=2, chains=20)
    >>> loss(lambda x: 0 * x[..., 0], torch.zeros(5, 3), torch.Generator().manual_seed(0))
    tensor(0.)
    """

    def __init__(
        self, sampler: Sampler, base: Base, steps: int = 10, chains: int | None = 5000, renewed: float = 0.05
    ):
        self.sampler, self.base, self.steps, self.chains, self.renewed = sampler, base, steps, chains, renewed
        self.buffer: Tensor | None = None

    def __call__(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> Tensor:
        if self.buffer is None:
            self.buffer = self.base.sample(max(self.chains or 0, len(x)), generator).to(x)
        which = torch.arange(len(x), device=x.device)
        if self.chains is not None:
            which = torch.randperm(len(self.buffer), generator=generator, device=x.device)[: len(x)]
        fresh = torch.rand(len(x), 1, generator=generator, device=x.device) < self.renewed
        y = torch.where(fresh, self.base.sample(len(x), generator).to(x), self.buffer[which])
        for _ in range(self.steps):
            y, _ = self.sampler.step(f, y, generator)
        self.buffer[which] = y.detach()
        return expect_values(f(y.detach()), y).mean() - expect_values(f(x), x).mean()
