"""One objective of ``mnist.py``, from training to what its samples are worth."""

from __future__ import annotations

import copy
import hashlib
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctem import Category, ProductBase, Recipe, Space, train
from ctem.densities.chain import Chain
from ctem.densities.spacetime.differences import Differences
from ctem.matching.noise import Noise
from ctem.samplers import AnnealedBits, Denoise, FlipJump, LangevinFlips, PathFlips, anneal_bits, denoise_bits
from ctem.training.checkpoints import read_checkpoint, write_checkpoint
from experiments.images.firstorder import FirstOrder, HiddenPixels
from experiments.images.judge import Judge
from experiments.images.objectives import PAPER_LEVELS, Angular, Contours, LevelFlips, angle_of, level_at
from experiments.images.settings import FIRST, Images, Job, Scale, shuffled
from experiments.images.unet import ImageNet
from experiments.results import Record, load_arrays, save_arrays, summarise, write

PAPER_TOP1, PAPER_REAL = "0.929 [0.920, 0.937]", "0.992 [0.989, 0.994]"


class Deadline:
    """Wall-clock seconds of the whole call."""

    def __init__(self, seconds: float):
        self.began, self.seconds = time.perf_counter(), seconds

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.began

    @property
    def left(self) -> float:
        return self.seconds - self.spent


SYSTEMS = {
    "soft": "soft target, shared clock",
    "constant": "constant target, shared clock",
    "paper": "the paper's configuration, cut to minutes",
    "spacetime": "space-time, shared clock",
    "slopes": "a clock per pixel, slopes",
}


class Run:
    """One objective from training to pictures; what it found is written into ``out`` after every stage."""

    def __init__(
        self,
        objective: str,
        scale: Scale,
        images: Images,
        args: Any,
        out: Path,
        deadline: Deadline,
        share: float,
    ):
        self.objective, self.scale, self.args, self.deadline = objective, scale, args, deadline
        self.out = out
        self.job = replace(scale.jobs[objective], seconds=share * scale.jobs[objective].seconds)
        self.bits, self.device = images.bits[self.job.bits], args.device
        space = Space([Category(2)] * scale.side**2)
        self.shape = (scale.side, scale.side)
        rows = self.bits.train
        self.base = (ProductBase.fit(space, rows) if self.job.marginal_base else ProductBase(space)).to(
            self.device
        )
        precision = "bf16" if args.device.startswith("cuda") else "float32"
        self.g = ImageNet(self.base, self.shape, scale.channels, seed=args.seed, precision=precision)
        self.g = self.g.to(self.device)
        self.generator = torch.Generator(self.device).manual_seed(args.seed + 1)
        self.weights = args.build / f"{scale.name}-{objective}.safetensors"
        self.arrays: dict[str, Any] = {}
        self.records: dict[tuple[str, str, str], Record] = {}  # a stage that is done again replaces its own
        self.settings: dict[str, Any] = {
            "objective": _settings(self.job),
            "channels": scale.channels,
            "parameters": sum(p.numel() for p in self.g.parameters()),
            "precision": precision,
            "sampler": {"levels": scale.levels, "Langevin": scale.langevin, "paths": scale.paths},
            "seed": args.seed,
            "seconds": {},
        }
        kind = "fixed" if self.job.bits == "fixed" and scale.side == 28 else "threshold ½"
        self.dataset = f"{'binary MNIST' if scale.side == 28 else '8×8 digits'}, {kind}"
        self.system = SYSTEMS[objective]

    @property
    def chained(self) -> bool:
        """Whether there is a clock per pixel, and so a chain rule."""
        return self.objective == "slopes"

    @property
    def chain(self) -> Chain:
        return Chain(FirstOrder(self.g))

    @property
    def chain_cost(self) -> int:
        """Evaluations of the chain rule for one image; a gradient counts as one."""
        return self.base.space.dim

    @property
    def lowest(self) -> float:
        return self.job.schedule.low if isinstance(self.job.schedule, Angular) else PAPER_LEVELS.values[0]

    def ladder(self, count: int | None = None) -> list[float]:
        """Levels from large to small, evenly spaced in angle; the paper's own for the paper."""
        if not isinstance(self.job.schedule, Angular):
            return sorted(PAPER_LEVELS.values, reverse=True)
        ends = angle_of(torch.tensor([self.job.schedule.high, self.lowest], dtype=torch.float64)).tolist()
        return level_at(torch.linspace(*ends, count or self.scale.levels, dtype=torch.float64)).tolist()

    def add(
        self, metric: str, value: float, paper: float | str | None = None, system: str | None = None
    ) -> None:
        record = summarise(self.dataset, system or self.system, metric, [value], paper)
        self.records[record.dataset, record.system, record.metric] = record
        print(f"{self.objective}: {metric}: {value:.4f}{f' ({system})' if system else ''}", flush=True)

    def save(self) -> None:
        options = {"side": self.scale.side, "device": self.device, "objective": " ".join(self.args.objective)}
        options |= {k: v for k in ("minutes", "steps") if (v := getattr(self.args, k))}
        command = " ".join(
            ["python -m experiments.images.mnist", *(f"--{k} {v}" for k, v in options.items())]
        )
        name = f"{self.scale.name}-{self.objective}"
        self.settings["wall clock of the call so far"] = round(self.deadline.spent, 1)
        spent, quick = sum(self.settings["seconds"].values()), self.args.quick
        found = self.records.values()
        write(name, self.settings, found, self.device, spent, self.out, quick=quick, command=command)
        save_arrays(self.args.build / f"{name}.npz", self.arrays)

    def loss(self) -> Any:
        job = self.job
        if self.chained:
            return HiddenPixels()
        return LevelFlips(
            Noise(self.base).to(self.device),
            job.schedule,
            comparisons=job.comparisons,
            target=job.target,
            temporal=job.temporal,
            reach=1 / self.scale.side,
            interest=None if self.objective == "paper" else Contours(self.shape),
            rule=job.rule,
        )

    def train(self) -> None:
        """As many steps as the seconds allow, at a pace that is measured first."""
        began, cuda, loss = time.perf_counter(), self.device.startswith("cuda"), self.loss()
        torch.backends.cudnn.benchmark = True
        pace = steps_per_second(self.g, loss, self.bits.train, self.job.recipe, cuda)
        seconds = self.job.seconds - (time.perf_counter() - began)
        steps = self.args.steps or (20 if self.args.quick else max(20, int(0.97 * seconds * pace)))
        recipe = replace(
            self.job.recipe, steps=steps, evaluate_every=max(1, steps // 10), seed=self.args.seed
        )
        print(f"{self.objective}: {steps} steps at {pace:.1f} a second", flush=True)
        history = train(
            self.g, loss, self.bits.train, recipe, held_out=self.bits.valid, progress=True, cuda_graph=cuda
        )
        self.settings["training"] = {
            "steps": steps,
            "epochs": round(steps * recipe.batch_size / len(self.bits.train), 1),
            "best step": history.best_step,
            "held-out": [round(v, 5) for v in history.held_out],
            "loss": [round(v, 5) for v in history.loss],
        }
        torch.backends.cudnn.benchmark = False  # trying algorithms pays for thousands of equal steps only
        self.args.build.mkdir(parents=True, exist_ok=True)
        write_checkpoint(self.weights, self.objective, self.g.state_dict(), {"steps": steps})
        self.ready()
        self.add("epochs trained", steps * recipe.batch_size / len(self.bits.train))

    def ready(self) -> None:
        """Weights as the later stages use them, with their hash."""
        sha256 = hashlib.sha256(self.weights.read_bytes()).hexdigest()
        self.settings["weights"] = {"file": self.weights.name, "sha256": sha256}
        self.g.eval().requires_grad_(False)

    def restore(self) -> None:
        """Weights, arrays and results of an earlier call."""
        self.g.load_state_dict(read_checkpoint(self.weights, self.objective)[0])
        self.arrays = load_arrays(self.weights.with_suffix(".npz"))
        file = self.args.out / f"{self.weights.stem}{'-quick' if self.args.quick else ''}.json"
        earlier = json.loads(file.read_text(encoding="utf-8"))
        self.settings = earlier["settings"]
        self.settings["earlier stages"] = {key: earlier[key] for key in ("commit", "created")}
        for row in earlier["records"]:
            self.records[row["dataset"], row["system"], row["metric"]] = Record(**row)
        self.ready()

    def exact_moves(self) -> list[Any]:
        return [LangevinFlips(self.scale.langevin), PathFlips(self.scale.paths, flips=4)]

    def moves(self) -> list[Any]:
        """Of the main sampler; the paper's, half a flip a pixel and level, is for its own configuration."""
        if self.objective == "paper":
            return [FlipJump(self.scale.side**2 // 2)]
        return [Denoise(self.base), *self.exact_moves()]

    def drawn(
        self, x: Tensor, moves: list[Any], levels: list[float], fixed: Tensor | None = None
    ) -> tuple[Tensor, AnnealedBits]:
        """Chains from x down the levels, their last noise taken away; and how they went."""
        f, generator = self.g.log_density, self.generator
        out = anneal_bits(f, x, levels, moves, generator, fixed=fixed)
        return denoise_bits(f, out.x, out.levels[-1], self.base, generator, fixed=fixed), out

    @property
    def samples(self) -> Tensor:
        return torch.tensor(self.arrays["samples"], device=self.device).float()

    def sample(self) -> None:
        count = self.scale.samples
        if self.chained:
            x, evaluations = self.chain.sample(count, self.generator).x, self.chain_cost
        else:
            start = self.base.sample(count, self.generator)
            x, out = self.drawn(start, self.moves(), self.ladder())
            x = out.x if self.objective == "paper" else x
            evaluations = out.evaluations + 2
            self.settings["acceptance"] = [[round(v, 3) for v in row] for row in out.acceptance]
            self.settings["steps of moves"] = out.steps
        self.arrays["samples"] = x.to(torch.uint8).cpu().numpy()
        self.arrays["real"] = shuffled(self.bits.test)[: 10 * FIRST].to(torch.uint8).cpu().numpy()
        self.settings["evaluations a sample"] = evaluations

    def keep(self, part: str, *rows: Tensor) -> None:
        """Lines of images for a picture."""
        for i, line in enumerate(rows):
            self.arrays[f"{part} {i}"] = line[:FIRST].float().cpu().numpy()

    def evaluate(self, judge: Judge) -> None:
        found, real = judge.measure(self.samples), judge.real()
        names = {
            "top1": "classifier top-1",
            "top1_low": "classifier top-1, 95 % interval from",
            "top1_high": "classifier top-1, 95 % interval to",
            "smallest_class": "smallest class share",
            "ink": "ink",
            "frechet_ratio": "Fréchet distance, relative to real-vs-real",
            "precision": "precision",
            "recall": "recall",
            "density": "density",
            "coverage": "coverage",
            "nearest": "pixels to the nearest training digit",
            "copies": "share as near to a training digit as 1 % of test digits",
        }
        big = self.scale.side == 28 and not self.args.quick  # the paper's
        for key, name in names.items():
            first = big and key == "top1"
            self.add(name, getattr(found, key), PAPER_TOP1 if first else None)
            self.add(name, getattr(real, key), PAPER_REAL if first else None, system="real digits")
        self.add(
            "classifier accuracy", judge.accuracy(self.bits.test, self.bits.labels), system="real digits"
        )
        seconds = self.settings["seconds"]
        if {"train", "sample"} <= seconds.keys():
            wall = seconds["train"] + seconds["sample"]
            self.add("training and drawing samples, seconds", wall, "about 6 h" if big else None)
        self.settings["samples"] = found._asdict()
        self.settings["real"] = real._asdict()

    def scores(self, x: Tensor) -> Tensor:
        """Log-density up to a constant, in one pass."""
        if self.chained:
            return Differences(self.g, self.base, batch_size=8192).one_pass(x)
        level = torch.full((len(x),), self.lowest, device=x.device)
        parts = zip(x.split(4096), level.split(4096), strict=True)
        with torch.no_grad():
            return torch.cat([self.g.log_density(a, s) for a, s in parts])


def steps_per_second(g: ImageNet, loss: Any, x: Tensor, recipe: Recipe, cuda: bool) -> float:
    """The pace of training: a long trial less a short one, after a first that warms the device up."""
    seconds = []
    counts = (5, 10, 40) if cuda else (2, 4, 24)
    for steps in counts:
        began = time.perf_counter()
        short = replace(recipe, steps=steps, evaluate_every=steps)
        train(copy.deepcopy(g), loss, x, short, cuda_graph=cuda)
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return (counts[-1] - counts[-2]) / max(seconds[-1] - seconds[-2], 1e-3)


def _settings(job: Job) -> dict[str, Any]:
    return asdict(job) | {"rule": job.rule.__name__, "schedule": repr(job.schedule)}
