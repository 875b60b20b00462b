"""What experiments with many fits share: systems × seeds × sets, one by one or several at a time, into one file.

With ``--jobs N`` every measurement has a process of its own, N at a time; small fits then share a GPU well, if its
driver lets them (NVIDIA's MPS). What was measured is written after every one, to a folder of its own (``staged``), so
that a run that is cut off keeps it; a measurement that fails is reported, and raised when the others are done.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from ctem.datasets.downloads import root
from experiments.results import EXPERIMENTS, Record, arguments, staged, summarise, write

Values = dict[str, float]  # metric → value
UNSAID = "not said"  # a gap as a label of its own: "?" would be read as missing
DECIDING = 0.3  # of the columns, by which MAR and MNAR masks remove cells
FACTORS = 4  # behind the columns of a made-up table
MOST = 256_000  # rows of the call that a rate is taken over (250 · 4⁵); fewer if it is long
LONG, TOO_LONG, ENOUGH = 0.2, 3.0, 4000  # seconds: with enough rows, and with any
ROUNDS, TREES = 5, 100  # of MissForest
GROUP = 65_536  # rows of a long file written at a time


class Task(NamedTuple):
    """One measurement."""

    data: str
    seed: int
    system: str


Measure = Callable[[Task, argparse.Namespace], Values]
Published = Callable[[str, str], str | None]  # data, metric → the published number


def sweep_arguments(
    description: str, sets: Sequence[str], systems: Sequence[str], seeds: int
) -> argparse.ArgumentParser:
    """The arguments of an experiment with many fits."""
    parser = arguments(description)
    parser.set_defaults(seeds=seeds)
    parser.add_argument("--data", help="folder of the data sets (default: $CTEM_DATA, else downloaded)")
    parser.add_argument("--sets", nargs="*", default=sets, choices=sets, help="which data sets")
    parser.add_argument("--systems", nargs="*", default=systems, choices=systems, help="which systems")
    parser.add_argument("--jobs", type=int, default=1, help="measurements at a time, each in its own process")
    parser.add_argument("--name", help="of the result file, without .json")
    return parser


def group_name(args: argparse.Namespace) -> str:
    """How the file of some of the systems is called, after the experiment's name."""
    if getattr(args, "peers", False):
        return "peers"
    return args.systems[0].replace(" ", "-") if len(args.systems) == 1 else "all"


def tasks(
    args: argparse.Namespace, systems: Sequence[str] | None = None, quick: Sequence[str] = ("toy",)
) -> list[Task]:
    """Seed after seed; one seed of the ``quick`` sets, e.g. a made-up table, with --quick."""
    sets, seeds = (quick, 1) if args.quick else (args.sets, args.seeds)
    return [
        Task(data, seed, system)
        for seed in range(seeds)
        for data in sets
        for system in systems or args.systems
    ]


def sweep(
    measure: Measure,
    todo: Sequence[Task],
    args: argparse.Namespace,
    name: str,
    settings: Mapping[str, Any],
    further: Callable[[Mapping[Task, Values]], list[Record]] = lambda measured: [],
    published: Published = lambda data, metric: None,
    metrics: Collection[str] | None = None,
    protocol: str | None = None,
) -> None:
    """Measure everything and write NAME.json when all is done.

    Arguments:
        further: records made of all values.
        published: the published number beside one of ours.
        metrics: those that are written; all by default.
        protocol: whose published rows stand beside ours (``published_rows``), but not beside those of a quick run.
    """
    began, measured = time.perf_counter(), dict[Task, Values]()
    others = published_rows(protocol) if protocol and not args.quick else []
    with staged(args.out) as out:
        for task, values in _measured(measure, todo, args):
            for metric, value in values.items():
                print(f"{task.data}, seed {task.seed}, {task.system}: {metric} {value:.4f}", flush=True)
            measured[task] = values
            ours = [r for r in _records(measured, todo, published) if metrics is None or r.metric in metrics]
            records, wall = ours + further(measured) + others, time.perf_counter() - began
            write(name, settings, records, args.device, wall, out, quick=args.quick)


def _measured(
    measure: Measure, todo: Sequence[Task], args: argparse.Namespace
) -> Iterator[tuple[Task, Values]]:
    if args.jobs == 1:
        yield from ((task, measure(task, args)) for task in todo)
        return
    fresh = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    with ProcessPoolExecutor(args.jobs, mp_context=fresh) as pool:
        running = {pool.submit(measure, task, args): task for task in todo}
        failed = []
        for future in as_completed(running):
            if future.exception() is None:
                yield running[future], future.result()
            else:
                failed.append(future)
                print(f"{running[future]}: {future.exception()!r}", flush=True)
    for future in failed:  # only now, so that one failure does not lose the others
        future.result()


def _records(measured: Mapping[Task, Values], todo: Sequence[Task], published: Published) -> list[Record]:
    """Mean and spread over the seeds that are there, table after table."""
    lists: dict[tuple[str, str, str], list[float]] = {}
    for task in (task for task in todo if task in measured):
        for metric, value in measured[task].items():
            lists.setdefault((task.data, task.system, metric), []).append(value)
    first = {task.data: i for i, task in reversed(list(enumerate(todo)))}
    order = sorted(lists, key=lambda key: first[key[0]])
    return [
        summarise(data, system, metric, lists[data, system, metric], paper=published(data, metric))
        for data, system, metric in order
    ]


def published_rows(protocol: str) -> list[Record]:
    """The published rows of a protocol, from experiments/published.json: set → metric → system → number."""
    rows = json.loads((EXPERIMENTS / "published.json").read_text(encoding="utf-8"))[protocol]
    return [
        Record(data, f"{system}, published", metric, value, None, 1)
        for data, metrics in rows.items()
        for metric, systems in metrics.items()
        for system, value in systems.items()
    ]


TINY = {"max_steps": 40, "width": 16, "blocks": 1, "members": 2, "orders": 2, "batch_size": 64}  # of CTEM


def need(package: str) -> ModuleType:
    """A package of the extra ``baselines``, or what to do about its absence."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise SystemExit(f"{package} is not here ({error}): pip install 'ctem[baselines]'.") from None


def toy_table(n: int, seed: int) -> pd.DataFrame:
    """Rows of all the kinds that the real tables have: labels, grades, counts, zero-inflated and rounded numbers."""
    rng = np.random.default_rng(seed)
    side = rng.integers(3, size=n)
    size = np.exp(0.5 * rng.normal(size=n) + 0.5 * side)
    return pd.DataFrame(
        {
            "city": np.array(["Bergen", "Oslo", UNSAID])[side],
            "grade": np.clip(side + rng.integers(-1, 2, size=n), 0, 3),
            "years": (10 * size + rng.integers(20, size=n)).astype(np.int64),
            "gain": np.where(rng.random(n) < 0.8, 0, (500 * size).astype(np.int64)),
            "weight": np.round(size + 0.1 * rng.normal(size=n), 2),
        }
    )


def wild(name: str, folder: str | None, naming: Sequence[str] = ()) -> pd.DataFrame:
    """A table of FOLDER/wild (Rdatasets), without the columns that name its rows."""
    path = root(folder) / "wild" / f"{name}.csv.gz"
    if not path.exists():
        raise SystemExit(f"--data: expected a folder with wild/{path.name}; got {root(folder)}.")
    return pd.read_csv(path, keep_default_na=False, na_values=["", "NA"]).drop(columns=list(naming))


def mask(kind: str, frame: pd.DataFrame, labels: Collection[str], rate: float, seed: int) -> np.ndarray:
    """Where cells are removed (n, columns): at random (MCAR), or by logistic models of Muzellec et al. (2020).

    MAR: 30 % of the columns stay, and random weights of these say who loses a cell of the others, at ``rate`` / 0.7.
    MNAR: the same at ``rate``, and the columns that decide lose cells at random, too.
    """
    rng = np.random.default_rng(seed)
    if kind == "MCAR":
        return rng.random(frame.shape) < rate
    columns = [pd.factorize(frame[n], sort=True)[0] if n in labels else frame[n] for n in frame]
    X, d = np.column_stack(columns).astype(np.float64), frame.shape[1]
    inputs = rng.choice(d, max(int(DECIDING * d), 1), replace=False)
    rest = np.setdiff1d(np.arange(d), inputs)
    z = X[:, inputs] @ rng.normal(size=(len(inputs), len(rest)))
    z = (z - z.mean(0)) / z.std(0)
    p = expit(z + _intercepts(z, rate / (1 - DECIDING) if kind == "MAR" else rate))
    gone = np.zeros(X.shape, bool)
    gone[:, rest] = rng.random(p.shape) < p
    if kind == "MNAR":
        gone[:, inputs] = rng.random((len(X), len(inputs))) < rate
    return gone


def _intercepts(z: np.ndarray, share: float) -> np.ndarray:
    """c with mean σ(z + c) = share in every column."""
    return np.array([brentq(lambda c, of=of: expit(of + c).mean() - share, -1e3, 1e3) for of in z.T])


def errors(test: pd.DataFrame, filled: pd.DataFrame, gone: np.ndarray, labels: list[str], train) -> tuple:
    """Squared errors of all hidden numbers, standardised, and hits of all hidden labels."""
    square, hits = [np.zeros(0)], [np.zeros(0)]
    for j, name in enumerate(test):
        truth, answer = test[name][gone[:, j]], filled[name][gone[:, j]]
        if name in labels:
            hits.append(
                np.array([a == b or str(a) == str(b) for a, b in zip(truth, answer, strict=True)], float)
            )
        else:
            square.append(((answer - truth).to_numpy(float) / train[name].std(ddof=0)) ** 2)
    return np.concatenate(square), np.concatenate(hits)


def made_up(rows: int, columns: int, seed: int) -> pd.DataFrame:
    """Numbers and labels that hang together by a few factors, as long and as wide as asked."""
    rng = np.random.default_rng(seed)
    loads = rng.normal(size=(FACTORS, columns))
    z = rng.normal(size=(rows, FACTORS)) @ loads / FACTORS**0.5 + 0.5 * rng.normal(size=(rows, columns))
    label = np.array(list("abcd"))
    return pd.DataFrame(
        {
            f"c{j}": label[np.digitize(z[:, j], (-1, 0, 1))] if j % 3 == 0 else z[:, j].round(2)
            for j in range(columns)
        }
    )


def timed(use: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    made = use()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return made, time.perf_counter() - began


def milliseconds(steps: Callable[[int], Any], few: int = 10, many: int = 40) -> float:
    """Of one step, from the difference of a short and a longer run."""
    steps(few)
    (_, short), (_, long) = timed(lambda: steps(few)), timed(lambda: steps(many))
    return 1000 * (long - short) / (many - few)


def product_speed(device: str, size: int = 2048) -> float:
    """FLOP a second of large products."""
    a = torch.ones(size, size, device=device)
    return 2 * size**3 * _a_second(lambda: a @ a)


def copy_speed(device: str, size: int = 2**26) -> float:
    """Bytes a second that a large copy reads and writes."""
    a, b = torch.ones(size, device=device), torch.ones(size, device=device)
    return 2 * a.nbytes * _a_second(lambda: b.copy_(a))


def _a_second(work: Callable[[], Any], times: int = 5) -> float:
    timed(work)
    return times / timed(lambda: [work() for _ in range(times)])[1]


def with_memory(use: Callable[[], Any], device: str) -> tuple[Any, float, Values]:
    """What was made, in how many seconds, and the peak of memory meanwhile (of this process; of the device)."""
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if reset.exists():
        reset.write_text("5")  # Linux: the peak starts anew
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    made, seconds = timed(use)
    values = {}
    if reset.exists():
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        values["peak memory, MB"] = int(peak.split()[1]) / 1024
    if device == "cuda":
        values["peak memory of the device, MB"] = torch.cuda.max_memory_allocated() / 2**20
    return made, seconds, values


def rate(use: Callable[[int], Any], rows: int = 250, most: int = MOST) -> float:
    """Rows a second: ever more rows, until a call is long enough to be timed or there are no more."""
    rows = min(rows, most)
    use(rows)
    while True:
        _, seconds = timed(partial(use, rows))
        if rows >= most or seconds > (LONG if rows >= ENOUGH else TOO_LONG):
            return rows / seconds
        rows = min(4 * rows, most)


def repeated(frame: pd.DataFrame, rows: int, path: Path) -> None:
    """A Parquet file of so many complete rows, written in groups."""
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    rng, whole = np.random.default_rng(0), pa.Table.from_pandas(frame.dropna(), preserve_index=False)
    with parquet.ParquetWriter(path, whole.schema) as sink:
        for start in range(0, rows, GROUP):
            sink.write_table(whole.take(rng.integers(len(whole), size=min(GROUP, rows - start))))


def scored(model: Path, table: Path, device: str) -> tuple[float, float]:
    """Seconds and peak memory (MB) of ``ctem score`` on a file."""
    scores = table.with_suffix(".scores.parquet")
    command = [sys.executable, "-m", "ctem", "score", str(model), str(table), "--quiet"]
    began = time.perf_counter()
    child = subprocess.Popen([*command, "--device", device, "-o", str(scores)])
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"ctem score ended with {child.returncode}: {' '.join(command)}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def forest(gappy: pd.DataFrame, seed: int, jobs: int) -> pd.DataFrame:
    """MissForest: columns in turn, those with the fewest gaps first, until a round changes more than the one before."""
    numbers, made = [name for name in gappy if pd.api.types.is_numeric_dtype(gappy[name])], gappy.copy()
    values = {name: gappy[name].astype("category").cat.categories for name in gappy if name not in numbers}
    for name in gappy:
        known = gappy[name].dropna()
        made[name] = gappy[name].fillna(known.mean() if name in numbers else known.mode()[0])
        if name in values:
            made[name] = values[name].get_indexer(made[name])
    before, change = made, np.inf
    for _ in range(ROUNDS):
        made = _grown(made, gappy.isna(), numbers, seed, jobs)
        moved = float(((made - before) / made.std().replace(0, 1)).pow(2).to_numpy().sum())
        if moved > change:
            made = before
            break
        before, change = made, moved
    return made.assign(
        **{name: labels.to_numpy()[made[name].to_numpy(int)] for name, labels in values.items()}
    )


def _grown(made: pd.DataFrame, gaps: pd.DataFrame, numbers: list[str], seed: int, jobs: int) -> pd.DataFrame:
    """One round of MissForest."""
    made = made.copy()
    settings = {"n_estimators": TREES, "max_features": "sqrt", "random_state": seed, "n_jobs": jobs}
    for name in gaps.sum().sort_values(kind="stable").index:
        gone, others = gaps[name], made.drop(columns=name)
        if gone.any():
            trees = (RandomForestRegressor if name in numbers else RandomForestClassifier)(**settings)
            made.loc[gone, name] = trees.fit(others[~gone], made.loc[~gone, name]).predict(others[gone])
    return made
