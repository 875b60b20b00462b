"""CSV in its dialects, and files that cannot be what they seem: no row is lost without a word."""

import io
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from ctem import cli
from ctem.tables.io import csv_rows
from ctem.tables.io.csv_files import Dialect, read_csv
from ctem.tables.io.csv_text import typed

ROWS = [f"{i},{i % 7}.5,name{i}" for i in range(500)]


def ctem(*arguments, code=0):
    result = CliRunner().invoke(cli.app, [str(each) for each in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout, " ".join(result.stderr.split())


def read(content, **said):
    names, batches = read_csv("t.csv", io.BytesIO(content), Dialect(**said))
    return pa.Table.from_batches(batches).rename_columns(names)


def refused(content, **said):
    with pytest.raises(ValueError, match=r"t\.csv") as found:
        read(content, **said)
    return str(found.value)


def spoilt(row, text, rows=ROWS):
    """A file whose row of this number, which is on the line two below it, is another text."""
    return "\n".join(["a,b,c", *rows[:row], text, *rows[row + 1 :]]).encode() + b"\n"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("block", [100, 2**22])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('10,1.5,"name', "a quote is opened and never closed"),
        ('10,"1.5,name', "a quote is opened and never closed"),
        ('"10,1.5,name', "a quote is opened and never closed"),
        ('10,1.5,"name"s', "text follows a cell in quotes"),
        ("10,1.5", "expected 3 columns, got 2"),
        ("10,1.5,name,4", "expected 3 columns, got 4"),
    ],
)
def test_a_row_that_cannot_be_meant_is_an_error_with_its_line(monkeypatch, text, message, block, end):
    monkeypatch.setattr(csv_rows, "BLOCK", block)
    content = spoilt(10, text).replace(b"\n", end.encode())
    found = refused(content)
    assert f"t.csv, line 12: {message}" in found or (block == 100 and "Is a quote left open?" in found), found


def test_a_second_stray_quote_does_not_hide_the_rows_between():
    content = spoilt(10, '10,1.5,"').decode().replace("\n400,", '\n"400,').encode()
    assert "t.csv, line 12: a quote is closed" in refused(
        spoilt(10, '10,1.5,"', [*ROWS[:400], '400,1,"', *ROWS[401:]])
    )
    assert "line 12: text follows a cell in quotes" in refused(content)


def test_inspect_refuses_a_table_that_a_quote_swallows(tmp_path):
    (tmp_path / "t.csv").write_bytes(spoilt(10, '10,1.5,"name'))
    out, err = ctem("inspect", tmp_path / "t.csv", code=1)
    assert (out, "line 12" in err) == ("", True)


@pytest.mark.parametrize("block", [64, 100, 2**22])
def test_cells_in_quotes_may_hold_anything_wherever_blocks_end(monkeypatch, block):
    monkeypatch.setattr(csv_rows, "BLOCK", block)
    rng, pieces = np.random.default_rng(0), ["a", ",", '"', "\n", "\r\n", " ", "", "5"]
    cells = [["".join(rng.choice(pieces, 3)) + "x" for _ in range(3)] for _ in range(200)]
    lines = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in cells]
    content = "\n".join(["a,b,c", *lines]).encode()
    found = read(content)
    assert [list(row) for row in zip(*found.to_pydict().values(), strict=True)] == cells


def test_a_quote_within_a_cell_is_text():
    assert read(b'a,b\n5" pipe,"6"" pipe"\n').to_pydict() == {"a": ['5" pipe'], "b": ['6" pipe']}


@pytest.mark.parametrize("base", [2**63, 2**64 - 2000, 10**25])
def test_whole_numbers_of_any_size_stay_apart(base):
    """Beyond 64 bits they are text where float64 cannot tell them from each other."""
    numbers = [str(base + i) for i in range(1000)]
    column = typed(pa.table({"n": numbers}))["n"]
    assert len(column.unique()) == 1000
    assert [str(value) for value in column.to_pylist()] == numbers
    apart = typed(pa.table({"n": [str(base * i) for i in range(3, 1000)]}))["n"]
    assert apart.type == pa.float64()


def test_whole_numbers_beyond_int64_are_looked_at_as_numbers(tmp_path):
    numbers = [2**63 + int(i) for i in np.random.default_rng(0).integers(0, 40, size=300)]
    pd.DataFrame({"n": numbers, "b": np.arange(300) % 7}).to_csv(tmp_path / "t.csv", index=False)
    out, _ = ctem("inspect", tmp_path / "t.csv")
    assert "one value" not in out


def test_the_line_with_which_excel_says_its_separator_is_no_header():
    assert read(b"sep=;\r\na;b\r\n1,5;2\r\n").to_pydict() == {"a": ["1,5"], "b": ["2"]}
    assert read(b'\xef\xbb\xbf"sep=|"\na|b\n1|2\n').to_pydict() == {"a": ["1"], "b": ["2"]}
    assert "line 4: expected 2 columns" in refused(b"sep=;\na;b\n1;2\n3\n")


@pytest.mark.parametrize("content", [b"\n", b"\r\n", b"\n\n\n", b"\xef\xbb\xbf\n", b" \n"])
def test_a_file_of_line_ends_is_an_error(tmp_path, content):
    (tmp_path / "t.csv").write_bytes(content)
    out, err = ctem("inspect", tmp_path / "t.csv", code=1)
    assert (out, "line 1: expected the names of columns; the line is empty" in err) == ("", True)


def test_no_thread_reads_a_file_in_the_background():
    """A reader of pyarrow that called a Python stream from a thread of its own could outlive the interpreter."""
    seen = set()

    class Watched(io.BytesIO):
        def read(self, size=-1):
            seen.add(threading.get_ident())
            return super().read(size)

    _, batches = read_csv("t", Watched(spoilt(0, ROWS[0])))
    assert sum(map(len, batches)) == 500
    assert seen == {threading.get_ident()}


DIALECTS = {
    "a separator": (b"a:b\n1:x,y\n", {"separator": ":"}, {"a": ["1"], "b": ["x,y"]}),
    "a tab by name": (b"a\tb;c\n1\t2\n", {"separator": "\\t"}, {"a": ["1"], "b;c": ["2"]}),
    "blanks": (b"  a  b\tc\n 1   2 3  \n4 5 'x'\n", {"separator": " "}, {"a": ["1", "4"], "b": ["2", "5"], "c": ["3", "'x'"]}),  # noqa: E501
    "blanks within quotes": (b'a b\n1 "x  y"\n', {"separator": " "}, {"a": ["1"], "b": ["x  y"]}),
    "no names": (b"1,x\n2,y\n", {"header": False}, {"x0": ["1", "2"], "x1": ["x", "y"]}),
    "no names, one row": (b"\xef\xbb\xbf5,5", {"header": False}, {"x0": ["5"], "x1": ["5"]}),
    "numbers are names": (b"5,3\n1,2\n", {"header": True}, {"5": ["1"], "3": ["2"]}),
    "years are names": (b"2001,2002\n1,2\n", {}, {"2001": ["1"], "2002": ["2"]}),
    "an older encoding": ("å,b\nø,2\n".encode("latin-1"), {"encoding": "ISO-8859-1"}, {"å": ["ø"], "b": ["2"]}),
    "two bytes a letter": ("å,b\nø,2\n".encode("utf-16"), {"encoding": "UTF-16"}, {"å": ["ø"], "b": ["2"]}),
}  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
def test_the_user_may_say_how_a_file_is_laid_out(name):
    content, said, expected = DIALECTS[name]
    assert read(content, **said).to_pydict() == expected


UNSAID = {
    "two equal names": (b"5,x,5\n6,y,7\n", "--no-header"),
    "numbers alone": (b"5.1,3.5\n4.9,3.0\n", "--no-header"),
    "words between blanks": (b"height weight\n1.5 60\n1.6 70\n", "--sep ' '"),
    "an older encoding": ("å,b\n1,2\n".encode("latin-1"), "--encoding ISO-8859-1"),
    "two bytes a letter": ("å,b\n1,2\n".encode("utf-16"), "--encoding UTF-16"),
}


@pytest.mark.parametrize("name", UNSAID)
def test_what_has_to_be_said_is_refused_with_the_flag(name):
    content, flag = UNSAID[name]
    assert flag in refused(content)


def test_a_row_among_the_names_is_warned_of():
    with pytest.warns(UserWarning, match=r"'5\.1' is taken for the name of a column\. .*--no-header"):
        read(b"5.1,3.5,setosa\n4.9,3.0,setosa\n")


def test_every_command_that_reads_takes_the_dialect(tmp_path):
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=120), rng.integers(3, size=120)])
    text = "\n".join(f"{a:.4f}  {b:.0f}" for a, b in rows)
    (tmp_path / "t.txt").write_text(text)
    said = ["--no-header", "--sep", " ", "--encoding", "ascii"]
    out, _ = ctem("inspect", tmp_path / "t.txt", *said)
    assert "120 rows" in out
    fit = ["fit", tmp_path / "t.txt", "-o", tmp_path / "m.ctem", "--max-steps", 2, "--effort", "quick"]
    ctem(*fit, *said, "--device", "cpu", "-q")
    for command in ("score", "impute", "outliers"):
        out, _ = ctem(command, tmp_path / "m.ctem", tmp_path / "t.txt", *said, "-q")
        assert len(out.splitlines()) == (11 if command == "outliers" else 121)
    _, err = ctem("score", tmp_path / "m.ctem", tmp_path / "t.txt", code=1)
    assert "--sep" in err
    pd.DataFrame(rows, columns=["x0", "x1"]).to_parquet(tmp_path / "t.parquet")
    _, err = ctem("score", tmp_path / "m.ctem", tmp_path / "t.parquet", "--no-header", code=1)
    assert "expected a CSV file with --sep, --no-header or --encoding" in err
