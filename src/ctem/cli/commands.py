"""The commands: a class each, whose fields are its options and whose docstring is its help.

``ctem.cli.work``, ``facts`` and ``referee`` do what they ask for, in functions of the same names that take such an
object. They are apart because they import torch, and ``ctem --help`` need not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform, get_type_hints

import typer

from ctem.cli.application import app
from ctem.cli.options import (
    AsJson,
    CsvOptions,
    Device,
    FitSeed,
    ModelIn,
    ModelOptions,
    Overwrite,
    Quiet,
    ReadingOptions,
    RowOptions,
    Seed,
    TableIn,
)
from ctem.cli.outputs import check_output

MAX_ROWS = 1_000_000
REPORT_ROWS = 100_000
Command = TypeVar("Command")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def command(module: str) -> Callable[[type[Command]], type[Command]]:
    """A class as a command of the application: its own options first, done by the function of its name in a module.

    What it would write is looked at before anything else (``ctem.cli.outputs``).
    """

    def declared(kind: type[Command]) -> type[Command]:
        made: Any = dataclass(frozen=True, kw_only=True)(kind)
        name, hints = kind.__name__.lower(), get_type_hints(kind, include_extras=True)

        def run(**values: Any) -> None:
            check_output(name, values, values.get("overwrite", False))
            getattr(import_module(f"ctem.cli.{module}"), name)(made(**values))

        options = [
            Parameter(
                option.name,
                Parameter.KEYWORD_ONLY,
                annotation=hints[option.name],
                default=getattr(kind, option.name, Parameter.empty),
            )
            for option in sorted(fields(made), key=lambda option: option.name not in kind.__annotations__)
        ]
        run.__doc__, run.__signature__ = kind.__doc__, Signature(options)  # type: ignore[attr-defined]
        app.command(name)(run)
        return kind

    return declared


@command("facts")
class Inspect(ReadingOptions):
    """Show what a table's columns would be taken for and why, and what seems odd, before any fit.

    Odd are codes for missing such as 999, columns that name their rows or repeat another, copied rows,
    days that no calendar has, text among numbers, several spellings of a label, and rules such as
    class = pclass with the rows that break them. Each comes with what to do about it.

    \b
    ctem inspect adult.csv
    ctem inspect adult.csv --na 99999 --kind education-num=category
    ctem inspect adult.csv --json | jq .suspicions
    """

    table: TableIn
    max_rows: Annotated[
        int, typer.Option(min=1, help="Of a longer table a random sample of this many rows is looked at.")
    ] = REPORT_ROWS
    as_json: AsJson = False
    quiet: Quiet = False


@command("work")
class Fit(ReadingOptions):
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

    table: TableIn
    output: Annotated[Path, typer.Option("--output", "-o", metavar="MODEL", help="The model file to write.")]
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            metavar="SENTENCE",
            help="A rule to keep, or not: 'state from city', 'start <= end', 'not state from city'; repeat it.",
        ),
    ] = None
    drop: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Leave a column out; repeat it.")] = (
        None
    )
    effort: Annotated[
        Literal["quick", "default", "best"],
        typer.Option(help="How large the networks are and how long they learn."),
    ] = "default"
    max_time: Annotated[float | None, typer.Option(help="Seconds of the whole fit, at most about.")] = None
    max_steps: Annotated[int | None, typer.Option(min=1, help="Training steps, at most.")] = None
    max_rows: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Use a random sample of this many rows. By default all of Parquet files, which may be larger than "
            "memory, and 1,000,000 of CSV and Arrow.",
        ),
    ] = None
    memory: Annotated[
        str, typer.Option(help="For the rows of Parquet files; if they need more, the fit streams.")
    ] = "1GB"
    seed: FitSeed = 0
    device: Device = "auto"
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a killed fit stopped.")] = False
    missing_as_state: Annotated[
        bool, typer.Option("--missing-as-state", help="Being missing is a value like another, not unknown.")
    ] = False
    overwrite: Overwrite = False
    quiet: Quiet = False


@command("work")
class Score(RowOptions):
    """Write the log-density of every row, in nats, as a column log_density.

    Per unit of each real column (dates: per day); missing cells are marginalised.
    Columns go by name; those that the model does not know are left out.

    \b
    ctem score adult.ctem new.parquet -o scores.parquet
    ctem score adult.ctem new.csv --append | sort -t, -k1 -g | head
    ctem score adult.ctem new.csv --columns income --given age --given education
    ctem score adult.ctem folder/of/parquet -o scores --engine ray --workers 4
    """

    append: Annotated[bool, typer.Option("--append", help="Write the rows of the table, too.")] = False
    columns: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only of this column, the others marginalised; repeat it."),
    ] = None
    given: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Given this column; repeat it.")] = (
        None
    )


@command("work")
class Sample(ModelOptions):
    """Write new rows, drawn from the density, or of those that meet conditions.

    Ranges hold both of their ends. How likely the conditions are is written to standard error.

    \b
    ctem sample adult.ctem -n 1000 --seed 1 > new.csv
    ctem sample adult.ctem -n 1000000 -o new.parquet
    ctem sample adult.ctem -n 1000 --with-missing > gaps.csv
    ctem sample adult.ctem -n 100 --given 'age=30..40' --given 'education=Masters|Doctorate'
    """

    n: Annotated[int, typer.Option("--rows", "-n", min=1, help="How many rows.")] = 1
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--given",
            "-g",
            metavar="NAME=CONDITION",
            help="A value, low..high, low.., ..high, or several with | between them; repeat it.",
        ),
    ] = None
    with_missing: Annotated[bool, typer.Option("--with-missing", help="With gaps as the data have them.")] = (
        False
    )
    seed: Seed = None


@command("work")
class Impute(RowOptions):
    """Write the table with its missing cells filled in; what was observed stays.

    \b
    ctem impute adult.ctem gaps.csv > filled.csv
    ctem impute adult.ctem gaps.parquet --method mode -o filled.parquet
    ctem impute adult.ctem gaps.csv --draws 5 -o five.csv
    """

    method: Annotated[
        Literal["sample", "mode", "mean"],
        typer.Option(help="Draw the missing cells of a row together, or take each at its mode or mean."),
    ] = "sample"
    draws: Annotated[
        int,
        typer.Option(
            min=1, help="So many times every row, with a column draw from 0; long tables in batches."
        ),
    ] = 1
    seed: Seed = None


@command("work")
class Outliers(RowOptions):
    """Write the strangest rows, by p_value and then by score, with what makes them so.

    row counts from 0; score is in nats beyond the average row, whatever units and
    rounding; p_value is the share of rows that fit had not seen and that are as strange;
    why names up to three cells, and what was expected there given the others.

    \b
    ctem outliers adult.ctem adult.csv -n 20
    ctem outliers adult.ctem new.csv --alpha 0.01
    """

    n: Annotated[
        int | None, typer.Option("--rows", "-n", min=1, help="How many rows; 10, or all with --alpha.")
    ] = None
    alpha: Annotated[
        float | None,
        typer.Option(
            help="Rows with a p-value of at most this: the share of false alarms among ordinary rows."
        ),
    ] = None


@command("work")
class Report(CsvOptions):
    """Write one HTML file on what was learned: how good it is, columns, samples, outliers, privacy.

    \b
    ctem report adult.ctem adult.csv -o adult.html --held-out test.csv
    """

    model: ModelIn
    table: TableIn = "-"
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path(
        "report.html"
    )
    held_out: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Rows that were not fitted, to be judged by.")
    ] = None
    max_rows: Annotated[int, typer.Option(min=2, help="Rows that are looked at.")] = REPORT_ROWS
    device: Device = "auto"
    overwrite: Overwrite = False
    quiet: Quiet = False


@command("facts")
class Privacy(CsvOptions):
    """Show how much a model gives away of the rows that it was fitted to.

    TABLE is what was fitted. Samples and likelihoods are compared on its rows and on others: those of
    --holdout, or, for each network of the model, the rows that it did not see itself.
    0.5 is a guess: nothing is given away. It is evidence about these attacks, no proof, and no differential privacy.

    \b
    ctem privacy adult.ctem adult.csv
    ctem privacy adult.ctem adult.csv --holdout test.csv --json
    """

    model: ModelIn
    table: TableIn = "-"
    holdout: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Rows of the same kind that were not in the fit.")
    ] = None
    max_rows: Annotated[int, typer.Option(min=2, help="Rows that are looked at.")] = MAX_ROWS
    seed: FitSeed = 0
    as_json: AsJson = False
    device: Device = "auto"
    quiet: Quiet = False


@command("facts")
class Info:
    """Show what a model was made of, how, and what its columns are.

    \b
    ctem info adult.ctem
    ctem info adult.ctem --json | jq .columns
    """

    model: ModelIn
    as_json: AsJson = False


@command("referee")
class Check:
    """Show what can be certified of an energy: its constant, its samples, its fit.

    Ends with 1 where a fault was found, with 2 where log Z stays unknown.

    \b
    ctem check mymodel:log_potential --space mymodel:space
    ctem check mymodel:net --samples rows.npy --claimed 93.61 --json > record.json
    """

    potential: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="A log-potential in Python.")]
    space: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="Its ctem.Space; by default its attribute space."),
    ] = None
    samples: Annotated[
        Path | None, typer.Option(help="Rows that claim to be samples of it: .npy, or numbers in a .csv.")
    ] = None
    claimed: Annotated[float | None, typer.Option(help="A log Z that is claimed.")] = None
    train: Annotated[Path | None, typer.Option(help="Rows that it was fitted to.")] = None
    test: Annotated[Path | None, typer.Option(help="Rows that it was not fitted to.")] = None
    lattice: Annotated[
        tuple[int, int] | None, typer.Option(help="Height and width, if neighbouring rows alone are coupled.")
    ] = None
    budget: Annotated[Literal["quick", "default", "long"], typer.Option(help="How much to spend.")] = (
        "default"
    )
    output: Annotated[Path | None, typer.Option("--output", "-o", help="An HTML page to write.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the record for an appendix.")] = False
    seed: FitSeed = 0
    device: Device = "auto"
    overwrite: Overwrite = False
