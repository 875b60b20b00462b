"""Files of public data: from a folder, from $CTEM_DATA, or downloaded once; checked each time."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import secrets
import urllib.request
import zipfile
from pathlib import Path

__all__ = ["BENCHMARKS", "check", "read", "root"]

BENCHMARKS = "https://raw.githubusercontent.com/UCLA-StarAI/Density-Estimation-Datasets/master/datasets"


def root(folder: str | Path | None) -> Path:
    """The folder said, else $CTEM_DATA, else ~/.cache/ctem.

    >>> root("data").name
    'data'
    """
    return Path(folder or os.environ.get("CTEM_DATA") or Path.home() / ".cache" / "ctem")


def read(path: Path, source: str, checksum: str) -> bytes:
    """The bytes of a file, or of its .gz, or of its download, checked by their SHA-256.

    >>> read(Path("no/such.data"), "file:///nowhere", "")
    Traceback (most recent call last):
    ...
    FileNotFoundError: no/such.data is not there and file:///nowhere could not be read (...).
    """
    packed = path.with_name(path.name + ".gz")
    if path.exists():
        text = path.read_bytes()
    elif packed.exists():
        text = gzip.decompress(packed.read_bytes())
    else:
        try:
            with urllib.request.urlopen(source, timeout=60) as reply:
                text = _member(reply.read(), source)
        except OSError as error:
            raise FileNotFoundError(
                f"{path} is not there and {source} could not be read ({error})."
            ) from None
        if hashlib.sha256(text).hexdigest() == checksum:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
            part.write_bytes(text)
            os.replace(part, path)
    return check(path.name, text, checksum)


def check(name: str, text: bytes, checksum: str) -> bytes:
    """The text, if it has this SHA-256.

    >>> check("a.data", b"", hashlib.sha256(b"").hexdigest())
    b''
    """
    found = hashlib.sha256(text).hexdigest()
    if found != checksum:
        raise ValueError(f"{name}: expected SHA-256 {checksum}; got {found}: another or a damaged file.")
    return text


def _member(content: bytes, source: str) -> bytes:
    """The content, unpacked if it is a .gz, or the member of a zip file that the source names after a #."""
    _, mark, member = source.partition("#")
    if source.endswith(".gz"):
        return gzip.decompress(content)
    return zipfile.ZipFile(io.BytesIO(content)).read(member) if mark else content
