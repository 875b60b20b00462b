"""What a sampler is: configuration, and one ``step`` of n chains at once.

A new sampler writes ``step(f, x, generator) -> (x, Info)``: propose y ~ q(·|x), then hand

    log_accept = f(y) − f(x) + log q(x|y) − log q(y|x)

to ``metropolis``. f is any callable from encoded rows (n, d) to (n,); x moves only in its own columns.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from ctem.energies import LogPotential, expect_values
from ctem.spaces import Space

__all__ = ["Info", "Sampler"]


class Info(NamedTuple):
    """What happened in a step.

    >>> Info(torch.ones(3)).acceptance.mean()
    tensor(1.)
    """

    acceptance: Tensor  # (n,) probability with which each chain's proposal was accepted


@runtime_checkable
class Sampler(Protocol):
    """Anything with a ``step``.

    >>> from ctem.samplers import Gibbs
    >>> from ctem.spaces import Category, Space
    >>> isinstance(Gibbs(Space([Category(2)])), Sampler)
    True
    """

    def step(self, f: LogPotential, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Info]:
        """One move of every chain: rows x (n, d) to rows (n, d)."""
        ...


def metropolis(x: Tensor, y: Tensor, log_accept: Tensor, generator: torch.Generator) -> tuple[Tensor, Info]:
    """Move each row of x to that of y with probability min(1, exp log_accept)."""
    if bool(log_accept.isnan().any()):
        raise FloatingPointError(
            f"log-acceptance is nan in {int(log_accept.isnan().sum())} of {len(x)} chains: "
            "the proposal left the numbers that f can handle; try a smaller step."
        )
    draw = torch.rand(log_accept.shape, generator=generator, dtype=log_accept.dtype, device=x.device)
    y = torch.where((draw.log() < log_accept).unsqueeze(-1), y, x)
    return y, Info(log_accept.clamp(max=0).exp())


def evaluated(f: LogPotential, x: Tensor) -> Tensor:
    """f(x) without a gradient, checked: shape (n,) and not nan; −inf is an empty place."""
    with torch.no_grad():
        return checked(f(x), x)


def current(f: LogPotential, x: Tensor) -> Tensor:
    """f(x) where the chains stand: finite, or there is no way to weigh a move."""
    return expect_finite(evaluated(f, x))


def checked(values: Tensor, x: Tensor) -> Tensor:
    expect_values(values, x)
    if bool(values.isnan().any()):
        row = int(values.isnan().long().argmax())
        raise FloatingPointError(f"f: expected numbers; got nan at row {row}: {x[row].tolist()}.")
    return values


def expect_finite(values: Tensor) -> Tensor:
    if not bool(values.isfinite().all()):
        row = int((~values.isfinite()).long().argmax())
        raise ValueError(
            f"x: expected rows where f is finite; f is {float(values[row])} in chain {row}: "
            "start where the density is positive."
        )
    return values


def expect_rows(x: Tensor, space: Space) -> None:
    if x.ndim != 2 or x.shape[1] != space.dim:
        raise ValueError(f"x: expected shape (n, {space.dim}); got {tuple(x.shape)}.")


def expect_positive(name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}: expected a finite number > 0; got {value}.")
    return float(value)
