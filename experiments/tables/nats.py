"""Ten mixed tables: held-out nats and C2ST beside independent columns, a Gaussian copula, a Chow–Liu tree, a mixture of
Gaussians, a Gaussian of each class, zuko's spline flow on dequantised data, and adversarial random forests (C2ST only).

    python -m experiments.tables.nats --device cuda --data FOLDER --out OUT --systems CTEM    ours, where there is a GPU
    python -m experiments.tables.nats --data FOLDER                                           everything, on the CPU

Measure: log P of a row as it is written, numbers to the resolution of their column (see peers.py): our log-density,
averaged over the cell of every dequantised number, plus Σ log w. All systems share splits, resolution and margins'
cells. A fifth of the rows is the test set, drawn anew for every seed; rows with missing cells are left out (california
207, beijing 2067), since the peers cannot take them; a test row with a value of a discrete column that no training row
has moves to the training rows.

C2ST: gradient boosting, samples against test rows: 1 − mean over folds of (2 max(AUC, ½) − 1), so that 1 is
indistinguishable and 0 is told apart at sight; "training rows" is what real rows score. One file per group of systems,
tables-….json; nothing is tuned. --quick takes a made-up table.

    python -m experiments.tables.nats --data FOLDER --sets ames flchain loans pbc storms weather --rows 4500
    python -m experiments.tables.nats --data FOLDER --sets german bank --rows 100
    python -m experiments.tables.nats --sets penguins --seeds 10 --systems CTEM "Gaussian of each class"

--sets may name the six of FOLDER/wild: their complete rows, without free text, columns that name rows or repeat others,
and columns of which most cells are missing. --rows trains on at most so many of the training rows.

    python -m experiments.tables.nats --margins --device cuda --data FOLDER --out OUT    into margins.json

The ten and the six of FOLDER/wild as they are in the file, gaps and all, and as many samples with holes
(``with_missing=True``), at most 20 000. Every column's share of gaps, and what its other cells hold: labels by the
total variation, numbers and dates by the largest gap of distribution functions. A column is within tolerance if both
differ by at most 0.03 more than two samples of one law would in 99 of 100 cases. --effort and --max-time are CTEM's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import StratifiedKFold, cross_val_score
from torch import Tensor

from ctem import CTEM
from ctem.benchmarks.metrics import classifier_two_sample
from ctem.datasets import load_penguins, load_table
from ctem.tables.encoding.codecs import Labels, Numbers
from ctem.tables.io.frame import read_frame
from ctem.tables.schema import Schema
from experiments.sweep import (
    TINY,
    UNSAID,
    Task,
    Values,
    group_name,
    need,
    sweep,
    sweep_arguments,
    tasks,
    toy_table,
    wild,
)
from experiments.tables.forests import as_arfpy_wants
from experiments.tables.peers import (
    ByClass,
    Copula,
    Flow,
    Independent,
    Mixture,
    Tree,
    bound,
    flow_loss,
    resolution,
)

SETS = (
    *("abalone", "german", "california", "bank", "diamonds"),
    *("default", "shoppers", "magic", "beijing", "adult"),
)
PENGUINS = "penguins"
WILD = ("ames", "flchain", "loans", "pbc", "storms", "weather")
NAMING = {
    "loans": ["emp_title"],
    "pbc": ["id"],
    "weather": ["time_hour"],
}  # or free text, or other columns again
MOSTLY = 0.5  # gaps of a column, at most
SEEDS = 3
TEST_SHARE = 0.2
DRAWS = 8  # of the place within a cell, in the mean that stands for P(cell)
DISCRETE = 256  # a column of labels or whole numbers with at most so many values may be taken as discrete
FLOW_STEPS = 3000  # at most
NEAR = 0.01  # nats below the best of a curve that count as having reached it
PEERS = {
    "independent columns": Independent,
    "Gaussian copula": Copula,
    "Chow–Liu tree": Tree,
    "Gaussian mixture": Mixture,
    "Gaussian of each class": ByClass,
}
MARGINS = 20_000  # samples, at most
TOLERANCE, RARELY = 0.03, 0.01  # of a margin beyond chance, and how often chance alone is larger
SYSTEMS = ("CTEM", *PEERS, "spline flow", "arfpy", "training rows")

Curve = list[tuple[float, float]]  # (seconds, nats)


def load(data: str, args) -> pd.DataFrame:
    """The complete rows of a table, every number on a lattice."""
    if args.quick:
        return toy_table(400, 0)
    if data == PENGUINS:
        return load_penguins().dropna()
    if data in WILD:
        frame = complete(
            wild(data, args.data, NAMING.get(data, ())).replace("None", UNSAID)
        )  # no gap in ames
        return frame.assign(age=frame["age"].round(1)) if data == "pbc" else frame  # from whole days
    frame = load_table(data, args.data)
    frame = frame.fillna(UNSAID) if data == "adult" else frame.dropna()  # adult's gaps are a label
    # an amount with up to 15 digits, in cents here: a number that may be any has no probability as written
    return frame.assign(PageValues=frame["PageValues"].round(2)) if data == "shoppers" else frame


def complete(frame: pd.DataFrame) -> pd.DataFrame:
    """The complete rows, in the columns of which most cells are there."""
    return frame.loc[:, frame.isna().mean() < MOSTLY].dropna()


def split(frame: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and test rows; every value of a discrete column occurs in training."""
    frame = frame.sample(frac=1, random_state=seed).reset_index(drop=True)
    n = round(TEST_SHARE * len(frame))
    strange = np.zeros(n, bool)
    for name in frame:
        if _listed(frame[name]):
            strange |= ~frame[name][:n].isin(frame[name][n:].unique()).to_numpy()
    return pd.concat([frame[n:], frame[:n][strange]]), frame[:n][~strange]


def few(train: pd.DataFrame, test: pd.DataFrame, rows: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """So many training rows, and the test rows whose values occur there in each column that the schema lists."""
    train = train[:rows]
    columns = Schema.fit(read_frame(train)).columns
    listed = [name for name, choice in columns.items() if isinstance(choice.codec, Labels)]
    known = [test[name].isin(train[name].unique()).to_numpy() for name in listed]
    return train, test[np.logical_and.reduce([np.ones(len(test), bool), *known])]


def _listed(column: pd.Series) -> bool:
    numeric = pd.api.types.is_numeric_dtype(column)  # beijing has two temperatures with thirds of a degree
    return column.nunique() <= DISCRETE and (not numeric or bool((column == column.round()).mean() > 0.999))


def balanced(real: pd.DataFrame, fake: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """As many rows of either, drawn without replacement."""
    n = min(len(real), len(fake))
    return real.sample(n, random_state=seed), fake.sample(n, random_state=seed + 1)


def boosted(real: pd.DataFrame, fake: pd.DataFrame, seed: int) -> float:
    """C2ST by scikit-learn's histogram gradient boosting, five folds, text and categories as unordered codes."""
    real, fake = balanced(real, fake, seed)
    both = pd.concat([real, fake], ignore_index=True)
    discrete = [j for j, name in enumerate(both) if not pd.api.types.is_numeric_dtype(both[name])]
    for j in discrete:
        name = both.columns[j]
        both[name] = pd.factorize(both[name].astype(str), sort=True)[0]
    rows = _without_last_bits(both.to_numpy(np.float64))
    return classifier_two_sample(rows[: len(real)], rows[len(real) :], seed, discrete)


def _without_last_bits(rows: np.ndarray) -> np.ndarray:
    """Numbers to ten figures: 6 · 1.15078 is not 6.90468 to the last bit, which says nothing of a sample."""
    size = 10.0 ** (9 - np.floor(np.log10(np.abs(np.where(rows == 0, 1.0, rows)))))
    return np.rint(rows * size) / size


def xgboost_detection(real: pd.DataFrame, fake: pd.DataFrame, seed: int) -> float:
    """C2ST as TabPC's authors measure it: SDMetrics' detection with XGBoost's defaults, three folds, one-hot labels."""
    xgboost = need("xgboost")
    real, fake = balanced(real, fake, seed)
    both = pd.concat([real, fake], ignore_index=True)
    labels = [name for name in both if not pd.api.types.is_numeric_dtype(both[name])]
    rows = pd.get_dummies(both.astype({name: str for name in labels}), columns=labels, dtype=np.float32)
    y = np.repeat([1, 0], [len(real), len(fake)])
    trees = xgboost.XGBClassifier(eval_metric="logloss", random_state=seed)
    cut = StratifiedKFold(3, shuffle=True, random_state=seed)
    auc = cross_val_score(trees, rows.to_numpy(np.float32), y, cv=cut, scoring="roc_auc", error_score="raise")
    return float(1 - (2 * np.maximum(auc, 0.5) - 1).mean())


def shuffled(frame: pd.DataFrame, n: int, seed: int) -> pd.DataFrame:
    """n rows of independent columns: every column redrawn by itself."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame({name: frame[name].to_numpy()[rng.integers(len(frame), size=n)] for name in frame})


def jittered(frame: pd.DataFrame, schema: Schema, rng: np.random.Generator) -> pd.DataFrame:
    """Dequantised numbers moved to a uniform point of their cell; atoms stay."""
    out = frame.copy()
    for name, choice in schema.columns.items():
        if isinstance(choice.codec, Numbers):
            X = frame[name].to_numpy(np.float64)
            place = choice.codec.lattice.width * (rng.random(len(X)) - 0.5)
            out[name] = np.where(np.isin(X, choice.codec.atoms), X, X + place)
    return out


def our_nats(
    schema: Schema, log_density: Callable[[pd.DataFrame], np.ndarray], rows: pd.DataFrame, seed: int
) -> float:
    """Mean log P of rows as written, over their cells."""
    rng, unit = np.random.default_rng(seed), sum(map(math.log, resolution(schema).values()))
    draws = DRAWS if schema.dequantised else 1
    cells = bound(np.stack([log_density(jittered(rows, schema, rng)) for _ in range(draws)]))
    return float(cells.mean()) + unit


def ours(train: pd.DataFrame, test: pd.DataFrame, seed: int, args) -> Values:
    """What the default gives."""
    began = time.perf_counter()
    model = CTEM(random_state=seed, device=args.device, **(TINY if args.quick else {})).fit(train)
    fitted = time.perf_counter()
    fake = model.sample(len(test), random_state=seed)
    drawn = time.perf_counter()
    return {
        "test nats": our_nats(model.schema_, model.score_samples, test, seed),
        "C2ST": boosted(test, fake, seed),
        "fit, seconds": fitted - began,
        "sampling, rows per second": len(test) / (drawn - fitted),
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


class Watched:
    """The flow's loss, which keeps the weights and the moment whenever held-out rows are judged."""

    def __init__(self) -> None:
        self.kept: list[tuple[float, dict[str, Tensor]]] = []
        self.learning = True

    def __call__(self, flow: torch.nn.Module, cells: Tensor, generator: torch.Generator) -> Tensor:
        if self.learning and not flow.training:
            weights = {name: value.clone() for name, value in flow.state_dict().items()}
            self.kept.append((time.perf_counter(), weights))
        self.learning = flow.training
        return flow_loss(flow, cells, generator)


def flow_course(
    train: pd.DataFrame, seed: int, device: str, **how: int
) -> tuple[Flow, list[tuple[float, dict[str, Tensor]]]]:
    """A flow, and its weights at each of its looks at held-out rows, with the seconds until then."""
    watched, began = Watched(), time.perf_counter()
    flow = Flow(train, seed, device=device, loss=watched, **how)
    return flow, [(moment - began, weights) for moment, weights in watched.kept]


def reached(curve: Curve, nats: float) -> float:
    """The first second at which so many nats are reached; inf if never."""
    return min((seconds for seconds, found in curve if found >= nats - NEAR), default=math.inf)


def beside_the_flow(mine: Curve, flow: Curve) -> Values:
    """How our curve compares with the flow's; the ratio only where ours reaches the flow's best."""
    best = max(nats for _, nats in flow)
    values = {"best nats at any time, ours less the flow's": max(nats for _, nats in mine) - best}
    ratio = reached(mine, best) / reached(flow, best)
    if math.isfinite(ratio):
        values["seconds to the flow's best nats, ours / flow's own"] = ratio
    else:
        print(f"ours does not reach the flow's best, {best:.3f} nats", flush=True)
    return values


def arf_samples(train: pd.DataFrame, n: int, seed: int) -> pd.DataFrame:
    """n rows from adversarial random forests with arfpy's defaults; numbers rounded to the lattice they came from."""
    arf = need("arfpy.arf").arf
    # arfpy 0.1.1 looks columns up by position, which pandas 3 allows only if that is their name
    plain = train.reset_index(drop=True).set_axis(range(train.shape[1]), axis=1)
    labels = [j for j in plain if not pd.api.types.is_numeric_dtype(plain[j])]
    np.random.seed(seed)  # noqa: NPY002  arfpy draws from the global generator
    with as_arfpy_wants():
        forest = arf(plain.astype({j: "category" for j in labels}), random_state=seed)
        forest.forde()
        fake = forest.forge(n).set_axis(list(train), axis=1)
    return snapped(fake, resolution(Schema.fit(read_frame(train))))


def snapped(fake: pd.DataFrame, widths: Mapping[str, float]) -> pd.DataFrame:
    """Numbers at the resolution of their column, so that digits alone do not give a sample away."""
    out = fake.copy()
    for name in fake:
        if name in widths:
            decimals = max(0, math.ceil(-math.log10(widths[name]) - 1e-9))
            out[name] = (np.rint(fake[name].astype(float) / widths[name]) * widths[name]).round(decimals)
        elif pd.api.types.is_numeric_dtype(fake[name]):
            out[name] = np.rint(fake[name])
    return out


def largest_gap(real: pd.Series, fake: pd.Series) -> float:
    """sup |F − G| of two empirical distribution functions."""
    at = np.union1d(real, fake)
    below = [np.searchsorted(np.sort(part), at, side="right") / len(part) for part in (real, fake)]
    return float(np.abs(below[0] - below[1]).max())


def variation(real: pd.Series, fake: pd.Series) -> float:
    """½ Σ |p − q| of the values of two columns."""
    p, q = (part.value_counts(normalize=True) for part in (real, fake))
    return float(p.sub(q, fill_value=0).abs().sum() / 2)


def chance(shares: np.ndarray, n: int, m: int) -> float:
    """A bound that n and m draws from these shares exceed in total variation at most ``RARELY`` (McDiarmid)."""
    mean = np.sqrt(2 / math.pi * shares * (1 - shares) * (1 / n + 1 / m)).sum() / 2
    return float(mean + math.sqrt(math.log(1 / RARELY) / 2 * (1 / n + 1 / m)))


def beyond_chance(real: pd.Series, fake: pd.Series) -> float:
    """How much two columns differ more than chance explains: their gaps, or what the other cells hold."""
    n, m = len(real), len(fake)
    gone = pd.Series([real.isna().mean(), fake.isna().mean()])
    excess = [abs(gone[0] - gone[1]) - chance(np.array([gone[0], 1 - gone[0]]), n, m)]
    real, fake = real.dropna(), fake.dropna()
    if len(real) and len(fake):
        n, m = len(real), len(fake)
        if pd.api.types.is_numeric_dtype(real):
            real, fake = (
                part.map("{:.9g}".format).astype(float) for part in (real, fake)
            )  # last bits differ
            excess.append(largest_gap(real, fake) - math.sqrt(math.log(2 / RARELY) / 2 * (1 / n + 1 / m)))
        else:
            shares = pd.concat([real.astype(str), fake.astype(str)]).value_counts(normalize=True)
            found = variation(real.astype(str), fake.astype(str))
            excess.append(found - chance(shares.to_numpy(), n, m))
    return max(excess)


def margins(task: Task, args) -> Values:
    """Whether samples have the margins of a table, column by column."""
    began, frame = time.perf_counter(), as_stored(task.data, args)
    how = TINY if args.quick else {"effort": args.effort, "max_time": args.max_time}
    model = CTEM(random_state=task.seed, device=args.device, **how).fit(frame)
    fake = model.sample(min(len(frame), MARGINS), random_state=task.seed, with_missing=True)
    excess = {
        name: beyond_chance(*(_read(part[name], model.schema_) for part in (frame, fake))) for name in fake
    }
    off = {name: round(value, 3) for name, value in excess.items() if value > TOLERANCE}
    print(
        f"{task.data}: {len(fake.columns)} of {len(frame.columns)} columns; beyond tolerance: {off}",
        flush=True,
    )
    return {
        "columns": len(excess),
        "columns beyond tolerance": len(off),
        "largest difference beyond chance": max(0.0, *excess.values()),
        "seconds": time.perf_counter() - began,
    }


def _read(column: pd.Series, schema: Schema) -> pd.Series:
    """A column as it is, but text that is read as moments as seconds."""
    if pd.api.types.is_numeric_dtype(column) or not isinstance(schema.columns[column.name].codec, Numbers):
        return column
    moments = pd.to_datetime(column, utc=True)
    return (moments - pd.Timestamp(0, tz="UTC")).dt.total_seconds()


def as_stored(data: str, args) -> pd.DataFrame:
    """A table with its gaps and all of its columns."""
    if args.quick:
        return toy_table(400, 0)
    return wild(data, args.data) if data in WILD else load_table(data, args.data)


def measure(task: Task, args) -> Values:
    """One system on one split of one table."""
    train, test = split(load(task.data, args), task.seed)
    if args.rows is not None and args.rows < len(train):
        train, test = few(train, test, args.rows)
    if task.system == "CTEM":
        return ours(train, test, task.seed, args)
    return peer(task.system, train, test, task.seed, args)


def main() -> None:
    parser = sweep_arguments(__doc__, (*SETS, *WILD, PENGUINS), SYSTEMS, SEEDS)
    parser.set_defaults(sets=None)
    parser.add_argument("--margins", action="store_true", help="margins of samples, into margins.json")
    parser.add_argument("--effort", default="default", help="of CTEM, with --margins")
    parser.add_argument("--max-time", type=float, help="seconds of a fit, with --margins")
    parser.add_argument("--rows", type=int, help="of training, at most")
    args = parser.parse_args()
    args.sets = args.sets or ((*SETS, *WILD) if args.margins else SETS)
    if args.margins:
        settings = {
            "model": f"CTEM(effort={args.effort!r}, max_time={args.max_time})",
            "tolerance": TOLERANCE,
        }
        return sweep(margins, tasks(args, ["CTEM"]), args, args.name or "margins", settings)
    name = args.name or f"tables-{group_name(args)}"
    settings = {"model": "CTEM()", "test share": TEST_SHARE, "draws in a cell": DRAWS, "rows": args.rows}
    sweep(measure, tasks(args), args, name, settings)


if __name__ == "__main__":
    main()
