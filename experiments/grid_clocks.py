"""The clock-per-column objective on two ordinal columns of 91 values, normalised exactly by the chain rule.

Every data set has one network for each fold that it does not see, and all of them are members of one program: row r of
a batch belongs to member r mod members, and a member has weight only on rows of its own set and of the other folds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctem import ProductBase, Recipe, train
from ctem.chain import Chain
from ctem.spacetime import Clocks
from grid_nets import GridNets, waves
from grid_sets import FOLDS, SETS

__all__ = ["ClockSettings", "WaveNet", "chain_table", "fit_clocks", "held_out_in_turn", "member_weights"]

JUDGED = 1600  # held-out rows of each member, by which the program is stopped


@dataclass(frozen=True, kw_only=True)
class ClockSettings:
    """One default for every data set; chosen by held-out nats."""

    width: int = 128
    depth: int = 4  # hidden layers
    harmonics: int = 1  # of each column; −1 takes one-hot inputs instead
    steps: int = 3000
    batch_size: int = 512  # rows of each member
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    ema: float = 0.998
    moves: int = 2
    evaluate_every: int = 200

    def recipe(self, members: int, seed: int) -> Recipe:
        return Recipe(
            steps=self.steps,
            batch_size=self.batch_size * members,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            ema=self.ema,
            evaluate_every=self.evaluate_every,
            seed=seed,
        )


class WaveNet(nn.Module):
    """g(x, s) on ordinal columns with clocks: waves of each visible value, residual layers, g = 0 if all are hidden.

    Arguments:
        base: the base b that g corrects.
        members: independent networks; row r of a batch belongs to member r mod members.
        harmonics: of each column; −1 takes one-hot inputs instead.
    """

    def __init__(self, base: ProductBase, members: int, width: int, depth: int, harmonics: int, seed: int):
        super().__init__()
        self.base, self.sizes, self.harmonics = base, base.space.sizes, harmonics
        self.shape = {"width": width, "depth": depth, "harmonics": harmonics, "seed": seed}
        inputs = sum(k if harmonics < 0 else 1 + 2 * harmonics for k in self.sizes) + len(self.sizes)
        self.nets = GridNets(members, inputs, width, depth, seed)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """g for rows x (n, d) and levels (n, d), inf where hidden."""
        members = self.nets.members
        seen = self._seen(x, level).unflatten(0, (-1, members)).transpose(0, 1)
        out = self.nets(torch.cat([seen, torch.zeros_like(seen[:, :1])], 1))
        return torch.where(torch.isfinite(level).any(-1), (out[:, :-1] - out[:, -1:]).T.flatten(), 0.0)

    def member(self, k: int) -> WaveNet:
        """Member k alone."""
        alone = WaveNet(self.base, 1, **self.shape).to(self.base.log_table.device)
        alone.nets.load_state_dict({name: value[k : k + 1] for name, value in self.nets.state_dict().items()})
        return alone

    def _seen(self, x: Tensor, level: Tensor) -> Tensor:
        visible = torch.isfinite(level)
        columns = [self._embed(x[:, j], size) for j, size in enumerate(self.sizes)]
        shown = [torch.where(visible[:, j : j + 1], h, 0.0) for j, h in enumerate(columns)]
        return torch.cat([visible.to(x.dtype), *shown], -1)

    def _embed(self, value: Tensor, size: int) -> Tensor:
        if self.harmonics >= 0:
            return waves(value, size, self.harmonics)
        hit = value.unsqueeze(-1) == torch.arange(size, device=value.device)
        return hit.to(value.dtype) * math.sqrt(size)


def fit_clocks(
    codes: Sequence[Tensor], settings: ClockSettings, device: str, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Tables (k, 91, 91) and held-out nats (k,) of k sets of n codes (n, 2); one program for all.

    A table is the mixture of the set's networks; the nats of a row are those of the one that did not see it.
    """
    space = SETS["moons"].space
    base = ProductBase(space).to(device)
    shuffled = [_shuffled(c, seed + i) for i, c in enumerate(codes)]
    x = torch.stack([space.encode(c) for c in shuffled]).to(device)
    shape = {"width": settings.width, "depth": settings.depth, "harmonics": settings.harmonics}
    g = WaveNet(base, len(x) * FOLDS, **shape, seed=seed).to(device)
    train(
        g,
        Clocks(base, moves=settings.moves),
        x.flatten(0, 1),
        settings.recipe(len(x) * FOLDS, seed),
        held_out=held_out_in_turn(x),
        weights=member_weights(len(x), x.shape[1]).to(device),
        cuda_graph=x.is_cuda,
    )
    with torch.no_grad():
        p = torch.stack([chain_table(Chain(g.member(k), base)) for k in range(g.nets.members)])
    p = p.double().cpu().unflatten(0, (-1, FOLDS))
    fold = torch.arange(x.shape[1]) % FOLDS
    nats = [-q.flatten(1)[fold, space.index(c)].log().mean() for q, c in zip(p, shuffled, strict=True)]
    return p.mean(1), torch.stack(nats)


def _shuffled(codes: Tensor, seed: int) -> Tensor:
    return codes[torch.randperm(len(codes), generator=torch.Generator().manual_seed(seed))]


def member_weights(sets: int, rows: int) -> Tensor:
    """Weights (members, sets · rows): 1 on rows of the member's own set, except r mod FOLDS = its fold."""
    fold = torch.arange(rows) % FOLDS != torch.arange(FOLDS).unsqueeze(1)
    return torch.kron(torch.eye(sets), fold.to(torch.float32))


def held_out_in_turn(x: Tensor) -> Tensor:
    """Rows that the members did not see, out of sets (k, n, 2), taking turns: row r for member r mod (k · FOLDS)."""
    k, n, d = x.shape
    count = min(JUDGED, n // FOLDS)
    return x[:, : count * FOLDS].reshape(k, count, FOLDS, d).transpose(0, 1).reshape(-1, d)


def chain_table(chain: Chain) -> Tensor:
    """½ p(x₁) p(x₂|x₁) + ½ p(x₂) p(x₁|x₂) at every cell: exactly normalised."""
    like, size = chain.base.log_table, chain.base.space.sizes[0]
    rows = torch.arange(size, dtype=like.dtype, device=like.device).unsqueeze(1).expand(-1, 2)
    tables = []
    for first, second in ((0, 1), (1, 0)):
        seen = torch.zeros_like(rows, dtype=torch.bool)
        marginal = chain.conditional(rows[:1], seen[:1], first)[1].exp()
        seen[:, first] = True
        table = marginal.view(-1, 1) * chain.conditional(rows, seen, second)[1].exp()
        tables.append(table if first == 0 else table.T)
    return torch.stack(tables).mean(0)
