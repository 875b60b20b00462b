"""The header and the tensors of a file, brought up to the present format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

__all__ = ["FORMAT", "MIGRATIONS", "provenance", "read", "short"]

FORMAT = 7  # raise it when the header changes, and say in MIGRATIONS how to read the one before
LARGEST_HEADER = 2**28
SLOPES = "slopes."  # before the names of their tensors
NO_SLOPES = {"slopes": False}
Header = dict[str, Any]


def provenance(path: str | Path) -> Header:
    """Who made a saved model of what: versions, time, seed, data hash, metrics.

    >>> provenance("absent.ctem")
    Traceback (most recent call last):
    ...
    FileNotFoundError: load: no file at absent.ctem.
    """
    return read(Path(path))[0]["provenance"]


def read(path: Path) -> tuple[Header, dict[str, Tensor]]:
    """Header and tensors; a damaged or foreign file is an error that names it.

    >>> read(Path("absent.ctem"))
    Traceback (most recent call last):
    ...
    FileNotFoundError: load: no file at absent.ctem.
    """
    if not path.is_file():
        raise FileNotFoundError(f"load: no file at {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != "ctem":
                raise ValueError(f"load: {path} is a safetensors file, but not a ctem model.")
            header = _migrated(path, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"load: {path} is damaged or not a ctem model ({error}).") from None
    return header, tensors


def _migrated(path: Path, metadata: Mapping[str, str]) -> Header:
    text, version = metadata.get("model", ""), metadata.get("version", "")
    if not version.isdecimal() or not 1 <= int(version) <= FORMAT:
        raise ValueError(f"load: {path} has format {version!r}; this ctem reads 1 … {FORMAT}. Update ctem.")
    if len(text) > LARGEST_HEADER:
        raise ValueError(
            f"load: {path} has a header of {len(text)} characters; expected at most {LARGEST_HEADER}."
        )
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"load: {path} has a header that is not JSON ({short(error)})") from None
    if not isinstance(header, dict):
        raise ValueError(f"load: {path} has a header that is not a JSON object.")
    try:
        for old in range(int(version), FORMAT):
            header = MIGRATIONS[old](header)
        return {**header, "provenance": dict(header["provenance"])}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"load: {path} is not a whole ctem model: {short(error)}") from None


def _with_provenance(header: Header) -> Header:
    """Format 1 had seed, rows, hash and baseline at the top, and only the value of log Z."""
    moved = ("seed", "rows", "data_sha256", "baseline")
    kept = {key: value for key, value in header.items() if key not in moved}
    log_z = {"value": header["log_z"], "stderr": None, "ess": None, "method": "unknown (format 1)"}
    origin = {
        "ctem": "0.1",
        "torch": "unknown",
        "created": "unknown",
        "seed": header["seed"],
        "rows": header["rows"],
        "data_sha256": header["data_sha256"],
        "metrics": {"baseline": header["baseline"], "best_loss": None, "seconds": None},
    }
    return {**kept, "log_z": log_z, "provenance": origin}


def _as_it_is(header: Header) -> Header:
    """Format 2 had no steps in its columns and no correlation among its tensors; both may be absent."""
    return header


def _without_slopes(header: Header) -> Header:
    """Format 3 had no networks of slopes, and plans that did not ask for them."""
    settings = header["settings"]
    if settings["plan"] is not None:
        settings = {**settings, "plan": {**settings["plan"], **NO_SLOPES}}
    return {**header, "settings": settings, "plan": {**header["plan"], **NO_SLOPES}}


def _without_drawn_rows(header: Header) -> Header:
    """Format 4 trained the one-pass density on rows that were drawn, and plans said how many."""
    for plan in (header["plan"], header["settings"]["plan"]):
        if plan is not None:
            plan.pop("paths", None)
    return header


def _without_loose_splines(header: Header) -> Header:
    """Format 5 had slopes of the networks' own shape, whose real columns were not normalised far out."""
    for plan in (header["plan"], header["settings"]["plan"]):
        if plan is not None and plan["slopes"]:
            raise ValueError("its slopes were not normalised far out (format 5); fit the model again.")
    settings, nothing = header["settings"], {"slopes": None}
    if settings["plan"] is not None:
        settings = {**settings, "plan": {**settings["plan"], **nothing}}
    return {**header, "settings": settings, "plan": {**header["plan"], **nothing}, **nothing}


def _without_orders(header: Header) -> Header:
    """Format 6 drew the orders of slopes from its seed."""
    slopes = header["slopes"]
    return {**header, "slopes": None if slopes is None else {**slopes, "orders": None}}


MIGRATIONS: dict[int, Callable[[Header], Header]] = {
    1: _with_provenance,
    2: _as_it_is,
    3: _without_slopes,
    4: _without_drawn_rows,
    5: _without_loose_splines,
    6: _without_orders,
}


def short(error: BaseException) -> str:
    """What an error says, in a line.

    >>> short(KeyError("plan"))
    "'plan' is not there."
    """
    text = str(error) or type(error).__name__
    if isinstance(error, KeyError):
        text = f"{text} is not there."
    return text if len(text) < 400 else text[:400] + " …"
