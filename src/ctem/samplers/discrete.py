"""Samplers that move discrete columns; real columns stay.

The informed ones rest on a table of differences d (n, D, K) over the D discrete columns and K = max k values,

    d_jv ≈ f(x with x_j := v) − f(x),        d_jv = −inf where v ≥ k_j,

exact, or to first order from one gradient. Metropolis corrects for the approximation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ctem.energies import Featured, LogPotential
from ctem.matching.kernels.kernel import chosen_columns
from ctem.samplers.sampler import (
    Info,
    current,
    evaluated,
    expect_finite,
    expect_positive,
    expect_rows,
    metropolis,
)
from ctem.spaces import Ordinal, Space

__all__ = [
    "DifferenceRule",
    "DiscreteLangevin",
    "Gibbs",
    "GibbsWithGradients",
    "exact_differences",
    "gradient_differences",
]

DifferenceRule = Callable[[LogPotential, Tensor, Space], Tensor]


def exact_differences(f: LogPotential, x: Tensor, space: Space) -> Tensor:
    """d_jv = f(x with x_j := v) − f(x) by evaluating every neighbour: Σ_j k_j evaluations a row, any f.

    >>> from ctem.spaces import Category, Space
    >>> exact_differences(lambda x: x[:, 0] ** 2, torch.tensor([[1.0]]), Space([Category(3)]))
    tensor([[[-1.,  0.,  3.]]])
    """
    here = current(f, x).unsqueeze(-1)
    table = _blank(x, space)
    for i, j in enumerate(space.discretes):
        table[:, i, : space.sizes[j]] = _substituted(f, x, j, space.sizes[j]) - here
    return table


def gradient_differences(f: LogPotential, x: Tensor, space: Space) -> Tensor:
    """d_jv = ⟨∂f/∂h_j, embed_j(v) − embed_j(x_j)⟩ from one gradient in the features h: first order.

    Exact where f is linear in the features. f has to be :class:`~ctem.energies.Featured`.

    >>> from ctem.energies import MLP
    >>> from ctem.spaces import Category, Ordinal, Space
    >>> space = Space([Category(2), Ordinal(5)])
    >>> gradient_differences(MLP(space), torch.zeros(7, 2), space).shape
    torch.Size([7, 2, 5])
    """
    if not isinstance(f, Featured):
        raise TypeError(
            f"f: expected a Featured log-potential (`space` and `on_features`) for gradient differences; "
            f"got {type(f).__name__}; pass differences=exact_differences."
        )
    h = space.features(x.detach()).requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(f.on_features(h).sum(), h)
    start = [0, *accumulate(space.widths)]
    table = _blank(x, space)
    for column in dict.fromkeys(space.columns[j] for j in space.discretes):  # equal columns at once
        rows = [i for i, j in enumerate(space.discretes) if space.columns[j] == column]
        first = space.discretes[rows[0]]
        k, w = space.sizes[first], space.widths[first]
        values = space.embed(first, torch.arange(k, dtype=x.dtype, device=x.device))  # (k, w)
        slots = [[start[space.discretes[i]] + a for a in range(w)] for i in rows]
        table[:, rows, :k] = slope[:, slots] @ values.T  # (n, columns, w) × (w, k)
    return table - table.gather(-1, _codes(x, space).unsqueeze(-1))


class Gibbs:
    """Exact Gibbs: one discrete column, drawn at random for all chains, is redrawn from ρ(x_j | x_−j).

    f is evaluated at all k values in one batch of k·n rows; every draw is accepted.

    Arguments:
        space: the space.
        columns: the discrete columns to move; all of them by default.

    >>> from ctem.spaces import Category, Space
    >>> sampler = Gibbs(Space([Category(3)]))
    >>> x, info = sampler.step(lambda x: 99 * x[:, 0], torch.zeros(4, 1), torch.Generator())
    >>> x[:, 0]
    tensor([2., 2., 2., 2.])
    """

    def __init__(self, space: Space, columns: Sequence[int | str] | None = None):
        _expect_discrete(self, space)
        self.space = space
        self.columns = chosen_columns(space, columns, space.discretes, "discrete")
        if not self.columns:
            raise ValueError("columns: expected at least one discrete column; got none.")

    def __repr__(self) -> str:
        return f"Gibbs(columns={[self.space.names[j] for j in self.columns]})"

    def step(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Info]:
        """One move of every chain."""
        expect_rows(x, self.space)
        which = int(torch.randint(len(self.columns), (), generator=generator, device=generator.device))
        j = self.columns[which]
        logits = _substituted(f, x, j, self.space.sizes[j])
        expect_finite(logits.amax(-1))
        y = x.detach().clone()
        y[:, j] = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0].to(x.dtype)
        return y, Info(x.new_ones(len(x)))


class GibbsWithGradients:
    """A locally informed change of one column: (j, v) ∝ exp(d_jv / 2) over all v ≠ x_j, Metropolis-corrected.

    Grathwohl et al. 2021, "Oops I took a gradient"; Zanella 2020.

    Arguments:
        space: the space; its discrete columns move.
        differences: :func:`gradient_differences` or :func:`exact_differences`.

    >>> from ctem.energies import MLP
    >>> from ctem.spaces import Category, Space
    >>> space = Space([Category(4)] * 3)
    >>> x, info = GibbsWithGradients(space).step(MLP(space), torch.zeros(5, 3), torch.Generator())
    >>> x.shape, info.acceptance.shape
    (torch.Size([5, 3]), torch.Size([5]))
    """

    def __init__(self, space: Space, differences: DifferenceRule = gradient_differences):
        _expect_discrete(self, space)
        self.space = space
        self.differences = differences

    def __repr__(self) -> str:
        return f"GibbsWithGradients(differences={getattr(self.differences, '__name__', self.differences)})"

    def step(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Info]:
        """One move of every chain."""
        expect_rows(x, self.space)
        here = current(f, x)
        out = self._log_proposal(f, x)
        move = torch.multinomial(out.exp(), 1, generator=generator)  # (n, 1) = column · K + value
        k = max(self.space.sizes)
        column = torch.tensor(self.space.discretes, device=x.device)[move // k]
        y = x.detach().scatter(-1, column, (move % k).to(x.dtype))
        back = self._log_proposal(f, y).gather(-1, move - move % k + x.gather(-1, column).long())
        ratio = (out.gather(-1, move) - back).squeeze(-1)  # log q(y|x) − log q(x|y)
        return metropolis(x, y, evaluated(f, y) - here - ratio, generator)

    def _log_proposal(self, f: LogPotential, x: Tensor) -> Tensor:
        table = self.differences(f, x, self.space) / 2
        stay = _codes(x, self.space).unsqueeze(-1)
        return table.scatter(-1, stay, -math.inf).flatten(1).log_softmax(-1)


class DiscreteLangevin:
    r"""All discrete columns at once, each drawn near its old value and uphill, Metropolis-corrected.

        q_j(v|x) ∝ exp( d_jv / 2 − D_j(v, x_j) / 2α )

    D is [v ≠ x_j] for categories and (v − x_j)² / ((k²−1)/12) for ordinals, whose codes are spread to
    variance 1. Zhang, Liu & Liu 2022, "A Langevin-like sampler for discrete distributions" (DMALA).

    Arguments:
        space: the space; its discrete columns move.
        step: α; a larger one changes more columns at once.
        differences: :func:`gradient_differences` or :func:`exact_differences`.

    >>> from ctem.energies import MLP
    >>> from ctem.spaces import Category, Space
    >>> space = Space([Category(4)] * 3)
    >>> x, info = DiscreteLangevin(space, 0.2).step(MLP(space), torch.zeros(5, 3), torch.Generator())
    >>> x.shape, info.acceptance.shape
    (torch.Size([5, 3]), torch.Size([5]))
    """

    def __init__(self, space: Space, step: float, differences: DifferenceRule = gradient_differences):
        _expect_discrete(self, space)
        self.space = space
        self.step_size = expect_positive("step", step)
        self.differences = differences

    def __repr__(self) -> str:
        return f"DiscreteLangevin(step={self.step_size:g})"

    def step(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Info]:
        """One move of every chain."""
        expect_rows(x, self.space)
        here = current(f, x)
        out = self._log_proposal(f, x)
        new = torch.multinomial(out.exp().flatten(0, 1), 1, generator=generator).view(len(x), -1, 1)
        y = x.detach().clone()
        y[:, list(self.space.discretes)] = new.squeeze(-1).to(x.dtype)
        back = self._log_proposal(f, y).gather(-1, _codes(x, self.space).unsqueeze(-1))
        ratio = (out.gather(-1, new) - back).sum((-1, -2))  # log q(y|x) − log q(x|y)
        return metropolis(x, y, evaluated(f, y) - here - ratio, generator)

    def _log_proposal(self, f: LogPotential, x: Tensor) -> Tensor:
        table = self.differences(f, x, self.space)
        distance = _distances(x, self.space, table.shape[-1])
        return (table / 2 - distance / (2 * self.step_size)).log_softmax(-1)


def _substituted(f: LogPotential, x: Tensor, j: int, k: int) -> Tensor:
    """f with column j set to each of its k values, shape (n, k), in one batch."""
    y = x.detach().repeat(k, 1, 1)
    y[..., j] = torch.arange(k, dtype=x.dtype, device=x.device).unsqueeze(-1)
    return evaluated(f, y.flatten(0, 1)).view(k, len(x)).T


def _distances(x: Tensor, space: Space, k: int) -> Tensor:
    """D_j(v, x_j) of :class:`DiscreteLangevin`, shape (n, D, K)."""
    sizes = torch.tensor([space.sizes[j] for j in space.discretes], device=x.device)
    ordered = torch.tensor([isinstance(space.columns[j], Ordinal) for j in space.discretes], device=x.device)
    gap = torch.arange(k, device=x.device) - _codes(x, space).unsqueeze(-1)
    spread = ((sizes**2 - 1) / 12).unsqueeze(-1)
    return torch.where(ordered.unsqueeze(-1), gap**2 / spread, (gap != 0).float()).to(x.dtype)


def _codes(x: Tensor, space: Space) -> Tensor:
    return x[:, list(space.discretes)].long()


def _blank(x: Tensor, space: Space) -> Tensor:
    return x.new_full((len(x), len(space.discretes), max(space.sizes)), -math.inf)


def _expect_discrete(sampler: object, space: Space) -> None:
    if not space.discretes:
        raise ValueError(f"{type(sampler).__name__} moves discrete columns; {space!r} has none.")
