"""Values that fit never saw: finite scores, the right total, and a word about them."""

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score
from small import EXACT

from ctem import CTEM, CTEMOutlier
from ctem.datasets import load_penguins
from ctem.tables.io.frame import read_frame
from ctem.tables.schema import Schema

BRIEF = {**EXACT, "max_steps": 5, "width": 8}


def labelled(n=120, seed=0):
    rng = np.random.default_rng(seed)
    side = rng.integers(3, size=n)
    return pd.DataFrame(
        {
            "city": np.array(["Oslo", "Bergen", "Røros"])[side],
            "rooms": 2 * rng.integers(1, 5, n) * (1 + side),
            "size": rng.normal(side, 1.0),
            "year": 2024,
            "paid": np.where(rng.random(n) < 0.3 + 0.2 * side, "True", "False"),
        }
    )


@pytest.fixture(scope="module")
def fitted():
    X = labelled()
    return X, CTEM(**EXACT).fit(X)


NEW = {"city": "Rome", "rooms": 7, "year": 2025, "paid": "maybe"}


@pytest.mark.parametrize("name", NEW)
def test_a_new_value_scores_its_reserve_and_hides_its_cell(fitted, name):
    X, model = fitted
    new = X[:5].assign(**{name: NEW[name]})
    reserve = model.schema_.columns[name].codec.reserve
    others = [other for other in X if other != name]
    expected = model.log_density(X[:5], columns=others) + np.log(reserve)
    assert np.allclose(model.score_samples(new), expected, rtol=0, atol=1e-4)
    assert model.unseen(new).tolist() == [[other == name for other in X]] * 5


def test_the_reserve_is_the_share_of_values_seen_once():
    X = pd.DataFrame({"a": ["x"] * 50 + ["y"] * 45 + list("abcde"), "b": [1, 2] * 50})
    schema = Schema.fit(read_frame(X))
    assert schema.columns["a"].codec.reserve == pytest.approx(5 / 101, rel=0.01)
    assert schema.columns["b"].codec.reserve == pytest.approx(1 / 101**2)


def test_a_row_with_a_new_value_is_an_outlier_and_says_so(fitted):
    X, _ = fitted
    model = CTEMOutlier(CTEM(**EXACT), contamination=0.05).fit(X)
    new = X.assign(city=["Rome", *X["city"][1:]])
    assert model.predict(new)[0] == -1
    worst = model.estimator_.outliers(new, 1)[0]
    assert (worst.row, worst.unseen) == (0, ("city",))
    assert worst.why(1) == "city Rome, a value never seen"


def test_text_among_booleans_is_a_value_never_seen_and_stays_as_it_is(fitted):
    X, model = fitted
    new = X[:5].assign(paid=["maybe", "True", None, " True", "False "])
    assert model.unseen(new)[:, -1].tolist() == [True, False, False, False, False]
    assert model.outliers(new[:1], 1)[0].why() == "paid maybe, a value never seen"
    filled = model.impute(new, random_state=0)["paid"].tolist()
    assert filled[:2] + filled[3:] == ["maybe", "True", " True", "False "]
    assert filled[2] in ("True", "False")


def test_new_values_are_refused_where_that_was_asked_and_where_they_are_given(fitted):
    X, model = fitted
    new = X[:2].assign(city="Rome")
    strict = CTEM(**BRIEF, unknown="refuse").fit(X)
    with pytest.raises(ValueError, match="column 'city' holds 'Rome' in row 0, not seen in fit"):
        strict.score_samples(new)
    with pytest.raises(ValueError, match="column 'city' holds 'Rome' in row 0, not seen in fit"):
        model.sample(given={"city": "Rome"})
    with pytest.raises(ValueError, match="unknown: expected one of"):
        CTEM(unknown="maybe").fit(X)


def test_text_where_numbers_were_is_still_an_error(fitted):
    X, model = fitted
    with pytest.raises(
        ValueError, match="column 'rooms', row 0: expected a whole number, as in fit; got 'many'"
    ):
        model.score_samples(X.assign(rooms="many"))
    with pytest.raises(
        TypeError, match="column 'city': expected text or categories, as in fit; got whole numbers"
    ):
        model.score_samples(X.assign(city=3))


def test_a_new_value_stays_when_other_cells_are_filled_in(fitted):
    X, model = fitted
    holes = X[:10].assign(city="Rome", size=np.nan)
    filled = model.impute(holes, random_state=0)
    assert (filled["city"] == "Rome").all()
    assert filled["size"].notna().all()


def test_samples_hold_only_values_that_were_seen(fitted):
    X, model = fitted
    drawn = model.sample(500, random_state=0)
    assert not model.unseen(drawn).any()
    assert set(drawn["city"]) <= set(X["city"])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:fitted on")
def test_cross_validation_and_a_search_on_penguins_give_numbers():
    """Folds are not shuffled: whole islands are new to some."""
    X = load_penguins()[["island", "body_mass_g", "sex"]]
    assert np.isfinite(cross_val_score(CTEM(**BRIEF), X, cv=3)).all()
    search = GridSearchCV(CTEM(**BRIEF), {"width": [4, 8]}, cv=2, error_score="raise", refit=False).fit(X)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
