"""Lattices survive extremes, and codes such as 999 are called so."""

import numpy as np
import pandas as pd
import pytest
import torch
from small import EXACT

from ctem import CTEM
from ctem.tables.io.frame import read_frame
from ctem.tables.schema import Schema

N = 400


def described(values):
    schema = Schema.fit(read_frame(pd.DataFrame({"x": values, "y": np.arange(len(values)) % 7})))
    return schema.columns["x"]


@pytest.mark.parametrize("extreme", [1e15, 1.5e15, -3e18, 1e20, 4e44, 1e200])
@pytest.mark.parametrize("count", [1, 3])
def test_a_few_extreme_cells_leave_the_rounding_of_the_others(extreme, count):
    rng = np.random.default_rng(0)
    inferred = described(np.append(rng.normal(10, 3, N - count).round(1), [extreme] * count))
    assert inferred.codec.lattice.width == pytest.approx(0.1)
    back = inferred.codec.lattice.restore
    assert "rounded to 0.1" in inferred.reason
    assert back.__self__.decimals == 1


@pytest.mark.parametrize("digits", [1, 2])
def test_numbers_over_fifty_orders_of_magnitude_have_no_lattice(digits):
    values = [float(f"{v:.{digits}g}") for v in 10.0 ** np.random.default_rng(0).normal(1, 12, N)]
    inferred = described(np.array(values))
    assert inferred.codec.lattice.width == 0
    x = inferred.codec.transform(torch.tensor(values, dtype=torch.float64))
    assert abs(float(x.mean())) < 0.1
    assert 0.9 < float(x.std()) < 1.1
    assert "orders of magnitude: by its logarithm" in inferred.reason


@pytest.mark.filterwarnings("ignore:overflow")
def test_half_lives_are_drawn_over_their_orders_of_magnitude():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"half_life": 10.0 ** rng.normal(1, 8, N), "mass": rng.integers(1, 250, N)})
    drawn = CTEM(**EXACT).fit(X).sample(2000, random_state=0)["half_life"]
    assert drawn.min() > 0
    assert np.abs(np.quantile(np.log10(drawn), [0.1, 0.5, 0.9]) - [-9, 1, 11]).max() < 3


CODES = {
    "999 among ages": (np.append(np.arange(N - 3) % 90, [999] * 3), 999.0),
    "-1 among counts": (np.append(np.arange(N - 5) % 70, [-1] * 5), -1.0),
    "-999 among temperatures": (np.append(np.arange(N - 2) / 10, [-999.0] * 2), -999.0),
    "1e20 among lengths": (np.append(np.arange(N - 1) / 10, 1e20), 1e20),
    "9999 among years": (np.append(1950 + np.arange(N - 1) % 70, 9999), 9999.0),
}


@pytest.mark.parametrize("name", CODES)
def test_a_code_is_an_atom_and_said(name):
    values, code = CODES[name]
    inferred = described(values)
    assert inferred.codec.atoms == (code,)
    assert f"{code:g} looks like a code for missing" in inferred.reason


def test_a_date_before_all_others_is_a_code():
    days = np.datetime64("2015-03-01") + np.arange(N).astype("m8[D]") * 3
    inferred = described(np.append(days[:-2], np.array(["1900-01-01"] * 2, "M8[D]")))
    assert "1900-01-01 looks like a code for missing" in inferred.reason
    assert len(inferred.codec.atoms) == 1


PLAIN = {
    "ages up to 99": np.arange(N) % 100,
    "temperatures about -1": np.arange(N) / 10 - 1,
    "lengths up to 999": np.linspace(1, 999, N).round(1),
    "births from 1900": np.datetime64("1900-01-01") + np.arange(N).astype("m8[D]") * 90,
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_number_among_its_like_is_no_code(name):
    assert "looks like a code" not in described(PLAIN[name]).reason


def test_a_column_with_a_code_still_keeps_its_sign():
    values, _ = CODES["-1 among counts"]
    model = CTEM(**EXACT).fit(pd.DataFrame({"n": values, "side": values % 3}))
    drawn = model.sample(2000, random_state=0)["n"]
    assert drawn[drawn != -1].min() >= 0


def test_five_of_sixty_rows_are_no_atom():
    rng = np.random.default_rng(0)
    values = np.append(rng.normal(size=56), [0.25] * 5)
    assert described(values).codec.atoms == ()


def test_minutes_end_at_59():
    inferred = described(np.random.default_rng(0).integers(0, 60, 6100))
    assert (inferred.kind, max(inferred.codec.values)) == ("ordinal", 59)
