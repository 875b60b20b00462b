"""The cost model of docs/cost.md, from the rates that experiments/tables/large.py has measured.

python docs/cost.py        (or: make cost)
"""

import json
from pathlib import Path

from ctem.densities.anyorder.settings import Settings

HERE = Path(__file__).parent
RESULTS = HERE.parent / "experiments" / "results"
STEPS = Settings.suited(rows=10**8, columns=15, reals=6).steps  # of a default fit, at most
DRAWN = 2 * 1024  # rows of a step
SIZES, WORKERS = (10**6, 10**7, 10**8, 10**9, 10**10), (1, 8, 64)
POWERS = ("⁶", "⁷", "⁸", "⁹", "¹⁰")
Numbers = dict[str, float]


def stored(name: str) -> Numbers:
    """The numbers of a result, by metric; with its settings."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        raise SystemExit(
            f"{path} is not there yet: see experiments/tables/large.py for the command that writes it."
        )
    content = json.loads(path.read_text("utf-8"))
    return {**content["settings"], **{record["metric"]: record["mean"] for record in content["records"]}}


def passes(rates: Numbers, n: float, steps: int) -> float:
    """Seconds to read n rows twice, and to encode those that training can draw."""
    drawn = min(n, steps * DRAWN)
    return n / rates["read"] + (n - drawn) / rates["read"] + drawn / rates["encode"]


def hours(rates: Numbers, n: int, workers: int) -> Numbers:
    """Hours for n rows by so many workers of one core."""
    fit = passes(rates, n, STEPS) / workers + STEPS / rates["step"] / min(workers, 8)
    each = {"fit": fit, **{what: n / rates[what] / workers for what in ("score", "sample")}}
    return {what: seconds / 3600 for what, seconds in each.items()}


def page() -> str:
    """The whole page."""
    rates, far = stored("large"), stored("large-far")
    lines = [
        "# What large tables cost",
        "",
        "Made by `make cost` from [measurements](../experiments/results/large.md). Fifteen columns, two networks of "
        f"128 × 2 and {rates['orders']} orders, one thread of a CPU; CPU seconds.",
        "",
        "| rate | rows a second |",
        "|---|---|",
        *(f"| {what} | {rates[what]:,.0f} |" for what in ("read", "encode", "score", "sample")),
        f"| training steps a second (of 2 × 1024 rows) | {rates['step']:.1f} |",
        "",
        *table(rates),
        "",
        reading(rates),
        "",
        "## Checked",
        "",
        middle(rates),
        "",
        largest(rates, far),
    ]
    return "\n".join(lines) + "\n"


def table(rates: Numbers) -> list[str]:
    """Hours by rows and workers."""
    kinds = [(what, workers) for what in ("fit", "score", "sample") for workers in WORKERS]
    lines = [
        f"Hours for a default fit ({STEPS:,} steps, the most that it takes), for scoring all rows, and for drawing as many, by workers of one core "
        "(training by at most 8 processes):",
        "",
        "| rows | " + " | ".join(f"{what}, {workers}" for what, workers in kinds) + " |",
        "|---|" + "---|" * len(kinds),
    ]
    for n, power in zip(SIZES, POWERS, strict=True):
        found = [hours(rates, n, workers)[what] for what, workers in kinds]
        cells = [f"{value:.2g}" if value < 100 else f"{value:,.0f}" for value in found]
        lines.append(f"| 10{power} | " + " | ".join(cells) + " |")
    return lines


def reading(rates: Numbers) -> str:
    """What the table says in words."""
    crossing = STEPS / rates["step"] * rates["read"] / 2
    return (
        f"Up to about {crossing / 1e6:,.0f} million rows a fit is bound by its training, which does not grow with the "
        "rows; beyond, by reading Parquet twice. Scoring and sampling are bound by the networks at every size, one pass "
        "for each column and order, and need as many workers as the time allows, or a GPU "
        "([Speed](speed.md)). Memory does not grow with the rows: `memory=` for rows, half a gigabyte for the libraries, "
        "and on disk 4 bytes for each cell that training can draw, at most "
        f"{STEPS * DRAWN / 1e6:.0f} million rows by default. What is not in "
        "these numbers: the network to an object store, starting workers, and the waiting of processes for each other."
    )


def middle(rates: Numbers) -> str:
    """A streamed fit of the size at which the rates were measured."""
    return (
        f"*{rates['rows']:,.0f} rows* in {rates['files']:.0f} files, streamed with {rates['memory']} for the rows in "
        f"memory, took {rates['seconds']:.0f} CPU seconds where the rates predict {rates['predicted']:.0f}, and the "
        f"process held at most {rates['peak']:.2f} GB. New rows have {rates['large']:.3f} nats; after as many steps on "
        f"200,000 rows in memory, {rates['small']:.3f}."
    )


def largest(rates: Numbers, far: Numbers) -> str:
    """The largest run."""
    more = passes(rates, far["rows"], far["steps"]) - passes(rates, far["each"], far["steps"])
    seen = far["large cpu"] - far["small cpu"]
    return (
        f"*{far['rows']:,.0f} rows* in {far['files']:.0f} files, drawn from a model of Adult, were fitted by `ctem fit "
        f"--max-steps {far['steps']} --memory {far['memory']}`, which also trained a second potential then, in "
        f"{far['large cpu']:.0f} CPU seconds, which is "
        f"{seen:.0f} more than {far['each']:,} of them took; the rates predict {more:.0f} more. The process held at most "
        f"{far['large peak']:.2f} GB. New rows have {far['large']:.3f} nats, and {far['small']:.3f} under the fit to "
        f"{far['each']:,}: a difference of {far['gain']:+.4f} ± {far['stderr']:.4f}. Two workers of Ray, one of which was killed in the middle, "
        f"wrote {'the same' if far['ray same'] else 'other'} bytes."
    )


if __name__ == "__main__":
    (HERE / "cost.md").write_text(page(), "utf-8")
