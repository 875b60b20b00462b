"""What a training step needs of its device: a dropout state of its own, and capture as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["DropoutState", "StepGraph"]


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

    def __init__(self, update: Callable[[], Tensor], generator: torch.Generator):
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(generator)
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.loss = update()

    def replay(self) -> Tensor:
        """Run the step; its loss."""
        self.graph.replay()
        return self.loss.clone()
