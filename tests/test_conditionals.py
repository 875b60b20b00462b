"""Conditionals with coefficients: normalised whatever they are, and draws follow them."""

import math

import pytest
import torch

from ctem.conditionals import Curve, Splines
from ctem.slopes import draw_between


def curve(spread, wild=1.0, n=4):
    """Random coefficients on a prediction of this spread."""
    splines, generator = Splines().eval(), torch.Generator().manual_seed(0)
    mean = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, 1, splines.size, generator=generator, dtype=torch.float64)
    return splines.double(), Curve(mean, torch.full_like(mean, spread), wild * noise * splines.scale)


@pytest.mark.parametrize("spread", [1.0, 0.3, 0.01])
def test_a_spline_density_integrates_to_one(spread):
    splines, c = curve(spread)
    z = torch.linspace(-1, 1, 20_001, dtype=torch.float64).expand(4, 1, -1)
    t, jacobian = splines.unrolled(z, c)
    total = (splines.log_density(t, c) + jacobian).exp().sum(-1) * 1e-4
    assert torch.allclose(total, torch.ones_like(total), atol=5e-3)


@pytest.mark.parametrize("spread", [1.0, 0.01])
def test_without_coefficients_it_is_the_prediction_and_a_little_of_the_base(spread):
    splines, c = curve(spread, wild=0.0)
    t = c.mean + spread * torch.tensor([-2.0, 0.0, 1.0], dtype=torch.float64)
    near = torch.distributions.Normal(c.mean, spread).log_prob(t).exp()
    base = torch.distributions.Normal(0.0, 1.0).log_prob(t).exp()
    found = splines.log_density(t.unsqueeze(1), c).squeeze(1).exp()
    assert torch.allclose(found, 0.9 * near + 0.1 * base, rtol=2e-3)


@pytest.mark.parametrize("spread", [1.0, 0.05])
def test_draws_follow_the_density_that_they_report(spread):
    splines, c = curve(spread, n=1)
    many = Curve(*(part.expand(20_000, *part.shape[1:]) for part in c))
    z, log_p = splines.on_nodes(many)
    place, log_q = draw_between(z, log_p.squeeze(1), torch.Generator().manual_seed(0))
    t, jacobian = splines.unrolled(place.view(-1, 1, 1), many)
    reported, exact = log_q - jacobian.flatten(), splines.log_prob(t.flatten(1), many).flatten()
    assert float((reported - exact).abs().mean()) < 0.01
    # the distribution function of draws is uniform
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    at, slope = splines.unrolled(grid.view(1, 1, -1), c)
    cdf = ((splines.log_density(at, c) + slope).exp() * 1e-4).flatten().cumsum(0)
    u = cdf[torch.searchsorted(at.flatten(), t.flatten()).clamp(max=20_000)].sort().values
    gap = (u - torch.linspace(0, 1, 20_000, dtype=torch.float64)).abs().max()
    assert float(gap) < 1.63 / math.sqrt(20_000)  # Kolmogorov–Smirnov at 1 %


def test_coarse_nodes_while_training_cost_little_accuracy():
    splines, c = curve(0.3, wild=0.5)
    t = c.mean + 0.1
    fine = splines.log_prob(t, c)
    assert torch.allclose(splines.train().log_prob(t, c), fine, atol=0.01)
