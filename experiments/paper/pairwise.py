r"""Our row of the paper's Table 1: a tilted normal, cross-fitted, by the log score of pairs; then log Z.

It is built of the paper's pairs, but neither its loss nor its kernels are the paper's, which ``ctem.EnergyModel`` takes
by default: here the rule is the log score instead of the constant target, the energy tilts a base b, comparisons leave
b invariant, and several networks are each stopped by rows that they have not seen. What that gains over the paper's
settings is in experiments/results/table1.md. The networks g_k learn log ρ/b from pairs x, y ~ k(·|x):

    real columns       y = √(1−β²) x + βξ, b = N(0, I)            (OrnsteinUhlenbeck)
    discrete columns   drawn again from b, each with probability β (Refresh), and one that always changes (Redraw)

K networks are trained as one program, each without one fold of the rows. Rows that a network has not seen decide on
the step and on the weight decay. The density is the mean of the K normalised ones. It has no marginals and no
conditionals.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctem.bases import ProductBase
from ctem.energies import MLPs, Tilted, grad_log_density
from ctem.matching.kernels import Kernel, OrnsteinUhlenbeck, Product, Redraw, Refresh
from ctem.matching.losses import Rule, log_score
from ctem.partition import LogZ, log_z_annealed, log_z_enumerate, log_z_grid, log_z_importance
from ctem.samplers import MALA, Adapted, Alternate, Gibbs, Sampler, run
from ctem.spaces import MAX_STATES, Space
from ctem.training import History, Recipe, train

__all__ = ["PairLoss", "PairwiseDensity", "comparison_kernels", "constant", "fit_pairwise", "folds_of"]

RECIPE = Recipe(steps=4000, learning_rate=1e-3, ema=0.99, evaluate_every=100, patience=8)
FEWEST = 4  # rows of a fold
JUDGED = (
    2048,
    8192,
)  # held-out rows of a member: few rows are judged by several comparisons each, of many a part
DRAWS = 200_000  # of the importance sampling
ENOUGH = 1000.0  # effective draws, so that the standard error of log Z is below about 0.03; else annealing
CHAINS = 1000  # of the annealing
LIMIT, POINTS, MOST_NODES = 8.0, 401, 2**19  # a grid on [−8, 8], and how many nodes are too many
CANDIDATES = 64  # draws of the base, one of which starts a chain
BURN_IN = 400
BATCH = 2**16  # rows evaluated at once


class PairLoss:
    """The mean of ℓ(Δ) over members, their rows and comparisons, for networks g_k that tilt a base.

    Δ = f(x) − f(y) + log k(y|x)/k(x|y) with f = log b + g_k, as in :func:`~ctem.matching.losses.pair_loss`. Each kernel
    in turn draws two comparisons of a row; those of real columns are ξ and −ξ.

    Arguments:
        base: b.
        kernels: where comparisons come from.
        rule: ℓ.

    >>> from ctem.spaces import Real
    >>> base = ProductBase(Space([Real()]))
    >>> loss = PairLoss(base, comparison_kernels(base, [0.5, 0.25]))
    >>> g, x = MLPs(base.space, members=3, width=8), torch.zeros(3, 20, 1)
    >>> loss.each(g, x, torch.Generator()).shape, loss(g, x, torch.Generator()).shape
    (torch.Size([3]), torch.Size([]))
    """

    def __init__(self, base: ProductBase, kernels: Sequence[Kernel], rule: Rule = log_score):
        self.base, self.kernels, self.rule = base, list(kernels), rule

    def __call__(self, g: MLPs, x: Tensor, generator: torch.Generator) -> Tensor:
        """The mean over members, for rows x (members, n, d), each member's own."""
        return self.each(g, x, generator).mean()

    def each(self, g: MLPs, x: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of every member (members,)."""
        members, n, d = x.shape
        rows = x.flatten(0, 1)
        drawn = [kernel.compare(rows, generator, m=2) for kernel in self.kernels]
        ratio = torch.cat([pair.log_ratio for pair in drawn]).view(-1, members, n)
        both = torch.cat([rows.unsqueeze(0), *(pair.y for pair in drawn)])  # (1 + m, members · n, d)
        both = both.view(-1, members, n, d).transpose(0, 1).flatten(1, 2)
        f = (g(both) + self.base.log_prob(both)).view(members, -1, n)
        return self.rule(f[:, :1] - f[:, 1:] + ratio.transpose(0, 1)).mean((1, 2))


def comparison_kernels(base: ProductBase, rates: Sequence[float]) -> list[Kernel]:
    """Kernels that leave the base invariant at every rate β; where columns are discrete, one of them redrawn too.

    Mixed rows move as a whole at every rate, and in their real columns alone at the last one.

    >>> from ctem.spaces import Category, Real
    >>> comparison_kernels(ProductBase(Space([Real(), Category(3)])), [0.5])
    [Product(OrnsteinUhlenbeck(columns=['x0']), Refresh(columns=['x1'])),
     OrnsteinUhlenbeck(columns=['x0']), Redraw(columns=['x1'])]
    """
    if not rates:
        raise ValueError("rates: expected at least one β in (0, 1]; got none.")
    space = base.space
    real = [OrnsteinUhlenbeck(space, rate) for rate in rates] if space.reals else []
    discrete = [Refresh(base, rate) for rate in rates] if space.discretes else []
    if not discrete:
        return [*real]
    if not real:
        return [*discrete, Redraw(base)]
    return [*(Product(a, b) for a, b in zip(real, discrete, strict=True)), real[-1], Redraw(base)]


class PairwiseDensity:
    """The mean of K normalised energies on complete encoded rows x (n, d).

        ρ(x) = 1/K Σ_k exp(log b(x) + g_k(x) − log Z_k)

    Arguments:
        net: the trained g_k.
        base: b.
        log_zs: log Z_k of every member, each with its standard error.
        history: of the training.
        settings: what it was made by, for the record.

    >>> from ctem.spaces import Category
    >>> base = ProductBase(Space([Category(2)] * 2))
    >>> net = MLPs(base.space, members=2, width=8)
    >>> log_zs = [constant(Tilted(base, net.member(k)), torch.Generator()) for k in range(2)]
    >>> density = PairwiseDensity(net, base, log_zs, History(), {})
    >>> round(float(density.log_prob(base.space.states()).exp().sum()), 5)
    1.0
    """

    parents: Mapping[int, int] = {}

    def __init__(
        self,
        net: MLPs,
        base: ProductBase,
        log_zs: Sequence[LogZ],
        history: History,
        settings: Mapping[str, Any],
    ):
        self.net, self.base, self.space = net.eval(), base, base.space
        self.log_zs, self.history, self.settings = list(log_zs), history, dict(settings)
        values = [log_z.value for log_z in log_zs]
        self._log_z = torch.tensor(values, dtype=torch.float64, device=base.log_table.device)

    @property
    def log_z(self) -> LogZ:
        """The constant of 1/K Σ_k exp f_k; its standard error is that of ``log_prob``, if the errors of all agree."""
        members = len(self.log_zs)
        value = float(self._log_z.logsumexp(0)) - math.log(members)
        stderr = sum(log_z.stderr for log_z in self.log_zs) / members
        method = ", ".join(dict.fromkeys(log_z.method for log_z in self.log_zs))
        return LogZ(value, stderr, min(log_z.ess for log_z in self.log_zs), method)

    def log_prob(self, x: Tensor) -> Tensor:
        """log ρ, float64, shape (n,)."""
        return self.log_prob_each(x).logsumexp(0) - math.log(self.net.members)

    def log_prob_each(self, x: Tensor) -> Tensor:
        """log ρ_k of every member, float64, shape (members, n)."""
        with torch.no_grad():
            return torch.cat([self.values(part) for part in x.split(BATCH // self.net.members + 1)], dim=1)

    def grad_log_prob(self, x: Tensor) -> Tensor:
        """∂ log ρ / ∂x of the real columns, zero elsewhere, (n, d)."""
        grad = grad_log_density(lambda rows: self.values(rows).logsumexp(0), x, BATCH // self.net.members + 1)
        return torch.where(self.base.is_real, grad, 0.0)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n chains, each of a member drawn at random: MALA on reals, Gibbs on discrete columns.

        A chain starts at one of several draws of the base, chosen by exp g_k, so that far modes have their weight.
        """
        device = self.base.is_real.device
        owner = torch.randint(self.net.members, (n,), generator=generator, device=device)
        x = self.base.sample(n, generator)
        for k in owner.unique().tolist():
            mine = (owner == k).nonzero().squeeze(-1)
            x[mine] = self._chains(k, len(mine), generator)
        return x

    def values(self, x: Tensor) -> Tensor:
        """log ρ_k (members, n), differentiable in x."""
        return (self.net(x) + self.base.log_prob(x)).double() - self._log_z.unsqueeze(1)

    def _chains(self, k: int, n: int, generator: torch.Generator) -> Tensor:
        """Where n chains of member k end (n, d)."""
        f = Tilted(self.base, self.net.member(k))
        draws = self.base.sample(CANDIDATES * n, generator)
        with torch.no_grad():
            g = torch.cat([f.g(part) for part in draws.split(BATCH)]).view(n, CANDIDATES)
        chosen = torch.multinomial(g.softmax(1), 1, generator=generator)
        start = draws.view(n, CANDIDATES, -1)[torch.arange(n, device=g.device), chosen[:, 0]]
        step = Adapted(lambda step: MALA(self.space, step), step=0.1) if self.space.reals else None
        return run(_moves(self.space, step), f, start, BURN_IN, generator).x


def constant(f: Tilted, generator: torch.Generator, draws: int = DRAWS) -> LogZ:
    """log Z of a tilted base by the best means that apply.

    A sum over all states of a finite space; a grid of one or two real columns at few discrete states; else importance
    sampling from the base, and annealing from it where the effective sample size is poor.

    Arguments:
        f: log b + g.
        generator: the randomness, on the device of f.
        draws: of the importance sampling.

    >>> from ctem.spaces import Real
    >>> methods = []
    >>> for dim in (1, 3):
    ...     base = ProductBase(Space([Real()] * dim))
    ...     f = Tilted(base, MLPs(base.space, members=1, width=8).member(0))
    ...     methods.append(constant(f, torch.Generator().manual_seed(0), draws=2000).method)
    >>> methods
    ['grid', 'importance']
    """
    space, base = f.space, f.base
    device = base.log_table.device
    if space.n_states <= MAX_STATES:
        return log_z_enumerate(f, space, device=device)
    states = math.prod(space.sizes[j] for j in space.discretes)
    if len(space.reals) <= 2 and states * POINTS ** len(space.reals) <= MOST_NODES:
        return log_z_grid(f, space, (-LIMIT, LIMIT), POINTS, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # few effective draws: annealing is next, and warns itself
        found = log_z_importance(f, base, draws, generator)
    if found.ess >= min(ENOUGH, draws / 10):
        return found
    fixed = MALA(space, 0.1) if space.reals else None  # a step that adapts would bias the weights
    moves = max(1, len(space.discretes) // 4)  # each is of one discrete column
    return log_z_annealed(f, base, _moves(space, fixed), CHAINS, generator, moves=moves)


def fit_pairwise(
    space: Space,
    x: Tensor,
    *,
    seed: int = 0,
    width: int = 128,
    depth: int = 3,
    folds: int = 8,
    weight_decays: Sequence[float] = (0.2, 1.0, 5.0),
    rates: Sequence[float] = (0.5, 0.25),
    rule: Rule = log_score,
    recipe: Recipe = RECIPE,
    log_z_draws: int = DRAWS,
    weights: Tensor | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = False,
) -> PairwiseDensity:
    """Fit tilted energies to complete encoded rows x (n, d) by K-fold cross-fitting.

    Arguments:
        space: of the rows; real columns standardised.
        x: the rows, without nan.
        seed: of everything random.
        width, depth: hidden units per layer, and hidden layers.
        folds: K, as far as each has 4 rows; with one fold a tenth of the rows is held out.
        weight_decays: the out-of-fold loss chooses one of them.
        rates: β of the comparisons, in turn.
        rule: ℓ of a gap.
        recipe: how long and how fast; its seed and weight decay are replaced.
        log_z_draws: of the importance sampling, where log Z needs it.
        weights: of the rows (n,).
        checkpoint: a killed fit resumes from files CHECKPOINT.0, CHECKPOINT.1, …, one for each weight decay.
        progress: show a bar.

    >>> from ctem.spaces import Real
    >>> x = torch.randn(300, 1, generator=torch.Generator().manual_seed(0))
    >>> recipe = Recipe(steps=20, evaluate_every=10)
    >>> density = fit_pairwise(Space([Real()]), x, width=8, folds=3, weight_decays=[1.0], recipe=recipe)
    >>> density.log_z.method, density.net.members
    ('grid', 3)
    """
    x, share = _checked(space, x, weights, weight_decays)
    base = ProductBase.fit(space, x).to(x.device)
    loss = PairLoss(base, comparison_kernels(base, rates), rule)
    unseen = folds_of(len(x), folds, seed)
    seen = share.expand(len(unseen), -1).clone()
    for k, fold in enumerate(unseen):
        seen[k, fold] = 0.0
    tried = []
    for i, decay in enumerate(weight_decays):
        net = MLPs(space, len(unseen), width, depth, seed).to(x.device)
        history = train(
            net,
            loss,
            x,
            replace(recipe, seed=seed, weight_decay=decay),
            held_out=_held_out(x, unseen, share),
            weights=seen,
            checkpoint=None if checkpoint is None else f"{checkpoint}.{i}",
            progress=progress,
            cuda_graph=x.is_cuda and not space.discretes,
        )
        tried.append((history.best_loss, i, net, history))
    _, i, net, history = min(tried, key=lambda one: one[:2])
    generator = torch.Generator(x.device).manual_seed(seed)
    potentials = [Tilted(base, net.member(k)) for k in range(net.members)]
    log_zs = [constant(f, generator, log_z_draws) for f in potentials]
    settings = {
        "seed": seed,
        "width": width,
        "depth": depth,
        "folds": folds,
        "rates": list(rates),
        "weight_decay": weight_decays[i],
    }
    return PairwiseDensity(net, base, log_zs, history, settings)


def folds_of(n: int, folds: int, seed: int) -> list[Tensor]:
    """The rows that each member does not see, by number: folds of (nearly) equal size, or a tenth for one member.

    >>> [len(fold) for fold in folds_of(100, 3, seed=0)], [len(fold) for fold in folds_of(7, 3, seed=0)]
    ([34, 33, 33], [1])
    """
    if folds < 1:
        raise ValueError(f"folds: expected at least 1; got {folds}.")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    k = min(folds, n // FEWEST)
    return list(order.tensor_split(k)) if k > 1 else [order[: max(1, n // 10)]]


def _checked(
    space: Space, x: Tensor, weights: Tensor | None, weight_decays: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """The rows that weigh something, and their weights."""
    if not weight_decays:
        raise ValueError("weight_decays: expected at least one; got none.")
    if x.ndim != 2 or x.shape[1] != space.dim or bool(x.isnan().any()):
        raise ValueError(
            f"x: expected complete rows (n, {space.dim}), without nan; got shape {tuple(x.shape)}."
        )
    share = torch.ones(len(x), dtype=torch.float64) if weights is None else weights.double().cpu()
    if share.shape != (len(x),) or not bool((share.isfinite() & (share >= 0)).all()):
        raise ValueError(f"weights: expected ({len(x)},) finite numbers ≥ 0; got shape {tuple(share.shape)}.")
    kept = share > 0
    if int(kept.sum()) < 2:
        raise ValueError(f"x: expected at least 2 rows of weight > 0; got {int(kept.sum())}.")
    return x[kept.to(x.device)], share[kept]


def _held_out(x: Tensor, folds: Sequence[Tensor], share: Tensor) -> Tensor:
    """As many rows of every fold (members, h, d), each about as often as its weight says, without randomness."""
    low, high = JUDGED
    count = min(max(low, *(len(fold) for fold in folds)), high)
    at = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    picks = []
    for fold in folds:
        total = share[fold].cumsum(0)
        picks.append(fold[torch.searchsorted(total / total[-1], at).clamp(max=len(fold) - 1)])
    return x[torch.stack(picks).to(x.device)]


def _moves(space: Space, reals: Sampler | None) -> Sampler:
    """One step of the real columns, if there are any, then one of a discrete column."""
    moves = [] if reals is None else [reals]
    return Alternate(*moves, *([Gibbs(space)] if space.discretes else []))
