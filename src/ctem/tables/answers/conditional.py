"""What ``CTEM.conditional`` gives back: the distribution of a column in every row, in NumPy and plain Python values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctem.tables.answers.distributions import ColumnDistribution
from ctem.tables.io.cells import Cells
from ctem.tables.io.frame import read_frame

__all__ = ["Conditional", "on_classes"]

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Conditional:
    """P(X_j = value | the other observed cells) for every row; of a real column, the mass around each node.

    Arguments:
        distribution: the same in the cells of this library.

    >>> cells = Cells("float", np.array([0.0, 2.0]), np.zeros(2, bool))
    >>> one = Conditional(ColumnDistribution(cells, np.array([[0.25, 0.75]]), np.arange(2)))
    >>> one.mean(), one.mode(), one.quantile(0.1)
    (array([1.5]), array([2.]), array([0.]))
    """

    distribution: ColumnDistribution

    @property
    def values(self) -> list[Any]:
        """The q values as Python objects."""
        return self.distribution.values

    @property
    def probability(self) -> Vector:
        """(n, q), every row sums to 1."""
        return self.distribution.probability

    @property
    def has_mean(self) -> bool:
        """Whether the values can be averaged."""
        return self.distribution.has_mean

    def mean(self) -> NDArray[Any]:
        """E[X_j | …] of every row, whole for whole numbers; the most likely value where there is no mean."""
        return self.distribution.mean().to_numpy()

    def typical(self) -> NDArray[Any]:
        """The mean; or the median, where the mean lies outside of nine in ten of the mass."""
        return self.distribution.typical().to_numpy()

    def mode(self) -> NDArray[Any]:
        """The most likely value of every row; in a continuous part, where the encoded density is highest."""
        return self.distribution.mode().to_numpy()

    def quantile(self, share: float | Sequence[float]) -> NDArray[Any]:
        """The least value that at least this share of X_j | … is not above, in every row; labels have none.

        Of several shares, (n, shares).

        >>> cells = Cells("int", np.array([1, 2, 9]), np.zeros(3, bool))
        >>> Conditional(ColumnDistribution(cells, np.array([[0.2, 0.7, 0.1]]), np.arange(3))).quantile([0.1, 0.5])
        array([[1, 2]])
        """
        shares = np.asarray(share, dtype=object)
        for each in shares.ravel():
            if not isinstance(each, Real) or not 0 <= float(each) <= 1:
                raise ValueError(f"share: expected numbers between 0 and 1, such as 0.9; got {each!r}.")
        if not shares.ndim:
            return self.distribution.quantile(float(shares)).to_numpy()
        return np.stack([self.distribution.quantile(float(each)).to_numpy() for each in shares], axis=1)

    def expectation(self) -> Vector:
        """E[X_j | …] of every row, of numbers; not rounded."""
        return self.distribution.expectation()

    def std(self) -> Vector:
        """The standard deviation of X_j | … in every row (dates and durations: in days); nan for labels."""
        return self.distribution.std()

    def p_values(self, values: Any) -> Vector:
        """How often X_j | … would be as strange as the value of each row; nan where that is missing.

        Of a number, twice the smaller tail beyond it; of a label, all labels that are at most as likely.

        >>> cells = Cells("int", np.array([1, 2, 9]), np.zeros(3, bool))
        >>> Conditional(ColumnDistribution(cells, np.array([[0.2, 0.7, 0.1]]), np.arange(3))).p_values([9])
        array([0.2])
        """
        if not isinstance(values, Cells):
            (values,) = read_frame(np.asarray(values)[:, None]).columns.values()
        return self.distribution.p_values(values)

    def histogram(self, row: int = 0, bins: int = 48) -> tuple[Vector, Vector]:
        """The mass of a number in about so many even bins, and their edges, in the unit of its cells."""
        return self.distribution.histogram(row, bins)

    def _repr_html_(self) -> str:
        return self.distribution._repr_html_()

    def __str__(self) -> str:
        return str(self.distribution)


def on_classes(distribution: ColumnDistribution, classes: ColumnDistribution) -> Vector:
    """The probabilities of a fixed list of values, (n, classes): what lies between nodes goes to the nearest one.

    A formula such as total = a + b puts mass on points of its own in every row; the list of values would otherwise
    depend on the rows that are asked about.

    >>> cells = Cells("float", np.array([0.0, 2.0, 1.9]), np.zeros(3, bool))
    >>> one = ColumnDistribution(cells, np.array([[0.25, 0.25, 0.5]]), np.zeros(3, np.int64))
    >>> fixed = Cells("float", np.array([0.0, 2.0]), np.zeros(2, bool))
    >>> on_classes(one, ColumnDistribution(fixed, np.array([[0.5, 0.5]]), np.zeros(2, np.int64)))
    array([[0.25, 0.75]])
    """
    if len(distribution.cells) == len(classes.cells):
        return distribution.probability
    out = np.zeros((len(distribution.probability), len(classes.cells)))
    for group in np.unique(distribution.group):
        nodes, fixed = np.flatnonzero(distribution.group == group), np.flatnonzero(classes.group == group)
        out[:, fixed] += _moved(distribution, classes, nodes, fixed)
    return out


def _moved(
    distribution: ColumnDistribution, classes: ColumnDistribution, places: NDArray[Any], fixed: NDArray[Any]
) -> Vector:
    """The mass of some values on the nearest of others, (n, len(fixed))."""
    order = np.argsort(classes.cells.values[fixed], kind="stable")
    nodes, values = classes.cells.values[fixed][order], distribution.cells.values[places]
    above = np.clip(np.searchsorted(nodes, values), 1, max(len(nodes) - 1, 1))
    below = above - 1
    above = np.minimum(above, len(nodes) - 1)
    near = np.where(np.abs(values - nodes[below]) <= np.abs(nodes[above] - values), below, above)
    out = np.zeros((len(distribution.probability), len(fixed)))
    np.add.at(out.T, order[near], distribution.probability[:, places].T)
    return out
