"""A column of more labels than there are codes: the rare ones share a code, and no answer shows it."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare
from small import EXACT

from ctem import CTEM, inspect

N, LABELS, DRAWS = 3000, 600, 20_000


def towns(seed=0):
    """Few towns have most of the rows, many have one or two."""
    rng = np.random.default_rng(seed)
    p = 1 / np.arange(1, LABELS + 1)
    town = rng.choice(LABELS, N, p=p / p.sum())
    names = np.array([f"town {i:03d}" for i in range(LABELS)])
    return pd.DataFrame(
        {"town": names[town], "far": np.where(rng.random(N) < 0.2 + 0.5 * (town > 9), "y", "n")}
    )


@pytest.fixture(scope="module")
def fitted():
    X = towns()
    return X, CTEM(**EXACT).fit(X)


def rare_of(model):
    codec = model.schema_.columns["town"].codec
    return [label for label, share in zip(codec.values, codec.shares, strict=True) if share < 1]


def test_the_rows_of_all_labels_and_the_reserves_have_probability_one(fitted):
    X, model = fitted
    towns, sides = sorted(set(X["town"])), ["n", "y"]
    every = pd.DataFrame([(town, side) for town in towns for side in sides], columns=["town", "far"])
    kept = {name: column.codec.reserve for name, column in model.schema_.columns.items()}
    assert len(rare_of(model)) > 100
    both = np.exp(model.score_samples(every)).sum()
    assert both == pytest.approx((1 - kept["town"]) * (1 - kept["far"]), abs=1e-5)
    alone = np.exp(model.log_density(pd.DataFrame({"town": towns}), columns=["town"])).sum()
    assert alone + kept["town"] == pytest.approx(1, abs=1e-5)


def expected_shares(X, model):
    """Shares of the rare labels among rows, that of the shared code by the model and those within it by the data."""
    rare = rare_of(model)
    counts = X["town"].value_counts()[rare].to_numpy()
    return rare, counts / counts.sum()


def follow(drawn, rare, shares):
    """Whether rare labels come with these shares, by a χ² test over groups that are large enough."""
    counts = drawn.value_counts().reindex(rare, fill_value=0).to_numpy()
    order = np.argsort(-shares, kind="stable")
    groups = np.array_split(order, 20)
    found = np.array([counts[group].sum() for group in groups])
    wanted = np.array([shares[group].sum() for group in groups]) * found.sum()
    return chisquare(found, wanted).pvalue


def test_samples_bring_rare_labels_back_as_often_as_they_were(fitted):
    X, model = fitted
    rare, shares = expected_shares(X, model)
    drawn = model.sample(DRAWS, random_state=0)["town"]
    mass = np.exp(model.log_density(pd.DataFrame({"town": rare}), columns=["town"])).sum()
    mass /= 1 - model.schema_.columns["town"].codec.reserve
    assert abs(drawn.isin(rare).mean() - mass) < 4 * np.sqrt(mass * (1 - mass) / DRAWS)
    assert follow(drawn[drawn.isin(rare)], rare, shares) > 1e-3


def test_imputing_brings_rare_labels_back_as_often_as_they_were(fitted):
    X, model = fitted
    rare, shares = expected_shares(X, model)
    holes = pd.concat([X] * 5, ignore_index=True).assign(town=None)
    filled = model.impute(holes, random_state=0)["town"]
    p = model.predict_proba(X, "town")[:, [model.classes("town").index(label) for label in rare]].sum(1)
    assert abs(filled.isin(rare).mean() - p.mean()) < 4 * np.sqrt((p * (1 - p)).mean() / len(holes))
    assert follow(filled[filled.isin(rare)], rare, shares) > 1e-3


def test_the_most_likely_label_is_a_label_and_not_a_code(fitted):
    """The rare labels have more probability together than any other, each of them has little."""
    X, model = fitted
    best = model.impute(X[:50].assign(town=None), method="mode")["town"]
    proba = model.predict_proba(X[:50], "town")
    assert best.tolist() == [model.classes("town")[k] for k in proba.argmax(1)]
    assert not best.isin(rare_of(model)).any()


def test_an_outlier_score_tells_rare_labels_apart(fitted):
    X, model = fitted
    rare = rare_of(model)
    assert X["town"].isin(rare).any()
    once = X["town"].value_counts().idxmin()
    often = X["town"].value_counts().idxmax()
    rows = X[:200]
    assert (
        model.outlier_scores(rows.assign(town=once)) > model.outlier_scores(rows.assign(town=often))
    ).all()


def test_a_row_with_a_gap_scores_what_its_rare_labels_would_add_on_average(fitted):
    _, model = fitted
    hole = pd.DataFrame({"town": [None], "far": ["y"]})
    every = pd.DataFrame({"town": model.classes("town"), "far": "y"})
    p = model.predict_proba(every[:1].assign(town=None), "town")[0]
    whole = model.outlier_scores(every, by_column=True)[:, 0]
    assert model.outlier_scores(hole, by_column=True)[0, 0] == pytest.approx(p @ whole, abs=0.15)


def test_inspect_and_the_fit_say_that_rare_labels_are_drawn_by_their_shares(fitted):
    X, model = fitted
    rare = rare_of(model)
    mass = X["town"].isin(rare).mean()
    words = f"the {len(rare)} rarest, {mass:.1%} of the rows, are learned together, each by its share of them"
    assert words in inspect(X).columns[0].reason
    assert words in model.schema_.describe()[0].reason
