"""What was observed comes out as it went in: in CSV the text of a cell, elsewhere the stored value."""

import csv
import datetime as dt
import io
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small import EXACT
from typer.testing import CliRunner

from ctem import CTEM, cli
from ctem.tables.io.csv_text import CsvWriter

pytestmark = pytest.mark.filterwarnings("ignore:.*left out of the density")  # numbers of rows
QUICK = {**EXACT, "max_steps": 2, "width": 4}
LONG = "12345678901234567890"  # more digits than a float64 or an int64 has


def rows(n=60):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {"size": rng.normal(size=n).round(2), "rooms": rng.integers(1, 60, n), "open": rng.random(n) < 0.5}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copied")
    X = pa.Table.from_pandas(rows(), preserve_index=False)
    with pytest.warns(UserWarning, match="fitted on 60 rows"):
        CTEM(**QUICK).fit(X).save(folder / "m.ctem")
    with pytest.warns(UserWarning, match="fitted on 60 rows"):
        CTEM(**QUICK).fit(rows().to_numpy(float)).save(folder / "array.ctem")
    return folder


def ctem(*arguments):
    result = CliRunner().invoke(cli.app, [str(each) for each in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


UGLY = '''id;size;note;rooms;zip;open
12345678901234567890;007.50;NA; 3;00084;True
12345678901234567891; 1.5;"a;b, ""c""";0007;08001;False
12345678901234567892;NA;;NA;NULL;NA
'''


def cells(text, delimiter=","):
    return list(csv.reader(io.StringIO(text), delimiter=delimiter))


@pytest.mark.parametrize("command", ["score", "impute", "outliers"])
def test_every_observed_cell_of_a_csv_file_is_copied_as_it_is_written(folder, tmp_path, command):
    (tmp_path / "t.csv").write_text(UGLY)
    options = ["--append"] if command == "score" else []
    out = cells(ctem(command, folder / "m.ctem", tmp_path / "t.csv", *options, "-q"))
    (names, *found), (_, *expected) = out, cells(UGLY, ";")
    own = [names.index(name) for name in ("id", "size", "note", "rooms", "zip", "open")]
    found = [[row[i] for i in own] for row in found]
    if command == "outliers":
        found.sort()
    filled = found[2] if command == "impute" else expected[2]
    assert found == [*expected[:2], filled]
    if command == "impute":
        assert [filled[i] for i in (0, 2, 4)] == [expected[2][i] for i in (0, 2, 4)]
        assert float(filled[1]) == round(float(filled[1]), 2)
        assert int(filled[3]) > 0
        assert filled[5] in ("True", "False")


def test_an_array_model_copies_cells_too(folder, tmp_path):
    (tmp_path / "t.csv").write_text("a,b,c\n007.50, 3,1\n1.5,NA,0\n")
    out = cells(ctem("impute", folder / "array.ctem", tmp_path / "t.csv", "-q"))
    assert out[1] == ["007.50", " 3", "1"]
    assert out[2][::2] == ["1.5", "0"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary()])
def test_text_of_every_type_is_quoted_where_it_must_be(kind):
    out = io.BytesIO()
    CsvWriter(out, ["a", "b"]).write_table(pa.table({"a": pa.array(['x, "y"', "z"]).cast(kind), "b": [1, 2]}))
    assert cells(out.getvalue().decode()) == [["a", "b"], ['x, "y"', "1"], ["z", "2"]]


def test_cells_that_csv_cannot_hold_are_named(folder, tmp_path):
    X = pa.Table.from_pandas(rows(), preserve_index=False).append_column("tags", pa.array([["a"]] * 60))
    pq.write_table(X, tmp_path / "t.parquet")
    result = CliRunner().invoke(cli.app, ["impute", str(folder / "m.ctem"), str(tmp_path / "t.parquet")])
    assert "column 'tags': expected cells that CSV can hold" in result.stderr
    assert "-o NAME.parquet" in result.stderr


@pytest.mark.parametrize(
    "empty",
    [
        lambda X: X[["rooms"]].reindex(columns=X.columns),  # nan as float64
        lambda X: X.assign(size=None, open=None, city=None, born=None),
        lambda X: pl.DataFrame({"rooms": X["rooms"].to_numpy()}).select(
            *(pl.lit(None).alias(name) if name != "rooms" else name for name in X.columns)
        ),
        lambda X: pa.table({name: X[name] if name == "rooms" else pa.nulls(len(X)) for name in X.columns}),
    ],
)
def test_columns_without_values_are_filled_with_what_fit_saw(empty):
    X = rows(100).assign(city=["Oslo", "Bergen"] * 50, born=pd.date_range("2020-01-01", periods=100))
    made = CTEM(**QUICK).fit(X).impute(empty(X))
    found = made.to_pandas() if hasattr(made, "to_pandas") else made
    assert set(found["city"]) <= {"Oslo", "Bergen"}
    assert set(found["open"]) <= {True, False}
    assert pd.to_datetime(found["born"]).between("2019-12-01", "2020-06-01").all()
    assert found["size"].astype(float).notna().all()
    assert found["rooms"].tolist() == X["rooms"].tolist()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_column_of_a_file_without_values_is_filled(folder, tmp_path, ending):
    X = pa.Table.from_pandas(rows().assign(rooms=None), preserve_index=False)
    pq.write_table(X, tmp_path / "t.parquet")
    ctem("impute", folder / "m.ctem", tmp_path / "t.parquet", "-o", tmp_path / f"full.{ending}", "-q")
    full = pd.read_csv if ending == "csv" else pd.read_parquet
    assert full(tmp_path / f"full.{ending}")["rooms"].notna().all()


DECIMALS = [Decimal(LONG + ".1234567890"), None, *map(Decimal, range(2, 60))]


@pytest.mark.parametrize("kind", [pa.decimal128(38, 10), pa.decimal256(60, 10)])
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_decimals_keep_every_digit_in_files(tmp_path, kind, ending):
    X = pa.table({"price": pa.array(DECIMALS, kind), "other": pa.array(DECIMALS, kind), "n": range(60)})
    with pytest.warns(UserWarning, match="fitted on 60 rows"):
        CTEM(**QUICK).fit(X.drop_columns("other")).save(tmp_path / "m.ctem")
    pq.write_table(X, tmp_path / "t.parquet")
    target = tmp_path / f"full.{ending}"
    ctem("impute", tmp_path / "m.ctem", tmp_path / "t.parquet", "-o", target, "-q")
    full = pq.read_table(target) if ending == "parquet" else pa.ipc.open_file(target).read_all()
    assert full.schema.equals(X.schema)
    assert full["other"].equals(X["other"])
    price = full["price"].to_pylist()
    assert price[0] == DECIMALS[0]
    assert price[2:] == DECIMALS[2:]
    assert isinstance(price[1], Decimal)


def as_pandas():
    days = [dt.date(2020, 1, 1 + i % 28) for i in range(60)]
    X = pd.DataFrame(
        {"d": pd.Series(DECIMALS, dtype=object), "day": pd.Series(days, dtype=object), 7: range(60)}
    )
    return X.set_axis([f"row {i}" for i in range(60)]).rename(columns={7: "n"})


LOSSY = {
    "pandas objects": as_pandas,
    "pandas arrow decimals": lambda: as_pandas().astype({"d": pd.ArrowDtype(pa.decimal128(38, 10))}),
    "polars decimals": lambda: pl.DataFrame(
        {"d": pl.Series(DECIMALS, dtype=pl.Decimal(38, 10)), "n": range(60)}
    ),
    "arrow decimals": lambda: pa.table({"d": pa.array(DECIMALS, pa.decimal256(60, 10)), "n": range(60)}),
    "numpy objects": lambda: np.array([DECIMALS, [str(i % 3) for i in range(60)]], object).T,
}


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("method", ["sample", "mean"])
def test_impute_takes_only_missing_cells_from_the_model(name, method):
    X = LOSSY[name]()
    with pytest.warns(UserWarning, match="fitted on 60 rows"):
        model = CTEM(**QUICK).fit(X)
    full = model.impute(X, method)
    assert type(full) is type(X)
    before, after = (listed(each) for each in (X, full))
    assert after[0] == before[0]
    assert after[2:] == before[2:]
    assert after[1][1:] == before[1][1:]
    assert isinstance(after[1][0], Decimal)
    if isinstance(X, pd.DataFrame):
        assert full.index.equals(X.index)
        assert full.dtypes.equals(X.dtypes)


def listed(X):
    if isinstance(X, pa.Table):
        return list(zip(*(column.to_pylist() for column in X.columns), strict=True))
    if isinstance(X, pl.DataFrame):
        return X.rows()
    return [tuple(row) for row in (X.to_numpy(object) if isinstance(X, pd.DataFrame) else X)]


def test_columns_named_by_numbers_and_an_odd_index_survive():
    X = rows().rename(columns={"size": 0, "rooms": 1, "open": 2})
    X.loc[3, 0] = np.nan
    X.index = pd.MultiIndex.from_arrays([[5] * 60, range(60)])
    with pytest.warns(UserWarning, match="fitted on 60 rows"):
        full = CTEM(**QUICK).fit(X).impute(X)
    assert full.index.equals(X.index)
    assert full.columns.equals(X.columns)
    pd.testing.assert_frame_equal(full.drop(index=(5, 3)), X.drop(index=(5, 3)))


@pytest.mark.parametrize("dtype", ["str", object, "string"], ids=str)
@pytest.mark.filterwarnings("ignore:fitted on 60 rows")
def test_text_that_is_read_as_numbers_comes_back_as_it_was_written(dtype):
    X = rows().assign(price=[f"${1000 + 7 * i:,}.00" for i in range(60)]).astype({"price": dtype})
    new = X[:4].assign(price=["$1200", " $1,300.00", "$1,400.5", None]).astype({"price": dtype})
    price = CTEM(**QUICK).fit(X).impute(new, random_state=0)["price"]
    assert price.tolist()[:3] == ["$1200", " $1,300.00", "$1,400.5"]
    assert price.iloc[3].startswith("$")
    assert price.dtype == X["price"].dtype
