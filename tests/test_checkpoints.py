"""Checkpoints: one fit at a time, stale ones explained, nothing left behind."""

import os
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small import SMALL

from ctem import CTEM
from ctem.training import loop
from ctem.training.checkpoints import claimed, files_of, forget, read_checkpoint, write_checkpoint

QUICK = {**SMALL, "max_steps": 4, "width": 4}


def rows(seed=0):
    return np.random.default_rng(seed).normal(size=(120, 1))


def test_a_second_fit_with_the_same_checkpoint_is_refused_while_the_first_runs(tmp_path, monkeypatch):
    write, answers = loop.write_checkpoint, []

    def meanwhile(*arguments):
        if not answers:
            answers.append(None)
            other = threading.Thread(target=lambda: answers.append(second()))
            other.start()
            other.join()
        write(*arguments)

    def second():
        with pytest.raises(
            OSError, match=r"another fit is using .*run; wait for it, or give this one another"
        ):
            CTEM(**QUICK, checkpoint=tmp_path / "run").fit(rows(1))
        return True

    monkeypatch.setattr(loop, "write_checkpoint", meanwhile)
    model = CTEM(**QUICK, checkpoint=tmp_path / "run").fit(rows())
    assert answers == [None, True]
    assert np.array_equal(model.score_samples(rows()), CTEM(**QUICK).fit(rows()).score_samples(rows()))


def test_a_stale_checkpoint_is_explained(tmp_path):
    CTEM(**QUICK, checkpoint=tmp_path / "run").fit(rows())
    with pytest.raises(
        ValueError, match=r"run\.first belongs to another .*; to begin anew, remove it or give another"
    ):
        CTEM(**QUICK, checkpoint=tmp_path / "run").fit(rows(1))
    forget(tmp_path / "run")
    CTEM(**QUICK, checkpoint=tmp_path / "run").fit(rows(1))


def test_a_checkpoint_with_a_flipped_bit_is_refused_wherever_it_is(tmp_path):
    CTEM(**QUICK, checkpoint=tmp_path / "run").fit(rows())
    whole = (tmp_path / "run.first").read_bytes()
    rng = np.random.default_rng(0)
    for place in [8, len(whole) - 1, *rng.integers(8, len(whole), 60).tolist()]:
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "run.first").write_bytes(spoilt)
        with pytest.raises(ValueError, match=r"checkpoint: .*run\.first is damaged"):
            CTEM(**QUICK, checkpoint=tmp_path / "run").fit(rows())


def test_a_checkpoint_without_a_hash_is_refused(tmp_path):
    write_checkpoint(tmp_path / "run", "mark", {"a": torch.ones(2)}, {"step": 3})
    tensors, _ = read_checkpoint(tmp_path / "run", "mark")
    save_file(tensors, tmp_path / "run", {"mark": "mark", "facts": "{}"})
    with pytest.raises(ValueError, match="is damaged"):
        read_checkpoint(tmp_path / "run", "mark")


def test_forgetting_takes_the_files_of_this_checkpoint_and_no_other(tmp_path):
    own = ["run", "run.first", "run.last", "run.steps", "run.potential", "run.12", ".run.first.01234567.part"]
    others = [
        "run.first.bak",
        "runs",
        "running.first",
        "run2.first",
        ".run.first.part",
        ".runs.01234567.part",
    ]
    for name in own + others:
        (tmp_path / name).touch()
    assert {path.name for path in files_of(tmp_path / "run")} == set(own[:-1])
    forget(tmp_path / "run")
    assert sorted(os.listdir(tmp_path)) == sorted(others)


def test_a_claim_ends_with_its_block_also_after_an_error(tmp_path):
    def fail():
        with claimed(tmp_path / "run"):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert os.listdir(tmp_path) == []
    with claimed(tmp_path / "run"):
        assert os.listdir(tmp_path) == ["run.lock"]
