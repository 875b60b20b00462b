"""The mixed experiment: every system is a density on R² × {0 … 15}."""

import pytest
import torch

from ctem.benchmarks.targets import LabelledRing, grid
from experiments.paper.mixed import LABELS, SYSTEMS, Case, Rows, measure, truth_of


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


@pytest.mark.long
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_is_normalised_on_every_case(system):
    if "zuko" in system:
        pytest.importorskip("zuko")
    cases = [small_case(seed) for seed in (0, 1)]
    found = SYSTEMS[system](cases, "cpu", True)
    for case, of_case in zip(cases, found, strict=True):
        assert of_case.log_p.shape == (LABELS, len(case.square.X))
        mass = float((of_case.log_p.exp() * case.square.weights).sum())
        assert mass == pytest.approx(1, abs=0.03)  # a spline's kinks on a coarse grid
    assert not torch.equal(found[0].log_p, found[1].log_p)
