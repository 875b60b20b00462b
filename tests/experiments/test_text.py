"""Texts as rows, the rivals' losses of masked transformers, and images with labels as one row."""

import math

import pytest
import torch

from ctem import Category, ProductBase, Space
from ctem.densities.chain import Chain
from ctem.densities.sequences import MaskedDensity, sequence_loss
from experiments.images.labelled import (
    Joint,
    JointLoss,
    LabelledNet,
    calibration_error,
    matched_labels,
    some_labels,
)
from experiments.text.energy import bound, entropy_of, mdlm_loss, nats_of, ranked, sedd_loss
from experiments.text.samplers import apart, effective
from experiments.text.settings import MADE_UP, load_text


def test_chunks_of_a_text_are_its_characters_and_parts_do_not_overlap():
    text = load_text(MADE_UP, 32, None, "cpu")
    assert text.train.shape[1] == 32
    assert torch.equal(text.train[1, :-1], text.train[0, 1:])
    assert text.read(text.train[:1])[0].startswith("a ")
    assert len(text.valid) == len(text.test) == 1000 // 32


@pytest.fixture(scope="module")
def masked():
    density = MaskedDensity(Space.sequence(3, 4), width=8, depth=1, heads=2).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    density.head.weight.copy_(torch.randn(density.head.weight.shape, generator=generator) / 2)
    return density


def test_masks_at_random_times_bound_the_same_nats_as_random_visible_sets(masked):
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(3, (20_000, 4), generator=generator).float()
    ours, theirs = (
        torch.stack([loss(masked, x[part], generator) for part in torch.arange(20_000).split(500)])
        for loss in (sequence_loss, mdlm_loss)
    )
    error = math.hypot(float(ours.std()), float(theirs.std())) / math.sqrt(len(ours))
    assert abs(float(ours.mean() - theirs.mean())) < 4 * error


def test_score_entropy_is_no_less_than_the_nats_of_its_normalised_ratios(masked):
    x = torch.randint(3, (2000, 4), generator=torch.Generator().manual_seed(2)).float()
    entropy, nats = (loss(masked, x, torch.Generator().manual_seed(3)) for loss in (sedd_loss, mdlm_loss))
    assert float(entropy) >= float(nats)


def test_the_bound_of_every_row_is_its_mean_over_all_orders(masked):
    x = masked.space.states()[::5]
    orders = torch.cartesian_prod(*[torch.arange(4)] * 4)
    orders = orders[(orders.sort(1).values == torch.arange(4)).all(1)]
    exact = torch.zeros(len(x), dtype=torch.float64)
    for order in orders:
        masked.orders = order.unsqueeze(0)
        exact -= masked.log_prob(x) / 4 / len(orders)
    found = bound(masked, x, sets=4000)
    deviation = (found.mean(0) - exact) / (found.std(0) / math.sqrt(len(found)))
    assert float(deviation.abs().max()) < 4
    assert bool((bound(masked, x, entropy_of, sets=100) >= bound(masked, x, nats_of, sets=100) - 1e-6).all())


def test_the_share_of_pairs_that_are_ranked_rightly():
    assert ranked(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 2.0])) == 0.75


def test_chains_that_stand_still_are_worth_nothing_and_independent_draws_all():
    generator = torch.Generator().manual_seed(0)
    still = torch.randn(1, 50, generator=generator).expand(200, 50)
    assert effective(still) == pytest.approx(0, abs=0.01)
    assert effective(torch.randn(200, 500, generator=generator)) == pytest.approx(200, rel=0.1)
    x = torch.randint(3, (200, 30), generator=generator).float()
    y = torch.randint(3, (200, 30), generator=generator).float()
    assert apart(x, x) == 0
    assert apart(x, y) == pytest.approx(1, abs=0.05)


@pytest.fixture(scope="module")
def joint():
    """Images of four bits with a label, by a network with random weights."""
    net = LabelledNet(ProductBase(Space([Category(2)] * 4)), (2, 2), (4, 8)).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for weight in net.parameters():
        weight.add_(torch.randn(weight.shape, generator=generator) / 4)
    return Joint(net, ProductBase(Space([Category(2)] * 4 + [Category(10)])))


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [1, 4, 3, 0, 2]])
def test_images_and_labels_add_up_to_one_in_every_order_and_a_missing_label_is_summed_over(joint, order):
    states = joint.base.space.states()
    log_p = Chain(joint).log_prob(states, order).double()
    assert float(log_p.exp().sum()) == pytest.approx(1, abs=1e-5)
    if order[-1] == 4:
        images = states[::10].clone()
        images[:, -1] = math.nan
        marginal = Chain(joint).log_prob(images, order).double()
        assert torch.allclose(log_p.view(-1, 10).logsumexp(1), marginal, atol=1e-5)


def test_a_label_that_is_asked_for_is_not_shown(joint):
    x = torch.tensor([[0.0, 1.0, 1.0, 0.0, 3.0], [0.0, 1.0, 1.0, 0.0, 8.0]])
    found = joint.given(x, torch.ones_like(x, dtype=torch.bool), 4).log_p
    assert torch.equal(found[0], found[1])


def test_a_drawn_image_keeps_the_label_that_was_given(joint):
    given = torch.full((20, 5), math.nan)
    given[:, -1] = 7.0
    drawn = Chain(joint).sample(20, torch.Generator().manual_seed(0), given=given).x
    assert bool((drawn[:, -1] == 7).all())
    assert set(drawn[:, :-1].unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("guess", [math.inf, 0.0])
def test_the_joint_loss_takes_rows_without_labels(joint, guess):
    x = torch.randint(2, (32, 5), generator=torch.Generator().manual_seed(0)).float()
    x[::2, -1] = math.nan
    loss = JointLoss((2, 2), guess)(joint.net, x, torch.Generator().manual_seed(0))
    assert bool(loss.isfinite())


def test_labels_of_bits_are_those_of_the_grey_images_they_were_drawn_from():
    generator = torch.Generator().manual_seed(0)
    grey = torch.rand(50, 200, generator=generator).round()
    bits, labels = (
        torch.where(torch.rand(50, 200, generator=generator) < 0.05, 1 - grey, grey),
        torch.arange(50),
    )
    order = torch.randperm(50, generator=generator)
    assert torch.equal(matched_labels(bits[order], grey, labels), labels[order])


def test_a_few_labels_are_as_many_of_every_class_and_calibration_sees_a_boast():
    x = torch.cat([torch.zeros(200, 3), torch.arange(200).remainder(10).unsqueeze(1)], 1)
    kept = some_labels(x, 50)[:, -1]
    assert torch.equal(kept[~kept.isnan()].long().bincount(), torch.full((10,), 5))
    p = torch.tensor([[0.9, 0.1]]).repeat(10, 1)
    assert calibration_error(p, torch.tensor([0] * 9 + [1])) == pytest.approx(0, abs=1e-6)
    assert calibration_error(p, torch.tensor([0] * 5 + [1] * 5)) == pytest.approx(0.4, abs=1e-6)
