"""Conditions that are ranges and sets: their probability, rows that meet them, and what cannot be asked."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import chi2_contingency, ks_2samp
from sklearn.metrics import accuracy_score
from small import EXACT, SMALL

from ctem import CTEM, Ordinal
from ctem.tables.answers.density import TableDensity
from ctem.tables.answers.events import TableEvent, conditional_probability

BIG = 6000
FUZZED = 50


def people(n=500, seed=0):
    """A category, an ordered one, whole years, rain with an atom at 0 and dates; all depend on the first."""
    rng = np.random.default_rng(seed)
    side = rng.integers(3, size=n)
    return pd.DataFrame(
        {
            "city": np.array(["Bergen", "Oslo", "Røros"])[side],
            "size": np.clip(side + rng.integers(3, size=n), 0, 3),
            "age": np.clip(rng.normal(35 + 10 * side, 9), 18, 80).round().astype(int),
            "rain": np.where(rng.random(n) < 0.3, 0.0, rng.lognormal(side, 0.5)),
            "born": pd.Timestamp("2000-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D"),
        }
    )


@pytest.fixture(scope="module")
def model():
    return CTEM(**SMALL, kinds={"size": Ordinal()}).fit(people())


@pytest.fixture(scope="module")
def rows(model):
    return model.sample(BIG, random_state=1)


def holds(column, said):
    """Which cells meet a condition."""
    if isinstance(said, list):
        return np.any([holds(column, item) for item in said], axis=0)
    if isinstance(said, tuple):
        low, high = (pd.Timestamp(end) if isinstance(end, str) else end for end in said)
        ends = (low is None) | (column >= low) if low is not None else np.ones(len(column), bool)
        return np.asarray(ends & (column <= high if high is not None else True))
    return np.asarray(column == said)


def fits(X, given):
    return np.all([holds(X[name], said) for name, said in given.items()], axis=0)


def fuzzed(rng):
    """A random condition on one to three columns."""

    def pair(low, high):
        ends = sorted(rng.uniform(low, high, 2).round(1).tolist())
        return [(ends[0], ends[1]), (None, ends[1]), (ends[0], None)][rng.integers(3)]

    days = sorted(rng.integers(0, 300, 2).tolist())
    said = {
        "city": [["Oslo"], ["Bergen", "Røros"]][rng.integers(2)],
        "size": [(1, 2), [0, 3], (2, None)][rng.integers(3)],
        "age": [pair(25, 60), [30, 40, (50, 60)], (40, 40)][rng.integers(3)],
        "rain": [[0.0, pair(1, 8)], pair(-1, 5), 0.0][rng.integers(3)],
        "born": tuple((pd.Timestamp("2000-01-01") + pd.Timedelta(days=d)).isoformat() for d in days),
    }
    names = rng.permutation(list(said))[: rng.integers(1, 4)]
    return {str(name): said[str(name)] for name in names}


@pytest.mark.parametrize("case", [0, 1, *(pytest.param(k, marks=pytest.mark.long) for k in range(2, FUZZED))])
def test_a_fuzzed_condition_is_as_likely_as_it_is_frequent_and_its_rows_meet_it(model, rows, case):
    given = fuzzed(np.random.default_rng(case))
    share = fits(rows, given).mean()
    found = model.probability(given, n_draws=1024, random_state=case)
    noise = np.sqrt(share * (1 - share) / BIG + 1 / BIG**2)
    assert abs(found.value - share) < 4 * (noise + found.stderr)
    drawn = model.sample(40, given={name: said if said != 0.0 else [said] for name, said in given.items()})
    assert fits(drawn, given).all()
    assert drawn.dtypes.equals(rows.dtypes)


@pytest.mark.parametrize(
    "given",
    [
        {"age": (30, 45)},
        {"rain": [0.0, (3.0, None)], "city": ["Oslo", "Røros"]},
        {"born": ("2000-02-01", "2000-06-30"), "age": (None, 40), "size": (1, 2)},
    ],
    ids=str,
)
def test_rows_of_a_condition_have_the_margins_of_rejection_sampling(model, rows, given):
    kept = rows[fits(rows, given)]
    drawn = model.sample(1000, given=given, random_state=2)
    for name in rows.columns:
        if name in ("city", "size"):
            counts = [side[name].value_counts() for side in (kept, drawn)]
            table = pd.concat(counts, axis=1).fillna(0).to_numpy()
            assert len(table) == 1 or chi2_contingency(table).pvalue > 1e-3, name
        else:
            assert ks_2samp(kept[name].astype("int64"), drawn[name].astype("int64")).pvalue > 1e-3, name


def test_probabilities_of_labels_are_brute_force_sums():
    rng = np.random.default_rng(0)
    u = rng.integers(3, size=400)
    X = pd.DataFrame({"u": u, "v": (u + rng.integers(2, size=400)) % 3, "w": rng.integers(4, size=400)})
    X = X.astype(str)
    model = CTEM(**EXACT).fit(X)
    states = pd.DataFrame(itertools.product("012", "012", "0123"), columns=["u", "v", "w"])
    p = np.exp(model.score_samples(states))
    p /= p.sum()  # what is kept for values that were never seen is not drawn
    for said in ({"u": ["0", "2"]}, {"v": ["1"], "w": ["0", "3"]}, {"u": ["1"], "v": ["0"], "w": ["1", "2"]}):
        found = model.probability(said, n_draws=8192)
        assert abs(found.value - p[fits(states, said)].sum()) < 3 * found.of_draws + 1e-6
        assert found.ess > 1000


def test_probabilities_of_numbers_are_integrals():
    X = people()[["city", "age", "rain"]].assign(rain=lambda X: X["rain"] + 0.1)
    X = X.drop(columns="age")[X["rain"] > 0.1].reset_index(drop=True)
    model = CTEM(**EXACT).fit(X)
    grid = np.geomspace(0.02, 60, 1000)
    for city, (low, high) in itertools.product(["Oslo", "Bergen"], [(0.5, 2.0), (4.0, None)]):
        inside = grid[(grid >= low) & (grid <= (high or np.inf))]
        ends = np.unique([low, *inside, high or 60])
        density = np.exp(model.score_samples(pd.DataFrame({"city": city, "rain": ends})))
        found = model.probability({"city": city, "rain": (low, high)}, n_draws=2048)
        assert abs(found.value - np.trapezoid(density, ends)) < 3 * found.of_draws + 1e-4 * found.value


def test_whole_numbers_add_up(model):
    years = [model.probability({"age": year}, n_draws=256) for year in (39, 40, 41)]
    together = model.probability({"age": (39, 41)}, n_draws=256)
    listed = model.probability({"age": [39, 40, 41]}, n_draws=256)
    noise = np.sqrt(sum(one.of_draws**2 for one in years) + together.of_draws**2)
    assert abs(sum(one.value for one in years) - together.value) < 4 * noise
    assert listed.value == pytest.approx(together.value, rel=1e-6)


def test_the_standard_error_is_the_spread_of_repeated_estimates(model):
    given, table = {"rain": (1.0, 4.0), "city": ["Oslo"]}, TableDensity(model.schema_, model.density_)
    event = TableEvent.of(table, model.table_type_, {}, given)
    found = [event.probability(256, torch.Generator().manual_seed(seed)) for seed in range(12)]
    spread, said = np.std([one.value for one in found], ddof=1), np.mean([one.stderr for one in found])
    assert 0.45 < spread / said < 1.8  # five standard errors of a standard deviation of twelve


def test_draws_end_once_the_standard_error_is_below_the_tolerance(model):
    given = {"age": (30, 40), "city": ["Oslo"]}
    whole = model.probability(given, random_state=0, tolerance=0)
    for tolerance in (0.2, 0.05):
        found = model.probability(given, random_state=0, tolerance=tolerance)
        assert found.of_draws <= tolerance * min(found.value, 1 - found.value)
        assert found.ess < whole.ess / 2
        assert abs(found.value - whole.value) < 4 * np.hypot(found.of_draws, whole.of_draws)
    with pytest.raises(ValueError, match=r"tolerance: expected a share.*got 2"):
        model.probability(given, tolerance=2)


def test_conditional_probabilities_are_ratios(model):
    event, given = {"rain": (1.0, None)}, {"city": ["Oslo", "Røros"]}
    both, whole = (
        model.probability({**event, **given}, n_draws=1024),
        model.probability(given=given, n_draws=1024),
    )
    found = model.probability(event, given, n_draws=1024)
    ratio = both.value / whole.value
    noise = ratio * np.hypot(both.of_draws / both.value, whole.of_draws / whole.value)
    assert abs(found.value - ratio) < 4 * np.hypot(noise, found.of_draws)


def test_given_values_are_shown_as_in_log_density(model):
    row = people(1, seed=5)
    known = row[["city", "age", "rain", "born"]].iloc[0].to_dict()
    log_p = [model.log_density(row.assign(size=k), ["size"], list(known))[0] for k in range(4)]
    found = model.probability({"size": [1, 2]}, known)
    assert abs(found.value - np.exp(log_p[1]) - np.exp(log_p[2])) < 3 * found.of_draws + 1e-5


def test_rare_events_have_a_relative_error(model):
    found = model.probability({"age": (75, 80), "rain": (None, 0.5), "city": ["Bergen"]})
    assert 0 < found.value < 1e-3
    assert found.of_draws < 0.3 * found.value
    assert len(model.sample(20, given={"age": (75, 80), "city": ["Bergen"]})) == 20


def test_a_seed_repeats_rows_and_probabilities(model):
    given = {"age": (30, 40)}
    assert model.sample(5, given=given, random_state=3).equals(model.sample(5, 3, given))
    first, second = (model.probability(given, n_draws=256, random_state=3) for _ in range(2))
    assert first == second


def test_missing_is_a_condition_where_it_is_a_state():
    X = people().assign(city=lambda X: X["city"].where(X["size"] > 0))
    model = CTEM(**EXACT, missing="state").fit(X)
    rows = model.sample(BIG, random_state=0)
    found = model.probability({"city": [None, "Oslo"]})
    share = (rows["city"].isna() | (rows["city"] == "Oslo")).mean()
    assert abs(found.value - share) < 4 * (found.stderr + np.sqrt(share * (1 - share) / BIG))
    assert model.sample(20, given={"city": [None]})["city"].isna().all()
    known = model.sample(50, given={"city": None})
    assert known["city"].isna().all()
    assert known["age"].notna().all()


def test_values_that_share_a_code_are_told_apart():
    rng = np.random.default_rng(0)
    names = np.array([f"n{i:03d}" for i in range(300)])
    X = pd.DataFrame(
        {"name": names[np.minimum(rng.geometric(0.01, 1500) - 1, 299)], "y": rng.normal(size=1500)}
    )
    model = CTEM(**EXACT).fit(X)
    codec = model.schema_.columns["name"].codec
    shared = [v for v, s in zip(codec.values, codec.shares, strict=True) if s < 1]
    assert len(shared) > 2
    drawn = model.sample(60, given={"name": shared[:2]})
    assert set(drawn["name"]) == set(shared[:2])
    proba = model.predict_proba(X[:3], "name")
    assert np.allclose(proba.sum(1), 1)
    assert model.classes("name") == list(codec.values)
    exact = np.exp(model.log_density(X[:3].assign(name=shared[0]), ["name"], ["y"]))
    exact /= 1 - codec.reserve  # what is kept for values that were never seen is not predicted
    assert proba[:, model.classes("name").index(shared[0])] == pytest.approx(exact, rel=1e-4)


def test_predictions_are_the_conditional_of_any_column(model):
    X = people(20, seed=4)
    proba = model.predict_proba(X, "city")
    for k, city in enumerate(model.classes("city")):
        others = [name for name in X if name != "city"]
        exact = np.exp(model.log_density(X.assign(city=city), ["city"], others))
        assert proba[:, k] == pytest.approx(exact, rel=1e-4)
    best = np.array(model.classes("city"), object)[proba.argmax(1)]
    assert np.array_equal(model.predict(X, "city"), best)
    assert np.array_equal(model.predict(X.assign(city="Oslo"), "city"), best)
    age = model.predict(X, "age")
    assert age.dtype == np.float64
    assert np.abs(age - model.impute(X.astype({"age": float}).assign(age=np.nan), "mean")["age"]).max() <= 1
    assert np.issubdtype(model.predict(X).dtype, np.datetime64)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"town": (1, 2)}, "given: expected some of the columns .* got 'town'"),
        ({"age": (40, 30)}, r"column 'age': expected low ≤ high; got \(40, 30\)"),
        ({"age": []}, r"column 'age': expected at least one value"),
        ({"age": (1, 2, 3)}, r"column 'age': expected a value, \(low, high\)"),
        ({"city": ("Bergen", "Oslo")}, "column 'city' holds labels without an order"),
        ({"city": ["Paris"]}, "column 'city' holds 'Paris' in row 0, not seen in fit"),
        ({"city": None}, "column 'city': None asks for a missing cell.*missing='state'"),
        ({"rain": [1.2345]}, "column 'rain' is continuous: the single value 1.2345 has probability 0"),
        (
            {"rain": [np.float64(1.2345)]},
            "column 'rain' is continuous: the single value 1.2345 has probability 0",
        ),
        ({"age": np.nan}, "column 'age': None asks for a missing cell"),
        (
            {"born": ("soon", None)},
            "column 'born': expected dates or times, such as '2020-01-05 09:00'; got 'soon'",
        ),
        ({"born": (3.5, None)}, "column 'born'"),
        ({"born": np.datetime64("NaT")}, "column 'born': None asks for a missing cell"),
        ({"born": (pd.NaT, "2000-03-01")}, "column 'born': expected a value, .* got .*NaT"),
        ({"age": ("young", "old")}, "column 'age': expected numbers"),
        ({"age": slice(30, 40)}, r"column 'age': expected a value, a range \(low, high\).*got slice"),
        ({"age": "30..40"}, r"given=\{'age': \(30, 40\)\}; got '30..40'"),
    ],
    ids=str,
)
def test_conditions_that_make_no_sense_are_refused(model, given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        model.probability(given)
    with pytest.raises((ValueError, TypeError), match=message):
        model.sample(3, given=given)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"age": (500, 600)}, r"given: column 'age' has no value in \(500, 600\); nearly all are between"),
        ({"age": (30.2, 30.8)}, r"given: column 'age' has no value in \(30.2, 30.8\)"),
        ({"size": (7, 9)}, r"given: column 'size' holds no value in \(7, 9\)"),
    ],
    ids=str,
)
def test_what_no_value_meets_has_probability_zero_and_cannot_be_given(model, said, message):
    assert model.probability(said).value == 0
    assert model.probability(said, given={"city": "Oslo"}).value == 0
    with pytest.raises(ValueError, match=message):
        model.probability({"city": "Oslo"}, given=said)
    with pytest.raises(ValueError, match=message):
        model.sample(3, given=said)


def test_beyond_the_rows_of_fit_what_is_told_of_a_number_agrees_with_its_draws():
    rng = np.random.default_rng(0)
    x = rng.normal(size=1000)
    model = CTEM(**EXACT | {"max_steps": 200}).fit(
        pd.DataFrame({"x": x, "y": x + 0.1 * rng.normal(size=1000)})
    )
    known, drawn = (
        model.conditional({"x": 4.5}, "y"),
        model.sample(4000, given={"x": 4.5}, random_state=0)["y"],
    )
    low, high = (known.quantile(share)[0] for share in (0.05, 0.95))
    assert low <= known.typical()[0] <= high
    assert known.std()[0] == pytest.approx(drawn.std(), rel=0.3)
    (strange,) = model.outliers(pd.DataFrame({"x": [4.5], "y": [1.0]}))
    assert strange.cells
    assert all(cell.low <= cell.expected <= cell.high for cell in strange.cells)


@pytest.mark.parametrize("dtype", ["int64", "float64", "bool"])
def test_a_column_of_0_and_1_is_predicted_as_a_class(dtype):
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    X = pd.DataFrame({"x": x, "y": (x + rng.normal(size=300) > 0).astype(dtype)})
    model = CTEM(**EXACT).fit(X)
    found = model.predict(X, "y")
    assert set(found.tolist()) <= {0, 1}
    p = model.predict_proba(X, "y")
    assert np.array_equal(found, np.array(model.classes("y"))[p.argmax(1)])


def test_all_rows_are_as_strange_as_the_least_strange_one(model):
    assert len(model.outliers(people(20, seed=4), alpha=1.0)) == 20


def test_booleans_are_predicted_as_booleans():
    X = people()[["rain", "age"]].assign(old=lambda X: X["age"] > 50)
    found = CTEM(**EXACT).fit(X).predict(X, "old")
    assert found.dtype == bool
    assert accuracy_score(X["old"], found) > 0.5


def test_where_missing_is_a_state_a_column_that_is_not_named_is_unknown_and_not_missing():
    rng = np.random.default_rng(0)
    gone = rng.random(800) < 0.25
    X = pd.DataFrame({"y": np.where(gone, np.nan, rng.normal(size=800)), "c": np.where(gone, "ill", "well")})
    model = CTEM(**EXACT | {"max_steps": 200}, missing="state").fit(X)
    ill = model.classes("c").index("ill")
    assert model.conditional({}, "c").probability[0, ill] == pytest.approx(0.25, abs=0.05)
    assert model.conditional({"y": None}, "c").probability[0, ill] > 0.9


CATEGORIES = {
    "whole": [1, 2, 3],
    "numbers": [0.5, 1.5, 2.5],
    "booleans": [False, True],
    "moments": pd.to_datetime(["2020-01-01", "2020-06-01"]),
}


@pytest.mark.parametrize("values", CATEGORIES.values(), ids=CATEGORIES)
def test_categories_are_asked_for_by_their_own_values(values):
    rng = np.random.default_rng(0)
    kept = pd.Series(values)[rng.integers(len(values), size=200)].reset_index(drop=True)
    X = pd.DataFrame({"k": kept.astype("category"), "v": rng.normal(size=200)})
    model, value = CTEM(**EXACT).fit(X), X["k"][0]
    for said in (value, [value]):
        assert (model.sample(2, given={"k": said})["k"] == value).all()
        assert 0 < model.probability({"k": said}, n_draws=64).value < 1
    assert model.conditional({"k": value}, "v").has_mean


def test_arrays_and_series_are_lists_of_values(model):
    listed = model.probability({"age": [30, 40]}, n_draws=256)
    for said in (np.array([30, 40]), pd.Series([30, 40])):
        assert model.probability({"age": said}, n_draws=256) == listed
    assert model.probability({"rain": (None, None)}, n_draws=256).value <= 1


def test_an_end_at_infinity_is_open(model):
    closed, opened = (model.probability({"rain": (1.0, end)}, n_draws=512) for end in (np.inf, None))
    assert closed == opened
    assert (model.sample(9, given={"rain": (-np.inf, 0.5)}, random_state=0)["rain"] <= 0.5).all()


@pytest.mark.parametrize(
    "said", ["2000-03-01", np.datetime64("2000-03-01"), pd.Timestamp("2000-03-01")], ids=type
)
def test_a_single_moment_may_be_text_or_of_any_library(model, said):
    assert (model.sample(3, given={"born": said})["born"] == pd.Timestamp("2000-03-01")).all()
    moment = pd.Timestamp("2000-03-01").to_pydatetime()
    known = [model.conditional({"born": each}, "city").probability for each in (said, moment)]
    assert np.array_equal(*known)
    assert 0 < model.probability({"city": "Oslo"}, given={"born": said}, n_draws=64).value < 1


def test_a_probability_needs_a_condition_and_no_column_twice(model):
    with pytest.raises(ValueError, match="event, given: expected conditions"):
        model.probability()
    with pytest.raises(ValueError, match="event, given: expected no column in both; got 'age'"):
        model.probability({"age": (30, 40)}, {"age": 35})


def test_a_constant_column_meets_a_condition_or_nothing_does():
    X = people()[["city", "rain"]].assign(one=7)
    model = CTEM(**EXACT).fit(X)
    assert model.probability({"one": (5, 9)}).value == 1
    assert (model.sample(4, given={"one": [7], "city": ["Oslo"]})["one"] == 7).all()
    assert model.probability({"one": (8, 9)}).value == 0
    with pytest.raises(ValueError, match="column 'one' was always"):
        model.sample(1, given={"one": (8, 9)})


def test_the_error_of_a_probability_knows_how_far_the_networks_disagree(model):
    given = {"age": (30, 40), "city": ["Oslo"]}
    found = model.probability(given, n_draws=2048, tolerance=0)
    table, kind = TableDensity(model.schema_, model.density_), model.table_type_
    alone = [
        conditional_probability(table.of_member(k), kind, given, {}, 2048, torch.Generator().manual_seed(k))
        for k in range(model.settings_.members)
    ]
    spread = np.std([one.value for one in alone], ddof=1) / np.sqrt(len(alone))
    noise = np.hypot.reduce([one.of_draws for one in alone])
    assert found.stderr == pytest.approx(np.hypot(found.networks, found.of_draws))
    assert abs(found.networks - spread) < 4 * noise
    more = model.probability(given, n_draws=6144, tolerance=0)
    assert more.of_draws < 0.8 * found.of_draws
    assert more.networks > found.networks / 3


def test_what_all_networks_say_has_no_error_but_that_of_its_draws():
    X = np.random.default_rng(0).normal(size=(300, 2))
    one = CTEM(**SMALL | {"members": 1, "orders": 1}).fit(X)
    found = one.probability({"x0": (0, None)})
    assert (found.networks, found.stderr) == (0.0, found.of_draws)


def test_an_event_and_its_opposite_add_up_to_one(model):
    for event, other in (
        ({"age": (None, 40)}, {"age": (41, None)}),
        ({"city": ["Oslo"]}, {"city": ["Bergen", "Røros"]}),
    ):
        rain = {"rain": (0.5, None)}
        one, two = (model.probability(said, given=rain, n_draws=512) for said in (event, other))
        assert abs(one.value + two.value - 1) < 4 * np.hypot(one.of_draws, two.of_draws) + 1e-3
