"""Where the levels of annealing lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["even_ladder"]

FEW = [(i / 50) ** 2 for i in range(51)]  # t of a first, short run that spaces the levels
SOME = 256  # chains of it
EVERYWHERE = 0.05  # of the mean density of levels, at least


def even_ladder(known: Sequence[float], deviation: Sequence[float], levels: int) -> list[float]:
    """t from 0 to 1 in so many steps, each as long as the others measured by the deviation of f − log b.

    A step dt adds dt² · deviation² to the variance of log w: the sum is least where all steps add the same.

    Arguments:
        known: t, rising from 0 to 1, at which the deviation is known.
        deviation: of f − log b over chains there.
        levels: steps of the ladder.

    >>> even_ladder([0.0, 0.5, 1.0], [1.0, 1.0, 1.0], 4)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    t, speed = np.asarray(known), np.asarray(deviation)
    speed = speed + EVERYWHERE * speed.mean() + 1e-9
    length = np.concatenate([[0.0], np.cumsum(np.diff(t) * (speed[1:] + speed[:-1]) / 2)])
    ladder = np.interp(np.linspace(0, length[-1], levels + 1), length, t)
    return [0.0, *ladder[1:-1].tolist(), 1.0]
