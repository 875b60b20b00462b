import pytest
import torch
from test_kernels import DISCRETE, random_base, random_graph

from ctem.bases import ProductBase
from ctem.energies import MLP, LookupEnergy, NoisyMLP, grad_log_density
from ctem.matching.kernels import (
    Gaussian,
    Graph,
    Grid,
    HammingOne,
    Mixture,
    OrnsteinUhlenbeck,
    Redraw,
    Sphere,
    Uniform,
    mean_std,
)
from ctem.matching.losses import (
    brier,
    concrete_score,
    denoised_loss,
    denoising_score_matching,
    exact_loss,
    log_score,
    pair_loss,
    score_entropy,
    soft,
)
from ctem.matching.noise import Levels, LogUniform, Noise
from ctem.spaces import Category, Ordinal, Real, Space
from ctem.training import Recipe, train

OURS = {"brier": brier, "log": log_score}
RULES = OURS | {"concrete score": concrete_score, "score entropy": score_entropy}


def minimised(p, edges, rule):
    """The exact loss minimised from zero by L-BFGS in float64; centred values."""
    values = torch.zeros_like(p, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [values], max_iter=3000, tolerance_grad=1e-14, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        loss = exact_loss(values, p, edges, rule)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    return (values - values.mean()).detach()


def random_density(n, seed=0):
    p = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.05
    return p / p.sum()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("kernel", DISCRETE.values(), ids=DISCRETE)
def test_the_loss_is_least_at_log_rho_for_every_kernel_and_rule(kernel, rule):
    """The gradient vanishes at log ρ + C exactly; where the graph is connected, nowhere else."""
    p = random_density(int(kernel.space.n_states))
    values = (p.log() + 1.7).requires_grad_()
    loss = exact_loss(values, p, kernel.edges(), rule)
    (grad,) = torch.autograd.grad(loss, values)
    assert float(grad.abs().max()) < 1e-7  # Redraw's tables are float32
    moved = values.detach() + 0.1 * torch.linspace(-1, 1, len(p), dtype=torch.float64) ** 2
    assert float(exact_loss(moved, p, kernel.edges(), rule)) > float(loss.detach())


def two_hundred_states():
    space = Space([Category(5), Ordinal(8), Ordinal(5)])
    generator = torch.Generator().manual_seed(4)
    tree = random_graph(space, seed=1)
    extra = torch.randint(200, (300, 2), generator=generator)
    extra = extra[extra[:, 0] != extra[:, 1]]
    edges = torch.cat([torch.stack([tree.source, tree.target], 1)[tree.source < tree.target], extra])
    graph = Graph(space, edges, torch.rand(len(edges), generator=generator) + 0.2)
    line = Space([Ordinal(200)])
    return {
        "random graph": graph,
        "hamming": HammingOne(space),
        "uniform": Uniform(space),
        "grid": Mixture([Grid(space), HammingOne(space, columns=[0])], [0.5, 0.5]),
        "redraw": Redraw(random_base(space).double()),
        "one category": HammingOne(Space([Category(200)])),
        "mixture of line and uniform": Mixture([Grid(line), Uniform(line)], [0.5, 0.5]),
    }


@pytest.mark.parametrize("rule", OURS.values(), ids=OURS)
@pytest.mark.parametrize("kernel", two_hundred_states().values(), ids=two_hundred_states())
def test_training_on_the_exact_loss_recovers_log_rho_on_200_states(kernel, rule):
    p = random_density(200)
    found = minimised(p, kernel.edges(), rule)
    truth = p.log() - p.log().mean()
    assert float((found - truth).abs().max()) < 1e-5


def test_without_its_correction_an_asymmetric_walk_gives_the_wrong_answer():
    """SCIENCE §1: a ±1 walk that turns back at the ends is off by tenths of a nat unless corrected."""
    space = Space([Ordinal(6)])
    path = Graph(space, torch.stack([torch.arange(5), torch.arange(1, 6)], 1))
    p = random_density(6)
    truth = p.log() - p.log().mean()
    edges = path.edges()
    assert float((minimised(p, edges, brier) - truth).abs().max()) < 1e-6
    wrong = minimised(p, edges._replace(log_ratio=torch.zeros_like(edges.log_ratio)), brier)
    assert float((wrong - truth).abs().max()) > 0.2


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("kernel", DISCRETE.values(), ids=DISCRETE)
def test_the_monte_carlo_loss_has_the_exact_loss_as_its_mean(kernel, rule):
    p = random_density(int(kernel.space.n_states))
    values = torch.randn(len(p), generator=torch.Generator().manual_seed(5), dtype=torch.float64) / 2
    exact = float(exact_loss(values, p, kernel.edges(), rule))
    held = 1 - torch.zeros_like(p).index_add(0, kernel.edges().source, kernel.edges().weight)
    exact += float((p * held * rule(torch.zeros_like(p))).sum())  # self-pairs: a constant
    generator = torch.Generator().manual_seed(6)
    states = kernel.space.states(torch.float64)
    rows = states[torch.multinomial(p, 40_000, replacement=True, generator=generator)]
    f = lambda x: values[kernel.space.index(x)]  # noqa: E731
    parts = torch.stack([pair_loss(f, part, kernel, generator, rule=rule) for part in rows.split(800)])
    assert abs(float(parts.mean()) - exact) < 4 * float(parts.std()) / len(parts) ** 0.5


def test_brier_is_the_papers_loss_and_the_soft_brier_a_bounded_regression():
    gap = torch.linspace(-6, 6, 25, dtype=torch.float64)
    torch.testing.assert_close(brier(gap), 4 * torch.sigmoid(-gap) ** 2)
    w = torch.rand(25, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    square = (torch.tanh(gap / 2) - (2 * w - 1)) ** 2
    torch.testing.assert_close(soft(brier, gap, w), square + 4 * w * (1 - w))


def exact_gradients(rule, soft_target):
    """Expected gradient and its variance at one level, all of x0, x, y enumerated, for a fixed network."""
    space = Space([Category(2), Category(3)])
    base = random_base(space).double()
    noise, edges = Noise(base).double(), Redraw(base).edges()
    p0 = random_density(6)
    states = space.states(torch.float64)
    torch.manual_seed(0)
    f = MLP(space, width=8).double()
    level = torch.full((36,), 0.7, dtype=torch.float64)
    i0, i = (e.flatten() for e in torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij"))
    log_q = noise.log_prob(states[i], states[i0], level).view(6, 6)  # [x0, x]
    mean, second = 0.0, 0.0
    for x0 in range(6):
        for source, target, weight, ratio in zip(*edges, strict=True):
            gap = f(states[source][None]) - f(states[target][None]) + ratio
            w = torch.sigmoid(log_q[x0, source] - log_q[x0, target] + ratio) if soft_target else torch.ones(1)
            grads = torch.autograd.grad(soft(rule, gap, w).sum(), list(f.parameters()))
            g = torch.cat([g.flatten() for g in grads])
            chance = p0[x0] * log_q[x0, source].exp() * weight
            mean, second = mean + chance * g, second + chance * (g**2).sum()
    return mean, float(second - (mean**2).sum())


@pytest.mark.parametrize("rule", OURS.values(), ids=OURS)
def test_soft_and_constant_target_have_the_same_gradient_and_soft_has_less_variance(rule):
    constant, constant_variance = exact_gradients(rule, soft_target=False)
    softened, soft_variance = exact_gradients(rule, soft_target=True)
    torch.testing.assert_close(softened, constant, atol=1e-9, rtol=1e-7)
    assert soft_variance < constant_variance
    print(f"gradient variance: constant {constant_variance:.4f}, soft {soft_variance:.4f}")


@pytest.mark.parametrize("soft_target", [False, True])
def test_the_denoised_loss_is_least_at_the_log_density_of_the_noised_data(soft_target):
    space = Space([Category(2), Ordinal(3)])
    p0 = random_density(6)
    base = random_base(space)
    noise, schedule = Noise(base), Levels((0.2, 1.0))
    states = space.states()
    generator = torch.Generator().manual_seed(0)
    log_rho = {}
    for s in schedule.values:
        level = torch.full((36,), s)
        q = noise.log_prob(states.repeat(6, 1), states.repeat_interleave(6, 0), level).view(6, 6).exp()
        log_rho[s] = (p0.float() @ q).log()
    values = torch.stack([log_rho[s] for s in schedule.values])

    def potential(tilt):
        return lambda x, s: (values + tilt)[(s > 0.5).long(), space.index(x)]

    x0 = states[torch.multinomial(p0, 100_000, replacement=True, generator=generator)]

    def loss(tilt):
        fresh = torch.Generator().manual_seed(1)
        kernel = Redraw(base)
        return float(
            denoised_loss(potential(tilt), x0, noise, schedule, kernel, fresh, soft_target=soft_target)
        )

    direction = torch.randn(2, 6, generator=generator)
    direction -= direction.mean(1, keepdim=True)
    slope = (loss(0.05 * direction) - loss(-0.05 * direction)) / 0.1
    curvature = (loss(0.5 * direction) + loss(-0.5 * direction) - 2 * loss(0 * direction)) / 0.25
    assert curvature > 0
    assert abs(slope) < 0.03 * curvature
    assert loss(0 * direction) < min(loss(0.3 * direction), loss(-0.3 * direction))


def test_the_denoised_loss_runs_on_mixed_rows_with_continuous_levels():
    from ctem.matching.kernels import OrnsteinUhlenbeck, Product
    from ctem.spaces import Real

    space = Space([Real(), Category(3), Ordinal(4)])
    base = ProductBase(space)
    kernel = Product(OrnsteinUhlenbeck(space, 0.5), Redraw(base))
    generator = torch.Generator().manual_seed(0)
    x0 = base.sample(64, generator)
    loss = denoised_loss(NoisyMLP(space), x0, Noise(base), LogUniform(0.01, 5), kernel, generator, m=2)
    loss.backward()
    assert bool(torch.isfinite(loss))


def test_denoising_score_matching_is_least_at_the_smoothed_score():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, 1, generator=generator, dtype=torch.float64)

    def loss(precision):
        f = lambda x: -precision * (x**2).sum(-1) / 2  # noqa: E731
        return float(denoising_score_matching(f, x, 0.5, torch.Generator().manual_seed(1)).detach())

    values = {precision: loss(precision) for precision in (0.7, 0.8, 0.9)}  # truth: 1 / (1 + 0.5²) = 0.8
    assert min(values, key=values.get) == 0.8


def test_every_comparison_meets_its_own_row_and_level():
    """With m = 3 the mean is that of m = 1; pairs that met another row or level would shift it."""
    space = Space([Category(3), Category(2)])
    base = random_base(space)
    noise, schedule, kernel = Noise(base), Levels((0.1, 1.5)), Redraw(base)
    x0 = base.sample(60_000, torch.Generator().manual_seed(0))
    f = lambda x, s: x[:, 0] * s - x[:, 1] / (1 + s)  # noqa: E731

    def spread(m):
        parts = [
            denoised_loss(f, rows, noise, schedule, kernel, torch.Generator().manual_seed(i), m=m)
            for i, rows in enumerate(x0.split(600))
        ]
        parts = torch.stack(parts)
        return float(parts.mean()), float(parts.std()) / len(parts) ** 0.5

    (one, error), (three, other) = spread(1), spread(3)
    assert abs(one - three) < 4 * (error**2 + other**2) ** 0.5
    plain = lambda x: x[:, 0] - x[:, 1]  # noqa: E731
    y, ratio = kernel.compare(x0[:50], torch.Generator().manual_seed(5), m=3)
    by_hand = torch.stack([brier(plain(x0[:50]) - plain(y[i]) + ratio[i]) for i in range(3)]).mean()
    found = pair_loss(plain, x0[:50], kernel, torch.Generator().manual_seed(5), m=3)
    torch.testing.assert_close(found, by_hand)


def test_redraw_is_finite_where_the_base_is_nearly_certain():
    base = ProductBase.fit(Space([Category(2)] * 2), torch.zeros(1000, 2), smoothing=1e-5)
    ratio = Redraw(base).compare(torch.zeros(50, 2), torch.Generator().manual_seed(0)).log_ratio
    assert bool(ratio.isfinite().all())


def test_denoising_score_matching_can_be_evaluated_without_gradients():
    f = lambda x: -(x**2).sum(-1) / 2  # noqa: E731
    with torch.no_grad():
        assert float(denoising_score_matching(f, torch.zeros(9, 2), 1.0, torch.Generator())) == 0


def columns(x):
    """What a network without a squeeze returns: (n, 1)."""
    return x.sum(-1, keepdim=True)


def test_an_energy_of_shape_n_1_is_refused_by_its_name():
    space = Space([Real(), Real()])
    x, generator = torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), torch.Generator()
    said = r"f: expected values of shape \(8,\), one per row; got \(8, 1\): end it with `\.squeeze\(-1\)`"
    with pytest.raises(ValueError, match=said):
        pair_loss(columns, x, Gaussian(space, 0.5), generator, m=4)
    with pytest.raises(ValueError, match=said):
        denoising_score_matching(columns, x, 0.1, generator)
    with pytest.raises(ValueError, match=said):
        grad_log_density(columns, x)
    bits = Space([Category(2)] * 3)
    base, edges = ProductBase(bits), HammingOne(bits).edges()
    with pytest.raises(ValueError, match=r"f: expected values of shape \(4,\)"):
        denoised_loss(
            lambda x, s: columns(x),
            torch.zeros(4, 3),
            Noise(base),
            Levels([0.1]),
            HammingOne(bits),
            generator,
        )
    with pytest.raises(ValueError, match=r"values: expected shape \(n,\)"):
        exact_loss(torch.zeros(8, 1), torch.full((8,), 1 / 8), edges)
    with pytest.raises(ValueError, match=r"probabilities: expected shape \(n,\)"):
        exact_loss(torch.zeros(8), torch.full((8, 1), 1 / 8), edges)


def test_rows_of_numpy_cost_what_the_same_tensor_costs():
    space = Space([Real(), Real()])
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    f, kernel = MLP(space, width=8), Gaussian(space, 0.5)
    one, other = (
        pair_loss(f, rows, kernel, torch.Generator().manual_seed(1), 4) for rows in (x, x.double().numpy())
    )
    assert torch.equal(one, other)
    assert mean_std(x.numpy(), space) == mean_std(x, space)
    assert torch.equal(grad_log_density(f, x.numpy()), grad_log_density(f, x))
    recipe = Recipe(steps=5, evaluate_every=5)
    nets = MLP(space, width=8), MLP(space, width=8)
    for net, rows in zip(nets, (x, x.numpy()), strict=True):
        train(net, lambda f, x, g: pair_loss(f, x, kernel, g), rows, recipe, held_out=rows[:10])
    assert torch.equal(*(net(x) for net in nets))


def test_the_mean_deviation_leaves_label_codes_out():
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    x[:, 2] = torch.arange(200) % 100
    space = Space([Real(), Real(), Category(100)])
    assert mean_std(x, space) == pytest.approx(mean_std(x[:, :2]), rel=1e-6)
    with pytest.raises(ValueError, match=r"x: column 2 holds whole numbers, .* mean_std\(x, space\)"):
        mean_std(x)


@pytest.mark.parametrize("m", [1, 2, 3, 5])
@pytest.mark.parametrize("make", [Gaussian, Sphere, OrnsteinUhlenbeck])
def test_an_odd_number_of_comparisons_keeps_all_antithetic_pairs_but_one(make, m):
    space = Space([Real(), Real()])
    y, _ = make(space, 0.5).compare(torch.zeros(6, 2), torch.Generator().manual_seed(0), m)
    drawn = (m + 1) // 2
    assert y.shape == (m, 6, 2)
    assert torch.equal(y[drawn:], -y[: m - drawn])


def test_a_free_energy_on_a_grid_stays_finite_on_unseen_cells_which_hold_little():
    """8281 cells, 2000 rows, the paper's 4-neighbour graph: from f = 0 unseen cells keep most of the mass."""
    space = Space([Ordinal(91), Ordinal(91)])
    x = (45 + 8 * torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))).round().clamp(0, 90)
    seen = torch.zeros(91 * 91, dtype=torch.bool)
    seen[space.index(x)] = True
    singles = float((torch.bincount(space.index(x)) == 1).sum()) / len(x)
    kernel = Grid(space)
    unseen = {}
    for start in (None, x):
        f = LookupEnergy(space, start)
        recipe = Recipe(steps=300, learning_rate=0.01, schedule="constant", evaluate_every=300)
        train(f, lambda f, x, g: pair_loss(f, x, kernel, g, m=4), x, recipe)
        assert bool(f.values.isfinite().all())
        unseen[start is None] = float(f.values.detach().softmax(0)[~seen].sum())
    assert unseen[True] > 0.5
    assert unseen[False] < 1.2 * singles / (1 + singles)  # what Good and Turing give to all of them
