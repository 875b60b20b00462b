"""Cells that say their values as the table does: times of day and months as text, moments in their zone."""

from __future__ import annotations

from dataclasses import replace

from ctem.tables.frames.cells import Cells
from ctem.tables.frames.frame import Field
from ctem.tables.frames.writings import Writing
from ctem.tables.frames.zones import zone_of

__all__ = ["told"]

# text that is kept as numbers nobody knows: minutes from somewhere, months since year 0
COUNTED = ("clock", "month")


def told(field: Field, cells: Cells) -> Cells:
    """The same cells, whose ``to_list`` has what a reader of the table would write.

    >>> import numpy as np
    >>> months = Field("due", "due", {"polars": "String"}, Writing("month", "Jan-2015", formats=("%b-%Y",)).to_json())
    >>> told(months, Cells("int", np.array([24180]), np.zeros(1, bool))).to_list()
    ['Jan-2015']
    """
    if cells.type == "moment":
        return replace(cells, zone=zone_of(field.dtype))
    if field.written is None or cells.type not in ("int", "float"):
        return cells
    writing = Writing.from_json(field.written)
    return replace(cells, text=writing.text) if writing.kind in COUNTED else cells
