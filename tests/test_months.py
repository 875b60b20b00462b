"""Dates that are all the first day of a month, or all the last, stay so, and have the mass of their month."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ctem import CTEM, inspect

DAYS = {"MS": "is_month_start", "ME": "is_month_end", "QS": "is_quarter_start", "YS": "is_year_start"}


def series(freq: str, text: bool) -> pd.DataFrame:
    days = pd.date_range("1980-01-01", periods=120, freq=freq)
    trend = np.arange(120) / 10 + np.random.default_rng(0).normal(size=120)
    return pd.DataFrame({"date": days.strftime("%Y-%m-%d") if text else days, "y": trend})


def written(days: pd.DatetimeIndex, text: bool) -> pd.DataFrame:
    return pd.DataFrame({"date": days.strftime("%Y-%m-%d") if text else days, "y": np.nan})


@pytest.mark.parametrize(
    ("freq", "text"), [("MS", True), ("MS", False), ("ME", True), ("QS", False), ("YS", False)]
)
def test_drawn_dates_are_such_days_and_have_all_the_mass(freq, text, tmp_path):
    table = series(freq, text)
    model = CTEM(max_steps=100, random_state=0).fit(table)
    drawn = pd.to_datetime(model.sample(500, random_state=0)["date"])
    assert getattr(drawn.dt, DAYS[freq]).all()
    known = pd.to_datetime(table["date"])
    around = pd.Timedelta(days=(known.iloc[-1] - known.iloc[0]).days)
    every = pd.date_range(known.iloc[0] - around, known.iloc[-1] + around, freq="D")
    density = np.exp(model.log_density(written(every, text)))
    assert density.sum() == pytest.approx(1.0, abs=0.01)
    assert density[getattr(every, DAYS[freq])].sum() > 0.999 * density.sum()
    model.save(tmp_path / "model.ctem")
    assert np.array_equal(CTEM.load(tmp_path / "model.ctem").score_samples(table), model.score_samples(table))


def test_inspection_says_which_days_they_are():
    assert "all of them the first of a month" in str(inspect(series("MS", text=True)))
    assert "all of them the last of a month, every 3 months" in str(inspect(series("QE", text=False)))
    assert "of a month" not in str(inspect(series("D", text=True)))


def test_one_other_day_among_them_makes_them_dates_like_any_other():
    table = series("MS", text=False)
    table.loc[60, "date"] += pd.Timedelta(days=3)
    assert "of a month" not in str(inspect(table))
