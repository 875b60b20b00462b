"""Laws of the rivals' losses: on an enumerable space, and for normal laws, each is least at log ρ."""

import math

import pytest
import torch

from ctem.bases import ProductBase
from ctem.energies import MLP, LookupEnergy
from ctem.energy_model import EnergyModel
from ctem.matching.kernels import Gaussian, Grid, HammingOne, Mixture, Refresh
from ctem.matching.losses import (
    concrete_score,
    denoised_concrete_score,
    denoised_score_entropy,
    log_score,
    score_entropy,
)
from ctem.matching.noise import Noise
from ctem.matching.rivals import (
    ColumnDiscrepancy,
    DenoisedRatios,
    DenoisingScores,
    EnergyDiscrepancy,
    NoiseContrast,
    Pairs,
    PseudoLikelihood,
    RatioMatching,
    SlicedScores,
)
from ctem.samplers import DiscreteLangevin, Gibbs, PersistentDivergence, exact_differences
from ctem.spaces import Category, Ordinal, Real, Space
from ctem.training import Recipe

BITS = Space([Category(2)] * 4)
LABELS = Space([Category(3), Category(2), Ordinal(4)])
FLIPS = HammingOne(BITS)
BATCHES, ROWS = 25, 800


def labels_heat():
    return Mixture([Refresh(ProductBase(LABELS), 0.4, [0, 1]), Grid(LABELS)], [0.5, 0.5])


OBJECTIVES = {
    "constant target": (BITS, lambda: Pairs(FLIPS)),
    "conditional noise contrast": (BITS, lambda: Pairs(FLIPS, log_score)),
    "concrete score": (BITS, lambda: Pairs(FLIPS, concrete_score)),
    "score entropy": (BITS, lambda: Pairs(FLIPS, score_entropy)),
    "discrepancy, Bernoulli": (BITS, lambda: EnergyDiscrepancy(Refresh(ProductBase(BITS), 0.4), 64, 0.0)),
    "discrepancy, heat": (LABELS, lambda: EnergyDiscrepancy(labels_heat(), 64, 0.0)),
    "discrepancy, column": (LABELS, lambda: ColumnDiscrepancy(LABELS, 64, 0.0)),
    "pseudo-likelihood": (LABELS, lambda: PseudoLikelihood(LABELS)),
    "ratio matching": (BITS, lambda: RatioMatching(BITS)),
    "ratio matching, two bits": (BITS, lambda: RatioMatching(BITS, 2)),
    "ratio matching, guided": (BITS, lambda: RatioMatching(BITS, 2, guided=True)),
    "noise contrast": (LABELS, lambda: NoiseContrast(ProductBase(LABELS))),
    "divergence, Gibbs": (BITS, lambda: PersistentDivergence(Gibbs(BITS), ProductBase(BITS), 20, ROWS, 0.0)),
    "divergence, Langevin": (
        BITS,
        lambda: PersistentDivergence(
            DiscreteLangevin(BITS, 0.5, exact_differences), ProductBase(BITS), 20, ROWS, 0.0
        ),
    ),
}


class Table(LookupEnergy):
    """A free value for every state, with a gradient in features that is of little use but there."""

    def on_features(self, h):
        return h @ torch.linspace(-1, 1, h.shape[-1]) + 0 * self.values.sum()


def truth(space):
    g = torch.Generator().manual_seed(1)
    p = torch.rand(int(space.n_states), generator=g, dtype=torch.float64) + 0.15
    return p / p.sum()


def gradients(space, objective, values):
    """The gradient of a loss at given values of f in independent batches of draws of the truth, (batches, states)."""
    f, p, g = Table(space), truth(space), torch.Generator().manual_seed(0)
    f.values.data.copy_(values)
    found = []
    for _ in range(BATCHES):
        x = space.states()[torch.multinomial(p, ROWS, replacement=True, generator=g)]
        (grad,) = torch.autograd.grad(objective(f, x, g), f.values)
        found.append(grad)
    return torch.stack(found).double()


LATER = ("divergence, Langevin", "discrepancy, heat")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LATER else name for name in OBJECTIVES]
)
def test_the_expected_gradient_vanishes_at_log_rho_and_not_elsewhere(name):
    space, make = OBJECTIVES[name]
    here = gradients(space, make(), truth(space).log())
    z = here.mean(0) / (here.std(0) / math.sqrt(BATCHES))
    assert (
        float(z.square().mean()) < 2.2
    )  # as noise alone has it, about 1; m points instead of all add a little
    away = truth(space).log() + 0.7 * torch.linspace(-1, 1, len(truth(space))).sin()
    there = gradients(space, make(), away)
    assert float((there.mean(0) / (there.std(0) / math.sqrt(BATCHES))).square().mean()) > 10


@pytest.mark.parametrize("rule", [denoised_concrete_score, denoised_score_entropy])
def test_denoised_ratios_are_least_at_the_law_of_noised_rows(rule):
    noise, states, level = Noise(ProductBase(BITS)), BITS.states(), 0.3
    n = len(states)
    pairs = states.repeat_interleave(n, 0), states.repeat(n, 1), torch.full((n * n,), level)
    noised = noise.log_prob(pairs[1], pairs[0], pairs[2]).double().exp().view(n, n)  # from row to column
    log_rho = (truth(BITS) @ noised).log()
    for values, stationary in ((log_rho, True), (truth(BITS).log(), False)):
        grad = gradients(BITS, DenoisedRatios(FLIPS, noise, level, rule), values)
        z = float((grad.mean(0) / (grad.std(0) / math.sqrt(BATCHES))).square().mean())
        assert z < 2.2 if stationary else z > 10


def test_the_terms_of_denoised_ratios_are_bounded_below_and_least_at_their_ratio():
    ratio = torch.tensor([1e-3, 0.5, 1.0, 700.0], dtype=torch.float64).unsqueeze(1)
    gap = torch.cat([torch.linspace(-8, 200, 500, dtype=torch.float64).expand(4, -1), -ratio.log()], 1)
    for rule in (denoised_concrete_score, denoised_score_entropy):
        terms = rule(gap, ratio)
        assert float(terms.min()) > -1e-9
        assert float(terms[:, -1].abs().max()) < 1e-9


def test_noise_contrast_alone_knows_the_constant():
    for objective, knows in ((NoiseContrast(ProductBase(LABELS)), True), (PseudoLikelihood(LABELS), False)):
        grad = gradients(LABELS, objective, truth(LABELS).log() + 1.0).sum(1)
        z = float(grad.mean() / (grad.std() / math.sqrt(BATCHES)).clamp_min(1e-6))
        assert (abs(z) > 10) == knows


@pytest.mark.parametrize(
    ("objective", "variance"),
    [
        (SlicedScores(), 1.0),
        (DenoisingScores(0.5), 1.25),
        (EnergyDiscrepancy(Gaussian(Space([Real()]), 0.5), 64), 1.0),
    ],
    ids=["sliced", "denoising", "discrepancy"],
)
def test_losses_on_reals_are_stationary_at_the_normal_law_of_the_data(objective, variance):
    g = torch.Generator().manual_seed(0)
    found = []
    for _ in range(BATCHES):
        precision = torch.tensor(1 / variance, requires_grad=True)
        x = torch.randn(2000, 1, generator=g)
        loss = objective(lambda x, b=precision: -b * x[..., 0] ** 2 / 2, x, g)
        found.append(torch.autograd.grad(loss, precision)[0])
    grad = torch.stack(found)
    assert abs(float(grad.mean())) < 4 * float(grad.std()) / math.sqrt(BATCHES)


def test_a_discrepancy_refuses_an_asymmetric_kernel():
    base = ProductBase(BITS, [torch.tensor([0.2, 0.8])] * 4)
    with pytest.raises(ValueError, match="symmetric"):
        EnergyDiscrepancy(Refresh(base, 0.5))(lambda x: x[..., 0], torch.zeros(64, 4), torch.Generator())


def test_an_energy_model_takes_an_objective_as_its_rule():
    p = truth(BITS)
    X = BITS.states()[
        torch.multinomial(p, 4000, replacement=True, generator=torch.Generator().manual_seed(0))
    ]
    model = EnergyModel(
        BITS,
        net=MLP(BITS, width=32, seed=0),
        rule=PseudoLikelihood(BITS),
        recipe=Recipe(steps=250, learning_rate=1e-2),
        random_state=0,
    )
    found = torch.as_tensor(model.fit(X.numpy()).log_prob(BITS.states().numpy())).exp()
    assert float((found - p).abs().sum() / 2) < 0.06
