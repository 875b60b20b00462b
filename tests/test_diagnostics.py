"""What the comparison graph leaves open is said; chains that have not mixed are seen."""

import sys

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ctem.bases import ProductBase
from ctem.matching.connectivity import components
from ctem.matching.kernels import (
    Comparison,
    Gaussian,
    Graph,
    Grid,
    HammingOne,
    Kernel,
    Mixture,
    OrnsteinUhlenbeck,
    Product,
    Redraw,
    Refresh,
    Sphere,
    Uniform,
)
from ctem.samplers.diagnostics import chain_diagnostics, ess_per_evaluation
from ctem.spaces import Angle, Category, Ordinal, Real, Space

SMALL = Space([Ordinal(5), Category(3), Ordinal(4)])
BOARD = Space([Ordinal(91), Ordinal(91)])
BITS = Space([Category(2)] * 40)
PLANE = Space([Real(), Real()])
MIXED = Space([Real(), Real(), Category(4)])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def path(space: Space) -> Graph:
    n = int(space.n_states)
    return Graph(space, torch.stack([torch.arange(n - 1), torch.arange(1, n)], -1))


def blobs(*centres: float, n: int = 200) -> torch.Tensor:
    """Round blobs of radius about 0.3 on the diagonal of PLANE."""
    return torch.cat([c + 0.1 * torch.randn(n, 2, generator=seeded(i)) for i, c in enumerate(centres)])


FINITE = {
    "grid": Grid(SMALL),
    "grid, one column": Grid(SMALL, [2]),
    "hamming": HammingOne(SMALL),
    "hamming, two columns": HammingOne(SMALL, [0, 1]),
    "redraw": Redraw(ProductBase(SMALL), [1]),
    "refresh": Refresh(ProductBase(SMALL), 0.5),
    "uniform": Uniform(SMALL),
    "uniform, two columns": Uniform(SMALL, [1, 2]),
    "graph": path(SMALL),
    "mixture": Mixture([Grid(SMALL, [0]), HammingOne(SMALL, [1])], [0.5, 0.5]),
}


@pytest.mark.filterwarnings("ignore:the comparison graph")
@pytest.mark.parametrize("n", [4, 8, 15, 30])
@pytest.mark.parametrize("name", FINITE)
def test_components_are_those_of_the_kernels_own_edges(name, n):
    kernel, states = FINITE[name], SMALL.states()
    x = states[torch.randperm(len(states), generator=seeded(n))[:n]].repeat(2, 1)
    edges, seen = kernel.edges(), SMALL.index(x)[:n].numpy()
    full = coo_array((np.ones(len(edges.source)), (edges.source, edges.target)), shape=(60, 60)).tocsr()
    count, labels = connected_components(full[seen][:, seen], directed=False)
    found = components(kernel, x)
    assert found.count == count
    assert torch.equal(found.labels[:n], found.labels[n:])
    same = labels[:, None] == labels[None]
    assert np.array_equal(same, (found.labels[:n, None] == found.labels[None, :n]).numpy())


def test_a_grid_over_three_islands_finds_three_and_says_what_is_lost():
    square = torch.cartesian_prod(torch.arange(5.0), torch.arange(5.0))
    x = torch.cat([square, square[:10] + 30, square[:20] + 60])
    message = r"falls into 3 components \(largest 25 rows\): log-density differences .* not identified"
    with pytest.warns(UserWarning, match=message) as caught:
        found = components(Grid(BOARD), x)
    assert found.count == 3
    assert found.labels.bincount().tolist() == [25, 20, 10]  # the largest first
    assert found.message == str(caught[0].message)


def test_uniform_comparisons_join_any_rows_alone_and_in_a_mixture():
    x = torch.tensor([[0.0, 0.0], [90.0, 90.0], [40.0, 3.0]])
    for kernel in (Uniform(BOARD), Mixture([Grid(BOARD), Uniform(BOARD)], [0.9, 0.1])):
        found = components(kernel, x)
        assert (found.count, found.message) == (1, "")
        assert found.labels.tolist() == [0, 0, 0]


@pytest.mark.parametrize("kernel", [HammingOne(BITS), Redraw(ProductBase(BITS))], ids=["hamming", "redraw"])
def test_two_islands_of_forty_bits_are_found(kernel):
    low = torch.tril(torch.ones(10, 40))  # each row has one more bit than the last
    high = 1 - torch.tril(torch.ones(8, 40))
    with pytest.warns(UserWarning, match="2 components"):
        found = components(kernel, torch.cat([low, high]))
    assert found.labels.tolist() == [0] * 10 + [1] * 8


@pytest.mark.parametrize("make", [Sphere, Gaussian])
def test_two_far_blobs_are_two_for_short_steps_and_one_for_long_ones(make):
    x = blobs(0.0, 4.0)
    with pytest.warns(UserWarning, match="2 components"):
        found = components(make(PLANE, 0.2), x)
    assert found.labels.tolist() == [0] * 200 + [1] * 200
    assert components(make(PLANE, 2.0), x).count == 1


def test_lone_rows_are_components_of_their_own():
    x = torch.cat([blobs(0.0), torch.tensor([[9.0, 9.0], [-9.0, 9.0], [-9.0, 9.1]])])
    with pytest.warns(UserWarning, match="3 components"):
        assert components(Sphere(PLANE, 0.1), x).labels.tolist() == [0] * 200 + [2] + [1] * 2


def test_two_steps_join_and_a_little_more_does_not():
    x = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    assert components(Sphere(PLANE, 0.5001), x).count == 1
    with pytest.warns(UserWarning, match="2 components"):
        components(Sphere(PLANE, 0.4999), x)


def test_a_full_redraw_of_reals_joins_everything():
    assert components(OrnsteinUhlenbeck(PLANE, 1.0), blobs(-50.0, 50.0)).count == 1
    with pytest.warns(UserWarning, match="2 components"):
        components(OrnsteinUhlenbeck(PLANE, 0.3), blobs(-5.0, 5.0))


def labelled() -> torch.Tensor:
    """Labels 0 and 1 over the same blob, label 2 over a far one."""
    label = torch.tensor([0.0, 1.0, 2.0]).repeat_interleave(100).unsqueeze(-1)
    return torch.cat([torch.cat([blobs(0.0), blobs(5.0, n=100)]), label], -1)


def test_a_kernel_that_holds_the_label_splits_by_label():
    with pytest.warns(UserWarning, match="3 components"):
        components(Sphere(MIXED, 0.2), labelled())


@pytest.mark.parametrize(
    "kernel",
    [
        Product(Sphere(MIXED, 0.2), HammingOne(MIXED)),
        Product(Sphere(MIXED, 0.2), Uniform(MIXED)),
        Mixture([Sphere(MIXED, 0.2), HammingOne(MIXED)], [0.5, 0.5]),
    ],
    ids=repr,
)
def test_moving_labels_too_joins_labels_over_one_place_but_not_places(kernel):
    with pytest.warns(UserWarning, match="2 components"):
        assert components(kernel, labelled()).labels.tolist() == [0] * 200 + [1] * 100


def test_a_product_of_free_labels_joins_all_rows_that_agree_elsewhere():
    space = Space([Category(3), Category(4), Category(2)])
    kernel = Product(HammingOne(space, [0]), HammingOne(space, [1]))
    x = torch.tensor([[0.0, 0, 0], [2.0, 3, 0], [1.0, 1, 1]])
    with pytest.warns(UserWarning, match="2 components"):
        assert components(kernel, x).labels.tolist() == [0, 0, 1]


def test_a_product_whose_graph_is_not_known_is_refused_by_name():
    space = Space([Real(), Ordinal(9)])
    with pytest.raises(ValueError, match=r"comparison graph of Product\(Sphere.* is not known"):
        components(Product(Sphere(space, 0.2), Grid(space)), torch.zeros(3, 2))


def test_rows_that_do_not_fit_the_kernel_are_refused():
    with pytest.raises(ValueError, match=r"x: expected shape \(n, 2\) with n ≥ 1; got \(3, 3\)"):
        components(Grid(BOARD), torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"got \(0, 2\)"):
        components(Grid(BOARD), torch.zeros(0, 2))


def test_r_hat_is_near_one_for_independent_draws_and_ess_near_their_number():
    trace = torch.randn(500, 4, 3, generator=seeded(1))
    found = chain_diagnostics(trace)
    assert ((found.r_hat - 1).abs() < 0.01).all()
    assert ((found.ess - 2000).abs() < 400).all()


def test_r_hat_sees_stuck_and_drifting_chains():
    trace = torch.randn(500, 4, 2, generator=seeded(2))
    trace[..., 0] += torch.arange(4.0)  # each chain in its own mode
    trace[..., 1] += torch.linspace(0, 4, 500).unsqueeze(-1)  # halves of a chain disagree
    found = chain_diagnostics(trace)
    assert (found.r_hat > 1.1).all()
    assert (found.ess < 100).all()


def test_columns_that_never_moved_have_infinite_r_hat_and_no_effective_samples():
    trace = torch.randn(100, 4, 3, generator=seeded(3))
    trace[..., 0] = 1.0  # the same everywhere
    trace[..., 1] = torch.arange(4.0)  # each chain where it started
    found = chain_diagnostics(trace)
    assert found.r_hat[:2].tolist() == [float("inf")] * 2
    assert found.ess[:2].tolist() == [0.0, 0.0]
    assert 0.9 < found.r_hat[2] < 1.1


def test_codes_and_rare_moves_give_numbers_not_nan():
    trace = torch.zeros(100, 4, 3)
    trace[..., 0] = (torch.rand(100, 4, generator=seeded(4)) < 0.5).float()
    trace[50:, 0, 1] = 1.0  # one chain moved once, between its halves
    trace[7, 2, 2] = 1.0
    found = chain_diagnostics(trace)
    assert not found.r_hat.isnan().any()
    assert not found.ess.isnan().any()
    assert found.r_hat[1] > 1.1


@pytest.mark.parametrize("shape", [(3, 4, 2), (100, 1, 2), (100, 4)])
def test_a_trace_too_short_to_judge_is_refused(shape):
    with pytest.raises(ValueError, match="trace: expected shape"):
        chain_diagnostics(torch.zeros(shape))


def test_nan_in_a_trace_is_refused():
    with pytest.raises(ValueError, match="finite"):
        chain_diagnostics(torch.full((10, 2, 1), torch.nan))


def test_without_arviz_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz_stats.base", None)
    with pytest.raises(ImportError, match=r"pip install ctem\[mcmc\]"):
        chain_diagnostics(torch.zeros(10, 2, 1))


def test_a_joint_kernel_joins_near_rows_of_any_label():
    two, plane = Space([Real(), Real(), Category(2)]), blobs(0.0, 4.0)
    label = torch.arange(len(plane)).remainder(2).float().unsqueeze(1)
    kernel = Product(Sphere(two, 2.0), HammingOne(two))
    assert components(kernel, torch.cat([plane, label], 1)).count == 1
    with pytest.warns(UserWarning, match="2 components"):
        found = components(Product(Sphere(two, 0.2), HammingOne(two)), torch.cat([plane, label], 1))
    assert found.labels.tolist() == [0] * 200 + [1] * 200


def test_a_joint_kernel_of_several_labels_joins_rows_that_share_a_comparison_and_no_others():
    space = Space([Real(), *[Category(2)] * 5])
    rows = torch.tensor([[0.0, 0, 0, 0, 0, 0], [0.1, 1, 1, 0, 0, 0], [0.0, 1, 1, 1, 1, 1]])
    kernel = Product(Gaussian(space, 0.5), HammingOne(space))
    with pytest.warns(UserWarning, match="2 components"):
        assert components(kernel, rows).labels.tolist() == [0, 0, 1]


def test_a_product_of_discrete_kernels_has_the_components_of_its_edges():
    space = Space([Category(2), Category(2)])  # both labels change at once: two diagonals
    kernel = Product(HammingOne(space, [0]), HammingOne(space, [1]))
    with pytest.warns(UserWarning, match="2 components"):
        assert components(kernel, space.states()).labels.tolist() == [0, 1, 1, 0]


class Box(Kernel):
    """A kernel as a user writes one: a step in a box."""

    def move(self, x, generator):
        u = torch.rand(x.shape, generator=generator, dtype=x.dtype)
        return Comparison(x + 2 * u - 1, x.new_zeros(x.shape[:-1]))


class Ranged(Box):
    radius = 2.5


def test_of_a_kernel_of_ones_own_components_says_what_it_cannot_know():
    with pytest.raises(
        ValueError, match=r"how far Box\(columns=.* reaches is not known: give its class a `radius`"
    ):
        components(Box(PLANE, PLANE.reals, "real"), blobs(0.0))
    with pytest.raises(
        ValueError, match=r"which rows Box\(columns=.* joins is not known: give its class `edges`"
    ):
        components(Box(SMALL, SMALL.discretes, "discrete"), SMALL.states())
    assert components(Ranged(PLANE, PLANE.reals, "real"), blobs(0.0, 2.0)).count == 1


def test_components_go_around_a_circle():
    space = Space([Angle()])
    assert components(Gaussian(space, 0.06), torch.tensor([[0.05], [6.25]])).count == 1


def test_effective_samples_for_an_evaluation_are_those_of_an_autoregression():
    g, a = torch.Generator().manual_seed(0), 0.8
    x, trace = torch.randn(64, 2, generator=g), []
    for _ in range(4000):
        x = a * x + (1 - a**2) ** 0.5 * torch.randn(64, 2, generator=g)
        trace.append(x)
    found = ess_per_evaluation(torch.stack(trace), 8000, g)
    assert found == pytest.approx((1 - a) / (1 + a) / 2, rel=0.1)
    assert ess_per_evaluation(torch.zeros(10, 3, 2), 10, g) == 0
