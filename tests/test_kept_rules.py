"""Columns that follow from others: found, said, kept in drawn and imputed rows, and still one density."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open
from small import TINY

from ctem import CTEM, inspect
from ctem.tables.io.frame import read_frame
from ctem.tables.relations.kept_rules import KeptRule
from ctem.tables.schema import Schema

N, DRAWN, HOLED = 1500, 600, 200


def towns(rng, n):
    town = rng.integers(100, size=n) ** 2 // 100
    return {"town": [f"t{i}" for i in town], "state": [f"s{i // 6}" for i in town]}, (
        "state",
        "follows from town",
    )


def pairs_of_labels(rng, n):
    a, b = rng.integers(12, size=(2, n))
    told = {"from": [f"A{i}" for i in a], "to": [f"B{i}" for i in b]}
    return told, (a, b)


def airports(rng, n):
    told, at = pairs_of_labels(rng, n)
    return {**told, "miles": np.random.default_rng(9).integers(100, 3000, (12, 12))[at]}, (
        "miles",
        "follows from from and to",
    )


def seats(rng, n):
    told, (a, b) = pairs_of_labels(rng, n)
    return {**told, "class": [f"c{i}" for i in (7 * a + 5 * b) % 11]}, ("class", "follows from from and to")


def aliases(rng, n):
    code = rng.integers(40, size=n)
    return {"code": [f"k{i}" for i in code], "name": [f"n{i * 7 % 40}" for i in code]}, (
        "name",
        "follows from code",
    )


def prices(rng, n):
    item = rng.integers(50, size=n)
    price = np.round(np.random.default_rng(9).lognormal(3, 1, 50), 2)
    return {"item": [f"i{i}" for i in item], "price": price[item]}, ("price", "follows from item")


def postcodes(rng, n):
    place = rng.integers(80, size=n)
    code = 10_000 + 37 * np.random.default_rng(9).permutation(80)
    return {"postcode": code[place], "town": [f"t{i // 2}" for i in place]}, ("town", "follows from postcode")


def flags(rng, n):
    who = rng.choice(["man", "woman", "child"], n)
    return {"who": who, "adult_male": who == "man"}, ("adult_male", "follows from who")


def bands(rng, n):
    age = rng.integers(0, 100, n)
    band = np.array(["child", "young", "middle", "old"])[np.searchsorted([18, 40, 65], age, "right")]
    return {"age": age, "band": band}, ("band", "follows from age")


def clocks(rng, n):
    hour, minute = np.clip(rng.normal(13, 4, n), 0, 23).astype(int), rng.integers(60, size=n)
    return {"hour": hour, "minute": minute, "time": 100 * hour + minute}, ("time", "= 100 · hour + minute")


def months(rng, n):
    year, month = rng.integers(1990, 2020, n), rng.integers(1, 13, n)
    return {"date": 100 * year + month, "year": year, "month": month}, ("date", "= 100 · year + month")


def stamps(rng, n):
    minutes = pd.Series(rng.integers(0, 900 * 1440, n))
    return pd.Timestamp("2021-01-01") + pd.to_timedelta(minutes, unit="min")


def part(name):
    def made(rng, n):
        stamp = stamps(rng, n)
        if name == "year":
            stamp = stamp + pd.to_timedelta(365 * rng.integers(0, 40, n), unit="D")
        own = stamp.dt.day_name() if name == "weekday" else getattr(stamp.dt, name)
        words = "follows from weekday of stamp" if name == "weekday" else f"= {name} of stamp"
        return {"stamp": stamp, "own": own}, ("own", words)

    return made


def ages(rng, n):
    born = rng.integers(1930, 2005, n)
    return {"born": born, "age": 2024 - born}, ("age", "= −born + 2024")


def due_dates(rng, n):
    sold = stamps(rng, n).dt.normalize()
    return {"sold": sold, "due": sold + pd.Timedelta(days=30)}, ("due", "= sold + 30")


def copies(rng, n):
    x = np.round(rng.normal(size=n), 3)
    return {"x": x, "again": x}, ("again", "= x")


def units(rng, n):
    celsius = np.round(rng.normal(15, 8, n), 1)
    return {"celsius": celsius, "fahrenheit": np.round(1.8 * celsius + 32, 1)}, (
        "fahrenheit",
        "= 1.8 · celsius + 32",
    )


def amounts(rng, n):
    price, count = np.round(rng.lognormal(2, 1, n), 2), rng.integers(1, 20, n)
    told = {"price": price, "count": count, "amount": np.round(price * count, 2)}
    return told, ("amount", "= price · count")


def percents(rng, n):
    base, percent = rng.integers(100, 9999, n), rng.integers(1, 100, n)
    told = {"base": base, "percent": percent, "part": np.round(base * percent / 100, 2)}
    return told, ("part", "= 0.01 · base · percent")


def speeds(rng, n):
    km, hours = rng.integers(1, 900, n), rng.choice([3, 7, 9, 11, 13, 17, 19, 21, 23, 27], n)
    return {"km": km, "hours": hours, "speed": np.round(km / hours, 2)}, ("speed", "= km / hours")


def masses(rng, n):
    kg, m = np.round(rng.normal(75, 12, n), 1), np.round(rng.normal(1.72, 0.09, n), 2)
    return {"kg": kg, "m": m, "index": np.round(kg / m**2, 1)}, ("index", "= kg / m²")


def gross(rng, n):
    net = np.round(rng.lognormal(5, 1, n), 2)
    tax = np.round(net * rng.choice([0.07, 0.19], n), 2)
    return {"net": net, "tax": tax, "gross": np.round(net + tax, 2)}, ("gross", "= net + tax")


def totals(rng, n):
    part = rng.integers(0, 300, (4, n))
    told = {f"p{i}": part[i] for i in range(4)}
    return {**told, "total": part.sum(0)}, ("total", "= p0 + p1 + p2 + p3")


def wages(rng, n):
    wage = np.round(rng.lognormal(2, 0.5, n), 2)
    return {"wage": wage, "lwage": np.round(np.log(wage), 6)}, ("lwage", "= log of wage")


def years_squared(rng, n):
    years = np.minimum(rng.geometric(0.06, n), 60) - 1
    return {"years": years, "squared": years**2}, ("squared", "= square of years")


def sides(rng, n):
    area = np.round(rng.lognormal(3, 1, n), 1)
    return {"area": area, "side": np.round(np.sqrt(area), 4)}, ("side", "= square root of area")


def odds(rng, n):
    score = np.round(rng.normal(0, 1, n), 2)
    return {"score": score, "odds": np.round(np.exp(score), 4)}, ("odds", "= exponential of score")


def visits(rng, n):
    visits = rng.negative_binomial(1, 0.05, n)
    return {"visits": visits, "lvisits": np.round(np.log1p(visits), 5)}, ("lvisits", "= log1p of visits")


KINDS = {
    "label → label": towns,
    "one to one": aliases,
    "label → flag": flags,
    "labels → label": seats,
    "label → number": prices,
    "labels → number": airports,
    "number → label": postcodes,
    "number → band": bands,
    "clock time": clocks,
    "year and month": months,
    **{f"{name} of a stamp": part(name) for name in ("year", "month", "day", "weekday", "hour", "minute")},
    "constant offset": ages,
    "offset of dates": due_dates,
    "copy": copies,
    "units": units,
    "product": amounts,
    "percent": percents,
    "ratio": speeds,
    "ratio of a square": masses,
    "sum": gross,
    "sum of four": totals,
    "logarithm": wages,
    "square": years_squared,
    "square root": sides,
    "exponential": odds,
    "logarithm of counts": visits,
}
FITTED = [
    name for name in KINDS if name not in ("month of a stamp", "day of a stamp", "hour of a stamp", "copy")
]
QUICKLY = (
    "label → label",
    "labels → number",
    "number → band",
    "clock time",
    "product",
    "sum of four",
    "logarithm",
)


def some_long(kinds):
    """The kinds as parameters, of which the first tier has only a few."""
    return [kind if kind in QUICKLY else pytest.param(kind, marks=pytest.mark.long) for kind in kinds]


def table(kind, n=N, seed=0, broken=0.0):
    """Columns with a rule, what it is, and two columns that have nothing to do with it; the rule broken at random."""
    rng = np.random.default_rng(seed)
    told, rule = KINDS[kind](rng, n)
    X = pd.DataFrame(told)
    other = X[rule[0]].to_numpy()[rng.permutation(n)]
    X[rule[0]] = np.where(rng.random(n) < broken, other, X[rule[0]].to_numpy())
    return X.assign(noise=np.round(rng.normal(size=n), 2), kind=rng.choice(list("abc"), n)), rule


def keeps(kind, X):
    """Which rows of X keep the rule of a kind, told without the library: None for what the table never had."""
    known = table(kind)[0]
    target = table(kind)[1][0]
    if "follows" in table(kind)[1][1] and "stamp" not in X:
        keys = [name for name in known if name not in (target, "noise", "kind")]
        of = dict(zip(known[keys].itertuples(index=False, name=None), known[target], strict=True))
        if kind == "number → band":
            return X["band"].to_numpy() == bands_of(X["age"].to_numpy())
        rows = X[keys].itertuples(index=False, name=None)
        pairs = [(of.get(key), value) for key, value in zip(rows, X[target], strict=True)]
        return np.array([said == value for said, value in pairs if said is not None])
    return CHECKS.get(kind, part_kept(kind))(X)


def bands_of(age):
    return np.array(["child", "young", "middle", "old"])[np.searchsorted([18, 40, 65], age, "right")]


def part_kept(kind):
    name = kind.split()[0]

    def kept(X):
        own = X["stamp"].dt.day_name() if name == "weekday" else getattr(X["stamp"].dt, name)
        return (own == X["own"]).to_numpy()

    return kept


CHECKS = {
    "clock time": lambda X: X["time"] == 100 * X["hour"] + X["minute"],
    "year and month": lambda X: X["date"] == 100 * X["year"] + X["month"],
    "constant offset": lambda X: X["age"] == 2024 - X["born"],
    "offset of dates": lambda X: X["due"] - X["sold"] == pd.Timedelta(days=30),
    "copy": lambda X: X["x"] == X["again"],
    "units": lambda X: (X["fahrenheit"] - 1.8 * X["celsius"] - 32).abs() < 0.051,
    "product": lambda X: (X["amount"] - X["price"] * X["count"]).abs() < 0.0051,
    "percent": lambda X: (X["part"] - X["base"] * X["percent"] / 100).abs() < 0.0051,
    "ratio": lambda X: (X["speed"] - X["km"] / X["hours"]).abs() < 0.0051,
    "ratio of a square": lambda X: (X["index"] - X["kg"] / X["m"] ** 2).abs() < 0.051,
    "sum": lambda X: (X["gross"] - X["net"] - X["tax"]).abs() < 0.0051,
    "sum of four": lambda X: X["total"] == X[["p0", "p1", "p2", "p3"]].sum(axis=1),
    "logarithm": lambda X: (X["lwage"] - np.log(X["wage"])).abs() < 5.1e-7,
    "square": lambda X: X["squared"] == X["years"] ** 2,
    "square root": lambda X: (X["side"] - np.sqrt(X["area"])).abs() < 5.1e-5,
    "exponential": lambda X: (X["odds"] - np.exp(X["score"])).abs() < 5.1e-5,
    "logarithm of counts": lambda X: (X["lvisits"] - np.log1p(X["visits"])).abs() < 5.1e-6,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_rule_is_found_and_said(kind):
    X, (target, words) = table(kind)
    schema = Schema.fit(read_frame(X))
    found = [rule for rule in schema.rules if (rule.target, rule.formula()) == (target, words)]
    assert len(found) == 1
    assert found[0].broken == 0
    assert 1 - 2 / N < found[0].share < 1
    reason = {each.name: each.reason for each in schema.describe()}[target]
    assert f"{words} in all rows" in reason
    assert reason in [each.reason for each in inspect(X).columns]


@pytest.mark.parametrize("kind", some_long(KINDS))
def test_shuffled_columns_have_no_rule(kind):
    X = table(kind)[0]
    rng = np.random.default_rng(1)
    shuffled = pd.DataFrame({name: X[name].to_numpy()[rng.permutation(N)] for name in X})
    assert Schema.fit(read_frame(shuffled)).rules == ()


def test_columns_of_chance_have_no_rule():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        few = {f"c{size}": rng.integers(size, size=300) for size in (2, 3, 10, 60, 150, 290)}
        rare = {f"r{share}": (rng.random(300) < share).astype(int) for share in (0.005, 0.02, 0.5)}
        text = {f"t{size}": [f"v{i}" for i in rng.integers(size, size=300)] for size in (4, 20)}
        numbers = {f"n{i}": np.round(rng.normal(size=300), i) for i in range(4)}
        assert Schema.fit(read_frame(pd.DataFrame({**few, **rare, **text, **numbers}))).rules == ()


def test_columns_without_a_logarithm_or_any_number_are_no_trouble():
    rng = np.random.default_rng(0)
    cost = -np.round(rng.lognormal(2, 1, 300), 2)
    X = pd.DataFrame({"cost": cost, "squared": np.round(cost**2, 4), "gap": np.nan, "huge": 1e300 * cost})
    rules = {(rule.target, rule.formula()) for rule in Schema.fit(read_frame(X)).rules}
    assert ("squared", "= square of cost") in rules


def test_flags_of_a_year_follow_from_it_and_are_never_set_together():
    rng = np.random.default_rng(0)
    year = rng.integers(1987, 1990, 500)
    X = pd.DataFrame(
        {"year": year, "d88": (year == 1988) * 1, "d89": (year == 1989) * 1, "y": rng.normal(size=500)}
    )
    model = CTEM(**TINY | {"energy": None}).fit(X)
    assert {rule.target for rule in model.schema_.rules if rule.leads} == {"d88", "d89"}
    drawn = model.sample(2000, random_state=0)
    assert np.mean((drawn["d88"] == 1) & (drawn["d89"] == 1)) < 0.002
    assert np.mean((drawn["year"] == 1989) == (drawn["d89"] == 1)) > 0.995


def test_a_quotient_that_mostly_divides_by_nothing_is_no_rule():
    rng = np.random.default_rng(0)
    later, price = rng.random(900) < 0.5, rng.integers(100, 900, 900)
    then = np.where(later, price, np.round(1.3 * price + rng.normal(0, 90, 900)))
    X = pd.DataFrame({"price": price, "then": then, "later": later.astype(int)})
    assert not [rule for rule in Schema.fit(read_frame(X)).rules if "/" in rule.formula()]


def test_copied_rows_are_no_evidence():
    rng = np.random.default_rng(0)
    once = pd.DataFrame({f"c{i}": rng.integers(900, size=400) for i in range(4)})
    twice = pd.concat([once, once, once], ignore_index=True)
    assert Schema.fit(read_frame(twice)).rules == ()


TILTED = ("label → label", "sum of four")  # also drawn with an energy


@pytest.mark.parametrize("kind", some_long(FITTED))
def test_drawn_and_imputed_rows_keep_a_rule_that_all_rows_keep(kind):
    X, (target, _) = table(kind)
    model = CTEM(**TINY | {"energy": "trees" if kind in TILTED else None}).fit(X)
    drawn = keeps(kind, model.sample(DRAWN, random_state=1))
    assert len(drawn) > 0.9 * DRAWN  # rows of which the table says something
    assert np.mean(drawn) >= 0.99
    holed = X.astype({target: object}) if X[target].dtype.kind in "iub" else X.copy()
    holed.loc[: HOLED // 2, target] = pd.NaT if X[target].dtype.kind == "M" else None
    filled = model.impute(holed[:HOLED], random_state=0)
    assert np.mean(keeps(kind, filled.astype({target: X[target].dtype}))) >= 0.99


LONG = [pytest.param(kind, marks=pytest.mark.long) for kind in ("labels → number", "clock time", "product")]


@pytest.mark.parametrize("kind", ["label → label", "sum of four", *LONG])
def test_a_rule_that_some_rows_break_is_broken_as_often(kind):
    X, (target, words) = table(kind, n=3000, broken=0.03)
    share = np.mean(keeps(kind, X))
    model = CTEM(**TINY).fit(X)
    (rule,) = (each for each in model.schema_.rules if (each.target, each.formula()) == (target, words))
    assert rule.broken / rule.rows == pytest.approx(1 - share, abs=0.005)
    assert f"but in {rule.broken} rows" in rule.in_words()
    drawn = keeps(kind, model.sample(6000, random_state=1))
    stderr = np.sqrt(share * (1 - share) / 6000)
    assert np.mean(drawn) == pytest.approx(share, abs=0.01 + 2 * stderr)


def test_a_rule_that_networks_can_learn_is_theirs_where_it_is_broken():
    """A flag repeats another, but in two of five rows with a third one: one share for all rows would hide which."""
    rng = np.random.default_rng(0)
    first, third = rng.random(4000) < 0.5, rng.random(4000) < 0.1
    X = pd.DataFrame({"first": first, "third": third, "second": first ^ (third & (rng.random(4000) < 0.4))})
    assert not Schema.fit(read_frame(X)).rules
    assert any(rule.leads for rule in Schema.fit(read_frame(X.assign(second=first))).rules)
    model = CTEM(max_steps=300, width=32, blocks=1, members=1, random_state=0).fit(X)
    entropy = np.log(2) + bernoulli_entropy(0.1) + 0.1 * bernoulli_entropy(0.4)
    assert model.score(X) > -entropy - 0.05  # by the share of all rows: 0.1 lower


def test_an_order_of_flags_counts_the_rows_that_could_break_it_and_is_none_if_one_does():
    rng = np.random.default_rng(0)
    part = (rng.random(20_000) < 0.01).astype(int)
    X = pd.DataFrame({"part": part, "whole": part | (rng.random(20_000) < 0.3)})
    (order,) = Schema.fit(read_frame(X)).orders
    assert (order.low, order.high, order.rows) == ("part", "whole", part.sum())
    X.loc[np.flatnonzero(part)[0], "whole"] = 0
    assert not Schema.fit(read_frame(X)).orders


def bernoulli_entropy(p):
    return -p * np.log(p) - (1 - p) * np.log(1 - p)


def test_what_follows_says_where_it_can_come_from():
    X = table("label → label")[0]
    model = CTEM(**TINY).fit(X)
    state = dict(zip(X["town"], X["state"], strict=True))
    drawn = model.sample(1000, given={"state": "s3"}, random_state=0)
    assert np.mean([state[town] == "s3" for town in drawn["town"]]) >= 0.99
    found = model.conditional({"state": "s3"}, "town")
    likely = {value for value, p in zip(found.values, found.probability[0], strict=True) if p > 1e-3}
    assert likely == {town for town in state if state[town] == "s3"}


def test_the_density_with_rules_sums_to_one():
    rng = np.random.default_rng(0)
    a, b = rng.integers(4, size=(2, 400))
    X = pd.DataFrame({"a": [f"a{i}" for i in a], "b": b, "c": [f"c{i}" for i in (a + 2 * b) % 5], "d": 3 - b})
    X.loc[:7, "c"] = "c0"
    model = CTEM(**{**TINY, "orders": 3}, unknown="refuse").fit(X)
    assert {rule.target for rule in model.schema_.rules} >= {"c", "d"}
    every = pd.DataFrame(
        itertools.product(*(sorted(X[name].unique()) for name in X)), columns=list(X), index=None
    ).astype(X.dtypes)
    assert np.exp(model.score_samples(every)).sum() == pytest.approx(1, abs=1e-4)
    given = np.exp(model.log_density(every, columns=["a"], given=["b", "c", "d"]))
    each = pd.Series(given).groupby([every["b"], every["c"], every["d"]]).sum()
    assert np.allclose(each, 1, atol=1e-4)


def test_a_value_that_the_rule_never_saw_leaves_the_column_to_the_networks():
    X = table("labels → number")[0]
    seen = X[~((X["from"] == "A1") & (X["to"] == "B2"))]
    model = CTEM(**TINY).fit(seen)
    row = X[(X["from"] == "A1") & (X["to"] == "B2")].iloc[[0]]
    assert np.isfinite(model.score_samples(row)).all()
    spread = model.sample(300, given={"from": "A1", "to": "B2"}, random_state=0)["miles"]
    assert spread.nunique() > 100


def test_rules_can_be_forbidden():
    X = table("clock time")[0]
    schema = Schema.fit(read_frame(X), rules=["not time"])
    assert {rule.target for rule in schema.rules} == {"hour", "minute"}
    assert not any(formula.target == "time" for formula in schema.formulas)
    schema = Schema.fit(
        read_frame(X), rules=["not hour from time", "not minute from time", "not minute <= time"]
    )
    assert [rule.formula() for rule in schema.rules] == ["= 100 · hour + minute"]
    assert not any((order.low, order.high) == ("minute", "time") for order in schema.orders)


def test_rules_can_be_asked_for():
    rng = np.random.default_rng(0)
    town = rng.integers(12, size=200)
    X = pd.DataFrame({"town": [f"t{i}" for i in town], "kind": rng.choice(list("ab"), 200)})
    X["low"], X["high"] = np.round(rng.normal(0, 1, 200), 1), np.round(rng.normal(9, 1, 200), 1)
    assert Schema.fit(read_frame(X)).rules == ()
    model = CTEM(**TINY, rules=["kind from town", "low <= high"]).fit(X)
    assert [(rule.target, rule.columns) for rule in model.schema_.rules] == [("kind", ("town",))]
    assert [(order.low, order.high) for order in model.schema_.orders] == [("low", "high")]
    X["sum"] = X["low"] + X["high"]
    found = Schema.fit(read_frame(X), rules=["sum from low and high"]).rules
    assert ("sum", "= low + high") in [(rule.target, rule.formula()) for rule in found]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (["time"], "expected sentences such as"),
        ([7], "expected sentences such as"),
        ("time from hour", "expected sentences"),
        (["time from day"], "'day', which is not in the table"),
        (["time <= kind"], "two columns of numbers"),
        (["kind from noise, hour, time"], "names no value"),
    ],
)
def test_rules_that_make_no_sense_are_refused(said, words):
    with pytest.raises(ValueError, match=words):
        CTEM(**TINY, rules=said).fit(table("clock time", n=100)[0])


def test_a_saved_model_keeps_its_rules(tmp_path):
    X = table("clock time")[0]
    model = CTEM(**TINY).fit(X)
    model.save(tmp_path / "model.ctem")
    again = CTEM.load(tmp_path / "model.ctem")
    assert again.schema_.rules == model.schema_.rules
    assert (again.score_samples(X) == model.score_samples(X)).all()
    assert again.sample(100, random_state=3).equals(model.sample(100, random_state=3))
    with safe_open(tmp_path / "model.ctem", "pt") as file:
        header = json.loads(file.metadata()["model"])
    assert {rule["target"] for rule in header["schema"]["rules"]} == {"hour", "minute", "time"}


def test_rules_of_a_file_that_lead_in_a_circle_are_refused():
    schema = Schema.fit(read_frame(table("copy")[0])).to_json()
    assert Schema.from_json(schema).rules
    schema["rules"] = [{**rule, "leads": True} for rule in schema["rules"]]
    with pytest.raises(ValueError, match="cycle"):
        Schema.from_json(schema)


LOOKED_UP = next(
    rule for rule in Schema.fit(read_frame(table("label → label")[0])).rules if rule.target == "state"
).to_json()


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": "planet"},
        {"target": "town"},
        {"terms": [["planet", ""]]},
        {"terms": [["town", "century"]]},
        {"terms": [["town", ""], ["state", ""]]},
        {"share": 1.0},
        {"share": float("nan")},
        {"broken": 10**6},
        {"examples": [-1]},
        {"leads": 1},
        {"function": {**LOOKED_UP["function"], "form": "eval"}},
        {"function": {**LOOKED_UP["function"], "values": [1.0]}},
        {"function": {**LOOKED_UP["function"], "keys": [[0.0] * len(LOOKED_UP["function"]["values"])]}},
        {"function": {"form": "sum", "factors": [1.0, 2.0], "constant": 0.0}},
        {"function": {"form": "product", "powers": [9], "factor": 1.0}},
    ],
)
def test_a_rule_of_a_file_that_no_fit_could_write_is_refused(wrong):
    assert KeptRule.from_json(LOOKED_UP, ["town", "state"]).to_json() == LOOKED_UP
    with pytest.raises(ValueError, match="rule"):
        KeptRule.from_json({**LOOKED_UP, **wrong}, ["town", "state"])


@pytest.mark.parametrize(
    "kind", some_long(["label → label", "one to one", "label → flag", "labels → label", "number → band"])
)
def test_a_label_that_follows_from_others_is_certain_in_new_rows(kind):
    X, (target, _) = table(kind)
    model = CTEM(**TINY).fit(X)
    new = table(kind, n=400, seed=5)[0]
    known = [name for name in X if name not in (target, "noise", "kind")]
    assert model.log_density(new, columns=[target], given=known).mean() > np.log(0.98)


def test_a_rule_leaves_gaps_that_are_values_as_they_are():
    """A rule says which label, or number, a row has if it has one."""
    rng, n = np.random.default_rng(0), 2000
    city = rng.integers(0, 12, n)
    code = np.where(rng.random(n) < 0.3, np.nan, 10.0 * (city % 4))
    X = pd.DataFrame({"city": np.array([f"city {i}" for i in city]), "state": city // 3, "code": code})
    X["state"] = np.where(rng.random(n) < 0.2, None, np.array([f"state {i}" for i in X["state"]]))
    model = CTEM(**TINY, missing="state").fit(X)
    assert {rule.target for rule in model.schema_.rules} >= {"state", "code"}
    drawn = model.sample(4000, random_state=0)
    for name in ("state", "code"):
        assert drawn[name].isna().mean() == pytest.approx(X[name].isna().mean(), abs=0.06)
    both = drawn.dropna()
    assert (both["state"] == "state " + (both["city"].str[5:].astype(int) // 3).astype(str)).mean() > 0.95
