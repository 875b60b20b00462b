"""The conditionals of a trained any-order network, asked at one noise level of its real columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ctem.densities.anyorder.apart import ApartProbabilities, Paired, Weights, weighed
from ctem.densities.anyorder.limits import BEYOND, Bounds, Limits
from ctem.densities.anyorder.network import AnyOrderNet, Trunk
from ctem.densities.anyorder.numbers import FAR, NumberHead, log_normal
from ctem.densities.anyorder.rules import Named, Rules, keep_labels, with_cell
from ctem.densities.anyorder.tails import Tails
from ctem.densities.anyorder.ties import TiedParts
from ctem.densities.anyorder.worth import NEVER, mixed_column
from ctem.densities.chain import Asked, Conditional, Conditionals, Probabilities

__all__ = ["AtLevel", "NumberDensity"]

NODES = 1025  # at which the density of a real column is tabulated
WIDTH = 2 * FAR / (NODES - 1)  # between two of them
UNITS, CUDA_UNITS = 2**22, 2**27  # of a layer, all members and rows: what is fast on a CPU, what fills a GPU
BYTES = 128  # of a GPU's free memory for each of them: thrice what scoring takes


class AtLevel(Conditionals):
    """A network's conditionals with visible real columns at one noise level (``ctem.densities.chain.Conditionals``).

    Every conditional is the mean of the members', mixed with the margin as far as they are not believed
    (``ctem.densities.anyorder.worth``). That is far more than a mixture of whole densities: where rows are few every
    member errs in its own way in every column, and each of these errors is averaged.

    Arguments:
        net: the network.
        level: the noise level.
        member: the one that answers; all of them when left out.
        counted: what a formula gives exactly has its probability for its density (``TiedParts.counting``).
        rules: what columns determine of others for certain, or nearly so (``ctem.densities.anyorder.rules``).

    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Category, Space
    >>> net = AnyOrderNet(ProductBase(Space([Category(4)] * 2)), width=8)
    >>> rows, hidden = torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.bool)
    >>> AtLevel(net, 1e-3).given(rows, hidden, 0).log_prob(rows[:, 0]).exp()
    tensor([0.2500, 0.2500, 0.2500], grad_fn=<ExpBackward0>)
    """

    def __init__(
        self,
        net: AnyOrderNet,
        level: float,
        member: int | None = None,
        counted: bool = False,
        rules: Rules | None = None,
    ):
        self.rules, self.shrunk = rules, dict[tuple[int, int], Weights]()
        self.net, self.base, self.level, self.member, self.counted = net, net.base, level, member, counted
        self.asked = slice(None) if member is None else slice(member, member + 1)

    @property
    def at_once(self) -> int:
        """Rows that are answered at a time: each has units of a layer, and pairs of scores."""
        inputs, device = self.net.inputs, self.base.log_table.device
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
        units = min(CUDA_UNITS, free // BYTES) if device.type == "cuda" else UNITS
        pairs = 0 if inputs.correlation is None else len(inputs.scores) ** 2
        return units // max(self.net.members * self.net.options["width"], pairs)

    def given(self, x: Tensor, visible: Tensor, j: int) -> Conditional:
        """ρ(x_j | x_V) for rows x (n, d) and their visible sets V (n, d)."""
        return self.several([Asked(x, visible, j)])[0]

    def several(self, asked: Sequence[Asked]) -> list[Conditional]:
        """``given`` of each question, by one pass: small tables have many small ones."""
        passed = iter(self._trunks([each for each in asked if self._needs_networks(each.j)]))
        return [
            self._answer(next(passed), each) if self._needs_networks(each.j) else self._without_networks(each)
            for each in asked
        ]

    def _trunks(self, asked: Sequence[Asked]) -> list[Trunk]:
        """What the networks make of each question."""
        if not asked:
            return []
        x, visible = torch.cat([each.x for each in asked]), torch.cat([each.visible for each in asked])
        trunk = self.net.trunk(
            x.unsqueeze(0), visible.unsqueeze(0), self.level, self.asked, self.net.formula_values(x, visible)
        )
        return trunk.split([len(each.x) for each in asked])

    def _needs_networks(self, j: int) -> bool:
        """Whether the networks are believed in anything about column j, or a rule or a formula is about it."""
        tied = self.net.ties is not None and j in self.net.ties.targets
        ruled = self.rules is not None and self.rules.about(j)
        return self.net.worth.share[j] > 0 or tied or bool(ruled)

    def _without_networks(self, asked: Asked) -> Conditional:
        """The margin of a column, or that of latent classes."""
        x, visible, j = asked
        if self.net.space.sizes[j]:
            return Probabilities(_mean(self._beside(x[None], visible[None], j)))
        found, mean = x.new_zeros(1, len(x), self.net.numbers.size), torch.zeros_like(x[:, j])
        return NumberDensity(self.net.numbers, found, mean, torch.ones_like(mean), share=0.0)

    def _answer(self, trunk: Trunk, asked: Asked) -> Conditional:
        j, rules = asked.j, self.rules if self.rules is not None and self.rules.about(asked.j) else None
        named = None if rules is None else rules.named(*asked)
        if self.net.space.sizes[j]:
            every = self.net.label_log_probs(trunk, j, self.asked)
            log_p = _mean(self._mixed(every, asked.x[None], asked.visible[None], j))
            return Probabilities(log_p) if rules is None else self._kept(log_p, rules, asked, named)
        found, mean, spread, tied = self.net.number_coefficients(trunk, j, self.asked)
        if named is not None:
            plain = NumberDensity(self.net.numbers, found, mean[0], spread[0])
            inside = plain.cdf(named.value.nan_to_num()).diff(dim=1).squeeze(1).detach().to(found)
            tied = with_cell(tied, named, inside, len(found))
        tied = tied.counting(WIDTH) if self.counted and tied is not None else tied
        share = (
            self.net.worth.share[j] if rules is None else 1.0
        )  # what follows a rule is not left to its margin
        plain = NumberDensity(
            self.net.numbers, found, mean[0], spread[0], tied, share, reach=self.net.worth.reach
        )
        bounds = None if rules is None else rules.bounds(*asked)
        return plain if bounds is None else plain.bounded(bounds)

    def _kept(self, log_p: Tensor, rules: Rules, asked: Asked, named: Named | None) -> Conditional:
        """The conditional of a discrete column from that of the networks (n, k), by what was counted and by rules."""
        x, visible, j = asked
        log_p = weighed(log_p, rules.paired(j), x, visible, lambda pair: self._shrunk(pair, j))
        log_p = keep_labels(log_p, rules.within(*asked), named, rules.ordered(*asked))
        counted = rules.counted(*asked)
        return Probabilities(log_p) if counted is None else ApartProbabilities(log_p, *counted)

    def _shrunk(self, pair: Paired, j: int) -> Weights:
        """The codes of column j given labels of another, backing off to the networks given the codes of that alone."""
        if (pair.given, j) not in self.shrunk:
            k, d = self.net.space.sizes[pair.given], self.net.space.dim
            x = self.base.log_table.new_zeros(k, d)
            x[:, pair.given] = torch.arange(k, device=x.device)
            visible = torch.arange(d, device=x.device).expand(k, d) == pair.given
            with torch.no_grad():
                trunk = self.net.trunk(
                    x[None], visible[None], self.level, self.asked, self.net.formula_values(x, visible)
                )
                every = self.net.label_log_probs(trunk, j, self.asked)
                alone = _mean(self._mixed(every, x[None], visible[None], j))
            self.shrunk[pair.given, j] = pair.shrunk(alone.exp())
        return self.shrunk[pair.given, j]

    def _mixed(self, log_p: Tensor, x: Tensor, visible: Tensor, j: int) -> Tensor:
        """Log-probabilities (members, n, k) of the values of a discrete column j, mixed with its margin.

        Or with that of latent classes at rows x (1 or members, n, d), if there are any.
        """
        share = self.net.worth.share[j]
        return log_p if share == 1.0 else mixed_column(share, log_p, self._beside(x, visible, j))

    def _beside(self, x: Tensor, visible: Tensor, j: int) -> Tensor:
        """What networks are mixed with: log-probabilities (1 or members, n, k) of the values of a discrete column j."""
        if self.net.classes is not None:
            return self.net.classes.log_probs(x, visible, j, self.asked)
        log_margin = self.base.log_table[self.net.space.discretes.index(j), : self.net.space.sizes[j]]
        return log_margin.expand(1, x.shape[1], -1)

    def draw(self, x: Tensor, visible: Tensor, j: int, generator: torch.Generator) -> Tensor:
        """A value of column j for each row, by one member, since a draw from a mean is a draw from a random part.

        The rows are dealt out to the members at random, so that each has one pass instead of as many as members. What
        rules imply for a column is about the mean of all.
        """
        if self.rules is not None and self.rules.about(j):
            return self.given(x, visible, j).draw(generator)
        if not self._needs_networks(j):
            return self._without_networks(Asked(x, visible, j)).draw(generator)
        members, n = 1 if self.member is not None else self.net.members, len(x)
        dealt = torch.randperm(n, generator=generator, device=x.device)
        most = -(-n // members)
        index = dealt[torch.arange(members * most, device=x.device) % n].view(members, most)
        formulas = self.net.formula_values(x, visible)
        formulas = None if formulas is None else formulas.rows(index.flatten())
        trunk = self.net.trunk(x[index], visible[index], self.level, self.asked, formulas)
        if self.net.space.sizes[j]:
            log_p = self.net.label_log_probs(trunk, j, self.asked)
            log_p = self._mixed(log_p, x[index], visible[index], j)
            found: Conditional = Probabilities(log_p.flatten(0, 1))
        else:
            each, mean, spread, tied = self.net.number_coefficients(trunk, j, self.asked)
            tied = None if tied is None else tied._replace(found=tied.found.flatten(0, 1).unsqueeze(0))
            each = each.view(1, members * most, -1)
            share = self.net.worth.share[j]
            reach = self.net.worth.reach
            found = NumberDensity(
                self.net.numbers, each, mean.flatten(), spread.flatten(), tied, share, reach=reach
            )
        out = torch.empty_like(x[:, 0])
        out[dealt] = found.draw(generator)[:n]
        return out


@dataclass(frozen=True)
class NumberDensity:
    """The conditional of a real column: a head, what it needs for each member and row, and how far it is believed.

    >>> head = NumberHead()
    >>> density = NumberDensity(head, torch.zeros(3, 2, head.size), torch.zeros(2), torch.ones(2))
    >>> density.draw(torch.Generator().manual_seed(0)).shape
    torch.Size([2])
    """

    head: NumberHead
    found: Tensor  # (members, n, size)
    mean: Tensor  # (n,)
    spread: Tensor  # (n,)
    tied: TiedParts | None = None
    share: float = 1.0  # the rest is a standard normal, the margin of every real column
    limits: Limits | None = None
    reach: float = NEVER  # beyond which its shape is the margin's (``ctem.densities.anyorder.tails``)

    def bounded(self, bounds: Bounds) -> NumberDensity:
        """This density with more mass within bounds, or less, by rules."""
        ends = torch.stack([bounds.low, bounds.high], 1)
        inside = self.cdf(ends.clamp(-BEYOND, BEYOND)).diff(dim=1).squeeze(1).detach()
        return replace(self, limits=Limits.of(bounds, inside))

    def log_prob(self, value: Tensor) -> Tensor:
        """log ρ of numbers (n,)."""
        return self.at(value.unsqueeze(1)).squeeze(1)

    def at(self, values: Tensor) -> Tensor:
        """log ρ of several numbers for each row, (n, q)."""
        if self.share == 0.0:
            return log_normal(values)
        every = values.expand(len(self.found), *values.shape)
        log_p = self.head.log_prob(every, self.found, self.mean, self.spread)
        log_p = self._tailed(log_p, values)
        log_p = _mean(log_p if self.tied is None else self.tied.at_values(log_p, values))
        log_p = log_p if self.share == 1.0 else mixed_column(self.share, log_p, log_normal(values))
        return log_p if self.limits is None else self.limits.log_prob(log_p, values)

    def cdf(self, values: Tensor) -> Tensor:
        """The mass below several numbers for each row, (n, q), in float64; without a look at ``bounds``."""
        values = values.double()
        every = values.expand(len(self.found), *values.shape)
        below = self.head.cdf(every, self.found.double(), self.mean.double(), self.spread.double())
        below = below if self.reach >= NEVER else self.tails(slice(None)).cdf(below, values)
        return (below if self.tied is None else self.tied.cdf(below, values)).mean(0)

    def _tailed(self, log_p: Tensor, values: Tensor) -> Tensor:
        """log ρ of values (n, q) by each member, (members, n, q), with the tails that rows reach."""
        if self.reach >= NEVER:
            return log_p
        rows = (values.abs() > self.reach).any(1).nonzero().squeeze(1)
        if not len(rows):
            return log_p
        tails = self.tails(rows)
        return log_p.index_copy(1, rows, tails.log_prob(log_p[:, rows], values[rows]))

    def tails(self, rows: Tensor | slice) -> Tails:
        """Those of some rows, by each member."""
        mean, spread = self.mean[rows].double(), self.spread[rows].double()
        ends = mean.new_tensor([-self.reach, self.reach]).expand(len(self.found), len(mean), -1)
        return Tails(self.reach, self.head.cdf(ends, self.found[:, rows].double(), mean, spread))

    def table(self) -> tuple[Tensor, Tensor]:
        """Nodes (q,) on [−8, 8] and log ρ there, (n, q); what lies in a tied cell is at the nearest node."""
        nodes, p = self.smooth()
        if self.tied is None:
            return nodes, p.log()
        place, share = self.points()
        nearest = ((place + FAR) / WIDTH).round().long().clamp(0, NODES - 1)
        return nodes, p.scatter_add(1, nearest, share / WIDTH).log()

    def smooth(self) -> tuple[Tensor, Tensor]:
        """Nodes (q,) on [−8, 8] and ρ there but for the tied cells, (n, q)."""
        nodes = torch.linspace(-FAR, FAR, NODES, dtype=self.found.dtype, device=self.found.device)
        tied = None if self.tied is None else self.tied.smooth(WIDTH)
        return nodes, replace(self, tied=tied).at(nodes.expand(len(self.mean), -1)).exp()

    def points(self) -> tuple[Tensor, Tensor]:
        """The middle of each tied cell and its probability, (n, slots) each; no slots where nothing is tied."""
        if self.tied is None:
            none = self.mean.new_zeros(len(self.mean), 0)
            return none, none
        place, share = self.tied.points()
        share = self.share * share
        return place, share if self.limits is None else self.limits.log_prob(share.log(), place).exp()

    def draw(self, generator: torch.Generator) -> Tensor:
        """A number within ±8 for each row, (n,): that of a random member, or of the margin."""
        if self.limits is not None:
            return self.limits.draw(replace(self, limits=None), generator)
        margin = torch.empty_like(self.mean)
        if self.share == 0.0:
            return margin.normal_(generator=generator).clamp_(-FAR, FAR)
        drawn = self._draw(generator)
        if self.share == 1.0:
            return drawn
        own = torch.empty_like(drawn).uniform_(generator=generator) < self.share
        return torch.where(own, drawn, margin.normal_(generator=generator).clamp_(-FAR, FAR))

    def _draw(self, generator: torch.Generator) -> Tensor:
        """That of a random member."""
        members, n, size = self.found.shape
        who = torch.randint(members, (1, n, 1), generator=generator, device=self.found.device)
        one = self.found.gather(0, who.expand(1, n, size)).squeeze(0)
        drawn = self.head.draw(one, self.mean, self.spread, generator)
        far = (drawn.abs() > self.reach).nonzero().squeeze(1)
        if len(far):
            plain = replace(self, found=one.unsqueeze(0))
            drawn[far] = plain.tails(far).draw(drawn[far], generator)
        return drawn if self.tied is None else self.tied.of_members(who.flatten()).draw(drawn, generator)

    def rows(self, index: Tensor) -> NumberDensity:
        """Those of these rows."""
        tied = None if self.tied is None else self.tied.rows(index)
        limits = None if self.limits is None else self.limits.rows(index)
        own = self.found[:, index], self.mean[index], self.spread[index]
        return NumberDensity(self.head, *own, tied, self.share, limits, self.reach)


def _mean(log_p: Tensor) -> Tensor:
    """log of the mean probability over the members, the first axis."""
    return log_p.squeeze(0) if len(log_p) == 1 else log_p.logsumexp(0) - math.log(len(log_p))
