"""The figures that train, the error against the scale of comparisons and against the step; what a figure is given."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ctem import ProductBase, Recipe, Space, mean_std, train
from ctem.benchmarks.metrics import fisher_divergence, ise
from ctem.densities.pairwise import PairLoss, comparison_kernels
from ctem.energies import MLPs, Tilted
from ctem.training import PAPER_2D, PAPER_HIGH_D
from experiments.paper.drawing import SWEEP_C, Panels
from experiments.paper.sets import (
    BRIEF,
    GROUPS,
    TARGETS,
    Density,
    Group,
    Table,
    exam,
    grad_of,
    tables,
    together,
)
from experiments.paper.systems import (
    DEFAULTS,
    PAPER_C,
    Energy,
    Steps,
    load_fits,
    normalise_on_square,
)
from experiments.results import Record, summarise

TEST_ROWS, TEST_SEED = 2000, 10_000


class Computed(NamedTuple):
    """The numbers of a figure, and what its panels show, by set and system."""

    records: list[Record]
    arrays: Panels


class Truth:
    """A target as a system: what the sampler does with the true score."""

    def __init__(self, name: str, device: str):
        self.target, self.device = TARGETS[name], torch.device(device)

    def log_density(self, X: Tensor) -> Tensor:
        return self.target.log_density(X)

    def slope(self, X: Tensor) -> Tensor:
        return self.target.grad_log_density(X)


class Job(NamedTuple):
    """What every figure is given."""

    names: list[str]
    device: str
    quick: bool
    fits: Path
    seeds: range
    denoisers: bool = True  # train score networks too, which are in no table

    def systems(self, name: str) -> dict[str, Density]:
        """Truth first, then the fits of seed 0."""
        found = load_fits(self.fits, name, self.device)
        if not found:
            raise FileNotFoundError(
                f"{self.fits}: no fits of {name!r}; run python -m experiments.paper.table1 first."
            )
        return {"truth": Truth(name, self.device), **found}

    def groups(self) -> list[Group]:
        """The groups, with the sets of this job."""
        kept = [g._replace(names=tuple(n for n in g.names if n in self.names)) for g in GROUPS]
        return [g for g in kept if g.names]

    def recipe(self, group: Group, recipe: Recipe | None = None) -> Recipe:
        """The paper's recipe of a group by default, cut short with --quick."""
        recipe = recipe or (PAPER_2D if group.dim == 2 else PAPER_HIGH_D)
        return replace(recipe, **BRIEF) if self.quick else recipe

    def width(self, group: Group) -> int:
        return 32 if self.quick else group.width


SWEEP_SETS = ("Spiral", "Banana", "Two Rings")
PAPERS = "CTEM-G"


def planar_error(energy: Energy, name: str) -> float:
    """ISE ×1e-2, normalised on the evaluation square as the paper does."""
    X, truth, weights, _ = exam(name)
    normalise_on_square(energy, TARGETS[name].bounds)
    return 100 * ise(energy.log_density(X).exp(), truth, weights)


def compute_sweep(job: Job) -> Computed:
    """ISE of CTEM-G against c on a geometric grid, as the paper trains it."""
    records, arrays = [], {}
    for name in [n for n in SWEEP_SETS if n in job.names]:
        found = sweep_errors(name, job)
        records += [
            summarise(name, f"CTEM-G, c = {c:.3g}", "ISE ×1e-2", values)
            for c, values in zip(SWEEP_C, found, strict=True)
        ]
        arrays[name, "CTEM-G"] = np.array(found)
    return Computed(records, arrays)


def sweep_errors(name: str, job: Job) -> list[list[float]]:
    """ISE ×1e-2 of every c and seed; a network for each, trained as one program."""
    space, rows = TARGETS[name].space, 200 if job.quick else GROUPS[0].rows
    sets = [torch.as_tensor(TARGETS[name].sample(rows, seed)).float() for seed in job.seeds]
    keys = [(c, i) for c in SWEEP_C for i in range(len(sets))]
    x, weights = together(sets, job.device, owner=[i for _, i in keys])
    net = MLPs(space, len(keys), job.width(GROUPS[0])).to(job.device)
    loss = Steps([c * mean_std(sets[i]) for c, i in keys], False, job.device)
    train(net, loss, x, job.recipe(GROUPS[0]), weights=weights, cuda_graph=x.is_cuda)
    errors = [planar_error(Energy(net.member(k), space), name) for k in range(len(keys))]
    return np.array(errors).reshape(len(SWEEP_C), -1).tolist()


class Watched:
    """A loss that keeps a copy of the networks, and the loss of each, whenever held-out rows are judged."""

    def __init__(self, loss: PairLoss | Steps):
        self.loss = loss
        self.nets: list[MLPs] = []
        self.losses: list[list[float]] = []

    def __call__(self, g: MLPs, x: Tensor, generator: torch.Generator) -> Tensor:
        values = self.loss.each(g, x, generator)
        if not g.training:
            self.nets.append(copy.deepcopy(g))
            self.losses.append(values.tolist())
        return values.mean()


class Curve(NamedTuple):
    """One run: held-out loss and true error at every evaluation."""

    steps: list[int]
    held_out: list[float]
    error: list[float]


class Course(NamedTuple):
    """How one system trains on the tables of a group."""

    system: str
    loss: PairLoss | Steps
    recipe: Recipe
    rows: list[Tensor]  # encoded as it wants them


def courses(group: Group, found: list[Table], job: Job) -> Iterator[Course]:
    """CTEM-G as the paper trains it, and ours with each weight decay."""
    raw = [torch.as_tensor(table.X).float() for table in found]
    scales = [PAPER_C[PAPERS][table.name] * mean_std(x) for table, x in zip(found, raw, strict=True)]
    yield Course(PAPERS, Steps(scales, False, job.device), job.recipe(group), raw)
    base = ProductBase(TARGETS[group.names[0]].space).to(job.device)
    loss = PairLoss(base, comparison_kernels(base, DEFAULTS["rates"]), DEFAULTS["rule"])
    encoded = [table.space.encode(table.X) for table in found]
    for decay in DEFAULTS["weight_decays"]:
        recipe = replace(job.recipe(group, DEFAULTS["recipe"]), weight_decay=decay)
        yield Course(f"ours, weight decay {decay:g}", loss, recipe, encoded)


def watched(course: Course, width: int, space: Space, job: Job) -> tuple[list[int], Watched]:
    """Train on 90 % of the rows of every table; the steps, and what was seen at each."""
    x, weights = together(course.rows, job.device)
    held_out = []
    for k, rows in enumerate(course.rows):
        mine = weights[k].nonzero().squeeze(-1)
        out = mine[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[: len(rows) // 10]]
        weights[k, out] = 0.0
        held_out.append(x[out.to(x.device)])
    loss, recipe = Watched(course.loss), course.recipe
    recipe = replace(recipe, evaluate_every=recipe.steps // (2 if job.quick else 40))
    net = MLPs(space, len(held_out), width).to(job.device)
    history = train(
        net, loss, x, recipe, held_out=torch.stack(held_out), weights=weights, cuda_graph=x.is_cuda
    )
    return history.step, loss


def true_error(net: MLPs, k: int, table: Table, paper: bool) -> float:
    """ISE ×1e-2 in the plane, Fisher divergence in more dimensions."""
    f = net.member(k)
    if paper:
        energy = Energy(f, TARGETS[table.name].space)
    else:
        energy = Energy(Tilted(ProductBase(table.space).to(f.layers[0].weight.device), f), table.space)
    if table.space.dim == 2:
        return planar_error(energy, table.name)
    X, _, _, slope = exam(table.name)
    return fisher_divergence(grad_of(energy, X), slope)


def curves_of(group: Group, job: Job) -> Iterator[tuple[str, str, Curve]]:
    """Set, system and curve of seed 0 of every set of the group; the sets train together."""
    found = [table for table in tables(group, range(1), job.quick) if table.name in job.names]
    for course in courses(group, found, job):
        steps, seen = watched(course, job.width(group), TARGETS[group.names[0]].space, job)
        for k, table in enumerate(found):
            errors = [true_error(net, k, table, course.system == PAPERS) for net in seen.nets]
            yield table.name, course.system, Curve(steps, [losses[k] for losses in seen.losses], errors)


def compute_curves(job: Job) -> Computed:
    """Held-out loss and true error against the step: where the one is lowest, so nearly is the other."""
    records, arrays = [], {}
    for group in job.groups():
        for name, system, curve in curves_of(group, job):
            arrays[name, system] = np.array(curve)
            records += curve_records(system, name, curve)
    return Computed(records, arrays)


def curve_records(system: str, name: str, curve: Curve) -> list[Record]:
    error = "ISE ×1e-2" if TARGETS[name].space.dim == 2 else "Fisher divergence"
    chosen, best = int(np.argmin(curve.held_out)), int(np.argmin(curve.error))
    values = {
        "step of the lowest held-out loss": float(curve.steps[chosen]),
        "step of the lowest error": float(curve.steps[best]),
        f"{error} at the lowest held-out loss": curve.error[chosen],
        f"{error}, lowest": curve.error[best],
        f"{error} at the last step": curve.error[-1],
    }
    return [summarise(name, system, metric, [value]) for metric, value in values.items()]
