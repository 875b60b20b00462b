"""Rows of a frame: some of them, a bounded number at a time, and drawn cells put back among the observed ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ctem.tables.io.cells import Cells, counts_of
from ctem.tables.io.frame import Frame

__all__ = ["ahead", "chunks", "indexed", "joined", "merged", "spread", "taken"]

CHUNK = 2**13  # rows encoded and answered at a time, which bounds the memory

Item = TypeVar("Item")
Made = TypeVar("Made")


def taken(frame: Frame, rows: NDArray[Any] | slice) -> Frame:
    """The rows that an index, a mask or a slice picks.

    >>> from ctem.tables.io.frame import read_frame
    >>> taken(read_frame(np.arange(6).reshape(3, 2)), np.array([2, 0])).columns["x0"].values
    array([4, 0])
    """
    skipped = (rows.start or 0) if isinstance(rows, slice) else 0
    picked = {
        name: replace(
            cells, values=cells.values[rows], missing=cells.missing[rows], first=cells.first + skipped
        )
        for name, cells in frame.columns.items()
    }
    return Frame(frame.table_type, picked)


def chunks(frame: Frame, size: int = CHUNK) -> Iterator[Frame]:
    """The frame in parts of at most ``size`` rows.

    >>> from ctem.tables.io.frame import read_frame
    >>> [len(part) for part in chunks(read_frame(np.zeros((5, 1))), 2)]
    [2, 2, 1]
    """
    for start in range(0, len(frame), size):
        yield taken(frame, slice(start, start + size))


def ahead(work: Callable[[Item], Made], items: Iterable[Item], workers: int) -> Iterator[Made]:
    """work(item) of every item, in order; threads are at most so many items ahead of what is taken.

    >>> list(ahead(abs, [-1, 2, -3], workers=2))
    [1, 2, 3]
    """
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        yield from (answer.result() for answer in waiting)


def indexed(table: Any, X: Any) -> Any:
    """A table with the index of X, where X has one as pandas does, so that its rows can be assigned back.

    >>> import pandas as pd
    >>> indexed(pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [2]}, index=[7])).index.tolist()
    [7]
    """
    if hasattr(table, "set_axis") and hasattr(X, "index"):
        table.index = X.index
    return table


def joined(parts: Sequence[Cells]) -> Cells:
    """Cells of one column, one part after the other; labels and unit are those of the first.

    >>> one = Cells("int", np.array([1]), np.array([False]))
    >>> joined([one, one]).values
    array([1, 1])
    """
    values = np.concatenate([part.values for part in parts])
    return replace(parts[0], values=values, missing=np.concatenate([part.missing for part in parts]))


def spread(cells: Cells, places: NDArray[np.bool_]) -> Cells:
    """Cells moved to the places of a mask in a longer column; missing elsewhere.

    >>> spread(Cells("int", np.array([7]), np.array([False])), np.array([False, True])).to_list()
    [None, 7]
    """
    values = np.zeros(len(places), cells.values.dtype)
    values[places] = cells.values
    missing = np.ones(len(places), bool)
    missing[places] = cells.missing
    return replace(cells, values=values, missing=missing)


def merged(observed: Cells, drawn: Cells) -> Cells:
    """The observed cells, and drawn ones where they are missing; what was observed stays as it is.

    >>> gap = Cells("int", np.array([1, 0]), np.array([False, True]))
    >>> merged(gap, Cells("int", np.array([7, 8]), np.zeros(2, bool))).values
    array([1, 8])
    """
    gone = observed.missing
    if gone.all() or not gone.any():
        return drawn if gone.any() else observed
    if observed.type == "label" and drawn.type == "bool":  # some of them are text that fit never saw
        drawn = replace(drawn, type="label", values=drawn.values.astype(np.int64), labels=(False, True))
    values, labels = drawn.values, observed.labels
    if observed.type == "label":
        labels = tuple(dict.fromkeys([*observed.labels, *drawn.labels]))
        place = {label: code for code, label in enumerate(labels)}
        values = np.array([place[label] for label in drawn.labels], np.int64)[np.maximum(values, 0)]
    elif observed.unit != drawn.unit:
        values = counts_of(drawn, observed.unit)
    if observed.values.dtype.kind in "iu" and values.dtype.kind == "f":
        values = np.rint(values)
    filled = np.where(gone, values.astype(observed.values.dtype), observed.values)
    return replace(observed, values=filled, missing=gone & drawn.missing, labels=labels)
