"""The level objective has its minimum at log ρ_s/b, for every option, and its pieces are what they say."""

import math

import pytest
import torch

from ctem.bases import ProductBase
from ctem.matching.losses import brier, log_score
from ctem.matching.noise import Levels, LogUniform, Noise
from ctem.spaces import Category, Real, Space
from experiments.images.objectives import PAPER_LEVELS, Angular, Contours, LevelFlips, angle_of, level_at

pytestmark = pytest.mark.long  # of the experiments, not of the library
SPACE = Space([Category(2)] * 3)
BASE = ProductBase(SPACE, [torch.tensor([1.0, 1 + j / 2]) for j in range(3)])
STATES = SPACE.states(dtype=torch.float64)
P0 = torch.randn(8, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(0)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def truth(x: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    """log ρ_s(x)/b(x)."""
    noise = Noise(BASE)
    each = [noise.log_prob(x, state.to(x).expand_as(x), level) for state in STATES]
    return (torch.stack(each, -1) + P0.log().to(x)).logsumexp(-1) - BASE.log_prob(x)


OBJECTIVES = {
    "paper": LevelFlips(Noise(BASE), target="constant"),
    "soft": LevelFlips(Noise(BASE)),
    "two flips": LevelFlips(Noise(BASE), flips=2, rule=log_score),
    "up to three flips": LevelFlips(Noise(BASE), flips=(1, 3), comparisons=2),
    "interest": LevelFlips(Noise(BASE), interest=lambda x: 0.1 + x, comparisons=2),
    "temporal": LevelFlips(Noise(BASE), LogUniform(0.05, 4.0), temporal=0.5, reach=0.3),
    "temporal, constant": LevelFlips(
        Noise(BASE), Angular(0.05, math.inf), temporal=0.5, reach=0.3, target="constant", rule=log_score
    ),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_expected_gradient_vanishes_at_the_truth(name):
    """In the directions of every single bit, of a pair of bits, of the level, and of x0's own noise."""
    objective = OBJECTIVES[name]
    x0 = STATES[torch.multinomial(P0, 30_000, replacement=True, generator=seeded(2))]
    a = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    parts = []
    for k, rows in enumerate(x0.split(1500)):

        def g(x, level):
            fade = torch.where(level.isinf(), 0.0, (-level).exp())
            odd = 2 * x - 1
            features = torch.cat([odd, (odd[:, 0] * odd[:, 2])[:, None], (odd[:, :1] * fade[:, None])], -1)
            return truth(x, level) + (features @ a[:5] + a[5]) * fade.clamp(0, 1)

        (slope,) = torch.autograd.grad(objective(g, rows, seeded(100 + k)), a)
        parts.append(slope)
    slopes = torch.stack(parts)
    error = slopes.std(0) / math.sqrt(len(parts))
    assert bool((slopes.mean(0).abs() < 4.5 * error + 1e-9).all())
    assert float(error.max()) < 1e-2


def gradient_noise(objective: LevelFlips) -> float:
    """Spread of the gradient at g = 0 in the direction of the first bit."""
    slopes = []
    for k in range(200):
        a = torch.zeros((), dtype=torch.float64, requires_grad=True)
        x0 = STATES[torch.multinomial(P0, 64, replacement=True, generator=seeded(k))]
        (slope,) = torch.autograd.grad(objective(lambda x, level, a=a: a * x[:, 0], x0, seeded(500 + k)), a)
        slopes.append(slope)
    return float(torch.stack(slopes).std())


def test_the_soft_target_has_less_noise_than_the_constant_one():
    noise = Noise(BASE)
    assert gradient_noise(LevelFlips(noise)) < 0.8 * gradient_noise(LevelFlips(noise, target="constant"))


def test_interest_leaves_the_expected_loss_as_it_is():
    def g(x, level):
        return truth(x, level) + x[:, 0] - x[:, 1] * x[:, 2]

    x0 = STATES[torch.multinomial(P0, 60_000, replacement=True, generator=seeded(3))]
    plain = LevelFlips(Noise(BASE))
    drawn = LevelFlips(Noise(BASE), interest=lambda x: x * torch.tensor([1.0, 0.1, 3.0]).to(x))
    assert float(plain(g, x0, seeded(4))) == pytest.approx(float(drawn(g, x0, seeded(5))), rel=0.02)


def test_paper_levels_flip_bits_of_a_uniform_base_as_often_as_the_paper_says():
    base = ProductBase(Space([Category(2)] * 4))
    x0 = torch.zeros(50_000, 4)
    for ours, theirs in zip(PAPER_LEVELS.values, Levels.log_spaced(0.005, 1.5, 13).values, strict=True):
        flip = (1 - math.exp(-2 * theirs)) / 2
        share = float(Noise(base).sample(x0, torch.full((50_000,), ours), seeded(6)).mean())
        assert share == pytest.approx(flip, abs=4 * math.sqrt(flip * (1 - flip) / 200_000))


def test_levels_and_angles_are_inverse_to_each_other():
    s = torch.tensor([1e-3, 0.01, 0.5, 3.0, 6.0], dtype=torch.float64)
    assert torch.allclose(level_at(angle_of(s)), s, rtol=1e-9)
    assert bool((level_at(torch.tensor([math.pi / 2, 2.0])) == math.inf).all())


def test_a_step_in_angle_holds_the_same_information_at_every_level():
    """The Fisher information of a bit's flip about θ is 1 everywhere, under a uniform base."""
    theta = torch.linspace(0.1, 1.4, 9, dtype=torch.float64, requires_grad=True)
    flip = (1 - (-level_at(theta)).exp()) / 2
    (slope,) = torch.autograd.grad(flip.sum(), theta)
    assert torch.allclose(slope**2 / (flip * (1 - flip)), torch.ones(9, dtype=torch.float64))


def test_drawn_levels_lie_within_their_range():
    for schedule in (PAPER_LEVELS, LogUniform(0.01, 3.0), Angular(0.01, 3.0)):
        s = schedule.draw(2000, seeded(7), torch.zeros(1))
        assert 0.0099 < float(s.min()) < 0.05
        assert 2.5 < float(s.max()) < 3.001


def test_the_number_of_flips_is_as_asked():
    for flips, counts in ((1, {1}), (2, {2}), ((1, 3), {1, 2, 3})):
        flipped, weight = LevelFlips(Noise(BASE), flips=flips, comparisons=4)._flips(
            torch.zeros(50, 3), seeded(8)
        )
        assert flipped.shape == (4, 50, 3)
        assert set(flipped.sum(-1).flatten().tolist()) == counts
        assert bool((weight == 1).all())


def test_contours_lie_at_edges():
    image = torch.zeros(1, 8, 8)
    image[:, :, 4:] = 1
    interest = Contours((8, 8), reach=1)(image.flatten(1)).view(8, 8)
    assert bool((interest[:, 3:5] > 0.2).all())
    assert bool((interest[:, [0, 1, 2, 5, 6, 7]] == 0).all())


ERRORS = {
    "noise: expected columns of two values": lambda: LevelFlips(Noise(ProductBase(Space([Real()])))),
    "flips: expected 1 to 3": lambda: LevelFlips(Noise(BASE), flips=4),
    "comparisons: expected": lambda: LevelFlips(Noise(BASE), comparisons=0),
    "target: expected": lambda: LevelFlips(Noise(BASE), target="hard"),
    "temporal: expected": lambda: LevelFlips(Noise(BASE), temporal=1.0),
    "reach: expected": lambda: LevelFlips(Noise(BASE), reach=2.0),
    "interest: expected flips=1": lambda: LevelFlips(Noise(BASE), flips=2, interest=lambda x: x),
    "low, high: expected": lambda: Angular(1.0, 0.5),
}


@pytest.mark.parametrize("message", ERRORS)
def test_mistakes_are_named(message):
    with pytest.raises(ValueError, match=message):
        ERRORS[message]()


def test_brier_is_the_rule_of_the_paper():
    assert LevelFlips(Noise(BASE)).rule is brier
