r"""Which cells are missing, given what the others hold: for samples with gaps as the data have them.

The columns with gaps have an order, those with the fewest first. A small network gives

    P(cell j is missing | complete columns, which earlier cells are missing, what the others of them hold)

so that a drawn row gets its gaps one after the other, each by what is still to be seen of the row. Columns that are
always missing together share one decision. The density itself knows nothing of this: a missing cell stays hidden.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, silu

from ctem.bases import ProductBase
from ctem.densities.anyorder.inputs import Inputs
from ctem.spaces import Category, Space
from ctem.tables.io.cells import Cells
from ctem.tables.io.frame import Frame, TableType
from ctem.tables.schema import Schema
from ctem.training import Recipe, train

__all__ = ["GapNet", "Missingness", "fit_missingness", "gap_groups"]

WIDTH = 32
RECIPE = Recipe(
    steps=600, batch_size=512, learning_rate=5e-3, weight_decay=0.1, ema=0.99, evaluate_every=40, patience=6
)
LEVEL = 1e-3  # noise level of the inputs; there is none
HELD_OUT, MOST_HELD_OUT = 0.1, 5000  # of the rows
Groups = tuple[tuple[str, ...], ...]


class GapNet(nn.Module):
    """Log-odds that each of k groups of cells is missing, given the visible part of a row.

    Arguments:
        base: of the encoded columns and, after them, k flags of two values.
        groups: k.
        width: of the one hidden layer.
        seed: of the initial weights.

    >>> net = GapNet(ProductBase(Space([Category(3), Category(2)])), groups=1)
    >>> net(torch.zeros(4, 2), torch.ones(4, 2, dtype=torch.bool)).shape
    torch.Size([4, 1])
    """

    def __init__(self, base: ProductBase, groups: int, width: int = WIDTH, seed: int = 0):
        super().__init__()
        self.base, self.inputs = base, Inputs(base)
        size, generator = self.inputs.size, torch.Generator().manual_seed(seed)
        first = (2 * torch.rand(size, width, generator=generator) - 1) / math.sqrt(size)
        self.first, self.bias = nn.Parameter(first), nn.Parameter(torch.zeros(width))
        self.last = nn.Parameter(torch.zeros(width, groups))
        rows = base.rows[base.space.dim - groups :]
        self.odds = nn.Parameter(base.log_table[rows, 1] - base.log_table[rows, 0])

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """Of rows x (n, d + k) without nan and their visible sets: (n, k)."""
        seen = self.inputs(x, visible, torch.full_like(x[:, :1], LEVEL)).inputs
        return silu(seen @ self.first + self.bias) @ self.last + self.odds


class Missingness:
    """Which cells of drawn rows are missing.

    Arguments:
        schema: the columns.
        groups: columns that are missing together, in the order in which the network decides.
        net: the network.

    >>> from ctem.tables.io.frame import read_frame
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> X[X[:, 0] > 0, 1] = np.nan  # the second column is missing where the first is positive
    >>> frame = read_frame(X)
    >>> schema = Schema.fit(frame)
    >>> made = fit_missingness(schema, frame, seed=0)
    >>> drawn = {"x0": frame.columns["x0"], "x1": replace(frame.columns["x1"], missing=np.zeros(200, bool))}
    >>> holes = made.applied(frame.table_type, drawn, torch.Generator().manual_seed(0))["x1"].missing
    >>> bool((holes == (X[:, 0] > 0)).mean() > 0.9)
    True
    """

    def __init__(self, schema: Schema, groups: Groups, net: GapNet):
        self.schema, self.groups, self.net = schema, groups, net.eval()
        self.visible = visible_before(schema, groups)

    def applied(
        self,
        table_type: TableType,
        columns: Mapping[str, Cells],
        generator: torch.Generator,
        kept: Collection[str] = (),
    ) -> dict[str, Cells]:
        """The columns of drawn rows with gaps.

        Arguments:
            table_type: of the table that was fitted.
            columns: name → cells, without gaps.
            generator: of the draws, on any device.
            kept: columns without gaps, because they are given.
        """
        x = self.schema.encode(Frame(table_type, dict(columns))).x
        seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
        on_cpu = torch.Generator().manual_seed(seed)
        flags = torch.cat([self._draw(part, on_cpu, kept) for part in x.split(2**13)]).numpy()
        out = dict(columns)
        for group, gone in zip(self.groups, flags.T, strict=True):
            for name in (name for name in group if name not in kept):
                out[name] = replace(out[name], missing=out[name].missing | gone)
        return out

    def as_in(self, frame: Frame, drawn: Frame, generator: torch.Generator) -> Frame:
        """Drawn rows with gaps in the columns in which a table has some, to compare them with it."""
        whole = [name for name, cells in frame.columns.items() if not cells.missing.any()]
        return Frame(drawn.table_type, self.applied(drawn.table_type, drawn.columns, generator, whole))

    def _draw(self, x: Tensor, generator: torch.Generator, kept: Collection[str]) -> Tensor:
        """Which groups are missing, one after the other, (n, k)."""
        owner = dict(zip(self.schema.columns, self.schema.owner, strict=True))
        rows = torch.cat([x, x.new_zeros(len(x), len(self.groups))], 1)
        for g, group in enumerate(self.groups):
            with torch.no_grad():
                odds = self.net(rows.nan_to_num(), self.visible[g] & ~rows.isnan())[:, g]
            gone = torch.rand(len(x), generator=generator) < odds.sigmoid()
            gone &= not all(name in kept for name in group)
            rows[:, x.shape[1] + g] = gone.to(rows.dtype)
            for j in (j for name in group if name not in kept for j in owner[name]):
                rows[gone, j] = math.nan
        return rows[:, x.shape[1] :] == 1


def fit_missingness(
    schema: Schema,
    frame: Frame,
    seed: int,
    weights: Tensor | None = None,
    max_steps: int | None = None,
    deadline: float | None = None,
) -> Missingness | None:
    """Learn where the cells of a table are missing; None if none is.

    Arguments:
        schema: the columns.
        frame: the rows.
        seed: of everything random.
        weights: of the rows (n,).
        max_steps: of training, at most.
        deadline: end soon after this moment of ``time.perf_counter``.

    >>> from ctem.tables.io.frame import read_frame
    >>> frame = read_frame(np.array([[1.0], [2.0], [3.0]]))
    >>> fit_missingness(Schema.fit(frame), frame, seed=0) is None
    True
    """
    groups = gap_groups(schema, frame.columns)
    if not groups:
        return None
    flags = np.stack([frame.columns[group[0]].missing for group in groups], 1)
    x = torch.cat([schema.encode(frame).x, torch.from_numpy(flags).float()], 1)
    net = GapNet(ProductBase.fit(space_with_flags(schema, groups), x), len(groups), seed=seed)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    count = min(MOST_HELD_OUT, int(HELD_OUT * len(x)))
    held, kept = order[:count], order[count:]
    steps = min(RECIPE.steps, max_steps or RECIPE.steps)
    recipe = replace(RECIPE, seed=seed, steps=steps, evaluate_every=min(RECIPE.evaluate_every, steps))
    train(
        net,
        _Loss(visible_before(schema, groups), len(groups)),
        x[kept],
        recipe if count else replace(recipe, patience=None),
        held_out=x[held].repeat(max(1, 500 // count), 1) if count else None,
        weights=None if weights is None else weights[kept].float(),
        deadline=deadline,
    )
    return Missingness(schema, groups, net)


class _Loss:
    """−log P of one flag of every row, chosen at random, given what is visible before it."""

    def __init__(self, visible: Tensor, groups: int):
        self.visible, self.groups = visible, groups

    def __call__(self, net: nn.Module, x: Tensor, generator: torch.Generator) -> Tensor:
        asked = torch.randint(self.groups, (len(x), 1), generator=generator)
        odds = net(x.nan_to_num(), self.visible[asked.squeeze(1)] & ~x.isnan()).gather(1, asked)
        return binary_cross_entropy_with_logits(odds, x[:, -self.groups :].gather(1, asked))


def gap_groups(schema: Schema, columns: Mapping[str, Cells]) -> Groups:
    """The columns with gaps that a sample has, those of the same gaps together, the fewest gaps first.

    >>> from ctem.tables.io.frame import read_frame
    >>> frame = read_frame(np.array([[1.0, np.nan, np.nan, 2.0], [2.0, 5.0, 4.0, np.nan], [3.0, 1.0, 2.0, np.nan]]))
    >>> gap_groups(Schema.fit(frame), frame.columns)
    (('x1', 'x2'), ('x3',))
    """
    same: dict[bytes, list[str]] = {}
    for name, cells in columns.items():
        if name not in schema.left_out and cells.missing.any() and not cells.missing.all():
            same.setdefault(cells.missing.tobytes(), []).append(name)
    return tuple(map(tuple, sorted(same.values(), key=lambda group: int(columns[group[0]].missing.sum()))))


def space_with_flags(schema: Schema, groups: Sequence[Sequence[str]]) -> Space:
    """The encoded columns, and after them a flag for every group."""
    return Space([*schema.space.columns, *(Category(2) for _ in groups)])


def visible_before(schema: Schema, groups: Sequence[Sequence[str]]) -> Tensor:
    """What may be seen when a group is decided: complete columns, earlier groups and their flags, (k, d + k)."""
    owner = dict(zip(schema.columns, schema.owner, strict=True))
    late = [j for group in groups for name in group for j in owner[name]]
    visible = torch.zeros(len(groups), schema.space.dim + len(groups), dtype=torch.bool)
    visible[:, [j for j in range(schema.space.dim) if j not in late]] = True
    for g, group in enumerate(groups):
        visible[g + 1 :, [schema.space.dim + g, *(j for name in group for j in owner[name])]] = True
    return visible
