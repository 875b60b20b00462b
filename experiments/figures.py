"""The figures of the continuous half: densities, score fields, Langevin samples, scale sweep, training curves.

    python experiments/table1.py --device cuda      (first: it keeps the fits of seed 0 in build/fits)
    python experiments/figures.py --device cuda [--only densities scores langevin sweep curves] [--quick]

What is computed goes to build/figures/NAME.npz and its numbers to experiments/results/figures-NAME.json; pictures are
drawn from the former into docs/. ``--stage compute`` and ``--stage draw`` do one without the other, so that the
machine that computes needs no matplotlib.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from batched import Member, Networks, Pairs, Program, train
from continuous_sets import GROUPS, TARGETS, Group, Table, exam, tables
from crossfit import PLAIN
from ctem import Recipe, mean_std
from ctem.capture import StepGraph
from ctem.metrics import energy_distance, fisher_divergence, ise, mode_weight_error
from ctem.training import PAPER_2D, PAPER_HIGH_D
from drawing import COARSE, FINE, SWEEP_C, Arrays, draw, field_points, load_arrays, save_arrays
from fits import FITS, load_fits
from learned import Density, Energy, grad_of
from results import QUICK, Record, arguments, summarise, write
from table1 import FAMILIES, PAPER_C, Run, paper_member, table1

DOCS = Path(__file__).resolve().parent.parent / "docs"
ARRAYS = FITS.parent / "figures"
CHAINS, STEP = 1000, 5e-3  # the paper's, from N(0, 4I)
LANGEVIN_STEPS = {2: 2000, 10: 3000, 30: 3000}
DSM_NOISE = 0.1
SWEEP_SETS = ("Spiral", "Banana", "Two Rings")
TEST_ROWS, TEST_SEED = 2000, 10_000
MODES: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "2-Gaussian": (lambda X: (X.sum(1) < 0).long(), 2),
    "Two Rings": (lambda X: (X.norm(dim=1) > 1.5).long(), 2),
    "10-D mixture": (lambda X: X[:, :4].argmax(1), 4),
    "30-D mixture": (lambda X: X[:, :4].argmax(1), 4),
}


class Computed(NamedTuple):
    """The numbers of a figure, and what its panels show, by set and system."""

    records: list[Record]
    arrays: Arrays


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

    def systems(self, name: str) -> dict[str, Density]:
        """Truth first, then the fits of seed 0."""
        found = load_fits(self.fits, name, self.device)
        if not found:
            raise FileNotFoundError(f"{self.fits}: no fits of {name!r}; run experiments/table1.py first.")
        return {"truth": Truth(name, self.device), **found}

    def groups(self) -> list[Group]:
        """The groups, with the sets of this job."""
        kept = [g._replace(names=tuple(n for n in g.names if n in self.names)) for g in GROUPS]
        return [g for g in kept if g.names]

    def recipe(self, group: Group, recipe: Recipe | None = None) -> Recipe:
        """The paper's recipe of a group by default, cut short with --quick."""
        recipe = recipe or (PAPER_2D if group.dim == 2 else PAPER_HIGH_D)
        return replace(recipe, steps=20, evaluate_every=10) if self.quick else recipe

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


class Denoising:
    """Denoising score matching at one noise level, E|∇f(x + σξ) + ξ/σ|², for all members at once."""

    def __init__(self, networks: Networks, rows: Tensor, batch_size: int):
        self.networks, self.rows, self.batch_size = networks, rows, batch_size

    def __call__(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        k, n, d = self.rows.shape
        device = self.rows.device
        index = torch.randint(n, (k, self.batch_size), generator=generator, device=device)
        x = self.rows.gather(1, index.unsqueeze(-1).expand(-1, -1, d))
        xi = torch.randn(x.shape, generator=generator, device=device)
        noisy = (x + DSM_NOISE * xi).requires_grad_()
        (slope,) = torch.autograd.grad(self.networks(parameters, noisy).sum(), noisy, create_graph=True)
        return (slope + xi / DSM_NOISE).square().sum(-1).mean(1)


def denoisers(job: Job) -> dict[str, Density]:
    """Score networks of seed 0 by denoising score matching, one for each set."""
    found: dict[str, Density] = {}
    for group in job.groups():
        rows = torch.stack([torch.as_tensor(TARGETS[n].sample(group.rows, 0)).float() for n in group.names])
        networks, recipe = Networks(group.dim, job.width(group)), job.recipe(group)
        start = networks.initial([0] * len(rows)).to(job.device)
        loss = Denoising(networks, rows.to(job.device), recipe.batch_size)
        last = Program(start, loss, replace(recipe, evaluate_every=recipe.steps)).run().parameters[-1]
        for name, p in zip(group.names, last, strict=True):
            found[name] = Energy(networks, p.unsqueeze(0), TARGETS[name].space, tilted=False)
    return found


def compute_scores(job: Job) -> Computed:
    """Score magnitude and direction on a square, and the Fisher divergence on fresh rows."""
    extra, records, arrays = denoisers(job), [], {}
    for name in job.names:
        fine, coarse = field_points(name, FINE)[1], field_points(name, COARSE)[1]
        X = torch.as_tensor(TARGETS[name].sample(TEST_ROWS, TEST_SEED))
        truth = TARGETS[name].grad_log_density(X)
        for system, density in {**job.systems(name), f"DSM, σ = {DSM_NOISE:g}": extra[name]}.items():
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


def planar_error(energy: Energy, name: str) -> float:
    """ISE ×1e-2, normalised on the evaluation square as the paper does."""
    X, truth, weights, _ = exam(name)
    with torch.no_grad():
        f = energy.values(X.to(energy.device))[0].cpu()
    return 100 * ise((f - (f + weights.log()).logsumexp(0)).exp(), truth, weights)


def compute_sweep(job: Job) -> Computed:
    """ISE of CTEM-G against c on a geometric grid, as the paper trains it."""
    names = [n for n in SWEEP_SETS if n in job.names]
    group = GROUPS[0]._replace(names=tuple(names), rows=200 if job.quick else 1000)
    keys = [(name, c, seed) for name in names for c in SWEEP_C for seed in job.seeds]
    members = [sweep_member(name, c, seed, group.rows) for name, c, seed in keys]
    networks, recipe = Networks(2, job.width(group)), job.recipe(group)
    pairs = Pairs(networks, members, job.device)
    last = train(networks, members, pairs, replace(recipe, evaluate_every=recipe.steps)).parameters[-1]
    found: dict[tuple[str, float], list[float]] = {}
    for (name, c, _), p in zip(keys, last, strict=True):
        energy = Energy(networks, p.unsqueeze(0), TARGETS[name].space, tilted=False)
        found.setdefault((name, c), []).append(planar_error(energy, name))
    records = [summarise(n, f"CTEM-G, c = {c:.3g}", "ISE ×1e-2", v) for (n, c), v in found.items()]
    return Computed(records, {(n, "CTEM-G"): np.array([found[n, c] for c in SWEEP_C]) for n in names})


def sweep_member(name: str, c: float, seed: int, rows: int) -> Member:
    x = torch.as_tensor(TARGETS[name].sample(rows, seed)).float()
    return Member(x=x, scale=c * mean_std(x), seed=seed)


class Curve(NamedTuple):
    """One run: held-out loss and true error at every evaluation."""

    steps: list[int]
    held_out: list[float]
    error: list[float]


def split(x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """90 % of the rows to train on, 10 % held out."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return x[order[len(x) // 10 :]], x[order[: len(x) // 10]]


def curve_members(system: str, rows: list[Table]) -> list[Member]:
    """CTEM-G as the paper trains it, or ours with each weight decay, on 90 % of the rows."""
    members = []
    for table in rows:
        if system in PAPER_C:
            member = paper_member(system, table)
            kept, held_out = split(member.x, table.seed)
            members.append(replace(member, x=kept, held_out=held_out))
            continue
        kept, held_out = split(table.space.encode(table.X), table.seed)
        members.append(
            Member(
                x=kept,
                held_out=held_out,
                weight_decay=float(system.rpartition(" ")[2]),
                seed=table.seed,
            )
        )
    return members


def true_error(energy: Energy, table: Table) -> float:
    """ISE ×1e-2 in the plane, Fisher divergence in more dimensions."""
    if table.space.dim == 2:
        return planar_error(energy, table.name)
    X, _, _, slope = exam(table.name)
    return fisher_divergence(grad_of(energy, X), slope)


def curves_of(system: str, group: Group, job: Job) -> dict[str, Curve]:
    """Seed 0 of every set of the group, trained together."""
    rows = [t for t in tables(group, range(1), job.quick) if t.name in job.names]
    paper = system in PAPER_C
    recipe = job.recipe(group, None if paper else PLAIN.recipe)
    recipe = replace(recipe, evaluate_every=recipe.steps // (2 if job.quick else 40))
    networks, members = Networks(group.dim, job.width(group)), curve_members(system, rows)
    pairs = Pairs(networks, members, job.device, rates=() if paper else PLAIN.rates)
    trained = train(networks, members, pairs, recipe)
    found = {}
    for k, table in enumerate(rows):
        space = TARGETS[table.name].space if paper else table.space
        errors = [
            true_error(Energy(networks, p[k : k + 1], space, tilted=not paper), table)
            for p in trained.parameters
        ]
        found[table.name] = Curve(trained.steps, trained.held_out[:, k].tolist(), errors)
    return found


def compute_curves(job: Job) -> Computed:
    """Held-out loss and true error against the step: where the one is lowest, so nearly is the other."""
    systems = ["CTEM-G", *(f"ours, weight decay {w:g}" for w in PLAIN.weight_decays)]
    records, arrays = [], {}
    for system in systems[: 2 if job.quick else None]:
        for group in job.groups():
            for name, curve in curves_of(system, group, job).items():
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


def settings_of(figure: str) -> dict[str, Any]:
    return {
        "densities": {},
        "scores": {"DSM noise": DSM_NOISE},
        "langevin": {"chains": CHAINS, "step": STEP, "steps": LANGEVIN_STEPS},
        "sweep": {"c": SWEEP_C, "recipe": asdict(PAPER_2D)},
        "curves": {"held out": 0.1, "paper": asdict(PAPER_2D), "ours": asdict(PLAIN)},
    }[figure]


def compute(figure: str, job: Job, out: Path, arrays: Path) -> None:
    """Run one figure, and leave its arrays and numbers."""
    began, computed = time.perf_counter(), COMPUTE[figure](job)
    save_arrays(arrays / f"{figure}.npz", computed.arrays)
    wall = time.perf_counter() - began
    print(f"{figure}: {wall:.0f} s", flush=True)
    if computed.records:
        settings = settings_of(figure)
        write(f"figures-{figure}", settings, computed.records, job.device, wall, out, quick=job.quick)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="*", choices=COMPUTE, default=list(COMPUTE), help="which figures")
    parser.add_argument("--stage", choices=("both", "compute", "draw"), default="both", help="do half of it")
    parser.add_argument("--fits", type=Path, help="folder of table1's fits (default: build/fits)")
    parser.add_argument("--arrays", type=Path, help="folder of the arrays (default: build/figures)")
    args = parser.parse_args()
    fits = args.fits or (FITS / "quick" if args.quick else FITS)
    arrays = args.arrays or (QUICK if args.quick else ARRAYS)
    names = ["Spiral", "2-Gaussian", "10-D mixture"] if args.quick else list(TARGETS)
    if args.quick and args.stage != "draw":
        fitted = [family for family in FAMILIES if family != "further"]
        table1(fitted, GROUPS[:2], Run(range(1), args.device, True, args.out, fits))
    seeds = range(args.seeds or (1 if args.quick else 5))
    job = Job(names, args.device, args.quick, fits, seeds)
    for figure in args.only:
        if args.stage != "draw":
            compute(figure, job, args.out, arrays)
        if args.stage != "compute":
            draw(figure, load_arrays(arrays / f"{figure}.npz"), QUICK if args.quick else DOCS)


if __name__ == "__main__":
    main()
