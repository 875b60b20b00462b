"""Adult: can boosted trees tell samples from real rows, and how long does the fit take?

    python experiments/adult.py --device cuda --data FOLDER --out OUT    one default fit a seed, samples, C2ST, nats
    python experiments/adult.py --peers --data FOLDER --samples OUT      the same samples by XGBoost, and the yardsticks

The training and test file are taken as given. A "?" is a label like another, as in TabSyn, TabDiff and TabPC, so that
samples must place it too. Their published C2ST is SDMetrics' detection by XGBoost against the training rows, with as
many samples as there are training rows; TabPC's measurements of all three are the reference. The first command needs no
package beyond ours, and leaves adult-samples-SEED.parquet for the second. --quick takes a made-up table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ctem import CTEM
from ctem.datasets import load_table
from ctem.table.answers import TableDensity
from ctem.table.frames import read_frame
from detection import TINY, Found, boosted, note, shuffled, toy_table, xgboost_detection
from results import Record, arguments, summarise, write

SEEDS = 1
EXACT_ROWS = 2000  # of the test rows, for the chain rule
PUBLISHED = "TabSyn 0.794, TabDiff 0.841, TabPC 0.855"
TRAINING = "TabSyn 3082, TabDiff 11605, TabPC 272"
TREES = {"XGBoost": xgboost_detection, "gradient boosting": boosted}


def load(args) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and test rows, complete."""
    if args.quick:
        return toy_table(300, 0), toy_table(200, 1)
    train, test = load_table("adult", args.data), load_table("adult-test", args.data)
    return train.fillna("?"), test.fillna("?")


def ours(train: pd.DataFrame, test: pd.DataFrame, seed: int, args) -> tuple[dict[str, float], pd.DataFrame]:
    """What one fit gives, and as many samples as training rows."""
    began = time.perf_counter()
    model = CTEM(plan=TINY if args.quick else None, random_state=seed, device=args.device).fit(train)
    fitted = time.perf_counter()
    samples = model.sample(args.rows or len(train), random_state=seed)
    drawn = time.perf_counter()
    some = test.sample(min(EXACT_ROWS, len(test)), random_state=seed)
    found = {
        "fit, seconds": fitted - began,
        "of it training, seconds": model.density_.history.seconds,
        "sampling, seconds": drawn - fitted,
        "test nats, one pass": model.score(test),
        "standard error of log Z": model.log_z_.stderr,
        f"test nats, chain rule, {len(some)} rows": float(model.score_samples(some, exact=True).mean()),
        f"test nats, one pass, the same {len(some)} rows": model.score(some),
        "test nats, independent columns": float(independent(model, test).mean()),
        "scoring, rows per second": scoring_rate(model, test),
        "step chosen by held-out loss": model.density_.history.best_step,
    }
    return found | {"samples": len(samples)}, samples


def independent(model: CTEM, rows: pd.DataFrame) -> np.ndarray:
    return TableDensity(model.schema_, model.density_).independent(read_frame(rows))


def scoring_rate(model: CTEM, test: pd.DataFrame) -> float:
    began = time.perf_counter()
    model.score_samples(test)
    return len(test) / (time.perf_counter() - began)


def detection(
    name: str, test_of: Callable, train: pd.DataFrame, test: pd.DataFrame, fake: pd.DataFrame, seed: int
) -> dict[str, float]:
    """C2ST of a sample against either file."""
    return {
        f"C2ST, {name}, against the training rows": test_of(train, fake, seed),
        f"C2ST, {name}, against the test rows": test_of(test, fake, seed),
    }


def fits(train: pd.DataFrame, test: pd.DataFrame, args, save: Callable[[Found], None]) -> None:
    """Ours, seed by seed."""
    found: Found = {}
    for seed in range(args.seeds or SEEDS):
        values, samples = ours(train, test, seed, args)
        args.out.mkdir(parents=True, exist_ok=True)
        samples.to_parquet(args.out / f"adult-samples-{seed}.parquet")
        note(found, "CTEM", values, save)
        note(found, "CTEM", detection("gradient boosting", boosted, train, test, samples, seed), save)


def yardsticks(train: pd.DataFrame, test: pd.DataFrame, args, save: Callable[[Found], None]) -> None:
    """Saved samples by both kinds of trees, independent columns below them and real rows above."""
    found: Found = {}
    files = sorted((args.samples or args.out).glob("adult-samples-*.parquet"))
    if not files:
        raise SystemExit(
            f"no adult-samples-SEED.parquet in {args.samples or args.out}: run without --peers first."
        )
    for name, test_of in TREES.items():
        for seed, file in enumerate(files):
            note(found, "CTEM", detection(name, test_of, train, test, pd.read_parquet(file), seed), save)
        fake = shuffled(train, len(train), seed=0)
        note(found, "independent columns", detection(name, test_of, train, test, fake, 0), save)
        ceiling = {f"C2ST, {name}, against the training rows": test_of(train, test, 0)}
        note(found, "the test rows themselves", ceiling, save)


def records(found: Found) -> list[Record]:
    def published(system: str, metric: str) -> str | None:
        if system != "CTEM":
            return None
        seconds, trees = metric == "fit, seconds", metric.startswith("C2ST") and "training" in metric
        return TRAINING if seconds else PUBLISHED if trees else None

    return [summarise("adult", s, m, values, paper=published(s, m)) for (s, m), values in found.items()]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--data", default=None, help="folder with tables/ (default: $CTEM_DATA, else downloaded)"
    )
    parser.add_argument("--rows", type=int, help="samples to draw (default: as many as training rows)")
    parser.add_argument("--peers", action="store_true", help="score saved samples by XGBoost; no fit")
    parser.add_argument(
        "--samples", type=Path, help="folder with the samples of a former run (default: --out)"
    )
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    began = time.perf_counter()
    name = "adult-peers" if args.peers else "adult"
    settings = {
        "model": "CTEM()",
        "samples": args.rows or "as many as training rows",
        "folds": "5; XGBoost 3",
    }

    def save(found: Found) -> None:
        seconds = time.perf_counter() - began
        write(name, settings, records(found), args.device, seconds, args.out, quick=args.quick)

    (yardsticks if args.peers else fits)(*load(args), args, save)


if __name__ == "__main__":
    main()
