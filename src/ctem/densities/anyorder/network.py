"""The network behind the any-order density: every one-column conditional of any visible set, by several members."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, pad

from ctem.bases import ProductBase
from ctem.densities.anyorder.inputs import Inputs, Prediction
from ctem.densities.anyorder.labels import LabelHead
from ctem.densities.anyorder.layers import Body, Linear, affine
from ctem.densities.anyorder.numbers import NumberHead

__all__ = ["AnyOrderNet"]

MANY = 32  # values of discrete columns from which on their weights are summed rather than multiplied


class AnyOrderNet(nn.Module):
    """ρ(x_j | x_V) of every column j and any visible set V, by several networks that are trained as one program.

    A residual network sees the visible columns and gives the coefficients of all conditionals: log-probabilities of
    values (``LabelHead``) and densities around a prediction (``NumberHead``). Before training every conditional is that
    of the base, around a linear prediction. Tensors have the members as their first axis; a method that is asked for
    one ``member`` takes rows without it.

    Arguments:
        base: the base.
        width: units per layer.
        blocks: residual blocks.
        members: independent networks.
        harmonics: sines and cosines of each real and ordinal value, for fine structure.
        dropout: within the blocks.
        correlation: of the scores (``Inputs.correlation_among``), for linear predictions among them.
        seed: of the initial weights.

    >>> from ctem.spaces import Category, Real, Space
    >>> net = AnyOrderNet(ProductBase(Space([Real(), Category(2)])), width=8, blocks=1, members=3)
    >>> x, hidden = torch.tensor([[0.0, 1.0]]).expand(3, 1, 2), torch.zeros(3, 1, 2, dtype=torch.bool)
    >>> net.log_conditionals(x, hidden, torch.full((3, 1, 1), 1e-3))[0, 0, 1].exp()  # untrained: the base
    tensor(0.5000, grad_fn=<ExpBackward0>)
    """

    reals: Tensor

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
        self.first = Linear(members, self.inputs.size, width, generator)
        self.body = Body(members, width, blocks, dropout, generator)
        self.of_labels = Linear(members, width, len(self.labels.owner), None)
        self.of_numbers = Linear(members, width, len(self.space.reals) * self.numbers.size, None)
        self.register_buffer("reals", torch.tensor(self.space.reals, dtype=torch.long), persistent=False)
        self.to(base.log_table.device)

    def log_conditionals(self, x: Tensor, visible: Tensor, level: Tensor) -> Tensor:
        """log ρ(x_j | x_V) of every column by every member, (members, n, d); it means nothing for a visible one.

        Arguments:
            x: rows (members, n, d), without nan.
            visible: V (members, n, d).
            level: noise level of real columns (members, n, 1).
        """
        h, prediction = self._hidden(x, visible, level, slice(None))
        out = torch.zeros_like(x)
        if len(self.labels.owner):
            score = self.of_labels.stretched(h, 1 / self.inputs.spread, self.labels.gain)
            out = self.labels.log_prob_of_scores(x, score)
        if self.space.reals:
            t = x.index_select(-1, self.reals)
            log_p = self._log_prob_of_numbers(t, h, *(part.view_as(t) for part in prediction))
            out = out.index_copy(-1, self.reals, log_p)
        return out

    def _log_prob_of_numbers(self, t: Tensor, h: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
        head, count = self.numbers, len(self.space.reals)
        scaled = self.of_numbers.stretched(h, (1 / head.scale).repeat(count), head.start.repeat(count))
        return head.log_prob_of_scaled(t, scaled.unflatten(-1, (count, -1)), mean, spread)

    def label_log_probs(self, x: Tensor, visible: Tensor, level: float, j: int, member: slice) -> Tensor:
        """log ρ(v | x_V) of every value v of a discrete column j by some members: (members, n, k).

        Rows (1, n, d) are for all of them, rows (members, n, d) each member's own.
        """
        h, _ = self._hidden(x, visible, torch.full_like(x[..., :1], level), member)
        values = self.labels.slices[j]
        return self.labels.column(self.of_labels(h, member, values) / self.inputs.spread[values], j)

    def number_coefficients(
        self, x: Tensor, visible: Tensor, level: float, j: int, member: slice
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Coefficients (members, n, size), mean and spread (1 or members, n) of the density of a real column j.

        Rows (1, n, d) are for all members, rows (members, n, d) each member's own.
        """
        place, size = self.space.reals.index(j), self.numbers.size
        h, prediction = self._hidden(x, visible, torch.full_like(x[..., :1], level), member)
        found = self.of_numbers(h, member, slice(place * size, (place + 1) * size))
        return found, *(part[:, place].view(x.shape[:2]) for part in prediction)

    def _hidden(self, x: Tensor, visible: Tensor, level: Tensor, member: slice) -> tuple[Tensor, Prediction]:
        """The last layer (members, n, width), and the predictions of all rows, member after member.

        Rows (1, n, d) are for all members.
        """
        h, prediction = self._first(x, visible, level, member)
        return self.body(h, member), prediction

    def _first(self, x: Tensor, visible: Tensor, level: Tensor, member: slice) -> tuple[Tensor, Prediction]:
        """The first layer (members, n, width), and the predictions."""
        flat = x.flatten(0, 1), visible.flatten(0, 1)
        sparse = not x.is_cuda and len(self.labels.owner) >= MANY
        seen, prediction = self.inputs(*flat, level.flatten(0, 1), indicators=not sparse)
        several = len(self.first.bias[member]), -1, -1
        seen = seen.unflatten(0, x.shape[:2]).expand(several)
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
        shown = weight[:, : self.space.dim] - self.inputs.mean @ labels
        rest = torch.cat([shown, weight[:, self.space.dim : place.start], weight[:, place.stop :]], 1)
        rows = pad(labels * self.inputs.height[:-1].unsqueeze(1), (0, 0, 0, 1))  # the last is for none: zero
        start = torch.arange(len(weight), device=values.device) * rows.shape[1]
        at = (values + start.view(-1, 1, 1)).flatten(0, 1)
        total = embedding_bag(at, rows.flatten(0, 1), mode="sum").view(*seen.shape[:2], rows.shape[-1])
        return affine(seen, rest, self.first.bias[member]) + total
