"""Four densities on R² × {0 … 15}: a KDE for each label, a conditional flow, the paper's joint kernel, our default.

Every system takes a list of cases and gives log p(x, y) on each one's grid. Bandwidths and stopping times are chosen on
held-out rows, never on the truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from baselines import FlowSettings
from ctem import MLP, HammingOne, Kernel, Product, Recipe, Space, Sphere, pair_loss, train
from ctem.anyorder import Settings, fit_anyorder
from ctem.targets import Grid, LabelledRing
from ctem.training import Loss

__all__ = [
    "LABELS",
    "SYSTEMS",
    "Case",
    "Found",
    "LabelledFlow",
    "Rows",
    "any_order",
    "conditional_flows",
    "joint_kernel",
    "kernel_estimates",
    "with_label",
]

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
        found.append(Found(log_p - (log_p + case.square.weights.log()).logsumexp((0, 1)), {}))
    return found


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
