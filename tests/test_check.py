"""The referee: ten good energies pass without complaint, four planted faults are named, exact constants are exact."""

import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import ctem
from ctem.benchmarks.lattices import Ising, Potts, RandomIsing
from ctem.benchmarks.targets import Banana, GaussianMixture, LabelledRing, TwoGaussians
from ctem.checking import Budget, Side, check, from_arrays, from_energy
from ctem.checking.verdict import judged_sides
from ctem.cli import app
from ctem.energies import MLP
from ctem.samplers import Langevin, run
from ctem.spaces import Angle, Category, Ordinal, Real, Space

QUICK = Budget(chains=500, levels=60, moves=2, steps=0, draws=4000)
SHORT = Budget(chains=300, levels=30, moves=1, steps=0, draws=1000)
MANY = Space([Category(2)] * 23)
TURNED = Space([Angle(), Angle(), Angle()])


def turned(x):
    return 2 * x[:, 0].cos() + (x[:, 1] - x[:, 2]).cos()


def turned_rows(n):
    rng = np.random.default_rng(0)
    first, second = rng.vonmises(0, 2, n), rng.uniform(0, 2 * np.pi, n)
    return np.stack([first, second, second - rng.vonmises(0, 1, n)], 1) % (2 * np.pi)


def of(target):
    return target.log_density


RING = LabelledRing(3.0, labels=4)
GOOD = {  # a log-potential, its space, samples of it, its log Z if it is known
    "Ising, all states": (
        Ising(4, 0.3),
        Ising(4, 0.3).space,
        lambda n: Ising(4, 0.3).sample(n, 0, 60),
        Ising(4, 0.3).log_z,
    ),
    "Ising": (
        Ising(5, 0.3),
        Ising(5, 0.3).space,
        lambda n: Ising(5, 0.3).sample(n, 0, 60),
        Ising(5, 0.3).log_z,
    ),
    "Potts": (
        Potts(4, 3, 0.5),
        Potts(4, 3, 0.5).space,
        lambda n: Potts(4, 3, 0.5).sample(n, 0, 60),
        Potts(4, 3, 0.5).log_z,
    ),
    "random couplings": (
        RandomIsing(30, 3, 0.3, 0),
        RandomIsing(30, 3, 0.3, 0).space,
        lambda n: RandomIsing(30, 3, 0.3, 0).sample(n, 0, 60),
        None,
    ),
    "two Gaussians": (of(TwoGaussians()), TwoGaussians.space, lambda n: TwoGaussians().sample(n, 0), 0.0),
    "banana": (of(Banana()), Banana.space, lambda n: Banana().sample(n, 0), 0.0),
    "labelled ring": (of(RING), RING.space, lambda n: RING.sample(n, 0), 0.0),
    "four Gaussians in five dimensions": (
        of(GaussianMixture(5)),
        GaussianMixture(5).space,
        lambda n: GaussianMixture(5).sample(n, 0),
        0.0,
    ),
    "angles": (turned, TURNED, turned_rows, None),
    "a network on bits": (MLP(MANY, width=16, seed=1), MANY, None, None),
}
LONG = ("Potts", "a network on bits")  # Gibbs sweeps, column by column


@pytest.mark.parametrize("name", GOOD)
def test_a_good_energy_is_passed_without_complaint(name):
    f, space, draw, log_z = GOOD[name]
    X = None if draw is None else draw(1500)
    found = check(
        f,
        space,
        X,
        SHORT if name in LONG else QUICK,
        claimed=log_z,
        train=None if X is None else X[:700],
        test=None if X is None else X[700:],
        device="cpu",
    )
    assert found.faults == ()
    assert found.verdict in ("certified", "bracketed")
    if log_z is not None:
        assert found.low - 1e-4 <= log_z <= found.high + 1e-4


def test_samples_of_an_unadjusted_chain_are_named():
    target, g = TwoGaussians(), torch.Generator().manual_seed(0)
    x = torch.as_tensor(target.sample(1500, 0)).float()
    x = run(Langevin(target.space, 0.12), lambda x: of(target)(x).float(), x, 100, g).x
    found = check(of(target), target.space, x, QUICK, device="cpu")
    assert found.verdict == "certified"
    assert len(found.faults) == 1
    assert "unadjusted chain" in found.faults[0]


@pytest.mark.parametrize("target", [TwoGaussians(), GaussianMixture(5)], ids=["two", "four"])
def test_samples_that_miss_a_mode_are_named(target):
    X = target.sample(4000, 0)
    X = X[target.posterior(X).argmax(1).numpy() != 0][:1200]
    found = check(of(target), target.space, X, QUICK, device="cpu")
    assert len(found.faults) == 1
    assert "miss a mode" in found.faults[0]


@pytest.mark.parametrize("name", ["Ising, all states", "Ising", "banana"])
def test_a_wrong_constant_is_named(name):
    f, space, _, log_z = GOOD[name]
    found = check(f, space, budget=QUICK, claimed=log_z + 0.6, device="cpu")
    assert len(found.faults) == 1
    assert "claimed log Z" in found.faults[0]


def test_an_overfitted_energy_is_named():
    target = TwoGaussians()
    train, test = target.sample(60, 0), target.sample(500, 1)
    centres = torch.as_tensor(train)

    def f(x):  # a kernel density estimate that is far too narrow
        return (-(torch.cdist(x.double(), centres) ** 2) / (2 * 0.03**2)).logsumexp(-1)

    found = check(f, target.space, budget=QUICK, train=train, test=test, device="cpu")
    assert len(found.faults) == 1
    assert "overfitted" in found.faults[0]


def test_no_number_is_given_where_there_is_no_law():
    flat = check(lambda x: 0 * x.sum(-1), Space([Real()] * 12), budget=SHORT, device="cpu")
    assert flat.verdict == "unknown"
    assert flat.value is None


def test_sides_that_cross_or_lie_far_apart_are_no_bracket():
    low, high = Side("up", "low", 2.0, 0.01, 500.0), Side("down", "high", 2.01, 0.01, 500.0)
    assert judged_sides([low, high])["verdict"] == "bracketed"
    for other, word in ((high._replace(value=1.8), "cross"), (high._replace(value=3.0), "apart")):
        found = judged_sides([low, other])
        assert found["verdict"] == "unknown"
        assert found["value"] is None
        assert word in found["reasons"][0]
    assert judged_sides([low, high._replace(ess=3.0)])["verdict"] == "unknown"


def test_the_any_order_proposal_brackets_too():
    lattice = Ising(5, 0.2)
    budget = Budget(chains=1500, levels=40, moves=1, steps=150, draws=3000)
    found = check(lattice, lattice.space, budget=budget, device="cpu")
    assert found.low <= lattice.log_z <= found.high
    sides = {side.method: side for side in found.sides}
    assert (
        sides["ELBO"].value - 3 * sides["ELBO"].se
        < lattice.log_z
        < sides["EUBO"].value + 3 * sides["EUBO"].se
    )
    assert sides["ELBO"].value > lattice.log_z - 1


def test_arrays_energies_and_shaped_rows_are_taken():
    space = Space.image(1, 2, 3, levels=2)
    values = [
        check(f, space, device="cpu").value
        for f in (
            lambda x: x.sum((1, 2, 3)),
            from_energy(lambda x: -x.flatten(1).sum(1, keepdim=True)),
            from_arrays(lambda x: x.sum((1, 2, 3))),
        )
    ]
    assert values == pytest.approx([6 * math.log1p(math.e)] * 3)
    with pytest.raises(TypeError, match="from_arrays"):
        check(lambda x: x.numpy().sum((1, 2, 3)), space, device="cpu")


def test_a_record_can_be_read_again_and_a_page_escapes(tmp_path):
    found = ctem.check(lambda x: x.sum(-1), Space({"<b>": Ordinal(3)}), claimed=9.0, device="cpu")
    found.save(tmp_path / "r.json")
    found.save(tmp_path / "r.html")
    record = json.loads((tmp_path / "r.json").read_text())
    wanted = {"space", "method", "low", "high", "value", "se", "ess", "evaluations", "adjusted", "verdict"}
    assert wanted <= record.keys()
    assert record["verdict"] == "certified"
    page = (tmp_path / "r.html").read_text()
    assert "&lt;b&gt;" in page and "<b>" not in page  # noqa: PT018
    with pytest.raises(ValueError, match=r"\.json or \.html"):
        found.save(tmp_path / "r.txt")


def test_the_same_seed_gives_the_same_verdict():
    f, space, *_ = GOOD["Ising"]
    first, second = (check(f, space, budget=SHORT, random_state=3, device="cpu").to_json() for _ in range(2))
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_the_command_line_says_what_the_function_says(tmp_path, monkeypatch):
    (tmp_path / "energy_of_mine.py").write_text(
        "from ctem import Space, Category\nspace = Space([Category(2)] * 3)\n\n\ndef f(x):\n    return x.sum(-1)\n"
    )
    np.save(tmp_path / "rows.npy", np.ones((300, 3)))
    monkeypatch.chdir(tmp_path)
    words = ["check", "energy_of_mine:f", "--space", "energy_of_mine:space", "--device", "cpu"]
    plain = CliRunner().invoke(app, [*words, "-o", "page.html"])
    assert plain.exit_code == 0
    assert plain.output.startswith(f"certified: log Z = {3 * math.log1p(math.e):.4f}")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html")
    wrong = CliRunner().invoke(app, [*words, "--samples", "rows.npy", "--claimed", "0", "--json"])
    assert wrong.exit_code == 1
    assert len(json.loads(wrong.output)["faults"]) == 2
    assert "expected MODULE:NAME" in CliRunner().invoke(app, ["check", "energy_of_mine"]).output
