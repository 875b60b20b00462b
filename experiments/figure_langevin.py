"""Langevin samples of every system with the paper's settings, and numbers beside the pictures."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from continuous_sets import TARGETS, Density
from ctem.capture import StepGraph
from ctem.metrics import energy_distance, mode_weight_error
from figure_job import TEST_ROWS, TEST_SEED, Computed, Job, Truth
from results import summarise

CHAINS, STEP = 1000, 5e-3  # the paper's, from N(0, 4I)
LANGEVIN_STEPS = {2: 2000, 10: 3000, 30: 3000}
MODES: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "2-Gaussian": (lambda X: (X.sum(1) < 0).long(), 2),
    "Two Rings": (lambda X: (X.norm(dim=1) > 1.5).long(), 2),
    "10-D mixture": (lambda X: X[:, :4].argmax(1), 4),
    "30-D mixture": (lambda X: X[:, :4].argmax(1), 4),
}


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
