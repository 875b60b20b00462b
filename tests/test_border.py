"""The borders of the command line: closed, full, cut off and odd streams, names that steer a terminal, signals."""

import csv
import gzip
import os
import sys
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from small import EXACT
from typer.testing import CliRunner

from ctem import CTEM, cli
from ctem.tables.io import csv_rows

EVIL = "a\x1b[2J\x1b]0;owned\x07\r\u202e\x9bb"


def rows(n=120):
    rng = np.random.default_rng(0)
    return pd.DataFrame({"size": rng.normal(size=n).round(2), "city": rng.choice(["Oslo", "Røros"], n)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("border")
    rows().to_csv(folder / "t.csv", index=False)
    CTEM(**{**EXACT, "max_steps": 2}).fit(pa.Table.from_pandas(rows())).save(folder / "m.ctem")
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
    monkeypatch.setattr(csv_rows, "BLOCK", 1000)
    for content in (b"a" * 1001 + b"\n1\n", b'"' + b"a\n" * 800):
        assert "expected a first line of at most 1000 bytes" in fails(folder, tmp_path, content)


@pytest.mark.parametrize(
    "error", [KeyError("city"), RuntimeError("at\nonce"), MemoryError(), ZeroDivisionError()]
)
def test_an_error_that_nobody_foresaw_is_one_line(folder, monkeypatch, error):
    def fail(*arguments):
        raise error

    for name in ("score_samples", "log_density"):
        monkeypatch.setattr(CTEM, name, fail)
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


@pytest.mark.parametrize(
    ("stream", "command"), [("stdin", "score"), ("stdout", "sample"), ("stdout", "info")]
)
def test_a_closed_stream_is_an_error_in_one_line(folder, monkeypatch, capsys, stream, command):
    monkeypatch.setattr(sys, stream, None)
    with pytest.raises(SystemExit, match="1"):
        cli.app([command, str(folder / "m.ctem")])
    monkeypatch.undo()
    assert "is closed" in capsys.readouterr().err


def test_names_and_cells_do_not_steer_a_terminal_that_tables_are_written_to(tmp_path):
    X = rows().rename(columns={"size": EVIL}).assign(city=lambda X: X["city"] + EVIL)
    CTEM(**{**EXACT, "max_steps": 2}).fit(pa.Table.from_pandas(X)).save(tmp_path / "m.ctem")
    ours, theirs = os.openpty()
    with open(theirs, "w", encoding="utf8") as terminal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        with pytest.raises(SystemExit, match="0"):
            cli.app(["sample", str(tmp_path / "m.ctem"), "-n", "3", "-q"])
    found = os.read(ours, 2**16).decode().replace("\r\n", "\n")
    os.close(ours)
    assert not steers(found)
    assert found.count("\\x1b[2J") >= 2
