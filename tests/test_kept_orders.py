"""Columns that are never above others: found, kept in drawn, imputed and conditioned rows, and still one density."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from small import TINY

from ctem import CTEM
from ctem.densities.anyorder import AnyOrderDensity
from ctem.densities.anyorder.conditionals import NumberDensity
from ctem.densities.anyorder.limits import Bounds
from ctem.densities.anyorder.numbers import NumberHead
from ctem.densities.anyorder.rules import Within, keep_labels
from ctem.densities.anyorder.ties import COEFFICIENTS, TiedParts
from ctem.tables.answers.density import TableDensity
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
    assert kept(model.sample(50, given={"end": summer, "least": (12, None)}, random_state=0)) >= 0.98


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


@pytest.mark.parametrize("share", [0.999, pytest.param(0.6, marks=pytest.mark.long), 0.001])
@pytest.mark.parametrize("tied", [True, False])
def test_densities_with_bounds_integrate_to_one_and_leave_of_what_is_beyond_what_the_share_does(share, tied):
    density, low, high = limited(share, tied=tied)
    tail = torch.linspace(9, 40, 1001, dtype=torch.float64)
    t = torch.cat([-tail.flip(0), torch.linspace(-9, 9, 36_001, dtype=torch.float64)[1:-1], tail])
    width = torch.cat([t.diff().new_zeros(1), t.diff()]) / 2 + torch.cat([t.diff(), t.new_zeros(1)]) / 2
    t = t.float().expand(5, -1)
    p, plain = (each.at(t).exp().double() * width for each in (density, replace(density, limits=None)))
    assert p.sum(1).numpy() == pytest.approx(1, abs=4e-3)
    allowed = (t >= low[:, None]) & (t <= high[:, None])
    within, before = ((each * allowed).sum(1) for each in (p, plain))
    for row in (0, 1, 3):
        assert within[row].item() == pytest.approx(1 - (1 - share) * (1 - before[row].item()), abs=4e-3)
    assert (before[:2] > 0.001).all()  # so that there the networks know more than the least share


@pytest.mark.parametrize("share", [0.9, 0.001])
def test_draws_follow_densities_with_bounds(share):
    density, *_ = limited(share)
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
    given = model.sample(60, given={"box": (None, 20), "room": (None, 60)}, random_state=2)
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


def test_drawn_rows_keep_orders_of_a_coarse_column_and_a_fine_one_and_at_the_end_of_a_column():
    """A loan is a multiple of 25, at most 4000, and what was paid of it is to the cent: often all of it, never more."""
    rng, n = np.random.default_rng(0), 2000
    loan = np.minimum(25 * rng.integers(8, 240, n), 4000)
    paid = np.where(rng.random(n) < 0.2, loan, np.round(loan * rng.beta(3, 1, n), 2))
    model = CTEM(**TINY).fit(pd.DataFrame({"paid": paid, "loan": loan}))
    assert [(order.low, order.high) for order in model.schema_.orders] == [("paid", "loan")]
    first, then = model.schema_.owner
    for order in ([*first, *then], [*then, *first]):
        density = TableDensity(model.schema_, model.density_.altered(orders=[list(order)]))
        drawn = density.sample(3000, torch.Generator().manual_seed(0))
        assert np.mean(drawn["paid"].values > drawn["loan"].values) < 0.002


def test_a_discount_that_is_mostly_nothing_stays_nothing_beside_prices_in_coarser_steps():
    """What is paid is the price, in steps of 4 cents, less the discount, to the cent; it is never above the price."""
    rng, n = np.random.default_rng(0), 800
    price = np.round(1.69 + 0.04 * rng.integers(0, 16, n), 2)
    discount = np.where(rng.random(n) < 0.7, 0.0, np.round(0.01 * rng.integers(1, 60, n), 2))
    X = pd.DataFrame({"price": price, "discount": discount, "paid": np.round(price - discount, 2)})
    model = CTEM(**TINY).fit(X)
    assert ("paid", "price") in {(order.low, order.high) for order in model.schema_.orders}
    imputed = model.impute(X.assign(discount=np.nan), random_state=0)
    assert np.mean(imputed["discount"] == discount) > 0.95


def test_codes_that_an_order_allows_never_lose_mass():
    generator = torch.Generator().manual_seed(0)
    log_p = (3 * torch.randn(500, 6, generator=generator)).log_softmax(1)
    allowed, share = torch.rand(500, 6, generator=generator) < 0.5, torch.rand(500, generator=generator)
    kept = keep_labels(log_p, [], None, Within(allowed, share)).exp()
    ruled = keep_labels(log_p, [Within(allowed, share)], None).exp()
    before, after, by_rules = ((p * allowed).sum(1) for p in (log_p.exp(), kept, ruled))
    some = allowed.any(1) & ~allowed.all(1)
    assert kept.sum(1).numpy() == pytest.approx(1, abs=1e-5)
    assert after[some].numpy() == pytest.approx((1 - (1 - before) * (1 - share))[some].numpy(), abs=1e-5)
    assert by_rules[some].numpy() == pytest.approx(torch.maximum(before, share)[some].numpy(), abs=1e-5)


@pytest.mark.parametrize("rule", [False, True])
def test_no_code_is_impossible_or_undefined_where_rounded_probabilities_of_what_is_allowed_sum_to_more_than_one(
    rule,
):
    generator = torch.Generator().manual_seed(0)
    log_p = (20 * torch.randn(500, 40, generator=generator)).sort(1, descending=True)[0].log_softmax(1)
    within = Within((torch.arange(40) < 30).expand(500, 40), torch.full((500,), 0.999))
    assert ((log_p.double().exp() * within.allowed).sum(1) > 1).any()
    kept = keep_labels(log_p, [within], None) if rule else keep_labels(log_p, [], None, within)
    assert kept.isfinite().all()
    assert kept.double().exp().sum(1).numpy() == pytest.approx(1, abs=1e-5)


def test_no_row_that_an_order_allows_is_less_likely_with_it():
    """Thirty rows have a part; none of them lacks the whole, of which a short fit knows more than thirty rows tell."""
    rng, n = np.random.default_rng(0), 3000
    part = np.arange(n) < 30
    X = pd.DataFrame({"part": part, "whole": part | (rng.random(n) < 0.3)}).astype(int)
    model = CTEM(**TINY, unknown="refuse").fit(X)
    (order,) = model.schema_.orders
    assert (order.low, order.high, order.broken) == ("part", "whole", 0)
    every = pd.DataFrame(itertools.product((0, 1), (0, 1)), columns=list(X))
    frame, made = read_frame(every), model.density_.altered(orders=[[1, 0]])
    plain = AnyOrderDensity(made.net, made.level, made.orders, parents=made.parents, late=made.chain.late)
    ordered = TableDensity(model.schema_, made)
    unordered = TableDensity(replace(model.schema_, orders=()), plain)
    with_order, without = (np.exp(density.log_prob(frame)) for density in (ordered, unordered))
    assert with_order.sum() == pytest.approx(1, abs=1e-5)
    broken = every["part"] > every["whole"]
    assert (with_order >= without - 1e-9)[~broken].all()
    assert with_order[broken] <= without[broken] + 1e-9
