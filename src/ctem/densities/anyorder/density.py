r"""The fitted any-order density on encoded rows, and all that it answers.

A mixture over orders of the columns, every conditional one of the members of the network and the column's margin b:

    ρ(x) = (1/C) Σ_c Π_j ρ(x_j | columns before j in order c)
    ρ(x_j | x_V) = (w_j/K) Σ_k ρ_k(x_j | x_V) + (1 − w_j) b_j(x_j)

Marginals and conditionals keep the order of the columns that they ask for; what is given is shown from the start, and
weighs the orders by how likely each finds it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ctem.densities.anyorder.conditionals import AtLevel, NumberDensity
from ctem.densities.anyorder.network import AnyOrderNet
from ctem.densities.anyorder.rules import Rules
from ctem.densities.chain import Chain
from ctem.densities.choices import choose
from ctem.training import History

__all__ = ["AnyOrderDensity"]

TABULATED = 512  # rows whose conditional of a column is tabulated at a time
BATCH = 2**13  # rows at a time, at least


class AnyOrderDensity:
    """A normalised density on encoded rows x (n, d); nan marks a cell that is missing, and is marginalised.

    Arguments:
        net: the trained network.
        level: noise level at which real columns are resolved.
        orders: of the columns.
        parents: for a real column that exists only where a category has code 0, that category.
        late: for each column how late it comes in an order (``ctem.densities.chain.Chain``).
        member: the one that answers; all of them when left out.
        counted: what is exactly as by a formula counts by the probability of that: no density, but how rare it is.
        rules: what columns determine of others for certain, or nearly so (``ctem.densities.anyorder.rules``).
        history: of the training.

    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Category, Space
    >>> net = AnyOrderNet(ProductBase(Space([Category(2)] * 3)), width=8)  # untrained: the base itself
    >>> AnyOrderDensity(net, 1e-3, [[0, 1, 2]]).log_prob(torch.zeros(1, 3)).exp()
    tensor([0.1250], dtype=torch.float64)
    """

    def __init__(
        self,
        net: AnyOrderNet,
        level: float,
        orders: Sequence[Sequence[int]],
        *,
        parents: Mapping[int, int] | None = None,
        late: Sequence[float] | None = None,
        member: int | None = None,
        counted: bool = False,
        rules: Rules | None = None,
        history: History | None = None,
    ):
        self.net, self.level, self.orders = net.eval(), level, [list(order) for order in orders]
        self.base, self.space = net.base, net.space
        self.parents, self.history = dict(parents or {}), History() if history is None else history
        self.member, self.counts, self.rules = member, counted, rules
        at = AtLevel(net, level, member, counted, rules)
        self.chain = Chain(at, self.parents, late, None if rules is None else rules.after)

    def altered(
        self,
        *,
        level: float | None = None,
        member: int | None = None,
        counted: bool = False,
        orders: Sequence[Sequence[int]] | None = None,
    ) -> AnyOrderDensity:
        """The same density at another noise level, by one member alone, or in other orders."""
        return AnyOrderDensity(
            self.net,
            self.level if level is None else level,
            self.orders if orders is None else orders,
            parents=self.parents,
            late=self.chain.late,
            member=member,
            counted=counted,
            rules=self.rules,
            history=self.history,
        )

    def counted(self) -> AnyOrderDensity:
        """This for surprises: a number that a formula gives is no less rare for being written more finely."""
        plain = self.net.ties is None and self.rules is None
        return self if plain else self.altered(member=self.member, counted=True)

    def log_prob(self, x: Tensor, columns: Iterable[int] | None = None, given: Iterable[int] = ()) -> Tensor:
        """log ρ(x_columns | x_given), float64 of shape (n,); all columns that are not given when left out."""
        given = list(given)
        asked = set(range(self.space.dim)) - set(given) if columns is None else set(columns)
        with torch.no_grad():
            return torch.cat([self._log_prob(part, asked, given) for part in self._split(x)])

    def log_terms(self, x: Tensor) -> Tensor:
        """What each column adds to log ρ(x): float64 of shape (n, d), 0 for missing cells; rows sum to ``log_prob``.

        The terms of the chain rule, averaged over the orders by their shares of ρ(x). What is left, at most the
        logarithm of their number, is spread evenly over the observed columns.
        """
        with torch.no_grad():
            return torch.cat([self._log_terms(part) for part in self._split(x)])

    def grad_log_prob(self, x: Tensor) -> Tensor:
        """∂ log ρ / ∂x of the real columns, zero elsewhere and in missing cells, (n, d)."""
        if not self.space.reals:
            return torch.zeros_like(x)
        parts = []
        for part in x.split(BATCH):
            rows = part.clone().requires_grad_()
            (grad,) = torch.autograd.grad(
                AnyOrderDensity._log_prob(self, rows, range(self.space.dim), []).sum(), rows
            )
            parts.append(torch.where(self.base.is_real & ~part.isnan(), grad, 0.0))
        return torch.cat(parts)

    def conditional(self, x: Tensor, j: int) -> tuple[Tensor, Tensor]:
        """Values of column j (q,) and log ρ(value | the other observed cells) (n, q); densities for a real one."""
        known = x.clone()
        known[:, j] = math.nan
        with torch.no_grad():
            tables = [self._conditional(part, j) for part in known.split(TABULATED)]
        return tables[0][0], torch.cat([log_p for _, log_p in tables])

    def conditional_and_points(self, x: Tensor, j: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``conditional`` of a real column j, with the values of ties in their place instead of at the nearest node.

        Nodes (q,) and the density of the rest there (n, q); values of ties of some row (m,) and how likely each
        is in every row (n, m).
        """
        known = x.clone()
        known[:, j] = math.nan
        with torch.no_grad():
            tables = [self._and_points(part, j) for part in known.split(TABULATED)]
        nodes, rest, place, share = (
            tables[0][0],
            *(torch.cat(parts) for parts in list(zip(*tables, strict=True))[1:]),
        )
        values, which = place.unique(return_inverse=True)
        out = share.new_zeros(len(x), len(values)).scatter_add(1, which, share)
        likely = (out > 0).any(0)
        return nodes, rest, values[likely], out[:, likely]

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n rows, drawn column by column, each in one order."""
        return self.complete(self.base.log_table.new_full((n, self.space.dim), math.nan), generator)

    def complete(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """x with its missing cells drawn given the others.

        A draw from a mixture is a draw in one order, chosen by how likely each finds the observed cells. The continuous
        part of a value that has none stays nan.
        """
        out = x.clone()
        with torch.no_grad():
            chosen = torch.zeros(len(x), dtype=torch.long, device=x.device)
            if len(self.orders) > 1:
                shares = torch.cat([self._shares(part) for part in self._split(x)], 1)
                chosen = choose(shares.T.exp(), generator)
            for c, order in enumerate(self.orders):
                for rows in self._split((chosen == c).nonzero().squeeze(1)):
                    out[rows] = self.chain.fill(x[rows], generator, order)
        return out

    def drawn(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """x with its missing cells drawn by the networks; ``log_tilt`` weighs them."""
        return AnyOrderDensity.complete(self, x, generator)

    def log_tilt(self, x: Tensor) -> Tensor:
        """log of the density over that of the networks, for rows that ``drawn`` has drawn: 0, float64 (n,)."""
        return torch.zeros(len(x), dtype=torch.float64, device=x.device)

    def is_tied(self, columns: Collection[int]) -> bool:
        """Whether a formula or a rule names values of one of these columns by others, or of others by it."""
        used = set(() if self.net.ties is None else self.net.ties.used)
        for child, named_by in ({} if self.rules is None else self.rules.after).items():
            used |= {child, *named_by}
        return not used.isdisjoint(columns)

    def _conditional(self, x: Tensor, j: int) -> tuple[Tensor, Tensor]:
        """Whatever the order: all observed cells are shown."""
        return self.chain.conditionals.given(x.nan_to_num(), ~x.isnan(), j).table()

    def _and_points(self, x: Tensor, j: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        law = self.chain.conditionals.given(x.nan_to_num(), ~x.isnan(), j)
        if not isinstance(law, NumberDensity):
            raise ValueError(f"j: expected a real column; {j} has {self.space.sizes[j]} values.")
        return *law.smooth(), *law.points()

    def _log_prob(self, x: Tensor, asked: Collection[int], given: list[int]) -> Tensor:
        by_order = self._by_order(x, asked, given)
        if not given:
            return by_order.logsumexp(0) - math.log(len(self.orders))
        known = torch.full_like(x, math.nan)
        known[:, given] = x[:, given]
        return (by_order + self._shares(known)).logsumexp(0)

    def _log_terms(self, x: Tensor) -> Tensor:
        terms = self.chain.log_terms(x, self.orders).double()
        share = terms.sum(-1).log_softmax(0)  # (orders, n)
        mean = (share.exp().unsqueeze(-1) * terms).sum(0)
        rest = -(share.exp() * share).sum(0) - math.log(len(self.orders))
        known = ~x.isnan()
        return mean + known * (rest / known.sum(1).clamp_min(1)).unsqueeze(1)

    def _shares(self, x: Tensor) -> Tensor:
        """log of each order's share of the density of the observed cells, (orders, n)."""
        known = (~x.isnan()).any(0).nonzero().flatten().tolist()
        return self._by_order(x, known, []).log_softmax(0)

    def _by_order(self, x: Tensor, asked: Collection[int], given: list[int]) -> Tensor:
        """log ρ(x_asked | x_given) in every order, float64, (orders, n)."""
        orders = [[j for j in order if j in asked] for order in self.orders]
        return self.chain.log_probs(x, orders, given).double()

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split(max(BATCH, self.chain.conditionals.at_once))
