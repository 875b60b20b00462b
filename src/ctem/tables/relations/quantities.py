"""Columns as numbers that functions of columns take and name: read off cells, off encoded rows, and back.

A number stands for itself, a moment for its days since 1970, a listed number or moment for that, and other listed
values for their codes. A moment has parts (year, month, day, weekday, hour, minute), a whole number its hundreds and
what they leave: 1745 is a quarter to six. Of any number there are curves, such as its logarithm, that a sum may take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.tables.encoding.codecs import Codec, Labels, Numbers
from ctem.tables.encoding.lookup import find
from ctem.tables.io.cells import Cells
from ctem.tables.margins.bounds import Bounded
from ctem.tables.margins.lattices import PER_DAY
from ctem.tables.relations.formulas import EXACT, CodecUnits, measured, width_of

__all__ = ["CURVES", "MOMENT_PARTS", "NUMBER_PARTS", "Quantity", "part_of", "quantity_of"]

Vector = NDArray[np.float64]
MOMENT_PARTS = ("year", "month", "day", "weekday", "hour", "minute")
NUMBER_PARTS = ("hundreds", "rest of 100")
CURVES = {  # of a number
    "log": np.log,
    "log1p": np.log1p,
    "square": np.square,
    "square root": np.sqrt,
    "exponential": np.exp,
}
LONGEST = 3.6e6  # days since 1970 that are within the calendar of years with four digits
SLACK, FINE = 1e-6, 1e-4  # of an encoded number, which is a float32, where its cell is not far wider
ALIKE = 0.25  # of a cell, within which two numbers are the same


@dataclass(frozen=True)
class Quantity:
    """One column of a table as numbers.

    Arguments:
        codec: of the column.
        owner: its encoded columns.
        listed: the number of every code of a column of labels, nan for a code that several values share.
        width: of the cell of a number: what lies within half of it is rounded to it.
        kind: "number", "moment", "duration" or "label".

    >>> city = Labels("label", ("Bergen", "Oslo"), (0, 1), (1.0, 1.0))
    >>> quantity_of(city, (3,)).listed
    array([0., 1.])
    """

    codec: Labels | Numbers
    owner: tuple[int, ...]
    listed: Vector
    width: float
    kind: str

    @property
    def atoms(self) -> Vector:
        """The number of every code of the column of frequent values; nan for none, and for missing."""
        assert isinstance(self.codec, Numbers)
        shift = self.codec.lattice.shift / self.codec.lattice.per
        return np.array([np.nan, *self.codec.atoms, *[np.nan] * self.codec.state]) + shift

    @property
    def extent(self) -> tuple[float, float]:
        """The least and the greatest number that it can hold; nan for no end.

        >>> quantity_of(Labels("int", (3, 5), (0, 1), (1.0, 1.0)), (0,)).extent
        (3.0, 5.0)
        """
        if isinstance(self.codec, Labels):
            return float(self.listed.min()), float(self.listed.max())
        transform, shift = self.codec.transform, self.codec.lattice.shift / self.codec.lattice.per
        low, high = transform.edges if isinstance(transform, Bounded) else (-math.inf, math.inf)
        ends = low + self.width / 2 + shift, high - self.width / 2 + shift
        return ends[0] if math.isfinite(low) else math.nan, ends[1] if math.isfinite(high) else math.nan

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that it may have."""
        whole = (
            self.codec.type == "int" if isinstance(self.codec, Labels) else self.codec.lattice.type == "int"
        )
        return MOMENT_PARTS if self.kind == "moment" else NUMBER_PARTS if whole else ()

    def of_cells(self, name: str, cells: Cells) -> Vector:
        """The numbers of cells, nan where missing."""
        if isinstance(self.codec, Numbers):
            return measured(self.codec, cells)
        place = find(name, cells, self.codec)
        codes = np.array([*self.codec.codes, -1, -1])[place]
        return np.append(self.listed, np.nan)[codes]

    def of_rows(self, x: Tensor, visible: Tensor) -> Vector:
        """The numbers of encoded rows x (n, d), nan where they are hidden by ``visible`` (n, d)."""
        last = self.owner[-1]
        if isinstance(self.codec, Labels):
            code = torch.where(visible[:, last], x[:, last], -1.0).long().cpu().numpy()
            return np.append(self.listed, np.nan)[code]
        value, shown = self._units.values(x, last), visible[:, last]
        if len(self.owner) > 1:
            first = self.owner[0]
            shown = torch.where(x[:, first] > 0, visible[:, first], shown & visible[:, first])
        return torch.where(shown, value, math.nan).cpu().numpy()

    def rounded(self, value: Vector) -> Vector:
        """The number of this column that is next to each value; nan where none is within half a cell."""
        if isinstance(self.codec, Labels):
            place, near = _nearest(self.listed, value)
            return np.where(near <= self.width / 2, self.listed[place], np.nan)
        shift = self.codec.lattice.shift / self.codec.lattice.per
        return self.codec.lattice.snap(torch.from_numpy(value - shift)).numpy() + shift

    def codes(self, value: Vector) -> NDArray[np.int64]:
        """The code of each value in the first encoded column; −1 where it has none.

        That is the label, or which of the frequent values a number is, 0 for none of them.
        """
        if isinstance(self.codec, Labels):
            place, near = _nearest(self.listed, value)
            return np.where(near <= ALIKE * self.width, place, -1)
        shift = self.codec.lattice.shift / self.codec.lattice.per
        place, near = _nearest(np.array(self.codec.atoms), value - shift)
        code = np.where(near <= ALIKE * self.width, place + 1, 0)
        return np.where(np.isnan(value), -1, code)

    def ends(self, value: Vector) -> Tensor:
        """The ends of the cell of each value in the real encoded column, (n, 2); nan where it has none."""
        return self._units.cells(torch.from_numpy(value), self.owner[-1])

    def limit(self, value: Vector, above: bool) -> Vector:
        """Where the cells of numbers that are at least each value begin, or of those at most each value end, encoded.

        −inf and inf where nothing, or all of it, is beyond; nan for a value that is nan.
        """
        assert isinstance(self.codec, Numbers)
        transform, sign = self.codec.transform, 1.0 if above else -1.0
        low, high = transform.edges if isinstance(transform, Bounded) else (-math.inf, math.inf)
        shift, width = self.codec.lattice.shift / self.codec.lattice.per, self.width
        point = self.rounded(value)
        point = np.where(sign * (value - point) > ALIKE * width, point + sign * width, point)
        edge = point - shift - sign * width / 2
        inside = (edge > low) & (edge < high)
        at = torch.from_numpy(np.where(inside, edge, transform.location))
        x, log_slope = (part.numpy() for part in transform.with_log_slope(at))
        cell = np.exp(log_slope) * width
        slack = np.where(cell < FINE, np.minimum(SLACK, cell / 4), 0.0)
        x = np.where(inside, x - sign * slack, np.where(edge <= low, -math.inf, math.inf))
        return np.where(np.isnan(value), np.nan, x)

    @cached_property
    def _units(self) -> CodecUnits:
        """What remembers the numbers that it was asked for last."""
        assert isinstance(self.codec, Numbers)
        last = self.owner[-1]
        return CodecUnits({last: self.codec}, {last: self.owner[0]} if len(self.owner) > 1 else {})


def quantity_of(codec: Codec, owner: tuple[int, ...]) -> Quantity | None:
    """A column as numbers; None for one that is left out, never varies, or has too many digits.

    >>> quantity_of(Labels("int", (3, 5), (0, 1), (1.0, 1.0)), (0,)).listed
    array([3., 5.])
    """
    if isinstance(codec, Labels):
        listed, kind = _listed(codec)
        known = np.unique(listed[~np.isnan(listed)])
        gap = float(np.diff(known).min()) if len(known) > 1 else 1.0
        return Quantity(codec, owner, listed, gap, kind)
    if isinstance(codec, Numbers) and abs(codec.lattice.shift) < EXACT:
        kind = codec.lattice.type if codec.lattice.unit else "number"
        return Quantity(codec, owner, np.zeros(0), width_of(codec), kind)
    return None


def _listed(codec: Labels) -> tuple[Vector, str]:
    """The number of every code, and what kind of numbers these are."""
    codes = np.array(codec.codes)
    alone = np.bincount(codes, minlength=codec.size) == 1
    kind = {"int": "number", "float": "number", "bool": "number"}.get(codec.type, codec.type)
    numbers = codes.astype(np.float64)
    if kind != "label":
        numbers = np.array(codec.values, np.float64) / (PER_DAY[codec.unit] if codec.unit else 1)
    listed = np.full(codec.size, np.nan)
    listed[codes] = numbers
    return np.where(alone, listed, np.nan), kind


def _nearest(known: Vector, value: Vector) -> tuple[NDArray[np.int64], Vector]:
    """The place of the nearest known number to each value, and how far it is; far away where one of them is nan."""
    order = np.argsort(known)  # nan last
    count = int((~np.isnan(known)).sum())
    if not count:
        return np.zeros(len(value), np.int64), np.full(len(value), np.inf)
    right = np.searchsorted(known[order[:count]], value).clip(0, count - 1)
    left = (right - 1).clip(0)
    with np.errstate(invalid="ignore"):
        apart = np.abs(known[order[left]] - value), np.abs(known[order[right]] - value)
    place = np.where(apart[0] < apart[1], order[left], order[right])
    return place, np.nan_to_num(np.minimum(*apart), nan=np.inf)


def part_of(value: Vector, part: str) -> Vector:
    """A part of moments, in days since 1970, or of whole numbers, or a curve; they themselves for no part.

    >>> part_of(np.array([0.0, 365.75]), "year"), part_of(np.array([1745.0]), "hundreds")
    (array([1970., 1971.]), array([17.]))
    >>> part_of(np.array([9.0, -1.0]), "square root")
    array([ 3., nan])
    """
    if not part:
        return value
    if part in CURVES:
        with np.errstate(all="ignore"):
            curved = CURVES[part](value)
        return np.where(np.isfinite(curved), curved, np.nan)
    known = np.abs(value) <= (LONGEST if part in MOMENT_PARTS else EXACT)
    plain = np.where(known, value, 0.0)
    if part == "hundreds":
        parts = np.floor(plain / 100)
    elif part == "rest of 100":
        parts = plain - 100 * np.floor(plain / 100)
    else:
        seconds = np.floor(plain * 86_400 + 1e-3)
        parts = _calendar(seconds.astype(np.int64), part)
    return np.where(known, parts, np.nan)


def _calendar(seconds: NDArray[np.int64], part: str) -> Vector:
    """The part of moments that are counted in seconds."""
    if part in ("hour", "minute"):
        return (seconds // (3600 if part == "hour" else 60) % (24 if part == "hour" else 60)).astype(
            np.float64
        )
    days = seconds // 86_400
    if part == "weekday":
        return ((days + 3) % 7).astype(np.float64)  # 1970 began on a Thursday; Monday is 0
    months = days.astype("M8[D]").astype("M8[M]")
    if part == "day":
        return (days - months.astype("M8[D]").astype(np.int64) + 1).astype(np.float64)
    count = months.astype(np.int64)
    return (count // 12 + 1970 if part == "year" else count % 12 + 1).astype(np.float64)
