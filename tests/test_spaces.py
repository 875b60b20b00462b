import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ctem.bases import ProductBase
from ctem.spaces import Category, Ordinal, Real, Space

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
