"""Parquet files and folders on the command line: streamed past a fit, or sampled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ctem.cli.streams import fit_table
from ctem.tables.io.csv_files import Dialect
from ctem.tables.io.files import MAX_ROWS, reservoir
from ctem.tables.io.large import LargeTable, is_parquet, open_large
from ctem.tables.io.terminal import note

JUDGED = 20_000  # rows by which samples are judged


@contextmanager
def rows_to_fit(
    path: str,
    drop: list[str],
    max_rows: int | None,
    seed: int,
    quiet: bool,
    how: Mapping[str, Any],
    dialect: Dialect,
) -> Iterator[Any]:
    """A large table where a fit may stream, otherwise a table of at most ``max_rows`` rows."""
    if not is_parquet(path):
        yield fit_table(path, drop, max_rows or MAX_ROWS, seed, quiet, how, dialect)
        return
    dialect.check_unused(path)
    with open_large(path) as large:
        if absent := [name for name in drop if name not in large.schema.names]:
            raise ValueError(f"--drop: {absent[0]!r} is not in {path}, which has {large.schema.names}.")
        kept = large.without(drop)
        if max_rows is None or max_rows >= kept.rows:
            yield kept
            return
        if not quiet:
            note(f"{path}: {kept.rows} rows; a random sample of {max_rows} is used (seed {seed})")
        yield _sampled(kept, max_rows, seed)


def some_rows(X: Any, seed: int) -> Any:
    """A table, or some rows of a large one, by which samples are judged."""
    return _sampled(X, JUDGED, seed) if isinstance(X, LargeTable) else X


def _sampled(large: LargeTable, rows: int, seed: int) -> Any:
    return reservoir((batch.table for batch in large.batches()), rows, seed)[0]
