"""A density of sequences from left to right."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ctem.densities.choices import choose
from ctem.densities.sequences.transformer import Transformer, begun, pieces, token_count
from ctem.spaces import Space

__all__ = ["CausalDensity"]


class CausalDensity(nn.Module):
    r"""b(x) = Π_t b(x_t | x_1 … x_{t−1}), each factor a softmax of a causal transformer's features.

    Normalised exactly, scored in one pass, drawn from in as many as there are positions.

    Arguments:
        space: of sequences, ``Space.sequence(tokens, length)``.
        options: width, depth, heads, drop, seed and precision of the :class:`Transformer`.

    >>> space = Space.sequence(tokens=3, length=4)
    >>> density = CausalDensity(space, width=8, depth=1, heads=2)
    >>> round(density.log_prob(space.states()).exp().sum().item(), 4)
    1.0
    >>> density.sample(5, torch.Generator().manual_seed(0)).shape
    torch.Size([5, 4])
    """

    def __init__(self, space: Space, **options: Any):
        super().__init__()
        self.space, self.tokens = space, token_count(space)
        # one more code, for the beginning, and one more place, so that an energy can take the same body
        self.body = Transformer(self.tokens + 1, space.dim + 1, causal=True, **options)
        self.head = nn.Linear(self.body.width, self.tokens)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def logits(self, x: Tensor) -> Tensor:
        """Log-odds of every code at each position given those before, (n, length, tokens), float32."""
        earlier = torch.cat([torch.full_like(x[:, :1], self.tokens), x[:, :-1]], 1)
        return self.head(self.body(earlier)).float()

    def loss(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Mean −log b of a token; the generator is not needed."""
        return cross_entropy(self.logits(x).flatten(0, 1), x.long().flatten())

    def log_prob(self, x: Tensor) -> Tensor:
        """log b of rows x (n, length), float64 of shape (n,)."""
        sizes = pieces(len(x), 8 * self.space.dim * self.body.width, x.device)
        return torch.cat([self._log_prob(part) for part in x.split(sizes)])

    def _log_prob(self, x: Tensor) -> Tensor:
        log_p = self.logits(x).log_softmax(-1)
        return log_p.gather(2, x.long().unsqueeze(2)).squeeze(2).double().sum(1)

    def on_features(self, h: Tensor) -> Tensor:
        """log b as a function of ``space.features(x)``, for samplers that follow its gradient; float32 (n,)."""
        codes = begun(h, self.tokens)
        log_p = self.head(self.body(codes[:, :-1])).float().log_softmax(-1)
        return (log_p * codes[:, 1:, :-1]).sum((1, 2))

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator, given: Tensor | None = None) -> Tensor:
        """n sequences (n, length), float32.

        Arguments:
            n: how many.
            generator: the randomness, on the device of the weights.
            given: how each begins, (n, k) or (1, k); nothing by default.
        """
        known = torch.empty(n, 0, device=generator.device) if given is None else given.to(generator.device)
        known, was = known.expand(n, -1), self.training
        sizes = pieces(n, self.body.depth * self.space.dim * self.body.width, generator.device)
        self.eval()
        drawn = torch.cat([self._continued(part, generator) for part in known.split(sizes)])
        self.train(was)
        return drawn

    def _continued(self, known: Tensor, generator: torch.Generator) -> Tensor:
        start = torch.full((len(known), 1), self.tokens, device=known.device)
        memories, x, new = self.body.memories(), known.float(), torch.cat([start, known.long()], 1)
        for _ in range(self.space.dim - known.shape[1]):
            p = self.head(self.body(new, memories)[:, -1]).float().softmax(-1)
            new = choose(p, generator).unsqueeze(1)
            x = torch.cat([x, new.float()], 1)
        return x
