"""The results convention: an experiment ends by writing one file, ``experiments/results/NAME.json``.

    args = arguments("Table 1: two-dimensional densities.").parse_args()
    ...
    records = [summarise("spiral", "CTEM", "ISE", ises, paper=0.012)]
    write("table1", settings, records, args.device, wall_s, args.out, quick=args.quick)

The file knows its code: the modules of the library that the script reaches by its imports, with a digest of each.
``pages.py`` puts the files of a table on one page, and says which are stale.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import io
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
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import ctem

__all__ = [
    "QUICK",
    "RESULTS",
    "ROOT",
    "Arrays",
    "Record",
    "arguments",
    "changed",
    "digest",
    "load_arrays",
    "replace_bytes",
    "rests_on",
    "save_arrays",
    "summarise",
    "write",
]

EXPERIMENTS = Path(__file__).resolve().parent
ROOT = EXPERIMENTS.parent  # of the repository
LIBRARY = Path(ctem.__file__).resolve().parent
RESULTS = EXPERIMENTS / "results"
FOLDERS = ("--out", "--arrays", "--build", "--data", "--fits", "--folder", "--samples")
QUICK = RESULTS / "quick"  # git ignores it

Arrays = dict[str, NDArray[Any]]


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
    curves: Mapping[str, Any] | None = None,
) -> Path:
    """Write NAME.json (NAME-quick.json if ``quick``) into the folder, whole or not at all; returns its path.

    Arguments:
        device: where it ran; a torch device is written out ("cpu (2 threads)", the name of the GPU).
        wall_s: seconds the run took.
        command: the command that makes the file; by default this process's own, less its folders.
        curves: what a figure is drawn from, if anything.
    """
    content = {
        "experiment": name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": ctem.__version__,
        "commit": _commit(),
        "modules": rests_on(Path(sys.argv[0])),
        "machine": _machine(),
        "device": _described(device),
        "torch": torch.__version__,
        "wall_s": round(float(wall_s), 2),
        "command": command or _command(),
        "settings": dict(settings),
        "records": [_checked(record) for record in records],
    } | ({} if curves is None else {"curves": dict(curves)})
    # settings are for reading, so a path or a dtype goes in as text
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False, default=str) + "\n"
    return replace_bytes(Path(folder) / f"{name}{'-quick' if quick else ''}.json", text.encode())


def rests_on(script: Path) -> dict[str, str]:
    """The modules of the library that a script reaches by its imports, each with the digest of its code."""
    found: dict[str, str] = {}
    todo, seen = [script], set[Path]()
    while todo:
        path = todo.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        for module in map(_module, _imported(path)):
            if module is not None:
                place = Path(str(module.__file__))
                todo.append(place)
                if module.__name__.startswith("ctem."):
                    found[module.__name__] = digest(place)
    return dict(sorted(found.items()))


def _module(name: str) -> ModuleType | None:
    """A module; None where a package that it needs is not here, so that nothing that ran can have used it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@cache
def _imported(path: Path) -> list[str]:
    """The modules, ours and of the experiments, that the names a file imports are made in."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [_home(str(node.module), each.name) for each in node.names]
    return [name for name in found if name.startswith(("ctem.", "experiments."))]


def _home(module: str, name: str) -> str:
    """Where a name comes from, so that a package that passes on many names is not all of them."""
    if not module.startswith(("ctem", "experiments")):
        return module
    thing = getattr(_module(module), name, None)
    home = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", module)
    return home if home.startswith(("ctem.", "experiments.")) else module


def changed(modules: Mapping[str, str], library: Path = LIBRARY) -> list[str]:
    """The modules whose code is nowhere in the library any more; one that has only moved is still there."""
    here = {digest(path) for path in library.rglob("*.py")}
    return [name for name, code in modules.items() if code not in here]


def digest(path: Path) -> str:
    """Of a module's code, the same for every Python: imports, docstrings, lines of comment and layout do not count."""
    return _digest(path.read_text(encoding="utf-8"))


@cache
def _digest(text: str) -> str:
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            _blank(lines, node.body[0])
        elif isinstance(node, ast.Import | ast.ImportFrom):
            _blank(lines, node)
    kept = (line for line in lines if not line.lstrip().startswith("#"))
    return hashlib.sha256("".join("".join(kept).split()).encode()).hexdigest()[:16]


def _blank(lines: list[str], node: ast.stmt) -> None:
    end = node.end_lineno or node.lineno
    lines[node.lineno - 1 : end] = [""] * (end - node.lineno + 1)


def replace_bytes(path: Path, content: bytes) -> Path:
    """Put the content at the path in one step: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def save_arrays(path: Path, arrays: Arrays) -> Path:
    """Write all arrays as one npz file, whole or not at all."""
    memory = io.BytesIO()
    np.savez_compressed(memory, **arrays)
    return replace_bytes(path, memory.getvalue())


def load_arrays(path: Path) -> Arrays:
    """Undo ``save_arrays``."""
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


@cache
def _commit() -> str | None:
    """The commit that is checked out, "+" for changes since; where there is no repository, what $CTEM_COMMIT says."""
    git = ["git", "-C", str(EXPERIMENTS), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("CTEM_COMMIT")


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
    script = Path(sys.argv[0]).resolve()
    inside = script.relative_to(ROOT) if script.is_relative_to(EXPERIMENTS) else Path(script.name)
    return without_folders(
        shlex.join(["python", "-m", ".".join(inside.with_suffix("").parts), *sys.argv[1:]])
    )


def without_folders(command: str) -> str:
    """The command less the folders that it names: they are a matter of the machine it ran on."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in FOLDERS:
        parser.add_argument(option)
    return shlex.join(parser.parse_known_args(shlex.split(command))[1])
