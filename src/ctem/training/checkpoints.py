"""Files: tensors and facts in one safetensors file, written atomically, read without running anything."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor, nn

from ctem.atomic import replacing

__all__ = ["fingerprint", "read_checkpoint", "write_checkpoint"]


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
    digest = hashlib.sha256(json.dumps([settings, shapes, sizes], sort_keys=True).encode())
    for x in data:
        if x is not None:
            digest.update(x.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


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
    content = serialize(flat, {"mark": mark, "facts": json.dumps(facts)})
    try:
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        raise OSError(f"checkpoint: {path} could not be written ({error}).") from None


def read_checkpoint(path: Path, mark: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of a checkpoint made by the same run.

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
    if metadata.get("mark") != mark:
        raise ValueError(f"checkpoint: {path} belongs to another recipe, network or data; move it away.")
    return tensors, json.loads(metadata["facts"])
