"""The discrete experiments: fast tables agree with the library's exact loss, and everything smooth is normalised."""

import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "experiments"))

from ctem import Grid, Ordinal, ProductBase, Space
from ctem.chain import Chain
from ctem.losses import brier, concrete_score, exact_loss, score_entropy
from grid_nets import Settings, WaveNet, _Shifted, draw_shifts, fit_nets
from grid_tables import compared_cells, fit_tables, histogram, smoothed, weighed_by_counts
from table2 import chain_table

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
    short = f.gather(1, cells.index).requires_grad_()
    gap = short.unsqueeze(1) - short.detach().gather(1, cells.neighbour.flatten(1)).view(2, 4, -1)
    loss = (cells.weight * rule(torch.cat([gap, -gap], 1))).sum()
    fast = torch.where(cells.real, torch.autograd.grad(loss, short)[0], 0.0)
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
    fitted = fit_tables(data[None], [brier, score_entropy], 6000, 5e-3, observed_only=True)[:, 0]
    for p in fitted:
        assert torch.allclose(weighed_by_counts(p, data), data, atol=2e-3)


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
    assert torch.autograd.gradcheck(lambda f: _Shifted.apply(f, to, back), f)


def test_smooth_energies_are_normalised_and_beat_the_uniform_table():
    data = torch.stack([counts(0, 500), counts(1, 500)])
    fitted = fit_nets(
        data, data, Settings(width=8, steps=60, evaluate_every=20), seed=0, progress=lambda text: None
    )
    assert torch.allclose(fitted.p.sum((1, 2)), torch.ones(2, dtype=torch.float64))
    assert bool((fitted.nats < math.log(SIZE * SIZE)).all())


def test_a_wave_net_is_blind_to_hidden_columns_and_its_members_are_themselves():
    base = ProductBase(Space([Ordinal(91), Ordinal(91)]))
    g = WaveNet(base, 3, width=8, depth=2, harmonics=2, seed=0)
    torch.nn.init.normal_(g.nets.last, generator=torch.Generator().manual_seed(0))
    x, other = torch.tensor([[5.0, 7.0]] * 3), torch.tensor([[5.0, 80.0]] * 3)
    hidden = torch.tensor([[0.0, math.inf]] * 3)
    assert torch.equal(g(x, hidden), g(other, hidden))
    assert torch.equal(g(x, torch.full((3, 2), math.inf)), torch.zeros(3))
    alone = torch.cat([g.member(k)(x[:1], hidden[:1]) for k in range(3)])
    assert torch.allclose(alone, g(x, hidden), atol=1e-6)
    assert float(chain_table(Chain(g.member(0), base)).detach().sum()) == pytest.approx(1, abs=1e-5)
