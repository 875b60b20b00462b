"""The judge of the digit experiments: its measures are what they say, and collapse, copies and noise do not pass."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from experiments.images.judge import (
    Judge,
    Likelihood,
    auroc,
    binarised,
    bootstrap,
    frechet,
    nearest_training_row,
    neighbours,
    rotated,
    train_classifier,
)
from experiments.images.mnist import tiles
from experiments.images.settings import load_images, shuffled
from experiments.results import load_arrays, save_arrays


def normal(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def digits():
    return load_images(8, None, "cpu")


@pytest.fixture(scope="module")
def judge(digits):
    bits = digits.bits["threshold"]
    classifier = train_classifier(digits.grey, digits.labels, (8, 8), epochs=10, batch_size=128)
    return Judge(classifier, bits.train, bits.test, 200)


def test_the_auroc_is_scikit_learns_with_ties_too():
    a, b = normal(50, 1)[:, 0].round(decimals=1), normal(70, 1, seed=1)[:, 0].round(decimals=1) - 0.5
    labels = np.repeat([1, 0], [50, 70])
    assert auroc(a, b) == pytest.approx(roc_auc_score(labels, torch.cat([a, b]).numpy()))


def test_the_frechet_distance_of_gaussians_is_the_closed_form():
    x = normal(20_000, 3).double()
    x = (x - x.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(x.T))).T  # covariance 1, mean 0
    scale, shift = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([0.5, 0.0, -1.0]).double()
    assert frechet(x, x * scale + shift) == pytest.approx(float((scale - 1).square().sum() + 1.25), rel=1e-6)


def test_the_bootstrap_interval_is_that_of_the_mean():
    x = normal(1000, 1)[:, 0]
    low, high = bootstrap(x)
    reach = 1.96 * float(x.std()) / 1000**0.5
    assert (low, high) == pytest.approx((float(x.mean()) - reach, float(x.mean()) + reach), abs=0.1 * reach)


def test_the_nearest_training_row_is_found_by_brute_force():
    x, train = (normal(30, 12) > 0).float(), (normal(90, 12, seed=1) > 0).float()
    brute = (x.unsqueeze(1) != train).sum(-1).amin(1).float()
    assert torch.equal(nearest_training_row(x, train), brute)


def test_collapse_costs_recall_and_coverage_and_outliers_cost_precision_and_density():
    real, same = normal(300, 4), normal(300, 4, seed=1)
    fair = neighbours(real, same)
    precision, recall, density, coverage = neighbours(real, 0.05 * same)
    assert precision > 0.95
    assert recall < fair[1] / 4
    assert coverage < fair[3] / 2
    far = neighbours(real, same + 10)
    assert far[0] == far[2] == 0
    assert min(fair[0], fair[1], fair[3]) > 0.8
    assert fair[2] == pytest.approx(1, abs=0.15)
    assert density > 1  # a collapse is dense: this is why coverage stands beside it


def test_four_turns_of_an_image_are_none():
    x = (normal(3, 64) > 0).float()
    turned = x
    for _ in range(4):
        turned = rotated(turned, (8, 8))
    assert torch.equal(turned, x)
    assert not torch.equal(rotated(x, (8, 8)), x)


@pytest.mark.long
def test_the_judge_knows_digits_from_independent_pixels_and_from_copies(judge, digits):
    bits = digits.bits["threshold"]
    assert judge.accuracy(bits.test, bits.labels) > 0.9
    real, copies = judge.real(), judge.measure(bits.train[:200])
    noise = torch.rand(200, 64, generator=torch.Generator().manual_seed(0)) < bits.train.mean(0)
    noisy = judge.measure(noise.float())
    one = judge.measure(bits.test[:1].repeat(200, 1))
    assert real.frechet_ratio == pytest.approx(1)
    assert noisy.top1 < real.top1
    assert noisy.frechet_ratio > 3
    assert copies.nearest == 0
    assert copies.copies == 1 > real.copies
    assert one.smallest_class == 0
    assert one.coverage < 0.1


def test_rows_for_the_classifier_are_bits_whose_mean_is_between_threshold_and_grey(digits):
    rows = binarised(digits.grey[:1].expand(4000, -1), torch.Generator().manual_seed(0))
    assert set(rows.unique().tolist()) == {0.0, 1.0}
    expected = ((digits.grey[0] >= 0.5).float() + digits.grey[0]) / 2
    assert torch.allclose(rows.mean(0), expected, atol=5 * 0.5 / 4000**0.5)


def test_shuffling_is_a_fixed_permutation():
    x = torch.arange(50)
    assert shuffled(x).tolist() == shuffled(x).tolist() != x.tolist()
    assert shuffled(x).sort().values.tolist() == x.tolist()


def test_a_likelihood_has_the_standard_error_of_its_mean():
    found = Likelihood.of(torch.tensor([-1.0, -3.0]))
    assert found == (2.0, pytest.approx(1.0))


def test_arrays_come_back_and_tiles_leave_a_frame(tmp_path):
    save_arrays(tmp_path / "a.npz", {"samples": np.eye(4, dtype=np.uint8), "curve|x": np.zeros((1, 3))})
    arrays = load_arrays(tmp_path / "a.npz")
    assert arrays["samples"].tolist() == np.eye(4).tolist()
    picture = tiles(arrays["samples"], (2, 2), 2)
    assert picture.shape == (7, 7)
    assert picture[1:3, 1:3].tolist() == [[0, 1], [1, 1]]
