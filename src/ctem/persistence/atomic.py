"""Files that appear whole: written beside their target, to disk, and only then put in its place.

A link is followed to the file that it names, the mode of a file that was there is kept, and one without write
permission stays. What is no regular file (a device, a pipe, a descriptor of this process) is written in place: it has
no other content to lose, and must not become a file. A part that a killed process left goes with the next write.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl as locks
except ImportError:  # Windows: parts are not locked, and those of the dead are not found
    locks = None  # type: ignore[assignment]

fcntl: Any = locks

__all__ = ["check_target", "forget_parts", "is_regular", "locked", "replacing", "write_whole"]

LONGEST = 180  # bytes of a target's name in that of its part: names have at most 255
REASONS = {
    errno.EISDIR: "a folder is there",
    errno.ENOENT: "there is no such folder",
    errno.EROFS: "it is read-only",
    errno.EACCES: "its folder is read-only",
}
STANDARD = {"/dev/stdout": "/dev/fd/1", "/dev/stderr": "/dev/fd/2"}


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of ``path`` when the block ends well, and leaves nothing when it does not.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a") as file:
    ...         _ = file.write(b"whole")
    ...     Path(folder, "a").read_bytes(), os.listdir(folder)
    (b'whole', ['a'])
    """
    if not is_regular(path):
        with _in_place(path) as file:
            yield file
        return
    check_target(path)
    target = Path(os.path.realpath(path))
    part, file = _part(target)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:
                file.close()  # Windows moves no open file; elsewhere its lock is kept until it is in place
            os.replace(part, target)
        _sync(target.parent)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: str | Path, content: bytes, what: str) -> None:
    """Write a file, whole or not at all; an error begins with ``what``, with a note if an older file is still there.

    >>> write_whole("/no/such/folder/model.ctem", b"", "save")
    Traceback (most recent call last):
    ...
    OSError: save: /no/such/folder/model.ctem could not be written (cannot be written (there is no such folder)).
    """
    try:
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        kept = "; what was there is untouched" if Path(path).is_file() and is_regular(path) else ""
        raise OSError(f"{what}: {path} could not be written ({error.strerror or error}){kept}.") from None


@contextmanager
def locked(path: str | Path) -> Iterator[bool]:
    """Whether a lock file is ours in this block; it goes with the block, and the lock also with the process.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with locked(f"{folder}/lock") as first, locked(f"{folder}/lock") as second:
    ...         print(first, second)
    ...     os.listdir(folder)
    True False
    []
    """
    if fcntl is None:
        yield True
        return
    while True:
        with open(path, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            if not _is_at(file, path):
                continue  # whoever had it took it away between our opening and locking
            try:
                yield True
            finally:
                os.unlink(path)
            return


def _is_at(file: BinaryIO, path: str | Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def forget_parts(target: Path) -> None:
    """Remove parts of earlier writes whose process was killed: nobody holds their lock.

    >>> forget_parts(Path("no file that was ever written"))
    """
    pattern = re.compile(re.escape(_start(target)) + r"[0-9a-f]{8}\.part")
    for name in os.listdir(target.parent) if fcntl is not None else ():
        if pattern.fullmatch(name):
            with suppress(OSError), target.with_name(name).open("rb") as file:  # locked: that process lives
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                target.with_name(name).unlink()


def check_target(path: str | Path) -> None:
    """An error where a file cannot be written, before the work that it is to hold.

    >>> check_target("/no/such/folder/model.ctem")
    Traceback (most recent call last):
    ...
    FileNotFoundError: [Errno 2] cannot be written (there is no such folder): '/no/such/folder/model.ctem'
    """
    if not is_regular(path):
        return
    target = Path(os.path.realpath(path))
    reason = _obstacle(target)
    if reason is not None:
        raise OSError(reason, f"cannot be written ({REASONS[reason]})", str(path))


def _obstacle(target: Path) -> int | None:
    """The errno of what is in the way; the superuser may do anything, but a file without write permission is meant."""
    if target.is_dir():
        return errno.EISDIR
    if not target.parent.is_dir():
        return errno.ENOENT
    if target.exists() and not (os.access(target, os.W_OK) and target.stat().st_mode & 0o222):
        return errno.EROFS
    return None if os.access(target.parent, os.W_OK) else errno.EACCES


def is_regular(path: str | Path) -> bool:
    """Whether a path is a file, a folder or nothing yet, and no device, pipe or descriptor.

    >>> is_regular("/dev/null"), is_regular("/dev/fd/1"), is_regular("no such file")
    (False, False, True)
    """
    if _descriptor(path) is not None:
        return False
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return True
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _descriptor(path: str | Path) -> int | None:
    """The number in a name such as /dev/fd/3: opened by name, a file that is appended to would be cut off."""
    name = STANDARD.get(str(path), str(path))
    match = re.fullmatch(r"/(?:dev|proc/self)/fd/([0-9]{1,9})", name)
    return None if match is None else int(match[1])


def _in_place(path: str | Path) -> BinaryIO:
    number = _descriptor(path)
    return open(path, "wb") if number is None else os.fdopen(os.dup(number), "wb")


def _part(target: Path) -> tuple[Path, BinaryIO]:
    """A new file beside the target, with its mode and owner, locked for as long as it is open.

    Another process may take it for a part of the dead between its opening and its locking: then there is a next one.
    """
    forget_parts(target)
    while True:
        part = target.with_name(f"{_start(target)}{secrets.token_hex(4)}.part")
        file = part.open("xb")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, part):
                if target.exists():
                    _like(file, target.stat())
                return part, file
        except BaseException:
            file.close()
            part.unlink(missing_ok=True)
            raise
        file.close()


def _like(file: BinaryIO, old: os.stat_result) -> None:
    if hasattr(os, "fchown"):
        with suppress(PermissionError):  # only root gives files away
            os.fchown(file.fileno(), old.st_uid, old.st_gid)
        os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))


def _start(target: Path) -> str:
    return f".{os.fsdecode(os.fsencode(target.name)[:LONGEST])}."


def _sync(folder: Path) -> None:
    """The folder's entry to disk, where the system can do that; the file itself is whole and in place already."""
    if hasattr(os, "O_DIRECTORY"):
        with suppress(OSError):
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
