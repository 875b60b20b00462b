"""Robustness beyond the paper: the same defaults on six further densities, n = 300, 1000 and 10 000.

    python experiments/robustness.py --device cuda [--systems ours kde flow] [--seeds 2] [--quick]

Ours without noise levels, CV-KDE and the spline flow; losses included. Nothing was chosen on these sets. Each family of
systems writes its own file, robustness-FAMILY.json, after every system.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from baselines import PLANE_FLOW, cross_validated
from continuous_sets import Density, Fitted, Group, Table
from ctem.metrics import ise
from ctem.targets import grid
from densities import FURTHER
from flows import fit_flows
from ours import fit_ours, settings_of
from results import Record, arguments, summarise, write

SIZES = (300, 1000, 10_000)
TEST_ROWS, TEST_SEED = 5000, 10_000
KL, ISE = "KL(truth‖model)", "ISE ×1e-2"


def groups(sizes: Sequence[int]) -> Iterator[Group]:
    """Densities of one dimension and size train together."""
    planar = tuple(name for name, target in FURTHER.items() if target.space.dim == 2)
    others = [name for name in FURTHER if name not in planar]
    for n in sizes:
        yield Group(planar, n, 2)
        for name in others:
            yield Group((name,), n, FURTHER[name].space.dim)


def tables(group: Group, seeds: range) -> list[Table]:
    drawn = [(name, seed, FURTHER[name].sample(group.rows, seed)) for name in group.names for seed in seeds]
    return [Table(name, seed, X, FURTHER[name].space.standardised(X)) for name, seed, X in drawn]


def fit_kernel_estimate(group: Group, rows: list[Table], device: str, quick: bool) -> Iterator[Fitted]:
    began = time.perf_counter()
    found = [cross_validated(torch.as_tensor(table.X, device=device)) for table in rows]
    yield Fitted("CV-KDE", found, [{}] * len(rows), time.perf_counter() - began)


def fit_spline_flows(group: Group, rows: list[Table], device: str, quick: bool) -> Iterator[Fitted]:
    """The paper's spline flow for the plane, on tables of one dimension and any sizes."""
    flow = replace(PLANE_FLOW, steps=5, blocks=2, hidden=(16,)) if quick else PLANE_FLOW
    flows, seconds = fit_flows("NSF", [t.X for t in rows], [t.seed for t in rows], device, flow)
    yield Fitted("NSF", flows, [{}] * len(rows), seconds)


class Family(NamedTuple):
    """Systems of one file: how they are fitted to the tables of a group, and with what."""

    fit: Callable[[Group, list[Table], str, bool], Iterator[Fitted]]
    settings: dict[str, Any]
    sizes_together: bool = False  # tables of all sizes train as one program


FAMILIES = {
    "ours": Family(fit_ours, settings_of({})),
    "kde": Family(fit_kernel_estimate, {"CV-KDE folds": 5}),
    "flow": Family(fit_spline_flows, asdict(PLANE_FLOW), sizes_together=True),
}


def batches(family: Family, sizes: Sequence[int], seeds: range) -> Iterator[tuple[Group, list[Table]]]:
    """The tables that are fitted together."""
    found = [(group, tables(group, seeds)) for group in groups(sizes)]
    if not family.sizes_together:
        yield from found
        return
    for names in dict.fromkeys(group.names for group, _ in found):
        same = [(group, rows) for group, rows in found if group.names == names]
        yield same[-1][0], [table for _, rows in same for table in rows]


def errors(density: Density, name: str) -> dict[str, float]:
    """KL on fresh rows, and the integrated squared error of planar densities."""
    target = FURTHER[name]
    X = torch.as_tensor(target.sample(TEST_ROWS, TEST_SEED))
    found = {KL: float((target.log_density(X) - density.log_density(X)).mean())}
    if target.space.dim == 2:
        square = grid(target.bounds)
        truth = target.log_density(square.X).exp()
        found[ISE] = 100 * ise(density.log_density(square.X).exp(), truth, square.weights)
    return found


def records_of(fitted: Fitted, rows: list[Table]) -> list[Record]:
    """Mean and spread over the seeds of every density and size."""
    found: dict[tuple[str, str], list[float]] = {}
    for density, facts, table in zip(fitted.densities, fitted.facts, rows, strict=True):
        for metric, value in (errors(density, table.name) | facts).items():
            found.setdefault((f"{table.name}, n = {len(table.X)}", metric), []).append(value)
    for (name, metric), values in found.items():
        print(f"{name}, {fitted.system}: {metric} {np.mean(values):.4g}", flush=True)
    return [summarise(name, fitted.system, metric, values) for (name, metric), values in found.items()]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--systems", nargs="*", choices=FAMILIES, default=list(FAMILIES), help="which families"
    )
    args = parser.parse_args()
    sizes, seeds = (200,) if args.quick else SIZES, range(args.seeds or (1 if args.quick else 2))
    for name in args.systems:
        family, records, began = FAMILIES[name], [], time.perf_counter()
        settings = {**family.settings, "test rows": TEST_ROWS}
        for group, rows in batches(family, sizes, seeds):
            for fitted in family.fit(group, rows, args.device, args.quick):
                records += records_of(fitted, rows)
                wall = time.perf_counter() - began
                write(f"robustness-{name}", settings, records, args.device, wall, args.out, quick=args.quick)


if __name__ == "__main__":
    main()
