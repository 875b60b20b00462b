r"""Linear predictions among noisy scores, so that narrow ridges look wide to a network.

If standardised scores had the correlation C, at levels s with A = diag(e^{−s_j}), 0 where hidden, they would have

    Σ_s = A C A + 1 − A²,      r_i = (Σ_s⁻¹ x)_i / √(Σ_s⁻¹)_ii = (x_i − E[x_i | the others]) / sd(x_i | the others).

A residual r_i is of order one however tightly the others determine x_i. Nothing is assumed: these are inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ctem.densities.chain import numbered

__all__ = ["MAX_SCORES", "Inverse", "correlation_of", "inverses", "predictions", "residuals"]

MAX_SCORES = 32  # beyond, d³ operations for each row are too many
LEAST = 1e-4  # smallest eigenvalue of a correlation
FEW = 256  # different rows whose inverses are worth a look-up
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


class Inverse(NamedTuple):
    """Σ_s⁻¹ (n, d, d) and log det Σ_s (n,), or those of one row if all have the same levels.

    >>> Inverse(torch.eye(2).unsqueeze(0), torch.zeros(1)).matrix.shape
    torch.Size([1, 2, 2])
    """

    matrix: Tensor
    log_det: Tensor


def residuals(value: Tensor, clear: Tensor, inverse: Inverse) -> Tensor:
    """What N(0, Σ_s) says of scores (n, d) at clear = e^{−s}, 0 where hidden: (n, 2d + 1).

    asinh r, a bounded r², and asinh of the log-density ratio log N(x; 0, Σ_s) / N(x; 0, 1); all of them 0 for hidden
    scores, which must be 0 in ``value``.

    >>> c = torch.tensor([[1.0, 0.8], [0.8, 1.0]])
    >>> x, clear = torch.tensor([[1.0, 1.0], [1.0, 0.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    >>> residuals(x, clear, inverses(clear, c))[:, :2].sinh()  # (1 − 0.8)/0.6 each; alone, x is its own residual
    tensor([[0.3333, 0.3333],
            [1.0000, 0.0000]])
    """
    matrix, log_det = inverse
    pulled = _pulled(value, matrix)
    r = torch.where(clear > 0, pulled * matrix.diagonal(dim1=1, dim2=2).rsqrt(), 0.0)
    excess = ((value - pulled) * value).sum(1) - log_det
    return torch.cat([r.asinh(), r**2 / (1 + (r / TAME) ** 2), (excess / 2).asinh().unsqueeze(1)], 1)


def predictions(
    value: Tensor, clear: Tensor, correlation: Tensor, ahead: Tensor, inverse: Inverse
) -> tuple[Tensor, Tensor]:
    """Mean and spread under N(0, Σ_s) of every score at e^{−s} = ahead (n, 1), given those seen: (n, d) each.

    It means nothing for a score that is seen itself.

    >>> c = torch.tensor([[1.0, 0.8], [0.8, 1.0]])
    >>> x, clear = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    >>> mean, spread = predictions(x, clear, c, torch.ones(1, 1), inverses(clear, c))
    >>> mean[0, 1], spread[0, 1]
    (tensor(0.8000), tensor(0.6000))
    """
    pulled = clear * _pulled(value, inverse.matrix)
    # Σ_jk C_ij C_ik a_j (Σ⁻¹)_jk a_k as one product of matrices: many small ones are slow
    pairs = (correlation.unsqueeze(2) * correlation.unsqueeze(1)).flatten(1)
    told = (clear.unsqueeze(2) * inverse.matrix * clear.unsqueeze(1)).flatten(1) @ pairs.T
    return ahead * (pulled @ correlation), (1 - ahead**2 * told).clamp_min(LEAST).sqrt()


def _pulled(value: Tensor, matrix: Tensor) -> Tensor:
    """Σ⁻¹x for every row (n, d), Σ⁻¹ (n, d, d) or the same for all, (1, d, d)."""
    return value @ matrix[0] if len(matrix) == 1 else (matrix * value.unsqueeze(1)).sum(-1)


def inverses(clear: Tensor, correlation: Tensor) -> Inverse:
    """Σ_s⁻¹ and log det Σ_s at clear = e^{−s}; of one row if all have the same, which a CUDA graph cannot ask.

    Rows at one level that show the same scores share an inverse. So few are made on the CPU: on a GPU the sweeps would
    be dozens of launches.

    >>> inverses(torch.zeros(3, 2), torch.eye(2)).matrix.shape
    torch.Size([1, 2, 2])
    """
    capturing = clear.is_cuda and torch.cuda.is_current_stream_capturing()
    with torch.no_grad():
        kinds = None if capturing else _kinds(clear)
        if kinds is None:
            return Inverse(*_inverted(clear, correlation))
        few, kind = kinds
        matrix, log_det = (found.to(clear.device) for found in _inverted(few.cpu(), correlation.cpu()))
        return Inverse(matrix, log_det) if len(few) == 1 else Inverse(matrix[kind], log_det[kind])


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


def _inverted(clear: Tensor, correlation: Tensor) -> tuple[Tensor, Tensor]:
    a = clear.unsqueeze(2) * correlation * clear.unsqueeze(1) + torch.diag_embed(1 - clear**2)
    return _swept(a) if a.is_cuda else _factored(a)


def _factored(a: Tensor) -> tuple[Tensor, Tensor]:
    """a⁻¹ and log det a by LAPACK, in float64: on a CPU several times faster than sweeps."""
    dtype, a = a.dtype, a.double()
    root = torch.linalg.cholesky(a)
    log_det = 2 * root.diagonal(dim1=1, dim2=2).log().sum(1)
    return torch.cholesky_inverse(root).to(dtype), log_det.to(dtype)


def _swept(a: Tensor) -> tuple[Tensor, Tensor]:
    """a⁻¹ and log det a by d sweeps, without a wait for the device and without pivoting: Σ_s is positive."""
    log_det = torch.zeros_like(a[:, 0, 0])
    for k in range(a.shape[1]):
        pivot = a[:, k, k].clone()
        row = a[:, k] / pivot.unsqueeze(1)
        log_det = log_det + pivot.log()
        a = a - a[:, :, k].unsqueeze(2) * row.unsqueeze(1)
        a[:, k], a[:, :, k] = row, row
        a[:, k, k] = -1 / pivot
    return -a, log_det
