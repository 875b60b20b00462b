"""Robustness beyond the paper: the same defaults on six further densities, n = 300, 1000 and 10 000.

    python -m experiments.paper.robustness --device cuda [--systems ours kde flow] [--seeds 2] [--quick]

Ours without noise levels, CV-KDE and the spline flow; losses included. Nothing was chosen on these sets. Each family of
systems writes its own file, robustness-FAMILY.json, after every system. The densities are as those of
``ctem.benchmarks.targets``: ``space``, ``sample(n, seed)``, ``log_density(X)`` in float64 and the user's units, and for
the planar ones the square ``bounds`` of their grid.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import default_rng
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from ctem import Real, Space
from ctem.benchmarks.metrics import ise
from ctem.benchmarks.targets import grid
from experiments.paper.baselines import PLANE_FLOW, cross_validated, fit_flows
from experiments.paper.sets import Density, Fitted, Group, Table
from experiments.paper.systems import fit_ours, settings_of
from experiments.results import Record, arguments, staged, summarise, write

SIZES = (300, 1000, 10_000)
TEST_ROWS, TEST_SEED = 5000, 10_000
KL, ISE = "KL(truth‖model)", "ISE ×1e-2"
LOG_2PI = math.log(2 * math.pi)


class Checkerboard:
    """Uniform on the eight dark cells of a 4×4 board on [−4, 4]²: ρ = 1/32 there and 0 elsewhere."""

    space = Space([Real(), Real()])
    bounds = (-5.0, 5.0)

    def sample(self, n: int, seed: int) -> NDArray[np.float64]:
        rng = default_rng(seed)
        row = rng.integers(0, 4, n)
        column = 2 * rng.integers(0, 2, n) + row % 2
        return np.stack([column, row], axis=1) * 2.0 - 4 + rng.uniform(0, 2, (n, 2))

    def log_density(self, X: Tensor) -> Tensor:
        cell = ((X + 4) / 2).floor()
        dark = ((cell >= 0) & (cell < 4)).all(-1) & (cell.sum(-1) % 2 == 0)
        return torch.where(dark, -math.log(32.0), -math.inf).double()


class Pinwheel:
    """Five arms, N((1, 0), diag(0.3², 0.1²)) turned by 2πk/5 and twisted by exp(|x|)/2.

    A rotation by an angle that depends on |x| alone keeps areas, so ρ(x) = 1/5 Σ_k N(R(−θ_k(|x|)) x; …) exactly.
    """

    space = Space([Real(), Real()])
    bounds = (-2.5, 2.5)
    widths = (0.3, 0.1)

    def sample(self, n: int, seed: int) -> NDArray[np.float64]:
        rng = default_rng(seed)
        arm = 2 * np.pi / 5 * rng.integers(0, 5, n)
        a, b = 1 + self.widths[0] * rng.standard_normal(n), self.widths[1] * rng.standard_normal(n)
        t = arm + np.exp(np.hypot(a, b)) / 2
        return np.stack([a * np.cos(t) - b * np.sin(t), a * np.sin(t) + b * np.cos(t)], axis=1)

    def log_density(self, X: Tensor) -> Tensor:
        r = X.norm(dim=-1, keepdim=True)
        t = 2 * math.pi / 5 * torch.arange(5, dtype=X.dtype) + r.exp() / 2  # (n, 5)
        x, y = X[:, :1], X[:, 1:]
        a, b = x * t.cos() + y * t.sin(), y * t.cos() - x * t.sin()
        u, v = self.widths
        quadratic = ((a - 1) / u) ** 2 / 2 + (b / v) ** 2 / 2
        return (-quadratic).logsumexp(-1) - LOG_2PI - math.log(5 * u * v)


class Funnel:
    """Neal's funnel in the plane: v ~ N(0, 1.5²), x | v ~ N(0, e^v)."""

    space = Space([Real(), Real()])
    bounds = (-8.0, 8.0)

    def sample(self, n: int, seed: int) -> NDArray[np.float64]:
        rng = default_rng(seed)
        v = 1.5 * rng.standard_normal(n)
        return np.stack([v, np.exp(v / 2) * rng.standard_normal(n)], axis=1)

    def log_density(self, X: Tensor) -> Tensor:
        v, x = X.unbind(-1)
        return -(v**2) / 4.5 - math.log(1.5) - x**2 / 2 * (-v).exp() - v / 2 - LOG_2PI


class Islands:
    """Isotropic Gaussians of one width in the plane, Σ_k w_k N(m_k, s² I)."""

    space = Space([Real(), Real()])

    def __init__(self, centres: Tensor, width: float, weights: Tensor, bounds: tuple[float, float]):
        self.centres, self.width, self.weights, self.bounds = centres, width, weights, bounds

    def sample(self, n: int, seed: int) -> NDArray[np.float64]:
        rng = default_rng(seed)
        which = rng.choice(len(self.weights), n, p=self.weights.numpy())
        return np.asarray(self.centres.numpy()[which] + self.width * rng.standard_normal((n, 2)))

    def log_density(self, X: Tensor) -> Tensor:
        squared = torch.cdist(X, self.centres).square() / (2 * self.width**2)
        return (self.weights.log() - squared).logsumexp(-1) - LOG_2PI - 2 * math.log(self.width)


def eight_gaussians() -> Islands:
    """Equal islands of width 0.2 on a circle of radius 2."""
    t = math.pi / 4 * torch.arange(8, dtype=torch.float64)
    centres = 2 * torch.stack([t.cos(), t.sin()], dim=-1)
    return Islands(centres, 0.2, torch.full((8,), 0.125, dtype=torch.float64), (-3.0, 3.0))


def uneven() -> Islands:
    """Two islands of width 0.5, three apart, with weights 0.9 and 0.1."""
    centres = torch.tensor([[-1.5, 0.0], [1.5, 0.0]], dtype=torch.float64)
    return Islands(centres, 0.5, torch.tensor([0.9, 0.1], dtype=torch.float64), (-4.0, 4.0))


class Skewed:
    """Five independent skewed columns: Gamma(3), Gumbel, log-normal(0.5), skew-normal(4), Weibull(1.5)."""

    space = Space([Real()] * 5)
    marginals = (
        stats.gamma(3.0),
        stats.gumbel_r(),
        stats.lognorm(0.5),
        stats.skewnorm(4.0),
        stats.weibull_min(1.5),
    )

    def sample(self, n: int, seed: int) -> NDArray[np.float64]:
        rng = default_rng(seed)
        return np.stack([m.rvs(n, random_state=rng) for m in self.marginals], axis=1)

    def log_density(self, X: Tensor) -> Tensor:
        columns = [torch.as_tensor(m.logpdf(c.numpy())) for m, c in zip(self.marginals, X.T, strict=True)]
        return torch.stack(columns).sum(0)


FURTHER = {
    "checkerboard": Checkerboard(),
    "pinwheel": Pinwheel(),
    "funnel": Funnel(),
    "8 Gaussians": eight_gaussians(),
    "0.9/0.1 mixture": uneven(),
    "5-D skewed product": Skewed(),
}


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
    with staged(args.out) as out:
        for name in args.systems:
            family, records, began = FAMILIES[name], [], time.perf_counter()
            settings = {**family.settings, "test rows": TEST_ROWS}
            for group, rows in batches(family, sizes, seeds):
                for fitted in family.fit(group, rows, args.device, args.quick):
                    records += records_of(fitted, rows)
                    wall = time.perf_counter() - began
                    write(f"robustness-{name}", settings, records, args.device, wall, out, quick=args.quick)


if __name__ == "__main__":
    main()
