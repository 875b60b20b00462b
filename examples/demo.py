"""The demo: a density of the Palmer penguins, 344 rows of mixed columns with missing cells.

    python -m examples.demo                (or: make demo)

Fits four rows in five, prints the held-out log-density beside that of independent columns, fills in the missing cells,
lists three outliers, and writes the model and a report to build/demo. With --quick it only shows that everything runs.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ctem import CTEM
from ctem.datasets import load_penguins
from ctem.report import write_report
from ctem.tables.answers.density import TableDensity
from ctem.tables.io.frame import read_frame

FOLDER = Path(__file__).resolve().parents[1] / "build" / "demo"
QUICK = {"max_steps": 40, "width": 16, "blocks": 1, "members": 2, "orders": 2, "batch_size": 64}
SEED = 0
Penguins = Any  # pyarrow.Table


def split(penguins: Penguins) -> tuple[Penguins, Penguins]:
    """Four rows in five to fit, the others held out."""
    order = np.random.default_rng(SEED).permutation(len(penguins))
    cut = len(penguins) // 5
    return penguins.take(order[cut:]), penguins.take(order[:cut])


def print_scores(console: Console, model: CTEM, held_out: Penguins) -> None:
    """Nats per held-out row, learned and independent, with standard errors."""
    learned = model.score_samples(held_out)
    independent = TableDensity(model.schema_, model.density_).independent(read_frame(held_out))
    table = Table(
        "held-out log-density", "nats per row", "± s.e.", title=f"{len(held_out)} held-out penguins"
    )
    pairs = {"ctem": learned, "independent columns": independent, "gain": learned - independent}
    for name, values in pairs.items():
        table.add_row(name, f"{values.mean():.2f}", f"{values.std(ddof=1) / len(values) ** 0.5:.2f}")
    console.print(table)


def print_imputed(console: Console, model: CTEM, penguins: Penguins) -> None:
    """The rows with missing cells, and what these are filled with."""
    filled = model.impute(penguins, random_state=SEED).to_pylist()
    table = Table("row", "observed", "filled in", title="Missing cells")
    for row, (before, after) in enumerate(zip(penguins.to_pylist(), filled, strict=True)):
        gaps = [name for name, cell in before.items() if cell is None]
        if gaps:
            observed = ", ".join(str(cell) for cell in before.values() if cell is not None)
            table.add_row(str(row), observed, ", ".join(f"{name} {after[name]}" for name in gaps))
    console.print(table)


def print_outliers(console: Console, model: CTEM, penguins: Penguins, n: int = 3) -> None:
    """The strangest penguins, and what makes them so."""
    table = Table("row", "score", "why: nats that a cell adds", title=f"The {n} strangest penguins")
    for outlier in model.outliers(penguins, n):
        values = penguins.slice(outlier.row, 1).to_pylist()[0]
        top = list(outlier.columns.items())[:3]
        why = ", ".join(f"{name} = {values[name]} ({surprise:.1f})" for name, surprise in top)
        table.add_row(str(outlier.row), f"{outlier.score:.1f}", why)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    quick = parser.parse_args().quick
    console, began = Console(), time.perf_counter()
    penguins = load_penguins("pyarrow")
    fitted, held_out = split(penguins)
    model = CTEM(random_state=SEED, verbose=1, device="cpu", **(QUICK if quick else {})).fit(fitted)
    print_scores(console, model, held_out)
    print_imputed(console, model, penguins)
    print_outliers(console, model, penguins)
    folder = FOLDER / "quick" if quick else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / "penguins.ctem")
    samples = 100 if quick else 1000
    write_report(model, fitted, folder / "penguins.html", held_out=held_out, n_samples=samples)
    console.print(f"model and report: {os.path.relpath(folder)}\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
