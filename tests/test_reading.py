"""What people write: numbers, dates, times and gaps as text, read with a sentence and written back as they came."""

import datetime as dt
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from small import EXACT
from typer.testing import CliRunner

from ctem import CTEM
from ctem.cli import app
from ctem.tables.io.frame import build_frame, read_frame
from ctem.tables.io.recognition import Reading, read_written, recognised
from ctem.tables.io.writings import Writing
from ctem.tables.schema import Schema

N = 120
BRIEF = {**EXACT, "max_steps": 10, "width": 8}
RNG = np.random.default_rng(0)
DAYS = pd.Timestamp("2023-01-05") + pd.to_timedelta(RNG.integers(0, 300, N), unit="D")
AMOUNTS = RNG.lognormal(7, 1, N)
WHOLE = RNG.integers(1000, 99_999, N)
MONTHS = np.array([12 * d.year + d.month - 1 for d in DAYS])

COLUMNS = {
    "dollars": ([f"${v:,.2f}" for v in AMOUNTS], AMOUNTS.round(2), "read as numbers"),
    "percent": ([f"{v} %" for v in WHOLE // 1100], WHOLE // 1100, "read as numbers"),
    "decimal comma": ([f"{v:.2f}".replace(".", ",") for v in AMOUNTS], AMOUNTS.round(2), "read as numbers"),
    "thousands": ([f"{v:,}" for v in WHOLE], WHOLE, "read as numbers"),
    "points and commas": ([f"{v:,}".replace(",", ".") + ",5" for v in WHOLE], WHOLE + 0.5, "read as numbers"),
    "spaces": ([f"{v:,}".replace(",", " ") for v in WHOLE], WHOLE, "read as numbers"),
    "negative": (
        [f"-{v}" if v % 2 else f"{v}" for v in WHOLE],
        np.where(WHOLE % 2, -WHOLE, WHOLE),
        "numbers",
    ),
    "kilograms": ([f"{v / 1000:.1f}kg" for v in WHOLE], (WHOLE / 1000).round(1), "read as numbers"),
    "exponents": ([f"{v:e}" for v in AMOUNTS], [float(f"{v:e}") for v in AMOUNTS], "read as numbers"),
    "US dates": ([f"{d.month}/{d.day}/{d.year}" for d in DAYS], DAYS, "dates by month, day, year"),
    "German dates": ([d.strftime("%d.%m.%Y") for d in DAYS], DAYS, "dates by day, month, year"),
    "ISO dates": ([d.strftime("%Y-%m-%d") for d in DAYS], DAYS, "dates by year, month, day"),
    "named months": ([d.strftime("%b %d, %Y") for d in DAYS], DAYS, "dates by month, day, year"),
    "offsets": ([d.strftime("%Y-%m-%dT%H:%M:%S+02:00") for d in DAYS], DAYS, "dates by year"),
    "months": ([d.strftime("%b-%Y") for d in DAYS], MONTHS, "months by month, year"),
    "ISO months": ([d.strftime("%Y-%m") for d in DAYS], MONTHS, "months by year, month"),
    "long months": ([d.strftime("%B %Y") for d in DAYS], MONTHS, "months by month, year"),
    "short months": ([f"{d.month}/{d.year}" for d in DAYS], MONTHS, "months by month, year"),
    "accounts": (
        [f"${v:,}.50" if v % 3 else f"(${v:,}.50)" for v in WHOLE],
        (WHOLE + 0.5) * np.where(WHOLE % 3, 1, -1),
        "numbers",
    ),
    "accounts of whole numbers": (
        [f"{v}" if v % 3 else f"({v})" for v in WHOLE],
        WHOLE * np.where(WHOLE % 3, 1, -1),
        "numbers",
    ),
    "booleans": (["True" if v % 3 else "False" for v in WHOLE], WHOLE % 3 > 0, "booleans"),
    "markers": (
        ["?" if v % 5 == 0 else str(v) for v in WHOLE],
        np.where(WHOLE % 5 == 0, np.nan, WHOLE),
        "'?' counts",
    ),
    "dashes": (
        ["-" if v % 5 == 0 else f"{v}.5" for v in WHOLE],
        np.where(WHOLE % 5 == 0, np.nan, WHOLE + 0.5),
        "'-'",
    ),
}
LIBRARIES = {"pandas": lambda X: X, "polars": pl.from_pandas, "pyarrow": pa.Table.from_pandas}


def read(values, reading=None, kinds=None):
    return recognised(read_frame(pd.DataFrame({"x": values})), Reading.of(reading), kinds or {})


@pytest.mark.parametrize("name", COLUMNS)
def test_text_is_read_as_what_it_says_with_a_sentence(name):
    text, expected, words = COLUMNS[name]
    frame = read(text)
    found = pd.Series(replace(frame.columns["x"], text=None).to_list())
    if isinstance(expected, pd.DatetimeIndex):
        assert (pd.to_datetime(found).to_numpy("M8[s]") == expected.to_numpy("M8[s]")).all()
    else:
        wanted, got = np.asarray(expected, float), found.astype(float).to_numpy()
        assert (np.isnan(wanted) == np.isnan(got)).all()
        assert np.allclose(got, wanted, equal_nan=True, rtol=1e-12)
    assert words in Schema.fit(frame).describe()[0].reason


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_was_read_is_written_back_as_it_came(library):
    """Gaps come back as gaps, and exponents as plain numbers."""
    X = pd.DataFrame({name: text for name, (text, _, _) in COLUMNS.items() if name != "exponents"})
    frame = recognised(read_frame(LIBRARIES[library](X)), Reading(), {})
    back = build_frame(frame.table_type, frame.columns)
    back = back if library == "pandas" else back.to_pandas()
    for name in X:
        kept = ~X[name].isin(["?", "-"])
        assert (back[name][kept] == X[name][kept]).all(), name
        assert back[name][~kept].isna().all()


def test_times_of_day_are_cut_where_there_are_none():
    minutes = np.array([22 * 60 + 30, 23 * 60 + 59, 0, 15, 90, 6 * 60] * 10)
    frame = read([f"{m // 60:02d}:{m % 60:02d}" for m in minutes])
    shifted = frame.columns["x"].values
    assert np.ptp(shifted) < 8 * 60  # the night is in one piece
    assert (np.diff(shifted[:6]) > 0).all()
    assert build_frame(frame.table_type, frame.columns)["x"].tolist()[:3] == ["22:30", "23:59", "00:00"]


def test_more_than_a_day_is_a_duration():
    frame = read([f"{v // 60}:{v % 60:02d}:30" for v in WHOLE % 4000])
    cells = frame.columns["x"]
    assert cells.type == "duration"
    assert cells.values.tolist() == [v * 60 + 30 for v in (WHOLE % 4000).tolist()]


SECONDS = WHOLE % 20_000 * 60
SPANS = {
    "every unit": [f"{s // 3600}h {s // 60 % 60}m" for s in SECONDS],
    "no zeros": [
        " ".join(p for p in (f"{s // 3600}h", f"{s // 60 % 60}m") if p[0] != "0") or "0m" for s in SECONDS
    ],
    "words": [f"{s // 86400} days, {s // 3600 % 24} hours, {s // 60 % 60} min" for s in SECONDS],
    "nothing between": [f"{s // 60}min0s" for s in SECONDS],
}


@pytest.mark.parametrize("name", SPANS)
def test_durations_in_units_are_read_and_written_back(name):
    frame = read(SPANS[name])
    assert frame.columns["x"].type == "duration"
    assert frame.columns["x"].values.tolist() == SECONDS.tolist()
    assert "read as durations" in Schema.fit(frame).describe()[0].reason
    assert build_frame(frame.table_type, frame.columns)["x"].tolist() == SPANS[name]
    known = read_written(read_frame(pd.DataFrame({"x": SPANS[name][:3]})), frame.table_type)
    assert known.columns["x"].values.tolist() == SECONDS[:3].tolist()


@pytest.mark.parametrize("text", [["2h 46m", "46m 2h"], ["1h 2x", "1h 3x"], ["3 apples 2 h", "1 h 2 m"]])
def test_what_only_looks_like_durations_stays_text(text):
    assert read(text * 30).columns["x"].type == "label"


PLAIN = {
    "brackets around words": [f"(a{v % 7})" if v % 2 else str(v) for v in WHOLE],
    "zip codes": [f"{v:05d}" for v in WHOLE // 40 * 7],
    "codes of letters": [f"A{v % 7}" for v in WHOLE],
    "words": ["red" if v % 2 else "green" for v in WHOLE],
    "numbers and words": ["many" if v % 9 == 0 else str(v) for v in WHOLE],
    "declared": pd.Categorical([str(v) for v in WHOLE]),
}


@pytest.mark.parametrize("name", PLAIN)
def test_what_only_looks_like_a_number_stays_text(name):
    assert read(PLAIN[name]).columns["x"].type == "label"


def test_few_whole_numbers_are_numbers_unless_the_user_says_otherwise():
    text = [str(v % 4) for v in WHOLE]
    assert read(text).columns["x"].type == "int"
    assert read(text, kinds={"x": "category"}).columns["x"].type == "label"


def test_mixed_formats_are_read_and_written_in_the_most_common():
    text = [d.strftime("%Y-%m-%d") if i % 4 == 0 else d.strftime("%d.%m.%Y") for i, d in enumerate(DAYS)]
    frame = read(text)
    assert (pd.to_datetime(frame.columns["x"].to_list()) == DAYS).all()
    assert build_frame(frame.table_type, frame.columns)["x"][0] == DAYS[0].strftime("%d.%m.%Y")


def test_the_user_may_say_how_to_read():
    text = ["3/4/2023", "5/6/2023"] * 20
    months = [read(text, reading).columns["x"].to_list()[0].month for reading in (None, {"dates": "dmy"})]
    assert months == [3, 4]
    values = [
        read(["1.234", "5.678"] * 20, reading).columns["x"].values[0] for reading in (None, {"decimal": ","})
    ]
    assert values == [1.234, 1234]
    assert read(["12", "7", "x?"] * 20, {"na": ["x?"]}, {"x": "real"}).columns["x"].missing.sum() == 20
    assert read(np.array([1.0, 2.0, 999.0]), {"na": ["999"]}).columns["x"].missing.tolist() == [
        False,
        False,
        True,
    ]
    assert read([str(v) for v in WHOLE], kinds={"x": "category"}).columns["x"].type == "label"
    for wrong in ({"decimal": ";"}, {"dates": "never"}, {"sep": ","}):
        with pytest.raises(ValueError, match="reading: expected"):
            Reading.of(wrong)


def prices(n=N):
    return pd.DataFrame(
        {
            "price": COLUMNS["dollars"][0],
            "sold": COLUMNS["US dates"][0],
            "left": [f"{(v // 7) % 1440 // 60:02d}:{v % 60:02d}" for v in WHOLE],
            "ok": COLUMNS["booleans"][0],
            "kind": ["?" if v % 6 == 0 else "ab"[v % 2] for v in WHOLE],
        }
    )[:n]


@pytest.fixture(scope="module")
def fitted():
    return prices(), CTEM(**BRIEF).fit(prices())


def test_samples_are_written_as_the_table_was(fitted):
    _, model = fitted
    drawn = model.sample(40, random_state=0)
    assert drawn["price"].str.fullmatch(r"\$(\d{1,3}(,\d{3})*|\d+)\.\d\d").all()
    assert drawn["sold"].str.fullmatch(r"\d{1,2}/\d{1,2}/\d{4}").all()
    assert drawn["left"].str.fullmatch(r"([01]\d|2[0-3]):[0-5]\d").all()
    assert set(drawn["ok"]) == {"True", "False"}
    assert set(drawn["kind"]) == {"a", "b"}
    assert np.isfinite(model.score_samples(drawn)).all()


def test_a_model_takes_text_and_numbers_alike(fitted):
    X, model = fitted
    plain = X.assign(price=COLUMNS["dollars"][1], sold=DAYS, ok=COLUMNS["booleans"][1])
    assert np.allclose(model.score_samples(plain), model.score_samples(X), rtol=0, atol=1e-9)
    assert list(model.sample(3, given={"ok": "True"}, random_state=0)["ok"]) == ["True"] * 3


def test_a_cell_that_cannot_be_read_is_named(fitted):
    X, model = fitted
    with pytest.raises(
        ValueError, match=r"column 'price', row 1: expected a number such as '\$.*', as in fit; got 'a"
    ):
        model.score_samples(X[:2].assign(price=["$5.00", "a lot"]))


def test_imputing_fills_marked_cells_and_copies_the_others(fitted):
    X, model = fitted
    holes = X.assign(price=["-", *X["price"][1:]])
    filled = model.impute(holes, random_state=0)
    assert filled["price"][0].startswith("$")
    assert (filled["price"][1:] == X["price"][1:]).all()
    assert set(filled["kind"]) == {"a", "b"}


def test_how_to_read_is_saved(fitted, tmp_path):
    X, model = fitted
    model.save(tmp_path / "m.ctem")
    again = CTEM.load(tmp_path / "m.ctem")
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    pd.testing.assert_frame_equal(again.sample(9, random_state=1), model.sample(9, random_state=1))


@pytest.mark.parametrize(
    "change",
    [{"kind": "word"}, {"decimal": ""}, {"formats": ["%Y"]}, {"digits": 99}, {"cut": -1}, {"padded": 1}],
)
def test_a_spoilt_notation_is_refused(change):
    with pytest.raises(ValueError, match="written: expected a notation"):
        Writing.from_json({**Writing("number", "5").to_json(), **change})


def test_the_command_line_reads_and_writes_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = prices().assign(zip=[f"{v % 30:05d}" for v in WHOLE])
    X.to_csv("t.csv", index=False)
    run = CliRunner().invoke
    said = run(app, ["fit", "t.csv", "-o", "m.ctem", "--max-steps", "5", "--na", "00013"])
    assert said.exit_code == 0, said.stderr
    assert "read as numbers" in " ".join(said.stderr.split())
    assert run(app, ["sample", "m.ctem", "-n", "30", "-o", "s.csv"]).exit_code == 0
    drawn = pd.read_csv(tmp_path / "s.csv", dtype=str)
    assert drawn["price"].str.startswith("$").all()
    assert drawn["zip"].str.fullmatch(r"\d{5}").all()
    assert set(drawn["ok"]) <= {"True", "False"}
    filled = run(app, ["impute", "m.ctem", "t.csv", "-o", "f.csv"])
    assert filled.exit_code == 0, filled.stderr
    got = pd.read_csv(tmp_path / "f.csv", dtype=str)
    known = (X["kind"] != "?") & (X["zip"] != "00013")
    pd.testing.assert_frame_equal(got[known], X[known].astype(got.dtypes))
    assert got["kind"].isin(["a", "b"]).all()
    assert not (got["zip"] == "00013").any()


@pytest.mark.parametrize("encoding", ["ISO-8859-1", "UTF-16"])
def test_another_encoding_is_refused_with_what_to_do(tmp_path, encoding):
    (tmp_path / "t.csv").write_bytes("näme,x\nRosé,1\n".encode(encoding))
    said = CliRunner().invoke(app, ["fit", str(tmp_path / "t.csv"), "-o", str(tmp_path / "m.ctem")])
    assert (said.exit_code, f"--encoding {encoding}" in said.stderr) == (1, True)


def test_read_written_leaves_other_tables_alone():
    frame = read_frame(pd.DataFrame({"y": ["a", "b"]}))
    assert read_written(frame, read(COLUMNS["dollars"][0]).table_type) == frame


def test_a_column_that_was_read_may_be_missing_altogether():
    fitted = recognised(
        read_frame(pd.DataFrame({"price": ["$1.50", "$20.25", "$3.75"]})), Reading(), {}
    ).table_type
    gone = read_written(read_frame(pd.DataFrame({"price": [None, None]}, dtype=object)), fitted)
    assert gone.columns["price"].missing.all()


@pytest.mark.parametrize(
    "text", [["1234-01", "9876-12"], ["2015-13", "2015-01"], ["Jan-2015", "soon"], ["May", "June"]]
)
def test_what_only_looks_like_months_stays_text(text):
    assert read(text * 20).columns["x"].type == "label"


def test_months_follow_each_other_and_can_be_asked_for():
    X = pd.DataFrame({"issued": COLUMNS["months"][0], "amount": AMOUNTS})
    model = CTEM(**BRIEF).fit(X)
    drawn = model.sample(20, given={"issued": ("Feb-2023", "Apr-2023")}, random_state=0)["issued"]
    assert set(drawn) <= {"Feb-2023", "Mar-2023", "Apr-2023"}
    assert model.probability({"issued": ("Jan-2023", "Dec-2023")}, n_draws=64).value > 0.9
    with pytest.raises(ValueError, match=r"column 'issued', row 0: expected a month such as .* got 'soon'"):
        model.sample(1, given={"issued": ("soon", None)})
    with pytest.raises(ValueError, match="expected a month such as"):
        model.score_samples(X[:1].assign(issued="13-2023"))


@pytest.mark.parametrize("middle", [12, 21], ids=["by day", "over midnight"])
def test_times_of_day_are_asked_for_by_the_clock(middle):
    rng = np.random.default_rng(0)
    minutes = rng.normal(60 * middle, 150, 1000).astype(int) % 1440
    X = pd.DataFrame({"at": [f"{m // 60:02d}:{m % 60:02d}" for m in minutes], "side": minutes % 3})
    model = CTEM(**BRIEF).fit(X)
    day = np.arange(1440)
    asked = {
        ("08:00", "11:59"): (day >= 480) & (day < 720),
        (None, "11:59"): day < 720,
        ("12:00", None): day >= 720,
        ("22:00", "01:30"): (day >= 1320) | (day <= 90),
        (dt.time(12), dt.time(21, 30)): (day >= 720) & (day <= 1290),
    }
    for said, inside in asked.items():
        found = model.probability({"at": said})
        assert abs(found.value - inside[minutes].mean()) < 4 * found.stderr + 0.05
        if inside[minutes].any():
            drawn = (
                model.sample(50, given={"at": said}, random_state=0)["at"]
                .str.split(":", expand=True)
                .astype(int)
            )
            assert inside[60 * drawn[0] + drawn[1]].all()
    with pytest.raises(ValueError, match=r"column 'at': expected a time of day such as .*; got 'noon'"):
        model.sample(1, given={"at": ("noon", None)})
    with pytest.raises(ValueError, match=r"column 'at': expected a value, \(low, high\)"):
        model.probability({"at": [["08:00", "11:59"]]})


def test_a_duration_that_is_given_is_written_as_it_was():
    model = CTEM(**BRIEF).fit(pd.DataFrame({"took": SPANS["every unit"], "side": np.arange(N) % 3}))
    for said in ("2h 46m", dt.timedelta(minutes=166)):
        assert model.sample(1, given={"took": said})["took"].tolist() == ["2h 46m"]


def test_one_date_may_be_said_in_several_ways():
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(200), unit="D")
    model = CTEM(**BRIEF).fit(pd.DataFrame({"day": days.strftime("%d.%m.%Y"), "side": np.arange(200) % 3}))
    found = [
        model.probability({"day": (low, high)}, n_draws=64).value
        for low in ("01.02.2020", "2020-02-01", dt.date(2020, 2, 1))
        for high in ("01.03.2020", "2020-03-01", dt.datetime(2020, 3, 1))
    ]
    assert len(set(found)) == 1


def test_times_of_day_and_months_are_told_as_they_are_written():
    rng = np.random.default_rng(0)
    minutes, months = rng.normal(1260, 90, 400).astype(int) % 1440, rng.integers(0, 60, 400)
    X = pd.DataFrame(
        {
            "at": [f"{m // 60:02d}:{m % 60:02d}" for m in minutes],
            "due": [f"{2010 + m // 12}-{m % 12 + 1:02d}" for m in months],
            "side": rng.normal(size=400),
        }
    )
    model = CTEM(**BRIEF).fit(X)
    for name, form in (("at", r"\d\d:\d\d"), ("due", r"\d{4}-\d\d")):
        known = model.conditional(X[:3], name)
        told = [
            *known.values,
            *known.mean().tolist(),
            *known.quantile(0.5).tolist(),
            *model.predict(X[:3], name),
        ]
        assert all(re.fullmatch(form, each) for each in told)
        assert re.search(rf"{form} to {form}", str(known))
        strange = X[:3].assign(**{name: {"at": "07:00", "due": "2031-05"}[name]})
        assert re.search(
            rf"{name} {form}, expected {form} \({form} to {form}; p", model.outliers(strange, 1)[0].why()
        )
        column = next(each for each in model.describe()["columns"] if each["name"] == name)
        assert not re.search(r"\d{5}", column["reason"])


def test_durations_can_be_asked_for_as_they_are_written_and_as_python_has_them(tmp_path):
    X = pd.DataFrame({"took": SPANS["every unit"], "side": np.arange(N) % 3})
    native = X.assign(took=pd.to_timedelta(SECONDS, unit="s"))
    hours = [pd.Timedelta(hours=h).to_pytimedelta() for h in (50, 250)]
    for table, ends in ((X, ("50h 0m", "250h 0m")), (X, tuple(hours)), (native, tuple(hours))):
        model = CTEM(**BRIEF).fit(table)
        drawn = model.sample(40, given={"took": ends}, random_state=0)["took"]
        if drawn.dtype.kind != "m":
            drawn = pd.to_timedelta(drawn.str.replace("h", " hours").str.replace("m", " minutes"))
        assert drawn.between(*hours).all()
        assert drawn.nunique() > 10
    with pytest.raises(TypeError, match="column 'took': expected durations, as in fit; got 7"):
        model.sample(2, given={"took": (7, None)})
    model.save(tmp_path / "m.ctem")
    ask = ["sample", str(tmp_path / "m.ctem"), "-n", "3", "--seed", "0", "--given"]
    assert CliRunner().invoke(app, [*ask, "took=50h..250h 30m"]).exit_code == 0
    refused = CliRunner().invoke(app, [*ask, "took=50.."])
    assert "expected a duration such as 1h 30m" in refused.stderr
