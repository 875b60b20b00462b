"""The border of the command line: errors as one line, exit codes, interrupts, and streams that cannot show a letter."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from ctem.cli.flags import in_flags
from ctem.tables.io.terminal import note

__all__ = ["Border", "Stopped"]

EXPECTED = (ValueError, TypeError, OSError, ImportError, FloatingPointError)
# errors of typer's own; the third is click's base of usage errors, which typer may keep for itself
USAGE: tuple[Any, ...] = (typer.Exit, typer.Abort, typer.BadParameter.__mro__[2])
INTERRUPTED = 130  # exit codes as shells have them: 128 and the signal's number


class Stopped(BaseException):
    """A request to end from outside, SIGTERM or SIGHUP: what is open is closed, and parts of files are removed.

    >>> Stopped(15).code
    143
    """

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = 128 + number


class Border(TyperGroup):
    """Turns an error into one line on standard error and exit code 1, and warnings into lines.

    An interrupt is exit code 130 and a request to end 143; errors that nobody foresaw are named as such.

    >>> app = typer.Typer(cls=Border, callback=lambda: None)
    >>> @app.command()
    ... def fail() -> None:
    ...     raise ValueError("no rows")
    >>> from typer.testing import CliRunner
    >>> result = CliRunner().invoke(app, ["fail"])
    >>> result.exit_code, result.stderr
    (1, 'ctem: error: no rows\\n')
    """

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; a character that a stream cannot show is written as Python would in a string."""
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with warnings.catch_warnings(), _stoppable():
            warnings.showwarning = lambda message, *rest: note(f"warning: {in_flags(str(message))}")
            try:
                result = super().invoke(ctx)
                if sys.stdout is not None:
                    sys.stdout.flush()  # a full disk is an error now, not a note at the very end
                return result
            except USAGE:
                raise
            except BrokenPipeError:
                _mute()  # the reader has had enough
                raise typer.Exit(0) from None
            except (KeyboardInterrupt, Stopped) as stop:
                note(str(stop) or "interrupted")
                raise typer.Exit(getattr(stop, "code", INTERRUPTED)) from None
            except Exception as error:
                if ctx.params.get("debug"):
                    raise
                note(f"error: {_reason(error)}")
                if isinstance(error, OSError):
                    _mute()
                raise typer.Exit(1) from None


def _mute() -> None:
    """Send what is left for standard output nowhere: at the end Python would try it again."""
    if sys.stdout is not None and sys.stdout is sys.__stdout__:  # and no stand-in for it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = f"{error.filename}: {error.strerror}."
    if isinstance(error, EXPECTED):
        return text or type(error).__name__
    if isinstance(error, MemoryError):
        return f"not enough memory{f' ({text})' if text else ''}."
    return f"{type(error).__name__}: {text} (not foreseen: ctem --debug … shows where.)"


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM and SIGHUP end the program as an error does; only the main thread hears them."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    before = {
        number: signal.signal(number, _stop)
        for number in numbers
        if signal.getsignal(number) == signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: Any) -> None:
    raise Stopped(number)
