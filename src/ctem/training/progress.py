"""How a long computation shows how far it is: a bar on a terminal, a bar in a notebook, or lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Report", "showing"]

Report = Callable[[int, str], None]  # how many are done, and a remark
EVERY = 10.0  # seconds between two lines of a log


@contextmanager
def showing(what: str, total: int, show: bool = True) -> Iterator[Report]:
    """A function to call with how many of ``total`` are done and a few words; it shows them where they can be seen.

    On a terminal and in a notebook that is a bar. Elsewhere, as in a log file, it is a line on standard output every
    ten seconds and one at the end.

    Arguments:
        what: the name of the computation.
        total: how many there are.
        show: False shows nothing.

    >>> with showing("training", 2) as report:
    ...     report(1, "loss 0.7")
    ...     report(2, "loss 0.5")
    training: 2 of 2, loss 0.5
    """
    if not show:
        yield lambda done, words: None
    elif (display := _notebook()) is not None:
        yield _in_notebook(display, what, total)
    elif Console().is_terminal:
        with _on_terminal(what, total) as report:
            yield report
    else:
        with _in_log(what, total) as report:
            yield report


def _notebook() -> Any:
    """IPython's display, if this runs in a kernel that shows HTML."""
    if "IPython" not in sys.modules:
        return None
    from IPython import display, get_ipython

    shell = get_ipython()
    return display if shell is not None and hasattr(shell, "kernel") else None


def _in_notebook(display: Any, what: str, total: int) -> Report:
    handle = display.display(display.HTML(_html(what, 0, total, "")), display_id=True)
    return lambda done, words: handle.update(display.HTML(_html(what, done, total, words)))


def _html(what: str, done: int, total: int, words: str) -> str:
    """A bar that needs no script and no further package.

    >>> _html("training", 1, 2, "loss < 1")
    '<label>training <progress value="1" max="2"></progress> 1/2 loss &lt; 1</label>'
    """
    bar = f'<progress value="{done}" max="{total}"></progress>'
    return f"<label>{escape(what)} {bar} {done}/{total} {escape(words)}</label>"


@contextmanager
def _on_terminal(what: str, total: int) -> Iterator[Report]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, TextColumn("{task.fields[words]}")) as bar:
        task = bar.add_task(what, total=total, words="")
        yield lambda done, words: bar.update(task, completed=done, words=words)


@contextmanager
def _in_log(what: str, total: int) -> Iterator[Report]:
    """Lines, the last of them at the end."""
    last, waiting = time.monotonic(), ""

    def report(done: int, words: str) -> None:
        nonlocal last, waiting
        waiting = f"{what}: {done} of {total}{f', {words}' if words else ''}"
        if time.monotonic() - last >= EVERY:
            print(waiting, flush=True)
            last, waiting = time.monotonic(), ""

    yield report
    if waiting:
        print(waiting, flush=True)
