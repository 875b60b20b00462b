"""Hostile names and labels in every output: text for a terminal, CSV, Parquet, Arrow, JSON, the report, errors."""

import contextlib
import csv
import io
import json
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small import TINY

from ctem import CTEM, cli
from ctem.report import write_report

pytestmark = pytest.mark.long

HARMLESS_TAGS = {"wbr", "text", "tspan", "title", "g", "abbr"}  # a long name is drawn differently
OBEYED = {
    "href",
    "src",
    "srcset",
    "srcdoc",
    "style",
    "action",
    "formaction",
    "data",
    "background",
    "xlink:href",
}
NAMES = {
    "an escape sequence": "a\x1b[2J\x1b[1;1H",
    "a window title": "\x1b]0;owned\x07",
    "an old escape": "a\x9b31mred",
    "a carriage return": "shown\rhidden",
    "a line break": "one\ntwo",
    "backspaces": "safe\x08\x08\x08\x08evil",
    "NUL": "a\x00b",
    "right to left": "\u202egnp.exe",
    "invisible": "a\u200bb\ufeffc",
    "a script": "<script>alert(1)</script>",
    "an image": "<img src=x onerror=alert(1)>",
    "an end of attribute": '" onmouseover="alert(1)',
    "an end of style": "</style></svg><script>alert(1)</script>",
    "an entity": "&lt;b&gt;&amp;",
    "a template": "{{7*7}}${7*7}",
    "markup of rich": "[bold red]x[/] [link=http://x]y[/link]",
    "half of markup": "[/]",
    "quotes": "\"'`",
    "delimiters": "a,b;c\td|e",
    "a formula": "=cmd|' /C calc'!A0",
    "a path": "../../etc/passwd",
    "an option": "--output",
    "a percent": "%s%n%(x)s",
    "a surrogate pair": "🦊漢字Ωß",
    "a combining tower": "Z" + "\u0301" * 50,
    "very long": "x" * 20_000,
    "blank": " ",
    "only a number": "007",
    "NA": "NA",
    "a backslash": "a\\nb\\x1b",
}


def rows(name, n=120):
    rng = np.random.default_rng(0)
    labels = rng.choice([name, f"{name}2", "plain"], n)
    return pd.DataFrame(
        {name: rng.normal(size=n).round(2), f"label {name}": labels, "x": rng.integers(0, 40, n)}
    )


class Tags(HTMLParser):
    """The tags and attributes of a page, and its text."""

    def __init__(self, page):
        super().__init__()
        self.seen, self.attributes, self.text = set(), set(), []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        self.attributes |= {key for key, _ in attributes}

    def handle_data(self, data):
        self.text.append(data)


def said(*arguments):
    """Standard output and error of a command."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf8"), io.StringIO()
    ends = pytest.raises(SystemExit, match=r"^[01]$")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), ends:
        cli.app([str(each) for each in arguments])
    out.flush()
    return out.buffer.getvalue().decode(), err.getvalue()


@pytest.fixture(scope="module")
def plain_tags(tmp_path_factory):
    """What a report is made of when nobody is hostile."""
    X, path = rows("a"), tmp_path_factory.mktemp("plain") / "r.html"
    return Tags(write_report(CTEM(**TINY).fit(X), X, path, n_samples=20).read_text())


@pytest.mark.parametrize("case", NAMES)
def test_a_hostile_name_is_shown_copied_and_never_obeyed(case, tmp_path, plain_tags, tally):
    name = NAMES[case]
    X = rows(name)
    table = pa.Table.from_pandas(X, preserve_index=False)
    pq.write_table(table, tmp_path / "t.parquet")
    model = CTEM(**TINY).fit(table)
    model.save(tmp_path / "m.ctem")
    assert_terminal(tmp_path, X)
    assert_copies(tmp_path, table)
    facts = json.loads(said("info", tmp_path / "m.ctem", "--json")[0])
    assert [column["name"] for column in facts["columns"]] == list(X.columns)
    page = write_report(model, table, tmp_path / "r.html", n_samples=20).read_text()
    found = Tags(page)
    assert found.seen <= plain_tags.seen | HARMLESS_TAGS
    more = found.attributes - plain_tags.attributes
    assert not [key for key in more if key.startswith("on") or key in OBEYED], more
    tally("hostile names in ten outputs each", {"shown and copied": 1})


def assert_terminal(folder, X):
    """Every line for a person is printable, and a row of a table is one line."""
    model = folder / "m.ctem"
    table = pa.Table.from_pandas(
        X.assign(more=1).rename(columns={"more": f"more {X.columns[0]}"}), preserve_index=False
    )
    pq.write_table(table, folder / "more.parquet")
    pq.write_table(table.select([2]), folder / "less.parquet")
    fit = ["fit", folder / "t.parquet", "-o", folder / "n.ctem", "--max-steps", 1]
    texts = [
        *said("info", model),
        said("score", model, folder / "more.parquet")[1],
        said("score", model, folder / "less.parquet")[1],
        said(*fit)[1],
        said("score", folder / f"{X.columns[0][:50]}.ctem".replace("/", "").replace("\0", ""))[1],
    ]
    for text in texts:
        assert text.replace("\n", "").isprintable(), repr(text[:300])


def assert_copies(folder, table):
    """Names and labels come out of every format as they went in."""
    names = table.column_names
    for ending in ("csv", "parquet", "arrow"):
        target = folder / f"out.{ending}"
        said("score", folder / "m.ctem", folder / "t.parquet", "--append", "-o", target, "-q")
        if ending == "csv":
            with target.open(newline="", encoding="utf8") as file:
                first, *cells = csv.reader(file)
            labels = [row[2] for row in cells]
        else:
            read = pq.read_table(target) if ending == "parquet" else pa.ipc.open_file(target).read_all()
            first, labels = read.column_names, read.column(2).to_pylist()
        assert first == ["log_density", *names]
        assert labels == table.column(1).to_pylist()
    out = said("sample", folder / "m.ctem", "-n", 3)[0]
    assert next(csv.reader(io.StringIO(out, newline=""))) == names
    out = said("outliers", folder / "m.ctem", folder / "t.parquet", "-n", 2, "-q")[0]
    assert next(csv.reader(io.StringIO(out, newline="")))[-3:] == names
