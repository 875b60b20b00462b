"""How the settings of Table 2 were chosen: held-out nats of seed 0 on every set. The truth is not looked at.

    python experiments/table2_choices.py --device cuda [--quick]

Nats of the five held-out folds, each under networks that did not see it: both systems are normalised exactly, so that
features, rules, kernels and sizes all compare. Lower is better; the mean over the sets decides.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from ctem.losses import brier
from results import Record, arguments, summarise, write
from table2 import ROWS, SETS, clock_settings, clocks, folds_of, smooth_nets, smooth_settings

CHOICES = {
    "default": {},
    "harmonics 1": {"harmonics": 1},
    "harmonics 2": {"harmonics": 2},
    "harmonics 4": {"harmonics": 4},
    "harmonics 5": {"harmonics": 5},
    "depth 4": {"depth": 4},
    "width 64": {"width": 64},
    "weight decay 0.3": {"weight_decay": 0.3},
    "learning rate 1e-2": {"learning_rate": 1e-2},
    "learning rate 2e-3": {"learning_rate": 2e-3},
    "Brier": {"rule": brier},
    "reach 1": {"reach": 1.0},
    "reach 4": {"reach": 4.0},
    "8000 steps": {"steps": 8000},
}
CLOCK_CHOICES = [{"harmonics": h} for h in (-1, 0, 1, 2, 3, 4, 5)]  # −1: one-hot


def main() -> None:
    args = arguments(__doc__).parse_args()
    torch.set_float32_matmul_precision("high")
    began, records = time.perf_counter(), list[Record]()
    codes = {name: torch.as_tensor(target.sample(ROWS, 0)) for name, target in SETS.items()}
    folds = {name: folds_of(c, 0)[None, : 2 if args.quick else None] for name, c in codes.items()}

    def add(system: str, nats: dict[str, float]) -> None:
        nats |= {"mean over the sets": sum(nats.values()) / len(nats)}
        records.extend(summarise(name, system, "held-out nats", [value]) for name, value in nats.items())
        print(f"{system:36}", {name: round(value, 4) for name, value in nats.items()}, flush=True)
        seconds = time.perf_counter() - began
        write("table2_choices", {}, records, args.device, seconds, args.out, quick=args.quick)

    for label, change in list(CHOICES.items())[: 2 if args.quick else None]:
        settings = replace(smooth_settings(args.quick), **change)
        nats = smooth_nets(folds, settings, args.device)[1]
        add(f"smooth energy, {label}", {name: float(value) for name, value in nats.items()})
    recipe, network = clock_settings(args.quick)
    for change in CLOCK_CHOICES[: 2 if args.quick else None]:
        found = {name: clocks(c, 0, recipe, args.device, **network | change)[1] for name, c in codes.items()}
        add(f"clocks, {change}", found)


if __name__ == "__main__":
    main()
