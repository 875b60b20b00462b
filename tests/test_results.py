"""The results convention of experiments/: written whole or not at all, shown beside the paper's."""

import importlib
import json
import math
import os
from pathlib import Path

import pytest

import ctem

EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"


@pytest.fixture
def results(monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    return importlib.import_module("results")


@pytest.fixture
def render(results):
    return importlib.import_module("render")


def written(results, folder, name="table1", values=(0.5, 0.25), **rest):
    records = [results.summarise("spiral", "CTEM", "ISE", values, paper=0.0123)]
    return results.write(name, {"n": 1000, "widths": [64, 64]}, records, "cpu", 3.14159, folder, **rest)


def test_what_was_written_is_read_back(results, tmp_path):
    content = json.loads(written(results, tmp_path, command="python experiments/table1.py").read_text())
    (record,) = content["records"]
    assert record == {
        "dataset": "spiral",
        "system": "CTEM",
        "metric": "ISE",
        "mean": 0.375,
        "std": pytest.approx(0.25 / math.sqrt(2)),
        "seeds": 2,
        "paper": 0.0123,
    }
    assert content["experiment"] == "table1"
    assert content["version"] == ctem.__version__
    assert content["settings"] == {"n": 1000, "widths": [64, 64]}
    assert content["device"].startswith("cpu (")
    assert content["created"].endswith("+00:00")
    assert content["machine"].startswith(f"{os.cpu_count()} cores")
    assert content["digest"] == results.digest(content["modules"])


def test_the_digest_changes_with_the_code_of_a_module_and_not_with_its_words(results, tmp_path):
    def found(name: str, text: str) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.py").write_text(text)
        return results.digest(["ctem.a"], folder)

    code = found("one", '"""Words."""\nx = 1\n')
    assert found("two", '"""Other words."""\n# and more\nx  =  1\n') == code
    assert found("three", '"""Words."""\nx = 2\n') != code
    assert results.digest(["ctem.b"], tmp_path / "one") != code


def test_a_result_of_other_code_is_stale(results, render, tmp_path, monkeypatch):
    written(results, tmp_path)
    assert "## table1\n" in render.page(tmp_path)
    monkeypatch.setattr(render, "digest", lambda modules: "another")
    assert "## table1 (stale)\n" in render.page(tmp_path)


def test_a_run_outside_a_repository_has_no_commit(results, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    assert results._commit.__wrapped__() is None


def test_one_seed_has_no_spread_and_none_is_refused(results):
    assert results.summarise("a", "b", "c", [2.0]).std is None
    with pytest.raises(ValueError, match="a, b, c"):
        results.summarise("a", "b", "c", [])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("field", ["mean", "std", "paper"])
def test_a_record_that_is_not_finite_is_refused_by_name_and_the_old_file_stays(results, tmp_path, field, bad):
    path = written(results, tmp_path)
    before = path.read_bytes()
    record = results.summarise("rings", "KDE", "KL", [1.0, 2.0])._replace(**{field: bad})
    with pytest.raises(ValueError, match=rf"rings, KDE, KL.*finite {field}"):
        results.write("table1", {}, [record], "cpu", 1.0, tmp_path)
    assert path.read_bytes() == before


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(results, tmp_path, monkeypatch):
    path = written(results, tmp_path)
    before = path.read_bytes()

    def full(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(results.os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        written(results, tmp_path, values=(9.0,))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_quick_runs_stay_away_from_committed_results(results, render, tmp_path):
    parser = results.arguments("A table.")
    assert parser.parse_args([]).out == results.RESULTS
    assert parser.parse_args(["--quick"]).out == results.QUICK
    assert parser.parse_args(["--quick", "--out", "here"]).out == Path("here")
    assert parser.parse_args(["--device", "auto"]).device in ("cpu", "cuda")
    committed = written(results, tmp_path)
    before = committed.read_bytes()
    assert written(results, tmp_path, values=(9.0,), quick=True).name == "table1-quick.json"
    assert committed.read_bytes() == before
    assert render.page(tmp_path).count("## ") == 1


def test_the_command_is_this_process_without_its_folders(results, tmp_path, monkeypatch):
    folders = ["--out", str(tmp_path), "--arrays", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["/some/where/table1.py", *folders, "--seeds", "5"])
    content = json.loads(written(results, tmp_path).read_text())
    assert content["command"] == "python experiments/table1.py --seeds 5"


def test_the_page_is_deterministic_with_the_published_number_and_the_command_once(results, render, tmp_path):
    for name in ("table2", "table1"):
        written(results, tmp_path, name, command=f"python experiments/{name}.py")
    text = render.page(tmp_path)
    assert text == render.page(tmp_path)
    assert text.index("## table1") < text.index("## table2")
    assert "| spiral | ISE | CTEM | 0.375 ± 0.177 (2) | 0.0123 |" in text.splitlines()
    assert text.count("`python experiments/table1.py`") == 1
    assert "Settings: `n=1000, widths=[64, 64]`" in text


def test_a_file_of_another_kind_is_refused_by_name(render, tmp_path):
    (tmp_path / "stray.json").write_text("{}")
    with pytest.raises(ValueError, match=r"stray\.json.*missing experiment"):
        render.page(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1.00"),
        (-12.345, "-12.3"),
        (100.0, "100"),
        (999.6, "1000"),
        (-12345.6, "-12346"),
        (0.001, "0.00100"),
        (0.000123456, "1.23e-04"),
        ("1.2 ± 0.1", "1.2 ± 0.1"),
        (None, "—"),
    ],
)
def test_numbers_have_three_significant_digits(render, value, text):
    assert render.number(value) == text
