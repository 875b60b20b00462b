"""How long a default fit takes on two cores, how fast rows are scored and drawn, and in how much memory a long file.

    python -m experiments.tables.speed --data FOLDER                       fits penguins and adult, scores 200 000 rows
    python -m experiments.tables.speed --data FOLDER --rows 5000000        the long file
    python -m experiments.tables.speed --data FOLDER --what rates          without the timed fits

Rates do not depend on how long a network has learned, so they are taken from a fit of 100 steps. In this process: rows
scored exactly, in one pass of ``CTEM(fast=True)``, and drawn. The long file is scored by
``ctem score --fast`` in a process of its own, a Parquet file of 15 columns (rows of adult, repeated), at a tenth of the
rows and at all of them: peak memory that does not grow is flat. Its first rate includes the start of Python; the
second, from the difference of the two files, does not. --quick takes a made-up table.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ctem import CTEM
from ctem.datasets import load_penguins, load_table
from experiments.results import arguments, summarise, write
from experiments.sweep import TINY, need, toy_table

Found = dict[tuple[str, str], list[float]]  # (system, metric) → one value a seed


def note(found: Found, system: str, values: dict[str, float], save: Callable[[Found], object]) -> None:
    """Add one value to each list, print and save."""
    for metric, value in values.items():
        found.setdefault((system, metric), []).append(value)
        print(f"{system}: {metric} {value:.4f}", flush=True)
    save(found)


THREADS = 2
ROWS = 200_000
RATED = 100  # steps of the fit whose rates are taken
WHAT = ("fits", "rates")
GROUP = 65_536  # rows written at a time
TIMED = 5000  # rows scored and drawn in this process


def tables(args) -> dict[str, pd.DataFrame]:
    if args.quick:
        return {"toy": toy_table(300, 0)}
    frames = {"penguins": load_penguins(), "adult": load_table("adult", args.data)}
    return {name: frames[name] for name in args.sets}


def fitted(frame: pd.DataFrame, seed: int, args, **more) -> tuple[CTEM, float]:
    """The model, and the seconds that its fit took; a default one if nothing more is said."""
    began = time.perf_counter()
    model = CTEM(**more | (TINY if args.quick else {}), random_state=seed, device="cpu").fit(frame)
    return model, time.perf_counter() - began


def rates(model: CTEM, frame: pd.DataFrame) -> dict[str, float]:
    """Rows a second."""
    rows = frame.dropna().sample(TIMED, replace=True, random_state=0)
    uses = {
        "scored exactly": lambda: model.score_samples(rows),
        "scored in one pass": lambda: model.score_samples(rows, fast=True),
        "drawn": lambda: model.sample(len(rows), random_state=0),
    }
    found = {}
    for name, use in uses.items():
        began = time.perf_counter()
        use()
        found[f"rows per second, {name}"] = len(rows) / (time.perf_counter() - began)
    return found


def repeated(frame: pd.DataFrame, rows: int, path: Path) -> None:
    """A Parquet file of so many complete rows, written in groups."""
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    rng, whole = np.random.default_rng(0), pa.Table.from_pandas(frame.dropna(), preserve_index=False)
    with parquet.ParquetWriter(path, whole.schema) as sink:
        for start in range(0, rows, GROUP):
            sink.write_table(whole.take(rng.integers(len(whole), size=min(GROUP, rows - start))))


def scored(model: Path, table: Path) -> tuple[float, float]:
    """Seconds and peak memory (MB) of ``ctem score --fast`` on a file."""
    command = [sys.executable, "-m", "ctem", "score", str(model), str(table), "--fast", "--quiet"]
    environment = os.environ | {"OMP_NUM_THREADS": str(THREADS)}
    began = time.perf_counter()
    child = subprocess.Popen(
        [*command, "--device", "cpu", "-o", str(table.with_suffix(".scores.parquet"))], env=environment
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"ctem score ended with {child.returncode}: {' '.join(command)}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def scoring(model: CTEM, frame: pd.DataFrame, rows: int) -> dict[str, float]:
    """Rates and memory of two files, the second ten times the first."""
    with tempfile.TemporaryDirectory() as folder:
        saved, found = Path(folder) / "model.ctem", []
        model.save(saved)
        for n in (rows // 10, rows):
            path = Path(folder) / f"{n}.parquet"
            repeated(frame, n, path)
            found.append(scored(saved, path))
    (short, less), (long, more) = found
    return {
        f"scoring a file of {rows} rows, rows per second": rows / long,
        "the same without the start of Python": (rows - rows // 10) / max(long - short, 1e-3),
        f"peak memory at {rows // 10} rows, MB": less,
        f"peak memory at {rows} rows, MB": more,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--data", default=None, help="folder with tables/ (default: $CTEM_DATA, else downloaded)"
    )
    parser.add_argument("--sets", nargs="*", default=("penguins", "adult"), help="which tables to fit")
    parser.add_argument("--rows", type=int, default=ROWS, help="of the file that is scored")
    parser.add_argument("--what", nargs="*", choices=WHAT, default=WHAT, help="what is measured")
    args = parser.parse_args()
    if args.device != "cpu":
        raise SystemExit(f"--device: this measures the CPU; got {args.device!r}.")
    torch.set_num_threads(THREADS)
    began, rows = time.perf_counter(), 4000 if args.quick else args.rows
    settings = {"model": "CTEM()", "threads": THREADS, "rows scored": rows}
    results: dict[str, Found] = {}

    def save(_: Found) -> None:
        found = [(data, *key, values) for data, part in results.items() for key, values in part.items()]
        seconds = time.perf_counter() - began
        write(
            f"speed-{'-'.join(args.what)}",
            settings,
            [summarise(*f) for f in found],
            "cpu",
            seconds,
            args.out,
            quick=args.quick,
        )

    for name, frame in tables(args).items():
        found = results.setdefault(name, {})
        for seed in range((args.seeds or 1) * ("fits" in args.what)):
            _, seconds = fitted(frame, seed, args)
            note(found, "CTEM", {"fit, seconds": seconds}, save)
        if name != "penguins" and "rates" in args.what:
            model, _ = fitted(frame, 0, args, fast=True, max_steps=RATED)
            note(found, "CTEM", rates(model, frame), save)
            note(found, "CTEM", scoring(model, frame, rows), save)


if __name__ == "__main__":
    main()
