"""A model file: a safetensors file whose JSON header is sealed, together with the tensors, by a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

__all__ = ["Header", "digest", "part", "read_header", "sealed", "short", "unsealed"]

LARGEST_HEADER = 2**26  # characters
Header = dict[str, Any]


def sealed(kind: str, version: str, header: Header, tensors: Mapping[str, Tensor], seal: str = "") -> bytes:
    """The content of a file of a kind ("ctem" or "ctem energy"); ``seal`` keeps the hashes of kinds apart.

    >>> len(sealed("ctem", "23", {}, {})) > 100
    True
    """
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(header, allow_nan=False)
    metadata = {"format": kind, "version": version, "model": text}
    return serialize(plain, {**metadata, "sha256": digest(text, plain, version + seal)})


def unsealed(
    path: Path, kind: str, noun: str, understood: Callable[[Mapping[str, str]], Header], seal: str = ""
) -> tuple[Header, dict[str, Tensor]]:
    """Header and tensors of a file; a damaged or foreign one is an error that names it.

    Arguments:
        path: the file.
        kind: as in ``sealed``.
        noun: what the file should be, for messages.
        understood: makes the header of the metadata, before any tensor is read.
        seal: as in ``sealed``.

    >>> unsealed(Path("absent.ctem"), "ctem", "a ctem model", dict)
    Traceback (most recent call last):
    ...
    FileNotFoundError: load: no file at absent.ctem.
    """
    if not path.is_file():
        raise FileNotFoundError(f"load: no file at {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != kind:
                raise ValueError(f"load: {path} is a safetensors file, but not {noun}.")
            header = understood(metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"load: {path} is damaged or not {noun} ({error}).") from None
    if digest(metadata["model"], tensors, metadata["version"] + seal) != metadata.get("sha256"):
        raise ValueError(f"load: {path} is damaged: its content is not what was saved.")
    return header, tensors


def read_header(path: Path, text: str) -> Header:
    """The JSON object of a header.

    >>> read_header(Path("m.ctem"), "[]")
    Traceback (most recent call last):
    ...
    ValueError: load: m.ctem has a header that is not a JSON object.
    """
    if len(text) > LARGEST_HEADER:
        raise ValueError(
            f"load: {path} has a header of {len(text)} characters; expected at most {LARGEST_HEADER}."
        )
    try:
        header = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"load: {path} has a header that is not JSON ({short(error)})") from None
    if not isinstance(header, dict):
        raise ValueError(f"load: {path} has a header that is not a JSON object.")
    return header


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON.")


def digest(text: str, tensors: Mapping[str, Tensor], version: str) -> str:
    """SHA-256 of the format, a header and every number, so that no flipped bit goes unnoticed.

    >>> digest("{}", {}, "23")[:8]
    'b20e4b6b'
    """
    total = hashlib.sha256(f"{version} {text}".encode())
    for name in sorted(tensors):
        total.update(f"{name}{tuple(tensors[name].shape)}".encode())
        total.update(tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that beginning.

    >>> import torch
    >>> list(part({"net.first": torch.zeros(1), "base.log_table": torch.zeros(1)}, "net."))
    ['first']
    """
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def short(error: BaseException) -> str:
    """The message of an error, in a line.

    >>> short(KeyError("plan"))
    "'plan' is not there."
    """
    text = str(error) or type(error).__name__
    if isinstance(error, KeyError):
        text = f"{text} is not there."
    return text if len(text) < 400 else text[:400] + " …"
