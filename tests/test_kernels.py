"""Every kernel keeps the contract: y ~ k(·|x), log_ratio = log k(y|x) − log k(x|y)."""

import pytest
import torch

from ctem.bases import ProductBase
from ctem.matching.kernels import (
    Gaussian,
    Graph,
    Grid,
    HammingOne,
    Mixture,
    OrnsteinUhlenbeck,
    Product,
    Redraw,
    Refresh,
    Sphere,
    Uniform,
)
from ctem.spaces import Angle, Category, Ordinal, Real, Space

FINITE = Space([Category(3), Ordinal(4), Ordinal(2)])
PLANE = Space([Real(), Real()])
MIXED = Space([Real(), Real(), Category(5)])
CORNER = Space([Real(low=0.2), Angle()])


def random_base(space, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return ProductBase(
        space, [torch.rand(space.sizes[j], generator=generator) + 0.2 for j in space.discretes]
    )


def random_graph(space, seed=0):
    generator = torch.Generator().manual_seed(seed)
    n = len(space.states())
    tree = torch.stack(
        [torch.arange(1, n), (torch.rand(n - 1, generator=generator) * torch.arange(1, n)).long()]
    )
    return Graph(space, tree.T, torch.rand(n - 1, generator=generator) + 0.2)


DISCRETE = {
    "hamming": HammingOne(FINITE),
    "uniform": Uniform(FINITE),
    "uniform on two columns": Uniform(FINITE, columns=[0, 2]),
    "grid": Grid(FINITE),
    "grid with reach 2": Grid(FINITE, reach=2),
    "graph": random_graph(FINITE),
    "redraw": Redraw(random_base(FINITE)),
    "refresh": Refresh(random_base(FINITE), 0.4),
    "refresh of two columns": Refresh(random_base(FINITE), 0.7, columns=[0, 2]),
    "product": Product(HammingOne(FINITE, columns=[0]), Grid(FINITE, columns=["x1", "x2"])),
    "product of redraws": Product(*[Redraw(random_base(FINITE), columns=[j]) for j in range(3)]),
    "mixture": Mixture([Grid(FINITE), Uniform(FINITE)], [0.7, 0.3]),
}
REAL = {
    "sphere": Sphere(PLANE, 0.4),
    "gaussian": Gaussian(PLANE, 0.3),
    "one column": Gaussian(PLANE, 0.3, columns=[1]),
    "ornstein-uhlenbeck": OrnsteinUhlenbeck(PLANE, 0.6),
    "redraw from the base": OrnsteinUhlenbeck(PLANE, 1.0),
    "mixture": Mixture([Sphere(PLANE, 0.2), Gaussian(PLANE, 1.0)], [0.5, 0.5]),
    "beside an end and around a circle": Gaussian(CORNER, 0.8),
    "a sphere beside an end": Sphere(CORNER, 0.7),
    "joint mixed": Product(Sphere(MIXED, 0.5), HammingOne(MIXED)),
    "joint reversible": Product(OrnsteinUhlenbeck(MIXED, 0.5), Redraw(random_base(MIXED))),
    "joint refresh": Product(OrnsteinUhlenbeck(MIXED, 0.5), Refresh(random_base(MIXED), 0.5)),
}


@pytest.mark.parametrize("kernel", DISCRETE.values(), ids=DISCRETE)
def test_simulated_moves_follow_the_listed_edges(kernel):
    states, n = kernel.space.states(), 4000
    y, log_ratio = kernel.compare(states, torch.Generator().manual_seed(1), m=n)
    count = torch.zeros(len(states), len(states), dtype=torch.float64)
    source = torch.arange(len(states)).expand(n, -1)
    count.index_put_((source, kernel.space.index(y)), torch.ones(n, len(states)).double(), accumulate=True)
    edges = kernel.edges()
    listed = torch.zeros_like(count).index_put_((edges.source, edges.target), edges.weight, accumulate=True)
    holds = 1 - listed.sum(1)
    listed += torch.diag(torch.where(holds > 1e-6, holds, 0.0))
    error = (count / n - listed).abs() / (listed * (1 - listed) / n).sqrt().clamp_min(1 / n)
    assert float(error.max()) < 5.5
    assert bool(((listed > 0) | (count == 0)).all())
    if "mixture" not in repr(kernel).lower():
        table = torch.full(count.shape, float("nan"), dtype=torch.float64)
        table[edges.source, edges.target] = edges.log_ratio
        table.fill_diagonal_(0.0)
        torch.testing.assert_close(
            log_ratio.double(), table[source, kernel.space.index(y)], atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("kernel", DISCRETE.values(), ids=DISCRETE)
def test_the_log_ratio_is_the_asymmetry_of_the_edges(kernel):
    """k(j|i) e^{−r_ij} = k(i|j), summed over the ways to make the move."""
    n = int(kernel.space.n_states)
    source, target, weight, ratio = kernel.edges()
    there = torch.zeros(n, n, dtype=torch.float64).index_put_((source, target), weight, accumulate=True)
    back = torch.zeros(n, n, dtype=torch.float64).index_put_(
        (target, source), weight * (-ratio).exp(), accumulate=True
    )
    torch.testing.assert_close(there, back, atol=1e-7, rtol=1e-6)
    assert bool((source != target).all())


@pytest.mark.parametrize("kernel", REAL.values(), ids=REAL)
def test_real_moves_are_reversible_after_correction(kernel):
    """E[e^{−log_ratio} φ(x, y)] is symmetric in x and y when x is uniform: tested with x wide and φ local."""
    generator = torch.Generator().manual_seed(2)
    n, half = 400_000, 6.0
    x = torch.empty(n, kernel.space.dim).uniform_(-half, half, generator=generator)
    for j in kernel.space.discretes:
        x[:, j] = torch.randint(kernel.space.sizes[j], (n,), generator=generator).float()
    for j in kernel.space.angles:
        x[:, j] = 2 * torch.pi * torch.rand(n, generator=generator)
    x = kernel.space.folded(x)
    y, log_ratio = kernel.compare(x, generator)
    y, weight = y[0], (-log_ratio[0]).exp()

    def bump(a, b):  # asymmetric, and negligible outside the box
        label = (1 + a[:, -1] * (kernel.space.sizes[-1] > 0)) * (2 + b[:, -1].cos())
        return torch.exp(-((a - 0.5) ** 2)[:, :2].sum(-1) - 0.5 * ((b + 0.3) ** 2)[:, :2].sum(-1)) * label

    difference = bump(x, y) - weight * bump(y, x)
    standard_error = difference.std() / n**0.5
    assert abs(float(difference.mean())) < 4 * float(standard_error)


@pytest.mark.parametrize("kernel", [REAL["sphere"], REAL["gaussian"]], ids=["sphere", "gaussian"])
def test_antithetic_comparisons_come_in_opposite_pairs(kernel):
    x = torch.zeros(5, 2)
    y = kernel.compare(x, torch.Generator().manual_seed(0), m=4).y
    assert torch.equal(y[:2], -y[2:])


@pytest.mark.parametrize("kernel", [*DISCRETE.values(), *REAL.values()], ids=[*DISCRETE, *REAL])
def test_the_same_seed_gives_the_same_bits_and_leaves_the_global_generator_alone(kernel):
    x = torch.zeros(6, kernel.space.dim)
    before = torch.random.get_rng_state()
    first, second = (kernel.compare(x, torch.Generator().manual_seed(3), m=2) for _ in range(2))
    assert torch.equal(first.y, second.y)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_steps_have_the_stated_length():
    x, generator = torch.zeros(20000, 2), torch.Generator().manual_seed(0)
    for kernel in (REAL["sphere"], REAL["gaussian"], REAL["ornstein-uhlenbeck"]):
        y = kernel.compare(x, generator).y[0]
        assert float((y**2).sum(-1).mean().sqrt()) == pytest.approx(kernel.radius, rel=0.02)


def test_uniform_and_hamming_never_stay():
    generator = torch.Generator().manual_seed(0)
    for kernel in (DISCRETE["uniform"], DISCRETE["hamming"], DISCRETE["redraw"]):
        x = FINITE.states()
        y = kernel.compare(x, generator, m=50).y
        assert bool((y != x).any(-1).all())
