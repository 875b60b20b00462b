"""Latent classes from a header and tensors, after a check that a fit could have written them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ctem.bases import ProductBase
from ctem.densities.anyorder.classes import LARGEST, LatentClasses
from ctem.spaces import Space

__all__ = ["rebuilt_classes"]

ROUNDING = 1e-3  # by which probabilities may miss 1


def rebuilt_classes(
    base: ProductBase, members: int, groups: list[list[Any]] | None, tensors: Mapping[str, Tensor]
) -> LatentClasses | None:
    """The classes of as many mixtures as networks; None where a file has none.

    >>> from ctem.spaces import Category
    >>> base = ProductBase(Space([Category(2)]))
    >>> tensors = {"weight": torch.ones(1, 1), "chance": torch.full((1, 1, 1), 0.3)}
    >>> rebuilt_classes(base, 1, [[0]], tensors).groups
    [[0]]
    """
    if groups is None:
        return None
    _check_groups(base.space, groups)
    weight, chance = tensors["weight"], tensors["chance"]
    cells = sum(base.space.sizes) - base.space.dim
    if chance.shape != (members, weight.shape[-1], cells) or weight.shape != chance.shape[:2]:
        raise ValueError(f"classes: expected {members} mixtures of {cells} cells; got {tuple(chance.shape)}.")
    whole = (weight > 0).all() and ((weight.sum(1) - 1).abs() < ROUNDING).all() and (chance > 0).all()
    starts = torch.tensor([0, *(k - 1 for k in base.space.sizes)]).cumsum(0).tolist()
    for group in groups:
        together = sum(chance[..., starts[j] : starts[j + 1]].sum(-1) for j in group)
        whole = whole and torch.as_tensor(together < 1 + ROUNDING).all()
    if not bool(whole):
        raise ValueError("classes: expected probabilities > 0, those of a group at most 1 together.")
    return LatentClasses(base, groups, weight, chance)


def _check_groups(space: Space, groups: list[list[Any]]) -> None:
    """Every column is in one group, and only bits share one."""
    columns = [j for group in groups for j in group]
    if not all(type(j) is int for j in columns) or sorted(columns) != list(range(space.dim)) or space.reals:
        raise ValueError(f"classes: expected groups of {space.dim} discrete columns, each column once.")
    for group in groups:
        if not 1 <= len(group) <= LARGEST or (len(group) > 1 and any(space.sizes[j] != 2 for j in group)):
            raise ValueError(
                f"classes: expected groups of 1 to {LARGEST} bits, or of one column; got {group}."
            )
