"""Kills at every file operation: the old file stays, and a resumed fit has the same weights."""

import os

import numpy as np
import pytest
from children import alone
from commands import command, fit
from faults import Faults, killed
from safetensors.numpy import load_file

from ctem import CTEM

KILLS = 100


def weights(path):
    return load_file(path)


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory):
    """The weights of a fit that nobody disturbs, and its file operations."""
    path = tmp_path_factory.mktemp("expected") / "m.ctem"
    code, said, operations = alone(command, fit(folder, path)).value
    assert (code, said) == (0, "")
    return weights(path), operations


@pytest.mark.long
@pytest.mark.parametrize("tenth", range(10))
def test_a_fit_that_is_killed_anywhere_resumes_to_the_same_weights(folder, expected, tmp_path, tenth, tally):
    (whole, operations), before = expected, (folder / "m.ctem").read_bytes()
    assert operations >= 50
    places = np.linspace(1, operations, KILLS).round().astype(int)[tenth::10]
    for n, at in enumerate(places.tolist()):
        place = tmp_path / str(n)
        place.mkdir()
        (place / "m.ctem").write_bytes(before)
        outcome = alone(command, fit(folder, place / "m.ctem"), at)
        assert outcome.ending == "killed", outcome
        old = (place / "m.ctem").read_bytes() == before
        assert old or same(weights(place / "m.ctem"), whole)
        outcome = alone(command, fit(folder, place / "m.ctem", "--resume"))
        assert outcome.value[:2] == [0, ""], outcome
        assert same(weights(place / "m.ctem"), whole)
        assert os.listdir(place) == ["m.ctem"]
    tally("kills of a fit", {"the old file or the new one, and resumed to the same weights": len(places)})


def test_a_save_from_python_that_is_killed_leaves_a_whole_file(model, tmp_path, tally):
    model.save(tmp_path / "m.ctem")
    expected, at, count = weights(tmp_path / "m.ctem"), 0, 0
    while alone(_saved, model, tmp_path / "m.ctem", (at := at + 1)).ending == "killed":
        assert same(weights(tmp_path / "m.ctem"), expected)
        count += 1
    assert os.listdir(tmp_path) == ["m.ctem"]
    assert CTEM.load(tmp_path / "m.ctem").describe() == model.describe()
    tally("kills of a save", {"a whole file": count})
    assert count >= 6


def _saved(model, path, at):
    Faults(at, killed).install()
    model.save(path)
