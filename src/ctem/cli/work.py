"""What the commands of ``ctem.cli.commands`` do: each reads a table or a model, asks the estimator, and writes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import typer
from sklearn.utils import check_random_state

from ctem.cli.border import Stopped
from ctem.cli.commands import Fit, Impute, Outliers, Report, Sample, Score
from ctem.cli.facts import quality_in_words, reading_of
from ctem.cli.options import ModelOptions, RowOptions
from ctem.cli.parts import Answer, Crew, answer_parts, imputed, sample_parts, scored, strange
from ctem.cli.streams import Lowest, bar, dialect, drawn_table, explained, fit_table, known_table, streams
from ctem.cli.words import column_kinds, conditions
from ctem.estimators.estimator import CTEM
from ctem.persistence.atomic import check_target, is_regular
from ctem.report import write_report
from ctem.tables.answers.events import split_given
from ctem.tables.inference.kinds import kind_names
from ctem.tables.io.csv_files import Dialect
from ctem.tables.io.files import BATCH, MAX_ROWS, open_sink, reservoir
from ctem.tables.io.large import LargeTable, is_parquet, open_large
from ctem.tables.io.terminal import note
from ctem.tables.io.writings import Writing
from ctem.training.checkpoints import claimed, files_of, forget
from ctem.training.cut import cut_by_time
from ctem.training.processes import together

JUDGED = 20_000  # rows of a large table by which samples are judged


def fit(options: Fit) -> None:
    """Learn the density of a table, and save it."""
    output, quiet, resume = options.output, options.quiet, options.resume
    layout = dialect(options)
    check_target(output)
    checkpoint = output.with_name(f"{output.name}.checkpoint") if is_regular(output) else None
    if resume and checkpoint is None:
        raise ValueError(f"--resume: {output} is no file, and has no checkpoint beside it.")
    older = checkpoint is not None and output.exists()
    model = CTEM(
        kinds=column_kinds(options.kinds or []) or None,
        rules=options.rules or None,
        missing="state" if options.missing_as_state else "hidden",
        reading=reading_of(options),
        effort=options.effort,
        max_steps=options.max_steps,
        max_time=options.max_time,
        random_state=options.seed,
        device=options.device,
        checkpoint=checkpoint,
        verbose=int(not quiet),
    )
    how = {"decimal": options.decimal, "kinds": kind_names(model.kinds)}
    with together() as here:
        alone = quiet or not here.first
        with _rows_to_fit(options, alone, how, layout) as X:
            here.agreed(lambda: None if resume else _begin(checkpoint))
            _learn(model, X, options.memory, older)
            if here.first:
                _judge(model, X, options.seed)
                model.save(output)
                _end(model, output, checkpoint, quiet)


@contextmanager
def _rows_to_fit(options: Fit, quiet: bool, how: Mapping[str, Any], layout: Dialect) -> Iterator[Any]:
    """A large table where a fit may stream, otherwise a table of at most ``max_rows`` rows."""
    path, drop, rows, seed = options.table, options.drop or [], options.max_rows, options.seed
    if not is_parquet(path):
        yield fit_table(path, drop, rows or MAX_ROWS, seed, quiet, how, layout)
        return
    layout.check_unused(path)
    with open_large(path) as large:
        if absent := [name for name in drop if name not in large.schema.names]:
            raise ValueError(f"--drop: {absent[0]!r} is not in {path}, which has {large.schema.names}.")
        kept = large.without(drop)
        if rows is None or rows >= kept.rows:
            yield kept
            return
        if not quiet:
            note(f"{path}: {kept.rows} rows; a random sample of {rows} is used (seed {seed})")
        yield _sampled(kept, rows, seed)


def _sampled(large: LargeTable, rows: int, seed: int) -> Any:
    return reservoir((batch.table for batch in large.batches()), rows, seed)[0]


def _begin(checkpoint: Path | None) -> None:
    """Forget what an earlier fit has learned, unless that is going on."""
    with claimed(checkpoint):
        forget(checkpoint)


def _judge(model: CTEM, X: Any, seed: int) -> None:
    """Keep with the model how well its samples pass for real rows."""
    rows = _sampled(X, JUDGED, seed) if isinstance(X, LargeTable) else X
    model.held_out_ = replace(model.held_out_, realism=model.realism(rows))


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
        warned = cut_by_time(model.max_time, facts["steps"], model.settings_.longest)
        if facts["still_improving"] and not warned:
            note(facts["still_improving"])


def score(options: Score) -> None:
    """Write the log-density of every row."""
    _answer(options, partial(scored, options.append, options.columns, options.given))


def impute(options: Impute) -> None:
    """Write the table with its missing cells filled in."""
    _answer(options, partial(imputed, options.method, options.draws), options.seed)


def sample(options: Sample) -> None:
    """Write new rows."""
    fitted = CTEM.load(options.model, options.device)
    draw = partial(_drawn, _conditions(fitted, options.given, options.quiet), options.with_missing)
    if options.engine == "ray":
        sample_parts(options.model, options.n, options.output, options.seed, draw, _crew(options))
        return
    rng = _random(fitted, options.seed)
    with open_sink(options.output, options.format) as sink, bar(options.n, options.quiet) as advance:
        for start in range(0, options.n, BATCH):
            rows = draw(fitted, min(BATCH, options.n - start), rng)
            sink.write(drawn_table(fitted, rows))
            advance(len(rows))


def _drawn(known: dict[str, Any] | None, with_missing: bool, model: CTEM, n: int, rng: Any) -> Any:
    return model.sample(n, random_state=rng, given=known, with_missing=with_missing)


def outliers(options: Outliers) -> None:
    """Write the strangest rows."""
    n, alpha, layout = options.n, options.alpha, dialect(options)
    if alpha is not None and not 0 < alpha <= 1:
        raise typer.BadParameter(
            f"expected a share above 0 and at most 1; got {alpha}.", param_hint="--alpha"
        )
    if _crew(options).needed(options.table) and (alpha is None or n is not None):
        raise ValueError(
            "--alpha: expected with a folder or --engine ray, and no --rows: parts know no order."
        )
    if alpha is not None and _in_parts(options, partial(strange, alpha), None, layout):
        return
    fitted = CTEM.load(options.model, options.device)
    lowest = Lowest(n or (10 if alpha is None else sys.maxsize))
    with streams(fitted, options.table, options.output, options.format, options.quiet, layout) as (
        parts,
        write,
    ):
        for part, X in parts:
            p = fitted.p_values(X)
            p = p if alpha is None else np.where(p <= alpha, p, np.inf)
            lowest.add(part, X, p, -fitted.outlier_scores(X))
        strangest = fitted.outliers(lowest.X, len(lowest.rows)) if len(lowest.rows) else []
        write(explained(strangest, lowest.rows, lowest.table))


def report(options: Report) -> None:
    """Write the report."""
    layout = dialect(options)
    check_target(options.output)
    fitted = CTEM.load(options.model, options.device)
    X, held_out = (
        None if table is None else known_table(fitted, table, options.max_rows, options.quiet, layout)
        for table in (options.table, options.held_out)
    )
    with redirect_stdout(sys.stderr):
        name = "" if options.table == "-" else Path(options.table).name
        write_report(fitted, X, options.output, held_out=held_out, name=name)
    if not options.quiet:
        note(f"{options.output}: written")


def _answer(options: RowOptions, answer: Answer, seed: int | None = None) -> None:
    """Answer for every batch of the table."""
    layout = dialect(options)
    if _in_parts(options, answer, seed, layout):
        return
    fitted, start = CTEM.load(options.model, options.device), 0
    rng = _random(fitted, seed)
    with streams(fitted, options.table, options.output, options.format, options.quiet, layout) as (
        parts,
        write,
    ):
        for part, X in parts:
            write(answer(fitted, part, X, start, rng))
            start += len(part)


def _in_parts(options: RowOptions, answer: Answer, seed: int | None, layout: Dialect) -> bool:
    """Answer part by part, if that is how the table or the engine has it; whether it was done."""
    crew = _crew(options)
    if crew.needed(options.table):
        layout.check_unused(options.table)
        answer_parts(options.model, options.table, options.output, answer, seed, crew)
        return True
    return False


def _crew(options: ModelOptions) -> Crew:
    return Crew(options.engine, options.workers, options.device, options.quiet)


def _random(fitted: CTEM, seed: int | None) -> Any:
    """The random numbers, by default those of the model's own seed."""
    return check_random_state(fitted.random_state if seed is None else seed)


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
