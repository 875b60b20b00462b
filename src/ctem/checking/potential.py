"""Somebody's function as a log-potential of encoded rows that counts how often it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ctem.energies import LogPotential, expect_values
from ctem.spaces import Space

__all__ = ["Counted", "from_arrays", "from_energy"]


class Counted:
    """f on encoded rows (n, d), given in the shape of the space, with a count of rows that were evaluated.

    Arguments:
        f: any function from rows (n, *space.shape) to (n,) or (n, 1).
        space: what a row is.

    >>> from ctem.spaces import Category
    >>> f = Counted(lambda x: x.sum(-1, keepdim=True), Space([Category(2)] * 3))
    >>> f(torch.ones(5, 3)), f.evaluations
    (tensor([3., 3., 3., 3., 3.]), 5)
    """

    def __init__(self, f: Callable[[Tensor], Tensor], space: Space):
        self.f, self.space, self.evaluations = f, space, 0
        self.flat = space.shape == (space.dim,)

    def __call__(self, x: Tensor) -> Tensor:
        """f(x), shape (n,)."""
        self.evaluations += len(x)
        values = self.f(x if self.flat else x.unflatten(-1, self.space.shape))
        if not isinstance(values, Tensor):
            raise TypeError(
                f"log_potential: expected a tensor of values; got {type(values).__name__}: "
                "ctem.checking.from_arrays takes a function of NumPy or JAX arrays."
            )
        return expect_values(
            values.squeeze(-1) if values.shape == (len(x), 1) else values, x, "log_potential"
        )

    def has_gradient(self, x: Tensor) -> bool:
        """Whether the gradient of f in the rows is of any use."""
        leaf = x[:2].detach().clone().requires_grad_()
        with torch.enable_grad():
            values = self(leaf)
            if not values.requires_grad:
                return False
            (slope,) = torch.autograd.grad(values.sum(), leaf, allow_unused=True)
        return slope is not None and bool((slope != 0).any())


def from_energy(energy: nn.Module | Callable[[Tensor], Tensor]) -> LogPotential:
    """f = −E of an energy E, as TorchEBM's and ebmkit's models are.

    >>> from_energy(lambda x: (x**2).sum(-1) / 2)(torch.ones(1, 2))
    tensor([-1.])
    """
    return lambda x: -energy(x)


def from_arrays(function: Callable[[Any], Any]) -> LogPotential:
    """A function of NumPy arrays (or one of JAX that takes them) as a log-potential, without its gradient.

    >>> from_arrays(lambda x: -np.abs(x).sum(-1))(torch.ones(1, 2))
    tensor([-2.])
    """

    def f(x: Tensor) -> Tensor:
        values = np.asarray(function(x.detach().cpu().numpy()))
        return torch.as_tensor(np.array(values), dtype=x.dtype, device=x.device)

    return f
