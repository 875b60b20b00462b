"""The command line: the API's numbers, tables in every format, one-line errors, and fits that survive a kill."""

import csv
import gc
import gzip
import io
import json
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from ctem import CTEM, cli
from ctem.cli import streams, work
from ctem.datasets import load_penguins
from ctem.densities.anyorder import Settings
from ctem.tables.io.csv_text import typed
from ctem.tables.io.files import Source, open_sink, open_source, reservoir

FIT = ["--max-steps", "8", "--device", "cpu", "-q"]
SMALL = Settings(width=8, blocks=1, members=2, orders=2, steps=100, batch_size=32, evaluate_every=10)


@pytest.fixture(scope="module", autouse=True)
def small():
    """The command line has no option for the size of networks: small ones make the tests quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Settings, "suited", lambda *sizes, **more: SMALL)
        yield


def rows(n=150, seed=0):
    """Text, a category of whole numbers, numbers, dates and booleans, with missing cells."""
    rng = np.random.default_rng(seed)
    side = rng.integers(3, size=n)
    gone = rng.random((n, 2)) < 0.1
    return pd.DataFrame(
        {
            "city": np.where(gone[:, 0], None, np.array(["Oslo", "Bergen", 'Røros, "the" old'])[side]),
            "rooms": side + rng.integers(3, size=n),
            "rain": np.where(gone[:, 1], np.nan, rng.normal(side, 0.5)),
            "born": pd.Timestamp("2000-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
            "smoker": rng.random(n) < 0.3,
        }
    ).astype({"born": "datetime64[s]"})


def ctem(*arguments, code=0):
    """What a command writes to standard output, and to standard error."""
    result = CliRunner().invoke(cli.app, [str(each) for each in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout, result.stderr


def batches_of(size, monkeypatch):
    for module in (streams, work):
        monkeypatch.setattr(module, "BATCH", size)


def table(text):
    return pa.csv.read_csv(io.BytesIO(text.encode()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table in every format, and a model of it."""
    folder = tmp_path_factory.mktemp("cli")
    X = rows()
    X.to_csv(folder / "t.csv", index=False)
    arrow = pa.Table.from_pandas(X, preserve_index=False)
    pq.write_table(arrow, folder / "t.parquet", row_group_size=40)
    pa.feather.write_feather(arrow, folder / "t.arrow", chunksize=7)
    with pa.ipc.new_stream(folder / "t.arrows", arrow.schema) as stream:
        stream.write_table(arrow)
    (folder / "t.csv.gz").write_bytes(gzip.compress((folder / "t.csv").read_bytes()))
    ctem("fit", folder / "t.csv", "-o", folder / "m.ctem", "--seed", 3, *FIT)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return CTEM.load(folder / "m.ctem", "cpu")


def test_a_fit_is_the_one_of_the_api_bit_for_bit(model):
    X = rows()
    same = CTEM(max_steps=8, random_state=3, device="cpu").fit(X)
    assert model.data_hash_ == same.data_hash_
    assert np.array_equal(model.score_samples(X), same.score_samples(X))


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "t.arrow", "t.arrows"])
def test_scores_are_those_of_the_api_in_every_format(folder, model, name):
    out, _ = ctem("score", folder / "m.ctem", folder / name, "-q")
    found = table(out)["log_density"].to_numpy()
    assert np.array_equal(found, model.score_samples(rows()))


@pytest.mark.parametrize("ending", ["csv", "parquet", "arrow"])
def test_scores_can_be_written_in_every_format_with_the_rows(folder, ending, tmp_path):
    target = tmp_path / f"scores.{ending}"
    out, _ = ctem("score", folder / "m.ctem", folder / "t.parquet", "-o", target, "--append")
    assert out == ""
    with open_source(str(target)) as source:
        found = pa.concat_tables(source.tables(1000))
    assert found.column_names == ["log_density", *rows().columns]
    assert found["rooms"].to_pylist() == rows()["rooms"].tolist() or ending == "csv"
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_info_says_the_seed_that_was_said(folder):
    assert "· seed 3\n" in ctem("info", folder / "m.ctem")[0]


def test_batches_change_no_score_and_no_outlier(folder, model, monkeypatch):
    batches_of(11, monkeypatch)
    out, _ = ctem("score", folder / "m.ctem", folder / "t.parquet")
    np.testing.assert_allclose(
        table(out)["log_density"].to_numpy(), model.score_samples(rows()), rtol=0, atol=1e-5
    )
    out, _ = ctem("outliers", folder / "m.ctem", folder / "t.parquet", "-n", 4)
    assert table(out)["row"].to_pylist() == [each.row for each in model.outliers(rows(), 4)]


def test_outliers_are_those_of_the_api_and_say_why(folder, model):
    others = rows()[1:]  # the rows of the fit themselves, in Python, compare among each other
    others.to_csv(folder / "others.csv", index=False)
    out, _ = ctem("outliers", folder / "m.ctem", folder / "others.csv", "-n", 3)
    found, expected = list(csv.DictReader(io.StringIO(out))), model.outliers(others, 3)
    assert [int(each["row"]) for each in found] == [each.row for each in expected]
    np.testing.assert_allclose(
        [float(each["score"]) for each in found], [each.score for each in expected], atol=0.0051
    )
    for each, other in zip(found, expected, strict=True):
        assert float(each["p_value"]) == pytest.approx(other.p_value, rel=0.01)
    assert [each["why"] for each in found] == [each.why() for each in expected]
    assert int(found[0]["rooms"]) == others["rooms"].iloc[expected[0].row]


def test_samples_are_those_of_the_api(folder, model, monkeypatch):
    draw = ["sample", folder / "m.ctem", "-n", 10]
    assert table(ctem(*draw, "--seed", 5)[0]).equals(typed_like(model.sample(10, random_state=5)))
    assert ctem(*draw)[0] == ctem(*draw, "--seed", 3)[0]  # the seed of the fit
    batches_of(4, monkeypatch)
    rng = np.random.RandomState(5)
    parts = pa.concat_tables([model.sample(size, random_state=rng) for size in (4, 4, 2)])
    assert table(ctem(*draw, "--seed", 5)[0]).equals(typed_like(parts))


def typed_like(X):
    """The table as it comes back from CSV."""
    out = io.BytesIO()
    pa.csv.write_csv(X, out)
    return pa.csv.read_csv(io.BytesIO(out.getvalue()))


@pytest.mark.parametrize("method", ["sample", "mode", "mean"])
def test_imputations_are_those_of_the_api_and_other_columns_pass(folder, model, method, tmp_path):
    X = pa.Table.from_pandas(rows(), preserve_index=False)
    with_id = X.add_column(2, "id", pa.array([f"{i:03}" for i in range(len(X))]))
    pq.write_table(with_id, tmp_path / "gaps.parquet")
    target = tmp_path / "full.parquet"
    _, err = ctem(
        "impute", folder / "m.ctem", tmp_path / "gaps.parquet", "-o", target, "--method", method, "--seed", 2
    )
    assert "not in the model, and not used: 'id'" in err
    filled, read = pq.read_table(target), pq.read_table(tmp_path / "gaps.parquet")
    assert filled.schema.equals(read.schema)
    assert filled.drop_columns("id").equals(model.impute(read.drop_columns("id"), method, random_state=2))
    assert filled["id"].equals(with_id["id"])
    assert sum(column.null_count for column in filled.columns) == 0


def test_categories_differ_between_row_groups_and_survive_every_format(folder, tmp_path):
    parts = [rows(20), rows(20, seed=1).iloc[::-1]]
    groups = [pa.Table.from_pandas(part.astype({"city": "category"}), preserve_index=False) for part in parts]
    with pq.ParquetWriter(tmp_path / "t.parquet", groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group)
    found = []
    for ending in ("csv", "arrow", "parquet"):
        target = tmp_path / f"full.{ending}"
        ctem("impute", folder / "m.ctem", tmp_path / "t.parquet", "-o", target, "-q")
        with open_source(str(target)) as source:
            found.append(pa.concat_tables(source.tables(1000))["city"].to_pylist())
    assert found[0] == found[1] == found[2]
    assert pa.types.is_dictionary(pq.read_schema(target).field("city").type)


def test_a_model_of_an_array_reads_each_batch_as_it_was_fitted(tmp_path, monkeypatch):
    X = np.array([["a", "1"], ["b", "x"], ["a", "2"]] * 50, object)
    model = CTEM(max_steps=4, device="cpu", random_state=0).fit(X)
    model.save(tmp_path / "m.ctem")
    X[:50, 1] = "1"  # in this batch alone a number
    pd.DataFrame(X).to_csv(tmp_path / "t.csv", index=False)
    batches_of(50, monkeypatch)
    found = table(ctem("score", tmp_path / "m.ctem", tmp_path / "t.csv", "-q")[0])
    assert found["log_density"].to_numpy() == pytest.approx(model.score_samples(X), abs=1e-5)


def test_categories_of_a_file_need_not_hold_all_labels(folder, tmp_path):
    X = rows().assign(city=pd.Categorical(["Oslo"] + [None] * 149))
    X.to_parquet(tmp_path / "few.parquet")
    ctem("impute", folder / "m.ctem", tmp_path / "few.parquet", "-o", tmp_path / "full.parquet", "-q")
    found = pd.read_parquet(tmp_path / "full.parquet")["city"]
    assert found.dtype == "category"
    assert set(found) == set(rows()["city"].dropna())


@pytest.mark.parametrize(
    "ending", ["csv", *(pytest.param(e, marks=pytest.mark.long) for e in ("parquet", "arrow"))]
)
def test_drawn_columns_may_have_no_value_in_a_batch(tmp_path, monkeypatch, ending):
    X = rows().assign(city=pd.Series(["Oslo", "Bergen", *[None] * 148], dtype=object))
    CTEM(max_steps=4, energy=None, device="cpu", random_state=0).fit(X).save(tmp_path / "m.ctem")
    batches_of(10, monkeypatch)
    target = tmp_path / f"new.{ending}"
    ctem("sample", tmp_path / "m.ctem", "-n", 400, "--with-missing", "-o", target, "-q")
    with open_source(str(target)) as source:
        assert set(pa.concat_tables(source.tables(1000))["city"].to_pylist()) == {"Oslo", "Bergen", None}


def test_whole_numbers_and_dates_may_be_written_longer_than_in_fit(folder, model, tmp_path):
    X = rows()
    longer = X.assign(rooms=X["rooms"] + 0.0, born=X["born"].astype(str) + " 00:00:00")
    longer.loc[::7, "rooms"] = np.nan  # so pandas writes the others as 3.0
    longer.to_csv(tmp_path / "longer.csv", index=False)
    found = table(ctem("score", folder / "m.ctem", tmp_path / "longer.csv", "-q")[0])
    shorter = X.assign(rooms=longer["rooms"])
    assert found["log_density"].to_numpy() == pytest.approx(model.score_samples(shorter), abs=1e-9)


@pytest.mark.parametrize("command", [["score", "--append"], ["impute"], ["outliers", "-n", "5"]])
def test_views_of_text_as_polars_writes_them_are_text(folder, tmp_path, command):
    written = pa.Table.from_pandas(rows(), preserve_index=False)
    viewed = written.set_column(0, "city", written["city"].cast(pa.string_view()))
    for name, table in (("text.arrow", written), ("views.arrow", viewed)):
        with pa.ipc.new_file(tmp_path / name, table.schema) as file:
            file.write_table(table, max_chunksize=40)
    found = [
        ctem(command[0], folder / "m.ctem", tmp_path / name, "-q", *command[1:])
        for name in ("text.arrow", "views.arrow")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "ending", ["csv", *(pytest.param(e, marks=pytest.mark.long) for e in ("parquet", "arrow"))]
)
def test_a_pipe_in_and_a_pipe_out(folder, model, ending):
    command = f"'{sys.executable}' -m ctem score m.ctem - --format {ending} --device cpu < t.{ending} | cat"
    if ending == "parquet":
        command = "cat t.parquet | " + command.replace("< t.parquet ", "")
    run = subprocess.run(command, shell=True, cwd=folder, capture_output=True, check=True)
    assert run.stderr == b""
    with io.BytesIO(run.stdout) as out:
        read = {
            "csv": pa.csv.read_csv,
            "parquet": pq.read_table,
            "arrow": lambda file: pa.ipc.open_stream(file).read_all(),
        }
        found = read[ending](out)["log_density"].to_numpy()
    assert np.array_equal(found, model.score_samples(rows()))


@pytest.mark.long
def test_a_reader_that_has_had_enough_is_no_error(folder):
    command = [sys.executable, "-m", "ctem", "score", "m.ctem", "many.csv", "--append"]
    pd.concat([rows().dropna()] * 60).to_csv(folder / "many.csv", index=False)
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.readline()
        run.stdout.close()
        assert run.stderr.read() == b""
    assert run.returncode == 0


def test_models_of_pandas_and_of_arrays_take_files(tmp_path):
    X = rows()
    X["rooms"] = pd.Categorical(X["rooms"])
    model = CTEM(max_steps=8, random_state=0).fit(X)
    model.save(tmp_path / "m.ctem")
    X.to_csv(tmp_path / "t.csv", index=False)
    out, _ = ctem("score", tmp_path / "m.ctem", tmp_path / "t.csv")
    assert np.array_equal(table(out)["log_density"].to_numpy(), model.score_samples(X))
    assert table(ctem("sample", tmp_path / "m.ctem", "-n", 3)[0]).column_names == list(X.columns)
    A = X[["rain", "rooms"]].astype(float).to_numpy()
    model = CTEM(max_steps=8, random_state=0).fit(A)
    model.save(tmp_path / "m.ctem")
    pd.DataFrame(A, columns=["any", "names"]).to_csv(tmp_path / "t.csv", index=False)
    out, err = ctem("score", tmp_path / "m.ctem", tmp_path / "t.csv")
    assert np.array_equal(table(out)["log_density"].to_numpy(), model.score_samples(A))
    assert err == ""
    filled = table(ctem("impute", tmp_path / "m.ctem", tmp_path / "t.csv", "--seed", 1)[0])
    assert np.array_equal(np.column_stack(filled.columns), model.impute(A, random_state=1))


def test_columns_can_be_said_dropped_and_their_gaps_made_values_and_effort_goes_to_the_model(
    folder, tmp_path
):
    said = ["--kind", "rooms=category", "-k", "rain=real", "--drop", "born", "--missing-as-state"]
    ctem("fit", folder / "t.csv", "-o", tmp_path / "m.ctem", "--effort", "quick", *said, *FIT)
    assert CTEM.load(tmp_path / "m.ctem").effort == "quick"
    facts = json.loads(ctem("info", tmp_path / "m.ctem", "--json")[0])
    assert {each["name"]: each["kind"] for each in facts["columns"]}["rooms"] == "category"
    assert "born" not in {each["name"] for each in facts["columns"]}
    same = CTEM(
        kinds={"rooms": "category", "rain": "real"},
        missing="state",
        effort="quick",
        max_steps=8,
        random_state=0,
        device="cpu",
    ).fit(rows().drop(columns="born"))
    assert facts["data_hash"] == same.data_hash_


def test_rules_can_be_asked_for_and_refused(tmp_path):
    rng = np.random.default_rng(0)
    a, b = rng.integers(30, size=300), rng.integers(1, 9, size=300)
    pd.DataFrame({"a": a, "b": b, "c": a + b}).to_csv(tmp_path / "t.csv", index=False)
    found = []
    for rules in (
        [],
        ["--rule", "not c", "--rule", "not a", "--rule", "not b"],
        ["--rule", "c from a and b"],
    ):
        ctem("fit", tmp_path / "t.csv", "-o", tmp_path / "m.ctem", "--overwrite", *rules, *FIT)
        schema = CTEM.load(tmp_path / "m.ctem").schema_
        found.append([*schema.rules, *schema.orders, *schema.formulas])
    assert found[0]
    assert not found[1]
    assert any(getattr(each, "target", "") == "c" for each in found[2])
    _, err = ctem("fit", tmp_path / "t.csv", "-o", tmp_path / "n.ctem", "--rule", "c from d", *FIT, code=1)
    assert "which is not in the table" in " ".join(err.split())


def test_what_is_said_goes_to_standard_error(folder, tmp_path):
    out, err = ctem("fit", folder / "t.csv", "-o", tmp_path / "m.ctem", "--max-steps", 4)
    assert out == ""
    assert "city" in err
    assert "training" in err
    assert "150 rows, 5 columns" in err
    assert [path.name for path in tmp_path.iterdir()] == ["m.ctem"]


@pytest.mark.filterwarnings("default:max_time:UserWarning")
def test_a_fit_that_was_cut_while_it_improved_says_so_and_so_does_info(folder, tmp_path, monkeypatch):
    words = "still improving: training ended at its limit while held-out rows still gained"
    for cut in (words, ""):
        for module in ("estimator", "record"):
            monkeypatch.setattr(f"ctem.estimators.{module}.still_improving", lambda history, cut=cut: cut)
        _, err = ctem("fit", folder / "t.csv", "-o", tmp_path / "m.ctem", "--max-steps", 4)
        assert (words in err) == bool(cut)
        assert (words in ctem("info", tmp_path / "m.ctem")[0]) == bool(cut)
        _, err = ctem("fit", folder / "t.csv", "-o", tmp_path / "m.ctem", "--max-steps", 4, "--max-time", 100)
        assert err.count(words) == bool(cut)


def test_info_names_columns_and_provenance(folder):
    out, _ = ctem("info", folder / "m.ctem")
    assert "rooms" in out
    assert "effort default" in out
    facts = json.loads(ctem("info", folder / "m.ctem", "--json")[0])
    assert facts["provenance"]["rows"] == facts["rows"] == 150


def test_a_report_is_written(folder, tmp_path):
    out, _ = ctem("report", folder / "m.ctem", folder / "t.csv", "-o", tmp_path / "r.html")
    assert out == ""
    assert "Bergen" in (tmp_path / "r.html").read_text(encoding="utf8")


@pytest.mark.parametrize("command", ["fit", "score", "sample", "impute", "outliers", "report", "info"])
def test_help_has_an_example(command):
    assert f"ctem {command} adult.c" in ctem(command, "--help")[0]


def bad(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


ERRORS = {
    "no model": (lambda f: ["info", f / "none.ctem"], "no file at .*none.ctem"),
    "no table": (lambda f: ["score", f / "m.ctem", f / "none.csv"], "none.csv: expected a CSV, Parquet or Arrow"),
    "a folder": (lambda f: ["score", f / "m.ctem", f], "a new or empty folder for the parts"),
    "not a model": (lambda f: ["sample", f / "t.csv"], "damaged or not a ctem model"),
    "nothing": (lambda f: ["score", f / "m.ctem", bad(f, "0.csv", "")], "expected a table; got nothing"),
    "no rows": (lambda f: ["fit", bad(f, "h.csv", "a,b\n"), "-o", f / "x.ctem"], r"h\.csv: "),
    "ragged": (lambda f: ["fit", bad(f, "r.csv", "a,b\n1,2\n3\n"), "-o", f / "x.ctem"], r"r\.csv, line 3: .* got 1"),
    "names alone": (lambda f: ["inspect", bad(f, "n.csv", "a,b\n")], "expected rows below the line of names; got none"),
    "a name twice": (lambda f: ["fit", bad(f, "d.csv", "a,a\n1,2\n"), "-o", f / "x.ctem"], "'a' comes 2 times"),
    "not text": (lambda f: ["fit", sys.executable, "-o", f / "x.ctem"], "the first line is not text|expected"),
    "a column is absent": (lambda f: ["score", f / "m.ctem", bad(f, "a.csv", "city\nx\n")], "expected column 'rooms'"),
    "another kind": (
        lambda f: ["score", f / "m.ctem", bad(f, "k.csv", "city,rooms,rain,born,smoker\nOslo,x,1,2000-01-01,true\n")],
        "k.csv: column 'rooms', row 0: expected a whole number, as in fit; got 'x'",
    ),
    "unknown column": (lambda f: ["fit", f / "t.csv", "-o", f / "x.ctem", "-k", "no=real"], "'no' is not in the table"),
    "nothing to drop": (lambda f: ["fit", f / "t.csv", "-o", f / "x.ctem", "--drop", "no"], "'no' is not in"),
    "no such folder": (lambda f: ["fit", f / "t.csv", "-o", f / "no" / "x.ctem"], "x.ctem: cannot be written"),
    "no format": (lambda f: ["sample", f / "m.ctem", "-o", f / "x.xlsx"], "ends in .csv, .parquet or .arrow"),
    "a damaged Parquet file": (
        lambda f: ["score", f / "m.ctem", bad(f, "p.parquet", "PAR1 and no more")],
        "p.parquet: .*[Pp]arquet",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_one_clear_line_and_exit_code_1(folder, case):
    arguments, message = ERRORS[case]
    out, err = ctem(*arguments(folder), code=1)
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("ctem: error: ")
    assert re.search(message, err), err


USAGE = [
    ["fit", "t.csv"],
    ["fit", "t.csv", "-o", "m", "--kind", "age=blue"],
    ["fit", "t.csv", "-o", "m", "--max-rows", "1"],
    ["fit", "t.csv", "-o", "m", "--effort", "much"],
    ["score", "m", "--exact"],
    ["score", "m", "--device", "abacus"],
    ["sample", "m", "-n", "0"],
    ["guess"],
]


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_wrong_usage_is_exit_code_2(arguments):
    assert ctem(*arguments, code=2)[0] == ""


def test_debug_shows_where_an_error_comes_from():
    result = CliRunner().invoke(cli.app, ["--debug", "info", "none.ctem"])
    assert isinstance(result.exception, FileNotFoundError)


def test_an_error_in_a_later_batch_says_from_where_rows_count(folder, tmp_path, monkeypatch):
    batches_of(100, monkeypatch)
    wrong = pd.concat([rows(), rows()[-1:].assign(rain=1e308)])
    wrong.to_csv(tmp_path / "t.csv", index=False)
    _, err = ctem("score", folder / "m.ctem", tmp_path / "t.csv", code=1)
    assert "column 'rain', row 50: 1e+308 is further than float64 can hold" in err
    assert "(Rows here count from row 100 of the table.)" in err


def test_a_value_never_seen_is_scored_and_said(folder, tmp_path, monkeypatch):
    batches_of(100, monkeypatch)
    new = pd.concat([rows(), rows()[-1:].assign(city="Rome"), rows()[:1]])
    new.to_csv(tmp_path / "t.csv", index=False)
    out, err = ctem("score", folder / "m.ctem", tmp_path / "t.csv")
    assert np.isfinite(table(out)["log_density"].to_numpy()).all()
    assert "t.csv: 1 row holds a value never seen in fit, first 'city' in row 150" in err
    out, _ = ctem("outliers", folder / "m.ctem", tmp_path / "t.csv", "-n", 151)
    found = {int(each["row"]): each["why"] for each in csv.DictReader(io.StringIO(out))}
    assert "city Rome, a value never seen" in found[150]
    assert not any("never seen" in why for row, why in found.items() if row != 150)


def test_a_failed_command_leaves_no_output_and_the_old_one_untouched(folder, tmp_path):
    target = tmp_path / "scores.csv"
    target.write_text("old")
    wrong = pd.concat([rows(), rows()[-1:].assign(rain=1e308)])
    wrong.to_csv(tmp_path / "t.csv", index=False)
    ctem("score", folder / "m.ctem", tmp_path / "t.csv", "-o", target, code=1)
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scores.csv", "t.csv"]


def test_every_row_is_as_likely_to_stay_in_the_reservoir():
    counts = np.zeros(40)
    for seed in range(600):
        tables = [pa.table({"n": range(k, min(k + 7, 40))}) for k in range(0, 40, 7)]
        kept, total = reservoir(tables, 10, seed)
        chosen = kept["n"].to_numpy()
        assert total == 40
        assert np.array_equal(chosen, np.unique(chosen))
        assert len(chosen) == 10
        counts[chosen] += 1
    deviation = (counts - 150) / np.sqrt(600 * 0.25 * 0.75)
    assert np.abs(deviation).max() < 4


def test_a_table_longer_than_max_rows_is_sampled_and_that_is_said(folder, tmp_path):
    _, err = ctem("fit", folder / "t.csv", "-o", tmp_path / "m.ctem", "--max-rows", 100, "--max-steps", 4)
    assert "150 rows; a random sample of 100 is used (seed 0)" in err
    assert CTEM.load(tmp_path / "m.ctem").n_samples_seen_ == 100


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a;b\n1;x,y\n2;z\n", {"a": [1, 2], "b": ["x,y", "z"]}),
        ("\ufeffa\tb\r\n1\t2\r\n", {"a": [1], "b": [2]}),
        ('"a\nb",c\n" 1",NA\n2,\n', {"a\nb": [1, 2], "c": [None, None]}),
        ("a\n0.5\n1\n", {"a": [0.5, 1.0]}),
        ("a,b\n39, State-gov\n50, Private\n", {"a": [39, 50], "b": [" State-gov", " Private"]}),
        ("a\nTrue\nfalse\n", {"a": [True, False]}),
        ('a\n"one\ntwo"\nthree', {"a": ["one\ntwo", "three"]}),
    ],
)
def test_csv_in_its_dialects(tmp_path, text, expected):
    (tmp_path / "t.csv").write_bytes(text.encode())
    with open_source(str(tmp_path / "t.csv")) as source:
        (found,) = source.tables(100)
    assert typed(found).to_pydict() == expected


def test_text_that_turns_up_late_makes_a_column_text(tmp_path):
    (tmp_path / "t.csv").write_text("a\n" + "1\n" * 100_000 + "x\n")
    with open_source(str(tmp_path / "t.csv")) as source:
        X, total = reservoir(source.tables(2**16), 10**6, 0)
    assert total == 100_001
    assert str(typed(X).schema.field("a").type) == "string"


def test_tables_have_the_size_that_was_asked_for(tmp_path):
    batches = [pa.record_batch({"n": pa.array(range(k), pa.int64())}) for k in (0, 5, 1, 9, 0, 2)]
    parts = list(Source("t", ["n"], 17, False, batches).tables(4))
    assert [len(part) for part in parts] == [4, 4, 4, 4, 1]
    assert pa.concat_tables(parts).equals(pa.Table.from_batches(batches))
    with pytest.raises(ValueError, match="t: expected at least 1 row; got none"):
        list(Source("t", ["n"], 0, False, batches[:1]).tables(4))


@pytest.mark.parametrize("ending", ["csv", "parquet", "arrow"])
def test_a_sink_that_fails_leaves_nothing_and_is_silent(tmp_path, ending):
    def write():
        with open_sink(str(tmp_path / f"t.{ending}")) as sink:
            sink.write(pa.table({"a": [1]}))
            sink.write(pa.table({"a": ["x"]}))

    with pytest.raises(pa.ArrowInvalid):
        write()
    gc.collect()  # a writer that is left open complains here
    assert not list(tmp_path.iterdir())


SCRIPT = f"""
import resource, sys
from ctem import cli
from ctem.densities.anyorder import Settings
Settings.suited = lambda *sizes, **more: {SMALL!r}
if limit := int(sys.argv.pop(1)):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
cli.app()
"""


def start(config, *arguments, limit=0):
    """A command in a process of its own, with small networks and a limit on the size of files."""
    command = [sys.executable, "-c", SCRIPT, *map(str, (limit, *arguments))]
    return subprocess.Popen(command, cwd=config.rootpath / "tests", stderr=subprocess.PIPE, text=True)


@pytest.mark.long  # test_training and test_estimator have the law without processes of their own
def test_a_killed_fit_resumes_to_the_same_bits(folder, tmp_path, pytestconfig):
    def fit(name, *options):
        long = ["--max-steps", 50, "--device", "cpu", "-q"]
        return start(pytestconfig, "fit", folder / "t.csv", "-o", tmp_path / name, *long, *options)

    killed = fit("killed.ctem")
    while not (tmp_path / "killed.ctem.checkpoint.first").exists():
        assert killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "killed.ctem").exists()
    for run in (fit("killed.ctem", "--resume"), fit("whole.ctem")):
        assert run.communicate()[1] == ""
        assert run.returncode == 0
    results = [CTEM.load(tmp_path / name, "cpu") for name in ("killed.ctem", "whole.ctem")]
    assert np.array_equal(*(model.score_samples(rows()) for model in results))
    assert results[0].history_ == results[1].history_
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed.ctem", "whole.ctem"]


def test_resuming_with_other_data_is_refused(folder, tmp_path, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    options = ["-o", tmp_path / "m.ctem", *FIT]
    with monkeypatch.context() as patch:
        patch.setattr(CTEM, "save", stop)
        CliRunner().invoke(cli.app, [str(each) for each in ["fit", folder / "t.csv", *options]])
    assert (tmp_path / "m.ctem.checkpoint.first").exists()
    _, err = ctem("fit", folder / "t.csv", *options, "--seed", 9, "--resume", code=1)
    assert "belongs to another recipe, network or data" in err
    ctem("fit", folder / "t.csv", *options, "--seed", 9)


@pytest.mark.long
@pytest.mark.parametrize("command", ["fit", "sample"])
def test_a_full_disk_leaves_the_old_file_untouched(folder, tmp_path, command, pytestconfig):
    old = folder / {"fit": "m.ctem", "sample": "t.csv"}[command]  # files of their kinds
    target = tmp_path / f"old{old.suffix}"
    shutil.copy(old, target)
    rest = {"fit": [folder / "t.csv", *FIT], "sample": [folder / "m.ctem", "-n", 300]}[command]
    run = start(pytestconfig, command, *rest, "-o", target, limit=resource.getpagesize())
    err = run.communicate()[1]
    assert run.returncode == 1
    assert "File too large" in err
    assert len(err.splitlines()) == 1
    assert target.read_bytes() == old.read_bytes()
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("backend", ["pandas", "polars", "pyarrow"])
def test_the_penguins_come_with_the_package(backend):
    penguins = load_penguins(backend)
    assert penguins.shape == (344, 8)
    names = [
        "species",
        "island",
        "bill_length_mm",
        "bill_depth_mm",
        "flipper_length_mm",
        "body_mass_g",
        "sex",
        "year",
    ]
    assert list(penguins.column_names if backend == "pyarrow" else penguins.columns) == names
    if backend == "pyarrow":
        assert sum(column.null_count for column in penguins.columns) == 19


def test_the_commands_in_the_readme_are_commands():
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf8")
    lines = re.findall(r"^ctem .*", text, re.MULTILINE)
    assert lines
    group = typer.main.get_command(cli.app)
    for line in lines:
        _, name, *words = shlex.split(line, comments=True)
        words = words[: words.index(">")] if ">" in words else words
        group.commands[name].make_context(name, words)
