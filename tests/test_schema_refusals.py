"""What a schema refuses, and that its errors name the column, the row and the value."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from test_schema import HOSTILE, pandas_table

from ctem.spaces import Category, Ordinal, Real
from ctem.tables.io.frame import read_frame
from ctem.tables.schema import Schema

FIT_ERRORS = {
    "missing": (lambda f: Schema.fit(f, missing="drop"), "missing: expected 'hidden' or 'state'; got 'drop'"),
    "unknown": (lambda f: Schema.fit(f, unknown="no"), "unknown: expected 'reserve' or 'refuse'; got 'no'"),
    "no such column": (lambda f: Schema.fit(f, {"agee": Real()}), "kinds: 'agee' is not in the table"),
    "no kind": (
        lambda f: Schema.fit(f, {"normal": 3}),
        r"kinds: expected Real\(\), Category\(\) or Ordinal",
    ),
    "no kind of that name": (lambda f: Schema.fit(f, {"normal": "reel"}), "got 'reel'"),
    "real text": (
        lambda f: Schema.fit(f, {"city": Real()}),
        r"'city' holds text or categories: it cannot be",
    ),
    "real flags": (
        lambda f: Schema.fit(f, {"flag": Real()}),
        r"'flag' holds booleans: it cannot be Real\(\)",
    ),
    "scaled real": (lambda f: Schema.fit(f, {"normal": Real(0, 2)}), "whose units are learned"),
    "wrong size": (lambda f: Schema.fit(f, {"city": Category(9)}), "'city': expected 9 values, as requested"),
    "long ordinal": (
        lambda f: Schema.fit(read_frame(np.arange(2000.0)[:, None]), {"x0": Ordinal()}),
        r"'x0' holds 2000 values; Ordinal\(\) takes at most 1024",
    ),
    "too wide": (
        lambda f: Schema.fit(read_frame([[1.7e308], [-1.7e308], [0.0]])),
        "column 'x0': values from -1.7e\\+308 to 1.7e\\+308 span more than float64",
    ),
}


@pytest.mark.parametrize("name", FIT_ERRORS)
def test_fit_says_what_is_wrong(name):
    call, message = FIT_ERRORS[name]
    with pytest.raises((ValueError, TypeError), match=message):
        call(read_frame(pandas_table()))


ENCODE_ERRORS = {
    "new label": (
        "city",
        "Paris",
        "column 'city' holds 'Paris' in row 1, not seen in fit; known: '', 'Bergen', …",
    ),
    "new number": (
        "few whole",
        99,
        r"'few whole' holds 99.0 in row 1, not seen .* kinds={'few whole': Real\(\)}",
    ),
    "new constant": (
        "constant",
        "never",
        "column 'constant' holds 'never' in row 1; in fit it was always 'always'",
    ),
    "text for numbers": ("normal", "x", "column 'normal': expected numbers, as in fit; got text"),
    "number for text": ("city", 5, "column 'city': expected text or categories, as in fit; got numbers"),
    "number for date": ("day", 5.0, "column 'day': expected dates, as in fit; got numbers"),
}


@pytest.mark.parametrize("name", ENCODE_ERRORS)
def test_encode_names_column_row_and_value(name):
    column, value, message = ENCODE_ERRORS[name]
    X = pandas_table()
    schema = Schema.fit(read_frame(X), unknown="refuse")
    X = X.head(2).copy()
    X[column] = pd.Series([None, value])
    with pytest.raises((ValueError, TypeError), match=message):
        schema.encode(read_frame(X))


def test_encode_wants_the_columns_of_fit():
    schema = Schema.fit(read_frame(pandas_table()[["normal", "city"]]))
    with pytest.raises(ValueError, match="X has 1 features, but Schema is expecting 2 features as input"):
        schema.encode(read_frame([[1.0]]))
    with pytest.raises(ValueError, match="X: expected column 'city', as in fit; got 'normal', 'town'"):
        schema.encode(read_frame(pd.DataFrame({"normal": [1.0], "town": ["Oslo"]})))
    with pytest.raises(ValueError, match=r"x: expected shape \(n, 2\); got \(3, 5\)"):
        schema.decode(torch.zeros(3, 5))
    with pytest.raises(ValueError, match="x: expected codes 0 … 3; got 7 … 7"):
        schema.decode(torch.tensor([[0.0, 7.0]]))


def test_a_value_out_of_float64s_reach_is_refused():
    schema = Schema.fit(read_frame(HOSTILE["tiny"][:, None]), {"x0": Real()})
    with pytest.raises(ValueError, match="column 'x0', row 1: 1e\\+300 is further than float64 can hold"):
        schema.encode(read_frame([[0.0], [1e300]]))


def good_json():
    return json.loads(
        json.dumps(Schema.fit(read_frame(pandas_table()[["normal", "city", "whole"]])).to_json())
    )


def spoil(*path, value):
    data = good_json()
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return data


BAD_JSON = {
    "nothing": lambda: {},
    "list": lambda: [],
    "other version": lambda: spoil("version", value=99),
    "no columns": lambda: spoil("columns", value=[]),
    "columns of no kind": lambda: spoil("columns", value=7),
    "unknown kind": lambda: spoil("columns", 0, "kind", value="image"),
    "same name": lambda: spoil("columns", 1, "name", value="normal"),
    "unknown codec": lambda: spoil("columns", 0, "codec", "codec", value="os.system"),
    "falling knots": lambda: spoil("columns", 0, "codec", "transform", "knots", 0, value=1e9),
    "infinite scale": lambda: spoil("columns", 0, "codec", "transform", "scale", value=math.inf),
    "short slopes": lambda: spoil("columns", 0, "codec", "transform", "slopes", value=[1.0]),
    "text for a number": lambda: spoil("columns", 0, "codec", "transform", "scale", value="x"),
    "negative width": lambda: spoil("columns", 2, "codec", "lattice", "width", value=-1),
    "unknown unit": lambda: spoil("columns", 2, "codec", "lattice", "unit", value="fortnight"),
    "lost code": lambda: spoil("columns", 1, "codec", "codes", 0, value=9),
    "share of nothing": lambda: spoil("columns", 1, "codec", "shares", 0, value=0.0),
    "reserve of everything": lambda: spoil("columns", 1, "codec", "reserve", value=1.0),
    "same label": lambda: spoil("columns", 1, "codec", "values", 0, value="Oslo"),
    "nested label": lambda: spoil("columns", 1, "codec", "values", 0, value=["x"]),
    "flag of no kind": lambda: spoil("columns", 1, "codec", "ordered", value="yes"),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_a_spoilt_schema_is_refused(name):
    with pytest.raises(ValueError, match="schema: "):
        Schema.from_json(BAD_JSON[name]())
