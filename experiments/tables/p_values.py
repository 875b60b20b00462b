"""Conformal p-values on fresh rows: how far from uniform they are, and how often they are small.

    python -m experiments.tables.p_values --data FOLDER            ten made-up tables and four real ones
    python -m experiments.tables.p_values --quick                  three made-up tables, small fits

KS is the largest distance between the share of fresh rows with p ≤ α and α, times √n with 1/n = 1/fresh + 1/held-out:
below 1.6 with probability 0.99. z at .01 and .001 are the distances of the two shares from theirs in standard errors of
their law, the beta-binomial of ranks; within ±3 is as expected. With few held-out rows no p-value is so small as .001,
and there is no z.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import betabinom

from ctem import CTEM
from ctem.datasets import load_table
from experiments.results import arguments, staged, summarise, write

ROWS, FRESH = 5000, 5000
REAL = ("adult", "magic", "california", "shoppers")
SHARES = (0.01, 0.001)
SMALL = {"max_steps": 40, "width": 32, "blocks": 1, "members": 4, "orders": 2, "batch_size": 64}
LONGER = {"max_steps": 300, "width": 64, "blocks": 1, "members": 4, "orders": 2, "batch_size": 256}
Columns = dict[str, Any]


def gappy(rng: np.random.Generator, values: NDArray[Any]) -> NDArray[Any]:
    return np.where(rng.random(len(values)) < 0.2, np.nan, values)


MADE: dict[str, Callable[[np.random.Generator, int], Columns]] = {
    "heavy tails": lambda rng, n: {"a": rng.standard_t(1.5, n), "b": rng.lognormal(0, 2, n)},
    "gaps": lambda rng, n: {"a": gappy(rng, rng.normal(size=n)), "b": gappy(rng, rng.gamma(1, 1, n))},
    "a value of its own": lambda rng, n: {"a": np.where(rng.random(n) < 0.4, 0.0, rng.lognormal(0, 1, n))},
    "many rare labels": lambda rng, n: {"name": rng.zipf(1.6, n).clip(max=500).astype(str), "b": rng.normal(size=n)},
    "rounded": lambda rng, n: {"a": rng.normal(0, 3, n).round(), "b": rng.exponential(1, n).round(1)},
    "two groups": lambda rng, n: {"a": rng.normal(size=n) + 8 * (side := rng.random(n) < 0.3), "b": side},
    "a sum": lambda rng, n: {"a": (a := rng.gamma(2, 1, n)), "b": (b := rng.gamma(2, 1, n)), "total": a + b},
    "moments": lambda rng, n: {"at": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**6, n), "min")},
    "noise": lambda rng, n: {f"x{j}": rng.standard_t(4, n) for j in range(8)},
    "a curve": lambda rng, n: {"a": (a := rng.uniform(-3, 3, n)), "b": np.sin(a) + rng.normal(0, 0.1 + abs(a), n)},
}  # fmt: skip


def figures(p: NDArray[np.float64], held_out: int) -> dict[str, float]:
    """How uniform p-values are, beside so many held-out rows.

    >>> figures(np.linspace(0.0005, 1, 2000), 1999)["z at 0.01"]
    0.0
    """
    p = np.sort(p)
    ranks = np.arange(1, len(p) + 1) / len(p)
    distinct = np.append(np.diff(p) > 0, True)  # where scores are tied, so are p-values
    found = {"KS": float(abs(ranks - p)[distinct].max() / np.sqrt(1 / len(p) + 1 / held_out))}
    for share in SHARES:
        most = int(share * (held_out + 1))  # as many of all scores are among the strangest
        found[f"share at {share}"] = float((p <= share).mean())
        if most:  # else none can be so small, and there is nothing to test
            law = betabinom(len(p), most, held_out + 1 - most)
            found[f"z at {share}"] = float(((p <= share).sum() - law.mean()) / law.std())
    return found


def table(name: str, folder: Path | None, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to fit, and fresh ones."""
    rng = np.random.default_rng(seed)
    if name in MADE:
        return pd.DataFrame(MADE[name](rng, ROWS)), pd.DataFrame(MADE[name](rng, FRESH))
    X = load_table(name, folder).sample(ROWS + FRESH, random_state=seed).reset_index(drop=True)
    return X[:ROWS], X[ROWS:].reset_index(drop=True)


def measured(name: str, folder: Path | None, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """One fit and its figures."""
    X, fresh = table(name, folder, seed)
    began = time.process_time()
    model = CTEM(**settings, random_state=seed).fit(X)
    held_out = model.held_out_
    assert held_out is not None
    about = {
        "table": name,
        "seed": seed,
        "held out": held_out.rows,
        "energy": bool(model.describe()["energy"]),
    }
    return {
        **about,
        **figures(model.p_values(fresh), held_out.rows),
        "processor": time.process_time() - began,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, help="folder of the real tables; without it they are left out")
    parser.add_argument("--tables", nargs="*", help="these alone")
    args = parser.parse_args()
    names = args.tables or [*list(MADE)[: 3 if args.quick else None], *(REAL if args.data else ())]
    began, rows = time.perf_counter(), list[dict[str, Any]]()
    for name in names:
        for seed in range(args.seeds or 1):
            rows.append(measured(name, args.data, seed, SMALL if name in MADE else LONGER))
            print("  ".join(f"{key} {_plain(value)}" for key, value in rows[-1].items()), flush=True)
    records = [
        summarise(name, "CTEM", key, values)
        for name in names
        for key in ("KS", *(f"{what} at {share}" for share in SHARES for what in ("share", "z")))
        if (values := [row[key] for row in rows if row["table"] == name and key in row])
    ]
    settings = {"made up": SMALL, "real": LONGER, "rows": ROWS, "fresh": FRESH}
    with staged(args.out) as folder:
        write("p-values", settings, records, "cpu", time.perf_counter() - began, folder, quick=args.quick)


def _plain(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
