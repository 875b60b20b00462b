"""Robustness beyond the paper: the same default on six further densities, n = 300, 1000 and 10 000.

    python experiments/robustness.py --device cuda [--seeds 3] [--quick]

Beside CV-KDE and the spline flow; losses included. Nothing was chosen on these sets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np
import torch

from baselines import PLANE_FLOW, cross_validated, fit_flows
from continuous_sets import Fitted, Group, Table
from crossfit import PLAIN, fit_ours
from ctem.metrics import ise
from ctem.targets import grid
from densities import FURTHER
from learned import Density
from results import Record, arguments, summarise, write

SIZES = (300, 1000, 10_000)
TEST_ROWS, TEST_SEED = 5000, 10_000
KL, ISE = "KL(truth‖model)", "ISE ×1e-2"


def groups(sizes: tuple[int, ...]) -> Iterator[Group]:
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


def fit_all(group: Group, rows: list[Table], device: str, quick: bool) -> Iterator[Fitted]:
    """Ours, CV-KDE, and the paper's spline flow for the plane."""
    yield from fit_ours(group, rows, device, quick)
    began = time.perf_counter()
    found = [cross_validated(torch.as_tensor(table.X, device=device)) for table in rows]
    yield Fitted("CV-KDE", found, [{}] * len(rows), time.perf_counter() - began)
    flow = replace(PLANE_FLOW, steps=5, blocks=2, hidden=(16,)) if quick else PLANE_FLOW
    flows, trained = fit_flows("NSF", [t.X for t in rows], [t.seed for t in rows], device, flow)
    yield Fitted("NSF", flows, [{}] * len(rows), trained.seconds)


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


def records_of(fitted: Fitted, rows: list[Table], n: int) -> list[Record]:
    found: dict[tuple[str, str], list[float]] = {}
    for density, facts, table in zip(fitted.densities, fitted.facts, rows, strict=True):
        for metric, value in (errors(density, table.name) | facts).items():
            found.setdefault((table.name, metric), []).append(value)
    for (name, metric), values in found.items():
        print(f"{name}, n = {n}, {fitted.system}: {metric} {np.mean(values):.4g}", flush=True)
    return [summarise(f"{name}, n = {n}", fitted.system, m, v) for (name, m), v in found.items()]


def main() -> None:
    args = arguments(__doc__).parse_args()
    began, seeds = time.perf_counter(), range(args.seeds or (1 if args.quick else 3))
    settings = {"ours": asdict(PLAIN), "NSF": asdict(PLANE_FLOW), "test rows": TEST_ROWS}
    records: list[Record] = []
    for group in groups((200,) if args.quick else SIZES):
        rows = tables(group, seeds)
        for fitted in fit_all(group, rows, args.device, args.quick):
            records += records_of(fitted, rows, group.rows)
            wall = time.perf_counter() - began
            write("robustness", settings, records, args.device, wall, args.out, quick=args.quick)


if __name__ == "__main__":
    main()
