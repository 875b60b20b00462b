"""Make the committed results again, e.g. for a release: every command that they record, the oldest first.

    python -m experiments.remake --list                       the pieces, and what each makes
    python -m experiments.remake                              all that this machine can make (or: make release-results)
    python -m experiments.remake --only table2 stress         the pieces that make these results
    python -m experiments.remake --device cpu                 the pieces that run on a CPU

A piece is one command in a process of its own. Data sets come from $CTEM_DATA, or are downloaded. One that fails is
reported at the end, and the others go on; its results stay as they were. Pictures and pages are written at the end.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from experiments.pages import Result, by_command, listed
from experiments.results import RESULTS, ROOT

LATE = ("experiments.paper.figures",)  # after the others: it draws from the fits of table1
PICTURES = {  # of results that several pieces make, by what their names begin with
    "figures-": ("python -m experiments.paper.figures --stage draw",),
    "bench-": tuple(
        f"python -m experiments.tables.bench --what figure --device {d}" for d in ("cpu", "cuda")
    ),
}
PAGES = "python -m experiments.pages"


def pieces(folder: Path = RESULTS, only: Sequence[str] = (), device: str | None = None) -> list[list[Result]]:
    """The results of every command, the oldest first: those that make one of ``only``, and run on the device."""
    every = by_command(folder)
    unknown = set(only) - {result["name"] for piece in every for result in piece}
    if unknown:
        raise SystemExit(f"--only: expected names of committed results; got {', '.join(sorted(unknown))}.")
    chosen = [
        piece
        for piece in every
        if (not only or any(result["name"] in only for result in piece))
        and device in (None, device_of(piece))
    ]
    return sorted(chosen, key=lambda piece: any(module in shlex.split(command_of(piece)) for module in LATE))


def command_of(piece: Sequence[Result]) -> str:
    return str(piece[0]["command"])


def device_of(piece: Sequence[Result]) -> str:
    """Where a piece was made: a device that is not a CPU is a GPU."""
    return "cpu" if piece[0]["device"].startswith("cpu") else "cuda"


def run(command: str) -> bool:
    """Run a recorded command by this Python; whether it ended well."""
    print(f"\n{command}", flush=True)
    return subprocess.run([sys.executable, *shlex.split(command)[1:]], cwd=ROOT).returncode == 0


def remake(todo: Sequence[Sequence[Result]], gpu: bool) -> tuple[list[str], list[str]]:
    """Run every piece that can run here, then draw and write the pages; which commands failed, which were skipped."""
    failed, skipped, names = [], [], []
    for piece in todo:
        command = command_of(piece)
        if device_of(piece) == "cuda" and not gpu:
            skipped.append(command)
        elif run(command):
            names += [result["name"] for result in piece]
        else:
            failed.append(command)
    after = [each for start, of in PICTURES.items() if any(n.startswith(start) for n in names) for each in of]
    failed += [command for command in [*after, PAGES] if not run(command)]
    return failed, skipped


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="list what would be made, and make nothing")
    parser.add_argument("--only", nargs="+", default=(), help="results by name, without .json")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="the pieces that run on it alone")
    args = parser.parse_args()
    todo = pieces(only=args.only, device=args.device)
    if args.list:
        print("\n".join(listed(todo)))
        return
    failed, skipped = remake(todo, torch.cuda.is_available())
    for word, commands in {"skipped, for want of a GPU": skipped, "FAILED": failed}.items():
        print("".join(f"{word}: {command}\n" for command in commands), end="")
    print(
        "docs/cost.md is made of results, too (make cost); tests/test_release.py checks the README's numbers."
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
