"""How a column is laid out on a picture: slots in which cells are counted, places in [0, 1], and ticks."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctem.tables.encoding.codecs import Codec, Labels, Numbers
from ctem.tables.io.cells import Cells
from ctem.tables.margins.lattices import Lattice

__all__ = ["Axis", "Listed", "Ruled", "display_text", "lay_out", "nice", "plain_text"]

BARS = 12  # values of a category with a bar of their own
SLOTS = 30  # of a histogram
CENTRAL = (0.005, 0.995)  # of the values span the axis; the end slots hold the rest
LONGEST = 40  # characters of a value that are shown

Vector = NDArray[np.float64]
Slots = NDArray[np.int64]
Tick = tuple[float, str]


@dataclass(frozen=True)
class Ruled:
    """An axis of numbers or dates: slot i holds edges[i] ≤ X < edges[i+1], and the end slots all beyond.

    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> codec = Numbers(Lattice("float"), MonotoneMap(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0)))
    >>> Ruled("x", codec, np.array([0.0, 1.0, 2.0])).ticks()
    [(0.0, '0'), (0.25, '0.5'), (0.5, '1'), (0.75, '1.5'), (1.0, '2')]
    """

    name: str
    codec: Numbers
    edges: Vector
    ordered: bool = True
    text: Callable[[Any], str] | None = None  # how a number that stands for text is displayed
    zone: str = ""  # display time zone

    @property
    def size(self) -> int:
        """Number of slots."""
        return len(self.edges) - 1

    def slots(self, cells: Cells) -> Slots:
        """The slot of every cell, −1 where missing."""
        X = self.codec.lattice.measure(cells)
        slots = np.searchsorted(self.edges[1:-1], np.where(cells.missing, self.edges[0], X), side="right")
        return np.where(cells.missing, -1, slots)

    def places(self, cells: Cells) -> Vector:
        """Where on [0, 1] every cell lies; nan where it is missing or beyond the ends."""
        X = self.codec.lattice.measure(cells)
        place = (X - self.edges[0]) / (self.edges[-1] - self.edges[0])
        return np.where((place >= 0) & (place <= 1), place, np.nan)

    def ticks(self) -> list[Tick]:
        """A few round numbers, or dates."""
        low, high, lattice = float(self.edges[0]), float(self.edges[-1]), self.codec.lattice
        offset = lattice.shift / lattice.per
        if lattice.type == "moment":
            at = [low + (high - low) * share for share in (0.12, 0.5, 0.88)]
            texts = _moments([day + offset for day in at], high - low, self.zone)
        elif lattice.type == "duration":
            size, unit = _span_unit(high - low)
            at = [value * size for value in nice(low / size, high / size)]
            texts = [f"{value / size:.6g} {unit}".replace("-", "−") for value in at]
        else:
            at = nice(low, high)
            values = [lattice.shift + round(value) if lattice.shift else value for value in at]
            texts = _distinct_texts(values) if self.text is None else list(map(self.text, values))
        return [((value - low) / (high - low), text) for value, text in zip(at, texts, strict=True)]


@dataclass(frozen=True)
class Listed:
    """An axis of listed values: slot by code; a category by how common its values are, the rare ones together.

    >>> from ctem.tables.encoding.codecs import Labels
    >>> codec = Labels("label", ("Bergen", "Oslo"), (0, 1), (1.0, 1.0))
    >>> lay_out("city", codec, Cells("label", np.array([1, 1, 0]), np.zeros(3, bool), codec.values)).labels
    ('Oslo', 'Bergen')
    """

    name: str
    codec: Labels
    slot: Slots
    labels: tuple[str, ...]
    folded: bool = False  # the last slot holds many values

    @property
    def ordered(self) -> bool:
        """Whether the slots have an order that is meant."""
        return self.codec.ordered

    @property
    def size(self) -> int:
        """Number of slots."""
        return len(self.labels)

    def slots(self, cells: Cells) -> Slots:
        """The slot of every cell, −1 where missing (unless that is a value)."""
        return np.append(self.slot, -1)[_codes(self.name, self.codec, cells)]

    def places(self, cells: Cells) -> Vector:
        """The middle of every cell's slot on [0, 1]; nan where missing."""
        slots = self.slots(cells)
        return np.where(slots < 0, np.nan, (slots + 0.5) / self.size)

    def ticks(self) -> list[Tick]:
        """All labels of a category; a few of an ordinal."""
        step = math.ceil(self.size / 6) if self.ordered else 1
        return [((i + 0.5) / self.size, self.labels[i]) for i in range(0, self.size, step)]


Axis = Ruled | Listed


def lay_out(name: str, codec: Codec, cells: Cells) -> Axis | None:
    """The axis for a column, fitted to the given cells; None for a column that never varies.

    >>> from ctem.tables.encoding.codecs import Constant
    >>> lay_out("n", Constant("int", (7,)), Cells("int", np.array([7]), np.zeros(1, bool))) is None
    True
    """
    if isinstance(codec, Numbers):
        return Ruled(name, codec, _edges(codec, cells), text=cells.text, zone=cells.zone)
    return _listed(name, codec, cells) if isinstance(codec, Labels) else None


def nice(low: float, high: float, count: int = 4) -> list[float]:
    """About ``count`` round numbers in [low, high]: multiples of 1, 2 or 5 times a power of ten.

    >>> nice(0.0, 9.7)
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = min((m * power for m in (1, 2, 5, 10)), key=lambda s: abs((high - low) / s - count))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def plain_text(value: Any, longest: int = LONGEST) -> str:
    """A value as one line of printable text, cut if long; nothing in it can turn or break the line.

    >>> plain_text("two\\nlines"), plain_text("x" * 9, longest=5), plain_text("")
    ('two lines', 'xxxx…', '""')
    """
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    text = "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in text)
    return text if text.strip() else f'"{text}"'


def display_text(cells: Cells, row: int) -> str:
    """One cell as text.

    >>> display_text(Cells("float", np.array([0.1 + 0.2]), np.zeros(1, bool)), 0)
    '0.3'
    """
    pick = slice(row, row + 1)
    value = replace(cells, values=cells.values[pick], missing=cells.missing[pick]).to_list()[0]
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return re.sub(r" 00:00$", "", f"{value:%Y-%m-%d %H:%M}")
    if isinstance(value, dt.timedelta):
        return f"−{-value}" if value < dt.timedelta() else str(value)
    if value is not None and cells.unit:
        moment = np.array(cells.values[row]).astype(f"M8[{cells.unit}]")
        return re.sub(r"(T00:00(:00(\.0+)?)?|\.0+)$", "", str(moment)).replace("T", " ")
    return "missing" if value is None else plain_text(value)


def _edges(codec: Numbers, cells: Cells) -> Vector:
    lattice = codec.lattice
    X = lattice.measure(cells)
    X = X[~np.isnan(X)]
    if not len(X):
        X = np.array([codec.transform.location])
    low, high = (float(q) for q in np.quantile(X, CENTRAL))
    if lattice.step and (edges := _lattice_edges(lattice, low, high)).size:
        return edges
    pad = 0.0 if high > low else max(codec.transform.scale / 2, 1e-9 * abs(low))
    slots = int(np.clip(2 * len(X) ** (1 / 3), 6, SLOTS))
    return np.asarray(np.linspace(low - pad, high + pad, slots + 1), np.float64)


def _lattice_edges(lattice: Lattice, low: float, high: float) -> Vector:
    """Edges between points of the lattice, equally many in every slot; none where float64 cannot separate them."""
    first = float(lattice.snap(torch.tensor(low, dtype=torch.float64)))
    points = round((high - first) / lattice.width) + 1
    step = math.ceil(points / SLOTS)
    edges = first - lattice.width / 2 + step * lattice.width * np.arange(math.ceil(points / step) + 1)
    return np.asarray(edges if (np.diff(edges) > 0).all() else [], np.float64)


def _listed(name: str, codec: Labels, cells: Cells) -> Listed:
    k = codec.size
    if codec.ordered:
        slot = np.arange(k) * min(k, SLOTS) // k
        first = np.searchsorted(slot, np.arange(slot[-1] + 1))
        return Listed(name, codec, slot, tuple(_label(codec, int(code), cells) for code in first))
    codes = _codes(name, codec, cells)
    order = np.argsort(-np.bincount(codes[codes >= 0], minlength=k), kind="stable")
    bars = k if k <= BARS else BARS - 1
    slot = np.full(k, bars, np.int64)
    slot[order[:bars]] = np.arange(bars)
    rest = () if bars == k else (f"{len(codec.values) - bars} others",)
    labels = (*(_label(codec, int(code), cells) for code in order[:bars]), *rest)
    return Listed(name, codec, slot, labels, folded=bool(rest))


def _codes(name: str, codec: Labels, cells: Cells) -> Slots:
    codes = codec.encode(name, cells)[0][:, 0].numpy()
    return np.where(np.isnan(codes), -1, codes).astype(np.int64)


def _label(codec: Labels, code: int, example: Cells) -> str:
    count = codec.codes.count(code)
    if count > 1:
        return f"{count} rare values"
    value = codec.decode(torch.tensor([[float(code)]]), torch.Generator().manual_seed(0))
    return display_text(value.displayed_like(example), 0)


def _moments(days: list[float], span: float, zone: str) -> list[str]:
    """Moments as dates; as times where less than a few days are shown, the finer the less."""
    parts = ((4.0, slice(10)), (1 / 48, slice(5, 16)), (1e-4, slice(11, 19)))
    part = next((part for least, part in parts if span > least), slice(14, 26))
    counts = np.rint(np.array(days) * 86_400e6).astype(np.int64)
    moments = Cells("moment", counts, np.zeros(len(days), bool), unit="us", zone=zone).to_list()
    return [moment.isoformat(" ", "microseconds")[part] for moment in moments]


def _distinct_texts(values: list[float]) -> list[str]:
    """Numbers in six digits, or in as many as it takes to distinguish them."""
    texts = ([f"{value:.{digits}g}" for value in values] for digits in range(6, 18))
    distinct = next((column for column in texts if len(set(column)) == len(values)), list(map(str, values)))
    return [text.replace("-", "−") for text in distinct]


def _span_unit(days: float) -> tuple[float, str]:
    """The unit in which so long a span has a few digits before the point: its size in days, and its name."""
    units = ((1.0, "days"), (1 / 24, "h"), (1 / 1440, "min"))
    return next(((size, name) for size, name in units if days > 3 * size), (1 / 86400, "s"))
