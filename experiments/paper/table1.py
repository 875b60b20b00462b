"""Table 1: the paper's four planar sets and two mixtures, every system beside the published number.

    python -m experiments.paper.table1 --device cuda [--systems kde realnvp nsf ctem ours] [--dims 2 10 30] [--quick]
    python -m experiments.paper.table1 --systems stopped --dims 10 30 --seeds 1     12 min of one core
    python -m experiments.paper.table1 --device cuda --systems realnvp nsf --dims 10 30 --flow-steps 20000
    python -m experiments.paper.table1 --device cuda --choose    out-of-fold nats of candidates
    python -m experiments.paper.table1 --device cuda --systems chosen --dims 10 30    settings by held-out distance

Each family of systems writes its own files, table1-FAMILY-DIMd.json, after every system. CTEM-S and CTEM-G are
trained as the paper trains them, all sets and seeds of one dimension as one program; so are the flows. "stopped" are
the same two with the weights of the lowest held-out loss. "ours, plain"
is ``experiments.paper.pairwise.fit_pairwise`` with its defaults, one call for every table: an energy that tilts
N(0, I), comparisons that N(0, I) makes reversible, K-fold cross-fitting, the step and the weight decay chosen by the
out-of-fold loss, and the mean of the K normalised densities. "ours, chosen" is the same with the layers and the number
of folds that have the lowest held-out distance on other seeds of the set (``systems.held_out_distance``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ctem.training import PAPER_2D, PAPER_HIGH_D
from experiments.paper.baselines import FLOWS, HIGH_D_FLOW, KERNEL_ESTIMATES, PLANE_FLOW, fit_flows
from experiments.paper.sets import GROUPS, Fitted, Group, Table, records_of, tables
from experiments.paper.systems import (
    CANDIDATES,
    CHOICES,
    FITS,
    PAPER_C,
    STOP,
    candidate_nats,
    fit_chosen,
    fit_ours,
    fit_paper,
    save_fit,
)
from experiments.paper.systems import settings_of as settings_of_ours
from experiments.results import Record, arguments, staged, summarise, write

Fit = Callable[..., Iterator[Fitted]]


def fit_kernel_estimates(group: Group, rows: list[Table], device: str, quick: bool) -> Iterator[Fitted]:
    for name, estimate in KERNEL_ESTIMATES.items():
        began = time.perf_counter()
        found = [estimate(torch.as_tensor(table.X, device=device)) for table in rows]
        facts = [{"bandwidth": kde.bandwidth} for kde in found]
        yield Fitted(name, found, facts, time.perf_counter() - began)


def fit_flow(
    kind: str, group: Group, rows: list[Table], device: str, quick: bool, steps: int | None = None
) -> Iterator[Fitted]:
    """One kind of flow; where the steps are not the paper's, the name says so."""
    paper = PLANE_FLOW if group.dim == 2 else HIGH_D_FLOW
    settings = replace(paper, steps=steps or paper.steps)
    settings = replace(settings, steps=5, hidden=(16,), blocks=2) if quick else settings
    note = "" if settings.steps == paper.steps else f", {settings.steps} of {paper.steps} steps"
    found, seconds = fit_flows(kind, [t.X for t in rows], [t.seed for t in rows], device, settings)
    yield Fitted(kind + note, found, [{}] * len(rows), seconds)


FLOW_FAMILIES: dict[str, Fit] = {kind.lower(): partial(fit_flow, kind) for kind in FLOWS}
FAMILIES: dict[str, Fit] = {
    "kde": fit_kernel_estimates,
    **FLOW_FAMILIES,
    "ctem": fit_paper,
    "stopped": partial(fit_paper, stopped=True),
    "ours": fit_ours,
    "chosen": fit_chosen,
}


class Run(NamedTuple):
    """Where a run computes, and where it leaves its files."""

    seeds: range
    device: str
    quick: bool
    out: Path
    fits: Path
    flow_steps: int | None = None  # the paper's when left out


def table1(families: Sequence[str], groups: Sequence[Group], run: Run) -> None:
    for family in families:
        for group in groups:
            began, rows = time.perf_counter(), tables(group, run.seeds, run.quick)
            records: list[Record] = []
            more = {"steps": run.flow_steps} if family in FLOW_FAMILIES else {}
            for fitted in FAMILIES[family](group, rows, run.device, run.quick, **more):
                keep_first(fitted, rows, run.fits)
                records += [*records_of(fitted, rows), seconds_record(fitted, group)]
                wall, name = time.perf_counter() - began, f"table1-{family}-{group.dim}d"
                write(name, settings_of(family), records, run.device, wall, run.out, quick=run.quick)


def keep_first(fitted: Fitted, rows: list[Table], folder: Path) -> None:
    """Keep the fits of seed 0 for the figures."""
    for density, table in zip(fitted.densities, rows, strict=True):
        if table.seed == 0 and not save_fit(folder, table.name, fitted.system, density):
            print(f"{fitted.system}: {type(density).__name__} is not one of fits.KINDS: no figures of it")


def seconds_record(fitted: Fitted, group: Group) -> Record:
    where = f"all {group.dim}-D sets and seeds"
    return summarise(where, fitted.system, "training seconds, all together", [fitted.seconds])


def settings_of(family: str) -> dict[str, Any]:
    paper = {"2-D": asdict(PAPER_2D), "10-D and 30-D": asdict(PAPER_HIGH_D), "c": PAPER_C, "M": 4}
    return {
        "kde": {"CV-KDE folds": 5},
        **{name: {"2-D": asdict(PLANE_FLOW), "10-D and 30-D": asdict(HIGH_D_FLOW)} for name in FLOW_FAMILIES},
        "ctem": paper,
        "stopped": paper | STOP | {"held out": 0.1},
        "ours": settings_of_ours({}),
        "chosen": {name: settings_of_ours(changes) for name, changes in CHOICES.items()},
    }[family]


def choose_default(groups: Sequence[Group], run: Run) -> None:
    """Out-of-fold nats of every candidate, on rows that no table sees; the truth is never read.

    The rule: the candidate with the highest mean over the sets becomes the default.
    """
    began, records = time.perf_counter(), []
    candidates = dict(list(CANDIDATES.items())[: 1 if run.quick else None])
    for label, changes in candidates.items():
        found: dict[str, list[float]] = {}
        for group in groups:
            found |= candidate_nats(changes, group, run.seeds, run.device, run.quick)
        found["mean of the sets"] = [float(np.mean(values)) for values in zip(*found.values(), strict=True)]
        records += [summarise(name, label, "out-of-fold nats", nats) for name, nats in found.items()]
        print(f"{label}: " + ", ".join(f"{n} {np.mean(v):.4f}" for n, v in found.items()), flush=True)
        settings = {name: settings_of_ours(changes) for name, changes in candidates.items()}
        wall = time.perf_counter() - began
        write("table1-choice", settings, records, run.device, wall, run.out, quick=run.quick)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--systems", nargs="*", choices=FAMILIES, default=list(FAMILIES), help="which families"
    )
    parser.add_argument("--dims", nargs="*", type=int, default=[2, 10, 30], help="which dimensions")
    parser.add_argument(
        "--choose", action="store_true", help="compare candidate defaults by out-of-fold nats"
    )
    parser.add_argument("--flow-steps", type=int, help="of the flows (default: the paper's)")
    parser.add_argument("--fits", type=Path, help="folder for the fits of seed 0 (default: build/fits)")
    args = parser.parse_args()
    seeds = range(args.seeds or (1 if args.quick else 5))
    if args.choose:
        seeds = range(100, 100 + (args.seeds or (1 if args.quick else 3)))  # rows that no table sees
    fits = args.fits or (FITS / "quick" if args.quick else FITS)
    groups = [group for group in GROUPS if group.dim in args.dims]
    with staged(args.out) as out:
        run = Run(seeds, args.device, args.quick, out, fits, args.flow_steps)
        if args.choose:
            choose_default(groups, run)
        else:
            table1(args.systems, groups, run)


if __name__ == "__main__":
    main()
