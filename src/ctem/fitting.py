r"""Fitting a density to encoded rows in one call: comparisons, held-out rows, stopping, resolution.

Small tables are cross-fitted: K networks, each blind to one fold of the rows, are trained as one program. The
out-of-fold loss says when to stop, the out-of-fold likelihood how finely real columns are resolved, and the
density is the mixture of the K. Larger tables have one network and held-out rows.

One network learns from pairs; its differences are the conditionals of the chain rule, and its values the density in one
pass. A plan with slopes has other networks for the conditionals, so that the first learns of complete rows only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ctem.bases import ProductBase
from ctem.clocknet import ClockNet
from ctem.density import COARSE, FINE, Density, crossfitted
from ctem.noise import Noise
from ctem.orders import dealt_orders
from ctem.parts import Parts
from ctem.plans import Networks, Plan
from ctem.residuals import MAX_SCORES, correlation_of
from ctem.slopes import Slopes, mean_of_hidden
from ctem.spaces import Category, Space
from ctem.spacetime import Clocks, SharedClock
from ctem.training import History, Recipe, train

__all__ = ["fit_density"]

Objective = Callable[[ClockNet, Tensor, torch.Generator], Tensor]
Jitter = Callable[[Tensor, torch.Generator], Tensor]
FINEST, COARSEST = 2e-4, 0.1  # levels of real columns, from which one is chosen for one pass
HIDDEN = 5.0  # a level as good as the base
STEADY = 2048  # held-out comparisons at least


def fit_density(
    space: Space,
    x: Tensor,
    plan: Plan,
    *,
    seed: int = 0,
    weights: Tensor | None = None,
    held_out: Tensor | None = None,
    parents: Mapping[int, int] | None = None,
    jitter: Jitter | None = None,
    max_time: float | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> Density:
    """Fit a density to encoded rows x (n, d) on their device.

    Arguments:
        space: of the rows; real columns standardised.
        x: the rows; nan marks a missing cell.
        plan: how large and how long.
        seed: of everything random.
        weights: of the rows (n,).
        held_out: rows to stop by and to choose the level by; taken from x when left out.
        parents: for a real column that exists only where a category has code 0, that category.
        jitter: moves dequantised cells within their width, in training.
        max_time: seconds of training; fewer steps are planned if they would not fit.
        checkpoint: file to resume from after a kill.
        progress: show a bar.

    >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).repeat(200, 1)
    >>> plan = Plan(width=16, blocks=1, members=1, recipe=Recipe(steps=300, batch_size=64))
    >>> density = fit_density(Space([Category(2)] * 2), x, plan)
    >>> bool(density.log_prob_exact(x[:1]) > math.log(0.4))
    True
    """
    base, parents = ProductBase.fit(space, x).to(x.device), dict(parents or {})
    generator = torch.Generator(x.device).manual_seed(seed)
    share = max_time if max_time is None or plan.slopes is None else max_time / 2
    job = _Job(seed, share, checkpoint, progress)

    def rows_for(members: int) -> tuple[Rows, Tensor]:
        rows, weight, held = _split(x, weights, members, jitter, seed, held_out)
        # several comparisons of a row: a steadier choice
        return Rows(rows, weight, held.repeat(max(1, STEADY // len(held)), 1)), held

    data, held = rows_for(plan.members)
    net, loss = _network(base, x, plan, seed), _Loss(base, plan, parents)
    history = job.run(net, loss, data, plan.recipe, "")
    level = _level(
        base, partial(one_pass_likelihood, net.eval(), loss.filled(held, generator)), FINEST, COARSEST
    )
    if plan.slopes is None:
        return Density(net, level, plan, history, seed=seed, parents=parents)
    data, held = rows_for(plan.slopes.members)
    slopes = _network(base, x, plan.slopes, seed, slopes=True)
    most = 16 if x.is_cuda else 4  # on a CPU, splines take the time
    objective = Slopes(base, FINE, COARSE, parents, most)
    of_slopes = job.run(slopes, objective, data, plan.slopes.recipe, ".slopes")
    of_slopes.seconds += history.seconds
    chosen = objective.sets(len(held), generator)
    fine = _level(base, partial(slope_likelihood, slopes.eval(), held, chosen), FINE, COARSE)
    chain = crossfitted(net, level, parents, slopes, fine)
    orders = dealt_orders(chain, held, plan.slopes.members, plan.orders, seed)
    return Density(
        net, level, plan, of_slopes, seed=seed, parents=parents, slopes=slopes, fine=fine, orders=orders
    )


class Rows(NamedTuple):
    """What a training draws from and is judged by.

    >>> Rows(torch.zeros(9, 2), torch.ones(1, 9), torch.zeros(3, 2)).rows.shape
    torch.Size([9, 2])
    """

    rows: Tensor  # (n, columns)
    weights: Tensor | None  # (n,) or (members, n)
    held_out: Tensor  # member after member


class _Job(NamedTuple):
    """How every network of a fit is trained."""

    seed: int
    max_time: float | None
    checkpoint: str | Path | None
    progress: bool

    def run(self, net: ClockNet, loss: Objective, data: Rows, recipe: Recipe, name: str) -> History:
        """Train one network."""
        recipe = replace(recipe, seed=self.seed)
        path = None if self.checkpoint is None else f"{self.checkpoint}{name}"
        if self.max_time is not None:
            recipe = replace(recipe, steps=_planned(self.max_time, net, loss, data, recipe, path))

        def run(recipe: Recipe, phase: str) -> History:
            return train(
                net,
                loss,
                data.rows,
                recipe,
                held_out=data.held_out,
                weights=data.weights,
                checkpoint=None if path is None else f"{path}.{phase}",
                progress=self.progress,
                cuda_graph=data.rows.is_cuda,
            )

        return _held_then_annealed(net, recipe, run)


def _level(base: ProductBase, likelihood: Callable[[float], float], finest: float, coarsest: float) -> float:
    return best_level(likelihood, finest, coarsest) if base.space.reals else finest


def _network(base: ProductBase, x: Tensor, plan: Networks, seed: int, slopes: bool = False) -> ClockNet:
    """Networks of the plan, which see the linear predictions among up to ``MAX_SCORES`` scores."""
    make = partial(
        ClockNet,
        base,
        width=plan.width,
        blocks=plan.blocks,
        harmonics=plan.harmonics,
        members=plan.members,
        slopes=slopes,
        seed=seed,
    )
    net = make().to(x.device)
    if not 2 <= len(net.scores) <= MAX_SCORES:
        return net
    return make(correlation=correlation_of(net.scores_of(x).cpu())).to(x.device)


def _held_then_annealed(net: ClockNet, recipe: Recipe, run: Callable[[Recipe, str], History]) -> History:
    """Two runs in one history; the weights with the lower held-out loss stay."""
    first = run(replace(recipe, schedule="constant"), "hold")
    best = {name: value.clone() for name, value in net.state_dict().items()}
    steps = max(first.best_step // 2, 1)
    anneal = replace(recipe, steps=steps, evaluate_every=min(recipe.evaluate_every, steps), patience=None)
    second = run(anneal, "anneal")
    if second.best_loss > first.best_loss:
        net.load_state_dict(best)
    offset = first.step[-1]
    return History(
        step=first.step + [offset + s for s in second.step],
        loss=first.loss + second.loss,
        held_out=first.held_out + second.held_out,
        best_step=first.best_step if second.best_loss > first.best_loss else offset + second.best_step,
        best_loss=min(first.best_loss, second.best_loss),
        stopped_early=first.stopped_early,
        seconds=first.seconds + second.seconds,
    )


def _noise_of_reals(base: ProductBase) -> Noise:
    """The noise of the real columns; ordinals, which stay clean here, as categories: they need no heat kernel."""
    columns = dict(zip(base.space.names, base.space.columns, strict=True))
    plain = {name: Category(c.size) if isinstance(c, Category) else c for name, c in columns.items()}
    unordered = ProductBase(Space(plain))
    unordered.load_state_dict(base.state_dict())
    return Noise(unordered).to(base.log_table.device)


class _Loss:
    """The comparisons of a table: clocks for its discrete columns, levels for its real ones."""

    def __init__(self, base: ProductBase, plan: Plan, parents: Mapping[int, int]):
        self.parts: list[Clocks | SharedClock] = []
        space = base.space
        if space.reals:
            whole = 1.0 if plan.slopes is not None or space.dim == 1 else plan.whole
            self.parts.append(
                SharedClock(_noise_of_reals(base), low=FINEST, high=HIDDEN, reach=1.5, whole=whole, clean=1.0)
            )
        high = HIDDEN if space.reals else None
        if space.discretes:
            self.parts.append(Clocks(base, floor=FINEST, high=high, consistency=plan.consistency))
        self.parents = Parts(parents).to(base.log_table.device)

    def __call__(
        self, g: Callable[[Tensor, Tensor], Tensor], x: Tensor, generator: torch.Generator
    ) -> Tensor:
        x = self.filled(x, generator)
        return torch.stack([part(g, x, generator) for part in self.parts]).sum()

    def filled(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """x with base draws for the real parts that do not exist: their density is known, so nothing is lost."""
        child = self.parents.child
        if not len(child):
            return x
        draw = torch.randn(len(x), len(child), generator=generator, dtype=x.dtype, device=x.device)
        part = x.index_select(1, child)
        absent = part.isnan() & self.parents.absent(x, torch.zeros_like(x))
        return x.index_copy(1, child, torch.where(absent, draw, part))


def best_level(
    likelihood: Callable[[float], float], finest: float = FINEST, coarsest: float = COARSEST, count: int = 10
) -> float:
    """The level of real columns at which held-out rows are most likely; ρ_s is normalised at every level s.

    A bandwidth chosen by likelihood, from one training.

    >>> round(best_level(lambda level: -abs(level - 2e-4)), 5)
    0.0002
    """
    levels = torch.logspace(math.log10(finest), math.log10(coarsest), count).tolist()
    return max(levels, key=likelihood)


def one_pass_likelihood(net: ClockNet, held_out: Tensor, level: float) -> float:
    """The mean of g = log ρ_s/b over held-out rows. Row r belongs to member r mod members."""
    observed = ~held_out.isnan()
    x = torch.where(observed, held_out, 0.0)
    levels = torch.where(observed, torch.where(net.base.is_real, level, 0.0), math.inf)
    with torch.no_grad():
        return float(net(x, levels).double().mean())


def slope_likelihood(net: ClockNet, held_out: Tensor, chosen: Tensor, level: float) -> float:
    """The mean log-density of cells of held-out rows given the chosen ones. Row r belongs to member r mod members."""
    observed = ~held_out.isnan()
    x = torch.where(observed, held_out, 0.0)
    levels = torch.where(chosen & observed, torch.where(net.base.is_real, level, 0.0), math.inf)
    with torch.no_grad():
        log_p = net.log_conditionals(x, levels, x, torch.full_like(x[:, :1], level))
    return float(mean_of_hidden(torch.where(observed & ~chosen, log_p, 0.0), chosen))


def _split(
    x: Tensor,
    weights: Tensor | None,
    members: int,
    jitter: Jitter | None,
    seed: int,
    held_out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Training rows, their weights for each member, and held-out rows, member after member.

    One member leaves out a tenth of the rows (at most 10 000); K members leave out one fold each, unless held-out rows
    are given.
    """
    if held_out is not None:
        given = torch.ones(len(x), device=x.device) if weights is None else weights
        return x, given.expand(members, -1), held_out.repeat_interleave(members, 0)
    n, generator = len(x), torch.Generator().manual_seed(seed)
    order = torch.randperm(n, generator=generator).to(x.device)
    copies = 1 if jitter is None else max(1, 20_000 // n)
    noise = torch.Generator(x.device).manual_seed(seed)
    rows = x if jitter is None else jitter(x.repeat(copies, 1), noise)
    weight = torch.ones(n, device=x.device) if weights is None else weights.to(x.device)
    if members == 1:
        held = order[: max(1, min(n // 10, 10_000))]
        kept = weight.clone()
        kept[held] = 0.0
        return rows, kept.repeat(copies), rows[held]
    fold = torch.empty(n, dtype=torch.long, device=x.device)
    fold[order] = torch.arange(n, device=x.device) % members
    table = weight * (fold != torch.arange(members, device=x.device).unsqueeze(1))
    size = n // members
    turn = torch.stack([order[k::members][:size] for k in range(members)], 1).flatten()
    return rows, table.repeat(1, copies), rows[turn]


def _planned(
    seconds: float,
    net: ClockNet,
    loss: Objective,
    data: Rows,
    recipe: Recipe,
    checkpoint: str | None,
) -> int:
    """As many steps as fit into the time; a run that goes on keeps the number it began with."""
    if checkpoint is None:
        return _affordable(seconds, net, loss, data, recipe)
    note = Path(f"{checkpoint}.steps")
    if not note.exists():
        note.write_text(str(_affordable(seconds, net, loss, data, recipe)), encoding="utf8")
    return int(note.read_text(encoding="utf8"))


def _affordable(seconds: float, net: ClockNet, loss: Objective, data: Rows, recipe: Recipe) -> int:
    """How many steps fit, the annealing included, judged by a short rehearsal on a copy of the network."""
    rehearsal = replace(recipe, steps=8, evaluate_every=8, patience=None)
    make = partial(ClockNet, net.base, members=net.members, correlation=net.correlation)
    copy = make(**net.options).to(data.rows.device)  # type: ignore[arg-type]
    train(copy, loss, data.rows, replace(rehearsal, steps=2, evaluate_every=2), weights=data.weights)
    began = time.perf_counter()
    train(copy, loss, data.rows, rehearsal, weights=data.weights)
    each = (time.perf_counter() - began) / 8
    return max(1, min(recipe.steps, int(seconds / each / 1.5)))
