"""Tables that do not fit into memory: sketches that merge, streamed fits, and what is said of bad files."""

from itertools import pairwise

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import SMALL
from typer.testing import CliRunner

from ctem import CTEM
from ctem.cli import app
from ctem.fitting.streaming import Encoder, Pool, Span, shuffled, survey
from ctem.tables.encoding import sketches
from ctem.tables.encoding.sketches import Sketch, completed, row_keys
from ctem.tables.io.frame import read_frame
from ctem.tables.io.large import open_large
from ctem.tables.schema import Schema

LITTLE = "5.6MB"  # for 20,000 rows of the table below, and some more
QUICK = {**SMALL, "max_steps": 60, "batch_size": 256}


def table(n=24_000, seed=0):
    rng = np.random.default_rng(seed)
    side = rng.integers(3, size=n)
    labels = np.array(["left", "middle", "right"])[side]
    labels[n // 2 : n // 2 + 1] = "seldom"
    size = np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n) + 2 * side)
    return pa.table(
        {"side": labels, "size": pa.array(size, from_pandas=True), "count": rng.poisson(3 + side)}
    )


def written(folder, rows, files=4):
    folder.mkdir(exist_ok=True)
    each = -(-len(rows) // files)
    for i in range(files):
        pq.write_table(rows.slice(i * each, each), folder / f"{i}.parquet", row_group_size=1000)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("large") / "parts", table())


@pytest.fixture(scope="module")
def streamed(folder):
    return CTEM(**QUICK).fit(folder, memory=LITTLE)


@pytest.fixture(scope="module")
def in_memory():
    return CTEM(**QUICK).fit(table())


def same(one, other):
    assert one.rows == other.rows
    assert one.columns == other.columns
    assert np.array_equal(one.sampled(), other.sampled())
    assert one.sample().equals(other.sample())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 60), max_size=5), st.randoms(use_true_random=False), st.integers(1, 80))
def test_sketches_merge_to_the_same_bits_in_any_order_and_however_rows_are_split(cuts, random, limit):
    rows, ends = table(60), sorted({0, 60, *cuts})
    whole = Sketch(limit, seed=3)
    whole.add(rows, 0)
    parts = []
    for low, high in pairwise(ends):
        parts.append(Sketch(limit, seed=3))
        parts[-1].add(rows.slice(low, high - low), low)
    while len(parts) > 1:
        random.shuffle(parts)
        parts[0].merge(parts.pop())
    same(whole, parts[0])
    assert whole.columns["side"].counts == dict(
        zip(*np.unique(rows["side"], return_counts=True), strict=True)
    )


def test_values_are_listed_up_to_a_limit_whatever_the_order_of_merging(monkeypatch):
    monkeypatch.setattr(sketches, "LISTED", 5)
    rows = pa.table({"n": [1, 2, 3, 4, 4, 5, 6, 1]})
    found = []
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        whole = Sketch(8)
        for i in order:
            whole.add(rows.slice(2 * i, 2), 2 * i)
        found.append(whole.columns["n"])
    assert found[0] == found[1]
    assert found[0].counts is None
    assert (found[0].low, found[0].high) == (1, 6)


def test_every_row_is_in_the_sample_equally_often():
    counts = np.zeros(40)
    for seed in range(500):
        counts[np.argsort(row_keys(np.arange(40), seed))[:10]] += 1
    deviation = (counts - 125) / np.sqrt(500 * 0.25 * 0.75)
    assert np.abs(deviation).max() < 4


def test_quantiles_of_the_sample_are_as_near_as_those_of_a_random_one():
    values = np.random.default_rng(0).gamma(2.0, size=50_000)
    sketch = Sketch(limit=2000)
    sketch.add(pa.table({"v": values}), 0)
    ranks = np.searchsorted(np.sort(values), np.sort(sketch.sample()["v"].to_numpy())) / len(values)
    assert (
        np.abs(ranks - np.arange(2000) / 2000).max() < np.sqrt(np.log(2 / 0.01) / (2 * 2000)) + 1 / 2000
    )  # 99 in 100, by Dvoretzky et al.


def test_what_the_sample_missed_is_added_to_it():
    rows = table(3000)
    sketch = Sketch(limit=50)
    sketch.add(rows, 0)
    assert "seldom" not in sketch.sample()["side"].to_pylist()
    frame = completed(read_frame(sketch.sample()), sketch.columns)
    assert set(np.array(frame.columns["side"].labels)[np.unique(frame.columns["side"].values)]) == set(
        rows["side"].to_pylist()
    )
    size = frame.columns["size"]
    known = size.values[~size.missing]
    assert known.min() == pc.min(rows["size"]).as_py()
    assert known.max() == pc.max(rows["size"]).as_py()


SOURCES = {
    "folder": lambda folder: folder,
    "text": str,
    "url": lambda folder: f"file://{folder}",
    "dataset": lambda folder: ds.dataset(folder, format="parquet"),
    "filtered dataset": lambda folder: ds.dataset(folder, format="parquet").filter(ds.field("count") >= 0),
    "lazy frame": lambda folder: pl.scan_parquet(folder),
    "iterator": lambda folder: (pq.read_table(path) for path in sorted(folder.iterdir())),
    "reader": lambda folder: ds.dataset(folder, format="parquet").scanner(use_threads=False).to_reader(),
}


@pytest.mark.parametrize("source", SOURCES)
def test_whatever_the_source_the_same_rows_come_in_the_same_order(folder, source):
    with open_large(SOURCES[source](folder)) as large:
        found = pa.concat_tables([batch.table for batch in large.batches()])
    assert found.cast(table().schema).equals(table())


def test_categories_of_all_files_may_outgrow_the_numbers_of_each(tmp_path):
    few = pa.dictionary(pa.int8(), pa.string())
    for part in range(2):
        labels = pa.array([f"{part}-{i}" for i in range(100)]).dictionary_encode().cast(few)
        pq.write_table(pa.table({"label": labels, "n": range(100)}), tmp_path / f"{part}.parquet")
    with open_large(str(tmp_path)) as large:
        assert len(set(survey(large, "1GB", seed=0).sample()["label"].to_pylist())) == 200


def test_a_column_of_an_iterator_may_have_no_value_at_first():
    parts = [{"label": [None, None], "n": [0, 1]}, {"n": [2], "label": ["late"]}, {"label": [None], "n": [3]}]
    with open_large(iter([pa.table(part) for part in parts])) as large:
        found = pa.concat_tables(batch.table for batch in large.batches())
    assert found.to_pydict() == {"label": [None, None, "late", None], "n": [0, 1, 2, 3]}


def test_duckdb_relations_are_taken(folder):
    duckdb = pytest.importorskip("duckdb")
    with open_large(duckdb.sql(f"select * from '{folder}/*.parquet' where count > 3")) as large:
        assert large.rows == (table()["count"].to_numpy() > 3).sum()


def test_a_fit_to_files_that_fit_into_memory_is_that_of_the_table_to_the_last_bit(tmp_path):
    rows = table(300)
    from_files = CTEM(**SMALL).fit(written(tmp_path / "parts", rows))
    from_table = CTEM(**SMALL).fit(rows)
    assert from_files.schema_ == from_table.schema_
    assert np.array_equal(from_files.score_samples(rows), from_table.score_samples(rows))
    assert from_files.data_hash_ == from_table.data_hash_


def test_answers_to_a_lazy_frame_are_polars_tables(tmp_path):
    model = CTEM(**SMALL).fit(pl.scan_parquet(written(tmp_path / "parts", table(300))))
    assert isinstance(model.sample(2), pl.DataFrame)


def test_a_streamed_fit_has_the_kinds_and_the_nats_of_one_in_memory(streamed, in_memory):
    assert streamed.n_samples_seen_ == in_memory.n_samples_seen_ == 24_000
    kinds = [[(c.name, c.kind) for c in model.schema_.describe()] for model in (streamed, in_memory)]
    assert kinds[0] == kinds[1]
    assert streamed.schema_.columns["side"].codec.values == in_memory.schema_.columns["side"].codec.values
    new = table(4000, seed=1)
    assert abs(streamed.score(new) - in_memory.score(new)) < 0.02


@pytest.mark.long
def test_a_streamed_fit_goes_on_from_its_checkpoint_to_the_same_bits(folder, streamed, tmp_path):
    for _ in range(2):  # the second finds everything learned, if its rows are the same
        model = CTEM(**QUICK, checkpoint=tmp_path / "run").fit(folder, memory=LITTLE)
    new = table(200, seed=1)
    assert np.array_equal(model.score_samples(new), streamed.score_samples(new))


def test_rows_are_shuffled_without_loss_and_held_out_ones_are_not_among_them():
    rows = pa.table({"n": np.arange(5000) + 0.5})
    frame = read_frame(rows)
    schema = Schema.fit(frame)
    x = schema.encode(frame).x.numpy().ravel()
    span = Span(2**62, 2**64 - 1)
    mine = span.of(np.arange(5000), seed=0)
    assert abs(mine.mean() - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 5000)
    with open_large(iter([rows])) as large, shuffled(large, schema, frame.table_type, span, 0) as file:
        found = np.array(file.rows).ravel()
    assert np.array_equal(np.sort(found), np.sort(x[mine]))
    correlation = np.corrcoef(found, np.arange(len(found)))[0, 1]
    assert abs(correlation) < 4 / np.sqrt(len(found))


@pytest.mark.parametrize("step", [0, 5, 30, 70, 400])
def test_what_a_pool_holds_depends_on_the_step_alone(step):
    rows = np.arange(1000, dtype=np.float32)[:, None]
    walked, jumped = (Pool(rows, size=400, every=10, window=100) for _ in range(2))
    x, y = walked.first(), jumped.first()
    seen = set()
    for each in range(0, step + 1, 5):
        walked(x, each)
        seen |= set(x.flatten().tolist())
    jumped(y, step)
    assert x.equal(y)
    assert len(set(y.flatten().tolist())) == 400
    assert len(seen) == min(1000, 400 + 100 * (step // 10))


def spoilt(folder, what):
    """A folder with one bad file in it."""
    rows = table(100)
    other = {
        "other columns": rows.rename_columns(["side", "length", "count"]),
        "a column less": rows.drop_columns(["size"]),
        "another type": rows.set_column(2, "count", rows["count"].cast("string")),
    }
    bad = folder / "bad.parquet"
    if what in other:
        pq.write_table(other[what], bad)
    elif what == "truncated":
        bad.write_bytes((folder / "0.parquet").read_bytes()[:-30])
    elif what == "damaged":
        content = bytearray((folder / "0.parquet").read_bytes())
        content[200:2000] = bytes(1800)
        bad.write_bytes(content)


BAD = {
    "other columns": r"bad\.parquet: expected the columns of .*0\.parquet; 'size' is not in this one",
    "a column less": r"bad\.parquet: expected the columns of .*0\.parquet; 'size' is not in this one",
    "another type": r"bad\.parquet: expected column 'count' of type int64, as in .*; got string",
    "truncated": r"bad\.parquet: is no whole Parquet file",
    "damaged": r"bad\.parquet: is no whole Parquet file",
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_in_a_folder_is_named_and_nothing_is_written(tmp_path, what):
    folder = written(tmp_path / "parts", table(400))
    spoilt(folder, what)
    with pytest.raises(ValueError, match=BAD[what]):
        CTEM(**SMALL).fit(folder)
    output = tmp_path / "out" / "m.ctem"
    output.parent.mkdir()
    result = CliRunner().invoke(app, ["fit", str(folder), "-o", str(output), "-q"])
    assert result.exit_code == 1
    assert "bad.parquet" in result.stderr
    assert not list(output.parent.iterdir())


@pytest.mark.parametrize(
    ("X", "error", "words"),
    [
        ("empty", FileNotFoundError, r"empty: expected files that end in \.parquet in this folder"),
        ("absent.parquet", FileNotFoundError, r"absent\.parquet: expected a Parquet file or folder; nothing"),
        ("what://is/this", OSError, r"what://is/this: cannot be opened \(Protocol not known: what\)"),
        (iter([]), ValueError, "expected a dataset or an iterator of tables; it gave none"),
        (iter([3]), TypeError, "table 0 is int"),
        (
            iter([table(5), table(5).drop_columns(["size"])]),
            ValueError,
            "table 1: expected the columns of table 0",
        ),
    ],
)
def test_what_cannot_be_opened_is_named(tmp_path, monkeypatch, X, error, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=words):
        CTEM(**SMALL).fit(X)


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (
            pl.LazyFrame({"a": [1.0]}).filter(pl.col("a") > 1),
            "^the LazyFrame: expected at least 1 row; got none",
        ),
        (pl.LazyFrame({"a": [1.0, np.inf]}), "^the LazyFrame: column 'a', row 1: expected a finite number"),
        (iter([table(0)]), "^the iterator of tables: expected at least 1 row; got none"),
        (
            ds.dataset(table(9)).filter(ds.field("count") < 0),
            "^the dataset: expected at least 1 row; got none",
        ),
    ],
)
def test_errors_name_what_came_and_no_temporary_file(X, words):
    with pytest.raises(ValueError, match=words):
        CTEM(**SMALL).fit(X)


def test_folders_in_a_folder_are_read_but_for_hidden_ones(tmp_path):
    for name in ("a", "_temporary", ".spark"):
        written(tmp_path / f"{name}.parquet", table(100), files=1)
    with open_large(tmp_path) as large:
        assert [file.path for file in large.files] == [str(tmp_path / "a.parquet" / "0.parquet")]


@pytest.mark.parametrize("memory", ["1MB", "much", -3, "0"])
def test_memory_is_checked_by_name(folder, memory):
    with pytest.raises(ValueError, match="memory: expected"):
        CTEM(**SMALL).fit(folder, memory=memory)


@pytest.mark.parametrize("steps", [1, 20])  # hardly a row trains, all do
def test_a_value_that_cannot_be_read_is_named_with_its_file_and_row(tmp_path, steps):
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    last = int(row_keys(np.arange(30_000), seed).argmax())  # not in the sample
    prices = [f"${i % 20_000}.50" for i in range(30_000)]
    prices[last] = "cheap"
    folder = written(tmp_path / "parts", pa.table({"price": prices}))
    file, row = divmod(last, 7500)
    words = rf"{file}\.parquet: column 'price', row {row}: expected .*count from row {file * 7500} of"
    with pytest.raises(ValueError, match=words):
        CTEM(**{**SMALL, "max_steps": steps, "batch_size": 1024}).fit(folder, memory="3.6MB")


def test_an_error_in_some_rows_of_a_batch_counts_all_of_them():
    rows = pa.table({"side": ["left", "right"] * 20})
    schema = Schema.fit(read_frame(rows), unknown="refuse")
    encode = Encoder(schema, read_frame(rows).table_type, text=False)
    new = pa.table({"side": ["left"] * 30 + ["down"] + ["right"] * 9})
    with pytest.raises(ValueError, match="column 'side' holds 'down' in row 30"):
        encode(new, np.arange(40) % 2 == 0)
    assert encode(new, np.arange(40) % 2 == 1).shape == (20, 1)


def test_infinity_is_named_with_its_file(tmp_path):
    rows = pa.table({"a": np.append(np.arange(99.0), np.inf)})
    with pytest.raises(ValueError, match=r"3\.parquet: column 'a', row 24: expected a finite number"):
        survey_of(written(tmp_path / "parts", rows))


def survey_of(folder):
    with open_large(folder) as large:
        return survey(large, "1GB", seed=0)


def test_the_command_line_fits_folders_of_parquet(folder, tmp_path):
    def fit(*more):
        path = tmp_path / "m.ctem"
        said = ["fit", str(folder), "-o", str(path), "--max-steps", "2", "--effort", "quick", *more]
        assert CliRunner().invoke(app, said).exit_code == 0
        return CTEM.load(path)

    assert fit("--memory", "20MB", "--drop", "size").n_samples_seen_ == 24_000
    assert fit("--max-rows", "100").n_samples_seen_ == 100
