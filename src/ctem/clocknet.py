"""The level-conditional energy g(x, s) = log ρ_s(x)/b(x), with one noise level s_j per column.

A column at s_j = ∞ is hidden: the network does not see it. With every column hidden g = 0, because ρ_∞ = b; so
exp g needs no normalising constant of its own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ctem.bases import ProductBase

__all__ = ["ClockNet"]


class _Block(nn.Module):
    """h + W₂ silu(W₁ norm(h)), with dropout in the middle."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
        )

    def forward(self, h: Tensor) -> Tensor:
        return h + self.layers(h)


class ClockNet(nn.Module):
    """A residual network for mixed rows with a clock per column: g(x, s) = net(seen) − net(nothing seen).

    Blind to hidden columns and zero when all are hidden, by construction; zero everywhere at first, so that it
    starts at the base density exactly.

    Arguments:
        base: the base b; g corrects it.
        width: units per layer.
        blocks: residual blocks.
        dropout: within the blocks.
        harmonics: sines and cosines of each real value, for fine structure, and of its log-level.
        seed: of the initial weights.

    >>> from ctem.spaces import Category, Real, Space
    >>> g = ClockNet(ProductBase(Space([Real(), Category(3)])), width=16)
    >>> g(torch.zeros(5, 2), torch.tensor([[0.1, math.inf]]).expand(5, 2))
    tensor([0., 0., 0., 0., 0.], grad_fn=<SubBackward0>)
    """

    frequencies: Tensor

    def __init__(
        self,
        base: ProductBase,
        width: int = 256,
        blocks: int = 4,
        dropout: float = 0.0,
        harmonics: int = 4,
        seed: int = 0,
    ):
        super().__init__()
        self.base, self.space = base, base.space
        self.register_buffer("frequencies", math.pi / 4 * 2.0 ** torch.arange(harmonics), persistent=False)
        reals = len(self.space.reals)
        discrete = sum(1 + self.space.sizes[j] for j in self.space.discretes)
        inputs = discrete + reals * (2 + 4 * harmonics) + 1 + 2 * harmonics
        with torch.random.fork_rng(devices=[]):  # torch initialises from the global generator
            torch.manual_seed(seed)
            self.first = nn.Linear(inputs, width)
            self.body = nn.Sequential(*[_Block(width, dropout) for _ in range(blocks)], nn.LayerNorm(width))
            self.last = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """g(x, s) for rows x (n, d) and levels (n, d) or (n,), inf where hidden; what x holds there is ignored."""
        level = level.unsqueeze(-1).expand_as(x) if level.ndim == x.ndim - 1 else level
        seen = self.seen(x, level)
        nothing = torch.zeros_like(seen[:1])
        out = self.last(self.body(self.first(torch.cat([seen, nothing])))).squeeze(-1)
        return out[:-1] - out[-1]

    def seen(self, x: Tensor, level: Tensor) -> Tensor:
        """Network inputs (n, inputs): every entry of a hidden column is zero."""
        visible = torch.isfinite(level)
        x = torch.where(visible, x, 0.0)
        clear = torch.where(visible, (-level).exp(), 0.0)  # 1 is clean, 0 is hidden
        clock = torch.where(visible, level.clamp(1e-3, 10.0).log(), 0.0)
        reals, discretes = list(self.space.reals), list(self.space.discretes)
        parts = [_one_hot(x[:, discretes], self.base.sizes, visible[:, discretes]), clear[:, discretes]]
        if reals:
            shown = visible[:, reals].unsqueeze(-1)
            waves = [_waves(v[:, reals], self.frequencies) * shown for v in (x, clock)]
            parts += [x[:, reals], clear[:, reals], *(w.flatten(1) for w in waves)]
        count = visible.sum(-1, keepdim=True).clamp_min(1)
        mean = clock.sum(-1, keepdim=True) / count
        some = visible.any(-1, keepdim=True)
        parts += [mean, _waves(mean, self.frequencies / 4).flatten(1) * some]
        return torch.cat(parts, dim=-1)


def _waves(value: Tensor, frequencies: Tensor) -> Tensor:
    phase = value.unsqueeze(-1) * frequencies
    return torch.cat([phase.sin(), phase.cos()], dim=-1)


def _one_hot(codes: Tensor, sizes: Tensor, visible: Tensor) -> Tensor:
    """One-hot blocks side by side, all-zero where hidden: (n, Σ sizes)."""
    start = sizes.cumsum(0) - sizes
    out = codes.new_zeros(len(codes), int(sizes.sum()))
    return out.scatter(1, codes.long() + start, visible.to(codes.dtype))
