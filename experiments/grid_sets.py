"""The data of Table 2 and of the stress tests: three sets on a 91 × 91 grid, their truth, folds, islands and modes."""

from __future__ import annotations

import warnings
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ctem import Grid
from ctem.diagnostics import components
from ctem.quantised import CELLS, EightGaussians, Moons, SwissRoll
from grid_tables import histogram

__all__ = [
    "FOLDS",
    "ROWS",
    "SETS",
    "Protocol",
    "Tables",
    "folds_of",
    "islands",
    "mode_of_cell",
    "own_grid",
    "own_truth",
    "paper_like",
    "primary",
    "sampled",
]

SETS = {"moons": Moons(), "swissroll": SwissRoll(), "8-Gaussians": EightGaussians()}
ROWS = 20_000
FOLDS = 5  # each network is stopped on a fifth of the rows; the answer is the mixture of the five
TRUTH = {"rows": 200_000, "seed": 12_345}  # of the paper-like protocol

Tables = dict[str, Tensor]  # by set: (seeds, 91, 91)


class Protocol(NamedTuple):
    """Rows and truth of every set."""

    name: str
    codes: dict[str, list[Tensor]]  # by set, one a seed
    truth: Tables  # by set: (91, 91)

    @property
    def data(self) -> Tables:
        return {name: torch.stack([histogram(c, CELLS) for c in rows]) for name, rows in self.codes.items()}


def primary(seeds: range) -> Protocol:
    """One fixed grid, the exact truth."""
    codes = {name: [torch.as_tensor(t.sample(ROWS, s)) for s in seeds] for name, t in SETS.items()}
    truth = {name: target.probabilities().view(CELLS, CELLS) for name, target in SETS.items()}
    return Protocol("primary", codes, truth)


def paper_like(seeds: range) -> Protocol:
    """Each seed on a grid of its own, the truth on the first one's: misaligned, so that every model meets a floor."""
    codes = {name: [own_grid(name, s) for s in seeds] for name in SETS}
    return Protocol("paper-like", codes, {name: own_truth(name, 0) for name in SETS})


def own_grid(name: str, seed: int, reference: int | None = None, rows: int = ROWS) -> Tensor:
    """Rows of a seed cut on the extent of a sample of ``reference`` (or of itself): the paper-like protocol."""
    target = SETS[name]
    points = target.points(rows, seed)
    frame = points if reference is None else target.points(ROWS, reference)
    low, high = frame.min(0), frame.max(0)
    return torch.as_tensor(np.clip(np.floor((points - low) / (high - low) * CELLS), 0, CELLS - 1))


def own_truth(name: str, seed: int) -> Tensor:
    """The histogram of 2e5 rows on the extent of a seed's sample."""
    return histogram(own_grid(name, TRUTH["seed"], seed, TRUTH["rows"]), CELLS)


def folds_of(codes: Tensor, seed: int, folds: int = FOLDS) -> Tensor:
    """Histograms of a random partition of the rows, (folds, 91, 91)."""
    order = torch.randperm(len(codes), generator=torch.Generator().manual_seed(seed))
    return torch.stack([histogram(codes[order[i::folds]], CELLS) for i in range(folds)])


def sampled(p: Tensor, seed: int, count: int) -> Tensor:
    """The histogram of rows drawn exactly from a table."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.multinomial(p.flatten(), count, replacement=True, generator=generator)
    return (torch.bincount(index, minlength=p.numel()).double() / count).view(p.shape)


@cache
def mode_of_cell(name: str) -> Tensor | None:
    """The arc or the Gaussian whose curve is nearest to each cell, (8281,); None for the one-armed swissroll."""
    target = SETS[name]
    if isinstance(target, EightGaussians):
        return target.mode_of_cell()
    if isinstance(target, Moons):
        return torch.cdist(target.cell_centres(), target.nodes).argmin(-1) * 2 // len(target.nodes)
    return None


def islands(codes: Tensor) -> int:
    """Connected components of the 4-neighbour graph on the observed cells."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there are several is the result
        return components(Grid(SETS["moons"].space, reach=1), codes).count
