"""Energies refereed: rivals' losses on the 32-bit sets, log Z and couplings of lattices, binary images.

    python -m experiments.energies.referee --quick                                       two cores, under 3 minutes
    python -m experiments.energies.referee --device cuda --data FOLDER                   one H200, under 15 minutes
    python -m experiments.energies.referee --device cuda --what bits                     a part of it

FOLDER holds caltech/caltech101_silhouettes_28_split1.mat (or $CTEM_DATA does). Every part writes its own results file,
referee-PART.json. Nothing is tuned on the truth: what is chosen is chosen on validation rows.
"""

from __future__ import annotations

import time
from typing import Any

from experiments.energies import bits, images, lattices
from experiments.results import arguments, staged, write

PARTS = ("bits", "ising", "couplings", "images")


def measured(part: str, args: Any) -> tuple[dict[str, Any], list[Any]]:
    """The settings and the records of one part."""
    if part == "bits":
        size = bits.QUICK if args.quick else bits.FULL
        size = size._replace(seeds=args.seeds or size.seeds, seconds=args.seconds or size.seconds)
        return {"size": size._asdict(), "recipe": bits.RECIPE}, bits.measure(size, args.device)
    if part == "images":
        look = images.QUICK if args.quick else images.FULL
        return {"size": look._asdict(), "recipe": images.RECIPE}, images.measure(
            look, args.data, args.quick, args.device
        )
    spins = lattices.QUICK if args.quick else lattices.FULL
    work = lattices.constants if part == "ising" else lattices.couplings
    return {"size": spins._asdict()}, work(spins, args.device)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--what", nargs="+", choices=PARTS, default=list(PARTS), help="the parts to run")
    parser.add_argument("--data", help="folder of the data sets")
    parser.add_argument("--seconds", type=float, help="of training for each loss on the 32-bit sets")
    args = parser.parse_args()
    with staged(args.out) as out:
        for part in args.what:
            began = time.perf_counter()
            settings, records = measured(part, args)
            spent = time.perf_counter() - began
            command = f"python -m experiments.energies.referee --device {args.device} --what {part}"
            write(
                f"referee-{part}",
                settings,
                records,
                args.device,
                spent,
                out,
                quick=args.quick,
                command=command,
            )
            print(f"{part}: {spent:.0f} s", flush=True)


if __name__ == "__main__":
    main()
