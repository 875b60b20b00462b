"""Privacy: a model that has learned rows by heart is caught, one that has not is let be."""

import numpy as np
import pandas as pd
import pytest
import torch
from small import EXACT, SMALL

from ctem import CTEM
from ctem.densities.anyorder import fitting
from ctem.report.privacy import Privacy, _distances, _nearest, audit


def people(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5))
    frame = pd.DataFrame(x, columns=list("abcde"))
    return frame.assign(side=np.where(x[:, 0] + rng.normal(size=n) > 0, "left", "right"))


@pytest.fixture(scope="module")
def memoriser():
    """No decay, and stopping by the very rows that are learned."""
    X = people(100, 0)
    settings = {"width": 64, "blocks": 2, "members": 1, "orders": 1, "batch_size": 100, "max_steps": 300}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "STEADY", 100)
        return X, CTEM(**settings, weight_decay=0.0, learning_rate=5e-3, random_state=0).fit(X, X_val=X)


@pytest.fixture(scope="module")
def modest():
    X = people(800, 1)
    return X, CTEM(**EXACT).fit(X)


def test_a_model_that_memorises_is_caught(memoriser):
    X, model = memoriser
    found = audit(model, X, people(400, 2))
    assert found.attack > 0.9
    assert found.nearer > 0.7
    assert found.ratio < found.ratio_unseen
    assert len(found.alarms()) >= 2
    assert "ALARM" in str(found)
    assert set(each.row for each in found.exposed) <= set(range(len(X)))


def test_a_modest_model_is_let_be(modest):
    X, model = modest
    for found in (audit(model, X, people(800, 3)), audit(model, X)):
        assert found.alarms() == []
        assert abs(found.attack - 0.5) < 4 * found.attack_stderr + 0.02
        assert abs(found.nearer - 0.5) < 4 * found.nearer_stderr
        assert "no alarm" in str(found)


def test_without_held_out_rows_each_network_is_asked_about_those_that_it_has_not_seen(modest):
    X, model = modest
    found = audit(model, X)
    assert found.unseen == model.held_out_.rows
    assert found.networks == len(model.held_out_.folds)
    assert len({each.row for each in found.exposed}) == len(found.exposed)
    with pytest.raises(ValueError, match="holdout: expected rows that were not in the fit"):
        audit(model, X[:-1])


def test_rows_of_fit_that_the_model_knows_best_are_named(memoriser):
    X, model = memoriser
    found = audit(model, X, people(400, 2))
    ratio = model.score_samples(X) - model._table.independent(model.as_frame(X))
    assert [each.row for each in found.exposed] == np.argsort(-ratio, kind="stable")[:5].tolist()
    assert [each.nats for each in found.exposed] == pytest.approx(np.sort(ratio)[::-1][:5], abs=1e-4)


def test_copies_are_counted_beside_what_chance_gives():
    rng = np.random.default_rng(0)
    few = lambda n: pd.DataFrame({"u": rng.integers(3, size=n), "v": rng.integers(2, size=n)}).astype(str)  # noqa: E731
    X = few(300)
    found = audit(CTEM(**SMALL).fit(X), X, few(300))
    assert found.copies == found.copies_unseen == 1.0
    assert found.alarms() == []
    numbers = {"samples": 1000, "seen": 500, "unseen": 500, "nearer": 0.5, "nearer_stderr": 0.02}
    rest = {"ratio": 1, "ratio_unseen": 1, "attack": 0.5, "attack_stderr": 0.02, "exposed": ()}
    leaky = Privacy(**numbers, copies=0.05, copies_unseen=0.01, **rest)
    assert leaky.alarms() == ["5.00% of the samples are rows of fit; of held-out rows 1.00% are"]


def test_rows_with_gaps_are_no_copies_by_chance():
    rng = np.random.default_rng(0)

    def rows(n):
        X = pd.DataFrame({"u": rng.normal(size=n), "v": rng.integers(2, size=n).astype(str)})
        return X.assign(u=X["u"].where(rng.random(n) < 0.5))  # then two rows of three are alike

    X = rows(300)
    found = audit(CTEM(**SMALL).fit(X), X, rows(300))
    assert found.copies == found.copies_unseen == 0.0
    labels, others = X[["v"]].assign(w=X["v"].where(X["u"].notna())), rows(300)[["v"]].assign(w=None)
    found = audit(CTEM(**SMALL).fit(labels), labels, others)
    assert found.copies_unseen == 0.0  # no row is whole


def test_distances_are_those_of_a_slow_loop(modest):
    X, model = modest
    holes = X[:40].mask(np.random.default_rng(0).random((40, 6)) < 0.2)
    x = model.schema_.encode(model.as_frame(holes)).x
    slow = np.zeros((40, 40))
    for i in range(40):
        for k in range(40):
            for j in range(x.shape[1]):
                one, other = float(x[i, j]), float(x[k, j])
                if np.isnan(one) != np.isnan(other):
                    slow[i, k] += 1
                elif not np.isnan(one):
                    slow[i, k] += abs(one - other) if j < 5 else float(one != other)
    fast = _distances(model.schema_, x, x)
    assert np.allclose(fast, slow, atol=1e-4)
    assert torch.allclose(_nearest(model.schema_, x, x, 2), fast.sort(1).values[:, :2])


def test_a_seed_repeats_an_audit(modest):
    X, model = modest
    others = people(200, 5)
    assert audit(model, X, others, random_state=3) == audit(model, X, others, random_state=3)


def test_an_audit_counts_the_rules_that_samples_break():
    rng = np.random.default_rng(0)
    hour, minute = rng.integers(24, size=400), rng.integers(60, size=400)
    X = pd.DataFrame({"h": hour, "min": minute, "time": 100 * hour + minute, "end": 100 * hour + minute + 5})
    model = CTEM(**SMALL).fit(X)
    found = audit(model, X, X[:100], n_samples=200)
    assert len(found.rules) == len(model.schema_.rules) + len(model.schema_.orders) > 0
    assert all(each.rows <= 200 and each.broken <= 0.05 * each.rows for each in found.rules)
    assert "time = 100 · h + min: broken in" in str(found)
    assert found.to_json()["rules"][0].keys() == {"words", "rows", "broken", "expected"}
