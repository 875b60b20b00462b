"""Adult: can boosted trees tell samples from real rows, and how long does the fit take?

    python -m experiments.tables.adult --device cuda --data FOLDER --out OUT --jobs 3    fits, samples, C2ST, nats
    python -m experiments.tables.adult --peers --data FOLDER --samples OUT    the same samples by XGBoost

The training and test file are taken as given. A "?" is a label like another, as in TabSyn, TabDiff and TabPC, so that
samples must place it too. Their published C2ST is SDMetrics' detection by XGBoost against the training rows, with as
many samples as there are training rows; TabPC's measurements of all three are the reference. The first command needs no
package beyond ours, and leaves adult.json and adult-samples-SEED.parquet for the second. --quick takes a made-up table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from ctem import CTEM
from ctem.datasets import load_table
from ctem.tables.answers.density import TableDensity
from ctem.tables.frames.frame import read_frame
from experiments.results import count
from experiments.sweep import TINY, Task, Values, sweep, sweep_arguments, tasks, toy_table
from experiments.tables.nats import boosted, shuffled, xgboost_detection

SEEDS = 3
PUBLISHED = {
    "fit, seconds": "TabSyn 3082, TabDiff 11605, TabPC 272",
    "C2ST, XGBoost, against the training rows": "TabSyn 0.794, TabDiff 0.841, TabPC 0.855",
}
TREES = {"XGBoost": xgboost_detection, "gradient boosting": boosted}
REAL = "the test rows themselves"
YARDSTICKS = ("CTEM", "independent columns", REAL)


def load(args) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and test rows, complete."""
    if args.quick:
        return toy_table(300, 0), toy_table(200, 1)
    train, test = load_table("adult", args.data), load_table("adult-test", args.data)
    return train.fillna("?"), test.fillna("?")


def detection(name: str, test_of: Callable, train, test, fake, seed: int) -> Values:
    """C2ST of a sample against either file."""
    return {
        f"C2ST, {name}, against the training rows": test_of(train, fake, seed),
        f"C2ST, {name}, against the test rows": test_of(test, fake, seed),
    }


def ours(task: Task, args) -> Values:
    """What one fit gives; as many samples as training rows are kept beside the results."""
    train, test = load(args)
    began = time.perf_counter()
    model = CTEM(random_state=task.seed, device=args.device, **(TINY if args.quick else {})).fit(train)
    fitted = time.perf_counter()
    samples = model.sample(len(train), random_state=task.seed)
    drawn = time.perf_counter()
    nats = model.score(test)
    scored = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    samples.to_parquet(args.out / f"adult-samples-{task.seed}.parquet")
    independent = TableDensity(model.schema_, model.density_).independent(read_frame(test))
    found = {
        "fit, seconds": fitted - began,
        "of it training, seconds": model.density_.history.seconds,
        "sampling, rows per second": len(samples) / (drawn - fitted),
        "scoring, rows per second": len(test) / (scored - drawn),
        "test nats": nats,
        "test nats, independent columns": float(independent.mean()),
        "step chosen by held-out loss": model.density_.history.best_step,
    }
    return found | detection("gradient boosting", boosted, train, test, samples, task.seed)


def yardstick(task: Task, args) -> Values:
    """Saved samples by both kinds of trees, independent columns below them and real rows above."""
    train, test = load(args)
    if task.system == REAL:
        return {
            f"C2ST, {n}, against the training rows": of(train, test, task.seed) for n, of in TREES.items()
        }
    if task.system == "CTEM":
        folder = args.samples or args.out
        count(json.loads((folder / f"adult{'-quick' if args.quick else ''}.json").read_text())["code"])
        fake = pd.read_parquet(folder / f"adult-samples-{task.seed}.parquet")
    else:
        fake = shuffled(train, len(train), task.seed)
    found: Values = {}
    for name, test_of in TREES.items():
        found |= detection(name, test_of, train, test, fake, task.seed)
    return found


def main() -> None:
    parser = sweep_arguments(__doc__, ("adult",), ("CTEM",), SEEDS)
    parser.add_argument("--peers", action="store_true", help="score saved samples by XGBoost; no fit")
    parser.add_argument(
        "--samples", type=Path, help="folder with the samples of a former run (default: --out)"
    )
    args = parser.parse_args()
    name = args.name or ("adult-peers" if args.peers else "adult")
    settings = {"model": "CTEM()", "samples": "as many as training rows", "folds": "5; XGBoost 3"}
    todo = tasks(args, YARDSTICKS if args.peers else None)
    by = yardstick if args.peers else ours
    sweep(by, todo, args, name, settings, published=lambda _, metric: PUBLISHED.get(metric))


if __name__ == "__main__":
    main()
