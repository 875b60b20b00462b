"""AdamW as one fused operation over all parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ctem.training.borrowed import each_add_, fused_adamw_

__all__ = ["AdamW"]

BETAS, EPSILON = (0.9, 0.999), 1e-8


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), by the kernel behind ``torch.optim.AdamW``.

    The first optimiser of ``torch.optim`` in a process imports torch's compiler, which takes seconds: as long as the
    fit of a small table. A parameter without a gradient stays as it is.

    Arguments:
        parameters: to update in place.
        rate: the learning rate, a number on their device that may change between steps.
        weight_decay: relative to the rate.

    >>> p = nn.Parameter(torch.ones(2))
    >>> optimizer = AdamW([p], torch.tensor(0.1), weight_decay=0.0)
    >>> (p * torch.tensor([3.0, -5.0])).sum().backward()
    >>> optimizer.step()
    >>> p.data  # a first step is as long as the rate
    tensor([0.9000, 1.1000])
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: Tensor, weight_decay: float):
        self.parameters, self.rate, self.weight_decay = list(parameters), rate, weight_decay
        self.mean = [torch.zeros_like(p) for p in self.parameters]
        self.square = [torch.zeros_like(p) for p in self.parameters]
        self.steps = [rate.new_zeros((), dtype=torch.float32) for _ in self.parameters]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One update of every parameter that has a gradient."""
        grads = {i: p.grad for i, p in enumerate(self.parameters) if p.grad is not None}
        if not grads:
            return
        mean, square, steps = ([kept[i] for i in grads] for kept in (self.mean, self.square, self.steps))
        each_add_(steps, 1)
        fused_adamw_(
            [self.parameters[i] for i in grads],
            list(grads.values()),
            mean,
            square,
            [],
            steps,
            lr=self.rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=self.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def state(self) -> dict[str, Tensor]:
        """What the next steps depend on, by name."""
        kept = {"mean": self.mean, "square": self.square, "step": self.steps}
        return {f"{name}.{i}": value for name, values in kept.items() for i, value in enumerate(values)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Undo ``state``."""
        for name, value in self.state().items():
            value.copy_(state[name])
