"""Smooth energies on a 91 × 91 grid: many small networks trained as one program.

``fit_nets`` learns f(z) from pairs z, z̃ = z + δ, the shift δ drawn from a symmetric law and wrapped around the grid:
a bijection of the cells, so that one shift compares every observed cell at once, and the kernel is symmetric.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from ctem import Recipe, train
from ctem.matching.losses import Rule, log_score


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One default for every data set; chosen by held-out nats."""

    width: int = 128
    depth: int = 3  # hidden layers
    harmonics: int = 1  # sines and cosines of each coordinate: wavelengths of 91, 45, 23 … cells
    steps: int = 4000
    learning_rate: float = 2e-3
    weight_decay: float = 0.03
    reach: float = 2.0  # cells, the shortest scale of a shift
    shifts: int = 16  # per step
    evaluate_every: int = 100
    rule: Rule = log_score


class Fitted(NamedTuple):
    """Normalised tables and how they did on held-out rows."""

    p: Tensor  # (k, cells, cells)
    nats: Tensor  # (k,) held-out, per row
    step: Tensor  # (k,) chosen by them


def waves(value: Tensor, size: int, harmonics: int) -> Tensor:
    """u and sin, cos of π2^i u, i < harmonics, with u = (2v + 1)/size − 1 in (−1, 1); one more axis, last."""
    u = ((2 * value + 1) / size - 1).unsqueeze(-1)
    phase = u * (math.pi * 2.0 ** torch.arange(harmonics, device=value.device))
    return torch.cat([u * math.sqrt(3), phase.sin(), phase.cos()], -1)


class GridNets(nn.Module):
    """Several networks with residual layers h + silu(W h + c), all members by one product; zero at first.

    Arguments:
        members: k.
        inputs, width, depth: sizes; ``depth`` hidden layers.
        seed: of the initial weights, drawn on the CPU so that every device starts alike.
    """

    def __init__(self, members: int, inputs: int, width: int, depth: int, seed: int):
        super().__init__()
        self.members = members
        generator = torch.Generator().manual_seed(seed)
        sizes = [inputs, *[width] * depth]
        draws = [torch.randn(members, a, b, generator=generator) / math.sqrt(a) for a, b in pairwise(sizes)]
        self.weights = nn.ParameterList(draws)
        self.offsets = nn.ParameterList([torch.zeros(members, 1, b) for b in sizes[1:]])
        self.last = nn.Parameter(torch.zeros(members, width, 1))

    def forward(self, h: Tensor) -> Tensor:
        """One value for every row of features (k, n, inputs), shape (k, n)."""
        for i, (w, c) in enumerate(zip(self.weights, self.offsets, strict=True)):
            new = silu(torch.baddbmm(c, h, w))
            h = h + new if i else new
        return torch.bmm(h, self.last).squeeze(-1)


class _Shifted(torch.autograd.Function):
    """f(z + δ_m) for every cell and shift, (k, n) → (k, m, n); its gradient is a gather too, to the same bits."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, to: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return f[:, to]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return grads[0].gather(2, back.expand_as(grads[0])).sum(1), None, None


def shifted(f: Tensor, to: Tensor, back: Tensor) -> Tensor:
    """f(z + δ_m) (k, m, n) of values f (k, n), for shifts as ``draw_shifts`` gives them."""
    return _Shifted.apply(f, to, back)


def draw_shifts(cells: int, count: int, reach: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Where every cell goes under each of ``count`` shifts, and whence it came, (count, cells²) both."""
    device = generator.device
    u = torch.rand(count, 1, generator=generator, device=device)
    scale = reach * (cells / 2 / reach) ** u  # log-uniform, from local to half the grid
    delta = (torch.randn(count, 2, generator=generator, device=device) * scale).round().long()
    row, column = (torch.arange(cells, device=device).view(shape) for shape in ((1, -1, 1), (1, 1, -1)))

    def moved(d: Tensor) -> Tensor:
        return ((row + d[:, :1, None]) % cells * cells + (column + d[:, 1:, None]) % cells).flatten(1)

    return moved(delta), moved(-delta)


class ShiftLoss:
    """The loss of all cells under drawn shifts; of held-out histograms the nats, which choose a step for each network.

    Arguments:
        p: histograms (k, cells²) that the networks learn.
        held: histograms (k, cells²) that stop them.
        features: of every cell, (k, cells², inputs).
        settings: rule, reach and number of shifts.
    """

    def __init__(self, p: Tensor, held: Tensor, features: Tensor, settings: Settings):
        self.p, self.held, self.features, self.settings = p.float().unsqueeze(1), held, features, settings
        self.best = Fitted(
            torch.zeros_like(held), held.new_full((len(held),), math.inf), held.new_zeros(len(held))
        )
        self.looks = 0

    def __call__(self, nets: GridNets, _: Tensor, generator: torch.Generator) -> Tensor:
        f = nets(self.features)
        if not nets.training:
            return self._look(f.double().log_softmax(-1))
        to, back = draw_shifts(math.isqrt(f.shape[1]), self.settings.shifts, self.settings.reach, generator)
        gap = f.unsqueeze(1) - shifted(f, to, back)
        return (self.p * self.settings.rule(gap)).sum(-1).mean(1).sum()

    def _look(self, log_p: Tensor) -> Tensor:
        """Mean nats of the held-out histograms; every network is kept where its own are least."""
        self.looks += 1
        step = min(self.looks * self.settings.evaluate_every, self.settings.steps)
        nats, best = -(self.held * log_p).sum(-1), self.best
        won = nats < best.nats
        self.best = Fitted(
            torch.where(won[:, None], log_p.exp(), best.p),
            torch.where(won, nats, best.nats),
            torch.where(won, float(step), best.step),
        )
        return nats.mean()


def fit_nets(p: Tensor, held: Tensor, settings: Settings, seed: int) -> Fitted:
    """Fit one network to each histogram p (k, a, a), stopped where the nats of the held-out one are least."""
    k, cells, _ = p.shape
    axis = waves(torch.arange(cells, device=p.device), cells, settings.harmonics)
    features = torch.cat([axis.repeat_interleave(cells, 0), axis.repeat(cells, 1)], -1).expand(k, -1, -1)
    nets = GridNets(k, features.shape[-1], settings.width, settings.depth, seed).to(p.device)
    loss = ShiftLoss(p.flatten(1), held.flatten(1), features, settings)
    recipe = Recipe(
        steps=settings.steps,
        batch_size=1,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        evaluate_every=settings.evaluate_every,
        seed=seed,
    )
    nothing = p.new_zeros(2, 1)  # the loss is over all cells: it takes no rows
    train(nets, loss, nothing, recipe, held_out=nothing, cuda_graph=p.is_cuda)
    return loss.best._replace(p=loss.best.p.view(p.shape))


def fit_mixtures(folds: Tensor, settings: Settings, device: str, seed: int = 0) -> Fitted:
    """The mixture of the networks that are blind to one fold each, and their mean held-out nats.

    Arguments:
        folds: histograms (k, folds, a, a) of a partition of the rows of k data sets into equal folds.
    """
    rest = (folds.sum(1, keepdim=True) - folds) / (folds.shape[1] - 1)
    fitted = fit_nets(rest.flatten(0, 1).to(device), folds.flatten(0, 1).to(device), settings, seed)
    return Fitted(*[t.unflatten(0, folds.shape[:2]).mean(1).cpu() for t in fitted])
