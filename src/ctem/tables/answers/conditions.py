r"""Conditions on columns that people write, and what they mean for encoded columns.

    value            the column holds this value
    (low, high)      low ≤ value ≤ high; None leaves an end open
    [a, b, …]        one of these, each a value or a (low, high)
    None             the cell is missing; only where missing is a state (``missing="state"``)

Bounds belong to the range. Of a column on a lattice (whole numbers, rounded ones) its cells do: (30, 40) of whole years
is 29.5 to 40.5 of the density, which is spread over the width of the rounding, so that 40 counts as much as 35.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from ctem.densities.anyorder.numbers import FAR
from ctem.tables.encoding.codecs import Codec, Constant, Labels, LeftOut, Numbers
from ctem.tables.encoding.lookup import find, in_words
from ctem.tables.io.cells import Cells, counts_of, is_gap, object_cells
from ctem.tables.io.given import moment_of
from ctem.tables.schema import Schema

__all__ = ["LabelCondition", "NoValueError", "NumberCondition", "check_state", "compiled", "is_range"]

Item = Any  # a value, (low, high) or None
Intervals = NDArray[np.float64]


class NoValueError(ValueError):
    """A condition that no value of its column meets.

    >>> isinstance(NoValueError("given: column 'age' has no value in (500, 600)."), ValueError)
    True
    """


def is_range(condition: Any) -> bool:
    """Whether a condition is a range or a set, and not one value.

    >>> is_range((30, 40)), is_range(["Oslo"]), is_range("Oslo")
    (True, True, False)
    """
    return isinstance(condition, tuple | list | set | frozenset | range | np.ndarray)


@dataclass(frozen=True)
class LabelCondition:
    """Which values a column of listed values may hold.

    Arguments:
        codec: of the column.
        allowed: a mask over its values, and one more for "missing".

    >>> city = Labels("label", ("Bergen", "Oslo"), (0, 1), (1.0, 1.0))
    >>> LabelCondition(city, np.array([True, False, False])).encoded((4,))
    {4: tensor([0., -inf], dtype=torch.float64)}
    """

    codec: Labels
    allowed: NDArray[np.bool_]

    def encoded(self, owner: tuple[int, ...]) -> dict[int, Tensor]:
        """Log-weights of the codes: the share of a code's values that is allowed; or of slots, one for each value."""
        if self.codec.apart:
            log_weight = torch.full((self.codec.slots,), -torch.inf, dtype=torch.float64)
            log_weight[self.codec.slot_of_value[self.allowed[:-1]]] = 0.0
            if self.codec.state and self.allowed[-1]:
                log_weight[-1] = 0.0
            return {owner[0]: log_weight}
        share = np.zeros(self.codec.size)
        np.add.at(share, np.array(self.codec.codes), np.array(self.codec.shares) * self.allowed[:-1])
        whole = np.bincount(self.codec.codes, ~self.allowed[:-1], self.codec.size) == 0
        share[whole] = 1.0
        if self.codec.state:
            share[-1] = float(self.allowed[-1])
        return {owner[0]: torch.from_numpy(share).log()}

    def decode(self, x: Tensor, generator: Generator) -> Cells:
        """Values from codes, of those that share a code one that is allowed."""
        if self.codec.apart:
            return self.codec.decode(x, generator)
        codes, allowed = np.array(self.codec.codes), self.allowed[:-1]
        some = np.isin(codes, codes[allowed])
        kept = np.flatnonzero(allowed | ~some)  # codes that are never drawn keep their values
        shares = np.array(self.codec.shares)[kept]
        total = np.bincount(codes[kept], shares)[codes[kept]]
        narrow = replace(
            self.codec,
            values=tuple(self.codec.values[i] for i in kept),
            codes=tuple(codes[kept].tolist()),
            shares=tuple((shares / total).tolist()),
        )
        return narrow.decode(x, generator)


@dataclass(frozen=True)
class NumberCondition:
    """Which numbers a real column may hold.

    Arguments:
        codec: of the column.
        intervals: (m, 2) closed intervals of X, increasing; ends are lattice points where there is a lattice.
        atoms: which atoms are allowed, and one more for "missing".

    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> from ctem.tables.margins.lattices import Lattice
    >>> numbers = Numbers(Lattice("float"), MonotoneMap(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0)))
    >>> NumberCondition(numbers, np.array([[-np.inf, 0.0]]), np.array([False])).encoded((2,))
    {2: tensor([[-8.,  0.]], dtype=torch.float64)}
    """

    codec: Numbers
    intervals: Intervals
    atoms: NDArray[np.bool_]

    def encoded(self, owner: tuple[int, ...]) -> dict[int, Tensor]:
        """Intervals of the real column, and log-weights of the atoms where there are some; nothing if none fits."""
        x = self._cells()
        real = {owner[-1]: x} if len(x) else {owner[-1]: torch.tensor([[-FAR, FAR]], dtype=torch.float64)}
        if not self.codec.atomic:
            return real if len(x) else {}
        allowed = [len(x) > 0, *self.atoms[: len(self.atoms) - 1 + self.codec.state].tolist()]
        return {owner[0]: torch.tensor(allowed, dtype=torch.float64).log(), **real} if any(allowed) else {}

    def decode(self, x: Tensor, generator: Generator) -> Cells:
        """Numbers; one that rounding took out of the intervals goes to the nearest end."""
        cells = self.codec.decode(x, generator)
        X = self.codec.lattice.measure(cells)
        free = np.isnan(X) | np.isin(X, np.array(self.codec.atoms)[self.atoms[:-1]])
        if not len(self.intervals) or free.all():
            return cells
        near = np.clip(X[:, None], self.intervals[:, 0], self.intervals[:, 1])
        best = np.nan_to_num(np.abs(near - X[:, None]), nan=np.inf).argmin(1)
        moved = near[np.arange(len(X)), best]
        fixed = self.codec.lattice.restore(torch.from_numpy(np.where(np.isnan(X), 0.0, moved)))
        out = ~free & (moved != X)
        return replace(cells, values=np.where(out, fixed.values, cells.values))

    def _cells(self) -> Tensor:
        """The intervals of x, (m, 2), half a cell wider where there is a lattice; those without any width left out."""
        half = self.codec.lattice.width / 2 if self.codec.lattice.step else 0.0
        ends = np.stack([self.intervals[:, 0] - half, self.intervals[:, 1] + half], 1)
        limits = self.codec.transform.inverse(torch.tensor([-FAR, FAR], dtype=torch.float64)).numpy()
        x = self.codec.transform(torch.from_numpy(np.clip(ends, *limits)).flatten()).view(-1, 2)
        return _apart(x.float().double())


def compiled(
    conditions: Mapping[str, Any], schema: Schema, what: str = "given"
) -> dict[str, LabelCondition | NumberCondition]:
    """The conditions on columns, by name; those that a constant column meets are left out.

    >>> from ctem.tables.io.frame import read_frame
    >>> schema = Schema.fit(read_frame(np.array([["Oslo"], ["Bergen"], ["Oslo"]])))
    >>> compiled({"x0": ["Oslo"]}, schema)["x0"].allowed
    array([False,  True, False])
    """
    compiled: dict[str, LabelCondition | NumberCondition] = {}
    for name, condition in conditions.items():
        items, codec = _items(name, condition, what), schema.columns[name].codec
        if isinstance(codec, Constant):
            _check_constant(name, items, codec, what)
        elif isinstance(codec, Labels):
            compiled[name] = LabelCondition(codec, _allowed(name, items, codec, what))
        elif isinstance(codec, LeftOut):
            raise ValueError(f"{what}: column {name!r} names the rows and is left out of the density.")
        else:
            compiled[name] = _numbers(name, items, codec, what)
        if name in compiled and not compiled[name].encoded((0, 1)):
            raise NoValueError(f"{what}: column {name!r} {_nowhere(condition, codec)}")
    return compiled


def check_state(name: str, codec: Codec, what: str) -> None:
    """Refuse None, a missing cell, where the model does not know how likely one is.

    >>> check_state("city", Labels("label", ("Bergen", "Oslo"), (0, 1), (1.0, 1.0)), "given")
    Traceback (most recent call last):
    ...
    ValueError: given: column 'city': None asks for a missing cell, but the model does not know how likely ...
    """
    known = codec.values if isinstance(codec, Constant) else isinstance(codec, LeftOut) or not codec.state
    if known:
        raise ValueError(
            f"{what}: column {name!r}: None asks for a missing cell, but the model does not know how likely those are; "
            "leave the column out, or fit with missing='state' to a table in which it has some."
        )


def _items(name: str, condition: Any, what: str) -> list[Item]:
    """The alternatives of a condition, each a value, None or a (low, high)."""
    if isinstance(condition, tuple):
        condition = [condition]
    items = [_plain(item) for item in condition] if is_range(condition) else [_plain(condition)]
    for item in items:
        pair = isinstance(item, tuple)
        strange = pair and (len(item) != 2 or any(end is not None and is_gap(end) for end in item))
        if strange or isinstance(item, list | set | dict):
            raise ValueError(
                f"{what}: column {name!r}: expected a value, (low, high), with None for an open end, or a list of "
                f"these; got {item!r}."
            )
    if not items:
        raise ValueError(f"{what}: column {name!r}: expected at least one value; got {condition!r}.")
    return items


def _plain(item: Item) -> Item:
    """None for any mark of a missing cell, and for an end at infinity; NumPy's numbers and text as Python's."""
    if isinstance(item, tuple) and len(item) == 2:
        pairs = zip(map(_native, item), (-math.inf, math.inf), strict=True)
        return tuple(None if isinstance(end, float) and end == far else end for end, far in pairs)
    return None if is_gap(item) else _native(item)


def _native(value: Any) -> Any:
    """A number, a boolean or text of NumPy as that of Python, as a sentence has it.

    >>> _native(np.float64(0.5)), _native(np.str_("Oslo")), _native(7)
    (0.5, 'Oslo', 7)
    """
    return value.item() if isinstance(value, np.generic) and value.dtype.kind in "biufU" else value


def _read(name: str, values: Sequence[Any], codec: Codec) -> Cells:
    """Values as cells; text is read as a moment where moments are meant."""
    kind = codec.lattice.type if isinstance(codec, Numbers) else codec.type
    if kind == "moment":
        values = [moment_of(value) for value in values]
    if kind == "duration":
        for value in values:
            if not isinstance(value, dt.timedelta | np.timedelta64):
                raise TypeError(f"column {name!r}: expected durations, as in fit; got {value!r}.")
        spans = np.array([np.timedelta64(value, "us") for value in values], "m8[us]")
        return Cells("duration", spans.view(np.int64), np.zeros(len(values), bool), unit="us")
    column = np.empty(len(values), object)
    column[:] = list(values)
    return object_cells(name, column)[1]


def _allowed(name: str, items: list[Item], codec: Labels, what: str) -> NDArray[np.bool_]:
    """Which of the values of a column, and "missing", fit one of the items."""
    allowed = np.zeros(len(codec.values) + 1, bool)
    values = [item for item in items if item is not None and not isinstance(item, tuple)]
    if values:
        allowed[find(name, _read(name, values, codec), replace(codec, reserve=0.0))] = True
    for low, high in (item for item in items if isinstance(item, tuple)):
        allowed[:-1] |= _between(name, low, high, codec, what)
    if None in items:
        check_state(name, codec, what)
        allowed[-1] = True
    if not allowed.any():
        raise NoValueError(f"{what}: column {name!r} holds no value in {items[0]}.")
    return allowed


def _between(name: str, low: Any, high: Any, codec: Labels, what: str) -> NDArray[np.bool_]:
    """Which values lie in a range: by number, or by their order where they have one."""
    rank = np.arange(len(codec.values))
    if codec.type in ("label", "bool"):
        if not codec.ordered:
            raise ValueError(
                f"{what}: column {name!r} holds labels without an order, so that ({low!r}, {high!r}) is no range; "
                "write a list of values."
            )
        place = {value: i for i, value in enumerate(codec.values)}
        strange = [end for end in (low, high) if end is not None and end not in place]
        if strange:
            raise ValueError(
                f"{what}: column {name!r} has no value {strange[0]!r}; known: {list(codec.values)[:5]}."
            )
        ends = [place.get(low, -1), place.get(high, len(rank))]
        return (rank >= ends[0]) & (rank <= ends[1])
    values, inside = np.array(codec.values), np.ones(len(codec.values), bool)
    if low is not None:
        inside &= values >= _tick(name, low, codec)
    if high is not None:
        inside &= values <= _tick(name, high, codec)
    return inside


def _tick(name: str, value: Any, codec: Labels) -> Any:
    """A bound in the units of the values."""
    cells = _read(name, [value], codec)
    if cells.type == "label":
        raise TypeError(f"column {name!r}: expected {in_words(codec.type)}, as in fit; got {value!r}.")
    return counts_of(cells, codec.unit)[0] if codec.unit else cells.values[0]


def _numbers(name: str, items: list[Item], codec: Numbers, what: str) -> NumberCondition:
    """The intervals and atoms of a real column that fit one of the items."""
    pairs = [item if isinstance(item, tuple) else (item, item) for item in items if item is not None]
    ends = np.array([_ends(name, low, high, codec, what) for low, high in pairs]).reshape(-1, 2)
    atoms = np.array(codec.atoms).reshape(-1, 1)
    inside = ((atoms >= ends[:, 0]) & (atoms <= ends[:, 1])).any(1)
    if None in items:
        check_state(name, codec, what)
    on = _on_lattice(ends, codec)
    point = (on[:, 0] == on[:, 1]) & (codec.lattice.step == 0)
    lonely = [pair for pair, end, one in zip(pairs, ends, point, strict=True) if one and end[0] not in atoms]
    if lonely:
        raise ValueError(
            f"{what}: column {name!r} is continuous: the single value {lonely[0][0]!r} has probability 0. "
            "Write a range, (low, high)."
        )
    merged = _merged(on[(on[:, 0] <= on[:, 1]) & ~point])
    return NumberCondition(codec, merged, np.append(inside, None in items))


def _ends(name: str, low: Any, high: Any, codec: Numbers, what: str) -> tuple[float, float]:
    """A range as X; ±∞ for an open end."""
    known = [end for end in (low, high) if end is not None]
    X = list(codec.measure(name, _read(name, known, codec))) if known else []
    first = X.pop(0) if low is not None else -math.inf
    last = X.pop(0) if high is not None else math.inf
    if not first <= last:
        raise ValueError(f"{what}: column {name!r}: expected low ≤ high; got ({low!r}, {high!r}).")
    return float(first), float(last)


def _on_lattice(ends: Intervals, codec: Numbers) -> Intervals:
    """Ends moved inward to the lattice, if there is one."""
    lattice = codec.lattice
    if not lattice.step:
        return ends
    steps = (ends * lattice.per - lattice.origin) / lattice.step
    inward = np.stack([np.ceil(steps[:, 0] - 1e-6), np.floor(steps[:, 1] + 1e-6)], 1)
    return np.asarray((lattice.origin + lattice.step * inward) / lattice.per)


def _merged(intervals: Intervals) -> Intervals:
    """Intervals in order, those that overlap as one."""
    kept: list[list[float]] = []
    for low, high in sorted(intervals.tolist()):
        if kept and low <= kept[-1][1]:
            kept[-1][1] = max(kept[-1][1], high)
        else:
            kept.append([low, high])
    return np.array(kept).reshape(-1, 2)


def _apart(x: Tensor) -> Tensor:
    """Increasing intervals, those that touch as one, without those of no width."""
    merged = _merged(x.numpy())
    return torch.from_numpy(merged[merged[:, 1] > merged[:, 0]])


def _check_constant(name: str, items: list[Item], codec: Constant, what: str) -> None:
    """A constant column meets a condition or nothing does."""
    values = [item for item in items if item is not None and not isinstance(item, tuple)]
    pairs = [item for item in items if isinstance(item, tuple)]
    numbers = bool(codec.values) and not isinstance(codec.values[0], str)
    single = Labels(codec.type, codec.values or ("",), (0,), (1.0,), codec.unit)
    fits = any(numbers and bool(_between(name, pair[0], pair[1], single, what).any()) for pair in pairs)
    fits = fits or (None in items and not codec.values)
    if values and not fits:
        replace(codec, reserve=0.0).encode(name, _read(name, values[:1], codec))
    elif not fits:
        raise NoValueError(f"{what}: column {name!r} was always {codec.values} in fit; got {items[0]}.")


def _nowhere(condition: Any, codec: Codec) -> str:
    """Why no number fits, and where they are."""
    assert isinstance(codec, Numbers)
    ends = codec.transform.inverse(torch.tensor([-3.0, 3.0], dtype=torch.float64))
    low, high = codec.lattice.restore(ends).to_list()
    return f"has no value in {condition}; nearly all are between {low} and {high}."
