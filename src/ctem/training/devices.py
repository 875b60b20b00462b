"""What training needs of its device: a dropout state of its own, capture as a CUDA graph, forks that do not hang."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

__all__ = ["DropoutState", "StepGraph", "single_thread_after_fork"]


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
