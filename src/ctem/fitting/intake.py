"""What a fit learns from: a table in memory, or a pool of rows of one that does not fit into it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data
from torch import Tensor

from ctem.densities.anyorder.settings import Settings
from ctem.fitting.learning import settings_for, weighted_rows
from ctem.fitting.streaming import Pool, Span, held_out_span, shuffled, survey
from ctem.tables.answers.density import find_device
from ctem.tables.encoding.sketches import Sketch, completed, rows_of_cells
from ctem.tables.inference.kinds import kind_names
from ctem.tables.inference.suspicions import remarks, unsure_dates
from ctem.tables.io.files import read_path
from ctem.tables.io.frame import Frame, TableType, read_frame
from ctem.tables.io.given import read_as_fitted, renamed, text_types
from ctem.tables.io.large import LargeTable, is_large, open_large
from ctem.tables.io.recognition import Reading, recognised
from ctem.tables.io.rows import taken
from ctem.tables.io.terminal import print_columns
from ctem.tables.schema import Schema, readings
from ctem.training.loop import Refresh
from ctem.training.processes import team

__all__ = ["Intake", "intake"]

JUDGED = 2**16  # rows of a large table by which independent columns are judged
KEYS = 2**64 - 1


@dataclass(frozen=True)
class Intake:
    """The rows of a fit, read and encoded.

    Arguments:
        table: rows as they came, for their names.
        frame: the rows, or a sample of them.
        schema: the columns.
        settings: what suits them.
        x: encoded rows (n, d) on the device, or those that are in memory at first.
        weights: of the rows of x (n,), or None.
        kept: rows that are held out, or None for folds of the frame.
        held_out: these rows, encoded.
        rows: how many there are in all.
        digest: SHA-256 of the encoded rows.
        refresh: brings other rows into x, or None.
        remarks: what a user should know of the columns before the fit.

    >>> Intake.__dataclass_params__.frozen
    True
    """

    table: Any
    frame: Frame
    schema: Schema
    settings: Settings
    x: Tensor
    weights: Tensor | None
    kept: Frame | None
    held_out: Tensor | None
    rows: int
    digest: str
    refresh: Refresh | None = None
    remarks: tuple[str, ...] = ()


@contextmanager
def intake(
    estimator: Any,
    arguments: Mapping[str, Any],
    X: Any,
    sample_weight: Any,
    X_val: Any,
    seed: int,
    memory: str | float,
) -> Iterator[Intake]:
    """Read and encode what is to be fitted; temporary files are there as long as this lasts.

    Arguments:
        estimator: a new one, for scikit-learn's checks of the names.
        arguments: of ``CTEM``.
        X: a table, or a large one (``ctem.tables.io.large``).
        sample_weight: of the rows of a table, or None.
        X_val: rows to stop and to choose by, or None.
        seed: of the sample and the order of a large table.
        memory: of the rows of a large table.

    >>> from ctem import CTEM
    >>> model = CTEM(width=8)
    >>> with intake(model, model.get_params(), np.eye(9), None, None, 0, "1GB") as found:
    ...     found.x.shape
    torch.Size([9, 9])
    """
    if not is_large(X):
        decimal, kinds = _reading(arguments).decimal, kind_names(arguments["kinds"])
        X = read_path(X, seed=seed, decimal=decimal, kinds=kinds)
        yield _whole(estimator, arguments, X, sample_weight, X_val)
        return
    if sample_weight is not None:
        raise ValueError("sample_weight: expected None with Parquet, a dataset or an iterator; give a table.")
    with open_large(X) as large:
        sketch = _surveyed(large, memory, seed, bool(arguments["verbose"]))
        if sketch.rows <= sketch.limit:
            yield _whole(estimator, arguments, large.as_came(sketch.sample()), None, X_val)
            return
        with _streamed(estimator, arguments, large, sketch, X_val) as streamed:
            yield streamed


def _surveyed(large: LargeTable, memory: str | float, seed: int, verbose: bool) -> Sketch:
    """The sketch of all files, some of them read by each process."""
    here = team()
    part = survey(large, memory, seed, verbose and here.first, here.rank, here.ranks)
    first, *others = here.gathered(part)
    for each in others:
        first.merge(each)
    return first


def _whole(estimator: Any, arguments: Mapping[str, Any], X: Any, sample_weight: Any, X_val: Any) -> Intake:
    """A table in memory."""
    frame = _frame(estimator, arguments, X)
    frame, weights = weighted_rows(frame, sample_weight)
    if len(frame) < 2:
        raise ValueError(f"X: expected at least 2 rows (of weight > 0); got n_samples = {len(frame)}.")
    schema = _schema(arguments, frame, len(frame), _by_column(frame, weights))
    x = schema.encode(frame).x.to(find_device(arguments["device"]))
    kept = None if X_val is None else _validation_rows(X_val, frame.table_type)
    return Intake(
        table=X,
        frame=frame,
        schema=schema,
        settings=settings_for(arguments, schema, len(x)),
        x=x,
        weights=weights,
        kept=kept,
        held_out=None if kept is None else schema.encode(kept).x.to(x),
        rows=len(frame),
        digest=hashlib.sha256(x.cpu().numpy().tobytes()).hexdigest(),
        remarks=_remarks(arguments, schema, frame),
    )


@contextmanager
def _streamed(
    estimator: Any, arguments: Mapping[str, Any], large: LargeTable, sketch: Sketch, X_val: Any
) -> Iterator[Intake]:
    """Rows of a large table, some in memory and the others on disk."""
    table, here = large.as_came(sketch.sample()), team()
    frame = _frame(estimator, arguments, table, sketch)
    stand_for = {name: rows_of_cells(cells, sketch.columns[name]) for name, cells in frame.columns.items()}
    known = {name: each for name, each in stand_for.items() if each is not None}
    schema, sample = _schema(arguments, frame, sketch.rows, known), taken(frame, slice(0, len(table)))
    held_out = Span(0, 0) if X_val is not None else held_out_span(sketch)
    is_held = held_out.of(sketch.sampled(), sketch.seed)
    kept = taken(sample, is_held) if X_val is None else _validation_rows(X_val, frame.table_type)
    judged = taken(sample, np.flatnonzero(~is_held)[:: max(1, len(table) // JUDGED)])
    settings = settings_for(arguments, schema, sketch.rows)
    span = _training_span(settings, held_out, sketch.rows - int(is_held.sum())).part(here.rank, here.ranks)
    text = [name for name in readings(frame) if sketch.columns[name].counts is None]
    notes, head = _remarks(arguments, schema, frame, 0), table[:2]
    sketch.parts.clear()
    del table, frame, sample  # before the pool takes their place
    verbose = bool(arguments["verbose"]) and here.first
    with shuffled(large, schema, judged.table_type, span, sketch.seed, verbose, text) as file:
        pool = Pool(file.rows, sketch.limit, settings.evaluate_every, schema.preparation, sketch.seed)
        x = pool.first().to(find_device(arguments["device"]))
        yield Intake(
            table=head,
            frame=judged,
            schema=schema,
            settings=settings,
            x=x,
            weights=None,
            kept=kept,
            held_out=schema.encode(kept).x.to(x),
            rows=sketch.rows,
            digest=_joint_digest(here.gathered(file.digest)),
            refresh=pool,
            remarks=notes,
        )


def _training_span(settings: Settings, held_out: Span, rows: int) -> Span:
    """The rows after the held-out ones, as many of them as training can draw."""
    draws = settings.steps * settings.batch_size * settings.members
    share = min(1.0, draws / rows)
    return Span(held_out.high, held_out.high + int((KEYS - held_out.high) * share) if share < 1 else KEYS)


def _joint_digest(digests: list[str]) -> str:
    """One digest for the parts of all processes."""
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


def _validation_rows(X_val: Any, table_type: TableType) -> Frame:
    """The rows of X_val in the columns of fit: by name where they have names, else by position."""
    try:
        frame = read_frame(read_path(X_val, text_types(table_type)))
    except (TypeError, ValueError) as error:
        raise type(error)(f"X_val: {str(error).removeprefix('X: ')}") from None
    expected, names = table_type.names, frame.table_type.names
    if frame.table_type.backend == "numpy" and len(names) == len(expected):
        return renamed(frame, table_type)
    if absent := [name for name in expected if name not in names]:
        raise ValueError(
            f"X_val: expected the columns of X; there is no {absent[0]!r} among {list(names)[:9]}."
        )
    fields = {field.name: field for field in frame.table_type.fields}
    kind = replace(frame.table_type, fields=tuple(fields[name] for name in expected))
    return read_as_fitted(Frame(kind, {name: frame.columns[name] for name in expected}), table_type, "X_val")


def _frame(estimator: Any, arguments: Mapping[str, Any], X: Any, sketch: Sketch | None = None) -> Frame:
    frame = read_frame(X)
    frame = frame if sketch is None else completed(frame, sketch.columns)
    frame = recognised(frame, _reading(arguments), kind_names(arguments["kinds"]))
    # names that scikit-learn refuses, before the work
    validate_data(estimator, X, skip_check_array=True)
    return frame


def _reading(arguments: Mapping[str, Any]) -> Reading:
    return Reading.of(arguments["reading"])


def _remarks(
    arguments: Mapping[str, Any], schema: Schema, frame: Frame, rows: int | None = None
) -> tuple[str, ...]:
    """Of the columns of a frame, of which so many rows are those of the table; by one process only."""
    kinds = {name: inferred.kind for name, inferred in schema.columns.items()}
    unsure = [] if _reading(arguments).dates else map(str, unsure_dates(frame))
    return (*remarks(frame.columns, kinds, rows), *unsure) if team().first else ()


def _by_column(frame: Frame, weights: Tensor | None) -> dict[str, NDArray[np.float64]]:
    """How many rows each cell of a column stands for, by weights of the rows; nothing without them."""
    if weights is None:
        return {}
    each = (weights * (len(weights) / weights.sum())).numpy()
    return dict.fromkeys(frame.columns, each)


def _schema(
    arguments: Mapping[str, Any], frame: Frame, rows: int, weights: Mapping[str, NDArray[np.float64]]
) -> Schema:
    wishes = {name: arguments[name] for name in ("kinds", "missing", "unknown", "rules")}
    schema = Schema.fit(frame, **wishes, weights=weights)
    if arguments["verbose"] and team().first:
        print_columns([asdict(column) for column in schema.describe()], f"{rows} rows")
    return schema
