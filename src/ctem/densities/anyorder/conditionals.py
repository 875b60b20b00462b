"""The conditionals of a trained any-order network, asked at one noise level of its real columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ctem.bases import ProductBase
from ctem.densities.anyorder.network import AnyOrderNet
from ctem.densities.anyorder.numbers import FAR, NumberHead
from ctem.densities.chain import Conditional, Probabilities

__all__ = ["AtLevel", "NumberDensity"]

NODES = 1025  # at which the density of a real column is tabulated


class AtLevel:
    """A network's conditionals with visible real columns at one noise level (``ctem.densities.chain.Conditionals``).

    Arguments:
        net: the network.
        level: the noise level.

    >>> from ctem.spaces import Category, Space
    >>> net = AnyOrderNet(ProductBase(Space([Category(4)] * 2)), width=8)
    >>> rows, hidden = torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.bool)
    >>> AtLevel(net, 1e-3).given(rows, hidden, 0).log_prob(rows[:, 0]).exp()
    tensor([0.2500, 0.2500, 0.2500], grad_fn=<ExpBackward0>)
    """

    def __init__(self, net: AnyOrderNet, level: float):
        self.net, self.level = net, level

    @property
    def base(self) -> ProductBase:
        """The base of the network."""
        return self.net.base

    @property
    def members(self) -> int:
        """How many networks there are."""
        return self.net.members

    def given(self, x: Tensor, visible: Tensor, j: int, member: int = 0) -> Conditional:
        """ρ(x_j | x_V) for rows x (n, d) and their visible sets V (n, d), by one member."""
        if self.net.space.sizes[j]:
            return Probabilities(self.net.label_log_probs(x, visible, self.level, j, member))
        return NumberDensity(
            self.net.numbers, *self.net.number_coefficients(x, visible, self.level, j, member)
        )


@dataclass(frozen=True)
class NumberDensity:
    """The conditional of a real column: a head and what it needs for each row.

    >>> head = NumberHead()
    >>> density = NumberDensity(head, torch.zeros(2, head.size), torch.zeros(2), torch.ones(2))
    >>> density.draw(torch.Generator().manual_seed(0)).shape
    torch.Size([2])
    """

    head: NumberHead
    found: Tensor  # (n, size)
    mean: Tensor  # (n,)
    spread: Tensor  # (n,)

    def log_prob(self, value: Tensor) -> Tensor:
        """log ρ of numbers (n,)."""
        return self.head.log_prob(value.unsqueeze(1), self.found, self.mean, self.spread).squeeze(1)

    def at(self, values: Tensor) -> Tensor:
        """log ρ of several numbers for each row, (n, q)."""
        return self.head.log_prob(values, self.found, self.mean, self.spread)

    def table(self) -> tuple[Tensor, Tensor]:
        """Nodes (q,) on [−8, 8] and log ρ there, (n, q)."""
        nodes = torch.linspace(-FAR, FAR, NODES, dtype=self.found.dtype, device=self.found.device)
        return nodes, self.at(nodes.expand(len(self.found), -1))

    def draw(self, generator: torch.Generator) -> Tensor:
        """A number within ±8 for each row, (n,)."""
        return self.head.draw(self.found, self.mean, self.spread, generator)

    def rows(self, index: Tensor) -> NumberDensity:
        """Those of these rows."""
        return NumberDensity(self.head, self.found[index], self.mean[index], self.spread[index])
