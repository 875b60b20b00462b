"""What can be wrong with samples, a constant or a fit, each as a sentence; None where nothing is."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.stats import chi2_contingency, norm
from sklearn.cluster import KMeans
from torch import Tensor

from ctem.checking.potential import Counted
from ctem.checking.sides import Chains
from ctem.checking.stein import Stein
from ctem.samplers.sampler import evaluated
from ctem.spaces import Space

__all__ = ["wrong_constant"]

SWEEPS = 5  # of an exact chain that samples should not notice
CHANCE = 1e-5  # of a false alarm
CLUSTERS = 8
LOST = 0.05  # share of rows in the wrong cluster that matters
FEW = 3.0  # times fewer rows than there should be, in a mode that is missing
GAP = 0.5  # nats between training and held-out rows that matter


def unadjusted(f: Counted, space: Space, x: Tensor, chains: Chains) -> str | None:
    """Samples of f stay samples of f under an exact chain: the mean of f, and of each feature, must not move.

    An unadjusted chain (Langevin without Metropolis, DULA) has another stationary law, which an exact chain leaves at
    once. A missing mode is not seen: inside the others nothing moves.
    """
    here = evaluated(f, x).double()
    y = chains.settle(x, SWEEPS)
    there = evaluated(f, y).double()
    change = torch.cat([(there - here).unsqueeze(1), (space.features(y) - space.features(x)).double()], 1)
    error = change.std(0) / math.sqrt(len(x))
    z = torch.where(error > 0, change.mean(0) / error.clamp_min(1e-12), 0.0)
    limit = float(norm.isf(CHANCE / 2 / len(z)))
    if float(z.abs().max()) < limit:
        return None
    worst = int(z.abs().argmax())
    what = "the mean of f" if worst == 0 else "the mean of a column"
    return (
        f"The samples are not of this log-potential: {what} moves by {float(change[:, worst].mean()):+.3g} "
        f"({float(z[worst]):+.0f} standard errors) in {SWEEPS} sweeps of a Metropolis-adjusted chain. An unadjusted "
        "chain, or one that was stopped too soon, gives such samples."
    )


def missing_mode(space: Space, x: Tensor, drawn: Tensor, effective: float, seed: int) -> str | None:
    """Clusters of rows that the potential's own samples fill, and the given ones do not."""
    pooled = space.features(torch.cat([x, drawn])).cpu().double().numpy()
    pooled = (pooled - pooled.mean(0)) / np.maximum(pooled.std(0), 1e-9)
    labels = KMeans(CLUSTERS, n_init=3, random_state=seed).fit_predict(pooled)
    given = np.bincount(labels[: len(x)], minlength=CLUSTERS)
    rows = np.bincount(labels[len(x) :], minlength=CLUSTERS)
    share, wanted = given / len(x), rows / len(drawn)
    counts = np.stack([given, wanted * min(effective, len(drawn))]) + 0.5
    p_value = float(chi2_contingency(counts).pvalue)
    lost = np.maximum(wanted - share, 0)
    k = int(np.argmax(lost))
    if p_value > CHANCE or lost.sum() < LOST or share[k] * FEW > wanted[k]:
        return None
    return (
        f"The samples miss a mode: a cluster with {wanted[k]:.0%} of the rows that annealing from a wide base finds "
        f"has {share[k]:.1%} of them. A chain that stays in the modes where it began gives such samples."
    )


def not_of(stein: Stein | None) -> str | None:
    """Samples that a Stein operator tells from the potential."""
    if stein is None or not stein.rejects:
        return None
    times = stein.value / stein.deviation
    return (
        f"The samples are not of this log-potential: their kernelised Stein discrepancy is {stein.value:.3g}, "
        f"{times:.0f} standard deviations of what samples of it have by chance. Another temperature, a chain that was "
        "stopped too soon or an approximate sampler give such samples."
    )


def wrong_constant(claimed: float, low: float, high: float) -> str | None:
    """A claimed log Z outside of what was found.

    >>> wrong_constant(1.0, 0.9, 1.1) is None, wrong_constant(2.0, 0.9, 1.1)[:18]
    (True, 'The claimed log Z ')
    """
    if low - 1e-3 <= claimed <= high + 1e-3:
        return None
    beyond = claimed - high if claimed > high else claimed - low
    effect = "understates" if beyond > 0 else "overstates"
    return (
        f"The claimed log Z = {claimed:.4f} is wrong: it lies {abs(beyond):.4f} nats "
        f"{'above' if beyond > 0 else 'below'} what was found, [{low:.4f}, {high:.4f}], and {effect} every likelihood."
    )


def overfitted(f: Counted, train: Tensor, test: Tensor) -> str | None:
    """Training rows that are far more likely than held-out ones of the same law."""
    seen, unseen = (evaluated(f, rows).double() for rows in (train, test))
    gap = float(seen.mean() - unseen.mean())
    error = math.sqrt(float(seen.var()) / len(seen) + float(unseen.var()) / len(unseen))
    if gap < GAP or gap < float(norm.isf(CHANCE)) * error:
        return None
    return (
        f"The energy is overfitted: training rows are {gap:.2f} ± {error:.2f} nats likelier than held-out ones: "
        "a likelihood of training rows, or samples near them, show nothing about new rows."
    )
