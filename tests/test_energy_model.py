"""The paper's method as an object: what it trains, how it is normalised, drawn from and saved, on every space."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors import safe_open
from scipy.special import i0
from sklearn.base import clone
from torch import nn

from ctem import (
    MLP,
    Angle,
    Category,
    EnergyModel,
    Gaussian,
    HammingOne,
    Ordinal,
    ProductBase,
    Real,
    Recipe,
    Space,
)
from ctem.bases import FittedBase
from ctem.energies import LookupEnergy
from ctem.energy_model import default_kernel, default_recipe, model
from ctem.energy_model.records import kernel_from, kernel_record
from ctem.matching.kernels import (
    Comparison,
    Graph,
    Grid,
    Kernel,
    Mixture,
    Product,
    Redraw,
    Refresh,
    Sphere,
    Uniform,
)
from ctem.matching.losses import brier, log_score, pair_loss, tilt_loss

PLANE = Space([Real(), Real()])
BITS = Space([Category(2)] * 4)
QUICK = Recipe(steps=40, evaluate_every=20, learning_rate=1e-2)


@pytest.fixture(scope="module", autouse=True)
def _narrow():
    """The paper's network, but narrow: most of a short fit is log Z on a grid."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "default_net", lambda space, seed: MLP(space, width=32, seed=seed))
        yield


def gaussian_rows(n=300, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 2)) * [1.0, 0.5]


def bit_rows(n=300, seed=0):
    return np.random.default_rng(seed).integers(2, size=(n, 4)) * [1, 1, 1, 0]


def quick(space, X, **options):
    return EnergyModel(space, **{"recipe": QUICK, "random_state": 0, "device": "cpu", **options}).fit(X)


class Bowl(nn.Module):
    """f = −a‖x‖²/2 as a column (n, 1), which is what most networks return."""

    def __init__(self, a=1.0):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(float(a)))

    def forward(self, x):
        return -self.a * (x**2).sum(-1, keepdim=True) / 2


PAPERS = {
    "reals": (PLANE, gaussian_rows(), Gaussian),
    "ordinals": (Space([Ordinal(9)] * 2), np.random.default_rng(0).integers(9, size=(300, 2)), Grid),
    "bits": (BITS, bit_rows(), HammingOne),
    "mixed": (
        Space([Real(), Real(), Category(3)]),
        np.column_stack([gaussian_rows(), np.arange(300) % 3]),
        Product,
    ),
}


@pytest.mark.parametrize("name", PAPERS)
def test_the_default_calls_the_constant_target_loss_with_the_papers_kernel(name, monkeypatch):
    space, X, kind = PAPERS[name]
    calls = []

    def spy(f, x, kernel, generator, m, rule):
        calls.append((kernel, m, rule))
        return pair_loss(f, x, kernel, generator, m, rule)

    monkeypatch.setattr(model, "pair_loss", spy)
    quick(space, X)
    kernels, ms, rules = zip(*calls, strict=True)
    assert len(calls) > 40
    assert {type(kernel) for kernel in kernels} == {kind}
    assert set(ms) == {4}
    assert set(rules) == {brier}
    assert float(brier(torch.tensor(0.7))) == pytest.approx((math.tanh(0.35) - 1) ** 2, rel=1e-6)


def test_the_papers_scales_are_multiples_of_the_mean_deviation_and_its_comparisons_antithetic():
    X = torch.as_tensor(gaussian_rows(4000))
    kernel = default_kernel(PLANE, X)
    assert kernel.antithetic
    assert kernel.scale == pytest.approx(0.5 * 0.75, rel=0.03)
    joint = default_kernel(Space([Real(), Real(), Category(3)]), torch.cat([X, torch.zeros(4000, 1)], 1))
    assert [type(part) for part in joint.kernels] == [Sphere, HammingOne]
    assert default_recipe(PLANE).learning_rate == default_recipe(Space([Real()] * 10)).learning_rate == 1e-4
    assert (default_recipe(PLANE).steps, default_recipe(Space([Real()] * 10)).steps) == (15_000, 30_000)


def test_a_network_that_returns_a_column_learns_the_energy():
    """f = −a‖x‖²/2 of rows of deviation 1/2: a = 4, by the paper's loss; standard error 4 √(2/2n) of the likelihood."""
    X = np.random.default_rng(0).normal(size=(4000, 2)) / 2
    fitted = quick(PLANE, X, net=Bowl(), recipe=Recipe(steps=400, learning_rate=0.05, evaluate_every=100))
    assert fitted.nets_[0].net.a.item() == pytest.approx(4.0, abs=5 * 4 / math.sqrt(4000))
    assert fitted.log_z().value == pytest.approx(
        math.log(2 * math.pi / fitted.nets_[0].net.a.item()), abs=1e-4
    )
    with pytest.raises(
        ValueError, match=r"net: expected values of shape \(\d+,\), one per row; got \(\d+, 2\)"
    ):
        quick(PLANE, X, net=nn.Linear(2, 2))


def test_a_function_without_parameters_is_normalised_and_not_trained():
    space = Space([Real()] * 3)
    fitted = quick(space, np.random.default_rng(0).normal(size=(500, 3)), net=lambda x: -(x**2).sum(-1) / 2)
    found = fitted.log_z()
    assert found.method == "importance"
    assert abs(found.value - 1.5 * math.log(2 * math.pi)) < 4 * found.stderr
    exact = fitted.log_z("annealed", chains=500, levels=50)
    assert exact.method == "annealed"
    assert abs(exact.value - found.value) < 5 * math.hypot(exact.stderr, found.stderr)
    assert fitted.histories_[0].step == []


@pytest.mark.parametrize("name", PAPERS)
def test_densities_sum_or_integrate_to_one_in_the_users_units(name):
    space, X, _ = PAPERS[name]
    space = space.standardised(X)
    fitted = quick(space, X, folds=2 if name == "bits" else 1)
    if not space.reals:
        total = np.exp(fitted.log_prob(space.decode(space.states()))).sum()
    else:
        (a, b), (c, d) = fitted.box_
        plane = torch.cartesian_prod(torch.linspace(a, b, 301), torch.linspace(c, d, 301))
        labels = range(space.sizes[-1]) if space.discretes else [None]
        rows = [
            plane if k is None else torch.cat([plane, torch.full((len(plane), 1), float(k))], 1)
            for k in labels
        ]
        cell = (b - a) * (d - c) / 300**2 * math.exp(-space.log_det)
        total = sum(np.exp(fitted.log_prob(space.decode(part))).sum() for part in rows) * cell
    assert total == pytest.approx(1.0, abs=1e-3)


def test_rows_of_numpy_and_tensors_have_the_same_answers_and_come_back_as_they_came():
    X = gaussian_rows()
    one, other = quick(PLANE, X), quick(PLANE, torch.as_tensor(X, dtype=torch.float32))
    assert isinstance(one.log_prob(X), np.ndarray)
    assert isinstance(other.log_prob(torch.as_tensor(X)), torch.Tensor)
    np.testing.assert_allclose(one.log_prob(X), other.log_prob(torch.as_tensor(X)).numpy(), atol=1e-5)
    assert one.score(X) == pytest.approx(one.log_prob(X).mean())


def test_the_gradient_is_that_of_the_log_density_in_the_users_units():
    X = gaussian_rows() * 3 + 5
    labels = np.arange(len(X)) % 2
    space = Space([Real(), Real(), Category(2)]).standardised(np.column_stack([X, labels]))
    rows = np.column_stack([X, labels])
    fitted, h = quick(space, rows), 1e-3
    grad = fitted.grad_log_density(rows)
    assert np.isnan(grad[:, 2]).all()
    for j in range(2):
        step = h * np.eye(3)[j]
        slope = (fitted.log_prob(rows + step) - fitted.log_prob(rows - step)) / (2 * h)
        np.testing.assert_allclose(grad[:, j], slope, atol=2e-2, rtol=2e-2)  # float32 differences


def test_with_a_base_comparisons_are_drawn_from_it_and_log_z_is_that_of_the_tilt(monkeypatch):
    """b = N(0, I), g = −(a−1)x²/2: log Z = log E_b e^g = −log a in the plane."""
    X, drawn = np.random.default_rng(0).normal(size=(3000, 2)) / 2, []

    class Tilt(Bowl):
        def forward(self, x):
            return super().forward(x) + (x**2).sum(-1, keepdim=True) / 2

    class Watched(ProductBase):
        def sample(self, n, generator):
            drawn.append(n)
            return super().sample(n, generator)

    recipe = Recipe(steps=400, learning_rate=0.05, evaluate_every=100)
    fitted = quick(PLANE, X, base=Watched(PLANE), net=Tilt(), recipe=recipe)
    a = fitted.nets_[0].net.a.item()
    assert a == pytest.approx(4.0, abs=6 * 4 / math.sqrt(3000))
    assert fitted.kernel_ is None
    assert drawn.count(4 * 256) == 400
    found = fitted.log_z("importance", draws=20_000)
    assert abs(found.value + math.log(a)) < 4 * found.stderr
    assert fitted.log_z().value == pytest.approx(-math.log(a), abs=1e-4)
    draws = fitted.sample(500, diagnostics=True)
    assert draws.method == "resampling"
    assert draws.X.std(0) == pytest.approx([1 / math.sqrt(a)] * 2, abs=5 * 0.5 / math.sqrt(1000))


@pytest.mark.filterwarnings("ignore:log Z rests on")
def test_a_base_that_is_slow_is_drawn_from_no_more_than_it_was_told():
    rows, drawn = np.random.default_rng(0).integers(2, size=(200, 1)).repeat(40, 1), []

    class Slow(ProductBase):
        def sample(self, n, generator):
            drawn.append(n)
            return super().sample(n, generator)

    space = Space([Category(2)] * 40)
    fitted = quick(space, rows, base=Slow(space), draws=500)
    assert drawn == [500, 500]
    assert (fitted.log_z().method, fitted.log_z().ess < 50) == (
        "importance",
        True,
    )  # else it would be annealed


def test_the_loss_of_draws_is_that_of_pairs_whose_kernel_is_the_base():
    base = ProductBase(BITS, [torch.tensor([0.3, 0.7])] * 4)
    x, g = torch.as_tensor(bit_rows(), dtype=torch.float32), MLP(BITS, width=8)

    class Drawn(Kernel):
        def move(self, x, generator):
            y = base.sample(x.shape[:-1].numel(), generator).view(x.shape)
            return Comparison(y, base.log_prob(y) - base.log_prob(x))

    kernel = Drawn(BITS, BITS.discretes, "discrete")
    for rule in (brier, log_score):
        one = tilt_loss(g, x, base, torch.Generator().manual_seed(3), 4, rule)
        f = lambda x: base.log_prob(x) + g(x)  # noqa: E731
        other = pair_loss(f, x, kernel, torch.Generator().manual_seed(3), 4, rule)
        assert one.item() == pytest.approx(other.item(), rel=1e-5)


def test_a_callback_sees_every_look_and_can_end_training():
    looks = []
    fitted = EnergyModel(PLANE, recipe=QUICK, random_state=0).fit(gaussian_rows(), callbacks=[looks.append])
    assert [look.step for look in looks] == [20, 40]
    assert [look.held_out for look in looks] == fitted.histories_[0].held_out
    assert all(isinstance(look.net, nn.Module) and look.member == 0 for look in looks)
    ended = EnergyModel(PLANE, recipe=QUICK, random_state=0).fit(
        gaussian_rows(), callbacks=[lambda look: True]
    )
    assert ended.histories_[0].step == [20]


def test_training_stops_by_rows_that_are_given_and_keeps_the_best():
    recipe = Recipe(steps=400, learning_rate=0.02, schedule="constant", evaluate_every=20, patience=3)
    fitted = EnergyModel(PLANE, recipe=recipe, random_state=0).fit(
        gaussian_rows(30), X_val=gaussian_rows(500, seed=1)
    )
    history = fitted.histories_[0]
    assert history.stopped_early
    assert history.best_step == history.step[-1] - 3 * 20
    ends = EnergyModel(PLANE, recipe=QUICK, validation_fraction=0.0, random_state=0).fit(gaussian_rows())
    assert ends.histories_[0].held_out == []


def test_a_cross_fit_is_the_mean_of_the_densities_of_its_networks():
    X = bit_rows()
    fitted = quick(BITS, X, folds=3)
    each = [f(torch.as_tensor(X, dtype=torch.float32)) for f in map(fitted.potential, range(3))]
    each = torch.stack([f.detach().double() - z.value for f, z in zip(each, fitted.log_zs_, strict=True)])
    np.testing.assert_allclose(fitted.log_prob(X), (each.exp().mean(0).log()).numpy(), atol=1e-9)
    assert len({float(net.net.layers[0].weight.detach()[0, 0]) for net in fitted.nets_}) == 3
    with pytest.raises(ValueError, match="X_val: expected None with folds > 1"):
        EnergyModel(BITS, folds=3).fit(X, X_val=X)


def test_exact_draws_of_a_finite_space_have_its_frequencies():
    fitted = quick(BITS, bit_rows(), folds=2)
    draws = fitted.sample(20_000, diagnostics=True)
    assert (draws.method, draws.weights_ess) == ("exact", math.inf)
    count = np.bincount(BITS.index(torch.as_tensor(draws.X)).numpy(), minlength=16) / 20_000
    p = np.exp(fitted.log_prob(BITS.states().numpy()))
    assert np.abs(count - p).max() < 5 * math.sqrt(0.25 / 20_000)


def test_chains_have_the_moments_of_the_energy_and_say_how_well_they_mix():
    fitted = quick(
        Space([Real()] * 3), np.random.default_rng(0).normal(size=(400, 3)), net=lambda x: -(x**2).sum(-1) / 2
    )
    draws = fitted.sample(400, method="chain", steps=400, diagnostics=True, random_state=1)
    assert draws.X.std(0) == pytest.approx([1.0] * 3, abs=5 / math.sqrt(800))
    assert 0.4 < draws.acceptance < 0.75
    assert float(draws.r_hat.max()) < 1.1
    assert float(draws.ess.min()) > 400
    with pytest.raises(ValueError, match="method: 'exact' needs a finite space"):
        fitted.sample(3, method="exact")


def vonmises_mixture(n, seed):
    rng = np.random.default_rng(seed)
    first = rng.random((n, 1)) < 0.3
    return rng.vonmises(np.where(first, [1.0, 5.0], [4.0, 2.0]), np.where(first, [4.0, 2.0], [2.0, 6.0]))


def vonmises_log_density(X):
    def one(mu, k):
        return (k * np.cos(X - mu)).sum(1) - np.log(2 * np.pi * i0(k)).sum()

    parts = one(np.array([1.0, 5.0]), np.array([4.0, 2.0])), one(np.array([4.0, 2.0]), np.array([2.0, 6.0]))
    return np.logaddexp(math.log(0.3) + parts[0], math.log(0.7) + parts[1])


def test_a_von_mises_mixture_on_the_torus_is_recovered_within_two_hundredths_of_a_nat():
    space = Space([Angle(), Angle()])
    recipe = Recipe(steps=500, learning_rate=3e-3, evaluate_every=100)
    fitted = quick(space, vonmises_mixture(4000, 0), net=MLP(space, width=64), recipe=recipe)
    T = vonmises_mixture(20_000, 1)
    gap = vonmises_log_density(T) - fitted.log_prob(T)
    assert -0.005 < gap.mean() < 0.02
    degrees = Space([Angle(360), Angle(360)])
    same = quick(degrees, np.degrees(vonmises_mixture(4000, 0)), net=MLP(degrees, width=64), recipe=QUICK)
    assert np.isfinite(same.log_prob(np.degrees(T) + 720)).all()
    np.testing.assert_allclose(same.log_prob(np.degrees(T)), same.log_prob(np.degrees(T) + 720), atol=1e-3)


class Neighbours(nn.Module):
    """A Markov chain's log-probability, free: a number for the first token and for every pair of neighbours."""

    def __init__(self, tokens):
        super().__init__()
        self.first, self.pair = nn.Parameter(torch.zeros(tokens)), nn.Parameter(torch.zeros(tokens, tokens))

    def forward(self, x):
        x = x.long()
        return self.first[x[:, 0]] + self.pair[x[:, :-1], x[:, 1:]].sum(-1)


@pytest.mark.parametrize(
    ("tokens", "length", "rows", "steps"),
    [(4, 5, 8000, 600), pytest.param(12, 6, 20_000, 3000, marks=pytest.mark.long)],
)
def test_a_markov_chain_of_tokens_is_recovered_within_two_hundredths_of_a_nat(tokens, length, rows, steps):
    space, g = Space.sequence(tokens, length), torch.Generator().manual_seed(0)
    move, first = (
        torch.randn(tokens, tokens, generator=g).log_softmax(1),
        torch.randn(tokens, generator=g).log_softmax(0),
    )
    S = space.states().long()
    log_p = (first[S[:, 0]] + move[S[:, :-1], S[:, 1:]].sum(-1)).double()
    X = S[
        torch.searchsorted(log_p.exp().cumsum(0), torch.rand(rows, generator=g, dtype=torch.float64))
    ].numpy()
    recipe = Recipe(steps=steps, batch_size=1024, learning_rate=1e-2, evaluate_every=100)
    fitted = quick(space, X, net=Neighbours(tokens), recipe=recipe)
    kl = float((log_p.exp() * (log_p - torch.as_tensor(fitted.log_prob(S.numpy())))).sum())
    assert 0 < kl < 0.02


def test_an_exponential_on_the_half_line_keeps_its_end():
    """Without the end a density of e^{−x} leaks over it: here it is a straight line down to 0."""
    X = np.random.default_rng(0).exponential(size=(4000, 1))
    recipe = Recipe(steps=300, learning_rate=3e-3, evaluate_every=100)
    space = Space([Real(low=0.0)])
    fitted = quick(space, X, net=MLP(space, width=32), recipe=recipe)
    T = np.random.default_rng(1).exponential(size=(5000, 1))
    assert abs((-T[:, 0] - fitted.log_prob(T)).mean()) < 0.02
    assert fitted.sample(500).min() >= 0
    with pytest.raises(ValueError, match=r"column 'x0', row 0: expected a number in 0 … inf; got -1"):
        fitted.log_prob([[-1.0]])


def test_a_convolution_on_images_needs_no_reshaping():
    space = Space.image(1, 4, 4, levels=2)
    X = np.random.default_rng(0).integers(2, size=(100, 1, 4, 4))
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.SiLU(), nn.Flatten(), nn.Linear(8, 1))
    fitted = quick(space, X, net=net)
    assert fitted.log_prob(X).shape == (100,)
    assert fitted.sample(5).shape == (5, 1, 4, 4)


@pytest.mark.parametrize(
    "space", [PAPERS[name][0] for name in PAPERS] + [Space([Real(low=0.0), Real(low=0.0, high=2.0), Angle()])]
)
def test_a_fitted_base_is_normalised_and_draws_from_itself(space):
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(400, space.dim, generator=generator)
    for j in space.discretes:
        rows[:, j] = rows[:, j].round()
    base = FittedBase(space, rows)
    x = base.sample(40_000, generator)
    assert bool(space.inside(x).all())
    wide = FittedBase(space, rows, widen=2.0)
    weight = (wide.log_prob(x) - base.log_prob(x)).double().exp()  # E_b b'/b = 1
    assert float(weight.mean()) == pytest.approx(1.0, abs=6 * float(weight.std()) / math.sqrt(40_000))


def test_a_saved_model_answers_as_before(tmp_path):
    X = np.column_stack([gaussian_rows(), np.arange(300) % 3])
    space = PAPERS["mixed"][0].standardised(X)
    fitted = quick(space, X, folds=2)
    fitted.save(tmp_path / "energy.safetensors")
    same = EnergyModel.load(tmp_path / "energy.safetensors", device="cpu")
    assert same.space == space
    assert (same.log_zs_, same.rule, repr(same.kernel_)) == (
        fitted.log_zs_,
        fitted.rule,
        repr(fitted.kernel_),
    )
    np.testing.assert_array_equal(same.log_prob(X), fitted.log_prob(X))
    np.testing.assert_array_equal(same.sample(50, random_state=1), fitted.sample(50, random_state=1))
    np.testing.assert_array_equal(same.fit(X).log_prob(X), fitted.log_prob(X))
    with safe_open(tmp_path / "energy.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()["model"])
    assert {"space", "fitted_kernel", "rule", "log_zs", "net"} <= set(header)


def test_what_is_of_ones_own_is_given_again_at_load(tmp_path):
    X = gaussian_rows()

    class Wide(Gaussian):
        """A kernel of one's own."""

    class OwnBase:
        def sample(self, n, generator):
            return torch.randn(n, 2, generator=generator)

        def log_prob(self, x):
            return -(x**2).sum(-1) / 2 - math.log(2 * math.pi)

    path, kernel, base = tmp_path / "own.safetensors", Wide(PLANE, 0.3), OwnBase()
    fitted = quick(PLANE, X, net=Bowl(), kernel=kernel, base=base, rule=lambda gap: log_score(gap))
    fitted.save(path)
    with pytest.raises(ValueError, match=r"net: this model has a network of its own"):
        EnergyModel.load(path)
    with pytest.raises(ValueError, match=r"base: this model has a base of its own"):
        EnergyModel.load(path, net=Bowl())
    with pytest.raises(ValueError, match=r"net: expected the network that was saved; (?s:.*)layers"):
        EnergyModel.load(path, net=MLP(PLANE), base=base)
    same = EnergyModel.load(path, net=Bowl(7.0), base=base)
    np.testing.assert_array_equal(same.log_prob(X), fitted.log_prob(X))
    assert same.kernel_ is None
    with pytest.raises(ValueError, match=r"rule: .* got 'own'"):
        same.fit(X)


def test_a_damaged_or_foreign_file_is_refused(tmp_path):
    path = tmp_path / "energy.safetensors"
    quick(PLANE, gaussian_rows()).save(path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged: its content is not what was saved"):
        EnergyModel.load(path)
    path.write_bytes(b"not a model")
    with pytest.raises(ValueError, match="is damaged or not an energy model"):
        EnergyModel.load(path)


FINITE = Space([Category(3), Ordinal(4)])
KERNELS = [
    Gaussian(PLANE, 0.3, antithetic=False),
    Sphere(PLANE, 0.2, columns=[1]),
    Grid(FINITE, reach=2),
    Uniform(FINITE, columns=[0]),
    Redraw(ProductBase(FINITE, [torch.tensor([0.2, 0.3, 0.5]), torch.ones(4)])),
    Refresh(ProductBase(FINITE), 0.4, columns=[1]),
    Mixture([Grid(FINITE), HammingOne(FINITE)], [0.25, 0.75]),
    Graph(FINITE, torch.tensor([[i, i + 1] for i in range(11)]), torch.arange(1.0, 12.0)),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_a_kernel_comes_back_from_its_record_and_makes_the_same_comparisons(kernel):
    again = kernel_from(json.loads(json.dumps(kernel_record(kernel))), kernel.space)
    x = torch.zeros(50, 2)
    one, other = (k.compare(x, torch.Generator().manual_seed(0), m=3) for k in (kernel, again))
    assert torch.equal(one.y, other.y)
    torch.testing.assert_close(one.log_ratio, other.log_ratio)


def test_a_free_energy_of_every_state_is_a_network_too(tmp_path):
    X = bit_rows()
    fitted = quick(BITS, X, net=LookupEnergy(BITS, X))
    p = np.exp(fitted.log_prob(BITS.states().numpy()))
    assert p[1::2].sum() < 0.02  # the last bit is never set
    fitted.save(tmp_path / "table.safetensors")
    np.testing.assert_array_equal(
        EnergyModel.load(tmp_path / "table.safetensors").log_prob(X), fitted.log_prob(X)
    )


def test_arguments_are_stored_and_cloned_and_the_given_network_is_left_alone():
    net = Bowl(2.0)
    wanted = EnergyModel(PLANE, net=net, rule="log score", folds=2)
    assert clone(wanted).get_params()["rule"] == "log score"
    quick(PLANE, gaussian_rows(), net=net)
    assert net.a.item() == 2.0
    assert not hasattr(wanted, "nets_")


WRONG = {
    r"space: expected a ctem\.Space; got \[": lambda: EnergyModel([Real()]).fit(gaussian_rows()),
    r"net: expected a module or a function of rows; got <class 'ctem\.energies\.MLP'>": lambda: EnergyModel(
        PLANE, net=MLP
    ).fit(gaussian_rows()),
    r"rule: expected one of .* got 'brier'": lambda: EnergyModel(PLANE, rule="brier").fit(gaussian_rows()),
    r"kernel: expected one on .* got one on": lambda: EnergyModel(PLANE, kernel=HammingOne(BITS)).fit(
        gaussian_rows()
    ),
    r"recipe: expected a ctem\.Recipe": lambda: EnergyModel(PLANE, recipe=100).fit(gaussian_rows()),
    r"validation_fraction: expected a share": lambda: EnergyModel(PLANE, validation_fraction=1).fit(
        gaussian_rows()
    ),
    r"X: expected shape \(n, 2\); got \(3,\)": lambda: EnergyModel(PLANE).fit([1.0, 2.0, 3.0]),
    r"X: expected at least 2 rows for each of 3 folds; got 5": lambda: EnergyModel(PLANE, folds=3).fit(
        gaussian_rows(5)
    ),
    r"method: expected 'auto' or one of": lambda: quick(BITS, bit_rows()).log_z("guess"),
}


@pytest.mark.parametrize("said", WRONG)
def test_what_cannot_be_is_refused_by_name(said):
    with pytest.raises((ValueError, TypeError), match=said):
        WRONG[said]()


@pytest.mark.filterwarnings("ignore:log Z misses mass")
def test_units_that_a_network_cannot_learn_from_are_named():
    with pytest.warns(
        UserWarning, match=r"column 'x0' has standard deviation .* Space\.standardised\(X\) brings it to 1"
    ):
        EnergyModel(PLANE, recipe=Recipe(steps=2), random_state=0).fit(gaussian_rows() * 1000)


def test_a_grid_that_misses_mass_says_so():
    with pytest.warns(UserWarning, match=r"log Z misses mass: a box twice as wide has 0\.69 nats more"):
        quick(Space([Real()]), gaussian_rows()[:, :1], net=lambda x: 0 * x[:, 0])
    flat = quick(Space([Angle()]), gaussian_rows()[:, :1], net=lambda x: 0 * x[:, 0])
    assert flat.log_z().value == pytest.approx(math.log(2 * math.pi))


def test_the_same_seed_gives_the_same_bits():
    one, other = (quick(PLANE, gaussian_rows()).log_prob(gaussian_rows()) for _ in range(2))
    np.testing.assert_array_equal(one, other)
