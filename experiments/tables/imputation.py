"""Imputation: a fifth of the cells of adult and california removed at random, and filled in again.

    python -m experiments.tables.imputation --device cuda --data FOLDER --out OUT --systems CTEM    ours
    python -m experiments.tables.imputation --peers --data FOLDER    scikit-learn's

Every system is fitted on the incomplete rows and fills them in. Accuracy: of the removed labels, the mean over the
columns of labels. NRMSE: of the removed numbers, root mean square error over the column's standard deviation, the mean
over the columns of numbers. Ours answers by ``impute(method="mean")``: conditional means of numbers, modes of labels.
The peers see numbers standardised, and labels in two ways: one-hot (the largest indicator is the label) and as
standardised codes (the nearest is). Cells that are missing in the file stay so and are not scored. --quick takes a
made-up table.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401  scikit-learn asks for it
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer

from ctem import CTEM
from ctem.datasets import load_table
from experiments.sweep import TINY, Task, Values, group_name, sweep, sweep_arguments, tasks, toy_table

SETS = ("california", "adult")
SEEDS = 3
REMOVED = 0.2
ROWS = 10_000  # drawn from the table: nearest neighbours are quadratic in them
IMPUTERS = {"means and modes": SimpleImputer, "IterativeImputer": IterativeImputer, "KNNImputer": KNNImputer}
CODINGS = ("one-hot", "codes")
PEERS = ("means and modes, one-hot", *(f"{i}, {c}" for i in list(IMPUTERS)[1:] for c in CODINGS))


def load(data: str, seed: int, args) -> pd.DataFrame:
    if args.quick:
        return toy_table(300, seed)
    frame = load_table(data, args.data)
    return frame.sample(min(ROWS, len(frame)), random_state=seed).reset_index(drop=True)


def removed(frame: pd.DataFrame, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """The table with gaps, and where they were made (n, columns)."""
    gone = np.random.default_rng(seed).random(frame.shape) < REMOVED
    out = frame.astype({name: float for name in _numbers(frame)})
    return out.mask(gone), gone & frame.notna().to_numpy()


def ours(gappy: pd.DataFrame, seed: int, args) -> pd.DataFrame:
    """Filled in by our conditional means and modes."""
    model = CTEM(random_state=seed, device=args.device, **(TINY if args.quick else {})).fit(gappy)
    return model.impute(gappy, method="mean")


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


def measure(task: Task, args) -> Values:
    """One system on one table."""
    frame = load(task.data, task.seed, args)
    gappy, gone = removed(frame, task.seed)
    began = time.perf_counter()
    mine = task.system == "CTEM"
    filled = ours(gappy, task.seed, args) if mine else peer(task.system, gappy, task.seed)
    seconds = time.perf_counter() - began
    return scores(frame, filled, gone) | {"seconds": seconds}


def main() -> None:
    parser = sweep_arguments(__doc__, SETS, ("CTEM", *PEERS), SEEDS)
    parser.add_argument(
        "--peers", action="store_true", help="all systems but ours, into imputation-peers.json"
    )
    args = parser.parse_args()
    name = args.name or f"imputation-{group_name(args)}"
    settings = {"model": "CTEM()", "removed": REMOVED, "rows": ROWS}
    sweep(measure, tasks(args, PEERS if args.peers else None), args, name, settings)


if __name__ == "__main__":
    main()
