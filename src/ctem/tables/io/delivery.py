"""Tables that are drawn or filled in, in the library that the user asks for."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from ctem.tables.io.files import as_arrow
from ctem.tables.io.frame import TableType
from ctem.tables.io.recognition import BOOLEANS

__all__ = ["Delivers", "booleans_of", "delivered"]

LIBRARIES = {"pandas": "pandas", "polars": "polars", "arrow": "pyarrow"}


def delivered(table: Any, library: str | None, names: tuple[str, ...], booleans: Collection[str] = ()) -> Any:
    """A table in another library; as it is when that is None.

    Arguments:
        library: "pandas", "polars" or "arrow".
        names: of the columns, which an array has not.
        booleans: columns of text such as "True", which other readers take for booleans.

    >>> import numpy as np
    >>> delivered(np.array([[1, 2]]), "pandas", ("a", "b")).columns.tolist()
    ['a', 'b']
    """
    if library is None:
        return table
    if library not in LIBRARIES:
        raise ValueError(
            f"output: expected one of {', '.join(map(repr, LIBRARIES))}, or None; got {library!r}."
        )
    if type(table).__module__.partition(".")[0] == LIBRARIES[library]:
        return table
    made = as_arrow(table, names)
    for name in booleans:
        made = made.set_column(made.column_names.index(name), name, _booleans(made[name]))
    if library == "pandas":
        return made.to_pandas(date_as_object=False)
    return importlib.import_module("polars").from_arrow(made) if library == "polars" else made


def booleans_of(table_type: TableType) -> list[str]:
    """The columns of text that any reader of files takes for booleans.

    >>> from ctem.tables.io.frame import Field
    >>> from ctem.tables.io.writings import Writing
    >>> written = Writing("bool", "True", prefix="True", suffix="False").to_json()
    >>> booleans_of(TableType("pandas", (Field("ok", "ok", {"pandas": "text"}, written),)))
    ['ok']
    """
    written = {field.name: field.written for field in table_type.fields if field.written}
    return [name for name, how in written.items() if (how["prefix"], how["suffix"]) in BOOLEANS]


def _booleans(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """As booleans; left as it is if some of it is other text."""
    try:
        return pc.utf8_lower(text.cast(pa.string())).cast(pa.bool_())
    except pa.ArrowInvalid:
        return text


class Delivers:
    """The part of an estimator that gives tables back, in the library that ``set_output`` names.

    >>> from ctem import CTEM
    >>> isinstance(CTEM().set_output(transform="polars"), Delivers)
    True
    """

    _sklearn_output_config: dict[str, str]

    def set_output(self, *, transform: str | None = None) -> Self:
        """Give tables back in this library: "pandas", "polars", or "default", the one that was fitted; as scikit-learn.

        >>> from ctem import CTEM
        >>> CTEM().set_output(transform="polars")._output(None)
        'polars'
        """
        if transform not in (None, "default", "pandas", "polars"):
            raise ValueError(
                f"transform: expected 'default', 'pandas' or 'polars'; got {transform!r}. sample(output='arrow') "
                "gives a pyarrow table."
            )
        if transform is not None:
            self._sklearn_output_config = {"transform": transform}
        return self

    def _output(self, output: str | None) -> str | None:
        """The library that is asked for now, or was by ``set_output``; None for that of fit."""
        configured = getattr(self, "_sklearn_output_config", {}).get("transform", "default")
        return output if output is not None or configured == "default" else configured
