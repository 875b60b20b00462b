"""Kernels made of kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ctem.matching.kernels.kernel import Comparison, Edges, Kernel, concatenated
from ctem.spaces import Space

__all__ = [
    "Mixture",
    "Product",
]


class Product(Kernel):
    """Several kernels at once, each on its own columns: log-ratios add.

    ``Product(Sphere(space, ε), HammingOne(space))`` is the paper's joint mixed kernel
    (eq. app-mixed-joint-kernel). Columns must not be shared: two symmetric moves of one column in a row
    need not be symmetric.

    >>> from ctem.matching.kernels import HammingOne, Sphere
    >>> from ctem.spaces import Category, Real
    >>> space = Space([Real(), Real(), Category(16)])
    >>> Product(Sphere(space, 0.5), HammingOne(space))
    Product(Sphere(columns=['x0', 'x1']), HammingOne(columns=['x2']))
    """

    def __init__(self, *kernels: Kernel):
        columns = [j for kernel in kernels for j in kernel.columns]
        super().__init__(_shared_space(kernels), columns, "some")
        if len(set(columns)) < len(columns):
            raise ValueError(f"kernels: expected disjoint columns; got {list(kernels)}.")
        self.kernels = kernels

    def __repr__(self) -> str:
        return f"Product({', '.join(map(repr, self.kernels))})"

    def move(self, x: Tensor, generator: torch.Generator) -> Comparison:
        y, total = x, x.new_zeros(x.shape[:-1])
        for kernel in self.kernels:
            y, ratio = kernel.move(y, generator)
            total = total + ratio
        return Comparison(y, total)

    def edges(self) -> Edges:
        n = int(self.space.n_states)
        whole, *rest = (_with_holding(kernel.edges(), n) for kernel in self.kernels)
        for edges in rest:
            whole = _composed(whole, edges, n)
        moved = whole.source != whole.target
        return Edges(*(field[moved] for field in whole))


class Mixture(Kernel):
    """One of several kernels for each pair, drawn with the given weights: local and global moves together.

    The choice is part of the pair, so each pair carries the log-ratio of the kernel that made it.

    >>> from ctem.matching.kernels import Grid, Uniform
    >>> from ctem.spaces import Ordinal
    >>> space = Space([Ordinal(9), Ordinal(9)])
    >>> Mixture([Grid(space), Uniform(space)], [0.5, 0.5])
    Mixture([Grid(columns=['x0', 'x1']), Uniform(columns=['x0', 'x1'])], [0.5, 0.5])
    """

    def __init__(self, kernels: Sequence[Kernel], weights: Sequence[float]):
        columns = sorted({j for kernel in kernels for j in kernel.columns})
        super().__init__(_shared_space(kernels), columns, "some")
        if len(weights) != len(kernels) or abs(sum(weights) - 1) > 1e-6 or min(weights) <= 0:
            raise ValueError(
                f"weights: expected {len(kernels)} numbers > 0 that sum to 1; got {list(weights)}."
            )
        self.kernels = list(kernels)
        self.weights = list(weights)

    def __repr__(self) -> str:
        return f"Mixture({self.kernels}, {self.weights})"

    def move(self, x: Tensor, generator: torch.Generator) -> Comparison:
        weights = torch.tensor(self.weights, device=x.device).expand(x.shape[:-1].numel(), -1)
        which = torch.multinomial(weights, 1, generator=generator).reshape(x.shape[:-1])
        y, total = x.clone(), x.new_zeros(x.shape[:-1])
        for i, kernel in enumerate(self.kernels):
            moved, ratio = kernel.move(x, generator)
            y = torch.where((which == i).unsqueeze(-1), moved, y)
            total = torch.where(which == i, ratio, total)
        return Comparison(y, total)

    def edges(self) -> Edges:
        parts = []
        for share, kernel in zip(self.weights, self.kernels, strict=True):
            source, target, weight, ratio = kernel.edges()
            parts.append((source, target, share * weight, ratio))
        return concatenated(parts)


def _shared_space(kernels: Sequence[Kernel]) -> Space:
    if not kernels:
        raise ValueError("kernels: expected at least one; got none.")
    spaces = {kernel.space for kernel in kernels}
    if len(spaces) > 1:
        raise ValueError(f"kernels: expected one space for all; got {len(spaces)}: {spaces}.")
    return kernels[0].space


def _with_holding(edges: Edges, n: int) -> Edges:
    """The edges and, where a state may hold, its self-pair."""
    stay = 1 - torch.zeros(n, dtype=torch.float64).index_add(0, edges.source, edges.weight)
    held = torch.nonzero(stay > 1e-12).squeeze(-1)
    return concatenated([tuple(edges), (held, held, stay[held])])


def _composed(first: Edges, second: Edges, n: int) -> Edges:
    """Every edge of the first followed by every edge of the second."""
    order = torch.argsort(second.source, stable=True)
    count = torch.bincount(second.source, minlength=n)
    start = count.cumsum(0) - count
    repeat = count[first.target]
    e = torch.repeat_interleave(torch.arange(len(first.source)), repeat)
    offset = torch.arange(len(e)) - torch.repeat_interleave(repeat.cumsum(0) - repeat, repeat)
    s = order[start[first.target][e] + offset]
    return Edges(
        first.source[e],
        second.target[s],
        first.weight[e] * second.weight[s],
        first.log_ratio[e] + second.log_ratio[s],
    )
