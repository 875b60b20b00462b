"""Five mixed tables: held-out nats and C2ST beside independent columns, a Gaussian copula, a Chow–Liu tree, zuko's
spline flow on dequantised data, and adversarial random forests (C2ST only).

    python experiments/tables.py --device cuda --data FOLDER --out OUT --systems CTEM    ours, where there is a GPU
    python experiments/tables.py --data FOLDER                                           everything, on the CPU

Measure: log P of a row as it is written, numbers to the resolution of their column (see peers.py): our log-density by
the chain rule, averaged over the cell of every dequantised number, plus Σ log w. All systems share splits, resolution
and margins' cells. A fifth of the rows is the test set, drawn anew for every seed; rows with missing cells are left out
(california: 207), since the peers cannot take them; a test row with a value of a discrete column that no training row
has moves to the training rows. C2ST: gradient boosting, samples against test rows; "training rows" is what real rows
score. One file per group of systems, tables-….json; nothing is tuned. --quick takes a made-up table.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pandas as pd

from ctem import CTEM
from ctem.datasets import load_table
from ctem.table.codecs import Numbers
from detection import TINY, boosted, toy_table
from peers import Copula, Flow, Independent, Tree, arf_samples, bound, resolution
from sweep import Task, Values, sweep, sweep_arguments, tasks

SETS = ("abalone", "german", "california", "bank", "diamonds")
SEEDS = 3
TEST_SHARE = 0.2
DRAWS = 8  # of the place within a cell, in the mean that stands for P(cell)
DISCRETE = 256  # a column of labels or whole numbers with at most so many values may be taken as discrete
FLOW_STEPS = 3000  # at most
PEERS = {"independent columns": Independent, "Gaussian copula": Copula, "Chow–Liu tree": Tree}
SYSTEMS = ("CTEM", *PEERS, "spline flow", "arfpy", "training rows")


def split(frame: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and test rows; every value of a discrete column occurs in training."""
    frame = frame.sample(frac=1, random_state=seed).reset_index(drop=True)
    n = round(TEST_SHARE * len(frame))
    strange = np.zeros(n, bool)
    for name in frame:
        if _listed(frame[name]):
            strange |= ~frame[name][:n].isin(frame[name][n:].unique()).to_numpy()
    return pd.concat([frame[n:], frame[:n][strange]]), frame[:n][~strange]


def _listed(column: pd.Series) -> bool:
    numeric = pd.api.types.is_numeric_dtype(column)
    return column.nunique() <= DISCRETE and (not numeric or bool((column == column.round()).all()))


def jittered(frame: pd.DataFrame, model: CTEM, rng: np.random.Generator) -> pd.DataFrame:
    """Dequantised numbers moved to a uniform point of their cell; atoms stay."""
    out = frame.copy()
    for name, choice in model.schema_.choices.items():
        if isinstance(choice.codec, Numbers):
            X = frame[name].to_numpy(np.float64)
            place = choice.codec.ruler.width * (rng.random(len(X)) - 0.5)
            out[name] = np.where(np.isin(X, choice.codec.atoms), X, X + place)
    return out


def our_nats(model: CTEM, test: pd.DataFrame, seed: int, exact: bool) -> float:
    """Mean log P of test rows as written, over their cells; in one pass or by the chain rule."""
    rng, unit = np.random.default_rng(seed), sum(map(math.log, resolution(model.schema_).values()))
    cells = bound(np.stack([model.score_samples(jittered(test, model, rng), exact) for _ in range(DRAWS)]))
    return float(cells.mean()) + unit


def ours(train: pd.DataFrame, test: pd.DataFrame, seed: int, args) -> Values:
    """What the default gives: nats by the chain rule, which is what its samples follow, and in one pass."""
    began = time.perf_counter()
    plan = replace(TINY, slopes=TINY.own) if args.quick else None
    model = CTEM(plan=plan, random_state=seed, device=args.device).fit(train)
    fitted = time.perf_counter()
    fake = model.sample(len(test), random_state=seed)
    return {
        "test nats": our_nats(model, test, seed, exact=True),
        "test nats, one pass": our_nats(model, test, seed, exact=False),
        "standard error of log Z": model.log_z_.stderr,
        "effective samples of log Z": model.log_z_.ess,
        "C2ST": boosted(test, fake, seed),
        "fit, seconds": fitted - began,
        "step chosen by held-out loss": model.density_.history.best_step,
    }


def peer(name: str, train: pd.DataFrame, test: pd.DataFrame, seed: int, args) -> Values:
    """What a peer's nats and samples are worth."""
    began = time.perf_counter()
    if name == "training rows":
        return {"C2ST": boosted(test, train, seed)}
    if name == "arfpy":
        fake = arf_samples(train, len(test), seed)
        return {"C2ST": boosted(test, fake, seed), "fit, seconds": time.perf_counter() - began}
    if name == "spline flow":
        fitted = Flow(train, seed, device=args.device, steps=40 if args.quick else FLOW_STEPS)
    else:
        fitted = PEERS[name](train, seed)
    seconds = time.perf_counter() - began
    return {
        "test nats": float(fitted.log_prob(test, DRAWS).mean()),
        "C2ST": boosted(test, fitted.sample(len(test)), seed),
        "fit, seconds": seconds,
    }


def measure(task: Task, args) -> Values:
    """One system on one split of one table."""
    frame = toy_table(400, 0) if args.quick else load_table(task.data, args.data).dropna()
    train, test = split(frame, task.seed)
    if task.system == "CTEM":
        return ours(train, test, task.seed, args)
    return peer(task.system, train, test, task.seed, args)


def main() -> None:
    args = sweep_arguments(__doc__, SETS, SYSTEMS, SEEDS).parse_args()
    several = len(args.systems) > 1
    name = args.name or f"tables-{'all' if several else args.systems[0].replace(' ', '-')}"
    settings = {"model": "CTEM()", "test share": TEST_SHARE, "draws in a cell": DRAWS}
    sweep(measure, tasks(args), args, name, settings)


if __name__ == "__main__":
    main()
