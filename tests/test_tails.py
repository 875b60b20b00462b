"""Tails: as many draws lie beyond the range of n rows as of n new rows, and none of them absurdly far."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.special import ndtr
from small import EXACT

from ctem import CTEM
from ctem.densities.anyorder import NumberDensity
from ctem.densities.anyorder.numbers import NumberHead
from ctem.tables.margins.bounds import Bounded, natural_ends
from ctem.tables.margins.monotone import MonotoneMap

LAWS = {
    "normal": stats.norm(),
    "uniform": stats.uniform(),
    "gamma": stats.gamma(3),
    "exponential": stats.expon(),
    "log-normal": stats.lognorm(1),
    "Student": stats.t(3),
    "Cauchy": stats.cauchy(),
    "Pareto": stats.pareto(1.5),
    "Weibull": stats.weibull_min(3),
}
TABLES = 20


def margin(X):
    """The map of a column, cut where its values suggest."""
    curve, ends = MonotoneMap.fit(X), natural_ends(X, "float")
    return Bounded(curve, *ends, 1e-4 * curve.scale) if np.isfinite(ends).any() else curve


def encoded(curve, X):
    return curve(torch.tensor(np.atleast_1d(X), dtype=torch.float64)).numpy()


@pytest.mark.parametrize("n", [100, 1000])
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_as_many_values_lie_beyond_the_range_of_n_rows_as_of_n_new_ones(law, n):
    rng, beyond, far = np.random.default_rng(0), [], []
    for _ in range(TABLES):
        X = np.sort(law.rvs(n, random_state=rng))
        curve, middle = margin(X), np.median(X)
        low, high = encoded(curve, X[[0, -1]])
        beyond.append(n * (ndtr(low) + ndtr(-high)))
        further = 2 * X[-1] - middle
        told = (
            0.0 if further >= getattr(curve, "edges", (0, math.inf))[1] else ndtr(-encoded(curve, further)[0])
        )
        far.append((n * told, n * law.sf(further)))
    error = 2 * math.sqrt(2) / math.sqrt(TABLES)  # of what the true law gives, two standard errors
    assert 0.5 * 2 - error < np.mean(beyond) < 2 * 2 + error
    told, true = np.mean(far, 0)
    assert told < true + 2.5 / math.sqrt(n)


@pytest.mark.parametrize("law", ["exponential", "Pareto", "uniform", "log-normal"])
def test_a_column_that_ends_abruptly_costs_about_what_a_normal_one_does(law):
    def lost(law):
        rng, found = np.random.default_rng(1), []
        for _ in range(TABLES):
            curve = margin(np.sort(law.rvs(1000, random_state=rng)))
            new = law.rvs(4000, random_state=rng)
            x, log_slope = curve.with_log_slope(torch.tensor(new))
            found.append((law.logpdf(new) - stats.norm.logpdf(x) - log_slope.numpy()).mean())
        return np.mean(found)

    assert lost(LAWS[law]) < lost(LAWS["normal"]) + 0.01


@pytest.fixture
def density():
    """Conditionals with wide parts around 0, 1 and 4, by two members."""
    head, generator = NumberHead(), torch.Generator().manual_seed(0)
    found = torch.randn(2, 3, head.size, generator=generator)
    return NumberDensity(head, found, torch.tensor([0.0, 1.0, 4.0]), torch.full((3,), 0.5), reach=2.0)


def test_a_density_with_the_tails_of_its_margin_is_normalised(density):
    t = torch.linspace(-60, 60, 240_001, dtype=torch.float64)
    p = density.rows(torch.arange(3)).at(t.float().expand(3, -1)).double().exp()
    assert torch.trapezoid(p, t).tolist() == pytest.approx([1.0] * 3, abs=2e-3)


def test_the_mass_below_a_number_is_the_integral_of_the_density(density):
    t = torch.linspace(-60, 6, 330_001, dtype=torch.float64)
    p = density.at(t.float().expand(3, -1)).double().exp()
    for end in (-3.0, 1.0, 3.0, 5.0):
        inside = t <= end
        found = torch.trapezoid(p[:, inside], t[inside])
        assert found.tolist() == pytest.approx(
            density.cdf(torch.full((3, 1), end)).squeeze(1).tolist(), abs=2e-3
        )


def test_draws_lie_in_the_tails_as_often_as_the_density_says(density):
    n = 20_000
    index = torch.arange(3).repeat_interleave(n)
    drawn = density.rows(index).draw(torch.Generator().manual_seed(1)).view(3, n)
    for end in (-3.0, -2.2, 2.2, 3.0, 4.0):
        p = density.cdf(torch.full((3, 1), end)).squeeze(1)
        error = (p * (1 - p) / n).sqrt()
        assert (((drawn < end).double().mean(1) - p).abs() < 4 * error + 1e-4).all()


def test_inside_nothing_changes_and_where_the_others_say_so_a_tail_stays(density):
    plain = NumberDensity(density.head, density.found, density.mean, density.spread)
    inside, outside = torch.full((3, 1), 1.5), torch.full((3, 1), 4.5)
    assert torch.equal(density.at(inside), plain.at(inside))
    assert float((density.at(outside) - plain.at(outside))[2].abs()) < 0.7  # its prediction is there


def test_what_a_wide_part_spills_is_no_further_out_than_the_margin_says():
    head = NumberHead()
    wide = NumberDensity(head, torch.zeros(1, 1, head.size), torch.zeros(1), torch.full((1,), 1.5))
    beyond = [1 - float(each.cdf(torch.full((1, 1), 6.0))) for each in (wide, replace(wide, reach=3.0))]
    assert beyond[0] > 1e-5
    assert beyond[1] < beyond[0] / 20


def test_draws_of_a_table_of_heavy_tails_stay_near_the_range_of_its_rows(tmp_path):
    rng = np.random.default_rng(0)
    z = rng.standard_normal((600, 2))
    both = pd.DataFrame({"delay": np.sinh(z[:, 0] + 0.5 * z[:, 1]) * 20, "size": np.exp(z[:, 1])})
    model = CTEM(**EXACT).fit(both)
    drawn = model.sample(20_000, random_state=0)
    for name in both:
        low, high, middle = both[name].min(), both[name].max(), both[name].median()
        beyond = ((drawn[name] < low) | (drawn[name] > high)).mean()
        far = ((drawn[name] < 2 * low - middle) | (drawn[name] > 2 * high - middle)).mean()
        assert 600 * beyond < 6
        assert 600 * far < 1
    model.save(tmp_path / "model.ctem")
    assert CTEM.load(tmp_path / "model.ctem").score_samples(both) == pytest.approx(model.score_samples(both))


def test_a_column_whose_largest_values_were_cut_ends_there_and_no_other_does():
    rng = np.random.default_rng(0)
    whole = (stats.poisson(30), stats.geom(0.05), stats.randint(1, 61))
    for law in (*LAWS.values(), *whole):
        X = np.round(law.rvs(3000, random_state=rng), 2)
        values, counts = np.unique(X, return_counts=True)
        assert natural_ends(values, "float", counts) == natural_ends(values, "float")
        top = np.round(law.ppf(0.9), 2)
        values, counts = np.unique(np.minimum(X, top), return_counts=True)
        cut = natural_ends(values, "float", counts)[1] == top
        assert cut == (law is not whole[0])  # of which values beside the cut have a third of its rows


def test_no_row_is_drawn_beyond_a_value_at_which_a_column_was_cut():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {"income": np.minimum(np.round(rng.lognormal(1, 1, 2000), 2), 9.0), "noise": rng.normal(size=2000)}
    )
    model = CTEM(**EXACT).fit(X)
    drawn = model.sample(4000, random_state=0)["income"]
    assert drawn.max() == 9.0
    assert np.mean(drawn == 9.0) == pytest.approx(np.mean(X["income"] == 9.0), abs=0.05)
    assert "never beyond 0 … 9" in {each.name: each.reason for each in model.schema_.describe()}["income"]
    assert np.isfinite(model.score_samples(X.head(1).assign(income=9.5))).all()
