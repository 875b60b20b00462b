"""What an effective sample costs: weighted draws of a base, and Markov chains, on an energy of text and one of bits.

    python -m experiments.text.samplers --quick                                    two cores, about a minute
    python -m experiments.text.samplers --device cuda --data FOLDER --seconds 60    one H200

Targets: b(x) e^{g(x)} of chunks of text, as in ``energy.py``; and the energy f(x, s) of 8 × 8 binary digits at its
smallest noise level, learned at all levels, which the reverse-time chains need and an energy of text does not have.
Half of the seconds are for training, the rest for the samplers in equal parts. Systems:

    weights        draws of a base, weighted; effective samples are (Σw)²/Σw². That of digits is a causal transformer
    independence   Metropolis whose proposals are draws of the same base
    reverse        the paper's reverse-time Metropolis: down the levels, one uniformly drawn flip a step. A chain gives
                   one sample at most; whether it has arrived is seen in the mean of its log-density
    renoise        noise and denoise in one Metropolis step, at the smallest level
    gradients      Gibbs with gradients
    langevin       discrete Langevin, all positions at once; its step follows the acceptance, and is then held
    flips          Metropolis with one uniformly drawn change a step

Effective samples of chains are those of a random projection of the one-hot rows: about the mean of all chains, beyond
the one that a chain begins with, so that standing still is worth none; and by DISCS, about the mean of each chain, by
which a chain that hardly moves counts as about three.
Evaluations are those that a sampler needs if nothing is asked twice, a gradient being one more. Chains of text begin at
draws of the base chosen by their weights, those of digits at the end of informed annealed chains; all have a quarter of
their time to settle.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ctem import ProductBase, Space, train
from ctem.densities.sequences import CausalDensity, SequenceNet, sequence_loss
from ctem.matching.kernels import HammingOne
from ctem.matching.noise import Noise
from ctem.samplers import (
    Adapted,
    AnnealedBits,
    BitState,
    BitTarget,
    Denoise,
    DiscreteLangevin,
    FlipJump,
    GibbsWithGradients,
    Independence,
    LangevinFlips,
    MetropolisHastings,
    Move,
    PathFlips,
    Renoise,
    anneal_bits,
)
from ctem.samplers.diagnostics import ess_per_evaluation
from experiments.images.objectives import Angular, LevelFlips, angle_of, level_at
from experiments.images.settings import SMALL, load_images
from experiments.images.unet import ImageNet
from experiments.results import Record, arguments, staged, summarise, write
from experiments.text.energy import Run, values_of, warm_up
from experiments.text.settings import FILES, FULL, MADE_UP, QUICK, load_text

SYSTEMS = {
    "weights": "draws of a base, weighted",
    "independence": "independence Metropolis",
    "reverse": "reverse-time Metropolis, the paper's",
    "renoise": "noise and denoise, Metropolis",
    "gradients": "Gibbs with gradients",
    "langevin": "discrete Langevin",
    "flips": "uniformly drawn changes",
}
TRAINING = 0.5  # of the seconds
TEXT = 0.6  # of those, for text
SETTLE = 0.25  # of a chain's time
LEVELS = Angular(0.01, 8.0)  # of noise
RUNGS = 13  # of the reverse-time chain
PIECES = 32  # of draws of a base, at most
SIDE = 8

PER_EVALUATION, PER_SECOND = "effective samples for 1000 evaluations", "effective samples a second"
Values = dict[str, float]
Stepper = Callable[[Tensor, bool], tuple[Tensor, Tensor]]


class Target(NamedTuple):
    """What is sampled from: log ρ up to a constant, rows of a base, and their log-weights."""

    name: str
    space: Space
    log_density: Callable[[Tensor], Tensor]
    base: Any
    log_weight: Callable[[Tensor], Tensor]
    chains: int
    piece: int  # rows of the base, drawn at once


class Tilt:
    """log b + g of sequences, with its gradient in the features."""

    def __init__(self, base: CausalDensity, g: SequenceNet):
        self.space, self.base, self.g = base.space, base, g

    def __call__(self, x: Tensor) -> Tensor:
        return self.base.log_prob(x).float() + self.g(x)

    def on_features(self, h: Tensor) -> Tensor:
        return self.base.on_features(h) + self.g.on_features(h)


class Drawn:
    """Rows of a base, drawn before, given out one after the other; all of weight 1, for f = log ρ/b."""

    def __init__(self, rows: Tensor):
        self.rows, self.given = rows, 0

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        self.given += n
        return self.rows[self.given - n : self.given]

    def log_prob(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x))


class Watch:
    """A random projection of the one-hot rows of a space."""

    def __init__(self, space: Space, device: str):
        generator = torch.Generator(device).manual_seed(0)
        shape = space.dim, max(space.sizes)
        self.weights = torch.randn(shape, generator=generator, device=device, dtype=torch.float64)

    def __call__(self, x: Tensor) -> Tensor:
        return self.weights.gather(1, x.long().T).sum(0)


class Bench:
    """The samplers on one target, each for so many seconds."""

    def __init__(self, target: Target, seconds: float, device: str):
        self.target, self.seconds, self.device = target, seconds, device
        self.watch = Watch(target.space, device)
        self.generator = torch.Generator(device).manual_seed(3)

    def weights(self) -> Values:
        """Draws of the base, and what they are worth; they give the others their starts and proposals."""
        target, began = self.target, time.perf_counter()
        parts = [target.base.sample(target.piece, self.generator)]
        while time.perf_counter() < began + self.seconds and len(parts) < PIECES:
            parts.append(target.base.sample(target.piece, self.generator))
        self.rows = torch.cat(parts)
        self.drawing = (time.perf_counter() - began) / len(self.rows)
        self.log_w = values_of(target.log_weight, self.rows)
        seconds, p = time.perf_counter() - began, self.log_w.softmax(0)
        here = values_of(target.log_density, self.rows)
        self.mean = float((p * here).sum())
        ess = 1 / float(p.square().sum())
        return {PER_EVALUATION: 1000 * ess / len(p), PER_SECOND: ess / seconds} | {
            "log-density, mean": self.mean,
            "log-density, mean: standard error": float((p * (here - self.mean)).square().sum().sqrt()),
            "draws, or steps of a chain": len(p),
        }

    def start(self) -> Tensor:
        """Rows for the chains, by their weights."""
        chosen = torch.multinomial(
            self.log_w.softmax(0), self.target.chains, replacement=True, generator=self.generator
        )
        return self.rows[chosen]

    def independence(self) -> Values:
        """The draws again, as proposals; the time that they took to draw counts."""
        chains = self.target.chains
        proposals = Drawn(
            self.rows[torch.randperm(len(self.rows), generator=self.generator, device=self.device)]
        )
        sampler = Independence(proposals)  # type: ignore[arg-type]
        steps = len(self.rows) // chains

        def step(x: Tensor, settled: bool) -> tuple[Tensor, Tensor]:
            x, info = sampler.step(self.target.log_weight, x, self.generator)
            return x, info.acceptance

        return self.followed(step, 1, most=steps, extra=self.drawing * chains)

    def followed(self, step: Stepper, each: float, most: int = 100_000, extra: float = 0.0) -> Values:
        """Chains for as long as there is time; ``each`` evaluations a step, and seconds that it takes besides."""
        x, began, first = self.start(), time.perf_counter(), None
        trace: list[Tensor] = []
        rates: list[Tensor] = []
        spent = 0.0
        for k in range(most):
            settled = k >= SETTLE * most or spent > SETTLE * self.seconds
            if settled and first is None:
                first, begun, trace, rates = x, spent, [], []
            x, rate = step(x, settled)
            trace.append(self.watch(x))
            rates.append(rate.mean())
            if self.device.startswith("cuda"):
                torch.cuda.synchronize()
            spent = time.perf_counter() - began + extra * (k + 1)
            if spent > self.seconds and len(trace) >= 8 and first is not None:
                break
        assert first is not None
        values, evaluations = torch.stack(trace), each * len(trace)
        ess = effective(values)
        by_discs = ess_per_evaluation(values.unsqueeze(2), evaluations, self.generator)
        found = {
            PER_EVALUATION: 1000 * ess / evaluations,
            f"{PER_EVALUATION}, by DISCS": 1000 * by_discs,
            PER_SECOND: ess * len(x) / (spent - begun),
            "acceptance": float(torch.stack(rates).mean()),
            "distance from the beginning to the end": apart(first, x),
            "draws, or steps of a chain": len(trace),
        }
        return found | self.arrived(x)

    def arrived(self, x: Tensor) -> Values:
        """How likely the last rows are; the same under every sampler that has arrived."""
        here = values_of(self.target.log_density, x)
        return {
            "log-density, mean": float(here.mean()),
            "log-density, mean: standard error": float(here.std()) / math.sqrt(len(here)),
        }


def apart(x: Tensor, y: Tensor) -> float:
    """The mean distance (share of positions) of rows of x and y, relative to that of any two."""
    own = (x != y).double().mean()
    others = torch.stack([(x != y.roll(k, 0)).double().mean() for k in range(1, min(9, len(x)))]).mean()
    return float(own / others.clamp_min(1e-9))


def effective(values: Tensor) -> float:
    """Effective samples of a chain beyond its first, of values (steps, chains) about the mean of all chains.

    N/(1 + 2 Σ_k (1 − k/N) ρ_k) − 1, with the autocorrelation ρ of all chains together, cut where it falls below 0.
    """
    n, centred = len(values), values - values.mean()
    spectrum = torch.fft.rfft(centred, 2 * n, dim=0).abs().square()
    covariance = torch.fft.irfft(spectrum, 2 * n, dim=0)[:n].mean(1)  # times 1 − k/n
    if float(covariance[0]) <= 0:
        return 0.0
    rho = covariance / covariance[0]
    return max(0.0, float(n / (2 * (rho * (rho >= 0).cummin(0).values).sum() - 1)) - 1)


class TextBench(Bench):
    """Samplers of a tilted density of text."""

    def __init__(self, target: Target, seconds: float, device: str, tilt: Tilt):
        super().__init__(target, seconds, device)
        self.tilt = tilt

    def systems(self) -> dict[str, Callable[[], Values]]:
        return {
            "weights": self.weights,
            "independence": self.independence,
            "gradients": lambda: self.moved(GibbsWithGradients(self.tilt.space), 2),
            "langevin": self.langevin,
            "flips": lambda: self.moved(MetropolisHastings(HammingOne(self.tilt.space)), 1),
        }

    def moved(self, sampler: Any, each: float) -> Values:
        def step(x: Tensor, settled: bool) -> tuple[Tensor, Tensor]:
            x, info = sampler.step(self.tilt, x, self.generator)
            return x, info.acceptance

        return self.followed(step, each)

    def langevin(self) -> Values:
        sampler = Adapted(lambda size: DiscreteLangevin(self.tilt.space, size), 0.1)

        def step(x: Tensor, settled: bool) -> tuple[Tensor, Tensor]:
            x, info = (sampler.frozen() if settled else sampler).step(self.tilt, x, self.generator)
            return x, info.acceptance

        return self.followed(step, 2)


class BitBench(Bench):
    """Samplers of a noise-conditional energy of bits at its smallest level."""

    begins: Tensor | None = None

    def start(self) -> Tensor:
        """The ends of chains down the levels, by the moves that mix best."""
        if self.begins is None:
            moves = [Denoise(self.net.base), LangevinFlips(8), PathFlips(4)]
            self.begins = self.down(moves, 2 * RUNGS).x
        return self.begins

    def __init__(self, target: Target, seconds: float, device: str, net: ImageNet):
        super().__init__(target, seconds, device)
        self.net = net

    def systems(self) -> dict[str, Callable[[], Values]]:
        return {
            "weights": self.weights,
            "independence": self.independence,
            "reverse": self.reverse,
            "renoise": lambda: self.moved(Renoise(self.net.base), 3),
            "gradients": lambda: self.moved(PathFlips(flips=1), 2),
            "langevin": lambda: self.moved(LangevinFlips(), 2),
            "flips": lambda: self.moved(FlipJump(), 1),
        }

    def moved(self, move: Move, each: float) -> Values:
        target = BitTarget(self.net.log_density, LEVELS.low)
        size = torch.tensor(float(getattr(move, "step", 1.0)), device=self.device)
        wanted, state = getattr(move, "acceptance", None), BitState(torch.empty(0))

        def step(x: Tensor, settled: bool) -> tuple[Tensor, Tensor]:
            nonlocal size, state
            here = state if state.x is x else BitState(x)
            state, rate = move.move(here, target, size, self.generator)
            if wanted is not None and not settled:
                size = (size * (0.5 * (rate.mean() - wanted)).exp()).clamp(1e-6, 1.0)
            return state.x, rate

        return self.followed(step, each)

    def down(self, moves: Sequence[Move], rungs: int) -> AnnealedBits:
        """Chains from the base of the noise down to the smallest level."""
        angles = angle_of(torch.tensor([LEVELS.high, LEVELS.low], dtype=torch.float64)).tolist()
        ladder = level_at(torch.linspace(*angles, rungs, dtype=torch.float64)).tolist()
        begin = self.net.base.sample(self.target.chains, self.generator)
        return anneal_bits(self.net.log_density, begin, ladder, moves, self.generator)

    def reverse(self) -> Values:
        """Chains from the base of the noise down to the smallest level, in as many steps as there is time for."""
        chains, dim = self.target.chains, self.target.space.dim
        for times in (dim // 8, dim, 8 * dim):  # the last that there is time for
            began = time.perf_counter()
            out = self.down([FlipJump(times)], RUNGS)
            seconds = time.perf_counter() - began
            if 10 * seconds > self.seconds:
                break
        found = {
            PER_EVALUATION: 1000 / out.evaluations,
            PER_SECOND: chains / seconds,
            "acceptance": out.acceptance[-1][0],
            "draws, or steps of a chain": RUNGS * times,
        }
        return found | self.arrived(out.x)


def piece(args: Any) -> int:
    return 64 if args.quick else 2048


def text_bench(args: Any, seconds: float, each: float) -> tuple[TextBench, dict[str, Any]]:
    """A base and an energy of text."""
    cuda = args.device.startswith("cuda")
    text = load_text(MADE_UP if args.quick else args.what, args.length, args.data, args.device)
    run = Run(text, QUICK if args.quick else FULL, seconds, args.device, capture=cuda and not args.no_capture)
    if cuda:
        warm_up(run)
    base, g, _ = run.learned()
    name = f"samplers on {text.name}, chunks of {args.length}"
    tilt, chains = Tilt(base, g), 16 if args.quick else 64
    target = Target(name, text.space, tilt, base, g, chains, piece(args))
    return TextBench(target, each, args.device, tilt), run.settings


def digits_bench(args: Any, seconds: float, each: float) -> tuple[BitBench, dict[str, Any]]:
    """An energy of digits at all levels, and a causal transformer to draw from."""
    bits = load_images(SIDE, None, args.device).bits["threshold"]
    space, began = Space.sequence(2, SIDE**2), time.perf_counter()
    noise = ProductBase.fit(space, bits.train).to(args.device)
    net = ImageNet(noise, (SIDE, SIDE), (4, 8) if args.quick else (16, 32)).to(args.device)
    loss = LevelFlips(Noise(noise).to(args.device), LEVELS, comparisons=2, reach=1 / SIDE)
    options = {"width": 32, "depth": 2, "heads": 2} if args.quick else {"width": 128, "depth": 4, "heads": 4}
    base = CausalDensity(space, **options).to(args.device)
    jobs = {"energy": (net, loss, 0.7), "base": (base, sequence_loss, 1.0)}
    recipe = replace(SMALL, steps=20_000, evaluate_every=50, ema=0.0)
    capture = args.device.startswith("cuda") and not args.no_capture
    found: dict[str, Any] = {}
    for name, (f, cost, share) in jobs.items():
        end = began + share * seconds
        history = train(f, cost, bits.train, recipe, held_out=bits.valid, deadline=end, cuda_graph=capture)
        f.eval().requires_grad_(False)
        found[name] = {
            "steps": history.step[-1],
            "best step": history.best_step,
            "held-out": history.best_loss,
        }
    print(f"  digits: {found}", flush=True)
    return BitBench(digits_target(net, base, args), each, args.device, net), found


def digits_target(net: ImageNet, base: CausalDensity, args: Any) -> Target:
    """The energy at its smallest level, and a base to draw from."""

    def log_density(x: Tensor) -> Tensor:
        return net.log_density(x, torch.full_like(x[:, 0], LEVELS.low))

    def log_weight(x: Tensor) -> Tensor:
        return log_density(x) - base.log_prob(x).float()

    name, chains = f"samplers on {SIDE} × {SIDE} binary digits", 16 if args.quick else 64
    return Target(name, base.space, log_density, base, log_weight, chains, piece(args))


def save(records: list[Record], settings: dict[str, Any], args: Any, began: float, out: Path) -> None:
    write(
        "text-samplers",
        settings,
        records,
        args.device,
        time.perf_counter() - began,
        out,
        quick=args.quick,
    )


def parsed() -> Any:
    parser = arguments(__doc__)
    parser.add_argument("--data", help="folder of text/ (default: $CTEM_DATA)")
    parser.add_argument("--what", choices=tuple(FILES), default="tinyshakespeare", help="text")
    parser.add_argument("--length", type=int, help="of chunks (default: 128, with --quick 32)")
    parser.add_argument("--seconds", type=float, help="of the whole call (default: 60, with --quick 40)")
    parser.add_argument("--no-capture", action="store_true", help="on a GPU: run every step as it is written")
    args = parser.parse_args()
    args.length = args.length or (32 if args.quick else 128)
    args.seconds = args.seconds or (40.0 if args.quick else 60.0)
    return args


def main() -> None:
    args, began = parsed(), time.perf_counter()
    if args.device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
    each = (1 - TRAINING) * args.seconds / 12  # seconds of a sampler on a target
    records: list[Record] = []
    settings: dict[str, Any] = {"seconds of a sampler": round(each, 2)}
    makers = {"text": (text_bench, TEXT), "digits": (digits_bench, 1 - TEXT)}
    failed: list[str] = []
    with staged(args.out) as out:
        for name, (make, share) in makers.items():
            bench, settings[name] = make(args, share * TRAINING * args.seconds, each)
            settings["chains"] = bench.target.chains
            for system, measure in bench.systems().items():
                try:
                    found = measure()
                except Exception:  # the others are measured all the same
                    traceback.print_exc()
                    failed.append(f"{name}: {system}")
                    continue
                for metric, value in found.items():
                    print(f"    {name}: {system}: {metric}: {value:.4f}", flush=True)
                    records.append(summarise(bench.target.name, SYSTEMS[system], metric, [value]))
                save(records, settings, args, began, out)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
