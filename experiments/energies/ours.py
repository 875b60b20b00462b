"""The seven 32-bit sets by counts of prefixes, the high bits of both coordinates first.

What is known of the space decides the order and no more: bits of a coordinate stand from high to low, so that the first
bits of both name a square of the plane, and every two more a smaller one. No energy of the other table knows that. The
law is normalised bit by bit, so that its nats need no log Z, and nothing is chosen: the prior of a share is Jeffreys',
and a prefix is as likely to be split as not. The protocol has no end of rows: it learns from new ones.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaln

from ctem.benchmarks.gray import GraySet
from ctem.benchmarks.metrics import hamming_mmd
from experiments.energies.bits import Size, Truth
from experiments.pieces import Piece
from experiments.results import Record, summarise

SYSTEM = "counts of prefixes, in one order"
SOME = 2**17  # rows that are made at a time
ROWS_SEED = 100  # no seed of ``Truth``
SECONDS = 20.0  # of a seed, for the order of pieces
PRIOR = 0.5  # of a bit's share: Jeffreys' (Krichevsky and Trofimov)

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]


class PrefixTree:
    """b(x) of rows of bits by counts of their prefixes, weighed over all depths (Willems, Shtarkov, Tjalkens 1995).

    What follows a prefix s, which n_s rows have, is either uniform or split by the next bit b:

        b(rest | s) = (1 − w_s) 2^−left + w_s (n_sb + ½)/(n_s + 1) b(rest without b | sb)

    where w_s is the posterior probability of a split, if both are as likely before.

    Arguments:
        x: rows of bits (n, d), d ≤ 62, in the order in which they are drawn.

    >>> tree = PrefixTree(np.array([[0, 1], [0, 1], [0, 0]]))
    >>> states = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> float(np.exp(tree.log_prob(states)).sum())
    1.0
    """

    def __init__(self, x: NDArray) -> None:
        self.bits = x.shape[1]
        codes = np.sort(_codes(x))
        levels = [codes >> (self.bits - t) for t in range(self.bits + 1)]
        self.keys, self.counts = zip(*[np.unique(level, return_counts=True) for level in levels], strict=True)
        self.log_split: list[Floats] = []  # log w_s of every level
        below = np.zeros(len(self.keys[-1]))
        for t in range(self.bits - 1, -1, -1):
            parent = np.searchsorted(self.keys[t], self.keys[t + 1] >> 1)
            pair = np.zeros((len(self.keys[t]), 2))
            pair[parent, self.keys[t + 1] & 1] = self.counts[t + 1]
            apart = _log_evidence(pair) + np.bincount(parent, below, len(pair))
            either = np.logaddexp(apart, -pair.sum(1) * (self.bits - t) * math.log(2))
            self.log_split.insert(0, apart - either)
            below = either - math.log(2)

    def log_prob(self, x: NDArray) -> Floats:
        """log b of rows (n, d), (n,)."""
        codes, total = _codes(x), np.full(len(x), -np.inf)
        log_w = np.zeros(len(x))  # that every prefix so far is split, and of their bits
        for t in range(self.bits):
            split, share = self._next(t, codes >> (self.bits - t), codes >> (self.bits - t - 1) & 1)
            with np.errstate(divide="ignore"):
                ends = np.log(-np.expm1(split))
            total = np.logaddexp(total, log_w + ends - (self.bits - t) * math.log(2))
            log_w = log_w + split + np.log(share)
        return np.logaddexp(total, log_w)

    def sample(self, n: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """n rows of bits (n, d)."""
        codes, goes_on = np.zeros(n, np.int64), np.ones(n, bool)
        for t in range(self.bits):
            split, share = self._next(t, codes, np.ones(n, np.int64))
            goes_on &= np.log(generator.random(n)) < split
            codes = codes << 1 | (generator.random(n) < np.where(goes_on, share, 0.5))
        return codes[:, None] >> np.arange(self.bits - 1, -1, -1) & 1

    def _next(self, t: int, prefixes: Codes, bit: Codes) -> tuple[Floats, Floats]:
        """log w of prefixes of t bits, and the share of the bit that follows; one that no row has is as before."""
        at, count = self._counted(t, prefixes)
        _, following = self._counted(t + 1, prefixes << 1 | bit)
        split = np.where(count > 0, self.log_split[t][at], -math.log(2))
        return np.minimum(split, 0.0), (following + PRIOR) / (count + 2 * PRIOR)

    def _counted(self, t: int, prefixes: Codes) -> tuple[Codes, Codes]:
        keys = self.keys[t]
        at = np.searchsorted(keys, prefixes).clip(max=len(keys) - 1)
        return at, np.where(keys[at] == prefixes, self.counts[t][at], 0)


def interleaved(bits: NDArray) -> NDArray:
    """Rows of both coordinates' bits one after the other as rows of their bits in turn, or such rows as they were."""
    return bits.reshape(len(bits), 2, -1).transpose(0, 2, 1).reshape(len(bits), -1)


def separated(turns: NDArray) -> NDArray:
    """Undo ``interleaved``."""
    return turns.reshape(len(turns), -1, 2).transpose(0, 2, 1).reshape(len(turns), -1)


def pieces(size: Size) -> list[Piece]:
    """A density of every set."""
    return [Piece("ours", name, size.seeds * SECONDS) for name in size.sets]


def measure(truth: Truth, data: str) -> list[Record]:
    """Records of one set, on the truth's rows of it; a tree of its own for every seed."""
    size, target, found = truth.size, GraySet(data), []
    for seed in range(size.seeds):
        began = time.perf_counter()
        first = ROWS_SEED + 1000 * seed
        parts = [_drawn(target, SOME, first + k) for k in range(-(-size.more_rows // SOME))]
        drawn = time.perf_counter() - began
        tree = PrefixTree(np.concatenate(parts)[: size.more_rows])
        values = judged(tree, truth, data, seed) | {"rows": size.more_rows, "seconds of drawing rows": drawn}
        found.append(values | {"seconds": time.perf_counter() - began})
    nats = [each["nats above the floor"] for each in found]
    print(f"{SYSTEM}, {data}: {np.mean(nats):.4f}, {np.round(nats, 4)}", flush=True)
    return [summarise(data, SYSTEM, metric, [each[metric] for each in found]) for metric in found[0]]


def judged(tree: PrefixTree, truth: Truth, data: str, seed: int) -> dict[str, float]:
    """Nats above the floor on the truth's rows of the set, and MMD of draws."""
    size, s = truth.size, truth.size.sets.index(data)
    rows = truth.x[s, : size.draws].cpu().numpy()
    gap = truth.log_rho[s, : size.draws].cpu().numpy() - tree.log_prob(interleaved(rows))
    drawn = separated(tree.sample(size.samples * size.repeats, np.random.default_rng(seed)))
    theirs = truth.fresh[s].chunk(size.repeats)
    ours = torch.as_tensor(drawn, dtype=theirs[0].dtype, device=theirs[0].device).chunk(size.repeats)
    distances = [hamming_mmd(a, b) for a, b in zip(ours, theirs, strict=True)]
    return {
        "nats above the floor": float(gap.mean()),
        "MMD, exponential Hamming, × 1e4": 1e4 * sum(distances) / len(distances),
        "standard error of nats": float(gap.std()) / math.sqrt(len(gap)),
    }


def _log_evidence(pair: Floats) -> Floats:
    """log of the probability of so many zeros and ones, (n, 2), under Jeffreys' prior of their share."""
    return betaln(pair[:, 0] + PRIOR, pair[:, 1] + PRIOR) - betaln(PRIOR, PRIOR)


def _codes(x: NDArray) -> Codes:
    """Rows of bits as whole numbers, the first bit the highest."""
    return x.astype(np.int64) @ (1 << np.arange(x.shape[1] - 1, -1, -1))


def _drawn(target: GraySet, n: int, seed: int) -> NDArray[np.uint8]:
    return interleaved(target.sample(n, seed=seed)).astype(np.uint8)
