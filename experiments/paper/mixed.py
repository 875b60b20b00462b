"""The mixed experiment: R² × {0 … 15}, sixteen labelled Gaussians on a ring, with numbers beside the pictures.

    python -m experiments.paper.mixed --device cuda [--seeds 3] [--quick]

The paper trains an MLP f(x, y) with a joint kernel, x̃ = x − 2εu and ỹ = (y + δ) mod 16 (eq. app-mixed-joint-kernel),
and shows the marginal and the sixteen components; the figures here do the same. Beside it: a kernel density estimate
for each label, a conditional flow with empirical label weights (zuko), and what ``CTEM()`` fits.
Bandwidths and stopping times are chosen on held-out rows, never on the truth. Everything is read off one grid: p(x, y)
at every label, so that KL and the label weights are integrals, without sampling noise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ctem import MLP, HammingOne, Product, Recipe, Space, Sphere, pair_loss, train
from ctem.benchmarks.metrics import total_variation
from ctem.benchmarks.targets import LabelledRing, Quadrature, grid
from ctem.densities.anyorder import Settings, fit_anyorder
from ctem.matching.kernels import Kernel
from ctem.partition import log_z_grid
from ctem.training import Loss
from experiments.paper.baselines import FlowSettings
from experiments.results import Record, arguments, staged, summarise, write

ROWS = 20_000
SEPARATIONS = (2.0, 1.0, 4.0, 8.0)  # the first is the paper's, with every seed; the others have one seed
MARGIN, POINTS = 5.0, 161  # the grid reaches so far beyond the ring; nodes per axis
LABELS = 16
JOINT = {"scale": 0.5, "comparisons": 2, "width": 128}  # scale: ε in standard deviations of the data
JOINT_RECIPE = Recipe(steps=6000, batch_size=1024, ema=0.999, evaluate_every=300)
FLOW = FlowSettings(
    blocks=3, steps=1000, hidden=(64, 64), dequantisation=0.0, batch_size=4096, learning_rate=3e-3
)
FLOW_EVERY = 100  # steps between held-out likelihoods
BANDWIDTHS = [0.1 * 1.15**i for i in range(14)]  # of the labels' Gaussians, whose scale is 1
AT_ONCE = 65_536  # points of a grid that a network sees at once


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


class Case(NamedTuple):
    """One data set, its truth, and the grid that everything is read off."""

    target: LabelledRing
    seed: int
    rows: Rows
    square: Quadrature

    def states(self, space: Space, device: str) -> Tensor:
        """The grid at every label, encoded, (16 · points, 3)."""
        return torch.cat([space.encode(with_label(self.square.X, y)) for y in range(LABELS)]).to(device)


class Found(NamedTuple):
    """A fitted joint density: log p(x, y) on the grid, (16, points), and what else is known of it."""

    log_p: Tensor
    extra: dict[str, float]


def with_label(X: Tensor, label: int) -> Tensor:
    return nn.functional.pad(X, (0, 1), value=float(label))


def one_hot(label: Tensor) -> Tensor:
    """Labels (…, 1) as (…, 16), without waiting for the device."""
    return (label == torch.arange(LABELS, device=label.device)).to(label.dtype)


def kernel_estimates(cases: Sequence[Case], device: str, quick: bool) -> list[Found]:
    """π̂_y times a Gaussian KDE of the rows of label y; one bandwidth for all labels, by held-out likelihood."""
    ladder, found = BANDWIDTHS[:: 4 if quick else 1], []
    for case in cases:
        kept, held = case.rows.kept.to(device), case.rows.held.to(device)
        label = held[:, 2].long()[None]
        best = max(ladder, key=lambda h: float(_kde(kept, held, h).gather(0, label).mean()))
        log_p = _kde(case.rows.all.to(device), case.square.X.to(device), best)
        found.append(Found(log_p.cpu(), {"bandwidth": best}))
    return found


def _kde(X: Tensor, at: Tensor, bandwidth: float) -> Tensor:
    """log π̂_y p̂(x|y) at the points x for every label, (16, points)."""
    found, constant = [], math.log(len(X)) + math.log(2 * math.pi * bandwidth**2)
    for label in range(LABELS):
        centres = X[X[:, 2] == label, :2]
        squared = [torch.cdist(part, centres).square() for part in at[:, :2].split(4096)]
        found.append(torch.cat([(-s / (2 * bandwidth**2)).logsumexp(1) for s in squared]) - constant)
    return torch.stack(found)


class LabelledFlow(nn.Module):
    """log p(x|y) of zuko's neural spline flow given the label, at encoded rows (n, 3)."""

    def __init__(self, settings: FlowSettings, seed: int):
        super().__init__()
        try:
            import zuko
        except ImportError as error:
            raise ImportError("the flow baseline needs zuko: pip install ctem[baselines].") from error
        with torch.random.fork_rng(devices=[]):  # zuko initialises from the global generator
            torch.manual_seed(seed)
            shape = {"transforms": settings.blocks, "hidden_features": settings.hidden, "bins": settings.bins}
            self.transform = zuko.flows.NSF(2, LABELS, **shape).transform

    def forward(self, x: Tensor) -> Tensor:
        z, ladj = self.transform(one_hot(x[:, 2:])).call_and_ladj(x[:, :2])
        return ladj - z.square().sum(-1) / 2 - math.log(2 * math.pi)


def conditional_flows(cases: Sequence[Case], device: str, quick: bool) -> list[Found]:
    """π̂_y times a flow given the label, stopped on held-out likelihood."""
    settings = replace(FLOW, steps=4, hidden=(16,), batch_size=64) if quick else FLOW
    recipe = Recipe(
        steps=settings.steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        evaluate_every=min(FLOW_EVERY, settings.steps),
    )
    found = []
    for case in cases:
        space, flow = case.target.space.standardised(case.rows.kept), LabelledFlow(settings, case.seed)
        log_p = trained_on(case, space, flow.to(device), lambda f, x, generator: -f(x).mean(), recipe)
        counts = torch.bincount(case.rows.all[:, 2].long(), minlength=LABELS).double()
        found.append(Found(log_p + space.log_det + (counts / counts.sum()).log()[:, None], {}))
    return found


def joint_kernel(cases: Sequence[Case], device: str, quick: bool) -> list[Found]:
    """The paper's: x̃ = x − 2εu with u on the circle and ỹ = (y + δ) mod 16, δ ≠ 0; normalised on the grid."""
    recipe = replace(JOINT_RECIPE, steps=20, evaluate_every=10, batch_size=64) if quick else JOINT_RECIPE
    found = []
    for case in cases:
        space = case.target.space.standardised(case.rows.kept)
        kernel = Product(Sphere(space, JOINT["scale"]), HammingOne(space))
        loss = partial(joint_loss, kernel=kernel)
        f = MLP(space, 16 if quick else JOINT["width"], seed=case.seed).to(device)
        log_p = trained_on(case, space, f, loss, recipe)
        found.append(Found(log_p - constant(case, space, f), {}))
    return found


def constant(case: Case, space: Space, f: nn.Module) -> float:
    """log Z of f in the user's units, on the case's grid."""
    low, high = float(case.square.X.min()), float(case.square.X.max())
    reals = [space.columns[j] for j in space.reals]
    bounds = [((low - c.location) / c.scale, (high - c.location) / c.scale) for c in reals]
    device = next(f.parameters()).device
    return log_z_grid(f, space, bounds, math.isqrt(len(case.square.X)), device=device).value - space.log_det


def joint_loss(f: MLP, x: Tensor, generator: torch.Generator, kernel: Kernel) -> Tensor:
    return pair_loss(f, x, kernel, generator, m=JOINT["comparisons"])


def trained_on(case: Case, space: Space, f: nn.Module, loss: Loss, recipe: Recipe) -> Tensor:
    """f on the case's grid, (16, points), trained on its kept rows and stopped by its held-out ones."""
    device = str(next(f.parameters()).device)
    kept, held = (space.encode(rows).to(device) for rows in case.rows)
    train(f, loss, kept, recipe, held_out=held)
    with torch.no_grad():
        parts = [f(x) for x in case.states(space, device).split(AT_ONCE)]
    return torch.cat(parts).double().cpu().view(LABELS, -1)


def any_order(cases: Sequence[Case], device: str, quick: bool) -> list[Found]:
    """What ``CTEM()`` fits to these columns."""
    small = {"steps": 4, "width": 16, "blocks": 1, "batch_size": 50} if quick else {}
    return [_any_order(case, small, device) for case in cases]


def _any_order(case: Case, small: dict[str, int], device: str) -> Found:
    rows, space = case.rows.all, case.target.space.standardised(case.rows.all)
    settings = Settings.suited(len(rows), columns=3).changed(len(rows), **small)
    density = fit_anyorder(space, space.encode(rows).to(device), settings, seed=case.seed)
    log_p = density.log_prob(case.states(space, device)).cpu().view(LABELS, -1)
    extra = {
        "level chosen by held-out likelihood": density.level,
        "steps until the best held-out loss": float(density.history.best_step),
    }
    return Found(log_p + space.log_det, extra)


SYSTEMS: dict[str, Callable[[Sequence[Case], str, bool], list[Found]]] = {
    "KDE for each label": kernel_estimates,
    "conditional flow (zuko)": conditional_flows,
    "CTEM, joint kernel": joint_kernel,
    "CTEM()": any_order,
}


def all_cases(seeds: int, quick: bool) -> list[Case]:
    """Every separation and seed."""
    cases = []
    for separation in SEPARATIONS[:1] if quick else SEPARATIONS:
        target = LabelledRing(separation)
        square = grid((-separation - MARGIN, separation + MARGIN), 41 if quick else POINTS)
        for seed in range(seeds if separation == SEPARATIONS[0] else 1):
            rows = Rows.split(target.sample(ROWS // (10 if quick else 1), seed), seed)
            cases.append(Case(target, seed, rows, square))
    return cases


def truth_of(target: LabelledRing, square: Quadrature) -> Tensor:
    """log p(x, y) on the grid, (16, points)."""
    return torch.stack([target.log_density(with_label(square.X, y)) for y in range(LABELS)])


def measure(log_p: Tensor, target: LabelledRing, square: Quadrature) -> dict[str, float]:
    """Every number from p(x, y) on the grid, (16, points).

    KL is that of the density as it is: a model whose mass is not 1 pays for it. Calibration compares p(y|x) with the
    exact posterior, averaged over the true p(x).
    """
    truth = truth_of(target, square)
    w, p, q = square.weights, log_p.exp(), truth.exp()
    mass, weight = (p * w).sum(1), (q * w).sum(1)
    each = ((p / mass[:, None] - q / weight[:, None]) ** 2 * w).sum(1)
    here = q.sum(0) * w
    gap = (log_p.softmax(0) - truth.softmax(0)).abs().sum(0) / 2
    given_x = (truth.softmax(0) * (truth.log_softmax(0) - log_p.log_softmax(0))).sum(0)
    kl = float((q * (truth - log_p) * w).sum() / (q * w).sum())
    return {
        "KL(truth‖model)": kl,
        "KL(truth‖model), normalised on the grid": kl + float(mass.sum().log()),
        "mass on the grid": float(mass.sum()),
        "label weights, TV": total_variation(mass / mass.sum(), target.weights),
        "ISE of p(x|y) ×1e-4, mean over labels": 1e4 * float(each.mean()),
        "ISE of p(x|y) ×1e-4, worst label": 1e4 * float(each.max()),
        "p(y|x) against the posterior, mean TV": float((here * gap).sum() / here.sum()),
        "p(y|x) against the posterior, mean KL": float((here * given_x).sum() / here.sum()),
    }


def summaries(system: str, cases: list[Case], found: list[Found], seconds: float) -> list[Record]:
    """The records of one system: mean and spread over the seeds of each separation, and its time for all cases."""
    values: dict[tuple[str, str], list[float]] = {}
    for case, of_case in zip(cases, found, strict=True):
        name = f"R²×{{0..15}}, s = {float(case.target.centres.norm(dim=1)[0]):g}"
        for metric, value in (measure(of_case.log_p, case.target, case.square) | of_case.extra).items():
            values.setdefault((name, metric), []).append(value)
    records = [summarise(name, system, metric, of_seeds) for (name, metric), of_seeds in values.items()]
    return [*records, summarise(f"all {len(cases)} data sets", system, "seconds", [seconds])]


def draw(found: dict[str, Tensor], case: Case, folder: Path) -> None:
    """Two pictures: the marginal p(x), and the sixteen components p(x, y), of the truth and of every system."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    reach = float(case.target.centres.max()) + 3.2
    kept = (case.square.X.abs() <= reach).all(1)
    side = math.isqrt(int(kept.sum()))
    truth = truth_of(case.target, case.square)
    shown = {n: f[:, kept].exp().view(LABELS, side, side) for n, f in ({"truth": truth} | found).items()}

    size = {"figsize": (2.9 * len(shown), 3.2), "sharey": True, "layout": "constrained"}
    scale = {"origin": "lower", "cmap": "magma", "vmin": 0, "vmax": float(shown["truth"].sum(0).max())}
    figure, axes = plt.subplots(1, len(shown), **size)
    for axis, (name, p) in zip(axes, shown.items(), strict=True):
        image = axis.imshow(p.sum(0).T, extent=(-reach, reach, -reach, reach), **scale)
        axis.set(title=name, xlabel="$x_1$", xticks=(-4, 0, 4), yticks=(-4, 0, 4))
    axes[0].set_ylabel("$x_2$")
    figure.colorbar(image, ax=axes, label="p(x)", shrink=0.8, pad=0.01)
    figure.savefig(folder / "mixed-marginal.png", dpi=120)

    size = {"figsize": (1.0 * LABELS, 1.1 * len(shown)), "layout": "constrained"}
    figure, axes = plt.subplots(len(shown), 1, **size)  # strips of panels: 80 axes are slow to lay out
    for axis, (name, p) in zip(axes, shown.items(), strict=True):
        strip = p.permute(2, 0, 1).flatten(1)
        axis.imshow(strip, **scale | {"vmax": float(shown["truth"].max())})
        axis.vlines([side * y - 0.5 for y in range(1, LABELS)], -0.5, side - 0.5, color="white", linewidth=2)
        axis.set(xticks=[side * (y + 0.5) for y in range(LABELS)], xticklabels=[""] * LABELS, yticks=())
        axis.tick_params(length=0, labelsize=11)
        axis.set_ylabel(fill(name, 11), rotation=0, ha="right", va="center", fontsize=11)
    axes[0].xaxis.tick_top()
    axes[0].set_xticklabels([f"y = {y}" for y in range(LABELS)])
    axes[-1].set_xlabel(f"p(x, y); every panel is |$x_1$|, |$x_2$| ≤ {reach:g}", fontsize=11)
    figure.savefig(folder / "mixed-labels.png", dpi=100)
    plt.close("all")


def main() -> None:
    args = arguments(__doc__).parse_args()
    began, records = time.perf_counter(), list[Record]()
    settings = {
        "rows": ROWS,
        "joint": JOINT | {"recipe": asdict(JOINT_RECIPE)},
        "flow": asdict(FLOW),
        "grid": POINTS,
    }
    cases = all_cases(1 if args.quick else args.seeds or 3, args.quick)
    pictures = {}
    with staged(args.out) as out:
        for system, fit in SYSTEMS.items():
            start = time.perf_counter()
            found = fit(cases, args.device, args.quick)
            of_system = summaries(system, cases, found, time.perf_counter() - start)
            for r in of_system:
                print(f"{r.dataset:20}  {system:24} {r.metric:48} {r.mean:.5g}", flush=True)
            records += of_system
            pictures[system] = found[0].log_p
            seconds = time.perf_counter() - began
            write("mixed", settings, records, args.device, seconds, out, quick=args.quick)
        draw(pictures, cases[0], out)


if __name__ == "__main__":
    main()
