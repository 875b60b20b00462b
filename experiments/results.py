"""The results convention: an experiment ends by writing one file, ``experiments/results/NAME.json``.

    args = arguments("Table 1: two-dimensional densities.").parse_args()
    ...
    records = [summarise("spiral", "CTEM", "ISE", ises, paper=0.012)]
    write("table1", settings, records, args.device, wall_s, args.out, quick=args.quick)

``render.py`` puts all files on one page.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import ctem

__all__ = ["QUICK", "RESULTS", "Record", "arguments", "replace_text", "summarise", "write"]

RESULTS = Path(__file__).resolve().parent / "results"
FOLDERS = ("--out", "--arrays", "--build", "--data", "--fits", "--folder")
QUICK = RESULTS / "quick"  # git ignores it


class Record(NamedTuple):
    """One number with its spread; ``paper`` is the published one, as a number or as printed."""

    dataset: str
    system: str
    metric: str
    mean: float
    std: float | None  # ddof = 1; None for one seed
    seeds: int
    paper: float | str | None = None


def summarise(
    dataset: str, system: str, metric: str, values: Sequence[float], paper: float | str | None = None
) -> Record:
    """Mean and standard deviation over seeds, one value a seed."""
    if len(values) == 0:
        raise ValueError(f"values: expected at least one for {dataset}, {system}, {metric}; got none.")
    v = np.array([float(value) for value in values])
    std = float(v.std(ddof=1)) if len(v) > 1 else None
    return Record(dataset, system, metric, float(v.mean()), std, len(v), paper)


class _Parser(argparse.ArgumentParser):
    def parse_known_args(self, args=None, namespace=None):
        found, rest = super().parse_known_args(args, namespace)
        if found.out is None:  # --quick decides, so a quick run cannot reach the committed files by default
            found.out = QUICK if found.quick else RESULTS
        return found, rest


def arguments(description: str) -> argparse.ArgumentParser:
    """The arguments every experiment takes; a script adds its own."""
    parser = _Parser(description=description)
    parser.add_argument("--quick", action="store_true", help="a small run, to see that the script works")
    parser.add_argument("--device", type=_device, default="cpu", help="cpu, cuda, or auto (cuda if any)")
    parser.add_argument("--seeds", type=int, help="number of seeds; the script's own number by default")
    parser.add_argument("--out", type=Path, help="folder of the JSON file (default: experiments/results)")
    return parser


def write(
    name: str,
    settings: Mapping[str, Any],
    records: Iterable[Record],
    device: torch.device | str,
    wall_s: float,
    folder: Path | str = RESULTS,
    *,
    quick: bool = False,
    command: str | None = None,
) -> Path:
    """Write NAME.json (NAME-quick.json if ``quick``) into the folder, whole or not at all; returns its path.

    Arguments:
        device: where it ran; a torch device is written out ("cpu (2 threads)", the name of the GPU).
        wall_s: seconds the run took.
        command: the command that makes the file; by default this process's own, less its folders.
    """
    content = {
        "experiment": name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": ctem.__version__,
        "device": _described(device),
        "torch": torch.__version__,
        "wall_s": round(float(wall_s), 2),
        "command": command or _command(),
        "settings": dict(settings),
        "records": [_checked(record) for record in records],
    }
    # settings are for reading, so a path or a dtype goes in as text
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False, default=str) + "\n"
    return replace_text(Path(folder) / f"{name}{'-quick' if quick else ''}.json", text)


def replace_text(path: Path, text: str) -> Path:
    """Put the text at the path in one step: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _checked(record: Record) -> dict[str, Any]:
    row = record._asdict()
    for key in ("mean", "std", "paper"):
        if row[key] is None or isinstance(row[key], str):
            continue
        row[key] = float(row[key])
        if not math.isfinite(row[key]):
            where = f"{record.dataset}, {record.system}, {record.metric}"
            raise ValueError(f"record ({where}): expected a finite {key}; got {row[key]}.")
    return row


def _device(text: str) -> str:
    if text != "auto":
        return text
    return "cuda" if torch.cuda.is_available() else "cpu"


def _described(device: torch.device | str) -> str:
    match str(device).partition(":")[0]:
        case "cpu":
            return f"cpu ({torch.get_num_threads()} threads)"
        case "cuda":
            return torch.cuda.get_device_name(device)
    return str(device)


def _command() -> str:
    return without_folders(shlex.join(["python", f"experiments/{Path(sys.argv[0]).name}", *sys.argv[1:]]))


def without_folders(command: str) -> str:
    """The command less the folders that it names: they are a matter of the machine it ran on."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in FOLDERS:
        parser.add_argument(option)
    return shlex.join(parser.parse_known_args(shlex.split(command))[1])
