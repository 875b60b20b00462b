"""The results convention of experiments/: written whole or not at all, shown beside the paper's."""

import ast
import json
import math
import os
import shutil
from pathlib import Path

import pytest

import ctem
from experiments import pages, results

SCRIPT = results.EXPERIMENTS / "paper" / "table1.py"


@pytest.fixture(autouse=True)
def _this_is_table1(monkeypatch):
    monkeypatch.setattr("sys.argv", [str(SCRIPT)])


def written(folder, name="table1", values=(0.5, 0.25), **rest):
    records = [results.summarise("spiral", "CTEM", "ISE", values, paper=0.0123)]
    return results.write(name, {"n": 1000, "widths": [64, 64]}, records, "cpu", 3.14159, folder, **rest)


def test_what_was_written_is_read_back(tmp_path):
    content = json.loads(written(tmp_path, command="python -m experiments.paper.table1").read_text())
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
    assert content["modules"]["ctem.training.loop"] == results.digest(Path(ctem.training.loop.__file__))


def test_the_digest_changes_with_the_code_of_a_module_and_not_with_its_words_or_its_imports(tmp_path):
    def found(name: str, text: str) -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        return results.digest(path)

    code = found("one", '"""Words."""\nx = 1\n')
    assert found("two", '"""Other words."""\n# and more\nfrom a import (\n    b,\n)\nx  =  1\n') == code
    assert found("three", '"""Words."""\nx = 2\n') != code


def test_a_result_rests_on_what_its_script_reaches_and_on_no_more():
    modules = results.rests_on(SCRIPT)
    assert {"ctem.training.loop", "ctem.densities.pairwise", "ctem.spaces"} <= modules.keys()
    assert not {"ctem.estimator", "ctem.densities.anyorder.network", "ctem.cli"} & modules.keys()
    assert "ctem.estimator" in results.rests_on(results.EXPERIMENTS / "tables" / "adult.py")


def test_a_changed_module_makes_its_results_stale_and_a_moved_one_does_not(tmp_path):
    library = tmp_path / "ctem"
    shutil.copytree(results.LIBRARY, library)
    modules = results.rests_on(SCRIPT)
    (library / "elsewhere").mkdir()
    (library / "spaces.py").rename(library / "elsewhere" / "rooms.py")
    assert results.changed(modules, library) == []
    with (library / "bases.py").open("a") as file:
        file.write("ONE = 1\n")
    assert results.changed(modules, library) == ["ctem.bases"]


def test_a_result_of_other_code_is_stale_and_the_page_says_which_module_changed(tmp_path):
    path = written(tmp_path, "robustness")
    assert "| current |" in pages.pages(tmp_path)["robustness.md"]
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"modules": content["modules"] | {"ctem.spaces": "of other code"}}))
    assert "| **stale**: ctem.spaces changed |" in pages.pages(tmp_path)["robustness.md"]
    path.write_text(json.dumps(content | {"modules": {}}))
    assert "**stale**: before digests" in pages.pages(tmp_path)["robustness.md"]
    assert "| 1 | 1 |" in pages.pages(tmp_path)["README.md"]


def test_a_run_outside_a_repository_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "EXPERIMENTS", tmp_path)
    monkeypatch.delenv("CTEM_COMMIT", raising=False)
    assert results._commit.__wrapped__() is None


def test_one_seed_has_no_spread_and_none_is_refused():
    assert results.summarise("a", "b", "c", [2.0]).std is None
    with pytest.raises(ValueError, match="a, b, c"):
        results.summarise("a", "b", "c", [])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("field", ["mean", "std", "paper"])
def test_a_record_that_is_not_finite_is_refused_by_name_and_the_old_file_stays(tmp_path, field, bad):
    path = written(tmp_path)
    before = path.read_bytes()
    record = results.summarise("rings", "KDE", "KL", [1.0, 2.0])._replace(**{field: bad})
    with pytest.raises(ValueError, match=rf"rings, KDE, KL.*finite {field}"):
        results.write("table1", {}, [record], "cpu", 1.0, tmp_path)
    assert path.read_bytes() == before


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = written(tmp_path)
    before = path.read_bytes()

    def full(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(results.os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        written(tmp_path, values=(9.0,))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_quick_runs_stay_away_from_committed_results(tmp_path):
    parser = results.arguments("A table.")
    assert parser.parse_args([]).out == results.RESULTS
    assert parser.parse_args(["--quick"]).out == results.QUICK
    assert parser.parse_args(["--quick", "--out", "here"]).out == Path("here")
    assert parser.parse_args(["--device", "auto"]).device in ("cpu", "cuda")
    assert written(tmp_path, quick=True).name == "table1-quick.json"
    assert set(pages.pages(tmp_path)) == {"README.md"}


def test_the_command_is_this_process_without_its_folders(tmp_path, monkeypatch):
    folders = ["--out", str(tmp_path), "--arrays", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [str(SCRIPT), *folders, "--seeds", "5"])
    content = json.loads(written(tmp_path).read_text())
    assert content["command"] == "python -m experiments.paper.table1 --seeds 5"


def test_a_page_has_the_published_number_beside_ours_and_every_command_once(tmp_path):
    for name in ("table1-ours-2d", "table1-ours-10d"):
        written(tmp_path, name, command="python -m experiments.paper.table1")
    found = pages.pages(tmp_path)
    assert found == pages.pages(tmp_path)
    text = found["table1.md"]
    assert "0.375 ± 0.177 · *0.0123*" in text
    assert text.count("`python -m experiments.paper.table1`") == 1
    assert text.index("[table1-ours-2d]") < text.index("[table1-ours-10d]")


def test_of_two_results_with_the_same_row_the_newer_is_shown():
    old, new = (records("a", "x", "m", mean=mean) for mean in (1.0, 2.0))
    results = [{"created": "2026-02", "records": new}, {"created": "2026-01", "records": old}]
    assert pages.unique(results) == pages.unique(results[::-1]) == new


def records(datasets, systems, metrics, **rest):
    return [
        {"dataset": d, "system": s, "metric": m, "mean": 1.0, "std": None, "paper": None} | rest
        for d in datasets
        for s in systems
        for m in metrics
    ]


def test_the_longer_of_two_axes_goes_down_and_metrics_of_one_system_stand_side_by_side():
    assert pages.table(records("abc", "xy", "m"))[0] == "|  | x | y |"
    assert pages.table(records("ab", "xyz", "m"))[0] == "|  | a | b |"
    assert pages.table(records("ab", "x", "mno"))[0] == "|  | m | n | o |"
    assert len(pages.table(records("a", "xy", "mno"))) == 2 + 3


def test_a_published_number_may_have_a_column_of_its_own():
    lines = pages.table(records("ab", "x", "m", paper="0.5"), published="column")
    assert lines[0] == "|  | x | published |"
    assert lines[2] == "| a | 1.00 | 0.5 |"


def test_what_all_lines_begin_with_is_said_once():
    lines = pages.table(records(["moons, n = 2", "moons, n = 20", "moons, n = 3"], "xy", "m"))
    assert [line.split(" | ")[0] for line in lines] == ["| moons, n =", "| ---", "| 2", "| 20", "| 3"]


def test_a_file_of_another_kind_or_without_a_page_is_refused_by_name(tmp_path):
    (tmp_path / "table2.json").write_text("{}")
    with pytest.raises(ValueError, match=r"table2\.json.*missing experiment"):
        pages.pages(tmp_path)
    (tmp_path / "table2.json").rename(tmp_path / "stray.json")
    with pytest.raises(ValueError, match=r"stray\.json.*one page.*got none"):
        pages.pages(tmp_path)


def test_every_committed_result_is_on_a_page_and_all_pages_are_small():
    found = pages.pages()
    names = [path.stem for path in results.RESULTS.glob("*.json")]
    text = "".join(found.values())
    assert all(f"]({name}.json)" in text for name in names)
    words = [path.read_text() for path in results.EXPERIMENTS.rglob("*.md")]
    assert sum(len(each.encode()) for each in words) < 100_000


@pytest.mark.long
def test_no_committed_page_is_silently_old():
    """Where this fails, ``make results`` says which results the changed library has made stale."""
    for name, text in pages.pages().items():
        assert (results.RESULTS / name).read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1.00"),
        (-12.345, "-12.3"),
        (100.0, "100"),
        (999.6, "1000"),
        (2.5e9, "2.50e+09"),
        (-12345.6, "-12346"),
        (0.001, "0.00100"),
        (0.000123456, "1.23e-04"),
        ("1.2 ± 0.1", "1.2 ± 0.1"),
        (None, "—"),
    ],
)
def test_numbers_have_three_significant_digits(value, text):
    assert pages.number(value) == text


SCRIPTS = sorted(results.EXPERIMENTS.rglob("*.py"))


def test_experiments_are_few_and_short():
    assert len(SCRIPTS) <= 30
    assert {path.name: n for path in SCRIPTS if (n := path.read_text().count("\n")) > 400} == {}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_experiment_trains_by_the_library_alone(path):
    words = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    assert not words & {"backward", "zero_grad", "optim", "AdamW", "Adam"}
