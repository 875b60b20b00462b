"""Spins with exact truth: does ``ctem.check`` bracket log Z, and how well are couplings learned from exact samples?"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import expit
from scipy.stats import norm
from torch import Tensor

from ctem.benchmarks.lattices import Ising, Potts, RandomIsing
from ctem.checking import Budget, check
from experiments.results import Record, summarise

# |error of log Z| of F/D in Ou, Zhang & Li, Table 2 (10²), and width of the best bracket of the ICML 2026 notes (16²)
PUBLISHED_ERROR = {("10 × 10", 0.2): 0.035, ("10 × 10", 0.4407): 0.54}
PUBLISHED_WIDTH = {("16 × 16", 0.6): 0.12, ("16 × 16", 1.2): 0.11}
LATTICES = ((10, 0.2), (10, 0.4407), (16, 0.28), (16, 0.4407), (16, 0.6), (16, 1.2))
COUPLINGS = ((10, 0.1), (10, 0.2), (10, 0.3), (10, 0.4), (10, 0.5), (9, -0.1), (9, -0.2))  # side, σ of x'Jx
BEST = (6.1, 5.1, 3.4, 2.6, 2.3, 5.7, 5.1)  # −log RMSE, Table 5 of the same: the best of its five rows


class Size(NamedTuple):
    """How much is spent."""

    lattices: tuple[tuple[int, float], ...]
    budget: Budget
    potts: int  # side, three states; 0 leaves it out
    couplings: int  # columns of the table
    seeds: int
    sweeps: int  # of Swendsen–Wang
    steps: int  # of the descent


FULL = Size(LATTICES, Budget(chains=16384, levels=1500, moves=4, steps=0, draws=20_000), 8, 7, 5, 30, 1500)
QUICK = Size(((5, 0.3),), Budget(chains=300, levels=40, moves=2, steps=0, draws=500), 0, 1, 1, 20, 300)


def constants(size: Size, device: str, log=print) -> list[Record]:
    """log Z of lattices by check, beside the truth."""
    systems = [(f"{side} × {side}", K, Ising(side, K)) for side, K in size.lattices]
    if size.potts:
        systems.append((f"Potts {size.potts} × {size.potts}, q = 3,", 1.005, Potts(size.potts, 3, 1.005)))
    records = []
    for name, K, system in systems:
        budget = (
            size.budget if isinstance(system, Ising) else Budget(chains=4096, levels=150, moves=1, steps=0)
        )
        found = check(system, system.space, budget=budget, device=device)
        data, truth = f"{name} K = {K}", system.log_z
        values = {
            "log Z, exact": truth,
            "seconds": found.seconds,
            "evaluations, millions": found.evaluations / 1e6,
        }
        if found.value is not None and found.low is not None and found.high is not None:
            values |= {
                "log Z": found.value,
                "error of log Z": abs(found.value - truth),
                "width of the bracket": found.high - found.low,
                "the truth lies inside": float(found.low <= truth <= found.high),
            }
        published = {"error of log Z": PUBLISHED_ERROR, "width of the bracket": PUBLISHED_WIDTH}
        for metric, value in values.items():
            paper = published.get(metric, {}).get((name, K))
            records.append(summarise(data, "check", metric, [value], paper))
        log(f"{data}: exact {truth:.4f}; {str(found).splitlines()[0]}; {found.seconds:.0f} s", flush=True)
        for side in found.sides:
            log(f"    {side.method}: {side.value:.4f} ± {side.se:.4f}, {side.ess:.0f} effective", flush=True)
    return records


def couplings(size: Size, device: str, log=print) -> list[Record]:
    """−log RMSE of J from 2000 exact samples, beside what maximum likelihood reaches that knows the graph."""
    records = []
    tasks = list(zip(COUPLINGS, BEST, strict=True))[: size.couplings]
    systems = [
        (f"{side} × {side}, σ = {sigma}", Ising(side, 2 * sigma), best) for (side, sigma), best in tasks
    ]
    if size.couplings > 1:
        systems.append(
            ("Erdős–Rényi, 100 nodes, degree 2, N(0, ½²)", RandomIsing(100, 2.0, 0.5, seed=0), None)
        )
    for data, system, best in systems:
        began, scores = time.perf_counter(), []
        for seed in range(size.seeds):
            X = torch.as_tensor(system.sample(2000, seed, size.sweeps), dtype=torch.float64, device=device)
            J = learned_couplings(2 * X - 1, size.steps)
            scores.append(-math.log(math.sqrt(np.mean((J - system.coupling_matrix) ** 2))))
        floor = system.coupling_floor(2000, seed=100, samples=5000 if size.seeds > 1 else 500)
        records += [
            summarise(data, "pseudo-likelihood", "−log RMSE of J", scores, best),
            summarise(data, "maximum likelihood, graph known", "−log RMSE of J", [floor]),
        ]
        spent = time.perf_counter() - began
        log(f"{data}: {np.mean(scores):.2f} (published {best}, floor {floor:.2f}), {spent:.0f} s", flush=True)
    return records


def learned_couplings(s: Tensor, steps: int) -> np.ndarray:
    """J of spins s (n, d), by pseudo-likelihood in three steps that know nothing of the truth.

    An l1 penalty of √(log d / n), Ravikumar, Wainwright & Lafferty's rate (2010), proposes a graph; the couplings are
    fitted on it, those that are not significant (5 %, Bonferroni over all pairs) are dropped, and the rest fitted again.
    """
    n, d = s.shape
    K = penalised(s, math.sqrt(math.log(d) / n), steps)
    limit = norm.isf(0.05 / (d * (d - 1)))
    rows = s.cpu().numpy()
    graph = (K != 0).cpu().numpy()
    value, error = on_graph(rows, graph)
    value, _ = on_graph(rows, graph & (np.abs(value) > limit * error))
    return value / 2


def penalised(s: Tensor, penalty: float, steps: int) -> Tensor:
    """Symmetric K (d, d), f = Σ_ij K_ij s_i s_j over pairs, that minimises the penalised pseudo-likelihood: FISTA."""
    n, d = s.shape
    others = ~torch.eye(d, dtype=torch.bool, device=s.device)
    rate = 1 / (2 * float(torch.linalg.eigvalsh(s.T @ s / n)[-1]))
    K = torch.zeros(d, d, dtype=s.dtype, device=s.device)
    ahead, momentum = K, 1.0
    for _ in range(steps):
        pull = torch.sigmoid(-2 * s * (s @ ahead)) * s
        slope = -2 * (s.T @ pull) / n
        new = ahead - rate * torch.where(others, slope + slope.T, 0.0) / 2
        new = new.sign() * (new.abs() - rate * penalty).clamp_min(0)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead, K, momentum = new + (momentum - 1) / following * (new - K), new, following
    return K


def on_graph(s: np.ndarray, graph: np.ndarray, steps: int = 25) -> tuple[np.ndarray, np.ndarray]:
    """K on a graph and its standard error, (d, d): every spin given its neighbours, the mean of both directions.

    A logistic regression for each spin, by Newton's method, with a prior of deviation 1 that keeps separated ones finite.
    """
    n, d = s.shape
    value, variance = np.zeros((d, d)), np.full((d, d), np.inf)
    for i in range(d):
        near = np.flatnonzero(graph[i])
        if not len(near):
            continue
        x, k = s[:, near] * s[:, i : i + 1], np.zeros(len(near))  # P = σ(2 x·k)
        for _ in range(steps):
            p = expit(-2 * x @ k)
            curved = (x * (4 * p * (1 - p))[:, None]).T @ x + np.eye(len(near))
            k = k + np.clip(np.linalg.solve(curved, 2 * x.T @ p - k), -1, 1)
        value[i, near], variance[i, near] = k, np.diag(np.linalg.inv(curved))
    return (value + value.T) / 2, np.sqrt((variance + variance.T) / 2)
