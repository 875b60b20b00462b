"""A density of sequences in any order."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ctem.densities.choices import choose
from ctem.densities.sequences.transformer import Transformer, pieces, token_count
from ctem.spaces import Space

__all__ = ["MaskedDensity"]


class MaskedDensity(nn.Module):
    r"""b(x) = mean over orders σ of Π_t b(x_σ(t) | x_σ(1) … x_σ(t−1)), the factors of a transformer that sees a mask.

    Normalised exactly for any set of orders. It is trained on all of them, by the nats of the tokens that a random
    visible set hides: a bound on −log b in a random order, and the loss of masked diffusion (MDLM).

    Arguments:
        space: of sequences, ``Space.sequence(tokens, length)``.
        orders: of the positions, (k, length), that ``log_prob`` and ``sample`` use; one at random by default.
        options: width, depth, heads, drop, seed and precision of the :class:`Transformer`.

    >>> space = Space.sequence(tokens=3, length=4)
    >>> density = MaskedDensity(space, width=8, depth=1, heads=2)
    >>> round(density.log_prob(space.states()).exp().sum().item(), 4)
    1.0
    >>> density.sample(5, torch.Generator().manual_seed(0)).shape
    torch.Size([5, 4])
    """

    orders: Tensor

    def __init__(self, space: Space, orders: Tensor | None = None, **options: Any):
        super().__init__()
        self.space, self.tokens = space, token_count(space)
        if orders is None:
            orders = torch.randperm(space.dim, generator=torch.Generator().manual_seed(0)).unsqueeze(0)
        if not bool((orders.sort(1).values == torch.arange(space.dim)).all()):
            raise ValueError(f"orders: expected permutations of 0 … {space.dim - 1}, (k, {space.dim}).")
        self.register_buffer("orders", orders)
        self.body = Transformer(self.tokens + 1, space.dim + 1, **options)  # the last code is the mask
        self.head = nn.Linear(self.body.width, self.tokens)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def logits(self, x: Tensor, visible: Tensor) -> Tensor:
        """Log-odds of every code at each position given the visible ones (n, length): (n, length, tokens), float32."""
        shown = torch.where(visible, x.long(), self.tokens)
        begun = torch.cat([torch.full_like(shown[:, :1], self.tokens), shown], 1)
        return self.head(self.body(begun)[:, 1:]).float()

    def loss(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Mean −log b of a hidden token; how many are visible is uniform on 0 … length − 1, evenly over the rows."""
        n, length = x.shape
        u = torch.rand(n, length + 1, generator=generator, device=x.device)
        part = torch.arange(n, device=x.device).unsqueeze(1)
        size = ((part + u[:, length:]) / n * length).floor().clamp(max=length - 1)
        visible = u[:, :length].argsort(-1).argsort(-1) < size
        nats = torch.where(visible, 0.0, -self._of_codes(self.logits(x, visible), x))
        return (nats.sum(-1) / (~visible).sum(-1)).mean()

    def log_prob(self, x: Tensor) -> Tensor:
        """log b of rows x (n, length), float64 of shape (n,), by a pass for every position and order."""
        sizes = pieces(len(x), 8 * self.space.dim * self.body.width, x.device)
        each = [torch.cat([self._in_order(part, order) for part in x.split(sizes)]) for order in self.orders]
        return torch.stack(each).logsumexp(0) - math.log(len(each))

    def _in_order(self, x: Tensor, order: Tensor) -> Tensor:
        visible = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for j in order.tolist():
            total = total + self._of_codes(self.logits(x, visible), x)[:, j]
            visible = visible.clone()
            visible[:, j] = True
        return total

    @staticmethod
    def _of_codes(logits: Tensor, x: Tensor) -> Tensor:
        return logits.log_softmax(-1).gather(2, x.long().unsqueeze(2)).squeeze(2)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n sequences (n, length), float32, each in one of the orders at random."""
        device, was = generator.device, self.training
        self.eval()
        sizes = pieces(n, 8 * self.space.dim * self.body.width, device)
        x = torch.cat([self._drawn(size, generator) for size in sizes])
        self.train(was)
        return x

    def _drawn(self, n: int, generator: torch.Generator) -> Tensor:
        device, row = generator.device, torch.arange(n, device=generator.device)
        order = self.orders[torch.randint(len(self.orders), (n,), generator=generator, device=device)]
        x = torch.zeros(n, self.space.dim, device=device)
        visible = torch.zeros(x.shape, dtype=torch.bool, device=device)
        for j in order.unbind(1):
            p = self.logits(x, visible)[row, j].softmax(-1)
            x[row, j] = choose(p, generator).float()
            visible[row, j] = True
        return x
