"""The imputer: answers of the kind that came in, and summaries that agree with what would be drawn."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import check_is_fitted
from small import EXACT

from ctem import CTEM, CTEMImputer
from ctem.tables.answers.density import TableDensity
from ctem.tables.answers.heldout import EVERY
from ctem.tables.answers.intervals import Intervals, _middle
from ctem.tables.io.cells import Cells

N = 300


def table(n=N, seed=0):
    rng = np.random.default_rng(seed)
    side = rng.integers(2, size=n)
    height = 150 + 20 * side + rng.normal(0, 5, n)
    rain = np.where(rng.random(n) < 0.3, 0.0, rng.exponential(3.0, n))
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 400, n), unit="D")
    frame = pd.DataFrame(
        {"height": height, "rain": rain, "side": np.where(side, "left", "right"), "day": day}
    )
    return frame.astype({"side": "category"})


def with_gaps(X, share=0.2, seed=1):
    return X.mask(np.random.default_rng(seed).random(X.shape) < share)


def small(**settings):
    return CTEMImputer(CTEM(**EXACT), **settings)


@pytest.fixture(scope="module")
def gaps():
    return with_gaps(table())


@pytest.fixture(scope="module")
def indicating(gaps):
    """A table of pandas and one of polars, with an imputer each."""
    return [(X, small(add_indicator=True).fit(X)) for X in (gaps[:120], pl.from_pandas(gaps[:120]))]


@pytest.fixture(scope="module")
def fitted(gaps):
    return small().fit(gaps)


@pytest.mark.parametrize("strategy", ["mean", "mode", "sample"])
def test_every_gap_is_filled_and_every_observed_cell_stays(fitted, gaps, strategy):
    filled = fitted.set_params(strategy=strategy).transform(gaps)
    assert not filled.isna().any().any()
    assert filled.dtypes.equals(gaps.dtypes)
    assert filled.where(gaps.notna()).equals(gaps)


def test_polars_and_arrow_tables_come_back_as_such(gaps):
    X = pl.from_pandas(gaps[:120])
    filled = small().fit(X).transform(X)
    assert isinstance(filled, pl.DataFrame)
    assert filled.schema == X.schema
    assert not any(filled.null_count().row(0))
    arrow = small().fit(X.to_arrow()).transform(X.to_arrow())
    assert arrow.schema.names == X.columns
    assert all(not column.null_count for column in arrow.columns)


def one_gap_each(X):
    """Rows with one missing cell of every column but the last, which says which."""
    rows = [X.iloc[[i]].assign(**{name: None}) for i, name in enumerate(["height", "rain", "day"])]
    return pd.concat([row.astype(X.dtypes) for row in rows], ignore_index=True)


def test_mean_and_deviation_are_those_of_many_draws(fitted):
    X = one_gap_each(table(seed=2))
    n = 3000
    mean, std = fitted.set_params(strategy="mean").transform(X, return_std=True)
    drawn = fitted.estimator_.sample(n, random_state=0, given=X)
    days = lambda column: (column - pd.Timestamp("2020-01-01")) / pd.Timedelta("1D")  # noqa: E731
    for row, name in enumerate(["height", "rain", "day"]):
        values, said = drawn[name].iloc[row * n : (row + 1) * n], mean[name].iloc[row]
        if name == "day":
            values, said = days(values), days(said)
        spread = std[row, X.columns.get_loc(name)]
        assert abs(values.mean() - said) < 4.5 * spread / np.sqrt(n) + (name == "day") * 0.5
        fourth = ((values - values.mean()) ** 4).mean()
        assert (
            abs(values.var() - spread**2) < 5 * np.sqrt((fourth - values.var() ** 2) / n) + 0.01 * spread**2
        )


@pytest.mark.parametrize("factor", [0.2, 1.0, 4.0], ids=["too wide", "right", "too sure"])
def test_intervals_hold_their_share_whatever_the_model(fitted, factor):
    """Held-out and new rows spread more or less than those that the model knows."""
    density, shares = TableDensity(fitted.estimator_.schema_, fitted.estimator_.density_), []
    held_out, new = (spread(table(200, seed), factor) for seed in (3, 4))
    rows = new.assign(height=np.nan, rain=np.nan)
    made = Intervals(density, [(EVERY, fitted.estimator_.as_frame(held_out))])
    low, high = made.of(fitted.estimator_.as_frame(rows), 0.8)
    for name in ("height", "rain"):
        shares.append(((low[name].values <= new[name]) & (new[name] <= high[name].values)).mean())
    assert np.mean(shares) == pytest.approx(0.8, abs=4 * np.sqrt(0.8 * 0.2 * (1 / 200 + 1 / 200)))


def spread(X, factor):
    return X.assign(height=160 + factor * (X["height"] - 160), rain=factor * X["rain"])


def test_intervals_grow_with_their_coverage_and_keep_what_is_known(fitted):
    rows = table(20, seed=3).assign(height=np.nan)
    (low, high), inner = fitted.intervals(rows, 0.8), fitted.intervals(rows, 0.5)
    assert (low["height"] <= inner[0]["height"]).all()
    assert (inner[1]["height"] <= high["height"]).all()
    assert low.drop(columns="height").equals(rows.drop(columns="height"))


@pytest.mark.parametrize("networks", [1, 2, 3, 4, 10])
def test_ends_are_the_medians_of_the_networks_ends(networks):
    rng = np.random.default_rng(networks)
    gone = np.zeros(500, bool)
    for values in (rng.normal(size=(networks, 500)), rng.integers(-9, 9, (networks, 500)).astype(np.int64)):
        cells = [Cells("float" if values.dtype == float else "int", each, gone) for each in values]
        low, high = (_middle(cells, upper).values for upper in (False, True))
        exact = np.median(values, axis=0)
        whole = values.dtype != float
        np.testing.assert_allclose(low, np.floor(exact) if whole else exact, rtol=1e-12)
        np.testing.assert_allclose(high, np.ceil(exact) if whole else exact, rtol=1e-12)
    known = [Cells("float", np.array([5e-324, 1e308]), gone[:2])] * networks
    assert _middle(known, True).values.tolist() == [5e-324, 1e308]


@pytest.mark.filterwarnings("ignore:fitted on 12 rows")
def test_too_few_held_out_rows_give_the_whole_column():
    X = table(12, seed=5)
    rows = X.assign(height=np.nan)
    low, high = small().fit(X).intervals(rows)
    assert (low["height"] <= X["height"].min()).all()
    assert (high["height"] >= X["height"].max()).all()


@pytest.fixture(scope="module")
def heavy():
    """A table with a heavy tail in its column x, and an imputer of it."""
    rng = np.random.default_rng(6)
    X = pd.DataFrame({"x": np.exp(3 * rng.standard_t(1.5, 300)), "y": rng.normal(size=300)})
    return X, small().fit(X)


def test_every_mean_is_of_values_between_the_ends_that_fit_saw(heavy, tmp_path):
    X, imputer = heavy
    rows, model = X[:10].assign(x=np.nan), imputer.estimator_
    found = model.conditional(rows, "x").distribution
    assert (
        replace(found, ends=None).expectation().max() > X["x"].max()
    )  # without ends the tail, a guess, decides
    means, ends = found.expectation(), (X["x"].min(), X["x"].max())
    assert ends[0] <= means.min()
    assert means.max() <= ends[1]
    model.save(tmp_path / "model.ctem")
    for each in (model, CTEM.load(tmp_path / "model.ctem")):
        assert np.array_equal(each.predict(rows, "x"), means)
        assert np.allclose(each.impute(rows, "mean")["x"], means, rtol=1e-12)
    filled, std = imputer.transform(rows, return_std=True)
    assert np.allclose(filled["x"], means, rtol=1e-12)
    assert (std[:, 0] <= (ends[1] - ends[0]) / 2).all()  # the most that values between the ends can have


def test_a_code_for_missing_is_no_end_of_the_other_values():
    X = table().assign(height=lambda X: X["height"].round(1))
    X.loc[:29, "height"] = 99999.0
    found = small().fit(X).estimator_.conditional(X[:1], "height").distribution
    assert found.ends.values.tolist() == [X["height"].min(), X["height"][30:].max()]
    assert found.values.count(99999.0) == 1


def test_a_label_has_no_interval(fitted):
    rows = table(5, seed=3).assign(side=None).astype({"side": "category"})
    low, high = fitted.intervals(rows)
    assert low["side"].isna().all()
    assert high["side"].isna().all()


def test_draws_are_several_tables_that_differ_and_a_seed_repeats_them(fitted, gaps):
    first, second = fitted.draws(gaps, 2, random_state=0)
    again, _ = fitted.draws(gaps, 2, random_state=0)
    assert first.equals(again)
    assert not first.equals(second)
    assert len(fitted.draws(gaps, 1)) == 1


def test_indicators_say_what_was_missing(gaps):
    X = gaps.assign(rain=1.0 + np.arange(N))
    imputer = small(add_indicator=True).fit(X)
    filled = imputer.transform(X)
    names = [f"missingindicator_{name}" for name in ("height", "side", "day")]
    assert list(filled.columns) == list(imputer.get_feature_names_out()) == [*X.columns, *names]
    assert np.array_equal(filled[names], X[["height", "side", "day"]].isna())
    array = np.column_stack([X["height"], X["rain"]])
    both = small(add_indicator=True).fit_transform(array)
    assert np.array_equal(both[:, 2], np.isnan(array[:, 0]))


@pytest.mark.parametrize("wanted", ["pandas", "polars"])
def test_set_output_chooses_the_library(indicating, wanted):
    library = {"pandas": pd, "polars": pl}[wanted]
    for X, imputer in indicating:
        filled = imputer.set_output(transform=wanted).transform(X)
        assert isinstance(filled, library.DataFrame)
        assert list(filled.columns) == list(imputer.get_feature_names_out())
        assert isinstance(imputer.draws(X, 2)[0], library.DataFrame)


def test_new_rows_keep_their_index(fitted, gaps):
    rows = gaps.iloc[[7, 3]]
    assert fitted.transform(rows).index.tolist() == [7, 3]
    assert fitted.intervals(rows)[0].index.tolist() == [7, 3]


def test_a_pipeline_classifies_rows_with_gaps(gaps):
    X, y = gaps.drop(columns=["side", "day"]), table()["side"].astype(str)
    pipe = make_pipeline(small(), HistGradientBoostingClassifier(max_iter=5, random_state=0)).fit(X, y)
    assert pipe.score(X, y) > 0.7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "median"}, r"strategy: expected one of .*'median'"),
        ({"estimator": CTEM(missing="state")}, "estimator: missing='state'"),
    ],
)
def test_what_cannot_be_is_refused(gaps, settings, message):
    with pytest.raises(ValueError, match=message):
        CTEMImputer(**settings).fit(gaps)


def test_coverage_is_a_share(fitted, gaps):
    check_is_fitted(fitted)
    with pytest.raises(ValueError, match=r"coverage: expected a share in \(0, 1\); got 90"):
        fitted.intervals(gaps, coverage=90)


@pytest.mark.parametrize("strategy", ["mean", "mode", "sample"])
def test_a_column_that_was_always_missing_stays_so(strategy):
    X = table().assign(never=np.nan)
    filled = small(strategy=strategy).fit(X).transform(X)
    assert filled["never"].isna().all()
    assert not filled.drop(columns="never").isna().any().any()
