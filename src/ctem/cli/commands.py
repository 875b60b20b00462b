"""The commands: their arguments and help. ``ctem.cli.work`` does what they ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ctem.cli.application import app
from ctem.cli.options import (
    Dates,
    Decimal,
    Device,
    Encoding,
    Engine,
    FitSeed,
    Format,
    Given,
    HasNames,
    Kinds,
    Missing,
    ModelIn,
    Output,
    Overwrite,
    Quiet,
    Seed,
    Separator,
    TableIn,
    Workers,
)
from ctem.cli.outputs import check_output

MAX_ROWS = 1_000_000
REPORT_ROWS = 100_000


def command(function: Callable[..., None], module: str = "ctem.cli.work") -> Callable[..., None]:
    """A command with the arguments and words of a function, done by the function of that name in another module.

    What it would write is looked at before anything else (``ctem.cli.outputs``); the layout of CSV
    files goes on as one ``Dialect``, and what the commands that ask a model share as one ``Job``.
    """

    @wraps(function)
    def run(**arguments: Any) -> None:
        check_output(function.__name__, arguments, arguments.pop("overwrite", False))
        if "sep" in arguments:
            layout = (arguments.pop(name) for name in ("header", "sep", "encoding"))
            arguments["dialect"] = import_module("ctem.tables.io.csv_files").Dialect(*layout)
        done_by = import_module(module)
        if "engine" in arguments:
            shared = {field.name for field in fields(done_by.Job)} & set(arguments)
            arguments["job"] = done_by.Job(**{name: arguments.pop(name) for name in shared})
        getattr(done_by, function.__name__)(**arguments)

    return app.command()(run)


describing = partial(command, module="ctem.cli.facts")


@describing
def inspect(
    table: TableIn,
    kinds: Kinds = None,
    max_rows: Annotated[
        int, typer.Option(min=1, help="Of a longer table a random sample of this many rows is looked at.")
    ] = REPORT_ROWS,
    na: Missing = None,
    decimal: Decimal = None,
    dates: Dates = None,
    sep: Separator = None,
    header: HasNames = None,
    encoding: Encoding = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    quiet: Quiet = False,
) -> None:
    """Show what a table's columns would be taken for and why, and what seems odd, before any fit.

    Odd are codes for missing such as 999, columns that name their rows or repeat another, copied rows,
    days that no calendar has, text among numbers, several spellings of a label, and rules such as
    class = pclass with the rows that break them. Each comes with what to do about it.

    \b
    ctem inspect adult.csv
    ctem inspect adult.csv --na 99999 --kind education-num=category
    ctem inspect adult.csv --json | jq .suspicions
    """


@command
def fit(
    table: TableIn,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="MODEL", help="The model file to write.")],
    kinds: Kinds = None,
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            metavar="SENTENCE",
            help="A rule to keep, or not: 'state from city', 'start <= end', 'not state from city'; repeat it.",
        ),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Leave a column out; repeat it.")
    ] = None,
    effort: Annotated[
        Literal["quick", "default", "best"],
        typer.Option(help="How large the networks are and how long they learn."),
    ] = "default",
    max_time: Annotated[float | None, typer.Option(help="Seconds of the whole fit, at most about.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Training steps, at most.")] = None,
    max_rows: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Use a random sample of this many rows. By default all of Parquet files, which may be larger than "
            "memory, and 1,000,000 of CSV and Arrow.",
        ),
    ] = None,
    memory: Annotated[
        str, typer.Option(help="For the rows of Parquet files; if they need more, the fit streams.")
    ] = "1GB",
    seed: FitSeed = 0,
    sep: Separator = None,
    header: HasNames = None,
    encoding: Encoding = None,
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a killed fit stopped.")] = False,
    na: Missing = None,
    decimal: Decimal = None,
    dates: Dates = None,
    missing_as_state: Annotated[
        bool, typer.Option("--missing-as-state", help="Being missing is a value like another, not unknown.")
    ] = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Learn the density of a table and write it to MODEL.

    Column kinds are read off the data and printed with the reason.
    While it trains, MODEL.checkpoint.* beside the model keeps what was learned;
    after a kill the same command with --resume goes on from there, to the same bits.

    \b
    ctem fit adult.csv -o adult.ctem --max-time 300
    ctem fit adult.csv -o adult.ctem --kind zip=category --drop id
    ctem fit orders.csv -o orders.ctem --rule 'ordered <= shipped' --rule 'not price from product'
    ctem fit s3://bucket/folder/of/parquet -o big.ctem --memory 4GB
    zcat big.csv.gz | ctem fit - -o big.ctem --max-rows 200000 --resume
    """


@command
def score(
    model: ModelIn,
    table: TableIn = "-",
    output: Output = "-",
    append: Annotated[bool, typer.Option("--append", help="Write the rows of the table, too.")] = False,
    columns: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only of this column, the others marginalised; repeat it."),
    ] = None,
    given: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Given this column; repeat it.")
    ] = None,
    engine: Engine = "here",
    workers: Workers = None,
    format: Format = None,
    sep: Separator = None,
    header: HasNames = None,
    encoding: Encoding = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Write the log-density of every row, in nats, as a column log_density.

    Per unit of each real column (dates: per day); missing cells are marginalised.
    Columns go by name; those that the model does not know are left out.

    \b
    ctem score adult.ctem new.parquet -o scores.parquet
    ctem score adult.ctem new.csv --append | sort -t, -k1 -g | head
    ctem score adult.ctem new.csv --columns income --given age --given education
    ctem score adult.ctem folder/of/parquet -o scores --engine ray --workers 4
    """


@command
def sample(
    model: ModelIn,
    n: Annotated[int, typer.Option("--rows", "-n", min=1, help="How many rows.")] = 1,
    given: Given = None,
    with_missing: Annotated[
        bool, typer.Option("--with-missing", help="With gaps as the data have them.")
    ] = False,
    output: Output = "-",
    seed: Seed = None,
    engine: Engine = "here",
    workers: Workers = None,
    format: Format = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Write new rows, drawn from the density, or of those that meet conditions.

    Ranges hold both of their ends. How likely the conditions are is written to standard error.

    \b
    ctem sample adult.ctem -n 1000 --seed 1 > new.csv
    ctem sample adult.ctem -n 1000000 -o new.parquet
    ctem sample adult.ctem -n 1000 --with-missing > gaps.csv
    ctem sample adult.ctem -n 100 --given 'age=30..40' --given 'education=Masters|Doctorate'
    """


@command
def impute(
    model: ModelIn,
    table: TableIn = "-",
    output: Output = "-",
    method: Annotated[
        Literal["sample", "mode", "mean"],
        typer.Option(help="Draw the missing cells of a row together, or take each at its mode or mean."),
    ] = "sample",
    draws: Annotated[
        int,
        typer.Option(
            min=1, help="So many times every row, with a column draw from 0; long tables in batches."
        ),
    ] = 1,
    seed: Seed = None,
    engine: Engine = "here",
    workers: Workers = None,
    format: Format = None,
    sep: Separator = None,
    header: HasNames = None,
    encoding: Encoding = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Write the table with its missing cells filled in; what was observed stays.

    \b
    ctem impute adult.ctem gaps.csv > filled.csv
    ctem impute adult.ctem gaps.parquet --method mode -o filled.parquet
    ctem impute adult.ctem gaps.csv --draws 5 -o five.csv
    """


@command
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
    engine: Engine = "here",
    workers: Workers = None,
    format: Format = None,
    sep: Separator = None,
    header: HasNames = None,
    encoding: Encoding = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Write the strangest rows, by p_value and then by score, with what makes them so.

    row counts from 0; score is in nats beyond the average row, whatever units and
    rounding; p_value is the share of rows that fit had not seen and that are as strange;
    why names up to three cells, and what was expected there given the others.

    \b
    ctem outliers adult.ctem adult.csv -n 20
    ctem outliers adult.ctem new.csv --alpha 0.01
    """


@command
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
    sep: Separator = None,
    header: HasNames = None,
    encoding: Encoding = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Write one HTML file on what was learned: how good it is, columns, samples, outliers, privacy.

    \b
    ctem report adult.ctem adult.csv -o adult.html --held-out test.csv
    """


@describing
def privacy(
    model: ModelIn,
    table: TableIn = "-",
    holdout: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Rows of the same kind that were not in the fit.")
    ] = None,
    max_rows: Annotated[int, typer.Option(min=2, help="Rows that are looked at.")] = MAX_ROWS,
    seed: FitSeed = 0,
    sep: Separator = None,
    header: HasNames = None,
    encoding: Encoding = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Show how much a model gives away of the rows that it was fitted to.

    TABLE is what was fitted. Samples and likelihoods are compared on its rows and on others: those of
    --holdout, or, for each network of the model, the rows that it did not see itself.
    0.5 is a guess: nothing is given away. It is evidence about these attacks, no proof, and no differential privacy.

    \b
    ctem privacy adult.ctem adult.csv
    ctem privacy adult.ctem adult.csv --holdout test.csv --json
    """


@describing
def info(
    model: ModelIn,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show what a model was made of, how, and what its columns are.

    \b
    ctem info adult.ctem
    ctem info adult.ctem --json | jq .columns
    """


@partial(command, module="ctem.cli.referee")
def check(
    potential: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="A log-potential in Python.")],
    space: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="Its ctem.Space; by default its attribute space."),
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(help="Rows that claim to be samples of it: .npy, or numbers in a .csv.")
    ] = None,
    claimed: Annotated[float | None, typer.Option(help="A log Z that is claimed.")] = None,
    train: Annotated[Path | None, typer.Option(help="Rows that it was fitted to.")] = None,
    test: Annotated[Path | None, typer.Option(help="Rows that it was not fitted to.")] = None,
    lattice: Annotated[
        tuple[int, int] | None, typer.Option(help="Height and width, if neighbouring rows alone are coupled.")
    ] = None,
    budget: Annotated[
        Literal["quick", "default", "long"], typer.Option(help="How much to spend.")
    ] = "default",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="An HTML page to write.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record for an appendix.")] = False,
    seed: FitSeed = 0,
    device: Device = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Show what can be certified of an energy: its constant, its samples, its fit.

    Ends with 1 where a fault was found, with 2 where log Z stays unknown.

    \b
    ctem check mymodel:log_potential --space mymodel:space
    ctem check mymodel:net --samples rows.npy --claimed 93.61 --json > record.json
    """
