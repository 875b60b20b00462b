r"""An energy on top of a density that can be drawn from: ρ(x) = b(x) e^{g(x)} / Z.

A row z of the data is compared with z̃ drawn from b, that is k(z̃ | z) = b(z̃). With f = log b + g

    Δ = f(z) − f(z̃) + log k(z̃ | z) − log k(z | z̃) = g(z) − g(z̃)

and the target is constant: constant-target energy matching, whose minimum is g = log ρ/b + const. Trees learn its
pooled form (``boosting``), in rounds: each separates the data from draws that are weighted by what was learned so far;
networks learn pairs (``networks``), in a last round or in the only one.
Z = E_b e^g is estimated by draws that no round has seen, and so is the gain on rows that neither b nor g has seen,

    gain = mean g(held-out rows) − log mean e^{g(fresh draws)},

which needs no constant. An energy is kept only if it gains by more than two standard errors, and a thousandth of a nat.
Draws of ρ are accepted draws of b, so that e^g / Z needs a ceiling: g itself is cut there, before Z is estimated, and
what scores a row is what draws it. A last sum of trees, one for each column, gives draws the margins of the data.

Where cells are hidden, ρ(x_V) = b(x_V) E[e^g / Z | x_V], the mean over the hidden cells as b draws them. A second sum
of trees learns the logarithm of that mean from draws of b alone, with cells hidden at random.

References: M. Gutmann, A. Hyvärinen, Noise-contrastive estimation, 2010; Y. Deng et al., Residual energy-based models
for text generation, 2020; S. Azadi et al., Discriminator rejection sampling, 2019; J. Bravo, NRGBoost, 2025.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.densities.presence import gaps
from ctem.densities.tilted.boosting import Boosting
from ctem.densities.tilted.margins import levelled
from ctem.densities.tilted.networks import Networks, compared
from ctem.densities.tilted.plan import FEWEST_FRESH, MASKS, Base, Pace, Plan, filled
from ctem.densities.tilted.trees import Trees
from ctem.partition.log_z import LogZ, estimate
from ctem.training import Recipe

__all__ = ["Energy", "fit_energy"]

Part = Trees | Networks
Snap = Callable[[Tensor], Tensor]
Recut = Callable[[int, Tensor], Tensor]
# real column → for each code of its category, the number that the code stands for
Atoms = Mapping[int, Tensor]
SURE = 2.0  # standard errors by which an energy must gain
LEAST = 1e-3  # nats that it must gain: less is not worth its seconds
CUT = 5e-3  # share of ρ that may lie above the ceiling of e^g / Z
HIGHEST = 16.0  # that ceiling, at most
APART = 2.0  # times that, at most, by draws other than those that the ceiling was found by
HALVINGS = 40  # of an interval, to find it
PRECISE = 3e-3  # standard error of log Z, in nats
SPARE = 1.05  # times as many draws as seem to be needed
BATCH = 2**15  # draws at a time
SPENT = 0.8  # share of the time that is left which a larger plan should take
LEARNING = Recipe(
    batch_size=512, learning_rate=1e-3, weight_decay=0.1, ema=0.99, evaluate_every=100, patience=5
)
RATE = 0.2  # of the boosting of the mean over hidden cells
PATIENCE = 15  # trees of it without a better held-out loss


@dataclass(frozen=True)
class Energy:
    """g(x) − log Z of whole rows, and the same for rows with hidden cells.

    Arguments:
        rounds: sums of trees whose sum is g, cut at the ceiling.
        partial: log E[e^g / Z | visible cells].
        log_z: log E_b e^g.
        ceiling: the largest g − log Z; g is cut there.
        gain, stderr: nats a held-out row gained, and their standard error.
        atoms: real column → for each code of its category, the number that the code stands for.
        parents: real column → that category.
        networks: what networks add to g.
        margins: what is added to g after that, before it is cut once more.

    >>> none = Trees.build([[0.0]], [], [], [], bias=0.0)
    >>> Energy((none,), none, LogZ(0.0, 0.0, math.inf, "none"), 0.0, 0.0, 0.0, {}, {})(torch.zeros(2, 1))
    tensor([0., 0.], dtype=torch.float64)
    """

    rounds: tuple[Trees, ...]
    partial: Trees
    log_z: LogZ
    ceiling: float
    gain: float
    stderr: float
    atoms: Atoms
    parents: Mapping[int, int]
    networks: Networks | None = None
    margins: Trees | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """log ρ/b of rows (n, d) with nan where a cell is hidden: g(x) − log Z of whole ones; float64 (n,)."""
        partly, seen = gaps(x, self.parents).any(1), self.seen(x)
        if not bool(partly.any()):
            return self._whole(lambda part: part(seen))
        out = self.partial(seen)
        out[~partly] = self._whole(lambda part: part(seen[~partly]))
        return out

    def _whole(self, of: Callable[[Part], Tensor]) -> Tensor:
        """g − log Z, from what is asked of every part."""
        g = _Tilt(self._learned, self.log_z.value + self.ceiling, self.margins)
        return g.of(of) - self.log_z.value

    @property
    def _learned(self) -> tuple[Part, ...]:
        """What g is the sum of, before its margins."""
        return self.rounds if self.networks is None else (*self.rounds, self.networks)

    def grad(self, x: Tensor) -> Tensor:
        """∂g / ∂x of whole rows (n, d), 0 of others: only networks are not constant between cuts, below the ceiling."""
        if self.networks is None:
            return torch.zeros_like(x)
        rows = self.seen(x).clone().requires_grad_()
        (found,) = torch.autograd.grad(self.networks(rows).sum(), rows)
        flat = gaps(x, self.parents).any(1) | (self(x) >= self.ceiling)
        return torch.where(flat.unsqueeze(1) | x.isnan(), 0.0, found)

    def seen(self, x: Tensor) -> Tensor:
        """Rows as the trees see them: a number that is written as a code is a number, too."""
        return _seen(x, self.atoms, self.parents)

    def terms(self, x: Tensor) -> Tensor:
        """What each observed cell adds to log ρ/b, (n, d) float64; what none adds is spread evenly over them."""
        seen, partly = self.seen(x), gaps(x, self.parents).any(1)
        added = torch.stack([part.shares(seen) for part in (*self._learned, self.margins) if part]).sum(0)
        if bool(partly.any()):
            added[partly] = self.partial.shares(seen[partly])
        for child, parent in self.parents.items():
            away = x[:, child].isnan()
            added[:, parent] += torch.where(away, added[:, child], 0.0)
            added[:, child] = torch.where(away, 0.0, added[:, child])
        known = ~x.isnan()
        added = torch.where(known, added, 0.0)
        return added + known * ((self(x) - added.sum(1)) / known.sum(1).clamp_min(1)).unsqueeze(1)

    def at_values(self, x: Tensor, owner: Sequence[int], values: Tensor) -> Tensor:
        """log ρ/b of each row with one column at each of some values (q, len(owner)): (n, q), float64.

        Arguments:
            owner: one encoded column; or a category and the real part of its code 0.
        """
        other = x.clone()
        other[:, list(owner)] = 0.0
        partly = gaps(other, self.parents).any(1)
        seen = self.seen(other)
        out = torch.zeros(len(x), len(values), dtype=torch.float64, device=x.device)
        here = (
            values[:, 0] == 0
            if len(owner) == 2
            else torch.ones(len(values), dtype=torch.bool, device=x.device)
        )
        j, some = owner[-1], values[here, -1]
        if bool(partly.any()):
            out[partly.nonzero(), here.nonzero().T] = self.partial.at(seen[partly], j, some)
        if not bool(partly.all()):
            whole = self._whole(lambda part: part.at(seen[~partly], j, some))
            out[(~partly).nonzero(), here.nonzero().T] = whole
        for q in (~here).nonzero().flatten().tolist():
            other[:, list(owner)] = values[q]
            out[:, q] = self(other)
        return out

    def summary(self) -> dict[str, float]:
        """What is known of it as plain numbers."""
        learned = {
            "trees": self.trees,
            "networks": 0 if self.networks is None else self.networks.nets.members,
        }
        log_z = {"log_z": self.log_z.value, "log_z_stderr": self.log_z.stderr}
        return {
            **learned,
            "gain": self.gain,
            "stderr": self.stderr,
            **log_z,
            "acceptance": self.acceptance,
        }

    @property
    def trees(self) -> int:
        """How many trees g has."""
        return sum(each.count for each in (*self.rounds, self.margins) if each)

    @property
    def acceptance(self) -> float:
        """The share of b's draws that become draws of ρ."""
        return math.exp(-self.ceiling)

    def __str__(self) -> str:
        several = "" if self.networks is None else f"{self.networks.nets.members} networks"
        learned = " and ".join(filter(None, [f"{self.trees} trees" if self.rounds else "", several]))
        return (
            f"an energy of {learned} gains {self.gain:.3f} ± {self.stderr:.3f} nats on held-out rows; "
            f"log Z = {self.log_z.value:.4f} ± {self.log_z.stderr:.4f}, {self.acceptance:.0%} of draws are accepted"
        )


def fit_energy(
    base: Base,
    rows: Tensor,
    held_out: Tensor,
    sizes: Sequence[int],
    plan: Plan,
    *,
    parents: Mapping[int, int] | None = None,
    atoms: Atoms | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    weights: Tensor | None = None,
    snap: Snap = lambda x: x,
    recut: Recut = lambda j, cuts: cuts,
    seed: int = 0,
    until: float | None = None,
) -> Energy | None:
    """The energy that separates rows from draws of b; None if it does not gain on held-out rows.

    Arguments:
        base: b.
        rows: of the data (n, d); hidden cells are filled in by b, as in a step of EM.
        held_out: rows that neither b nor the energy has seen (h, d).
        sizes: of the columns, 0 for numbers.
        plan: how long.
        parents: for a real column that exists only where a category has code 0, that category.
        atoms: for such a column and each code of its category, the number that the code stands for.
        groups: encoded columns that are hidden together; each by itself when left out.
        weights: of the rows (n,).
        snap: puts drawn rows where rows of the data can be: rounds rounded columns.
        recut: moves the cuts of a column so that none divides a cell of rounded values.
        seed: of everything random.
        until: moment of ``time.perf_counter`` at which it should end; fewer rows and trees fit into less time.

    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Category, Space
    >>> class Coins(ProductBase):
    ...     complete = None
    >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).repeat(500, 1)
    >>> base = Coins(Space([Category(2)] * 2))
    >>> found = fit_energy(base, x[:800], x[800:], [2, 2], Plan(rate=0.1, trees=50, fresh=2000))
    >>> found.gain > 0.6  # log 2 at best
    True
    """
    about = dict(parents or {}), dict(atoms or {}), groups, weights, snap, recut
    plan = plan.sized(len(sizes), len(rows))
    if not plan.learns or (until is not None and time.perf_counter() >= until):
        return None
    fit = _Fit(base, rows, held_out, sizes, plan, *about, seed, until)
    return fit.run() if until is None else fit.in_time(until)


@dataclass(frozen=True)
class _Fit:
    """One call of ``fit_energy``."""

    base: Base
    rows: Tensor
    held_out: Tensor
    sizes: Sequence[int]
    plan: Plan
    parents: Mapping[int, int]
    atoms: Atoms
    groups: Sequence[Sequence[int]] | None
    weights: Tensor | None
    snap: Snap
    recut: Recut
    seed: int
    until: float | None

    def in_time(self, until: float) -> Energy | None:
        """The energy of as many rows as there is time for; and of more, if they took less than was thought."""
        generator = torch.Generator(self.rows.device).manual_seed(self.seed)
        pace = Pace.of(self.base, generator, self.rows, self.parents)
        left = max(self._left(), 0.0)
        held = len(self.held_out) if pace.fill == 0 else min(len(self.held_out), int(left / 4 / pace.fill))
        plan = self.plan.within(left - held * pace.fill, pace, len(self.sizes))
        fit, best = replace(self, held_out=self.held_out[:held]), None
        while plan.learns and held:
            began = time.perf_counter()
            found = replace(fit, plan=plan).run()
            if found is not None and (best is None or found.gain > best.gain):
                best = found
            times = SPENT * self._left() / (time.perf_counter() - began)
            more = plan.larger(times, self.plan)
            if times < 2 or more == plan:
                break
            plan = more
        return best

    def run(self) -> Energy | None:
        """The energy of this plan; None if it does not gain."""
        rng = np.random.default_rng(self.seed)
        generator = torch.Generator(self.rows.device).manual_seed(self.seed)
        kept = torch.from_numpy(rng.permutation(len(self.rows))[: self.plan.most])
        data = self._seen(self._whole(self.rows[kept.to(self.rows.device)], generator))
        weight = None if self.weights is None else self.weights.cpu()[kept]
        held = self._seen(self._whole(self.held_out, generator))
        count = math.ceil(self.plan.draws * len(data))
        least = len(held) if self.until is None else 0
        fresh = self._drawn(max(min(self.plan.fresh, max(count, FEWEST_FRESH)), least), generator)
        parts: list[Part] = []
        gain, last, took = Gain(0.0, 0.0), False, 0.0
        for k in range(self.plan.rounds + (self.plan.networks > 0)):
            if parts and self._left() < took:
                break
            if last and k < self.plan.rounds:
                continue
            began = time.perf_counter()
            drawn = self._drawn(count, generator)
            log_w = _sum(parts, drawn)
            tilt = (log_w - log_w.max()).exp() if parts else None
            learn = self._boosted if k < self.plan.rounds else self._compared
            more = [*parts, learn(data, drawn, weight, tilt, k)]
            better = _gain(_sum(more, held), _sum(more, fresh))
            last = better.mean <= gain.mean  # of the rounds of trees
            parts, gain = (parts, gain) if last else (more, better)
            took = time.perf_counter() - began
        if not parts:
            return None
        g = _Tilt(parts, _highest(_sum(parts, fresh)))
        other = self._drawn(len(fresh), generator)
        if any(isinstance(part, Trees) for part in parts) and self._left() > 0:
            g = self._levelled(g, data, weight, fresh, held, other)
        log_w = g(other)
        gain = _gain(g(held), log_w)
        if gain.mean <= max(SURE * gain.stderr, LEAST) or _too_high(g, log_w):
            return None
        return self._energy(g, gain, other, generator)

    def _levelled(
        self, g: _Tilt, data: Tensor, weight: Tensor | None, fresh: Tensor, held: Tensor, other: Tensor
    ) -> _Tilt:
        """g with margins, unless held-out rows lose by them, or hardly a draw would be accepted."""
        trees = levelled(
            data, fresh, g(fresh), self.sizes, highest=g.highest, weight=weight, recut=self.recut
        )
        if not trees.count:
            return g
        more = g._replace(margins=trees)
        before, after, log_w = g(held), more(held), more(other)
        lost = _gain(before, g(other)).mean - _gain(after, log_w).mean
        worse = lost > float((after - before).std()) / math.sqrt(len(held))
        return g if worse or _too_high(more, log_w) else more

    def _boosted(
        self, data: Tensor, drawn: Tensor, weight: Tensor | None, tilt: Tensor | None, k: int
    ) -> Trees:
        plan, weights = self.plan, [None if each is None else _array(each) for each in (weight, tilt)]
        boosting = Boosting(self.sizes, plan.rate, plan.trees, patience=plan.patience, seed=self.seed + k)
        if self.until is not None:  # the other half is for draws
            boosting = replace(boosting, until=self.until - self._left() / 2)
        return boosting.ratio(_array(data), _array(drawn), *weights).recut(self.recut)

    def _compared(
        self, data: Tensor, drawn: Tensor, weight: Tensor | None, tilt: Tensor | None, k: int
    ) -> Networks:
        recipe = replace(LEARNING, steps=self.plan.steps, seed=self.seed + k)
        return compared(
            data,
            drawn,
            self.sizes,
            data_weight=weight,
            drawn_weight=tilt,
            members=self.plan.networks,
            recipe=recipe,
        )

    def _energy(self, g: _Tilt, gain: Gain, fresh: Tensor, generator: torch.Generator) -> Energy:
        """g with its constant, which more draws make precise."""
        most, log_w = self.plan.freshest(len(self.sizes)), g(fresh)
        while (error := _error(log_w)) > PRECISE and len(fresh) < most and self._left() > 0:
            needed = math.ceil(len(fresh) * min((error / PRECISE) ** 2 * SPARE, 2.0))
            more = self._drawn(min(needed, most) - len(fresh), generator)
            fresh, log_w = torch.cat([fresh, more]), torch.cat([log_w, g(more)])
        log_z = estimate(log_w, "importance")
        partial = self._partial(fresh, (log_w - log_z.value).exp())
        rounds = tuple(part for part in g.parts if isinstance(part, Trees))
        networks = next((part for part in g.parts if isinstance(part, Networks)), None)
        about = g.highest - log_z.value, *gain, self.atoms, self.parents
        return Energy(rounds, partial, log_z, *about, networks, g.margins)

    def _left(self) -> float:
        """Seconds that are left."""
        return math.inf if self.until is None else self.until - time.perf_counter()

    def _partial(self, fresh: Tensor, tilt: Tensor) -> Trees:
        """log E[tilt | visible cells], learned from draws with cells hidden at random."""
        rng = np.random.default_rng(self.seed)
        rows, weight = np.tile(_array(fresh), (MASKS, 1)), np.tile(tilt.cpu().numpy(), MASKS)
        groups = [[j] for j in range(rows.shape[1])] if self.groups is None else self.groups
        share = rng.random((len(rows), 1))
        hidden = rng.random((len(rows), len(groups))) < share
        for k, group in enumerate(groups):
            for j in group:
                rows[hidden[:, k], j] = np.nan
        boosting = Boosting(
            self.sizes, RATE, self.plan.trees, patience=PATIENCE, seed=self.seed, until=self.until
        )
        return boosting.log_mean(rows, weight).recut(self.recut)

    def _seen(self, x: Tensor) -> Tensor:
        return _seen(x, self.atoms, self.parents)

    def _whole(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Rows with their hidden cells as b draws them."""
        some = gaps(x, self.parents).any(1)
        if not bool(some.any()):
            return x
        out = x.clone()
        parts = [filled(self.base, part, generator) for part in x[some].split(BATCH)]
        out[some] = self.snap(torch.cat(parts))
        return out

    def _drawn(self, n: int, generator: torch.Generator) -> Tensor:
        """n draws of b as the trees see them."""
        sizes = [min(BATCH, n - start) for start in range(0, n, BATCH)]
        return self._seen(torch.cat([self.snap(self.base.sample(size, generator)) for size in sizes]))


class _Tilt(NamedTuple):
    """g: a sum of parts that is cut at its highest, with its margins, and cut again.

    >>> one, less = (Trees.build([[0.0]], [], [], [], bias=bias) for bias in (3.0, -0.5))
    >>> _Tilt((one, one), 5.0, less)(torch.zeros(1, 1))
    tensor([4.5000], dtype=torch.float64)
    """

    parts: Sequence[Part]
    highest: float
    margins: Trees | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return self.of(lambda part: part(x))

    def of(self, ask: Callable[[Part], Tensor]) -> Tensor:
        """g from what is asked of every part."""
        g = torch.stack([ask(part) for part in self.parts]).sum(0).clamp_max(self.highest)
        return g if self.margins is None else (g + ask(self.margins)).clamp_max(self.highest)


def _too_high(g: _Tilt, log_w: Tensor) -> bool:
    """Whether the ceiling of g is so far above the mean e^g of these draws that hardly one would be accepted."""
    return g.highest - _log_mean(log_w) > math.log(APART * HIGHEST)


class Gain(NamedTuple):
    """Nats that held-out rows gain on average, and the standard error.

    >>> Gain(0.5, 0.01).mean
    0.5
    """

    mean: float
    stderr: float


def _gain(held_out: Tensor, fresh: Tensor) -> Gain:
    """mean g(held-out rows) − log mean e^{g(fresh draws)}."""
    log_z = _log_mean(fresh)
    error = float(held_out.std()) / math.sqrt(len(held_out))
    return Gain(float(held_out.mean()) - log_z, math.hypot(error, _error(fresh)))


def _log_mean(log_w: Tensor) -> float:
    """log of the mean w.

    >>> round(_log_mean(torch.zeros(100)), 5)
    0.0
    """
    return float(log_w.logsumexp(0)) - math.log(len(log_w))


def _error(log_w: Tensor) -> float:
    """The standard error of log mean w.

    >>> _error(torch.zeros(100))
    0.0
    """
    w = (log_w - log_w.logsumexp(0) + math.log(len(log_w))).exp()
    return float(w.std()) / math.sqrt(len(w))


def _highest(log_w: Tensor) -> float:
    """Where to cut log w: the least h that takes ``CUT`` of E w at most, or where e^h is ``HIGHEST`` times the mean.

    >>> _highest(torch.zeros(100))
    0.0
    >>> log_w = torch.tensor([0.0] * 95 + [6.0] * 5)
    >>> cut = log_w.clamp_max(_highest(log_w)).exp()
    >>> round(float(cut.max() / cut.mean()), 3) == HIGHEST
    True
    """
    low, high = float(log_w.min()), float(log_w.max())
    w = (log_w - high).exp()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        top = math.exp(middle - float(log_w.max()))
        mean = float(w.clamp_max(top).mean())
        enough = mean >= (1 - CUT) * float(w.mean()) or top >= HIGHEST * mean
        low, high = (low, middle) if enough else (middle, high)
    return high


def _seen(x: Tensor, atoms: Atoms, parents: Mapping[int, int]) -> Tensor:
    """Rows in which the real part of a code is the number that the code stands for."""
    if not atoms:
        return x
    out = x.clone()
    for child, number in atoms.items():
        code = x[:, parents[child]]
        out[:, child] = torch.where(code > 0, number.to(x)[code.nan_to_num().long()], x[:, child])
    return out


def _sum(parts: Sequence[Part], x: Tensor) -> Tensor:
    """The sum of several parts of g, (n,); 0 of none."""
    total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for each in parts:
        total = total + each(x)
    return total


def _array(x: Tensor) -> NDArray[np.float64]:
    return np.asarray(x.double().cpu().numpy())
