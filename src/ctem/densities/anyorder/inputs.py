"""What a network sees of a row of which some columns are visible; every entry of a hidden column is zero."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ctem.bases import ProductBase
from ctem.densities.residuals import MAX_SCORES, correlation_of, predictions, residuals, swept

__all__ = ["Inputs", "Prediction", "Seen", "waves"]

CLOCK = 5  # numbers that encode the noise level
RAREST = 0.03  # smallest standard deviation that the indicator of a value is divided by


class Prediction(NamedTuple):
    """A linear prediction of every real column from the visible scores.

    >>> Prediction(torch.zeros(4, 2), torch.ones(4, 2)).mean.shape
    torch.Size([4, 2])
    """

    mean: Tensor  # (n, reals)
    spread: Tensor  # (n, reals)


class Seen(NamedTuple):
    """Inputs of a network and the prediction that its answers are relative to.

    >>> Seen(torch.zeros(4, 7), Prediction(torch.zeros(4, 2), torch.ones(4, 2))).inputs.shape
    torch.Size([4, 7])
    """

    inputs: Tensor  # (n, size)
    prediction: Prediction


class Inputs(nn.Module):
    """Rows with a visible set each, as a network sees them.

    A discrete column has an indicator for every value but the first, centred and scaled by the base. Real and ordinal
    columns are scores: their value, its sines and cosines, and with ``correlation`` what a linear prediction among the
    visible scores leaves over (``ctem.densities.residuals``), so that narrow ridges look wide.

    Arguments:
        base: the base.
        harmonics: frequencies of the sines and cosines.
        correlation: of the scores, from ``correlation_among``; None where there are too few or too many.

    >>> from ctem.spaces import Category, Real, Space
    >>> inputs = Inputs(ProductBase(Space([Real(), Category(3)])))
    >>> visible = torch.tensor([[False, True]])
    >>> inputs(torch.tensor([[0.7, 2.0]]), visible, torch.full((1, 1), 0.01)).inputs.shape
    torch.Size([1, 12])
    """

    owner: Tensor
    spread: Tensor
    discretes: Tensor
    start: Tensor
    height: Tensor
    mean: Tensor
    scores: Tensor
    places: Tensor
    centre: Tensor
    scale: Tensor
    noisy: Tensor
    frequencies: Tensor
    correlation: Tensor | None

    def __init__(self, base: ProductBase, harmonics: int = 1, correlation: Tensor | None = None):
        super().__init__()
        self.space = base.space
        for name, tensor in {**_indicators(base), **_scores(base)}.items():
            self.register_buffer(name, tensor, persistent=False)
        frequencies = math.pi / 2 * 2.0 ** torch.arange(harmonics)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("correlation", correlation)
        self.size = len(self.owner) + self.space.dim + len(self.scores) * (1 + 2 * harmonics) + CLOCK
        self.size += 0 if correlation is None else 2 * len(self.scores) + 1

    def forward(self, x: Tensor, visible: Tensor, level: Tensor, *, indicators: bool = True) -> Seen:
        """Of rows x (n, d), their visible sets (n, d), and the noise level of their real columns (n, 1).

        Without ``indicators`` those are left out: ``values_shown`` holds the same in fewer numbers.
        """
        parts = [visible.to(x.dtype), _clock(level)]
        if len(self.owner) and indicators:
            parts.append(self.indicators(x, visible))
        if not len(self.scores):
            return Seen(torch.cat(parts, -1), self._no_prediction(x))
        seen = visible.index_select(1, self.scores).to(x.dtype)
        value = self.scores_of(x) * seen
        parts += [value, (waves(value, self.frequencies) * seen.unsqueeze(-1)).flatten(1)]
        if self.correlation is None:
            return Seen(torch.cat(parts, -1), self._no_prediction(x))
        ahead = (-level).exp()
        clear = torch.where(self.noisy, ahead, 1.0) * seen
        linear = swept(clear, self.correlation)
        parts.append(residuals(value, clear, linear))
        mean, spread = predictions(value, ahead, linear)
        prediction = Prediction(mean.index_select(1, self.places), spread.index_select(1, self.places))
        return Seen(torch.cat(parts, -1), prediction)

    @property
    def place(self) -> slice:
        """Where the indicators are among the inputs."""
        start = self.space.dim + CLOCK
        return slice(start, start + len(self.owner))

    def indicators(self, x: Tensor, visible: Tensor) -> Tensor:
        """(1{x_j = v} − b_j(v)) / √(b_j(v) (1 − b_j(v))) of every value but the first, 0 where hidden: (n, values)."""
        last, at = len(self.owner), self.values_shown(x, visible)
        hit = x.new_zeros(len(x), last + 1).scatter_(1, at, self.height[at])[:, :last]
        return hit - visible.to(x.dtype) @ self.mean

    def values_shown(self, x: Tensor, visible: Tensor) -> Tensor:
        """Which value each visible discrete column has, as a place among all indicators; their number if none."""
        code = torch.where(visible, x, 0.0).index_select(1, self.discretes).long()
        return torch.where(code > 0, self.start + code - 1, len(self.owner))

    def scores_of(self, x: Tensor) -> Tensor:
        """Reals and ordinals, centred and scaled: (n, scores)."""
        return (x.index_select(1, self.scores) - self.centre) / self.scale

    def correlation_among(self, x: Tensor) -> Tensor | None:
        """The correlation of the scores of rows x (n, d), nan where missing, if there are 2 … ``MAX_SCORES``."""
        if not 2 <= len(self.scores) <= MAX_SCORES:
            return None
        return correlation_of(self.scores_of(x).cpu()).to(x.device)

    def _no_prediction(self, x: Tensor) -> Prediction:
        shape = len(x), len(self.space.reals)
        return Prediction(x.new_zeros(shape), x.new_ones(shape))


def _indicators(base: ProductBase) -> dict[str, Tensor]:
    """One for every value but the first of a discrete column, of mean 0 and variance 1 under b."""
    space, real = base.space, base.log_table.dtype
    owner = [j for j in space.discretes for _ in range(1, space.sizes[j])]
    value = [v for j in space.discretes for v in range(1, space.sizes[j])]
    rows = base.rows[owner].cpu() if owner else torch.zeros(0, dtype=torch.long)
    share = base.log_table.cpu()[rows, value].exp()
    spread = (share * (1 - share)).sqrt().clamp_min(RAREST)
    owners = torch.tensor(owner, dtype=torch.long)
    belongs = owners == torch.arange(space.dim).unsqueeze(1)
    counts = torch.tensor([space.sizes[j] - 1 for j in space.discretes], dtype=torch.long)
    buffers = {
        "owner": owners,
        "spread": spread,
        "discretes": torch.tensor(space.discretes, dtype=torch.long),
        "start": counts.cumsum(0) - counts,
        "height": torch.cat([1 / spread, torch.zeros(1, dtype=real)]),
        "mean": belongs.to(real) * (share / spread),
    }
    return {name: tensor.to(base.log_table.device) for name, tensor in buffers.items()}


def _scores(base: ProductBase) -> dict[str, Tensor]:
    """Reals, and ordinals of at least three values, with their mean and standard deviation under b."""
    space, real = base.space, base.log_table.dtype
    scores = [j for j in range(space.dim) if j in space.reals or (j in space.ordinals and space.sizes[j] > 2)]
    centre, scale = torch.zeros(len(scores)), torch.ones(len(scores))
    for i, j in enumerate(scores):
        if k := space.sizes[j]:
            b, code = base.log_table[base.rows[j], :k].cpu().double().exp(), torch.arange(k).double()
            centre[i] = (b * code).sum()
            scale[i] = (b * (code - centre[i]) ** 2).sum().sqrt()
    buffers = {
        "scores": torch.tensor(scores, dtype=torch.long),
        "places": torch.tensor([scores.index(j) for j in space.reals], dtype=torch.long),
        "centre": centre.to(real),
        "scale": scale.to(real),
        "noisy": torch.tensor([j in space.reals for j in scores], dtype=torch.bool),
    }
    return {name: tensor.to(base.log_table.device) for name, tensor in buffers.items()}


def _clock(level: Tensor) -> Tensor:
    """Five smooth functions of the logarithm of a noise level (n, 1)."""
    log_s = level.log() / 4
    return torch.cat([log_s, log_s.sin(), log_s.cos(), (2 * log_s).sin() / 2, (2 * log_s).cos() / 2], -1)


def waves(value: Tensor, frequencies: Tensor) -> Tensor:
    """sin and cos of each frequency, weaker the higher it is, (…, 2 · harmonics).

    >>> waves(torch.zeros(3), torch.tensor([1.0])).tolist()[0]
    [0.0, 1.0]
    """
    phase = value.unsqueeze(-1) * frequencies
    return torch.cat([phase.sin(), phase.cos()], dim=-1) * (frequencies[:1] / frequencies).repeat(2)
