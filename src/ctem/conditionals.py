r"""One-column conditionals with a few coefficients: normalised, whatever the coefficients are.

    a discrete column   ρ(v) ∝ b(v) e^{c_v},   c = 0 for its first value
    a real column       ρ(t) ∝ q(t) exp(A(t)·a + B(u)·b),   u = (t − m)/σ,   q = 0.9 N(m, σ²) + 0.1 N(0, 1)

A and B are hat functions, in t and in asinh u: log ρ/q is piecewise linear. m and σ are a prediction of t: one that is
linear in what is visible, corrected by a network. Where it is good, B resolves what is left however narrow that is, and
A has the shape of the margin.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ctem.bases import ProductBase

__all__ = ["Coefficients", "Curve", "Splines", "Values"]

FAR = 8.0  # no prediction is beyond, nor is a draw
NARROWEST, WIDEST = 0.01, 1.5  # … nor a spread
TAILS = (5.0, 6.5, 8.0, 16.0)  # nodes beyond the hats; what is beyond the last has no mass to speak of
WIDE = 0.1  # share of the base in q: no prediction is trusted altogether
ENDS_A, ENDS_B = 4.0, 4.5  # the hats' outermost knots, in t and in asinh u


class Values(nn.Module):
    """The values of all discrete columns side by side, each but the first of its column.

    Arguments:
        base: the base b.

    >>> from ctem.spaces import Category, Real, Space
    >>> values = Values(ProductBase(Space([Category(2), Real(), Category(3)])))
    >>> values.owner.tolist(), values.code.tolist()
    ([0, 2, 2], [1, 1, 2])
    >>> values.column(torch.zeros(1, 3), 2).exp()
    tensor([[0.3333, 0.3333, 0.3333]])
    """

    owner: Tensor
    code: Tensor
    start: Tensor
    gain: Tensor
    is_real: Tensor
    reals: Tensor

    def __init__(self, base: ProductBase):
        super().__init__()
        self.sizes, table = base.space.sizes, base.log_table
        counts = torch.tensor([max(k - 1, 0) for k in self.sizes])
        start = counts.cumsum(0) - counts
        owner = torch.arange(len(counts)).repeat_interleave(counts)
        code = torch.arange(len(owner)) - start[owner] + 1
        rows = base.rows.cpu()[owner]
        gain = table.cpu()[rows, code] - table.cpu()[rows, 0]
        found = {"owner": owner, "code": code, "start": start, "gain": gain, "is_real": base.is_real}
        found["reals"] = torch.tensor(base.space.reals, dtype=torch.long)
        for name, value in found.items():
            self.register_buffer(name, value.to(table.device), persistent=False)

    def log_prob(self, x: Tensor, coefficients: Tensor) -> Tensor:
        """log ρ(x_j) of every column, (n, d); 0 for a real one."""
        if not len(self.owner):
            return torch.zeros_like(x)
        score = coefficients + self.gain
        at = (self.start + x.long() - 1).clamp(0, len(self.owner) - 1)
        own = torch.where(x > 0, score.gather(1, at), 0.0)
        return torch.where(self.is_real, 0.0, own - self._log_total(score))

    def column(self, coefficients: Tensor, j: int) -> Tensor:
        """log ρ(v) of every value of column j, (n, k)."""
        start = sum(max(k - 1, 0) for k in self.sizes[:j])
        part = slice(start, start + self.sizes[j] - 1)
        score = coefficients[:, part] + self.gain[part]
        return torch.cat([torch.zeros_like(score[:, :1]), score], 1).log_softmax(1)

    def _log_total(self, score: Tensor) -> Tensor:
        """log Σ_v e^{score_v} of every column, its first value having 0: (n, d)."""
        where = self.owner.expand_as(score)
        most = score.new_zeros(len(score), len(self.sizes)).scatter_reduce(1, where, score.detach(), "amax")
        total = (-most).exp().index_add(1, self.owner, (score - most.index_select(1, self.owner)).exp())
        return most + total.log()


class Curve(NamedTuple):
    """The conditionals of c real columns for each of n rows.

    >>> Curve(torch.zeros(4, 2), torch.ones(4, 2), torch.zeros(4, 2, 58)).coefficients.shape
    torch.Size([4, 2, 58])
    """

    mean: Tensor  # (n, c)
    spread: Tensor  # (n, c)
    coefficients: Tensor  # (n, c, size)

    @classmethod
    def around(cls, mean: Tensor, spread: Tensor, found: Tensor) -> Curve:
        """On a prediction that ``found`` corrects: a shift and a stretch of it for each column, then coefficients."""
        stretch = 3 * torch.tanh(found[..., 1] / 3)
        return cls(
            (mean + spread * found[..., 0]).clamp(-FAR, FAR),
            (spread * stretch.exp()).clamp(NARROWEST, WIDEST),
            found[..., 2:],
        )

    def at(self, column: Tensor) -> Curve:
        """Those of the columns with these places, (n, c) each row its own or (c,)."""
        column = column.expand(len(self.mean), -1)
        index = column.unsqueeze(-1).expand(-1, -1, self.coefficients.shape[-1])
        return Curve(
            self.mean.gather(1, column), self.spread.gather(1, column), self.coefficients.gather(1, index)
        )


class Coefficients(NamedTuple):
    """What the conditionals of all columns are made of.

    >>> Coefficients(torch.zeros(4, 3), None).values.shape
    torch.Size([4, 3])
    """

    values: Tensor  # (n, values), of discrete columns
    curve: Curve | None  # of real columns


class Splines(nn.Module):
    """Densities of real columns, piecewise log-linear on top of a prediction.

    Every knot is a node of the quadrature, and between two nodes the density counts as log-linear: a hat may be as
    steep as it likes and has its mass.

    Arguments:
        knots: of the hats in t and in asinh u.
        cuts: parts of the way from a knot to the next; half as many while training.

    >>> splines = Splines(cuts=16).eval()
    >>> base = Curve(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1, 1, splines.size))
    >>> splines.log_prob(torch.zeros(1, 1), base).exp()  # N(0, 1)
    tensor([[0.3989]])
    """

    scale: Tensor
    in_t: Tensor
    in_u: Tensor
    tails: Tensor

    def __init__(self, knots: tuple[int, int] = (33, 25), cuts: int = 4):
        super().__init__()
        self.knots, self.cuts, self.size = knots, cuts, sum(knots)
        # how often a standard normal is near a knot: coefficients of rare ones are allowed to be larger
        a, b = torch.linspace(-ENDS_A, ENDS_A, knots[0]), torch.linspace(-ENDS_B, ENDS_B, knots[1])
        near_a = (-(a**2) / 2).exp() * 2 * ENDS_A / (knots[0] - 1)
        near_b = (-(b.sinh() ** 2) / 2).exp() * b.cosh() * 2 * ENDS_B / (knots[1] - 1)
        share = torch.cat([near_a, near_b]) / math.sqrt(2 * math.pi)
        self.register_buffer("scale", share.sqrt().clamp_min(0.1), persistent=False)
        self.register_buffer("in_t", a, persistent=False)
        self.register_buffer("in_u", b.sinh(), persistent=False)
        tails = torch.tensor([*(-t for t in reversed(TAILS)), *TAILS])
        self.register_buffer("tails", tails, persistent=False)

    def log_prob(self, t: Tensor, curve: Curve) -> Tensor:
        """log ρ(t) of one number per column, (n, c)."""
        return self.log_density(t.unsqueeze(-1), curve).squeeze(-1)

    def log_density(self, t: Tensor, curve: Curve) -> Tensor:
        """log ρ(t) of q numbers per column, (n, c, q)."""
        cells = self._cells(curve)
        log_mass = torch.cat([cells.log_mass, self._beyond(cells.score, curve)], -1)
        return self._score(t, curve) - log_mass.logsumexp(-1, keepdim=True)

    def _beyond(self, score: Tensor, curve: Curve) -> Tensor:
        """log of the mass beyond the first and the last node, where the hats stay as they are there: (n, c, 2)."""
        mean, spread, end = curve.mean.unsqueeze(-1), curve.spread.unsqueeze(-1), TAILS[-1]
        far = torch.cat([(-end - mean) / spread, (mean - end) / spread], -1)
        near = torch.special.log_ndtr(far) + math.log(1 - WIDE)
        log_mass = torch.logaddexp(near, torch.special.log_ndtr(torch.full_like(far, -end)) + math.log(WIDE))
        ends = self.tails[:: len(self.tails) - 1].expand_as(far)
        return log_mass + score[..., :: score.shape[-1] - 1] - _log_q(ends, mean, spread)

    def draw(self, curve: Curve, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A number within ±8, beyond which decoding makes no sense, and its log-density, (n, c) each."""
        t, score, log_mass = self._cells(curve)
        near = (t[..., :-1] >= -FAR) & (t[..., 1:] <= FAR)
        log_mass = torch.where(near, log_mass, -math.inf)
        share = log_mass.softmax(-1)
        cell = torch.multinomial(share.flatten(0, 1), 1, generator=generator).view(*share.shape[:-1], 1)
        left, right, start = score.gather(-1, cell), score.gather(-1, cell + 1), t.gather(-1, cell)
        width, rise = t.gather(-1, cell + 1) - start, (right - left).abs()
        u = torch.rand(cell.shape, generator=generator, dtype=t.dtype, device=t.device)
        # a number in [0, 1] whose log-density rises evenly
        steep = rise.clamp_min(1e-3)
        place = torch.where(rise < 1e-3, u, 1 + (u + (1 - u) * (-steep).exp()).log() / steep)
        place = torch.where(right < left, 1 - place, place)
        log_q = left + (right - left) * place - log_mass.logsumexp(-1, keepdim=True)
        return (start + width * place).squeeze(-1), log_q.squeeze(-1)

    def _cells(self, curve: Curve) -> _Cells:
        """Between all knots and the nodes of the tails, each way cut in a few parts."""
        mean, spread, end = curve.mean.unsqueeze(-1), curve.spread.unsqueeze(-1), TAILS[-1]
        fixed = torch.cat([self.in_t, self.tails]).expand(*mean.shape[:-1], -1)
        knots = torch.cat([fixed, (mean + self.in_u * spread).clamp(-end, end)], -1).sort(-1).values
        cuts = max(1, self.cuts // 2) if self.training else self.cuts
        share = torch.arange(cuts, dtype=mean.dtype, device=mean.device) / cuts
        inner = knots[..., :-1, None] + knots.diff(dim=-1).unsqueeze(-1) * share
        t = torch.cat([inner.flatten(-2), knots[..., -1:]], -1)
        score = self._score(t, curve)
        log_width = t.diff(dim=-1).clamp_min(1e-30).log()
        return _Cells(t, score, log_width + _log_mean_exp(score[..., :-1], score[..., 1:]))

    def _score(self, t: Tensor, curve: Curve) -> Tensor:
        """log q(t) + A(t)·a + B(u)·b, not normalised; hats end where the cells do."""
        mean, spread = curve.mean.unsqueeze(-1), curve.spread.unsqueeze(-1)
        a, b = (curve.coefficients / self.scale).split(self.knots, -1)
        u = (t.clamp(-TAILS[-1], TAILS[-1]) - mean) / spread
        return _log_q(t, mean, spread) + _interpolated(a, t / ENDS_A) + _interpolated(b, u.asinh() / ENDS_B)


class _Cells(NamedTuple):
    """Nodes t (n, c, q), the score there, and log ∫ e^score between each and the next (n, c, q − 1)."""

    t: Tensor
    score: Tensor
    log_mass: Tensor


def _log_q(t: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    near = -0.5 * ((t - mean) / spread) ** 2 - spread.log() + math.log(1 - WIDE)
    return torch.logaddexp(near, -0.5 * t**2 + math.log(WIDE)) - 0.5 * math.log(2 * math.pi)


def _log_mean_exp(left: Tensor, right: Tensor) -> Tensor:
    """log ∫₀¹ exp(left + (right − left) s) ds = (left + right)/2 + log sinh(h)/h with h = (right − left)/2."""
    h = ((right - left) / 2).abs()
    steep = h.clamp_min(0.1)
    long = steep + torch.log1p(-(-2 * steep).exp()) - (2 * steep).log()
    short = h**2 / 6 - h**4 / 180
    return (left + right) / 2 + torch.where(h < 0.1, short, long)


def _interpolated(heights: Tensor, at: Tensor) -> Tensor:
    """Values at (n, c, q) of the piecewise linear functions with knots evenly on [−1, 1], constant beyond."""
    last = heights.shape[-1] - 1
    place = ((at.clamp(-1, 1) + 1) * (last / 2)).clamp(max=last - 1e-3)
    left = place.floor()
    index = left.long()
    return torch.lerp(heights.gather(-1, index), heights.gather(-1, index + 1), place - left)
