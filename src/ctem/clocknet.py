"""The level-conditional energy g(x, s) = log ρ_s(x)/b(x), with one noise level s_j per column.

A column at s_j = ∞ is hidden: the network does not see it. With every column hidden g = 0, because ρ_∞ = b; so
exp g needs no normalising constant of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, silu

from ctem.bases import ProductBase
from ctem.conditionals import Coefficients, Curve, Splines, Values
from ctem.residuals import Inverse, inverses, predictions, residuals
from ctem.slopes import Sloped

__all__ = ["ClockNet", "Ensemble"]


class _Linear(nn.Module):
    """One linear map per member: (members, n, inputs) → (members, n, outputs)."""

    def __init__(self, members: int, inputs: int, outputs: int, generator: torch.Generator):
        super().__init__()
        reach = 1 / math.sqrt(inputs)
        draw = torch.rand(members, inputs + 1, outputs, generator=generator) * 2 * reach - reach
        self.weight, self.bias = nn.Parameter(draw[:, :-1].clone()), nn.Parameter(draw[:, -1:].clone())

    def forward(self, h: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, h, self.weight)


class _Norm(nn.Module):
    """Layer normalisation with a scale and a shift per member."""

    def __init__(self, members: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, width))
        self.bias = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, h: Tensor) -> Tensor:
        return torch.addcmul(self.bias, layer_norm(h, h.shape[-1:]), self.weight)


class _Block(nn.Module):
    """h + W₂ silu(W₁ norm(h)), with dropout in the middle."""

    def __init__(self, members: int, width: int, drop: float, generator: torch.Generator):
        super().__init__()
        self.norm = _Norm(members, width)
        self.inner = _Linear(members, width, width, generator)
        self.outer = _Linear(members, width, width, generator)
        self.drop = nn.Dropout(drop)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.outer(self.drop(silu(self.inner(self.norm(h)))))


class ClockNet(Sloped):
    """Residual networks for mixed rows with a clock per column: g(x, s) = net(seen) − net(nothing seen).

    Blind to hidden columns and zero when all are hidden, by construction; zero everywhere at first, so that it
    starts at the base density exactly. Several members train at once, as one batched program: **row r of a batch
    belongs to member r mod members**. ``Ensemble`` makes one density of them.

    Arguments:
        base: the base b; g corrects it.
        width: units per layer.
        blocks: residual blocks.
        dropout: within the blocks.
        harmonics: sines and cosines of each real and ordinal value, for fine structure.
        members: independent networks.
        correlation: of the scores, from ``scores_of`` the data: what N(0, C) predicts becomes an input.
        slopes: conditionals of single columns as slopes (``ctem.slopes``): an inner-product term Σ_f f · h_f over the
            features of discrete columns, and hats for real ones.
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
    scores: Tensor
    places: Tensor
    centre: Tensor
    scale: Tensor
    correlation: Tensor | None

    def __init__(
        self,
        base: ProductBase,
        width: int = 256,
        blocks: int = 4,
        dropout: float = 0.0,
        harmonics: int = 3,
        members: int = 1,
        correlation: Tensor | None = None,
        slopes: bool = False,
        seed: int = 0,
    ):
        super().__init__()
        self.base, self.space, self.members = base, base.space, members
        self.options = {
            "width": width,
            "blocks": blocks,
            "dropout": dropout,
            "harmonics": harmonics,
            "slopes": slopes,
        }
        for name, tensor in _inputs(base, harmonics).items():
            self.register_buffer(name, tensor, persistent=False)
        self.register_buffer("correlation", correlation)
        inputs = len(self.owner) + self.space.dim + len(self.scores) * (1 + 2 * harmonics) + 5
        inputs += 0 if correlation is None else 2 * len(self.scores) + 1
        generator = torch.Generator().manual_seed(seed)
        self.first = _Linear(members, inputs, width, generator)
        self.body = nn.Sequential(*[_Block(members, width, dropout, generator) for _ in range(blocks)])
        self.norm = _Norm(members, width)
        self.last = nn.Parameter(torch.zeros(members, width, 1))
        self.values, self.splines = Values(base), None
        self.head = nn.Parameter(torch.zeros(members, width, len(self.owner))) if slopes else None
        if slopes and self.space.reals:
            self.splines = Splines()
            size = (2 + self.splines.size) * len(self.space.reals)
            self.hats = nn.Parameter(torch.zeros(members, width, size))

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """g(x, s) for rows x (n, d) and levels (n, d) or (n,), inf where hidden; what x holds there is ignored."""
        level = level.unsqueeze(-1).expand_as(x) if level.ndim == x.ndim - 1 else level
        seen = self.seen(x, level).unflatten(0, (-1, self.members)).transpose(0, 1)
        out = self._net(seen).transpose(0, 1).flatten()
        return torch.where(torch.isfinite(level).any(-1), out, 0.0)

    def each(self, x: Tensor, level: Tensor) -> Tensor:
        """g(x, s) by every member: (n, members)."""
        level = level.unsqueeze(-1).expand_as(x) if level.ndim == x.ndim - 1 else level
        out = self._net(self.seen(x, level).expand(self.members, -1, -1)).T
        return torch.where(torch.isfinite(level).any(-1, keepdim=True), out, 0.0)

    def coefficients(self, x: Tensor, level: Tensor, clock: Tensor) -> Coefficients:
        """Of all conditionals at the level ``clock`` (n, 1), given the visible columns.

        For a value v of a hidden discrete column it is ∂g/∂f_v / spread_v, to first order g(x_j = v) − g(x_j = 0) with
        column j shown: all of them from one pass and one gradient.
        """
        level = level.unsqueeze(-1).expand_as(x) if level.ndim == x.ndim - 1 else level
        inverse = self._inverses(level)
        seen = self._seen(x, level, inverse).unflatten(0, (-1, self.members)).transpose(0, 1)
        training = torch.is_grad_enabled()
        with torch.enable_grad():
            seen = seen.detach().requires_grad_()
            h = self._features(seen)
            slope = seen
            if len(self.owner):
                (slope,) = torch.autograd.grad(self._energy(h, seen).sum(), seen, create_graph=training)
        values = (self._hits(slope) / self.spread).transpose(0, 1).flatten(0, 1)
        if self.splines is None:
            return Coefficients(values, None)
        hats = torch.bmm(h[:, :-1], self.hats).transpose(0, 1).flatten(0, 1)
        mean, spread = self._predictions(x, level, clock, inverse)
        return Coefficients(values, Curve.around(mean, spread, hats.view(*mean.shape, -1)))

    def _predictions(
        self, x: Tensor, level: Tensor, clock: Tensor, inverse: Inverse | None
    ) -> tuple[Tensor, Tensor]:
        """Mean and spread of every real column at the level ``clock``, linear in the visible scores."""
        if self.correlation is None or inverse is None:
            reals = len(self.space.reals)
            return x.new_zeros(len(x), reals), x.new_ones(len(x), reals)
        value, clear = self._scores_at(x, level)
        mean, spread = predictions(value, clear, self.correlation, (-clock).exp(), inverse)
        return mean.index_select(1, self.places), spread.index_select(1, self.places)

    def _scores_at(self, x: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        """Visible scores, and how clear they are: 1 is clean, 0 is hidden."""
        level = level.index_select(1, self.scores)
        visible = torch.isfinite(level)
        return torch.where(visible, self.scores_of(x), 0.0), torch.where(visible, (-level).exp(), 0.0)

    def _inverses(self, level: Tensor) -> Inverse | None:
        if self.correlation is None:
            return None
        level = level.index_select(1, self.scores)
        return inverses(torch.where(torch.isfinite(level), (-level).exp(), 0.0), self.correlation)

    def _hits(self, seen: Tensor) -> Tensor:
        """The entries of the features of discrete columns."""
        return seen[..., self.space.dim : self.space.dim + len(self.owner)]

    def member(self, k: int) -> ClockNet:
        """Member k alone, sharing no weights."""
        alone = ClockNet(self.base, correlation=self.correlation, **self.options)  # type: ignore[arg-type]
        alone.load_state_dict({name: v[k : k + 1] for name, v in self.named_parameters()}, strict=False)
        return alone.to(self.last.device).train(self.training)

    @classmethod
    def stacked(cls, nets: Sequence[ClockNet]) -> ClockNet:
        """The members of several networks of one shape as one network."""
        if not nets:
            raise ValueError("nets: expected at least one; got none.")
        members, correlation = sum(g.members for g in nets), nets[0].correlation
        whole = cls(nets[0].base, members=members, correlation=correlation, **nets[0].options)  # type: ignore[arg-type]
        states = [dict(g.named_parameters()) for g in nets]
        whole.load_state_dict({k: torch.cat([s[k] for s in states]) for k in states[0]}, strict=False)
        return whole.to(nets[0].last.device).train(nets[0].training)

    def _net(self, seen: Tensor) -> Tensor:
        return self._energy(self._features(seen), seen)

    def _features(self, seen: Tensor) -> Tensor:
        """The last layer of every row, and of one that sees nothing: (members, n + 1, width)."""
        nothing = torch.zeros_like(seen[:, :1])
        return self.norm(self.body(self.first(torch.cat([seen, nothing], 1))))

    def _energy(self, h: Tensor, seen: Tensor) -> Tensor:
        out = torch.bmm(h, self.last).squeeze(-1)
        out = out[:, :-1] - out[:, -1:]
        if self.head is None:
            return out
        return out + (torch.bmm(h[:, :-1], self.head) * self._hits(seen)).sum(-1)

    def scores_of(self, x: Tensor) -> Tensor:
        """Reals and ordinals, centred and scaled: (n, scores)."""
        return (x.index_select(1, self.scores) - self.centre) / self.scale

    def seen(self, x: Tensor, level: Tensor) -> Tensor:
        """Network inputs (n, inputs): every entry of a hidden column is zero."""
        return self._seen(x, level, self._inverses(level))

    def _seen(self, x: Tensor, level: Tensor, inverse: Inverse | None) -> Tensor:
        visible = torch.isfinite(level)
        parts = [torch.where(visible, (-level).exp(), 0.0)]
        if len(self.owner):
            hit = (x.index_select(1, self.owner) == self.value).to(x.dtype)
            shown = visible.index_select(1, self.owner)
            parts.append(torch.where(shown, (hit - self.share) / self.spread, 0.0))
        if len(self.scores):
            value, clear = self._scores_at(x, level)
            shown = visible.index_select(1, self.scores)
            parts += [value, (_waves(value, self.frequencies) * shown.unsqueeze(-1)).flatten(1)]
            if inverse is not None:
                parts.append(residuals(value, clear, inverse))
        return torch.cat([*parts, _clock(level, visible)], dim=-1)


class Ensemble(nn.Module):
    """The mixture of a network's members: g = log (1/K) Σ_k e^{g_k}, blind and pinned as they are.

    A mean of densities that are normalised at every level and for every visible set is normalised there too, and its
    marginals are the means of theirs: the mixture is again one consistent potential.

    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 2))
    >>> Ensemble(ClockNet(base, width=8, members=3))(torch.zeros(1, 2), torch.zeros(1)).shape
    torch.Size([1])
    """

    def __init__(self, net: ClockNet):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """log of the mean of e^{g_k(x, s)} over the members, shape (n,)."""
        return self.net.each(x, level).logsumexp(1) - math.log(self.net.members)


def _inputs(base: ProductBase, harmonics: int) -> dict[str, Tensor]:
    """What the network sees of which column: shares of discrete values, and scores of reals and ordinals."""
    space, real = base.space, torch.get_default_dtype()
    # one feature for every value but the first of a discrete column, of mean 0 and variance 1 under b
    owner = [j for j in space.discretes for _ in range(1, space.sizes[j])]
    value = [v for j in space.discretes for v in range(1, space.sizes[j])]
    rows = base.rows[owner].cpu() if owner else torch.zeros(0, dtype=torch.long)
    share = base.log_table.cpu()[rows, value].exp()
    scores = [j for j in range(space.dim) if j in space.reals or (j in space.ordinals and space.sizes[j] > 2)]
    centre, scale = torch.zeros(len(scores)), torch.ones(len(scores))
    for i, j in enumerate(scores):
        if k := space.sizes[j]:
            b, code = base.log_table[base.rows[j], :k].cpu().double().exp(), torch.arange(k).double()
            centre[i] = (b * code).sum()
            scale[i] = (b * (code - centre[i]) ** 2).sum().sqrt()
    return {
        "owner": torch.tensor(owner, dtype=torch.long),
        "value": torch.tensor(value, dtype=real),
        "share": share,
        "spread": (share * (1 - share)).sqrt().clamp_min(0.03),
        "scores": torch.tensor(scores, dtype=torch.long),
        "places": torch.tensor([scores.index(j) for j in space.reals], dtype=torch.long),
        "centre": centre.to(real),
        "scale": scale.to(real),
        "frequencies": math.pi / 2 * 2.0 ** torch.arange(harmonics),
    }


def _clock(level: Tensor, visible: Tensor) -> Tensor:
    """Five smooth functions of the mean log-level of the visible noisy columns, 0 where there is none."""
    noisy = visible & (level > 0)
    count = noisy.sum(-1, keepdim=True)
    log_s = torch.where(noisy, level.clamp(1e-6, 10.0).log(), 0.0)
    mean = log_s.sum(-1, keepdim=True) / count.clamp_min(1)
    shape = torch.cat([mean / 4, _waves(mean, torch.arange(1, 3, device=mean.device) / 4).flatten(1)], -1)
    return torch.where(count > 0, shape, 0.0)


def _waves(value: Tensor, frequencies: Tensor) -> Tensor:
    """sin and cos of each frequency, weaker the higher it is, (…, 2 · harmonics)."""
    phase = value.unsqueeze(-1) * frequencies
    return torch.cat([phase.sin(), phase.cos()], dim=-1) * (frequencies[:1] / frequencies).repeat(2)
