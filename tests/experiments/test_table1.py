"""Table 1's systems: members keep to their own rows, densities are normalised, what is kept is the same density."""

import pytest
import torch

from ctem import MLP, Gaussian, Real, Recipe, Space, Sphere, brier, pair_loss, train
from ctem.benchmarks.targets import grid
from ctem.energies import MLPs
from experiments.paper.baselines import Couplings, Flows, FlowSettings, flow_loss, zuko_flow
from experiments.paper.computed import Watched
from experiments.paper.figures import apart, heading, in_two, panels
from experiments.paper.pairwise import fit_pairwise
from experiments.paper.robustness import FAMILIES, batches
from experiments.paper.sets import FD, GROUPS, ISE, errors, hold_out, published, tables, together
from experiments.paper.systems import (
    Energy,
    Ours,
    Steps,
    fit_chosen,
    fit_table,
    held_out_distance,
    load_fits,
    normalise_by_importance,
    normalise_on_square,
    out_of_fold_nats,
    save_fit,
)

pytestmark = pytest.mark.long  # of the experiments, not of the library
PLANE = Space([Real(), Real()])
BRIEF = Recipe(steps=20, batch_size=32, evaluate_every=10)


@pytest.fixture
def rows() -> torch.Tensor:
    normal = torch.randn(200, 2, generator=torch.Generator().manual_seed(0)).double()
    return normal * torch.tensor([3.0, 0.5]) + 1


@pytest.fixture
def ours(rows) -> Ours:
    space = PLANE.standardised(rows)
    return Ours(fit_pairwise(space, space.encode(rows), width=8, folds=2, weight_decays=[0.1], recipe=BRIEF))


def test_ours_is_a_density_in_the_users_units_and_its_slope_is_the_gradient(ours):
    square = grid((-30.0, 32.0), points=801)
    assert float((ours.log_density(square.X).exp() * square.weights).sum()) == pytest.approx(1, abs=1e-3)
    X = torch.randn(20, 2, generator=torch.Generator().manual_seed(3)).double()
    for j in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[j] = 0.01
        slope = (ours.log_density(X + step) - ours.log_density(X - step)) / 0.02
        assert torch.allclose(ours.slope(X)[:, j], slope, atol=2e-3)  # float32 inside


@pytest.mark.parametrize(("group", "metric", "scale"), [(0, ISE, 1.0), (1, FD, 10.0)])
def test_held_out_distances_of_two_densities_differ_as_their_true_ones_do(group, metric, scale):
    table = tables(GROUPS[group], range(1), quick=True)[0]
    fitted = [Ours(fit_table(table, 8, "cpu", quick=True)) for _ in range(2)]
    with torch.no_grad():
        fitted[0].density.net.last.normal_(
            0, scale, generator=torch.Generator().manual_seed(0)
        )  # farther away
    told = [held_out_distance(each, table) for each in fitted]
    true = [errors(each, table.name)[metric] for each in fitted]
    assert true[0] - true[1] > 0.05
    assert told[0] - told[1] == pytest.approx(true[0] - true[1], rel=0.1)


def test_settings_are_chosen_by_the_lowest_held_out_distance(monkeypatch):
    known = {"2 layers": {"depth": 2}, "1 layer": {"depth": 1}, "3 layers": {}}
    monkeypatch.setattr("experiments.paper.systems.CHOICES", known)
    monkeypatch.setattr(
        "experiments.paper.systems.held_out_distance", lambda d, table: abs(d.density.net.depth - 1.1)
    )
    fitted = next(fit_chosen(GROUPS[1], tables(GROUPS[1], range(1), quick=True), "cpu", quick=True))
    assert fitted.facts[0]["layers"] == 1
    assert fitted.facts[0]["held-out distance less a constant, 3 layers"] == pytest.approx(1.9)


def test_out_of_fold_nats_are_those_of_the_member_that_did_not_see_the_row():
    table = tables(GROUPS[0], range(1), quick=True)[0]
    density = fit_table(table, 8, "cpu", quick=True)
    x = table.space.encode(table.X)
    best, worst = density.log_prob_each(x).amax(0), density.log_prob_each(x).amin(0)
    nats = out_of_fold_nats(density, table) - table.space.log_det
    assert float(worst.mean()) < nats < float(best.mean())


@pytest.mark.parametrize(("sphere", "kernel"), [(True, Sphere), (False, Gaussian)])
def test_the_papers_loss_is_the_librarys_at_the_scale_of_each_member(rows, sphere, kernel):
    net, x = MLPs(PLANE, members=2, width=16), rows.float().repeat(100, 1)
    found = Steps([0.3, 0.6], sphere, "cpu").each(net, x.expand(2, -1, -1), torch.Generator().manual_seed(0))
    for k, scale in enumerate((0.3, 0.6)):
        slow = pair_loss(net.member(k), x, kernel(PLANE, scale), torch.Generator().manual_seed(1), 4, brier)
        assert float(found[k].detach()) == pytest.approx(float(slow.detach()), abs=0.005)


def test_held_out_rows_are_a_tenth_of_a_members_own_and_weigh_nothing():
    x, weights = together([torch.full((n, 1), float(n)) for n in (40, 40)], "cpu")
    own = weights > 0
    held = hold_out(x + torch.arange(80.0).unsqueeze(1) / 100, weights)
    assert held.shape == (2, 4, 1)
    assert [int(row.sum()) for row in weights] == [36, 36]
    assert ((weights > 0) <= own).all()


def test_members_are_shown_the_rows_of_their_own_table_only():
    sets = [torch.full((n, 1), float(n)) for n in (3, 50, 7)]
    x, weights = together(sets, "cpu")
    shown = []
    net = MLPs(Space([Real()]), members=3, width=4)

    def loss(f, rows, generator):
        shown.append(rows[..., 0])
        return f(rows).square().mean()

    train(net, loss, x, BRIEF, weights=weights)
    assert [set(seen.flatten().tolist()) for seen in torch.cat(shown, 1)] == [{3.0}, {50.0}, {7.0}]
    _, shared = together(sets, "cpu", owner=[2, 2, 0, 1])
    assert shared.sum(1).tolist() == [7, 7, 3, 50]


def test_quadrature_and_importance_agree_and_the_energy_is_normalised(rows):
    energy = Energy(MLP(PLANE, 16), PLANE.standardised(rows))
    f = energy.f
    energy.f = lambda x: f(x) - x.square().sum(-1) / 2
    normalise_on_square(energy, (-25.0, 27.0), points=601)
    exact = energy.log_z
    square = grid((-30.0, 32.0), points=801)
    assert float((energy.log_density(square.X).exp() * square.weights).sum()) == pytest.approx(1, abs=1e-3)
    found = normalise_by_importance(energy, PLANE.standardised(rows), 20_000)
    assert energy.log_z == pytest.approx(exact, abs=5 * found.stderr)


def test_a_kept_fit_is_the_same_density(ours, rows, tmp_path):
    energy = Energy(MLP(PLANE, 8, seed=3), PLANE.standardised(rows), log_z=0.5)
    X = torch.randn(20, 2, generator=torch.Generator().manual_seed(3)).double()
    for system, density in {"CTEM-S": energy, "ours, plain": ours}.items():
        assert save_fit(tmp_path, "Spiral", system, density)
        kept = load_fits(tmp_path, "Spiral", "cpu")[system]
        assert torch.allclose(kept.log_density(X), density.log_density(X))
        assert torch.allclose(kept.slope(X), density.slope(X))


def test_a_watched_run_keeps_the_networks_of_every_evaluation(rows):
    net, x = MLPs(PLANE, members=2, width=8), rows.float()
    loss = Watched(Steps([0.3, 0.6], False, "cpu"))
    held_out, weights = x[:20].expand(2, -1, -1), torch.ones(2, len(x))
    history = train(net, loss, x, BRIEF, held_out=held_out, weights=weights)
    assert [sum(losses) / 2 for losses in loss.losses] == pytest.approx(history.held_out, abs=1e-6)
    best = loss.nets[history.held_out.index(history.best_loss)]
    assert torch.equal(best(x), net(x))


@pytest.mark.parametrize("dim", [2, 5])
@pytest.mark.parametrize("kind", ["RealNVP", "NSF"])
def test_the_flows_are_zukos(kind, dim):
    settings = FlowSettings(blocks=3, hidden=(16, 16))
    couplings = Couplings(kind, dim, settings)
    parameters, x = (
        couplings.initial([3, 4]),
        3 * torch.randn(2, 50, dim, generator=torch.Generator().manual_seed(0)),
    )
    ours = couplings(parameters, x)
    for k, seed in enumerate((3, 4)):
        theirs = zuko_flow(kind, dim, settings, seed)().log_prob(x[k]).detach()
        assert torch.allclose(ours[k], theirs, rtol=1e-4, atol=1e-4)


def test_the_gradient_of_every_flow_is_its_own_and_is_clipped_by_itself():
    settings = FlowSettings(blocks=2, hidden=(8,), clip=0.5, dequantisation=0.0)
    couplings = Couplings("RealNVP", 2, settings)
    x = torch.randn(2, 30, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([[[9.0]], [[0.5]]])
    flows, alone = Flows(couplings, [0, 1], "cpu"), Flows(couplings, [1], "cpu")
    flow_loss(flows, x, torch.Generator()).backward()
    flow_loss(alone, x[1:], torch.Generator()).backward()
    assert float(flows.values.grad[0].norm()) == pytest.approx(0.5)
    assert torch.allclose(flows.values.grad[1], alone.values.grad[0], atol=1e-6)


def test_a_flow_learns():
    couplings = Couplings("NSF", 2, FlowSettings(blocks=2, hidden=(16,)))
    x = 0.2 * torch.randn(300, 2, generator=torch.Generator().manual_seed(0)) + 1
    flows = Flows(couplings, [0], "cpu")
    train(flows, flow_loss, x, Recipe(steps=150, learning_rate=1e-2), weights=torch.ones(1, 300))
    nats = float(flows(x.unsqueeze(0)).mean().detach())
    assert nats > 0  # the base has −2.9, the truth 0.4


def test_a_flow_cut_short_says_so_and_stands_beside_the_papers():
    name = "NSF, 20000 of 40000 steps"
    assert published("10-D mixture", name, FD) == published("10-D mixture", "NSF", FD) is not None
    assert published("Spiral", "ours, plain, 8 folds", ISE) == "best 0.256"
    assert heading(name) == "NSF"
    assert heading("ours, plain, 8 folds") == "ours, plain, 8 folds"


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
