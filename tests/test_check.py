"""The referee: good energies pass without complaint, four planted faults are named, exact constants are exact."""

import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import ctem
from ctem.benchmarks.lattices import Ising, Potts, RandomIsing
from ctem.benchmarks.targets import Banana, GaussianMixture, LabelledRing, TwoGaussians
from ctem.checking import Budget, Side, check, from_arrays, from_energy, stein
from ctem.checking.potential import Counted
from ctem.checking.stein import stein_test
from ctem.checking.verdict import judged_sides
from ctem.cli import app
from ctem.energies import MLP
from ctem.partition import log_z_enumerate, log_z_strip
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


def student(x):
    """Independent columns, Student's t with 3 degrees of freedom."""
    return -2 * (x**2 / 3).log1p().sum(-1)


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
    "heavy tails": (student, Space([Real(), Real()]), None, 2 * math.log(math.sqrt(3) * math.pi / 2)),
    "angles": (turned, TURNED, turned_rows, None),
    "a network on bits": (MLP(MANY, width=16, seed=1), MANY, None, None),
}
LONG = ("Potts", "a network on bits")  # Gibbs sweeps, column by column


LATER = (*LONG, "four Gaussians in five dimensions", "random couplings", "angles")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LATER else name for name in GOOD]
)
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


@pytest.mark.parametrize(
    "target", [TwoGaussians(), pytest.param(GaussianMixture(5), marks=pytest.mark.long)], ids=["two", "four"]
)
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


@pytest.mark.long
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


def test_a_lattice_is_certified_by_transfer_matrices_on_a_torus_and_open_and_either_way():
    torus = Ising(6, 0.4407)
    found = check(torus, torus.space, lattice=(6, 6), claimed=torus.log_z, device="cpu")
    assert (found.verdict, found.method, found.faults) == ("certified", "transfer matrix", ())
    assert found.value == pytest.approx(torus.log_z, abs=1e-4)
    potts = Potts(4, 3, 0.9)
    assert check(potts, potts.space, lattice=(4, 4), device="cpu").value == pytest.approx(
        potts.log_z, abs=1e-4
    )


@pytest.mark.parametrize("lattice", [(2, 7), (7, 2), (3, 4), (4, 3)])
def test_a_strip_with_random_couplings_is_what_enumeration_says(lattice):
    height, width = lattice
    space, g = Space([Category(2)] * (height * width)), torch.Generator().manual_seed(0)
    down, across = torch.randn(height - 1, width, generator=g), torch.randn(height, width - 1, generator=g)
    field = torch.randn(height, width, generator=g)

    def f(x):
        s = x.unflatten(-1, lattice)
        pairs = (s[:, 1:] * s[:, :-1] * down).sum((1, 2)) + (s[:, :, 1:] * s[:, :, :-1] * across).sum((1, 2))
        return pairs + (s * field).sum((1, 2))

    exact = log_z_enumerate(f, space).value
    assert log_z_strip(f, space, lattice, g).value == pytest.approx(exact, abs=1e-4)


def test_a_lattice_that_f_does_not_have_is_refused():
    far = Ising(5, 0.3)
    with pytest.raises(ValueError, match="sum of terms of neighbouring rows"):
        check(lambda x: far(x) + x[:, 0] * x[:, 12], far.space, lattice=(5, 5), device="cpu")
    with pytest.raises(ValueError, match="of 25 sites"):
        check(far, far.space, lattice=(5, 4), device="cpu")
    with pytest.raises(ValueError, match="can be listed"):
        check(Ising(16, 0.3), Ising(16, 0.3).space, lattice=(16, 16), device="cpu")


def test_stein_sees_another_temperature_and_passes_the_right_one():
    g = torch.Generator().manual_seed(0)
    for right, wrong in (
        (Ising(5, 0.3), Ising(5, 0.15)),
        (RandomIsing(30, 3, 0.3, 0), RandomIsing(30, 3, 0.3, 1)),
    ):
        f = Counted(right, right.space)
        for system, rejected in ((right, False), (wrong, True)):
            x = torch.as_tensor(system.sample(800, 0, 60)).float()
            assert stein_test(f, right.space, x, g).rejects == rejected
    normal, space = Counted(lambda x: -(x**2).sum(-1) / 2, Space([Real()] * 4)), Space([Real()] * 4)
    x = torch.randn(800, 4, generator=g)
    assert not stein_test(normal, space, x, g).rejects
    assert stein_test(normal, space, 1.5 * x, g).rejects
    assert stein_test(normal, Space([Real(), Category(3)]), x[:, :2], g) is None


def test_the_mean_of_the_stein_kernel_is_zero_under_the_law():
    space, g = Space([Category(2)] * 4), torch.Generator().manual_seed(0)
    W = torch.randn(4, 4, generator=g)
    f, x = Counted(lambda x: ((x @ W) * x).sum(-1), space), space.states(torch.float32)
    p = f(x).double().softmax(0)
    assert float(p @ stein._of_bits(f, x) @ p) == pytest.approx(0.0, abs=1e-10)


def test_an_energy_with_the_interface_of_torchebm_is_taken_with_its_gradient():
    class GaussianModel(
        torch.nn.Module
    ):  # forward(x) is the energy of rows, (n,), as torchebm.core.BaseModel's
        def __init__(self, precision):
            super().__init__()
            self.register_buffer("precision", precision)

        def forward(self, x):
            return 0.5 * ((x @ self.precision) * x).sum(-1)

        def gradient(self, x):
            return x @ self.precision

    model = GaussianModel(torch.diag(torch.tensor([1.0, 0.5, 2.0, 1.0])))
    found = check(from_energy(model), Space([Real()] * 4), budget=QUICK, device="cpu")
    assert found.verdict == "bracketed"
    assert found.low <= 2 * math.log(2 * math.pi) <= found.high
