"""How a number is measured: whole numbers, floats, moments and durations as float64, and the lattice they lie on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.tables.io.cells import Cells

__all__ = ["Lattice", "check_whole"]

PER_DAY = {"D": 1, "s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
SMALL = 2**40  # whole numbers up to here keep enough digits for a point within their cell
ROOM = 2**62
TOPS = 2.0 * ROOM - 1024, 4.0 * ROOM - 2048  # largest float64 below 2⁶³ and 2⁶⁴
FAR_OUT, FEW_FAR = 1e9, 0.05  # in central ranges, and the share of values that may be beyond
CLOSER = 0.01  # share of neighbours that may be closer than a lattice allows
TIED = 0.01  # share of rows that repeat another's value from which a column counts as rounded

ROUNDABLE = 1e15
FEWEST = 20  # different numbers that show how they are written
NOISE = 64  # last bits by which a sum of rounded numbers may be off
FIGURES, MOST_DECIMALS = 8, 18  # of the step of a lattice, and of its values

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Lattice:
    """From cells to float64 X and back.

        X = (value − shift) / per                    per = 1, or the ticks in a day for moments and durations
        value = shift + origin + step · round((X · per − origin) / step)        if there is a lattice

    Arguments:
        type: "int", "float", "moment" or "duration".
        unit: of moments and durations.
        shift: a value in the middle, taken off first, so that large ones keep their digits.
        step: of the lattice in the column's own ticks; 0 for none.
        origin: a point of the lattice, after the shift.
        decimals: round floats to these on the way back; −1 for no rounding.
        width: w of a cell in units of X: values stand for X ± w/2; 0 for a continuous column.
        top: the largest value that comes back, of whole numbers of 64 bits.

    >>> import torch
    >>> cells = Cells("float", np.array([0.1, 0.3, 0.3, 0.7]), np.zeros(4, bool))
    >>> lattice = Lattice.fit(cells)
    >>> round(lattice.width, 6), lattice.restore(torch.tensor([0.28, 0.69]).double()).values
    (0.2, array([0.3, 0.7]))
    """

    type: str
    unit: str = ""
    shift: int = 0
    step: float = 0.0
    origin: float = 0.0
    decimals: int = -1
    width: float = 0.0
    top: float = 2.0 * ROOM - 1024

    @property
    def per(self) -> int:
        """Ticks per unit of X."""
        return PER_DAY[self.unit] if self.unit else 1

    @classmethod
    def fit(cls, cells: Cells) -> Lattice:
        """The lattice of a column of numbers, with the lattice its values lie on."""
        known = cells.values[~cells.missing]
        distinct = np.unique(known)
        if cells.type == "float":
            return _float_lattice(distinct, len(known))
        low, high = int(distinct[0]), int(distinct[-1])
        wide = max(-low, high) > SMALL and high - low < ROOM
        shift = int(distinct[len(distinct) // 2]) if wide else 0
        lattice = cls(cells.type, cells.unit, shift)
        step = int(np.gcd.reduce(np.diff(distinct))) if len(distinct) > 1 and high - low < ROOM else 1
        return cls(
            cells.type,
            cells.unit,
            shift,
            float(step),
            float((low - shift) % step),
            width=step / lattice.per,
            top=4.0 * ROOM - 2048 if high >= 2 * ROOM else 2.0 * ROOM - 1024,
        )

    def measure(self, cells: Cells) -> Vector:
        """X, float64, with nan where missing."""
        values = cells.values
        if self.unit and cells.unit != self.unit:
            letter = "M" if self.type == "moment" else "m"
            values = values.view(f"{letter}8[{cells.unit}]").astype(f"{letter}8[{self.unit}]").view(np.int64)
        if values.dtype.kind in "iu" and self.shift and _fits(values, self.shift):
            X = _shifted(values, -self.shift).view(np.int64).astype(np.float64)
        else:
            X = values.astype(np.float64) - self.shift
        return np.where(cells.missing, np.nan, X / self.per)

    def snap(self, X: Tensor) -> Tensor:
        """The lattice point nearest to X, in units of X."""
        if not self.step:
            return X
        return (self.origin + self.step * ((X * self.per - self.origin) / self.step).round()) / self.per

    def restore(self, X: Tensor, exact: Tensor | None = None) -> Cells:
        """Cells from X, on the lattice; nan becomes missing.

        Arguments:
            exact: which of them stay as they are, if any do.
        """
        missing = X.isnan().numpy()
        values = np.where(
            missing, 0.0, (self.snap(X) if exact is None else torch.where(exact, X, self.snap(X))).numpy()
        )
        if self.type == "float":
            rounded = self._rounded(values)
            rounded = rounded if exact is None else np.where(exact.numpy(), values, rounded)
            return Cells("float", rounded + 0.0, missing)  # 0, not −0
        ticks = np.rint(values * self.per)
        if self.unit and self.step:  # nanoseconds of many days are too large for exact float64
            near = self.origin + self.step * np.rint((ticks - self.origin) / self.step)
            ticks = near if exact is None else np.where(exact.numpy(), ticks, near)
        if not self.shift:
            ticks = np.clip(ticks, -2.0 * ROOM, self.top)
            whole = ticks.astype(np.int64) if np.abs(ticks).max(initial=0) < 2 * ROOM else ticks
        else:
            unsigned = self.top > 2 * ROOM
            low, high = (0, 4 * ROOM - 1) if unsigned else (-2 * ROOM, 2 * ROOM - 1)
            room = _inward(max(low - self.shift, -2 * ROOM), min(high - self.shift, 2 * ROOM - 1))
            sums = _shifted(np.clip(ticks, *room).astype(np.int64), self.shift)
            whole = sums if unsigned else sums.view(np.int64)
        return Cells(self.type, whole, missing, unit=self.unit)

    def _rounded(self, values: Vector) -> Vector:
        if self.decimals < 0:
            return values
        near = np.abs(values) < ROUNDABLE
        return np.where(near, np.round(np.where(near, values, 0.0), self.decimals), values)

    def to_json(self) -> dict[str, Any]:
        """This lattice as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Lattice:
        """The lattice that ``to_json`` wrote; anything else is refused.

        >>> Lattice.from_json(Lattice("moment", "us", step=1.0).to_json()).per
        86400000000
        """
        lattice = cls(
            str(data["type"]),
            str(data["unit"]),
            int(data["shift"]),
            float(data["step"]),
            float(data["origin"]),
            int(data["decimals"]),
            float(data["width"]),
            float(data["top"]),
        )
        timed = lattice.type in ("moment", "duration") and lattice.unit in PER_DAY
        plain = lattice.type in ("int", "float") and not lattice.unit
        numbers = np.array([lattice.step, lattice.origin, lattice.width, lattice.top])
        bounded = (
            abs(lattice.shift) <= 4 * ROOM
            and -1 <= lattice.decimals <= MOST_DECIMALS
            and min(lattice.step, lattice.width) >= 0
            and lattice.top in TOPS
        )
        if not (timed or plain) or not np.isfinite(numbers).all() or not bounded:
            raise ValueError(
                f"lattice: expected a type, a unit, and numbers that a column can have; got {dict(data)}."
            )
        return lattice


def check_whole(name: str, cells: Cells, lattice: Lattice) -> None:
    """An error that names the first number with a fraction, where a column holds whole ones.

    >>> check_whole("k", Cells("float", np.array([2.5]), np.zeros(1, bool)), Lattice("int"))
    Traceback (most recent call last):
    ...
    ValueError: column 'k', row 0: expected a whole number, as in fit; got 2.5.
    """
    if lattice.type != "int" or cells.type != "float":
        return
    odd = ~cells.missing & (cells.values != np.rint(cells.values))
    if odd.any():
        row = int(np.argmax(odd))
        raise ValueError(
            f"column {name!r}, row {cells.first + row}: expected a whole number, as in fit; got {cells.values[row]:g}."
        )


def _fits(values: NDArray[Any], shift: int) -> bool:
    low, high = (int(end) - shift for end in (values.min(initial=shift), values.max(initial=shift)))
    return low >= -2 * ROOM and high < 2 * ROOM


def _shifted(values: NDArray[Any], shift: int) -> NDArray[np.uint64]:
    """values + shift modulo 2⁶⁴, in which no digit of a whole number is lost."""
    return np.asarray(values.astype(np.uint64) + np.uint64(shift % 2**64))


def _inward(low: int, high: int) -> tuple[float, float]:
    """The largest interval of float64 within two whole numbers."""
    ends = float(low), float(high)
    return (
        ends[0] if int(ends[0]) >= low else float(np.nextafter(ends[0], np.inf)),
        ends[1] if int(ends[1]) <= high else float(np.nextafter(ends[1], -np.inf)),
    )


def _float_lattice(distinct: Vector, n: int) -> Lattice:
    """The lattice of floats, read off those that are not many orders of magnitude beyond the others."""
    if len(distinct) > (1 - TIED) * n or len(distinct) < 2:
        return Lattice("float", decimals=_written_decimals(distinct))
    core = _core(distinct)
    lattice = _core_lattice(core)
    if lattice.width and float((np.diff(core) < lattice.width / 2).mean()) > CLOSER:
        decimals = _decimals(core, np.float64)
        rounded = core if decimals < 0 else np.unique(np.round(core, decimals))  # 0.1 + 0.2 is 0.3
        if float((np.diff(rounded) < lattice.width / 2).mean()) > CLOSER:
            return Lattice("float", decimals=_written_decimals(distinct))
    return lattice


def _written_decimals(distinct: Vector) -> int:
    """Digits after the point with which numbers of a continuous column are written; −1 if that is not to be seen.

    >>> _written_decimals(np.arange(50) * 1.2345), _written_decimals(np.sqrt(np.arange(50)))
    (4, -1)
    """
    if len(distinct) < FEWEST:
        return -1
    core = _core(distinct)
    decimals = _decimals(core, np.float64)
    smallest, _ = _spacing(core, False) if decimals < 0 else (0.0, None)
    return _noisy_decimals(core, smallest) if smallest else decimals


def _core(distinct: Vector) -> Vector:
    """The values without a few that are so far out that no digit of the others would count beside them."""
    low, middle, high = np.quantile(distinct, [0.1, 0.5, 0.9])
    with np.errstate(over="ignore"):
        near = np.abs(distinct - middle) <= FAR_OUT * (high - low)
    return distinct[near] if near.sum() >= max(2, (1 - FEW_FAR) * len(distinct)) else distinct


def _core_lattice(distinct: Vector) -> Lattice:
    with np.errstate(over="ignore"):
        single = bool((distinct.astype(np.float32).astype(np.float64) == distinct).all())
    decimals = _decimals(distinct, np.float64)
    if decimals < 0 and single:
        decimals = _decimals(distinct, np.float32)
    rounded = distinct if decimals < 0 else np.unique(np.round(distinct, decimals))
    smallest, step = _spacing(rounded, single and decimals < 0)
    if smallest == 0:
        return Lattice("float")
    if (
        step is None and single and decimals >= 0
    ):  # halves of halves may need more decimals than are looked for
        _, step = _spacing(distinct, single)
        if step is not None:
            return Lattice("float", "", 0, step, float(distinct[0]), -1, step)
    if step is None and decimals >= 0:
        step = 10.0**-decimals
    if step is None:
        return Lattice("float", width=smallest)
    if decimals < 0:
        decimals = _noisy_decimals(distinct, step)
    return Lattice("float", "", 0, step, float(rounded[0]), decimals, step)


def _spacing(distinct: Vector, single: bool) -> tuple[float, float | None]:
    """The smallest gap, 0 if there is none; and the w with all values at distinct[0] + w·k, if the gap is w to 10 w."""
    precision = float(np.finfo(np.float32 if single else np.float64).eps) * float(np.abs(distinct).max())
    gaps = np.diff(distinct)
    gaps = gaps[gaps > 64 * precision]
    if len(gaps) == 0:
        return 0.0, None
    smallest = float(gaps.min())
    return smallest, _step(distinct, smallest, precision)


def _step(distinct: Vector, smallest: float, precision: float) -> float | None:
    for parts in range(1, 11):
        step = smallest / parts
        steps = np.round((distinct - distinct[0]) / step)
        if steps[-1] > 2**40:
            return None
        step = float((distinct[-1] - distinct[0]) / steps[-1])
        off = np.abs((distinct - distinct[0]) / step - steps).max()
        if off <= min(1e-6 + 8 * precision / step, 0.05):
            return step
    return None


def _noisy_decimals(distinct: Vector, step: float) -> int:
    """Digits after the point that values on a lattice have but for noise in the last bits, as 0.1 + 0.2 has.

    A step of more than ``FIGURES`` figures, such as a third, was not written in decimals: −1.

    >>> _noisy_decimals(0.1 * np.arange(20), 0.1), _noisy_decimals(np.arange(20) / 3, 1 / 3)
    (1, -1)
    """
    largest = float(np.abs(distinct).max())
    noise = NOISE * float(np.finfo(np.float64).eps) * largest
    first = max(0, math.floor(-math.log10(step)))
    for decimals in range(first, min(first + FIGURES, MOST_DECIMALS) + 1):
        if (
            noise < 0.01 * 10.0**-decimals
            and (np.abs(np.round(distinct, decimals) - distinct) <= noise).all()
        ):
            return decimals
    return -1


def _decimals(distinct: Vector, kind: type[np.floating[Any]]) -> int:
    """Digits after the point that the values have in this precision, at most 9; −1 if they have more."""
    if np.abs(distinct).max() > ROUNDABLE:
        return -1
    for decimals in range(10):
        if (np.round(distinct, decimals).astype(kind) == distinct.astype(kind)).all():
            return decimals
    return -1
