"""Conditionals with coefficients: normalised whatever they are, and draws follow them."""

import math

import pytest
import torch

from ctem.conditionals import Curve, Splines


def curve(spread, wild=1.0, n=4, far=1.0):
    """Random coefficients on predictions of this spread."""
    splines, generator = Splines().eval(), torch.Generator().manual_seed(0)
    mean = far * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, 1, splines.size, generator=generator, dtype=torch.float64)
    return splines.double(), Curve(mean, torch.full_like(mean, spread), wild * noise * splines.scale)


def grid(c, count=800_001):
    """Numbers that have all the mass, evenly spaced, (n, 1, count), and the step."""
    return torch.linspace(-20, 20, count, dtype=torch.float64).expand(len(c.mean), 1, -1), 40 / (count - 1)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("far", [1.0, 4.0])
@pytest.mark.parametrize("wild", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("spread", [1.0, 0.3, 0.01])
def test_a_spline_density_integrates_to_one_however_wild(spread, wild, far, training):
    """Hats of the margin may be steep far from a narrow prediction: none may hide between two nodes.

    Nor may one gain that only numbers far from their prediction meet.
    """
    splines, c = curve(spread, wild, far=far)
    t, step = grid(c)
    total = splines.train(training).log_density(t, c).exp().sum(-1) * step
    assert torch.allclose(total, torch.ones_like(total), atol=0.05 if training else 0.02)


@pytest.mark.parametrize("spread", [1.0, 0.01])
def test_without_coefficients_it_is_the_prediction_and_a_little_of_the_base(spread):
    splines, c = curve(spread, wild=0.0)
    t = c.mean + spread * torch.tensor([-2.0, 0.0, 1.0], dtype=torch.float64)
    near = torch.distributions.Normal(c.mean, spread).log_prob(t).exp()
    base = torch.distributions.Normal(0.0, 1.0).log_prob(t).exp()
    found = splines.log_density(t.unsqueeze(1), c).squeeze(1).exp()
    assert torch.allclose(found, 0.9 * near + 0.1 * base, rtol=2e-3)


@pytest.mark.parametrize("wild", [1.0, 5.0])
@pytest.mark.parametrize("spread", [1.0, 0.05])
def test_draws_follow_the_density_that_they_report(spread, wild):
    splines, c = curve(spread, wild, n=1)
    many = Curve(*(part.expand(20_000, *part.shape[1:]) for part in c))
    t, reported = splines.draw(many, torch.Generator().manual_seed(0))
    assert float((reported - splines.log_prob(t, many)).abs().mean()) < 0.01
    # the distribution function of draws is uniform
    at, step = grid(c)
    cdf = (splines.log_density(at, c).exp() * step).flatten().cumsum(0)
    u = cdf[torch.searchsorted(at.flatten(), t.flatten()).clamp(max=800_000)].sort().values
    gap = (u - torch.linspace(0, 1, 20_000, dtype=torch.float64)).abs().max()
    assert float(gap) < 1.63 / math.sqrt(20_000)  # Kolmogorov–Smirnov at 1 %


def test_coarse_nodes_while_training_cost_little_accuracy():
    splines, c = curve(0.3, wild=0.5)
    t = c.mean + 0.1
    fine = splines.log_prob(t, c)
    assert torch.allclose(splines.train().log_prob(t, c), fine, atol=0.01)


def test_no_coefficients_make_a_number_beyond_all_knots_likely():
    """A fit could otherwise be praised without bound for the few rows that are far from what was predicted."""
    splines, generator = Splines().eval().double(), torch.Generator().manual_seed(0)
    found = 1e3 * torch.randn(50, 1, 2 + splines.size, generator=generator, dtype=torch.float64)
    mean = 30 * torch.randn(50, 1, generator=generator, dtype=torch.float64)
    c = Curve.around(mean, torch.ones_like(mean), found)
    beyond = torch.linspace(16, 40, 100_001, dtype=torch.float64)
    for t in (beyond, -beyond):
        p = splines.log_density(t.expand(50, 1, -1), c).exp()
        assert float(p.sum(-1).max()) * 24 / 100_000 < 1.02
