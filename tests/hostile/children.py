"""A function in a child process with a limit on time and memory: what it returned or raised, or how it ended.

Children are forked, so that a thousand of them need one import of torch; with one thread, which a fork can copy.
"""

import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

MEGABYTE = 2**20
HANGS = 600.0  # seconds after which a child is said to hang, on the slowest machine


@dataclass(frozen=True)
class Outcome:
    """How a child ended: "returned", "raised", "exited", "killed", "too long"."""

    ending: str
    value: Any = None
    error: str = ""
    message: str = ""
    seconds: float = 0.0


def alone(function, *arguments, seconds=HANGS, megabytes=None, before=None):
    """The outcome of a call in a child with so many seconds and, beyond what it has already, megabytes."""
    torch.set_num_threads(1)
    read, write = os.pipe()
    began = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.close(read)
        _child(function, arguments, write, megabytes, before)
    os.close(write)
    said = _said(read, began + seconds)
    took = time.perf_counter() - began
    if said is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if said is None:
        return Outcome("too long", seconds=took)
    if said:
        return Outcome(**json.loads(said), seconds=took)
    if os.WIFSIGNALED(status):
        return Outcome("killed", value=os.WTERMSIG(status), seconds=took)
    return Outcome("exited", value=os.WEXITSTATUS(status), seconds=took)


def _child(function, arguments, write, megabytes, before):
    """Never returns."""
    try:
        if megabytes is not None:
            limit = _address_space() + megabytes * MEGABYTE
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        if before is not None:
            before()
        said = {"ending": "returned", "value": function(*arguments)}
    except SystemExit as stop:
        os._exit(stop.code if isinstance(stop.code, int) else 1)
    except BaseException as error:
        if os.environ.get("HOSTILE_TRACES"):
            traceback.print_exc(file=sys.stderr)
        said = {"ending": "raised", "error": type(error).__name__, "message": str(error)[:2000]}
    with os.fdopen(write, "w") as pipe:
        json.dump(said, pipe)
    os._exit(0)


def _said(read, deadline):
    """What comes through a pipe until it is closed; None when that takes too long."""
    parts = []
    while (left := deadline - time.perf_counter()) > 0:
        if select.select([read], [], [], left)[0]:
            if not (part := os.read(read, 2**16)):
                os.close(read)
                return b"".join(parts)
            parts.append(part)
    os.close(read)
    return None


def _address_space():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
