"""Times with a zone and times without: one is never taken for the other.

A column of times in a zone is kept as moments of UTC. Times without a zone, laid beside it, would be off by hours and
nobody would see it, so they are refused with what to write instead.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ctem.tables.io.dtypes import arrow_type, zone_of
from ctem.tables.io.frame import Frame, TableType

__all__ = ["changed_each", "check_zones", "given_moments", "moment_of"]


def check_zones(frame: Frame, table_type: TableType, what: str = "X") -> None:
    """An error where a column has times with a zone and in fit had them without, or the other way round.

    >>> from ctem.tables.io.frame import read_frame
    >>> X = read_frame(np.array([["2020-01-01"]], "M8[s]"))
    >>> check_zones(X, X.table_type)
    """
    fitted = {field.name: zone_of(field.dtype) for field in table_type.fields}
    in_utc = [field.name for field in table_type.fields if _written_in_utc(field.written)]
    for field in (field for field in frame.table_type.fields if field.name not in in_utc):
        cells, zone = frame.columns[field.name], zone_of(field.dtype)
        if (
            cells.type == "moment"
            and not cells.missing.all()
            and bool(zone) != bool(fitted.get(field.name, zone))
        ):
            raise _mixed_up(
                what, field.name, fitted[field.name], f"times in {zone}" if zone else "times without a zone"
            )


def _written_in_utc(written: Mapping[str, Any] | None) -> bool:
    """Whether a column of text in fit held moments of UTC, as in 2013-01-01T11:00:00Z."""
    if written is None or written["kind"] != "date":
        return False
    return written["suffix"] in ("Z", "+00:00", "+0000") or "%z" in written["formats"][0]


def given_moments(what: str, given: Mapping[str, Any], table_type: TableType) -> dict[str, Any]:
    """Conditions on columns with the times in them as Python's moments, of UTC where a column has a zone.

    >>> from ctem.tables.io.frame import Field
    >>> zoned = TableType("polars", (Field("t", "t", {"polars": "Datetime", "unit": "us", "zone": "Asia/Tokyo"}),))
    >>> given_moments("given", {"t": dt.datetime.fromisoformat("2020-01-05T09:00+09:00")}, zoned)
    {'t': datetime.datetime(2020, 1, 5, 0, 0)}
    """
    held = {field.name: arrow_type(field.dtype) for field in table_type.fields}
    zones = {
        name: getattr(kind, "tz", None) or ""
        for name, kind in held.items()
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    }
    moments = dict(given)
    for name in (name for name in zones if name in moments):
        moments[name] = changed_each(moments[name], partial(_in_utc, what, name, zone=zones[name]))
    return moments


def changed_each(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value that is changed, or a range or a set with each of its values changed.

    >>> changed_each((1, [2, 3]), lambda value: 10 * value)
    (10, [20, 30])
    """
    if isinstance(value, tuple | list | set | frozenset):
        return type(value)(changed_each(item, change) for item in value)
    return change(value)


def _in_utc(what: str, name: str, value: Any, zone: str) -> Any:
    """A moment as Python has it, of UTC where its column has a zone."""
    moment = moment_of(value)
    if isinstance(moment, str):
        raise ValueError(
            f"{what}: column {name!r}: expected dates or times, such as '2020-01-05 09:00'; got {value!r}."
        )
    if isinstance(moment, dt.datetime) and moment.tzinfo is not None:
        if zone:
            return moment.astimezone(dt.UTC).replace(tzinfo=None)
        raise _mixed_up(what, name, zone, f"{value} with a zone")
    if zone and isinstance(moment, dt.date):
        raise _mixed_up(what, name, zone, f"{value} without one")
    return moment


def moment_of(value: Any) -> Any:
    """Text as the moment that it is in ISO's way, if it does, and moments of libraries as Python's; else as it is.

    >>> moment_of("2020-03"), moment_of(np.datetime64("2020-03-01")), moment_of("soon")
    (datetime.datetime(2020, 3, 1, 0, 0), datetime.datetime(2020, 3, 1, 0, 0), 'soon')
    """
    if isinstance(value, np.datetime64):
        return value if np.isnat(value) else value.astype("M8[us]").item()
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime(warn=False) if value == value else value
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day)
    if not isinstance(value, str) or not value:
        return value
    try:
        return dt.datetime.fromisoformat(value)
    except ValueError:
        pass
    try:
        return np.datetime64(value).astype("M8[us]").item()
    except ValueError:
        return value


def _mixed_up(what: str, name: str, zone: str, got: str) -> ValueError:
    if zone:
        return ValueError(
            f"{what}: column {name!r} holds times in {zone}; got {got}. "
            f"Give them with their zone, as in pd.Timestamp('2020-01-05 09:00', tz={zone!r})."
        )
    return ValueError(
        f"{what}: column {name!r} holds times without a zone; got {got}. Give them as fit had them, without."
    )
