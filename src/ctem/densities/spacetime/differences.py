r"""Conditionals as differences of a potential with a noise level per column.

With V the visible columns, g(x; V) = log ρ_V(x_V)/b_V(x_V), so every one-column conditional is

    log ρ(x_j|x_V) = log b_j(x_j) + g(x; V ∪ j) − log Σ_v b_j(v) e^{g(x_j = v; V ∪ j)},

a sum over the values of a discrete column, the trapezoidal rule over a real one. A real column is normalised on
[−limit, limit] in standardised units: what g puts beyond is not seen.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctem.bases import ProductBase
from ctem.densities.chain import Chain, Conditional, Conditionals, Probabilities
from ctem.densities.choices import choose

__all__ = ["Differences", "Nodes", "draw_between", "node_count", "quadrature_error"]

Potential = Callable[[Tensor, Tensor], Tensor]


class Differences(Conditionals):
    """The conditionals and the one-pass density b·e^g of a potential g(x, s) (``ctem.densities.chain.Conditionals``).

    Arguments:
        g: the potential of levels, e.g. LevelNet.
        base: its base.
        level: of visible real columns, as in training.
        points: nodes of the trapezoidal rule for a real column; ``quadrature_error`` indicates its error.
        limit: the rule runs over [−limit, limit] in standardised units.
        batch_size: evaluations of g at a time, which bounds the memory.

    >>> from ctem.densities.spacetime.network import LevelNet
    >>> from ctem.spaces import Category, Real, Space
    >>> base = ProductBase(Space([Real(), Category(3)]))
    >>> chain = Chain(Differences(LevelNet(base, width=16), base))  # untrained: the base itself
    >>> x = torch.tensor([[0.5, 2.0]])
    >>> torch.allclose(chain.log_prob(x, [0, 1]), base.log_prob(x), atol=1e-5)
    True
    """

    def __init__(
        self,
        g: Potential,
        base: ProductBase,
        level: float = 1e-3,
        points: int = 513,
        limit: float = 8.0,
        batch_size: int = 2**17,
    ):
        if points < 5 or points % 2 == 0:
            raise ValueError(f"points: expected an odd number ≥ 5; got {points}.")
        self.g, self.base, self.space = g, base, base.space
        self.level, self.points, self.limit, self.batch_size = level, points, limit, batch_size
        self.shift = 0.0  # of the nodes, to check the rule
        if _drops(g):
            raise ValueError("g: dropout is switched on, so that every call would differ; pass g.eval().")
        width, enough = 2 * limit / (points - 1), node_count(level, limit)
        if self.space.reals and points < enough:
            warnings.warn(
                f"nodes {width:.3f} apart may miss the finest peaks that level={level:g} allows; "
                f"points={enough} would not.",
                UserWarning,
                stacklevel=2,
            )

    def given(self, x: Tensor, visible: Tensor, j: int) -> Conditional:
        """ρ(x_j | x_V) for rows x (n, d) and their visible sets V (n, d)."""
        values = self.values(j, x)
        score = self.scores(x, visible, j, values.expand(len(x), -1))
        if self.space.sizes[j]:
            return Probabilities(score.log_softmax(1))
        ends = torch.zeros_like(values)
        ends[[0, -1]] = math.log(0.5)
        width = 2 * self.limit / (self.points - 1)
        log_total = (score + ends).logsumexp(1, keepdim=True) + math.log(width)
        return Nodes(self, x, visible, j, score - log_total, log_total)

    def draw(self, x: Tensor, visible: Tensor, j: int, generator: torch.Generator) -> Tensor:
        """A draw from ``given(x, visible, j)`` for each row, (n,)."""
        return self.given(x, visible, j).draw(generator)

    def one_pass(self, x: Tensor) -> Tensor:
        """log b(x) + g(x): the one-pass log-density of the observed cells, normalised up to training error."""
        observed = ~x.isnan()
        filled = torch.where(observed, x, 0.0)
        parts = []
        rows = zip(filled.split(self.batch_size), observed.split(self.batch_size), strict=True)
        with torch.no_grad():
            for part, seen in rows:
                log_b = torch.where(seen, self.base.column_log_prob(part), 0.0).sum(-1)
                parts.append(log_b + self.g(part, self._level(part, seen)))
        return torch.cat(parts)

    def potential(self, x: Tensor) -> Tensor:
        """log b(x) + g(x) of complete rows, differentiable: the one-pass density as a log-potential for samplers."""
        seen = torch.ones_like(x, dtype=torch.bool)
        return self.base.log_prob(x) + self.g(x, self._level(x, seen))

    def values(self, j: int, like: Tensor) -> Tensor:
        """All values of column j, or its nodes, (q,)."""
        k = self.space.sizes[j]
        if k:
            return torch.arange(k, dtype=like.dtype, device=like.device)
        nodes = torch.linspace(-self.limit, self.limit, self.points, dtype=like.dtype, device=like.device)
        return nodes + self.shift

    def scores(self, x: Tensor, visible: Tensor, j: int, values: Tensor) -> Tensor:
        """log b_j(v) + g(x with x_j = v; V ∪ j) for values (n, q), in batches."""
        q = values.shape[1]
        shown = visible.clone()
        shown[:, j] = True
        parts = []
        step = max(1, self.batch_size // q)
        with torch.no_grad():
            for start in range(0, len(x), step):
                rows = slice(start, start + step)
                many = x[rows].repeat_interleave(q, 0)
                many[:, j] = values[rows].flatten()
                level = self._level(x[rows], shown[rows]).repeat_interleave(q, 0)
                log_b = self.base.column_log_prob(many)[:, j]
                parts.append((log_b + self.g(many, level)).view(-1, q))
        return torch.cat(parts)

    def _level(self, x: Tensor, visible: Tensor) -> Tensor:
        level = torch.where(self.base.is_real, self.level, torch.zeros_like(x))
        return torch.where(visible, level, math.inf)


@dataclass(frozen=True)
class Nodes:
    """The conditional of a real column by the trapezoidal rule; a value that is asked is evaluated itself.

    >>> from ctem.densities.spacetime.network import LevelNet
    >>> from ctem.spaces import Real, Space
    >>> base = ProductBase(Space([Real()]))
    >>> x, hidden = torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.bool)
    >>> Differences(LevelNet(base, width=8), base).given(x, hidden, 0).log_prob(torch.zeros(1)).exp()
    tensor([0.3989])
    """

    of: Differences
    x: Tensor
    visible: Tensor
    column: int
    log_p: Tensor  # (n, q)
    log_total: Tensor  # (n, 1)

    def log_prob(self, value: Tensor) -> Tensor:
        """log ρ of numbers (n,)."""
        score = self.of.scores(self.x, self.visible, self.column, value.unsqueeze(1))
        return (score - self.log_total).squeeze(1)

    def table(self) -> tuple[Tensor, Tensor]:
        """The nodes (q,) and log ρ there, (n, q)."""
        return self.of.values(self.column, self.x), self.log_p

    def draw(self, generator: torch.Generator) -> Tensor:
        """A number for each row from the piecewise linear density through the nodes, (n,)."""
        return draw_between(self.of.values(self.column, self.x), self.log_p, generator)

    def rows(self, index: Tensor) -> Nodes:
        """Those of these rows."""
        x, visible = self.x[index], self.visible[index]
        return Nodes(self.of, x, visible, self.column, self.log_p[index], self.log_total[index])


def quadrature_error(differences: Differences, x: Tensor, order: Sequence[int]) -> float:
    """Largest change of log ρ over the rows when all nodes move by half a step: an indicator of the error.

    >>> from ctem.densities.spacetime.network import LevelNet
    >>> from ctem.spaces import Real, Space
    >>> base = ProductBase(Space([Real()]))
    >>> quadrature_error(Differences(LevelNet(base, width=8), base), torch.zeros(1, 1), [0]) < 1e-4
    True
    """
    moved = copy.copy(differences)
    moved.shift = differences.limit / (differences.points - 1)
    change = Chain(differences).log_prob(x, order) - Chain(moved).log_prob(x, order)
    return float(change.abs().max())


def draw_between(nodes: Tensor, log_p: Tensor, generator: torch.Generator) -> Tensor:
    """A number for each row from the piecewise linear density through its nodes, (q,) and (n, q).

    >>> nodes, log_p = torch.tensor([0.0, 1.0]), torch.zeros(3, 2)
    >>> draw_between(nodes, log_p, torch.Generator().manual_seed(0)).shape
    torch.Size([3])
    """
    p = log_p.exp()
    width = nodes[1] - nodes[0]
    mass = (p[:, :-1] + p[:, 1:]) * width / 2
    cell = choose(mass, generator).unsqueeze(1)
    left, right = p.gather(1, cell), p.gather(1, cell + 1)
    u = torch.rand(cell.shape, generator=generator, dtype=p.dtype, device=p.device)
    # invert u = (left t + (right − left) t²/2) / ((left + right)/2) in a form that is stable for left ≈ right
    root = (left**2 + u * (right**2 - left**2)).clamp_min(0).sqrt()
    t = (u * (left + right) / (left + root)).clamp(0, 1)
    return (nodes[cell] + t * width).squeeze(1)


def node_count(level: float, limit: float) -> int:
    """How many nodes on [−limit, limit] resolve a density at this noise level.

    It is smooth on the scale σ = √(1 − e^{−2s}): for a peak that narrow, the trapezoidal rule with steps of 1.5 σ errs
    by a relative 2 exp(−2π²/1.5²) = 3e-4, and by far less for wider ones.

    >>> node_count(0.1, 8.0)
    27
    """
    return 1 + 2 * math.ceil(limit / (1.5 * math.sqrt(-math.expm1(-2 * level))))


def _drops(g: object) -> bool:
    return isinstance(g, nn.Module) and any(
        m.training and m.p > 0 for m in g.modules() if isinstance(m, nn.Dropout)
    )
