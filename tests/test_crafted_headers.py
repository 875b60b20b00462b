"""Model files with a right hash that no fit could have written are refused, and every model of a fit loads."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ctem import CTEM
from ctem.persistence.reading import digest
from ctem.spaces import Real
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


def crafted(whole, path, change):
    """A file with a changed header, changed tensors or another version, whose hash is right."""
    with safe_open(whole, framework="pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    header = json.loads(metadata["model"])
    change(header, tensors, metadata)
    text = json.dumps(header)
    signed = {"model": text, "sha256": digest(text, tensors, metadata["version"])}
    save_file(tensors, path, {**metadata, **signed})


def codec(header, name):
    return next(each["codec"] for each in header["schema"]["columns"] if each["name"] == name)


def field(header, name):
    return next(each for each in header["kind"]["fields"] if each["name"] == name)


def curve(header, name):
    """The innermost curve of a column."""
    found = codec(header, name)["curve"]
    while "location" not in found:
        found = found["inner"] if "inner" in found else found["curve"]
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
    "no ends": lambda h, t, m: codec(h, "share")["curve"].update(low=None, high=None),
    "a scale below all numbers": lambda h, t, m: curve(h, "price").update(scale=1e-320),
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
@pytest.mark.parametrize("missing", ["hidden", "state"])
def test_every_model_of_a_fit_loads(tmp_path, case, missing):
    _, X = case
    model = CTEM(**TINY, missing=missing).fit(X)
    model.save(tmp_path / "m.ctem")
    assert np.array_equal(CTEM.load(tmp_path / "m.ctem").score_samples(X), model.score_samples(X))
