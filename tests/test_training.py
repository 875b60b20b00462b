import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch

from ctem.bases import ProductBase
from ctem.energies import MLP, LookupEnergy, Tilted, grad_log_density
from ctem.matching.kernels import Gaussian, HammingOne
from ctem.matching.losses import pair_loss
from ctem.spaces import Category, Real, Space
from ctem.training import Recipe, train
from ctem.training.adamw import AdamW
from ctem.training.checkpoints import read_checkpoint

LINE = Space([Real()])
KERNEL = Gaussian(LINE, 0.5)


def normal_rows(n=500, seed=0):
    return torch.randn(n, 1, generator=torch.Generator().manual_seed(seed))


def loss(f, x, generator):
    return pair_loss(f, x, KERNEL, generator, m=2)


def weights_of(f):
    return torch.cat([p.detach().flatten() for p in f.parameters()])


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(ema):
    found = []
    for seed in (0, 0, 1):
        f = MLP(LINE, width=8)
        train(f, loss, normal_rows(), Recipe(steps=30, evaluate_every=10, ema=ema, seed=seed))
        found.append(weights_of(f))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_training_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    train(MLP(LINE, width=8), loss, normal_rows(), Recipe(steps=5))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_training_recovers_a_density_from_samples():
    f = Tilted(ProductBase(LINE), MLP(LINE, width=32))
    x = normal_rows(4000) * 0.5 + 1.0
    train(f, loss, x, Recipe(steps=600, learning_rate=3e-3))
    probe = torch.linspace(0, 2, 9)[:, None]
    error = grad_log_density(f, probe) - (1.0 - probe) / 0.25
    assert float(error.abs().max()) < 0.6  # the score runs from 4 to −4


def test_a_table_trained_on_samples_finds_the_frequencies():
    space = Space([Category(4)])
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    x = torch.multinomial(p, 4000, replacement=True, generator=torch.Generator().manual_seed(0)).float()[
        :, None
    ]
    f = LookupEnergy(space)
    kernel = HammingOne(space)
    train(f, lambda f, x, g: pair_loss(f, x, kernel, g), x, Recipe(steps=1000, learning_rate=0.05, ema=0.99))
    share = torch.bincount(x[:, 0].long()) / 4000
    assert float((f.values.detach().softmax(0) - share).abs().max()) < 0.02


def test_row_weights_act_like_repeated_rows():
    space = Space([Category(2)])
    x = torch.tensor([[0.0], [1.0]])
    f = LookupEnergy(space)
    kernel = HammingOne(space)
    weights = torch.tensor([3.0, 1.0])
    recipe = Recipe(steps=1000, learning_rate=0.05, ema=0.99)
    train(f, lambda f, x, g: pair_loss(f, x, kernel, g), x, recipe, weights=weights)
    assert float(f.values.softmax(0)[0].detach()) == pytest.approx(0.75, abs=0.02)


def test_early_stopping_keeps_the_weights_with_the_lowest_held_out_loss():
    f = MLP(LINE, width=64)
    recipe = Recipe(steps=4000, learning_rate=3e-3, schedule="constant", evaluate_every=50, patience=5)
    history = train(f, loss, normal_rows(20), recipe, held_out=normal_rows(500, seed=1))
    assert history.stopped_early
    assert history.step[-1] < 4000
    assert history.best_loss == min(history.held_out)
    again = MLP(LINE, width=64)
    train(
        again, loss, normal_rows(20), Recipe(**{**vars(recipe), "steps": history.best_step, "patience": None})
    )
    torch.testing.assert_close(weights_of(f), weights_of(again))


def test_a_non_finite_loss_stops_and_names_the_step():
    def broken(f, x, generator):
        value = loss(f, x, generator)
        broken.calls += 1
        return value * float("nan") if broken.calls == 8 else value

    broken.calls = 0
    with pytest.raises(
        FloatingPointError, match=r"loss is nan at step 7 \(learning_rate=0.01\); try a smaller"
    ):
        train(MLP(LINE, width=8), broken, normal_rows(), Recipe(steps=50, learning_rate=0.01))


SCRIPT = textwrap.dedent(
    """
    import sys, torch
    torch.set_num_threads(1)
    from test_training import *
    f = MLP(LINE, width=16)
    recipe = Recipe(steps=500, evaluate_every=20, ema=0.99)
    history = train(f, loss, normal_rows(), recipe, held_out=normal_rows(99, 1), checkpoint=sys.argv[1])
    torch.save(weights_of(f), sys.argv[2])
    """
)


@pytest.mark.long  # by signals and processes; that a run resumes to the same bits is also tested below
def test_a_killed_run_resumes_to_the_same_bits(tmp_path, pytestconfig):
    def start(name):
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / f"{name}.ckpt"), str(tmp_path / f"{name}.pt")]
        return subprocess.Popen(command, cwd=pytestconfig.rootpath / "tests")

    killed = start("killed")
    while not (tmp_path / "killed.ckpt").exists():
        assert killed.poll() is None
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "killed.pt").exists()
    running = [start(name) for name in ("killed", "whole")]
    assert [each.wait() for each in running] == [0, 0]
    results = [torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("killed", "whole")]
    assert torch.equal(*results)


def test_a_checkpoint_of_another_run_and_a_damaged_one_are_refused(tmp_path):
    path = tmp_path / "run.ckpt"
    recipe = Recipe(steps=10, evaluate_every=5)
    train(MLP(LINE, width=8), loss, normal_rows(), recipe, checkpoint=path)
    with pytest.raises(ValueError, match="belongs to another recipe, network or data"):
        train(MLP(LINE, width=8), loss, normal_rows(seed=3), recipe, checkpoint=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="is damaged or not a checkpoint"):
        read_checkpoint(path, "mark")


def test_a_finished_run_is_not_trained_again(tmp_path):
    first, second = MLP(LINE, width=8), MLP(LINE, width=8)
    for f in (first, second):
        train(f, loss, normal_rows(), Recipe(steps=20, evaluate_every=5), checkpoint=tmp_path / "run.ckpt")
    assert torch.equal(weights_of(first), weights_of(second))


def test_progress_shows_loss_and_rate(capsys):
    train(MLP(LINE, width=8), loss, normal_rows(), Recipe(steps=10, evaluate_every=5), progress=True)
    assert "steps/s" in capsys.readouterr().out


class Dropping(torch.nn.Module):
    """A network with dropout, which draws from torch's global generator, and a buffer that moves."""

    def __init__(self):
        super().__init__()
        self.inner, self.drop = MLP(LINE, width=16), torch.nn.Dropout(0.3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.inner(self.drop(x))


def test_dropout_is_seeded_and_resumes_to_the_same_bits(tmp_path):
    recipe = Recipe(steps=60, evaluate_every=10, ema=0.9)

    def interrupted(f, x, generator):
        interrupted.calls += 1
        if interrupted.calls > 42:
            raise KeyboardInterrupt
        return loss(f, x, generator)

    interrupted.calls = 0
    path, before = tmp_path / "run.ckpt", torch.random.get_rng_state()
    with pytest.warns(UserWarning, match="interrupted after 40 of 60 steps"):
        train(Dropping(), interrupted, normal_rows(), recipe, checkpoint=path)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(100)  # whatever happens to the global generator in between
    resumed, whole = Dropping(), Dropping()
    train(resumed, loss, normal_rows(), recipe, checkpoint=path)
    train(whole, loss, normal_rows(), recipe)
    assert torch.equal(weights_of(resumed), weights_of(whole))
    assert float(whole.calls) == float(resumed.calls) > 0


def test_capturing_a_step_needs_a_cuda_device():
    with pytest.raises(ValueError, match="cuda_graph: expected rows on a CUDA device; got cpu"):
        train(MLP(LINE, width=8), loss, normal_rows(), Recipe(steps=2), cuda_graph=True)


def test_the_average_is_the_mean_of_the_weights_by_how_fresh_they_are():
    seen = []

    def recording(f, x, generator):
        seen.append(weights_of(f).clone())
        return loss(f, x, generator)

    f, plain, recipe = MLP(LINE, width=4), MLP(LINE, width=4), Recipe(steps=6, evaluate_every=6, ema=0.4)
    train(f, recording, normal_rows(), recipe)
    train(plain, loss, normal_rows(), Recipe(steps=6, evaluate_every=6))
    after = [*seen[1:], weights_of(plain)]
    mean = torch.zeros_like(after[0])
    for weights, fresh in zip(after, [1, 9 / 11, 9 / 12, 9 / 13, 9 / 14, 0.6], strict=True):
        mean = (1 - fresh) * mean + fresh * weights
    torch.testing.assert_close(weights_of(f), mean)


def test_the_average_looks_back_over_a_tenth_of_the_steps_until_the_decay_takes_over():
    recipe = Recipe(steps=100_000, ema=0.998)
    assert recipe.fresh(0) == 1
    assert 1 / recipe.fresh(1000) == pytest.approx(1000 / 9, rel=0.02)
    assert recipe.fresh(50_000) == pytest.approx(0.002)


def line_rows(f, x, generator):
    """A loss of (members, n, 1) rows whose minimum is each member's mean."""
    return ((x - f.means[:, None, None]) ** 2).mean((1, 2)).sum()


class Means(torch.nn.Module):
    def __init__(self, members):
        super().__init__()
        self.means = torch.nn.Parameter(torch.zeros(members))


def test_each_member_learns_from_the_rows_of_its_own_weights():
    x, weights = torch.tensor([[-1.0], [1.0], [5.0]]), torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 3.0]])
    f, recipe = Means(2), Recipe(steps=600, batch_size=64, learning_rate=0.05, ema=0.99, evaluate_every=300)
    train(f, line_rows, x, recipe, weights=weights)
    assert f.means.tolist() == pytest.approx([0, 4], abs=0.1)


def test_members_are_given_batches_and_held_out_rows_of_their_own():
    shapes = []

    def looking(f, x, generator):
        shapes.append(tuple(x.shape))
        return line_rows(f, x, generator)

    recipe = Recipe(steps=2, batch_size=8, evaluate_every=2)
    train(
        Means(3), looking, normal_rows(20), recipe, weights=torch.ones(3, 20), held_out=torch.zeros(3, 5, 1)
    )
    assert shapes == [(3, 8, 1), (3, 8, 1), (3, 5, 1)]
    with pytest.raises(ValueError, match=r"held_out: expected shape \(3, 'n', 1\); got \(5, 1\)"):
        train(
            Means(3), looking, normal_rows(20), recipe, weights=torch.ones(3, 20), held_out=torch.zeros(5, 1)
        )
    with pytest.raises(ValueError, match=r"weights: expected \(20,\) or \(members, 20\)"):
        train(Means(3), looking, normal_rows(20), recipe, weights=torch.ones(3, 19))


def test_the_held_out_loss_compares_the_same_pairs_every_time():
    recipe = Recipe(steps=4, evaluate_every=1, learning_rate=1e-30)
    history = train(MLP(LINE, width=4), loss, normal_rows(), recipe, held_out=normal_rows(50, 1))
    assert len(set(history.held_out)) == 1


@pytest.mark.parametrize("change", ["weights", "held_out"])
def test_a_checkpoint_is_refused_under_other_weights_or_held_out_rows(tmp_path, change):
    settings = {"weights": torch.ones(500), "held_out": normal_rows(20, 1)}
    recipe = Recipe(steps=4, evaluate_every=2)
    train(MLP(LINE, width=4), loss, normal_rows(), recipe, checkpoint=tmp_path / "c", **settings)
    settings[change] = settings[change] * 2
    with pytest.raises(ValueError, match="belongs to another recipe, network or data"):
        train(MLP(LINE, width=4), loss, normal_rows(), recipe, checkpoint=tmp_path / "c", **settings)


def test_a_nan_in_the_held_out_rows_stops_training():
    held_out = normal_rows(20, 1)
    held_out[3] = float("nan")
    recipe = Recipe(steps=4, evaluate_every=2)
    with pytest.raises(FloatingPointError, match="held-out loss is nan at step 2; look for nan in held_out"):
        train(MLP(LINE, width=4), loss, normal_rows(), recipe, held_out=held_out)


def test_our_adamw_is_that_of_torch_to_the_last_bit():
    """On parameters of which one never has a gradient, with a rate that changes."""
    ours, theirs = (
        [torch.nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(i))) for i in range(3)]
        for _ in range(2)
    )
    rate = torch.tensor(0.01)
    own, other = AdamW(ours, rate, 0.1), torch.optim.AdamW(theirs, rate, weight_decay=0.1, fused=True)
    for step in range(20):
        rate.fill_(0.01 / (1 + step))
        for parameters, optimizer in ((ours, own), (theirs, other)):
            optimizer.zero_grad()
            sum(((p - i) ** 4).sum() for i, p in enumerate(parameters[:2])).backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_rows_that_are_brought_in_while_it_trains_are_learned_and_a_resumed_run_has_the_same_bits(tmp_path):
    recipe, calls = Recipe(steps=60, evaluate_every=10), []

    def refresh(x, step):
        calls.append(step)
        x.copy_(normal_rows(seed=step))

    def interrupted(f, x, generator):
        if calls[-1] == 40:
            raise KeyboardInterrupt
        return loss(f, x, generator)

    resumed, whole, still = (MLP(LINE, width=8) for _ in range(3))
    with pytest.warns(UserWarning, match="interrupted after 40 of 60 steps"):
        train(resumed, interrupted, normal_rows(), recipe, checkpoint=tmp_path / "run", refresh=refresh)
    calls.clear()
    train(resumed, loss, normal_rows(), recipe, checkpoint=tmp_path / "run", refresh=refresh)
    assert calls == [0, 40, 50]
    train(whole, loss, normal_rows(), recipe, refresh=refresh)
    train(still, loss, normal_rows(), recipe)
    assert torch.equal(weights_of(resumed), weights_of(whole))
    assert not torch.equal(weights_of(still), weights_of(whole))


class Clock:
    """Time that passes only by work: a step or a look takes as long as the machine is slow."""

    def __init__(self, slow):
        self.now, self.slow = 0.0, slow

    def perf_counter(self):
        return self.now

    def work(self):
        self.now += self.slow(self.now)


ROWS = normal_rows(80)
PACES = {
    "steady": lambda now: 1.0,
    "busy from the middle on": lambda now: 1.0 if now < 150 else 5.0,
    "free from the middle on": lambda now: 5.0 if now < 150 else 1.0,
    "slow": lambda now: 20.0,
}


@pytest.mark.parametrize("name", PACES)
def test_a_deadline_is_met_and_used_and_the_rate_has_fallen_to_zero_by_then(name, monkeypatch):
    clock, rates = Clock(PACES[name]), []
    monkeypatch.setattr("ctem.training.loop.time", clock)
    own = Recipe.rate
    monkeypatch.setattr(Recipe, "rate", lambda self, *how: rates.append(own(self, *how)) or rates[-1])

    def timed(f, x, generator):
        clock.work()
        return loss(f, x, generator)

    recipe = Recipe(steps=10_000, evaluate_every=25, ema=0.9)
    history = train(MLP(LINE, width=4), timed, ROWS[:50], recipe, held_out=ROWS[50:], deadline=300.0)
    assert 270 <= clock.now <= 310
    assert len(history.step) >= 4
    assert rates[0] == 1.0
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.1


def test_a_deadline_that_is_far_away_changes_no_bit(monkeypatch):
    found = []
    for deadline in (None, 1e9):
        clock = Clock(lambda now: 1.0)
        monkeypatch.setattr("ctem.training.loop.time", clock)

        def timed(f, x, generator, clock=clock):
            clock.work()
            return loss(f, x, generator)

        f = MLP(LINE, width=4, seed=0)
        train(f, timed, ROWS[:50], Recipe(steps=60, evaluate_every=20), held_out=ROWS[50:], deadline=deadline)
        found.append([p.detach().clone() for p in f.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_run_that_was_ended_by_its_deadline_is_not_trained_on(tmp_path):
    how = {"held_out": ROWS[50:], "checkpoint": tmp_path / "run"}
    recipe = Recipe(steps=1000, evaluate_every=10)
    first = train(MLP(LINE, width=4, seed=0), loss, ROWS[:50], recipe, deadline=0.0, **how)
    again = train(MLP(LINE, width=4, seed=0), loss, ROWS[:50], recipe, deadline=1e9, **how)
    assert first.step == again.step == [1]
