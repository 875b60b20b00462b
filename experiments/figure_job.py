"""What every figure is given, and what it leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from continuous_sets import BRIEF, GROUPS, TARGETS, Density, Group
from ctem import Recipe
from ctem.training import PAPER_2D, PAPER_HIGH_D
from drawing import Arrays
from fits import load_fits
from results import Record

TEST_ROWS, TEST_SEED = 2000, 10_000


class Computed(NamedTuple):
    """The numbers of a figure, and what its panels show, by set and system."""

    records: list[Record]
    arrays: Arrays


class Truth:
    """A target as a system: what the sampler does with the true score."""

    def __init__(self, name: str, device: str):
        self.target, self.device = TARGETS[name], torch.device(device)

    def log_density(self, X: Tensor) -> Tensor:
        return self.target.log_density(X)

    def slope(self, X: Tensor) -> Tensor:
        return self.target.grad_log_density(X)


class Job(NamedTuple):
    """What every figure is given."""

    names: list[str]
    device: str
    quick: bool
    fits: Path
    seeds: range
    denoisers: bool = True  # train score networks too, which are in no table

    def systems(self, name: str) -> dict[str, Density]:
        """Truth first, then the fits of seed 0."""
        found = load_fits(self.fits, name, self.device)
        if not found:
            raise FileNotFoundError(f"{self.fits}: no fits of {name!r}; run experiments/table1.py first.")
        return {"truth": Truth(name, self.device), **found}

    def groups(self) -> list[Group]:
        """The groups, with the sets of this job."""
        kept = [g._replace(names=tuple(n for n in g.names if n in self.names)) for g in GROUPS]
        return [g for g in kept if g.names]

    def recipe(self, group: Group, recipe: Recipe | None = None) -> Recipe:
        """The paper's recipe of a group by default, cut short with --quick."""
        recipe = recipe or (PAPER_2D if group.dim == 2 else PAPER_HIGH_D)
        return replace(recipe, **BRIEF) if self.quick else recipe

    def width(self, group: Group) -> int:
        return 32 if self.quick else group.width
