"""Tables answered part by part, here or by Ray: each part is a Parquet file, which appears when it is whole.

A part is some row groups of a file; its answer depends on its number and nothing else, so that whoever computes it, and
however often, the file is the same. The names of the files keep the order of the rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ctem.cli.streams import (
    bar,
    check_names,
    drawn_table,
    explained,
    filled_in,
    fresh,
    model_input,
    numbered,
    picked,
)
from ctem.estimators.estimator import CTEM
from ctem.estimators.ray import loaded, spread
from ctem.fitting.streaming import located
from ctem.persistence.atomic import forget_parts
from ctem.tables.io.files import BATCH, Table, open_sink
from ctem.tables.io.large import is_parquet, open_large
from ctem.tables.io.terminal import note

__all__ = ["Crew"]

PART = 2**18  # rows of a part, about
WAIT = 30.0  # seconds for workers that are still writing after an error


@dataclass(frozen=True)
class Crew:
    """Who does the work: "here", one part after the other, or "ray" with so many workers.

    >>> Crew("here").workers is None
    True
    """

    engine: str
    workers: int | None = None
    device: str = "auto"
    quiet: bool = False

    def needed(self, table: str) -> bool:
        """Whether a table is answered in parts: by Ray, or because it is a folder or a URL."""
        return self.engine == "ray" or "://" in table or Path(table).is_dir()


class Answer(Protocol):
    """What is written for a batch of a table."""

    def __call__(self, model: CTEM, part: Table, X: Any, start: int, rng: Any) -> Table:
        """The table to write, of a batch as it is and as the model takes it, and the number of its first row."""


def scored(
    append: bool,
    columns: list[str] | None,
    given: list[str] | None,
    model: CTEM,
    part: Table,
    X: Any,
    start: int,
    rng: Any,
) -> Table:
    """The log-density of every row, as a column log_density, beside the rows if they are to be appended."""
    values = pa.array(model.log_density(X, columns or None, given or ()))
    name = fresh("log_density", part.column_names if append else [])
    return part.add_column(0, name, values) if append else pa.table({name: values})


def imputed(method: str, draws: int, model: CTEM, part: Table, X: Any, start: int, rng: Any) -> Table:
    """The rows with their missing cells filled in; several draws one after the other."""
    if draws == 1:
        return filled_in(model, part, X, model.impute(X, method, 1, rng))
    several = enumerate(model.impute(X, method, draws, rng))
    return pa.concat_tables([numbered(filled_in(model, part, X, filled), draw) for draw, filled in several])


def strange(alpha: float, model: CTEM, part: Table, X: Any, start: int, rng: Any) -> Table:
    """The rows with a p-value of at most alpha, and why."""
    rows = np.flatnonzero(model.p_values(X) <= alpha)
    outliers = model.outliers(picked(None, X, rows), len(rows)) if len(rows) else []
    return explained(outliers, start + rows, picked(None, part, rows))


def answer_parts(model: Path, table: str, output: str, answer: Answer, seed: int | None, crew: Crew) -> None:
    """Write the answers to all parts of a table into a folder."""
    if not is_parquet(table):
        raise ValueError(f"{table}: expected a Parquet file, a folder of them or a URL with --engine ray.")
    content = model.read_bytes()
    with open_large(table) as large:
        whole = large.split(PART)
        check_names(loaded(content, "cpu"), list(large.schema.names), table, crew.quiet)
    count = len(whole.files)
    with _filled(output, count) as folder:
        make = partial(_answering, content, crew.device, table, answer, seed, folder)
        _run(count, whole.rows, crew, make)
    if not crew.quiet:
        note(f"{folder}: {whole.rows} rows answered, {len(whole.files)} files")


def sample_parts(
    model: Path, n: int, output: str, seed: int | None, draw: Callable[[CTEM, int, Any], Any], crew: Crew
) -> None:
    """Write n drawn rows into a folder."""
    count = -(-n // PART)
    with _filled(output, count) as folder:
        _run(count, n, crew, partial(_sampling, model.read_bytes(), crew.device, n, draw, seed, folder))
    if not crew.quiet:
        note(f"{folder}: {n} rows drawn, {count} files")


def _run(count: int, rows: int, crew: Crew, make: Callable[[], Callable[[int], int]]) -> None:
    """Do all parts; an error if they do not add up to the rows."""
    with bar(rows, crew.quiet) as advance:
        done = 0
        parts = spread(count, make, crew.workers) if crew.engine == "ray" else map(make(), range(count))
        for answered in parts:
            advance(answered)
            done += answered
    if done != rows:
        raise ValueError(f"expected {rows} rows in all parts; got {done}.")


@contextmanager
def _filled(output: str, count: int) -> Iterator[Path]:
    """A folder for the parts, new or empty; it is so again if not all of them can be written."""
    folder = Path(output)
    if output == "-" or folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ValueError(
            f"--output: expected a new or empty folder for the parts of the answer; got {output}."
        )
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    files = [_named(folder, number) for number in range(count)]
    try:
        yield folder
    except BaseException as error:
        until = time.monotonic() + WAIT
        while not _emptied(folder, files, new) and time.monotonic() < until:
            time.sleep(0.1)
        if new and folder.exists():
            error.add_note(f"{folder}: holds parts that workers wrote after the error.")
        raise
    for file in files:
        forget_parts(file)  # what a killed worker has begun


def _emptied(folder: Path, files: Sequence[Path], new: bool) -> bool:
    """Whether the parts could be removed, and the folder if it is new: a worker that is ending may still write one."""
    for file in files:
        file.unlink(missing_ok=True)
        forget_parts(file)
    try:
        if new:
            folder.rmdir()
        return new or not any(folder.iterdir())
    except OSError:  # not empty
        return False


def _answering(
    content: bytes, device: str, table: str, answer: Answer, seed: int | None, folder: Path
) -> Callable[[int], int]:
    """The work of one worker: it has the model, and reads the parts that it is given."""
    model = loaded(content, device)
    with open_large(table) as large:
        whole = large.split(PART)

    def work(number: int) -> int:
        rng, file = _random(model, seed, number), whole.files[number]
        with open_sink(str(_named(folder, number))) as sink:
            for batch in replace(whole, files=(file,)).batches():
                with located(batch):
                    X = model_input(model, batch.table)
                    made = answer(model, batch.table, X, batch.start, rng)
                sink.write(made)
        return file.rows

    return work


def _sampling(
    content: bytes,
    device: str,
    n: int,
    draw: Callable[[CTEM, int, Any], Any],
    seed: int | None,
    folder: Path,
) -> Callable[[int], int]:
    model = loaded(content, device)

    def work(number: int) -> int:
        rng, rows = _random(model, seed, number), min(PART, n - number * PART)
        with open_sink(str(_named(folder, number))) as sink:
            for start in range(0, rows, BATCH):
                made = draw(model, min(BATCH, rows - start), rng)
                sink.write(drawn_table(model, made))
        return rows

    return work


def _named(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.parquet"


def _random(model: CTEM, seed: int | None, number: int) -> np.random.RandomState:
    """The random numbers of a part."""
    root = model.seed_ if seed is None else seed
    return np.random.RandomState(np.random.SeedSequence([root, number]).generate_state(4))
