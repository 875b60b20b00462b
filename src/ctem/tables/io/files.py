"""Tables in files and pipes: CSV, Parquet and Arrow, read and written a bounded number of rows at a time.

``open_source`` gives tables of ``BATCH`` rows whatever the layout of the file, ``open_sink`` takes them; "-" is
standard input or output. A file appears when it is whole (``ctem.persistence.atomic``). Cells of CSV are text
(``ctem.tables.io.csv_text``), in which ``ctem.tables.io.recognition`` finds numbers, dates, times and gaps.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import tempfile
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctem.persistence.atomic import replacing
from ctem.tables.io.csv_files import Dialect, in_utf8, read_csv
from ctem.tables.io.csv_text import CsvWriter, typed, typed_as
from ctem.tables.io.frame import from_records
from ctem.tables.io.terminal import PrintableStream

__all__ = ["Sink", "Source", "as_arrow", "open_sink", "open_source", "read_path", "reservoir", "unified"]

BATCH = 2**16  # rows at a time
SUFFIXES = {
    **{".csv": "csv", ".parquet": "parquet", ".pq": "parquet"},
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "arrow"),
}
MAX_ROWS = 1_000_000  # of a table that is read once, for a fit
Table = Any  # pyarrow.Table


@dataclass(frozen=True)
class Source:
    """A table that is read once, from its first row to its last.

    Arguments:
        path: where it comes from, for messages.
        names: of the columns.
        rows: how many there are, where that is known beforehand.
        text: its cells are text, as written (CSV).
        batches: pyarrow record batches of any size.

    >>> batches = pa.table({"n": range(5)}).to_batches(max_chunksize=2)
    >>> [len(table) for table in Source("demo", ["n"], 5, False, batches).tables(4)]
    [4, 1]
    """

    path: str
    names: list[str]
    rows: int | None
    text: bool
    batches: Iterable[Any]

    def typed_as(self, table: Table, types: Mapping[str, Any]) -> Table:
        """Rows of this source in types, where their cells are text."""
        if not self.text:
            return table
        try:
            return typed_as(table, types)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None

    def tables(self, size: int) -> Iterator[Table]:
        """The rows as tables of ``size`` rows, the last one shorter; a table without rows is an error."""
        held, count, seen = list[Any](), 0, False
        with _readable(self.path):
            for batch in self.batches:
                while len(batch):
                    part = batch.slice(0, size - count)
                    batch = batch.slice(len(part))
                    held.append(part)
                    count, seen = count + len(part), True
                    if count == size:
                        yield unified(pa.Table.from_batches(held))
                        held, count = [], 0
        if held:
            yield unified(pa.Table.from_batches(held))
        if not seen:
            raise ValueError(f"{self.path}: expected at least 1 row; got none.")


@contextmanager
def open_source(path: str, dialect: Dialect | None = None) -> Iterator[Source]:
    """The table in a file, or on standard input for "-"; the format is read off its first bytes.

    Arguments:
        path: a CSV file (also gzipped), a Parquet file, an Arrow file or stream.
        dialect: how a CSV file is laid out, where that is not clear.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "t.csv").write_text("a,b\\n1,x\\n,y\\n")
    ...     with open_source(f"{folder}/t.csv") as source:
    ...         [table.to_pylist() for table in source.tables(BATCH)]
    [[{'a': '1', 'b': 'x'}, {'a': None, 'b': 'y'}]]
    """
    name = "standard input" if path == "-" else path
    with ExitStack() as stack:
        stream: Any = _standard(sys.stdin, name) if path == "-" else stack.enter_context(_existing(path))
        if stream.peek(2)[:2] == b"\x1f\x8b":
            stream = stack.enter_context(gzip.open(stream))
        with _readable(name):
            source = _opened(name, stream, dialect or Dialect(), stack)
        yield source


def read_path(X: Any, types: Mapping[str, Any] | None = None, seed: int = 0, **how: Any) -> Any:
    """The table in a file, where X is a path; a list of dicts as a table; anything else as it is.

    Arguments:
        types: that the cells of a CSV file must have, as ``text_types`` gives them. When None they are read off the
            cells, and of more than ``MAX_ROWS`` rows a random sample is taken.
        seed: of that sample.
        how: decimal and kinds, as of ``ctem.tables.io.csv_text.typed``.

    >>> read_path([[1.0, 2.0]])
    [[1.0, 2.0]]
    """
    if not isinstance(X, str | os.PathLike):
        return from_records(X)
    with open_source(os.fspath(X)) as source:
        if types is not None:
            return source.typed_as(_joined(list(source.tables(BATCH))), types)
        table, rows = reservoir(source.tables(BATCH), MAX_ROWS, seed)
        if rows > len(table):
            text = f"{source.path}: {rows} rows; a random sample of {len(table)} is used (seed {seed})."
            warnings.warn(text, UserWarning, stacklevel=2)
        return typed(table, **how) if source.text else table


class Sink:
    """A file or pipe that tables are written to; made by ``open_sink``.

    The first table determines the columns. In CSV and Arrow files categories are written as plain text; Parquet and
    Arrow streams keep them. In CSV only cells that need it are in quotes.

    >>> import io
    >>> out = io.BytesIO()
    >>> sink = Sink(out, "csv")
    >>> sink.write(pa.table({"a": [1, None], "b": ["x", "y, z"]}))
    >>> sink.close()
    >>> print(out.getvalue().decode())
    a,b
    1,x
    ,"y, z"
    """

    def __init__(self, stream: Any, format: str):
        self.stream, self.format = stream, format
        self.writer: Any = None
        self.schema: Any = None

    def write(self, table: Table) -> None:
        """Write the rows of a table."""
        if self.format in ("csv", "arrow"):  # categories as plain values
            types = ((f.name, f.type) for f in table.schema)
            plain = [(n, t.value_type if pa.types.is_dictionary(t) else t) for n, t in types]
            table = table.cast(pa.schema(plain))
        if self.writer is None:
            self.schema, self.writer = table.schema, self._opened(table.schema)
        self.writer.write_table(table.cast(self.schema))

    def close(self) -> None:
        """Write what is left, and the end."""
        if self.writer is not None:
            self.writer.close()
        self.stream.flush()

    def _opened(self, schema: Any) -> Any:
        if self.format == "csv":
            return CsvWriter(self.stream, schema.names)
        if self.format == "parquet":
            return pq.ParquetWriter(self.stream, schema)
        return (pa.ipc.new_file if self.format == "arrow" else pa.ipc.new_stream)(self.stream, schema)


@contextmanager
def open_sink(path: str, format: str | None = None) -> Iterator[Sink]:
    """Where tables are written: a file, which appears when it is whole, or standard output for "-".

    Arguments:
        path: its ending is the format.
        format: "csv", "parquet" or "arrow"; on standard output CSV when left out.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open_sink(f"{folder}/t.parquet") as sink:
    ...         sink.write(pa.table({"a": [1, 2]}))
    ...     with open_source(f"{folder}/t.parquet") as source:
    ...         source.rows
    2
    """
    if path == "-":
        made, stream = format or "csv", _standard(sys.stdout, "standard output")
        if made == "csv" and sys.stdout.isatty():
            stream = PrintableStream(stream)
        sink = Sink(stream, "stream" if made == "arrow" else made)
        yield sink
        sink.close()
        return
    made = format or _named_format(path)
    with replacing(path) as file:
        sink = Sink(file, made)
        try:
            yield sink
        except BaseException:
            with suppress(Exception):  # the first error counts
                sink.close()  # else its writer tries later, and complains
            raise
        sink.close()


def reservoir(tables: Iterable[Table], limit: int, seed: int) -> tuple[Table, int]:
    """At most ``limit`` rows, every set of that size equally likely, in their order; and how many rows there were.

    Every row draws a number in [0, 1) and the rows with the smallest stay: in memory are never more than about
    ``limit`` rows and two tables.

    >>> table, total = reservoir([pa.table({"n": range(k, k + 50)}) for k in (0, 50)], limit=3, seed=0)
    >>> len(table), total
    (3, 100)
    """
    rng, total, cutoff = np.random.default_rng(seed), 0, 1.0
    kept, keys = list[Table](), list[Any]()
    for table in tables:
        drawn = rng.random(len(table))
        total += len(table)
        near = drawn < cutoff
        kept.append(table if near.all() else table.filter(pa.array(near)))
        keys.append(drawn[near])
        if sum(map(len, keys)) > limit:
            key = np.concatenate(keys)
            chosen = np.sort(np.argpartition(key, limit - 1)[:limit])
            kept, keys = [_joined(kept).take(pa.array(chosen))], [key[chosen]]
            cutoff = float(keys[0].max())
    return _joined(kept), total


def as_arrow(X: Any, names: Iterable[str]) -> Table:
    """A NumPy array, pandas, polars or pyarrow table as a pyarrow table with the given column names.

    >>> as_arrow(np.array([[1, 2], [3, 4]]), ["a", "b"]).to_pydict()
    {'a': [1, 3], 'b': [2, 4]}
    """
    if isinstance(X, np.ndarray):
        return pa.table([pa.array(column) for column in X.T], names=list(names))
    table = X if isinstance(X, pa.Table) else X.to_arrow() if hasattr(X, "to_arrow") else None
    if table is None:
        table = pa.Table.from_pandas(X, preserve_index=False)
    return table.rename_columns(list(names))


def unified(table: Table) -> Table:
    """The table with one dictionary for all cells of a column, and in types that pyarrow can join and choose rows of.

    Categories of a part may be numbered by bytes, which those of the whole may outgrow; views of text, which polars
    writes, cannot be taken from.

    >>> few = pa.array(["x", "y"]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
    >>> unified(pa.table({"a": few, "b": pa.array(["x", "y"], pa.string_view())})).schema.types
    [DictionaryType(dictionary<values=string, indices=int32, ordered=0>), DataType(large_string)]
    """
    fields = [field.with_type(_wide(field.type)) for field in table.schema]
    return table.cast(pa.schema(fields, table.schema.metadata)).unify_dictionaries()


def _wide(kind: Any) -> Any:
    if pa.types.is_dictionary(kind):
        index = pa.int32() if kind.index_type.bit_width < 32 else kind.index_type
        return pa.dictionary(index, _wide(kind.value_type), kind.ordered)
    return pa.large_string() if str(kind) == "string_view" else kind


def _existing(path: str) -> Any:
    """A file that is there, or a pipe or device, open for reading."""
    file = Path(path)
    if file.is_dir() or not file.exists():
        what = "a folder" if file.is_dir() else "no such file"
        raise FileNotFoundError(f"{path}: expected a CSV, Parquet or Arrow file; {what} is there.")
    return file.open("rb")


def _standard(stream: Any, name: str) -> Any:
    if stream is None:
        raise OSError(f"{name} is closed; name a file.")
    return stream.buffer


def _named_format(path: str) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: expected a name that ends in .csv, .parquet or .arrow, or --format.")
    return SUFFIXES[suffix]


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """What readers raise, as one error that names the file."""
    try:
        yield
    except pa.ArrowException as error:
        advice = f". {in_utf8()}." if "invalid UTF8" in str(error) else ""
        raise ValueError(f"{name}: {_line(error)}{advice}") from None
    except UnicodeError as error:
        raise ValueError(f"{name}: expected text in the encoding that was named ({error}).") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{name}: the compressed file is cut short or damaged ({error}).") from None
    except OSError as error:  # what pyarrow raises for a damaged Arrow file
        raise OSError(f"{name}: cannot be read ({_line(error)}).") from None


def _opened(name: str, stream: Any, dialect: Dialect, stack: ExitStack) -> Source:
    start = stream.peek(6)[:6]
    if not start:
        raise ValueError(f"{name}: expected a table; got nothing.")
    text = not start.startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"))
    batches: Iterable[Any]
    rows = None
    if text:
        names, batches = read_csv(name, stream, dialect)
    else:
        dialect.check_unused(name)
    if start[:4] == b"PAR1":
        # with a small buffer a column of a row group is read as it is needed, not as a whole
        file = pq.ParquetFile(_seekable(stream, stack), pre_buffer=False, buffer_size=2**18)
        names, rows, batches = file.schema_arrow.names, file.metadata.num_rows, file.iter_batches(BATCH)
    elif start == b"ARROW1":
        reader = pa.ipc.open_file(_seekable(stream, stack))
        names, batches = reader.schema.names, map(reader.get_batch, range(reader.num_record_batches))
    elif not text:
        reader = pa.ipc.open_stream(stream)
        names, batches = reader.schema.names, reader
    twice = [column for column in names if names.count(column) > 1]
    if twice:
        raise ValueError(
            f"{name}: expected each column name once; {twice[0]!r} comes {names.count(twice[0])} times. Rename them."
        )
    return Source(name, names, rows, text, batches)


def _seekable(stream: Any, stack: ExitStack) -> Any:
    """The stream; one that cannot go back is put into a temporary file first."""
    if stream.seekable():
        return stream
    spooled = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    shutil.copyfileobj(stream, spooled)
    spooled.seek(0)
    return spooled


def _joined(tables: list[Table]) -> Table:
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
