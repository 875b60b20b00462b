"""The pairwise objective: normalised densities that near a skewed truth, judged by rows that no member has seen."""

import math
from dataclasses import replace

import pytest
import torch

from ctem import MLP, Category, Ordinal, ProductBase, Real, Recipe, Space, log_score, pair_loss
from ctem.benchmarks.targets import grid
from ctem.energies import MLPs, Tilted
from ctem.matching.kernels import Mixture
from ctem.partition import log_z_enumerate, log_z_grid
from experiments.paper import pairwise
from experiments.paper.pairwise import PairLoss, comparison_kernels, constant, fit_pairwise, folds_of

pytestmark = pytest.mark.long  # of the experiments, not of the library
FINITE = Space([Category(3), Ordinal(4), Category(2)])
LINE, PLANE, MIXED = Space([Real()]), Space([Real(), Real()]), Space([Real(), Category(3)])
QUICK = Recipe(steps=20, batch_size=32, learning_rate=1e-2, ema=0.9, evaluate_every=10)
SHORT = Recipe(steps=300, batch_size=128, learning_rate=1e-2, ema=0.98, evaluate_every=50)
SMALL = {"width": 16, "folds": 3, "weight_decays": [0.1]}


def truth_on(space, seed=0, sharpness=1.0):
    """A random density on a finite space, no two states alike (n_states,)."""
    generator = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(int(space.n_states), generator=generator, dtype=torch.float64)).softmax(0)


def rows_from(space, n=2000, seed=1):
    """Skewed rows: codes from ``truth_on``, reals from two bumps of unequal weight that the first code shifts."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.zeros(n, space.dim)
    if space.discretes:
        codes = Space([space.columns[j] for j in space.discretes])
        which = torch.multinomial(truth_on(codes), n, replacement=True, generator=generator)
        x[:, list(space.discretes)] = codes.states()[which]
    for j in space.reals:
        left = torch.rand(n, generator=generator) < 0.3
        spread = torch.randn(n, generator=generator)
        x[:, j] = torch.where(left, -1.2 + 0.3 * spread, 0.5 + 0.6 * spread) + 0.2 * x[:, -1]
    return x


def mass(density):
    """The integral of a density by a rule of its own."""
    space = density.space
    if not space.reals:
        return float(density.log_prob(space.states()).exp().sum())
    square = grid((-8.0, 8.0), points=301)
    axis = torch.linspace(-8, 8, 1001, dtype=torch.float64)
    points, weight = (
        (square.X, square.weights) if len(space.reals) == 2 else (axis[:, None], axis[1] - axis[0])
    )
    total = 0.0
    for code in range(max(space.sizes) or 1):
        x = points if not space.discretes else torch.nn.functional.pad(points, (0, 1), value=code)
        total += float((density.log_prob(x.float()).exp() * weight).sum())
    return total


@pytest.mark.parametrize("space", [FINITE, LINE, PLANE, MIXED], ids=["finite", "line", "plane", "mixed"])
def test_a_fitted_density_has_mass_one(space):
    density = fit_pairwise(space, rows_from(space), recipe=QUICK, **SMALL)
    assert mass(density) == pytest.approx(1, abs=1e-4)
    assert density.log_prob(rows_from(space)).dtype == torch.float64
    each = density.log_prob_each(rows_from(space))
    assert torch.allclose(each.exp().mean(0).log(), density.log_prob(rows_from(space)))


@pytest.mark.long
def test_a_finite_truth_is_neared():
    p, x = truth_on(FINITE), rows_from(FINITE, 20_000)
    density = fit_pairwise(FINITE, x, recipe=replace(SHORT, steps=600), **SMALL)
    gap = lambda log_q: float((p * (p.log() - log_q)).sum())  # noqa: E731
    states = FINITE.states()
    assert gap(density.base.log_prob(states).double()) > 0.2
    assert gap(density.log_prob(states)) < 0.015


def test_a_mixed_truth_is_neared():
    space, n = Space([Real(), Category(2)]), 10_000
    generator = torch.Generator().manual_seed(0)
    label = (torch.rand(n, generator=generator) < 0.3).float()
    mean, scale = torch.tensor([0.5, -1.2]), torch.tensor([0.6, 0.3])
    value = mean[label.long()] + scale[label.long()] * torch.randn(n, generator=generator)
    x = torch.stack([value, label], 1)
    density = fit_pairwise(space, x, recipe=SHORT, **SMALL)
    log_p = torch.distributions.Normal(mean[label.long()], scale[label.long()]).log_prob(value)
    log_p = log_p.double() + torch.tensor([0.7, 0.3]).log()[label.long()]
    assert float((log_p - density.base.log_prob(x)).mean()) > 0.5
    assert float((log_p - density.log_prob(x)).mean()) < 0.05


def test_a_skewed_line_is_neared_and_the_fit_is_not_its_mirror_image():
    x = rows_from(LINE, 5000)
    density = fit_pairwise(LINE, x, recipe=SHORT, **SMALL)
    fresh = rows_from(LINE, 5000, seed=2)
    nats = float(density.log_prob(fresh).mean())
    bumps = torch.distributions.Normal(torch.tensor([-1.2, 0.5]), torch.tensor([0.3, 0.6]))
    truth = (bumps.log_prob(fresh / 1.2).exp() * torch.tensor([0.3, 0.7])).sum(1).log() - math.log(1.2)
    assert float(truth.mean()) - nats < 0.03
    assert nats > float(density.log_prob(-fresh).mean()) + 0.1


def test_no_member_is_shown_its_own_fold(monkeypatch):
    n, shown = 60, {True: [], False: []}
    each = PairLoss.each

    def watched(self, g, x, generator):
        shown[g.training].append(x[..., 0])
        return each(self, g, x, generator)

    monkeypatch.setattr(PairLoss, "each", watched)
    x = torch.arange(float(n)).unsqueeze(1)
    fit_pairwise(LINE, x / 30, recipe=QUICK, **SMALL, seed=3)
    folds = folds_of(n, 3, seed=3)
    assert sorted(torch.cat(folds).tolist()) == list(range(n))
    trained, judged = (torch.cat(shown[key], 1).mul(30).round().long() for key in (True, False))
    for k, fold in enumerate(folds):
        assert set(judged[k].tolist()) == set(fold.tolist())
        assert set(trained[k].tolist()) == set(range(n)) - set(fold.tolist())


def test_small_tables_have_fewer_folds_and_tiny_ones_hold_out_a_row():
    assert [len(folds_of(n, 8, 0)) for n in (2, 7, 8, 20, 32, 1000)] == [1, 1, 2, 5, 8, 8]
    assert min(len(fold) for n in range(8, 70) for fold in folds_of(n, 8, 0)) == 4
    assert fit_pairwise(LINE, torch.randn(2, 1), recipe=QUICK, weight_decays=[0.1], width=8).net.members == 1


def test_the_gradient_is_that_of_the_log_density():
    density = fit_pairwise(MIXED, rows_from(MIXED), recipe=QUICK, **SMALL)
    density.net.double(), density.base.double()
    x, step = rows_from(MIXED, 50, seed=4).double(), 1e-5
    grad, ahead, behind = density.grad_log_prob(x), x.clone(), x.clone()
    ahead[:, 0] += step
    behind[:, 0] -= step
    slope = (density.log_prob(ahead) - density.log_prob(behind)) / (2 * step)
    assert torch.allclose(grad[:, 0], slope, atol=1e-6)
    assert float(grad[:, 1].abs().max()) == 0


def test_the_same_seed_gives_the_same_bits_and_leaves_the_global_generator_alone(monkeypatch):
    monkeypatch.setattr(pairwise, "BURN_IN", 5)
    x, before = rows_from(MIXED, 200), torch.get_rng_state()
    one, same, other = (fit_pairwise(MIXED, x, seed=s, recipe=QUICK, **SMALL) for s in (0, 0, 1))
    assert torch.equal(one.log_prob(x), same.log_prob(x))
    assert not torch.equal(one.log_prob(x), other.log_prob(x))
    draws = [d.sample(1, torch.Generator().manual_seed(0)) for d in (one, same)]
    assert torch.equal(*draws)
    assert torch.equal(torch.get_rng_state(), before)


def test_rows_without_weight_are_rows_that_are_not_there():
    x = rows_from(LINE, 300)
    weights = (torch.arange(300) % 3 > 0).double()
    weighted = fit_pairwise(LINE, x, recipe=QUICK, weights=weights, **SMALL)
    without = fit_pairwise(LINE, x[weights > 0], recipe=QUICK, **SMALL)
    assert torch.equal(weighted.log_prob(x), without.log_prob(x))


def test_weights_lean_the_density_towards_heavy_rows():
    x = rows_from(LINE, 2000)
    weights = torch.where(x[:, 0] < -0.7, 10.0, 1.0)
    brief = replace(SHORT, steps=100)
    plain, leaning = (fit_pairwise(LINE, x, recipe=brief, weights=w, **SMALL) for w in (None, weights))
    at = torch.tensor([[-1.4]])
    assert float(leaning.log_prob(at) - plain.log_prob(at)) > 0.5


def test_a_killed_fit_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    x, calls, each = rows_from(LINE, 200), [], PairLoss.each
    settings = {**SMALL, "weight_decays": [0.1, 1.0], "recipe": QUICK}
    whole = fit_pairwise(LINE, x, **settings)

    def killed(self, g, rows, generator):
        calls.append(1)
        if len(calls) == 35:  # in the middle of the second weight decay
            raise SystemExit
        return each(self, g, rows, generator)

    monkeypatch.setattr(PairLoss, "each", killed)
    with pytest.raises(SystemExit):
        fit_pairwise(LINE, x, checkpoint=tmp_path / "fit", **settings)
    resumed = fit_pairwise(LINE, x, checkpoint=tmp_path / "fit", **settings)
    assert torch.equal(resumed.log_prob(x), whole.log_prob(x))
    assert len(calls) < 35 + 22  # the first weight decay was not trained again


def test_the_weight_decay_with_the_lowest_out_of_fold_loss_is_taken():
    x, brief = rows_from(LINE, 400), replace(SHORT, steps=100)
    alone = [fit_pairwise(LINE, x, recipe=brief, **{**SMALL, "weight_decays": [d]}) for d in (100.0, 0.1)]
    best = min(alone, key=lambda density: density.history.best_loss)
    chosen = fit_pairwise(LINE, x, recipe=brief, **{**SMALL, "weight_decays": [100.0, 0.1]})
    assert chosen.settings["weight_decay"] == best.settings["weight_decay"] == 0.1
    assert torch.equal(chosen.log_prob(x), best.log_prob(x))


def test_samples_follow_the_density(monkeypatch):
    """Frequencies of states, and of halves of a line, within five standard errors."""
    monkeypatch.setattr(pairwise, "BURN_IN", 100)
    density = fit_pairwise(FINITE, rows_from(FINITE), recipe=QUICK, **SMALL)
    n, p = 1000, density.log_prob(FINITE.states()).exp()
    share = FINITE.index(density.sample(n, torch.Generator().manual_seed(0))).bincount(minlength=len(p)) / n
    assert bool(((share - p).abs() < 5 * (p * (1 - p) / n).sqrt() + 1e-3).all())
    density = fit_pairwise(LINE, rows_from(LINE), recipe=QUICK, **SMALL)
    axis = torch.linspace(-8, 8, 1601)
    left = density.log_prob(axis[axis < -0.5][:, None]).exp().sum() * 0.01
    x = density.sample(n, torch.Generator().manual_seed(0))[:, 0]
    assert float((x < -0.5).double().mean()) == pytest.approx(float(left), abs=5 * math.sqrt(0.25 / n))


@pytest.mark.parametrize("space", [FINITE, MIXED], ids=["finite", "mixed"])
def test_constants_by_all_means_agree(space, monkeypatch):
    base = ProductBase.fit(space, rows_from(space))
    g = MLPs(space, members=2, width=16, seed=1)
    f = Tilted(base, g.member(1))
    with torch.no_grad():
        f.g.layers[-1].weight.mul_(10)
    exact = log_z_grid(f, space, (-8.0, 8.0)) if space.reals else log_z_enumerate(f, space)
    assert constant(f, torch.Generator()) == exact
    monkeypatch.setattr(pairwise, "MAX_STATES", 0)
    monkeypatch.setattr(pairwise, "MOST_NODES", 0)
    drawn = constant(f, torch.Generator().manual_seed(0), draws=20_000)
    monkeypatch.setattr(pairwise, "log_z_importance", lambda *rest: drawn._replace(ess=3.0))
    annealed = constant(f, torch.Generator().manual_seed(0))
    assert (drawn.method, annealed.method) == ("importance", "annealed")
    assert drawn.value == pytest.approx(exact.value, abs=5 * drawn.stderr)
    assert annealed.value == pytest.approx(exact.value, abs=5 * annealed.stderr)


def test_a_member_is_the_librarys_network_and_its_loss_the_librarys_loss():
    base = ProductBase.fit(MIXED, rows_from(MIXED))
    g, x = MLPs(MIXED, members=3, width=16), rows_from(MIXED, 50).repeat(200, 1)
    kernels = comparison_kernels(base, [0.5, 0.25])
    loss = PairLoss(base, kernels).each(g, x.expand(3, -1, -1), torch.Generator().manual_seed(0))
    for k in range(3):
        f = Tilted(base, g.member(k))
        assert isinstance(f.g, MLP)
        assert torch.allclose(f.g(x[:50]), g(x[:50])[k], atol=1e-6)
        mixture = Mixture(kernels, [1 / len(kernels)] * len(kernels))
        slow = pair_loss(f, x, mixture, torch.Generator().manual_seed(1), m=8, rule=log_score)
        assert float(loss[k].detach()) == pytest.approx(float(slow.detach()), abs=0.003)


def test_members_do_not_meet():
    base = ProductBase(PLANE)
    g, x = MLPs(PLANE, members=3, width=8), torch.randn(3, 20, 2, generator=torch.Generator().manual_seed(0))
    loss = PairLoss(base, comparison_kernels(base, [0.5])).each
    before = loss(g, x, torch.Generator().manual_seed(1))
    grads = torch.autograd.grad(before[1], list(g.parameters()))
    assert all(float(grad[1].norm()) > 0 and float(grad[[0, 2]].norm()) == 0 for grad in grads)
    x[1] += 5
    after = loss(g, x, torch.Generator().manual_seed(1))
    assert (before == after).tolist() == [True, False, True]


def test_what_cannot_be_fitted_is_refused_by_name():
    x = rows_from(LINE, 20)
    for word, call in {
        "x: ": lambda: fit_pairwise(PLANE, x),
        "x: expected complete": lambda: fit_pairwise(LINE, torch.full((9, 1), math.nan)),
        "x: expected at least 2": lambda: fit_pairwise(LINE, x[:1]),
        "weights: ": lambda: fit_pairwise(LINE, x, weights=torch.ones(3)),
        "weight_decays: ": lambda: fit_pairwise(LINE, x, weight_decays=[]),
        "rates: ": lambda: fit_pairwise(LINE, x, rates=[]),
        "rate: ": lambda: fit_pairwise(LINE, x, rates=[2.0]),
        "folds: ": lambda: fit_pairwise(LINE, x, folds=0),
        "members: ": lambda: MLPs(LINE, members=0),
    }.items():
        with pytest.raises(ValueError, match=word):
            call()
