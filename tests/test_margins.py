"""Margins under gaps: samples, `log_density` and the data agree, wherever cells are missing."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from small import SMALL

from ctem import CTEM
from ctem.densities.anyorder.objective import HiddenColumns

VALUES = {"a": "uv", "b": "pq", "c": "klm"}
DRAWS = 8000
LONGER = {**SMALL, "max_steps": 200, "width": 32}
TOLERANCE = (
    0.06  # of a probability, beyond sampling error, since a short fit answers differently asked differently
)


def holed(how, n=1500, seed=0):
    """Three labels that depend on each other, the last with gaps at random, by its value, or by another column."""
    rng = np.random.default_rng(seed)
    b = rng.random(n) < 0.5
    a = rng.random(n) < np.where(b, 0.8, 0.3)
    c = (a.astype(int) + b + rng.integers(0, 2, n)) % 3
    odds = {"at random": 0.4, "by value": np.where(c == 0, 0.7, 0.1), "by another": np.where(b, 0.85, 0.05)}
    label = np.array(["k", "l", "m"], object)[c]
    label[rng.random(n) < odds[how]] = None
    return pd.DataFrame({"a": np.where(a, "u", "v"), "b": np.where(b, "p", "q"), "c": label})


@pytest.fixture(
    scope="module", params=["at random", pytest.param("by value", marks=pytest.mark.long), "by another"]
)
def fitted(request):
    X = holed(request.param)
    energy = "trees" if request.param == "at random" else None
    model = CTEM(**LONGER, energy=energy).fit(X)
    return request.param, X, model, model.sample(DRAWS, random_state=0)


def margin(table, every, names):
    """The share of a table's rows that hold each of some combinations of values."""
    held = [(table[names] == row[names].to_numpy()).all(axis=1) for _, row in every.iterrows()]
    return np.array([each.mean() for each in held])


def combinations(names):
    every = itertools.product(*(VALUES[name] for name in names))
    return pd.DataFrame(list(every), columns=names).reindex(columns=list("abc"))


SETS = [list(names) for k in (1, 2) for names in itertools.combinations("abc", k)]


def stderr(p, n):
    return np.sqrt(p * (1 - p) / n).max()


@pytest.mark.parametrize("names", SETS, ids="".join)
def test_margins_of_samples_are_those_of_the_density(fitted, names):
    how, _, model, drawn = fitted
    if how == "by another" and "c" in names and "b" not in names:
        pytest.skip(
            "asked without the column that hides it, a column with gaps is as in the rows that have it"
        )
    every = combinations(names)
    told = np.exp(model.log_density(every, columns=names))
    found = margin(drawn, every, names)
    assert np.abs(told - found).max() < 3 * stderr(told, DRAWS) + TOLERANCE


@pytest.mark.parametrize("names", [["a"], ["b"], ["a", "b"]], ids="".join)
def test_margins_of_complete_columns_are_those_of_the_data(fitted, names):
    _, X, _, drawn = fitted
    every = combinations(names)
    held, found = margin(X, every, names), margin(drawn, every, names)
    assert np.abs(held - found).max() < 3 * stderr(held, len(X)) + 3 * stderr(found, DRAWS)


def test_rows_with_a_gap_are_asked_for_complete_columns_as_often_as_others():
    """However often a question is drawn in which their missing cell would be shown."""
    x = torch.zeros(1, 30_000, 3)
    x[:, ::2, 2] = torch.nan
    late = torch.tensor([0.0, 0.0, 0.5])
    asked = HiddenColumns(late=late).questions(x, torch.Generator().manual_seed(0))
    seen = asked.shown & ~x.isnan()
    for column in (0, 1):
        nothing = ~seen[0].any(-1)
        weight = torch.where(nothing, asked.weight[0, :, column], 0.0)
        gap, whole = float(weight[::2].mean()), float(weight[1::2].mean())
        assert gap == pytest.approx(whole, rel=0.05)
    plain = HiddenColumns().questions(x, torch.Generator().manual_seed(0))
    nothing = ~(plain.shown & ~x.isnan())[0].any(-1)
    weight = torch.where(nothing, plain.weight[0, :, 0], 0.0)
    assert float(weight[::2].mean()) > 1.3 * float(weight[1::2].mean())  # the fault that this prevents
