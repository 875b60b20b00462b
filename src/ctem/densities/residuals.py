r"""Linear predictions among noisy scores, so that narrow ridges look wide to a network.

If standardised scores had the correlation C, at levels s with A = diag(e^{−s_j}), 0 where hidden, they would have

    Σ_s = A C A + 1 − A²,      r_i = (Σ_s⁻¹ x)_i / √(Σ_s⁻¹)_ii = (x_i − E[x_i | the others]) / sd(x_i | the others).

A residual r_i is of order one however tightly the others determine x_i. Nothing is assumed: these are inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ctem.densities.contexts import numbered

__all__ = ["MAX_SCORES", "Swept", "correlation_of", "predictions", "residuals", "swept"]

MAX_SCORES = 32  # beyond, d³ operations for each row are too many
LEAST = 1e-4  # smallest eigenvalue of a correlation
FEW = 256  # different rows that are worth a look-up
TAME = 3.0  # |r| from which a square is bent down


def correlation_of(value: Tensor) -> Tensor:
    """The correlation (d, d) of scores (n, d) from the pairs of cells that are both observed; nan marks a missing one.

    Values beyond ±4 count as ±4. Eigenvalues are raised to 1e-4, so that Σ_s is safely positive.

    >>> x = torch.randn(500, 1, generator=torch.Generator().manual_seed(0))
    >>> correlation_of(torch.cat([x, -x], 1))
    tensor([[ 1.0000, -0.9999],
            [-0.9999,  1.0000]])
    """
    seen = ~value.isnan()
    x = torch.where(seen, value, 0.0).double().clamp(-4, 4)
    w = seen.double()
    count = (w.T @ w).clamp_min(1)
    mean = x.T @ w / count  # of column i over the rows that have j too
    variance = (x**2).T @ w / count - mean**2
    c = (x.T @ x / count - mean * mean.T) / (variance * variance.T).clamp_min(1e-12).sqrt()
    c = c.clamp(-1, 1).fill_diagonal_(1.0)
    size, axis = torch.linalg.eigh(c)
    c = (axis * size.clamp_min(LEAST)) @ axis.T
    scale = c.diagonal().rsqrt()
    return (scale.unsqueeze(1) * c * scale).to(value.dtype)


class Swept(NamedTuple):
    """Σ_s, with the hidden scores beside it as they are without noise, swept on those seen (S), H being the hidden:

        −Σ_SS⁻¹              Σ_SS⁻¹ Σ_SH
        Σ_HS Σ_SS⁻¹          Σ_HH − Σ_HS Σ_SS⁻¹ Σ_SH

    for each row, or for one row if all have the same levels. Rows come last: an operation on all rows of a few columns
    is fast, many small matrices are not. What is left of a hidden variance is not found by taking 1 less what is
    explained, which cancels where little is left.

    >>> Swept(-torch.eye(2).unsqueeze(-1), torch.zeros(1)).matrix.shape
    torch.Size([2, 2, 1])
    """

    matrix: Tensor  # (d, d, n)
    log_det: Tensor  # of Σ_SS (n,)


def residuals(value: Tensor, clear: Tensor, linear: Swept) -> Tensor:
    """What N(0, Σ_s) predicts of scores (n, d) at clear = e^{−s}, 0 where hidden: (n, 2d + 1).

    asinh r, a bounded r², and asinh of the log-density ratio log N(x; 0, Σ_s) / N(x; 0, 1); all of them 0 for hidden
    scores, which must be 0 in ``value``.

    >>> c = torch.tensor([[1.0, 0.8], [0.8, 1.0]])
    >>> x, clear = torch.tensor([[1.0, 1.0], [1.0, 0.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    >>> residuals(x, clear, swept(clear, c))[:, :2].sinh()  # (1 − 0.8)/0.6 each; alone, x is its own residual
    tensor([[0.3333, 0.3333],
            [1.0000, 0.0000]])
    """
    value, seen = value.T.contiguous(), clear.T > 0
    pulled = -_pulled(value, linear.matrix)
    precision = torch.where(seen, -linear.matrix.diagonal().T, 1.0)
    r = torch.where(seen, pulled * precision.rsqrt(), 0.0)
    excess = ((value - pulled) * value).sum(0, keepdim=True) - linear.log_det
    return torch.cat([r.asinh(), r**2 / (1 + (r / TAME) ** 2), (excess / 2).asinh()]).T


def predictions(value: Tensor, ahead: Tensor, linear: Swept) -> tuple[Tensor, Tensor]:
    """Mean and spread under N(0, Σ_s) of every hidden score at e^{−s} = ahead (n, 1), given those seen: (n, d) each.

    They mean nothing for a score that is seen itself.

    >>> c = torch.tensor([[1.0, 0.8], [0.8, 1.0]])
    >>> x, clear = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    >>> mean, spread = predictions(x, torch.ones(1, 1), swept(clear, c))
    >>> mean[0, 1], spread[0, 1]
    (tensor(0.8000), tensor(0.6000))
    """
    ahead = ahead.T
    mean = ahead * _pulled(value.T.contiguous(), linear.matrix)
    left = (1 - ahead**2) + ahead**2 * linear.matrix.diagonal().T
    return mean.T, left.clamp_min(LEAST).sqrt().T.expand_as(mean.T)


def _pulled(value: Tensor, matrix: Tensor) -> Tensor:
    """Mx for every row of x (d, n), M (d, d, n) or the same for all, (d, d, 1)."""
    return matrix[..., 0] @ value if matrix.shape[-1] == 1 else (matrix * value).sum(1)


def swept(clear: Tensor, correlation: Tensor) -> Swept:
    """Σ_s at clear = e^{−s}, swept on what is seen; of one row if all have the same, which a CUDA graph cannot ask.

    Rows at one level that show the same scores share it. So few are made in float64 on the CPU.

    >>> swept(torch.zeros(3, 2), torch.eye(2)).matrix.shape
    torch.Size([2, 2, 1])
    """
    capturing = clear.is_cuda and torch.cuda.is_current_stream_capturing()
    with torch.no_grad():
        kinds = None if capturing else _kinds(clear)
        if kinds is None:
            return Swept(*_sweeps(clear.T.contiguous(), correlation))
        few, kind = kinds
        every = Swept(*_sweeps(few.T.double().cpu().contiguous(), correlation.double().cpu()))
        matrix, log_det = every.matrix.to(clear), every.log_det.to(clear)
        return Swept(matrix, log_det) if len(few) == 1 else Swept(matrix[..., kind], log_det[kind])


def _kinds(clear: Tensor) -> tuple[Tensor, Tensor] | None:
    """The different rows of clear (n, d), and which of them each row is; None if levels differ, or these are many.

    >>> _kinds(torch.tensor([[0.9, 0.0], [0.0, 0.0], [0.9, 0.0]]))
    (tensor([[0.0000, 0.0000],
            [0.9000, 0.0000]]), tensor([1, 0, 1]))
    """
    seen = clear > 0
    if not len(clear) or not bool((~seen | (clear == clear.amax(0))).all()):
        return None
    first, kind = numbered((seen * 2 ** torch.arange(clear.shape[1], device=clear.device)).sum(1))
    return (clear[first], kind) if len(first) <= FEW else None


def _sweeps(clear: Tensor, correlation: Tensor) -> tuple[Tensor, Tensor]:
    """The swept matrices (d, d, n) at clear (d, n), and log det Σ_SS (n,), by d sweeps over all of them at once.

    There is no pivoting, for which a GPU would have to be waited for: Σ_s is positive.
    """
    seen = clear > 0
    at = torch.where(seen, clear, 1.0)
    a = at.unsqueeze(1) * correlation.unsqueeze(2) * at
    a.diagonal().copy_(torch.ones_like(clear.T))
    log_det = torch.zeros_like(clear[0])
    for k, here in enumerate(seen):
        pivot = torch.where(here, a[k, k], 1.0)
        row = torch.where(here, a[k] / pivot, 0.0)
        a.addcmul_(a[:, k].clone().unsqueeze(1), row, value=-1)
        row = torch.where(here, row, a[k])
        a[k], a[:, k] = row, row
        a[k, k] = torch.where(here, -1 / pivot, a[k, k])
        log_det += pivot.log()
    return a, log_det
