"""log Z from draws: importance sampling, and annealing in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ctem.energies import LogPotential
from ctem.partition.log_z import LogZ, estimate
from ctem.samplers.sampler import Sampler, evaluated

__all__ = [
    "Bracket",
    "Proposal",
    "log_z_annealed",
    "log_z_bracket",
    "log_z_importance",
    "tilt_bracket",
]


class Proposal(Protocol):
    """A density to draw from, such as :class:`~ctem.bases.ProductBase`.

    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Real, Space
    >>> proposal: Proposal = ProductBase(Space([Real()]))
    """

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n independent rows (n, d)."""
        ...

    def log_prob(self, x: Tensor) -> Tensor:
        """Normalised log-density (n,)."""
        ...


def log_z_importance(
    f: LogPotential, proposal: Proposal, n: int, generator: torch.Generator, batch_size: int = 65536
) -> LogZ:
    """log of the mean weight w = exp f(x) / q(x) over n draws from a proposal q.

    stderr by the delta method. Warns below 100 effective samples, where it is above 0.1.

    Arguments:
        f: the log-potential.
        proposal: q, with ``sample`` and ``log_prob``.
        n: number of draws.
        generator: the randomness.
        batch_size: rows evaluated at once.

    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Real, Space
    >>> base = ProductBase(Space([Real()]))
    >>> g = torch.Generator().manual_seed(0)
    >>> round(log_z_importance(lambda x: base(x) + 3, base, 1000, g).value, 6)
    3.0
    """
    _expect_several("n", n)
    log_w = [
        evaluated(f, x).double() - evaluated(proposal.log_prob, x).double()
        for x in proposal.sample(n, generator).split(batch_size)
    ]
    return estimate(torch.cat(log_w), "importance")


class Bracket(NamedTuple):
    """Two estimates of log Z that err to different sides: E lower ≤ log Z ≤ E upper.

    >>> low, high = LogZ(-0.1, 0.02, 500.0, "annealed"), LogZ(0.1, 0.02, 500.0, "reverse annealed")
    >>> Bracket(low, high).upper.value
    0.1
    """

    lower: LogZ
    upper: LogZ


def log_z_annealed(
    f: LogPotential,
    base: Proposal,
    sampler: Sampler,
    n_chains: int,
    generator: torch.Generator,
    *,
    levels: int | Sequence[float] = 200,
    moves: int = 1,
) -> LogZ:
    """Annealed importance sampling from a base b to exp f, along f_t = (1−t) log b + t f.

        log w = Σ_i (t_i − t_{i−1}) (f − log b)(x_{i−1}),     log Z ≈ log mean w

    w is unbiased for Z if the sampler leaves exp f_t invariant, so log Z is underestimated on average.
    Warns below 100 effective chains. Neal 2001.

    Arguments:
        f: the log-potential.
        base: b, with ``sample`` and ``log_prob``.
        sampler: what moves the chains between levels; an exact one (not :class:`~ctem.samplers.Langevin`).
        n_chains: number of chains.
        generator: the randomness.
        levels: number of equal increments of t, or the values of t themselves, rising from 0 to 1.
        moves: sampler steps at each level.

    >>> import math
    >>> from ctem.bases import ProductBase
    >>> from ctem.samplers import MALA
    >>> from ctem.spaces import Real, Space
    >>> space = Space([Real()])
    >>> g = torch.Generator().manual_seed(0)
    >>> log_z = log_z_annealed(lambda x: -2 * x[:, 0] ** 2, ProductBase(space), MALA(space, 0.2), 500, g)
    >>> abs(log_z.value - math.log(math.pi / 2) / 2) < 4 * log_z.stderr
    True
    """
    _expect_several("n_chains", n_chains)
    x = base.sample(n_chains, generator)
    log_w, _ = annealed_weights(f, base, sampler, x, temperatures(levels), generator, moves)
    return estimate(log_w, "annealed")


def log_z_bracket(
    f: LogPotential,
    base: Proposal,
    sampler: Sampler,
    x: Tensor,
    generator: torch.Generator,
    *,
    levels: int | Sequence[float] = 200,
    moves: int = 1,
) -> Bracket:
    """Annealing up to exp f and from samples of it back down to the base: E lower ≤ log Z ≤ E upper.

    Down, w is unbiased for 1/Z if the rows are exact samples, so that −log mean w overestimates log Z on average. Far
    apart, the two mean that the path is too short or the sampler too slow. Grosse et al. 2015 (BDMC).

    Arguments:
        x: (nearly) exact, independent samples of exp f, shape (n, d): one chain each, and as many upwards.
        f, base, sampler, generator, levels, moves: as in :func:`log_z_annealed`.

    >>> from ctem.bases import ProductBase
    >>> from ctem.samplers import Gibbs
    >>> from ctem.spaces import Category, Space
    >>> space = Space([Category(2)])
    >>> bracket = log_z_bracket(
    ...     lambda x: 0 * x[:, 0], ProductBase(space), Gibbs(space), torch.zeros(200, 1), torch.Generator()
    ... )
    >>> round(bracket.lower.value, 4), round(bracket.upper.value, 4)
    (0.6931, 0.6931)
    """
    lower = log_z_annealed(f, base, sampler, len(x), generator, levels=levels, moves=moves)
    log_w, _ = annealed_weights(f, base, sampler, x, temperatures(levels)[::-1], generator, moves)
    upper = estimate(log_w, "reverse annealed")
    return Bracket(lower, upper._replace(value=-upper.value))


def tilt_bracket(g: LogPotential, draws: Tensor, rows: Tensor, batch_size: int = 65536) -> Bracket:
    """log Z of b e^g, Z = E_b e^g, from both sides: E lower ≤ log Z ≤ E upper.

        lower = log mean e^g over draws of b,     upper = −log mean e^{−g} over rows of ρ = b e^g / Z

    The second is as good as the rows: held-out data if the model is right, or draws of ρ. Far apart, or crossed, they
    show that the draws are too few or that the rows are not of ρ. The base itself is not evaluated.

    Arguments:
        g: what an energy adds to log b.
        draws: of b, (n, d), that g was not learned from.
        rows: of ρ, (k, d), that g was not learned from.
        batch_size: rows evaluated at once.

    >>> rows = torch.zeros(200, 1)
    >>> [round(side.value, 6) for side in tilt_bracket(lambda x: x[:, 0] + 3, rows, rows)]
    [3.0, 3.0]
    """
    _expect_several("draws", len(draws))
    _expect_several("rows", len(rows))
    low, high = (
        torch.cat([evaluated(g, part).double() for part in x.split(batch_size)]) for x in (draws, rows)
    )
    above = estimate(-high, "reverse importance")
    return Bracket(estimate(low, "importance"), above._replace(value=-above.value))


def annealed_weights(
    f: LogPotential,
    base: Proposal,
    sampler: Sampler,
    x: Tensor,
    temperatures: Sequence[float],
    generator: torch.Generator,
    moves: int = 1,
) -> tuple[Tensor, Tensor]:
    """log w of each chain, and where it ended; the temperatures run up for Z and down for 1/Z."""
    if moves < 1:
        raise ValueError(f"moves: expected at least 1; got {moves}.")
    log_w = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for i in range(1, len(temperatures)):
        gap = evaluated(f, x).double() - evaluated(base.log_prob, x).double()
        log_w += (temperatures[i] - temperatures[i - 1]) * gap
        if i == len(temperatures) - 1:
            break  # the last weight is taken: nothing depends on a further move
        path = _path(f, base, temperatures[i])
        for _ in range(moves):
            x, _ = sampler.step(path, x, generator)
    return log_w, x


def _path(f: LogPotential, base: Proposal, t: float) -> LogPotential:
    return lambda x: (1 - t) * base.log_prob(x) + t * f(x)


def temperatures(levels: int | Sequence[float]) -> list[float]:
    """The values of t from 0 to 1."""
    if isinstance(levels, int):
        if levels < 1:
            raise ValueError(f"levels: expected at least 1; got {levels}.")
        return [i / levels for i in range(levels + 1)]
    values = [float(t) for t in levels]
    rising = all(a < b for a, b in pairwise(values))
    if len(values) < 2 or values[0] != 0 or values[-1] != 1 or not rising:
        raise ValueError(f"levels: expected numbers that rise from 0 to 1; got {values}.")
    return values


def _expect_several(name: str, n: int) -> None:
    if n < 2:
        raise ValueError(f"{name}: expected at least 2 draws, for an error bar; got {n}.")
