"""Columns that repeat others or add up: found, learned, drawn and filled in exactly, and still one density."""

import numpy as np
import pandas as pd
import pytest
import torch

from ctem import CTEM, inspect
from ctem.densities.anyorder.ties import COEFFICIENTS, TiedParts
from ctem.tables.io.frame import read_frame
from ctem.tables.schema import Schema
from tests.small import SMALL, TINY

N = 600
LEARNED = {**SMALL, "max_steps": 300, "width": 32, "batch_size": 128}


def bills(n=N, seed=0):
    """A payment is the bill in two rows of five; the total is bill and fee in nine of ten, the fee often none."""
    rng = np.random.default_rng(seed)
    bill = np.round(rng.lognormal(7, 1, n))
    pay = np.where(rng.random(n) < 0.4, bill, np.round(bill * rng.random(n)))
    fee = np.where(rng.random(n) < 0.5, 0.0, np.round(rng.lognormal(4, 1, n)))
    total = np.where(rng.random(n) < 0.9, bill + fee, np.round(rng.lognormal(7, 1, n)))
    return pd.DataFrame(
        {"bill": bill, "pay": pay, "fee": fee, "total": total, "kind": rng.choice(["a", "b"], n)}
    )


@pytest.fixture(scope="module")
def model():
    return CTEM(**LEARNED).fit(bills())


def test_formulas_are_found_in_both_directions_and_said():
    schema = Schema.fit(read_frame(bills()))
    found = {(f.target, f.terms) for f in schema.formulas if f.share}
    assert {("pay", (("bill", 1),)), ("bill", (("pay", 1),))} <= found
    assert {("total", (("bill", 1), ("fee", 1))), ("fee", (("total", 1), ("bill", -1)))} <= found
    assert "= bill + fee in 9" in schema.describe()[3].reason


def test_inspect_says_what_a_fit_would_find():
    reasons = {each.name: each.reason for each in inspect(bills()).columns}
    assert {each.name: each.reason for each in Schema.fit(read_frame(bills())).describe()} == reasons
    assert "= bill + fee in 9" in reasons["total"]


def test_a_row_of_large_amounts_that_add_up_is_strange_for_its_amounts(model):
    large = pd.DataFrame({"bill": [90_000.0], "pay": 90_000.0, "fee": 3000.0, "total": 93_000.0, "kind": "a"})
    (strange,) = model.outliers(large, 1)
    first = strange.cells[0]
    assert first.name in {"bill", "pay", "total"}
    assert first.p_value < 0.05
    assert any(cell.alone for cell in strange.cells)
    assert strange.why().startswith(f"{first.name} 9")


def test_rows_are_not_strange_for_missing_a_formula_that_many_rows_miss(model):
    X = bills(seed=1)
    paid = (X["pay"] == X["bill"]).to_numpy()
    denser = np.median(model.score_samples(X)[paid]) - np.median(model.score_samples(X)[~paid])
    stranger = np.median(model.outlier_scores(X)[~paid]) - np.median(model.outlier_scores(X)[paid])
    assert denser > 4  # the cell is narrow
    assert abs(stranger) < 2


def test_a_missing_cell_of_a_formula_adds_what_it_would_on_average(model):
    X = bills(300, seed=2)
    without = X.assign(pay=np.nan)
    full = [
        model.outlier_scores(model.impute(without, random_state=seed), by_column=True) for seed in range(4)
    ]
    pay = list(X.columns).index("pay")
    expected = np.asarray(full)[..., pay].mean()
    assert np.asarray(model.outlier_scores(without, by_column=True))[:, pay].mean() == pytest.approx(
        expected, abs=0.6
    )


def test_shuffled_columns_have_none():
    rng = np.random.default_rng(1)
    X = bills(2000).apply(lambda column: rng.permutation(column.to_numpy()))
    assert Schema.fit(read_frame(X)).formulas == ()


def test_copied_rows_make_no_formula():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(150, 1)) + rng.normal(size=(150, 12))
    assert Schema.fit(read_frame(np.repeat(rows, 3, axis=0))).formulas == ()


def test_a_value_that_many_rows_share_makes_no_formula():
    rng = np.random.default_rng(2)
    X = np.round(rng.lognormal(7, 1, (2000, 2)))
    X[:300] = 55.0
    assert Schema.fit(read_frame(X)).formulas == ()


def test_one_value_where_a_ratio_is_defined_makes_no_formula():
    """With a flag of 0 and 1 below, any number that is constant where the flag is 1 is a ratio there."""
    rng = np.random.default_rng(0)
    level = rng.integers(1, 5, N)
    usual = np.where(rng.random(N) < 0.5, 10.5, np.round(rng.gamma(20, 0.5, N), 1))
    years = np.where(level == 2, 12.0, usual)
    X = pd.DataFrame({"level": level, "second": (level == 2).astype(int), "years": years})
    assert not any(f.terms for f in Schema.fit(read_frame(X)).formulas)
    assert "level" not in Schema.fit(read_frame(X)).describe()[2].reason


def test_a_formula_is_told_in_short_numbers_with_the_constant_that_they_leave():
    rng = np.random.default_rng(0)
    year, age = rng.choice([66, 67, 68, 69, 70, 71, 73], N), rng.integers(16, 31, N)
    later = age - year + np.where(year < 73, 80, 81)
    X = pd.DataFrame({"year": year, "age": age, "later": later})
    assert "= age − 0.9 · year + 73.2 in all rows" in Schema.fit(read_frame(X)).describe()[2].reason


def test_dates_that_repeat_others_are_tied():
    rng = np.random.default_rng(3)
    made = np.datetime64("2020-01-01") + rng.integers(0, 1500, N).astype("m8[D]")
    sent = np.where(rng.random(N) < 0.5, made, made + rng.integers(1, 300, N).astype("m8[D]"))
    schema = Schema.fit(read_frame(pd.DataFrame({"made": made, "sent": sent})))
    assert ("sent", (("made", 1),)) in {(f.target, f.terms) for f in schema.formulas}


@pytest.mark.long
def test_a_streamed_table_has_the_same_formulas(tmp_path):
    """A sketch adds to each column what its sample missed, so that columns differ in length."""
    X = bills(25_000)
    X.to_parquet(tmp_path / "bills.parquet")
    model = CTEM(**TINY).fit(tmp_path / "bills.parquet", memory="9MB")
    found = {(f.target, f.terms) for f in model.schema_.formulas}
    assert found == {(f.target, f.terms) for f in Schema.fit(read_frame(X)).formulas}
    assert np.isfinite(model.score(X))


def test_samples_hold_the_formulas_as_often_as_the_table(model):
    drawn = model.sample(2000, random_state=0)
    for X, tolerance in ((bills(), 0.0), (drawn, 0.12)):
        assert abs((X["pay"] == X["bill"]).mean() - 0.4) < 0.03 + tolerance
        assert abs((X["total"] == X["bill"] + X["fee"]).mean() - 0.9) < 0.03 + tolerance


def test_a_missing_total_is_filled_in_to_the_last_digit(model):
    X = bills(200, seed=9).iloc[:, :4].assign(kind="a")
    gaps = X.assign(total=np.nan)
    filled = model.impute(gaps, random_state=0)
    assert (filled["total"] == X["bill"] + X["fee"]).mean() > 0.75


def test_the_classes_of_a_number_are_one_list_whatever_rows_are_asked(model):
    X = bills(50, seed=3)
    for rows in (X, X[:1], {"bill": 1234.0, "fee": 56.0}):
        p = model.predict_proba(rows, "total")
        assert p.shape == (1 if isinstance(rows, dict) else len(rows), len(model.classes("total")))
        assert np.allclose(p.sum(1), 1)
    known = model.conditional(X, "total")
    assert len(known.values) > len(model.classes("total"))
    values, p = np.array(model.classes("total")), model.predict_proba(X, "total")
    order = np.argsort(values)
    middle = values[order][(p[:, order].cumsum(1) < 0.5).sum(1)]
    assert np.abs(middle / known.quantile(0.5) - 1).max() < 0.05  # a point moves to the nearest node


def test_a_conditional_answers_in_numpy_and_plain_values(model):
    known = model.conditional(bills(3, seed=3), "total")
    for found in (known.mean(), known.mode(), known.typical(), known.quantile(0.9), known.std()):
        assert isinstance(found, np.ndarray)
        assert found.shape == (3,)
    assert f"{known.quantile(0.9)[0]:.0f}".isdigit()
    assert np.all(known.p_values(known.quantile(0.5)) > 0.3)
    several = known.quantile([0.1, 0.9])
    assert np.array_equal(several, np.stack([known.quantile(0.1), known.quantile(0.9)], axis=1))
    for wrong in (90, [0.1, -1.0], "half"):
        with pytest.raises(ValueError, match="share: expected numbers between 0 and 1"):
            known.quantile(wrong)


def test_a_conditional_has_the_value_of_a_formula_to_the_last_digit(model):
    found = model.conditional({"bill": 1234.0, "fee": 56.0}, "total")
    drawn = model.sample(4000, given={"bill": 1234.0, "fee": 56.0}, random_state=0)["total"]
    assert found.mode().tolist() == found.quantile(0.5).tolist() == [1290.0]
    assert found.probability.sum() == pytest.approx(1.0)
    share = found.probability[0, np.array(found.values) == 1290.0].sum()
    assert (
        abs(share - (drawn == 1290.0).mean()) < 0.15
    )  # drawn rows are whole ones: the others are drawn, too
    X = bills(100, seed=8)
    assert (model.impute(X.assign(total=np.nan), method="mode")["total"] == X["bill"] + X["fee"]).all()


def test_every_conditional_of_a_tied_column_sums_to_one(model):
    x = model.schema_.encode(model.as_frame(bills(6, seed=4))).x
    for j in model.schema_.ties.targets:
        visible = ~x.isnan()
        visible[:, j] = False
        with torch.no_grad():
            found = model.density_.chain.conditionals.given(x.nan_to_num(), visible, j)
            ends = found.tied.ends.nan_to_num()
            grid = torch.linspace(-8, 8, 40_001).expand(len(x), -1)
            inside = (
                ends[..., :1] + (ends[..., 1:] - ends[..., :1]) * torch.linspace(-0.01, 1.01, 401)
            ).flatten(1)
            nodes = torch.cat([grid, inside], 1).double().sort(1).values
            p = found.at(nodes.float()).double().exp()
            total = torch.trapezoid(p, nodes, dim=1)
        assert total.tolist() == pytest.approx([1.0] * len(x), abs=0.02)


def test_draws_of_a_tied_column_follow_its_density(model):
    x = model.schema_.encode(model.as_frame(bills(1, seed=5))).x
    j = model.schema_.ties.targets[-1]
    visible = ~x.isnan()
    visible[:, j] = False
    with torch.no_grad():
        found = model.density_.chain.conditionals.given(x.nan_to_num(), visible, j)
        drawn = found.rows(torch.zeros(20_000, dtype=torch.long)).draw(torch.Generator().manual_seed(0))
        nodes, log_p = found.table()
    p = log_p[0].double().softmax(0)
    width = float(nodes[1] - nodes[0])
    counts = torch.histc(
        drawn.double(), len(nodes), float(nodes[0]) - width / 2, float(nodes[-1]) + width / 2
    )
    coarse = (counts / counts.sum() - p).view(-1, 41).sum(1).abs()
    assert float(coarse.max()) < 0.02


def test_a_saved_model_answers_the_same(model, tmp_path):
    model.save(tmp_path / "model.ctem")
    again, X = CTEM.load(tmp_path / "model.ctem"), bills(50, seed=6)
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    assert again.sample(20, random_state=1).equals(model.sample(20, random_state=1))
    assert again.schema_.formulas == model.schema_.formulas


def test_a_probability_of_a_range_agrees_with_counting(model):
    drawn = model.sample(20_000, random_state=3)
    share = ((drawn["pay"] > 500) & (drawn["pay"] < 1500)).mean()
    found = model.probability({"pay": (500, 1500)})
    assert abs(found.value - share) < 0.02


def test_what_is_not_known_has_no_part():
    parts = TiedParts(
        torch.zeros(1, 2, 1, COEFFICIENTS),
        torch.zeros(2, 1, dtype=torch.bool),
        torch.full((2, 1, 2), torch.nan),
    )
    log_p = torch.tensor([[-1.0, -2.0]])
    assert parts.log_prob(log_p, torch.zeros(2), torch.zeros(2)).tolist() == log_p.tolist()


@pytest.mark.parametrize(
    "formula",
    [
        ["total", [["bill", 2]], 0.5],
        ["total", [["total", 1]], 0.5],
        ["total", [["kind", 1]], 0.5],
        ["total", [], 0.5],
        ["total", [["bill", 1]], 1.5],
        ["total", [["bill", -1]], 0.5],
        "total",
    ],
)
def test_a_made_up_formula_is_refused(formula):
    data = Schema.fit(read_frame(bills(100))).to_json()
    with pytest.raises(ValueError, match="schema"):
        Schema.from_json({**data, "formulas": [formula]})


@pytest.fixture(scope="module")
def continuous():
    """A copy in four of five rows, and a sum in all, of numbers without any rounding."""
    rng = np.random.default_rng(0)
    a, c = rng.normal(100, 3.7, N), rng.normal(size=N)
    b = np.where(rng.random(N) < 0.8, a, rng.normal(100, 3.7, N))
    X = pd.DataFrame({"a": a, "b": b, "c": c, "d": a + c})
    return X, CTEM(**LEARNED).fit(X)


def test_copies_and_sums_of_continuous_numbers_are_drawn_to_the_last_digit(continuous):
    X, model = continuous
    drawn = model.sample(2000, random_state=0)
    share = (X["a"] == X["b"]).mean()
    spread = np.sqrt(share * (1 - share) * (1 / 2000 + 1 / N))
    assert abs((drawn["a"] == drawn["b"]).mean() - share) < 4 * spread + 0.02
    assert (drawn["d"] == drawn["a"] + drawn["c"]).mean() > 0.98
    some = model.sample(500, random_state=0, given={"a": (100, None)})
    assert (some["a"] == some["b"]).mean() > 0.6
    assert some["a"].min() >= 100


def test_copies_and_sums_of_continuous_numbers_are_filled_in_to_the_last_digit(continuous):
    X, model = continuous
    gaps = X.copy()
    gaps.loc[:299, "b"] = np.nan
    gaps.loc[300:, "d"] = np.nan
    filled = model.impute(gaps, random_state=0)
    share = (X["a"] == X["b"]).mean()
    assert (
        abs((filled["a"] == filled["b"])[:300].mean() - share) < 4 * np.sqrt(share * (1 - share) / 300) + 0.02
    )
    assert (filled["d"] == filled["a"] + filled["c"])[300:].mean() > 0.98
    seen = gaps.notna()
    assert np.array_equal(filled.to_numpy()[seen], gaps.to_numpy()[seen])


def test_probabilities_of_a_sum_with_gaps_add_up_to_one_and_agree_with_draws():
    """A total of two columns, with gaps: an event and its opposite, and what draws count."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(5, 2, 150).round(2), rng.normal(3, 1, 150).round(2)
    X = pd.DataFrame({"a": a, "b": b, "total": (a + b).round(2)})
    X = X.mask(rng.random(X.shape) < 0.1)
    model = CTEM(**SMALL).fit(X)
    assert model.schema_.formulas or model.schema_.rules
    cut = float(X["total"].median())
    below = model.probability({"total": (None, cut)})
    above = model.probability({"total": (round(cut + 0.01, 2), None)})
    assert abs(below.value + above.value - 1) < 3 * np.hypot(below.stderr, above.stderr)
    drawn = model.sample(4000, random_state=1)["total"]
    share = (drawn <= cut).mean()
    assert abs(below.value - share) < 3 * np.hypot(below.stderr, 0.5 / 4000**0.5)
