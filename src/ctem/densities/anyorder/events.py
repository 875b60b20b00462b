r"""Probabilities of events and draws within them: importance sampling by the density's own conditionals.

An event restricts some columns to codes or intervals. Particles fill the columns of the event
first, each drawn from its conditional within what is allowed, and then the others. A particle's weight is

    w = ρ_c(x) / q_c(x),      P(event) = E[w],

with ρ_c the density of its component in the component's own order of the columns, and q_c that of the draw. The two
differ by the share of each conditional that the event allows, and by how far the network's conditionals disagree
between orders, which is little. Between the columns of the event, particles are resampled where their weights have
become uneven. Islands of particles do so each by itself; the spread of their means is the standard error, or that of
the weights where it is larger: few islands may agree by chance, and who stops when they do would believe too much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ctem.densities.anyorder.apart import slots_of
from ctem.densities.anyorder.conditionals import NumberDensity
from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.anyorder.numbers import FAR
from ctem.densities.chain import Conditional
from ctem.densities.choices import choose

__all__ = ["Event", "Particles", "Probability", "conditioned", "draw_allowed", "estimate", "resampled"]

ISLANDS = 8  # of one pass
SMALLEST, LARGEST = 32, 256  # particles of an island
UNEVEN = 0.5  # effective share of an island's particles below which they are resampled
DRAWS, NODES = 12, 36  # nodes of a grid for a real column: drawn ones, and even ones
TRIFLE = 0.01  # of a tied cell
DEFENCE = 0.02  # share of a grid's draws that is uniform, so that no weight is without bound


@dataclass(frozen=True)
class Event:
    """What encoded columns may hold.

    Arguments:
        allowed: for a discrete column log-weights (k,) of its codes, or of all its labels where those of a code are
            kept apart, −inf for those that are not allowed; for a real column intervals (m, 2), apart from each other
            and increasing.

    >>> Event({0: torch.tensor([0.0, -math.inf])}).columns
    [0]
    """

    allowed: Mapping[int, Tensor]

    @property
    def columns(self) -> list[int]:
        """The columns that it is about."""
        return list(self.allowed)


class Particles(NamedTuple):
    """Weighted rows of an event: E[w f(x)] = E[f(x); event].

    >>> Particles(torch.zeros(4, 2), torch.zeros(2, 2)).log_weight.exp().mean()
    tensor(1.)
    """

    x: Tensor  # (islands · size, d)
    log_weight: Tensor  # (islands, size), float64


class Probability(NamedTuple):
    """A probability, its standard error, and the effective number of draws that it rests on.

    ``networks`` is the part of the standard error by which the networks of the density disagree: more draws do not make
    it smaller, more rows do. ``of_draws`` is the rest.

    >>> round(Probability(0.25, 0.05, 1000.0, networks=0.04).of_draws, 6)
    0.03
    >>> print(Probability(0.471133, 0.01156, 1242.1))
    0.471 ± 0.012, from 1242 effective draws
    >>> print(Probability(0.159463, 0.00068, 1892.0))
    0.1595 ± 0.0007, from 1892 effective draws
    """

    value: float
    stderr: float
    ess: float
    networks: float = 0.0

    @property
    def of_draws(self) -> float:
        """The standard error of the draws alone."""
        if not self.networks:
            return self.stderr
        return math.sqrt(max(self.stderr**2 - self.networks**2, 0.0))

    def __str__(self) -> str:
        if not self.stderr:
            return f"{self.value:.3g}"
        first = math.log10(self.stderr / 3) if self.stderr < math.inf else -2  # two digits below 3, else one
        places = max(0, -math.floor(first))
        return f"{self.value:.{places}f} ± {self.stderr:.{places}f}, from {self.ess:.0f} effective draws"


def conditioned(
    density: AnyOrderDensity, known: Tensor, event: Event, generator: torch.Generator, n: int = 2048
) -> Particles:
    """About n particles of an event, at most 2048, given the cells of one row ``known`` (1, d); nan cells are drawn.

    >>> from ctem.densities.anyorder import AnyOrderNet
    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Category, Space
    >>> net = AnyOrderNet(ProductBase(Space([Category(2)] * 2)), width=8)  # untrained: the base itself
    >>> density = AnyOrderDensity(net, 1e-3, [[0, 1]])
    >>> event = Event({1: torch.tensor([-math.inf, 0.0])})
    >>> found = conditioned(density, torch.full((1, 2), math.nan), event, torch.Generator().manual_seed(0))
    >>> round(estimate([found]).value, 3), found.x[:, 1].unique()
    (0.5, tensor([1.]))
    """
    size = min(max(-(-n // ISLANDS), SMALLEST), LARGEST)
    if density.is_tied(event.columns):
        return _plain_draws(density, known, event, generator, size)
    return _Swarm(density, known, event, generator, size).run()


def _plain_draws(
    density: AnyOrderDensity, known: Tensor, event: Event, generator: torch.Generator, size: int
) -> Particles:
    """Draws of whole rows, weighed by whether they are in the event.

    A column of the event that is tied to others by a formula cannot be drawn before them: its exact part would be lost.
    """
    x = density.drawn(known.repeat(ISLANDS * size, 1), generator)
    log_weight = density.log_tilt(x)
    for j, allowed in event.allowed.items():
        log_weight = log_weight + _log_allowed(x[:, j], allowed, density.space.sizes[j])
    return Particles(x, log_weight.view(ISLANDS, size))


def _log_allowed(value: Tensor, allowed: Tensor, size: int) -> Tensor:
    """The log-weight of every value (n,) of a column of so many codes; 0 where the column does not exist."""
    if size:
        known = value.nan_to_num()
        return allowed.double()[
            known.long() if len(allowed) == size else slots_of(known, len(allowed) - size + 1)
        ]
    inside = (value.unsqueeze(1) >= allowed[:, 0]) & (value.unsqueeze(1) <= allowed[:, 1])
    return torch.where(inside.any(1) | value.isnan(), 0.0, -math.inf).double()


def estimate(particles: list[Particles]) -> Probability:
    """P(event) from particles.

    >>> found = Particles(torch.zeros(4, 1), torch.tensor([[0.5, 0.5], [0.4, 0.6]]).double().log())
    >>> value, stderr, *_ = estimate([found])
    >>> round(value, 3), round(stderr, 3)
    (0.5, 0.041)
    """
    log_weight = torch.cat([swarm.log_weight for swarm in particles])
    weight = log_weight.exp()
    islands = weight.mean(1)
    spread = float(islands.std()) / math.sqrt(len(islands)) if len(islands) > 1 else math.inf
    stderr = max(spread, float(weight.std()) / math.sqrt(weight.numel()))
    return Probability(float(islands.mean()), stderr, float(_effective(log_weight.flatten())))


def resampled(particles: list[Particles], n: int, generator: torch.Generator) -> Tensor:
    """n rows (n, d) in random order, each taken as often as its weight asks for, up to one more or less.

    >>> found = Particles(torch.arange(4.0)[:, None], torch.tensor([[0.0, 1.0], [0.0, 1.0]]).double().log())
    >>> resampled([found], 2, torch.Generator().manual_seed(0)).flatten().sort().values
    tensor([1., 3.])
    """
    x = torch.cat([swarm.x for swarm in particles])
    log_weight = torch.cat([swarm.log_weight.flatten() for swarm in particles])
    rows = _systematic(log_weight.unsqueeze(0), n, generator).squeeze(0)
    order = torch.randperm(n, generator=generator, device=x.device)
    return x[rows[order]]


class _Swarm:
    """One pass: particles on their way through the columns."""

    def __init__(
        self, density: AnyOrderDensity, known: Tensor, event: Event, generator: torch.Generator, size: int
    ):
        self.density, self.event, self.generator, self.size = density, event, generator, size
        self.known = (~known[0].isnan()).nonzero().flatten().tolist()
        n = ISLANDS * size
        self.x = known.repeat(n, 1)
        self.order = torch.multinomial(self._shares(known), n, True, generator=generator)
        self.log_weight = self.x.new_zeros(n, dtype=torch.float64)
        self.log_prob = torch.zeros_like(
            self.log_weight
        )  # of what was drawn, each given what was drawn before

    def run(self) -> Particles:
        """The columns of the event, then the others."""
        with torch.no_grad():
            for step in range(len(self.event.columns)):
                if step:
                    self._resample()
                self._constrain(step)
            self._complete()
        return Particles(self.x, self.log_weight.view(ISLANDS, self.size))

    def _shares(self, known: Tensor) -> Tensor:
        """Each order's share of the density of the known cells, (orders,)."""
        chain = self.density.chain
        with torch.no_grad():
            orders = [[j for j in order if j in self.known] for order in self.density.orders]
            return chain.log_probs(known, orders)[:, 0].double().softmax(0)

    def _constrain(self, step: int) -> None:
        """Draw the next column of the event within what is allowed, in each particle's order."""
        for c, order in enumerate(self.density.orders):
            j = [column for column in order if column in self.event.allowed][step]
            there = self.order == c
            if j in self.density.parents:  # the continuous part of an atom does not exist
                there &= ~(self.x[:, self.density.parents[j]] > 0)
            for rows in there.nonzero().squeeze(1).split(LARGEST):
                visible = ~self.x[rows].isnan()
                conditional = self.density.chain.conditionals.given(self.x[rows].nan_to_num(), visible, j)
                value, log_share = draw_allowed(conditional, self.event.allowed[j], self.generator)
                self.x[rows, j] = value
                self.log_weight[rows] += log_share.double()
                self.log_prob[rows] += conditional.log_prob(value).double()

    def _complete(self) -> None:
        """Draw the other columns, and weigh: the particle's own order against that of the draws."""
        chain = self.density.chain
        for c, order in enumerate(self.density.orders):
            rows = (self.order == c).nonzero().squeeze(1)
            if len(rows):
                drawn = chain.sample(len(rows), self.generator, order, self.x[rows])
                asked = [j for j in order if j not in self.known]
                log_prob = chain.log_prob(drawn.x, asked, self.known).double()
                self.x[rows] = drawn.x
                self.log_weight[rows] += log_prob - self.log_prob[rows] - drawn.log_prob.double()
        self.log_weight += self.density.log_tilt(self.x)

    def _resample(self) -> None:
        """In islands of uneven weights, particles by their weights, and even weights that keep the island's mean."""
        log_weight = self.log_weight.view(ISLANDS, self.size)
        uneven = _effective(log_weight) < UNEVEN * self.size
        chosen = _systematic(log_weight, self.size, self.generator)
        stay = torch.arange(self.size, device=chosen.device)
        rows = torch.where(uneven.unsqueeze(1), chosen, stay)
        rows = (rows + self.size * torch.arange(ISLANDS, device=rows.device).unsqueeze(1)).flatten()
        mean = (log_weight.logsumexp(1) - math.log(self.size)).unsqueeze(1)
        self.log_weight = torch.where(uneven.unsqueeze(1), mean, log_weight).flatten()
        self.x, self.order, self.log_prob = self.x[rows], self.order[rows], self.log_prob[rows]


def draw_allowed(law: Conditional, allowed: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A value for each row within what is allowed, and the logarithm of its weight, both (n,).

    E[w f(value)] = Σ ρ(v) a(v) f(v) over codes v of weight a(v), or ∫ ρ f over the intervals.

    >>> from ctem.densities.chain import Probabilities
    >>> found = Probabilities(torch.tensor([[0.25, 0.75]]).log())
    >>> value, log_share = draw_allowed(found, torch.tensor([0.0, -math.inf]), torch.Generator())
    >>> value, log_share.exp()
    (tensor([0.]), tensor([0.2500]))
    """
    if isinstance(law, NumberDensity):
        return _draw_within(law, allowed.to(law.found), generator)
    values, log_p = law.table()
    log_p = log_p + allowed
    place = choose(log_p.softmax(1), generator)
    return values[place], log_p.logsumexp(1)


def _draw_within(law: NumberDensity, intervals: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """By a histogram of the density on nodes that follow it. A closed form would make every weight the mass."""
    nodes = _nodes(law, intervals, generator)
    log_p = law.at(nodes)
    middle, width = (nodes[:, 1:] + nodes[:, :-1]) / 2, nodes.diff(dim=1)
    inside = (middle.unsqueeze(2) > intervals[:, 0]) & (middle.unsqueeze(2) < intervals[:, 1])
    log_height = torch.logaddexp(log_p[:, 1:], log_p[:, :-1]) - math.log(2)
    log_height = torch.where(inside.any(2) & (width > 0), log_height, -math.inf)
    log_total = (log_height + width.log()).logsumexp(1, keepdim=True)
    even = torch.where(torch.isneginf(log_height), 0.0, width)
    share = (1 - DEFENCE) * (log_height + width.log() - log_total).exp().nan_to_num() + DEFENCE * (
        even / even.sum(1, keepdim=True)
    )
    cell = choose(share, generator).unsqueeze(1)
    u = torch.rand(cell.shape, generator=generator, dtype=nodes.dtype, device=nodes.device)
    wide = width.gather(1, cell)
    value = (nodes.gather(1, cell) + u * wide).squeeze(1)
    log_q = (share.gather(1, cell).log() - wide.log()).squeeze(1)
    return value, law.log_prob(value) - log_q


def _nodes(law: NumberDensity, intervals: Tensor, generator: torch.Generator) -> Tensor:
    """Even nodes in the intervals and draws, moved to the nearest end where they lie outside; sorted, (n, q)."""
    n, count = len(law.mean), max(2, NODES // len(intervals) + 1)
    t = torch.linspace(0, 1, count, dtype=intervals.dtype, device=intervals.device)
    even = (intervals[:, :1] + t * intervals.diff(dim=1)).flatten()
    index = torch.arange(n, device=intervals.device).repeat_interleave(DRAWS)
    drawn = law.rows(index).draw(generator).view(n, DRAWS)
    drawn = drawn if law.tied is None else torch.cat([drawn, _around(law.tied.ends)], 1)
    drawn = drawn if law.limits is None else torch.cat([drawn, _around(law.limits.ends.unsqueeze(1))], 1)
    near = drawn.unsqueeze(2).clamp(intervals[:, 0], intervals[:, 1])  # (n, draws, m)
    best = (near - drawn.unsqueeze(2)).abs().argmin(2, keepdim=True)
    return torch.cat([even.expand(n, -1), near.gather(2, best).squeeze(2)], 1).sort(1).values


def _around(ends: Tensor) -> Tensor:
    """Both sides of both ends of every cell (n, slots, 2), for a histogram to follow it; 0 for none: (n, 4 · slots)."""
    low, high = ends.unbind(-1)
    trifle = ((high - low) * TRIFLE).clamp_max(TRIFLE)
    return torch.cat([low - trifle, low, high, high + trifle], 1).nan_to_num(posinf=FAR, neginf=-FAR)


def _systematic(log_weight: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Places (…, n) of n draws by weights (…, k), one uniform number for each row."""
    share = log_weight.softmax(-1).cumsum(-1)
    start = torch.rand(len(share), 1, generator=generator, dtype=share.dtype, device=share.device)
    at = (start + torch.arange(n, device=share.device)) / n
    return torch.searchsorted(share.contiguous(), at * share[:, -1:]).clamp(max=log_weight.shape[-1] - 1)


def _effective(log_weight: Tensor) -> Tensor:
    """(Σ w)² / Σ w² along the last axis."""
    return (2 * log_weight.logsumexp(-1) - (2 * log_weight).logsumexp(-1)).exp()
