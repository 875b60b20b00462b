"""The script of the explorer, in node: for every kind of column it answers what Python answers, energy or not."""

import json
import shutil
import subprocess
from copy import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from small import SMALL
from test_explorer import assert_drawn_alike, drawn_by_python, probabilities, random_questions, table

from ctem import CTEM
from ctem.densities.tilted import Plan, TiltedDensity
from ctem.fitting import learning
from ctem.report import explorer
from ctem.report.explorer import explorer_data, explorer_section, row_cells
from ctem.report.findings import examine
from ctem.tables.answers.density import TableDensity
from ctem.tables.answers.events import conditional_probability
from ctem.tables.encoding.codecs import Labels
from ctem.tables.encoding.lookup import cells_of
from ctem.tables.io.frame import Frame
from ctem.tables.io.rows import taken

NODE = shutil.which("node")
ASKED = 30
BRIEF = Plan(rounds=2, draws=2.0, trees=25, patience=5, fresh=1500)
pytestmark = pytest.mark.skipif(NODE is None, reason="no node found: the script of the explorer was not run")


def every_kind(n=500, seed=0):
    """``table``, and grades, shares between two ends, codes for gaps, times of day, and gaps in half of the columns.

    Grades and shares follow from scores, but not smoothly: an energy has much to find.
    """
    rng, X = np.random.default_rng(seed), table(n, seed)
    score, minutes = rng.integers(0, 100, n), 20 * 60 + rng.integers(0, 480, n)
    grade = score // 10 % 3
    X = X.assign(
        score=np.where(rng.random(n) < 0.2, -999, score),
        share=np.round((grade + rng.beta(2, 1, n)) / 3, 3),
        grade=pd.Categorical.from_codes(grade, ["poor", "fair", "good"], ordered=True),
        clock=[f"{m // 60 % 24:02d}:{m % 60:02d}" for m in minutes],
    )
    holes = rng.random(X.shape) < 0.05 * (np.arange(X.shape[1]) % 2)
    return X.mask(holes)[[*X.columns.drop("planet"), "planet"]]


@pytest.fixture(scope="module")
def fitted():
    X = every_kind()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(learning.PLANS, "default", BRIEF)
        return X, CTEM(**SMALL).fit(X)


@pytest.fixture(scope="module", params=["energy", pytest.param("networks", marks=pytest.mark.long)])
def asked(request, fitted):
    """A table, a model with an energy or without it, and what the page of its report carries."""
    X, model = fitted[0], copy(fitted[1])
    assert isinstance(model.density_, TiltedDensity)
    if request.param == "networks":
        model.density_ = model.density_.plain
    return X, model, explorer_data(model, examine(model, X, None, 20, 0))


def in_node(data, folder, body, questions=()):
    """What the body of a function of the page's data and of questions returns."""
    parts = (
        explorer.script(),
        f"const data = {data}, questions = {json.dumps(list(questions))};",
        f"console.log(JSON.stringify((() => {{ {body} }})()));",
    )
    (folder / "asked.js").write_text("\n".join(parts), "utf-8")
    run = subprocess.run([NODE, folder / "asked.js"], capture_output=True, text=True, timeout=600, check=True)
    return json.loads(run.stdout)


def strange(X):
    """Numbers far out, beyond the ends of their column or off its lattice, and labels that were never seen."""
    return X.assign(
        word=X["word"].mask(np.arange(len(X)) % 3 == 0, "never seen"),
        height=X["height"] + 200 * (np.arange(len(X)) % 2),
        rain=X["rain"] * 30,
        score=X["score"].where(X["score"] < 0, X["score"] + 60),
        price=X["price"] + 0.004,
    )


ANSWERS = """const model = new Model(data);
  return questions.map(([cells, j]) => {
    const question = model.question(cells);
    return [question.logDensity(), question.conditional(j)];
  });"""


@pytest.mark.parametrize("of", [lambda X: X, strange], ids=["usual", "strange"])
def test_log_densities_and_conditionals_are_those_of_python(of, asked, tmp_path):
    X, model, data = asked
    rows = list(random_questions(model, of(X), ASKED))
    answers = in_node(data, tmp_path, ANSWERS, [(row_cells(model, row.columns), j) for row, j in rows])
    density = TableDensity(model.schema_, model.density_)
    for (row, j), (log_density, found) in zip(rows, answers, strict=True):
        expected, column = density.conditional(row, j).probability[0], list(X)[j]
        assert log_density == pytest.approx(density.log_prob(row)[0], abs=1e-3), column
        assert np.abs(probabilities(found) - expected).sum() < 1e-3, column
        likely = expected > 1e-6
        assert np.abs(np.log(probabilities(found)[likely] / expected[likely])).max() < 1e-3, column


DRAWN = """const random = generator(1), question = new Model(data).question(questions[0]);
  return Array.from({ length: questions[1] }, () => question.draw(random));"""


def test_rows_are_drawn_as_python_draws_them(asked, tmp_path):
    X, model, data = asked
    row, n = taken(model.as_frame(X[X["grade"] == "good"]), slice(0, 1)), 300
    known = {
        name: cells if name in ("grade", "rain") else replace(cells, missing=np.ones(1, bool))
        for name, cells in row.columns.items()
    }
    page = np.array(in_node(data, tmp_path, DRAWN, [row_cells(model, known), n]), float)
    assert_drawn_alike(page, drawn_by_python(model, Frame(row.table_type, known), 4 * n), list(known))


RANGES = (  # conditions, values that are set, and a condition whose probability is asked for
    ({"score": (20, 60)}, {}, {"grade": ["fair", "good"]}),
    ({"grade": ["poor"]}, {"score": 35}, {"share": (0.3, None)}),
    ({"rain": (0.5, None), "rooms": [2, 3]}, {"price": 2.99}, {"score": (-999, 10)}),
)
PROBABILITIES = """const model = new Model(data);
  return questions.map(([cells, j, event]) => {
    const question = model.question(cells), column = model.columns[j];
    for (let batch = 1; batch < 4; batch++) question.more();
    const { value, error } = question.probability(), Summary = column.listed ? LabelSummary : NumberSummary;
    return [[value, error], new Summary(column, question.conditional(j), model.numbers.far).within(event)];
  });"""


def page_cell(model, name, condition):
    """A value, a list of values or a range, as the page has it."""
    codec = model.schema_.columns[name].codec
    if isinstance(codec, Labels):
        values = cells_of(codec, np.arange(len(codec.values))).to_list()
        several = isinstance(condition, list)
        return {"places": [values.index(each) for each in condition]} if several else values.index(condition)
    return dict(zip(("low", "high"), condition, strict=True)) if isinstance(condition, tuple) else condition


@pytest.mark.long
@pytest.mark.parametrize("asked", ["energy"], indirect=True)  # without: test_explorer_ranges
def test_ranges_are_as_likely_as_python_finds_them(asked, tmp_path):
    X, model, data = asked
    questions = []
    for ranges, values, event in RANGES:
        cells = {name: page_cell(model, name, each) for name, each in {**ranges, **values}.items()}
        ((target, condition),) = event.items()
        questions.append(
            ([cells.get(name) for name in X], list(X).index(target), page_cell(model, target, condition))
        )
    answers = in_node(data, tmp_path, PROBABILITIES, questions)
    density, generator = TableDensity(model.schema_, model.density_), torch.Generator().manual_seed(0)
    for (ranges, values, event), found in zip(RANGES, answers, strict=True):
        expected = [
            conditional_probability(density, model.table_type_, *asked_for, 1024, generator)
            for asked_for in ((ranges, values), (event, {**ranges, **values}))
        ]
        for (value, error), other in zip(found, expected, strict=True):
            assert abs(value - other.value) < 4 * np.hypot(error, other.stderr), (ranges, value, error, other)
            assert error < 0.08


def test_where_the_trees_do_not_fit_the_page_answers_for_the_networks_and_says_so(fitted, monkeypatch):
    X, model = fitted
    found = examine(model, X, None, 20, 0)
    assert explorer.NETWORKS not in explorer_section(model, found)[2]
    monkeypatch.setattr(
        explorer, "MAX_BYTES", 1000 + 4 * sum(p.numel() for p in model.density_.net.parameters())
    )
    assert explorer.NETWORKS in explorer_section(model, found)[2]
    assert json.loads(explorer_data(model, found))["energy"] is None
