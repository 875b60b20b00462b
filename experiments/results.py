"""The results convention: an experiment ends by writing one file, ``experiments/results/NAME.json``.

    args = arguments("Table 1: two-dimensional densities.").parse_args()
    ...
    records = [summarise("spiral", "CTEM", "ISE", ises, paper=0.012)]
    write("table1", settings, records, args.device, wall_s, args.out, quick=args.quick)

The file knows its code: the functions of the library that the run entered and what they mention, with a digest of each.
``pages.py`` puts the files of a table on one page, and says which are stale.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import ctem
from experiments import ENTERED, EQUAL, GONE, NEUTRAL, Function, functions

__all__ = [
    "QUICK",
    "RESULTS",
    "ROOT",
    "Arrays",
    "Record",
    "arguments",
    "changed",
    "count",
    "executed",
    "load_arrays",
    "replace_bytes",
    "save_arrays",
    "summarise",
    "units",
    "write",
]

EXPERIMENTS = Path(__file__).resolve().parent
ROOT = EXPERIMENTS.parent  # of the repository
LIBRARY = Path(ctem.__file__).resolve().parent
RESULTS = EXPERIMENTS / "results"
FOLDERS = ("--out", "--arrays", "--build", "--data", "--fits", "--folder", "--samples")
QUICK = RESULTS / "quick"  # git ignores it

REST = "(module)"  # statements of a module that make no function, class or constant
SILENT = {
    "annotation",
    "ctx",
    "kind",
    "module",
    "returns",
    "type_comment",
    "type_params",
}  # of what ast knows

Arrays = dict[str, NDArray[Any]]
Code = dict[str, dict[str, str]]  # module → function, class or constant → digest
COUNTED: Code = {}  # what others executed whose results are used here


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
        "code": executed(),
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


class Unit(NamedTuple):
    """A function, a class less its methods, or a constant of a module."""

    digest: str
    mentions: frozenset[str]  # names, and attributes of names, as they are written
    runs: bool  # a function: it counts if it was entered; the others if something that counts mentions them


def executed() -> Code:
    """The code of the library that this process has executed, and that whose results it has used (``count``).

    The functions that were entered, with their classes, and the classes and constants that these mention, one by way of
    another. What is passed by a name in a string is not followed, nor a new method that takes the place of an old one.
    """
    todo, found = list(_entered()), set[tuple[str, str]]()
    while todo:
        module, name = todo.pop()
        unit = _own(module).get(name)
        if unit is None or (module, name) in found:
            continue
        found.add((module, name))
        todo += [(module, REST), (module, name.rpartition(".")[0])]
        todo += [at for mention in unit.mentions if (at := _home(module, mention)) is not None]
    code: Code = {module: dict(names) for module, names in COUNTED.items()}
    for module, name in sorted(found):
        code.setdefault(module, {})[name] = _own(module)[name].digest
    return dict(sorted(code.items()))


def count(code: Code) -> None:
    """Let this process's results rest on what another one has executed, too: it made something that is used here."""
    for module, names in code.items():
        COUNTED.setdefault(module, {}).update(names)


def _entered() -> Iterator[tuple[str, str]]:
    """Functions by module; of a module that was loaded before it could be watched, everything."""
    for module in [name for name in sys.modules if name.partition(".")[0] == "ctem"]:
        yield from ((module, name) for name in ENTERED.get(module, _own(module)))


def _path(module: str) -> Path:
    base = LIBRARY.joinpath(*module.split(".")[1:])
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def _home(module: str, mention: str) -> tuple[str, str] | None:
    """Where a class or constant is made that a module mentions; None for a function, or if it is not the library's."""
    head, _, rest = mention.partition(".")
    if (unit := _own(module).get(head)) is not None:
        return None if unit.runs else (module, head)
    if (origin := _imports(module).get(head)) is None:
        return None
    if _path(".".join(origin)).is_file():
        return _home(".".join(origin), rest) if rest else None
    return _home(*origin) if _path(origin[0]).is_file() else None


@cache
def _own(module: str) -> dict[str, Unit]:
    return units(_path(module))


@cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
    """The names that a module takes from the library: from which module, and what they are called there."""
    tree = ast.parse(_path(module).read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in nodes if str(node.module).partition(".")[0] == "ctem"]
    return {each.asname or each.name: (str(node.module), each.name) for node in ours for each in node.names}


def changed(code: Code, library: Path = LIBRARY) -> list[str]:
    """What of the code is nowhere in the library any more; a function that has only moved to another file is there.

    What is ``NEUTRAL`` may change, and what is ``EQUAL`` has, without a change of any number.
    """
    here = {(name, unit.digest) for path in library.rglob("*.py") for name, unit in units(path).items()}
    return [
        f"{module}.{name}"
        for module, names in code.items()
        for name, digest in names.items()
        if not {(name, digest), (name, EQUAL.get(digest))} & here
        and EQUAL.get(digest) != GONE
        and name not in NEUTRAL.get(module, ())
    ]


def units(path: Path) -> dict[str, Unit]:
    """The functions, classes and constants of a file by their qualified names, and the ``REST``."""
    return _units(path.read_text(encoding="utf-8"))


@cache
def _units(text: str) -> dict[str, Unit]:
    tree = ast.parse(text)
    found: dict[str, list[ast.AST]] = {}
    runs = [name for name, node in functions(tree.body) if not found.setdefault(name, []).append(node)]
    for name, node in _others(tree.body):
        found.setdefault(name, []).append(node)
    return {name: _unit(nodes, name in runs) for name, nodes in found.items()}


def _others(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Classes less their methods; constants; any other statement of a module but imports, words and ``__all__``."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _others(
                [each for each in node.body if isinstance(each, ast.ClassDef)], f"{prefix}{node.name}."
            )
            fields = [each for each in node.body if not isinstance(each, Function | ast.ClassDef)]
            yield prefix + node.name, _less(node, fields)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            yield from ((name, node) for name in names if name != "__all__")
        elif not isinstance(node, Function | ast.Import | ast.ImportFrom) and not _is_text(node):
            yield REST, node


def _less(node: ast.ClassDef, fields: list[ast.stmt]) -> ast.ClassDef:
    return ast.ClassDef(node.name, node.bases, node.keywords, fields, node.decorator_list)


def _unit(nodes: Sequence[ast.AST], runs: bool) -> Unit:
    mentions = set()
    for node in (each for root in nodes for each in ast.walk(root)):
        if isinstance(node, ast.Name):
            mentions.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            mentions.add(f"{node.value.id}.{node.attr}")
    text = " ".join(map(_plain, nodes))
    return Unit(hashlib.sha256(text.encode()).hexdigest()[:12], frozenset(mentions), runs)


def _plain(node: Any) -> str:
    """Code as text, the same for every Python, without words, layout, types, and where an import comes from."""
    if isinstance(node, list):
        return f"[{','.join(_plain(each) for each in node if not _is_text(each))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [(name, value) for name, value in ast.iter_fields(node) if name not in SILENT]
    parts = [f"{name}={_plain(value)}" for name, value in fields if value is not None and value != []]
    return f"{type(node).__name__}({','.join(parts)})"


def _is_text(node: Any) -> bool:
    """A docstring, or another statement that is only text."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


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
    """What $CTEM_COMMIT says, for a copy of the files; else the commit that is checked out, "+" for changes since."""
    if said := os.environ.get("CTEM_COMMIT"):
        return said
    git = ["git", "-C", str(EXPERIMENTS), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
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
