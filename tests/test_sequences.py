"""Densities of sequences, and the tilted density on top of them, on sequences that can all be listed."""

import math

import pytest
import torch
from scipy import stats

from ctem import Category, EnergyModel, Real, Recipe, Space, train
from ctem.bases import Pool
from ctem.densities.sequences import CausalDensity, MaskedDensity, SequenceNet, sequence_loss
from ctem.matching.kernels import HammingOne
from ctem.matching.losses import brier, tilt_loss
from ctem.partition import tilt_bracket
from ctem.samplers import (
    DiscreteLangevin,
    Gibbs,
    GibbsWithGradients,
    Independence,
    MetropolisHastings,
    run,
)

pytestmark = pytest.mark.long  # research; no promise rests on it
SPACE = Space.sequence(tokens=3, length=4)
STATES = SPACE.states()
SMALL = {"width": 16, "depth": 2, "heads": 2}
ORDERS = torch.tensor([[2, 0, 3, 1], [1, 3, 0, 2]])
DENSITIES = {
    "left to right": lambda: CausalDensity(SPACE, **SMALL),
    "one order": lambda: MaskedDensity(SPACE, **SMALL),
    "two orders": lambda: MaskedDensity(SPACE, ORDERS, **SMALL),
}


def rows(n: int, seed: int = 0) -> torch.Tensor:
    """Sequences whose last codes depend on all others: 0 is frequent, and reading backwards gives another law."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 4 * n, True, generator=generator).view(n, 4)
    chance = torch.rand(n, 2, generator=generator) < 0.8
    x[:, 2] = torch.where(chance[:, 0], 2 - x[:, 0], x[:, 2])
    x[:, 3] = torch.where(chance[:, 1], torch.maximum(x[:, 1], x[:, 2]), x[:, 3])
    return x.float()


def passes(drawn: torch.Tensor, p: torch.Tensor) -> bool:
    """Whether draws follow probabilities of the states, by a χ² test at 1 in 1000; rare states are pooled."""
    seen = torch.bincount(SPACE.index(drawn), minlength=len(p)).double()
    rare = p * len(drawn) < 5
    counts, expected = (
        torch.cat([each[~rare], each[rare].sum(0, keepdim=True)]) for each in (seen, p * len(drawn))
    )
    kept = expected > 0
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    return float(statistic) < stats.chi2.ppf(0.999, int(kept.sum()) - 1)


@pytest.fixture(scope="module", params=list(DENSITIES))
def density(request):
    made = DENSITIES[request.param]()
    train(made, sequence_loss, rows(2000), Recipe(steps=400, batch_size=64, learning_rate=1e-2))
    return made.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def weak():
    """A base that has learned little, and the energy that tilts it."""
    base = CausalDensity(SPACE, **SMALL)
    train(base, sequence_loss, rows(2000), Recipe(steps=25, batch_size=64, learning_rate=3e-3))
    base.eval().requires_grad_(False)
    recipe = Recipe(steps=150, batch_size=128, learning_rate=3e-3, evaluate_every=50)
    model = EnergyModel(
        SPACE, net=SequenceNet.of(base), base=base, draws=8000, recipe=recipe, random_state=0, device="cpu"
    )
    return model.fit(rows(4000))


def test_all_probabilities_of_a_density_add_up_to_one_and_its_draws_follow_them(density):
    p = density.log_prob(STATES).exp()
    assert float(p.sum()) == pytest.approx(1, abs=1e-5)
    assert passes(density.sample(4000, torch.Generator().manual_seed(1)), p / p.sum())


def test_training_brings_a_density_near_the_law_of_its_rows(density):
    counts = torch.bincount(SPACE.index(rows(20000, seed=5)), minlength=len(STATES)) / 20000
    log_p = counts.clamp_min(1e-9).log()
    gap, uniform = (float((counts * (log_p - b)).sum()) for b in (density.log_prob(STATES), -math.log(81)))
    assert gap < 0.35 * uniform


def test_a_given_beginning_is_kept_and_continued_by_its_conditional_law():
    density = CausalDensity(SPACE, **SMALL)
    train(density, sequence_loss, rows(2000), Recipe(steps=60, batch_size=64, learning_rate=3e-3))
    known = torch.tensor([[1.0, 2.0]])
    drawn = density.sample(4000, torch.Generator().manual_seed(0), given=known)
    assert bool((drawn[:, :2] == known).all())
    here = (STATES[:, :2] == known).all(1)
    p = torch.where(here, density.log_prob(STATES).exp(), 0.0).detach()
    assert passes(drawn, p / p.sum())


def test_the_bound_that_a_masked_density_is_trained_by_is_its_mean_over_all_orders():
    masked = MaskedDensity(SPACE, torch.tensor([[0, 1, 2, 3]]), **SMALL)
    train(masked, sequence_loss, rows(500), Recipe(steps=40, batch_size=64, learning_rate=3e-3))
    x = rows(50, seed=3)
    every = torch.cartesian_prod(*[torch.arange(4)] * 4)
    every = every[(every.sort(1).values == torch.arange(4)).all(1)]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        exact = [_in(masked, order).log_prob(x).mean() / 4 for order in every]
        shuffled = [x[torch.randperm(50, generator=generator)] for _ in range(400)]  # sizes follow the row
        found = torch.stack([masked.eval().loss(part, generator) for part in shuffled])
    error = float(found.std()) / math.sqrt(len(found))
    assert abs(float(found.mean()) + float(torch.stack(exact).mean())) < 4 * error


def _in(density: MaskedDensity, order: torch.Tensor) -> MaskedDensity:
    density.orders = order.unsqueeze(0)
    return density


def test_an_energy_over_a_density_adds_up_to_one_by_draws_within_three_errors(weak):
    log_z = weak.log_z("importance", draws=5_000)
    assert log_z.method == "importance"
    total = weak.potential()(STATES).detach().double().logsumexp(0)
    assert abs(float(total) - log_z.value) < 3 * log_z.stderr
    assert weak.log_z().method == "enumerate"


def test_an_energy_over_a_density_gains_and_its_resampled_rows_follow_it(weak):
    new = rows(4000, seed=7)
    gained = weak.log_prob(new) - weak.base_.log_prob(new)
    assert float(gained.mean()) > 0.1
    p = weak.log_prob(STATES).exp().detach()
    drawn = torch.as_tensor(weak.sample(800, method="resampling", random_state=1)).float()
    assert passes(drawn, p / p.sum())


def test_both_sides_hold_the_constant_between_them(weak):
    g, base = weak.nets_[0], weak.base_
    truth = float((base.log_prob(STATES) + g(STATES).detach()).logsumexp(0))
    draws = base.sample(5_000, torch.Generator().manual_seed(2))
    own = torch.as_tensor(weak.sample(2000, method="exact", random_state=3)).float()
    low, high = tilt_bracket(g, draws, own)
    assert low.value - 3 * low.stderr < truth < high.value + 3 * high.stderr
    assert abs(low.value - high.value) < 4 * math.hypot(low.stderr, high.stderr)


def test_features_give_what_codes_give(weak):
    h = SPACE.features(STATES)
    assert torch.allclose(weak.nets_[0].net.on_features(h), weak.nets_[0](STATES), atol=1e-5)
    assert torch.allclose(weak.base_.on_features(h).double(), weak.base_.log_prob(STATES), atol=1e-5)


class Product:
    """b e^g, and its gradient in the features."""

    def __init__(self, base, g):
        self.space, self.base, self.g = SPACE, base, g

    def __call__(self, x):
        return self.base.log_prob(x) + self.g(x)

    def on_features(self, h):
        return self.base.on_features(h) + self.g.on_features(h)


@pytest.mark.parametrize(
    "sampler",
    [
        Gibbs(SPACE),
        GibbsWithGradients(SPACE),
        DiscreteLangevin(SPACE, 0.5),
        MetropolisHastings(HammingOne(SPACE)),
    ],
)
def test_samplers_leave_a_tilted_density_of_sequences_invariant(weak, sampler):
    f, generator = Product(weak.base_, weak.nets_[0].net), torch.Generator().manual_seed(4)
    p = weak.log_prob(STATES).exp().detach()
    start = STATES[torch.multinomial(p, 2000, True, generator=generator)]
    assert passes(run(sampler, f, start, 20, generator).x, p / p.sum())


def test_draws_of_the_base_that_the_energy_accepts_follow_the_tilted_density(weak):
    base, generator = weak.base_, torch.Generator().manual_seed(5)
    p = weak.log_prob(STATES).exp().detach()
    start = STATES[torch.multinomial(p, 2000, True, generator=generator)]
    moved = run(Independence(base), weak.potential(), start, 10, generator).x
    assert passes(moved, p / p.sum())
    assert not passes(base.sample(2000, generator), p / p.sum())  # the law can be told from its base


def test_every_row_is_compared_with_every_draw_on_request(weak):
    g, x, drawn = weak.nets_[0], rows(16, seed=9), rows(1, seed=10)
    found = tilt_loss(g, x, Pool(drawn), torch.Generator().manual_seed(0), 1, brier, every=True)
    slow = [brier(g(row.unsqueeze(0)) - g(drawn)).item() for row in x]
    assert found.item() == pytest.approx(sum(slow) / 16, rel=1e-5)
    y = Pool(rows(500, seed=11)).sample(16, torch.Generator().manual_seed(1))
    both = tilt_loss(g, x, Pool(rows(500, seed=11)), torch.Generator().manual_seed(1), 1, brier, every=True)
    slow = [brier(g(x) - g(other.unsqueeze(0))).mean().item() for other in y]
    assert both.item() == pytest.approx(sum(slow) / 16, rel=1e-5)


def test_a_tilted_density_of_sequences_is_the_same_from_a_file(weak, tmp_path):
    weak.save(tmp_path / "text.safetensors")
    net = SequenceNet.of(weak.base)
    again = EnergyModel.load(tmp_path / "text.safetensors", net=net, base=weak.base, device="cpu")
    assert torch.equal(again.log_prob(STATES), weak.log_prob(STATES))
    assert again.draws == 8000


def test_a_space_that_is_no_sequence_and_orders_that_are_none_are_refused():
    with pytest.raises(ValueError, match="codes of one alphabet"):
        CausalDensity(Space([Category(3), Real()]))
    with pytest.raises(ValueError, match="permutations"):
        MaskedDensity(SPACE, torch.tensor([[0, 1, 2, 2]]))
    with pytest.raises(ValueError, match="draws: expected at least 2"):
        EnergyModel(SPACE, base=CausalDensity(SPACE, **SMALL), draws=1).fit(rows(20))
