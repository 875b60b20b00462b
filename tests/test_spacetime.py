"""Space-time comparisons identify the normalised density of every marginal at every level."""

import itertools
import math

import pytest
import torch
from test_kernels import random_base
from test_losses import random_density

from ctem.bases import ProductBase
from ctem.densities.chain import Chain
from ctem.densities.spacetime.differences import Differences, quadrature_error
from ctem.densities.spacetime.network import LevelNet
from ctem.densities.spacetime.normalisation import one_pass_log_z
from ctem.matching.losses import brier, log_score
from ctem.matching.noise import Noise
from ctem.matching.spacetime import ColumnComparisons, LevelComparisons, Moves, Pairs, space_time_loss
from ctem.spaces import Category, Ordinal, Real, Space

RULES = {"brier": brier, "log": log_score}
SPACE = Space([Category(2), Ordinal(3), Category(2)])
MIXED = Space([Real(), Category(3), Ordinal(4), Real()])


def fitted(parameters, loss):
    """Minimised by L-BFGS in float64, from zero."""
    optimizer = torch.optim.LBFGS(
        [parameters], max_iter=5000, tolerance_grad=1e-13, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    for _ in range(3):
        optimizer.step(closure)
    return parameters.detach()


class SubsetTable(torch.nn.Module):
    """A free value for every visible set and every state of its columns; 0 when nothing is visible."""

    def __init__(self, space):
        super().__init__()
        self.space = space
        self.values = torch.nn.Parameter(torch.zeros(2**space.dim, int(space.n_states), dtype=torch.float64))

    def forward(self, x, level):
        visible = torch.isfinite(level)
        which = (visible.long() * 2 ** torch.arange(self.space.dim)).sum(-1)
        state = self.space.index(torch.where(visible, x, 0.0))
        return torch.where(which > 0, self.values[which, state], 0.0)


def every_move(space, base, p0):
    """All (visible set, column, data, redraw) with their probabilities, for equally likely sets and columns."""
    states, parts, weights = space.states(torch.float64), [], []
    one = torch.ones(1, dtype=torch.float64)
    for size in range(1, space.dim + 1):
        for V in itertools.combinations(range(space.dim), size):
            level = torch.full((space.dim,), math.inf, dtype=torch.float64)
            level[list(V)] = 0.0
            for j, (i, x0) in itertools.product(V, enumerate(states)):
                table = base.log_table[space.discretes.index(j), : space.sizes[j]].double().exp()
                for v in range(space.sizes[j]):
                    if v != x0[j]:
                        redrawn = x0.clone()
                        redrawn[j] = v
                        parts.append((x0, level, one, x0, torch.tensor([j]), redrawn[None], torch.ones(1)))
                        weights.append(p0[i] * table[v] / (1 - table[int(x0[j])]))
    return Moves(*(torch.stack(field) for field in zip(*parts, strict=True))), torch.stack(weights)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_minimiser_of_the_clocks_is_every_normalised_marginal(rule):
    base, p0 = random_base(SPACE).double(), random_density(12)
    moves, weight = every_move(SPACE, base, p0)
    table = SubsetTable(SPACE)
    objective = ColumnComparisons(base, moves=1, rule=rule)
    fitted(table.values, lambda: (weight * objective.losses(table, moves)[:, 0]).sum())
    states = SPACE.states(torch.float64)
    for size in range(SPACE.dim + 1):
        for V in itertools.combinations(range(SPACE.dim), size):
            level = torch.full((12, 3), math.inf, dtype=torch.float64)
            level[:, list(V)] = 0.0
            same = (states[:, None, list(V)] == states[None, :, list(V)]).all(-1)
            marginal = (same * p0).sum(1).log()
            learned = table(states, level).detach() + base.column_log_prob(states)[:, list(V)].sum(-1)
            torch.testing.assert_close(learned, marginal, atol=1e-4, rtol=0)


class LevelTable(torch.nn.Module):
    """A free value for every level of a list and every state; 0 at level infinity."""

    def __init__(self, space, levels):
        super().__init__()
        self.space, self.levels = space, torch.tensor(levels, dtype=torch.float64)
        self.values = torch.nn.Parameter(torch.zeros(len(levels), int(space.n_states), dtype=torch.float64))

    def forward(self, x, level):
        which = torch.searchsorted(self.levels, level[:, 0].contiguous())
        known = which < len(self.levels)
        return torch.where(
            known, self.values[which.clamp(max=len(self.levels) - 1), self.space.index(x)], 0.0
        )


def test_the_minimiser_of_temporal_pairs_is_the_normalised_density_at_every_level():
    base, p0 = random_base(SPACE).double(), random_density(12)
    noise, states = Noise(base).double(), SPACE.states(torch.float64)
    levels = [0.05, 0.3, 1.0]
    x0, x = states.repeat_interleave(12, 0), states.repeat(12, 1)
    log_q = {
        s: noise.log_prob(x, x0, torch.full((144,), s, dtype=torch.float64)) for s in [*levels, math.inf]
    }
    parts = []
    for s, t in itertools.pairwise([*levels, math.inf]):
        weight = p0.repeat_interleave(12) * (log_q[s].exp() + log_q[t].exp()) / 2
        full = [torch.full_like(x, v) for v in (s, t)]
        parts.append(Pairs(x, full[0], x, full[1], torch.sigmoid(log_q[s] - log_q[t]), weight))
    pairs = Pairs(*(torch.cat(field) for field in zip(*parts, strict=True)))
    table = LevelTable(SPACE, levels)
    fitted(table.values, lambda: space_time_loss(table, pairs))
    for s in levels:
        truth = (p0[:, None] * log_q[s].exp().view(12, 12)).sum(0).log()
        learned = table(states, torch.full_like(states, s)).detach() + base.log_prob(states)
        torch.testing.assert_close(learned, truth, atol=1e-4, rtol=0)


@pytest.mark.parametrize("objective", [ColumnComparisons, LevelComparisons])
def test_drawn_pairs_have_no_gradient_in_expectation_at_the_truth(objective):
    """ρ = b: g = 0 is the truth, so along any direction the mean slope of the drawn loss is zero."""
    base = random_base(MIXED)
    g = objective(base if objective is ColumnComparisons else Noise(base))
    generator = torch.Generator().manual_seed(0)
    x0 = base.sample(100_000, generator)
    theta = torch.zeros(3, requires_grad=True)

    def potential(x, level):
        seen = torch.isfinite(level)
        a = torch.where(seen[:, 0], x[:, 0] * (-level[:, 0]).exp(), 0.0)
        b = torch.where(seen[:, 1], (x[:, 1] == 1).float(), 0.0)
        c = torch.where(seen[:, 2] & seen[:, 3], x[:, 2] * x[:, 3].tanh(), 0.0)
        return theta[0] * a + theta[1] * b + theta[2] * c

    slopes = []
    for rows in x0.split(2000):
        slopes.append(torch.autograd.grad(g(potential, rows, generator), theta)[0])
    slopes = torch.stack(slopes)
    error = slopes.std(0) / len(slopes) ** 0.5
    assert bool((slopes.mean(0).abs() < 4 * error).all())


def test_missing_cells_are_never_visible():
    base = random_base(MIXED)
    x0 = base.sample(500, torch.Generator().manual_seed(0))
    x0[:, 1] = math.nan
    x0[::2, 3] = math.nan
    x0[7] = math.nan
    seen = []

    def spy(x, level):
        assert bool(torch.isfinite(x).all())
        seen.append(torch.isfinite(level))
        return x.sum(-1) * 0

    generator = torch.Generator().manual_seed(1)
    for objective in (ColumnComparisons(base), LevelComparisons(Noise(base))):
        assert math.isfinite(float(objective(spy, x0, generator)))
    assert not bool(torch.cat(seen)[:, 1].any())
    moves = ColumnComparisons(base).draw(x0, generator)
    pairs = LevelComparisons(Noise(base)).pairs(x0, generator)
    gone = x0.isnan()
    assert not bool((torch.isfinite(moves.level) & gone).any())  # cell by cell
    assert not bool((torch.isfinite(pairs.s) & gone.repeat(2, 1)).any())
    assert not bool((torch.isfinite(pairs.t) & gone.repeat(2, 1)).any())
    assert bool(torch.isfinite(moves.level)[1::2, 3].any())  # where others miss it, it is still seen
    assert bool(torch.isfinite(pairs.s)[:500][1::2, 3].any())


def test_every_visible_set_size_and_every_column_is_drawn_equally_often():
    base = ProductBase(Space([Category(2)] * 5))
    moves = ColumnComparisons(base, moves=1).draw(torch.zeros(50_000, 5), torch.Generator().manual_seed(0))
    size = torch.isfinite(moves.level).sum(-1)
    share = torch.bincount(size, minlength=6)[1:] / 50_000
    torch.testing.assert_close(share, torch.full((5,), 0.2), atol=0.01, rtol=0)
    column = torch.zeros(5).index_add(0, moves.column[:, 0], moves.weight[:, 0]) / 50_000
    torch.testing.assert_close(column, torch.full((5,), 0.2), atol=0.01, rtol=0)
    skewed = ProductBase(Space([Category(2)] * 5), [torch.tensor([0.99, 0.01])] * 5)
    rows = torch.tensor([[1.0, 0, 0, 0, 0]]).expand(50_000, -1)
    moves = ColumnComparisons(skewed, moves=1).draw(rows, torch.Generator().manual_seed(0))
    column = torch.zeros(5).index_add(0, moves.column[:, 0], moves.weight[:, 0]) / 50_000
    torch.testing.assert_close(column, torch.full((5,), 0.2), atol=0.02, rtol=0)  # weighted, still uniform
    assert float((moves.column[:, 0] == 0).float().mean()) > 0.4  # and the surprising value is drawn often
    assert bool(torch.isfinite(moves.level).gather(1, moves.column).all())


def awake(base, **settings):
    """A network with random instead of zero output, as after some training."""
    g = LevelNet(base, width=32, blocks=2, **settings)
    torch.nn.init.normal_(g.last, std=0.3, generator=torch.Generator().manual_seed(9))
    return g.eval()


def test_the_network_is_blind_to_hidden_columns_and_zero_when_all_are_hidden():
    base = random_base(MIXED)
    g, generator = awake(base), torch.Generator().manual_seed(0)
    x, y = base.sample(40, generator), base.sample(40, generator)
    hidden = torch.rand(40, 4, generator=generator) < 0.5
    level = torch.where(hidden, math.inf, 0.1)
    mixed = torch.where(hidden, y, x)
    torch.testing.assert_close(g(x, level), g(mixed, level))
    assert float(g(x, torch.full((40, 4), math.inf)).detach().abs().max()) == 0
    assert float(g(x, torch.full((40, 4), 0.1)).detach().abs().max()) > 0.01


def test_the_network_starts_at_the_base_density_exactly():
    base = random_base(MIXED)
    x = base.sample(20, torch.Generator().manual_seed(0))
    assert float(LevelNet(base, width=16)(x, torch.zeros(20)).detach().abs().max()) == 0


FINITE = Space([Category(2), Ordinal(3), Category(4)])


def test_a_chain_of_differences_integrates_to_one_and_knows_how_finely():
    """Nodes too far apart show in the indicator."""
    base = random_base(Space([Real(), Category(2)]))
    grid = torch.linspace(-8, 8, 4001)
    rows = torch.cat([torch.stack([grid, torch.full_like(grid, k)], 1) for k in range(2)])
    fine = Differences(awake(base), base, level=0.01, points=257)
    for order in ([0, 1], [1, 0]):
        density = Chain(fine).log_prob(rows, order).double().exp().view(2, -1).sum(0)
        assert float(torch.trapezoid(density, grid.double())) == pytest.approx(1, abs=1e-4)
        assert quadrature_error(fine, rows[::100], order) < 1e-4
    coarse = Differences(awake(base), base, level=2.0, points=17)
    assert quadrature_error(coarse, rows[::100], [0, 1]) > 1e-4


def test_the_error_bar_of_the_sampled_constant_is_honest():
    base = random_base(FINITE)
    g = Differences(awake(base), base)
    exact = float(g.one_pass(FINITE.states()).double().logsumexp(0))
    runs = [one_pass_log_z(g, 500, torch.Generator().manual_seed(seed)) for seed in range(40)]
    z = torch.tensor([(run.value - exact) / run.stderr for run in runs])
    assert 0.6 < float(z.std()) < 1.5
    assert abs(float(z.mean())) < 0.6


def test_visible_reals_are_noised_to_the_floor():
    base = ProductBase(Space([Real()]))
    x0 = torch.full((50_000, 1), 2.0)
    data = ColumnComparisons(base, low=0.1).draw(x0, torch.Generator().manual_seed(0)).data
    assert float(data.mean()) == pytest.approx(2 * math.exp(-0.1), abs=0.01)
    assert float(data.std()) == pytest.approx(math.sqrt(1 - math.exp(-0.2)), rel=0.02)


def test_the_joint_of_an_incomplete_row_is_the_marginal_of_its_visible_cells():
    base = random_base(MIXED)
    g = awake(base)
    x = base.sample(30, torch.Generator().manual_seed(0))
    x[:, 1] = math.nan
    level = torch.tensor([1e-3, math.inf, 0.0, 1e-3]).expand(30, 4)
    filled = torch.where(x.isnan(), 0.0, x)
    expected = g(filled, level).detach() + base.column_log_prob(filled)[:, [0, 2, 3]].sum(-1)
    torch.testing.assert_close(Differences(g, base).one_pass(x), expected)


def test_real_draws_follow_the_piecewise_linear_density_within_a_cell():
    base = ProductBase(Space([Real()]))
    with pytest.warns(UserWarning, match="may miss the finest peaks"):
        g = Differences(lambda x, s: 0 * x[:, 0], base, points=5, limit=4.0)
    drawn = Chain(g).sample(200_000, torch.Generator().manual_seed(0))
    _, log_p = g.given(torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.bool), 0).table()
    fine = torch.linspace(-4, 4, 8001, dtype=torch.float64)
    cell = ((fine + 4) / 2).floor().clamp(max=3).long()
    t, p = (fine + 4) / 2 - cell, log_p[0].double().exp()
    density = p[cell] * (1 - t) + p[cell + 1] * t
    for quarter in (-1.0, -0.5, 0.5, 1.0):
        below = fine <= quarter
        expected = float(torch.trapezoid(density[below], fine[below]))
        assert float((drawn.x[:, 0] <= quarter).double().mean()) == pytest.approx(expected, abs=0.005)


def test_differences_refuse_dropout_that_is_switched_on():
    base = random_base(FINITE)
    with pytest.raises(ValueError, match=r"dropout is switched on.*pass g\.eval\(\)"):
        Differences(LevelNet(base, width=8, dropout=0.5), base)


def test_nearly_certain_columns_give_a_finite_loss():
    x = torch.zeros(500, 3)
    base = ProductBase.fit(Space([Category(2)] * 3), x, smoothing=1e-5)
    loss = ColumnComparisons(base)(LevelNet(base, width=8), x, torch.Generator().manual_seed(0))
    assert math.isfinite(float(loss.detach()))
