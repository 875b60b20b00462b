"""Rows of an image, a label and a number: what independent parts and one joint energy make of them.

    python -m experiments.images.beside            one core, 8 minutes
    python -m experiments.images.beside --quick    a small run, to see that it works

A row is an 8 × 8 digit in black and white, its label, and a number that is the digit plus noise of two digits. Each
part has a density of its own: an any-order network for the image, shares for the label, a normal law for the number.
Their product b knows nothing of how they hang together. An energy with the paper's loss, its comparisons drawn from b,
tilts it: ρ = b e^g / Z. All questions are put to ρ:

nats of a row      log b, and log ρ, whose log Z is stated with its error
of the label       what knowing the image, the number, or both adds: mean log ρ(label | known) − log of the label's
                   share. The label given all by ten values of g; given the image by an integral over the number, and
                   given the number by draws of the image

The references are classifiers of the label: logistic regression from the pixels, with the penalty that five folds
choose, and for the number the law that it was made by.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegressionCV
from torch import Tensor
from torch.distributions import Normal

from ctem import Category, EnergyModel, Real, Recipe, Space
from ctem.bases import FittedBase
from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.anyorder.fitting import fit_anyorder
from ctem.densities.anyorder.settings import Settings
from experiments.results import arguments, staged, summarise, write

PIXELS, CLASSES = 64, 10
NOISE = 2.0  # deviation of the number, in digits
TEST = 400
DATA, PARTS, JOINT = "8 × 8 digits, a label and a number", "independent parts", "a joint energy"
OTHER = "a classifier of its own"
Values = dict[tuple[str, str], float]


class Size(NamedTuple):
    """How much is spent."""

    steps: int  # of the energy, at most
    image_steps: int
    draws: int  # of b, for comparisons
    grid: int  # numbers, for the integral
    images: int  # draws of the image, for the label given the number


WHOLE = Size(steps=3000, image_steps=1200, draws=30_000, grid=41, images=300)
QUICK = Size(steps=60, image_steps=40, draws=400, grid=9, images=20)


class Parts:
    """b: the image, and beside it what has nothing to do with it.

    Arguments:
        image: a density of the first columns.
        rest: a density of the others.
    """

    def __init__(self, image: AnyOrderDensity, rest: FittedBase):
        self.image, self.rest = image, rest

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n rows."""
        return torch.cat([self.image.sample(n, generator), self.rest.sample(n, generator)], 1)

    def log_prob(self, x: Tensor) -> Tensor:
        """log b of rows, (n,)."""
        return self.image.log_prob(x[:, :PIXELS]).to(x) + self.rest.log_prob(x[:, PIXELS:])


def rows(seed: int) -> tuple[Tensor, Tensor]:
    """Training and test rows (n, 66); the number is in units of its noise."""
    digits, rng = load_digits(), np.random.default_rng(seed)
    number = (digits.target + NOISE * rng.normal(size=len(digits.target))) / NOISE
    x = np.column_stack([digits.data > 7, digits.target, number])
    x = torch.from_numpy(x[rng.permutation(len(x))]).float()
    return x[TEST:], x[:TEST]


def measure(seed: int, size: Size) -> Values:
    """One fit, and what it answers."""
    train, test = rows(seed)
    bits, beside = Space([Category(2)] * PIXELS), Space([Category(CLASSES), Real()])
    settings = Settings(width=128, members=2, orders=1, steps=size.image_steps, batch_size=256)
    parts = Parts(
        fit_anyorder(bits, train[:, :PIXELS], settings, seed=seed),
        FittedBase(beside, train[:, PIXELS:], widen=1.0),
    )
    recipe = Recipe(steps=size.steps, batch_size=128, learning_rate=1e-3, evaluate_every=50, patience=10)
    model = EnergyModel(
        Space([*bits.columns, *beside.columns]),
        base=parts,
        draws=size.draws,
        recipe=recipe,
        random_state=seed,
        device="cpu",
    ).fit(train)
    log_z = model.log_z()
    with torch.no_grad():
        log_b = parts.log_prob(test).double()
    nats = {
        (PARTS, "nats of a row"): float(log_b.mean()),
        (JOINT, "nats of a row"): float(torch.as_tensor(model.log_prob(test)).mean()),
        (JOINT, "standard error of log Z"): log_z.stderr,
    }
    return nats | labels(model, parts, test, size) | references(train, test)


def labels(model: EnergyModel, parts: Parts, test: Tensor, size: Size) -> Values:
    """What the joint density says of the label, in nats more than the label's share."""
    label, number = test[:, PIXELS].long(), test[:, -1]
    share = parts.rest.log_table[0, :CLASSES].double()

    def g(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model.nets_[0](x).double()

    def at_labels(x: Tensor) -> Tensor:
        """g of rows at every label, (n, 10)."""
        every = x.repeat_interleave(CLASSES, 0)
        every[:, PIXELS] = torch.arange(CLASSES).repeat(len(x)).float()
        return g(every).view(-1, CLASSES)

    law = Normal(parts.rest.location[1], parts.rest.spread[1])
    points = law.icdf((torch.arange(size.grid) + 0.5) / size.grid)  # equal shares of the number's law
    image = torch.stack([at_labels(_with(test, -1, point)) for point in points])
    drawn = parts.sample(size.images, torch.Generator().manual_seed(1))
    from_number = torch.stack([at_labels(_with(drawn, -1, value)).logsumexp(0) for value in number])
    known = {
        "the image": image.logsumexp(0),
        "the number": from_number,
        "both": at_labels(test),
    }
    found: Values = {}
    for name, log_mean in known.items():
        log_p = (share + log_mean).log_softmax(1)
        gained = log_p[torch.arange(len(test)), label] - share[label]
        found[JOINT, f"nats that {name} says of the label"] = float(gained.mean())
        if name == "the image":
            found[JOINT, "labels found from the image"] = float((log_p.argmax(1) == label).double().mean())
    return found


def references(train: Tensor, test: Tensor) -> Values:
    """The same of the label from classifiers of its own."""
    x, y = train[:, :PIXELS].numpy(), train[:, PIXELS].long().numpy()
    share = torch.bincount(train[:, PIXELS].long(), minlength=CLASSES).double() / len(train)
    label = test[:, PIXELS].long()
    logistic = LogisticRegressionCV(
        cv=5, scoring="neg_log_loss", max_iter=500, l1_ratios=(0.0,), use_legacy_attributes=False
    ).fit(x, y)
    p = torch.from_numpy(logistic.predict_proba(test[:, :PIXELS].numpy())).log()
    at = torch.arange(CLASSES) / NOISE
    bayes = (share.log() + Normal(at, 1.0).log_prob(test[:, -1:]).double()).log_softmax(1)
    own = share.log()[label]
    gained = {
        name: log_p.gather(1, label[:, None])[:, 0] - own
        for name, log_p in zip("ib", (p, bayes), strict=True)
    }
    return {
        (OTHER, "nats that the image says of the label"): float(gained["i"].mean()),
        (OTHER, "nats that the number says of the label"): float(gained["b"].mean()),
        (OTHER, "labels found from the image"): float((p.argmax(1) == label).double().mean()),
    }


def _with(x: Tensor, column: int, value: Tensor) -> Tensor:
    """Rows whose column has one value."""
    out = x.clone()
    out[:, column] = value
    return out


def main() -> None:
    parser = arguments(__doc__)
    args = parser.parse_args()
    began, size = time.perf_counter(), QUICK if args.quick else WHOLE
    found = [measure(seed, size) for seed in range(args.seeds or (1 if args.quick else 3))]
    records = [
        summarise(DATA, system, metric, [values[system, metric] for values in found])
        for system, metric in found[0]
    ]
    for record in records:
        print(record)
    with staged(args.out) as out:
        settings = size._asdict() | {
            "noise of the number": NOISE,
            "test rows": TEST,
            "entropy": math.log(CLASSES),
        }
        write("labelled-beside", settings, records, "cpu", time.perf_counter() - began, out, quick=args.quick)


if __name__ == "__main__":
    main()
