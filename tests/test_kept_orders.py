"""Columns that are never above others: found, kept in drawn, imputed and conditioned rows, and still one density."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from small import TINY

from ctem import CTEM
from ctem.densities.anyorder.conditionals import NumberDensity
from ctem.densities.anyorder.limits import Bounds
from ctem.densities.anyorder.numbers import NumberHead
from ctem.densities.anyorder.ties import COEFFICIENTS, TiedParts
from ctem.tables.io.frame import read_frame
from ctem.tables.relations.kept_orders import KeptOrder
from ctem.tables.schema import Schema

N = 1500
PAIRS = [("start", "end"), ("least", "most"), ("hits", "shots"), ("share", "whole")]


def table(n=N, seed=0):
    """Dates of start and end, least and most, hits among shots, a share that often is the whole; and noise."""
    rng = np.random.default_rng(seed)
    start = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1500, n), unit="D")
    least, shots = np.round(rng.normal(10, 3, n), 1), rng.integers(0, 12, n)
    share = np.round(rng.lognormal(3, 1, n), 2)
    more = np.where(rng.random(n) < 0.3, 0, np.round(rng.lognormal(2, 1, n), 2))
    told = {"start": start, "end": start + pd.to_timedelta(rng.geometric(0.03, n) - 1, unit="D")}
    told |= {"least": least, "most": np.round(least + np.round(rng.exponential(2, n), 1), 1)}
    told |= {
        "shots": shots,
        "hits": rng.binomial(shots, 0.5),
        "share": share,
        "whole": np.round(share + more, 2),
    }
    return pd.DataFrame(told).assign(noise=rng.normal(size=n))


@pytest.fixture(scope="module")
def model():
    return CTEM(**TINY).fit(table())


def kept(X):
    return min((X[low] <= X[high]).mean() for low, high in PAIRS)


def test_orders_are_found_and_said(model):
    assert {(order.low, order.high) for order in model.schema_.orders} == set(PAIRS)
    assert all(order.broken == 0 for order in model.schema_.orders)
    reasons = {each.name: each.reason for each in model.schema_.describe()}
    assert reasons["start"].endswith("never above end")


def test_columns_that_do_not_touch_have_no_order():
    rng = np.random.default_rng(0)
    x = table()
    shuffled = pd.DataFrame({name: x[name].to_numpy()[rng.permutation(N)] for name in x})
    assert Schema.fit(read_frame(shuffled)).orders == ()
    near = rng.normal(size=N)
    alike = pd.DataFrame({"a": near, "b": near + 3 + rng.normal(0, 0.7, N), "c": near + 30})
    assert Schema.fit(read_frame(alike)).orders == ()


def test_drawn_imputed_and_conditioned_rows_keep_the_orders(model):
    assert kept(model.sample(600, random_state=0)) >= 0.99
    holed = table(300)
    holed.loc[:180, ["end", "most", "share"]] = None
    holed.loc[100:, ["start", "least"]] = None
    assert kept(model.impute(holed, random_state=0)) >= 0.99
    summer = pd.Timestamp("2020-03-01"), pd.Timestamp("2020-10-01")
    assert kept(model.sample(200, given={"end": summer, "least": (12, None)}, random_state=0)) >= 0.98


def test_an_order_that_is_broken_is_unlikely_but_not_impossible(model):
    X = table(seed=1).iloc[:200]
    broken = X.assign(end=X["start"] - pd.Timedelta(days=3))
    fine = X.assign(end=X["start"] + pd.Timedelta(days=3))
    scores = model.score_samples(broken), model.score_samples(fine)
    assert np.isfinite(scores[0]).all()
    assert np.median(scores[1] - scores[0]) > 4


def limited(share, seed=0, tied=True):
    """The densities of five rows with bounds: a half line, an interval, none, one far from all mass, contradictions."""
    generator, head, n = torch.Generator().manual_seed(seed), NumberHead(), 5
    made = {"generator": generator}
    found, mean = torch.randn(3, n, head.size, **made) / 2, torch.randn(n, **made)
    ends = torch.randn(n, 1, 1, **made) + torch.tensor([-0.1, 0.1])
    parts = TiedParts(torch.randn(3, n, 1, COEFFICIENTS, **made), torch.ones(n, 1, dtype=torch.bool), ends)
    plain = NumberDensity(head, found, mean, 0.1 + torch.rand(n, **made), parts if tied else None)
    low = torch.tensor([0.3, -0.5, -torch.inf, 7.5, 2.0])
    high = torch.tensor([torch.inf, 0.4, torch.inf, 7.9, 1.0])
    return plain.bounded(Bounds(low, high, torch.full((n,), share))), low, high


@pytest.mark.parametrize("share", [0.999, 0.6])
@pytest.mark.parametrize("tied", [True, False])
def test_densities_with_bounds_integrate_to_one_and_have_their_share_within(share, tied):
    density, low, high = limited(share, tied=tied)
    t = torch.linspace(-40, 40, 160_001, dtype=torch.float64).float().expand(5, -1)
    p = density.at(t).exp().double()
    assert (p.sum(1) * 5e-4).numpy() == pytest.approx(1, abs=4e-3)
    within = (p * ((t >= low[:, None]) & (t <= high[:, None]))).sum(1) * 5e-4
    assert within[:2].numpy() == pytest.approx(share, abs=4e-3)
    assert within[3].item() == pytest.approx(share, abs=4e-3)


def test_draws_follow_densities_with_bounds():
    density, *_ = limited(0.9)
    n, row = 4000, 1
    drawn = density.rows(torch.full((n,), row)).draw(torch.Generator().manual_seed(1)).double()
    t = torch.linspace(-8, 8, 160_001, dtype=torch.float64)
    below = density.rows(torch.tensor([row])).at(t.float()[None]).exp().double().cumsum(1)[0] * 1e-4
    at = torch.tensor([-2.0, -0.8, -0.4, 0.0, 0.3, 0.6, 1.5], dtype=torch.float64)
    expected = below[torch.searchsorted(t, at)].numpy()
    found = np.array([(drawn <= value).double().mean() for value in at])
    assert (np.abs(found - expected) < 4 * np.sqrt(expected * (1 - expected) / n) + 2e-3).all()


@pytest.mark.parametrize(
    "wrong", [{"low": "planet"}, {"high": "start"}, {"share": 1.0}, {"rows": 1.5}, {"broken": 10**7}]
)
def test_an_order_of_a_file_that_no_fit_could_write_is_refused(wrong, model):
    data = model.schema_.orders[0].to_json()
    assert KeptOrder.from_json(data, ["start", "end"]) == model.schema_.orders[0]
    with pytest.raises(ValueError, match="order"):
        KeptOrder.from_json({**data, **wrong}, ["start", "end"])


def test_a_saved_model_keeps_its_orders(model, tmp_path):
    model.save(tmp_path / "model.ctem")
    again = CTEM.load(tmp_path / "model.ctem")
    assert again.schema_.orders == model.schema_.orders
    assert (again.score_samples(table()) == model.score_samples(table())).all()


def boxes(n=N, seed=0):
    """An item has a length and is in a box no shorter; two parts add up to a total that has room."""
    rng = np.random.default_rng(seed)
    item, part, other = rng.integers(20, size=n), rng.integers(1, 60, n), rng.integers(1, 60, n)
    length = np.random.default_rng(9).integers(1, 30, 20)[item]
    told = {"item": [f"i{i}" for i in item], "length": length, "box": length + rng.geometric(0.1, n) - 1}
    told |= {"part": part, "other": other, "total": part + other}
    return pd.DataFrame(told).assign(room=part + other + rng.geometric(0.03, n) - 1)


def test_an_order_holds_where_a_rule_names_the_value_and_so_does_the_rule():
    """Whatever comes first: the fit is too short for networks to know which items fit into a box."""
    X = boxes()
    model = CTEM(**TINY | {"orders": 4}).fit(X)
    assert {("length", "box"), ("total", "room")} <= {(o.low, o.high) for o in model.schema_.orders}
    assert {"length", "total"} <= {rule.target for rule in model.schema_.rules if rule.leads}
    holed = X.astype({"length": float, "item": object})
    holed.loc[: N // 2, ["length", "item"]] = None
    given = model.sample(300, given={"box": (None, 20), "room": (None, 60)}, random_state=2)
    length, drawn = X.groupby("item")["length"].first(), model.sample(2000, random_state=1)
    for some, least in ((drawn, 0.99), (model.impute(holed, random_state=0), 0.99), (given, 0.95)):
        assert np.mean(some["length"] <= some["box"]) >= least
        assert np.mean(some["total"] <= some["room"]) >= least
        assert np.mean(some["length"] == some["item"].map(length)) >= least
        assert np.mean(some["total"] == some["part"] + some["other"]) >= least


def test_a_density_whose_rules_meet_orders_sums_to_one():
    rng = np.random.default_rng(0)
    item = rng.integers(5, size=600)
    length = np.array([1, 1, 2, 3, 3])[item]
    X = pd.DataFrame({"item": item, "length": length, "box": np.minimum(length + rng.integers(0, 3, 600), 3)})
    X["item"] = X["item"].map("abcde".__getitem__)
    model = CTEM(**TINY | {"orders": 6}, unknown="refuse").fit(X)
    assert model.schema_.rules
    assert [(order.low, order.high) for order in model.schema_.orders] == [("length", "box")]
    every = pd.DataFrame(itertools.product("abcde", (1, 2, 3), (1, 2, 3)), columns=list(X))
    p = np.exp(model.score_samples(every))
    assert p.sum() == pytest.approx(1, abs=1e-5)
    assert p[every["length"] <= every["box"]].sum() > 0.99
