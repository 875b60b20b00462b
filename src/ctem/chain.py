r"""The chain rule on a clock-per-column energy: exact normalisation, any marginal or conditional, any-order sampling.

With V the visible columns, g(x; V) = log ρ_V(x_V)/b_V(x_V), so every one-column conditional is

    log ρ(x_j|x_V) = log b_j(x_j) + g(x; V ∪ j) − log Σ_v b_j(v) e^{g(x_j = v; V ∪ j)},

a sum over the values of a discrete column, the trapezoidal rule over a real one. A potential with slopes
(``ctem.slopes``) gives the conditional from one pass instead. A product of such conditionals in any order of the
columns is normalised by construction, and so is a mixture over orders. A real column is normalised on [−limit, limit]
in standardised units: what g puts beyond is not seen.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ctem.bases import ProductBase
from ctem.conditionals import Splines
from ctem.slopes import Sloped

__all__ = ["Chain", "Drawn", "draw_between", "nodes"]


class Drawn(NamedTuple):
    """Rows drawn by the chain rule and the log-density that they were drawn with.

    >>> Drawn(torch.zeros(4, 2), torch.zeros(4)).log_prob.shape
    torch.Size([4])
    """

    x: Tensor  # (n, d)
    log_prob: Tensor  # (n,), of the cells that were drawn


class Chain:
    """Exact conditionals of g(x, s), one column at a time.

    A nan cell of x is missing: hidden, and marginalised exactly.

    Arguments:
        g: the energy of levels, e.g. ClockNet.
        base: its base.
        floor: level of visible real columns, as in training.
        points: nodes of the trapezoidal rule for a real column; ``quadrature_error`` indicates its error.
        limit: the rule runs over [−limit, limit] in standardised units.
        batch_size: evaluations of g at a time, which bounds the memory.
        slopes: a potential whose slopes give the conditionals (``ctem.slopes``), instead of differences of g.
        parents: for a real column that exists only where a category has code 0, that category. ``orders`` have it
            first: a part that does not exist is skipped, which is normalised only if it is known by then to be absent.
        fine: level of visible real columns for the slopes; ``floor`` when left out.

    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Real, Space
    >>> base = ProductBase(Space([Real(), Category(3)]))
    >>> chain = Chain(ClockNet(base, width=16), base)  # untrained: the base itself
    >>> x = torch.tensor([[0.5, 2.0]])
    >>> torch.allclose(chain.log_prob(x, [0, 1]), base.log_prob(x), atol=1e-5)
    True
    """

    def __init__(
        self,
        g: Callable[[Tensor, Tensor], Tensor],
        base: ProductBase,
        floor: float = 1e-3,
        points: int = 513,
        limit: float = 8.0,
        batch_size: int = 2**17,
        slopes: Sloped | None = None,
        parents: Mapping[int, int] | None = None,
        fine: float | None = None,
    ):
        if points < 5 or points % 2 == 0:
            raise ValueError(f"points: expected an odd number ≥ 5; got {points}.")
        self.g, self.base, self.space = g, base, base.space
        self.floor, self.points, self.limit, self.batch_size = floor, points, limit, batch_size
        self.shift = 0.0  # of the nodes, to check the rule
        self.slopes, self.parents, self.fine = slopes, dict(parents or {}), floor if fine is None else fine
        if any(_drops(part) for part in (g, slopes)):
            raise ValueError("g: dropout is switched on, so that every call would differ; pass g.eval().")
        width, enough = 2 * limit / (points - 1), nodes(floor, limit)
        if self.space.reals and points < enough and slopes is None:
            warnings.warn(
                f"nodes {width:.3f} apart may miss the finest peaks that floor={floor:g} allows; "
                f"points={enough} would not.",
                UserWarning,
                stacklevel=2,
            )

    def orders(self, count: int, generator: torch.Generator) -> list[list[int]]:
        """Random orders of the columns.

        >>> from ctem.spaces import Real, Space
        >>> base = ProductBase(Space([Real()] * 3))
        >>> sorted(Chain(lambda x, s: x.sum(-1), base).orders(1, torch.Generator())[0])
        [0, 1, 2]
        """
        d, device = self.space.dim, generator.device
        drawn = [torch.randperm(d, generator=generator, device=device).tolist() for _ in range(count)]
        for order in drawn:
            for child, parent in self.parents.items():
                i, j = order.index(child), order.index(parent)
                if i < j:
                    order[i], order[j] = parent, child
        return drawn

    def log_prob(self, x: Tensor, order: Sequence[int], given: Iterable[int] = ()) -> Tensor:
        """log ρ(x_order | x_given) by the chain rule in the given order of columns, shape (n,)."""
        given = list(given)
        self._check_columns([*order, *given])
        observed = ~x.isnan()
        visible = torch.zeros_like(observed)
        visible[:, given] = observed[:, given]
        total = x.new_zeros(len(x))
        for j in order:
            total = total + self.term(x, visible, j)
            visible = visible.clone()
            visible[:, j] = observed[:, j]
        return total

    def term(self, x: Tensor, visible: Tensor, j: int) -> Tensor:
        """log ρ(x_j | x_visible), and 0 where x_j is missing, shape (n,)."""
        return torch.where(x[:, j].isnan(), 0.0, self._at_value(x, visible, j))

    def log_prob_mixture(
        self, x: Tensor, orders: Sequence[Sequence[int]], given: Iterable[int] = ()
    ) -> Tensor:
        """log of the mean over orders of ρ(x_order | x_given): again normalised, and better."""
        each = torch.stack([self.log_prob(x, order, given) for order in orders])
        return each.logsumexp(0) - math.log(len(orders))

    def joint(self, x: Tensor) -> Tensor:
        """log b(x) + g(x): the one-pass log-density of the observed cells, normalised up to training error."""
        observed = ~x.isnan()
        filled = torch.where(observed, x, 0.0)
        parts = []
        rows = zip(filled.split(self.batch_size), observed.split(self.batch_size), strict=True)
        with torch.no_grad():
            for part, seen in rows:
                log_b = torch.where(seen, self.base.column_log_prob(part), 0.0).sum(-1)
                parts.append(log_b + self.g(part, self._level(part, seen, self.floor)))
        return torch.cat(parts)

    def potential(self, x: Tensor) -> Tensor:
        """log b(x) + g(x) of complete rows, differentiable: the joint as a log-potential for samplers."""
        seen = torch.ones_like(x, dtype=torch.bool)
        return self.base.log_prob(x) + self.g(x, self._level(x, seen, self.floor))

    def conditional(self, x: Tensor, visible: Tensor, j: int) -> tuple[Tensor, Tensor]:
        """Values of column j and log ρ(value | x_visible) of each: (q,), (n, q). For a real column, densities."""
        values = self._values(j, x)
        if self.slopes is not None:
            return values, self._by_slope(self.slopes, x, visible, j, values.expand(len(x), -1))
        score = self._scores(x, visible, j, values.expand(len(x), -1))
        return values, score - self._log_total(score, j, values)

    def sample(
        self,
        n: int,
        generator: torch.Generator,
        order: Sequence[int] | None = None,
        given: Tensor | None = None,
    ) -> Drawn:
        """n rows, drawn column by column without MCMC; or the nan cells of ``given`` (n, d), filled in.

        >>> from ctem.spaces import Category, Space
        >>> base = ProductBase(Space([Category(2)] * 2))
        >>> known = torch.tensor([[1.0, math.nan]])
        >>> Chain(lambda x, s: x[:, 0] * 0, base).sample(1, torch.Generator(), given=known).x[0, 0]
        tensor(1.)
        """
        order = self.orders(1, generator)[0] if order is None else list(order)
        self._check_columns(order)
        x = rows_to_fill(self.base, n, order, given)
        total = x.new_zeros(len(x))
        for j in order:
            todo = x[:, j].isnan().nonzero().squeeze(1)
            if len(todo) == 0:
                continue
            x[todo, j], log_q = self.draw(x[todo], j, generator)
            total[todo] += log_q
        return Drawn(x, total)

    def draw(self, x: Tensor, j: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A value of column j for each row, given its observed cells, and its log-density."""
        visible = ~x.isnan()
        if self.slopes is not None:
            filled = torch.where(visible, x, 0.0)
            rows = zip(filled.split(self.batch_size), visible.split(self.batch_size), strict=True)
            with torch.no_grad():
                drawn = [
                    self.slopes.draw(part, self._level(part, v, self.fine), j, self._clock(part), generator)
                    for part, v in rows
                ]
            return torch.cat([value for value, _ in drawn]), torch.cat([log_q for _, log_q in drawn])
        values, log_p = self.conditional(x, visible, j)
        if not self.space.sizes[j]:
            return draw_between(values, log_p, generator)
        code = torch.multinomial(log_p.exp(), 1, generator=generator)
        return values[code.squeeze(1)], log_p.gather(1, code).squeeze(1)

    def quadrature_error(self, x: Tensor, order: Sequence[int]) -> float:
        """Largest change of log ρ over the rows when all nodes move by half a step: an indicator of the error.

        With slopes, when there are twice as many nodes.
        """
        moved = copy.copy(self)
        moved.shift = self.limit / (self.points - 1)
        if self.slopes is not None and self.slopes.splines is not None:
            moved.slopes = copy.deepcopy(self.slopes)
            moved.slopes.splines = (
                Splines(self.slopes.splines.knots, 2 * self.slopes.splines.cuts).to(x).eval()
            )
        return float((self.log_prob(x, order) - moved.log_prob(x, order)).abs().max())

    def _check_columns(self, columns: Sequence[int]) -> None:
        if len(set(columns)) < len(columns) or not set(columns) <= set(range(self.space.dim)):
            raise ValueError(
                f"order, given: expected different columns of 0 … {self.space.dim - 1}; got {list(columns)}."
            )

    def _level(self, x: Tensor, visible: Tensor, floor: float) -> Tensor:
        level = torch.zeros_like(x)
        level[:, list(self.space.reals)] = floor
        return torch.where(visible, level, math.inf)

    def _values(self, j: int, like: Tensor) -> Tensor:
        k = self.space.sizes[j]
        if k:
            return torch.arange(k, dtype=like.dtype, device=like.device)
        nodes = torch.linspace(-self.limit, self.limit, self.points, dtype=like.dtype, device=like.device)
        return nodes + self.shift

    def _scores(self, x: Tensor, visible: Tensor, j: int, values: Tensor) -> Tensor:
        """log b_j(v) + g(x with x_j = v; V ∪ j) for values (n, q), in batches."""
        q = values.shape[1]
        shown = visible.clone()
        shown[:, j] = True
        filled = torch.where(visible, x, 0.0)
        parts = []
        step = max(1, self.batch_size // q)
        with torch.no_grad():
            for start in range(0, len(x), step):
                rows = slice(start, start + step)
                many = filled[rows].repeat_interleave(q, 0)
                many[:, j] = values[rows].flatten()
                level = self._level(filled[rows], shown[rows], self.floor).repeat_interleave(q, 0)
                log_b = self.base.column_log_prob(many)[:, j]
                parts.append((log_b + self.g(many, level)).view(-1, q))
        return torch.cat(parts)

    def _by_slope(self, slopes: Sloped, x: Tensor, visible: Tensor, j: int, values: Tensor) -> Tensor:
        """log ρ(value | x_visible) of values (n, q) of a hidden column, in batches."""
        filled, step = torch.where(visible, x, 0.0), self.batch_size
        rows = zip(filled.split(step), visible.split(step), values.split(step), strict=True)
        with torch.no_grad():
            return torch.cat(
                [
                    slopes.conditional(part, self._level(part, v, self.fine), j, at, self._clock(part))
                    for part, v, at in rows
                ]
            )

    def _clock(self, x: Tensor) -> Tensor:
        return torch.full_like(x[:, :1], self.fine)

    def _log_total(self, score: Tensor, j: int, values: Tensor) -> Tensor:
        if self.space.sizes[j]:
            return score.logsumexp(1, keepdim=True)
        width = 2 * self.limit / (len(values) - 1)
        ends = torch.zeros_like(values)
        ends[[0, -1]] = math.log(0.5)
        return (score + ends).logsumexp(1, keepdim=True) + math.log(width)

    def _at_value(self, x: Tensor, visible: Tensor, j: int) -> Tensor:
        """log ρ(x_j | x_visible), shape (n,); the node of a real value itself is evaluated too."""
        value = torch.where(x[:, j : j + 1].isnan(), 0.0, x[:, j : j + 1])
        if self.slopes is not None:
            log_p = self._by_slope(self.slopes, x, visible, j, value)
            return (log_p.gather(1, value.long()) if self.space.sizes[j] else log_p).squeeze(1)
        values = self._values(j, x)
        if self.space.sizes[j]:
            score = self._scores(x, visible, j, values.expand(len(x), -1))
            here = score.gather(1, value.long())
        else:
            score = self._scores(x, visible, j, torch.cat([values.expand(len(x), -1), value], 1))
            score, here = score[:, :-1], score[:, -1:]
        return (here - self._log_total(score, j, values)).squeeze(1)


def _drops(g: object) -> bool:
    return isinstance(g, nn.Module) and any(
        m.training and m.p > 0 for m in g.modules() if isinstance(m, nn.Dropout)
    )


def rows_to_fill(base: ProductBase, n: int, order: Sequence[int], given: Tensor | None) -> Tensor:
    """Rows (n, d) with nan in the cells to be drawn, all of whose columns are in the order; a copy of ``given``."""
    like, d = base.log_table, base.space.dim
    if given is not None and given.shape != (n, d):
        raise ValueError(f"given: expected shape ({n}, {d}); got {tuple(given.shape)}.")
    nothing = torch.full((n, d), math.nan, dtype=like.dtype, device=like.device)
    x = nothing if given is None else given.clone()
    left = [j for j in range(d) if j not in order and bool(x[:, j].isnan().any())]
    if left:
        raise ValueError(f"order: expected every column that is not given; missing {left}.")
    return x


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


def nodes(level: float, limit: float) -> int:
    """How many nodes on [−limit, limit] resolve a density at this noise level.

    It is smooth on the scale σ = √(1 − e^{−2s}): for a peak that narrow, the trapezoidal rule with steps of 1.5 σ errs
    by a relative 2 exp(−2π²/1.5²) = 3e-4, and by far less for wider ones.

    >>> nodes(0.1, 8.0)
    27
    """
    return 1 + 2 * math.ceil(limit / (1.5 * math.sqrt(-math.expm1(-2 * level))))
