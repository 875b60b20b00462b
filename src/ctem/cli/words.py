"""Kinds and conditions as they are written in a shell: age=real:0..120, age=30..40, city=Oslo|Bergen."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import typer

from ctem.spaces import Real
from ctem.tables.encoding.codecs import Codec, Constant, Labels, Numbers
from ctem.tables.io.writings import Writing, span_seconds

__all__ = ["column_kinds", "conditions", "from_text"]

KINDS = ("real", "category", "ordinal")


def column_kinds(texts: list[str]) -> dict[str, str | Real]:
    """name=kind as name → kind; a name may hold "=" itself, and real may have ends.

    >>> column_kinds(["age=real:0..120", "a=b=category"])
    {'age': Real(low=0.0, high=120.0), 'a=b': 'category'}
    """
    kinds: dict[str, str | Real] = {}
    for text in texts:
        name, _, kind = text.rpartition("=")
        ends = re.fullmatch(r"real:([^.]*(?:\.[^.]+)?)\.\.(.*)", kind)
        if not name or (kind not in KINDS and not ends):
            raise typer.BadParameter(
                f"expected NAME=KIND, with a KIND of {', '.join(KINDS)} or real:LOW..HIGH; got {text!r}."
            )
        kinds[name] = _bounded(text, *ends.groups()) if ends else kind
    return kinds


def _bounded(text: str, low: str, high: str) -> Real:
    try:
        return Real(low=float(low) if low else None, high=float(high) if high else None)
    except ValueError as error:
        raise typer.BadParameter(
            f"expected numbers LOW < HIGH in real:LOW..HIGH; got {text!r} ({error})"
        ) from None


def conditions(
    texts: list[str], codecs: Mapping[str, Codec], written: Mapping[str, Writing] | None = None
) -> dict[str, Any]:
    """name=condition as name → condition, in the types of the columns; a name may hold "=" itself.

    Text in the notation that a column is ``written`` in stays text, which the model reads.

    >>> conditions(["size=2.."], {"size": Labels("int", (1, 2), (0, 1), (1.0, 1.0))})
    {'size': (2, None)}
    """
    given: dict[str, Any] = {}
    for text in texts:
        name = max((known for known in codecs if text.startswith(f"{known}=")), key=len, default=None)
        if name is None:
            raise typer.BadParameter(
                f"expected NAME=CONDITION, with a NAME of {', '.join(codecs)}; got {text!r}. Conditions are written "
                "as age=30..40, age=30.., city=Oslo or city=Oslo|Bergen."
            )
        if name in given:
            raise typer.BadParameter(
                f"{name!r} has two conditions; write them as one, such as {name}=1|3..5."
            )
        given[name] = from_text(name, text[len(name) + 1 :], codecs[name], (written or {}).get(name))
    return given


def from_text(name: str, text: str, codec: Codec, writing: Writing | None = None) -> Any:
    """A condition as the command line has it: ``30..40``, ``30..``, ``Oslo|Bergen``, ``Oslo``; nothing is missing.

    >>> from_text("age", "30..40|65..", Labels("int", (30, 40, 65), (0, 1, 2), (1.0, 1.0, 1.0)))
    [(30, 40), (65, None)]
    >>> from_text("city", "Oslo|Bergen", Labels("label", ("Bergen", "Oslo"), (0, 1), (1.0, 1.0)))
    ['Oslo', 'Bergen']
    """
    kind = codec.lattice.type if isinstance(codec, Numbers) else codec.type
    if kind == "label":
        known = codec.values if isinstance(codec, Constant | Labels) else ()
        return (
            text or None if text in known or "|" not in text else [part or None for part in text.split("|")]
        )
    items = [_text_item(name, part, kind, writing) for part in text.split("|")]
    return items[0] if len(items) == 1 else items


def _text_item(name: str, text: str, kind: str, writing: Writing | None) -> Any:
    if ".." in text:
        low, _, high = text.partition("..")
        return tuple(_text_value(name, end, kind, writing) for end in (low, high))
    return _text_value(name, text, kind, writing)


def _text_value(name: str, text: str, kind: str, writing: Writing | None) -> Any:
    """A number, boolean or moment from text, or the text if the column is written so; None from nothing."""
    text = text.strip()
    if not text:
        return None
    if writing is not None and writing.kind != "label" and writing.parsed(text) is not None:
        return text
    try:
        if kind == "duration":
            return _duration(text)
        if kind == "bool":
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        if kind == "moment":
            moment = np.datetime64(text).astype("M8[us]").item()
            return moment if writing is None or writing.kind != "date" else writing.text(moment)
        return int(text) if kind == "int" and text.lstrip("+-").isdigit() else float(text)
    except (KeyError, ValueError):
        known = {
            "bool": "true or false",
            "moment": "a date such as 2020-12-31",
            "duration": "a duration such as 1h 30m",
        }
        wanted = known.get(kind, "a number")
        raise ValueError(
            f"--given {name}={text}: expected {wanted}, low..high, low.., ..high or a|b; got {text!r}."
        ) from None


def _duration(text: str) -> dt.timedelta:
    seconds = span_seconds(text)
    if seconds is None:
        raise ValueError(f"expected a duration such as 1h 30m; got {text!r}.")
    return dt.timedelta(seconds=seconds)
