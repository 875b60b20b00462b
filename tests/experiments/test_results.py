"""The results convention of experiments/: in place when a run has ended, shown beside the paper's with its origin."""

import argparse
import ast
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sklearn
import torch

import ctem
from experiments import pages, remake, results, sweep
from experiments.images import mnist

SCRIPT = results.EXPERIMENTS / "paper" / "table1.py"
SCRIPTS = sorted(results.EXPERIMENTS.rglob("*.py"))


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
    assert content["settings"] == {"n": 1000, "widths": [64, 64]}
    assert content["device"].startswith("cpu (")
    assert content["created"].endswith("+00:00")
    assert content["machine"].startswith(f"{os.cpu_count()} cores")
    assert content["wall_s"] == 3.14
    assert content["versions"] == {
        "python": platform.python_version(),
        "ctem": ctem.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
    }


def test_a_quick_run_has_no_published_number_beside_its_own(tmp_path):
    (record,) = json.loads(written(tmp_path, quick=True).read_text())["records"]
    assert "paper" not in record
    assert record["mean"] == 0.375


@pytest.fixture
def args(tmp_path):
    return argparse.Namespace(device="cpu", jobs=1, quick=False, out=tmp_path)


TASKS = [sweep.Task("spiral", seed, "CTEM") for seed in range(3)]


def swept(args, value=1.0, name="binary", **rest):
    sweep.sweep(lambda task, args: {"ISE": value}, TASKS, args, name, {}, **rest)
    return json.loads((args.out / f"{name}{'-quick' * args.quick}.json").read_text())["records"]


def test_a_sweep_has_published_rows_unless_it_is_quick(args):
    others = [record["system"] for record in swept(args, protocol="samples")[1:]]
    assert others
    assert all(system.endswith(", published") for system in others)
    args.quick = True
    assert [record["system"] for record in swept(args, protocol="samples")] == ["CTEM"]


KILLED = """
import argparse, os, signal, sys
from pathlib import Path
from experiments.sweep import Task, sweep

def measure(task, args):
    if task.seed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"ISE": 2.0}

args = argparse.Namespace(device="cpu", jobs=1, quick=False, out=Path(sys.argv[1]))
sweep(measure, [Task("spiral", seed, "CTEM") for seed in range(3)], args, "binary", {})
"""


@pytest.mark.long
def test_a_killed_run_leaves_the_committed_result_and_what_it_has_measured(args):
    swept(args)
    before = (args.out / "binary.json").read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(args.out)], cwd=results.ROOT, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL
    assert (args.out / "binary.json").read_bytes() == before
    (partial,) = args.out.glob("partial/*/binary.json")
    (record,) = json.loads(partial.read_text())["records"]
    assert (record["mean"], record["seeds"]) == (2.0, 2)


def cut_off(folder):
    with results.staged(folder) as out:
        (out / "a.json").write_text("half")
        raise KeyboardInterrupt


def test_a_run_of_several_files_puts_all_in_place_when_it_ends_and_none_if_it_fails(tmp_path, capsys):
    for name in ("a.json", "a.png"):
        (tmp_path / name).write_text("before")
    with pytest.raises(KeyboardInterrupt):
        cut_off(tmp_path)
    (half,) = tmp_path.glob("partial/*/a.json")
    assert str(half.parent) in capsys.readouterr().err
    assert [(tmp_path / name).read_text() for name in ("a.json", "a.png")] == ["before", "before"]
    with results.staged(tmp_path) as out:
        for name in ("a.json", "a.png"):
            (out / name).write_text("whole")
        assert (tmp_path / "a.json").read_text() == "before"
    assert {path.name: path.read_text() for path in tmp_path.glob("a.*")} == {
        "a.json": "whole",
        "a.png": "whole",
    }
    assert not out.exists()


@pytest.mark.long
def test_the_images_are_in_place_only_after_the_last_stage(tmp_path, monkeypatch):
    (tmp_path / "digits-soft-quick.json").write_text("before")
    options = ["--quick", "--objective", "soft", "--stage", "train", "sample", "evaluate"]
    monkeypatch.setattr("sys.argv", ["mnist", *options, "--out", str(tmp_path)])
    monkeypatch.setitem(mnist.STAGES, "evaluate", lambda run, judge: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        mnist.main()
    assert (tmp_path / "digits-soft-quick.json").read_text() == "before"
    (partial,) = tmp_path.glob("partial/*/digits-soft-quick.json")
    assert set(json.loads(partial.read_text())["settings"]["seconds"]) == {"train", "sample"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_that_writes_results_does_so_in_a_folder_of_its_own_until_it_ends(path):
    names = {alias.name for node in ast.walk(ast.parse(path.read_text())) for alias in imported(node)}
    if "arguments" in names and path.name != "sweep.py":
        assert "staged" in names
    if "sweep_arguments" in names:
        assert "sweep" in names


def imported(node):
    return node.names if isinstance(node, ast.ImportFrom) else []


class Repository:
    """A folder under git that results are told to lie in."""

    def __init__(self, root: Path):
        self.root = root
        (root / "src").mkdir(parents=True)
        self.git("init", "-q")

    def git(self, *words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(
            ["git", "-C", self.root, *who, *words], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, path: str, text: str) -> str:
        (self.root / path).write_text(text)
        self.git("add", ".")
        self.git("commit", "-qm", text)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    made = Repository(tmp_path / "repository")
    monkeypatch.setattr(results, "ROOT", made.root)
    monkeypatch.delenv("CTEM_COMMIT", raising=False)
    pages.distance.cache_clear()
    yield made
    pages.distance.cache_clear()


def test_a_page_says_how_many_commits_of_the_library_lie_between_and_from_which_commit_it_counts(
    tmp_path, repository, monkeypatch
):
    first = repository.commit("src/a.py", "1")
    monkeypatch.setenv("CTEM_COMMIT", first)
    results._commit.cache_clear()
    written(tmp_path, "robustness", command="python -m experiments.paper.robustness")
    results._commit.cache_clear()
    assert f"; commit {first[:7]}, no commits of `src` since." in pages.pages(tmp_path)["robustness.md"]
    for text in "234":
        last = repository.commit("src/a.py", text)
    repository.commit("words.md", "5")
    pages.distance.cache_clear()
    found = pages.pages(tmp_path)
    assert f"; commit {first[:7]}, 3 commits of `src` since." in found["robustness.md"]
    assert f"as of {last[:7]} (" in found["robustness.md"]
    assert f"as of {last[:7]} (" in found["README.md"]
    assert found["README.md"].rstrip().endswith(" | 3 |")


def test_a_commit_that_is_not_known_or_had_changes_is_said_in_words(repository):
    first = repository.commit("src/a.py", "1")
    repository.commit("src/a.py", "2")
    assert pages.origin({}) == pages.origin({"commit": None}) == "its commit was not recorded"
    assert pages.origin({"commit": "0" * 40}) == "commit 0000000, which this history does not have"
    changed = f"commit {first[:7]} with changes that were not committed, 1 commit of `src` since"
    assert pages.origin({"commit": f"{first}+"}) == changed


def test_changed_code_marks_the_commit_and_changed_results_do_not(repository):
    (repository.root / "experiments" / "results").mkdir(parents=True)
    repository.commit("src/a.py", "1")
    repository.commit("experiments/results/a.json", "1")
    head = repository.commit("experiments/a.py", "1")
    commit = results._commit.__wrapped__
    assert commit() == head
    (repository.root / "experiments/results/a.json").write_text("2")
    assert commit() == head
    (repository.root / "experiments/a.py").write_text("2")
    assert commit() == f"{head}+"
    repository.git("checkout", "-q", "experiments/a.py")
    (repository.root / "src/a.py").write_text("2")
    assert commit() == f"{head}+"


def test_without_git_a_page_says_that_nothing_is_counted(tmp_path, repository, monkeypatch):
    written(tmp_path, "robustness", command="python -m experiments.paper.robustness")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    assert "There is no git history here" in pages.pages(tmp_path)["robustness.md"]


def stored(folder, name, created, command, device="cpu (1 threads)"):
    path = written(folder, name, command=command)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"created": created, "device": device}))


@pytest.fixture
def three(tmp_path):
    """Results of three commands, one of which needs a GPU and one of which makes two files."""
    table1, stress = "python -m experiments.paper.table1", "python -m experiments.paper.stress"
    stored(tmp_path, "table1-ours-2d", "2026-01-02T00:00:00", table1)
    stored(tmp_path, "table1-ours-10d", "2026-01-05T00:00:00", table1)
    stored(tmp_path, "stress", "2026-01-01T00:00:00", stress, "NVIDIA H200")
    stored(tmp_path, "binary", "2026-01-03T00:00:00", "python -m experiments.binary.nats")
    stored(tmp_path, "figures-scores", "2025-01-01T00:00:00", "python -m experiments.paper.figures")
    return tmp_path


def names(found):
    return [[result["name"] for result in piece] for piece in found]


def test_the_pieces_are_the_commands_the_oldest_first_and_figures_after_their_fits(three):
    table1 = ["table1-ours-2d", "table1-ours-10d"]
    assert names(pages.by_command(three)) == [["figures-scores"], ["stress"], table1, ["binary"]]
    assert names(remake.pieces(three)) == [["stress"], table1, ["binary"], ["figures-scores"]]
    assert names(remake.pieces(three, only=["binary", "table1-ours-10d"])) == [table1, ["binary"]]
    assert names(remake.pieces(three, device="cuda")) == [["stress"]]
    with pytest.raises(SystemExit, match="expected names of committed results; got binery"):
        remake.pieces(three, only=["binery"])


def test_of_two_results_of_a_day_the_one_with_more_commits_since_is_the_older(tmp_path, repository):
    commits = [repository.commit("src/a.py", text) for text in "12"]
    for name, commit in zip(("binary", "stress", "mixed"), (*commits[::-1], None), strict=True):
        stored(tmp_path, name, "2026-01-01T00:00:00", name)
        content = json.loads((tmp_path / f"{name}.json").read_text())
        (tmp_path / f"{name}.json").write_text(json.dumps(content | {"commit": commit}))
    assert names(pages.by_command(tmp_path)) == [["mixed"], ["stress"], ["binary"]]
    lines = pages.listed(pages.by_command(tmp_path))[1:]
    assert [line.split()[1] for line in lines] == ["unknown", "1", "0"]


def test_a_piece_that_fails_is_reported_and_the_others_go_on(three, monkeypatch):
    ran = []
    monkeypatch.setattr(remake, "run", lambda command: ran.append(command) or "table1" not in command)
    failed, skipped = remake.remake(remake.pieces(three), gpu=False)
    assert failed == ["python -m experiments.paper.table1"]
    assert skipped == ["python -m experiments.paper.stress"]
    pieces = [command.split(".", 1)[1] for command in ran]
    assert pieces == ["paper.table1", "binary.nats", "paper.figures", "paper.figures --stage draw", "pages"]
    assert remake.remake(remake.pieces(three), gpu=True)[1] == []


def test_every_committed_command_is_that_of_a_script_here():
    for piece in remake.pieces():
        python, option, module = remake.command_of(piece).split()[:3]
        assert (python, option) == ("python", "-m")
        assert (results.ROOT / module.replace(".", "/")).with_suffix(".py") in SCRIPTS


def test_a_copy_of_the_files_has_the_commit_that_it_is_told(monkeypatch):
    monkeypatch.setenv("CTEM_COMMIT", "abc1234")
    assert results._commit.__wrapped__() == "abc1234"


def test_a_run_outside_a_repository_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "ROOT", tmp_path)
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


def test_all_metrics_of_the_same_systems_on_one_set_share_a_table():
    found = pages.sections(pages.PAGES[0], records("a", "xy", "mn") + records("a", "x", "o"))
    assert [heading for heading, _ in found] == ["a: m, and more", "o, x alone"]
    apart = pages.sections(pages.PAGES[0], records("ab", "xy", "mn"))
    assert [heading for heading, _ in apart] == ["m", "n"]


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


def test_every_committed_result_is_on_a_page_and_all_are_small():
    found = pages.pages()
    paths = list(results.RESULTS.glob("*.json"))
    text = "".join(found.values())
    assert all(f"]({path.name})" in text for path in paths)
    assert sum(path.stat().st_size for path in paths) <= 900_000
    assert sum(path.stat().st_size for path in results.RESULTS.glob("*.md")) < 165_000


def uncounted(text: str) -> str:
    """A page without what a further commit changes, or a clone without history."""
    text = re.sub(r"There is no git history here.*|Commits of `src` are counted as of .*", "", text)
    text = re.sub(r"(\d+|no) commits? of `src` since|which this history does not have", "", text)
    return re.sub(r" [^|]* \|$", "", text, flags=re.MULTILINE) if text.startswith("# Results\n") else text


def test_every_committed_page_is_what_the_script_writes_but_for_the_commits_since():
    for name, text in pages.pages().items():
        assert uncounted((results.RESULTS / name).read_text(encoding="utf-8")) == uncounted(text)


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


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_experiment_trains_by_the_library_alone(path):
    words = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    assert not words & {"backward", "zero_grad", "optim", "AdamW", "Adam"}
