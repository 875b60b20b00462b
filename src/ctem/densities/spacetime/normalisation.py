"""The constant of a one-pass density b·e^g, with its error bar."""

from __future__ import annotations

import torch

from ctem.densities.chain import Chain
from ctem.densities.spacetime.differences import Differences
from ctem.partition.log_z import LogZ, estimate

__all__ = ["one_pass_log_z"]


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
    chain = Chain(g)
    drawn = [chain.sample(-(-n // orders), generator, order) for order in chain.orders(orders, generator)]
    x, log_q = torch.cat([part.x for part in drawn]), torch.cat([part.log_prob for part in drawn])
    return estimate((g.one_pass(x) - log_q).double(), "importance sampling from the chain")
