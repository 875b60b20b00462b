"""Spaces and kernels as plain values for JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ctem.bases import ProductBase
from ctem.matching.kernels import (
    Gaussian,
    Graph,
    Grid,
    HammingOne,
    Kernel,
    Mixture,
    OrnsteinUhlenbeck,
    Product,
    Redraw,
    Refresh,
    Sphere,
    Uniform,
)
from ctem.spaces import Angle, Category, Column, Ordinal, Real, Space

__all__ = ["kernel_from", "kernel_record", "space_from", "space_record"]

OPTIONS: dict[type[Kernel], tuple[str, ...]] = {
    Gaussian: ("scale", "antithetic"),
    Sphere: ("scale", "antithetic"),
    OrnsteinUhlenbeck: ("rate", "antithetic"),
    HammingOne: (),
    Uniform: (),
    Grid: ("reach",),
}
BY_NAME = {kind.__name__: kind for kind in OPTIONS}


def space_record(space: Space) -> dict[str, Any]:
    """A space as plain values.

    >>> space = Space({"a": Real(low=0.0), "b": Angle(360), "c": Ordinal(3)}, shape=(3, 1))
    >>> space_from(space_record(space)) == space
    True
    """
    columns = [_column_record(column) for column in space.columns]
    return {"names": list(space.names), "columns": columns, "shape": list(space.shape)}


def _column_record(column: Column) -> list[Any]:
    if isinstance(column, Angle):
        return ["Angle", column.period]
    if isinstance(column, Real):
        ends = [None if end is None else str(end) for end in (column.low, column.high)]
        return ["Real", column.location, column.scale, *ends]
    return [type(column).__name__, int(column.size)]


def space_from(record: Mapping[str, Any]) -> Space:
    """The space of a record.

    >>> space_from({"names": ["a"], "columns": [["Category", 2]], "shape": [1]})
    Space({'a': Category(size=2)})
    """
    columns = [_column_from(*column) for column in record["columns"]]
    return Space(dict(zip(record["names"], columns, strict=True)), record["shape"])


def _column_from(kind: str, *values: Any) -> Column:
    if kind == "Real":
        location, scale, *ends = values
        return Real(location, scale, *(None if end is None else float(end) for end in ends))
    if kind == "Angle":
        return Angle(*values)
    return {"Category": Category, "Ordinal": Ordinal}[kind](*values)


def kernel_record(kernel: Kernel) -> dict[str, Any]:
    """A kernel as plain values; one of one's own by its name alone.

    >>> space = Space([Real(), Category(3)])
    >>> kernel = Product(Sphere(space, 0.5), HammingOne(space))
    >>> kernel_from(kernel_record(kernel), space)
    Product(Sphere(columns=['x0']), HammingOne(columns=['x1']))
    """
    kind = type(kernel)
    if kind in OPTIONS:
        options = {name: getattr(kernel, name) for name in OPTIONS[kind]}
        return {"kind": kind.__name__, "columns": list(kernel.columns), **options}
    if isinstance(kernel, Product | Mixture) and kind in (Product, Mixture):
        parts = [kernel_record(part) for part in kernel.kernels]
        weights = kernel.weights if isinstance(kernel, Mixture) else None
        unknown = any(part["kind"] == "own" for part in parts)
        return _own(kernel) if unknown else {"kind": kind.__name__, "parts": parts, "weights": weights}
    if isinstance(kernel, Redraw | Refresh) and kind in (Redraw, Refresh):
        space, table = kernel.space, kernel.base.log_table.double().exp()
        tables = [table[i, : space.sizes[j]].tolist() for i, j in enumerate(space.discretes)]
        rate = kernel.rate if isinstance(kernel, Refresh) else None
        return {"kind": kind.__name__, "columns": list(kernel.columns), "tables": tables, "rate": rate}
    if isinstance(kernel, Graph) and kind is Graph:
        once = kernel.source < kernel.target
        edges = torch.stack([kernel.source, kernel.target], 1)[once]
        return {"kind": "Graph", "edges": edges.tolist(), "weights": kernel.weight[once].tolist()}
    return _own(kernel)


def _own(kernel: Kernel) -> dict[str, Any]:
    return {"kind": "own", "name": repr(kernel)}


def kernel_from(record: Mapping[str, Any], space: Space) -> Kernel | None:
    """The kernel of a record on a space; None for one of one's own.

    >>> kernel_from({"kind": "own", "name": "Box()"}, Space([Real()])) is None
    True
    """
    kind = record["kind"]
    if kind == "own":
        return None
    if kind in BY_NAME:
        options = {name: value for name, value in record.items() if name != "kind"}
        return BY_NAME[kind](space, **options)
    if kind in ("Product", "Mixture"):
        parts = [part for part in (kernel_from(r, space) for r in record["parts"]) if part is not None]
        return Product(*parts) if kind == "Product" else Mixture(parts, record["weights"])
    if kind == "Graph":
        weights = torch.tensor(record["weights"], dtype=torch.float64)
        return Graph(space, torch.tensor(record["edges"]), weights)
    base = ProductBase(space, [torch.tensor(table) for table in record["tables"]])
    if kind == "Refresh":
        return Refresh(base, record["rate"], record["columns"])
    return Redraw(base, record["columns"])
