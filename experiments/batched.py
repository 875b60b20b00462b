"""Many small models trained as one program: parameters (members, P) in one tensor, one CUDA graph for a step.

A member is an MLP with its own rows, comparison scale and kernel; all members of a program share the shape of the
network and the recipe. Batches and comparisons of all members are drawn at once on the device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu

from ctem import Recipe, brier
from ctem.capture import StepGraph

HELD_OUT_COMPARISONS = 16  # per held-out row, the same at every evaluation
BETAS = (0.9, 0.999)

Draw = Callable[[Tensor, torch.Generator], Tensor]  # parameters (K, P) → loss of every member (K,)


class Networks:
    """MLPs of one shape, f_k(x) = SiLU(… SiLU(x W₁ + b₁) …) w, as products of (K, in, out) weights.

    Initialised as torch does it, U(±1/√in). There is no last bias: a constant drops out of every gap. With ``squares``
    the first layer sees x_j²/(1 + x_j²/9) − 1 too: the scale of a column at no cost, and bounded, so that a base
    measure keeps its tails.
    """

    def __init__(self, inputs: int, width: int, depth: int = 3, squares: bool = False):
        self.inputs, self.width, self.squares = inputs, width, squares
        first = 2 * inputs if squares else inputs
        hidden = [shape for a, b in pairwise([first] + [width] * depth) for shape in ((a, b), (1, b))]
        self.shapes = [*hidden, (width, 1)]
        self.lengths = [a * b for a, b in self.shapes]

    def initial(self, seeds: Sequence[int]) -> Tensor:
        """Parameters (K, P), one seed a member."""
        fans = [a for a, _ in self.shapes]
        fans = [fans[i - 1] if i % 2 else fan for i, fan in enumerate(fans)]  # a bias has its weight's fan
        bound = torch.cat([torch.full((n,), fan**-0.5) for n, fan in zip(self.lengths, fans, strict=True)])
        uniform = [torch.rand(len(bound), generator=torch.Generator().manual_seed(s)) for s in seeds]
        return (2 * torch.stack(uniform) - 1) * bound

    def __call__(self, parameters: Tensor, x: Tensor) -> Tensor:
        """f of parameters (K, P) at rows (K, n, d), shape (K, n)."""
        if self.squares:
            square = x.square()
            x = torch.cat([x, square / (1 + square / 9) - 1], dim=-1)
        parts = parameters.split(self.lengths, dim=1)
        *hidden, last = [p.view(len(p), *s) for p, s in zip(parts, self.shapes, strict=True)]
        for weight, bias in zip(hidden[::2], hidden[1::2], strict=True):
            x = silu(torch.baddbmm(bias, x, weight))
        return torch.bmm(x, last).squeeze(-1)


@dataclass(frozen=True, kw_only=True)
class Member:
    """What one network is trained on.

    Arguments:
        x: encoded training rows (n, d).
        scale: ε of its kernel y = x − 2εu, in encoded units; not used where the comparisons have ``rates``.
        sphere: u on the unit sphere; else u ~ N(0, I).
        held_out: encoded rows for the held-out loss; without them it is measured on training rows.
        weight_decay: decoupled.
        seed: of the first weights.
    """

    x: Tensor
    scale: float = 0.0
    sphere: bool = False
    held_out: Tensor | None = None
    weight_decay: float = 0.0
    seed: int = 0


class Pairs:
    """The comparisons of all members and their loss, the mean of ℓ over a batch.

    Without ``rates`` a member's kernel is the paper's, y = x − 2εu, and its network is log ρ + C. With ``rates`` it is
    y = √(1−β²) x + βξ, which N(0, I) makes reversible: the base cancels in the gap, and the network is
    g = log(ρ/N(0, I)) + C, so that f = −|x|²/2 + g has integrable tails whatever g is.

    Arguments:
        networks, members: what is trained, and on what.
        rates: β of the comparisons, in turn.
        comparisons: m for each row, an even number: u and −u.
        rule: ℓ.
    """

    def __init__(
        self,
        networks: Networks,
        members: Sequence[Member],
        device: str,
        *,
        rates: Sequence[float] = (),
        batch_size: int = 256,
        comparisons: int = 4,
        rule: Callable[[Tensor], Tensor] = brier,
    ):
        self.networks, self.rule, self.batch_size, self.comparisons = networks, rule, batch_size, comparisons
        self.counts = torch.tensor([[float(len(m.x))] for m in members], device=device)
        self.rows = torch.nn.utils.rnn.pad_sequence([m.x for m in members], batch_first=True).to(device)
        held = [m.x if m.held_out is None else m.held_out for m in members]
        least = min(len(h) for h in held)
        self.held_out = torch.stack([h[:least] for h in held]).to(device)
        self.scale = torch.tensor([m.scale for m in members], device=device).view(-1, 1, 1, 1)
        self.sphere = torch.tensor([m.sphere for m in members], device=device).view(-1, 1, 1, 1)
        self.rates = {m: _in_turn(rates, m, device) for m in (comparisons, HELD_OUT_COMPARISONS) if rates}
        fixed = torch.Generator(device).manual_seed(1)
        self.fixed = self.directions(self.held_out, HELD_OUT_COMPARISONS, fixed, shared=True)

    def __call__(self, parameters: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of every member on a fresh batch (K,)."""
        k, _, d = self.rows.shape
        u = torch.rand(k, self.batch_size, generator=generator, device=self.rows.device)
        index = (u * self.counts).long().unsqueeze(-1).expand(-1, -1, d)
        x = self.rows.gather(1, index)
        return self.loss(parameters, x, self.directions(x, self.comparisons, generator))

    def held_out_loss(self, parameters: Tensor) -> Tensor:
        """The loss of every member on its held-out rows (K,), with the same comparisons every time."""
        return self.loss(parameters, self.held_out, self.fixed)

    def directions(self, x: Tensor, m: int, generator: torch.Generator, shared: bool = False) -> Tensor:
        """u for every row of x (K, n, d), antithetic, (K, m, n, d); ``shared`` gives all members the same."""
        k, n, d = x.shape
        u = torch.randn(1 if shared else k, m // 2, n, d, generator=generator, device=x.device)
        u = torch.where(self.sphere, torch.nn.functional.normalize(u, dim=-1), u)
        return torch.cat([u, -u], dim=1)

    def comparison(self, x: Tensor, u: Tensor) -> Tensor:
        """y for rows x (K, 1, n, d) and directions u (K, m, n, d)."""
        if not self.rates:
            return x - 2 * self.scale * u
        beta = self.rates[u.shape[1]]
        return (1 - beta**2).sqrt() * x + beta * u

    def loss(self, parameters: Tensor, x: Tensor, u: Tensor) -> Tensor:
        """Mean of ℓ over rows x (K, n, d) and directions u (K, m, n, d)."""
        k, n, d = x.shape
        x = x.unsqueeze(1)
        both = torch.cat([x, self.comparison(x, u)], dim=1)
        f = self.networks(parameters, both.reshape(k, -1, d)).view(k, -1, n)
        return self.rule(f[:, :1] - f[:, 1:]).mean((1, 2))


def _in_turn(rates: Sequence[float], m: int, device: str) -> Tensor:
    """The rate of each of m comparisons; u and −u share one."""
    half = [rates[j % len(rates)] for j in range(m // 2)]
    return torch.tensor(half * 2, device=device).view(1, m, 1, 1)


class Trained(NamedTuple):
    """What a program left: one entry per evaluation, E of them."""

    steps: list[int]
    held_out: Tensor  # (E, K) on the cpu
    parameters: Tensor  # (E, K, P) on the device
    seconds: float


class Program:
    """Adam on parameters (K, P), every member by itself; a step is captured once on a CUDA device.

    Arguments:
        start: first parameters (K, P).
        loss: losses (K,) of fresh batches.
        recipe: shared by all members; its weight decay is replaced by ``weight_decay``.
        weight_decay: decoupled, (K,) or one number.
    """

    def __init__(self, start: Tensor, loss: Draw, recipe: Recipe, weight_decay: Tensor | float = 0.0):
        self.parameters = start.clone().requires_grad_()
        self.loss, self.recipe, self.weight_decay = loss, recipe, weight_decay
        self.average = start.clone()
        self.mean, self.square = torch.zeros_like(start), torch.zeros_like(start)
        self.taken = torch.zeros((), dtype=torch.float64, device=start.device)
        self.generator = torch.Generator(start.device).manual_seed(recipe.seed)
        self.graph: StepGraph | None = None

    def run(self, held_out: Callable[[Tensor], Tensor] | None = None) -> Trained:
        """Train to the end, keeping the (averaged) parameters at every evaluation."""
        began, recipe = time.perf_counter(), self.recipe
        steps, values, kept = [], [], []
        for step in range(1, recipe.steps + 1):
            loss = self._step(step)
            if step % recipe.evaluate_every == 0 or step == recipe.steps:
                self._check(loss, step)
                steps.append(step)
                kept.append(self.average.clone())
                if held_out is not None:
                    with torch.no_grad():
                        values.append(held_out(self.average).cpu())
        held = torch.stack(values) if values else torch.zeros(len(steps), 0)
        return Trained(steps, held, torch.stack(kept), time.perf_counter() - began)

    def _step(self, step: int) -> Tensor:
        if not self.parameters.is_cuda or step <= 3:  # torch wants a few plain steps before a capture
            return self._update()
        if self.graph is None:
            self.graph = StepGraph(self._update, self.generator)
        return self.graph.replay()

    def _update(self) -> Tensor:
        with fast_products():  # a captured step keeps them
            losses = self.loss(self.parameters, self.generator)
            (grad,) = torch.autograd.grad(losses.sum(), self.parameters)
        with torch.no_grad():
            self._adam(self._clipped(grad))
        return losses.detach()

    def _clipped(self, grad: Tensor) -> Tensor:
        if self.recipe.clip is None:
            return grad
        norm = grad.norm(dim=1, keepdim=True)
        return grad * (self.recipe.clip / norm.clamp(min=self.recipe.clip))

    def _adam(self, grad: Tensor) -> None:
        recipe, (a, b) = self.recipe, BETAS
        rate = recipe.learning_rate * self._relative_rate()
        self.taken += 1
        self.mean.lerp_(grad, 1 - a)
        self.square.mul_(b).addcmul_(grad, grad, value=1 - b)
        unbias = ((1 - b**self.taken).sqrt() / (1 - a**self.taken)).float()
        root = self.square.sqrt().add_(1e-8 * (1 - b**self.taken).sqrt().float())
        self.parameters.mul_(1 - rate * self._decay())
        self.parameters.sub_(rate * unbias * self.mean / root)
        self.average.lerp_(self.parameters, 1 - recipe.ema)

    def _relative_rate(self) -> Tensor:
        if self.recipe.schedule == "constant":
            return torch.ones_like(self.taken, dtype=torch.float32)
        return (0.5 * (1 + torch.cos(math.pi * self.taken / self.recipe.steps))).float()

    def _decay(self) -> Tensor | float:
        return self.weight_decay.unsqueeze(-1) if isinstance(self.weight_decay, Tensor) else self.weight_decay

    def _check(self, loss: Tensor, step: int) -> None:
        bad = (~loss.isfinite()).nonzero().flatten().tolist()
        if bad:
            rate = self.recipe.learning_rate
            raise FloatingPointError(
                f"loss of members {bad} is not finite at step {step} (learning_rate={rate:g}); "
                "try a smaller learning rate."
            )


def train(networks: Networks, members: Sequence[Member], pairs: Pairs, recipe: Recipe) -> Trained:
    """Train all members from their own seeds, and measure the held-out loss on the way."""
    device = pairs.rows.device
    start = networks.initial([m.seed for m in members]).to(device)
    decay = torch.tensor([m.weight_decay for m in members], device=device)
    return Program(start, pairs, recipe, decay).run(pairs.held_out_loss)


@contextmanager
def fast_products():
    """TF32 products within; outside, products are as exact as they were."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
