"""The peers of the table experiments: probabilities of rows that sum to one, samples of their own law, honest tests."""

import itertools
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest

from experiments.sweep import toy_table
from experiments.tables.forests import Boosted, Forest
from experiments.tables.imputation import filler
from experiments.tables.nats import boosted, complete, few, shuffled, snapped
from experiments.tables.peers import ByClass, Copula, Flow, Independent, Kernels, Margins, Mixture, Tree

pytestmark = pytest.mark.long  # systems of the experiments, not of the library


def small_table(n: int):
    """A label, a grade that follows it, and a lattice number that follows both."""
    rng = np.random.default_rng(0)
    side = rng.integers(2, size=n)
    grade = np.minimum(side + rng.integers(2, size=n), 2)
    return pd.DataFrame(
        {
            "side": np.array(["left", "right"])[side],
            "grade": grade,
            "size": np.round(1.5 * grade + rng.normal(size=n), 1),
        }
    )


def every_row(reach: float):
    sizes = np.round(np.arange(-reach, reach, 0.1), 1)
    rows = itertools.product(["left", "right"], [0, 1, 2], sizes)
    return pd.DataFrame(rows, columns=["side", "grade", "size"])


EXTRAS = {Forest: "arfpy", Boosted: "nrgboost"}  # of the extra ``baselines``, which tests do without
INSTALLED = [system for system, package in EXTRAS.items() if find_spec(package)]
BRIEF = {Flow: {"steps": 20}, Boosted: {"trees": 10}}


def fitted(system, rows, seed):
    return system(rows, seed, **BRIEF.get(system, {}))


@pytest.mark.parametrize("system", [Independent, Copula, Tree, Mixture, ByClass, Kernels, Flow, *INSTALLED])
def test_the_probabilities_of_all_rows_sum_to_one(system):
    peer = fitted(system, small_table(600), 0)
    total = np.exp(peer.log_prob(every_row(20.0), draws=64)).sum()
    assert total == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("system", [Copula, Tree, Mixture, ByClass, Kernels, *INSTALLED])
def test_dependence_is_worth_nats_on_new_rows(system):
    rows = small_table(2000)
    train, test = rows[:1500], rows[1500:]
    gain = fitted(system, train, 0).log_prob(test, 16) - Independent(train, 0).log_prob(test, 1)
    assert gain.mean() > 4 * gain.std() / np.sqrt(len(gain))


@pytest.mark.parametrize("system", [Independent, Copula, Tree, Mixture, ByClass, Kernels, *INSTALLED])
def test_samples_have_the_frequencies_that_the_probabilities_say(system):
    peer = fitted(system, small_table(600), 1)
    every = every_row(20.0)
    p = np.exp(peer.log_prob(every, draws=64))
    sample = peer.sample(20_000)
    expected = p[(every["side"] == "left") & (every["size"] <= 1.0)].sum()
    found = np.mean((sample["side"] == "left") & (sample["size"] <= 1.0 + 1e-9))
    assert found == pytest.approx(expected, abs=5 * np.sqrt(0.25 / 20_000) + 0.01)


def test_a_cell_is_found_again_from_any_point_inside_it():
    table = toy_table(500, 0)
    margins = Margins(table)
    lo, hi, _ = margins.cells(table)
    again = margins.frame(lo + 0.5 * (hi - lo))
    assert again["city"].tolist() == table["city"].tolist()
    for name in ("grade", "years", "gain", "weight"):
        assert np.allclose(again[name], table[name], atol=1e-6)


def test_a_few_training_rows_leave_only_test_rows_of_known_values():
    rows = small_table(400)
    train, test = few(rows[:300], rows[300:].assign(grade=[7] + [1] * 99), 20)
    assert len(train) == 20
    assert set(test["grade"]) == {1}


def test_complete_rows_are_in_columns_that_are_mostly_there():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1.0, None, 2.0], "c": [None, None, 1.0]})
    assert complete(frame).to_dict("list") == {"a": [1.0, 3.0], "b": [1.0, 2.0]}


def test_the_two_sample_test_passes_real_rows_and_fails_shuffled_ones():
    a, b = small_table(4000)[:2000], small_table(4000)[2000:]
    assert boosted(a, b, seed=0) > 0.9
    assert boosted(a, shuffled(b, 2000, 0), seed=0) < 0.6


def test_snapped_numbers_lie_on_the_lattice():
    fake = pd.DataFrame({"a": [0.1234, 7.77], "b": [1.2, 2.7], "c": ["x", "y"]})
    out = snapped(fake, {"a": 0.05})
    assert out["a"].tolist() == [0.1, 7.75]
    assert out["b"].tolist() == [1.0, 3.0]


def test_a_peer_that_is_not_installed_says_what_to_do():
    if find_spec("miceforest") is not None:
        pytest.skip("miceforest is installed")
    with pytest.raises(
        ImportError, match=r"miceforest: this system needs the package .* pip install miceforest"
    ):
        filler("miceforest", 1)(pd.DataFrame({"n": [1.0, np.nan]}), seed=0)
