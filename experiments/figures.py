"""The figures of the continuous half: densities, score fields, Langevin samples, scale sweep, training curves.

    python experiments/table1.py --device cuda      (first: it keeps the fits of seed 0 in build/fits)
    python experiments/figures.py --device cuda [--only densities scores langevin sweep curves] [--quick]
    python experiments/figures.py --only scores langevin --sets "10-D mixture" --name flows-10d    (some fits only)

What is computed goes to build/figures/NAME.npz and its numbers to experiments/results/figures-NAME.json; pictures are
drawn from the former into docs/. ``--stage compute`` and ``--stage draw`` do one without the other, so that the
machine that computes needs no matplotlib. With ``--name`` both files have it in their names, and a picture has the
panels of all of them: fits that come later, from another machine, need no others again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from continuous_sets import GROUPS, TARGETS, Density, exam, grad_of
from ctem import MLP, train
from ctem.losses import denoising_score_matching
from ctem.metrics import fisher_divergence
from ctem.training import PAPER_2D
from drawing import COARSE, FINE, SWEEP_C, Arrays, draw, field_points, load_arrays, save_arrays
from figure_curves import compute_curves, compute_sweep
from figure_job import TEST_ROWS, TEST_SEED, Computed, Job
from figure_langevin import CHAINS, LANGEVIN_STEPS, STEP, compute_langevin
from fits import FITS
from ours import settings_of as settings_of_ours
from paper import Energy
from results import QUICK, arguments, summarise, write
from table1 import FAMILIES, Run, table1

DOCS = Path(__file__).resolve().parent.parent / "docs"
ARRAYS = FITS.parent / "figures"
DSM_NOISE = 0.1


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
    save_arrays(arrays / f"{figure}{end}.npz", computed.arrays)
    wall = time.perf_counter() - began
    print(f"{figure}: {wall:.0f} s", flush=True)
    if computed.records:
        settings = settings_of(figure)
        write(f"figures-{figure}{end}", settings, computed.records, job.device, wall, out, quick=job.quick)


def computed_arrays(figure: str, folder: Path) -> Arrays:
    """The arrays of a figure from all runs; of two that have a panel, the newer."""
    found: Arrays = {}
    for path in sorted(folder.glob(f"{figure}*.npz"), key=lambda path: path.stat().st_mtime):
        found |= load_arrays(path)
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
