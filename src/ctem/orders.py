r"""Orders of the columns for the chain rule, chosen by held-out likelihood.

log ρ(x) = Σ_j log ρ(x_j | columns before j) in every order, were the conditionals exact. They are not, and some orders
have easier ones than others: on tables of numbers their held-out nats differ by tenths. So random orders are compared
on held-out rows, the best are improved by swapping neighbours (which changes two terms of the sum alone), and the
density is a mixture of those. Nothing else about the model changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ctem.chain import Chain

__all__ = ["best_orders", "dealt_orders"]

Order = list[int]
DISTINCT = 8  # orders among all members, if each has fewer


def dealt_orders(chain: Chain, held_out: Tensor, members: int, each: int, seed: int) -> list[list[Order]]:
    """``each`` of the best orders for every member; members have some in common, so that few need to be found.

    Row r of ``held_out`` is judged by member r mod members.

    >>> from ctem.bases import ProductBase
    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> chain = Chain(ClockNet(base, width=8), base)
    >>> [len(orders) for orders in dealt_orders(chain, torch.zeros(4, 3), members=2, each=4, seed=0)]
    [4, 4]
    """
    rows, passes = (4096, 1200) if held_out.is_cuda else (1024, 300)
    turns = max(1, min(members, DISTINCT // each))
    some, generator = held_out[: rows // members * members], torch.Generator().manual_seed(seed)
    best = best_orders(chain, some, turns * each, passes, generator)
    return [best[k % turns :: turns] for k in range(members)]


def best_orders(
    chain: Chain, held_out: Tensor, count: int, passes: int, generator: torch.Generator
) -> list[Order]:
    """``count`` orders under which held-out rows are likely, the best first.

    Arguments:
        chain: gives the conditionals; its orders keep parents before their parts.
        held_out: rows (n, d); nan marks a missing cell.
        count: how many; they are drawn blindly if ``passes`` do not allow a choice.
        passes: evaluations of a conditional on all rows, half of them for random orders; a sweep of swaps is finished.
        generator: of the random orders.

    >>> from ctem.bases import ProductBase
    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> chain = Chain(ClockNet(base, width=8), base)
    >>> sorted(best_orders(chain, torch.zeros(4, 3), 1, 60, torch.Generator())[0])
    [0, 1, 2]
    """
    dim = chain.space.dim
    drawn = chain.orders(max(count, passes // 2 // dim), generator)
    if len(drawn) == count:
        return drawn
    terms = _Terms(chain, held_out)
    found = sorted(drawn, key=terms.total, reverse=True)[:count]
    while terms.asked < passes:
        improved = [_swapped(order, terms, chain.parents) for order in found]
        if improved == found:
            break
        found = improved
    return sorted(found, key=terms.total, reverse=True)


class _Terms:
    """Mean log ρ(x_j | x_V) over rows, each asked once."""

    def __init__(self, chain: Chain, rows: Tensor):
        self.chain, self.rows, self.observed = chain, rows, ~rows.isnan()
        self.known: dict[tuple[frozenset[int], int], float] = {}

    @property
    def asked(self) -> int:
        return len(self.known)

    def __call__(self, seen: Sequence[int], j: int) -> float:
        key = frozenset(seen), j
        if key not in self.known:
            visible = torch.zeros_like(self.observed)
            visible[:, list(seen)] = self.observed[:, list(seen)]
            self.known[key] = float(self.chain.term(self.rows, visible, j).double().mean())
        return self.known[key]

    def total(self, order: Order) -> float:
        return sum(self(order[:i], j) for i, j in enumerate(order))


def _swapped(order: Order, terms: _Terms, parents: Mapping[int, int]) -> Order:
    """The order after one sweep, in which neighbours change places where that makes rows more likely."""
    order = list(order)
    for i in range(len(order) - 1):
        before, (a, b) = order[:i], order[i : i + 2]
        kept = terms(before, a) + terms([*before, a], b)
        if parents.get(b) != a and terms(before, b) + terms([*before, b], a) > kept:
            order[i : i + 2] = [b, a]
    return order
