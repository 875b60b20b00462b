"""scikit-learn's own checks, and life inside its tools."""

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from ctem import CTEM, CTEMImputer, CTEMOutlier
from ctem.densities.anyorder import fitting

TINY = {
    "max_steps": 3,
    "width": 8,
    "blocks": 1,
    "members": 1,
    "orders": 1,
    "batch_size": 32,
    "random_state": 0,
}
X = np.random.default_rng(0).normal(size=(240, 3)) @ np.array(
    [[1.0, 0.5, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]]
)

WEIGHTS = "a weight draws a row more often in stochastic training: equal in distribution, not in bits"
SUBSETS = (
    "scores are float32 sums, whose last digits depend on the rows beside: test_estimator holds them to 1e-5"
)
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
}


def expected_failures(estimator):
    return {} if isinstance(estimator, CTEMImputer) else EXPECTED_FAILURES


@pytest.fixture(scope="module", autouse=True)
def _few_held_out_rows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "STEADY", 64)
        yield


@pytest.mark.filterwarnings("ignore:fitted on .* rows:UserWarning")
@parametrize_with_checks([CTEM(**TINY)], expected_failed_checks=expected_failures)
def test_scikit_learn_checks(estimator, check):
    passes(estimator, check)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:fitted on .* rows:UserWarning")
@parametrize_with_checks(
    [CTEMOutlier(CTEM(**TINY)), CTEMImputer(CTEM(**TINY))], expected_failed_checks=expected_failures
)
def test_scikit_learn_checks_of_what_is_built_on_it(estimator, check):
    passes(estimator, check)


def passes(estimator, check):
    if check.func.__name__ == "check_methods_subset_invariance":  # it may pass or fail, as the machine adds
        pytest.skip(SUBSETS)
    check(estimator)


def tiny(**settings):
    return CTEM(**{**TINY, **settings})


def test_a_pipeline_scores_what_its_last_step_scores():
    pipe = make_pipeline(StandardScaler(), tiny()).fit(X)
    scaled = pipe[0].transform(X)
    assert np.array_equal(pipe.score_samples(X), pipe[-1].score_samples(scaled))
    assert pipe.score(X) == pytest.approx(pipe[-1].score_samples(scaled).mean())


def test_grid_search_and_cross_validation_use_the_mean_log_density():
    parts = list(KFold(2).split(X))
    search = GridSearchCV(tiny(), {"width": [4, 8]}, cv=2).fit(X)
    for width, found in zip((4, 8), search.cv_results_["mean_test_score"], strict=True):
        by_hand = [tiny(width=width).fit(X[kept]).score_samples(X[left]).mean() for kept, left in parts]
        assert found == pytest.approx(np.mean(by_hand))
        assert cross_val_score(tiny(width=width), X, cv=2) == pytest.approx(by_hand)


def test_a_clone_is_unfitted_and_fits_to_the_same_bits():
    model = tiny().fit(X)
    again = clone(model)
    assert not hasattr(again, "density_")
    assert np.array_equal(again.fit(X).score_samples(X), model.score_samples(X))


def test_joblib_takes_a_fitted_model_to_disk_and_back(tmp_path):
    model = CTEMOutlier(tiny()).fit(X)
    joblib.dump(model, tmp_path / "model")
    again = joblib.load(tmp_path / "model")
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    assert np.array_equal(again.predict(X), model.predict(X))


def test_the_contamination_share_of_the_rows_of_fit_are_outliers():
    model = CTEMOutlier(tiny(), contamination=0.1).fit(X)
    assert (model.predict(X) == -1).sum() == 24
    assert np.array_equal(model.predict(X) == -1, model.decision_function(X) < 0)
    assert np.allclose(model.decision_function(X) + model.offset_, model.score_samples(X))


def test_contamination_beyond_one_half_is_refused():
    with pytest.raises(ValueError, match=r"contamination: expected a share in \(0, 0.5\]; got 0.7"):
        CTEMOutlier(contamination=0.7).fit(X)


@pytest.mark.parametrize("made", [CTEMOutlier, CTEMImputer])
def test_estimators_around_a_density_take_its_arguments(made):
    wrapped = made(**TINY)
    assert wrapped.get_params()["width"] == TINY["width"]
    again = clone(wrapped).set_params(width=4, missing="hidden")
    assert again.fit(X).estimator_.width == 4
    assert clone(again).get_params() == again.get_params()
    assert made(CTEM(**TINY), width=5).fit(X).estimator_.get_params()["width"] == 5
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        made(depth=3)


def test_an_outlier_estimator_takes_held_out_rows():
    model = CTEMOutlier(**TINY).fit(X[:200], X_val=X[200:])
    assert model.estimator_.held_out_.rows == 40
    assert np.array_equal(model.p_values(X), model.estimator_.p_values(X))


def test_the_threshold_of_outliers_is_of_the_rows_that_weigh():
    X = np.random.default_rng(0).normal(size=(400, 2))
    X[:100] += 40
    outliers = CTEMOutlier(**TINY, contamination=0.1).fit(X, sample_weight=np.repeat([0.0, 1.0], [100, 300]))
    assert np.mean(outliers.predict(X[100:]) == -1) == pytest.approx(0.1, abs=0.01)
    with pytest.raises(ValueError, match="contamination: expected a share"):
        CTEMOutlier(**TINY, contamination="auto").fit(X)
