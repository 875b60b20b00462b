"""Distances between a model and the truth: on grids, on states, and between samples.

Densities, probabilities and samples are tensors or arrays and are compared in float64; every metric returns
a float, 0 for a perfect model except ``classifier_two_sample``, where 1 is perfect.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_score
from torch import Tensor

__all__ = [
    "classifier_two_sample",
    "density_mse",
    "energy_distance",
    "fisher_divergence",
    "hamming_mmd",
    "ise",
    "kl_divergence",
    "mode_weight_error",
    "relative_density_mse",
    "total_variation",
]

Array = Tensor | NDArray[np.generic]

MAX_CODES = 255  # the most categories scikit-learn's boosted trees can bin
MAX_PAIRS = 2**22  # distances held in memory at once


def ise(density: Array, truth: Array, weights: Array) -> float:
    """Integrated squared error, ∫ (ρ̂ − ρ)² ≈ Σ_i w_i (ρ̂_i − ρ_i)².

    Arguments:
        density: ρ̂ at the grid points, shape (m,).
        truth: ρ at the same points, shape (m,).
        weights: quadrature weights w, shape (m,), as from ``ctem.benchmarks.targets.grid``.

    >>> ise(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.5]))
    0.5
    """
    p, q = _pair(1, density=density, truth=truth)
    _, w = _pair(1, density=density, weights=weights)
    return float((w * (p - q).square()).sum())


def density_mse(density: Array, truth: Array) -> float:
    """Mean squared error of a density over test points, 1/n Σ_i (ρ̂(x_i) − ρ(x_i))².

    Arguments:
        density: ρ̂ at the test points, shape (n,).
        truth: ρ at the same points, shape (n,).

    >>> density_mse(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]))
    2.0
    """
    p, q = _pair(1, density=density, truth=truth)
    return float((p - q).square().mean())


def relative_density_mse(density: Array, truth: Array) -> float:
    """Mean squared error over mean ρ²: comparable between dimensions, and 1 for the density that is 0.

    Arguments:
        density: ρ̂ at the test points, shape (n,).
        truth: ρ at the same points, shape (n,), not all zero.

    >>> relative_density_mse(torch.zeros(2), torch.tensor([1e-17, 3e-17]))
    1.0
    """
    p, q = _pair(1, density=density, truth=truth)
    if not q.any():
        raise ValueError("truth: expected a density above 0 at some point; got zeros only.")
    unit = q.abs().max()  # squares of a 30-D density leave float32 and, with a few more axes, float64
    return density_mse(p / unit, q / unit) / float((q / unit).square().mean())


def fisher_divergence(gradient: Array, truth: Array) -> float:
    """Mean squared distance between gradients of log-densities, 1/n Σ_i |∇ log ρ̂(x_i) − ∇ log ρ(x_i)|².

    Arguments:
        gradient: ∇ log ρ̂ at points drawn from ρ, shape (n, d).
        truth: ∇ log ρ at the same points, shape (n, d).

    >>> fisher_divergence(torch.zeros(5, 2), torch.ones(5, 2))
    2.0
    """
    s, t = _pair(2, gradient=gradient, truth=truth)
    return float((s - t).square().sum(-1).mean())


def total_variation(p: Array, q: Array) -> float:
    """Total variation between two distributions on the same states, ½ Σ_z |p(z) − q(z)|, in [0, 1].

    Arguments:
        p, q: probabilities, shape (m,), each summing to 1.

    >>> total_variation(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
    0.5
    """
    first, second = _distributions(p, q)
    return float((first - second).abs().sum() / 2)


def kl_divergence(p: Array, q: Array, floor: float = 0.0) -> float:
    """Kullback–Leibler divergence KL(p‖q) = Σ_z p(z) log(p(z)/q(z)); infinite where q misses mass of p.

    Arguments:
        p, q: probabilities, shape (m,), each summing to 1.
        floor: q is raised to at least this much, and not normalised again.

    >>> uniform, point = torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])
    >>> round(kl_divergence(point, uniform), 4), kl_divergence(uniform, point)
    (0.6931, inf)
    >>> round(kl_divergence(uniform, point, floor=1e-8), 4)
    8.5172
    """
    if not 0 <= floor < 1:
        raise ValueError(f"floor: expected a probability in [0, 1); got {floor}.")
    first, second = _distributions(p, q)
    terms = first * (first.log() - second.clamp(min=floor).log())
    return float(terms[first > 0].sum())


def mode_weight_error(modes: Array, truth: Array, mass: Array | None = None) -> float:
    """Total variation between the weights that modes receive and those they should have.

        ½ Σ_k |ŵ_k − w_k|,   ŵ_k = Σ_i m_i 1[mode_i = k] / Σ_i m_i

    Arguments:
        modes: the mode 0 … k−1 of each row, shape (n,).
        truth: the true weights w, shape (k,).
        mass: m, shape (n,); 1 for samples (the default), or the model's probabilities for states.

    >>> mode_weight_error(torch.tensor([0, 0, 0, 1]), torch.tensor([0.5, 0.5]))
    0.25
    """
    w = _array("truth", truth, 1)
    labels = _array("modes", modes, 1)
    _check_codes("modes", labels, len(w))
    _, m = _pair(1, modes=labels, mass=torch.ones_like(labels) if mass is None else mass)
    received = torch.bincount(labels.long(), weights=m, minlength=len(w)) / m.sum()
    return total_variation(received, w)


def energy_distance(a: Array, b: Array) -> float:
    """Energy distance between two samples, 2 E|a − b| − E|a − a'| − E|b − b'| ≥ 0.

    The expectations run over all pairs, so it is the distance between the empirical distributions: 0 for
    equal samples, and of order 1/n, not 0, for independent samples of one distribution.

    Arguments:
        a, b: rows, shapes (n, d) and (m, d).

    >>> energy_distance(torch.zeros(3, 1), torch.ones(2, 1))
    2.0
    """
    x, y = _samples(a=a, b=b)
    return 2 * _mean_distance(x, y) - _mean_distance(x, x) - _mean_distance(y, y)


def hamming_mmd(a: Tensor, b: Tensor, bandwidth: float = 0.1) -> float:
    """Squared maximum mean discrepancy of two samples of bits with the kernel exp(−bandwidth · Hamming distance).

    The unbiased estimate, without the diagonals: about 0 for samples of one law, and as often below as above.

    Arguments:
        a, b: codes 0 and 1, shapes (n, d) and (m, d), on one device.

    >>> hamming_mmd(torch.zeros(3, 2), torch.ones(3, 2)) == 2 - 2 * float(torch.tensor(-0.2).exp())
    True
    """

    def total(x: Tensor, y: Tensor) -> Tensor:
        differing = x.sum(-1, keepdim=True) + y.sum(-1) - 2 * x @ y.T
        return (-bandwidth * differing).exp().double().sum()

    n, m = len(a), len(b)
    within = (total(a, a) - n) / (n * (n - 1)) + (total(b, b) - m) / (m * (m - 1))
    return float(within - 2 * total(a, b) / (n * m))


def classifier_two_sample(
    real: Array, fake: Array, seed: int, discrete_columns: Sequence[int] = (), folds: int = 5
) -> float:
    """How badly boosted trees distinguish two samples: 1 is not at all, 0 is at sight.

        1 − mean over folds of (2 max(AUC, ½) − 1)

    This is SDMetrics' detection score. As every fold is cut off at ½, equal distributions score a little
    under 1: about 1 − 0.46/√n for folds of n test rows.

    Arguments:
        real, fake: rows, shapes (n, d) and (m, d).
        seed: shuffles the folds and seeds the trees.
        discrete_columns: columns of codes 0 … 254 that the trees treat as unordered.
        folds: number of cross-validation folds.

    >>> rng = np.random.default_rng(0)
    >>> classifier_two_sample(rng.normal(size=(200, 1)), rng.normal(loc=50, size=(200, 1)), seed=0, folds=2)
    0.0
    """
    x, y = _samples(real=real, fake=fake)
    if not 2 <= folds <= min(len(x), len(y)):
        raise ValueError(f"folds: expected 2 … {min(len(x), len(y))}, the fewer rows; got {folds}.")
    rows, labels = torch.cat([x, y]), np.repeat([1, 0], [len(x), len(y)])
    for j in discrete_columns:
        if not 0 <= j < rows.shape[1]:
            raise ValueError(f"discrete_columns: expected columns in 0 … {rows.shape[1] - 1}; got {j}.")
        _check_codes(f"discrete_columns, column {j}", rows[:, j], MAX_CODES)
    trees = HistGradientBoostingClassifier(
        categorical_features=list(discrete_columns) or None, random_state=seed
    )
    cut = StratifiedKFold(folds, shuffle=True, random_state=seed)
    auc = cross_val_score(trees, rows.numpy(), labels, cv=cut, scoring="roc_auc", error_score="raise")
    return float(1 - (2 * np.maximum(auc, 0.5) - 1).mean())


def _array(name: str, value: Array, ndim: int) -> Tensor:
    array = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
    if array.ndim != ndim or array.numel() == 0:
        raise ValueError(f"{name}: expected at least one number on {ndim} axes; got {tuple(array.shape)}.")
    if not array.isfinite().all():
        raise ValueError(f"{name}: expected finite numbers; got {array[~array.isfinite()][0]}.")
    return array


def _pair(ndim: int, **named: Array) -> tuple[Tensor, Tensor]:
    (first, a), (second, b) = ((name, _array(name, value, ndim)) for name, value in named.items())
    if a.shape != b.shape:
        raise ValueError(f"{second}: expected {first}'s shape {tuple(a.shape)}; got {tuple(b.shape)}.")
    return a, b


def _check_codes(name: str, value: Tensor, size: int) -> None:
    known = (value == value.floor()) & (value >= 0) & (value < size)
    if not known.all():
        raise ValueError(f"{name}: expected codes in 0 … {size - 1}; got {value[~known][0]:g}.")


def _distributions(p: Array, q: Array) -> tuple[Tensor, Tensor]:
    first, second = _pair(1, p=p, q=q)
    for name, value in (("p", first), ("q", second)):
        if (value < 0).any() or abs(float(value.sum()) - 1) > 1e-4:
            raise ValueError(f"{name}: expected probabilities ≥ 0 of sum 1; got the sum {value.sum():.6g}.")
    return first, second


def _samples(**named: Array) -> tuple[Tensor, Tensor]:
    (_, a), (second, b) = ((name, _array(name, value, 2)) for name, value in named.items())
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"{second}: expected {a.shape[1]} columns; got {b.shape[1]}.")
    return a, b


def _mean_distance(a: Tensor, b: Tensor) -> float:
    """E|a − b| over all pairs of rows; the matrix-product shortcut would lose digits between near points."""
    parts = a.chunk(1 + len(a) * len(b) // MAX_PAIRS)
    total = sum(torch.cdist(part, b, compute_mode="donot_use_mm_for_euclid_dist").sum() for part in parts)
    return float(total) / (len(a) * len(b))
