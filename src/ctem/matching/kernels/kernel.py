"""Comparison kernels: where the second point of a pair comes from.

A kernel k draws y ~ k(·|x) and gives its asymmetry,

    log_ratio = log k(y|x) − log k(x|y),

zero for the symmetric kernels of the paper. A pair enters every loss through its gap
Δ = f(x) − f(y) + log_ratio, so an asymmetric kernel is as right as a symmetric one. A kernel that is
reversible with respect to a base b has log_ratio = log b(y) − log b(x): with f = log b + g the gap is
g(x) − g(y), and the network learns log(ρ/b).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ctem.spaces import Space, as_rows

__all__ = [
    "Comparison",
    "Edges",
    "Kernel",
]


class Comparison(NamedTuple):
    """Comparison points and the asymmetry of the kernel that drew them.

    >>> Comparison(torch.zeros(4, 8, 2), torch.zeros(4, 8)).y.shape
    torch.Size([4, 8, 2])
    """

    y: Tensor  # (m, n, d)
    log_ratio: Tensor  # (m, n): log k(y|x) − log k(x|y)


class Edges(NamedTuple):
    """A kernel on a finite space written out: k(target|source) = weight, without self-pairs.

    >>> Edges(torch.tensor([0]), torch.tensor([1]), torch.ones(1), torch.zeros(1)).target
    tensor([1])
    """

    source: Tensor  # (e,) state numbers
    target: Tensor  # (e,)
    weight: Tensor  # (e,) float64
    log_ratio: Tensor  # (e,) float64


@runtime_checkable
class Kernel(Protocol):
    """A comparison kernel on some columns of a space; the other columns stay.

    A new kernel writes ``move`` (and ``edges`` if it lives on finite spaces).

    >>> from ctem.matching.kernels import HammingOne
    >>> from ctem.spaces import Category
    >>> kernel = HammingOne(Space([Category(2), Category(3)]))
    >>> kernel.compare(torch.zeros(5, 2), torch.Generator().manual_seed(0), m=4).y.shape
    torch.Size([4, 5, 2])
    """

    space: Space
    columns: list[int]

    def __init__(self, space: Space, columns: Sequence[int], kind: str):
        if not columns:
            raise ValueError(f"{type(self).__name__} moves {kind} columns; {space!r} has none.")
        self.space = space
        self.columns = list(columns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(columns={[self.space.names[j] for j in self.columns]})"

    def compare(self, x: ArrayLike, generator: torch.Generator, m: int = 1) -> Comparison:
        """m comparison points for each row of x (n, d)."""
        x = as_rows(x)
        expect_columns(x, self.space)
        if m < 1:
            raise ValueError(f"m: expected at least 1 comparison per row; got {m}.")
        return self.move(x.expand(m, *x.shape), generator)

    def move(self, x: Tensor, generator: torch.Generator) -> Comparison:
        """One comparison for each row of x (m, n, d)."""
        ...

    def edges(self) -> Edges:
        """The kernel on a finite space as a list of edges, for exact losses."""
        raise ValueError(
            f"{self!r} has no list of edges: it moves real columns, or its class writes no `edges`."
        )


def expect_columns(x: Tensor, space: Space) -> None:
    if x.ndim != 2 or x.shape[1] != space.dim:
        raise ValueError(f"x: expected shape (n, {space.dim}); got {tuple(x.shape)}.")


def chosen_columns(
    space: Space, chosen: Sequence[int | str] | None, fitting: Sequence[int], kind: str
) -> list[int]:
    if chosen is None:
        return list(fitting)
    named = {name: j for j, name in enumerate(space.names)}
    for c in chosen:
        if (c not in named) if isinstance(c, str) else (c not in range(space.dim)):
            raise ValueError(f"columns: expected names or numbers of {list(space.names)}; got {c!r}.")
    numbers = [named[c] if isinstance(c, str) else int(c) for c in chosen]
    for j in numbers:
        if j not in fitting:
            raise ValueError(f"columns: expected {kind} columns; {space.names[j]!r} is {space.columns[j]!r}.")
    return numbers


def concatenated(parts: Sequence[tuple[Tensor, ...]]) -> Edges:
    """Edges from parts (source, target, weight[, log_ratio]); the log-ratio is zero where left out."""
    full = [part if len(part) == 4 else (*part, torch.zeros_like(part[2])) for part in parts]
    return Edges(*(torch.cat(field) for field in zip(*full, strict=True)))
