"""First-order comparisons: slopes are differences, and training on them finds the distribution."""

import itertools
import math

import pytest
import torch
from test_anyorder import BITS, seeded, skewed, stirred
from torch._subclasses.fake_tensor import FakeTensorMode

from ctem.bases import ProductBase
from ctem.densities.chain import Chain
from ctem.training import Recipe, train
from experiments.images.firstorder import FirstOrder, HiddenPixels
from experiments.images.unet import ImageNet

pytestmark = pytest.mark.long  # of the experiments, not of the library
BASE = skewed(BITS)


def awake(precision="float32"):
    return stirred(ImageNet(BASE, (2, 2), (8, 16), precision=precision))


class Pairwise:
    """g = Σ h_i v_i + Σ J_ij v_i v_j: multilinear, so that slopes are differences exactly."""

    base = BASE
    labels = ImageNet(BASE, (2, 2), (4, 8)).labels

    def __init__(self):
        self.h = torch.randn(4, generator=seeded())
        self.j = torch.randn(4, 4, generator=seeded(1)).triu(1)

    def of(self, v):
        return v @ self.h + ((v @ self.j) * v).sum(-1)

    def slopes(self, x, level):
        v = torch.where(torch.isfinite(level), 2 * x - 1, 0.0)
        return 2 * (self.h + v @ (self.j + self.j.T))


def test_the_last_conditional_of_a_multilinear_potential_is_exact():
    """Given all other pixels: b e^g of one value over that of both."""
    g, x = Pairwise(), BITS.states()
    log_joint = BASE.log_prob(x) + g.of(2 * x - 1)
    for j in range(4):
        others = [i for i in range(4) if i != j]
        flipped = x.clone()
        flipped[:, j] = 1 - x[:, j]
        expected = log_joint - torch.logaddexp(log_joint, log_joint[BITS.index(flipped)])
        found = Chain(FirstOrder(g)).log_prob(x, [j], given=others)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_networks_slope_is_its_derivative_in_the_hidden_value():
    g, x = awake(), BITS.states()
    visible = torch.rand(x.shape, generator=seeded()) < 0.5
    level = torch.where(visible, 0.0, math.inf)
    found = g.slopes(x, level)
    value, h = torch.where(visible, 2 * x - 1, 0.0), 1e-2
    for j in range(4):
        move = h * torch.eye(4)[j]
        rise = g._of_values(value + move, visible, level) - g._of_values(value - move, visible, level)
        here = ~visible[:, j]
        assert torch.allclose(found[here, j], rise[here] / h, atol=0.02)
        assert float(found[here, j].detach().abs().max()) > 0.1


def test_what_a_hidden_pixel_holds_does_not_matter():
    g, x = awake(), BITS.states()
    level = torch.tensor([0.0, math.inf, 0.0, math.inf]).expand_as(x)
    other = torch.where(torch.isfinite(level), x, 1 - x)
    assert torch.equal(g.slopes(x, level), g.slopes(other, level))


def test_batches_change_nothing():
    g, x = awake(), BITS.states()
    whole, parts = (Chain(FirstOrder(g, size)).log_prob(x, [1, 3, 0, 2]) for size in (8192, 3))
    torch.testing.assert_close(whole, parts, atol=1e-5, rtol=1e-5)


def test_d_times_the_loss_is_the_mean_over_all_orders():
    """In expectation; the standard error of 100 evaluations is measured."""
    g, x = awake(), BITS.states()[[3, 9, 14]]
    chain, generator = Chain(FirstOrder(g)), seeded()
    orders = itertools.permutations(range(4))
    expected = -torch.stack([chain.log_prob(x, order) for order in orders]).double().mean() / 4
    rows = x.repeat(50, 1)
    with torch.no_grad():
        found = torch.stack([HiddenPixels()(g, rows, generator) for _ in range(100)]).double()
    error = float(found.std()) / math.sqrt(len(found))
    assert error < 0.02
    assert float(found.mean()) == pytest.approx(float(expected), abs=3 * error)


def test_training_on_slopes_finds_the_distribution():
    rows = BITS.states()[[0, 15, 5, 5, 10]].repeat(100, 1)  # 0000, 1111, and 0101 twice, 1010
    base = ProductBase.fit(BITS, rows)
    g = ImageNet(base, (2, 2), (8, 16))
    recipe = Recipe(steps=90, batch_size=64, learning_rate=0.01, ema=0.9, evaluate_every=90)
    train(g, HiddenPixels(), rows, recipe)
    p = Chain(FirstOrder(g.requires_grad_(False))).log_prob(BITS.states(), [0, 1, 2, 3]).exp()
    assert p[[0, 15, 5, 10]].tolist() == pytest.approx([0.2, 0.2, 0.4, 0.2], abs=0.04)


def test_gradients_reach_all_weights_and_a_step_looks_at_no_number():
    g = awake().requires_grad_(True)
    HiddenPixels()(g, BITS.states(), seeded()).backward()
    assert all(bool((p.grad != 0).any()) for name, p in g.named_parameters() if "bias" not in name)
    half = awake("bf16")
    with FakeTensorMode(allow_non_fake_inputs=True):
        HiddenPixels()(half, torch.zeros(16, 4), torch.Generator())  # reading a fake number raises
