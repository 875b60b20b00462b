"""The mixed experiment: every system is a density on R² × {0 … 15}, and batching changes nothing."""

import sys
from pathlib import Path

import pytest
import torch
from torch.func import functional_call, vmap

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "experiments"))

from baselines import FlowLoss, FlowSettings
from batched import Networks
from ctem import MLP, brier
from ctem.targets import LabelledRing, grid
from mixed import measure, truth_of
from mixed_systems import LABELS, SYSTEMS, Case, JointPairs, LabelledFlow, Rows


def small_case(seed=0, rows=500, points=61):
    target = LabelledRing(2.0)
    return Case(target, seed, Rows.split(target.sample(rows, seed), seed), grid((-7.0, 7.0), points))


def test_the_truth_has_no_error():
    case = small_case()
    found = measure(truth_of(case.target, case.square), case.target, case.square)
    assert found.pop("mass on the grid") == pytest.approx(1, abs=1e-4)
    assert max(found.values()) < 1e-4


def test_a_wrong_constant_costs_as_many_nats_and_nothing_once_normalised():
    case = small_case()
    found = measure(truth_of(case.target, case.square) - 0.1, case.target, case.square)
    assert found["KL(truth‖model)"] == pytest.approx(0.1)
    assert found["KL(truth‖model), normalised on the grid"] == pytest.approx(0, abs=1e-4)
    assert found["label weights, TV"] < 1e-4


@pytest.mark.filterwarnings("ignore:log Z rests on")
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_is_normalised_on_every_case(system):
    if "zuko" in system:
        pytest.importorskip("zuko")
    cases = [small_case(seed) for seed in (0, 1)]
    found = SYSTEMS[system](cases, "cpu", True)
    for case, of_case in zip(cases, found, strict=True):
        assert of_case.log_p.shape == (LABELS, len(case.square.X))
        mass = float((of_case.log_p.exp() * case.square.weights).sum())
        assert mass == pytest.approx(1, abs=0.03)  # a spline's kinks on a coarse grid; log Z from 20 draws
    assert not torch.equal(found[0].log_p, found[1].log_p)


def test_flows_in_a_program_are_the_flows_alone():
    pytest.importorskip("zuko")
    settings = FlowSettings(blocks=2, hidden=(8,))
    flows = [LabelledFlow(settings, seed) for seed in (0, 1)]
    flat = torch.stack([torch.cat([p.detach().flatten() for p in f.parameters()]) for f in flows])
    x = torch.cat([torch.randn(2, 9, 2), torch.randint(LABELS, (2, 9, 1)).float()], -1)
    together = vmap(FlowLoss(flows[0], x, settings).one)(flat, x)
    alone = torch.stack(
        [functional_call(f, dict(f.named_parameters()), (x[i],)) for i, f in enumerate(flows)]
    )
    assert torch.allclose(together, alone, atol=1e-5)


def test_the_joint_kernel_moves_both_parts_and_is_symmetric_in_the_label():
    x = torch.zeros(1, 160_000, 3)
    y = JointPairs.compared(x, torch.Generator().manual_seed(0))[0]
    assert torch.allclose(y[:, :2].norm(dim=1), torch.ones(len(y)))  # 2ε standard deviations
    share = y[:, 2].long().bincount(minlength=LABELS) / len(y)
    assert float(share[0]) == 0
    assert torch.allclose(share[1:], torch.full((15,), 1 / 15), atol=5 * (1 / 15 / len(y)) ** 0.5)


def test_a_member_of_the_joint_kernel_is_the_librarys_network():
    case = small_case()
    space, networks = case.target.space.standardised(case.rows.kept), Networks(2 + LABELS, 8)
    f = MLP(space, width=8, seed=0)
    parts = [p for layer in f.layers if hasattr(layer, "weight") for p in (layer.weight.T, layer.bias)]
    flat = torch.cat([p.flatten() for p in parts[:-1]]).detach().unsqueeze(0)
    x = space.encode(case.rows.kept)
    pairs = JointPairs(networks, x[None], x[None], batch_size=10)
    y = pairs.compared(x.repeat(2, 1)[None], torch.Generator().manual_seed(1))[0]
    slow = brier(f(x.repeat(2, 1)) - f(y)).mean()
    assert float(pairs.held_out_loss(flat)) == pytest.approx(float(slow.detach()), abs=1e-5)
