"""What an estimate of log Z is, and how weights become one."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

from torch import Tensor

__all__ = ["LogZ"]

MIN_ESS = 100.0  # below this many effective samples an estimate warns: its error is above 0.1


class LogZ(NamedTuple):
    """An estimate of log Z.

    >>> LogZ(value=1.5, stderr=0.02, ess=2500.0, method="importance").stderr
    0.02
    """

    value: float
    stderr: float  # one standard error; for a grid an indicator of its error, for enumeration 0
    ess: float  # effective sample size (Σw)² / Σw²; infinite where nothing is drawn
    method: str


def estimate(log_w: Tensor, method: str) -> LogZ:
    """log mean w with its delta-method standard error: Var(w̄)/w̄² = (n/ESS − 1) / (n − 1)."""
    n = len(log_w)
    total = log_w.logsumexp(0)
    value = finite(total) - math.log(n)
    ess = float((2 * total - (2 * log_w).logsumexp(0)).exp())
    stderr = math.sqrt(max(n / ess - 1, 0.0) / (n - 1))
    if ess < MIN_ESS:
        warnings.warn(
            f"log Z rests on {ess:.1f} effective samples of {n}; "
            f"score_samples may be off by a constant of about {stderr:.1f}.",
            UserWarning,
            stacklevel=3,
        )
    return LogZ(value, stderr, ess, method)


def finite(log_z: Tensor) -> float:
    if not bool(log_z.isfinite()):
        raise ValueError(f"f: expected a positive, finite total weight; log of it is {float(log_z)}.")
    return float(log_z)
