r"""One pass instead of the chain rule: a space-time potential beside a density, for fast scores of complete rows.

    log ρ(x) ≈ log b(x) + g(x, s) − log Z

g learns from pairs across space and noise levels (``ctem.matching.spacetime``). It is another model than the density
beside it: the constant is sampled from that density, and how far the two are apart is measured on rows that neither has
seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from ctem.bases import ProductBase
from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.anyorder.objective import COARSEST, FINEST
from ctem.densities.fast.differences import Differences, node_count
from ctem.densities.fast.network import LevelNet
from ctem.densities.presence import gaps
from ctem.matching.noise import Noise
from ctem.matching.spacetime import ColumnComparisons, LevelComparisons
from ctem.partition import LogZ
from ctem.partition.log_z import estimate
from ctem.spaces import Category, Space
from ctem.training import History, Recipe, train

__all__ = ["FastDensity", "Gap", "SpaceTime", "fit_fast"]

LOW, HIGH = 2e-4, 5.0  # levels of real columns: lowest, and as good as the base
WIDEST = 0.1  # coarsest level that is chosen
NETWORK = {"width": 128, "blocks": 2, "dropout": 0.0, "harmonics": 3}
RECIPE = Recipe(steps=4000, learning_rate=2e-3, weight_decay=0.1, ema=0.998, evaluate_every=200, patience=6)
DRAWS = 2000  # for the constant
LIMIT = 8.0


class Gap(NamedTuple):
    """How far one pass and the density are apart on rows that neither has seen.

    >>> Gap(-0.1, 0.02, 0.98, 500).rank_correlation
    0.98
    """

    mean: float  # of one pass less density, in nats
    stderr: float
    rank_correlation: float  # Spearman's
    rows: int


class FastDensity:
    """Scores of complete encoded rows in one pass; the parts of a row that do not exist are nan.

    Arguments:
        net: the trained potential.
        level: noise level at which real columns are resolved.
        log_z: its constant.
        gap: to the density beside it.
        history: of the training.

    >>> from ctem.spaces import Real
    >>> net = LevelNet(ProductBase(Space([Real()])), width=8)  # untrained: N(0, 1)
    >>> fast = FastDensity(net, 1e-3, LogZ(0.0, 0.0, math.inf, "known"), Gap(0.0, 0.0, 1.0, 0), History())
    >>> fast.log_prob(torch.zeros(1, 1)).exp()
    tensor([0.3989], dtype=torch.float64)
    """

    def __init__(self, net: LevelNet, level: float, log_z: LogZ, gap: Gap, history: History):
        self.net, self.level, self.log_z, self.gap, self.history = net.eval(), level, log_z, gap, history

    def log_prob(self, x: Tensor) -> Tensor:
        """log b + g − log Z, float64, shape (n,)."""
        return self._joint(x).double() - self.log_z.value

    def _joint(self, x: Tensor) -> Tensor:
        return _differences(self.net, self.level).one_pass(_codes(self.net.base, x))


def _codes(base: ProductBase, x: Tensor) -> Tensor:
    """Rows in which labels that share a code are not told apart (``ctem.densities.anyorder.apart``)."""
    return torch.where(base.is_real, x, x.floor())


def _differences(net: LevelNet, level: float) -> Differences:
    points = max(65, node_count(level, LIMIT))
    return Differences(net, net.base, level, points, LIMIT, 2**17 if net.last.is_cuda else 2**13)


@dataclass(frozen=True)
class SpaceTime:
    """Comparisons of complete rows: of single columns for its discrete ones, across levels for its real ones.

    Arguments:
        base: the base.
        parents: for a real column that exists only where a category has code 0, that category.

    >>> net = LevelNet(ProductBase(Space([Category(2)] * 3)), width=8)
    >>> round(SpaceTime(net.base, {})(net, torch.zeros(4, 3), torch.Generator().manual_seed(0)).item(), 3)
    0.693
    """

    base: ProductBase
    parents: dict[int, int]

    def __post_init__(self) -> None:
        space, found = self.base.space, list[ColumnComparisons | LevelComparisons]()
        if space.reals:
            noise = _noise_of_reals(self.base)
            found.append(LevelComparisons(noise, low=LOW, high=HIGH, reach=1.5, whole=1.0, clean=1.0))
        if space.discretes:
            found.append(ColumnComparisons(self.base, low=LOW, high=HIGH if space.reals else None))
        object.__setattr__(self, "_parts", found)

    def __call__(
        self, g: Callable[[Tensor, Tensor], Tensor], x: Tensor, generator: torch.Generator
    ) -> Tensor:
        """The mean loss over rows x (n, d)."""
        x = self.filled(x, generator)
        return torch.stack([part(g, x, generator) for part in self._parts]).sum()  # type: ignore[attr-defined]

    def filled(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """x with base draws for the real parts that do not exist: their density is known, so nothing is lost."""
        for child, parent in self.parents.items():
            draw = torch.randn(len(x), generator=generator, dtype=x.dtype, device=x.device)
            absent = x[:, child].isnan() & (x[:, parent] > 0)
            filled = torch.where(absent, draw, x[:, child]).unsqueeze(1)
            x = torch.cat([x[:, :child], filled, x[:, child + 1 :]], 1)
        return x


def _noise_of_reals(base: ProductBase) -> Noise:
    """The noise of the real columns; ordinals, which stay clean here, as categories: they need no heat kernel."""
    columns = dict(zip(base.space.names, base.space.columns, strict=True))
    plain = {name: Category(c.size) if isinstance(c, Category) else c for name, c in columns.items()}
    unordered = ProductBase(Space(plain))
    unordered.load_state_dict(base.state_dict())
    return Noise(unordered).to(base.log_table.device)


def fit_fast(
    density: AnyOrderDensity,
    rows: Tensor,
    weights: Tensor,
    held_out: Tensor,
    *,
    seed: int = 0,
    max_steps: int | None = None,
    **how: Any,
) -> FastDensity:
    """Train a potential beside a density, and find its constant and how far it is from the density.

    Arguments:
        density: the density, whose first member has not seen the held-out rows either.
        rows: (n, d).
        weights: of the rows (n,), 0 for held-out ones.
        held_out: rows (h, d).
        seed: of everything random.
        max_steps: at most so many steps.
        how: further arguments of ``ctem.training.train``.

    >>> from ctem.densities.anyorder import AnyOrderNet
    >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).repeat(50, 1)
    >>> base = ProductBase.fit(Space([Category(2)] * 2), x)
    >>> density = AnyOrderDensity(AnyOrderNet(base, width=8), 1e-3, [[0, 1]])
    >>> fit_fast(density, x, torch.ones(100), x[:10], max_steps=10).log_z.ess > 100
    True
    """
    base, generator = density.base, torch.Generator(rows.device).manual_seed(seed)
    rows, held_out = _codes(base, rows), _codes(base, held_out)
    loss = SpaceTime(base, density.parents)
    correlation = density.net.inputs.correlation
    net = LevelNet(base, **NETWORK, correlation=correlation, seed=seed)  # type: ignore[arg-type]
    steps = RECIPE.steps if max_steps is None else min(max_steps, RECIPE.steps)
    recipe = replace(RECIPE, steps=steps, evaluate_every=min(steps, RECIPE.evaluate_every), seed=seed)
    history = train(
        net, loss, rows, recipe, held_out=held_out, weights=weights, cuda_graph=rows.is_cuda, **how
    )
    level = _best_level(net.eval(), loss.filled(held_out, generator))
    log_z = _log_z(net, level, density, generator)
    found = FastDensity(net, level, log_z, Gap(math.nan, math.nan, math.nan, 0), history)
    found.gap = _gap(found, density, held_out)
    return found


def _best_level(net: LevelNet, held_out: Tensor) -> float:
    """The level of real columns at which held-out rows are most likely; ρ_s is normalised at every level s."""
    if not net.space.reals:
        return LOW
    levels = torch.logspace(math.log10(LOW), math.log10(WIDEST), 10).tolist()
    return max(levels, key=lambda level: float(_differences(net, level).one_pass(held_out).double().mean()))


def _log_z(net: LevelNet, level: float, density: AnyOrderDensity, generator: torch.Generator) -> LogZ:
    """From samples of the density at the potential's own level: finer ones would miss what it blurs."""
    near = density.altered(level=min(max(level, FINEST), COARSEST))
    x = near.sample(DRAWS, generator)
    weights = _differences(net, level).one_pass(_codes(net.base, x)).double() - near.log_prob(x)
    return estimate(weights, "importance sampling from the density")


def _gap(fast: FastDensity, density: AnyOrderDensity, held_out: Tensor) -> Gap:
    """On complete held-out rows, by the member that has not seen them."""
    blind = density.altered(member=0)
    x = held_out[~gaps(held_out, density.parents).any(1)].unique(dim=0)
    if len(x) < 2:
        return Gap(math.nan, math.nan, math.nan, len(x))
    one, other = fast.log_prob(x), blind.log_prob(x)
    apart = one - other
    return Gap(
        float(apart.mean()), float(apart.std() / math.sqrt(len(x))), _rank_correlation(one, other), len(x)
    )


def _rank_correlation(one: Tensor, other: Tensor) -> float:
    """Spearman's; nan where all of either are equal."""
    ranks = [rankdata(part.cpu().numpy()) for part in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1]) if all(part.std() > 0 for part in ranks) else math.nan
