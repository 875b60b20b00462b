r"""The rivals' losses beside the constant target, all with the trainer's interface ``loss(f, x, generator)``.

    Pairs                     E ℓ(Δ) over pairs: constant target, CNCE, concrete scores, score entropy (by the rule)
    DenoisedRatios            E ℓ(Δ, R), R = q(y|x₀)/q(x|x₀): concrete scores and score entropy of noised rows
    EnergyDiscrepancy         E log (w + Σ_i e^{f(x_i) − f(x)})/M, x_i drawn from a noised x
    ColumnDiscrepancy         the same along one column: "grid"
    PseudoLikelihood          −E log ρ_f(x_j | x_−j)
    RatioMatching             E Σ_j σ(f(x^j) − f(x))², x^j = x with bit j flipped
    NoiseContrast             logistic regression of data against draws of a base
    DenoisingScores           E |∇f(x + σξ) + ξ/σ|²
    SlicedScores              E v·∇(v·∇f) + ½(v·∇f)²
    PersistentDivergence      E f(chains) − E f(x), in ``ctem.samplers.persistent``

Each is an :class:`Objective`: ``train`` takes it as its loss, :class:`ctem.EnergyModel` as its ``rule``. In expectation
each is least at log ρ, up to what it leaves open (a constant, but for NoiseContrast). Points that are evaluated beside
the rows stand in leading axes, (m, n, d).
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ctem.energies import LogPotential, expect_values
from ctem.matching.kernels import Kernel
from ctem.matching.losses import (
    Base,
    RatioRule,
    Rule,
    brier,
    denoised_score_entropy,
    denoising_score_matching,
    log_score,
    pair_loss,
)
from ctem.matching.noise import Noise
from ctem.spaces import Space

__all__ = [
    "ColumnDiscrepancy",
    "DenoisedRatios",
    "DenoisingScores",
    "EnergyDiscrepancy",
    "NoiseContrast",
    "Objective",
    "Pairs",
    "PseudoLikelihood",
    "RatioMatching",
    "SlicedScores",
]

GUIDED_FLOOR = 0.1  # share of the columns that are drawn uniformly beside those that the gradient points at


@runtime_checkable
class Objective(Protocol):
    """A loss of a log-potential on rows, with randomness of its own: what ``ctem.train`` minimises.

    A new one writes ``__call__(f, x, generator)`` for encoded rows x (n, d), and what its minimum leaves open of f.

    >>> from ctem.matching.kernels import HammingOne
    >>> from ctem.spaces import Category
    >>> isinstance(Pairs(HammingOne(Space([Category(2)]))), Objective)
    True
    """

    leaves_open: str = "a constant"

    def __call__(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> Tensor:
        """The mean loss over rows x (n, d)."""
        ...


class Pairs(Objective):
    """The mean of ℓ(Δ) over m comparisons of each row (:func:`~ctem.matching.losses.pair_loss`).

    Arguments:
        kernel: where comparisons come from.
        rule: ℓ: ``brier`` is the constant target, ``log_score`` conditional noise contrast, ``concrete_score`` and
            ``score_entropy`` their namesakes.
        m: comparisons of each row.

    >>> from ctem.matching.kernels import HammingOne
    >>> from ctem.spaces import Category
    >>> Pairs(HammingOne(Space([Category(2)])))(lambda x: x[..., 0], torch.ones(4, 1), torch.Generator())
    tensor(0.2893)
    """

    def __init__(self, kernel: Kernel, rule: Rule = brier, m: int = 4):
        self.kernel, self.rule, self.m = kernel, rule, m

    def __call__(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> Tensor:
        return pair_loss(f, x, self.kernel, generator, self.m, self.rule)


class DenoisedRatios(Objective):
    r"""The mean of ℓ(Δ, R) over pairs of a noised row x ~ q_s(·|x₀) and y ~ k(·|x), with R = q_s(y|x₀)/q_s(x|x₀).

    Given x, the mean of R is ρ_s(y)/ρ_s(x), with ρ_s the law of noised rows; so the loss is least at f = log ρ_s + C.
    Concrete scores (Meng et al. 2022) and score entropy (Lou et al. 2024) are trained in this form by their authors.
    ``Pairs`` needs no noise and has the minimum of s → 0. But where ρ is almost 0 its terms fall without bound, as −Δ
    or −e^{Δ}, and only rows that never occur would hold them. Here every term is at least 0, and noise bounds R.

    Arguments:
        kernel: k; it must be symmetric.
        noise: q.
        level: s; on bits with a uniform base each is flipped with probability (1 − e^{−s})/2.
        rule: ℓ: ``denoised_score_entropy`` or ``denoised_concrete_score``.
        m: comparisons of each row.

    >>> from ctem.bases import ProductBase
    >>> from ctem.matching.kernels import HammingOne
    >>> from ctem.spaces import Category
    >>> space = Space([Category(2)] * 4)
    >>> loss = DenoisedRatios(HammingOne(space), Noise(ProductBase(space)), level=50.0)  # noise alone: all ratios are 1
    >>> loss(lambda x: 0 * x[..., 0], torch.zeros(9, 4), torch.Generator())
    tensor(0.)
    """

    leaves_open = "a constant, and the noise"

    def __init__(
        self, kernel: Kernel, noise: Noise, level: float, rule: RatioRule = denoised_score_entropy, m: int = 4
    ):
        self.kernel, self.noise, self.level, self.rule, self.m = kernel, noise, level, rule, m

    def __call__(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> Tensor:
        level = x.new_full((len(x),), self.level)
        noisy = self.noise.sample(x, level, generator)
        y = self.kernel.compare(noisy, generator, self.m).y
        there = self.noise.log_prob(y.flatten(0, 1), x.repeat(self.m, 1), level.repeat(self.m))
        log_ratio = there.view(self.m, -1) - self.noise.log_prob(noisy, x, level)
        gap = expect_values(f(noisy), noisy) - _values(f, y)
        return self.rule(gap, log_ratio.exp()).mean()


class EnergyDiscrepancy(Objective):
    r"""E log (w + Σ_i e^{f(x_i) − f(x)})/M with y ~ k(·|x) and M points x_i ~ k(·|y), k symmetric.

    For M → ∞ this is E log Σ_z k(z|y) e^{f(z) − f(x)}, least at f = log ρ + C: given y, e^f k is the posterior of x.
    ``Refresh`` with a uniform base is the Bernoulli noise of Schröder et al. 2024 (rate 2ε on bits) and its uniform
    heat kernel, ``Grid`` the ordinal one, ``Gaussian`` that of Schröder et al. 2023; ``Mixture`` mixes them.

    Arguments:
        kernel: k; it must be symmetric.
        m: M.
        w: steadies the estimate; its effect vanishes as M grows.

    >>> from ctem.bases import ProductBase
    >>> from ctem.matching.kernels import Refresh
    >>> from ctem.spaces import Category
    >>> loss = EnergyDiscrepancy(Refresh(ProductBase(Space([Category(2)] * 4)), rate=0.2), w=0.0)
    >>> abs(loss(lambda x: 0 * x[..., 0], torch.zeros(9, 4), torch.Generator())) < 1e-6
    tensor(True)
    """

    def __init__(self, kernel: Kernel, m: int = 32, w: float = 1.0):
        self.kernel, self.m, self.w, self.checked = kernel, m, w, False

    def __call__(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> Tensor:
        y = self._symmetric(x, generator, 1)[0]
        return _discrepancy(f, x, self._symmetric(y, generator, self.m), self.w)

    def _symmetric(self, x: Tensor, generator: torch.Generator, m: int) -> Tensor:
        y, log_ratio = self.kernel.compare(x, generator, m)
        if not self.checked and bool((log_ratio != 0).any()):
            raise ValueError(f"kernel: expected a symmetric one for energy discrepancy; got {self.kernel!r}.")
        self.checked = True  # once: looking waits for the device
        return y


class ColumnDiscrepancy(Objective):
    """Energy discrepancy along one column: a random column is forgotten, and redrawn uniformly M times.

    The "grid" form of Schröder et al. 2024. For M → ∞ it is pseudo-likelihood, by sampling instead of a sum.

    Arguments:
        space: its discrete columns are used.
        m, w: as in :class:`EnergyDiscrepancy`.

    >>> from ctem.spaces import Category
    >>> loss = ColumnDiscrepancy(Space([Category(3)] * 2), w=0.0)
    >>> abs(loss(lambda x: 0 * x[..., 0], torch.zeros(9, 2), torch.Generator())) < 1e-6
    tensor(True)
    """

    def __init__(self, space: Space, m: int = 32, w: float = 1.0):
        self.columns, self.m, self.w = _Columns(space), m, w

    def __call__(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> Tensor:
        column, size = self.columns.chosen(x, generator)
        u = torch.rand(self.m, len(x), 1, generator=generator, dtype=x.dtype, device=x.device)
        new = torch.minimum((u * size).floor(), size - 1)
        y = x.expand(self.m, -1, -1).scatter(-1, column.expand(self.m, -1, -1), new)
        return _discrepancy(f, x, y, self.w)


class PseudoLikelihood(Objective):
    """−log ρ_f(x_j | x_−j) of one random discrete column j of each row, by the sum over its values (Besag 1975).

    Arguments:
        space: its discrete columns are used.

    >>> from ctem.spaces import Category
    >>> PseudoLikelihood(Space([Category(4)]))(lambda x: 0 * x[..., 0], torch.zeros(2, 1), torch.Generator())
    tensor(1.3863)
    """

    def __init__(self, space: Space):
        self.columns, self.most = _Columns(space), max(space.sizes)

    def __call__(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> Tensor:
        column, size = self.columns.chosen(x, generator)
        value = torch.arange(self.most, dtype=x.dtype, device=x.device).view(-1, 1, 1)
        new = torch.minimum(value.expand(-1, len(x), 1), size - 1)
        y = x.expand(self.most, -1, -1).scatter(-1, column.expand(self.most, -1, -1), new)
        there = _values(f, y).masked_fill((value >= size).squeeze(-1), -math.inf)
        here = there.gather(0, x.gather(-1, column).T.long())[0]
        return (there.logsumexp(0) - here).mean()


class RatioMatching(Objective):
    r"""Σ_j σ(f(x^j) − f(x))² on bits, all of them or an unbiased sum over a few (Hyvärinen 2007).

    ``guided`` draws the few where the gradient in the features makes the term large, each with its weight: Liu
    et al. 2022 ("gradient-guided importance sampling").

    Arguments:
        space: of bits alone.
        columns: bits of each row that are flipped; None is all.
        guided: by the gradient, for a :class:`~ctem.energies.Featured` f; else uniformly.

    >>> from ctem.spaces import Category
    >>> RatioMatching(Space([Category(2)] * 3))(lambda x: 0 * x[..., 0], torch.zeros(5, 3), torch.Generator())
    tensor(0.7500)
    """

    def __init__(self, space: Space, columns: int | None = None, guided: bool = False):
        if set(space.sizes) != {2}:
            raise ValueError(f"space: ratio matching expects bits alone; got {space!r}.")
        if guided and columns is None:
            raise ValueError("columns: guided ratio matching expects a number of them; got None.")
        self.space, self.columns, self.guided = space, columns, guided

    def __call__(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> Tensor:
        n, d = x.shape
        if self.columns is None:
            column = torch.arange(d, device=x.device).view(-1, 1, 1).expand(-1, n, 1)
            weight = x.new_ones(d, n)
        else:
            share = self._share(f, x)
            drawn = torch.multinomial(share, self.columns, replacement=True, generator=generator)
            column, weight = drawn.T.unsqueeze(-1), 1 / (self.columns * share.gather(1, drawn).T)
        rows = x.expand(len(column), -1, -1)
        gap = expect_values(f(x), x) - _values(f, rows.scatter(-1, column, 1 - rows.gather(-1, column)))
        return (weight * torch.sigmoid(-gap).square()).sum(0).mean()

    def _share(self, f: LogPotential, x: Tensor) -> Tensor:
        """The probability with which each bit is drawn, (n, d)."""
        if not self.guided:
            return torch.full_like(x, 1 / x.shape[1])
        h = self.space.features(x.detach()).requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(f.on_features(h).sum(), h)  # type: ignore[attr-defined]
        slope = slope.unflatten(-1, (-1, 2))
        gain = (slope[..., 1] - slope[..., 0]) * (1 - 2 * x)
        share = torch.sigmoid(gain).square()
        return (1 - GUIDED_FLOOR) * share / share.sum(-1, keepdim=True) + GUIDED_FLOOR / x.shape[1]


class NoiseContrast(Objective):
    """Logistic regression of the data against as many draws of a base b, with log-odds f − log b (Gutmann 2010).

    At the minimum f = log ρ with its constant: the only loss here that knows it.

    Arguments:
        base: b, with ``sample`` and ``log_prob``.

    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Category
    >>> base = ProductBase(Space([Category(2)]))
    >>> NoiseContrast(base)(base.log_prob, torch.ones(4, 1), torch.Generator())
    tensor(1.3863)
    """

    leaves_open = "nothing"

    def __init__(self, base: Base):
        self.base = base

    def __call__(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> Tensor:
        y = self.base.sample(len(x), generator).to(x)
        log_b = self.base.log_prob  # type: ignore[attr-defined]
        data, noise = expect_values(f(x), x) - log_b(x), expect_values(f(y), y) - log_b(y)
        return (log_score(data) + log_score(-noise)).mean()


class DenoisingScores(Objective):
    """E |∇f(x + σξ) + ξ/σ|² (:func:`~ctem.matching.losses.denoising_score_matching`): the law smoothed at σ.

    >>> DenoisingScores(1.0)(lambda x: -(x**2).sum(-1) / 2, torch.zeros(9, 2), torch.Generator()).item()
    0.0
    """

    def __init__(self, scale: float):
        self.scale = scale

    def __call__(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> Tensor:
        return denoising_score_matching(f, x, self.scale, generator)


class SlicedScores(Objective):
    """E v·∇(v·∇f) + ½|∇f|², v random signs: score matching with one product of the Hessian (Song et al. 2019).

    >>> loss = SlicedScores()(lambda x: -(x**2).sum(-1) / 2, torch.zeros(9, 2), torch.Generator())
    >>> round(loss.item(), 4)  # −d at the mode of a normal law
    -2.0
    """

    def __call__(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> Tensor:
        leaf, training = x.detach().clone().requires_grad_(), torch.is_grad_enabled()
        v = torch.randint(0, 2, x.shape, generator=generator, device=x.device).to(x.dtype) * 2 - 1
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(expect_values(f(leaf), leaf).sum(), leaf, create_graph=True)
            (curved,) = torch.autograd.grad((slope * v).sum(), leaf, create_graph=training)
        return ((v * curved).sum(-1) + slope.square().sum(-1) / 2).mean()


class _Columns:
    """A random discrete column for each row."""

    def __init__(self, space: Space):
        if not space.discretes:
            raise ValueError(f"space: expected discrete columns; {space!r} has none.")
        self.numbers = torch.tensor(space.discretes)
        self.sizes = torch.tensor([space.sizes[j] for j in space.discretes])

    def chosen(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Its number and its size, (n, 1)."""
        if self.numbers.device != x.device:
            self.numbers, self.sizes = self.numbers.to(x.device), self.sizes.to(x.device)
        which = torch.randint(len(self.numbers), (len(x), 1), generator=generator, device=x.device)
        return self.numbers[which], self.sizes[which].to(x.dtype)


def _discrepancy(f: LogPotential, x: Tensor, y: Tensor, w: float) -> Tensor:
    """E log (w + Σ_i e^{f(y_i) − f(x)})/M for points y (M, n, d)."""
    gap = _values(f, y) - expect_values(f(x), x)
    steady = gap.new_full((1, gap.shape[1]), math.log(w) if w > 0 else -math.inf)
    return torch.cat([gap, steady]).logsumexp(0).mean() - math.log(len(y))


def _values(f: LogPotential, y: Tensor) -> Tensor:
    """f at points (m, n, d), (m, n)."""
    rows = y.flatten(0, 1)
    return expect_values(f(rows), rows).view(y.shape[:-1])
