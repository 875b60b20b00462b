"""The twenty binary density-estimation benchmarks."""

from __future__ import annotations

import importlib.resources
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctem.datasets.downloads import BENCHMARKS, read, root

__all__ = ["BINARY", "Splits", "load_binary"]

BINARY: dict[str, tuple[str, ...]] = {}  # SHA-256 of the train, valid and test file
for _line in (
    importlib.resources.files("ctem.datasets").joinpath("binary.sha256").read_text("ascii").splitlines()
):
    _checksum, _file = _line.split()
    _name = _file.partition(".")[0]
    BINARY[_name] = (*BINARY.get(_name, ()), _checksum)


class Splits(NamedTuple):
    """Rows for training, choosing and testing.

    >>> Splits(np.zeros((2, 1)), np.zeros((1, 1)), np.zeros((1, 1))).train.shape
    (2, 1)
    """

    train: NDArray[Any]
    valid: NDArray[Any]
    test: NDArray[Any]


def load_binary(name: str, folder: str | Path | None = None) -> Splits:
    """One of the twenty binary density-estimation benchmarks, 0/1 rows (n, d); cite the original papers.

    Arguments:
        name: a key of ``BINARY``.
        folder: holds debd/NAME/NAME.train.data (or .data.gz) and so on; by default $CTEM_DATA, else ~/.cache/ctem,
            into which missing files are downloaded.

    >>> load_binary("mnist")
    Traceback (most recent call last):
    ...
    ValueError: name: expected one of accidents, ad, baudio, ..., tmovie, tretail; got 'mnist'.
    """
    if name not in BINARY:
        raise ValueError(f"name: expected one of {', '.join(BINARY)}; got {name!r}.")
    place, parts = root(folder) / "debd" / name, []
    for split, checksum in zip(Splits._fields, BINARY[name], strict=True):
        file = f"{name}.{split}.data"
        text = read(place / file, f"{BENCHMARKS}/{name}/{file}", checksum)
        parts.append(np.loadtxt(io.BytesIO(text), delimiter=",", ndmin=2))
    return Splits(*parts)
