"""Held-out nats against seconds, ours beside its peers on the same machine and split; rates, memory, growth; a step.

    python -m experiments.tables.bench --data FOLDER                     everything, on this CPU (or: make bench)
    python -m experiments.tables.bench --data FOLDER --device cuda       the same where there is a GPU
    python -m experiments.tables.bench --what figure --device cuda       only the figure, from the files in --out
    python -m experiments.tables.bench --what file --lines 5000000       a long file, scored in a process of its own

nats: log P of test rows as written (``nats.py``), the same rows for every system. A point of ours is a whole fit of
``CTEM()``: the default, and the default told to end within an eighth, a quarter and a half of the seconds that it took.
The flow is trained once; its weights are kept, and judged afterwards, at several of its own looks. The others have one
point. Seconds are from the table to the model, all choices included. "seconds to the flow's best nats" is when each is
first within 0.01 of the best that the flow reaches at any look: ours over the flow's own, below 1 if ours is sooner.
growth: a made-up table of 10³ … 10⁶ rows and of 5 … 500 columns. step: what one training step consists of.
file: peak memory of ``ctem score`` on a Parquet file at a tenth of the rows and at all of them.
One result for each of ``--what`` and device, bench-….json, and the figure bench-….png. Peers other than the flow run on
the CPU; of a peer's draws only the dependence is timed, since its margins are ours and slow to invert. A peer whose
package is not here is left out, and that is said.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ctem import CTEM, train
from ctem.datasets import load_penguins, load_table
from ctem.densities.anyorder.fitting import split_rows
from ctem.densities.anyorder.objective import HiddenColumns
from ctem.tables.answers.density import TableDensity
from ctem.tables.io.frame import read_frame
from experiments.results import arguments, replace_bytes, staged, summarise, write
from experiments.sweep import (
    MOST,
    TINY,
    Values,
    copy_speed,
    made_up,
    milliseconds,
    need,
    product_speed,
    rate,
    repeated,
    scored,
    timed,
    toy_table,
    with_memory,
)
from experiments.tables.forests import Boosted, Forest
from experiments.tables.nats import (
    DRAWS,
    FLOW_STEPS,
    PEERS,
    Curve,
    beside_the_flow,
    flow_course,
    our_nats,
    split,
)
from experiments.tables.peers import Kernels

SETS = ("penguins", "abalone", "california", "adult", "default")
GROWN = {"arfpy": Forest, "NRGBoost": Boosted}
ONE_POINT = {**PEERS, "kernel density": Kernels, **GROWN}
SYSTEMS = ("CTEM", "spline flow", *ONE_POINT)
PACKAGES = {"spline flow": "zuko", "arfpy": "arfpy", "NRGBoost": "nrgboost"}
WHAT = ("nats", "growth", "step", "file", "figure")
SHARES = (1 / 8, 1 / 4, 1 / 2)  # of the seconds of a default fit, for the shorter ones
JUDGED = 2000  # test rows, at most
LOOKS = 10  # at the flow, of those that it takes
ROWS, COLUMNS = (1000, 10_000, 100_000, 1_000_000), (5, 50, 500)  # of the made-up table
SHOWN, TICKS = 12, (1, 2, 5)  # of the figure: nats below the best, and seconds that are named in a decade
WIDTH, LENGTH = 15, 5000  # columns where rows grow, rows where columns grow
PRODUCTS = tuple(f"aten::{name}" for name in ("mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_"))

Args = argparse.Namespace
Found = dict[tuple[str, str, str], list[float]]  # (data, system, metric) → one value a seed


class Measured(NamedTuple):
    """One system on one table."""

    curve: Curve
    values: Values


class Book:
    """What is measured by one ``--what``, printed and saved as it comes."""

    def __init__(self, what: str, args: Args, out: Path):
        self.name, self.args = "-".join(filter(None, ["bench", what, args.name, args.device])), args
        self.out = out
        self.began, self.found = time.perf_counter(), Found()
        self.curves: dict[str, dict[str, Curve]] = {}

    def note(self, data: str, system: str, values: Values) -> None:
        for metric, value in values.items():
            self.found.setdefault((data, system, metric), []).append(value)
            print(f"{data}, {system}: {metric} {value:.4g}", flush=True)
        settings = {"model": "CTEM()", "test rows, at most": JUDGED, "draws in a cell": DRAWS}
        records = [summarise(*key, of) for key, of in self.found.items()]
        seconds, args = time.perf_counter() - self.began, self.args
        more = {"curves": self.curves} if self.curves else {}
        write(self.name, settings, records, args.device, seconds, self.out, quick=args.quick, **more)


def tables(args: Args) -> Iterable[tuple[str, pd.DataFrame]]:
    if args.quick:
        yield from (("penguins", load_penguins().dropna()), ("made up", toy_table(1500, 0)))
        return
    for name in args.sets:
        frame = load_penguins() if name == "penguins" else load_table(name, args.data)
        yield name, frame.dropna()


def default(args: Args, seed: int, **more: Any) -> CTEM:
    brief = {"effort": "quick", "max_steps": 200} if args.quick else {}
    return CTEM(random_state=seed, device=args.device, **brief | more)


def rates(rows: pd.DataFrame, score: Callable[[pd.DataFrame], Any], draw: Callable[[int], Any]) -> Values:
    some = rows.drop_duplicates().sample(frac=1, random_state=0)  # equal rows would share their passes
    return {
        "rows per second, scored": rate(lambda n: score(some[:n]), most=min(MOST, len(some))),
        "rows per second, drawn": rate(draw),
    }


def ours(train: pd.DataFrame, test: pd.DataFrame, seed: int, args: Args) -> Measured:
    """The default fit, and shorter ones."""

    def judged(model: CTEM) -> float:
        return our_nats(model.schema_, model.score_samples, test, seed)

    model, seconds, memory = with_memory(lambda: default(args, seed).fit(train), args.device)
    curve = [(seconds, judged(model))]
    for share in args.shares:
        shorter, spent = timed(lambda share=share: cut(default(args, seed, max_time=share * seconds), train))
        curve.insert(-1, (spent, judged(shorter)))
    rows = pd.concat([test, train])
    speed = rates(rows, model.score_samples, lambda n: model.sample(n, random_state=seed))
    return Measured(curve, {"test nats": curve[-1][1], "fit, seconds": seconds, **speed, **memory})


def cut(model: CTEM, train: pd.DataFrame) -> CTEM:
    """A fit that ends before it has learned all, as it is meant to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "max_time: ")
        return model.fit(train)


def spline_flow(train: pd.DataFrame, test: pd.DataFrame, seed: int, args: Args) -> Measured:
    """The flow at several moments of one training, and as its own held-out rows choose it."""
    how = {"steps": 200, "every": 20} if args.quick else {"steps": FLOW_STEPS, "every": 100, "patience": 12}
    (flow, kept), seconds, memory = with_memory(
        lambda: flow_course(train, seed, args.device, **how), args.device
    )

    def judged() -> float:
        flow.rng = np.random.default_rng(seed)  # the same places in the cells every time
        return float(flow.log_prob(test, DRAWS).mean())

    speed = rates(pd.concat([test, train]), lambda rows: flow.log_prob(rows, 1), flow.uniforms)
    values = {"test nats": judged(), "fit, seconds": seconds, **speed, **memory}
    curve = []
    for i in sorted(set(np.geomspace(1, len(kept), LOOKS).astype(int) - 1)):
        flow.flow.load_state_dict(kept[i][1])
        curve.append((kept[i][0], judged()))
    return Measured(curve, values)


def one_point(name: str, train: pd.DataFrame, test: pd.DataFrame, seed: int, args: Args) -> Measured:
    """A peer whose fit has no course: on the CPU, whatever the device."""
    how = {"trees": 3} if args.quick and name in GROWN else {}
    peer, seconds, memory = with_memory(lambda: ONE_POINT[name](train, seed, **how), "cpu")
    nats = float(peer.log_prob(test, DRAWS).mean())
    speed = rates(pd.concat([test, train]), lambda rows: peer.log_prob(rows, 1), peer.uniforms)
    return Measured([(seconds, nats)], {"test nats": nats, "fit, seconds": seconds, **speed, **memory})


def nats(book: Book, args: Args) -> None:
    """Every system on every table."""
    # what a process does once is nobody's time
    CTEM(**TINY, random_state=0, device=args.device).fit(toy_table(300, 0))
    for seed in range(args.seeds or 1):
        for data, frame in tables(args):
            train, test = split(frame, seed)
            curves = book.curves.setdefault(data, {})
            for name in args.systems:
                curves[name], values = measured(name, train, test[:JUDGED], seed, args)
                book.note(data, name, values)
            if {"CTEM", "spline flow"} <= set(curves):
                book.note(data, "CTEM", beside_the_flow(curves["CTEM"], curves["spline flow"]))


def measured(name: str, train: pd.DataFrame, test: pd.DataFrame, seed: int, args: Args) -> Measured:
    if name == "CTEM":
        return ours(train, test, seed, args)
    if name == "spline flow":
        return spline_flow(train, test, seed, args)
    return one_point(name, train, test, seed, args)


def growth(book: Book, args: Args) -> None:
    """The default on ever longer and wider tables, within a time."""
    by_rows, by_columns = ((1000, 3000), (5, 20)) if args.quick else (args.rows, COLUMNS)
    limit = 5 if args.quick else args.longest
    for rows, columns in [*((n, WIDTH) for n in by_rows), *((LENGTH, d) for d in by_columns)]:
        frame = made_up(rows + JUDGED, columns, 0)
        train, test = frame[:rows], frame[rows:]
        model, seconds, memory = with_memory(
            lambda train=train: cut(default(args, 0, max_time=limit), train), args.device
        )
        independent = TableDensity(model.schema_, model.density_).independent(read_frame(test)).mean()
        gain = float(model.score(test) - independent)
        speed = rates(frame, model.score_samples, lambda n, model=model: model.sample(n, random_state=0))
        history = model.density_.history
        values = {"fit, seconds": seconds, "milliseconds a step": 1000 * history.seconds / history.step[-1]}
        values |= {"nats above independent columns": gain, **speed, **memory}
        book.note(f"{rows} rows × {columns} columns", "CTEM", values)


class Counted(TorchDispatchMode):
    """Counts tensor operations as they reach the device, and the bytes of what they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.count += 1
        if not func.is_view:
            self.bytes += sum(
                each.nbytes for each in tree_leaves((args, kwargs, out)) if torch.is_tensor(each)
            )
        return out


def step(book: Book, args: Args) -> None:
    """What a training step of the default on Adult consists of: operations, products, milliseconds."""
    frame = toy_table(1500, 0) if args.quick else load_table("adult", args.data).dropna()
    model = CTEM(max_steps=2, random_state=0, device=args.device).fit(frame)
    schema, net = model.schema_, model.density_.net
    x = schema.encode(read_frame(frame)).x.to(args.device)
    data = split_rows(x, model.settings_.members, 0, jitter=schema.jitter if schema.dequantised else None)
    objective, recipe = HiddenColumns(schema.parents), replace(model.settings_.recipe(0), patience=None)

    def steps(n: int, graph: bool = False) -> None:
        how = replace(recipe, steps=n, evaluate_every=n)
        train(net.train(), objective, data.rows, how, weights=data.weights, cuda_graph=graph)

    def count(n: int) -> tuple[int, int, int]:
        with Counted() as operations, FlopCounterMode(display=False) as products:
            steps(n)
        return operations.count, operations.bytes, products.get_total_flops()

    few, many = count(2), count(4)
    operations, traffic, flops = ((b - a) / 2 for a, b in zip(few, many, strict=True))
    rows = data.rows[: recipe.batch_size].expand(model.settings_.members, -1, -1)
    with Counted() as forward:
        objective(net, rows, torch.Generator(args.device).manual_seed(0))
    values = {
        "tensor operations of a step": operations,
        "of them forward": forward.count,
        "GFLOP of matrix products in a step": flops / 1e9,
        "MB that operations read and write in a step": traffic / 1e6,
        "milliseconds a step": milliseconds(steps),
        "milliseconds of the products at the speed of large ones": 1000 * flops / product_speed(args.device),
        "milliseconds of reading and writing at the speed of a large copy": 1000
        * traffic
        / copy_speed(args.device),
        **shares(steps, args.device),
    }
    if args.device == "cuda":
        values["milliseconds a step, as a CUDA graph"] = milliseconds(lambda n: steps(n, True))
    book.note("made up, a step" if args.quick else "adult, a step", "CTEM", values)


def shares(steps: Callable[[int], None], device: str) -> Values:
    """Of the time that operations take: matrix products, and the five others that take most."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if device == "cuda" else []
    with torch.profiler.profile(activities=kinds) as profile:
        steps(6)
    field = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    times = {e.key: getattr(e, field) for e in profile.key_averages() if e.key.startswith("aten::")}
    total, products = sum(times.values()), sum(times.pop(name, 0.0) for name in PRODUCTS)
    most = sorted(times, key=lambda name: -times[name])[:5]
    found = {"matrix products": products, **{name.removeprefix("aten::"): times[name] for name in most}}
    return {f"share of the time: {name}": value / total for name, value in found.items()}


def file(book: Book, args: Args) -> None:
    """A long file and a tenth of it: peak memory that does not grow is flat."""
    frame = toy_table(300, 0) if args.quick else load_table("adult", args.data)
    rows = 4000 if args.quick else args.lines
    with tempfile.TemporaryDirectory() as folder:
        model, found = Path(folder) / "model.ctem", []
        CTEM(**TINY, random_state=0, device=args.device).fit(frame).save(model)
        for n in (rows // 10, rows):
            repeated(frame, n, table := Path(folder) / f"{n}.parquet")
            found.append(scored(model, table, args.device))
    (short, less), (long, more) = found
    values = {
        f"scoring a file of {rows} rows, rows per second": rows / long,
        "the same without the start of Python": (rows - rows // 10) / max(long - short, 1e-3),
        f"peak memory at {rows // 10} rows, MB": less,
        f"peak memory at {rows} rows, MB": more,
    }
    book.note("adult, repeated", "CTEM", values)


def figure(args: Args) -> None:
    """Nats against seconds for every table, and seconds and memory against rows and columns, from the files."""
    plt = need("matplotlib.pyplot")
    end = f"{args.device}{'-quick' * args.quick}"
    curves, grown = {}, {}
    for path in sorted(args.out.glob(f"bench-*-{end}.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        for data, of in result.get("curves", {}).items():
            curves.setdefault(data, {}).update(of)
        grown |= {(r["dataset"], r["metric"]): r["mean"] for r in result["records"] if " × " in r["dataset"]}
    curves = {data: of for data, of in curves.items() if sum(map(len, of.values())) > 1}
    if not curves and not grown:
        raise SystemExit(f"--what figure: no curves in bench-*-{end}.json of --out; measure nats or growth.")
    down, across = (1, n) if (n := len(curves) + 2 * bool(grown)) < 3 else (2, -(-n // 2))
    canvas, axes = plt.subplots(down, across, figsize=(4 * across, 3.5 * down), squeeze=False)
    for axis, (data, of) in zip(axes.flat, curves.items(), strict=False):
        draw_curves(axis, data, of)
        axis.xaxis.set(major_locator=plt.LogLocator(subs=TICKS), major_formatter="{x:g}", minor_formatter="")
    for axis, word in zip(axes.flat[len(curves) :], ("rows", "columns"), strict=False):
        draw_growth(axis, word, grown)
    for axis in (axis for axis in axes.flat if not axis.lines):
        axis.axis("off")
    named = {line.get_label(): line for axis in axes.flat[: len(curves)] for line in axis.lines}
    canvas.legend(named.values(), named.keys(), loc="outside lower center", ncols=4)
    drawn = io.BytesIO()
    canvas.set_layout_engine("constrained")
    canvas.savefig(drawn, dpi=100)
    plt.close(canvas)
    print(replace_bytes(args.out / f"bench-{end}.png", drawn.getvalue()))


def draw_curves(axis: Any, data: str, curves: Mapping[str, Curve]) -> None:
    """Seconds to the right, nats up; what is far below the best is not shown."""
    for system, curve in curves.items():
        axis.plot(*np.array(curve).T, marker="o", label=system, color=f"C{SYSTEMS.index(system)}")
    values = [nats for curve in curves.values() for _, nats in curve]
    axis.set(xscale="log", title=data, xlabel="seconds", ylabel="test nats")
    axis.set_ylim(bottom=max(min(values), max(values) - SHOWN) - 0.5)


def draw_growth(axis: Any, word: str, grown: Mapping[tuple[str, str], float]) -> None:
    """Seconds of a fit and peak memory against the rows or the columns of a made-up table."""
    place, same = (0, f" × {WIDTH} columns") if word == "rows" else (1, f"{LENGTH} rows × ")
    for metric in ("fit, seconds", "peak memory, MB", "peak memory of the device, MB"):
        mine = {data.split(" × ")[place]: v for (data, m), v in grown.items() if m == metric and same in data}
        if mine:
            axis.plot([int(n.split()[0]) for n in mine], list(mine.values()), marker="o", label=metric)
    if axis.lines:
        axis.set(xscale="log", yscale="log", title=f"a made-up table, {same.strip(' ×')}", xlabel=word)
        axis.legend(fontsize="small")


def all_here() -> list[str]:
    gone = [name for name, package in PACKAGES.items() if find_spec(package) is None]
    print(*(f"{name} is left out: pip install 'ctem[baselines]'\n" for name in gone), end="", flush=True)
    return [name for name in SYSTEMS if name not in gone]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", help="folder with tables/ (default: $CTEM_DATA, else downloaded)")
    parser.add_argument("--sets", nargs="*", default=SETS, choices=(*SETS, "magic"), help="which tables")
    parser.add_argument("--systems", nargs="*", choices=SYSTEMS, help="which systems (default: all here)")
    parser.add_argument(
        "--shares", nargs="*", type=float, default=SHARES, help="of our seconds, for shorter fits"
    )
    parser.add_argument("--what", nargs="*", default=WHAT, choices=WHAT, help="what is measured")
    parser.add_argument("--rows", nargs="*", type=int, default=ROWS, help="of the made-up table that grows")
    parser.add_argument("--longest", type=float, default=60.0, help="seconds of a fit to the made-up table")
    parser.add_argument("--lines", type=int, default=200_000, help="rows of the long file")
    parser.add_argument("--name", help="in the name of the file, for a part of the sets or systems")
    args = parser.parse_args()
    args.systems = args.systems or all_here()
    measures = {"nats": nats, "growth": growth, "step": step, "file": file}
    with staged(args.out) as out:
        for what in (what for what in args.what if what in measures):
            measures[what](Book(what, args, out), args)
    if "figure" in args.what:
        figure(args)


if __name__ == "__main__":
    main()
