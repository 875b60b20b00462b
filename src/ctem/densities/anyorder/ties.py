r"""Columns that repeat others, or are the sum or the difference of two: parts of conditionals at places that are known.

Where a bill was paid in full the payment *is* the bill, and a total is the sum of its parts. A smooth density cannot
hold that. A tie is a formula for one real column, c = Σ ± values of others. Once those are shown, the conditional has

    ρ(t) = w₀ ρ₀(t) + Σ_f ( v_f 1{t in the cell of c_f} / width + Σ_k w_fk N(t; c_f + σ_fk m_fk, σ_fk²) )

in which the network predicts how likely the formula holds exactly (v), or nearly, and how (w, m, σ). Every part
is normalised, so ρ is. A formula that lacks one of its columns has no part in ρ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ctem.densities.anyorder.numbers import FAR
from ctem.densities.choices import choose

__all__ = ["FormulaValues", "Tie", "TiedParts", "Ties", "Units"]

START = (-4.0, -4.0, 0.0, -1.0, -3.0, -1.5)  # log-weights, shifts and log-spreads of these before training
COEFFICIENTS = 1 + len(START)  # of a tie
RAREST, MOST = 0.05, 0.7  # weight of what holds exactly, before training
NEARLY = 2  # parts of a tie for what holds nearly
FARTHEST = 10.0  # shift of such a part, in its spread
NARROW = 1e-4  # width of a cell below which float32 might leave it: its middle stands for all of it
GAIN = 4.0  # a network's outputs for them are multiplied by this
NARROWEST, WIDEST = 1e-4, 1.0  # spread
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class Tie(NamedTuple):
    """A formula for an encoded real column: Σ sign · value of the columns in ``terms``.

    >>> Tie(2, ((0, 1), (1, -1))).target
    2
    """

    target: int
    terms: tuple[tuple[int, int], ...]  # real columns, each with +1 or −1
    share: float = 0.0  # of the rows in which it holds exactly


class Units(Protocol):
    """What encoded columns stand for.

    >>> from ctem.tables.relations.formulas import CodecUnits
    >>> units: Units = CodecUnits({}, {})
    """

    def values(self, x: Tensor, j: int) -> Tensor:
        """The values, float64 (n,), of a real column j of rows x (n, d), be they in its continuous part or not."""

    def cells(self, value: Tensor, j: int) -> Tensor:
        """The ends of the cell of a value in the encoded column j, (n, 2); nan where it has none."""

    def width(self, j: int) -> float:
        """Of the cell of a value of column j, in the unit of values."""


class FormulaValues(NamedTuple):
    """What the formulas give for rows.

    >>> formulas = FormulaValues(torch.zeros(5, 2, 1), *(torch.zeros(5, 2, 1, dtype=torch.bool) for _ in range(2)))
    >>> formulas.rows(torch.tensor([0, 3])).known.shape
    torch.Size([2, 2, 1])
    """

    value: Tensor  # (n, targets, slots), float64
    known: Tensor  # (n, targets, slots): whether all columns of the formula are shown
    holding: Tensor  # (n, targets, slots): whether the target is shown too, and has this value

    def rows(self, index: Tensor | slice) -> FormulaValues:
        """Of these rows."""
        return FormulaValues(*(part[index] for part in self))


class TiedParts(NamedTuple):
    """The tied parts of the conditional of one column, or of several.

    >>> parts = TiedParts(torch.zeros(1, 4, 1, COEFFICIENTS), torch.ones(4, 1, dtype=torch.bool), torch.zeros(4, 1, 2))
    >>> parts.rows(torch.tensor([0, 2])).ends.shape
    torch.Size([2, 1, 2])
    """

    found: Tensor  # (members, n, …, slots, coefficients)
    known: Tensor  # (n, …, slots)
    ends: Tensor  # (n, …, slots, 2), of the cells
    exact: bool = True  # with the cells; else what they leave, which has less mass than 1
    counted: bool = False  # a cell has its probability for its density, as if it were as wide as 1

    def log_prob(self, log_p: Tensor, exact_at: Tensor, near_at: Tensor) -> Tensor:
        """log ρ(t) from log ρ₀(t) (members, n, …), at t (n, …), with noise on it and without."""
        weight, shift, log_spread = self._coefficients()
        low, high = self.ends.nan_to_num().unbind(-1)
        t, middle = exact_at.unsqueeze(-1), ((low + high) / 2).unsqueeze(-1)
        inside = self.known & (t >= low) & (t <= high) & self.exact
        width = torch.ones_like(low) if self.counted else (high - low).clamp_min(1e-12)
        log_exact = torch.where(inside, -width.log(), -math.inf).unsqueeze(-1)
        u = (near_at.unsqueeze(-1).unsqueeze(-1) - middle) * (-log_spread).exp() - shift
        log_near = -0.5 * u**2 - log_spread - LOG_SQRT_2PI
        parts = weight + torch.cat([log_exact.expand_as(log_near[..., :1]), log_near], -1)
        all_parts = torch.cat([parts.flatten(-2), log_p.unsqueeze(-1)], -1)
        return all_parts.logsumexp(-1) - _with_rest(weight).logsumexp(-1)

    def cdf(self, below: Tensor, t: Tensor) -> Tensor:
        """The mass below q numbers t (n, q) for each row, from that of ρ₀ (members, n, q)."""
        weight, shift, log_spread = (
            part.unsqueeze(2) for part in self._coefficients()
        )  # (members, n, 1, slots, …)
        low, high = self.ends.nan_to_num().unsqueeze(1).unbind(-1)
        at = t.unsqueeze(-1)
        exact = ((at - low) / (high - low).clamp_min(1e-12)).clamp(0, 1).unsqueeze(-1)
        u = (at.unsqueeze(-1) - ((low + high) / 2).unsqueeze(-1)) * (-log_spread).exp() - shift
        inside = torch.cat([exact.expand_as(u[..., :1]), torch.special.ndtr(u)], -1).flatten(-2)
        return (torch.cat([inside, below.unsqueeze(-1)], -1) * _with_rest(weight).softmax(-1)).sum(-1)

    def at_values(self, log_p: Tensor, t: Tensor) -> Tensor:
        """log ρ at q numbers t (n, q) for each row, from log ρ₀ there (members, n, q)."""
        coefficients, known, ends = self.found.unsqueeze(2), self.known.unsqueeze(1), self.ends.unsqueeze(1)
        return self._replace(found=coefficients, known=known, ends=ends).log_prob(log_p, t, t)

    def draw(self, other: Tensor, generator: torch.Generator) -> Tensor:
        """A number for each row (n,) of one member: of a tied part, or ``other`` (n,), which is drawn from ρ₀."""
        weight, shift, log_spread = self._coefficients()
        part = choose(_with_rest(weight)[0].softmax(-1), generator).unsqueeze(-1)
        low, high = self.ends.nan_to_num().unsqueeze(-1).unbind(-2)
        u = torch.rand(low.shape, generator=generator, dtype=low.dtype, device=low.device)
        xi = torch.randn(shift[0].shape, generator=generator, dtype=low.dtype, device=low.device)
        exact = low + (high - low) * torch.where(high - low < NARROW, 0.5, u)
        near = (low + high) / 2 + log_spread[0].exp() * (shift[0] + xi)
        every = torch.cat([torch.cat([exact, near], -1).flatten(-2), other.unsqueeze(-1)], -1)
        return every.gather(-1, part).squeeze(-1).clamp(-FAR, FAR)

    def points(self) -> tuple[Tensor, Tensor]:
        """The middle of each cell (n, slots) and its probability, the mean over members; 0 for what is not known."""
        share = _with_rest(self._coefficients()[0]).softmax(-1)[..., :-1].unflatten(-1, (-1, 1 + NEARLY))
        return self.ends.nan_to_num().mean(-1), share[..., 0].mean(0)

    def smooth(self, width: float) -> TiedParts:
        """Without the cells, and no part narrower than this."""
        weight, shift, log_spread = self._coefficients()
        spread = log_spread.exp()
        wide = spread.clamp_min(width)
        coefficients = torch.cat([weight, shift * spread / wide, wide.log()], -1)
        return self._replace(found=coefficients, exact=False)

    def counting(self, width: float) -> TiedParts:
        """With probabilities of the cells for their densities, and no part narrower than this."""
        return self.smooth(width)._replace(exact=True, counted=True)

    def rows(self, index: Tensor) -> TiedParts:
        """Those of these rows."""
        return self._replace(found=self.found[:, index], known=self.known[index], ends=self.ends[index])

    def of_members(self, who: Tensor) -> TiedParts:
        """Of one member for each row (n,)."""
        index = who.view(1, -1, 1, 1).expand(1, *self.found.shape[1:])
        return self._replace(found=self.found.gather(0, index))

    def _coefficients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log-weights (members, n, …, slots, 3), −inf for what is not known; shifts and log-spreads (…, slots, 2)."""
        weight, shift, log_spread = self.found.split((1 + NEARLY, NEARLY, NEARLY), -1)
        weight = torch.where(self.known.unsqueeze(-1), weight, -math.inf)
        spread = log_spread.clamp(math.log(NARROWEST), math.log(WIDEST))
        return weight, shift.clamp(-FARTHEST, FARTHEST), spread


def _with_rest(weight: Tensor) -> Tensor:
    """Log-weights of all parts (…, 3 · slots + 1), that of ρ₀ last."""
    flat = weight.flatten(-2)
    return torch.cat([flat, torch.zeros_like(flat[..., :1])], -1)


def _log_odds(share: float) -> float:
    p = min(max(share, RAREST), MOST)
    return math.log(p / (1 - p))


class Ties(nn.Module):
    """The ties of a table, in slots: as many for every target as the one with the most has.

    Arguments:
        ties: the formulas.
        units: what encoded columns stand for.
        parents: for a real column that exists only where a category has code 0, that category.

    >>> class Same:
    ...     def values(self, x, j):
    ...         return x[:, j].double()
    ...
    ...     def cells(self, value, j):
    ...         return torch.stack([value - 0.01, value + 0.01], -1)
    ...
    ...     def width(self, j):
    ...         return 0.02
    >>> ties = Ties([Tie(2, ((0, 1), (1, 1)))], Same(), {})  # the third is the sum of the others
    >>> x = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 4.0]])
    >>> formulas = ties.formula_values(x, torch.ones(2, 3, dtype=torch.bool))
    >>> formulas.value.flatten(), formulas.holding.flatten()
    (tensor([3., 3.], dtype=torch.float64), tensor([ True, False]))
    """

    columns: Tensor
    parent: Tensor
    there: Tensor
    finest: Tensor
    start: Tensor
    reals: Tensor
    places: Tensor  # of the ties among the slots
    flat_terms: Tensor  # (2, ties), and so on
    flat_signs: Tensor
    flat_own: Tensor
    flat_reals: Tensor

    def __init__(self, ties: Sequence[Tie], units: Units, parents: Mapping[int, int]):
        super().__init__()
        self.ties, self.units = tuple(ties), units
        self.targets = sorted({tie.target for tie in ties})
        by_target = {j: [tie for tie in ties if tie.target == j] for j in self.targets}
        self.slots = max(map(len, by_target.values()))
        self.used = sorted({j for tie in ties for j in (tie.target, *(column for column, _ in tie.terms))})
        used = self.used
        shape = len(self.targets), self.slots
        terms, signs = torch.full((*shape, 2), len(used)), torch.zeros(*shape, 2, dtype=torch.float64)
        there, finest = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.float64)
        start = torch.tensor([0.0, *START]).repeat(*shape, 1)
        for g, j in enumerate(self.targets):
            for slot, tie in enumerate(by_target[j]):
                there[g, slot], start[g, slot, 0] = True, _log_odds(tie.share)
                finest[g, slot] = min(units.width(column) for column in (j, *(i for i, _ in tie.terms)))
                for place, (column, sign) in enumerate(tie.terms):
                    terms[g, slot, place], signs[g, slot, place] = used.index(column), sign
        places = torch.tensor([used.index(j) for j in self.targets])
        buffers = {
            "columns": torch.tensor(used),
            "parent": torch.tensor([parents.get(j, -1) for j in used]),
            "there": there,
            "finest": finest,
            "start": start,
            "reals": torch.tensor(self.targets),
            "places": there.flatten().nonzero().flatten(),
            "flat_terms": terms[there].T.contiguous(),
            "flat_signs": signs[there].T.contiguous(),
            "flat_own": places.unsqueeze(1).expand(shape)[there],
            "flat_reals": torch.tensor(self.targets).unsqueeze(1).expand(shape)[there],
        }
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor, persistent=False)

    @property
    def size(self) -> int:
        """Slots of all targets."""
        return len(self.targets) * self.slots

    def all_ends(self, x: Tensor) -> Tensor:
        """The cells of all formulas of rows x (n, d), (n, targets, slots, 2); nan for those that miss a column."""
        formulas = self.formula_values(x.nan_to_num(), ~x.isnan())
        return torch.stack([self.ends(formulas, j) for j in self.targets], 1)

    def parted(self, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Rows (…, dim), and the cells (…, targets, slots, 2) that ``all_ends`` found, behind them in training."""
        return x[..., :dim], x[..., dim:].unflatten(-1, (len(self.targets), self.slots, 2))

    def formula_values(self, x: Tensor, visible: Tensor) -> FormulaValues:
        """What the formulas give for rows (n, d), given what is visible (n, d)."""
        some = visible[:, self.columns] | ((self.parent >= 0) & visible[:, self.parent])
        # for no term, and for what no row shows
        none = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        pairs = zip(self.used, some.any(0).tolist(), strict=True)
        value = torch.stack([*(self.units.values(x, j) if shown else none for j, shown in pairs), none], -1)
        first, second = (value.index_select(1, part) for part in self.flat_terms)
        formula = first * self.flat_signs[0] + second * self.flat_signs[1]
        equal = (value.index_select(1, self.flat_own) - formula).abs() <= self.finest[self.there] / 2
        known = self._flat_known(x, visible)
        holding = equal & known & visible.index_select(1, self.flat_reals)
        return FormulaValues(*(self._in_slots(part) for part in (formula, known, holding)))

    def known(self, x: Tensor, visible: Tensor) -> Tensor:
        """Whether every column of a formula is shown, (…, targets, slots); a frequent value has no continuous part."""
        return self._in_slots(self._flat_known(x, visible))

    def _flat_known(self, x: Tensor, visible: Tensor) -> Tensor:
        """The same, (…, ties)."""
        shown = visible.index_select(-1, self.columns)
        parent = self.parent.clamp_min(0)
        atom = (self.parent >= 0) & visible.index_select(-1, parent) & (x.index_select(-1, parent) > 0)
        shown = torch.cat([shown | atom, torch.ones_like(shown[..., :1])], -1)
        return shown.index_select(-1, self.flat_terms[0]) & shown.index_select(-1, self.flat_terms[1])

    def _in_slots(self, flat: Tensor) -> Tensor:
        """What is known of each tie (…, ties) in its slot, (…, targets, slots); 0 where a slot is empty."""
        out = flat.new_zeros(*flat.shape[:-1], self.size)
        return out.index_copy(-1, self.places, flat).unflatten(-1, self.there.shape)

    def coefficients(self, out: Tensor, targets: slice = slice(None)) -> Tensor:
        """Coefficients (…, targets, slots, coefficients) of some targets from a network's outputs for them."""
        return self.start[targets] + GAIN * out.unflatten(-1, (-1, self.slots, COEFFICIENTS))

    def ends(self, formulas: FormulaValues, j: int) -> Tensor:
        """The cells of a target's formulas in its encoded column, (n, slots, 2); nan for those not known."""
        g = self.targets.index(j)
        cells = self.units.cells(formulas.value[:, g].flatten(), j).view(-1, self.slots, 2)
        return torch.where(formulas.known[:, g].unsqueeze(-1), cells, math.nan).float()
