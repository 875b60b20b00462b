"""Layers of several networks that are trained as one program, with their gradients written out.

A small network's step is many small operations, and what each of them costs is mostly being called. So a layer's
gradient is one function here, which calls what it needs and no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout, silu

__all__ = ["Block", "Body", "Linear", "affine", "cached_rows"]

EPSILON = 1e-5  # of the variance, in a norm
CACHED = 2**17  # numbers of a layer that stay in a processor's cache while the next is made of them


class Linear(nn.Module):
    """One linear map per member: (members, n, inputs) → (members, n, outputs).

    Arguments:
        members: how many.
        inputs, outputs: sizes.
        generator: of the weights; without one they are zero.

    >>> Linear(3, 5, 2, None)(torch.ones(3, 4, 5), slice(None)).shape
    torch.Size([3, 4, 2])
    """

    def __init__(self, members: int, inputs: int, outputs: int, generator: torch.Generator | None):
        super().__init__()
        weight = torch.zeros(members, inputs, outputs)
        if generator is not None:
            weight = (2 * torch.rand(weight.shape, generator=generator) - 1) / math.sqrt(inputs)
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(torch.zeros(members, 1, outputs))

    def forward(self, h: Tensor, member: slice, outputs: slice = slice(None)) -> Tensor:
        weight, bias = self.weight[member, :, outputs], self.bias[member, :, outputs]
        if len(weight) == 1:  # a plain product is faster than a batched one
            return torch.addmm(bias[0], h[0], weight[0]).unsqueeze(0)
        return affine(h, weight, bias)

    def stretched(self, h: Tensor, scale: Tensor, start: Tensor, outputs: Tensor | None = None) -> Tensor:
        """start + scale · outputs, of all members: the weights are multiplied, which are fewer than the outputs.

        ``outputs`` names some of them; all when left out.
        """
        weight, bias = self._some(outputs)
        return affine(h, weight * scale, torch.addcmul(start, bias, scale))

    def stretched_columns(
        self, h: Tensor, scale: Tensor, start: Tensor, outputs: Tensor | None = None
    ) -> Tensor:
        """The same, (members, outputs, n)."""
        weight, bias = self._some(outputs)
        return cast("Tensor", _Columns.apply(h, weight * scale, torch.addcmul(start, bias, scale)))

    def _some(self, outputs: Tensor | None) -> tuple[Tensor, Tensor]:
        if outputs is None:
            return self.weight, self.bias
        return self.weight.index_select(-1, outputs), self.bias.index_select(-1, outputs)


def affine(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """h W + b for every member, as ``torch.baddbmm``.

    >>> affine(torch.ones(2, 1, 3), torch.ones(2, 3, 1), torch.ones(2, 1, 1)).flatten()
    tensor([4., 4.])
    """
    return cast("Tensor", _Affine.apply(h, weight, bias))


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(h, weight)
        return torch.baddbmm(bias, h, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        h, weight = ctx.saved_tensors
        of_h = _times_transposed(grad, weight) if ctx.needs_input_grad[0] else None
        return of_h, torch.bmm(h.mT, grad), grad.sum(1, keepdim=True)


class _Columns(torch.autograd.Function):
    """(h W + b)ᵀ for every member, (members, outputs, n), from factors that are not transposed."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(h, weight)
        return torch.baddbmm(bias.mT, weight.mT.contiguous(), h.mT.contiguous())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h, weight = ctx.saved_tensors
        grad = grad.contiguous()
        return torch.bmm(weight, grad).mT, torch.bmm(grad, h).mT, grad.sum(2).unsqueeze(1)


def _times_transposed(grad: Tensor, weight: Tensor) -> Tensor:
    """grad Wᵀ of a copy: some libraries for CPUs take up to twenty times as long for small transposed factors."""
    return torch.bmm(grad, weight.mT.contiguous())


class Block(nn.Module):
    """The weights of a residual block h + W₂ silu(W₁ norm(h)).

    >>> [p.shape for p in Block(2, 8, torch.Generator()).weights(slice(0, 1))]
    [torch.Size([1, 8, 8]), torch.Size([1, 1, 8]), torch.Size([1, 8, 8]), torch.Size([1, 1, 8])]
    """

    def __init__(self, members: int, width: int, generator: torch.Generator):
        super().__init__()
        self.inner = Linear(members, width, width, generator)
        self.outer = Linear(members, width, width, generator)

    def weights(self, member: slice) -> list[Tensor]:
        """W₁, b₁, W₂, b₂ of some members."""
        every = (self.inner.weight, self.inner.bias, self.outer.weight, self.outer.bias)
        return [p[member] for p in every]


class Body(nn.ModuleList):
    """Residual blocks with dropout in their middle, one after the other, and a last norm.

    A norm has no scale and no shift: a linear map follows wherever it is used.

    Arguments:
        members, width, blocks: sizes.
        dropout: share of the units.
        generator: of the weights.

    >>> Body(2, 8, 1, 0.0, torch.Generator())(torch.ones(2, 4, 8), slice(None)).shape
    torch.Size([2, 4, 8])
    """

    def __init__(self, members: int, width: int, blocks: int, dropout: float, generator: torch.Generator):
        super().__init__(Block(members, width, generator) for _ in range(blocks))
        self.dropout = dropout

    def forward(self, h: Tensor, member: slice) -> Tensor:
        """(members, n, width) → the same."""
        rate = self.dropout if self.training else 0.0
        keep = [dropout(torch.ones_like(h), rate) for _ in self] if rate else None
        weights = [w for block in self for w in cast("Block", block).weights(member)]
        if keep is None and not h.is_cuda and not torch.is_grad_enabled():
            return _in_parts(h, weights)
        return cast("Tensor", _Residual.apply(h, keep, *weights))


def _in_parts(h: Tensor, parameters: list[Tensor]) -> Tensor:
    """``_Residual`` without a gradient on a CPU, for some rows after the other.

    Layers of all rows do not fit into the cache, and the system clears the memory that each of them asks for.
    """
    out, rows = torch.empty_like(h), cached_rows(h.shape[-1])
    for part, place in zip(h.split(rows, 1), out.split(rows, 1), strict=True):
        for k in range(0, len(parameters), 4):
            part, _ = _block(part, parameters[k : k + 4], None)
        place.copy_(_norm(part)[0])
    return out


def cached_rows(width: int) -> int:
    """How many rows of a layer stay in a processor's cache.

    >>> cached_rows(128)
    1024
    """
    return max(CACHED // width, 1)


class _Residual(torch.autograd.Function):
    """All blocks and the last norm. ``keep`` has what the middle of each block is multiplied by, or is None."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, keep: list[Tensor] | None, *parameters: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for k in range(0, len(parameters), 4):
            h, own = _block(h, parameters[k : k + 4], None if keep is None else keep[k // 4])
            kept += own
        out, mean, scale = _norm(h)
        ctx.keep = keep
        ctx.save_for_backward(*parameters, *kept, h, mean, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *saved, h, mean, scale = ctx.saved_tensors
        blocks = len(saved) // 10
        parameters, kept = saved[: 4 * blocks], saved[4 * blocks :]
        grad = _norm_backward(grad.contiguous(), h, mean, scale)
        of_weights: list[Tensor] = []
        for k in reversed(range(blocks)):
            w1, _, w2, _ = parameters[4 * k : 4 * k + 4]
            h, mean, scale, normed, z, a = kept[6 * k : 6 * k + 6]
            of_a = _times_transposed(grad, w2)
            of_a = of_a if ctx.keep is None else of_a.mul_(ctx.keep[k])
            of_z = torch.ops.aten.silu_backward(of_a, z)
            of_w2, of_b2 = torch.bmm(a.mT, grad), grad.sum(1, keepdim=True)
            of_w1, of_b1 = torch.bmm(normed.mT, of_z), of_z.sum(1, keepdim=True)
            grad = _norm_backward(_times_transposed(of_z, w1), h, mean, scale).add_(grad)
            of_weights = [of_w1, of_b1, of_w2, of_b2, *of_weights]
        return grad, None, *of_weights


def _block(h: Tensor, parameters: Sequence[Tensor], keep: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """h + W₂ (keep · silu(W₁ norm(h))), and what the gradient needs."""
    w1, b1, w2, b2 = parameters
    normed, mean, scale = _norm(h)
    z = torch.baddbmm(b1, normed, w1)
    a = silu(z) if keep is None else silu(z) * keep
    return torch.baddbmm(h, a, w2).add_(b2), [h, mean, scale, normed, z, a]


def _norm(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h with mean 0 and variance 1, the mean, and what it was multiplied by."""
    return torch.native_layer_norm(h, h.shape[-1:], None, None, EPSILON)


def _norm_backward(grad: Tensor, h: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    ask = [True, False, False]
    gradients = torch.ops.aten.native_layer_norm_backward(grad, h, h.shape[-1:], mean, scale, None, None, ask)
    return cast("Tensor", gradients[0])
