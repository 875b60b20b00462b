"""What comes after the training is planned: it takes a share of the training's work, and ends by ``max_time``."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small import SMALL

from ctem import CTEM
from ctem.densities.tilted import Plan
from ctem.densities.tilted import energy as energies
from ctem.densities.tilted.boosting import LOOK, Boosting
from ctem.densities.tilted.plan import FEW_TIMED, TIMED, Pace
from ctem.fitting import learning
from ctem.tables.answers import heldout
from ctem.tables.answers.density import FEW, OF_ONE_PASSES, TYPICAL, TYPICAL_PASSES, TableDensity
from ctem.tables.answers.heldout import LEARNING, SHARE, check_held_out, judged_rows


class Clock:
    """A clock on which a row that is scored takes a second, and nothing else any time."""

    def __init__(self, monkeypatch):
        self.now, self.scored, own = 0.0, list[int](), TableDensity.log_prob_and_surprise
        monkeypatch.setattr(heldout.time, "perf_counter", lambda: self.now)

        def timed(table, frame):
            self.now += len(frame)
            self.scored.append(len(frame))
            return own(table, frame)

        monkeypatch.setattr(TableDensity, "log_prob_and_surprise", timed)


@pytest.fixture(scope="module")
def wide():
    """120 bits, and a model that knows little of them."""
    X = (np.random.default_rng(0).random((600, 120)) < 0.3).astype(int)
    return X, CTEM(**SMALL | {"max_steps": 2, "energy": None}).fit(X)


@pytest.mark.parametrize(
    "held_out", [False, pytest.param(True, marks=pytest.mark.long)], ids=["folds", "X_val"]
)
def test_scoring_ends_by_the_clock_whatever_the_held_out_rows(wide, held_out, monkeypatch):
    X, model = wide
    table, frame = TableDensity(model.schema_, model.density_), model.as_frame(X)
    kept = model.as_frame(X[:300]) if held_out else None
    clock = Clock(monkeypatch)
    for seconds in (0.0, 60.0):
        clock.now, clock.scored = 0.0, []
        found = check_held_out(table, frame, model.seed_, kept, until=seconds)
        assert found.rows == sum(clock.scored)
        assert seconds - max(clock.scored) < found.rows <= max(seconds, clock.scored[0])
        few = heldout.PIECE // (table if held_out else table.of_member(0)).passes
        assert max(clock.scored) <= max(1, few)


def test_as_many_rows_are_scored_as_are_a_share_of_the_training(wide):
    table = TableDensity(wide[1].schema_, wide[1].density_)
    one = table.of_member(0)
    assert table.passes == one.passes * table.density.net.members
    most = judged_rows(table)
    assert most == min(heldout.MOST, heldout.CELLS // 120)
    rows = [judged_rows(one, trained) for trained in (0, 10**6, 2 * 10**6, 10**9)]
    assert rows == sorted(rows)
    assert (rows[0], rows[-1]) == (max(heldout.LEAST, heldout.FREE // one.passes), most)
    for trained in (10**6, 2 * 10**6):
        work = judged_rows(table, trained) * table.passes
        assert work <= max(SHARE * LEARNING * trained, heldout.FREE, heldout.LEAST * table.passes)
    assert judged_rows(TableDensity(wide[1].schema_, wide[1].density_), 0) >= heldout.LEAST


def test_what_is_typical_of_many_columns_is_drawn_once_and_of_few_rows(wide, monkeypatch):
    X, model = wide
    drawn, own = [], type(model.density_).sample
    monkeypatch.setattr(
        type(model.density_), "sample", lambda self, n, *how: drawn.append(n) or own(self, n, *how)
    )
    table, frame = TableDensity(model.schema_, model.density_), model.as_frame(X[:5])
    dear = type("Dear", (TableDensity,), {"passes": property(lambda self: 10**6)})
    table = dear(table.schema, table.density)
    monkeypatch.setattr("ctem.tables.answers.density.TableDensity", dear)
    scores = [table.of_member(k).surprise(frame) for k in range(model.density_.net.members)]
    assert drawn == [FEW]
    assert np.isfinite(scores).all()


@pytest.mark.long
def test_draws_beside_which_rows_are_rare_take_a_bounded_number_of_passes(wide):
    _, model = wide
    for table, most in (
        (TableDensity(model.schema_, model.density_), TYPICAL_PASSES),
        (TableDensity(model.schema_, model.density_).of_member(0), OF_ONE_PASSES),
    ):
        rows = len(table._rarity.drawn)
        assert FEW <= rows <= TYPICAL
        assert rows == FEW or rows * (120 + table.passes) <= most


def test_the_pace_of_a_slow_density_is_measured_by_few_draws(monkeypatch):
    now, drawn = [0.0], []

    class Slow:
        def __init__(self, seconds):
            self.seconds = seconds

        def sample(self, n, generator):
            drawn.append(n)
            now[0] += n * self.seconds

        def complete(self, x, generator):
            now[0] += 2 * len(x) * self.seconds

    whole = torch.zeros(1000, 2)
    monkeypatch.setattr("ctem.densities.tilted.plan.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("ctem.densities.tilted.plan.time.process_time", lambda: now[0])
    assert Pace.of(Slow(0.1), torch.Generator(), whole) == pytest.approx((0.1, 1.0, 0.0))
    assert Pace.of(Slow(1e-4), torch.Generator(), whole).draw == pytest.approx(1e-4)
    assert drawn == [FEW_TIMED, FEW_TIMED, TIMED]
    assert (
        Pace.of(Slow(0.1), torch.Generator(), whole.index_fill(0, torch.arange(250), torch.nan)).fill == 0.05
    )


@pytest.mark.parametrize("draw", [1e-4, 0.02, 0.2])
def test_of_the_seconds_of_a_fit_so_many_are_left_as_what_comes_after_the_networks_needs(draw, monkeypatch):
    """Judging is given the least that it takes, and an energy a share, or nothing where that is too short."""
    monkeypatch.setattr(learning.Pace, "of", lambda *about: Pace(draw, 1.0))
    monkeypatch.setattr(learning.time, "perf_counter", lambda: 0.0)
    budget = learning._Budget(100.0, torch.zeros(2000, 300), {}, Plan(), seed=0)
    before, left = (
        budget.learning,
        budget.leaving(SimpleNamespace(base=SimpleNamespace(log_table=torch.zeros(1)))),
    )
    assert budget.until == budget.learning == min(before, 100.0 - learning.JUDGED * draw)
    energy = left - (before - budget.learning)
    plan = Plan().sized(300, 2000).within(30.0, Pace(draw, 1.0), 300)
    assert (energy > 0) == plan.learns == (draw < 0.1)
    assert energy <= 30.0


def test_where_time_is_left_an_energy_is_learned_again_from_more_rows(monkeypatch):
    """Each round takes a second in place of the many that were reckoned with: all rows are used in the end."""
    now, plans, gains = [0.0], [], [1.0, 3.0, 2.0]

    def run(fit):
        now[0] += 1.0
        plans.append(fit.plan)
        return SimpleNamespace(gain=gains[len(plans) - 1])

    x, plan = torch.zeros(10_000, 4), Plan().sized(4, 10_000)
    fit = energies._Fit(None, x, x[:500], [0] * 4, plan, {}, {}, None, None, None, None, 0, until=60.0)
    monkeypatch.setattr(energies.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(Pace, "of", lambda *about: Pace(2e-3, 1.0))
    monkeypatch.setattr(energies._Fit, "run", run)
    found = fit.in_time(60.0)
    rows = [plan.most for plan in plans]
    assert rows[0] < 5000
    assert rows[-1] == 10_000
    assert rows == sorted(set(rows))
    assert found.gain == max(gains[: len(rows)])


def test_trees_are_not_begun_when_the_time_is_over():
    rng = np.random.default_rng(0)
    rows = rng.normal(1, 1, (2000, 1)), rng.normal(0, 1, (2000, 1))
    found = Boosting([0], trees=400, patience=400, until=0.0).ratio(*rows)
    assert 0 < found.count <= LOOK < Boosting([0], trees=400, patience=400, rate=0.01).ratio(*rows).count
