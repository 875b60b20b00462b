"""Which cells are missing together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ctem.tables.io.frame import Frame

__all__ = ["Pattern", "missing_patterns"]

MOST = 8  # patterns that are kept


class Pattern(NamedTuple):
    """Columns that are missing together, and in how many rows exactly these are.

    >>> Pattern(("age",), 7).rows
    7
    """

    columns: tuple[str, ...]
    rows: int


def missing_patterns(frame: Frame) -> list[Pattern]:
    """The most common sets of missing columns, the empty one included; none where no cell is missing.

    >>> from ctem.tables.io.frame import read_frame
    >>> missing_patterns(read_frame(np.array([[1.0, np.nan], [2.0, np.nan], [3.0, 4.0]])))
    [Pattern(columns=('x1',), rows=2), Pattern(columns=(), rows=1)]
    """
    names = [name for name, cells in frame.columns.items() if cells.missing.any()]
    if not names:
        return []
    gone = np.stack([frame.columns[name].missing for name in names], 1)
    packed = np.packbits(gone, axis=1)
    _, first, counts = np.unique(packed, axis=0, return_index=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MOST]
    return [
        Pattern(tuple(name for name, flag in zip(names, gone[first[i]], strict=True) if flag), int(counts[i]))
        for i in order
    ]
