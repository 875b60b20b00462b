"""The report's laws: it says what the model says, it is safe whatever the table says, and it stays small."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.metrics import mutual_info_score
from small import SMALL

from ctem import CTEM
from ctem.report import write_report
from ctem.report.axes import display_text, lay_out, nice, plain_text
from ctem.report.charts import histograms
from ctem.report.compare import compare_column, mutual_information
from ctem.report.findings import ColumnFacts
from ctem.report.markup import signed
from ctem.report.pictures import marginal_figure
from ctem.report.privacy import audit
from ctem.report.sections import _column_row
from ctem.tables.io.cells import Cells
from ctem.tables.io.frame import read_frame
from ctem.tables.schema import Schema

HOSTILE_NAME = "<script>alert(1)</script>"
HOSTILE_VALUE = "\"'><img src=//evil.example/x onerror=alert(2)>\u202e\x00\n</td>"
VOID = {"meta"}


def table(n=300, seed=0):
    rng = np.random.default_rng(seed)
    side = rng.integers(3, size=n)
    return pd.DataFrame(
        {
            HOSTILE_NAME: np.array([HOSTILE_VALUE, "Bergen", "Røros & co"])[side],
            "rain": np.where(rng.random(n) < 0.3, 0.0, rng.lognormal(side, 0.5)),
            "age": rng.integers(18, 80, n),
            "height": np.where(rng.random(n) < 0.1, np.nan, rng.normal(170 + 10 * side, 5)),
            "smoker": rng.random(n) < 0.2 + 0.3 * side,
            "born": pd.Timestamp("2000-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
            "rooms": rng.integers(1, 6, n),
            "planet": 3,
        }
    )


def fitted(X, **settings):
    return CTEM(**{**SMALL, **settings}).fit(X)


class Reader(HTMLParser):
    """Elements, their attributes, and the text; fails where an element is not closed in turn."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.open, self.words = [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def read(path):
    # a <wbr> only says where a name may break
    page = path.read_text("utf-8")
    return page, Reader(page.replace("<wbr>", ""))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    X, held_out = table(), table(80, seed=1)
    model = fitted(X)
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert write_report(model, X, path, held_out=held_out, n_samples=200) == path
    page, reader = read(path)
    return X, held_out, model, page, reader


@pytest.fixture(scope="module")
def alone(mixed, tmp_path_factory):
    """The report of the same model without held-out rows."""
    X, _, model, *_ = mixed
    path = tmp_path_factory.mktemp("alone") / "report.html"
    return read(write_report(model, X, path, n_samples=50, name="people & co.csv"))


def test_nothing_is_loaded_and_nothing_runs_but_the_explorer_whatever_the_table_says(mixed):
    *_, page, reader = mixed
    tags = {tag for tag, _ in reader.tags}
    scripts = [attributes for tag, attributes in reader.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "ask-data"}, {}]
    source = page[page.index("<script>") + 8 : page.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert not tags & {
        "img",
        "iframe",
        "object",
        "embed",
        "link",
        "form",
        "base",
        "a:href",
        "image",
        "use",
    }
    for tag, attributes in reader.tags:
        assert not any(
            name.startswith("on") or name in ("src", "srcset", "xlink:href") for name in attributes
        ), tag
        assert attributes.get("href", "#").startswith("#")
        assert attributes.get("http-equiv", "Content-Security-Policy") == "Content-Security-Policy"
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in page
    assert "evil.example" in reader.text


def test_hostile_names_and_values_are_shown_as_text(mixed):
    *_, page, reader = mixed
    assert HOSTILE_NAME in reader.text
    assert HOSTILE_NAME not in page
    assert "\u202e" not in page
    assert "\x00" not in page


def test_every_column_is_listed_with_its_kind_and_reason(mixed):
    _, _, model, _, reader = mixed
    for column in model.describe()["columns"]:
        assert column["name"] in reader.text
        assert column["reason"] in reader.text


def test_the_numbers_are_those_of_the_estimator(mixed):
    X, held_out, model, _, reader = mixed
    scores = model.score_samples(held_out)
    assert f"{signed(scores.mean(), '.3f')} ± " in reader.text
    error = scores.std(ddof=1) / np.sqrt(len(scores))
    assert f"{signed(scores.mean(), '.2f')} ± {error:.2g}" in reader.text
    assert signed(model.independent_score_, ".3f") in reader.text
    found = [int(row) for row in re.findall(r"Row (\d+) score", reader.text)]
    assert found == [outlier.row for outlier in model.outliers(X, 10)]
    for outlier in model.outliers(X, 3):
        column, nats = next(iter(outlier.columns.items()))
        assert plain_text(column) in reader.text
        assert f"{nats:.1f}" in reader.text
    assert model.data_hash_ in reader.text


def test_the_headline_is_of_rows_that_were_not_fitted_whoever_held_them_out(mixed, alone):
    _, held_out, model, _, reader = mixed
    scores = model.score_samples(held_out) - model._table.independent(model.as_frame(held_out))
    assert f"{signed(scores.mean(), '+.2f')}" in reader.text
    text = alone[1].text
    assert f"{signed(model.held_out_.gain, '+.2f')} ± " in text
    assert "on rows that the fit held out" in text
    assert "density report · people & co.csv · 20" in text


def test_samples_are_judged_beside_the_ceiling_of_real_rows(mixed):
    *_, reader = mixed
    assert re.search(
        r"0\.\d\d how well 200 samples pass for real rows, 1 at best \(real rows themselves: [01]\.",
        reader.text,
    )


def test_missing_cells_are_shown_by_pattern(mixed):
    X, _, _, _, reader = mixed
    gone = int(X["height"].isna().sum())
    assert f"height {gone} {gone / len(X):.1%}" in reader.text
    assert f"nothing {len(X) - gone} {1 - gone / len(X):.1%}" in reader.text


def test_a_map_shows_the_dependence_of_all_pairs(mixed):
    *_, page, reader = mixed
    assert "The map of dependence" in reader.text
    assert page.count('aria-label="map of dependence') + page.count("map of dependence, ") >= 2


def test_the_privacy_of_the_rows_of_fit_is_audited(mixed):
    X, held_out, model, _, reader = mixed
    found = audit(model, X, held_out, 0, 500)
    assert (
        f"Membership by likelihood ratio, AUC {found.attack:.3f} ± {found.attack_stderr:.3f}" in reader.text
    )
    assert ("No alarm." in reader.text) == (found.alarms() == [])


def test_a_margin_that_differs_beyond_chance_is_an_alarm():
    rng = np.random.default_rng(0)
    frame = read_frame(rng.integers(3, size=(900, 1)).astype(str))
    axis = lay_out("x0", Schema.fit(frame).columns["x0"].codec, frame.columns["x0"])

    def classes(p, n):
        return read_frame(rng.choice(3, size=(n, 1), p=p).astype(str)).columns["x0"]

    same = [
        compare_column(axis, *(classes([0.25, 0.2, 0.55], n) for n in (900, 1000))).is_off for _ in range(300)
    ]
    assert np.mean(same) < 0.02
    off = compare_column(axis, classes([0.25, 0.2, 0.55], 900), classes([0.345, 0.2, 0.455], 1000))
    assert off.is_off


def test_missing_cells_are_counted(mixed):
    X, _, _, _, reader = mixed
    gone = int(X["height"].isna().sum())
    assert f"{gone} cells ({gone / X.size:.1%}) are missing" in reader.text
    assert f"{gone} ({gone / len(X):.1%})" in reader.text


def test_without_held_out_rows_the_report_says_so(mixed, alone, tmp_path):
    _, _, model, _, reader = mixed
    assert "rows that the fit has seen" in alone[1].text
    assert "No held-out rows" not in reader.text
    other = read(write_report(model, table(60, seed=2), tmp_path / "b.html", n_samples=50))[1].text
    assert "rows of the table" in other
    assert "not the rows of this report" in other


def test_the_same_seed_gives_the_same_report_but_for_the_time(mixed, alone, tmp_path):
    X, _, model, *_ = mixed
    again, _ = read(write_report(model, X, tmp_path / "r.html", n_samples=50, name="people & co.csv"))
    timeless = [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "", page) for page in (alone[0], again)]
    assert timeless[0] == timeless[1]


def test_a_report_that_cannot_be_written_leaves_nothing_behind(mixed, tmp_path):
    X, _, model, *_ = mixed
    (tmp_path / "taken.html").mkdir()
    with pytest.raises(OSError, match="could not be written"):
        write_report(model, X.head(20), tmp_path / "taken.html", n_samples=10)
    assert [path.name for path in tmp_path.iterdir()] == ["taken.html"]
    with pytest.raises(FileNotFoundError, match="make it first"):
        write_report(model, X, tmp_path / "absent" / "r.html")
    with pytest.raises(ValueError, match="n_samples: expected"):
        write_report(model, X, tmp_path / "r.html", n_samples=1)


@pytest.mark.long
def test_hundreds_of_columns_give_a_small_file_that_says_what_it_leaves_out(tmp_path):
    rng = np.random.default_rng(0)
    side = rng.integers(2, size=(150, 1))
    X = (rng.random((150, 70)) < 0.2 + 0.5 * side).astype(int)
    model = fitted(X, max_steps=2, width=8, orders=1)
    path = write_report(model, X, tmp_path / "wide.html", n_samples=20)
    assert path.stat().st_size < 400_000
    _, reader = read(path)
    assert "60 of 70 columns are drawn" in reader.text
    assert "8 most dependent of 2,415 pairs" in reader.text
    assert "x69" in reader.text


@pytest.mark.long
def test_a_model_to_which_gaps_are_a_state_has_a_report_too(tmp_path):
    X = table(150)[["rain", "height", "smoker"]]
    model = fitted(X, missing="state")
    text = read(write_report(model, X, tmp_path / "r.html", n_samples=60))[1].text
    assert "density report" in text


@pytest.mark.parametrize("library", ["numpy", pytest.param("polars", marks=pytest.mark.long)])
def test_other_tables_have_a_report_too(library, tmp_path):
    X = np.random.default_rng(0).normal(size=(120, 1)) if library == "numpy" else pl.from_pandas(table(120))
    model = fitted(X)
    text = read(write_report(model, X, tmp_path / "r.html", held_out=X[:1], n_samples=60))[1].text
    assert "1 held-out rows" in text
    assert "± unknown" in text


@pytest.mark.filterwarnings("ignore:'ids' names the rows")
def test_extreme_numbers_and_a_table_of_one_row_have_a_report_too(tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "ids": np.arange(120) + 10**18,
            "wide": rng.integers(2**60, 2**62, 120),
            "huge": rng.normal(size=120) * 1e300,
            "tiny": rng.normal(size=120) * 1e-300,
            "never": [None] * 120,
            "scarce": np.where(rng.random(120) < 0.97, np.nan, rng.normal(size=120)),
            "long": rng.choice(["x" * 10_000, "y"], 120),
        }
    )
    model = fitted(X)
    for rows in (X, X.head(1)):
        path = write_report(model, rows, tmp_path / "r.html", n_samples=30)
        assert path.stat().st_size < 250_000
        page, _ = read(path)
        assert not re.search(r"\b(nan|inf)\b", re.sub(r"<text.*?</text>", "", page[page.index("<section") :]))


def test_dependence_is_mutual_information_less_its_bias():
    rng = np.random.default_rng(0)
    a, b = rng.integers(3, size=500), rng.integers(4, size=500)
    b = np.where(rng.random(500) < 0.5, a, b)
    c = np.where(rng.random(500) < 0.3, -1, rng.integers(2, size=500))
    found = mutual_information([a, b, c], [3, 4, 2])
    both = c >= 0
    assert found[0, 1] == pytest.approx(mutual_info_score(a, b) - 2 * 3 / 1000, abs=1e-6)
    assert found[1, 2] == pytest.approx(
        max(mutual_info_score(b[both], c[both]) - 3 * 1 / (2 * both.sum()), 0), abs=1e-6
    )
    assert found == pytest.approx(found.T)


def test_what_chance_explains_is_what_two_samples_of_one_law_show():
    rng = np.random.default_rng(0)
    frame = read_frame(rng.gamma(2.0, size=(1000, 1)))
    codec = Schema.fit(frame).columns["x0"].codec
    axis = lay_out("x0", codec, frame.columns["x0"])
    found = []
    for _ in range(100):
        one, two = (Cells("float", rng.gamma(2.0, size=n), np.zeros(n, bool)) for n in (400, 300))
        found.append(compare_column(axis, one, two))
    difference = np.array([marginal.difference for marginal in found])
    chance = np.mean([marginal.chance for marginal in found])
    assert abs(difference.mean() - chance) < 4 * difference.std() / 10 + 0.01


def test_bars_of_whole_numbers_hold_equally_many_of_them():
    X = np.random.default_rng(0).integers(0, 1000, size=(3000, 1))
    frame = read_frame(X)
    axis = lay_out("x0", Schema.fit(frame).columns["x0"].codec, frame.columns["x0"])
    inside = np.arange(np.ceil(axis.edges[0]), axis.edges[-1])
    counts = np.bincount(axis.slots(Cells("float", inside, np.zeros(len(inside), bool))))
    assert set(counts) == {counts[0]}


def test_every_known_cell_has_one_slot():
    frame = read_frame(table())
    for name, choice in Schema.fit(frame).columns.items():
        axis, cells = lay_out(name, choice.codec, frame.columns[name]), frame.columns[name]
        if axis is None:
            assert name == "planet"
            continue
        slots, places = axis.slots(cells), axis.places(cells)
        assert ((slots >= 0) == ~cells.missing).all()
        assert (slots < axis.size).all()
        known = ~np.isnan(places)
        assert (
            np.minimum((places[known] * axis.size).astype(int), axis.size - 1) == slots[known]
        ).mean() > 0.99
        assert all(0 <= at <= 1 for at, _ in axis.ticks())


def test_ticks_are_round_and_inside():
    for low, high in ((0, 1), (-3.7, 12), (0.001, 0.0042), (1e6, 5e6), (2.0, 2.0)):
        ticks = nice(low, high)
        assert 1 <= len(ticks) <= 9
        assert all(low - 1e-9 * abs(low) <= tick <= high + 1e-9 * abs(high) for tick in ticks)


def test_moments_of_a_zone_are_told_in_it_everywhere(tmp_path):
    rng = np.random.default_rng(0)
    evening = pd.Timestamp("2023-03-20 20:00", tz="UTC")
    days = {"at": rng.integers(0, 40, 200), "slot": 365 + rng.integers(0, 2, 200)}
    moments = {name: evening + pd.to_timedelta(each, unit="D") for name, each in days.items()}
    X = pd.DataFrame({name: each.tz_convert("Asia/Tokyo") for name, each in moments.items()})
    page = write_report(CTEM(**SMALL).fit(X), X, tmp_path / "r.html", n_samples=50).read_text("utf-8")
    assert "2023-03-21 05:00" in page
    assert "2024-03-20 05:00" in page
    assert "20:00" not in page


def test_many_rare_labels_together_have_a_share_and_no_bar():
    rng = np.random.default_rng(0)
    frame = read_frame(pd.DataFrame({"x": [f"v{k}" for k in rng.integers(0, 45, 2000)]}))
    cells = frame.columns["x"]
    axis = lay_out("x", Schema.fit(frame).columns["x"].codec, cells)
    html = marginal_figure(compare_column(axis, cells, cells), "category")
    widths = [float(each) for each in re.findall(r"<i style=\"width:([0-9.]+)%", html)]
    assert axis.labels[-1].endswith("others")
    assert len(widths) == axis.size - 1
    assert min(widths) > 60  # all are about as common
    assert "together" in html


def test_a_long_reason_is_opened_by_a_click():
    column = ColumnFacts("x", "real", "because " * 40, 0, "1 to 2")
    row = _column_row(column, 10)
    assert row.count("<details>") == 1
    assert len(re.search("<summary>(.*)</summary>", row)[1]) < 100
    assert row.count("because") > 40  # and whole behind it
    assert "<details>" not in _column_row(replace(column, reason="whole numbers"), 10)


def test_nats_in_the_first_tile_say_how_many_times_likelier(mixed):
    page = mixed[3]
    assert re.search(r"nats per row better than independent columns: [0-9,.e+]+ times likelier", page)


@pytest.mark.parametrize(
    ("values", "first", "tick"),
    [
        (pd.to_timedelta(np.arange(200) * 24, unit="s"), "0:00:24", "20 min"),
        (pd.Timestamp("2024-02-29") + pd.to_timedelta(np.arange(200), "min"), "2024-02-29 00:01:00", "02-29 00:24"),
        (pd.Timestamp("2024-02-29") + pd.to_timedelta(np.arange(200), "s"), "2024-02-29 00:00:01", "00:00:24"),
        (10**15 + np.arange(200), "1000000000000001", "1.00000000000005e+15"),
        (2**63 + np.arange(200, dtype=np.uint64), "9223372036854775809", "9223372036854775858"),
    ],
)  # fmt: skip
def test_short_spans_of_time_and_large_numbers_have_ticks_that_differ(values, first, tick):
    frame = read_frame(pd.DataFrame({"x": values}))
    axis = lay_out("x", Schema.fit(frame).columns["x"].codec, frame.columns["x"])
    texts = [text for _, text in axis.ticks()]
    assert len(set(texts)) == len(texts)
    assert texts[0] == tick
    assert display_text(frame.columns["x"], 1) == first
    assert "…" not in histograms("x", np.ones(3) / 3, np.ones(3) / 3, axis.ticks())


@pytest.mark.parametrize(("missing", "is_value"), [("hidden", False), ("state", True)])
def test_the_report_says_what_a_gap_is_to_the_model(missing, is_value, tmp_path):
    X = pd.DataFrame({"a": np.where(np.arange(150) % 3, np.nan, np.arange(150.0)), "b": np.arange(150) % 7})
    model = CTEM(**SMALL, missing=missing).fit(X)
    page = write_report(model, X, tmp_path / "r.html", n_samples=50).read_text("utf-8")
    assert ("A gap is a value to the model" in page) == is_value
    assert ("scores marginalise" in page) != is_value


def test_a_label_without_letters_can_be_seen(tmp_path):
    labels = pd.Categorical(
        np.array(["", " ", "x"])[np.arange(150) % 3]
    )  # as text the first two would be gaps
    X = pd.DataFrame({"a": labels, "b": np.arange(150) % 7})
    model = CTEM(**SMALL).fit(X)
    page = write_report(model, X, tmp_path / "r.html", n_samples=50).read_text("utf-8")
    assert "<bdi>&quot;&quot;</bdi>" in page
    assert "<bdi>&quot; &quot;</bdi>" in page
    assert '""' in str(model.conditional({}, "a"))
