r"""Rules among columns: with a known probability a column holds a value that others name, or one of a set.

A smooth density has probability zero for every equality. A rule gives a column, for what is shown, a set A of values
and a share s. The conditional then has that mass there, and keeps its own proportions within and without:

    ρ(t) ← s ρ(t | A) + (1 − s) ρ(t | not A)

It is normalised whatever ρ is. Where others name one value, A is that value. What a rule implies for a column that it
takes, given the one that it is about, is the set of values that would name it: the cities of a state. Such a set has a
mass of s, or ρ(A) if that is more, and what an order leaves 1 − (1 − ρ(A))(1 − s), as numbers between bounds do
(``ctem.densities.anyorder.limits``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ctem.densities.anyorder.apart import Counted, Paired
from ctem.densities.anyorder.limits import Bounds
from ctem.densities.anyorder.ties import COEFFICIENTS, TiedParts

__all__ = ["Named", "Rules", "Within", "keep_labels", "with_cell"]

LEAST = 1e-12  # mass below which a set has no proportions


class Named(NamedTuple):
    """The value that rules name for rows.

    >>> Named(torch.tensor([2, -1]), torch.tensor([0.99, 0.5])).known
    tensor([ True, False])
    """

    value: Tensor  # codes (n,), −1 for none; or the ends of the cell of a number (n, 2), nan for none
    share: Tensor  # (n,): how likely it is, where the cell is not a gap
    gap: bool = False  # whether the last code is a gap, of which they know nothing

    @property
    def known(self) -> Tensor:
        """For which rows they name one."""
        return self.value >= 0 if self.value.ndim == 1 else ~self.value[:, 0].isnan()


class Within(NamedTuple):
    """The codes that a rule or an order leaves for rows, and in how many of them one of these is right.

    >>> Within(torch.ones(2, 3, dtype=torch.bool), torch.tensor([0.99, 0.0])).allowed.shape
    torch.Size([2, 3])
    """

    allowed: Tensor  # (n, k)
    share: Tensor  # (n,); nan where the rule does not apply


class Rules(Protocol):
    """The rules of a table, applied to encoded rows x (n, d) of which ``visible`` (n, d) is shown.

    >>> from ctem.tables.relations.rule_keeper import RuleKeeper
    >>> rules: Rules = RuleKeeper([], [], {})
    >>> rules.about(0)
    False
    """

    @property
    def after(self) -> Mapping[int, frozenset[int]]:
        """For a column the columns that it comes after in every order, because they name its value."""

    def about(self, j: int) -> bool:
        """Whether some rule may apply to column j."""

    def named(self, x: Tensor, visible: Tensor, j: int) -> Named | None:
        """The value of column j that rules name; None where they never do."""

    def bounds(self, x: Tensor, visible: Tensor, j: int) -> Bounds | None:
        """Between which numbers a real column j lies; None where they never bound it."""

    def within(self, x: Tensor, visible: Tensor, j: int) -> list[Within]:
        """What rules leave for a discrete column j that others follow from."""

    def ordered(self, x: Tensor, visible: Tensor, j: int) -> Within | None:
        """What orders leave for a discrete column j, whatever rules name; None where they never bound it."""

    def paired(self, j: int) -> Sequence[Paired]:
        """What was counted of the codes of column j with other columns, the best first."""

    def counted(self, x: Tensor, visible: Tensor, j: int) -> tuple[Counted, int] | None:
        """The labels of column j that share code 0, and how many these are; None where they are not distinguished."""


def keep_labels(
    log_p: Tensor, within: Sequence[Within], named: Named | None, ordered: Within | None = None
) -> Tensor:
    """Log-probabilities (n, k) of codes from those of a network, changed by rules, and by orders after these.

    >>> log_p, named = torch.tensor([[0.5, 0.25, 0.25]]).log(), Named(torch.tensor([2]), torch.tensor([0.9]))
    >>> keep_labels(log_p, [], named).exp()
    tensor([[0.0667, 0.0333, 0.9000]])
    >>> keep_labels(log_p, [], Named(torch.tensor([0]), torch.tensor([0.9]), gap=True)).exp()
    tensor([[0.6750, 0.0750, 0.2500]])
    >>> at_most = Within(torch.tensor([[True, True, False]]), torch.tensor([0.99]))
    >>> keep_labels(log_p, [], named, at_most).exp()
    tensor([[0.6607, 0.3303, 0.0090]])
    """
    kept = log_p
    for some in within:
        kept = _kept_within(kept, some, torch.minimum(1 - some.share.double(), _beyond(kept, some)))
    if named is not None:
        chosen = torch.arange(log_p.shape[1], device=log_p.device) == named.value.unsqueeze(1)
        weighed = _weighed(log_p, chosen, 1 - named.share.double(), gap=named.gap)
        kept = torch.where(named.known.unsqueeze(1), weighed, kept)
    if ordered is None:
        return kept
    return _kept_within(kept, ordered, _beyond(kept, ordered) * (1 - ordered.share.double()))


def _beyond(log_p: Tensor, within: Within) -> Tensor:
    """The share of the mass outside of what is allowed, (n,): rounded probabilities may sum to more than 1."""
    p = log_p.double().exp()
    return (p * ~within.allowed).sum(1) / p.sum(1)


def _kept_within(log_p: Tensor, within: Within, beyond: Tensor) -> Tensor:
    """log_p with the mass ``beyond`` (n,) outside of what is allowed; unchanged where the share is nan."""
    weighed = _weighed(log_p, within.allowed, beyond.nan_to_num())
    return torch.where(within.share.isnan().unsqueeze(1), log_p, weighed)


def _weighed(log_p: Tensor, chosen: Tensor, beyond: Tensor, *, gap: bool = False) -> Tensor:
    """(1 − b) ρ(· | chosen) + b ρ(· | others), even where ρ has nothing there; ρ if there are no others or none.

    With ``gap`` the last code keeps its probability, and only the others are weighed.
    """
    p, beyond = log_p.double().exp(), beyond.unsqueeze(1)
    others = ~chosen
    if gap:
        others[:, -1] = False
    parts = []
    for part in (chosen, others):
        mass, size = (p * part).sum(1, keepdim=True), part.sum(1, keepdim=True).clamp_min(1)
        parts.append(torch.where(mass > LEAST, p * part / mass.clamp_min(LEAST), part / size))
    out = (1 - beyond) * parts[0] + beyond * parts[1]
    if gap:
        out = torch.cat([out[:, :-1] * (1 - p[:, -1:]), p[:, -1:]], 1)
    some = chosen.any(1, keepdim=True) & others.any(1, keepdim=True)
    return torch.where(some, out, p).log().to(log_p.dtype)


def with_cell(tied: TiedParts | None, named: Named, inside: Tensor, members: int) -> TiedParts:
    """The tied parts of a real column with one more, the cell that rules name; in its rows there are no others.

    Arguments:
        tied: of the formulas of the column.
        named: ends of cells (n, 2), and shares.
        inside: the mass of the cell (n,) by the network alone, which counts as well.
        members: of the network.

    >>> named = Named(torch.tensor([[0.0, 0.1]]), torch.tensor([0.9]))
    >>> with_cell(None, named, torch.tensor([0.1]), 1).points()[1]  # 0.889 + 0.111 · 0.1 = 0.9
    tensor([[0.8889]])
    """
    inside = torch.minimum(inside, named.share)
    share = ((named.share - inside) / (1 - inside)).clamp(0, 1 - LEAST)
    cell = inside.new_zeros(members, len(inside), 1, COEFFICIENTS)
    cell[..., 0] = torch.logit(share.double()).to(inside.dtype).unsqueeze(1)
    cell[..., 1:3] = -math.inf
    known, ends = named.known.unsqueeze(1), named.value.unsqueeze(1)
    if tied is None:
        return TiedParts(cell, known, ends)
    return tied._replace(
        found=torch.cat([tied.found, cell], -2),
        known=torch.cat([tied.known & ~known, known], -1),
        ends=torch.cat([tied.ends, ends], -2),
    )
