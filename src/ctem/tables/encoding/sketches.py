r"""What is kept of a table that streams by: a uniform sample of its rows, and what the sample may have missed.

A sketch of some rows and a sketch of others merge into that of all of them, in any order and however the rows were
split, to the same bits. Every row has a key, a hash of its number; the rows with the smallest keys are the sample. So a
share of the rows of the table and the same share of the sample differ by at most

    ε = sqrt( log(2/δ) / (2 n) )      with probability 1 − δ, at all quantiles of a column at once

(Dvoretzky, Kiefer and Wolfowitz 1956, with Massart's constant), n rows in the sample: 0.0016 for a million and
δ = 1 %. Values that are rarer may be missing from it. Of every column a sketch therefore has, exactly, the number of
missing cells, the least and the greatest number, and as long as they are at most ``LISTED``, all values and how often
each occurs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctem.tables.io.cells import Cells
from ctem.tables.io.frame import Frame, read_frame

__all__ = ["ColumnSketch", "Sketch", "completed", "row_keys", "rows_of_cells"]

LISTED = 10_000  # different values of a column that are counted one by one
SLACK = 1.25  # of the sample that are in memory at most, while rows stream by
Keys = NDArray[np.uint64]


def row_keys(rows: NDArray[np.int64], seed: int) -> Keys:
    """The key of each row number: uniform on 0 … 2⁶⁴ − 1, and another for every row (splitmix64, a bijection).

    >>> row_keys(np.array([0, 1]), seed=0)
    array([ 9669442505924063346, 12855374104877926600], dtype=uint64)
    """
    with np.errstate(over="ignore"):
        return _mix(rows.astype(np.uint64) + _mix(np.array(seed, np.uint64)))


def _mix(z: Keys) -> Keys:
    z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


@dataclass(frozen=True)
class ColumnSketch:
    """Exact facts of a column: missing cells, least and greatest number, and its values if they are not too many.

    >>> some = ColumnSketch.of(Cells("int", np.array([3, 1, 3]), np.array([False, False, True])))
    >>> (some + some).counts, (some + some).missing, some.low
    ({1: 2, 3: 2}, 2, 1)
    """

    missing: int
    low: Any  # None for labels and booleans, and where all are missing
    high: Any
    counts: Mapping[Any, int] | None  # of every value; None if they are more than LISTED

    @classmethod
    def of(cls, cells: Cells, listed: bool = True) -> ColumnSketch:
        """Of some cells; without ``listed`` it is known already that their values are too many."""
        known = cells.values[~cells.missing]
        ordered = cells.type not in ("label", "bool") and len(known) > 0
        low, high = (known.min().item(), known.max().item()) if ordered else (None, None)
        return cls(len(cells) - len(known), low, high, _counted(cells, known) if listed else None)

    def __add__(self, other: ColumnSketch) -> ColumnSketch:
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        counts = None
        if self.counts is not None and other.counts is not None:
            both = Counter(self.counts)
            both.update(other.counts)
            counts = dict(sorted(both.items())) if len(both) <= LISTED else None
        missing = self.missing + other.missing
        return ColumnSketch(missing, min(lows, default=None), max(highs, default=None), counts)


def _counted(cells: Cells, known: NDArray[Any]) -> dict[Any, int] | None:
    """How often each value occurs; None if they are too many."""
    values, times = np.unique(known, return_counts=True)
    if len(values) > LISTED:
        return None
    plain = [cells.labels[code] for code in values] if cells.type == "label" else values.tolist()
    return dict(zip(plain, times.tolist(), strict=True))


class Sketch:
    """A uniform sample of at most ``limit`` rows, and exact facts of every column; made by ``add`` and ``merge``.

    Arguments:
        limit: rows of the sample.
        seed: of the keys; sketches that merge share it.

    >>> whole, other = Sketch(limit=3), Sketch(limit=3)
    >>> whole.add(pa.table({"n": range(50)}), start=0)
    >>> other.add(pa.table({"n": range(50, 100)}), start=50)
    >>> whole.merge(other)
    >>> whole.rows, len(whole.sample()), whole.columns["n"].high
    (100, 3, 99)
    """

    def __init__(self, limit: int, seed: int = 0):
        self.limit, self.seed, self.rows = limit, seed, 0
        self.columns: dict[str, ColumnSketch] = {}
        self.parts: list[tuple[NDArray[np.int64], Any]] = []  # row numbers, and the rows
        self.cutoff = np.uint64(2**64 - 1)

    def add(self, table: Any, start: int) -> None:
        """Take in the rows of a pyarrow table, the first of which has this number in the whole."""
        frame = read_frame(table)
        for name, cells in frame.columns.items():
            known = self.columns.get(name)
            sketch = ColumnSketch.of(cells, listed=known is None or known.counts is not None)
            self.columns[name] = sketch if known is None else known + sketch
        self.rows += len(table)
        self._keep(np.arange(start, start + len(table)), table)

    def merge(self, other: Sketch) -> None:
        """Take in all that another sketch has seen."""
        if (self.limit, self.seed) != (other.limit, other.seed):
            raise ValueError("merge: expected sketches of one limit and seed; got two.")
        for name, sketch in other.columns.items():
            self.columns[name] = self.columns[name] + sketch if name in self.columns else sketch
        self.rows += other.rows
        for numbers, table in other.parts:
            self._keep(numbers, table)

    def sample(self) -> Any:
        """The sampled rows, in their order."""
        self._cut()
        numbers = np.concatenate([numbers for numbers, _ in self.parts])
        joined = pa.concat_tables([table for _, table in self.parts]).unify_dictionaries().combine_chunks()
        return joined.take(pa.array(np.argsort(numbers)))

    def sampled(self) -> NDArray[np.int64]:
        """The numbers of the sampled rows, in order."""
        self._cut()
        return np.sort(np.concatenate([numbers for numbers, _ in self.parts]))

    def _keep(self, numbers: NDArray[np.int64], table: Any) -> None:
        near = row_keys(numbers, self.seed) <= self.cutoff
        self.parts.append((numbers[near], table if near.all() else table.filter(pa.array(near))))
        if sum(len(numbers) for numbers, _ in self.parts) > SLACK * self.limit:
            self._cut()

    def _cut(self) -> None:
        keys = np.concatenate([row_keys(numbers, self.seed) for numbers, _ in self.parts])
        if len(keys) > self.limit:
            self.cutoff = np.partition(keys, self.limit - 1)[self.limit - 1]
            parts, self.parts = self.parts, []
            for numbers, table in parts:
                near = row_keys(numbers, self.seed) <= self.cutoff
                self.parts.append((numbers[near], table.filter(pa.array(near))))


def completed(frame: Frame, columns: Mapping[str, ColumnSketch]) -> Frame:
    """A sample with what it missed of each column added once: rare values, the ends, a missing cell.

    Columns are then of different lengths; kinds and codecs are inferred column by column.

    >>> frame = read_frame(np.array([[1.5], [2.5]]))
    >>> completed(frame, {"x0": ColumnSketch(1, 0.5, 9.0, None)}).columns["x0"].values
    array([1.5, 2.5, 0.5, 9. , 0. ])
    """
    made = {name: _completed(cells, columns[name]) for name, cells in frame.columns.items()}
    return Frame(frame.table_type, made)


def rows_of_cells(cells: Cells, seen: ColumnSketch) -> NDArray[np.float64] | None:
    """How many rows of the table each label of its sample stands for, (n,); None where that is not known.

    >>> cells = Cells("label", np.array([0, 0, 1]), np.zeros(3, bool), ("a", "b"))
    >>> rows_of_cells(cells, ColumnSketch(0, None, None, {"a": 90, "b": 1}))
    array([45., 45.,  1.])
    """
    if cells.type != "label" or seen.counts is None:
        return None
    there = np.bincount(cells.values[~cells.missing], minlength=len(cells.labels))
    pairs = zip(cells.labels, there, strict=True)
    every = np.array([seen.counts.get(label, count) for label, count in pairs])
    return np.asarray((every / np.maximum(there, 1))[cells.values])


def _completed(cells: Cells, seen: ColumnSketch) -> Cells:
    known = cells.values[~cells.missing]
    labels = cells.labels
    if cells.type == "label":
        used = {labels[code] for code in np.unique(known).tolist()}
        missed = [value for value in seen.counts or () if value not in used]
        labels = (*labels, *(value for value in missed if value not in labels))
        place = {label: code for code, label in enumerate(labels)}
        missed = [place[value] for value in missed]
    else:
        used = set(np.unique(known).tolist())
        wanted = seen.counts if seen.counts is not None else (seen.low, seen.high)
        missed = [value for value in wanted if value is not None and value not in used]
    gap = bool(seen.missing and not cells.missing.any())
    if not missed and not gap:
        return cells
    more = np.array([*missed, *[0] * gap], cells.values.dtype)
    gone = np.array([False] * len(missed) + [True] * gap)
    values, missing = np.concatenate([cells.values, more]), np.concatenate([cells.missing, gone])
    return replace(cells, values=values, missing=missing, labels=labels)
