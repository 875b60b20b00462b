r"""log Z of a lattice of sites by its transfer matrices: exact where neighbouring rows alone are coupled.

A log-potential on rows a_1, …, a_h of a lattice that is a sum of terms of neighbouring rows, open or on a torus, is

    f(x) = f(0) + Σ_r U_r(a_r) + Σ_r W_r(a_r, a_{r+1}),     a_{h+1} = a_1,

with U_r(a) = f(a in row r, else 0) − f(0), and W_r(a, b) = f(a in row r, b below, else 0) − f(0) − U_r(a) − U_{r+1}(b).
So f itself says what its terms are, and log Z = f(0) + log tr Π_r T_r with T_r(a, b) = exp(U_r(a) + W_r(a, b)).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ctem.energies import LogPotential
from ctem.partition.log_z import LogZ, finite
from ctem.samplers.sampler import evaluated
from ctem.spaces import Space

__all__ = ["log_z_strip"]

MAX_TERMS = 2**24  # values of f that may be needed
TRIALS = 512  # rows at which the sum of terms is compared with f
EXACT = 1e-5  # of the size of f: what float32 leaves open


def log_z_strip(
    f: LogPotential,
    space: Space,
    lattice: tuple[int, int],
    generator: torch.Generator,
    batch_size: int = 65536,
) -> LogZ:
    """log Σ_x exp f(x) of a log-potential that couples neighbouring rows of a lattice alone, or neighbouring columns.

    Whether f is such a sum is tried at random states; the largest difference there is the standard error.

    Arguments:
        f: the log-potential.
        space: height · width discrete columns of q values each, row after row.
        lattice: height and width; the states of the shorter side, q^side, are listed in pairs.
        generator: the randomness of the trial, on the device of f.
        batch_size: states evaluated at once.

    >>> from ctem.benchmarks.lattices import Ising
    >>> spins, g = Ising(5, 0.3), torch.Generator()
    >>> abs(log_z_strip(spins, spins.space, (5, 5), g).value - spins.log_z) < 1e-3
    True
    """
    strip = _Strip(f, space, lattice, generator.device, batch_size)
    worst = strip.worst(generator)
    return LogZ(finite(strip.log_trace()), worst, math.inf, "transfer matrix")


class _Strip:
    """The terms of f. Sites are numbered along the shorter side, so that a row has the fewest states."""

    def __init__(
        self, f: LogPotential, space: Space, lattice: tuple[int, int], device: torch.device, batch_size: int
    ):
        height, width = lattice
        _check(space, height, width)
        sites = torch.arange(height * width, device=device).view(height, width)
        self.sites = sites if width <= height else sites.T
        self.h, self.w = self.sites.shape
        self.f, self.device, self.batch_size, self.q = f, device, batch_size, space.sizes[0]
        place = self.q ** torch.arange(self.w - 1, -1, -1, device=device)
        states = torch.arange(self.q**self.w, device=device)
        self.rows = (states.unsqueeze(1) // place % self.q).float()  # (R, w)
        self.place = place
        self.start = self._values(torch.zeros(1, space.dim, device=device))[0]
        self.U = torch.stack([self._values(self._with(r, self.rows)) for r in range(self.h)]) - self.start
        self.W = [self._coupling(r) for r in range(self.h if self.h > 2 else 1)]

    def _with(self, r: int, rows: Tensor, below: Tensor | None = None) -> Tensor:
        x = torch.zeros(len(rows), self.h * self.w, device=self.device)
        x[:, self.sites[r]] = rows
        if below is not None:
            x[:, self.sites[(r + 1) % self.h]] = below
        return x

    def _coupling(self, r: int) -> Tensor:
        """W_r, (R, R)."""
        R, below = len(self.rows), (r + 1) % self.h
        parts = []
        for some in torch.arange(R * R, device=self.device).split(self.batch_size):
            parts.append(self._values(self._with(r, self.rows[some // R], self.rows[some % R])))
        return torch.cat(parts).view(R, R) - self.start - self.U[r].unsqueeze(1) - self.U[below]

    def _values(self, x: Tensor) -> Tensor:
        return torch.cat([evaluated(self.f, part).double() for part in x.split(self.batch_size)])

    def worst(self, generator: torch.Generator) -> float:
        """The largest difference of f and its terms at random states, at which sites are 0 more or less often."""
        shape = (TRIALS, self.h * self.w)
        x = torch.randint(self.q, shape, generator=generator, device=self.device).float()
        share = torch.linspace(0, 1, TRIALS, device=self.device).unsqueeze(1)
        x = torch.where(torch.rand(shape, generator=generator, device=self.device) < share, x, 0.0)
        index = (x[:, self.sites].long() * self.place).sum(-1)  # (trials, h)
        terms = self.start + sum(self.U[r][index[:, r]] for r in range(self.h))
        for r, W in enumerate(self.W):
            terms = terms + W[index[:, r], index[:, (r + 1) % self.h]]
        values = self._values(x)
        worst, size = float((values - terms).abs().max()), 1 + float(values.abs().max())
        if worst > EXACT * self.h * size:
            raise ValueError(
                f"lattice: expected a sum of terms of neighbouring rows of {self.h} × {self.w} sites; log_potential "
                f"differs from it by up to {worst:.3g} at random states. Leave lattice= out for a bracket."
            )
        return worst

    def log_trace(self) -> Tensor:
        """f(0) + log tr Π T_r, each factor scaled to a largest entry of 1."""
        total, scale = torch.eye(len(self.rows), dtype=torch.float64, device=self.device), self.start
        for r in range(self.h):
            log_T = self.U[r].unsqueeze(1) + (self.W[r] if r < len(self.W) else 0.0)
            top = log_T.max()
            total = total @ (log_T - top).exp().expand(len(self.rows), -1)
            largest = total.max()
            total, scale = total / largest, scale + top + largest.log()
        return total.diagonal().sum().log() + scale


def _check(space: Space, height: int, width: int) -> None:
    if height < 2 or width < 1 or height * width != space.dim:
        raise ValueError(
            f"lattice: expected (height, width) of {space.dim} sites, 2 rows at least; got {(height, width)}."
        )
    sizes = set(space.sizes)
    if len(sizes) != 1 or not space.discretes:
        raise ValueError(f"lattice: expected discrete columns of one size; got {space!r}.")
    short, long = sorted((height, width))
    needed = space.sizes[0] ** (2 * short) * long
    if needed > MAX_TERMS:
        raise ValueError(
            f"lattice: expected a strip whose pairs of rows can be listed ({MAX_TERMS:,} values of f); got {needed:,} "
            f"for {height} × {width} sites of {space.sizes[0]} values. Leave lattice= out for a bracket."
        )
