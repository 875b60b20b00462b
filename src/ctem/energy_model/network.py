"""Any module or function as the log-potential of flat encoded rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ctem.energies import LogPotential, expect_values
from ctem.partition import Proposal
from ctem.spaces import Space

__all__ = ["Shaped", "tilted"]


class Shaped(nn.Module):
    """A network of one's own on encoded rows (…, d): it is given rows in the shape of the space, and squeezed.

    One of this library has a ``space`` and takes rows as they are. Values of shape (n, 1) become (n,); any other shape
    is refused.

    Arguments:
        space: the space.
        net: a module, or any function from rows to values.

    >>> import torch
    >>> space = Space.image(1, 4, 4, levels=2)
    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 1))
    >>> Shaped(space, net)(torch.zeros(5, 16)).shape
    torch.Size([5])
    """

    def __init__(self, space: Space, net: nn.Module | Callable[[Tensor], Tensor]):
        super().__init__()
        self.space = space
        self.net: Any = copy.deepcopy(net)
        self.flat = hasattr(net, "space")

    def forward(self, x: Tensor) -> Tensor:
        """The values (…,) at rows x (…, d)."""
        rows = x.flatten(0, -2)
        values = self.net(rows if self.flat else rows.unflatten(-1, self.space.shape))
        if not isinstance(values, Tensor):
            raise TypeError(f"net: expected a tensor of values; got {type(values).__name__}.")
        values = values.squeeze(-1) if values.shape == (len(rows), 1) else values
        return expect_values(values, rows, "net").view(x.shape[:-1])

    @property
    def trainable(self) -> bool:
        """Whether there is anything to learn."""
        return any(p.requires_grad for p in self.parameters())


def tilted(base: Proposal | None, g: nn.Module) -> LogPotential:
    """f = log b + g, or g where there is no base.

    >>> import torch
    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Real
    >>> base = ProductBase(Space([Real()]))
    >>> bool(tilted(base, Shaped(base.space, lambda x: 0 * x[:, 0]))(torch.zeros(1, 1)) == base(torch.zeros(1, 1)))
    True
    """
    if base is None:
        return g
    return lambda x: base.log_prob(x).to(x.dtype) + g(x)
