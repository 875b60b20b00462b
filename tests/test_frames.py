import datetime as dt
import json
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import polars.testing
import pyarrow as pa
import pytest
import scipy.sparse
import torch

from ctem.tables.io.cells import Cells, object_cells, whole_numbers
from ctem.tables.io.frame import Frame, TableType, build_frame, read_frame
from ctem.tables.io.rows import ahead

DAYS = [dt.date(2020, 1, 1), None, dt.date(1901, 12, 31)]
TIMES = [dt.datetime(2020, 1, 1, 3, 4, 5), None, dt.datetime(1969, 1, 1)]
WORDS = ["", None, "nan\x00Ås"]
FLAGS = [True, None, False]
SPANS = [dt.timedelta(1), None, dt.timedelta(-3, 5)]

PANDAS = {
    "float64": pd.Series([1.5, np.nan, -0.0]),
    "float32": pd.Series([0.1, np.nan, 3], dtype="float32"),
    "int8": pd.Series([-128, 0, 127], dtype="int8"),
    "uint64": pd.Series([0, 2**64 - 1, 1], dtype="uint64"),
    "bool": pd.Series([True, False, True]),
    "Int64": pd.Series([1, None, -(2**63)], dtype="Int64"),
    "UInt8": pd.Series([1, None, 255], dtype="UInt8"),
    "Float32": pd.Series([1.5, None, 2], dtype="Float32"),
    "boolean": pd.Series(FLAGS, dtype="boolean"),
    "str": pd.Series(WORDS),
    "string": pd.Series(WORDS, dtype="string"),
    "string[python]": pd.Series(WORDS, dtype="string[python]"),
    "object text": pd.Series(WORDS, dtype=object),
    "object text, nan": pd.Series(["a", np.nan, "b"], dtype=object),
    "object whole": pd.Series([1, None, 3], dtype=object),
    "object flags": pd.Series(FLAGS, dtype=object),
    "object days": pd.Series(DAYS, dtype=object),
    "object decimals": pd.Series([Decimal("0.10"), None, Decimal("1E+3")], dtype=object),
    "category": pd.Series(pd.Categorical(["a", None, "b"], categories=["unseen", "b", "a"])),
    "ordered": pd.Series(pd.Categorical(["a", None, "b"], categories=["b", "a"], ordered=True)),
    "category of whole": pd.Series(pd.Categorical([3, None, 1])),
    "category of flags": pd.Series(pd.Categorical([True, None, False])),
    "category of intervals": pd.Series(pd.cut([1.0, np.nan, 3.0], 2)),
    "category of days": pd.Series(pd.Categorical(pd.to_datetime(["2020-01-01", None, "2021-01-01"]))),
    "datetime[ns]": pd.Series(np.array(TIMES, "M8[ns]")),
    "datetime[s]": pd.Series(np.array(TIMES, "M8[s]")),
    "datetime, zone": pd.Series(np.array(TIMES, "M8[us]")).dt.tz_localize("Europe/Oslo"),
    "timedelta": pd.Series(np.array(SPANS, "m8[us]")),
    "arrow whole": pd.Series([1, None, 3], dtype="int64[pyarrow]"),
    "arrow text": pd.Series(WORDS, dtype=pd.ArrowDtype(pa.string())),
    "arrow day": pd.Series(DAYS, dtype=pd.ArrowDtype(pa.date32())),
}

POLARS = {
    "Float64": pl.Series([1.5, None, -0.0]),
    "Float32": pl.Series([0.1, None, 3.0], dtype=pl.Float32),
    "Int8": pl.Series([-128, None, 127], dtype=pl.Int8),
    "UInt64": pl.Series([0, 2**64 - 1, None], dtype=pl.UInt64),
    "Boolean": pl.Series(FLAGS),
    "String": pl.Series(WORDS),
    "Categorical": pl.Series(WORDS, dtype=pl.Categorical),
    "Enum": pl.Series(["a", None, "b"], dtype=pl.Enum(["unseen", "b", "a"])),
    "Date": pl.Series(DAYS),
    "Datetime": pl.Series(TIMES, dtype=pl.Datetime("ms")),
    "Datetime, zone": pl.Series(TIMES, dtype=pl.Datetime("us")).dt.replace_time_zone("Europe/Oslo"),
    "Duration": pl.Series(SPANS, dtype=pl.Duration("ns")),
    "Decimal": pl.Series(["1.25", None, "-3.50"]).cast(pl.Decimal(12, 2)),
    "Null": pl.Series([None, None, None]),
}

ARROW = {
    "double": pa.array([1.5, None, -0.0]),
    "halffloat": pa.array(np.array([0.5, 2, 3], np.float16)),
    "int16": pa.array([1, None, 3], pa.int16()),
    "uint64": pa.array([0, 2**64 - 1, None], pa.uint64()),
    "bool": pa.array(FLAGS),
    "string": pa.array(WORDS),
    "large_string": pa.array(WORDS, pa.large_string()),
    "string_view": pa.array(WORDS, pa.string_view()),
    "dictionary": pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int8()), pa.array(["b", "a"])),
    "ordered dictionary": pa.DictionaryArray.from_arrays(
        pa.array([1, None, 0], pa.int32()), pa.array(["b", "a"]), ordered=True
    ),
    "date32": pa.array(DAYS),
    "date64": pa.array(DAYS, pa.date64()),
    "timestamp": pa.array(TIMES, pa.timestamp("s")),
    "timestamp, zone": pa.array(TIMES, pa.timestamp("ns", "Europe/Oslo")),
    "duration": pa.array(SPANS, pa.duration("us")),
    "decimal": pa.array([Decimal("1.25"), None, Decimal("-3.50")], pa.decimal128(12, 2)),
    "null": pa.nulls(3),
}

NUMPY = {
    "float64": np.array([[1.0, np.nan], [3.0, -0.0]]),
    "float16": np.array([[1.0, np.nan]], np.float16),
    "int8": np.array([[1, -128]], np.int8),
    "uint64": np.array([[1, 2**64 - 1]], np.uint64),
    "bool": np.array([[True, False]]),
    "text": np.array([["a", ""], ["Ås", "nan"]]),
    "days": np.array([["2020-01-01", "NaT"]], "M8[D]"),
    "spans": np.array([[5, -7]], "m8[ms]"),
    "objects": np.array([["a", 1, 2.5, True, None], [None, 2, 1.0, False, "x"]], object),
}


def same(kind_in, kind_out):
    if isinstance(kind_in, pd.DataFrame):
        pd.testing.assert_frame_equal(kind_out, kind_in)
    elif isinstance(kind_in, pl.DataFrame):
        polars.testing.assert_frame_equal(kind_out, kind_in)
    elif isinstance(kind_in, pa.Table):
        assert kind_out.schema.equals(kind_in.schema)
        assert kind_out.equals(kind_in)
    else:
        assert kind_out.dtype == kind_in.dtype
        np.testing.assert_array_equal(kind_out, kind_in)


def again(X):
    frame = read_frame(X)
    kind = TableType.from_json(json.loads(json.dumps(frame.table_type.to_json())))
    assert kind == frame.table_type
    return build_frame(kind, frame.columns)


@pytest.mark.parametrize("name", PANDAS)
def test_a_pandas_column_comes_back_as_it_was(name):
    same(X := pd.DataFrame({"a b": PANDAS[name]}), again(X))


@pytest.mark.parametrize("name", POLARS)
def test_a_polars_column_comes_back_as_it_was(name):
    same(X := pl.DataFrame({"a b": POLARS[name]}), again(X))


@pytest.mark.parametrize("name", ARROW)
def test_an_arrow_column_comes_back_as_it_was(name):
    same(X := pa.table({"a b": ARROW[name]}), again(X))


@pytest.mark.parametrize("name", NUMPY)
def test_a_numpy_array_comes_back_as_it_was(name):
    same(X := NUMPY[name], again(X))


def test_wide_tables_and_whole_number_names_come_back():
    same(X := pd.DataFrame({0: [1.0, 2.0], "a": [1, 2], 7: ["x", None]}), again(X))
    assert read_frame(X).table_type.names == ("0", "a", "7")


def test_every_kind_of_missing_is_missing():
    X = pd.DataFrame(
        {
            "nan": pd.Series([np.nan, 1.0]),
            "None": pd.Series([None, "x"], dtype=object),
            "NaT": pd.to_datetime(pd.Series([None, "2020-01-01"])),
            "NA": pd.Series([pd.NA, 1], dtype="Int64"),
            "NA in objects": pd.Series([pd.NA, 1], dtype=object),
        }
    )
    for cells in read_frame(X).columns.values():
        np.testing.assert_array_equal(cells.missing, [True, False])
    gaps = read_frame(pl.DataFrame({"null": [None, 1.0], "nan": [float("nan"), 1.0]})).columns
    assert [cells.missing.tolist() for cells in gaps.values()] == [[True, False]] * 2


def test_text_that_looks_missing_is_text():
    X = np.array([["nan"], [""], ["None"], ["NA"]], object)
    assert read_frame(X).columns["x0"].to_list() == ["nan", "", "None", "NA"]


def test_lists_and_tensors_are_arrays_and_mixed_lists_keep_their_types():
    assert read_frame([[1, 2], [3, 4]]).table_type.fields[0].dtype == {"numpy": "<i8"}
    assert read_frame(torch.ones(2, 3)).table_type.fields[0].dtype == {"numpy": "<f4"}
    frame = read_frame([[1, "a"], [2, "b"]])
    assert [cells.type for cells in frame.columns.values()] == ["int", "label"]


def test_a_sliced_and_chunked_arrow_table_is_read_in_order():
    table = pa.concat_tables([pa.table({"a": [1, 2]}), pa.table({"a": [3, None]})]).slice(1)
    assert read_frame(table).columns["a"].to_list() == [2, 3, None]


def test_a_pandas_index_does_not_matter():
    X = pd.DataFrame({"a": [1.0, 2.0]}, index=[5, 5])
    assert read_frame(X).columns["a"].to_list() == [1.0, 2.0]


ERRORS = {
    "nothing": (None, TypeError, "got NoneType"),
    "text": ("abc", TypeError, "got str"),
    "dict": ({"a": [1]}, TypeError, "got dict"),
    "lazy": (pl.LazyFrame({"a": [1]}), TypeError, r"LazyFrame; collect\(\) it first"),
    "series": (pd.Series([1.0]), ValueError, "Expected 2D array, got 1D array instead: a Series"),
    "one dimension": (np.zeros(3), ValueError, "Expected 2D array, got 1D array instead"),
    "three dimensions": (np.zeros((2, 2, 2)), ValueError, "Expected 2D array, got 3D array instead"),
    "scalar": (5.0, ValueError, "Expected 2D array, got 0D array instead"),
    "no rows": (np.zeros((0, 3)), ValueError, r"0 sample\(s\) \(shape=\(0, 3\)\) while a minimum of 1 is"),
    "no columns": (
        np.zeros((3, 0)),
        ValueError,
        r"0 feature\(s\) \(shape=\(3, 0\)\) while a minimum of 1 is",
    ),
    "no rows in polars": (pl.DataFrame({"a": []}), ValueError, r"0 sample\(s\)"),
    "sparse": (scipy.sparse.csr_matrix(np.eye(2)), TypeError, "sparse data was passed, but dense"),
    "sparse pandas": (pd.DataFrame({"a": pd.arrays.SparseArray([0, 1])}), TypeError, "'a' is sparse"),
    "complex": (np.zeros((2, 2), complex), ValueError, "Complex data not supported"),
    "complex pandas": (pd.DataFrame({"a": [1j]}), ValueError, "column 'a': Complex data not supported"),
    "infinity": (np.array([[1.0], [-np.inf]]), ValueError, r"column 'x0', row 1: .*infinity \(-inf\)"),
    "same name twice": (pd.DataFrame([[1, 2]], columns=["a", "a"]), ValueError, "'a' comes 2 times"),
    "same name as text": (pd.DataFrame([[1, 2]], columns=["1", 1]), ValueError, "'1' comes 2 times"),
    "name of no text": (
        pd.DataFrame([[1]], columns=[("a", "b")]),
        TypeError,
        "expected column names of text",
    ),
    "lists": (pl.DataFrame({"a": [[1], [2]]}), TypeError, "column 'a': expected numbers, .* got List"),
    "structs": (pl.DataFrame({"a": [{"b": 1}]}), TypeError, "column 'a': expected numbers, .* got Struct"),
    "arrow lists": (pa.table({"a": [[1]]}), TypeError, "column 'a': expected numbers, .* got list"),
    "bytes": (pa.table({"a": [b"x"]}), TypeError, "column 'a': expected numbers, .* got binary"),
    "numpy bytes": (np.array([[b"x"]]), TypeError, r"column 'x0': expected numbers, .* got \|S1"),
    "periods": (
        pd.DataFrame({"a": pd.period_range("2020", periods=2)}),
        TypeError,
        "column 'a': expected numbers, .* got period",
    ),
    "mixed": (
        pd.DataFrame({"a": pd.Series([None, 1, "x"], dtype=object)}),
        TypeError,
        r"column 'a': expected values of one type; got int \(row 1\), str \(row 2\)",
    ),
    "objects": (
        np.array([[1.0], [{"foo": "bar"}]], object),
        TypeError,
        "column 'x0', row 1: .*argument must be a string or a real number",
    ),
    "zones in objects": (
        np.array([[dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]], object),
        TypeError,
        "column 'x0': expected times without a zone",
    ),
    "long integers": (np.array([[2**70], [1]], object), ValueError, f"64 bits; got {2**70}"),
    "ragged": ([[1, 2], [3]], ValueError, "rows of one length"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_table_that_cannot_be_read_is_refused_with_the_reason(name):
    X, error, message = ERRORS[name]
    with pytest.raises(error, match=message):
        read_frame(X)


BAD_KINDS = {
    "empty": ({}, "expected a backend and fields"),
    "backend": ({"backend": "excel", "fields": []}, "expected a backend of numpy, pandas"),
    "no columns": ({"backend": "numpy", "fields": []}, "at least one column"),
    "name": (
        {"backend": "numpy", "fields": [{"name": 1, "original": 1, "dtype": {}}]},
        "expected a text name",
    ),
    "dtype": (
        {"backend": "numpy", "fields": [{"name": "a", "original": "a", "dtype": 3}]},
        "column 'a' has no dtype of numpy",
    ),
    "more": ({"backend": "numpy", "fields": [{"name": "a", "code": "x"}]}, "expected a backend and fields"),
}


BAD_DTYPES = {
    "numpy": [{"numpy": text} for text in ("V9", "<U999999", "<c16", "x", "O", None, "f8,f8")],
    "pandas": [
        {"pandas": text} for text in ("read_csv", "Sparse[int]", "category", "arrow", "text", "object", 3)
    ],
    "polars": [{"polars": text} for text in ("read_csv", "Enum", "Datetime", "Decimal", "Object", None)],
    "pyarrow": [
        {"arrow": text} for text in ("list", "dictionary", "timestamp", "decimal", "binary", ["int8"])
    ],
}


@pytest.mark.parametrize("backend", BAD_DTYPES)
def test_a_dtype_that_no_column_has_is_refused(backend):
    more = [
        {**dtype, "bits": 7, "precision": 10**9, "scale": 0, "unit": "h"} for dtype in BAD_DTYPES[backend]
    ]
    for dtype in [*BAD_DTYPES[backend], *more]:
        field = {"name": "a", "original": "a", "dtype": dtype}
        with pytest.raises(ValueError, match=f"column 'a' has no dtype of {backend}"):
            TableType.from_json({"backend": backend, "fields": [field]})


@pytest.mark.parametrize("name", BAD_KINDS)
def test_a_kind_that_is_none_is_refused(name):
    data, message = BAD_KINDS[name]
    with pytest.raises(ValueError, match=message):
        TableType.from_json(data)


def test_draws_beyond_a_dtypes_limits_are_held_there():
    cells = Cells("int", np.array([-5.0, 300.0]), np.zeros(2, bool))
    assert whole_numbers(cells, np.dtype(np.uint8)).tolist() == [0, 255]
    far = Cells("int", np.array([-1e19, 1e19]), np.zeros(2, bool))
    assert whole_numbers(far, np.dtype(np.int64)).tolist() == [-(2**63), 2**63 - 1]
    frame = read_frame(np.zeros((2, 1), np.float32))
    built = build_frame(
        frame.table_type, {"x0": Cells("float", np.array([1e300, -1e300]), np.zeros(2, bool))}
    )
    assert np.isfinite(built).all()


def test_a_missing_value_in_a_dtype_that_cannot_hold_it_is_an_error_that_says_so():
    frame = read_frame(pd.DataFrame({"n": [1, 2]}))
    gap = Cells("int", np.array([1, 2]), np.array([False, True]))
    with pytest.raises(ValueError, match="column 'n', row 1: a int64 column cannot hold a missing value"):
        build_frame(frame.table_type, {"n": gap})


def test_building_needs_every_column():
    frame = read_frame(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="'x1' is not there"):
        build_frame(frame.table_type, {"x0": frame.columns["x0"]})


def test_columns_of_objects_remember_their_type():
    dtype, cells = object_cells("a", np.array([np.float64(1), 2, None], object))
    assert dtype == {"object": "float", "nan": False}
    assert cells.to_list() == [1.0, 2.0, None]


def test_a_frame_knows_its_length():
    assert len(read_frame(pl.DataFrame({"a": [1, 2, 3]}))) == 3
    assert isinstance(read_frame([[1.0]]), Frame)


def test_a_spoilt_dtype_calls_nothing():
    frame = read_frame(pl.DataFrame({"a": [1]}))
    data = frame.table_type.to_json()
    data["fields"][0]["dtype"] = {"polars": "build_info"}
    with pytest.raises(ValueError, match=r"column 'a' has no dtype of polars: .*build_info"):
        build_frame(TableType.from_json(data), frame.columns)


@pytest.mark.parametrize("unit", ["D", "s", "us"])
def test_a_moment_beyond_pythons_calendar_is_held_at_its_end(unit):
    """A draw far from all dates of a small table must come back as a date, not as a number."""
    ends = np.array(["-9000-01-01", "2000-01-01", "12000-01-01"], f"M8[{unit}]").view(np.int64)
    found = Cells("moment", ends, np.zeros(3, bool), unit=unit).to_list()
    assert [moment.year for moment in found] == [1, 2000, 9999]


def test_threads_are_ahead_by_no_more_items_than_there_are_of_them():
    begun = []
    made = ahead(abs, (begun.append(item) or item for item in range(20)), workers=3)
    for taken in range(20):
        assert next(made) == taken
        assert len(begun) <= taken + 1 + 3


def test_of_several_errors_ahead_the_first_is_raised():
    made = ahead(lambda item: 1 // item, [1, 0, "text"], workers=3)
    with pytest.raises(ZeroDivisionError):
        list(made)


TIMED = {
    **{
        f"numpy, {unit}": pd.Series(TIMES).to_numpy(f"M8[{unit}]").reshape(-1, 1) for unit in ("D", "s", "ns")
    },
    **{
        f"pandas, {unit}": pd.DataFrame({"x0": pd.Series(TIMES, dtype=f"M8[{unit}]")})
        for unit in ("s", "us", "ns")
    },
    "pandas, dates": pd.DataFrame({"x0": pd.Series(DAYS, dtype=object)}),
    "polars, days": pl.DataFrame({"x0": DAYS}),
    **{
        f"polars, {unit}": pl.DataFrame({"x0": pl.Series(TIMES, dtype=pl.Datetime(unit))})
        for unit in ("ms", "us", "ns")
    },
    **{f"pyarrow, {kind}": pa.table({"x0": pa.array(DAYS, kind)}) for kind in (pa.date32(), pa.date64())},
    **{
        f"pyarrow, {unit}": pa.table({"x0": pa.array(TIMES, pa.timestamp(unit))})
        for unit in ("s", "ms", "us", "ns")
    },
}
SPANNED = {
    "pandas": pd.DataFrame({"x0": pd.Series(SPANS, dtype="m8[s]")}),
    "polars": pl.DataFrame({"x0": pl.Series(SPANS, dtype=pl.Duration("ns"))}),
    "pyarrow": pa.table({"x0": pa.array(SPANS, pa.duration("s"))}),
}


@pytest.mark.parametrize("unit", ["D", "s", "us"])
@pytest.mark.parametrize("table", [*TIMED.values(), *SPANNED.values()], ids=[*TIMED, *SPANNED])
def test_times_of_any_unit_are_written_in_that_of_the_table(table, unit):
    frame = read_frame(table)
    kind = frame.columns["x0"].type
    letter = "M" if kind == "moment" else "m"
    counts = np.array([18262, 0, -365]).astype(f"{letter}8[D]").astype(f"{letter}8[{unit}]").view(np.int64)
    made = build_frame(
        frame.table_type, {"x0": Cells(kind, counts, np.array([False, True, False]), unit=unit)}
    )
    again = read_frame(made).columns["x0"]
    days = again.values.view(f"{letter}8[{again.unit}]").astype(f"{letter}8[D]").astype(int)
    assert (days[0], days[2], again.missing.tolist()) == (18262, -365, [False, True, False])
