"""The mixed experiment: R² × {0 … 15}, sixteen labelled Gaussians on a ring, with numbers beside the pictures.

    python experiments/mixed.py --device cuda [--seeds 3] [--quick]

The paper trains an MLP f(x, y) with a joint kernel, x̃ = x − 2εu and ỹ = (y + δ) mod 16 (eq. app-mixed-joint-kernel),
and shows the marginal and the sixteen components; the figure here does the same. Beside it: a kernel density estimate
for each label, a conditional flow with empirical label weights (zuko), and space-time CTEM
(``ctem.fitting.fit_density``). Everything is read off one grid: p(x, y) at every label, so that KL and the label
weights are integrals, without sampling noise. Bandwidths and stopping times are chosen on held-out rows, never on the
truth.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ctem import MLP, Recipe, brier, train
from ctem.density import Plan
from ctem.fitting import fit_density
from ctem.metrics import total_variation
from ctem.targets import Grid, LabelledRing, grid
from results import Record, arguments, summarise, write

LABELS = 16
ROWS = 20_000
SEPARATIONS = (2.0, 1.0, 4.0, 8.0)  # the first is the paper's, with every seed; the others have one seed
TESTED = 2000  # rows of the exact chain rule, the same for every seed
MARGIN, POINTS = 5.0, 161  # the grid reaches so far beyond the ring; nodes per axis
JOINT = {"scale": 0.5, "comparisons": 2, "width": 128}  # scale: ε in standard deviations of the data
JOINT_RECIPE = Recipe(steps=6000, batch_size=1024, ema=0.999, evaluate_every=300)
PLAN = Plan(
    width=128,
    blocks=2,
    harmonics=0,
    members=5,
    whole=0.75,
    log_z_samples=1000,
    orders=2,
    recipe=Recipe(
        steps=3000, batch_size=2560, learning_rate=2e-3, weight_decay=0.01, ema=0.998, evaluate_every=250
    ),
)
FLOW = {"transforms": 3, "hidden": 64, "steps": 1000, "batch_size": 4096, "learning_rate": 3e-3}
BANDWIDTHS = [0.1 * 1.15**i for i in range(14)]  # of the labels' Gaussians, whose scale is 1


class Found(NamedTuple):
    """A fitted joint density: log p(x, y) on the grid, (16, points)."""

    log_p: Tensor
    extra: dict[str, float]


class Rows(NamedTuple):
    """The rows of one seed, a tenth of them held out."""

    kept: Tensor  # (n, 3) float64, in the user's units
    held: Tensor

    @classmethod
    def split(cls, X, seed: int) -> Rows:
        X = torch.as_tensor(X)
        order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
        return cls(X[order[len(X) // 10 :]], X[order[: len(X) // 10]])

    @property
    def all(self) -> Tensor:
        return torch.cat(self)


def with_label(X: Tensor, label: int) -> Tensor:
    return nn.functional.pad(X, (0, 1), value=float(label))


def joint_kernel(
    target: LabelledRing, rows: Rows, square: Grid, seed: int, device: str, quick: bool
) -> Found:
    """The paper's: an MLP trained with the joint kernel, stopped on held-out loss, normalised on the grid."""
    space = target.space.standardised(rows.kept)
    f = MLP(space, width=16 if quick else JOINT["width"], seed=seed).to(device)
    labels = torch.arange(LABELS, device=device, dtype=torch.float32)

    def value(f: MLP, x: Tensor) -> Tensor:  # one-hot without waiting for the device
        return f.on_features(torch.cat([x[:, :2], (x[:, 2:] == labels).to(x.dtype)], -1))

    def loss(f: MLP, x: Tensor, generator: torch.Generator) -> Tensor:
        x = x.repeat(JOINT["comparisons"], 1)
        u = torch.rand(2, len(x), 1, generator=generator, device=device)
        angle = 2 * math.pi * u[0]
        shift = 1 + (u[1] * (LABELS - 1)).floor().clamp(max=LABELS - 2)
        point = x[:, :2] - 2 * JOINT["scale"] * torch.cat([angle.cos(), angle.sin()], -1)
        y = torch.cat([point, (x[:, 2:] + shift) % LABELS], -1)
        return brier(value(f, x) - value(f, y)).mean()

    recipe = replace(JOINT_RECIPE, seed=seed)
    recipe = replace(recipe, steps=20, evaluate_every=10, batch_size=64) if quick else recipe
    kept, held = (space.encode(part).to(device) for part in rows)
    train(f, loss, kept, recipe, held_out=held, cuda_graph=device.startswith("cuda"))
    with torch.no_grad():
        at = [space.encode(with_label(square.X, y)).to(device) for y in range(LABELS)]
        log_p = torch.stack([value(f, part) for part in at]).double().cpu()
    mass = (log_p + square.weights.log()).logsumexp((0, 1))
    return Found(log_p - mass, {})


def kernel_estimates(
    target: LabelledRing, rows: Rows, square: Grid, seed: int, device: str, quick: bool
) -> Found:
    """π̂_y times a Gaussian KDE of the rows of label y; one bandwidth for all labels, by held-out likelihood."""
    kept, held = rows.kept.to(device), rows.held.to(device)
    score = [
        _kde(kept, held, h).gather(0, held[:, 2].long()[None]).mean()
        for h in BANDWIDTHS[:: 4 if quick else 1]
    ]
    best = BANDWIDTHS[:: 4 if quick else 1][int(torch.stack(score).argmax())]
    return Found(_kde(rows.all.to(device), square.X.to(device), best).cpu(), {"bandwidth": best})


def _kde(X: Tensor, at: Tensor, bandwidth: float) -> Tensor:
    """log π̂_y p̂(x|y) at the points x for every label, (16, points)."""
    found = []
    for label in range(LABELS):
        centres = X[X[:, 2] == label, :2]
        parts = []
        for part in at[:, :2].split(4096):
            parts.append((-torch.cdist(part, centres).square() / (2 * bandwidth**2)).logsumexp(1))
        constant = math.log(len(X)) + math.log(2 * math.pi * bandwidth**2)
        found.append(torch.cat(parts) - constant)
    return torch.stack(found)


def flow(target: LabelledRing, rows: Rows, square: Grid, seed: int, device: str, quick: bool) -> Found:
    """π̂_y times zuko's neural spline flow given the label, stopped on held-out likelihood."""
    try:
        import zuko
    except ImportError as error:
        raise ImportError("the flow baseline needs zuko: pip install ctem[baselines].") from error
    space = target.space.standardised(rows.kept)
    kept, held = (space.encode(part).to(device) for part in rows)
    hidden = (16,) if quick else (FLOW["hidden"],) * 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = zuko.flows.NSF(2, LABELS, transforms=FLOW["transforms"], hidden_features=hidden).to(device)
    one_hot = torch.eye(LABELS, device=device)
    steps = 10 if quick else FLOW["steps"]
    optimizer = torch.optim.Adam(model.parameters(), FLOW["learning_rate"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator(device).manual_seed(seed)
    best, best_nats = None, math.inf
    for step in range(steps):
        batch = kept[torch.randint(len(kept), (FLOW["batch_size"],), generator=generator, device=device)]
        optimizer.zero_grad()
        (-model(one_hot[batch[:, 2].long()]).log_prob(batch[:, :2]).mean()).backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            with torch.no_grad():
                nats = -float(model(one_hot[held[:, 2].long()]).log_prob(held[:, :2]).mean())
            if nats < best_nats:
                best, best_nats = {k: v.clone() for k, v in model.state_dict().items()}, nats
    model.load_state_dict(best)
    weights = torch.bincount(rows.all[:, 2].long(), minlength=LABELS).double() / len(rows.all)
    x = space.encode(with_label(square.X, 0))[:, :2].to(device)
    with torch.no_grad():
        log_p = [model(one_hot[y].expand(len(x), -1)).log_prob(x).double().cpu() for y in range(LABELS)]
    return Found(torch.stack(log_p) + weights.log()[:, None] + space.log_det, {})


def space_time(target: LabelledRing, rows: Rows, square: Grid, seed: int, device: str, quick: bool) -> Found:
    """Space-time CTEM: one pass, its constant from the chain rule; and the exact chain rule on held-out truth."""
    space = target.space.standardised(rows.all)
    plan = PLAN
    if quick:
        recipe = replace(plan.recipe, steps=20, batch_size=50, evaluate_every=10)
        plan = replace(plan, width=16, blocks=1, log_z_samples=50, recipe=recipe)
    density = fit_density(space, space.encode(rows.all).to(device), plan, seed=seed)
    at = [space.encode(with_label(square.X, y)).to(device) for y in range(LABELS)]
    log_p = torch.stack([density.log_prob(part).double().cpu() for part in at]) + space.log_det
    X = torch.as_tensor(target.sample(40 if quick else TESTED, seed=10_000))
    exact = density.log_prob_exact(space.encode(X).to(device)).double().cpu() + space.log_det
    extra = {
        "KL(truth‖model), exact chain rule": float((target.log_density(X) - exact).mean()),
        "log Z of the one pass": density.log_z.value,
        "level chosen by held-out likelihood": density.level,
    }
    return Found(log_p, extra)


SYSTEMS: dict[str, Callable[..., Found]] = {
    "KDE for each label": kernel_estimates,
    "conditional flow (zuko)": flow,
    "CTEM, joint kernel": joint_kernel,
    "space-time CTEM": space_time,
}


def measure(log_p: Tensor, target: LabelledRing, square: Grid) -> dict[str, float]:
    """Every number from p(x, y) on the grid, (16, points).

    KL is that of the density as it is: a model whose mass is not 1 pays for it. Calibration compares p(y|x) with the
    exact posterior, averaged over the true p(x).
    """
    truth = torch.stack([target.log_density(with_label(square.X, y)) for y in range(LABELS)])
    w, p, q = square.weights, log_p.exp(), truth.exp()
    mass, weight = (p * w).sum(1), (q * w).sum(1)
    each = ((p / mass[:, None] - q / weight[:, None]) ** 2 * w).sum(1)
    here = q.sum(0) * w
    gap = (log_p.softmax(0) - truth.softmax(0)).abs().sum(0) / 2
    kl = (truth.softmax(0) * (truth.log_softmax(0) - log_p.log_softmax(0))).sum(0)
    return {
        "KL(truth‖model)": float((q * (truth - log_p) * w).sum() / (q * w).sum()),
        "KL(truth‖model), normalised on the grid": float(
            (q * (truth - log_p) * w).sum() / (q * w).sum() + mass.sum().log()
        ),
        "mass on the grid": float(mass.sum()),
        "label weights, TV": total_variation(mass / mass.sum(), target.weights),
        "ISE of p(x|y) ×1e-4, mean over labels": 1e4 * float(each.mean()),
        "ISE of p(x|y) ×1e-4, worst label": 1e4 * float(each.max()),
        "p(y|x) against the posterior, mean TV": float((here * gap).sum() / here.sum()),
        "p(y|x) against the posterior, mean KL": float((here * kl).sum() / here.sum()),
    }


def draw(found: dict[str, Tensor], target: LabelledRing, square: Grid, folder: Path) -> None:
    """Two pictures: the marginal p(x), and the sixteen components p(x, y), of the truth and of every system."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    truth = torch.stack([target.log_density(with_label(square.X, y)) for y in range(LABELS)]).exp()
    points = math.isqrt(len(square.X))
    shown = {"truth": truth} | {name: log_p.exp() for name, log_p in found.items()}
    figure, axes = plt.subplots(1, len(shown), figsize=(3 * len(shown), 3.2), layout="constrained")
    for axis, (name, p) in zip(axes, shown.items(), strict=True):
        axis.imshow(
            p.sum(0).view(points, points).T,
            origin="lower",
            cmap="magma",
            vmin=0,
            vmax=float(truth.sum(0).max()),
        )
        axis.set_title(name, fontsize=9)
        axis.set_axis_off()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "mixed-marginal.png", dpi=120)
    figure, axes = plt.subplots(len(shown), LABELS, figsize=(LABELS, 1.1 * len(shown)), layout="constrained")
    for line, (name, p) in zip(axes, shown.items(), strict=True):
        for label, axis in enumerate(line):
            axis.imshow(
                p[label].view(points, points).T, origin="lower", cmap="magma", vmin=0, vmax=float(truth.max())
            )
            axis.set_xticks([])
            axis.set_yticks([])
        line[0].set_ylabel(name, fontsize=5)
    figure.savefig(folder / "mixed-labels.png", dpi=120)
    plt.close("all")


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_float32_matmul_precision("high")
    began, records = time.perf_counter(), list[Record]()
    settings = {
        "rows": ROWS,
        "joint": JOINT | {"recipe": asdict(JOINT_RECIPE)},
        "space-time": asdict(PLAN),
        "flow": FLOW,
        "grid": POINTS,
    }
    for separation in SEPARATIONS[:1] if args.quick else SEPARATIONS:
        seeds = range(1 if args.quick or separation != SEPARATIONS[0] else args.seeds or 3)
        target = LabelledRing(separation)
        square = grid((-separation - MARGIN, separation + MARGIN), 41 if args.quick else POINTS)
        pictures = {}
        for system, fit in SYSTEMS.items():
            values: dict[str, list[float]] = {}
            for seed in seeds:
                rows = Rows.split(target.sample(ROWS // (10 if args.quick else 1), seed), seed)
                start = time.perf_counter()
                found = fit(target, rows, square, seed, args.device, args.quick)
                seconds = {"seconds": time.perf_counter() - start}
                for metric, value in (measure(found.log_p, target, square) | found.extra | seconds).items():
                    values.setdefault(metric, []).append(value)
                pictures.setdefault(system, found.log_p)
            name = f"R²×{{0..15}}, s = {separation:g}"
            for metric, of_seeds in values.items():
                records.append(summarise(name, system, metric, of_seeds))
                print(f"{name}  {system:24} {metric:48} {records[-1].mean:.5g}", flush=True)
            seconds = time.perf_counter() - began
            write("mixed", settings, records, args.device, seconds, args.out, quick=args.quick)
        if separation == SEPARATIONS[0]:
            draw(pictures, target, square, args.out)


if __name__ == "__main__":
    main()
