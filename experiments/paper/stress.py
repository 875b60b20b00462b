"""What the discrete half of the paper implies and does not run: sparsity, separated modes, small probabilities.

    python -m experiments.paper.stress --device cuda [--seeds 3] [--quick]

* sparsity: TV against n = 200 … 200 000 rows on the three 91 × 91 sets: CSM, SEDD and CTEM with a free energy per cell,
  the histogram, the smoothed histogram, and a smooth energy;
* separation: eight Gaussians on a circle whose radius grows from 2 to 20 standard deviations: islands appear, and with
  them errors of the mode weights that no local comparison can see;
* small probabilities: "unstable near low-probability states", measured. A path of 12 states whose least probability
  falls from 1e-2 to 1e-8 of the largest: the gradient's norm over batches of 100 rows, mean and largest, at the truth
  and at f = −log ρ; and the error after full-batch Adam on 1000 rows, for ratio matching (CTEM's rule over 4), CTEM,
  the log score, SEDD and CSM.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ctem import Recipe, train
from ctem.benchmarks.metrics import kl_divergence, mode_weight_error, total_variation
from ctem.benchmarks.quantised import CELLS, EightGaussians
from ctem.matching.losses import Rule, brier, concrete_score, log_score, score_entropy
from experiments.paper.grid_nets import Settings, fit_mixtures
from experiments.paper.grids import ROWS, RULES, SETS, fit_tables, folds_of, histogram, islands, smoothed
from experiments.results import Record, arguments, staged, summarise, write

COUNTS = (200, 1000, 5000, 20_000, 100_000, 200_000)
RADII = (2.0, 4.0, 6.0, 8.0, 12.0, 20.0)  # in standard deviations
FREE = {"steps": 20_000, "learning_rate": 2.5e-3}  # as far as 100 000 steps at 5e-4
SMOOTH = Settings(steps=2000, width=64)  # half of Table 2's: there are 270 networks
LEAST = tuple(10.0**-e for e in range(2, 9))
CHAIN = {"states": 12, "rows": 1000, "batch": 100, "steps": 5000, "learning_rate": 0.02, "seeds": 20}
CHAIN_RULES: dict[str, Rule] = {
    "ratio matching (= CTEM / 4)": lambda gap: brier(gap) / 4,
    "CTEM": brier,
    "log score": log_score,
    "SEDD": score_entropy,
    "CSM": concrete_score,
}


class Ring(EightGaussians):
    """Eight Gaussians of standard deviation 0.1 on a circle of another radius, on a grid that fits it."""

    def __init__(self, radius: float):
        super().__init__()
        turned = self.nodes / 2 * radius * 0.1
        super(EightGaussians, self).__init__(turned, 0.1, self._components)


def every_table(codes: list[Tensor], device: str, quick: bool) -> dict[str, Tensor]:
    """Tables (cases, 91, 91) by every system, for a list of data sets in one program each."""
    data = torch.stack([histogram(c, CELLS) for c in codes])
    folds = torch.stack([folds_of(c, seed) for seed, c in enumerate(codes)])
    steps = 20 if quick else FREE["steps"]
    free = fit_tables(data.to(device), list(RULES.values()), steps, FREE["learning_rate"], True).cpu()
    settings = replace(SMOOTH, steps=4, width=16, evaluate_every=2) if quick else SMOOTH
    return {
        "plain histogram": data,
        "smoothed histogram": torch.stack([smoothed(part)[0] for part in folds]),
        **{f"{rule} (p)": tables for rule, tables in zip(RULES, free, strict=True)},
        "ours: smooth energy": fit_mixtures(folds, settings, device).p,
    }


def sparsity(seeds: range, device: str, quick: bool) -> list[Record]:
    """TV against the number of rows."""
    cases = [(name, n) for name in SETS for n in (COUNTS[:2] if quick else COUNTS)]
    codes = [torch.as_tensor(SETS[name].sample(n, seed)) for name, n in cases for seed in seeds]
    tables = every_table(codes, device, quick)
    truth = {name: target.probabilities() for name, target in SETS.items()}
    records = []
    for i, (name, n) in enumerate(cases):
        at = range(i * len(seeds), (i + 1) * len(seeds))
        where = f"{name}, n = {n}"
        records.append(summarise(where, "4-neighbour graph", "components", [islands(codes[j]) for j in at]))
        for system, fitted in tables.items():
            tv = [total_variation(fitted[j].flatten(), truth[name]) for j in at]
            records.append(summarise(where, system, "TV", tv))
    return records


def separation(seeds: range, device: str, quick: bool) -> list[Record]:
    """TV and mode weights against the radius of the circle."""
    rings = [Ring(radius) for radius in (RADII[-2:] if quick else RADII)]
    codes = [torch.as_tensor(ring.sample(ROWS, seed)) for ring in rings for seed in seeds]
    tables = every_table(codes, device, quick)
    records = []
    for i, ring in enumerate(rings):
        at = range(i * len(seeds), (i + 1) * len(seeds))
        where = f"8-Gaussians, radius {float(ring.nodes.norm(dim=1)[0]) / 0.1:g}σ"
        truth, modes = ring.probabilities(), ring.mode_of_cell()
        weights = torch.bincount(modes, weights=truth)
        found = [islands(codes[j]) for j in at]
        records.append(summarise(where, "4-neighbour graph", "components", found))
        for system, fitted in tables.items():
            flat = [fitted[j].flatten() for j in at]
            error = [mode_weight_error(modes, weights / weights.sum(), mass=p) for p in flat]
            records.append(summarise(where, system, "TV", [total_variation(p, truth) for p in flat]))
            records.append(summarise(where, system, "mode weights, TV", error))
    return records


def tent(least: float) -> Tensor:
    """A path of 12 states whose log-probability falls linearly from the middle to the ends, to ``least`` of the top."""
    return (torch.linspace(-1, 1, CHAIN["states"], dtype=torch.float64).abs() * math.log(least)).softmax(0)


def path_loss(f: Tensor, p: Tensor, rule: Rule) -> Tensor:
    """Σ_z p(z) ½ Σ_z̃ ℓ(f(z) − f(z̃)) on a path, (…, states) → (…,)."""
    gap = f[..., 1:] - f[..., :-1]
    return (p[..., 1:] * rule(gap) + p[..., :-1] * rule(-gap)).sum(-1) / 2


def small_probabilities(_seeds: range, _device: str, quick: bool) -> list[Record]:
    """Gradients and final errors on tents of decreasing least probability; more seeds, for they cost nothing."""
    records, seeds = [], range(1 if quick else CHAIN["seeds"])
    truth = torch.stack([tent(least) for least in LEAST])
    generator = torch.Generator().manual_seed(0)
    shape = (len(seeds), len(LEAST))
    draws = torch.multinomial(truth.repeat(len(seeds), 1), CHAIN["rows"], True, generator=generator)
    data = torch.nn.functional.one_hot(draws, CHAIN["states"]).double().mean(1).view(*shape, -1)
    for name, rule in CHAIN_RULES.items():
        noise = _gradient_noise(truth, rule, 20 if quick else 400, generator)
        f, wild = _descend(data, rule, 50 if quick else CHAIN["steps"])  # on the CPU: too small for a GPU
        p = torch.where(data > 0, f, -math.inf).softmax(-1)  # states never compared have no value
        for i, least in enumerate(LEAST):
            where = f"path of 12 states, least probability {least:g} of the largest"
            tv = [total_variation(p[s, i], truth[i]) for s in range(len(seeds))]
            kl = [kl_divergence(p[s, i], truth[i]) for s in range(len(seeds))]
            records.append(summarise(where, name, "TV", tv))
            records.append(summarise(where, name, "KL(model‖truth)", kl))
            records.append(summarise(where, name, "diverged, share", wild[:, i].double().tolist()))
            for metric, value in noise.items():
                records.append(summarise(where, name, metric, [float(value[i])]))
    return records


def _gradient_noise(truth: Tensor, rule: Rule, draws: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Norms of the gradient over batches: at the truth, and at f = −log ρ, where the model is most wrong."""
    found = {}
    for name, f in (("at the truth", truth.log()), ("upside down", -truth.log())):
        norms = []
        for _ in range(draws):
            index = torch.multinomial(truth, CHAIN["batch"], True, generator=generator)
            batch = torch.nn.functional.one_hot(index, CHAIN["states"]).double().mean(1)
            leaf = f.clone().requires_grad_()
            (grad,) = torch.autograd.grad(path_loss(leaf, batch, rule).sum(), leaf)
            norms.append(grad.norm(dim=-1))
        norm = torch.stack(norms)
        found[f"gradient norm {name}, mean"] = norm.mean(0)
        found[f"gradient norm {name}, largest / mean"] = norm.max(0).values / norm.mean(0)
    return found


class Paths(nn.Module):
    """Energies of many paths, zero at first, each left where it was once its range is above 100 nats.

    Such a run has left every bound: its loss has no minimum, and would overflow next.
    """

    def __init__(self, data: Tensor):
        super().__init__()
        self.f = nn.Parameter(torch.zeros_like(data))
        self.left, self.wild = torch.zeros_like(data), torch.zeros(data.shape[:-1], dtype=torch.bool)

    def forward(self) -> Tensor:
        """The energies of this step; zero for those that have left."""
        f = self.f.detach()
        self.left = torch.where(self.wild.unsqueeze(-1), self.left, f)
        self.wild = self.wild | (f.amax(-1) - f.amin(-1) > 100)
        return torch.where(self.wild.unsqueeze(-1), 0.0, self.f)


def _descend(data: Tensor, rule: Rule, steps: int) -> tuple[Tensor, Tensor]:
    """Full-batch Adam from f = 0, cosine rate: f, and whether it left every bound."""
    paths, nothing = Paths(data), data.new_zeros(2, 1)  # the loss is over all states: it takes no rows
    recipe = Recipe(steps=steps, batch_size=1, learning_rate=CHAIN["learning_rate"], evaluate_every=steps)
    train(paths, lambda paths, _, generator: path_loss(paths(), data, rule).sum(), nothing, recipe)
    paths()
    return paths.left, paths.wild


STYLES = {  # one colour and mark for a method in every panel
    "plain histogram": ("black", "o"),
    "smoothed histogram": ("tab:gray", "s"),
    "CSM": ("tab:orange", "D"),
    "SEDD": ("tab:red", "^"),
    "CTEM": ("tab:blue", "v"),
    "ours: smooth energy": ("tab:green", "P"),
    "ratio matching (= CTEM / 4)": ("tab:cyan", "o"),
    "log score": ("tab:purple", "s"),
}
PANELS = [  # data sets, metric, title, axes
    ("moons, n = ", "TV", "sparsity (moons)", "rows", "TV"),
    (
        "8-Gaussians, radius ",
        "mode weights, TV",
        "separation (8 Gaussians)",
        "radius / σ",
        "TV of the mode weights",
    ),
    (
        "path of 12 states, least probability ",
        "gradient norm upside down, mean",
        "gradient where the model is most wrong",
        "least / largest probability",
        "mean norm at f = −log ρ",
    ),
    (
        "path of 12 states, least probability ",
        "TV",
        "error after training on 1000 rows",
        "least / largest probability",
        "TV",
    ),
]


def draw(records: list[Record], path: Path) -> None:
    """TV against n, mode weights against the radius, gradients and errors against the least probability."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 7.6), layout="constrained")
    for axis, (prefix, metric, title, across, up) in zip(axes.flat, PANELS, strict=True):
        for system, points in _lines(records, prefix, metric).items():
            colour, mark = STYLES[system.removesuffix(" (p)")]
            axis.loglog(*zip(*points, strict=True), color=colour, marker=mark, markersize=5, label=system)
        axis.set(title=title, xlabel=across, ylabel=up)
        axis.grid(alpha=0.3)
    axes[0, 1].set_xticks(RADII, [f"{r:g}" for r in RADII])
    axes[0, 1].minorticks_off()
    axes[0, 1].set(yscale="linear", ylim=(0, None))
    for line in axes:
        line[1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _lines(records: list[Record], prefix: str, metric: str) -> dict[str, list[tuple[float, float]]]:
    """By system, the points (number in the data set's name, mean)."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for r in records:
        if r.dataset.startswith(prefix) and r.metric == metric:
            at = float(r.dataset.removeprefix(prefix).split()[0].removesuffix("σ"))
            lines.setdefault(r.system, []).append((at, r.mean))
    return lines


def main() -> None:
    args = arguments(__doc__).parse_args()
    began, seeds = time.perf_counter(), range(1 if args.quick else args.seeds or 3)
    smooth = asdict(SMOOTH) | {"rule": SMOOTH.rule.__name__}
    settings = {"free": FREE, "smooth": smooth, "chain": CHAIN}
    records: list[Record] = []
    with staged(args.out) as out:
        for part in (small_probabilities, sparsity, separation):
            found = part(seeds, args.device, args.quick)
            for r in found:
                print(f"{r.dataset:58} {r.system:28} {r.metric:44} {r.mean:.4g}", flush=True)
            records += found
            seconds = time.perf_counter() - began
            write("stress", settings, records, args.device, seconds, out, quick=args.quick)
        draw(records, out / "stress.png")


if __name__ == "__main__":
    main()
