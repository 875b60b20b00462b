"""The explorer of the report: what the page answers, in a real browser, is what Python answers."""

import html
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from small import EXACT
from test_browser import BROWSER, QUIET, browse

from ctem import CTEM
from ctem.densities.anyorder.worth import Worth
from ctem.report import explorer, write_report
from ctem.report.explorer import row_cells, why_not
from ctem.tables.answers.density import TableDensity
from ctem.tables.io.frame import Frame
from ctem.tables.io.rows import taken

ASKED = 200
in_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium found: the explorer was not asked")
HARNESS = """<script id="harness">addEventListener("load", () => {{
  const data = JSON.parse(document.getElementById("ask-data").textContent), questions = {questions};
  const answer = () => {{ {body} }};
  document.body.append(element("pre", {{ id: "answers" }}, JSON.stringify(answer())));
}});</script></body>"""


def table(n=400, seed=0):
    """One column of every kind: labels, rare ones, atoms, whole and rounded numbers, gaps, dates, a constant."""
    rng = np.random.default_rng(seed)
    side = rng.integers(3, size=n)
    height = rng.normal(170 + 10 * side, 5)
    price = np.round(rng.lognormal(1, 0.5, n), 2)
    return pd.DataFrame(
        {
            "<b>city</b>": np.array(["Oslo", "Bergen", "Røros & co"])[side],
            "word": rng.choice([f"w{i}" for i in range(40)], n, p=np.arange(1, 41) / 820),
            "rain": np.where(rng.random(n) < 0.3, 0.0, rng.lognormal(side, 0.5)),
            "age": rng.integers(18, 80, n),
            "height": np.where(rng.random(n) < 0.1, np.nan, height),
            "weight": height / 2 + rng.normal(0, 3, n),
            "price": np.where(rng.random(n) < 0.4, 2.99, price),
            "smoker": rng.random(n) < 0.2 + 0.3 * side,
            "born": pd.Timestamp("2000-01-01")
            + pd.to_timedelta(rng.integers(0, 900, n) + 100 * side, unit="D"),
            "rooms": rng.integers(1, 6, n) + side,
            "called": pd.Timestamp("2023-01-01")
            + pd.to_timedelta(rng.integers(0, 200, n) * 1440 + rng.integers(480, 1080, n), unit="min"),
            "planet": 3,
        }
    )


def believed_in_part(model):
    """The model with shares of every kind, and columns that are not heard."""
    share = tuple((1.0, 0.6, 0.0, 0.3)[j % 4] for j in range(model.density_.space.dim))
    model.density_.net.believe(Worth(share, tuple(each > 0 for each in share)))
    return model


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    X = table()
    model = believed_in_part(CTEM(**EXACT).fit(X))
    return X, model, write_report(model, X, tmp_path_factory.mktemp("asked") / "report.html", n_samples=60)


def in_page(path, folder, body, questions=(), options=QUIET):
    """What a script, put into the report, answers; its console must stay empty."""
    page = re.sub(r"<meta http-equiv[^>]*>", "", path.read_text("utf-8"))
    ending = HARNESS.format(questions=json.dumps(list(questions)).replace("<", "\\u003c"), body=body)
    (folder / "asked.html").write_text(page.replace("</body>", ending), "utf-8")
    visit = browse(folder, folder / "asked.html", "--dump-dom", quiet=options)
    assert visit.console == []
    return json.loads(html.unescape(re.search(r'<pre id="answers">(.*?)</pre>', visit.dom, re.S)[1]))


def random_questions(model, X, count, seed=0):
    """Rows of the table of which some cells are hidden, and a column to ask for."""
    rng, frame = np.random.default_rng(seed), model.as_frame(X)
    for _ in range(count):
        i, share = int(rng.integers(len(frame))), rng.random()
        row = taken(frame, slice(i, i + 1))
        hidden = {
            name: cells if rng.random() < share else replace(cells, missing=np.ones(1, bool))
            for name, cells in row.columns.items()
        }
        yield Frame(row.table_type, hidden), int(rng.integers(len(hidden) - 1))  # the last is constant


def probabilities(found):
    if "values" in found:
        return np.array(found["values"])
    points = np.array([share for _, share in sorted(found["points"])])
    parts = [found["continuous"] * part for part in ((1 - points.sum()) * np.array(found["nodes"]), points)]
    return np.concatenate([*parts, found["atoms"]])


@pytest.mark.long
@in_browser
def test_the_page_answers_what_python_answers(asked, tmp_path):
    X, model, path = asked
    rows = list(random_questions(model, X, ASKED))
    body = """const model = new Model(data);
      return questions.map(([cells, j]) => {
        const question = model.question(cells);
        return [question.logDensity(), question.conditional(j)];
      });"""
    questions = [(row_cells(model, row.columns), j) for row, j in rows]
    answers = in_page(path, tmp_path, body, questions)
    density = TableDensity(model.schema_, model.density_)
    for (row, j), (log_density, found) in zip(rows, answers, strict=True):
        expected = density.conditional(row, j).probability[0]
        assert log_density == pytest.approx(density.log_prob(row)[0], abs=1e-3)
        assert np.abs(probabilities(found) - expected).sum() < 1e-3
        likely = expected > 1e-6
        assert np.abs(np.log(probabilities(found)[likely] / expected[likely])).max() < 1e-3


@pytest.mark.long
@in_browser
def test_the_page_finds_a_call_at_night_as_strange_as_python_does(asked, tmp_path):
    X, model, path = asked
    hours = pd.Timestamp("2023-03-01") + pd.to_timedelta(np.arange(24) + 0.5, unit="h")
    calls = model.as_frame(pd.concat([X.head(1)] * 24).assign(called=hours))
    codec, j = model.schema_.columns["called"].codec, list(X).index("called")
    at = codec.lattice.measure(calls.columns["called"])
    body = f"""const model = new Model(data), question = model.question(data.columns.map(() => null));
      const column = model.columns[{j}], found = question.conditional({j});
      const summary = new NumberSummary(column, found, data.numbers.far);
      return questions.map((X) => [column.map.asQuiet(X), summary.unusual(X)]);"""
    quiet, unusual = np.array(in_page(path, tmp_path, body, at.tolist())).T
    assert np.allclose(quiet, codec.transform.as_quiet(at))
    assert unusual[3] < 0.01 < unusual[10]


@pytest.mark.long
@in_browser
def test_the_page_draws_what_python_draws(asked, tmp_path):
    X, model, path = asked
    row, n = taken(model.as_frame(X), slice(0, 1)), 2000
    city = "<b>city</b>"
    known = {
        name: cells if name == city else replace(cells, missing=np.ones(1, bool))
        for name, cells in row.columns.items()
    }
    body = f"""const random = generator(1), question = new Model(data).question(questions[0]);
      return Array.from({{ length: {n} }}, () => question.draw(random));"""
    page = np.array(in_page(path, tmp_path, body, [row_cells(model, known)]), float)
    python = drawn_by_python(model, Frame(row.table_type, known), n)
    assert (page[:, 0] == python[:, 0]).all()
    assert_drawn_alike(page, python, list(known))


def drawn_by_python(model, row, n):
    """n rows, as the page knows them, whose hidden cells are drawn given the others of one row."""
    many = taken(row, np.zeros(n, np.int64))
    drawn = TableDensity(model.schema_, model.density_).completed(many, torch.Generator().manual_seed(0))
    frame = Frame(row.table_type, drawn)
    return np.array([row_cells(model, taken(frame, slice(i, i + 1)).columns) for i in range(n)], float)


def assert_drawn_alike(page, python, names):
    """In every column as many rows of either lie below some cuts."""
    for j, name in enumerate(names[:-1]):  # the last is constant
        one, two = page[:, j], python[:, j]
        cuts = np.unique(np.quantile(two, [0.1, 0.3, 0.5, 0.7, 0.9]))
        shares = np.array([[(part <= cut).mean() for cut in cuts] for part in (one, two)])
        error = np.sqrt(shares[1] * (1 - shares[1]) * (1 / len(one) + 1 / len(two)))
        assert (np.abs(shares[0] - shares[1]) <= 4.5 * error).all(), name


@pytest.mark.long
@in_browser
def test_menus_sliders_and_outliers_change_what_is_set(asked, tmp_path):
    X, model, path = asked
    body = """
      const say = (node, value, type) => { node.value = value; node.dispatchEvent(new Event(type)); };
      const told = () => ["b", "span"].map((name) => document.querySelector(`.standing ${name}`).textContent);
      const cards = [...document.querySelectorAll(".card")], out = [told()];
      say(cards[0].querySelector("select"), "1", "change");
      out.push(told());
      say(cards[5].querySelector("input[type=number]"), "90", "change");
      out.push(told());
      say(cards[5].querySelector("input[type=range]"), "0", "input");
      out.push(Number(cards[5].querySelector("input[type=number]").value));
      document.querySelectorAll(".load")[0].click();
      out.push(told(), document.querySelector(".news").textContent, document.activeElement.className);
      [...document.querySelectorAll(".standing button")][0].click();
      out.push(told());
      const controls = [...document.querySelectorAll(".explorer button, .explorer select, .explorer input")];
      const nameless = controls.filter((node) => !(node.getAttribute("aria-label") || node.textContent));
      const markup = document.querySelectorAll(".explorer bdi *, .explorer option *");
      out.push(nameless.length + markup.length, controls.length > 20);
      return out;"""
    before, one, two, lowest, loaded, news, focus, cleared, nameless, many = in_page(path, tmp_path, body)
    assert before[1].startswith("Nothing is set")
    cities = list(model.classes("<b>city</b>"))
    row = pd.DataFrame({name: [None] for name in X}).assign(**{"<b>city</b>": cities[1]})
    assert float(one[0].split()[0].replace("−", "-")) == pytest.approx(model.score_samples(row)[0], abs=6e-3)
    assert one[1] == "log-density of the column that is set, of 11"
    row = row.assign(weight=90.0)
    assert float(two[0].split()[0].replace("−", "-")) == pytest.approx(model.score_samples(row)[0], abs=6e-3)
    assert lowest == pytest.approx(X["weight"].quantile(0.005), abs=0.5)
    strangest = model.outliers(X, 1)[0]
    score = model.score_samples(X.iloc[[strangest.row]])[0]
    assert float(loaded[0].split()[0].replace("−", "-")) == pytest.approx(score, abs=6e-3)
    strange = next(iter(strangest.columns))
    assert news.startswith(f"Row {strangest.row} is set. Strange about it: “{strange}” is ")
    assert "(expected" in news
    assert focus == "news"
    assert cleared == before
    assert (nameless, many) == (0, True)


@pytest.mark.long
@in_browser
def test_the_explorer_runs_under_the_policy_of_the_page(asked, tmp_path):
    visit = browse(tmp_path, asked[2], "--dump-dom")
    assert visit.console == []
    assert visit.dom.count('class="card"') == 11


REASONS = {
    "state": 'missing="state"',
    "wide": "the table has 2 columns",
    "large": "MB of weights",
}


@pytest.mark.parametrize("case", REASONS)
def test_a_report_without_an_explorer_says_why_and_has_no_script(case, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.integers(2, size=(120, 2)).astype(str)).add_prefix("x")
    if case == "state":
        X.iloc[0, 0] = None
    if case == "wide":
        monkeypatch.setattr(explorer, "MAX_COLUMNS", 1)
    if case == "large":
        monkeypatch.setattr(explorer, "MAX_BYTES", 1000)
    settings = {"missing": "state"} if case == "state" else {}
    model = CTEM(**{**EXACT, "max_steps": 2, **settings}).fit(X)
    page = write_report(model, X, tmp_path / "r.html", n_samples=20).read_text("utf-8")
    assert REASONS[case] in why_not(model)
    assert f"There is no explorer in this report: {html.escape(why_not(model))}" in page
    assert "<script" not in page
    assert "script-src" not in page


@pytest.mark.long
@in_browser
def test_extreme_numbers_times_and_empty_columns_can_be_asked_about_too(tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "large": 10**18 + rng.integers(0, 60, 120),
            "huge": rng.normal(size=120) * 1e300,
            "tiny": rng.normal(size=120) * 1e-300,
            "never": [None] * 120,
            "scarce": np.where(rng.random(120) < 0.97, np.nan, rng.normal(size=120)),
            "seen": pd.Timestamp("1999-12-31 23:00") + pd.to_timedelta(rng.integers(0, 10**7, 120), unit="s"),
            "took": pd.to_timedelta(rng.integers(0, 10**5, 120), unit="s"),
            "share": rng.random(120),
        }
    )
    model = CTEM(**{**EXACT, "max_steps": 5}).fit(X)
    path = write_report(model, X, tmp_path / "report.html", n_samples=30)
    body = """document.querySelectorAll(".load").forEach((button) => button.click());
      const told = [...document.querySelectorAll(".explorer b, .explorer .answer, .explorer .ends, .rows li, .news")];
      return told.map((node) => node.textContent);"""
    told = in_page(path, tmp_path, body)
    assert len(told) > 15
    assert not any(re.search(r"NaN|Infinity|undefined", text) for text in told)


@pytest.mark.long
@in_browser
def test_times_of_day_months_zones_and_large_numbers_are_told_and_typed_as_the_table_has_them(tmp_path):
    rng, n = np.random.default_rng(0), 200
    minutes = 20 * 60 + rng.integers(0, 480, n)
    moment = pd.Timestamp("2023-03-20", tz="UTC") + pd.to_timedelta(rng.integers(0, 20 * 1440, n), unit="min")
    X = pd.DataFrame(
        {
            "clock": [f"{m // 60 % 24:02d}:{m % 60:02d}" for m in minutes],
            "due": [
                f"{d:%b-%Y}"
                for d in pd.date_range("2010-01-01", periods=80, freq="MS")[rng.integers(0, 80, n)]
            ],
            "zoned": moment.tz_convert("Europe/Oslo"),
            "took": pd.to_timedelta(np.where(rng.random(n) < 0.4, 1980, rng.integers(0, 6000, n)), unit="s"),
            "large": 10**18 + rng.integers(0, 10**5, n),
            "shift": np.array(["06:30", "14:30", "22:30"])[rng.integers(0, 3, n)],
        }
    )
    model = CTEM(**EXACT).fit(X)
    path = write_report(model, X, tmp_path / "report.html", n_samples=30)
    body = """const cards = [...document.querySelectorAll(".card")];
      const say = (node, value) => { node.value = value; node.dispatchEvent(new Event("change")); };
      return questions.map((value, i) => {
        const box = cards[i].querySelector("input:not([type=range]), select");
        const nothing = cards[i].querySelector(".answer").textContent;
        say(box, value);
        const density = document.querySelector(".standing b").textContent;
        const read = box.value, text = cards[i].querySelector("[type=range]")?.getAttribute("aria-valuetext");
        cards[i].querySelector(".forget").click();
        return [nothing, density, read, text, box.textContent];
      });"""
    typed = ["23:15", "2012-06", "2023-04-01T09:30", "33", str(10**18 + 70_001), "2"]
    cells = ["23:15", "Jun-2012", pd.Timestamp("2023-04-01 09:30", tz="Europe/Oslo"), pd.Timedelta("33min")]
    cells += [10**18 + 70_001, "06:30"]
    answers = in_page(path, tmp_path, body, typed)
    told = ["23:15", "Jun-2012", "2023-04-01 09:30", "33 min", "1,000,000,000,000,070,001", None]
    assert [text for *_, text, _ in answers] == told
    assert [read for *_, read, _, _ in answers] == typed
    assert answers[-1][-1] == "unknown14:3022:3006:30"
    for name, cell, (_, density, *_) in zip(X, cells, answers, strict=True):
        row = X.head(1).assign(**{other: None for other in X if other != name})
        row[name] = pd.Series([cell], dtype=X[name].dtype)
        expected = model.score_samples(row.astype({name: X[name].dtype}))[0]
        assert float(density.split()[0].replace("−", "-")) == pytest.approx(expected, abs=6e-3), name
    assert all(re.match(said, nothing) for said, (nothing, *_) in zip(SAID, answers, strict=True))


SAID = (
    r"Median \d\d:\d\d; 90% from 2\d:\d\d to 0\d:\d\d",
    r"Median ...-201\d",
    r"Median 2023-0[34]-",
    r"Median 33 min; .*33 min in ",
    r"Median 1,000,000,000,000,0\d\d,\d\d\d;",
    r"Most likely \d\d:30",
)


@pytest.mark.long
@in_browser
def test_codes_beyond_the_ends_of_a_column_count_in_its_interval(tmp_path):
    rng, n = np.random.default_rng(0), 400
    codes = rng.choice([-999.0, -99.0, np.nan], n, p=[0.1, 0.2, 0.7])
    X = pd.DataFrame(
        {"x": np.where(np.isnan(codes), rng.integers(0, 100, n), codes), "y": rng.normal(size=n)}
    )
    model = CTEM(**EXACT).fit(X)
    path = write_report(model, X, tmp_path / "report.html", n_samples=30)
    body = """const explorer = new Explorer(data, document.createElement("div"));
      return questions.map((share) => explorer.before[0].quantile(share));"""
    shares = [0.05, 0.2, 0.5, 0.95]
    python = [float(model.conditional({}, "x").quantile(share)[0]) for share in shares]
    assert python[:2] == [-999.0, -99.0]
    assert np.abs(np.array(in_page(path, tmp_path, body, shares)) - python).max() <= 1
