"""Faults of the file system, made on purpose: at the n-th operation a process dies, or the disk is full.

Every write of ctem goes through ``ctem.persistence.atomic``. The operations that are counted: a part is opened, half of
its bytes are written, all of them are, it is synced, it takes its place, its folder is synced, a file is removed.
"""

import errno
import os
import pathlib
import signal

from ctem.persistence import atomic


class Faults:
    """Counts file operations, and lets the n-th one (from 1) end in a fault; 0 for none."""

    def __init__(self, at, fault):
        self.at, self.fault, self.count = at, fault, 0

    def __call__(self, name):
        self.count += 1
        if self.count == self.at:
            self.fault(name)

    def install(self):
        """Put the counter before every operation of this process; for a child, which ends soon."""
        part, fsync, replace, unlink = atomic._part, os.fsync, os.replace, os.unlink

        def opened(target):
            self("open")
            path, file = part(target)
            return path, _Counted(file, self)

        atomic._part = opened
        os.fsync = lambda number: (self("sync"), fsync(number))[1]
        os.replace = lambda *names: (self("replace"), replace(*names), self("replaced"))[1]
        os.unlink = lambda name, **options: (self("remove"), unlink(name, **options))[1]
        pathlib.Path.unlink = _unlink


def _unlink(self, missing_ok=False):
    try:
        os.unlink(self)
    except FileNotFoundError:
        if not missing_ok:
            raise


class _Counted:
    """A file whose writes are two operations: half, and all."""

    def __init__(self, file, faults):
        self.file, self.faults = file, faults

    def write(self, content):
        content = bytes(content)
        self.file.write(content[: len(content) // 2])
        self.file.flush()
        self.faults("half")
        self.file.write(content[len(content) // 2 :])
        self.file.flush()
        self.faults("write")
        return len(content)

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *error):
        return self.file.__exit__(*error)

    def __getattr__(self, name):
        return getattr(self.file, name)


def killed(name):
    """The process is killed at once, as by ``kill -9`` or a power cut."""
    os.kill(os.getpid(), signal.SIGKILL)


def full(name):
    """The disk is full."""
    if name in ("open", "half", "write", "sync"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def over_quota(name):
    """The user's share of the disk is used up."""
    if name in ("open", "half", "write", "sync"):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def broken(name):
    """The disk does not answer."""
    if name not in ("replaced", "remove"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
