"""A file holds what a fit could have written: its parts agree with each other, and its numbers with what they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ctem.spaces import Real
from ctem.tables.answers.heldout import EVERY, HeldOut
from ctem.tables.encoding.codecs import Codec, Constant, Labels, LeftOut, Numbers
from ctem.tables.io.dtypes import cell_type
from ctem.tables.io.frame import Field, TableType
from ctem.tables.margins.bounds import TRIFLE, Bounded
from ctem.tables.margins.calendars import AROUND, SECONDS, beginning
from ctem.tables.margins.lattices import Lattice
from ctem.tables.relations.functions import Affine
from ctem.tables.schema import Schema

__all__ = [
    "check_as_written",
    "check_columns",
    "check_held_out",
    "check_rules",
    "check_sizes",
    "number",
]

LARGEST = 1e9  # nats of a row
MOST_DRAWS = 1e9
SPAN = 2.0**66  # a few times what 64 bits hold
NEGLIGIBLE = 1e-305  # a scale beside the range of a column, at the least
LEAST = 1e-12  # of a share or an error that is not 0
RESOLVED = 1e-21  # width of a cell beside the numbers of a column, at the least
OF_A_CELL = 1e-12  # scale of a map beside the width of a cell, over which its rows are laid out, at the least
NATURAL = (0.0, 1.0, 100.0)  # ends that numbers suggest
OUT_OF_SCALE = 1e6  # times the numbers that a rule is about
ROUNDING = 1e-6  # days
NO_PART = 1e-30  # of the numbers that a rule is about: so small a term is not seen


def check_as_written(part: str, written: Any, made: Any) -> None:
    """An error unless the plain JSON of what was made of a part is that part again.

    >>> check_as_written("bounds", {"low": 0, "high": None}, {"low": 0.0, "high": None})
    >>> check_as_written("bounds", {"low": False, "high": None}, {"low": 0.0, "high": None})
    Traceback (most recent call last):
    ...
    ValueError: bounds.low: expected 0.0; got False.
    """
    if isinstance(written, Mapping) and isinstance(made, Mapping) and written.keys() == made.keys():
        for key in written:
            check_as_written(f"{part}.{key}", written[key], made[key])
    elif isinstance(written, list) and isinstance(made, list | tuple) and len(written) == len(made):
        for i, (one, other) in enumerate(zip(written, made, strict=True)):
            check_as_written(f"{part}.{i}", one, other)
    elif isinstance(written, bool) != isinstance(made, bool) or written != made:
        raise ValueError(f"{part}: expected {made!r:.40}; got {written!r:.40}.")


def check_columns(table_type: TableType, schema: Schema, kinds: Mapping[str, Any] | None = None) -> None:
    """An error unless every column is one that a fit could have found in such a table.

    Arguments:
        table_type: the type of the table.
        schema: what its columns were taken for.
        kinds: the requested ones, whose ends a column may have.

    >>> import pandas as pd
    >>> from ctem.tables.io.frame import read_frame
    >>> frame = read_frame(pd.DataFrame({"city": ["Oslo", "Bergen"], "price": [9.5, 12.0]}))
    >>> check_columns(frame.table_type, Schema.fit(frame))
    """
    for field in table_type.fields:
        codec, requested = schema.columns[field.name].codec, (kinds or {}).get(field.name)
        _check_type(field, codec)
        if isinstance(codec, Numbers):
            _check_numbers(field.name, codec, requested)
        elif isinstance(codec, Constant | Labels):
            _check_values(field, codec)


def _check_type(field: Field, codec: Codec) -> None:
    """Whether what a column holds fits its dtype and its notation: money without one is text."""
    if isinstance(codec, LeftOut) or (isinstance(codec, Constant) and not codec.values):
        return
    written = codec.lattice.type if isinstance(codec, Numbers) else codec.type
    held = {"int": "number", "float": "number"}.get(written, written)
    kind = "label" if field.written is None else field.written["kind"]
    read = {"month": "number", "clock": "number", "date": "moment"}.get(kind, kind)
    expected = cell_type(field.dtype) if kind == "label" else read
    if held != expected:
        raise ValueError(f"column {field.name!r}: expected cells of type {expected!r}; got {held!r}.")
    if held == "label" and "categories" not in field.dtype and not isinstance(codec, Numbers):
        kinds = {isinstance(value, str) for value in codec.values}
        if kinds != {True} and not {"times", "intervals"} & set(field.dtype):
            raise ValueError(f"column {field.name!r}: expected text; got {codec.values!r:.40}.")


def _check_values(field: Field, codec: Constant | Labels) -> None:
    """Whether listed values are among the declared categories, and the numbers among them increase."""
    declared = field.dtype.get("categories")
    if declared is not None and field.written is None:
        known = {(isinstance(value, str), value) for value in declared}
        strange = [value for value in codec.values if (isinstance(value, str), value) not in known]
        if strange:
            raise ValueError(
                f"column {field.name!r}: expected values among its categories; got {strange[0]!r:.40}."
            )
    numbers = [v for v in codec.values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == len(codec.values) and not all(a < b for a, b in pairwise(numbers)):
        raise ValueError(f"column {field.name!r}: expected values that increase; got {codec.values!r:.60}.")


def _check_numbers(name: str, codec: Numbers, requested: Any) -> None:
    """Whether the map and the lattice of a column are those of numbers between the ends that fit saw.

    A map runs through quantiles of the column, and its middle and scale are among them, up to the width of a cell
    and the days that a rhythm moves a moment by. Ends are those that numbers suggest, or requested ones. Whole numbers
    and times lie on a lattice of whole numbers within 64 bits.
    """
    if codec.lattice.type != "float":
        lattice, smooth = codec.lattice, _innermost(codec.transform.to_json())
        whole = (
            lattice.step >= 1 and lattice.step % 1 == lattice.origin % 1 == 0 <= lattice.origin < lattice.step
        )
        reach = max(abs(smooth["location"]) + smooth["scale"], *map(abs, codec.seen)) * lattice.per
        if not whole or lattice.width not in (0, lattice.step / lattice.per) or reach > SPAN:
            raise ValueError(f"column {name!r}: expected numbers of 64 bits on a lattice of whole ones.")
    ends = (requested.low, requested.high) if isinstance(requested, Real) else ()
    if not _fits_range(codec) or not _fits_ends(codec, [*NATURAL, *(end for end in ends if end is not None)]):
        raise ValueError(
            f"column {name!r}: expected a map and a lattice of numbers "
            f"from {codec.seen[0]:g} to {codec.seen[1]:g}."
        )


def check_rules(schema: Schema, rows: int) -> None:
    """An error unless rules hold in rows of the table, and no term of a sum is far beyond what it is part of.

    >>> import numpy as np
    >>> from ctem.tables.io.frame import read_frame
    >>> check_rules(Schema.fit(read_frame(np.arange(9)[:, None])), 9)
    """
    for rule in schema.rules:
        if rule.rows > rows or max(rule.examples, default=0) >= rows:
            raise ValueError(f"rule on {rule.target!r}: expected at most {rows} rows; got {rule.rows}.")
        if isinstance(rule.function, Affine):
            sizes = [_extent(schema, rule.target), *(_extent(schema, name) for name in rule.columns)]
            factors = rule.function.factors
            parts = [abs(factor) * size for factor, size in zip(factors, sizes[1:], strict=True)]
            parts += [abs(rule.function.constant)] if rule.function.constant else []
            if not NO_PART * max(sizes) < min(parts) <= max(parts) <= OUT_OF_SCALE * sum(sizes):
                raise ValueError(f"rule on {rule.target!r}: expected a sum of its size; got {factors}.")


def _extent(schema: Schema, name: str) -> float:
    """How far from 0 the numbers of a column are; days from 1970 for moments, beside which anything counts."""
    codec = schema.columns[name].codec
    if isinstance(codec, Numbers):
        largest = max(map(abs, (*codec.seen, *codec.atoms)))
        return max(1.0, largest * codec.lattice.per + abs(codec.lattice.shift))
    values = [value for value in getattr(codec, "values", ()) if isinstance(value, int | float)]
    return max(1.0, *map(abs, values)) if values else 1.0


def _innermost(transform: Mapping[str, Any]) -> Mapping[str, Any]:
    """The monotone map within ends, preferred values and rhythms, as plain JSON."""
    return list(_layers(transform))[-1]


def _layers(transform: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A map and those within it, the outermost first."""
    yield transform
    if "inner" in transform:
        yield from _layers(transform["inner"])


def _fits_range(codec: Numbers) -> bool:
    """Whether the ends, the middle, the scale, the knots and the slopes of a map can be those of such numbers."""
    lattice, transform, seen = codec.lattice, codec.transform.to_json(), codec.seen
    extent = max(map(abs, (*seen, *codec.atoms)))
    slack = lattice.width + (8.0 if lattice.unit else 0.0)
    low, high = seen[0] - slack, seen[1] + slack
    smooth = _innermost(transform)
    location, scale, knots = smooth["location"], smooth["scale"], smooth["knots"]
    if not (
        _fits_extent(lattice, extent)
        and (lattice.type != "float" or not lattice.step or low <= lattice.origin <= high)
        and all(_keeps_time(part, lattice, seen) for part in _layers(transform) if "period" in part)
        and _ends_within(transform, low, high, 2 * extent + slack)
        and (location == 0 or low <= location <= high)
        and max(NEGLIGIBLE * (high - low), OF_A_CELL * lattice.width) <= scale <= 2 * (extent + slack)
    ):
        return False
    outermost = [location + scale * math.sinh(knot) for knot in (knots[0], knots[-1])]
    if lattice.type == "float" and outermost[0] >= outermost[1]:
        return False  # no number lies between them
    first, last = (math.asinh((end - location) / scale) for end in (low, high))
    rises = zip(pairwise(smooth["scores"]), pairwise(knots), strict=True)
    steepest = max((b - a) / (d - c) for (a, b), (c, d) in rises)
    return first - 1 <= knots[0] and knots[-1] <= last + 1 and max(smooth["slopes"]) <= max(4 * steepest, 0.1)


def _keeps_time(rhythm: Mapping[str, Any], lattice: Lattice, seen: tuple[float, float]) -> bool:
    """Whether a rhythm begins with a day of the lattice, and its clock is set by whole seconds, near the rows."""
    near = all(seen[0] - AROUND <= turn <= seen[1] + AROUND for turn in rhythm["turns"])
    whole = all(offset == round(offset * SECONDS) / SECONDS for offset in rhythm["offsets"])
    timed = lattice.type == "moment" and near and whole
    return timed and abs(rhythm["start"] - beginning(lattice, rhythm["offsets"][0])) < ROUNDING


def _fits_extent(lattice: Lattice, extent: float) -> bool:
    """Whether numbers up to so large a one can lie on a lattice."""
    cells = [size for size in (lattice.step, lattice.width * lattice.per) if size]
    if min(cells, default=math.inf) < RESOLVED * extent or (lattice.step == 0 and lattice.origin != 0):
        return False
    if lattice.type == "float":
        return lattice.shift == 0 and max(lattice.step, lattice.width, abs(lattice.origin)) <= 2 * extent
    return max(lattice.step, abs(lattice.origin)) <= 2 * extent * lattice.per + 1


def _ends_within(transform: Mapping[str, Any], low: float, high: float, widest: float) -> bool:
    """Whether the ends of a map, if it has some, enclose a number from low to high, with no wider a margin."""
    if "margin" not in transform:
        return True
    below, above = transform["low"], transform["high"]
    enclosing = (below is None or float(below) <= high) and (above is None or float(above) >= low)
    return enclosing and transform["margin"] <= widest


def _fits_ends(codec: Numbers, natural: Sequence[float]) -> bool:
    """Whether the ends of a column hold all numbers, are among these or its own up to a cell, and have their margin."""
    bounded, lattice = codec.transform, codec.lattice
    if not isinstance(bounded, Bounded):
        return True
    ends = [end for end in (bounded.low, bounded.high) if math.isfinite(end)]
    low, high = bounded.edges
    margin = max(lattice.width / 2, TRIFLE * bounded.inner.scale)
    cuts = (*codec.seen, *codec.atoms)  # where the values of a column were cut, one of them is its end
    known = all(
        any(_is_end(end, value, lattice) for value in natural)
        or any(abs(end - value) <= lattice.step / lattice.per + 1e-12 * abs(value) for value in cuts)
        for end in ends
    )
    return known and low <= codec.seen[0] <= codec.seen[1] <= high and math.isclose(bounded.margin, margin)


def _is_end(end: float, value: float, lattice: Lattice) -> bool:
    """Whether an end is a value, moved inward to the lattice, as ``with_ends`` does."""
    step, exact = lattice.step / lattice.per, (value - lattice.shift) / lattice.per
    rounding = 1e-15 * abs(exact)
    return abs(end - exact) <= 1.000001 * step + rounding and (end == 0 or abs(end) > 1e-6 * step)


def check_held_out(held_out: HeldOut, members: int) -> None:
    """An error unless the gain is the difference of the means, and each fold is of another member.

    >>> check_held_out(HeldOut(0, -3.0, -5.0, 1.0, 0.1, ()), 2)
    Traceback (most recent call last):
    ...
    ValueError: held_out: expected a gain of -3.0 − -5.0; got 1.0.
    """
    ours, alone, gain = held_out.log_density, held_out.independent, held_out.gain
    if abs(ours - alone - gain) > 1e-6 * (1 + abs(ours) + abs(alone)):
        raise ValueError(f"held_out: expected a gain of {ours} − {alone}; got {gain}.")
    if 0 < held_out.stderr < LEAST or math.isinf(held_out.stderr) != (held_out.rows == 1):
        raise ValueError(
            f"held_out: expected a standard error of 0, or above {LEAST:g}, of {held_out.rows} rows; "
            f"got {held_out.stderr}."
        )
    of = [fold.member for fold in held_out.folds]
    if of != [EVERY] and (len(set(of)) < len(of) or not set(of) <= set(range(members))):
        raise ValueError(f"held_out: expected a fold for each of {members} members; got {of}.")
    means = [value for value in (ours, alone, held_out.stderr) if math.isfinite(value)]
    scores = [value for fold in held_out.folds for value in fold.scores.tolist()]
    if max(map(abs, [*means, *scores])) > LARGEST:
        raise ValueError(f"held_out: expected nats up to {LARGEST:g}.")


def check_sizes(part: str, record: Any, bounds: Mapping[str, tuple[float, float]]) -> None:
    """An error unless a record has these keys and numbers within their bounds: whole ones, if the bounds are whole.

    >>> check_sizes("network", {"width": 0}, {"width": (1, 4096)})
    Traceback (most recent call last):
    ...
    ValueError: network.width: expected a number from 1 to 4096; got 0.
    """
    if not isinstance(record, dict) or set(record) != set(bounds):
        raise ValueError(f"{part}: expected {sorted(bounds)}; got {record!r:.80}.")
    for key, (least, most) in bounds.items():
        number(f"{part}.{key}", record[key], least, most)
        if isinstance(least, int) and not isinstance(record[key], int):
            raise ValueError(f"{part}.{key}: expected a whole number; got {record[key]!r:.40}.")


def number(name: str, value: Any, least: float, most: float) -> float:
    """A number of a file, within bounds.

    >>> number("log_z.ess", 1e-300, 1.0, MOST_DRAWS)
    Traceback (most recent call last):
    ...
    ValueError: log_z.ess: expected a number from 1 to 1e+09; got 1e-300.
    """
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not least <= value <= most:
        raise ValueError(f"{name}: expected a number from {least:g} to {most:g}; got {value!r:.40}.")
    return float(value)
