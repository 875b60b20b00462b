r"""How far the networks' conditionals are believed, column by column.

    ρ(x_j | x_V) = w_j net_j(x_j | x_V) + (1 − w_j) b_j(x_j),      0 ≤ w_j ≤ 1

b_j is the margin of the column; where rows are few and columns many, what latent classes give it given x_V
(``ctem.densities.anyorder.classes``). The mixture is normalised as its parts are. How w_j is chosen is explained in
``ctem.densities.anyorder.shrinking``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ctem.bases import ProductBase

__all__ = ["NEVER", "Worth", "mixed", "mixed_column"]

NEVER = 100.0  # stands for infinity


class Worth(NamedTuple):
    """What is believed of each encoded column.

    >>> Worth.of_all(2)
    Worth(share=(1.0, 1.0), heard=(True, True), nats=None, reach=100.0)
    """

    share: tuple[float, ...]  # w_j: how much of a conditional is the networks'
    heard: tuple[bool, ...]  # whether the networks see the column; else all others are independent of it
    nats: tuple[float, ...] | None = None  # that the others give about it on unseen rows, if that is known
    reach: float = NEVER  # encoded number beyond which few rows lie (``ctem.densities.anyorder.tails``)

    @classmethod
    def of_all(cls, columns: int) -> Worth:
        """The networks are believed, and see everything."""
        return cls((1.0,) * columns, (True,) * columns)


def mixed(base: ProductBase, share: tuple[float, ...], x: Tensor, log_p: Tensor) -> Tensor:
    """log (w_j e^{log_p} + (1 − w_j) b_j(x_j)) of every column of rows x (…, d).

    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(4)]))
    >>> mixed(base, (0.5,), torch.zeros(1, 1), torch.tensor([[0.75]]).log()).exp()  # ½ ¾ + ½ ¼
    tensor([[0.5000]])
    """
    if min(share) == 1.0:
        return log_p
    w = torch.tensor(share, dtype=log_p.dtype, device=log_p.device)
    return torch.logaddexp(log_p + w.log(), base.column_log_prob(x) + (1 - w).log())


def mixed_column(share: float, log_p: Tensor, log_margin: Tensor) -> Tensor:
    """The same of one column, from log-probabilities of values by the networks and by the margin.

    >>> mixed_column(0.0, torch.zeros(2), torch.tensor([0.25, 0.75]).log()).exp()
    tensor([0.2500, 0.7500])
    """
    if share == 1.0:
        return log_p
    if share == 0.0:
        return log_margin.expand_as(log_p)
    return torch.logaddexp(log_p + math.log(share), log_margin + math.log1p(-share))
