"""A table streamed past a model: batches in, answers out, in bounded memory; what the command line is made of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ctem.cli.options import CsvOptions
from ctem.estimators.estimator import CTEM
from ctem.tables.answers.outliers import Outlier, outlier_columns
from ctem.tables.io.csv_files import Dialect
from ctem.tables.io.csv_text import completed, typed
from ctem.tables.io.files import BATCH, Source, Table, as_arrow, open_sink, open_source, reservoir
from ctem.tables.io.given import text_types
from ctem.tables.io.terminal import note

__all__ = ["Lowest"]

Parts = Iterator[tuple[Table, Any]]


def dialect(layout: CsvOptions) -> Dialect:
    """The dialect that the options ask for."""
    return Dialect(layout.header, layout.sep, layout.encoding)


@contextmanager
def streams(
    model: CTEM, table: str, output: str, format: str | None, quiet: bool, dialect: Dialect
) -> Iterator[tuple[Parts, Callable[[Table], None]]]:
    """Batches of a table as they are written, each beside its columns as the model takes them, and where to write."""
    with open_source(table, dialect) as source, open_sink(output, format) as sink:
        check_names(model, source.names, source.path, quiet)
        with bar(source.rows, quiet) as advance:
            done, new = _Count(advance), _NeverSeen(model)
            try:
                yield _parts(model, source, done, new), sink.write
            except (ValueError, TypeError) as error:
                if not done.rows:
                    raise
                raise ValueError(f"{error} (Rows here count from row {done.rows} of the table.)") from error
        if not quiet:
            new.note(source.path)


class _NeverSeen:
    """The rows that hold a value that the model never saw, and the first of them."""

    def __init__(self, model: CTEM):
        self.model, self.rows, self.first = model, 0, ""

    def __call__(self, X: Any, start: int) -> None:
        unseen = self.model.unseen(X)
        rows = np.flatnonzero(unseen.any(1))
        self.rows += len(rows)
        if len(rows) and not self.first:
            name = self.model.table_type_.names[int(unseen[rows[0]].argmax())]
            self.first = f"{name!r} in row {start + rows[0]}"

    def note(self, path: str) -> None:
        if self.rows:
            rows = "1 row holds" if self.rows == 1 else f"{self.rows} rows hold"
            note(
                f"{path}: {rows} a value never seen in fit, first {self.first}; they rank by what is kept for such"
            )


class _Count:
    """The rows that are done."""

    def __init__(self, advance: Callable[[int], None]):
        self.rows, self.advance = 0, advance

    def __call__(self, rows: int) -> None:
        self.rows += rows
        self.advance(rows)


def _parts(model: CTEM, source: Source, done: _Count, new: _NeverSeen) -> Parts:
    for part in source.tables(BATCH):
        X = model_input(model, source.typed_as(part, _types(model, source)))
        new(X, done.rows)
        yield part, X
        done(len(part))


def filled_in(model: CTEM, part: Table, X: Any, filled: Any) -> Table:
    """A batch as it is written, with the imputed cells in place of the missing ones and of nothing else."""
    names = column_names(model, part)
    frame, made = model.as_frame(X), as_arrow(filled, names)
    for j, name in enumerate(names):
        place = part.column_names.index(name)
        gone = frame.columns[name if name in frame.columns else model.table_type_.names[j]].missing
        column = completed(part.column(place), gone, made[name])
        part = part.set_column(place, part.schema.field(place).with_type(column.type), column)
    return part


def numbered(table: Table, draw: int) -> Table:
    """A table with the number of the draw as its first column."""
    return table.add_column(0, fresh("draw", table.column_names), pa.array([draw] * len(table)))


def model_input(model: CTEM, table: Table) -> Any:
    """The columns that the model knows, in its order; an array if it was fitted to one."""
    if hasattr(model, "feature_names_in_"):
        return _spelled_out(table.select(column_names(model, table)))
    return np.column_stack([column.to_numpy() for column in table.columns])


def _spelled_out(table: Table) -> Table:
    """The table with dictionaries of text as text: those of a batch need not hold all labels."""
    for i, field in enumerate(table.schema):
        text = pa.types.is_dictionary(field.type) and "string" in str(field.type.value_type)
        if text:
            table = table.set_column(i, field.name, table.column(i).cast(field.type.value_type))
    return table


def column_names(model: CTEM, table: Table) -> list[str]:
    """The columns of the table that the model knows, in its order."""
    if not hasattr(model, "feature_names_in_"):
        return list(table.column_names)
    return [name for name in model.table_type_.names if name in table.column_names]


def check_names(model: CTEM, names: list[str], path: str, quiet: bool) -> None:
    known = model.table_type_.names
    if not hasattr(model, "feature_names_in_"):
        if len(names) != len(known):
            raise ValueError(
                f"{path}: expected {len(known)} columns, as in the array that was fitted; got {len(names)}."
            )
        return
    absent = [name for name in known if name not in names and name not in model.schema_.left_out]
    if absent:
        raise ValueError(
            f"{path}: expected column {absent[0]!r}, as in fit; got {', '.join(map(repr, names))}."
        )
    others = [name for name in names if name not in known]
    if others and not quiet:
        note(f"{path}: not in the model, and not used: {', '.join(map(repr, others))}")


def _types(model: CTEM, source: Source) -> dict[str, Any]:
    """The pyarrow types in which a CSV file is to be read: by position if the model was fitted to an array."""
    types, names = text_types(model.table_type_), model.table_type_.names
    if hasattr(model, "feature_names_in_"):
        return types
    return {new: types[old] for new, old in zip(source.names, names, strict=True) if old in types}


def drawn_table(model: CTEM, rows: Any) -> Table:
    """Drawn rows to be written; a column without values has the type that others of its kind have."""
    table, types = as_arrow(rows, model.sampled_type_.names), text_types(model.sampled_type_)
    fields = [
        f.with_type(types.get(f.name, pa.string())) if pa.types.is_null(f.type) else f for f in table.schema
    ]
    return table.cast(pa.schema(fields))


def fit_table(
    path: str,
    drop: list[str],
    max_rows: int,
    seed: int,
    quiet: bool,
    how: Mapping[str, Any],
    dialect: Dialect,
) -> Table:
    """A table to fit, without some columns, and at most ``max_rows`` of its rows."""
    with open_source(path, dialect) as source, bar(source.rows, quiet) as advance:
        absent = [name for name in drop if name not in source.names]
        if absent:
            raise ValueError(f"--drop: {absent[0]!r} is not in {source.path}, which has {source.names}.")
        tables = (table.drop_columns(drop) for table in source.tables(BATCH))
        sampled = _sampled(source.path, tables, max_rows, seed, quiet, advance)
        return typed(sampled, **how) if source.text else sampled


def known_table(model: CTEM, path: str, max_rows: int, quiet: bool, dialect: Dialect) -> Any:
    """A table as the model takes it, at most ``max_rows`` of its rows."""
    with open_source(path, dialect) as source, bar(source.rows, quiet) as advance:
        check_names(model, source.names, source.path, quiet)
        X = _sampled(source.path, source.tables(BATCH), max_rows, 0, quiet, advance)
        return model_input(model, source.typed_as(X, _types(model, source)))


def _sampled(
    path: str, tables: Iterable[Table], max_rows: int, seed: int, quiet: bool, advance: Callable[[int], None]
) -> Table:
    def counted() -> Iterator[Table]:
        for table in tables:
            yield table
            advance(len(table))

    X, total = reservoir(counted(), max_rows, seed)
    if total > len(X) and not quiet:
        note(f"{path}: {total} rows; a random sample of {len(X)} is used (seed {seed})")
    return X


class Lowest:
    """The n rows of lowest values seen so far, in their order: as they are written, and as the model takes them.

    The second values decide between rows whose first ones are equal. Rows whose first one is infinite do not count.

    >>> lowest = Lowest(2)
    >>> for cells, values in (([1, 2], [-1.0, -3.0]), ([3, 4], [-5.0, 0.0])):
    ...     part = pa.table({"a": cells})
    ...     lowest.add(part, part, np.zeros(2), np.array(values))
    >>> lowest.rows, lowest.table["a"].to_pylist()
    (array([1, 2]), [2, 3])
    """

    def __init__(self, n: int):
        self.n, self.seen = n, 0
        self.table: Table = None
        self.X: Any = None
        self.rows, self.values = np.empty(0, np.int64), np.empty((2, 0))

    def add(self, table: Table, X: Any, first: Any, second: Any) -> None:
        """Take in the next rows and their values."""
        rows = np.concatenate([self.rows, self.seen + np.arange(len(first))])
        values = np.concatenate([self.values, [first, second]], axis=1)
        low = np.sort(np.lexsort(values[::-1])[: self.n])
        low = low[values[0, low] < np.inf]
        self.seen += len(table)
        self.table, self.X = picked(self.table, table, low), picked(self.X, X, low)
        self.rows, self.values = rows[low], values[:, low]


def picked(first: Any, second: Any, rows: Any) -> Any:
    """Rows of two tables, or arrays, one after the other; the first may be none."""
    if isinstance(second, np.ndarray):
        return (second if first is None else np.concatenate([first, second]))[rows]
    both = second if first is None else pa.concat_tables([first, second]).unify_dictionaries()
    return both.take(pa.array(rows))


def explained(outliers: list[Outlier], rows: Any, table: Table) -> Table:
    """The outliers as a table: row, score, p_value, why, and the row itself."""
    made = table.take(pa.array([outlier.row for outlier in outliers], "int64"))
    parts = outlier_columns([replace(outlier, row=int(rows[outlier.row])) for outlier in outliers])
    for i, (name, values) in enumerate(parts.items()):
        kind = {"row": "int64", "why": "string"}.get(name, "float64")
        made = made.add_column(i, fresh(name, table.column_names), pa.array(values, kind))
    return made


@contextmanager
def bar(total: int | None, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar of rows on standard error, if that is a terminal."""
    parts = (TextColumn("rows"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = quiet or not sys.stderr.isatty()
    with Progress(*parts, console=Console(stderr=True), transient=True, disable=hidden) as progress:
        task = progress.add_task("rows", total=total)
        yield lambda rows: progress.advance(task, rows)


def fresh(name: str, taken: Iterable[str]) -> str:
    """The name, with underscores added until it is a new one."""
    used = set(taken)
    while name in used:
        name += "_"
    return name
