"""Moments that follow a daily or weekly rhythm: the density, the samples and the answers know the hours."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from small import EXACT

from ctem import CTEM, inspect
from ctem.tables.encoding.codecs import codec_from_json
from ctem.tables.inference.numbers import _spread
from ctem.tables.io.frame import read_frame
from ctem.tables.margins.monotone import MonotoneMap
from ctem.tables.margins.preferred import PreferredValues, without_cells
from ctem.tables.margins.ranges import fit_ranges
from ctem.tables.margins.rhythms import DAY, WEEK, Rhythm
from ctem.tables.schema import Schema

ROWS, DRAWN = 2000, 4000
ALLOWED = 0.02  # total variation beyond what chance explains: hours are learned in blocks
FIRST = pd.Timestamp("2023-01-02")  # a Monday


def moments(days, hours, unit="min"):
    """Days since the first and hours of the day, rounded to a unit."""
    exact = pd.to_timedelta(np.asarray(days) * 24.0 + np.asarray(hours), unit="h")
    return pd.Series(FIRST + exact.floor(unit))


def by_day(rng, n=ROWS, unit="min"):
    return moments(rng.integers(0, 365, n), 8 + 10 * rng.beta(2, 2, n), unit)


def by_week(rng, n=ROWS):
    return moments(7 * rng.integers(0, 52, n) + rng.integers(0, 5, n), 8 + 10 * rng.beta(2, 2, n))


def evenly(rng, n=ROWS):
    return moments(rng.integers(0, 365, n), rng.uniform(0, 24, n))


def at_midnight(rng, n=ROWS):
    return moments(rng.integers(0, 365, n), np.zeros(n))


def in_two_days(rng, n=ROWS):
    return moments(rng.integers(0, 2, n), 8 + 10 * rng.beta(2, 2, n))


def on_one_day(rng, n=ROWS):
    """A burst between 10 and 11 h of one day among rows at any time."""
    burst = rng.random(n) < 0.5
    return moments(
        np.where(burst, 100, rng.integers(0, 365, n)),
        np.where(burst, 10 + rng.random(n), rng.uniform(0, 24, n)),
    )


def table(at, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"ordered_at": at, "amount": rng.lognormal(3, 1, len(at))})


def codec_of(at):
    return Schema.fit(read_frame(pd.DataFrame({"at": at}))).columns["at"].codec


def rhythm_of(at):
    found = codec_of(at).transform.smooth
    return found if isinstance(found, Rhythm) else None


@pytest.fixture(scope="module")
def fitted():
    X = table(by_day(np.random.default_rng(0)))
    return X, CTEM(**EXACT).fit(X)


def hourly(at):
    return np.bincount(at.dt.hour, minlength=24) / len(at)


def test_drawn_times_of_day_follow_those_of_the_table(fitted):
    X, model = fitted
    real, drawn = hourly(X["ordered_at"]), hourly(model.sample(DRAWN, random_state=1)["ordered_at"])
    chance = np.sqrt(real * (1 - real) * (1 / ROWS + 1 / DRAWN)).sum() / 2
    assert np.abs(real - drawn).sum() / 2 < 2 * chance + ALLOWED
    assert drawn[:7].sum() + drawn[19:].sum() < 0.005


def test_drawn_weekdays_follow_those_of_the_table():
    X = table(by_week(np.random.default_rng(0)))
    drawn = CTEM(**EXACT).fit(X).sample(DRAWN, random_state=1)["ordered_at"]
    share = np.bincount(drawn.dt.day_of_week, minlength=7) / DRAWN
    assert share[5:].sum() < 0.005
    error = math.sqrt(0.2 * 0.8 * (1 / ROWS + 1 / DRAWN))
    assert np.abs(share[:5] - 0.2).max() < 3 * error + ALLOWED


def test_drawn_dates_follow_the_weekdays_of_the_table():
    rng = np.random.default_rng(0)
    X = table(pd.Series(rng.choice(pd.bdate_range("2021-01-01", "2022-12-31"), ROWS)))
    model = CTEM(**EXACT).fit(X)
    assert "on 5 of 7 days" in model.schema_.columns["ordered_at"].reason
    drawn = model.sample(DRAWN, random_state=1)["ordered_at"]
    assert (drawn == drawn.dt.normalize()).all()
    assert np.mean(drawn.dt.day_of_week >= 5) < 0.005
    strange = X.head(3).assign(ordered_at=pd.to_datetime(["2021-05-05", "2021-05-08", "2021-05-06"]))
    assert model.score_samples(strange).argmin() == 1  # a Saturday


def test_dates_of_all_weekdays_have_no_rhythm():
    every = pd.date_range("2021-01-01", "2022-12-31").to_series()
    assert rhythm_of(every.sample(ROWS, replace=True, random_state=0).reset_index(drop=True)) is None


def test_the_density_of_moments_with_a_rhythm_integrates_to_one(fitted):
    _, model = fitted
    every = pd.date_range("2021-01-01", "2026-01-01", freq="7min")
    grid = pd.DataFrame({"ordered_at": every, "amount": 1.0})
    log_density = model.log_density(grid, columns=["ordered_at"])
    assert np.exp(log_density).sum() * 7 / 1440 == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize(
    "step",
    ["7h", "100min", "36h", *(pytest.param(step, marks=pytest.mark.long) for step in ("10h", "45min"))],
)
def test_regular_moments_have_a_density_whether_or_not_their_step_divides_a_day(step):
    every = pd.Series(pd.date_range("2020-01-01", periods=ROWS, freq=step))
    X = table(every.sample(frac=1, random_state=0, ignore_index=True))
    model, each = CTEM(**EXACT).fit(X), pd.Timedelta(step)
    grid = pd.date_range(every.min() - ROWS * each, every.max() + ROWS * each, freq=step)
    log_density = model.log_density(pd.DataFrame({"ordered_at": grid, "amount": 1.0}), columns=["ordered_at"])
    assert np.exp(log_density).sum() * (each / pd.Timedelta("1D")) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    "zone", [pytest.param("Asia/Tokyo", marks=pytest.mark.long), "America/New_York", "UTC+02:00"]
)
def test_moments_are_told_in_the_zone_of_the_table(zone):
    rng = np.random.default_rng(0)
    minutes = 1440 * rng.integers(0, 300, ROWS) + rng.integers(480, 1080, ROWS)
    X = table(
        (pd.Timestamp("2021-01-01") + pd.Series(pd.to_timedelta(minutes, unit="min"))).dt.tz_localize(zone)
    )
    model = CTEM(**EXACT).fit(X)
    Y = X[:3].assign(ordered_at=pd.Timestamp("2021-06-15 03:00", tz=zone))
    assert "ordered_at 2021-06-15 03:00" in model.outliers(Y, 1)[0].why()
    known = model.conditional(X[:3], "ordered_at")
    for told in (*known.quantile(0.5).tolist(), *model.predict(X[:3], "ordered_at"), known.values[0]):
        assert told.utcoffset() == pd.Timestamp(told).tz_convert(X["ordered_at"].dt.tz).utcoffset()


def test_an_hour_is_as_probable_as_its_density_says(fitted):
    _, model = fitted
    minutes = pd.date_range("2023-06-01 12:00", "2023-06-01 12:59", freq="min")
    log_density = model.log_density(
        pd.DataFrame({"ordered_at": minutes, "amount": 1.0}), columns=["ordered_at"]
    )
    found = model.probability({"ordered_at": (minutes[0], minutes[-1])})
    expected = np.exp(log_density).sum() / 1440
    assert abs(found.value - expected) < 4 * found.stderr + 0.01 * expected


def test_a_row_at_night_is_far_less_likely_than_one_by_day(fitted):
    _, model = fitted
    same = pd.DataFrame(
        {"ordered_at": pd.to_datetime(["2023-06-01 03:00", "2023-06-01 10:00"]), "amount": 20.0}
    )
    night, day = model.score_samples(same)
    assert night < day - 5
    assert np.array_equal(model.score_samples(same), model.log_density(same))
    strange, usual = model.outlier_scores(same)
    assert strange > usual + 5


def test_the_reason_of_an_outlier_at_night_is_its_time_of_day(fitted):
    X, model = fitted
    odd = X.head(200).copy()
    odd.loc[7, "ordered_at"] = pd.Timestamp("2023-06-01 03:00")
    odd.loc[7, "amount"] = 20.0
    found = model.outliers(odd, n=200)
    night = next(each for each in found if each.row == 7)
    assert next(iter(night.columns)) == "ordered_at"
    assert night.why().startswith("ordered_at 2023-06-01 03:00, an unusual time of the day (p 0.00")
    by_day = [cell for each in found if each.row != 7 for cell in each.cells if cell.name == "ordered_at"]
    assert 0 < np.mean([cell.p_value < 0.1 for cell in by_day]) < 0.3


def test_a_drawn_column_that_is_asked_for_given_others_keeps_the_rhythm(fitted):
    X, model = fitted
    gappy = X.assign(ordered_at=X["ordered_at"].where(np.arange(ROWS) % 2 == 0))
    filled = model.impute(gappy, random_state=0)["ordered_at"][1::2]
    assert filled.dt.hour.between(7, 18).mean() > 0.99
    given = model.sample(500, given={"amount": (10.0, None)}, random_state=0)["ordered_at"]
    assert given.dt.hour.between(7, 18).mean() > 0.99


@pytest.mark.parametrize("made", [evenly, at_midnight, in_two_days, on_one_day])
def test_moments_without_a_rhythm_are_encoded_as_numbers_are(made):
    codec = codec_of(made(np.random.default_rng(0)))
    at = made(np.random.default_rng(0))
    cells = read_frame(pd.DataFrame({"at": at})).columns["at"]
    X = np.sort(codec.lattice.measure(cells))
    X = X[~np.isin(X, codec.atoms)]
    even = _spread(X, codec.lattice.width)
    smooth = MonotoneMap.fit(even)
    before = fit_ranges(smooth, PreferredValues.fit(smooth, X, codec.lattice.width), even)
    before = without_cells(before, np.array(codec.atoms), codec.lattice.width)
    assert codec.transform.to_json() == before.to_json()


def test_the_period_is_a_week_only_where_weekdays_differ():
    rng = np.random.default_rng(0)
    assert (rhythm_of(by_day(rng)).period, rhythm_of(by_week(rng)).period) == (DAY, WEEK)


def test_a_few_rows_have_no_rhythm():
    assert rhythm_of(by_day(np.random.default_rng(0), n=45)) is None


@pytest.mark.parametrize("unit", ["h", "30min", "min", "s", "ms", "us"])
def test_moments_of_every_resolution_have_a_rhythm_and_come_back(unit):
    at = by_day(np.random.default_rng(1), 600, unit)
    frame = read_frame(pd.DataFrame({"at": at}))
    schema = Schema.fit(frame)
    codec = schema.columns["at"].codec
    assert isinstance(codec.transform.smooth, Rhythm)
    x = schema.encode(frame, torch.float64).x
    back = schema.decode(x, torch.Generator().manual_seed(0))["at"]
    off = np.abs(back.values - frame.columns["at"].values).max() / codec.lattice.per
    assert off * 86_400 < 1e-4


def test_a_drawn_moment_lies_on_the_lattice_and_in_the_zone_of_the_table():
    at = by_day(np.random.default_rng(0)).dt.tz_localize("Asia/Tokyo")
    X = table(at)
    drawn = CTEM(**EXACT).fit(X).sample(500, random_state=0)["ordered_at"]
    assert drawn.dtype == X["ordered_at"].dtype
    assert (drawn.dt.second == 0).all()
    assert drawn.dt.hour.between(7, 18).mean() > 0.99


ZONES = ["Europe/Oslo", "America/New_York", "Australia/Lord_Howe", "Asia/Tokyo"]


@pytest.mark.parametrize("zone", ZONES)
def test_the_hours_of_a_rhythm_are_those_of_the_wall_clock_in_summer_and_winter(zone):
    at = by_day(np.random.default_rng(0)).dt.tz_localize(zone)
    codec = codec_of(at)
    rhythm = codec.transform.smooth
    wall = pd.Series(pd.date_range("2023-01-05", "2023-12-20", freq="10min", tz=zone))
    X = codec.lattice.measure(read_frame(pd.DataFrame({"at": wall})).columns["at"])
    rate = rhythm.wound(torch.from_numpy(X))[1].exp().numpy()
    night = (wall.dt.hour < 8) | (wall.dt.hour >= 18)
    assert rate[night].max() < 0.05 < 0.5 < rate[wall.dt.hour.between(11, 14)].min()
    for month in (1, 7):
        assert rate[wall.dt.month == month].mean() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("made", [by_day, pytest.param(by_week, marks=pytest.mark.long)])
def test_the_map_of_a_wall_clock_increases_is_inverted_and_loses_no_mass_where_clocks_are_set(zone, made):
    at = made(np.random.default_rng(0)).dt.tz_localize(zone)
    codec = codec_of(at)
    rhythm, (low, high) = codec.transform.smooth, codec.seen
    assert isinstance(rhythm, Rhythm)
    X = torch.linspace(low - 400, high + 400, 200_001, dtype=torch.float64)
    W, log_rate = rhythm.wound(X)
    assert bool((W.diff() > 0).all())
    steps = (X[1] - X[0]) * (log_rate.exp()[1:] + log_rate.exp()[:-1]) / 2
    assert float((W.diff() - steps).abs().sum()) < 0.02 * float(W[-1] - W[0])
    assert torch.allclose(rhythm.inverse(rhythm(X)), X, rtol=0, atol=1e-6)
    again = codec_from_json(codec.to_json())
    assert torch.equal(again.transform(X), codec.transform(X))


def test_cells_of_hours_that_a_set_clock_would_cut_have_one_offset():
    at = (
        pd.date_range("2023-01-01", periods=1500, freq="6h", tz="UTC").to_series().sample(700, random_state=0)
    )
    wall = at[at.dt.day_of_week < 5].dt.tz_convert("Europe/Oslo").reset_index(drop=True)
    found = rhythm_of(wall)
    assert (found.turns, found.offsets) == ((), (1 / 24,))


def test_drawn_hours_are_those_of_the_wall_clock_of_the_column():
    at = by_day(np.random.default_rng(0)).dt.tz_localize("America/New_York")
    drawn = CTEM(**EXACT).fit(table(at)).sample(DRAWN, random_state=1)["ordered_at"]
    for summer in (False, True):
        some = drawn[drawn.dt.month.between(4, 10) == summer]
        assert some.dt.hour.between(8, 17).mean() > 0.98


def test_a_map_with_a_rhythm_increases_and_its_slope_is_its_derivative():
    codec = codec_of(by_week(np.random.default_rng(0)))
    low, high = codec.seen
    X = torch.linspace(low, high, 5001, dtype=torch.float64) + 1e-4
    x, log_slope = codec.transform.with_log_slope(X)
    assert bool((x.diff() > 0).all())
    assert torch.allclose(codec.transform.inverse(x), X, rtol=0, atol=1e-6)
    step = 1e-6
    slope = (codec.transform(X + step) - codec.transform(X - step)) / (2 * step)
    assert (
        float(((slope.log() - log_slope).abs() < 1e-2).double().mean()) > 0.99
    )  # but where the rate changes


def test_a_saved_model_with_a_rhythm_gives_the_same_scores(fitted, tmp_path):
    X, model = fitted
    again = CTEM.load(model.save(tmp_path / "model.ctem") or tmp_path / "model.ctem")
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    assert np.array_equal(again.log_density_grad(X), model.log_density_grad(X), equal_nan=True)
    pd.testing.assert_frame_equal(again.sample(20, random_state=1), model.sample(20, random_state=1))


@pytest.fixture(scope="module")
def whole():
    """A codec of moments with a rhythm, as a file has it."""
    return codec_of(by_day(np.random.default_rng(0))).to_json()


@pytest.mark.parametrize(
    "wrong",
    [
        {"period": 2.0},
        {"start": math.inf},
        {"edges": [0.0, 1.0]},
        {"below": [0.0, 0.9]},
        {"below": [], "edges": []},
        {"turns": []},
        {"turns": [math.nan]},
        {"turns": [90.0, 90.5], "offsets": [0.0, 0.04, 0.0]},
        {"offsets": [0.0, 1.5]},
    ],
)
def test_a_rhythm_that_no_fit_can_have_written_is_refused(wrong, whole):
    curve = MonotoneMap(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
    made = Rhythm(curve, DAY, 0.0, (0.0, 0.5, 1.0), (0.0, 0.1, 1.0), (90.0,), (0.0, 0.04)).to_json()
    assert codec_from_json({**whole, "transform": made}).transform.period == DAY
    with pytest.raises(ValueError, match=r"rhythm: expected (a period of 1 or 7 days|turns of a wall clock)"):
        codec_from_json({**whole, "transform": {**made, **wrong}})


def test_inspect_says_that_the_time_of_day_has_a_rhythm():
    rng = np.random.default_rng(0)
    assert "the time of day follows a daily rhythm: nine in ten rows within 7 of 24 hours" in str(
        inspect(table(by_day(rng)))
    )
    assert "weekday and time of day follow a weekly rhythm" in str(inspect(table(by_week(rng))))
