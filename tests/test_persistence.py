"""Saved models: exact round trips, old files, and files that are not what they say."""

import errno
import json
import os
import struct

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from test_preferred import preferring

from ctem import CTEM, Category
from ctem.persistence import atomic
from ctem.persistence.sealed import FORMAT, provenance
from ctem.tables.margins.preferred import PreferredValues
from tests.model_files import parts, write

STEPS = {"max_steps": 10, "width": 8, "members": 2, "batch_size": 32, "random_state": 3}
SMALL = {**STEPS, "blocks": 1, "orders": 2}


def table(n=150):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "city": pd.Categorical(rng.choice(["Oslo", "Bergen"], n), ["Bergen", "Oslo", "Røros"]),
            "rain": np.where(rng.random(n) < 0.3, 0.0, rng.lognormal(size=n)),
            "age": pd.array(np.where(rng.random(n) < 0.1, None, rng.integers(18, 80, n)), dtype="Int64"),
        }
    )


@pytest.fixture(scope="module")
def model():
    return CTEM(**SMALL, kinds={"city": Category()}).fit(table())


@pytest.fixture
def path(model, tmp_path):
    model.save(tmp_path / "model.ctem")
    return tmp_path / "model.ctem"


def rewrite(path, change, tensors=None):
    """The file with its header changed, and a hash to match."""
    kept, metadata = parts(path)
    header = json.loads(metadata["model"])
    change(header)
    write(path, kept if tensors is None else tensors, metadata, header)


def test_a_loaded_model_answers_with_the_same_bits(model, path):
    X, again = table(), CTEM.load(path)
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    assert np.array_equal(again.log_density(X, ["age"], ["city"]), model.log_density(X, ["age"], ["city"]))
    pd.testing.assert_frame_equal(again.sample(20, random_state=1), model.sample(20, random_state=1))
    pd.testing.assert_frame_equal(again.impute(X, random_state=1), model.impute(X, random_state=1))
    assert again.describe() == model.describe()
    assert again.history_ == model.history_
    assert again.feature_names_in_.tolist() == model.feature_names_in_.tolist()


def test_a_loaded_model_can_be_saved_and_fitted_again(model, path):
    again = CTEM.load(path)
    again.save(path)
    assert np.array_equal(CTEM.load(path).score_samples(table()), model.score_samples(table()))
    assert np.array_equal(again.fit(table()).score_samples(table()), model.score_samples(table()))


def test_a_default_of_float64_changes_no_bit(tmp_path):
    X = table()
    expected = CTEM(**SMALL).fit(X).score_samples(X)
    torch.set_default_dtype(torch.float64)
    try:
        model = CTEM(**SMALL).fit(X)
        model.save(tmp_path / "model.ctem")
        found = [each.score_samples(X) for each in (model, CTEM.load(tmp_path / "model.ctem"))]
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    found.append(CTEM.load(tmp_path / "model.ctem").score_samples(X))
    for scores in found:
        assert np.array_equal(scores, expected)


def test_provenance_says_what_made_the_model_of_what(model, path):
    origin = provenance(path)
    assert origin["seed"] == model.seed_
    assert origin["data_sha256"] == model.data_hash_
    assert origin["torch"] == torch.__version__
    assert origin["metrics"]["baseline"] == model.independent_score_
    assert origin["created"].endswith("+00:00")


def test_no_path_of_this_machine_is_saved(tmp_path):
    X = np.random.default_rng(0).normal(size=(120, 1))
    model = CTEM(**SMALL, checkpoint=tmp_path / "secret-place").fit(X)
    model.save(tmp_path / "model.ctem")
    assert b"secret-place" not in (tmp_path / "model.ctem").read_bytes()


@pytest.mark.parametrize("version", range(1, FORMAT))
def test_a_file_of_an_older_format_is_refused_with_the_reason(path, version):
    tensors, metadata = parts(path)
    save_file(tensors, path, {**metadata, "version": str(version)})
    for look in (CTEM.load, provenance):
        with pytest.raises(ValueError, match=rf"has format {version}, which no released .* Fit it again"):
            look(path)


def test_a_flipped_bit_is_refused_wherever_it_is(path):
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    header = struct.unpack("<Q", whole[:8])[0] + 8
    places = np.concatenate([rng.integers(len(whole), size=60), rng.integers(header, size=60), range(8)])
    for place in places.tolist():
        hurt = bytearray(whole)
        hurt[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(hurt)
        with pytest.raises(ValueError, match=r"load: .*model\.ctem"):
            CTEM.load(path)


def test_steps_are_saved(tmp_path):
    X = pd.DataFrame({"price": preferring(400), "size": preferring(400, seed=1)})
    model = CTEM(**SMALL).fit(X)
    assert isinstance(model.schema_.columns["price"].codec.transform.inner, PreferredValues)
    model.save(tmp_path / "model.ctem")
    again = CTEM.load(tmp_path / "model.ctem")
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    assert np.array_equal(again.log_density_grad(X), model.log_density_grad(X))
    pd.testing.assert_frame_equal(again.sample(20, random_state=1), model.sample(20, random_state=1))


def test_an_unfinished_file_is_refused(path):
    tensors, metadata = parts(path)
    write(path, tensors, metadata, {})
    for look in (CTEM.load, provenance):
        with pytest.raises(ValueError, match="is not a whole ctem model"):
            look(path)


def test_a_newer_format_asks_for_a_newer_ctem(path):
    tensors, metadata = parts(path)
    save_file(tensors, path, {**metadata, "version": str(FORMAT + 1)})
    expected = rf"has format '{FORMAT + 1}'; this ctem reads {FORMAT}. Update"
    with pytest.raises(ValueError, match=expected):
        CTEM.load(path)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"load: no file at .*absent.ctem"):
        CTEM.load(tmp_path / "absent.ctem")


def test_a_truncated_file_is_refused_at_every_length(path):
    whole = path.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is damaged or not a ctem model"):
            CTEM.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"age,city\n1,Oslo\n",
        b"\x80\x04\x95\x1c\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94.",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        b"\x00" * 64,
    ],
    ids=["empty", "csv", "pickle", "huge header", "not an object", "zeros"],
)
def test_a_foreign_file_is_refused(tmp_path, content):
    (tmp_path / "model.ctem").write_bytes(content)
    with pytest.raises(ValueError, match="is damaged or not a ctem model"):
        CTEM.load(tmp_path / "model.ctem")


def test_another_safetensors_file_is_refused(tmp_path):
    save_file({"weight": torch.zeros(2)}, tmp_path / "other")
    with pytest.raises(ValueError, match="is a safetensors file, but not a ctem model"):
        CTEM.load(tmp_path / "other")


def swapped(header):
    """The continuous part of a column before its category in an order."""
    first = header["density"]["orders"][0]
    first.sort(reverse=True)


CHANGES = {
    "no settings that were trained": lambda h: h.pop("trained"),
    "no schema": lambda h: h.pop("schema"),
    "no kind": lambda h: h.update(kind=None),
    "kind of another table": lambda h: h["kind"]["fields"].pop(),
    "unknown setting": lambda h: h["settings"].update(checkpoint="/etc/passwd"),
    "setting out of range": lambda h: h["settings"].update(orders=-1),
    "unknown effort": lambda h: h["settings"].update(effort="swift"),
    "text for a number": lambda h: h["trained"].update(width="8"),
    "huge network": lambda h: h["density"]["network"].update(width=10**9),
    "deep network": lambda h: h["density"]["network"].update(blocks=10**9),
    "many members": lambda h: h["density"]["network"].update(members=10**9),
    "many waves": lambda h: h["density"]["network"].update(harmonics=10**12),
    "extra option": lambda h: h["density"]["network"].update(device="meta"),
    "no order": lambda h: h["density"].update(orders=[]),
    "order of too few columns": lambda h: h["density"].update(orders=[[0]]),
    "order with a column twice": lambda h: h["density"].update(orders=[[0, 0, 1, 2]]),
    "order of text": lambda h: h["density"].update(orders=[["a", "b", "c", "d"]]),
    "orders of no kind": lambda h: h["density"].update(orders=5),
    "a child before its parent": swapped,
    "very many orders": lambda h: h["density"].update(orders=h["density"]["orders"] * 501),
    "level below 0": lambda h: h["density"].update(level=-1.0),
    "level of 1": lambda h: h["density"].update(level=1.0),
    "shares of too few columns": lambda h: h["density"]["worth"].update(share=[1.0]),
    "a share beyond 1": lambda h: h["density"]["worth"]["share"].__setitem__(0, 2.0),
    "a share of text": lambda h: h["density"]["worth"]["share"].__setitem__(0, "all"),
    "columns heard in part": lambda h: h["density"]["worth"]["heard"].__setitem__(0, 0.5),
    "nats below 0": lambda h: h["density"]["worth"]["nats"].__setitem__(0, -1.0),
    "level of nothing": lambda h: h["density"].update(level=None),
    "level of nan": lambda h: h["density"].update(level=float("nan")),
    "level of text": lambda h: h["density"].update(level="__import__('os')"),
    "late of too few columns": lambda h: h["density"].update(late=[0.0]),
    "late beyond 1": lambda h: h["density"]["late"].__setitem__(0, 2.0),
    "late of nan": lambda h: h["density"]["late"].__setitem__(0, float("nan")),
    "late of text": lambda h: h["density"].update(late="abcd"),
    "history": lambda h: h["history"].update(step=[1, 2, 3]),
    "many categories": lambda h: h["schema"]["columns"][0]["codec"].update(
        values=list(range(10**4)), codes=list(range(10**4)), shares=[1.0] * 10**4
    ),
    "no rows": lambda h: h["provenance"].pop("rows"),
    "baseline of nan": lambda h: h["provenance"]["metrics"].update(baseline=float("nan")),
    "a code far beyond the values": lambda h: city(h).update(codes=[0, 1, 10**12]),
    "codes that are no whole numbers": lambda h: city(h).update(codes=[0, 1.5, 2]),
    "shares that do not add up": lambda h: city(h).update(shares=[1.0, 0.5, 1.0]),
    "values of another type": lambda h: city(h).update(type="int"),
    "level too fine": lambda h: h["density"].update(level=1e-18),
    "slope of 1e300": lambda h: h["schema"]["columns"][2]["codec"]["transform"]["inner"][
        "slopes"
    ].__setitem__(0, 1e300),
    "score of 1e300": lambda h: h["schema"]["columns"][2]["codec"]["transform"]["inner"][
        "scores"
    ].__setitem__(-1, 1e300),
    "shift of 1e308": lambda h: h["schema"]["columns"][2]["codec"]["lattice"].update(shift=10**308),
    "an atom of nothing": lambda h: h["schema"]["columns"][1]["codec"].update(atoms=[None]),
    "another name": lambda h: h["kind"]["fields"][0].update(original="x"),
    "a dtype that is none": lambda h: h["kind"]["fields"][1].update(dtype={"pandas": "read_csv"}),
    "dropout of 1": lambda h: h["density"]["network"].update(dropout=1.0),
    "history of text": lambda h: h["history"]["loss"].__setitem__(0, "low"),
}


def city(header):
    return header["schema"]["columns"][0]["codec"]


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_header_is_refused_with_one_error(path, name):
    rewrite(path, CHANGES[name])
    with pytest.raises(
        ValueError, match=r"load: .*model.ctem (is not a whole ctem model|has a header that is not JSON)"
    ):
        CTEM.load(path)


def test_a_header_that_is_a_list_is_refused(path):
    tensors, metadata = parts(path)
    write(path, tensors, metadata, [])
    with pytest.raises(ValueError, match="has a header that is not a JSON object"):
        CTEM.load(path)


def test_a_changed_header_without_its_hash_is_damage(path):
    tensors, metadata = parts(path)
    header = json.loads(metadata["model"])
    header["density"]["level"] *= 2
    save_file(tensors, path, {**metadata, "model": json.dumps(header)})
    for look in (CTEM.load, provenance):
        with pytest.raises(ValueError, match="is damaged: its content is not what was saved"):
            look(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("net.first.weight"), "first.weight"),
        (lambda t: t.update({"net.first.weight": t["net.first.weight"].double()}), "expected finite float32"),
        (
            lambda t: t.update({"net.first.weight": t["net.first.weight"] * torch.nan}),
            "expected finite float32",
        ),
        (lambda t: t.update({"net.first.bias": t["net.first.bias"][:, :, :3].contiguous()}), "first.bias"),
        (lambda t: t.update({"net.extra": torch.zeros(1)}), "network: expected tensors"),
        (lambda t: t.update({"fast.extra": torch.zeros(1)}), "tensors: expected those of the model alone"),
        (lambda t: t.update({"base.log_table": torch.zeros(1, 1)}), "base: expected a table"),
        (lambda t: t.update({"base.log_table": t["base.log_table"] / 2}), "base: expected a probability"),
        (lambda t: t.update({"correlation": torch.eye(3)}), "correlation: expected one of 2 scores"),
        (lambda t: t.update({"correlation": torch.full((2, 2), 1.0)}), "correlation: expected a symmetric"),
    ],
)
def test_changed_tensors_are_refused(path, change, message):
    tensors, _ = parts(path)
    change(tensors)
    rewrite(path, lambda header: None, tensors)
    with pytest.raises(ValueError, match=message):
        CTEM.load(path)


def test_deep_json_is_refused(path):
    tensors, metadata = parts(path)
    save_file(tensors, path, {**metadata, "model": "[" * 200_000})
    with pytest.raises(ValueError, match="has a header that is not JSON"):
        CTEM.load(path)


@pytest.mark.parametrize("moment", ["open", "sync", "replace"])
def test_a_full_disk_leaves_the_old_model_untouched(model, path, monkeypatch, moment):
    before = path.read_bytes()

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    where = {"open": (atomic, "_part"), "sync": (os, "fsync"), "replace": (os, "replace")}[moment]
    monkeypatch.setattr(*where, full)
    with pytest.raises(OSError, match=r"could not be written .*what was there is untouched"):
        model.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_folder_that_is_not_there_is_an_error_and_leaves_nothing(model, tmp_path):
    with pytest.raises(OSError, match="could not be written"):
        model.save(tmp_path / "absent" / "model.ctem")
    assert list(tmp_path.iterdir()) == []


def test_saving_over_a_folder_is_an_error_and_leaves_it(model, tmp_path):
    (tmp_path / "model.ctem").mkdir()
    with pytest.raises(OSError, match="could not be written"):
        model.save(tmp_path / "model.ctem")
    assert [file.name for file in tmp_path.iterdir()] == ["model.ctem"]


def test_an_unfitted_model_cannot_be_saved(tmp_path):
    with pytest.raises(ValueError, match="not fitted yet"):
        CTEM().save(tmp_path / "model.ctem")
    assert list(tmp_path.iterdir()) == []
