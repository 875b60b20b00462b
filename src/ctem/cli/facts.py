"""Commands that print something and write no file: what a table is like, what a model is, and what it gives away."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from ctem.cli.flags import in_flags
from ctem.cli.streams import fit_table, known_table
from ctem.cli.words import column_kinds
from ctem.densities.tilted import TiltedDensity
from ctem.estimators.estimator import CTEM
from ctem.persistence.reading import provenance
from ctem.report.privacy import audit
from ctem.tables.inference.kinds import kind_names
from ctem.tables.inspection import inspect as look
from ctem.tables.io.csv_files import Dialect
from ctem.tables.io.terminal import print_columns, printable

__all__ = ["quality_in_words", "reading_of"]


def inspect(
    table: str,
    kinds: list[str] | None,
    max_rows: int,
    na: list[str] | None,
    decimal: str | None,
    dates: str | None,
    dialect: Dialect,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show what a table's columns would be taken for and why, and what seems odd, before any fit."""
    requested = column_kinds(kinds or [])
    how = {"decimal": decimal, "kinds": kind_names(requested)}
    X = fit_table(table, [], max_rows, 0, quiet, how, dialect)
    inspection = look(X, requested or None, reading_of(decimal, dates, na))
    if as_json:
        print(json.dumps(inspection.to_json(), indent=2))
        return
    title = f"{table}: {inspection.rows} row{'s'[: inspection.rows != 1]}"
    print_columns([asdict(column) for column in inspection.columns], title)
    for suspicion in inspection.suspicions:
        print(f"! {printable(in_flags(str(suspicion)))}")
    if not inspection.suspicions:
        print("Nothing seems odd.")


def privacy(
    model: Path,
    table: str,
    holdout: str | None,
    max_rows: int,
    seed: int,
    dialect: Dialect,
    as_json: bool,
    device: str,
    quiet: bool,
) -> None:
    """Show how much a model gives away of the rows that it was fitted to."""
    fitted = CTEM.load(model, device)
    X = known_table(fitted, table, max_rows, quiet, dialect)
    others = None if holdout is None else known_table(fitted, holdout, max_rows, quiet, dialect)
    result = audit(fitted, X, others, seed)
    print(json.dumps(result.to_json(), indent=2) if as_json else result)


def info(model: Path, as_json: bool) -> None:
    """Show what a model was made of, how, and what its columns are."""
    if sys.stdout is None:
        raise OSError("standard output is closed.")
    origin = provenance(model)
    fitted = CTEM.load(model, "cpu")
    facts = {**fitted.describe(), "provenance": origin}
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    print_columns(facts["columns"], str(model))
    origin = {key: printable(value) for key, value in origin.items()}
    cut = f"{facts['still_improving']}\n" if facts["still_improving"] else ""
    Console().print(
        f"{facts['rows']} rows · {facts['steps']} steps in {facts['seconds']:.0f} s · {_seed_in_words(fitted)}\n"
        f"effort {facts['effort']} · {quality_in_words(fitted)}\n"
        f"{cut}made {origin['created']} by ctem {origin['ctem']}, torch {origin['torch']}\n"
        f"data {origin['data_sha256'][:16]}…",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def quality_in_words(model: CTEM) -> str:
    """How good a model is, as far as it knows.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> quality_in_words(CTEM(max_steps=2, width=8, members=1, random_state=0).fit(X))[:13]
    'held-out rows'
    """
    energy = f"; {model.density_.energy}" if isinstance(model.density_, TiltedDensity) else ""
    return f"{model.held_out_}{energy}"


def _seed_in_words(model: CTEM) -> str:
    """The seed that the user set; what was made of it is in the provenance."""
    return "no seed" if model.random_state is None else f"seed {model.random_state}"


def reading_of(decimal: str | None, dates: str | None, na: list[str] | None) -> dict[str, Any] | None:
    """What the user sets of how text is written.

    >>> reading_of(",", None, ["none"])
    {'decimal': ',', 'na': ['none']}
    """
    reading = {key: value for key, value in (("decimal", decimal), ("dates", dates), ("na", na)) if value}
    return reading or None
