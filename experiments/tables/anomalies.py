"""Outliers: ROC-AUC of the density beside PyOD's ECOD, isolation forest and KDE.

    python -m experiments.tables.anomalies --device cuda --data FOLDER --out OUT --systems CTEM    ours
    python -m experiments.tables.anomalies --peers --data FOLDER    PyOD's

Labelled sets from data that ships with scikit-learn: one class is made rare (breast cancer: malignant; digits: the
zeros; wine: the first cultivar), all other rows are kept. Adult: rows of the training file, in some of which a few
cells are redrawn from their columns, so that every cell by itself is ordinary. Every system is fitted on all rows and
ranks the same rows; the labels serve the ROC-AUC alone. Defaults everywhere; PyOD sees numbers standardised and
labels one-hot, ours the table as it is. --quick takes a made-up table.

    python -m experiments.tables.anomalies --adbench --device cuda --data FOLDER --out OUT --jobs 6    all candidates
    python -m experiments.tables.anomalies --adbench --data FOLDER --systems k-NN    the published column again

ADBench by the one-class protocol of Livernoche et al. (ICLR 2024), read from FOLDER/adbench: fewer than 1000 rows are
bootstrapped to 1000, more than 50,000 cut to that; the first half of the normal rows, in the order of the file, is
learned from, the others and all anomalies are ranked. One fit gives every candidate for a score (``candidates``); those
were compared on the sets at even places of the alphabet (CHOOSING), and the others report. Sets of fewer than 1000 rows
hold copies of training rows among the test rows, so the others have a mean of their own.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

from ctem import CTEM
from ctem.datasets.downloads import root
from ctem.tables.answers import surprise
from ctem.tables.answers.density import TableDensity
from ctem.tables.frames.frame import Frame
from experiments.results import Record, summarise
from experiments.sweep import TINY, Task, Values, need, published, sweep, sweep_arguments, tasks, toy_table
from experiments.tables.nats import load as load_whole

RARE = {"breast cancer": (load_breast_cancer, 0), "digits": (load_digits, 0), "wine": (load_wine, 0)}
SETS = (*RARE, "adult")
SEEDS = 3
SHARE = 0.05  # of the kept rows, as outliers
ADULT_ROWS = 5000
REDRAWN = 4  # cells of a corrupted row
PEERS = {"ECOD": "ecod.ECOD", "IForest": "iforest.IForest", "KDE": "kde.KDE"}
ADBENCH = (
    *(
        "aloi",
        "breastw",
        "cardio",
        "celeba",
        "donors",
        "glass",
        "http",
        "ionosphere",
        "letter",
        "magic.gamma",
    ),
    *("mnist", "optdigits", "pendigits", "satellite", "shuttle", "smtp", "stamps", "vertebral", "waveform"),
    *("wdbc", "wine", "yeast"),
)
SMALL = ("breastw", "glass", "ionosphere", "stamps", "vertebral", "wdbc", "wine")  # fewer than 1000 rows
CHOOSING = ADBENCH[::2]
LEAST, MOST = 1000, 50_000  # rows
NEIGHBOURS = 5
DRAWN, FAR = (
    512,
    20_000,
)  # rows of the model: beside which cells are rare or not, and of which the nearest count
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
        frame = load_whole(data, args)
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


class OneClass(NamedTuple):
    """Normal rows to learn from, rows to rank, and which of these are anomalies."""

    train: np.ndarray
    test: np.ndarray
    strange: np.ndarray


def one_class(X: np.ndarray, y: np.ndarray, seed: int) -> OneClass:
    """The split of the protocol; the seed draws rows only where there are too few or too many."""
    if not LEAST <= len(X) <= MOST:
        rng = np.random.RandomState(seed)
        size = LEAST if len(X) < LEAST else MOST
        kept = rng.choice(np.arange(len(X)), size, replace=len(X) < LEAST)
        X, y = X[kept], y[kept]
    normal, anomalies = np.flatnonzero(y == 0), np.flatnonzero(y == 1)
    half = round(0.5 * len(normal))
    test = np.append(normal[half:], anomalies)
    return OneClass(X[normal[:half]], X[test], y[test])


def load_one_class(data: str, seed: int, args) -> OneClass:
    if data == "toy":
        frame, strange = corrupted(toy_table(600, seed).select_dtypes("number").astype(float), seed)
        usual = np.flatnonzero(strange == 0)[:300]
        rest = np.setdiff1d(np.arange(len(frame)), usual)
        return OneClass(frame.to_numpy()[usual], frame.to_numpy()[rest], strange[rest])
    paths = (root(args.data) / "adbench").glob("*.npz")
    path = next(path for path in paths if path.stem.partition("_")[2].lower() == data)
    with np.load(path) as file:
        return one_class(file["X"].astype(np.float64), file["y"].astype(int), seed)


def distances(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Sorted distances to the nearest training rows, standardised by these: (n, NEIGHBOURS)."""
    scaler = StandardScaler().fit(train)
    near = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(scaler.transform(train))
    return near.kneighbors(scaler.transform(test))[0]


def neighbours(rows: OneClass, seed: int, args) -> dict[str, np.ndarray]:
    """The best classical scores."""
    found = distances(rows.train, rows.test)
    return {"fifth distance": found[:, -1], "mean distance": found.mean(1)}


def cells(table: TableDensity, frame: Frame) -> np.ndarray:
    """Nats of every cell after the columns before it, numbers in deviations of their column: (n, columns)."""
    return surprise.surprises(table.schema, table.any_order("cells"), table.encode(frame)[0]).cpu().numpy()


def drawn_rows(model: CTEM, n: int) -> np.ndarray:
    return np.asarray(model.sample(n, random_state=0), np.float64)


def candidates(rows: OneClass, seed: int, args) -> dict[str, np.ndarray]:
    """Every candidate for a score of test rows, from one fit."""
    model = CTEM(random_state=seed, device=args.device, **settings_of(args)).fit(rows.train)
    table, test = TableDensity(model.schema_, model.density_), model.as_frame(rows.test)
    nats, drawn = (cells(table, model.as_frame(part)) for part in (rows.test, drawn_rows(model, DRAWN)))
    rarity = surprise.Rarity(drawn)
    near, far = distances(rows.train, rows.test), distances(drawn_rows(model, FAR), rows.test)
    return {
        "outlier_scores": model.outlier_scores(rows.test),
        "density": -model.score_samples(rows.test),
        "independent columns": -table.independent(test),
        "nats": nats.sum(1),
        "rarity": rarity.rare(nats).sum(1),
        "highest nats": (nats - rarity.usual).max(1),
        "mean distance": near.mean(1),
        "mean distance to samples": far.mean(1),
    }


def settings_of(args) -> dict:
    return TINY if args.quick else {"effort": args.effort}


CHOSEN = {"CTEM": "outlier_scores", "k-NN": "fifth distance"}
ADBENCH_SYSTEMS = {"CTEM": candidates, "k-NN": neighbours}


def ranked(task: Task, args) -> Values:
    """The AUC of every score of one system on one set, in %; the first is the one that was chosen."""
    rows, began = load_one_class(task.data, task.seed, args), time.perf_counter()
    found = ADBENCH_SYSTEMS[task.system](rows, task.seed, args)
    seconds = {"seconds": time.perf_counter() - began}
    found = {"AUC": found[CHOSEN[task.system]]} | {f"AUC, {name}": score for name, score in found.items()}
    return {name: 100 * float(roc_auc_score(rows.strange, score)) for name, score in found.items()} | seconds


def means(found: Mapping[Task, Values], sets: Collection[str]) -> list[Record]:
    """The mean ROC-AUC over the sets, for every seed of a system that has run on all of them."""
    whole: dict[str, list[float]] = {}
    for system, seed in sorted({(task.system, task.seed) for task in found}):
        mine = [found.get(Task(data, seed, system)) for data in sets]
        if all(mine):
            whole.setdefault(system, []).append(np.mean([values["ROC-AUC"] for values in mine if values]))
    return [summarise("mean of the sets", system, "ROC-AUC", values) for system, values in whole.items()]


SCORES = ("density", "independent columns", "nats", "rarity", "highest nats", "mean distance")
WRITTEN = ("AUC", *(f"AUC, {name}" for name in SCORES))
GROUPS = {
    "mean of the 22": ADBENCH,
    "mean of the 15 with at least 1000 rows": [data for data in ADBENCH if data not in SMALL],
    "mean of the choosing half": CHOOSING,
    "mean of the other half": [data for data in ADBENCH if data not in CHOOSING],
}


def group_means(found: Mapping[Task, Values]) -> list[Record]:
    """Means over groups of sets, for every score and seed that has all of them; and what is published."""
    lists: dict[tuple[str, str, str], list[float]] = {}
    for name, sets in GROUPS.items():
        for system, seed in sorted({(task.system, task.seed) for task in found}):
            whole = [found.get(Task(data, seed, system)) for data in sets]
            for metric in [m for m in whole[0] or () if m in WRITTEN] if all(whole) else ():
                mean = float(np.mean([values[metric] for values in whole if values]))
                lists.setdefault((name, system, metric), []).append(mean)
    return [summarise(*key, values) for key, values in lists.items()] + published("adbench")


def adbench(args) -> None:
    """All candidates on ADBench, or the neighbours."""
    systems = [name for name in args.systems if name in ADBENCH_SYSTEMS]
    sets = [data for data in args.sets if data in ADBENCH]
    args.sets = [data for data in sets if data in CHOOSING] if args.choosing else sets
    settings = {"model": f"CTEM(effort={args.effort!r})", "drawn": DRAWN, "near": FAR}
    name = args.name or f"adbench-{args.effort}"
    sweep(ranked, tasks(args, systems), args, name, settings, group_means, metrics=("AUC", "seconds"))


def main() -> None:
    sets, systems = (*SETS, *ADBENCH), ("CTEM", *PEERS, "k-NN")
    parser = sweep_arguments(__doc__, sets, systems, SEEDS)
    parser.add_argument("--peers", action="store_true", help="all but ours, into anomalies-peers.json")
    parser.add_argument("--adbench", action="store_true", help="ADBench, into adbench-default.json")
    parser.add_argument("--choosing", action="store_true", help="only the sets on which the score was chosen")
    parser.add_argument("--effort", default="default", help="of the fits to ADBench")
    args = parser.parse_args()
    if args.adbench:
        return adbench(args)
    args.sets = [data for data in args.sets if data in SETS]
    name = args.name or f"anomalies-{'peers' if args.peers else 'CTEM'}"
    settings = {"model": "CTEM()", "share": SHARE, "adult rows": ADULT_ROWS, "redrawn cells": REDRAWN}
    todo = tasks(args, list(PEERS) if args.peers else [name for name in args.systems if name != "k-NN"])
    sweep(measure, todo, args, name, settings, partial(means, sets={task.data for task in todo}))


if __name__ == "__main__":
    main()
