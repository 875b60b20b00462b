"""Parts of a job side by side, each with its share of torch's threads.

An operation on small tensors gains little from several threads, which wait for each other when it ends: for long,
where another program has one of the processors. Whole parts of a job wait once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Protocol, TypeVar

import torch

__all__ = ["PARTS", "SideBySide", "all_threads", "of_one_part", "side_by_side"]

T = TypeVar("T")
PARTS = 2  # of a job on a CPU, whatever the number of threads: the same parts have the same bits
_all_threads: ContextVar[int | None] = ContextVar("_all_threads", default=None)


class SideBySide(Protocol):
    """Does several things, and returns what each of them returned.

    >>> plainly: SideBySide = lambda jobs: [job() for job in jobs]
    >>> plainly([lambda: 1, lambda: 2])
    [1, 2]
    """

    def __call__(self, jobs: Sequence[Callable[[], T]]) -> list[T]: ...


def all_threads() -> int:
    """The threads that a job has in all; as many as torch, but within ``of_one_part``.

    >>> with of_one_part():
    ...     within = all_threads()
    >>> within == all_threads()
    True
    """
    return _all_threads.get() or torch.get_num_threads()


@contextmanager
def side_by_side(most: int = PARTS) -> Iterator[SideBySide]:
    """Do up to so many things at a time, each with its share of torch's threads; one after the other with one thread.

    >>> with side_by_side() as together:
    ...     together([lambda: torch.ones(2).sum(), lambda: torch.zeros(2).sum()])
    [tensor(2.), tensor(0.)]
    """
    now = torch.get_num_threads()
    count = min(most, all_threads())
    if count < 2:
        yield lambda jobs: [job() for job in jobs]
        return
    share = all_threads() // count
    with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(share,)) as pool:

        def together(jobs: Sequence[Callable[[], T]]) -> list[T]:
            grad = torch.is_grad_enabled()
            begun = [pool.submit(copy_context().run, partial(_alone, job, share, grad)) for job in jobs]
            return [each.result() for each in begun]

        torch.set_num_threads(share)  # some of torch's libraries have one number for all threads
        try:
            yield together
        finally:
            torch.set_num_threads(now)


def _alone(job: Callable[[], T], share: int, grad: bool) -> T:
    """Do it in a thread that has no more than its share; gradients are on if they are where it was begun."""
    _all_threads.set(share)
    with torch.set_grad_enabled(grad):
        return job()


@contextmanager
def of_one_part() -> Iterator[None]:
    """Torch has the threads of one part, but for what ``side_by_side`` does, which has all of them.

    >>> with of_one_part():
    ...     torch.get_num_threads() >= 1
    True
    """
    now = torch.get_num_threads()
    token = _all_threads.set(all_threads())
    torch.set_num_threads(max(1, now // PARTS))
    try:
        yield
    finally:
        _all_threads.reset(token)
        torch.set_num_threads(now)
