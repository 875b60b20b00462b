"""Ensembles in one module, cross-fitting, and the density that one call fits."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from ctem import Category, Noise, Ordinal, ProductBase, Real, Recipe, Space, train
from ctem.chain import Chain
from ctem.clocknet import ClockNet, Ensemble
from ctem.density import Density
from ctem.fitting import FINEST, _split, best_level, fit_density, one_pass_likelihood
from ctem.plans import Plan
from ctem.spacetime import Clocks, SharedClock
from ctem.training import History

MIXED = Space([Real(), Category(3), Ordinal(4)])
TINY = Plan(
    width=16,
    blocks=1,
    members=1,
    recipe=Recipe(steps=60, batch_size=60, evaluate_every=20, ema=0.9),
    log_z_samples=400,
)


def awake(base, **settings):
    """Networks with random instead of zero output, as after some training."""
    g = ClockNet(base, width=16, blocks=2, **settings)
    torch.nn.init.normal_(g.last, std=0.3, generator=torch.Generator().manual_seed(9))
    return g.eval()


def rows(n, generator=None):
    generator = generator or torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator)
    x[:, 1] = torch.randint(3, (n,), generator=generator)
    x[:, 2] = torch.randint(4, (n,), generator=generator)
    return x


def test_row_r_belongs_to_member_r_mod_members():
    g, x, level = awake(ProductBase(MIXED), members=3), rows(12), torch.full((12, 3), 0.1)
    level[::2, 0] = math.inf
    each = torch.stack([g.member(k)(x, level) for k in range(3)], 1)
    torch.testing.assert_close(g.each(x, level), each)
    torch.testing.assert_close(g(x, level), each[torch.arange(12), torch.arange(12) % 3])


def test_stacking_members_gives_the_whole_back():
    g, x, level = awake(ProductBase(MIXED), members=3), rows(6), torch.full((6,), 0.1)
    again = ClockNet.stacked([g.member(0), ClockNet.stacked([g.member(1), g.member(2)])])
    assert torch.equal(again.each(x, level), g.each(x, level))


def test_an_ensemble_is_the_mean_density_of_its_members_at_every_visible_set():
    space = Space([Category(2), Category(3)])
    base = ProductBase(space, [torch.tensor([0.3, 0.7]), torch.tensor([0.2, 0.3, 0.5])])
    g, states = awake(base, members=4), space.states()
    for hidden in ([], [0], [1], [0, 1]):
        level = torch.zeros_like(states)
        level[:, hidden] = math.inf
        mean = g.each(states, level).exp().mean(1)
        torch.testing.assert_close(Ensemble(g)(states, level).exp(), mean)
    total = Chain(Ensemble(g), base).log_prob(states, [1, 0]).exp().sum()
    assert float(total) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("objective", ["clocks", "shared"])
def test_members_learn_only_from_their_own_rows(objective):
    """A member whose rows never change is not touched by what other members are shown."""
    base = ProductBase(MIXED)
    loss = Clocks(base, moves=2) if objective == "clocks" else SharedClock(Noise(base))
    recipe = Recipe(steps=4, batch_size=20, evaluate_every=4)
    weights = torch.zeros(2, 40)
    weights[0, :20] = weights[1, 20:] = 1.0
    found = []
    for other in (rows(20), rows(20) * torch.tensor([5.0, 1.0, 1.0])):
        g = ClockNet(base, width=8, blocks=1, members=2)
        train(g, loss, torch.cat([rows(20), other]), recipe, weights=weights)
        found.append({name: p[0].clone() for name, p in g.named_parameters()})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_folds_share_the_rows_out_and_keep_them_from_their_member():
    x = torch.arange(23.0).unsqueeze(1)
    _, table, held = _split(x, None, 4, None, seed=0)
    assert held.shape == (20, 1)
    assert len(held.unique()) == 20
    for k in range(4):
        for value in held[k::4, 0].long().tolist():
            assert [float(w) for w in table[:, value]] == [float(i != k) for i in range(4)]


def test_jittered_copies_of_a_row_stay_in_its_fold():
    x = torch.arange(24.0).unsqueeze(1)
    moved = lambda x, generator: x + 0.1 * torch.rand(x.shape, generator=generator)  # noqa: E731
    some, table, held = _split(x, None, 3, moved, seed=0)
    for k in range(3):
        mine = set(held[k::3, 0].floor().long().tolist())
        seen = set(some[table[k] > 0, 0].floor().long().tolist())
        assert len(mine) == 8
        assert not mine & seen


def test_batches_and_held_out_rows_must_suit_the_members():
    base, recipe = ProductBase(MIXED), Recipe(steps=1, batch_size=10)
    with pytest.raises(ValueError, match="multiples of the 3 members"):
        train(ClockNet(base, width=8, members=3), Clocks(base), rows(9), recipe, weights=torch.ones(3, 9))


class TrueLevels(ClockNet):
    """g of data N(0, 0.01): narrow at level 0, wider with the level."""

    def forward(self, x, level):
        spread = torch.exp(-2 * level) * 0.01 - torch.expm1(-2 * level)
        return (-0.5 * (x**2 / spread + spread.log()) + 0.5 * x**2).sum(-1)


@pytest.mark.parametrize(("scale", "level"), [(0.1, FINEST), (0.3, 0.04)])
def test_the_level_is_the_one_at_which_held_out_rows_are_most_likely(scale, level):
    """Held-out rows wider than the data want a level with e^{−2s} 0.01 + 1 − e^{−2s} = scale²."""
    g = TrueLevels(ProductBase(Space([Real()])))
    x = torch.randn(4000, 1, generator=torch.Generator().manual_seed(0)) * scale
    assert 0.5 < best_level(partial(one_pass_likelihood, g, x)) / level < 2


@pytest.mark.parametrize("members", [1, 3])
def test_a_fitted_density_is_normalised_and_answers_for_missing_cells(members):
    space, generator = Space([Category(2), Category(3)]), torch.Generator().manual_seed(0)
    first = torch.randint(2, (300, 1), generator=generator).float()
    second = torch.where(torch.rand(300, 1, generator=generator) < 0.8, 2 * first, 1.0)
    x = torch.cat([first, second], 1)
    x[:30, 0] = math.nan
    density = fit_density(space, x, replace(TINY, members=members))
    states = space.states()
    exact = density.log_prob_exact(states)
    assert float(exact.exp().sum()) == pytest.approx(1, abs=1e-5)
    assert float(density.log_prob(states).exp().sum()) == pytest.approx(1, abs=0.02)
    some = states.clone()
    some[:, 0] = math.nan
    _, log_p = density.conditional(some[:3], 1)
    torch.testing.assert_close(density.log_prob_exact(some[:3]), log_p[0])
    drawn = density.complete(some, generator)
    assert not drawn.isnan().any()
    assert torch.equal(drawn[:, 1], some[:, 1])


def test_a_row_with_gaps_is_the_sum_of_its_completions(monkeypatch):
    """In small batches and in one; gaps of real columns and of too many values go to the chain rule."""
    space, generator = (
        Space([Category(2), Category(3), Real(), Category(4)]),
        torch.Generator().manual_seed(0),
    )
    g = ClockNet(ProductBase(space), width=16, blocks=1, members=2, seed=1)
    with torch.no_grad():
        g.last.copy_(torch.randn(g.last.shape, generator=generator))
    density = Density(g, 0.05, replace(TINY, members=2), History())
    x = torch.tensor([[1.0, 2.0, 0.3, 1.0]]).repeat(8, 1)
    gaps = [[], [0], [1], [3], [0, 1], [0, 1, 3], [2], [1, 2]]
    for row, columns in zip(x, gaps, strict=True):
        row[columns] = math.nan
    found = density.log_prob(x)
    states = Space([Category(2), Category(3), Category(4)]).states()
    whole = torch.cat([states[:, :2], torch.full((24, 1), 0.3), states[:, 2:]], 1)
    log_p = density.log_prob(whole)
    for row, value in zip(x[:6], found[:6], strict=True):
        fits = ((whole == row) | row.isnan()).all(1)
        assert float(value) == pytest.approx(float(log_p[fits].logsumexp(0)), abs=1e-9)
    torch.testing.assert_close(found[6:], density.log_prob_exact(x[6:]).double())
    density.double.batch_size = 5
    torch.testing.assert_close(density.log_prob(x)[:6], found[:6])
    monkeypatch.setattr("ctem.density.COMPLETIONS", 3)
    torch.testing.assert_close(density.log_prob(x)[3:6], density.log_prob_exact(x[3:6]).double())


def test_a_real_part_that_does_not_exist_is_filled_with_base_draws_in_training_only():
    """Atom rows: their likelihood is that of the atom, whatever stands in the real column."""
    space, generator = Space([Category(2), Real()]), torch.Generator().manual_seed(0)
    atom = (torch.rand(400, generator=generator) < 0.5).float()
    real = torch.where(atom > 0, math.nan, 0.3 * torch.randn(400, generator=generator))
    x = torch.stack([atom, real], 1)
    recipe = replace(TINY.recipe, steps=400, evaluate_every=100, ema=0.98)
    density = fit_density(space, x, replace(TINY, recipe=recipe), parents={1: 0})
    with_atom = density.log_prob_exact(torch.tensor([[1.0, math.nan]]))
    assert float(with_atom.exp()) == pytest.approx(0.5, abs=0.08)
    inside = density.chain.log_prob(torch.tensor([[0.0, 0.0]]), [1], given=[0])
    assert float(inside.exp()) > 0.7  # 1.33 under N(0, 0.09), 0.4 under the base


@pytest.mark.filterwarnings("ignore:log Z rests on")
@pytest.mark.parametrize(
    ("slopes", "killed"), [(False, ".anneal"), (True, ".slopes.anneal"), (True, ".hold")]
)
def test_a_fit_goes_on_from_its_checkpoints_to_the_same_bits(tmp_path, slopes, killed):
    x, path, plan = rows(60), tmp_path / "run", replace(TINY, slopes=TINY.own if slopes else None)
    whole = fit_density(MIXED, x, plan)
    fit_density(MIXED, x, plan, checkpoint=path)
    (tmp_path / f"run{killed}").unlink()  # killed between the phases
    again = fit_density(MIXED, x, plan, checkpoint=path)
    assert all(torch.equal(a, b) for a, b in zip(whole.net.parameters(), again.net.parameters(), strict=True))
    assert whole.level == again.level


def test_little_time_means_few_steps_and_going_on_keeps_their_number(tmp_path):
    density = fit_density(MIXED, rows(60), TINY, max_time=1e-6, checkpoint=tmp_path / "run")
    assert density.history.step[0] == 1
    again = fit_density(MIXED, rows(60), TINY, max_time=100.0, checkpoint=tmp_path / "run")
    assert again.history.step == density.history.step
