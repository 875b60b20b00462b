"""Commands that print something and write no file: what a table is like, what a model is, and what it gives away."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ctem.cli.commands import Info, Inspect, Privacy
from ctem.cli.flags import in_flags
from ctem.cli.options import ReadingOptions
from ctem.cli.streams import dialect, fit_table, known_table
from ctem.cli.words import column_kinds
from ctem.densities.tilted import TiltedDensity
from ctem.estimators.estimator import CTEM
from ctem.persistence.sealed import provenance
from ctem.report.privacy import audit
from ctem.tables.inference.kinds import kind_names
from ctem.tables.inspection import inspect as look
from ctem.tables.io.terminal import print_columns, printable

__all__ = ["quality_in_words", "reading_of"]


def inspect(options: Inspect) -> None:
    """Print what the columns of a table would be taken for."""
    requested = column_kinds(options.kinds or [])
    how = {"decimal": options.decimal, "kinds": kind_names(requested)}
    X = fit_table(options.table, [], options.max_rows, 0, options.quiet, how, dialect(options))
    inspection = look(X, requested or None, reading_of(options))
    if options.as_json:
        print(json.dumps(inspection.to_json(), indent=2))
        return
    title = f"{options.table}: {inspection.rows} row{'s'[: inspection.rows != 1]}"
    print_columns([asdict(column) for column in inspection.columns], title)
    for suspicion in inspection.suspicions:
        print(f"! {printable(in_flags(str(suspicion)))}")
    if not inspection.suspicions:
        print("Nothing seems odd.")


def privacy(options: Privacy) -> None:
    """Print how much a model gives away of its rows."""
    layout = dialect(options)
    fitted = CTEM.load(options.model, options.device)
    X, others = (
        None if table is None else known_table(fitted, table, options.max_rows, options.quiet, layout)
        for table in (options.table, options.holdout)
    )
    result = audit(fitted, X, others, options.seed)
    print(json.dumps(result.to_json(), indent=2) if options.as_json else result)


def info(options: Info) -> None:
    """Print what a model is."""
    if sys.stdout is None:
        raise OSError("standard output is closed.")
    origin = provenance(options.model)
    fitted = CTEM.load(options.model, "cpu")
    facts = {**fitted.describe(), "provenance": origin}
    if options.as_json:
        print(json.dumps(facts, indent=2))
        return
    print_columns(facts["columns"], str(options.model))
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


def reading_of(options: ReadingOptions) -> dict[str, Any] | None:
    """What the user sets of how text is written.

    >>> reading_of(ReadingOptions(decimal=",", na=["none"]))
    {'decimal': ',', 'na': ['none']}
    """
    return {key: value for key in ("decimal", "dates", "na") if (value := getattr(options, key))} or None
