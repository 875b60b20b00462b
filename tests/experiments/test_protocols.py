"""The metrics and protocols of the field's published tables agree with slow, obviously right versions."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import ks_2samp

from ctem import CTEM
from experiments.sweep import errors, mask, published_rows, toy_table
from experiments.tables.anomalies import LEAST, MOST, distances, one_class
from experiments.tables.imputation import at_means_and_modes
from experiments.tables.nats import RARELY, TOLERANCE, beyond_chance
from experiments.tables.samples import (
    nearer_share,
    nearest,
    one_hot,
    plain,
    precision_recall,
    shape_error,
    split,
    trend_error,
)

pytestmark = pytest.mark.long  # of the experiments, not of the library
LABELS = ["city", "grade"]


def table(n: int, seed: int) -> pd.DataFrame:
    return plain(toy_table(n, seed), LABELS)


def test_shape_errors_are_kolmogorov_smirnov_distances_and_total_variations():
    real, fake = table(300, 0), table(200, 1)
    numbers = [ks_2samp(real[name], fake[name]).statistic for name in real if name not in LABELS]
    labels = []
    for name in LABELS:
        values = set(real[name]) | set(fake[name])
        labels.append(sum(abs((real[name] == v).mean() - (fake[name] == v).mean()) for v in values) / 2)
    assert shape_error(real, fake, LABELS) == pytest.approx(100 * np.mean([*numbers, *labels]))


@pytest.mark.parametrize("name", ["city", "grade", "years", "holed"])
def test_margins_of_one_law_are_within_chance_and_those_of_another_are_not(name):
    def drawn(n, seed):
        return toy_table(n, seed).assign(holed=lambda X: X["weight"].mask(X["grade"] == 0))[name]

    excess = np.array([beyond_chance(drawn(300, 2 * seed), drawn(200, 2 * seed + 1)) for seed in range(50)])
    assert (excess > 0).mean() <= 2 * RARELY + 3 * np.sqrt(2 * RARELY / 50)  # of cells, and of gaps
    real = drawn(20_000, 0)
    other = {"city": "Oslo", "grade": 3, "years": 0, "holed": np.nan}[name]
    changed = drawn(20_000, 1).mask(np.random.default_rng(0).random(20_000) < 0.15, other)
    assert beyond_chance(real, changed) > TOLERANCE


def test_a_table_has_no_error_against_itself():
    real = table(300, 0)
    assert shape_error(real, real, LABELS) == trend_error(real, real, LABELS) == 0.0


def test_trend_errors_of_a_pair_of_labels_and_of_numbers_are_known():
    real = pd.DataFrame({"a": ["x", "x", "y", "y"], "b": ["u", "u", "v", "v"]})
    fake = pd.DataFrame({"a": ["x", "x", "y", "y"], "b": ["u", "v", "u", "v"]})
    assert trend_error(real, fake, ["a", "b"]) == pytest.approx(50.0)
    up = pd.DataFrame({"a": [0.0, 1.0, 2.0], "b": [0.0, 1.0, 2.0]})
    assert trend_error(up, up.assign(b=-up["b"]), []) == pytest.approx(100.0)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_the_nearest_row_is_that_of_all_pairs(p):
    x, y = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)).split([100, 200])
    all_pairs = (x[:, None] - y).abs().pow(p).sum(2).pow(1 / p)
    found, which = nearest(x, y, p)
    assert torch.allclose(found, all_pairs.min(1).values, atol=1e-6)
    assert torch.equal(which, all_pairs.argmin(1))
    assert torch.allclose(nearest(x, y, p, skip=1)[0], all_pairs.sort(1).values[:, 1], atol=1e-6)


def test_copies_have_all_recall_and_precision_and_far_rows_none():
    real = np.random.default_rng(0).normal(size=(400, 3))
    assert precision_recall(real, real, "cpu") == pytest.approx((1.0, 1.0), abs=0.01)
    alpha, beta = precision_recall(real, real + 100.0, "cpu")
    assert alpha == pytest.approx(0.0, abs=1e-6)
    assert beta == pytest.approx(0.0, abs=0.05)


def test_rows_of_the_same_law_have_about_half_of_recall_and_are_nearer_to_neither_half():
    own, other, fake = np.random.default_rng(1).normal(size=(3, 1000, 3))
    assert precision_recall(own, fake, "cpu")[1] == pytest.approx(0.5, abs=0.05)
    assert nearer_share(own, other, fake, "cpu", np.ones(3)) == pytest.approx(0.5, abs=5 * 0.5 / 1000**0.5)
    assert nearer_share(own, other, own, "cpu", np.ones(3)) == 1.0


def test_one_hot_rows_have_the_same_columns_for_all_tables():
    one, two = pd.DataFrame({"a": ["x", "y"], "b": [1.0, 2.0]}), pd.DataFrame({"a": ["z"], "b": [3.0]})
    rows = one_hot(["a"], one, two)
    assert [part.shape for part in rows] == [(2, 4), (1, 4)]
    assert rows[1].tolist() == [[3.0, 0.0, 0.0, 1.0]]


def test_every_label_of_a_split_occurs_in_training():
    frame = pd.DataFrame({"a": [*"x" * 57, *"yz" * 1, "w"], "b": range(60)})
    train, test = split(frame, ["a"])
    assert len(train) == 54
    assert set(train["a"]) == set("xyzw")
    assert sorted([*train["b"], *test["b"]]) == list(range(60))


@pytest.mark.parametrize("kind", ["MCAR", "MAR", "MNAR"])
@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_masks_remove_the_share_that_they_say(kind, rate):
    frame = toy_table(4000, 0)
    gone = mask(kind, frame, LABELS, rate, 0)
    kept = gone.mean(0) == 0
    assert kept.sum() == (1 if kind == "MAR" else 0)  # 30 % of five columns
    expected = rate / 0.7 if kind == "MAR" else rate
    assert np.allclose(gone.mean(0)[~kept], expected, atol=5 * np.sqrt(0.25 / 4000))


def test_the_published_rows_have_all_sets():
    sets = {
        name: {record.dataset for record in published_rows(name)}
        for name in ("samples", "harpoon", "adbench")
    }
    assert len(sets["samples"]) == len(sets["harpoon"]) == 5
    assert len(sets["adbench"]) == 24  # 22 sets and two means


def test_one_class_sets_learn_from_the_first_half_of_the_normal_rows():
    X, y = np.arange(1200.0)[:, None], np.repeat([0, 1, 0], [800, 200, 200])
    rows = one_class(X, y, 0)
    assert rows.train[:, 0].tolist() == list(range(500))
    assert len(rows.test) == 700
    assert set(rows.test[rows.strange == 1, 0]) == set(range(800, 1000))


@pytest.mark.parametrize(("n", "kept"), [(100, LEAST), (MOST + 1, MOST)])
def test_small_sets_are_bootstrapped_and_large_ones_cut(n, kept):
    rows = one_class(np.arange(n)[:, None], np.arange(n) % 10 == 0, 0)
    assert len(rows.train) + len(rows.test) == kept


def test_distances_are_those_of_all_pairs_in_training_units():
    rng = np.random.default_rng(0)
    train, test = rng.normal(size=(50, 3)) * [1, 10, 100], rng.normal(size=(20, 3))
    a, b = ((part - train.mean(0)) / train.std(0) for part in (train, test))
    everything = np.sort(np.linalg.norm(b[:, None] - a, axis=2), axis=1)[:, :5]
    assert np.allclose(distances(train, test), everything)


def small_model(members: int) -> tuple[CTEM, pd.DataFrame]:
    frame = toy_table(200, 0)
    return CTEM(max_steps=20, width=8, members=members, orders=2, batch_size=32, random_state=0).fit(
        frame
    ), frame


def test_hidden_cells_are_filled_in_at_means_and_modes_and_judged_in_training_units():
    model, frame = small_model(2)
    gone = np.zeros(frame.shape, bool)
    gone[:10] = True
    gone[:10, 0] = False
    numbers = frame.select_dtypes("number").columns
    gappy = frame.astype(dict.fromkeys(numbers, float)).mask(gone)
    filled = at_means_and_modes(model, gappy, LABELS)
    assert filled["city"].tolist() == frame["city"].tolist()
    square, hits = errors(frame, filled, gone, LABELS, frame)
    assert len(square) == 30
    assert len(hits) == 10
    shifted = frame.assign(weight=frame["weight"] + frame["weight"].std(ddof=0))
    square, hits = errors(frame, shifted, gone, LABELS, frame)
    assert square.mean() == pytest.approx(1 / 3)
    assert hits.mean() == 1.0
