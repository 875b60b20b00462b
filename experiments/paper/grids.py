"""The data of Table 2 and of the stress tests on a 91 × 91 grid, and free energies on it.

Three sets, their truth, folds, islands and modes; free energies for many data sets, seeds and rules at once: the exact
loss of a finite space (``ctem.matching.losses.exact_loss``) on the 4-neighbour graph, on all tables in one program.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from scipy.ndimage import label
from torch import Tensor, nn
from torch.nn.functional import pad

from ctem import Grid, Recipe, train
from ctem.benchmarks.quantised import CELLS, EightGaussians, Moons, SwissRoll
from ctem.matching.connectivity import components
from ctem.matching.losses import Rule, brier, concrete_score, score_entropy

RULES: dict[str, Rule] = {"CSM": concrete_score, "SEDD": score_entropy, "CTEM": brier}
BANDWIDTHS = [0.3 * 1.15**i for i in range(16)]  # cells


def histogram(codes: Tensor, cells: int) -> Tensor:
    """Relative frequencies (cells, cells) of rows of codes (n, 2)."""
    index = (codes[:, 0] * cells + codes[:, 1]).long()
    return (torch.bincount(index, minlength=cells * cells).double() / len(codes)).view(cells, cells)


class Cells(NamedTuple):
    """The cells of each table that are compared at all, in compact form; padded with cells of weight 0."""

    index: Tensor  # (k, n) in the flattened grid
    real: Tensor  # (k, n) False where padded
    neighbour: Tensor  # (k, 4, n) positions among the n
    weight: Tensor  # (k, 8, n) p(z)/4, then p(z̃)/4, of every edge; 0 where there is none


def compared_cells(p: Tensor, observed_only: Tensor | bool) -> Cells:
    """The 4-neighbour graph on the cells of p (k, a, a) that were observed, or on these and their neighbours.

    Without ``observed_only``, one answer for all tables or one for each (k,), an edge counts when one of its ends was
    observed.
    """
    a = p.shape[-1]
    strict = torch.as_tensor(observed_only, device=p.device).view(-1, 1, 1, 1)
    here, around, inside = p.unsqueeze(1), _around(p), _around(torch.ones_like(p)) > 0
    edge = torch.where(strict, (here > 0) & (around > 0), ((here > 0) | (around > 0)) & inside)
    used = torch.where(strict[:, 0], p > 0, edge.any(1)).flatten(1)
    index = used.byte().argsort(dim=1, descending=True, stable=True)[:, : int(used.sum(1).max())]
    position = torch.zeros_like(used, dtype=torch.long)
    position.scatter_(1, index, torch.arange(index.shape[1], device=p.device).expand_as(index))
    many = index.unsqueeze(1).expand(-1, 4, -1)
    edge = edge.flatten(2).gather(2, many)
    steps = torch.tensor([-a, a, -1, 1], device=p.device).view(4, 1)
    at = torch.where(edge, many + steps, many)
    neighbour = position.gather(1, at.flatten(1)).view(at.shape)
    ends = torch.cat([here.expand_as(around), around], 1).flatten(2)
    weight = edge.repeat(1, 2, 1) * ends.gather(2, many.repeat(1, 2, 1)) / 4
    return Cells(index, used.gather(1, index), neighbour, weight)


def _around(p: Tensor) -> Tensor:
    """The values above, below, to the left and to the right of every cell, 0 beyond the grid; (k, 4, a, a)."""
    wide = pad(p, (1, 1, 1, 1))
    return torch.stack([wide[:, :-2, 1:-1], wide[:, 2:, 1:-1], wide[:, 1:-1, :-2], wide[:, 1:-1, 2:]], 1)


def weighed_by_counts(p: Tensor, data: Tensor) -> Tensor:
    """The table p with the mass of every island of observed cells set to its share of the data; (a, a) both.

    Comparisons between neighbours leave these masses open; counts do not.
    """
    island = torch.as_tensor(label(data.cpu().numpy() > 0)[0], dtype=torch.long).flatten()
    mass, share = (
        torch.zeros(int(island.max()) + 1, dtype=p.dtype).index_add(0, island, t.flatten()) for t in (p, data)
    )
    return (p.flatten() * (share / mass.clamp_min(1e-300))[island]).view(p.shape)


def _concrete(gap: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """2q(e² + 1/e) − 2p(1/e² + e), e = e^Δ."""
    e, r = gap.exp(), (-gap).exp()
    return 2 * (q * torch.addcmul(r, e, e) - p * torch.addcmul(e, r, r))


def _entropy(gap: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """q(e + 1) − p(1/e + 1), e = e^Δ."""
    return q * (gap.exp() + 1) - p * ((-gap).exp() + 1)


def _brier(gap: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """(1 − t²)(q(1 + t) − p(1 − t)), t = tanh(Δ/2)."""
    t = torch.tanh(gap / 2)
    return torch.addcmul(q - p, q + p, t) * (1 - t * t)


PULLS: dict[Rule, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    concrete_score: _concrete,
    score_entropy: _entropy,
    brier: _brier,
}  # p ℓ'(Δ) − q ℓ'(−Δ)


def edge_gradient(f: Tensor, cells: Cells, rules: Sequence[Rule]) -> Tensor:
    """∂/∂f(z) Σ_z p(z) ¼ Σ_z̃ ℓ(f(z) − f(z̃)) over the edges of ``cells``, f (rules, k, n).

    An edge adds p ℓ'(Δ) − q ℓ'(−Δ) at its end z, with Δ = f(z) − f(z̃), p = p(z)/4 and q = p(z̃)/4: in closed form,
    and by gathering only, so that a step is some twenty small kernels and the same bits every time.
    """
    to = cells.neighbour.flatten(1).expand(len(rules), -1, -1)
    gap = f.unsqueeze(2) - f.gather(2, to).view(*f.shape[:2], 4, -1)
    p, q = cells.weight.chunk(2, dim=1)
    return torch.stack([PULLS[rule](d, p, q).sum(1) for rule, d in zip(rules, gap, strict=True)])


def fit_tables(
    p: Tensor, rules: Sequence[Rule], steps: int, learning_rate: float, observed_only: Tensor | bool
) -> Tensor:
    """Probabilities (rules, k, a, a) of free energies fitted to p (k, a, a) by full-batch Adam from f = 0.

    The loss is Σ_z p(z) ¼ Σ_z̃ ℓ(f(z) − f(z̃)) over the edges of ``compared_cells``; exp f is normalised over those
    cells, since no comparison says anything about the others. In float64: a rival's loss may reach e^100.
    """
    cells = compared_cells(p, observed_only)
    f = _fit(cells, rules, steps, learning_rate)
    mass = torch.where(cells.real, f, -math.inf).softmax(-1)
    flat = torch.zeros(len(rules), len(p), p[0].numel(), dtype=p.dtype, device=p.device)
    return flat.scatter_(2, cells.index.expand_as(mass), mass).view(len(rules), *p.shape)


class _Free(nn.Module):
    """A value for every compared cell of every table under every rule, (rules, k, n), zero at first."""

    def __init__(self, like: Tensor, *shape: int):
        super().__init__()
        self.values = nn.Parameter(like.new_zeros(shape))


def _fit(cells: Cells, rules: Sequence[Rule], steps: int, learning_rate: float) -> Tensor:
    free = _Free(cells.weight, len(rules), *cells.index.shape)

    def loss(free: _Free, _: Tensor, generator: torch.Generator) -> Tensor:
        """Its gradient is that of the exact loss, by gathering only: autograd would scatter, to other bits."""
        f = free.values
        return (f * edge_gradient(f.detach(), cells, rules)).sum()

    recipe = Recipe(
        steps=steps,
        batch_size=1,
        learning_rate=learning_rate,
        schedule="constant",
        evaluate_every=min(steps, 1000),
    )
    train(free, loss, cells.weight.new_zeros(2, 1), recipe, cuda_graph=cells.weight.is_cuda)
    return free.values.detach()


def smoothed(parts: Tensor) -> tuple[Tensor, float]:
    """The histogram under a Gaussian kernel, its bandwidth chosen by held-out likelihood; also the bandwidth.

    Arguments:
        parts: histograms (folds, a, b) of a partition of the rows into equal folds.
    """
    score = torch.stack([_held_out(parts, width) for width in BANDWIDTHS])
    width = BANDWIDTHS[int(score.argmax())]
    return _blur(parts.mean(0), width), width


def _held_out(parts: Tensor, width: float) -> Tensor:
    rest = (parts.sum(0) - parts) / (len(parts) - 1)
    return (parts * _blur(rest, width).clamp_min(1e-12).log()).sum()


def _blur(p: Tensor, width: float) -> Tensor:
    """Each cell's mass spread over its neighbours; what would fall outside stays inside."""
    return _spread(p.shape[-2], width, p) @ p @ _spread(p.shape[-1], width, p).T


def _spread(cells: int, width: float, like: Tensor) -> Tensor:
    at = torch.arange(cells, dtype=like.dtype, device=like.device)
    weight = (-0.5 * ((at - at[:, None]) / width) ** 2).exp()
    return weight / weight.sum(0)


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
