"""Trees as plain arrays: they answer as scikit-learn's, add up by column, and do no harm when they are strange."""

import numpy as np
import pytest
import sklearn
import torch

from ctem.densities.tilted import Trees, boosting
from ctem.densities.tilted.boosting import Boosting

SIZES = (0, 0, 0, 20, 0, 150)


def rows(n: int, shift: float, seed: int) -> np.ndarray:
    """Numbers, codes with and without gaps in their numbering, and missing cells."""
    rng = np.random.default_rng(seed)
    X = np.column_stack(
        [rng.normal(size=(n, 3)), rng.integers(7, size=n) * 2, rng.normal(size=n), rng.integers(120, size=n)]
    )
    X[:, 0] += shift * X[:, 1] * (X[:, 3] > 4)
    X[rng.random(n) < 0.1, 2] = np.nan
    X[rng.random(n) < 0.1, 3] = np.nan
    return X


@pytest.fixture(scope="module")
def learned():
    """Trees that tell two kinds of rows apart, and scikit-learn's model that they were taken from."""
    kept = []
    extracted = boosting._extracted

    def keep(model, order, known):
        kept.append((model, order, known))
        return extracted(model, order, known)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boosting, "_extracted", keep)
        trees = Boosting(SIZES, trees=60).ratio(rows(2000, 0.8, 0), rows(4000, 0.0, 1))
    return trees, kept[0]


@pytest.fixture(scope="module")
def trees(learned):
    return learned[0]


def test_trees_answer_as_scikit_learns_own_do(learned):
    """What is read of scikit-learn has no public name: where this fails, see boosting._extracted for this version."""
    trees, (model, order, known) = learned
    X = rows(3000, 0.4, 2)
    inputs = X[:, order].copy()
    for place, j in enumerate(known):
        there = ~np.isnan(inputs[:, place])
        inputs[there, place] = np.searchsorted(known[j], inputs[there, place])
    wanted = list(model.staged_decision_function(inputs))[trees.count - 1] + np.log(2)
    found = trees(torch.from_numpy(X)).numpy()
    assert trees.count > 5
    assert np.abs(found - wanted).max() < 1e-5, f"with scikit-learn {sklearn.__version__}"


def test_the_shares_of_the_columns_add_up(trees):
    x = torch.from_numpy(rows(200, 0.4, 3))
    assert torch.allclose(trees.shares(x).sum(1) + trees.centre, trees(x), atol=1e-5)


@pytest.mark.parametrize("j", [0, 3])
def test_a_profile_has_what_each_value_of_a_column_would_give(trees, j):
    x = torch.from_numpy(rows(40, 0.4, 4))
    profile = trees.profile(x, j)
    for value in (-0.7, 0.0, 2.0, 12.0, float("nan")):
        changed = x.clone()
        changed[:, j] = value
        bins = trees.binned(changed[:, j], j)
        assert torch.allclose(profile.gather(1, bins[:, None]).squeeze(1), trees(changed), atol=1e-6)


def test_a_row_has_the_same_value_alone_and_among_others(trees):
    x = torch.from_numpy(rows(300, 0.4, 5))
    assert torch.equal(torch.cat([trees(x[i : i + 1]) for i in range(20)]), trees(x)[:20])


def test_arrays_come_back_as_they_were(trees):
    again = Trees.of_tensors(trees.tensors(), SIZES, trees.bias)
    x = torch.from_numpy(rows(100, 0.4, 6))
    assert torch.equal(again(x), trees(x))


def test_strange_arrays_are_refused_or_give_finite_numbers(trees):
    rng, x = np.random.default_rng(0), torch.from_numpy(rows(50, 0.4, 7))
    refused = 0
    for _ in range(300):
        arrays = {name: value.clone() for name, value in trees.tensors().items()}
        name = rng.choice(list(arrays))
        flat = arrays[name].view(-1).view(torch.uint8)
        flat[rng.integers(len(flat))] ^= 1 << int(rng.integers(8))
        try:
            found = Trees.of_tensors(arrays, SIZES, 0.0)
        except ValueError as error:
            assert "trees:" in str(error)  # noqa: PT017
            refused += 1
            continue
        assert bool(found(x).isfinite().all())
        assert bool(found.shares(x).isfinite().all())
    assert refused > 30


@pytest.mark.parametrize("wrong", ["absent", "type", "shape", "more columns"])
def test_arrays_of_other_shapes_are_refused(trees, wrong):
    arrays, sizes = dict(trees.tensors()), list(SIZES)
    if wrong == "absent":
        del arrays["value"]
    elif wrong == "type":
        arrays["value"] = arrays["value"].double()
    elif wrong == "shape":
        arrays["leaves"] = arrays["leaves"][:, :-1]
    else:
        sizes.append(0)
    with pytest.raises(ValueError, match="trees:"):
        Trees.of_tensors(arrays, sizes, 0.0)
