"""How large networks are and how long they are trained; what suits a table of some size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from ctem.training import Recipe

__all__ = ["Networks", "Plan"]

BASIC = Recipe(steps=4000, batch_size=256, weight_decay=0.01, ema=0.998, evaluate_every=200, patience=6)
BRIEF = replace(BASIC, steps=3000, batch_size=10 * 256, evaluate_every=150)  # on a GPU, ten networks
LONG = replace(BASIC, steps=6000, batch_size=1024, ema=0.999, evaluate_every=300)  # on a GPU, one


@dataclass(frozen=True, kw_only=True)
class Networks:
    """How large networks are, how many, and how long they are trained at most.

    Training holds the learning rate until the held-out loss stops falling, goes back to the best weights, and lets the
    rate fall to zero over half as many steps.

    Arguments:
        width, blocks, harmonics: of each.
        members: networks; with more than one the rows are cross-fitted.
        recipe: how long and how fast, at most.

    >>> Networks(width=64, blocks=2, members=1, recipe=Recipe()).harmonics
    3
    """

    width: int
    blocks: int
    members: int
    recipe: Recipe
    harmonics: int = 3

    def limited(self, rows: int, max_steps: int | None = None) -> Self:
        """At most so many steps, and so few members that a fold has four rows; the batch divides among them.

        >>> Plan.suited(rows=13, features=2).limited(13, max_steps=5).recipe.batch_size
        96
        """
        members = max(1, min(self.members, rows // 4))
        steps = self.recipe.steps if max_steps is None else int(max_steps)
        recipe = replace(
            self.recipe,
            steps=steps,
            evaluate_every=min(steps, self.recipe.evaluate_every),
            batch_size=self.recipe.batch_size // self.members * members,
        )
        return replace(self, recipe=recipe, members=members)


@dataclass(frozen=True, kw_only=True)
class Plan(Networks):
    """The networks of a density and what is done with them; ``Plan.suited`` chooses by the size of the table.

    Arguments:
        width, blocks, harmonics, members, recipe: of the networks that learn from pairs.
        whole: share of the comparisons of real columns in which every column is visible.
        slopes: networks of the chain rule's own, trained on first-order comparisons (``ctem.slopes``), if any; those of
            the plan then learn from complete rows.
        consistency: weight of the local normalisation of columns with two values.
        orders: of the columns, in exact densities, for each network; slopes have theirs chosen by held-out rows.
        log_z_samples: chain samples for the constant of the one-pass density.

    >>> Plan.suited(rows=300, features=8).members
    5
    """

    whole: float = 0.5
    slopes: Networks | None = None
    consistency: float = 0.0
    orders: int = 4
    log_z_samples: int = 2000

    @property
    def own(self) -> Networks:
        """The networks alone, e.g. to have slopes of their size."""
        return Networks(**{key: getattr(self, key) for key in Networks.__dataclass_fields__})

    @classmethod
    def suited(cls, rows: int, features: int, cuda: bool = False, reals: float = 1.0) -> Plan:
        """The default for a table of so many rows and features (one per number, k − 1 per column of k values).

        Networks that are too large memorise a small table; on a GPU many small ones cost no more than one. Slopes are
        for tables of which at least half (``reals``) is real: they resolve narrow conditionals, and on labels they have
        no such advantage.

        >>> Plan.suited(rows=20_000, features=40, reals=0.2).slopes is None
        True
        """
        slopes = _slopes(rows, cuda) if reals >= 0.5 else None
        small = (rows <= 30_000 and features <= 32) or (rows <= 5000 and features <= 100)
        if cuda and small:
            return cls(width=128, blocks=2, members=10, harmonics=1, recipe=BRIEF, slopes=slopes)
        if cuda:
            recipe = LONG if slopes is None else replace(LONG, steps=4000)
            return cls(width=512, blocks=4, members=1, recipe=recipe, slopes=slopes)
        if rows > 3000:
            return cls(width=128, blocks=2, members=1, recipe=BASIC, slopes=slopes, log_z_samples=1000)
        recipe = replace(
            BASIC,
            steps=min(max(5 * rows // 2, 800), 6000),
            batch_size=5 * 32,
            learning_rate=2e-3,
            ema=0.99,
            evaluate_every=100,
            patience=5,
        )
        return cls(width=64, blocks=2, members=5, harmonics=2, recipe=recipe, log_z_samples=400)


def _slopes(rows: int, cuda: bool) -> Networks:
    if not cuda:
        return Networks(width=128, blocks=2, members=1, recipe=BASIC)
    if rows > 30_000:
        return Networks(width=512, blocks=4, members=1, recipe=LONG)
    if rows > 5000:
        recipe = replace(BRIEF, steps=6000, batch_size=10 * 512, weight_decay=0.3)
        return Networks(width=256, blocks=3, members=10, harmonics=1, recipe=recipe)
    return Networks(width=128, blocks=2, members=10, harmonics=1, recipe=replace(BRIEF, weight_decay=1.0))
