"""Random tables of every kind and backend: inspected, fitted, scored, sampled, imputed, saved and loaded.

Numbers over six hundred orders of magnitude, codes for missing, marks of gaps, money, dates in several notations, keys;
and values at score time that fit never saw. Nothing may fail but with an error that names the table, its column or the
argument; no answer is nan; a loaded model answers with the same bits.
"""

import datetime as dt
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from ctem import CTEM, inspect
from ctem.densities.anyorder import fitting

TINY = {
    "max_steps": 2,
    "width": 4,
    "blocks": 1,
    "members": 1,
    "orders": 1,
    "batch_size": 8,
    "random_state": 0,
}
LARGEST = float(np.finfo(float).max)
ADVICE = "fitted on|log Z rests on|.*left out of the density|.* holds (dates|numbers), but also|.* is read by month"
DOCUMENTED = ("X: ", "column ", "columns: ")

TEXT = st.sampled_from(
    [
        "",
        " ",
        "nan",
        "None",
        "NA",
        "null",
        "\x00",
        "a\x00b",
        "a",
        "b",
        "Ωß漢字🦊",
        "\u202e",
        "x" * 5000,
        "'; DROP",
        "{}",
        "1",
    ]
)
NUMBERS = st.one_of(
    st.floats(-1e3, 1e3),
    st.floats(-1e300, 1e300),
    st.sampled_from([0.0, -0.0, 1e300, -1e300, 5e-324, 1e-310, 0.1, 0.2, 1.0]),
)
WHOLE = st.one_of(
    st.integers(0, 3), st.integers(-100, 100), st.sampled_from([2**53 + 1, 2**63 - 1, -(2**63), 0])
)
VAST = st.tuples(st.floats(1, 9.99), st.integers(-300, 300), st.sampled_from([1, 1, 1, -1])).map(
    lambda parts: parts[2] * float(f"{parts[0]}e{parts[1]}")
)
CODED = st.one_of(st.integers(0, 90), st.integers(0, 90), st.sampled_from([999, -1, -99, 99_999]))
MARKED = st.one_of(st.integers(0, 500).map(str), st.sampled_from(["?", "NA", "-", "", ".", "null", "n/a"]))
MONEY = st.floats(-1e6, 1e6).map(lambda value: f"{'-' * (value < 0)}${abs(value):,.2f}")
SHARES = st.integers(0, 1000).map(lambda value: f"{value / 10} %".replace(".", ","))
WRITTEN = st.tuples(
    st.dates(dt.date(1850, 1, 1), dt.date(2150, 1, 1)),
    st.sampled_from(["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d %b %Y", "2023-02-30", "soon"]),
).map(lambda pair: pair[0].strftime(pair[1]))
CLOCK = st.tuples(st.integers(0, 30), st.integers(0, 59)).map(lambda pair: f"{pair[0]:02d}:{pair[1]:02d}")
KEYS = st.integers(0, 2**40).map(lambda value: f"k{value:011x}")
DAYS = st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))
MOMENTS = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))
VALUES = {
    "text": TEXT,
    "float": NUMBERS,
    "tidy": st.integers(0, 40).map(lambda k: k / 20),
    "atom": st.one_of(st.just(0.0), st.floats(0.5, 2.0)),
    "int": WHOLE,
    "bool": st.booleans(),
    "day": DAYS,
    "moment": MOMENTS,
    "vast": VAST,
    "coded": CODED,
    "marked": MARKED,
    "money": MONEY,
    "share": SHARES,
    "written": WRITTEN,
    "clock": CLOCK,
    "key": KEYS,
}
FLOATS, WHOLES = ("float", "tidy", "atom", "vast"), ("int", "coded")
WORDS = ("text", "marked", "money", "share", "written", "clock", "key")
NEW = {  # what fit never saw, by kind
    **dict.fromkeys(WORDS, ("never seen", "-1e9", "31.12.2999", "£")),
    **dict.fromkeys(FLOATS, (1e250, -3.0, 1e-300)),
    **dict.fromkeys(WHOLES, (77_777, -5, 2**62)),
    "bool": (True, False),
    "day": (dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    "moment": (dt.datetime(1800, 1, 1), dt.datetime(2190, 1, 1)),
}


@st.composite
def columns(draw):
    """A few columns of one length: kind and cells, None where missing."""
    n = draw(st.integers(2, 24))
    made = {}
    for j in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(sorted(VALUES)))
        values = VALUES[kind]
        if draw(st.booleans()):
            values = st.sampled_from(draw(st.lists(values, min_size=1, max_size=4)))
        cells = draw(st.lists(values, min_size=n, max_size=n))
        gaps = draw(st.sampled_from([0.0, 0.0, 0.0, 0.2, 0.2, 1.0]))
        rng = np.random.default_rng(draw(st.integers(0, 2**16)))
        name = draw(st.sampled_from([f"c{j}", f"c {j}: atom", f"ü{j}", f"[b]{j}"]))
        made[name] = (kind, [None if rng.random() < gaps else cell for cell in cells])
    return made


def as_numpy(made):
    kinds = {kind for kind, _ in made.values()}
    cells = [values for _, values in made.values()]
    if kinds <= set(FLOATS):
        return np.array([[np.nan if v is None else v for v in column] for column in cells]).T
    out = np.empty((len(cells[0]), len(cells)), object)
    for j, column in enumerate(cells):
        out[:, j] = column
    return out


def as_pandas(made):
    frame = {}
    for name, (kind, cells) in made.items():
        dtype = {"int": "Int64", "coded": "Int64", "bool": "boolean", "moment": "datetime64[us]"}.get(kind)
        frame[name] = pd.Series(cells, dtype=dtype)
        if kind in FLOATS:
            frame[name] = frame[name].astype(float)
    return pd.DataFrame(frame)


def as_categories(made):
    frame = as_pandas(made)
    return frame.assign(
        **{name: frame[name].astype("category") for name, (kind, _) in made.items() if kind in WORDS}
    )


def as_polars(made):
    types = {
        **dict.fromkeys(WORDS, pl.String),
        **dict.fromkeys(WHOLES, pl.Int64),
        "bool": pl.Boolean,
        "day": pl.Date,
        "moment": pl.Datetime("us"),
    }
    return pl.DataFrame(
        [pl.Series(name, cells, types.get(kind, pl.Float64)) for name, (kind, cells) in made.items()]
    )


def as_arrow(made):
    return as_polars(made).to_arrow()


@pytest.fixture(scope="module", autouse=True)
def _few_rows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "STEADY", 16)
        patch.setattr(fitting, "COPIES", 100)
        yield


BACKENDS = {f.__name__: f for f in (as_numpy, as_pandas, as_categories, as_polars, as_arrow)}


def rows(X, n):
    return X.slice(0, n) if isinstance(X, pl.DataFrame | pa.Table) else X[:n]


def with_new_values(made, rng):
    """Three rows of the same columns that hold values which fit, most likely, never saw."""
    return {
        name: (kind, [NEW[kind][i] for i in rng.integers(len(NEW[kind]), size=3)])
        for name, (kind, _) in made.items()
    }


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and pd.DataFrame(a).equals(pd.DataFrame(b))
    return a.equals(b)


def fitted_or_refused(X, missing):
    try:
        return CTEM(**TINY, missing=missing).fit(X), ""
    except (ValueError, TypeError) as error:
        return None, str(error)


def assert_documented(answer):
    """An answer that is true, or a refusal with a reason."""
    try:
        found = answer()
    except (ValueError, TypeError) as error:
        assert str(error).startswith(DOCUMENTED), error  # noqa: PT017
    else:
        assert found is not None
        assert not isinstance(found, np.bool_) or found


TRIED = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
MADE_UP = columns(), st.sampled_from(sorted(BACKENDS)), st.sampled_from(["hidden", "state"])


@pytest.mark.long
@settings(max_examples=600, **TRIED)
@given(*MADE_UP)
def test_any_table_is_fitted_or_refused_with_a_reason(made, backend, missing):
    assert_answered(made, backend, missing)


@settings(max_examples=20, **TRIED)
@given(*MADE_UP)
def test_some_tables_are_fitted_or_refused_with_a_reason(made, backend, missing):
    assert_answered(made, backend, missing)


def assert_answered(made, backend, missing):
    X = BACKENDS[backend](made)
    assert_documented(lambda: inspect(X).as_frame())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ADVICE, UserWarning)
        model, refusal = fitted_or_refused(X, missing)
    if model is None:
        assert refusal.startswith(DOCUMENTED)
        event("refused: " + refusal.split(";")[0].split(" holds")[0][-60:])
        return
    event("fitted")
    few = rows(X, 6)
    scores = model.score_samples(few)
    assert np.isfinite(scores).all()
    assert np.array_equal(model.log_density(few), scores)
    strange = BACKENDS[backend](with_new_values(made, np.random.default_rng(len(made))))
    assert_documented(lambda: np.isfinite(model.score_samples(strange)).all())
    drawn = model.sample(4, random_state=1)
    assert type(model.sample(4, random_state=1, with_missing=True)) is type(X)
    assert type(drawn) is type(X)
    assert np.isfinite(model.score_samples(drawn)).all()
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.ctem")
        again = CTEM.load(Path(folder) / "model.ctem")
    assert np.array_equal(again.score_samples(few), scores)
    assert same(again.sample(4, random_state=1), drawn)
    if missing == "hidden":
        filled = model.impute(few, random_state=1)
        assert type(filled) is type(X)
        assert same(again.impute(few, random_state=1), filled)


@pytest.mark.parametrize("column", [[0.0, 0.0, LARGEST, -1e300], [0.0, 1.0, LARGEST, LARGEST]])
def test_a_column_that_spans_all_of_float64_is_refused_with_a_reason(column):
    _, refusal = fitted_or_refused(np.array(column)[:, None], "hidden")
    assert refusal.startswith(DOCUMENTED)
