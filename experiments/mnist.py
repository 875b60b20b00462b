"""Binary MNIST: energies of 784 bits, trained in minutes; samples, an exact likelihood, and what else they can do.

    python experiments/mnist.py --data 8                                              two cores, under 5 minutes
    python experiments/mnist.py --data 28 --device cuda --objective soft slopes       one H200, 11 minutes

Objectives: ``soft`` and ``constant`` target at one shared noise level, ``paper`` (constant target, its levels, learning
rate and batch, as many epochs as the time allows), ``spacetime`` (soft target, levels joined, so that one pass is
normalised up to training error), ``clocks`` (a clock per pixel: exact likelihood by the chain rule, samples without
MCMC) and ``slopes`` (the same, from first-order comparisons of all hidden pixels at once: ``ctem.firstorder``). Time is
given in seconds, and steps follow from it. Each objective writes a results file, main numbers first.

The paper does not say how it binarised: here a pixel is ink if its grey value is at least half. Likelihoods are on the
fixed binarisation of the benchmark, whose test rows are sorted by class: 1000 of them are drawn at random.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mnist_data import Images, classifier_rows, load_images
from mnist_eval import Judge, train_classifier
from mnist_pictures import BUILD, draw_all
from mnist_run import STAGES, Deadline, Run
from mnist_settings import SCALES, Scale, quick
from results import arguments


def parsed() -> Any:
    parser = arguments(__doc__)
    parser.add_argument(
        "--data", type=int, choices=(28, 8), help="pixels a side (default: 28, with --quick 8)"
    )
    parser.add_argument(
        "--folder", help="folder with mnist/ and binarized_mnist/ (default: $CTEM_DATA, else downloaded)"
    )
    parser.add_argument("--objective", nargs="+", choices=tuple(SCALES[28].jobs), default=["soft", "slopes"])
    parser.add_argument("--minutes", type=float, help="of the whole call; training gets its share")
    parser.add_argument("--steps", type=int, help="of training (default: as many as its seconds allow)")
    parser.add_argument("--stage", nargs="+", choices=STAGES, default=list(STAGES), help="default: all")
    parser.add_argument("--build", type=Path, help="folder of weights and arrays (default: build)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.data = args.data or (8 if args.quick else 28)
    args.build = args.build or (args.out if args.quick else BUILD)
    return args


def judged(images: Images, scale: Scale) -> dict[str, Judge]:
    """A classifier trained now, and a judge for each binarisation."""
    shape, how = (scale.side, scale.side), scale.classifier
    classifier = train_classifier(classifier_rows(images.grey), images.labels, shape, **how)
    return {k: Judge(classifier, bits.train, bits.test, scale.samples) for k, bits in images.bits.items()}


def main() -> None:
    args = parsed()
    torch.set_float32_matmul_precision("high")
    scale = quick(SCALES[args.data]) if args.quick else SCALES[args.data]
    minutes = args.minutes or scale.minutes
    deadline, share = Deadline(60 * minutes), minutes / scale.minutes
    images = load_images(args.data, args.folder, args.device)
    judges = judged(images, scale)
    print(f"data and classifier took {deadline.spent:.1f} s", flush=True)
    runs = [Run(name, scale, images, args, deadline, share) for name in args.objective]
    for run in runs:
        if "train" not in args.stage:
            run.restore()
        for stage in STAGES[:3]:
            if stage in args.stage:
                run.stage(stage, judges[run.job.bits])
    for stage in (stage for stage in STAGES[3:-1] if stage in args.stage):
        for run in runs:
            run.stage(stage, judges[run.job.bits], late=True)
    if "pictures" in args.stage:
        for path in draw_all(scale.name, {run.objective: run.arrays for run in runs}, run.shape, args.out):
            print(path)


if __name__ == "__main__":
    main()
