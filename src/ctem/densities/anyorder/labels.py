"""Conditionals of discrete columns: one probability for every value, ρ(v) ∝ b(v) e^{c_v} with c = 0 for the first."""

from __future__ import annotations

from collections.abc import Sequence
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
        heard: which columns have values here; all of them when left out.

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
    member: Tensor | None  # which column a value is of, (values, d); None if every column has two
    is_real: Tensor

    def __init__(self, base: ProductBase, heard: Sequence[bool] | None = None):
        super().__init__()
        asked = [True] * base.space.dim if heard is None else heard
        counts = torch.tensor([max(k - 1, 0) * here for k, here in zip(base.space.sizes, asked, strict=True)])
        start = counts.cumsum(0) - counts
        owner = torch.arange(len(counts)).repeat_interleave(counts)
        code = torch.arange(len(owner)) - start[owner] + 1
        rows, table = base.rows.cpu()[owner], base.log_table.cpu()
        gain = table[rows, code] - table[rows, 0]
        self.slices = [slice(int(a), int(a + c)) for a, c in zip(start, counts, strict=True)]
        bits = bool((counts == 1).all())
        member = (owner.unsqueeze(1) == torch.arange(len(counts))).to(base.log_table.dtype)
        buffers = {
            "owner": owner,
            "code": code,
            "start": start,
            "gain": gain,
            "member": None if bits else member,
        }
        buffers["is_real"] = base.is_real | ~torch.tensor(asked, device=base.is_real.device)
        for name, value in buffers.items():
            placed = None if value is None else value.to(base.log_table.device)
            self.register_buffer(name, placed, persistent=False)

    def log_prob(self, x: Tensor, coefficients: Tensor) -> Tensor:
        """log ρ(x_j) of every column of rows x (…, d) from coefficients (…, values); 0 for a real one."""
        return self.log_prob_of_scores(x, coefficients + self.gain)

    def log_prob_of_scores(self, x: Tensor, score: Tensor) -> Tensor:
        """The same from log-odds against the first value, which are not needed afterwards."""
        if not len(self.owner):
            return torch.zeros_like(x)
        later = (x >= 1) & ~self.is_real  # than the first value
        at = torch.where(later, self.start + x.long() - 1, 0)
        return cast("Tensor", _LogProb.apply(score, at, later, self.member, self.owner))

    def column(self, coefficients: Tensor, j: int) -> Tensor:
        """log ρ(v) of every value of column j (…, k) from the coefficients of that column (…, k − 1)."""
        score = (coefficients + self.gain[self.slices[j]]).clamp(max=STEEPEST)
        return torch.cat([torch.zeros_like(score[..., :1]), score], -1).log_softmax(-1)


class _LogProb(torch.autograd.Function):
    """score[at] or 0, less log(1 + Σ e^score), the sum over the values of every column: one product sums all columns.

    Scores above ``STEEPEST`` count as that. The gradient has a softmax for every column.
    """

    @staticmethod
    def forward(
        ctx: Any, score: Tensor, at: Tensor, later: Tensor, member: Tensor | None, owner: Tensor
    ) -> Tensor:
        odds = score.clamp(max=STEEPEST).exp_()
        total = 1 + odds if member is None else (odds @ member).add_(1.0)
        ctx.save_for_backward(odds, total, at, later, owner)
        ctx.bits = member is None
        observed = score.gather(-1, at).clamp_(max=STEEPEST)
        return torch.where(later, observed, 0.0).sub_(total.log())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        odds, total, at, later, owner = ctx.saved_tensors
        share = -grad / total
        of_odds = odds * (share if ctx.bits else share.index_select(-1, owner))
        return of_odds.scatter_add_(-1, at, torch.where(later, grad, 0.0)), None, None, None, None
