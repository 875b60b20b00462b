"""Inspecting a table before any fit: every trap is found once, with advice, and an ordinary table has none."""

import json

import numpy as np
import pandas as pd
import pytest
from small import EXACT
from typer.testing import CliRunner

import ctem
from ctem import CTEM, cli
from ctem.report import write_report
from ctem.tables.inference.rules import rules

N = 400


def ordinary(n=N, seed=0):
    """A table about which nothing is odd."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "city": rng.choice(["Oslo", "Bergen", "Tromsø"], n),
            "children": rng.integers(0, 4, n),
            "height": rng.normal(170, 10, n),
            "born": pd.Timestamp("1990-01-01") + pd.to_timedelta(rng.integers(0, 9000, n), unit="D"),
        }
    )


def with_cells(values, rows, other):
    values = np.array(values, object)
    values[rows] = other
    return list(values)


RNG = np.random.default_rng(1)
CITY = RNG.integers(6, size=N)
AGE = RNG.integers(18, 80, N)
DAYS = pd.Timestamp("2001-02-03") + pd.to_timedelta(RNG.integers(0, 5000, N), unit="D")
TRAPS = {  # what is odd → columns that are put beside ordinary ones, and words of the sentence that must come
    "a code among numbers": ({"age": with_cells(AGE, [3, 9], 999)}, "code", "'age' holds 999 in 2 rows"),
    "a negative code": ({"age": with_cells(AGE, [5], -1)}, "code", "'age' holds -1 in 1 row"),
    "a code in most rows": (
        {"days": np.where(RNG.random(N) < 0.8, -1, RNG.integers(0, 300, N))},
        "code",
        "'days' holds -1",
    ),
    "a code among dates": (
        {"seen": with_cells(DAYS, [8], pd.Timestamp("1900-01-01"))},
        "code",
        "'seen' holds 1900-01-01 in 1 row",
    ),
    "days far ahead": (
        {"due": [str(day.date()) for day in with_cells(DAYS, [8], pd.Timestamp("2203-05-06"))]},
        "date",
        "'due' holds days after 2100 in 1 row, such as 2203-05-06",
    ),
    "a day that is none": (
        {"due": with_cells([str(day.date()) for day in DAYS], [8], "2023-02-30")},
        "date",
        "'due' holds dates, but also '2023-02-30' in 1 row (row 8), which no calendar has",
    ),
    "text among dates": (
        {"due": with_cells([str(day.date()) for day in DAYS], [8, 9], "soon")},
        "mixed",
        "'due' holds dates, but also 'soon' in 2 rows (such as row 8)",
    ),
    "text among numbers": (
        {"size": with_cells([str(size) for size in AGE], [8, 9], "large")},
        "mixed",
        "'size' holds numbers, but also 'large' in 2 rows (such as row 8)",
    ),
    "keys": ({"key": [f"k{i:05d}" for i in range(N)]}, "left out", "'key' names its rows"),
    "one value": ({"unit": ["kg"] * N}, "constant", "'unit' holds one value"),
    "nothing": ({"note": [None] * N}, "constant", "'note' holds nothing"),
    "hardly anything": (
        {"note": [("a", "b")[i % 2] if i < 10 else None for i in range(N)]},
        "mostly missing",
        "'note' is missing in 97.5%",
    ),
    "two spellings": (
        {"sex": with_cells(RNG.choice(["male", "female"], N), [2], "Male ")},
        "spelling",
        "'sex' spells one value in several ways, such as ",
    ),
    "a column twice": (
        {"m": AGE + 0.25 * np.arange(N), "metres": AGE + 0.25 * np.arange(N)},
        "copied column",
        "'m' and 'metres' hold the same numbers",
    ),
    "two columns that hold the same": (
        {"pclass": 1 + CITY % 3, "class": np.array(["First", "Second", "Third"])[CITY % 3]},
        "rule",
        "'pclass' and 'class' hold the same",
    ),
    "a broken rule": (
        {"pclass": 1 + CITY % 3, "class": with_cells(np.array(list("ABC"))[CITY % 3], [77], "D")},
        "rule",
        "'pclass' and 'class' hold the same but in 1 row (row 77)",
    ),
    "a column that follows from another": (
        {"town": np.array(list("abcdef"))[CITY], "state": np.array(list("XY"))[CITY // 3]},
        "rule",
        "'state' follows from 'town'",
    ),
    "numbers beyond float64": (
        {"vast": with_cells(RNG.normal(size=N), [0, 1], 1.7e308)},
        "refused",
        "'vast' cannot be fitted",
    ),
}


def test_nothing_is_odd_about_an_ordinary_table():
    for seed in range(5):
        assert ctem.inspect(ordinary(seed=seed)).suspicions == []


@pytest.mark.parametrize("trap", TRAPS)
def test_every_trap_is_found_with_advice_and_nothing_else_is(trap):
    columns, kind, words = TRAPS[trap]
    X = ordinary().assign(**columns)
    for name in set(columns) & {"age", "vast"}:
        X[name] = pd.to_numeric(X[name])
    if trap == "a code among dates":
        X["seen"] = pd.to_datetime(X["seen"])
    (found,) = ctem.inspect(X).suspicions
    assert found.kind == kind
    assert str(found).startswith(words)
    assert found.advice
    assert set(found.columns) <= set(columns)


def test_copied_rows_are_found_although_each_has_its_number():
    X = ordinary()
    X = pd.concat([X, X.iloc[[5, 6]]], ignore_index=True)
    for table, rest in ((X, ""), (X.assign(order_id=np.arange(len(X)) + 7), ", but for what names them")):
        found = [each for each in ctem.inspect(table).suspicions if each.kind == "copied rows"]
        assert str(found[0]).startswith(f"2 rows are copies of others (rows 5 and {N}, counted from 0{rest})")


def test_a_table_of_few_values_has_no_copied_rows():
    X = ordinary()[["city", "children"]]
    assert X.duplicated().mean() > 0.9
    assert ctem.inspect(X).suspicions == []


def test_columns_that_have_nothing_to_do_with_each_other_make_no_rule():
    rng = np.random.default_rng(0)
    columns = {f"c{size}": rng.integers(size, size=300) for size in (2, 3, 10, 60, 150, 290)}
    rare = {f"r{share}": (rng.random(300) < share).astype(int) for share in (0.005, 0.02, 0.5)}
    assert rules(columns | rare) == []


def test_of_a_hierarchy_each_level_follows_from_the_next_finer_one():
    town = np.random.default_rng(0).integers(27, size=2000)
    found = rules({"town": town, "county": town // 3, "state": town // 9})
    assert [(rule.of, rule.column) for rule in found] == [("town", "county"), ("county", "state")]


def test_what_a_fit_would_take_columns_for_is_what_inspect_says():
    X = ordinary().assign(share=[f"{i % 7 / 2} %" for i in range(N)], code=[f"{i % 9:05d}" for i in range(N)])
    seen = [
        (each.name, each.kind, each.reason) for each in ctem.inspect(X, kinds={"children": "real"}).columns
    ]
    model = CTEM(**EXACT, kinds={"children": "real"}).fit(X)
    assert seen == [(each.name, each.kind, each.reason) for each in model.schema_.describe()]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_table_of_the_findings_is_of_the_library_of_the_data(library):
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    X = ordinary().assign(age=pd.to_numeric(pd.Series(with_cells(AGE, [3], 999))))
    made = {"pandas": X, "polars": pl.from_pandas(X), "pyarrow": pa.Table.from_pandas(X)}[library]
    found = ctem.inspect(made).as_frame()
    assert type(found).__module__.startswith(library)
    frame = found if library == "pandas" else found.to_pandas()
    assert frame["column"].tolist() == list(X)
    assert frame["suspicions"].str.len().gt(0).tolist() == [False] * 4 + [True]
    assert ctem.inspect(np.ones((5, 1)) * np.arange(5)[:, None]).as_frame()["values"].tolist() == [5]


def test_marks_of_missing_cells_are_no_codes_any_more():
    X = ordinary().assign(age=pd.to_numeric(pd.Series(with_cells(AGE, [3, 9], 999))))
    found = ctem.inspect(X, reading={"na": ["999"]})
    assert found.suspicions == []
    assert found.columns[-1].missing == 2


def test_the_command_line_says_what_python_says(tmp_path):
    X = ordinary().assign(age=pd.to_numeric(pd.Series(with_cells(AGE, [3, 9], 999))))
    X.to_csv(tmp_path / "t.csv", index=False)
    result = CliRunner().invoke(cli.app, ["inspect", str(tmp_path / "t.csv"), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == json.loads(
        json.dumps(ctem.inspect(X.astype({"born": "M8[s]"})).to_json())
    )
    shown = CliRunner().invoke(cli.app, ["inspect", str(tmp_path / "t.csv")]).stdout
    assert (
        "! 'age' holds 999 in 2 rows, which looks like a code for missing: if it is one, --na=999 marks it."
        in shown
    )
    calm = CliRunner().invoke(cli.app, ["inspect", str(tmp_path / "t.csv"), "--na", "999"]).stdout
    assert "Nothing seems odd." in calm


def test_a_terminal_shows_hostile_names_and_labels_and_obeys_none(tmp_path):
    pd.DataFrame({"a\x1b[2J": ["x"] * 30, "b": ["y", "\x1b[31mY"] * 15}).to_csv(
        tmp_path / "t.csv", index=False
    )
    result = CliRunner().invoke(cli.app, ["inspect", str(tmp_path / "t.csv")])
    assert result.exit_code == 0, result.output
    assert "\x1b[2J" not in result.stdout


def test_the_report_begins_with_what_is_odd_about_the_table(tmp_path):
    X = ordinary().assign(age=pd.to_numeric(pd.Series(with_cells(AGE, [3, 9], 999))))
    text = write_report(CTEM(**EXACT).fit(X), X, tmp_path / "r.html", n_samples=50).read_text("utf-8")
    main = text[text.index("<main>") :]
    assert main.startswith('<main><section id="columns">')
    assert "holds 999 in 2 rows, which looks like a code for missing" in main[: main.index("</section>")]


def test_gaps_that_depend_on_another_column_are_said_and_others_are_not():
    X = ordinary()
    rng = np.random.default_rng(0)
    alive = rng.random(N) < 0.5
    died = np.where(alive, np.nan, np.round(rng.normal(70, 9, N), 1))
    lost = np.where(rng.random(N) < 0.3, np.nan, np.round(rng.normal(size=N), 1))
    found = {
        each.name: each.reason for each in ctem.inspect(X.assign(alive=alive, died=died, lost=lost)).columns
    }
    assert "which depends on alive: sample(with_missing=True) draws gaps as well" in found["died"]
    assert "depends" not in found["lost"]
