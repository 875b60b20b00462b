"""First-order comparisons: slopes are differences, conditionals from them are normalised, and they learn."""

import itertools
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ctem.bases import ProductBase
from ctem.slopes import SlopeChain, Slopes
from ctem.spaces import Category, Real, Space
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
    chain, x = SlopeChain(awake(), BASE), SPACE.states()
    p = chain.log_prob(x, order).double().exp()
    assert float(p.sum()) == pytest.approx(1, abs=1e-5)
    n = 20_000
    drawn = chain.sample(n, torch.Generator().manual_seed(0), order)
    found = torch.bincount(SPACE.index(drawn.x), minlength=16) / n
    assert float((found - p).abs().max()) < 4 * math.sqrt(0.25 / n)
    assert torch.allclose(drawn.log_prob, chain.log_prob(drawn.x, order), atol=1e-5)


def test_given_cells_stay_and_the_others_follow_their_conditional():
    chain = SlopeChain(awake(), BASE)
    given = torch.tensor([[1.0, math.nan, 0.0, math.nan]]).repeat(20_000, 1)
    x = chain.sample(len(given), torch.Generator().manual_seed(0), [1, 3], given=given).x
    assert torch.equal(x[:, [0, 2]], given[:, [0, 2]])
    score = chain.scores(given[:1].nan_to_num(), ~given[:1].isnan())[0, 1]
    assert float(x[:, 1].mean()) == pytest.approx(float(torch.sigmoid(score)), abs=0.015)


def test_a_column_that_nobody_draws_is_an_error():
    with pytest.raises(ValueError, match=r"order: expected every column that is not given; missing \[2, 3\]"):
        SlopeChain(awake(), BASE).sample(5, torch.Generator(), [0, 1])


def test_d_times_the_loss_is_the_mean_over_all_orders():
    g, x = awake(), SPACE.states()[[3, 9, 14]]
    chain = SlopeChain(g, BASE)
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
    p = SlopeChain(g.requires_grad_(False), base).log_prob(SPACE.states(), [0, 1, 2, 3]).exp()
    assert p[[0, 15, 5, 10]].tolist() == pytest.approx([0.2, 0.2, 0.4, 0.2], abs=0.04)


def test_gradients_reach_all_weights_and_a_step_looks_at_no_number():
    g, x = awake().requires_grad_(True), SPACE.states()
    Slopes(BASE)(g, x, torch.Generator()).backward()
    assert all(bool((p.grad != 0).any()) for name, p in g.named_parameters() if "bias" not in name)
    with FakeTensorMode(allow_non_fake_inputs=True):
        Slopes(BASE)(awake("bf16"), torch.zeros(16, 4), torch.Generator())  # reading a fake number raises


def test_columns_of_more_than_two_values_are_refused():
    with pytest.raises(ValueError, match=r"base: expected columns of two values; got sizes \[0\]"):
        SlopeChain(Pairwise(), ProductBase(Space([Real()])))
