"""Four densities on R² × {0 … 15}: a KDE for each label, a conditional flow, the paper's joint kernel, space-time CTEM.

Every system takes a list of cases and gives log p(x, y) on each one's grid. Networks of all cases are trained as one
program where they are independent of each other by construction (the flow, the joint kernel). Bandwidths and stopping
times are chosen on held-out rows, never on the truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from baselines import FlowLoss, FlowSettings
from batched import Networks, Program, Trained
from ctem import Recipe, Space, brier
from ctem.fitting import fit_density
from ctem.plans import Plan
from ctem.targets import Grid, LabelledRing

__all__ = [
    "LABELS",
    "SYSTEMS",
    "Case",
    "Found",
    "JointPairs",
    "LabelledFlow",
    "Rows",
    "conditional_flows",
    "joint_kernel",
    "kernel_estimates",
    "space_time",
    "with_label",
]

LABELS = 16
TESTED = 2000  # rows of the exact chain rule, the same for every seed
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
        steps=3000,  # at most: the rate is held until the held-out loss stops falling
        batch_size=2560,
        learning_rate=2e-3,
        weight_decay=0.01,
        ema=0.998,
        evaluate_every=250,
        patience=2,
    ),
)
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
    square: Grid

    def states(self, space: Space, device: str) -> Tensor:
        """The grid at every label, encoded, (16 · points, 3)."""
        return torch.cat([space.encode(with_label(self.square.X, y)) for y in range(LABELS)]).to(device)


class Found(NamedTuple):
    """A fitted joint density: log p(x, y) on the grid, (16, points), and what else is known of it."""

    log_p: Tensor
    extra: dict[str, float]


def with_label(X: Tensor, label: int) -> Tensor:
    return nn.functional.pad(X, (0, 1), value=float(label))


def standardised(cases: Sequence[Case], device: str) -> tuple[list[Space], Tensor, Tensor]:
    """Spaces with the scales of the kept rows, and kept and held-out rows encoded by them, (K, n, 3)."""
    spaces = [case.target.space.standardised(case.rows.kept) for case in cases]
    kept, held = (
        torch.stack([space.encode(case.rows[i]) for space, case in zip(spaces, cases, strict=True)])
        for i in (0, 1)
    )
    return spaces, kept.to(device), held.to(device)


def one_hot(label: Tensor) -> Tensor:
    """Labels (…, 1) as (…, 16), without waiting for the device."""
    return (label == torch.arange(LABELS, device=label.device)).to(label.dtype)


def chosen(trained: Trained) -> Tensor:
    """The parameters (K, P) of each member at its lowest held-out loss."""
    best = trained.held_out.argmin(0).to(trained.parameters.device)
    return trained.parameters[best, torch.arange(len(best), device=best.device)]


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
    """π̂_y times a flow given the label, stopped on held-out likelihood; the flows of all cases in one program."""
    settings = replace(FLOW, steps=4, hidden=(16,), batch_size=64) if quick else FLOW
    spaces, kept, held = standardised(cases, device)
    flows = [LabelledFlow(settings, case.seed) for case in cases]
    start = torch.stack([torch.cat([p.detach().flatten() for p in f.parameters()]) for f in flows])
    loss = FlowLoss(flows[0], kept, settings)
    recipe = Recipe(
        steps=settings.steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        evaluate_every=min(FLOW_EVERY, settings.steps),
    )
    trained = Program(start.to(device), loss, recipe).run(lambda p: -vmap(loss.one)(p, held).mean(1))
    found = []
    for case, space, parameters in zip(cases, spaces, chosen(trained), strict=True):
        counts = torch.bincount(case.rows.all[:, 2].long(), minlength=LABELS).double()
        with torch.no_grad():
            parts = [loss.one(parameters, x) for x in case.states(space, device).split(AT_ONCE)]
        log_p = torch.cat(parts).double().cpu().view(LABELS, -1) + space.log_det
        found.append(Found(log_p + (counts / counts.sum()).log()[:, None], {}))
    return found


class JointPairs:
    """The paper's comparisons, x̃ = x − 2εu with u on the circle and ỹ = (y + δ) mod 16, δ ≠ 0, for all members.

    Arguments:
        networks: f(x, y) of reals and one-hot label.
        kept, held: encoded rows (K, n, 3).
    """

    def __init__(self, networks: Networks, kept: Tensor, held: Tensor, batch_size: int):
        self.networks, self.kept, self.held, self.batch_size = networks, kept, held, batch_size

    def __call__(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of every member on a fresh batch (K,)."""
        k, n, d = self.kept.shape
        index = torch.randint(n, (k, self.batch_size, 1), generator=generator, device=self.kept.device)
        return self.loss(parameters, self.kept.gather(1, index.expand(-1, -1, d)), generator)

    def held_out_loss(self, parameters: Tensor) -> Tensor:
        """The loss of every member on its held-out rows (K,), with the same comparisons every time."""
        return self.loss(parameters, self.held, torch.Generator(self.held.device).manual_seed(1))

    def loss(self, parameters: Tensor, x: Tensor, generator: torch.Generator) -> Tensor:
        x = x.repeat(1, JOINT["comparisons"], 1)
        y = self.compared(x, generator)
        return brier(self.value(parameters, x) - self.value(parameters, y)).mean(1)

    def value(self, parameters: Tensor, x: Tensor) -> Tensor:
        """f (K, n) at encoded rows (K, n, 3)."""
        return self.networks(parameters, torch.cat([x[..., :2], one_hot(x[..., 2:])], -1))

    @staticmethod
    def compared(x: Tensor, generator: torch.Generator) -> Tensor:
        """(x̃, ỹ) for encoded rows (K, n, 3)."""
        u = torch.rand(2, *x.shape[:-1], 1, generator=generator, device=x.device)
        angle = 2 * math.pi * u[0]
        shift = 1 + (u[1] * (LABELS - 1)).floor().clamp(max=LABELS - 2)
        point = x[..., :2] - 2 * JOINT["scale"] * torch.cat([angle.cos(), angle.sin()], -1)
        return torch.cat([point, (x[..., 2:] + shift) % LABELS], -1)


def joint_kernel(cases: Sequence[Case], device: str, quick: bool) -> list[Found]:
    """The paper's: MLPs trained with the joint kernel, stopped on held-out loss, normalised on the grid."""
    recipe = replace(JOINT_RECIPE, steps=20, evaluate_every=10, batch_size=64) if quick else JOINT_RECIPE
    networks = Networks(2 + LABELS, 16 if quick else JOINT["width"])
    spaces, kept, held = standardised(cases, device)
    pairs = JointPairs(networks, kept, held, recipe.batch_size)
    start = networks.initial([case.seed for case in cases]).to(device)
    trained = Program(start, pairs, recipe).run(pairs.held_out_loss)
    found = []
    for case, space, parameters in zip(cases, spaces, chosen(trained).split(1), strict=True):
        with torch.no_grad():
            parts = [pairs.value(parameters, x[None])[0] for x in case.states(space, device).split(AT_ONCE)]
        log_p = torch.cat(parts).double().cpu().view(LABELS, -1)
        found.append(Found(log_p - (log_p + case.square.weights.log()).logsumexp((0, 1)), {}))
    return found


def space_time(cases: Sequence[Case], device: str, quick: bool) -> list[Found]:
    """Space-time CTEM: one pass, its constant from the chain rule; and the exact chain rule on fresh rows."""
    plan = PLAN
    if quick:
        recipe = replace(plan.recipe, steps=4, batch_size=50, evaluate_every=2)
        plan = replace(plan, width=16, blocks=1, log_z_samples=20, recipe=recipe)
    return [_space_time(case, plan, device, 20 if quick else TESTED) for case in cases]


def _space_time(case: Case, plan: Plan, device: str, tested: int) -> Found:
    space = case.target.space.standardised(case.rows.all)
    density = fit_density(space, space.encode(case.rows.all).to(device), plan, seed=case.seed)
    with torch.no_grad():
        parts = [density.log_prob(x).double().cpu() for x in case.states(space, device).split(AT_ONCE)]
        X = torch.as_tensor(case.target.sample(tested, seed=10_000))
        exact = density.log_prob_exact(space.encode(X).to(device)).double().cpu() + space.log_det
    extra = {
        "KL(truth‖model), exact chain rule": float((case.target.log_density(X) - exact).mean()),
        "log Z of the one pass": density.log_z.value,
        "level chosen by held-out likelihood": density.level,
        "steps until the best held-out loss": float(density.history.best_step),
    }
    return Found(torch.cat(parts).view(LABELS, -1) + space.log_det, extra)


SYSTEMS: dict[str, Callable[[Sequence[Case], str, bool], list[Found]]] = {
    "KDE for each label": kernel_estimates,
    "conditional flow (zuko)": conditional_flows,
    "CTEM, joint kernel": joint_kernel,
    "space-time CTEM": space_time,
}
