"""Formulas in the explorer of the report: the page answers and draws, in a real browser, what Python does."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from small import EXACT
from test_explorer import drawn_by_python, in_browser, in_page, probabilities, random_questions
from test_explorer_ranges import counted, random_range_questions
from test_formulas import bills

from ctem import CTEM
from ctem.report import write_report
from ctem.report.explorer import row_cells, why_not
from ctem.tables.answers.density import TableDensity
from ctem.tables.io.frame import Frame
from ctem.tables.io.rows import taken

ASKED, RANGES = 100, 12
pytestmark = [pytest.mark.long, in_browser]


def table(n=600, seed=0):
    """Bills; dates of which every second repeats the one before; measures without a lattice, some of them copied."""
    rng = np.random.default_rng(seed)
    made = np.datetime64("2020-01-01") + rng.integers(0, 1500, n).astype("m8[D]")
    sent = np.where(rng.random(n) < 0.5, made, made + rng.integers(1, 300, n).astype("m8[D]"))
    rate = rng.normal(size=n)
    again = np.where(rng.random(n) < 0.5, rate, rng.normal(size=n))
    named = {"made": made, "sent": sent, "rate": rate, "again": again, "planet": 3}
    return bills(n, seed).assign(**named)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    X = table()
    model = CTEM(**{**EXACT, "max_steps": 150, "width": 32, "batch_size": 128}).fit(X)
    return X, model, write_report(model, X, tmp_path_factory.mktemp("asked") / "report.html", n_samples=60)


def test_the_table_has_formulas_of_every_kind_and_an_explorer(asked):
    _, model, _ = asked
    columns = {name: each.codec for name, each in model.schema_.columns.items()}
    found = {(f.target, f.terms) for f in model.schema_.formulas}
    assert {("total", (("bill", 1), ("fee", 1))), ("pay", (("bill", 1),))} <= found
    assert {("sent", (("made", 1),)), ("again", (("rate", 1),))} <= found
    assert columns["fee"].atoms
    assert not columns["rate"].lattice.step
    assert why_not(model) == ""


def test_the_page_answers_what_python_answers(asked, tmp_path):
    X, model, path = asked
    missed = np.random.default_rng(1).random(len(X)) < 0.3
    X = X.assign(total=X["total"] + missed, sent=X["sent"] + pd.to_timedelta(missed.astype(int), unit="D"))
    rows = list(random_questions(model, X, ASKED))
    body = """const model = new Model(data);
      return questions.map(([cells, j]) => {
        const question = model.question(cells);
        const flags = [...model.ties.flags(model.ties.formulaValues(question.x))];
        return [question.logDensity(), question.conditional(j), flags];
      });"""
    questions = [(row_cells(model, row.columns), j) for row, j in rows]
    answers = in_page(path, tmp_path, body, questions)
    density, seen = TableDensity(model.schema_, model.density_), 0
    for (row, j), (log_density, found, flags) in zip(rows, answers, strict=True):
        x = model.schema_.encode(row).x
        said = model.density_.net.formula_values(x.nan_to_num(), ~x.isnan())
        assert flags == said.holding.flatten().tolist()
        seen += sum(flags)
        expected = density.conditional(row, j).probability[0]
        assert log_density == pytest.approx(density.log_prob(row)[0], abs=1e-3)
        assert np.abs(probabilities(found) - expected).sum() < 1e-3
        likely = expected > 1e-5  # what is rarer, in the tails of narrow parts, is left to float32
        assert np.abs(np.log(probabilities(found)[likely] / expected[likely])).max() < 1e-3
    assert seen > ASKED  # formulas that hold among what is set


def test_the_cells_of_values_are_those_of_python(asked, tmp_path):
    X, model, path = asked
    ties, rng = model.density_.net.ties, np.random.default_rng(2)
    pairs = zip(model.schema_.columns, model.schema_.owner, strict=True)
    named = {owner[-1]: name for name, owner in pairs if owner}
    questions = []
    for j in ties.targets:
        codec, width = ties.units.codecs[j], ties.units.width(j)
        X_j = codec.lattice.measure(model.as_frame(X).columns[named[j]])
        near = rng.choice(X_j, 60) + width * rng.choice([0.0, 0.2, -0.2, 0.4, -0.4], 60)
        values = [*near, *codec.atoms, min(X_j), max(X_j), min(X_j) - width, -1e12, 1e12]
        questions.append((np.array(values) + codec.lattice.shift / codec.lattice.per).tolist())
    body = """const { ties } = new Model(data);
      return questions.map((values, g) => values.map((value) => ties.cell(value, ties.targets[g])));"""
    none = 0
    for j, values, found in zip(
        ties.targets, questions, in_page(path, tmp_path, body, questions), strict=True
    ):
        expected = ties.units.cells(torch.tensor(values, dtype=torch.float64), j).numpy()
        page = np.array([[np.nan, np.nan] if cell is None else cell[:2] for cell in found])
        np.testing.assert_allclose(page, expected, atol=1e-6)  # nan where it has none
        none += np.isnan(page[:, 0]).sum()
    assert 10 * len(questions) < none < 50 * len(questions)


def drawn_cells(model, row, j, n):
    """How often a draw of encoded column j lies in the cell of its first formula, above it, and below it."""
    x = model.schema_.encode(row).x
    with torch.no_grad():
        found = model.density_.chain.conditionals.given(x.nan_to_num(), ~x.isnan(), j)
        low, high = found.tied.ends[0, 0]
        value = found.rows(torch.zeros(n, dtype=torch.long)).draw(torch.Generator().manual_seed(0))
    above, below = (value > high).double().mean(), (value < low).double().mean()
    return np.array([1 - above - below, above, below])


def bill_and_fee(model, X):
    """A row with a bill of 1234 and a fee of 56, and its cells if nothing else is known."""
    row = model.as_frame(X.iloc[:1].assign(bill=1234.0, fee=56.0))
    hidden = {name: replace(cells, missing=np.ones(1, bool)) for name, cells in row.columns.items()}
    return row, hidden | {name: row.columns[name] for name in ("bill", "fee")}


def test_beside_ranges_a_card_says_it_too(asked, tmp_path):
    X, model, path = asked
    (row, known), n = bill_and_fee(model, X), 3000
    cells = row_cells(model, known)
    cells[4] = {"places": [0, 1]}  # either kind: a condition that every row meets
    body = """const model = new Model(data), question = model.question(questions[0]);
      for (let batch = 1; batch < 4; batch++) question.more();
      const summary = new NumberSummary(model.columns[3], question.conditional(3), model.numbers.far);
      const within = ([low, high]) => summary.within({ low, high });
      return [summary.words(), [[1290, 1290], [1291, null], [null, 1289]].map(within)];"""
    words, ranges = in_page(path, tmp_path, body, [cells])
    drawn = drawn_by_python(model, Frame(row.table_type, known), n)[:, 3]
    expected = np.array([(drawn == 1290).mean(), (drawn > 1290).mean(), (drawn < 1290).mean()])
    found, error = np.array(ranges).T
    error = np.hypot(error, np.sqrt(expected * (1 - expected) / n))
    assert (np.abs(found - expected) < 4 * error).all(), (found, expected, error)
    assert error.max() < 0.03
    assert words.startswith("median 1290; ")


def test_a_card_says_the_value_of_a_formula_to_the_last_digit_and_how_likely_it_is(asked, tmp_path):
    X, model, path = asked
    (row, known), n = bill_and_fee(model, X), 5000
    body = """const model = new Model(data), found = model.question(questions[0]).conditional(3);
      const summary = new NumberSummary(model.columns[3], found, model.numbers.far);
      const within = ([low, high]) => summary.within({ low, high })[0];
      const ranges = [[1290, 1290], [1291, null], [null, 1289]].map(within);
      return [summary.words(), ranges, summary.unusual(1290), summary.unusual(1291)];"""
    words, ranges, own, other = in_page(path, tmp_path, body, [row_cells(model, known)])
    expected = drawn_cells(model, Frame(row.table_type, known), model.schema_.owner[3][-1], n)
    assert (np.abs(expected - ranges) < 4 * np.sqrt(expected * (1 - expected) / n)).all(), (expected, ranges)
    assert words.startswith("median 1290; ")
    exactly = int(re.search(r"; 1290 in (\d+)%", words)[1])
    assert -0.5 <= 100 * ranges[0] - exactly < 2  # the range has what lies around it by chance, too
    assert own == pytest.approx(1)
    assert other < 1 - ranges[0]


def holds(X):
    """How often each formula does, in cells of rows."""
    bill, pay, fee, total, _, made, sent, rate, again, _ = np.asarray(X, float).T
    return np.array(
        [(pay == bill).mean(), (total == bill + fee).mean(), (sent == made).mean(), near(again, rate).mean()]
    )


def near(a, b):
    """Equal, as far as float32 can tell in the scale of a column."""
    return np.abs(a - b) < 1e-4


@pytest.mark.parametrize("shown", [(), ("kind", "bill", "made")])
def test_formulas_hold_in_drawn_rows_as_often_as_in_those_of_python(shown, asked, tmp_path):
    X, model, path = asked
    row, n = taken(model.as_frame(X), slice(0, 1)), 1500
    known = {
        name: cells if name in shown else replace(cells, missing=np.ones(1, bool))
        for name, cells in row.columns.items()
    }
    body = f"""const random = generator(1), question = new Model(data).question(questions[0]);
      return Array.from({{ length: {n} }}, () => question.draw(random));"""
    page = np.array(in_page(path, tmp_path, body, [row_cells(model, known)]), float)
    python = drawn_by_python(model, Frame(row.table_type, known), n)
    offset = np.array([offset_of(model, name) for name in X])
    one, two = holds(page + offset), holds(python + offset)
    assert (np.abs(one - two) <= 4 * np.sqrt(2 * two * (1 - two) / n)).all(), (one, two)
    assert (two > 0.1).all()


def offset_of(model, name):
    lattice = getattr(model.schema_.columns[name].codec, "lattice", None)
    return 0.0 if lattice is None else lattice.shift / lattice.per


def test_the_page_answers_ranges_as_counting_does(asked, tmp_path):
    X, model, path = asked
    rows = list(random_range_questions(model, X, RANGES))
    body = """const model = new Model(data);
      return questions.map(([cells]) => {
        const question = model.question(cells);
        for (let batch = 1; batch < 4; batch++) question.more();
        const { value, error } = question.probability();
        return [value, error];
      });"""
    answers = in_page(path, tmp_path, body, [question for *_, question in rows])
    generator, away = torch.Generator().manual_seed(0), []
    with torch.no_grad():
        for (row, said, target, _), (p, e) in zip(rows, answers, strict=True):
            q, f = counted(model, row, said, target, 10_000, generator)[0]
            away.append(abs(p - q) / np.hypot(e, f))
    assert max(away) < 5, np.sort(away)
    assert np.sqrt(np.square(away).mean()) < 1.5


def test_a_strange_row_whose_amounts_add_up_is_compared_with_any_row(asked, tmp_path):
    _, model, path = asked
    large = pd.DataFrame({"bill": [90_000.0], "pay": 90_000.0, "fee": 3000.0, "total": 93_000.0, "kind": "a"})
    body = """const explorer = new Explorer(data, document.createElement("div"));
      const [cells, j] = questions[0], question = explorer.model.question(cells);
      return [explorer.expected(question, cells, j), explorer.summary(question, j).unusual(cells[j])];"""
    frame = model.as_frame(large.assign(made=None, sent=None, rate=None, again=None, planet=3))
    j = list(model.schema_.columns).index("bill")
    words, given = in_page(path, tmp_path, body, [(row_cells(model, frame.columns), j)])
    assert given >= 0.2
    assert words.startswith("expected of any row: ")
