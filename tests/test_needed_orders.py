"""After training, the orders of the columns are left out that their mixture does not need."""

import math

import pytest
import torch
from test_anyorder import BITS, awake, seeded
from test_anyorder_density import TABLE, TINY, table_rows

from ctem.densities.anyorder import AnyOrderDensity, Settings, fit_anyorder
from ctem.densities.anyorder.conditionals import AtLevel
from ctem.densities.anyorder.fitting import _once, split_rows
from ctem.densities.anyorder.orders import NEEDED, _enough, needed_orders
from ctem.densities.chain import Chain
from ctem.spaces import Category, Real, Space

QUICK = Settings(width=16, blocks=1, steps=80, batch_size=128, orders=4, learning_rate=0.01, ema=0.9)
EVERY = [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]]


def disturbed(n, scale):
    """Log-densities of n rows in three orders that differ by chance alone."""
    return scale * torch.randn(3, n, generator=seeded(), dtype=torch.float64)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_orders_that_each_know_other_rows_are_all_needed(count):
    each = torch.full((3, 900), -9.0, dtype=torch.float64)
    for c in range(count):
        each[c, c::count] = 0.0
    assert _enough(each) == count


def test_orders_that_say_the_same_are_one():
    assert _enough(torch.randn(1, 50, generator=seeded()).expand(3, -1)) == 1


def test_few_rows_leave_out_nothing_that_many_would():
    """The gain of all three is 0.007 nats a row, with a standard deviation of 0.1."""
    many = disturbed(4000, 0.1)
    assert _enough(many) == 1
    assert _enough(many[:, :8]) == _enough(many[:, :1]) == 3


def test_a_gain_above_the_limit_is_kept():
    assert _enough(disturbed(4000, 0.5)) > 1


def test_a_row_that_no_order_allows_leaves_out_nothing():
    each = torch.zeros(2, 10, dtype=torch.float64)
    each[:, 0] = -math.inf
    assert _enough(each) == 2


def test_independent_columns_need_one_order():
    space = Space([Category(2), Real(), Category(3), Real()])
    x = torch.randn(3000, 4, generator=seeded())
    x[:, 0], x[:, 2] = (x[:, 0] > 0).float(), (x[:, 2] > 0).float()
    (order,) = fit_anyorder(space, x, QUICK).orders
    assert sorted(order) == [0, 1, 2, 3]


def test_rows_drawn_in_two_orders_need_two():
    """The conditionals of a network that was not trained contradict each other, so that its orders differ."""
    net = awake(BITS)
    rows = AnyOrderDensity(net, 1e-3, EVERY[:2]).sample(4000, seeded())
    kept = needed_orders(AtLevel(net, 1e-3), [rows], EVERY)
    assert sorted(kept) == sorted(EVERY[:2])


def test_the_best_order_comes_first_and_copies_count_once():
    net = awake(BITS, members=2)
    rows = [BITS.states()[torch.randint(16, (n, 1), generator=seeded(n)).squeeze(1)] for n in (300, 200)]
    rows[0][::3, 1:3] = math.nan

    def likelihood(order):
        each = [Chain(AtLevel(net, 1e-3, k)).log_prob(rows[k], order).double() for k in range(2)]
        return float(torch.cat(each).mean())

    kept = needed_orders(AtLevel(net, 1e-3), rows, EVERY + EVERY)
    assert kept == sorted(EVERY, key=likelihood, reverse=True)[: len(kept)]


def test_what_is_left_out_is_hardly_missed_on_new_rows():
    density = fit_anyorder(TABLE, table_rows(3000), QUICK)
    all_orders = [[0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2, 1]]
    rows, new = table_rows(5000)[3000:], table_rows(7000)[5000:]
    kept = needed_orders(density.chain.conditionals, [rows[::2], rows[1::2]], all_orders)
    assert len(kept) < len(all_orders)
    whole, fewer = (AnyOrderDensity(density.net, density.level, some) for some in (all_orders, kept))
    gap = whole.log_prob(new) - fewer.log_prob(new)
    assert float(gap.mean()) < NEEDED + 3 * float(gap.std()) / math.sqrt(len(new))


@pytest.mark.parametrize("members", [1, 3])
def test_no_held_out_row_is_counted_twice(members):
    x = torch.arange(50.0).unsqueeze(1)
    for given in (None, x[:10]):
        split = split_rows(x, members, seed=0, held_out=given)
        assert split.held_out.shape[1] > 100  # repeated
        rows = torch.cat(_once(split.held_out, len(x), given, 1)).flatten().tolist()
        assert len(set(rows)) == len(rows) == (5 * members if given is None else 10)


def test_one_held_out_row_for_several_members_suffices():
    density = fit_anyorder(TABLE, table_rows(40), TINY, held_out=table_rows(1))
    assert len(density.orders) == TINY.orders
