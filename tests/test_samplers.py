"""Each sampler leaves a skewed target invariant, and finds it from a point."""

import math

import pytest
import torch
from scipy.stats import chisquare, kstest, norm

from ctem.bases import ProductBase
from ctem.energies import LookupEnergy, NoisyMLP
from ctem.matching.kernels import (
    Gaussian,
    Grid,
    HammingOne,
    Mixture,
    OrnsteinUhlenbeck,
    Product,
    Redraw,
    Uniform,
)
from ctem.samplers import (
    MALA,
    Adapted,
    Alternate,
    DiscreteLangevin,
    Gibbs,
    GibbsWithGradients,
    Independence,
    Langevin,
    MetropolisHastings,
    ReplicaExchange,
    anneal,
    exact_differences,
    gradient_differences,
    run,
)
from ctem.spaces import Category, Ordinal, Real, Space

STATES = Space([Category(3), Ordinal(4), Category(2), Category(2)])  # 48 states
LINE = Space([Real()])
MIXED = Space([Real(), Category(3)])
LEVEL = 1e-3  # of every test: seeds are fixed


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Quadratic:
    """f = ⟨a, h⟩ + c hᵀBh / 2 with random a, B: skewed, Featured, linear in the features for c = 0."""

    def __init__(self, space: Space, curvature: float = 0.5):
        width = sum(space.widths)
        self.space = space
        self.a = torch.randn(width, generator=seeded(1))
        self.B = curvature * torch.randn(width, width, generator=seeded(2))

    def on_features(self, h: torch.Tensor) -> torch.Tensor:
        return h @ self.a + ((h @ self.B) * h).sum(-1) / 2

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.on_features(self.space.features(x))


class UnequalGaussians:
    """0.7 N(−1, 0.5²) + 0.3 N(1.2, 0.8²) on one real column."""

    weight, mean, std = torch.tensor([0.7, 0.3]), torch.tensor([-1.0, 1.2]), torch.tensor([0.5, 0.8])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        z = (x - self.mean) / self.std
        return (self.weight.log() - self.std.log() - z**2 / 2).logsumexp(-1)

    def sample(self, n: int, generator: torch.Generator) -> torch.Tensor:
        which = torch.multinomial(self.weight, n, replacement=True, generator=generator)
        return (self.mean[which] + self.std[which] * torch.randn(n, generator=generator)).unsqueeze(-1)

    def cdf(self, t):
        parts = zip(self.weight.tolist(), self.mean.tolist(), self.std.tolist(), strict=True)
        return sum(w * norm.cdf(t, m, s) for w, m, s in parts)


class LabelledGaussians:
    """c with probabilities 0.6, 0.3, 0.1 and x | c ~ N(μ_c, σ_c²), as rows (x, c)."""

    p, mean, std = (
        torch.tensor([0.6, 0.3, 0.1]),
        torch.tensor([-0.5, 0.5, 0.9]),
        torch.tensor([0.6, 1.0, 0.8]),
    )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        c = x[:, 1].long()
        return self.p.log()[c] - self.std.log()[c] - self.standardised(x) ** 2 / 2

    def standardised(self, x: torch.Tensor) -> torch.Tensor:
        c = x[:, 1].long()
        return (x[:, 0] - self.mean[c]) / self.std[c]

    def sample(self, n: int, generator: torch.Generator) -> torch.Tensor:
        c = torch.multinomial(self.p, n, replacement=True, generator=generator)
        real = self.mean[c] + self.std[c] * torch.randn(n, generator=generator)
        return torch.stack([real, c.float()], -1)


def probabilities(f, space: Space) -> torch.Tensor:
    return f(space.states()).detach().double().softmax(0)


def agrees_with_states(x: torch.Tensor, f, space: Space) -> bool:
    p = probabilities(f, space)
    counts = torch.bincount(space.index(x), minlength=len(p)).double()
    return chisquare(counts.numpy(), (p * len(x)).numpy()).pvalue > LEVEL


def exact_sample(f, space: Space, n: int, generator: torch.Generator) -> torch.Tensor:
    which = torch.multinomial(probabilities(f, space), n, replacement=True, generator=generator)
    return space.states()[which]


def skewed_base() -> ProductBase:
    return ProductBase(STATES, [torch.arange(1.0, k + 1) for k in STATES.sizes])


DISCRETE = {
    "hamming": MetropolisHastings(HammingOne(STATES)),
    "redraw": MetropolisHastings(Redraw(skewed_base())),
    "uniform": MetropolisHastings(Uniform(STATES)),
    "mixture": MetropolisHastings(Mixture([Grid(STATES), HammingOne(STATES, [0, 2, 3])], [0.4, 0.6])),
    "gibbs": Gibbs(STATES),
    "gradients": GibbsWithGradients(STATES),
    "informed": GibbsWithGradients(STATES, exact_differences),
    "langevin": DiscreteLangevin(STATES, 0.5),
    "langevin exact": DiscreteLangevin(STATES, 1.0, exact_differences),
    "alternate": Alternate(Gibbs(STATES, [0, 1]), GibbsWithGradients(STATES)),
    "independence": Independence(skewed_base()),
}

MIXED_SAMPLERS = {
    "mala + gibbs": Alternate(MALA(MIXED, 0.3), Gibbs(MIXED)),
    "mala + informed": Alternate(MALA(MIXED, 0.3), GibbsWithGradients(MIXED, exact_differences)),
    "mala + langevin": Alternate(MALA(MIXED, 0.3), DiscreteLangevin(MIXED, 1.0, exact_differences)),
    "product": MetropolisHastings(Product(Gaussian(MIXED, 0.4), HammingOne(MIXED))),
    "ou + redraw": MetropolisHastings(
        Mixture([OrnsteinUhlenbeck(MIXED, 0.8), Redraw(ProductBase(MIXED))], [0.5, 0.5])
    ),
}

ALL = (
    {name: (sampler, Quadratic(STATES), torch.zeros(6, 4)) for name, sampler in DISCRETE.items()}
    | {name: (sampler, LabelledGaussians(), torch.zeros(6, 2)) for name, sampler in MIXED_SAMPLERS.items()}
    | {"ula": (Langevin(LINE, 0.1), UnequalGaussians(), torch.zeros(6, 1))}
    | {"mala": (MALA(LINE, 0.1), UnequalGaussians(), torch.zeros(6, 1))}
)


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_samplers_leave_a_skewed_target_invariant(name):
    f, g = Quadratic(STATES), seeded(3)
    x = exact_sample(f, STATES, 20_000, g)
    assert agrees_with_states(run(DISCRETE[name], f, x, 5, g).x, f, STATES)


QUICKEST = ("hamming", "gibbs", "informed", "alternate")


@pytest.mark.parametrize(
    "name", [name if name in QUICKEST else pytest.param(name, marks=pytest.mark.long) for name in DISCRETE]
)
def test_discrete_samplers_find_a_skewed_target_from_a_point(name):
    f, g = Quadratic(STATES), seeded(4)
    x = torch.zeros(800, 4)
    assert not agrees_with_states(x, f, STATES)
    assert agrees_with_states(run(DISCRETE[name], f, x, 120, g).x, f, STATES)


def test_replica_exchange_leaves_every_temperature_invariant_and_finds_both_modes():
    space, g = Space([Category(2)] * 8), seeded(6)
    base, ladder = ProductBase(space), [1.0, 0.6, 0.3, 0.0]
    modes = lambda x: 1.2 * ((x.sum(-1) - 4) ** 2) + 0.2 * x.sum(-1)  # noqa: E731  all zeros or all ones
    sampler = ReplicaExchange(Alternate(*[Gibbs(space)] * 8), base, ladder)
    groups = [exact_sample(lambda x, t=t: t * modes(x), space, 3000, g) for t in ladder]
    x = run(sampler, modes, torch.stack(groups, 1).flatten(0, 1), 4, g).x
    for k, t in enumerate(ladder):
        assert agrees_with_states(x[k::4], lambda x, t=t: t * modes(x), space)
    alone = run(sampler, modes, torch.zeros(4 * 600, 8), 60, g).x[::4]
    assert agrees_with_states(alone, modes, space)


def test_mala_leaves_unequal_gaussians_invariant_and_finds_them():
    f, g = UnequalGaussians(), seeded(5)
    x = run(MALA(LINE, 0.3), f, f.sample(20_000, g), 10, g).x
    assert kstest(x[:, 0].numpy(), f.cdf).pvalue > LEVEL
    x = run(MALA(LINE, 0.3), f, torch.full((4000, 1), 3.0), 300, g).x
    assert kstest(x[:, 0].numpy(), f.cdf).pvalue > LEVEL


def test_langevin_with_a_small_step_is_nearly_invariant_and_with_a_large_one_is_not():
    f, g = UnequalGaussians(), seeded(6)
    x = f.sample(20_000, g)
    assert kstest(run(Langevin(LINE, 1e-3), f, x, 50, g).x[:, 0].numpy(), f.cdf).pvalue > LEVEL
    assert kstest(run(Langevin(LINE, 0.3), f, x, 50, g).x[:, 0].numpy(), f.cdf).pvalue < LEVEL


def test_langevin_finds_the_moments_from_a_point():
    f, g = UnequalGaussians(), seeded(7)
    x = run(Langevin(LINE, 0.02), f, torch.full((4000, 1), 3.0), 800, g).x
    exact = f.sample(400_000, g)
    assert abs(x.mean() - exact.mean()) < 4 * x.std() / math.sqrt(4000) + 0.02  # bias of order step
    assert abs(x.std() - exact.std()) < 0.06


@pytest.mark.parametrize("name", MIXED_SAMPLERS)
@pytest.mark.parametrize("start", ["exact", pytest.param("point", marks=pytest.mark.long)])
def test_mixed_samplers_leave_labelled_gaussians_invariant_and_find_them(name, start):
    f, g = LabelledGaussians(), seeded(8)
    exact = start == "exact"
    x = f.sample(20_000, g) if exact else torch.tensor([[2.0, 2.0]]).repeat(4000, 1)
    x = run(MIXED_SAMPLERS[name], f, x, 8 if exact else 150, g).x
    counts = torch.bincount(x[:, 1].long(), minlength=3).double()
    assert chisquare(counts.numpy(), (f.p.double() / f.p.double().sum() * len(x)).numpy()).pvalue > LEVEL
    assert kstest(f.standardised(x).numpy(), "norm").pvalue > LEVEL


@pytest.mark.parametrize(
    "kernel", [OrnsteinUhlenbeck(MIXED, 0.6), Product(OrnsteinUhlenbeck(MIXED, 0.6, ["x0"]))]
)
def test_a_proposal_reversible_for_the_target_is_always_accepted(kernel):
    base, g = ProductBase(MIXED), seeded(9)
    ran = run(MetropolisHastings(kernel), base, base.sample(100, g), 5, g)
    assert ran.acceptance == pytest.approx(1.0, abs=1e-5)


def test_redrawing_two_values_from_the_base_is_accepted_by_its_odds():
    space = Space([Category(2)])  # k(v|u) = 1: the walk flips, so acceptance is b(v)/b(u)
    base = ProductBase(space, [torch.tensor([0.8, 0.2])])
    _, info = MetropolisHastings(Redraw(base)).step(base, torch.tensor([[0.0], [1.0]]), seeded())
    assert info.acceptance.tolist() == pytest.approx([0.25, 1.0])


def test_redraw_of_a_uniform_base_is_always_accepted():
    base, g = ProductBase(STATES), seeded(10)
    ran = run(MetropolisHastings(Redraw(base)), base, base.sample(100, g), 5, g)
    assert ran.acceptance == pytest.approx(1.0, abs=1e-5)


def test_gradient_differences_are_exact_for_a_potential_linear_in_its_features():
    space = Space([Category(3), Real(), Ordinal(5), Category(2), Category(3)])
    f, x = Quadratic(space, curvature=0.0), torch.zeros(50, 5)
    x[:, 1] = torch.randn(50, generator=seeded(11))
    x = run(MetropolisHastings(HammingOne(space)), lambda x: 0 * x[:, 0], x, 20, seeded(12)).x
    torch.testing.assert_close(
        gradient_differences(f, x, space), exact_differences(f, x, space), atol=1e-4, rtol=0
    )
    a = run(GibbsWithGradients(space), f, x, 20, seeded(13))
    b = run(GibbsWithGradients(space, exact_differences), f, x, 20, seeded(13))
    assert torch.equal(a.x, b.x)


def test_differences_are_zero_at_the_value_held_and_empty_beyond_the_column():
    f, x = Quadratic(STATES), STATES.states()
    for differences in (exact_differences, gradient_differences):
        table = differences(f, x, STATES)
        held = table.gather(-1, x.long().unsqueeze(-1))
        torch.testing.assert_close(held, torch.zeros_like(held), atol=1e-5, rtol=0)
        assert (table == -math.inf).sum() == len(x) * sum(4 - k for k in STATES.sizes)
        assert not table.isnan().any()


def test_discrete_langevin_on_a_flat_target_moves_as_far_as_its_step_says():
    space, n, step = Space([Category(3), Ordinal(91)]), 20_000, 0.02
    sampler = DiscreteLangevin(space, step, exact_differences)
    y, info = sampler.step(lambda x: 0 * x[:, 0], torch.tensor([[1.0, 45.0]]).repeat(n, 1), seeded(21))
    assert info.acceptance.mean() == pytest.approx(1.0, abs=1e-4)
    p = 2 / (math.exp(1 / (2 * step)) + 2)  # of another category
    assert abs((y[:, 0] != 1).float().mean() - p) < 4 * math.sqrt(p / n)
    variance = step * (91**2 - 1) / 12  # of the ordinal: a Gaussian, far from its ends
    assert abs(((y[:, 1] - 45) ** 2).mean() - variance) < 4 * variance * math.sqrt(2 / n)
    few, many = (
        DiscreteLangevin(STATES, step).step(Quadratic(STATES, 0.0), torch.zeros(n, 4), seeded(22))[0]
        for step in (0.1, 10.0)
    )
    assert (few != 0).sum() < 0.5 * (many != 0).sum()


def test_real_samplers_hold_codes_and_discrete_samplers_hold_reals():
    f, g = LabelledGaussians(), seeded(14)

    def steep_in_codes(x):
        return f(x) + 1e6 * x[:, 1]  # a gradient in the codes that means nothing

    x = f.sample(50, g)
    for sampler in (Langevin(MIXED, 0.1), MALA(MIXED, 0.1)):
        y = run(sampler, steep_in_codes, x, 5, g).x
        assert torch.equal(x[:, 1], y[:, 1])
        assert not torch.equal(x[:, 0], y[:, 0])
    for sampler in (Gibbs(MIXED), GibbsWithGradients(MIXED, exact_differences)):
        y = run(sampler, f, x, 5, g).x
        assert torch.equal(x[:, 0], y[:, 0])
        assert not torch.equal(x[:, 1], y[:, 1])


@pytest.mark.parametrize("name", ALL)
def test_the_same_seed_gives_the_same_bits_and_the_global_generator_rests(name):
    sampler, f, x = ALL[name]
    before, kept = torch.get_rng_state(), x.clone()
    a, b = (run(sampler, f, x, 5, seeded(15), thin=1) for _ in range(2))
    assert torch.equal(a.trace, b.trace)
    assert a.acceptance == b.acceptance
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(x, kept)  # the caller's rows are not written to
    assert not torch.equal(run(sampler, f, x, 20, seeded(16)).x, run(sampler, f, x, 20, seeded(17)).x)


@pytest.mark.parametrize("name", ALL)
def test_steps_keep_the_shape_and_dtype_of_x_and_no_gradient(name):
    sampler, f, x = ALL[name]
    x, info = sampler.step(f, x, seeded())
    assert x.shape == ALL[name][2].shape
    assert x.dtype == torch.float32
    assert not x.requires_grad
    assert info.acceptance.shape == (len(x),)
    assert ((info.acceptance >= 0) & (info.acceptance <= 1)).all()


def test_samplers_move_in_float64_too():
    f, x = LabelledGaussians(), torch.zeros(5, 2, dtype=torch.float64)
    for sampler in MIXED_SAMPLERS.values():
        assert run(sampler, f, x, 3, seeded()).x.dtype == torch.float64


def test_a_trained_network_is_not_given_gradients():
    table = LookupEnergy(STATES)
    run(
        Alternate(Gibbs(STATES), MetropolisHastings(HammingOne(STATES))),
        table,
        torch.zeros(4, 4),
        3,
        seeded(),
    )
    assert table.values.grad is None


def test_run_keeps_every_thin_th_state_and_its_last():
    f, x = UnequalGaussians(), torch.zeros(4, 1)
    full = run(MALA(LINE, 0.3), f, x, 12, seeded(), thin=1)
    thin = run(MALA(LINE, 0.3), f, x, 12, seeded(), thin=3)
    assert torch.equal(full.trace[2::3], thin.trace)
    assert torch.equal(full.trace[-1], full.x)
    assert run(MALA(LINE, 0.3), f, x, 12, seeded()).trace is None
    assert run(MALA(LINE, 0.3), f, x, 2, seeded(), thin=3).trace.shape == (0, 4, 1)


def test_a_bar_changes_nothing(capsys):
    f, x = UnequalGaussians(), torch.zeros(4, 1)
    bar = run(MALA(LINE, 0.3), f, x, 5, seeded(), progress=True)
    assert torch.equal(bar.x, run(MALA(LINE, 0.3), f, x, 5, seeded()).x)
    assert "sampling" in capsys.readouterr().out


def test_annealing_visits_levels_from_large_to_small_and_ends_in_the_smallest():
    f, seen = Quadratic(STATES), []

    def noisy(x, level):
        seen.append(float(level[0]))
        return f(x) / (1 + level)

    x = ProductBase(STATES).sample(4000, seeded(18))
    out = anneal(MetropolisHastings(HammingOne(STATES)), noisy, x, [0.0, 3.0, 1.0], 40, seeded(19))
    assert seen == sorted(seen, reverse=True)
    assert len(out.acceptance) == 3
    assert out.acceptance[0] > out.acceptance[2]
    assert agrees_with_states(out.x, f, STATES)


def test_annealing_takes_a_sampler_for_each_level():
    levels = []

    def sampler_for(level):
        levels.append(level)
        return Gibbs(STATES)

    anneal(sampler_for, NoisyMLP(STATES), torch.zeros(3, 4), [0.1, 1.0], 2, seeded())
    assert levels == [1.0, 0.1]


def test_annealing_hands_features_through_to_informed_samplers():
    class Noisy(Quadratic):
        def on_features(self, h, level):
            return super().on_features(h) / (1 + level)

        def __call__(self, x, level):
            return self.on_features(self.space.features(x), level)

    out = anneal(GibbsWithGradients(STATES), Noisy(STATES), torch.zeros(3, 4), [0.1, 1.0], 2, seeded())
    assert out.x.shape == (3, 4)


BAD = {
    "Langevin moves real columns": lambda: Langevin(STATES, 0.1),
    "MALA moves real columns": lambda: MALA(STATES, 0.1),
    "Gibbs moves discrete columns": lambda: Gibbs(LINE),
    "GibbsWithGradients moves discrete columns": lambda: GibbsWithGradients(LINE),
    "DiscreteLangevin moves discrete columns": lambda: DiscreteLangevin(LINE, 0.1),
    "step: expected a finite number > 0; got 0": lambda: MALA(LINE, 0),
    "step: expected a finite number > 0; got -1": lambda: DiscreteLangevin(STATES, -1),
    "step: expected a finite number > 0; got nan": lambda: Langevin(LINE, math.nan),
    "columns: expected discrete columns": lambda: Gibbs(MIXED, ["x0"]),
    "columns: expected at least one": lambda: Gibbs(MIXED, []),
    "samplers: expected at least one": lambda: Alternate(),
    "steps: expected a whole number ≥ 1; got 0": lambda: run(
        Gibbs(STATES), Quadratic(STATES), torch.zeros(3, 4), 0, seeded()
    ),
    "thin: expected a whole number ≥ 1; got 0": lambda: run(
        Gibbs(STATES), Quadratic(STATES), torch.zeros(3, 4), 1, seeded(), thin=0
    ),
    "levels: expected at least one": lambda: anneal(
        Gibbs(STATES), NoisyMLP(STATES), torch.zeros(3, 4), [], 1, seeded()
    ),
    r"x: expected shape \(n, 4\); got \(3, 2\)": lambda: Gibbs(STATES).step(
        Quadratic(STATES), torch.zeros(3, 2), seeded()
    ),
    r"x: expected shape \(n, 2\); got \(3, 4\)": lambda: MetropolisHastings(HammingOne(MIXED)).step(
        LabelledGaussians(), torch.zeros(3, 4), seeded()
    ),
    r"f: expected values of shape \(3,\), one per row; got \(3, 1\)": lambda: MALA(LINE, 0.1).step(
        lambda x: -(x**2), torch.zeros(3, 1), seeded()
    ),
    "f is -inf in chain 0": lambda: MetropolisHastings(HammingOne(STATES)).step(
        lambda x: x[:, 0].log(), torch.zeros(3, 4), seeded()
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_values_are_named(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()


def test_bad_types_are_named():
    with pytest.raises(TypeError, match=r"kernel: expected a ctem\.matching\.kernels\.Kernel; got 'hamming'"):
        MetropolisHastings("hamming")
    with pytest.raises(TypeError, match="samplers: expected objects with a `step`"):
        Alternate(Gibbs(STATES), HammingOne(STATES))
    with pytest.raises(TypeError, match=r"Featured .* got LookupEnergy; pass differences=exact_differences"):
        GibbsWithGradients(STATES).step(LookupEnergy(STATES), torch.zeros(3, 4), seeded())


def test_nan_stops_and_names_the_row():
    x = torch.tensor([[1.0, 0, 0, 0], [0.0, 0, 0, 0]])
    with pytest.raises(FloatingPointError, match="nan at row 1"):
        Gibbs(STATES, [1]).step(lambda x: 0 * x[:, 0].log(), x, seeded())
    with pytest.raises(FloatingPointError, match="smaller step"):
        run(Langevin(LINE, 10.0), lambda x: -(x[:, 0] ** 4), torch.ones(2, 1), 50, seeded())


def test_mala_rejects_what_overflows():
    x = torch.full((2, 1), 30.0)
    y, info = MALA(LINE, 1e6).step(lambda x: -(x[:, 0] ** 4), x, seeded())
    assert torch.equal(x, y)
    assert info.acceptance.sum() == 0


@pytest.mark.parametrize("name", ["hamming", "gibbs", "informed", "langevin exact"])
def test_states_of_no_probability_are_never_entered(name):
    def f(x):
        return torch.where(x[:, 0] == 1, -math.inf, x.sum(-1))

    ran = run(DISCRETE[name], f, torch.zeros(200, 4), 30, seeded(20), thin=1)
    assert not (ran.trace[..., 0] == 1).any()


@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_an_adapted_step_reaches_its_target_acceptance_at_any_scale(scale):
    sampler = Adapted(lambda step: MALA(LINE, step), step=1.0)
    f = lambda x: -(x[:, 0] ** 2) / (2 * scale**2)  # noqa: E731
    x = scale * torch.randn(500, 1, generator=seeded(3))
    x = run(sampler, f, x, 200, seeded(4)).x
    assert run(sampler.frozen(), f, x, 50, seeded(5)).acceptance == pytest.approx(0.57, abs=0.05)


@pytest.mark.long
def test_annealing_with_adapted_steps_finds_both_modes_in_their_proportion():
    """0.7/0.3 modes 12 deviations apart: the levels join them, and every level gets the step it needs."""
    base = ProductBase(LINE)
    means, weights = torch.tensor([-0.9, 1.8]), torch.tensor([0.7, 0.3])

    def f(x, level):
        a = (-level).exp()
        variance = 0.05 * a**2 + 1 - a**2
        gap = (x - a.unsqueeze(1) * means) ** 2 / variance.unsqueeze(1)
        return (weights.log() - gap / 2 - variance.log().unsqueeze(1) / 2).logsumexp(1)

    x, rates = anneal(
        Adapted(lambda step: MALA(LINE, step), step=0.5),
        f,
        base.sample(1500, seeded(6)),
        torch.logspace(-3, 0.5, 40).tolist(),
        20,
        seeded(7),
    )
    assert float((x[:, 0] < 0.3).float().mean()) == pytest.approx(0.7, abs=0.04)
    assert min(rates[5:]) > 0.3
