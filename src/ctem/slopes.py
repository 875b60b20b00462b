r"""All conditionals of one visible set at once: first-order comparisons.

A hidden column enters the network as zeros, the mean of its features φ under the base. The comparison of two of its
values, column j shown, is then to first order a slope of the scalar potential there,

    g(x_j = v; V ∪ j) − g(x_j = u; V ∪ j) ≈ (φ_j(v) − φ_j(u)) · ∂g/∂φ_j (x; V),

so that one pass and one gradient compare all values of *every* hidden discrete column, where finite differences need a
pass for each value. A real column has hat functions as its features (``ctem.conditionals``); they are seen by no one
but its own conditional, so that their slopes are linear in the last layer and need no gradient.

:class:`Slopes` is constant-target matching of all values of a column at once with the log rule, averaged over visible
sets. Conditionals defined by the slopes are normalised, and so is their product in any order (``ctem.chain``): an exact
likelihood, and samples without MCMC, in d passes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctem.bases import ProductBase
from ctem.conditionals import Curve, Splines, Values
from ctem.spacetime import show

__all__ = ["Sloped", "Slopes", "draw_between", "mean_of_asked", "random_sets"]

MOST = 16  # real columns of a row that are asked at a time


class Sloped(nn.Module):
    """A potential whose slopes are the coefficients of its one-column conditionals, e.g. ClockNet or ImageNet.

    It has ``values``, ``splines`` if real columns have conditionals too, and ``slopes``.

    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Real, Space
    >>> g = ClockNet(ProductBase(Space([Real(), Category(2)])), width=8, slopes=True)
    >>> x, hidden = torch.tensor([[0.0, 1.0]]), torch.full((1, 2), torch.inf)
    >>> g.log_conditionals(x, hidden, x, torch.zeros(1, 1)).exp().tolist()  # untrained: N(0, 1) and ½
    [[0.3989..., 0.5...]]
    """

    base: ProductBase
    values: Values
    splines: Splines | None

    def slopes(self, x: Tensor, level: Tensor) -> Tensor:
        """Coefficients of every conditional given x at these levels, (n, size); those of visible columns are void."""
        raise NotImplementedError

    def predict(self, x: Tensor, level: Tensor, clock: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and spread of every real column at the level ``clock`` (n, 1), given x: (n, reals) each."""
        raise NotImplementedError

    def log_conditionals(
        self, x: Tensor, level: Tensor, target: Tensor, clock: Tensor, some: Tensor | None = None
    ) -> Tensor:
        """log ρ(target_j | x at these levels) of every column, (n, d).

        ``some`` (n, m) are places among the real columns to which each row is limited; the others have 0.
        """
        slopes = self.slopes(x, level)
        out = self.values.log_prob(target, slopes[:, : len(self.values.owner)])
        if self.splines is None:
            return out
        t, curve = target.index_select(1, self.values.reals), self._curve(x, level, clock, slopes)
        if some is None:
            return out.index_copy(1, self.values.reals, self.splines.log_prob(t, curve))
        log_p = self.splines.log_prob(t.gather(1, some), curve.at(some))
        return out.index_copy(1, self.values.reals, torch.zeros_like(t).scatter(1, some, log_p))

    def conditional(self, x: Tensor, level: Tensor, j: int, values: Tensor, clock: Tensor) -> Tensor:
        """log ρ(value | x at these levels) of values (n, q) of column j: all of a discrete one, any of a real one."""
        slopes = self.slopes(x, level)
        if self.values.sizes[j]:
            return self.values.column(slopes, j)
        splines, curve = self._one(x, level, j, clock, slopes)
        return splines.log_density(values.unsqueeze(1), curve).squeeze(1)

    def draw(
        self, x: Tensor, level: Tensor, j: int, clock: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """A value of column j for each row and its log-density, (n,) each."""
        slopes = self.slopes(x, level)
        if self.values.sizes[j]:
            log_p = self.values.column(slopes, j)
            code = torch.multinomial(log_p.exp(), 1, generator=generator)
            return code.squeeze(1).to(x.dtype), log_p.gather(1, code).squeeze(1)
        splines, curve = self._one(x, level, j, clock, slopes)
        z, log_p = splines.on_nodes(curve)
        place, log_q = draw_between(z, log_p.squeeze(1), generator)
        t, jacobian = splines.unrolled(place.view(-1, 1, 1), curve)
        return t.flatten(), log_q - jacobian.flatten()

    def _one(self, x: Tensor, level: Tensor, j: int, clock: Tensor, slopes: Tensor) -> tuple[Splines, Curve]:
        if self.splines is None:
            raise ValueError(f"column {j}: real columns of this potential have no slopes.")
        place = torch.tensor([self.base.space.reals.index(j)], device=x.device)
        return self.splines, self._curve(x, level, clock, slopes).at(place)

    def _curve(self, x: Tensor, level: Tensor, clock: Tensor, slopes: Tensor) -> Curve:
        mean, spread = self.predict(x, level, clock)
        return Curve(mean, spread, slopes[:, len(self.values.owner) :].view(*mean.shape, -1))


def draw_between(nodes: Tensor, log_p: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A number for each row from the piecewise linear density through its nodes, (q,) and (n, q); its log-density.

    >>> nodes, log_p = torch.tensor([0.0, 1.0]), torch.zeros(3, 2)
    >>> draw_between(nodes, log_p, torch.Generator().manual_seed(0))[1]
    tensor([0., 0., 0.])
    """
    p = log_p.exp()
    width = nodes[1] - nodes[0]
    mass = (p[:, :-1] + p[:, 1:]) * width / 2
    cell = torch.multinomial(mass, 1, generator=generator)
    left, right = p.gather(1, cell), p.gather(1, cell + 1)
    u = torch.rand(cell.shape, generator=generator, dtype=p.dtype, device=p.device)
    # invert u = (left t + (right − left) t²/2) / ((left + right)/2) in a form that is stable for left ≈ right
    root = (left**2 + u * (right**2 - left**2)).clamp_min(0).sqrt()
    t = (u * (left + right) / (left + root)).clamp(0, 1)
    density = left + (right - left) * t
    return (nodes[cell] + t * width).squeeze(1), density.log().squeeze(1)


@dataclass(frozen=True)
class Slopes:
    """Mean −log ρ(x_j | x_V) over the hidden columns of a random visible set V, its size uniform on 0 … d − 1.

    d times its expectation is the mean of −log ρ(x) over all orders of the columns. Real columns, seen or asked, are at
    a level that each row draws.

    Arguments:
        base: the base.
        floor: lowest level of real columns.
        high: highest level of real columns, which is drawn log-uniformly; None leaves them at the floor.

    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 16))
    >>> objective, g = Slopes(base), ClockNet(base, width=8, slopes=True)
    >>> round(objective(g, torch.zeros(8, 16), torch.Generator().manual_seed(0)).item(), 4)  # no skill yet
    0.6931
    """

    base: ProductBase
    floor: float = 1e-3
    high: float | None = None

    def __call__(self, g: Sloped, x0: Tensor, generator: torch.Generator) -> Tensor:
        """The mean loss over rows x0 (n, d); nan marks a missing cell, which stays hidden and counts nothing."""
        observed = ~x0.isnan()
        visible = random_sets(observed, generator)
        shown = show(self.base, torch.where(observed, x0, 0.0), visible, self.floor, self.high, generator)
        asked, some, weight = observed & ~visible, None, None
        if len(self.base.space.reals) > MOST:
            some, weight = self._some(asked, g.values.reals, generator)
        log_p = g.log_conditionals(shown.x, shown.level, shown.x, shown.clock, some)
        return -mean_of_asked(log_p if weight is None else log_p * weight, asked)

    def _some(self, asked: Tensor, reals: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A few places of asked real columns for each row (n, 16), and weights (n, d) so that they stand for all."""
        real = asked & self.base.is_real
        mine = real.index_select(1, reals)
        u = torch.rand(mine.shape, generator=generator, device=asked.device)
        some = (mine + u / 2).topk(MOST).indices
        share = real.sum(1, keepdim=True) / mine.gather(1, some).sum(1, keepdim=True).clamp_min(1)
        return some, torch.where(self.base.is_real, share, 1.0)


def random_sets(observed: Tensor, generator: torch.Generator) -> Tensor:
    """A visible set of observed columns for each row (n, d), its size uniform on 0 … all but one.

    >>> random_sets(torch.ones(4, 4, dtype=torch.bool), torch.Generator().manual_seed(0)).sum(1).tolist()
    [0, 1, 2, 3]
    """
    n, d = observed.shape
    u = torch.rand(n, d + 1, generator=generator, device=observed.device)
    count = observed.sum(-1, keepdim=True)
    # one size from each n-th part of the range: far less variance than n independent ones
    part = torch.arange(n, device=observed.device).unsqueeze(1)
    size = torch.minimum(((part + u[:, d:]) / n * count).floor(), count - 1)
    return torch.where(observed, u[:, :d], 2.0).argsort(-1).argsort(-1) < size


def mean_of_asked(log_p: Tensor, asked: Tensor) -> Tensor:
    """The mean over rows of the mean over their asked columns; rows with none do not count.

    >>> mean_of_asked(torch.tensor([[1.0, 2.0], [3.0, 9.0]]), torch.tensor([[True, True], [True, False]]))
    tensor(2.2500)
    """
    count = asked.sum(-1)
    mean = torch.where(asked, log_p, 0.0).sum(-1) / count.clamp_min(1)
    return mean.sum() / (count > 0).sum().clamp_min(1)
