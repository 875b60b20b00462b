"""Each metric against a case worked out by hand, and the laws they share."""

import math

import numpy as np
import pytest
import torch

from ctem.benchmarks import metrics
from ctem.benchmarks.metrics import (
    classifier_two_sample,
    density_mse,
    energy_distance,
    fisher_divergence,
    ise,
    kl_divergence,
    mode_weight_error,
    relative_density_mse,
    total_variation,
)
from ctem.benchmarks.targets import TwoGaussians, grid

pytestmark = pytest.mark.long  # of benchmarks with a known truth
P = torch.tensor([0.5, 0.25, 0.25])
Q = torch.tensor([0.25, 0.25, 0.5])


def gaussian(X, scale):
    return torch.exp(-X.square().sum(-1) / (2 * scale**2)) / (2 * math.pi * scale**2)


def test_ise_of_two_gaussians_is_the_closed_form():
    X, weights = grid((-12.0, 12.0))
    overlap = [1 / (2 * math.pi * v) for v in (2, 1 + 4, 8)]  # ∫ N(0, a) N(0, b) = 1/(2π(a + b)) in the plane
    expected = overlap[0] - 2 * overlap[1] + overlap[2]
    assert ise(gaussian(X, 1.0), gaussian(X, 2.0), weights) == pytest.approx(expected, rel=1e-6)


def test_relative_mse_does_not_depend_on_the_unit_even_where_squares_underflow():
    density, truth = torch.tensor([1.0, 2.0, 5.0]).double(), torch.tensor([1.0, 3.0, 4.0]).double()
    assert density_mse(density, truth) == pytest.approx(2 / 3)
    assert relative_density_mse(density, truth) == pytest.approx(2 / 26)
    assert relative_density_mse(density * 1e-200, truth * 1e-200) == pytest.approx(2 / 26)


def test_fisher_divergence_of_a_shifted_gaussian_is_its_squared_shift():
    X = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    assert fisher_divergence(torch.tensor([1.0, 2.0, 2.0]) - X, -X) == pytest.approx(9)


def test_total_variation_and_kl_match_the_hand_calculation():
    assert total_variation(P, Q) == pytest.approx(0.25)
    assert kl_divergence(P, Q) == pytest.approx(0.25 * math.log(2))
    assert kl_divergence(P, P) == 0


def test_kl_is_infinite_where_mass_is_missed_unless_a_floor_is_given():
    missing = torch.tensor([0.0, 0.5, 0.5])
    assert kl_divergence(P, missing) == math.inf
    expected = 0.5 * math.log(0.5 / 1e-8) + 0.5 * math.log(0.5)
    assert kl_divergence(P, missing, floor=1e-8) == pytest.approx(expected)
    assert kl_divergence(missing, P) == pytest.approx(math.log(2))


def test_mode_weights_of_rows_and_of_masses_agree():
    modes, truth = torch.tensor([0, 1, 1, 2]), torch.tensor([0.25, 0.25, 0.25, 0.25])
    assert mode_weight_error(modes, truth) == pytest.approx(0.25)  # the fourth mode is lost
    assert mode_weight_error(torch.tensor([0, 1, 2]), truth, mass=torch.tensor([1.0, 2.0, 1.0])) == 0.25


def test_energy_distance_of_gaussians_is_the_closed_form(monkeypatch):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3000, 1)), rng.normal(loc=1.0, size=(3000, 1))
    # E|N(m, 2)| = 2/√π e^(−m²/4) + m erf(m/2)
    expected = 2 * (2 / math.sqrt(math.pi) * math.exp(-0.25) + math.erf(0.5)) - 4 / math.sqrt(math.pi)
    stderr = 2 * math.erf(0.5) * math.sqrt(2 / 3000)  # of the difference in means, times the slope in m
    whole = energy_distance(a, b)
    assert whole == pytest.approx(expected, abs=4 * stderr)
    monkeypatch.setattr(metrics, "MAX_PAIRS", 10_000)
    assert energy_distance(a, b) == pytest.approx(whole, rel=1e-12)
    assert energy_distance(a, a) == 0
    assert energy_distance(a, b) == pytest.approx(energy_distance(b, a))


def test_a_classifier_cannot_tell_one_distribution_from_itself_but_sees_a_shift():
    target = TwoGaussians()
    real, fake = target.sample(400, seed=0), target.sample(400, seed=1)
    same = classifier_two_sample(real, fake, seed=0)
    assert same > 0.85  # about 1 − 0.46/√160, give or take 0.03
    assert same == classifier_two_sample(real, fake, seed=0)
    near = classifier_two_sample(real, fake + 0.7, seed=0)
    assert 0.05 < near < same - 0.1
    assert classifier_two_sample(real, fake + 10, seed=0) < 0.01


def test_a_classifier_sees_codes_whose_order_means_nothing():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 20, (2, 300, 1))
    even, odd = codes[0] // 2 * 2, codes[1] // 2 * 2 + 1
    assert classifier_two_sample(even, odd, seed=0, discrete_columns=[0], folds=3) < 0.01


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ise(P, Q, torch.ones(2)), r"weights: expected density's shape \(3,\); got \(2,\)"),
        (
            lambda: density_mse(P, torch.tensor([1.0, math.nan, 1.0])),
            "truth: expected finite numbers; got nan",
        ),
        (lambda: relative_density_mse(P, torch.zeros(3)), "truth: expected a density above 0"),
        (lambda: fisher_divergence(P, Q), "gradient: expected at least one number on 2 axes"),
        (lambda: total_variation(P, 2 * Q), "q: expected probabilities ≥ 0 of sum 1; got the sum 2"),
        (lambda: total_variation(torch.tensor([1.5, -0.5, 0.0]), Q), "p: expected probabilities"),
        (lambda: kl_divergence(P, Q, floor=-1.0), "floor: expected a probability"),
        (lambda: mode_weight_error(torch.tensor([3]), P), "modes: expected codes in 0 … 2; got 3"),
        (lambda: energy_distance(torch.ones(2, 2), torch.ones(2, 3)), "b: expected 2 columns; got 3"),
        (lambda: classifier_two_sample(np.ones((9, 1)), np.ones((3, 1)), 0), "folds: expected 2 … 3"),
        (
            lambda: classifier_two_sample(np.ones((9, 1)), np.ones((9, 1)), 0, [1]),
            "expected columns in 0 … 0",
        ),
        (
            lambda: classifier_two_sample(np.ones((9, 1)), -np.ones((9, 1)), 0, [0]),
            "expected codes in 0 … 254",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
