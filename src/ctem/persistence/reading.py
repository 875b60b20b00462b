"""The header and the tensors of a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from ctem.persistence.sealed import Header, read_header, short, unsealed

__all__ = ["FORMAT", "provenance", "read"]

FORMAT = 25  # raise it when the header changes; what a release has written is then read, too


def provenance(path: str | Path) -> Header:
    """Who made a saved model of what: versions, time, seed, data hash, metrics.

    >>> provenance("absent.ctem")
    Traceback (most recent call last):
    ...
    FileNotFoundError: load: no file at absent.ctem.
    """
    return read(Path(path))[0]["provenance"]


def read(path: Path) -> tuple[Header, dict[str, Tensor]]:
    """Header and tensors; a damaged or foreign file is an error that names it.

    >>> read(Path("absent.ctem"))
    Traceback (most recent call last):
    ...
    FileNotFoundError: load: no file at absent.ctem.
    """
    return unsealed(path, "ctem", "a ctem model", lambda about: _header(path, about))


def _header(path: Path, metadata: Mapping[str, str]) -> Header:
    version = metadata.get("version", "")
    if version in map(str, range(1, FORMAT)):
        raise ValueError(
            f"load: {path} has format {version}, which no released ctem wrote; this ctem reads {FORMAT}. Fit it again."
        )
    if version != str(FORMAT):
        raise ValueError(f"load: {path} has format {version!r}; this ctem reads {FORMAT}. Update ctem.")
    header = read_header(path, metadata.get("model", ""))
    try:
        return {**header, "provenance": dict(header["provenance"])}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"load: {path} is not a whole ctem model: {short(error)}") from None
