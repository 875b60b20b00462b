"""Model files with a right hash that no fit could have written are refused, and every model of a fit loads."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from ctem import CTEM
from ctem.persistence.models.consistency import check_columns
from ctem.spaces import Real
from ctem.tables.io.frame import read_frame
from ctem.tables.schema import Schema
from tests.hostile.mutations import impossible, possible
from tests.model_files import crafted, parts, put
from tests.small import TINY

N = 200


def table():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "price": [f"${v:,.2f}" for v in rng.lognormal(6, 1, N)],
            "share": rng.beta(0.5, 0.5, N),
            "city": rng.choice(["Oslo", "Bergen", "Røros"], N),
            "born": pd.Timestamp("2000-01-01") + pd.to_timedelta(rng.integers(0, 900, N), unit="D"),
        }
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "m.ctem"
    CTEM(**TINY, kinds={"share": Real(low=0.0, high=1.0)}).fit(table()).save(path)
    return path


def codec(header, name):
    return next(each["codec"] for each in header["schema"]["columns"] if each["name"] == name)


def field(header, name):
    return next(each for each in header["kind"]["fields"] if each["name"] == name)


def smooth(header, name):
    """The innermost map of a column."""
    found = codec(header, name)["transform"]
    while "inner" in found:
        found = found["inner"]
    return found


TEXT = {"pandas": "object", "object": "str", "nan": False}
CRAFTED = {
    "nothing": None,
    "an extra tensor": lambda h, t, m: t.update({"note": torch.zeros(3)}),
    "an extra tensor of the gaps": lambda h, t, m: t.update({"gaps.first": torch.zeros(3)}),
    "a number among text labels": lambda h, t, m: codec(h, "city").update(values=["Bergen", 7, "Røros"]),
    "numbers for text labels": lambda h, t, m: codec(h, "city").update(values=[1, 2, 3]),
    "money that is not written": lambda h, t, m: field(h, "price").update(written=None),
    "dates that are text": lambda h, t, m: field(h, "born").update(dtype=TEXT),
    "numbers that are dates": lambda h, t, m: field(h, "share").update(dtype={"pandas": "datetime64[ns]"}),
    "labels that are numbers": lambda h, t, m: field(h, "city").update(dtype={"pandas": "int64"}),
    "seconds of hundreds of digits": lambda h, t, m: h["history"].update(seconds=10**400),
    "no ends": lambda h, t, m: codec(h, "share")["transform"].update(low=None, high=None),
    "a scale below all numbers": lambda h, t, m: smooth(h, "price").update(scale=1e-320),
    "a version in other digits": lambda h, t, m: m.update(version="".join(chr(0x660 + int(d)) for d in m["version"])),
    "a version with a zero": lambda h, t, m: m.update(version=f"0{m['version']}"),
}  # fmt: skip


@pytest.mark.parametrize("name", CRAFTED)
def test_what_no_fit_could_have_written_is_refused(whole, tmp_path, name):
    change = CRAFTED[name] or (lambda *parts: None)
    crafted(whole, tmp_path / "made.ctem", change)
    if name == "nothing":
        assert np.isfinite(CTEM.load(tmp_path / "made.ctem").score_samples(table())).all()
        return
    with pytest.raises(ValueError, match=r"^load: "):
        CTEM.load(tmp_path / "made.ctem")


@pytest.fixture(scope="module")
def many_kinds(tmp_path_factory):
    """A model of a table with sums, gaps, atoms, moments, a wall clock, rounded and listed numbers."""
    rng, X = np.random.default_rng(0), table()
    a, b = rng.gamma(2, 1, (2, N)).round(2)
    X = X.assign(a=a, b=b, total=a + b, rain=np.where(rng.random(N) < 0.4, 0.0, rng.lognormal(0, 1, N)))
    X = X.assign(gap=np.where(rng.random(N) < 0.2, np.nan, rng.normal(size=N)), count=rng.poisson(3, N))
    hours = 24 * rng.integers(0, 300, N) + 8 + 10 * rng.beta(2, 2, N)
    at = pd.Timestamp("2023-01-02") + pd.Series(pd.to_timedelta(hours, unit="h")).dt.floor("min")
    X = X.assign(ordered=at.dt.tz_localize("Europe/Oslo"))
    path = tmp_path_factory.mktemp("models") / "many.ctem"
    CTEM(**TINY, kinds={"share": Real(low=0.0, high=1.0)}).fit(X).save(path)
    return path


SOME, FEW, MANY = 300, 40, 300  # changes that are made; of those that are impossible the long tests make all


def changes(kind, path, count):
    """All changes of a kind of the header of a file, or so many of them."""
    every = kind(json.loads(parts(path)[1]["model"]))
    assert len(every) > 3000  # no two are the same
    chosen = np.random.default_rng(0).permutation(len(every))[:count]
    return [every[k] for k in chosen]


@pytest.mark.parametrize("count", [SOME, pytest.param(None, marks=pytest.mark.long)])
def test_of_all_changes_of_a_header_none_is_accepted_that_no_fit_could_have_written(
    many_kinds, tmp_path, count
):
    accepted, path = [], tmp_path / "made.ctem"
    for place, value in changes(impossible, many_kinds, count):
        crafted(many_kinds, path, lambda h, t, m, at=place, new=value: put(h, at, new))
        if accepts(path):
            accepted.append((place, repr(value)[:40]))
    assert not accepted


@pytest.mark.filterwarnings("ignore")  # that X has names, and the model none, is an answer
@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_a_header_that_another_fit_may_have_written_is_refused_or_its_model_answers(
    many_kinds, tmp_path, count
):
    X, unanswered, path = CTEM.load(many_kinds).sample(5, random_state=0), [], tmp_path / "made.ctem"
    for place, value in changes(possible, many_kinds, count):
        crafted(many_kinds, path, lambda h, t, m, at=place, new=value: put(h, at, new))
        if accepts(path) and (reason := unanswering(CTEM.load(path), X)):
            unanswered.append((place, repr(value)[:40], reason))
    assert not unanswered


def accepts(path):
    """Whether a file is loaded; what it is refused with is one line that names it."""
    try:
        CTEM.load(path)
    except ValueError as error:
        refusal = str(error)
    else:
        return True
    assert refusal.startswith(f"load: {path}")
    assert "\n" not in refusal
    return False


def unanswering(model, X):
    """What a model does not answer by numbers or by an error that names a column; nothing if it does."""
    asked = {
        "scores": lambda: model.score_samples(X),
        "scores of draws": lambda: model.score_samples(model.sample(3, random_state=0)),
        "facts": lambda: len(json.dumps(model.describe())) + len(repr(model)),
    }
    for name, ask in asked.items():
        try:
            if not np.isfinite(ask()).all():
                return f"{name} that are no numbers"
        except (ValueError, TypeError) as error:
            if not str(error).startswith(("X: ", "column ", "columns: ")):
                return f"{name}: {error!r}"
    return ""


def tables():
    """Tables of every library and dtype that a fit takes."""
    X = table()
    many = X.assign(
        ordered=pd.Categorical(X["city"], ordered=True),
        coded=pd.Categorical(np.arange(N) % 3),
        cut=pd.cut(X["share"], 3),
        flag=X["share"] > 0.5,
        flags=(X["share"] > 0.4).map({True: "True", False: "False"}),
        nullable=pd.array(np.arange(N) % 50, dtype="Int64"),
        span=pd.to_timedelta(np.arange(N), unit="h"),
        zoned=X["born"].dt.tz_localize("Asia/Tokyo"),
        clock=[f"{k % 24:02d}:30" for k in range(N)],
        one=7,
        none=pd.Series([None] * N, dtype=object),
        code=np.where(np.arange(N) % 9, np.arange(N), -999),
    )
    yield "pandas", many
    yield "arrow types in pandas", many.drop(columns=["cut", "none"]).convert_dtypes(dtype_backend="pyarrow")
    plain = many.drop(columns=["cut", "coded"])
    yield "polars", pl.from_pandas(plain)
    yield "arrow", pa.Table.from_pandas(plain)
    yield "numbers", X[["share"]].to_numpy()
    yield "objects", X[["price", "share", "city"]].to_numpy(object)
    yield "text", X[["price", "city"]].to_numpy(str)
    yield "days", X[["born"]].to_numpy("M8[D]")


@pytest.mark.parametrize("case", list(tables()), ids=lambda case: case[0])
@pytest.mark.parametrize("missing", ["hidden", pytest.param("state", marks=pytest.mark.long)])
def test_every_model_of_a_fit_loads(tmp_path, case, missing):
    _, X = case
    model = CTEM(**TINY, missing=missing).fit(X)
    model.save(tmp_path / "m.ctem")
    assert np.array_equal(CTEM.load(tmp_path / "m.ctem").score_samples(X), model.score_samples(X))


def columns(rng):
    """Columns of many shapes: heavy tails, few values, codes, steps, huge and tiny, of one sign, moments."""
    n = int(rng.integers(3, 400))
    scale, place = 10.0 ** rng.uniform(-30, 30), rng.choice([0.0, 1.0, -1e6, 1e15])
    shapes = (
        lambda: rng.normal(size=n),
        lambda: rng.standard_t(1, size=n),
        lambda: np.exp(rng.normal(size=n) * 20),
        lambda: rng.beta(0.1, 0.1, size=n),
        lambda: np.round(rng.normal(size=n), int(rng.integers(4))),
        lambda: np.where(rng.random(n) < 0.3, -999.0, rng.normal(size=n)),
        lambda: np.where(rng.random(n) < 0.9, 0.0, rng.exponential(size=n)),
        lambda: rng.integers(0, 10 ** int(rng.integers(1, 15)), size=n).astype(float),
        lambda: np.where(np.arange(n) == 0, 1e30, rng.normal(size=n)),
        lambda: np.arange(n) ** 3.0,
        lambda: np.clip(rng.normal(size=n), -1.0, 0.5),
    )
    values = shapes[int(rng.integers(len(shapes)))]()
    kind = int(rng.integers(5))
    if kind == 0:
        return (place * scale + values * scale)[:, None]
    if kind == 1:
        return np.clip(np.nan_to_num(values * 1e3), -(2**62), 2**62).astype(np.int64)[:, None]
    if kind == 2:
        spread = np.clip(np.nan_to_num(values * 1e5), -(10**10), 10**10).astype(np.int64)
        return spread.astype(f"M8[{rng.choice(['D', 's', 'ns']) if np.abs(spread).max() < 10**6 else 's'}]")[
            :, None
        ]
    if kind == 3:
        return (np.clip(values, -1e6, 1e6).astype(np.int64).astype(np.uint64))[:, None]
    return values[:, None]


@pytest.mark.parametrize("count", [60, pytest.param(300, marks=pytest.mark.long)])
def test_every_column_of_a_fit_is_one_that_a_file_may_have(count):
    rng, looked = np.random.default_rng(0), 0
    for _ in range(count):
        try:
            frame = read_frame(columns(rng))
            schema = Schema.fit(frame)
        except ValueError:  # spans more than float64 holds
            continue
        check_columns(frame.table_type, schema)
        Schema.from_json(json.loads(json.dumps(schema.to_json())))
        looked += 1
    assert looked > 0.8 * count
