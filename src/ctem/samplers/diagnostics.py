"""Have the chains of a sampler mixed: split R-hat, effective sample size, and what an effective sample costs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["ChainDiagnostics", "chain_diagnostics", "ess_per_evaluation"]


class ChainDiagnostics(NamedTuple):
    """Split R-hat and effective sample size of every column.

    >>> ChainDiagnostics(torch.ones(2), torch.full((2,), 500.0)).r_hat
    tensor([1., 1.])
    """

    r_hat: Tensor  # (d,)
    ess: Tensor  # (d,)


def chain_diagnostics(trace: Tensor) -> ChainDiagnostics:
    """Split R-hat (near 1 when chains agree) and bulk effective sample size of every column, by arviz.

    A column that moved in no chain is no evidence of mixing: r_hat is inf and ess is 0. Needs the extra
    ``mcmc``. Vehtari et al. 2021.

    Arguments:
        trace: states of the chains, shape (draws, chains, d), as ``run(…, thin=…).trace``.

    >>> trace = torch.randn(400, 4, 2, generator=torch.Generator().manual_seed(0))
    >>> bool((chain_diagnostics(trace).r_hat < 1.02).all())
    True
    """
    try:
        from arviz_stats.base import array_stats  # type: ignore[attr-defined]
    except ImportError as error:
        raise ImportError("chain_diagnostics needs arviz-stats: pip install ctem[mcmc].") from error
    if trace.ndim != 3 or trace.shape[0] < 4 or trace.shape[1] < 2:
        raise ValueError(f"trace: expected shape (draws ≥ 4, chains ≥ 2, columns); got {tuple(trace.shape)}.")
    values = trace.detach().cpu().double().numpy()
    if not np.isfinite(values).all():
        raise ValueError("trace: expected finite numbers; got nan or inf.")
    moved = (values != values[:1]).any((0, 1))
    r_hat, ess = np.full(len(moved), np.inf), np.zeros(len(moved))
    axes = {"chain_axis": 1, "draw_axis": 0}
    with np.errstate(all="ignore"):  # halves of chains that stand still: R-hat is inf, without a warning
        for j in np.flatnonzero(moved):
            r_hat[j] = array_stats.rhat(values[:, :, j], method="split", **axes)
            ess[j] = array_stats.ess(values[:, :, j], method="bulk", **axes)
    return ChainDiagnostics(torch.from_numpy(r_hat), torch.from_numpy(ess))


def ess_per_evaluation(trace: Tensor, evaluations: float, generator: torch.Generator) -> float:
    r"""Effective samples for each evaluation of f, by the definition of DISCS (Goshvadi et al. 2023).

    The effective size N/(1 + 2 Σ_k (1 − k/N) ρ_k) of a random projection of the states, its autocorrelation ρ cut where
    it first falls below 0, averaged over chains.

    Arguments:
        trace: states after burn-in, (draws, chains, d).
        evaluations: of f (a gradient counts as one more) by each chain in the time of the trace.
        generator: the projection, on the device of the trace.

    >>> g = torch.Generator().manual_seed(0)
    >>> 0.5 < ess_per_evaluation(torch.randn(400, 8, 3, generator=g), 400, g) < 1.1
    True
    """
    if trace.ndim != 3 or len(trace) < 4:
        raise ValueError(f"trace: expected shape (draws ≥ 4, chains, columns); got {tuple(trace.shape)}.")
    direction = torch.randn(trace.shape[-1], generator=generator, dtype=trace.dtype, device=trace.device)
    values = (trace @ direction).double()  # (draws, chains)
    n, centred = len(values), values - values.mean(0)
    spectrum = torch.fft.rfft(centred, 2 * n, dim=0).abs().square()
    covariance = torch.fft.irfft(spectrum, 2 * n, dim=0)[:n]  # times n − k, less the rest
    still = covariance[0] <= 0
    rho = covariance / torch.where(still, 1.0, covariance[0])  # already times (1 − k/n)
    kept = (rho >= 0).cummin(0).values
    ess = n / (2 * (rho * kept).sum(0) - 1)
    return float(torch.where(still, 0.0, ess).mean()) / evaluations
