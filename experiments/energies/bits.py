"""The seven 32-bit sets: every loss with the same network and the same seconds, in nats above the floor.

All sets and seeds of a loss are trained at once, as members of one batched network. Nats above the floor are a mean of
log ρ − log p_f over fresh rows, so that the noise of the test rows drops out; log Z comes from draws of half the truth
and half the uniform law. Samples of every energy are drawn from those same rows by their weights: one sampler for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ctem import MLP, HammingOne, Mixture, ProductBase, Recipe, brier, log_score, train
from ctem.benchmarks.gray import GRAY_SETS, GraySet
from ctem.benchmarks.metrics import hamming_mmd
from ctem.densities.anyorder import Settings, fit_anyorder
from ctem.energies import MLPs
from ctem.matching.kernels import Refresh
from ctem.matching.losses import denoised_concrete_score, denoised_score_entropy
from ctem.matching.noise import Noise
from ctem.matching.rivals import (
    ColumnDiscrepancy,
    DenoisedRatios,
    EnergyDiscrepancy,
    NoiseContrast,
    Objective,
    Pairs,
    PseudoLikelihood,
    RatioMatching,
)
from ctem.samplers import Alternate, DiscreteLangevin, Gibbs, GibbsWithGradients, PersistentDivergence
from experiments.pieces import Piece
from experiments.results import Record, summarise

PUBLISHED = {  # nats, in the order of GRAY_SETS: Ou, Zhang & Li, "Discrete Neural Flow Samplers", Table 3
    "persistent divergence, Gibbs": (20.094, 19.991, 20.565, 19.763, 19.593, 20.172, 21.214),
    "energy discrepancy, Bernoulli": (20.039, 19.992, 20.601, 19.710, 19.568, 20.084, 20.679),
}
RECIPE = Recipe(batch_size=256, learning_rate=1e-3, clip=10.0, ema=0.999, weight_decay=0.0)
SPACE = GraySet.space
FILE = "truth.npz"
FLOORS = "entropy floor, nats"
ANY_ORDER = "any-order density of "
LAST = tuple(ANY_ORDER + name for name in GRAY_SETS)  # pieces that come last
MOST_STEPS = 200_000
FLIPPED = 0.01  # share of bits that the noise of the denoising losses flips
JUDGING = 4.0  # seconds, with those in which a process begins


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
    more_rows: int  # for counts of prefixes


FULL = Size(GRAY_SETS, 5, 500_000, 18.0, None, 2**17, 256, 256, 4000, 5, 16.0, 2**21)
QUICK = Size(("moons", "checkerboard"), 2, 4000, 0.0, 20, 2000, 32, 32, 300, 1, 4.0, 4000)


def objectives(base: ProductBase) -> dict[str, Callable[[], Objective]]:
    """Every loss by its name; the noise of comparisons that move many bits is that of energy discrepancy, ε = 0.1."""
    flips, noise = HammingOne(SPACE), Refresh(base, 0.2)
    both = Mixture([flips, noise], [0.5, 0.5])
    denoised = partial(DenoisedRatios, flips, Noise(base), -math.log(1 - 2 * FLIPPED))
    return {
        "constant target": lambda: Pairs(flips, brier),
        "constant target, flips and noise": lambda: Pairs(both, brier),
        "conditional noise contrast": lambda: Pairs(both, log_score),
        "concrete score, denoising": lambda: denoised(denoised_concrete_score),
        "score entropy, denoising": lambda: denoised(denoised_score_entropy),
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


class Truth(NamedTuple):
    """Rows, and log ρ at draws of half the truth and half the uniform law, of every set."""

    size: Size
    rows: Tensor  # (n, sets · 32): a row has one of each set
    x: Tensor  # (sets, 2 · draws, 32), the truth's own first
    log_rho: Tensor  # (sets, 2 · draws)
    fresh: Tensor  # (sets, samples · repeats, 32)

    @classmethod
    def make(cls, size: Size, device: str) -> Truth:
        """Drawn, and weighed on the device."""
        targets, g = [GraySet(name) for name in size.sets], torch.Generator().manual_seed(1)
        rows = torch.cat([_bits(t.sample(size.rows, seed=0)) for t in targets], 1)
        uniform = torch.randint(2, (size.draws, SPACE.dim), generator=g, dtype=torch.uint8)
        x = torch.stack([torch.cat([_bits(t.sample(size.draws, seed=1)), uniform]) for t in targets])
        log_rho = [t.log_density(each.to(device)).cpu() for t, each in zip(targets, x, strict=True)]
        fresh = torch.stack([_bits(t.sample(size.samples * size.repeats, seed=2)) for t in targets])
        return cls(size, rows, x, torch.stack(log_rho), fresh)

    def save(self, folder: Path) -> None:
        """For other processes."""
        arrays = {name: getattr(self, name).numpy() for name in ("rows", "x", "log_rho", "fresh")}
        np.savez(folder / "making.npz", **arrays)
        (folder / "making.npz").replace(folder / FILE)

    @classmethod
    def load(cls, size: Size, folder: Path, device: str) -> Truth:
        """From the file of ``save``, once it is there."""
        while not (folder / FILE).exists():
            time.sleep(0.2)
        with np.load(folder / FILE, allow_pickle=False) as file:
            kept = {name: torch.as_tensor(file[name]).to(device) for name in file.files}
        return cls(size, **{name: t if t.is_floating_point() else t.float() for name, t in kept.items()})

    @property
    def log_q(self) -> Tensor:
        """Of the mixture that x is drawn from."""
        uniform = torch.full_like(self.log_rho, -SPACE.dim * math.log(2))
        return torch.logaddexp(self.log_rho, uniform) - math.log(2)

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


def trained(
    truth: Truth, make: Callable[[], Objective], device: str, seconds: float
) -> tuple[Members, dict[str, float]]:
    """All sets and seeds of one loss, for as many steps as the seconds allow."""
    size = truth.size
    members = len(size.sets) * size.seeds
    f, objective = Members(MLPs(SPACE, members, width=size.width, seed=0).to(device), size.batch), make()

    def loss(f: Members, rows: Tensor, generator: torch.Generator) -> Tensor:
        x = rows.unflatten(0, (size.seeds, size.batch)).unflatten(-1, (len(size.sets), -1))
        return objective(f, x.permute(2, 0, 1, 3).flatten(0, 2), generator) * members

    steps = size.steps or MOST_STEPS
    recipe = replace(
        RECIPE,
        batch_size=size.seeds * size.batch,
        clip=RECIPE.clip * members,
        steps=steps,
        evaluate_every=min(steps, 50),
    )
    began = time.perf_counter()
    deadline = None if size.steps else began + seconds
    history = train(f, loss, truth.rows, recipe, deadline=deadline)
    spent = time.perf_counter() - began
    cost = {
        "seconds": spent,
        "steps": history.step[-1],
        "evaluations, millions a network": f.rows / members / 1e6,
    }
    return f, cost


def pieces(size: Size) -> list[Piece]:
    """Every loss on all sets, and an any-order density of every set."""
    losses = [Piece("bits", FLOORS, 0.0)]
    losses += [Piece("bits", name, size.seconds + JUDGING) for name in objectives(ProductBase(SPACE))]
    return losses + [Piece("bits", ANY_ORDER + name, size.anyorder + 2) for name in size.sets]


def measure(name: str, size: Size, device: str, folder: Path, left: float) -> list[Record]:
    """Records of one piece, for every set and metric."""
    if name == FLOORS:
        return [summarise(data, "the truth", FLOORS, [GraySet(data).floor]) for data in size.sets]
    truth = Truth.load(size, folder, device)
    if name.startswith(ANY_ORDER):
        return any_order(truth, name.removeprefix(ANY_ORDER), min(size.anyorder, left))
    base = ProductBase(SPACE).to(device)
    try:
        with lower_precision():
            f, cost = trained(truth, objectives(base)[name], device, min(size.seconds, left - JUDGING))
    except FloatingPointError as error:
        print(f"{name}: {error}", flush=True)
        return [summarise("all sets", name, "diverged", [1.0])]
    found, records = judged(truth, f, size), []
    for s, data in enumerate(size.sets):
        for metric in found[s][0]:
            values = [each[metric] for each in found[s]]
            records.append(summarise(data, name, metric, values, _published(name, data, metric)))
    records += [summarise("all sets", name, metric, [value]) for metric, value in cost.items()]
    print(f"{name}: {_line(found, size)} {cost['seconds']:.0f} s, {cost['steps']} steps", flush=True)
    return records


@contextmanager
def lower_precision() -> Iterator[None]:
    """Products of float32 matrices by TensorFloat32, where there is a GPU; for training alone."""
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


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


def any_order(truth: Truth, data: str, seconds: float) -> list[Record]:
    """An any-order density of a set: normalised, so that its nats need no log Z."""
    size, s = truth.size, truth.size.sets.index(data)
    x = truth.rows[:, s * SPACE.dim : (s + 1) * SPACE.dim]
    settings = Settings.suited(len(x), SPACE.dim)
    if size.steps:
        settings = settings.changed(len(x), steps=size.steps, width=size.width)
    began = time.perf_counter()
    density = fit_anyorder(SPACE, x, settings, seed=0, max_time=seconds)
    spent = time.perf_counter() - began
    some = truth.x[s, : min(size.draws, 20_000)]
    gap = truth.log_rho[s, : len(some)] - density.log_prob(some)
    error = float(gap.std()) / math.sqrt(len(gap))
    values = {"nats above the floor": float(gap.mean()), "standard error of nats": error, "seconds": spent}
    print(f"any-order, {data}: {float(gap.mean()):.4f} ± {error:.4f}, {spent:.0f} s", flush=True)
    return [summarise(data, "any-order density", metric, [value]) for metric, value in values.items()]


def _bits(rows: np.ndarray) -> Tensor:
    return torch.as_tensor(rows).to(torch.uint8)


def _published(name: str, data: str, metric: str) -> float | None:
    if metric != "nats above the floor" or name not in PUBLISHED:
        return None
    return round(PUBLISHED[name][GRAY_SETS.index(data)] - GraySet(data).floor, 3)


def _line(found: list[list[dict[str, float]]], size: Size) -> str:
    means = [sum(each["nats above the floor"] for each in row) / len(row) for row in found]
    return " ".join(f"{data} {mean:.3f}" for data, mean in zip(size.sets, means, strict=True))
