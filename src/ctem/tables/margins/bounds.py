"""The map of a column that has ends: no mass beyond them, and all of it between."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.tables.margins.lattices import Lattice
from ctem.tables.margins.preferred import PreferredValues, map_from_json
from ctem.tables.margins.rhythms import Smooth

__all__ = ["Bounded", "Map", "bounded_from_json", "natural_ends", "with_ends"]

FAR = 8.0  # |t| beyond which probabilities are taken as logarithms
NEWTON = 6  # steps of Newton's method there
NEAREST = 1e-300  # probability below a number that is far out
AT_AN_END = (
    1e-12  # the same between an end and a number: nearer, its density is the margin's, times a constant
)
TRIFLE = 1e-4  # of a column's scale, between an end and the edge of its density
NEGLIGIBLE = 1e-12  # probability beyond ends that need not be cut
CUT_ROWS, CUT_TIMES = (
    20,
    5.0,
)  # rows of an end that is a cut, at least, and times those of the values beside it
CUT_BESIDE, CUT_VALUES = 3, 20  # values beside it, and in all
SHARES, ALMOST = (1.0, 100.0), 0.95  # tops of shares and percentages, and how near the largest value comes


@dataclass(frozen=True)
class Bounded:
    """A map T from the line to roughly N(0, 1), cut to low − m < X < high + m and stretched to the line again:

        x = Φ⁻¹( (Φ(T(X)) − p) / (q − p) ),      p = Φ(T(low − m)), q = Φ(T(high + m))

    A normal x then has the density of T, cut at the ends and renormalised: it may end abruptly, as ages do at zero.

    Arguments:
        inner: T.
        low, high: the ends; infinite where there is none.
        margin: m, so that a value at an end is not infinitely far out: half a cell of the lattice, or a trifle.

    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> transform = MonotoneMap(1.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
    >>> positive = Bounded(transform, 0.0, math.inf)
    >>> x = torch.linspace(-4, 4, 5, dtype=torch.float64)
    >>> bool((positive.inverse(x) > 0).all()), bool(torch.allclose(positive(positive.inverse(x)), x))
    (True, True)
    """

    inner: Smooth | PreferredValues
    low: float
    high: float
    margin: float = 0.0

    @property
    def edges(self) -> tuple[float, float]:
        """Where the density begins and ends."""
        return self.low - self.margin, self.high + self.margin

    @property
    def location(self) -> float:
        """Where the column lies."""
        return self.inner.location

    @property
    def scale(self) -> float:
        """How wide it is."""
        return self.inner.scale

    @property
    def smooth(self) -> Bounded:
        """The map without steps."""
        return Bounded(self.inner.smooth, self.low, self.high, self.margin)

    def __call__(self, X: Tensor) -> Tensor:
        """x, float64."""
        return self._cut(self.inner(X))

    def with_log_slope(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """x and log dx/dX = log T′(X) + log φ(T)/φ(x) − log(q − p)."""
        t, log_slope = self.inner.with_log_slope(X)
        x = self._cut(t)
        return x, log_slope + (x - t) * (x + t) / 2 - math.log(self._mass)

    def inverse(self, x: Tensor) -> Tensor:
        """The X that x stands for, within the edges."""
        t = _from_both_ends(_stretched, x, self._tails, math.log(self._mass))
        return self.inner.inverse(t).clamp(*self.edges)

    def log_beyond(self, X: Tensor) -> Tensor:
        """A log-density of values beyond the ends: −log(σ (1 + t)²), t the distance in σ; half of it where both end."""
        low, high = self.edges
        t = torch.maximum(low - X, X - high) / self.scale
        return -2 * t.log1p() - math.log(self.scale * (math.isfinite(low) + math.isfinite(high)))

    def to_json(self) -> dict[str, Any]:
        """This map as plain JSON."""
        ends = {"low": _plain(self.low), "high": _plain(self.high), "margin": self.margin}
        return {"inner": self.inner.to_json(), **ends}

    def _cut(self, t: Tensor) -> Tensor:
        return _from_both_ends(_squeezed, t, self._tails, -math.log(self._mass))

    @cached_property
    def _tails(self) -> tuple[float, float]:
        """p and 1 − q."""
        ends = torch.tensor(self.edges, dtype=torch.float64)
        t = self.inner(torch.where(ends.isfinite(), ends, 0.0))
        p = _below(torch.stack([t[0], -t[1]]))
        below, above = torch.where(ends.isfinite(), p, 0.0).tolist()
        return below, above

    @cached_property
    def _mass(self) -> float:
        return 1.0 - sum(self._tails)


Map = Smooth | PreferredValues | Bounded


def bounded_from_json(data: Mapping[str, Any]) -> Map:
    """The map that ``to_json`` wrote; anything else is refused.

    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> transform = MonotoneMap(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
    >>> bounded_from_json(Bounded(transform, 0.0, math.inf).to_json()).low
    0.0
    """
    if "margin" not in data:
        return map_from_json(data)
    low = -math.inf if data["low"] is None else float(data["low"])
    high = math.inf if data["high"] is None else float(data["high"])
    margin = float(data["margin"])
    ended = math.isfinite(low) or math.isfinite(high)
    if not ended or not low < high or low == math.inf or high == -math.inf or not 0 <= margin < math.inf:
        raise ValueError(
            f"bounds: expected low < high, one of them finite, and a margin ≥ 0; got {low}, {high}, {margin}."
        )
    made = Bounded(map_from_json(data["inner"]), low, high, margin)
    if not made._mass > 0:
        raise ValueError(f"bounds: expected mass between {low} and {high}.")
    return made


def natural_ends(values: NDArray[Any], kind: str, counts: NDArray[Any] | None = None) -> tuple[float, float]:
    """The ends that the values of a column suggest: it keeps its sign, shares stay shares, and a cut is an end.

    Arguments:
        values: in order, each once.
        kind: their type.
        counts: rows of each value; none is cut when left out.

    >>> import numpy as np
    >>> natural_ends(np.array([0.5, 7.25, 512.33]), "float"), natural_ends(np.array([0.1, 0.97]), "float")
    ((0.0, inf), (0.0, 1.0))
    >>> natural_ends(np.arange(-3.0, 60.0), "float", np.append(np.ones(62), 40))  # 40 rows hold the largest value
    (-inf, 59.0)
    """
    if kind not in ("int", "float", "duration"):
        return -math.inf, math.inf
    low, high = _ends_of_sign(float(values.min()), float(values.max()), kind)
    if counts is None:
        return low, high
    cut = _is_cut(counts), _is_cut(counts[::-1])
    return float(values[0]) if cut[0] else low, float(values[-1]) if cut[1] else high


def _ends_of_sign(low: float, high: float, kind: str) -> tuple[float, float]:
    if low < 0 < high:
        return -math.inf, math.inf
    if low < 0 or high <= 0:
        return -math.inf, 0.0
    if kind == "float":
        share = next((top for top in SHARES if ALMOST * top <= high <= top), math.inf)
        return 0.0, share
    return 0.0, 100.0 if kind == "int" and high == 100 else math.inf


def _is_cut(counts: NDArray[Any]) -> bool:
    """Whether the first of many values has far more rows than those next to it, as where all beyond are put there."""
    near = counts[1 : 1 + CUT_BESIDE]
    return len(counts) >= CUT_VALUES and bool(counts[0] >= max(CUT_ROWS, CUT_TIMES * float(np.median(near))))


def with_ends(
    transform: Smooth | PreferredValues, lattice: Lattice, ends: tuple[float, float], requested: bool
) -> Map:
    """The map with ends in units of X, moved inward to the lattice; without them where they would change nothing.

    >>> from ctem.tables.margins.monotone import MonotoneMap
    >>> transform = MonotoneMap(10.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
    >>> with_ends(transform, Lattice("float"), (0.0, math.inf), requested=True).low
    0.0
    """
    if math.isinf(ends[0]) and math.isinf(ends[1]):
        return transform
    low, high = (end if math.isinf(end) else (end - lattice.shift) / lattice.per for end in ends)
    if lattice.step:
        low, high = _on_lattice(lattice, low, math.ceil, -1e-6), _on_lattice(lattice, high, math.floor, 1e-6)
    made = Bounded(transform, low, high, max(lattice.width / 2, TRIFLE * transform.scale))
    return made if requested or sum(made._tails) > NEGLIGIBLE else transform


def _on_lattice(lattice: Lattice, end: float, whole: Callable[[float], int], slack: float) -> float:
    """The lattice point next to an end, inward; 0 where rounding leaves next to nothing of it."""
    if math.isinf(end):
        return end
    step, origin = lattice.step / lattice.per, lattice.origin / lattice.per
    point = origin + step * whole((end - origin) / step + slack)
    return point if abs(point) > 1e-6 * step else 0.0


def _from_both_ends(
    moved: Callable[[Tensor, float, float], Tensor], t: Tensor, tails: tuple[float, float], log_factor: float
) -> Tensor:
    """Φ⁻¹(moved Φ(t)) for t < 0 by the tail below, and for other t by the tail above, mirrored."""
    negative = t < 0
    size = torch.where(negative, t, -t)  # −|t|, which would have slope 0 at 0
    p = _below(size)
    low, high = (
        moved(p, tail, log_factor) if tail else (p * math.exp(log_factor)).clamp(NEAREST, 1.0)
        for tail in tails
    )
    x = torch.special.ndtri(torch.where(negative, low, high))
    if 0 in tails and (t.is_cuda or bool((size < -FAR).any())):  # to ask a GPU would be to wait for it
        free = torch.where(negative, tails[0] == 0, tails[1] == 0)
        x = torch.where(free & (size < -FAR), _far(size, log_factor), x)
    return torch.where(negative, x, -x)


def _squeezed(p: Tensor, tail: float, log_factor: float) -> Tensor:
    """(p − tail)/mass; a wide tail of a network would make a mountain of the last digits before an end."""
    return ((p - tail) / math.exp(-log_factor)).clamp_min(max(min(tail, AT_AN_END), NEAREST))


def _stretched(p: Tensor, tail: float, log_factor: float) -> Tensor:
    """tail + mass·p."""
    return tail + math.exp(log_factor) * p


def _far(t: Tensor, log_factor: float) -> Tensor:
    """The x with log Φ(x) = log Φ(t) + log_factor, for t < −FAR, however far out."""
    x, wanted = t.clamp(max=-FAR), torch.special.log_ndtr(t.clamp(max=-FAR)) + log_factor
    for _ in range(NEWTON):
        log_p = torch.special.log_ndtr(x)
        x = x - (log_p - wanted) * (log_p + x * x / 2 + 0.5 * math.log(2 * math.pi)).exp()
    return x


def _below(t: Tensor) -> Tensor:
    """Φ(t), accurate in the lower tail, which ``torch.special.ndtr`` is not."""
    return 0.5 * torch.special.erfc(-t / math.sqrt(2))


def _plain(end: float) -> float | None:
    return end if math.isfinite(end) else None
