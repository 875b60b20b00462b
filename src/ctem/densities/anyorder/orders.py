r"""Orders of the columns for the chain rule, chosen by held-out likelihood.

log ρ(x) = Σ_j log ρ(x_j | columns before j) in every order, were the conditionals exact. They are not, and some orders
have easier ones than others: on tables of numbers their held-out nats differ by tenths. So random orders are compared
on held-out rows, and the best are improved by swapping neighbours, which changes two terms of the sum alone. One pass
gives the terms of all columns that a visible set hides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ctem.densities.anyorder.conditionals import AtLevel
from ctem.densities.anyorder.network import Clear
from ctem.densities.anyorder.worth import mixed
from ctem.densities.chain import Chain

__all__ = ["best_orders"]

Order = list[int]
ROWS = 512  # held-out rows, of all members together, that orders are judged by
PASSES = 400  # over them, at most; half for random orders, the rest for swaps
BEHIND = 1.0  # nats by which an order of the columns of ties may be worse than the best
WIDE = 64  # columns beyond which orders are random, but for columns that repeat others or add up


def best_orders(
    chain: Chain,
    at: AtLevel,
    held_out: Tensor,
    count: int,
    generator: torch.Generator,
    passes: int = PASSES,
) -> list[Order]:
    """``count`` orders under which held-out rows are likely, the best first.

    Random orders compete with others, in which the columns of ties (``ctem.densities.anyorder.ties``) are in the best
    order among themselves. A sum of which all parts are known is certain; but two sums cannot both decide one column
    that comes after all the others, so that orders of them differ by nats. Where columns are many, only these columns
    are ordered.

    Arguments:
        chain: knows which orders are allowed.
        at: the network and its level.
        held_out: rows (members, n, d), each member's own; nan marks a missing cell.
        count: how many orders.
        generator: of the random orders, on the CPU.
        passes: about how many are worth it, at most ``PASSES``.

    >>> from ctem.densities.anyorder import AnyOrderNet
    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Category, Space
    >>> at = AtLevel(AnyOrderNet(ProductBase(Space([Category(2)] * 3)), width=8), 1e-3)
    >>> sorted(best_orders(Chain(at), at, torch.zeros(1, 4, 3), 1, torch.Generator())[0])
    [0, 1, 2]
    """
    dim, passes, tied = chain.space.dim, min(passes, PASSES), _tied(chain, at)
    wide = dim > WIDE
    if wide and not tied:
        return chain.orders(count, generator)
    drawn = chain.orders(max(count, passes // 2 // (len(tied) if wide else dim)), generator)
    rows = ROWS * WIDE // dim if wide else ROWS
    terms = _Terms(at, held_out[:, : max(1, rows // len(held_out))], chain.after)
    if not tied:
        return _best(drawn, count, terms, chain, passes)
    several = chain.orders(max(count, passes // 4 // len(tied)), generator)
    parts = [[j for j in order if j in tied] for order in several]
    best = _best(parts, count, terms, chain, passes // 2)
    near = [part for part in best if terms.total(part) > terms.total(best[0]) - BEHIND]
    placed = [chain.arranged(_placed(order, near[i % len(near)])) for i, order in enumerate(drawn)]
    return placed[:count] if wide else _best([*placed, *drawn], count, terms, chain, 2 * passes)


def _best(orders: Sequence[Order], count: int, terms: _Terms, chain: Chain, passes: int) -> list[Order]:
    """The best of some orders, improved by swaps until so many passes were made."""
    best = sorted(orders, key=terms.total, reverse=True)[:count]
    while terms.passes < passes:  # a sweep is finished
        improved = [_swapped(order, terms, chain) for order in best]
        if improved == best:
            break
        best = improved
    return sorted(best, key=terms.total, reverse=True)


def _tied(chain: Chain, at: AtLevel) -> set[int]:
    """The columns of ties, with those on which their existence depends; none if these are many, too."""
    used = set() if at.net.ties is None else set(at.net.ties.used)
    tied = used | {parent for child, parent in chain.parents.items() if child in used}
    return tied if len(tied) <= WIDE else set()


def _placed(order: Order, part: Order) -> Order:
    """The order with some of its columns, in their places, in another order.

    >>> _placed([3, 0, 1, 2], [2, 0])
    [3, 2, 1, 0]
    """
    left = iter(part)
    return [next(left) if j in part else j for j in order]


class _Terms:
    """Mean log ρ(x_j | x_V) over rows, of all j from one pass for each V; 0 of columns that are certain by then."""

    def __init__(self, at: AtLevel, rows: Tensor, certain: Collection[int]):
        rows, ends = at.net.parted(rows)
        self.at, self.rows, self.observed, self.certain = at, rows, ~rows.isnan(), certain
        self.clear = None if ends is None else Clear(rows.nan_to_num(), ends)
        self.level = torch.full_like(rows[..., :1], at.level)
        self.known: dict[frozenset[int], list[float]] = {}

    @property
    def passes(self) -> int:
        return len(self.known)

    def __call__(self, seen: Sequence[int], j: int) -> float:
        if j in self.certain:
            return 0.0
        key = frozenset(seen)
        if key not in self.known:
            visible = torch.zeros_like(self.observed)
            visible[..., list(seen)] = self.observed[..., list(seen)]
            net, x = self.at.net, self.rows.nan_to_num()
            with torch.no_grad():
                log_p = net.log_conditionals(x, visible, self.level, self.clear)
                log_p = mixed(self.at.base, net.worth.share, x, log_p)
            means = torch.where(self.observed, log_p, 0.0).double().mean((0, 1))
            self.known[key] = means.tolist()
        return self.known[key][j]

    def total(self, order: Order) -> float:
        return sum(self(order[:i], j) for i, j in enumerate(order))


def _swapped(order: Order, terms: _Terms, chain: Chain) -> Order:
    """The order after one sweep, in which neighbours change places where that makes rows more likely."""
    order = list(order)
    for i in range(len(order) - 1):
        before, (a, b) = order[:i], order[i : i + 2]
        kept = terms(before, a) + terms([*before, a], b)
        if chain.allows(b, a) and terms(before, b) + terms([*before, b], a) > kept:
            order[i : i + 2] = [b, a]
    return order
