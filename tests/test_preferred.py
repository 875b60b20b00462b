"""Preferred values: a rounded column in which some numbers occur more often than their neighbours."""

import numpy as np
import pandas as pd
import pytest
import torch

from ctem.tables.inference.kinds import infer_column
from ctem.tables.io.frame import read_frame
from ctem.tables.margins import preferred
from ctem.tables.margins.monotone import MonotoneMap
from ctem.tables.margins.preferred import PreferredValues, map_from_json
from ctem.tables.schema import Schema


def preferring(n, seed=0):
    """Numbers to two decimals, four in ten of them at a tenth."""
    rng = np.random.default_rng(seed)
    X = rng.gamma(4.0, 0.5, n)
    return np.round(np.where(rng.random(n) < 0.4, np.round(X, 1), X), 2)


@pytest.fixture(scope="module")
def steps():
    X = preferring(3000)
    return PreferredValues.fit(MonotoneMap.fit(X), X, 0.01)


def cells(steps, values, width=0.01):
    low, high = (torch.special.ndtr(steps(values + s * width / 2)) for s in (-1, 1))
    return high - low


def test_the_probability_of_a_value_is_its_count_and_the_curves_share(steps):
    X = preferring(3000)
    values, counts = np.unique(X, return_counts=True)
    q = cells(steps.smooth, torch.from_numpy(values))
    p = cells(steps, torch.from_numpy(values))
    # P(v) = a (n_v − 1) + b q_v for some a and b
    A = np.stack([counts - 1, q.numpy()], 1)
    (a, b), *_ = np.linalg.lstsq(A, p.numpy(), rcond=None)
    assert np.allclose(A @ [a, b], p, atol=1e-9)
    assert 0 < a <= 1 / 3000
    assert b > 0


def test_the_mass_of_the_whole_lattice_is_one(steps):
    lattice = torch.arange(-200, 2000, dtype=torch.float64) / 100
    assert float(cells(steps, lattice).sum()) == pytest.approx(1, abs=1e-6)


def test_it_increases_has_an_inverse_and_the_slope_it_says(steps):
    X = torch.linspace(-1, 9, 5001, dtype=torch.float64)
    x = steps(X)
    assert bool((x.diff() > 0).all())
    assert torch.allclose(steps.inverse(x), X, atol=1e-7)
    h = 1e-7
    middle = X + 0.0003  # off the edges of cells
    numeric = (steps(middle + h) - steps(middle - h)) / (2 * h)
    assert torch.allclose(steps.with_log_slope(middle)[1].exp(), numeric, rtol=1e-3)


def test_held_out_rows_are_likelier_with_steps(steps):
    fresh = torch.from_numpy(preferring(3000, seed=1))
    assert float((cells(steps, fresh).log() - cells(steps.smooth, fresh).log()).mean()) > 0.3


def test_beyond_the_data_it_is_the_curve(steps):
    far = torch.tensor([-5.0, 50.0, 1e6], dtype=torch.float64)
    assert torch.equal(steps(far), steps.smooth(far))


def test_a_smooth_rounded_column_gets_none():
    X = np.round(np.random.default_rng(0).normal(size=2000), 2)
    assert isinstance(PreferredValues.fit(MonotoneMap.fit(X), X, 0.01), MonotoneMap)


@pytest.mark.parametrize("factor", [1000.0, 1e-300, -0.1])
def test_units_and_direction_do_not_matter(steps, factor):
    X = preferring(3000)
    scaled = PreferredValues.fit(MonotoneMap.fit(factor * X), factor * X, 0.01 * abs(factor))
    at = torch.from_numpy(np.unique(X))
    x, log_slope = scaled.with_log_slope(factor * at)
    expected, log_expected = steps.with_log_slope(at)
    assert torch.allclose(x * np.sign(factor), expected, atol=1e-9)
    assert torch.allclose(log_slope + np.log(abs(factor)), log_expected, atol=1e-7)


@pytest.mark.parametrize("far", [-9.0, -40.0, 200.0, 1e9])
def test_one_far_value_neither_switches_steps_off_nor_spoils_them(far):
    X = np.sort(np.append(preferring(3000), far))
    steps = PreferredValues.fit(MonotoneMap.fit(X), X, 0.01)
    assert isinstance(steps, PreferredValues)
    assert steps.knots[0] == steps.heights[0]
    assert steps.knots[-1] == steps.heights[-1]
    assert map_from_json(steps.to_json()) == steps
    at = torch.from_numpy(np.append(np.linspace(0.3, 6, 50), [far, 0.9 * far]))
    assert torch.allclose(steps.inverse(steps(at)), at, rtol=1e-9, atol=1e-5)
    fresh = torch.from_numpy(preferring(3000, seed=1))
    assert float((cells(steps, fresh).log() - cells(steps.smooth, fresh).log()).mean()) > 0.3


def durations(n, seed):
    """Seconds to nine decimals, four in ten of them whole: far out a cell has less mass than float64 can add."""
    rng = np.random.default_rng(seed)
    X = np.round(rng.gamma(0.5, 200.0, n), 9)
    return np.where(rng.random(n) < 0.4, np.round(X), X)


@pytest.mark.parametrize("seed", [1, 2, 10, 12, 13])
def test_cells_too_narrow_for_float64_leave_it_increasing(seed):
    X = durations(4000, seed)
    steps = PreferredValues.fit(MonotoneMap.fit(X), X, 1e-9)
    assert isinstance(steps, PreferredValues)
    assert map_from_json(steps.to_json()) == steps
    x, log_slope = steps.with_log_slope(torch.from_numpy(X))
    assert bool(log_slope.isfinite().all())
    assert torch.allclose(steps.inverse(x), torch.from_numpy(X), rtol=0, atol=1e-7)


def test_rounding_errors_of_a_value_are_that_value(steps):
    X = preferring(3000)
    noisy = np.where(np.arange(3000) % 2, np.nextafter(X, 99), X)
    again = PreferredValues.fit(steps.smooth, noisy, 0.01)
    at = torch.from_numpy(np.unique(X))
    assert torch.allclose(again.with_log_slope(at)[1], steps.with_log_slope(at)[1], atol=1e-6)


def test_the_slope_is_the_derivative_also_at_the_centre_and_at_the_last_knots():
    end = float(np.log1p(np.sqrt(2.0)))  # asinh 1
    curve = MonotoneMap(0.0, 1.0, (-end, 0.3, end), (-1.0, 0.2, 1.0), (0.5, 1.0, 2.0))
    for T in (curve, PreferredValues(curve, (0.1, 0.3, 0.9), (0.1, 0.5, 0.9))):
        X = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
        (found,) = torch.autograd.grad(T(X).sum(), X)
        assert torch.allclose(found, T.with_log_slope(X)[1].exp(), rtol=1e-9)
        at, h = torch.zeros(1, dtype=torch.float64, requires_grad=True), 1e-6
        (found,) = torch.autograd.grad(T.with_log_slope(at)[1].sum(), at)
        up, down = (T.with_log_slope(at.detach() + s * h)[1] for s in (1, -1))
        assert torch.allclose(found, (up - down) / (2 * h), rtol=1e-6)
        assert abs(float(found)) > 0.05


def test_the_reason_names_the_preferred_values():
    X = preferring(3000)
    X[X == 1.5] = 1.7
    for values, name in ((X, "1.7"), (np.round(X * 100).astype("M8[D]").astype("M8[ns]"), "1970-06-20")):
        choice = infer_column("price", next(iter(read_frame(values[:, None]).columns.values())), None, False)
        assert f"; some values are preferred ({name}, " in choice.reason


def test_json_brings_it_back_and_nonsense_is_refused(steps):
    assert map_from_json(steps.to_json()) == steps
    assert map_from_json(steps.smooth.to_json()) == steps.smooth
    for wrong in ({"knots": [0.5, 0.2]}, {"heights": [0.1]}, {"knots": [0.1, 2.0], "heights": [0.1, 2.0]}):
        with pytest.raises(ValueError, match="preferred values: expected increasing knots"):
            map_from_json({**steps.to_json(), **wrong})


@pytest.mark.parametrize("n", [300, 700, 5000])
def test_one_fine_value_does_not_set_the_grid(n):
    """Ages in months among whole ones: as many of them are drawn as there were, and some in halves as well."""
    rng = np.random.default_rng(n)
    age = np.clip(rng.normal(30, 14, n), 1, 80).round()
    age[: max(3, n // 100)] = rng.choice([0.42, 0.67, 0.75, 0.83, 0.92], max(3, n // 100))
    age[-n // 25 :] += 0.5
    frame = read_frame(pd.DataFrame({"age": age}))
    schema = Schema.fit(frame)
    x = schema.encode(frame).x.repeat(
        100_000 // n, 1
    )  # frequent ages as they were, the others from the curve
    x[:, -1] = torch.randn(len(x), generator=torch.Generator().manual_seed(0))
    drawn = schema.decode(x)["age"].values
    for step in (1.0, 0.5):
        off = [float((np.abs(part / step - np.rint(part / step)) > 1e-6).mean()) for part in (age, drawn)]
        assert off[1] == pytest.approx(off[0], abs=0.004)
    fine = schema.encode(read_frame(pd.DataFrame({"age": [0.58, 7.42]})))
    assert bool(fine.x.isfinite().all())


def test_the_cells_of_a_comb_add_up_to_one():
    rng = np.random.default_rng(0)
    age = np.concatenate([rng.integers(1, 60, 500), [0.42, 0.75, 12.5, 30.5, 41.5, 44.5, 50.5]])
    codec = Schema.fit(read_frame(pd.DataFrame({"age": age}))).columns["age"].codec
    every = torch.arange(-2000, 20_000, dtype=torch.float64) * 0.01
    low, high = (torch.special.ndtr(codec.transform.smooth(every + h)) for h in (-0.005, 0.005))
    assert float((high - low).sum()) == pytest.approx(1, abs=1e-3)
    edges = torch.special.ndtr(codec.transform(every[(every > 0) & (every < 60)] + 0.005))
    assert bool((edges.diff() > 0).all())


def test_a_lattice_whose_points_are_too_many_to_list_takes_nothing_from_values_that_were_not_seen(
    monkeypatch,
):
    rng = np.random.default_rng(0)
    amounts = rng.gamma(2.0, 300.0, 4000)
    amounts = np.where(rng.random(4000) < 0.7, amounts.round(3), amounts.round(6))
    train, new = amounts[:3000], amounts[3000:]

    def nats() -> float:
        fitted = PreferredValues.fit(MonotoneMap.fit(train), train, 1e-6)
        return float(cells(fitted, torch.from_numpy(new), 1e-6).clamp_min(1e-300).log().mean())

    found = nats()
    monkeypatch.setattr(preferred, "coarser_steps", lambda *_: [])
    assert found > nats() - 0.05


OF_THEIR_OWN = {
    "an age in a third of the rows": lambda rng, n: often(rng, 0.33, 20, rng.normal(40, 12, n).round()),
    "no rain": lambda rng, n: often(rng, 0.5, 0, rng.gamma(2, 2, n).round(1)),
    "no cigarette": lambda rng, n: often(rng, 0.5, 0, rng.gamma(2, 5, n).round()).astype(int),
    "two neighbours": lambda rng, n: often(rng, 0.2, 11, often(rng, 0.2, 10, rng.normal(12, 8, n).round())),
    "a ceiling": lambda rng, n: np.minimum(rng.exponential(30, n).round(), 60),
    "quarters": lambda rng, n: often(rng, 0.2, 5, (rng.normal(5, 3, n) * 4).round() / 4),
    "a day of all days": lambda rng, n: often(rng, 0.2, 15_000, rng.normal(15_100, 40, n).round()).astype("M8[D]"),
}  # fmt: skip


def often(rng, share, value, others):
    return np.where(rng.random(len(others)) < share, value, others)


@pytest.mark.parametrize("name", OF_THEIR_OWN)
@pytest.mark.parametrize("seed", range(3))
def test_values_of_their_own_and_the_cells_of_all_others_add_up_to_one(name, seed):
    """Their share is the atom's; what the continuous part has in all cells but theirs must be all of the rest."""
    X = OF_THEIR_OWN[name](np.random.default_rng(seed), 3000)
    (inferred,) = Schema.fit(read_frame(pd.DataFrame({"x": X}))).columns.values()
    codec = inferred.codec
    assert len(codec.atoms) >= 1 + (name == "two neighbours")
    points = codec.seen[0] + codec.lattice.width * torch.arange(-3000, 6000, dtype=torch.float64)
    others = codec._atom(codec.lattice.snap(points)) == 0
    low, high = (points + side * codec.lattice.width / 2 for side in (-1, 1))
    if hasattr(codec.transform, "edges"):
        low, high = (edge.clamp(*codec.transform.edges) for edge in (low, high))
    mass = torch.special.ndtr(codec.transform(high)) - torch.special.ndtr(codec.transform(low))
    assert float(mass[others].sum()) == pytest.approx(1, abs=1e-6)
    x = torch.special.ndtri(torch.linspace(1e-6, 1 - 1e-6, 20_001, dtype=torch.float64))
    drawn = codec.decode(torch.stack([torch.zeros_like(x), x], 1))
    assert not (codec._atom(torch.from_numpy(codec.lattice.measure(drawn))) > 0).any()
