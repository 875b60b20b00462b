"""What ``mnist.py`` measures of samples: by an own classifier, by distances, by ranks; no number rests on one alone.

Mean confidence is the paper's number, and collapse to one fine digit would win it: hence class shares, ink, the
Fréchet distance, precision, recall, density and coverage. Copying the training rows would win those: hence the
distance to the nearest training row. Every number has the one of real digits beside it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from ctem import Recipe, train


class Classifier(nn.Module):
    """Convolutions, one hidden layer, ten classes: logits of rows of bits (n, height · width)."""

    def __init__(self, shape: tuple[int, int], width: int = 32, features: int = 128):
        super().__init__()
        self.shape = shape
        sizes, layers = (1, width, width, 2 * width, 2 * width), []
        for i, (a, b) in enumerate(pairwise(sizes)):
            stride = 2 if i % 2 and min(shape) > 8 else 1
            layers += [nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        side = [-(-n // 4) if min(shape) > 8 else n for n in shape]
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * width * side[0] * side[1], features))
        self.head = nn.Linear(features, 10)

    def features(self, x: Tensor) -> Tensor:
        """What the last layer sees, (n, features)."""
        return torch.relu(self.body(2 * x.view(-1, 1, *self.shape) - 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(self.features(x), 0.3, self.training))


def train_classifier(
    grey: Tensor,
    labels: Tensor,
    shape: tuple[int, int],
    *,
    epochs: int = 40,
    batch_size: int = 500,
    seed: int = 0,
) -> Classifier:
    """A classifier of bits: grey images (n, d), binarised afresh in every batch and moved by a pixel or two."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # initial weights know no generator of their own
        net = Classifier(shape, 32 if min(shape) > 8 else 16).to(grey.device)
    reach = 2 if min(shape) > 8 else 1

    def loss(f: Classifier, rows: Tensor, generator: torch.Generator) -> Tensor:
        x = _shifted(binarised(rows[:, :-1], generator), shape, reach, generator)
        return cross_entropy(f(x), rows[:, -1].long())

    steps = epochs * max(1, len(grey) // batch_size)
    recipe = Recipe(
        steps=steps,
        batch_size=batch_size,
        learning_rate=3e-3,
        weight_decay=0.05,
        evaluate_every=min(250, steps),
        seed=seed,
    )
    train(net, loss, torch.cat([grey, labels.unsqueeze(1).to(grey)], 1), recipe)
    return net.eval()


def binarised(grey: Tensor, generator: torch.Generator) -> Tensor:
    """Grey rows (n, d) as bits: half of them thresholded at half, half drawn with the grey value as probability."""
    u = torch.rand(len(grey), grey.shape[1] + 1, generator=generator, device=grey.device)
    half = torch.where(u[:, -1:] < 0.5, 0.5, u[:, :-1].clamp(1e-6))
    return (grey >= half).float()


def _shifted(x: Tensor, shape: tuple[int, int], reach: int, generator: torch.Generator) -> Tensor:
    """Every image moved by whole pixels, at most ``reach`` each way."""
    height, width = shape
    room = pad(x.view(-1, height, width), (reach,) * 4)
    move = torch.randint(2 * reach + 1, (2, len(x), 1), generator=generator, device=x.device)
    down = torch.arange(height, device=x.device) + move[0]
    right = torch.arange(width, device=x.device) + move[1]
    row = torch.arange(len(x), device=x.device).view(-1, 1, 1)
    return room[row, down.unsqueeze(2), right.unsqueeze(1)].flatten(1)


class Measured(NamedTuple):
    """Samples under the classifier and beside real digits."""

    top1: float
    top1_low: float  # 95 % bootstrap interval
    top1_high: float
    smallest_class: float
    classes: list[float]
    ink: float
    frechet: float
    frechet_ratio: float  # to as many training digits
    precision: float
    recall: float
    density: float
    coverage: float
    nearest: float  # mean Hamming distance to the nearest training row
    copies: float  # share of samples as near to one as the nearest 1 % of the test digits


class Judge:
    """Everything that is measured of samples, against one binarisation of real digits.

    Arguments:
        classifier: trained on binarised digits.
        train, test: real rows (n, d) on the classifier's device.
        count: samples that are compared at a time; the real references have as many, so that biases are equal.
    """

    def __init__(self, classifier: Classifier, train: Tensor, test: Tensor, count: int, seed: int = 0):
        self.classifier, self.train = classifier, train
        generator = torch.Generator().manual_seed(seed)
        mixed = test[torch.randperm(len(test), generator=generator).to(test.device)]
        self.count = min(count, len(test))
        self.test = mixed[: self.count]
        self.reference = self.features(test)
        self.near = self.features(self.test)
        self.fresh = train[torch.randperm(len(train), generator=generator)[: self.count].to(train.device)]
        self.floor = frechet(self.features(self.fresh), self.reference)
        self.test_distance = nearest_training_row(self.test, train)

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        return torch.cat([self.classifier.features(part) for part in x.float().split(2000)])

    @torch.no_grad()
    def confidence(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Largest class probability and its class, (n,) each."""
        logits = torch.cat([self.classifier(part) for part in x.float().split(2000)])
        best = logits.softmax(-1).max(-1)
        return best.values, best.indices

    def accuracy(self, x: Tensor, labels: Tensor) -> float:
        return float((self.confidence(x)[1] == labels).float().mean())

    def measure(self, x: Tensor) -> Measured:
        """All of it for samples x (n, d)."""
        p, label = self.confidence(x)
        low, high = bootstrap(p)
        shares = torch.bincount(label, minlength=10).double() / len(label)
        distance, limit = nearest_training_row(x, self.train), self.test_distance.quantile(0.01)
        features = self.features(x)
        away = frechet(features, self.reference)
        return Measured(
            float(p.double().mean()),
            low,
            high,
            float(shares.min()),
            [round(v, 4) for v in shares.tolist()],
            float(x.float().mean()),
            away,
            away / self.floor,
            *neighbours(self.near, features[: self.count]),
            float(distance.mean()),
            float((distance <= limit).double().mean()),
        )

    def real(self) -> Measured:
        """Real digits: test rows, and where test rows are the reference, training rows."""
        test, train = self.measure(self.test), self.measure(self.fresh)
        kept = ("frechet", "frechet_ratio", "precision", "recall", "density", "coverage")
        return test._replace(**{name: getattr(train, name) for name in kept})

    def quick(self, x: Tensor) -> tuple[float, float]:
        """Mean confidence and Fréchet distance, for curves."""
        return float(self.confidence(x)[0].double().mean()), frechet(self.features(x), self.reference)


def bootstrap(values: Tensor, resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval of the mean.

    >>> bootstrap(torch.ones(10))
    (1.0, 1.0)
    """
    v = values.double().cpu()
    index = torch.randint(len(v), (resamples, len(v)), generator=torch.Generator().manual_seed(seed))
    low, high = v[index].mean(1).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def frechet(a: Tensor, b: Tensor) -> float:
    """|μ_a − μ_b|² + tr(A + B − 2 (A^½ B A^½)^½) of two sets of features (n, k), in float64 on the CPU.

    >>> x = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 3.0]])
    >>> round(frechet(x, x + 3), 6)  # moved by 3 twice
    18.0
    """
    a, b = a.double().cpu(), b.double().cpu()
    first, second = torch.cov(a.T), torch.cov(b.T)
    values, vectors = torch.linalg.eigh(first)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
    cross = torch.linalg.eigvalsh(root @ second @ root).clamp_min(0).sqrt().sum()
    gap = (a.mean(0) - b.mean(0)).square().sum()
    return float(gap + first.trace() + second.trace() - 2 * cross)


def nearest_training_row(x: Tensor, train: Tensor) -> Tensor:
    """Hamming distance of every row to the nearest row of bits of ``train``, (n,).

    >>> nearest_training_row(torch.tensor([[1.0, 1.0, 0.0]]), torch.zeros(2, 3))
    tensor([2.])
    """
    best = []
    for part in x.float().split(1000):
        near = [
            (part.sum(1, keepdim=True) + rows.sum(1) - 2 * part @ rows.T).amin(1)
            for rows in train.float().split(20_000)
        ]
        best.append(torch.stack(near).amin(0))
    return torch.cat(best).round()


def neighbours(real: Tensor, fake: Tensor, k: int = 5) -> tuple[float, float, float, float]:
    """Precision and recall (Kynkäänniemi et al. 2019), density and coverage (Naeem et al. 2020), from k neighbours.

    >>> points = torch.arange(10.0).unsqueeze(1)
    >>> neighbours(points, points, k=1)[:2]
    (1.0, 1.0)
    """
    across = torch.cdist(real.double(), fake.double())  # (real, fake)
    around_real = torch.cdist(real.double(), real.double()).kthvalue(k + 1, dim=1).values.unsqueeze(1)
    around_fake = torch.cdist(fake.double(), fake.double()).kthvalue(k + 1, dim=1).values
    inside = across <= around_real
    return (
        float(inside.any(0).double().mean()),
        float((across <= around_fake).any(1).double().mean()),
        float(inside.double().sum(0).mean()) / k,
        float(inside.any(1).double().mean()),
    )


def auroc(inside: Tensor, outside: Tensor) -> float:
    """P(score of an inside row > score of an outside row), ties counted half.

    >>> auroc(torch.tensor([2.0, 3.0]), torch.tensor([1.0, 2.0]))
    0.875
    """
    a, b = np.sort(inside.double().cpu().numpy()), outside.double().cpu().numpy()
    above = len(a) - np.searchsorted(a, b, side="right")
    ties = len(a) - np.searchsorted(a, b, side="left") - above
    return float((above + ties / 2).mean() / len(a))


def rotated(x: Tensor, shape: tuple[int, int]) -> Tensor:
    """Rows of images turned by 90°."""
    return torch.rot90(x.view(-1, *shape), 1, (1, 2)).flatten(1)


class Likelihood(NamedTuple):
    """Negative log-likelihood in nats an image: mean and standard error over images."""

    mean: float
    stderr: float

    @classmethod
    def of(cls, log_prob: Tensor) -> Likelihood:
        """From log-probabilities (n,) of test rows."""
        v = -log_prob.double()
        return cls(float(v.mean()), float(v.std() / math.sqrt(len(v))))


def differing(a: Tensor, b: Tensor) -> float:
    """Pixels an image in which two sets of images differ."""
    return float((a != b).sum(1).double().mean())
