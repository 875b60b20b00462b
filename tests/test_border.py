"""The borders of the command line: closed, full, cut off and odd streams, names that steer a terminal, signals."""

import csv
import gzip
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from small import SMALL
from typer.testing import CliRunner

from ctem import CTEM, cli
from ctem.anyorder import Settings
from ctem.table import csv_text

EVIL = "a\x1b[2J\x1b]0;owned\x07\r\u202e\x9bb"
TINY = Settings(width=4, blocks=1, members=1, orders=1, steps=200_000, batch_size=8, evaluate_every=20)
SCRIPT = f"""
from ctem import cli
from ctem.anyorder import Settings
Settings.suited = lambda *sizes: {TINY!r}
cli.app()
"""


def rows(n=120):
    rng = np.random.default_rng(0)
    return pd.DataFrame({"size": rng.normal(size=n).round(2), "city": rng.choice(["Oslo", "Røros"], n)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("border")
    rows().to_csv(folder / "t.csv", index=False)
    CTEM(**{**SMALL, "max_steps": 2}).fit(pa.Table.from_pandas(rows())).save(folder / "m.ctem")
    return folder


def ctem(*arguments, code=0, **options):
    result = CliRunner().invoke(cli.app, [str(each) for each in arguments], **options)
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout, result.stderr


def expected(folder):
    return ctem("score", folder / "m.ctem", folder / "t.csv")[0]


ODD = {
    "lines that end in CR": lambda text: text.replace(b"\n", b"\r"),
    "lines that end in CR LF": lambda text: text.replace(b"\n", b"\r\n"),
    "no last line end": lambda text: text.rstrip(b"\n"),
    "a byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "gzip": gzip.compress,
    "two gzip members": lambda text: gzip.compress(text[:100]) + gzip.compress(text[100:]),
    "names in quotes over two CR lines": lambda text: text.replace(b"size,city\n", b'size,city,"x\ry"\n').replace(
        b"\n", b",1\r"
    ).replace(b'"x\ry",1\r', b'"x\ry"\r'),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_a_table_in_odd_clothes_is_the_same_table(folder, tmp_path, name):
    (tmp_path / "t.csv").write_bytes(ODD[name]((folder / "t.csv").read_bytes()))
    assert ctem("score", folder / "m.ctem", tmp_path / "t.csv", "-q")[0] == expected(folder)


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_a_named_pipe_is_read(folder, tmp_path, ending):
    os.mkfifo(tmp_path / "pipe")
    text = (folder / "t.csv").read_bytes()
    content = gzip.compress(text) if ending.endswith("gz") else text
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[content])
    writer.start()
    assert ctem("score", folder / "m.ctem", tmp_path / "pipe")[0] == expected(folder)
    writer.join(10)


def test_a_named_pipe_is_written_to_and_stays(folder, tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    found = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe.csv").read_text()))
    reader.start()
    ctem("score", folder / "m.ctem", folder / "t.csv", "-o", tmp_path / "pipe.csv")
    reader.join(10)
    assert found == [expected(folder)]
    assert (tmp_path / "pipe.csv").is_fifo()


def fails(folder, tmp_path, content):
    (tmp_path / "t.csv").write_bytes(content)
    out, err = ctem("score", folder / "m.ctem", tmp_path / "t.csv", code=1)
    assert out == ""
    assert len(err.splitlines()) == 1
    return err


@pytest.mark.parametrize("length", [3, 11, 60, -9, -1])
def test_a_gzip_file_that_is_cut_off_is_said_to_be(folder, tmp_path, length):
    whole = gzip.compress((folder / "t.csv").read_bytes())
    assert "t.csv: the compressed file is cut short or damaged" in fails(folder, tmp_path, whole[:length])


def test_a_gzip_file_with_a_wrong_checksum_is_said_to_be_damaged(folder, tmp_path):
    whole = bytearray(gzip.compress((folder / "t.csv").read_bytes()))
    whole[-6] ^= 1
    assert "cut short or damaged" in fails(folder, tmp_path, whole)


def test_a_first_line_without_end_is_an_error(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(csv_text, "BLOCK", 1000)
    for content in (b"a" * 1001 + b"\n1\n", b'"' + b"a\n" * 800):
        assert "expected a first line of at most 1000 bytes" in fails(folder, tmp_path, content)


@pytest.mark.parametrize(
    "error", [KeyError("city"), RuntimeError("at\nonce"), MemoryError(), ZeroDivisionError()]
)
def test_an_error_that_nobody_foresaw_is_one_line(folder, monkeypatch, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(CTEM, "score_samples", fail)
    _, err = ctem("score", folder / "m.ctem", folder / "t.csv", code=1)
    assert len(err.splitlines()) == 1
    assert ("not enough memory" if isinstance(error, MemoryError) else type(error).__name__) in err


def steers(text):
    """Whether text holds a character that a terminal obeys; line ends aside."""
    return not text.replace("\n", "").isprintable()


def test_no_name_steers_the_terminal(tmp_path):
    X = rows().rename(columns={"size": EVIL}).assign(**{f"[bold]{EVIL}": EVIL})
    X.to_csv(tmp_path / "t.csv", index=False, quoting=csv.QUOTE_ALL)
    model = tmp_path / "m.ctem"
    said = [ctem("fit", tmp_path / "t.csv", "-o", model, "--max-steps", 1, "--effort", "quick")[1]]
    said += ctem("info", model)
    said += ctem("info", model, "--json")
    X.assign(**{f"no{EVIL}": 1}).to_csv(tmp_path / "more.csv", index=False, quoting=csv.QUOTE_ALL)
    said.append(ctem("score", model, tmp_path / "more.csv")[1])
    X.assign(city=EVIL).to_csv(tmp_path / "new.csv", index=False, quoting=csv.QUOTE_ALL)
    said.append(ctem("score", model, tmp_path / f"none{EVIL}.csv", code=1)[1])
    rows().to_csv(tmp_path / "other.csv", index=False, quoting=csv.QUOTE_ALL)
    said.append(ctem("score", model, tmp_path / "other.csv", code=1)[1])
    for text in said:
        assert not steers(text), repr(text)
    assert "\\x1b[2J" in "".join(said)


def shell(command, folder, **options):
    """A command of the shell in which ctem is ours; its exit code and what it said."""
    ours = f"ctem() {{ '{sys.executable}' -m ctem \"$@\"; }}; {command}"
    run = subprocess.run(
        ["bash", "-c", ours], cwd=folder, capture_output=True, text=True, timeout=120, **options
    )
    return run.returncode, run.stdout, run.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("ctem score m.ctem <&-", "ctem: error: standard input is closed; name a file.\n"),
        ("ctem score m.ctem t.csv >&-", "ctem: error: standard output is closed; name a file.\n"),
        ("ctem info m.ctem > /dev/full", "ctem: error: [Errno 28] No space left on device\n"),
        ("ctem score m.ctem none.csv 2>&-", ""),
    ],
)
def test_a_closed_or_full_stream_is_one_line(folder, command, message):
    assert shell(command, folder) == (1, "", message)


def test_an_ascii_locale_shows_everything(folder):
    plain = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        **{k: os.environ[k] for k in ("PATH",)},
    }
    plain["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    code, out, err = shell("ctem info m.ctem && ctem outliers m.ctem t.csv -n 1", folder, env=plain)
    assert (code, err) == (0, "")
    assert "120 rows" in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint_and_no_other_file(folder, tmp_path, number, code):
    command = [sys.executable, "-c", SCRIPT, "fit", folder / "t.csv", "-o", tmp_path / "m.ctem", "-q"]
    with subprocess.Popen([str(each) for each in command], stderr=subprocess.PIPE, text=True) as run:
        while not (tmp_path / "m.ctem.checkpoint.first").exists():
            assert run.poll() is None
            time.sleep(0.01)
        run.send_signal(number)
        err = run.communicate(timeout=60)[1]
    assert run.returncode == code
    assert "the same command with --resume goes on from there" in err
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]
    assert not (tmp_path / "m.ctem").exists()
