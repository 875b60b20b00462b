"""The commands: each reads a table or a model, asks the estimator, and writes."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.console import Console
from sklearn.utils import check_random_state

from ctem.atomic import check_target, is_regular
from ctem.cli.application import app
from ctem.cli.border import Stopped
from ctem.cli.options import (
    Device,
    FitSeed,
    Format,
    Given,
    ModelIn,
    Output,
    Quiet,
    Seed,
    TableIn,
    column_kinds,
    conditions,
)
from ctem.cli.streams import (
    Lowest,
    bar,
    explained,
    filled_in,
    fit_table,
    fresh,
    known_table,
    numbered,
    streams,
)
from ctem.estimator import CTEM
from ctem.persistence import provenance
from ctem.tables.answers.events import split_given
from ctem.tables.frames.files import BATCH, as_arrow, open_sink, pyarrow
from ctem.terminal import print_columns, say, shown
from ctem.training.checkpoints import claimed, files_of, forget

MAX_ROWS = 1_000_000
REPORT_ROWS = 100_000


@app.command()
def fit(
    table: TableIn,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="MODEL", help="The model file to write.")],
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            "-k",
            metavar="NAME=KIND",
            help="real (or real:LOW..HIGH), category or ordinal; repeat it.",
        ),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Leave a column out; repeat it.")
    ] = None,
    effort: Annotated[
        Literal["quick", "default", "best"],
        typer.Option(help="How large the networks are and how long they learn."),
    ] = "default",
    fast: Annotated[
        bool, typer.Option("--fast", help="Also learn a potential for ctem score --fast.")
    ] = False,
    max_time: Annotated[float | None, typer.Option(help="Seconds of the whole fit, at most about.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Training steps, at most.")] = None,
    max_rows: Annotated[
        int, typer.Option(min=2, help="Of a longer table a random sample of this many rows is used.")
    ] = MAX_ROWS,
    seed: FitSeed = 0,
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a killed fit stopped.")] = False,
    missing_as_state: Annotated[
        bool, typer.Option("--missing-as-state", help="Being missing is a value like another, not unknown.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Learn the density of a table and write it to MODEL.

    Column kinds are read off the data and printed with the reason.
    While it trains, MODEL.checkpoint.* beside the model keeps what was learned;
    after a kill the same command with --resume goes on from there, to the same bits.

    \b
    ctem fit adult.csv -o adult.ctem --max-time 300
    ctem fit adult.csv -o adult.ctem --kind zip=category --drop id
    zcat big.csv.gz | ctem fit - -o big.ctem --max-rows 200000 --resume
    """
    said = column_kinds(kinds or [])
    check_target(output)
    checkpoint = output.with_name(f"{output.name}.checkpoint") if is_regular(output) else None
    if resume and checkpoint is None:
        raise ValueError(f"--resume: {output} is no file, and has no checkpoint beside it.")
    X = fit_table(table, drop or [], max_rows, seed, quiet)
    with claimed(checkpoint):
        if not resume:
            forget(checkpoint)
    model = CTEM(
        kinds=said or None,
        missing="state" if missing_as_state else "hidden",
        effort=effort,
        fast=fast,
        max_steps=max_steps,
        max_time=max_time,
        random_state=seed,
        device=device,
        checkpoint=checkpoint,
        verbose=int(not quiet),
    )
    try:
        with redirect_stdout(sys.stderr):
            model.fit(X)
    except (KeyboardInterrupt, Stopped):
        if files_of(checkpoint):
            say("what was learned is kept: the same command with --resume goes on from there")
        raise
    model.save(output)
    forget(checkpoint)
    if not quiet:
        facts = model.describe()
        say(
            f"{output}: {facts['rows']} rows, {len(facts['columns'])} columns, {facts['steps']} steps "
            f"in {facts['seconds']:.0f} s{_fast_in_words(facts['fast'])}"
        )
        say(_quality_in_words(model))


@app.command()
def score(
    model: ModelIn,
    table: TableIn = "-",
    output: Output = "-",
    fast: Annotated[
        bool, typer.Option("--fast", help="Complete rows in one pass, by the potential of ctem fit --fast.")
    ] = False,
    append: Annotated[bool, typer.Option("--append", help="Write the rows of the table, too.")] = False,
    columns: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only of this column, the others marginalised; repeat it."),
    ] = None,
    given: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Given this column; repeat it.")
    ] = None,
    format: Format = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Write the log-density of every row, in nats, as a column log_density.

    Per unit of each real column (dates: per day); missing cells are marginalised.
    Columns go by name; those that the model does not know are left out.

    \b
    ctem score adult.ctem new.parquet -o scores.parquet
    ctem score adult.ctem new.csv --append | sort -t, -k1 -g | head
    ctem score adult.ctem new.csv --columns income --given age --given education
    """
    if fast and (columns or given):
        raise typer.BadParameter(
            "expected --fast, which scores whole rows, or --columns and --given; got both."
        )
    fitted = _load(model, device)
    with streams(fitted, table, output, format, quiet) as (parts, write):
        for part, X in parts:
            found = (
                fitted.score_samples(X, True) if fast else fitted.log_density(X, columns or None, given or ())
            )
            values = pyarrow().array(found)
            name = fresh("log_density", part.column_names if append else [])
            write(part.add_column(0, name, values) if append else pyarrow().table({name: values}))


@app.command()
def sample(
    model: ModelIn,
    n: Annotated[int, typer.Option("--rows", "-n", min=1, help="How many rows.")] = 1,
    given: Given = None,
    output: Output = "-",
    seed: Seed = None,
    format: Format = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Write new rows, drawn from the density, or of those that meet conditions.

    Ranges hold both of their ends. How likely the conditions are is said on standard error.

    \b
    ctem sample adult.ctem -n 1000 --seed 1 > new.csv
    ctem sample adult.ctem -n 1000000 -o new.parquet
    ctem sample adult.ctem -n 100 --given 'age=30..40' --given 'education=Masters|Doctorate'
    """
    fitted = _load(model, device)
    known = _conditions(fitted, given, quiet)
    rng = _random(fitted, seed)
    with open_sink(output, format) as sink, bar(n, quiet) as advance:
        for start in range(0, n, BATCH):
            rows = fitted.sample(min(BATCH, n - start), random_state=rng, given=known)
            sink.write(as_arrow(rows, fitted.table_type_.names))
            advance(len(rows))


@app.command()
def impute(
    model: ModelIn,
    table: TableIn = "-",
    output: Output = "-",
    method: Annotated[
        Literal["sample", "mode", "mean"],
        typer.Option(help="Draw the missing cells of a row together, or take each at its mode or mean."),
    ] = "sample",
    draws: Annotated[
        int, typer.Option(min=1, help="So many tables one after the other, with a column draw from 0.")
    ] = 1,
    seed: Seed = None,
    format: Format = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Write the table with its missing cells filled in; what was observed stays.

    \b
    ctem impute adult.ctem gaps.csv > filled.csv
    ctem impute adult.ctem gaps.parquet --method mode -o filled.parquet
    ctem impute adult.ctem gaps.csv --draws 5 -o five.csv
    """
    fitted = _load(model, device)
    rng = _random(fitted, seed)
    with streams(fitted, table, output, format, quiet) as (parts, write):
        for part, X in parts:
            made = fitted.impute(X, method, draws, rng)
            for draw, filled in enumerate(made if draws > 1 else [made]):
                whole = filled_in(fitted, part, X, filled)
                write(numbered(whole, draw) if draws > 1 else whole)


@app.command()
def outliers(
    model: ModelIn,
    table: TableIn = "-",
    n: Annotated[
        int | None, typer.Option("--rows", "-n", min=1, help="How many rows; 10, or all with --alpha.")
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Rows with a p-value of at most this: the share of false alarms among ordinary rows."
        ),
    ] = None,
    output: Output = "-",
    format: Format = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Write the strangest rows, the strangest first, with what makes them so.

    row counts from 0; score is in nats beyond the average row, whatever units and
    rounding; p_value is the share of rows that fit had not seen and that are as strange;
    why names up to three cells, and what was expected there given the others.

    \b
    ctem outliers adult.ctem adult.csv -n 20
    ctem outliers adult.ctem new.csv --alpha 0.01
    """
    if alpha is not None and not 0 < alpha < 1:
        raise typer.BadParameter(f"expected a share between 0 and 1; got {alpha}.", param_hint="--alpha")
    fitted = _load(model, device)
    lowest = Lowest(n or (10 if alpha is None else sys.maxsize))
    with streams(fitted, table, output, format, quiet) as (parts, write):
        for part, X in parts:
            rows = np.ones(len(part), bool) if alpha is None else fitted.p_values(X) <= alpha
            lowest.add(part, X, np.where(rows, -fitted.outlier_scores(X), np.inf))
        found = fitted.outliers(lowest.X, len(lowest.rows)) if len(lowest.rows) else []
        write(explained(found, lowest.rows, lowest.table))


@app.command()
def report(
    model: ModelIn,
    table: TableIn = "-",
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    held_out: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Rows that were not fitted, to be judged by.")
    ] = None,
    max_rows: Annotated[int, typer.Option(min=2, help="Rows that are looked at.")] = REPORT_ROWS,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Write one HTML file on what was learned: columns, training, log Z, marginals, pairs, outliers.

    \b
    ctem report adult.ctem adult.csv -o adult.html --held-out test.csv
    """
    from ctem.report import write_report

    check_target(output)
    fitted = _load(model, device)
    X = known_table(fitted, table, max_rows, quiet)
    others = None if held_out is None else known_table(fitted, held_out, max_rows, quiet)
    with redirect_stdout(sys.stderr):
        write_report(fitted, X, output, held_out=others)
    if not quiet:
        say(f"{output}: written")


@app.command()
def info(
    model: ModelIn,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what a model was made of, how, and what its columns are.

    \b
    ctem info adult.ctem
    ctem info adult.ctem --json | jq .columns
    """
    if sys.stdout is None:
        raise OSError("standard output is closed.")
    origin = provenance(model)
    fitted = _load(model, "cpu")
    facts = {**fitted.describe(), "provenance": origin}
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    print_columns(facts["columns"], str(model))
    origin = {key: shown(value) for key, value in origin.items()}
    Console().print(
        f"{facts['rows']} rows · {facts['steps']} steps in {facts['seconds']:.0f} s · seed {origin['seed']}\n"
        f"{facts['objective']}, effort {facts['effort']} · {_quality_in_words(fitted)}{_fast_in_words(facts['fast'])}\n"
        f"made {origin['created']} by ctem {origin['ctem']}, torch {origin['torch']}\n"
        f"data {origin['data_sha256'][:16]}…",
        highlight=False,
        markup=False,
    )


def _quality_in_words(model: CTEM) -> str:
    """How good a model is, as far as it knows."""
    if model.held_out_ is None:
        return f"independent columns {model.independent_score_:.2f} nats a row; no held-out rows are known"
    return str(model.held_out_)


def _fast_in_words(facts: dict[str, Any] | None) -> str:
    if facts is None:
        return ""
    gap = facts["gap"]
    return (
        f"; fast scores are {gap['mean']:+.2f} ± {gap['stderr']:.2g} nats from the density, "
        f"rank correlation {gap['rank_correlation']:.3f}"
    )


def _load(path: Path, device: str) -> CTEM:
    return CTEM.load(path, device)


def _conditions(model: CTEM, said: list[str] | None, quiet: bool) -> dict[str, Any] | None:
    """The conditions of --given, after a word on how likely those are that are ranges."""
    if not said:
        return None
    found = conditions(said, {name: choice.codec for name, choice in model.schema_.columns.items()})
    known, ranges = split_given(found, model.schema_)
    if ranges and not quiet:
        p = model.probability(ranges, known)
        say(f"--given: probability {p.value:.3g} ± {p.stderr:.1g}, by {p.ess:.0f} effective draws")
    return found


def _random(model: CTEM, seed: int | None) -> Any:
    return check_random_state(model.random_state if seed is None else seed)
