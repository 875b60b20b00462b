r"""log Z from below and from above, by transitions that are all Metropolis-adjusted.

Annealing runs along f_t = (1 − t) log b + t f from a base b, whose rows are exact, up to f: the mean weight is unbiased
for Z, so log Z is underestimated; and from samples of f down to b: unbiased for 1/Z, so it is overestimated. A
normalised density q fitted to the samples gives two more sides, by draws of q and by samples of f.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor

from ctem.bases import FittedBase, ProductBase
from ctem.checking.pairs import FEW, SOME, PairChains, even_ladder
from ctem.checking.potential import Counted
from ctem.checking.record import Side
from ctem.densities.anyorder import AnyOrderDensity, Settings, fit_anyorder
from ctem.matching.kernels import Gaussian
from ctem.partition import LogZ
from ctem.partition.annealed import level_weights
from ctem.partition.log_z import estimate
from ctem.partition.sampled import annealed_weights, temperatures
from ctem.samplers import (
    MALA,
    Adapted,
    Alternate,
    AnnealedBits,
    BitTarget,
    Gibbs,
    LangevinFlips,
    MetropolisHastings,
    Move,
    PathFlips,
    Sampler,
    anneal_bits,
    find_couplings,
    run,
)
from ctem.samplers.bits import LevelDensity
from ctem.samplers.sampler import evaluated
from ctem.spaces import Real, Space

__all__ = ["Proposal", "annealed_side", "fitted_base", "wide_base"]

Base = FittedBase | ProductBase
MAX_PAIRED = 2500  # bits whose couplings are looked for
WIDE = 3.0  # deviations of the base on a real column that nothing is known of
BATCH = 2**14  # chains evaluated at once
ADAPTING = 60  # steps in which the size of a step is learned
SMALLEST = 1e-7  # s at which e^{−s} is 1


class Chains(Protocol):
    """Ways between a base and f by Metropolis-adjusted transitions."""

    def up(self, base: Base, n: int) -> tuple[Tensor, Tensor]:
        """log w of n chains from the base to f, and where they ended."""
        ...

    def down(self, base: Base, x: Tensor) -> Tensor:
        """log w of chains from samples x of f to the base."""
        ...

    def settle(self, x: Tensor, sweeps: int) -> Tensor:
        """The rows moved at f itself."""
        ...


class Steps:
    """Chains on any space: a step of all real columns, and a sweep of the discrete ones, at every level.

    Arguments:
        f: the log-potential.
        space: what a row is.
        levels: temperatures on the way.
        moves: at each of them.
        generator: the randomness.
    """

    def __init__(self, f: Counted, space: Space, levels: int, moves: int, generator: torch.Generator):
        self.f, self.space, self.generator, self.moves = f, space, generator, moves
        self.ladder = temperatures(levels)
        self.sampler: Sampler | None = None

    def up(self, base: Base, n: int) -> tuple[Tensor, Tensor]:
        """log w of n chains from the base to f, and where they ended."""
        x = base.sample(n, self.generator)
        if self.sampler is None:
            self.settle(x[evaluated(self.f, x).isfinite()], 0)
        return annealed_weights(self.f, base, self._sampler, x, self.ladder, self.generator, self.moves)

    def down(self, base: Base, x: Tensor) -> Tensor:
        """log w of chains from samples x of f to the base."""
        ladder = self.ladder[::-1]
        return annealed_weights(self.f, base, self._sampler, x, ladder, self.generator, self.moves)[0]

    def settle(self, x: Tensor, sweeps: int) -> Tensor:
        """The rows moved at f itself; the step of real columns is first adapted to an acceptance of .574 there."""
        if not len(x):
            raise ValueError("log_potential: expected a finite value at some row of a wide base; got none.")
        parts: list[Sampler] = [Gibbs(self.space) for _ in self.space.discretes]
        if self.space.reals:
            informed = self.f.has_gradient(x)
            adapted = Adapted(self._real_step(informed), step=0.1, target=0.574 if informed else 0.234)
            run(adapted, self.f, x, ADAPTING, self.generator)
            parts.insert(0, adapted.frozen())
        self.sampler = Alternate(*parts)
        return run(self.sampler, self.f, x, sweeps, self.generator).x if sweeps else x

    def _real_step(self, informed: bool) -> Callable[[float], Sampler]:
        if informed:
            return lambda step: MALA(self.space, step)
        return lambda step: MetropolisHastings(Gaussian(self.space, step))

    @property
    def _sampler(self) -> Sampler:
        assert self.sampler is not None
        return self.sampler


class Flips:
    """Chains on bits whose log-potential has a gradient in the codes: discrete Langevin, many flips at a time.

    A first, short run adapts the odds of a flip to an acceptance of .574 at every level, and spaces the levels so that
    the weights vary as much on each step of the way; then both are fixed. Arguments are those of :class:`Steps`.
    """

    def __init__(self, f: Counted, space: Space, levels: int, moves: int, generator: torch.Generator):
        self.f, self.generator, self.moves, self.count = f, generator, moves, levels
        self.levels: list[float] = []  # s, t = e^{−s}
        self.tuned: Callable[[float], list[LangevinFlips]] | None = None

    def up(self, base: Base, n: int) -> tuple[Tensor, Tensor]:
        """log w of n chains from the base to f, and where they ended."""
        path = self.path(base)
        self._learn(base, path)
        assert self.tuned is not None
        x = base.sample(n, self.generator)
        return level_weights(self.stations(base, path), x, self.tuned, self.generator)

    def down(self, base: Base, x: Tensor) -> Tensor:
        """log w of chains from samples x of f to the base, by the levels of the last way up."""
        assert self.tuned is not None
        stations = self.stations(base, self.path(base))[::-1]
        return level_weights(stations, x, self.tuned, self.generator)[0]

    def settle(self, x: Tensor, sweeps: int) -> Tensor:
        """The rows moved at f itself."""
        moves: list[Move] = [
            LangevinFlips(times=5 * max(2, sweeps), acceptance=0.574),
            PathFlips(times=max(2, sweeps), flips=2),
        ]
        return anneal_bits(lambda rows, s: self.f(rows), x, [1.0], moves, self.generator).x

    def _learn(self, base: Base, path: LevelDensity) -> None:
        """The step at each of FEW levels, and the deviation of f − log b there."""
        x, steps = base.sample(SOME, self.generator), [0.1]
        gaps, levels = [self._deviation(base, x)], [max(-math.log(t), SMALLEST) for t in FEW[1:]]
        for level in levels:
            moves = [LangevinFlips(times=10, step=steps[-1], acceptance=0.574)]
            out = anneal_bits(path, x, [level], moves, self.generator)
            x = out.x
            steps.append(out.steps[0][0] or steps[-1])
            gaps.append(self._deviation(base, x))
        learned = AnnealedBits(x, tuple(levels), (), tuple((step,) for step in steps[1:]), 0)
        self.tuned = learned.tuned([LangevinFlips(times=self.moves)])
        self.levels = [max(-math.log(t), SMALLEST) for t in even_ladder(FEW, gaps, self.count)[1:]]

    def _deviation(self, base: Base, x: Tensor) -> float:
        return float((evaluated(self.f, x) - evaluated(base.log_prob, x)).double().std())

    def path(self, base: Base) -> LevelDensity:
        """f_t at t = e^{−s}, with log b written as a linear function of the bits, which has a gradient."""
        odds, rest = base.log_table[:, 1] - base.log_table[:, 0], base.log_table[:, 0].sum()

        def f_t(x: Tensor, s: Tensor) -> Tensor:
            t = (-s).exp()
            return (1 - t) * (x @ odds.to(x) + rest.to(x)) + t * self.f(x)

        return f_t

    def stations(self, base: Base, path: LevelDensity) -> list[BitTarget]:
        """The laws on the way from the base to f."""
        ends = BitTarget(lambda x, s: base.log_prob(x), math.inf)
        return [ends, *(BitTarget(path, level, batch_size=BATCH) for level in self.levels)]


def chains_for(f: Counted, space: Space, levels: int, moves: int, generator: torch.Generator) -> Chains:
    """The chains that suit a log-potential."""
    rows = torch.randint(2, (2, space.dim), generator=generator, device=generator.device).float()
    if set(space.sizes) != {2} or not f.has_gradient(rows):
        return Steps(f, space, levels, moves, generator)
    couplings = find_couplings(f, space.dim, generator) if space.dim <= MAX_PAIRED else None
    if couplings is None:
        return Flips(f, space, levels, moves, generator)
    return PairChains(f, couplings, levels, moves, generator)


def wide_base(space: Space, x: Tensor | None, device: torch.device) -> Base:
    """Independent columns, far wider than the rows: where chains begin that should find every mode.

    >>> from ctem.spaces import Category
    >>> wide_base(Space([Category(4)]), None, torch.device("cpu")).log_prob(torch.zeros(1, 1)).exp()
    tensor([0.2500])
    """
    if not space.reals:
        return ProductBase(space).to(device)
    base = FittedBase(space)
    for j in space.reals:
        base.spread[j] = WIDE * (1.0 if x is None else float(x[:, j].std().clamp_min(1e-3)))
        if x is not None and j not in space.bounded:
            base.location[j] = float(x[:, j].mean())
    for j in space.discretes:
        base.log_table[j, : space.sizes[j]] = -math.log(space.sizes[j])
    return base.to(device)


def fitted_base(space: Space, x: Tensor) -> Base:
    """Independent columns as wide as the rows, or a little wider.

    >>> from ctem.spaces import Real
    >>> fitted_base(Space([Real()]), torch.randn(50, 1, generator=torch.Generator())).log_prob(torch.zeros(2, 1)).shape
    torch.Size([2])
    """
    return FittedBase(space, x) if space.reals else ProductBase.fit(space, x).to(x.device)


def annealed_side(log_w: Tensor, side: Literal["low", "high"]) -> Side:
    """The estimate of log Z by annealed weights: of Z on the way up, of 1/Z on the way down.

    >>> round(annealed_side(torch.ones(9, dtype=torch.float64), "low").value, 6)
    1.0
    """
    if side == "low":
        return _side(_quiet(log_w, "annealing up"), side)
    log_z = _quiet(log_w, "annealing down from samples")
    return _side(log_z._replace(value=-log_z.value), side)


class Proposal:
    """A normalised density q on encoded rows, fitted to rows by an any-order model.

    >>> from ctem.spaces import Category
    >>> space, g = Space([Category(2)] * 3), torch.Generator().manual_seed(0)
    >>> settings = Settings(width=16, blocks=1, members=1, orders=1, steps=20)
    >>> q = fit_proposal(space, torch.zeros(100, 3), settings, seed=0)
    >>> q.log_prob(q.sample(4, g)).shape
    torch.Size([4])
    """

    def __init__(self, density: AnyOrderDensity, location: Tensor, spread: Tensor):
        self.density, self.location, self.spread = density, location, spread

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n independent rows."""
        return self.location + self.spread * self.density.sample(n, generator)

    def log_prob(self, x: Tensor) -> Tensor:
        """log q(x), (n,)."""
        return self.density.log_prob((x - self.location) / self.spread) - self.spread.log().sum()


def fit_proposal(space: Space, x: Tensor, settings: Settings, seed: int) -> Proposal:
    """An any-order density fitted to rows, real columns standardised first."""
    location, spread = torch.zeros_like(x[0]), torch.ones_like(x[0])
    reals = list(space.reals)
    if reals:
        location[reals], spread[reals] = x[:, reals].mean(0), x[:, reals].std(0).clamp_min(1e-6)
    plain = Space([Real() if j in reals else column for j, column in enumerate(space.columns)])
    density = fit_anyorder(plain, (x - location) / spread, settings, seed=seed)
    return Proposal(density, location, spread)


def proposal_sides(
    f: Counted, q: Proposal | Base, x: Tensor, draws: int, generator: torch.Generator
) -> tuple[Side, ...]:
    """Importance sampling and the evidence bound by draws of q, and both the other way by samples x of f."""
    y = q.sample(draws, generator)
    low = _log_ratio(f, q, y)
    high = _log_ratio(f, q, x)
    forward, reverse = _quiet(low, "importance"), _quiet(-high, "reverse importance")
    return (
        _side(forward, "low"),
        _side(reverse._replace(value=-reverse.value), "high"),
        Side("ELBO", "low", float(low.mean()), float(low.std()) / math.sqrt(len(low)), float(len(low))),
        Side("EUBO", "high", float(high.mean()), float(high.std()) / math.sqrt(len(high)), float(len(high))),
    )


def _log_ratio(f: Counted, q: Proposal | Base, x: Tensor) -> Tensor:
    parts = x.split(4096)
    return torch.cat([evaluated(f, part).double() - evaluated(q.log_prob, part).double() for part in parts])


def _quiet(log_w: Tensor, method: str) -> LogZ:
    """An estimate whose few effective draws the verdict speaks of, not a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return estimate(log_w, method)


def _side(log_z: LogZ, side: Literal["low", "high"]) -> Side:
    return Side(log_z.method, side, log_z.value, log_z.stderr, log_z.ess)
