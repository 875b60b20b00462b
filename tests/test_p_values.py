"""Conformal p-values: valid on exchangeable rows, whatever the model; outliers with a threshold."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.stats import betabinom
from small import EXACT, SMALL, TINY

from ctem import CTEM, CTEMOutlier
from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.anyorder.fitting import split_rows
from ctem.tables.answers.density import TableDensity
from ctem.tables.answers.heldout import check_held_out, rank_p_values, row_hashes, unseen_rows
from experiments.tables.p_values import MADE


def people(n, seed):
    rng = np.random.default_rng(seed)
    side = rng.integers(3, size=n)
    rain = np.where(rng.random(n) < 0.3, 0.0, rng.lognormal(side, 0.7))
    height = rng.normal(160 + 12 * side, 6)
    city = np.array(["Bergen", "Oslo", "Røros"])[side]
    return pd.DataFrame({"city": city, "rain": rain, "height": np.where(rng.random(n) < 0.1, np.nan, height)})


@pytest.fixture(scope="module")
def model():
    return CTEM(**SMALL).fit(people(1500, 0))


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1])
def test_ordinary_rows_are_called_strange_at_most_as_often_as_alpha_says(model, alpha):
    """Validity holds over held-out rows, too: over many models the share is at most alpha."""
    shares = []
    for seed in range(40):  # rank statistics of exchangeable scores, as many held out as the model has
        rng = np.random.default_rng(seed)
        held, new = np.sort(rng.gumbel(size=300)), rng.gumbel(size=500)
        shares.append((rank_p_values(held, new) <= alpha).mean())
    assert np.mean(shares) < alpha + 3 * np.std(shares) / np.sqrt(len(shares))
    n = 4000
    share = (model.p_values(people(n, 1)) <= alpha).mean()
    held = model.held_out_.rows
    assert share < alpha + 4 * np.sqrt(alpha * (1 - alpha) * (1 / n + 1 / held))


def test_p_values_are_uniform_on_new_rows_and_small_on_strange_ones(model):
    p = model.p_values(people(3000, 2))
    n, held = len(p), model.held_out_.rows
    assert p.min() >= 1 / (held + 1)
    for share in (0.25, 0.5, 0.75):
        assert abs((p <= share).mean() - share) < 5 * np.sqrt(share * (1 - share) * (1 / n + 1 / held))
    strange = people(5, 3).assign(height=290.0)
    assert (model.p_values(strange) <= 0.02).all()


QUICKLY = ("heavy tails", "gaps", "a value of its own")


@pytest.mark.parametrize(
    "name", [name if name in QUICKLY else pytest.param(name, marks=pytest.mark.long) for name in MADE]
)
def test_p_values_are_uniform_on_fresh_rows_down_to_the_far_tail(name):
    """n is that of so many fresh rows beside so many held-out ones; by chance one table of thousands fails."""
    rng = np.random.default_rng(1)
    X, fresh = (pd.DataFrame(MADE[name](rng, n)) for n in (5000, 5000))
    model = CTEM(**SMALL | {"members": 4, "max_steps": 40, "width": 32}).fit(X)
    p, held = np.sort(model.p_values(fresh)), model.held_out_.rows
    n = 1 / (1 / len(p) + 1 / held)
    assert held == 2000 or model.describe()["energy"]
    ranks = np.arange(1, len(p) + 1) / len(p)
    distinct = np.append(np.diff(p) > 0, True)  # where scores are tied, so are p-values
    assert abs(ranks - p)[distinct].max() < 2.2 / np.sqrt(n)
    for share in (0.001, 0.01, 0.1):
        most = int(share * (held + 1))  # as many scores of all, new and held-out, are among the strangest
        law = betabinom(len(p), most, held + 1 - most)
        low, high = law.ppf([5e-5, 1 - 5e-5]) if most else (0, 0)  # none is so small
        assert low <= (p <= share).sum() <= high


def test_a_row_has_one_hash_whatever_its_last_digits_and_chooses_each_network_as_often():
    x = torch.randn(6000, 3, generator=torch.Generator().manual_seed(0))
    found = row_hashes(x)
    assert np.bincount((found % np.uint64(5)).astype(int)) == pytest.approx(
        np.full(5, 1200), abs=4 * np.sqrt(960)
    )
    assert (row_hashes(x.double() + 1e-7) != found).mean() < 1e-3
    assert np.array_equal(row_hashes(x[7:9]), found[7:9])


def test_what_is_typical_of_a_network_is_drawn_once(monkeypatch):
    fresh, drawn = CTEM(**SMALL).fit(people(200, 0)), []
    own = AnyOrderDensity.sample
    monkeypatch.setattr(
        AnyOrderDensity, "sample", lambda self, *how: drawn.append(self.member) or own(self, *how)
    )
    first, again = fresh.p_values(people(40, 1)), fresh.p_values(people(40, 1))
    assert np.array_equal(first, again)
    assert drawn == list(range(fresh.settings_.members))


def test_p_values_and_the_gain_are_those_of_the_population_that_weights_stand_for():
    rng = np.random.default_rng(0)

    def drawn(n, often):
        side = rng.random(n) < often
        return pd.DataFrame({"side": np.where(side, "a", "b"), "size": rng.normal(np.where(side, 0, 40), 1)})

    X, new = drawn(3000, 0.5), drawn(3000, 0.95)
    model = CTEM(**EXACT | {"max_steps": 300}).fit(X, sample_weight=np.where(X["side"] == "a", 19.0, 1.0))
    p, held = model.p_values(new), model.held_out_
    for share in (0.25, 0.5, 0.75):
        assert abs((p <= share).mean() - share) < 5 * np.sqrt(
            share * (1 - share) * (1 / len(p) + 1 / held.rows)
        )
    assert abs(held.log_density - model.score(new)) < 5 * model.score_samples(new).std() / np.sqrt(held.rows)
    apart = np.log(19 / 20) * 19 / 20 + np.log(1 / 20) / 20  # of the side alone, by its weighted share
    assert model.independent_score_ < apart


def test_rows_of_x_val_calibrate_the_whole_density():
    X, val = people(600, 4), people(300, 5)
    model = CTEM(**EXACT).fit(X, X_val=val)
    (fold,) = model.held_out_.folds
    assert model.held_out_.rows == len(val)
    scores = model.outlier_scores(people(50, 6))
    held = model.outlier_scores(val)
    expected = (1 + (held[None, :] >= scores[:, None] - 1e-6).sum(1)) / (1 + len(val))
    assert np.allclose(model.p_values(people(50, 6)), expected, atol=1.5 / len(val))
    assert (fold.scores == np.sort(fold.scores)).all()


def test_unseen_rows_are_those_that_a_member_has_no_weight_for():
    for n, members in ((57, 3), (12, 2), (200, 12)):
        weights = split_rows(torch.zeros(n, 2), members, seed=9).weights
        for k, rows in enumerate(unseen_rows(n, members, 9)):
            assert sorted(rows.tolist()) == (weights[k] == 0).nonzero().flatten().tolist()


def test_held_out_rows_are_judged_by_networks_that_have_not_seen_them(model):
    held = model.held_out_
    assert held.gain > 0
    assert held.gain == pytest.approx(held.log_density - held.independent)
    assert model.describe()["held_out"]["rows"] == held.rows
    fresh = model.score_samples(people(3000, 7))
    noise = 4 * np.hypot(fresh.std() / np.sqrt(3000), fresh.std() / np.sqrt(held.rows))
    assert abs(held.log_density - fresh.mean()) < noise + 0.2  # a member alone is a little worse than all


def test_a_saved_model_keeps_its_p_values(model, tmp_path):
    model.save(tmp_path / "m.ctem")
    again = CTEM.load(tmp_path / "m.ctem", "cpu")
    X = people(40, 8)
    assert np.array_equal(again.p_values(X), model.p_values(X))
    assert again.held_out_.summary() == model.held_out_.summary()


def test_alpha_chooses_the_rows_and_n_limits_them(model):
    X = people(400, 9)
    X.loc[[3, 77], "height"] = 260.0
    p = model.p_values(X)
    found = model.outliers(X, alpha=0.03)
    assert sorted(each.row for each in found) == np.flatnonzero(p <= 0.03).tolist()
    assert {each.row for each in found[:2]} == {3, 77}
    assert [each.p_value for each in found] == pytest.approx(p[[each.row for each in found]])
    assert len(model.outliers(X, 1, alpha=0.03)) == 1
    assert model.outliers(X[:0:-1][5:8].assign(height=160.0, rain=0.0, city="Bergen"), alpha=1e-4) == []
    with pytest.raises(ValueError, match=r"alpha: expected a share in \(0, 1\]; got 5"):
        model.outliers(X, alpha=5)


def test_a_suspicious_cell_says_what_was_expected(model):
    X = people(50, 10)
    X.loc[7, ["city", "height"]] = ["Bergen", 260.0]
    (worst,) = model.outliers(X, 1)
    cell = worst.cells[0]
    assert (worst.row, cell.name, cell.value) == (7, "height", 260.0)
    assert 130 < cell.low < cell.expected < cell.high < 230
    assert cell.p_value < 0.01
    assert worst.why().startswith("height 260, expected 1")


def test_p_values_of_cells_are_uniform_on_what_the_model_draws(model):
    rows = people(500, 11).dropna(ignore_index=True)
    for name in ("height", "city", "rain"):
        drawn = model.sample(1, random_state=0, given=rows.drop(columns=name))
        p = model.conditional(drawn, name).p_values(drawn[name])
        for share in (0.1, 0.5):
            assert (p <= share).mean() < share + 4 * np.sqrt(share * (1 - share) / len(p)) + 0.01


@pytest.mark.parametrize("made", [lambda X: X, pl.from_pandas, lambda X: pl.from_pandas(X).to_arrow()])
def test_a_table_of_outliers_is_of_the_kind_that_came_in(made):
    X = people(120, 12)
    X.index = np.arange(1000, 1120)
    table = made(X)
    model = CTEM(**TINY).fit(table)
    found = model.outliers(table, 4, as_frame=True)
    assert type(found) is type(table)
    names = found.column_names if hasattr(found, "column_names") else list(found.columns)
    assert names == ["row", "score", "p_value", "why", "city", "rain", "height"]
    rows = [each.row for each in model.outliers(table, 4)]
    column = found["row"]
    assert (column.to_pylist() if hasattr(column, "to_pylist") else list(column)) == rows
    if made(X) is X:
        assert found.index.tolist() == X.index[rows].tolist()
        assert found["height"].equals(X["height"].iloc[rows])


def test_arrays_and_the_outlier_estimator_answer_too(model):
    X = np.random.default_rng(0).normal(size=(200, 2))
    fitted = CTEMOutlier(CTEM(**SMALL)).fit(X)
    assert fitted.estimator_.outliers(X, 2, as_frame=True).shape == (2, 6)


@pytest.mark.parametrize("seed", [0, 13], ids=["the table of the fit", "new rows"])
def test_a_p_value_is_of_the_row_and_the_model_and_not_of_the_table_it_stands_in(model, seed):
    X = people(1500, seed)[-400:].reset_index(drop=True)
    p = model.p_values(X)
    for rows in (slice(None, None, -1), slice(0, 7), [399, 3, 3]):
        part = X.iloc[rows].reset_index(drop=True)
        assert np.array_equal(model.p_values(part), p[rows])
    for found in (model.outliers(X, alpha=0.01), model.outliers(X, 3)):
        assert [each.p_value for each in found] == p[[each.row for each in found]].tolist()


def test_no_row_is_scored_when_the_time_is_over_but_some_of_the_first_fold():
    X = np.random.default_rng(0).normal(size=(100, 2))
    model = CTEM(**SMALL).fit(X)
    table, frame = TableDensity(model.schema_, model.density_), model.as_frame(X)
    short = check_held_out(table, frame, model.seed_, until=0.0)
    assert len(model.held_out_.folds) == 2
    assert np.array_equal(short.folds[0].scores, model.held_out_.folds[0].scores)
    assert (len(short.folds), short.rows) == (1, 10)


def test_one_pass_gives_the_log_density_and_the_surprise():
    X = np.random.default_rng(0).normal(size=(120, 3)).round(1)
    X[::4, 1] = np.nan
    model = CTEM(**SMALL).fit(X)
    table, frame = TableDensity(model.schema_, model.density_), model.as_frame(X)
    log_p, strange = table.log_prob_and_surprise(frame)
    assert log_p == pytest.approx(model.score_samples(X), abs=1e-4)
    assert strange == pytest.approx(model.outlier_scores(X), abs=1e-3)
