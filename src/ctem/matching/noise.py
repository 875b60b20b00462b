r"""Noise: reversible semigroups q_s(x|x0) that carry data to the base, one noise level s per column.

s = 0 is the data, s = ∞ the base: a column at s = ∞ is hidden. Reals and categories relax like e^{−s}:

* real: Ornstein–Uhlenbeck, x = e^{−s} x0 + √(1 − e^{−2s}) ξ, reversible with respect to N(0, 1);
* category: kept with probability e^{−s}, else redrawn from b;
* ordinal: the ±1 walk in continuous time with rates min(1, b_j/b_i), reversible with respect to b, its time
  scaled so that a uniform b has spectral gap 1 (one with gaps relaxes more slowly).
  Continuous time needs no laziness, and the spectrum gives q_s in closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ctem.bases import ProductBase

__all__ = ["Levels", "LogUniform", "Noise"]


def check_range(low: float, high: float) -> None:
    """Refuse levels that are no range."""
    if not 0 < low < high:
        raise ValueError(f"low, high: expected 0 < low < high; got {low}, {high}.")


@dataclass(frozen=True)
class Levels:
    """A schedule over finitely many levels, drawn uniformly.

    >>> Levels.log_spaced(0.005, 1.5, 13).values[0]
    0.005
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values or min(self.values) < 0:
            raise ValueError(f"values: expected levels ≥ 0; got {self.values}.")

    @classmethod
    def log_spaced(cls, low: float, high: float, count: int) -> Levels:
        """count levels from low to high, evenly spaced in log s; the paper's MNIST has 13 in [0.005, 1.5]."""
        check_range(low, high)
        if count < 2:
            raise ValueError(f"count: expected at least 2 levels; got {count}.")
        ratio = math.log(high / low) / (count - 1)
        return cls(tuple(low * math.exp(ratio * i) for i in range(count)))

    def draw(self, n: int, generator: torch.Generator, like: Tensor) -> Tensor:
        """n levels, shape (n,)."""
        which = torch.randint(len(self.values), (n,), generator=generator, device=like.device)
        level = like.new_full((n,), self.values[0])
        # copying a list to the device would end a graph's capture
        for k, value in enumerate(self.values[1:], 1):
            level = torch.where(which == k, value, level)
        return level


@dataclass(frozen=True)
class LogUniform:
    """A schedule with log s uniform between two levels.

    >>> LogUniform(0.01, 5.0).draw(3, torch.Generator().manual_seed(0), like=torch.zeros(1)).shape
    torch.Size([3])
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        check_range(self.low, self.high)

    def draw(self, n: int, generator: torch.Generator, like: Tensor) -> Tensor:
        """n levels, shape (n,)."""
        u = torch.rand(n, generator=generator, dtype=like.dtype, device=like.device)
        return self.low * (math.log(self.high / self.low) * u).exp()


class Noise(nn.Module):
    """The noising of a space towards its base, with exact transition log-densities.

    Levels are a tensor (n,), one level for the row, or (n, d), one per column; inf hides a column.

    >>> from ctem.spaces import Category, Real, Space
    >>> noise = Noise(ProductBase(Space([Real(), Category(2)])))
    >>> x0 = torch.tensor([[0.3, 1.0]])
    >>> x = noise.sample(x0, torch.tensor([0.0]), torch.Generator().manual_seed(0))
    >>> bool((x == x0).all())
    True
    >>> hidden = torch.tensor([math.inf])
    >>> bool(torch.isclose(noise.log_prob(x, x0, hidden), noise.base.log_prob(x)))
    True
    """

    rates: Tensor
    modes: Tensor
    ordinals: Tensor

    def __init__(self, base: ProductBase):
        super().__init__()
        self.base = base
        space = base.space
        columns = list(space.ordinals)
        row = {j: i for i, j in enumerate(space.discretes)}
        spectra = [_spectrum(base.log_table[row[j], : space.sizes[j]].cpu()) for j in columns]
        k = max((space.sizes[j] for j in columns), default=0)
        self.register_buffer("ordinals", torch.tensor(columns, dtype=torch.long), persistent=False)
        self.register_buffer("rates", torch.zeros(len(spectra), k, dtype=torch.float64), persistent=False)
        self.register_buffer("modes", torch.zeros(len(spectra), k, k, dtype=torch.float64), persistent=False)
        for i, (rate, mode) in enumerate(spectra):
            self.rates[i, : len(rate)] = rate
            self.modes[i, : len(rate), : len(rate)] = mode

    def sample(self, x0: Tensor, level: Tensor, generator: torch.Generator) -> Tensor:
        """x ~ q_s(·|x0) for rows x0 (n, d)."""
        s = self._per_column(x0, level)
        fresh = self.base.sample(len(x0), generator).to(x0.dtype)
        a = (-s).exp()
        x = a * x0 + (-torch.expm1(-2 * s)).sqrt() * fresh
        if self.base.space.discretes:
            u = torch.rand(x0.shape, generator=generator, dtype=x0.dtype, device=x0.device)
            x = torch.where(self.base.is_real, x, torch.where(u < a, x0, fresh))
        if len(self.ordinals):
            q = self._heat_kernel(x0, s)
            race = torch.empty_like(q).exponential_(generator=generator)
            x = x.index_copy(1, self.ordinals, (q / race).argmax(-1).to(x.dtype))
        return x

    def column_log_prob(self, x: Tensor, x0: Tensor, level: Tensor) -> Tensor:
        """log q_{s_j}(x_j|x0_j) for every column, shape (n, d)."""
        s = self._per_column(x0, level)
        spread = -torch.expm1(-2 * s)
        out = -0.5 * ((x - (-s).exp() * x0) ** 2 / spread + spread.log() + math.log(2 * math.pi))
        if self.base.space.discretes:
            redraw = torch.log(-torch.expm1(-s)) + self.base.column_log_prob(x)
            category = torch.where(x == x0, torch.logaddexp(-s, redraw), redraw)
            out = torch.where(self.base.is_real, out, category)
        if len(self.ordinals):
            at = x.index_select(1, self.ordinals).long().unsqueeze(-1)
            q = self._heat_kernel(x0, s).gather(-1, at).squeeze(-1)
            out = out.index_copy(1, self.ordinals, q.log().to(x.dtype))
        return out

    def log_prob(self, x: Tensor, x0: Tensor, level: Tensor) -> Tensor:
        """log q_s(x|x0), shape (n,)."""
        return self.column_log_prob(x, x0, level).sum(-1)

    def _per_column(self, x0: Tensor, level: Tensor) -> Tensor:
        return level.unsqueeze(-1).expand_as(x0) if level.ndim == 1 else level

    def _heat_kernel(self, x0: Tensor, s: Tensor) -> Tensor:
        """q_s(·|x0) of every ordinal column, shape (n, columns, k)."""
        column = torch.arange(len(self.ordinals), device=x0.device)
        start = x0.index_select(1, self.ordinals).long()
        level = s.index_select(1, self.ordinals).double().unsqueeze(-1)
        decay = torch.where(self.rates > 0, (-self.rates * level).exp(), 1.0)
        log_b = self.base.log_table[self.base.rows[self.ordinals]][:, : self.rates.shape[1]].double()
        spectral = torch.einsum("njm,jkm->njk", self.modes[column, start] * decay, self.modes)
        tilt = (0.5 * (log_b - log_b[column, start].unsqueeze(-1))).exp()
        return (spectral * tilt).clamp_min(1e-300)


def _spectrum(log_b: Tensor) -> tuple[Tensor, Tensor]:
    """Rates λ_m ≥ 0 and orthonormal modes of the symmetrised ±1 walk, in units of the gap under a uniform b."""
    b = log_b.double().exp()
    k = len(b)
    forward = torch.minimum(torch.ones(k - 1, dtype=torch.float64), b[1:] / b[:-1])  # rate i → i+1
    symmetric = forward * (b[:-1] / b[1:]).sqrt()  # equals √(rate i→i+1 · rate i+1→i)
    backward = forward * b[:-1] / b[1:]
    out = torch.zeros(k, dtype=torch.float64)
    out[:-1] += forward
    out[1:] += backward
    minus_q = torch.diag(out) - torch.diag(symmetric, 1) - torch.diag(symmetric, -1)
    rates, modes = torch.linalg.eigh(minus_q)
    if not rates[1] > 1e-10 * rates[-1]:
        raise ValueError(
            "base: an ordinal column has values of almost no probability in between; smooth it more."
        )
    rates[0] = 0.0
    return rates / (2 - 2 * math.cos(math.pi / k)), modes
