"""Several processes that train one model, started by torchrun, on the CPU by gloo."""

import json
import os
import signal
import socket
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import ctem
from ctem.bases import ProductBase
from ctem.densities.anyorder import AnyOrderNet
from ctem.densities.anyorder.objective import HiddenColumns
from ctem.spaces import Category, Real, Space
from ctem.training import Recipe, team, together, train

RECIPE = Recipe(steps=30, evaluate_every=10, batch_size=64, shards=2, ema=0.9)


def trained(checkpoint=None, dying=None):
    """The history of a training; a process of rank 1 is killed in the step ``dying``."""
    space, generator = Space([Real(), Real(), Category(3)]), torch.Generator().manual_seed(0)
    side = torch.randint(3, (500, 1), generator=generator).float()
    x = torch.cat([torch.randn(500, 2, generator=generator) + side, side], 1)
    net, objective, steps = AnyOrderNet(ProductBase.fit(space, x), width=16, members=2), HiddenColumns(), []

    def loss(net, rows, generator):
        steps.append(rows)
        if dying is not None and len(steps) == dying and team().rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return objective(net, rows, generator)

    held_out, weights = x[:100].expand(2, -1, -1), torch.ones(2, 500)
    return train(net, loss, x, RECIPE, held_out=held_out, weights=weights, checkpoint=checkpoint)


def torchrun(*arguments):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        *arguments,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)


def by_two(path, *arguments):
    return torchrun(__file__, str(path), *map(str, arguments))


def free_port():
    with socket.socket() as here:
        here.bind(("127.0.0.1", 0))
        return str(here.getsockname()[1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="two processes would want a GPU each")
def test_two_processes_learn_what_one_does_with_the_same_batches(tmp_path, monkeypatch):
    """What torchrun says to each is said by hand: this process is the first, so that only one has to start."""
    said = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "OMP_NUM_THREADS": "1"}
    second = subprocess.Popen([sys.executable, __file__, tmp_path], env={**os.environ, **said, "RANK": "1"})
    with monkeypatch.context() as patch:
        for name, value in {**said, "RANK": "0"}.items():
            patch.setenv(name, value)
        with together() as here:
            assert (here.rank, here.ranks) == (0, 2)
            two = trained()
    assert second.wait(60) == 0
    one = trained()
    assert one.held_out == pytest.approx(two.held_out, abs=1e-4)
    assert one.loss == pytest.approx(two.loss, abs=1e-4)
    assert one.held_out[-1] < one.held_out[0] - 0.01  # and something was learned


@pytest.mark.long
def test_a_process_that_dies_ends_the_run_with_a_word_and_it_can_be_resumed(tmp_path):
    run = by_two(tmp_path / "history", tmp_path / "run", 25)
    assert run.returncode != 0
    # torchrun says who died, and ends the other, unless that was faster to say it
    assert "Signal 9 (SIGKILL)" in run.stderr
    assert "another process of this fit has ended" in run.stderr or "Signal 15 (SIGTERM)" in run.stderr
    assert not (tmp_path / "history").exists()
    assert (tmp_path / "run").exists()
    run = by_two(tmp_path / "history", tmp_path / "run")
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "history").read_text())["held_out"] == pytest.approx(
        trained().held_out, abs=1e-4
    )


@pytest.mark.long
@pytest.mark.parametrize("memory", ["1GB", "6MB"])
def test_the_command_line_fits_by_two_processes_and_writes_one_file(tmp_path, memory):
    generator = torch.Generator().manual_seed(0)
    (tmp_path / "parts").mkdir()
    for i in range(3):
        rows = torch.randn(20_000, 2, generator=generator).cumsum(1)
        pq.write_table(
            pa.table({"a": rows[:, 0].numpy(), "b": rows[:, 1].numpy()}), tmp_path / f"parts/{i}.parquet"
        )
    output = tmp_path / "out" / "m.ctem"
    output.parent.mkdir()
    said = ["--memory", memory, "--max-steps", "20", "--effort", "quick"]
    run = torchrun("-m", "ctem", "fit", str(tmp_path / "parts"), "-o", str(output), *said)
    assert run.returncode == 0, run.stderr
    assert [path.name for path in output.parent.iterdir() if not path.name.endswith(".lock")] == ["m.ctem"]
    assert ctem.CTEM.load(output).n_samples_seen_ == 60_000


def test_without_torchrun_a_team_is_one_process():
    with together() as here:
        assert (here.rank, here.ranks, here.first) == (0, 1, True)
        assert here.gathered("mine") == ["mine"]


if __name__ == "__main__":
    where, checkpoint, dying = [*sys.argv[1:], None, None][:3]
    with together() as here:
        found = trained(checkpoint, None if dying is None else int(dying))
        if here.first:
            with open(where, "w") as file:
                json.dump({"held_out": found.held_out, "loss": found.loss}, file)
