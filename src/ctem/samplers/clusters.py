r"""Swendsen–Wang moves for log-potentials on bits that are, or nearly are, a sum over pairs.

    h(x) = Σ_e β_e [x_i = x_j] + Σ_i a_i x_i

Equal neighbours are joined with probability 1 − e^{−β} (unequal ones where β < 0), and every cluster flips as a whole
by its field. This leaves exp h invariant and changes large parts of a row at once, where single flips are slow: near a
critical point, and between stripes. What f has beside h is weighed by a Metropolis step: the move is exact for any f.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from ctem.energies import LogPotential
from ctem.samplers.bits import BitState, BitTarget, gain_of, log_flips, uniform, value_of

__all__ = ["BlockFlips", "ClusterFlips", "Couplings", "find_couplings"]

MAX_NEIGHBOURS = 32
LOOKS = 4  # rows at which the couplings are read off
TRIALS = 64  # rows at which they are tried
EXACT = 1e-4  # of the size of f, up to which it is a sum over pairs


class Couplings:
    """Pairs of bits and their weights.

    Arguments:
        edges: (e, 2), each pair once.
        weights: β, (e,).
        field: a, (d,).

    >>> pairs = Couplings(torch.tensor([[0, 1]]), torch.ones(1), torch.zeros(2))
    >>> pairs.value(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    tensor([1., 0.])
    """

    def __init__(self, edges: Tensor, weights: Tensor, field: Tensor):
        self.edges, self.weights, self.field = edges, weights, field
        self.table, self.by = _neighbours(edges, len(field))

    def value(self, x: Tensor) -> Tensor:
        """h at codes (n, d), shape (n,)."""
        return (self.equal(x) * self.weights).sum(-1) + x @ self.field

    def equal(self, x: Tensor) -> Tensor:
        """Whether both ends of each edge are equal, (n, e)."""
        return x[:, self.edges[:, 0]] == x[:, self.edges[:, 1]]

    def joined(self, x: Tensor, t: float, generator: torch.Generator) -> Tensor:
        """Edges of t h that Swendsen–Wang joins, (n, e): those as β wants them, with probability 1 − e^{−t|β|}."""
        wanted = self.equal(x) == (self.weights > 0)
        draw = torch.rand(wanted.shape, generator=generator, device=x.device)
        return wanted & (draw < -torch.expm1(-t * self.weights.abs()))

    def colours(self) -> Tensor:
        """Sets of bits without an edge between two of them, greedily: (colours, d) bool."""
        d, e = len(self.field), len(self.edges)
        near = [row[by < e].tolist() for row, by in zip(self.table.cpu(), self.by.cpu(), strict=True)]
        colour: dict[int, int] = {}
        for i in range(d):
            taken = {colour[j] for j in near[i] if j in colour}
            colour[i] = next(c for c in range(d) if c not in taken)
        of = torch.tensor([colour[i] for i in range(d)], device=self.field.device)
        return torch.stack([of == c for c in range(int(of.max()) + 1)])

    def clusters(self, joined: Tensor) -> Tensor:
        """A number for every bit, the same for bits that joined edges (n, e) connect and for no others; (n, d)."""
        n, d = len(joined), len(self.field)
        if not joined.is_cuda:
            row, edge = joined.numpy().nonzero()
            ends = self.edges.numpy()[edge] + d * row[:, None]
            graph = coo_array((np.ones(len(row), np.int8), ends.T), shape=(n * d, n * d))
            label = torch.as_tensor(connected_components(graph, directed=False)[1].reshape(n, d)).long()
            return label - label.amin(
                1, keepdim=True
            )  # scipy numbers clusters in the order of their first bit
        return self.smallest(joined)

    def smallest(self, joined: Tensor) -> Tensor:
        """The same by the smallest bit of each cluster: labels spread along edges and are followed to their root."""
        n, d = len(joined), len(self.field)
        nowhere = torch.zeros_like(joined[:, :1])
        open_ = torch.cat([joined, nowhere], 1)[:, self.by]  # (n, d, degree)
        label = torch.arange(d, device=joined.device).repeat(n, 1)
        while True:
            near = torch.where(open_, label[:, self.table], d).amin(-1)
            new = torch.minimum(label.scatter_reduce(1, label, near, "amin"), near)  # the root learns it, too
            new = new.gather(1, new)
            if torch.equal(new, label):
                return label
            label = new


def _neighbours(edges: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The neighbours of every bit and the edges that lead there, (d, degree); edge e stands for none."""
    ends = torch.cat([edges, edges.flip(1)])
    order = ends[:, 0].argsort(stable=True)
    here, there = ends[order].unbind(1)
    count = here.bincount(minlength=dim)
    slot = torch.arange(len(here), device=here.device) - (count.cumsum(0) - count)[here]
    table = torch.zeros(dim, int(count.max()), dtype=torch.long, device=here.device)
    by = torch.full_like(table, len(edges))
    table[here, slot], by[here, slot] = there, order % len(edges)
    return table, by


def find_couplings(f: LogPotential, dim: int, generator: torch.Generator) -> Couplings | None:
    """The couplings of f on bits, where it is a sum over pairs with few neighbours each; else None.

    With one bit at 0 and at 1 the slopes of f in the others differ by the coupling. f is differentiable in the codes.

    >>> f = lambda x: 3 * (x[:, 0] * x[:, 2]) + x[:, 1]
    >>> find_couplings(f, 3, torch.Generator()).edges
    tensor([[0, 2]])
    """
    device = generator.device
    rows = torch.randint(2, (LOOKS, dim), generator=generator, device=device).float()
    low, high = rows.repeat_interleave(dim, 0), rows.repeat_interleave(dim, 0)
    column = torch.arange(dim, device=device).repeat(LOOKS)
    line = torch.arange(len(low), device=device)
    low[line, column], high[line, column] = 0.0, 1.0
    change = (_slopes(f, high) - _slopes(f, low)).view(LOOKS, dim, dim).mean(0)
    J = (change + change.T).fill_diagonal_(0.0) / 2
    J = torch.where(J.abs() > EXACT * J.abs().max(), J, 0.0)
    if int((J != 0).sum(1).max()) > MAX_NEIGHBOURS or not bool((J != 0).any()):
        return None
    edges = J.triu(1).nonzero()
    beta = J[edges[:, 0], edges[:, 1]] / 2
    field = _slopes(f, torch.zeros(1, dim, device=device))[0] + J.sum(1) / 2
    couplings = Couplings(edges, beta, field)
    return couplings if _explains(f, couplings, generator) else None


def _explains(f: LogPotential, couplings: Couplings, generator: torch.Generator) -> bool:
    """Whether f − h is a constant at random rows."""
    shape = (TRIALS, len(couplings.field))
    share = torch.linspace(0, 1, TRIALS, device=generator.device).unsqueeze(1)
    x = (torch.rand(shape, generator=generator, device=generator.device) < share).float()
    with torch.no_grad():
        values = f(x).double()
    rest = values - couplings.value(x).double()
    return bool((rest.max() - rest.min()) <= EXACT * (1 + values.abs().max()))


def _slopes(f: LogPotential, x: Tensor) -> Tensor:
    parts = []
    for part in x.split(4096):
        leaf = part.clone().requires_grad_()
        with torch.enable_grad():
            parts.append(torch.autograd.grad(f(leaf).sum(), leaf)[0])
    return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class ClusterFlips:
    """A Swendsen–Wang sweep at the level s of f_s = t f + (1 − t) log b, t = e^{−s}.

    Arguments:
        couplings: h, near f.
        base: slopes of log b in the codes, (d,); zeros for a uniform base.
        times: sweeps at each level.

    >>> from ctem.samplers import anneal_bits
    >>> pairs, g = Couplings(torch.tensor([[0, 1]]), torch.ones(1), torch.zeros(2)), torch.Generator().manual_seed(0)
    >>> f = lambda x, s: (-s).exp() * pairs.value(x)
    >>> x = anneal_bits(f, torch.zeros(2000, 2), [1e-7], [ClusterFlips(pairs, torch.zeros(2), 5)], g).x
    >>> round(float((x[:, 0] == x[:, 1]).float().mean()), 1)  # e/(e + 1)
    0.7
    """

    couplings: Couplings
    base: Tensor
    times: int = 1

    def move(
        self, state: BitState, target: BitTarget, step: Tensor, generator: torch.Generator
    ) -> tuple[BitState, Tensor]:
        """One sweep of every chain."""
        here, t = target.valued(state), math.exp(-target.level)
        x, h = here.x, self.couplings
        label = h.clusters(h.joined(x, t, generator))
        field = t * h.field + (1 - t) * self.base
        gain = torch.zeros_like(x).scatter_add(1, label, (1 - 2 * x) * field)
        flip = (uniform(gain, generator) < torch.sigmoid(gain)).gather(1, label)
        there = target.valued(BitState(torch.where(flip, 1 - x, x)))
        beside = [
            value_of(each) - t * h.value(each.x) - (1 - t) * each.x @ self.base for each in (here, there)
        ]
        return target.accepted(here, there, beside[1] - beside[0], generator)


@dataclass(frozen=True, eq=False)
class BlockFlips:
    """A sweep of Gibbs, one set of bits after the other: every bit of a set is drawn given all others, by its gain.

    With sets that have no couplings inside, and gains that are exact, every draw is accepted; else a Metropolis step
    decides about the set as a whole.

    Arguments:
        blocks: the sets, (blocks, d) bool, as from ``Couplings.colours``.
        times: sweeps at each level.

    >>> from ctem.samplers import anneal_bits
    >>> f, blocks = lambda x, s: 9 * x.sum(-1), torch.ones(1, 3, dtype=torch.bool)
    >>> anneal_bits(f, torch.zeros(2, 3), [0.5], [BlockFlips(blocks)], torch.Generator().manual_seed(0)).x
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """

    blocks: Tensor
    times: int = 1

    def move(
        self, state: BitState, target: BitTarget, step: Tensor, generator: torch.Generator
    ) -> tuple[BitState, Tensor]:
        """One sweep of every chain."""
        rates = []
        for block in self.blocks:
            here = target.informed(state)
            out = gain_of(here).masked_fill(~block, -math.inf)
            flip = uniform(out, generator) < torch.sigmoid(out)
            there = target.informed(BitState(torch.where(flip, 1 - here.x, here.x)))
            back = gain_of(there).masked_fill(~block, -math.inf)
            log_ratio = log_flips(back, flip) - log_flips(out, flip)
            log_accept = value_of(there) - value_of(here) + log_ratio
            state, rate = target.accepted(here, there, log_accept, generator)
            rates.append(rate)
        return state, torch.stack(rates).mean(0)
