r"""The command line ``ctem``: fit, score, sample, impute, outliers, report, info.

Tables are CSV, Parquet or Arrow, "-" is standard input or output, and they are read and written in batches of
``ctem.table.files.BATCH`` rows, so memory does not grow with their length. Data go to standard output, everything else
to standard error. Exit codes: 0, done; 1, an error, said in one line; 2, wrong usage; 130, interrupted; 143, stopped.

Numbers are those of the Python API for the same seed. What is random takes its batches from one
``numpy.random.RandomState(seed)``, so the first batch is what ``random_state=seed`` gives.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Rows
from sklearn.utils import check_random_state

from ctem import __version__
from ctem.atomic import check_target, is_regular
from ctem.border import Border, Stopped
from ctem.estimator import CTEM
from ctem.persistence import provenance
from ctem.table.files import BATCH, as_arrow, open_sink, pyarrow
from ctem.table.streams import (
    Lowest,
    bar,
    explained,
    filled_in,
    fit_table,
    fresh,
    known_table,
    streams,
)
from ctem.terminal import say, shown

__all__ = ["app"]

MAX_ROWS = 1_000_000
REPORT_ROWS = 100_000
KINDS = ("real", "category", "ordinal")
PHASES = ("", ".first", ".last", ".steps", ".potential")


app = typer.Typer(
    cls=Border,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _device(name: str) -> str:
    if name not in ("auto", "cpu") and not name.startswith("cuda"):
        raise typer.BadParameter(f"expected auto, cpu or cuda; got {name!r}.")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter(f"no CUDA device was found; got {name!r}. Use cpu.")
    return name


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"ctem {__version__}")
        raise typer.Exit


def _kinds(said: list[str]) -> dict[str, str]:
    """name=kind as name → kind; a name may hold "=" itself."""
    found = {}
    for each in said:
        name, _, kind = each.rpartition("=")
        if not name or kind not in KINDS:
            raise typer.BadParameter(f"expected NAME=KIND, with a KIND of {', '.join(KINDS)}; got {each!r}.")
        found[name] = kind
    return found


TableIn = Annotated[str, typer.Argument(metavar="TABLE", help="CSV, Parquet or Arrow; - is standard input.")]
ModelIn = Annotated[Path, typer.Argument(metavar="MODEL", help="What ctem fit wrote.")]
Output = Annotated[str, typer.Option("--output", "-o", help="Where to; - is standard output.")]
Format = Annotated[
    Literal["csv", "parquet", "arrow"] | None,
    typer.Option(help="Of the output; by default as its name ends, and CSV on standard output."),
]
Device = Annotated[str, typer.Option(callback=_device, help="auto (a GPU where there is one), cpu or cuda.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No notes and no progress bar.")]
FitSeed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="The same seed gives the same bits.")]
Seed = Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="By default the model's own.")]


@app.callback()
def main(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Say which ctem this is.")
    ] = False,
) -> None:
    """A table in, a density out: real, discrete and mixed columns, with missing cells.

    \b
    ctem fit penguins.csv -o penguins.ctem
    ctem score penguins.ctem penguins.csv -o scores.csv
    ctem sample penguins.ctem -n 1000 > new.csv
    ctem impute penguins.ctem penguins.csv > filled.csv
    ctem outliers penguins.ctem penguins.csv -n 3
    ctem report penguins.ctem penguins.csv -o penguins.html
    """


@app.command()
def fit(
    table: TableIn,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="MODEL", help="The model file to write.")],
    columns: Annotated[
        list[str] | None,
        typer.Option("--columns", "-c", metavar="NAME=KIND", help="real, category or ordinal; repeat it."),
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
    max_time: Annotated[float | None, typer.Option(help="Seconds of training, at most about.")] = None,
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
    ctem fit adult.csv -o adult.ctem --columns zip=category --drop id
    zcat big.csv.gz | ctem fit - -o big.ctem --max-rows 200000 --resume
    """
    kinds = _kinds(columns or [])
    check_target(output)
    checkpoint = output.with_name(f"{output.name}.checkpoint") if is_regular(output) else None
    if resume and checkpoint is None:
        raise ValueError(f"--resume: {output} is no file, and has no checkpoint beside it.")
    X = fit_table(table, drop or [], max_rows, seed, quiet)
    if not resume:
        _forget(checkpoint)
    model = CTEM(
        columns=kinds or None,
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
        if checkpoint is not None and any(_files(checkpoint)):
            say("what was learned is kept: the same command with --resume goes on from there")
        raise
    model.save(output)
    _forget(checkpoint)
    if not quiet:
        facts = model.describe()
        say(
            f"{output}: {facts['rows']} rows, {len(facts['columns'])} columns, {facts['steps']} steps "
            f"in {facts['seconds']:.0f} s{_fast_in_words(facts['fast'])}"
        )


@app.command()
def score(
    model: ModelIn,
    table: TableIn = "-",
    output: Output = "-",
    fast: Annotated[
        bool, typer.Option("--fast", help="Complete rows in one pass, by the potential of ctem fit --fast.")
    ] = False,
    append: Annotated[bool, typer.Option("--append", help="Write the rows of the table, too.")] = False,
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
    """
    fitted = _load(model, device)
    with streams(fitted, table, output, format, quiet) as (parts, write):
        for part, X in parts:
            values = pyarrow().array(fitted.score_samples(X, fast))
            name = fresh("log_density", part.column_names if append else [])
            write(part.add_column(0, name, values) if append else pyarrow().table({name: values}))


@app.command()
def sample(
    model: ModelIn,
    n: Annotated[int, typer.Option("--rows", "-n", min=1, help="How many rows.")] = 1,
    output: Output = "-",
    seed: Seed = None,
    format: Format = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Write new rows, drawn from the density.

    \b
    ctem sample adult.ctem -n 1000 --seed 1 > new.csv
    ctem sample adult.ctem -n 1000000 -o new.parquet
    """
    fitted = _load(model, device)
    rng = _random(fitted, seed)
    with open_sink(output, format) as sink, bar(n, quiet) as advance:
        for start in range(0, n, BATCH):
            rows = fitted.sample(min(BATCH, n - start), random_state=rng)
            sink.write(as_arrow(rows, fitted.kind_.names))
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
    seed: Seed = None,
    format: Format = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Write the table with its missing cells filled in; what was observed stays.

    \b
    ctem impute adult.ctem gaps.csv > filled.csv
    ctem impute adult.ctem gaps.parquet --method mode -o filled.parquet
    """
    fitted = _load(model, device)
    rng = _random(fitted, seed)
    with streams(fitted, table, output, format, quiet) as (parts, write):
        for part, X in parts:
            write(filled_in(fitted, part, X, fitted.impute(X, method, random_state=rng)))


@app.command()
def outliers(
    model: ModelIn,
    table: TableIn = "-",
    n: Annotated[int, typer.Option("--rows", "-n", min=1, help="How many rows.")] = 10,
    output: Output = "-",
    format: Format = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Write the strangest rows, the strangest first, with the columns that make them so.

    row counts from 0; score is in nats beyond the average row; why names the
    three columns that add most to it. Units and rounding do not matter.

    \b
    ctem outliers adult.ctem adult.csv -n 20
    """
    fitted = _load(model, device)
    lowest = Lowest(n)
    with streams(fitted, table, output, format, quiet) as (parts, write):
        for part, X in parts:
            lowest.add(part, X, -fitted.outlier_scores(X))
        found = fitted.outliers(lowest.X, n)
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
    origin = provenance(model)
    facts = {**_load(model, "cpu").describe(), "provenance": origin}
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    console, made = Console(), Rows("column", "kind", "why", title=escape(shown(model)))
    for column in facts["columns"]:
        made.add_row(*(escape(shown(column[key])) for key in ("name", "kind", "reason")))
    console.print(made)
    origin = {key: shown(value) for key, value in origin.items()}
    console.print(
        f"{facts['rows']} rows · {facts['steps']} steps in {facts['seconds']:.0f} s · seed {origin['seed']}\n"
        f"{facts['objective']}, effort {facts['effort']} · independent columns {facts['baseline']:.4f} nats a row"
        f"{_fast_in_words(facts['fast'])}\n"
        f"made {origin['created']} by ctem {origin['ctem']}, torch {origin['torch']}\n"
        f"data {origin['data_sha256'][:16]}…",
        highlight=False,
        markup=False,
    )


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


def _random(model: CTEM, seed: int | None) -> Any:
    return check_random_state(model.random_state if seed is None else seed)


def _files(checkpoint: Path) -> list[Path]:
    """The files of a checkpoint that are there."""
    paths = [checkpoint.with_name(f"{checkpoint.name}{phase}") for phase in PHASES]
    return [path for path in paths if path.exists()]


def _forget(checkpoint: Path | None) -> None:
    for path in [] if checkpoint is None else _files(checkpoint):
        path.unlink()
