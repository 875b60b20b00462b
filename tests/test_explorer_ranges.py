"""Ranges and sets in the explorer of the report: the page answers, in a real browser, what counting draws answers."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from small import EXACT
from test_explorer import in_browser, in_page, table

from ctem import CTEM
from ctem.report import write_report
from ctem.report.explorer import row_cells
from ctem.tables.answers.conditions import compiled
from ctem.tables.encoding.codecs import Constant, Labels
from ctem.tables.encoding.lookup import cells_of
from ctem.tables.io.frame import Frame, read_frame
from ctem.tables.io.rows import taken

RANGES = 25
pytestmark = [pytest.mark.long, in_browser]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    X = table()
    model = CTEM(**EXACT).fit(X)
    return X, model, write_report(model, X, tmp_path_factory.mktemp("asked") / "report.html", n_samples=60)


def random_condition(rng, name, codec, column):
    """A set of values, or a range between two cells of a column: as Python takes it, and as the page does."""
    if isinstance(codec, Labels):
        count = rng.integers(1, min(len(codec.values), 4))
        places = sorted(rng.choice(len(codec.values), int(count), replace=False).tolist())
        return [cells_of(codec, np.arange(len(codec.values))).to_list()[i] for i in places], {
            "places": places
        }
    low, high = sorted(column.dropna().sample(2, random_state=rng))
    said = [(low, high), (low, None), (None, high)][int(rng.integers(3))] if low < high else (low, None)
    X = [None if end is None else row_cell(name, codec, end) for end in said]
    return said, {"low": X[0], "high": X[1]}


def row_cell(name, codec, value):
    return float(codec.lattice.measure(read_frame(pd.DataFrame({name: [value]})).columns[name])[0])


def random_range_questions(model, X, count, seed=0):
    """Conditions on one to three columns, up to two values, and a condition whose probability is asked for."""
    rng, codecs = np.random.default_rng(seed), {n: c.codec for n, c in model.schema_.columns.items()}
    names = [name for name, codec in codecs.items() if not isinstance(codec, Constant)]
    for _ in range(count):
        ranged, known = int(rng.integers(1, 4)), int(rng.integers(3))
        *chosen, target = rng.choice(names, ranged + known + 1, replace=False).tolist()
        said = {
            name: random_condition(rng, name, codecs[name], X[name]) for name in [*chosen[:ranged], target]
        }
        row = taken(model.as_frame(X), slice(i := int(rng.integers(len(X))), i + 1))
        shown = {
            n: c if n in chosen[ranged:] else replace(c, missing=np.ones(1, bool))
            for n, c in row.columns.items()
        }
        cells = dict(zip(codecs, row_cells(model, shown), strict=True))
        cells.update({name: said[name][1] for name in chosen[:ranged]})
        python = {name: condition for name, (condition, _) in said.items()}
        yield (
            Frame(row.table_type, shown),
            python,
            target,
            [list(cells.values()), list(codecs).index(target), said[target][1]],
        )


def counted(model, row, said, target, n, generator):
    """P(conditions) and P(that on the target | the others), by drawing whole rows and counting."""
    density, schema = model.density_, model.schema_
    owner = dict(zip(schema.columns, schema.owner, strict=True))
    allowed = {
        j: limit for n, c in compiled(said, schema).items() for j, limit in c.encoded(owner[n]).items()
    }
    x = density.complete(schema.encode(row).x.repeat(n, 1), generator)
    inside = {j: fits(x[:, j], allowed[j], density.space.sizes[j]) for j in allowed}
    weight = torch.stack([inside[j] for j in allowed if j not in owner[target]]).prod(0)
    event = torch.stack([inside[j] for j in owner[target]]).prod(0)
    return share(weight.sum(), n), share((weight * event).sum(), weight.sum())


def share(some, whole):
    """The share of rows that are counted, and its standard error: that of (some + 1) of (whole + 2) rows.

    With none or all of the rows the naive error would be 0, as if a share of a millionth had been excluded.
    """
    some, whole = float(some), float(whole)
    likely = (some + 1) / (whole + 2)
    return likely, np.sqrt(likely * (1 - likely) / (whole + 3))


def fits(value, limit, size):
    """The share of each value that is allowed: 0 or 1 of a number; 1 of what does not exist."""
    if size:
        return limit.exp()[value.long()]
    within = ((value[:, None] > limit[:, 0]) & (value[:, None] < limit[:, 1])).any(1)
    return torch.where(value.isnan(), 1.0, within.double())


def test_the_page_answers_ranges_as_counting_does(asked, tmp_path):
    X, model, path = asked
    rows = list(random_range_questions(model, X, RANGES))
    body = """const model = new Model(data);
      return questions.map(([cells, j, event]) => {
        const question = model.question(cells), column = model.columns[j];
        for (let batch = 1; batch < 4; batch++) question.more();
        const found = question.conditional(j);
        const Summary = column.listed ? LabelSummary : NumberSummary, { far } = model.numbers;
        const { value, error } = question.probability();
        return [[value, error], new Summary(column, found, far).within(event)];
      });"""
    answers = in_page(path, tmp_path, body, [question for *_, question in rows])
    generator = torch.Generator().manual_seed(1)
    away, errors = [], []
    with torch.no_grad():
        for (row, said, target, _), found in zip(rows, answers, strict=True):
            expected = counted(model, row, said, target, 60_000, generator)
            away += [abs(p - q) / np.hypot(e, f) for (p, e), (q, f) in zip(found, expected, strict=True)]
            errors += [np.hypot(e, f) for (_, e), (_, f) in zip(found, expected, strict=True)]
    away = np.array(away)
    assert (away < 3).mean() >= 0.95, np.sort(away)[-8:]  # 64 islands, some of them of little weight
    assert away.max() < 5
    assert np.median(errors) < 0.03  # of either answer: most questions could tell a wrong one
    assert np.sqrt((away**2).mean()) < 1.4


def test_rows_that_are_drawn_within_ranges_meet_them(asked, tmp_path):
    X, model, path = asked
    rows = list(random_range_questions(model, X, 12, seed=1))
    body = """const model = new Model(data), random = generator(1);
      return questions.map(([cells]) => Array.from({ length: 20 }, () => model.question(cells).draw(random)));"""
    questions = [question for *_, question in rows]
    for (cells, *_), drawn in zip(questions, in_page(path, tmp_path, body, questions), strict=True):
        for j, cell in enumerate(cells):
            found = [row[j] for row in drawn]
            if isinstance(cell, dict) and "places" in cell:
                assert set(found) <= set(cell["places"])
            elif isinstance(cell, dict):
                low, high = (-np.inf if cell["low"] is None else cell["low"]), cell["high"]
                assert low - 1e-9 <= min(found) <= max(found) <= (np.inf if high is None else high) + 1e-9
            elif cell is not None:
                assert set(found) == {cell}


def test_a_column_can_be_set_to_a_range_or_to_several_values(asked, tmp_path):
    _, model, path = asked
    body = """
      const say = (node, value, type) => { node.value = value; node.dispatchEvent(new Event(type)); };
      const told = () => ["b", "span"].map((name) => document.querySelector(`.standing ${name}`).textContent);
      const cards = [...document.querySelectorAll(".card")], out = [];
      const press = (i) => cards[i].querySelector("[aria-pressed]").click();
      press(0);
      cards[0].querySelectorAll("input[type=checkbox]")[1].click();
      out.push(told());
      press(5);
      const [from, to] = cards[5].querySelectorAll(".pair input");
      say(from, "90", "change");
      say(to, "", "change");
      out.push(told());
      cards[0].querySelectorAll("input[type=checkbox]")[0].click();
      out.push(told());
      say(from, "100", "change");
      say(to, "80", "change");
      out.push([from.value, to.value], cards.map((card) => card.classList.contains("known")));
      document.querySelectorAll(".load")[0].click();
      out.push([...document.querySelectorAll("[aria-pressed=true]")].length);
      return out;"""
    one, two, three, ends, known, pressed = in_page(path, tmp_path, body)
    city = list(model.classes("<b>city</b>"))[1]
    told = [
        [float(part.replace("%", "")) / 100 for part in each[0].split(" ± ")] for each in (one, two, three)
    ]
    said = [{"<b>city</b>": [city]}, {"<b>city</b>": [city], "weight": (90, None)}]
    for (value, error), given in zip(told[:2], said, strict=True):
        expected = model.probability(given, random_state=0)
        assert abs(value - expected.value) < 4 * np.hypot(error, expected.stderr)
    assert one[1].startswith("probability of the condition on 1 column.")
    assert told[2][0] > told[1][0]
    assert "conditions on 2 columns. ± is a standard error, from 160 weighted draws" in three[1]
    assert ends == ["80", "80"]  # the end that moves pushes the other
    assert sum(known) == 2
    assert pressed == 0
