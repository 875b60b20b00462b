"""The network behind the any-order density: every one-column conditional of any visible set, by several members."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, pad

from ctem.bases import ProductBase
from ctem.densities.anyorder.classes import LatentClasses
from ctem.densities.anyorder.inputs import Inputs, Prediction
from ctem.densities.anyorder.labels import LabelHead
from ctem.densities.anyorder.layers import Body, Linear, affine, cached_rows
from ctem.densities.anyorder.numbers import NumberHead
from ctem.densities.anyorder.ties import COEFFICIENTS, FormulaValues, TiedParts, Ties
from ctem.densities.anyorder.worth import Worth

__all__ = ["AnyOrderNet", "Clear", "Trunk"]

MANY = 32  # values of discrete columns from which on their weights are summed rather than multiplied


class Clear(NamedTuple):
    """Rows without noise, (members, n, d), and the cells of their ties (``Ties.all_ends``).

    >>> Clear(torch.zeros(1, 4, 2), torch.zeros(1, 4, 1, 1, 2)).x.shape
    torch.Size([1, 4, 2])
    """

    x: Tensor
    ends: Tensor  # (members, n, targets, slots, 2)


class Trunk(NamedTuple):
    """What a network makes of rows of which some columns are visible, before a column is asked for.

    >>> trunk = Trunk(torch.zeros(2, 5, 8), torch.zeros(1, 5, 3), torch.ones(1, 5, 3), None)
    >>> [part.h.shape[1] for part in trunk.split([1, 4])]
    [1, 4]
    """

    h: Tensor  # (members, n, width): the last layer
    mean: Tensor  # (1 or members, n, reals): the linear prediction
    spread: Tensor  # (1 or members, n, reals)
    formulas: FormulaValues | None  # by the ties, of all rows, member after member

    def split(self, sizes: Sequence[int]) -> list[Trunk]:
        """Those of so many rows each, which are for all members."""
        ends = accumulate(sizes, initial=0)
        return [self._rows(slice(*pair)) for pair in pairwise(ends)]

    def _rows(self, part: slice) -> Trunk:
        formulas = None if self.formulas is None else self.formulas.rows(part)
        return Trunk(self.h[:, part], self.mean[:, part], self.spread[:, part], formulas)


class Heads(nn.Module):
    """What training asks a network for: the conditionals of the columns that are heard, which have the other outputs.

    >>> from ctem.spaces import Category, Real, Space
    >>> heads = Heads(ProductBase(Space([Real(), Category(3), Real()])), (True, False, True), 4)
    >>> heads.reals.tolist(), heads.of_labels.tolist(), heads.of_numbers.tolist()
    ([0, 2], [], [0, 1, 2, 3, 4, 5, 6, 7])
    """

    reals: Tensor  # columns that are real
    places: Tensor  # of them among all real columns
    of_labels: Tensor  # their outputs
    of_numbers: Tensor

    def __init__(self, base: ProductBase, heard: Sequence[bool], size: int):
        super().__init__()
        sizes, reals, device = base.space.sizes, base.space.reals, base.log_table.device
        self.labels = LabelHead(base, heard)
        owner = [j for j, k in enumerate(sizes) for _ in range(1, k)]
        places = [place for place, j in enumerate(reals) if heard[j]]
        found = {
            "reals": [reals[place] for place in places],
            "places": places,
            "of_labels": [i for i, j in enumerate(owner) if heard[j]],
            "of_numbers": [place * size + i for place in places for i in range(size)],
        }
        for name, values in found.items():
            self.register_buffer(
                name, torch.tensor(values, dtype=torch.long, device=device), persistent=False
            )


class AnyOrderNet(nn.Module):
    """ρ(x_j | x_V) of every column j and any visible set V, by several networks that are trained as one program.

    A residual network sees the visible columns and gives the coefficients of all conditionals: log-probabilities of
    values (``LabelHead``) and densities around a prediction (``NumberHead``). Before training every conditional is that
    of the base, around a linear prediction. Tensors have the members as their first axis; a method that is asked for
    one ``member`` takes rows without it. How far the network is believed is in ``worth``: its answers are its own, and
    ``AtLevel`` mixes them with the margins, or with latent ``classes``; but it does not see a column that is not heard.

    Arguments:
        base: the base.
        width: units per layer.
        blocks: residual blocks.
        members: independent networks.
        harmonics: sines and cosines of each real and ordinal value, for fine structure.
        dropout: within the blocks.
        correlation: of the scores (``Inputs.correlation_among``), for linear predictions among them.
        ties: columns that repeat others, or add up (``ctem.densities.anyorder.ties``).
        seed: of the initial weights.

    >>> from ctem.spaces import Category, Real, Space
    >>> net = AnyOrderNet(ProductBase(Space([Real(), Category(2)])), width=8, blocks=1, members=3)
    >>> x, hidden = torch.tensor([[0.0, 1.0]]).expand(3, 1, 2), torch.zeros(3, 1, 2, dtype=torch.bool)
    >>> net.log_conditionals(x, hidden, torch.full((3, 1, 1), 1e-3))[0, 0, 1].exp()  # untrained: the base
    tensor(0.5000, grad_fn=<ExpBackward0>)
    """

    reals: Tensor
    unheard: Tensor | None
    classes: LatentClasses | None
    heads: Heads | None  # where some columns are not heard

    def __init__(
        self,
        base: ProductBase,
        *,
        width: int = 128,
        blocks: int = 2,
        members: int = 1,
        harmonics: int = 1,
        dropout: float = 0.0,
        correlation: Tensor | None = None,
        ties: Ties | None = None,
        seed: int = 0,
    ):
        super().__init__()
        self.base, self.space, self.members = base, base.space, members
        self.options: dict[str, Any] = {
            "width": width,
            "blocks": blocks,
            "members": members,
            "harmonics": harmonics,
            "dropout": dropout,
        }
        generator = torch.Generator().manual_seed(seed)
        self.inputs = Inputs(base, harmonics, correlation)
        self.labels, self.numbers = LabelHead(base), NumberHead()
        self.ties, self.classes, self.heads = ties, None, None
        flags = 0 if ties is None else ties.size
        self.first = Linear(members, self.inputs.size + flags, width, generator)
        self.body = Body(members, width, blocks, dropout, generator)
        self.of_labels = Linear(members, width, len(self.labels.owner), None)
        self.of_numbers = Linear(members, width, len(self.space.reals) * self.numbers.size, None)
        if ties is not None:
            self.of_ties = Linear(members, width, ties.size * COEFFICIENTS, None)
        self.register_buffer("reals", torch.tensor(self.space.reals, dtype=torch.long), persistent=False)
        self.register_buffer("unheard", None, persistent=False)
        self.to(base.log_table.device)
        self.believe(Worth.of_all(self.space.dim))

    def believe(self, worth: Worth) -> None:
        """From now on, be worth this: columns that are not heard are hidden from the network."""
        device = self.base.log_table.device
        self.worth = worth
        some = not all(worth.heard)
        self.unheard = ~torch.tensor(worth.heard, device=device) if some else None
        self.heads = Heads(self.base, worth.heard, self.numbers.size) if some else None

    def log_conditionals(
        self, x: Tensor, visible: Tensor, level: Tensor, clear: Clear | None = None
    ) -> Tensor:
        """log ρ(x_j | x_V) of every column by every member, (members, n, d); it means nothing for a visible one.

        Arguments:
            x: rows (members, n, d), without nan.
            visible: V (members, n, d).
            level: noise level of real columns (members, n, 1).
            clear: the rows before noise came in, by which ties are judged; x itself when left out.
        """
        if self.ties is None:
            return self._log_conditionals(x, *self._hidden(x, visible, level, slice(None)))
        if clear is None:
            clear = Clear(x, self.ties.all_ends(x.flatten(0, 1)).unflatten(0, x.shape[:2]))
        known = self.ties.known(clear.x, visible) & ~clear.ends[..., 0].isnan()
        t = clear.x[..., self.ties.reals]
        holding = known & (t.unsqueeze(-1) >= clear.ends[..., 0]) & (t.unsqueeze(-1) <= clear.ends[..., 1])
        holding = holding & visible[..., self.ties.reals].unsqueeze(-1)
        h, prediction = self._hidden(x, visible, level, slice(None), holding.flatten(-2).to(x.dtype))
        out = self._log_conditionals(x, h, prediction)
        parts = self.ties.coefficients(self.of_ties(h, slice(None)))
        targets = self.ties.reals
        log_p = TiedParts(parts, known, clear.ends).log_prob(out[..., targets], t, x[..., targets])
        return out.index_copy(-1, targets, log_p)

    def parted(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows for training, and the cells of their ties, which are behind the columns."""
        return (x, None) if self.ties is None else self.ties.parted(x, self.space.dim)

    def _log_conditionals(self, x: Tensor, h: Tensor, prediction: Prediction) -> Tensor:
        """Without ties."""
        if self.heads is not None:
            return self._of_heard(x, h, prediction, self.heads)
        out = torch.zeros_like(x)
        if len(self.labels.owner):
            score = self.of_labels.stretched(h, 1 / self.inputs.spread, self.labels.gain)
            out = self.labels.log_prob_of_scores(x, score)
        if self.space.reals:
            t = x.index_select(-1, self.reals)
            log_p = self._log_prob_of_numbers(t, h, *(part.view_as(t) for part in prediction))
            out = out.index_copy(-1, self.reals, log_p)
        return out

    def _of_heard(self, x: Tensor, h: Tensor, prediction: Prediction, heads: Heads) -> Tensor:
        """The same, without a look at the outputs of columns that are not heard: these have their margins."""
        out = torch.zeros_like(x)
        if len(heads.labels.owner):
            scale = 1 / self.inputs.spread[heads.of_labels]
            score = self.of_labels.stretched(h, scale, heads.labels.gain, heads.of_labels)
            out = heads.labels.log_prob_of_scores(x, score)
        if len(heads.reals):
            t = x.index_select(-1, heads.reals)
            mean, spread = (part.index_select(-1, heads.places).view_as(t) for part in prediction)
            log_p = self._log_prob_of_numbers(t, h, mean, spread, heads.of_numbers)
            out = out.index_copy(-1, heads.reals, log_p)
        return torch.where(cast("Tensor", self.unheard), self.base.column_log_prob(x), out)

    def _log_prob_of_numbers(
        self, t: Tensor, h: Tensor, mean: Tensor, spread: Tensor, outputs: Tensor | None = None
    ) -> Tensor:
        head, count = self.numbers, t.shape[-1]
        scale, start = (1 / head.scale).repeat(count), head.start.repeat(count)
        scaled = self.of_numbers.stretched_columns(h, scale, start, outputs).unflatten(1, (count, -1))
        return head.log_prob_of_scaled(t.mT, scaled, mean.mT, spread.mT).mT

    def formula_values(self, x: Tensor, visible: Tensor) -> FormulaValues | None:
        """What formulas give for rows x (n, d) of which some columns are visible (n, d); None without any."""
        return None if self.ties is None else self.ties.formula_values(x, visible)

    def trunk(
        self, x: Tensor, visible: Tensor, level: float, member: slice, formulas: FormulaValues | None = None
    ) -> Trunk:
        """What some members make of rows at one level.

        Rows (1, n, d) are for all of them, rows (members, n, d) each member's own; ``formulas`` has them one after the
        other.
        """
        holding = None
        if formulas is not None:
            holding = formulas.holding.flatten(1).to(x.dtype).unflatten(0, x.shape[:2])
        h, prediction = self._hidden(x, visible, torch.full_like(x[..., :1], level), member, holding)
        mean, spread = (part.unflatten(0, x.shape[:2]) for part in prediction)
        return Trunk(h, mean, spread, formulas)

    def label_log_probs(self, trunk: Trunk, j: int, member: slice) -> Tensor:
        """log ρ(v | x_V) of every value v of a discrete column j by some members: (members, n, k)."""
        values = self.labels.slices[j]
        return self.labels.column(self.of_labels(trunk.h, member, values) / self.inputs.spread[values], j)

    def number_coefficients(
        self, trunk: Trunk, j: int, member: slice
    ) -> tuple[Tensor, Tensor, Tensor, TiedParts | None]:
        """Coefficients (members, n, size), mean and spread (1 or members, n) of the density of a real column j.

        Last come the tied parts of the column, if it has any.
        """
        place, size = self.space.reals.index(j), self.numbers.size
        coefficients = self.of_numbers(trunk.h, member, slice(place * size, (place + 1) * size))
        tied = None if trunk.formulas is None else self._tied(trunk.h, trunk.formulas, j, member)
        return coefficients, trunk.mean[..., place], trunk.spread[..., place], tied

    def _tied(self, h: Tensor, formulas: FormulaValues, j: int, member: slice) -> TiedParts | None:
        ties = self.ties
        if ties is None or j not in ties.targets:
            return None
        size, g = ties.slots * COEFFICIENTS, ties.targets.index(j)
        out = self.of_ties(h, member, slice(g * size, (g + 1) * size))
        coefficients = ties.coefficients(out, slice(g, g + 1)).squeeze(-3)
        ends = ties.ends(formulas, j)
        known = formulas.known[:, g] & ~ends[..., 0].isnan()
        return TiedParts(coefficients, known, ends)

    def _hidden(
        self, x: Tensor, visible: Tensor, level: Tensor, member: slice, holding: Tensor | None = None
    ) -> tuple[Tensor, Prediction]:
        """The last layer (members, n, width), and the predictions of all rows, member after member.

        Rows (1, n, d) are for all members. ``holding``: which ties hold among what is visible. A column that is
        not heard is hidden.
        """
        visible = visible if self.unheard is None else visible & ~self.unheard
        h, prediction = self._first(x, visible, level, member, holding)
        return self.body(h, member), prediction

    def _first(
        self, x: Tensor, visible: Tensor, level: Tensor, member: slice, holding: Tensor | None
    ) -> tuple[Tensor, Prediction]:
        """The first layer (members, n, width), and the predictions."""
        flat = x.flatten(0, 1), visible.flatten(0, 1)
        sparse = not x.is_cuda and len(self.labels.owner) >= MANY
        seen, prediction = self.inputs(*flat, level.flatten(0, 1), indicators=not sparse)
        several = len(self.first.bias[member]), -1, -1
        seen = seen.unflatten(0, x.shape[:2])
        seen = (seen if holding is None else torch.cat([seen, holding], -1)).expand(several)
        if not sparse:
            return self.first(seen, member), prediction
        values = self.inputs.values_shown(*flat).unflatten(0, x.shape[:2]).expand(several)
        return self._summed(seen, values, member), prediction

    def _summed(self, seen: Tensor, values: Tensor, member: slice) -> Tensor:
        """The first layer from the inputs but the indicators, and the values that are shown, (members, n, …) each.

        Of a column's indicators one is not zero, so that their product with the weights is a sum of a few rows: on a
        CPU far less work than the product. Equal to it but for rounding.
        """
        weight, place = self.first.weight[member], self.inputs.place
        labels = weight[:, place]
        trunk = weight[:, : self.space.dim] - self.inputs.mean @ labels
        rest = torch.cat([trunk, weight[:, self.space.dim : place.start], weight[:, place.stop :]], 1)
        rows = pad(labels * self.inputs.height[:-1].unsqueeze(1), (0, 0, 0, 1))  # the last is for none: zero
        start = torch.arange(len(weight), device=values.device) * rows.shape[1]
        at, table, bias = values + start.view(-1, 1, 1), rows.flatten(0, 1), self.first.bias[member]
        if not torch.is_grad_enabled():
            return _summed_in_parts(seen, rest, bias, at, table)
        total = embedding_bag(at.flatten(0, 1), table, mode="sum").view(*seen.shape[:2], rows.shape[-1])
        return affine(seen, rest, bias) + total


def _summed_in_parts(seen: Tensor, weight: Tensor, bias: Tensor, at: Tensor, table: Tensor) -> Tensor:
    """seen · weight + bias + the sums of the rows ``at`` of a table, some rows after the other."""
    members, n, width = *seen.shape[:2], table.shape[1]
    out, rows = seen.new_empty(members, n, width), cached_rows(width)
    parts = (each.split(rows, 1) for each in (seen, at, out))
    for some, places, into in zip(*parts, strict=True):
        total = embedding_bag(places.flatten(0, 1), table, mode="sum").view(*some.shape[:2], width)
        into.copy_(torch.baddbmm(total, some, weight).add_(bias))
    return out
