"""First-order comparisons: slopes are differences, conditionals from them are normalised, and they learn."""

import itertools
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ctem.bases import ProductBase
from ctem.chain import Chain
from ctem.clocknet import ClockNet
from ctem.conditionals import Values
from ctem.slopes import Slopes
from ctem.spaces import Category, Ordinal, Real, Space
from ctem.training import Recipe, train
from ctem.unet import ImageNet

SPACE = Space([Category(2)] * 4)
BASE = ProductBase(SPACE, [torch.tensor([1.0, 0.5 + j]) for j in range(4)])


def awake(precision="float32"):
    """A network whose last layers are not zero."""
    g = ImageNet(BASE, (2, 2), (8, 16), precision=precision)
    with torch.no_grad():
        for p in (g.last, g.last_pooled):
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    return g.requires_grad_(False)


def by_slope(g, base=BASE, **options):
    return Chain(g, base, slopes=g, **options)


class Pairwise:
    """g = Σ h_i v_i + Σ J_ij v_i v_j: multilinear, so that slopes are differences exactly."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.h = torch.randn(4, generator=generator)
        self.j = torch.randn(4, 4, generator=generator).triu(1)

    def of(self, v):
        return v @ self.h + ((v @ self.j) * v).sum(-1)

    def slopes(self, x, level):
        v = torch.where(torch.isfinite(level), 2 * x - 1, 0.0)
        return 2 * (self.h + v @ (self.j + self.j.T))


def test_the_slope_of_a_multilinear_potential_is_its_difference_given_all_others():
    g, x = Pairwise(), SPACE.states()
    for j in range(4):
        level = torch.zeros_like(x)
        level[:, j] = math.inf
        shown, hidden = x.clone(), x.clone()
        shown[:, j], hidden[:, j] = 1, 0
        difference = g.of(2 * shown - 1) - g.of(2 * hidden - 1)
        assert torch.allclose(g.slopes(x, level)[:, j], difference, atol=1e-5)


def test_the_networks_slope_is_its_derivative_in_the_hidden_value():
    g, x = awake(), SPACE.states()
    visible = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    level = torch.where(visible, 0.0, math.inf)
    found = g.slopes(x, level)
    value, h = torch.where(visible, 2 * x - 1, 0.0), 1e-2
    for j in range(4):
        move = h * torch.eye(4)[j]
        rise = g._of_values(value + move, visible, level) - g._of_values(value - move, visible, level)
        here = ~visible[:, j]
        assert torch.allclose(found[here, j], rise[here] / h, atol=2e-3)


def test_what_a_hidden_pixel_holds_does_not_matter():
    g, x = awake(), SPACE.states()
    level = torch.tensor([0.0, math.inf, 0.0, math.inf]).expand_as(x)
    other = torch.where(torch.isfinite(level), x, 1 - x)
    assert torch.equal(g.slopes(x, level), g.slopes(other, level))


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1]])
def test_the_chain_is_normalised_in_any_order_and_samples_follow_it(order):
    chain, x = by_slope(awake()), SPACE.states()
    p = chain.log_prob(x, order).double().exp()
    assert float(p.sum()) == pytest.approx(1, abs=1e-5)
    n = 20_000
    drawn = chain.sample(n, torch.Generator().manual_seed(0), order)
    found = torch.bincount(SPACE.index(drawn.x), minlength=16) / n
    assert float((found - p).abs().max()) < 4 * math.sqrt(0.25 / n)
    assert torch.allclose(drawn.log_prob, chain.log_prob(drawn.x, order), atol=1e-5)


def test_given_cells_stay_and_the_others_follow_their_conditional():
    chain = by_slope(awake())
    given = torch.tensor([[1.0, math.nan, 0.0, math.nan]]).repeat(20_000, 1)
    x = chain.sample(len(given), torch.Generator().manual_seed(0), [1, 3], given=given).x
    assert torch.equal(x[:, [0, 2]], given[:, [0, 2]])
    _, log_p = chain.conditional(given[:1], ~given[:1].isnan(), 1)
    assert float(x[:, 1].mean()) == pytest.approx(float(log_p[0, 1].exp()), abs=0.015)


def test_a_column_that_nobody_draws_is_an_error():
    with pytest.raises(ValueError, match=r"order: expected every column that is not given; missing \[2, 3\]"):
        by_slope(awake()).sample(5, torch.Generator(), [0, 1])


def test_d_times_the_loss_is_the_mean_over_all_orders():
    g, x = awake(), SPACE.states()[[3, 9, 14]]
    chain = by_slope(g)
    orders = list(itertools.permutations(range(4)))
    expected = -torch.stack([chain.log_prob(x, order) for order in orders]).mean()
    found = 4 * Slopes(BASE)(g, x.repeat(5000, 1), torch.Generator().manual_seed(0))
    assert float(found.detach()) == pytest.approx(float(expected), rel=0.02)


def test_training_on_slopes_finds_the_distribution():
    rows = SPACE.states()[[0, 15, 5, 5, 10]].repeat(100, 1)  # 0000, 1111, and 0101 twice, 1010
    base = ProductBase.fit(SPACE, rows)
    g = ImageNet(base, (2, 2), (16, 32))
    recipe = Recipe(steps=150, batch_size=128, learning_rate=5e-3, ema=0.9, evaluate_every=150)
    train(g, Slopes(base), rows, recipe)
    p = by_slope(g.requires_grad_(False), base).log_prob(SPACE.states(), [0, 1, 2, 3]).exp()
    assert p[[0, 15, 5, 10]].tolist() == pytest.approx([0.2, 0.2, 0.4, 0.2], abs=0.04)


def test_gradients_reach_all_weights_and_a_step_looks_at_no_number():
    g, x = awake().requires_grad_(True), SPACE.states()
    Slopes(BASE)(g, x, torch.Generator()).backward()
    assert all(bool((p.grad != 0).any()) for name, p in g.named_parameters() if "bias" not in name)
    g = awake("bf16")
    with FakeTensorMode(allow_non_fake_inputs=True):
        Slopes(BASE)(g, torch.zeros(16, 4), torch.Generator())  # reading a fake number raises


MIXED = Space([Category(3), Real(), Ordinal(4), Category(2)])
TABLES = [torch.tensor(p) for p in ([0.2, 0.3, 0.5], [0.1, 0.2, 0.3, 0.4], [0.6, 0.4])]
MIXED_BASE = ProductBase(MIXED, TABLES)


def awake_table(members=1, seed=0, base=MIXED_BASE):
    g = ClockNet(base, width=16, blocks=1, members=members, slopes=True, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in (g.last, g.head):
            p.copy_(0.3 * torch.randn(p.shape, generator=generator))
    return g.eval().requires_grad_(False)


def some_rows(n):
    x = MIXED_BASE.sample(n, torch.Generator().manual_seed(0))
    visible = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    return x, torch.where(visible, torch.where(MIXED_BASE.is_real, 0.01, 0.0), math.inf)


CLOCK = torch.full((1, 1), 0.01)


def slopes_of(g, x, level):
    return g.coefficients(x, level, CLOCK).values


def test_the_slope_of_a_table_is_the_derivative_in_the_features_of_hidden_values():
    """Shown to a share h, value v raises its own feature by h/spread above value 0's."""
    g, (x, level) = awake_table(), some_rows(40)
    found, seen = slopes_of(g, x, level), g.seen(x, level).unsqueeze(0)
    for f, spread in enumerate(g.spread):
        move = torch.zeros(seen.shape[-1])
        move[MIXED.dim + f] = 1e-2 / spread
        rise = (g._net(seen + move) - g._net(seen - move))[0] / 2e-2
        assert torch.allclose(found[:, f], rise, atol=5e-3)


def test_what_a_hidden_cell_holds_does_not_matter_in_a_table():
    g, (x, level) = awake_table(), some_rows(40)
    other = torch.where(torch.isfinite(level), x, MIXED_BASE.sample(40, torch.Generator().manual_seed(2)))
    for one, two in zip(
        g.coefficients(x, level, CLOCK).curve, g.coefficients(other, level, CLOCK).curve, strict=True
    ):
        assert torch.equal(one, two)
    assert torch.equal(slopes_of(g, x, level), slopes_of(g, other, level))


def test_a_mixed_chain_by_slope_is_normalised_and_samples_follow_it():
    chain = by_slope(awake_table(), MIXED_BASE, floor=0.05)
    codes = torch.cartesian_prod(torch.arange(3.0), torch.arange(4.0), torch.arange(2.0))
    x = torch.full((len(codes), 4), math.nan)
    x[:, [0, 2, 3]] = codes
    for order in ([0, 2, 3], [3, 0, 2]):
        p = chain.log_prob(x, order).double().exp()
        assert float(p.sum()) == pytest.approx(1, abs=1e-5)
    drawn = chain.sample(200, torch.Generator().manual_seed(0), [3, 1, 0, 2])
    assert torch.allclose(drawn.log_prob, chain.log_prob(drawn.x, [3, 1, 0, 2]), atol=0.01)


def test_members_of_a_batch_have_their_own_slopes():
    net, (x, level) = awake_table(3), some_rows(12)
    found = slopes_of(net, x, level)
    for k in range(3):
        assert torch.allclose(found[k::3], slopes_of(net.member(k), x[k::3], level[k::3]), atol=1e-6)


def test_log_prob_of_values_agrees_with_their_columns():
    values = Values(MIXED_BASE)
    slopes = 5 * torch.randn(30, len(values.owner), generator=torch.Generator().manual_seed(0))
    x = MIXED_BASE.sample(30, torch.Generator().manual_seed(1))
    found = values.log_prob(x, slopes)
    assert torch.equal(found[:, 1], torch.zeros(30))
    for j in MIXED.discretes:
        own = values.column(slopes, j).gather(1, x[:, j : j + 1].long()).squeeze(1)
        assert torch.allclose(found[:, j], own, atol=1e-5)


def test_a_missing_cell_counts_nothing():
    g, x = awake_table(), MIXED_BASE.sample(64, torch.Generator().manual_seed(0))
    x[:, [0, 2]] = math.nan
    objective = Slopes(MIXED_BASE)
    assert 0.1 < objective(g, x, torch.Generator().manual_seed(0)).item() < 2
    x[:, [1, 3]] = math.nan  # nothing is left to ask
    assert objective(g, x, torch.Generator()).item() == 0


def test_training_a_table_on_slopes_finds_the_distribution():
    """A label of three values that says the sign of a real column, and a bit that copies whether it is 2."""
    generator = torch.Generator().manual_seed(0)
    label = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 3000, replacement=True, generator=generator)
    real = torch.randn(3000, generator=generator).abs() * torch.where(label == 0, 1.0, -1.0)
    x = torch.stack([label.float(), real, (label == 2).float()], 1)
    base = ProductBase.fit(Space([Category(3), Real(), Category(2)]), x)
    g = ClockNet(base, width=32, blocks=1, slopes=True)
    recipe = Recipe(steps=300, batch_size=256, learning_rate=5e-3, ema=0.9, evaluate_every=300)
    train(g, Slopes(base, floor=1e-3), x, recipe)
    chain = by_slope(g.requires_grad_(False), base)
    asked = torch.tensor([[math.nan, 1.0, 0.0], [math.nan, -1.0, math.nan], [math.nan, -1.0, 1.0]])
    _, log_p = chain.conditional(asked, ~asked.isnan(), 0)
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.6, 0.4], [0.0, 0.0, 1.0]])
    assert torch.allclose(log_p.exp(), expected, atol=0.06)


def test_a_few_real_columns_stand_for_all_of_them():
    """The loss of random ones has the same expectation; missing cells and labels are beside them."""
    base = ProductBase(Space([Real()] * 6 + [Category(3)]))
    g = ClockNet(base, width=8, blocks=1, slopes=True).eval()
    with torch.no_grad():
        g.hats.copy_(0.1 * torch.randn(g.hats.shape, generator=torch.Generator().manual_seed(1)))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 7, generator=generator)
    x[:, 6] = 1.0
    x[torch.rand(x.shape, generator=generator) < 0.2] = math.nan
    with torch.no_grad():
        each = {
            most: torch.stack([Slopes(base, 0.1, most=most)(g, x, generator) for _ in range(300)])
            for most in (2, 6)
        }
    gap = float(each[2].mean() - each[6].mean())
    spread = math.sqrt(sum(float(v.var()) / len(v) for v in each.values()))
    assert abs(gap) < 4 * spread
    assert spread < 0.02
