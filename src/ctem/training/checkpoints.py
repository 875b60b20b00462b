"""Files that a killed fit resumes from: tensors and facts in one safetensors file, read without running anything.

A fit has several, CHECKPOINT.first and so on, one for each phase. They are written atomically and synced, they know to
which rows and settings they belong, and one fit at a time may use them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor, nn

from ctem.persistence.atomic import forget_parts, locked, replacing
from ctem.persistence.sealed import digest

__all__ = ["claimed", "files_of", "fingerprint", "forget", "read_checkpoint", "write_checkpoint"]

PHASES = r"|\.first|\.again|\.second|\.last|\.rows|\.steps|\.potential|\.[0-9]+"


@contextmanager
def claimed(checkpoint: str | Path | None) -> Iterator[None]:
    """The files of a checkpoint for one fit: a second one at the same time is refused instead of mixed up with it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, claimed(f"{folder}/run"), claimed(f"{folder}/run"):
    ...     pass
    Traceback (most recent call last):
    ...
    OSError: checkpoint: another fit is using .../run; wait for it, or give this one another output or checkpoint.
    """
    if checkpoint is None:
        yield
        return
    with locked(f"{checkpoint}.lock") as free:
        if not free:
            raise OSError(
                f"checkpoint: another fit is using {checkpoint}; "
                "wait for it, or give this one another output or checkpoint."
            )
        yield


def files_of(checkpoint: str | Path | None) -> list[Path]:
    """The files of a checkpoint that are there.

    >>> files_of("absent/run")
    []
    """
    return [path for path, target in _written(checkpoint) if path == target]


def forget(checkpoint: str | Path | None) -> None:
    """Remove the files of a checkpoint, and what a killed fit left of them half-written.

    >>> forget(None)
    """
    for path, target in _written(checkpoint):
        if path == target:
            path.unlink(missing_ok=True)
        else:
            forget_parts(target)


def _written(checkpoint: str | Path | None) -> list[tuple[Path, Path]]:
    """The files of a checkpoint and the parts of them that are there, each with the file that it is or was to be."""
    path = Path(checkpoint or "")
    if checkpoint is None or not path.parent.is_dir():
        return []
    pattern = re.compile(re.escape(path.name) + f"({PHASES})")
    targets = {name: re.sub(r"^\.(.*)\.[0-9a-f]{8}\.part$", r"\1", name) for name in os.listdir(path.parent)}
    return [
        (path.with_name(name), path.with_name(target))
        for name, target in targets.items()
        if pattern.fullmatch(target)
    ]


def fingerprint(settings: dict[str, Any], f: nn.Module, *data: Tensor | None) -> str:
    """A hash of settings, parameter shapes and all data of a run: a run with another one cannot be resumed.

    A loss is a function and has no hash: another loss needs another checkpoint file.

    >>> import torch
    >>> fingerprint({"seed": 0}, torch.nn.Linear(1, 1), torch.zeros(2, 1)) == fingerprint(
    ...     {"seed": 1}, torch.nn.Linear(1, 1), torch.zeros(2, 1)
    ... )
    False
    """
    shapes = {name: list(p.shape) for name, p in f.named_parameters()}
    sizes = [None if x is None else [*x.shape, str(x.dtype)] for x in data]
    total = hashlib.sha256(json.dumps([settings, shapes, sizes], sort_keys=True).encode())
    for x in data:
        if x is not None:
            total.update(x.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def write_checkpoint(path: Path, mark: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and JSON facts to one file; a crash leaves the old file or the new one, never half.

    >>> import tempfile
    >>> import torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_checkpoint(Path(folder) / "run", "mark", {"a": torch.ones(2)}, {"step": 3})
    ...     read_checkpoint(Path(folder) / "run", "mark")
    ({'a': tensor([1., 1.])}, {'step': 3})
    """
    flat = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    text = json.dumps(facts)
    content = serialize(flat, {"mark": mark, "facts": text, "sha256": _digest(mark, text, flat)})
    try:
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        raise OSError(f"checkpoint: {path} could not be written ({error.strerror or error}).") from None


def read_checkpoint(path: Path, mark: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of a checkpoint made by the same run; one bit of it changed is an error.

    >>> read_checkpoint(Path("absent"), "mark")
    Traceback (most recent call last):
    ...
    FileNotFoundError: checkpoint: no file at absent.
    """
    if not path.exists():
        raise FileNotFoundError(f"checkpoint: no file at {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"checkpoint: {path} is damaged or not a checkpoint ({error}).") from None
    saved = metadata.get("mark", ""), metadata.get("facts", "")
    if _digest(*saved, tensors) != metadata.get("sha256"):
        raise ValueError(
            f"checkpoint: {path} is damaged: its content is not what was written. Remove it and begin anew "
            "(on the command line: leave out --resume)."
        )
    if saved[0] != mark:
        raise ValueError(
            f"checkpoint: {path} belongs to another recipe, network or data. Fit those to go on with it; to begin "
            "anew, remove it or give another checkpoint (on the command line: leave out --resume)."
        )
    return tensors, json.loads(saved[1])


def _digest(mark: str, facts: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of all that a checkpoint holds."""
    return digest(facts, {f"{name} {value.dtype}": value for name, value in tensors.items()}, mark)
