"""Rows by Ray's workers: the numbers of one process, in order, also when a worker is killed."""

import os
import signal
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small import SMALL

from ctem import CTEM
from ctem.cli import parts
from ctem.cli.parts import Crew, answer_parts, imputed, sample_parts, scored, strange
from ctem.estimators.ray import score, spread
from ctem.tables.io.large import open_large

HERE, RAY = Crew("here", quiet=True), Crew("ray", workers=2, quiet=True)


def rows(n=3000):
    rng = np.random.default_rng(0)
    side = rng.integers(2, size=n)
    size = np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n) + 2 * side)
    return pa.table(
        {"key": np.arange(n), "side": np.array(["a", "b"])[side], "size": pa.array(size, from_pandas=True)}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of tables, and a model of them."""
    folder = tmp_path_factory.mktemp("ray")
    (folder / "parts").mkdir()
    for i in range(4):
        pq.write_table(rows().slice(i * 750, 750), folder / f"parts/{i}.parquet", row_group_size=300)
    CTEM(**SMALL).fit(rows().drop_columns(["key"])).save(folder / "model.ctem")
    return folder


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    yield ray
    ray.shutdown()


ANSWERS = {
    "score": partial(scored, True, None, None),
    "impute": partial(imputed, "sample", 1),
    "outliers": partial(strange, 0.05),
}


def answered(folder, output, answer, crew):
    answer_parts(folder / "model.ctem", str(folder / "parts"), str(output), answer, 3, crew)
    return pq.read_table(output)


def test_a_table_in_parts_has_every_row_once_and_in_order(folder, tmp_path):
    found = answered(folder, tmp_path / "out", ANSWERS["score"], HERE)
    model = CTEM.load(folder / "model.ctem")
    assert found["key"].to_pylist() == list(range(3000))
    expected = model.score_samples(rows().drop_columns(["key"]))
    assert np.allclose(found["log_density"], expected, rtol=0, atol=1e-5)
    filled = answered(folder, tmp_path / "filled", ANSWERS["impute"], HERE)
    assert filled["size"].null_count == 0
    strange = answered(folder, tmp_path / "strange", ANSWERS["outliers"], HERE)
    assert set(strange["row"].to_pylist()) == set(
        np.flatnonzero(model.p_values(rows().drop_columns(["key"])) <= 0.05)
    )


def test_parts_are_whole_row_groups_and_add_up(folder):
    with open_large(folder / "parts") as large:
        parts = large.split(500).files
    assert [part.rows for part in parts] == [600, 150] * 4
    assert [part.start for part in parts] == [0, 600, 750, 1350, 1500, 2100, 2250, 2850]


def test_a_folder_that_holds_something_is_refused(folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("mine")
    with pytest.raises(ValueError, match="--output: expected a new or empty folder"):
        answered(folder, tmp_path / "out", ANSWERS["score"], HERE)


def damaged(folder, output, crew):
    """Score a folder whose last file has lost its middle."""
    (folder / "parts").mkdir()
    for i in range(3):
        pq.write_table(rows(200), folder / f"parts/{i}.parquet")
    content = bytearray((folder / "parts/2.parquet").read_bytes())
    content[100:1500] = bytes(1400)
    (folder / "parts/2.parquet").write_bytes(content)
    with pytest.raises(ValueError, match=r"2\.parquet: is no whole Parquet file"):
        answered(folder, output, ANSWERS["score"], crew)


@pytest.mark.parametrize("there", [False, True])
def test_a_part_that_cannot_be_answered_leaves_a_folder_as_it_was(folder, tmp_path, there):
    (tmp_path / "model.ctem").write_bytes((folder / "model.ctem").read_bytes())
    output = tmp_path / "out"
    if there:
        output.mkdir()
    damaged(tmp_path, output, HERE)
    assert output.exists() == there
    assert not there or not list(output.iterdir())


@pytest.mark.parametrize("ends", [True, False], ids=["a worker that ends", "a worker that does not"])
def test_an_error_waits_for_workers_that_are_still_writing(tmp_path, monkeypatch, ends):
    output = tmp_path / "out"
    monkeypatch.setattr(parts, "WAIT", 1e9 if ends else 0.0)
    monkeypatch.setattr(parts.time, "sleep", lambda seconds: (output / "unfinished").unlink())

    def fail():
        with parts._filled(str(output), 2) as there:
            (there / "unfinished").write_text("")
            raise ValueError("the first error")

    with pytest.raises(ValueError, match="the first error") as caught:
        fail()
    assert output.exists() != ends
    assert ends or "holds parts" in caught.value.__notes__[0]


def test_a_cell_that_cannot_be_read_is_named_with_its_file_and_row(folder, tmp_path):
    (tmp_path / "model.ctem").write_bytes((folder / "model.ctem").read_bytes())
    (tmp_path / "parts").mkdir()
    for i in range(2):
        size = np.zeros(750)
        size[7] = np.inf if i else 0.0
        part = rows().slice(0, 750).set_column(2, "size", pa.array(size))
        pq.write_table(part, tmp_path / f"parts/{i}.parquet")
    with pytest.raises(ValueError, match=r"1\.parquet: column 'size', row 7: .* from row 750 of the whole"):
        answered(tmp_path, tmp_path / "out", ANSWERS["score"], HERE)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_part_that_no_worker_can_answer_is_named_and_leaves_nothing(folder, tmp_path, ray):
    (tmp_path / "model.ctem").write_bytes((folder / "model.ctem").read_bytes())
    damaged(tmp_path, tmp_path / "out", RAY)
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ANSWERS)
def test_ray_writes_the_same_bits_as_one_process(folder, tmp_path, ray, what):
    found = [answered(folder, tmp_path / crew.engine, ANSWERS[what], crew) for crew in (HERE, RAY)]
    assert found[0].equals(found[1])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_ray_draws_the_same_rows_as_one_process(folder, tmp_path, ray):
    for crew in (HERE, RAY):
        path = folder / "model.ctem"
        sample_parts(
            path, 500, str(tmp_path / crew.engine), 7, lambda m, n, rng: m.sample(n, random_state=rng), crew
        )
    found = [pq.read_table(tmp_path / crew.engine) for crew in (HERE, RAY)]
    assert len(found[0]) == 500
    assert found[0].equals(found[1])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_killed_worker_loses_and_doubles_no_row(folder, tmp_path, ray):
    flag, plain = str(tmp_path / "died"), ANSWERS["score"]

    def dying(model, part, X, start, rng):
        if start == 750 and not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(model, part, X, start, rng)

    found = answered(folder, tmp_path / "out", dying, RAY)
    assert os.path.exists(flag)
    assert found.equals(answered(folder, tmp_path / "here", plain, HERE))
    assert sorted(os.listdir(tmp_path / "out")) == [f"part-{i:06d}.parquet" for i in range(4)]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_ray_dataset_is_scored_beside_its_keys(folder, ray):
    assert list(spread(3, lambda: lambda number: 10 * number, workers=2)) != []
    dataset = ray.data.from_arrow(rows())
    found = score(dataset, folder / "model.ctem", workers=1).to_pandas().sort_values("key")
    expected = CTEM.load(folder / "model.ctem").score_samples(rows().drop_columns(["key"]))
    assert np.allclose(found["log_density"], expected, rtol=0, atol=1e-5)
