"""What a row is: real, categorical and ordinal columns, and their product.

An encoded row ``x`` is one float tensor of shape ``(n, d)``: standardised values in real columns, codes
``0 … k−1`` in discrete ones. So continuous, discrete and mixed data are one class, and a log-potential is
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

__all__ = ["Category", "Column", "Ordinal", "Real", "Space"]

MAX_STATES = 2**22  # the largest finite space that is written out state by state


@dataclass(frozen=True)
class Real:
    """A real column, encoded as x = (X − location) / scale.

    As a wish for a ``Schema``, which learns the units, it may have ends, beyond which there is no mass. None leaves it
    to the values to suggest one; ±infinity says that there is none.

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
        said = {"low": self.low, "high": self.high}
        ends = [f"{name}={end}" for name, end in said.items() if end is not None]
        units = [f"location={self.location}", f"scale={self.scale}"]
        own = units if not ends or (self.location, self.scale) != (0.0, 1.0) else []
        return f"Real({', '.join([*own, *ends])})"

    def __post_init__(self) -> None:
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        if not low < high:
            raise ValueError(f"Real needs low < high; got {self.low}, {self.high}.")
        if not (math.isfinite(self.location) and math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(
                f"Real needs a finite location and scale > 0; got {self.location}, {self.scale}."
            )


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


class Space:
    """A product of columns, with the product of Lebesgue and counting measure as reference.

    Arguments:
        columns: the columns in order, as a sequence (named ``x0, x1, …``) or a mapping from names.

    >>> space = Space({"age": Real(), "city": Category(3)})
    >>> x = space.encode([[0.5, 2], [1.5, 0]])
    >>> space.features(x)
    tensor([[0.5000, 0.0000, 0.0000, 1.0000],
            [1.5000, 1.0000, 0.0000, 0.0000]])
    >>> Space([Category(2), Ordinal(3)]).states().shape
    torch.Size([6, 2])
    """

    def __init__(self, columns: Sequence[Column] | Mapping[str, Column]):
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

    def __repr__(self) -> str:
        inside = ", ".join(f"{n!r}: {c!r}" for n, c in zip(self.names, self.columns, strict=True))
        return f"Space({{{inside}}})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and (self.names, self.columns) == (other.names, other.columns)

    def __hash__(self) -> int:
        return hash((self.names, self.columns))

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
        for j in self.reals:
            name, known = self.names[j], values[:, j][~np.isnan(values[:, j])]
            if len(known) < 2:
                raise ValueError(f"column {name!r}: expected at least 2 observed values; got {len(known)}.")
            spread = float(known.std(ddof=1))
            if spread == 0:
                raise ValueError(f"column {name!r} is constant ({known[0]:g}): it has no density; drop it.")
            columns[name] = Real(float(known.mean()), spread)
        return Space(columns)

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
        return torch.as_tensor(values, dtype=dtype, device=device)

    def decode(self, x: Tensor) -> NDArray[np.float64]:
        """Encoded rows back to the user's units; decode∘encode is the identity.

        >>> space = Space([Real(location=5.0, scale=2.0), Category(4)])
        >>> space.decode(space.encode([[7.0, 3.0]]))
        array([[7., 3.]])
        """
        return np.asarray(x.detach().cpu().double().numpy() * self._scales() + self._locations())

    def features(self, x: Tensor) -> Tensor:
        """Network inputs: reals as they are, categories one-hot, ordinals scaled to mean 0 and variance 1."""
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
        return value.unsqueeze(-1)

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of features of each column.

        >>> Space([Real(), Category(3), Ordinal(5)]).widths
        (1, 3, 1)
        """
        return tuple(
            1 if isinstance(c, Real | Ordinal) else k for c, k in zip(self.columns, self.sizes, strict=True)
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
        raw = np.asarray(X)
        if raw.dtype == np.float16:
            raise TypeError(
                "X: expected float32 or float64; got float16, too coarse for codes and densities."
            )
        if raw.ndim != 2 or raw.shape[1] != self.dim:
            raise ValueError(f"X: expected shape (n, {self.dim}); got {raw.shape}.")
        if len(raw) == 0:
            raise ValueError("X: expected at least 1 row; got an empty array.")
        try:
            values = raw.astype(np.float64)
        except ValueError as error:
            raise TypeError(f"X: expected numbers (codes for discrete columns); {error}.") from None
        for j, name in enumerate(self.names):
            self._check_column(name, values[:, j], self.sizes[j], missing)
        return values

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
