"""Kernels that move discrete columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ctem.bases import ProductBase
from ctem.matching.kernels.kernel import Comparison, Edges, Kernel, chosen_columns, concatenated
from ctem.spaces import Space

__all__ = [
    "Graph",
    "Grid",
    "HammingOne",
    "Redraw",
    "Refresh",
    "Uniform",
]


class HammingOne(Kernel):
    """One discrete column, drawn at random, takes another value, drawn at random (ω_loc of the paper).

    On a single column this is the paper's non-zero label shift y ↦ (y + δ) mod k.

    >>> from ctem.spaces import Category
    >>> kernel = HammingOne(Space([Category(2)] * 5))
    >>> y, _ = kernel.compare(torch.zeros(3, 5), torch.Generator().manual_seed(0))
    >>> y.sum(-1)
    tensor([[1., 1., 1.]])
    """

    def __init__(self, space: Space, columns: Sequence[int | str] | None = None):
        super().__init__(space, chosen_columns(space, columns, space.discretes, "discrete"), "discrete")

    def move(self, x: Tensor, generator: torch.Generator) -> Comparison:
        columns, sizes = _lookup(self, x.device)
        which = torch.randint(len(self.columns), x.shape[:-1], generator=generator, device=x.device)
        size = sizes[which]
        draw = torch.rand(x.shape[:-1], generator=generator, device=x.device)
        shift = 1 + (draw * (size - 1)).long().clamp(max=size - 2)
        column = columns[which].unsqueeze(-1)
        new = (x.gather(-1, column) + shift.unsqueeze(-1)) % size.unsqueeze(-1)
        return Comparison(x.scatter(-1, column, new.to(x.dtype)), x.new_zeros(x.shape[:-1]))

    def edges(self) -> Edges:
        parts = []
        for j in self.columns:
            source, target = _substitutions(self.space, j)
            weight = 1 / (len(self.columns) * (self.space.sizes[j] - 1))
            parts.append((source, target, torch.full(source.shape, weight, dtype=torch.float64)))
        return concatenated(parts)


class Uniform(Kernel):
    """All discrete columns are redrawn uniformly, never back to the same state.

    The paper's uniform corruption keeps x with probability 1 − α; those pairs have no gradient, so only the
    other part is drawn: same minimiser, nothing wasted.

    >>> from ctem.spaces import Category
    >>> kernel = Uniform(Space([Category(2)]))
    >>> kernel.compare(torch.zeros(3, 1), torch.Generator().manual_seed(0)).y[..., 0]
    tensor([[1., 1., 1.]])
    """

    def __init__(self, space: Space, columns: Sequence[int | str] | None = None):
        super().__init__(space, chosen_columns(space, columns, space.discretes, "discrete"), "discrete")

    def move(self, x: Tensor, generator: torch.Generator) -> Comparison:
        _, sizes = _lookup(self, x.device)
        old = x[..., self.columns]
        new = old.clone()
        same = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
        while bool(same.any()):  # rejection: at least half of the draws differ
            draw = torch.rand(new[same].shape, generator=generator, device=x.device)
            new[same] = torch.minimum((draw * sizes).floor(), sizes - 1).to(x.dtype)
            same = (new == old).all(-1)
        y = x.clone()
        y[..., self.columns] = new
        return Comparison(y, x.new_zeros(x.shape[:-1]))

    def edges(self) -> Edges:
        states = self.space.states(torch.float64)
        inside, outside = self.columns, [j for j in range(self.space.dim) if j not in self.columns]
        source, target = (
            e.flatten() for e in torch.meshgrid(*[torch.arange(len(states))] * 2, indexing="ij")
        )
        linked = (states[source][:, outside] == states[target][:, outside]).all(-1) & (source != target)
        others = math.prod(self.space.sizes[j] for j in inside) - 1
        weight = torch.full((int(linked.sum()),), 1 / others, dtype=torch.float64)
        return concatenated([(source[linked], target[linked], weight)])


class Grid(Kernel):
    """A step of up to ±reach of one ordinal column: on two columns with reach 1, the paper's 4-neighbour grid.

    >>> from ctem.spaces import Ordinal
    >>> kernel = Grid(Space([Ordinal(9), Ordinal(9)]))
    >>> y, _ = kernel.compare(torch.full((3, 2), 4.0), torch.Generator().manual_seed(0))
    >>> (y - 4).abs().sum(-1)
    tensor([[1., 1., 1.]])
    """

    def __init__(self, space: Space, columns: Sequence[int | str] | None = None, reach: int = 1):
        super().__init__(space, chosen_columns(space, columns, space.ordinals, "ordinal"), "ordinal")
        if reach < 1:
            raise ValueError(f"reach: expected at least 1; got {reach}.")
        self.reach = reach

    def move(self, x: Tensor, generator: torch.Generator) -> Comparison:
        columns, sizes = _lookup(self, x.device)
        shape, r = x.shape[:-1], self.reach
        which = torch.randint(len(self.columns), shape, generator=generator, device=x.device)
        draw = torch.randint(2 * r, shape, generator=generator, device=x.device)
        step = torch.where(draw < r, draw - r, draw - r + 1).to(x.dtype).unsqueeze(-1)  # −r … −1, 1 … r
        column = columns[which].unsqueeze(-1)
        old = x.gather(-1, column)
        new = old + step
        inside = (new >= 0) & (new < sizes[which].unsqueeze(-1))
        new = torch.where(inside, new, old)  # hold at the ends: turning back would make k asymmetric
        return Comparison(x.scatter(-1, column, new), x.new_zeros(x.shape[:-1]))

    def edges(self) -> Edges:
        parts = []
        states = self.space.states(torch.float64)
        for j in self.columns:
            source, target = _substitutions(self.space, j)
            near = (states[source][:, j] - states[target][:, j]).abs() <= self.reach
            weight = torch.full(source.shape, 1 / (2 * self.reach * len(self.columns)), dtype=torch.float64)
            parts.append((source[near], target[near], weight[near]))
        return concatenated(parts)


class Graph(Kernel):
    """Any weighted graph on the states of a finite space: k(j|i) = ω_ij / deg_i with deg_i = Σ_j ω_ij.

    The normalised rule is asymmetric where degrees differ; log_ratio = log deg_j − log deg_i corrects it.

    Arguments:
        space: a finite space; states are numbered as in ``space.states()``.
        edges: state numbers (e, 2), each undirected edge once.
        weights: ω (e,) > 0; all one by default.

    >>> from ctem.spaces import Category
    >>> path = Graph(Space([Category(3)]), torch.tensor([[0, 1], [1, 2]]))
    >>> path.compare(torch.tensor([[0.0], [2.0]]), torch.Generator().manual_seed(0)).y[0, :, 0]
    tensor([1., 1.])
    """

    def __init__(self, space: Space, edges: Tensor, weights: Tensor | None = None):
        super().__init__(space, [] if space.reals else space.discretes, "discrete")
        n = len(space.states())
        weights = torch.ones(len(edges)) if weights is None else weights
        if edges.ndim != 2 or edges.shape[1] != 2 or len(weights) != len(edges):
            raise ValueError(f"edges: expected shape (e, 2), one weight each; got {tuple(edges.shape)}.")
        if bool((edges[:, 0] == edges[:, 1]).any()) or not bool((weights > 0).all()):
            raise ValueError("edges: expected two different states and a weight > 0 each.")
        if int(edges.min()) < 0 or int(edges.max()) >= n:
            raise ValueError(f"edges: expected state numbers in 0 … {n - 1}; got {int(edges.max())}.")
        both = torch.cat([edges, edges.flip(1)]).long()
        order = torch.argsort(both[:, 0], stable=True)
        self.source, self.target = both[order].T.contiguous()
        self.weight = torch.cat([weights, weights]).double()[order]
        self.degree = torch.zeros(n, dtype=torch.float64).index_add(0, self.source, self.weight)
        if not bool((self.degree > 0).all()):
            lonely = int(torch.argmin(self.degree))
            raise ValueError(f"edges: state {lonely} has no edge, so nothing is learned about it.")

    def move(self, x: Tensor, generator: torch.Generator) -> Comparison:
        device = x.device
        index = self.space.index(x)
        cumulative = self.weight.cumsum(0).to(device)
        after = self.degree.cumsum(0).to(device)[index]
        draw = torch.rand(index.shape, generator=generator, dtype=torch.float64, device=device)
        position = torch.searchsorted(cumulative, after - draw * self.degree.to(device)[index])
        new = self.target.to(device)[position.clamp(max=len(cumulative) - 1)]
        log_degree = self.degree.log().to(device)
        ratio = (log_degree[new] - log_degree[index]).to(x.dtype)
        return Comparison(self.space.states(x.dtype, device)[new], ratio)

    def edges(self) -> Edges:
        log_degree = self.degree.log()
        ratio = log_degree[self.target] - log_degree[self.source]
        return Edges(self.source, self.target, self.weight / self.degree[self.source], ratio)


class Redraw(Kernel):
    """One discrete column, drawn at random, is redrawn from a base b, never back to the same value.

    k(v|u) = b_j(v) / (1 − b_j(u)), so log_ratio = log b_j(v)(1 − b_j(v)) − log b_j(u)(1 − b_j(u)).

    >>> from ctem.spaces import Category
    >>> space = Space([Category(3), Category(2)])
    >>> kernel = Redraw(ProductBase(space))
    >>> bool((kernel.compare(torch.zeros(9, 2), torch.Generator().manual_seed(0)).y.sum(-1) > 0).all())
    True
    """

    def __init__(self, base: ProductBase, columns: Sequence[int | str] | None = None):
        space = base.space
        super().__init__(space, chosen_columns(space, columns, space.discretes, "discrete"), "discrete")
        self.base = base

    def move(self, x: Tensor, generator: torch.Generator) -> Comparison:
        columns, _ = _lookup(self, x.device)
        which = torch.randint(len(self.columns), x.shape[:-1], generator=generator, device=x.device)
        column = columns[which].unsqueeze(-1)
        old = x.gather(-1, column)
        log_b = self._log_tables(x)[which]
        weights = log_b.exp().scatter(-1, old.long(), 0.0).flatten(0, -2)
        new = torch.multinomial(weights, 1, generator=generator).reshape(old.shape)
        odds = log_b + torch.log(-torch.expm1(log_b))  # log b(1 − b), also where b is nearly 1
        ratio = (odds.gather(-1, new) - odds.gather(-1, old.long())).squeeze(-1)
        return Comparison(x.scatter(-1, column, new.to(x.dtype)), ratio)

    def edges(self) -> Edges:
        parts = []
        states = self.space.states(torch.float64)
        tables = self._log_tables(states)
        for i, j in enumerate(self.columns):
            source, target = _substitutions(self.space, j)
            log_b = tables[i]
            odds = log_b + torch.log(-torch.expm1(log_b))
            u, v = states[source][:, j].long(), states[target][:, j].long()
            weight = log_b[v].exp() / (1 - log_b[u].exp()) / len(self.columns)
            parts.append((source, target, weight, odds[v] - odds[u]))
        return concatenated(parts)

    def _log_tables(self, like: Tensor) -> Tensor:
        return self.base.log_table.to(like)[self.base.rows[self.columns]]


class Refresh(Kernel):
    """Every discrete column is drawn again from a base b with probability β: reversible with respect to b.

    k(y|x) = ∏_j (1 − β) [x_j = y_j] + β b_j(y_j), so log_ratio = log b(y) − log b(x) over these columns. It is to
    discrete columns what :class:`OrnsteinUhlenbeck` is to real ones; a row may stay as it is.

    Arguments:
        base: b.
        rate: β in (0, 1]; 1 draws all discrete columns from the base.
        columns: the discrete columns to move; all of them by default.

    >>> from ctem.spaces import Category
    >>> kernel = Refresh(ProductBase(Space([Category(3), Category(2)])), rate=0.5)
    >>> kernel.compare(torch.zeros(9, 2), torch.Generator().manual_seed(0)).log_ratio.abs().max()
    tensor(0.)
    """

    def __init__(self, base: ProductBase, rate: float, columns: Sequence[int | str] | None = None):
        space = base.space
        super().__init__(space, chosen_columns(space, columns, space.discretes, "discrete"), "discrete")
        if not 0 < rate <= 1:
            raise ValueError(f"rate: expected β in (0, 1]; got {rate}.")
        self.base, self.rate = base, float(rate)

    def move(self, x: Tensor, generator: torch.Generator) -> Comparison:
        fresh = self.base.sample(x.shape[:-1].numel(), generator).to(x.dtype).view(x.shape)
        moved = torch.tensor([j in self.columns for j in range(self.space.dim)], device=x.device)
        drawn = torch.rand(x.shape, generator=generator, device=x.device) < self.rate
        y = torch.where(drawn & moved, fresh, x)
        log_b = self.base.column_log_prob(torch.stack([y, x]))
        return Comparison(y, torch.where(moved, log_b[0] - log_b[1], 0.0).sum(-1))

    def edges(self) -> Edges:
        states = self.space.states(torch.float64)
        n, log_b = len(states), self.base.column_log_prob(states).double()
        k, ratio = torch.ones(n, n, dtype=torch.float64), torch.zeros(n, n, dtype=torch.float64)
        for j in range(self.space.dim):
            same = (states[:, j, None] == states[:, j]).double()
            if j in self.columns:
                k *= (1 - self.rate) * same + self.rate * log_b[:, j].exp()
                ratio += log_b[:, j] - log_b[:, j, None]
            else:
                k *= same
        source, target = (k.fill_diagonal_(0.0) > 0).nonzero().T
        return Edges(source, target, k[source, target], ratio[source, target])


def _lookup(kernel: Kernel, device: torch.device) -> tuple[Tensor, Tensor]:
    sizes = [kernel.space.sizes[j] for j in kernel.columns]
    return torch.tensor(kernel.columns, device=device), torch.tensor(sizes, device=device)


def _substitutions(space: Space, j: int) -> tuple[Tensor, Tensor]:
    """All ordered pairs of states that differ in column j only."""
    states = space.states(torch.float64)
    index = torch.arange(len(states))
    stride, size = math.prod(space.sizes[j + 1 :]), space.sizes[j]
    sources, targets = [], []
    for shift in range(1, size):
        old = states[:, j].long()
        sources.append(index)
        targets.append(index + ((old + shift) % size - old) * stride)
    return torch.cat(sources), torch.cat(targets)
