"""Caltech-101 silhouettes: outlines of objects as binary images."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from scipy.io import loadmat

from ctem.datasets.bits import Splits
from ctem.datasets.downloads import read, root

__all__ = ["load_caltech"]

_FILE = "caltech101_silhouettes_28_split1.mat"
_SOURCE = f"https://people.cs.umass.edu/~marlin/data/{_FILE}"
_CHECKSUM = "eb6735e8d84b1850fabc5590124aab1755e90c9fd28123585324398405e1e42a"


def load_caltech(folder: str | Path | None = None) -> Splits:
    """Caltech-101 silhouettes of 28 × 28 pixels, the official split: 4100, 2264 and 2307 rows of bits (Marlin 2010).

    Arguments:
        folder: holds caltech/caltech101_silhouettes_28_split1.mat; by default as in ``load_binary``.

    >>> load_caltech().test.shape  # doctest: +SKIP
    (2307, 784)
    """
    content = read(root(folder) / "caltech" / _FILE, _SOURCE, _CHECKSUM)
    arrays = loadmat(io.BytesIO(content))
    train, valid, test = (arrays[f"{part}_data"].astype(np.uint8) for part in ("train", "val", "test"))
    return Splits(train, valid, test)
