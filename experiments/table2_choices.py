"""How the settings of Table 2 were chosen: held-out nats of seed 0 on every set. The truth is not looked at.

    python experiments/table2_choices.py --device cuda [--quick]

Nats of the five held-out folds, each under networks that did not see it: normalised exactly, so that features, rules,
kernels and sizes all compare. Lower is better; the mean over the sets decides. All start from the default in
``grid_nets.Settings``; the winner is written there.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from ctem.losses import brier
from grid_nets import fit_mixtures
from grid_sets import ROWS, SETS, folds_of
from results import Record, arguments, summarise, write
from table2 import smooth_settings

SMOOTH_CHOICES = {  # the second round, around a rate of 5e-3; the first, around harmonics 3, is in CHOICES.md
    "default": {},
    "harmonics 0": {"harmonics": 0},
    "harmonics 2": {"harmonics": 2},
    "harmonics 3": {"harmonics": 3},
    "width 64": {"width": 64},
    "weight decay 0.3": {"weight_decay": 0.3},
    "weight decay 1": {"weight_decay": 1.0},
    "learning rate 2e-3": {"learning_rate": 2e-3},
    "learning rate 1e-3": {"learning_rate": 1e-3},
    "weight decay 0.3, learning rate 2e-3": {"weight_decay": 0.3, "learning_rate": 2e-3},
    "weight decay 0.3, width 64": {"weight_decay": 0.3, "width": 64},
    "Brier": {"rule": brier},
    "reach 4": {"reach": 4.0},
}


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_float32_matmul_precision("high")
    began, records, tried = time.perf_counter(), list[Record](), 1 if args.quick else None
    codes = [torch.as_tensor(target.sample(ROWS, 0)) for target in SETS.values()]
    folds = torch.stack([folds_of(c, 0) for c in codes])
    settings = {"smooth": SMOOTH_CHOICES}

    def add(system: str, of_sets: list[float]) -> None:
        nats = dict(zip(SETS, of_sets, strict=True)) | {"mean over the sets": sum(of_sets) / len(of_sets)}
        records.extend(summarise(name, system, "held-out nats", [value]) for name, value in nats.items())
        print(f"{system:52}", {name: round(value, 4) for name, value in nats.items()}, flush=True)
        seconds = time.perf_counter() - began
        write("table2_choices", settings, records, args.device, seconds, args.out, quick=args.quick)

    for label, change in list(SMOOTH_CHOICES.items())[:tried]:
        fitted = fit_mixtures(
            folds, replace(smooth_settings(args.quick), **{"learning_rate": 5e-3} | change), args.device
        )
        add(f"smooth energy, {label}", fitted.nats.tolist())


if __name__ == "__main__":
    main()
