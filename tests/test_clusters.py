"""Moves for sums over pairs: exact for any log-potential, couplings read off and refused, annealing from both ends."""

import math

import pytest
import torch

from ctem.bases import ProductBase
from ctem.benchmarks.lattices import Ising
from ctem.checking.pairs import PairChains
from ctem.checking.potential import Counted
from ctem.partition import log_z_enumerate
from ctem.samplers import BlockFlips, ClusterFlips, Couplings, anneal_bits, find_couplings
from ctem.spaces import Category, Space

SPACE = Space([Category(2)] * 6)
EDGES = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 4], [0, 4], [1, 4]])
SKEWED = Couplings(
    EDGES, torch.tensor([0.9, -0.7, 1.1, 0.4, -1.3, 0.8]), torch.tensor([0.5, 0.0, -0.8, 0.2, 0.0, 1.0])
)


def f(x):
    """The couplings, and a triple that they know nothing of."""
    return SKEWED.value(x) + 0.9 * x[:, 0] * x[:, 2] * x[:, 5]


MOVES = {
    "clusters": ClusterFlips(SKEWED, torch.zeros(6), 12),
    "blocks": BlockFlips(SKEWED.colours(), 12),
    "blocks that touch": BlockFlips(torch.tensor([[True] * 3 + [False] * 3, [False] * 3 + [True] * 3]), 12),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_move_leaves_a_skewed_law_invariant_whatever_it_knows_of_it(name):
    states, n, g = SPACE.states(torch.float32), 20_000, torch.Generator().manual_seed(0)
    p = f(states).softmax(0)
    x = states[torch.multinomial(p, n, replacement=True, generator=g)]
    y = anneal_bits(lambda rows, s: f(rows), x, [1e-7], [MOVES[name]], g).x
    assert float((x != y).any(1).float().mean()) > 0.5
    code = (y @ (2.0 ** torch.arange(5, -1, -1))).long()
    share = torch.zeros(64).scatter_add(0, (states @ (2.0 ** torch.arange(5, -1, -1))).long(), p)
    chi2 = float(((code.bincount(minlength=64) - n * share) ** 2 / (n * share)).sum())
    assert chi2 < 63 + 5 * math.sqrt(2 * 63)


def test_couplings_are_read_off_a_sum_over_pairs_and_refused_elsewhere():
    g = torch.Generator().manual_seed(0)
    found = find_couplings(_smooth, 6, g)
    assert {tuple(e) for e in found.edges.tolist()} == {tuple(sorted(e)) for e in EDGES.tolist()}
    x = SPACE.states(torch.float32)
    beside = found.value(x) - SKEWED.value(x)
    assert float(beside.max() - beside.min()) < 1e-5
    W = torch.randn(6, 8, generator=g)
    assert find_couplings(lambda x: (x @ W).tanh().sum(-1), 6, g) is None
    assert find_couplings(lambda x: _smooth(x) + 0.1 * x[:, 0] * x[:, 2] * x[:, 5], 6, g) is None
    assert find_couplings(lambda x: x.sum(-1), 6, g) is None


def _smooth(x):
    a, b = x[:, EDGES[:, 0]], x[:, EDGES[:, 1]]
    return ((a * b + (1 - a) * (1 - b)) * SKEWED.weights).sum(-1) + x @ SKEWED.field


def test_labels_on_a_gpu_are_those_of_scipy():
    lattice = Ising(5, 0.4)
    h = find_couplings(lattice, 25, torch.Generator().manual_seed(0))
    joined = torch.rand(40, len(h.edges), generator=torch.Generator().manual_seed(1)) < 0.5
    for a, b in zip(h.clusters(joined), h.smallest(joined), strict=True):
        pairs = set(zip(a.tolist(), b.tolist(), strict=True))
        assert len(pairs) == len(set(a.tolist())) == len(set(b.tolist()))


def test_annealing_along_other_couplings_has_the_constant_of_f():
    g = torch.Generator().manual_seed(0)
    chains = PairChains(Counted(f, SPACE), SKEWED, 20, 1, g)
    base = ProductBase(SPACE, [torch.tensor([0.3, 0.7])] * 6)
    truth = log_z_enumerate(f, SPACE).value
    x = SPACE.states(torch.float32)
    x = x[torch.multinomial(f(x).softmax(0), 4000, replacement=True, generator=g)]
    for log_w, sign in ((chains.up(base, 4000)[0], 1), (chains.down(base, x), -1)):
        value = sign * (float(log_w.logsumexp(0)) - math.log(4000))
        se = float((log_w - log_w.max()).exp().std() / (log_w - log_w.max()).exp().mean()) / math.sqrt(4000)
        assert abs(value - truth) < 4 * se
        assert se < 0.05
