"""The noise is a semigroup, reversible with respect to its base, that ends in it."""

import math

import pytest
import torch
from test_kernels import random_base

from ctem.bases import ProductBase
from ctem.matching.noise import Levels, LogUniform, Noise
from ctem.spaces import Category, Ordinal, Real, Space

FINITE = {
    "bit": Space([Category(2)]),
    "category": Space([Category(5)]),
    "ordinal": Space([Ordinal(7)]),
    "product": Space([Category(3), Ordinal(4), Ordinal(2)]),
}


def matrix(noise, level):
    """q_s(x|x0), rows x0, in float64."""
    states = noise.base.space.states(torch.float64)
    n = len(states)
    x0, x = states.repeat_interleave(n, 0), states.repeat(n, 1)
    level = torch.as_tensor(level, dtype=torch.float64)
    s = level.expand(n * n) if level.ndim == 0 else level.expand(n * n, -1)
    return noise.log_prob(x, x0, s).exp().view(n, n)


def exact_noise(space):
    return Noise(random_base(space).double()).double()


@pytest.mark.parametrize("space", FINITE.values(), ids=FINITE)
def test_transitions_sum_to_one_and_form_a_semigroup(space):
    noise = exact_noise(space)
    a, b, c = matrix(noise, 0.3), matrix(noise, 0.9), matrix(noise, 1.2)
    torch.testing.assert_close(c.sum(1), torch.ones(len(c), dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(a @ b, c, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("space", FINITE.values(), ids=FINITE)
def test_transitions_are_reversible_with_respect_to_the_base(space):
    noise = exact_noise(space)
    flow = noise.base.log_prob(space.states(torch.float64)).exp()[:, None] * matrix(noise, 0.6)
    torch.testing.assert_close(flow, flow.T, atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("space", FINITE.values(), ids=FINITE)
def test_zero_is_the_data_and_infinity_the_base(space):
    noise = exact_noise(space)
    n = len(space.states())
    torch.testing.assert_close(matrix(noise, 0.0), torch.eye(n, dtype=torch.float64), atol=1e-9, rtol=0)
    b = noise.base.log_prob(space.states(torch.float64)).exp()
    torch.testing.assert_close(matrix(noise, math.inf), b.expand(n, n), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("space", FINITE.values(), ids=FINITE)
def test_every_column_of_a_uniform_base_relaxes_like_exp_minus_s(space):
    noise = Noise(ProductBase(space).double()).double()
    b = noise.base.log_prob(space.states(torch.float64)).exp()
    far = [(matrix(noise, s) - b).abs().max() for s in (6.0, 7.0)]
    assert float(far[0] / far[1]) == pytest.approx(math.e, rel=0.02)


def test_the_ornstein_uhlenbeck_noise_is_a_reversible_semigroup_that_integrates_to_one():
    noise = exact_noise(Space([Real()]))
    grid = torch.linspace(-9, 9, 901, dtype=torch.float64)
    width = grid[1] - grid[0]
    x0, x = grid.repeat_interleave(901)[:, None], grid.repeat(901)[:, None]

    def q(s):
        return noise.log_prob(x, x0, torch.full((901**2,), s, dtype=torch.float64)).exp().view(901, 901)

    inner = grid.abs() < 3
    torch.testing.assert_close((q(0.4) @ q(0.6) * width)[inner], q(1.0)[inner], atol=1e-8, rtol=1e-6)
    flow = noise.base.log_prob(grid[:, None]).exp()[:, None] * q(0.5)
    torch.testing.assert_close(flow, flow.T)
    torch.testing.assert_close((q(0.5).sum(1) * width)[inner], torch.ones(int(inner.sum())).double())


MIXED = Space([Real(), Category(3), Ordinal(4), Real()])


def test_samples_follow_the_log_density_with_a_clock_per_column():
    noise = exact_noise(MIXED)
    level = torch.tensor([0.3, 0.7, 0.5, math.inf], dtype=torch.float64)
    x0 = torch.tensor([[1.5, 2.0, 3.0, -4.0]], dtype=torch.float64)
    n = 200_000
    x = noise.sample(x0.expand(n, -1), level.expand(n, -1), torch.Generator().manual_seed(0))
    mean, spread = 1.5 * math.exp(-0.3), math.sqrt(1 - math.exp(-0.6))
    assert float(x[:, 0].mean()) == pytest.approx(mean, abs=4 * spread / n**0.5)
    assert float(x[:, 0].std()) == pytest.approx(spread, rel=0.01)
    assert float(x[:, 3].mean()) == pytest.approx(0, abs=4 / n**0.5)  # hidden: nothing of x0 is left
    for j, k in ((1, 3), (2, 4)):
        probe = x0.repeat(k, 1)
        probe[:, j] = torch.arange(k)
        q = noise.column_log_prob(probe, x0.expand(k, -1), level.expand(k, -1))[:, j].exp()
        share = torch.bincount(x[:, j].long(), minlength=k) / n
        assert float(((share - q) / (q * (1 - q) / n).sqrt()).abs().max()) < 4.5


def test_hidden_columns_have_the_density_of_the_base():
    noise = exact_noise(MIXED)
    generator = torch.Generator().manual_seed(0)
    x, x0 = noise.base.sample(50, generator), noise.base.sample(50, generator)
    level = torch.full((50, 4), math.inf, dtype=torch.float64)
    torch.testing.assert_close(noise.column_log_prob(x, x0, level), noise.base.column_log_prob(x))


def test_schedules_draw_their_levels():
    generator = torch.Generator().manual_seed(0)
    levels = Levels.log_spaced(0.005, 1.5, 13)
    assert levels.values[-1] == pytest.approx(1.5)
    assert set(levels.draw(1000, generator, torch.zeros(1)).tolist()) == {
        float(torch.tensor(v)) for v in levels.values
    }
    s = LogUniform(0.01, 5.0).draw(10_000, generator, torch.zeros(1, dtype=torch.float64))
    assert float(s.log().mean()) == pytest.approx((math.log(0.01) + math.log(5)) / 2, abs=0.08)
    assert float(s.min()) >= 0.01
    assert float(s.max()) <= 5.0


def test_an_ordinal_with_a_gap_in_its_marginal_is_not_mixed_by_a_little_noise():
    tables = [torch.tensor([1000.0, 1000, 1000, 0.5, 0.5, 0.5, 0.5, 1000, 1000, 1000])]
    noise = Noise(ProductBase(Space([Ordinal(10)]), tables).double()).double()
    common = [0, 1, 2, 7, 8, 9]
    assert float(matrix(noise, 1e-3).diag()[common].min()) > 0.95
    with pytest.raises(ValueError, match="values of almost no probability in between; smooth it more"):
        Noise(ProductBase(Space([Ordinal(3)]), [torch.tensor([1.0, 1e-20, 1.0])]))
