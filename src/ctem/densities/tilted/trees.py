r"""Boosted trees as plain arrays: g(x) = bias + Σ_t value(leaf of tree t that x falls into).

A tree is a list of splits. Each has a column, which bins of that column send rows to the right, and which
leaves are left behind on either side. The leaf of a row is what all splits leave over, so that a row needs one look-up
and one "and" for each column, whatever the depth:

    leaf_t(x) = the lowest bit of   ⋀_j  M_j[ bin of x_j, t ],

with M_j[b, t] the leaves of tree t that a row with bin b in column j can still reach (C. Lucchese et al., QuickScorer,
2015). Missing cells have a bin of their own. Nothing in the arrays is an address but the number of a column, which is
checked, so that arrays of a strange file can do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["LEAVES", "Split", "Trees"]

LEAVES = 31  # of a tree, at most: the bits of an int32 but its sign
BINS = 256  # of a column, at most, the one for missing cells included
CELLS = 2**19  # rows times trees that are looked at together


@dataclass(frozen=True)
class Split:
    """One split of a tree that is being built.

    Arguments:
        column: which column decides.
        right: for each of its bins, whether rows go right, (BINS,).
        left_leaves, right_leaves: bits of the leaves on either side.

    >>> Split(0, np.arange(BINS) > 3, 0b01, 0b10).column
    0
    """

    column: int
    right: NDArray[np.bool_]
    left_leaves: int
    right_leaves: int


@dataclass(frozen=True)
class Trees:
    """A sum of trees on rows x (n, d), nan where a cell is missing.

    Arguments:
        cuts: ends of all bins of numbers, one column after the other, increasing (c,), float64.
        counts: how many of them each column has (d,); −1 for a column of codes, each its own bin.
        column: of every split (t, s); padded.
        right: bits of the bins that go right (t, s, BINS / 8), uint8.
        leaves: bits of the leaves left and right of every split (t, s, 2), int32; 0, 0 for padding.
        value: of every leaf (t, LEAVES), float32.
        weight: how many rows of the training fell into every leaf (t, LEAVES), float32.
        bias: a constant.

    >>> split = Split(0, np.arange(BINS) > 0, 0b01, 0b10)
    >>> trees = Trees.build([[0.5]], [[split]], [[-1.0, 2.0]], [[1, 1]], bias=0.0)
    >>> trees(torch.tensor([[0.0], [0.5], [0.6], [torch.nan]]))
    tensor([-1., -1.,  2.,  2.], dtype=torch.float64)
    """

    cuts: Tensor
    counts: Tensor
    column: Tensor
    right: Tensor
    leaves: Tensor
    value: Tensor
    weight: Tensor
    bias: float = 0.0

    @classmethod
    def build(
        cls,
        cuts: Sequence[Sequence[float] | None],
        splits: Sequence[Sequence[Split]],
        values: Sequence[Sequence[float]],
        weights: Sequence[Sequence[float]],
        bias: float,
    ) -> Trees:
        """Trees from their splits.

        Arguments:
            cuts: of every column, None for codes.
            splits: of every tree, the root's first.
            values, weights: of the leaves of every tree.
        """
        count, most = len(splits), max([1, *map(len, splits)])
        column = np.zeros((count, most), np.int16)
        right = np.zeros((count, most, BINS // 8), np.uint8)
        leaves = np.zeros((count, most, 2), np.int32)
        value, weight = np.zeros((2, count, LEAVES), np.float32)
        for t, tree in enumerate(splits):
            for s, split in enumerate(tree):
                column[t, s], right[t, s] = split.column, np.packbits(split.right)
                leaves[t, s] = split.left_leaves, split.right_leaves
            value[t, : len(values[t])], weight[t, : len(weights[t])] = values[t], weights[t]
        flat = [np.asarray(each if each is not None else [], np.float64) for each in cuts]
        counts = np.array([-1 if each is None else len(each) for each in cuts], np.int64)
        arrays = np.concatenate([np.zeros(0), *flat]), counts, column, right, leaves, value, weight
        tensors = map(torch.from_numpy, arrays)
        return cls(**dict(zip(NAMES, tensors, strict=True)), bias=bias)

    @property
    def count(self) -> int:
        """How many trees."""
        return len(self.value)

    @property
    def dim(self) -> int:
        """How many columns a row has."""
        return len(self.counts)

    def __call__(self, x: Tensor) -> Tensor:
        """g(x), float64 of shape (n,)."""
        sums = [self._values(part).sum(1, dtype=torch.float64) for part in self._split(x)]
        return torch.cat(sums) + self.bias

    def shares(self, x: Tensor) -> Tensor:
        """What each column adds to g(x) − centre, float64 of shape (n, d): its splits on the way to the leaves.

        The change of a node's mean at every split on the way belongs to the column that decides there (A. Saabas,
        Interpreting random forests, 2014).
        """
        if not self.count:
            return torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        table = self._on(x.device).added
        bag = torch.nn.functional.embedding_bag
        return torch.cat([bag(self._leaf(part), table, mode="sum").double() for part in self._split(x)])

    @cached_property
    def centre(self) -> float:
        """g on average over the rows of the training."""
        mean = (self.value * self.weight).sum(1, dtype=torch.float64) / self.weight.sum(
            1, dtype=torch.float64
        )
        return self.bias + float(mean.nan_to_num().sum())

    @cached_property
    def added(self) -> Tensor:
        """What each column adds to the value of each leaf, (t · LEAVES, d), float32."""
        places = torch.arange(LEAVES, device=self.value.device)
        inside = ((self.leaves.unsqueeze(-1) >> places) & 1).double()  # (t, s, 2, LEAVES)
        weight, value = self.weight.double()[:, None, None], self.value.double()[:, None, None]
        total, mass = (inside * weight * value).sum(-1), (inside * weight).sum(-1)  # (t, s, 2)
        change = total / mass - (total.sum(-1) / mass.sum(-1)).unsqueeze(-1)
        by_leaf = (inside * change.nan_to_num().unsqueeze(-1)).sum(2)  # (t, s, LEAVES)
        by_column = self.value.new_zeros(self.count, self.dim, LEAVES)
        index = self.column.long().unsqueeze(-1).expand(-1, -1, LEAVES)
        return by_column.scatter_add(1, index, by_leaf.float()).transpose(1, 2).reshape(-1, self.dim)

    def profile(self, x: Tensor, j: int) -> Tensor:
        """g at every bin of column j, the other cells as in x: (n, bins), float64."""
        here = self._on(x.device)
        asking, rest = here.asking(j)
        if not asking.count:
            return here(x).unsqueeze(1).expand(-1, here.bins[j])
        table, sums = asking.tables[j], []
        for part in x.split(max(1, CELLS // (asking.count * len(table)))):
            left = asking._reached(part, (i for i in asking.tables if i != j))
            leaf = _lowest(left.unsqueeze(1) & table) + asking.offsets
            sums.append(asking.flat_value[leaf].sum(-1, dtype=torch.float64))
        return torch.cat(sums) + rest(x).unsqueeze(1)

    def at(self, x: Tensor, j: int, values: Tensor) -> Tensor:
        """g with column j at each of some values (q,), the other cells as in x: (n, q), float64."""
        return self.profile(x, j)[:, self.binned(values, j)]

    def binned(self, x: Tensor, j: int) -> Tensor:
        """The bin of every value of column j, (…,); the last one is for what is missing."""
        here, last = self._on(x.device), self.bins[j] - 1
        if int(here.counts[j]) < 0:
            known = ~x.isnan() & (x >= 0) & (x < last)
            return torch.where(known, x.nan_to_num(), float(last)).long()
        return torch.where(x.isnan(), last, torch.bucketize(x.double().contiguous(), here.ends[j]))

    @cached_property
    def bins(self) -> list[int]:
        """How many bins each column has, with the one for missing cells."""
        return [BINS if count < 0 else count + 2 for count in self.counts.tolist()]

    @cached_property
    def ends(self) -> list[Tensor]:
        """The cuts of every column."""
        return [part.contiguous() for part in self.cuts.split([max(n, 0) for n in self.counts.tolist()])]

    @cached_property
    def tables(self) -> dict[int, Tensor]:
        """M_j of every column that some tree asks, (bins, trees), int32."""
        column, leaves = self.column.cpu().numpy(), self.leaves.cpu().numpy()
        goes = np.unpackbits(self.right.cpu().numpy(), axis=-1).astype(bool)  # (t, s, BINS)
        real = leaves.any(-1)
        tables = {}
        for j in np.unique(column[real]).tolist():
            bins = self.bins[j]
            table = np.full((bins, self.count), -1, np.int32)
            for t, s in zip(*np.nonzero(real & (column == j)), strict=True):
                left, right = leaves[t, s]
                table[:, t] &= ~np.where(goes[t, s, :bins], left, right)
            tables[j] = torch.from_numpy(table).to(self.value.device)
        return tables

    @cached_property
    def flat_value(self) -> Tensor:
        """Values of all leaves, (t · LEAVES,)."""
        return self.value.flatten()

    @cached_property
    def offsets(self) -> Tensor:
        """Where the leaves of each tree begin, (t,)."""
        return torch.arange(self.count, device=self.value.device) * LEAVES

    def asking(self, j: int) -> tuple[Trees, Trees]:
        """The trees that ask column j, and the others, which have the bias; kept."""
        if j not in self._asking:
            there = ((self.column == j) & self.leaves.any(-1)).any(1)
            parts = [{name: getattr(self, name)[some] for name in NAMES[2:]} for some in (there, ~there)]
            asking, rest = (Trees(self.cuts, self.counts, **part) for part in parts)
            self._asking[j] = asking, rest.shifted(self.bias)
        return self._asking[j]

    @cached_property
    def _asking(self) -> dict[int, tuple[Trees, Trees]]:
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """The arrays by name, for a file."""
        return {name: getattr(self, name) for name in NAMES}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], sizes: Sequence[int], bias: float) -> Trees:
        """The trees that ``tensors`` wrote, for rows whose columns have these sizes (0: numbers); others are refused.

        >>> trees = Trees.build([[0.5]], [], [], [], bias=0.0)
        >>> Trees.of_tensors(trees.tensors(), [0], 0.0).count
        0
        """
        kinds = dict(zip(NAMES, KINDS, strict=True))
        if set(tensors) != set(NAMES) or any(tensors[name].dtype != kinds[name] for name in NAMES):
            raise ValueError(f"trees: expected arrays {NAMES} of their types; got {sorted(tensors)}.")
        trees = cls(**{name: tensors[name] for name in NAMES}, bias=bias)
        trees._check(sizes)
        return trees

    def _check(self, sizes: Sequence[int]) -> None:
        count, most = self.column.shape if self.column.ndim == 2 else (-1, -1)
        d = len(sizes)
        shapes = {
            "counts": (d,),
            "right": (count, most, BINS // 8),
            "leaves": (count, most, 2),
            "value": (count, LEAVES),
            "weight": (count, LEAVES),
        }
        for name, shape in shapes.items():
            if tuple(getattr(self, name).shape) != shape:
                raise ValueError(
                    f"trees: expected {name} of shape {shape}; got {tuple(getattr(self, name).shape)}."
                )
        counts = self.counts.tolist()
        fine = all(
            -1 <= n <= BINS - 2 and (n >= 0 or 0 < size < BINS) for n, size in zip(counts, sizes, strict=True)
        )
        if not fine or self.cuts.shape != (sum(max(n, 0) for n in counts),):
            raise ValueError(f"trees: expected at most {BINS - 2} cuts for each column, all of them there.")
        if any(bool((part.diff() <= 0).any()) for part in self.ends) or not bool(self.cuts.isfinite().all()):
            raise ValueError("trees: expected increasing, finite cuts.")
        if self.column.numel() and not 0 <= int(self.column.min()) <= int(self.column.max()) < d:
            raise ValueError(f"trees: expected splits by columns 0 … {d - 1}.")
        if not bool(self.value.isfinite().all()) or not bool(
            (self.weight.isfinite() & (self.weight >= 0)).all()
        ):
            raise ValueError("trees: expected finite values, and weights that are not negative.")
        if not self._each_row_has_a_leaf():
            raise ValueError("trees: expected exactly one leaf for every row.")

    def _each_row_has_a_leaf(self) -> bool:
        """Whether splits share out the leaves of their node: every pair of sides is apart, or one holds the other."""
        leaves = self.leaves.numpy()
        left, right = leaves[..., 0], leaves[..., 1]
        real = np.asarray(leaves.any(-1))
        both = left | right
        if (
            bool((left & right).any())
            or bool((leaves < 0).any())
            or bool((real & ((left == 0) | (right == 0))).any())
        ):
            return False
        # the first split is the root; every other node's leaves are one side of an earlier split
        for t in range(self.count):
            open_nodes = {int(both[t, 0])} if len(both[t]) else set()
            for s in np.flatnonzero(real[t]).tolist():
                if int(both[t, s]) not in open_nodes:
                    return False
                open_nodes.discard(int(both[t, s]))
                open_nodes |= {int(left[t, s]), int(right[t, s])}
            if real[t].any() and (not real[t, 0] or any(node & (node - 1) for node in open_nodes)):
                return False
        return True

    def recut(self, move: Callable[[int, Tensor], Tensor]) -> Trees:
        """The same trees with the cuts of every column j at ``move(j, cuts)``.

        >>> Trees.build([[0.4]], [], [], [], bias=0.0).recut(lambda j, cuts: cuts.round()).cuts
        tensor([0.], dtype=torch.float64)
        """
        moved = [move(j, part) if len(part) else part for j, part in enumerate(self.ends)]
        return replace(self, cuts=torch.cat(moved))

    def shifted(self, constant: float) -> Trees:
        """This plus a constant.

        >>> Trees.build([[0.5]], [], [], [], bias=2.0).shifted(-0.5).bias
        1.5
        """
        return replace(self, bias=self.bias + constant)

    def _on(self, device: torch.device) -> Trees:
        """The same on a device, kept."""
        if self.value.device == device:
            return self
        if device not in self._elsewhere:
            self._elsewhere[device] = Trees(
                **{name: tensor.to(device) for name, tensor in self.tensors().items()}, bias=self.bias
            )
        return self._elsewhere[device]

    @cached_property
    def _elsewhere(self) -> dict[torch.device, Trees]:
        return {}

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise ValueError(f"x: expected shape (n, {self.dim}); got {tuple(x.shape)}.")
        return x.split(max(1, CELLS // max(1, self.count)))

    def _leaf(self, x: Tensor) -> Tensor:
        """Place of every row's leaf of every tree among all leaves, (n, trees)."""
        here = self._on(x.device)
        return _lowest(here._reached(x, here.tables)) + here.offsets

    def _reached(self, x: Tensor, columns: Iterable[int]) -> Tensor:
        """The leaves of every tree that these columns of a row leave over, as bits (n, trees)."""
        left = torch.full((len(x), self.count), -1, dtype=torch.int32, device=x.device)
        for j in columns:
            left &= self.tables[j][self.binned(x[:, j], j)]
        return left

    def _values(self, x: Tensor) -> Tensor:
        return self._on(x.device).flat_value[self._leaf(x)]


NAMES = ("cuts", "counts", "column", "right", "leaves", "value", "weight")
KINDS = (torch.float64, torch.int64, torch.int16, torch.uint8, torch.int32, torch.float32, torch.float32)


def _lowest(bits: Tensor) -> Tensor:
    """Place of the lowest bit of int32 numbers, 0 … 30: the exponent of that bit as a float."""
    lowest = (bits & -bits).float()
    return ((lowest.view(torch.int32) >> 23) - 127).clamp(0, LEAVES - 1).long()
