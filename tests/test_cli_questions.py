"""The command line's questions: conditions, marginals, draws; the API's answers."""

import io
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from small import SMALL
from test_cli import ctem, rows, table

from ctem import CTEM
from ctem.densities.anyorder import Settings
from ctem.densities.anyorder.objective import HiddenColumns
from ctem.report.findings import examine
from ctem.report.privacy import audit
from ctem.tables.answers.realism import realism

CITY = 'Røros, "the" old'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    X = rows()
    X.to_csv(folder / "t.csv", index=False)
    CTEM(**SMALL).fit(X).save(folder / "m.ctem")
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return CTEM.load(folder / "m.ctem", "cpu")


@pytest.mark.parametrize(
    ("said", "given"),
    [
        (["rain=0.5..2"], {"rain": (0.5, 2)}),
        (["rain=..1", f"city=Oslo|{CITY}"], {"rain": (None, 1), "city": ["Oslo", CITY]}),
        (["rooms=1|3..4"], {"rooms": [1, (3, 4)]}),
        (
            ["born=2000-03-01..2001-01-31", "smoker=true"],
            {"born": ("2000-03-01", "2001-01-31"), "smoker": True},
        ),
        (["city=Oslo"], {"city": "Oslo"}),
    ],
    ids=str,
)
def test_rows_of_a_condition_are_those_of_the_api(folder, model, said, given):
    flags = [part for each in said for part in ("--given", each)]
    out, err = ctem("sample", folder / "m.ctem", "-n", 30, "--seed", 5, *flags)
    expected = model.sample(30, random_state=np.random.RandomState(5), given=given)
    found = table(out).to_pandas()
    assert found["rain"].to_numpy() == pytest.approx(expected["rain"].to_numpy(), rel=1e-12)
    assert found["city"].tolist() == expected["city"].tolist()
    assert ("effective draws" in err) == (said != ["city=Oslo"])


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("age=3", "expected NAME=CONDITION, with a NAME of city, rooms, rain, born, smoker; got 'age=3'"),
        ("rain>3", "Conditions are written as age=30..40, age=30.., city=Oslo or city=Oslo|Bergen"),
        ("rain=wet", "--given rain=wet: expected a number, low..high, low.., ..high or a|b; got 'wet'"),
        ("born=soon", "expected a date such as 2020-12-31"),
        ("smoker=perhaps", "expected true or false"),
        ("city=Paris", "column 'city' holds 'Paris' in row 0, not seen in fit"),
        ("rain=900..1000", "column 'rain' has no value in (900.0, 1000.0); nearly all are between"),
        ("rain=2..1", "column 'rain': expected low ≤ high"),
    ],
)
def test_a_condition_that_cannot_be_is_one_line(folder, said, message):
    code = 2 if said in ("age=3", "rain>3") else 1
    _, err = ctem("sample", folder / "m.ctem", "--given", said, code=code)
    assert message in " ".join(err.replace("│", " ").split())


def test_one_condition_for_a_column(folder):
    _, err = ctem("sample", folder / "m.ctem", "-g", "rooms=1", "-g", "rooms=2", code=2)
    assert "two conditions" in err


def test_scores_of_some_columns_given_others_are_log_densities(folder, model):
    out, _ = ctem("score", folder / "m.ctem", folder / "t.csv", "--columns", "city", "--given", "rain", "-q")
    assert np.array_equal(table(out)["log_density"].to_numpy(), model.log_density(rows(), ["city"], ["rain"]))


def test_draws_are_several_tables_with_their_number(folder, model):
    out, _ = ctem("impute", folder / "m.ctem", folder / "t.csv", "--draws", 3, "--seed", 1, "-q")
    found = table(out).to_pandas()
    assert found["draw"].value_counts().to_dict() == dict.fromkeys(range(3), len(rows()))
    assert found["city"].notna().all()
    first, second = (found[found["draw"] == k].drop(columns="draw").reset_index(drop=True) for k in (0, 1))
    known = rows()["rain"].notna().to_numpy()
    assert first["rain"][known].equals(second["rain"][known])
    assert not first["rain"][~known].equals(second["rain"][~known])
    expected = model.impute(rows(), n_draws=3, random_state=np.random.RandomState(1))[0]
    assert pd.Series.equals(expected["city"].astype(str), first["city"].astype(str))
    ctem("impute", folder / "m.ctem", folder / "t.csv", "--draws", 2, "--method", "mean", code=1)


def test_privacy_is_the_audit_of_the_api(folder, model):
    out, _ = ctem("privacy", folder / "m.ctem", folder / "t.csv", "--json", "--seed", 4, "-q")
    found = audit(model, rows(), random_state=4)
    assert json.loads(out)["attack"] == pytest.approx(found.attack, abs=1e-3)
    out, _ = ctem("privacy", folder / "m.ctem", folder / "t.csv", "--seed", 4, "-q")
    assert "membership by likelihood ratio, AUC" in out
    assert ("ALARM" in out) == bool(found.alarms())
    others = folder / "others.csv"
    rows(seed=9).to_csv(others, index=False)
    out, _ = ctem("privacy", folder / "m.ctem", folder / "t.csv", "--holdout", others, "-q")
    assert "150 held-out rows" in out
    _, err = ctem("privacy", folder / "m.ctem", others, code=1)
    assert "holdout: expected rows that were not in the fit" in err


@pytest.mark.parametrize("text", ["city,n\n" + "Røros,1\n" * 9, "størrelse,n\n1,2\n"], ids=["cell", "name"])
def test_text_of_an_older_encoding_is_told_how_to_be_read(tmp_path, text):
    (tmp_path / "old.csv").write_bytes(text.encode("latin-1"))
    _, err = ctem("fit", tmp_path / "old.csv", "-o", tmp_path / "m.ctem", code=1)
    assert "--encoding ISO-8859-1" in " ".join(err.split())


@pytest.mark.filterwarnings("default:training was interrupted:UserWarning")
def test_an_interrupted_fit_leaves_its_best_model_and_mentions_resume(folder, tmp_path, monkeypatch):
    steps, calls = HiddenColumns.__call__, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 14:
            raise KeyboardInterrupt
        return steps(self, *arguments)

    settings = Settings(width=8, blocks=1, members=2, orders=2, steps=40, batch_size=32, evaluate_every=5)
    monkeypatch.setattr(Settings, "suited", lambda *sizes, **more: settings)
    monkeypatch.setattr(HiddenColumns, "__call__", interrupted)
    fit = ["fit", folder / "t.csv", "-o", tmp_path / "m.ctem", "--device", "cpu"]
    _, err = ctem(*fit, code=130)
    assert "m.ctem holds what was learned so far: held-out rows" in err
    assert "--resume" in err
    assert np.isfinite(CTEM.load(tmp_path / "m.ctem", "cpu").score(rows()))
    _, err = ctem(*fit, "--resume", "-q")
    assert not list(tmp_path.glob("*.checkpoint*"))


def test_a_fit_that_was_interrupted_before_anything_was_learned_is_none(monkeypatch):
    def interrupted(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(HiddenColumns, "__call__", interrupted)
    model = CTEM(**SMALL)
    with pytest.raises(KeyboardInterrupt):
        model.fit(rows())
    for ask in (model.score_samples, model.sample, model.outliers, model.predict, model.p_values):
        with pytest.raises(NotFittedError):
            ask(rows())


def test_one_column_is_written_in_a_list(model):
    with pytest.raises(ValueError, match=r"columns: expected a list of columns; write columns=\['rain'\]"):
        model.log_density(rows(), columns="rain")
    with pytest.raises(ValueError, match=r"given: expected a list of columns.*; write given=\['rain'\]"):
        model.log_density(rows(), columns=["city"], given={"rain": (1, 2)})


def test_fit_and_info_end_with_how_good_the_model_is(folder, model, monkeypatch):
    out, _ = ctem("info", folder / "m.ctem")
    held = model.held_out_
    word = "worse" if held.gain < 0 else "better"
    gain = f"{abs(held.gain):.2f} ± {held.stderr:.2f} {word}"
    said = f"held-out rows {held.log_density:.2f} nats, {gain} than independent"
    assert said in " ".join(out.split())
    assert held.realism is None  # only the command looks
    settings = Settings(width=8, blocks=1, members=2, orders=2, steps=5, batch_size=32, evaluate_every=5)
    monkeypatch.setattr(Settings, "suited", lambda *sizes, **more: settings)
    _, err = ctem("fit", folder / "t.csv", "-o", folder / "again.ctem", "--max-steps", 5, "--device", "cpu")
    again = CTEM.load(folder / "again.ctem", "cpu").held_out_
    assert all(f"ctem: {part}\n" in err for part in str(again).split("; "))
    assert str(again).endswith(f"({again.realism.ceiling:.2f})".replace("(", "(real rows themselves: "))


def test_samples_of_a_model_pass_better_than_independent_columns():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 1))
    X = np.column_stack([x, 2 * x + 0.3 * rng.normal(size=(300, 1))])
    model = CTEM(**{**SMALL, "max_steps": 100}).fit(X)
    found = model.realism(X, random_state=0)
    real, mixed = (np.float32(rows) for rows in (X, np.column_stack([X[:, 0], rng.permutation(X[:, 1])])))
    assert realism(real, mixed).samples < found.samples <= 1
    assert found.ceiling > 0.7
    assert model.realism(X[:20]) is None


def test_gaps_alone_do_not_tell_samples_from_real_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    X[rng.random(300) < 0.6, 1] = np.nan
    model = CTEM(**{**SMALL, "max_steps": 100}).fit(X)
    assert model.realism(X, random_state=0).samples > 0.6  # samples without gaps have 0.4 at most
    assert (
        model.realism(X[~np.isnan(X[:, 1])], random_state=0).samples > 0.6
    )  # and with gaps, beside whole rows
    assert examine(model, X, None, 300, seed=0).realism.samples > 0.6


@pytest.mark.parametrize("flags", [["-n", 5], ["--alpha", 0.05], ["--alpha", 0.05, "-n", 2]], ids=str)
@pytest.mark.parametrize("X", [rows(), rows(60, seed=7)], ids=["the table of the fit", "new rows"])
def test_outliers_and_their_p_values_are_those_of_the_api(folder, model, tmp_path, X, flags):
    X.to_csv(tmp_path / "t.csv", index=False)
    names = {"-n": "n", "--alpha": "alpha"}
    asked = {names[flag]: value for flag, value in zip(flags[::2], flags[1::2], strict=True)}
    out, _ = ctem("outliers", folder / "m.ctem", tmp_path / "t.csv", *flags, "-q")
    found, expected = table(out), model.outliers(X, **asked)
    assert found["row"].to_pylist() == [each.row for each in expected]
    assert found["p_value"].to_pylist() == pytest.approx([each.p_value for each in expected], rel=0.005)


def test_help_and_version_wait_for_no_library():
    script = (
        "import ctem.cli, sys; sys.exit(any(name in sys.modules for name in ('torch', 'sklearn', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_every_name_of_the_package_is_there_when_it_is_asked_for():
    import ctem as package

    assert all(getattr(package, name) is not None for name in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="module 'ctem' has no attribute 'CETM'"):
        _ = package.CETM


@pytest.mark.filterwarnings("ignore:fitted on 80 rows")
def test_conditions_may_be_written_as_the_column_is(tmp_path):
    days = pd.date_range("2022-01-01", periods=80, freq="5D").strftime("%m/%d/%Y")
    X = pd.DataFrame({"price": [f"${1000 + 50 * (7 * i % 80):,}.00" for i in range(80)], "when": days})
    model = CTEM(**SMALL).fit(X)
    model.save(tmp_path / "m.ctem")
    asked = ["--given", "price=$1,500..$3,000.00", "--given", "when=06/15/2022..2022-12-31"]
    out, said = ctem("sample", tmp_path / "m.ctem", "-n", 20, "--seed", 1, *asked)
    found = pd.read_csv(io.StringIO(out))
    price = found["price"].str.replace(r"[$,]", "", regex=True).astype(float)
    when = pd.to_datetime(found["when"], format="%m/%d/%Y")
    assert len(found) == 20
    assert price.between(1500, 3000).all()
    assert when.between("2022-06-15", "2022-12-31").all()
    assert "--given: probability" in said
