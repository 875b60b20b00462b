"""Which rows show the same cells, so that they can share a pass of a network."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["Contexts", "numbered"]

SHARED = 0.5  # contexts a row, up to which rows share their passes


class Contexts:
    """Which rows show the same cells.

    ``kind`` (n,) numbers what every row shows, ``first`` is one row of each kind; None once rows have little in common,
    and where a gradient is wanted, which every row needs for itself.

    Arguments:
        x: rows (n, d), of which nothing is shown yet.

    >>> contexts = Contexts(torch.zeros(4, 2))
    >>> contexts.show(torch.tensor([7.0, 5.0, 7.0, 7.0]))
    >>> contexts.among(torch.tensor([0, 2, 3]))[1]
    tensor([0, 0, 0])
    """

    first: Tensor | None

    def __init__(self, x: Tensor):
        self.kind = torch.zeros(len(x), dtype=torch.long, device=x.device)
        self.first = None if x.requires_grad or not len(x) else self.kind[:1]

    @classmethod
    def of(cls, x: Tensor) -> Contexts:
        """All that rows (n, d) show, which are their cells but nan."""
        contexts = cls(x)
        for j in (~x.isnan()).any(0).nonzero().flatten().tolist():
            contexts.show(x[:, j])
        return contexts

    def show(self, column: Tensor) -> None:
        """One more column (n,) is shown; its nan cells stay hidden."""
        if self.first is None:
            return
        _, code = torch.where(column.isnan(), math.inf, column).unique(return_inverse=True)
        self.first, self.kind = numbered(self.kind * (code.max() + 1) + code)
        if len(self.first) > SHARED * len(column):
            self.first = None

    def among(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """One of some rows (m,) for each kind, and their kinds (m,); all of them and None where little is in common."""
        if self.first is None:
            return rows, None
        first, kind = numbered(self.kind[rows])
        return rows[first], kind


def numbered(key: Tensor) -> tuple[Tensor, Tensor]:
    """Equal keys (n,) as kinds 0, 1, …: a row of each, and the kind of every row.

    >>> numbered(torch.tensor([7, 5, 7]))[1]
    tensor([1, 0, 1])
    """
    kinds, kind = key.unique(return_inverse=True)
    row = torch.arange(len(key), device=key.device)
    return torch.zeros_like(kinds).scatter_(0, kind, row), kind
