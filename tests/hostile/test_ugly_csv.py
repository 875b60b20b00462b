"""A grammar of ugly CSV files: each is read and copied cell by cell as it was written, or refused in a line."""

import csv
import gzip
import io
from collections import Counter

import numpy as np
import pyarrow as pa

from ctem.tables.io import csv_text
from ctem.tables.io.csv_files import Dialect
from ctem.tables.io.csv_text import CsvWriter
from ctem.tables.io.files import open_source

WELL_FORMED, MALFORMED = 600, 300
PIECES = (
    *(
        "",
        " ",
        "0",
        "007",
        "-0",
        "+1",
        "1e3",
        "1E400",
        ".5",
        "5.",
        "0x1F",
        "1_000",
        "12345678901234567890",
        "1,5",
        "1.234,5",
    ),
    *("NA", "nan", "NULL", "null", "None", "?", "-", "#N/A", "inf", "-Infinity", "TRUE", "false", "yes"),
    *("2020-02-30", "2020-01-01T00:00Z", "01/02/03", "24:00", "Røros", "漢字", "🦊", "é", "\ufeff", "\u2028"),
    *(
        '"',
        '""',
        "'",
        ",",
        ";",
        "\t",
        "|",
        "\n",
        "\r\n",
        "a\nb",
        "\\",
        '\\"',
        "=1+1",
        "<b>",
        "\x00",
        "\x1b[0m",
        "x" * 3000,
    ),
)
DELIMITERS = ",;\t|"
ENDS = ("\n", "\r\n", "\r")


def cell(rng):
    return "".join(PIECES[i] for i in rng.integers(len(PIECES), size=int(rng.integers(1, 4))))


def written(text, delimiter, rng):
    """A cell as some program would write it: in quotes if it must be, and sometimes for no reason."""
    must = any(mark in text for mark in f'{delimiter}"\r\n') or text.startswith("\ufeff")
    return '"' + text.replace('"', '""') + '"' if must or rng.random() < 0.2 else text


def table(rng):
    """Names, rows of cells, and a delimiter that the names make clear."""
    width, height = int(rng.integers(1, 6)), int(rng.integers(1, 12))
    names = [f"{cell(rng)}{j}" for j in range(width)]
    rows = [[cell(rng) for _ in range(width)] for _ in range(height)]
    if width == 1:
        rows = [[text or "x"] for (text,) in rows]  # an empty line is no row
    return names, rows, DELIMITERS[int(rng.integers(4))] if width > 1 else ","


def file_of(names, rows, delimiter, rng):
    """The bytes of a file, in one of many clothes."""
    end = ENDS[int(rng.integers(3))]
    lines = [delimiter.join(written(text, delimiter, rng) for text in row) for row in [names, *rows]]
    if len(names) > 1 and rng.random() < 0.2:
        lines.insert(int(rng.integers(1, len(lines) + 1)), "")
    text = end.join(lines) + (end if rng.random() < 0.8 else "")
    content = ("\ufeff" if rng.random() < 0.2 else "").encode() + text.encode()
    return gzip.compress(content) if rng.random() < 0.2 else content


def clear(names, delimiter):
    """Whether the delimiter is the one that occurs most outside quotes, as the reader takes it."""
    bare = [name for name in names if not any(mark in name for mark in f'{delimiter}"\r\n')]
    others = max(sum(name.count(mark) for name in bare) for mark in DELIMITERS if mark != delimiter)
    return len(names) - 1 > others or (others == 0 and len(names) == 1)


def read(path, **said):
    with open_source(str(path), Dialect(**said)) as source:
        return source.names, pa.concat_tables(source.tables(5))


def copied(found):
    """What the writer makes of a table, as Python's own reader sees it."""
    out = io.BytesIO()
    CsvWriter(out, found.column_names).write_table(found)
    return list(csv.reader(io.StringIO(out.getvalue().decode(), newline="")))


def test_a_well_formed_file_is_read_and_copied_as_it_is_written(tmp_path, tally):
    rng, count = np.random.default_rng(0), 0
    while count < WELL_FORMED:
        names, rows, delimiter = table(rng)
        if not clear(names, delimiter) or len(set(names)) < len(names):
            continue
        (tmp_path / "t.csv").write_bytes(file_of(names, rows, delimiter, rng))
        found_names, found = read(tmp_path / "t.csv", header=True, separator=None if len(names) > 1 else ",")
        assert found_names == names
        cells = [[value or "" for value in row] for row in zip(*found.to_pydict().values(), strict=True)]
        assert cells == rows
        assert copied(found) == [names, *rows]
        csv_text.typed(found)
        count += 1
    tally("well-formed ugly CSV files", {"copied cell by cell": count})


def spoiled(content, rng):
    """A file that was damaged: cut, flipped, doubled, spliced, or of another kind."""
    ways = (
        lambda: content[: int(rng.integers(len(content)))],
        lambda: bytes(b ^ (1 << int(rng.integers(8))) if rng.random() < 0.02 else b for b in content),
        lambda: content.replace(b'"', b"", 1),
        lambda: content + b'"open',
        lambda: content.replace(b",", b";", 3),
        lambda: content + content[:40],
        lambda: bytes(rng.integers(256, size=200, dtype=np.uint8)),
        lambda: content.decode("utf8", "replace").encode("utf-16"),
        lambda: content.replace(b"\n", b"\n\xff\xfe", 2),
        lambda: b"PAR1" + content,
        lambda: b"ARROW1" + content,
        lambda: b"\xff\xff\xff\xff" + content,
        lambda: b"\x1f\x8b" + content,
    )
    return ways[int(rng.integers(len(ways)))]()


def refusal(path):
    """What a file is refused with; nothing if it is read and can be copied."""
    try:
        _, found = read(path, header=True)
    except (ValueError, OSError) as error:
        return str(error)
    return "" if copied(found)[0] == found.column_names else "copied wrongly"


def test_a_spoiled_file_is_read_or_refused_in_a_line(tmp_path, tally):
    rng, counts = np.random.default_rng(1), Counter()
    for _ in range(MALFORMED):
        (tmp_path / "t.csv").write_bytes(spoiled(file_of(*table(rng), rng), rng))
        error = refusal(tmp_path / "t.csv")
        counts["refused" if error else "read"] += 1
        assert not error or (str(tmp_path / "t.csv") in error and len(error) < 4000), error
    tally("spoiled CSV files", counts)
    assert counts["refused"] > MALFORMED // 4
