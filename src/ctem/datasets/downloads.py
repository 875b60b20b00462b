"""Files of public data: from a folder, from $CTEM_DATA, or downloaded once; checked each time."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import urllib.request
from pathlib import Path
from typing import Any

from ctem.persistence.atomic import replacing

__all__ = ["BENCHMARKS", "check", "read", "root"]

LARGEST = 2**28  # bytes of a file of data: five times the largest that is known here
BENCHMARKS = "https://raw.githubusercontent.com/UCLA-StarAI/Density-Estimation-Datasets/master/datasets"


def root(folder: str | Path | None) -> Path:
    """The folder given, else $CTEM_DATA, else ~/.cache/ctem.

    >>> root("data").name
    'data'
    """
    return Path(folder or os.environ.get("CTEM_DATA") or Path.home() / ".cache" / "ctem")


def read(path: Path, source: str, checksum: str, packed_checksum: str | None = None) -> bytes:
    """The bytes of a file, or of its .gz, or of its download, checked by their SHA-256.

    A packed download is checked before it is unpacked, and is left to the user where its own SHA-256 is not known.
    What is packed is unpacked up to ``LARGEST`` bytes and no further, whatever it claims; nothing is kept on disk
    before its SHA-256 is right.

    >>> read(Path("no/such.data"), "file:///nowhere", "")
    Traceback (most recent call last):
    ...
    FileNotFoundError: no/such.data is not there and file:///nowhere could not be read (...).
    >>> read(Path("no/such.data"), "file:///nowhere/all.zip#such.data", "")
    Traceback (most recent call last):
    ...
    FileNotFoundError: no/such.data is not there, and file:///nowhere/all.zip is packed and has no known SHA-256, so ...
    """
    packed = path.with_name(path.name + ".gz")
    if path.exists():
        text = path.read_bytes()
    elif packed.exists():
        with gzip.open(packed) as file:
            text = _bounded(file, packed.name)
    else:
        text = _downloaded(path, source, packed_checksum)
        if hashlib.sha256(text).hexdigest() == checksum:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(text)
    return check(path.name, text, checksum)


def check(name: str, text: bytes, checksum: str) -> bytes:
    """The text, if it has this SHA-256.

    >>> check("a.data", b"", hashlib.sha256(b"").hexdigest())
    b''
    """
    digest = hashlib.sha256(text).hexdigest()
    if digest != checksum:
        raise ValueError(f"{name}: expected SHA-256 {checksum}; got {digest}: another or a damaged file.")
    return text


def _downloaded(path: Path, source: str, packed_checksum: str | None) -> bytes:
    """What the source has; unpacked, after its check, if it is a .gz. After a # stands the member of a zip file."""
    archive, _, member = source.partition("#")
    packed = archive.endswith((".gz", ".zip"))
    if packed and packed_checksum is None:
        raise FileNotFoundError(
            f"{path} is not there, and {archive} is packed and has no known SHA-256, so that it is not unpacked here: "
            f"download it and put its {member or path.name} there. The file is checked by its own SHA-256."
        )
    try:
        with urllib.request.urlopen(source, timeout=60) as reply:
            content = _bounded(reply, source)
    except OSError as error:
        raise FileNotFoundError(f"{path} is not there and {source} could not be read ({error}).") from None
    if packed_checksum is None:
        return content
    return _bounded(gzip.GzipFile(fileobj=io.BytesIO(check(source, content, packed_checksum))), source)


def _bounded(file: Any, name: str) -> bytes:
    content: bytes = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(
            f"{name}: expected at most {LARGEST} bytes; there are more. It is not what was asked for."
        )
    return content
