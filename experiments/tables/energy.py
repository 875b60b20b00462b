"""What the energy is worth: the ten tables by effort, with it and by the networks alone, and single columns predicted.

    python -m experiments.tables.energy --device cuda --data FOLDER [--sets …] [--systems …] [--jobs N]

One fit for each table, seed and system: the default and quick efforts, whose energies are trees; and the default with
an energy of networks, learned by the paper's loss, or of both. ", networks" marks the density b that the energy tilts,
of the same fit. Splits,
nats and C2ST are those of ``nats.py``. AUC is that of the last column (of shoppers, Revenue) given all others, on test
rows, beside boosted trees (scikit-learn's, early stopping) on the same training rows. --quick takes a made-up table.
"""

from __future__ import annotations

import time

import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from ctem import CTEM
from ctem.densities.tilted import TiltedDensity
from experiments.sweep import TINY, Task, Values, sweep, sweep_arguments, tasks
from experiments.tables.nats import SETS, boosted, load, our_nats, split

SEEDS = 3
SYSTEMS = {
    "default": {},
    "quick": {"effort": "quick"},
    "networks": {"energy": "networks"},
    "both": {"energy": "both"},
}
PREDICTED = {"adult": "income", "shoppers": "Revenue", "default": None, "magic": None, "bank": None}
JUDGED = 4000  # test rows of an AUC


def measure(task: Task, args) -> Values:
    """With the energy and without."""
    train, test = split(load(task.data, args), task.seed)
    began = time.perf_counter()
    how = TINY if args.quick else SYSTEMS[task.system]
    model = CTEM(random_state=task.seed, device=args.device, **how).fit(train)
    seconds = time.perf_counter() - began
    values = {"fit, seconds": seconds, **judged(model, train, test, task)}
    if not isinstance(model.density_, TiltedDensity):
        return values | {
            f"{name}, networks": value for name, value in values.items() if name != "fit, seconds"
        }
    energy = model.density_.energy
    values |= {
        "gain by held-out rows": energy.gain,
        "standard error of log Z": energy.log_z.stderr,
        "share of draws accepted": energy.acceptance,
        "trees": float(energy.trees),
    }
    model._adopt(model.density_.plain)
    return values | {f"{name}, networks": value for name, value in judged(model, train, test, task).items()}


def judged(model: CTEM, train: pd.DataFrame, test: pd.DataFrame, task: Task) -> Values:
    """Nats and C2ST of test rows, and the AUC of a column."""
    began = time.perf_counter()
    fake = model.sample(len(test), random_state=task.seed)
    drawn = time.perf_counter() - began
    values = {
        "test nats": our_nats(model.schema_, model.score_samples, test, task.seed),
        "C2ST": boosted(test, fake, task.seed),
        "sampling, rows per second": len(test) / drawn,
    }
    if task.data in PREDICTED:
        values["AUC"] = auc(model, test[:JUDGED], _predicted(task.data, test))
    return values


def auc(model: CTEM, rows: pd.DataFrame, column: str) -> float:
    """Of the last class of a column given all others."""
    last = model.classes(column)[-1]
    return float(roc_auc_score(rows[column] == last, model.predict_proba(rows, column)[:, -1]))


def trees_auc(task: Task, args) -> Values:
    """Boosted trees that predict the same column, on the same rows."""
    train, test = split(load(task.data, args), task.seed)
    column = _predicted(task.data, test)
    both = pd.concat([train, test[:JUDGED]]).drop(columns=column)
    labels = [name for name in both if not pd.api.types.is_numeric_dtype(both[name])]
    both = both.astype({name: "category" for name in labels})
    last = sorted(train[column].unique())[-1]
    trees = HistGradientBoostingClassifier(
        categorical_features="from_dtype", early_stopping=True, random_state=task.seed
    )
    trees.fit(both[: len(train)], train[column] == last)
    return {
        "AUC": float(
            roc_auc_score(test[:JUDGED][column] == last, trees.predict_proba(both[len(train) :])[:, 1])
        )
    }


def _predicted(data: str, frame: pd.DataFrame) -> str:
    named = PREDICTED[data]
    return named if named in frame else str(frame.columns[-1])


def either(task: Task, args) -> Values:
    return trees_auc(task, args) if task.system == "boosted trees" else measure(task, args)


def main() -> None:
    parser = sweep_arguments(str(__doc__).partition("\n")[0], SETS, (*SYSTEMS, "boosted trees"), SEEDS)
    args = parser.parse_args()
    todo = [t for t in tasks(args, args.systems[:1] if args.quick else None) if _asked(t)]
    sweep(either, todo, args, args.name or "energy", {"predicted": PREDICTED, "judged": JUDGED})


def _asked(task: Task) -> bool:
    return task.system != "boosted trees" or task.data in PREDICTED


if __name__ == "__main__":
    main()
