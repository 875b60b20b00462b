"""What a command may write over: nothing that it reads, and no file of another kind, unless asked to."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["check_output", "kind_of"]

INPUTS = ("model", "table", "held_out", "holdout")  # the arguments of commands that name what is read
WRITTEN = {"fit": "model", "report": "page", "check": "page"}  # every other command writes a table
NOUNS = {
    "model": "a ctem model",
    "page": "an HTML page",
    "table": "a table",
    "other": "a file of another kind",
}
ADVICE = "Give another name to --output, or add --overwrite."
PEEK = 4096  # bytes
TABLES = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff", b"\x1f\x8b")  # Parquet, Arrow file and stream, gzip
LARGEST_HEADER = 2**28  # bytes
PARTS = (".parquet", ".pq")


def check_output(command: str, arguments: Mapping[str, Any], overwrite: bool) -> None:
    """An error if what a command writes is one of its inputs, or would replace a file of another kind.

    Arguments:
        command: its name, on which depends what it writes.
        arguments: of the command; those of ``INPUTS`` are read, ``output`` is written.
        overwrite: the user means it.

    >>> check_output("fit", {"table": "rows.csv", "output": "rows.csv"}, True)
    """
    output = arguments.get("output")
    if output is None or overwrite:
        return
    read = [(name, str(arguments[name])) for name in INPUTS if arguments.get(name) is not None]
    for name, path in read:
        if _same(path, str(output)):
            raise ValueError(f"--output: {output} is also what is read ({name.replace('_', '-')}). {ADVICE}")
        if _inside(path, str(output), command not in WRITTEN):
            raise ValueError(
                f"--output: {output} would be part of the folder {path}, which is read. {ADVICE}"
            )
    present, wanted = kind_of(str(output)), WRITTEN.get(command, "table")
    if present not in ("", wanted):
        raise ValueError(
            f"--output: {output} is {NOUNS[present]}, and would be replaced by {NOUNS[wanted]}. {ADVICE}"
        )


def kind_of(path: str) -> str:
    """What a file holds, by its first bytes: "model", "page", "table" or "other"; empty where nothing would be lost.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "t.csv").write_text("a,b\\n1,2\\n")
    ...     kind_of(f"{folder}/t.csv"), kind_of(f"{folder}/absent")
    ('table', '')
    """
    if path == "-" or not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        start = file.read(PEEK)
        if not start or start.startswith(TABLES):
            return "table" if start else ""
        if start[8:9] == b"{":
            file.seek(0)
            return "model" if _is_model_header(file.read(8 + _length(start))) else "other"
    if b"\0" in start:
        return "other"
    words = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return "page" if words.startswith((b"<!doctype html", b"<html")) else "table"


def _length(start: bytes) -> int:
    """Bytes of the header of a safetensors file."""
    return min(int.from_bytes(start[:8], "little"), LARGEST_HEADER)


def _is_model_header(content: bytes) -> bool:
    """Whether the header of a safetensors file, after its length, is that of a model."""
    try:
        header = json.loads(content[8:])
    except (ValueError, RecursionError):
        return False
    facts = header.get("__metadata__") if isinstance(header, dict) else None
    return isinstance(facts, dict) and facts.get("format") == "ctem"


def _same(path: str, output: str) -> bool:
    """Whether two names are of one regular file; "-" is standard input for what is read, and output for the other."""
    read, written = list(_regular(path, sys.stdin)), list(_regular(output, sys.stdout))
    return any(os.path.samestat(a, b) for a in read for b in written)


def _regular(path: str, standard: Any) -> Iterator[os.stat_result]:
    """The facts of a regular file at a path, or of the one that a standard stream is."""
    try:
        facts = os.fstat(standard.fileno()) if path == "-" else os.stat(path)
    except (OSError, ValueError, AttributeError):  # nothing there, a URL, a stream that is closed or none
        return
    if stat.S_ISREG(facts.st_mode):
        yield facts


def _inside(path: str, output: str, parts: bool) -> bool:
    """Whether an output lies in a folder that is read and would be read with it: Parquet, or a folder of parts."""
    if output == "-" or not os.path.isdir(path):
        return False
    folder, target = Path(os.path.realpath(path)), Path(os.path.realpath(output))
    return (parts or target.suffix.lower() in PARTS) and (target == folder or folder in target.parents)
