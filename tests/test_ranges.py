"""The margin of a column of numbers alone, however spiky, beside a histogram and kernels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import KernelDensity
from small import EXACT

from ctem import CTEM
from ctem.tables.encoding.codecs import codec_from_json
from ctem.tables.inference.numbers import _transform
from ctem.tables.margins.lattices import Lattice

ROWS = 3000
ALLOWED = 0.02  # nats behind the best, beside two standard errors


def mixed(rng, *parts):
    """Rows of a mixture of (share, draw)."""
    which = rng.choice(len(parts), p=[share for share, _ in parts], size=2 * ROWS)
    return np.choose(which, [draw(2 * ROWS) for _, draw in parts])


def uniform(rng, low, high):
    return lambda n: rng.uniform(low, high, n)


def normal(rng, mean, scale):
    return lambda n: rng.normal(mean, scale, n)


SPIKES = [(0.05, i / 10, i / 10 + 1e-5) for i in range(10)]
COLUMNS = {
    "normal": lambda r: r.normal(size=2 * ROWS),
    "uniform": lambda r: r.uniform(size=2 * ROWS),
    "exponential": lambda r: r.exponential(size=2 * ROWS),
    "lognormal": lambda r: r.lognormal(0, 2, 2 * ROWS),
    "cauchy": lambda r: r.standard_cauchy(2 * ROWS),
    "student": lambda r: r.standard_t(3, 2 * ROWS),
    "beta": lambda r: r.beta(0.3, 0.3, 2 * ROWS),
    "pareto": lambda r: r.pareto(1.2, 2 * ROWS),
    "a spike": lambda r: mixed(r, (0.1, uniform(r, 0.3, 0.30001)), (0.9, uniform(r, 0, 1))),
    "a spike at the end": lambda r: mixed(
        r, (0.78, uniform(r, 0, 1e-5)), (0.22, lambda n: r.lognormal(2, 1, n))
    ),
    "spikes on a normal": lambda r: mixed(
        r, (0.1, uniform(r, 0.2, 0.20001)), (0.2, uniform(r, 0.5, 0.50001)), (0.7, normal(r, 0.5, 0.3))
    ),
    "ten spikes": lambda r: mixed(r, *[(s, uniform(r, a, b)) for s, a, b in SPIKES], (0.5, uniform(r, 0, 1))),
    "scales": lambda r: mixed(r, (0.5, normal(r, 0, 1e-3)), (0.3, normal(r, 0, 1)), (0.2, normal(r, 0, 100))),
    "two modes": lambda r: mixed(r, (0.5, normal(r, -3, 0.1)), (0.5, normal(r, 3, 0.1))),
    "five modes": lambda r: mixed(r, *[(0.2, normal(r, 5 * i, 0.2 * (i + 1))) for i in range(5)]),
    "a gap": lambda r: mixed(r, (0.5, uniform(r, 0, 1)), (0.5, uniform(r, 10, 11))),
    "a sawtooth": lambda r: np.floor(r.exponential(5, 2 * ROWS)) + r.beta(1, 6, 2 * ROWS),
    "steps": lambda r: np.floor(r.exponential(3, 2 * ROWS)) + r.uniform(0, 1, 2 * ROWS),
    "bounded": lambda r: np.clip(r.normal(size=2 * ROWS), 0, 1) + r.uniform(0, 1e-4, 2 * ROWS),
    "many orders": lambda r: 10 ** r.uniform(-6, 6, 2 * ROWS),
}


def histogram(train, test):
    """Bins of as many rows each, their number chosen on half of the rows; a trickle beyond the ends."""

    def log_density(rows, at, bins):
        edges = np.unique(np.quantile(rows, np.linspace(0, 1, bins + 1)))
        share = (np.histogram(rows, edges)[0] + 0.5) / (len(rows) + len(edges) / 2) / np.diff(edges)
        place = np.clip(np.searchsorted(edges, at) - 1, 0, len(share) - 1)
        beyond = (at < edges[0]) | (at > edges[-1])
        return np.log(np.where(beyond, 1e-3 / np.ptp(rows), share[place]))

    half = len(train) // 2
    bins = max((8, 32, 128, 512), key=lambda k: log_density(train[:half], train[half:], k).mean())
    return log_density(train, test, bins)


def kernels(train, test):
    """Gaussian kernels, their width chosen on some rows."""
    rows, held = train[:1500, None], train[1500:1700, None]
    widths = np.std(train) * np.logspace(-4, 0, 9)
    width = max(widths, key=lambda b: KernelDensity(bandwidth=b).fit(rows).score_samples(held).mean())
    return KernelDensity(bandwidth=width).fit(train[:, None]).score_samples(test[:600, None])


QUICKLY = ("normal", "cauchy", "beta", "ten spikes", "a gap", "many orders")


@pytest.mark.parametrize(
    "name", [name if name in QUICKLY else pytest.param(name, marks=pytest.mark.long) for name in COLUMNS]
)
def test_a_margin_is_as_likely_as_the_best_of_a_histogram_and_kernels(name):
    X = COLUMNS[name](np.random.default_rng(0))
    train, test = X[:ROWS], X[ROWS:]
    x, log_slope = _transform(np.sort(train), Lattice("float"), ()).with_log_slope(torch.from_numpy(test))
    ours = (log_slope - x**2 / 2 - 0.5 * math.log(2 * math.pi)).numpy()
    for other in (histogram(train, test), kernels(train, test)):
        behind = other - ours[: len(other)]
        assert behind.mean() < ALLOWED + 2 * behind.std() / math.sqrt(len(other))


def test_a_map_with_ranges_is_increasing_and_inverted_and_has_its_slope():
    X = np.sort(COLUMNS["ten spikes"](np.random.default_rng(1)))
    found = _transform(X, Lattice("float"), ())
    assert found.ranges
    wide = torch.linspace(-3, 4, 5001, dtype=torch.float64)
    x = found(wide)
    assert bool((x.diff() > 0).all())
    torch.testing.assert_close(found.inverse(x), wide, rtol=0, atol=1e-9)
    integral = torch.special.ndtr(x[-1]) - torch.special.ndtr(x[0])
    assert float(integral) == pytest.approx(1.0, abs=1e-6)
    middle = torch.tensor([0.4321, 0.50000512, 1.7], dtype=torch.float64)
    step = 1e-9
    numeric = (found(middle + step) - found(middle - step)) / (2 * step)
    torch.testing.assert_close(found.with_log_slope(middle)[1].exp(), numeric, rtol=1e-4, atol=0)


def test_a_spiky_column_is_said_to_be_so_and_survives_a_file(tmp_path):
    rng = np.random.default_rng(2)
    X = np.column_stack([COLUMNS["a spike"](rng)[:600], rng.normal(size=600)])
    model = CTEM(**EXACT).fit(X)
    codec = model.schema_.columns["x0"].codec
    assert "some ranges are preferred" in model.schema_.columns["x0"].reason
    assert codec_from_json(codec.to_json()) == codec
    model.save(tmp_path / "spiky.ctem")
    again = CTEM.load(tmp_path / "spiky.ctem")
    np.testing.assert_array_equal(again.score_samples(X), model.score_samples(X))
    drawn = model.sample(4000, random_state=0)[:, 0]
    assert abs(np.mean((drawn > 0.3) & (drawn < 0.30001)) - 0.1) < 4 * math.sqrt(0.09 / 600)


def test_few_rows_have_no_ranges():
    X = np.sort(np.random.default_rng(3).normal(size=40))
    assert not hasattr(_transform(X, Lattice("float"), ()), "ranges")
