"""Latent classes: exact conditionals for any visible set, bits that exclude each other, and few rows of many labels."""

import itertools

import numpy as np
import pytest
import torch

from ctem import CTEM
from ctem.bases import ProductBase
from ctem.densities.anyorder import AnyOrderNet, AtLevel, HiddenColumns, Settings, fit_anyorder
from ctem.densities.anyorder.classes import LatentClasses, exclusive_groups
from ctem.densities.anyorder.shrinking import Unseen, found_worth
from ctem.spaces import Category, Space

SPACE = Space([Category(2), Category(3), Category(2), Category(2)])
GROUPS = [[0, 2], [1], [3]]
ALL = slice(None)


def some_classes(members=2):
    """Three classes of a label, two bits that exclude each other, and one more."""
    generator = torch.Generator().manual_seed(0)
    chance = 0.05 + 0.4 * torch.rand(members, 3, 5, generator=generator)
    weight = torch.rand(members, 3, generator=generator)
    return LatentClasses(ProductBase(SPACE), GROUPS, weight / weight.sum(1, keepdim=True), chance)


def joint(classes, member):
    """The probability of every state, by the definition."""
    weight, chance = classes.weight[member].double(), classes.chance[member].double()
    found = {}
    for a, label, c, b in itertools.product(range(2), range(3), range(2), range(2)):
        of_pair = (
            0 if a and c else chance[:, 0] if a else chance[:, 3] if c else 1 - chance[:, 0] - chance[:, 3]
        )
        of_label = chance[:, label] if label else 1 - chance[:, 1] - chance[:, 2]
        of_bit = chance[:, 4] if b else 1 - chance[:, 4]
        found[a, label, c, b] = float((weight * of_pair * of_label * of_bit).sum())
    return found


@pytest.mark.parametrize("shown", list(itertools.product([False, True], repeat=4)))
def test_every_conditional_is_that_of_the_joint_density(shown):
    classes = some_classes()
    states = torch.tensor(list(itertools.product(range(2), range(3), range(2), range(2)))).float()
    visible = torch.tensor(shown).expand(1, len(states), 4)
    for member, j in itertools.product(range(2), (j for j in range(4) if not shown[j])):
        p, total = joint(classes, member), {}
        for state, value in p.items():
            seen = tuple(v for v, here in zip(state, shown, strict=True) if here)
            total[seen] = total.get(seen, 0) + value
            total[seen, state[j]] = total.get((seen, state[j]), 0) + value
        found = classes.log_probs(states[None], visible, j, ALL)[member].exp()
        for row, answer in zip(states.int().tolist(), found, strict=True):
            seen = tuple(v for v, here in zip(row, shown, strict=True) if here)
            if total[seen] > 0:
                expected = [total.get((seen, v), 0) / total[seen] for v in range(SPACE.sizes[j])]
                assert answer.tolist() == pytest.approx(expected, abs=2e-5)


def test_all_columns_at_once_are_each_of_them():
    classes, generator = some_classes(), torch.Generator().manual_seed(1)
    x = torch.stack([torch.randint(k, (2, 50), generator=generator) for k in SPACE.sizes], -1).float()
    visible = torch.rand(x.shape, generator=generator) < 0.5
    found = classes.log_conditionals(x, visible)
    for j in range(4):
        one = classes.log_probs(x, visible, j, ALL).gather(-1, x[..., j, None].long()).squeeze(-1)
        torch.testing.assert_close(found[..., j], torch.where(visible[..., j], 0.0, one))


def test_bits_of_one_label_are_a_group_and_rare_or_independent_ones_are_not():
    rng = np.random.default_rng(0)
    label = np.eye(4)[rng.integers(0, 4, 400)][:, :3]
    free, rare = rng.integers(0, 2, (400, 1)), (rng.random((400, 1)) < 0.02).astype(float)
    x = torch.tensor(np.concatenate([label[:, :1], free, label[:, 1:], rare], 1), dtype=torch.float32)
    assert exclusive_groups(Space([Category(2)] * 5), x) == [[0, 2, 3], [1], [4]]


def one_hot_rows(n, seed, labels=20):
    """Labels of four values as three bits each, which follow one of three hidden kinds."""
    rng, truth = np.random.default_rng(seed), np.random.default_rng(99)
    likely = truth.dirichlet([1.0] * 4, (3, labels))
    kind = rng.integers(0, 3, n)
    label = (rng.random((n, labels, 1)) > likely[kind].cumsum(-1)).sum(-1).clip(max=3)
    return np.eye(4)[label][..., :3].reshape(n, -1)


QUICK = {
    "width": 16,
    "blocks": 1,
    "members": 2,
    "max_steps": 60,
    "batch_size": 64,
    "orders": 1,
    "energy": None,
}


@pytest.fixture(scope="module")
def model():
    return CTEM(random_state=0, **QUICK).fit(one_hot_rows(800, 0))


def test_few_rows_of_many_labels_are_far_likelier_than_by_networks_alone(model):
    new, net = one_hot_rows(500, 1), model.density_.net
    assert net.classes is not None
    assert [len(group) for group in net.classes.groups].count(3) >= 10
    with_classes = model.score_samples(new).mean()
    kept, net.classes = net.classes, None
    alone = model.score_samples(new).mean()
    net.classes = kept
    assert with_classes > alone + 3


def test_a_row_that_sets_two_bits_of_a_label_is_not_impossible(model):
    row = one_hot_rows(1, 2)
    row[0, :3] = 1
    assert np.isfinite(model.score_samples(row)).all()


def test_classes_are_kept_in_the_file(model, tmp_path):
    new = one_hot_rows(20, 1)
    model.save(tmp_path / "model.ctem")
    again = CTEM.load(tmp_path / "model.ctem")
    assert np.array_equal(again.score_samples(new), model.score_samples(new))
    assert np.array_equal(again.sample(5, random_state=0), model.sample(5, random_state=0))


def test_draws_follow_the_classes(model):
    """Where the networks are not believed, draws are those of the classes: no label has two bits set."""
    net, worth = model.density_.net, model.density_.net.worth
    net.believe(worth._replace(share=(0.0,) * net.space.dim))
    drawn, group = model.density_.sample(300, torch.Generator().manual_seed(0)), net.classes.groups
    net.believe(worth)
    together = [int(drawn[:, some].sum(1).max()) for some in group if len(some) > 1]
    assert max(together) <= 1


def test_a_column_that_is_not_heard_keeps_its_margin_and_tells_nothing():
    x = torch.tensor(one_hot_rows(300, 0), dtype=torch.float32)
    base = ProductBase.fit(Space([Category(2)] * 60), x)
    classes = LatentClasses.fit(base, x, torch.ones(1, 300), [j != 7 for j in range(60)], 0)
    visible = torch.rand(1, 300, 60, generator=torch.Generator().manual_seed(0)) < 0.5
    hidden, other = visible.clone(), x.clone()
    hidden[..., 7] = False
    found = classes.log_probs(x[None], hidden, 7, ALL)[0]
    torch.testing.assert_close(found, found[:1].expand_as(found), atol=1e-5, rtol=0)
    other[:, 7] = 1 - other[:, 7]
    visible[..., 7] = True
    torch.testing.assert_close(
        classes.log_probs(x[None], visible, 9, ALL), classes.log_probs(other[None], visible, 9, ALL)
    )


def test_a_network_that_adds_to_the_classes_is_believed_and_one_that_knows_nothing_is_not():
    """An untrained network is the margin: its share is 0, and nats count from the margin."""
    x = torch.tensor(one_hot_rows(2000, 0), dtype=torch.float32)
    base = ProductBase.fit(Space([Category(2)] * 60), x)
    net = AnyOrderNet(base, width=8)
    net.classes = LatentClasses.fit(base, x[:1000], torch.ones(1, 1000), [True] * 60, 0)
    found = found_worth(net, Unseen(x[None, 1000:], 1e-3, HiddenColumns()))
    assert sum(found.share) / 60 < 0.1
    assert sum(found.nats) > 5


def test_tables_of_few_columns_have_no_classes():
    x = torch.randint(2, (200, 5), generator=torch.Generator().manual_seed(0)).float()
    settings = Settings(width=8, blocks=1, members=1, steps=4, orders=1, batch_size=32)
    assert fit_anyorder(Space([Category(2)] * 5), x, settings).net.classes is None


def test_answers_of_one_member_are_those_of_its_own_mixture():
    x = torch.tensor(one_hot_rows(200, 0), dtype=torch.float32)
    base = ProductBase.fit(Space([Category(2)] * 60), x)
    net = AnyOrderNet(base, width=8, members=2)
    net.classes = LatentClasses.fit(base, x, torch.ones(2, 200), [True] * 60, 0)
    net.believe(net.worth._replace(share=(0.0,) * 60))
    visible = torch.arange(60).expand(200, 60) < 30
    each = [AtLevel(net, 1e-3, member=m).given(x, visible, 40).log_prob(x[:, 40]).exp() for m in (0, 1)]
    both = AtLevel(net, 1e-3).given(x, visible, 40).log_prob(x[:, 40]).exp()
    assert not torch.allclose(*each)
    torch.testing.assert_close(both, (each[0] + each[1]) / 2)
