"""Model files that were damaged or made up: refused at load, quickly and in little memory, or the same answers."""

import json
import struct
import time
from collections import Counter

import numpy as np
import pytest
import torch
from children import alone
from mutations import impossible

from ctem import CTEM
from tests.model_files import crafted, parts, put

long = pytest.mark.long
FLIPS, TRUNCATIONS, CRAFTED = 2000, 200, 150
BATCH = 100  # files that one child looks at
SECONDS, MEGABYTES = 1.0, 200  # within which a file is refused, of the processor's time
LOADED = 60.0  # a machine that does other things takes so many times as long


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "model.ctem"
    model.save(path)
    return path


def looked_at(path, contents, X, expected):
    """How each of several files ends, one after the other in one child."""
    return [_look(path, content, X, expected) for content in contents]


def _look(path, content, X, expected):
    path.write_bytes(content)
    try:
        found = CTEM.load(path)
    except ValueError as error:
        fine = str(error).startswith(f"load: {path}") and "\n" not in str(error)
        return "refused" if fine else f"unclear: {error}"
    return "same answers" if np.array_equal(found.score_samples(X), expected) else "other answers"


def endings(contents, path, X, expected):
    """Counts of the endings of many files, by children that crash alone."""
    counts = Counter()
    for start in range(0, len(contents), BATCH):
        part = contents[start : start + BATCH]
        outcome = alone(
            looked_at, path, part, X, expected, seconds=SECONDS * LOADED * len(part), megabytes=MEGABYTES
        )
        assert outcome.ending == "returned", outcome
        counts.update(outcome.value)
    return counts


@pytest.mark.parametrize("flips", [200, pytest.param(FLIPS, marks=long)])
def test_a_flipped_bit_is_refused_or_changes_nothing(whole, table, model, tmp_path, tally, flips):
    rng, content = np.random.default_rng(0), whole.read_bytes()
    header = 8 + struct.unpack("<Q", content[:8])[0]
    half = flips // 2
    places = np.concatenate(
        [np.arange(64), rng.integers(header, size=half - 64), rng.integers(len(content), size=half)]
    )
    flipped = []
    for place in places.tolist():
        hurt = bytearray(content)
        hurt[place] ^= 1 << int(rng.integers(8))
        flipped.append(bytes(hurt))
    X = table.head(5)
    counts = endings(flipped, tmp_path / "hurt.ctem", X, model.score_samples(X))
    tally("flips", counts)
    assert set(counts) <= {"refused", "same answers"}, counts
    assert counts["refused"] >= 0.99 * flips


@long
def test_a_truncated_file_is_refused_at_every_length(whole, table, model, tmp_path, tally):
    content = whole.read_bytes()
    header = 8 + struct.unpack("<Q", content[:8])[0]
    ends = [*range(16), *range(header - 8, header + 8), *range(len(content) - 16, len(content))]
    rng = np.random.default_rng(1)
    lengths = [*ends, *rng.integers(len(content), size=TRUNCATIONS - len(ends)).tolist()]
    X = table.head(5)
    counts = endings([content[:n] for n in lengths], tmp_path / "cut.ctem", X, model.score_samples(X))
    tally("truncations", counts)
    assert counts == {"refused": TRUNCATIONS}


BOMBS = {
    "a code far beyond the values": lambda h, t, m: city(h).update(codes=[0, 1, 10**12]),
    "a level that needs all memory": lambda h, t, m: h["density"].update(level=1e-18),
    "a hundred thousand orders": lambda h, t, m: h["density"].update(orders=h["density"]["orders"] * 50_000),
    "a wide network": lambda h, t, m: widened(h, t, 20_000),
    "a deep network": lambda h, t, m: h["density"]["network"].update(blocks=10**9),
    "a thousand harmonics": lambda h, t, m: h["density"]["network"].update(harmonics=1000),
    "a hundred thousand values": lambda h, t, m: city(h).update(
        values=[str(i) for i in range(10**5)], codes=list(range(10**5)), shares=[1.0] * 10**5
    ),
    "a cell of a gigabyte": lambda h, t, m: h["kind"].update(
        backend="numpy", fields=[{**f, "dtype": {"numpy": "<U999999"}} for f in h["kind"]["fields"]]
    ),
    "deep JSON": lambda h, t, m: h.update(settings=json.loads("[" * 900 + "]" * 900)),
    "altered shares": lambda h, t, m: city(h).update(shares=[1.0, 0.5, 1.0]),
    "altered margins": lambda h, t, m: t.update({"base.log_table": t["base.log_table"] - 1}),
    "weights of nan": lambda h, t, m: t.update({"net.first.weight": t["net.first.weight"] * torch.nan}),
    "weights of infinity": lambda h, t, m: t.update({"net.first.bias": t["net.first.bias"] + torch.inf}),
    "half of the weights": lambda h, t, m: t.pop("net.first.weight"),
    "a function for a dtype": lambda h, t, m: h["kind"].update(
        backend="polars", fields=[{**f, "dtype": {"polars": "read_csv"}} for f in h["kind"]["fields"]]
    ),
    "no columns": lambda h, t, m: h["schema"].update(columns=[]),
    "a column twice": lambda h, t, m: h["schema"].update(columns=h["schema"]["columns"] * 2),
    "another effort": lambda h, t, m: h["settings"].update(effort="swift"),
}  # fmt: skip


def city(header):
    return header["schema"]["columns"][0]["codec"]


def widened(header, tensors, width):
    members, inputs, _ = tensors["net.first.weight"].shape
    tensors["net.first.weight"] = torch.zeros(members, inputs, width)
    header["density"]["network"]["width"] = width


def answered(path, X):
    """Whether a made-up file is refused in time; one that loads must answer with numbers, or say why not."""
    began = time.process_time()
    try:
        model = CTEM.load(path)
    except ValueError as error:
        took = time.process_time() - began
        if took > SECONDS:
            return f"refused after {took:.1f} s"
        return "refused" if str(error).startswith("load: ") else f"unclear: {error}"
    asked = (
        lambda: model.score_samples(X),
        lambda: model.score_samples(model.sample(3, random_state=0)),
        lambda: model.outlier_scores(X),
    )
    for ask in asked:
        try:
            if not np.isfinite(ask()).all():
                return "answers that are no numbers"
        except (ValueError, TypeError) as error:
            if not str(error):
                return "an empty error"
    return "answered"


@long
@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_asks_for_too_much_is_refused(whole, table, tmp_path, name, tally):
    crafted(whole, tmp_path / "bomb.ctem", BOMBS[name])
    limits = {"seconds": SECONDS * LOADED, "megabytes": MEGABYTES}
    outcome = alone(answered, tmp_path / "bomb.ctem", table.head(3), **limits)
    assert (outcome.ending, outcome.value) == ("returned", "refused"), outcome
    tally("crafted files", {"refused": 1})


@long
def test_a_file_that_is_written_anew_answers_as_before(whole, table, tmp_path):
    crafted(whole, tmp_path / "same.ctem", lambda *parts: None)
    assert answered(tmp_path / "same.ctem", table.head(3)) == "answered"


@long
def test_a_made_up_header_is_refused(whole, table, tmp_path, tally):
    rng, counts, wrong = np.random.default_rng(2), Counter(), []
    changes = impossible(json.loads(parts(whole)[1]["model"]))
    for k in rng.permutation(len(changes))[: CRAFTED - len(BOMBS)]:
        place, value = changes[k]
        crafted(whole, tmp_path / "made.ctem", lambda h, t, m, at=place, new=value: put(h, at, new))
        limits = {"seconds": SECONDS * LOADED, "megabytes": MEGABYTES}
        outcome = alone(answered, tmp_path / "made.ctem", table.head(3), **limits)
        counts[outcome.value if outcome.ending == "returned" else outcome.ending] += 1
        if (outcome.ending, outcome.value) != ("returned", "refused"):
            wrong.append((place, repr(value)[:40], outcome))
    tally("crafted files", counts)
    assert not wrong, wrong[:5]
