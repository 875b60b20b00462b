"""The seven 32-bit sets by one density in one order: the high bits of both coordinates first.

What is known of the space decides the order and no more: bits of a coordinate stand from high to low. The signs and the
highest bits of both coordinates make one code of 16, the next two bits of both the second, and so on: 8 codes. Each is
drawn given those before it, so that its nats need no log Z. The protocol has no end of rows: it trains on new ones.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu

from ctem import Recipe, Space, train
from ctem.benchmarks.gray import GraySet
from ctem.benchmarks.metrics import hamming_mmd
from ctem.densities.choices import choose
from ctem.densities.sequences import sequence_loss
from experiments.energies.bits import Size, Truth, lower_precision
from experiments.pieces import Piece
from experiments.results import Record, summarise

SYSTEM = "density in one order"
PLACES, CODES = 8, 16
RECIPE = Recipe(batch_size=2048, learning_rate=2e-3, warmup=100, ema=0.999, clip=1.0, weight_decay=0.0)
MOST_STEPS = 60_000
SOME = 2**17  # rows that are made at a time
VALIDATION, VALIDATION_SEED, ROWS_SEED = 2**15, 3, 100  # no seed of ``Truth``
JUDGING = 4.0  # seconds, and as many before training, in which rows are made


class PrefixDensity(nn.Module):
    """b(x) = Π_t b(x_t | x_1 … x_{t−1}) of sequences: one perceptron for all places, on the sum of what came before.

    h_t = Σ_{s<t} E_s(x_s) + a_t with an embedding of every code at every place, then residual layers that all places
    share, then a softmax of each place: as exact as ``CausalDensity``, for a third of its products.

    >>> space = Space.sequence(tokens=3, length=4)
    >>> density = PrefixDensity(space, width=8, depth=1)
    >>> round(density.log_prob(space.states()).exp().sum().item(), 4)
    1.0
    """

    codes: Tensor

    def __init__(self, space: Space, width: int = 256, depth: int = 3, seed: int = 0):
        super().__init__()
        self.space, self.tokens = space, space.sizes[0]
        self.register_buffer("codes", torch.arange(self.tokens), persistent=False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Parameter(torch.randn(space.dim, self.tokens, width) / 2)
            self.place = nn.Parameter(torch.randn(space.dim, 1, width) / 2)
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
            self.inner = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
            self.outer = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.head = nn.Parameter(torch.zeros(space.dim, width, self.tokens))
        self.bias = nn.Parameter(torch.zeros(space.dim, 1, self.tokens))

    def logits(self, x: Tensor) -> Tensor:
        """Log-odds of every code at each place given those before, (length, n, tokens)."""
        one_hot = (x.T.unsqueeze(-1) == self.codes).to(self.head.dtype)
        each = torch.bmm(one_hot, self.embedding)
        h = each.cumsum(0) - each + self.place
        for norm, inner, outer in zip(self.norms, self.inner, self.outer, strict=True):
            h = h + outer(silu(inner(norm(h))))
        return torch.baddbmm(self.bias, h, self.head)

    def loss(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Mean −log b of a code; the generator is not needed."""
        return cross_entropy(self.logits(x).flatten(0, 1), x.T.long().flatten())

    @torch.no_grad()
    def log_prob(self, x: Tensor) -> Tensor:
        """log b of rows x (n, length), float64 of shape (n,)."""
        parts = [
            self.logits(rows).log_softmax(-1).gather(2, rows.T.long().unsqueeze(2)).double().sum((0, 2))
            for rows in x.split(2**14)
        ]
        return torch.cat(parts)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n sequences (n, length)."""
        x = torch.zeros(n, self.space.dim, device=generator.device)
        for t in range(self.space.dim):
            x[:, t] = choose(self.logits(x)[t].softmax(-1), generator).to(x.dtype)
        return x


def to_codes(bits: Tensor) -> Tensor:
    """Rows of 32 bits as 8 codes of 16, high bits first, (n, 8)."""
    pairs = bits.unflatten(1, (2, PLACES, 2)).transpose(1, 2).flatten(2)  # two bits of each coordinate
    return (pairs.float() * 2 ** torch.arange(3, -1, -1, device=bits.device)).sum(-1)


def to_bits(codes: Tensor) -> Tensor:
    """The rows of bits that have these codes, (n, 32)."""
    digits = codes.long().unsqueeze(-1) >> torch.arange(3, -1, -1, device=codes.device) & 1
    return digits.unflatten(-1, (2, 2)).transpose(1, 2).flatten(1).float()


def pieces(size: Size) -> list[Piece]:
    """A density of every set."""
    return [Piece("ours", name, size.ours + 2 * JUDGING) for name in size.sets]


def measure(truth: Truth, data: str, device: str, left: float) -> list[Record]:
    """Records of one set."""
    size, began = truth.size, time.perf_counter()
    target = GraySet(data)
    rows = torch.cat([_drawn(target, SOME, ROWS_SEED + k) for k in range(-(-size.more_rows // SOME))])
    valid = _drawn(target, min(VALIDATION, size.draws), VALIDATION_SEED).to(device)
    end = min(time.perf_counter() + size.ours, began + left - JUDGING)
    density, cost = trained(rows[: size.more_rows].to(device), valid, size, end)
    values = judged(density, truth, data) | cost | {"seconds": time.perf_counter() - began}
    nats, error = values["nats above the floor"], values["standard error of nats"]
    print(f"{SYSTEM}, {data}: {nats:.4f} ± {error:.4f}, {cost['steps']} steps", flush=True)
    return [summarise(data, SYSTEM, metric, [value]) for metric, value in values.items()]


def trained(rows: Tensor, valid: Tensor, size: Size, end: float) -> tuple[PrefixDensity, dict[str, float]]:
    """A density trained until the moment ``end``; the weights are those with the fewest nats of validation rows."""
    density = PrefixDensity(Space.sequence(CODES, PLACES), size.width).to(rows.device)
    steps = size.steps or MOST_STEPS
    recipe = replace(RECIPE, batch_size=8 * size.batch, steps=steps, evaluate_every=min(steps, 250))
    with lower_precision():
        history = train(
            density,
            sequence_loss,
            rows,
            recipe,
            held_out=valid,
            deadline=None if size.steps else end,
            cuda_graph=rows.is_cuda,
        )
    cost = {"steps": history.step[-1], "step chosen by validation rows": history.best_step}
    return density.eval().requires_grad_(False), cost


def judged(density: PrefixDensity, truth: Truth, data: str) -> dict[str, float]:
    """Nats above the floor on the truth's rows of the set, and MMD of draws."""
    size, s = truth.size, truth.size.sets.index(data)
    gap = truth.log_rho[s, : size.draws] - density.log_prob(to_codes(truth.x[s, : size.draws]))
    generator = torch.Generator(truth.x.device).manual_seed(0)
    drawn = to_bits(density.sample(size.samples * size.repeats, generator))
    pairs = zip(drawn.chunk(size.repeats), truth.fresh[s].chunk(size.repeats), strict=True)
    distances = [hamming_mmd(a, b) for a, b in pairs]
    return {
        "nats above the floor": float(gap.mean()),
        "MMD, exponential Hamming, × 1e4": 1e4 * sum(distances) / len(distances),
        "standard error of nats": float(gap.std()) / math.sqrt(len(gap)),
    }


def _drawn(target: GraySet, n: int, seed: int) -> Tensor:
    return to_codes(torch.as_tensor(target.sample(n, seed=seed)).to(torch.uint8))
