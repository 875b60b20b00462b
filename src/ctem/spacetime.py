r"""Space-time comparisons with a clock per column: normalised densities, every marginal and conditional.

The theorem holds on states (x, s) that carry their noise levels. Two pairs that share the data row x0 know their
soft target exactly:

    temporal   (x, s) against (x, s'):   w = σ(log q_s(x|x0) − log q_{s'}(x|x0)),   x from either level
    spatial    (x, s) against (y, s):    w = σ(log q_s(x|x0)/b(x) − log q_s(y|x0)/b(y)),   y redrawn

With f = log b + g the gap is always g − g. All levels share one constant, and ρ_∞ = b pins it to zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ctem.losses import Rule, log_score, soft
from ctem.noise import Noise

__all__ = ["Clocks", "Pairs", "SharedClock", "space_time_loss"]

Potential = Callable[[Tensor, Tensor], Tensor]


class Pairs(NamedTuple):
    """Comparisons of two space-time states each, with the probability that the first is the data.

    >>> z = torch.zeros(4, 2)
    >>> Pairs(z, z, z, z, torch.ones(4), torch.ones(4)).w.shape
    torch.Size([4])
    """

    x: Tensor  # (n, d)
    s: Tensor  # (n, d) levels
    y: Tensor
    t: Tensor
    w: Tensor  # (n,)
    weight: Tensor  # (n,)


def space_time_loss(g: Potential, pairs: Pairs, rule: Rule = log_score) -> Tensor:
    """Σ weight · ℓ_w(g(x, s) − g(y, t)) / Σ weight.

    >>> z = torch.zeros(4, 2)
    >>> space_time_loss(lambda x, s: x.sum(-1), Pairs(z, z, z, z, torch.ones(4), torch.ones(4)))
    tensor(0.6931)
    """
    both = g(torch.cat([pairs.x, pairs.y]), torch.cat([pairs.s, pairs.t]))
    gap = both[: len(pairs.x)] - both[len(pairs.x) :]
    return (pairs.weight * soft(rule, gap, pairs.w)).sum() / pairs.weight.sum()


@dataclass(frozen=True)
class Clocks:
    """The clock-per-column objective: random sets of columns are visible, single columns are hidden or redrawn.

    For each row a random visible set V, and columns j of it, give three comparisons that share states: the data
    against its redraw (spatial), and each of them against V without j (temporal).

    Arguments:
        noise: noise and base of the space.
        moves: columns j per row.
        floor: level of visible real columns, the resolution of the learned density.
        temporal: weight of the temporal pairs; the spatial ones have 1 − temporal.
        rule: the scoring rule.

    >>> from ctem.bases import ProductBase
    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> objective, g = Clocks(Noise(base)), ClockNet(base, width=16)
    >>> objective(g, torch.zeros(8, 3), torch.Generator().manual_seed(0)).item()  # g = 0: no skill yet
    0.693147...
    """

    noise: Noise
    moves: int = 4
    floor: float = 1e-3
    temporal: float = 0.5
    rule: Rule = log_score

    def __call__(self, g: Potential, x0: Tensor, generator: torch.Generator) -> Tensor:
        """The mean loss over rows x0 (n, d); nan marks a missing cell, which stays hidden."""
        observed = ~x0.isnan()
        x0 = torch.where(observed, x0, 0.0)
        visible, moved = self._choose(observed, generator)
        rows = torch.arange(len(x0), device=x0.device).repeat_interleave(self.moves)
        column = moved.flatten()
        level = torch.where(visible, self._visible_level(x0), math.inf)
        data = self.noise.sample(x0, level, generator)
        redrawn = self.noise.base.redraw(data[rows], column, generator)
        hidden = level[rows].scatter(1, column.unsqueeze(1), math.inf)
        values = g(torch.cat([data, redrawn, data[rows]]), torch.cat([level, level[rows], hidden]))
        g_data, g_redrawn, g_hidden = values.split([len(x0), len(rows), len(rows)])
        at = _Moved(self.noise, x0[rows], level[rows], column)
        loss = self._comparisons(g_data[rows], g_redrawn, g_hidden, at.look(data[rows]), at.look(redrawn))
        some = observed.any(-1)[rows].to(x0.dtype)  # a row with nothing observed says nothing
        return (some * loss).sum() / some.sum().clamp_min(1)

    def _comparisons(
        self, g_data: Tensor, g_redrawn: Tensor, g_hidden: Tensor, data: _Look, redrawn: _Look
    ) -> Tensor:
        """Temporal and spatial comparisons of one move, shape (n,).

        Temporal: x_j is the data or a base draw, half each. A discrete base draw equals the data with
        probability b(x0_j); ``redrawn`` is a base draw given that it differs, so the two terms have the weights
        (1 + b)/2 and (1 − b)/2. The same condition makes the spatial kernel asymmetric by 1 − b.
        """
        b = data.same
        temporal = (1 + b) * soft(self.rule, g_data - g_hidden, torch.sigmoid(data.log_ratio))
        temporal = temporal + (1 - b) * soft(
            self.rule, g_redrawn - g_hidden, torch.sigmoid(redrawn.log_ratio)
        )
        bend = torch.log1p(-redrawn.same) - torch.log1p(-b)
        w = torch.sigmoid(data.log_ratio - redrawn.log_ratio + bend)
        spatial = soft(self.rule, g_data - g_redrawn + bend, w)
        return self.temporal * temporal / 2 + (1 - self.temporal) * spatial

    def _choose(self, observed: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A visible set of random size ≥ 1 among the observed columns, and the columns of it to move."""
        n, d = observed.shape
        rank = torch.rand(n, d, generator=generator, device=observed.device)
        rank = torch.where(observed, rank, 2.0).argsort(-1).argsort(-1)  # observed columns first, shuffled
        count = observed.sum(-1, keepdim=True)
        u = torch.rand(n, 1, generator=generator, device=observed.device)
        size = (1 + (u * count).floor()).clamp(max=count)
        visible = (rank < size) & observed
        pick = torch.rand(n, self.moves, generator=generator, device=observed.device)
        place = torch.minimum((pick * size).floor(), size - 1).clamp_min(0).long()
        order = rank.argsort(-1)
        return visible, order.gather(-1, place)

    def _visible_level(self, x0: Tensor) -> Tensor:
        level = torch.zeros_like(x0)
        level[:, list(self.noise.base.space.reals)] = self.floor
        return level


class _Look(NamedTuple):
    log_ratio: Tensor  # log q_s(x_j|x0_j)/b_j(x_j) of the moved column: −inf where it cannot be the data
    same: Tensor  # b_j(x_j) of a discrete column, 0 of a real one


@dataclass(frozen=True)
class _Moved:
    """One moved column per row, and what the noise and the base say of its value."""

    noise: Noise
    x0: Tensor
    level: Tensor
    column: Tensor

    def look(self, x: Tensor) -> _Look:
        at = self.column.unsqueeze(1)
        log_b = self.noise.base.column_log_prob(x)
        log_ratio = (self.noise.column_log_prob(x, self.x0, self.level) - log_b).gather(1, at).squeeze(1)
        discrete = self.noise.base.rows[self.column] >= 0
        return _Look(log_ratio, torch.where(discrete, log_b.gather(1, at).squeeze(1).exp(), 0.0))


@dataclass(frozen=True)
class SharedClock:
    """The shared-clock objective: the visible columns of a row at one level, compared across levels and points.

    Half of the pairs are temporal, (x, s) against (x, s') with log s' within ±reach of log s; half are spatial,
    (x, s) against a point moved by the noise itself, which is reversible with respect to the base. Discrete
    columns are clean or share the clock, half each, so that real columns meet clean labels too.

    Arguments:
        noise: noise and base of the space.
        low, high: range of the level, drawn log-uniformly; beyond high the columns are hidden.
        reach: largest |log s' − log s|.
        whole: share of the rows with every column visible; the others have a random visible set.
        rule: the scoring rule.

    >>> from ctem.bases import ProductBase
    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Real, Space
    >>> base = ProductBase(Space([Real()] * 3))
    >>> objective, g = SharedClock(Noise(base)), ClockNet(base, width=16)
    >>> objective(g, torch.zeros(8, 3), torch.Generator().manual_seed(0)).item()
    0.693147...
    """

    noise: Noise
    low: float = 1e-3
    high: float = 5.0
    reach: float = 0.5
    whole: float = 0.5
    rule: Rule = log_score

    def __call__(self, g: Potential, x0: Tensor, generator: torch.Generator) -> Tensor:
        """The mean loss over rows x0 (n, d)."""
        return space_time_loss(g, self.pairs(x0, generator), self.rule)

    def pairs(self, x0: Tensor, generator: torch.Generator) -> Pairs:
        """One temporal and one spatial pair for each row; nan marks a missing cell, which stays hidden."""
        visible = self._visible(~x0.isnan(), generator)
        x0 = torch.where(visible, x0, 0.0)
        draw = torch.rand(5, len(x0), 1, generator=generator, dtype=x0.dtype, device=x0.device)
        clean = torch.zeros_like(x0, dtype=torch.bool)
        clean[:, list(self.noise.base.space.discretes)] = draw[4] < 0.5
        s = self.low * (draw[0] * math.log(self.high / self.low)).exp()
        t = s * ((2 * draw[1] - 1) * self.reach).exp()
        t = torch.where(t > self.high, math.inf, t.clamp_min(self.low))  # past the end lies the base
        s, t = (torch.where(visible, torch.where(clean, 0.0, v), math.inf) for v in (s, t))
        x = self.noise.sample(x0, torch.where(draw[2] < 0.5, s, t), generator)
        across_time = self._excess(x, x0, s) - self._excess(x, x0, t)
        here = self.noise.sample(x0, s, generator)
        step = torch.where(visible, torch.where(clean, 0.5 * draw[3], s * (4 * draw[3] - 2).exp()), 0.0)
        there = self.noise.sample(here, step, generator)
        across_space = self._excess(here, x0, s) - self._excess(there, x0, s)
        w = torch.sigmoid(torch.cat([across_time, across_space]))
        return Pairs(
            torch.cat([x, here]),
            torch.cat([s, s]),
            torch.cat([x, there]),
            torch.cat([t, s]),
            w,
            torch.ones_like(w),
        )

    def _visible(self, observed: Tensor, generator: torch.Generator) -> Tensor:
        n, d = observed.shape
        draw = torch.rand(n, d + 2, generator=generator, device=observed.device)
        subset = draw[:, :d] < draw[:, d : d + 1]
        return observed & (subset | (draw[:, d + 1 :] < self.whole))

    def _excess(self, x: Tensor, x0: Tensor, s: Tensor) -> Tensor:
        """log q_s(x|x0)/b(x), shape (n,), at most a large number either way so that differences exist."""
        log_q, log_b = self.noise.column_log_prob(x, x0, s), self.noise.base.column_log_prob(x)
        return (log_q - log_b).clamp(-1e4, 1e4).sum(-1)
