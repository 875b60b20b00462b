"""Laws of the benchmarks with truth: lattices, 32-bit sets, the mixed law."""

import math

import numpy as np
import pytest
import torch

from ctem.benchmarks.gray import GRAY_SETS, GraySet
from ctem.benchmarks.lattices import Ising, Potts, RandomIsing, kaufman_log_z, transfer_log_z
from ctem.benchmarks.mixed import MixedClusters
from ctem.partition import log_z_enumerate

pytestmark = pytest.mark.long  # of benchmarks with a known truth
PUBLISHED_FLOORS = [20.035, 19.979, 20.551, 19.717, 19.553, 20.137, 20.677]  # by Monte Carlo, ± .003 to .007


@pytest.mark.parametrize("coupling", [0.3, 0.6, -0.2])
def test_kaufman_and_the_transfer_matrix_are_the_sum_over_all_states_of_a_small_torus(coupling):
    lattice = Ising(4, coupling)
    exact = log_z_enumerate(lattice, lattice.space, dtype=torch.float64).value
    assert lattice.log_z == pytest.approx(exact, abs=1e-10)


@pytest.mark.parametrize("coupling", [0.2, 0.4407, 0.6])
def test_kaufman_is_the_transfer_matrix_at_ten_by_ten(coupling):
    transfer = transfer_log_z(10, 10, 2, 2 * coupling) - 200 * coupling
    assert kaufman_log_z(10, 10, coupling) == pytest.approx(transfer, abs=1e-10)


def test_the_transfer_matrix_of_potts_is_the_sum_over_all_states():
    lattice = Potts(3, 3, 0.7)
    exact = log_z_enumerate(lattice, lattice.space, dtype=torch.float64).value
    assert lattice.log_z == pytest.approx(exact, abs=1e-10)


@pytest.mark.parametrize(
    "system", [Ising(3, 0.5), Ising(3, -0.3), Potts(3, 3, 0.9), RandomIsing(9, 3, 0.6, seed=1)]
)
def test_swendsen_wang_draws_the_law(system):
    f = system(system.space.states(torch.float64))
    p, n = f.softmax(0), 20_000
    x = torch.as_tensor(system.sample(n, seed=0, sweeps=20))
    for values in (
        f,
        (system.space.states(torch.float64)[:, 0] == system.space.states(torch.float64)[:, 4]).double(),
    ):
        mean = (p * values).sum()
        error = math.sqrt(float((p * (values - mean) ** 2).sum()) / n)
        assert abs(float(values[system.space.index(x)].mean() - mean)) < 4 * error


def test_the_floor_of_couplings_is_what_maximum_likelihood_reaches():
    system, n = Ising(3, 0.15), 4000
    states = system.space.states(torch.float64)
    s = 2 * states - 1
    pairs = s[:, system.edges[:, 0]] * s[:, system.edges[:, 1]]
    errors = []
    for seed in range(4):
        seen = pairs[system.space.index(torch.as_tensor(system.sample(n, seed, sweeps=10)))].mean(0)
        K = torch.zeros(len(system.edges), dtype=torch.float64)
        for _ in range(30):  # Newton's method on the exact likelihood
            p = (pairs @ K).softmax(0)
            centred = pairs - p @ pairs
            K = K + torch.linalg.solve((centred.T * p) @ centred, seen - p @ pairs)
        J = np.zeros((9, 9))
        J[system.edges[:, 0], system.edges[:, 1]] = K.numpy() / 2
        errors.append(np.mean((J + J.T - system.coupling_matrix) ** 2))
    assert -0.5 * math.log(np.mean(errors)) == pytest.approx(
        system.coupling_floor(n, seed=9, samples=8000), abs=0.2
    )


@pytest.mark.parametrize("name", GRAY_SETS)
def test_a_floor_is_the_mean_surprise_of_draws(name):
    target, n = GraySet(name), 4_000
    log_p = target.log_density(target.sample(n, seed=5))
    error = float(log_p.std()) / math.sqrt(n)
    assert abs(float(-log_p.mean()) - target.floor) < 3.5 * error + 1e-5
    assert target.floor == pytest.approx(dict(zip(GRAY_SETS, PUBLISHED_FLOORS, strict=True))[name], abs=0.01)


@pytest.mark.parametrize("name", GRAY_SETS)
def test_bits_are_a_gray_code_of_the_points(name):
    target = GraySet(name)
    points = target.plane.draw(300, np.random.default_rng(0))
    back = target.points(torch.as_tensor(target.bits(points))).numpy()
    assert np.abs(back - points).max() <= 0.5001 / target.scale
    step = np.array([[0.3, 0.3], [0.3 + 1 / target.scale, 0.3]])
    assert np.abs(np.diff(target.bits(step), axis=0)).sum() == 1  # neighbours differ in one bit


@pytest.mark.parametrize("name", GRAY_SETS)
def test_a_planar_law_integrates_to_one(name):
    step = 0.1
    axis = torch.arange(-5.5 + step / 2, 5.5, step, dtype=torch.float64)
    log_p = GraySet(name).plane.log_density(torch.cartesian_prod(axis, axis))
    assert float(log_p.exp().sum()) * step**2 == pytest.approx(1, abs=2e-3)


def test_the_mixed_law_is_normalised_and_draws_what_it_says():
    law, n = MixedClusters(), 4000
    X = law.sample(n, seed=0)
    law.space.encode(X)
    proposal = MixedClusters(seed=0)
    proposal.weights = np.full(6, 1 / 6)  # the same clusters, others weights: weights of mean 1
    Y = proposal.sample(n, seed=1)
    ratio = (law.log_density(Y) - proposal.log_density(Y)).exp()
    assert abs(float(ratio.mean()) - 1) < 4 * float(ratio.std()) / math.sqrt(n)
    other = (proposal.log_density(X) - law.log_density(X)).exp()
    assert abs(float(other.mean()) - 1) < 4 * float(other.std()) / math.sqrt(n)


def test_a_cluster_of_the_mixed_law_is_a_product_of_normalised_columns():
    law = MixedClusters(clusters=1, seed=3)
    row = law.sample(1, seed=0)
    here, total = float(law.log_density(row)), 0.0
    for j, size in enumerate(law.space.sizes):
        ends = (-12.0, 12.0) if j < 4 else (0.0, 2 * np.pi)
        values = np.arange(size) if size else np.linspace(*ends, 4001)
        rows = np.repeat(row, len(values), 0)
        rows[:, j] = values
        p = law.log_density(rows).exp().numpy()
        total += math.log(p.sum() if size else np.trapezoid(p, values)) - here  # −log of column j at the row
    assert total == pytest.approx(-here, abs=1e-6)
