r"""The image energy g(x, s) = log ρ_s(x)/b(x): a U-Net on binary pixels with one noise level each.

A pixel at s_i = ∞ is hidden: the network does not see it. With every pixel hidden g = 0, because ρ_∞ = b. Levels are
those of :class:`~ctem.matching.noise.Noise`: a pixel is redrawn from b with probability 1 − e^{−s}; the paper's s is
half of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate, silu

from ctem.bases import ProductBase
from ctem.densities.anyorder.labels import LabelHead

__all__ = ["ImageNet"]

Precision = Literal["float32", "bf16"]


class _Conv(nn.Conv2d):
    """A convolution in the precision of what it is given; its weights stay in float32."""

    def forward(self, h: Tensor) -> Tensor:
        weight = self.weight.to(h.dtype, memory_format=torch.channels_last)
        return conv2d(h, weight, self.bias.to(h.dtype), self.stride, self.padding)  # type: ignore[union-attr]


class _Block(nn.Module):
    """h + conv(silu((1 + a) · norm(conv(silu(norm(h)))) + c)), where a and c come from the levels."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.inner = _Conv(channels, channels, 3, padding=1)
        self.outer = _Conv(channels, channels, 3, padding=1)
        self.film = nn.Linear(width, 2 * channels)

    def forward(self, h: Tensor, at: Tensor) -> Tensor:
        a, c = self.film(at).to(h.dtype)[:, :, None, None].chunk(2, 1)
        inside = _normalised(self.inner(silu(_normalised(h))))
        return h + self.outer(silu(torch.addcmul(c, inside, 1 + a)))


class _Stage(nn.Module):
    """Blocks at one resolution."""

    def __init__(self, channels: int, blocks: int, width: int):
        super().__init__()
        self.blocks = nn.ModuleList(_Block(channels, width) for _ in range(blocks))

    def forward(self, h: Tensor, at: Tensor) -> Tensor:
        for block in self.blocks:
            h = block(h, at)
        return h


class ImageNet(nn.Module):
    r"""A U-Net energy on binary images in pixel-wise inner-product form, with a noise level per pixel.

        g(x, s) = Σ_i e^{−s_i} (2x_i − 1) h_i(x, s)  +  mean_i e^{−s_i} · head(pooled features)

    Blind to hidden pixels, zero when all are hidden, and zero everywhere at first: it starts at the base. Both terms
    vanish as the levels grow, as ρ_s does towards b. Differentiable in x for samplers that follow the gradient.

    Arguments:
        base: the base b, on as many columns of two values as there are pixels, row after row.
        shape: height and width, divisible by two for every stage after the first.
        channels: of each stage, each at half the resolution of the one before.
        blocks: residual blocks of each stage, on the way down and again on the way up.
        seed: of the initial weights.
        precision: of the body, "float32" or "bf16"; the last layers, the sum and g are float32. It may be set later.

    >>> from ctem.spaces import Category, Space
    >>> g = ImageNet(ProductBase(Space([Category(2)] * 16)), shape=(4, 4), channels=(8, 16))
    >>> g(torch.zeros(3, 16), torch.full((3,), 0.1)).tolist()
    [0.0, 0.0, 0.0]
    >>> sum(p.numel() for p in ImageNet(ProductBase(Space([Category(2)] * 784))).parameters()) // 100_000
    22
    """

    odds: Tensor

    def __init__(
        self,
        base: ProductBase,
        shape: tuple[int, int] = (28, 28),
        channels: tuple[int, ...] = (48, 96, 192),
        blocks: int = 1,
        seed: int = 0,
        precision: Precision = "float32",
    ):
        super().__init__()
        _check(base, shape, channels, precision)
        self.base, self.space, self.shape, self.precision = base, base.space, tuple(shape), precision
        self.labels = LabelHead(base)
        log_b = base.log_table[base.rows]
        self.register_buffer("odds", log_b[:, 1] - log_b[:, 0], persistent=False)
        with torch.random.fork_rng(devices=[]):  # torch initialises from the global generator
            torch.manual_seed(seed)
            self._build(channels, blocks, width=64)

    def _build(self, channels: tuple[int, ...], blocks: int, width: int) -> None:
        self.embed_level = nn.Sequential(nn.Linear(6, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.first = _Conv(4, channels[0], 3, padding=1)
        self.down = nn.ModuleList(_Stage(c, blocks, width) for c in channels)
        self.up = nn.ModuleList(_Stage(c, blocks, width) for c in channels[::-1])
        self.shrink = nn.ModuleList(_Conv(a, b, 3, stride=2, padding=1) for a, b in pairwise(channels))
        self.grow = nn.ModuleList(_Conv(b, a, 3, padding=1) for b, a in pairwise(channels[::-1]))
        self.pooled = nn.Linear(channels[0] + channels[-1], 64)
        self.last = nn.Parameter(torch.zeros(channels[0]))
        self.last_pooled = nn.Parameter(torch.zeros(64))

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """g(x, s), float32 of shape (n,), for codes x (n, d) and levels (n,) or (n, d), inf where hidden."""
        if x.ndim != 2 or x.shape[1] != self.space.dim:
            raise ValueError(f"x: expected shape (n, {self.space.dim}); got {tuple(x.shape)}.")
        level = level.unsqueeze(-1).expand_as(x) if level.ndim == 1 else level
        most = 2**29 // (self.space.dim * len(self.last))  # CUDA kernels count entries in 32 bits
        parts = zip(x.split(most), level.split(most), strict=True)
        with torch.autocast(x.device.type, enabled=False):  # the body chooses its own precision
            return torch.cat([self._energy(*part) for part in parts])

    def slopes(self, x: Tensor, level: Tensor) -> Tensor:
        """2 ∂g/∂v_i at every hidden pixel, (n, d) float32, v_i = 0 being the middle of −1 and 1.

        To third order this is g(x_i = 1) − g(x_i = 0), pixel i shown: all conditionals of one visible set from one pass
        and one gradient (``experiments.images.firstorder``). Entries of visible pixels mean nothing.
        """
        training = torch.is_grad_enabled()
        most = 2**29 // (self.space.dim * len(self.last))
        parts = []
        for rows, levels in zip(x.split(most), level.split(most), strict=True):
            visible = torch.isfinite(levels)
            value = torch.where(visible, 2 * rows - 1, 0.0).float().requires_grad_()
            with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
                total = self._of_values(value, visible, levels).sum()
            parts.append(torch.autograd.grad(total, value, create_graph=training)[0])
        return 2 * torch.cat(parts)

    def _energy(self, x: Tensor, level: Tensor) -> Tensor:
        visible = torch.isfinite(level)
        return self._of_values(torch.where(visible, 2 * x - 1, 0.0).float(), visible, level)

    def _of_values(self, value: Tensor, visible: Tensor, level: Tensor) -> Tensor:
        clear = torch.where(visible, (-level).exp(), 0.0).float()
        h, bottom = self._body(value, visible, clear, level)
        h = silu(_normalised(h.float())).permute(0, 2, 3, 1)
        pooled = torch.cat([h.mean((1, 2)), bottom.float().mean((2, 3))], 1)
        whole = silu(self.pooled(pooled)) @ self.last_pooled
        pull = torch.where(visible, clear, 1.0)  # a hidden value is 0, but has a slope
        return (pull * value * (h @ self.last).flatten(1)).sum(-1) + clear.mean(-1) * whole

    def log_density(self, x: Tensor, level: Tensor) -> Tensor:
        """log b(x) + g(x, s), shape (n,), with log b linear in x: samplers may differentiate it in the pixels."""
        log_b = self.base.log_table[self.base.rows]
        return (x * self.odds + log_b[:, 0]).sum(-1) + self(x, level)

    def _body(
        self, value: Tensor, visible: Tensor, clear: Tensor, level: Tensor, known: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The features of every pixel (n, c, rows, columns) and those of the coarsest stage.

        What else is known of an image, (n, 64), is added to the features of its levels.
        """
        mark = visible.float()
        at = self.embed_level(_level_features(level.float(), visible))
        at = at if known is None else at + known
        inputs = torch.stack([value, mark, clear, (self.odds / 4).expand_as(value)], -1)
        h = inputs.view(len(value), *self.shape, 4).permute(0, 3, 1, 2)  # channels last in memory
        h = self.first(h.to(torch.bfloat16 if self.precision == "bf16" else torch.float32))
        skips = []
        for stage, shrink in zip(self.down, self.shrink, strict=False):
            skips.append(stage(h, at))
            h = shrink(skips[-1])
        h = bottom = self.up[0](self.down[-1](h, at), at)
        for stage, grow in zip(self.up[1:], self.grow, strict=True):
            h = stage(skips.pop() + interpolate(grow(h), scale_factor=2.0, mode="nearest"), at)
        return h, bottom


def _normalised(h: Tensor) -> Tensor:
    """h with the channels (n, c, …) of each pixel at mean square 1.

    A group norm would couple all pixels, so that one flip changes every h_i a little, and copies channels-last images
    on CUDA; torch's layer norm spends a thread block on each pixel there.
    """
    return h * (h.square().mean(1, keepdim=True, dtype=torch.float32) + 1e-6).rsqrt().to(h.dtype)


def _level_features(level: Tensor, visible: Tensor) -> Tensor:
    """Six numbers (n, 6): the visible share, and smooth functions of the mean log-level of visible noisy pixels."""
    noisy = visible & (level > 0)
    count = noisy.sum(-1, keepdim=True)
    mean = torch.where(noisy, level.clamp(1e-6, 10.0).log(), 0.0).sum(-1, keepdim=True) / count.clamp_min(1)
    waves = [mean / 4, (mean / 4).sin(), (mean / 4).cos(), (mean / 2).sin(), (mean / 2).cos()]
    shape = torch.where(count > 0, torch.cat(waves, -1), 0.0)
    return torch.cat([visible.float().mean(-1, keepdim=True), shape], -1)


def _check(base: ProductBase, shape: tuple[int, int], channels: tuple[int, ...], precision: str) -> None:
    if set(base.space.sizes) != {2}:
        raise ValueError(
            f"base: expected columns of two values, one per pixel; got sizes {set(base.space.sizes)}."
        )
    if len(shape) != 2 or shape[0] * shape[1] != base.space.dim:
        raise ValueError(f"shape: expected height × width = {base.space.dim} pixels; got {shape}.")
    halvings = 2 ** (len(channels) - 1)
    if not channels or any(side % halvings for side in shape):
        raise ValueError(
            f"channels: {len(channels)} stages halve the image {len(channels) - 1} times, which {shape} does not "
            "allow; give fewer channels."
        )
    if precision not in ("float32", "bf16"):
        raise ValueError(f"precision: expected 'float32' or 'bf16'; got {precision!r}.")
