"""Constant-target energy matching: density estimation on continuous, discrete and mixed data.

    X → Space.encode → x → Kernel / Noise → pairs → loss → train → f → log Z → log-density
                                                          f → sampler → Space.decode → X

The names below are where most work starts; everything else is in the module that it belongs to: ``ctem.matching``
(kernels, noise, losses), ``ctem.energies``, ``ctem.training``, ``ctem.samplers``, ``ctem.partition`` (log Z),
``ctem.densities``, ``ctem.tables``, ``ctem.report``, ``ctem.datasets`` and ``ctem.benchmarks``.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# torch's allocator on ARM gives memory back after 10 ms, and every training step then pays for it anew: a sixth of the
# time. It reads this when torch is first imported.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "10000")

__version__ = "0.2.0"

if TYPE_CHECKING:
    from ctem.bases import ProductBase
    from ctem.checking import check
    from ctem.energies import MLP, grad_log_density
    from ctem.energy_model import EnergyModel
    from ctem.estimators.estimator import CTEM
    from ctem.estimators.imputer import CTEMImputer
    from ctem.estimators.outliers import CTEMOutlier
    from ctem.matching.kernels import (
        Gaussian,
        Grid,
        HammingOne,
        Mixture,
        Product,
        Redraw,
        Sphere,
        Uniform,
        mean_std,
    )
    from ctem.matching.losses import brier, log_score, pair_loss
    from ctem.matching.noise import Noise
    from ctem.report.privacy import audit
    from ctem.spaces import Angle, Category, Ordinal, Real, Space
    from ctem.tables.inspection import inspect
    from ctem.training import Recipe, train

__all__ = [
    "CTEM",
    "MLP",
    "Angle",
    "CTEMImputer",
    "CTEMOutlier",
    "Category",
    "EnergyModel",
    "Gaussian",
    "Grid",
    "HammingOne",
    "Mixture",
    "Noise",
    "Ordinal",
    "Product",
    "ProductBase",
    "Real",
    "Recipe",
    "Redraw",
    "Space",
    "Sphere",
    "Uniform",
    "__version__",
    "audit",
    "brier",
    "check",
    "grad_log_density",
    "inspect",
    "log_score",
    "mean_std",
    "pair_loss",
    "train",
]

_HOME = {
    "ctem.bases": ["ProductBase"],
    "ctem.checking": ["check"],
    "ctem.energies": ["MLP", "grad_log_density"],
    "ctem.energy_model": ["EnergyModel"],
    "ctem.estimators.estimator": ["CTEM"],
    "ctem.estimators.imputer": ["CTEMImputer"],
    "ctem.matching.kernels": [
        *("Gaussian", "Grid", "HammingOne", "Mixture", "Product", "Redraw", "Sphere", "Uniform", "mean_std")
    ],
    "ctem.matching.losses": ["brier", "log_score", "pair_loss"],
    "ctem.matching.noise": ["Noise"],
    "ctem.estimators.outliers": ["CTEMOutlier"],
    "ctem.report.privacy": ["audit"],
    "ctem.spaces": ["Angle", "Category", "Ordinal", "Real", "Space"],
    "ctem.tables.inspection": ["inspect"],
    "ctem.training": ["Recipe", "train"],
}
_LATER = {name: home for home, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    """Names are imported when they are asked for: torch and scikit-learn take seconds, and ``ctem --help`` has none."""
    if name == "plot":
        return import_module("ctem.report.plot")
    if name not in _LATER:
        raise AttributeError(f"module 'ctem' has no attribute {name!r}.")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
