"""Kernels that move real columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ctem.bases import expect_whole_line
from ctem.matching.kernels.kernel import Comparison, Kernel, chosen_columns, expect_columns
from ctem.spaces import Space, as_rows

__all__ = [
    "Gaussian",
    "OrnsteinUhlenbeck",
    "Sphere",
    "mean_std",
]


def mean_std(x: ArrayLike, space: Space | None = None) -> float:
    """σ̄, the mean over real columns of the standard deviation (ddof = 1): the paper sets ε = c·σ̄.

    Codes of labels have no such deviation and are left out; that of an angle is √(−2 log R), with R the length of the
    mean of (cos x, sin x), and at most that of a uniform angle.

    Arguments:
        x: encoded rows (n, d).
        space: knows which columns are real. Without it all are taken for real, and one of whole numbers is refused.

    >>> from ctem.spaces import Category, Real
    >>> mean_std([[0.0, 0.5, 1], [2.0, 4.5, 9]], Space([Real(), Real(), Category(10)]))
    2.1213202476501465
    """
    x = as_rows(x)
    if space is None:
        whole = (x == x.round()).all(0)
        if bool(whole.any()):
            raise ValueError(
                f"x: column {int(whole.long().argmax())} holds whole numbers, which may be codes of labels; "
                "give the space, which knows the real columns: mean_std(x, space)."
            )
        return float(x.std(dim=0).mean())
    if not space.reals:
        raise ValueError(f"space: expected real columns; {space!r} has none.")
    expect_columns(x, space)
    deviation = x.std(dim=0)
    for j in space.angles:
        length = torch.hypot(x[:, j].cos().mean(), x[:, j].sin().mean())
        deviation[j] = (-2 * length.log()).sqrt().clamp(max=math.pi / math.sqrt(3))
    return float(deviation[list(space.reals)].mean())


class Gaussian(Kernel):
    """A Gaussian step: y = x − 2ε ξ with ξ ~ N(0, I) on the real columns.

    A step over the end of a column is reflected there, an angle goes around (:meth:`~ctem.spaces.Space.folded`): both
    leave the kernel symmetric.

    Arguments:
        space: the space.
        scale: ε; the paper takes c·σ̄, see :func:`mean_std`.
        columns: the real columns to move; all of them by default.
        antithetic: comparisons come in pairs ξ, −ξ; of an odd number one is without its other.

    >>> from ctem.spaces import Real
    >>> space = Space([Real(), Real()])
    >>> y, _ = Gaussian(space, 0.1).compare(torch.zeros(3, 2), torch.Generator().manual_seed(0), m=4)
    >>> bool((y[:2] + y[2:] == 0).all())
    True
    """

    def __init__(
        self,
        space: Space,
        scale: float,
        columns: Sequence[int | str] | None = None,
        antithetic: bool = True,
    ):
        super().__init__(space, chosen_columns(space, columns, space.reals, "real"), "real")
        self.scale = _positive("scale", scale)
        self.antithetic = antithetic

    @property
    def radius(self) -> float:
        """Root mean square length of a step."""
        return 2 * self.scale * math.sqrt(len(self.columns))

    def directions(self, shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
        """ξ of the given shape."""
        return torch.randn(*shape, generator=generator, dtype=like.dtype, device=like.device)

    def move(self, x: Tensor, generator: torch.Generator) -> Comparison:
        m, n, _ = x.shape
        drawn = (m + 1) // 2 if self.antithetic else m
        u = self.directions((drawn, n, len(self.columns)), x, generator)
        u = torch.cat([u, -u])[:m] if self.antithetic else u
        y = x.clone()
        y[..., self.columns] -= 2 * self.scale * u
        return Comparison(self.space.folded(y), x.new_zeros(m, n))


class Sphere(Gaussian):
    """A step on a sphere: y = x − 2ε u with u uniform on the unit sphere of the real columns.

    >>> from ctem.spaces import Real
    >>> space = Space([Real(), Real()])
    >>> y, _ = Sphere(space, 0.5).compare(torch.zeros(3, 2), torch.Generator().manual_seed(0))
    >>> y.norm(dim=-1)
    tensor([[1.0000, 1.0000, 1.0000]])
    """

    @property
    def radius(self) -> float:
        """Length of a step."""
        return 2 * self.scale

    def directions(self, shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
        """u of the given shape."""
        return torch.nn.functional.normalize(super().directions(shape, like, generator), dim=-1)


class OrnsteinUhlenbeck(Kernel):
    """y = √(1−β²) x + β ξ on the real columns: reversible with respect to N(0, I), so standardise first.

    Where every column moves, nothing waits for the device, so that training steps can be captured.

    Arguments:
        space: the space.
        rate: β in (0, 1]; 1 draws y from the base.
        columns: the real columns to move; all of them by default.
        antithetic: comparisons come in pairs ξ, −ξ; of an odd number one is without its other.

    >>> from ctem.spaces import Real
    >>> kernel = OrnsteinUhlenbeck(Space([Real()]), rate=1.0)
    >>> y, log_ratio = kernel.compare(torch.tensor([[2.0]]), torch.Generator().manual_seed(0))
    >>> bool(torch.isclose(log_ratio, (4 - y[..., 0] ** 2) / 2))
    True
    """

    def __init__(
        self,
        space: Space,
        rate: float,
        columns: Sequence[int | str] | None = None,
        antithetic: bool = True,
    ):
        super().__init__(space, chosen_columns(space, columns, space.reals, "real"), "real")
        if not 0 < rate <= 1:
            raise ValueError(f"rate: expected β in (0, 1]; got {rate}.")
        expect_whole_line(type(self).__name__, space, self.columns)
        self.rate = float(rate)
        self.antithetic = antithetic

    @property
    def radius(self) -> float:
        """Root mean square length of a step from the origin."""
        return self.rate * math.sqrt(len(self.columns))

    def move(self, x: Tensor, generator: torch.Generator) -> Comparison:
        m, *rest = x.shape
        drawn = (m + 1) // 2 if self.antithetic else m
        noise = torch.randn(drawn, *rest, generator=generator, dtype=x.dtype, device=x.device)
        noise = torch.cat([noise, -noise])[:m] if self.antithetic else noise
        y = math.sqrt(1 - self.rate**2) * x + self.rate * noise
        if len(self.columns) < self.space.dim:
            moved = [j in self.columns for j in range(self.space.dim)]
            y = torch.where(torch.tensor(moved, device=x.device), y, x)
        return Comparison(y, (x**2 - y**2).sum(-1) / 2)


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}: expected a finite number > 0; got {value}.")
    return float(value)
