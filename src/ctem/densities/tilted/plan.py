"""How long an energy is learned: the base that it needs, how fast a machine is, and a plan that fits into the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.presence import gaps
from ctem.densities.tilted.boosting import free_threads

__all__ = ["Base", "Pace", "Plan", "filled"]

FRESH = 4  # times as many fresh draws, at most, to make log Z precise
FEWEST_FRESH = 2000  # draws for the gain, however few rows there are
FRESH_SHARE = 0.5  # of the draws of all rounds: fresh ones in each of two sets, where time is short
FRESH_SETS = 2  # one judges the rounds and brings the margins, one is for the gain and log Z
FEWEST, FEWEST_TREES = 300, 20  # rows and trees below which nothing is learned
CELLS = 2**26  # of the rows and draws that trees learn from together, at most
MASKS = 3  # ways in which the cells of a draw are hidden
MANY, FEW = 100, 8000  # columns from which on draws are fewer, and draws for log Z then
PASSES = 2**23  # cells that are drawn to make log Z more precise, at most: each is a pass through a network
STEP = 0.02  # seconds of a step of a network's training, about
ROW_TREE = 2e-8  # seconds that a thread takes for a tree to learn from a cell, about
TREE = 5e-3  # seconds of any tree, about
GROWN = 0.5  # of the trees of a round, about, when held-out rows end it
TIMED = 512  # rows by which the time of one is measured
FEW_TIMED, FEW_FILLED = 32, 16  # draws and rows with gaps that are enough where they take long
BRIEF = 0.2  # seconds that are long


class Base(Protocol):
    """A normalised density of rows x (n, d) that can be drawn from; nan marks a cell that is missing.

    >>> from ctem.densities.anyorder import AnyOrderDensity
    >>> all(hasattr(AnyOrderDensity, name) for name in ("sample", "complete"))
    True
    """

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n rows."""

    def complete(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """x with its missing cells drawn given the others."""


def filled(base: Base, x: Tensor, generator: torch.Generator) -> Tensor:
    """x with its hidden cells drawn by b; each order draws a share of the rows, whether or not they are likely in it.

    All observed cells are shown in any order: orders differ only in which of the hidden cells is drawn first. To ask
    how likely a row is in each of them takes many times as long.

    >>> from ctem.bases import ProductBase
    >>> from ctem.densities.anyorder import AnyOrderNet
    >>> from ctem.spaces import Category, Space
    >>> net = AnyOrderNet(ProductBase(Space([Category(2)] * 3)), width=8)
    >>> base, x = AnyOrderDensity(net, 0.01, [[0, 1, 2], [2, 1, 0]]), torch.tensor([[1.0, torch.nan, 0.0]])
    >>> filled(base, x, torch.Generator().manual_seed(0)).isnan().any()
    tensor(False)
    """
    if not isinstance(base, AnyOrderDensity):
        return base.complete(x, generator)
    parts = x.tensor_split(len(base.orders))
    alone = [base.altered(orders=[order]) for order in base.orders]
    return torch.cat([one.complete(part, generator) for one, part in zip(alone, parts, strict=True)])


class Pace(NamedTuple):
    """How fast this machine is at the moment.

    >>> Pace(1e-3, 1.0).draw
    0.001
    """

    draw: float  # seconds
    load: float  # by the clock, for a second of the processor
    fill: float = 0.0  # seconds until the gaps of a row of the data are filled in, on average over all rows

    @classmethod
    def of(
        cls, base: Base, generator: torch.Generator, rows: Tensor, parents: Mapping[int, int] | None = None
    ) -> Pace:
        """Measured by some draws, in one order: several orders of few rows would take several times as long.

        Arguments:
            base: b.
            generator: of the draws.
            rows: of the data (n, d); some of those with hidden cells are filled in.
            parents: for a real column that exists only where a category has code 0, that category.
        """
        simple = base.altered(orders=base.orders[:1]) if isinstance(base, AnyOrderDensity) else base
        draw, load = _timed(lambda n: simple.sample(n, generator), FEW_TIMED, TIMED)
        some = gaps(rows, parents or {}).any(1)
        if not bool(some.any()):
            return cls(draw, load)
        partly = rows[some]
        few, most = min(FEW_FILLED, len(partly)), min(TIMED, len(partly))
        fill, _ = _timed(lambda n: filled(base, partly[:n], generator), few, most)
        return cls(draw, load, fill * float(some.float().mean()))


def _timed(make: Callable[[int], Tensor], few: int, most: int) -> tuple[float, float]:
    """Seconds of a row, and seconds on the clock for one of the processor; few rows decide where they take long."""
    for n in (few, most):
        began, used = time.perf_counter(), time.process_time()
        make(n)
        seconds, used = time.perf_counter() - began, time.process_time() - used
        if seconds > BRIEF:
            break
    return max(seconds / n, 1e-9), max(1.0, seconds / max(used, 1e-9))


class Plan(NamedTuple):
    """How long an energy is learned.

    >>> Plan().rounds
    1
    """

    rounds: int = 1
    draws: float = 4.0  # of b in each round, for every row of the data
    rate: float = 0.05  # of the boosting, at first
    trees: int = 1600  # of a round, at most
    patience: int = 150  # trees without a better held-out loss after which a round ends
    most: int = 100_000  # rows of the data, at most
    fresh: int = 20_000  # draws for the gain and for margins, at most
    networks: int = 0  # in a last round, which is learned by the paper's loss
    steps: int = 1500  # of their training

    def sized(self, columns: int, rows: int = 10**9) -> Plan:
        """A plan for so many columns: each costs a pass through the networks for every draw, and memory for all.

        >>> Plan().sized(columns=15) == Plan(), Plan().sized(columns=1000).most, Plan().sized(15, rows=500).most
        (True, 22369, 500)
        """
        plan = self._replace(most=min(self.most, rows, int(CELLS / (columns * (1 + self.draws)))))
        if columns <= MANY:
            return plan
        plan = plan._replace(
            rounds=min(self.rounds, 1), draws=min(self.draws, 2.0), fresh=min(self.fresh, FEW)
        )
        return plan._replace(most=min(self.most, rows, int(CELLS / (columns * (1 + plan.draws)))))

    def freshest(self, columns: int) -> int:
        """Fresh draws to which their number may grow until log Z is precise.

        >>> Plan().freshest(columns=15), Plan().sized(columns=1000).freshest(columns=1000)
        (80000, 8388)
        """
        return min(FRESH * self.fresh, CELLS // (MASKS * columns), max(PASSES // columns, self.fresh))

    def within(self, seconds: float, pace: Pace, columns: int) -> Plan:
        """A plan for about so many seconds: of fewer rows, and trees if they take more than half of it.

        Where too few rows would be left, it has one round, and half as many draws, or a quarter.

        >>> Plan().within(10.0, Pace(1e-3, 1.0), columns=10).most < 2000
        True
        >>> Plan(rounds=2).within(2.0, Pace(1e-3, 1.0), columns=10)[:2]
        (1, 2.0)
        """
        drawing, growing = self._seconds_of_a_row(pace, columns)
        most = min(self.most, int(seconds / (drawing + min(drawing, growing))))
        if most < FEWEST and (self.rounds > 1 or self.draws > 1):
            fewer = self._replace(rounds=min(self.rounds, 1), draws=max(self.draws / 2, 1.0))
            return fewer.within(seconds, pace, columns)
        growing = most * growing + self._grown * TREE * pace.load
        trees = min(self.trees, int(self.trees * seconds / (2 * growing)))
        fresh = min(self.fresh, int(FRESH_SHARE * most * self.draws * self._all_rounds))
        steps = min(self.steps, int(seconds / 2 / (STEP * pace.load * max(self.networks, 1))))
        return self._replace(fresh=fresh, most=most, trees=trees, steps=steps)

    def larger(self, times: float, limit: Plan) -> Plan:
        """A plan that takes so many times as long, within another.

        >>> Plan(most=1000, trees=100, fresh=2000).larger(3.0, Plan())[3:7]
        (300, 150, 3000, 6000)
        """
        names = "trees", "most", "fresh", "steps"
        return self._replace(
            **{name: min(int(getattr(self, name) * times), getattr(limit, name)) for name in names}
        )

    def seconds(self, rows: int, pace: Pace, columns: int) -> float:
        """About how long all of it takes for a table of so many rows.

        >>> 20 < Plan().seconds(1000, Pace(1e-3, 1.0), columns=10) < 60
        True
        """
        drawing, growing = self._seconds_of_a_row(pace, columns)
        rows = min(rows, self.most)
        fresh = min(self.fresh, max(self.draws * rows, FEWEST_FRESH))
        fresh = max(0.0, fresh - FRESH_SHARE * rows * self.draws * self._all_rounds) * FRESH_SETS
        steps = (self.networks * self.steps * STEP + self._grown * TREE) * pace.load
        return rows * (drawing + growing) + fresh * pace.draw + steps

    @property
    def learns(self) -> bool:
        """Whether its rows and trees are enough to learn anything.

        >>> Plan().sized(10, rows=200).learns, Plan().within(0.1, Pace(1e-3, 1.0), columns=10).learns
        (False, False)
        """
        return self.most >= FEWEST and self.trees >= FEWEST_TREES

    @property
    def _grown(self) -> float:
        """About how many trees grow in all rounds, and in that of hidden cells."""
        return GROWN * (self.rounds + 1) * self.trees

    @property
    def _all_rounds(self) -> int:
        """Those of trees, and that of networks."""
        return self.rounds + (self.networks > 0)

    def _seconds_of_a_row(self, pace: Pace, columns: int) -> tuple[float, float]:
        """Seconds that draws and trees take for each row of the data."""
        drawing = (1 + FRESH_SETS * FRESH_SHARE) * self.draws * self._all_rounds * pace.draw + pace.fill
        cell = ROW_TREE * pace.load / free_threads()
        growing = (1 + self.draws) * self._grown * columns * cell
        return drawing, growing
