"""Where the shell, Python and the libraries of tables meet: text that pandas leaves as text, notations, outputs."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from typer.testing import CliRunner

from ctem import CTEM, cli
from ctem.tables.io.csv_text import typed
from ctem.tables.io.frame import read_frame
from tests.small import TINY

N = 150


def ctem(*arguments):
    result = CliRunner().invoke(cli.app, [str(each) for each in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def text():
    """Columns that pandas.read_csv leaves as text, or reads as other numbers than the shell does."""
    rng = np.random.default_rng(0)
    hours = pd.Timestamp("2013-01-01") + pd.to_timedelta(rng.integers(0, 9000, N), unit="h")
    return pd.DataFrame(
        {
            "day": hours.strftime("%Y-%m-%d"),
            "stamp": hours.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "time": hours.strftime("%Y-%m-%d %H:%M:%S"),
            "local": hours.strftime("%Y-%m-%dT%H:%M"),
            "exact": hours.strftime("%Y-%m-%d %H:%M:%S.") + pd.Series(rng.integers(100, 999, N)).astype(str),
            "count": [None if rng.random() < 0.1 else str(k) for k in rng.integers(50, size=N)],
            "member": rng.choice(["true", "false"], N),
            "size": [f"{v:.2f}" for v in rng.normal(size=N)],
            "city": rng.choice(["Oslo", "Bergen"], N),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("seams")
    text().to_csv(place / "t.csv", index=False)
    ctem(
        "fit",
        place / "t.csv",
        "-o",
        place / "m.ctem",
        "--max-steps",
        2,
        "--effort",
        "quick",
        "--device",
        "cpu",
        "-q",
    )
    return place


@pytest.mark.parametrize("dtype", [None, str, "string"])
def test_a_model_of_the_shell_reads_what_pandas_reads(folder, dtype):
    model = CTEM.load(folder / "m.ctem")
    X = pd.read_csv(folder / "t.csv", dtype=dtype)
    ctem("score", folder / "m.ctem", folder / "t.csv", "-o", folder / "s.csv")
    expected = pd.read_csv(folder / "s.csv")["log_density"]
    assert np.allclose(model.score_samples(X), expected, atol=1e-5)
    assert np.allclose(model.score_samples(pl.DataFrame(X)), expected, atol=1e-5)


@pytest.mark.parametrize("notation", ["%Y-%m-%d", "%d/%m/%Y"])
def test_a_model_of_a_file_fills_in_a_table_whose_dates_are_text(tmp_path, notation):
    days = pd.Timestamp("1980-01-01") + pd.to_timedelta(np.arange(120) * 37, unit="D")
    X = pd.DataFrame({"day": days.strftime(notation), "y": np.arange(120) % 7})
    X.to_csv(tmp_path / "t.csv", index=False)
    model = CTEM(**TINY).fit(tmp_path / "t.csv")
    holed = X.astype({"y": float}).mask(np.arange(240).reshape(120, 2) % 9 == 0)
    for method in ("sample", "mode"):
        filled = model.impute(holed, method=method, random_state=0)
        assert not filled.isna().any(axis=None)
        assert pd.to_datetime(filled["day"], format=notation).notna().all()
        assert filled["day"].where(holed["day"].notna()).equals(holed["day"])


def test_text_that_does_not_read_as_its_column_is_named(folder):
    model = CTEM.load(folder / "m.ctem")
    X = pd.read_csv(folder / "t.csv")
    X.loc[3, "day"] = "soon"
    with pytest.raises(ValueError, match="column 'day', row 3: expected a date, as in fit; got 'soon'"):
        model.score_samples(X)


def test_times_come_back_in_their_notation_and_precision(folder):
    drawn = ctem("sample", folder / "m.ctem", "-n", 50).splitlines()
    rows = pd.DataFrame([line.split(",") for line in drawn[1:]], columns=drawn[0].split(","))
    forms = {
        "day": r"\d{4}-\d\d-\d\d",
        "stamp": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
        "time": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
        "local": r"\d{4}-\d\d-\d\dT\d\d:\d\d",
        "exact": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}",
    }
    for name, form in forms.items():
        assert rows[name].str.fullmatch(form).all(), rows[name][0]


def test_times_of_several_offsets_are_moments():
    stamps = ["2013-01-01T11:00:00+01:00", "2013-07-01T11:00:00+02:00"]
    assert pa.types.is_timestamp(typed(pa.table({"t": stamps}))["t"].type)


def test_moments_of_utc_are_taken_where_text_said_so(folder):
    model = CTEM.load(folder / "m.ctem")
    X = pd.read_csv(folder / "t.csv")
    zoned = X.assign(stamp=pd.to_datetime(X["stamp"]))
    assert zoned["stamp"].dt.tz is not None
    assert np.allclose(model.score_samples(zoned), model.score_samples(X), atol=1e-5)


LIBRARIES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.Table}


@pytest.fixture(scope="module", params=["numpy", *LIBRARIES])
def model(request):
    """A model of a table of each library."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=120), "b": rng.integers(3, size=120)})
    tables = {"numpy": X.to_numpy(), "pandas": X, "polars": pl.DataFrame(X), "arrow": pa.Table.from_pandas(X)}
    return CTEM(**TINY).fit(tables[request.param])


@pytest.mark.parametrize("output", LIBRARIES)
def test_rows_are_drawn_into_the_library_that_is_asked_for(model, output):
    drawn = model.sample(5, random_state=1, output=output)
    assert isinstance(drawn, LIBRARIES[output])
    plain = read_frame(model.sample(5, random_state=1))
    for name, cells in zip(plain.columns, read_frame(drawn).columns.values(), strict=True):
        assert plain.columns[name].to_list() == cells.to_list()
    with pytest.raises(ValueError, match="output: expected one of 'pandas', 'polars', 'arrow'"):
        model.sample(output="excel")


def test_set_output_is_that_of_scikit_learn():
    X = np.random.default_rng(0).normal(size=(120, 2))
    model = CTEM(**TINY).set_output(transform="pandas").fit(X)
    assert isinstance(model.sample(2), pd.DataFrame)
    assert isinstance(clone(model).fit(X).sample(2), pd.DataFrame)
    X[0, 0] = np.nan
    assert isinstance(model.impute(X), pd.DataFrame)
    assert isinstance(model.sample(2, output="arrow"), pa.Table)
    assert isinstance(model.set_output(transform="default").sample(2), np.ndarray)
    with pytest.raises(ValueError, match="transform: expected 'default', 'pandas' or 'polars'"):
        model.set_output(transform="excel")


def test_a_list_of_dicts_is_a_table():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=120), "b": rng.choice(["x", "y"], size=120)})
    model = CTEM(**TINY).fit(X.to_dict("records"))
    expected = CTEM(**TINY).fit(X)
    assert np.array_equal(model.score_samples(X.to_dict("records")), expected.score_samples(X))
    assert np.isfinite(expected.score_samples([{"a": 1.0, "b": "x"}, {"a": 2.0}])).all()
    filled = expected.impute([{"a": 1.0, "b": "x"}, {"a": 2.0}])
    assert filled["b"][1] in ("x", "y")


@pytest.mark.parametrize(("library", "kind"), [("pandas", "bool"), ("polars", "Boolean")])
def test_booleans_of_a_file_are_booleans_in_other_libraries(tmp_path, library, kind):
    X = pd.DataFrame({"ok": np.arange(120) % 3 == 0, "x": np.random.default_rng(0).normal(size=120)})
    X.to_csv(tmp_path / "t.csv", index=False)
    model = CTEM(**TINY).fit(tmp_path / "t.csv")
    assert str(model.sample(3, output=library)["ok"].dtype) == kind
    assert set(model.sample(30)["ok"].to_pylist()) == {"True", "False"}
