"""The trees of an energy as JSON, for ``script/energy.js`` to evaluate: arrays in base64, little-endian."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ctem.densities.tilted import Energy, Trees

__all__ = ["energy_data"]

Json = dict[str, Any]


def energy_data(energy: Energy) -> Json:
    """log ρ/b of whole rows and of rows with hidden cells; what networks add to it is left out.

    >>> from ctem.partition.log_z import LogZ
    >>> none = Trees.build([[0.0]], [], [], [], bias=0.0)
    >>> energy = Energy((none,), none, LogZ(0.5, 0.0, math.inf, "none"), 0.0, 0.0, 0.0, {}, {})
    >>> sorted(energy_data(energy)), energy_data(energy)["logZ"]
    (['atoms', 'ceiling', 'logZ', 'margins', 'partial', 'rounds'], 0.5)
    """
    return {
        "rounds": [_trees(trees) for trees in energy.rounds],
        "partial": _trees(energy.partial),
        "margins": None if energy.margins is None else _trees(energy.margins),
        "logZ": energy.log_z.value,
        "ceiling": energy.ceiling,
        "atoms": {
            child: [_number(value) for value in of.float().tolist()] for child, of in energy.atoms.items()
        },
    }


def _trees(trees: Trees) -> Json:
    """Splits without padding, sorted by column; the sets of bins that go right each once; leaves up to the last."""
    leaves, real = trees.leaves.cpu().numpy(), trees.leaves.any(-1).cpu().numpy()
    column = trees.column.cpu().numpy()[real]
    order = np.argsort(column, kind="stable")
    right, question = np.unique(trees.right.cpu().numpy()[real][order], axis=0, return_inverse=True)
    sizes = np.array(
        [max(1, int(bits).bit_length()) for bits in np.bitwise_or.reduce(leaves, (1, 2))], np.int64
    )
    value = trees.value.cpu().numpy()
    cuts = zip(trees.ends, trees.counts.tolist(), strict=True)
    return {
        "cuts": [None if count < 0 else _packed(ends.cpu().numpy(), "<f8") for ends, count in cuts],
        "splits": np.searchsorted(column[order], np.arange(trees.dim + 1)).tolist(),
        "question": _packed(question.ravel(), "<i4"),
        "right": _packed(right, "u1"),
        "tree": _packed(np.nonzero(real)[0][order], "<i4"),
        "leaves": _packed(leaves[real][order], "<i4"),
        "first": _packed(np.cumsum(sizes) - sizes, "<i4"),
        "value": _packed(value[np.arange(value.shape[1]) < sizes[:, None]], "<f4"),
        "bias": trees.bias,
    }


def _packed(array: ArrayLike, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(array, kind).tobytes()).decode()


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
