"""Kills and disks that fail at every file operation: the old file stays, a resumed fit has the same weights."""

import contextlib
import io
import os

import numpy as np
import pytest
from children import alone
from faults import Faults, broken, full, killed, over_quota
from safetensors.numpy import load_file

from ctem import CTEM, cli

pytestmark = pytest.mark.long

KILLS = 100


@pytest.fixture(scope="module")
def folder(table, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    table.to_csv(folder / "t.csv", index=False)
    model.save(folder / "m.ctem")
    return folder


def command(arguments, at=0, fault=killed):
    """A command in this process, with a fault at an operation: exit code, what it said, and operations counted."""
    faults = Faults(at, fault)
    faults.install()
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            cli.app(arguments)
            code = 0
        except SystemExit as stop:
            code = stop.code
    return code, said.getvalue(), faults.count


def fit(folder, target, *options):
    return ["fit", str(folder / "t.csv"), "-o", str(target), "--device", "cpu", "-q", *options]


def weights(path):
    return load_file(path)


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory):
    """The weights of a fit that nobody disturbs, and its file operations."""
    path = tmp_path_factory.mktemp("expected") / "m.ctem"
    code, said, operations = alone(command, fit(folder, path), seconds=120).value
    assert (code, said) == (0, "")
    return weights(path), operations


@pytest.fixture(scope="module")
def kills(tally):
    """How many were survived, to be printed as one number."""
    survived = []
    yield survived
    tally("kills of a fit", old_or_new_file_whole_and_resumed_to_the_same_weights=sum(survived))


@pytest.mark.parametrize("tenth", range(10))
def test_a_fit_that_is_killed_anywhere_resumes_to_the_same_weights(folder, expected, kills, tmp_path, tenth):
    whole, operations = expected
    assert operations >= 50
    places = np.linspace(1, operations, KILLS).round().astype(int)[tenth::10]
    for n, at in enumerate(places.tolist()):
        place = tmp_path / str(n)
        place.mkdir()
        (place / "m.ctem").write_bytes(b"what was there")
        outcome = alone(command, fit(folder, place / "m.ctem"), at, seconds=120)
        assert outcome.ending == "killed", outcome
        old = (place / "m.ctem").read_bytes() == b"what was there"
        assert old or same(weights(place / "m.ctem"), whole)
        outcome = alone(command, fit(folder, place / "m.ctem", "--resume"), seconds=120)
        assert outcome.value[:2] == [0, ""], outcome
        assert same(weights(place / "m.ctem"), whole)
        assert os.listdir(place) == ["m.ctem"]
    kills.append(len(places))


WRITERS = {
    "fit": fit,
    "score": lambda f, out: ["score", str(f / "m.ctem"), str(f / "t.csv"), "-o", str(out), "-q"],
    "sample": lambda f, out: ["sample", str(f / "m.ctem"), "-n", "20", "-o", str(out), "-q"],
    "impute": lambda f, out: ["impute", str(f / "m.ctem"), str(f / "t.csv"), "-o", str(out), "-q"],
    "outliers": lambda f, out: ["outliers", str(f / "m.ctem"), str(f / "t.csv"), "-o", str(out), "-q"],
}
ENDINGS = {"fit": ["m.ctem"], "sample": ["t.csv", "t.parquet", "t.arrow"]}


@pytest.mark.parametrize("fault", [full, over_quota, broken], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_disk_that_fails_leaves_the_old_file_and_one_line(folder, tmp_path, writer, fault, tally):
    failed = 0
    for name in ENDINGS.get(writer, ["t.csv"]):
        operations = alone(command, WRITERS[writer](folder, tmp_path / name), seconds=120).value[2]
        for at in range(1, operations + 1, 5 if operations > 20 else 1):
            place = tmp_path / f"{name}-{at}"
            place.mkdir()
            (place / name).write_bytes(b"old")
            outcome = alone(command, WRITERS[writer](folder, place / name), at, fault, seconds=120)
            assert outcome.ending == "returned", outcome
            code, said, _ = outcome.value
            left = [each for each in os.listdir(place) if ".checkpoint." not in each]
            assert left == [name], left
            if code:
                failed += 1
                assert (code, said.count("\n")) == (1, 1), outcome
                assert said.startswith("ctem: error: "), said
                assert (place / name).read_bytes() == b"old"
    tally(f"faults of a disk ({fault.__name__}) in {writer}", one_line_and_the_old_file=failed)
    assert failed >= 3


def test_a_save_from_python_that_is_killed_leaves_a_whole_file(model, tmp_path, tally):
    model.save(tmp_path / "m.ctem")
    expected, at, count = weights(tmp_path / "m.ctem"), 0, 0
    while alone(_saved, model, tmp_path / "m.ctem", (at := at + 1), seconds=60).ending == "killed":
        assert same(weights(tmp_path / "m.ctem"), expected)
        count += 1
    assert os.listdir(tmp_path) == ["m.ctem"]
    assert CTEM.load(tmp_path / "m.ctem").describe() == model.describe()
    tally("kills of a save", whole_file=count)
    assert count >= 6


def _saved(model, path, at):
    Faults(at, killed).install()
    model.save(path)
