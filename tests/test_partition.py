"""All roads lead to one log Z, each with an error bar that holds."""

import math
import statistics

import pytest
import torch

from ctem.bases import ProductBase
from ctem.matching.kernels import HammingOne
from ctem.partition import (
    log_z_annealed,
    log_z_bracket,
    log_z_enumerate,
    log_z_grid,
    log_z_importance,
)
from ctem.samplers import MALA, Alternate, Gibbs, GibbsWithGradients, MetropolisHastings, exact_differences
from ctem.spaces import Category, Ordinal, Real, Space

STATES = Space([Category(3), Ordinal(4), Category(2)])
LINE = Space([Real()])
PLANE = Space([Real(), Real()])
MIXED = Space([Category(3), Real()])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def table(x: torch.Tensor) -> torch.Tensor:
    """A skewed log-potential on STATES."""
    return 1.3 * torch.sin(STATES.index(x).to(x.dtype) * 2.1) + 0.4 * x[:, 0] * x[:, 1] / 3


def narrow(x: torch.Tensor) -> torch.Tensor:
    """Unnormalised N(0.5, 0.5²) on LINE: Z = 0.5 √(2π)."""
    return -2 * (x[:, 0] - 0.5) ** 2


def labelled(x: torch.Tensor) -> torch.Tensor:
    """On MIXED: label c has mass e^c σ_c √(2π), with σ_c = (c + 1) / 3."""
    std = (x[:, 0] + 1) / 3
    return x[:, 0] - (x[:, 1] - 0.3 * x[:, 0]) ** 2 / (2 * std**2)


NARROW_LOG_Z = math.log(0.5 * math.sqrt(2 * math.pi))
LABELLED_LOG_Z = math.log(sum(math.exp(c) * (c + 1) / 3 for c in range(3)) * math.sqrt(2 * math.pi))


def labelled_sample(n: int, generator: torch.Generator) -> torch.Tensor:
    mass = torch.tensor([math.exp(c) * (c + 1) / 3 for c in range(3)])
    c = torch.multinomial(mass, n, replacement=True, generator=generator).float()
    return torch.stack([c, 0.3 * c + (c + 1) / 3 * torch.randn(n, generator=generator)], -1)


def test_enumeration_is_the_sum_over_states_whatever_the_batch():
    exact = float(table(STATES.states()).double().exp().sum().log())
    for batch_size in (5, 24, 1000):
        log_z = log_z_enumerate(table, STATES, batch_size)
        assert log_z.value == pytest.approx(exact, abs=1e-9)
        assert log_z[1:] == (0.0, math.inf, "enumerate")


def test_grid_gives_known_integrals_on_one_and_two_columns_with_and_without_labels():
    assert log_z_grid(narrow, LINE, (-6.0, 6.0)).value == pytest.approx(NARROW_LOG_Z, abs=1e-6)
    assert log_z_grid(labelled, MIXED, (-6, 6)).value == pytest.approx(LABELLED_LOG_Z, abs=1e-6)
    plane = log_z_grid(lambda x: narrow(x) + narrow(x.flip(-1)), PLANE, [(-4.0, 4.0), (-3.0, 5.0)], 201)
    assert plane.value == pytest.approx(2 * NARROW_LOG_Z, abs=1e-6)
    assert plane.ess == math.inf


def test_grid_keeps_columns_and_bounds_apart():
    skewed = log_z_grid(lambda x: x[:, 0], PLANE, [(0.0, 1.0), (0.0, 7.0)], 401)
    assert skewed.value == pytest.approx(math.log((math.e - 1) * 7), abs=1e-5)


def test_the_error_of_a_coarse_grid_is_of_the_size_it_says():
    coarse = log_z_grid(lambda x: -50 * (x[:, 0] - 0.123) ** 2, LINE, (-3.0, 3.0), 31)
    error = abs(coarse.value - math.log(math.pi / 50) / 2)
    assert 1e-4 < error < 2 * coarse.stderr


def test_importance_agrees_with_enumeration_and_grid_within_its_error():
    cases = [
        (table, STATES, log_z_enumerate(table, STATES).value),
        (narrow, LINE, log_z_grid(narrow, LINE, (-6, 6)).value),
        (labelled, MIXED, log_z_grid(labelled, MIXED, (-6, 6)).value),
    ]
    for f, space, exact in cases:
        log_z = log_z_importance(f, ProductBase(space), 20_000, seeded(1))
        assert abs(log_z.value - exact) < 4 * log_z.stderr < 0.1
        assert 1000 < log_z.ess < 20_000


ANNEALED = {
    "gibbs": (table, STATES, Gibbs(STATES)),
    "informed": (table, STATES, GibbsWithGradients(STATES, exact_differences)),
    "mala": (narrow, LINE, MALA(LINE, 0.2)),
    "mixed": (labelled, MIXED, Alternate(MALA(MIXED, 0.1), Gibbs(MIXED))),
}


@pytest.mark.parametrize("name", ANNEALED)
def test_annealing_agrees_with_the_exact_value_within_its_error(name):
    f, space, sampler = ANNEALED[name]
    exact = log_z_grid(f, space, (-6, 6)).value if space.reals else log_z_enumerate(f, space).value
    log_z = log_z_annealed(f, ProductBase(space), sampler, 1000, seeded(2), levels=30)
    assert abs(log_z.value - exact) < 4 * log_z.stderr < 0.2
    assert log_z.method == "annealed"


def test_annealing_in_one_leap_is_importance_sampling():
    base = ProductBase(STATES)
    leap = log_z_annealed(table, base, Gibbs(STATES), 500, seeded(3), levels=1)
    assert leap[:3] == log_z_importance(table, base, 500, seeded(3))[:3]


def test_more_levels_waste_fewer_chains():
    base, sampler = ProductBase(MIXED), ANNEALED["mixed"][2]
    few, many = (log_z_annealed(labelled, base, sampler, 500, seeded(4), levels=n).ess for n in (2, 60))
    assert many > 1.5 * few


@pytest.mark.filterwarnings("ignore:log Z rests on")
def test_forward_and_reverse_annealing_bracket_the_truth_on_average():
    base, sampler, g = ProductBase(MIXED), ANNEALED["mixed"][2], seeded(5)
    pairs = [
        log_z_bracket(labelled, base, sampler, labelled_sample(4, g), g, levels=2) for _ in range(120)
    ]  # 4 chains, 2 levels: a poor path, so that the bias shows
    for side, sign in (("lower", -1), ("upper", 1)):
        error = [sign * (getattr(pair, side).value - LABELLED_LOG_Z) for pair in pairs]
        assert statistics.mean(error) > 2 * statistics.stdev(error) / math.sqrt(len(error))


def test_a_good_bracket_is_narrow_and_holds_the_truth():
    x = labelled_sample(1000, seeded(6))
    pair = log_z_bracket(labelled, ProductBase(MIXED), ANNEALED["mixed"][2], x, seeded(7), levels=50)
    for side in pair:
        assert abs(side.value - LABELLED_LOG_Z) < 4 * side.stderr < 0.2
    assert pair.upper.method == "reverse annealed"


@pytest.mark.filterwarnings("ignore:log Z rests on")
def test_a_bracket_crosses_where_its_rows_lack_a_mode_and_holds_the_truth_where_they_have_it():
    space, g = Space.image(1, 8, 8, levels=2), seeded(0)
    ink = 0.1 + 0.8 * (torch.rand(2, 64, generator=g) < 0.5)  # of each of two patterns, in every pixel
    share = torch.tensor([0.001, 0.999])

    def patterns(x: torch.Tensor) -> torch.Tensor:
        each = torch.where(x.unsqueeze(-2) > 0, ink, 1 - ink).log().sum(-1)
        return (each + share.log()).logsumexp(-1)  # log Z = 0

    def bracket(pattern: int) -> tuple[float, float, float]:
        x = (torch.rand(100, 64, generator=g) < ink[pattern]).float()
        pair = log_z_bracket(patterns, ProductBase(space), Gibbs(space), x, seeded(1), levels=60, moves=24)
        return pair.lower.value, pair.upper.value, 3 * max(pair.lower.stderr, pair.upper.stderr)

    low, high, margin = bracket(1)  # 999 of 1000 draws of the law are of this pattern
    assert low - margin < 0 < high + margin
    low, high, margin = bracket(0)
    assert low - high > 3  # the truth of these rows alone is log 0.001 = −6.9
    assert high < -margin


@pytest.mark.parametrize(
    ("method", "n"),
    [("importance", 60), ("annealed", 30), pytest.param("reverse", 24, marks=pytest.mark.long)],
)
def test_standard_errors_are_calibrated(method, n):
    base, sampler = ProductBase(MIXED), ANNEALED["mixed"][2]

    def once(seed):
        g = seeded(seed)
        if method == "importance":
            return log_z_importance(labelled, base, 2000, g)
        if method == "annealed":
            return log_z_annealed(labelled, base, sampler, 300, g, levels=20)
        return log_z_bracket(labelled, base, sampler, labelled_sample(300, g), g, levels=40).upper

    z = [(log_z.value - LABELLED_LOG_Z) / log_z.stderr for log_z in map(once, range(n))]
    assert abs(math.sqrt(statistics.mean(v * v for v in z)) - 1) < 3 / math.sqrt(2 * n)


def test_a_log_z_on_few_effective_samples_warns_with_its_likely_error():
    def far(x):
        return -50 * (x[:, 0] - 3.5) ** 2

    message = r"log Z rests on \d+\.\d effective samples of 10000; score_samples may be off by a constant of"
    with pytest.warns(UserWarning, match=message) as caught:
        log_z = log_z_importance(far, ProductBase(LINE), 10_000, seeded(8))
    assert log_z.ess < 100
    assert f"rests on {log_z.ess:.1f} " in str(caught[0].message)
    assert f"about {log_z.stderr:.1f}." in str(caught[0].message)
    assert caught[0].filename == __file__


def test_weights_survive_potentials_far_from_zero():
    base = ProductBase(STATES)
    shifted = log_z_importance(lambda x: table(x.double()) + 5000, base, 2000, seeded(9))
    plain = log_z_importance(lambda x: table(x.double()), base, 2000, seeded(9))
    assert shifted.value - plain.value == pytest.approx(5000, abs=1e-9)
    assert shifted.ess == pytest.approx(plain.ess, rel=1e-9)


def test_same_seed_same_bits_and_the_global_generator_rests():
    before = torch.get_rng_state()
    f, space, sampler = ANNEALED["mixed"]
    a, b = (log_z_annealed(f, ProductBase(space), sampler, 200, seeded(10), levels=8) for _ in range(2))
    assert a == b
    assert torch.equal(torch.get_rng_state(), before)


def test_levels_may_be_given():
    base, sampler = ProductBase(LINE), MALA(LINE, 0.2)
    even = log_z_annealed(narrow, base, sampler, 300, seeded(11), levels=4)
    assert even == log_z_annealed(narrow, base, sampler, 300, seeded(11), levels=[0, 0.25, 0.5, 0.75, 1])


def annealed(**options):
    return log_z_annealed(narrow, ProductBase(LINE), MALA(LINE, 0.1), 10, seeded(), **options)


BAD = {
    "space: expected at most 4194304 states; .* has real columns": lambda: log_z_enumerate(narrow, LINE),
    "space: expected at most 4194304 states; .* has 1.09951e": lambda: log_z_enumerate(
        table, Space([Category(2)] * 40)
    ),
    "space: expected 1 or 2 real columns": lambda: log_z_grid(table, STATES, (0, 1)),
    "points: expected an odd number ≥ 5; got 100": lambda: log_z_grid(narrow, LINE, (0, 1), 100),
    "bounds: expected low < high": lambda: log_z_grid(narrow, LINE, (1, 0)),
    "bounds: expected low < high, both": lambda: log_z_grid(narrow, LINE, (-math.inf, 0)),
    "bounds: expected 2 pairs": lambda: log_z_grid(narrow, PLANE, [(0, 1)]),
    "n: expected at least 2 draws": lambda: log_z_importance(narrow, ProductBase(LINE), 1, seeded()),
    "levels: expected at least 1; got 0": lambda: annealed(levels=0),
    "levels: expected numbers that rise from 0 to 1": lambda: annealed(levels=[0, 0.7, 0.5, 1]),
    "moves: expected at least 1; got 0": lambda: annealed(moves=0),
    "f: expected a positive, finite total weight": lambda: log_z_enumerate(
        lambda x: x[:, 0] - math.inf, STATES
    ),
    r"x: expected shape \(n, 3\); got \(10, 1\)": lambda: log_z_annealed(
        narrow, ProductBase(LINE), MetropolisHastings(HammingOne(STATES)), 10, seeded()
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_values_are_named(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()
