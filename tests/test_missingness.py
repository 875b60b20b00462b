"""Samples with holes as the data have them: as many, together, and where the other columns say."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from small import EXACT, TINY
from typer.testing import CliRunner

from ctem import CTEM, cli
from ctem.tables.answers.missingness import fit_missingness, gap_groups
from ctem.tables.io.frame import read_frame
from ctem.tables.schema import Schema
from tests.model_files import crafted

N = 2000
PLACES = ("north", "south", "east")
BY_PLACE = np.array([0.1, 0.5, 0.9])  # how often income is missing there


def table(n=N, seed=0):
    """Gaps that depend on a label, on a number, on other gaps and their values, and on nothing."""
    rng = np.random.default_rng(seed)
    place, age = rng.integers(3, size=n), rng.integers(18, 90, n)
    income = np.where(rng.random(n) < BY_PLACE[place], np.nan, rng.normal(30 + 10 * place, 5))
    again = rng.random(n) < 0.2
    return pd.DataFrame(
        {
            "place": np.array(PLACES)[place],
            "age": age,
            "income": income,
            "tax": np.where(np.isnan(income), np.nan, income / 3 + rng.normal(size=n)),  # missing with income
            "pension": np.where(age < 60, np.nan, rng.normal(15, 2, n)),  # missing by age
            "bonus": np.where(np.nan_to_num(income, nan=0) < 40, np.nan, rng.normal(5, 1, n)),  # by income
            "note": np.where(again, None, rng.choice(["a", "b"], n)),
            "flag": np.where(rng.random(n) < 0.3, np.nan, 1.0),  # one value
        }
    )


@pytest.fixture(scope="module")
def drawn():
    """The rows, and the same rows drawn without a hole, holed: nothing but the holes is random."""
    X = table()
    frame = read_frame(X)
    schema = Schema.fit(frame)
    made = fit_missingness(schema, frame, seed=0)
    whole = table(8000, seed=1)
    rng = np.random.default_rng(2)
    income = np.where(
        rng.random(8000) < 2, rng.normal(30 + 10 * pd.Categorical(whole["place"], PLACES).codes, 5), 0
    )
    filled = whole.assign(income=income, tax=income / 3, pension=15.0, bonus=5.0, note="a", flag=1.0)
    cells = read_frame(filled).columns
    holed = made.applied(frame.table_type, cells, torch.Generator().manual_seed(0))
    return X, filled, pd.DataFrame({name: each.missing for name, each in holed.items()}), made


def differ(found, truth, n, m):
    """Whether shares of n and m rows differ by more than four standard errors and two hundredths."""
    p = (found + truth) / 2
    return abs(found - truth) > 0.02 + 4 * np.sqrt(p * (1 - p) * (1 / n + 1 / m))


def test_columns_that_are_missing_together_share_a_decision():
    X = table()
    groups = gap_groups(Schema.fit(read_frame(X)), read_frame(X).columns)
    assert groups == (("note",), ("flag",), ("income", "tax"), ("pension",), ("bonus",))


def test_holes_are_as_many_as_in_the_data(drawn):
    X, _, holes, _ = drawn
    for name in X:
        assert not differ(holes[name].mean(), X[name].isna().mean(), len(holes), N), name
    assert not holes[["place", "age"]].to_numpy().any()


def test_holes_depend_on_labels_as_in_the_data(drawn):
    X, whole, holes, _ = drawn
    for place in PLACES:
        mine, theirs = whole["place"] == place, X["place"] == place
        found, truth = holes["income"][mine].mean(), X["income"][theirs].isna().mean()
        assert not differ(found, truth, mine.sum(), theirs.sum()), place


def test_holes_depend_on_numbers_as_in_the_data(drawn):
    _, whole, holes, _ = drawn
    old = whole["age"] >= 60
    assert holes["pension"][~old].mean() > 0.95
    assert holes["pension"][old].mean() < 0.05


def test_holes_depend_on_columns_that_have_holes_themselves(drawn):
    _, whole, holes, _ = drawn
    gone = holes["income"]
    assert holes["bonus"][gone].mean() > 0.97
    assert holes["bonus"][~gone & (whole["income"] < 38)].mean() > 0.9
    assert holes["bonus"][~gone & (whole["income"] > 42)].mean() < 0.1
    assert (holes["tax"] == gone).all()


@pytest.fixture(scope="module")
def model():
    return CTEM(**EXACT).fit(table(400))


def test_samples_have_holes_if_asked_and_the_same_cells_elsewhere(model):
    whole, holed = (model.sample(300, random_state=1, with_missing=flag) for flag in (False, True))
    assert not whole.isna().any().any()
    gone = holed.isna()
    assert gone[["income", "pension", "note"]].any().all()
    assert holed.where(~gone).equals(whole.where(~gone))
    assert holed.dtypes.equals(whole.dtypes)


def test_what_is_given_has_no_holes(model):
    for given in ({"income": (20, 60)}, {"income": 31.5}, pd.DataFrame({"income": [20.0, 31.5]})):
        drawn = model.sample(200, random_state=1, given=given, with_missing=True)
        assert not drawn["income"].isna().any()
        assert drawn["pension"].isna().any()


def test_a_loaded_model_makes_the_same_holes(model, tmp_path):
    model.save(tmp_path / "m.ctem")
    again = CTEM.load(tmp_path / "m.ctem")
    drawn = (each.sample(200, random_state=1, with_missing=True) for each in (model, again))
    assert next(drawn).equals(next(drawn))
    result = CliRunner().invoke(
        cli.app, ["sample", str(tmp_path / "m.ctem"), "-n", "50", "--seed", "1", "--with-missing"]
    )
    assert result.exit_code == 0, result.output
    assert any(",," in line for line in result.stdout.splitlines())


WRONG = {  # what is refused → a change of the header and the tensors
    "each column once": lambda header, tensors, _: header.update(missingness=[["income"], ["income"]]),
    "expected groups of columns": lambda header, tensors, _: header.update(missingness=[["who"]]),
    "missingness: expected groups": lambda header, tensors, _: header.update(missingness=[[]]),
    "not iterable": lambda header, tensors, _: header.update(missingness=7),
    "'log_table' is not there": lambda header, tensors, _: tensors.pop("gaps.log_table"),
    "inputs; got 1": lambda header, tensors, _: tensors.update({"gaps.first": torch.zeros(1, 10**6)}),
    "tensor 'odds': expected shape": lambda header, tensors, _: tensors.update({"gaps.odds": torch.zeros(3)}),
}


@pytest.mark.parametrize("words", WRONG)
def test_a_file_with_a_wrong_account_of_gaps_is_refused(model, tmp_path, words):
    model.save(tmp_path / "m.ctem")
    crafted(tmp_path / "m.ctem", tmp_path / "m.ctem", WRONG[words])
    with pytest.raises(ValueError, match=words):
        CTEM.load(tmp_path / "m.ctem")


def test_tables_without_gaps_and_models_of_missing_as_a_state_take_the_word_too():
    X = table(300)[["place", "age", "income"]]
    whole = CTEM(**TINY).fit(X[["place", "age"]])
    assert not whole.sample(50, with_missing=True).isna().any().any()
    state = CTEM(**TINY, missing="state").fit(X)
    assert state.sample(300, random_state=0, with_missing=True)["income"].isna().any()


def test_other_libraries_get_their_own_gaps():
    drawn = CTEM(**TINY).fit(pl.from_pandas(table(300))).sample(200, random_state=0, with_missing=True)
    assert drawn["income"].null_count() > 0
    assert drawn["place"].null_count() == 0


def test_rows_of_weight_zero_say_nothing_about_gaps():
    X = table(400)
    X.loc[200:, "age"] = 30
    weight = np.r_[np.ones(200), np.zeros(200)]
    gone = X.assign(age=np.where(np.arange(400) < 200, X["age"], np.nan))
    drawn = CTEM(**TINY).fit(gone, sample_weight=weight).sample(100, random_state=0, with_missing=True)
    assert not drawn["age"].isna().any()


def test_the_same_seed_makes_the_same_holes():
    frame = read_frame(table(200))
    schema = Schema.fit(frame)
    nets = [fit_missingness(schema, frame, seed=3).net for _ in range(2)]
    pairs = zip(nets[0].parameters(), nets[1].parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
