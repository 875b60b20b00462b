"""Outliers: ROC-AUC of the density beside PyOD's ECOD, isolation forest and KDE.

    python -m experiments.tables.anomalies --device cuda --data FOLDER --out OUT --systems CTEM    ours
    python -m experiments.tables.anomalies --peers --data FOLDER    PyOD's

Labelled sets from data that ships with scikit-learn: one class is made rare (breast cancer: malignant; digits: the
zeros; wine: the first cultivar), all other rows are kept. Adult: rows of the training file, in some of which a few
cells are redrawn from their columns, so that every cell by itself is ordinary. Every system is fitted on all rows and
ranks the same rows; the labels serve the ROC-AUC alone. Defaults everywhere; PyOD sees numbers standardised and
labels one-hot, ours the table as it is. --quick takes a made-up table.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from functools import partial

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.metrics import roc_auc_score

from ctem import CTEM
from ctem.datasets import load_table
from experiments.results import Record, summarise
from experiments.sweep import TINY, Task, Values, group_name, need, sweep, sweep_arguments, tasks, toy_table

RARE = {"breast cancer": (load_breast_cancer, 0), "digits": (load_digits, 0), "wine": (load_wine, 0)}
SETS = (*RARE, "adult")
SEEDS = 3
SHARE = 0.05  # of the kept rows, as outliers
ADULT_ROWS = 5000
REDRAWN = 4  # cells of a corrupted row
PEERS = {"ECOD": "ecod.ECOD", "IForest": "iforest.IForest", "KDE": "kde.KDE"}
Labelled = tuple[pd.DataFrame, np.ndarray]


def one_class_rare(data: str, seed: int) -> Labelled:
    """All rows of the other classes, and as many of one class as SHARE says."""
    loader, rare = RARE[data]
    loaded = loader(as_frame=True)
    usual = np.flatnonzero(loaded.target != rare)
    few = np.random.default_rng(seed).permutation(np.flatnonzero(loaded.target == rare))
    few = few[: max(1, round(SHARE * len(usual)))]
    kept = np.concatenate([usual, few])
    return loaded.data.iloc[kept].reset_index(drop=True), np.repeat([0, 1], [len(usual), len(few)])


def corrupted(frame: pd.DataFrame, seed: int) -> Labelled:
    """Some rows with a few cells redrawn from their columns."""
    rng = np.random.default_rng(seed)
    out, strange = frame.copy(), rng.random(len(frame)) < SHARE
    cells = np.argsort(rng.random(frame.shape), axis=1) < min(REDRAWN, frame.shape[1] - 1)
    for j, name in enumerate(frame):
        hit = strange & cells[:, j]
        out.loc[hit, name] = frame[name].to_numpy()[rng.integers(len(frame), size=hit.sum())]
    return out, strange.astype(int)


def load(data: str, seed: int, args) -> Labelled:
    if data == "toy":
        return corrupted(toy_table(300, seed), seed)
    if data == "adult":
        frame = load_table("adult", args.data).fillna("?")
        return corrupted(frame.sample(ADULT_ROWS, random_state=seed).reset_index(drop=True), seed)
    return one_class_rare(data, seed)


def ours(frame: pd.DataFrame, seed: int, args) -> np.ndarray:
    model = CTEM(random_state=seed, device=args.device, **(TINY if args.quick else {})).fit(frame)
    return -model.score_samples(frame)


def peer(name: str, frame: pd.DataFrame, seed: int, args) -> np.ndarray:
    """Outlier scores of one of PyOD's detectors."""
    module, _, kind = PEERS[name].partition(".")
    detector = getattr(need(f"pyod.models.{module}"), kind)
    rows = pd.get_dummies(frame).astype(float)
    rows = (rows - rows.mean()) / rows.std().replace(0, 1)
    fitted = detector(random_state=seed) if name == "IForest" else detector()
    return fitted.fit(rows.to_numpy()).decision_scores_


def measure(task: Task, args) -> Values:
    """One system on one set."""
    frame, strange = load(task.data, task.seed, args)
    began = time.perf_counter()
    score = (ours if task.system == "CTEM" else partial(peer, task.system))(frame, task.seed, args)
    seconds = time.perf_counter() - began
    return {"ROC-AUC": float(roc_auc_score(strange, score)), "seconds": seconds}


def means(found: Mapping[Task, Values], sets: Collection[str]) -> list[Record]:
    """The mean ROC-AUC over the sets, for every seed of a system that has run on all of them."""
    whole: dict[str, list[float]] = {}
    for system, seed in sorted({(task.system, task.seed) for task in found}):
        mine = [found.get(Task(data, seed, system)) for data in sets]
        if all(mine):
            whole.setdefault(system, []).append(np.mean([values["ROC-AUC"] for values in mine if values]))
    return [summarise("mean of the sets", system, "ROC-AUC", values) for system, values in whole.items()]


def main() -> None:
    parser = sweep_arguments(__doc__, SETS, ("CTEM", *PEERS), SEEDS)
    parser.add_argument(
        "--peers", action="store_true", help="all systems but ours, into anomalies-peers.json"
    )
    args = parser.parse_args()
    name = args.name or f"anomalies-{group_name(args)}"
    settings = {"model": "CTEM()", "share": SHARE, "adult rows": ADULT_ROWS, "redrawn cells": REDRAWN}
    todo = tasks(args, list(PEERS) if args.peers else None)
    sweep(measure, todo, args, name, settings, partial(means, sets={task.data for task in todo}))


if __name__ == "__main__":
    main()
