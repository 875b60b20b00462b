"""Imputers to compare with: MissForest, by scikit-learn's forests, and those of other packages.

The latter are imported when they are asked for:

    pip install miceforest hyperimpute        into an environment of its own: HyperImpute brings tensorflow and catboost

miceforest fills columns in turn by gradient boosting (LightGBM), five rounds; it is asked for its predictions rather
than for draws, since errors are measured. HyperImpute (Jarrett et al. 2022) chooses a learner for every column. It sees
labels as codes, and takes columns of few values for labels: here, of at most as many as a column of labels has. With
pandas 3, which warns of its assignments, its numbers were no better than means (500 rows of california), so it is
refused there; scikit-learn 1.9 has not the argument multi_class that it passes. No run with labels has finished yet.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from importlib import import_module

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

ROUNDS, TREES = 5, 100  # of MissForest; so many rounds of miceforest


def forest(gappy: pd.DataFrame, seed: int, jobs: int) -> pd.DataFrame:
    """MissForest: columns in turn, those with the fewest gaps first, until a round changes more than the one before."""
    numbers, made = [name for name in gappy if pd.api.types.is_numeric_dtype(gappy[name])], gappy.copy()
    values = {name: gappy[name].astype("category").cat.categories for name in gappy if name not in numbers}
    for name in gappy:
        known = gappy[name].dropna()
        made[name] = gappy[name].fillna(known.mean() if name in numbers else known.mode()[0])
        if name in values:
            made[name] = values[name].get_indexer(made[name])
    before, change = made, np.inf
    for _ in range(ROUNDS):
        made = _grown(made, gappy.isna(), numbers, seed, jobs)
        moved = float(((made - before) / made.std().replace(0, 1)).pow(2).to_numpy().sum())
        if moved > change:
            made = before
            break
        before, change = made, moved
    return made.assign(
        **{name: labels.to_numpy()[made[name].to_numpy(int)] for name, labels in values.items()}
    )


def _grown(made: pd.DataFrame, gaps: pd.DataFrame, numbers: list[str], seed: int, jobs: int) -> pd.DataFrame:
    """One round of MissForest."""
    made = made.copy()
    settings = {"n_estimators": TREES, "max_features": "sqrt", "random_state": seed, "n_jobs": jobs}
    for name in gaps.sum().sort_values(kind="stable").index:
        gone, others = gaps[name], made.drop(columns=name)
        if gone.any():
            trees = (RandomForestRegressor if name in numbers else RandomForestClassifier)(**settings)
            made.loc[gone, name] = trees.fit(others[~gone], made.loc[~gone, name]).predict(others[gone])
    return made


def boosted(gappy: pd.DataFrame, seed: int, jobs: int = 1) -> pd.DataFrame:
    """Filled in by miceforest."""
    package = needed("miceforest")
    plain, values = codes(gappy)
    plain = plain.astype({name: "category" for name in values})
    kernel = package.ImputationKernel(
        plain, num_datasets=1, mean_match_candidates=0, save_all_iterations_data=False, random_state=seed
    )
    kernel.mice(ROUNDS, verbose=False, num_threads=jobs)
    return labelled(kernel.complete_data(0), gappy, values)


def chosen(gappy: pd.DataFrame, seed: int, jobs: int = 1) -> pd.DataFrame:
    """Filled in by HyperImpute, which takes as many cores as it likes."""
    if int(pd.__version__.partition(".")[0]) > 2:
        raise ImportError(f"hyperimpute: this system needs pandas below 3; got {pd.__version__}.")
    package = needed("hyperimpute.plugins.imputers")
    plain, values = codes(gappy)
    most = max(map(len, values.values()), default=0)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it imports, and of chained assignment
        imputer = package.Imputers().get("hyperimpute", random_state=seed, class_threshold=max(5, most + 2))
        filled = imputer.fit_transform(plain)
    return labelled(pd.DataFrame(np.asarray(filled, float)), gappy, values)


OPTIONAL: dict[str, Callable[..., pd.DataFrame]] = {"miceforest": boosted, "HyperImpute": chosen}


def needed(module: str):
    """A package, or an error that says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"{package}: this system needs the package {package}, which cannot be imported ({error}); "
            f"pip install {package}, in an environment of its own."
        ) from None


def codes(gappy: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """The table with columns 0, 1, … of numbers, labels as codes, gaps as nan; and the labels of each such column."""
    plain, values = gappy.copy(), {}
    for place, name in enumerate(gappy):
        if not pd.api.types.is_numeric_dtype(gappy[name]):
            labels = gappy[name].astype("category").cat
            values[f"c{place}"] = np.array(labels.categories, object)
            plain[name] = labels.codes.where(gappy[name].notna()).astype(float)
    return plain.set_axis([f"c{place}" for place in range(len(plain.columns))], axis=1), values


def labelled(filled: pd.DataFrame, gappy: pd.DataFrame, values: dict[str, np.ndarray]) -> pd.DataFrame:
    """What ``codes`` made, filled in, as the table was; a code between two labels is the nearer one."""
    made = {}
    for place, name in enumerate(gappy):
        column, labels = filled.iloc[:, place], values.get(f"c{place}")
        number = column.astype(float).to_numpy()
        made[name] = (
            number if labels is None else labels[np.clip(np.rint(number), 0, len(labels) - 1).astype(int)]
        )
    return pd.DataFrame(made, index=gappy.index)
