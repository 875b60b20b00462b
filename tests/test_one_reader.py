"""A table in a CSV file and the same one as a frame of any library: the same columns, the same gaps, the same model."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from small import TINY
from typer.testing import CliRunner

import ctem
from ctem import CTEM, CTEMImputer, CTEMOutlier
from ctem.cli import app
from ctem.cli.streams import fit_table
from ctem.tables.inference.kinds import infer_column
from ctem.tables.io.csv_files import Dialect
from ctem.tables.io.frame import read_frame
from ctem.tables.io.recognition import Reading, recognised

N = 120
RNG = np.random.default_rng(0)
WHOLE = RNG.integers(0, 900, N)
REALS = RNG.normal(20, 5, N)
DAYS = pd.Timestamp("2023-01-05") + pd.to_timedelta(RNG.integers(0, 300, N), unit="D")
TIMES = DAYS + pd.to_timedelta(RNG.integers(0, 86_400, N), unit="s")
WORDS = np.array(["Oslo", "Bergen", "Narvik"])[WHOLE % 3]


def gaps(cells, marker, every=7):
    return [marker if i % every == 2 else str(cell) for i, cell in enumerate(cells)]


COLUMNS = {
    "numbers": [repr(v) for v in REALS],
    "whole numbers": WHOLE,
    "few whole numbers": WHOLE % 4,
    "two whole numbers": WHOLE % 2,
    "negative": WHOLE - 400,
    "signed": [f"+{v}" if v % 2 else f"-{v}" for v in WHOLE],
    "rounded": REALS.round(1),
    "hundredths": [f"{v:.2f}" for v in REALS],
    "tens": WHOLE * 10,
    "exponents": [f"{v:e}" for v in REALS],
    "money": [f"${v:,.2f}" for v in REALS * 1000],
    "money after": [f"{v:.0f} €" for v in REALS * 1000],
    "accounts": [f"({v})" if v % 3 == 0 else f"{v}" for v in WHOLE + 1],
    "percent": [f"{v}%" for v in WHOLE % 90],
    "decimal commas": [f"{v:.2f}".replace(".", ",") for v in REALS],
    "thousands": [f"{v:,}" for v in WHOLE * 977],
    "dates": DAYS.strftime("%Y-%m-%d"),
    "dates by dots": DAYS.strftime("%d.%m.%Y"),
    "dates by slashes": DAYS.strftime("%m/%d/%Y"),
    "months": DAYS.strftime("%b-%Y"),
    "stamps": TIMES.strftime("%Y-%m-%d %H:%M:%S"),
    "stamps with T": TIMES.strftime("%Y-%m-%dT%H:%M:%S"),
    "stamps to the minute": TIMES.strftime("%Y-%m-%d %H:%M"),
    "stamps with fractions": TIMES.strftime("%Y-%m-%d %H:%M:%S.250"),
    "stamps of UTC": TIMES.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "stamps of two zones": [f"{t:%Y-%m-%dT%H:%M:%S}+0{1 + i % 2}:00" for i, t in enumerate(TIMES)],
    "times": TIMES.strftime("%H:%M"),
    "times with seconds": TIMES.strftime("%H:%M:%S"),
    "durations": [f"{v // 60}h {v % 60}m" for v in WHOLE],
    "booleans": np.where(WHOLE % 2, "True", "False"),
    "small booleans": np.where(WHOLE % 2, "true", "false"),
    "large booleans": np.where(WHOLE % 2, "TRUE", "FALSE"),
    "labels": WORDS,
    "yes and no": np.where(WHOLE % 2, "yes", "no"),
    "letters and numbers": [f"A{v % 7}" for v in WHOLE],
    "text": [f"row {v} of {w} in the north" for v, w in zip(WHOLE, WORDS, strict=True)],
    "codes with zeros": [f"{v % 30:05d}" for v in WHOLE],
    "large numbers": [str(2**60 + int(v)) for v in WHOLE],
    "unsigned numbers": [str(2**63 + int(v)) for v in WHOLE],
    "huge numbers": [str(10**30 + int(v)) for v in WHOLE],
    "numbers and words": ["many" if v % 9 == 0 else v for v in WHOLE],
    "spaces around": [f" {v} " for v in WHOLE],
    "one value": ["same"] * N,
    "one number": [7] * N,
    "nothing": [""] * N,
}
MARKERS = (
    "",
    " ",
    "?",
    "-",
    "--",
    ".",
    "NA",
    "N/A",
    "na",
    "n/a",
    "None",
    "none",
    "null",
    "NULL",
    "NaN",
    "nan",
)
MARKERS += ("#N/A", "n.a.", "N.A.", "<NA>", "NaT", "#DIV/0!", "#VALUE!", "#REF!", "#NA", "-nan", "1.#QNAN")
GAPPED = (
    "whole numbers",
    "few whole numbers",
    "rounded",
    "money",
    "dates",
    "stamps",
    "times",
    "booleans",
    "labels",
)
KINDS = list(COLUMNS)
TABLES = {
    **{
        f"kinds {i} …": {name: list(map(str, COLUMNS[name])) for name in KINDS[i : i + 5]}
        for i in range(0, len(KINDS), 5)
    },
    **{f"gaps by {mark!r}": {name: gaps(COLUMNS[name], mark) for name in GAPPED} for mark in MARKERS},
}


def by_shell(path):
    return fit_table(str(path), [], 10**6, 0, True, {}, Dialect())


def as_text(path):
    names = pd.read_csv(path, nrows=1).columns
    options = pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    return pa.csv.read_csv(path, convert_options=options)


TEXTUAL = {
    "pandas text": lambda path: pd.read_csv(path, dtype=str, keep_default_na=False),
    "pandas objects": lambda path: pd.read_csv(path, dtype=object, keep_default_na=False),
    "polars text": lambda path: pl.read_csv(path, infer_schema=False),
    "arrow text": as_text,
}
READERS = {
    **TEXTUAL,
    "pandas": pd.read_csv,
    "polars": lambda path: pl.read_csv(path, infer_schema_length=None),
    "polars, dates": lambda path: pl.read_csv(path, infer_schema_length=None, try_parse_dates=True),
    "arrow": pa.csv.read_csv,
}
SPOILT = {  # what a library's own reader does not keep
    "codes with zeros": ("pandas", "polars", "polars, dates", "arrow"),
    "unsigned numbers": ("arrow",),
    "huge numbers": ("pandas", "arrow"),
}


def understood(table):
    """The gaps of every column, and what it holds: a schema is made of nothing else."""
    columns = {}
    for name, cells in recognised(read_frame(table), Reading(), {}).columns.items():
        kind = (
            "nothing" if cells.missing.all() else "number" if cells.type in ("int", "float") else cells.type
        )
        known = [value for value in replace(cells, text=None, zone="").to_list() if value is not None]
        if cells.type == "moment":
            known = pd.to_datetime(pd.Series(known)).dt.as_unit("us").tolist()
        columns[name] = cells.missing.tolist(), kind, known
    return columns


def by_libraries(path, names, facts):
    """What every library's table of a file holds, of the columns that its reader keeps."""
    for library, read in READERS.items():
        table, kept = read(path), [name for name in names if library not in SPOILT.get(name, ())]
        yield library, facts(table.select(kept) if hasattr(table, "select") else table[kept])


QUICKLY = (*list(TABLES)[:9], *(f"gaps by {mark!r}" for mark in ("", "?", "NA", "nan", "<NA>")))


@pytest.mark.parametrize(
    "name", [name if name in QUICKLY else pytest.param(name, marks=pytest.mark.long) for name in TABLES]
)
def test_a_file_and_a_frame_of_the_same_cells_hold_the_same(name, tmp_path):
    path = tmp_path / "table.csv"
    pd.DataFrame(TABLES[name]).to_csv(path, index=False)
    expected = understood(by_shell(path))
    for library, columns in by_libraries(path, expected, understood):
        assert columns == {name: expected[name] for name in columns}, library


@pytest.mark.parametrize("name", list(TABLES)[:9])
def test_a_file_and_a_frame_of_the_same_cells_have_the_same_schema(name, tmp_path):
    path = tmp_path / "table.csv"
    pd.DataFrame(TABLES[name]).to_csv(path, index=False)
    expected = described(by_shell(path))
    for library, columns in by_libraries(path, expected, described):
        for name, (kind, reason, encoded) in columns.items():
            assert (kind, reason) == expected[name][:2], (library, name)
            assert encoded == approx(expected[name][2]), (library, name)


def approx(values):
    return pytest.approx(values, rel=1e-9, abs=1e-9, nan_ok=True)  # moments may be counted in other units


def described(table):
    """The kind of every column, why, and its encoded cells."""
    columns = {}
    for name, cells in recognised(read_frame(table), Reading(), {}).columns.items():
        column = infer_column(name, cells, None, False, True, True)
        x, terms = column.codec.encode(name, cells)
        columns[name] = column.kind, column.reason, [*x.flatten().tolist(), *terms.tolist()]
    return columns


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A file with gaps, the model that the shell fits to it, and that of its path."""
    folder = tmp_path_factory.mktemp("one")
    columns = ("rounded", "labels", "dates by dots", "booleans", "money", "few whole numbers")
    X = {name: gaps(COLUMNS[name], "NA", every=9 + i) for i, name in enumerate(columns)}
    pd.DataFrame(X).to_csv(folder / "t.csv", index=False)
    result = CliRunner().invoke(
        app, ["fit", str(folder / "t.csv"), "-o", str(folder / "m.ctem"), "--max-steps", "12", "--quiet"]
    )
    assert result.exit_code == 0, result.stderr
    return folder, CTEM.load(folder / "m.ctem"), CTEM(max_steps=12, random_state=0).fit(folder / "t.csv")


def test_a_path_is_fitted_and_scored_as_in_the_shell(fitted):
    folder, shell, model = fitted
    path = str(folder / "t.csv")
    assert model.data_hash_ == shell.data_hash_
    scores = model.score_samples(path)
    assert np.array_equal(scores, shell.score_samples(path))
    assert (
        CliRunner()
        .invoke(app, ["score", str(folder / "m.ctem"), path, "-o", str(folder / "s.csv")])
        .exit_code
        == 0
    )
    assert np.allclose(pd.read_csv(folder / "s.csv")["log_density"], scores, rtol=0, atol=1e-12)
    for read in READERS.values():
        assert np.allclose(model.score_samples(read(path)), scores, rtol=0, atol=1e-9)


def test_a_frame_of_the_same_cells_gives_the_same_model(fitted):
    folder, _, model = fitted
    for library in ("pandas", "polars text"):
        again = CTEM(max_steps=12, random_state=0).fit(READERS[library](folder / "t.csv"))
        assert again.data_hash_ == model.data_hash_
        assert np.array_equal(again.score_samples(folder / "t.csv"), model.score_samples(folder / "t.csv"))


def test_paths_are_imputed_and_searched_for_outliers(fitted):
    folder, _, model = fitted
    filled = model.impute(folder / "t.csv", random_state=0)
    assert isinstance(filled, pa.Table)
    assert sum(column.null_count for column in filled.columns) == 0
    assert len(model.outliers(folder / "t.csv", 3, as_frame=True)) == 3
    assert ctem.inspect(str(folder / "t.csv")).rows == N


def test_a_file_in_another_format_is_a_table_as_well(fitted):
    folder, _, model = fitted
    table = pa.csv.read_csv(folder / "t.csv")
    pa.parquet.write_table(table, folder / "t.parquet")
    pa.feather.write_feather(table, folder / "t.arrow")
    scores = model.score_samples(folder / "t.csv")
    for name in ("t.parquet", "t.arrow"):
        assert np.allclose(model.score_samples(folder / name), scores, rtol=0, atol=1e-9)
        assert CTEM(**TINY).fit(folder / name).n_samples_seen_ == N


def test_a_call_reads_a_table_once(fitted, monkeypatch):
    folder, _, model = fitted
    X = pd.read_csv(folder / "t.csv")
    imputer = CTEMImputer(CTEM(**TINY)).fit(X)
    read = []
    for module in (ctem.estimators.estimator, ctem.estimators.imputer, ctem.fitting.intake):
        monkeypatch.setattr(module, "read_frame", lambda X: read.append(X) or read_frame(X))
    calls = (
        model.impute,
        model.score_samples,
        model.outliers,
        imputer.transform,
        imputer.intervals,
        imputer.draws,
        CTEMImputer(CTEM(**TINY)).fit,
        CTEMOutlier(CTEM(**TINY)).fit,
    )
    for call in calls:
        call(X)
        assert len(read) == 1, call
        read.clear()


def test_namibia_is_a_gap_unless_the_user_says_that_it_is_a_label(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "country,n\n" + "\n".join(f"{c},{i % 7}" for i, c in enumerate(["NA", "NO", "SE", ""] * 20))
    )
    text = pd.read_csv(path, dtype=str, keep_default_na=False)
    assert ctem.inspect(path).columns[0].missing == 40 == ctem.inspect(text).columns[0].missing
    wish = {"kinds": {"country": "category"}}
    assert (
        ctem.inspect(path, **wish).columns[0].missing == 20 == ctem.inspect(text, **wish).columns[0].missing
    )
    declared = text.replace("", None).astype({"country": pd.CategoricalDtype(["NA", "NO", "SE"])})
    assert ctem.inspect(declared).columns[0].missing == 20


def test_dates_whose_day_and_month_may_be_exchanged_are_remarked_on(tmp_path):
    text = ["03/04/2023", "05/06/2023", "11/02/2023"] * 40
    X = pd.DataFrame({"sold": text, "n": np.arange(120) % 7})
    found = [each for each in ctem.inspect(X).suspicions if each.kind == "date"]
    assert "'sold' is read by month, day, year" in str(found[0])
    with pytest.warns(UserWarning, match="'sold' is read by month, day, year"):
        CTEM(**TINY).fit(X)
    X.to_csv(tmp_path / "t.csv", index=False)
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "t.csv")])
    assert "--dates dmy" in result.stdout
    for known in (["13/04/2023", *text[1:]], [day.replace("/", ".") for day in text]):
        assert not [each for each in ctem.inspect(X.assign(sold=known)).suspicions if each.kind == "date"]
    assert not [each for each in ctem.inspect(X, reading={"dates": "dmy"}).suspicions if each.kind == "date"]
