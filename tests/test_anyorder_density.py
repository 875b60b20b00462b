"""The any-order density: a normalised mixture that answers consistently, and how it is fitted."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import chisquare
from test_anyorder import CORRELATION, FINITE, MIXED, awake, seeded, skewed

from ctem.bases import ProductBase
from ctem.densities.anyorder import (
    AnyOrderDensity,
    AnyOrderNet,
    HiddenColumns,
    Settings,
    fit_anyorder,
)
from ctem.densities.anyorder.fitting import best_level, split_rows
from ctem.densities.anyorder.objective import FINEST
from ctem.densities.anyorder.phases import joined_history
from ctem.spaces import Category, Real, Space
from ctem.training import History, Recipe, train

SMALL = Settings(width=32, blocks=1, steps=300, batch_size=128, learning_rate=5e-3, ema=0.98)
TINY = Settings(width=8, blocks=1, orders=2, steps=12, batch_size=16, evaluate_every=4)


def mixture(space, orders, members=2, **options):
    """A density of random weights in the given orders; its members agree on nothing."""
    return AnyOrderDensity(awake(space, members=members, **options), 1e-3, orders)


def table_rows(n=2000):
    """A bit, a number that follows it, and a label that follows both."""
    generator = seeded()
    bit = (torch.rand(n, generator=generator) < 0.7).float()
    number = (bit * 2 - 1) * 0.8 + 0.6 * torch.randn(n, generator=generator)
    label = torch.where(torch.rand(n, generator=generator) < 0.8, 2 * bit, 1.0)
    return torch.stack([bit, number, label], 1)


TABLE = Space([Category(2), Real(), Category(3)])


@pytest.fixture(scope="module")
def fitted():
    return fit_anyorder(TABLE, table_rows(), SMALL)


def grid_rows(space, j, t):
    """Every state of the discrete columns with every number t in the real column j."""
    states = Space([Category(space.sizes[i]) for i in space.discretes]).states()
    rows = torch.empty(len(states), len(t), space.dim)
    rows[..., list(space.discretes)] = states.unsqueeze(1)
    rows[..., j] = t.float()
    return rows.flatten(0, 1)


def test_a_fitted_density_is_normalised_and_samples_follow_it(fitted):
    tails = torch.linspace(-14, 14, 2001, dtype=torch.float64).sinh()
    t = torch.cat([torch.linspace(-8, 8, 4001, dtype=torch.float64), tails[tails.abs() > 8]]).sort().values
    log_p = fitted.log_prob(grid_rows(TABLE, 1, t)).view(6, -1)
    assert float(torch.trapezoid(log_p.exp().sum(0), t)) == pytest.approx(1, abs=1e-4)
    expected = float(torch.trapezoid((log_p.exp() * log_p).sum(0), t))
    found = fitted.log_prob(fitted.sample(4000, seeded()))
    assert float(found.mean()) == pytest.approx(expected, abs=3 * float(found.std()) / math.sqrt(4000))


def test_a_fit_finds_the_distribution(fitted):
    asked = torch.full((1, 3), math.nan)
    asked[0, 0] = 1
    assert float(fitted.log_prob(asked).exp()) == pytest.approx(0.7, abs=4 * math.sqrt(0.21 / 2000))
    _, log_p = fitted.conditional(asked, 2)
    assert log_p.exp()[0].tolist() == pytest.approx([0, 0.2, 0.8], abs=0.05)
    values, log_p = fitted.conditional(asked, 1)
    mean = float((values * log_p[0].exp()).sum() * (values[1] - values[0]))
    assert mean == pytest.approx(0.8, abs=0.06)
    new = table_rows(4000)[2000:]
    bit, number = new[:, 0], new[:, 1]
    truth = torch.where(bit > 0, math.log(0.7), math.log(0.3)) + math.log(0.8)
    truth = torch.where(new[:, 2] == 1, truth - math.log(4), truth)
    truth = truth + torch.distributions.Normal((bit * 2 - 1) * 0.8, 0.6).log_prob(number)
    gap = truth - fitted.log_prob(new)
    assert -3 * float(gap.std()) / math.sqrt(2000) < float(gap.mean()) < 0.05


def test_orders_are_of_all_columns(fitted):
    assert len(fitted.orders) == SMALL.orders
    assert all(sorted(order) == [0, 1, 2] for order in fitted.orders)


ORDERS = [[0, 1, 2], [2, 0, 1], [1, 2, 0]]


def test_a_mixture_is_the_mean_over_its_orders():
    density, states = mixture(FINITE, ORDERS), FINITE.states()
    each = [density.chain.log_prob(states, order).double() for order in density.orders]
    assert float(density.log_prob(states).exp().sum()) == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(density.log_prob(states).exp(), torch.stack(each).exp().mean(0))


@pytest.mark.parametrize(("space", "options"), [(FINITE, {}), (MIXED, {"correlation": CORRELATION})])
def test_a_conditional_is_the_mean_of_those_of_the_members(space, options):
    density, x = mixture(space, [list(range(space.dim))], 3, **options), skewed(space).sample(50, seeded())
    visible = torch.rand(x.shape, generator=seeded()) < 0.5
    for j in range(space.dim):
        every = density.chain.conditionals.given(x, visible, j)
        alone = [density.altered(member=k).chain.conditionals.given(x, visible, j) for k in range(3)]
        mean = torch.stack([one.log_prob(x[:, j]) for one in alone]).exp().mean(0)
        torch.testing.assert_close(every.log_prob(x[:, j]).exp(), mean, rtol=1e-4, atol=1e-6)
        tables = torch.stack([one.table()[1] for one in alone]).exp().mean(0)
        torch.testing.assert_close(every.table()[1].exp(), tables, rtol=1e-4, atol=1e-6)


def test_a_number_is_drawn_by_every_member():
    """Members far apart: the draws of a conditional have the mean of the distribution functions."""
    density = mixture(MIXED, [[0, 1, 2, 3]], 3, correlation=CORRELATION)
    j, n = MIXED.reals[0], 20_000
    hidden = torch.zeros(n, 4, dtype=torch.bool)
    found = density.chain.conditionals.given(torch.zeros(n, 4), hidden, j)
    drawn = found.draw(seeded())
    nodes, log_p = found.rows(torch.tensor([0])).table()
    below = torch.cumulative_trapezoid(log_p[0].double().exp(), nodes.double())
    for t in (-1.0, 0.0, 1.0):
        at = int((nodes - t).abs().argmin())
        share, expected = float((drawn <= nodes[at]).double().mean()), float(below[at - 1])
        assert share == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / n) + 1e-3)


@pytest.mark.parametrize("j", range(MIXED.dim))
def test_a_draw_by_one_member_a_row_follows_the_mean_of_the_members(j):
    """Of 20 001 rows, which no number of members divides evenly."""
    at, n = mixture(MIXED, [[0, 1, 2, 3]]).chain.conditionals, 20_001
    rows, visible = torch.zeros(n, 4), torch.arange(4).expand(n, 4) == (j + 1) % 4
    drawn = at.draw(rows, visible, j, seeded())
    values, log_p = at.given(rows[:1], visible[:1], j).table()
    p = log_p[0].double().exp()
    below = p.cumsum(0) if MIXED.sizes[j] else torch.cumulative_trapezoid(p, values.double())
    for at_value, expected in zip(
        values[-len(below) :: len(below) // 40 + 1], below[:: len(below) // 40 + 1], strict=True
    ):
        share = float((drawn <= at_value).double().mean())
        assert share == pytest.approx(float(expected), abs=4 * math.sqrt(0.25 / n))


def test_a_draw_takes_one_pass_a_row_however_many_members_there_are():
    seen, density = [], mixture(MIXED, [[0, 1, 2, 3]])
    density.net.body.register_forward_hook(lambda module, rows, out: seen.append(out.shape[0] * out.shape[1]))
    x = skewed(MIXED).sample(400, seeded())
    x[:, 3] = math.nan
    density.chain.fill(x, seeded(), [0, 1, 2, 3])
    assert density.net.members > 1
    assert seen == [400]


def test_samples_of_a_mixture_follow_it():
    density, n = mixture(FINITE, ORDERS), 20_000
    log_p = density.log_prob(FINITE.states())
    drawn = density.sample(n, seeded())
    count = torch.bincount(FINITE.index(drawn), minlength=24)
    assert chisquare(count.numpy(), (n * log_p.softmax(0)).numpy()).pvalue > 1e-3
    found, expected = density.log_prob(drawn), float((log_p.exp() * log_p).sum())
    assert float(found.mean()) == pytest.approx(expected, abs=3 * float(found.std()) / math.sqrt(n))


def test_a_missing_cell_is_marginal():
    density, x = mixture(FINITE, ORDERS), FINITE.states()
    for hidden in range(3):
        gap = x.clone()
        gap[:, hidden] = math.nan
        others = [j for j in range(3) if j != hidden]
        torch.testing.assert_close(density.log_prob(gap), density.log_prob(x, others))
        assert float(density.log_prob(gap[x[:, hidden] == 0]).exp().sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("space", "options"), [(FINITE, {}), (MIXED, {"correlation": CORRELATION})])
def test_the_chain_rule_is_exact_for_what_comes_first_in_every_order(space, options):
    """log ρ(a) + log ρ(b | a) = log ρ(a, b)."""
    rest = list(range(1, space.dim))
    density = mixture(space, [[0, *rest], [0, *rest[::-1]]], **options)
    x = skewed(space).sample(30, seeded())
    found = density.log_prob(x, [0]) + density.log_prob(x, rest, given=[0])
    torch.testing.assert_close(found, density.log_prob(x), atol=1e-5, rtol=1e-6)
    if space is FINITE:
        total = density.log_prob(FINITE.states()[12:], rest, given=[0]).exp().sum()
        assert float(total) == pytest.approx(1, abs=1e-5)


def test_orders_are_weighed_by_what_is_given():
    """ρ(b | a) of a mixture of two: not the mean of both, but Bayes' rule."""
    orders = [[0, 1, 2, 3], [1, 0, 3, 2]]
    density, x = mixture(MIXED, orders, correlation=CORRELATION), skewed(MIXED).sample(50, seeded())
    chain = density.chain
    first = torch.stack([chain.log_prob(x, order[:2]).exp() for order in orders])
    then = torch.stack([chain.log_prob(x, order[2:], given=[0, 1]).exp() for order in orders])
    expected = (first * then).sum(0) / first.sum(0)
    found = density.log_prob(x, given=[0, 1]).exp()
    torch.testing.assert_close(found, expected.double(), rtol=1e-4, atol=1e-6)
    assert float((expected - then.mean(0)).abs().max()) > 1e-3


def test_a_conditional_is_a_ratio_of_densities():
    """Of a column that comes last in every order; of any column, what log_prob says given the others."""
    density = mixture(MIXED, [[0, 1, 2, 3], [1, 0, 2, 3], [2, 1, 0, 3]], correlation=CORRELATION)
    x = skewed(MIXED).sample(6, seeded())
    x[::2, 1] = math.nan
    for j in range(4):
        values, log_p = density.conditional(x, j)
        assert log_p.shape == (6, len(values))
        others = [i for i in range(4) if i != j]
        for q in (0, len(values) // 2, len(values) - 1):
            row = x.clone()
            row[:, j] = values[q]
            given = density.log_prob(row, [j], given=others)
            torch.testing.assert_close(log_p[:, q].double(), given, atol=1e-4, rtol=1e-5)
            if j == 3:
                ratio = density.log_prob(row) - density.log_prob(row, others)
                torch.testing.assert_close(ratio, given, atol=1e-4, rtol=1e-5)
        if MIXED.sizes[j]:
            torch.testing.assert_close(log_p.exp().sum(1), torch.ones(6, dtype=log_p.dtype))


def test_completions_keep_what_is_observed_and_follow_the_conditional():
    density, n = mixture(FINITE, [[0, 1, 2], [0, 2, 1]]), 10_000
    x = torch.tensor([[1.0, math.nan, math.nan]]).repeat(n, 1)
    drawn = density.complete(x, seeded())
    assert torch.equal(drawn[:, 0], x[:, 0])
    log_p = density.log_prob(FINITE.states()[12:], given=[0])
    count = torch.bincount(FINITE.index(drawn) - 12, minlength=12)
    assert chisquare(count.numpy(), (n * log_p.softmax(0)).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("correlation", [None, CORRELATION], ids=["plain", "predicting"])
def test_the_gradient_is_that_of_finite_differences(correlation):
    density = mixture(MIXED, [[0, 1, 2, 3], [3, 2, 1, 0]], correlation=correlation)
    density.net.double()
    x, step = skewed(MIXED).sample(8, seeded()).double(), 1e-6
    x[0, 1] = x[1, 2] = math.nan
    found = density.grad_log_prob(x)
    assert torch.equal(found[:, [0, 2]], torch.zeros(8, 2, dtype=torch.float64))
    assert float(found[0, 1]) == 0
    for j in MIXED.reals:
        move = step * (torch.arange(4) == j)
        slope = (density.log_prob(x + move) - density.log_prob(x - move)) / (2 * step)
        torch.testing.assert_close(found[:, j], slope, atol=1e-6, rtol=1e-6)


def test_labels_have_no_gradient():
    assert torch.equal(mixture(FINITE, ORDERS).grad_log_prob(FINITE.states()), torch.zeros(24, 3))


def test_batches_change_nothing(monkeypatch):
    density, x = mixture(MIXED, [[0, 1, 2, 3], [3, 2, 1, 0]]), skewed(MIXED).sample(20, seeded())
    x[::3, 2] = math.nan
    whole = density.log_prob(x), density.log_prob(x, [1], given=[2, 3]), density.grad_log_prob(x)
    monkeypatch.setattr("ctem.densities.anyorder.density.BATCH", 6)
    parts = density.log_prob(x), density.log_prob(x, [1], given=[2, 3]), density.grad_log_prob(x)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_no_rows_give_no_answers():
    density = mixture(MIXED, [[0, 1, 2, 3]])
    assert density.log_prob(torch.zeros(0, 4)).shape == (0,)
    assert density.sample(0, seeded()).shape == (0, 4)


def test_a_part_that_does_not_exist_is_learned_scored_and_drawn_as_such():
    space, generator = Space([Category(2), Real()]), seeded()
    atom = (torch.rand(1500, generator=generator) < 0.5).float()
    number = torch.where(atom > 0, math.nan, 0.3 * torch.randn(1500, generator=generator))
    density = fit_anyorder(space, torch.stack([atom, number], 1), SMALL, parents={1: 0})
    assert all(order == [0, 1] for order in density.orders)
    with_atom = torch.tensor([[1.0, math.nan]])
    assert float(density.log_prob(with_atom).exp()) == pytest.approx(0.5, abs=0.05)
    inside = density.log_prob(torch.tensor([[0.0, 0.0]]), given=[0]).exp()
    assert float(inside) == pytest.approx(1.33, abs=0.2)
    drawn = density.sample(500, generator)
    assert torch.equal(drawn[:, 1].isnan(), drawn[:, 0] > 0)
    assert torch.equal(density.complete(with_atom, generator).isnan(), with_atom.isnan())


def test_columns_with_gaps_come_last():
    x = table_rows(200)
    x[:50, 0] = math.nan
    x[:20, 1] = math.nan
    density = fit_anyorder(TABLE, x, TINY)
    assert density.orders == [[2, 1, 0]] * 2


def same_weights(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.net.parameters(), other.net.parameters(), strict=True))


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    x = table_rows(200)
    one, two, three = (fit_anyorder(TABLE, x, TINY, seed=seed) for seed in (0, 0, 1))
    assert same_weights(one, two)
    assert (one.level, one.orders) == (two.level, two.orders)
    assert torch.equal(one.log_prob(x), two.log_prob(x))
    assert not same_weights(one, three)


def test_a_fit_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    fit_anyorder(TABLE, table_rows(100), TINY).sample(10, seeded())
    assert torch.equal(torch.get_rng_state(), before)


# few rows, soon learned by heart
BY_HEART = replace(TINY, steps=400, learning_rate=0.02, evaluate_every=5, patience=2, ema=0.5)


@pytest.fixture(scope="module")
def stopped():
    return fit_anyorder(TABLE, table_rows(40), BY_HEART).history


def test_the_second_phase_ends_soon_where_rows_are_learned_by_heart(stopped):
    """Two looks after its best one; then the rate falls to zero over a third of the steps up to that."""
    step, held_out = stopped.step, stopped.held_out
    assert stopped.stopped_early
    assert step == sorted(set(step))
    assert len(step) == len(stopped.loss) == len(held_out)
    assert step[-1] < BY_HEART.steps
    assert stopped.best_loss == held_out[step.index(stopped.best_step)]


@pytest.mark.parametrize(("second", "small", "large"), [(1.0, 10, 5), (1.5, 8, 6)])
def test_batches_that_grow_in_the_second_phase_see_as_many_rows_in_fewer_steps(second, small, large):
    asked = []

    class Counted(AnyOrderNet):
        def log_conditionals(self, x, *rest):
            if torch.is_grad_enabled():
                asked.append(x.shape[-2])
            return super().log_conditionals(x, *rest)

    settings = replace(TINY, steps=20, growth=2, second=second)
    fit_anyorder(TABLE, table_rows(200), settings, network=Counted)
    assert asked == [TINY.batch_size] * small + [2 * TINY.batch_size] * large


def test_hundreds_of_numbers_are_asked_of_fewer_rows_and_in_fewer_steps():
    few, many = (Settings.suited(5000, 500, reals=reals) for reals in (30, 300))
    assert (many.batch_size, many.steps) < (few.batch_size, few.steps)
    assert 300 * many.batch_size <= 2**15
    assert Settings.suited(100, 5000, reals=5000).batch_size == 64


def test_joined_phases_count_on_and_the_second_says_which_step_is_best():
    first = History([5, 10], [0.9, 0.8], [0.6, 0.75], 5, 0.6, stopped_early=True, seconds=1.0)
    second = History([2, 3], [0.7, 0.6], [0.8, 0.65], 3, 0.65, seconds=0.5)
    found = joined_history(first, second)
    assert found.step == [5, 10, 12, 13]
    assert found.loss == [0.9, 0.8, 0.7, 0.6]
    assert (found.best_step, found.best_loss) == (13, 0.65)
    assert found.stopped_early
    assert found.seconds == 1.5


def test_a_fit_goes_on_from_its_checkpoints_to_the_same_bits(tmp_path):
    x, path = table_rows(40), tmp_path / "run"
    whole = fit_anyorder(TABLE, x, BY_HEART, checkpoint=path)
    assert {path.suffix for path in tmp_path.iterdir()} >= {".first", ".second"}
    (tmp_path / "run.second").unlink()  # killed between the phases
    again = fit_anyorder(TABLE, x, BY_HEART, checkpoint=path)
    for other in (again, fit_anyorder(TABLE, x, BY_HEART)):
        assert same_weights(whole, other)
        assert (whole.level, whole.orders) == (other.level, other.orders)


def test_a_fit_that_is_interrupted_keeps_what_it_has_learned(monkeypatch):
    """Ctrl-C in the second phase, in the first, and before there is anything to keep."""
    x = table_rows(40)
    for calls in (5, 20):  # a step and a look at the held-out rows are a call each
        left = [calls]

        def interrupted(self, *args, whole=HiddenColumns.__call__, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return whole(self, *args)

        with monkeypatch.context() as patched:
            patched.setattr(HiddenColumns, "__call__", interrupted)
            quick = replace(TINY, steps=40, evaluate_every=1, patience=None)
            with pytest.warns(UserWarning, match="training was interrupted"):
                density = fit_anyorder(TABLE, x, quick)
        assert density.history.interrupted
        assert density.history.step[-1] < 40
        assert bool(density.log_prob(x).isfinite().all())
    with monkeypatch.context() as patched:
        patched.setattr(HiddenColumns, "__call__", interrupted)
        left[0] = 0
        with pytest.raises(KeyboardInterrupt):
            fit_anyorder(TABLE, x, TINY)


def test_a_member_learns_only_from_its_own_rows():
    """What other members are shown does not touch it."""
    weights, mine = torch.zeros(2, 40), table_rows(20)
    weights[0, :20] = weights[1, 20:] = 1.0
    found = []
    for others in (mine, mine * torch.tensor([0.0, 5.0, 1.0])):
        net = AnyOrderNet(skewed(TABLE), width=8, blocks=1, members=2)
        recipe = Recipe(steps=4, batch_size=20, evaluate_every=4, ema=0.9)
        train(net, HiddenColumns(), torch.cat([mine, others]), recipe, weights=weights)
        found.append({name: p.detach() for name, p in net.named_parameters()})
    assert all(torch.equal(found[0][name][0], found[1][name][0]) for name in found[0])
    assert not torch.equal(found[0]["of_numbers.weight"][1], found[1]["of_numbers.weight"][1])


def test_little_time_means_few_steps_and_going_on_keeps_their_number(tmp_path):
    x = table_rows(60)
    density = fit_anyorder(TABLE, x, TINY, max_time=1e-6, checkpoint=tmp_path / "run")
    assert density.history.step == [1]  # one step always is; a second phase has no time
    again = fit_anyorder(TABLE, x, TINY, max_time=100.0, checkpoint=tmp_path / "run")
    assert again.history.step[0] == 1
    assert fit_anyorder(TABLE, x, TINY, max_time=100.0).history.step[-1] == TINY.steps


def folds(split, members):
    """The rows that each member is judged by, and those that it trains on."""
    for k in range(members):
        yield (
            set(split.held_out[k, :, 0].floor().tolist()),
            set(split.rows[split.weights[k] > 0, 0].floor().tolist()),
        )


@pytest.mark.parametrize("members", [1, 4, 12])
def test_no_member_trains_on_the_rows_that_it_is_judged_by(members):
    x = torch.arange(25.0).unsqueeze(1)
    split = split_rows(x, members, seed=0)
    judged = []
    for mine, trained in folds(split, members):
        assert mine
        assert not mine & trained
        assert len(trained) >= 22
        judged.append(mine)
    assert all(not a & b for a, b in itertools.combinations(judged, 2))


def test_jittered_copies_of_a_row_stay_in_its_fold():
    def jitter(x, generator):
        return x + 0.9 * torch.rand(x.shape, generator=generator)

    split = split_rows(torch.arange(24.0).unsqueeze(1), 3, seed=0, jitter=jitter)
    assert len(split.rows) > 1000
    for mine, trained in folds(split, 3):
        assert not mine & trained
        assert mine | trained <= set(range(24))


def test_row_weights_are_those_of_every_member_outside_its_fold():
    weights = torch.arange(1.0, 31.0)
    split = split_rows(torch.arange(30.0).unsqueeze(1), 3, seed=0, weights=weights)
    for k, (mine, _) in enumerate(folds(split, 3)):
        held = [int(i) for i in mine]
        assert float(split.weights[k, held].sum()) == 0
        kept = [i for i in range(30) if split.weights[k, i] > 0]
        assert torch.equal(split.weights[k, kept], weights[kept])
        assert len(kept) == 27


def test_held_out_rows_are_drawn_by_their_weights():
    x, heavy = torch.arange(4000.0).unsqueeze(1), torch.arange(4000) % 4 == 0
    split = split_rows(x, 2, seed=0, weights=torch.where(heavy, 9.0, 1.0))
    for k in range(2):
        mine = split.held_out[k].flatten().long()
        assert float(split.weights[k, mine].sum()) == 0
        assert 0.65 < float(heavy[mine].double().mean()) < 0.85  # ¾ of the weight


def test_held_out_rows_that_are_given_leave_all_others_to_training():
    x, held_out = torch.arange(20.0).unsqueeze(1), torch.full((7, 1), -1.0)
    split = split_rows(x, 2, seed=0, held_out=held_out)
    assert torch.equal(split.weights, torch.ones(2, 20))
    assert bool((split.held_out == -1).all())
    assert split.held_out.shape[0] == 2


class TrueLevels(AnyOrderNet):
    """Of data N(0, 0.01): narrow at level 0, wider with the level."""

    def log_conditionals(self, x, visible, level, clear=None):
        variance = (-2 * level).exp() * 0.01 - torch.expm1(-2 * level)
        return torch.distributions.Normal(0.0, variance.sqrt()).log_prob(x)


@pytest.mark.parametrize("level", [0.0, 5e-4, 4e-3])
def test_the_level_is_the_one_at_which_held_out_rows_are_most_likely(level):
    """Held-out rows of variance e^{−2s} 0.01 + 1 − e^{−2s}; the levels to choose from are a factor 2.2 apart."""
    net = TrueLevels(ProductBase(Space([Real()])), width=8)
    scale = math.sqrt(math.exp(-2 * level) * 0.01 - math.expm1(-2 * level))
    x = torch.randn(1, 20_000, 1, generator=seeded()) * scale
    found = best_level(net, HiddenColumns(), x, seed=0)
    assert found < 1.2e-4 if level == 0 else 0.6 < found / level < 1.6
    assert found >= 0.99 * FINEST


def test_the_margin_of_labels_is_that_of_the_rows_by_their_weights():
    x = torch.tensor([[0.0], [1.0], [1.0], [torch.nan]])
    space = Space([Category(2)])
    weighted = ProductBase.fit(space, x, weights=torch.tensor([3.0, 1.0, 1.0, 3.0]))
    assert weighted.log_table.exp().tolist()[0] == pytest.approx([2 / 3.5, 1.5 / 3.5])
    plain = ProductBase.fit(space, x).log_table
    assert torch.equal(ProductBase.fit(space, x, weights=torch.full((4,), 7.0)).log_table, plain)
