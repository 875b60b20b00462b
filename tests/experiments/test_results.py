"""The results convention of experiments/: written whole or not at all, shown beside the paper's."""

import ast
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ctem
import ctem.estimator
import ctem.training.loop
from experiments import NEUTRAL, functions, pages, results

SCRIPT = results.EXPERIMENTS / "paper" / "table1.py"


@pytest.fixture(autouse=True)
def _this_is_table1(monkeypatch):
    monkeypatch.setattr(results, "ENTERED", {})  # as in a process that had the library before
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
    assert content["code"]["ctem.training.loop"]["train"] == unit("training/loop.py", "train").digest


def unit(path: str, name: str) -> results.Unit:
    return results.units(results.LIBRARY / path)[name]


CODE = '''
"""Words."""
from ctem.spaces import Space

MOST = 3


class Box:
    """A box."""

    size: int = 1

    def open(self, by: int = MOST) -> list:
        """Words."""
        return [Space, by]  # of it
'''
SAME = [
    ("A box.", "Another box."),
    ("Words.", "Further words."),
    ("  # of it", ""),
    ("[Space, by]", "[\n            Space,\n            by,\n        ]"),
    ("by: int = MOST", "by: float = MOST"),
    ("ctem.spaces import", "ctem.rooms import"),
    ("class Box", "import os\n\n\nclass Box"),
]
OTHER = [
    ("MOST = 3", "MOST = 4", "MOST"),
    ("size: int = 1", "size: int = 2", "Box"),
    ("Space, by]", "by]", "Box.open"),
]


def digests(folder: Path, text: str) -> dict[str, str]:
    (folder / "box.py").write_text(text)
    return {name: unit.digest for name, unit in results.units(folder / "box.py").items()}


@pytest.mark.parametrize(("old", "new"), SAME, ids=[new for _, new in SAME])
def test_words_layout_types_and_imports_change_no_digest(tmp_path, old, new):
    assert old in CODE
    assert digests(tmp_path, CODE.replace(old, new)) == digests(tmp_path, CODE)


@pytest.mark.parametrize(("old", "new", "name"), OTHER, ids=[name for *_, name in OTHER])
def test_changed_code_changes_the_digest_of_what_it_belongs_to_and_no_other(tmp_path, old, new, name):
    before, after = digests(tmp_path, CODE), digests(tmp_path, CODE.replace(old, new))
    assert before.keys() == {"MOST", "Box", "Box.open"}
    assert [each for each in before if before[each] != after[each]] == [name]


FIT = """
import json
from experiments.results import executed
from experiments.sweep import TINY, toy_table
from ctem import CTEM

CTEM(**TINY | {"max_steps": 2}, random_state=0).fit(toy_table(60, 0))
print(json.dumps(executed()))
"""


@pytest.fixture(scope="module")
def code():
    """What a process has executed that fits a table."""
    found = subprocess.run([sys.executable, "-c", FIT], check=True, capture_output=True, cwd=results.ROOT)
    return json.loads(found.stdout)


@pytest.mark.long
def test_what_the_processes_of_a_sweep_execute_counts_for_its_result(tmp_path):
    script = [sys.executable, "-m", "experiments.tables.nats", "--quick", "--systems", "CTEM", "--jobs", "2"]
    subprocess.run([*script, "--out", str(tmp_path)], check=True, capture_output=True, cwd=results.ROOT)
    code = json.loads((tmp_path / "tables-CTEM-quick.json").read_text())["code"]
    assert "train" in code["ctem.training.loop"]
    assert "classifier_two_sample" in code["ctem.benchmarks.metrics"]
    assert "CTEM.save" not in code["ctem.estimator"]


def test_a_result_rests_on_what_its_run_entered_and_on_no_more(code):
    assert {"train", "_Run.advance"} <= code["ctem.training.loop"].keys()
    assert {"CTEM", "CTEM.fit"} <= code["ctem.estimator"].keys()
    assert {"FIRST", "Phases"} <= code[
        "ctem.densities.anyorder.phases"
    ].keys()  # by way of what mentions them
    assert "CTEM.save" not in code["ctem.estimator"]
    assert not [name for name in code if name.startswith(("ctem.report", "ctem.cli", "ctem.persistence"))]


CHANGES = [
    ("training/loop.py", "\ndef train(", "\ndef train(more, ", ["ctem.training.loop.train"]),
    (
        "densities/anyorder/phases.py",
        "\nFIRST = ",
        "\nFIRST = 2 * ",
        ["ctem.densities.anyorder.phases.FIRST"],
    ),
    ("estimator.py", "    def save(self", "    def save(more, self", []),
    ("arguments.py", "\ndef check_arguments(", "\ndef check_arguments(more, ", []),
    (
        "arguments.py",
        "\ndef plain_arguments(",
        "\ndef plain_arguments(more, ",
        ["ctem.arguments.plain_arguments"],
    ),
    ("report/page.py", "\ndef ", "\nprint()\ndef ", []),
    ("cli/commands.py", "\ndef ", "\nprint()\ndef ", []),
]


@pytest.mark.parametrize(
    ("path", "old", "new", "stale"),
    CHANGES,
    ids=[f"{path}, {n}" for n, (path, *_) in enumerate(CHANGES)],
)
def test_a_changed_function_makes_the_results_stale_that_entered_it(tmp_path, code, path, old, new, stale):
    library = tmp_path / "ctem"
    shutil.copytree(results.LIBRARY, library)
    text = (library / path).read_text()
    assert old in text
    (library / path).write_text(text.replace(old, new, 1))
    assert results.changed(code, library) == stale


def test_what_is_said_to_move_no_number_is_there_and_if_it_checks_an_argument_returns_nothing():
    (checks,) = NEUTRAL.keys() - {"ctem.datasets.downloads"}
    for module, names in NEUTRAL.items():
        path = results.LIBRARY.joinpath(*module.split(".")[1:]).with_suffix(".py")
        made = dict(functions(ast.parse(path.read_text()).body))
        assert names <= results.units(path).keys()
        returned = [made[name].returns for name in names & made.keys()]
        assert module != checks or all(ast.unparse(each) == "None" for each in returned)


def test_an_edit_that_moved_no_number_makes_nothing_stale_until_the_next_one(monkeypatch):
    units = results.units(results.LIBRARY / "spaces.py")
    name, now = next((name, unit.digest) for name, unit in units.items() if name == "Space.dim")
    before = {"ctem.spaces": {name: "0" * 12}}
    assert results.changed(before) == [f"ctem.spaces.{name}"]
    monkeypatch.setattr(results, "EQUAL", {"0" * 12: now})
    assert results.changed(before) == []
    monkeypatch.setattr(results, "EQUAL", {"0" * 12: "1" * 12})
    assert results.changed(before) == [f"ctem.spaces.{name}"]
    monkeypatch.setattr(results, "EQUAL", {"0" * 12: results.GONE})
    assert results.changed(before) == []


def test_moved_code_makes_nothing_stale(tmp_path, code):
    library = tmp_path / "ctem"
    shutil.copytree(results.LIBRARY, library)
    (library / "elsewhere").mkdir()
    (library / "spaces.py").rename(library / "elsewhere" / "rooms.py")
    assert results.changed(code, library) == []


def test_of_a_library_that_was_not_watched_everything_counts(tmp_path):
    content = json.loads(written(tmp_path).read_text())
    assert content["code"]["ctem.estimator"].keys() == results.units(results.LIBRARY / "estimator.py").keys()


def test_what_an_earlier_run_executed_counts_for_what_is_made_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "COUNTED", {})
    results.count({"ctem.earlier": {"fit": "of other code"}})
    content = json.loads(written(tmp_path).read_text())
    assert content["code"]["ctem.earlier"] == {"fit": "of other code"}
    assert results.changed(content["code"]) == ["ctem.earlier.fit"]


def test_a_result_of_other_code_is_stale_and_the_page_says_which_function_changed(tmp_path):
    path = written(tmp_path, "robustness")
    assert "; current." in pages.pages(tmp_path)["robustness.md"]
    content = json.loads(path.read_text())
    spaces = content["code"]["ctem.spaces"] | {"Space.dim": "of other code"}
    path.write_text(json.dumps(content | {"code": content["code"] | {"ctem.spaces": spaces}}))
    assert "; **older**: ctem.spaces.Space.dim changed." in pages.pages(tmp_path)["robustness.md"]
    path.write_text(json.dumps({key: value for key, value in content.items() if key != "code"}))
    assert "**older**: before digests" in pages.pages(tmp_path)["robustness.md"]
    assert "| 1 of 1 older |" in pages.pages(tmp_path)["README.md"]


def test_a_copy_of_the_files_has_the_commit_that_it_is_told(monkeypatch):
    monkeypatch.setenv("CTEM_COMMIT", "abc1234")
    assert results._commit.__wrapped__() == "abc1234"


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
    assert "0.38 ± 0.18 · *0.0123*" in text
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
    assert pages.table(records("abc", "xy", "m"))[0] == "| | x | y |"
    assert pages.table(records("ab", "xyz", "m"))[0] == "| | a | b |"
    assert pages.table(records("ab", "x", "mno"))[0] == "| | m | n | o |"
    assert len(pages.table(records("a", "xy", "mno"))) == 2 + 3


def test_a_published_number_may_have_a_column_of_its_own():
    lines = pages.table(records("ab", "x", "m", paper="0.5"), published="column")
    assert lines[0] == "| | x | published |"
    assert lines[2] == "| a | 1.00 | 0.5 |"


def test_what_all_lines_begin_with_is_said_once():
    lines = pages.table(records(["moons, n = 2", "moons, n = 20", "moons, n = 3"], "xy", "m"))
    assert [line.split(" | ")[0] for line in lines if " " in line] == ["| moons, n =", "| 2", "| 20", "| 3"]


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
    words = [path.read_text() for path in results.RESULTS.glob("*.md")]
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
        (999.6, "1,000"),
        (2.5e9, "2.50 × 10⁹"),
        (-12345.6, "-12,300"),
        (0.001, "0.00100"),
        (0.000123456, "0.000123"),
        (1.234e-7, "1.23 × 10⁻⁷"),
        ("1.2 ± 0.1", "1.2 ± 0.1"),
        (None, "—"),
    ],
)
def test_numbers_have_three_significant_digits(value, text):
    assert pages.number(value) == text


@pytest.mark.parametrize(
    ("metric", "mean", "std", "text"),
    [
        ("test nats", -33.3276, 0.2249, "-33.33 ± 0.22"),
        ("test nats", -31.98941, 0.0073, "-31.99 ± 0.01"),
        ("test nats", -6.0416, None, "-6.042"),
        ("C2ST", 0.000278, 3.1e-5, "0.000 ± 0.000"),
        ("seconds", 2.0774, 0.0006, "2.08 ± 0.00"),
        ("KL", 0.003014, 0.00059, "0.00301 ± 0.00059"),
        ("fit, seconds", 236.4, 223.1, "236 ± 223"),
        ("MSE", 5.081e-14, 1.12e-14, "5.08 × 10⁻¹⁴ ± 1.1 × 10⁻¹⁴"),
    ],
)
def test_a_mean_has_the_decimals_that_its_spread_leaves(metric, mean, std, text):
    (record,) = records("a", "x", [metric], mean=mean, std=std)
    assert pages.table([record])[2].endswith(f"| {text} |")


def test_a_page_says_in_words_what_the_code_says_in_short_and_may_leave_something_out():
    found = pages.worded(records(["a"], ["x"], ["peak", "odd"]), {"peak": "memory, GB", "odd": ""})
    assert [record["metric"] for record in found] == ["memory, GB"]


SCRIPTS = sorted(results.EXPERIMENTS.rglob("*.py"))


def test_experiments_are_few_and_short():
    assert len(SCRIPTS) <= 30
    assert {path.name: n for path in SCRIPTS if (n := path.read_text().count("\n")) > 400} == {}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_experiment_trains_by_the_library_alone(path):
    words = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    assert not words & {"backward", "zero_grad", "optim", "AdamW", "Adam"}
