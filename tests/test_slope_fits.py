"""Networks for the chain rule, and another for one pass: they agree."""

import math
from dataclasses import replace

import pytest
import torch

from ctem import Category, ProductBase, Real, Recipe, Space
from ctem.chain import Chain
from ctem.clocknet import ClockNet
from ctem.density import chains
from ctem.fitting import fit_density
from ctem.joint import joint_log_z, log_weights
from ctem.plans import Plan

SPACE = Space([Category(2), Real(), Category(3)])
BASE = ProductBase(SPACE, [torch.tensor([0.3, 0.7]), torch.tensor([0.2, 0.3, 0.5])])
PLAN = Plan(
    width=32,
    blocks=1,
    members=1,
    recipe=Recipe(steps=400, batch_size=120, learning_rate=3e-3, evaluate_every=100, ema=0.98),
    log_z_samples=2000,
)
PLAN = replace(PLAN, slopes=PLAN.own)


def awake(**options):
    g = ClockNet(BASE, width=16, blocks=1, slopes=True, **options).eval()
    with torch.no_grad():
        for p, scale in ((g.last, 0.3), (g.head, 0.3), (g.hats, 0.03)):
            p.copy_(scale * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    return g.requires_grad_(False)


def test_weights_against_the_mixture_of_orders_have_the_same_mean_and_less_spread():
    """Orders of an untrained chain disagree; the weight against their mixture is the mean of those against each."""
    g = awake()
    base = ClockNet(BASE, width=16)  # untrained: log Z = 0
    chain = Chain(base, BASE, floor=0.05, slopes=g)
    mixed = log_weights(chain, 4000, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    drawn = [chain.sample(1000, generator, order) for order in chain.orders(4, generator)]  # the same rows
    single = torch.cat([chain.joint(part.x) - part.log_prob for part in drawn])
    assert float(mixed.exp().mean()) == pytest.approx(float(single.exp().mean()), abs=0.1)
    assert float(mixed.std()) < float(single.std())


@pytest.mark.parametrize("members", [1, 3])
def test_a_fit_by_slopes_agrees_with_itself_and_with_the_data(members):
    """A bit, a real column that follows it, and a label that follows both: one pass, chain rule and frequencies."""
    generator = torch.Generator().manual_seed(0)
    bit = (torch.rand(2000, generator=generator) < 0.7).float()
    real = (bit * 2 - 1) * 0.8 + 0.6 * torch.randn(2000, generator=generator)
    label = torch.where(torch.rand(2000, generator=generator) < 0.8, 2 * bit, 1.0)
    x = torch.stack([bit, real, label], 1)
    density = fit_density(SPACE, x, replace(PLAN, slopes=replace(PLAN.slopes, members=members)))
    one, exact = density.log_prob(x[:300]), density.log_prob_exact(x[:300])
    assert float((one - exact).abs().mean()) < 0.2
    asked = torch.full((1, 3), math.nan)
    asked[0, 0] = 1
    assert float(density.log_prob_exact(asked).exp()) == pytest.approx(0.7, abs=0.05)
    _, log_p = density.conditional(asked, 2)
    assert log_p.exp()[0].tolist() == pytest.approx([0, 0.2, 0.8], abs=0.06)
    drawn = density.sample(2000, generator)
    assert float(drawn[:, 0].mean()) == pytest.approx(float(bit.mean()), abs=0.05)
    assert float(drawn[drawn[:, 0] == 1, 1].mean()) == pytest.approx(0.8, abs=0.1)


def test_a_part_that_does_not_exist_is_skipped_and_drawn_from_the_base():
    space, generator = Space([Category(2), Real()]), torch.Generator().manual_seed(0)
    atom = (torch.rand(1500, generator=generator) < 0.5).float()
    real = torch.where(atom > 0, math.nan, 0.3 * torch.randn(1500, generator=generator))
    density = fit_density(space, torch.stack([atom, real], 1), PLAN, parents={1: 0})
    asked = torch.tensor([[1.0, math.nan]])
    assert float(density.log_prob_exact(asked).exp()) == pytest.approx(0.5, abs=0.05)
    assert float(density.log_prob(asked).exp()) == pytest.approx(0.5, abs=0.1)
    inside = density.members[0].log_prob(torch.tensor([[0.0, 0.0]]), [1], given=[0])
    assert float(inside.exp()) == pytest.approx(1.33, abs=0.3)
    chain = chains(density.slopes, density.level, {1: 0}, density.slopes)[0]
    beyond = chain.sample(2000, generator, [1], given=asked.expand(2000, -1)).x[:, 1]
    assert float(beyond.std()) == pytest.approx(1, abs=0.1)
    assert all(order == [0, 1] for order in chain.orders(20, generator))


def test_the_constant_of_one_pass_is_that_of_a_grid_where_slopes_resolve_more():
    """A ridge narrower than what one pass resolves: finer chain samples would miss most of its mass."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 1, generator=generator)
    x = torch.cat([x, x + 0.02 * torch.randn(2000, 1, generator=generator)], 1)
    space = Space([Real(), Real()]).standardised(x)
    density = fit_density(space, space.encode(x), PLAN)
    assert density.fine < density.level
    at = torch.linspace(-5, 5, 1001)
    square = torch.cartesian_prod(at, at)
    truth = float(density.chain.joint(square).double().logsumexp(0)) + 2 * math.log(0.01)
    assert density.log_z.value == pytest.approx(truth, abs=max(0.02, 4 * density.log_z.stderr))
    assert density.log_z.ess > PLAN.log_z_samples / 2  # of finer samples, a fifth
    again = joint_log_z(density.proposals()[0], 2000, generator)  # as the report checks it
    assert again.value == pytest.approx(truth, abs=max(0.02, 4 * again.stderr))
