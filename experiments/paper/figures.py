"""The figures of the continuous half: densities, score fields, Langevin samples, scale sweep, training curves.

    python -m experiments.paper.table1 --device cuda      (first: it keeps the fits of seed 0 in build/fits)
    python -m experiments.paper.figures --device cuda [--only densities scores langevin sweep curves] [--quick]
    python -m experiments.paper.figures --only scores langevin --sets "10-D mixture" --name flows-10d

What is computed goes to build/figures/NAME.npz and its numbers to experiments/results/figures-NAME.json; pictures are
drawn from the former into docs/. ``--stage compute`` and ``--stage draw`` do one without the other, so that the
machine that computes needs no matplotlib. With ``--name`` both files have it in their names, and a picture has the
panels of all of them: fits that come later, from another machine, need no others again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctem import MLP, train
from ctem.benchmarks.metrics import energy_distance, fisher_divergence, mode_weight_error
from ctem.matching.losses import denoising_score_matching
from ctem.training import PAPER_2D
from ctem.training.devices import StepGraph
from experiments.paper.curves import TEST_ROWS, TEST_SEED, Computed, Job, Truth, compute_curves, compute_sweep
from experiments.paper.drawing import (
    COARSE,
    FINE,
    SWEEP_C,
    Panels,
    draw,
    field_points,
    load_panels,
    save_panels,
)
from experiments.paper.sets import GROUPS, TARGETS, Density, exam, grad_of
from experiments.paper.systems import FITS, Energy
from experiments.paper.systems import settings_of as settings_of_ours
from experiments.paper.table1 import FAMILIES, Run, table1
from experiments.results import QUICK, ROOT, arguments, summarise, write

DOCS = ROOT / "docs"
ARRAYS = FITS.parent / "figures"
DSM_NOISE = 0.1
CHAINS, STEP = 1000, 5e-3  # the paper's, from N(0, 4I)
LANGEVIN_STEPS = {2: 2000, 10: 3000, 30: 3000}
MODES: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "2-Gaussian": (lambda X: (X.sum(1) < 0).long(), 2),
    "Two Rings": (lambda X: (X.norm(dim=1) > 1.5).long(), 2),
    "10-D mixture": (lambda X: X[:, :4].argmax(1), 4),
    "30-D mixture": (lambda X: X[:, :4].argmax(1), 4),
}


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
        "curves": {"held out": 0.1, "paper": asdict(PAPER_2D), "ours": settings_of_ours({})},
    }[figure]


def compute(figure: str, job: Job, out: Path, arrays: Path, end: str = "") -> None:
    """Run one figure, and leave its arrays and numbers in files with this end of their names."""
    began, computed = time.perf_counter(), COMPUTE[figure](job)
    save_panels(arrays / f"{figure}{end}.npz", computed.arrays)
    wall = time.perf_counter() - began
    print(f"{figure}: {wall:.0f} s", flush=True)
    if computed.records:
        settings = settings_of(figure)
        write(f"figures-{figure}{end}", settings, computed.records, job.device, wall, out, quick=job.quick)


def computed_arrays(figure: str, folder: Path) -> Panels:
    """The arrays of a figure from all runs; of two that have a panel, the newer."""
    found: Panels = {}
    for path in sorted(folder.glob(f"{figure}*.npz"), key=lambda path: path.stat().st_mtime):
        found |= load_panels(path)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="*", choices=COMPUTE, default=list(COMPUTE), help="which figures")
    parser.add_argument("--sets", nargs="*", choices=TARGETS, help="which sets (default: all)")
    parser.add_argument("--name", help="of the files of this run, after the figure's")
    parser.add_argument("--stage", choices=("both", "compute", "draw"), default="both", help="do half of it")
    parser.add_argument("--fits", type=Path, help="folder of table1's fits (default: build/fits)")
    parser.add_argument("--arrays", type=Path, help="folder of the arrays (default: build/figures)")
    args = parser.parse_args()
    fits = args.fits or (FITS / "quick" if args.quick else FITS)
    arrays = args.arrays or (QUICK if args.quick else ARRAYS)
    names = args.sets or (["Spiral", "2-Gaussian", "10-D mixture"] if args.quick else list(TARGETS))
    if args.quick and args.stage != "draw":
        table1(list(FAMILIES), GROUPS[:2], Run(range(1), args.device, True, args.out, fits))
    seeds = range(args.seeds or (1 if args.quick else 5))
    job = Job(names, args.device, args.quick, fits, seeds, denoisers=not args.name)
    end = f"-{args.name}" if args.name else ""
    for figure in args.only:
        if args.stage != "draw":
            compute(figure, job, args.out, arrays, end)
        if args.stage != "compute":
            draw(figure, computed_arrays(figure, arrays), QUICK if args.quick else DOCS)


if __name__ == "__main__":
    main()
