"""Robustness beyond the paper: the same default on six further densities, n = 300, 1000 and 10 000.

    python experiments/robustness.py --device cuda [--seeds 2] [--quick]

Beside CV-KDE and the spline flow; losses included. Nothing was chosen on these sets. The flows of all sizes train as
one program.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np
import torch

from baselines import PLANE_FLOW, cross_validated
from continuous_sets import Fitted, Group, Table
from crossfit import PLAIN, fit_ours
from ctem.metrics import ise
from ctem.targets import grid
from densities import FURTHER
from flows import fit_flows
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


def fit_smoothers(group: Group, rows: list[Table], device: str, quick: bool) -> Iterator[Fitted]:
    """Ours and CV-KDE."""
    yield from fit_ours(group, rows, device, quick)
    began = time.perf_counter()
    found = [cross_validated(torch.as_tensor(table.X, device=device)) for table in rows]
    yield Fitted("CV-KDE", found, [{}] * len(rows), time.perf_counter() - began)


def fit_spline_flows(rows: list[Table], device: str, quick: bool) -> Fitted:
    """The paper's spline flow for the plane, on tables of one dimension and any sizes."""
    flow = replace(PLANE_FLOW, steps=5, blocks=2, hidden=(16,)) if quick else PLANE_FLOW
    flows, trained = fit_flows("NSF", [t.X for t in rows], [t.seed for t in rows], device, flow)
    return Fitted("NSF", flows, [{}] * len(rows), trained.seconds)


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


def fits(sizes: tuple[int, ...], seeds: range, device: str, quick: bool) -> Iterator[list[Record]]:
    """The records of one system after another."""
    by_dim: dict[int, list[Table]] = {}
    for group in groups(sizes):
        rows = tables(group, seeds)
        by_dim.setdefault(group.dim, []).extend(rows)
        for fitted in fit_smoothers(group, rows, device, quick):
            yield records_of(fitted, rows)
    for rows in by_dim.values():
        yield records_of(fit_spline_flows(rows, device, quick), rows)


def main() -> None:
    args = arguments(__doc__).parse_args()
    began, seeds = time.perf_counter(), range(args.seeds or (1 if args.quick else 2))
    settings = {"ours": asdict(PLAIN), "NSF": asdict(PLANE_FLOW), "test rows": TEST_ROWS}
    records: list[Record] = []
    for found in fits((200,) if args.quick else SIZES, seeds, args.device, args.quick):
        records += found
        wall = time.perf_counter() - began
        write("robustness", settings, records, args.device, wall, args.out, quick=args.quick)


if __name__ == "__main__":
    main()
