"""The level-conditional energy g(x, s) = log ρ_s(x)/b(x), with one noise level s_j per column.

A column at s_j = ∞ is hidden: the network does not see it. With every column hidden g = 0, because ρ_∞ = b; so
exp g needs no normalising constant of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from ctem.bases import ProductBase
from ctem.densities.anyorder.inputs import Inputs, waves
from ctem.densities.residuals import residuals, swept

__all__ = ["LevelNet"]


class _Block(nn.Module):
    """h + W₂ silu(W₁ norm(h)), with dropout in the middle."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.outer(self.drop(silu(self.inner(self.norm(h)))))


class LevelNet(nn.Module):
    """A residual network for mixed rows with a noise level per column: g(x, s) = net(seen) − net(nothing seen).

    Blind to hidden columns and zero when all are hidden, by construction; zero everywhere at first, so that it
    starts at the base density exactly.

    Arguments:
        base: the base b; g corrects it.
        width: units per layer.
        blocks: residual blocks.
        dropout: within the blocks.
        harmonics: sines and cosines of each real and ordinal value, for fine structure.
        correlation: of the scores (``Inputs.correlation_among``): what N(0, C) predicts becomes an input.
        seed: of the initial weights.

    >>> from ctem.spaces import Category, Real, Space
    >>> g = LevelNet(ProductBase(Space([Real(), Category(3)])), width=16)
    >>> g(torch.zeros(5, 2), torch.tensor([[0.1, torch.inf]]).expand(5, 2))
    tensor([0., 0., 0., 0., 0.], grad_fn=<WhereBackward0>)
    """

    def __init__(
        self,
        base: ProductBase,
        width: int = 256,
        blocks: int = 4,
        dropout: float = 0.0,
        harmonics: int = 3,
        correlation: Tensor | None = None,
        seed: int = 0,
    ):
        super().__init__()
        self.base, self.space = base, base.space
        self.options = {"width": width, "blocks": blocks, "dropout": dropout, "harmonics": harmonics}
        self.inputs = Inputs(base, harmonics, correlation)
        with torch.random.fork_rng(devices=[]):  # torch initialises from the global generator
            torch.manual_seed(seed)
            self.first = nn.Linear(self.inputs.size, width)
            self.body = nn.Sequential(*[_Block(width, dropout) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.last = nn.Parameter(torch.zeros(width))
        self.to(base.log_table.device)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """g(x, s) for rows x (n, d) and levels (n, d) or (n,), inf where hidden; what x holds there is ignored."""
        level = level.unsqueeze(-1).expand_as(x) if level.ndim == x.ndim - 1 else level
        seen = self.seen(x, level)
        h = self.norm(self.body(self.first(torch.cat([seen, torch.zeros_like(seen[:1])]))))
        out = h @ self.last
        return torch.where(torch.isfinite(level).any(-1), out[:-1] - out[-1], 0.0)

    def seen(self, x: Tensor, level: Tensor) -> Tensor:
        """Network inputs (n, inputs): every entry of a hidden column is zero."""
        inputs, visible = self.inputs, torch.isfinite(level)
        parts = [torch.where(visible, (-level).exp(), 0.0)]
        if len(inputs.owner):
            parts.append(inputs.indicators(x, visible))
        if len(inputs.scores):
            shown = visible.index_select(1, inputs.scores)
            value = torch.where(shown, inputs.scores_of(x), 0.0)
            parts += [value, (waves(value, inputs.frequencies) * shown.unsqueeze(-1)).flatten(1)]
            if inputs.correlation is not None:
                clear = torch.where(shown, (-level.index_select(1, inputs.scores)).exp(), 0.0)
                parts.append(residuals(value, clear, swept(clear, inputs.correlation)))
        return torch.cat([*parts, _level_features(level, visible)], dim=-1)


def _level_features(level: Tensor, visible: Tensor) -> Tensor:
    """Five smooth functions of the mean log-level of the visible noisy columns, 0 where there is none."""
    noisy = visible & (level > 0)
    count = noisy.sum(-1, keepdim=True)
    log_s = torch.where(noisy, level.clamp(1e-6, 10.0).log(), 0.0)
    mean = log_s.sum(-1, keepdim=True) / count.clamp_min(1)
    frequencies = torch.arange(1, 3, dtype=mean.dtype, device=mean.device) / 4
    shape = torch.cat([mean / 4, waves(mean, frequencies).flatten(1)], -1)
    return torch.where(count > 0, shape, 0.0)
