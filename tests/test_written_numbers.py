"""Numbers that are drawn or filled in are written as those of the table: digits, steps and values of their own."""

import numpy as np
import pandas as pd
import pytest
import torch
from small import EXACT

from ctem import CTEM
from ctem.tables.io.frame import read_frame
from ctem.tables.schema import Schema

N = 1500
RNG = np.random.default_rng(0)
WHOLE = RNG.integers(0, 4000, N)
ON_LATTICES = {  # what it is → numbers, and the digits after the point that people would write
    "tenths by a product": (WHOLE * 0.1, 1),
    "tenths by a sum": (WHOLE * 0.1 + 0.2, 1),
    "a running total of hundredths": (np.cumsum(RNG.integers(0, 9, N) * 0.01), 2),
    "steps of 0.005": (WHOLE * 0.005, 3),
    "quarters": (WHOLE * 0.25, 2),
    "hundred-thousandths from 3.45234 on": (3.45234 + RNG.integers(0, 700, N) * 1e-5, 5),
    "miles an hour from whole knots": (RNG.integers(0, 60, N) * 1.15078, 5),
    "negative tenths": (WHOLE * 0.1 - 200.3, 1),
    "eleven digits": (WHOLE * 1e-11, 11),
    "rounded in single precision": ((WHOLE * 0.1).astype(np.float32), 1),
    "tenths, and two far out": (np.append(WHOLE[2:] * 0.1, [1e17, 3e18]), 1),
}


def beside(numbers):
    return pd.DataFrame({"v": numbers, "side": np.arange(N) % 3})


@pytest.mark.parametrize("case", ON_LATTICES)
def test_numbers_on_a_lattice_of_decimals_are_drawn_without_noise(case):
    """A number that was rounded is the float64 that is nearest to what people write."""
    numbers, digits = ON_LATTICES[case]
    schema = Schema.fit(frame := read_frame(beside(numbers)))
    assert schema.columns["v"].kind == "real"
    assert schema.columns["v"].codec.lattice.decimals == digits
    x = schema.encode(frame).x
    x[:, 0] += 0.05 * torch.randn(N, generator=torch.Generator().manual_seed(0))
    drawn = [value for value in schema.decode(x)["v"].to_list() if abs(value) < 1e15]
    assert [value for value in drawn if value != round(value, digits)] == []
    assert len(set(drawn)) > 50


def test_samples_and_imputations_have_the_digits_of_the_table():
    X = beside(ON_LATTICES["tenths by a sum"][0])
    model = CTEM(**EXACT).fit(X)
    holes = X.assign(v=np.where(np.arange(N) % 2, np.nan, X["v"]))
    gone = holes["v"].isna()
    drawn = [model.sample(300, random_state=0)["v"]]
    drawn += [model.impute(holes, how, random_state=0)["v"][gone] for how in ("sample", "mode")]
    for values in drawn:
        assert (values == values.map(lambda value: round(value, 1))).all()


def test_a_lattice_that_is_not_of_decimals_is_not_rounded():
    schema = Schema.fit(frame := read_frame(beside(WHOLE / 3)))
    assert schema.columns["v"].codec.lattice.decimals == -1
    back = schema.decode(schema.encode(frame).x)["v"].values
    np.testing.assert_allclose(back, WHOLE / 3, rtol=1e-14)


OFF_LATTICES = {  # a value that is no point of the lattice of the others, how often, and they
    "7 among tens": (7, 0.05, 10 * RNG.integers(1, 200, N)),
    "999 among fifties": (999, 0.02, 50 * RNG.integers(1, 99, N)),
    "a third among tenths": (100 / 3, 0.2, (WHOLE * 0.1).round(1)),
}


@pytest.mark.parametrize("case", OFF_LATTICES)
def test_values_of_their_own_come_back_as_they_are(case):
    own, often, others = OFF_LATTICES[case]
    X = beside(np.where(np.random.default_rng(1).random(N) < often, own, others))
    schema = Schema.fit(frame := read_frame(X))
    assert own in schema.columns["v"].codec.atoms
    assert schema.columns["v"].codec.lattice.step > 0
    assert schema.decode(schema.encode(frame).x)["v"].to_list() == X["v"].tolist()
    drawn = CTEM(**EXACT).fit(X).sample(N, random_state=0)["v"]
    share = float((X["v"] == own).mean())
    assert abs(float((drawn == own).mean()) - share) < 0.03 + 4 * np.sqrt(share / N)
    assert (drawn == own).any()


CONTINUOUS = {  # hardly any number comes twice; the digits after the point that people would write
    "three digits": (RNG.normal(0, 40, N).round(3), 3),
    "whole numbers with gaps": (np.where(np.arange(N) == 3, np.nan, RNG.permutation(10**7)[:N] * 1.0), 0),
    "five digits by a sum": (2 + RNG.permutation(10**6)[:N] * 1e-5, 5),
    "all digits": (RNG.normal(size=N), -1),
}


@pytest.mark.parametrize("case", CONTINUOUS)
def test_numbers_that_hardly_ever_repeat_are_drawn_with_their_digits(case):
    numbers, digits = CONTINUOUS[case]
    schema = Schema.fit(frame := read_frame(beside(numbers)))
    assert schema.columns["v"].codec.lattice.decimals == digits
    x = schema.encode(frame).x
    x[:, 0] += 0.05 * torch.randn(N, generator=torch.Generator().manual_seed(0))
    drawn = [value for value in schema.decode(x)["v"].to_list() if value is not None]
    if digits >= 0:
        assert [value for value in drawn if value != round(value, digits)] == []
    else:
        assert len(set(drawn)) == len(drawn)


def test_zero_has_no_sign():
    numbers = np.where(RNG.random(N) < 0.5, -0.0, RNG.normal(0, 0.2, N).round(1))
    schema = Schema.fit(frame := read_frame(beside(np.append(numbers[1:], 1e-3))))
    drawn = np.array(schema.decode(schema.encode(frame).x)["v"].to_list())
    assert (drawn == 0).any()
    assert not np.signbit(drawn[drawn == 0]).any()
    assert "-0 in" not in schema.columns["v"].reason
