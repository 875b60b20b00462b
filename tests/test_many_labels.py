"""A column of more labels than a network has codes for, in a table that tells something of them: counts of pairs do."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from small import EXACT, SMALL

from ctem import CTEM
from ctem.densities.anyorder.apart import MOST_APART, placed, slots_of
from ctem.report.explorer import why_not
from ctem.tables.io.frame import read_frame
from ctem.tables.relations.label_pairs import PairIndex
from ctem.tables.schema import Schema

ROWS, TOWNS, AREAS = 2000, 600, 12


def towns(noise=0.0, seed=0):
    """Towns by Zipf's law, each in an area, but for a share of rows whose area is any; and a column beside them."""
    home = np.random.default_rng(9).integers(AREAS, size=TOWNS)
    rng, p = np.random.default_rng(seed), 1 / np.arange(1, TOWNS + 1)
    town = rng.choice(TOWNS, ROWS, p=p / p.sum())
    area = np.where(rng.random(ROWS) < noise, rng.integers(AREAS, size=ROWS), home[town])
    names = np.array([f"town {i:03d}" for i in range(TOWNS)])
    areas = np.array([f"area {i:02d}" for i in range(AREAS)])
    far = np.where(rng.random(ROWS) < 0.3, "y", "n")
    return pd.DataFrame({"town": names[town], "area": areas[area], "far": far})


@pytest.fixture(scope="module")
def certain():
    X = towns()
    return X, CTEM(**EXACT).fit(X)


@pytest.fixture(scope="module")
def likely():
    X = towns(noise=0.3)
    return X, CTEM(**EXACT).fit(X)


def rare_of(X, model):
    codec = model.schema_.columns["town"].codec
    shared = {label for label, code in zip(codec.values, codec.codes, strict=True) if code == 0}
    return X[X["town"].isin(shared)].drop_duplicates("town").reset_index(drop=True)


def test_every_slot_has_an_encoded_number_of_its_own():
    slot = torch.cat(
        [torch.arange(0, MOST_APART, 997), torch.tensor([MOST_APART - 1, MOST_APART, MOST_APART + 200])]
    )
    number = placed(slot, MOST_APART)
    assert number.dtype == torch.float32
    assert torch.equal(slots_of(number, MOST_APART), slot)
    assert int(slots_of(torch.zeros(1), 5)) == -1


def test_the_back_off_is_none_where_labels_say_all_and_whole_where_they_say_nothing():
    rng = np.random.default_rng(0)
    key = np.repeat(np.arange(200), 5)
    for other, low, high in ((key % 7, 0.0, 0.02), (rng.integers(7, size=1000), 50.0, np.inf)):
        pairs, counts = np.unique(key * 7 + other, return_counts=True)
        index = PairIndex(pairs // 7, pairs % 7, counts, 200, 7)
        found = index.back_off(np.full(len(pairs), 1 / 7))
        assert low <= found.strength <= high


def test_pairs_are_counted_where_columns_tell_of_each_other_and_nowhere_else():
    X = towns(noise=0.5)
    pairs = Schema.fit(read_frame(X)).pairs
    assert [(pair.column, pair.partner) for pair in pairs] == [("town", "area")]
    assert sum(pairs[0].counts) == len(X)
    shuffled = X.assign(town=np.random.default_rng(1).permutation(X["town"]))
    assert Schema.fit(read_frame(shuffled)).pairs == ()


def test_labels_that_are_mostly_seen_once_tell_nothing_of_a_column_that_hardly_varies():
    rng = np.random.default_rng(0)
    label = np.where(rng.random(4000) < 0.5, rng.integers(400, size=4000), np.arange(400, 4400))
    X = pd.DataFrame(
        {"title": [f"t{i}" for i in label], "liens": np.where(rng.random(4000) < 0.02, "some", "none")}
    )
    schema = Schema.fit(read_frame(X))
    assert schema.columns["title"].kind == "category"
    assert schema.pairs == ()


def test_a_table_that_streams_counts_the_rows_of_its_sample(tmp_path):
    X = pd.concat([towns(seed=seed) for seed in range(20)], ignore_index=True)
    X.to_parquet(tmp_path / "towns.parquet")
    model = CTEM(**EXACT).fit(tmp_path / "towns.parquet", memory="6MB")
    (pair,) = model.schema_.pairs
    assert sum(pair.counts) < len(X)
    home = dict(zip(X["town"], X["area"], strict=True))
    drawn = model.sample(1000, random_state=0).to_pandas()
    assert (
        np.mean([home[town] == area for town, area in zip(drawn["town"], drawn["area"], strict=True)]) >= 0.97
    )


def test_what_is_decoded_is_what_was_encoded():
    frame = read_frame(towns())
    schema = Schema.fit(frame)
    x = schema.encode(frame).x
    assert bool((x[:, 0] % 1 > 0).any())
    drawn = schema.decode(x, torch.Generator().manual_seed(0))
    assert drawn["town"].to_list() == frame.columns["town"].to_list()
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again.pairs == schema.pairs
    assert torch.equal(again.encode(frame).x, x)


@pytest.mark.parametrize(
    "change",
    [
        {"partner": "nowhere"},
        {"partner": "town"},
        {"column": "area"},
        {"labels": [0, 10**6]},
        {"values": [0, 12]},
        {"counts": [0, 1]},
        {"counts": [1.5, 1]},
        {"labels": [1, 1], "values": [2, 2]},
        {"counts": [1]},
        {"gain": float("nan")},
        {"gain": -1.0},
    ],
)
def test_counts_that_no_table_has_are_refused(change):
    data = Schema.fit(read_frame(towns())).to_json()
    short = {"labels": [0, 1], "values": [0, 1], "counts": [1, 2]}
    data["pairs"] = [data["pairs"][0] | short]
    Schema.from_json(data)
    data["pairs"] = [data["pairs"][0] | change]
    with pytest.raises(ValueError, match="schema: "):
        Schema.from_json(data)


def test_only_labels_that_share_the_first_code_are_told_apart():
    data = Schema.fit(read_frame(towns())).to_json()
    codec = data["columns"][1]["codec"]
    with pytest.raises(ValueError, match="keep apart"):
        Schema.from_json(
            data | {"columns": [data["columns"][0], data["columns"][1] | {"codec": codec | {"apart": True}}]}
        )


@pytest.mark.parametrize("which", ["certain", "likely"])
def test_the_rows_of_all_labels_have_probability_one(which, request):
    X, model = request.getfixturevalue(which)
    names = [sorted(set(X[name])) for name in X]
    every = pd.MultiIndex.from_product(names, names=list(X)).to_frame(index=False)
    kept = [column.codec.reserve for column in model.schema_.columns.values()]
    assert np.exp(model.score_samples(every)).sum() == pytest.approx(np.prod(1 - np.array(kept)), abs=1e-5)


def test_conditionals_of_labels_add_up_and_agree_with_the_density(likely):
    X, model = likely
    rows = X[:20]
    p = model.predict_proba(rows, "town")
    assert p.sum(1) == pytest.approx(1)
    at = [model.classes("town").index(label) for label in rows["town"]]
    alone = model.log_density(rows[["town", "area", "far"]], columns=["town"], given=["area", "far"])
    kept = model.schema_.columns["town"].codec.reserve
    assert np.log(p[np.arange(20), at] * (1 - kept)) == pytest.approx(alone, abs=1e-4)


def test_drawn_pairs_are_possible(certain):
    X, model = certain
    home = dict(zip(X["town"], X["area"], strict=True))
    drawn = model.sample(4000, random_state=0)
    assert (
        np.mean([home[town] == area for town, area in zip(drawn["town"], drawn["area"], strict=True)]) >= 0.97
    )
    filled = model.impute(X.assign(town=None), random_state=0)
    assert (
        np.mean([home[town] == area for town, area in zip(filled["town"], filled["area"], strict=True)])
        >= 0.97
    )
    rare = rare_of(X, model)
    back = model.impute(rare.assign(area=None), random_state=0)
    assert (back["area"] == rare["area"]).mean() >= 0.97


def test_the_group_of_a_label_is_that_of_its_rows(certain):
    X, model = certain
    rare = rare_of(X, model)
    p = model.predict_proba(rare.assign(far=None), "area")
    at = [model.classes("area").index(area) for area in rare["area"]]
    assert p[np.arange(len(rare)), at] == pytest.approx(1, abs=0.02)
    found = model.probability({"area": rare["area"][0]}, given={"town": rare["town"][0]})
    assert found.value == pytest.approx(1, abs=0.02)


def test_labels_of_a_set_are_drawn_with_what_they_were_seen_with(likely):
    X, model = likely
    rare = rare_of(X, model)
    some = rare["town"][:3].tolist()
    drawn = model.sample(400, given={"town": some}, random_state=0)
    assert set(drawn["town"]) == set(some)
    before = pd.crosstab(X["town"], X["area"], normalize="index").loc[some]
    most = before.idxmax(axis=1)
    assert np.mean([most[t] == a for t, a in zip(drawn["town"], drawn["area"], strict=True)]) > 0.3
    area = rare["area"][0]
    both = model.probability({"town": some}, given={"area": area})
    each = sum(model.probability({"town": town}, given={"area": area}).value for town in some)
    assert both.value == pytest.approx(each, rel=0.1)


def test_new_rows_are_as_likely_as_counts_with_the_best_back_off_say(likely):
    """P(area | town) and P(town | area) of rare towns, by a network that has learned next to nothing."""
    X, model = likely
    new = towns(noise=0.3, seed=1)
    rare = new[new["town"].isin(rare_of(X, model)["town"])]
    before = X[X["town"].isin(rare_of(X, model)["town"])]
    for asked, given in (("area", "town"), ("town", "area")):
        ours = np.log(_probability(model, rare, asked, given))
        strengths = np.geomspace(0.01, 1000, 30)
        best = max(strengths, key=lambda each: _by_counts(before, before, asked, given, each, 1))
        counts = _by_counts(before, rare, asked, given, best)
        if asked == "town":
            ours -= np.log(
                model.predict_proba(rare.assign(far=None), "town")[:, _places(model, before)].sum(1)
            )
        assert ours.mean() > counts - 0.02


def _places(model, before):
    return [model.classes("town").index(town) for town in sorted(set(before["town"]))]


def _probability(model, rows, asked, given):
    p = model.predict_proba(rows.assign(far=None, **{asked: None})[list(rows)], asked)
    return p[np.arange(len(rows)), [model.classes(asked).index(value) for value in rows[asked]]]


def _by_counts(before, rows, asked, given, strength, left_out=0):
    """Mean log of Dirichlet's estimate; with ``left_out``, of rows that are among those before."""
    both = rows.set_index([given, asked]).index.map(before.groupby([given, asked]).size()).fillna(0)
    own, other = (rows[name].map(before[name].value_counts()) - left_out for name in (given, asked))
    known = (other > 0).to_numpy()
    share = other / (len(before) - left_out)
    p = (both.to_numpy() - left_out + strength * share) / (own + strength)
    return np.log(p[known]).mean()


def test_a_file_keeps_what_was_counted(likely, tmp_path):
    X, model = likely
    model.save(tmp_path / "towns.ctem")
    again = CTEM.load(tmp_path / "towns.ctem")
    assert np.array_equal(again.score_samples(X[:100]), model.score_samples(X[:100]))
    assert again.sample(50, random_state=3).equals(model.sample(50, random_state=3))


def test_an_energy_sees_codes_alone():
    X = towns(noise=0.3)
    model = CTEM(**SMALL).fit(X)
    assert np.isfinite(model.score_samples(X[:50])).all()
    assert len(model.sample(100, random_state=0)) == 100


def test_labels_with_gaps_and_missing_as_a_state():
    X = towns(noise=0.3)
    X.loc[::7, "town"], X.loc[::5, "area"] = None, None
    model = CTEM(**EXACT, missing="state").fit(X)
    assert model.schema_.pairs
    p = model.predict_proba(X[:10], "town")
    assert p.sum(1) == pytest.approx(1)
    assert model.sample(200, random_state=0)["town"].isna().any()


def test_a_page_that_does_not_know_the_counts_has_no_explorer(certain):
    _, model = certain
    assert model.schema_.pairs
    assert "counts of pairs" in why_not(model)
