"""What a file holds of a model, between the estimator and the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.anyorder.settings import Settings
from ctem.tables.answers.heldout import HeldOut
from ctem.tables.answers.missingness import Missingness
from ctem.tables.io.frame import TableType
from ctem.tables.schema import Schema

__all__ = ["Origin"]


class Origin(NamedTuple):
    """Where a model comes from: the seed, the rows, their hash, and the log-density of independent columns on them.

    >>> Origin(0, 344, "9f86d0", -12.5).rows
    344
    """

    seed: int
    rows: int
    data_hash: str
    independent_score: float


@dataclass(frozen=True)
class Fitted:
    """The arguments of ``CTEM`` and what its fit learned.

    Arguments:
        arguments: of the constructor.
        table_type: what table came in.
        named: whether its columns had names.
        schema: the columns.
        settings: what the settings came to.
        density: of encoded rows.
        origin: seed, rows, hash and the score of independent columns.
        held_out: how the held-out rows of the fit did.
        missingness: where cells are missing, or None.
    """

    arguments: Mapping[str, Any]
    table_type: TableType
    named: bool
    schema: Schema
    settings: Settings
    density: AnyOrderDensity
    origin: Origin
    held_out: HeldOut
    missingness: Missingness | None = None
