"""The one-pass potential beside a density: its constant, and how far it says it is from the density."""

import math

import pytest
import torch
from scipy.stats import spearmanr
from test_anyorder import FINITE, awake, seeded, skewed

from ctem.bases import ProductBase
from ctem.densities.anyorder import AnyOrderDensity, AnyOrderNet
from ctem.densities.fast.potential import SpaceTime, fit_fast
from ctem.spaces import Category, Real, Space


@pytest.fixture(scope="module")
def found():
    """A density and a potential trained briefly on its samples, and rows that neither has seen."""
    density = AnyOrderDensity(awake(FINITE, members=2), 1e-3, [[0, 1, 2], [2, 1, 0]])
    x = density.sample(600, seeded())
    fast = fit_fast(density, x[:500], torch.ones(500), x[500:], max_steps=40)
    return density, fast, x[500:]


def test_one_pass_sums_to_one_within_the_error_of_its_constant(found):
    _, fast, _ = found
    total = float(fast.log_prob(FINITE.states()).logsumexp(0))
    assert total == pytest.approx(0, abs=4 * fast.log_z.stderr)
    assert 0 < fast.log_z.stderr < 0.1


def test_the_gap_is_that_of_the_member_that_has_not_seen_the_rows(found):
    density, fast, held_out = found
    x = held_out.unique(dim=0)
    blind = density.altered(member=0).log_prob(x)
    apart = fast.log_prob(x) - blind
    assert fast.gap.rows == len(x)
    assert fast.gap.mean == pytest.approx(float(apart.mean()), abs=1e-6)
    assert fast.gap.stderr == pytest.approx(float(apart.std()) / math.sqrt(len(x)), abs=1e-6)
    assert fast.gap.rank_correlation == pytest.approx(spearmanr(fast.log_prob(x), blind).statistic)


def test_a_part_that_does_not_exist_is_filled_with_base_draws_and_scores_as_if_absent():
    base = skewed(Space([Category(2), Real()]))
    x = torch.tensor([[0.0, 0.3], [0.0, math.nan], [1.0, math.nan]]).repeat(2000, 1)
    filled = SpaceTime(base, {1: 0}).filled(x, seeded())
    absent = x[:, 0] > 0
    assert torch.equal(filled[~absent].nan_to_num(9.0), x[~absent].nan_to_num(9.0))
    drawn = filled[absent, 1]
    assert float(drawn.mean()) == pytest.approx(0, abs=4 / math.sqrt(2000))
    assert float(drawn.std()) == pytest.approx(1, abs=4 / math.sqrt(4000))


def test_the_constant_of_numbers_is_that_of_a_grid():
    """Of a potential trained briefly on a skewed column, beside a density that has learned nothing."""
    x = torch.randn(600, 1, generator=seeded()).exp()
    x = (x - x.mean()) / x.std()
    density = AnyOrderDensity(AnyOrderNet(ProductBase(Space([Real()])), width=8), 1e-3, [[0]])
    fast = fit_fast(density, x[:500], torch.ones(500), x[500:], max_steps=40)
    grid = torch.linspace(-8, 8, 4001)
    total = torch.trapezoid(fast.log_prob(grid.unsqueeze(1)).exp(), grid.double())
    assert float(total.log()) == pytest.approx(0, abs=4 * fast.log_z.stderr)
    assert float(fast.log_prob(x[500:]).mean()) > float(density.log_prob(x[500:]).mean()) + 0.02
