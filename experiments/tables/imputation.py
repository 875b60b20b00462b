"""Imputation: a fifth of the cells of four tables removed at random, and filled in again.

    python -m experiments.tables.imputation --device cuda --data FOLDER --out OUT --systems CTEM    ours
    python -m experiments.tables.imputation --peers --data FOLDER    scikit-learn's, and MissForest
    python -m experiments.tables.imputation --systems miceforest --data FOLDER    where that is installed

Every system is fitted on the incomplete rows and fills them in. Accuracy: of removed labels, the mean over their
columns. NRMSE: of removed numbers, root mean square error over the column's standard deviation, the mean over columns.
Ours is ``CTEMImputer``: means of numbers, modes of labels; and how often its intervals of 90 % hold the number. Where
one value is frequent, intervals hold more; so columns without such a value (a twentieth of the rows) are shown apart.
The peers see numbers standardised, and labels in two ways: one-hot (the largest indicator is the label) and as
standardised codes (the nearest is). MissForest (Stekhoven and Bühlmann 2012) fits a random forest to each column in
turn, a classifier for labels, at most five rounds. Cells that are missing in the file stay so and are not scored. ames
and pbc are read from FOLDER/wild (Rdatasets, without row names); --quick takes a made-up table.

    python -m experiments.tables.imputation --uses --device cuda --data FOLDER --out OUT    ours, on Adult
    python -m experiments.tables.imputation --uses --peers --data FOLDER    scikit-learn's

5000 rows to learn from, the second file of Adult to test on. AUC of income by scikit-learn's boosted trees from
features of which a fifth of the cells was removed at random, in both parts: as they are ("native"), and filled in by
scikit-learn's imputers or by ``CTEMImputer`` (conditional means of numbers, modes of labels), which never see the
income; MissForest, which here must fill in new rows, is IterativeImputer with random forests on codes. "trees" and
"CTEM" have complete rows: boosted trees, and ``predict_proba(X, "income")`` of a ``CTEM``, which is audited for privacy
against the test rows; "…, all rows" learn from the whole first file.

    python -m experiments.tables.imputation --harpoon --device cuda --data FOLDER --out OUT --jobs 5    as Harpoon does

Harpoon (ICLR 2026): 70 % of the rows (seed 1234) are learned from, complete; of the others five masks of every kind
(``sweep.mask``) remove cells. Squared error of hidden numbers, standardised by the training rows; accuracy of hidden
labels in %. Without the target; california: nine numbers. One fit serves all masks; peers see both parts.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401  scikit-learn asks for it
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

from ctem.datasets import load_table
from experiments.sweep import (
    ROUNDS,
    TINY,
    TREES,
    UNSAID,
    Task,
    Values,
    errors,
    forest,
    group_name,
    mask,
    sweep,
    sweep_arguments,
    tasks,
    toy_table,
    wild,
)

SETS = ("adult", "ames", "california", "pbc")
NAMING = {"ames": [], "pbc": ["id"]}  # tables of FOLDER/wild, and the columns that name their rows
SEEDS = 3
REMOVED = 0.2
ROWS = 10_000  # drawn from the table: nearest neighbours are quadratic in them
IMPUTERS = {"means and modes": SimpleImputer, "IterativeImputer": IterativeImputer, "KNNImputer": KNNImputer}
CODINGS = ("one-hot", "codes")
TWICE = tuple(f"{i}, {c}" for i in list(IMPUTERS)[1:] for c in CODINGS)
OPTIONAL = ("miceforest",)  # pip install miceforest, in an environment of its own
PEERS = ("MissForest", "means and modes, one-hot", *TWICE)
TOO_WIDE = [("ames", "IterativeImputer, one-hot")]  # 3300 regressions on 330 columns
FREQUENT = 0.05  # a share of the rows

ALL = ", all rows"
COMPLETE = ("trees", "CTEM", f"trees{ALL}", f"CTEM{ALL}")  # systems without gaps
OURS = ("CTEMImputer", "CTEM", f"CTEM{ALL}")
USES = ("native", "SimpleImputer", "KNNImputer", "IterativeImputer", "MissForest", "CTEMImputer", *COMPLETE)
TRAINING = 5000

HARPOON = ("adult", "default", "shoppers", "california", "magic")
KINDS = [
    (kind, rate) for kind in ("MCAR", "MAR", "MNAR") for rate in (25, 50, 75) if kind == "MCAR" or rate < 75
]


def load(data: str, seed: int, args) -> pd.DataFrame:
    if args.quick:
        return toy_table(300, seed)
    frame = load_table(data, args.data) if data not in NAMING else wild(data, args.data, NAMING[data])
    return frame.sample(min(ROWS, len(frame)), random_state=seed).reset_index(drop=True)


def removed(frame: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """The table with gaps, and where they were made (n, columns)."""
    gone = np.random.default_rng(seed).random(frame.shape) < REMOVED
    out = frame.astype({name: float for name in _numbers(frame)})
    return out.mask(gone), gone & frame.notna().to_numpy()


def ours(seed: int, args):
    """Our conditional means and modes; imported here, since a peer's numbers do not rest on our code."""
    from ctem import CTEMImputer

    return CTEMImputer(random_state=seed, device=args.device, **(TINY if args.quick else {}))


def density(seed: int, args):
    from ctem import CTEM

    return CTEM(random_state=seed, device=args.device, **(TINY if args.quick else {}))


def covered(frame: pd.DataFrame, gappy: pd.DataFrame, gone: np.ndarray, imputer) -> Values:
    """The share of removed numbers within their interval of 90 %, the mean over columns of numbers: all, and spread."""
    low, high = imputer.intervals(gappy, 0.9)
    inside = {
        name: ((low[name] <= frame[name]) & (frame[name] <= high[name]))[gone[:, j]].mean()
        for j, name in enumerate(frame)
        if name in _numbers(frame)
    }
    spread = [name for name in inside if frame[name].value_counts(normalize=True).iloc[0] < FREQUENT]
    return {
        "coverage of 90 % intervals": float(np.mean(list(inside.values()))),
        "coverage of 90 % intervals, columns without a frequent value": float(
            np.mean([inside[name] for name in spread or inside])
        ),
    }


def peer(name: str, gappy: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Filled in by one of scikit-learn's imputers with its defaults."""
    kind, _, coding = name.partition(", ")
    numbers = _numbers(gappy)
    labels = {column: sorted(gappy[column].dropna().unique()) for column in gappy if column not in numbers}
    rows = pd.concat([gappy[numbers], *(_coded(gappy[c], v, coding) for c, v in labels.items())], axis=1)
    centre, scale = (rows.mean(), rows.std()) if coding == "codes" else (0.0, 1.0)
    if coding == "one-hot":
        centre, scale = (rows[numbers].mean().reindex(rows.columns, fill_value=f) for f in (0.0, 1.0))
        scale[numbers] = rows[numbers].std()
    imputer = IMPUTERS[kind](random_state=seed) if kind == "IterativeImputer" else IMPUTERS[kind]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # ten rounds are its default, and often too few
        filled = pd.DataFrame(imputer.fit_transform((rows - centre) / scale), columns=rows.columns)
    filled = filled * scale + centre
    decoded = {c: _decoded(filled, c, v, coding) for c, v in labels.items()}
    return pd.DataFrame({**filled[numbers], **decoded})[list(gappy)]


def boosted(gappy: pd.DataFrame, seed: int, jobs: int) -> pd.DataFrame:
    """Filled in by miceforest: its predictions rather than its draws, since errors are measured."""
    try:
        from miceforest import ImputationKernel
    except ImportError as error:
        raise ImportError(
            f"miceforest: this system needs the package ({error}); pip install miceforest."
        ) from None
    labels = {c: sorted(gappy[c].dropna().unique()) for c in gappy if c not in _numbers(gappy)}
    rows = pd.concat(
        [_coded(gappy[c], labels[c], "codes") if c in labels else gappy[c] for c in gappy], axis=1
    )
    plain = rows.astype(dict.fromkeys(labels, "category")).set_axis(
        [f"c{i}" for i in range(rows.shape[1])], axis=1
    )
    kernel = ImputationKernel(plain, num_datasets=1, mean_match_candidates=0, random_state=seed)
    kernel.mice(ROUNDS, num_threads=jobs)
    filled = kernel.complete_data(0).astype(float).set_axis(list(gappy), axis=1)
    return filled.assign(**{c: _decoded(filled, c, values, "codes") for c, values in labels.items()})


def filler(name: str, cores: int) -> Callable[..., pd.DataFrame]:
    """What fills in a table as the peer of that name does."""
    if name in OPTIONAL:
        return partial(boosted, jobs=cores)
    return partial(forest, jobs=cores) if name == "MissForest" else partial(peer, name)


def _coded(column: pd.Series, values: list, coding: str) -> pd.DataFrame:
    if coding == "codes":
        return column.map({value: float(i) for i, value in enumerate(values)}).astype(float).to_frame()
    indicators = {f"{column.name}={v}": column.eq(v).astype(float).where(column.notna()) for v in values}
    return pd.DataFrame(indicators)


def _decoded(filled: pd.DataFrame, column: str, values: list, coding: str) -> np.ndarray:
    if coding == "codes":
        code = filled[column].round().clip(0, len(values) - 1).to_numpy(int)
    else:
        code = filled[[f"{column}={value}" for value in values]].to_numpy().argmax(1)
    return np.array(values, object)[code]


def scores(frame: pd.DataFrame, filled: pd.DataFrame, gone: np.ndarray) -> dict[str, float]:
    """Accuracy and NRMSE over the cells that were removed."""
    numbers, right, error = _numbers(frame), [], []
    for j, name in enumerate(frame):
        truth, answer = frame[name][gone[:, j]], filled[name][gone[:, j]]
        if name in numbers:
            gap = answer.to_numpy(float) - truth.to_numpy(float)
            error.append(np.sqrt(np.mean(gap**2)) / frame[name].std())
        else:
            right.append(np.mean(answer.astype(str).to_numpy() == truth.astype(str).to_numpy()))
    return {"accuracy": float(np.mean(right)), "NRMSE": float(np.mean(error))}


def _numbers(frame: pd.DataFrame) -> list[str]:
    return [name for name in frame if pd.api.types.is_numeric_dtype(frame[name])]


def jobs(args) -> int:
    """Cores for one measurement."""
    return max(1, (os.cpu_count() or 1) // args.jobs)


def measure(task: Task, args) -> Values:
    """One system on one table."""
    frame = load(task.data, task.seed, args)
    gappy, gone = removed(frame, task.seed)
    began = time.perf_counter()
    if task.system != "CTEM":
        filled = filler(task.system, jobs(args))(gappy, seed=task.seed)
        return scores(frame, filled, gone) | {"seconds": time.perf_counter() - began}
    imputer = ours(task.seed, args).fit(gappy)
    found = scores(frame, imputer.transform(gappy), gone) | {"seconds": time.perf_counter() - began}
    return found | covered(frame, gappy, gone, imputer)


def adult(seed: int, args, every: bool = False) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """Rows to learn from, rows to test on, and the name of the target."""
    if args.quick:
        frame = toy_table(400, seed).assign(gain=lambda X: np.where(X["gain"] > 0, "yes", "no"))
        return frame[:300], frame[300:].reset_index(drop=True), "gain"
    train, test = (load_table(name, args.data) for name in ("adult", "adult-test"))
    n = len(train) if every else TRAINING
    return train.sample(n, random_state=seed).reset_index(drop=True), test, "income"


def with_gaps(features: pd.DataFrame, seed: int) -> pd.DataFrame:
    gone = np.random.default_rng(seed).random(features.shape) < REMOVED
    return features.astype(dict.fromkeys(features.select_dtypes("number").columns, float)).mask(gone)


def coded(features: pd.DataFrame) -> tuple[object, list[bool]]:
    """Labels as codes, gaps and new labels as missing, and which columns are labels."""
    labels = [name for name in features if name not in features.select_dtypes("number")]
    encoder = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=np.nan
    )
    rest = [name for name in features if name not in labels]
    made = make_column_transformer((encoder, labels), ("passthrough", rest))
    return made, [True] * len(labels) + [False] * len(rest)


def pipeline(system: str, features: pd.DataFrame, seed: int, args):
    """Features, with gaps or filled in, into boosted trees."""
    encoder, labels = coded(features)
    trees = HistGradientBoostingClassifier(categorical_features=labels, random_state=seed)
    if system == "native" or system in COMPLETE:
        return make_pipeline(encoder, trees)
    if system == "CTEMImputer":
        return make_pipeline(ours(seed, args), encoder, trees)
    trees.set_params(categorical_features=None)  # codes that are averages
    if system == "SimpleImputer":
        return make_pipeline(encoder, SimpleImputer(strategy="most_frequent"), trees)
    if system == "MissForest":
        grown = RandomForestRegressor(TREES, max_features="sqrt", random_state=seed, n_jobs=jobs(args))
        filled = IterativeImputer(grown, max_iter=ROUNDS, random_state=seed)
    else:
        filled = KNNImputer() if system == "KNNImputer" else IterativeImputer(random_state=seed)
    return make_pipeline(encoder, filled, trees)


def used(task: Task, args) -> Values:
    """One system before a classifier, or as one."""
    train, test, target = adult(task.seed, args, task.system.endswith(ALL))
    began, truth = time.perf_counter(), test[target] == sorted(train[target].unique())[-1]
    if task.system.removesuffix(ALL) == "CTEM":
        return classified(train, test, target, truth, task.seed, args)
    parts = [part.drop(columns=target) for part in (train, test)]
    if task.system not in COMPLETE:
        parts = [with_gaps(part, 2 * task.seed + i) for i, part in enumerate(parts)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = pipeline(task.system, parts[0], task.seed, args).fit(parts[0], train[target])
        p = fitted.predict_proba(parts[1])[:, 1]
    return {"AUC": float(roc_auc_score(truth, p)), "seconds": time.perf_counter() - began}


def classified(train, test, target: str, truth, seed: int, args) -> Values:
    from ctem.report.privacy import audit

    began, model = time.perf_counter(), density(seed, args).fit(train)
    p = model.predict_proba(test, target)[:, model.classes(target).index(sorted(train[target].unique())[-1])]
    seconds, found = time.perf_counter() - began, audit(model, train, test)
    leaks = {"samples nearer to training": found.nearer, "membership AUC": found.attack}
    return {"AUC": float(roc_auc_score(truth, p)), "seconds": seconds} | leaks


def load_complete(data: str, args) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Harpoon's training and test rows, numbers as floats, and which columns are labels."""
    from experiments.tables.samples import SPLIT_SEED, TARGETS, WHOLE

    frame = toy_table(300, 0) if args.quick else load_table(data, args.data)
    frame = frame.fillna(UNSAID) if data == "adult" else frame.dropna().reset_index(drop=True)
    frame = frame.drop(columns="ocean_proximity" if data == "california" else TARGETS[data])
    labels = [name for name in frame if name not in _numbers(frame) or name in WHOLE.get(data, ())]
    types = {name: int if name in labels else float for name in _numbers(frame)}
    order = np.random.RandomState(SPLIT_SEED).permutation(len(frame))
    parts = (frame.astype(types).iloc[rows] for rows in np.split(order, [int(0.7 * len(frame))]))
    return *(part.reset_index(drop=True) for part in parts), labels


def at_means_and_modes(model, gappy: pd.DataFrame, labels: list[str]):
    """As ``CTEMImputer``, but numbers that the protocol takes as labels are at their mode, too."""
    from ctem.tables.answers.density import TableDensity
    from ctem.tables.io.frame import build_frame

    frame, table = model.as_frame(gappy), TableDensity(model.schema_, model.density_)

    def filled(one, name: str):
        return one.mode() if name in labels else one.mean()

    (columns,) = table.summarised(frame, filled)
    return build_frame(frame.table_type, columns)


def beside(name: str, train: pd.DataFrame, gappy: pd.DataFrame, labels: list[str], seed: int) -> pd.DataFrame:
    """Filled in by a peer that sees the complete rows, too; labels are text to it."""
    both = pd.concat([train, gappy], ignore_index=True)
    for label in (label for label in labels if label in _numbers(both)):
        both[label] = both[label].map(lambda code: str(int(code)), na_action="ignore").astype(object)
    return filler(name, os.cpu_count() or 1)(both, seed=seed)[len(train) :].reset_index(drop=True)


def by_harpoon(task: Task, args) -> Values:
    """One system under all masks of a table."""
    train, test, labels = load_complete(task.data, args)
    began, found = time.perf_counter(), Values()
    if task.system == "CTEM":
        model = density(task.seed, args).fit(train)
        found["fit, seconds"] = time.perf_counter() - began
    for kind, rate in KINDS:
        pairs = []
        for i in range(1 if args.quick else args.masks):
            gone = mask(kind, test, labels, rate / 100, 100 * task.seed + i)
            gappy = test.astype({name: float for name in _numbers(test)}).mask(gone)
            if task.system == "CTEM":
                filled = at_means_and_modes(model, gappy, labels)
            else:
                filled = beside(task.system, train, gappy, labels, task.seed)
            pairs.append([part.mean() for part in errors(test, filled, gone, labels, train) if len(part)])
        mean = np.mean(pairs, axis=0)
        found[f"squared error, {kind} {rate} %"] = float(mean[0])
        found |= {f"accuracy, {kind} {rate} %": 100 * float(hit) for hit in mean[1:]}
    return found | {"seconds": time.perf_counter() - began}


def main() -> None:
    sets, systems = dict.fromkeys((*SETS, *HARPOON)), dict.fromkeys(("CTEM", *PEERS, *USES, *OPTIONAL))
    parser = sweep_arguments(__doc__, tuple(sets), tuple(systems), SEEDS)
    parser.add_argument("--peers", action="store_true", help="all but ours, into imputation-peers.json")
    parser.add_argument("--uses", action="store_true", help="around a classifier, into uses-….json")
    parser.add_argument("--masks", type=int, default=5, help="of every kind, in Harpoon's protocol")
    parser.add_argument("--harpoon", action="store_true", help="Harpoon's protocol, into harpoon-….json")
    args = parser.parse_args()
    args.sets = [data for data in args.sets if data in (HARPOON if args.harpoon else SETS)]
    if args.harpoon:
        todo = tasks(args, [name for name in args.systems if name in ("CTEM", *PEERS, *OPTIONAL)])
        name = args.name or f"harpoon-{group_name(args)}"
        return sweep(by_harpoon, todo, args, name, {"masks": args.masks}, protocol="harpoon")
    settings = {"model": "CTEM()", "removed": REMOVED, "rows": TRAINING if args.uses else ROWS}
    if args.uses:
        args.sets = ["adult"]
        named = [name for name in args.systems if name in USES and (name not in OURS) == args.peers]
        name = args.name or f"uses-{'peers' if args.peers else 'CTEM'}"
        return sweep(used, tasks(args, named), args, name, settings)
    systems = PEERS if args.peers else [name for name in args.systems if name in ("CTEM", *PEERS, *OPTIONAL)]
    todo = [task for task in tasks(args, systems) if (task.data, task.system) not in TOO_WIDE]
    sweep(measure, todo, args, args.name or f"imputation-{group_name(args)}", settings)


if __name__ == "__main__":
    main()
