"""The transformer that densities and energies of sequences share."""

from __future__ import annotations

import math
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, pad, scaled_dot_product_attention

from ctem.spaces import Space

__all__ = ["Precision", "Transformer", "begun", "pieces", "sequence_loss", "token_count"]

Precision = Literal["float32", "bf16"]
SPREAD = 0.4  # standard deviation of the initial weights, times the root of the width: GPT-2's .02 at 400
SLOWEST = 10_000.0  # positions of a turn of the slowest pair of features, over 2π
CPU_CELLS, GPU_CELLS = 2**26, 2**31  # numbers of a layer's features, or of all keys, held at once


class Memory:
    """Keys and values of the positions that a layer has seen, (n, heads, length, width of a head).

    >>> memory = Memory(3)
    >>> [part.shape[2] for part in memory.extended(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))]
    [1, 1]
    """

    def __init__(self, length: int):
        self.length, self.filled = length, 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def extended(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values after those of new positions (n, heads, new, width of a head)."""
        if self.keys is None or self.values is None:
            shape = (*k.shape[:2], self.length, k.shape[3])
            self.keys, self.values = k.new_empty(shape), v.new_empty(shape)
        end = self.filled + k.shape[2]
        self.keys[:, :, self.filled : end], self.values[:, :, self.filled : end] = k, v
        self.filled = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class _Block(nn.Module):
    """h + attention(norm(h)), then h + perceptron(norm(h))."""

    def __init__(self, width: int, heads: int, drop: float):
        super().__init__()
        self.heads, self.drop = heads, drop
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor, turn: Tensor, causal: bool, memory: Memory | None) -> Tensor:
        """The next features (n, length, width); queries and keys are turned by their places."""
        all_three = self.inputs(self.before(h)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        (q, k), v = _turned(all_three[:2], turn), all_three[2]
        first = memory is None or memory.filled == 0  # later positions come one at a time, and see all before
        if memory is not None:
            k, v = memory.extended(k, v)
        drop = self.drop if self.training else 0.0
        mixed = scaled_dot_product_attention(q, k, v, is_causal=causal and first, dropout_p=drop)
        h = h + dropout(self.output(mixed.transpose(1, 2).flatten(2)), drop, self.training)
        inside = gelu(self.inner(self.between(h)))
        return h + dropout(self.outer(inside), drop, self.training)


def _turned(h: Tensor, turn: Tensor) -> Tensor:
    """h (…, length, width of a head) turned in pairs, so that products of two depend on how far apart they are.

    A turn is the cosine and the sine of each pair's angle, (2, length, half of a head).
    """
    cos, sin = turn
    a, b = h.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Transformer(nn.Module):
    """Features of codes at positions 0 … length − 1; in a causal one, a position sees those up to itself.

    Arguments:
        codes: how many there are.
        length: of a sequence, at most.
        width, depth, heads: of the network; twice the heads divide the width.
        causal: whether a position sees later ones, too (False) or not (True).
        drop: share of the features that training leaves out.
        seed: of the initial weights.
        precision: of the products, "float32" or "bf16"; it may be set later. Draws and their scores agree in float32.

    >>> Transformer(5, length=4, width=8, depth=1, heads=2)(torch.zeros(3, 4)).shape
    torch.Size([3, 4, 8])
    """

    turns: Tensor

    def __init__(
        self,
        codes: int,
        length: int,
        *,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        causal: bool = False,
        drop: float = 0.0,
        seed: int = 0,
        precision: Precision = "float32",
    ):
        super().__init__()
        if width % (2 * heads):
            raise ValueError(f"heads: expected a divisor of half of width = {width}; got {heads}.")
        self.codes, self.length, self.width, self.depth = codes, length, width, depth
        self.causal, self.precision = causal, precision
        half = width // heads // 2
        speed = SLOWEST ** (-torch.arange(half) / half)
        angle = torch.arange(length).unsqueeze(1) * speed
        self.register_buffer("turns", torch.stack([angle.cos(), angle.sin()]), persistent=False)
        with torch.random.fork_rng(
            devices=[]
        ):  # torch initialises from the global generator: leave it as it was
            torch.manual_seed(seed)
            self.code, self.place = nn.Embedding(codes, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList(_Block(width, heads, drop) for _ in range(depth))
            self.last = nn.LayerNorm(width)
            for name, weight in self.named_parameters():
                if weight.ndim == 2:
                    layers = 2 * depth if name.endswith(("output.weight", "outer.weight")) else 1
                    nn.init.normal_(weight, std=SPREAD / math.sqrt(width * layers))

    def forward(self, x: Tensor, memories: list[Memory] | None = None) -> Tensor:
        """Features (n, new, width) of codes x (n, new), which come after those that the memories hold.

        Instead of a code, a position may have weights of all of them: x (n, new, codes).
        """
        start = 0 if memories is None else memories[0].filled
        place = slice(start, start + x.shape[1])
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            code = self.code(x.long()) if x.ndim == 2 else x @ self.code.weight
            h = code + self.place.weight[place]
            turn = self.turns[:, place].to(torch.bfloat16 if self.precision == "bf16" else h.dtype)
            for k, block in enumerate(self.blocks):
                h = block(h, turn, self.causal, None if memories is None else memories[k])
            return self.last(h)

    def memories(self) -> list[Memory]:
        """An empty memory for each layer."""
        return [Memory(self.length) for _ in range(self.depth)]


def begun(h: Tensor, tokens: int) -> Tensor:
    """Weights (n, 1 + length, tokens + 1): the code of the beginning, then features h (n, length · tokens) of a space.

    >>> begun(torch.tensor([[1.0, 0.0, 0.0, 1.0]]), 2)
    tensor([[[0., 0., 1.],
             [1., 0., 0.],
             [0., 1., 0.]]])
    """
    weights = pad(h.unflatten(-1, (-1, tokens)), (0, 1, 1, 0))
    weights[:, 0, tokens] = 1.0
    return weights


class Trained(Protocol):
    """A density that knows how it is trained."""

    def loss(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The mean loss of rows x (n, length)."""


def sequence_loss(density: Trained, x: Tensor, generator: torch.Generator) -> Tensor:
    """Nats a token of a density of sequences, in the form that ``ctem.train`` takes.

    >>> from ctem import Recipe, train
    >>> from ctem.densities.sequences import CausalDensity
    >>> from ctem.spaces import Space
    >>> x = torch.tensor([[0.0, 1.0, 2.0]]).repeat(50, 1)
    >>> density = CausalDensity(Space.sequence(3, 3), width=8, depth=1, heads=2)
    >>> recipe = Recipe(steps=60, batch_size=16, learning_rate=0.02)
    >>> history = train(density, sequence_loss, x, recipe)
    >>> bool(density.log_prob(x[:1]) > -0.3)
    True
    """
    return density.loss(x, generator)


def token_count(space: Space) -> int:
    """The number of codes of a space of sequences; another space is refused.

    >>> token_count(Space.sequence(tokens=5, length=3))
    5
    """
    if len(set(space.sizes)) != 1 or not space.sizes[0]:
        raise ValueError(
            f"space: expected Space.sequence(tokens, length), codes of one alphabet; got {space!r}."
        )
    return space.sizes[0]


def pieces(n: int, cells: int, device: torch.device) -> list[int]:
    """Numbers of rows that add up to n, each with a bounded number of cells.

    >>> pieces(5, CPU_CELLS // 2, torch.device("cpu"))
    [2, 2, 1]
    """
    most = max(1, (GPU_CELLS if device.type == "cuda" else CPU_CELLS) // cells)
    return [min(most, n - start) for start in range(0, n, most)]
