"""Inputs that look usual and are not: masked arrays, times without their zone, fractions of whole numbers, NumPy's
numbers as settings, cells of 1e300. Each is right, or a clear error."""

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from small import EXACT, TINY

from ctem import CTEM
from ctem.tables.io.frame import read_frame

QUICK = {**EXACT, "max_steps": 4, "width": 4}
N = 200


def rng():
    return np.random.default_rng(0)


MASKED = {
    "floats": rng().normal(size=(N, 2)),
    "whole numbers": rng().integers(0, 90, (N, 2)),
    "text": rng().choice(["a", "b"], (N, 2)),
    "objects": rng().choice(["a", "b"], (N, 2)).astype(object),
    "days": rng().integers(0, 900, (N, 2)).astype("M8[D]"),
    "booleans": rng().random((N, 2)) < 0.5,
}


@pytest.mark.parametrize("name", MASKED)
def test_what_lies_under_a_mask_is_missing(name):
    values = MASKED[name].copy()
    mask = np.random.default_rng(1).random(values.shape) < 0.2
    under = {"floats": -999.0, "whole numbers": -999, "days": np.datetime64("1900-01-01")}.get(
        name, values[0, 0]
    )
    values[mask] = under
    X = np.ma.array(values, mask=mask)
    frame = read_frame(X)
    assert np.array_equal(np.stack([cells.missing for cells in frame.columns.values()], 1), mask)
    model = CTEM(**QUICK).fit(X)
    assert model.score_samples(X).shape == (N,)
    full = model.impute(X, random_state=0)
    assert np.array_equal(full[~mask], values[~mask])
    if name in ("floats", "whole numbers", "days"):
        assert not (full == under).any()
        assert not (model.sample(N) == under).any()


@pytest.fixture(scope="module")
def counted():
    X = pd.DataFrame({"k": rng().integers(0, 90, N), "x": rng().normal(size=N)})
    return CTEM(**QUICK).fit(X)


def test_a_fraction_is_no_whole_number(counted):
    with pytest.raises(ValueError, match=r"column 'k', row 0: expected a whole number, as in fit; got 2\.5"):
        counted.sample(given={"k": 2.5})
    with pytest.raises(ValueError, match=r"column 'k', row 1: expected a whole number, as in fit; got 2\.5"):
        counted.sample(given=pd.DataFrame({"k": [2.0, 2.5]}))
    assert counted.sample(given={"k": 2.0})["k"].tolist() == [2]


def test_a_count_beyond_all_memory_is_refused(counted):
    with pytest.raises(ValueError, match="n_samples: expected at most 2147483647; got 1000000000000000"):
        counted.sample(10**15)


HOURS = pd.date_range("2020-01-01", periods=N, freq="h")
ZONED = {
    "pandas": lambda zone: pd.DataFrame({"t": HOURS.tz_localize(zone), "x": rng().normal(size=N)}),
    "polars": lambda zone: pl.from_pandas(ZONED["pandas"](zone)),
    "pyarrow": lambda zone: pa.Table.from_pandas(ZONED["pandas"](zone)),
    "pandas arrow": lambda zone: ZONED["pandas"](zone).astype({"t": pd.ArrowDtype(pa.timestamp("ns", zone))}),
}


@pytest.mark.parametrize("backend", ZONED)
def test_times_with_a_zone_are_not_mixed_with_times_without(backend):
    zoned, plain = ZONED[backend]("Asia/Tokyo"), ZONED[backend](None)
    models = CTEM(**QUICK).fit(zoned), CTEM(**QUICK).fit(plain)
    with pytest.raises(ValueError, match="column 't' holds times in Asia/Tokyo; got times without a zone"):
        models[0].score_samples(plain)
    with pytest.raises(ValueError, match="column 't' holds times without a zone; got times in Asia/Tokyo"):
        models[1].score_samples(zoned)
    elsewhere = ZONED[backend]("UTC")
    assert models[0].score_samples(elsewhere).shape == (N,)


def test_a_moment_that_is_given_has_a_zone_where_its_column_has_one():
    model = CTEM(**QUICK).fit(ZONED["pandas"]("Asia/Tokyo"))
    noon = pd.Timestamp("2020-01-05 12:00", tz="Asia/Tokyo")
    for same in (noon, noon.tz_convert("UTC"), noon.to_pydatetime(), noon.isoformat()):
        assert model.sample(given={"t": same})["t"][0] == noon
    drawn = model.sample(20, given={"t": (noon, noon + pd.Timedelta(hours=5))})["t"]
    assert drawn.between(noon, noon + pd.Timedelta(hours=5)).all()
    naive = [noon.tz_localize(None), dt.date(2020, 1, 5), np.datetime64("2020-01-05"), "2020-01-05T12:00"]
    for wrong in [*naive, (naive[0], None), [naive[0]]]:
        with pytest.raises(
            ValueError, match=r"column 't' holds times in Asia/Tokyo; got 2020.* without one. Give them with"
        ):
            model.sample(given={"t": wrong})
    plain = CTEM(**QUICK).fit(ZONED["pandas"](None))
    with pytest.raises(ValueError, match=r"column 't' holds times without a zone; got 2020.* with a zone"):
        plain.sample(given={"t": noon})


def test_numbers_of_numpy_are_settings_like_others(tmp_path):
    settings = {name: np.uint8(value) for name, value in QUICK.items() if value is not None}
    settings |= {"learning_rate": np.float32(0.01), "weight_decay": np.float64(0.1)}
    X = rng().normal(size=(N, 2))
    model = CTEM(**settings).fit(X)
    model.save(tmp_path / "m.ctem")
    again = CTEM.load(tmp_path / "m.ctem")
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    assert type(again.width) is int


@pytest.mark.parametrize("huge", [1e20, 1e300, -1e300])
def test_one_huge_cell_does_not_hide_the_others(huge):
    X = rng().normal(size=(N, 1))
    X[7] = huge
    model = CTEM(**QUICK).fit(X)
    quartiles = np.quantile(model.sample(400, random_state=0), [0.25, 0.75])
    assert np.abs(quartiles - np.quantile(X, [0.25, 0.75])).max() < 0.5
    assert np.isfinite(model.score_samples(X)).all()


def test_what_float64_cannot_hold_together_is_refused():
    X = 1e-9 * rng().normal(size=(N, 1))
    X[7] = 1e300
    with pytest.raises(
        ValueError, match=r"column 'x0': values from .*, most of them within .*, span more than float64"
    ):
        CTEM(**QUICK).fit(X)


def test_declared_categories_that_never_occur_are_hardly_ever_drawn():
    labels = [*"abc", *(f"never {i}" for i in range(197))]
    X = pd.DataFrame({"c": pd.Categorical(rng().choice(list("abc"), N), labels), "x": rng().normal(size=N)})
    drawn = CTEM(**QUICK).fit(X).sample(2000, random_state=0)["c"]
    assert drawn.str.startswith("never").mean() < 0.02


def test_numbers_that_name_columns_are_names_in_every_question_and_positions_elsewhere():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({2: rng.normal(size=120), 0: rng.choice(["a", "b"], 120), 7: rng.normal(9, 1, 120)})
    model, other = CTEM(**TINY).fit(X), CTEM(**TINY).fit(X.set_axis(["r", "s", "t"], axis=1))
    assert model.classes(0) == other.classes(1) == other.classes("s") == ["a", "b"]
    assert model.predict(X[:3], 7) == pytest.approx(other.predict(X[:3].set_axis(["r", "s", "t"], axis=1), 2))
    assert set(model.sample(5, given={0: "b"}, random_state=0)[0]) == {"b"}
    for given in ({0: "a"}, {np.int64(0): "a"}, {"0": "a"}):
        found = model.probability({7: (8, None)}, given, random_state=0)
        assert found == other.probability({2: (8, None)}, {1: "a"}, random_state=0)
    assert np.array_equal(model.log_density(X, [2]), model.log_density(X, ["2"]))
    with pytest.raises(ValueError, match="expected names or positions of"):
        model.classes(1)


@pytest.mark.parametrize("fine", [60, 1], ids=["minutes", "seconds"])
def test_times_of_day_come_back_as_such_in_every_library(fine):
    rng = np.random.default_rng(0)
    seconds = (rng.integers(8 * 3600, 20 * 3600, 120) // fine * fine).tolist()
    times = [dt.time(s // 3600, s // 60 % 60, s % 60) if s % 7 else None for s in seconds]
    a, drawn = rng.normal(size=120), []
    for X in (
        pd.DataFrame({"t": pd.Series(times, dtype=object), "a": a}),
        pd.DataFrame({"t": pd.Series(times, dtype=pd.ArrowDtype(pa.time64("us"))), "a": a}),
        pl.DataFrame({"t": times, "a": a}),
        pa.table({"t": pa.array(times, pa.time32("s")), "a": a}),
        pa.table({"t": pa.array(times, pa.time64("ns")), "a": a}),
    ):
        model = CTEM(**TINY).fit(X)
        rows, filled = model.sample(20, random_state=0), model.impute(X, random_state=0)
        drawn.append(pl.DataFrame(rows)["t"].to_list())
        assert type(rows) is type(X)
        imputed = pl.DataFrame(filled)["t"].to_list()
        assert all(got == was for got, was in zip(imputed, times, strict=True) if was is not None)
        assert all(isinstance(each, dt.time) for each in imputed)
    assert all(each == drawn[0] for each in drawn)
    assert all(dt.time(7) <= each <= dt.time(21) for each in drawn[0])


def test_an_interval_of_a_categorical_is_a_condition():
    a = np.random.default_rng(0).normal(size=120)
    X = pd.DataFrame({"a": a, "bin": pd.cut(a, 3)})
    model, one = CTEM(**TINY).fit(X), X["bin"].iloc[0]
    assert set(model.sample(4, given={"bin": one}, random_state=0)["bin"]) == {one}
    every = [model.probability({"bin": [each]}, random_state=0) for each in X["bin"].cat.categories]
    error = np.hypot.reduce([each.stderr for each in every])
    assert abs(sum(each.value for each in every) - 1) < 4 * error
    assert model.probability({"bin": one}, random_state=0) == model.probability(
        {"bin": [str(one)]}, random_state=0
    )
