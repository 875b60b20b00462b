"""An energy of sequences that sees them from both sides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ctem.densities.sequences.causal import CausalDensity
from ctem.densities.sequences.masked import MaskedDensity
from ctem.densities.sequences.transformer import Transformer, begun, pieces, token_count
from ctem.spaces import Space

__all__ = ["SequenceNet"]


class SequenceNet(nn.Module):
    """g(x) of whole sequences: a linear function of a bidirectional transformer's features, zero at first.

    With a density of sequences as base it makes a tilted density, ``EnergyModel(space, net=net, base=density)``,
    learned by the paper's loss on pairs of rows and draws.

    Arguments:
        space: of sequences, ``Space.sequence(tokens, length)``.
        options: width, depth, heads, drop, seed and precision of the :class:`Transformer`.

    >>> SequenceNet(Space.sequence(tokens=3, length=4), width=8, depth=1, heads=2)(torch.zeros(2, 4)).tolist()
    [0.0, 0.0]
    """

    def __init__(self, space: Space, **options: Any):
        super().__init__()
        self.space, self.tokens = space, token_count(space)
        self.body = Transformer(self.tokens + 1, space.dim + 1, **options)
        self.head = nn.Linear(2 * self.body.width, 1, bias=False)
        nn.init.zeros_(self.head.weight)

    @classmethod
    def of(cls, density: CausalDensity | MaskedDensity, **options: Any) -> SequenceNet:
        """A net with the size and the weights of a density's body, from which it learns faster than from none.

        >>> base = CausalDensity(Space.sequence(tokens=3, length=4), width=8, depth=1, heads=2)
        >>> bool((SequenceNet.of(base).body.code.weight == base.body.code.weight).all())
        True
        """
        body = density.body
        size = {"width": body.width, "depth": body.depth, "heads": body.blocks[0].heads}
        net = cls(density.space, **size, precision=body.precision, **options)
        net.body.load_state_dict(body.state_dict())
        return net.to(density.head.weight.device)

    def forward(self, x: Tensor) -> Tensor:
        """g(x) of rows x (n, length), float32 of shape (n,)."""
        sizes = pieces(len(x), 8 * self.space.dim * self.body.width, x.device)
        return torch.cat([self._values(part) for part in x.split(sizes)])

    def on_features(self, h: Tensor) -> Tensor:
        """g as a function of ``space.features(x)``, for samplers that follow its gradient; float32 (n,)."""
        return self._of(begun(h, self.tokens))

    def _values(self, x: Tensor) -> Tensor:
        return self._of(torch.cat([torch.full_like(x[:, :1], self.tokens), x], 1))

    def _of(self, codes: Tensor) -> Tensor:
        h = self.body(codes).float()
        return self.head(torch.cat([h[:, 0], h[:, 1:].mean(1)], 1)).squeeze(-1)
