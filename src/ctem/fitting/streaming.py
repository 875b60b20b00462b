r"""A fit to more rows than fit into memory: two passes over a large table, and a pool that training draws from.

The first pass makes a sketch (``ctem.tables.encoding.sketches``): a uniform sample, from which kinds, lattices, values
and margins are inferred as those of any table, and the values that it missed. Rows with the very smallest keys are held
out and never train. The second pass encodes the others, no more than training can draw, and writes them in random order
to a temporary file. Every cell is checked, in all rows: numbers in the first pass, and text that stands for numbers,
dates or times, if its values are too many to be counted, in the second. Training draws from a pool in memory, part of
which is replaced by the next rows of the file after every look at the held-out loss.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.tables.encoding.sketches import Sketch, row_keys
from ctem.tables.io.frame import Frame, TableType, read_frame
from ctem.tables.io.large import Batch, LargeTable
from ctem.tables.io.recognition import read_written
from ctem.tables.io.rows import taken
from ctem.tables.schema import Schema
from ctem.training.progress import showing

__all__ = [
    "Encoder",
    "Pool",
    "Shuffled",
    "Span",
    "held_out_span",
    "located",
    "memory_bytes",
    "sample_limit",
    "shuffled",
    "survey",
]

MOST = 2**20  # rows of the sample and of the pool
FEWEST = 20_000  # rows of the pool, below which training is like that of a small table
HELD = 10_000  # rows that are held out
WINDOW = 2**16  # rows that are replaced at a time
BESIDE = 100  # bytes a row, and
EACH = 45  # bytes a cell, of all that a fit makes of a row
Jitter = Callable[[Tensor, torch.Generator], Tensor]


def memory_bytes(memory: str | float) -> int:
    """Bytes from a number of them, or from text such as "500MB" or "2 GB".

    >>> memory_bytes("2 GB"), memory_bytes(10**9)
    (2000000000, 1000000000)
    """
    units = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
    match = re.fullmatch(r"\s*([0-9.eE+]+)\s*([kmgt]?)i?b?\s*", str(memory), re.IGNORECASE)
    try:
        value = float(match[1]) * units[match[2].lower()] if match else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < 2**60:
        raise ValueError(f"memory: expected a number of bytes, or text such as '2GB'; got {memory!r}.")
    return int(value)


def sample_limit(memory: str | float, row_bytes: float, columns: int) -> int:
    """How many rows may be in memory at once, at most ``MOST``; an error if they are too few to learn from.

    >>> sample_limit("100MB", row_bytes=120.0, columns=15)
    108108
    """
    row = 1.25 * row_bytes + EACH * columns + BESIDE
    limit = int(memory_bytes(memory) / row)
    if limit < FEWEST:
        raise ValueError(
            f"memory: expected at least {FEWEST * row / 1e6:.0f}MB for {columns} columns of these types, which is "
            f"{FEWEST} rows; got {memory!r}."
        )
    return min(limit, MOST)


def survey(
    large: LargeTable, memory: str | float, seed: int, progress: bool = False, rank: int = 0, ranks: int = 1
) -> Sketch:
    """The first pass: the sketch of a large table.

    Arguments:
        memory: for rows in memory.
        seed: of the sample.
        progress: show a bar of rows.
        rank, ranks: take every such file only; the sketches merge.

    >>> import pyarrow as pa
    >>> from ctem.tables.io.large import open_large
    >>> with open_large(iter([pa.table({"n": range(50)})])) as large:
    ...     survey(large, "1GB", seed=0).rows
    50
    """
    first = next(large.batches()).table
    sketch = Sketch(sample_limit(memory, first.nbytes / len(first), len(large.schema)), seed)
    total = sum(file.rows for file in large.files[rank::ranks])
    with _bar("reading", total, progress) as advance:
        for batch in large.batches(rank, ranks):
            with located(batch):
                sketch.add(batch.table, batch.start)
            advance(len(batch.table))
    return sketch


class Span(NamedTuple):
    """The rows whose keys are above ``low`` and at most ``high``: a uniform part of a table.

    >>> Span(0, 2**64 - 1).of(np.array([3, 4]), seed=0)
    array([ True,  True])
    """

    low: int
    high: int

    def of(self, rows: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
        """Which row numbers belong to it."""
        keys = row_keys(rows, seed)
        return np.asarray((keys > np.uint64(self.low)) & (keys <= np.uint64(self.high)))

    def part(self, number: int, parts: int) -> Span:
        """One of so many parts of the span.

        >>> Span(0, 100).part(1, 4)
        Span(low=25, high=50)
        """
        size = self.high - self.low
        return Span(self.low + size * number // parts, self.low + size * (number + 1) // parts)


def held_out_span(sketch: Sketch) -> Span:
    """The rows of the sample that are held out, those with the smallest keys.

    >>> import pyarrow as pa
    >>> sketch = Sketch(limit=10_000)
    >>> sketch.add(pa.table({"n": range(500)}), start=0)
    >>> int(held_out_span(sketch).of(sketch.sampled(), seed=0).sum())
    50
    """
    numbers = sketch.sampled()
    count = max(1, min(HELD, len(numbers) // 10))
    keys = row_keys(numbers, sketch.seed)
    return Span(0, int(np.partition(keys, count - 1)[count - 1]))


class Shuffled(NamedTuple):
    """Encoded rows on disk in random order (n, d), and the SHA-256 of them.

    >>> Shuffled(np.zeros((2, 3), np.float32), "").rows.shape
    (2, 3)
    """

    rows: NDArray[np.float32]
    digest: str


@contextmanager
def shuffled(
    large: LargeTable,
    schema: Schema,
    table_type: TableType,
    span: Span,
    seed: int,
    progress: bool = False,
    text: Collection[str] = (),
) -> Iterator[Shuffled]:
    """The second pass: the rows of a span, encoded and in random order, in a file that is gone afterwards.

    Every row goes to a bucket by its key, at a place that is known beforehand, since keys need no data; then each
    bucket is put in random order by itself.

    Arguments:
        large: the table.
        schema: its columns.
        table_type: how its text is read.
        span: which rows.
        seed: of the keys and the order.
        progress: show a bar of rows.
        text: columns whose text the first pass could not read as a whole; every cell of them is, in all rows.

    >>> import pyarrow as pa
    >>> from ctem.tables.io.large import open_large
    >>> part = pa.table({"n": np.arange(0.0, 50.0, 0.5)})
    >>> frame = read_frame(part)
    >>> with open_large(iter([part])) as large:
    ...     with shuffled(large, Schema.fit(frame), frame.table_type, Span(0, 2**64 - 1), seed=0) as file:
    ...         file.rows.shape
    (100, 1)
    """
    ends = _bucket_ends(large.rows, span, seed)
    size = int(ends[-1]) * schema.space.dim * 4
    if not size:
        raise ValueError(f"{large.path}: expected rows to train on; all of {large.rows} are held out.")
    with tempfile.TemporaryDirectory(prefix="ctem-") as folder:
        if shutil.disk_usage(folder).free < 1.05 * size:
            raise OSError(
                f"{folder}: the encoded rows need {size / 1e6:.0f}MB there; set TMPDIR to a folder with more room."
            )
        shape = int(ends[-1]), schema.space.dim
        rows = np.memmap(os.path.join(folder, "rows"), np.float32, "w+", shape=shape)
        _fill(rows, ends, large, Encoder(schema, table_type, bool(text)), span, seed, progress)
        yield Shuffled(rows, _mixed(rows, ends, seed))


class Encoder(NamedTuple):
    """Encodes rows of a batch; where text is left to read, that of all its rows is read.

    >>> import pyarrow as pa
    >>> part = pa.table({"n": np.arange(0.0, 50.0, 0.5)})
    >>> frame = read_frame(part)
    >>> Encoder(Schema.fit(frame), frame.table_type, text=False)(part, np.arange(100) < 3).shape
    (3, 1)
    """

    schema: Schema
    table_type: TableType
    text: bool

    def __call__(self, table: Any, chosen: NDArray[np.bool_]) -> NDArray[np.float32]:
        """The rows of a mask, encoded; an error counts rows of the whole batch."""
        frame = taken(self._read(table), chosen) if self.text else self._read(table.filter(chosen))
        try:
            return np.asarray(self.schema.encode(frame).x.numpy())
        except (ValueError, TypeError):
            self.schema.encode(self._read(table))  # the same error, with the number of the row
            raise

    def _read(self, table: Any) -> Frame:
        return read_written(read_frame(table), self.table_type)


def _bucket_ends(rows: int, span: Span, seed: int) -> NDArray[np.int64]:
    """Where each bucket of about ``WINDOW`` rows ends, (buckets,)."""
    buckets = max(1, rows // WINDOW)
    counts = np.zeros(buckets, np.int64)
    for start in range(0, rows, MOST):
        numbers = np.arange(start, min(start + MOST, rows))
        counts += np.bincount(
            _bucket(numbers[span.of(numbers, seed)], span, seed, buckets), minlength=buckets
        )
    return np.cumsum(counts)


def _bucket(numbers: NDArray[np.int64], span: Span, seed: int, buckets: int) -> NDArray[np.int64]:
    above = (row_keys(numbers, seed) - np.uint64(span.low)).astype(np.float64)
    return np.minimum((above / (span.high - span.low) * buckets).astype(np.int64), buckets - 1)


def _fill(
    rows: NDArray[np.float32],
    ends: NDArray[np.int64],
    large: LargeTable,
    encoder: Encoder,
    span: Span,
    seed: int,
    progress: bool,
) -> None:
    place = np.concatenate([[0], ends[:-1]])
    with _bar("encoding", large.rows, progress) as advance:
        for batch in large.batches():
            numbers = np.arange(batch.start, batch.start + len(batch.table))
            chosen = span.of(numbers, seed)
            with located(batch):
                x = encoder(batch.table, chosen)
            if len(x):
                bucket = _bucket(numbers[chosen], span, seed, len(ends))
                order = np.argsort(bucket, kind="stable")
                buckets, first, counts = np.unique(bucket[order], return_index=True, return_counts=True)
                within = np.arange(len(order)) - np.repeat(first, counts)
                rows[place[bucket[order]] + within] = x[order]
                place[buckets] += counts
            advance(len(batch.table))


def _mixed(rows: NDArray[np.float32], ends: NDArray[np.int64], seed: int) -> str:
    """Put every bucket in random order; the SHA-256 of all rows."""
    digest, rng = hashlib.sha256(), np.random.default_rng(seed)
    for low, high in zip(np.concatenate([[0], ends[:-1]]), ends, strict=True):
        rows[low:high] = rows[low:high][rng.permutation(high - low)]
        digest.update(rows[low:high].tobytes())
    return digest.hexdigest()


@dataclass
class Pool:
    """Rows in memory, part of which is replaced by the next rows of a file after every look at the held-out loss.

    Before look l a slot of ``window`` rows holds the latest window of the file that fell to it, of the slots + l that
    have come in so far: a function of l alone. After the last row comes the first.

    Arguments:
        rows: all rows in random order (n, d).
        size: rows in memory, at most.
        every: steps between looks.
        jitter: moves dequantised cells within their width, as ``fit_anyorder`` does with the first rows.
        seed: of the jitter.

    >>> rows = np.arange(12, dtype=np.float32)[:, None]
    >>> pool = Pool(rows, size=4, every=10, window=2)
    >>> x = pool.first()
    >>> for step in (0, 10, 20):
    ...     pool(x, step)
    ...     x.flatten().tolist()
    [0.0, 1.0, 2.0, 3.0]
    [4.0, 5.0, 2.0, 3.0]
    [4.0, 5.0, 6.0, 7.0]
    """

    rows: NDArray[np.float32]
    size: int
    every: int
    jitter: Jitter | None = None
    seed: int = 0
    window: int = WINDOW

    def __post_init__(self) -> None:
        self.window = max(1, min(self.window, self.size // 4 if self.window == WINDOW else self.size))
        self.windows = max(1, len(self.rows) // self.window)
        self.slots = max(1, min(self.size // self.window, self.windows))
        self.held = list(range(self.slots))

    def first(self) -> Tensor:
        """The rows that are in memory at first (size, d)."""
        if self.slots == self.windows:  # all of them
            return torch.from_numpy(np.array(self.rows))
        return torch.from_numpy(np.array(self.rows[: self.slots * self.window]))

    def __call__(self, x: Tensor, step: int) -> None:
        """Bring x (size, d) to what it holds at a step."""
        if self.slots == self.windows:
            return
        newest = self.slots - 1 + step // self.every
        for slot in range(self.slots):
            wanted = newest - (newest - slot) % self.slots
            if wanted != self.held[slot]:
                x[slot * self.window : (slot + 1) * self.window] = self._window(wanted, x)
                self.held[slot] = wanted

    def _window(self, number: int, like: Tensor) -> Tensor:
        start = number % self.windows * self.window
        new = torch.from_numpy(np.array(self.rows[start : start + self.window])).to(like.device)
        if self.jitter is None:
            return new
        return self.jitter(new, torch.Generator(like.device).manual_seed(self.seed + number))


@contextmanager
def located(batch: Batch) -> Iterator[None]:
    """Errors with the file, and the row from which theirs count.

    >>> with located(Batch("part-0.parquet", 100, None)):
    ...     raise ValueError("row 3: no number.")
    Traceback (most recent call last):
    ...
    ValueError: part-0.parquet: row 3: no number. (Rows here count from row 100 of the whole table.)
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        text = f"{batch.file}: {error} (Rows here count from row {batch.start} of the whole table.)"
        raise type(error)(text) from error


@contextmanager
def _bar(title: str, total: int, show: bool) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of rows that are done next."""
    done = 0
    with showing(f"{title} rows", total, show) as report:

        def advance(rows: int) -> None:
            nonlocal done
            done += rows
            report(done, "")

        yield advance
