"""Commands in processes of their own: streams that are closed or full, a plain locale, signals."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from children import HANGS
from small import SMALL

from ctem import CTEM
from ctem.densities.anyorder import Settings

pytestmark = pytest.mark.long

TINY = Settings(width=4, blocks=1, members=1, orders=1, steps=200_000, batch_size=8, evaluate_every=20)
SCRIPT = f"""
from ctem import cli
from ctem.densities.anyorder import Settings
Settings.suited = lambda *sizes, **more: {TINY!r}
cli.app()
"""


def rows(n=120):
    rng = np.random.default_rng(0)
    return pd.DataFrame({"size": rng.normal(size=n).round(2), "city": rng.choice(["Oslo", "Røros"], n)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("border")
    rows().to_csv(folder / "t.csv", index=False)
    CTEM(**{**SMALL, "max_steps": 2}).fit(pa.Table.from_pandas(rows())).save(folder / "m.ctem")
    return folder


def shell(command, folder, **options):
    """A command of the shell in which ctem is ours; its exit code and what it said."""
    ours = f"ctem() {{ '{sys.executable}' -m ctem \"$@\"; }}; {command}"
    run = subprocess.run(
        ["bash", "-c", ours], cwd=folder, capture_output=True, text=True, timeout=HANGS, **options
    )
    return run.returncode, run.stdout, run.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("ctem score m.ctem <&-", "ctem: error: standard input is closed; name a file.\n"),
        ("ctem score m.ctem t.csv >&-", "ctem: error: standard output is closed; name a file.\n"),
        ("ctem info m.ctem > /dev/full", "ctem: error: [Errno 28] No space left on device\n"),
        ("ctem score m.ctem none.csv 2>&-", ""),
    ],
)
def test_a_closed_or_full_stream_is_one_line(folder, command, message):
    assert shell(command, folder) == (1, "", message)


def test_an_ascii_locale_shows_everything(folder):
    plain = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        **{k: os.environ[k] for k in ("PATH",)},
    }
    plain["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    code, out, err = shell("ctem info m.ctem && ctem outliers m.ctem t.csv -n 1", folder, env=plain)
    assert (code, err) == (0, "")
    assert "120 rows" in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint_and_no_other_file(folder, tmp_path, number, code):
    shutil.copy(folder / "m.ctem", tmp_path / "m.ctem")
    command = [sys.executable, "-c", SCRIPT, "fit", folder / "t.csv", "-o", tmp_path / "m.ctem", "-q"]
    heard = {
        "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    }  # tests may run where it is ignored
    with subprocess.Popen([str(each) for each in command], stderr=subprocess.PIPE, text=True, **heard) as run:
        while not (tmp_path / "m.ctem.checkpoint.first").exists():
            assert run.poll() is None
            time.sleep(0.01)
        run.send_signal(number)
        err = run.communicate(timeout=HANGS)[1]
    assert run.returncode == code
    assert "the same command with --resume goes on from there" in err
    assert "Traceback" not in err
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]
    assert (tmp_path / "m.ctem").read_bytes() == (folder / "m.ctem").read_bytes()


FORKED = """
import os, sys
import numpy as np
import torch
from ctem import CTEM
torch.set_num_threads(2)
X = np.random.default_rng(0).normal(size=(2000, 4))
model = CTEM(width=64, blocks=2, members=2, orders=2, max_steps=4, random_state=0).fit(X)
expected = model.score_samples(X)
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0 if np.array_equal(model.score_samples(X), expected) else 1)
"""


def test_a_forked_process_answers_with_the_same_bits_and_does_not_hang():
    run = subprocess.run(
        [sys.executable, "-c", FORKED], timeout=HANGS, env={**os.environ, "OMP_NUM_THREADS": "2"}
    )
    assert run.returncode == 0
