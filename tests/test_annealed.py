"""Every exact move on bits leaves a skewed law invariant; annealing from the base finds it; steps adapt."""

import math

import pytest
import torch
from scipy.stats import chisquare

from ctem.bases import ProductBase
from ctem.matching.noise import Noise
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
from ctem.samplers.bits import _log_path
from ctem.spaces import Category, Space

SPACE = Space([Category(2)] * 5)
BASE = ProductBase(SPACE, [torch.tensor([1.0, 1 + j / 2]) for j in range(5)])
LEVEL = 1e-3  # of every test: seeds are fixed

MOVES = {
    "flip": FlipJump(times=4),
    "two flips": FlipJump(times=4, flips=2),
    "langevin": LangevinFlips(times=4, step=0.5, acceptance=None),
    "gradients": PathFlips(times=4, flips=1),
    "path": PathFlips(times=4, flips=5),
    "renoise": Renoise(BASE, times=4, step=0.7, acceptance=None),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Skewed:
    """ρ_s of a random table, noised towards the base: log ρ_s(x), differentiable in x through its polynomial."""

    def __init__(self):
        states = SPACE.states(dtype=torch.float64)
        self.states = states
        self.p0 = (1.5 * torch.randn(len(states), generator=seeded(1), dtype=torch.float64)).softmax(0)
        n = len(states)
        self.pairs = states.repeat_interleave(n, 0), states.repeat(n, 1)

    def table(self, level: float) -> torch.Tensor:
        to, start = self.pairs
        s = torch.full((len(to),), level, dtype=torch.float64)
        q = Noise(BASE).log_prob(to, start, s).exp().view(len(self.states), -1)
        return q @ self.p0

    def __call__(self, x: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        """Multilinear in x: Σ_states log ρ_s(state) Π_i [x_i if state_i else 1 − x_i]."""
        levels, which = level.detach().unique(return_inverse=True)
        log_rho = torch.stack([self.table(float(s)).log() for s in levels])[which].to(x.dtype)
        hit = torch.where(self.states.bool(), x.unsqueeze(1), 1 - x.unsqueeze(1)).prod(-1).to(x.dtype)
        return (log_rho * hit).sum(-1)


TARGET = Skewed()


def agrees(x: torch.Tensor, p: torch.Tensor) -> bool:
    counts = torch.bincount(SPACE.index(x), minlength=len(p)).double()
    seen = p > 0
    assert counts[~seen].sum() == 0
    return chisquare(counts[seen].numpy(), (p * len(x))[seen].numpy()).pvalue > LEVEL


def exact(p: torch.Tensor, n: int, seed: int) -> torch.Tensor:
    return SPACE.states()[torch.multinomial(p, n, replacement=True, generator=seeded(seed))]


@pytest.mark.parametrize("name", MOVES)
def test_exact_moves_leave_a_skewed_target_invariant(name):
    p = TARGET.table(0.3)
    out = anneal_bits(TARGET, exact(p, 20_000, 2), [0.3], [MOVES[name]], seeded(3))
    assert agrees(out.x, p)
    assert 0.05 < out.acceptance[0][0] <= 1


@pytest.mark.parametrize("name", [name for name in MOVES if name != "path"])
def test_exact_moves_keep_the_law_given_fixed_bits(name):
    p = TARGET.table(0.3)
    fixed = torch.tensor([True, False, False, True, False])
    held = (SPACE.states()[:, fixed] == torch.tensor([1.0, 0.0])).all(-1)
    p = torch.where(held, p, 0.0) / p[held].sum()
    x = exact(p, 20_000, 4)
    out = anneal_bits(TARGET, x, [0.3], [MOVES[name]], seeded(5), fixed=fixed)
    assert bool((out.x[:, fixed] == x[:, fixed]).all())
    assert agrees(out.x, p)


def test_a_mask_per_chain_holds_each_chain_at_its_own_bits():
    fixed = torch.rand(200, 5, generator=seeded(6)) < 0.5
    fixed[:, 0] = False
    x = exact(TARGET.table(0.3), 200, 7)
    moves = [Denoise(BASE), LangevinFlips(3), Renoise(BASE, 3), PathFlips(3, flips=1), FlipJump(3)]
    out = anneal_bits(TARGET, x, [0.3, 1.0], moves, seeded(8), fixed=fixed)
    assert bool((out.x == x)[fixed].all())
    assert not bool((out.x == x).all())


@pytest.mark.parametrize("name", MOVES)
def test_annealing_from_the_base_reaches_the_law_of_the_smallest_level(name):
    x = BASE.sample(5000, seeded(9))
    moves = [FlipJump(times=8), MOVES[name]]
    out = anneal_bits(TARGET, x, [0.2, 0.6, 1.5], moves, seeded(10))
    assert agrees(out.x, TARGET.table(0.2))


def test_denoising_jumps_and_exact_moves_together_reach_it_too():
    moves = [Denoise(BASE), LangevinFlips(12), PathFlips(6, flips=3)]
    out = anneal_bits(TARGET, BASE.sample(5000, seeded(11)), [0.2, 0.5, 1.5], moves, seeded(12))
    assert agrees(out.x, TARGET.table(0.2))


def test_denoising_is_exact_for_independent_bits():
    rates = torch.tensor([0.9, 0.2, 0.5, 0.7, 0.05])
    ones = BASE.log_table[:, 1].exp()

    def f(x, level):
        a = (-level).exp().unsqueeze(-1)
        p = a * rates + (1 - a) * ones
        return (x * p.logit() + (1 - p).log()).sum(-1)

    noisy = Noise(BASE).sample(
        (torch.rand(40_000, 5, generator=seeded(13)) < rates).float(), torch.full((40_000,), 0.6), seeded(14)
    )
    clean = denoise_bits(f, noisy, 0.6, BASE, seeded(15))
    error = (rates * (1 - rates) / 40_000).sqrt()
    assert bool(((clean.mean(0) - rates).abs() < 4 * error).all())


def quadratic(d: int):
    a = torch.randn(d, generator=seeded(16))
    B = torch.randn(d, d, generator=seeded(17)) / math.sqrt(d)
    return lambda x, level: x @ a + ((x @ B) * x).sum(-1) - level


@pytest.mark.parametrize(
    "move", [LangevinFlips(60, step=0.9), LangevinFlips(60, step=1e-4), LangevinFlips(60, acceptance=0.8)]
)
def test_steps_follow_the_wanted_acceptance(move):
    x = (torch.rand(500, 64, generator=seeded(18)) < 0.5).float()
    out = anneal_bits(quadratic(64), x, [0.1, 1.0], [move], seeded(19))
    assert out.acceptance[-1][0] == pytest.approx(move.acceptance, abs=0.05)


def test_tuned_moves_keep_their_steps():
    x = (torch.rand(500, 64, generator=seeded(20)) < 0.5).float()
    moves = [LangevinFlips(30), FlipJump(2)]
    out = anneal_bits(quadratic(64), x, [0.1, 1.0], moves, seeded(21))
    again = anneal_bits(quadratic(64), out.x, out.levels, out.tuned(moves), seeded(22))
    assert [row[0] for row in again.steps] == pytest.approx([row[0] for row in out.steps])
    assert all(row[1] is None for row in out.steps)


def test_a_path_and_its_reverse_have_the_probabilities_of_drawing_without_replacement():
    score = torch.randn(1, 6, generator=seeded(23), dtype=torch.float64)
    path, walked = torch.tensor([[4, 0, 3, 1]]), torch.tensor([[True, True, True, False]])
    flip = torch.zeros(1, 6, dtype=torch.bool).index_fill(1, torch.tensor([4, 0, 3]), True)

    def by_hand(order):
        left, total = list(range(6)), 0.0
        for i in order:
            total += float(score[0, i] - score[0, left].logsumexp(0))
            left.remove(i)
        return total

    assert float(_log_path(score, path, walked, flip, backwards=False)) == pytest.approx(by_hand([4, 0, 3]))
    assert float(_log_path(score, path, walked, flip, backwards=True)) == pytest.approx(by_hand([3, 0, 4]))


def test_batches_change_nothing():
    x, f = BASE.sample(100, seeded(24)), quadratic(5)
    moves = [LangevinFlips(5), PathFlips(5, flips=2), Renoise(BASE, 3)]
    whole = anneal_bits(f, x, [0.1, 1.0], moves, seeded(25))
    parts = anneal_bits(f, x, [0.1, 1.0], moves, seeded(25), batch_size=7)
    assert bool((whole.x == parts.x).all())
    assert whole.evaluations == parts.evaluations


def test_what_is_known_goes_over_from_step_to_step():
    calls = []

    def f(x, level):
        calls.append(len(x))
        return x.sum(-1)

    out = anneal_bits(f, torch.zeros(3, 4), [1.0], [LangevinFlips(10)], seeded())
    assert len(calls) == 11
    assert out.evaluations == 22


def test_gains_are_first_order_differences():
    target, x = BitTarget(quadratic(64), 0.5), (torch.rand(3, 64, generator=seeded(26)) < 0.5).float()
    state = target.informed(BitState(x))
    flipped = x.clone()
    flipped[:, 7] = 1 - flipped[:, 7]
    change = target.valued(BitState(flipped)).value - state.value
    curvature = torch.randn(64, 64, generator=seeded(17))[7, 7] / 8
    assert torch.allclose(state.gain[:, 7] + curvature, change, atol=1e-4)


def test_forward_and_reverse_annealing_bracket_the_constant():
    def shifted(x, level):
        return TARGET(x, level) + 2.5 * (level < 1).to(x.dtype)

    levels = torch.logspace(math.log10(0.2), math.log10(4), 24).tolist()
    x = exact(TARGET.table(0.2), 400, 27)
    moves = [LangevinFlips(2, step=0.5, acceptance=None), FlipJump(2)]
    lower, upper = log_z_levels(shifted, BASE, x, levels, moves, seeded(28))
    for side in (lower, upper):
        assert side.value == pytest.approx(2.5, abs=4 * side.stderr + 1e-3)
    assert lower.stderr < 0.05


ERRORS = {
    "x: expected codes 0.0 and 1.0": lambda: anneal_bits(
        TARGET, torch.full((2, 5), 0.5), [1.0], [FlipJump()], seeded()
    ),
    "levels: expected levels > 0": lambda: anneal_bits(TARGET, torch.zeros(2, 5), [], [FlipJump()], seeded()),
    "moves: expected at least one": lambda: anneal_bits(TARGET, torch.zeros(2, 5), [1.0], [], seeded()),
    "times: expected at least 1": lambda: anneal_bits(
        TARGET, torch.zeros(2, 5), [1.0], [FlipJump(0)], seeded()
    ),
    "flips: expected 1 to 2, the bits that are free": lambda: anneal_bits(
        TARGET, torch.zeros(2, 5), [1.0], [PathFlips(1, flips=3)], seeded(), fixed=torch.arange(5) < 3
    ),
    "fixed: expected bools": lambda: anneal_bits(
        TARGET, torch.zeros(2, 5), [1.0], [FlipJump()], seeded(), fixed=torch.zeros(5)
    ),
    "log_density: expected shape": lambda: anneal_bits(
        lambda x, s: x, torch.zeros(2, 5), [1.0], [FlipJump(1)], seeded()
    ),
    "to: expected a level in": lambda: denoise_bits(TARGET, torch.zeros(2, 5), 0.1, BASE, seeded(), to=0.2),
    "times: expected 1, a level is left once": lambda: Denoise(BASE, times=2),
    "moves: expected exact ones with fixed steps": lambda: log_z_levels(
        TARGET, BASE, torch.zeros(9, 5), [0.1, 1.0], [LangevinFlips(2)], seeded()
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_mistakes_are_named(message):
    with pytest.raises(ValueError, match=message.replace("(", "\\(")):
        ERRORS[message]()


def test_a_nan_is_named_with_its_level_and_move():
    with pytest.raises(FloatingPointError, match=r"nan at level 0\.5 in LangevinFlips"):
        anneal_bits(lambda x, s: x.sum(-1) * math.nan, torch.zeros(2, 5), [0.5], [LangevinFlips(2)], seeded())


def test_progress_is_shown_on_request(capsys):
    anneal_bits(quadratic(5), torch.zeros(2, 5), [0.5], [FlipJump(2)], seeded(), progress=True)
    assert "annealing" in capsys.readouterr().out


@pytest.mark.parametrize("first", [20.0, math.inf])
def test_a_jump_that_cannot_be_undone_is_refused(first):
    x = BASE.sample(4, seeded())
    with pytest.raises(ValueError, match="a jump of at most 10; got one from"):
        anneal_bits(lambda x, s: x.sum(-1), x, [first, 0.1], [Denoise(BASE)], seeded())
    with pytest.raises(ValueError, match="a jump of at most 10; got one from"):
        denoise_bits(lambda x, s: x.sum(-1), x, first, BASE, seeded())


@pytest.mark.parametrize(
    "x", [torch.zeros(0, 5), torch.zeros(2, 5, dtype=torch.long), torch.full((2, 5), 0.5)]
)
def test_chains_that_are_no_codes_are_refused(x):
    with pytest.raises(ValueError, match=r"x: expected codes 0\.0 and 1\.0"):
        anneal_bits(lambda x, s: x.sum(-1), x, [0.5], [FlipJump(1)], seeded())


def test_a_level_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="levels: expected levels > 0"):
        anneal_bits(lambda x, s: x.sum(-1), torch.zeros(2, 5), [1.0, math.nan], [FlipJump(1)], seeded())
