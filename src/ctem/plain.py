r"""The paper's plain objective as a density on encoded rows: one comparison kernel, then log Z.

f = log b + g is learned from pairs x, y ~ k(·|x) by (tanh(Δ/2) − 1)²; reals move by a sphere step and discrete columns
by a redraw. The constant comes from enumeration, a grid or annealing. There are no marginals and no conditionals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ctem.bases import ProductBase
from ctem.density import LIMIT
from ctem.energies import MLP, Tilted, grad_log_density
from ctem.kernels import Gaussian, HammingOne, Kernel, Mixture, Product, Redraw, Sphere
from ctem.losses import pair_loss
from ctem.partition import LogZ, log_z_annealed, log_z_enumerate, log_z_grid
from ctem.plans import Plan
from ctem.samplers import MALA, Adapted, Alternate, Gibbs, Sampler, run
from ctem.samplers.contract import evaluated
from ctem.spaces import MAX_STATES, Space
from ctem.training import History, train

__all__ = ["PlainDensity", "fit_plain"]

SHARE = 0.5  # ε = 0.5 σ̄, and σ̄ = 1 in encoded units
BURN_IN = 400


class PlainDensity:
    """A fitted plain energy on complete encoded rows x (n, d).

    Arguments:
        f: the trained log-potential.
        plan: what it was made by.
        history: of the training.
        log_z: its constant; found by the best means that apply when left out.
        seed: of the search for the constant.

    >>> from ctem.spaces import Category
    >>> space = Space([Category(2)] * 2)
    >>> f = Tilted(ProductBase(space), MLP(space, width=8))
    >>> density = PlainDensity(f, Plan.suited(100, 2), History())
    >>> round(float(density.log_prob(space.states()).exp().sum()), 5)
    1.0
    """

    parents: Mapping[int, int] = {}

    def __init__(self, f: Tilted, plan: Plan, history: History, log_z: LogZ | None = None, seed: int = 0):
        self.f, self.plan, self.history = f.eval(), plan, history
        self.base, self.space, self.level = f.base, f.space, 0.0
        generator = torch.Generator(f.base.log_table.device).manual_seed(seed)
        self.log_z = self._constant(generator) if log_z is None else log_z

    def log_prob(self, x: Tensor) -> Tensor:
        """log b + g − log Z, float64, shape (n,)."""
        return torch.cat([evaluated(self.f, part).double() for part in x.split(2**13)]) - self.log_z.value

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n chains from the base: MALA on reals, Gibbs on discrete columns."""
        adapted = Adapted(lambda step: MALA(self.space, step), step=0.1) if self.space.reals else None
        return run(self._moves(adapted), self.f, self.base.sample(n, generator), BURN_IN, generator).x

    def grad_log_prob(self, x: Tensor) -> Tensor:
        """∂ log ρ / ∂x of the real columns, zero elsewhere, (n, d)."""
        return torch.where(self.base.is_real, grad_log_density(self.f, x), 0.0)

    def _moves(self, reals: Sampler | None) -> Sampler:
        moves = [reals] if reals is not None else []
        return Alternate(*moves, *([Gibbs(self.space)] if self.space.discretes else []))

    def _constant(self, generator: torch.Generator) -> LogZ:
        space, device = self.space, self.base.log_table.device
        if space.n_states <= MAX_STATES:
            return log_z_enumerate(self.f, space, device=device)
        states = math.prod(space.sizes[j] for j in space.discretes)
        if states <= {1: 2**10, 2: 2**4}.get(len(space.reals), 0):
            return log_z_grid(self.f, space, (-LIMIT, LIMIT), device=device)
        moves = self._moves(
            MALA(space, 0.1) if space.reals else None
        )  # one that adapts would bias the weights
        return log_z_annealed(self.f, self.base, moves, self.plan.log_z_samples, generator)


def fit_plain(
    space: Space,
    x: Tensor,
    plan: Plan,
    *,
    seed: int = 0,
    weights: Tensor | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> PlainDensity:
    """Fit the paper's objective to complete encoded rows x (n, d); a tenth of them decides when to stop.

    Arguments:
        space: of the rows; real columns standardised.
        x: the rows, without nan.
        plan: width of the network and the recipe.
        seed: of everything random.
        weights: of the rows (n,).
        checkpoint: file to resume from after a kill.
        progress: show a bar.

    >>> from ctem.spaces import Real
    >>> from ctem.training import Recipe
    >>> x = torch.randn(300, 1, generator=torch.Generator().manual_seed(0))
    >>> plan = Plan(width=8, blocks=1, members=1, recipe=Recipe(steps=20))
    >>> fit_plain(Space([Real()]), x, plan).log_z.method
    'grid'
    """
    base = ProductBase.fit(space, x).to(x.device)
    f = Tilted(base, MLP(space, width=plan.width, seed=seed)).to(x.device)
    kernel = _kernel(base)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)
    held = order[: max(1, min(len(x) // 10, 10_000))]
    weight = torch.ones(len(x), device=x.device) if weights is None else weights.to(x.device).clone()
    weight[held] = 0.0
    history = train(
        f,
        lambda f, rows, generator: pair_loss(f, rows, kernel, generator, m=4),
        x,
        replace(plan.recipe, seed=seed),
        held_out=x[held],
        weights=weight,
        checkpoint=checkpoint,
        progress=progress,
    )
    return PlainDensity(f, plan, history, seed=seed)


def _kernel(base: ProductBase) -> Kernel:
    """Reals by a sphere (a Gaussian step in one dimension), categories by one redraw; together in mixed rows."""
    space, parts = base.space, list[Kernel]()
    if space.reals:
        parts.append((Sphere if len(space.reals) > 1 else Gaussian)(space, SHARE))
    if space.discretes:
        parts.append(Mixture([HammingOne(space), Redraw(base)], [0.5, 0.5]))
    return parts[0] if len(parts) == 1 else Mixture([Product(*parts), *parts], [0.5, 0.25, 0.25])
