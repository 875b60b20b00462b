r"""Conditionals as slopes of a scalar potential: first-order comparisons.

A hidden column enters the network as zeros, the mean of its features φ under the base. The comparison of two of its
values, column j shown, is then to first order a slope of the potential there,

    g(x_j = v; V ∪ j) − g(x_j = u; V ∪ j) ≈ (φ_j(v) − φ_j(u)) · ∂g/∂φ_j (x; V),

so that one pass and one gradient compare all values of *every* hidden discrete column. This is how the image energies
(``experiments.images.unet``) have exact likelihoods; on tables a plain linear head is as good and faster
(``ctem.densities.anyorder``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ctem.bases import ProductBase
from ctem.densities.anyorder.labels import LabelHead
from ctem.densities.chain import Conditionals, Probabilities

__all__ = ["FirstOrder", "FirstOrderPotential", "HiddenPixels"]


class FirstOrderPotential(Protocol):
    """A potential on columns of two values with slopes at hidden ones.

    >>> from ctem.spaces import Category, Space
    >>> from experiments.images.unet import ImageNet
    >>> g: FirstOrderPotential = ImageNet(ProductBase(Space([Category(2)] * 16)), shape=(4, 4), channels=(8, 16))
    >>> g.slopes(torch.zeros(2, 16), torch.full((2, 16), math.inf)).shape
    torch.Size([2, 16])
    """

    base: ProductBase
    labels: LabelHead

    def slopes(self, x: Tensor, level: Tensor) -> Tensor:
        """To first order g(x_j = 1) − g(x_j = 0) of every hidden column, (n, d)."""


class FirstOrder(Conditionals):
    """The conditionals of a potential by its slopes (``ctem.densities.chain.Conditionals``).

    Arguments:
        g: the potential.
        batch_size: rows at a time, which bounds the memory.

    >>> from ctem.spaces import Category, Space
    >>> from experiments.images.unet import ImageNet
    >>> g = ImageNet(ProductBase(Space([Category(2)] * 16)), shape=(4, 4), channels=(8, 16))
    >>> rows, hidden = torch.zeros(2, 16), torch.zeros(2, 16, dtype=torch.bool)
    >>> FirstOrder(g).given(rows, hidden, 3).log_prob(rows[:, 3]).exp()
    tensor([0.5000, 0.5000])
    """

    def __init__(self, g: FirstOrderPotential, batch_size: int = 8192):
        self.g, self.base, self.batch_size = g, g.base, batch_size

    def given(self, x: Tensor, visible: Tensor, j: int) -> Probabilities:
        """ρ(x_j | x_V) for rows x (n, d) and their visible sets V (n, d)."""
        level = torch.where(visible, 0.0, math.inf)
        rows = zip(x.split(self.batch_size), level.split(self.batch_size), strict=True)
        with torch.no_grad():
            found = torch.cat([self.g.slopes(*part)[:, j : j + 1] for part in rows])
        return Probabilities(self.g.labels.column(found, j))

    def draw(self, x: Tensor, visible: Tensor, j: int, generator: torch.Generator) -> Tensor:
        """A draw from ``given(x, visible, j)`` for each row, (n,)."""
        return self.given(x, visible, j).draw(generator)


@dataclass(frozen=True)
class HiddenPixels:
    """Mean −log ρ(x_j | x_V) over the pixels that a random visible set hides, its size uniform on 0 … d − 1.

    The objective of ``ctem.densities.anyorder.HiddenColumns`` for a potential with slopes.

    >>> from ctem.spaces import Category, Space
    >>> from experiments.images.unet import ImageNet
    >>> g = ImageNet(ProductBase(Space([Category(2)] * 16)), shape=(4, 4), channels=(8, 16))
    >>> round(HiddenPixels()(g, torch.zeros(8, 16), torch.Generator().manual_seed(0)).item(), 4)
    0.6931
    """

    def __call__(self, g: FirstOrderPotential, x: Tensor, generator: torch.Generator) -> Tensor:
        """The mean loss over rows x (n, d)."""
        (n, d), device = x.shape, generator.device
        u = torch.rand(n, d + 1, generator=generator, device=device)
        part = torch.arange(n, device=device).unsqueeze(1)
        size = ((part + u[:, d:]) / n * d).floor().clamp(max=d - 1)
        visible = u[:, :d].argsort(-1).argsort(-1) < size
        found = g.slopes(x, torch.where(visible, 0.0, math.inf))
        log_p = torch.where(visible, 0.0, g.labels.log_prob(x, found))
        return -(log_p.sum(-1) / (~visible).sum(-1)).mean()
