r"""Fitting an any-order density to encoded rows in one call: folds, two phases, resolution, orders.

The rows are cross-fitted: several networks, each blind to another fold of the rows, are trained as one program. First
they learn the conditionals of any visible set, at any resolution of the real columns, until another doubling of the
steps would gain little. The out-of-fold likelihood then shows which columns depend on nothing: if these cost the others
much, they are hidden from the networks, which learn on. It decides how finely real columns are resolved and in which
orders of the columns the chain rule works best. In the second phase half of the rows rehearse those orders, near that
resolution, while the learning rate falls to zero (``ctem.densities.anyorder.phases``). Every conditional of the density
is the mean of the networks', mixed with the margin as far as out-of-fold rows ask for it
(``ctem.densities.anyorder.shrinking``), and the density a mixture over the orders. Few rows of many labels are mixed
with latent classes instead of the margins (``ctem.densities.anyorder.classes``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctem.bases import ProductBase
from ctem.densities.anyorder.classes import LatentClasses, few_rows_of_many_labels
from ctem.densities.anyorder.conditionals import AtLevel
from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.anyorder.inputs import Inputs
from ctem.densities.anyorder.network import AnyOrderNet
from ctem.densities.anyorder.objective import COARSEST, FINEST, REHEARSED, HiddenColumns
from ctem.densities.anyorder.orders import best_orders
from ctem.densities.anyorder.phases import Phases, Split, joined_history
from ctem.densities.anyorder.rules import Rules
from ctem.densities.anyorder.settings import Settings
from ctem.densities.anyorder.shrinking import Unseen, alone, found_worth
from ctem.densities.anyorder.tails import outermost
from ctem.densities.anyorder.ties import Ties
from ctem.densities.chain import Chain
from ctem.densities.presence import gaps
from ctem.spaces import Space
from ctem.training.loop import Refresh
from ctem.training.processes import team

__all__ = ["fit_anyorder", "split_rows"]

Jitter = Callable[[Tensor, torch.Generator], Tensor]
LEVELS = 10  # noise levels of real columns from which one is chosen
STEADY = 2048  # held-out rows of all members together, at least: a row is compared several times if need be
CELLS = 2**16  # of held-out rows that suffice to compare weights or levels, where columns are many
LARGEST = 10_000  # held-out rows, at most
FOLDS = 10  # at least
COPIES = 20_000  # rows that a small table is jittered to
GAPS = 0.05  # steps of the share of missing cells by which columns come later
NEAR = 3.0  # factor of the chosen noise level within which the second phase stays
PASSES = 0.25  # over held-out rows to choose orders by, for each step of training
TRIFLE = 0.01  # of the entropy of independent labels


def fit_anyorder(
    space: Space,
    x: Tensor,
    settings: Settings,
    *,
    seed: int = 0,
    weights: Tensor | None = None,
    held_out: Tensor | None = None,
    parents: Mapping[int, int] | None = None,
    jitter: Jitter | None = None,
    ties: Ties | None = None,
    rules: Rules | None = None,
    max_time: float | None = None,
    leaving: Callable[[AnyOrderDensity], float] | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
    network: Callable[..., AnyOrderNet] = AnyOrderNet,
    levels: tuple[float, float] = (FINEST, COARSEST),
    rehearsed: float = REHEARSED,
    refresh: Refresh | None = None,
) -> AnyOrderDensity:
    """Fit a density to encoded rows x (n, d) on their device.

    Arguments:
        space: of the rows; real columns standardised.
        x: the rows; nan marks a missing cell.
        settings: how large and how long.
        seed: of everything random.
        weights: of the rows (n,).
        held_out: rows to stop and to choose by (h, d); taken from x when left out.
        parents: for a real column that exists only where a category has code 0, that category.
        jitter: moves dequantised cells within their width, in training, and puts the cells of ties behind them.
        ties: columns that repeat others, or add up.
        rules: what columns determine of others for certain, or nearly so; they play no part in training.
        max_time: seconds of the fit; fewer steps are planned if they would not fit.
        leaving: how many of these seconds are for what the caller does then, by an untrained density of the same speed.
        checkpoint: file to resume from after a kill.
        progress: show a bar.
        network: makes the network; called with the arguments of ``AnyOrderNet``.
        levels: finest and coarsest noise level of real columns.
        rehearsed: share of the rows that rehearse the chosen orders in the second phase.
        refresh: brings other rows in while it trains, where x is a random part of a larger table; then ``held_out`` is
            needed.

    >>> from ctem.spaces import Category
    >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).repeat(200, 1)
    >>> settings = Settings(width=16, blocks=1, members=2, steps=60, orders=2, learning_rate=0.01)
    >>> density = fit_anyorder(Space([Category(2)] * 2), x, settings)
    >>> bool(density.log_prob(x[:1]) > math.log(0.4))
    True
    """
    parents, base = dict(parents or {}), ProductBase.fit(space, x, weights=weights).to(x.device)
    data = split_rows(x, settings.members, seed, weights=weights, jitter=jitter, held_out=held_out)
    correlation = Inputs(base).correlation_among(x)
    beside: dict[str, Any] = {"correlation": correlation, "seed": seed}
    beside |= {} if ties is None else {"ties": ties}
    net = network(base, **settings.network, **beside)
    net.believe(net.worth._replace(reach=outermost(len(x))))
    how: dict[str, Any] = {"growth": settings.growth, "second": settings.second, "refresh": refresh}
    how["least_gain"] = _least_gain(base, settings)
    phases = Phases(net, data, settings.recipe(seed), checkpoint, progress, **how)
    here = team()
    late = here.agreed(lambda: _rounded(gaps(x, parents).double().mean(0)).cpu()).to(x.device)
    anything = HiddenColumns(
        parents, *levels, rehearsed=rehearsed, late=late.to(x.dtype) if late.any() else None
    )
    when, after = late.tolist(), None if rules is None else rules.after
    about: dict[str, Any] = {"parents": parents, "late": when, "rules": rules}
    if max_time is not None:
        phases = _within(max_time, phases, anything, about, settings.orders, leaving)
    data, first, began = phases.data, phases.learn(anything), time.perf_counter()
    level = _judged(net, data, anything, seed)
    phases = phases.judged_in(time.perf_counter() - began)
    hurried = first.interrupted or phases.cut(first)
    chance = {} if hurried else _of_chance(net, data, anything, level, seed)
    if chance and sum(chance.values()) >= settings.least_gain:
        anything = _without(chance, net, anything)
        first = phases.learn_on(anything, first) if any(net.worth.heard) else first
        level = _judged(net, data, anything, seed)
    at, generator = AtLevel(net.eval(), level), torch.Generator().manual_seed(seed)
    passes, judged = int(PASSES * first.step[-1]), phases.ordering_rows(settings.orders)
    chain = Chain(at, parents, when, after)
    orders = here.agreed(lambda: best_orders(chain, at, judged, settings.orders, generator, passes))
    if first.interrupted or not any(net.worth.heard) or phases.over:
        return AnyOrderDensity(net, level, orders, **about, history=first)
    chosen = _rehearsing(anything, level, orders, x.device)
    history = joined_history(first, phases.rehearse(chosen, first))
    if few_rows_of_many_labels(space, x) and not history.interrupted:
        _add_classes(net, x, data.weights, seed)
    level = _judged(net, data, chosen, seed)
    return AnyOrderDensity(net, level, orders, **about, history=history)


def _within(
    max_time: float,
    phases: Phases,
    objective: HiddenColumns,
    about: Mapping[str, Any],
    orders: int,
    leaving: Callable[[AnyOrderDensity], float] | None,
) -> Phases:
    """The phases for so many seconds, less those that the caller needs for what it does with a density."""
    end, net, rules = time.perf_counter() + max_time, phases.net.eval(), about["rules"]
    if leaving is not None:
        at = AtLevel(net, math.sqrt(objective.finest * objective.coarsest))
        chain = Chain(at, about["parents"], about["late"], None if rules is None else rules.after)
        drawn = chain.orders(orders, torch.Generator().manual_seed(phases.recipe.seed))
        end -= team().agreed(lambda: leaving(AnyOrderDensity(net, at.level, drawn, **about)))
    return phases.within(max(end - time.perf_counter(), 0.0), objective)


def _judged(net: AnyOrderNet, data: Split, objective: HiddenColumns, seed: int) -> float:
    """The best level; from now on the network is believed as far as it gains on unseen rows at that level."""
    level = team().agreed(lambda: best_level(net.eval(), objective, data.held_out, seed))
    unseen = Unseen(data.unseen, level, objective, data.shared, seed)
    net.believe(team().agreed(lambda: found_worth(net, unseen)))
    if min(net.worth.share) == 1.0:
        net.classes = None
    return level


def _add_classes(net: AnyOrderNet, x: Tensor, weights: Tensor, seed: int) -> None:
    """Mix the networks with latent classes of rows x (n, d), which are the first that ``weights`` are of."""
    heard = net.worth.heard
    net.classes = LatentClasses.fit(net.base, x, weights[:, : len(x)], heard, seed)
    team().align(net.classes)


def _of_chance(
    net: AnyOrderNet, data: Split, objective: HiddenColumns, level: float, seed: int
) -> dict[int, float]:
    """Columns that are alone, and nats a row that each costs the others (``shrinking.alone``)."""
    unseen = Unseen(data.unseen, level, objective, data.shared, seed)
    return team().agreed(lambda: alone(net.eval(), unseen, net.worth))


def _without(columns: Collection[int], net: AnyOrderNet, objective: HiddenColumns) -> HiddenColumns:
    """The objective that does not ask for these columns; the network no longer sees them."""
    net.believe(net.worth._replace(heard=tuple(j not in columns for j in range(net.space.dim))))
    return replace(objective, alone=net.unheard)


def _rounded(share: Tensor) -> Tensor:
    """Shares of missing cells in steps of ``GAPS``, so that chance alone orders no columns; 0 for complete ones alone.

    >>> _rounded(torch.tensor([0.0, 0.001, 0.198, 0.203]))
    tensor([0.0000, 0.0500, 0.2000, 0.2000])
    """
    return torch.where(share > 0, (share / GAPS).round().clamp_min(1) * GAPS, 0.0)


def _rehearsing(
    anything: HiddenColumns, level: float, orders: Sequence[Sequence[int]], device: torch.device
) -> HiddenColumns:
    """The objective of the second phase: the chosen orders, near one noise level."""
    places = torch.tensor([[order.index(j) for j in range(len(order))] for order in orders], device=device)
    finest, coarsest = max(level / NEAR, anything.finest), min(level * NEAR, anything.coarsest)
    return replace(anything, finest=finest, coarsest=coarsest, places=places)


def best_level(net: AnyOrderNet, objective: HiddenColumns, held_out: Tensor, seed: int) -> float:
    """The noise level of real columns at which held-out cells (members, n, d) are most likely.

    A density is normalised at every level: a bandwidth chosen by likelihood, from one training.

    >>> from ctem.spaces import Category
    >>> net = AnyOrderNet(ProductBase(Space([Category(2)] * 2)), width=8)
    >>> best_level(net, HiddenColumns(), torch.zeros(1, 8, 2), 0)
    1e-05
    """
    if not net.space.reals:
        return objective.finest
    members, _, d = held_out.shape
    held_out, ends = net.parted(held_out[:, : max(1, CELLS // (members * d))])
    asked = objective.questions(held_out, torch.Generator(held_out.device).manual_seed(seed))
    x = held_out.nan_to_num()

    def likelihood(level: float) -> float:
        with torch.no_grad():
            levels = torch.full_like(x[..., :1], level)
            return float(objective.log_prob(net, held_out, x, asked, levels, ends))

    levels = torch.logspace(math.log10(objective.finest), math.log10(objective.coarsest), LEVELS).tolist()
    return max(levels, key=likelihood)


def _least_gain(base: ProductBase, settings: Settings) -> float:
    """Nats a row that a doubling of the steps must gain: of labels alone, a hundredth of their entropy at most.

    >>> from ctem.spaces import Category
    >>> round(_least_gain(ProductBase(Space([Category(2)] * 2)), Settings()), 4)
    0.0139
    """
    if base.space.reals:
        return settings.least_gain
    return min(settings.least_gain, TRIFLE * float(torch.special.entr(base.log_table.exp()).sum()))


def split_rows(
    x: Tensor,
    members: int,
    seed: int,
    *,
    weights: Tensor | None = None,
    jitter: Jitter | None = None,
    held_out: Tensor | None = None,
) -> Split:
    """Training rows, their weight for each member, and held-out rows of each member.

    Every member leaves out a tenth of the rows, or one of as many folds as there are members if they are more than ten;
    nothing is left out where held-out rows (h, d) are given. Where rows have weights, held-out ones are drawn by them.
    Small tables are repeated, so that every copy of a dequantised cell is jittered differently.

    >>> split_rows(torch.zeros(20, 2), 2, seed=0).weights.sum(1)
    tensor([18., 18.])
    """
    n, device = len(x), x.device
    copies = 1 if jitter is None else max(1, COPIES // n)
    noise = torch.Generator(device).manual_seed(seed)
    rows = x if jitter is None else jitter(x.repeat(copies, 1), noise)
    weight = (torch.ones(n, device=device) if weights is None else weights.to(device)).expand(members, -1)
    if held_out is not None:
        held = held_out if jitter is None else jitter(held_out, noise)
        known = _repeated(held[:LARGEST].expand(members, -1, -1))
        return Split(rows, weight.repeat(1, copies), *known, shared=True)
    folds = max(members, min(FOLDS, n))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).to(device)
    fold = torch.empty(n, dtype=torch.long, device=device)
    fold[order] = torch.arange(n, device=device) % folds
    kept = weight * (fold != torch.arange(members, device=device).unsqueeze(1))
    size = max(1, min(n // folds, LARGEST // members))
    unseen = [order[k::folds] for k in range(members)]
    if weights is not None:
        unseen = [own[_by_weight(weight[0, own], seed)] for own in unseen]
    places = torch.stack([own[:size] for own in unseen])
    return Split(rows, kept.repeat(1, copies), *_repeated(rows[places]))


def _by_weight(weight: Tensor, seed: int) -> Tensor:
    """As many places (n,) as there are weights, each as often as it weighs."""
    generator = torch.Generator(weight.device).manual_seed(seed)
    return torch.multinomial(weight, len(weight), replacement=True, generator=generator)


def _repeated(held_out: Tensor) -> tuple[Tensor, int]:
    """The rows as often as it takes to have ``STEADY`` of them, and how often that is."""
    members, n, d = held_out.shape
    times = max(1, min(STEADY, CELLS // d) // (members * n))
    return held_out.repeat(1, times, 1), times
