"""Laws of the choice of orders: the best of all where all are tried, never worse than the draw, parents first."""

import itertools

import pytest
import torch

from ctem.bases import ProductBase
from ctem.chain import Chain
from ctem.clocknet import ClockNet
from ctem.density import chain_of, crossfitted
from ctem.orders import best_orders
from ctem.spaces import Category, Real, Space


def inconsistent(columns, members=1, seed=0):
    """Networks of random weights, whose conditionals agree with no joint density."""
    base = ProductBase(Space(columns))
    net = ClockNet(base, width=16, blocks=1, members=members, slopes=True).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p += torch.randn(p.shape, generator=generator)
    return net


def likelihood(chain, rows, order):
    return float(chain.log_prob(rows, order).double().mean())


def bits(n, d, seed=1):
    return torch.randint(2, (n, d), generator=torch.Generator().manual_seed(seed)).float()


def test_with_enough_passes_the_best_of_all_orders_is_found():
    net, rows = inconsistent([Category(2)] * 4), bits(64, 4)
    chain = Chain(net, net.base, slopes=net)
    best = best_orders(chain, rows, 1, 5000, torch.Generator().manual_seed(0))[0]
    scores = {order: likelihood(chain, rows, order) for order in itertools.permutations(range(4))}
    assert max(scores.values()) - min(scores.values()) > 0.1
    assert likelihood(chain, rows, best) == pytest.approx(max(scores.values()), abs=1e-6)


def test_swaps_only_improve_what_was_drawn_and_gaps_count_nothing():
    net, rows = inconsistent([Real(), Category(3), *[Category(2)] * 6]), bits(64, 8)
    rows[::3, 1:4] = torch.nan
    chain = Chain(net, net.base, slopes=net, floor=1e-3, points=513)
    passes = 96  # six random orders
    drawn = chain.orders(6, torch.Generator().manual_seed(0))
    scores = sorted((likelihood(chain, rows, order) for order in drawn), reverse=True)
    found = best_orders(chain, rows, 2, passes, torch.Generator().manual_seed(0))
    now = [likelihood(chain, rows, order) for order in found]
    assert all(sorted(order) == list(range(8)) for order in found)
    assert now[0] >= now[1]
    assert now[0] > scores[0] + 1e-3
    assert now[1] >= scores[1]


def test_parents_stay_before_their_parts():
    net, rows = inconsistent([Category(2), Real(), Category(2), Real()]), bits(64, 4)
    parents = {1: 0, 3: 2}
    chain = chain_of(net, net.base, 1e-3, parents, net, 1e-3)
    for order in best_orders(chain, rows, 6, 400, torch.Generator().manual_seed(0)):
        assert order.index(0) < order.index(1)
        assert order.index(2) < order.index(3)


def test_few_passes_leave_random_orders():
    net, rows = inconsistent([Category(2)] * 4), bits(8, 4)
    chain = Chain(net, net.base, slopes=net)
    found = best_orders(chain, rows, 3, 10, torch.Generator().manual_seed(0))
    assert found == chain.orders(3, torch.Generator().manual_seed(0))


def test_rows_are_judged_by_the_member_of_their_turn():
    net, rows = inconsistent([Category(2), Real(), Category(3)], members=3), bits(30, 3)
    chain, order = crossfitted(net, 1e-3, {}, net, 1e-4), [2, 0, 1]
    said = chain.log_prob(rows, order)
    for k in range(3):
        alone = chain_of(net.member(k), net.base, 1e-3, {}, net.member(k), 1e-4)
        assert torch.allclose(said[k::3], alone.log_prob(rows[k::3], order), atol=1e-5)
