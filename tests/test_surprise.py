"""Outlier scores: units and rounding do not matter, gaps compare, and columns add up."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from small import EXACT

from ctem import CTEM, CTEMOutlier
from ctem.tables.answers.surprise import Rarity

LONGER = {**EXACT, "max_steps": 100, "width": 32}


def linked(n=400, seed=0):
    """A number, another that follows it closely, a skewed one with a few repeated values, and a label with its copy."""
    rng = np.random.default_rng(seed)
    side = rng.integers(3, size=n)
    a = rng.normal(size=n) + side
    skewed = np.round(rng.lognormal(side, 0.7), 2)
    skewed[:12] = np.repeat([60.13, 70.55, 55.01], 4)
    return pd.DataFrame(
        {
            "a": a,
            "b": a + 0.1 * rng.normal(size=n),
            "skewed": rng.permutation(skewed),
            "side": np.array(["l", "m", "r"])[side],
            "copy": np.array(["L", "M", "R"])[side],
        }
    )


@pytest.fixture(scope="module")
def fitted():
    X = linked()
    return X, CTEM(**LONGER).fit(X)


def test_what_columns_add_sums_to_the_score(fitted):
    X, model = fitted
    holes = X.mask(np.random.default_rng(1).random(X.shape) < 0.3)
    for rows in (X, holes):
        each = model.outlier_scores(rows, by_column=True)
        assert each.shape == rows.shape
        assert np.allclose(each.sum(1), model.outlier_scores(rows), rtol=0, atol=1e-9)


def test_an_average_row_scores_zero_and_one_of_nothing_is_no_outlier(fitted):
    X, model = fitted
    drawn = model.outlier_scores(model.sample(2000, random_state=1))
    assert abs(drawn.mean()) < 4 * drawn.std() * np.sqrt(1 / 2000 + 1 / 512)  # 512 rows make the average
    nothing = model.outlier_scores(X[:1].mask(np.ones((1, X.shape[1]), bool)))[0]
    assert np.quantile(drawn, 0.1) < nothing < np.quantile(drawn, 0.9)


def test_a_row_ranks_about_the_same_if_any_one_cell_is_missing(fitted):
    """The mean over drawn rows is the same with a gap in any column, also in one that others follow."""
    _, model = fitted
    rows = model.sample(500, random_state=2)
    whole = model.outlier_scores(rows)
    for name in rows:
        gap = model.outlier_scores(rows.assign(**{name: np.nan if rows[name].dtype == float else None}))
        assert abs((gap - whole).mean()) < 0.3  # it is 1.2 without the correction
        assert spearmanr(gap, whole).statistic > 0.6


@pytest.mark.parametrize(
    ("name", "factor", "least"),
    [("skewed", 2.0**-7, 0.9999), pytest.param("a", -(2.0**9), 0.9, marks=pytest.mark.long)],
)
def test_a_change_of_unit_leaves_the_scores(fitted, name, factor, least):
    X, model = fitted
    changed = X.assign(**{name: X[name] * factor})
    scores = CTEM(**LONGER).fit(changed).outlier_scores(changed)
    assert spearmanr(scores, model.outlier_scores(X)).statistic > least


def test_rounding_a_column_leaves_the_ranks(fitted):
    X, model = fitted
    rounded = X.assign(a=X["a"].round(1), skewed=X["skewed"].round(1))
    scores = CTEM(**LONGER).fit(rounded).outlier_scores(rounded)
    assert spearmanr(scores, model.outlier_scores(X)).statistic > 0.9


def test_an_extreme_number_is_strange_however_often_it_was_written_down():
    X = linked()
    X.loc[X.index[:4], "skewed"] = 512.33
    scores = CTEM(**LONGER).fit(X).outlier_scores(X)
    rank = (-scores).argsort().argsort()
    assert rank[:4].max() < 20


def test_wrong_cells_are_named(fitted):
    X, model = fitted
    rows = X[:40].assign(copy=X["copy"][:40].map({"L": "M", "M": "R", "R": "L"}))
    blamed = [next(iter(each.columns)) for each in model.outliers(rows, 40)]
    assert np.mean([name in ("side", "copy") for name in blamed]) > 0.8


def test_a_cell_counts_by_its_nats_or_by_how_rare_they_are_in_its_column():
    rng = np.random.default_rng(0)
    scale = np.array([0.3, 1.0, 30.0])  # columns of little and of much noise
    of = Rarity(rng.exponential(size=(512, 1)) * scale)
    new = rng.exponential(size=(4000, 1)) * scale
    added = of(new)
    assert (np.abs(added.mean(0)) < 4 * np.sqrt(1 / 512 + 1 / 4000) * added.std(0)).all()
    assert (np.diff(added[new[:, 0].argsort()], axis=0) >= 0).all()
    rarest = new[:, 0] > np.quantile(new[:, 0], 0.98)
    assert (added[rarest, 0] > 1.5).all()  # a nat or so above the average: −log 0.05 is 3
    assert (added[rarest, 2] > 60).all()
    far = of.cut + np.array([[30.0], [32.5]])
    assert np.allclose(np.diff(of(far), axis=0), 2.5)


def test_cells_that_are_as_good_as_sure_add_as_good_as_nothing():
    """Their surprises differ, by thousandths of a nat."""
    drawn = np.random.default_rng(0).exponential(1e-3, size=(512, 1))
    assert np.ptp(Rarity(drawn)(drawn)) < 0.01


def test_the_outlier_estimator_calls_the_highest_scores_outliers():
    X = linked(200)
    found = CTEMOutlier(CTEM(**EXACT), contamination=0.1).fit(X)
    assert np.array_equal(found.score_samples(X), -found.estimator_.outlier_scores(X))
    assert (found.predict(X) == -1).sum() == 20
