"""The classifier two-sample test on tables, in two forms, and what the table experiments share.

C2ST = 1 − mean over folds of (2 max(AUC, ½) − 1): 1 is indistinguishable, 0 is told apart at sight. Both forms take as
many rows of either side as the smaller one has.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pandas as pd
from sklearn.model_selection import StratifiedKFold, cross_val_score

from ctem.metrics import classifier_two_sample

__all__ = [
    "TINY",
    "Found",
    "balanced",
    "boosted",
    "need",
    "note",
    "shuffled",
    "toy_table",
    "xgboost_detection",
]


TINY = {"max_steps": 40, "width": 16, "blocks": 1, "members": 2, "orders": 2, "batch_size": 64}  # of CTEM
Found = dict[tuple[str, str], list[float]]  # (system, metric) → one value a seed


def note(found: Found, system: str, values: dict[str, float], save: Callable[[Found], object]) -> None:
    """Add one value to each list, print and save."""
    for metric, value in values.items():
        found.setdefault((system, metric), []).append(value)
        print(f"{system}: {metric} {value:.4f}", flush=True)
    save(found)


def need(package: str) -> ModuleType:
    """A package of the extra ``baselines``, or what to do about its absence."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise SystemExit(f"{package} is not here ({error}): pip install 'ctem[baselines]'.") from None


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
    rows = both.to_numpy(np.float64)
    return classifier_two_sample(rows[: len(real)], rows[len(real) :], seed, discrete)


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


def toy_table(n: int, seed: int) -> pd.DataFrame:
    """Rows of all the kinds that the real tables have: labels, grades, counts, zero-inflated and rounded numbers."""
    rng = np.random.default_rng(seed)
    side = rng.integers(3, size=n)
    size = np.exp(0.5 * rng.normal(size=n) + 0.5 * side)
    return pd.DataFrame(
        {
            "city": np.array(["Bergen", "Oslo", "?"])[side],
            "grade": np.clip(side + rng.integers(-1, 2, size=n), 0, 3),
            "years": (10 * size + rng.integers(20, size=n)).astype(np.int64),
            "gain": np.where(rng.random(n) < 0.8, 0, (500 * size).astype(np.int64)),
            "weight": np.round(size + 0.1 * rng.normal(size=n), 2),
        }
    )
