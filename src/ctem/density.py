r"""A normalised density on encoded rows: the clock-per-column energy and all that it answers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ctem.bases import ProductBase
from ctem.chain import Chain, nodes
from ctem.clocknet import ClockNet, Ensemble
from ctem.conditionals import Coefficients, Curve
from ctem.energies import grad_log_density
from ctem.joint import mixture_log_z, shared_log_z
from ctem.partition import LogZ
from ctem.parts import Parts
from ctem.plans import Plan
from ctem.slopes import Sloped
from ctem.training import History

__all__ = ["Density", "chain_of", "chains", "crossfitted"]

FINE, COARSE = 1e-5, 1e-2  # levels at which slopes see real columns
LIMIT = 8.0  # real columns are normalised on [−8, 8] standard deviations
MOST_NODES = 1025  # of a conditional by slopes, whose normalisation does not rest on them
COMPLETIONS = 1024  # of a row with gaps, at most, that are summed


def chains(
    net: ClockNet,
    level: float,
    parents: Mapping[int, int],
    slopes: ClockNet | None = None,
    fine: float | None = None,
) -> list[Chain]:
    """The chain rule of every member of the networks; or of every member of slopes, with one joint of all of net.

    >>> from ctem.spaces import Category, Space
    >>> len(chains(ClockNet(ProductBase(Space([Category(2)] * 3)), width=8, members=3), 1e-3, {}))
    3
    """
    if slopes is None:
        alone = [_Gated(net.member(k), parents) for k in range(net.members)]
        return [chain_of(g, net.base, level, parents) for g in alone]
    joint = _joint(net, parents)
    conditionals = [_Gated(slopes.member(k), parents) for k in range(slopes.members)]
    return [chain_of(joint, net.base, level, parents, each, fine) for each in conditionals]


def crossfitted(
    net: ClockNet, level: float, parents: Mapping[int, int], slopes: ClockNet, fine: float
) -> Chain:
    """The chain rule in which row r of a batch is judged by member r mod members of slopes, e.g. one blind to it.

    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> net = ClockNet(base, width=8, members=2, slopes=True)
    >>> crossfitted(net, 1e-3, {}, net, 1e-3).log_prob(torch.zeros(4, 3), [0, 1, 2]).exp()
    tensor([0.1250, 0.1250, 0.1250, 0.1250])
    """
    return chain_of(_joint(net, parents), net.base, level, parents, _Gated(slopes, parents), fine)


def _joint(net: ClockNet, parents: Mapping[int, int]) -> _Gated:
    return _Gated(net if net.members == 1 else Ensemble(net), parents)


def chain_of(
    g: nn.Module,
    base: ProductBase,
    level: float,
    parents: Mapping[int, int],
    slopes: Sloped | None = None,
    fine: float | None = None,
) -> Chain:
    """The chain rule of g with the nodes and the batches that suit its level and its device.

    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> chain_of(ClockNet(base, width=8), base, 1e-3, {}).batch_size
    8192
    """
    batch_size = 2**17 if base.log_table.is_cuda else 2**13  # what fits a CPU's cache
    enough = nodes(level, LIMIT) if fine is None else min(nodes(fine, LIMIT), MOST_NODES)
    return Chain(g, base, level, max(65, enough), LIMIT, batch_size, slopes, parents, fine)


class Density:
    """A fitted density on encoded rows x (n, d); nan marks a cell that is missing, and is marginalised.

    Arguments:
        net: the trained network.
        level: noise level at which real columns are resolved.
        plan: what it was made by.
        history: of the training.
        log_z: constant of the one-pass density; estimated from the chain when left out.
        seed: of the orders of columns.
        parents: for a real column that exists only where a category has code 0, that category.
        slopes: networks of the conditionals of single columns; without them the chain rule takes differences of net.
        fine: noise level at which real columns are resolved by the slopes.
        orders: of the columns in exact densities, a list for each member; random ones when left out.

    >>> from ctem.spaces import Category, Space
    >>> base, plan = ProductBase(Space([Category(2)] * 3)), Plan.suited(rows=300, features=3)
    >>> density = Density(ClockNet(base, width=8), 1e-3, plan, History())  # untrained: the base itself
    >>> density.log_prob_exact(torch.zeros(1, 3)).exp()
    tensor([0.1250])
    """

    def __init__(
        self,
        net: ClockNet,
        level: float,
        plan: Plan,
        history: History,
        log_z: LogZ | None = None,
        seed: int = 0,
        parents: Mapping[int, int] | None = None,
        slopes: ClockNet | None = None,
        fine: float | None = None,
        orders: Sequence[Sequence[Sequence[int]]] | None = None,
    ):
        self.net, self.level, self.plan, self.history = net.eval(), level, plan, history
        self.slopes, self.fine = None if slopes is None else slopes.eval(), fine
        self.base, self.space = net.base, net.space
        self.parents = dict(parents or {})
        g = _joint(net, self.parents)
        self.parts = g.parts
        self.members = chains(net, level, self.parents, self.slopes, fine)
        self.chain = self.members[0] if slopes is not None else chain_of(g, self.base, level, self.parents)
        # in float64 a row's value is the same to 1e-12 whatever batch it comes in
        double = copy.deepcopy(g).double(), copy.deepcopy(self.base).double()
        self.double = chain_of(*double, level, self.parents)
        turns = torch.Generator().manual_seed(seed)
        self.orders = orders or [chain.orders(plan.orders, turns) for chain in self.members]
        self.log_z = (
            self._log_z(torch.Generator(self.base.log_table.device).manual_seed(seed))
            if log_z is None
            else log_z
        )

    def _log_z(self, generator: torch.Generator) -> LogZ:
        """Of the one-pass density, from chain samples at its own level: finer ones would miss what it blurs."""
        n, proposals = self.plan.log_z_samples, self.proposals()
        if self.slopes is None:
            return mixture_log_z(proposals, n, generator)
        return shared_log_z(proposals, self.orders, n, generator)

    def proposals(self) -> list[Chain]:
        """The chains whose samples are weighed against the one-pass density: the members, resolved as it is."""
        if self.slopes is None:
            return self.members
        level = min(max(self.level, FINE), COARSE)
        return chains(self.net, self.level, self.parents, self.slopes, level)

    def log_prob(self, x: Tensor) -> Tensor:
        """The one-pass log-density log b + g − log Z, float64, shape (n,).

        A row with gaps in discrete columns is summed over all that the gaps may hold, up to 1024 completions; gaps that
        hold more, or numbers, are left to the chain rule.
        """
        gap = self.parts.gaps(x)
        out = torch.empty(len(x), dtype=torch.float64, device=x.device)
        count = torch.where(gap, self.base.sizes, 1).double().prod(1)
        summed = (count <= COMPLETIONS) & ~(gap & self.base.is_real).any(1)
        if bool(summed.any()):
            out[summed] = self._summed(x[summed].double(), gap[summed])
        if not bool(summed.all()):
            out[~summed] = self.log_prob_exact(x[~summed]).double()
        return out

    def _summed(self, x: Tensor, gap: Tensor) -> Tensor:
        """The log-density of rows, summed over the values of their gaps."""
        if not bool(gap.any()):
            return self.double.joint(x) - self.log_z.value
        count = torch.where(gap, self.base.sizes, 1).prod(1)
        _, lengths = (count.cumsum(0) // self.double.batch_size).unique_consecutive(return_counts=True)
        sizes = lengths.tolist()
        parts = zip(x.split(sizes), gap.split(sizes), count.split(sizes), strict=True)
        return (
            torch.cat([_log_sum(self.double.joint, *part, self.base.sizes) for part in parts])
            - self.log_z.value
        )

    def log_prob_exact(
        self, x: Tensor, columns: Iterable[int] | None = None, given: Iterable[int] = ()
    ) -> Tensor:
        """log ρ(x_columns | x_given) by the chain rule: normalised by construction, a mixture of a few orders."""
        given = list(given)
        asked = set(range(self.space.dim)) - set(given) if columns is None else set(columns)
        if self.slopes is None:
            return self.chain.log_prob_mixture(x, _among(self.orders[0], asked), given)
        each = self._by_member(x, asked, given)
        known = torch.full_like(x, math.nan)
        known[:, given] = x[:, given]
        return (each + self._shares(known)).logsumexp(0)

    def conditional(self, x: Tensor, j: int) -> tuple[Tensor, Tensor]:
        """Values of column j (q,) and log ρ(value | the other observed cells) (n, q); densities for a real one."""
        known = x.clone()
        known[:, j] = math.nan
        if self.slopes is None:
            return self.chain.conditional(known, ~known.isnan(), j)
        each = [chain.conditional(known, ~known.isnan(), j) for chain in self.members]
        log_p = torch.stack([log_p for _, log_p in each])
        return each[0][0], (log_p + self._shares(known).unsqueeze(-1)).logsumexp(0)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n rows, drawn column by column in several orders."""
        like = self.base.log_table
        return self.complete(like.new_full((n, self.space.dim), math.nan), generator)

    def complete(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """x with its nan cells drawn given the others; rows take turns among the orders.

        A draw from a mixture is a draw from one member, chosen by how likely each finds the observed cells.
        """
        out = x.clone()
        member = self._responsible(x, generator)
        for k, chain in enumerate(self.members):
            mine = (member == k).nonzero().squeeze(1)
            for i, order in enumerate(self.orders[k]):
                rows = mine[i :: len(self.orders[k])]
                if len(rows):
                    out[rows] = chain.sample(len(rows), generator, order, given=x[rows]).x
        return out

    def _responsible(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A member for each row, drawn by its share of the density of the observed cells, (n,)."""
        if len(self.members) == 1:
            return torch.zeros(len(x), dtype=torch.long, device=x.device)
        return torch.multinomial(self._shares(x).T.exp().contiguous(), 1, generator=generator).squeeze(1)

    def _shares(self, x: Tensor) -> Tensor:
        """log of each member's share of the density of the observed cells, (members, n)."""
        if self.slopes is None:
            return torch.stack([chain.joint(x) for chain in self.members]).log_softmax(0)
        known = (~x.isnan()).any(0).nonzero().flatten().tolist()
        return self._by_member(x, known).log_softmax(0)

    def _by_member(self, x: Tensor, asked: Collection[int], given: Iterable[int] = ()) -> Tensor:
        """log ρ(x_asked | x_given) by the chain rule of every member, (members, n)."""
        turns = zip(self.members, self.orders, strict=True)
        return torch.stack(
            [chain.log_prob_mixture(x, _among(orders, asked), given) for chain, orders in turns]
        )

    def grad_log_prob(self, x: Tensor) -> Tensor:
        """∂ log ρ / ∂x of the real columns of complete rows, zero elsewhere, (n, d)."""
        grad = grad_log_density(self.chain.potential, x)
        return torch.where(self.base.is_real, grad, 0.0)


def _among(orders: Sequence[Sequence[int]], asked: Collection[int]) -> list[list[int]]:
    return [[j for j in order if j in asked] for order in orders]


def _log_sum(
    log_density: Callable[[Tensor], Tensor], x: Tensor, gap: Tensor, count: Tensor, sizes: Tensor
) -> Tensor:
    """log Σ over the ``count`` completions of each row, its gaps being in columns of so many values."""
    row = torch.arange(len(x), device=x.device).repeat_interleave(count)
    place = torch.arange(len(row), device=x.device) - (count.cumsum(0) - count)[row]
    whole = x[row]
    for j in gap.any(0).nonzero().flatten().tolist():
        open_ = gap[row, j]
        whole[:, j] = torch.where(open_, (place % sizes[j]).to(x.dtype), whole[:, j])
        place = torch.where(open_, place // sizes[j], place)
    log_p = log_density(whole)
    most = log_p.new_full((len(x),), -math.inf).scatter_reduce(0, row, log_p, "amax")
    return most + torch.zeros_like(most).index_add(0, row, (log_p - most[row]).exp()).log()


class _Gated(Sloped):
    """g blind to the real parts that do not exist, because their category is seen to have another code than 0.

    Such a part has its base density.
    """

    def __init__(self, g: nn.Module, parents: Mapping[int, int]):
        super().__init__()
        self.g, self.parts = g, Parts(parents)
        if isinstance(g, Sloped):
            self.base, self.values, self.splines = g.base, g.values, g.splines
        self.to(next(g.parameters()).device)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        return self.g(x, self.parts.hide(x, level))

    def coefficients(self, x: Tensor, level: Tensor, clock: Tensor) -> Coefficients:
        found = cast(Sloped, self.g).coefficients(x, self.parts.hide(x, level), clock)
        if found.curve is None or not self.parts.parents:
            return found
        absent = torch.zeros_like(x, dtype=torch.bool)
        absent = absent.index_copy(1, self.parts.child, self.parts.absent(x, level))
        absent, curve = absent.index_select(1, self.values.reals), found.curve
        gated = Curve(
            torch.where(absent, 0.0, curve.mean),
            torch.where(absent, 1.0, curve.spread),
            torch.where(absent.unsqueeze(-1), 0.0, curve.coefficients),
        )
        return Coefficients(found.values, gated)
