r"""One column of a table given the others: its distribution, its mean and its most likely value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.tilted import TiltedDensity
from ctem.tables.answers.markup import Picture, cell_text, spark, table_html
from ctem.tables.io.cells import Cells, counts_of
from ctem.tables.io.frame import Field

__all__ = ["ColumnDistribution", "column_distribution", "log_total_tilt"]

DAY = {"D": 1.0, "s": 86_400.0, "ms": 86_400e3, "us": 86_400e6, "ns": 86_400e9}  # units of a day
BINS = 48  # of a histogram, about
MOSTLY = (0.05, 0.95)  # between these quantiles are nine in ten of the mass
NEARLY_ALL = (0.001, 0.999)  # the part of a number's mass that its histogram spans
ROWS, LABELS = 10, 8  # that a notebook shows


@dataclass(frozen=True)
class ColumnDistribution:
    """P(X_j = value | the other observed cells) for every row; of a real column, the mass around each node.

    Arguments:
        cells: the q values, in the user's units.
        probability: (n, q), every row sums to 1.
        group: (q,), the same number for nodes of one continuous part.
        numeric: the values are quantities, of which there is a mean; the codes of a category are not.
        ends: the least and the greatest value that fit saw of the continuous part, group 0. Means take nodes beyond
            them to be there: a heavy tail, which is a guess, does not move them. So do standard deviations, but for
            nodes among nine in ten of the mass.

    >>> cells = Cells("float", np.array([0.0, 2.0]), np.zeros(2, bool))
    >>> one = ColumnDistribution(cells, np.array([[0.25, 0.75]]), np.arange(2))
    >>> one.mean().values, one.mode().values
    (array([1.5]), array([2.]))
    >>> ends = Cells("float", np.array([0.0, 1.0]), np.zeros(2, bool))
    >>> replace(one, group=np.zeros(2, np.int64), ends=ends).mean().values
    array([0.75])
    """

    cells: Cells
    probability: NDArray[np.float64]
    group: NDArray[np.int64]
    numeric: bool = True
    ends: Cells | None = None

    @property
    def values(self) -> list[Any]:
        """The q values as Python objects."""
        return self.cells.to_list()

    @property
    def has_mean(self) -> bool:
        """Whether the values can be averaged."""
        return self.numeric and self.cells.type not in ("label", "bool") and not self.cells.missing.all()

    def displayed(self, field: Field) -> ColumnDistribution:
        """The same, whose values are displayed as the table has them."""
        return replace(self, cells=field.displayed(self.cells))

    def mean(self) -> Cells:
        """E[X_j | …] of every row, whole for whole numbers; the most likely value where there is no mean."""
        if not self.has_mean:
            return self.mode()
        values, weight = self._averaged()
        # from the first value: moments in nanoseconds are too large for exact float64
        centred = weight @ (values - values[0]).astype(np.float64)
        whole = values.dtype.kind in "iu"
        mean = values[0] + np.rint(centred).astype(values.dtype) if whole else values[0] + centred
        return replace(self.cells, values=mean, missing=np.zeros(len(mean), bool))

    def typical(self) -> Cells:
        """The mean; or the median, where the mean lies outside of nine in ten of the mass.

        So it does beyond the range of fit, which it does not leave.

        >>> cells, ends = (Cells("float", np.array(values), np.zeros(2, bool)) for values in ([7.0, 9.0], [0.0, 1.0]))
        >>> far = ColumnDistribution(cells, np.array([[0.5, 0.5]]), np.zeros(2, np.int64), ends=ends)
        >>> far.mean().values, far.typical().values
        (array([1.]), array([7.]))
        """
        mean = self.mean()
        if not self.has_mean:
            return mean
        low, high = (self.quantile(share).values for share in MOSTLY)
        outside = (mean.values < low) | (mean.values > high)
        return replace(mean, values=np.where(outside, self.quantile(0.5).values, mean.values))

    def expectation(self) -> NDArray[np.float64]:
        """E[X_j | …] of every row, of numbers; not rounded.

        >>> cells = Cells("int", np.array([0, 1]), np.zeros(2, bool))
        >>> ColumnDistribution(cells, np.array([[0.25, 0.75]]), np.arange(2)).expectation()
        array([0.75])
        """
        values, weight = self._averaged()
        return np.asarray(weight @ values.astype(np.float64))

    def std(self) -> NDArray[np.float64]:
        """The standard deviation of X_j | … in every row (dates and durations: in days); nan for labels and booleans.

        >>> cells = Cells("float", np.array([0.0, 2.0]), np.zeros(2, bool))
        >>> ColumnDistribution(cells, np.array([[0.5, 0.5]]), np.arange(2)).std()
        array([1.])
        """
        if not self.has_mean:
            return np.full(len(self.probability), np.nan)
        values, weight = self._known()
        held = np.broadcast_to(values, weight.shape)
        if self.ends is not None:
            low, high = (self.quantile(share).values for share in MOSTLY)
            low, high = np.minimum(low, self.ends.values[0]), np.maximum(high, self.ends.values[1])
            held = np.where(self._continuous, np.clip(values, low[:, None], high[:, None]), values)
        away = (held - values[0]).astype(np.float64)
        away = away - (weight * away).sum(1, keepdims=True)
        return np.asarray(np.sqrt((weight * away**2).sum(1)) / DAY.get(self.cells.unit, 1.0))

    def without_atoms(self) -> ColumnDistribution:
        """The continuous part of a number, which a code such as −999 is not of; anything else as it is.

        >>> cells = Cells("int", np.array([1, 2, -999]), np.zeros(3, bool))
        >>> one = ColumnDistribution(cells, np.array([[0.2, 0.2, 0.6]]), np.array([0, 0, 1]))
        >>> one.without_atoms().quantile(0.1).values
        array([1])
        """
        part = self.group == 0
        if part.sum() < 2:
            return self
        cells = replace(self.cells, values=self.cells.values[part], missing=self.cells.missing[part])
        return replace(self, cells=cells, probability=self.probability[:, part], group=self.group[part])

    def quantile(self, share: float) -> Cells:
        """The least value that at least this share of X_j | … is not above, in every row; labels have none: missing.

        >>> cells = Cells("int", np.array([1, 2, 9]), np.zeros(3, bool))
        >>> ColumnDistribution(cells, np.array([[0.2, 0.7, 0.1]]), np.arange(3)).quantile(0.5).values
        array([2])
        """
        if self.cells.type == "label" or self.cells.missing.all():
            gone = np.resize(self.cells.values, len(self.probability))
            return replace(self.cells, values=gone, missing=np.ones(len(gone), bool))
        order = np.flatnonzero(~self.cells.missing)
        order = order[np.argsort(self.cells.values[order], kind="stable")]
        below = np.cumsum(self.probability[:, order], 1)
        at = order[(below < share * below[:, -1:] * (1 - 1e-12)).sum(1)]
        return replace(self.cells, values=self.cells.values[at], missing=np.zeros(len(at), bool))

    def p_values(self, cells: Cells) -> NDArray[np.float64]:
        """How often X_j | … would be as strange as the cell of each row; nan where that is missing.

        Of a number, twice the smaller tail beyond it; of a label, all labels that are at most as likely.

        >>> cells = Cells("int", np.array([1, 2, 9]), np.zeros(3, bool))
        >>> known = ColumnDistribution(cells, np.array([[0.2, 0.7, 0.1]]), np.arange(3))
        >>> known.p_values(Cells("int", np.array([9]), np.zeros(1, bool)))
        array([0.2])
        """
        if self.has_mean:
            values, weight = self._known()
            unit = self.cells.unit
            value = (counts_of(cells, unit) if unit else cells.values)[:, None]
            low, high = (weight * (values <= value)).sum(1), (weight * (values >= value)).sum(1)
            p = np.minimum(1.0, 2 * np.minimum(low, high))
        else:
            place = {label: i for i, label in enumerate(self.values)}
            at = np.array([place.get(label, -1) for label in cells.to_list()])
            p_value = np.where(at < 0, 0.0, self.probability[np.arange(len(at)), at])
            p = (self.probability * (self.probability <= p_value[:, None] * (1 + 1e-9))).sum(1)
        return np.where(cells.missing, np.nan, p)

    def mode(self) -> Cells:
        """The most likely value of every row; in a continuous part, where the encoded density is highest."""
        groups = int(self.group.max()) + 1
        inside: NDArray[np.bool_] | bool = True
        if groups < len(self.group):  # else every value is one of its own
            inside = self.group == (self.probability @ np.eye(groups)[self.group]).argmax(1)[:, None]
        best = np.where(inside, self.probability, -1.0).argmax(1)
        return replace(self.cells, values=self.cells.values[best], missing=self.cells.missing[best])

    def histogram(self, row: int = 0, bins: int = BINS) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The mass of a number in about so many even bins, and their edges, in the unit of its cells.

        Bins are as wide as several steps of a rounded column, so that each holds as many of its values.

        >>> cells = Cells("int", np.arange(100), np.zeros(100, bool))
        >>> share, edges = ColumnDistribution(cells, np.full((1, 100), 0.01), np.arange(100)).histogram(bins=50)
        >>> float(share[0]), edges[:3]
        (0.02, array([-0.5,  1.5,  3.5]))
        """
        low, high = (float(self.quantile(share).values[row]) for share in NEARLY_ALL)
        known = ~self.cells.missing
        values, mass = self.cells.values[known].astype(float), self.probability[row, known]
        inside = np.unique(values[(values >= low) & (values <= high)])
        step = float(np.diff(inside).min()) if len(inside) > 1 else 1.0
        all_steps = (high - low) / step + 1
        steps = max(1, int(np.ceil(all_steps / bins)))
        edges = low - step / 2 + step * steps * np.arange(int(np.ceil(all_steps / steps)) + 1)
        return np.asarray(np.histogram(values, edges, weights=mass)[0]), np.asarray(edges, np.float64)

    def _repr_html_(self) -> str:
        """The first rows, for a notebook."""
        head, rows, more = self._first()
        return table_html(head, rows, more)

    def __str__(self) -> str:
        """The first rows, as text.

        >>> cells = Cells("label", np.array([0, 1]), np.zeros(2, bool), ("no", "yes"))
        >>> print(ColumnDistribution(cells, np.array([[0.25, 0.75]]), np.arange(2)))
        row  yes    no
        0    0.750  0.250
        """
        head, rows, more = self._first()
        cells = [[str(cell) for cell in row if not isinstance(cell, Picture)] for row in [head, *rows]]
        widths = [
            max(map(len, column)) for column in zip(*(row[: len(cells[-1])] for row in cells), strict=True)
        ]
        lines = ["  ".join(f"{c:{w}}" for c, w in zip(row, widths, strict=False)).rstrip() for row in cells]
        return "\n".join([*lines, *([more] if more else [])])

    def _first(self) -> tuple[list[str], list[list[Any]], str]:
        """The head of a table, the first rows, and how many there are more."""
        n = min(len(self.probability), ROWS)
        head, rows = self._numbers(n) if self.has_mean and len(self.cells) > LABELS else self._labels(n)
        left = len(self.probability) - n
        return head, rows, f"and {left:,} rows more" if left else ""

    def _numbers(self, n: int) -> tuple[list[str], list[list[Any]]]:
        """Mean, spread and picture of each row."""
        low, high = (self.quantile(share).to_list() for share in MOSTLY)
        means, std = self.typical().to_list(), self.std()
        rows: list[list[Any]] = []
        for i in range(n):
            mean, *ends = (cell_text(value, std[i]) for value in (means[i], low[i], high[i]))
            spread = f"{std[i]:.3g}{' days' if self.cells.unit else ''}" if self.cells.text is None else "—"
            rows.append([i, mean, spread, " to ".join(ends), Picture(spark(self.histogram(i)[0]))])
        return ["row", "mean", "std", "nine in ten", ""], rows

    def _labels(self, n: int) -> tuple[list[str], list[list[Any]]]:
        """The probability of the most likely values in each row."""
        likely = np.argsort(-self.probability.mean(0), kind="stable")[:LABELS]
        rows = [[i, *(f"{self.probability[i, k]:.3f}" for k in likely)] for i in range(n)]
        return ["row", *(cell_text(self.values[k]) for k in likely)], rows

    def _averaged(self) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """The values as means take them, between the ends that fit saw, and their probabilities."""
        values, weight = self._known()
        if self.ends is None:
            return values, weight
        return np.where(self._continuous, np.clip(values, *self.ends.values), values), weight

    @property
    def _continuous(self) -> NDArray[np.bool_]:
        """Which of the values that are not "missing" are nodes of the continuous part."""
        return np.asarray(self.group[~self.cells.missing] == 0)

    def _known(self) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """The values that are not "missing", and their probabilities."""
        known = ~self.cells.missing
        weight = self.probability[:, known]
        return self.cells.values[known], weight / weight.sum(1, keepdims=True)


def column_distribution(
    density: AnyOrderDensity, x: Tensor, owner: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Alternatives for one column of the user, which owns one encoded column, or a category and its real part.

    Returns encoded values (q, len(owner)), probabilities (n, q) and the group of each value (q,).

    >>> from ctem.densities.anyorder import AnyOrderNet
    >>> from ctem.bases import ProductBase
    >>> from ctem.spaces import Category, Space
    >>> net = AnyOrderNet(ProductBase(Space([Category(2)] * 2)), width=8)
    >>> column_distribution(AnyOrderDensity(net, 1e-3, [[0, 1]]), torch.zeros(1, 2), (1,))[1]
    tensor([[0.5000, 0.5000]])
    """
    values, p, group = _alternatives(density, x, owner)
    if isinstance(density, TiltedDensity):
        p = (p.double().log() + density.energy.at_values(x, owner, values)).softmax(1)
    return values, p, group


def log_total_tilt(density: TiltedDensity, x: Tensor, owner: tuple[int, ...]) -> Tensor:
    """log Σ_v b(v | observed cells) e^{log ρ/b at v} over the values of one column, (n,): its conditional's constant.

    >>> from ctem.bases import ProductBase
    >>> from ctem.densities.anyorder import AnyOrderNet
    >>> from ctem.densities.tilted import Plan, fit_energy
    >>> from ctem.spaces import Category, Space
    >>> b = AnyOrderDensity(AnyOrderNet(ProductBase(Space([Category(2)] * 2)), width=8), 1e-3, [[0, 1]])
    >>> rows = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).repeat(500, 1)
    >>> energy = fit_energy(b, rows[:800], rows[800:], [2, 2], Plan(rate=0.1, trees=50, fresh=8000))
    >>> known = torch.tensor([[0.0, torch.nan]])  # ρ and b have the same margins
    >>> bool(log_total_tilt(TiltedDensity(b, energy, lambda x: x), known, (1,)).abs() < 0.05)
    True
    """
    values, p, _ = _alternatives(density, x, owner)
    return (p.double().log() + density.energy.at_values(x, owner, values)).logsumexp(1)


def _alternatives(
    density: AnyOrderDensity, x: Tensor, owner: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """``column_distribution`` by the networks alone."""
    x = x.clone()
    x[:, list(owner)] = torch.nan
    last = owner[-1]
    if len(owner) == 1:
        values, p = _weighted(density, x, last)
        real = density.space.sizes[last] == 0
        group = torch.zeros(len(values)) if real else torch.arange(len(values))
        return values[:, None], p, group.long().to(x.device)
    codes, switch = _weighted(density, x, owner[0])
    x[:, owner[0]] = 0.0
    nodes, part = _weighted(density, x, last)
    there = torch.stack([torch.zeros_like(nodes), nodes], 1)
    away = torch.stack([codes[1:], torch.full_like(codes[1:], torch.nan)], 1)
    group = torch.cat([torch.zeros_like(nodes), codes[1:]]).long()
    return torch.cat([there, away]), torch.cat([switch[:, :1] * part, switch[:, 1:]], 1), group


def _weighted(density: AnyOrderDensity, x: Tensor, j: int) -> tuple[Tensor, Tensor]:
    """Values of encoded column j and the probability of each; of a real one, nodes and the values of its formulas."""
    if density.space.sizes[j]:
        values, log_p = density.conditional(x, j)
        p = log_p.exp()
        return values, p / p.sum(1, keepdim=True)
    nodes, rest, points, share = density.conditional_and_points(x, j)
    rest[:, [0, -1]] /= 2
    rest *= (1 - share.sum(1, keepdim=True)) / rest.sum(1, keepdim=True)
    return torch.cat([nodes, points]), torch.cat([rest, share], 1)
