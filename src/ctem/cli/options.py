"""The arguments and options that commands share, checked before anything is read."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = [
    "Dates",
    "Decimal",
    "Device",
    "Encoding",
    "Engine",
    "FitSeed",
    "Format",
    "Given",
    "HasNames",
    "Kinds",
    "Missing",
    "ModelIn",
    "Output",
    "Overwrite",
    "Quiet",
    "Seed",
    "Separator",
    "TableIn",
    "Workers",
]


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
Output = Annotated[str, typer.Option("--output", "-o", help="Where to; - is standard output.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="OUTPUT may be what is read, or replace a file of another kind.")
]
Format = Annotated[
    Literal["csv", "parquet", "arrow"] | None,
    typer.Option(help="Of the output; by default as its name ends, and CSV on standard output."),
]
Device = Annotated[str, typer.Option(callback=_device, help="auto (a GPU where there is one), cpu or cuda.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No notes and no progress bar.")]
FitSeed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="The same seed gives the same bits.")]
Given = Annotated[
    list[str] | None,
    typer.Option(
        "--given",
        "-g",
        metavar="NAME=CONDITION",
        help="A value, low..high, low.., ..high, or several with | between them; repeat it.",
    ),
]
Seed = Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="By default the model's own.")]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        "-k",
        metavar="NAME=KIND",
        help="real (or real:LOW..HIGH), category or ordinal; repeat it.",
    ),
]
Missing = Annotated[
    list[str] | None, typer.Option("--na", metavar="TEXT", help="Marks a missing cell; repeat it.")
]
Decimal = Annotated[
    Literal[".", ","] | None, typer.Option(help="The mark within numbers, where it is not clear.")
]
Dates = Annotated[
    Literal["dmy", "mdy", "ymd"] | None, typer.Option(help="Their order, where it is not clear.")
]
Engine = Annotated[
    Literal["here", "ray"],
    typer.Option(
        help="Who does it: this process, or the workers of Ray. With ray, OUTPUT is a folder of Parquet."
    ),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Of Ray; as many as it has CPUs when left out.")]
Separator = Annotated[
    str | None,
    typer.Option(
        "--sep", metavar="CHARACTER", help="Between the cells of CSV: \\t is a tab, ' ' any blanks."
    ),
]
HasNames = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line of CSV has names; else x0, x1, ….",
        show_default=False,
    ),
]
Encoding = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of CSV that is not UTF-8: ISO-8859-1, UTF-16, ….")
]
