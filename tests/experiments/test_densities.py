"""The experiments' densities integrate to one and are the densities of their own samples."""

import numpy as np
import pytest
import torch

from ctem.benchmarks.targets import grid
from experiments.paper.robustness import FURTHER

pytestmark = pytest.mark.long  # of the experiments, not of the library
PLANAR = [name for name, target in FURTHER.items() if target.space.dim == 2]


@pytest.mark.parametrize("name", PLANAR)
def test_a_planar_density_integrates_to_one(name):
    target = FURTHER[name]
    square = grid((-12.0, 12.0) if name == "funnel" else target.bounds, points=1201)
    mass = float((target.log_density(square.X).exp() * square.weights).sum())
    assert mass == pytest.approx(
        1, abs=0.005
    )  # the board's edges are jumps, the funnel's tails leave the square


@pytest.mark.parametrize("name", FURTHER)
def test_samples_follow_the_density(name):
    """The share of samples in a box is the density's integral over it, by uniform draws."""
    target, n = FURTHER[name], 200_000
    X = torch.as_tensor(target.sample(n, seed=0))
    low, high = X[:2000].quantile(0.4, dim=0), X[:2000].quantile(0.95, dim=0)
    share = ((low < X) & (high > X)).all(-1).double()
    uniform = torch.as_tensor(np.random.default_rng(1).random((n, X.shape[1])))
    mass = (high - low).prod() * target.log_density(low + (high - low) * uniform).exp()
    error = float((share.var() + mass.var()).sqrt()) / n**0.5
    assert float(share.mean()) == pytest.approx(float(mass.mean()), abs=5 * error)
