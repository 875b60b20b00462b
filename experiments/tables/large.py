"""What large tables cost: rates, a streamed fit, twenty million rows, two processes.

    python -m experiments.tables.large                         rates; rows of a known process, streamed
    python -m experiments.tables.large --far --folder FOLDER   rows of a model of Adult, by the command line and Ray
    python -m experiments.tables.large --processes             training by one process and by two

Times are CPU seconds of one thread, which other programs on the machine change little; those of ``--processes`` are by
the clock, and want a machine with nothing else to do. What ``--far`` has done is kept in its folder: it can be cut off.
``make cost`` writes docs/cost.md from what the first two have written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from ctem import CTEM
from ctem.bases import ProductBase
from ctem.datasets import load_table
from ctem.densities.anyorder import AnyOrderNet, HiddenColumns, Settings
from ctem.fitting.streaming import Span, shuffled, survey
from ctem.tables.io.frame import read_frame
from ctem.tables.io.large import open_large
from ctem.tables.schema import Schema
from ctem.training import Recipe, together, train
from experiments.results import ROOT, arguments, staged, summarise, write

ROWS, FILES, MEMORY, STEPS, SMALLER = 2_000_000, 20, "300MB", 120, 200_000
SETTINGS = {"members": 2, "orders": 2, "width": 128, "blocks": 2, "batch_size": 1024}
CLASSES, LABELS, NUMBERS = 6, 8, 7
SOURCE = {"width": 32, "blocks": 1, "members": 1, "orders": 1, "max_steps": 800, "random_state": 0}
FAR = {"files": 100, "each": 200_000, "steps": 300, "memory": "1GB", "new": 20_000}  # each: rows of a file
FAR_QUICK = {"files": 6, "each": 5_000, "steps": 20, "memory": "20MB", "new": 500}
PROCESSES = {"steps": 60, "batch_size": 1024, "repeats": 7}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def rows(n: int, seed: int) -> pa.Table:
    """Fifteen columns that depend on a hidden class: labels, numbers, rounded and with gaps."""
    rng, shape = np.random.default_rng([seed, 1]), np.random.default_rng(0)
    side = rng.integers(CLASSES, size=n)
    made = {}
    for j in range(LABELS):
        chances = shape.dirichlet(np.ones(3 + j), CLASSES).cumsum(1)
        codes = (rng.random(n)[:, None] > chances[side]).sum(1).clip(max=2 + j)
        made[f"label{j}"] = pa.DictionaryArray.from_arrays(
            pa.array(codes, pa.int32()), [f"v{k}" for k in range(3 + j)]
        ).cast(pa.string())
    for j in range(NUMBERS):
        values = shape.normal(scale=2, size=CLASSES)[side] + rng.normal(size=n)
        values = np.round(values * 10, 0) if j % 2 else values
        made[f"number{j}"] = pa.array(values, mask=(rng.random(n) < 0.05) if j == 0 else None)
    return pa.table(made)


def timed(work):
    """What work gives, and its CPU seconds."""
    began = time.process_time()
    return work(), time.process_time() - began


def written(folder: Path, n: int, files: int) -> None:
    for i in range(files):
        pq.write_table(rows(n // files, seed=i), folder / f"part-{i:04d}.parquet")


def pass_rates(folder: Path) -> dict[str, float]:
    """Rows a second of the two passes, on one file."""
    with open_large(folder / "part-0000.parquet") as large:
        sketch, reading = timed(lambda: survey(large, "1GB", seed=0))
        frame = read_frame(sketch.sample())
        schema, _ = timed(lambda: Schema.fit(frame))

        def encode() -> int:
            with shuffled(large, schema, frame.table_type, Span(0, 2**64 - 1), 0) as file:
                return len(file.rows)

        count, encoding = timed(encode)
    return {"read": sketch.rows / reading, "encode": count / encoding}


def fitted(X, steps: int, memory: str = "1GB") -> tuple[CTEM, float]:
    return timed(
        lambda: CTEM(**SETTINGS, max_steps=steps, random_state=0, device="cpu").fit(X, memory=memory)
    )


def answer_rates(model: CTEM, n: int) -> dict[str, float]:
    table = rows(n, seed=10**6)
    _, scoring = timed(lambda: model.score_samples(table))
    _, drawing = timed(lambda: model.sample(n, random_state=0))
    return {"score": n / scoring, "sample": n / drawing}


def source(folder: Path, data: Path | None, quick: bool) -> CTEM:
    """The model of Adult (a made-up table if it is quick) that the rows of ``--far`` are drawn from."""
    path = folder / "source.ctem"
    if not path.exists():
        X, said = (rows(2000, 0).to_pandas(), {"max_steps": 20}) if quick else (load_table("adult", data), {})
        CTEM(**{**SOURCE, **said}, device="cpu").fit(X).save(path)
    return CTEM.load(path, device="cpu")


def drawn(folder: Path, model: CTEM, files: int, each: int) -> Path:
    """A folder of files of rows, and one more file beside it; those that are there already are left alone."""
    (folder / "rows").mkdir(exist_ok=True)
    for i in range(files + 1):
        path = folder / ("rows" if i < files else "") / f"part-{i:04d}.parquet"
        if not path.exists():
            part = path.with_suffix(".tmp")
            model.sample(each if i < files else each // 4, random_state=i).to_parquet(part, index=False)
            part.rename(path)
    return folder / "rows"


def kept(work):
    """What work gives, a dict of numbers, kept in a file of the folder by its name."""

    def once(folder: Path, name: str, *rest) -> dict[str, float]:
        path = folder / f"{name}.json"
        if not path.exists():
            path.write_text(json.dumps(work(folder, name, *rest)))
        return json.loads(path.read_text())

    return once


@kept
def command(folder: Path, name: str, words: list[str], dying: int = 0) -> dict[str, float]:
    """CPU seconds, the clock's, and the greatest memory in GB of a run of the command line, in a process of its own.

    After so many files of output (``dying`` > 0), one of Ray's workers is killed.
    """
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "ctem", *words], cwd=ROOT, env={**os.environ, **ONE_THREAD}
    )
    killed = _kill_worker(child.pid, Path(words[words.index("-o") + 1]), dying) if dying else 0
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise RuntimeError(f"ctem {' '.join(words)}: ended with {status}.")
    wall, cpu = time.perf_counter() - began, used.ru_utime + used.ru_stime
    return {"cpu": cpu, "wall": wall, "peak": used.ru_maxrss / 1e6, "killed": killed}


def _kill_worker(driver: int, output: Path, after: int) -> int:
    """End one of the workers that a driver has started, by kill -9, when so many parts are there."""
    while len(list(output.glob("part-*.parquet"))) < after:
        time.sleep(0.05)
    mine = [pid for pid in _workers() if driver in _ancestors(pid)]
    os.kill(mine[0], signal.SIGKILL)
    return 1


def _workers() -> list[int]:
    paths = [path for path in Path("/proc").glob("[0-9]*") if (path / "cmdline").exists()]
    return [int(path.name) for path in paths if b"ray::MapWorker" in (path / "cmdline").read_bytes()]


def _ancestors(pid: int) -> list[int]:
    found = [pid]
    while found[-1] > 1:
        stat = Path(f"/proc/{found[-1]}/stat").read_text()
        found.append(int(stat.rpartition(")")[2].split()[1]))
    return found


@kept
def compared(folder: Path, name: str, most: int) -> dict[str, float]:
    """Nats of new rows under both models, the difference and its standard error; CPU seconds of a score."""
    new = pq.read_table(next(folder.glob("part-*.parquet"))).slice(0, most)
    each = {}
    for what in ("large", "small"):
        each[what], seconds = timed(lambda what=what: CTEM.load(folder / f"{what}.ctem").score_samples(new))
    gain = each["large"] - each["small"]
    spread = float(gain.std(ddof=1) / len(new) ** 0.5)
    means = {what: float(values.mean()) for what, values in each.items()}
    return {**means, "gain": float(gain.mean()), "stderr": spread, "exact": len(new) / seconds}


def hashes(folder: Path) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())]


def far(
    folder: Path, model: CTEM, files: int, each: int, steps: int, memory: str, new: int
) -> dict[str, float]:
    """Draw, fit, score, kill: what came out, by metric."""
    rows = str(drawn(folder, model, files, each))
    how = ["--max-steps", str(steps), "--memory", memory, "--device", "cpu", "-q"]
    facts = {"rows": files * each, "files": files}
    for what, table in (("large", rows), ("small", f"{rows}/part-0000.parquet")):
        path = str(folder / f"{what}.ctem")
        done = command(folder, f"fit-{what}", ["fit", table, "-o", path, *how])
        facts |= {f"{what} {key}": done[key] for key in ("cpu", "wall", "peak")}
    facts |= compared(folder, "nats", new)
    some = folder / "some"  # the chain rule over all rows would take hours
    some.mkdir(exist_ok=True)
    for path in sorted(Path(rows).iterdir())[: max(files // 10, 2)]:
        if not (some / path.name).exists():
            (some / path.name).hardlink_to(path)
    for what, crew in {"one": [], "ray": ["--engine", "ray", "--workers", "2"]}.items():
        words = ["score", str(folder / "small.ctem"), str(some), "-o", str(folder / what), *crew]
        done = command(folder, f"score-{what}", [*words, "-q"], 1 if crew else 0)
        facts |= {f"{what} {key}": done[key] for key in ("cpu", "wall", "peak")}
        facts[f"{what} same"] = hashes(folder / what) == hashes(folder / "one")
    return {what: float(value) for what, value in facts.items()}


def training(steps: int, batch_size: int, shards: int) -> dict[str, float]:
    """Rows a second of a training by the processes that are here, and its last held-out loss."""
    frame = read_frame(rows(20_000, seed=0))
    schema = Schema.fit(frame)
    x = schema.encode(frame).x
    base, members = ProductBase.fit(schema.space, x), SETTINGS["members"]
    net = AnyOrderNet(base, **Settings(width=SETTINGS["width"], members=members).network)
    recipe = Recipe(steps=steps, evaluate_every=steps // 2, batch_size=batch_size, shards=shards, ema=0.99)
    held_out, weights = x[:1000].expand(members, -1, -1), torch.ones(members, len(x))
    with together() as here:
        done = train(net, HiddenColumns(schema.parents), x, recipe, held_out=held_out, weights=weights)
    return {
        "first": here.first,
        "rate": steps * batch_size * members / done.seconds,
        "loss": done.held_out[-1],
    }


def member(path: Path, words: list[str]) -> None:
    """One process of a training; the first writes what was measured."""
    found = training(*map(int, words))
    if found.pop("first"):
        path.write_text(json.dumps(found))


def processes(steps: int, batch_size: int, repeats: int) -> dict[str, list[float]]:
    """Rows a second by one process and by two, in turns, and how far their held-out losses are apart."""
    found: dict[str, list[float]] = {"one": [], "two": [], "gain": [], "apart": []}
    for _ in range(repeats):
        one = _trained(1, [steps, batch_size, 1])
        two = _trained(2, [steps, batch_size, 2])
        found["one"].append(one["rate"])
        found["two"].append(two["rate"])
        found["gain"].append(two["rate"] / one["rate"])
    found["apart"].append(abs(_trained(1, [steps, batch_size, 2])["loss"] - two["loss"]))
    return {**found, **{f"median {what}": [float(np.median(found[what]))] for what in ("one", "two", "gain")}}


def _trained(ranks: int, words: list[int]) -> dict[str, float]:
    run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "found")
        own = [*run, "-m", "experiments.tables.large", "--member", str(path), *map(str, words)]
        subprocess.run([sys.executable, *own], cwd=ROOT, env={**os.environ, **ONE_THREAD}, check=True)
        return json.loads(path.read_text())


def measured(n: int, files: int, steps: int, some: int, memory: str) -> dict[str, float]:
    """Rates, and a streamed fit beside one in memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written(folder, n, files)
        rates = pass_rates(folder)
        large, seconds = fitted(folder, steps, memory)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    rates |= answer_rates(large, some)
    small, spent = fitted(rows(min(SMALLER, n // 10), seed=0), steps)
    rates["step"] = small.history_["step"][-1] / spent
    new = rows(some, seed=10**6 + 1)
    predicted = n / rates["read"] + n / rates["encode"] + steps / rates["step"]
    facts = {"rows": n, "files": files, "seconds": seconds, "predicted": predicted, "peak": peak}
    return {**rates, **facts, "large": large.score(new), "small": small.score(new)}


def parsed() -> argparse.Namespace:
    parser = arguments("Large tables: rates, streamed fits, several processes.")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--far", action="store_true", help="twenty million rows, by the command line")
    parser.add_argument("--folder", type=Path, help="of --far, for what it draws and makes")
    parser.add_argument("--data", type=Path, help="folder of data sets")
    parser.add_argument("--processes", action="store_true", help="one process beside two")
    parser.add_argument("--member", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser.parse_args()


def run(args: argparse.Namespace, out: Path) -> None:
    """Measure, and write one result."""
    began, name, system = time.perf_counter(), "large", "streamed"
    if args.far:
        name, system, settings = "large-far", "command line", FAR_QUICK if args.quick else FAR
        with tempfile.TemporaryDirectory() as own:
            folder = (args.folder or Path(own)).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            model = source(folder, args.data, args.quick)
            found = {what: [value] for what, value in far(folder, model, **settings).items()}
    elif args.processes:
        name, system = "large-processes", "training"
        settings = {"steps": 20, "batch_size": 256, "repeats": 1} if args.quick else PROCESSES
        found = processes(**settings)
    else:
        sizes = (60_000, 3, 20, 5_000, "25MB") if args.quick else (args.rows, FILES, STEPS, 20_000, MEMORY)
        settings = {"steps": sizes[2], "memory": sizes[4], **SETTINGS}
        found = {what: [value] for what, value in measured(*sizes).items()}
    dataset = f"{int(found['rows'][0])} rows" if "rows" in found else "rows a second"
    records = [summarise(dataset, system, what, values) for what, values in found.items()]
    parts = sum(values[0] for what, values in found.items() if what.endswith("wall"))
    wall = max(time.perf_counter() - began, parts)  # of which some were done before it was cut off
    write(name, settings, records, "cpu (1 thread)", wall, out, quick=args.quick)


def main() -> None:
    args = parsed()
    torch.set_num_threads(1)
    if args.member:
        member(Path(args.member[0]), args.member[1:])
    else:
        with staged(args.out) as out:
            run(args, out)


if __name__ == "__main__":
    main()
