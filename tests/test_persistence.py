"""Saved models: exact round trips, old files, and files that are not what they say."""

import errno
import json
import os
import struct
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from test_steps import preferring

from ctem import CTEM, Category, Recipe, persistence
from ctem.plans import Networks, Plan
from ctem.table.steps import Steps

PLAN = Plan(
    width=8, blocks=1, members=2, recipe=Recipe(steps=10, batch_size=32, evaluate_every=10), log_z_samples=200
)


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
    return CTEM(plan=PLAN, columns={"city": Category()}, random_state=3).fit(table())


@pytest.fixture
def path(model, tmp_path):
    model.save(tmp_path / "model.ctem")
    return tmp_path / "model.ctem"


def parts(path):
    """Tensors and metadata of a file."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def rewrite(path, change, tensors=None):
    """The file with its header changed."""
    kept, metadata = parts(path)
    header = json.loads(metadata["model"])
    change(header)
    save_file(kept if tensors is None else tensors, path, {**metadata, "model": json.dumps(header)})


def test_a_loaded_model_answers_with_the_same_bits(model, path):
    X, again = table(), CTEM.load(path)
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    assert np.array_equal(again.score_samples(X[:5], exact=True), model.score_samples(X[:5], exact=True))
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


def test_the_plain_objective_is_saved_too(tmp_path):
    X = np.random.default_rng(0).normal(size=(120, 1))
    model = CTEM(plan=PLAN, objective="plain", random_state=0).fit(X)
    model.save(tmp_path / "plain.ctem")
    assert np.array_equal(CTEM.load(tmp_path / "plain.ctem").score_samples(X), model.score_samples(X))


def test_provenance_says_what_made_the_model_of_what(model, path):
    origin = persistence.provenance(path)
    assert origin["seed"] == model.seed_
    assert origin["data_sha256"] == model.data_hash_
    assert origin["torch"] == torch.__version__
    assert origin["metrics"]["baseline"] == model.baseline_
    assert origin["created"].endswith("+00:00")


def test_no_path_of_this_machine_is_saved(tmp_path):
    X = np.random.default_rng(0).normal(size=(120, 1))
    model = CTEM(plan=PLAN, checkpoint=tmp_path / "secret-place", random_state=0).fit(X)
    model.save(tmp_path / "model.ctem")
    assert b"secret-place" not in (tmp_path / "model.ctem").read_bytes()


def without_slopes(path, X):
    """A model as formats 1 to 3 had it, its tensors and its header."""
    model = CTEM(plan=PLAN, random_state=3).fit(X)
    model.save(path)
    tensors, metadata = parts(path)
    header = json.loads(metadata["model"])
    for part in (header["plan"], header["settings"]["plan"]):
        del part["slopes"]
    del header["slopes"]
    return model, tensors, header


def test_a_file_of_format_1_is_read(tmp_path):
    path = tmp_path / "model.ctem"
    model, tensors, header = without_slopes(path, table())
    origin = header.pop("provenance")
    header |= {key: origin[key] for key in ("seed", "rows", "data_sha256")}
    header |= {"baseline": origin["metrics"]["baseline"], "log_z": header["log_z"]["value"]}
    save_file(tensors, path, {"format": "ctem", "version": "1", "model": json.dumps(header)})
    again = CTEM.load(path)
    assert np.array_equal(again.score_samples(table()), model.score_samples(table()))
    assert again.log_z_.method == "unknown (format 1)"


def test_a_file_of_format_2_is_read(tmp_path):
    """It had neither steps nor a correlation; their absence is not an error."""
    X, path = table()[["city", "rain"]], tmp_path / "model.ctem"
    model, tensors, header = without_slopes(path, X)
    assert "correlation" not in tensors
    assert "heights" not in json.dumps(header)
    save_file(tensors, path, {"format": "ctem", "version": "2", "model": json.dumps(header)})
    assert np.array_equal(CTEM.load(path).score_samples(X), model.score_samples(X))


@pytest.mark.filterwarnings("ignore:log Z rests on", "ignore:.*one pass")
def test_networks_of_slopes_are_saved(tmp_path):
    plan = replace(PLAN, slopes=Networks(width=12, blocks=1, members=4, recipe=PLAN.recipe))
    model = CTEM(plan=plan, columns={"city": Category()}, random_state=3).fit(table())
    model.save(tmp_path / "model.ctem")
    again = CTEM.load(tmp_path / "model.ctem")
    for exact in (False, True):
        assert np.array_equal(again.score_samples(table(), exact), model.score_samples(table(), exact))
    pd.testing.assert_frame_equal(again.sample(20, random_state=1), model.sample(20, random_state=1))
    tensors, metadata = parts(tmp_path / "model.ctem")
    own = {name: value for name, value in tensors.items() if not name.startswith("slopes.")}
    save_file(own, tmp_path / "model.ctem", metadata)
    with pytest.raises(ValueError, match="plan: expected slopes as there are tensors of them"):
        CTEM.load(tmp_path / "model.ctem")


@pytest.mark.filterwarnings("ignore:log Z rests on", "ignore:.*one pass")
def test_a_file_of_format_6_has_the_orders_of_its_seed_and_wrong_orders_are_refused(tmp_path):
    plan = replace(PLAN, slopes=Networks(width=12, blocks=1, members=2, recipe=PLAN.recipe))
    model, path = CTEM(plan=plan, random_state=3).fit(table()), tmp_path / "model.ctem"
    model.save(path)
    tensors, metadata = parts(path)
    header = json.loads(metadata["model"])
    del header["slopes"]["orders"]
    save_file(tensors, path, {**metadata, "version": "6", "model": json.dumps(header)})
    old, generator = CTEM.load(path).density_, torch.Generator().manual_seed(model.seed_)
    assert old.orders == [chain.orders(plan.orders, generator) for chain in old.members]
    dim = model.schema_.space.dim
    for orders in ([[list(range(dim))]], [[[0] * dim]] * 2, [[], []], 5, [[["a"] * dim]] * 2):
        header["slopes"]["orders"] = orders
        save_file(tensors, path, {**metadata, "model": json.dumps(header)})
        with pytest.raises(ValueError, match="is not a whole ctem model"):
            CTEM.load(path)


@pytest.mark.parametrize("version", [4, 5])
def test_files_of_formats_4_and_5_are_read_unless_they_have_loose_splines(tmp_path, version):
    path = tmp_path / "model.ctem"
    model, tensors, header = without_slopes(path, table())
    for slopes in (False, True):
        for part in (header["plan"], header["settings"]["plan"]):
            part |= {"slopes": slopes, **({"paths": 400} if version == 4 else {})}
        save_file(tensors, path, {"format": "ctem", "version": str(version), "model": json.dumps(header)})
        if slopes:
            with pytest.raises(ValueError, match="fit the model again"):
                CTEM.load(path)
        else:
            assert np.array_equal(CTEM.load(path).score_samples(table()), model.score_samples(table()))


def test_a_file_of_format_3_is_read(tmp_path):
    """Its conditionals come from differences, as they did."""
    path = tmp_path / "model.ctem"
    model, tensors, header = without_slopes(path, table())
    save_file(tensors, path, {"format": "ctem", "version": "3", "model": json.dumps(header)})
    again = CTEM.load(path)
    assert again.density_.slopes is None
    assert np.array_equal(again.score_samples(table(), exact=True), model.score_samples(table(), exact=True))


def test_steps_are_saved(tmp_path):
    X = pd.DataFrame({"price": preferring(400), "size": preferring(400, seed=1)})
    model = CTEM(plan=PLAN, random_state=3).fit(X)
    assert isinstance(model.schema_.choices["price"].codec.curve, Steps)
    model.save(tmp_path / "model.ctem")
    again = CTEM.load(tmp_path / "model.ctem")
    assert np.array_equal(again.score_samples(X), model.score_samples(X))
    assert np.array_equal(again.log_density_grad(X), model.log_density_grad(X))
    pd.testing.assert_frame_equal(again.sample(20, random_state=1), model.sample(20, random_state=1))


def test_an_unfinished_file_of_format_1_is_refused(path):
    tensors, _ = parts(path)
    save_file(tensors, path, {"format": "ctem", "version": "1", "model": "{}"})
    with pytest.raises(ValueError, match="is not a whole ctem model"):
        CTEM.load(path)
    with pytest.raises(ValueError, match="is not a whole ctem model"):
        persistence.provenance(path)


def test_every_older_format_has_a_migration():
    assert sorted(persistence.MIGRATIONS) == list(range(1, persistence.FORMAT))


def test_a_newer_format_asks_for_a_newer_ctem(path):
    tensors, metadata = parts(path)
    save_file(tensors, path, {**metadata, "version": str(persistence.FORMAT + 1)})
    with pytest.raises(ValueError, match=r"has format '8'; this ctem reads 1 … 7. Update ctem"):
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


CHANGES = {
    "no plan": lambda h: h.pop("plan"),
    "no schema": lambda h: h.pop("schema"),
    "no kind": lambda h: h.update(kind=None),
    "kind of another table": lambda h: h["kind"]["fields"].pop(),
    "unknown setting": lambda h: h["settings"].update(checkpoint="/etc/passwd"),
    "setting out of range": lambda h: h["settings"].update(orders=-1),
    "text for a number": lambda h: h["plan"].update(width="8"),
    "recipe of nonsense": lambda h: h["plan"]["recipe"].update(steps=-3),
    "huge network": lambda h: h["network"].update(width=10**9),
    "deep network": lambda h: h["network"].update(blocks=10**9),
    "many members": lambda h: h["network"].update(members=10**9),
    "many waves": lambda h: h["network"].update(harmonics=10**12),
    "slopes that are not there": lambda h: h["plan"].update(slopes=asdict(PLAN.own)),
    "slopes of text": lambda h: h["plan"].update(slopes="yes"),
    "extra option": lambda h: h["network"].update(device="meta"),
    "level": lambda h: h.update(level=-1.0),
    "level of text": lambda h: h.update(level="__import__('os')"),
    "log z missing": lambda h: h.update(log_z={}),
    "history": lambda h: h["history"].update(step=[1, 2, 3]),
    "many categories": lambda h: h["schema"]["columns"][0]["codec"].update(
        values=list(range(10**4)), codes=list(range(10**4)), shares=[1.0] * 10**4
    ),
    "no rows": lambda h: h["provenance"].pop("rows"),
    "header is a list": None,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_header_is_refused_with_one_error(path, name):
    if CHANGES[name] is None:
        tensors, metadata = parts(path)
        save_file(tensors, path, {**metadata, "model": "[]"})
    else:
        rewrite(path, CHANGES[name])
    with pytest.raises(ValueError, match=r"load: .*model.ctem"):
        CTEM.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("first.weight"), "first.weight"),
        (lambda t: t.update({"first.weight": t["first.weight"].double()}), "expected finite float32"),
        (lambda t: t.update({"first.weight": t["first.weight"] * float("nan")}), "expected finite float32"),
        (lambda t: t.update({"first.bias": t["first.bias"][:, :, :3].contiguous()}), "first.bias"),
        (lambda t: t.update({"extra": torch.zeros(1)}), "extra"),
        (lambda t: t.update({"base.log_table": torch.zeros(1, 1)}), "base: expected a table"),
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


@pytest.mark.parametrize("moment", ["write", "sync", "replace"])
def test_a_full_disk_leaves_the_old_model_untouched(model, path, monkeypatch, moment):
    before = path.read_bytes()

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    where = {"write": (persistence.writing, "save_file"), "sync": (os, "fsync"), "replace": (os, "replace")}[
        moment
    ]
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
