"""What an energy model takes by default: the paper's network, kernels, scales, rule and recipe."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ctem.energies import MLP
from ctem.matching.kernels import Gaussian, Grid, HammingOne, Kernel, Mixture, Product, Sphere, mean_std
from ctem.matching.losses import Rule, brier, concrete_score, log_score, score_entropy
from ctem.matching.rivals import Objective
from ctem.spaces import Space
from ctem.training import PAPER_2D, PAPER_HIGH_D, Recipe

__all__ = ["RULES", "default_kernel", "default_net", "default_recipe", "find_rule", "plain_scale"]

RULES: dict[str, Rule] = {
    "constant target": brier,
    "log score": log_score,
    "concrete score": concrete_score,
    "score entropy": score_entropy,
}
FEW = 3  # columns up to which the settings of the paper's planar sets are taken
PATIENCE = 20  # looks without a better held-out loss


def find_rule(rule: str | Rule | Objective) -> Rule | Objective:
    """ℓ by its name, or one of your own, or a whole loss.

    >>> find_rule("constant target") is brier
    True
    """
    if callable(rule):
        return rule
    if rule not in RULES:
        raise ValueError(f"rule: expected one of {list(RULES)}, or a function of the gap; got {rule!r}.")
    return RULES[rule]


def plain_scale(space: Space) -> float:
    """c of ε = c·σ̄: 0.5 in up to 3 real columns, and 0.2/√d beyond, where a Gaussian step has length 2ε√d.

    The paper chose c on a grid for each set: 0.3 to 1.5 in two dimensions, 0.02 in ten and 0.04 in thirty.

    >>> from ctem.spaces import Real
    >>> plain_scale(Space([Real()] * 2)), round(plain_scale(Space([Real()] * 30)), 3)
    (0.5, 0.037)
    """
    reals = len(space.reals)
    return 0.5 if reals <= FEW else 0.2 / math.sqrt(reals)


def default_kernel(space: Space, x: Tensor, scale: float | None = None) -> Kernel:
    """The paper's comparisons for a space.

    Real columns and angles: a Gaussian step of ε = c·σ̄. Ordinals: a step of ±1 on their grid. Categories: one of them
    changes. Real and discrete columns: a step on a sphere and a changed label at once, its joint kernel. Categories
    beside ordinals are not in the paper: half of the comparisons are of each.

    Arguments:
        space: the space.
        x: encoded rows (n, d), for σ̄.
        scale: c; None is :func:`plain_scale`.

    >>> import torch
    >>> from ctem.spaces import Category, Ordinal, Real
    >>> x = torch.rand(9, 2)
    >>> default_kernel(Space([Real(), Real()]), x), default_kernel(Space([Ordinal(9)] * 2), x)
    (Gaussian(columns=['x0', 'x1']), Grid(columns=['x0', 'x1']))
    >>> default_kernel(Space([Real(), Category(3)]), x)
    Product(Sphere(columns=['x0']), HammingOne(columns=['x1']))
    """
    if space.reals:
        epsilon = (plain_scale(space) if scale is None else scale) * mean_std(x, space)
        if not space.discretes:
            return Gaussian(space, epsilon)
        return Product(Sphere(space, epsilon), HammingOne(space))
    labels = [j for j in space.discretes if j not in space.ordinals]
    if not labels:
        return Grid(space)
    if not space.ordinals:
        return HammingOne(space)
    return Mixture([HammingOne(space, labels), Grid(space)], [0.5, 0.5])


def default_net(space: Space, seed: int) -> nn.Module:
    """The paper's MLP: three hidden layers of 128 units in up to three columns, of 256 beyond.

    >>> from ctem.spaces import Real
    >>> default_net(Space([Real()] * 2), 0).layers[0].out_features
    128
    """
    return MLP(space, width=128 if space.dim <= FEW else 256, seed=seed)


def default_recipe(space: Space) -> Recipe:
    """The paper's: Adam at 1e-4, batches of 256, 15,000 steps in up to three columns, 30,000 beyond.

    It stops after 20 looks without a better held-out loss, which the paper does not; in ten dimensions its energies get
    worse without bound when they are trained to the end.

    >>> from ctem.spaces import Real
    >>> default_recipe(Space([Real()] * 2)).steps
    15000
    """
    return replace(PAPER_2D if space.dim <= FEW else PAPER_HIGH_D, patience=PATIENCE)


def checked_recipe(recipe: Any, space: Space) -> Recipe:
    """The recipe that was given, or the paper's."""
    if recipe is None:
        return default_recipe(space)
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe: expected a ctem.Recipe, or None for the paper's; got {recipe!r}.")
    return recipe
