"""Energies refereed: rivals' losses on the 32-bit sets, log Z and couplings of lattices, binary images.

    python -m experiments.energies.referee --quick                                    two cores, under 3 minutes
    python -m experiments.energies.referee --device cuda --data FOLDER --seconds 300  one H200: what fits into 300 s
    python -m experiments.energies.referee --device cuda --what ising --seconds 120   a part
    python -m experiments.energies.referee --what ours                                20 min of one core
    python -m experiments.energies.referee --device cuda --data FOLDER --what mnist --seconds 575 --workers 1

FOLDER holds caltech/caltech101_silhouettes_28_split1.mat and binarized_mnist/ (or $CTEM_DATA does). With --seconds the
pieces (a loss on all sets, a lattice, a network of images) are done in several processes, the most valuable first, and
the run ends in time: referee-PART.json is written after every piece, and names those that are left out. Seconds of a
piece are those of a shared device. Settings are chosen on validation rows. The way couplings are learned was chosen in
four steps with its score on the truth in view, on other seeds.
"""

from __future__ import annotations

import time

BEGAN = time.time()

import shutil  # noqa: E402
import tempfile  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402
from threading import Thread  # noqa: E402
from typing import Any, NamedTuple  # noqa: E402

from experiments.energies import bits, images, lattices, ours  # noqa: E402
from experiments.pieces import Done, Piece, worked  # noqa: E402
from experiments.results import Record, arguments, staged, write  # noqa: E402

PARTS = ("bits", "images", "ising", "couplings", "ours", "mnist")
USUAL = PARTS[:5]
WORKERS = 6  # of one GPU
STARTING = 40.0  # seconds until all processes are at work
LAST = 4.0  # seconds before the end that are kept for writing


class Options(NamedTuple):
    """What a process needs to know."""

    quick: bool
    device: str
    seeds: int | None
    data: str | None
    share: float
    folder: str  # of the rows of the 32-bit sets

    def bits(self) -> bits.Size:
        size = bits.QUICK if self.quick else bits.FULL
        spent = {name: getattr(size, name) * self.share for name in ("seconds", "anyorder")}
        return size._replace(seeds=self.seeds or size.seeds, **spent)

    def images(self) -> images.Size:
        size = images.QUICK if self.quick else images.FULL
        return size._replace(seconds=size.seconds * self.share, divergence=size.divergence * self.share)

    def lattices(self) -> lattices.Size:
        size = lattices.QUICK if self.quick else lattices.FULL
        return size._replace(seeds=self.seeds or size.seeds)

    def settings(self, part: str) -> dict[str, Any]:
        if part == "bits":
            return {"size": self.bits()._asdict(), "recipe": bits.RECIPE}
        if part == "ours":
            return {"size": self.bits()._asdict(), "prior of a share": ours.PRIOR}
        if part in ("images", "mnist"):
            return {"size": self.images()._asdict(), "recipe": images.RECIPE}
        return {"size": self.lattices()._asdict()}


def pieces(what: list[str], options: Options) -> list[Piece]:
    """In the order of their value, but long ones begin early."""
    found = {
        "images": images.pieces(options.images(), options.quick),
        "bits": bits.pieces(options.bits()),
        "ours": ours.pieces(options.bits()),
        "ising": lattices.constant_pieces(options.lattices()),
        "couplings": lattices.coupling_pieces(options.lattices()),
        "mnist": images.digit_pieces(options.images(), options.quick),
    }
    every = [piece for part, some in found.items() if part in what for piece in some]
    return sorted(every, key=lambda piece: _rank(piece))


def _rank(piece: Piece) -> int:
    if piece.name in (images.CHAINS, *bits.LAST):
        return 3
    return {"images": 0, "mnist": 0, "ours": 1, "bits": 1, "ising": 2, "couplings": 4}[piece.part]


def work(options: Options, piece: Piece, until: float) -> list[Record]:
    """The records of one piece, which ends before the moment ``until`` if its training can."""
    left = until - time.time() - LAST
    if piece.part == "bits":
        return bits.measure(piece.name, options.bits(), options.device, Path(options.folder), left)
    if piece.part == "ours":
        truth = bits.Truth.load(options.bits(), Path(options.folder), options.device)
        return ours.measure(truth, piece.name)
    if piece.part in ("images", "mnist"):
        return images.measure(piece.name, options.images(), options.data, options.quick, options.device, left)
    measured = lattices.constant if piece.part == "ising" else lattices.coupling
    return measured(piece.name, options.lattices(), options.device)


def make_rows(options: Options) -> None:
    """The rows of the 32-bit sets, for all processes."""
    bits.Truth.make(options.bits(), options.device).save(Path(options.folder))
    print(f"rows of the 32-bit sets: {time.time() - BEGAN:.0f} s", flush=True)


class Files:
    """referee-PART.json of every part, written anew after every piece."""

    def __init__(self, args: Any, options: Options, todo: list[Piece]):
        self.args, self.options, self.todo = args, options, todo
        self.done: list[Done] = []

    def add(self, done: Done) -> None:
        """One more piece."""
        self.done.append(done)
        piece = done.piece
        print(f"{piece.part}, {piece.name}: {done.seconds:.0f} s {done.error}", flush=True)
        if not done.error:
            self.write(piece.part)

    def write(self, part: str) -> None:
        """What there is of a part, in the order of its pieces."""
        records = {
            each.piece: each.result for each in self.done if each.piece.part == part and not each.error
        }
        pieces = [piece for piece in self.todo if piece.part == part]
        settings = self.options.settings(part) | {
            "processes that share the device": self.args.workers,
            "pieces left out": [piece.name for piece in pieces if piece not in records],
        }
        found = [record for piece in pieces for record in records.get(piece, [])]
        spent, quick = time.time() - BEGAN, self.args.quick
        write(f"referee-{part}", settings, found, self.args.device, spent, self.args.out, quick=quick)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--what", nargs="+", choices=PARTS, default=list(USUAL), help="the parts to run")
    parser.add_argument("--data", help="folder of the data sets")
    parser.add_argument("--share", type=float, default=1.0, help="of the seconds of training")
    parser.add_argument("--seconds", type=float, help="that all of it may take, from the start of Python")
    parser.add_argument(
        "--workers", type=int, help=f"processes; {WORKERS} with --seconds on a GPU, else none"
    )
    args = parser.parse_args()
    if args.workers is None:
        args.workers = 0 if args.seconds is None else WORKERS if "cuda" in args.device else 1
    until = float("inf") if args.seconds is None else BEGAN + args.seconds - LAST
    folder = tempfile.mkdtemp()
    try:
        with staged(args.out) as args.out:
            failed = run(args, until, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if failed:
        raise SystemExit(f"These pieces failed, the others are written: {', '.join(failed)}.")


def run(args: Any, until: float, folder: str) -> list[str]:
    """All pieces that there is time for; the names of those that failed."""
    options = Options(args.quick, args.device, args.seeds, args.data, args.share, folder)
    if args.seconds is not None:
        wanted = sum(piece.seconds for piece in pieces(args.what, options))
        there = max(1, args.workers) * (args.seconds - STARTING)
        options = options._replace(share=args.share * min(1.0, max(0.05, there / wanted)))
    todo = pieces(args.what, options)
    files = Files(args, options, todo)
    if {"bits", "ours"} & set(args.what):
        making = Thread(target=make_rows, args=(options,), daemon=True)  # while the processes begin
        making.start()
        if not args.workers:
            making.join()
    for done in worked(todo, partial(work, options), args.workers, until):
        files.add(done)
    failed = [each.piece.name for each in files.done if each.error]
    late = [piece.name for piece in todo if piece not in [each.piece for each in files.done]]
    print(f"{time.time() - BEGAN:.0f} s; not in time: {', '.join(late) or 'none'}", flush=True)
    return failed


if __name__ == "__main__":
    main()
