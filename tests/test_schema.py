import datetime as dt
import json
import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from scipy.stats import norm
from test_frames import ARROW, PANDAS, POLARS

from ctem.spaces import Category, Ordinal, Real, Space
from ctem.tables.encoding.codecs import Constant, Labels, Numbers
from ctem.tables.inference.kinds import infer_column
from ctem.tables.io.cells import Cells
from ctem.tables.io.frame import build_frame, read_frame
from ctem.tables.margins.monotone import MonotoneMap
from ctem.tables.schema import Schema

N = 600
KINDS = {"pandas": PANDAS, "polars": POLARS, "pyarrow": ARROW}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def columns(seed=0, n=N):
    rng = default_rng(seed)
    return {
        "normal": rng.normal(3, 2, n),
        "heavy": rng.standard_cauchy(n) * 100,
        "bounded": rng.random(n),
        "rounded": np.round(rng.normal(size=n), 2),
        "single": np.round(rng.normal(size=n) * 50, 1).astype(np.float32),
        "atoms": np.where(rng.random(n) < 0.3, 0.0, rng.gamma(2, 3, n)),
        "whole": rng.poisson(300, n),
        "few whole": rng.poisson(2, n),
        "hours": np.where(rng.random(n) < 0.45, 40, rng.integers(1, 99, n)),
        "steps": rng.integers(0, 500, n) * 50,
        "few": rng.choice([0.5, 1.5, 2.5], n),
        "city": rng.choice(np.array(["Oslo", "Bergen", "Ås", ""], object), n),
        "flag": rng.random(n) < 0.2,
        "day": np.datetime64("2020-01-01") + rng.integers(0, 3000, n).astype("m8[D]"),
        "span": rng.integers(0, 10**6, n).astype("m8[ms]"),
    }


def pandas_table(seed=0, n=N):
    X = pd.DataFrame(columns(seed, n))
    rng = default_rng(seed + 1)
    X["category"] = pd.Categorical(rng.choice(["a", "b"], n), categories=["c", "b", "a"])
    X["ordered"] = pd.Categorical(rng.choice(["lo", "hi"], n), categories=["lo", "mid", "hi"], ordered=True)
    X["Int64"] = pd.array(rng.integers(0, 200, n), dtype="Int64")
    X["boolean"] = pd.array(rng.random(n) < 0.5, dtype="boolean")
    X["constant"] = "always"
    return X


def tables(seed=0, n=N):
    plain = {k: v.tolist() if v.dtype == object else v for k, v in columns(seed, n).items()}
    real = np.column_stack([columns(seed, n)[k] for k in ("normal", "heavy", "atoms", "rounded")])
    return {
        "pandas": pandas_table(seed, n),
        "polars": pl.DataFrame(plain).with_columns(pl.col("city").cast(pl.Categorical).alias("categorical")),
        "pyarrow": pa.table(plain),
        "numpy": real,
        "objects": np.column_stack(
            [columns(seed, n)[k].astype(object) for k in ("city", "flag", "whole", "day")]
        ),
    }


def punch(X, seed=3):
    """The same table with a fifth of every column missing, where its dtype can."""
    rng = default_rng(seed)
    if isinstance(X, np.ndarray):
        X = X.copy()
        X[rng.random(X.shape) < 0.2] = None if X.dtype == object else np.nan
        return X
    if isinstance(X, pd.DataFrame):
        solid = [c for c in X if isinstance(X[c].dtype, np.dtype) and X[c].dtype.kind in "iub"]
        return X.drop(columns=solid).mask(rng.random((len(X), X.shape[1] - len(solid))) < 0.2)
    if isinstance(X, pl.DataFrame):
        return X.select(
            pl.when(pl.Series(rng.random(len(X)) > 0.2)).then(pl.col(c)).alias(c) for c in X.columns
        )
    gone = [pa.array(rng.random(len(X)) < 0.2) for _ in X.column_names]
    nulls = [pa.nulls(len(X), X[c].type) for c in X.column_names]
    cut = [
        pa.compute.if_else(g, z, X[c].combine_chunks())
        for g, z, c in zip(gone, nulls, X.column_names, strict=True)
    ]
    return pa.table(dict(zip(X.column_names, cut, strict=True)))


def assert_same(X, Y, rtol=1e-9):
    left, right = read_frame(X), read_frame(Y)
    assert left.table_type == right.table_type
    for name, cells in left.columns.items():
        other = right.columns[name]
        np.testing.assert_array_equal(cells.missing, other.missing, err_msg=name)
        if cells.type == "float":
            scale = float(np.abs(cells.values[~cells.missing]).max(initial=0)) or 1.0
            np.testing.assert_allclose(other.values / scale, cells.values / scale, rtol, rtol, err_msg=name)
        else:
            assert cells.to_list() == other.to_list(), name


@pytest.mark.parametrize("missing", ["hidden", "state"])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("backend", tables())
def test_decode_undoes_encode_for_every_kind_and_library(backend, holes, missing):
    X = tables()[backend]
    X = punch(X) if holes else X
    frame = read_frame(X)
    schema = Schema.fit(frame, missing=missing)
    encoded = schema.encode(frame, dtype=torch.float64)
    back = build_frame(frame.table_type, schema.decode(encoded.x, generator()))
    single = build_frame(frame.table_type, schema.decode(schema.encode(frame).x, generator()))
    if holes and "constant" in frame.columns:  # a gap there is filled by the one value
        X, back, single = (Y.drop(columns="constant") for Y in (X, back, single))
    assert_same(X, back)
    assert bool(encoded.log_det.isfinite().all())
    assert read_frame(single).table_type == read_frame(X).table_type


@pytest.mark.parametrize("backend", tables())
def test_json_gives_the_same_encoding_to_the_bit(backend):
    frame = read_frame(punch(tables()[backend]))
    for missing in ("hidden", "state"):
        schema = Schema.fit(frame, missing=missing)
        again = Schema.from_json(json.loads(json.dumps(schema.to_json(), allow_nan=False)))
        assert again == schema
        x, y = schema.encode(frame), again.encode(frame)
        np.testing.assert_array_equal(x.x.numpy(), y.x.numpy())
        np.testing.assert_array_equal(x.log_det.numpy(), y.log_det.numpy())


def test_the_kinds_are_read_off_the_values_with_the_reason():
    told = {d.name: (d.kind, d.reason) for d in Schema.fit(read_frame(pandas_table())).describe()}
    assert told["normal"] == ("real", "numbers")
    assert told["heavy"][1].startswith("numbers; heavy tails: up to")
    assert told["rounded"] == ("real", "rounded to 0.01")
    assert told["single"] == ("real", "rounded to 0.1")
    assert told["atoms"] == (
        "real",
        "0 in 31% of the rows: a value of its own beside a continuous part; numbers; never below 0",
    )
    assert told["whole"] == ("real", "whole numbers")
    assert told["few whole"][0] == "ordinal"
    assert told["hours"][1].startswith(
        "40 in 43% of the rows: a value of its own beside a continuous part; whole numbers"
    )
    assert told["steps"] == ("real", "whole numbers in steps of 50; never below 0")
    assert told["few"] == ("ordinal", "numbers, 3 values")
    assert told["city"] == ("category", "text, 4 values")
    assert told["flag"] == ("category", "booleans")
    assert told["day"] == ("real", "dates")
    assert told["category"] == ("category", "categories, 3 values (1 declared but unseen)")
    assert told["ordered"][0] == "ordinal"
    assert told["constant"] == ("constant", "one value")


def test_the_space_names_owners_and_parents_fit_together():
    schema = Schema.fit(read_frame(pandas_table()[["normal", "atoms", "constant", "city"]]))
    assert schema.space == Space(
        {"normal": Real(), "atoms: atom": Category(2), "atoms": Real(), "city": Category(4)}
    )
    assert schema.owner == ((0,), (1, 2), (), (3,))
    assert schema.parents == {2: 1}


def test_a_column_named_like_an_atom_column_keeps_its_name():
    X = pandas_table()[["atoms", "normal"]].rename(columns={"normal": "atoms: atom"})
    assert Schema.fit(read_frame(X)).space.names == ("atoms: atom′", "atoms", "atoms: atom")


def test_atoms_have_no_real_part_and_no_jacobian():
    X = pandas_table()[["atoms"]]
    schema = Schema.fit(frame := read_frame(X), unknown="refuse")
    encoded, zero = schema.encode(frame), torch.tensor((X["atoms"] == 0).tolist())
    assert torch.equal(encoded.x[:, 0] == 1, zero)
    assert torch.equal(encoded.x[:, 1].isnan(), zero)
    assert bool((encoded.log_det[zero] == 0).all())


def test_a_spike_at_the_edge_is_an_atom_and_a_smooth_peak_is_none():
    rng = default_rng(0)
    capped = np.minimum(rng.integers(1, 9000, 4000) * 100 + (rng.random(4000) < 0.01), 850_001).astype(float)
    codec = Schema.fit(read_frame(capped[:, None])).columns["x0"].codec
    assert codec.atoms == (850_001.0,)
    assert codec.lattice.step == 1
    for smooth in (rng.poisson(60, 4000), rng.geometric(0.1, 4000)):
        assert Schema.fit(read_frame(smooth[:, None]), {"x0": Real()}).columns["x0"].codec.atoms == ()


def test_missing_is_hidden_or_a_state():
    frame = read_frame(pd.DataFrame({"r": [0.1, np.nan, 0.35, 2.2] * 5, "c": ["a", None, "b", "b"] * 5}))
    hidden = Schema.fit(frame, {"r": "real"})
    gaps = hidden.encode(frame).x.isnan()
    assert gaps[:4].tolist() == [[False] * 2, [True] * 2, [False] * 2, [False] * 2]
    assert bool((hidden.encode(frame).log_det[1] == 0).all())
    state = Schema.fit(frame, {"r": Real()}, missing="state")
    assert state.space == Space({"r: atom": Category(2), "r": Real(), "c": Category(3)})
    x = state.encode(frame).x
    np.testing.assert_array_equal(x[1], [1, np.nan, 2])
    whole = Schema.fit(read_frame(pl.DataFrame({"n": [1, 2, None] * 9})), missing="state")
    assert whole.space.columns == (Category(3),)


def test_a_wholly_missing_column_can_be_encoded_after_any_fit():
    frame = read_frame(pandas_table()[["normal", "city", "flag", "day", "atoms"]])
    schema = Schema.fit(frame)
    gaps = read_frame(pd.DataFrame({name: [None, None] for name in schema.columns}, dtype=object))
    encoded = schema.encode(gaps)
    assert bool(encoded.x.isnan().all())
    assert bool((encoded.log_det == 0).all())


floats = st.floats(-1e12, 1e12).map(lambda v: float(f"{v:.12g}"))


@given(st.lists(floats, min_size=2, max_size=60).filter(lambda v: len(set(v)) > 1))
@settings(max_examples=100, deadline=None)
def test_the_curve_increases_is_undone_and_its_slope_is_its_derivative(values):
    X = np.array(values)
    curve = MonotoneMap.fit(X)
    span = X.max() - X.min()
    grid = torch.linspace(X.min() - span, X.max() + span, 501, dtype=torch.float64)
    x, log_slope = curve.with_log_slope(grid)
    assert bool((x.diff() >= 0).all())
    assert bool(log_slope.isfinite().all())
    assert float(x.abs().max()) < 200  # beyond the outermost rows it grows like a logarithm
    resolution = 1e-12 * (span + np.abs(X).max())
    np.testing.assert_allclose(curve.inverse(x), grid, rtol=1e-7, atol=1e5 * resolution)


@pytest.mark.parametrize("name", ["normal", "heavy", "bounded", "atoms", "whole", "steps"])
def test_log_det_is_the_numerical_derivative(name):
    X = columns()[name].astype(float)
    curve = MonotoneMap.fit(X)
    inside = torch.as_tensor(np.linspace(*np.quantile(X, [0.001, 0.999]), 997))
    h = 1e-6 * curve.scale
    numeric = (curve(inside + h) - curve(inside - h)) / (2 * h)
    np.testing.assert_allclose(curve.with_log_slope(inside)[1].exp(), numeric, rtol=1e-3)
    assert float(((curve.with_log_slope(inside)[1].exp() / numeric - 1).abs()).median()) < 1e-7


@pytest.mark.parametrize(
    "name", ["normal", "heavy", "bounded", "rounded", "atoms", "whole", "steps", "hours"]
)
@example(a=2**-9, b=0.0)  # exact in float32, with nine decimals
@example(a=2**-12, b=0.0)
@given(a=st.floats(1e-6, 1e6), b=st.floats(-1e3, 1e3))
@settings(max_examples=6, deadline=None)
def test_new_units_leave_x_alone_and_shift_the_log_density_by_log_a(name, a, b):
    X = columns()[name].astype(float)
    offset = b * a * float(np.std(X))
    first, second = (read_frame(Y[:, None]) for Y in (X, a * X + offset))
    endless = {"x0": Real(low=-math.inf, high=math.inf)}
    kept = Schema.fit(first, endless).encode(first, dtype=torch.float64)
    moved = Schema.fit(second, endless).encode(second, dtype=torch.float64)
    np.testing.assert_allclose(moved.x, kept.x, atol=1e-6)
    atom = kept.x.isnan().any(1) & (name == "atoms")  # of a continuous column: a probability, without a unit
    shift = (moved.log_det - kept.log_det)[~atom, 0]
    np.testing.assert_allclose(shift, -math.log(a), atol=1e-6)


def test_encoded_reals_are_about_standard_normal_and_integrate_to_one_in_the_users_units():
    for name in ("normal", "heavy", "bounded", "whole"):
        X = columns()[name].astype(float)
        schema = Schema.fit(frame := read_frame(X[:, None]), {"x0": "real"})
        x = schema.encode(frame).x
        assert abs(float(x.mean())) < 0.1, name
        assert 0.9 < float(x.std()) < 1.1, name
        curve = schema.columns["x0"].codec.transform
        edges = curve.inverse(torch.linspace(-8, 8, 400_001, dtype=torch.float64))
        middle = (edges[1:] + edges[:-1]) / 2
        z, log_slope = curve.with_log_slope(middle)
        mass = (norm.pdf(z) * log_slope.exp().numpy() * edges.diff().numpy()).sum()
        assert mass == pytest.approx(1, abs=1e-4), name


def test_jitter_stays_in_the_cell_is_uniform_there_and_moves_nothing_else():
    X = pandas_table()[["normal", "whole", "rounded", "hours", "day", "city"]]
    schema = Schema.fit(frame := read_frame(X))
    x = schema.encode(frame).x
    moved = schema.jitter(x, generator())
    still = [j for j in range(schema.space.dim) if j not in schema.dequantised]
    np.testing.assert_array_equal(moved[:, still].numpy(), x[:, still].numpy())
    np.testing.assert_array_equal(moved.isnan().numpy(), x.isnan().numpy())
    assert_same(
        X[["whole", "day"]],
        build_frame(frame.table_type, schema.decode(moved, generator()))[["whole", "day"]],
    )
    codec = schema.columns["whole"].codec
    j = schema.owner[1][0]
    offset = codec.transform.inverse(moved[:, j].double()).numpy() - X["whole"].to_numpy()
    assert np.abs(offset).max() <= 0.5 + 1e-3
    assert abs(offset.mean()) < 4 * math.sqrt(1 / 12 / N)
    assert offset.var() == pytest.approx(1 / 12, rel=0.2)


def test_renaming_and_reordering_labels_changes_nothing_but_the_codes():
    rng = default_rng(0)
    words = rng.choice(["a", "b", "c"], 50)
    other = pd.Series(words).map({"a": "z", "b": "y", "c": "x"})
    first, second = (read_frame(pd.DataFrame({"w": w})) for w in (words, other))
    x = Schema.fit(first).encode(first).x
    y = Schema.fit(second).encode(second).x
    assert torch.equal(2 - x, y)


def test_rare_values_share_a_code_and_keep_their_frequency():
    rng = default_rng(0)
    words = np.array([f"w{v}" for v in rng.zipf(1.3, 4000)], object)
    frame = read_frame(words[:, None])
    schema = Schema.fit(frame, unknown="refuse")
    assert schema.space.columns == (Category(256),)
    encoded = schema.encode(frame)
    lumped = (encoded.x[:, 0] == 0).numpy()
    share = dict(zip(words[lumped], encoded.log_det[lumped, 0].exp().tolist(), strict=True))
    assert sum(share.values()) == pytest.approx(1)
    assert bool((encoded.log_det[~lumped] == 0).all())
    kept = schema.decode(encoded.x, generator())["x0"].to_list()
    assert [k for k, gone in zip(kept, lumped, strict=True) if not gone] == list(words[~lumped])
    draws = schema.decode(torch.zeros(20_000, 1), generator())["x0"].to_list()
    top = max(share, key=share.__getitem__)
    p = share[top]
    assert abs(draws.count(top) / 20_000 - p) < 4 * math.sqrt(p / 20_000)
    assert set(draws) <= set(share)
    with pytest.raises(ValueError, match=r"expected a torch\.Generator"):
        schema.decode(encoded.x)


def test_the_user_may_say_what_a_column_is():
    X = pd.DataFrame({"n": default_rng(0).integers(0, 5, 100), "t": ["lo", "hi"] * 50})
    frame = read_frame(X)
    for said in (Category(), Category, "category", Category(5)):
        assert Schema.fit(frame, {"n": said}).space.columns[0] == Category(5)
    assert isinstance(Schema.fit(frame, {"n": Real}).space.columns[0], Real)
    assert Schema.fit(frame, {"t": "ordinal"}).space.columns[1] == Ordinal(2)
    assert "as requested" in Schema.fit(frame, {"n": "category"}).describe()[0].reason


def test_numpy_rows_are_taken_by_position_and_tables_by_name():
    X = pd.DataFrame({"a": [1.0, 2.5, 3.25], "b": [9.0, 4.5, 1.25]})
    schema = Schema.fit(read_frame(X), {"a": "real", "b": "real"})
    x = schema.encode(read_frame(X)).x
    assert torch.equal(schema.encode(read_frame(X[["b", "a"]])).x, x)
    assert torch.equal(schema.encode(read_frame(X.to_numpy())).x, x)
    assert torch.equal(
        schema.encode(read_frame(pl.DataFrame({"a": X["a"].tolist(), "b": X["b"].tolist()}))).x, x
    )


def test_times_in_other_units_are_the_same_times():
    X = pd.DataFrame({"t": pd.date_range("2020-01-01", periods=50, freq="h").as_unit("s")})
    schema = Schema.fit(read_frame(X))
    fine = read_frame(pd.DataFrame({"t": X["t"].dt.as_unit("ns")}))
    assert torch.equal(schema.encode(fine).x, schema.encode(read_frame(X)).x)


def test_big_numbers_keep_their_digits():
    big = 2**60 + default_rng(0).integers(0, 1000, 200)
    frame = read_frame(pd.DataFrame({"id": big, "t": pd.to_datetime(big)}))
    schema = Schema.fit(frame)
    back = schema.decode(schema.encode(frame, dtype=torch.float64).x)
    assert back["id"].to_list() == big.tolist()
    assert back["t"].values.tolist() == frame.columns["t"].values.tolist()


HOSTILE = {
    "huge": np.array([1e300, -1e300, 5e299, 0.0, 3.3e299]),
    "largest": np.array([4e307, -1e307, 1e307, 0.0, 3e306]),
    "tiny": np.array([1e-300, -1e-300, 5e-301, 0.0, 2e-301]),
    "denormal": np.array([5e-324, 1e-322, 3e-323, 0.0, 5e-322]),
    "outlier": np.array([1.0, 1.1, 1.3, 1.25, 1e200]),
    "int64": np.array([-(2**63), 2**63 - 1, 0, 5, -17]),
    "uint64": np.array([0, 2**64 - 1, 7, 9, 2**63], np.uint64),
    "two rows": np.array([1.5, 2.5]),
    "duplicate rows": np.array([1.5, 2.5, 2.5, 2.5, 2.5, 2.5]),
    "near ties": np.array([0.1 + 0.2, 0.3, 0.3, 1.7, 2.2]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_numbers_are_encoded_finitely_and_come_back(name):
    X = HOSTILE[name][:, None]
    frame = read_frame(X)
    for said in (None, {"x0": Real()}):
        schema = Schema.fit(frame, said)
        encoded = schema.encode(frame, dtype=torch.float64)
        known = ~encoded.x.isnan()
        assert bool(encoded.x[known].isfinite().all())
        assert bool(encoded.log_det.isfinite().all())
        back = build_frame(frame.table_type, schema.decode(encoded.x, generator()))
        assert back.dtype == X.dtype
        scale = float(np.abs(X.astype(float)).max())
        np.testing.assert_allclose(back / scale, X / scale, rtol=1e-6, atol=1e-9)
        extreme = schema.space.columns[-1]
        rows = torch.full((2, schema.space.dim), 0.0)
        rows[:, -1] = torch.tensor([-60.0, 60.0]) if isinstance(extreme, Real) else 0
        assert np.isfinite(
            build_frame(frame.table_type, schema.decode(rows, generator())).astype(float)
        ).all()


@pytest.mark.parametrize("first", [2**52, 2**63 + 7, 2**64 - 5000, -(2**63)])
def test_large_whole_numbers_keep_every_digit_and_their_preferences(first):
    rng = np.random.default_rng(0)
    small = rng.gamma(4.0, 50.0, 3000).round().astype(np.int64)
    small = np.where(rng.random(3000) < 0.4, small // 10 * 10, small)
    X = np.array([first + int(value) for value in small], np.uint64 if first >= 2**63 else np.int64)
    codecs = []
    for values in (X, small):
        cells = Cells("int", values, np.zeros(3000, bool))
        codec = infer_column("n", cells, Real(low=-math.inf), False).codec
        x, log_slope = codec.encode("n", cells)
        assert codec.decode(x.float()).values.tolist() == values.tolist()
        assert len(codec.jitter(x[:, 0], generator()).unique()) > 2990
        codecs.append((codec, x, log_slope))
    assert not codecs[0][0].atoms
    assert torch.allclose(codecs[0][2], codecs[1][2], atol=1e-6)
    far = codecs[0][0].decode(torch.tensor([[-60.0], [60.0]])).values
    assert int(far[0]) < first + 100 < int(far[1])


def test_two_extreme_rows_do_not_cost_the_others_their_digits():
    X = np.array([*range(1000), 2**60, -(2**60)])
    cells = Cells("int", X, np.zeros(1002, bool))
    codec = infer_column("n", cells, None, False).codec
    back = codec.decode(codec.encode("n", cells)[0]).values
    assert back[:1000].tolist() == X[:1000].tolist()


def test_hostile_strings_come_back():
    words = ["", "\x00", "nan", "None", "\ud800", "🐧" * 10_000, "a\nb", " a", "a"] * 3
    frame = read_frame(np.array(words, object)[:, None])
    schema = Schema.from_json(json.loads(json.dumps(Schema.fit(frame).to_json())))
    assert schema.decode(schema.encode(frame).x)["x0"].to_list() == words


def test_one_row_is_a_table_without_variation():
    with pytest.raises(
        ValueError, match=r"expected a column that varies; all 2 hold one value over 1 sample"
    ):
        Schema.fit(read_frame([[1.0, 2.0]]))


def test_an_always_missing_column_is_carried_along():
    X = pd.DataFrame({"a": [1.0, 2.0, 4.5], "b": [np.nan] * 3, "c": pd.Series([None] * 3, dtype=object)})
    schema = Schema.fit(frame := read_frame(X))
    assert schema.owner == ((0,), (), ())
    pd.testing.assert_frame_equal(
        build_frame(frame.table_type, schema.decode(schema.encode(frame).x.double())), X
    )


COLUMNS = [(backend, name) for backend, many in KINDS.items() for name in many]


@pytest.mark.parametrize(("backend", "name"), COLUMNS)
def test_a_column_that_is_all_missing_comes_back_in_its_dtype(backend, name):
    column = KINDS[backend][name]
    if backend == "pandas" and isinstance(column.dtype, np.dtype) and column.dtype.kind in "iub":
        pytest.skip("the dtype has no missing value")
    other = [0.5, 1.75, 9.0]
    if backend == "pandas":
        X = pd.DataFrame({"a": column.mask([True] * 3), "b": other})
    elif backend == "polars":
        X = pl.DataFrame({"a": pl.Series([None] * 3, dtype=column.dtype), "b": other})
    elif pa.types.is_dictionary(column.type):
        empty = pa.array([None] * 3, column.type.index_type)
        X = pa.table(
            {
                "a": pa.DictionaryArray.from_arrays(empty, column.dictionary, ordered=column.type.ordered),
                "b": other,
            }
        )
    else:
        X = pa.table({"a": pa.nulls(3, column.type), "b": other})
    schema = Schema.fit(frame := read_frame(X))
    back = build_frame(frame.table_type, schema.decode(schema.encode(frame, torch.float64).x, generator()))
    assert_same(X, back)


def test_a_space_needs_the_size_that_a_wish_leaves_open():
    with pytest.raises(
        ValueError, match=r"column 'c': Ordinal\(\) without a size takes its values from a table"
    ):
        Space({"c": Ordinal()})
    with pytest.raises(ValueError, match="Category needs a whole number of values ≥ 2; got -1"):
        Category(-1)


@st.composite
def random_columns(draw):
    n = draw(st.integers(2, 40))
    one = {
        "float": st.floats(-1e300, 1e300) | st.floats(-10, 10).map(lambda v: round(v, 1)),
        "int": st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
        "bool": st.booleans(),
        "str": st.text(max_size=5),
        "date": st.dates(),
        "datetime": st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1)),
    }
    kinds = draw(st.lists(st.sampled_from(sorted(one)), min_size=1, max_size=5))
    dtypes = {
        "float": pl.Float64,
        "int": pl.Int64,
        "bool": pl.Boolean,
        "str": pl.String,
        "date": pl.Date,
        "datetime": pl.Datetime("us"),
    }
    cells = {
        f"{kind} {j}": pl.Series(
            draw(st.lists(st.none() | one[kind], min_size=n, max_size=n)), dtype=dtypes[kind]
        )
        for j, kind in enumerate(kinds)
    }
    return pl.DataFrame(cells)


@given(
    random_columns(), st.sampled_from(["hidden", "state"]), st.sampled_from(["polars", "pyarrow", "pandas"])
)
@settings(max_examples=40, deadline=None)
def test_any_table_is_encoded_finitely_and_comes_back_or_is_refused_for_a_stated_reason(
    table, missing, backend
):
    X = {"polars": lambda: table, "pyarrow": table.to_arrow, "pandas": lambda: arrow_pandas(table)}[backend]()
    frame = read_frame(X)
    try:
        schema = Schema.fit(frame, missing=missing)
    except ValueError as error:
        if not any(
            reason in str(error) for reason in ("expected a column that varies", "span more than float64")
        ):
            raise
        return
    encoded = schema.encode(frame, dtype=torch.float64)
    assert bool(encoded.log_det.isfinite().all())
    assert not bool(encoded.x.isinf().any())
    for j in schema.space.discretes:
        codes = encoded.x[:, j][~encoded.x[:, j].isnan()]
        assert bool(((codes >= 0) & (codes < schema.space.sizes[j])).all())
    back = build_frame(frame.table_type, schema.decode(encoded.x, generator()))
    after = read_frame(back)
    assert after.table_type == frame.table_type
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    np.testing.assert_array_equal(again.encode(frame, torch.float64).x, encoded.x)
    for name, cells in frame.columns.items():
        if schema.columns[name].kind == "constant":
            continue
        np.testing.assert_array_equal(after.columns[name].missing, cells.missing)
        if cells.type in ("label", "bool"):
            assert after.columns[name].to_list() == cells.to_list()


def arrow_pandas(table):
    return table.to_arrow().to_pandas(types_mapper=pd.ArrowDtype)


def test_the_tails_fall_but_never_off_a_cliff():
    for name in ("normal", "heavy", "bounded", "whole"):
        X = columns()[name].astype(float)
        curve, span = MonotoneMap.fit(X), np.ptp(X)
        beyond = torch.as_tensor(X.max() + span * np.linspace(0.01, 1, 50))
        x, log_slope = curve.with_log_slope(beyond)
        log_density = -(x**2) / 2 + log_slope
        assert bool((log_density.diff() < 0).all()), name
        assert float(log_density.min() - log_density.max()) > -1000, name


def test_a_tail_that_ends_is_not_carried_on_as_one_of_incomes():
    rng = np.random.default_rng(0)
    ages, incomes = 80 * rng.beta(2, 4, 2000), rng.lognormal(3, 1, 2000)
    far = torch.tensor([-4.5, 4.5], dtype=torch.float64)
    assert float(MonotoneMap.fit(ages).inverse(far)[1]) < 1.2 * ages.max()
    assert float(MonotoneMap.fit(incomes).inverse(far)[1]) > 1.5 * incomes.max()


def test_codecs_can_be_told_apart():
    kinds = {type(c.codec) for c in Schema.fit(read_frame(pandas_table())).columns.values()}
    assert kinds == {Constant, Labels, Numbers}
