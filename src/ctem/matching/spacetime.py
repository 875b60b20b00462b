r"""Space-time comparisons with a noise level per column: normalised densities, every marginal and conditional.

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

from ctem.bases import ProductBase
from ctem.matching.losses import Rule, log_score, soft
from ctem.matching.noise import Noise

__all__ = ["ColumnComparisons", "LevelComparisons", "Moves", "NoisyRows", "Pairs", "show", "space_time_loss"]

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


class NoisyRows(NamedTuple):
    """Rows as the network sees them: real columns noised, discrete ones clean.

    >>> NoisyRows(torch.zeros(4, 2), torch.zeros(4, 2), torch.zeros(4, 1)).level.shape
    torch.Size([4, 2])
    """

    x: Tensor  # (n, d)
    level: Tensor  # (n, d), inf where hidden
    real_level: Tensor  # (n, 1), the level of visible reals


def show(
    base: ProductBase,
    x: Tensor,
    visible: Tensor,
    low: float,
    high: float | None,
    generator: torch.Generator,
) -> NoisyRows:
    """Visible real columns of a row at one level, log-uniform on [low, high], or at ``low``.

    >>> from ctem.spaces import Category, Real, Space
    >>> base, visible = ProductBase(Space([Real(), Category(2)])), torch.tensor([[True, False]])
    >>> show(base, torch.zeros(1, 2), visible, 0.01, None, torch.Generator()).level
    tensor([[0.0100,    inf]])
    """
    real_level = torch.full_like(x[:, :1], low)
    data = x
    if base.space.reals:
        if high is not None:
            u = torch.rand(real_level.shape, generator=generator, dtype=x.dtype, device=x.device)
            real_level = real_level * (u * math.log(high / low)).exp()
        xi = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        noisy = (-real_level).exp() * x + (-torch.expm1(-2 * real_level)).sqrt() * xi
        data = torch.where(base.is_real, noisy, x)
    return NoisyRows(
        data, torch.where(visible, torch.where(base.is_real, real_level, 0.0), math.inf), real_level
    )


class Moves(NamedTuple):
    """Rows with a visible set each, and m of its columns to hide or redraw.

    >>> z = torch.zeros(4, 3)
    >>> Moves(z, z, z[:, :1], z, torch.zeros(4, 2).long(), torch.zeros(4, 2, 3), torch.ones(4, 2)).column.shape
    torch.Size([4, 2])
    """

    x0: Tensor  # (n, d) data
    level: Tensor  # (n, d), inf where hidden
    real_level: Tensor  # (n, 1), the level of visible reals
    data: Tensor  # (n, d) x ~ q_s(·|x0)
    column: Tensor  # (n, m)
    redrawn: Tensor  # (n, m, d)
    weight: Tensor  # (n, m), 0 in rows with nothing observed


@dataclass(frozen=True)
class ColumnComparisons:
    """Comparisons of single columns: random sets of columns are visible, single columns are hidden or redrawn.

    For each row a random visible set V, and columns j of it, give three comparisons that share states: the data
    against its redraw (spatial), and each of them against V without j (temporal).

    Arguments:
        base: the base of the space.
        moves: columns j per row.
        low: lowest level of visible real columns, the finest resolution of the learned density.
        high: highest level of visible real columns, which is drawn log-uniformly; None leaves them at ``low``.
        temporal: weight of the temporal pairs; the spatial ones have 1 − temporal.
        consistency: weight of (log Σ_v b_j(v) e^{g(v)} − g(V without j))², zero at the truth whatever the data, for
            columns of two values, where every term is at hand.
        rule: the scoring rule.

    >>> from ctem.bases import ProductBase
    >>> from ctem.densities.spacetime.network import LevelNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> objective, g = ColumnComparisons(base), LevelNet(base, width=16)
    >>> objective(g, torch.zeros(8, 3), torch.Generator().manual_seed(0)).item()  # g = 0: no skill yet
    0.693147...
    """

    base: ProductBase
    moves: int = 4
    low: float = 1e-3
    high: float | None = None
    temporal: float = 0.5
    consistency: float = 0.0
    rule: Rule = log_score

    def __call__(self, g: Potential, x0: Tensor, generator: torch.Generator) -> Tensor:
        """The mean loss over rows x0 (n, d); nan marks a missing cell, which stays hidden."""
        moves = self.draw(x0, generator)
        compared = (moves.weight > 0).sum().clamp_min(1)
        return (moves.weight * self.losses(g, moves)).sum() / compared

    def draw(self, x0: Tensor, generator: torch.Generator) -> Moves:
        """A visible set for each row, and columns of it that are hidden or redrawn."""
        observed = ~x0.isnan()
        x0 = torch.where(observed, x0, 0.0)
        visible, column, weight = self._choose(x0, observed, generator)
        data, level, real_level = show(self.base, x0, visible, self.low, self.high, generator)
        redrawn = self.base.redraw(data.repeat(self.moves, 1), column.T.flatten(), generator)
        return Moves(
            x0, level, real_level, data, column, redrawn.view(self.moves, *x0.shape).transpose(0, 1), weight
        )

    def losses(self, g: Potential, moves: Moves) -> Tensor:
        """The loss of every move, (n, m), from 1 + 2m evaluations of g per row.

        Temporal: x_j is the data or a base draw, half each. A discrete base draw equals the data with
        probability b = b_j(x_j); ``redrawn`` is a base draw given that it differs, so the two terms have the
        weights (1 + b)/2 and (1 − b)/2. The same condition makes the spatial kernel asymmetric by 1 − b.
        """
        n, m, d = moves.redrawn.shape
        level = moves.level.repeat(m, 1)  # move after move: row r of g's batch stays r mod n, as members need
        at = moves.column.T.reshape(-1, 1)
        states = torch.cat(
            [moves.data, moves.redrawn.transpose(0, 1).reshape(-1, d), moves.data.repeat(m, 1)]
        )
        values = g(states, torch.cat([moves.level, level, level.scatter(1, at, math.inf)]))
        g_data, (g_redrawn, g_hidden) = values[:n].view(n, 1), values[n:].view(2, m, n).transpose(1, 2)
        ratio, log_b = self._look(moves.data.gather(1, moves.column), moves)
        redrawn = moves.redrawn.gather(2, moves.column.unsqueeze(2)).squeeze(2)
        other_ratio, other_log_b = self._look(redrawn, moves)
        b = log_b.exp()  # 0 where the column is real
        temporal = (1 + b) * soft(self.rule, g_data - g_hidden, torch.sigmoid(ratio))
        temporal = temporal + (1 - b) * soft(self.rule, g_redrawn - g_hidden, torch.sigmoid(other_ratio))
        bend = torch.log(-torch.expm1(other_log_b)) - torch.log(-torch.expm1(log_b))
        spatial = soft(self.rule, g_data - g_redrawn + bend, torch.sigmoid(ratio - other_ratio + bend))
        loss = self.temporal * temporal / 2 + (1 - self.temporal) * spatial
        if self.consistency:
            total = torch.logaddexp(log_b + g_data, torch.log1p(-b) + g_redrawn)
            bit = self.base.sizes[moves.column] == 2
            loss = loss + self.consistency * torch.where(bit, (total - g_hidden) ** 2, 0.0)
        return loss

    def _look(self, value: Tensor, moves: Moves) -> tuple[Tensor, Tensor]:
        """log q_s(x_j|x0_j)/b_j(x_j) of values of columns j, and log b_j(x_j) where j is discrete, else −∞."""
        column, x0 = moves.column, moves.x0.gather(1, moves.column)
        is_real = self.base.is_real[column]
        log_b = self.base.value_log_prob(value, self.base.rows[column], is_real)
        spread = -torch.expm1(-2 * moves.real_level)
        log_q = -0.5 * ((value - (-moves.real_level).exp() * x0) ** 2 / spread + (2 * math.pi * spread).log())
        log_q = torch.where(is_real, log_q, torch.where(value == x0, 0.0, -math.inf))
        return log_q - log_b, torch.where(is_real, -math.inf, log_b)

    def _choose(
        self, x0: Tensor, observed: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A visible set of random size ≥ 1 among the observed columns, columns of it to move, and their weights.

        A value that b expects teaches little, so column j is drawn with probability 0.8 (1 − b_j(x_j))/Σ + 0.2/|V|
        and weighted by the inverse: the expected loss is the plain mean over V, its variance far smaller.
        """
        n, d = observed.shape
        u = torch.rand(n, d + 1 + self.moves, generator=generator, dtype=x0.dtype, device=x0.device)
        rank = (
            torch.where(observed, u[:, :d], 2.0).argsort(-1).argsort(-1)
        )  # observed columns first, shuffled
        count = observed.sum(-1, keepdim=True)
        size = (1 + (u[:, d : d + 1] * count).floor()).clamp(max=count)
        visible = (rank < size) & observed
        surprise = torch.where(self.base.is_real, 1.0, -torch.expm1(self.base.column_log_prob(x0))) * visible
        share = 0.8 * surprise / surprise.sum(-1, keepdim=True).clamp_min(
            1e-9
        ) + 0.2 * visible / size.clamp_min(1)
        share = torch.where(count > 0, share, 1 / d)  # a row with nothing observed has none
        cumulative = share.cumsum(-1)
        pick = u[:, d + 1 :] * cumulative[:, -1:]
        column = torch.searchsorted(cumulative, pick.contiguous(), right=True).clamp(max=d - 1)
        weight = 1 / (share.gather(1, column) * size.clamp_min(1)).clamp_min(1e-9)
        return visible, column, torch.where(count > 0, weight, 0.0)


@dataclass(frozen=True)
class LevelComparisons:
    """Comparisons across levels and points, the visible columns of a row at one level.

    Half of the pairs are temporal, (x, s) against (x, s') with log s' within ±reach of log s; half are spatial,
    (x, s) against a point moved by the noise itself, which is reversible with respect to the base. Discrete
    columns are clean in some rows and share the level in the others, so that real columns meet clean labels too.

    Arguments:
        noise: noise and base of the space.
        low, high: range of the level, drawn log-uniformly; beyond high the columns are hidden.
        reach: largest |log s' − log s|.
        whole: share of the rows with every column visible; the others have a random visible set, its size
            log-uniform: the few marginals of few columns carry the mode weights.
        clean: share of the rows whose discrete columns are clean.
        temporal: weight of the temporal pairs; the spatial ones have 1 − temporal.
        constant: the paper's target 1 for the state that was drawn, instead of the soft target; same expected
            gradient, more noise.
        rule: the scoring rule.

    >>> from ctem.bases import ProductBase
    >>> from ctem.densities.spacetime.network import LevelNet
    >>> from ctem.spaces import Real, Space
    >>> base = ProductBase(Space([Real()] * 3))
    >>> objective, g = LevelComparisons(Noise(base)), LevelNet(base, width=16)
    >>> objective(g, torch.zeros(8, 3), torch.Generator().manual_seed(0)).item()
    0.693147...
    """

    noise: Noise
    low: float = 1e-3
    high: float = 5.0
    reach: float = 0.5
    whole: float = 0.5
    clean: float = 0.5
    temporal: float = 0.5
    constant: bool = False
    rule: Rule = log_score

    def __call__(self, g: Potential, x0: Tensor, generator: torch.Generator) -> Tensor:
        """The mean loss over rows x0 (n, d)."""
        return space_time_loss(g, self.pairs(x0, generator), self.rule)

    def pairs(self, x0: Tensor, generator: torch.Generator) -> Pairs:
        """One temporal and one spatial pair for each row; nan marks a missing cell, which stays hidden."""
        visible = self._visible(~x0.isnan(), generator)
        x0 = torch.where(visible, x0, 0.0)
        draw = torch.rand(5, len(x0), 1, generator=generator, dtype=x0.dtype, device=x0.device)
        clean = ~self.noise.base.is_real & (draw[4] < self.clean)
        s = self.low * (draw[0] * math.log(self.high / self.low)).exp()
        t = s * ((2 * draw[1] - 1) * self.reach).exp()
        t = torch.where(t > self.high, math.inf, t.clamp_min(self.low))  # past the end lies the base
        s, t = (torch.where(visible, torch.where(clean, 0.0, v), math.inf) for v in (s, t))
        early = draw[2] < 0.5
        x = self.noise.sample(x0, torch.where(early, s, t), generator)
        across_time = self._excess(x, x0, s) - self._excess(x, x0, t)
        here = self.noise.sample(x0, s, generator)
        away = torch.where(clean, 0.0 if self.clean == 1 else 0.5 * draw[3], s * (2 / s).pow(draw[3]))
        step = torch.where(visible, away, 0.0)
        there = self.noise.sample(here, step, generator)
        across_space = self._excess(here, x0, s) - self._excess(there, x0, s)
        w = torch.sigmoid(torch.cat([across_time, across_space]))
        if self.constant:
            w = torch.cat([early.squeeze(1).to(w.dtype), torch.ones_like(across_space)])
        share = torch.full_like(w, 2 * self.temporal)
        share[len(x) :] = 2 * (1 - self.temporal)
        return Pairs(
            torch.cat([x, here]),
            torch.cat([s, s]),
            torch.cat([x, there]),
            torch.cat([t, s]),
            w,
            share,
        )

    def _visible(self, observed: Tensor, generator: torch.Generator) -> Tensor:
        n, d = observed.shape
        draw = torch.rand(n, d + 2, generator=generator, device=observed.device)
        rank = draw[:, :d].argsort(-1).argsort(-1)
        subset = rank < (draw[:, d : d + 1] * math.log(d + 1)).exp().floor()
        return observed & (subset | (draw[:, d + 1 :] < self.whole))

    def _excess(self, x: Tensor, x0: Tensor, s: Tensor) -> Tensor:
        """log q_s(x|x0)/b(x), shape (n,), at most a large number either way so that differences exist."""
        log_q, log_b = self.noise.column_log_prob(x, x0, s), self.noise.base.column_log_prob(x)
        return (log_q - log_b).clamp(-1e4, 1e4).sum(-1)
