"""Pieces of work under a clock: the most valuable first, in several processes, until the time is over.

One small network leaves a GPU idle, so that several processes share it. What is not done in time is left out: whoever
gets the results after every piece has written all that was measured when the clock stops.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

__all__ = ["Done", "Piece", "worked"]


class Piece(NamedTuple):
    """A part of an experiment that can be done by itself."""

    part: str
    name: str
    seconds: float  # that it should take


class Done(NamedTuple):
    """What came of a piece."""

    piece: Piece
    result: Any  # None where it failed
    error: str  # "" where it did not
    seconds: float


Work = Callable[
    [Piece, float], Any
]  # a function of a module, of the piece and the moment (time.time) when to end


def worked(pieces: Sequence[Piece], work: Work, workers: int, until: float) -> Iterator[Done]:
    """Results as they come, until all are there or the moment ``until`` (of time.time) has come.

    With no workers the pieces are done here, one after the other; one that would begin too late is left out.
    """
    if not workers:
        for piece in pieces:
            if time.time() < until:
                yield _done(piece, work, until)
        return
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // workers))  # before they import torch
    context = multiprocessing.get_context("spawn")
    tasks, results = context.Queue(), context.Queue()
    for piece in [*pieces, *[None] * workers]:
        tasks.put(piece)
    team = [
        context.Process(target=_serve, args=(tasks, results, work, until), daemon=True)
        for _ in range(workers)
    ]
    for process in team:
        process.start()
    try:
        yield from _collected(len(pieces), results, team, until)
    finally:
        for process in team:
            process.kill()


def _collected(count: int, results: Any, team: Sequence[Any], until: float) -> Iterator[Done]:
    while count and time.time() < until:
        try:
            yield results.get(timeout=min(1.0, max(0.01, until - time.time())))
            count -= 1
        except queue.Empty:
            if not any(process.is_alive() for process in team):
                return


def _serve(tasks: Any, results: Any, work: Work, until: float) -> None:
    while (piece := tasks.get()) is not None:
        results.put(_done(piece, work, until))


def _done(piece: Piece, work: Work, until: float) -> Done:
    began = time.time()
    try:
        return Done(piece, work(piece, until), "", time.time() - began)
    except Exception:
        return Done(piece, None, traceback.format_exc(), time.time() - began)
