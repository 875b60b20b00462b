"""Eighty kinds of input that look usual and are not: each gives a right answer or a clear error, none is silent."""

import datetime as dt
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from small import TINY

from ctem import CTEM

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:.*left out of the density")]

N = 120
MESSAGE = (
    r"^(X|columns?|kinds|given|event|n_samples|n_draws|n|method|sample_weight|Input|max_time|width|missing"
)
MESSAGE += r"|members|orders|learning_rate|weight_decay|effort|unknown|checkpoint|batch_size|max_steps"
MESSAGE += r"|table\.parquet)\b"


def numbers(columns=2):
    return np.random.default_rng(0).normal(size=(N, columns))


def frame(**columns):
    return pd.DataFrame({"x": numbers(1)[:, 0], **columns})


def choice(*values):
    return np.random.default_rng(1).choice(np.array(values, object), N)


def masked(values, under):
    mask = np.random.default_rng(2).random(values.shape) < 0.3
    return np.ma.array(np.where(mask, under, values), mask=mask)


DAYS = pd.date_range("2020-01-01", periods=N, freq="D")
FITTED = {  # tables that are fitted, and answer for their own rows
    "a masked array": lambda: masked(numbers(), -999.0),
    "masked whole numbers": lambda: masked(np.arange(2 * N).reshape(N, 2), -999),
    "a subclass of arrays": lambda: numbers().view(np.recarray),
    "a tensor": lambda: torch.from_numpy(numbers()),
    "a list of lists": lambda: numbers().tolist(),
    "a read-only array": lambda: frozen(numbers()),
    "an array with strides": lambda: numbers(4)[:, ::2],
    "an array in reverse": lambda: numbers()[::-1],
    "columns in Fortran's order": lambda: np.asfortranarray(numbers()),
    "big-endian numbers": lambda: numbers().astype(">f8"),
    "float16": lambda: numbers().astype(np.float16),
    "long doubles": lambda: numbers().astype(np.longdouble),
    "uint64 beyond int64": lambda: np.arange(2 * N, dtype=np.uint64).reshape(N, 2) + np.uint64(2**63),
    "int64 at its ends": lambda: frame(k=np.linspace(-(2.0**62), 2.0**62, N).astype(np.int64)),
    "one cell of 1e300": lambda: with_cell(numbers(), 1e300),
    "one cell of -1e300": lambda: with_cell(numbers(), -1e300),
    "subnormal numbers": lambda: 5e-324 * np.arange(2 * N).reshape(N, 2),
    "minus zero": lambda: np.where(numbers() > 0, 0.0, -0.0) + (np.arange(N) % 3)[:, None],
    "nearly all missing": lambda: np.where(np.random.default_rng(3).random((N, 2)) < 0.9, np.nan, numbers()),
    "a column always missing": lambda: frame(y=np.full(N, np.nan)),
    "a constant column": lambda: frame(y=7),
    "a column twice under two names": lambda: frame(y=numbers(1)[:, 0]),
    "nullable integers": lambda: frame(y=pd.array(choice(1, 2, None), dtype="Int64")),
    "nullable booleans": lambda: frame(y=pd.array(choice(True, False, None), dtype="boolean")),
    "text with None": lambda: frame(y=choice("a", "b", None)),
    "text with nan": lambda: frame(y=choice("a", "b", np.nan)),
    "text that says NA": lambda: frame(y=choice("NA", "nan", "null")),
    "empty text": lambda: frame(y=choice("", " ", "a")),
    "text with NUL": lambda: frame(y=choice("a\0b", "a", "\0")),
    "text of 10 000 letters": lambda: frame(y=choice("a" * 10_000, "a" * 9_999)),
    "letters of one look": lambda: frame(y=choice("e\u0301", "\u00e9")),
    "ordered categories": lambda: frame(y=pd.Categorical(choice(*"abc"), list("cab"), ordered=True)),
    "200 categories of which 3 occur": lambda: frame(
        y=pd.Categorical(choice("0", "1", "2"), list(map(str, range(200))))
    ),
    "categories of numbers": lambda: frame(y=pd.Categorical(choice(3, 1, 2))),
    "intervals": lambda: frame(y=pd.cut(numbers(1)[:, 0], 4)),
    "times in a zone": lambda: frame(t=DAYS.tz_localize("Asia/Tokyo")),
    "times at the end of time": lambda: frame(t=np.linspace(-9e18, 9e18, N).astype("M8[ns]")),
    "durations": lambda: frame(t=DAYS - DAYS[0]),
    "dates of Python": lambda: frame(t=[dt.date(1, 1, 1) + dt.timedelta(days=30_000 * i) for i in range(N)]),
    "decimals": lambda: frame(d=[Decimal(i) / 7 for i in range(N)]),
    "fractions of Python": lambda: frame(d=[Fraction(i, 7) for i in range(N)]),
    "whole numbers of Python as objects": lambda: frame(d=pd.Series(range(N), dtype=object)),
    "an index that is no range": lambda: frame().set_axis([f"r{i % 7}" for i in range(N)]),
    "columns named by numbers": lambda: pd.DataFrame(numbers()),
    "polars categories": lambda: pl.from_pandas(frame(y=choice(*"ab"))).cast({"y": pl.Categorical}),
    "polars enums": lambda: pl.from_pandas(frame(y=choice(*"ab"))).cast({"y": pl.Enum(list("abc"))}),
    "arrow chunks": lambda: pa.concat_tables([pa.Table.from_pandas(frame())] * 3),
    "arrow dictionaries": lambda: pa.table(
        {"y": pa.array(choice(*"ab").tolist()).dictionary_encode(), "x": range(N)}
    ),
    "arrow decimal256": lambda: pa.table(
        {"d": pa.array([Decimal(i) for i in range(N)], pa.decimal256(50, 3))}
    ),
    "two rows": lambda: np.array([[0.0, 1.0], [1.0, 0.0]]),
}
REFUSED = {  # what is asked, of a model of x (numbers), k (whole numbers) and t (times in Tokyo)
    "no rows": lambda m: CTEM(**TINY).fit(np.empty((0, 2))),
    "no columns": lambda m: CTEM(**TINY).fit(np.empty((5, 0))),
    "one row": lambda m: CTEM(**TINY).fit([[1.0, 2.0]]),
    "all constant": lambda m: CTEM(**TINY).fit(np.ones((N, 2))),
    "infinity": lambda m: CTEM(**TINY).fit(with_cell(numbers(), np.inf)),
    "complex numbers": lambda m: CTEM(**TINY).fit(numbers() + 1j),
    "three axes": lambda m: CTEM(**TINY).fit(numbers().reshape(2, -1, 2)),
    "a series": lambda m: CTEM(**TINY).fit(frame().x),
    "a generator": lambda m: CTEM(**TINY).fit(iter(numbers())),
    "a dict": lambda m: CTEM(**TINY).fit({"a": [1, 2]}),
    "a path to nothing": lambda m: CTEM(**TINY).fit("table.parquet"),
    "structured rows": lambda m: CTEM(**TINY).fit(np.zeros(N, [("a", "f8")])),
    "bytes": lambda m: CTEM(**TINY).fit(np.array([[b"a"], [b"b"]] * N)),
    "lists in cells": lambda m: CTEM(**TINY).fit(frame(y=[[1]] * N)),
    "numbers beside text": lambda m: CTEM(**TINY).fit(frame(y=choice(1, "a"))),
    "names twice": lambda m: CTEM(**TINY).fit(pd.DataFrame(numbers(), columns=["a", "a"])),
    "names of two levels": lambda m: CTEM(**TINY).fit(pd.DataFrame(numbers(), columns=[("a", 1), ("b", 2)])),
    "periods": lambda m: CTEM(**TINY).fit(frame(y=pd.period_range("2020", periods=N))),
    "weights of nan": lambda m: CTEM(**TINY).fit(numbers(), sample_weight=np.full(N, np.nan)),
    "weights of another length": lambda m: CTEM(**TINY).fit(numbers(), sample_weight=[1.0]),
    "a time without end": lambda m: CTEM(**TINY, max_time=np.inf).fit(numbers()),
    "a width of half": lambda m: CTEM(**{**TINY, "width": 0.5}).fit(numbers()),
    "a kind of a column that is not there": lambda m: CTEM(**TINY, kinds={"q": "real"}).fit(frame()),
    "half of a whole number": lambda m: m.sample(given={"k": 2.5}),
    "a number that names a row": lambda m: m.sample(given={"id": 7}),
    "a time without its zone": lambda m: m.sample(given={"t": dt.datetime(2020, 1, 5)}),
    "a table of times without their zone": lambda m: m.score_samples(asked_frame().assign(t=DAYS)),
    "a column that nobody knows": lambda m: m.sample(given={"q": 1}),
    "infinity that is given": lambda m: m.sample(given={"x": np.inf}),
    "text for a number": lambda m: m.sample(given={"x": "abc"}),
    "rows without end": lambda m: m.sample(10**15),
    "half a row": lambda m: m.sample(0.5),
    "columns too few": lambda m: CTEM(**TINY).fit(numbers()).score_samples(numbers(1)),
    "a number too far for float64": lambda m: CTEM(**TINY).fit(with_cell(1e-9 * numbers(), 1e305)),
}


def frozen(values):
    values.setflags(write=False)
    return values


def with_cell(values, cell):
    values[5, 0] = cell
    return values


def asked_frame():
    return frame(k=np.arange(N) * 37 % 90, id=np.arange(N), t=DAYS.tz_localize("Asia/Tokyo"))


@pytest.fixture(scope="module")
def asked():
    return CTEM(**TINY).fit(asked_frame())


@pytest.mark.parametrize("name", FITTED)
def test_an_odd_table_is_fitted_and_answers_for_its_rows(name, tally):
    X = FITTED[name]()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fitted on", UserWarning)
        model = CTEM(**TINY).fit(X)
    scores = model.score_samples(X)
    assert len(scores) == len(X)
    assert np.isfinite(scores).all()
    drawn = model.sample(20, random_state=0)
    assert np.isfinite(model.score_samples(drawn)).all()
    if not isinstance(X, list):
        assert len(model.impute(X, random_state=0)) == len(X)
    tally("kinds of input", {"right": 1})


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_answer_is_refused_in_words(name, asked, tally):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=MESSAGE):
        REFUSED[name](asked)
    tally("kinds of input", {"a clear error": 1})


def test_there_are_eighty_kinds():
    assert len(FITTED) + len(REFUSED) >= 80
