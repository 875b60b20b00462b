"""The six sets of Table 1, their rows, what a system is, what it is measured on, and the published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ctem import Real, Space
from ctem.benchmarks.metrics import density_mse, fisher_divergence, ise, relative_density_mse
from ctem.benchmarks.targets import Banana, GaussianMixture, Spiral, TwoGaussians, TwoRings, grid
from experiments.results import Record, summarise

TARGETS = {
    "Spiral": Spiral(),
    "2-Gaussian": TwoGaussians(),
    "Banana": Banana(),
    "Two Rings": TwoRings(),
    "10-D mixture": GaussianMixture(10),
    "30-D mixture": GaussianMixture(30),
}
TEST_SEED = 10_000  # the mixtures' one test set
BRIEF = {"steps": 20, "evaluate_every": 10}  # of a recipe, with --quick
ISE, FD, MSE, RELATIVE = "ISE ×1e-2", "Fisher divergence", "density MSE", "density MSE / mean ρ²"
PUBLISHED = {
    ISE: {
        "Silverman": ("0.883 ± 0.03", "0.880 ± 0.08", "0.476 ± 0.01", "8.633 ± 0.10"),
        "CV-KDE": ("0.279 ± 0.03", "0.381 ± 0.08", "0.222 ± 0.10", "2.002 ± 0.10"),
        "SD-KDE": ("0.429 ± 0.03", "0.251 ± 0.07", "0.154 ± 0.01", "5.596 ± 0.10"),
        "RealNVP": ("0.952 ± 0.23", "4.530 ± 0.29", "0.984 ± 0.22", "7.281 ± 2.03"),
        "NSF": ("0.694 ± 0.07", "2.065 ± 0.40", "0.468 ± 0.08", "2.660 ± 0.43"),
        "CTEM-S": ("0.256 ± 0.05", "0.231 ± 0.13", "0.097 ± 0.02", "0.774 ± 0.39"),
        "CTEM-G": ("0.293 ± 0.04", "0.223 ± 0.10", "0.081 ± 0.02", "0.773 ± 0.32"),
        "best": ("best 0.256", "best 0.223", "best 0.081", "best 0.773"),
    },
    FD: {
        "Silverman": ("4.39 ± 0.02", "25.02 ± 0.15"),
        "CV-KDE": ("1.85 ± 0.04", "10.27 ± 0.04"),
        "SD-KDE": ("4.35 ± 0.02", "25.02 ± 0.15"),
        "RealNVP": ("(1.9 ± 0.2)e3", "(1.05 ± 0.05)e4"),
        "NSF": ("(2.2 ± 0.5)e4", "(1.2 ± 0.2)e5"),
        "CTEM-S": ("0.43 ± 0.08", "1.71 ± 0.05"),
        "CTEM-G": ("0.39 ± 0.03", "1.50 ± 0.08"),
        "best": ("best 0.39", "best 1.50"),
    },
    MSE: {
        "Silverman": ("(1.37 ± 0.06)e-12", "(3.54 ± 0.01)e-33"),
        "CV-KDE": ("(1.90 ± 0.03)e-12", "(3.66 ± 0.01)e-33"),
        "SD-KDE": ("(1.37 ± 0.06)e-12", "(3.54 ± 0.01)e-33"),
        "RealNVP": ("(2.20 ± 0.07)e-12", "(3.65 ± 0.01)e-33"),
        "NSF": ("(2.10 ± 0.66)e-10", "(3.67 ± 0.01)e-33"),
        "CTEM-S": ("(0.96 ± 0.21)e-12", "(0.99 ± 0.28)e-33"),
        "CTEM-G": ("(0.29 ± 0.02)e-12", "(0.61 ± 0.05)e-33"),
        "best": ("best 0.29e-12", "best 0.61e-33"),
    },
    RELATIVE: {"best": (None, "best 0.17")},
}


class Group(NamedTuple):
    """The sets of one dimension: they train together."""

    names: tuple[str, ...]
    rows: int
    dim: int

    @property
    def width(self) -> int:
        return 128 if self.dim == 2 else 256


GROUPS = (
    Group(("Spiral", "2-Gaussian", "Banana", "Two Rings"), 1000, 2),
    Group(("10-D mixture",), 5000, 10),
    Group(("30-D mixture",), 5000, 30),
)


class Table(NamedTuple):
    """One data set: the rows of one seed."""

    name: str
    seed: int
    X: np.ndarray
    space: Space  # standardised on X


def tables(group: Group, seeds: range, quick: bool) -> list[Table]:
    names = group.names[:2] if quick else group.names
    drawn = [(n, s, TARGETS[n].sample(200 if quick else group.rows, s)) for n in names for s in seeds]
    return [Table(n, s, X, TARGETS[n].space.standardised(X)) for n, s, X in drawn]


class Density(Protocol):
    """What every system of a table is in the end; rows are in the user's units."""

    device: torch.device

    def log_density(self, X: Tensor) -> Tensor:
        """log ρ, float64 on the cpu (n,)."""
        ...

    def slope(self, X: Tensor) -> Tensor:
        """∇ log ρ at float64 rows on ``device`` (n, d), without a wait for it: a CUDA graph can record it."""
        ...


def grad_of(density: Density, X: Tensor, rows: int = 16384) -> Tensor:
    """∇ log ρ, float64 on the cpu (n, d)."""
    return torch.cat([density.slope(part) for part in X.to(density.device).split(rows)]).cpu()


def units(space: Space) -> Tensor:
    """Location and scale of the real columns, float64 (2, d)."""
    return torch.tensor([[c.location, c.scale] for c in space.columns], dtype=torch.float64).T


def space_of(units: Tensor) -> Space:
    """The space with these locations and scales."""
    return Space([Real(*column) for column in units.T.tolist()])


class Fitted(NamedTuple):
    """A system fitted to every table of a group, in their order."""

    system: str
    densities: list[Density]
    facts: list[dict[str, float]]  # what is worth a row beside the errors
    seconds: float  # of training, all tables together


class Exam(NamedTuple):
    """What a set is measured on: the points, the true density there, and weights or the true score."""

    X: Tensor
    truth: Tensor
    weights: Tensor | None
    slope: Tensor | None


@cache
def exam(name: str) -> Exam:
    """The grid of a planar set, the one test set of a mixture."""
    target = TARGETS[name]
    if target.space.dim == 2:
        square = grid(target.bounds)
        return Exam(square.X, target.log_density(square.X).exp(), square.weights, None)
    X = torch.as_tensor(target.sample(2000, TEST_SEED))
    return Exam(X, target.log_density(X).exp(), None, target.grad_log_density(X))


def errors(density: Density, name: str) -> dict[str, float]:
    """The paper's measures of one fitted density."""
    X, truth, weights, slope = exam(name)
    p = density.log_density(X).exp()
    if weights is not None:
        return {ISE: 100 * ise(p, truth, weights)}
    fisher = fisher_divergence(grad_of(density, X), slope)
    return {FD: fisher, MSE: density_mse(p, truth), RELATIVE: relative_density_mse(p, truth)}


def published(name: str, system: str, metric: str) -> str | None:
    rows = PUBLISHED.get(metric, {})
    family = system.split(",")[0]  # "NSF, 20000 of 40000 steps" is an NSF
    values = rows.get("best" if family == "ours" else family)
    names = GROUPS[0].names if metric == ISE else tuple(TARGETS)[4:]
    return None if values is None else values[names.index(name)]


def records_of(fitted: Fitted, rows: list[Table]) -> list[Record]:
    """Mean and spread over the seeds of every set, the errors first."""
    found: dict[tuple[str, str], list[float]] = {}
    for density, facts, table in zip(fitted.densities, fitted.facts, rows, strict=True):
        for metric, value in (errors(density, table.name) | facts).items():
            found.setdefault((table.name, metric), []).append(value)
    for (name, metric), values in found.items():
        print(f"{name}, {fitted.system}: {metric} {np.mean(values):.4g} {np.round(values, 4)}", flush=True)
    return [
        summarise(name, fitted.system, metric, values, published(name, fitted.system, metric))
        for (name, metric), values in found.items()
    ]


def together(
    tables: Sequence[Tensor], device: str, owner: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Rows of all tables in one (n, d), and weights (K, n) with which member k sees those of table owner[k] only.

    Without ``owner`` each table has one member.
    """
    of = torch.cat([torch.full((len(x),), i) for i, x in enumerate(tables)])
    seen = torch.tensor(range(len(tables)) if owner is None else owner).unsqueeze(1) == of
    return torch.cat(list(tables)).to(device), seen.double()


def hold_out(x: Tensor, weights: Tensor) -> Tensor:
    """A tenth of the rows of every member, (K, h, d), whose weight becomes 0."""
    found = []
    for row in weights:
        mine = row.nonzero().squeeze(-1)
        order = torch.randperm(len(mine), generator=torch.Generator().manual_seed(0))
        out = mine[order[: len(mine) // 10]]
        row[out] = 0.0
        found.append(x[out.to(x.device)])
    return torch.stack(found)
