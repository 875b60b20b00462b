r"""One pass for what the chain rule knows: a potential that learns log ρ_V/b of every visible set from drawn rows.

The chain rule draws rows x column after column and says how likely every prefix of each is. A potential g(x; V) that is
fitted to these numbers gives in one pass what the chain rule gives in d. Rows are drawn, not data: there are as many as
one likes, and nothing to overfit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from ctem.bases import ProductBase
from ctem.chain import Chain
from ctem.parts import Parts

__all__ = ["Distil", "draw_paths"]


def draw_paths(
    chain: Chain, n: int, order: Sequence[int], generator: torch.Generator, astray: float = 1.0
) -> Tensor:
    """n rows x, the place of every column in the order, and log ρ/b of every prefix of the row: (n, 3d + 1).

    On average ``astray`` cells of a row are drawn from the base instead, so that g learns what is unlikely, too.

    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> chain = Chain(ClockNet(base, width=8), base)  # untrained: the base itself
    >>> draw_paths(chain, 5, [2, 0, 1], torch.Generator().manual_seed(0))[0, 3:]
    tensor([1., 2., 0., 0., 0., 0., 0.])
    """
    like, d = chain.base.log_table, chain.space.dim
    x = torch.full((n, d), math.nan, dtype=like.dtype, device=like.device)
    place, known = torch.empty_like(x[:1]), [x.new_zeros(n)]
    off = torch.rand(n, d, generator=generator, device=like.device) < astray / d
    for k, j in enumerate(order):
        value, log_p = chain.draw(x, j, generator)
        if bool(off[:, j].any()):
            rows = off[:, j].nonzero().squeeze(1)
            value[rows] = chain.base.sample(len(rows), generator)[:, j]
            log_p[rows] = chain.log_conditional(x[rows], j, value[rows])
        x[:, j] = value
        known.append(known[-1] + log_p - chain.base.column_log_prob(x.nan_to_num())[:, j])
        place[:, j] = k
    return torch.cat([x, place.expand(n, -1), torch.stack(known, 1)], 1)


@dataclass(frozen=True)
class Distil:
    """Robust regression of g(x; V) on log ρ_V/b of drawn rows; V is a prefix of their order, in half of them all of it.

    Arguments:
        base: the base.
        level: of visible real columns.
        parents: for a real column that exists only where a category has code 0, that category.

    >>> from ctem.clocknet import ClockNet
    >>> from ctem.spaces import Category, Space
    >>> base = ProductBase(Space([Category(2)] * 3))
    >>> g = ClockNet(base, width=8)
    >>> paths = draw_paths(Chain(g, base), 6, [2, 0, 1], torch.Generator().manual_seed(0))
    >>> Distil(base, 0.0)(g, paths, torch.Generator()).item()  # the base knows the base
    0.0
    """

    base: ProductBase
    level: float
    parents: Mapping[int, int] = field(default_factory=dict)
    parts: Parts = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", Parts(self.parents).to(self.base.log_table.device))

    def __call__(
        self, g: Callable[[Tensor, Tensor], Tensor], paths: Tensor, generator: torch.Generator
    ) -> Tensor:
        """The mean loss over rows of ``draw_paths``."""
        d = self.base.space.dim
        x, place, known = paths.split((d, d, d + 1), 1)
        u = torch.rand(2, len(paths), 1, generator=generator, dtype=paths.dtype, device=paths.device)
        size = torch.where(u[0] < 0.5, 1 + (u[1] * d).floor(), d).clamp(max=d)
        level = torch.where(self.base.is_real, self.level, 0.0)
        level = torch.where(place < size, level, math.inf)
        found = g(x, self.parts.hide(x, level))
        return smooth_l1_loss(found, known.gather(1, size.long()).squeeze(1))
