"""log Z by adding everything up: finite spaces, and grids on one or two real columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ctem.energies import LogPotential
from ctem.partition.log_z import LogZ, finite
from ctem.samplers.sampler import evaluated
from ctem.spaces import MAX_STATES, Space

__all__ = ["log_z_enumerate", "log_z_grid"]


def log_z_enumerate(
    f: LogPotential,
    space: Space,
    batch_size: int = 65536,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> LogZ:
    """log Σ_x exp f(x) over all states of a finite space: exact.

    Arguments:
        f: the log-potential.
        space: a space of at most 2²² states.
        batch_size: states evaluated at once.
        dtype, device: of the rows that f is given.

    >>> from ctem.spaces import Category, Space
    >>> log_z_enumerate(lambda x: 0 * x[:, 0], Space([Category(4), Category(2)])).value == math.log(8)
    True
    """
    n = _finite_states(space.sizes, f"{space!r}")
    parts = []
    for index in torch.arange(n, device=device).split(batch_size):
        parts.append(evaluated(f, _unravelled(index, space.sizes, dtype)).double().logsumexp(0))
    return LogZ(finite(torch.stack(parts).logsumexp(0)), 0.0, math.inf, "enumerate")


def log_z_grid(
    f: LogPotential,
    space: Space,
    bounds: tuple[float, float] | Sequence[tuple[float, float]],
    points: int = 401,
    *,
    batch_size: int = 65536,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> LogZ:
    """log Σ_c ∫ exp f(x, c) dx: the trapezoidal rule on one or two real columns, for every discrete state c.

    stderr is the distance to the same rule on every second point. It knows nothing of mass outside bounds.

    Arguments:
        f: the log-potential.
        space: a space with one or two real columns.
        bounds: (low, high) in encoded units, for all real columns or one pair for each.
        points: points per real column, an odd number.
        batch_size: rows evaluated at once.
        dtype, device: of the rows that f is given.

    >>> from ctem.spaces import Real, Space
    >>> log_z = log_z_grid(lambda x: -(x[:, 0] ** 2) / 2, Space([Real()]), (-8.0, 8.0))
    >>> round(log_z.value, 6) == round(math.log(2 * math.pi) / 2, 6)
    True
    """
    if points < 5 or points % 2 == 0:
        raise ValueError(f"points: expected an odd number ≥ 5; got {points}.")
    axes = [torch.linspace(a, b, points, dtype=torch.float64) for a, b in _per_column(space, bounds)]
    sizes = [space.sizes[j] for j in space.discretes]
    n_states = _finite_states(sizes, "the discrete part")
    grid = torch.cartesian_prod(*axes).reshape(-1, len(axes)).to(device, dtype)
    rows = torch.empty(len(grid), space.dim, dtype=dtype, device=device)
    rows[:, list(space.reals)] = grid
    fine, coarse = [], []
    for state in _unravelled(torch.arange(n_states, device=device), sizes, dtype):
        rows[:, list(space.discretes)] = state
        values = torch.cat([evaluated(f, part).double() for part in rows.split(batch_size)]).cpu()
        values = values.view([points] * len(axes))
        every_second = values[(slice(None, None, 2),) * len(axes)]
        fine.append(_log_trapezoid(values, axes))
        coarse.append(_log_trapezoid(every_second, [axis[::2] for axis in axes]))
    value = finite(torch.stack(fine).logsumexp(0))
    return LogZ(value, abs(value - float(torch.stack(coarse).logsumexp(0))), math.inf, "grid")


def _log_trapezoid(values: Tensor, axes: Sequence[Tensor]) -> Tensor:
    for axis in reversed(axes):
        weight = torch.full_like(axis, float(axis[1] - axis[0]))
        weight[0] = weight[-1] = weight[0] / 2
        values = (values + weight.log()).logsumexp(-1)
    return values


def _unravelled(index: Tensor, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """States by number, the last column running fastest, shape (len(index), columns)."""
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    digits = [(index // s) % k for s, k in zip(strides, sizes, strict=True)]
    return torch.stack(digits, -1).to(dtype) if digits else index.new_empty(len(index), 0, dtype=dtype)


def _per_column(
    space: Space, bounds: tuple[float, float] | Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    if len(space.reals) not in (1, 2):
        raise ValueError(f"space: expected 1 or 2 real columns for a grid; {space!r} has {len(space.reals)}.")
    pairs: list[Any] = [bounds] * len(space.reals) if isinstance(bounds[0], int | float) else list(bounds)
    if len(pairs) != len(space.reals):
        raise ValueError(f"bounds: expected {len(space.reals)} pairs, one per real column; got {bounds}.")
    for pair in pairs:
        if len(pair) != 2 or not -math.inf < pair[0] < pair[1] < math.inf:
            raise ValueError(f"bounds: expected low < high, both finite; got {pair}.")
    return [(float(low), float(high)) for low, high in pairs]


def _finite_states(sizes: Sequence[int], what: str) -> int:
    n = 0 if 0 in sizes else math.prod(sizes)
    if not 0 < n <= MAX_STATES:
        count = f"{n:g}" if n else "real columns"
        raise ValueError(f"space: expected at most {MAX_STATES} states; {what} has {count}.")
    return n
