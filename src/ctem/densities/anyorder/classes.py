r"""Latent classes: a closed form that few rows of many labels suffice for, which networks are mixed with.

Within a class k the columns are independent, but for groups of bits of which no row has more than one set, as where a
label was written as several bits: each group is one label. So every conditional is known exactly,

    ρ(x_j | x_V) = Σ_k r_k ρ_k(x_j | x_V),      r_k ∝ π_k ∏_G ρ_k(x_{V ∩ G}),

whatever is visible. There are as many such mixtures as networks, each found by expectation maximisation on the rows
that its network learns from, and their conditionals are averaged as the networks' are. Many classes that are drawn
towards the margins and few rounds are better than few classes: what matters is the mean of the mixtures.

Reference: B. Everitt, D. Hand, Finite mixture distributions, 1981.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, pad

from ctem.bases import ProductBase
from ctem.spaces import Space

__all__ = ["LatentClasses", "exclusive_groups", "few_rows_of_many_labels"]

CLASSES = 80  # of a mixture, at most
ROWS = 4  # for every class, at least
TOWARDS = 5.0  # rows of the margin in every class
ROUNDS = 15  # of expectation maximisation
MANY, FEW = 50, 5000  # columns from which on, and rows up to which, there are latent classes
EXPECTED = 20.0  # rows that should have both of two bits, if none has and they exclude each other
LARGEST = 6  # bits of a group, at most
LEAST = 1e-6  # probability that nothing of a group is set, where rounding leaves less
ODD = 1e-6  # share of the margin in a conditional: what no row has is not impossible

Groups = Sequence[Sequence[int]]


def few_rows_of_many_labels(space: Space, x: Tensor) -> bool:
    """Whether rows x (n, d) are a table that latent classes are for: complete, of labels, wide and short.

    >>> from ctem.spaces import Category
    >>> few_rows_of_many_labels(Space([Category(2)] * 60), torch.zeros(100, 60))
    True
    """
    wide = space.dim > MANY and len(x) <= FEW
    return wide and not space.reals and not bool(x.isnan().any())


def exclusive_groups(space: Space, x: Tensor) -> list[list[int]]:
    """Every column in one group: bits that are never set together though by chance many rows would have both.

    >>> from ctem.spaces import Category
    >>> x = torch.eye(3).repeat(100, 1)
    >>> exclusive_groups(Space([Category(2)] * 3), x)
    [[0, 1, 2]]
    """
    bits = torch.tensor([k == 2 for k in space.sizes], device=x.device)
    on = torch.where(bits, x, 0.0).double()
    count = on.sum(0)
    apart = ((on.T @ on == 0) & (torch.outer(count, count) > EXPECTED * len(x))).cpu()
    groups, left = list[list[int]](), list(range(space.dim))
    while left:
        group = [left.pop(0)]
        for j in [j for j in left if apart[group[0], j]]:
            if len(group) < LARGEST and all(apart[i, j] for i in group):
                group.append(j)
                left.remove(j)
        groups.append(group)
    return groups


class LatentClasses(nn.Module):
    """Mixtures of independent groups of discrete columns, one for each network.

    A *cell* is a value of a column but its first; at most one cell of a group is set. What is visible of a group has a
    cell that is set, or is a set of its columns that have none: each of these *states* has a probability in a class.

    Arguments:
        base: the margins.
        groups: of ``exclusive_groups``.
        weight: of the classes, (members, classes).
        chance: of every cell in every class, (members, classes, cells).

    >>> from ctem.spaces import Category
    >>> base = ProductBase(Space([Category(2)] * 2))
    >>> chance = torch.tensor([[[0.9, 0.9], [0.1, 0.1]]])
    >>> classes = LatentClasses(base, [[0], [1]], torch.full((1, 2), 0.5), chance)
    >>> x, visible = torch.ones(1, 1, 2), torch.tensor([[[True, False]]])
    >>> classes.log_probs(x, visible, 1, slice(None)).exp()[0, 0, 1]  # .9 · .9 + .1 · .1
    tensor(0.8200)
    """

    weight: Tensor
    chance: Tensor
    table: Tensor
    columns: Tensor
    start: Tensor
    first: Tensor
    bit: Tensor

    def __init__(self, base: ProductBase, groups: Groups, weight: Tensor, chance: Tensor):
        super().__init__()
        self.base, self.space, self.groups = base, base.space, [list(group) for group in groups]
        d, widest = self.space.dim, max(map(len, groups))
        self.starts = start = _starts(self.space)
        none = [_none_set(chance, group, start) for group in groups]
        first = [0, *accumulate(2 ** len(group) for group in groups)]
        self.states, self.group = first.pop(), {j: g for g, group in enumerate(groups) for j in group}
        bit = {j: 2**i for group in groups for i, j in enumerate(group)}
        table = torch.cat([*none, chance], -1)  # (members, classes, states and cells)
        found = {
            "weight": weight,
            "chance": chance,
            "table": table.log().mT.contiguous(),
            "columns": torch.tensor([[*group, *[d] * (widest - len(group))] for group in groups]),
            "start": torch.tensor(start[:-1]),
            "first": torch.tensor(first),
            "bit": torch.tensor([bit[j] for j in range(d)]),
        }
        for name, value in found.items():
            self.register_buffer(name, value.to(base.log_table.device), persistent=False)

    @classmethod
    def fit(
        cls, base: ProductBase, x: Tensor, weights: Tensor, heard: Sequence[bool], seed: int
    ) -> LatentClasses:
        """Those of complete rows x (n, d), which count as ``weights`` (members, n) say.

        A column that is not heard has its margin in every class.

        >>> from ctem.spaces import Category
        >>> x = torch.tensor([[0.0] * 9, [1.0] * 9]).repeat(200, 1)
        >>> base, visible = ProductBase(Space([Category(2)] * 9)), torch.arange(9).expand(1, 2, 9) < 8
        >>> classes = LatentClasses.fit(base, x, torch.ones(1, 400), [True] * 9, 0)
        >>> bool(classes.log_probs(x[None, :2], visible, 8, slice(None))[0].diagonal().min() > -0.3)
        True
        """
        listens, generator = torch.tensor(heard, device=x.device), torch.Generator().manual_seed(seed)
        groups = exclusive_groups(base.space, torch.where(listens, x, 0.0))
        cells = _Cells.of(base.space, groups, x, listens)
        found = [cells.mixture(weight.to(x.dtype), generator) for weight in weights]
        return cls(base, groups, *(torch.stack(parts) for parts in zip(*found, strict=True)))

    def log_conditionals(self, x: Tensor, visible: Tensor) -> Tensor:
        """log ρ(x_j | x_V) of every column of rows x (members, n, d) by every member; 0 for a visible one."""
        found, out = self.weighed(x, visible, slice(None)), torch.zeros_like(x)
        for j in (~visible).flatten(0, 1).any(0).nonzero().flatten().tolist():
            log_p = self.of_column(*found, j, slice(None)).gather(-1, x[..., j, None].long()).squeeze(-1)
            out[..., j] = torch.where(visible[..., j], 0.0, log_p)
        return out

    def log_probs(self, x: Tensor, visible: Tensor, j: int, member: slice) -> Tensor:
        """log ρ(v | x_V) of every value v of a hidden column j by some members, (members, n, k).

        Rows (1, n, d) are for all of them, rows (members, n, d) each member's own.
        """
        return self.of_column(*self.weighed(x, visible, member), j, member)

    def weighed(self, x: Tensor, visible: Tensor, member: slice) -> tuple[Tensor, Tensor]:
        """The state of each group, (1 or members, n, groups), and log r of the classes, (members, n, classes)."""
        is_set = visible & (x > 0)
        cell = torch.where(is_set, self.states + self.start + x.long() - 1, -1)
        none = torch.where(visible, self.bit, 0)
        cell = pad(cell, (0, 1), value=-1)[..., self.columns].amax(-1)
        state = torch.where(cell >= 0, cell, self.first + pad(none, (0, 1))[..., self.columns].sum(-1))
        table = self.table[member]
        offset = torch.arange(len(table), device=x.device).view(-1, 1, 1) * table.shape[1]
        at = (state + offset).flatten(0, 1)
        total = embedding_bag(at, table.flatten(0, 1), mode="sum").unflatten(0, (len(table), -1))
        return state, (total + self.weight[member].log().unsqueeze(1)).log_softmax(-1)

    def of_column(self, state: Tensor, log_r: Tensor, j: int, member: slice) -> Tensor:
        """``log_probs`` by what ``weighed`` has found.

        A column whose group has a cell that is set has its first value. But what no row has is not impossible.
        """
        state, table, start = state[..., self.group[j]], self.table[member], self.states + self.starts[j]
        which = torch.arange(len(table), device=state.device).unsqueeze(1)
        decided, none = state >= self.states, torch.where(state >= self.states, 0, state)
        after = torch.where(decided, none, none + self.bit[j])
        # (members, 1, classes, k − 1)
        own = table[:, start : start + self.space.sizes[j] - 1].mT.unsqueeze(1)
        share = log_r - table[which, none]
        first = (share + table[which, after]).logsumexp(-1, keepdim=True)
        other = (share.unsqueeze(-1) + own).logsumexp(-2)
        rest = torch.full_like(other, -math.inf)
        sure = torch.cat([torch.zeros_like(first), rest], -1)
        log_p = torch.where(decided.unsqueeze(-1), sure, torch.cat([first, other], -1))
        log_b = self.base.log_table[self.space.discretes.index(j), : self.space.sizes[j]]
        return torch.logaddexp(log_p + math.log1p(-ODD), log_b + math.log(ODD))


def _starts(space: Space) -> list[int]:
    """The first cell of each column, and the number of all."""
    return [0, *accumulate(k - 1 for k in space.sizes)]


def _none_set(chance: Tensor, group: Sequence[int], start: Sequence[int]) -> Tensor:
    """The probability that no column of a subset of a group is set, (members, classes, subsets).

    A subset is a number, whose bits are the columns.
    """
    set_ = torch.stack([chance[..., start[j] : start[j + 1]].sum(-1) for j in group], -1)
    shown = torch.arange(2 ** len(group)).unsqueeze(0) >> torch.arange(len(group)).unsqueeze(1) & 1
    hidden = (1 - shown).to(chance)
    return set_ @ hidden + (1 - set_.sum(-1, keepdim=True)).clamp_min(LEAST)


class _Cells(NamedTuple):
    """Rows as cells, from which a mixture is learned."""

    cells: Tensor  # (n, cells): which are set
    among: Tensor  # (cells, groups): the group of each
    margin: Tensor  # (cells,)
    heard: Tensor  # (cells,)

    @classmethod
    def of(cls, space: Space, groups: Groups, x: Tensor, heard: Tensor) -> _Cells:
        """Those of rows x (n, d)."""
        device = x.device
        values = torch.cat([torch.arange(1, k) for k in space.sizes]).to(device)
        column = torch.tensor([j for j, k in enumerate(space.sizes) for _ in range(1, k)], device=device)
        group = {j: g for g, some in enumerate(groups) for j in some}
        owner = torch.tensor([group[j] for j in range(space.dim)], device=device)[column]
        cells = (x[:, column] == values).to(x.dtype)
        among = (owner.unsqueeze(1) == torch.arange(len(groups), device=device)).to(x.dtype)
        margin = (cells.sum(0) + 0.5) / (len(x) + 0.5 * (1 + among.sum(0)[owner]))
        return cls(cells, among, margin, heard[column])

    def mixture(self, weight: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Weights (classes,) and chances (classes, cells), by expectation maximisation from random shares."""
        n, count = len(self.cells), max(1, min(CLASSES, len(self.cells) // ROWS))
        start = torch.empty(n, count).exponential_(generator=generator).square_().to(self.cells)
        share, none = start / start.sum(1, keepdim=True), 1 - self.cells @ self.among
        for _ in range(ROUNDS):
            counted = share * weight.unsqueeze(1)
            rows = counted.sum(0)
            chance = (counted.T @ self.cells + TOWARDS * self.margin) / (rows + TOWARDS).unsqueeze(1)
            chance = torch.where(self.heard, chance, self.margin)
            pi = (rows + 1) / (rows + 1).sum()
            rest = (1 - chance @ self.among).clamp_min(LEAST)
            share = (self.cells @ chance.log().T + none @ rest.log().T + pi.log()).softmax(1)
        return pi, chance
