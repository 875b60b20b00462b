"""The two phases of training a network of conditionals, within a given time if need be."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ctem.densities.anyorder.network import AnyOrderNet
from ctem.densities.anyorder.objective import HiddenColumns
from ctem.densities.anyorder.settings import first_steps, second_steps
from ctem.persistence.atomic import replacing
from ctem.training import History, Recipe, train
from ctem.training.loop import Refresh
from ctem.training.processes import team

__all__ = ["Phases", "Split", "joined_history"]

ENDING = 1 / 3  # of the steps up to the best, over which the rate falls after a rise in the second
PATIENT = 0.5  # of the second phase: so long must a rise of the held-out loss last
RISING = 300  # steps over which the rate rises in the second phase, at most
JUDGING, LOOKS = (
    0.2,
    80,
)  # share of the time for all but the training; looks at held-out rows that it takes, about
FEWEST = 32  # held-out rows of a member, at least
ORDERING = 0.05  # share of the time in which orders are chosen


class Split(NamedTuple):
    """What a training draws from and is judged by.

    >>> import torch
    >>> Split(torch.zeros(9, 2), torch.ones(1, 9), torch.zeros(1, 3, 2)).rows.shape
    torch.Size([9, 2])
    """

    rows: Tensor  # (n, d)
    weights: Tensor  # (members, n)
    held_out: Tensor  # (members, h, d)
    times: int = 1  # that every held-out row is there, one round of all of them after the other
    shared: bool = False  # whether all members have the same held-out rows

    @property
    def unseen(self) -> Tensor:
        """The held-out rows, each once."""
        return self.held_out[:, : self.held_out.shape[1] // self.times]

    def judged_by(self, rows: int) -> Split:
        """The same with so many held-out rows of each member; fewer than all are there once.

        >>> import torch
        >>> Split(torch.zeros(9, 2), torch.ones(1, 9), torch.zeros(1, 6, 2), times=2).judged_by(4).unseen.shape
        torch.Size([1, 3, 2])
        """
        if rows >= self.held_out.shape[1]:
            return self
        return self._replace(held_out=self.unseen[:, :rows], times=1)


@dataclass(frozen=True)
class Phases:
    """The training of one network; of every phase, the weights with the lowest held-out loss stay.

    Arguments:
        net: the network.
        data: rows, weights and held-out rows.
        recipe: how long at most and how fast.
        checkpoint: beginning of the names of files to resume from, one for each phase.
        progress: show a bar.
        end: moment of ``time.perf_counter`` when the networks should be trained and judged.
        judging: seconds before the end when training must end, to judge the networks.
        passes: over all held-out rows that there is time for, to choose orders.
        refresh: brings other rows in, as in ``train``; its step counts on from phase to phase.
        growth: how many times as many rows a step of the second phase has; it has so many times fewer steps.
        second: rows of the second phase for each row that the first was useful for.
        least_gain: nats a row that the first phase must gain by doubling its steps, to go on.

    >>> import torch
    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Category, Space
    >>> net = AnyOrderNet(ProductBase(Space([Category(2)] * 2)), width=8)
    >>> rows = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).repeat(8, 1)
    >>> data = Split(rows, torch.ones(1, 16), rows.unsqueeze(0))
    >>> Phases(net, data, Recipe(steps=10, evaluate_every=2)).learn(HiddenColumns()).step
    [2, 4, 5]
    """

    net: AnyOrderNet
    data: Split
    recipe: Recipe
    checkpoint: str | Path | None = None
    progress: bool = False
    end: float | None = None
    judging: float = 0.0
    passes: int | None = None
    refresh: Refresh | None = None
    growth: int = 1
    second: float = 1.0
    least_gain: float = 0.1

    def learn(self, objective: HiddenColumns) -> History:
        """The first phase, at a constant rate: until it gains little, or for its share of the steps."""
        return self._train("first", objective, self._constant(self._for_first), share=self._first)

    def learn_on(self, objective: HiddenColumns, first: History) -> History:
        """More of the first phase, with another objective: as many steps as are left of its share.

        The best step, by which the second phase is planned, is how many of these steps were useful, or of those before.
        """
        left = self._for_first - first.step[-1]
        if left < self.recipe.evaluate_every:
            return first
        more = self._train("again", objective, self._constant(left), first.step[-1], self._first)
        return replace(joined_history(first, more), best_step=max(first.best_step, more.best_step))

    @property
    def _for_first(self) -> int:
        """Steps of the first phase, at most."""
        return first_steps(self.recipe.steps, self.second)

    @property
    def _first(self) -> float:
        """The share of the steps, and of the time, that the first phase has at most."""
        return 1 / (1 + self.second)

    def _constant(self, steps: int) -> Recipe:
        """The recipe of so many steps of the first phase."""
        worthwhile = self.least_gain / self.net.space.dim
        return replace(self.recipe, steps=steps, schedule="constant", worthwhile=worthwhile)

    def rehearse(self, objective: HiddenColumns, first: History) -> History:
        """The second phase: ``second`` times the rows that the first was useful for, while the rate falls to zero.

        A high rate alone can lift the held-out loss, so that a rise must last for half of the phase. Then the rows are
        being learned by heart: back to the best weights, and the rate falls to zero at once.
        """
        useful = first.best_step if first.stopped_early or self.end is None else self._for_first
        steps = second_steps(useful, self.second, self.growth)
        recipe = _rising(replace(self.recipe, steps=steps, batch_size=self.growth * self.recipe.batch_size))
        pace = self.growth * first.seconds / first.step[-1]
        if recipe.patience is not None:
            looks = round(PATIENT * steps / recipe.evaluate_every)
            recipe = replace(recipe, patience=max(recipe.patience, looks))
        second = self._train("second", objective, recipe, first.step[-1], pace=pace)
        if not second.stopped_early or second.interrupted:
            return second
        best = {name: value.clone() for name, value in self.net.state_dict().items()}
        rate = recipe.learning_rate * recipe.rate(second.best_step)
        ending = replace(
            recipe, steps=max(round(ENDING * second.best_step), 1), learning_rate=rate, patience=None
        )
        third = self._train("last", objective, ending, first.step[-1] + second.step[-1], pace=pace)
        both = joined_history(second, third)
        if third.best_loss <= second.best_loss:
            return both
        self.net.load_state_dict(best)
        return replace(both, best_step=second.best_step, best_loss=second.best_loss)

    def within(self, max_time: float, objective: HiddenColumns) -> Phases:
        """The same for so many seconds: judged by fewer held-out rows if they would take more than their share.

        A run that goes on keeps the rows it began with.
        """
        end, look = time.perf_counter() + max_time, self._look(objective)
        count = self.data.held_out.shape[1]
        note = None if self.checkpoint is None else Path(f"{self.checkpoint}.rows")
        here = team()
        known = here.agreed(lambda: int(note.read_text("utf8")) if note is not None and note.exists() else 0)
        kept = known or min(count, max(FEWEST, int(count * JUDGING * max_time / (LOOKS * look))))
        kept = here.agreed(lambda: kept)
        if note is not None and here.first:
            with replacing(note) as file:
                file.write(str(kept).encode())
        look *= kept / count
        data, judging = self.data.judged_by(kept), min(LOOKS * look, JUDGING * max_time)
        passes = int(ORDERING * max_time / look)
        return replace(self, data=data, end=end, judging=judging, passes=passes)

    def judged_in(self, seconds: float) -> Phases:
        """The same, when it is known how long it takes to judge the networks."""
        return self if self.end is None else replace(self, judging=seconds)

    def ordering_rows(self, orders: int) -> Tensor:
        """Held-out rows by which so many orders can be chosen in their share of the time, (members, n, d)."""
        rows = self.data.held_out
        if self.passes is None:
            return rows
        return rows[:, : max(1, rows.shape[1] * self.passes // (2 * orders * rows.shape[2]))]

    def cut(self, first: History) -> bool:
        """Whether the first phase was ended by the time, so that there is none for anything else."""
        return self.end is not None and not first.stopped_early and first.step[-1] < self._for_first

    @property
    def over(self) -> bool:
        """Whether the time has been used up, so that the networks of the first phase are what there is."""
        return team().agreed(lambda: self.end is not None and time.perf_counter() > self.end)

    def _train(
        self,
        phase: str,
        objective: HiddenColumns,
        recipe: Recipe,
        before: int = 0,
        share: float = 1.0,
        pace: float | None = None,
    ) -> History:
        """A phase that has a share of the time that is left."""
        now = time.perf_counter()
        return train(
            self.net.train(),
            objective,
            self.data.rows,
            replace(recipe, evaluate_every=min(recipe.evaluate_every, recipe.steps)),
            held_out=self.data.held_out,
            weights=self.data.weights,
            checkpoint=None if self.checkpoint is None else f"{self.checkpoint}.{phase}",
            progress=self.progress,
            cuda_graph=self.data.rows.is_cuda,
            deadline=None if self.end is None else now + share * (self.end - self.judging - now),
            pace=pace,
            refresh=None if self.refresh is None else _counting_on(self.refresh, before),
        )

    def _look(self, objective: HiddenColumns) -> float:
        """Seconds of a look at all held-out rows."""
        rows, net = self.data.held_out, self.net
        generator, began = torch.Generator(rows.device).manual_seed(self.recipe.seed), time.perf_counter()
        with torch.no_grad():
            float(objective(net, rows, generator))
        return time.perf_counter() - began


def _counting_on(refresh: Refresh, before: int) -> Refresh:
    return lambda x, step: refresh(x, before + step)


def _rising(recipe: Recipe) -> Recipe:
    """With some steps for the rate to rise: the network is trained already, and Adam's first steps are long."""
    return replace(recipe, warmup=min(recipe.steps // 4, RISING))


def joined_history(first: History, second: History) -> History:
    """Two phases of one training as one; they may ask different questions, so the best step is the second's.

    >>> joined_history(History([1], [0.5], [0.6], 1, 0.6), History([1], [0.4], [0.7], 1, 0.7)).best_step
    2
    """
    offset = first.step[-1]
    return History(
        step=first.step + [offset + s for s in second.step],
        loss=first.loss + second.loss,
        held_out=first.held_out + second.held_out,
        best_step=offset + second.best_step,
        best_loss=second.best_loss,
        stopped_early=first.stopped_early,
        interrupted=second.interrupted,
        seconds=first.seconds + second.seconds,
    )
