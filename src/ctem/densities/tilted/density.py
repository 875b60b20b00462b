r"""The any-order density times an energy: ρ(x) = b(x) e^{g(x)} / Z, and all that it answers.

Draws are draws of b that are accepted with probability e^{g − ceiling}, so that no Markov chain is needed. Hidden cells
are drawn several times given the others, and one of the draws is taken by its weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.choices import choose
from ctem.densities.presence import gaps
from ctem.densities.tilted.energy import Energy

__all__ = ["TiltedDensity"]

Snap = Callable[[Tensor], Tensor]
FEWEST, MOST = 4, 16  # draws of hidden cells from which one is taken
SPARE = 1.1  # times as many draws as are expected to be needed
DRAWN = 2**17  # draws of b at once, at most
ROWS = 2**15  # that are drawn several times, together


class TiltedDensity(AnyOrderDensity):
    """An any-order density b, tilted by an energy.

    Arguments:
        plain: b.
        energy: g, log Z and what belongs to them.
        snap: puts drawn rows where rows of the data can be.

    >>> from ctem.bases import ProductBase
    >>> from ctem.densities.anyorder.network import AnyOrderNet
    >>> from ctem.densities.tilted import Plan, fit_energy
    >>> from ctem.spaces import Category, Space
    >>> b = AnyOrderDensity(AnyOrderNet(ProductBase(Space([Category(2)] * 2)), width=8), 1e-3, [[0, 1]])
    >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).repeat(500, 1)
    >>> energy = fit_energy(b, x[:800], x[800:], [2, 2], Plan(rate=0.1, trees=50, fresh=8000))
    >>> rho = TiltedDensity(b, energy, lambda x: x)
    >>> bool((rho.log_prob(x[:1]) - math.log(0.5)).abs() < 0.05)
    True
    >>> rows = rho.sample(1000, torch.Generator().manual_seed(0))
    >>> bool((rows[:, 0] == rows[:, 1]).double().mean() > 0.98)
    True
    """

    def __init__(self, plain: AnyOrderDensity, energy: Energy, snap: Snap):
        super().__init__(
            plain.net,
            plain.level,
            plain.orders,
            parents=plain.parents,
            late=plain.chain.late,
            member=plain.member,
            counted=plain.counts,
            rules=plain.rules,
            history=plain.history,
        )
        self.plain, self.energy, self.snap = plain, energy, snap

    def altered(self, **how: Any) -> TiltedDensity:
        """The same density at another noise level, by one member alone, or in other orders, with the same energy."""
        return TiltedDensity(self.plain.altered(**how), self.energy, self.snap)

    def log_terms(self, x: Tensor) -> Tensor:
        """What each column adds to log ρ(x): that of b, and of the energy what its splits add."""
        return super().log_terms(x) + self.energy.terms(self.snap(x))

    def grad_log_prob(self, x: Tensor) -> Tensor:
        """∂ log ρ / ∂x of the real columns, zero elsewhere and in missing cells, (n, d)."""
        return super().grad_log_prob(x) + torch.where(self.base.is_real, self.energy.grad(x), 0.0)

    def log_tilt(self, x: Tensor) -> Tensor:
        """log ρ/b of rows that b has drawn, (n,)."""
        return self.energy(self.snap(x))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n rows: draws of b, each accepted with probability e^{g − ceiling} / Z."""
        accepted: list[Tensor] = []
        while (need := n - sum(map(len, accepted))) > 0:
            count = min(SPARE * need / self.energy.acceptance + 1, DRAWN)
            drawn = self.snap(self.plain.sample(math.ceil(count), generator))
            u = torch.rand(len(drawn), generator=generator, dtype=torch.float64, device=drawn.device)
            accepted.append(drawn[u.log() < self.energy(drawn) - self.energy.ceiling])
        return torch.cat(accepted)[:n]

    def complete(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """x with its missing cells drawn given the others: of several draws of b one, by its weight."""
        rows = gaps(x, self.parents).any(1).nonzero().squeeze(1)
        if not len(rows):
            return x.clone()
        out, times = x.clone(), min(max(math.ceil(2 * math.exp(self.energy.ceiling)), FEWEST), MOST)
        for some in rows.split(max(1, ROWS // times)):
            drawn = self.plain.complete(x[some].repeat_interleave(times, 0), generator)
            log_weight = self.log_tilt(drawn).view(-1, times)
            which = choose(log_weight.softmax(1), generator)
            out[some] = drawn.view(len(some), times, -1)[torch.arange(len(some), device=x.device), which]
        return out

    def _log_prob(self, x: Tensor, asked: Collection[int], given: list[int]) -> Tensor:
        """log b(x_asked | x_given), plus what the energy makes of all these cells, less what it makes of the given."""
        log_p, x = super()._log_prob(x, asked, given), self.snap(x)
        log_p = log_p + self.energy(self._shown(x, {*asked, *given}))
        return log_p - self.energy(self._shown(x, set(given))) if given else log_p

    def _shown(self, x: Tensor, columns: Collection[int]) -> Tensor:
        """Rows with all other columns hidden."""
        hidden = x.clone()
        hidden[:, [j for j in range(self.space.dim) if j not in columns]] = math.nan
        return hidden
