"""What ``CTEM`` asks its density for: rows under conditions, one row of which some cells are known, realism."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from ctem.tables.answers.conditions import is_range
from ctem.tables.answers.density import TableDensity
from ctem.tables.answers.events import TableEvent, split_given
from ctem.tables.answers.realism import Realism, realism, rows_to_compare
from ctem.tables.encoding.codecs import Constant, LeftOut
from ctem.tables.io.cells import Cells
from ctem.tables.io.frame import Frame, TableType
from ctem.tables.io.given import named, partial_frame, positions
from ctem.tables.io.rows import taken
from ctem.tables.schema import Schema

__all__ = ["answered_position", "drawn_columns", "one_row", "table_realism"]


def drawn_columns(
    table: TableDensity, table_type: TableType, n: int, generator: torch.Generator, given: Any
) -> tuple[dict[str, Cells], Collection[str]]:
    """Columns of new rows, and the names of those that are given.

    Arguments:
        table: the density.
        table_type: of the table of fit.
        n: rows to draw; for each row, where ``given`` is a table.
        generator: of the draws.
        given: None, conditions by name, or a table with some of the columns.

    >>> from ctem import CTEM
    >>> model = CTEM(max_steps=2, width=8, members=1, random_state=0).fit(np.arange(100.0)[:, None])
    >>> columns, known = drawn_columns(model._table, model.table_type_, 3, torch.Generator(), None)
    >>> len(columns["x0"]), known
    (3, ())
    """
    if given is None:
        return table.sample(n, generator), ()
    given = named(given, table_type) if isinstance(given, Mapping) else given
    known, ranges = split_given(given, table.schema) if isinstance(given, Mapping) else (given, {})
    if ranges:
        event = TableEvent.of(table, table_type, known, ranges)
        return event.sample(n, generator), [*known, *ranges]
    rows, names = partial_frame(known, table_type)
    table.schema.check_seen(rows)
    many = taken(rows, np.repeat(np.arange(len(rows)), n))
    return table.completed(many, generator, names), names


def one_row(schema: Schema, table_type: TableType, known: Mapping[str, Any]) -> Frame:
    """A row of which some cells are known.

    >>> from ctem.tables.io.frame import read_frame
    >>> frame = read_frame([[0.5, 1.0], [2.5, 1.5], [1.0, 3.0]])
    >>> one_row(Schema.fit(frame), frame.table_type, {"x0": (1, 2)})
    Traceback (most recent call last):
    ...
    ValueError: X: expected one value for 'x0'; got (1, 2). sample and probability take ranges and lists.
    """
    for name, value in known.items():
        if is_range(value):
            raise ValueError(
                f"X: expected one value for {name!r}; got {value!r}. sample and probability take ranges and lists."
            )
    row = partial_frame(known, table_type)[0]
    schema.check_seen(row)
    return row


def answered_position(schema: Schema, table_type: TableType, column: str | int | None) -> int:
    """The position of a column that the density describes: by name or position, the last one when None.

    >>> from ctem.tables.io.frame import read_frame
    >>> frame = read_frame([[0.5, 1.0], [2.5, 1.5], [1.0, 3.0]])
    >>> answered_position(Schema.fit(frame), frame.table_type, None)
    1
    """
    names = list(schema.columns)
    j = len(names) - 1 if column is None else positions("column", [column], table_type)[0]
    name, inferred = names[j], schema.columns[names[j]]
    if isinstance(inferred.codec, LeftOut):
        raise ValueError(
            f"column {name!r} is left out of the density ({inferred.reason}), so that nothing is known of it; "
            f"kinds={{{name!r}: 'category'}} insists."
        )
    if isinstance(inferred.codec, Constant) and not inferred.codec.values:
        raise ValueError(f"column {name!r} was always missing in fit, so that nothing is known of it.")
    return j


def table_realism(table: TableDensity, frame: Frame, generator: torch.Generator) -> Realism | None:
    """How well sampled rows pass for those of a frame; None if there are too few rows.

    >>> from ctem import CTEM
    >>> X = np.arange(100.0)[:, None]
    >>> model = CTEM(max_steps=2, width=8, members=1, random_state=0).fit(X)
    >>> table_realism(model._table, model.as_frame(X[:3]), torch.Generator()) is None
    True
    """
    rows = rows_to_compare(table.schema.space.dim)
    real = taken(frame, np.random.default_rng(0).permutation(len(frame))[: 2 * rows])
    sampled = Frame(frame.table_type, table.sample(rows, generator))
    x, drawn = (table.schema.encode(each).x.numpy() for each in (real, sampled))
    return realism(x, drawn)
