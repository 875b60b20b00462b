"""Laws of the toy targets, and the calibration that pins their data to the digit."""

import math

import numpy as np
import pytest
import torch

from ctem.benchmarks import quantised, targets
from ctem.benchmarks.metrics import ise, mode_weight_error, total_variation
from ctem.benchmarks.targets import PAPER_2D, Banana, GaussianMixture, LabelledRing, Spiral, grid

pytestmark = pytest.mark.long  # of benchmarks with a known truth
CONTINUOUS = [*PAPER_2D, GaussianMixture(10), GaussianMixture(30)]
QUANTISED = [quantised.Moons(), quantised.SwissRoll(), quantised.EightGaussians()]
EVERY = [*CONTINUOUS, LabelledRing(), *QUANTISED]

# mean ISE of Silverman's KDE over seeds 0–4, × 1e-2, as in the published table
SILVERMAN = {"Spiral": 0.8828, "TwoGaussians": 0.8799, "Banana": 0.4763, "TwoRings": 8.6329}

# mean total variation of a 20 000-row histogram to the exact truth, seeds 0–2
HISTOGRAM = {"Moons": 0.1264, "SwissRoll": 0.1358, "EightGaussians": 0.0763}


def name(target):
    return type(target).__name__


def whole_grid(target):
    """A grid that holds all the mass: the Banana's own square cuts its tails."""
    return grid((-13.0, 53.0), points=1500) if isinstance(target, Banana) else grid(target.bounds)


def silverman(X, axis):
    """The kernel density estimate with Silverman's bandwidth, on the square grid with this axis."""
    n, d = X.shape
    h = 0.9 * X.std(0).mean() * n ** (-1 / (d + 4))
    kernels = torch.exp(-(((axis - X[:, :, None]) / h) ** 2) / 2) / (h * math.sqrt(2 * math.pi))
    return (kernels[:, 0].T @ kernels[:, 1]).flatten() / n  # a Gaussian kernel is a product over columns


def histogram(target, n, seed):
    cells = target.space.index(torch.as_tensor(target.sample(n, seed)))
    return torch.bincount(cells, minlength=target.space.n_states).double() / n


@pytest.mark.parametrize("target", EVERY, ids=name)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(target):
    X = target.sample(500, seed=3)
    assert X.dtype == np.float64
    assert X.shape == (500, target.space.dim)
    target.space.encode(X)
    np.testing.assert_array_equal(X, target.sample(500, seed=3))
    assert (target.sample(500, seed=4) != X).any()


@pytest.mark.parametrize("target", PAPER_2D, ids=name)
def test_silverman_reproduces_the_published_table(target):
    points, weights = grid(target.bounds, points=200)
    truth, axis = target.log_density(points).exp(), points[:200, 1]
    samples = [torch.as_tensor(target.sample(1000, seed)) for seed in range(5)]
    errors = [ise(silverman(X, axis), truth, weights) for X in samples]
    assert np.mean(errors) * 100 == pytest.approx(SILVERMAN[name(target)], abs=1e-4)


@pytest.mark.parametrize("target", PAPER_2D, ids=name)
def test_a_density_in_the_plane_integrates_to_one_and_has_the_moments_of_its_sample(target):
    points, weights = whole_grid(target)
    mass = weights * target.log_density(points).exp()
    assert float(mass.sum()) == pytest.approx(1, abs=1e-4)
    X = torch.as_tensor(target.sample(20_000, seed=0))
    for moment in (lambda x: x, torch.square, lambda x: x.prod(-1, keepdim=True)):
        values = moment(X)
        error = values.mean(0) - (mass[:, None] * moment(points)).sum(0)
        assert (error.abs() < 4 * values.std(0) / math.sqrt(len(X)) + 1e-3).all()


def test_the_bananas_square_leaves_five_percent_outside():
    points, weights = grid(Banana.bounds)
    assert float((weights * Banana().log_density(points).exp()).sum()) == pytest.approx(0.95, abs=0.005)


def test_the_high_dimensional_mixture_is_a_normalised_plane_times_noise():
    axis = torch.arange(-5.0, 8.5, 0.5, dtype=torch.float64)
    mass = GaussianMixture(4).log_density(torch.cartesian_prod(*[axis] * 4)).exp().sum() * 0.5**4
    assert float(mass) == pytest.approx(1, abs=1e-5)
    X = torch.as_tensor(GaussianMixture(30).sample(50, seed=0))
    noise = torch.distributions.Normal(0.0, 1.0).log_prob(X[:, 4:]).sum(-1)
    torch.testing.assert_close(
        GaussianMixture(30).log_density(X), GaussianMixture(4).log_density(X[:, :4]) + noise
    )


@pytest.mark.parametrize("dim", [10, 30])
def test_the_high_dimensional_mixture_has_its_moments(dim):
    X = GaussianMixture(dim).sample(20_000, seed=0)
    first = np.arange(dim) < 4
    mean, variance = np.where(first, 3 / 4, 0), np.where(first, 1 + 9 * 3 / 16, 1)
    assert (np.abs(X.mean(0) - mean) < 4 * np.sqrt(variance / len(X))).all()
    error = np.abs(X.var(0) - variance)
    assert (error < 4 * ((X - mean) ** 2).std(0) / math.sqrt(len(X))).all()


@pytest.mark.parametrize("target", [*CONTINUOUS, LabelledRing()], ids=name)
def test_the_closed_form_gradient_is_that_of_the_log_density(target):
    X = torch.as_tensor(target.sample(50, seed=1)).requires_grad_()
    (gradient,) = torch.autograd.grad(target.log_density(X).sum(), X)
    torch.testing.assert_close(target.grad_log_density(X.detach()), gradient, rtol=1e-9, atol=1e-9)


def test_far_away_log_densities_stay_finite():
    for target in PAPER_2D:
        X = torch.tensor([[60.0, -80.0], [1e3, 1e3]])
        assert target.log_density(X).isfinite().all()
        assert target.grad_log_density(X).isfinite().all()


def test_chunks_do_not_change_the_density(monkeypatch):
    X = Spiral().sample(300, seed=0)
    whole = Spiral().log_density(X)
    monkeypatch.setattr(targets, "MAX_PAIRS", 4000 * 7)
    torch.testing.assert_close(Spiral().log_density(X), whole, rtol=1e-13, atol=0)


def test_the_labelled_ring_sums_over_labels_to_a_density_and_a_posterior():
    ring = LabelledRing(separation=1.5, labels=5, seed=2)
    points, weights = grid(ring.bounds)
    joint = torch.stack(
        [ring.log_density(torch.cat([points, torch.full_like(points[:, :1], y)], 1)) for y in range(5)], 1
    ).exp()
    marginal = ring.log_density_x(points).exp()
    torch.testing.assert_close(joint.sum(1), marginal)
    torch.testing.assert_close(joint / marginal[:, None], ring.label_probabilities(points))
    torch.testing.assert_close((weights[:, None] * joint).sum(0), ring.weights, rtol=1e-3, atol=0)


def test_the_labelled_ring_draws_each_label_and_point_as_it_says():
    ring, n = LabelledRing(), 50_000
    X = ring.sample(n, seed=0)
    labels = torch.as_tensor(X[:, 2]).long()
    frequency = labels.bincount(minlength=16) / n
    assert ((frequency - ring.weights).abs() < 4 * (ring.weights / n).sqrt()).all()
    noise = torch.as_tensor(X[:, :2]) - ring.centres[labels]
    assert (noise.mean(0).abs() < 4 / math.sqrt(n)).all()
    assert ((noise.var(0) - 1).abs() < 4 * math.sqrt(2 / n)).all()
    assert ring.weights.max() / ring.weights.min() < 1.5


@pytest.mark.parametrize("target", QUANTISED, ids=name)
def test_cell_probabilities_are_positive_and_sum_to_one(target):
    p = target.probabilities()
    assert p.shape == (8281,)
    assert p.dtype == torch.float64
    assert p.min() > 0
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("target", QUANTISED, ids=name)
def test_cell_probabilities_agree_with_a_large_sample(target):
    n, p = 1_000_000, target.probabilities()
    seen, common = histogram(target, n, seed=0), n * p > 20
    z = ((seen - p) / (p * (1 - p) / n).sqrt())[common]
    assert z.abs().max() < 5.5
    # 1 for independent rows; scikit-learn's moons lie at even, not random, angles, so they vary less
    assert 0.6 < z.square().mean() < 1 + 4 * math.sqrt(2 / len(z))
    rare = p[~common].sum()
    assert (seen[~common].sum() - rare).abs() < 4 * (rare / n).sqrt()


@pytest.mark.parametrize("target", QUANTISED, ids=name)
def test_a_histogram_is_as_far_from_the_truth_as_sampling_noise(target):
    n, p = 20_000, target.probabilities()
    distance = np.mean([total_variation(histogram(target, n, seed), p) for seed in range(3)])
    assert distance == pytest.approx(HISTOGRAM[name(target)], abs=5e-4)


def test_the_modes_of_eight_gaussians_have_equal_weight():
    target = quantised.EightGaussians()
    modes, equal = target.mode_of_cell(), torch.full((8,), 1 / 8)
    assert mode_weight_error(modes, equal, mass=target.probabilities()) < 1e-6
    drawn = modes[target.space.index(torch.as_tensor(target.sample(20_000, seed=0)))]
    assert mode_weight_error(drawn, equal) < 4 * math.sqrt(8 / 20_000) / 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: grid((1.0, 0.0)), "bounds: expected low < high"),
        (lambda: grid((0.0, 1.0), points=1), "points: expected at least 2"),
        (lambda: GaussianMixture(3), "dim: expected at least 4"),
        (lambda: LabelledRing(separation=-1.0), "separation: expected a radius"),
        (lambda: Banana().log_density(torch.zeros(3)), r"X: expected shape \(n, 2\); got \(3,\)"),
        (lambda: LabelledRing().log_density(torch.tensor([[0.0, 0.0, 16.0]])), "label: expected a code in 0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
