"""What training needs of its device: threads that help, a dropout state, CUDA graphs, forks that do not hang."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

__all__ = ["DropoutState", "StepGraph", "single_thread_after_fork", "threads_that_help"]

TRIALS, ROUNDS = 10, 3  # products in a row, by several threads and by one in turn
SLOWER = 1.5  # times as long as one thread, from which on several are in each other's way


@contextmanager
def threads_that_help() -> Iterator[None]:
    """Within, torch has its threads if they help at the moment, else one.

    Threads wait for each other after every operation. Where another program has one of the processors, each of these
    waits is long, and two threads take many times as long as one.

    >>> before = torch.get_num_threads()
    >>> with threads_that_help():
    ...     torch.get_num_threads() in (1, before)
    True
    >>> torch.get_num_threads() == before
    True
    """
    threads = torch.get_num_threads()
    try:
        if threads > 1:
            several, one = map(sum, zip(*((_trial(threads), _trial(1)) for _ in range(ROUNDS)), strict=True))
            torch.set_num_threads(1 if several > SLOWER * one else threads)
        yield
    finally:
        torch.set_num_threads(threads)


def _trial(threads: int) -> float:
    """Seconds of some products, as large as those of a step of training, by so many threads."""
    torch.set_num_threads(threads)
    rows, weights = torch.ones(2, 512, 128), torch.ones(2, 128, 128)
    torch.bmm(rows, weights).tanh_()
    began = time.perf_counter()
    for _ in range(TRIALS):
        torch.bmm(rows, weights).tanh_()
    return time.perf_counter() - began


@cache
def single_thread_after_fork() -> None:
    """From now on, a process that is forked from this one computes with one thread, as torch's own workers do.

    The threads of torch, and of scikit-learn's trees, do not exist in a forked child, which would wait for them without
    end. Answers are the same with any number of threads.

    >>> single_thread_after_fork()
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_single_thread)


def _single_thread() -> None:
    torch.set_num_threads(1)
    threadpool_limits(1, user_api="openmp")


class DropoutState:
    """Dropout draws from torch's global generator: within ``with``, that is ours, and outside it is untouched.

    >>> before = torch.get_rng_state()
    >>> with DropoutState(torch.device("cpu"), seed=0):
    ...     dropped = torch.nn.Dropout(0.5)(torch.ones(4))
    >>> bool((torch.get_rng_state() == before).all())
    True
    """

    def __init__(self, device: torch.device, seed: int):
        self.device = device
        self.state = torch.Generator(device).manual_seed(seed).get_state()

    def __enter__(self) -> None:
        self.outside = self._get()
        self._set(self.state)

    def __exit__(self, *error: object) -> None:
        self.state = self._get()
        self._set(self.outside)

    def _get(self) -> Tensor:
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()

    def _set(self, state: Tensor) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state, self.device)
        else:
            torch.set_rng_state(state)


class StepGraph:
    """One training step captured on a CUDA device, replayed without the cost of launching it.

    The step must not wait for the device or copy to it, and its shapes must not depend on data.

    >>> if torch.cuda.is_available():
    ...     generator = torch.Generator("cuda")
    ...     step = StepGraph(lambda: torch.rand((), generator=generator, device="cuda"), generator)
    ...     assert float(step.replay()) != float(step.replay())
    """

    def __init__(self, update: Callable[[], Tensor], *generators: torch.Generator):
        self.graph = torch.cuda.CUDAGraph()
        for generator in generators:
            self.graph.register_generator_state(generator)
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.loss = update()

    def replay(self) -> Tensor:
        """Run the step; its loss."""
        self.graph.replay()
        return self.loss.clone()
