"""Commands of ctem in a process of their own, in which file operations are counted and one may fail."""

import contextlib
import io

from faults import Faults, killed

from ctem import cli


def command(arguments, at=0, fault=killed):
    """A command in this process, with a fault at an operation: exit code, what it said, and operations counted."""
    faults = Faults(at, fault)
    faults.install()
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            cli.app(arguments)
            code = 0
        except SystemExit as stop:
            code = stop.code
    return code, said.getvalue(), faults.count


def fit(folder, target, *options):
    return ["fit", str(folder / "t.csv"), "-o", str(target), "--device", "cpu", "-q", *options]
