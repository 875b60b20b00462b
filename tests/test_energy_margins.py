"""The last part of an energy: draws, weighted by it, have the margins of the data, and nothing is made up of chance."""

import numpy as np
import pytest
import torch

from ctem.densities.tilted.margins import levelled

SIZES = (0, 0, 3, 100)


def rows(n, shift, seed):
    """A normal number, a skewed one with gaps, three codes and a hundred, all of another law if shifted."""
    rng = np.random.default_rng(seed)
    skewed = np.where(rng.random(n) < 0.1 + 0.1 * shift, np.nan, rng.lognormal(shift, 1, n))
    few = rng.choice(3, n, p=np.array([1, 1 + shift, 1]) / (3 + shift))
    many = np.minimum(rng.geometric(0.05 * (1 + shift), n), 100) - 1
    return torch.from_numpy(np.column_stack([rng.normal(shift, 1, n), skewed, few, many]))


def shares(x, weight, sizes=SIZES):
    """Of every column, weighted shares of 20 parts of a number, of its gaps, or of codes below 20."""
    ends = np.quantile(rows(100_000, 0.0, 9)[:, 0], np.linspace(0, 1, 21)[1:-1])
    for j, size in enumerate(sizes):
        value = x[:, j].numpy()
        part = value if size else np.searchsorted(np.exp(ends) if j else ends, value)
        part = np.where(np.isnan(value), 20, part).astype(int)
        yield np.bincount(part, weight, minlength=21)[:21] / weight.sum()


def test_weighted_draws_have_the_margins_of_the_data():
    data, drawn, other = rows(40_000, 0.0, 0), rows(40_000, 0.4, 1), rows(40_000, 0.4, 2)
    trees = levelled(data, drawn, torch.zeros(len(drawn)), SIZES)
    assert trees.count == len(SIZES)
    weight = trees(other).exp().numpy()
    after = list(zip(shares(data, np.ones(len(data))), shares(other, weight), strict=True))
    before = zip(shares(data, np.ones(len(data))), shares(other, np.ones(len(other))), strict=True)
    assert max(np.abs(a - b).sum() for a, b in after) < 0.08
    assert min(np.abs(a - b).sum() for a, b in before) > 0.1


def test_weights_of_rows_and_draws_count():
    both = torch.cat([rows(20_000, 0.0, 0), rows(20_000, 0.4, 1)])
    weight = torch.cat([torch.ones(20_000), torch.zeros(20_000)]).double()
    trees = levelled(both, both, (weight + 1e-9).log(), SIZES, weight=weight)
    assert float(trees(both)[:20_000].abs().max()) < 0.2
    trees = levelled(both, both, torch.zeros(len(both)), SIZES, weight=weight)
    assert trees.count == len(SIZES)


@pytest.mark.parametrize("seed", range(3))
def test_margins_that_are_right_are_left_alone(seed):
    trees = levelled(rows(20_000, 0.0, seed), rows(20_000, 0.0, 10 + seed), torch.zeros(20_000), SIZES)
    change = trees(rows(20_000, 0.0, 20 + seed))
    assert float(change.abs().mean()) < 0.02


def test_no_cell_of_rounded_values_is_divided():
    data, drawn = rows(5000, 0.0, 0).round(), rows(5000, 0.5, 1).round()
    trees = levelled(data, drawn, torch.zeros(5000), SIZES, recut=lambda j, cuts: (cuts - 0.5).round() + 0.5)
    assert bool(torch.equal(trees.cuts, trees.cuts.floor() + 0.5))


def test_margins_are_those_of_weights_that_are_cut():
    """Where a ceiling cuts a fifth of all weight, one label above all, the others make up for it."""
    data, drawn = (torch.from_numpy(np.random.default_rng(k).random(40_000) < 0.3).double() for k in (0, 1))
    tilt = 2 * drawn + torch.from_numpy(np.random.default_rng(2).normal(size=40_000))
    g, highest = tilt.clamp_max(2.0), 2.0
    trees = levelled(data.unsqueeze(1), drawn.unsqueeze(1), g, [2], highest=highest)
    weight = (g + trees(drawn.unsqueeze(1))).clamp_max(highest).exp()
    before, after = (float((w * drawn).sum() / w.sum()) for w in (g.exp(), weight))
    assert abs(float(data.mean()) - after) < 0.02 < 0.2 < before - float(data.mean())
