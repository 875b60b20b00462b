"""The arguments and options that commands share, checked before anything is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer

from ctem.spaces import Real
from ctem.tables.answers.conditions import from_text
from ctem.tables.columns.codecs import Codec

__all__ = [
    "Device",
    "FitSeed",
    "Format",
    "Given",
    "ModelIn",
    "Output",
    "Quiet",
    "Seed",
    "TableIn",
    "column_kinds",
    "conditions",
]

KINDS = ("real", "category", "ordinal")


def _device(name: str) -> str:
    if name not in ("auto", "cpu") and not name.startswith("cuda"):
        raise typer.BadParameter(f"expected auto, cpu or cuda; got {name!r}.")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter(f"no CUDA device was found; got {name!r}. Use cpu.")
    return name


def column_kinds(said: list[str]) -> dict[str, str | Real]:
    """name=kind as name → kind; a name may hold "=" itself, and real may have ends.

    >>> column_kinds(["age=real:0..120", "a=b=category"])
    {'age': Real(low=0.0, high=120.0), 'a=b': 'category'}
    """
    found: dict[str, str | Real] = {}
    for each in said:
        name, _, kind = each.rpartition("=")
        ends = re.fullmatch(r"real:([^.]*(?:\.[^.]+)?)\.\.(.*)", kind)
        if not name or (kind not in KINDS and not ends):
            raise typer.BadParameter(
                f"expected NAME=KIND, with a KIND of {', '.join(KINDS)} or real:LOW..HIGH; got {each!r}."
            )
        found[name] = _bounded(each, *ends.groups()) if ends else kind
    return found


def _bounded(said: str, low: str, high: str) -> Real:
    try:
        return Real(low=float(low) if low else None, high=float(high) if high else None)
    except ValueError as error:
        raise typer.BadParameter(
            f"expected numbers LOW < HIGH in real:LOW..HIGH; got {said!r} ({error})"
        ) from None


def conditions(said: list[str], codecs: Mapping[str, Codec]) -> dict[str, Any]:
    """name=condition as name → condition, in the types of the columns; a name may hold "=" itself.

    >>> from ctem.tables.columns.codecs import Labels
    >>> conditions(["size=2.."], {"size": Labels("int", (1, 2), (0, 1), (1.0, 1.0))})
    {'size': (2, None)}
    """
    found: dict[str, Any] = {}
    for each in said:
        name = max((known for known in codecs if each.startswith(f"{known}=")), key=len, default=None)
        if name is None:
            raise typer.BadParameter(
                f"expected NAME=CONDITION, with a NAME of {', '.join(codecs)}; got {each!r}."
            )
        if name in found:
            raise typer.BadParameter(
                f"{name!r} has two conditions; write them as one, such as {name}=1|3..5."
            )
        found[name] = from_text(name, each[len(name) + 1 :], codecs[name])
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
