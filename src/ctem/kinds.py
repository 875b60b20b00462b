"""What one column is: a real number, perhaps with ends; an angle; one of several values, ordered or not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["Angle", "Category", "Column", "Ordinal", "Real"]


@dataclass(frozen=True)
class Real:
    """A real column, encoded as x = (X − location) / scale.

    It may have ends, in the user's units, beyond which there is no mass. A ``Space`` checks them, and its kernels and
    samplers stay within. For a ``Schema``, which learns the units, None leaves it to the values to suggest one, and
    ±infinity says that there is none.

    >>> Real(location=10.0, scale=2.0)
    Real(location=10.0, scale=2.0)
    >>> Real(low=0.0)
    Real(low=0.0)
    """

    location: float = 0.0
    scale: float = 1.0
    low: float | None = None
    high: float | None = None

    def __repr__(self) -> str:
        said = {"low": self.low, "high": self.high}
        ends = [f"{name}={end}" for name, end in said.items() if end is not None]
        units = [f"location={self.location}", f"scale={self.scale}"]
        own = units if not ends or (self.location, self.scale) != (0.0, 1.0) else []
        return f"Real({', '.join([*own, *ends])})"

    def __post_init__(self) -> None:
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        if not low < high:
            raise ValueError(f"Real needs low < high; got {self.low}, {self.high}.")
        if not (math.isfinite(self.location) and math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(
                f"Real needs a finite location and scale > 0; got {self.location}, {self.scale}."
            )


class Angle(Real):
    """A point on a circle, given in any unit and encoded in radians, 0 ≤ x < 2π; two of them make a torus.

    Networks see its sine and cosine, kernels go around, and the density is per unit of the user's angle.

    Arguments:
        period: a full turn in the user's units, such as 360 for degrees or 24 for the hours of a day.

    >>> from ctem.spaces import Space
    >>> Space([Angle(period=360)]).encode([[90.0], [450.0]])
    tensor([[1.5708],
            [1.5708]])
    """

    def __init__(self, period: float = 2 * math.pi):
        if not (math.isfinite(period) and period > 0):
            raise ValueError(f"period: expected a finite number > 0; got {period}.")
        super().__init__(0.0, float(period) / (2 * math.pi))

    @property
    def period(self) -> float:
        """A full turn in the user's units."""
        return self.scale * 2 * math.pi

    def __repr__(self) -> str:
        return f"Angle(period={self.period:g})"


@dataclass(frozen=True)
class Category:
    """A column of ``size`` unordered values, encoded as codes 0 … size−1.

    Without a size it is a wish for a ``Schema``, which takes the values from the data; a ``Space`` needs the size.

    >>> Category(3).size
    3
    >>> Category()
    Category(size=0)
    """

    size: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.size, int | np.integer) or self.size < 0 or self.size == 1:
            raise ValueError(f"{type(self).__name__} needs a whole number of values ≥ 2; got {self.size!r}.")


@dataclass(frozen=True)
class Ordinal(Category):
    """A column of ``size`` ordered values, encoded as codes 0 … size−1.

    >>> Ordinal(91)
    Ordinal(size=91)
    """


Column = Real | Category


def encoded_ends(column: Column) -> tuple[float, float]:
    """The least and the greatest encoded value of a column.

    >>> encoded_ends(Real(location=1.0, scale=2.0, low=0.0)), encoded_ends(Category(3))
    ((-0.5, inf), (0.0, 2.0))
    """
    if isinstance(column, Angle):
        return 0.0, 2 * math.pi
    if isinstance(column, Category):
        return 0.0, column.size - 1.0
    low = -math.inf if column.low is None else (column.low - column.location) / column.scale
    high = math.inf if column.high is None else (column.high - column.location) / column.scale
    return low, high
