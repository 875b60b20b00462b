"""Rules and orders in the explorer of the report: the page answers, in a real browser, what Python does."""

import numpy as np
import pandas as pd
import pytest
from small import EXACT
from test_explorer import in_browser, in_page, probabilities, random_questions
from test_kept_orders import table as ordered
from test_kept_rules import table as ruled

from ctem import CTEM
from ctem.report import write_report
from ctem.report.explorer import row_cells, why_not
from ctem.tables.answers.density import TableDensity

ASKED, DRAWN, N = 100, 300, 600
pytestmark = [pytest.mark.long, in_browser]


def table():
    """A clock time, a weekday, a town and its state, an amount; a start and an end, a share of a whole."""
    of = {
        kind: ruled(kind, N)[0] for kind in ("clock time", "weekday of a stamp", "label → label", "product")
    }
    some = [
        of["clock time"],
        of["weekday of a stamp"][["stamp", "own"]],
        of["label → label"][["town", "state"]],
    ]
    some += [of["product"][["price", "count", "amount"]], ordered(N)[["start", "end", "share", "whole"]]]
    return pd.concat(some, axis=1).assign(planet=3)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    X = table()
    model = CTEM(**{**EXACT, "max_steps": 60}).fit(X)
    return X, model, write_report(model, X, tmp_path_factory.mktemp("asked") / "report.html", n_samples=60)


def test_the_page_answers_what_python_answers(asked, tmp_path):
    X, model, path = asked
    assert why_not(model) == ""
    assert {rule.target for rule in model.schema_.rules} >= {"time", "own", "state", "amount"}
    assert {(order.low, order.high) for order in model.schema_.orders} >= {
        ("start", "end"),
        ("share", "whole"),
    }
    rows = list(random_questions(model, X, ASKED))
    body = """const model = new Model(data);
      return questions.map(([cells, j]) => {
        const question = model.question(cells);
        return [question.logDensity(), question.conditional(j)];
      });"""
    answers = in_page(path, tmp_path, body, [(row_cells(model, row.columns), j) for row, j in rows])
    density = TableDensity(model.schema_, model.density_)
    for (row, j), (log_density, found) in zip(rows, answers, strict=True):
        expected = density.conditional(row, j).probability[0]
        # an hour leaves a time in a narrow part, whose density float32 knows to a few thousandths
        assert log_density == pytest.approx(density.log_prob(row)[0], abs=1e-2)
        assert np.abs(probabilities(found) - expected).sum() < 5e-3


def test_the_page_draws_rows_that_keep_rules_and_orders(asked, tmp_path):
    X, model, path = asked
    body = f"""const model = new Model(data), random = generator(3), nothing = data.columns.map(() => null);
      return Array.from({{ length: {DRAWN} }}, () => model.question(nothing).draw(random));"""
    drawn = pd.DataFrame(in_page(path, tmp_path, body), columns=list(X))
    codecs = {name: each.codec for name, each in model.schema_.columns.items()}
    hour = drawn["hour"].map(lambda place: codecs["hour"].values[place])
    assert np.mean(drawn["time"] == 100 * hour + drawn["minute"]) > 0.97
    assert np.mean(drawn["share"] <= drawn["whole"] + 1e-6) > 0.97
