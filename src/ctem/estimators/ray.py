"""Rows on a cluster, by Ray Data: ``pip install 'ctem[ray]'``.

``score`` adds the log-density to the rows of a Ray dataset, wherever they lie. ``spread`` is what the command line does
its parts of a table with. The model is sent to every worker once. Ray restarts a worker that dies and gives its work to
another.
"""

from __future__ import annotations

import logging
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from ctem.estimators.estimator import CTEM

__all__ = ["score", "spread"]

ROWS = 2**16  # of a batch
KINDS: dict[str, type[Exception]] = {  # of errors that a worker may send, the narrower first
    kind.__name__: kind for kind in (FileNotFoundError, PermissionError, OSError, TypeError, ValueError)
}
Work = Callable[[int], int]


def score(
    dataset: Any, model: CTEM | str | Path, workers: int | None = None, name: str = "log_density"
) -> Any:
    """A Ray dataset with the log-density of every row in one more column, in nats.

    Rows keep what else they hold, a key for example; nothing is computed before the dataset is used.

    Arguments:
        dataset: a ``ray.data.Dataset`` with the columns of the fit.
        model: a fitted one, or the path of its file.
        workers: how many; as many as Ray has CPUs when None.
        name: of the new column.

    >>> score([[1.0, 2.0]], "model.ctem")
    Traceback (most recent call last):
    ...
    TypeError: dataset: expected a ray.data.Dataset; got list.
    """
    if not hasattr(dataset, "map_batches"):
        raise TypeError(f"dataset: expected a ray.data.Dataset; got {type(dataset).__name__}.")
    how = {"fn_constructor_args": (_content(model), name), "batch_format": "pyarrow", "batch_size": ROWS}
    return dataset.map_batches(_Scorer, compute=_pool(workers), num_cpus=1, **how)


def spread(count: int, make: Callable[[], Work], workers: int | None = None) -> Iterator[int]:
    """The answers of a piece of work to the numbers 0 … count − 1, as they come, by Ray's workers.

    A number whose worker dies is given to another, so that work must not mind being done twice. What the work raises
    is raised here, with the worker's traceback as a note; an error that is neither of the system, nor of a type or a
    value, as a RuntimeError.

    Arguments:
        count: how many numbers.
        make: makes the work, once on every worker; it is pickled.
        workers: how many; as many as Ray has CPUs when None.

    >>> list(spread(0, lambda: lambda number: number))
    []
    """
    if not count:
        return
    _start(workers)
    data = _ray("ray.data")
    # items need no CPU of their own, which the workers have all of
    numbers = data.from_items([{"id": number} for number in range(count)], override_num_blocks=count)
    done = numbers.map_batches(
        _Each, compute=_pool(workers), num_cpus=1, fn_constructor_args=(make,), batch_size=1
    )
    for row in done.iter_rows():
        if row["kind"]:
            error = KINDS.get(row["kind"], RuntimeError)(row["error"])
            error.add_note(row["where"])
            raise error
        yield int(row["done"])


def _start(workers: int | None) -> None:
    """Start Ray here, or find the cluster that RAY_ADDRESS names; without its messages, errors are raised."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    ray = _ray("ray")
    if not ray.is_initialized():
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(num_cpus=None if "RAY_ADDRESS" in os.environ else workers, **quiet)
    context = _ray("ray.data").DataContext.get_current()
    context.enable_progress_bars, context.print_on_execution_start = False, False


class _Scorer:
    """A worker that scores."""

    def __init__(self, content: bytes, name: str):
        self.model, self.name = loaded(content), name

    def __call__(self, table: Any) -> Any:
        if self.name in table.column_names:
            raise ValueError(f"name: expected a new column; {self.name!r} is in the dataset.")
        known = [column for column in self.model.table_type_.names if column in table.column_names]
        values = import_module("pyarrow").array(self.model.score_samples(table.select(known)))
        return table.append_column(self.name, values)


class _Each:
    """A worker that does one number after the other."""

    def __init__(self, make: Callable[[], Work]):
        self.work = make()

    def __call__(self, batch: Any) -> Any:
        (number,) = batch["id"]
        try:
            return _message(self.work(int(number)))
        except Exception as error:  # sent in words: Ray would wrap it in pages of its own
            known = (name for name, kind in KINDS.items() if isinstance(error, kind))
            return _message(0, next(known, "RuntimeError"), str(error), traceback.format_exc())


def _message(done: int, kind: str = "", error: str = "", where: str = "") -> dict[str, list[Any]]:
    return {"done": [done], "kind": [kind], "error": [error], "where": [where]}


def loaded(content: bytes, device: str = "auto") -> CTEM:
    """The model in the content of a file."""
    with tempfile.TemporaryDirectory(prefix="ctem-") as folder:
        path = Path(folder, "model.ctem")
        path.write_bytes(content)
        return CTEM.load(path, device)


def _content(model: CTEM | str | Path) -> bytes:
    if not isinstance(model, CTEM):
        return Path(model).read_bytes()
    with tempfile.TemporaryDirectory(prefix="ctem-") as folder:
        model.save(Path(folder, "model.ctem"))
        return Path(folder, "model.ctem").read_bytes()


def _pool(workers: int | None) -> Any:
    data = _ray("ray.data")
    return data.ActorPoolStrategy(size=workers) if workers else data.ActorPoolStrategy(min_size=1)


def _ray(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ImportError("rows on a cluster need Ray: pip install 'ctem[ray]'.") from None
