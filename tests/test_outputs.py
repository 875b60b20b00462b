"""What commands write over: no input, and no file of another kind, unless they are told to."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from ctem import CTEM, cli
from tests.small import TINY

FIT = ("--max-steps", "2", "--device", "cpu", "-q")


@pytest.fixture
def place(tmp_path, saved):
    """A folder with a table and a model of it."""
    for name, content in saved.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "link.csv").symlink_to("t.csv")
    os.link(tmp_path / "t.csv", tmp_path / "hard.csv")
    return tmp_path


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=120), "b": rng.integers(3, size=120)})
    table.to_csv(folder / "t.csv", index=False)
    table.to_parquet(folder / "t.parquet")
    CTEM(**TINY).fit(table).save(folder / "m.ctem")
    (folder / "p.html").write_text("<!doctype html><title>mine</title>")
    save_file({"a": np.zeros(2)}, folder / "other.safetensors")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def run(place, line):
    words = [str(place / word[1:]) if word.startswith("@") else word for word in line.split()]
    return CliRunner().invoke(cli.app, words)


READ = (  # commands whose output is one of their inputs
    "fit @t.csv -o @t.csv",
    "fit @t.csv -o @link.csv",
    "fit @link.csv -o @t.csv",
    "fit @t.csv -o @hard.csv",
    "report @m.ctem @t.csv -o @t.csv",
    "report @m.ctem @t.csv -o @m.ctem",
    "report @m.ctem @t.csv --held-out @t.parquet -o @t.parquet",
    "score @m.ctem @t.csv -o @t.csv",
    "impute @m.ctem @t.csv -o @link.csv",
    "outliers @m.ctem @t.csv -o @t.csv",
    "sample @m.ctem -o @m.ctem --format csv",
)
OTHER = (  # commands whose output is a file of another kind
    "fit @t.parquet -o @t.csv",
    "fit @t.csv -o @p.html",
    "fit @t.csv -o @other.safetensors",
    "report @m.ctem @t.csv -o @t.parquet",
    "report @m.ctem @t.csv -o @other.safetensors",
    "sample @m.ctem -o @p.html --format csv",
    "score @m.ctem @t.csv -o @other.safetensors --format csv",
)


@pytest.mark.parametrize("line", [*READ, *OTHER])
def test_an_output_that_is_an_input_or_of_another_kind_is_refused(place, line):
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    found = run(place, line)
    assert found.exit_code == 1, found.output
    assert "--overwrite" in found.stderr
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


@pytest.mark.parametrize(
    "line", ["impute @m.ctem @t.csv -o @t.csv", "fit @t.csv -o @p.html " + " ".join(FIT)]
)
def test_the_user_may_mean_it(place, line):
    name = line.split("-o @")[1].split()[0]
    before = (place / name).read_bytes()
    found = run(place, f"{line} --overwrite")
    assert found.exit_code == 0, found.output
    assert name == "t.csv" or (place / name).read_bytes() != before


@pytest.mark.parametrize(
    "line",
    [
        "fit @t.csv -o @m.ctem " + " ".join(FIT),
        "sample @m.ctem -o @t.csv",
        "score @m.ctem @t.csv -o @new.csv",
    ],
)
def test_a_file_of_the_same_kind_that_is_not_read_is_replaced(place, line):
    found = run(place, line)
    assert found.exit_code == 0, found.output


def test_what_is_redirected_to_is_no_input(place):
    """``ctem score m.ctem - < t.csv >> t.csv`` would read what it writes."""
    before = (place / "t.csv").read_bytes()
    words = [sys.executable, "-m", "ctem", "score", str(place / "m.ctem"), "-", "--append"]
    with (place / "t.csv").open("rb") as read, (place / "t.csv").open("ab") as write:
        found = subprocess.run(words, stdin=read, stdout=write, stderr=subprocess.PIPE, check=False)
    assert found.returncode == 1, found.stderr
    assert (place / "t.csv").read_bytes() == before


def test_no_part_of_an_answer_is_written_into_the_folder_that_is_read(place):
    (place / "parts").mkdir()
    (place / "t.parquet").rename(place / "parts" / "t.parquet")
    for line in ("score @m.ctem @parts -o @parts/scores", "fit @parts -o @parts/model.parquet"):
        found = run(place, line)
        assert found.exit_code == 1, found.output
        assert "part of the folder" in found.stderr
    assert os.listdir(place / "parts") == ["t.parquet"]
