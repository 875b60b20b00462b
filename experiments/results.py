"""The results convention: an experiment ends by writing one file, ``experiments/results/NAME.json``.

    args = arguments("Table 1: two-dimensional densities.").parse_args()
    ...
    records = [summarise("spiral", "CTEM", "ISE", ises, paper=0.012)]
    write("table1", settings, records, args.device, wall_s, args.out, quick=args.quick)

``render.py`` puts all files on one page.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import ctem

__all__ = [
    "QUICK",
    "RESULTS",
    "Record",
    "arguments",
    "digest",
    "modules",
    "replace_text",
    "summarise",
    "write",
]

RESULTS = Path(__file__).resolve().parent / "results"
FOLDERS = ("--out", "--arrays", "--build", "--data", "--fits", "--folder", "--samples")
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
        "commit": _commit(),
        "modules": modules(),
        "digest": digest(modules()),
        "machine": _machine(),
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


def modules() -> list[str]:
    """The modules of the library that this process has loaded: what its results rest on."""
    return sorted(name for name in sys.modules if name == "ctem" or name.startswith("ctem."))


def digest(names: Sequence[str], folder: Path = Path(ctem.__file__).parent) -> str:
    """SHA-256 of the code of these modules of the library; words and layout do not count, a missing module does."""
    found = hashlib.sha256()
    for name in names:
        place = folder.joinpath(*name.split(".")[1:])
        path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        found.update(f"{name} {_code(path) if path.is_file() else 'gone'}\n".encode())
    return found.hexdigest()


@cache
def _code(path: Path) -> str:
    """A module's text without docstrings, lines of comment and white space, the same for every Python."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            words = node.body[0]
            lines[words.lineno - 1 : words.end_lineno] = [""] * (words.end_lineno - words.lineno + 1)
    kept = (line for line in lines if not line.lstrip().startswith("#"))
    return "".join("".join(kept).split())


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


@cache
def _commit() -> str | None:
    """The commit that is checked out, "+" for changes since; None where there is no repository."""
    git = [
        "git",
        "-C",
        str(RESULTS.parent),
        "describe",
        "--always",
        "--abbrev=40",
        "--exclude=*",
        "--dirty=+",
    ]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _machine() -> str:
    """How many cores, and which GPU if there is one."""
    gpu = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    return ", ".join([f"{os.cpu_count()} cores", *gpu])


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
