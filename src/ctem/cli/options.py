"""The options that several commands share, each declared once, as fields; checked before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["CsvOptions", "ModelOptions", "ReadingOptions", "RowOptions"]


def _device(name: str) -> str:
    if name not in ("auto", "cpu") and not name.startswith("cuda"):
        raise typer.BadParameter(f"expected auto, cpu or cuda; got {name!r}.")
    if name.startswith("cuda") and not import_module("torch").cuda.is_available():
        raise typer.BadParameter(f"no CUDA device was found; got {name!r}. Use cpu.")
    return name


TableIn = Annotated[
    str,
    typer.Argument(metavar="TABLE", help="CSV, Parquet or Arrow; a folder of Parquet; - is standard input."),
]
ModelIn = Annotated[Path, typer.Argument(metavar="MODEL", help="What ctem fit wrote.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="OUTPUT may be what is read, or replace a file of another kind.")
]
Device = Annotated[str, typer.Option(callback=_device, help="auto (a GPU where there is one), cpu or cuda.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No notes and no progress bar.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
FitSeed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="The same seed gives the same bits.")]
Seed = Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="By default the model's own.")]


@dataclass(frozen=True, kw_only=True)
class CsvOptions:
    """How a CSV file is laid out.

    >>> CsvOptions(sep=";").header is None
    True
    """

    sep: Annotated[
        str | None,
        typer.Option(metavar="CHARACTER", help="Between the cells of CSV: \\t is a tab, ' ' any blanks."),
    ] = None
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            help="Whether the first line of CSV has names; else x0, x1, ….",
            show_default=False,
        ),
    ] = None
    encoding: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of CSV that is not UTF-8: ISO-8859-1, UTF-16, ….")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(CsvOptions):
    """How a table is read that has no model yet.

    >>> ReadingOptions(dates="dmy").na is None
    True
    """

    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            "-k",
            metavar="NAME=KIND",
            help="real (or real:LOW..HIGH), category or ordinal; repeat it.",
        ),
    ] = None
    na: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Marks a missing cell; repeat it.")] = (
        None
    )
    decimal: Annotated[
        Literal[".", ","] | None, typer.Option(help="The mark within numbers, where it is not clear.")
    ] = None
    dates: Annotated[
        Literal["dmy", "mdy", "ymd"] | None, typer.Option(help="Their order, where it is not clear.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """A question to a model: which one, where the answer goes, and who computes it.

    >>> ModelOptions(model=Path("m.ctem")).output
    '-'
    """

    model: ModelIn
    output: Annotated[str, typer.Option("--output", "-o", help="Where to; - is standard output.")] = "-"
    format: Annotated[
        Literal["csv", "parquet", "arrow"] | None,
        typer.Option(help="Of the output; by default as its name ends, and CSV on standard output."),
    ] = None
    engine: Annotated[
        Literal["here", "ray"],
        typer.Option(
            help="Who does it: this process, or the workers of Ray. With ray, OUTPUT is a folder of Parquet."
        ),
    ] = "here"
    workers: Annotated[
        int | None, typer.Option(min=1, help="Of Ray; as many as it has CPUs when left out.")
    ] = None
    device: Device = "auto"
    overwrite: Overwrite = False
    quiet: Quiet = False


@dataclass(frozen=True, kw_only=True)
class RowOptions(ModelOptions, CsvOptions):
    """A question about the rows of a table.

    >>> RowOptions(model=Path("m.ctem")).table
    '-'
    """

    table: TableIn = "-"
