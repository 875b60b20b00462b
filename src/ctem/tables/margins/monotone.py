"""The monotone map that makes a real column roughly N(0, 1), with exact derivative and exact inverse."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri
from torch import Tensor

__all__ = ["MonotoneMap"]

MAX_KNOTS = 33
TAIL_ROWS = 8  # a knot further out needs this many rows beyond it
FULL, SLOWER = (
    6.0,
    4.0,
)  # rise of x beyond the last knot from which on it grows like a logarithm, and how slowly
GENTLEST = 0.02  # least slope dx/du of a tail, so that x = ±40 still decodes to a number
BENDS = (0.0, 0.5, 1.0, 2.0)  # of a tail, from which one is chosen
OUTER, ENOUGH = 0.1, 20  # share of the rows by which it is chosen, and how many they must be
BENT = 1.0  # how far in u a tail bends; beyond, it goes on straight
CHUNK = 16_384  # rows at a time, so that the steps between stay in the cache
LARGEST = float(np.finfo(np.float64).max)
LARGEST_ASINH = 709.0
FARTHEST, STEEPEST = 40.0, 1e15  # score and slope of a knot; beyond, a file is not from here
MANY_ORDERS = (
    1e4  # between the 5 and 95 % quantiles of numbers of one sign, from which their logarithm is taken
)
NEGLIGIBLE = 1e-304  # a scale so much smaller than the range would overflow

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class MonotoneMap:
    """An increasing map from a real column to roughly N(0, 1):

        T(X) = R( asinh((X − location) / scale) )

    asinh tames heavy tails; R runs through ``knots`` → ``scores`` by rational-quadratic pieces with the given
    ``slopes`` at the knots (increasing for any positive slopes, C¹, inverse in closed form). Beyond the last knot k, of
    slope s, it goes on as s (e^{b (u − k)} − 1)/b: with bend b = 0 a normal x makes a log-normal tail of X, with 1 a
    normal one, with 2 one that nearly ends, as ages do; where it has risen by 6, it goes on like a logarithm. T depends
    on X only through (X − location)/scale, so a change of units changes nothing but log T′.

    Reference: J. A. Gregory and R. Delbourgo, Piecewise rational quadratic interpolation to monotonic data, 1982.

    >>> X = np.random.default_rng(0).lognormal(3.0, 1.0, 2000)
    >>> curve = MonotoneMap.fit(X)
    >>> x = curve(torch.as_tensor(X))
    >>> round(float(x.std()), 1), bool(torch.allclose(curve.inverse(x), torch.as_tensor(X)))
    (1.0, True)
    """

    location: float
    scale: float
    knots: tuple[float, ...]
    scores: tuple[float, ...]
    slopes: tuple[float, ...]
    bends: tuple[float, float] = (0.0, 0.0)  # of the tail below and above

    @property
    def smooth(self) -> MonotoneMap:
        """The map without steps: itself."""
        return self

    @classmethod
    def fit(cls, X: Vector) -> MonotoneMap:
        """The curve through normal scores at a few quantiles of X, which holds at least two values."""
        values = np.sort(X)
        location, scale = _units(values)
        u = _squash(torch.as_tensor(values), location, scale)[0].numpy()
        knots, scores = _knots(u)
        inner = np.diff(scores) / np.diff(knots)
        bends = _bend(-u[::-1]), _bend(u)
        low = _tail(-u, -knots[0], -scores[0], inner[0], bends[0])
        high = _tail(u, knots[-1], scores[-1], inner[-1], bends[1])
        slopes = np.concatenate([[low], _inner_slopes(np.diff(knots), inner), [high]])
        return cls(
            location, scale, tuple(knots.tolist()), tuple(scores.tolist()), tuple(slopes.tolist()), bends
        )

    def __call__(self, X: Tensor) -> Tensor:
        """x = T(X), float64."""
        return torch.cat([self._forward(self._squash(rows)[0])[0] for rows in _chunks(X)])

    def with_log_slope(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """T(X) and log T′(X) = log R′(u) − log √(1 + y²) − log scale.

        >>> curve = MonotoneMap(0.0, 2.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
        >>> curve.with_log_slope(torch.zeros(1, dtype=torch.float64))[1].exp()
        tensor([0.5000], dtype=torch.float64)
        """
        parts = [self._with_log_slope(rows) for rows in _chunks(X)]
        return torch.cat([x for x, _ in parts]), torch.cat([log_slope for _, log_slope in parts])

    def _with_log_slope(self, X: Tensor) -> tuple[Tensor, Tensor]:
        u, r = self._squash(X)
        x, slope = self._forward(u)
        return x, (slope / r).log() - math.log(self.scale)

    def inverse(self, x: Tensor) -> Tensor:
        """The X with T(X) = x; held at the largest float64."""
        return torch.cat([self._inverse(rows) for rows in _chunks(x)])

    def _inverse(self, x: Tensor) -> Tensor:
        (left, width, bottom, height, d0, d1, s), ends = self._bins(x, 1)
        rise = torch.minimum((x - bottom).clamp(min=0), height)
        bend = d0 + d1 - 2 * s
        a, b, c = height * (s - d0) + rise * bend, height * d0 - rise * bend, -s * rise
        part = 2 * c / (-b - (b * b - 4 * a * c).clamp(min=0).sqrt())
        below, above = _unslowed((ends[0] - x).clamp(min=0)) / d0, _unslowed((x - ends[1]).clamp(min=0)) / d1
        u = left + part * width - _unbent(below, self.bends[0]) + _unbent(above, self.bends[1])
        X = self.location + self.scale * torch.sinh(u.clamp(-LARGEST_ASINH, LARGEST_ASINH))
        return X.clamp(-LARGEST, LARGEST)

    def to_json(self) -> dict[str, Any]:
        """This curve as plain JSON."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MonotoneMap:
        """The curve that ``to_json`` wrote; anything else is refused.

        >>> curve = MonotoneMap(0.0, 1.0, (-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
        >>> MonotoneMap.from_json(curve.to_json()) == curve
        True
        """
        lists = {key: tuple(map(float, data[key])) for key in ("knots", "scores", "slopes")}
        low, high = map(float, data["bends"])
        curve = cls(float(data["location"]), float(data["scale"]), **lists, bends=(low, high))
        sizes = {len(values) for values in lists.values()}
        flat = np.array([curve.location, curve.scale, *curve.knots, *curve.scores, *curve.slopes])
        rising = bool((np.diff(curve.knots) > 0).all() and (np.diff(curve.scores) > 0).all())
        positive = curve.scale >= np.finfo(np.float64).tiny and min(curve.slopes, default=0) > 0
        if len(sizes) != 1 or sizes.pop() < 2 or not (np.isfinite(flat).all() and rising and positive):
            raise ValueError(
                "map: expected increasing knots and scores, positive scale and slopes, all finite."
            )
        far = max(map(abs, curve.scores)) > FARTHEST or max(map(abs, curve.knots)) > 1 + LARGEST_ASINH
        steep = not STEEPEST**-1 <= min(curve.slopes) <= max(curve.slopes) <= STEEPEST
        if far or steep or not {*curve.bends} <= {*BENDS}:
            raise ValueError("map: expected knots, scores, slopes and bends that a column can have.")
        return curve

    def _forward(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """R(u) and R′(u)."""
        (left, width, bottom, height, d0, d1, s), ends = self._bins(u, 0)
        part = ((u - left) / width).clamp(0, 1)
        rest = 1 - part
        base = s + (d0 + d1 - 2 * s) * part * rest
        x = bottom + height * part * (s * part + d0 * rest) / base
        slope = (s / base) ** 2 * (d1 * part**2 + 2 * s * part * rest + d0 * rest**2)
        # relu, not clamp: at a knot the slope is that of one side, not of both
        below, above = (ends[0] - u).relu(), (u - ends[1]).relu()
        fall, rise = d0 * _bent(below, self.bends[0]), d1 * _bent(above, self.bends[1])
        for outside, bend in zip((below, above), self.bends, strict=True):
            slope = slope * (bend * outside.clamp(max=BENT)).exp() if bend else slope
        slope = slope / (1 + ((fall - FULL).relu() + (rise - FULL).relu()) / SLOWER)
        return x - _slowed(fall) + _slowed(rise), slope

    def _squash(self, X: Tensor) -> tuple[Tensor, Tensor]:
        return _squash(X, self.location, self.scale)

    def _bins(self, value: Tensor, axis: int) -> tuple[list[Tensor], tuple[float, float]]:
        """The piece that each value (a knot coordinate, axis 0, or a score, axis 1) lies in, and the curve's ends."""
        edges, bins = _tables(self, value.device)
        k = torch.searchsorted(edges[axis], value.contiguous())
        along = self.scores if axis else self.knots
        return [row.index_select(0, k) for row in bins], (along[0], along[-1])


@lru_cache(maxsize=2048)
def _tables(curve: MonotoneMap, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
    """Inner edges in u and in x; and left, width, bottom, height, slopes at both ends and secant of every piece."""
    u, x, d = (
        torch.tensor(values, dtype=torch.float64, device=device)
        for values in (curve.knots, curve.scores, curve.slopes)
    )
    bins = [u[:-1], u.diff(), x[:-1], x.diff(), d[:-1], d[1:], x.diff() / u.diff()]
    return [u[1:-1], x[1:-1]], bins


def _bent(outside: Tensor, bend: float) -> Tensor:
    """(e^{bend · u} − 1)/bend of the distance u from the last knot, straight beyond ``BENT``."""
    if not bend:
        return outside
    far = (outside - BENT).relu()
    return torch.expm1(bend * (outside - far)) / bend + math.exp(bend * BENT) * far


def _unbent(rise: Tensor, bend: float) -> Tensor:
    """The inverse of ``_bent``.

    >>> _unbent(_bent(torch.tensor([0.5, 3.0]), 2.0), 2.0)
    tensor([0.5000, 3.0000])
    """
    if not bend:
        return rise
    far = (rise - math.expm1(bend * BENT) / bend).relu()
    return torch.log1p(bend * (rise - far)) / bend + math.exp(-bend * BENT) * far


def _slowed(rise: Tensor) -> Tensor:
    """A rise that grows like a logarithm beyond ``FULL``: a column that ends abruptly is steep there, not beyond."""
    far = (rise - FULL).relu()
    return rise - far + SLOWER * torch.log1p(far / SLOWER)


def _unslowed(rise: Tensor) -> Tensor:
    """The inverse of ``_slowed``.

    >>> _unslowed(_slowed(torch.tensor([0.5, 100.0])))
    tensor([  0.5000, 100.0000])
    """
    far = (rise - FULL).relu()
    return rise - far + SLOWER * torch.expm1(far / SLOWER)


def _chunks(x: Tensor) -> tuple[Tensor, ...]:
    return x.split(CHUNK) if x.device.type == "cpu" else (x,)


def _squash(X: Tensor, location: float, scale: float) -> tuple[Tensor, Tensor]:
    """u = asinh y and r = √(1 + y²), with y = (X − location)/scale, in a form that cannot overflow."""
    y = (X - location) / scale
    below = y < 0  # abs and copysign would have slope 0 at y = 0
    size, r = torch.where(below, -y, y), torch.hypot(y, torch.ones_like(y))
    u = torch.log1p(size + size / (1 + r) * size)
    return torch.where(below, -u, u), r


def _units(values: Vector) -> tuple[float, float]:
    """Location and scale of sorted values; 0 and the smallest, near which asinh is a logarithm, over many orders.

    >>> _units(np.array([1e-3, 1.0, 1e9]))
    (0.0, 0.001)
    """
    low, high = np.quantile(values, [0.05, 0.95])
    if values[0] > 0 and high > MANY_ORDERS * low:
        return 0.0, max(float(values[0]), float(values[-1]) * NEGLIGIBLE)
    if values[-1] < 0 and low < MANY_ORDERS * high:
        return 0.0, max(-float(values[-1]), -float(values[0]) * NEGLIGIBLE)
    return _centre(values), _scale(values)


def _centre(values: Vector) -> float:
    """The median of sorted values whose range, in their own scale, float64 can hold."""
    with np.errstate(over="ignore"):
        beyond = float(np.abs(values[[0, -1]]).max() + (values[-1] - values[0]))
        narrow = math.isfinite(beyond) and beyond / _scale(values) < LARGEST / 4
    if not narrow:
        raise ValueError(f"values from {values[0]:g} to {values[-1]:g} span more than float64 can hold.")
    return float(np.quantile(values, 0.5))


def _scale(values: Vector) -> float:
    """The narrowest central range that is not empty or lost beside the whole, over that of N(0, 1)."""
    whole = float(values[-1] - values[0])
    for tail in (0.25, 0.1, 0.05, 0.01):
        low, high = np.quantile(values, [tail, 1 - tail])
        scale = float(high - low) / (-2 * float(ndtri(tail)))
        if scale > NEGLIGIBLE * whole:
            return scale
    if scale > 0:
        raise ValueError(
            f"values from {values[0]:g} to {values[-1]:g}, most of them within {high - low:g}, span more than "
            "float64 can hold."
        )
    return whole


def _knots(u: Vector) -> tuple[Vector, Vector]:
    """Quantiles of sorted u, evenly spaced in probability with a few more in the tails, and their normal scores."""
    n = len(u)
    count = max(3, min(MAX_KNOTS, round(n ** (1 / 3))))  # many knots would copy the noise of the rows
    p = (np.arange(count) + 0.5) / count
    tail = [q for q in (p[0] / 4**i for i in range(1, 6)) if q * n >= TAIL_ROWS]
    p = np.unique(np.concatenate([p, tail, 1 - np.array(tail)]))
    knots = np.quantile(u, p)
    apart = np.flatnonzero(np.diff(knots, prepend=-np.inf) > 1e-12 * (u[-1] - u[0]))
    groups = np.split(p, apart[1:])
    scores = ndtri([float(group.mean()) for group in groups])
    if len(apart) < 2:
        return u[[0, -1]], np.array([-1.0, 1.0])
    return knots[apart], scores


def _inner_slopes(widths: Vector, secants: Vector) -> Vector:
    """Weighted harmonic means of neighbouring secants: no new wiggles (Fritsch and Butland 1984)."""
    w0, w1 = 2 * widths[1:] + widths[:-1], widths[1:] + 2 * widths[:-1]
    return np.asarray((w0 + w1) / (w0 / secants[:-1] + w1 / secants[1:]))


def _tail(u: Vector, knot: float, score: float, secant: float, bend: float) -> float:
    """The slope beyond the last knot under which the mean excess is that of N(0, 1), kept near the last secant.

    Of k rows the largest is among those that it is fitted to, so that a new one is further out: k / (k + 1) of it.
    """
    beyond = u[u > knot] - knot
    slope = _fitting(_bent(torch.as_tensor(beyond), bend), score) if len(beyond) else math.inf
    slope *= len(beyond) / (len(beyond) + 1) if len(beyond) else 1.0
    return max(min(max(slope, secant / 10), secant * 3), GENTLEST)  # steeper would dent the last piece


def _fitting(excess: Tensor, score: float) -> float:
    """What excesses are multiplied by to have the mean of those of N(0, 1) beyond a score."""
    wanted = math.exp(-(score**2) / 2 - math.log(2 * math.pi) / 2 - float(log_ndtr(-score))) - score
    mean = float(excess.mean())
    return float(wanted) / mean if mean > 0 else math.inf


def _bend(u: Vector) -> float:
    """The bend of the upper tail of sorted u under which its outer rows are likeliest; 0 if they are few.

    >>> draws = np.sort(np.random.default_rng(2).standard_normal(5000))
    >>> _bend(draws), _bend(np.log1p(np.maximum(draws, 0.01)))
    (0.0, 1.0)
    """
    start = np.quantile(u, 1 - OUTER)
    outside, score = torch.as_tensor(u[u > start] - start), float(ndtri(1 - OUTER))
    if len(outside) < ENOUGH:
        return 0.0

    def likelihood(bend: float) -> float:
        excess = _bent(outside, bend)
        slope = _fitting(excess, score)
        x = score + slope * excess
        return float((math.log(slope) + bend * outside.clamp(max=BENT) - x**2 / 2).sum())

    return max(BENDS, key=likelihood)
