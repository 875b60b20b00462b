"""An energy of whole chunks of text over a transformer that writes them from left to right, at equal seconds.

    python -m experiments.text.energy --quick                                   two cores, about a minute
    python -m experiments.text.energy --device cuda --data FOLDER               one H200, about 2 minutes
    python -m experiments.text.energy --device cuda --data FOLDER --what text8 --seconds 90
    python -m experiments.text.energy --device cuda --data FOLDER --length 256 --systems causal energy

FOLDER holds text/tinyshakespeare.txt.gz and text/text8_prefix.txt.gz (or $CTEM_DATA does). --seconds are about those of
the whole call: four fifths are for training, and every system of every text and length gets the same share of them, in
which an energy's includes its base and the draws that it learns from. Results are written after every system. Systems:

    causal    a transformer from left to right, exact nats
    energy    the same for half of the seconds, tilted by a bidirectional transformer of the same size that begins with
              its weights and is learned with the paper's loss, each chunk against every draw of a batch
    masked    an any-order transformer of the same size, by the nats of the tokens that a random set leaves over
    mdlm      the same with MDLM's loss (tokens masked independently with probability t, weight 1/t)
    sedd      the same with SEDD's score entropy for masks

Bits are those of validation and test text, each chunk without what comes before it. The scale of the energy is chosen
on validation text. Its log Z is stated from fresh draws of the base (low in expectation) and from held-out text (high,
if the model is right). The last three have exact bits in one random order, and a bound: the mean over all orders, which
for masks is also the bound in continuous time of MDLM and SEDD, as E (1/t) Σ over hidden tokens is E 1/(number hidden)
Σ with that number uniform. One estimator, with the same hidden sets, gives all of them. On a GPU, training is in bf16
and its steps are captured; draws and scores are in float32 (in bf16, attention to a memory that grows by one position
at a time is slower).
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ctem import train
from ctem.bases import Pool
from ctem.densities.sequences import CausalDensity, MaskedDensity, SequenceNet, sequence_loss
from ctem.matching.losses import tilt_loss
from ctem.partition import tilt_bracket
from experiments.results import Record, arguments, staged, summarise, write
from experiments.text.settings import FILES, FULL, MADE_UP, QUICK, Size, Text, load_text

SYSTEMS = {
    "causal": "left to right",
    "energy": "left to right, tilted by an energy",
    "masked": "any order",
    "mdlm": "any order, MDLM's loss",
    "sedd": "any order, SEDD's loss",
}
TRAINING = 0.8  # of the seconds
BASE = 0.5  # of an energy's seconds, for its base
POOL, FRESH = (
    0.15,
    0.2,
)  # of an energy's seconds: at most so many for the draws that it learns from, and for log Z
PIECE = 4096  # draws at once
ORDERED = 512  # chunks that are scored in one order, which takes a pass for every character
BOUNDED, SETS = 1024, 32  # chunks, and hidden sets of each, for the bound
NANOGPT = "2.12 (nanoGPT, chunks of 256)"  # 1.47 nats
SCALES = torch.linspace(0.0, 3.0, 121, dtype=torch.float64)  # of an energy, looked at on validation text
HELD = 512  # chunks of validation text that training looks at, at most
SHOWN = 4  # texts before and after
LIVELY = 64  # draws from which one is chosen by its weight, for each text that is shown

Loss = Callable[[Any, Tensor, torch.Generator], Tensor]
Cost = Callable[[MaskedDensity, Tensor, Tensor], Tensor]
Values = dict[str, float]


def masked_at(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Visible sets (n, length) in which a token is hidden with probability t, and t (n, 1), evenly on (0, 1)."""
    part = torch.arange(len(x), device=x.device).unsqueeze(1)
    t = (part + torch.rand(len(x), 1, generator=generator, device=x.device)) / len(x)
    t = t.clamp_min(1e-3)
    return torch.rand(x.shape, generator=generator, device=x.device) >= t, t


def nats_of(f: MaskedDensity, x: Tensor, visible: Tensor) -> Tensor:
    """−log p(x_i | visible) of every token, (n, length)."""
    return -f.logits(x, visible).log_softmax(-1).gather(2, x.long().unsqueeze(2)).squeeze(2)


def entropy_of(f: MaskedDensity, x: Tensor, visible: Tensor) -> Tensor:
    """Σ_v e^{u_v} − u_{x_i} − 1 of every token, (n, length), e^u its ratios: no less than its nats."""
    u = f.logits(x, visible) - math.log(f.tokens)
    return u.exp().sum(-1) - u.gather(2, x.long().unsqueeze(2)).squeeze(2) - 1


def mdlm_loss(f: MaskedDensity, x: Tensor, generator: torch.Generator) -> Tensor:
    """Nats a token: (1/t) Σ −log p(x_i | visible) over hidden tokens, E over t. Sahoo et al. 2024."""
    visible, t = masked_at(x, generator)
    return (torch.where(visible, 0.0, nats_of(f, x, visible)) / t).mean()


def sedd_loss(f: MaskedDensity, x: Tensor, generator: torch.Generator) -> Tensor:
    """(1/t) Σ of score entropies over hidden tokens, E over t. Lou et al. 2024."""
    visible, t = masked_at(x, generator)
    return (torch.where(visible, 0.0, entropy_of(f, x, visible)) / t).mean()


def bound(f: MaskedDensity, rows: Tensor, cost: Cost = nats_of, sets: int = SETS, seed: int = 0) -> Tensor:
    """Estimates (sets, n) of the mean over orders of −log b a token, one for each hidden set of a row.

    How many tokens are visible runs evenly through 0 … length − 1 from the first set to the last. The same seed hides
    the same tokens, whatever the density.
    """
    n, length = rows.shape
    generator = torch.Generator(rows.device).manual_seed(seed)
    u = torch.rand(sets, n, 1, generator=generator, device=rows.device)
    count = ((torch.arange(sets, device=rows.device).view(-1, 1, 1) + u) / sets * length).floor()
    found = []
    for size in count.clamp(max=length - 1):
        race = torch.rand(rows.shape, generator=generator, device=rows.device)
        visible = race.argsort(-1).argsort(-1) < size
        with torch.no_grad():
            parts = zip(rows.split(1024), visible.split(1024), strict=True)
            nats = torch.cat([cost(f, part, seen) for part, seen in parts])
        found.append((torch.where(visible, 0.0, nats).sum(-1) / (~visible).sum(-1)).double())
    return torch.stack(found)


LOSSES: dict[str, Loss] = {
    "causal": sequence_loss,
    "masked": sequence_loss,
    "mdlm": mdlm_loss,
    "sedd": sedd_loss,
}


class Run:
    """One text, cut into chunks of one length."""

    def __init__(self, text: Text, size: Size, seconds: float, device: str, capture: bool = False):
        self.text, self.size, self.seconds, self.device = text, size, seconds, device
        self.cuda, self.capture = device.startswith("cuda"), capture
        self.length = text.space.dim
        self.settings: dict[str, Any] = {"seconds of a system": round(seconds, 1)}
        self.shown: dict[str, list[str]] = {}
        self.any_order: Tensor | None = None  # bits of test chunks, which other losses are compared with

    def measure(self, system: str) -> Values:
        """Bits of a system, and how they came about."""
        return self.tilted() if system == "energy" else self.plain(system)

    def options(self) -> dict[str, Any]:
        size = self.size
        return {"width": size.width, "depth": size.depth, "heads": size.heads, "drop": size.drop}

    def trained(self, f: nn.Module, loss: Loss, recipe: Any, seconds: float, name: str) -> int:
        """Train for so many seconds, in bf16 on a GPU; the step that held-out text chose."""
        f.body.precision = "bf16" if self.cuda else "float32"  # type: ignore[union-attr]
        text, began = self.text, time.perf_counter()
        recipe = replace(recipe, batch_size=self.size.batch if self.cuda else recipe.batch_size)
        held = thinned(text.valid, HELD)
        history = train(
            f, loss, text.train, recipe, held_out=held, deadline=began + seconds, cuda_graph=self.capture
        )
        f.body.precision = "float32"  # type: ignore[union-attr]
        f.eval().requires_grad_(False)
        self.settings[name] = {
            "steps": history.step[-1],
            "best step": history.best_step,
            "loss": [round(value, 4) for value in history.loss[:: max(1, len(history.loss) // 20)]],
            "held-out": [round(value, 4) for value in history.held_out[:: max(1, len(history.loss) // 20)]],
            "seconds": round(time.perf_counter() - began, 1),
        }
        print(f"  {name}: {self.settings[name]}", flush=True)
        return history.best_step

    def plain(self, system: str) -> Values:
        """A density by itself: exact bits, and of masked ones their bound."""
        kind = CausalDensity if system == "causal" else MaskedDensity
        b = kind(self.text.space, **self.options()).to(self.device)
        step = self.trained(b, LOSSES[system], self.size.recipe, self.seconds, system)
        found: Values = {}
        for part, rows in self.parts().items():
            some = rows if system == "causal" else thinned(rows, ORDERED)
            bits = -log_prob(b, some) / self.length / math.log(2)
            found |= {f"bits a character, {part}": float(bits.mean()), f"standard error, {part}": error(bits)}
            if isinstance(b, MaskedDensity):
                found |= self.bounded(b, rows, part, system)
        return found | {"step chosen by validation text": step}

    def bounded(self, b: MaskedDensity, rows: Tensor, part: str, system: str) -> Values:
        """The bound in bits, its standard error, and what of that the hidden sets contribute."""
        rows = thinned(rows, BOUNDED)
        bits = bound(b, rows) / math.log(2)
        pairs = bits.view(-1, 2, len(rows)).diff(dim=1)  # neighbours differ by chance alone, or nearly
        drawing = float(pairs.square().sum((0, 1)).mean().sqrt()) / len(bits) / math.sqrt(len(rows))
        name, each = f"{part}, bound over all orders", bits.mean(0)
        found: Values = {
            f"bits a character, {name}": float(each.mean()),
            f"standard error, {name}": error(each),
            f"standard error, {name}, of hidden sets alone": drawing,
        }
        if part == "test" and system == "masked":
            self.any_order = each
        elif part == "test" and self.any_order is not None:
            gap = each - self.any_order
            found |= {
                "bits a character, test, bound, more than of any order": float(gap.mean()),
                "standard error, test, bound, more than of any order": error(gap),
            }
        if part == "test" and system == "sedd":
            own = bound(b, rows, entropy_of) / math.log(2)
            found["bits a character, test, bound by its own ratios"] = float(own.mean())
        return found

    def parts(self) -> dict[str, Tensor]:
        return {"validation": self.text.valid, "test": self.text.test}

    def tilted(self) -> Values:
        """A causal base for a part of the seconds, draws of it, and an energy for the rest."""
        began = time.perf_counter()
        base, g, step = self.learned()
        seconds = time.perf_counter() - began
        generator = torch.Generator(self.device).manual_seed(2)
        fresh = self.drawn(base, self.size.fresh, FRESH * self.seconds, generator, "draws for log Z")
        found = self.bracketed(base, g, fresh)
        self.show(base, fresh, scaled(g, found["scale of the energy"]), generator)
        return found | {"step chosen by validation text": step, "seconds of training": seconds}

    def learned(self) -> tuple[CausalDensity, SequenceNet, int]:
        """A base, the energy that tilts it, and the step at which that was best."""
        began, size, text = time.perf_counter(), self.size, self.text
        base = CausalDensity(text.space, **self.options()).to(self.device)
        self.trained(base, sequence_loss, size.recipe, BASE * self.seconds, "base")
        generator = torch.Generator(self.device).manual_seed(1)
        drawn = self.drawn(base, size.pool, POOL * self.seconds, generator, "draws to learn from")
        held = len(drawn) // 10
        pools = Pool(drawn[held:]), Pool(drawn[:held])
        g = SequenceNet.of(base, drop=size.drop).requires_grad_()

        def loss(f: SequenceNet, x: Tensor, generator: torch.Generator) -> Tensor:
            return tilt_loss(f, x, pools[not f.training], generator, every=True)

        left = self.seconds - (time.perf_counter() - began)
        return base, g, self.trained(g, loss, size.energy, left, "energy")

    def drawn(
        self, base: CausalDensity, n: int, seconds: float, generator: torch.Generator, name: str
    ) -> Tensor:
        """n draws, or as many as there is time for."""
        began = time.perf_counter()
        parts = [base.sample(min(n, PIECE), generator)]
        while (left := n - PIECE * len(parts)) > 0 and time.perf_counter() < began + seconds:
            parts.append(base.sample(min(left, PIECE), generator))
        rows = torch.cat(parts)
        self.settings[name] = {"rows": len(rows), "seconds": round(time.perf_counter() - began, 1)}
        print(f"  {name}: {self.settings[name]}", flush=True)
        return rows

    def bracketed(self, base: CausalDensity, g: SequenceNet, fresh: Tensor) -> Values:
        """Bits with log Z from both sides; the scale of g is the best for validation text."""
        here = {part: values_of(g, rows) for part, rows in self.parts().items()}
        there = values_of(g, fresh)
        first, second = there.chunk(2)  # the scale is chosen by some draws, log Z is of the others
        gain = torch.stack(
            [s * here["validation"].mean() - log_mean(s * first) for s in SCALES.to(there.device)]
        )
        scale = float(SCALES[int(gain.argmax())])
        plain = gain[int((SCALES - 1).abs().argmin())]
        held = torch.cat([here["validation"], here["test"]])
        low, high = tilt_bracket(lambda v: scale * v.squeeze(1), second.unsqueeze(1), held.unsqueeze(1))
        found: Values = {"scale of the energy": scale}
        for part, rows in self.parts().items():
            log_b = log_prob(base, rows)
            bits, per = -log_b / self.length / math.log(2), 1 / self.length / math.log(2)
            tilt = scale * here[part]
            found[f"bits a character, {part}, base alone"] = float(bits.mean())
            found[f"bits a character, {part}"] = float(bits.mean()) - per * (float(tilt.mean()) - low.value)
            found[f"bits a character, {part}, log Z by held-out text"] = float(bits.mean()) - per * (
                float(tilt.mean()) - high.value
            )
            found[f"standard error, {part}"] = error(bits - per * tilt)
            found[f"gain, bits a character, {part}"] = per * (float(tilt.mean()) - low.value)
            found[f"gain: standard error, {part}"] = per * math.hypot(error(tilt), low.stderr)
            found[f"share of pairs ranked rightly, {part}"] = ranked(here[part], second)
        found |= {
            "nats a chunk, gain at the best scale, validation": float(gain.max()),
            "nats a chunk, gain at scale 1, validation": float(plain),
            "log Z, by draws of the base": low.value,
            "log Z, by draws of the base: standard error": low.stderr,
            "log Z, by draws of the base: effective draws": low.ess,
            "log Z, by held-out text": high.value,
            "log Z, by held-out text: standard error": high.stderr,
        }
        return found

    def show(self, base: CausalDensity, fresh: Tensor, g: Any, generator: torch.Generator) -> None:
        """Texts before and after: draws of the base, and draws chosen by their weights."""
        self.shown["draws of the base"] = self.text.read(fresh[:SHOWN])
        groups = fresh[: SHOWN * LIVELY].unflatten(0, (-1, LIVELY))
        p = torch.stack([values_of(g, group).softmax(0) for group in groups])
        chosen = torch.multinomial(p, 1, generator=generator).squeeze(1)
        after = groups[torch.arange(len(groups), device=groups.device), chosen]
        self.shown[f"one of {LIVELY} draws, chosen by the energy"] = self.text.read(after)


def thinned(rows: Tensor, most: int) -> Tensor:
    """At most so many rows, evenly spaced."""
    return rows[:: -(-len(rows) // most)]


def scaled(g: nn.Module, scale: float) -> Callable[[Tensor], Tensor]:
    return lambda x: scale * g(x)


def values_of(g: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """g of rows, float64, without gradients."""
    with torch.no_grad():
        return torch.cat([g(part).double() for part in rows.split(2**13)])


def log_prob(b: CausalDensity | MaskedDensity, rows: Tensor) -> Tensor:
    with torch.no_grad():
        return b.log_prob(rows)


def log_mean(values: Tensor) -> Tensor:
    """log mean e^v."""
    return values.logsumexp(0) - math.log(len(values))


def error(values: Tensor) -> float:
    return float(values.std()) / math.sqrt(len(values))


def ranked(real: Tensor, drawn: Tensor) -> float:
    """How often g is larger of a chunk of text than of a draw."""
    below = torch.searchsorted(drawn.sort().values, real)
    return float(below.double().mean()) / len(drawn)


def records(run: Run, found: dict[str, Values]) -> list[Record]:
    data = f"{run.text.name}, chunks of {run.length}"
    known = {("tinyshakespeare", "causal", "bits a character, test"): NANOGPT}
    return [
        summarise(data, SYSTEMS[system], metric, [value], known.get((run.text.name, system, metric)))
        for system, values in found.items()
        for metric, value in values.items()
    ]


def measured(run: Run, systems: list[str], args: Any, out: Path) -> None:
    """Every system, written as soon as it is known; one that fails does not take the others with it."""
    found: dict[str, Values] = {}
    for system in systems:
        began = time.perf_counter()
        torch.manual_seed(0)
        try:
            found[system] = run.measure(system)
        except Exception:
            traceback.print_exc()
            run.settings.setdefault("failed", []).append(system)
        for metric, value in found.get(system, {}).items():
            print(f"    {system}: {metric}: {value:.4f}", flush=True)
        run.settings.setdefault("seconds in all", {})[system] = round(time.perf_counter() - began, 1)
        save(run, found, args, out)


def save(run: Run, found: dict[str, Values], args: Any, out: Path) -> None:
    """The results of one text and length, and what was drawn."""
    part = "" if "energy" in args.systems else f"-{'-'.join(args.systems)}"
    name = f"text-{run.text.name.replace(' ', '-')}-{run.length}{part}"
    about = {"size": run.size._asdict()} | run.settings
    spent = sum(run.settings["seconds in all"].values())
    texts = {
        "texts": {part: [each.replace("\n", "⏎") for each in found] for part, found in run.shown.items()}
    }
    write(name, about, records(run, found), args.device, spent, out, quick=args.quick, curves=texts)


def parsed() -> Any:
    parser = arguments(__doc__)
    parser.add_argument("--data", help="folder of text/ (default: $CTEM_DATA)")
    parser.add_argument("--what", nargs="+", choices=tuple(FILES), default=["tinyshakespeare"], help="texts")
    parser.add_argument("--length", nargs="+", type=int, help="of chunks (default: 128, with --quick 32)")
    parser.add_argument("--systems", nargs="+", choices=tuple(SYSTEMS), help="(default: all)")
    parser.add_argument("--seconds", type=float, help="of the whole call (default: 130, with --quick 45)")
    parser.add_argument("--no-capture", action="store_true", help="on a GPU: run every step as it is written")
    args = parser.parse_args()
    args.length = args.length or [32 if args.quick else 128]
    args.systems = args.systems or list(SYSTEMS)
    args.seconds = args.seconds or (45.0 if args.quick else 130.0)
    args.what = [MADE_UP] if args.quick else args.what
    return args


def warm_up(run: Run) -> None:
    """A few steps before any clock runs, because a GPU's first are slow."""
    began = time.perf_counter()
    for kind in (CausalDensity, MaskedDensity):
        b = kind(run.text.space, **run.options()).to(run.device)
        b.body.precision = "bf16"
        rows = run.text.train[: run.size.batch]
        recipe = replace(run.size.recipe, steps=6, batch_size=run.size.batch)
        train(b, sequence_loss, rows, recipe, cuda_graph=run.capture)
    torch.cuda.synchronize()
    print(f"  ready after {time.perf_counter() - began:.1f} s", flush=True)


def main() -> None:
    args = parsed()
    size = QUICK if args.quick else FULL
    if args.device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
    share = TRAINING * args.seconds / (len(args.what) * len(args.length) * len(args.systems))
    failed: list[str] = []
    with staged(args.out) as out:
        for name in args.what:
            for length in args.length:
                print(f"{name}, chunks of {length}: {share:.1f} s for each system", flush=True)
                text = load_text(name, length, args.data, args.device)
                cuda = args.device.startswith("cuda")
                run = Run(text, size, share, args.device, capture=cuda and not args.no_capture)
                if cuda:
                    warm_up(run)
                measured(run, args.systems, args, out)
                failed += run.settings.get("failed", [])
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
