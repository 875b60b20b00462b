"""Parts side by side: the same bits with any number of threads, and torch's own number of threads afterwards."""

import numpy as np
import pytest
import torch
from small import SMALL

from ctem import CTEM
from ctem.training import Recipe, train
from ctem.training.threads import all_threads, of_one_part, side_by_side


@pytest.fixture(params=[1, 2, 5])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_jobs_return_in_their_order_with_their_share_of_the_threads(threads):
    with side_by_side(2) as together:
        found = together([lambda k=k: (k, torch.get_num_threads(), all_threads()) for k in range(5)])
    share = threads if threads < 2 else threads // 2
    assert found == [(k, share, share) for k in range(5)]
    assert torch.get_num_threads() == all_threads() == threads


def test_within_one_part_jobs_side_by_side_have_all_threads(threads):
    with of_one_part():
        assert torch.get_num_threads() == max(1, threads // 2)
        assert all_threads() == threads
        with side_by_side(2) as together:
            assert together([torch.get_num_threads, torch.get_num_threads]) == [max(1, threads // 2)] * 2
    assert torch.get_num_threads() == threads


def test_an_error_in_a_job_is_raised_and_the_threads_are_as_before(threads):
    def fails():
        raise ValueError("of the job")

    with pytest.raises(ValueError, match="of the job"), side_by_side(2) as together:
        together([fails, lambda: 1])
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("grad", [True, False])
def test_jobs_have_gradients_where_their_caller_has(threads, grad):
    with torch.set_grad_enabled(grad), side_by_side(2) as together:
        assert together([torch.is_grad_enabled] * 2) == [grad] * 2


class Line(torch.nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.slope, self.unused = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.ones(1))
        self.drop = torch.nn.Dropout(dropout)

    def forward(self, x):
        return self.drop(x) @ self.slope


def squared(f, x, generator):
    return (f(x) - x.sum(1) - torch.randn(len(x), generator=generator)).square().mean()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_parts_of_a_batch_give_the_same_weights_with_any_number_of_threads(dropout):
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    weights, before = [], torch.get_num_threads()
    for count in (1, 2, 4):
        torch.set_num_threads(count)
        f = Line(dropout)
        train(f, squared, x, Recipe(steps=40, shards=4, evaluate_every=20, learning_rate=0.1))
        weights.append(f.slope.detach().clone())
        assert f.unused.item() == 1
    torch.set_num_threads(before)
    assert all(torch.equal(weights[0], other) for other in weights[1:])
    assert weights[0].min() > 0.3  # of 1, or of a half with dropout


def test_fits_scores_and_draws_are_the_same_with_one_thread_and_two():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=900), rng.integers(3, size=900)])
    X[:, 0] += X[:, 1]
    answers, before = [], torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        model = CTEM(**SMALL).fit(X)
        answers.append(np.column_stack([model.score_samples(X), model.sample(900, random_state=1)]))
    torch.set_num_threads(before)
    np.testing.assert_array_equal(*answers)
