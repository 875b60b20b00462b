"""What a row is: real columns, angles, categorical and ordinal columns, and their product.

An encoded row ``x`` is one float tensor of shape ``(n, d)``: standardised values in real columns, radians in angles,
codes ``0 … k−1`` in discrete ones. So continuous, discrete and mixed data are one class, and a log-potential is
any callable from such a tensor to ``(n,)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.functional import one_hot

__all__ = ["Angle", "Category", "Column", "Ordinal", "Real", "Space", "as_rows"]

MAX_STATES = 2**22  # the largest finite space that is written out state by state


@dataclass(frozen=True)
class Real:
    """A real column, encoded as x = (X − location) / scale.

    It may have ends, in the user's units, beyond which there is no mass. A ``Space`` checks them, and its kernels and
    samplers stay within. For a ``Schema``, which learns the units, None leaves it to the values to suggest one, and
    ±infinity means that there is none.

    >>> Real(location=10.0, scale=2.0)
    Real(location=10.0, scale=2.0)
    >>> Real(low=0.0)
    Real(low=0.0)
    """

    location: float = 0.0
    scale: float = 1.0
    low: float | None = None
    high: float | None = None

    def __repr__(self) -> str:
        ends = {"low": self.low, "high": self.high}
        texts = [f"{name}={end}" for name, end in ends.items() if end is not None]
        units = [f"location={self.location}", f"scale={self.scale}"]
        displayed = units if not texts or (self.location, self.scale) != (0.0, 1.0) else []
        return f"Real({', '.join([*displayed, *texts])})"

    def __post_init__(self) -> None:
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        if not low < high:
            raise ValueError(f"Real needs low < high; got {self.low}, {self.high}.")
        if not (math.isfinite(self.location) and math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(
                f"Real needs a finite location and scale > 0; got {self.location}, {self.scale}."
            )


class Angle(Real):
    """A point on a circle, given in any unit and encoded in radians, 0 ≤ x < 2π; two of them make a torus.

    Networks see its sine and cosine, kernels go around, and the density is per unit of the user's angle.

    Arguments:
        period: a full turn in the user's units, such as 360 for degrees or 24 for the hours of a day.

    >>> from ctem.spaces import Space
    >>> Space([Angle(period=360)]).encode([[90.0], [450.0]])
    tensor([[1.5708],
            [1.5708]])
    """

    def __init__(self, period: float = 2 * math.pi):
        if not (math.isfinite(period) and period > 0):
            raise ValueError(f"period: expected a finite number > 0; got {period}.")
        super().__init__(0.0, float(period) / (2 * math.pi))

    @property
    def period(self) -> float:
        """A full turn in the user's units."""
        return self.scale * 2 * math.pi

    def __repr__(self) -> str:
        return f"Angle(period={self.period:g})"


@dataclass(frozen=True)
class Category:
    """A column of ``size`` unordered values, encoded as codes 0 … size−1.

    Without a size it is a wish for a ``Schema``, which takes the values from the data; a ``Space`` needs the size.

    >>> Category(3).size
    3
    >>> Category()
    Category(size=0)
    """

    size: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.size, int | np.integer) or self.size < 0 or self.size == 1:
            raise ValueError(f"{type(self).__name__} needs a whole number of values ≥ 2; got {self.size!r}.")


@dataclass(frozen=True)
class Ordinal(Category):
    """A column of ``size`` ordered values, encoded as codes 0 … size−1.

    >>> Ordinal(91)
    Ordinal(size=91)
    """


Column = Real | Category


def encoded_ends(column: Column) -> tuple[float, float]:
    """The least and the greatest encoded value of a column.

    >>> encoded_ends(Real(location=1.0, scale=2.0, low=0.0)), encoded_ends(Category(3))
    ((-0.5, inf), (0.0, 2.0))
    """
    if isinstance(column, Angle):
        return 0.0, 2 * math.pi
    if isinstance(column, Category):
        return 0.0, column.size - 1.0
    low = -math.inf if column.low is None else (column.low - column.location) / column.scale
    high = math.inf if column.high is None else (column.high - column.location) / column.scale
    return low, high


class Space:
    """A product of columns, with the product of Lebesgue and counting measure as reference.

    Arguments:
        columns: the columns in order, as a sequence (named ``x0, x1, …``) or a mapping from names.
        shape: of a row as a network of one's own sees it, such as (channels, height, width); kernels and samplers see
            all its cells side by side, (d,), which is the default.

    >>> space = Space({"age": Real(), "city": Category(3)})
    >>> x = space.encode([[0.5, 2], [1.5, 0]])
    >>> space.features(x)
    tensor([[0.5000, 0.0000, 0.0000, 1.0000],
            [1.5000, 1.0000, 0.0000, 0.0000]])
    >>> Space([Category(2), Ordinal(3)]).states().shape
    torch.Size([6, 2])
    """

    def __init__(self, columns: Sequence[Column] | Mapping[str, Column], shape: Sequence[int] | None = None):
        named = dict(columns) if isinstance(columns, Mapping) else {f"x{j}": c for j, c in enumerate(columns)}
        if not named:
            raise ValueError("Space needs at least one column; got none.")
        for name, column in named.items():
            if not isinstance(column, Real | Category):
                raise TypeError(f"column {name!r}: expected Real, Category or Ordinal; got {column!r}.")
            if isinstance(column, Category) and not column.size:
                raise ValueError(
                    f"column {name!r}: {type(column).__name__}() without a size takes its values from a table; "
                    f"a Space needs the size, as in {type(column).__name__}(3)."
                )
        self.names: tuple[str, ...] = tuple(named)
        self.columns: tuple[Column, ...] = tuple(named.values())
        self.sizes: tuple[int, ...] = tuple(0 if isinstance(c, Real) else c.size for c in self.columns)
        self.reals: tuple[int, ...] = tuple(j for j, k in enumerate(self.sizes) if k == 0)
        self.discretes: tuple[int, ...] = tuple(j for j, k in enumerate(self.sizes) if k > 0)
        self.ordinals: tuple[int, ...] = tuple(
            j for j, c in enumerate(self.columns) if isinstance(c, Ordinal)
        )
        self.angles: tuple[int, ...] = tuple(j for j, c in enumerate(self.columns) if isinstance(c, Angle))
        self.bounds: tuple[tuple[float, float], ...] = tuple(map(encoded_ends, self.columns))
        self.bounded: tuple[int, ...] = tuple(
            j for j in self.reals if j not in self.angles and self.bounds[j] != (-math.inf, math.inf)
        )
        self.shape: tuple[int, ...] = (self.dim,) if shape is None else tuple(map(int, shape))
        if math.prod(self.shape) != self.dim:
            raise ValueError(f"shape: expected {self.dim} cells, one per column; got {self.shape}.")

    @classmethod
    def sequence(cls, tokens: int, length: int) -> Space:
        """Sequences of a given length over an alphabet: rows (n, length) of codes 0 … tokens−1.

        >>> Space.sequence(tokens=12, length=6).n_states == 12**6
        True
        """
        return cls([Category(tokens)] * length)

    @classmethod
    def image(cls, channels: int, height: int, width: int, levels: int = 0) -> Space:
        """Images (n, channels, height, width): real intensities, or codes 0 … levels−1 (bits for levels=2).

        >>> Space.image(1, 8, 8, levels=2).shape
        (1, 8, 8)
        """
        cell = Real() if levels == 0 else Category(2) if levels == 2 else Ordinal(levels)
        return cls([cell] * (channels * height * width), (channels, height, width))

    def __repr__(self) -> str:
        if self.dim > 8 and len(set(self.columns)) == 1 and self.names[-1] == f"x{self.dim - 1}":
            inside = f"[{self.columns[0]!r}] * {self.dim}"
        else:
            named = ", ".join(f"{n!r}: {c!r}" for n, c in zip(self.names, self.columns, strict=True))
            inside = f"{{{named}}}"
        return f"Space({inside})" if self.shape == (self.dim,) else f"Space({inside}, shape={self.shape})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        return self.names, self.columns, self.shape

    @property
    def dim(self) -> int:
        """Number of columns d."""
        return len(self.columns)

    @property
    def n_states(self) -> float:
        """Number of states, infinite with a real column.

        >>> Space([Category(2), Category(5)]).n_states
        10
        """
        return math.inf if self.reals else math.prod(self.sizes)

    @property
    def log_det(self) -> float:
        """log |dx/dX|: add it to log ρ(x) to get the log-density in the user's units.

        >>> round(Space([Real(scale=10.0)]).log_det, 4)
        -2.3026
        """
        return -sum(math.log(c.scale) for c in self.columns if isinstance(c, Real))

    def standardised(self, X: ArrayLike, missing: bool = False) -> Space:
        """This space with each real column's location and scale taken from the rows X (ddof = 1).

        With ``missing``, nan cells are passed over.

        >>> Space([Real()]).standardised([[1.0], [3.0]]).columns[0].location
        2.0
        """
        values = self._checked(X, missing)
        if len(values) < 2:
            raise ValueError("X: standardising needs at least 2 rows; got 1.")
        columns = dict(zip(self.names, self.columns, strict=True))
        for j in (j for j in self.reals if j not in self.angles):
            name, known = self.names[j], values[:, j][~np.isnan(values[:, j])]
            if len(known) < 2:
                raise ValueError(f"column {name!r}: expected at least 2 observed values; got {len(known)}.")
            spread = float(known.std(ddof=1))
            if spread == 0:
                raise ValueError(f"column {name!r} is constant ({known[0]:g}): it has no density; drop it.")
            kind = self.columns[j]
            ends = (kind.low, kind.high) if isinstance(kind, Real) else ()
            columns[name] = Real(float(known.mean()), spread, *ends)
        return Space(columns, self.shape)

    def encode(
        self,
        X: ArrayLike,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        missing: bool = False,
    ) -> Tensor:
        """Rows in the user's units and codes to an encoded tensor x; every value is checked here, once.

        With ``missing``, a nan cell is missing and stays nan: for ``ColumnComparisons``, ``LevelComparisons`` and
        ``Chain``.
        """
        values = (self._checked(X, missing) - self._locations()) / self._scales()
        for j in self.angles:
            values[:, j] %= 2 * math.pi
        return torch.as_tensor(values, dtype=dtype, device=device)

    def decode(self, x: Tensor) -> NDArray[np.float64]:
        """Encoded rows (n, d) back to the user's units, (n, *shape); decode∘encode is the identity.

        >>> space = Space([Real(location=5.0, scale=2.0), Category(4)])
        >>> space.decode(space.encode([[7.0, 3.0]]))
        array([[7., 3.]])
        """
        values = x.detach().cpu().double().numpy().copy()
        for j in self.angles:
            values[..., j] %= 2 * math.pi
        values = values * self._scales() + self._locations()
        return np.asarray(values.reshape(*values.shape[:-1], *self.shape))

    def folded(self, x: Tensor) -> Tensor:
        """Moved rows back into the space: reflected at the ends of a column, taken around the circle for an angle.

        A step that is as likely to one side as to the other stays symmetric: each point and its mirror images are as
        near to x as x and its mirror images are to the point.

        >>> Space([Real(low=0.0, high=1.0), Real(low=0.0)]).folded(torch.tensor([[1.2, -0.5]]))
        tensor([[0.8000, 0.5000]])
        """
        if not (self.bounded or self.angles):
            return x
        columns = list(x.unbind(-1))
        for j in self.angles:
            columns[j] = columns[j] % (2 * math.pi)
        for j in self.bounded:
            columns[j] = _reflected(columns[j], *self.bounds[j])
        return torch.stack(columns, -1)

    def inside(self, x: Tensor) -> Tensor:
        """Whether each row lies within the ends of its columns, shape (…,).

        >>> Space([Real(low=0.0)]).inside(torch.tensor([[0.5], [-0.5]]))
        tensor([ True, False])
        """
        fine = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
        for j in self.bounded:
            low, high = self.bounds[j]
            fine = fine & (x[..., j] >= low) & (x[..., j] <= high)
        return fine

    def features(self, x: Tensor) -> Tensor:
        """Network inputs: reals as they are, sine and cosine of angles, categories one-hot, ordinals of variance 1."""
        return torch.cat([self.embed(j, x[..., j]) for j in range(self.dim)], dim=-1)

    def embed(self, j: int, value: Tensor) -> Tensor:
        """The features of column j at the given values: one more axis, last.

        >>> Space([Category(3)]).embed(0, torch.tensor([2.0]))
        tensor([[0., 0., 1.]])
        """
        column, k = self.columns[j], self.sizes[j]
        if isinstance(column, Ordinal):
            return ((value - (k - 1) / 2) / math.sqrt((k * k - 1) / 12)).unsqueeze(-1)
        if isinstance(column, Category):
            return one_hot(value.long(), k).to(value.dtype)
        if isinstance(column, Angle):
            return torch.stack([value.sin(), value.cos()], -1)
        return value.unsqueeze(-1)

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of features of each column.

        >>> Space([Real(), Category(3), Ordinal(5)]).widths
        (1, 3, 1)
        """
        return tuple(
            2 if isinstance(c, Angle) else 1 if isinstance(c, Real | Ordinal) else k
            for c, k in zip(self.columns, self.sizes, strict=True)
        )

    def states(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """All states of a finite space, shape (n_states, d), the last column running fastest."""
        if self.n_states > MAX_STATES:
            raise ValueError(
                f"states: expected at most {MAX_STATES} states; this space has {self.n_states:g}."
            )
        axes = [torch.arange(k, dtype=dtype, device=device) for k in self.sizes]
        return torch.cartesian_prod(*axes).reshape(-1, self.dim)

    def index(self, x: Tensor) -> Tensor:
        """The row number in ``states()`` of each encoded row.

        >>> space = Space([Category(2), Category(3)])
        >>> bool((space.index(space.states()) == torch.arange(6)).all())
        True
        """
        if self.n_states > MAX_STATES:
            raise ValueError(
                f"index: expected at most {MAX_STATES} states; this space has {self.n_states:g}."
            )
        strides = [math.prod(self.sizes[j + 1 :]) for j in range(self.dim)]
        return (x.long() * torch.tensor(strides, device=x.device)).sum(-1)

    def _checked(self, X: ArrayLike, missing: bool = False) -> NDArray[np.float64]:
        if isinstance(X, Tensor) and X.dtype in (torch.float16, torch.bfloat16):
            raise TypeError(
                f"X: expected float32 or float64; got {X.dtype}, too coarse for codes and densities."
            )
        raw = X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X)
        if raw.shape[1:] == self.shape:
            raw = raw.reshape(len(raw), self.dim)
        if raw.dtype == np.float16:
            raise TypeError(
                "X: expected float32 or float64; got float16, too coarse for codes and densities."
            )
        if raw.ndim != 2 or raw.shape[1] != self.dim:
            shape = ", ".join(map(str, ("n", *self.shape)))
            raise ValueError(f"X: expected shape ({shape}); got {raw.shape}.")
        if len(raw) == 0:
            raise ValueError("X: expected at least 1 row; got an empty array.")
        try:
            values = raw.astype(np.float64)
        except ValueError as error:
            raise TypeError(f"X: expected numbers (codes for discrete columns); {error}.") from None
        for j, name in enumerate(self.names):
            self._check_column(name, values[:, j], self.sizes[j], missing)
            self._check_ends(name, values[:, j], self.columns[j])
        return values

    @staticmethod
    def _check_ends(name: str, value: NDArray[np.float64], column: Column) -> None:
        if not isinstance(column, Real):
            return
        low = -math.inf if column.low is None else column.low
        high = math.inf if column.high is None else column.high
        beyond = (value < low) | (value > high)
        if beyond.any():
            row = int(np.argmax(beyond))
            raise ValueError(
                f"column {name!r}, row {row}: expected a number in {low:g} … {high:g}; got {value[row]:g}."
            )

    @staticmethod
    def _check_column(name: str, value: NDArray[np.float64], size: int, missing: bool) -> None:
        gap = np.isnan(value) & missing
        finite = np.isfinite(value) | gap
        if not finite.all():
            row = int(np.argmin(finite))
            raise ValueError(f"column {name!r}, row {row}: expected a finite number; got {value[row]}.")
        if size:
            known = gap | ((value == np.floor(value)) & (value >= 0) & (value < size))
            if not known.all():
                row = int(np.argmin(known))
                raise ValueError(
                    f"column {name!r}, row {row}: expected a code in 0 … {size - 1}; got {value[row]:g}."
                )

    def _locations(self) -> NDArray[np.float64]:
        return np.array([c.location if isinstance(c, Real) else 0.0 for c in self.columns])

    def _scales(self) -> NDArray[np.float64]:
        return np.array([c.scale if isinstance(c, Real) else 1.0 for c in self.columns])


def as_rows(x: ArrayLike) -> Tensor:
    """Encoded rows as a tensor: one stays as it is, numbers of NumPy or lists become torch's default type.

    >>> as_rows(np.zeros((3, 2))).dtype
    torch.float32
    """
    return x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x), dtype=torch.get_default_dtype())


def _reflected(x: Tensor, low: float, high: float) -> Tensor:
    """x with what lies beyond an end turned back at it, as often as needed."""
    if math.isinf(high):
        return low + (x - low).abs()
    if math.isinf(low):
        return high - (high - x).abs()
    length = high - low
    beyond = (x - low) % (2 * length)
    return low + torch.minimum(beyond, 2 * length - beyond)
