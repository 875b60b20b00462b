"""Columns that name the rows, and tables that are not just as in fit: other orders, more columns, fewer."""

import json
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from small import EXACT
from typer.testing import CliRunner

from ctem import CTEM, inspect
from ctem.cli import app
from ctem.tables.io.frame import read_frame
from ctem.tables.schema import Schema

pytestmark = pytest.mark.filterwarnings("ignore:.*left out of the density")
N = 120
BRIEF = {**EXACT, "max_steps": 10, "width": 8}


def people(n=N, seed=0):
    rng = np.random.default_rng(seed)
    side = rng.integers(3, size=n)
    return pd.DataFrame(
        {
            "passenger_id": rng.permutation(5000)[:n],
            "name": [
                f"{first}, {last}" for first, last in zip(rng.permutation(n), rng.permutation(n), strict=True)
            ],
            "city": np.array(["Oslo", "Bergen", "Røros"])[side],
            "height": rng.normal(170 + 5 * side, 5),
            "note": [f"came in the {i} th year by ship number {i * 7}" for i in range(n)],
        }
    )


@pytest.fixture(scope="module")
def fitted():
    X = people()
    return X, CTEM(**EXACT).fit(X)


LEFT_OUT = ["passenger_id", "name", "note"]

KINDS = {
    "keys by name": ("customer_id", np.random.default_rng(0).permutation(9000)[:N], "identifier"),
    "keys in camel case": ("orderId", np.arange(7, 7 + 3 * N, 3), "identifier"),
    "row numbers": ("x", np.arange(1, N + 1), "identifier"),
    "hashes": ("h", [f"{i * 7919:08x}" for i in range(N)], "identifier"),
    "prose": ("note", [f"it was a bright cold day of {i}" for i in range(N)], "text"),
    "years": ("year", np.arange(1900, 1900 + N), "real"),
    "unique numbers": ("population", np.random.default_rng(0).permutation(9000)[:N], "real"),
    "repeated keys": ("store_id", np.arange(N) % 60, "real"),
    "many labels": ("city", [f"c{i % 70}" for i in range(N)], "category"),
    "emails": ("contact", [f"user{i % 40}@example.org" for i in range(N)], "identifier"),
    "pages": ("found", [f"https://example.org/{i % 40}" for i in range(N)], "identifier"),
    "phone numbers": ("call", [f"+47 55 {10 + i % 40} 123-4" for i in range(N)], "identifier"),
    "streets": ("home", [f"{i % 40 + 1} Baker Street" for i in range(N)], "identifier"),
    "persons": (
        "who",
        [f"{'ABCDE'[i % 5]}da Lov{'aeiou'[i // 5 % 5]}lace {'KLMN'[i // 25 % 4]}." for i in range(N)],
        "identifier",
    ),
    "surnames": ("last_name", [f"smith{i % 80}" for i in range(N)], "identifier"),
    "towns of two words": ("town", [f"New {'ABCDE'[i % 5]}berg" for i in range(N)], "category"),
    "times of a day": ("at", [f"{i % 24:02d}h" for i in range(N)], "category"),
}


@pytest.mark.parametrize("case", KINDS)
def test_what_names_the_rows_is_told_from_what_describes_them(case):
    name, values, kind = KINDS[case]
    schema = Schema.fit(read_frame(pd.DataFrame({name: values, "y": np.arange(N) % 3})))
    assert schema.columns[name].kind == kind
    assert schema.columns[name].reason.endswith("left out") == (kind in ("identifier", "text"))


def test_few_rows_and_arrays_have_no_identifiers():
    few = Schema.fit(read_frame(people(15)))
    assert few.left_out == ()
    assert Schema.fit(read_frame(people()[["passenger_id", "height"]].to_numpy())).left_out == ()


def test_the_user_may_insist():
    schema = Schema.fit(read_frame(people()), {"name": "category", "passenger_id": "real"})
    assert schema.left_out == ("note",)
    with pytest.raises(ValueError, match=r"'id' is left out: kinds=\{'id': 'category'\} takes it in"):
        Schema.fit(read_frame(pd.DataFrame({"id": np.arange(N)})))


def test_a_fit_says_what_it_leaves_out():
    X = people()
    with pytest.warns(UserWarning, match="left out of the density") as caught:
        CTEM(**BRIEF).fit(X)
    assert [str(each.message) for each in caught] == [
        "'passenger_id', 'name', 'note' name the rows or are free text: left out of the density; "
        "kinds={'passenger_id': 'category'} takes it in."
    ]
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CTEM(**BRIEF).fit(X.drop(columns=LEFT_OUT))


TEXT = {  # column → the cells that are put there, and what a fit must say of them
    "due": (
        {17: "2023-02-31", 40: "2023-13-01"},
        "'2023-02-31', '2023-13-01' in 2 rows (such as row 17), which no",
    ),
    "size": ({23: "n.d."}, "'n.d.' in 1 row (row 23): mark"),
}


@pytest.mark.parametrize("distinct", [15, 1000])  # labels, and a column that is left out
@pytest.mark.parametrize("name", TEXT)
def test_a_fit_says_which_cells_keep_a_column_from_being_dates_or_numbers(name, distinct):
    cells, words = TEXT[name]
    at = np.random.default_rng(1).integers(0, distinct, N)
    column = (pd.Timestamp("2021-03-04") + pd.to_timedelta(at, unit="D")).strftime("%Y-%m-%d").tolist()
    if name == "size":
        column = [f"{2 + number / 7:.3f}" for number in at]
    for row, text in cells.items():
        column[row] = text
    X = people()[["city", "height"]].assign(**{name: column})
    with pytest.warns(UserWarning, match="but also") as caught:
        model = CTEM(**BRIEF).fit(X)
    (message,) = (str(each.message) for each in caught)
    assert message.startswith(f"{name!r} holds {'dates' if name == 'due' else 'numbers'}, but also ")
    assert words in message
    assert ("left out" in message) == (name in model.schema_.left_out)
    assert str(next(iter(inspect(X).suspicions))) == message


def test_identifiers_change_no_density_and_lead_no_reasons(fitted):
    X, model = fitted
    assert list(model.schema_.left_out) == LEFT_OUT
    other = X.assign(name=X["name"][::-1].to_numpy(), passenger_id=-1, note="nothing")
    assert np.array_equal(model.score_samples(other), model.score_samples(X))
    assert not model.unseen(other).any()
    each = model.outlier_scores(other, by_column=True)
    assert (each[:, [0, 1, 4]] == 0).all()
    assert all(next(iter(found.columns)) in ("city", "height") for found in model.outliers(X, 10))


def test_real_identifiers_are_never_in_samples(fitted):
    _, model = fitted
    drawn = model.sample(50, random_state=0)
    assert list(drawn) == ["city", "height"]
    assert list(model.sample(5, random_state=0, given={"city": "Oslo"})) == ["city", "height"]
    assert np.isfinite(model.score_samples(drawn)).all()


def test_imputing_keeps_identifiers_as_they_are(fitted):
    X, model = fitted
    holes = X.assign(height=np.where(np.arange(N) % 2, np.nan, X["height"]), note=[None, *X["note"][1:]])
    for method in ("sample", "mode", "mean"):
        filled = model.impute(holes, method, random_state=0)
        pd.testing.assert_frame_equal(filled[LEFT_OUT], holes[LEFT_OUT])
        assert filled["height"].notna().all()


def test_a_condition_on_an_identifier_is_refused(fitted):
    _, model = fitted
    with pytest.raises(ValueError, match="column 'name' names the rows and is left out of the density"):
        model.sample(3, given={"name": ["a", "b"]})


def test_what_is_left_out_is_saved(fitted, tmp_path):
    X, model = fitted
    model.save(tmp_path / "m.ctem")
    again = CTEM.load(tmp_path / "m.ctem")
    assert again.schema_.left_out == model.schema_.left_out
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    assert json.loads(json.dumps(again.schema_.to_json())) == model.schema_.to_json()


LIBRARIES = {"pandas": lambda X: X, "polars": pl.from_pandas, "pyarrow": pa.Table.from_pandas}


@pytest.mark.parametrize("library", LIBRARIES)
def test_columns_may_come_in_any_order(library):
    X = people()
    to = LIBRARIES[library]
    model = CTEM(**BRIEF).fit(to(X))
    turned = X[X.columns[::-1].tolist()]
    assert np.array_equal(model.score_samples(to(turned)), model.score_samples(to(X)))
    holes = turned.assign(city=[None, *turned["city"][1:]])
    filled = model.impute(to(holes), "mode")
    names = filled.column_names if library == "pyarrow" else list(filled.columns)
    assert names == list(turned)


def test_more_columns_are_not_used_with_a_word_and_kept_in_impute(fitted):
    X, model = fitted
    more = X.assign(extra=1.5, other="x")
    with pytest.warns(UserWarning, match="X: not in the model, and not used: 'extra', 'other'"):
        assert np.array_equal(model.score_samples(more), model.score_samples(X))
    holes = more.assign(city=[None, *X["city"][1:]])
    with pytest.warns(UserWarning, match="not used"):
        filled = model.impute(holes, "mode")
    assert list(filled) == list(more)
    assert (filled["extra"] == 1.5).all()
    assert filled["city"].notna().all()


def test_a_question_needs_only_its_columns(fitted):
    X, model = fitted
    assert np.array_equal(
        model.log_density(X[["height", "city"]], ["height"], ["city"]),
        model.log_density(X, ["height"], ["city"]),
    )
    assert np.allclose(model.predict_proba(X[["height"]], "city"), model.predict_proba(X, "city"))


def test_a_column_that_is_not_there_counts_as_missing_with_a_word(fitted):
    X, model = fitted
    with pytest.warns(UserWarning, match="X: without 'height', counted as missing"):
        found = model.score_samples(X[["city"]])
    assert np.allclose(found, model.log_density(X, columns=["city"]), rtol=0, atol=1e-5)


def test_renamed_columns_are_an_error(fitted):
    X, model = fitted
    for wrong in (X.rename(columns={"height": "tallness"}), X[["name"]].rename(columns={"name": "n"})):
        with pytest.raises(ValueError, match="feature names should match those that were passed during fit"):
            model.score_samples(wrong)


def test_the_command_line_leaves_them_out_and_copies_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    people().assign(city=["", *people()["city"][1:]]).to_csv("t.csv", index=False)
    run = CliRunner().invoke
    said = run(app, ["fit", "t.csv", "-o", "m.ctem", "--max-steps", "5"]).stderr
    assert "identifier" in said
    assert run(app, ["sample", "m.ctem", "-n", "2"]).stdout.splitlines()[0] == "city,height"
    filled = run(app, ["impute", "m.ctem", "t.csv", "--method", "mode"]).stdout.splitlines()
    assert filled[0] == ",".join(people())
    assert filled[1].startswith(f'{people()["passenger_id"][0]},"{people()["name"][0]}",')
    people()[["city", "height"]].to_csv("less.csv", index=False)
    scores = run(app, ["score", "m.ctem", "less.csv"])
    assert (scores.exit_code, scores.stderr) == (0, "")


def test_nothing_is_predicted_of_a_column_that_is_left_out_or_was_always_missing():
    X = people()[["passenger_id", "city", "height"]].assign(nothing=np.nan)
    model = CTEM(**BRIEF).fit(X)
    words = r"'passenger_id' is left out of the density .*kinds=\{'passenger_id': 'category'\} takes it in"
    for ask in (model.predict, model.predict_proba, model.conditional):
        with pytest.raises(ValueError, match=words):
            ask(X[:2], "passenger_id")
        with pytest.raises(ValueError, match="'nothing' was always missing in fit"):
            ask(X[:2])  # the last column
    with pytest.raises(ValueError, match=words):
        model.classes("passenger_id")


def test_a_url_of_text_is_answered_with_what_to_do(tmp_path):
    people().to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ValueError, match=r"t\.csv: is no whole Parquet file, .*by pandas\.read_csv"):
        CTEM(**BRIEF).fit((tmp_path / "t.csv").as_uri())
