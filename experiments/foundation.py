"""The foundation's claims: the paper's recipe on Two Rings, the joint mixed kernel, exact recovery, soft targets.

python experiments/foundation.py [--quick] [--seeds 1]
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace

import torch
from torch import Tensor

from ctem import MLP, HammingOne, Product, Recipe, Space, Sphere, mean_std, pair_loss, train
from ctem.bases import ProductBase
from ctem.energies import NoisyMLP
from ctem.kernels import Redraw
from ctem.losses import denoised_loss
from ctem.metrics import ise
from ctem.noise import Levels, Noise
from ctem.spaces import Category
from ctem.targets import LabelledRing, TwoRings, grid
from ctem.training import PAPER_2D
from results import Record, arguments, summarise, write

SETTINGS = {
    "two rings": {"c": 0.5, "m": 4, "rows": 1000, "recipe": asdict(PAPER_2D)},
    "labelled ring": {
        "scale": 0.5,
        "m": 2,
        "rows": 20_000,
        "width": 64,
        "recipe": asdict(Recipe(steps=6000, batch_size=512, ema=0.998)),
    },
    "gradient variance": {"bits": 8, "level": 0.7, "draws": 2000},
}


def two_rings(seed: int, quick: bool) -> float:
    """ISE of the paper's CTEM-S, trained as the paper trains it."""
    setting, target = SETTINGS["two rings"], TwoRings()
    x = target.space.encode(target.sample(setting["rows"], seed))
    kernel = Sphere(target.space, setting["c"] * mean_std(x))
    f = MLP(target.space, seed=seed)
    recipe = replace(Recipe(**setting["recipe"]), seed=seed, steps=100 if quick else PAPER_2D.steps)
    train(f, lambda f, x, g: pair_loss(f, x, kernel, g, m=setting["m"]), x, recipe, progress=True)
    square = grid(target.bounds)
    with torch.no_grad():
        p = f(square.X.float()).double().exp()
    p /= (p * square.weights).sum()
    return ise(p, target.log_density(square.X).exp(), square.weights)


def labelled_ring(seed: int, quick: bool) -> dict[str, float]:
    """Errors of the marginal, the 16 components and the label weights under the joint mixed kernel."""
    setting, target = SETTINGS["labelled ring"], LabelledRing()
    X = target.sample(setting["rows"], seed)
    space = target.space.standardised(X)
    kernel = Product(Sphere(space, setting["scale"]), HammingOne(space))
    f = MLP(space, width=setting["width"], seed=seed)
    recipe = replace(Recipe(**setting["recipe"]), seed=seed)
    recipe = replace(recipe, steps=100) if quick else recipe
    train(
        f, lambda f, x, g: pair_loss(f, x, kernel, g, m=setting["m"]), space.encode(X), recipe, progress=True
    )
    p, truth, weights = on_the_square(f, space, target)
    return ring_errors(p, truth, weights, target)


def on_the_square(f, space: Space, target: LabelledRing, points: int = 100):
    """Learned and true p(x, y) on a square, each (16, points²), and the weights of the trapezoidal rule."""
    square = grid((-7.0, 7.0), points)
    rows = torch.cat([torch.nn.functional.pad(square.X, (0, 1), value=label) for label in range(16)])
    with torch.no_grad():
        p = f(space.encode(rows)).double().exp().view(16, -1)
    p /= (p * square.weights).sum()
    return p, target.log_density(rows).exp().view(16, -1), square.weights


def label_errors(p: Tensor, truth: Tensor, weights: Tensor) -> list[float]:
    """Relative L2 error of p(x, y) for each label y."""
    return (((p - truth) ** 2 * weights).sum(-1) / (truth**2 * weights).sum(-1)).sqrt().tolist()


def ring_errors(p: Tensor, truth: Tensor, weights: Tensor, target: LabelledRing) -> dict[str, float]:
    """Relative L2 errors of the marginal and the worst component, and the worst error of a label's weight."""

    def norm(density: Tensor) -> Tensor:
        return (density**2 * weights).sum(-1).sqrt()

    return {
        "marginal, relative L2 error": float(norm(p.sum(0) - truth.sum(0)) / norm(truth.sum(0))),
        "worst component, relative L2 error": max(label_errors(p, truth, weights)),
        "worst label weight error": float(((p * weights).sum(1) - target.weights).abs().max()),
    }


def gradient_variance(soft_target: bool, quick: bool) -> float:
    """Total variance of the single-row gradient of the denoised loss on independent skewed bits."""
    setting = SETTINGS["gradient variance"]
    space = Space([Category(2)] * setting["bits"])
    base = ProductBase(space)
    generator = torch.Generator().manual_seed(0)
    x0 = (torch.rand(setting["draws"], setting["bits"], generator=generator) < 0.2).float()
    f, noise, schedule, kernel = NoisyMLP(space), Noise(base), Levels((setting["level"],)), Redraw(base)
    grads = []
    for row in x0[: 50 if quick else None].split(1):
        loss = denoised_loss(f, row, noise, schedule, kernel, generator, soft_target=soft_target)
        grads.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(f.parameters()))]))
    return float(torch.stack(grads).var(0).sum())


def main() -> None:
    parser = arguments(__doc__)
    args = parser.parse_args()
    if args.device != "cpu":
        parser.error(f"--device: this script runs on the cpu; got {args.device}.")
    began, seeds = time.perf_counter(), range(args.seeds or 1)
    records: list[Record] = [
        summarise(
            "Two Rings",
            "CTEM-S, paper's recipe",
            "ISE ×1e-2",
            [100 * two_rings(seed, args.quick) for seed in seeds],
            paper="0.774 ± 0.39",
        )
    ]
    runs = [labelled_ring(seed, args.quick) for seed in seeds]
    for metric in runs[0]:
        records.append(
            summarise("R²×{0..15}, s = 2", "CTEM, joint mixed kernel", metric, [r[metric] for r in runs])
        )
    for name, soft_target in (("constant target", False), ("soft target", True)):
        value = gradient_variance(soft_target, args.quick)
        records.append(summarise("8 noisy bits", name, "variance of the gradient", [value]))
    write(
        "foundation",
        SETTINGS,
        records,
        args.device,
        time.perf_counter() - began,
        args.out,
        quick=args.quick,
    )
    for record in records:
        print(f"{record.dataset}: {record.system}: {record.metric} = {record.mean:.4g}")


if __name__ == "__main__":
    main()
