"""An energy on top of the networks' density: one density still, with everything that it answers."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from ctem import CTEM
from ctem.bases import ProductBase
from ctem.densities.tilted import TiltedDensity, fit_energy, networks
from ctem.densities.tilted import density as tilted_density
from ctem.densities.tilted.plan import Plan
from ctem.fitting import learning
from ctem.matching.losses import brier
from ctem.spaces import Category, Space

WEAK = {
    "max_steps": 25,
    "members": 1,
    "orders": 1,
    "width": 16,
    "random_state": 0,
}  # so that an energy finds much


def three_labels(n: int, seed: int) -> pd.DataFrame:
    """Labels of which the third says whether the others agree: no pair of columns depends."""
    rng = np.random.default_rng(seed)
    a, b = rng.choice(3, n, p=[0.5, 0.3, 0.2]), rng.choice(2, n, p=[0.6, 0.4])
    c = np.where(rng.random(n) < 0.9, (a + b) % 2, rng.integers(2, size=n))
    return pd.DataFrame(
        {"a": np.array(list("pqr"))[a], "b": np.array(list("uv"))[b], "c": np.array(list("no"))[c]}
    )


def mixed(n: int, seed: int) -> pd.DataFrame:
    """Numbers with an atom, rounded ones, labels, and a dependence that smooth networks learn slowly."""
    rng = np.random.default_rng(seed)
    a, g = rng.normal(size=n), rng.integers(3, size=n)
    b = np.where(rng.random(n) < 0.3, 0.0, np.round(np.abs(a) * 3 + g, 1))
    c = np.sin(4 * a) + 0.1 * rng.normal(size=n)
    return pd.DataFrame({"a": a, "g": np.array(list("xyz"))[g], "b": b, "c": c, "k": rng.integers(6, size=n)})


@pytest.fixture(scope="module")
def labels():
    return CTEM(**WEAK).fit(three_labels(3000, 0))


@pytest.fixture(scope="module")
def table():
    X = mixed(1500, 0)
    return CTEM(**WEAK).fit(X.mask(np.random.default_rng(1).random(X.shape) < 0.05))


@pytest.fixture(scope="module")
def paper():
    """The paper's networks and loss against draws of the density."""
    return CTEM(**WEAK, energy="networks", effort="quick").fit(three_labels(1500, 0))


@pytest.fixture(scope="module")
def smooth():
    """The same on numbers, with rounded ones and atoms among them, learned for longer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(learning.PLANS, "quick", learning.PLANS["quick"]._replace(steps=500))
        return CTEM(**WEAK, energy="networks", effort="quick").fit(mixed(1500, 0))


SMOOTH = pytest.param("smooth", marks=pytest.mark.long)


@pytest.fixture(params=["labels", "table", "paper", SMOOTH])
def model(request):
    return request.getfixturevalue(request.param)


def test_an_energy_is_kept_where_it_gains(model):
    energy = model.density_.energy
    assert energy.gain > 2 * energy.stderr
    assert model.describe()["energy"]["gain"] == energy.gain


@pytest.mark.parametrize("kind", ["labels", "paper"])
def test_all_probabilities_of_a_table_of_labels_add_up_to_one_and_draws_follow_them(kind, request):
    labels = request.getfixturevalue(kind)
    cells = pd.DataFrame(list(itertools.product("pqr", "uv", "no")), columns=["a", "b", "c"])
    p = np.exp(labels.score_samples(cells))
    assert (
        abs(p.sum() - 1) < 3 * labels.density_.energy.log_z.stderr + 0.003
    )  # and what is kept for new labels
    drawn = (
        labels.sample(6000, random_state=1)
        .value_counts()
        .reindex(pd.MultiIndex.from_frame(cells), fill_value=0)
    )
    expected = 6000 * p / p.sum()
    statistic = ((drawn.to_numpy() - expected) ** 2 / expected).sum()
    assert statistic < stats.chi2.ppf(0.999, len(cells) - 1)


def test_new_rows_are_likelier_than_without_it(model):
    new = three_labels(3000, 7) if model.n_features_in_ == 3 else mixed(3000, 7)
    x = model.schema_.encode(model.as_frame(new)).x
    gained = (model.density_.log_prob(x) - model.density_.plain.log_prob(x)).numpy()
    assert gained.mean() > 3 * gained.std() / math.sqrt(len(gained))


def test_without_it_the_density_is_that_of_the_networks_bit_for_bit(labels):
    plain = CTEM(**WEAK, energy=None).fit(three_labels(3000, 0))
    assert not isinstance(plain.density_, TiltedDensity)
    x = labels.schema_.encode(labels.as_frame(three_labels(50, 3))).x
    assert torch.equal(plain.density_.log_prob(x), labels.density_.plain.log_prob(x))


def test_an_energy_of_networks_is_learned_with_the_constant_target(monkeypatch):
    gaps = []
    monkeypatch.setitem(learning.PLANS, "quick", learning.PLANS["quick"]._replace(steps=10, fresh=1000))
    monkeypatch.setattr(networks, "brier", lambda gap: gaps.append(gap.shape) or brier(gap))
    CTEM(**WEAK, energy="networks", effort="quick").fit(three_labels(400, 0))
    assert gaps


@pytest.mark.long
def test_the_gradient_is_that_of_the_density_with_an_energy_of_networks(smooth):
    X, step = mixed(20, 6), 1e-3
    found = smooth.log_density_grad(X)[:, 0]
    up, down = (smooth.score_samples(X.assign(a=X["a"] + side * step)) for side in (1, -1))
    slope = (up - down) / (2 * step)
    assert np.median(np.abs(found - slope) / (1 + np.abs(slope))) < 0.05


@pytest.mark.long
def test_a_rounded_number_has_one_energy_wherever_in_its_cell_it_is_scored(smooth):
    x = smooth.schema_.encode(smooth.as_frame(mixed(50, 8))).x
    moved = smooth.schema_.jitter(x, torch.Generator().manual_seed(0))
    assert not torch.equal(moved.nan_to_num(), x.nan_to_num())
    tilt = [smooth.density_.log_prob(rows) - smooth.density_.plain.log_prob(rows) for rows in (x, moved)]
    assert torch.allclose(*tilt, atol=1e-6)


def test_independent_columns_keep_no_energy():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {"a": rng.normal(size=2000), "b": rng.integers(4, size=2000), "c": rng.exponential(size=2000)}
    )
    short = {"max_steps": 200, "width": 32, "members": 1, "orders": 1, "random_state": 0}
    assert not isinstance(CTEM(**short).fit(X).density_, TiltedDensity)


class Coins(ProductBase):
    """Independent labels, nothing hidden."""

    complete = None


@pytest.mark.parametrize("share", [2e-4, 1e-3, 3e-3])
def test_what_the_networks_hardly_ever_draw_makes_no_energy_of_which_nothing_is_accepted(share):
    """Half of the rows have a label that b gives a thousandth: e^g is cut, and margins do not undo the cut."""
    x = (torch.rand(1500, 2, generator=torch.Generator().manual_seed(0)) < torch.tensor([0.7, 0.5])).float()
    base = Coins(Space([Category(2)] * 2), [torch.tensor([1 - share, share]), torch.tensor([0.5, 0.5])])
    found = fit_energy(base, x[:1200], x[1200:], [2, 2], Plan(rate=0.1, trees=100, fresh=3000))
    assert found.gain > 1.0
    assert found.acceptance > 1 / 32


def test_draws_come_in_parts_where_few_are_accepted(model, monkeypatch):
    monkeypatch.setattr(tilted_density, "DRAWN", 64)
    drawn = model.density_.sample(300, torch.Generator().manual_seed(0))
    assert len(drawn) == 300


def test_draws_that_are_rows_of_the_table_keep_no_energy():
    """Nothing is gained but the rounding of a mean, and its standard error is nought."""
    x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]).repeat(997, 1)

    class Copies(ProductBase):
        complete = None

        def sample(self, n, generator=None):
            return x[torch.randint(len(x), (n,), generator=generator)]

    base = Copies(Space([Category(2)] * 2))
    plan = Plan(rate=0.1, trees=50, fresh=2000)
    assert fit_energy(base, x[:1994], x[1994:], [2, 2], plan) is None


@pytest.mark.parametrize("kind", ["table", SMOOTH])
def test_the_energy_keeps_the_chain_rule(kind, request):
    """log ρ/b of a, and of b given a, add up to that of both, whatever the networks say."""
    table = request.getfixturevalue(kind)
    X, rng, density = mixed(40, 5), np.random.default_rng(0), table.density_
    x = table.schema_.encode(table.as_frame(X)).x
    for _ in range(5):
        columns = rng.permutation(x.shape[1]).tolist()
        a, b = columns[:2], columns[2:]
        parts = [
            density.log_prob(x, *asked) - density.plain.log_prob(x, *asked)
            for asked in ((a,), (b, a), (columns,))
        ]
        assert torch.allclose(parts[0] + parts[1], parts[2], atol=1e-9)


def test_marginals_of_hidden_cells_agree_with_sums_over_them(labels):
    """ρ(a, b) = Σ_c ρ(a, b, c) in total variation, to the error of trees and weak networks that learned the sums."""
    pairs = pd.DataFrame(list(itertools.product("pqr", "uv")), columns=["a", "b"])
    found = labels.log_density(pairs, ["a", "b"])
    summed = np.logaddexp(*(labels.score_samples(pairs.assign(c=value)) for value in "no"))
    assert np.abs(np.exp(found) - np.exp(summed)).sum() / 2 < 0.06


def test_conditionals_of_labels_are_those_of_the_joint(labels):
    rows = three_labels(20, 9)
    found = labels.predict_proba(rows, "c")
    joint = np.stack([labels.score_samples(rows.assign(c=value)) for value in labels.classes("c")], 1)
    wanted = np.exp(joint - np.logaddexp(*joint.T)[:, None])
    assert np.abs(found - wanted).max() < 0.05


def test_probabilities_of_an_event_and_its_opposite_add_up_and_agree_with_draws(table):
    n = 2000
    drawn = table.sample(n, random_state=2)
    for column, cut in (("a", 0.0), ("b", 2.0), ("c", 0.5)):
        below, above = (
            table.probability({column: (None, cut)}, n_draws=2048),
            table.probability({column: (np.nextafter(cut, 9), None)}, n_draws=2048),
        )
        assert abs(below.value + above.value - 1) < 4 * math.hypot(below.stderr, above.stderr) + 0.01
        share = (drawn[column] <= cut).mean()
        assert abs(below.value - share) < 4 * math.hypot(below.stderr, 0.5 / math.sqrt(n))


@pytest.mark.parametrize("kind", ["table", SMOOTH])
def test_terms_of_the_columns_add_up_to_the_log_density(kind, request):
    table = request.getfixturevalue(kind)
    X = mixed(60, 4).mask(np.random.default_rng(2).random((60, 5)) < 0.2)
    x = table.schema_.encode(table.as_frame(X)).x
    assert torch.allclose(table.density_.log_terms(x).sum(1), table.density_.log_prob(x), atol=1e-5)


def test_a_saved_model_is_the_same_model(model, tmp_path):
    model.save(tmp_path / "model.ctem")
    again = CTEM.load(tmp_path / "model.ctem")
    X = model.sample(50, random_state=3)
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    assert again.sample(20, random_state=4).equals(model.sample(20, random_state=4))
    assert np.array_equal(again.p_values(X), model.p_values(X))


def test_filled_in_cells_follow_the_density(labels):
    """The third label given the others, imputed and by its conditional."""
    rows = pd.DataFrame({"a": ["p"] * 4000, "b": ["v"] * 4000, "c": [None] * 4000})
    share = (labels.impute(rows, random_state=0)["c"] == "o").mean()
    wanted = labels.predict_proba(rows[:1].assign(c="n"), "c")[0][labels.classes("c").index("o")]
    assert abs(share - wanted) < 0.05
    assert wanted > 0.8


def test_p_values_rest_on_rows_that_neither_networks_nor_energy_have_seen(table):
    X = mixed(1000, 11)
    p = table.p_values(X.mask(np.random.default_rng(12).random(X.shape) < 0.05))  # gaps as in fit
    assert stats.kstest(p, "uniform").statistic < 1.63 * math.sqrt(1 / 1000 + 1 / table.held_out_.rows)
