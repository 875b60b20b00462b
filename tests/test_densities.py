"""The experiments' densities integrate to one and are the densities of their own samples; batching changes nothing."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "experiments"))

from batched import Member, Networks, Pairs, Program
from ctem import MLP, Gaussian, ProductBase, Real, Recipe, Space, Tilted, pair_loss
from ctem.kernels import OrnsteinUhlenbeck
from ctem.targets import grid
from densities import FURTHER
from learned import Energy, normalise_by_importance, normalise_on_plane

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


def layers_to_flat(f: MLP) -> torch.Tensor:
    parts = [p for layer in f.layers if isinstance(layer, nn.Linear) for p in (layer.weight.T, layer.bias)]
    return torch.cat([p.flatten() for p in parts[:-1]]).detach().unsqueeze(0)  # no last bias


def test_a_member_is_the_librarys_network_and_its_loss_the_librarys_loss():
    space, networks = Space([Real(), Real()]), Networks(2, 16)
    f = MLP(space, width=16, seed=0)
    flat = layers_to_flat(f)
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    gaps = networks(flat, x.unsqueeze(0))[0] - f(x)
    assert float(gaps.detach().std()) < 1e-5
    pairs = Pairs(networks, [Member(x=x, scale=0.3)], "cpu", batch_size=40_000)
    generator = torch.Generator().manual_seed(1)
    ours = float(pairs(flat, generator))
    many = x.repeat(800, 1)
    theirs = float(pair_loss(f, many, Gaussian(space, 0.3), generator, m=4).detach())
    assert ours == pytest.approx(theirs, abs=0.01)


def test_with_rates_the_base_cancels():
    """The members' loss is the library's, for the tilted energy under Ornstein–Uhlenbeck comparisons."""
    space, networks = Space([Real(), Real()]), Networks(2, 16)
    net = MLP(space, width=16, seed=0)
    x = 0.7 * torch.randn(50, 2, generator=torch.Generator().manual_seed(0)) + 0.5
    pairs = Pairs(networks, [Member(x=x)], "cpu", rates=(0.4,), batch_size=40_000)
    generator = torch.Generator().manual_seed(1)
    ours = float(pairs(layers_to_flat(net), generator))
    f, kernel = Tilted(ProductBase(space), net), OrnsteinUhlenbeck(space, 0.4)
    theirs = float(pair_loss(f, x.repeat(800, 1), kernel, generator, m=4).detach())
    assert ours == pytest.approx(theirs, abs=0.01)


def test_the_programs_adam_is_torchs_and_members_do_not_meet():
    start = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    aim = torch.arange(15.0).view(3, 5)
    recipe = Recipe(steps=50, learning_rate=0.1, evaluate_every=50)
    decay = torch.tensor([0.0, 0.5, 1.0])
    found = Program(start, lambda p, generator: ((p - aim) ** 2).sum(1), recipe, decay).run().parameters[-1]
    for k in range(3):
        p = start[k].clone().requires_grad_()
        adam = torch.optim.AdamW([p], lr=0.1, weight_decay=float(decay[k]))
        for step in range(50):
            adam.param_groups[0]["lr"] = 0.1 * recipe.rate(step)
            adam.zero_grad()
            ((p - aim[k]) ** 2).sum().backward()
            adam.step()
        assert torch.allclose(found[k], p.detach(), atol=1e-5)


def test_quadrature_and_importance_agree_and_the_mixture_is_normalised():
    X = torch.randn(500, 2, generator=torch.Generator().manual_seed(0)).double() * 3 + 1
    space = Space([Real(), Real()]).standardised(X.numpy())
    networks = Networks(2, 16)
    energy = Energy(networks, networks.initial([0, 1]), space, tilted=True)
    normalise_on_plane(energy, space)
    exact = energy.log_z.clone()
    error = normalise_by_importance(energy, space, 20_000).stderr
    assert torch.allclose(energy.log_z, exact, atol=5 * error)
    energy.log_z = exact
    square = grid((-20.0, 22.0), points=301)
    assert float((energy.log_density(square.X).exp() * square.weights).sum()) == pytest.approx(1, abs=1e-4)
