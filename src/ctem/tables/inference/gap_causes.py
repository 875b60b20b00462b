"""Gaps that mean something: cells that are missing more often where another column holds some values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ctem.tables.io.cells import Cells

__all__ = ["gaps_in_words"]

ROWS = 4000  # that are looked at
FEWEST = 40  # rows with a gap, and without
BINS = 10  # of a column of numbers, and labels that count each for itself
LEAST, SURE = 0.1, 60.0  # share of the variance of a gap that another column explains, and its χ², at least
MOST_COLUMNS = 64  # that gaps are compared with


def gaps_in_words(columns: Mapping[str, Cells]) -> dict[str, str]:
    """For every column whose gaps depend on another one, how many there are, on which most, and what to do.

    >>> sick = Cells("bool", np.arange(200) % 2 == 0, np.zeros(200, bool))
    >>> dose = Cells("float", np.arange(200.0), np.arange(200) % 2 == 1)
    >>> gaps_in_words({"sick": sick, "dose": dose})
    {'dose': 'missing in 50% of the rows, which depends on sick: sample(with_missing=True) draws gaps as well'}
    """
    n = min((len(cells) for cells in columns.values()), default=0)
    rows = np.linspace(0, n - 1, min(n, ROWS)).astype(np.int64)
    gaps = {name: cells.missing[rows] for name, cells in columns.items()}
    some = {name: gap for name, gap in gaps.items() if min(gap.sum(), (~gap).sum()) >= FEWEST}
    if not some:
        return {}
    binned = {name: _binned(cells, rows) for name, cells in list(columns.items())[:MOST_COLUMNS]}
    words = {}
    for name, gap in some.items():
        explained = {other: _explained(gap, codes) for other, codes in binned.items() if other != name}
        cause = max(explained, key=explained.__getitem__, default=None)
        if cause is not None and explained[cause] > 0:
            share = float(columns[name].missing.mean())
            advice = "sample(with_missing=True) draws gaps as well"
            words[name] = f"missing in {share:.0%} of the rows, which depends on {cause}: {advice}"
    return words


def _binned(cells: Cells, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """A column as a few codes, −1 where missing: tenths of numbers; the most frequent labels, and all others."""
    missing, values = cells.missing[rows], cells.values[rows]
    codes = np.full(len(rows), -1, np.int64)
    known = values[~missing]
    if cells.type in ("label", "bool"):
        distinct, place, counts = np.unique(known, return_inverse=True, return_counts=True)
        rank = np.empty(len(distinct), np.int64)
        rank[np.argsort(-counts, kind="stable")] = np.arange(len(distinct))
        codes[~missing] = np.minimum(rank[place], BINS - 1)
    elif len(known):
        edges = np.unique(np.quantile(known, np.linspace(0, 1, BINS + 1)[1:-1]))
        codes[~missing] = np.searchsorted(edges, known, side="right")
    return codes


def _explained(gap: NDArray[np.bool_], codes: NDArray[np.int64]) -> float:
    """The share of the variance of a gap that codes explain, where they are known; 0 if it is little or by chance."""
    known = codes >= 0
    gap, codes = gap[known], codes[known]
    if min(gap.sum(), (~gap).sum()) < FEWEST:
        return 0.0
    rows, share = np.bincount(codes), float(gap.mean())
    shares = np.bincount(codes, weights=gap) / rows.clip(1)
    explained = float((rows * (shares - share) ** 2).sum() / (len(gap) * share * (1 - share)))
    return explained if explained >= LEAST and explained * len(gap) >= SURE else 0.0
