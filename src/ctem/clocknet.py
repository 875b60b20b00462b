"""The level-conditional energy g(x, s) = log ρ_s(x)/b(x), with one noise level s_j per column.

A column at s_j = ∞ is hidden: the network does not see it. With every column hidden g = 0, because ρ_∞ = b; so
exp g needs no normalising constant of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ctem.bases import ProductBase

__all__ = ["ClockNet", "Ensemble"]


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
    tensor([0., 0., 0., 0., 0.], grad_fn=<WhereBackward0>)
    """

    frequencies: Tensor
    owner: Tensor
    value: Tensor
    share: Tensor
    spread: Tensor
    reals: Tensor

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
        reals, discretes = list(self.space.reals), list(self.space.discretes)
        # one feature for every value but the first of a discrete column, of mean 0 and variance 1 under b
        owner = [j for j in discretes for _ in range(1, self.space.sizes[j])]
        value = [v for j in discretes for v in range(1, self.space.sizes[j])]
        rows = base.rows[owner].cpu() if owner else torch.zeros(0, dtype=torch.long)
        share = base.log_table.cpu()[rows, value].exp()
        for name, tensor in {
            "owner": torch.tensor(owner, dtype=torch.long),
            "value": torch.tensor(value, dtype=torch.get_default_dtype()),
            "share": share,
            "spread": (share * (1 - share)).sqrt().clamp_min(0.03),
            "reals": torch.tensor(reals, dtype=torch.long),
        }.items():
            self.register_buffer(name, tensor, persistent=False)
        inputs = len(owner) + self.space.dim + len(reals) * (1 + 4 * harmonics) + 1 + 2 * harmonics
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
        return torch.where(torch.isfinite(level).any(-1), out[:-1] - out[-1], 0.0)

    def seen(self, x: Tensor, level: Tensor) -> Tensor:
        """Network inputs (n, inputs): every entry of a hidden column is zero."""
        visible = torch.isfinite(level)
        clear = torch.where(visible, (-level).exp(), 0.0)  # 1 is clean, 0 is hidden
        clock = torch.where(visible, level.clamp(1e-4, 10.0).log(), 0.0)
        parts = [clear]
        if len(self.owner):
            hit = (x.index_select(1, self.owner) == self.value).to(x.dtype)
            shown = visible.index_select(1, self.owner)
            parts.append(torch.where(shown, (hit - self.share) / self.spread, 0.0))
        if len(self.reals):
            shown = visible.index_select(1, self.reals)
            value = torch.where(shown, x.index_select(1, self.reals), 0.0)
            waves = [_waves(v, self.frequencies) for v in (value, clock.index_select(1, self.reals))]
            parts += [value, *((w * shown.unsqueeze(-1)).flatten(1) for w in waves)]
        count = visible.sum(-1, keepdim=True)
        mean = clock.sum(-1, keepdim=True) / count.clamp_min(1)
        parts += [mean, _waves(mean, self.frequencies / 4).flatten(1) * (count > 0)]
        return torch.cat(parts, dim=-1)


class Ensemble(nn.Module):
    """The mean of several potentials g: again blind to hidden columns and zero when all are hidden.

    The chain rule normalises it exactly, as it does any potential; averaging removes noise of single trainings.

    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 2))
    >>> Ensemble([ClockNet(base, width=8, seed=seed) for seed in range(3)])(torch.zeros(1, 2), torch.zeros(1)).shape
    torch.Size([1])
    """

    def __init__(self, members: Sequence[nn.Module]):
        super().__init__()
        if not members:
            raise ValueError("members: expected at least one; got none.")
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """The mean of g(x, s) over the members, shape (n,)."""
        return torch.stack([g(x, level) for g in self.members]).mean(0)


def _waves(value: Tensor, frequencies: Tensor) -> Tensor:
    phase = value.unsqueeze(-1) * frequencies
    return torch.cat([phase.sin(), phase.cos()], dim=-1)
