"""Several processes that train one model: torch's process groups, started by ``torchrun``.

Every process computes the gradient of its part of each batch; the parts are averaged, so that all take the same step.
The first process decides what must be decided once, and writes what is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["Team", "team", "together"]

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """The processes of a training, seen from one of them.

    Arguments:
        rank: the number of this process, from 0.
        ranks: how many there are.

    >>> Team().first, Team().agreed(lambda: 7)
    (True, 7)
    """

    rank: int = 0
    ranks: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that decides and writes."""
        return self.rank == 0

    def agreed(self, decide: Callable[[], T]) -> T:
        """What the first process decides, in all of them."""
        if self.ranks == 1:
            return decide()
        decision: list[T | None] = [decide() if self.first else None]
        with _company():
            dist.broadcast_object_list(decision, src=0)
        return decision[0]  # type: ignore[return-value]

    def gathered(self, part: T) -> list[T]:
        """What each process has, in the order of their ranks."""
        if self.ranks == 1:
            return [part]
        parts: list[T] = [part] * self.ranks
        with _company():
            dist.all_gather_object(parts, part)
        return parts

    def align(self, f: nn.Module) -> None:
        """Give all processes the parameters and buffers of the first."""
        if self.ranks > 1:
            with _company():
                for tensor in (*f.parameters(), *f.buffers()):
                    dist.broadcast(tensor.data, src=0)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over all processes, in one message."""
        if self.ranks == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with _company():
            dist.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))


_TEAM: ContextVar[Team | None] = ContextVar("team", default=None)


def team() -> Team:
    """The processes that train together here: those of ``together``, otherwise this one alone.

    >>> team().ranks
    1
    """
    return _TEAM.get() or Team()


@contextmanager
def together() -> Iterator[Team]:
    """Let the processes that ``torchrun`` started train one model: every fit within is theirs together.

    Without torchrun it is one process. GPUs talk by NCCL, one for each process, others by gloo.

    >>> with together() as here:
    ...     here.ranks
    1
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield Team()
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    begun_here = not dist.is_initialized()
    if begun_here:
        dist.init_process_group("nccl" if cuda else "gloo")
    token = _TEAM.set(Team(dist.get_rank(), dist.get_world_size()))
    try:
        yield team()
    finally:
        _TEAM.reset(token)
        if begun_here:
            dist.destroy_process_group()


@contextmanager
def _company() -> Iterator[None]:
    """What a process group raises when one process is gone, as an error that names the reason."""
    try:
        yield
    except RuntimeError as error:
        line = str(error).strip().splitlines()[0]
        raise ConnectionError(
            f"another process of this fit has ended, and so does this one ({line}). If there is a checkpoint, the same "
            "command goes on from there (on the command line: with --resume)."
        ) from None
