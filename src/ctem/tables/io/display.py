"""Cells that display their values as the table does: times of day and months as text, moments in their zone."""

from __future__ import annotations

from dataclasses import replace

from ctem.tables.io.cells import Cells
from ctem.tables.io.dtypes import zone_of
from ctem.tables.io.frame import Field, Frame
from ctem.tables.io.writings import Writing

__all__ = ["displayed", "displayed_frame", "displayed_like"]

# text that is kept as numbers nobody knows: minutes from somewhere, months since year 0
COUNTED = ("clock", "month")


def displayed(field: Field, cells: Cells) -> Cells:
    """The same cells, whose ``to_list`` has what a reader of the table would write.

    >>> import numpy as np
    >>> months = Field("due", "due", {"polars": "String"}, Writing("month", "Jan-2015", formats=("%b-%Y",)).to_json())
    >>> displayed(months, Cells("int", np.array([24180]), np.zeros(1, bool))).to_list()
    ['Jan-2015']
    """
    if cells.type == "moment":
        return replace(cells, zone=zone_of(field.dtype))
    if field.written is None or cells.type not in ("int", "float"):
        return cells
    writing = Writing.from_json(field.written)
    return replace(cells, text=writing.text) if writing.kind in COUNTED else cells


def displayed_frame(frame: Frame) -> Frame:
    """The same table with every column displayed so.

    >>> import numpy as np
    >>> from ctem.tables.io.frame import read_frame
    >>> displayed_frame(read_frame(np.zeros((1, 1)))).columns["x0"].to_list()
    [0.0]
    """
    fields = frame.table_type.fields
    return Frame(
        frame.table_type, {field.name: displayed(field, frame.columns[field.name]) for field in fields}
    )


def displayed_like(example: Cells, cells: Cells) -> Cells:
    """Cells that are displayed as others of their column are.

    >>> import numpy as np
    >>> gaps = np.zeros(1, bool)
    >>> example = Cells("int", np.array([1]), gaps, text="no. {}".format)
    >>> displayed_like(example, Cells("int", np.array([2]), gaps)).to_list()
    ['no. 2']
    """
    return replace(cells, zone=example.zone, text=example.text)
