"""Model files: safetensors files whose JSON header is sealed, together with the tensors, by a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

__all__ = ["FORMAT", "Format", "digest", "part", "provenance", "short"]

FORMAT = 27  # raise it when the header changes; what a release has written is then read, too
LARGEST_HEADER = 2**26  # characters
Header = dict[str, Any]


class Format(NamedTuple):
    """A kind of file.

    Arguments:
        kind: the word for it in the file.
        noun: what such a file is, for messages.
        version: of its header; earlier ones were never released.
        seal: keeps the hashes of kinds apart.

    >>> MODEL.read(Path("absent.ctem"))
    Traceback (most recent call last):
    ...
    FileNotFoundError: load: no file at absent.ctem.
    """

    kind: str
    noun: str
    version: int
    seal: str = ""

    def content(self, header: Header, tensors: Mapping[str, Tensor]) -> bytes:
        """The bytes of a file."""
        plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        text, version = json.dumps(header, allow_nan=False), str(self.version)
        metadata = {"format": self.kind, "version": version, "model": text}
        return serialize(plain, {**metadata, "sha256": digest(text, plain, version + self.seal)})

    def read(self, path: Path) -> tuple[Header, dict[str, Tensor]]:
        """Header and tensors; a damaged or foreign file is an error that names it."""
        if not path.is_file():
            raise FileNotFoundError(f"load: no file at {path}.")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != self.kind:
                    raise ValueError(f"load: {path} is a safetensors file, but not {self.noun}.")
                self._check_version(path, metadata.get("version", ""))
                text = metadata.get("model", "")
                header = _parsed(path, text)
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"load: {path} is damaged or not {self.noun} ({error}).") from None
        if digest(text, tensors, f"{self.version}{self.seal}") != metadata.get("sha256"):
            raise ValueError(f"load: {path} is damaged: its content is not what was saved.")
        return header, tensors

    def _check_version(self, path: Path, version: str) -> None:
        known = f"this ctem reads {self.version}"
        if version in map(str, range(1, self.version)):
            raise ValueError(
                f"load: {path} has format {version}, which no released ctem wrote; {known}. Fit it again."
            )
        if version != str(self.version):
            raise ValueError(f"load: {path} has format {version!r}; {known}. Update ctem.")


MODEL = Format("ctem", "a ctem model", FORMAT)


def provenance(path: str | Path) -> Header:
    """Who made a saved model of what: versions, time, seed, data hash, metrics.

    >>> provenance("absent.ctem")
    Traceback (most recent call last):
    ...
    FileNotFoundError: load: no file at absent.ctem.
    """
    header, _ = MODEL.read(Path(path))
    try:
        return dict(header["provenance"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"load: {path} is not a whole ctem model: {short(error)}") from None


def _parsed(path: Path, text: str) -> Header:
    """The JSON object of a header."""
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
