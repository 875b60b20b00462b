"""Rules and orders in the explorer of the report: its script answers, in node, what Python does."""

import numpy as np
import pandas as pd
import pytest
import torch
from small import EXACT
from test_explorer import probabilities, random_questions
from test_explorer_golden import ANSWERS, DRAWN, NODE, in_node
from test_kept_orders import table as ordered
from test_kept_rules import table as ruled

from ctem import CTEM
from ctem.densities.anyorder.limits import Bounds, Limits
from ctem.densities.anyorder.rules import Named, Within, keep_labels
from ctem.report.explorer import explorer_data, row_cells, why_not
from ctem.report.findings import examine
from ctem.tables.answers.density import TableDensity

ASKED, ROWS, N = 100, 300, 600
pytestmark = pytest.mark.skipif(NODE is None, reason="no node found: the script of the explorer was not run")


def table():
    """A clock time, a weekday, a town and its state, an amount, a wage and its log; and orders among columns."""
    of = {
        kind: ruled(kind, N)[0]
        for kind in ("clock time", "weekday of a stamp", "label → label", "product", "logarithm")
    }
    some = [
        of["clock time"],
        of["logarithm"][["wage", "lwage"]],
        of["weekday of a stamp"][["stamp", "own"]],
        of["label → label"][["town", "state"]],
    ]
    some += [of["product"][["price", "count", "amount"]], ordered(N)[["start", "end", "share", "whole"]]]
    flag = np.arange(N) < 40  # an order of which a few rows tell less than networks know
    flags = pd.DataFrame({"fault": flag, "repair": flag | (np.arange(N) % 4 == 0)}).astype(int)
    return pd.concat([*some, flags], axis=1).assign(planet=3)


@pytest.fixture(scope="module")
def asked():
    X = table()
    model = CTEM(**{**EXACT, "max_steps": 60}).fit(X)
    return X, model, explorer_data(model, examine(model, X, None, 20, 0))


@pytest.mark.long
def test_the_page_answers_what_python_answers(asked, tmp_path):
    X, model, data = asked
    assert why_not(model) == ""
    assert {rule.target for rule in model.schema_.rules} >= {"time", "own", "state", "amount", "lwage"}
    orders = {(order.low, order.high) for order in model.schema_.orders}
    assert orders >= {("start", "end"), ("share", "whole"), ("fault", "repair")}
    rows = list(random_questions(model, X, ASKED))
    answers = in_node(data, tmp_path, ANSWERS, [(row_cells(model, row.columns), j) for row, j in rows])
    density = TableDensity(model.schema_, model.density_)
    apart = []
    for (row, j), (log_density, found) in zip(rows, answers, strict=True):
        expected = density.conditional(row, j).probability[0]
        apart.append(np.abs(probabilities(found) - expected).sum())
        assert log_density == pytest.approx(density.log_prob(row)[0], abs=1e-3)
    # an hour leaves a time in a narrow part, and so does a start for an end: float32 knows densities there to a percent
    assert np.median(apart) < 1e-5
    assert max(apart) < 0.02


@pytest.mark.long
def test_the_page_draws_rows_that_keep_rules_and_orders(asked, tmp_path):
    X, model, data = asked
    drawn = pd.DataFrame(in_node(data, tmp_path, DRAWN, [[None] * X.shape[1], ROWS]), columns=list(X))
    codecs = {name: each.codec for name, each in model.schema_.columns.items()}
    hour = drawn["hour"].map(lambda place: codecs["hour"].values[place])
    assert np.mean(drawn["time"] == 100 * hour + drawn["minute"]) > 0.97
    assert np.mean(drawn["share"] <= drawn["whole"] + 1e-6) > 0.97


MASSES = """return questions.map(([p, chosen, share, ordered]) =>
  weighed(p, chosen, share, ordered ? byOrders : undefined));"""
LIMITED = """return questions.map(([low, high, share, inside, far, plain, t]) =>
  new Limits(low ?? -Infinity, high ?? Infinity, share, inside, far).density(t, plain));"""


def test_shares_of_codes_are_those_of_python(tmp_path):
    """Codes that a rule names have its share; those that an order leaves have no less than they had."""
    generator = torch.Generator().manual_seed(0)
    p = (3 * torch.randn(60, 5, generator=generator)).double().softmax(1)
    code, share = torch.arange(60) % 5, torch.rand(60, generator=generator).double()
    chosen = torch.rand(60, 5, generator=generator) < 0.5
    left = keep_labels(p.log(), [], None, Within(chosen, share)).exp().tolist()
    named = keep_labels(p.log(), [], Named(code, share)).exp().tolist()
    one = (torch.arange(5) == code.unsqueeze(1)).tolist()
    questions = [*zip(p.tolist(), chosen.tolist(), share.tolist(), [True] * 60, strict=True)]
    questions += zip(p.tolist(), one, share.tolist(), [False] * 60, strict=True)
    found = in_node("null", tmp_path, MASSES, questions)
    assert np.array(found) == pytest.approx(np.array([*left, *named]), abs=1e-9)


def test_densities_within_bounds_are_those_of_python(tmp_path):
    rng, n, far = np.random.default_rng(0), 200, 8.0
    ends = np.sort(rng.normal(0, 3, (n, 2)), axis=1)
    low, high = np.where(rng.random((2, n)) < 0.2, [[-np.inf], [np.inf]], ends.T)
    share, t, plain = rng.random(n), rng.normal(0, 3, n), rng.random(n)
    inside = np.where(rng.random(n) < 0.2, rng.choice([0.0, 1.0], n), rng.random(n))
    bounds = Bounds(*(torch.from_numpy(each) for each in (low, high, share)))
    log_p = torch.from_numpy(np.log(plain))[:, None]
    expected = Limits.of(bounds, torch.from_numpy(inside)).log_prob(log_p, torch.from_numpy(t)[:, None])
    finite = [[None if np.isinf(end) else end for end in row] for row in zip(low, high, strict=True)]
    more = zip(share, inside, [far] * n, plain, t, strict=True)
    found = in_node("null", tmp_path, LIMITED, [[*a, *b] for a, b in zip(finite, more, strict=True)])
    assert np.array(found) == pytest.approx(expected.exp().squeeze(1).numpy(), abs=1e-9)
