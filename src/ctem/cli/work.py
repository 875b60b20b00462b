"""What the commands do: each reads a table or a model, asks the estimator, and writes.

Apart from ``ctem.cli.commands``, which declares the options: this imports torch, and ``ctem --help`` need not wait.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import typer
from sklearn.utils import check_random_state

from ctem.cli.border import Stopped
from ctem.cli.facts import quality_in_words, reading_of
from ctem.cli.large import rows_to_fit, some_rows
from ctem.cli.parts import Answer, Crew, Finding, Imputing, Scoring, answer_parts, sample_parts
from ctem.cli.streams import (
    Lowest,
    Parts,
    bar,
    drawn_table,
    explained,
    known_table,
    streams,
)
from ctem.cli.words import column_kinds, conditions
from ctem.estimators.estimator import CTEM
from ctem.persistence.atomic import check_target, is_regular
from ctem.report import write_report
from ctem.tables.answers.events import split_given
from ctem.tables.inference.kinds import kind_names
from ctem.tables.io.csv_files import Dialect
from ctem.tables.io.files import BATCH, open_sink
from ctem.tables.io.terminal import note
from ctem.tables.io.writings import Writing
from ctem.training.checkpoints import claimed, files_of, forget
from ctem.training.processes import together


def fit(
    table: str,
    output: Path,
    kinds: list[str] | None,
    rules: list[str] | None,
    drop: list[str] | None,
    effort: str,
    max_time: float | None,
    max_steps: int | None,
    max_rows: int | None,
    memory: str,
    seed: int,
    device: str,
    resume: bool,
    na: list[str] | None,
    decimal: str | None,
    dates: str | None,
    dialect: Dialect,
    missing_as_state: bool,
    quiet: bool,
) -> None:
    """Learn the density of a table and write it to MODEL."""
    check_target(output)
    checkpoint = output.with_name(f"{output.name}.checkpoint") if is_regular(output) else None
    if resume and checkpoint is None:
        raise ValueError(f"--resume: {output} is no file, and has no checkpoint beside it.")
    older = checkpoint is not None and output.exists()
    model = CTEM(
        kinds=column_kinds(kinds or []) or None,
        rules=rules or None,
        missing="state" if missing_as_state else "hidden",
        reading=reading_of(decimal, dates, na),
        effort=effort,
        max_steps=max_steps,
        max_time=max_time,
        random_state=seed,
        device=device,
        checkpoint=checkpoint,
        verbose=int(not quiet),
    )
    how = {"decimal": decimal, "kinds": kind_names(model.kinds)}
    with together() as here:
        alone = quiet or not here.first
        with rows_to_fit(table, drop or [], max_rows, seed, alone, how, dialect) as X:
            here.agreed(lambda: None if resume else _begin(checkpoint))
            _learn(model, X, memory, older)
            if here.first:
                _judge(model, X, seed)
                model.save(output)
                _end(model, output, checkpoint, quiet)


def _begin(checkpoint: Path | None) -> None:
    """Forget what an earlier fit has learned, unless that is going on."""
    with claimed(checkpoint):
        forget(checkpoint)


def _judge(model: CTEM, X: Any, seed: int) -> None:
    """Keep with the model how well its samples pass for real rows."""
    model.held_out_ = replace(model.held_out_, realism=model.realism(some_rows(X, seed)))


def _learn(model: CTEM, X: Any, memory: str, older: bool) -> None:
    """Fit; what was learned before an interruption stays in the checkpoint, and a note mentions it."""
    try:
        with redirect_stdout(sys.stderr):
            model.fit(X, memory=memory)
        if model.density_.history.interrupted and older:  # a whole model gives its place to a whole one only
            raise KeyboardInterrupt
    except (KeyboardInterrupt, Stopped):
        if files_of(model.checkpoint):
            note("what was learned is kept: the same command with --resume goes on from there")
        raise


def _end(model: CTEM, output: Path, checkpoint: Path | None, quiet: bool) -> None:
    """Print what a fit has come to, and forget how to go on unless it was interrupted."""
    if model.density_.history.interrupted:
        note(f"{output} holds what was learned so far: {quality_in_words(model)}")
        note("the same command with --resume goes on from there")
        raise KeyboardInterrupt
    forget(checkpoint)
    if not quiet:
        facts = model.describe()
        note(
            f"{output}: {facts['rows']} rows, {len(facts['columns'])} columns, {facts['steps']} steps "
            f"in {facts['seconds']:.0f} s"
        )
        for part in quality_in_words(model).split("; "):
            note(part)
        if facts["still_improving"] and model.max_time is None:  # with a time there was a warning
            note(facts["still_improving"])


@dataclass(frozen=True)
class Job:
    """What the commands that ask a model share: which model, which table, where to, and who does it."""

    model: Path
    output: str
    engine: str
    workers: int | None
    format: str | None
    device: str
    quiet: bool
    table: str = ""
    dialect: Dialect = Dialect()  # noqa: RUF009  (frozen)
    seed: int | None = None

    @property
    def crew(self) -> Crew:
        """Who does it."""
        return Crew(self.engine, self.workers, self.device, self.quiet)

    def loaded(self) -> CTEM:
        """The model."""
        return CTEM.load(self.model, self.device)

    def random(self, fitted: CTEM) -> Any:
        """The random numbers, by default those of the model's own seed."""
        return check_random_state(fitted.random_state if self.seed is None else self.seed)

    def streams(self, fitted: CTEM) -> AbstractContextManager[tuple[Parts, Callable[[pa.Table], None]]]:
        """Batches of the table, and where to write."""
        return streams(fitted, self.table, self.output, self.format, self.quiet, self.dialect)

    def in_parts(self, answer: Answer) -> bool:
        """Answer part by part, if that is how the table or the engine has it; whether it was done."""
        if self.crew.needed(self.table):
            self.dialect.check_unused(self.table)
            answer_parts(self.model, self.table, self.output, answer, self.seed, self.crew)
            return True
        return False

    def answer(self, answer: Answer) -> None:
        """Answer for every batch of the table."""
        if self.in_parts(answer):
            return
        fitted, start = self.loaded(), 0
        rng = self.random(fitted)
        with self.streams(fitted) as (parts, write):
            for part, X in parts:
                write(answer(fitted, part, X, start, rng))
                start += len(part)


def score(job: Job, append: bool, columns: list[str] | None, given: list[str] | None) -> None:
    """Write the log-density of every row, in nats, as a column log_density."""
    job.answer(Scoring(append, columns, given))


def sample(job: Job, n: int, given: list[str] | None, with_missing: bool) -> None:
    """Write new rows, drawn from the density, or of those that meet conditions."""
    fitted = job.loaded()
    draw = partial(_drawn, _conditions(fitted, given, job.quiet), with_missing)
    if job.engine == "ray":
        sample_parts(job.model, n, job.output, job.seed, draw, job.crew)
        return
    rng = job.random(fitted)
    with open_sink(job.output, job.format) as sink, bar(n, job.quiet) as advance:
        for start in range(0, n, BATCH):
            rows = draw(fitted, min(BATCH, n - start), rng)
            sink.write(drawn_table(fitted, rows))
            advance(len(rows))


def _drawn(known: dict[str, Any] | None, with_missing: bool, model: CTEM, n: int, rng: Any) -> Any:
    return model.sample(n, random_state=rng, given=known, with_missing=with_missing)


def impute(job: Job, method: str, draws: int) -> None:
    """Write the table with its missing cells filled in; what was observed stays."""
    job.answer(Imputing(method, draws))


def outliers(job: Job, n: int | None, alpha: float | None) -> None:
    """Write the strangest rows, the strangest first, with what makes them so."""
    if alpha is not None and not 0 < alpha <= 1:
        raise typer.BadParameter(
            f"expected a share above 0 and at most 1; got {alpha}.", param_hint="--alpha"
        )
    if job.crew.needed(job.table) and (alpha is None or n is not None):
        raise ValueError(
            "--alpha: expected with a folder or --engine ray, and no --rows: parts know no order."
        )
    if alpha is not None and job.in_parts(Finding(alpha)):
        return
    fitted = job.loaded()
    lowest = Lowest(n or (10 if alpha is None else sys.maxsize))
    with job.streams(fitted) as (parts, write):
        for part, X in parts:
            p = fitted.p_values(X)
            p = p if alpha is None else np.where(p <= alpha, p, np.inf)
            lowest.add(part, X, p, -fitted.outlier_scores(X))
        strangest = fitted.outliers(lowest.X, len(lowest.rows)) if len(lowest.rows) else []
        write(explained(strangest, lowest.rows, lowest.table))


def report(
    model: Path,
    table: str,
    output: Path,
    held_out: str | None,
    max_rows: int,
    dialect: Dialect,
    device: str,
    quiet: bool,
) -> None:
    """Write one HTML file on what was learned: how good it is, columns, samples, outliers, privacy."""
    check_target(output)
    fitted = CTEM.load(model, device)
    X = known_table(fitted, table, max_rows, quiet, dialect)
    others = None if held_out is None else known_table(fitted, held_out, max_rows, quiet, dialect)
    with redirect_stdout(sys.stderr):
        write_report(fitted, X, output, held_out=others, name="" if table == "-" else Path(table).name)
    if not quiet:
        note(f"{output}: written")


def _conditions(model: CTEM, texts: list[str] | None, quiet: bool) -> dict[str, Any] | None:
    """The conditions of --given, after a word on how likely those are that are ranges."""
    if not texts:
        return None
    fields = model.table_type_.fields
    written = {field.name: Writing.from_json(field.written) for field in fields if field.written is not None}
    given = conditions(texts, {name: choice.codec for name, choice in model.schema_.columns.items()}, written)
    known, ranges = split_given(given, model.schema_)
    p = model.probability(ranges, known) if ranges and not quiet else None
    if p is not None and p.value:  # else nothing can be drawn, and the error has the reason
        note(f"--given: probability {p.value:.3g} ± {p.stderr:.1g}, by {p.ess:.0f} effective draws")
    return given
