"""The seven 32-bit sets: every loss with the same network and the same seconds, in nats above the floor.

All sets and seeds of a loss are trained at once, as members of one batched network. Nats above the floor are a mean of
log ρ − log p_f over fresh rows, so that the noise of the test rows drops out; log Z comes from draws of half the truth
and half the uniform law. Samples of every energy are drawn from those same rows by their weights: one sampler for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ctem import MLP, HammingOne, Mixture, ProductBase, Recipe, brier, log_score, train
from ctem.benchmarks.gray import GRAY_SETS, GraySet
from ctem.benchmarks.metrics import hamming_mmd
from ctem.densities.anyorder import Settings, fit_anyorder
from ctem.energies import MLPs
from ctem.matching.kernels import Refresh
from ctem.matching.losses import concrete_score, score_entropy
from ctem.matching.rivals import (
    ColumnDiscrepancy,
    EnergyDiscrepancy,
    NoiseContrast,
    Objective,
    Pairs,
    PseudoLikelihood,
    RatioMatching,
)
from ctem.samplers import Alternate, DiscreteLangevin, Gibbs, GibbsWithGradients, PersistentDivergence
from experiments.results import Record, summarise

PUBLISHED = {  # nats, in the order of GRAY_SETS: Ou, Zhang & Li, "Discrete Neural Flow Samplers", Table 3
    "persistent divergence, Gibbs": (20.094, 19.991, 20.565, 19.763, 19.593, 20.172, 21.214),
    "energy discrepancy, Bernoulli": (20.039, 19.992, 20.601, 19.710, 19.568, 20.084, 20.679),
}
RECIPE = Recipe(batch_size=256, learning_rate=1e-3, clip=10.0, ema=0.999, weight_decay=0.0)
SPACE = GraySet.space


class Size(NamedTuple):
    """How much is spent."""

    sets: tuple[str, ...]
    seeds: int
    rows: int  # of each set, for training
    seconds: float  # of each loss
    steps: int | None  # instead of seconds
    draws: int  # of the truth and of the uniform law
    width: int
    batch: int
    samples: int  # for a distance of samples, and how often
    repeats: int
    anyorder: float  # seconds of an any-order density


FULL = Size(GRAY_SETS, 5, 500_000, 18.0, None, 2**17, 256, 256, 4000, 5, 16.0)
QUICK = Size(("moons", "checkerboard"), 2, 4000, 0.0, 20, 2000, 32, 32, 300, 1, 4.0)


def objectives(base: ProductBase) -> dict[str, Callable[[], Objective]]:
    """Every loss by its name; the noise of comparisons that move many bits is that of energy discrepancy, ε = 0.1."""
    flips, noise = HammingOne(SPACE), Refresh(base, 0.2)
    both = Mixture([flips, noise], [0.5, 0.5])
    return {
        "constant target": lambda: Pairs(flips, brier),
        "constant target, flips and noise": lambda: Pairs(both, brier),
        "conditional noise contrast": lambda: Pairs(both, log_score),
        "concrete score": lambda: Pairs(flips, concrete_score),
        "score entropy": lambda: Pairs(flips, score_entropy),
        "energy discrepancy, Bernoulli": lambda: EnergyDiscrepancy(noise, 32),
        "energy discrepancy, grid": lambda: ColumnDiscrepancy(SPACE, 32),
        "pseudo-likelihood": lambda: PseudoLikelihood(SPACE),
        "ratio matching": lambda: RatioMatching(SPACE),
        "ratio matching, guided": lambda: RatioMatching(SPACE, 10, guided=True),
        "noise contrast, uniform": lambda: NoiseContrast(base),
        "persistent divergence, Gibbs": lambda: PersistentDivergence(_sweep(), base, 1, None),
        "persistent divergence, gradients": lambda: PersistentDivergence(
            GibbsWithGradients(SPACE), base, 10, None
        ),
        "persistent divergence, Langevin": lambda: PersistentDivergence(
            DiscreteLangevin(SPACE, 0.3), base, 10, None
        ),
    }


def _sweep() -> Alternate:
    """Ten random columns, one after the other."""
    return Alternate(*[Gibbs(SPACE)] * 10)


class Members(nn.Module):
    """All networks as one log-potential of rows (k · members · batch, d); each member sees its part of the batch."""

    def __init__(self, nets: MLPs, batch: int):
        super().__init__()
        self.nets, self.batch, self.space, self.rows = nets, batch, nets.space, 0

    def forward(self, x: Tensor) -> Tensor:
        return self.on_features(self.space.features(x))

    def on_features(self, h: Tensor) -> Tensor:
        self.rows += len(h)
        parts = h.unflatten(0, (-1, self.nets.members, self.batch)).transpose(0, 1)  # (members, k, batch, …)
        values = self.nets.on_features(parts.flatten(1, 2))
        return values.unflatten(1, (-1, self.batch)).transpose(0, 1).flatten()


class Truth:
    """Rows, and log ρ at draws of half the truth and half the uniform law, of every set."""

    def __init__(self, size: Size, device: str):
        self.size, self.targets = size, [GraySet(name) for name in size.sets]
        rows = [torch.as_tensor(t.sample(size.rows, seed=0), dtype=torch.float32) for t in self.targets]
        self.rows = torch.cat(rows, 1).to(device)  # (n, sets · 32): a row has one of each set
        g = torch.Generator().manual_seed(1)
        drawn = [torch.as_tensor(t.sample(size.draws, seed=1), dtype=torch.float32) for t in self.targets]
        uniform = torch.randint(2, (size.draws, SPACE.dim), generator=g).float()
        both = [torch.cat([x, uniform]) for x in drawn]
        self.log_rho = torch.stack([t.log_density(x) for t, x in zip(self.targets, both, strict=True)]).to(
            device
        )
        self.x = torch.stack(both).to(device)  # (sets, 2 · draws, 32), the truth's own first
        uniform_log = torch.full_like(self.log_rho, -SPACE.dim * math.log(2))
        self.log_q = torch.logaddexp(self.log_rho, uniform_log) - math.log(2)
        again = [
            torch.as_tensor(t.sample(size.samples * size.repeats, seed=2), dtype=torch.float32)
            for t in self.targets
        ]
        self.fresh = torch.stack(again).to(device)

    def judge(self, log_f: Tensor, s: int, generator: torch.Generator) -> dict[str, float]:
        """What an energy with values log_f at the draws of set s is worth; log_f may be normalised or not."""
        n = self.size.draws
        log_w = log_f.double() - self.log_q[s]
        log_z = float(log_w.logsumexp(0)) - math.log(len(log_w))
        p = log_w.softmax(0)
        gap = self.log_rho[s, :n] - log_f[:n].double() + log_z
        found = []
        for fresh in self.fresh[s].chunk(self.size.repeats):
            u = torch.rand(len(fresh), generator=generator, dtype=torch.float64, device=p.device)
            chosen = torch.searchsorted(p.cumsum(0), u).clamp(max=len(p) - 1)
            found.append(hamming_mmd(self.x[s, chosen], fresh))
        return {
            "nats above the floor": float(gap.mean()),
            "MMD, exponential Hamming, × 1e4": 1e4 * sum(found) / len(found),
            "effective share of the draws for log Z": float(1 / p.square().sum()) / len(p),
            "standard error of nats": float(gap.std()) / math.sqrt(n),
        }


def trained(truth: Truth, make: Callable[[], Objective], device: str) -> tuple[Members, dict[str, float]]:
    """All sets and seeds of one loss, for as many steps as the seconds allow."""
    size = truth.size
    members = len(size.sets) * size.seeds

    def build() -> tuple[Members, Objective]:
        nets = MLPs(SPACE, members, width=size.width, seed=0).to(device)
        return Members(nets, size.batch), make()

    def loss_of(objective: Objective):
        def loss(f: Members, rows: Tensor, generator: torch.Generator) -> Tensor:
            x = rows.unflatten(0, (size.seeds, size.batch)).unflatten(-1, (len(size.sets), -1))
            return objective(f, x.permute(2, 0, 1, 3).flatten(0, 2), generator) * members

        return loss

    recipe = replace(RECIPE, batch_size=size.seeds * size.batch, clip=RECIPE.clip * members)
    steps = size.steps or _affordable(build, loss_of, truth.rows, recipe, size.seconds)
    f, objective = build()
    began = time.perf_counter()
    train(f, loss_of(objective), truth.rows, replace(recipe, steps=steps, evaluate_every=min(steps, 250)))
    spent = time.perf_counter() - began
    evaluated = f.rows / members
    return f, {"seconds": spent, "steps": steps, "evaluations, millions a network": evaluated / 1e6}


def _affordable(build, loss_of, rows: Tensor, recipe: Recipe, seconds: float) -> int:
    """Steps for the seconds, by the pace of some after a warm-up."""
    f, objective = build()
    loss, pace = loss_of(objective), 0.0
    for steps in (10, 40):
        began = time.perf_counter()
        train(f, loss, rows, replace(recipe, steps=steps, evaluate_every=steps))
        pace = steps / (time.perf_counter() - began)
    return max(100, int(seconds * pace))


def measure(size: Size, device: str, log=print) -> list[Record]:
    """A record for every set, loss and metric."""
    truth = Truth(size, device)
    base = ProductBase(SPACE).to(device)
    records = [
        summarise(name, "the truth", "entropy floor, nats", [GraySet(name).floor]) for name in size.sets
    ]
    for name, make in objectives(base).items():
        try:
            f, cost = trained(truth, make, device)
        except FloatingPointError as error:
            log(f"{name}: {error}")
            records.append(summarise("all sets", name, "diverged", [1.0]))
            continue
        found = judged(truth, f, size)
        for s, data in enumerate(size.sets):
            for metric in found[s][0]:
                values = [each[metric] for each in found[s]]
                paper = _published(name, data, metric)
                records.append(summarise(data, name, metric, values, paper))
        records += [summarise("all sets", name, metric, [value]) for metric, value in cost.items()]
        log(f"{name}: {_line(found, size)} {cost['seconds']:.0f} s, {cost['steps']} steps", flush=True)
    return records + any_order(truth, device, log)


def judged(truth: Truth, f: Members, size: Size) -> list[list[dict[str, float]]]:
    """Of every set and seed."""
    out = []
    for s in range(len(size.sets)):
        row = []
        for k in range(size.seeds):
            net: MLP = f.nets.member(s * size.seeds + k)
            with torch.no_grad():
                values = torch.cat([net(part) for part in truth.x[s].split(2**16)])
            row.append(truth.judge(values, s, torch.Generator(values.device).manual_seed(k)))
        out.append(row)
    return out


def any_order(truth: Truth, device: str, log) -> list[Record]:
    """An any-order density of every set: normalised, so that its nats need no log Z."""
    records, size = [], truth.size
    for s, data in enumerate(size.sets):
        x = truth.rows[:, s * SPACE.dim : (s + 1) * SPACE.dim]
        settings = Settings.suited(len(x), SPACE.dim)
        if size.steps:
            settings = settings.changed(len(x), steps=size.steps, width=size.width)
        began = time.perf_counter()
        density = fit_anyorder(SPACE, x, settings, seed=0, max_time=size.anyorder)
        spent = time.perf_counter() - began
        some = truth.x[s, : min(size.draws, 20_000)]
        gap = truth.log_rho[s, : len(some)] - density.log_prob(some)
        name = "any-order density"
        error = float(gap.std()) / math.sqrt(len(gap))
        records += [
            summarise(data, name, "nats above the floor", [float(gap.mean())]),
            summarise(data, name, "standard error of nats", [error]),
            summarise(data, name, "seconds", [spent]),
        ]
        log(f"any-order, {data}: {float(gap.mean()):.4f} ± {error:.4f}, {spent:.0f} s", flush=True)
    return records


def _published(name: str, data: str, metric: str) -> float | None:
    if metric != "nats above the floor" or name not in PUBLISHED:
        return None
    return round(PUBLISHED[name][GRAY_SETS.index(data)] - GraySet(data).floor, 3)


def _line(found: list[list[dict[str, float]]], size: Size) -> str:
    means = [sum(each["nats above the floor"] for each in row) / len(row) for row in found]
    return " ".join(f"{data} {mean:.3f}" for data, mean in zip(size.sets, means, strict=True))
