"""Threads are taken where they help: by a clock of the test, which says how long they take."""

import pytest
import torch

from ctem.training import devices
from ctem.training.devices import threads_that_help


@pytest.fixture(autouse=True)
def _threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("seconds", "within"), [({3: 1.0, 1: 2.0}, 3), ({3: 9.0, 1: 2.0}, 1), ({3: 2.5, 1: 2.0}, 3)]
)
def test_several_threads_are_taken_unless_they_are_in_each_others_way(monkeypatch, seconds, within):
    monkeypatch.setattr(devices, "_trial", seconds.__getitem__)
    torch.set_num_threads(3)
    with threads_that_help():
        assert torch.get_num_threads() == within
    assert torch.get_num_threads() == 3
    with pytest.raises(ZeroDivisionError), threads_that_help():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 3


def test_a_single_thread_is_not_tried(monkeypatch):
    monkeypatch.setattr(devices, "_trial", lambda threads: pytest.fail("tried"))
    torch.set_num_threads(1)
    with threads_that_help():
        assert torch.get_num_threads() == 1


def test_a_trial_takes_time_with_any_number_of_threads():
    assert all(devices._trial(count) > 0 for count in (1, 2))
