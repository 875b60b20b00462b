"""One density, one answer: every method of a default fit speaks of the same normalised density."""

import copy
import dataclasses
import inspect
import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from small import SMALL

from ctem import CTEM
from ctem.densities.anyorder import Settings
from ctem.estimators import estimator
from ctem.fitting.learning import settings_for
from ctem.tables.answers.density import TableDensity
from ctem.tables.answers.surprise import surprises
from ctem.tables.encoding.codecs import Labels, Numbers

DRAWS = 4000
STEP = 1e-3  # of a finite difference, in encoded units: float32 sums then give slopes to about 1e-3


def numeric(n=150, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.gamma(3.0, size=n)
    b = a + rng.normal(size=n)
    return pd.DataFrame({"a": a, "b": b, "c": b * rng.normal(size=n)})


def labels(n=150, seed=0):
    rng = np.random.default_rng(seed)
    u = rng.integers(3, size=n)
    v, w = np.where(rng.random(n) < 0.2 + 0.3 * u, "p", "q"), (u + rng.integers(2, size=n)) % 4
    return pd.DataFrame({"u": np.array(["x", "y", "z"])[u], "v": v, "w": np.array(["k", "l", "m", "n"])[w]})


def mixed(n=150, seed=0):
    """Text, an atom at 0, numbers and dates."""
    rng = np.random.default_rng(seed)
    side = rng.integers(3, size=n)
    return pd.DataFrame(
        {
            "city": np.array(["Bergen", "Oslo", "Røros"])[side],
            "rain": np.where(rng.random(n) < 0.3, 0.0, rng.lognormal(side, 0.5)),
            "height": rng.normal(170 + 10 * side, 5),
            "born": pd.Timestamp("2000-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
        }
    )


def gappy(n=150, seed=0):
    rng = np.random.default_rng(seed + 1000)
    X = mixed(n, seed)[["city", "rain", "height"]]
    return X.assign(
        height=np.where(rng.random(n) < 0.2, np.nan, X["height"]),
        city=np.where(rng.random(n) < 0.1, None, X["city"]),
    )


TABLES = {made.__name__: made for made in (numeric, labels, mixed, gappy)}


BRIEF = {"effort": "quick", "max_steps": 150, "width": 32, "blocks": 1}
FITS = {name: (name, BRIEF) for name in ("labels", "gappy")}
LONG = {
    "numeric": ("numeric", BRIEF),
    "mixed": ("mixed", BRIEF),
    **{f"{name}, default": (name, {}) for name in TABLES},
}


@pytest.fixture(
    scope="module",
    params=[*FITS.values(), *(pytest.param(each, marks=pytest.mark.long) for each in LONG.values())],
    ids=[*FITS, *LONG],
)
def fitted(request):
    """A table, and a model of it with nothing said but a seed; in the first tier that it should be quick."""
    name, said = request.param
    X = TABLES[name]()
    return X, CTEM(random_state=0, **said).fit(X)


def column_names(model):
    return list(model.schema_.columns)


def rest(model, *columns):
    return [name for name in column_names(model) if name not in columns]


def first_columns(model):
    """Sets of columns that come before all others in every order of the mixture."""
    owner = model.schema_.owner
    for k in range(1, len(owner)):
        for chosen in itertools.combinations(range(len(owner)), k):
            inner = {i for j in chosen for i in owner[j]}
            if all(set(order[: len(inner)]) == inner for order in model.density_.orders):
                yield [column_names(model)[j] for j in chosen]


def alternatives(model, column):
    """Values of a column that stand for all of it, and the weight of each in a sum or a trapezoidal rule."""
    codec = model.schema_.columns[column].codec
    if isinstance(codec, Labels):
        values = codec.values.to_list() if hasattr(codec.values, "to_list") else list(codec.values)
        return values, np.ones(len(values))
    X = codec.transform.inverse(torch.linspace(-8, 8, 3002, dtype=torch.float64)).numpy()
    weight = np.zeros(len(X))
    weight[1:] += np.diff(X) / 2
    weight[:-1] += np.diff(X) / 2
    return np.concatenate([X, codec.atoms]), np.concatenate([weight, np.ones(len(codec.atoms))])


def smooth_or_discrete(model):
    """Columns whose values can be summed or integrated over: all but dates, which are whole."""
    return [name for name in column_names(model) if name != "born"]


def conditional_of(model, row, column):
    """log ρ(value | the other cells of a row) for values that stand for all, and their weights."""
    values, weight = alternatives(model, column)
    many = pd.concat([row] * len(values), ignore_index=True).assign(**{column: values})
    return model.log_density(many, columns=[column], given=rest(model, column)), weight


def test_a_score_is_a_log_density_bit_for_bit(fitted):
    X, model = fitted
    assert np.array_equal(model.score_samples(X), model.log_density(X))
    assert model.score(X) == model.score_samples(X).mean()


def test_what_comes_first_in_every_order_obeys_the_chain_rule(fitted):
    """In the model, where orders begin alike, and with the order of the table alone."""
    X, model = fitted
    alone = copy.deepcopy(model)
    alone.density_.orders = [[i for columns in model.schema_.owner for i in columns]]
    assert len(list(first_columns(alone))) == len(model.schema_.owner) - 1
    for each in (model, alone):
        for first in first_columns(each):
            joint = each.log_density(X, first) + each.log_density(X, rest(each, *first), first)
            assert np.allclose(joint, each.score_samples(X), rtol=0, atol=2e-4)


def test_every_other_split_obeys_it_to_three_quarters_of_a_nat(fitted):
    X, model = fitted
    for name in column_names(model):
        for one, other in (([name], rest(model, name)), (rest(model, name), [name])):
            joint = model.log_density(X, one) + model.log_density(X, other, one)
            assert np.abs(joint - model.score_samples(X)).mean() < 0.75


def test_every_conditional_sums_or_integrates_to_one(fitted):
    X, model = fitted
    for name in smooth_or_discrete(model):
        for i in (0, 7):
            log_p, weight = conditional_of(model, X[i : i + 1], name)
            assert np.exp(log_p) @ weight == pytest.approx(1, abs=1e-4)


def test_draws_of_a_column_score_as_its_density_says(fitted):
    """The mean score of draws is ∫ ρ log ρ."""
    X, model = fitted
    row = X.dropna()[:1]
    for name in smooth_or_discrete(model):
        log_p, weight = conditional_of(model, row, name)
        p = np.exp(log_p) * weight
        drawn = model.sample(4000, random_state=0, given=row[rest(model, name)])
        found = model.log_density(drawn, [name], rest(model, name))
        stderr = found.std() / np.sqrt(len(found))
        assert abs(found.mean() - p @ log_p) < 3 * stderr + 1e-3


def test_two_halves_of_the_draws_have_the_same_mean_score(fitted):
    _, model = fitted
    one, two = (model.score_samples(model.sample(DRAWS // 2, random_state=seed)) for seed in (0, 1))
    assert abs(one.mean() - two.mean()) < 3 * np.sqrt((one.var() + two.var()) / (DRAWS // 2))


def test_draws_of_a_label_table_score_as_its_enumeration_says():
    X = labels()
    model = CTEM(**SMALL).fit(X)
    every = pd.DataFrame(list(itertools.product("xyz%", "pq%", "klmn%")), columns=list(X.columns))
    log_p = model.score_samples(every)
    assert np.exp(log_p).sum() == pytest.approx(1, abs=1e-5)  # % is a value never seen
    found = model.score_samples(model.sample(DRAWS, random_state=0))
    assert abs(found.mean() - np.exp(log_p) @ log_p) < 3 * found.std() / np.sqrt(DRAWS)


def test_the_gradient_is_the_slope_of_the_score(fitted):
    X, model = fitted
    grad = model.log_density_grad(X)
    for j, name in enumerate(column_names(model)):
        codec = model.schema_.columns[name].codec
        if not isinstance(codec, Numbers) or name == "born":
            assert name == "born" or np.isnan(grad[:, j]).all()
            continue
        there = np.isfinite(grad[:, j])
        assert there.sum() == (X[name].notna() & ~X[name].isin(codec.atoms)).sum()
        rows = X[there]
        step = STEP / codec.transform.with_log_slope(torch.tensor(rows[name].to_numpy()))[1].exp().numpy()
        up, down = (model.score_samples(rows.assign(**{name: rows[name] + s * step})) for s in (1, -1))
        error = np.abs(grad[there, j] * step - (up - down) / 2) / STEP  # per unit of the encoded column
        # log ρ is smooth in pieces: few steps go over a knot, and mix the slopes of both sides
        assert np.quantile(error, 0.8) < 5e-3


def test_outliers_are_ranked_by_p_value_then_by_their_score_which_their_columns_add_up_to(fitted):
    X, model = fitted
    scores, found = model.outlier_scores(X), model.outliers(X, n=20)
    rows = [each.row for each in found]
    assert rows == np.lexsort((-scores, model.p_values(X)))[:20].tolist()
    assert (np.diff([each.p_value for each in found]) >= 0).all()
    alpha = found[9].p_value
    assert [each.row for each in model.outliers(X, alpha=alpha)][:10] == rows[:10]
    assert np.allclose([each.score for each in found], scores[rows], rtol=0, atol=1e-9)
    assert np.allclose([sum(each.columns.values()) for each in found], scores[rows], rtol=0, atol=1e-9)
    assert np.allclose([each.log_density for each in found], model.score_samples(X)[rows], rtol=0, atol=1e-4)


def test_a_cell_scores_the_more_the_less_likely_it_is_in_standard_deviations(fitted):
    X, model = fitted
    whole = X.dropna()
    table = TableDensity(model.schema_, model.density_)
    nats = surprises(model.schema_, model.density_, table.encode(model.as_frame(whole))[0]).numpy()
    expected = -model.score_samples(whole)
    for choice, name in zip(model.schema_.columns.values(), whole, strict=True):
        if isinstance(choice.codec, Numbers) and name != "born":
            there = ~whole[name].isin(choice.codec.atoms).to_numpy()
            expected = expected - there * np.log(choice.codec.transform.scale)
    if "born" not in whole:  # its steps are smoothed
        assert np.ptp(nats.sum(1) - expected) < 1e-3
    for cells, of in zip(model.outlier_scores(whole, by_column=True).T, nats.T, strict=True):
        assert np.diff(cells[of.argsort()]).min() > -1e-3


def test_imputing_keeps_what_was_observed_bit_for_bit(fitted):
    X, model = fitted
    rng = np.random.default_rng(0)
    holes = X.mask(rng.random(X.shape) < 0.3)
    for method in ("sample", "mode", "mean"):
        filled = model.impute(holes, method, random_state=0)
        assert filled.notna().all().all()
        seen = holes.notna().to_numpy()
        assert (filled.to_numpy()[seen] == X.to_numpy()[seen]).all()


def test_a_loaded_model_gives_the_same_bits(fitted, tmp_path):
    X, model = fitted
    model.save(tmp_path / "model.ctem")
    again = CTEM.load(tmp_path / "model.ctem")
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    assert np.array_equal(again.log_density_grad(X), model.log_density_grad(X), equal_nan=True)
    name = column_names(model)[0]
    assert np.array_equal(again.log_density(X, [name]), model.log_density(X, [name]))
    pd.testing.assert_frame_equal(again.sample(50, random_state=0), model.sample(50, random_state=0))


def other_columns(X):
    return pd.DataFrame({"p": X["a"].to_numpy(), "q": X["b"].to_numpy()})


BAD = {
    "text where numbers were": lambda X: X.assign(a="x").assign(b=[{}] * len(X)),
    "infinity": lambda X: X.assign(a=np.inf),
    "one row": lambda X: X[:1],
}


@pytest.fixture(scope="module")
def small():
    X = numeric()
    return X, CTEM(**SMALL).fit(X)


@pytest.mark.parametrize("name", BAD)
def test_a_failed_refit_leaves_the_old_model_whole(small, name):
    X, model = small
    before = model.score_samples(X)
    with pytest.raises((ValueError, TypeError)):
        model.fit(BAD[name](X))
    assert np.array_equal(model.score_samples(X), before)


@pytest.mark.parametrize("moment", ["fit_density", "TableDensity"])
def test_an_interrupted_refit_leaves_the_old_model_whole(small, monkeypatch, moment):
    """Even on a table of other columns."""
    X, model = small
    before, names = model.score_samples(X), model.feature_names_in_.tolist()

    def interrupted(*args, **settings):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(estimator, moment, interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.fit(other_columns(X))
    assert model.feature_names_in_.tolist() == names
    assert np.array_equal(model.score_samples(X), before)


def test_settings_do_not_depend_on_the_device(small):
    X, model = small
    for function in (Settings.suited, Settings.changed):
        assert "device" not in inspect.signature(function).parameters
    assert "device" not in {field.name for field in dataclasses.fields(Settings)}
    same = [
        settings_for(CTEM(**{**SMALL, "device": name}).get_params(), model.schema_, len(X))
        for name in ("auto", "cpu", "cuda")
    ]
    assert same == [model.settings_] * 3


def test_a_complete_column_keeps_its_share_though_gaps_depend_on_it():
    """Complete columns come before columns with gaps, so that hidden cells do not speak for what hides them."""
    rng = np.random.default_rng(0)
    n = 300
    a = rng.random(n) < 0.7
    b = rng.normal(2 * a)
    gone = rng.random(n) < np.where(a, 0.9, 0.05)
    X = pd.DataFrame(
        {"a": np.where(a, "u", "v"), "b": b, "c": np.where(gone, np.nan, b + rng.normal(size=n))}
    )
    model = CTEM(random_state=0, **BRIEF).fit(X)
    late = {i for i, name in enumerate(model.schema_.space.names) if name.startswith("c")}
    assert late
    for order in model.density_.orders:
        assert {order.index(i) for i in late} == set(range(len(order) - len(late), len(order)))
    one = pd.DataFrame({"a": ["u"], "b": [0.0], "c": [np.nan]})
    told = float(np.exp(model.log_density(one, columns=["a"]))[0])
    sampled = float((model.sample(4000, random_state=0)["a"] == "u").mean())
    share = float(a.mean())
    stderr = np.sqrt(share * (1 - share) / n)
    assert abs(sampled - told) < 3 * np.sqrt(told * (1 - told) / 4000) + 1e-3
    assert abs(sampled - share) < 3 * stderr + 0.03
    assert abs(told - share) < 3 * stderr + 0.03


def test_a_row_has_the_score_alone_that_it_has_among_others_up_to_the_last_digits():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {"a": rng.standard_t(1.2, 200), "b": rng.lognormal(0, 3, 200), "c": rng.choice(list("xyz"), 200)}
    )
    model = CTEM(**SMALL).fit(X)
    together = model.score_samples(X)
    alone = np.array([model.score_samples(X.iloc[[i]])[0] for i in range(40)])
    assert np.abs(alone - together[:40]).max() < 1e-4
    assert np.median(np.abs(alone - together[:40])) < 1e-5
