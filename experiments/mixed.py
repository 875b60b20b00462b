"""The mixed experiment: R² × {0 … 15}, sixteen labelled Gaussians on a ring, with numbers beside the pictures.

    python experiments/mixed.py --device cuda [--seeds 3] [--quick]

The paper trains an MLP f(x, y) with a joint kernel, x̃ = x − 2εu and ỹ = (y + δ) mod 16 (eq. app-mixed-joint-kernel),
and shows the marginal and the sixteen components; the figures here do the same. Beside it: a kernel density estimate
for each label, a conditional flow with empirical label weights (zuko), and what ``CTEM()`` fits, all in
``mixed_systems``. Everything is read off one grid: p(x, y) at every label, so that KL and the label weights are
integrals, without sampling noise.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from textwrap import fill

import torch
from torch import Tensor

from ctem.metrics import total_variation
from ctem.targets import Grid, LabelledRing, grid
from mixed_systems import FLOW, JOINT, JOINT_RECIPE, LABELS, SYSTEMS, Case, Found, Rows, with_label
from results import Record, arguments, summarise, write

ROWS = 20_000
SEPARATIONS = (2.0, 1.0, 4.0, 8.0)  # the first is the paper's, with every seed; the others have one seed
MARGIN, POINTS = 5.0, 161  # the grid reaches so far beyond the ring; nodes per axis


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


def truth_of(target: LabelledRing, square: Grid) -> Tensor:
    """log p(x, y) on the grid, (16, points)."""
    return torch.stack([target.log_density(with_label(square.X, y)) for y in range(LABELS)])


def measure(log_p: Tensor, target: LabelledRing, square: Grid) -> dict[str, float]:
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
    folder.mkdir(parents=True, exist_ok=True)

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
    torch.set_float32_matmul_precision("high")
    began, records = time.perf_counter(), list[Record]()
    settings = {
        "rows": ROWS,
        "joint": JOINT | {"recipe": asdict(JOINT_RECIPE)},
        "flow": asdict(FLOW),
        "grid": POINTS,
    }
    cases = all_cases(1 if args.quick else args.seeds or 3, args.quick)
    pictures = {}
    for system, fit in SYSTEMS.items():
        start = time.perf_counter()
        found = fit(cases, args.device, args.quick)
        of_system = summaries(system, cases, found, time.perf_counter() - start)
        for r in of_system:
            print(f"{r.dataset:20}  {system:24} {r.metric:48} {r.mean:.5g}", flush=True)
        records += of_system
        pictures[system] = found[0].log_p
        seconds = time.perf_counter() - began
        write("mixed", settings, records, args.device, seconds, args.out, quick=args.quick)
    draw(pictures, cases[0], args.out)


if __name__ == "__main__":
    main()
