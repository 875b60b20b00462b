"""Choosing the default of ``fit_density`` on real columns by out-of-fold nats; the truth is not looked at.

    python experiments/choose.py --device cuda [--quick]

Data seeds 100 and up, which no table uses. One setting at a time is moved away from the default; the paired standard
error is over rows.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace

import torch
from torch import Tensor

from ctem.chain import Chain
from ctem.density import Density
from ctem.fitting import FINEST, fit_density
from ctem.joint import joint_log_z
from ctem.plans import Plan
from ctem.targets import PAPER_2D, GaussianMixture
from results import Record, arguments, summarise, write

DRAWS = 200  # from each member's chain, for its constant
PLAN = replace(Plan.suited(rows=1000, features=2, cuda=True), slopes=None)
RECIPE = PLAN.recipe
VARIANTS: dict[str, Plan] = {
    "default": PLAN,
    "no harmonics": replace(PLAN, harmonics=0),
    "3 harmonics": replace(PLAN, harmonics=3),
    "width 256": replace(PLAN, width=256),
    "weight decay 0.3": replace(PLAN, recipe=replace(RECIPE, weight_decay=0.3)),
    "weight decay 1": replace(PLAN, recipe=replace(RECIPE, weight_decay=1.0)),
    "learning rate 3e-3": replace(PLAN, recipe=replace(RECIPE, learning_rate=3e-3)),
    "half the batch": replace(PLAN, recipe=replace(RECIPE, batch_size=RECIPE.batch_size // 2)),
    "whole 0.75": replace(PLAN, whole=0.75),
}


def cases():
    for target in PAPER_2D:
        yield type(target).__name__, target, 1000
    for dim in (10, 30):
        yield f"{dim}-D mixture", GaussianMixture(dim), 5000


def out_of_fold(target, rows: int, seed: int, plan: Plan, device: str) -> tuple[Tensor, float, int, float]:
    """Log-density of each row by the member that did not see it, in row order; level, step, seconds."""
    X = target.sample(rows, seed)
    space = target.space.standardised(X)
    x = space.encode(X).to(device)
    began = time.perf_counter()
    density = fit_density(space, x, replace(plan, log_z_samples=8), seed=seed)
    seconds = time.perf_counter() - began
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).to(device)
    held = order[: rows // plan.members * plan.members]  # fold after fold, as in training
    with torch.no_grad():
        level = torch.full_like(x[held], density.level)
        value = (density.base.log_prob(x[held]) + density.net(x[held], level)).double().cpu()
    value = (value.view(-1, plan.members) - constants(density, device)).flatten()
    found = torch.full((rows,), math.nan, dtype=torch.float64)
    found[held.cpu()] = value
    return found, density.level, density.history.best_step, seconds


def constants(density: Density, device: str) -> Tensor:
    """log Z of each member: without it a density that is too high everywhere would look good."""
    generator, chain = torch.Generator(device).manual_seed(0), density.chain
    found = []
    for k in range(density.net.members):
        alone = Chain(
            density.net.member(k), density.base, floor=density.level, points=chain.points, limit=chain.limit
        )
        found.append(joint_log_z(alone, DRAWS, generator, orders=2).value)
    return torch.tensor(found, dtype=torch.float64)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="*", default=None, help="variants (default: all)")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    began, seeds = time.perf_counter(), range(100, 100 + (1 if args.quick else args.seeds or 2))
    records: list[Record] = []
    for name, target, rows in list(cases())[: 1 if args.quick else None]:
        first: dict[int, Tensor] = {}
        for variant, plan in VARIANTS.items():
            if args.only and variant not in args.only:
                continue
            if args.quick:
                if variant not in ("default", "no harmonics"):
                    continue
                recipe = replace(plan.recipe, steps=20, evaluate_every=10, batch_size=40)
                plan = replace(plan, width=16, blocks=1, members=2, recipe=recipe)
            gains, nats, line = [], [], ""
            for seed in seeds:
                value, level, step, seconds = out_of_fold(target, rows, seed, plan, args.device)
                first.setdefault(seed, value)
                difference = (value - first[seed])[~(value - first[seed]).isnan()]
                gains.append(difference)
                nats.append(float(value[~value.isnan()].mean()))
                line += f" [{nats[-1]:.4f} level {level:.1e} step {step} {seconds:.1f} s]"
            both = torch.cat(gains)
            stderr = float(both.std() / math.sqrt(len(both)))
            print(f"{name} {variant}: {float(both.mean()):+.4f} ± {stderr:.4f}{line}", flush=True)
            records.append(summarise(name, variant, "out-of-fold nats", nats))
            records.append(summarise(name, variant, "gain over the default", [float(both.mean())]))
            settings = {"variants": {k: asdict(v) for k, v in VARIANTS.items()}, "finest": FINEST}
            write(
                "choose",
                settings,
                records,
                args.device,
                time.perf_counter() - began,
                args.out,
                quick=args.quick,
            )


if __name__ == "__main__":
    main()
