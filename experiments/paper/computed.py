"""What the figures of ``figures.py`` show, as arrays and numbers; ``Job`` is what every figure is given."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem import MLP, ProductBase, Recipe, Space, mean_std, train
from ctem.benchmarks.metrics import energy_distance, fisher_divergence, ise, mode_weight_error
from ctem.benchmarks.targets import grid
from ctem.energies import MLPs, Tilted
from ctem.matching.losses import denoising_score_matching
from ctem.training import PAPER_2D, PAPER_HIGH_D
from ctem.training.devices import StepGraph
from experiments.paper.pairwise import PairLoss, comparison_kernels
from experiments.paper.sets import (
    BRIEF,
    GROUPS,
    TARGETS,
    Density,
    Group,
    Table,
    exam,
    grad_of,
    hold_out,
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
FINE, COARSE = 80, 14  # points a side, of the colours and of the arrows
SWEEP_C = tuple(float(c) for c in np.geomspace(0.1, 1.5, 7))
DSM_NOISE = 0.1
CHAINS, STEP = 1000, 5e-3  # the paper's, from N(0, 4I)
LANGEVIN_STEPS = {2: 2000, 10: 3000, 30: 3000}
MODES: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "2-Gaussian": (lambda X: (X.sum(1) < 0).long(), 2),
    "Two Rings": (lambda X: (X.norm(dim=1) > 1.5).long(), 2),
    "10-D mixture": (lambda X: X[:, :4].argmax(1), 4),
    "30-D mixture": (lambda X: X[:, :4].argmax(1), 4),
}
Panels = dict[tuple[str, str], NDArray[np.float64]]  # by set and system


def field_points(name: str, points: int) -> tuple[Tensor, Tensor]:
    """A square of points, and the rows they stand for: themselves, or the slice x₃ = … = x_d = 0."""
    target = TARGETS[name]
    square = grid(target.bounds if target.space.dim == 2 else (-2.0, 5.0), points).X
    return square, torch.nn.functional.pad(square, (0, target.space.dim - 2))


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


def compute_densities(job: Job) -> Computed:
    """Learned densities on the evaluation grid."""
    arrays = {}
    for name in job.names:
        if TARGETS[name].space.dim == 2:
            for system, density in job.systems(name).items():
                p = density.log_density(exam(name).X).exp()
                arrays[name, system] = p.view(200, 200).numpy()
    return Computed([], arrays)


def denoisers(job: Job) -> dict[str, Density]:
    """Score networks of seed 0 by denoising score matching at one noise level, one for each set."""
    found: dict[str, Density] = {}
    for group in job.groups():
        for name in group.names:
            space = TARGETS[name].space
            x = torch.as_tensor(TARGETS[name].sample(group.rows, 0)).float().to(job.device)
            f = MLP(space, job.width(group)).to(job.device)
            train(f, denoising, x, job.recipe(group), cuda_graph=x.is_cuda)
            found[name] = Energy(f, space)
    return found


def denoising(f: MLP, x: Tensor, generator: torch.Generator) -> Tensor:
    return denoising_score_matching(f, x, DSM_NOISE, generator)


def compute_scores(job: Job) -> Computed:
    """Score magnitude and direction on a square, and the Fisher divergence on fresh rows."""
    extra, records, arrays = denoisers(job) if job.denoisers else {}, [], {}
    for name in job.names:
        fine, coarse = field_points(name, FINE)[1], field_points(name, COARSE)[1]
        X = torch.as_tensor(TARGETS[name].sample(TEST_ROWS, TEST_SEED))
        truth = TARGETS[name].grad_log_density(X)
        more = {f"DSM, σ = {DSM_NOISE:g}": extra[name]} if name in extra else {}
        for system, density in {**job.systems(name), **more}.items():
            arrows = torch.nn.functional.normalize(grad_of(density, coarse)[:, :2], dim=1)
            length = grad_of(density, fine).norm(dim=1, keepdim=True)
            arrays[name, system] = torch.cat([length.flatten(), arrows.flatten()]).numpy()
            if system != "truth":
                error = fisher_divergence(grad_of(density, X), truth)
                records.append(summarise(name, system, "Fisher divergence, seed 0", [error]))
    return Computed(records, arrays)


def langevin(density: Density, dim: int, steps: int, seed: int = 0) -> Tensor:
    """The paper's unadjusted dynamics, x ← x + η∇log ρ + √(2η) ξ from N(0, 4I); may leave the finite numbers."""
    device = density.device
    generator = torch.Generator(device).manual_seed(seed)
    x = 2 * torch.randn(CHAINS, dim, generator=generator, dtype=torch.float64, device=device)

    def move() -> Tensor:
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=device)
        x.add_(STEP * density.slope(x) + math.sqrt(2 * STEP) * noise)
        return x[0, 0]

    captured = device.type == "cuda" and not isinstance(
        density, Truth
    )  # targets copy constants to the device
    for _ in range(min(3, steps) if captured else steps):
        move()
    if captured and steps > 3:
        graph = StepGraph(move, generator)
        for _ in range(steps - 3):
            graph.replay()
    return x.cpu()


def langevin_numbers(name: str, X: Tensor, fresh: Tensor) -> dict[str, float]:
    """Chains that were lost, energy distance to fresh rows, and how far the weights of the modes are off."""
    good = X[X.isfinite().all(1) & (X.norm(dim=1) < 1e6)]
    found = {"chains lost": float(len(X) - len(good))}
    if len(good):
        found["energy distance to fresh rows"] = energy_distance(good, fresh)
    if len(good) and name in MODES:
        mode, k = MODES[name]
        found["mode weight error"] = mode_weight_error(mode(good), torch.full((k,), 1 / k))
    return found


def compute_langevin(job: Job) -> Computed:
    """Samples of every system, with numbers; "fresh rows" says what a perfect sampler would score."""
    records, arrays = [], {}
    for name in job.names:
        target, dim = TARGETS[name], TARGETS[name].space.dim
        steps = 5 if job.quick else LANGEVIN_STEPS[dim]
        fresh = torch.as_tensor(target.sample(TEST_ROWS, TEST_SEED))
        samples = {"fresh rows": torch.as_tensor(target.sample(CHAINS, TEST_SEED + 1))}
        samples |= {system: langevin(density, dim, steps) for system, density in job.systems(name).items()}
        for system, X in samples.items():
            arrays[name, system] = X[:, :2].numpy()
            for metric, value in langevin_numbers(name, X, fresh).items():
                records.append(summarise(name, system, metric, [value]))
                print(f"{name}, {system}: {metric} {value:.4g}", flush=True)
    return Computed(records, arrays)


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
    held_out = hold_out(x, weights)
    loss, recipe = Watched(course.loss), course.recipe
    recipe = replace(recipe, evaluate_every=recipe.steps // (2 if job.quick else 40))
    net = MLPs(space, len(held_out), width).to(job.device)
    history = train(net, loss, x, recipe, held_out=held_out, weights=weights, cuda_graph=x.is_cuda)
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


COMPUTE: dict[str, Callable[[Job], Computed]] = {
    "densities": compute_densities,
    "scores": compute_scores,
    "langevin": compute_langevin,
    "sweep": compute_sweep,
    "curves": compute_curves,
}
