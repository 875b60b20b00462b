"""Bad input gets an error that names the argument, what was expected and what came."""

import numpy as np
import pytest
import torch

from ctem import (
    MLP,
    Category,
    Gaussian,
    Grid,
    HammingOne,
    Mixture,
    Product,
    ProductBase,
    Real,
    Recipe,
    Redraw,
    Space,
    Sphere,
    Uniform,
    pair_loss,
    train,
)
from ctem.matching.kernels import OrnsteinUhlenbeck

SPACE = Space({"age": Real(), "city": Category(3)})
BITS = Space([Category(2)] * 3)
GOOD = np.array([[1.0, 0], [2.0, 2]])


def changed(row, column, value, dtype=np.float64):
    X = GOOD.astype(dtype).copy()
    X[row, column] = value
    return X


def fit_on(x):
    kernel = Gaussian(SPACE, 0.1)
    train(MLP(SPACE), lambda f, x, g: pair_loss(f, x, kernel, g), x, Recipe(steps=1))


CASES = {
    "nan": (
        lambda: SPACE.encode(changed(1, 0, np.nan)),
        "column 'age', row 1: expected a finite number; got nan",
    ),
    "infinity": (
        lambda: SPACE.encode(changed(0, 0, -np.inf)),
        "column 'age', row 0: expected a finite number; got -inf",
    ),
    "nan code": (
        lambda: SPACE.encode(changed(1, 1, np.nan)),
        "column 'city', row 1: expected a finite number; got nan",
    ),
    "empty": (lambda: SPACE.encode(np.zeros((0, 2))), "X: expected at least 1 row; got an empty array"),
    "one row": (lambda: SPACE.standardised(GOOD[:1]), "X: standardising needs at least 2 rows; got 1"),
    "one row to train on": (
        lambda: fit_on(torch.zeros(1, 2)),
        r"x: expected at least 2 encoded rows \(n, d\); got shape \(1, 2\)",
    ),
    "constant column": (
        lambda: SPACE.standardised(changed(1, 0, 1.0)),
        r"column 'age' is constant \(1\): it has no density; drop it",
    ),
    "code too large": (
        lambda: SPACE.encode(changed(1, 1, 3)),
        "column 'city', row 1: expected a code in 0 … 2; got 3",
    ),
    "negative code": (
        lambda: SPACE.encode(changed(0, 1, -1)),
        "column 'city', row 0: expected a code in 0 … 2; got -1",
    ),
    "fractional code": (
        lambda: SPACE.encode(changed(0, 1, 0.5)),
        "column 'city', row 0: expected a code in 0 … 2; got 0.5",
    ),
    "wrong width": (lambda: SPACE.encode(np.zeros((4, 3))), r"X: expected shape \(n, 2\); got \(4, 3\)"),
    "float16 tensor": (
        lambda: SPACE.encode(torch.zeros(2, 2, dtype=torch.float16)),
        "X: expected float32 or float64; got torch.float16",
    ),
    "float16 array": (
        lambda: SPACE.encode(GOOD.astype(np.float16)),
        "X: expected float32 or float64; got float16",
    ),
    "strings": (lambda: SPACE.encode([["a", "b"]]), "X: expected numbers .* could not convert string"),
    "sphere on bits": (lambda: Sphere(BITS, 0.1), "Sphere moves real columns; .* has none"),
    "hamming on reals": (
        lambda: HammingOne(Space([Real()])),
        "HammingOne moves discrete columns; .* has none",
    ),
    "grid on categories": (lambda: Grid(BITS), "Grid moves ordinal columns; .* has none"),
    "gaussian on a label": (
        lambda: Gaussian(SPACE, 0.1, columns=["city"]),
        r"columns: expected real columns; 'city' is Category\(size=3\)",
    ),
    "shared columns": (
        lambda: Product(HammingOne(BITS), Uniform(BITS)),
        "kernels: expected disjoint columns",
    ),
    "two spaces": (
        lambda: Product(HammingOne(BITS), Sphere(SPACE, 1.0)),
        "kernels: expected one space for all",
    ),
    "scale zero": (lambda: Sphere(SPACE, 0.0), "scale: expected a finite number > 0; got 0.0"),
    "scale negative": (lambda: Gaussian(SPACE, -1.0), "scale: expected a finite number > 0; got -1.0"),
    "scale nan": (lambda: Gaussian(SPACE, float("nan")), "scale: expected a finite number > 0; got nan"),
    "rate": (lambda: OrnsteinUhlenbeck(SPACE, 1.5), r"rate: expected β in \(0, 1\]; got 1.5"),
    "no comparisons": (
        lambda: Sphere(SPACE, 1.0).compare(torch.zeros(2, 2), torch.Generator(), m=0),
        "m: expected at least 1 comparison per row; got 0",
    ),
    "wrong x": (
        lambda: Sphere(SPACE, 1.0).compare(torch.zeros(2, 5), torch.Generator()),
        r"x: expected shape \(n, 2\); got \(2, 5\)",
    ),
    "weights": (
        lambda: Mixture([Sphere(SPACE, 1.0)], [0.5]),
        r"weights: expected 1 numbers > 0 that sum to 1; got \[0.5\]",
    ),
    "tables": (
        lambda: ProductBase(BITS, [torch.ones(2)]),
        "tables: expected 3, one per discrete column; got 1",
    ),
    "zero probability": (
        lambda: Redraw(ProductBase(Space([Category(2)]), [torch.tensor([1.0, 0.0])])),
        "tables: column 'x0' needs 2 probabilities > 0",
    ),
    "one category": (lambda: Category(1), "Category needs a whole number of values ≥ 2; got 1"),
    "not a column": (lambda: Space([3]), "column 'x0': expected Real, Category or Ordinal; got 3"),
    "no columns": (lambda: Space([]), "Space needs at least one column; got none"),
    "too many states": (
        lambda: Space([Category(2)] * 30).states(),
        "states: expected at most 4194304 states",
    ),
    "learning rate": (lambda: Recipe(learning_rate=0.0), "learning_rate: expected > 0; got 0.0"),
    "unknown column": (
        lambda: Gaussian(SPACE, 0.1, columns=["height"]),
        r"columns: expected names or numbers of \['age', 'city'\]; got 'height'",
    ),
    "column number": (
        lambda: Gaussian(SPACE, 0.1, columns=[7]),
        r"columns: expected names or numbers of \['age', 'city'\]; got 7",
    ),
    "patience": (lambda: Recipe(patience=0), "patience: expected at least 1; got 0"),
    "clip": (lambda: Recipe(clip=-1.0), "clip: expected a norm > 0; got -1.0"),
    "steps": (lambda: Recipe(steps=0), "steps: expected at least 1; got 0"),
}


@pytest.mark.parametrize(("call", "message"), CASES.values(), ids=CASES)
def test_the_error_says_what_was_expected_and_what_came(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
