"""Samples of five tables beside TabSyn, TabDiff and TabPC, by the protocol that these share.

    python -m experiments.tables.samples --device cuda --data FOLDER --out OUT --jobs 5    everything; needs XGBoost
    python -m experiments.tables.samples --systems "real rows" --data FOLDER    what real rows score
    python -m experiments.tables.samples --titanic --data FOLDER    Titanic: rules, shares, holes and outliers

Splits: Adult's two files, a gap a label like another; of the others nine tenths are learned from, drawn by seed 1234
or the next under which every label occurs among these (beijing without rows that lack pm2.5, magic without its first
row, which TabSyn's reader takes for a header). There are as many samples as training rows. ``CTEM()`` sees the table
as it is in the file; for the metrics a column is a label or a number as TabSyn's description of the table has it.

C2ST            SDMetrics' detection by XGBoost's defaults, three folds, as TabPC's authors measure it (``nats.py``):
                1 if samples pass for training rows, 0 if they are told apart at sight; and by scikit-learn's trees
shape, trend    SDMetrics' errors in %: of single columns (Kolmogorov–Smirnov, total variation), and of pairs (half the
                difference of correlations; total variation of a contingency table, numbers in ten bins)
α-precision     how well the quantiles of the distance from the centre of the real rows agree, and
β-recall        the share of real rows that have a sample nearer than any other real row, as synthcity's "naive" ones
efficiency      XGBoost trained on samples, 36 settings, chosen on a ninth of them, asked for real test rows: AUC; of
                beijing the root mean square error of log(max(pm2.5, 0.01))
nearer          DCR share: of samples of a fit to half of the training rows, how many are nearer to that half than to
                the other (L1, numbers by their range, labels one-hot); ½ if nothing leaks

"cascade" is TabCascade's detection on Adult with holes (LightGBM; ``cascade``). Published rows are in
experiments/published.json. --quick takes a made-up table.
"""

from __future__ import annotations

import time
from itertools import combinations, pairwise, product
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import MinMaxScaler
from torch import Tensor

from ctem import CTEM
from ctem.datasets import load_table
from ctem.tables.answers.outliers import strangest_first
from experiments.sweep import (
    TINY,
    UNSAID,
    Task,
    Values,
    mask,
    need,
    sweep,
    sweep_arguments,
    tasks,
    toy_table,
)
from experiments.tables.nats import boosted, largest_gap, variation, xgboost_detection

SETS = ("adult", "default", "shoppers", "magic", "beijing")
SYSTEMS = ("CTEM", "CTEM on half", "real rows", "cascade")
SEEDS = 3
SPLIT_SEED = 1234
CLASSES = {1: "First", 2: "Second", 3: "Third"}  # of Titanic
CHUNK = 256  # rows whose distances are held at a time
STEPS = 30  # quantiles of α-precision and β-recall
BINS = 10  # of a number in a contingency table
GRID = {"n_estimators": (10, 50, 100), "max_depth": (5, 10, 20), "min_child_weight": (1, 10), "gamma": (0, 1)}
HOLES = 0.1  # of TabCascade's Adult
TARGETS = {
    "adult": "income",
    "default": "class",
    "shoppers": "Revenue",
    "magic": "class",
    "beijing": "pm2.5",
    "toy": "city",
}
WHOLE = {  # labels that are written as numbers
    "default": (
        "SEX",
        "EDUCATION",
        "MARRIAGE",
        "PAY_0",
        *(f"PAY_{i}" for i in range(2, 7)),
        TARGETS["default"],
    ),
    "shoppers": ("OperatingSystems", "Browser", "Region", "TrafficType", "Weekend", "Revenue"),
    "beijing": ("year", "month", "day", "hour"),
}


class Split(NamedTuple):
    """Training and test rows as they are in the file, the names of the labels, and the target."""

    train: pd.DataFrame
    test: pd.DataFrame
    labels: list[str]
    target: str


def load(data: str, args) -> Split:
    """TabSyn's split of a table."""
    if data == "toy":
        frame = toy_table(500, 0).assign(city=lambda X: np.where(X["city"] == "Oslo", "yes", "no"))
        return Split(frame[:300], frame[300:].reset_index(drop=True), ["city", "grade"], "city")
    frame = load_table(data, args.data)
    words = [name for name in frame if not pd.api.types.is_numeric_dtype(frame[name])]
    labels = list(dict.fromkeys([*words, *WHOLE.get(data, ())]))
    if data == "adult":
        rest = load_table("adult-test", args.data).fillna(UNSAID)
        return Split(frame.fillna(UNSAID), rest, labels, TARGETS[data])
    frame = (frame[1:] if data == "magic" else frame.dropna()).reset_index(drop=True)
    train, test = split(frame, [name for name in labels if name != TARGETS[data]])
    return Split(train, test, labels, TARGETS[data])


def split(frame: pd.DataFrame, labels: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Nine tenths and the rest, by the first seed from 1234 under which every label occurs in training.

    Every attempt shuffles what the one before has left, as TabSyn does.
    """
    index, n, seed = np.arange(len(frame)), int(0.9 * len(frame)), SPLIT_SEED
    while True:
        np.random.RandomState(seed).shuffle(index)
        train = frame.iloc[index[:n]]
        if all(train[name].nunique() == frame[name].nunique() for name in labels):
            return train.reset_index(drop=True), frame.iloc[index[n:]].reset_index(drop=True)
        seed += 1


def plain(frame: pd.DataFrame, labels: list[str]) -> pd.DataFrame:
    """Labels as text, numbers as numbers."""
    return pd.DataFrame(
        {name: frame[name].astype(str if name in labels else np.float64).to_numpy() for name in frame}
    )


def shape_error(real: pd.DataFrame, fake: pd.DataFrame, labels: list[str]) -> float:
    """Of single columns: the largest gap of distribution functions, or the total variation of labels; in %."""
    gaps = [(variation if name in labels else largest_gap)(real[name], fake[name]) for name in real]
    return float(100 * np.mean(gaps))


def trend_error(real: pd.DataFrame, fake: pd.DataFrame, labels: list[str]) -> float:
    """Of pairs of columns: half the difference of correlations, or the variation of contingency tables; in %."""
    coded = {name: _coded(real[name], fake[name], name in labels) for name in real}
    found = []
    for a, b in combinations(real, 2):
        if a in labels or b in labels:
            pairs = [pd.Series(coded[a][i] * (coded[b][2] + 1) + coded[b][i]) for i in (0, 1)]
            found.append(variation(*pairs))
        else:
            rho = [np.corrcoef(part[a], part[b])[0, 1] for part in (real, fake)]
            found.append(abs(rho[0] - rho[1]) / 2)
    return float(100 * np.nanmean(found))


def _coded(real: pd.Series, fake: pd.Series, label: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """Codes of the real and the sampled values, numbers in bins of the real range; and the highest code."""
    if label:
        codes = pd.factorize(pd.concat([real, fake]))[0]
    else:
        edges = np.histogram_bin_edges(real, BINS)
        codes = np.digitize(np.concatenate([real, fake]), edges)
    return codes[: len(real)], codes[len(real) :], int(codes.max())


def one_hot(labels: list[str], *frames: pd.DataFrame) -> list[np.ndarray]:
    """Numbers and indicators of labels, the same columns for all frames."""
    both = pd.get_dummies(pd.concat(frames, ignore_index=True), columns=labels, dtype=np.float64)
    ends = np.cumsum([0, *(len(frame) for frame in frames)])
    rows = both.to_numpy(np.float64)
    return [rows[a:b] for a, b in pairwise(ends)]


def nearest(rows: Tensor, among: Tensor, p: float, skip: int = 0) -> tuple[Tensor, Tensor]:
    """The distance of each row to its nearest (after ``skip`` of them) among others, and which that is."""
    parts = []
    for part in rows.split(CHUNK):
        d = torch.cdist(part, among, p, compute_mode="donot_use_mm_for_euclid_dist")
        parts.append(d.topk(skip + 1, largest=False, sorted=True))
    return torch.cat([part[0][:, -1] for part in parts]), torch.cat([part[1][:, -1] for part in parts])


def precision_recall(real: np.ndarray, fake: np.ndarray, device: str) -> tuple[float, float]:
    """α-precision and β-recall of rows of numbers, which are put on [0, 1] by the real ones."""
    scaler = MinMaxScaler().fit(real)
    x, y = (scaler.transform(part) for part in (real, fake))
    alphas = np.linspace(0, 1, STEPS)
    radii = np.quantile(np.linalg.norm(x - x.mean(0), axis=1), alphas)
    from_centre = np.linalg.norm(y - x.mean(0), axis=1)
    precision = np.array([(from_centre <= radius).mean() for radius in radii])
    on = [torch.as_tensor(part, dtype=torch.float32, device=device) for part in (x, y)]
    among_real, _ = nearest(on[0], on[0], 2.0, skip=1)
    to_fake, which = nearest(on[0], on[1], 2.0)
    covered = (to_fake <= among_real).cpu().numpy()
    out = np.linalg.norm(y[which.cpu().numpy()] - y.mean(0), axis=1)
    recall = np.array([(covered & (out <= radius)).mean() for radius in np.quantile(out, alphas)])
    return tuple(float(1 - np.abs(alphas - curve).sum() / alphas.sum()) for curve in (precision, recall))


def nearer_share(
    own: np.ndarray, other: np.ndarray, fake: np.ndarray, device: str, spans: np.ndarray
) -> float:
    """The share of samples that are nearer to their own half than to the other; L1 over spans of the columns."""
    on = [torch.as_tensor(part / spans, dtype=torch.float32, device=device) for part in (own, other, fake)]
    return float((nearest(on[2], on[0], 1.0)[0] < nearest(on[2], on[1], 1.0)[0]).float().mean())


def efficiency(
    fake: pd.DataFrame, test: pd.DataFrame, labels: list[str], target: str, args, seed: int
) -> float:
    """What XGBoost learns from samples about real rows: AUC of a label, error of a number's logarithm."""
    x, x_test = one_hot(
        [name for name in labels if name != target], *(_without(f, target) for f in (fake, test))
    )
    y, y_test = (_answers(part[target], target in labels, test[target]) for part in (fake, test))
    order, ninth = np.random.default_rng(seed).permutation(len(x)), len(x) // 9
    held, rest = order[:ninth], order[ninth:]
    kind = "XGBClassifier" if target in labels else "XGBRegressor"
    grid = [dict(zip(GRID, values, strict=True)) for values in product(*GRID.values())]
    best, chosen = -np.inf, None
    for settings in grid[:1] if args.quick else grid:
        trees = getattr(need("xgboost"), kind)(**settings, n_jobs=args.threads).fit(x[rest], y[rest])
        if (found := _quality(trees, x[held], y[held], target in labels)) > best:
            best, chosen = found, trees
    return abs(_quality(chosen, x_test, y_test, target in labels))


def _without(frame: pd.DataFrame, target: str) -> pd.DataFrame:
    return frame.drop(columns=target)


def _answers(column: pd.Series, label: bool, test: pd.Series) -> np.ndarray:
    return (column == max(test)).to_numpy(int) if label else np.log(np.maximum(column.to_numpy(float), 0.01))


def _quality(trees, x: np.ndarray, y: np.ndarray, label: bool) -> float:
    """AUC, or the root mean square error with a minus."""
    if label:
        return float(roc_auc_score(y, trees.predict_proba(x)[:, 1]))
    return -float(np.sqrt(np.mean((trees.predict(x) - y) ** 2)))


def judged(rows: Split, fake: pd.DataFrame, seed: int, args) -> Values:
    """All metrics that need one sample."""
    train, test, fake = (plain(part, rows.labels) for part in (rows.train, rows.test, fake))
    alpha, beta = precision_recall(*one_hot(rows.labels, train, fake), args.device)
    found = {
        "C2ST, XGBoost": xgboost_detection(train, fake, seed),
        "C2ST, gradient boosting": boosted(train, fake, seed),
        "C2ST, XGBoost, against the test rows": xgboost_detection(test, fake, seed),
        "shape error, %": shape_error(train, fake, rows.labels),
        "trend error, %": trend_error(train, fake, rows.labels),
        "α-precision": alpha,
        "β-recall": beta,
    }
    return found | {"efficiency": efficiency(fake, test, rows.labels, rows.target, args, seed)}


def fitted(train: pd.DataFrame, seed: int, args, **how) -> CTEM:
    return CTEM(random_state=seed, device=args.device, **(TINY if args.quick else {}), **how).fit(train)


def ours(rows: Split, task: Task, args) -> Values:
    """What one fit gives; the samples are kept beside the results."""
    began = time.perf_counter()
    model = fitted(rows.train, task.seed, args)
    done = time.perf_counter()
    fake = model.sample(len(rows.train), random_state=task.seed)
    drawn = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    fake.to_parquet(args.out / f"samples-{task.data}-{task.seed}.parquet")
    found = {
        "fit, seconds": done - began,
        "sampling, rows per second": len(fake) / (drawn - done),
        "test nats": model.score(rows.test),
    }
    return judged(rows, fake, task.seed, args) | found


def on_half(rows: Split, task: Task, args) -> Values:
    """DCR share of a fit to one half of the training rows."""
    order = np.random.default_rng(task.seed).permutation(len(rows.train))
    own, other = (rows.train.iloc[part] for part in np.array_split(order, 2))
    fake = fitted(own.reset_index(drop=True), task.seed, args).sample(len(own), random_state=task.seed)
    parts = one_hot(rows.labels, *(plain(part, rows.labels) for part in (own, other, fake)))
    spans = np.ptp(np.vstack(parts[:2]), axis=0)
    share = nearer_share(*parts, args.device, np.where(spans > 0, spans, 1.0))
    return {"DCR share": share}


def cascade(rows: Split, task: Task, args) -> Values:
    """TabCascade's detection: LightGBM, five folds, samples of a fit to rows with holes against these rows.

    Holes: logistic MNAR masks at the rate of 10 % on all columns but the target (``sweep.mask``); a hole is a value of
    its column (missing="state"), so samples have holes, too. Of the rows 70 % are learned from.
    """
    train = rows.train.sample(frac=0.7, random_state=task.seed).reset_index(drop=True)
    features = _without(train, rows.target)
    gone = mask("MNAR", features, rows.labels, HOLES, task.seed)
    holed = features.astype({n: float for n in features if n not in rows.labels}).mask(gone)
    holed[rows.target] = train[rows.target]
    model = fitted(holed, task.seed, args, missing="state")
    fake = model.sample(len(holed), random_state=task.seed)
    return {"C2ST, LightGBM, with holes": lightgbm_detection(holed, fake, rows.labels, task.seed, args)}


def lightgbm_detection(real, fake, labels: list[str], seed: int, args) -> float:
    """1 − (2 max(AUC, ½) − 1) of LightGBM's cross-validation: depth 5, 31 leaves, at most 200 rounds."""
    lightgbm = need("lightgbm")
    both = pd.concat([real, fake], ignore_index=True)
    both = both.astype({name: "category" for name in labels})
    data = lightgbm.Dataset(both, np.repeat([1, 0], [len(real), len(fake)]), free_raw_data=False)
    how = {"objective": "binary", "metric": "auc", "max_depth": 5, "num_leaves": 31, "verbosity": -1}
    stop = [lightgbm.early_stopping(10, verbose=False)]
    how |= {"num_threads": args.threads}
    found = lightgbm.cv(
        how, data, 20 if args.quick else 200, nfold=5, stratified=True, seed=seed, callbacks=stop
    )
    return float(2 - 2 * max(0.5, max(found["valid auc-mean"])))


def measure(task: Task, args) -> Values:
    """One system on one table."""
    rows = load(task.data, args)
    if task.system == "real rows":
        return judged(rows, rows.train, task.seed, args)
    if task.system == "cascade" and task.data not in ("adult", "toy"):
        return {}
    return {"CTEM": ours, "CTEM on half": on_half, "cascade": cascade}[task.system](rows, task, args)


def toy_titanic(n: int, seed: int) -> pd.DataFrame:
    """Rows of the columns that are looked at."""
    rng = np.random.default_rng(seed)
    pclass, sex = rng.integers(1, 4, n), rng.integers(2, size=n)
    return pd.DataFrame(
        {
            "survived": (rng.random(n) < 0.3 + 0.4 * sex).astype(int),
            "pclass": pclass,
            "class": pd.Series(pclass).map(CLASSES),
            "sex": np.array(["male", "female"])[sex],
            "age": np.where(rng.random(n) < 0.2, np.nan, rng.integers(1, 80, n)),
            "fare": np.where(np.arange(n) < 3, 512.3292, rng.lognormal(3, 0.5, n)),
        }
    )


def titanic(task: Task, args) -> Values:
    """Whether samples keep Titanic's rules, shares and holes, and whether its dearest tickets stand out."""
    rows = toy_titanic(300, 0) if args.quick else load_table("titanic", args.data)
    model = CTEM(random_state=task.seed, device=args.device, **(TINY if args.quick else {})).fit(rows)
    drawn = model.sample(20_000, random_state=task.seed)
    holed = model.sample(len(rows), random_state=task.seed, with_missing=True)
    survived = [each.groupby(["sex", "pclass"])["survived"].mean() for each in (drawn, rows)]
    order = strangest_first(model.outlier_scores(rows), model.p_values(rows))  # that of model.outliers
    rank = order.argsort()[(rows["fare"] > 500).to_numpy()] + 1
    marks = {name: -1.0 if pd.api.types.is_numeric_dtype(rows[name]) else "gone" for name in rows}
    judged = (each.fillna(marks) for each in (rows, holed))  # trees see a gap as a value of its own
    return {
        "AUC of boosted trees, samples with holes": 1 - boosted(*judged, task.seed) / 2,
        "rows that break class = pclass": float((drawn["class"] != drawn["pclass"].map(CLASSES)).mean()),
        "P(survived | sex, class), largest error": float((survived[0] - survived[1]).abs().max()),
        "last of the three fares of 512 among outliers": float(rank.max()),
    }


def main() -> None:
    parser = sweep_arguments(__doc__, SETS, SYSTEMS, SEEDS)
    parser.add_argument("--threads", type=int, default=2, help="of XGBoost's and LightGBM's trees")
    parser.add_argument("--titanic", action="store_true", help="Titanic alone")
    args = parser.parse_args()
    if args.titanic:
        todo = [Task("titanic", seed, "CTEM") for seed in range(1 if args.quick else args.seeds)]
        sweep(titanic, todo, args, args.name or "titanic", {"model": "CTEM()", "samples": "20 000"})
        return
    settings = {"model": "CTEM()", "samples": "as many as training rows", "split seed": SPLIT_SEED}
    sweep(measure, tasks(args), args, args.name or "samples", settings, protocol="samples")


if __name__ == "__main__":
    main()
