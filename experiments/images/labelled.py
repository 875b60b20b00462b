"""Images and their labels as one row: p(image, label), from all labels or a few.

    python -m experiments.images.labelled --quick                                         two cores, about a minute
    python -m experiments.images.labelled --side 8                                        two cores, 6 minutes
    python -m experiments.images.labelled --device cuda --data FOLDER --seconds 240       one H200, about 6 minutes

FOLDER holds mnist/ and binarized_mnist/ (or $CTEM_DATA does). --seconds are those of training, shared evenly by all
numbers of labels; nats and samples come on top. A row is 784 bits and a label. One convolutional network knows the
chance of every hidden pixel and of the label given any visible pixels, with or without the label: the chain rule makes
a normalised density of it, in which a missing label is a column that stays hidden.

Where labels are missing, the network's own answer for the whole image, if it is sure, stands in for the label that is
asked of the same image with hidden or shifted pixels, since one joint law gives both. Nothing is chosen on test rows:
weights are those with the best nats of hidden pixels on validation images, without their labels.

The fixed binarisation has no labels for its training rows: each row is matched with the grey image that it was most
likely drawn from, which is checked on the test rows, whose labels are known. The second case are 8 × 8 digits with 17
grey levels, ordinal, and their label, by ``ctem.CTEM``: the same questions to a table with a column of labels.
"""

from __future__ import annotations

import math
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu, softplus

from ctem import CTEM, Category, Ordinal, ProductBase, Recipe, Space, train
from ctem.datasets import load_binarized_mnist, load_mnist
from ctem.densities.chain import Chain, Conditionals, Probabilities
from experiments.images.mnist import tiles
from experiments.images.settings import shuffled
from experiments.images.unet import ImageNet, _normalised
from experiments.results import arguments, staged, summarise, write

CLASSES = 10
WEIGHT = 0.1  # of the label's nats beside those of a pixel
SURE = 0.95  # probability from which on the network's own answer is taken for a label
COMPLETE = 0.25  # share of a batch whose pixels are all visible, for the label alone
ALONE = 0.3  # of the seconds, before labels are guessed
SHARE = 0.25  # of a batch that has labels, at least
BINS = 15  # of the calibration error

Values = dict[str, float]


class Size(NamedTuple):
    """How much is spent."""

    channels: tuple[int, ...]
    seconds: float  # of training, all numbers of labels together
    recipe: Recipe
    rows: int  # of the test set, for the chain rule
    tried: int  # of them, for the label by ten scores of the image
    labels: tuple[int, ...]  # how many are known


RECIPE = Recipe(
    steps=50_000,
    batch_size=256,
    learning_rate=1e-3,
    ema=0.999,
    weight_decay=0.01,
    clip=10.0,
    evaluate_every=100,
)
SIZES = {
    28: Size((48, 96, 192), 240.0, RECIPE, 500, 200, (50_000, 1000, 100, 0)),
    8: Size(
        (16, 32),
        160.0,
        replace(RECIPE, batch_size=64, learning_rate=3e-3, ema=0.99),
        200,
        100,
        (1150, 100, 0),
    ),
}
QUICK = SIZES[8]._replace(channels=(8, 16), seconds=15.0, rows=20, tried=10, labels=(1150, 0))


class Labelled(NamedTuple):
    """Rows of pixels and a label, (n, d + 1)."""

    train: Tensor
    valid: Tensor
    test: Tensor


class LabelledNet(ImageNet):
    """Log-odds of every hidden pixel, and of the label, given visible pixels and the label or none.

    Arguments are those of ``ImageNet``.
    """

    def __init__(self, base: ProductBase, shape: tuple[int, int], channels: tuple[int, ...], **options: Any):
        super().__init__(base, shape, channels, **options)
        for unused in (self.last_pooled, *self.pooled.parameters()):
            unused.requires_grad_(False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.label = nn.Embedding(CLASSES + 1, 64)  # the last code: no label
            inputs = channels[0] + 2 * channels[-1]
            self.classify = nn.Sequential(nn.Linear(inputs, 128), nn.SiLU(), nn.Linear(128, CLASSES))

    def both(self, x: Tensor, visible: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """Log-odds of ink (n, d) and of labels (n, 10), for codes of labels (n,) in which 10 is none."""
        value = torch.where(visible, 2 * x - 1, 0.0).float()
        level = torch.where(visible, 0.0, math.inf)
        with torch.autocast(x.device.type, enabled=False):  # the body chooses its own precision
            h, bottom = self._body(value, visible, visible.float(), level, self.label(label))
            h = silu(_normalised(h.float()))
            bottom = bottom.float()
            pooled = torch.cat([h.mean((2, 3)), bottom.mean((2, 3)), bottom.amax((2, 3))], 1)
            return (h.permute(0, 2, 3, 1) @ self.last).flatten(1) + self.odds, self.classify(pooled)


class JointLoss:
    """Nats of hidden pixels, and of the label where it is known, or sure.

    Arguments:
        shape: of an image.
        guess: moment of ``time.perf_counter`` from which on missing labels are guessed: not before the known ones are
            learned, since a wrong guess teaches itself.
    """

    def __init__(self, shape: tuple[int, int], guess: float = math.inf):
        self.shape, self.guess = shape, guess

    def __call__(self, net: LabelledNet, x: Tensor, generator: torch.Generator) -> Tensor:
        pixels, training = x[:, :-1], torch.is_grad_enabled()
        n, d = pixels.shape
        u = torch.rand(n, d + 2, generator=generator, device=x.device)
        part = torch.arange(n, device=x.device).unsqueeze(1)
        whole = int(COMPLETE * n) if training else 0
        complete = part < whole
        size = ((part - whole + u[:, d : d + 1]) / (n - whole) * d).floor().clamp(0, d - 1)
        size = torch.where(complete, d, size)
        visible = u[:, :d].argsort(-1).argsort(-1) < size
        y, usable = self.labels(net, x, training)
        shown = usable & (u[:, d + 1] < 0.5) & ~complete.squeeze(1)
        seen = torch.where(complete, self.shifted(pixels, generator), pixels)
        odds, scores = net.both(seen, visible, torch.where(shown, y, CLASSES))
        nats = torch.where(visible, 0.0, softplus((1 - 2 * pixels) * odds))
        hidden = (~visible).sum(-1)
        images = (nats.sum(-1) / hidden.clamp_min(1)).sum() / (hidden > 0).sum()
        asked = usable & ~shown
        return images + WEIGHT * torch.where(asked, cross_entropy(scores, y, reduction="none"), 0.0).mean()

    def labels(self, net: LabelledNet, x: Tensor, training: bool) -> tuple[Tensor, Tensor]:
        """Labels (n,), and whether they are known or sure."""
        known = ~x[:, -1].isnan()
        y = x[:, -1].nan_to_num().long()
        if not training or time.perf_counter() < self.guess:
            return y, known
        with torch.no_grad():
            every = torch.ones_like(x[:, :-1], dtype=torch.bool)
            p = net.both(x[:, :-1], every, torch.full_like(y, CLASSES))[1].softmax(-1)
        best = p.max(-1)
        return torch.where(known, y, best.indices), known | (best.values > SURE)

    def shifted(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Each image moved by up to a fourteenth of its side."""
        height, width = self.shape
        reach = height // 14
        step = torch.randint(-reach, reach + 1, (2, len(x), 1), generator=generator, device=x.device)
        place = torch.arange(x.shape[1], device=x.device)
        row, column = (place // width + step[0]) % height, (place % width + step[1]) % width
        return x.gather(1, row * width + column)


class Joint(Conditionals):
    """The conditionals of pixels and of the label, the last column, for the chain rule."""

    def __init__(self, net: LabelledNet, base: ProductBase, batch_size: int = 8192):
        self.net, self.base, self.batch_size = net, base, batch_size

    def given(self, x: Tensor, visible: Tensor, j: int) -> Probabilities:
        """ρ(x_j | x_V) for rows x (n, d + 1) and their visible sets V."""
        d = x.shape[1] - 1
        parts = []
        with torch.no_grad():
            for rows, seen in zip(x.split(self.batch_size), visible.split(self.batch_size), strict=True):
                shown = seen[:, -1] & (j < d)  # a label that is asked for is not shown
                label = torch.where(shown, rows[:, -1].nan_to_num().long(), CLASSES)
                odds, scores = self.net.both(rows[:, :-1].nan_to_num(), seen[:, :-1], label)
                ink = torch.stack([-softplus(odds[:, min(j, d - 1)]), -softplus(-odds[:, min(j, d - 1)])], 1)
                parts.append(ink if j < d else scores.log_softmax(-1))
        return Probabilities(torch.cat(parts))

    def draw(self, x: Tensor, visible: Tensor, j: int, generator: torch.Generator) -> Tensor:
        """A draw from ``given(x, visible, j)`` for each row, (n,)."""
        return self.given(x, visible, j).draw(generator)


def matched_labels(bits: Tensor, grey: Tensor, labels: Tensor) -> Tensor:
    """The label of the grey image (m, d), 0 … 1, that each row of bits (n, d) was most likely drawn from."""
    p = grey.clamp(1e-4, 1 - 1e-4)
    odds, blank = (p.log() - (1 - p).log()).T.contiguous(), (1 - p).log().sum(1)
    return labels[torch.cat([(part @ odds + blank).argmax(1) for part in bits.split(1000)])]


def load_28(folder: str | None, device: str) -> tuple[Labelled, float]:
    """The fixed binarisation with labels, and the share of test labels that matching finds."""
    digits, fixed = load_mnist(folder), load_binarized_mnist(folder)
    bits = [torch.tensor(part, device=device).float() for part in fixed]
    grey, other = (torch.tensor(part, device=device).float() / 255 for part in (digits.train, digits.test))
    labels, truth = (torch.tensor(part, device=device) for part in (digits.train_labels, digits.test_labels))
    found = [matched_labels(part, grey, labels) for part in bits[:2]]
    sorted_truth = truth.sort().values
    agree = float((matched_labels(bits[2], other, truth) == sorted_truth).double().mean())
    rows = [
        torch.cat([b, y.unsqueeze(1).float()], 1) for b, y in zip(bits, [*found, sorted_truth], strict=True)
    ]
    return Labelled(*map(shuffled, rows)), agree


def load_8(device: str) -> tuple[Labelled, float]:
    """scikit-learn's digits, thresholded at half, with labels: 1150, 147 and 500."""
    rows = torch.as_tensor(grey_digits(), device=device).float()
    bits = torch.cat([(rows[:, :-1] >= 8).float(), rows[:, -1:]], 1)
    return Labelled(bits[:1150], bits[1150:1297], bits[1297:]), 1.0


def grey_digits() -> NDArray[np.float64]:
    """Pixels 0 … 16 and the label, (1797, 65), in a random order."""
    found = load_digits()
    rows = np.column_stack([found.data, found.target])
    return np.asarray(rows[np.random.default_rng(0).permutation(len(rows))])


def some_labels(x: Tensor, count: int) -> Tensor:
    """Rows with labels for so many of them only, as many of every class."""
    if count >= len(x):
        return x
    out, each = x.clone(), count // CLASSES
    out[:, -1] = math.nan
    for label in range(CLASSES):
        rows = (x[:, -1] == label).nonzero().flatten()[:each]
        out[rows, -1] = x[rows, -1]
    return out


def calibration_error(p: Tensor, y: Tensor) -> float:
    """Expected calibration error: |accuracy − confidence| over bins of the confidence, weighed by their rows."""
    sure, chosen = p.max(-1)
    right = (chosen == y).double()
    place = (sure * BINS).long().clamp(max=BINS - 1)
    gap = torch.zeros(BINS, dtype=torch.float64, device=p.device).index_add_(0, place, right - sure.double())
    return float(gap.abs().sum()) / len(y)


def classified(p: Tensor, y: Tensor, how: str) -> Values:
    """Accuracy, calibration and nats of labels, from probabilities (n, 10)."""
    nats = -p.clamp_min(1e-12).log().gather(1, y.unsqueeze(1)).mean()
    found = {"accuracy": float((p.argmax(-1) == y).double().mean()), "nats": float(nats)}
    return {
        f"{name} of the label, {how}": value
        for name, value in (found | {"calibration error": calibration_error(p, y)}).items()
    }


class Run:
    """One number of known labels."""

    def __init__(self, rows: Labelled, count: int, size: Size, seconds: float, args: Any):
        self.rows, self.count, self.size, self.seconds, self.args = rows, count, size, seconds, args
        self.side = math.isqrt(rows.train.shape[1] - 1)
        d, device = self.side**2, args.device
        pixels = ProductBase.fit(Space([Category(2)] * d), rows.train[:, :-1]).to(device)
        self.base = ProductBase(Space([Category(2)] * d + [Category(CLASSES)])).to(device)
        precision = "bf16" if device.startswith("cuda") else "float32"
        self.net = LabelledNet(pixels, (self.side, self.side), size.channels, precision=precision).to(device)
        self.generator = torch.Generator(device).manual_seed(0)
        self.settings: dict[str, Any] = {}

    def fit(self) -> None:
        """As many steps as the seconds allow."""
        x = some_labels(self.rows.train, self.count)
        known = ~x[:, -1].isnan()
        share = max(SHARE, float(known.double().mean())) if bool(known.any()) else 0.0
        each = torch.where(known, share / known.sum().clamp_min(1), (1 - share) / (~known).sum().clamp_min(1))
        held = self.rows.valid[:2000].clone()
        held[:, -1] = math.nan
        began = time.perf_counter()
        guess = began + ALONE * self.seconds if 0 < self.count < len(x) else math.inf
        loss, deadline = JointLoss((self.side, self.side), guess), began + self.seconds
        if self.args.device.startswith("cuda"):
            torch.backends.cudnn.benchmark = True
        history = train(self.net, loss, x, self.size.recipe, held_out=held, weights=each, deadline=deadline)
        torch.backends.cudnn.benchmark = False
        self.net.eval().requires_grad_(False)
        self.settings = {
            "steps": history.step[-1],
            "best step": history.best_step,
            "held-out": [round(value, 5) for value in history.held_out[:: max(1, len(history.step) // 20)]],
        }

    def measure(self) -> Values:
        """What the joint density says of test rows."""
        test = self.rows.test
        some, chain = test[: self.size.rows], Chain(Joint(self.net, self.base))
        d = self.side**2
        order = torch.randperm(d, generator=torch.Generator().manual_seed(0)).tolist()
        unlabelled = some.clone()
        unlabelled[:, -1] = math.nan
        images = chain.log_prob(unlabelled, [*order, d]).double()
        found = {
            "nats of an image": -float(images.mean()),
            "nats of an image: standard error": float(images.std()) / math.sqrt(len(images)),
        }
        if not self.count:
            return found
        y = test[:, -1].long()
        p = self.posterior(test)
        found |= classified(p, y, "after the image")
        last = images + p[: len(some)].log().gather(1, y[: len(some)].unsqueeze(1)).squeeze(1)
        first = chain.log_prob(some, [d, *order]).double()
        both = torch.logaddexp(first, last) - math.log(2)
        for name, nats in (("label last", last), ("label first", first), ("mixture of both orders", both)):
            found[f"nats of image and label, {name}"] = -float(nats.mean())
        return found | self.by_scores(chain, order)

    def posterior(self, rows: Tensor) -> Tensor:
        """p(label | image), (n, 10)."""
        given = Joint(self.net, self.base, 2048).given(
            rows, torch.ones_like(rows, dtype=torch.bool), rows.shape[1] - 1
        )
        return given.log_p.double().exp()

    def by_scores(self, chain: Chain, order: list[int]) -> Values:
        """The label of some images by p(image | label) p(label), which the order with the label first gives."""
        rows = self.rows.test[: self.size.tried]
        every = rows.repeat_interleave(CLASSES, 0)
        every[:, -1] = torch.arange(CLASSES, device=rows.device).repeat(len(rows))
        scores = chain.log_prob(every, [rows.shape[1] - 1, *order]).double().view(-1, CLASSES)
        return classified(scores.softmax(-1), rows[:, -1].long(), f"before the image ({len(rows)} rows)")

    def drawn(self, each: int = 10) -> NDArray[Any]:
        """Images given each label, a line a label."""
        d = self.side**2
        rows = torch.full((each * CLASSES, d + 1), math.nan, device=self.args.device)
        rows[:, -1] = torch.arange(CLASSES, device=rows.device).repeat_interleave(each)
        return np.asarray(
            Chain(Joint(self.net, self.base)).sample(len(rows), self.generator, given=rows).x[:, :-1].cpu()
        )


def grey_values(count: int, seconds: float, rows: int, seed: int = 0) -> Values:
    """8 × 8 digits of 17 levels and their label as a table, with so many labels: CTEM answers."""
    x = grey_digits()
    names = [f"p{i}" for i in range(64)]
    frame = pd.DataFrame(x, columns=[*names, "label"]).astype(int)
    frame["label"] = frame["label"].map("d{}".format)
    learn, test = frame[:1297].copy(), frame[1297 : 1297 + rows]
    if count < len(learn):
        kept = learn.groupby("label").head(count // CLASSES).index
        learn.loc[~learn.index.isin(kept), "label"] = None
    kinds = {name: Ordinal() for name in names}
    model = CTEM(kinds=kinds, max_time=seconds, random_state=seed, energy=None, device="cpu").fit(learn)
    p = torch.as_tensor(model.predict_proba(test[names], column="label"))
    place = {label: k for k, label in enumerate(model.classes("label"))}
    y = torch.tensor([place[label] for label in test["label"]])
    drawn = model.sample(5, random_state=0, given=pd.DataFrame({"label": [f"d{k}" for k in range(CLASSES)]}))
    again = model.predict_proba(drawn[names], column="label").argmax(1)
    own = np.array([place[label] for label in drawn["label"]])
    scores = model.score_samples(test)
    return classified(p, y, "after the image") | {
        "nats of an image": -float(model.score_samples(test[names]).mean()),
        "nats of image and label": -float(scores.mean()),
        "nats of image and label: standard error": float(scores.std() / math.sqrt(len(scores))),
        "images drawn for a label that are classified as it": float((again == own).mean()),
    }


def picture(lines: dict[str, NDArray[Any]], side: int, path: Path) -> None:
    """A panel for each number of labels, a line for each label."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(lines), figsize=(3.3 * len(lines), 3.6), layout="constrained", squeeze=False
    )
    for axis, (title, rows) in zip(axes.flat, lines.items(), strict=True):
        axis.imshow(tiles(rows, (side, side), 10), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axis.set_title(title, fontsize=9)
        axis.axis("off")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def bits(args: Any, size: Size, out: Path) -> None:
    """Binary images and their label, for every number of labels."""
    began = time.perf_counter()
    rows, agree = load_28(args.data, args.device) if args.side == 28 else load_8(args.device)
    data = f"binary digits {args.side} × {args.side} and their label"
    name = "labelled-mnist" if args.side == 28 else "labelled-digits"
    records, lines, settings = [], {}, {"size": size._asdict(), "test labels that matching finds": agree}
    print(f"{data}: {agree:.4f} of the test labels are found by matching", flush=True)
    for count in size.labels:
        system = "all labels" if count >= len(rows.train) else f"{count or 'no'} labels"
        try:
            run = Run(rows, count, size, size.seconds / len(size.labels), args)
            run.fit()
            found = run.measure()
            if count:
                lines[system] = run.drawn()
        except Exception:
            traceback.print_exc()
            settings.setdefault("failed", []).append(system)  # type: ignore[attr-defined]
            continue
        settings[system] = run.settings
        records += [summarise(data, system, metric, [value]) for metric, value in found.items()]
        print(f"  {system}: {run.settings}", flush=True)
        for metric, value in found.items():
            print(f"    {metric}: {value:.4f}", flush=True)
    write(name, settings, records, args.device, time.perf_counter() - began, out, quick=args.quick)
    if lines:
        picture(lines, args.side, out / f"{name}{'-quick' if args.quick else ''}.png")


def grey(args: Any, out: Path) -> None:
    """Grey digits and their label by a table."""
    began, records = time.perf_counter(), []
    data = "8 × 8 digits of 17 levels and their label"
    counts, seconds, rows = ((1297,), 5.0, 10) if args.quick else ((1297, 400, 100), 60.0, 300)
    for count in counts:
        system = "CTEM, all labels" if count >= 1297 else f"CTEM, {count} labels"
        found = grey_values(count, seconds, rows)
        records += [summarise(data, system, metric, [value]) for metric, value in found.items()]
        for metric, value in found.items():
            print(f"    {system}: {metric}: {value:.4f}", flush=True)
    settings = {"seconds": seconds, "test rows": rows}
    write("labelled-grey", settings, records, "cpu", time.perf_counter() - began, out, quick=args.quick)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--side", type=int, choices=(28, 8), help="pixels (default: 28, with --quick 8)")
    parser.add_argument(
        "--data", help="folder of mnist/, binarized_mnist/ (default: $CTEM_DATA, or a download)"
    )
    parser.add_argument("--seconds", type=float, help="of training, all numbers of labels together")
    parser.add_argument(
        "--what", nargs="+", choices=("bits", "grey"), help="(default: bits; both with --side 8)"
    )
    args = parser.parse_args()
    args.side = args.side or (8 if args.quick else 28)
    size = QUICK if args.quick else SIZES[args.side]
    size = size._replace(seconds=args.seconds or size.seconds)
    what = args.what or (["bits"] if args.side == 28 else ["bits", "grey"])
    failed = []
    for part in what:
        try:
            with staged(args.out) as out:
                bits(args, size, out) if part == "bits" else grey(args, out)
        except Exception:
            traceback.print_exc()
            failed.append(part)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
