"""What every peer knows of the columns one by one: the cells of a table and their probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from scipy.special import logsumexp, ndtr

from ctem.table.codecs import Labels, Numbers
from ctem.table.curves import Curve
from ctem.table.frames import read_frame
from ctem.table.schema import Schema
from ctem.table.steps import Steps

__all__ = ["BINS", "EDGE", "PSEUDO", "Margins", "bound", "resolution"]

EDGE = 1e-12  # of [0, 1]: z stays within ±7
BINS = 16  # of a number, in the tree
PSEUDO = 0.5  # added to every count
LATTICE_STEPS = 60  # halvings that find a cell

Array = np.ndarray


def bound(log_density: Array) -> Array:
    """log of the mean over draws, (draws, n) → (n,)."""
    return logsumexp(log_density, axis=0) - math.log(len(log_density))


def resolution(schema: Schema) -> dict[str, float]:
    """Width of every column of numbers; a number without one has no probability as written."""
    widths = {n: c.codec.ruler.width for n, c in schema.choices.items() if isinstance(c.codec, Numbers)}
    if continuous := [name for name, width in widths.items() if not width]:
        raise ValueError(f"column {continuous[0]!r}: expected numbers on a lattice; got a continuous column.")
    return widths


@dataclass(frozen=True)
class LabelMargin:
    """Smoothed frequencies of listed values."""

    values: list
    edges: Array  # of the cells of [0, 1], (k + 1,)

    @classmethod
    def fit(cls, cells: Array, codec: Labels) -> LabelMargin:
        values = list(codec.values)
        counts = pd.Series(cells).value_counts().reindex(values, fill_value=0).to_numpy() + PSEUDO
        edges = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
        return cls(values, edges)

    def cell(self, cells: Array) -> tuple[Array, Array, Array]:
        """lo, hi and log P of each cell."""
        place = {value: i for i, value in enumerate(self.values)}
        index = np.array([place[value] for value in cells])
        lo, hi = self.edges[index], self.edges[index + 1]
        return lo, hi, np.log(hi - lo)

    def value(self, u: Array) -> Array:
        index = np.clip(np.searchsorted(self.edges, u, side="right") - 1, 0, len(self.values) - 1)
        return np.array(self.values)[index]

    def bins(self) -> Array:
        return self.edges


@dataclass(frozen=True)
class NumberMargin:
    """A smooth part of mass m under the curve T, and steps: P(X ≤ x) = m Φ(T(x + w/2)) + Σ_{steps ≤ x} mass.

    The steps are the atoms of the schema, or all values of the training rows, m being the share of values seen once
    (Good and Turing): whichever is likelier on the training rows, each left out in turn.
    """

    curve: Curve | Steps
    width: float
    origin: float
    steps: Array
    below: Array  # mass of the steps before each, and of all, (k + 1,)

    @classmethod
    def fit(cls, cells: Array, codec: Numbers) -> NumberMargin:
        found, counts = np.unique(cells, return_counts=True)
        smooth = cls._made(codec, found, np.where(np.isin(found, codec.atoms), counts, 0), len(cells))
        lumpy = cls._made(codec, found, np.where(counts > 1, counts, 0), len(cells))
        # a row left out takes one from the count of its value, and a value left with one is no step
        gone = np.select([counts > 2, counts == 2], [1, 2], 0) / (len(cells) + 2 * PSEUDO)
        left_out = np.maximum(np.exp(lumpy.cell(found)[2]) - gone, 1e-300)
        return lumpy if counts @ np.log(left_out) > counts @ smooth.cell(found)[2] else smooth

    @classmethod
    def _made(cls, codec: Numbers, values: Array, counts: Array, n: int) -> NumberMargin:
        mass = np.concatenate([[0.0], np.cumsum(counts[counts > 0]) / (n + 2 * PSEUDO)])
        return cls(codec.curve, codec.ruler.width, float(values[0]), values[counts > 0], mass)

    @property
    def smooth(self) -> float:
        return 1 - float(self.below[-1])

    def cell(self, cells: Array) -> tuple[Array, Array, Array]:
        """lo, hi and log P of each cell."""
        before, after = self._z(cells - self.width / 2), self._z(cells + self.width / 2)
        upper = before > 0  # in the upper tail the difference keeps its digits only from above
        part = np.where(upper, ndtr(-before) - ndtr(-after), ndtr(after) - ndtr(before))
        left, right = (self.below[np.searchsorted(self.steps, cells, side=s)] for s in ("left", "right"))
        p = np.maximum(self.smooth * part + right - left, 1e-300)
        lo = self.smooth * ndtr(before) + left
        return lo, lo + p, np.log(p)

    def value(self, u: Array) -> Array:
        """The cell with lo ≤ u < hi, found by halving."""
        low, high = np.full(len(u), -(2.0**40)), np.full(len(u), 2.0**40)
        for _ in range(LATTICE_STEPS):
            middle = np.floor((low + high) / 2)
            above = self.upto(middle) > u
            high, low = np.where(above, middle, high), np.where(above, low, middle)
        return self.origin + self.width * high

    def upto(self, index: Array) -> Array:
        """P(X ≤ the cell of that index)."""
        x = self.origin + self.width * index
        steps = self.below[np.searchsorted(self.steps, x + self.width / 4)]
        return self.smooth * ndtr(self._z(x + self.width / 2)) + steps

    def bins(self) -> Array:
        """Edges in [0, 1] of about BINS bins that cut no cell."""
        index = np.rint((self.value(np.arange(1, BINS) / BINS) - self.origin) / self.width)
        edges = np.unique(np.concatenate([self.upto(index), self.upto(index - 1)]))
        return np.concatenate([[0.0], edges[(edges > 1e-6) & (edges < 1 - 1e-6)], [1.0]])

    def _z(self, X: Array) -> Array:
        return self.curve(torch.as_tensor(X, dtype=torch.float64)).numpy()


class Margins:
    """The margins of a table, by the schema of its training rows."""

    def __init__(self, train: pd.DataFrame):
        self.schema = Schema.fit(read_frame(train))
        resolution(self.schema)
        self.like = train.iloc[:1]
        self.parts: dict[str, LabelMargin | NumberMargin] = {}
        for name, choice in self.schema.choices.items():
            cells, codec = _plain(train[name]), choice.codec
            if isinstance(codec, Labels):
                self.parts[name] = LabelMargin.fit(cells, codec)
            elif isinstance(codec, Numbers):
                self.parts[name] = NumberMargin.fit(cells, codec)

    def cells(self, frame: pd.DataFrame) -> tuple[Array, Array, Array]:
        """lo, hi and log P_j, each (n, d)."""
        found = [part.cell(_plain(frame[name])) for name, part in self.parts.items()]
        return tuple(np.stack(each, 1) for each in zip(*found, strict=True))

    def frame(self, u: Array) -> pd.DataFrame:
        """The rows whose cells hold u (n, d); constant columns come back too."""
        columns = {}
        for name in self.like:
            if name in self.parts:
                columns[name] = self.parts[name].value(u[:, list(self.parts).index(name)])
            else:
                columns[name] = np.repeat(self.like[name].to_numpy(), len(u))
        return pd.DataFrame(columns).astype(self.like.dtypes.to_dict())


def _plain(column: pd.Series) -> Array:
    numeric = pd.api.types.is_numeric_dtype(column)
    return column.to_numpy(np.float64) if numeric else column.astype(object).to_numpy()
