"""The discrete experiments: fast tables agree with the library's exact loss, and everything smooth is normalised."""

import math

import pytest
import torch

from ctem import Grid, Ordinal, Space
from ctem.benchmarks.quantised import CELLS
from ctem.matching.losses import brier, concrete_score, exact_loss, score_entropy
from experiments.paper.grid_nets import Settings, draw_shifts, fit_mixtures, fit_nets, shifted
from experiments.paper.grids import (
    FOLDS,
    compared_cells,
    edge_gradient,
    fit_tables,
    histogram,
    own_grid,
    own_truth,
    smoothed,
    weighed_by_counts,
)

pytestmark = pytest.mark.long  # of the experiments, not of the library
SIZE = 7


def counts(seed=0, rows=60):
    generator = torch.Generator().manual_seed(seed)
    return histogram((torch.randn(rows, 2, generator=generator) * 1.3 + 3).round().clamp(0, SIZE - 1), SIZE)


@pytest.mark.parametrize("observed_only", [True, False])
@pytest.mark.parametrize("rule", [brier, score_entropy, concrete_score])
def test_compact_cells_give_the_gradient_of_the_exact_loss(rule, observed_only):
    p = torch.stack([counts(0), counts(1)])
    cells = compared_cells(p, observed_only)
    f = torch.randn(2, SIZE * SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    fast = torch.where(cells.real, edge_gradient(f.gather(1, cells.index)[None], cells, [rule])[0], 0.0)
    edges = Grid(Space([Ordinal(SIZE)] * 2), reach=1).edges()
    for k in range(2):
        q = p[k].flatten()
        seen = q[edges.source] > 0, q[edges.target] > 0
        kept = seen[0] & seen[1] if observed_only else seen[0] | seen[1]
        leaf = f[k].clone().requires_grad_()
        value = exact_loss(leaf, q, edges._replace(weight=edges.weight * kept), rule)
        slow = torch.autograd.grad(value, leaf)[0][cells.index[k]]
        assert torch.allclose(fast[k], torch.where(cells.real[k], slow, 0.0), atol=1e-12)


def test_a_free_table_becomes_the_histogram_once_its_islands_are_weighed():
    data = counts(rows=400)
    fitted = fit_tables(data[None], [brier, score_entropy], 1500, 1e-2, observed_only=True)[:, 0]
    for p in fitted:
        assert torch.allclose(weighed_by_counts(p, data), data, atol=2e-3)


def test_tables_with_and_without_unseen_cells_share_a_program():
    p = torch.stack([counts(0), counts(1)])
    both = fit_tables(p, [brier], 50, 5e-3, observed_only=torch.tensor([True, False]))[0]
    assert torch.allclose(both[0], fit_tables(p[:1], [brier], 50, 5e-3, observed_only=True)[0, 0])
    assert torch.allclose(both[1], fit_tables(p[1:], [brier], 50, 5e-3, observed_only=False)[0, 0])


def test_smoothing_keeps_the_mass_and_the_bandwidth_grows_when_rows_are_few():
    few = torch.stack([counts(seed, rows=6) for seed in range(5)])
    many = torch.stack([counts(seed, rows=4000) for seed in range(5)])
    assert float(smoothed(few)[0].sum()) == pytest.approx(1)
    assert smoothed(few)[1] > smoothed(many)[1]


def test_a_shift_moves_every_cell_to_a_cell_of_its_own_and_back():
    to, back = draw_shifts(SIZE, 5, 1.0, torch.Generator().manual_seed(0))
    assert all(sorted(row.tolist()) == list(range(SIZE * SIZE)) for row in to)
    assert bool((to.gather(1, back) == torch.arange(SIZE * SIZE)).all())


def test_the_gradient_of_a_shift_is_its_adjoint():
    to, back = draw_shifts(SIZE, 3, 2.0, torch.Generator().manual_seed(0))
    f = torch.randn(2, SIZE * SIZE, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda f: shifted(f, to, back), f)


def test_smooth_energies_are_normalised_and_beat_the_uniform_table():
    data = torch.stack([counts(0, 500), counts(1, 500)])
    fitted = fit_nets(data, data, Settings(width=8, steps=60, evaluate_every=20), seed=0)
    assert torch.allclose(fitted.p.sum((1, 2)), torch.ones(2, dtype=torch.float64))
    assert bool((fitted.nats < math.log(SIZE * SIZE)).all())


@pytest.mark.long
def test_mixtures_of_several_sets_are_normalised_and_keep_to_their_own_rows():
    generator = torch.Generator().manual_seed(0)
    codes = [(torch.randn(1000, 2, generator=generator) * 8 + centre).round() for centre in (25, 65)]
    folds = torch.stack([torch.stack([histogram(c[i::FOLDS], CELLS) for i in range(FOLDS)]) for c in codes])
    settings = Settings(width=16, steps=60, learning_rate=1e-2, shifts=4, evaluate_every=30)
    mixtures = fit_mixtures(folds, settings, "cpu")
    assert torch.allclose(mixtures.p.sum((1, 2)), torch.ones(2, dtype=torch.float64), atol=1e-5)
    assert bool((mixtures.nats < math.log(CELLS**2)).all())
    low = mixtures.p[:, :45, :45].sum((1, 2))
    assert low[0] > 0.5 > low[1]


def test_the_aligned_histogram_is_the_calibrated_one():
    p, truth = histogram(own_grid("8-Gaussians", 0), CELLS), own_truth("8-Gaussians", 0)
    assert float((p - truth).abs().sum()) / 2 == pytest.approx(0.077, abs=0.005)
