"""Real columns that exist only where a category has code 0: the continuous part of a column with atoms."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

__all__ = ["Parts"]


class Parts(nn.Module):
    """Which real column is a part of which category.

    Arguments:
        parents: for each such real column, its category.

    >>> parts, x = Parts({1: 0}), torch.tensor([[1.0, 5.0]])
    >>> parts.hide(x, torch.zeros(1, 2))
    tensor([[0., inf]])
    """

    child: Tensor
    parent: Tensor

    def __init__(self, parents: Mapping[int, int]):
        super().__init__()
        self.parents = dict(parents)
        for name, columns in (("child", parents.keys()), ("parent", parents.values())):
            self.register_buffer(name, torch.tensor(list(columns), dtype=torch.long), persistent=False)

    def absent(self, x: Tensor, level: Tensor) -> Tensor:
        """Whether each part does not exist: its category is seen to have another code than 0, (n, parts)."""
        seen = torch.isfinite(level.index_select(1, self.parent))
        return seen & (x.index_select(1, self.parent) > 0)

    def gaps(self, x: Tensor) -> Tensor:
        """Which cells are missing, (n, d): nan, but not the nan of a part that does not exist."""
        gap = x.isnan()
        own = gap.index_select(1, self.child) & ~(x.index_select(1, self.parent) > 0)
        return gap.index_copy(1, self.child, own)

    def hide(self, x: Tensor, level: Tensor) -> Tensor:
        """Levels with the parts hidden that do not exist."""
        if not self.parents:
            return level
        own = level.index_select(1, self.child)
        return level.index_copy(1, self.child, torch.where(self.absent(x, level), math.inf, own))
