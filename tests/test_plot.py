"""Pictures and notebooks: what is drawn is what the model says, and nothing in a table is obeyed."""

import re
import sys
import types
from itertools import product

import numpy as np
import pandas as pd
import pytest
from small import EXACT

import ctem
from ctem import CTEM
from ctem.training import progress

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    side = rng.integers(2, size=200)
    return pd.DataFrame(
        {
            "<b>city</b>": np.array(["Oslo", "Bergen"])[side],
            "size": np.where(rng.random(200) < 0.1, np.nan, rng.normal(3 * side, 1)),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, 200), unit="D"),
            "wait": pd.to_timedelta(rng.integers(1, 5000, 200), unit="m"),
            "member": rng.random(200) < 0.3,
            "rooms": rng.integers(1, 6, 200),
        }
    )


@pytest.fixture(scope="module")
def model(X):
    return CTEM(**EXACT).fit(X)


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def drawn(axes):
    axes.figure.canvas.draw()
    return axes


def test_pairs_have_a_panel_for_every_two_columns_of_any_kind(model, X):
    axes = ctem.plot.pairs(model, X, columns=list(X.columns), n_rows=50)
    assert axes.shape == (6, 6)
    assert [ax.get_xlabel() for ax in axes[-1]] == [*X.columns[:3], "wait, days", *X.columns[4:]]
    below, above = axes[2, 1].lines[0].get_xydata(), axes[1, 2].lines[0].get_xydata()
    assert len(below) == len(above) == 50
    assert axes[3, 0].get_xlim() == axes[5, 0].get_xlim()


def test_a_density_that_is_drawn_has_area_one_and_bars_sum_to_one(model):
    for column in ("size", "day", "wait"):
        axes = drawn(ctem.plot.conditional(model, column, given={"<b>city</b>": "Oslo"}))
        assert len(axes.patches) == 2
        for curve in axes.patches:
            height, edges, _ = curve.get_data()
            edges = edges / np.timedelta64(1, "D") if edges.dtype.kind == "m" else edges
            widths = np.diff(edges) / (np.timedelta64(1, "D") if edges.dtype.kind == "M" else 1.0)
            assert (height * widths).sum() == pytest.approx(1, abs=0.01)
    axes = drawn(ctem.plot.conditional(model, "<b>city</b>", given={"size": 3.0}))
    assert sum(bar.get_height() for bar in axes.patches) == pytest.approx(2)


def test_a_what_if_curve_is_the_conditional_at_each_value(model):
    axes = drawn(ctem.plot.what_if(model, "size", "rooms", {"member": True}, values=[0.0, 1.0, 2.0]))
    place, mean = axes.lines[0].get_data()
    assert list(place) == [0.0, 1.0, 2.0]
    told = [model.conditional({"member": True, "size": v}, "rooms").mean().tolist()[0] for v in place]
    assert list(mean) == told


NAMES = ["<b>city</b>", "size", "day", "wait", "member", "rooms"]
ASKED = ["wait", "day", "<b>city</b>", "day", "wait", "<b>city</b>"]
NEXT = list(zip(NAMES, ASKED, strict=True))
REST = [pair for pair in product(NAMES, ASKED[:3]) if len({*pair}) == 2 and pair not in NEXT]


@pytest.mark.parametrize(
    ("column", "target"), [*NEXT, *(pytest.param(*pair, marks=pytest.mark.long) for pair in REST)]
)
def test_any_column_may_vary_and_any_other_be_asked_for(model, column, target):
    axes = drawn(ctem.plot.what_if(model, column, target))
    assert axes.get_xlabel() == ("wait, days" if column == "wait" else column)
    assert axes.get_legend() is not None


def test_a_range_is_refused_where_one_value_is_meant_and_an_unknown_name_by_name(model):
    with pytest.raises(ValueError, match="expected one value for 'size'"):
        model.conditional({"size": (1.0, 2.0)}, "rooms")
    with pytest.raises(ValueError, match="'colour'"):
        ctem.plot.what_if(model, "colour", "size")


def test_one_row_as_a_dict_is_the_row_of_a_table_with_its_other_cells_missing(model, X):
    row = pd.DataFrame([{"size": 1.5, "member": True}], columns=X.columns)
    a, b = model.conditional({"size": 1.5, "member": True}, "rooms"), model.conditional(row, "rooms")
    assert np.array_equal(a.probability, b.probability)


def test_a_notebook_shows_a_model_an_answer_and_outliers_and_obeys_no_name(model, X):
    for shown in (model, model.conditional(X, "size"), model.conditional(X, "rooms"), model.outliers(X, n=3)):
        html = shown._repr_html_()
        assert html.count("<table") == html.count("</table>") == 1
        assert "<b>city" not in html
    html = model._repr_html_()
    assert html.count("<svg") == 6
    assert "fitted on 200 rows" in html
    assert "than independent columns" in html
    assert "fitted on" not in CTEM()._repr_html_()
    assert "fitted on" in model._repr_mimebundle_()["text/html"]


def test_progress_is_lines_in_a_log_and_the_last_is_the_end(capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    with progress.showing("training", 3) as report:
        for done in (1, 2, 3):
            report(done, f"loss {done}")
    assert capsys.readouterr().out.splitlines() == [f"training: {k} of 3, loss {k}" for k in (1, 2, 3)]
    with progress.showing("training", 3, show=False) as report:
        report(1, "loss")
    assert capsys.readouterr().out == ""


def test_progress_in_a_notebook_is_one_bar_that_is_updated(monkeypatch):
    shown = []
    handle = types.SimpleNamespace(update=shown.append)
    display = types.SimpleNamespace(display=lambda html, display_id: shown.append(html) or handle, HTML=str)
    shell = types.SimpleNamespace(kernel=object())
    fake = types.SimpleNamespace(display=display, get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", fake)
    with progress.showing("training", 2) as report:
        report(2, "loss <1>")
    assert [text.count("<progress") for text in shown] == [1, 1]
    assert "loss &lt;1&gt;" in shown[-1]


def test_axes_of_times_of_day_months_zones_and_durations_say_what_the_table_says():
    rng, n = np.random.default_rng(0), 200
    minutes = 8 * 60 + rng.integers(0, 480, n)
    months = pd.date_range("2010-01-01", periods=80, freq="MS")[rng.integers(0, 80, n)]
    hours = pd.Timestamp("2023-03-20", tz="UTC") + pd.to_timedelta(rng.integers(0, 120, n), unit="min")
    X = pd.DataFrame(
        {
            "clock": [f"{m // 60:02d}:{m % 60:02d}" for m in minutes],
            "due": [f"{month:%b-%Y}" for month in months],
            "zoned": hours.tz_convert("Asia/Tokyo"),
            "took": pd.to_timedelta(rng.integers(0, 6000, n), unit="s"),
        }
    )
    model = CTEM(**EXACT).fit(X)
    assert re.search(r"\d\d:\d\d +— +\d\d:\d\d to", str(model.conditional({}, "clock")))
    patterns = (r"\d\d:\d\d", r"[A-Z][a-z]{2}-20\d\d", r"20 (08|09|10|11):\d\d", r"−?0\.\d\d")
    panels = ctem.plot.pairs(model, X)
    panels[0, 0].figure.canvas.draw()
    for j, (name, pattern) in enumerate(zip(X, patterns, strict=True)):
        other = next(each for each in X if each != name)
        axes = [ctem.plot.conditional(model, name).xaxis, ctem.plot.what_if(model, name, other).xaxis]
        axes += [ctem.plot.what_if(model, other, name).yaxis, panels[-1, j].xaxis]
        for axis in axes:
            if axis.axes is not panels[-1, j]:
                axis.figure.canvas.draw()
            texts = [label.get_text() for label in axis.get_ticklabels()]
            assert texts
            assert all(re.fullmatch(pattern, text) for text in texts), (name, texts)
            assert axis.get_label_text() == ("took, days" if name == "took" else name)


def test_columns_that_never_vary_have_panels_too():
    X = pd.DataFrame({"x": np.arange(120.0) % 7, "day": pd.Timestamp("2020-02-02"), "huge": 1e20})
    assert ctem.plot.pairs(CTEM(**EXACT).fit(X), X).shape == (3, 3)


def test_a_curve_runs_over_the_numbers_of_a_column_and_not_over_its_codes():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": rng.integers(0, 100, 200), "y": rng.normal(size=200)})
    X.loc[rng.random(200) < 0.2, "x"] = -999
    curve = ctem.plot.what_if(CTEM(**EXACT).fit(X), "x", "y").lines[0].get_xdata()
    assert curve.min() >= 0
    assert curve.max() > 80


@pytest.mark.long
def test_a_curve_runs_over_whole_numbers_beyond_those_of_python_s_floats():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"x": np.uint64(2**63) + rng.integers(0, 10**6, 200).astype(np.uint64)})
    model = CTEM(**EXACT).fit(X.assign(y=rng.normal(size=200)))
    assert len(ctem.plot.what_if(model, "x", "y").lines[0].get_xdata()) > 30
    assert model.probability({"x": (2**63, None)}).value > 0.9


def test_gaps_that_are_values_are_drawn_and_named():
    rng = np.random.default_rng(0)
    gone = rng.random((3, 200)) < 0.4
    X = pd.DataFrame(
        {"c": rng.choice(["a", "b"], 200), "b": rng.choice([True, False], 200), "x": rng.normal(size=200)}
    )
    X = X.astype({"b": "boolean"}).mask(gone.T).assign(k=rng.integers(0, 5, 200))
    model = CTEM(**EXACT, missing="state").fit(X)
    for name in ("c", "b"):
        axes = drawn(ctem.plot.conditional(model, name))
        assert [text.get_text() for text in axes.get_xticklabels()][-1] == "missing"
        assert sum(bar.get_height() for bar in axes.patches if np.isfinite(bar.get_x())) == pytest.approx(1)
        curves = ctem.plot.what_if(model, "k", name).get_legend().get_texts()
        assert "missing" in [text.get_text() for text in curves]
        assert "None" not in str(model.conditional({}, name))
    legend = ctem.plot.conditional(model, "x").get_legend().get_texts()[0].get_text()
    assert re.fullmatch(r"nothing known \(missing [34]\d%\)", legend)
