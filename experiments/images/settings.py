"""What ``mnist.py`` trains, for how many seconds and on which bits, and how it is looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from ctem import Recipe
from ctem.datasets import load_binarized_mnist, load_mnist
from ctem.matching.losses import Rule, Schedule, brier, log_score
from experiments.images.objectives import PAPER_LEVELS, Angular

OURS = Recipe(batch_size=256, learning_rate=1e-3, ema=0.999, weight_decay=0.01, clip=10.0)
SMALL = Recipe(batch_size=128, learning_rate=3e-3, ema=0.99, weight_decay=0.01, clip=10.0)
FIRST = 10  # images in a line of a picture
PAPER = Recipe(batch_size=256, learning_rate=5e-5, schedule="constant", clip=100.0)  # 300 epochs in 6 hours


@dataclass(frozen=True)
class Job:
    """One objective: what is trained, on which bits, for how many seconds."""

    seconds: float
    recipe: Recipe
    bits: str = "threshold"  # at half, or the "fixed" binarisation of the likelihood benchmark
    marginal_base: bool = True  # else uniform, as in the paper
    target: str = "soft"
    schedule: Schedule = Angular(0.01, 8.0)  # noqa: RUF009  frozen
    comparisons: int = 2
    temporal: float = 0.0
    rule: Rule = log_score


@dataclass(frozen=True)
class Scale:
    """Everything that differs between 28 × 28 and 8 × 8 pixels."""

    name: str
    side: int
    channels: tuple[int, ...]
    minutes: float  # of one call with two objectives
    jobs: dict[str, Job]
    classifier: dict[str, int]  # epochs, batch size
    samples: int
    levels: int  # of the main sampler, and its moves at each
    langevin: int
    paths: int
    likelihood_rows: int
    orders: int  # of the pixels, for the chain rule
    chains: int  # of the bracket of log Z
    stations: int  # its levels, fewer where time is short
    tried: int  # images that are filled in and denoised
    budgets: tuple[int, ...]  # evaluations of the cost curves
    curve_samples: int


def jobs(seconds: float, recipe: Recipe, comparisons: int, slopes: Job) -> dict[str, Job]:
    """The objectives, each for as long: what differs is what is compared."""
    soft = Job(seconds, recipe, comparisons=comparisons)
    paper = Job(
        seconds,
        PAPER,
        marginal_base=False,
        target="constant",
        schedule=PAPER_LEVELS,
        comparisons=1,
        rule=brier,
    )
    return {
        "soft": soft,
        "slopes": slopes,
        "constant": replace(soft, target="constant"),
        "spacetime": replace(soft, bits="fixed", temporal=0.5, schedule=Angular(0.001, 8.0)),
        "paper": paper,
    }


SCALES = {
    28: Scale(
        name="mnist",
        side=28,
        channels=(48, 96, 192),
        minutes=11,
        jobs=jobs(150, OURS, 4, Job(300, OURS, bits="fixed")),
        classifier={"epochs": 40, "batch_size": 500},
        samples=1024,
        levels=30,
        langevin=10,
        paths=5,
        likelihood_rows=1000,
        orders=2,
        chains=256,
        stations=800,
        tried=100,
        budgets=(60, 200, 600),
        curve_samples=512,
    ),
    8: Scale(
        name="digits",
        side=8,
        channels=(16, 32),
        minutes=4.5,
        jobs=jobs(75, SMALL, 2, Job(65, SMALL, bits="fixed")),
        classifier={"epochs": 60, "batch_size": 128},
        samples=500,
        levels=13,
        langevin=8,
        paths=4,
        likelihood_rows=500,
        orders=2,
        chains=128,
        stations=50,
        tried=20,
        budgets=(30, 100, 300),
        curve_samples=100,
    ),
}


def quick(scale: Scale) -> Scale:
    """The same in seconds, to see that it works."""
    small = {k: replace(job, recipe=replace(job.recipe, batch_size=16)) for k, job in scale.jobs.items()}
    return replace(
        scale,
        jobs=small,
        channels=(4, 8),
        classifier={"epochs": 5, "batch_size": 64},
        samples=32,
        levels=4,
        langevin=2,
        paths=1,
        likelihood_rows=8,
        orders=1,
        chains=16,
        stations=8,
        tried=10,
        budgets=(10,),
        curve_samples=16,
    )


class Bits(NamedTuple):
    """One binarisation, rows (n, d) of 0 and 1 on the device."""

    train: Tensor
    valid: Tensor
    test: Tensor
    labels: Tensor  # of the test rows


class Images(NamedTuple):
    """Grey training images for the classifier, and the binarisations."""

    grey: Tensor  # (n, d), 0 … 1
    labels: Tensor
    bits: dict[str, Bits]


def _load_28(folder: str | None, device: str) -> Images:
    """MNIST, thresholded at half; and the fixed binarisation, whose test rows are MNIST's sorted by class."""
    digits, fixed = load_mnist(folder), load_binarized_mnist(folder)
    labels, test_labels = (torch.tensor(v, device=device) for v in (digits.train_labels, digits.test_labels))
    grey, test = (torch.tensor(v, device=device).float() / 255 for v in (digits.train, digits.test))
    ink = (grey >= 0.5).float()
    rows = [torch.tensor(v, device=device).float() for v in fixed]
    bits = {
        "threshold": Bits(ink[:-2000], ink[-2000:], (test >= 0.5).float(), test_labels),
        "fixed": Bits(rows[0], shuffled(rows[1])[:2000], rows[2], test_labels.sort().values),
    }
    return Images(grey, labels, bits)


def _load_8(device: str) -> Images:
    """scikit-learn's 1797 digits, thresholded at half, split at random into 1150, 147 and 500."""
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    grey = torch.as_tensor(found.data)[order].float().to(device) / 16
    labels = torch.as_tensor(found.target)[order].to(device)
    ink = (grey >= 0.5).float()
    bits = Bits(ink[:1150], ink[1150:1297], ink[1297:], labels[1297:])
    return Images(grey[:1150], labels[:1150], {"threshold": bits, "fixed": bits})


def load_images(side: int, folder: str | None, device: str) -> Images:
    """The digits of 28 or 8 pixels a side."""
    return _load_28(folder, device) if side == 28 else _load_8(device)


def shuffled(x: Tensor, seed: int = 0) -> Tensor:
    """Rows in the same random order every time: the fixed binarisation is sorted by class."""
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)]
