"""Times with a zone and times without: one is never taken for the other.

A column of times in a zone is kept as moments of UTC. Times without a zone, laid beside it, would be off by hours and
nobody would see it, so they are refused with what to write instead.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ctem.tables.frames.cells import Dtype
from ctem.tables.frames.frame import Frame, TableType

__all__ = ["check_zones", "given_moments", "zone_of"]


def zone_of(dtype: Dtype) -> str:
    """The zone that a column's times are in; empty for times without one and for what is no time.

    >>> zone_of({"pandas": "datetime64[us, Asia/Tokyo]"}), zone_of({"arrow": "timestamp", "unit": "s", "zone": None})
    ('Asia/Tokyo', '')
    """
    if isinstance(dtype.get("arrow"), dict):
        return zone_of(dtype["arrow"])
    found = re.fullmatch(r"datetime64\[\w+, (.+)\]", str(dtype.get("pandas", "")))
    return found[1] if found else dtype.get("zone") or ""


def check_zones(frame: Frame, table_type: TableType) -> None:
    """An error where a column has times with a zone and in fit had them without, or the other way round.

    >>> from ctem.tables.frames.frame import read_frame
    >>> X = read_frame(np.array([["2020-01-01"]], "M8[s]"))
    >>> check_zones(X, X.table_type)
    """
    fitted = {field.name: zone_of(field.dtype) for field in table_type.fields}
    for field in frame.table_type.fields:
        cells, zone = frame.columns[field.name], zone_of(field.dtype)
        if (
            cells.type == "moment"
            and not cells.missing.all()
            and bool(zone) != bool(fitted.get(field.name, zone))
        ):
            raise _mixed_up(
                "X", field.name, fitted[field.name], f"times in {zone}" if zone else "times without a zone"
            )


def given_moments(what: str, given: Mapping[str, Any], table_type: TableType) -> dict[str, Any]:
    """Conditions on columns with the times in them as moments of UTC where a column has a zone.

    >>> from ctem.tables.frames.frame import Field
    >>> zoned = TableType("polars", (Field("t", "t", {"polars": "Datetime", "unit": "us", "zone": "Asia/Tokyo"}),))
    >>> given_moments("given", {"t": dt.datetime.fromisoformat("2020-01-05T09:00+09:00")}, zoned)
    {'t': datetime.datetime(2020, 1, 5, 0, 0)}
    """
    zones = {field.name: zone_of(field.dtype) for field in table_type.fields}
    return {name: _in_utc(what, name, said, zones.get(name, "")) for name, said in given.items()}


def _in_utc(what: str, name: str, said: Any, zone: str) -> Any:
    """A value, or the values of a range or a set."""
    if isinstance(said, tuple | list | set | frozenset):
        return type(said)(_in_utc(what, name, each, zone) for each in said)
    moment = _moment(said) if zone else said
    if isinstance(moment, dt.datetime) and moment.tzinfo is not None:
        if zone:
            return moment.astimezone(dt.UTC).replace(tzinfo=None)
        raise _mixed_up(what, name, zone, f"{said} with a zone")
    if zone and isinstance(moment, dt.date | np.datetime64):
        raise _mixed_up(what, name, zone, f"{said} without one")
    return said


def _moment(said: Any) -> Any:
    """Text as the moment that it says in ISO's way, if it does; anything else as it is."""
    if not isinstance(said, str):
        return said
    try:
        return dt.datetime.fromisoformat(said)
    except ValueError:
        return said


def _mixed_up(what: str, name: str, zone: str, got: str) -> ValueError:
    if zone:
        return ValueError(
            f"{what}: column {name!r} holds times in {zone}; got {got}. "
            f"Say which zone they are in, as in pd.Timestamp('2020-01-05 09:00', tz={zone!r})."
        )
    return ValueError(
        f"{what}: column {name!r} holds times without a zone; got {got}. Give them as fit had them, without."
    )
