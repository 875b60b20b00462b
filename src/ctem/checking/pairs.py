r"""Annealing of sums over pairs of bits: of lattices, and of any graph with few neighbours.

Where a log-potential f is seen to be such a sum h, up to a constant, chains go along h_t = (1 − t) log b + t h from the
base b to h, and one more step goes from h to f: its weight is a constant if f is h everywhere, and what it should be if
not. All bits of one colour are drawn at once given the others; clusters flip now and then (Swendsen–Wang).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ctem.bases import FittedBase, ProductBase
from ctem.checking.potential import Counted
from ctem.samplers import BlockFlips, ClusterFlips, Couplings, Move, anneal_bits
from ctem.samplers.sampler import evaluated

__all__ = ["PairChains", "even_ladder"]

FEW = [(i / 50) ** 2 for i in range(51)]  # t of a first, short run that spaces the levels
SOME = 256  # chains of it
EVERYWHERE = 0.05  # of the mean density of levels, at least
CLUSTERS_EVERY = 20  # levels
AT_F = 1e-7  # s of f itself, t = e^{−s}
BATCH = 2**14  # rows at which f is evaluated at once


class PairChains:
    """Chains on bits whose log-potential is a sum over pairs.

    Arguments:
        f: the log-potential.
        couplings: h.
        levels: temperatures on the way.
        moves: sweeps at each of them.
        generator: the randomness.

    >>> from ctem.benchmarks.lattices import Ising
    >>> from ctem.samplers import find_couplings
    >>> lattice, g = Ising(3, 0.2), torch.Generator().manual_seed(0)
    >>> chains = PairChains(Counted(lattice, lattice.space), find_couplings(lattice, 9, g), 10, 1, g)
    >>> chains.up(ProductBase(lattice.space), 5)[1].shape
    torch.Size([5, 9])
    """

    def __init__(self, f: Counted, couplings: Couplings, levels: int, moves: int, generator: torch.Generator):
        self.f, self.couplings, self.generator, self.moves, self.count = (
            f,
            couplings,
            generator,
            moves,
            levels,
        )
        self.ladder: list[float] = []
        self.colours = couplings.colours()
        d, (i, j) = len(couplings.field), couplings.edges.unbind(1)
        J = torch.zeros(d, d, device=couplings.field.device)
        J[i, j] = couplings.weights / 2  # β [x_i = x_j] = β (1 + s_i s_j)/2
        self.J = J + J.T
        self.columns = [colour.nonzero().squeeze(1) for colour in self.colours]
        self.towards = [self.J[:, columns].contiguous() for columns in self.columns]

    def up(self, base: FittedBase | ProductBase, n: int) -> tuple[Tensor, Tensor]:
        """log w of n chains from the base to f, and where they ended."""
        self.ladder = even_ladder(FEW, self._deviations(base), self.count)
        x = base.sample(n, self.generator)
        log_w, x = self._walk(base, x, self.ladder)
        return log_w + self._beside(x), x

    def down(self, base: FittedBase | ProductBase, x: Tensor) -> Tensor:
        """log w of chains from samples x of f to the base, by the levels of the last way up."""
        path = _Path(self, base)
        spins = 2 * x - 1
        self._move(spins, path, 1.0, clusters=True)
        return self._walk(base, (spins + 1) / 2, self.ladder[::-1])[0] - self._beside(x)

    def settle(self, x: Tensor, sweeps: int) -> Tensor:
        """The rows moved at f itself."""
        flat = torch.zeros_like(x[0])
        clusters = ClusterFlips(self.couplings, flat, max(1, sweeps // 2))
        moves: list[Move] = [BlockFlips(self.colours, max(1, sweeps)), clusters]
        return anneal_bits(lambda rows, s: self.f(rows), x, [AT_F], moves, self.generator, batch_size=BATCH).x

    def _walk(self, base: FittedBase | ProductBase, x: Tensor, ladder: list[float]) -> tuple[Tensor, Tensor]:
        """log w along the ladder, and where the chains ended; at its last step up they move once more."""
        path, s = _Path(self, base), 2 * x - 1
        log_w = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for k in range(1, len(ladder)):
            log_w += (ladder[k] - ladder[k - 1]) * path.gap(s)
            if ladder[k] > 0:
                self._move(s, path, ladder[k], clusters=k % CLUSTERS_EVERY == 0)
        return log_w, (s + 1) / 2

    def _move(self, s: Tensor, path: _Path, t: float, clusters: bool) -> None:
        """Sweeps at h_t, in place."""
        for _ in range(self.moves):
            for columns, J, slope in zip(self.columns, self.towards, path.slopes(t), strict=True):
                odds = torch.addmm(slope, s, J, alpha=2 * t)
                u = torch.rand(odds.shape, generator=self.generator, device=s.device)
                s[:, columns] = torch.where(u < torch.sigmoid(odds), 1.0, -1.0)
        if clusters:
            self._flip_clusters(s, path, t)

    def _flip_clusters(self, s: Tensor, path: _Path, t: float) -> None:
        x, h = (s + 1) / 2, self.couplings
        label = h.clusters(h.joined(x, t, self.generator))
        gain = torch.zeros_like(s).scatter_add(1, label, -s * path.field(t))
        u = torch.rand(s.shape, generator=self.generator, device=s.device)
        s.mul_(1 - 2 * (u < torch.sigmoid(gain)).gather(1, label).to(s.dtype))

    def _deviations(self, base: FittedBase | ProductBase) -> list[float]:
        """Of h − log b over chains at each t of FEW."""
        path, s = _Path(self, base), 2 * base.sample(SOME, self.generator) - 1
        deviations = [float(path.gap(s).std())]
        for t in FEW[1:]:
            self._move(s, path, t, clusters=True)
            deviations.append(float(path.gap(s).std()))
        return deviations

    def _beside(self, x: Tensor) -> Tensor:
        """f − h."""
        parts = [
            evaluated(self.f, part).double() - self.couplings.value(part).double() for part in x.split(BATCH)
        ]
        return torch.cat(parts)


class _Path:
    """h_t = (1 − t) log b + t h in spins s = 2x − 1."""

    def __init__(self, chains: PairChains, base: FittedBase | ProductBase):
        h, self.J = chains.couplings, chains.J
        self.to_f = h.field
        self.to_base = (base.log_table[:, 1] - base.log_table[:, 0]).to(h.field)
        self.columns = chains.columns
        zero = torch.zeros_like(h.field).unsqueeze(0)
        self.rest = 0.0
        self.rest = float(h.value(zero) - base.log_prob(zero) - self.gap(zero - 1))

    def field(self, t: float) -> Tensor:
        """What x_i = 1 gains on x_i = 0 beside the couplings."""
        return t * self.to_f + (1 - t) * self.to_base

    def slopes(self, t: float) -> list[Tensor]:
        """The field of every colour."""
        return [self.field(t)[columns] for columns in self.columns]

    def gap(self, s: Tensor) -> Tensor:
        """h − log b, (n,) float64."""
        pairs = (s @ self.J).mul_(s).sum(1) / 2
        return pairs.double() + (s @ (self.to_f - self.to_base)).double() / 2 + self.rest


def even_ladder(known: Sequence[float], deviation: Sequence[float], levels: int) -> list[float]:
    """t from 0 to 1 in so many steps, each as long as the others measured by the deviation of f − log b.

    A step dt adds dt² · deviation² to the variance of log w: the sum is least where all steps add the same.

    Arguments:
        known: t, rising from 0 to 1, at which the deviation is known.
        deviation: of f − log b over chains there.
        levels: steps of the ladder.

    >>> even_ladder([0.0, 0.5, 1.0], [1.0, 1.0, 1.0], 4)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    t, speed = np.asarray(known), np.asarray(deviation)
    speed = speed + EVERYWHERE * speed.mean() + 1e-9
    length = np.concatenate([[0.0], np.cumsum(np.diff(t) * (speed[1:] + speed[:-1]) / 2)])
    ladder = np.interp(np.linspace(0, length[-1], levels + 1), length, t)
    return [0.0, *ladder[1:-1].tolist(), 1.0]
