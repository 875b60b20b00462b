r"""Conditionals of real columns: normalised in closed form, whatever the coefficients are.

    ρ(t) = w₀ φ(t) A(Φ(t)) + w₁ τ(u) B(T(u)) / σ + Σ_i w_i N(t; m_i, σ_i²),      u = (t − m)/σ

φ and Φ are the standard normal density and distribution function, τ(u) = (2 + u²)^{−3/2} and T those of Student's t
with two degrees of freedom: heavy tails, and closed forms both ways. A and B are densities on [0, 1]: frequency
polygons, linear between fixed knots. A has the shape of the margin, at fixed places; B follows a prediction m ± σ and
resolves what is left, however narrow that is; a few normal densities around the prediction are for modes. One
evaluation, no quadrature, no sorting.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ctem.densities.choices import choose

__all__ = ["FAR", "NumberHead", "Polygon", "log_normal"]

FAR = 8.0  # no prediction is beyond, nor is a draw: decoding makes no sense there
NARROWEST, WIDEST = 0.003, 1.5  # spreads of a prediction
ENDS_A, ENDS_B = 4.0, 4.5  # outermost knots, in t and in asinh u
MODES = 4  # normal densities around the prediction
START = (-2.0, 0.0, *[-3.0] * MODES)  # log-weights of the parts before training
NARROWER = -0.7  # log-spread of a mode before training, relative to the prediction's
TIGHT = 1e-6  # distance from a knot, at least, within a cell
STEEPEST = 40.0  # log-heights, so that float32 can sum their exponentials
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class Polygon(nn.Module):
    """Densities on [0, 1], linear between fixed knots and constant beyond the outermost.

    Arguments:
        knots: increasing numbers in (0, 1).

    >>> flat = Polygon(torch.tensor([0.2, 0.5, 0.9]))
    >>> flat.log_prob(torch.tensor([[0.3]]), torch.tensor([[0]]), torch.zeros(1, 3)).exp().round(decimals=4)
    tensor([[1.]])
    """

    knots: Tensor
    share: Tensor

    def __init__(self, knots: Tensor):
        super().__init__()
        ends = torch.cat([knots.new_zeros(1), knots, knots.new_ones(1)])
        middles = (ends[1:-2] + ends[2:-1]) / 2
        share = torch.cat([knots.new_zeros(1), middles, knots.new_ones(1)]).diff()
        self.register_buffer("knots", knots.float(), persistent=False)
        self.register_buffer("share", share.float(), persistent=False)

    def log_prob(self, y: Tensor, cell: Tensor, log_height: Tensor) -> Tensor:
        """log-density at y (…, q) in the cell between knots ``cell`` and cell + 1, given heights (…, knots)."""
        low, high = self.knots[cell], self.knots[cell + 1]
        place = ((y - low) / (high - low)).clamp(TIGHT, 1 - TIGHT)
        left, right = log_height.gather(-1, cell), log_height.gather(-1, cell + 1)
        here = torch.logaddexp(left + torch.log1p(-place), right + place.log())
        return here - (log_height.exp() @ self.share).log().unsqueeze(-1)

    def cdf(self, y: Tensor, log_height: Tensor) -> Tensor:
        """The mass below y (…, q), given heights (…, knots).

        >>> Polygon(torch.tensor([0.2, 0.5, 0.9])).cdf(torch.tensor([[0.3]]), torch.zeros(1, 3))
        tensor([[0.3000]])
        """
        height = (log_height - log_height.amax(-1, keepdim=True)).exp()
        knots = self.knots.to(y.dtype)
        ends = torch.cat([knots.new_zeros(1), knots, knots.new_ones(1)])
        padded = torch.cat([height[..., :1], height, height[..., -1:]], -1)
        mass = (padded[..., 1:] + padded[..., :-1]) / 2 * ends.diff()
        below = torch.cat([torch.zeros_like(mass[..., :1]), mass.cumsum(-1)], -1)
        cell = torch.searchsorted(knots, y.contiguous())
        wide = ends[cell + 1] - ends[cell]
        t = ((y - ends[cell]) / wide).clamp(0, 1)
        left, right = padded.gather(-1, cell), padded.gather(-1, cell + 1)
        part = wide * t * (left + (right - left) * t / 2)
        return (below.gather(-1, cell) + part) / below[..., -1:]

    def draw(self, log_height: Tensor, generator: torch.Generator) -> Tensor:
        """A number for each row of heights (n, knots)."""
        knots = self.knots
        height = (log_height - log_height.max(-1, keepdim=True).values).exp()
        ends = torch.cat([knots.new_zeros(1), knots, knots.new_ones(1)])
        padded = torch.cat([height[:, :1], height, height[:, -1:]], 1)
        mass = (padded[:, 1:] + padded[:, :-1]) / 2 * ends.diff()
        cell = choose(mass, generator).unsqueeze(1)
        left, right = padded.gather(1, cell).squeeze(1), padded.gather(1, cell + 1).squeeze(1)
        u = torch.rand(left.shape, generator=generator, dtype=left.dtype, device=left.device)
        # invert u = (left t + (right − left) t²/2) / ((left + right)/2) in a form that is stable for left ≈ right
        root = (left**2 + u * (right**2 - left**2)).clamp_min(0).sqrt()
        t = (u * (left + right) / (left + root)).clamp(0, 1)
        cell = cell.squeeze(1)
        return ends[cell] + t * (ends[cell + 1] - ends[cell])


class _Parts(NamedTuple):
    """What a density is made of: log-weights (…, 2 + modes), the parts' places, and the log-heights of A and B."""

    log_weight: Tensor
    mean: Tensor  # (…, 1 + modes): that of B, then those of the modes
    spread: Tensor  # (…, 1 + modes)
    fixed: Tensor  # (…, knots of A)
    moving: Tensor  # (…, knots of B)


class NumberHead(nn.Module):
    """Densities of numbers, each from ``size`` coefficients and a prediction.

    The coefficients are log-weights, shifts and stretches of the prediction, and the log-heights of A and of B,
    relative to a standard normal: without any (all zero) ρ is nearly a normal density around the prediction.

    Arguments:
        knots: of A and of B.

    >>> head = NumberHead()
    >>> t, mean, spread = torch.zeros(1, 1), torch.zeros(1), torch.ones(1)
    >>> round(head.log_prob(t, torch.zeros(1, head.size), mean, spread).exp().item(), 1)  # N(0, 1)
    0.4
    """

    scale: Tensor
    start: Tensor
    shares: Tensor
    knots: Tensor
    steepness: Tensor

    def __init__(self, knots: tuple[int, int] = (9, 17)):
        super().__init__()
        self.lengths = (2 + MODES, 1 + MODES, 1 + MODES, *knots)
        self.size = sum(self.lengths)
        t = torch.linspace(-ENDS_A, ENDS_A, knots[0], dtype=torch.float64)
        u = torch.linspace(-ENDS_B, ENDS_B, knots[1], dtype=torch.float64).sinh()
        self.fixed, self.moving = Polygon(torch.special.ndtr(t)), Polygon(_cdf(u))
        normal = (log_normal(u) - _log_density(u)).clamp_min(-30)
        shares = self.fixed.share.double(), normal.exp() * self.moving.share
        # heights of knots that a standard normal seldom meets may be larger; weights move four times as fast
        scale = torch.cat([torch.full((2 + MODES,), 0.25), torch.ones(2 + 2 * MODES)])
        scale = torch.cat([scale, torch.cat(shares).sqrt().clamp_min(0.1)])
        stretch = [0.0, *[NARROWER] * MODES]
        start = [*START, 0.0, *torch.linspace(-1, 1, MODES).tolist(), *stretch, *[0.0] * knots[0]]
        every = torch.cat([self.fixed.knots, self.moving.knots])
        buffers = {
            "scale": scale.float(),
            "start": torch.cat([torch.tensor(start), normal.float()]),
            "shares": torch.block_diag(self.fixed.share.unsqueeze(1), self.moving.share.unsqueeze(1)),
            "knots": every,
            "steepness": 1 / every.diff(append=every.new_full((1,), 2.0)),  # between a knot and the next
        }
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)

    def log_prob(self, t: Tensor, out: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
        """log ρ(t) of q numbers (…, q) from coefficients (…, size) and a prediction, its mean and spread (…)."""
        parts = self._parts(out, mean, spread)
        log_a = self.fixed.log_prob(torch.special.ndtr(t), _cell(t / ENDS_A, self.lengths[3]), parts.fixed)
        u = (t.unsqueeze(-1) - parts.mean.unsqueeze(-2)) / parts.spread.unsqueeze(-2)
        near, log_spread = u[..., 0], parts.spread.log().unsqueeze(-2)
        cell = _cell(near.detach().asinh() / ENDS_B, self.lengths[4])
        log_b = self.moving.log_prob(_cdf(near), cell, parts.moving) + _log_density(near)
        moving = torch.cat([log_b.unsqueeze(-1), log_normal(u[..., 1:])], -1) - log_spread
        fixed = (log_a + log_normal(t)).unsqueeze(-1)
        return (torch.cat([fixed, moving], -1) + parts.log_weight.unsqueeze(-2)).logsumexp(-1)

    def cdf(self, t: Tensor, out: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
        """The mass below q numbers t (…, q), from coefficients (…, size) and a prediction, its mean and spread (…).

        >>> head = NumberHead()
        >>> head.cdf(torch.zeros(1, 1), torch.zeros(1, head.size), torch.zeros(1), torch.ones(1))
        tensor([[0.5000]])
        """
        parts = self._parts(out, mean, spread)
        u = (t.unsqueeze(-1) - parts.mean.unsqueeze(-2)) / parts.spread.unsqueeze(-2)
        fixed = self.fixed.cdf(torch.special.ndtr(t), parts.fixed).unsqueeze(-1)
        moving = self.moving.cdf(_cdf(u[..., 0]), parts.moving).unsqueeze(-1)
        below = torch.cat([fixed, moving, torch.special.ndtr(u[..., 1:])], -1)
        return (below * parts.log_weight.exp().unsqueeze(-2)).sum(-1)

    def log_prob_of_scaled(self, t: Tensor, scaled: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
        """log ρ of a number each (…, n) from ``found / scale + start`` (…, size, n), for training.

        Equal to ``log_prob`` but for rounding. Its gradient is written out, and is of the coefficients alone. Rows come
        last: there are dozens of operations on a few coefficients of many rows.
        """
        return cast("Tensor", _LogProb.apply(scaled, t, mean, spread, self))

    def draw(self, out: Tensor, mean: Tensor, spread: Tensor, generator: torch.Generator) -> Tensor:
        """A number within ±8 for each row of coefficients (n, size)."""
        parts = self._parts(out, mean, spread)
        part = choose(parts.log_weight.exp(), generator).unsqueeze(1)
        fixed = torch.special.ndtri(self.fixed.draw(parts.fixed, generator)).unsqueeze(1)
        u = torch.randn(parts.mean.shape, generator=generator, dtype=out.dtype, device=out.device)
        u = torch.cat([_quantile(self.moving.draw(parts.moving, generator)).unsqueeze(1), u[:, 1:]], 1)
        every = torch.cat([fixed, parts.mean + parts.spread * u], 1)
        return every.gather(1, part).squeeze(1).clamp(-FAR, FAR)

    def _parts(self, out: Tensor, mean: Tensor, spread: Tensor) -> _Parts:
        weight, shift, stretch, a, b = (out / self.scale + self.start).split(self.lengths, -1)
        mean, spread = mean.unsqueeze(-1), spread.unsqueeze(-1)
        return _Parts(
            weight.log_softmax(-1),
            (mean + spread * shift).clamp(-FAR, FAR),
            (spread * (3 * torch.tanh(stretch / 3)).exp()).clamp(NARROWEST, WIDEST),
            a.clamp(-STEEPEST, STEEPEST),
            b.clamp(-STEEPEST, STEEPEST),
        )


class _LogProb(torch.autograd.Function):
    """``NumberHead.log_prob_of_scaled``; the parts are named as in ``_Parts``. Here rows are last."""

    @staticmethod
    def forward(
        ctx: Any, scaled: Tensor, t: Tensor, mean: Tensor, spread: Tensor, head: NumberHead
    ) -> Tensor:
        weight, shift, stretch, heights = scaled.split((*head.lengths[:3], sum(head.lengths[3:])), -2)
        t, mean, spread = t.unsqueeze(-2), mean.unsqueeze(-2), spread.unsqueeze(-2)
        at = torch.addcmul(mean, spread, shift).clamp_(-FAR, FAR)
        bend = torch.tanh(stretch / 3)
        log_s = torch.add(spread.log(), bend, alpha=3).clamp_(math.log(NARROWEST), math.log(WIDEST))
        u = (t - at).mul_((-log_s).exp_())
        near, modes = u.split((1, MODES), -2)
        cell, place = _places(head, t, near)
        height = heights.clamp(-STEEPEST, STEEPEST).exp_()
        total = head.shares.T @ height
        left, right = height.gather(-2, cell), height.gather(-2, cell + 1)
        here = torch.lerp(left, right, place)
        log_p = torch.cat([log_normal(t), _log_density(near), log_normal(modes)], -2)
        log_p[..., :2, :] += here.log() - total.log()
        log_p[..., 1:, :] -= log_s
        log_p += weight
        whole, weights = log_p.logsumexp(-2, keepdim=True), weight.logsumexp(-2, keepdim=True)
        ctx.head = head
        ctx.save_for_backward(weight - weights, heights, spread, at, bend, log_s, u, log_p.sub_(whole))
        ctx.polygons = cell, place, height, total, here, right - left
        return (whole - weights).squeeze(-2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        log_weight, heights, spread, at, bend, log_s, u, log_part = ctx.saved_tensors
        grad = grad.unsqueeze(-2)
        part = log_part.exp()  # of the density there, that each part has
        of_weight = (part - log_weight.exp()).mul_(grad)
        part.mul_(grad)
        near, modes = u.split((1, MODES), -2)
        of_heights, slope = _polygons_backward(ctx.head, part[..., :2, :], heights, near, *ctx.polygons)
        of_u = part[..., 1:, :] * torch.cat([slope, -modes], -2)
        of_shift = torch.where(at.abs() < FAR, -of_u * (-log_s).exp() * spread, 0.0)
        free = (log_s > math.log(NARROWEST)) & (log_s < math.log(WIDEST))
        of_stretch = torch.where(free, (of_u * u + part[..., 1:, :]) * (bend**2 - 1), 0.0)
        return torch.cat([of_weight, of_shift, of_stretch, of_heights], -2), None, None, None, None


def _polygons_backward(
    head: NumberHead,
    part: Tensor,
    heights: Tensor,
    u: Tensor,
    cell: Tensor,
    place: Tensor,
    height: Tensor,
    total: Tensor,
    here: Tensor,
    rise: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradient w.r.t. the log-heights of both polygons, and the slope of the log-density of B at u."""
    of_heights = head.shares @ (-part / total)
    both = part / here
    high = both * place
    of_heights.scatter_add_(-2, cell, both - high).scatter_add_(-2, cell + 1, high)
    of_heights = torch.ops.aten.hardtanh_backward(of_heights.mul_(height), heights, -STEEPEST, STEEPEST)
    second = place[..., 1:, :]
    inside = (second > TIGHT) & (second < 1 - TIGHT)
    steep = rise[..., 1:, :] * head.steepness[cell[..., 1:, :]] / here[..., 1:, :]
    q = 2 + u**2
    return of_heights, torch.where(inside, steep * q**-1.5, 0.0) - 3 * u / q


def _places(head: NumberHead, t: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
    """The cells of the two polygons among all knots, and the places in them on (0, 1): (…, 2, n) each."""
    first, second = head.lengths[3:]
    cell = torch.cat([_cell(t / ENDS_A, first), _cell(near.asinh() / ENDS_B, second) + first], -2)
    y = torch.cat([torch.special.ndtr(t), _cdf(near)], -2)
    return cell, ((y - head.knots[cell]) * head.steepness[cell]).clamp_(TIGHT, 1 - TIGHT)


def _cell(place: Tensor, knots: int) -> Tensor:
    """The cell of places on [−1, 1] that evenly spaced knots cut up."""
    return ((place.clamp(-1, 1) + 1) * ((knots - 1) / 2)).clamp(max=knots - 1.001).long()


def _cdf(u: Tensor) -> Tensor:
    return 0.5 + 0.5 * u * torch.rsqrt(2 + u**2)


def _quantile(y: Tensor) -> Tensor:
    return (2 * y - 1) * torch.rsqrt((2 * y * (1 - y)).clamp_min(1e-7))


def log_normal(u: Tensor) -> Tensor:
    """log of the standard normal density.

    >>> round(log_normal(torch.zeros(())).item(), 4)
    -0.9189
    """
    return -0.5 * u**2 - LOG_SQRT_2PI


def _log_density(u: Tensor) -> Tensor:
    return -1.5 * torch.log(2 + u**2)
