"""Smooth energies on a 91 × 91 grid: many small networks trained as one program.

``fit_nets`` learns f(z) from pairs z, z̃ = z + δ, the shift δ drawn from a symmetric law and wrapped around the grid:
a bijection of the cells, so that one shift compares every observed cell at once, and the kernel is symmetric.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from ctem.capture import StepGraph
from ctem.losses import Rule, log_score

__all__ = ["Fitted", "GridNets", "Settings", "draw_shifts", "fit_mixtures", "fit_nets", "shifted", "waves"]


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


def fit_nets(
    p: Tensor, held: Tensor, settings: Settings, seed: int, progress: Callable[[str], None] = print
) -> Fitted:
    """Fit one network to each histogram p (k, a, a), stopped where the nats of the held-out one are least."""
    k, cells, _ = p.shape
    axis = waves(torch.arange(cells, device=p.device), cells, settings.harmonics)
    features = torch.cat([axis.repeat_interleave(cells, 0), axis.repeat(cells, 1)], -1).expand(k, -1, -1)
    nets = GridNets(k, features.shape[-1], settings.width, settings.depth, seed).to(p.device)
    weight, held_out = p.flatten(1).float().unsqueeze(1), held.flatten(1)
    generator = torch.Generator(p.device).manual_seed(seed)
    rate = torch.tensor(settings.learning_rate, device=p.device)
    optimizer = torch.optim.AdamW(
        nets.parameters(), rate, weight_decay=settings.weight_decay, fused=True, capturable=p.is_cuda
    )

    def update() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        f = nets(features)
        to, back = draw_shifts(cells, settings.shifts, settings.reach, generator)
        losses = (weight * settings.rule(f.unsqueeze(1) - shifted(f, to, back))).sum(-1).mean(1)
        losses.sum().backward()
        optimizer.step()
        return losses.detach()

    best = Fitted(
        torch.zeros_like(held_out), held_out.new_full((k,), math.inf), torch.zeros(k, device=p.device)
    )
    step = update
    for i in range(settings.steps):
        rate.fill_(settings.learning_rate * 0.5 * (1 + math.cos(math.pi * i / settings.steps)))
        if i == 3 and p.is_cuda:
            step = StepGraph(update, generator).replay
        losses = step()
        if (i + 1) % settings.evaluate_every == 0 or i + 1 == settings.steps:
            with torch.no_grad():
                best = _better(best, nets(features), held_out, i + 1)
    if not bool(losses.isfinite().all()):
        raise FloatingPointError(f"losses are {losses.tolist()}; try a smaller learning rate.")
    progress(f"    {k} networks, {settings.steps} steps: held-out nats {best.nats.mean():.4f}")
    return best._replace(p=best.p.view(p.shape))


def _better(best: Fitted, f: Tensor, held: Tensor, step: int) -> Fitted:
    log_p = f.double().log_softmax(-1)
    nats = -(held * log_p).sum(-1)
    won = nats < best.nats
    return Fitted(
        torch.where(won[:, None], log_p.exp(), best.p),
        torch.where(won, nats, best.nats),
        torch.where(won, float(step), best.step),
    )


def fit_mixtures(folds: Tensor, settings: Settings, device: str, seed: int = 0) -> Fitted:
    """The mixture of the networks that are blind to one fold each, and their mean held-out nats.

    Arguments:
        folds: histograms (k, folds, a, a) of a partition of the rows of k data sets into equal folds.
    """
    rest = (folds.sum(1, keepdim=True) - folds) / (folds.shape[1] - 1)
    fitted = fit_nets(rest.flatten(0, 1).to(device), folds.flatten(0, 1).to(device), settings, seed)
    return Fitted(*[t.unflatten(0, folds.shape[:2]).mean(1).cpu() for t in fitted])
