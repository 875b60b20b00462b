"""The paper's own CTEM-S and CTEM-G: networks on raw rows, many as one program, trained to the last step."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from continuous_sets import BRIEF, TARGETS, Fitted, Group, Table, space_of, units
from ctem import MLP, ProductBase, Space, brier, grad_log_density, mean_std, train
from ctem.energies import MLPs
from ctem.pairwise import DRAWS
from ctem.partition import LogZ, log_z_importance
from ctem.targets import grid
from ctem.training import PAPER_2D, PAPER_HIGH_D

PAPER_C = {
    "CTEM-S": dict(zip(TARGETS, (0.50, 0.75, 0.75, 0.50, 0.08, 0.20), strict=True)),
    "CTEM-G": dict(zip(TARGETS, (0.30, 1.00, 1.50, 0.30, 0.02, 0.04), strict=True)),
}
BATCH = 2**16  # rows evaluated at once


class Steps:
    """The paper's comparisons y = x − 2ε_k u and its loss, for members that have a scale each.

    Arguments:
        scales: ε of every member.
        sphere: u on the unit sphere; else u ~ N(0, I).
        device: where the rows are.
        comparisons: m for each row, an even number: u and −u.
    """

    def __init__(self, scales: Sequence[float], sphere: bool, device: str, comparisons: int = 4):
        self.scales = torch.tensor(scales, device=device).view(-1, 1, 1, 1)
        self.sphere, self.comparisons = sphere, comparisons

    def __call__(self, f: MLPs, x: Tensor, generator: torch.Generator) -> Tensor:
        """The mean over members, for rows x (K, n, d)."""
        return self.each(f, x, generator).mean()

    def each(self, f: MLPs, x: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of every member (K,)."""
        k, n, d = x.shape
        u = torch.randn(k, self.comparisons // 2, n, d, generator=generator, device=x.device)
        u = nn.functional.normalize(u, dim=-1) if self.sphere else u
        y = x.unsqueeze(1) - 2 * self.scales * torch.cat([u, -u], dim=1)
        values = f(torch.cat([x.unsqueeze(1), y], dim=1).flatten(1, 2)).view(k, -1, n)
        return brier(values[:, :1] - values[:, 1:]).mean((1, 2))


def together(
    tables: Sequence[Tensor], device: str, owner: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Rows of all tables in one (n, d), and weights (K, n) with which member k sees those of table owner[k] only.

    Without ``owner`` each table has one member.
    """
    of = torch.cat([torch.full((len(x),), i) for i, x in enumerate(tables)])
    seen = torch.tensor(range(len(tables)) if owner is None else owner).unsqueeze(1) == of
    return torch.cat(list(tables)).to(device), seen.double()


class Energy:
    """The density exp(f − log Z) of one log-potential, in the user's units.

    Arguments:
        f: of encoded rows (n, d).
        space: the units of X.
        log_z: its constant in the user's units; the ``normalise`` functions find it.
    """

    def __init__(self, f: nn.Module, space: Space, log_z: float = 0.0):
        self.f, self.log_z = f, log_z
        self.device = next(f.parameters()).device
        self.location, self.scale = units(space).to(self.device)

    def values(self, X: Tensor) -> Tensor:
        """f at rows on the device, float64 (n,); differentiable in X."""
        return self.f(((X - self.location) / self.scale).float()).double()

    def log_density(self, X: Tensor) -> Tensor:
        with torch.no_grad():
            values = [self.values(part) for part in X.to(self.device).split(BATCH)]
        return torch.cat(values).cpu() - self.log_z

    def slope(self, X: Tensor) -> Tensor:
        return grad_log_density(self.values, X)

    @property
    def facts(self) -> dict[str, Any]:
        return {"width": self.f.layers[0].out_features, "log_z": self.log_z}

    def state(self) -> dict[str, Tensor]:
        """The tensors it is made of, if f is an MLP; with ``facts`` enough for ``restored``."""
        return {**self.f.state_dict(), "units": torch.stack([self.location, self.scale])}

    @classmethod
    def restored(cls, state: dict[str, Tensor], facts: dict[str, Any]) -> Energy:
        space = space_of(state.pop("units"))
        f = MLP(space, facts["width"])
        f.load_state_dict(state)
        return cls(f.to(next(iter(state.values())).device), space, facts["log_z"])


def normalise_on_square(energy: Energy, bounds: tuple[float, float], points: int = 200) -> None:
    """The paper's constant: the trapezoidal rule on the evaluation square."""
    square = grid(bounds, points)
    energy.log_z += float((energy.log_density(square.X) + square.weights.log()).logsumexp(0))


def normalise_by_importance(energy: Energy, space: Space, draws: int, seed: int = 0) -> LogZ:
    """The constant by draws from the normal fitted to the rows, N(location, scale²) of the space."""
    location, scale = units(space).to(energy.device)
    found = log_z_importance(
        lambda xi: energy.values(location + scale * xi),
        ProductBase(space).to(energy.device),
        draws,
        torch.Generator(energy.device).manual_seed(seed),
    )
    energy.log_z = found.value - space.log_det
    return found


def normalise(energy: Energy, table: Table, quick: bool) -> dict[str, float]:
    """On the evaluation square in the plane, by importance sampling in more dimensions."""
    if table.space.dim == 2:
        normalise_on_square(energy, TARGETS[table.name].bounds)
        return {}
    return log_z_facts(normalise_by_importance(energy, table.space, 2000 if quick else DRAWS))


def log_z_facts(found: LogZ) -> dict[str, float]:
    """How well a constant is known that rests on draws."""
    if not math.isfinite(found.ess):
        return {}
    return {"standard error of log Z": found.stderr, "effective samples of log Z": found.ess}


def fit_paper(group: Group, rows: list[Table], device: str, quick: bool) -> Iterator[Fitted]:
    """CTEM-S and CTEM-G on raw rows, all of them, to the last step; ε = c σ̄ with the paper's c for the set."""
    recipe = PAPER_2D if group.dim == 2 else PAPER_HIGH_D
    recipe = replace(recipe, **BRIEF) if quick else recipe
    raw, tables = TARGETS[group.names[0]].space, [torch.as_tensor(t.X).float() for t in rows]
    x, weights = together(tables, device)
    for system, c in PAPER_C.items():
        began = time.perf_counter()
        scales = [c[table.name] * mean_std(X) for table, X in zip(rows, tables, strict=True)]
        net = MLPs(raw, len(rows), 32 if quick else group.width).to(device)
        loss = Steps(scales, system == "CTEM-S", device)
        train(net, loss, x, recipe, weights=weights, cuda_graph=x.is_cuda)
        seconds = time.perf_counter() - began
        found = [Energy(net.member(k), raw) for k in range(len(rows))]
        facts = [normalise(energy, table, quick) for energy, table in zip(found, rows, strict=True)]
        yield Fitted(system, found, facts, seconds)
