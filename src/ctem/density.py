r"""A normalised density on encoded rows from one call: the clock-per-column energy and all that it answers.

Small tables are cross-fitted: K networks, each blind to one fold of the rows, are trained as one program. The
out-of-fold loss says when to stop, the out-of-fold likelihood how finely real columns are resolved, and the
density is the mixture of the K. Larger tables have one network and held-out rows.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ctem.bases import ProductBase
from ctem.chain import Chain, nodes
from ctem.clocknet import ClockNet, Ensemble
from ctem.energies import grad_log_density
from ctem.joint import mixture_log_z
from ctem.noise import Noise
from ctem.partition import LogZ
from ctem.spaces import Category, Space
from ctem.spacetime import Clocks, SharedClock
from ctem.training import History, Recipe, train

__all__ = ["Density", "Plan", "fit_density"]

Jitter = Callable[[Tensor, torch.Generator], Tensor]
FINEST, COARSEST = 2e-4, 0.1  # levels of real columns, from which one is chosen
HIDDEN = 5.0  # a level as good as the base
STEADY = 4096  # held-out comparisons at least
LIMIT = 8.0  # real columns are normalised on [−8, 8] standard deviations


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How large a model and how long a training; ``Plan.suited`` chooses by the size of the table.

    Training holds the learning rate until the held-out loss stops falling, goes back to the best weights, and lets the
    rate fall to zero over half as many steps.

    Arguments:
        width, blocks, harmonics: of the networks.
        members: networks; with more than one the rows are cross-fitted.
        recipe: how long and how fast, at most.
        whole: share of the comparisons of real columns in which every column is visible.
        consistency: weight of the local normalisation of columns with two values.
        orders: of the columns, in exact densities.
        log_z_samples: chain samples for the constant of the one-pass density.

    >>> Plan.suited(rows=300, features=8).members
    5
    """

    width: int
    blocks: int
    members: int
    recipe: Recipe
    harmonics: int = 3
    whole: float = 0.5
    consistency: float = 0.0
    orders: int = 4
    log_z_samples: int = 2000

    @classmethod
    def suited(cls, rows: int, features: int, cuda: bool = False) -> Plan:
        """The default for a table of so many rows and features (one per number, k − 1 per column of k values).

        Networks that are too large memorise a small table; on a GPU many small ones cost no more than one.
        """
        small = (rows <= 30_000 and features <= 32) or (rows <= 5000 and features <= 100)
        recipe = Recipe(
            steps=4000, batch_size=256, weight_decay=0.01, ema=0.998, evaluate_every=200, patience=6
        )
        if cuda and small:
            recipe = replace(recipe, steps=3000, batch_size=10 * 256, evaluate_every=150)
            return cls(width=128, blocks=2, members=10, harmonics=1, recipe=recipe)
        if cuda:
            recipe = replace(recipe, steps=6000, batch_size=1024, ema=0.999, evaluate_every=300)
            return cls(width=512, blocks=4, members=1, recipe=recipe)
        if rows <= 3000:
            recipe = replace(
                recipe,
                steps=min(max(3 * rows, 800), 6000),
                batch_size=5 * 32,
                learning_rate=2e-3,
                ema=0.99,
                evaluate_every=100,
                patience=5,
            )
            return cls(width=64, blocks=2, members=5, harmonics=2, recipe=recipe, log_z_samples=400)
        return cls(width=128, blocks=2, members=1, recipe=recipe, log_z_samples=1000)


class Density:
    """A fitted density on encoded rows x (n, d); nan marks a cell that is missing, and is marginalised.

    Arguments:
        net: the trained network.
        level: noise level at which real columns are resolved.
        plan: what it was made by.
        history: of the training.
        log_z: constant of the one-pass density; estimated from the chain when left out.
        seed: of the orders of columns.
        parents: for a real column that exists only where a category has code 0, that category.

    >>> from ctem.spaces import Category, Space
    >>> base, plan = ProductBase(Space([Category(2)] * 3)), Plan.suited(rows=300, features=3)
    >>> density = Density(ClockNet(base, width=8), FINEST, plan, History())  # untrained: the base itself
    >>> density.log_prob_exact(torch.zeros(1, 3)).exp()
    tensor([0.1250])
    """

    def __init__(
        self,
        net: ClockNet,
        level: float,
        plan: Plan,
        history: History,
        log_z: LogZ | None = None,
        seed: int = 0,
        parents: Mapping[int, int] | None = None,
    ):
        self.net, self.level, self.plan, self.history = net.eval(), level, plan, history
        self.base, self.space = net.base, net.space
        self.parents = dict(parents or {})
        g = _Gated(net if net.members == 1 else Ensemble(net), self.parents)
        self.chain = self._chain(g, self.base)
        # in float64 a row's value is the same to 1e-12 whatever batch it comes in
        self.double = self._chain(copy.deepcopy(g).double(), copy.deepcopy(self.base).double())
        alone = [net] if net.members == 1 else [net.member(k) for k in range(net.members)]
        self.members = [self._chain(_Gated(g, self.parents), self.base) for g in alone]
        generator = torch.Generator().manual_seed(seed)
        self.orders = [self._sorted(order) for order in self.chain.orders(plan.orders, generator)]
        if log_z is None:
            device = self.base.log_table.device
            generator = torch.Generator(device).manual_seed(seed)
            log_z = mixture_log_z(self.members, plan.log_z_samples, generator)
        self.log_z = log_z

    def _chain(self, g: nn.Module, base: ProductBase) -> Chain:
        cuda = base.log_table.is_cuda
        batch_size = 2**17 if cuda else 2**13  # what fits a CPU's cache
        points = max(65, nodes(self.level, LIMIT))
        return Chain(g, base, floor=self.level, points=points, limit=LIMIT, batch_size=batch_size)

    def log_prob(self, x: Tensor) -> Tensor:
        """The one-pass log-density log b + g − log Z of the observed cells, float64, shape (n,)."""
        return self.double.joint(x.double()) - self.log_z.value

    def log_prob_exact(
        self, x: Tensor, columns: Iterable[int] | None = None, given: Iterable[int] = ()
    ) -> Tensor:
        """log ρ(x_columns | x_given) by the chain rule: normalised by construction, a mixture of a few orders."""
        given = list(given)
        asked = set(range(self.space.dim)) - set(given) if columns is None else set(columns)
        orders = [[j for j in order if j in asked] for order in self.orders]
        return self.chain.log_prob_mixture(x, orders, given)

    def conditional(self, x: Tensor, j: int) -> tuple[Tensor, Tensor]:
        """Values of column j (q,) and log ρ(value | the other observed cells) (n, q); densities for a real one."""
        visible = ~x.isnan()
        visible[:, j] = False
        return self.chain.conditional(x, visible, j)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n rows, drawn column by column in several orders."""
        like = self.base.log_table
        return self.complete(like.new_full((n, self.space.dim), math.nan), generator)

    def complete(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """x with its nan cells drawn given the others; rows take turns among the orders.

        A draw from a mixture is a draw from one member, chosen by how likely each finds the observed cells.
        """
        out = x.clone()
        member = self._responsible(x, generator)
        for k, chain in enumerate(self.members):
            mine = (member == k).nonzero().squeeze(1)
            for i, order in enumerate(self.orders):
                rows = mine[i :: len(self.orders)]
                if len(rows):
                    out[rows] = chain.sample(len(rows), generator, order, given=x[rows]).x
        return out

    def _responsible(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A member for each row, drawn by its share of the density of the observed cells, (n,)."""
        if len(self.members) == 1:
            return torch.zeros(len(x), dtype=torch.long, device=x.device)
        share = torch.stack([chain.joint(x) for chain in self.members], 1).softmax(1)
        return torch.multinomial(share, 1, generator=generator).squeeze(1)

    def grad_log_prob(self, x: Tensor) -> Tensor:
        """∂ log ρ / ∂x of the real columns of complete rows, zero elsewhere, (n, d)."""
        grad = grad_log_density(self.chain.potential, x)
        return torch.where(self.base.is_real, grad, 0.0)

    def _sorted(self, order: list[int]) -> list[int]:
        """The order with every category before the real part that depends on it.

        A part that does not exist is skipped, which is normalised only if it is known by then to be absent.
        """
        order = list(order)
        for child, parent in self.parents.items():
            i, j = order.index(child), order.index(parent)
            if i < j:
                order[i], order[j] = parent, child
        return order


class _Gated(nn.Module):
    """g blind to the real parts that do not exist, because their category is seen to have another code than 0."""

    child: Tensor
    parent: Tensor

    def __init__(self, g: nn.Module, parents: Mapping[int, int]):
        super().__init__()
        self.g = g
        self.register_buffer("child", torch.tensor(list(parents), dtype=torch.long), persistent=False)
        self.register_buffer(
            "parent", torch.tensor(list(parents.values()), dtype=torch.long), persistent=False
        )
        self.to(next(g.parameters()).device)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        if not len(self.child):
            return self.g(x, level)
        own, switch = level.index_select(1, self.child), level.index_select(1, self.parent)
        absent = torch.isfinite(switch) & (x.index_select(1, self.parent) > 0)
        return self.g(x, level.index_copy(1, self.child, torch.where(absent, math.inf, own)))


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

    >>> from ctem.spaces import Category, Space
    >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).repeat(200, 1)
    >>> plan = Plan(width=16, blocks=1, members=1, recipe=Recipe(steps=300, batch_size=64))
    >>> density = fit_density(Space([Category(2)] * 2), x, plan)
    >>> bool(density.log_prob_exact(x[:1]) > math.log(0.4))
    True
    """
    base = ProductBase.fit(space, x).to(x.device)
    net = ClockNet(
        base,
        width=plan.width,
        blocks=plan.blocks,
        harmonics=plan.harmonics,
        members=plan.members,
        seed=seed,
    ).to(x.device)
    loss = _Loss(base, plan, parents or {})
    if held_out is None:
        rows, weight, held_out = _split(x, weights, plan.members, jitter, seed)
    else:
        weight = torch.ones(len(x), device=x.device) if weights is None else weights
        rows, weight = x, weight.expand(plan.members, -1)
        held_out = held_out.repeat_interleave(plan.members, 0)
    recipe = replace(plan.recipe, seed=seed)
    if max_time is not None:
        recipe = replace(recipe, steps=_planned(max_time, net, loss, rows, recipe, weight, checkpoint))

    # several comparisons of a row: a steadier choice
    judged = held_out.repeat(max(1, STEADY // len(held_out)), 1)

    def run(recipe: Recipe, phase: str) -> History:
        path = None if checkpoint is None else Path(f"{checkpoint}.{phase}")
        return train(
            net,
            loss,
            rows,
            recipe,
            held_out=judged,
            weights=weight,
            checkpoint=path,
            progress=progress,
            cuda_graph=x.is_cuda,
        )

    history = _held_then_annealed(net, recipe, run)
    level = best_level(net.eval(), loss.filled(held_out, torch.Generator(x.device).manual_seed(seed)))
    return Density(net, level, plan, history, seed=seed, parents=parents)


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
            whole = plan.whole if space.dim > 1 else 1.0
            self.parts.append(
                SharedClock(_noise_of_reals(base), low=FINEST, high=HIDDEN, reach=1.5, whole=whole, clean=1.0)
            )
        if space.discretes:
            high = HIDDEN if space.reals else None
            self.parts.append(Clocks(base, floor=FINEST, high=high, consistency=plan.consistency))
        device = base.log_table.device
        self.child = torch.tensor(list(parents), dtype=torch.long, device=device)
        self.parent = torch.tensor(list(parents.values()), dtype=torch.long, device=device)

    def __call__(
        self, g: Callable[[Tensor, Tensor], Tensor], x: Tensor, generator: torch.Generator
    ) -> Tensor:
        x = self.filled(x, generator)
        return torch.stack([part(g, x, generator) for part in self.parts]).sum()

    def filled(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """x with base draws for the real parts that do not exist: their density is known, so nothing is lost."""
        if not len(self.child):
            return x
        draw = torch.randn(len(x), len(self.child), generator=generator, dtype=x.dtype, device=x.device)
        part = x.index_select(1, self.child)
        absent = part.isnan() & (x.index_select(1, self.parent) > 0)
        return x.index_copy(1, self.child, torch.where(absent, draw, part))


def best_level(net: ClockNet, held_out: Tensor, count: int = 10) -> float:
    """The level of real columns at which the held-out rows are most likely; ρ_s is normalised at every level s.

    A bandwidth chosen by likelihood, from one training. Row r belongs to member r mod members.
    """
    if not net.space.reals:
        return FINEST
    observed = ~held_out.isnan()
    x = torch.where(observed, held_out, 0.0)
    levels = torch.logspace(math.log10(FINEST), math.log10(COARSEST), count).tolist()
    found = []
    with torch.no_grad():
        for s in levels:
            level = torch.where(net.base.is_real, s, 0.0).expand_as(x)
            found.append(float(net(x, torch.where(observed, level, math.inf)).double().mean()))
    return levels[max(range(count), key=found.__getitem__)]


def _split(
    x: Tensor, weights: Tensor | None, members: int, jitter: Jitter | None, seed: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Training rows, their weights for each member, and held-out rows, member after member.

    One member leaves out a tenth of the rows (at most 10 000); K members leave out one fold each.
    """
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
    loss: _Loss,
    rows: Tensor,
    recipe: Recipe,
    weights: Tensor | None,
    checkpoint: str | Path | None,
) -> int:
    """As many steps as fit into the time; a run that goes on keeps the number it began with."""
    if checkpoint is None:
        return _affordable(seconds, net, loss, rows, recipe, weights)
    note = Path(f"{checkpoint}.steps")
    if not note.exists():
        note.write_text(str(_affordable(seconds, net, loss, rows, recipe, weights)), encoding="utf8")
    return int(note.read_text(encoding="utf8"))


def _affordable(
    seconds: float, net: ClockNet, loss: _Loss, rows: Tensor, recipe: Recipe, weights: Tensor | None
) -> int:
    """How many steps fit, the annealing included, judged by a short rehearsal on a copy of the network."""
    rehearsal = replace(recipe, steps=8, evaluate_every=8, patience=None)
    copy = ClockNet(net.base, **net.options, members=net.members).to(rows.device)  # type: ignore[arg-type]
    train(copy, loss, rows, replace(rehearsal, steps=2, evaluate_every=2), weights=weights)
    began = time.perf_counter()
    train(copy, loss, rows, rehearsal, weights=weights)
    each = (time.perf_counter() - began) / 8
    return max(1, min(recipe.steps, int(seconds / each / 1.5)))
