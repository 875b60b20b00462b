"""Outliers: ROC-AUC of the density on ADBench, beside distances to neighbours and mixtures of Gaussians.

    python -m experiments.tables.anomalies --device cuda --data FOLDER --out OUT --systems CTEM --jobs 6    ours
    python -m experiments.tables.anomalies --peers --data FOLDER --jobs 2    the others, into adbench-peers.json

By the one-class protocol of Livernoche et al. (ICLR 2024), read from FOLDER/adbench: fewer than 1000 rows are
bootstrapped to 1000, more than 50,000 cut to that; the first half of the normal rows, in the order of the file, is
learned from, the others and all anomalies are ranked. Defaults everywhere; peers see numbers standardised. One fit of
ours gives every candidate for a score (``candidates``); those were compared on the sets at even places of the alphabet
(CHOOSING), and the others report. k-NN is the published column again. Sets of fewer than 1000 rows hold copies of
training rows among the test rows, so the others have a mean of their own. --quick takes a made-up table.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

from ctem import CTEM
from ctem.datasets.downloads import root
from ctem.tables.answers import surprise
from ctem.tables.answers.density import TableDensity
from ctem.tables.io.frame import Frame
from experiments.results import Record, summarise
from experiments.sweep import TINY, Task, Values, sweep, sweep_arguments, tasks, toy_table

SEEDS = 3
SETS = (
    *("aloi", "breastw", "cardio", "celeba", "donors", "glass", "http", "ionosphere"),
    *("letter", "magic.gamma", "mnist", "optdigits", "pendigits", "satellite", "shuttle"),
    *("smtp", "stamps", "vertebral", "waveform", "wdbc", "wine", "yeast"),
)
SMALL = ("breastw", "glass", "ionosphere", "stamps", "vertebral", "wdbc", "wine")  # fewer than 1000 rows
CHOOSING = SETS[::2]
LEAST, MOST = 1000, 50_000  # rows
NEIGHBOURS = 5
COMPONENTS = (1, 2, 5, 10, 20)  # of the mixtures whose ranks are averaged
DRAWN = 512  # rows of the model, beside which cells are rare or not
FAR = 20_000  # rows of the model, of which the nearest count


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
        X = toy_table(600, seed).select_dtypes("number").to_numpy(float)
        strange = X[550:][:, [1, 2, 3, 0]]  # every cell in another column
        return OneClass(X[:300], np.concatenate([X[300:550], strange]), np.repeat([0, 1], [250, 50]))
    paths = (root(args.data) / "adbench").glob("*.npz")
    path = next(path for path in paths if path.stem.partition("_")[2].lower() == data)
    with np.load(path) as file:
        return one_class(file["X"].astype(np.float64), file["y"].astype(int), seed)


def standardised(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaler = StandardScaler().fit(train)
    return scaler.transform(train), scaler.transform(test)


def distances(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Sorted distances to the nearest training rows, standardised by these: (n, NEIGHBOURS)."""
    known, new = standardised(train, test)
    return NearestNeighbors(n_neighbors=NEIGHBOURS).fit(known).kneighbors(new)[0]


def mixtures(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    """The mean rank of −log ρ by several mixtures of Gaussians, (n,)."""
    known, new = standardised(train, test)
    each = [GaussianMixture(k, reg_covar=1e-4, random_state=seed).fit(known) for k in COMPONENTS]
    return np.mean([rankdata(-mixture.score_samples(new)) for mixture in each], axis=0)


def cells(table: TableDensity, frame: Frame) -> np.ndarray:
    """Nats of every cell after the columns before it, numbers in deviations of their column: (n, columns)."""
    return surprise.surprises(table.schema, table.density, table.encode(frame)[0]).cpu().numpy()


def drawn_rows(model: CTEM, n: int) -> np.ndarray:
    return np.asarray(model.sample(n, random_state=0), np.float64)


def candidates(rows: OneClass, seed: int, args) -> dict[str, np.ndarray]:
    """Every candidate for a score of test rows, from one fit."""
    model = CTEM(random_state=seed, device=args.device, **settings_of(args)).fit(rows.train)
    table, test = TableDensity(model.schema_, model.density_), model.as_frame(rows.test)
    nats, drawn = (cells(table, model.as_frame(part)) for part in (rows.test, drawn_rows(model, DRAWN)))
    rarity = surprise.Rarity(drawn)
    return {
        "outlier_scores": model.outlier_scores(rows.test),
        "density": -model.score_samples(rows.test),
        "independent columns": -table.independent(test),
        "nats": nats.sum(1),
        "rarity": rarity.rare(nats).sum(1),
        "highest nats": (nats - rarity.usual).max(1),
        "mean distance to samples": distances(drawn_rows(model, FAR), rows.test).mean(1),
    }


def settings_of(args) -> dict:
    return TINY if args.quick else {"effort": args.effort}


PEERS = {
    "k-NN": lambda rows, seed: distances(rows.train, rows.test)[:, -1],
    "mean distance": lambda rows, seed: distances(rows.train, rows.test).mean(1),
    "Gaussian mixtures": lambda rows, seed: mixtures(rows.train, rows.test, seed),
}


def ranked(task: Task, args) -> Values:
    """The AUC of every score of one system on one set, in %; the first is the one that was chosen."""
    rows, began = load_one_class(task.data, task.seed, args), time.perf_counter()
    if task.system == "CTEM":
        found = candidates(rows, task.seed, args)
        found = {"AUC": found["outlier_scores"]} | {f"AUC, {name}": score for name, score in found.items()}
    else:
        found = {"AUC": PEERS[task.system](rows, task.seed)}
    seconds = {"seconds": time.perf_counter() - began}
    return {name: 100 * float(roc_auc_score(rows.strange, score)) for name, score in found.items()} | seconds


SCORES = ("density", "independent columns", "nats", "rarity", "highest nats", "mean distance to samples")
WRITTEN = ("AUC", *(f"AUC, {name}" for name in SCORES))
GROUPS = {
    "mean of the 22": SETS,
    "mean of the 15 with at least 1000 rows": [data for data in SETS if data not in SMALL],
    "mean of the choosing half": CHOOSING,
    "mean of the other half": [data for data in SETS if data not in CHOOSING],
}


def group_means(found: Mapping[Task, Values]) -> list[Record]:
    """Means over groups of sets, for every score and seed that has all of them."""
    lists: dict[tuple[str, str, str], list[float]] = {}
    for name, sets in GROUPS.items():
        for system, seed in sorted({(task.system, task.seed) for task in found}):
            whole = [found.get(Task(data, seed, system)) for data in sets]
            for metric in [m for m in whole[0] or () if m in WRITTEN] if all(whole) else ():
                mean = float(np.mean([values[metric] for values in whole if values]))
                lists.setdefault((name, system, metric), []).append(mean)
    return [summarise(*key, values) for key, values in lists.items()]


def main() -> None:
    parser = sweep_arguments(__doc__, SETS, ("CTEM", *PEERS), SEEDS)
    parser.add_argument("--peers", action="store_true", help="all but ours, into adbench-peers.json")
    parser.add_argument("--choosing", action="store_true", help="only the sets on which the score was chosen")
    parser.add_argument("--effort", default="default", help="of the fits")
    args = parser.parse_args()
    args.sets = [data for data in args.sets if data in CHOOSING or not args.choosing]
    settings = {"model": f"CTEM(effort={args.effort!r})", "drawn": DRAWN, "near": FAR}
    name = args.name or f"adbench-{'peers' if args.peers else args.effort}"
    todo = tasks(args, list(PEERS) if args.peers else args.systems)
    sweep(ranked, todo, args, name, settings, group_means, metrics=("AUC", "seconds"), protocol="adbench")


if __name__ == "__main__":
    main()
