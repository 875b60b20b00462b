"""Linear predictions among noisy scores: residuals are regressions, and hidden scores say nothing."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from ctem.bases import ProductBase
from ctem.densities.residuals import _sweeps, correlation_of, predictions, residuals, swept
from ctem.densities.spacetime.network import LevelNet
from ctem.spaces import Category, Ordinal, Real, Space


@pytest.fixture
def c():
    a = torch.randn(4, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return correlation_of(
        (a.T @ torch.randn(4, 300, dtype=torch.float64, generator=torch.Generator())).T[:, :4]
    )


def levels(n, d, seed=1):
    generator = torch.Generator().manual_seed(seed)
    clear = torch.rand(n, d, generator=generator, dtype=torch.float64)
    hidden = torch.rand(n, d, generator=generator) < 0.3
    return torch.where(hidden, 0.0, clear), torch.randn(n, d, generator=generator, dtype=torch.float64)


def sigma(clear, c):
    return clear[:, None] * c * clear + torch.diag(1 - clear**2)


def test_a_residual_is_the_deviation_from_the_regression_on_the_others(c):
    clear, x = levels(20, 4)
    x = torch.where(clear > 0, x, 0.0)
    found = residuals(x, clear, swept(clear, c))[:, :4].sinh()
    for row in range(20):
        s = sigma(clear[row], c).numpy()
        for i in range(4):
            rest = [j for j in range(4) if j != i]
            beta = np.linalg.solve(s[np.ix_(rest, rest)], s[rest, i])
            sd = math.sqrt(s[i, i] - s[i, rest] @ beta)
            expected = (float(x[row, i]) - x[row, rest].numpy() @ beta) / sd
            expected = expected if clear[row, i] > 0 else 0.0
            assert found[row, i] == pytest.approx(expected, abs=1e-9)


def test_the_last_input_is_the_log_density_ratio(c):
    clear, x = levels(20, 4)
    x = torch.where(clear > 0, x, 0.0)
    found = residuals(x, clear, swept(clear, c))[:, -1].sinh()
    zero = torch.zeros(4, dtype=torch.float64)
    for row in range(20):
        ratio = MultivariateNormal(zero, sigma(clear[row], c)).log_prob(x[row])
        ratio = ratio - MultivariateNormal(zero, torch.eye(4).double()).log_prob(x[row])
        assert found[row] == pytest.approx(float(ratio), abs=1e-9)


def test_a_prediction_is_the_regression_on_what_is_seen_and_moves_with_it(c):
    clear, x = levels(20, 4)
    x = torch.where(clear > 0, x, 0.0).requires_grad_()
    ahead = torch.full((20, 1), 0.9, dtype=torch.float64)
    mean, spread = predictions(x, ahead, swept(clear, c))
    (slope,) = torch.autograd.grad(mean[:, 0].sum(), x)
    slope = slope * (clear > 0)  # hidden scores are 0
    for row in range(20):
        s, others = sigma(clear[row], c).numpy(), clear[row].numpy()
        for i in (i for i in range(4) if clear[row, i] == 0):
            beta = np.linalg.solve(s, 0.9 * others * c[i].numpy())
            assert float(mean[row, i].detach()) == pytest.approx(x[row].detach().numpy() @ beta, abs=1e-9)
            sd = math.sqrt(1 - 0.9 * others * c[i].numpy() @ beta)
            assert float(spread[row, i]) == pytest.approx(sd, abs=1e-9)
            if i == 0:
                assert slope[row].tolist() == pytest.approx(beta.tolist(), abs=1e-9)


def test_rows_that_share_their_levels_share_the_work_and_nothing_else(c):
    clear, x = levels(3, 4)
    x = torch.where(clear > 0, x, 0.0)
    many = residuals(x.repeat(10, 1), clear.repeat(10, 1), swept(clear.repeat(10, 1), c))
    each = torch.cat(
        [residuals(x[i : i + 1], clear[i : i + 1], swept(clear[i : i + 1], c)) for i in range(3)]
    )
    assert torch.allclose(many, each.repeat(10, 1), atol=1e-12)


def test_a_network_that_sees_residuals_is_blind_to_hidden_columns_and_zero_when_all_are():
    base = ProductBase(Space([Real(), Real(), Ordinal(5), Category(3)]))
    g = LevelNet(
        base, width=16, correlation=torch.tensor([[1.0, 0.9, 0.3], [0.9, 1.0, 0.2], [0.3, 0.2, 1.0]])
    )
    with torch.no_grad():
        g.last.normal_()
    x = torch.tensor([[0.3, -1.0, 2.0, 1.0]])
    level = torch.tensor([[0.1, math.inf, 0.0, math.inf]])
    other = torch.tensor([[0.3, 2.0, 2.0, 2.0]])
    assert torch.equal(g(x, level), g(other, level))
    assert float(g(x, torch.full((1, 4), math.inf)).detach()) == 0
    assert not torch.equal(g(x, torch.zeros(1, 4)), g(other, torch.zeros(1, 4)))


def test_a_correlation_is_positive_whatever_is_missing():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 1, generator=generator) + 0.1 * torch.randn(60, 5, generator=generator)
    x[torch.rand(60, 5, generator=generator) < 0.6] = math.nan
    x[:, 4] = math.nan  # never observed
    c = correlation_of(x)
    assert torch.equal(c.diagonal().round(decimals=5), torch.ones(5))
    assert float(torch.linalg.eigvalsh(c).min()) > 0
    assert float(c[0, 1]) > 0.9
    assert float(c[4, :4].abs().max()) < 1e-5


@pytest.mark.parametrize("d", [1, 5, 32])
def test_sweeps_invert_what_is_seen_regress_the_rest_on_it_and_know_the_determinant(d):
    (clear, _), generator = levels(30, d), torch.Generator().manual_seed(0)
    c = correlation_of(
        torch.randn(200, 3, generator=generator) @ torch.randn(3, d, generator=generator)
    ).double()
    found, log_det = _sweeps(clear.T.contiguous(), c)
    for row, matrix, value in zip(clear, found.movedim(-1, 0), log_det, strict=True):
        seen, hidden = row > 0, row == 0
        inside, across = sigma(row, c)[seen][:, seen], (c * row)[hidden][:, seen]
        weight = across @ torch.linalg.inv(inside)
        assert torch.allclose(matrix[seen][:, seen], -torch.linalg.inv(inside), rtol=1e-6, atol=1e-8)
        assert torch.allclose(matrix[hidden][:, seen], weight, rtol=1e-6, atol=1e-8)
        left = c[hidden][:, hidden] - weight @ across.T
        assert torch.allclose(matrix[hidden][:, hidden], left, rtol=1e-6, atol=1e-8)
        assert float(value) == pytest.approx(float(torch.logdet(inside)), abs=1e-8)


@pytest.mark.parametrize("d", [2, 32])
def test_duplicated_and_constant_columns_give_finite_inputs(d):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 1, generator=generator).expand(300, d).clone()
    x[:, -1] = 3.0
    c = correlation_of(x)
    for clear in (torch.ones(300, d), torch.full((300, d), 0.999)):
        assert bool(residuals(x, clear, swept(clear, c)).isfinite().all())


def test_rows_that_show_the_same_scores_are_swept_once():
    generator = torch.Generator().manual_seed(0)
    correlation = correlation_of(
        torch.randn(200, 5, generator=generator) @ torch.randn(5, 5, generator=generator)
    )
    clear = 0.9 * (torch.rand(500, 5, generator=generator) < 0.5)
    shared, alone = swept(clear, correlation), [swept(row[None], correlation) for row in clear]
    assert torch.equal(shared.matrix, torch.cat([each.matrix for each in alone], -1))
    assert torch.equal(shared.log_det, torch.cat([each.log_det for each in alone]))


def test_rows_at_different_levels_are_swept_apart():
    correlation = torch.tensor([[1.0, 0.8], [0.8, 1.0]])
    clear = torch.tensor([[0.9, 0.8], [0.5, 0.5], [0.9, 0.9]])
    for row, matrix in zip(clear, swept(clear, correlation).matrix.movedim(-1, 0), strict=True):
        expected = torch.linalg.inv(row[:, None] * correlation * row + torch.diag(1 - row**2))
        torch.testing.assert_close(-matrix, expected)


@pytest.mark.parametrize("one_level", [True, False])
def test_what_is_left_unexplained_beside_two_columns_that_are_nearly_one_survives_float32(one_level):
    """The weights of a start and an end are large and cancel: a spread was off by four per cent."""
    x = torch.randn(2000, 8, generator=torch.Generator().manual_seed(0)).double()
    x[:, 1:4] = x[:, :1] + 0.001 * x[:, 1:4]
    x[:, 4] = x[:, 0] + 0.08 * x[:, 4]
    correlation, clear, ahead = correlation_of(x), torch.ones(50, 8).double(), torch.ones(50, 1).double()
    clear[:, 4] = 0
    clear *= 1 if one_level else torch.linspace(0.9999, 1.0, 50).double().unsqueeze(1)
    _, exact = predictions(x[:50] * clear, ahead, swept(clear, correlation))
    rounded = [each.float() for each in (x[:50] * clear, ahead, clear, correlation)]
    _, found = predictions(*rounded[:2], swept(*rounded[2:]))
    assert found[:, 4].tolist() == pytest.approx(exact[:, 4].tolist(), rel=1e-4 if one_level else 1e-2)
