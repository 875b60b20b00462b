r"""Constant-target energy matching, its scoring rules and its rivals, all as functions of the gap of a pair.

A pair is a data point x and a comparison y ~ k(·|x); its gap is Δ = f(x) − f(y) + log k(y|x)/k(x|y). Every
method here averages one function ℓ(Δ) over pairs; each is minimised in expectation by Δ = log ρ(x)/ρ(y):

    brier            (tanh(Δ/2) − 1)²        the paper's, 4σ(−Δ)²: Brier score of "which one is data?"
    log_score        log(1 + e^{−Δ})         conditional noise-contrastive estimation
    concrete_score   e^{−2Δ} − 2e^{Δ} + 1    concrete score matching (Meng et al. 2022)
    score_entropy    e^{−Δ} − Δ              SEDD's score entropy (Lou et al. 2024)

On bits with Hamming-one comparisons the first line is, up to the factor 4, Hyvärinen's ratio matching (2007).
The first two stay bounded or grow linearly; the rivals grow exponentially where the model is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import softplus

from ctem.energies import LogPotential, expect_values
from ctem.matching.kernels import Edges, Kernel
from ctem.matching.noise import Noise
from ctem.spaces import as_rows

__all__ = [
    "RatioRule",
    "Rule",
    "brier",
    "concrete_score",
    "denoised_concrete_score",
    "denoised_loss",
    "denoised_score_entropy",
    "denoising_score_matching",
    "exact_loss",
    "log_score",
    "pair_loss",
    "score_entropy",
    "soft",
    "tilt_loss",
]

Rule = Callable[[Tensor], Tensor]
RatioRule = Callable[[Tensor, Tensor], Tensor]


class Base(Protocol):
    """Anything that can be drawn from, such as :class:`~ctem.bases.ProductBase`."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n independent rows (n, d)."""
        ...


class Schedule(Protocol):
    """Anything that draws noise levels: Levels, LogUniform."""

    def draw(self, n: int, generator: torch.Generator, like: Tensor) -> Tensor:
        """n levels, shape (n,)."""
        ...


def brier(gap: Tensor) -> Tensor:
    """(tanh(Δ/2) − 1)², the constant-target loss.

    >>> brier(torch.tensor([0.0]))
    tensor([1.])
    """
    return (torch.tanh(gap / 2) - 1) ** 2


def log_score(gap: Tensor) -> Tensor:
    """log(1 + e^{−Δ}): same minimiser, but the slope stays −1 where the model is most wrong.

    >>> log_score(torch.tensor([0.0]))
    tensor([0.6931])
    """
    return softplus(-gap)


def concrete_score(gap: Tensor) -> Tensor:
    """e^{−2Δ} − 2e^{Δ} + 1: regression of ρ(y)/ρ(x) − 1 on the model's ratio, by the swap of x and y.

    >>> concrete_score(torch.tensor([0.0]))
    tensor([0.])
    """
    return (-2 * gap).exp() - 2 * gap.exp() + 1


def score_entropy(gap: Tensor) -> Tensor:
    """e^{−Δ} − Δ: the Bregman divergence −log of the same ratios.

    >>> score_entropy(torch.tensor([0.0]))
    tensor([1.])
    """
    return (-gap).exp() - gap


def denoised_concrete_score(gap: Tensor, ratio: Tensor) -> Tensor:
    """(e^{−Δ} − R)²: regression of the model's ratio on a known one, denoising concrete score matching.

    >>> denoised_concrete_score(torch.tensor([0.0]), torch.tensor([3.0]))
    tensor([4.])
    """
    return ((-gap).exp() - ratio) ** 2


def denoised_score_entropy(gap: Tensor, ratio: Tensor) -> Tensor:
    """e^{−Δ} + RΔ + R(log R − 1) ≥ 0: SEDD's denoising score entropy of the same ratios.

    >>> denoised_score_entropy(torch.tensor([0.0]), torch.tensor([1.0]))
    tensor([0.])
    """
    return (-gap).exp() + ratio * (gap - 1) + torch.xlogy(ratio, ratio)


def soft(rule: Rule, gap: Tensor, w: Tensor) -> Tensor:
    """w ℓ(Δ) + (1 − w) ℓ(−Δ): the rule with its label averaged, where P(x is the data point) = w is known.

    Same expected gradient as the constant target w = 1, without its label noise. For Brier it is
    4(σ(Δ) − w)² plus a constant: regression on a bounded target.

    >>> soft(log_score, torch.tensor([2.0]), torch.tensor([0.5]))
    tensor([1.1269])
    """
    return w * rule(gap) + (1 - w) * rule(-gap)


def pair_loss(
    f: LogPotential,
    x: ArrayLike,
    kernel: Kernel,
    generator: torch.Generator,
    m: int = 1,
    rule: Rule = brier,
) -> Tensor:
    """The loss of the paper: the mean of ℓ(Δ) over rows and m comparisons of each.

    Arguments:
        f: the log-potential.
        x: encoded data (n, d).
        kernel: the comparison kernel; it alone distinguishes continuous, discrete and mixed.
        generator: the source of the comparisons.
        m: comparisons per row; kernels on real columns draw them in antithetic pairs.
        rule: ℓ.

    >>> from ctem.matching.kernels import HammingOne
    >>> from ctem.spaces import Category, Space
    >>> kernel = HammingOne(Space([Category(2)]))
    >>> pair_loss(lambda x: x[..., 0], torch.ones(4, 1), kernel, torch.Generator())
    tensor(0.2893)
    """
    x = as_rows(x)
    y, log_ratio = kernel.compare(x, generator, m)
    y = y.flatten(0, 1)
    here, there = expect_values(f(x), x), expect_values(f(y), y)
    return rule(here - there.view(m, -1) + log_ratio).mean()


def tilt_loss(
    g: LogPotential,
    x: ArrayLike,
    base: Base,
    generator: torch.Generator,
    m: int = 1,
    rule: Rule = brier,
    every: bool = False,
) -> Tensor:
    """The loss of pairs whose comparisons are draws of a base b: k(y|x) = b(y), for f = log b + g.

    The correction log k(y|x)/k(x|y) = log b(y) − log b(x) takes the base out of the gap, which is Δ = g(x) − g(y): b is
    drawn from and never evaluated. At the minimum g = log ρ/b + C.

    Arguments:
        g: what the network adds to log b.
        x: encoded data (n, d).
        base: b, with ``sample(n, generator)``.
        generator: the source of the comparisons.
        m: draws per row.
        rule: ℓ.
        every: compare each row with every draw, not with its m alone: n² m pairs for as many evaluations of g.

    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Real, Space
    >>> base = ProductBase(Space([Real()]))
    >>> tilt_loss(lambda x: 0 * x[..., 0], torch.zeros(4, 1), base, torch.Generator())
    tensor(1.)
    """
    x = as_rows(x)
    y = base.sample(m * len(x), generator).to(x)
    here, there = expect_values(g(x), x, "g"), expect_values(g(y), y, "g")
    return rule(here - (there.unsqueeze(1) if every else there.view(m, -1))).mean()


def exact_loss(values: Tensor, probabilities: Tensor, edges: Edges, rule: Rule = brier) -> Tensor:
    """Σ_i p_i Σ_j k(j|i) ℓ(f_i − f_j + log_ratio_ij) over a finite space (eq. disc-loss).

    Arguments:
        values: f at every state (n,).
        probabilities: p (n,).
        edges: the kernel written out.
        rule: ℓ.

    >>> from ctem.matching.kernels import HammingOne
    >>> from ctem.spaces import Category, Space
    >>> p = torch.tensor([0.2, 0.8], dtype=torch.float64)
    >>> exact_loss(p.log(), p, HammingOne(Space([Category(2)])).edges())  # 4 · 0.2 · 0.8
    tensor(0.6400, dtype=torch.float64)
    """
    for name, given in (("values", values), ("probabilities", probabilities)):
        if given.ndim != 1 or given.shape != values.shape:
            raise ValueError(f"{name}: expected shape (n,), one number per state; got {tuple(given.shape)}.")
    gap = values[edges.source] - values[edges.target] + edges.log_ratio
    return (probabilities[edges.source] * edges.weight * rule(gap)).sum()


def denoised_loss(
    f: Callable[[Tensor, Tensor], Tensor],
    x0: ArrayLike,
    noise: Noise,
    schedule: Schedule,
    kernel: Kernel,
    generator: torch.Generator,
    m: int = 1,
    rule: Rule = brier,
    soft_target: bool = True,
) -> Tensor:
    """The noise-conditional loss (eq. appendix-denoised-loss-expectation), with a soft target on request.

    At level s the pair is x ~ q_s(·|x0), y ~ k(·|x). Given x0, the probability that x is the noised
    data point is known: w = σ(log q_s(x|x0) − log q_s(y|x0) + log_ratio). The constant target is w = 1.

    >>> from ctem.bases import ProductBase
    >>> from ctem.energies import NoisyMLP
    >>> from ctem.matching.kernels import HammingOne
    >>> from ctem.matching.noise import Levels
    >>> from ctem.spaces import Category, Space
    >>> space = Space([Category(2)] * 4)
    >>> noise, schedule = Noise(ProductBase(space)), Levels.log_spaced(0.005, 1.5, 13)
    >>> f, x0, generator = NoisyMLP(space), torch.zeros(8, 4), torch.Generator().manual_seed(0)
    >>> denoised_loss(f, x0, noise, schedule, HammingOne(space), generator).shape
    torch.Size([])
    """
    x0 = as_rows(x0)
    s = schedule.draw(len(x0), generator, x0)
    x = noise.sample(x0, s, generator)
    y, log_ratio = kernel.compare(x, generator, m)
    y, many = y.flatten(0, 1), s.repeat(m)
    gap = expect_values(f(x, s), x) - expect_values(f(y, many), y).view(m, -1) + log_ratio
    if not soft_target:
        return rule(gap).mean()
    log_q = noise.log_prob(x, x0, s) - noise.log_prob(y, x0.repeat(m, 1), many).view(m, -1)
    return soft(rule, gap, torch.sigmoid(log_q + log_ratio)).mean()


def denoising_score_matching(
    f: LogPotential, x: ArrayLike, scale: float, generator: torch.Generator
) -> Tensor:
    """E‖∇f(x + σξ) + ξ/σ‖², ξ ~ N(0, I): learns the score of the data smoothed at σ = scale.

    >>> f = lambda x: -(x**2).sum(-1) / 2
    >>> denoising_score_matching(f, torch.zeros(9, 2), 1.0, torch.Generator()).item()
    0.0
    """
    x = as_rows(x)
    xi = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    noisy = (x + scale * xi).requires_grad_()
    training = torch.is_grad_enabled()
    with torch.enable_grad():  # the loss is made of a gradient, also when it is only evaluated
        total = expect_values(f(noisy), noisy).sum()
        (grad,) = torch.autograd.grad(total, noisy, create_graph=training)
    return ((grad + xi / scale) ** 2).sum(-1).mean()
