"""The results convention: a run ends by putting its files, NAME.json and pictures, into ``experiments/results``.

    args = arguments("Table 1: two-dimensional densities.").parse_args()
    with staged(args.out) as out:
        ...
        records = [summarise("spiral", "CTEM", "ISE", ises, paper=0.012)]
        write("table1", settings, records, args.device, wall_s, out, quick=args.quick)

A result says when and how it was made: commit, date, command, settings, seeds, device, machine, versions and seconds.
``pages.py`` puts the results of a table on one page.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
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
    "git",
    "load_arrays",
    "replace_bytes",
    "save_arrays",
    "staged",
    "summarise",
    "text_of",
    "write",
]

EXPERIMENTS = Path(__file__).resolve().parent
ROOT = EXPERIMENTS.parent  # of the repository
RESULTS = EXPERIMENTS / "results"
FOLDERS = ("--out", "--arrays", "--build", "--data", "--fits", "--folder", "--samples")
QUICK = RESULTS / "quick"  # git ignores it
PARTIAL = "partial"  # the folder for files of runs that have not ended; git ignores it
CODE = ("src", ":(glob)experiments/**/*.py")  # what a commit must hold to name the code of a run

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
        parsed, rest = super().parse_known_args(args, namespace)
        if parsed.out is None:  # --quick decides, so a quick run cannot reach the committed files by default
            parsed.out = QUICK if parsed.quick else RESULTS
        return parsed, rest


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
    folder: Path | str,
    *,
    quick: bool = False,
    command: str | None = None,
    curves: Mapping[str, Any] | None = None,
) -> Path:
    """Write NAME.json (NAME-quick.json if ``quick``) into the folder, whole or not at all; returns its path.

    Arguments:
        device: where it ran; a torch device is written out ("cpu (2 threads)", the name of the GPU).
        wall_s: seconds the run took.
        folder: that of ``staged``, so that no file is replaced before the run has ended.
        quick: whether its numbers are those of a toy, which go beside no published ones.
        command: the command that makes the file; by default this process's own, less its folders.
        curves: what a figure is drawn from, if anything.
    """
    content = {
        "experiment": name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": _machine(),
        "device": _described(device),
        "versions": _versions(),
        "wall_s": round(float(wall_s), 2),
        "command": command or _command(),
        "settings": dict(settings),
        "records": [_checked(record._replace(paper=None) if quick else record) for record in records],
    } | ({} if curves is None else {"curves": dict(curves)})
    return replace_bytes(Path(folder) / f"{name}{'-quick' if quick else ''}.json", text_of(content).encode())


def text_of(content: Mapping[str, Any]) -> str:
    """The content of a result as JSON, a line a record; a path or a dtype goes in as text, for reading.

    A record without a published number does not mention it. Numbers of records and curves have eight digits.
    """
    dumps = partial(json.dumps, ensure_ascii=False, allow_nan=False, default=str)
    brief = [{k: v for k, v in r.items() if (k, v) != ("paper", None)} for r in _short(content["records"])]
    records = ",\n  ".join(map(dumps, brief))
    curves = {"curves": _short(content["curves"])} if "curves" in content else {}
    whole = dumps({**content, "records": [], **curves}, indent=1)
    return whole.replace('"records": []', f'"records": [\n  {records}\n ]', 1) + "\n"


def _short(value: Any) -> Any:
    """The same with every number of eight digits at most.

    >>> _short({"mean": 1 / 3, "curve": [2 / 3, 5]})
    {'mean': 0.33333333, 'curve': [0.66666667, 5]}
    """
    if isinstance(value, Mapping):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    return float(f"{value:.8g}") if isinstance(value, float) else value


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A new folder for the files of one run, which go into ``folder`` when the run ends.

    A run that fails or is killed leaves the files of ``folder`` as they were, and its own in folder/partial/….
    """
    _commit()  # that of the start, for all files
    partial = folder / PARTIAL
    partial.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f"{Path(sys.argv[0]).stem}-", dir=partial))
    try:
        yield stage
    except BaseException:
        print(
            f"The run has not ended: {folder} is as it was, what was measured is in {stage}", file=sys.stderr
        )
        raise
    for path in sorted(stage.iterdir()):
        path.replace(folder / path.name)
    stage.rmdir()


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


def git(*words: str) -> str | None:
    """What git says about this repository; None where there is neither, or where it knows no such thing."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


@cache
def _commit() -> str | None:
    """What $CTEM_COMMIT says, for a copy of the files; else the commit that is checked out.

    A "+" behind it says that the code of the library or of the experiments had changes that were not committed.
    """
    if given := os.environ.get("CTEM_COMMIT"):
        return given
    head = git("rev-parse", "HEAD")
    changed = head and git("status", "--porcelain", "--untracked-files=no", "--", *CODE)
    return f"{head}+" if changed else head


def _versions() -> dict[str, str]:
    """Of Python and of the main packages."""
    packages = {name: version(name) for name in ("numpy", "scikit-learn")}
    return {
        "python": platform.python_version(),
        "ctem": ctem.__version__,
        "torch": torch.__version__,
    } | packages


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
