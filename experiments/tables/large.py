"""What large tables cost: measured rates, a fit that streams beside one in memory, and a cost model made of them.

Rows with fifteen columns are drawn from a known process and written to Parquet files. Times are CPU seconds of one
thread, which other programs on the machine change little. ``--page`` writes docs/cost.md.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from ctem import CTEM
from ctem.streaming import Span, shuffled, survey
from ctem.tables.columns.schema import Schema
from ctem.tables.frames.frame import read_frame
from ctem.tables.frames.large import open_large
from experiments.results import arguments, summarise, write

ROWS, FILES, MEMORY, STEPS, SMALLER = 2_000_000, 20, "300MB", 120, 200_000
SETTINGS = {"members": 2, "orders": 4, "width": 128, "blocks": 2, "batch_size": 1024}
CLASSES, LABELS, NUMBERS = 6, 8, 7
DEFAULT_STEPS = 8000
SIZES, WORKERS = (10**6, 10**7, 10**8, 10**9, 10**10), (1, 8, 64)


def rows(n: int, seed: int) -> pa.Table:
    """Fifteen columns that depend on a hidden class: labels, numbers, rounded and with gaps."""
    rng, shape = np.random.default_rng([seed, 1]), np.random.default_rng(0)
    side = rng.integers(CLASSES, size=n)
    made = {}
    for j in range(LABELS):
        chances = shape.dirichlet(np.ones(3 + j), CLASSES).cumsum(1)
        codes = (rng.random(n)[:, None] > chances[side]).sum(1).clip(max=2 + j)
        made[f"label{j}"] = pa.DictionaryArray.from_arrays(
            pa.array(codes, pa.int32()), [f"v{k}" for k in range(3 + j)]
        ).cast(pa.string())
    for j in range(NUMBERS):
        values = shape.normal(scale=2, size=CLASSES)[side] + rng.normal(size=n)
        values = np.round(values * 10, 0) if j % 2 else values
        made[f"number{j}"] = pa.array(values, mask=(rng.random(n) < 0.05) if j == 0 else None)
    return pa.table(made)


def timed(work):
    """What work gives, and its CPU seconds."""
    began = time.process_time()
    return work(), time.process_time() - began


def written(folder: Path, n: int, files: int) -> None:
    for i in range(files):
        pq.write_table(rows(n // files, seed=i), folder / f"part-{i:04d}.parquet")


def pass_rates(folder: Path, n: int) -> dict[str, float]:
    """Rows a second of the two passes, on one file."""
    with open_large(folder / "part-0000.parquet") as large:
        sketch, reading = timed(lambda: survey(large, "1GB", seed=0))
        frame = read_frame(sketch.sample())
        schema, _ = timed(lambda: Schema.fit(frame))

        def encode() -> int:
            with shuffled(large, schema, frame.table_type, Span(0, 2**64 - 1), 0) as file:
                return len(file.rows)

        count, encoding = timed(encode)
    return {"read": sketch.rows / reading, "encode": count / encoding}


def fitted(X, steps: int, memory: str = "1GB") -> tuple[CTEM, float]:
    return timed(
        lambda: CTEM(**SETTINGS, max_steps=steps, random_state=0, device="cpu").fit(X, memory=memory)
    )


def answer_rates(model: CTEM, n: int) -> dict[str, float]:
    table = rows(n, seed=10**6)
    _, scoring = timed(lambda: model.score_samples(table))
    _, drawing = timed(lambda: model.sample(n, random_state=0))
    return {"score": n / scoring, "sample": n / drawing}


def hours(rates: dict[str, float], n: int, workers: int) -> dict[str, float]:
    """Hours for n rows by so many workers of one core."""
    drawn = min(n, DEFAULT_STEPS * 2 * 1024)
    passes = n / rates["read"] + (n - drawn) / rates["read"] + drawn / rates["encode"]
    fit = passes / workers + DEFAULT_STEPS / rates["step"] / min(workers, 8)
    each = {"fit": fit, **{what: n / rates[what] / workers for what in ("score", "sample")}}
    return {what: seconds / 3600 for what, seconds in each.items()}


def page(rates: dict[str, float], facts: dict[str, float], command: str) -> str:
    """The cost model as a page."""

    def shown(value: float) -> str:
        return f"{value:.2g}" if value < 100 else f"{value:,.0f}"

    lines = [
        "# What large tables cost",
        "",
        f"Made by `{command}`. Fifteen columns, two networks of 128 × 2, one thread of a CPU; CPU seconds.",
        "",
        "| rate | rows a second |",
        "|---|---|",
        *(f"| {what} | {rates[what]:,.0f} |" for what in ("read", "encode", "score", "sample")),
        f"| training steps a second (of 2 × 1024 rows) | {rates['step']:.1f} |",
        "",
        *_largest(facts),
        "",
        "Hours for a default fit (8000 steps), for scoring all rows, and for drawing as many, by workers of one core "
        "(training by at most 8 processes):",
        "",
        "| rows | "
        + " | ".join(f"{what}, {w}" for what in ("fit", "score", "sample") for w in WORKERS)
        + " |",
        "|---|" + "---|" * (3 * len(WORKERS)),
    ]
    for n in SIZES:
        cells = [shown(hours(rates, n, w)[what]) for what in ("fit", "score", "sample") for w in WORKERS]
        lines.append(
            f"| 10{'⁰¹²³⁴⁵⁶⁷⁸⁹'[len(str(n)) - 1] if n < 10**10 else '¹⁰'} | " + " | ".join(cells) + " |"
        )
    return "\n".join([*lines, "", *_reading(rates)]) + "\n"


def _largest(facts: dict[str, float]) -> list[str]:
    return [
        f"The largest run here: {facts['rows']:,.0f} rows in {facts['files']:.0f} files, streamed with {MEMORY} for "
        f"the rows in memory. It took {facts['seconds']:.0f} CPU seconds where the rates above predict "
        f"{facts['predicted']:.0f}, and the process held at most {facts['peak']:.2f} GB. New rows have "
        f"{facts['large']:.3f} nats; after as many steps on {SMALLER:,} rows in memory, {facts['small']:.3f}.",
    ]


def _reading(rates: dict[str, float]) -> list[str]:
    crossing = DEFAULT_STEPS / rates["step"] * rates["read"] / 2
    return [
        f"*Reading it.* Up to about {crossing:,.0f} rows a fit is bound by its training, which does not grow with the "
        "rows; beyond, by reading Parquet twice. Scoring and sampling are bound by the networks at every size, one "
        "pass for each column and order, and need as many workers as the time allows, or a GPU ([Speed](speed.md)). "
        "Memory does not grow with the rows: `memory=` for rows, half a gigabyte for the libraries, and on disk 4 "
        "bytes for each cell that training can draw, at most 16 million rows by default. What is not in these numbers: "
        "the network to an object store, starting workers, and the waiting of processes for each other.",
    ]


def main() -> None:
    parser = arguments("Large tables: rates, a streamed fit, a cost model.")
    parser.add_argument("--page", type=Path, help="write the cost model to this Markdown file")
    parser.add_argument("--rows", type=int, default=ROWS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    began, n = time.perf_counter(), 60_000 if args.quick else args.rows
    files, steps, some = (3, 20, 5_000) if args.quick else (FILES, STEPS, 20_000)
    memory = "25MB" if args.quick else MEMORY
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written(folder, n, files)
        rates = pass_rates(folder, n)
        large, seconds = fitted(folder, steps, memory)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    rates |= answer_rates(large, some)
    small, training = fitted(rows(n // 10 if args.quick else SMALLER, seed=0), steps)
    rates["step"] = small.history_["step"][-1] / training
    new = rows(some, seed=10**6 + 1)
    facts = {"rows": n, "files": files, "seconds": seconds, "peak": peak, "large": large.score(new)}
    facts |= {
        "small": small.score(new),
        "predicted": n / rates["read"] + n / rates["encode"] + steps / rates["step"],
    }
    records = [
        summarise(f"{n} rows", "streamed", what, [value]) for what, value in {**rates, **facts}.items()
    ]
    write(
        "large",
        {"steps": steps, "memory": memory, **SETTINGS},
        records,
        "cpu (1 thread)",
        time.perf_counter() - began,
        args.out,
        quick=args.quick,
    )
    text = page(rates, facts, "python -m experiments.tables.large --page docs/cost.md")
    print(text)
    if args.page is not None:
        args.page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
