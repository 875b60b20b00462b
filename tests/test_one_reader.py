"""A table in a CSV file and the same one as a frame of any library: the same columns, the same gaps, the same model."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pytest

from ctem.cli.streams import fit_table
from ctem.tables.inference.kinds import infer_column
from ctem.tables.io.csv_files import Dialect
from ctem.tables.io.frame import read_frame
from ctem.tables.io.recognition import Reading, recognised

N = 80
RNG = np.random.default_rng(0)
WHOLE = RNG.integers(0, 900, N)
REALS = RNG.normal(20, 5, N)
DAYS = pd.Timestamp("2023-01-05") + pd.to_timedelta(RNG.integers(0, 300, N), unit="D")
TIMES = DAYS + pd.to_timedelta(RNG.integers(0, 86_400, N), unit="s")
WORDS = np.array(["Oslo", "Bergen", "Narvik"])[WHOLE % 3]


def gaps(cells, marker, every=7):
    return [marker if i % every == 2 else str(cell) for i, cell in enumerate(cells)]


COLUMNS = {
    "numbers": [repr(v) for v in REALS],
    "whole numbers": WHOLE,
    "few whole numbers": WHOLE % 4,
    "two whole numbers": WHOLE % 2,
    "negative": WHOLE - 400,
    "signed": [f"+{v}" if v % 2 else f"-{v}" for v in WHOLE],
    "rounded": REALS.round(1),
    "hundredths": [f"{v:.2f}" for v in REALS],
    "tens": WHOLE * 10,
    "exponents": [f"{v:e}" for v in REALS],
    "money": [f"${v:,.2f}" for v in REALS * 1000],
    "money after": [f"{v:.0f} €" for v in REALS * 1000],
    "accounts": [f"({v})" if v % 3 == 0 else f"{v}" for v in WHOLE + 1],
    "percent": [f"{v}%" for v in WHOLE % 90],
    "decimal commas": [f"{v:.2f}".replace(".", ",") for v in REALS],
    "thousands": [f"{v:,}" for v in WHOLE * 977],
    "dates": DAYS.strftime("%Y-%m-%d"),
    "dates by dots": DAYS.strftime("%d.%m.%Y"),
    "dates by slashes": DAYS.strftime("%m/%d/%Y"),
    "months": DAYS.strftime("%b-%Y"),
    "stamps": TIMES.strftime("%Y-%m-%d %H:%M:%S"),
    "stamps with T": TIMES.strftime("%Y-%m-%dT%H:%M:%S"),
    "stamps to the minute": TIMES.strftime("%Y-%m-%d %H:%M"),
    "stamps with fractions": TIMES.strftime("%Y-%m-%d %H:%M:%S.250"),
    "stamps of UTC": TIMES.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "stamps of two zones": [f"{t:%Y-%m-%dT%H:%M:%S}+0{1 + i % 2}:00" for i, t in enumerate(TIMES)],
    "times": TIMES.strftime("%H:%M"),
    "times with seconds": TIMES.strftime("%H:%M:%S"),
    "durations": [f"{v // 60}h {v % 60}m" for v in WHOLE],
    "booleans": np.where(WHOLE % 2, "True", "False"),
    "small booleans": np.where(WHOLE % 2, "true", "false"),
    "large booleans": np.where(WHOLE % 2, "TRUE", "FALSE"),
    "labels": WORDS,
    "yes and no": np.where(WHOLE % 2, "yes", "no"),
    "letters and numbers": [f"A{v % 7}" for v in WHOLE],
    "text": [f"row {v} of {w} in the north" for v, w in zip(WHOLE, WORDS, strict=True)],
    "codes with zeros": [f"{v % 30:05d}" for v in WHOLE],
    "large numbers": [str(2**60 + int(v)) for v in WHOLE],
    "unsigned numbers": [str(2**63 + int(v)) for v in WHOLE],
    "huge numbers": [str(10**30 + int(v)) for v in WHOLE],
    "numbers and words": ["many" if v % 9 == 0 else v for v in WHOLE],
    "spaces around": [f" {v} " for v in WHOLE],
    "one value": ["same"] * N,
    "one number": [7] * N,
    "nothing": [""] * N,
}
MARKERS = (
    "",
    " ",
    "?",
    "-",
    "--",
    ".",
    "NA",
    "N/A",
    "na",
    "n/a",
    "None",
    "none",
    "null",
    "NULL",
    "NaN",
    "nan",
)
MARKERS += ("#N/A", "n.a.", "N.A.", "<NA>", "NaT", "#DIV/0!", "#VALUE!", "#REF!", "#NA", "-nan", "1.#QNAN")
GAPPED = (
    "whole numbers",
    "few whole numbers",
    "rounded",
    "money",
    "dates",
    "stamps",
    "times",
    "booleans",
    "labels",
)
KINDS = list(COLUMNS)
TABLES = {
    **{
        f"kinds {i} …": {name: list(map(str, COLUMNS[name])) for name in KINDS[i : i + 5]}
        for i in range(0, len(KINDS), 5)
    },
    **{f"gaps by {mark!r}": {name: gaps(COLUMNS[name], mark) for name in GAPPED} for mark in MARKERS},
}


def by_shell(path):
    return fit_table(str(path), [], 10**6, 0, True, {}, Dialect())


def as_text(path):
    names = pd.read_csv(path, nrows=1).columns
    options = pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    return pa.csv.read_csv(path, convert_options=options)


TEXTUAL = {
    "pandas text": lambda path: pd.read_csv(path, dtype=str, keep_default_na=False),
    "pandas objects": lambda path: pd.read_csv(path, dtype=object, keep_default_na=False),
    "polars text": lambda path: pl.read_csv(path, infer_schema=False),
    "arrow text": as_text,
}
READERS = {
    **TEXTUAL,
    "pandas": pd.read_csv,
    "polars": lambda path: pl.read_csv(path, infer_schema_length=None),
    "polars, dates": lambda path: pl.read_csv(path, infer_schema_length=None, try_parse_dates=True),
    "arrow": pa.csv.read_csv,
}
SPOILT = {  # what a library's own reader does not keep
    "codes with zeros": ("pandas", "polars", "polars, dates", "arrow"),
    "unsigned numbers": ("arrow",),
    "huge numbers": ("pandas", "arrow"),
}


def understood(table):
    """The gaps of every column, and what it holds: a schema is made of nothing else."""
    found = {}
    for name, cells in recognised(read_frame(table), Reading(), {}).columns.items():
        kind = (
            "nothing" if cells.missing.all() else "number" if cells.type in ("int", "float") else cells.type
        )
        known = [value for value in replace(cells, text=None, zone="").to_list() if value is not None]
        if cells.type == "moment":
            known = pd.to_datetime(pd.Series(known)).dt.as_unit("us").tolist()
        found[name] = cells.missing.tolist(), kind, known
    return found


@pytest.mark.parametrize("name", TABLES)
def test_a_file_and_a_frame_of_the_same_cells_hold_the_same(name, tmp_path):
    path = tmp_path / "table.csv"
    pd.DataFrame(TABLES[name]).to_csv(path, index=False)
    expected = understood(by_shell(path))
    for library, read in READERS.items():
        table = read(path)
        kept = [column for column in expected if library not in SPOILT.get(column, ())]
        found = understood(table.select(kept) if hasattr(table, "select") else table[kept])
        assert found == {column: expected[column] for column in kept}, library


@pytest.mark.parametrize("name", list(TABLES)[:9])
def test_a_file_and_a_frame_of_the_same_cells_have_the_same_schema(name, tmp_path):
    path = tmp_path / "table.csv"
    pd.DataFrame(TABLES[name]).to_csv(path, index=False)
    expected = described(by_shell(path))
    for library, read in READERS.items():
        table = read(path)
        kept = [column for column in expected if library not in SPOILT.get(column, ())]
        found = described(table.select(kept) if hasattr(table, "select") else table[kept])
        for column in kept:
            assert found[column][:2] == expected[column][:2], (library, column)
            assert found[column][2] == approx(expected[column][2]), (library, column)


def approx(values):
    return pytest.approx(values, rel=1e-9, abs=1e-9, nan_ok=True)  # moments may be counted in other units


def described(table):
    """The kind of every column, why, and its encoded cells."""
    found = {}
    for name, cells in recognised(read_frame(table), Reading(), {}).columns.items():
        column = infer_column(name, cells, None, False, True, True)
        x, terms = column.codec.encode(name, cells)
        found[name] = column.kind, column.reason, [*x.flatten().tolist(), *terms.tolist()]
    return found
