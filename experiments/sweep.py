"""What experiments with many fits share: systems × seeds × sets, one by one or several at a time, into one file.

With ``--jobs N`` every measurement has a process of its own, N at a time; small fits then share a GPU well, if its
driver lets them (NVIDIA's MPS). What was measured is written after every one, so that a run that is cut off keeps it;
a measurement that fails is reported, and raised when the others are done.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.results import Record, arguments, summarise, write

Values = dict[str, float]  # metric → value


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
    further: Callable[[Mapping[Task, Values]], list[Record]] = lambda found: [],
    published: Published = lambda data, metric: None,
) -> None:
    """Measure everything and write NAME.json, with ``further`` records made of all values."""
    began, found = time.perf_counter(), dict[Task, Values]()
    for task, values in _measured(measure, todo, args):
        for metric, value in values.items():
            print(f"{task.data}, seed {task.seed}, {task.system}: {metric} {value:.4f}", flush=True)
        found[task] = values
        records = _records(found, todo, published) + further(found)
        write(name, settings, records, args.device, time.perf_counter() - began, args.out, quick=args.quick)


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


def _records(found: Mapping[Task, Values], todo: Sequence[Task], published: Published) -> list[Record]:
    """Mean and spread over the seeds that are there, table after table."""
    lists: dict[tuple[str, str, str], list[float]] = {}
    for task in (task for task in todo if task in found):
        for metric, value in found[task].items():
            lists.setdefault((task.data, task.system, metric), []).append(value)
    first = {task.data: i for i, task in reversed(list(enumerate(todo)))}
    order = sorted(lists, key=lambda key: first[key[0]])
    return [
        summarise(data, system, metric, lists[data, system, metric], paper=published(data, metric))
        for data, system, metric in order
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
            "city": np.array(["Bergen", "Oslo", "?"])[side],
            "grade": np.clip(side + rng.integers(-1, 2, size=n), 0, 3),
            "years": (10 * size + rng.integers(20, size=n)).astype(np.int64),
            "gain": np.where(rng.random(n) < 0.8, 0, (500 * size).astype(np.int64)),
            "weight": np.round(size + 0.1 * rng.normal(size=n), 2),
        }
    )
