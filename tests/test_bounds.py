"""Columns with ends: nothing beyond them, everything between, and samples that keep their sign."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from small import EXACT

from ctem import CTEM, Real
from ctem.tables.io.cells import Cells
from ctem.tables.io.frame import read_frame
from ctem.tables.margins.bounds import Bounded, bounded_from_json, natural_ends
from ctem.tables.margins.monotone import MonotoneMap
from ctem.tables.margins.preferred import PreferredValues
from ctem.tables.schema import Schema

SQRT_2PI = math.sqrt(2 * math.pi)


def draws(name, n=800):
    rng = np.random.default_rng(0)
    return {
        "exponential": rng.exponential(size=n),
        "share": rng.beta(0.8, 0.6, size=n),
        "negative": -rng.lognormal(size=n),
        "far from zero": rng.normal(100, 1, size=n),
        "heavy": np.abs(rng.standard_cauchy(n)),
    }[name]


ENDS = {
    "exponential": (0.0, math.inf),
    "share": (0.0, 1.0),
    "negative": (-math.inf, 0.0),
    "far from zero": (0.0, math.inf),
    "heavy": (0.0, math.inf),
}


@pytest.fixture(params=ENDS)
def bounded(request):
    X = draws(request.param)
    return X, Bounded(MonotoneMap.fit(X), *ENDS[request.param], margin=1e-4 * float(X.std()))


def test_a_normal_behind_it_has_a_density_that_integrates_to_one_between_the_edges(bounded):
    _, map = bounded
    X = map.inverse(torch.linspace(-6, 6, 200_001, dtype=torch.float64))
    x, log_slope = map.with_log_slope((X[1:] + X[:-1]) / 2)
    density = (log_slope - x**2 / 2).exp() / SQRT_2PI
    assert float(density @ X.diff()) == pytest.approx(1, abs=1e-5)


def test_back_and_forth_is_the_identity_however_far_out(bounded):
    X, map = bounded
    far = [map.location + sign * map.scale * 10.0**k for sign in (-1, 1) for k in (1, 3, 9, 60)]
    low, high = map.edges
    values = torch.tensor([*X.tolist(), *(value for value in far if low < value < high)], dtype=torch.float64)
    x = map(values)
    assert bool(x.isfinite().all())
    assert torch.allclose(map.inverse(x), values, rtol=1e-6, atol=1e-9 * map.scale)
    ordered = map.inverse(torch.linspace(-40, 40, 4001, dtype=torch.float64))
    assert bool((ordered.diff() >= 0).all())
    assert low <= float(ordered[0])
    assert float(ordered[-1]) <= high


def test_the_slope_is_the_derivative(bounded):
    _, map = bounded
    X = map.inverse(torch.linspace(-3, 3, 50, dtype=torch.float64)).requires_grad_()
    x, log_slope = map.with_log_slope(X)
    (slope,) = torch.autograd.grad(x.sum(), X)
    assert torch.allclose(slope.log(), log_slope, atol=1e-6)


def test_plain_json_keeps_it(bounded):
    X, map = bounded
    again = bounded_from_json(map.to_json())
    assert torch.equal(again(torch.from_numpy(X)), map(torch.from_numpy(X)))


def test_where_nothing_lies_near_an_end_the_map_is_what_it_was():
    X = draws("far from zero")
    transform = MonotoneMap.fit(X)
    values = torch.from_numpy(X)
    assert torch.allclose(Bounded(transform, 0.0, math.inf)(values), transform(values), atol=1e-12)


@pytest.mark.parametrize(
    ("values", "kind", "ends"),
    [
        ([0.5, 7.25, 512.0], "float", (0.0, math.inf)),
        ([-3.0, 4.0], "float", (-math.inf, math.inf)),
        ([-3.0, 0.0], "float", (-math.inf, 0.0)),
        ([0.2, 0.99], "float", (0.0, 1.0)),
        ([2.5, 98.6], "float", (0.0, 100.0)),
        ([3, 80], "int", (0.0, math.inf)),
        ([3, 100], "int", (0.0, 100.0)),
        ([3, 100], "moment", (-math.inf, math.inf)),
        ([3, 100], "duration", (0.0, math.inf)),
    ],
)
def test_a_column_keeps_its_sign_and_shares_stay_shares(values, kind, ends):
    assert natural_ends(np.array(values), kind) == ends


def people(n=400, seed=0):
    rng = np.random.default_rng(seed)
    age = np.abs(rng.normal(25, 18, n)).round()
    return pd.DataFrame(
        {
            "age": age.astype(int),
            "fare": np.where(rng.random(n) < 0.1, 0.0, rng.lognormal(2, 1.0, n)).round(2),
            "share": rng.beta(0.6, 0.9, n),
            "wait": pd.to_timedelta(rng.exponential(600, n), unit="s"),
            "balance": rng.normal(size=n),
        }
    )


@pytest.fixture(scope="module")
def fitted():
    X = people()
    return X, CTEM(**EXACT).fit(X)


def test_samples_keep_the_sign_the_share_and_whole_numbers_whole(fitted):
    X, model = fitted
    drawn = model.sample(5000, random_state=0)
    assert drawn["age"].min() >= 0
    assert drawn["age"].dtype == X["age"].dtype
    assert drawn["fare"].min() >= 0
    assert drawn["share"].between(0, 1).all()
    assert drawn["wait"].min() >= pd.Timedelta(0)
    assert drawn["balance"].min() < 0 < drawn["balance"].max()


def test_the_density_of_a_column_with_ends_integrates_to_one_between_them(fitted):
    X, model = fitted
    codec = model.schema_.columns["share"].codec
    grid = np.linspace(0, 1, 20_001)
    rows = pd.concat([X[:1]] * len(grid), ignore_index=True).assign(share=grid)
    density = np.exp(model.log_density(rows, columns=["share"], given=["age", "balance"]))
    total = density[1:-1].sum() * (grid[1] - grid[0])
    assert total == pytest.approx(1 - codec.reserve, abs=2e-2)  # it rises steeply at both ends
    assert np.isfinite(density).all()


def test_a_value_beyond_an_end_is_strange_and_more_so_the_further_it_is(fitted):
    X, model = fitted
    wrong = X[:3].assign(fare=-4.0)
    assert model.unseen(wrong).any(0).tolist() == [False, True, False, False, False]
    others = [name for name in X if name != "fare"]
    beyond = model.score_samples(wrong) - model.log_density(X[:3], columns=others)
    assert np.allclose(beyond, beyond[0], rtol=0, atol=1e-4)  # whatever the other cells hold
    assert model.outlier_scores(wrong).min() > np.quantile(model.outlier_scores(X), 0.95)
    far = pd.concat([X[:1]] * 5, ignore_index=True).assign(fare=[-1.0, -1e2, -1e4, -1e6, -1e300])
    assert (np.diff(model.score_samples(far)) < 0).all()
    assert (np.diff(model.outlier_scores(far)) > 0).all()
    assert model.outlier_scores(far)[-1] > model.outlier_scores(far.assign(fare=1e6))[0]
    strict = CTEM(**{**EXACT, "max_steps": 2}, unknown="refuse").fit(X)
    with pytest.raises(ValueError, match=r"column 'fare' holds -4.0 in row 0, beyond its ends 0 … inf"):
        strict.score_samples(wrong)
    with pytest.raises(ValueError, match=r"column 'fare' holds -4.0 in row 0, beyond its ends"):
        model.sample(given={"fare": -4.0})


@pytest.mark.parametrize("name", ["fare", "share"])
def test_beyond_its_ends_a_column_has_the_reserve_in_all(fitted, name):
    X, model = fitted
    codec, others = model.schema_.columns[name].codec, [other for other in X if other != name]
    low, high = codec.transform.edges
    t = np.geomspace(1e-4, 1e7, 20_001) * codec.transform.scale
    total = 0.0
    for side in (low - t, high + t)[: math.isfinite(low) + math.isfinite(high)]:
        log_p = codec.encode(name, Cells("float", side, np.zeros(len(side), bool)))[1].numpy()
        total += np.trapezoid(np.exp(log_p), t)
    assert total == pytest.approx(codec.reserve, rel=1e-3)
    rows = X[:4].assign(**{name: -0.7})
    own = codec.encode(name, read_frame(rows).columns[name])[1].numpy()
    expected = model.log_density(X[:4], columns=others) + own
    assert np.allclose(model.score_samples(rows), expected, rtol=0, atol=1e-4)


def test_how_strange_a_value_beyond_an_end_is_does_not_depend_on_the_unit():
    X = people()
    scores = [
        CTEM(**EXACT).fit(X.assign(fare=by * X["fare"])).outlier_scores(X[:2].assign(fare=[-by, -99 * by]))
        for by in (1.0, 1024.0)
    ]
    assert np.allclose(*scores, rtol=0, atol=1e-3)


def test_ends_may_be_said(tmp_path):
    X = people()[["age", "balance"]]
    said = {"age": Real(low=-math.inf), "balance": Real(low=-9, high=9.0)}
    model = CTEM(**{**EXACT, "max_steps": 5}, kinds=said).fit(X)
    assert not isinstance(model.schema_.columns["age"].codec.transform, Bounded)
    assert model.schema_.describe()[1].reason.endswith("never beyond -9 … 9, as requested")
    assert model.sample(2000, random_state=0)["balance"].between(-9, 9).all()
    model.save(tmp_path / "m.ctem")
    again = CTEM.load(tmp_path / "m.ctem")
    assert again.kinds == said
    assert np.array_equal(again.score_samples(X), model.score_samples(X))


def test_ends_that_the_data_pass_are_refused():
    with pytest.raises(
        ValueError, match=r"column 'age' holds 0 … \d+: expected all within Real\(low=18\.0\)"
    ):
        Schema.fit(read_frame(people()), {"age": Real(low=18.0)})
    with pytest.raises(
        ValueError, match=r"column 'wait' holds durations: Real\(low=…, high=…\) is for numbers"
    ):
        Schema.fit(read_frame(people()), {"wait": Real(low=0.0)})
    with pytest.raises(ValueError, match="Real needs low < high"):
        Real(low=3.0, high=3.0)


def test_a_preferred_number_at_an_end_is_kept():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.choice([0.0, 0.25, 0.5], 300), rng.uniform(0, 3, 300).round(2)])
    schema = Schema.fit(frame := read_frame(X[:, None]), {"x0": "real"})
    codec = schema.columns["x0"].codec
    assert isinstance(codec.transform, Bounded)
    assert isinstance(codec.transform.inner, PreferredValues) or codec.atoms
    back = schema.decode(schema.encode(frame, torch.float64).x)["x0"].values
    assert np.allclose(back, X, atol=1e-9)


def test_the_density_of_a_share_is_no_mountain_at_the_last_digits_before_its_ends():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"share": rng.beta(0.5, 0.5, 300), "b": rng.normal(size=300)})
    model = CTEM(**EXACT, kinds={"share": Real(low=0.0, high=1.0)}).fit(X)
    m = model.schema_.columns["share"].codec.transform.margin
    for end, edge in ((0.0, -m), (1.0, 1 + m)):
        near = [end, *(edge + (end - edge) * 10.0**-k for k in range(1, 16)), np.nextafter(edge, end), edge]
        rows = pd.DataFrame({"share": near, "b": 0.0})
        assert np.ptp(model.log_density(rows, columns=["share"])) < 12
