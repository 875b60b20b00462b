"""The one-pass joint b·e^g of a chain: its constant with an error bar, and samples corrected to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ctem.chain import Chain
from ctem.kernels import Redraw
from ctem.partition import log_z_bracket, log_z_enumerate
from ctem.partition.contract import LogZ, estimate
from ctem.samplers import MALA, Alternate, MetropolisHastings, Sampler
from ctem.spaces import MAX_STATES

__all__ = [
    "Corrected",
    "corrected_samples",
    "joint_log_z",
    "log_weights",
    "log_z_check",
    "mixture_log_z",
    "shared_log_z",
]

METHOD = "importance sampling from the chain"


def joint_log_z(chain: Chain, n: int, generator: torch.Generator, orders: int = 4) -> LogZ:
    """log Z of the one-pass joint b·e^g by importance sampling from the chain, in a few random orders.

    Chain and joint are made of the same g, so the weights are nearly equal and the error bar is small.

    >>> from ctem.bases import ProductBase
    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> log_z = joint_log_z(Chain(ClockNet(base, width=8), base), 400, torch.Generator().manual_seed(0))
    >>> round(log_z.value, 4), round(log_z.ess)  # untrained: joint and chain are the base
    (0.0, 400)
    """
    return estimate(log_weights(chain, n, generator, orders), METHOD)


def mixture_log_z(chains: Sequence[Chain], n: int, generator: torch.Generator, orders: int = 4) -> LogZ:
    """log Z of the mean of several one-pass joints, each by importance sampling from its own chain.

    >>> from ctem.bases import ProductBase
    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> chains = [Chain(ClockNet(base, width=8, seed=seed), base) for seed in range(2)]
    >>> round(mixture_log_z(chains, 400, torch.Generator().manual_seed(0)).value, 4)
    0.0
    """
    each = -(-n // len(chains))
    return estimate(torch.cat([log_weights(chain, each, generator, orders) for chain in chains]), METHOD)


def shared_log_z(
    chains: Sequence[Chain], orders: Sequence[Sequence[Sequence[int]]], n: int, generator: torch.Generator
) -> LogZ:
    """log Z of the one-pass joint that chains with slopes share, from the mixture of all of them in all their orders.

    >>> from ctem.bases import ProductBase
    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> slopes = [ClockNet(base, width=8, slopes=True, seed=seed).eval() for seed in range(2)]
    >>> chains = [Chain(ClockNet(base, width=8), base, slopes=each) for each in slopes]
    >>> orders = [[[0, 1, 2]], [[2, 1, 0]]]
    >>> round(shared_log_z(chains, orders, 400, torch.Generator().manual_seed(0)).value, 4)
    0.0
    """
    turns = [(chain, order) for chain, its in zip(chains, orders, strict=True) for order in its]
    each = -(-n // len(turns))
    x = torch.cat([chain.sample(each, generator, order).x for chain, order in turns])
    log_q = torch.stack([c.log_prob_mixture(x, its) for c, its in zip(chains, orders, strict=True)])
    log_q = log_q.logsumexp(0) - math.log(len(chains))
    return estimate((chains[0].joint(x) - log_q).double(), METHOD)


def log_weights(chain: Chain, n: int, generator: torch.Generator, orders: int = 4) -> Tensor:
    """log b e^g / q of at least n rows drawn from the chain's density q, in a few random orders.

    With slopes, where that is cheap, q is the mixture of the orders: the orders agree less than their mean with g.

    >>> from ctem.bases import ProductBase
    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> float(log_weights(Chain(ClockNet(base, width=8), base), 8, torch.Generator()).abs().max()) < 1e-5
    True
    """
    several = chain.orders(orders, generator)
    drawn = [chain.sample(-(-n // orders), generator, order) for order in several]
    x = torch.cat([part.x for part in drawn])
    own = torch.cat([part.log_prob for part in drawn])
    log_q = own if chain.slopes is None else chain.log_prob_mixture(x, several)
    return (chain.joint(x) - log_q).double()


def log_z_check(chain: Chain, n: int, generator: torch.Generator, levels: int = 200) -> list[LogZ]:
    """log Z of the one-pass joint by every way that applies, side by side; they should agree, near zero.

    Importance sampling from the chain; enumeration up to 2²² states; annealing forward from the base and back from
    chain samples, which bracket it in expectation.

    >>> from ctem.bases import ProductBase
    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> for log_z in log_z_check(Chain(ClockNet(base, width=8), base), 200, torch.Generator(), levels=5):
    ...     print(log_z.method)
    importance sampling from the chain
    enumerate
    annealed
    reverse annealed
    """
    found = [joint_log_z(chain, n, generator)]
    if chain.space.n_states <= MAX_STATES:
        like = chain.base.log_table
        found.append(log_z_enumerate(chain.joint, chain.space, dtype=like.dtype, device=like.device))
    moves: list[Sampler] = []
    if chain.space.reals:
        moves.append(MALA(chain.space, 0.1))
    if chain.space.discretes:
        moves.append(MetropolisHastings(Redraw(chain.base)))
    x = chain.sample(n, generator).x
    bracket = log_z_bracket(chain.potential, chain.base, Alternate(*moves), x, generator, levels=levels)
    return [*found, *bracket]


class Corrected(NamedTuple):
    """Chain samples moved towards the one-pass joint, and how often the moves were accepted.

    >>> Corrected(torch.zeros(4, 2), 0.9).acceptance
    0.9
    """

    x: Tensor  # (n, d)
    acceptance: float


def corrected_samples(chain: Chain, n: int, generator: torch.Generator, steps: int = 4) -> Corrected:
    """n rows of the one-pass joint: independence Metropolis–Hastings with the chain as its proposal.

    A proposal y replaces x with probability min(1, w(y)/w(x)), w = b e^g / q; the nearer joint and chain, the nearer
    the acceptance is to 1.

    >>> from ctem.bases import ProductBase
    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> round(corrected_samples(Chain(ClockNet(base, width=8), base), 50, torch.Generator()).acceptance, 3)
    1.0
    """
    order = chain.orders(1, generator)[0]  # one order for all proposals: their weights must compare
    x, log_q = chain.sample(n, generator, order)
    log_w, accepted = chain.joint(x) - log_q, 0.0
    for _ in range(steps):
        y, log_q = chain.sample(n, generator, order)
        proposed = chain.joint(y) - log_q
        u = torch.rand(n, generator=generator, dtype=log_w.dtype, device=log_w.device)
        take = u.log() < proposed - log_w
        x = torch.where(take.unsqueeze(1), y, x)
        log_w = torch.where(take, proposed, log_w)
        accepted += float(take.float().mean())
    return Corrected(x, accepted / steps)
