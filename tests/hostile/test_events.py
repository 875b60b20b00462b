"""Probabilities of random tables with sums, copies, look-ups, orders and gaps: an event and its opposite, beside draws.

What the parts of a table have to do with each other is what weights of draws are most easily wrong about: an event
names a column that others follow from, or that follows from them.
"""

import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from ctem import CTEM

TABLES, FEW = 60, 3
DRAWN = 10_000
MODEL = {
    "width": 16,
    "blocks": 1,
    "members": 2,
    "orders": 2,
    "batch_size": 64,
    "max_steps": 40,
    "random_state": 0,
}
MOST, SURE = 4.5, 3.0  # standard errors that no answer is off, and that hardly any is
NUMBERS = {
    "hundredths": lambda rng, n: rng.normal(5, 2, n).round(2),
    "whole": lambda rng, n: rng.poisson(20, n).astype(float),
    "skewed": lambda rng, n: rng.gamma(2, 10, n).round(1),
    "continuous": lambda rng, n: rng.normal(100, 3, n),
    "often zero": lambda rng, n: np.where(rng.random(n) < 0.4, 0.0, rng.gamma(2, 3, n)).round(1),
}
FOLLOWS = {
    "sum": lambda rng, a, b: (a + b).round(6),
    "difference": lambda rng, a, b: (a - b).round(6),
    "copy": lambda rng, a, b: np.where(rng.random(len(a)) < 0.8, a, rng.permutation(a)),
    "order": lambda rng, a, b: (a + rng.gamma(1, 3, len(a)).round(1)).round(6),
    "multiple": lambda rng, a, b: (2.5 * a).round(6),
    "look-up": lambda rng, a, b: np.array(["low", "middle", "high"])[
        np.searchsorted(np.quantile(a, [0.3, 0.7]), a)
    ],
}


def made(rng):
    """A table of two columns, one that follows from them, a label that goes with one, and gaps."""
    n, names = int(rng.integers(120, 400)), sorted(NUMBERS)
    a, b = (NUMBERS[names[rng.integers(len(names))]](rng, n) for _ in range(2))
    how = sorted(FOLLOWS)[rng.integers(len(FOLLOWS))]
    side = np.where(rng.random(n) < 1 / (1 + np.exp(-(a - a.mean()) / a.std())), "x", "y")
    X = pd.DataFrame({"a": a, "b": b, "c": FOLLOWS[how](rng, a, b), "side": side})
    X = X[rng.permutation(X.columns)]
    return how, X.mask(rng.random(X.shape) < rng.choice([0.0, 0.1, 0.3]))


def opposites(rng, X):
    """A column, an event of it and the opposite one."""
    name = X.columns[rng.integers(X.shape[1])]
    values = X[name].dropna()
    if not pd.api.types.is_numeric_dtype(values):
        one = values.iloc[0]
        return {name: [one]}, {name: sorted(set(values) - {one})}
    known = np.unique(values)
    k = int(np.searchsorted(known, values.quantile(rng.uniform(0.2, 0.8)), "right"))
    k = min(max(k, 1), len(known) - 1)
    cut = known[k - 1] + 0.001  # between two cells, of which the finest is a hundredth wide
    return {name: (None, float(cut))}, {name: (float(cut), None)}


def counted(event, drawn):
    """In which drawn rows an event is met."""
    met = np.ones(len(drawn), bool)
    for name, wanted in event.items():
        if isinstance(wanted, list):
            met &= drawn[name].isin(wanted).to_numpy()
        else:
            low, high = (
                (-np.inf if wanted[0] is None else wanted[0]),
                (np.inf if wanted[1] is None else wanted[1]),
            )
            met &= ((drawn[name] >= low) & (drawn[name] <= high)).to_numpy()
    return met


def off(answer, truth, error):
    """Standard errors between two numbers."""
    return abs(answer - truth) / max(error, 1e-6)


@pytest.mark.parametrize("count", [FEW, pytest.param(TABLES, marks=pytest.mark.long)])
def test_an_event_and_its_opposite_add_up_to_one_and_agree_with_what_draws_count(count, tally):
    rng, found, endings = np.random.default_rng(0), [], Counter()
    for _ in range(count):
        how, X = made(rng)
        event, opposite = opposites(rng, X)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "fitted on", UserWarning)
            model = CTEM(**MODEL).fit(X)
        yes, no = model.probability(event), model.probability(opposite)
        share = counted(event, model.sample(DRAWN, random_state=1)).mean()
        error = np.sqrt(max(share * (1 - share), 1 / DRAWN) / DRAWN)
        sizes = (  # by the error of draws: that the networks disagree is no excuse
            off(yes.value + no.value, 1.0, np.hypot(yes.of_draws, no.of_draws)),
            off(yes.value, share, np.hypot(yes.of_draws, error)),
        )
        found += [(size, how, event, yes, no, share) for size in sizes]
        endings["right" if max(sizes) < SURE else "beyond three standard errors"] += 1
    tally("tables with relations and gaps", endings)
    assert max(each[0] for each in found) < MOST, max(found, key=lambda each: each[0])
    assert sum(each[0] > SURE for each in found) <= 1 + 0.01 * len(found)
