"""Real columns that exist only where a category has code 0: the continuous part of a column with atoms."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

__all__ = ["gaps"]


def gaps(x: Tensor, parents: Mapping[int, int]) -> Tensor:
    """Which cells of rows x (n, d) are missing: nan, but not the nan of a part that does not exist.

    Arguments:
        x: encoded rows.
        parents: for each such real column, its category.

    >>> import torch
    >>> gaps(torch.tensor([[1.0, torch.nan], [0.0, torch.nan]]), {1: 0})
    tensor([[False, False],
            [False,  True]])
    """
    gap = x.isnan()
    for child, parent in parents.items():
        gap[:, child] &= ~(x[:, parent] > 0)
    return gap
