"""Table 1's systems: members keep to their own rows, densities are normalised, what is chosen is chosen out of fold."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "experiments"))

from baselines import FlowSettings
from batched import Member, Networks, Program
from clocked import (
    CLOCKS,
    ChainRule,
    ClockEnergy,
    ClockLoss,
    ClockNetworks,
    clock_energy,
    cross_fit_clocks,
    different,
    in_turn,
)
from continuous_sets import FD, GROUPS, ISE, errors, published, tables
from crossfit import choose, fold_members, folds_of
from ctem import Real, Recipe, Space
from ctem.chain import Chain
from ctem.clocknet import Ensemble
from ctem.fitting import COARSEST, FINEST
from ctem.targets import grid
from drawing import apart, heading, in_two, panels
from fits import load_fits, save_fit
from flows import Couplings, FlowPairs, zuko_flow
from learned import Energy, normalise_on_plane
from robustness import FAMILIES, batches

SMALL = replace(CLOCKS, width=16, blocks=1, folds=3, recipe=Recipe(steps=4, batch_size=8, evaluate_every=2))


def shaken(networks: ClockNetworks, seeds: list[int]) -> torch.Tensor:
    """Parameters that are not at the base: the first weights have g = 0."""
    start = networks.initial(seeds)
    return start + 0.1 * torch.randn(start.shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def energy() -> ClockEnergy:
    X = (
        torch.randn(200, 2, generator=torch.Generator().manual_seed(0)).double() * torch.tensor([3.0, 0.5])
        + 1
    )
    networks = ClockNetworks(2, SMALL, "cpu")
    return ClockEnergy(networks, shaken(networks, [0, 1, 2]), Space([Real()] * 2).standardised(X), 0.01)


def test_folds_share_no_row_and_leave_out_none():
    rows = tables(GROUPS[0], range(2), quick=True)
    members, keys = fold_members(rows, [0.1, 1.0], 3, whole=True)
    assert len(members) == len(rows) * 2 * 4
    for member, (i, _, out) in zip(members, keys, strict=True):
        x = rows[i].space.encode(rows[i].X)
        both = torch.cat([member.x, member.held_out]) if out is not None else member.x
        assert torch.equal(both.sort(0).values, x.sort(0).values)


@pytest.mark.parametrize("whole", [1.0, 0.5])
def test_a_members_loss_knows_its_own_rows_only(whole):
    networks = ClockNetworks(2, SMALL, "cpu")
    x = torch.randn(3, 40, 2, generator=torch.Generator().manual_seed(1))
    members = [Member(x=rows[:30], held_out=rows[30:]) for rows in x]
    others = [members[0], *(Member(x=m.x + 5, held_out=m.held_out - 5) for m in members[1:])]
    parameters = shaken(networks, [0, 1, 2])
    found = []
    for case in (members, others):
        loss = ClockLoss(networks, case, whole, batch_size=16)
        fresh = loss(parameters, torch.Generator().manual_seed(2))
        found.append(torch.stack([fresh, loss.held_out_loss(parameters)]))
    assert torch.equal(found[0][:, 0], found[1][:, 0])
    assert bool((found[0][:, 1:] != found[1][:, 1:]).all())


def test_a_members_gradient_reaches_its_own_parameters_only():
    networks = ClockNetworks(2, SMALL, "cpu")
    x = torch.randn(3, 40, 2, generator=torch.Generator().manual_seed(1))
    loss = ClockLoss(networks, [Member(x=rows, held_out=rows) for rows in x], 0.5, batch_size=16)
    parameters = shaken(networks, [0, 1, 2]).requires_grad_()
    (grad,) = torch.autograd.grad(loss(parameters, torch.Generator().manual_seed(2))[1], parameters)
    assert float(grad[1].norm()) > 0
    assert float(grad[[0, 2]].norm()) == 0


def test_one_pass_is_the_librarys_mixture_and_quadrature_normalises_it(energy):
    X = torch.randn(20, 2, generator=torch.Generator().manual_seed(3)).double()
    net = energy.networks.net(energy.parameters)
    chain = Chain(Ensemble(net), net.base, floor=0.01, points=129)
    joint = chain.joint(energy.space.encode(X)).double() + energy.space.log_det
    assert torch.allclose(energy.log_density(X), joint, atol=1e-5)
    normalise_on_plane(energy, energy.space)
    square = grid((-30.0, 32.0), points=801)
    assert float((energy.log_density(square.X).exp() * square.weights).sum()) == pytest.approx(1, abs=1e-3)


def test_the_chain_rule_is_the_librarys_and_is_normalised(energy):
    exact = ChainRule(energy, points=129)
    X = torch.randn(20, 2, generator=torch.Generator().manual_seed(3)).double()
    chain = Chain(Ensemble(exact.net), exact.net.base, floor=0.01, points=129)
    theirs = chain.log_prob_mixture(energy.space.encode(X), [[0, 1], [1, 0]]).double() + energy.space.log_det
    assert torch.allclose(exact.log_density(X), theirs, atol=1e-4)
    square = grid((-30.0, 32.0), points=801)
    assert float((exact.log_density(square.X).exp() * square.weights).sum()) == pytest.approx(1, abs=1e-3)


def test_a_coarser_rule_is_taken_only_where_it_agrees(energy):
    exact = ChainRule(energy, points=129)
    x = torch.randn(500, 2, generator=torch.Generator().manual_seed(3))
    x[:, 1] = math.nan
    finest = exact.integral(exact.along(x, 1))
    asked, along = [], exact.along
    exact.along = lambda x, j, step=1: asked.append(step) or along(x, j, step)
    assert torch.allclose(exact.log_total(x, 1), finest, atol=1e-4)
    assert asked[-1] > 1
    peak = -50 * exact.nodes**2  # of width 0.1, with nodes 0.125 apart
    exact.along = lambda x, j, step=1: asked.append(step) or along(x, j, step) + peak[::step]
    exact.log_total(x, 1)
    assert asked[-1] == 1


def test_rows_that_share_what_is_visible_are_one():
    x = torch.tensor([[1.0, 5.0, 7.0], [2.0, 6.0, 8.0], [1.0, 6.0, 9.0]])
    for given, count in (([], 1), ([0], 2), ([0, 1], 3)):
        kinds, kind = different(x, given)
        assert len(kinds) == count
        hidden = [j for j in range(3) if j not in given]
        assert torch.equal(kinds[kind][:, given], x[:, given])
        assert bool(kinds[:, hidden].isnan().all())


def test_the_chain_rule_has_no_fisher_divergence():
    networks = ClockNetworks(10, SMALL, "cpu")
    (table,) = tables(GROUPS[1], range(1), quick=True)
    one = ClockEnergy(networks, shaken(networks, [0]), table.space, 0.1)
    assert FD in errors(one, table.name)
    chain = ChainRule(one, points=9)
    assert FD not in errors(chain, table.name)


def test_the_level_is_the_one_at_which_rows_left_out_are_most_likely():
    rows = tables(GROUPS[0], range(1), quick=True)
    fit = cross_fit_clocks(GROUPS[0], rows, "cpu", SMALL, whole=0.5)
    choice = choose(fit, 1, [SMALL.weight_decay])
    found = clock_energy(fit, 1, rows[1], choice)
    mine = [j for j, key in enumerate(fit.keys) if key[0] == 1]
    least = min(len(fold) for fold in folds_of(rows[1], 3))

    def nats(level: float) -> float:
        total = 0.0
        for k, fold in enumerate(folds_of(rows[1], 3)):
            parameters = fit.trained.parameters[choice.evaluation, mine[k : k + 1]]
            one = ClockEnergy(fit.networks, parameters, rows[1].space, level)
            total += float(one.log_density(torch.as_tensor(rows[1].X[fold[:least]])).sum())
        return total

    levels = torch.logspace(math.log10(FINEST), math.log10(COARSEST), 10).tolist()
    assert found.level == max(levels, key=nats)


def test_rows_take_turns():
    parts = [torch.full((n, 1), float(i)) for i, n in enumerate((3, 2, 4))]
    assert in_turn(parts).flatten().tolist() == [0, 1, 2, 0, 1, 2]


def test_a_kept_fit_is_the_same_density(energy, tmp_path):
    energy.log_z += 0.5
    networks = Networks(2, 8, squares=True)
    plain = Energy(networks, networks.initial([0, 1]), energy.space, tilted=True)
    X = torch.randn(20, 2, generator=torch.Generator().manual_seed(3)).double()
    for system, density in {"ours, shared clock": energy, "ours, plain": plain}.items():
        assert save_fit(tmp_path, "Spiral", system, density)
        kept = load_fits(tmp_path, "Spiral", "cpu")[system]
        assert torch.allclose(kept.log_density(X), density.log_density(X))
        assert torch.allclose(kept.slope(X), density.slope(X))


def test_squares_leave_the_tails_to_the_base():
    networks = Networks(3, 16, squares=True)
    far = 1e4 * torch.nn.functional.normalize(
        torch.randn(1, 50, 3, generator=torch.Generator().manual_seed(0))
    )
    assert float(networks(networks.initial([0]), far).abs().max()) < 1e5  # linear, not quadratic


@pytest.mark.parametrize("dim", [2, 5])
@pytest.mark.parametrize("kind", ["RealNVP", "NSF"])
def test_the_flows_are_zukos(kind, dim):
    settings = FlowSettings(blocks=3, hidden=(16, 16))
    flows = Couplings(kind, dim, settings)
    parameters, x = (
        flows.initial([3, 4]),
        3 * torch.randn(2, 50, dim, generator=torch.Generator().manual_seed(0)),
    )
    ours = flows(parameters, x)
    for k, seed in enumerate((3, 4)):
        theirs = zuko_flow(kind, dim, settings, seed)().log_prob(x[k]).detach()
        assert torch.allclose(ours[k], theirs, rtol=1e-4, atol=1e-4)


def test_flows_of_tables_of_different_sizes_see_no_padding():
    flows = Couplings("NSF", 2, FlowSettings(blocks=2, hidden=(8,)))
    small, large = torch.full((5, 2), 3.0), torch.full((50, 2), -3.0)
    together = FlowPairs(flows, [small, large], "cpu")
    alone = FlowPairs(flows, [small, large[:5]], "cpu")
    parameters = flows.initial([0, 1])
    generator = torch.Generator()
    assert torch.equal(
        together(parameters, generator.manual_seed(0)), alone(parameters, generator.manual_seed(0))
    )


def test_a_flow_learns():
    flows = Couplings("NSF", 2, FlowSettings(blocks=2, hidden=(16,)))
    x = 0.2 * torch.randn(300, 2, generator=torch.Generator().manual_seed(0)) + 1
    loss = FlowPairs(flows, [x], "cpu")
    recipe = Recipe(steps=150, learning_rate=1e-2, clip=5.0, evaluate_every=150)
    trained = Program(flows.initial([0]), loss, recipe).run()
    nats = float(flows(trained.parameters[-1], x.unsqueeze(0)).mean().detach())
    assert nats > 0  # the base has −2.9, the truth 0.4


def test_a_flow_cut_short_says_so_and_stands_beside_the_papers():
    name = "NSF, 20000 of 40000 steps"
    assert published("10-D mixture", name, FD) == published("10-D mixture", "NSF", FD) is not None
    assert published("Spiral", "ours, shared clock, one pass", ISE) == "best 0.256"
    assert heading(name) == "NSF"
    assert heading("ours, shared clock, one pass") == "ours, shared clock, one pass"


def test_columns_begin_with_the_truth_and_end_with_ours():
    systems = [
        "CTEM-G",
        "CV-KDE",
        "NSF",
        "ours, plain, 8 folds",
        "truth",
        "fresh rows",
        "DSM, σ = 0.1",
        "CTEM-S",
    ]
    (line,) = panels("scores", {("Spiral", system): None for system in systems})
    expected = [
        "truth",
        "fresh rows",
        "CV-KDE",
        "NSF",
        "DSM, σ = 0.1",
        "CTEM-S",
        "CTEM-G",
        "ours, plain, 8 folds",
    ]
    assert [system for _, system in line] == expected
    assert in_two("ours, clock per column, one pass") == "ours, clock per column,\none pass"
    assert in_two("DSM, σ = 0.1") == "DSM, σ = 0.1"


def test_labels_keep_their_distance():
    assert apart([0.1, 10.0, 0.11, 1.0]) == [0.1, 10.0, 1.0]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_fitted_to_every_further_table_once(family):
    found = list(batches(FAMILIES[family], (20, 30), range(2)))
    keys = [(table.name, len(table.X), table.seed) for _, rows in found for table in rows]
    assert len(keys) == len(set(keys)) == 6 * 2 * 2
    assert all(table.space.dim == group.dim for group, rows in found for table in rows)
    assert len(found) == (2 if family == "flow" else 4)
