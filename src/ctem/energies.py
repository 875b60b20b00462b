"""Log-potentials f with ρ ∝ exp f, and their gradient.

Any callable from encoded rows (n, d) to (n,) is a log-potential; these are the paper's and ours. A network
computes f(x) = on_features(space.features(x)), so that samplers can differentiate it in one-hot features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.functional import silu

from ctem.bases import ProductBase, smoothed_counts
from ctem.spaces import Space, as_rows

__all__ = [
    "MLP",
    "Featured",
    "LogPotential",
    "LookupEnergy",
    "MLPs",
    "NoisyMLP",
    "Tilted",
    "expect_values",
    "grad_log_density",
]

LogPotential = Callable[[Tensor], Tensor]


@runtime_checkable
class Featured(Protocol):
    """A log-potential that is differentiable in the features of its space.

    >>> from ctem.spaces import Category
    >>> isinstance(MLP(Space([Category(2)])), Featured)
    True
    """

    space: Space

    def __call__(self, x: Tensor) -> Tensor:
        """f(x)."""
        ...

    def on_features(self, h: Tensor) -> Tensor:
        """f as a function of ``space.features(x)``."""
        ...


def _layers(inputs: int, width: int, depth: int, seed: int) -> nn.Sequential:
    sizes = [inputs] + [width] * depth
    with torch.random.fork_rng(devices=[]):  # torch initialises from the global generator: leave it as it was
        torch.manual_seed(seed)
        hidden = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.SiLU())]
        return nn.Sequential(*hidden, nn.Linear(width, 1))


class MLP(nn.Module):
    """The paper's energy: an MLP with three hidden layers and SiLU on reals and one-hot categories.

    Arguments:
        space: the space of its rows.
        width: hidden units per layer (the paper: 128 in 2-D, 256 in 10-D and 30-D).
        depth: hidden layers.
        seed: of the initial weights.

    >>> from ctem.spaces import Category, Real
    >>> MLP(Space([Real(), Category(3)]))(torch.zeros(5, 2)).shape
    torch.Size([5])
    """

    def __init__(self, space: Space, width: int = 128, depth: int = 3, seed: int = 0):
        super().__init__()
        self.space = space
        self.layers = _layers(sum(space.widths), width, depth, seed)

    def on_features(self, h: Tensor) -> Tensor:
        """f as a function of the features."""
        return self.layers(h).squeeze(-1)

    def forward(self, x: Tensor) -> Tensor:
        """f(x), shape (…,)."""
        return self.on_features(self.space.features(x))


class MLPs(nn.Module):
    """Several MLPs of one shape, g_k(x) for k = 1 … members, evaluated and trained as one batched program.

    Member k is the :class:`MLP` with its own weights and no bias in the last layer: a constant drops out of every gap.

    Arguments:
        space: the space of its rows.
        members: number of networks.
        width, depth: hidden units per layer, and hidden layers.
        seed: of the initial weights.

    >>> from ctem.spaces import Category, Real
    >>> g = MLPs(Space([Real(), Category(3)]), members=4, width=8)
    >>> g(torch.zeros(5, 2)).shape, g(torch.zeros(4, 5, 2)).shape
    (torch.Size([4, 5]), torch.Size([4, 5]))
    """

    def __init__(self, space: Space, members: int, width: int = 128, depth: int = 3, seed: int = 0):
        super().__init__()
        if members < 1:
            raise ValueError(f"members: expected at least 1; got {members}.")
        self.space, self.members, self.width, self.depth = space, members, width, depth
        generator = torch.Generator().manual_seed(seed)
        sizes = [sum(space.widths)] + [width] * depth
        draws = [_uniform(members, a, b, generator) for a, b in pairwise(sizes)]
        self.weights = nn.ParameterList([draw[:, :-1].clone() for draw in draws])
        self.biases = nn.ParameterList([draw[:, -1:].clone() for draw in draws])
        self.last = nn.Parameter(_uniform(members, width, 1, generator)[:, :-1].clone())

    def forward(self, x: Tensor) -> Tensor:
        """g_k at rows x (members, n, d), its own for each member, or (n, d), the same for all; (members, n)."""
        h = self.space.features(x)
        return self.on_features(h if h.ndim == 3 else h.expand(self.members, *h.shape))

    def on_features(self, h: Tensor) -> Tensor:
        """g_k as a function of the features (members, n, …), (members, n)."""
        for weight, bias in zip(self.weights, self.biases, strict=True):
            h = silu(torch.baddbmm(bias, h, weight))
        return torch.bmm(h, self.last).squeeze(-1)

    def member(self, k: int) -> MLP:
        """Network k by itself, with weights of its own.

        >>> from ctem.spaces import Real
        >>> g, x = MLPs(Space([Real()]), members=3, width=8), torch.randn(5, 1)
        >>> torch.allclose(g(x)[1], g.member(1)(x), atol=1e-6)
        True
        """
        mlp = MLP(self.space, self.width, self.depth).to(self.last)
        linear = [layer for layer in mlp.layers if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for layer, weight, bias in zip(linear, self.weights, self.biases, strict=False):
                layer.weight.copy_(weight[k].T)
                layer.bias.copy_(bias[k, 0])
            linear[-1].weight.copy_(self.last[k].T)
            linear[-1].bias.zero_()
        return mlp.eval()


def _uniform(members: int, inputs: int, outputs: int, generator: torch.Generator) -> Tensor:
    """Weights and, in the last row, biases from U(±1/√inputs), as torch draws them; (members, inputs + 1, outputs)."""
    u = torch.rand(members, inputs + 1, outputs, generator=generator)
    return (2 * u - 1) / math.sqrt(inputs)


class NoisyMLP(nn.Module):
    """A noise-conditional energy f(x; s): one MLP for all levels s > 0, given as Fourier features of log s.

    >>> from ctem.spaces import Category
    >>> NoisyMLP(Space([Category(2)] * 4))(torch.zeros(5, 4), torch.full((5,), 0.1)).shape
    torch.Size([5])
    """

    frequencies: Tensor

    def __init__(self, space: Space, width: int = 128, depth: int = 3, harmonics: int = 4, seed: int = 0):
        super().__init__()
        self.space = space
        self.register_buffer("frequencies", 2.0 ** torch.arange(harmonics) * math.pi / 8, persistent=False)
        self.layers = _layers(sum(space.widths) + 1 + 2 * harmonics, width, depth, seed)

    def on_features(self, h: Tensor, level: Tensor) -> Tensor:
        """f(·; s) as a function of the features, for samplers that use its gradient."""
        u = level.log().unsqueeze(-1)
        features = torch.cat([u, torch.sin(u * self.frequencies), torch.cos(u * self.frequencies)], dim=-1)
        return self.layers(torch.cat([h, features], dim=-1)).squeeze(-1)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """f(x; s) for rows x (…, d) and levels s (…,)."""
        return self.on_features(self.space.features(x), level)


class LookupEnergy(nn.Module):
    """A free value for every state of a finite space, as in the paper's quantised experiments.

    Comparisons do not reach a state that is neither observed nor a neighbour of one: from f = 0 it would keep
    the weight e⁰, and thousands of them most of the mass. With rows, f starts at the log of their smoothed
    frequencies, in which all states without a row share what Good and Turing give them: as much as the states that
    occur once. Only the compared ones move.

    Arguments:
        space: of at most 2²² states.
        x: observed rows, encoded (n, d), to start from; None starts from f = 0.

    >>> from ctem.spaces import Category
    >>> LookupEnergy(Space([Category(2), Category(3)]))(torch.tensor([[1.0, 2.0]])).item()
    0.0
    >>> x = torch.tensor([[0.0], [0.0], [0.0], [1.0]])
    >>> LookupEnergy(Space([Category(90)]), x).values.softmax(0)[2:].sum().item() < 0.21
    True
    """

    def __init__(self, space: Space, x: ArrayLike | None = None):
        super().__init__()
        self.space = space
        counts = torch.ones(len(space.states()), dtype=torch.float64)
        if x is not None:
            counts = smoothed_counts(torch.bincount(space.index(as_rows(x)).cpu(), minlength=len(counts)))
        self.values = nn.Parameter(counts.log().to(torch.get_default_dtype()))

    def forward(self, x: Tensor) -> Tensor:
        """f(x), shape (…,)."""
        return self.values[self.space.index(x)]


class Tilted(nn.Module):
    """f = log b + g: a base measure and a log-potential that corrects it.

    >>> from ctem.spaces import Category, Real
    >>> space = Space([Real(), Category(3)])
    >>> f = Tilted(ProductBase(space), MLP(space))
    >>> f(torch.zeros(5, 2)).shape
    torch.Size([5])
    """

    def __init__(self, base: ProductBase, g: nn.Module):
        super().__init__()
        self.space = base.space
        self.base = base
        self.g = g

    def forward(self, x: Tensor) -> Tensor:
        """log b(x) + g(x), shape (…,)."""
        return self.base.log_prob(x) + self.g(x)


def expect_values(values: Tensor, x: Tensor, name: str = "f") -> Tensor:
    """What a log-potential gave for rows x (…, d), if it has their shape (…,).

    A column (n, 1) would broadcast against (n,) to all pairs of rows, and train to something else.

    >>> expect_values(torch.zeros(4, 1), torch.zeros(4, 2))
    Traceback (most recent call last):
    ...
    ValueError: f: expected values of shape (4,), one per row; got (4, 1): end it with `.squeeze(-1)`.
    """
    if values.shape != x.shape[:-1]:
        hint = ": end it with `.squeeze(-1)`" if values.shape == (*x.shape[:-1], 1) else ""
        raise ValueError(
            f"{name}: expected values of shape {tuple(x.shape[:-1])}, one per row; got {tuple(values.shape)}{hint}."
        )
    return values


def grad_log_density(f: LogPotential, x: ArrayLike, batch_size: int = 65536) -> Tensor:
    """∇ log ρ = ∇f at encoded rows x (n, d) by automatic differentiation, in batches.

    Only the entries of real columns mean anything; a log-potential that looks codes up leaves zeros in the
    others. In the user's units divide real column j by its scale.

    >>> grad_log_density(lambda x: -(x**2).sum(-1) / 2, torch.tensor([[1.0, -2.0]]))
    tensor([[-1.,  2.]])
    """
    parts = []
    for rows in as_rows(x).detach().split(batch_size):
        leaf = rows.clone().requires_grad_()
        with torch.enable_grad():
            (grad,) = torch.autograd.grad(expect_values(f(leaf), leaf).sum(), leaf)
        parts.append(grad)
    return torch.cat(parts)
