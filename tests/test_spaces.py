import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ctem.bases import ProductBase
from ctem.matching.kernels import Gaussian, OrnsteinUhlenbeck, Sphere
from ctem.samplers import MALA, Langevin, run
from ctem.spaces import Angle, Category, Ordinal, Real, Space

MIXED = Space({"a": Real(2.0, 3.0), "b": Category(4), "c": Ordinal(5), "d": Real()})
FINITE = Space([Category(2), Ordinal(3), Category(5)])


@given(
    hnp.arrays(np.float64, (7, 2), elements=st.floats(-1e6, 1e6)),
    hnp.arrays(np.int64, (7, 2), elements=st.integers(0, 3)),
)
def test_decode_undoes_encode(reals, codes):
    X = np.column_stack([reals[:, 0], codes, reals[:, 1]])
    back = MIXED.decode(MIXED.encode(X, dtype=torch.float64))
    np.testing.assert_allclose(back, X, rtol=1e-12, atol=1e-9)
    np.testing.assert_array_equal(back[:, 1:3], codes)


def test_missing_cells_stay_missing_when_they_are_allowed():
    X = np.array([[1.0, 0, 2, 5.0], [np.nan, 3, np.nan, 7.0], [3.0, 1, 0, 9.0]])
    space = MIXED.standardised(X, missing=True)
    assert space.columns[0].location == 2.0
    x = space.encode(X, dtype=torch.float64, missing=True)
    assert torch.equal(x.isnan(), torch.as_tensor(np.isnan(X)))
    np.testing.assert_allclose(space.decode(x), X)


def test_standardised_columns_have_mean_zero_and_deviation_one():
    X = np.random.default_rng(0).gamma(2.0, 5.0, (1000, 2))
    x = Space([Real(), Real()]).standardised(X).encode(X, dtype=torch.float64)
    torch.testing.assert_close(x.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(x.std(0), torch.ones(2, dtype=torch.float64))


def test_log_det_carries_a_density_to_the_users_units():
    space = Space([Real(5.0, 4.0)])
    X = np.linspace(-40, 50, 20001)[:, None]
    x = space.encode(X, dtype=torch.float64)
    log_density = ProductBase(space).log_prob(x) + space.log_det
    assert np.trapezoid(log_density.exp().numpy(), X[:, 0]) == pytest.approx(1, abs=1e-9)


def test_states_are_all_states_once_and_index_finds_them():
    states = FINITE.states()
    assert len(torch.unique(states, dim=0)) == FINITE.n_states == 30
    assert torch.equal(FINITE.index(states), torch.arange(30))


def test_features_have_the_stated_widths_and_ordinals_have_variance_one():
    x = MIXED.encode([[2.0, 0, 0, 1.0], [5.0, 3, 4, 1.0]])
    assert MIXED.features(x).shape == (2, sum(MIXED.widths))
    every = Space([Ordinal(7)])
    h = every.features(every.states(torch.float64))
    assert float(h.mean()) == pytest.approx(0, abs=1e-12)
    assert float((h**2).mean()) == pytest.approx(1)


def test_product_base_sums_to_one_and_its_samples_follow_it():
    generator = torch.Generator().manual_seed(0)
    tables = [torch.rand(k, generator=generator) + 0.1 for k in FINITE.sizes]
    base = ProductBase(FINITE, tables).double()
    p = base.log_prob(FINITE.states(torch.float64)).exp()
    assert float(p.sum()) == pytest.approx(1, abs=1e-6)
    n = 100_000
    count = torch.bincount(FINITE.index(base.sample(n, generator)), minlength=30)
    error = (count / n - p) / (p * (1 - p) / n).sqrt()
    assert float(error.abs().max()) < 4.5


def test_a_fitted_base_is_the_smoothed_marginal_and_knows_unseen_values():
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    base = ProductBase.fit(Space([Category(3), Category(2)]), x, smoothing=1.0)
    torch.testing.assert_close(
        base.log_table[0].exp(), torch.tensor([3, 0.5, 0.5]) / 4
    )  # they share one count
    assert math.isinf(base.log_table[1, 2])  # padding, not a value


def test_unseen_values_weigh_as_much_as_values_seen_once():
    codes = torch.cat([torch.arange(10), torch.zeros(90)]).unsqueeze(1)  # nine of twenty values occur once
    p = ProductBase.fit(Space([Category(20)]), codes).log_table[0].exp()
    torch.testing.assert_close(
        p[10:].sum() / p[1:10].sum(), torch.tensor(5 / 13.5)
    )  # a half each, as they are so few
    many = ProductBase.fit(Space([Category(200)]), codes).log_table[0].exp()
    torch.testing.assert_close(many[10:].sum() / many[1:10].sum(), torch.tensor(9 / 13.5))


HALF = Space({"a": Real(1.0, 2.0, low=0.0), "b": Real(low=-1.0, high=1.0), "c": Angle(360)})


def test_a_space_keeps_the_ends_of_its_columns():
    assert HALF.bounds == ((-0.5, math.inf), (-1.0, 1.0), (0.0, 2 * math.pi))
    with pytest.raises(ValueError, match=r"column 'a', row 1: expected a number in 0 … inf; got -0.1"):
        HALF.encode([[0.0, 0.0, 0.0], [-0.1, 0.0, 0.0]])
    X = np.array([[0.5, -0.9, 350.0], [3.0, 0.9, 10.0], [9.0, 0.0, 190.0]])
    again = HALF.standardised(X)
    assert (again.columns[0].low, again.columns[1].high, again.columns[2]) == (0.0, 1.0, Angle(360))
    np.testing.assert_allclose(again.decode(again.encode(X, dtype=torch.float64)), X, atol=1e-9)


@pytest.mark.parametrize("make", [Gaussian, Sphere])
def test_comparisons_and_moves_stay_within_the_ends(make):
    x = HALF.encode(
        np.column_stack([np.linspace(0, 5, 500), np.linspace(-1, 1, 500), np.linspace(0, 359, 500)])
    )
    y, _ = make(HALF, 1.5).compare(x, torch.Generator().manual_seed(0), m=4)
    assert bool(HALF.inside(y).all())
    assert bool(((y[..., 2] >= 0) & (y[..., 2] < 2 * math.pi + 1e-6)).all())
    assert float((y - x).abs().amax((0, 1)).min()) > 0.5  # every column moved
    for sampler in (Langevin(HALF, 0.3), MALA(HALF, 0.3)):
        z = run(
            sampler, lambda x: -x[:, 0] + x[:, 1] + x[:, 2].cos(), x, 20, torch.Generator().manual_seed(0)
        ).x
        assert bool(HALF.inside(z).all())


def test_mala_on_an_interval_and_a_circle_has_the_moments_of_its_target():
    """f = −x on [0, ∞) has mean 1; f = 2 cos θ has mean resultant length I₁(2)/I₀(2) = 0.6978."""
    space, n = Space([Real(low=0.0), Angle()]), 4000
    x = torch.rand(n, 2, generator=torch.Generator().manual_seed(1))
    end = run(
        MALA(space, 0.4), lambda x: -x[:, 0] + 2 * x[:, 1].cos(), x, 300, torch.Generator().manual_seed(0)
    ).x
    assert float(end[:, 0].mean()) == pytest.approx(1.0, abs=4 / math.sqrt(n))
    assert float(end[:, 1].cos().mean()) == pytest.approx(0.6978, abs=4 * 0.4 / math.sqrt(n))
    assert float(end[:, 1].sin().mean()) == pytest.approx(0.0, abs=4 * 0.6 / math.sqrt(n))


def test_a_normal_law_is_refused_on_a_column_with_ends():
    for space in (Space([Real(low=0.0)]), Space([Angle()])):
        with pytest.raises(
            ValueError, match=r"ProductBase is normal on real columns; 'x0' is .* of your own"
        ):
            ProductBase(space)
        with pytest.raises(ValueError, match="OrnsteinUhlenbeck is normal on real columns"):
            OrnsteinUhlenbeck(space, 0.5)


def test_rows_of_a_shape_are_encoded_side_by_side_and_decoded_to_their_shape():
    space = Space.image(2, 3, 4, levels=5)
    X = np.random.default_rng(0).integers(5, size=(7, 2, 3, 4))
    x = space.encode(X)
    assert x.shape == (7, 24)
    np.testing.assert_array_equal(space.decode(x), X)
    np.testing.assert_array_equal(space.decode(space.encode(X.reshape(7, 24))), X)
    assert Space.sequence(12, 6) == Space([Category(12)] * 6)
    assert space != Space([Ordinal(5)] * 24)
    with pytest.raises(ValueError, match=r"X: expected shape \(n, 2, 3, 4\); got \(7, 3, 4, 2\)"):
        space.encode(X.transpose(0, 2, 3, 1))
    with pytest.raises(ValueError, match=r"shape: expected 24 cells, one per column; got \(5, 5\)"):
        Space([Real()] * 24, shape=(5, 5))
