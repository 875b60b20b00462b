"""Energies refereed: rivals' losses on the 32-bit sets, log Z and couplings of lattices, binary images.

    python -m experiments.energies.referee --quick                                       two cores, under 3 minutes
    python -m experiments.energies.referee --device cuda --data FOLDER                   one H200, under 15 minutes
    python -m experiments.energies.referee --device cuda --what bits --share 0.5         a part, for half as long

FOLDER holds caltech/caltech101_silhouettes_28_split1.mat (or $CTEM_DATA does). Every part writes its own results file,
referee-PART.json. Settings are chosen on validation rows. The way couplings are
learned was chosen in four steps with its score on the truth in view, on other seeds.
"""

from __future__ import annotations

import time
import traceback
from typing import Any

from experiments.energies import bits, images, lattices
from experiments.results import arguments, staged, write

PARTS = ("bits", "ising", "couplings", "images")


def measured(part: str, args: Any) -> tuple[dict[str, Any], list[Any]]:
    """The settings and the records of one part."""
    if part == "bits":
        size = bits.QUICK if args.quick else bits.FULL
        spent = {"seconds": size.seconds * args.share, "anyorder": size.anyorder * args.share}
        size = size._replace(seeds=args.seeds or size.seeds, **spent)
        return {"size": size._asdict(), "recipe": bits.RECIPE}, bits.measure(size, args.device)
    if part == "images":
        look = images.QUICK if args.quick else images.FULL
        look = look._replace(seconds=look.seconds * args.share, divergence=look.divergence * args.share)
        found = images.measure(look, args.data, args.quick, args.device)
        return {"size": look._asdict(), "recipe": images.RECIPE}, found
    spins = lattices.QUICK if args.quick else lattices.FULL
    spins = spins._replace(seeds=args.seeds or spins.seeds)
    work = lattices.constants if part == "ising" else lattices.couplings
    return {"size": spins._asdict()}, work(spins, args.device)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--what", nargs="+", choices=PARTS, default=list(PARTS), help="the parts to run")
    parser.add_argument("--data", help="folder of the data sets")
    parser.add_argument("--share", type=float, default=1.0, help="of the seconds of training")
    args = parser.parse_args()
    failed = []
    for part in args.what:
        began = time.perf_counter()
        try:
            with staged(args.out) as out:
                settings, records = measured(part, args)
                spent = time.perf_counter() - began
                options = f"--device {args.device} --what {part}" + (
                    f" --share {args.share}" if args.share != 1 else ""
                )
                command = f"python -m experiments.energies.referee {options}"
                name = f"referee-{part}"
                write(name, settings, records, args.device, spent, out, quick=args.quick, command=command)
        except Exception:
            traceback.print_exc()
            failed.append(part)
        print(f"{part}: {time.perf_counter() - began:.0f} s", flush=True)
    if failed:
        raise SystemExit(f"These parts failed, the others are written: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
