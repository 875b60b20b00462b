"""Silhouettes: exact nats of an any-order image energy, and one energy trained by chains judged in four ways.

The first is ``experiments.images.firstorder``: exact by the chain rule. The second is a convolutional energy trained by
persistent contrastive divergence with discrete Langevin. Its likelihood is computed by annealing that is valid, by
annealing with the same chain without its Metropolis step (an estimate that papers print), and by annealing down from
samples: one energy, one test set, and numbers that may differ by nats.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import silu

from ctem import ProductBase, Recipe, Space, train
from ctem.checking.potential import Counted
from ctem.checking.record import Side
from ctem.checking.sides import Flips, annealed_side
from ctem.datasets import Splits, load_binarized_mnist, load_caltech
from ctem.densities.chain import Chain, Probabilities
from ctem.partition.annealed import level_weights
from ctem.samplers import BitState, BitTarget, LangevinFlips, PathFlips, anneal_bits
from experiments.images.firstorder import FirstOrder, HiddenPixels
from experiments.images.unet import ImageNet
from experiments.pieces import Piece
from experiments.results import Record, summarise

RECIPE = Recipe(batch_size=256, learning_rate=1e-3, ema=0.999, weight_decay=0.05, clip=10.0)
MOST_STEPS = 20_000
MIRRORED = {
    "images as they are": 0.0,
    "half of the images mirrored": 0.5,
}  # both are chosen from by held-out nats
CHAINS = "trained by chains"
DIGITS = "digits"
LONGER = 2.7  # times as long as silhouettes
JUDGING = 40.0  # seconds of the chain rule, for the order of pieces; what it may take is measured
SCORING = 0.4  # of the seconds, at most, for the chain rule
SLACK = 1.2  # times the seconds that were measured
TRIED = (2048, 512, 128, 32)  # rows of a pass
ANNEALING = 50.0
DIGITS_BEST = "79.905 (ACS), 80.01 (GWG), each by annealing from below"
BEST = "89.26 (ACS), 92.00 (DREAM), 96.20 (GWG), each by annealing from below"
SPREAD = "98.00 and 107.90 for one method in two papers"


class Size(NamedTuple):
    """How much is spent."""

    channels: tuple[int, ...]
    seconds: float  # of each any-order training
    steps: int | None
    rows: int  # of the test set, for the chain rule
    orders: int
    divergence: float  # seconds of training by chains
    width: int
    chains: int
    levels: int
    batch: int


FULL = Size((48, 96, 192), 110.0, None, 1000, 2, 80.0, 32, 512, 1500, 256)
QUICK = Size((4, 8), 0.0, 15, 20, 1, 2.0, 4, 64, 40, 32)


def pieces(size: Size, quick: bool) -> list[Piece]:
    """Any-order training with and without mirrored images, and training by chains."""
    both = [Piece("images", name, size.seconds + JUDGING) for name in MIRRORED]
    return [*both, Piece("images", CHAINS, size.divergence + ANNEALING)]


def digit_pieces(size: Size, quick: bool) -> list[Piece]:
    """Static MNIST: digits are not mirrored."""
    return [Piece("mnist", DIGITS, LONGER * size.seconds + JUDGING)]


def splits(name: str, data: str | None, quick: bool) -> Splits:
    """The silhouettes or static MNIST; the 8 × 8 digits, thresholded at half, for a quick look without data."""
    if not quick:
        return load_binarized_mnist(data) if name == DIGITS else load_caltech(data)
    ink = (load_digits().data >= 8).astype(float)
    return Splits(ink[:1200], ink[1200:1400], ink[1400:])


def measure(name: str, size: Size, data: str | None, quick: bool, device: str, left: float) -> list[Record]:
    """Records of one piece, in so many seconds if its training can be cut."""
    began = time.perf_counter()
    bits = [torch.as_tensor(part, dtype=torch.float32, device=device) for part in splits(name, data, quick)]
    side = math.isqrt(bits[0].shape[1])
    title = "8 × 8 digits" if quick else "static MNIST" if name == DIGITS else "Caltech silhouettes 28 × 28"
    if name == CHAINS:
        size = size._replace(divergence=min(size.divergence, max(1.0, left - ANNEALING)))
        return spread(bits, Space.image(1, side, side, levels=2), size, title, print)
    if name == DIGITS and not quick:
        seconds = left if math.isfinite(left) else LONGER * size.seconds
        size = size._replace(seconds=seconds, rows=len(bits[2]))
    return exact(bits, side, size, title, name, device, began + left)


class Flipped:
    """Hidden pixels of images, a share of which is mirrored."""

    def __init__(self, side: int, share: float):
        self.side, self.share, self.loss = side, share, HiddenPixels()

    def __call__(self, g: ImageNet, x: Tensor, generator: torch.Generator) -> Tensor:
        if torch.is_grad_enabled():
            mirrored = x.unflatten(-1, (self.side, self.side)).flip(-1).flatten(1)
            chosen = torch.rand(len(x), 1, generator=generator, device=x.device) < self.share
            x = torch.where(chosen, mirrored, x)
        return self.loss(g, x, generator)


def exact(
    bits: list[Tensor], side: int, size: Size, data: str, name: str, device: str, end: float
) -> list[Record]:
    """Test nats by the chain rule, over as many test rows as there is time for; training has what scoring leaves."""
    train_rows, valid, test = bits
    base = ProductBase.fit(Space([c for c in Space.image(1, side, side, 2).columns]), train_rows).to(device)
    began, share = time.perf_counter(), MIRRORED.get(name, 0.0)
    g = ImageNet(base, (side, side), size.channels, precision="bf16" if "cuda" in device else "float32")
    g = g.to(device)
    plan = scoring_plan(g, test, size, end - time.perf_counter())
    size = size._replace(seconds=min(size.seconds, max(1.0, end - time.perf_counter() - plan.reserved)))
    history = _fitted(g, Flipped(side, share), train_rows, valid, size, device)
    fitted = time.perf_counter() - began
    print(f"{name}: held-out {history.best_loss:.5f} at step {history.best_step}", flush=True)
    nats, orders = chain_rule(g.eval().requires_grad_(False), test, size, plan.rows, end)
    found = {
        f"test nats, exact, mixture of {orders} orders": float(nats.mean()),
        "test nats, exact: standard error of the test rows": float(nats.std()) / math.sqrt(len(nats)),
        "test rows": len(nats),
        "share of training images that are mirrored": share,
        "held-out nats a hidden pixel": history.best_loss,
        "step chosen by held-out loss": history.best_step,
        "seconds of training": fitted,
        "seconds in all": time.perf_counter() - began,
    }
    print(f"{data}, {name}: {float(nats.mean()):.2f} nats, {found['seconds in all']:.0f} s", flush=True)
    independent = -base.log_prob(test).double()
    best = DIGITS_BEST if name == DIGITS else BEST
    records = [summarise(data, "independent pixels", "test nats, exact", [float(independent.mean())])]
    return records[: 0 if share else 1] + [
        summarise(
            data, f"a clock per pixel, slopes; {name}", metric, [value], best if "mixture" in metric else None
        )
        for metric, value in found.items()
    ]


class Plan(NamedTuple):
    """How test rows are scored."""

    rows: int  # of a piece
    reserved: float  # seconds that are kept from training


def scoring_plan(g: ImageNet, test: Tensor, size: Size, left: float) -> Plan:
    """The largest pieces of which five fit into the share of scoring, by the time that a pass of each size takes."""
    torch.backends.cudnn.benchmark = True
    passes, share = size.orders * test.shape[1], SCORING * left
    for tried in TRIED:
        rows = min(tried, size.rows)
        spent = SLACK * passes * _seconds_of_a_pass(g, test[:rows])
        if 5 * spent < share:
            break
    reserved = max(spent, min(share, spent * math.ceil(size.rows / rows)))
    print(f"scoring: {rows} rows at a time in {spent:.0f} s, {reserved:.0f} s reserved", flush=True)
    return Plan(rows, reserved)


def _seconds_of_a_pass(g: ImageNet, x: Tensor) -> float:
    visible, conditionals = torch.rand(x.shape, device=x.device) < 0.5, FirstOrder(g)
    for timed in (False, True):  # the first pass of a size chooses how it is done
        began = time.perf_counter()
        for _ in range(3):
            float(conditionals.given(x, visible, 0).log_p.sum())  # which waits for the device
        if timed:
            break
    return (time.perf_counter() - began) / 3


class OutOfTimeError(Exception):
    """The moment has come when a result is due."""


class TimedConditionals(FirstOrder):
    """Conditionals that stop a piece of scoring which would end too late."""

    def __init__(self, g: ImageNet, end: float):
        super().__init__(g)
        self.end = end

    def given(self, x: Tensor, visible: Tensor, j: int) -> Probabilities:
        if time.perf_counter() > self.end:
            raise OutOfTimeError
        return super().given(x, visible, j)


def chain_rule(g: ImageNet, test: Tensor, size: Size, rows: int, end: float) -> tuple[Tensor, int]:
    """Nats of random test rows by a mixture of orders, some rows at a time until the end; and how many orders.

    The first piece has few rows, and is scored whatever the time, so that something is always known.
    """
    chosen = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[: size.rows].to(
        test.device
    )
    first = min(rows, TRIED[-1])
    pieces = [piece for piece in (chosen[:first], *chosen[first:].split(rows)) if len(piece)]
    orders = Chain(FirstOrder(g)).orders(size.orders, torch.Generator().manual_seed(0))
    nats: list[Tensor] = []
    for piece in pieces:
        chain = Chain(TimedConditionals(g, end if nats else math.inf))
        try:
            each = torch.stack([chain.log_prob(test[piece], one).double() for one in orders])
        except OutOfTimeError:
            break
        nats.append(math.log(len(orders)) - each.logsumexp(0))
    return torch.cat(nats), len(orders)


def _fitted(g: ImageNet, loss, x: Tensor, valid: Tensor, size: Size, device: str):
    recipe, cuda = replace(RECIPE, batch_size=size.batch), "cuda" in device
    torch.backends.cudnn.benchmark = True
    steps = size.steps or MOST_STEPS
    recipe = replace(recipe, steps=steps, evaluate_every=min(50, max(1, steps // 5)))
    deadline = None if size.steps else time.perf_counter() + size.seconds
    return train(g, loss, x, recipe, held_out=valid[:2000], cuda_graph=cuda, deadline=deadline)


class Convolutions(nn.Module):
    """f of images (n, 1, side, side): pixel odds of the training images, and a convolutional correction."""

    def __init__(self, odds: Tensor, width: int):
        super().__init__()
        self.register_buffer("odds", odds)
        sizes = [1, width, 2 * width, 4 * width, 4 * width]
        self.layers = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=1 if i == 0 else 2, padding=1)
            for i, (a, b) in enumerate(pairwise(sizes))
        )
        self.last = nn.Linear(sizes[-1], 1)

    def forward(self, x: Tensor) -> Tensor:
        h = 2 * x - 1
        for layer in self.layers:
            h = silu(layer(h))
        return (x.flatten(1) * self.odds).sum(-1) + self.last(h.sum((-1, -2))).squeeze(-1)


@dataclass(frozen=True)
class Unadjusted(LangevinFlips):
    """Discrete Langevin without its Metropolis step (DULA): what it leaves invariant is not exp f."""

    def move(self, state: BitState, target: BitTarget, step: Tensor, generator: torch.Generator):
        here = target.informed(state)
        odds = torch.sigmoid(here.gain / 2 + step.log())
        flip = torch.rand(odds.shape, generator=generator, device=odds.device) < odds
        there = target.informed(BitState(torch.where(flip, 1 - here.x, here.x)))
        return there, torch.ones_like(odds[:, 0])


def spread(bits: list[Tensor], space: Space, size: Size, data: str, log) -> list[Record]:
    """One energy trained by chains, and what four ways say of its test nats."""
    train_rows, _, test = bits
    base = ProductBase.fit(space, train_rows).to(train_rows.device)
    odds = base.log_table[:, 1] - base.log_table[:, 0]
    began = time.perf_counter()
    f, steps = by_divergence(train_rows, base, odds, space, size)
    trained = time.perf_counter() - began
    counted = Counted(f, space)
    generator = torch.Generator(test.device).manual_seed(0)
    flips = Flips(counted, space, size.levels, 2, generator)
    log_w, x = flips.up(base, size.chains)
    chosen = torch.multinomial(log_w.softmax(0).float(), len(x), replacement=True, generator=generator)
    samples = flips.settle(x[chosen], 20)
    up, down = annealed_side(log_w, "low"), annealed_side(flips.down(base, samples), "high")
    valid_moves = flips.tuned
    assert valid_moves is not None

    def unadjusted(level: float) -> list[Unadjusted]:
        return [Unadjusted(move.times, move.step, None) for move in valid_moves(level)]

    path = flips.path(base)
    log_v, _ = level_weights(
        flips.stations(base, path), base.sample(size.chains, generator), unadjusted, generator
    )
    wrong = annealed_side(log_v, "low")
    with torch.no_grad():
        values = torch.cat([counted(part) for part in test.split(512)]).double()
    records = [
        summarise(data, "trained by chains", "steps", [steps]),
        summarise(data, "trained by chains", "seconds of training", [trained]),
        summarise(data, "trained by chains", "standard error of the test rows", [_error(values)]),
    ]
    ways: dict[str, Side] = {
        "annealing up, adjusted (optimistic)": up,
        "annealing up, not adjusted (not valid)": wrong,
        "annealing down from samples (pessimistic)": down,
    }
    for way, side in ways.items():
        nats = side.value - float(values.mean())
        records.append(summarise(data, way, "test nats", [nats], SPREAD if side is wrong else None))
        records.append(summarise(data, way, "standard error of log Z", [side.se]))
        records.append(summarise(data, way, "effective chains", [side.ess]))
        log(f"{way}: {nats:.2f} ± {side.se:.2f}, {side.ess:.0f} of {size.chains} chains", flush=True)
    return records


def by_divergence(
    x: Tensor, base: ProductBase, odds: Tensor, space: Space, size: Size
) -> tuple[nn.Module, int]:
    """Persistent contrastive divergence for so many seconds; a small pull of the values towards 0 keeps them finite."""
    torch.manual_seed(0)
    f = Convolutions(odds, size.width).to(x.device)
    buffer = base.sample(20 * size.batch, torch.Generator(x.device).manual_seed(1))
    moves = [LangevinFlips(15, acceptance=0.574), PathFlips(5, flips=4)]

    def loss(net: nn.Module, rows: Tensor, generator: torch.Generator) -> Tensor:
        def values(z: Tensor, _: object = None) -> Tensor:
            return net(z.unflatten(-1, space.shape))

        which = torch.randint(len(buffer), (len(rows),), generator=generator, device=x.device)
        net.requires_grad_(False)
        y = anneal_bits(values, buffer[which], [1.0], moves, generator).x
        net.requires_grad_(True)
        buffer[which] = y
        data, chain = values(rows), values(y)
        return chain.mean() - data.mean() + 1e-3 * (chain.square().mean() + data.square().mean()) / space.dim

    recipe = Recipe(steps=10**6, batch_size=size.batch, learning_rate=3e-4, clip=10.0, schedule="constant")
    deadline = time.perf_counter() + size.divergence
    history = train(f, loss, x, replace(recipe, evaluate_every=20), deadline=deadline)
    return f.eval().requires_grad_(False), history.step[-1]


def _error(values: Tensor) -> float:
    return float(values.std()) / math.sqrt(len(values))
