"""The application that commands belong to: its border, where errors become lines, and its own help."""

from __future__ import annotations

from typing import Annotated

import typer

from ctem import __version__
from ctem.cli.border import Border

__all__ = ["app"]

app = typer.Typer(
    cls=Border,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"ctem {__version__}")
        raise typer.Exit


@app.callback()
def main(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show which ctem this is."),
    ] = False,
) -> None:
    """A table in, a density out: real, discrete and mixed columns, with missing cells.

    \b
    ctem inspect penguins.csv
    ctem fit penguins.csv -o penguins.ctem
    ctem score penguins.ctem penguins.csv -o scores.csv
    ctem sample penguins.ctem -n 1000 > new.csv
    ctem impute penguins.ctem penguins.csv > filled.csv
    ctem outliers penguins.ctem penguins.csv -n 3
    ctem report penguins.ctem penguins.csv -o penguins.html
    ctem privacy penguins.ctem penguins.csv
    """
