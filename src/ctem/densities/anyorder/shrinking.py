r"""What the networks' conditionals are worth on rows that they have not seen, and which columns are alone.

A network learns by heart what depends on nothing, and is then worse than the margin of the column. Every network is
blind to some rows, so what it is worth there is known. The share w of a conditional that is the networks', the rest
being the margin (``ctem.densities.anyorder.worth``), is the one that makes those rows most likely: with r the ratio of
the network's conditional to the margin, their mean log-likelihood beyond the margin is

    L(w) = mean log(1 + w (r − 1)),      concave, and 0 at w = 0.

Half of this mean is over random visible sets, as in training, and half over sets that show nearly everything.

* One network is judged, and the mean of K is used. For small r − 1 the best share is S / (S + N), with S the mean
  square of what is true of r − 1 and N that of what is not. The mean of K networks has N / K if they err independently,
  so that its best share has K times the odds, S / N.
* L is known for n rows only, and chance alone adds half a nat to n L. So the share is 1 unless a smaller one gains
  ``EVIDENCE`` nats; and it is 0 if the networks are worse than the margin and no share gains so much.
* Where rows are few, ``EVIDENCE`` is much for each of them, and both ends are too far: the share of one network is
  where n L(w) + ``PRIOR`` log w(1 − w) is largest, a half where nothing is known.

A column of chance costs the others, too: it is noise to the networks that see it. If a column depends on nothing, then
nothing depends on it, and hiding it loses nothing. Let a column have share 0, so that one network knows less than
``EVIDENCE`` / n nats about it, and the mean of K less than K times that. It is *alone* if it costs the others more: if
to one network the other columns of unseen rows are so much less likely where its value is shown. Few rows leave much
possible, and hide nothing.

Where latent classes stand in for the margin, each network is compared with the mixture of the same number, which is
blind to the same rows. Both are averaged, so that the share of one is the share of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ctem.densities.anyorder.network import AnyOrderNet, Clear
from ctem.densities.anyorder.objective import HiddenColumns
from ctem.densities.anyorder.worth import Worth

__all__ = ["Unseen", "alone", "found_worth"]

EVIDENCE = 2.0  # nats of all unseen rows together
LITTLE = 0.01  # nats a row; where ``EVIDENCE`` is more for each of the unseen rows, they are few
PRIOR = 0.5  # of a share, where rows are few: that of Beta(3/2, 3/2)
NEARLY = 0.99  # a share from which on it counts as 1, there
PASSES = 4  # random visible sets of a row
BLOCKS = 16  # of columns that are hidden while all others are shown, at most
LARGEST = 30.0  # log-ratio that counts, so that its exponential is finite
HALVINGS = 24  # of the interval that holds a share


class Unseen(NamedTuple):
    """Rows that networks have not seen, and how they are asked about them.

    >>> Unseen(torch.zeros(2, 5, 3), 1e-3, HiddenColumns()).rows.shape
    torch.Size([2, 5, 3])
    """

    rows: Tensor  # (members, n, d): each member's own, or the same for all
    level: float  # noise level of real columns
    objective: HiddenColumns
    shared: bool = False  # no member has seen any of them: the mean of the members is judged
    seed: int = 0  # of the visible sets


def found_worth(net: AnyOrderNet, unseen: Unseen) -> Worth:
    """The share of each column, and the nats that the others give about it; columns that are not heard stay so.

    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Category, Space
    >>> net = AnyOrderNet(ProductBase(Space([Category(2)] * 2)), width=8)  # untrained: the margin itself
    >>> found = found_worth(net, Unseen(torch.zeros(1, 5, 2), 1e-3, HiddenColumns()))
    >>> round(found.share[0], 4), found.nats
    (0.5, (0.0, 0.0))
    """
    ask = _Asked(net, unseen)
    anyhow = torch.stack([ask.log_ratio(ask.random_sets()) for _ in range(PASSES)]).flatten(0, 2)
    nearly = ask.given_nearly_all().flatten(0, 1)
    gains = _Gains(torch.cat([anyhow, nearly]), torch.cat([_even(anyhow), _even(nearly)]) / 2)
    rows = (~nearly.isnan()).sum(0)
    best, raw = gains.best(), gains.at(torch.ones_like(gains.weight[0]))
    gain, unheard = gains.at(best), ~torch.tensor(net.worth.heard, device=raw.device)
    likely = _of_mean(gains.best(PRIOR / rows.clamp_min(1)), ask.judged)
    few, useless = rows * LITTLE < EVIDENCE, (raw < 0) & (rows * gain < EVIDENCE)
    whole = torch.where(few, likely > NEARLY, rows * (gain - raw) < EVIDENCE)
    share = torch.where(few, likely, _of_mean(best, ask.judged))
    share = torch.where(useless & ~few | unheard, 0.0, torch.where(whole, 1.0, share))
    nats = _Gains(nearly, _even(nearly)).at(torch.where(useless | unheard, 0.0, best))
    nats = (nats + ask.beyond_margins()).clamp_min(0)
    return net.worth._replace(share=tuple(share.tolist()), nats=tuple(nats.tolist()))


def alone(net: AnyOrderNet, unseen: Unseen, worth: Worth) -> dict[int, float]:
    """Columns of share 0 that cost the others more than they can gain, as far as unseen rows show.

    With each, how many nats a row the others lose by being shown it, at random visible sets. Columns of ties are never
    alone.

    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Category, Space
    >>> net = AnyOrderNet(ProductBase(Space([Category(2)] * 2)), width=8)
    >>> alone(net, Unseen(torch.zeros(1, 5, 2), 1e-3, HiddenColumns()), Worth((0.0, 1.0), (True, True)))
    {}
    """
    ask, tied = _Asked(net, unseen), set() if net.ties is None else set(net.ties.used)
    doubtful = [j for j, share in enumerate(worth.share) if share == 0 and j not in tied]
    lost = {j: ask.lost_by(j) for j in doubtful}
    rows = ask.rows.shape[1] * (1 if unseen.shared else len(ask.rows))
    return {j: nats for j, nats in lost.items() if nats > ask.judged * EVIDENCE / rows}


class _Asked:
    """A network, and unseen rows that it is asked about."""

    def __init__(self, net: AnyOrderNet, unseen: Unseen):
        rows, ends = net.parted(unseen.rows)
        self.net, self.rows, self.observed, self.x = net, rows, ~rows.isnan(), rows.nan_to_num()
        self.clear = None if ends is None else Clear(self.x, ends)
        self.level = torch.full_like(rows[..., :1], unseen.level)
        self.log_margin = net.base.column_log_prob(self.x)
        self.objective, self.shared = unseen.objective, unseen.shared
        averaged = unseen.shared or net.classes is not None
        self.judged = 1 if averaged else net.members  # networks in the mean, for one that is judged
        self.generator = torch.Generator(rows.device).manual_seed(unseen.seed)

    def random_sets(self) -> Tensor:
        """Columns to show, as in training; the same to every member where rows are shared."""
        rows = self.rows[:1] if self.shared else self.rows
        return self.objective.visible_sets(rows, self.generator).expand_as(self.rows)

    def given_nearly_all(self) -> Tensor:
        """``log_ratio`` of every column given all others but a few, (members or 1, n, d)."""
        out = self.rows.new_zeros(1 if self.shared else len(self.rows), *self.rows.shape[1:]).double()
        for block, shown in self._nearly_all():
            out[..., block] = self.log_ratio(shown)[..., block]
        return out

    def _nearly_all(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of columns, and what is shown where they are hidden."""
        d, device = self.rows.shape[-1], self.rows.device
        for block in torch.randperm(d, generator=self.generator, device=device).chunk(min(d, BLOCKS)):
            shown = torch.ones(d, dtype=torch.bool, device=device)
            shown[block] = False
            yield block, self._allowed(shown).expand_as(self.rows)

    def beyond_margins(self) -> Tensor | float:
        """Mean nats that latent classes add to each margin, given nearly all others, (d,); 0 without any."""
        if self.net.classes is None:
            return 0.0
        found = self.rows.new_zeros(self.rows.shape[-1]).double()
        for block, shown in self._nearly_all():
            log_ratio = self._averaged((self._beside(shown) - self.log_margin).double())
            found[block] = log_ratio[..., block].mean((0, 1))
        return found

    def _beside(self, shown: Tensor) -> Tensor:
        """log of what networks are mixed with, (members, n, d)."""
        classes = self.net.classes
        return self.log_margin if classes is None else classes.log_conditionals(self.x, shown & self.observed)

    def _averaged(self, log_p: Tensor) -> Tensor:
        """The mean over the members, (1, n, d), where all are asked about the same rows."""
        return log_p.logsumexp(0, keepdim=True) - math.log(len(log_p)) if self.shared else log_p

    def _allowed(self, shown: Tensor) -> Tensor:
        """Without the continuous part of a column whose parent is hidden, which would give the parent away."""
        for child, parent in self.objective.parents.items():
            shown[..., child] &= shown[..., parent]
        return shown

    def log_ratio(self, shown: Tensor) -> Tensor:
        """log net_j / b_j, (members, n, d), or (1, n, d) of their means; nan for what is shown or missing.

        b_j is the margin, or that of latent classes.
        """
        with torch.no_grad():
            log_p = self.net.log_conditionals(self.x, shown & self.observed, self.level, self.clear)
        found = self._averaged(log_p.double()) - self._averaged(self._beside(shown).double())
        asked = (self.observed & ~shown)[: len(found)]
        return torch.where(asked, found, math.nan)

    def lost_by(self, j: int) -> float:
        """Nats a row by which the others are less likely where column j is shown."""
        gain = []
        for _ in range(PASSES):
            shown = self.random_sets().clone()
            shown[..., self.objective.parents.get(j, j)] = True
            shown[..., j] = False
            hidden = self.log_ratio(self._allowed(shown))
            shown[..., j] = True
            gain.append((self.log_ratio(shown) - hidden).nansum(-1))
        return -float(torch.stack(gain).mean())


class _Gains:
    """L(w) of each column, from log-ratios (m, d), nan for none, and their weights, which sum to 1."""

    def __init__(self, log_ratio: Tensor, weight: Tensor):
        self.excess, self.weight = log_ratio.clamp(max=LARGEST).expm1().nan_to_num(), weight

    def at(self, share: Tensor) -> Tensor:
        """L(w) for shares (d,)."""
        return (self.weight * torch.log1p(share * self.excess)).sum(0)

    def best(self, prior: Tensor | float = 0.0) -> Tensor:
        """Where L(w) + prior · log w(1 − w) is largest, (d,): its slope falls, so that halving an interval finds it."""
        low, high = torch.zeros_like(self.weight[0]), torch.ones_like(self.weight[0])
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            slope = (self.weight * self.excess / (1 + middle * self.excess)).sum(0)
            rising = slope + prior * (1 / middle - 1 / (1 - middle)) > 0
            low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
        return torch.where(high == 1, high, low)


def _of_mean(share: Tensor, members: int) -> Tensor:
    """The share with so many times the odds: K w / (1 + (K − 1) w)."""
    return members * share / (1 + (members - 1) * share)


def _even(log_ratio: Tensor) -> Tensor:
    """The same weight for every answer of a column, (m, d)."""
    asked = ~log_ratio.isnan()
    return asked / asked.sum(0).clamp_min(1).double()
