"""Functions of one column or a few that name a value: looked up, a sum, or a product."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Affine", "Function", "Lookup", "Product", "function_from_json"]

Vector = NDArray[np.float64]
MOST_KEYS = 200_000  # of a table that a file may hold
MOST_COLUMNS = 64  # that a function may take
OFF = 1e-6  # how far a number may lie off a key, of the distance between keys
PRIOR = 2.0  # rows of the share of all keys that count beside those of one key


@dataclass(frozen=True)
class Lookup:
    """The value that rows with the same numbers mostly hold: none for numbers that were never seen together.

    Arguments:
        keys: numbers of each column that it takes, one list for each, all of one length.
        values: the value of each key.
        hits: rows with this key that hold this value.
        rows: rows with this key.
        share: of all rows, that hold the value of the others with their key: the share of a key leans to it.
        banded: a number between two keys with one value has that value too.

    >>> state = Lookup(((0.0, 1.0),), (5.0, 7.0), (9, 1), (10, 1), 0.9)
    >>> state.named([np.array([1.0, 0.0, 2.0])])
    array([ 7.,  5., nan])
    """

    keys: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]
    hits: tuple[int, ...]
    rows: tuple[int, ...]
    share: float
    banded: bool = False

    @property
    def columns(self) -> int:
        """How many columns it takes."""
        return len(self.keys)

    @property
    def complexity(self) -> int:
        """How many keys it has."""
        return len(self.values)

    def named(self, numbers: Sequence[Vector]) -> Vector:
        """The value for each row of numbers, (n,) for each column; nan for none."""
        return np.append(np.array(self.values), np.nan)[self._places(numbers)]

    def shares(self, numbers: Sequence[Vector]) -> Vector:
        """How likely the value is that it names, for each row."""
        hits, rows = np.array([*self.hits, 0]), np.array([*self.rows, 0])
        share = (hits + PRIOR * self.share) / (rows + PRIOR)
        return np.asarray(share[self._places(numbers)])

    def _places(self, numbers: Sequence[Vector]) -> NDArray[np.int64]:
        """Which key every row has; −1 for none."""
        known, code, order = self._index
        key, fits = np.zeros(len(numbers[0]), np.int64), np.ones(len(numbers[0]), bool)
        for values, value in zip(known, numbers, strict=True):
            place = np.searchsorted(values, value - OFF).clip(0, len(values) - 1)
            with np.errstate(invalid="ignore"):
                fits &= np.abs(values[place] - value) <= OFF
            key = key * len(values) + place
        at = np.searchsorted(code, key).clip(0, len(code) - 1)
        place = np.where(fits & (code[at] == key), order[at], -1)
        return np.where(place < 0, self._between(numbers[0]), place) if self.banded else place

    def _between(self, number: Vector) -> NDArray[np.int64]:
        """The key below every number if the one above has the same value; −1 for others."""
        known, _, order = self._index
        above = np.searchsorted(known[0], number)
        value = np.array(self.values)[order]
        inside = (above > 0) & (above < len(value)) & ~np.isnan(number)
        above = np.where(inside, above, 1).clip(0, len(value) - 1)
        below = (above - 1).clip(0)
        return np.where(inside & (value[below] == value[above]), order[below], -1)

    @cached_property
    def _index(self) -> tuple[list[Vector], NDArray[np.int64], NDArray[np.int64]]:
        """The numbers of each column in order, a code for each key in order, and the key that each code is of."""
        code, known = np.zeros(len(self.values), np.int64), []
        for column in self.keys:
            values, place = np.unique(np.array(column), return_inverse=True)
            known.append(values)
            code = code * len(values) + place
        order = np.argsort(code)
        return known, code[order], order

    def to_json(self) -> dict[str, Any]:
        """This function as plain JSON."""
        lists = {"values": list(self.values), "hits": list(self.hits), "rows": list(self.rows)}
        rest = {"share": self.share, "banded": self.banded}
        return {"form": "lookup", "keys": list(map(list, self.keys)), **lists, **rest}


@dataclass(frozen=True)
class Affine:
    """Σ factor · number + constant.

    >>> Affine((100.0, 1.0), 0.0).named([np.array([17.0]), np.array([45.0])])
    array([1745.])
    """

    factors: tuple[float, ...]
    constant: float

    @property
    def columns(self) -> int:
        """How many columns it takes."""
        return len(self.factors)

    @property
    def complexity(self) -> int:
        """How much is to be written down: digits, and minus signs."""
        return sum(map(_digits, (*self.factors, self.constant))) + sum(factor < 0 for factor in self.factors)

    def named(self, numbers: Sequence[Vector]) -> Vector:
        """The value for each row of numbers, (n,) for each column; nan for none."""
        total = np.full(len(numbers[0]), self.constant)
        for factor, value in zip(self.factors, numbers, strict=True):
            total = total + factor * value
        return total

    def to_json(self) -> dict[str, Any]:
        """This function as plain JSON."""
        return {"form": "sum", "factors": list(self.factors), "constant": self.constant}


@dataclass(frozen=True)
class Product:
    """factor · Π number^power.

    >>> Product((1, -1), 2.0).named([np.array([6.0, 1.0]), np.array([3.0, 0.0])])
    array([ 4., nan])
    """

    powers: tuple[int, ...]
    factor: float

    @property
    def columns(self) -> int:
        """How many columns it takes."""
        return len(self.powers)

    @property
    def complexity(self) -> int:
        """How much is to be written down: digits, divisions and powers."""
        return _digits(self.factor) + sum(abs(power) - 1 + 2 * (power < 0) for power in self.powers)

    def named(self, numbers: Sequence[Vector]) -> Vector:
        """The value for each row of numbers, (n,) for each column; nan for none, and where it would divide by 0."""
        total = np.full(len(numbers[0]), self.factor)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for power, value in zip(self.powers, numbers, strict=True):
                total = total * value**power
        return np.where(np.isfinite(total), total, np.nan)

    def to_json(self) -> dict[str, Any]:
        """This function as plain JSON."""
        return {"form": "product", "powers": list(self.powers), "factor": self.factor}


Function = Lookup | Affine | Product


def function_from_json(data: Mapping[str, Any]) -> Function:
    """The function that ``to_json`` wrote; anything else is refused.

    >>> function_from_json(Product((1, 1), 0.5).to_json())
    Product(powers=(1, 1), factor=0.5)
    """
    form = data["form"]
    if form == "sum":
        factors = _finite(data["factors"])
        if 1 <= len(factors) <= MOST_COLUMNS:
            return Affine(factors, *_finite([data["constant"]]))
    elif form == "product":
        powers = tuple(data["powers"])
        whole = all(type(power) is int and 1 <= abs(power) <= 4 for power in powers)
        if whole and 1 <= len(powers) <= MOST_COLUMNS:
            return Product(powers, *_finite([data["factor"]]))
    elif form == "lookup":
        return _lookup(data)
    raise ValueError(f"rule: expected a lookup, a sum or a product of a few columns; got {form!r}.")


def _lookup(data: Mapping[str, Any]) -> Lookup:
    keys, values = tuple(_finite(column) for column in data["keys"]), _finite(data["values"])
    hits, rows, share = tuple(data["hits"]), tuple(data["rows"]), float(data["share"])
    m = len(values)
    fine = 1 <= len(keys) <= 2 and 1 <= m <= MOST_KEYS and all(len(key) == m for key in keys)
    fine = fine and len(hits) == len(rows) == m and all(type(count) is int for count in (*hits, *rows))
    fine = fine and all(0 <= hit <= count for hit, count in zip(hits, rows, strict=True)) and 0 < share < 1
    fine = fine and isinstance(data["banded"], bool) and not (data["banded"] and len(keys) > 1)
    if not fine or len(set(zip(*keys, strict=True))) < m:
        raise ValueError(
            "rule: expected keys, each once, with a value, hits and rows, and a share in (0, 1)."
        )
    return Lookup(keys, values, hits, rows, share, data["banded"])


def _digits(value: float) -> int:
    return 0 if value in (0, 1, -1) else len(f"{abs(value):.12g}")


def _finite(values: Sequence[Any]) -> tuple[float, ...]:
    numbers = tuple(map(float, values))
    if not all(map(math.isfinite, numbers)):
        raise ValueError("rule: expected finite numbers.")
    return numbers
