"""A look at a table before any fit: what its columns would be taken for, and what seems odd about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import narwhals as nw
import numpy as np

from ctem.spaces import Column
from ctem.tables.inference.kinds import InferredColumn, infer_column, kind_names
from ctem.tables.inference.suspicions import Suspicion, suspicions, unsure_dates
from ctem.tables.io.cells import Cells
from ctem.tables.io.files import read_path
from ctem.tables.io.frame import Frame, read_frame
from ctem.tables.io.recognition import Reading, recognised
from ctem.tables.relations.relations import relations
from ctem.tables.schema import Description, reasons, requested_kinds

__all__ = ["ColumnGlance", "Inspection", "inspect", "inspect_frame"]


@dataclass(frozen=True)
class ColumnGlance:
    """A column: what it would be taken for and why, how many cells are missing, how many values there are.

    >>> ColumnGlance("age", "real", "whole numbers", 177, 88).missing
    177
    """

    name: str
    kind: str
    reason: str
    missing: int
    values: int


@dataclass(frozen=True)
class Inspection:
    """What a table looks like to ``inspect``.

    Arguments:
        rows: of the table.
        columns: of the table.
        suspicions: what seems odd, with what to do about it.
        backend: the library of the table.

    >>> seen = inspect(np.array([[1.0, 7.0], [2.0, 7.0], [3.5, 7.0]]))
    >>> print(seen)
    3 rows, 2 columns
    x0: real (numbers; never below 0)
    x1: constant (one value)
    ! 'x1' holds one value: drop it.
    """

    rows: int
    columns: list[ColumnGlance]
    suspicions: list[Suspicion]
    backend: str = "numpy"

    def __str__(self) -> str:
        head = f"{self.rows} rows, {len(self.columns)} column{'s' * (len(self.columns) != 1)}"
        listed = (f"{column.name}: {column.kind} ({column.reason})" for column in self.columns)
        return "\n".join([head, *listed, *(f"! {odd}" for odd in self.suspicions)])

    def as_frame(self) -> Any:
        """A row for every column, with what seems odd about it, in the library of the table; pandas for an array."""
        odd_of = {
            column.name: [str(odd) for odd in self.suspicions if column.name in odd.columns]
            for column in self.columns
        }
        keys = {"column": "name", "kind": "kind", "why": "reason", "missing": "missing", "values": "values"}
        made = {key: [getattr(column, name) for column in self.columns] for key, name in keys.items()}
        made["suspicions"] = [" ".join(sentences) for sentences in odd_of.values()]
        backend: Any = "pandas" if self.backend == "numpy" else self.backend
        return nw.from_dict(made, backend=backend).to_native()

    def to_json(self) -> dict[str, Any]:
        """Plain values, for programs."""
        return {
            "rows": self.rows,
            "columns": [asdict(column) for column in self.columns],
            "suspicions": [asdict(odd) for odd in self.suspicions],
        }


def inspect(
    X: Any, kinds: Mapping[str, Any] | None = None, reading: Mapping[str, Any] | None = None
) -> Inspection:
    """Look at a table without fitting anything: what its columns would be taken for and why, and what seems odd.

    Columns that repeat others, or add up, have a note. Odd are: numbers and dates that look like codes for missing,
    columns that name their rows, hold one value or nothing, or repeat another, copied rows, days that no calendar has,
    numbers among which there is text, labels spelled in several ways, and rules between columns with the rows that
    break them.

    Arguments:
        X: a NumPy array, a pandas, polars or pyarrow table, or the path of a CSV, Parquet or Arrow file.
        kinds, reading: as in ``CTEM``.

    >>> import pandas as pd
    >>> rows = np.arange(60)
    >>> X = pd.DataFrame({"class": np.array(["First", "Second"])[rows % 2], "pclass": 1 + rows % 2})
    >>> print(inspect(X.assign(age=np.where(rows == 7, 999, 18 + rows))))
    60 rows, 3 columns
    class: category (text, 2 values; follows from pclass in all rows)
    pclass: ordinal (whole numbers, 2 values; follows from class in all rows)
    age: real (999 in 2% of the rows: a value of its own beside a continuous part; ...)
    ! 'age' holds 999 in 1 row, which looks like a code for missing: if it is one, reading={'na': ['999']} marks it.
    ! 'class' and 'pclass' hold the same: one of them is enough.
    """
    how = Reading.of(reading)
    X = read_path(X, decimal=how.decimal, kinds=kind_names(kinds))
    frame = recognised(read_frame(X), how, kind_names(kinds))
    requested = requested_kinds(frame, kinds)
    named = frame.table_type.backend != "numpy"
    inferred = {
        name: _inferred(name, cells, requested.get(name), named) for name, cells in frame.columns.items()
    }
    codecs = {name: column.codec for name, (column, _) in inferred.items() if column}
    whys = reasons(
        frame, {n: why for n, (_, why) in inferred.items()}, codecs, relations(codecs, frame.columns)
    )
    columns = [
        Description(name, column.kind if column else "refused", whys[name])
        for name, (column, _) in inferred.items()
    ]
    seen = inspect_frame(frame, columns)
    return seen if how.dates else replace(seen, suspicions=[*seen.suspicions, *unsure_dates(frame)])


def inspect_frame(frame: Frame, columns: list[Description]) -> Inspection:
    """The same of a frame whose columns are described already.

    >>> frame = read_frame(np.array([[1.0], [1.0]]))
    >>> inspect_frame(frame, [Description("x0", "constant", "one value")]).suspicions[0].kind
    'constant'
    """
    glances = [
        ColumnGlance(
            **asdict(column),
            missing=int(cells.missing.sum()),
            values=len(np.unique(cells.values[~cells.missing])),
        )
        for column, cells in zip(columns, frame.columns.values(), strict=True)
    ]
    refused = [
        Suspicion("refused", (column.name,), f"{column.name!r} cannot be fitted", column.reason.rstrip("."))
        for column in columns
        if column.kind == "refused"
    ]
    odd = suspicions(frame.columns, {column.name: column.kind for column in columns})
    return Inspection(len(frame), glances, refused + odd, frame.table_type.backend)


def _inferred(
    name: str, cells: Cells, requested: Column | None, named: bool
) -> tuple[InferredColumn | None, str]:
    """A column as a fit would take it, and why; None for one that a fit would refuse."""
    try:
        column = infer_column(name, cells, requested, False, True, named)
    except ValueError as error:
        return None, str(error)
    return column, column.reason
