"""The any-order network: heads are normalised, members keep to themselves, and the chain rule is a density."""

import itertools
import math

import pytest
import torch
from scipy.stats import chisquare
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import layer_norm, silu

from ctem.bases import ProductBase
from ctem.densities.anyorder import AnyOrderNet, AtLevel, HiddenColumns, NumberDensity, layers
from ctem.densities.anyorder.labels import LabelHead
from ctem.densities.anyorder.layers import Body
from ctem.densities.anyorder.numbers import NumberHead, Polygon
from ctem.densities.anyorder.orders import best_orders
from ctem.densities.anyorder.ties import Tie, Ties
from ctem.densities.anyorder.worth import Worth
from ctem.densities.chain import Chain
from ctem.densities.spacetime.differences import Differences
from ctem.densities.spacetime.network import LevelNet
from ctem.spaces import Category, Ordinal, Real, Space
from experiments.images.firstorder import FirstOrder
from experiments.images.unet import ImageNet

FINITE = Space([Category(2), Ordinal(3), Category(4)])
BITS = Space([Category(2)] * 4)
MIXED = Space([Category(3), Real(), Ordinal(4), Real()])
CORRELATION = torch.tensor([[1.0, 0.5, 0.8], [0.5, 1.0, 0.3], [0.8, 0.3, 1.0]])


ALL = slice(None)  # members


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def skewed(space):
    """A base that favours no two values alike."""
    return ProductBase(space, [torch.arange(1.0, 1 + space.sizes[j]) for j in space.discretes])


def stirred(net, seed=0, scale=0.3):
    """The network with random weights throughout, as after some training; no longer of any joint density."""
    generator = seeded(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=generator))
    return net.eval().requires_grad_(False)


def awake(space, **options):
    return stirred(AnyOrderNet(skewed(space), width=8, blocks=1, **options))


def doubted(net):
    """The network, believed in part: of the first column a third, of the second nothing; the second is not heard."""
    d = net.space.dim
    net.believe(Worth((1 / 3, 0.0, *[0.8] * (d - 2)), (True, False, *[True] * (d - 2))))
    return net


def by_differences(space, **options):
    base = skewed(space)
    return Differences(stirred(LevelNet(base, width=8, blocks=1)), base, **options)


CONDITIONALS = {
    "heads": AtLevel(awake(FINITE, members=2), 1e-3),
    "doubted heads": AtLevel(doubted(awake(FINITE, members=2)), 1e-3),
    "differences": by_differences(FINITE),
    "slopes": FirstOrder(stirred(ImageNet(skewed(BITS), (2, 2), (4, 8)))),
}
WITH_NUMBERS = {
    "heads": AtLevel(awake(MIXED, correlation=CORRELATION), 1e-3),
    "doubted heads": AtLevel(doubted(awake(MIXED, correlation=CORRELATION, members=2)), 1e-3),
    "differences": by_differences(MIXED, level=0.05, points=257),
}


def nodes_of(density):
    """Increasing numbers (q,) that resolve every part of the density of one row, far into its tails, in float64."""
    parts = density.head._parts(density.found, density.mean, density.spread)
    grids = [torch.linspace(-12, 12, 20_001, dtype=torch.float64)]
    for m, s in zip(parts.mean.flatten().double(), parts.spread.flatten().double(), strict=True):
        grids.append(m + s * torch.linspace(-7, 7, 2001, dtype=torch.float64))
    tails = torch.linspace(-14, 14, 40_001, dtype=torch.float64).sinh()
    return torch.cat([*grids, parts.mean[0, 0, 0] + parts.spread[0, 0, 0] * tails]).sort().values


def distribution_function(density):
    """Nodes (q,) and the mass below each of the density of one row, in float64."""
    t = nodes_of(density)
    many = density.rows(torch.zeros(len(t), dtype=torch.long))
    p = many.log_prob(t.to(density.found.dtype)).double().exp()
    return t, torch.cat([t.new_zeros(1), torch.cumulative_trapezoid(p, t)])


def number_density(spread, wild, seed=0, share=1.0):
    """Random coefficients around a random prediction, one row."""
    head, generator = NumberHead(), seeded(seed)
    found = wild * torch.randn(1, 1, head.size, generator=generator)
    mean = 2 * torch.randn(1, generator=generator)
    return NumberDensity(head, found, mean, torch.full((1,), spread), share=share)


@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize("wild", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("spread", [1.0, 0.1, 0.003])
def test_a_density_of_numbers_integrates_to_one_however_wild_its_coefficients(spread, wild, share):
    for seed in range(3):
        _, below = distribution_function(number_density(spread, wild, seed, share))
        assert float(below[-1]) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize("wild", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("spread", [1.0, 0.01])
def test_draws_of_numbers_follow_their_density(spread, wild, share):
    density, n = number_density(spread, wild, share=share), 20_000
    drawn = density.rows(torch.zeros(n, dtype=torch.long)).draw(seeded(1)).double().sort().values
    t, below = distribution_function(density)
    inside = t.abs() < 8  # draws beyond are held there
    found = torch.searchsorted(drawn, t[inside], right=True) / n
    assert float((found - below[inside]).abs().max()) < 1.95 / math.sqrt(n)  # Kolmogorov–Smirnov at 0.1 %


def test_without_coefficients_numbers_are_nearly_normal_around_their_prediction():
    head, mean, spread = NumberHead(), torch.tensor([0.5]), torch.tensor([0.2])
    t = mean + spread * torch.tensor([[-1.5, -0.5, 0.0, 0.7, 1.5]])
    normal = torch.distributions.Normal(mean, spread).log_prob(t)
    torch.testing.assert_close(
        head.log_prob(t, torch.zeros(1, head.size), mean, spread), normal, atol=0.3, rtol=0
    )


def test_a_polygon_is_a_density_and_draws_follow_it():
    knots = torch.tensor([0.05, 0.1, 0.4, 0.7, 0.95])
    polygon, height, n = Polygon(knots), 2 * torch.randn(1, 5, generator=seeded()), 20_000
    y = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    cell = (torch.searchsorted(knots.double(), y) - 1).clamp(0, 3)
    p = polygon.log_prob(y.float()[None], cell[None], height)[0].double().exp()
    assert float(torch.trapezoid(p, y)) == pytest.approx(1, abs=1e-5)
    drawn = polygon.draw(height.expand(n, -1), seeded(1)).double().sort().values
    below = torch.cat([y.new_zeros(1), torch.cumulative_trapezoid(p, y)])
    found = torch.searchsorted(drawn, y, right=True) / n
    assert float((found - below).abs().max()) < 1.95 / math.sqrt(n)


def test_probabilities_of_labels_sum_to_one_and_agree_with_their_columns():
    head = LabelHead(skewed(MIXED))
    found = 30 * torch.randn(40, len(head.owner), generator=seeded())
    x = skewed(MIXED).sample(40, seeded(1))
    together = head.log_prob(x, found)
    assert torch.equal(together[:, list(MIXED.reals)], torch.zeros(40, 2))
    for j in MIXED.discretes:
        log_p = head.column(found[:, head.slices[j]], j)
        torch.testing.assert_close(log_p.exp().sum(1), torch.ones(40))
        own = log_p.gather(1, x[:, j : j + 1].long()).squeeze(1)
        torch.testing.assert_close(together[:, j], own, atol=1e-5, rtol=1e-5)


def plain_body(body, h):
    """What ``Body`` is said to be, by torch's own functions."""
    for block in body:
        h = h + block.outer(silu(block.inner(layer_norm(h, h.shape[-1:]), ALL)), ALL)
    return layer_norm(h, h.shape[-1:])


def same_values_and_gradients(found, expected, *leaves):
    """Two computations agree, and so do the gradients of a random combination of what they give."""
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    direction = torch.randn(found.shape, generator=seeded(9))
    slopes = [torch.autograd.grad((each * direction).sum(), leaves) for each in (found, expected)]
    for mine, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("blocks", [1, 3])
def test_the_body_and_its_written_out_gradient_are_those_of_its_formula(blocks):
    body = Body(2, 8, blocks, 0.0, seeded())
    h = torch.randn(2, 20, 8, generator=seeded(1)).requires_grad_()
    same_values_and_gradients(body(h, ALL), plain_body(body, h), h, *body.parameters())


@pytest.mark.parametrize("correlation", [None, CORRELATION])
def test_rows_that_are_answered_in_parts_are_answered_as_they_are_in_training(correlation, monkeypatch):
    monkeypatch.setattr(layers, "CACHED", 64)  # numbers: eight rows a part
    space = Space([Category(40), Real(), Ordinal(4), Real()])
    net, generator = awake(space, members=2, correlation=correlation), seeded(1)
    labels = torch.randint(40, (61, 1), generator=generator), torch.randint(4, (61, 1), generator=generator)
    numbers = torch.randn(61, 2, generator=generator)
    x = torch.cat([labels[0], numbers[:, :1], labels[1], numbers[:, 1:]], 1).expand(2, -1, -1)
    visible, level = torch.rand(x.shape, generator=generator) < 0.5, torch.full_like(x[..., :1], 1e-3)
    whole = net.log_conditionals(x, visible, level)
    with torch.no_grad():
        assert torch.allclose(net.log_conditionals(x, visible, level), whole, atol=1e-5)


def test_dropout_leaves_out_its_share_in_training_alone():
    body = Body(1, 400, 1, 0.5, seeded())
    h = torch.randn(1, 100, 400, generator=seeded(1))
    torch.manual_seed(0)
    first, second = body(h, ALL), body(h, ALL)
    assert not torch.equal(first, second)
    assert torch.equal(body.eval()(h, ALL), body(h, ALL))
    torch.testing.assert_close(body(h, ALL), plain_body(body, h))


@pytest.mark.parametrize("wild", [0.0, 0.3, 3.0, 30.0])
def test_the_written_out_gradient_of_numbers_is_that_of_their_density(wild):
    """As far as 40 in a height, 8 in a place and the ends of a spread, where it is held."""
    head, generator = NumberHead(), seeded(1)
    found = (wild * torch.randn(200, head.size, generator=generator)).requires_grad_()
    mean, spread = 3 * torch.randn(200, generator=generator), 0.003 + torch.rand(200, generator=generator)
    t = mean + 2 * spread * torch.randn(200, generator=generator)
    expected = head.log_prob(t.unsqueeze(-1), found, mean, spread).squeeze(-1)
    scaled = found / head.scale + head.start
    inside = expected > -30  # beyond, float32 does not resolve the smaller of two tiny parts
    mine = head.log_prob_of_scaled(t, scaled.T, mean, spread)
    torch.testing.assert_close(mine[inside], expected[inside], atol=1e-3, rtol=1e-4)
    (one,), (other,) = (torch.autograd.grad(each[inside].sum(), found) for each in (mine, expected))
    torch.testing.assert_close(one, other, atol=2e-3 * float(other.abs().max()), rtol=1e-2)


@pytest.mark.parametrize("space", [MIXED, BITS, FINITE])
def test_the_written_out_gradient_of_labels_is_that_of_their_probabilities(space):
    head = LabelHead(skewed(space))
    found = torch.randn(40, len(head.owner), generator=seeded()).requires_grad_()
    x = skewed(space).sample(40, seeded(1))
    own = [
        head.column(found[:, head.slices[j]], j).gather(1, x[:, j : j + 1].long()) for j in space.discretes
    ]
    same_values_and_gradients(head.log_prob(x, found)[:, list(space.discretes)], torch.cat(own, 1), found)


def some_sets(n, space, seed=0):
    """Rows and a random visible set for each."""
    x = skewed(space).sample(n, seeded(seed))
    return x, torch.rand(x.shape, generator=seeded(seed + 1)) < 0.5


def test_before_training_every_conditional_is_the_base():
    base, (x, visible) = skewed(FINITE), some_sets(20, FINITE)
    net = AnyOrderNet(base, width=8, members=2)
    log_p = net.log_conditionals(x.expand(2, -1, -1), visible.expand(2, -1, -1), torch.full((2, 20, 1), 0.01))
    torch.testing.assert_close(log_p.detach(), base.column_log_prob(x).expand(2, -1, -1))


@pytest.mark.parametrize("correlation", [None, CORRELATION], ids=["plain", "predicting"])
def test_what_a_hidden_cell_holds_does_not_matter(correlation):
    net, (x, visible) = awake(MIXED, correlation=correlation), some_sets(20, MIXED)
    other = torch.where(visible, x, skewed(MIXED).sample(20, seeded(2)))
    shown = [net.trunk(rows[None], visible[None], 0.01, ALL) for rows in (x, other)]
    for j in MIXED.discretes:
        assert torch.equal(*(net.label_log_probs(each, j, ALL) for each in shown))
    for j in MIXED.reals:
        pair = (net.number_coefficients(each, j, ALL)[:3] for each in shown)
        assert all(torch.equal(a, b) for a, b in zip(*pair, strict=True))


def test_what_a_visible_cell_holds_matters_to_every_member():
    net, x = awake(MIXED, members=2), torch.zeros(2, 1, 4)
    level = torch.full((2, 1, 1), 0.01)
    for j in range(4):
        visible = torch.arange(4).expand(2, 1, 4) == j
        moved = x + visible
        change = net.log_conditionals(moved, visible, level) - net.log_conditionals(x, visible, level)
        others = [i for i in range(4) if i != j]
        assert bool((change[..., others].abs() > 1e-4).all())


@pytest.mark.parametrize("correlation", [None, CORRELATION], ids=["plain", "predicting"])
def test_a_member_answers_alone_as_it_does_among_others(correlation):
    net, level = awake(MIXED, members=3, correlation=correlation), 0.01
    sets = [some_sets(12, MIXED, seed) for seed in (0, 10, 20)]
    x, visible = torch.stack([x for x, _ in sets]), torch.stack([v for _, v in sets])
    together = net.log_conditionals(x, visible, torch.full((3, 12, 1), level))
    for k, j in itertools.product(range(3), range(4)):
        own = slice(k, k + 1)
        shown = net.trunk(x[own], visible[own], level, own)
        if MIXED.sizes[j]:
            log_p = net.label_log_probs(shown, j, own)[0]
            alone = log_p.gather(1, x[k, :, j : j + 1].long()).squeeze(1)
        else:
            found, mean, spread, _ = net.number_coefficients(shown, j, own)
            alone = net.numbers.log_prob(x[k, :, j : j + 1], found[0], mean[0], spread[0]).squeeze(1)
        torch.testing.assert_close(together[k, :, j], alone, atol=1e-5, rtol=1e-5)


def test_the_gradient_of_a_member_is_that_of_its_own_rows():
    net, (x, visible) = awake(MIXED, members=2).requires_grad_(True), some_sets(8, MIXED)
    level = torch.full((2, 8, 1), 0.01)
    both = net.log_conditionals(x.expand(2, -1, -1), visible.expand(2, -1, -1), level)
    grads = torch.autograd.grad(both[0].sum(), list(net.parameters()))
    assert all(bool((g[1] == 0).all()) for g in grads)
    assert all(bool((g[0] != 0).any()) for g in grads)


def test_d_times_the_objective_is_the_mean_over_all_orders():
    """In expectation; the standard error of 200 evaluations is measured."""
    net, x = awake(FINITE), FINITE.states()[[3, 9, 14, 22]]
    chain = Chain(AtLevel(net, HiddenColumns.finest))
    orders = list(itertools.permutations(range(3)))
    expected = -torch.stack([chain.log_prob(x, order) for order in orders]).double().mean() / 3
    generator, rows = seeded(), x.repeat(25, 1).unsqueeze(0)
    found = torch.stack([HiddenColumns()(net, rows, generator) for _ in range(200)]).double()
    error = float(found.std()) / math.sqrt(len(found))
    assert error < 0.01
    assert float(found.mean()) == pytest.approx(float(expected), abs=3 * error)


def test_every_size_of_visible_set_and_every_column_is_drawn_equally_often():
    n, d = 20_000, 5
    chosen = HiddenColumns().visible_sets(torch.zeros(1, n, d), seeded())[0]
    sizes = torch.bincount(chosen.sum(1), minlength=d + 1)
    assert int(sizes[d]) == 0  # something is always asked
    assert float((sizes[:d] / n - 1 / d).abs().max()) < 2 / n  # stratified, better than chance
    assert float((chosen.double().mean(0) - 0.4).abs().max()) < 4 * math.sqrt(0.24 / n)


def test_a_part_is_not_shown_without_its_parent():
    chosen = HiddenColumns({1: 0, 3: 2}).visible_sets(torch.zeros(2, 500, 4), seeded())
    assert bool((chosen[..., 0] | ~chosen[..., 1]).all())
    assert bool((chosen[..., 2] | ~chosen[..., 3]).all())
    assert bool((chosen[..., 0] & ~chosen[..., 1]).any())


def test_half_of_the_rows_rehearse_the_orders_and_all_weights_sum_to_one():
    orders = torch.tensor([[2, 0, 1, 3], [0, 1, 2, 3]])  # places of the columns
    found = HiddenColumns(places=orders).questions(torch.zeros(2, 4000, 4), seeded())
    assert torch.allclose(found.weight.sum(-1), torch.ones(2, 4000))
    assert bool((found.weight[found.shown] == 0).all())
    for shown, weight in zip(found.shown[:, :2000], found.weight[:, :2000], strict=True):
        size = shown.sum(-1, keepdim=True)
        assert torch.equal(size.flatten().bincount(), torch.full((4,), 500))
        begun = [(shown == (place < size)).all(1) for place in orders]
        assert bool((begun[0] | begun[1]).all())
        for mine in begun:
            assert (
                700 < int(mine.sum()) < 1800
            )  # both orders, which begin alike where nothing or all but one is shown
        only = begun[1] & ~begun[0]
        assert bool((weight[only][orders[1] == size[only]] >= 0.5).all())


def test_a_missing_cell_is_never_shown_and_never_asked():
    net, x = awake(MIXED), skewed(MIXED).sample(64, seeded()).unsqueeze(0)
    x[..., [0, 1]] = math.nan
    filled = torch.where(x.isnan(), 1.0, x)
    level, asked = torch.full((1, 64, 1), 0.01), HiddenColumns().questions(x, seeded())
    plain = HiddenColumns().log_prob(net, x, x.nan_to_num(), asked, level)
    assert torch.equal(plain, HiddenColumns().log_prob(net, x, filled, asked, level))
    gone = torch.full_like(x, math.nan)
    assert float(HiddenColumns()(net, gone, seeded())) == 0


def test_a_training_step_looks_at_no_number_so_that_it_can_be_captured():
    net = awake(MIXED, members=2)
    with FakeTensorMode(allow_non_fake_inputs=True):
        HiddenColumns({1: 0})(net, torch.zeros(2, 16, 4), torch.Generator())  # reading a fake number raises


def test_noise_is_that_of_the_level_and_leaves_labels_alone():
    net, n = awake(MIXED), 50_000
    objective = HiddenColumns(finest=0.05, coarsest=0.0500001)
    x, level = objective.noised(net, torch.ones(1, n, 4), seeded())
    assert torch.equal(x[..., [0, 2]], torch.ones(1, n, 2))
    assert float((level - 0.05).abs().max()) < 1e-6
    sigma = math.sqrt(1 - math.exp(-0.1))
    assert float(x[..., 1].mean()) == pytest.approx(math.exp(-0.05), abs=4 * sigma / math.sqrt(n))
    assert float(x[..., 1].std()) == pytest.approx(sigma, rel=4 / math.sqrt(2 * n))


def all_orders(d):
    return list(itertools.permutations(range(d)))


@pytest.mark.parametrize("name", CONDITIONALS)
def test_the_chain_rule_sums_to_one_in_any_order(name):
    chain = Chain(CONDITIONALS[name])
    for order in all_orders(chain.space.dim):
        total = chain.log_prob(chain.space.states(), order).double().exp().sum()
        assert float(total) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", CONDITIONALS)
def test_samples_follow_the_chain_rule_and_know_their_probability(name):
    chain, n = Chain(CONDITIONALS[name]), 4000
    order = list(range(chain.space.dim))[::-1]
    drawn = chain.sample(n, seeded(), order)
    log_p = chain.log_prob(chain.space.states(), order).double()
    count = torch.bincount(chain.space.index(drawn.x), minlength=len(log_p))
    p = log_p.exp() / log_p.exp().sum()
    assert chisquare(count.numpy(), (n * p).numpy()).pvalue > 1e-3
    torch.testing.assert_close(drawn.log_prob, chain.log_prob(drawn.x, order), atol=1e-5, rtol=0)
    error = float(drawn.log_prob.std()) / math.sqrt(n)
    assert float(drawn.log_prob.mean()) == pytest.approx(float((p * log_p).sum()), abs=3 * error)


@pytest.mark.parametrize("name", CONDITIONALS)
def test_conditionals_sum_to_one_and_given_cells_stay(name):
    chain, n = Chain(CONDITIONALS[name]), 2000
    rest = list(range(1, chain.space.dim))
    states = chain.space.states()
    states = states[states[:, 0] == 1]
    log_p = chain.log_prob(states, rest, given=[0]).double()
    assert float(log_p.exp().sum()) == pytest.approx(1, abs=1e-5)
    given = torch.full((n, chain.space.dim), math.nan)
    given[:, 0] = 1
    drawn = chain.sample(n, seeded(), rest, given)
    assert torch.equal(drawn.x[:, 0], given[:, 0])
    count = torch.bincount(chain.space.index(drawn.x) - len(states), minlength=len(states))
    assert chisquare(count.numpy(), (n * log_p.softmax(0)).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("name", CONDITIONALS)
def test_a_missing_cell_is_summed_out(name):
    """Where it comes last, what its values sum to; where it comes first, the order without it."""
    chain = Chain(CONDITIONALS[name])
    d, states = chain.space.dim, chain.space.states()
    order = list(range(d))
    gap = states.clone()
    gap[:, -1] = math.nan
    sums = chain.log_prob(states, order).view(-1, chain.space.sizes[-1]).logsumexp(1)
    torch.testing.assert_close(
        chain.log_prob(gap, order)[:: chain.space.sizes[-1]], sums, atol=1e-5, rtol=1e-5
    )
    without = chain.log_prob(states, order[:-1])
    torch.testing.assert_close(chain.log_prob(gap, [d - 1, *order[:-1]]), without, atol=1e-5, rtol=1e-5)


def repeated_rows(space, gaps, n=12):
    """Two different cells in each column, so that rows show the same, and nan in some."""
    x = skewed(space).sample(2, seeded())[torch.randint(2, (n, space.dim), generator=seeded(1))]
    rows = x.diagonal(dim1=1, dim2=2).clone()
    if gaps:
        rows[torch.rand(rows.shape, generator=seeded(2)) < 0.3] = math.nan
    return rows


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(
    "conditionals",
    [*CONDITIONALS.values(), *WITH_NUMBERS.values()],
    ids=[*CONDITIONALS, *(f"{name} with numbers" for name in WITH_NUMBERS)],
)
def test_rows_that_share_what_they_show_score_as_they_do_one_by_one(conditionals, gaps):
    chain = Chain(conditionals)
    x, order = repeated_rows(chain.space, gaps), list(range(chain.space.dim))[::-1]
    for given in ([], [order[0]]):
        asked = [j for j in order if j not in given]
        alone = torch.cat([chain.log_prob(row, asked, given) for row in x.split(1)])
        torch.testing.assert_close(chain.log_prob(x, asked, given), alone, atol=1e-5, rtol=1e-5)


def test_a_pass_is_shared_by_all_rows_that_show_the_same():
    passes = []

    class Counted(AtLevel):
        def several(self, asked):
            passes.append([len(each.x) for each in asked])
            return super().several(asked)

    Chain(Counted(awake(FINITE), 1e-3)).log_prob(FINITE.states().repeat(50, 1), [0, 1, 2])
    assert passes == [[1, 2, 6]]


@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "with gaps"])
@pytest.mark.parametrize("members", [1, 3])
def test_columns_and_orders_that_share_a_pass_score_as_they_do_one_by_one(members, gaps):
    class OneByOne(AtLevel):
        at_once = 1

    net = awake(MIXED, members=members, correlation=CORRELATION)
    x, orders = repeated_rows(MIXED, gaps), [[0, 1, 2, 3], [3, 1, 0, 2]]
    together, alone = (Chain(kind(net, 0.01)).log_terms(x, orders) for kind in (AtLevel, OneByOne))
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        Chain(AtLevel(net, 0.01)).log_probs(x, orders), alone.sum(-1), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
@pytest.mark.parametrize("kind", ["heads", "differences"])
def test_a_mixed_chain_integrates_to_one_and_samples_follow_it(kind, order):
    space, n = Space([Real(), Category(2)]), 4000
    at = AtLevel(awake(space), 1e-3) if kind == "heads" else by_differences(space, level=0.01, points=257)
    chain = Chain(at)
    tails = torch.linspace(-14, 14, 20_001, dtype=torch.float64).sinh()
    t = torch.cat([torch.linspace(-8, 8, 20_001, dtype=torch.float64), tails[tails.abs() > 8]]).sort().values
    t = t[t.abs() <= 8] if kind == "differences" else t
    rows = torch.stack([t.repeat(2), torch.arange(2.0).repeat_interleave(len(t))], 1).float()
    log_p = chain.log_prob(rows, order).double().view(2, -1)
    p = log_p.exp()
    assert float(torch.trapezoid(p.sum(0), t)) == pytest.approx(1, abs=1e-4)
    x, log_q = chain.sample(n, seeded(), order)
    torch.testing.assert_close(log_q, chain.log_prob(x, order), atol=1e-4, rtol=1e-4)
    inside = t < 0
    for drawn, known in (
        (log_q.double(), torch.trapezoid((p * log_p).sum(0), t)),
        (x[:, 1].double(), torch.trapezoid(p[1], t)),
        ((x[:, 0] < 0).double(), torch.trapezoid(p.sum(0)[inside], t[inside])),
        (((x[:, 0] < 0) & (x[:, 1] > 0)).double(), torch.trapezoid(p[1][inside], t[inside])),
    ):
        assert float(drawn.mean()) == pytest.approx(float(known), abs=3 * float(drawn.std()) / math.sqrt(n))


def test_a_number_has_a_density_whatever_is_shown():
    at, (x, visible) = WITH_NUMBERS["heads"], some_sets(6, MIXED)
    for j, i in itertools.product(MIXED.reals, range(6)):
        shown = visible[i : i + 1] & (torch.arange(4) != j)
        _, below = distribution_function(at.given(x[i : i + 1], shown, j))
        assert float(below[-1]) == pytest.approx(1, abs=1e-4)


PARTED = Space([Category(2), Real(), Category(2)])


def test_a_part_that_does_not_exist_is_neither_scored_nor_drawn():
    chain, n = Chain(AtLevel(awake(PARTED), 1e-3), {1: 0}), 2000
    x = torch.tensor([[1.0, math.nan, 0.0]])
    expected = chain.log_prob(x, [0]) + chain.log_prob(x, [2], given=[0])
    torch.testing.assert_close(chain.log_prob(x, [0, 1, 2]), expected)
    drawn = chain.sample(n, seeded(), [0, 1, 2])
    assert torch.equal(drawn.x[:, 1].isnan(), drawn.x[:, 0] > 0)
    assert 0 < float(drawn.x[:, 0].mean()) < 1
    torch.testing.assert_close(drawn.log_prob, chain.log_prob(drawn.x, [0, 1, 2]), atol=1e-4, rtol=1e-4)
    given = x.expand(5, -1)
    assert torch.equal(chain.sample(5, seeded(), given=given).x.isnan(), given.isnan())


def test_random_orders_keep_parents_first_and_late_columns_last():
    space = Space([Category(2), Real(), Category(2), Real(), Category(2)])
    chain = Chain(AtLevel(awake(space), 1e-3), {1: 0, 3: 2}, late=[0, 0.5, 0.2, 0.2, 0])
    orders = chain.orders(200, seeded())
    for order in orders:
        assert sorted(order) == list(range(5))
        assert order[-1] == 1
        assert set(order[:2]) == {0, 4}
        assert order.index(2) < order.index(3)
        assert all(chain.allows(a, b) for a, b in itertools.pairwise(order))
    assert len({tuple(order) for order in orders}) == 2  # 0 and 4 change places


BAD = {
    "order, given: expected different columns": lambda chain: chain.log_prob(FINITE.states(), [0, 1, 1]),
    "order, given: expected different columns of 0 … 2": lambda chain: chain.log_prob(FINITE.states(), [-1]),
    r"order: expected every column that is not given; missing \[1, 2\]": lambda chain: chain.sample(
        2, torch.Generator(), [0]
    ),
    r"given: expected shape \(9, 3\); got \(3, 3\)": lambda chain: chain.sample(
        9, torch.Generator(), given=torch.zeros(3, 3)
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_a_chain_names_what_it_was_asked_wrongly(message):
    with pytest.raises(ValueError, match=message):
        BAD[message](Chain(CONDITIONALS["heads"]))


class Ladder:
    """A made-up network: a column costs a nat for each column before it that is hidden, so that one order is best."""

    ties = None

    def __init__(self, columns):
        self.worth = Worth.of_all(columns)

    def parted(self, x):
        return x, None

    def log_conditionals(self, x, visible, level, clear):
        hidden = (~visible).to(x.dtype)
        return hidden - hidden.cumsum(-1)


class LadderAt(AtLevel):
    def __init__(self, space):
        self.net, self.level = Ladder(space.dim), 1e-3
        self._base = skewed(space)

    @property
    def base(self):
        return self._base


def test_the_easy_order_is_found():
    at = LadderAt(Space([Category(2)] * 8))
    chain, rows = Chain(at), torch.zeros(2, 5, 8)
    assert best_orders(chain, at, rows, 2, seeded()) == [list(range(8))] * 2


def test_the_easy_order_is_found_as_far_as_parents_and_gaps_allow():
    at = LadderAt(Space([Real(), Category(2), Category(2), Real()]))
    chain = Chain(at, parents={0: 1}, late=[0, 0, 0.5, 0])
    assert best_orders(chain, at, torch.zeros(1, 5, 4), 1, seeded()) == [[1, 0, 3, 2]]


def test_the_best_order_of_all_is_found_where_all_are_tried():
    """Each row judged by its member; gaps count nothing."""
    at = AtLevel(awake(BITS, members=2), 1e-3)
    alone = [Chain(AtLevel(at.net, 1e-3, k)) for k in range(2)]
    chain, rows = Chain(at), BITS.states()[torch.randint(16, (2, 40), generator=seeded(1))]
    rows[:, ::3, 1:3] = math.nan

    def likelihood(order):
        each = [alone[k].log_prob(rows[k], order) for k in range(2)]
        return float(torch.cat(each).double().mean())

    scores = {order: likelihood(order) for order in all_orders(4)}
    found = best_orders(chain, at, rows, 3, seeded())
    assert max(scores.values()) - min(scores.values()) > 0.1
    assert scores[tuple(found[0])] == pytest.approx(max(scores.values()), abs=1e-6)
    assert scores[tuple(found[0])] >= scores[tuple(found[1])] >= scores[tuple(found[2])]


def test_many_columns_have_random_orders():
    at = LadderAt(Space([Category(2)] * 65))
    assert best_orders(Chain(at), at, torch.zeros(1, 4, 65), 3, seeded()) == Chain(at).orders(3, seeded())


class Plain:
    """Units of columns that stand for themselves."""

    def values(self, x, j):
        return x[:, j].double()

    def cells(self, value, j):
        return torch.stack([value - 0.01, value + 0.01], -1)

    def width(self, j):
        return 0.02


def test_no_column_of_many_is_left_to_two_sums():
    """One column is the sum of two and of two others: where it came last, they would contradict each other."""
    sums = [(2, 0, 1), (2, 3, 4)]
    ties = [Tie(whole, ((a, 1), (b, 1)), 1.0) for whole, a, b in sums]
    ties += [Tie(a, ((whole, 1), (b, -1)), 1.0) for whole, *two in sums for a, b in (two, two[::-1])]
    x = torch.randn(60, 70, generator=seeded())
    x[:, 2], x[:, 4] = x[:, 0] + x[:, 1], x[:, 0] + x[:, 1] - x[:, 3]
    space, ties = Space([Real()] * 70), Ties(ties, Plain(), {})
    at = AtLevel(AnyOrderNet(ProductBase.fit(space, x), width=8, blocks=1, ties=ties), 1e-3)
    rows = torch.cat([x, ties.all_ends(x).flatten(1)], 1).unsqueeze(0)
    chain = Chain(at, late=[0.0] * 69 + [0.1])
    found, random = best_orders(chain, at, rows, 6, seeded()), chain.orders(6, seeded())
    last = [{max(columns, key=order.index) for columns in sums} for order in found]
    assert [len(columns) for columns in last] == [2] * 6
    assert any(len({max(columns, key=order.index) for columns in sums}) == 1 for order in random)
    for chosen, drawn in zip(found, random, strict=True):
        assert [j if j > 4 else None for j in chosen] == [j if j > 4 else None for j in drawn]


def test_no_sum_is_left_to_a_column_that_a_rule_names():
    """What is known of a column anyway is not known better by a sum: that is for the total, which comes after it."""
    lent, left, paid, interest, total = range(5)
    x = torch.randn(60, 24, generator=seeded())
    x[:, paid], x[:, total] = x[:, lent] - x[:, left], x[:, lent] - x[:, left] + x[:, interest]
    ties = [Tie(total, ((paid, 1), (interest, 1)), 1.0), Tie(paid, ((total, 1), (interest, -1)), 1.0)]
    ties += [Tie(interest, ((total, 1), (paid, -1)), 1.0)]
    space, ties = Space([Real()] * 24), Ties(ties, Plain(), {})
    at = AtLevel(AnyOrderNet(ProductBase.fit(space, x), width=8, blocks=1, ties=ties), 1e-3)
    rows = torch.cat([x, ties.all_ends(x).flatten(1)], 1).unsqueeze(0)
    chain = Chain(at, after={paid: {lent, left}})
    found = best_orders(chain, at, rows, 4, seeded())
    assert all(max((paid, interest, total), key=order.index) != paid for order in found)
    assert any(max((paid, interest, total), key=order.index) == paid for order in chain.orders(4, seeded()))
