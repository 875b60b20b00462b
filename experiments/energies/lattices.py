"""Spins with exact truth: does ``ctem.check`` bracket log Z, and how well are couplings learned from exact samples?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import expit
from scipy.stats import norm

from ctem.benchmarks.lattices import Ising, Potts, RandomIsing
from ctem.checking import Budget, check
from experiments.results import Record, summarise

# |error of log Z| of F/D in Ou, Zhang & Li, Table 2 (10²), and width of the best bracket of the ICML 2026 notes (16²)
PUBLISHED_ERROR = {("10 × 10", 0.2): 0.035, ("10 × 10", 0.4407): 0.54}
PUBLISHED_WIDTH = {("16 × 16", 0.6): 0.12, ("16 × 16", 1.2): 0.11}
LATTICES = ((10, 0.2), (10, 0.4407), (16, 0.28), (16, 0.4407), (16, 0.6), (16, 1.2))
COUPLINGS = ((10, 0.1), (10, 0.2), (10, 0.3), (10, 0.4), (10, 0.5), (9, -0.1), (9, -0.2))  # side, σ of x'Jx
BEST = (6.1, 5.1, 3.4, 2.6, 2.3, 5.7, 5.1)  # −log RMSE, Table 5 of the same: the best of its five rows

LOOKED_AT = 5  # seeds 0 to 4 of the couplings: their scores were seen while the estimator was chosen


class Size(NamedTuple):
    """How much is spent."""

    lattices: tuple[tuple[int, float], ...]
    budget: Budget
    potts: int  # side, three states; 0 leaves it out
    couplings: int  # columns of the table
    seeds: int
    sweeps: int  # of Swendsen–Wang
    steps: int  # of the descent


FULL = Size(LATTICES, Budget(chains=16384, levels=1500, moves=4, steps=0, draws=20_000), 8, 7, 5, 30, 2000)
QUICK = Size(((5, 0.3),), Budget(chains=300, levels=40, moves=2, steps=0, draws=500), 0, 1, 1, 20, 50)


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
        for seed in range(LOOKED_AT, LOOKED_AT + size.seeds):
            J, way = learned_couplings(2 * system.sample(2000, seed, size.sweeps) - 1, device, size.steps)
            scores.append(-math.log(math.sqrt(np.mean((J - system.coupling_matrix) ** 2))))
        floor = system.coupling_floor(2000, seed=100, samples=5000 if size.seeds > 1 else 500)
        records += [
            summarise(data, "pseudo-likelihood", "−log RMSE of J", scores, best),
            summarise(data, "maximum likelihood, graph known", "−log RMSE of J", [floor]),
        ]
        spent = time.perf_counter() - began
        log(
            f"{data}: {np.mean(scores):.2f} (published {best}, floor {floor:.2f}), {way}, {spent:.0f} s",
            flush=True,
        )
    return records


def learned_couplings(s: np.ndarray, device: str = "cpu", steps: int = 1000) -> tuple[np.ndarray, str]:
    """J of spins s (n, d), by pseudo-likelihood; of a few ways the one that is best on a quarter of the rows."""
    quarter = len(s) // 4
    scores = {way: held_out_loss(s[:quarter], make(s[quarter:], device, steps)) for way, make in WAYS.items()}
    best = min(scores, key=scores.__getitem__)
    return WAYS[best](s, device, steps) / 2, best


def held_out_loss(s: np.ndarray, K: np.ndarray) -> float:
    """The mean over rows of −Σ_i log p(s_i | others)."""
    return float(np.logaddexp(0, -2 * s * (s @ K)).sum(1).mean())


def significant(s: np.ndarray, device: str, steps: int) -> np.ndarray:
    """K on the graph of couplings that are significant at 5 %, Bonferroni over all pairs; neighbours found greedily.

    Jalali, Johnson & Ravikumar 2011.
    """
    d = s.shape[1]
    graph = np.zeros((d, d), dtype=bool)
    for i in range(d):
        graph[i, neighbours(s, i)] = True
    value, error = on_graph(s, graph | graph.T)
    limit = norm.isf(0.05 / (d * (d - 1)))
    return on_graph(s, np.abs(value) > limit * error)[0]


def penalised(share: float) -> Callable[[np.ndarray, str, int], np.ndarray]:
    """Symmetric K with an l1 penalty, a share of √(log d / n) (Ravikumar, Wainwright & Lafferty 2010): FISTA."""

    def descended(rows: np.ndarray, device: str, steps: int) -> np.ndarray:
        s = torch.as_tensor(rows, dtype=torch.float64, device=device)
        n, d = s.shape
        rate = 1 / (2 * float(torch.linalg.eigvalsh(s.T @ s / n)[-1]))
        shrink = rate * share * math.sqrt(math.log(d) / n)
        others = ~torch.eye(d, dtype=torch.bool, device=device)
        K = torch.zeros(d, d, dtype=s.dtype, device=device)
        ahead, momentum = K, 1.0
        for _ in range(steps):
            slope = -2 * (s.T @ (torch.sigmoid(-2 * s * (s @ ahead)) * s)) / n
            new = ahead - rate * torch.where(others, slope + slope.T, 0.0) / 2
            new = new.sign() * (new.abs() - shrink).clamp_min(0)
            following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            ahead, K, momentum = new + (momentum - 1) / following * (new - K), new, following
        return K.cpu().numpy()

    return descended


def neighbours(s: np.ndarray, i: int, gain: float = 4.0, most: int = 20) -> list[int]:
    """Spins that raise the log-likelihood of spin i, one after the other, by at least so many nats (score test)."""
    x, chosen = s * s[:, i : i + 1], []
    x[:, i] = 0.0
    k = np.zeros(0)
    while len(chosen) < most:
        k = regressed(x[:, chosen], k)
        p = expit(-2 * x[:, chosen] @ k)
        score, weight = 2 * x.T @ p, 4 * p * (1 - p)
        information = np.full(s.shape[1], weight.sum())
        if chosen:
            across = (x * weight[:, None]).T @ x[:, chosen]
            inside = across[chosen] + np.eye(len(chosen))
            information = information - np.einsum("jk,jk->j", across, np.linalg.solve(inside, across.T).T)
        gains = score**2 / np.maximum(information, 1e-9) / 2
        gains[[i, *chosen]] = 0.0
        best = int(np.argmax(gains))
        if gains[best] < gain:
            break
        chosen, k = [*chosen, best], np.append(k, 0.0)
    return chosen


def regressed(x: np.ndarray, k: np.ndarray, steps: int = 12) -> np.ndarray:
    """k that maximises Σ log σ(2 x·k), by Newton's method; a prior of deviation 1 keeps separated ones finite."""
    for _ in range(steps if len(k) else 0):
        p = expit(-2 * x @ k)
        curved = (x * (4 * p * (1 - p))[:, None]).T @ x + np.eye(len(k))
        k = k + np.clip(np.linalg.solve(curved, 2 * x.T @ p - k), -1, 1)
    return k


def on_graph(s: np.ndarray, graph: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """K on a graph and its standard error, (d, d): every spin given its neighbours, the mean of both directions.

    The error is that of the mean of both influence functions, whatever the two directions share.
    """
    n, d = s.shape
    value, influence = np.zeros((d, d)), {}
    for i in range(d):
        near = np.flatnonzero(graph[i])
        x = s[:, near] * s[:, i : i + 1]
        k = regressed(x, np.zeros(len(near)), 25)
        p = expit(-2 * x @ k)
        curved = (x * (4 * p * (1 - p))[:, None]).T @ x + np.eye(len(near))
        pull = np.linalg.solve(curved, (2 * x * p[:, None]).T) if len(near) else np.zeros((0, n))
        value[i, near] = k
        influence |= {(i, j): pull[a] for a, j in enumerate(near)}
    error = np.full((d, d), np.inf)
    for i, j in influence:
        error[i, j] = np.sqrt(np.square((influence[i, j] + influence[j, i]) / 2).sum())
    return (value + value.T) / 2, error


WAYS = {
    "significant couplings": significant,
    "l1, theory's penalty": penalised(1.0),
    "l1, a fifth of it": penalised(0.2),
    "l1, a twentieth": penalised(0.05),
}
