"""The one-pass density b·e^g of a potential: its constant with an error bar, and samples corrected to it.

Every function takes the potential's ``Differences``, whose chain rule gives samples with a known density.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ctem.densities.chain import Chain
from ctem.densities.spacetime.differences import Differences
from ctem.matching.kernels import Redraw
from ctem.partition import log_z_bracket, log_z_enumerate
from ctem.partition.log_z import LogZ, estimate
from ctem.samplers import MALA, Alternate, MetropolisHastings, Sampler
from ctem.spaces import MAX_STATES

__all__ = [
    "Corrected",
    "corrected_samples",
    "log_weights",
    "log_z_check",
    "one_pass_log_z",
]

METHOD = "importance sampling from the chain"


def one_pass_log_z(g: Differences, n: int, generator: torch.Generator, orders: int = 4) -> LogZ:
    """log Z of the one-pass density b·e^g by importance sampling from the chain, in a few random orders.

    Chain and one-pass density are made of the same g, so the weights are nearly equal and the error bar is small.

    >>> from ctem.bases import ProductBase
    >>> from ctem.densities.spacetime.network import LevelNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> log_z = one_pass_log_z(Differences(LevelNet(base, width=8), base), 400, torch.Generator().manual_seed(0))
    >>> round(log_z.value, 4), round(log_z.ess)  # untrained: one_pass and chain are the base
    (0.0, 400)
    """
    return estimate(log_weights(g, n, generator, orders), METHOD)


def log_weights(g: Differences, n: int, generator: torch.Generator, orders: int = 4) -> Tensor:
    """log b e^g / q of at least n rows drawn by the chain rule, in a few random orders, q being the order's density.

    >>> from ctem.bases import ProductBase
    >>> from ctem.densities.spacetime.network import LevelNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> float(log_weights(Differences(LevelNet(base, width=8), base), 8, torch.Generator()).abs().max()) < 1e-5
    True
    """
    chain = Chain(g)
    drawn = [chain.sample(-(-n // orders), generator, order) for order in chain.orders(orders, generator)]
    x, log_q = torch.cat([part.x for part in drawn]), torch.cat([part.log_prob for part in drawn])
    return (g.one_pass(x) - log_q).double()


def log_z_check(g: Differences, n: int, generator: torch.Generator, levels: int = 200) -> list[LogZ]:
    """log Z of the one-pass density by every way that applies, side by side; they should agree, near zero.

    Importance sampling from the chain; enumeration up to 2²² states; annealing forward from the base and back from
    chain samples, which bracket it in expectation.

    >>> from ctem.bases import ProductBase
    >>> from ctem.densities.spacetime.network import LevelNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> for log_z in log_z_check(Differences(LevelNet(base, width=8), base), 200, torch.Generator(), levels=5):
    ...     print(log_z.method)
    importance sampling from the chain
    enumerate
    annealed
    reverse annealed
    """
    found = [one_pass_log_z(g, n, generator)]
    if g.space.n_states <= MAX_STATES:
        like = g.base.log_table
        found.append(log_z_enumerate(g.one_pass, g.space, dtype=like.dtype, device=like.device))
    moves: list[Sampler] = []
    if g.space.reals:
        moves.append(MALA(g.space, 0.1))
    if g.space.discretes:
        moves.append(MetropolisHastings(Redraw(g.base)))
    x = Chain(g).sample(n, generator).x
    bracket = log_z_bracket(g.potential, g.base, Alternate(*moves), x, generator, levels=levels)
    return [*found, *bracket]


class Corrected(NamedTuple):
    """Chain samples moved towards the one-pass density, and how often the moves were accepted.

    >>> Corrected(torch.zeros(4, 2), 0.9).acceptance
    0.9
    """

    x: Tensor  # (n, d)
    acceptance: float


def corrected_samples(g: Differences, n: int, generator: torch.Generator, steps: int = 4) -> Corrected:
    """n rows of the one-pass density: independence Metropolis–Hastings with the chain as its proposal.

    A proposal y replaces x with probability min(1, w(y)/w(x)), w = b e^g / q; the nearer density and chain, the nearer
    the acceptance is to 1.

    >>> from ctem.bases import ProductBase
    >>> from ctem.densities.spacetime.network import LevelNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> round(corrected_samples(Differences(LevelNet(base, width=8), base), 50, torch.Generator()).acceptance, 3)
    1.0
    """
    chain = Chain(g)
    order = chain.orders(1, generator)[0]  # one order for all proposals: their weights must compare
    x, log_q = chain.sample(n, generator, order)
    log_w, accepted = g.one_pass(x) - log_q, 0.0
    for _ in range(steps):
        y, log_q = chain.sample(n, generator, order)
        proposed = g.one_pass(y) - log_q
        u = torch.rand(n, generator=generator, dtype=log_w.dtype, device=log_w.device)
        take = u.log() < proposed - log_w
        x = torch.where(take.unsqueeze(1), y, x)
        log_w = torch.where(take, proposed, log_w)
        accepted += float(take.float().mean())
    return Corrected(x, accepted / steps)
