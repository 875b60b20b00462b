"""Ours across noise levels: clock energies of every table and fold as members of one program.

g(x, s) = log ρ_s(x)/N(x; 0, I) is pinned at the base, so that log ρ needs no constant. "shared clock" always sees all
columns; "clock per column" sees random sets of them too, which gives every conditional and the exact chain rule. The
step is chosen by the out-of-fold loss and the level by the out-of-fold likelihood, both for each table by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from batched import Member, Program, Trained
from continuous_sets import Fitted, Group, Table, errors
from crossfit import QUICK, Choice, CrossFit, choose, fold_members, folds_of, normalise
from ctem import ProductBase, Real, Recipe, Space, log_score
from ctem.chain import nodes
from ctem.clocknet import ClockNet
from ctem.fitting import FINEST, HIDDEN, best_level, one_pass_likelihood
from ctem.losses import soft
from ctem.noise import Noise
from ctem.spacetime import Pairs, SharedClock
from learned import Mixture, space_of

RECIPE = Recipe(steps=4000, ema=0.998, evaluate_every=100)
JUDGED = 4096  # held-out comparisons of a member at least
LIMIT = 8.0  # real columns are normalised on [−8, 8] standard deviations
MAX_ROWS = 2**18  # rows evaluated at once, by all members of a table
TRIED, CLOSE = 64, 2e-5  # a coarser rule must agree with the fine one so closely, on so many rows


@dataclass(frozen=True, kw_only=True)
class ClockSettings:
    """One default for all six sets: what ``Plan.suited`` takes for a small table, with 5 folds."""

    width: int = 128
    blocks: int = 2
    harmonics: int = 1
    weight_decay: float = 0.01
    folds: int = 5
    recipe: Recipe = RECIPE


CLOCKS = ClockSettings()
WHOLE = {"ours, shared clock": 1.0, "ours, clock per column": 0.5}  # share of rows with every column visible


class ClockNetworks:
    """ClockNets of one shape over N(0, I), with parameters (K, P) in one tensor."""

    def __init__(self, dim: int, settings: ClockSettings, device: torch.device | str):
        self.inputs = dim
        self.base = ProductBase(Space([Real()] * dim)).to(device)
        self.shape = {k: getattr(settings, k) for k in ("width", "blocks", "harmonics")}
        self.frames: dict[int, ClockNet] = {}

    def initial(self, seeds: Sequence[int]) -> Tensor:
        """Parameters (K, P), one seed a member."""
        nets = [ClockNet(self.base, **self.shape, seed=s) for s in seeds]
        return torch.stack([torch.cat([p.detach().flatten() for p in net.parameters()]) for net in nets])

    def frame(self, members: int) -> ClockNet:
        """A network of so many members, whose own weights do not matter."""
        if members not in self.frames:
            net = ClockNet(self.base, **self.shape, members=members)
            self.frames[members] = net.to(self.base.log_table.device)
        return self.frames[members]

    def named(self, parameters: Tensor) -> dict[str, Tensor]:
        """Parameters (K, P) by name, as ClockNet has them."""
        shapes = {name: p.shape for name, p in self.frame(len(parameters)).named_parameters()}
        parts = parameters.split([math.prod(s[1:]) for s in shapes.values()], dim=1)
        return {name: p.reshape(s) for (name, s), p in zip(shapes.items(), parts, strict=True)}

    def net(self, parameters: Tensor) -> ClockNet:
        """The members as a network of their own."""
        net = ClockNet(self.base, **self.shape, members=len(parameters)).to(parameters.device)
        net.load_state_dict(self.named(parameters), strict=False)
        return net.eval()

    def __call__(self, parameters: Tensor, x: Tensor, level: Tensor) -> Tensor:
        """g at rows x (n, d) and levels (n, d), shape (n,): row r belongs to member r mod K."""
        return functional_call(self.frame(len(parameters)), self.named(parameters), (x, level))


class ClockLoss:
    """The space-time loss of all members, each on its own rows.

    Arguments:
        networks, members: what is trained, and on what.
        whole: share of the rows with every column visible.
        batch_size: rows of each member.
    """

    def __init__(self, networks: ClockNetworks, members: Sequence[Member], whole: float, batch_size: int):
        self.networks, self.batch_size = networks, batch_size
        device = networks.base.log_table.device
        noise = Noise(networks.base).to(device)
        self.objective = SharedClock(noise, low=FINEST, high=HIDDEN, reach=1.5, whole=whole, clean=1.0)
        self.counts = torch.tensor([[float(len(m.x))] for m in members], device=device)
        self.rows = torch.nn.utils.rnn.pad_sequence([m.x for m in members], batch_first=True).to(device)
        held = in_turn([m.held_out for m in members]).to(device)
        judged = held.repeat(max(1, JUDGED * len(members) // len(held)), 1)
        generator = torch.Generator(device).manual_seed(1)
        size = MAX_ROWS // 4 // len(members) * len(members)
        self.judged = [self.objective.pairs(x, generator) for x in judged.split(size)]  # the same every time

    def __call__(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of every member on a fresh batch (K,)."""
        k, _, d = self.rows.shape
        u = torch.rand(k, self.batch_size, generator=generator, device=self.rows.device)
        index = (u * self.counts).long().unsqueeze(-1).expand(-1, -1, d)
        x = self.rows.gather(1, index).transpose(0, 1).reshape(-1, d)
        return self.loss(parameters, self.objective.pairs(x, generator))

    def held_out_loss(self, parameters: Tensor) -> Tensor:
        """The loss of every member on its held-out rows (K,), with the same comparisons every time."""
        parts = [self.loss(parameters, pairs) * len(pairs.w) for pairs in self.judged]
        return torch.stack(parts).sum(0) / sum(len(pairs.w) for pairs in self.judged)

    def loss(self, parameters: Tensor, pairs: Pairs) -> Tensor:
        """Mean of ℓ_w(g(x, s) − g(y, t)) over the pairs of every member (K,); pair r belongs to member r mod K."""
        states, levels = torch.cat([pairs.x, pairs.y]), torch.cat([pairs.s, pairs.t])
        g = self.networks(parameters, states, levels).view(2, -1)
        return soft(log_score, g[0] - g[1], pairs.w).view(-1, len(parameters)).mean(0)


def in_turn(parts: Sequence[Tensor]) -> Tensor:
    """Rows of K parts taking turns, as many of each: row r of the result is from part r mod K."""
    least = min(len(part) for part in parts)
    return torch.stack([part[:least] for part in parts], dim=1).flatten(0, 1)


class ClockEnergy(Mixture):
    """The mixture of K clock energies at one level, log ρ(X) = log 1/K Σ_k exp(log b(x) + g_k(x, s) − log Z_k).

    Normalised by itself as far as it is trained: log Z_k = 0 until a ``normalise`` function sets it.
    """

    def __init__(self, networks: ClockNetworks, parameters: Tensor, space: Space, level: float):
        super().__init__(self.potential, parameters, space)
        self.networks, self.space, self.level = networks, space, level
        self.facts = {"level": level, **networks.shape}

    def potential(self, parameters: Tensor, x: Tensor) -> Tensor:
        """log b + g_k + log |dx/dX| at rows (K, n, d), shape (K, n)."""
        rows = x.transpose(0, 1).flatten(0, 1)
        g = self.networks(parameters, rows, torch.full_like(rows, self.level))
        return (self.networks.base.log_prob(rows) + g).view(-1, len(x)).T + self.space.log_det

    @classmethod
    def restored(cls, state: dict[str, Tensor], facts: dict[str, Any]) -> ClockEnergy:
        space, parameters = space_of(state), state["parameters"]
        shape = {k: facts[k] for k in ("width", "blocks", "harmonics")}
        networks = ClockNetworks(space.dim, replace(CLOCKS, **shape), parameters.device)
        energy = cls(networks, parameters, space, facts["level"])
        energy.log_z = state["log_z"]
        return energy


class ChainRule:
    """The mixture of clock energies normalised exactly, column by column, and the mean over a few orders.

    With J(x_V) = log b(x_V) + log 1/K Σ_k e^{g_k(x; V)}, which is 0 where V is empty,

        log ρ(x) = Σ_j J(x_{V ∪ j}) − log ∫ e^{J(x_V, v)} dv = J(x) − Σ_j (log ∫ e^{J(x_V, v)} dv − J(x_V)),

    V the columns before j: the joint, less what keeps J from being consistent. The integral is by the trapezoidal rule.

    Arguments:
        energy: the networks, their units and their level.
        points: nodes of the rule at most, 1 more than a multiple of 8; as many as the level needs when left out.
    """

    def __init__(self, energy: ClockEnergy, points: int | None = None):
        self.net, self.space, self.level = energy.networks.net(energy.parameters), energy.space, energy.level
        self.device = energy.device
        points = points or max(65, 8 * math.ceil((nodes(self.level, LIMIT) - 1) / 8) + 1)
        self.nodes = torch.linspace(-LIMIT, LIMIT, points, device=self.device)
        forward = list(range(self.space.dim))
        self.orders = [forward, forward[::-1]]

    def log_density(self, X: Tensor) -> Tensor:
        """log ρ (n,), float64 on the cpu."""
        x = self.space.encode(X).to(self.device, torch.float32)
        each = self.joint(x) - torch.stack([self.excess(x, order) for order in self.orders])
        return (each.logsumexp(0) - math.log(len(self.orders))).cpu() + self.space.log_det

    def excess(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """Σ_j log ∫ e^{J(x_V, v)} dv − J(x_V) of encoded rows, V the columns before j, float64 (n,)."""
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for i, j in enumerate(order):
            kinds, kind = different(x, order[:i])
            total += (self.log_total(kinds, j) - self.joint(kinds))[kind]
        return total

    def log_total(self, x: Tensor, j: int) -> Tensor:
        """log ∫ e^{J(x, v)} dv of every row (n,), over the values v of column j.

        The coarsest of four rules that a few rows do not tell from the finest: a level says how narrow a peak may be,
        and most are far wider.
        """
        tried = self.along(x[:: max(1, len(x) // TRIED)], j)
        finest = self.integral(tried)
        gaps = {s: (self.integral(tried[:, ::s], s) - finest).abs().max() for s in (8, 4, 2)}
        step = next((s for s, gap in gaps.items() if gap < CLOSE), 1)
        parts = x.split(max(1, MAX_ROWS * step // len(self.nodes)))
        return torch.cat([self.integral(self.along(part, j, step), step) for part in parts])

    def along(self, x: Tensor, j: int, step: int = 1) -> Tensor:
        """J of rows x with column j at every node, or every few nodes, (n, nodes)."""
        v = self.nodes[::step]
        many = x.repeat_interleave(len(v), 0)
        many[:, j] = v.repeat(len(x))
        return self.joint(many).view(len(x), -1)

    def integral(self, log_f: Tensor, step: int = 1) -> Tensor:
        """log of the trapezoidal rule from values at nodes that are ``step`` apart (n,)."""
        weight = torch.full_like(log_f[0], 2 * LIMIT * step / (len(self.nodes) - 1))
        weight[[0, -1]] /= 2
        return (log_f + weight.log()).logsumexp(1)

    def joint(self, x: Tensor) -> Tensor:
        """J of the cells of x that are not nan, float64 (n,)."""
        parts = []
        with torch.no_grad():
            for part in x.split(MAX_ROWS):
                seen = ~part.isnan()
                filled = torch.where(seen, part, 0.0)
                log_b = torch.where(seen, self.net.base.column_log_prob(filled), 0.0).sum(1)
                g = self.net.each(filled, torch.where(seen, self.level, math.inf)).double()
                parts.append(log_b.double() + g.logsumexp(1) - math.log(self.net.members))
        return torch.cat(parts)


def different(x: Tensor, given: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Rows with all but the given columns hidden, and which of them each row of x is.

    Each is there once where at most one column is given, so that a grid costs little; rows of more are not compared.
    """
    kinds = torch.full_like(x, math.nan)
    if len(given) > 1:
        kinds[:, given] = x[:, given]
        return kinds, torch.arange(len(x), device=x.device)
    if not given:
        return kinds[:1], torch.zeros(len(x), dtype=torch.long, device=x.device)
    values, kind = x[:, given[0]].unique(return_inverse=True)
    kinds = kinds[: len(values)]
    kinds[:, given[0]] = values
    return kinds, kind


Settle = Callable[[ClockEnergy, Table, bool], dict[str, float]]


def fit_clocks(
    group: Group, rows: list[Table], device: str, quick: bool, settings: ClockSettings = CLOCKS
) -> Iterator[Fitted]:
    """Both clocks in one pass, and the clock per column by the chain rule."""
    for system, whole in WHOLE.items():
        fitted = fit_one_pass(system, group, rows, device, quick, constants, settings)
        yield fitted
        if whole < 1:
            chains = [ChainRule(energy, points=33 if quick else None) for energy in fitted.densities]
            yield Fitted(f"{system}, chain rule", chains, [{}] * len(rows), fitted.seconds)


def fit_one_pass(
    system: str,
    group: Group,
    rows: list[Table],
    device: str,
    quick: bool,
    settle: Settle,
    settings: ClockSettings = CLOCKS,
) -> Fitted:
    """One of ``WHOLE``; ``settle`` sets the constants of an energy and says what is worth a row about them."""
    if quick:
        recipe = replace(settings.recipe, **QUICK)
        settings = replace(settings, width=16, blocks=1, folds=2, recipe=recipe)
    fit = cross_fit_clocks(group, rows, device, settings, WHOLE[system])
    choices = [choose(fit, i, [settings.weight_decay]) for i in range(len(rows))]
    found = [clock_energy(fit, i, table, choices[i]) for i, table in enumerate(rows)]
    facts = []
    for energy, table, choice in zip(found, rows, choices, strict=True):
        chosen = {
            "step chosen out of fold": float(fit.trained.steps[choice.evaluation]),
            "level chosen out of fold": energy.level,
        }
        facts.append(chosen | settle(energy, table, quick))
    return Fitted(f"{system}, one pass", found, facts, fit.trained.seconds)


def cross_fit_clocks(
    group: Group, rows: list[Table], device: str, settings: ClockSettings, whole: float
) -> CrossFit:
    networks = ClockNetworks(group.dim, settings, device)
    members, keys = fold_members(rows, [settings.weight_decay], settings.folds, whole=False)
    loss = ClockLoss(networks, members, whole, settings.recipe.batch_size)
    start = networks.initial([m.seed for m in members]).to(device)
    trained: Trained = Program(start, loss, settings.recipe, settings.weight_decay).run(loss.held_out_loss)
    return CrossFit(networks, trained, keys)


def clock_energy(fit: CrossFit, i: int, table: Table, choice: Choice) -> ClockEnergy:
    """The networks of one table at its chosen step, at the level at which rows they did not see are most likely."""
    mine = [j for j, key in enumerate(fit.keys) if key[0] == i]
    parameters = fit.trained.parameters[choice.evaluation, mine]
    x = table.space.encode(table.X).to(parameters.device)
    held_out = in_turn([x[fold.to(x.device)] for fold in folds_of(table, len(mine))])
    level = best_level(partial(one_pass_likelihood, fit.networks.net(parameters), held_out))
    return ClockEnergy(fit.networks, parameters, table.space, level)


def constants(energy: ClockEnergy, table: Table, quick: bool) -> dict[str, float]:
    """The errors with the constants that the table does not use, and how far from 0 the constants are.

    The plane's row is normalised by quadrature; in more dimensions the row is the self-normalised density itself.
    """
    own, in_plane = energy.log_z, table.space.dim == 2
    before = errors(energy, table.name) if in_plane else {}
    found = normalise(energy, table, quick)
    found["log Z of one pass, mean over networks"] = float(energy.log_z.mean())
    if in_plane:
        return found | {f"{metric}, self-normalised": value for metric, value in before.items()}
    after = {f"{metric}, importance-sampled constant": v for metric, v in errors(energy, table.name).items()}
    energy.log_z = own
    return found | {metric: value for metric, value in after.items() if "density" in metric}
