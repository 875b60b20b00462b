"""How large networks are and how long they are trained: by the size of the table and the effort, not the device."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from ctem.training import Recipe

__all__ = ["EFFORTS", "Effort", "Settings", "first_steps", "second_steps"]

Effort = Literal["quick", "default", "best"]
EFFORTS = ("quick", "default", "best")
NUMBERS = 2**15  # real cells of a batch, at most: each has dozens of coefficients
FEWEST = 64  # rows of a batch that are too few to be made fewer
SMALL = 5000  # rows below which one network overfits
LONGEST = 360_000  # steps times real columns, at most
CLIP = 1.0  # norm of a gradient: several times the usual one, to stop only what would undo many steps


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Networks of an any-order density and their training.

    Training has two phases (``ctem.densities.anyorder.fitting``): at a constant learning rate until the held-out loss
    falls slowly or no more, or for its share of ``steps``; then for ``second`` times as many rows, while the rate falls
    to zero, in batches ``growth`` times as large and so many times fewer steps.

    Arguments:
        width, blocks, harmonics, dropout: of each network.
        members: networks; with more than one the rows are cross-fitted.
        orders: of the columns, in the mixture.
        steps: at most so many.
        batch_size: rows a step for each member.
        growth: of the batch in the second phase.
        second: rows of the second phase for each row that the first was useful for.
        least_gain: nats a row that the first phase must gain by doubling its steps, to go on.
        learning_rate, weight_decay: of AdamW.
        ema: decay of the averaged weights.
        evaluate_every: steps between looks at the held-out loss.
        patience: looks without a better one, after which it has stopped falling.

    >>> Settings.suited(rows=300, columns=8).members
    5
    """

    width: int = 128
    blocks: int = 2
    harmonics: int = 1
    dropout: float = 0.0
    members: int = 2
    orders: int = 2
    steps: int = 6400
    batch_size: int = 1024
    growth: int = 1
    second: float = 1.0
    least_gain: float = 0.15
    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    ema: float = 0.998
    evaluate_every: int = 100
    patience: int = 6

    @property
    def network(self) -> dict[str, Any]:
        """The arguments of ``AnyOrderNet``."""
        return {key: getattr(self, key) for key in ("width", "blocks", "members", "harmonics", "dropout")}

    def recipe(self, seed: int) -> Recipe:
        """The training of ``ctem.training``."""
        shared = {f.name for f in fields(Recipe)} & {f.name for f in fields(self)}
        return Recipe(seed=seed, clip=CLIP, **{key: getattr(self, key) for key in shared})

    @classmethod
    def suited(cls, rows: int, columns: int, effort: Effort = "default", *, reals: int = 0) -> Settings:
        """The default for a table of so many rows and (encoded) columns, of which some are real.

        Small tables have several small networks, whose mean overfits less, and more orders; many columns need larger
        networks, and with few rows many of them, unless they are real: a conditional density has many coefficients.
        Hundreds of real columns are asked of fewer rows at a time, and in fewer steps. Labels alone gain
        by a longer second phase, tables with numbers hardly.

        >>> Settings.suited(rows=100_000, columns=15, effort="best").members
        10
        """
        patient: dict[str, Any] = {"growth": 2} if reals else {}
        if rows <= 1500:
            found = cls(width=64, members=5, orders=4, steps=960, batch_size=128, evaluate_every=25)
        elif rows <= 5000:
            found = cls(width=96, members=4, orders=4, steps=2400, batch_size=512, evaluate_every=50)
        elif rows <= 12_000:
            found = cls(members=4, orders=4, batch_size=512, **patient)
        elif rows <= 24_000:
            found = cls(**patient)
        else:
            found = cls(steps=12_800, evaluate_every=50)
        if not reals:
            found = replace(found, second=1.5, steps=5 * found.steps // 4)
        if columns > 50:
            found = replace(found, width=2 * found.width, blocks=3, members=max(found.members, 4), orders=4)
        if columns > 50 and rows <= 5000 and reals < 50:
            found = replace(found, members=10, orders=8)
        found = found._affordable(max(reals, 1))
        if effort == "quick":
            few = min(found.members, 2) if rows <= SMALL else 1
            return replace(found, steps=min(found.steps // 4, 1000), members=few, orders=few, least_gain=0.3)
        if effort == "best":
            steps = min(3 * found.steps, 24_000)
            large = {"width": 256, "blocks": 3, "members": 10, "orders": 10}
            return replace(found, **large, steps=steps, least_gain=0.05)
        return found

    def _affordable(self, reals: int) -> Settings:
        """With as few rows a step, and steps, as so many real columns ask for; the second phase has the usual rows."""
        rows = min(self.batch_size, max(NUMBERS // reals, FEWEST))
        growth, steps = self.growth * (self.batch_size // rows), min(self.steps, LONGEST // reals)
        return replace(self, batch_size=rows, growth=growth, steps=steps)

    @property
    def longest(self) -> int:
        """Steps of both phases, if none of them ends early.

        >>> Settings(steps=100, second=1.0, growth=2).longest
        75
        """
        first = first_steps(self.steps, self.second)
        return first + second_steps(first, self.second, self.growth)

    def passes(self, steps: int) -> int:
        """How many rows go through a network in so many steps, those of the second phase counted as of the first.

        >>> Settings(members=2, batch_size=100).passes(steps=10)
        2000
        """
        return steps * self.batch_size * self.members

    def changed(self, rows: int, **requested: Any) -> Settings:
        """With what is requested instead (None: nothing), and so few members that a fold has four rows.

        >>> Settings().changed(rows=10, steps=5, width=None).members
        2
        """
        found = replace(self, **{key: value for key, value in requested.items() if value is not None})
        members = max(1, min(found.members, rows // 4))
        every = min(found.evaluate_every, found.steps)
        return replace(found, members=members, evaluate_every=every)


def first_steps(steps: int, second: float) -> int:
    """Of so many steps those of the first phase, at most, if the second has ``second`` times as many rows.

    >>> first_steps(100, 1.5)
    40
    """
    return max(round(steps / (1 + second)), 1)


def second_steps(useful: int, second: float, growth: int) -> int:
    """Steps of the second phase after so many useful ones of the first, with ``growth`` times as many rows a step.

    >>> second_steps(40, 1.5, growth=2)
    30
    """
    return max(round(second * useful / growth), 1)
