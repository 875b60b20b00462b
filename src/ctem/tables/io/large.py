"""Tables that need not fit into memory: Parquet files and folders, Arrow datasets, lazy frames, streams of tables.

``open_large`` gives a ``LargeTable``, which is read a batch at a time, as often as it takes. What can be read only once
(an iterator), or would be computed anew each time (a lazy query), is written to a temporary Parquet file first. Paths
may be URLs: pyarrow's filesystems (s3, gs, hdfs, file) and those of fsspec (https and many others) open them, with
credentials from their usual places.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from ctem.tables.io.files import BATCH, as_arrow, unified

__all__ = ["Batch", "LargeTable", "is_large", "is_parquet", "open_large"]

SUFFIXES = (".parquet", ".pq")
PATIENCE = 30  # seconds for which a Google bucket is tried; pyarrow's own are 15 minutes
Schema = Any  # pyarrow.Schema
_NAMES = {"polars": "the LazyFrame", "duckdb": "the DuckDB relation", "pyarrow": "the dataset"}


class Batch(NamedTuple):
    """Rows of a large table, and the number of the first of them.

    >>> Batch("part-0.parquet", 100, None).start
    100
    """

    file: str
    start: int
    table: Any


class File(NamedTuple):
    """A Parquet file of a large table, the number of its first row, and how many it has.

    >>> File("part-0.parquet", 0, 10, None).rows
    10
    """

    path: str
    start: int
    rows: int
    fragment: Any


@dataclass(frozen=True)
class LargeTable:
    """A table in Parquet files, which have the same columns.

    Arguments:
        path: where it comes from, for messages.
        schema: pyarrow's names and types of the columns.
        files: in their order.
        library: in whose tables answers are wanted, "pyarrow" or "polars".

    >>> with open_large(iter([pa.table({"n": [1, 2]}), pa.table({"n": [3]})])) as large:
    ...     large.rows, [batch.table["n"].to_pylist() for batch in large.batches()]
    (3, [[1, 2, 3]])
    """

    path: str
    schema: Schema
    files: tuple[File, ...]
    library: str = "pyarrow"

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(file.rows for file in self.files)

    def without(self, names: Iterable[str]) -> LargeTable:
        """The same, less some columns."""
        dropped = list(names)
        if absent := [name for name in dropped if name not in self.schema.names]:
            raise ValueError(f"{self.path}: expected a column {absent[0]!r}; got {self.schema.names}.")
        kept = [field for field in self.schema if field.name not in dropped]
        return replace(self, schema=pa.schema(kept))

    def split(self, most: int) -> LargeTable:
        """The same with files cut into parts of about ``most`` rows, which are whole row groups."""
        parts = tuple(part for file in self.files for part in _parts(file, most))
        return replace(self, files=parts)

    def batches(self, first: int = 0, every: int = 1) -> Iterator[Batch]:
        """All rows, at most ``BATCH`` at a time; with ``every`` > 1 those of each such file, from the first on."""
        for file in self.files[first::every]:
            start = file.start
            for table in _read(file, self.schema):
                yield Batch(file.path, start, table)
                start += len(table)
            if start - file.start != file.rows:
                raise ValueError(f"{file.path}: expected {file.rows} rows; got {start - file.start}.")

    def as_came(self, table: Any) -> Any:
        """Rows in the library of what came in."""
        return import_module("polars").from_arrow(table) if self.library == "polars" else table


def is_large(X: Any) -> bool:
    """Whether X is something that ``open_large`` opens: Parquet, an Arrow dataset, a lazy frame, an iterator of tables.

    >>> is_large("rows.parquet"), is_large("rows.csv"), is_large(iter([])), is_large([[1.0, 2.0]])
    (True, False, True, False)
    """
    if isinstance(X, str | os.PathLike):
        return is_parquet(os.fspath(X))
    return isinstance(X, Iterator | LargeTable) or _library(X) != "" or hasattr(X, "read_next_batch")


def is_parquet(path: str) -> bool:
    """Whether a path is a folder, a URL or a Parquet file by its name, which can be read more than once.

    >>> is_parquet("rows.parquet"), is_parquet("s3://bucket/rows"), is_parquet("rows.csv")
    (True, True, False)
    """
    return "://" in path or path.lower().endswith(SUFFIXES) or Path(path).is_dir()


@contextmanager
def open_large(X: Any) -> Iterator[LargeTable]:
    """The large table that X names or streams; temporary files are gone afterwards.

    Arguments:
        X: a Parquet file or folder (path or URL), a ``pyarrow.dataset.Dataset``, a polars LazyFrame, a DuckDB relation,
            a ``pyarrow.RecordBatchReader``, an iterator of tables of any library, or a LargeTable.

    >>> import polars as pl
    >>> with open_large(pl.LazyFrame({"n": [1, 2, 3]}).filter(pl.col("n") > 1)) as large:
    ...     large.rows
    2
    """
    if isinstance(X, str | os.PathLike | LargeTable):
        yield X if isinstance(X, LargeTable) else _opened(os.fspath(X))
        return
    if _library(X) == "pyarrow" and (fragments := _fragments(X)) is not None:
        yield _checked("the dataset", fragments, X.schema)
        return
    library = _library(X)
    with tempfile.TemporaryDirectory(prefix="ctem-") as folder:  # for what can be read once
        if library == "polars":
            X.sink_parquet(os.path.join(folder, "rows.parquet"), row_group_size=BATCH)
        elif library == "duckdb":
            X.write_parquet(os.path.join(folder, "rows.parquet"))
        else:
            _write_tables(X.to_batches() if library == "pyarrow" else X, folder)
        large = _opened(folder, _NAMES.get(library, "the iterator of tables"))
        yield replace(large, library="polars" if library == "polars" else "pyarrow")


def _library(X: Any) -> str:
    """The library of a dataset or query that is not a table yet; empty for anything else."""
    kinds = {"Dataset": "pyarrow", "LazyFrame": "polars", "DuckDBPyRelation": "duckdb"}
    modules = {kinds[c.__name__]: c.__module__ for c in type(X).__mro__ if c.__name__ in kinds}
    return next((library for library, module in modules.items() if library in module), "")


def _write_tables(tables: Iterable[Any], folder: str) -> None:
    """One file, and another from where on columns have values that had none before, since these have no type."""
    writer: Any = None
    schema: Schema = None
    try:
        for number, given in enumerate(tables):
            table = (
                pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else _arrow(number, given)
            )
            if schema is not None:
                _check_same(f"table {number}", table.schema, "table 0", schema)
            fields = schema or table.schema.remove_metadata()
            null = pa.types.is_null  # a column without values so far has the type of those that come
            known = pa.schema([table.schema.field(f.name) if null(f.type) else f for f in fields])
            if writer is not None and known != schema:
                writer.close()
            if known != schema:
                path, schema = os.path.join(folder, f"rows-{number:09d}.parquet"), known
                writer = pq.ParquetWriter(path, schema)
            writer.write_table(table.select(schema.names).cast(schema), row_group_size=BATCH)
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise ValueError("X: expected a dataset or an iterator of tables; it gave none.")


def _arrow(number: int, table: Any) -> Any:
    if not hasattr(table, "columns") and not hasattr(table, "column_names"):
        raise TypeError(
            f"X: expected an iterator of pandas, polars or pyarrow tables; table {number} is {type(table).__name__}."
        )
    names = table.column_names if hasattr(table, "column_names") else [str(name) for name in table.columns]
    return as_arrow(table, names)


def _opened(path: str, name: str = "") -> LargeTable:
    """The Parquet file or folder at a path or URL; messages have its name instead, if it has one."""
    with _reachable(path):
        filesystem, inner = _filesystem(path)
        files = _files(path, filesystem, inner)
    root = inner if files != [inner] else inner.rpartition("/")[0]
    how = {"filesystem": filesystem, "format": "parquet", "partitioning": "hive", "partition_base_dir": root}
    with _naming(files[0]):
        dataset = import_module("pyarrow.dataset").dataset(files, **how)
    return _checked(name or path, list(dataset.get_fragments()), dataset.schema, name)


def _filesystem(path: str) -> tuple[Any, str]:
    """The filesystem of a path or URL, and the path within it."""
    fs = pa.fs
    scheme = path.partition("://")[0] if "://" in path else ""
    if not scheme:
        return fs.LocalFileSystem(), str(Path(path).absolute())
    if scheme in ("gs", "gcs") and "retry_limit_seconds=" not in path:
        path += f"{'&' if '?' in path else '?'}retry_limit_seconds={PATIENCE}"
    if scheme in ("file", "s3", "gs", "gcs", "hdfs", "abfs", "abfss"):
        return fs.FileSystem.from_uri(path)
    made, inner = import_module("fsspec").core.url_to_fs(path)
    return fs.PyFileSystem(fs.FSSpecHandler(made)), inner


def _files(path: str, filesystem: Any, inner: str) -> list[str]:
    """The Parquet files at a path, but for what Spark and others keep in _temporary or .hidden."""
    facts = filesystem.get_file_info(inner)
    if facts.type == pa.fs.FileType.NotFound:
        raise FileNotFoundError(f"{path}: expected a Parquet file or folder; nothing is there.")
    if facts.type == pa.fs.FileType.File:
        return [inner]
    inside = filesystem.get_file_info(pa.fs.FileSelector(inner, recursive=True))
    named = sorted(file.path for file in inside if file.is_file and file.path.lower().endswith(SUFFIXES))
    files = [name for name in named if not re.search(r"(^|/)[_.]", name.removeprefix(inner))]
    if not files:
        raise FileNotFoundError(
            f"{path}: expected files that end in .parquet in this folder; found none among {len(inside)} entries."
        )
    return files


def _fragments(dataset: Any) -> list[Any] | None:
    """The Parquet files of an Arrow dataset; None if it is made of anything else, or filtered."""
    if getattr(getattr(dataset, "format", None), "default_extname", "") != "parquet":
        return None
    try:
        return list(dataset.get_fragments())
    except ValueError:  # pyarrow's word for a filtered dataset
        return None


def _checked(path: str, fragments: list[Any], schema: Schema, name: str = "") -> LargeTable:
    """The files as one table, after a look at the columns and the number of rows of each; a name is that of all."""
    files, start, types, reference = [], 0, dict[str, Any](), None
    for fragment in fragments:
        with _naming(fragment.path):
            here, rows = fragment.physical_schema, fragment.count_rows()
        reference = reference or (fragment.path, here)
        _check_same(fragment.path, here, *reference)
        for field in here:
            if not pa.types.is_null(field.type):
                types.setdefault(field.name, field.type)
        files.append(File(name or fragment.path, start, rows, fragment))
        start += rows
    if not start:
        raise ValueError(f"{path}: expected at least 1 row; got none.")
    fields = [field.with_type(types.get(field.name, field.type)) for field in schema]
    return LargeTable(path, pa.schema(fields), tuple(files))


def _check_same(path: str, schema: Schema, first: str, reference: Schema) -> None:
    """An error if a file has other columns than the first one, or of other types; a column without values has none."""
    other = [name for name in reference.names if name not in schema.names]
    other += [name for name in schema.names if name not in reference.names]
    if other or len(schema.names) != len(reference.names):
        name = other[0] if other else schema.names[0]
        where = "not in" if other and name in reference.names else "only in"
        raise ValueError(
            f"{path}: expected the columns of {first}; {name!r} is {where} this one. "
            "Leave the file out, or give all files the same columns."
        )
    null = pa.types.is_null
    for field in schema:
        known = reference.field(field.name).type
        if field.type != known and not null(field.type) and not null(known):
            raise ValueError(
                f"{path}: expected column {field.name!r} of type {known}, as in {first}; got {field.type}. "
                "Write it in one type."
            )


def _parts(file: File, most: int) -> Iterator[File]:
    groups, rows, start = list[int](), 0, file.start
    for group in file.fragment.row_groups:
        groups.append(group.id)
        rows += group.num_rows
        if rows >= most:
            yield File(file.path, start, rows, file.fragment.subset(row_group_ids=groups))
            groups, rows, start = [], 0, start + rows
    if rows:
        yield File(file.path, start, rows, file.fragment.subset(row_group_ids=groups))


def _read(file: File, schema: Schema) -> Iterator[Any]:
    """The rows of a file, joined to tables of up to ``BATCH`` rows."""
    dataset = import_module("pyarrow.dataset")  # which brings pandas
    # a column of a row group is read as it is needed, not as a whole
    frugal = dataset.ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)
    with _naming(file.path):
        batches = file.fragment.to_batches(
            schema=schema,
            columns=schema.names,
            batch_size=BATCH,
            batch_readahead=1,
            fragment_readahead=1,
            use_threads=False,
            fragment_scan_options=frugal,
        )
        held = list[Any]()
        for batch in batches:
            held.append(batch)
            if sum(map(len, held)) >= BATCH:
                yield unified(pa.Table.from_batches(held, schema))
                held = []
        if any(map(len, held)):
            yield unified(pa.Table.from_batches(held, schema))


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """What pyarrow raises of a file, as an error that names it."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        line = " ".join(str(error).split())
        text = path.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt", ".json"))
        advice = " Read other files into a table first, e.g. by pandas.read_csv." if text else ""
        raise ValueError(f"{path}: is no whole Parquet file, or cannot be read ({line}).{advice}") from None


@contextmanager
def _reachable(path: str) -> Iterator[None]:
    """What filesystems raise, as an error that names the path."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(str(error) if path in str(error) else f"{path}: nothing is there.") from None
    except ImportError as error:
        raise ImportError(f"{path}: {error}. pip install what is missing, or copy the file here.") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        line = " ".join(str(error).split()) or type(error).__name__
        raise OSError(
            f"{path}: cannot be opened ({line}). Are the address and the credentials right?"
        ) from None
