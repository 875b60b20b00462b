"""The image energy is blind to hidden pixels, pinned at the base, differentiable, and float32 at its end."""

import copy
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ctem.bases import ProductBase
from ctem.densities.chain import Chain
from ctem.densities.spacetime.differences import Differences
from ctem.matching.noise import Noise
from ctem.matching.spacetime import ColumnComparisons, LevelComparisons
from ctem.partition import log_z_levels
from ctem.samplers import (
    BitState,
    BitTarget,
    Denoise,
    FlipJump,
    LangevinFlips,
    PathFlips,
    Renoise,
    anneal_bits,
    denoise_bits,
)
from ctem.spaces import Category, Real, Space
from ctem.training import Recipe, train
from experiments.images.objectives import Contours, LevelFlips
from experiments.images.unet import ImageNet

pytestmark = pytest.mark.long  # of the experiments, not of the library
SPACE = Space([Category(2)] * 64)
BASE = ProductBase(SPACE, [torch.tensor([1.0, 0.2 + j / 64]) for j in range(64)])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def awake(precision: str = "float32", channels: tuple[int, ...] = (8, 16)) -> ImageNet:
    """A network whose last layers are not zero."""
    net = ImageNet(BASE, (8, 8), channels, precision=precision)
    with torch.no_grad():
        for p in (net.last, net.last_pooled):
            p.copy_(torch.randn(p.shape, generator=seeded(1)))
    return net


def rows(n: int = 6, seed: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, and levels of which some are zero and some infinite."""
    u = torch.rand(2, n, 64, generator=seeded(seed))
    level = torch.where(u[1] < 0.3, math.inf, torch.where(u[1] < 0.6, 0.0, u[1]))
    return (u[0] < 0.5).float(), level


def test_it_starts_at_the_base():
    net = ImageNet(BASE, (8, 8), (8, 16, 24), blocks=2)
    assert bool((net(*rows()) == 0).all())


def test_it_is_blind_to_hidden_pixels():
    net, (x, level) = awake(), rows()
    for filling in (0.0, 1.0, math.nan):
        other = torch.where(level.isinf(), filling, x)
        assert torch.equal(net(other, level), net(x, level))


def test_it_sees_every_visible_pixel():
    net, (x, _) = awake(), rows(1)
    flipped = (x - torch.eye(64)).abs()
    assert bool(((net(flipped, torch.full((64,), 0.1)) - net(x, torch.full((1,), 0.1))).abs() > 1e-4).all())


def test_it_is_zero_when_all_is_hidden_and_fades_towards_that():
    net, (x, _) = awake(), rows()
    assert bool((net(x, torch.full((6,), math.inf)) == 0).all())
    fading = [float(net(x, torch.full((6,), s)).detach().abs().max()) for s in (0.1, 5.0, 30.0)]
    assert fading[0] > fading[1] > fading[2]
    assert fading[2] < 1e-9


def test_one_level_for_the_row_is_the_same_level_for_every_pixel():
    net, (x, _) = awake(), rows()
    assert torch.equal(net(x, torch.full((6,), 0.3)), net(x, torch.full((6, 64), 0.3)))


def test_rows_do_not_meet():
    net, (x, level) = awake(), rows()
    alone = torch.cat([net(x[i : i + 1], level[i : i + 1]) for i in range(6)])
    assert torch.allclose(alone, net(x, level), atol=1e-5)


def test_the_log_density_is_that_of_the_base_plus_g_and_its_gradient_has_both():
    net, (x, level) = awake(), rows()
    assert torch.allclose(net.log_density(x, level), BASE.log_prob(x) + net(x, level), atol=1e-4)
    hidden = torch.full((6,), math.inf)
    gain = BitTarget(lambda x, s: net.log_density(x, hidden), 1.0).informed(BitState(x)).gain
    assert torch.allclose(gain, BASE.column_log_prob(1 - x) - BASE.column_log_prob(x), atol=1e-5)


def test_half_precision_in_the_body_leaves_energies_in_float32_and_close():
    full, (x, level) = awake(), rows(40)
    half = copy.deepcopy(full)
    half.precision = "bf16"
    a, b = full(x, level), half(x, level)
    assert b.dtype == torch.float32
    assert float((a - b).detach().std()) < 0.02 * float(a.detach().std())
    assert not torch.equal(a, b)
    b.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in half.parameters())


def test_an_autocast_around_it_changes_nothing():
    net, (x, level) = awake(), rows()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = net(x, level)
    assert torch.equal(inside, net(x, level))


def test_seeds_decide_the_weights_and_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    a, b, c = (ImageNet(BASE, (8, 8), (8, 16), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(a.first.weight, b.first.weight)
    assert not torch.equal(a.first.weight, c.first.weight)
    assert torch.equal(torch.get_rng_state(), before)


def test_it_has_two_million_parameters_at_28_by_28():
    net = ImageNet(ProductBase(Space([Category(2)] * 784)))
    assert 2.0e6 < sum(p.numel() for p in net.parameters()) < 2.5e6
    assert net(torch.zeros(2, 784), torch.full((2,), 0.1)).shape == (2,)


@pytest.mark.parametrize(
    "objective",
    [
        LevelFlips(Noise(BASE), comparisons=2, temporal=0.3),
        LevelComparisons(Noise(BASE), clean=0.0, whole=1.0, reach=0.1),
        ColumnComparisons(BASE, moves=2),
    ],
    ids=lambda o: type(o).__name__,
)
def test_every_objective_trains_it_and_gradients_reach_all_weights(objective):
    net, x = ImageNet(BASE, (8, 8), (8, 16)), rows(64)[0]
    train(net, objective, x, Recipe(steps=4, batch_size=16, ema=0.9, evaluate_every=4))
    net.zero_grad()
    objective(net, x, seeded()).backward()
    assert all(bool((p.grad != 0).any()) for p in net.parameters())


def test_the_chain_rule_normalises_it():
    space = Space([Category(2)] * 4)
    base = ProductBase(space)
    net = ImageNet(base, (2, 2), (8, 16))
    with torch.no_grad():
        net.last.fill_(0.3)
    total = Chain(Differences(net, base)).log_prob(space.states(), [2, 0, 3, 1]).double().logsumexp(0)
    assert float(total) == pytest.approx(0, abs=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("objective", [LevelFlips, ColumnComparisons])
def test_a_training_step_can_be_captured_and_the_samplers_run_on_the_device(objective, precision):
    base = copy.deepcopy(BASE).cuda()
    net, x = ImageNet(base, (8, 8), (16, 32), precision=precision).cuda(), rows(256)[0].cuda()
    options = {"comparisons": 2, "temporal": 0.3, "interest": Contours((8, 8))}
    loss = LevelFlips(Noise(base).cuda(), **options) if objective is LevelFlips else ColumnComparisons(base)
    history = train(
        net, loss, x, Recipe(steps=60, batch_size=64, ema=0.9, evaluate_every=20), cuda_graph=True
    )
    assert history.loss[-1] < history.loss[0]
    generator = torch.Generator("cuda").manual_seed(0)
    moves = [Denoise(base), LangevinFlips(3), PathFlips(3), Renoise(base, 3), FlipJump(3)]
    out = anneal_bits(net.log_density, base.sample(32, generator), [0.1, 1.0], moves, generator)
    clean = denoise_bits(net.log_density, out.x, 0.1, base, generator)
    assert clean.is_cuda
    assert bool(((clean == 0) | (clean == 1)).all())
    ladder, fixed = [0.1, 0.3, 1.0, 3.0], out.tuned(moves)
    exact = lambda level: fixed(level)[1:]  # noqa: E731
    assert math.isfinite(log_z_levels(net.log_density, base, out.x, ladder, exact, generator).lower.value)


@pytest.mark.parametrize(
    "objective",
    [LevelFlips(Noise(BASE), temporal=0.3, interest=Contours((8, 8))), LevelFlips(Noise(BASE), flips=(1, 9))],
)
def test_a_training_step_looks_at_no_number_so_that_it_can_be_captured(objective):
    net = awake("bf16")
    with FakeTensorMode(allow_non_fake_inputs=True):
        objective(net, torch.zeros(16, 64), torch.Generator())  # reading a fake number raises


ERRORS = {
    "base: expected columns of two values": lambda: ImageNet(ProductBase(Space([Real()] * 4)), (2, 2)),
    "shape: expected height × width = 64": lambda: ImageNet(BASE, (28, 28)),
    "give fewer channels": lambda: ImageNet(BASE, (8, 8), (8,) * 5),
    "precision: expected": lambda: ImageNet(BASE, (8, 8), precision="fp8"),
    "x: expected shape": lambda: awake()(torch.zeros(3, 5), torch.zeros(3)),
}


@pytest.mark.parametrize("message", ERRORS)
def test_mistakes_are_named(message):
    with pytest.raises(ValueError, match=message):
        ERRORS[message]()
