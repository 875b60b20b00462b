"""The estimator's laws: its densities are normalised, in the user's units, and the same for every kind of table."""

import itertools
import math
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from small import EXACT, SMALL

from ctem import CTEM, Category, Ordinal, Real
from ctem.fitting.learning import settings_for


def fitted(X, **settings):
    return CTEM(**{**EXACT, **settings}).fit(X)


def table(n=300, seed=0):
    """Mixed columns that depend on one another, with an atom, a lattice, a constant and missing cells."""
    rng = np.random.default_rng(seed)
    side = rng.integers(3, size=n)
    return pd.DataFrame(
        {
            "city": np.array(["Oslo", "Bergen", "Røros"])[side],
            "rain": np.where(rng.random(n) < 0.3, 0.0, rng.lognormal(side, 0.5)),
            "age": rng.integers(18, 80, n),
            "height": np.where(rng.random(n) < 0.1, np.nan, rng.normal(170 + 10 * side, 5)),
            "smoker": rng.random(n) < 0.2 + 0.3 * side,
            "born": pd.Timestamp("2000-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
            "planet": 3,
        }
    )


@pytest.fixture(scope="module")
def mixed():
    X = table()
    return X, fitted(X, energy="auto")


def test_densities_of_a_discrete_table_sum_to_one():
    rng = np.random.default_rng(0)
    a = rng.integers(3, size=400)
    X = pd.DataFrame(
        {"a": a, "b": (a + rng.integers(2, size=400)) % 3, "c": np.where(rng.random(400) < 0.3, "u", "v")}
    )
    model = fitted(X, energy=None)
    every = pd.DataFrame(list(itertools.product(range(3), range(3), "uv")), columns=["a", "b", "c"])
    known = {name: 1 - choice.codec.reserve for name, choice in model.schema_.columns.items()}
    assert np.exp(model.score_samples(every)).sum() == pytest.approx(math.prod(known.values()), abs=1e-5)
    first = model.log_density(every.drop_duplicates("a"), columns=["a"])
    assert np.exp(first).sum() == pytest.approx(known["a"], abs=1e-5)


def test_the_density_of_an_atom_and_a_real_part_integrates_to_one():
    rng = np.random.default_rng(0)
    label = rng.integers(2, size=500)
    X = np.column_stack([label, np.where(rng.random(500) < 0.3, 0.0, rng.lognormal(label, 0.5))])
    model = fitted(X)
    assert model.schema_.parents
    edges = np.concatenate([-np.geomspace(1e3, 1e-9, 4000), np.geomspace(1e-9, 1e4, 12000)])
    total = 0.0
    for value in (0.0, 1.0):
        density = np.exp(model.score_samples(np.column_stack([np.full_like(edges, value), edges])))
        total += np.trapezoid(density, edges) + math.exp(model.score_samples([[value, 0.0]])[0])
    assert total == pytest.approx(1, abs=0.01)


def test_the_chain_rule_of_columns_holds_for_one_order():
    model = fitted(table()[["city", "height", "smoker"]].dropna(), members=1, orders=1)
    X = table(20, seed=1)[["city", "height", "smoker"]].dropna()
    order = [model.schema_.space.names[j] for j in model.density_.orders[0]]
    parts = [model.log_density(X, columns=[name], given=order[:i]) for i, name in enumerate(order)]
    assert np.allclose(sum(parts), model.score_samples(X), atol=1e-4)


@pytest.fixture(scope="module")
def plane():
    X = np.random.default_rng(0).normal(size=(200, 2)) @ np.array([[1.0, 0.7], [0.0, 0.5]])
    return X, fitted(X)


@pytest.mark.parametrize("factor", [2.54, pytest.param(1e-3, marks=pytest.mark.long), 1e6])
def test_rescaling_a_column_shifts_every_log_density_by_minus_log_a(plane, factor):
    X, before = plane
    a = np.array([factor, 1.0])
    after = fitted(a * X + np.array([3 * factor, 0.0]))
    expected = before.score_samples(X) - math.log(factor)
    assert np.allclose(after.score_samples(a * X + np.array([3 * factor, 0.0])), expected, atol=2e-3)
    grad, grad_after = before.log_density_grad(X), after.log_density_grad(a * X + np.array([3 * factor, 0.0]))
    assert np.allclose(grad_after * a, grad, atol=0.02 * np.abs(grad).max())


def test_renaming_categories_in_the_same_order_changes_no_bit():
    X = table()[["city", "height"]]
    renamed = X.assign(city=X["city"].map({"Bergen": "a", "Oslo": "b", "Røros": "c"}))
    assert np.array_equal(fitted(X).score_samples(X), fitted(renamed).score_samples(renamed))


def test_a_row_scores_the_same_wherever_it_stands(mixed):
    X, model = mixed
    rows = np.random.default_rng(0).permutation(len(X))[:40]
    assert np.allclose(model.score_samples(X.iloc[rows]), model.score_samples(X)[rows], rtol=0, atol=1e-5)
    assert np.allclose(model.score_samples(X[5:6]), model.score_samples(X)[5:6], rtol=0, atol=1e-5)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    X = table(100)[["city", "rain", "height"]]
    first, again = (fitted(X, energy="auto") for _ in range(2))
    other = fitted(X, random_state=1)
    assert np.array_equal(first.score_samples(X), again.score_samples(X))
    assert first.sample(5).equals(again.sample(5))
    assert not np.array_equal(first.score_samples(X), other.score_samples(X))


def test_all_backends_give_the_same_numbers_and_samples_of_their_kind(mixed):
    X, model = mixed
    expected = model.score_samples(X)
    for made, kind in ((pl.from_pandas, pl.DataFrame), (pa.Table.from_pandas, pa.Table)):
        same = fitted(made(X), energy="auto")
        assert np.allclose(same.score_samples(made(X)), expected, atol=1e-9)
        assert isinstance(same.sample(2), kind)
        came = made(X).schema
        assert same.sample(2).schema == (came.remove_metadata() if kind is pa.Table else came)
    assert list(model.sample(4).dtypes) == list(X.dtypes)


def test_numbers_in_an_array_and_in_a_frame_are_the_same(plane):
    X, model = plane
    frame = pd.DataFrame(X, columns=["a", "b"])
    assert np.array_equal(model.score_samples(X), fitted(frame).score_samples(frame))
    assert fitted(X.astype(np.float32)).sample(3).dtype == np.float32


def test_rows_of_weight_zero_are_as_good_as_absent():
    X = table(150)[["city", "rain", "height"]]
    weight = np.ones(150)
    weight[110:] = 0
    weighted = CTEM(**SMALL).fit(X, sample_weight=weight)
    absent = CTEM(**SMALL).fit(X[:110])
    assert np.allclose(weighted.score_samples(X), absent.score_samples(X), atol=1e-6)


def test_a_weight_of_k_is_a_row_repeated_k_times_in_distribution():
    X = pd.DataFrame({"a": ["u"] * 100 + ["v"] * 100})
    model = CTEM(**{**SMALL, "max_steps": 200})
    weighted = model.fit(X, sample_weight=np.repeat([3.0, 1.0], 100))
    p = np.exp(weighted.score_samples(pd.DataFrame({"a": ["u", "v"]})))
    assert p[0] == pytest.approx(0.75, abs=0.05)


def test_a_missing_cell_is_marginalised(mixed):
    X, model = mixed
    row = X.dropna()[:1]
    gap = row.assign(city=None, height=np.nan)
    others = [name for name in X.columns if name not in ("city", "height")]
    assert model.score_samples(gap) == pytest.approx(model.log_density(row, columns=others), abs=1e-4)
    assert np.isfinite(model.score_samples(gap)).all()


def test_imputation_leaves_the_observed_cells_and_fills_the_others(mixed):
    X, model = mixed
    for method in ("sample", "mode", "mean"):
        filled = model.impute(X, method=method, random_state=1)
        assert filled.notna().all().all()
        assert list(filled.dtypes) == list(X.dtypes)
        assert (filled.to_numpy() == X.to_numpy())[X.notna().to_numpy()].all()
    first, second = model.impute(X, n_draws=2, random_state=0)
    assert not first.equals(second)


def test_the_imputed_mean_is_the_mean_of_the_draws():
    rng = np.random.default_rng(0)
    side = rng.integers(2, size=600)
    X = np.column_stack([side, np.where(rng.random(600) < 0.2, 0.0, rng.gamma(4, 1 + side))])
    model = fitted(X)
    row = np.array([[1.0, np.nan]])
    draws = model.sample(4000, random_state=0, given={"x0": 1.0})[:, 1]
    mean = model.impute(row, method="mean")[0, 1]
    assert abs(mean - draws.mean()) < 5 * draws.std() / math.sqrt(4000) + 0.02
    assert np.isfinite(model.impute(row, method="mode")).all()


def test_samples_keep_what_is_given(mixed):
    X, model = mixed
    drawn = model.sample(5, given={"city": "Oslo", "age": 30})
    assert (drawn["city"] == "Oslo").all()
    assert (drawn["age"] == 30).all()
    assert list(drawn.dtypes) == list(X.dtypes)
    many = model.sample(2, given=X[["smoker"]][:3])
    assert many["smoker"].tolist() == np.repeat(X["smoker"][:3].to_numpy(), 2).tolist()
    assert len(model.sample(2, given={})) == 2


def test_a_conditional_sums_to_one_and_agrees_with_the_chain_rule(mixed):
    X, model = mixed
    rows = X.dropna()[:4]
    one = model.conditional(rows, "city")
    assert one.values == ["Bergen", "Oslo", "Røros"]
    assert np.allclose(one.probability.sum(1), 1)
    others = [name for name in X.columns if name != "city"]
    own = [one.probability[i, one.values.index(city)] for i, city in enumerate(rows["city"])]
    assert np.allclose(np.log(own), model.log_density(rows, columns=["city"], given=others), atol=1e-4)
    assert np.allclose(model.conditional(rows, "rain").probability.sum(1), 1)
    assert model.conditional(rows, "planet").probability.tolist() == [[1.0]] * 4


def test_the_gradient_is_the_slope_of_the_log_density():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.lognormal(size=400), rng.integers(2, size=400)])
    model = fitted(X)
    rows, h = X[:20], 1e-3
    step = np.array([h, 0.0])
    slope = (model.score_samples(rows * (1 + step)) - model.score_samples(rows * (1 - step))) / (
        2 * h * rows[:, 0]
    )
    grad = model.log_density_grad(rows)
    assert np.allclose(grad[:, 0], slope, rtol=0.02, atol=0.02 * np.abs(slope).max())
    assert np.isnan(grad[:, 1]).all()


def test_outliers_name_the_row_and_the_column():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=300), "b": rng.normal(size=300), "c": rng.integers(2, size=300)})
    X.loc[17, "b"] = 40.0
    (worst, second) = fitted(X).outliers(X, n=2)
    assert (worst.row, next(iter(worst.columns))) == (17, "b")
    assert worst.score >= second.score


def test_declared_kinds_win():
    X = np.random.default_rng(0).integers(5, size=(300, 3)).astype(float)
    model = fitted(X, kinds={"x0": Real(), "x1": Category(), "x2": Ordinal()})
    assert [column["kind"] for column in model.describe()["columns"]] == ["real", "category", "ordinal"]


def test_missing_as_a_state_gives_missingness_a_probability():
    X = table()[["city", "height"]]
    model = fitted(X, missing="state")
    rows = pd.DataFrame({"city": ["Oslo"], "height": [np.nan]})
    every = pd.DataFrame({"city": ["Oslo", "Bergen", "Røros"], "height": np.nan})
    total = np.exp(model.score_samples(every)).sum()
    assert 0.02 < total < 0.3
    assert np.isfinite(model.score_samples(rows)).all()
    with pytest.raises(ValueError, match="missing='state' makes a missing cell a value"):
        model.impute(X)


def test_rows_to_choose_by_are_not_learned_from():
    names = ["city", "rain", "height"]
    X, other = table(150)[names], table(100, seed=1)[names]
    one, two = (CTEM(**SMALL).fit(X, X_val=rows) for rows in (other, other[::-1]))
    assert one.history_["loss"][0] == two.history_["loss"][0]  # later they choose what is rehearsed
    assert one.n_samples_seen_ == len(X)
    turned = CTEM(**SMALL).fit(X, X_val=other[other.columns[::-1]])  # columns go by name
    assert turned.history_ == one.history_
    for wrong in (other.drop(columns="city"), other.rename(columns={"city": "town"})):
        with pytest.raises(ValueError, match="X_val: expected the columns of X; there is no 'city'"):
            CTEM(**SMALL).fit(X, X_val=wrong)
    with pytest.raises(ValueError, match=r"X_val: Found array with 0 sample\(s\)"):
        CTEM(**SMALL).fit(X, X_val=other[:0])
    timed = other.assign(at=pd.date_range("2020-01-01", periods=100, tz="Asia/Tokyo"))
    with pytest.raises(
        ValueError, match="X_val: column 'at' holds times in Asia/Tokyo; got times without a zone"
    ):
        CTEM(**SMALL).fit(timed, X_val=timed.assign(at=timed["at"].dt.tz_localize(None)))


def test_more_effort_is_more_work(mixed):
    X, model = mixed
    quick, default, best = (
        settings_for(CTEM(effort=e).get_params(), model.schema_, len(X)) for e in ("quick", "default", "best")
    )
    assert quick.steps < default.steps < best.steps
    assert quick.members < default.members < best.members
    said = CTEM(effort="best", width=7, max_steps=3).get_params()
    assert settings_for(said, model.schema_, len(X)).width == 7


def test_a_killed_fit_resumes_to_the_same_bits(tmp_path, monkeypatch):
    X = table()[["city", "height"]]
    steps = {"max_steps": 60, "width": 8}  # two evaluations and more
    whole = fitted(X, **steps)
    from ctem.training import loop

    write, calls = loop.write_checkpoint, []

    def dies(*args):
        write(*args)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "write_checkpoint", dies)
    with pytest.raises(KeyboardInterrupt):
        fitted(X, **steps, checkpoint=tmp_path / "run")
    resumed = fitted(X, **steps, checkpoint=tmp_path / "run")
    assert np.array_equal(resumed.score_samples(X), whole.score_samples(X))


def test_the_history_and_the_description_say_what_happened(mixed):
    _, model = mixed
    assert len(model.history_["step"]) == len(model.history_["loss"]) == len(model.history_["held_out"])
    assert model.describe()["rows"] == model.n_samples_seen_ == 300
    assert model.feature_names_in_.tolist() == list(table(2).columns)


def test_verbose_prints_every_column_with_its_reason(capsys):
    X = table(120)[["city", "rain"]].rename(columns={"rain": "rain [mm]"})
    fitted(X, verbose=1)
    shown = capsys.readouterr().out
    assert "rain [mm]" in shown
    assert "text, 3 values" in shown


def test_few_rows_are_warned_about_with_their_number():
    with pytest.warns(UserWarning, match="fitted on 40 rows: below about 100"):
        fitted(table(40)[["rain", "age"]])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"effort": "some"}, "effort: expected one of .*; got 'some'"),
        ({"missing": "drop"}, "missing: expected 'hidden' or 'state'; got 'drop'"),
        ({"max_steps": 0}, "max_steps: expected a whole number ≥ 1; got 0"),
        ({"orders": 1.5}, "orders: expected a whole number ≥ 1; got 1.5"),
        ({"max_time": -1}, "max_time: expected a finite number > 0; got -1"),
        ({"learning_rate": 0}, "learning_rate: expected a finite number > 0; got 0"),
        ({"max_time": "3"}, "max_time: expected a finite number > 0; got '3'"),
        ({"weight_decay": "x"}, "weight_decay: expected a finite number ≥ 0; got 'x'"),
        ({"kinds": ["x0"]}, r"kinds: expected a dict, such as \{'city': 'category'\}; got \['x0'\]"),
        ({"reading": "dmy"}, r"reading: expected a dict, such as \{'dates': 'dmy'\}; got 'dmy'"),
        ({"device": "tpu"}, "device: expected 'auto', 'cpu', or one that torch finds here, .*; got 'tpu'"),
        ({"checkpoint": "no/such/run"}, "checkpoint: expected a file in a folder that is there; there is no"),
        ({"weight_decay": -0.1}, "weight_decay: expected a finite number ≥ 0; got -0.1"),
        ({"members": True}, "members: expected a whole number ≥ 1; got True"),
        ({"kinds": {"size": Real()}}, "kinds: 'size' is not in the table"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        fitted(table(), **settings)


def test_bad_questions_are_named(mixed):
    X, model = mixed
    with pytest.raises(ValueError, match=r"columns: expected names or positions of .* got 'size'"):
        model.log_density(X, columns=["size"])
    with pytest.raises(ValueError, match="columns, given: expected no column in both"):
        model.log_density(X, columns=["age"], given=["age"])
    with pytest.raises(ValueError, match="column 'city' holds 'Paris' in row 0, not seen in fit"):
        model.sample(given={"city": "Paris"})
    with pytest.raises(ValueError, match=r"given: expected some of the columns .* got 'size'"):
        model.sample(given={"size": 3})
    with pytest.raises(ValueError, match="n_samples: expected a whole number ≥ 1; got 0"):
        model.sample(0)
    with pytest.raises(ValueError, match="method: expected 'sample', 'mode' or 'mean'; got 'median'"):
        model.impute(X, method="median")
    with pytest.raises(ValueError, match="n_draws: expected 1 with method='mode'"):
        model.impute(X, method="mode", n_draws=3)
    with pytest.raises(ValueError, match="feature names should match"):
        model.score_samples(X.rename(columns={"age": "years"}))


def test_of_all_steps_only_those_are_planned_that_fit_in_max_time():
    X = np.random.default_rng(0).normal(size=(300, 2))
    with (
        pytest.warns(UserWarning, match="max_time: still improving: .* would help"),
        pytest.warns(
            UserWarning, match=r"max_time: the fit took .* to read the columns, .* to train, .* to judge"
        ),
    ):
        model = fitted(X, max_steps=100_000, max_time=1e-6)
    assert model.density_.history.step[-1] <= 2  # one of each phase
    with pytest.warns(UserWarning, match="probability: the fit was still improving"):
        model.probability({"x0": (0, None)})


def test_a_fit_that_took_all_its_steps_was_not_cut_by_its_time():
    X = np.random.default_rng(0).normal(size=(300, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fitted(X, max_steps=10, max_time=1e6)
        model.probability({"x0": (0, None)})
    assert model.density_.history.step[-1] == model.settings_.longest == 10


@pytest.mark.parametrize("ended", ["at its limit", "early", "long after its best"])
def test_a_fit_that_was_cut_while_it_improved_says_so(ended):
    X = np.random.default_rng(0).normal(size=(100, 2))
    model = fitted(X, max_steps=10)
    history = model.density_.history
    steps, early = {"at its limit": (10, False), "early": (10, True), "long after its best": (2, False)}[
        ended
    ]
    history.best_step, history.stopped_early = steps, early
    said = model.describe()["still_improving"]
    assert (said is not None) == (ended == "at its limit")


@pytest.mark.filterwarnings("ignore:fitted on")
@pytest.mark.parametrize("rows", [2, 3, 13])
def test_a_handful_of_rows_is_a_table(rows):
    """Folds are fewer then."""
    X = np.random.default_rng(0).normal(size=(rows, 2))
    model = CTEM(max_steps=2, width=8, blocks=1, random_state=0).fit(X)
    assert np.isfinite(model.score_samples(X)).all()
