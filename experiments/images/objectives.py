r"""Level objectives on bits: comparisons of noised images at one shared level, a few flips or a little time apart.

Levels are those of :class:`~ctem.matching.noise.Noise`: a bit is redrawn from b with probability 1 − e^{−s}. The
paper's s is half of it: it flips with probability (1 − e^{−2s})/2, which is ours at 2s under a uniform base.
``PAPER_LEVELS`` are its 13 levels in our units.

The information that a noised bit under a uniform base holds about its level is constant in the angle θ with
e^{−s} = cos θ, from θ = 0 (the data) to π/2 (the base). Temporal comparisons are therefore a step in angle apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from ctem.matching.losses import Rule, Schedule, brier, soft
from ctem.matching.noise import Levels, Noise, check_range

__all__ = ["PAPER_LEVELS", "Angular", "Contours", "LevelFlips", "angle_of", "level_at"]

PAPER_LEVELS = Levels.log_spaced(2 * 0.005, 2 * 1.5, 13)


def angle_of(level: Tensor) -> Tensor:
    """θ with cos θ = e^{−s}, from 0 at s = 0 to π/2 at s = ∞.

    >>> angle_of(torch.tensor([0.0, math.inf])) / math.pi
    tensor([0.0000, 0.5000])
    """
    return 2 * (-torch.expm1(-level) / 2).sqrt().asin()


def level_at(angle: Tensor) -> Tensor:
    """s with e^{−s} = cos θ; ∞ from π/2 on.

    >>> level_at(angle_of(torch.tensor([0.005, 1.0, math.inf])))
    tensor([0.0050, 1.0000,    inf])
    """
    level = -torch.log1p(-2 * (angle / 2).sin() ** 2)
    return torch.where(angle < math.pi / 2 - 1e-6, level, math.inf)


@dataclass(frozen=True)
class Angular:
    """A schedule with the angle θ, e^{−s} = cos θ, uniform between two levels: as much information everywhere.

    >>> Angular(0.01, math.inf).draw(3, torch.Generator().manual_seed(0), like=torch.zeros(1)).shape
    torch.Size([3])
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        check_range(self.low, self.high)

    def draw(self, n: int, generator: torch.Generator, like: Tensor) -> Tensor:
        """n levels, shape (n,)."""
        first, last = (float(angle_of(torch.tensor(s, dtype=torch.float64))) for s in (self.low, self.high))
        u = torch.rand(n, generator=generator, dtype=like.dtype, device=like.device)
        return level_at(first + (last - first) * u)


@dataclass(frozen=True)
class Contours:
    """Where the contours of a binary image are: m(1 − m), with m the mean over a square around each pixel.

    Flips there are the hard ones; a flip in a blank corner teaches nothing after the first minute.

    Arguments:
        shape: height and width.
        reach: pixels to each side.

    >>> Contours((3, 3), reach=1)(torch.tensor([[0.0, 0, 0, 0, 1, 0, 0, 0, 0]]))[0, 4]
    tensor(0.0988)
    """

    shape: tuple[int, int]
    reach: int = 2

    def __call__(self, x: Tensor) -> Tensor:
        """The interest of every pixel, shape (n, d)."""
        image = x.view(len(x), 1, *self.shape)
        mean = avg_pool2d(image, 2 * self.reach + 1, 1, self.reach, count_include_pad=False).flatten(1)
        return mean * (1 - mean)


@dataclass(frozen=True)
class LevelFlips:
    r"""The noise-conditional objective on bits: x ~ q_s(·|x0) against x with some bits flipped, and against x later.

        spatial    (x, s) against (y, s), y = x with flips:   w = σ(log q_s(x|x0) − log q_s(y|x0))
        temporal   (x, s) against (x, t), |θ_t − θ_s| ≤ reach:   w = σ(log q_s(x|x0) − log q_t(x|x0))

    With f = log b + g the gap is f − f, so that g learns log ρ_s/b. Spatial comparisons alone leave one constant per
    level open, as in the paper; temporal ones join all levels, and g = 0 at s = ∞ closes the last. All comparisons of a
    row share g(x, s): 1 + comparisons evaluations a row, one more with temporal ones.

    Arguments:
        noise: noise and base of the bits, on the device of the rows.
        levels: where s is drawn from: ``PAPER_LEVELS``, Levels, LogUniform or Angular, in our units.
        flips: bits that a comparison flips; or (low, high), their number log-uniform in between.
        comparisons: spatial comparisons of a row.
        target: "soft" is w above; "constant" the paper's w = 1, with the same expected gradient and more noise.
        temporal: weight of the temporal comparisons; the spatial ones have 1 − temporal. 0 leaves them out.
        reach: largest temporal step in angle; 1/√d has a log-ratio of about 1.
        interest: from x0 to the interest of each bit, e.g. ``Contours``. A single flip is then drawn with probability
            0.8 interest/Σ + 0.2/d and weighted by the inverse: same expected loss, less variance.
        rule: the scoring rule.

    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Category, Space
    >>> from experiments.images.unet import ImageNet
    >>> base = ProductBase(Space([Category(2)] * 16))
    >>> objective, g = LevelFlips(Noise(base)), ImageNet(base, (4, 4), (8, 16))
    >>> objective(g, torch.zeros(8, 16), torch.Generator().manual_seed(0)).item()  # g = 0: no skill yet
    1.0
    """

    noise: Noise
    levels: Schedule = PAPER_LEVELS
    flips: int | tuple[int, int] = 1
    comparisons: int = 1
    target: Literal["soft", "constant"] = "soft"
    temporal: float = 0.0
    reach: float = 0.05
    interest: Callable[[Tensor], Tensor] | None = None
    rule: Rule = brier

    def __post_init__(self) -> None:
        space, (fewest, most) = self.noise.base.space, self._range
        if set(space.sizes) != {2}:
            raise ValueError(f"noise: expected columns of two values; got sizes {set(space.sizes)}.")
        if not 1 <= fewest <= most <= space.dim:
            raise ValueError(f"flips: expected 1 to {space.dim} bits, or such a range; got {self.flips}.")
        if self.comparisons < 1:
            raise ValueError(f"comparisons: expected at least 1; got {self.comparisons}.")
        if self.target not in ("soft", "constant"):
            raise ValueError(f"target: expected 'soft' or 'constant'; got {self.target!r}.")
        if not 0 <= self.temporal < 1:
            raise ValueError(f"temporal: expected a share in [0, 1); got {self.temporal}.")
        if not 0 < self.reach < math.pi / 2:
            raise ValueError(f"reach: expected an angle in (0, π/2); got {self.reach}.")
        if self.interest is not None and most > 1:
            raise ValueError(f"interest: expected flips=1, whose weights are known; got flips={self.flips}.")

    def __call__(
        self, g: Callable[[Tensor, Tensor], Tensor], x0: Tensor, generator: torch.Generator
    ) -> Tensor:
        """The mean loss over complete rows x0 (n, d)."""
        n, m, base = len(x0), self.comparisons, self.noise.base
        here, there = self._times(x0, generator)
        x = self.noise.sample(x0, here, generator)
        flipped, weight = self._flips(x0, generator)
        y = torch.where(flipped, 1 - x, x).flatten(0, 1)
        late = [x] if self.temporal else []
        values = g(torch.cat([x, y, *late]), torch.cat([here.repeat(1 + m), *([there] if late else [])]))
        gain_b = base.column_log_prob(x) - base.column_log_prob(1 - x)
        log_q = self.noise.column_log_prob(x, x0, here)
        gain_q = log_q - self.noise.column_log_prob(1 - x, x0, here)
        gap = values[:n] - values[n : n + m * n].view(m, n) + torch.where(flipped, gain_b, 0.0).sum(-1)
        loss = (weight * self._score(gap, torch.where(flipped, gain_q, 0.0).sum(-1))).mean()
        if not late:
            return loss
        later = self._score(
            values[:n] - values[-n:], (log_q - self.noise.column_log_prob(x, x0, there)).sum(-1)
        )
        return (1 - self.temporal) * loss + self.temporal * later.mean()

    @property
    def _range(self) -> tuple[int, int]:
        return (self.flips, self.flips) if isinstance(self.flips, int) else self.flips

    def _score(self, gap: Tensor, log_odds: Tensor) -> Tensor:
        return self.rule(gap) if self.target == "constant" else soft(self.rule, gap, torch.sigmoid(log_odds))

    def _times(self, x0: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The level that x is drawn at and the one it is compared with: two levels, swapped by a fair coin."""
        s = self.levels.draw(len(x0), generator, x0)
        if not self.temporal:
            return s, s
        step, coin = torch.rand(2, len(x0), generator=generator, dtype=x0.dtype, device=x0.device)
        t = level_at((angle_of(s) + (2 * step - 1) * self.reach).abs().clamp_min(1e-3))
        return torch.where(coin < 0.5, s, t), torch.where(coin < 0.5, t, s)

    def _flips(self, x0: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Which bits each comparison flips (m, n, d), and its weight (m, n)."""
        (n, d), m, (fewest, most) = x0.shape, self.comparisons, self._range
        u = torch.rand(m, n, d if most > 1 else 1, generator=generator, dtype=x0.dtype, device=x0.device)
        weight = x0.new_ones(m, n)
        if most > 1:
            bits = u.topk(most, -1).indices
            v = torch.rand(m, n, 1, generator=generator, dtype=x0.dtype, device=x0.device)
            count = (fewest * (v * math.log((most + 1) / fewest)).exp()).floor()
            kept = torch.arange(most, device=x0.device) < count
        else:
            bits, weight = self._one(x0, u)
            kept = torch.ones_like(bits, dtype=torch.bool)
        return torch.zeros(m, n, d, dtype=torch.bool, device=x0.device).scatter(-1, bits, kept), weight

    def _one(self, x0: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """One bit for each uniform number (m, n, 1), and its weight 1/(d · its probability)."""
        (m, n, _), d = u.shape, x0.shape[1]
        if self.interest is None:
            return (u * d).long().clamp(max=d - 1), x0.new_ones(m, n)
        interest = self.interest(x0)
        share = 0.8 * interest / interest.sum(-1, keepdim=True).clamp_min(1e-9) + 0.2 / d
        cumulative = share.cumsum(-1)
        picks = (u.squeeze(-1) * cumulative[:, -1]).T.contiguous()  # (n, m)
        bits = torch.searchsorted(cumulative, picks, right=True).clamp(max=d - 1)
        weight = 1 / (d * (share / cumulative[:, -1:]).gather(1, bits))
        return bits.T.unsqueeze(-1), weight.T
