"""Conditionals of discrete columns: one probability for every value, ρ(v) ∝ b(v) e^{c_v} with c = 0 for the first."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ctem.bases import ProductBase

__all__ = ["LabelHead"]

STEEPEST = 60.0  # log-odds against the first value, so that float32 can sum their exponentials


class LabelHead(nn.Module):
    """The values of all discrete columns side by side, each but the first of its column.

    Without coefficients (all zero) it is the base.

    Arguments:
        base: the base b.

    >>> from ctem.spaces import Category, Real, Space
    >>> head = LabelHead(ProductBase(Space([Category(2), Real(), Category(3)])))
    >>> head.owner.tolist(), head.code.tolist()
    ([0, 2, 2], [1, 1, 2])
    >>> head.column(torch.zeros(1, 2), 2).exp()
    tensor([[0.3333, 0.3333, 0.3333]])
    """

    owner: Tensor
    code: Tensor
    start: Tensor
    gain: Tensor
    member: Tensor
    is_real: Tensor

    def __init__(self, base: ProductBase):
        super().__init__()
        counts = torch.tensor([max(k - 1, 0) for k in base.space.sizes])
        start = counts.cumsum(0) - counts
        owner = torch.arange(len(counts)).repeat_interleave(counts)
        code = torch.arange(len(owner)) - start[owner] + 1
        rows, table = base.rows.cpu()[owner], base.log_table.cpu()
        gain = table[rows, code] - table[rows, 0]
        self.slices = [slice(int(a), int(a + c)) for a, c in zip(start, counts, strict=True)]
        member = (owner.unsqueeze(1) == torch.arange(len(counts))).to(base.log_table.dtype)
        found = {"owner": owner, "code": code, "start": start, "gain": gain, "member": member}
        found["is_real"] = base.is_real
        for name, value in found.items():
            self.register_buffer(name, value.to(base.log_table.device), persistent=False)

    def log_prob(self, x: Tensor, coefficients: Tensor) -> Tensor:
        """log ρ(x_j) of every column of rows x (…, d) from coefficients (…, values); 0 for a real one."""
        if not len(self.owner):
            return torch.zeros_like(x)
        score = (coefficients + self.gain).clamp(max=STEEPEST)
        at = (self.start + x.long() - 1).clamp(0, len(self.owner) - 1)
        own = torch.where(x > 0, score.gather(-1, at), 0.0)
        return torch.where(self.is_real, 0.0, own - self._log_total(score))

    def column(self, coefficients: Tensor, j: int) -> Tensor:
        """log ρ(v) of every value of column j (…, k) from the coefficients of that column (…, k − 1)."""
        score = (coefficients + self.gain[self.slices[j]]).clamp(max=STEEPEST)
        return torch.cat([torch.zeros_like(score[..., :1]), score], -1).log_softmax(-1)

    def _log_total(self, score: Tensor) -> Tensor:
        """log Σ_v e^{score_v} of every column, its first value having 0: (…, d)."""
        return cast("Tensor", _LogTotal.apply(score, self.member, self.owner))


class _LogTotal(torch.autograd.Function):
    """log(1 + Σ e^score) over the values of every column: one product sums all columns. Its gradient is a softmax."""

    @staticmethod
    def forward(ctx: Any, score: Tensor, member: Tensor, owner: Tensor) -> Tensor:
        total = torch.log1p(score.exp() @ member)
        ctx.save_for_backward(score, total, owner)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        score, total, owner = ctx.saved_tensors
        share = (score - total.index_select(-1, owner)).exp_()
        return share.mul_(grad.index_select(-1, owner)), None, None
