"""The header and the tensors of a file, brought up to the present format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ctem.persistence.sealed import Header, read_header, short, unsealed

__all__ = ["FORMAT", "MIGRATIONS", "provenance", "read"]

FORMAT = 24  # raise it when the header changes, and add to MIGRATIONS how to read the one before
OLDEST = 13  # whose density still exists


def provenance(path: str | Path) -> Header:
    """Who made a saved model of what: versions, time, seed, data hash, metrics.

    >>> provenance("absent.ctem")
    Traceback (most recent call last):
    ...
    FileNotFoundError: load: no file at absent.ctem.
    """
    return read(Path(path))[0]["provenance"]


def read(path: Path) -> tuple[Header, dict[str, Tensor]]:
    """Header, brought up to the present format, and tensors; a damaged or foreign file is an error that names it.

    >>> read(Path("absent.ctem"))
    Traceback (most recent call last):
    ...
    FileNotFoundError: load: no file at absent.ctem.
    """
    header, tensors, version = unsealed(path, "ctem", "a ctem model", lambda about: _migrated(path, about))
    if int(version) < 22:  # a second potential, for quick scores
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("fast.")}
    return header, tensors


def _migrated(path: Path, metadata: Mapping[str, str]) -> Header:
    version = metadata.get("version", "")
    if version not in map(str, range(1, FORMAT + 1)):  # int() would also take ٢٠
        raise ValueError(
            f"load: {path} has format {version!r}; this ctem reads {OLDEST} … {FORMAT}. Update ctem."
        )
    if int(version) < OLDEST:
        raise ValueError(
            f"load: {path} has format {version}, from ctem 0.1, whose density was another one; "
            "that kind of model is gone. Fit it again."
        )
    header = read_header(path, metadata.get("model", ""))
    try:
        for old in range(int(version), FORMAT):
            header = MIGRATIONS[old](header)
        return {**header, "provenance": dict(header["provenance"])}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"load: {path} is not a whole ctem model: {short(error)}") from None


def _without_formulas(header: Header) -> Header:
    """14: no column was explained by others."""
    header["schema"]["formulas"] = []
    return header


def _without_ends(header: Header) -> Header:
    """13: numbers did not hold between which values fit saw them; their means go over the whole tail, as they did."""
    for column in header["schema"]["columns"]:
        if column["codec"]["codec"] == "numbers":
            column["codec"]["seen"] = None
    return header


def _without_growth(header: Header) -> Header:
    """15: batches did not grow, and no column of moments had a daily or weekly rhythm; the others are as they were."""
    header["trained"]["growth"] = 1
    return header


def _without_least_gain(header: Header) -> Header:
    """16: all tables were trained until doubling the steps would have gained less than 0.1 nats."""
    header["trained"]["least_gain"] = 0.1
    return header


def _without_bends(header: Header) -> Header:
    """17: every tail of a column went on as that of a logarithm."""
    _straighten(header["schema"])
    return header


def _straighten(part: Any) -> None:
    """Give every map within part of a header straight tails."""
    if isinstance(part, dict) and "slopes" in part:
        part.setdefault("bends", [0.0, 0.0])
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _straighten(inner)


def _without_held_out(header: Header) -> Header:
    """18, 19: held-out rows were scored in another way, and do not compare."""
    header["held_out"] = None
    return header


def _without_energy(header: Header) -> Header:
    """20: no density had an energy, and networks were believed in every column."""
    header["settings"].setdefault("energy", None)
    for part in ("energy", "worth"):
        header["density"].setdefault(part, None)
    return header


def _without_second_potential(header: Header) -> Header:
    """21: a second potential could stand beside the density, for quick scores; energies were of trees alone."""
    header["settings"].pop("fast", None)
    header.pop("fast", None)
    if header["density"]["energy"] is not None:
        header["density"]["energy"].setdefault("networks", None)
    return header


def _in_present_words(header: Header) -> Header:
    """22: the networks gave the tails of numbers their shape, however far out; some parts had other names."""
    worth = header["density"]["worth"]
    if worth is not None:
        worth.setdefault("reach", 100.0)
        worth.setdefault("nats", worth.pop("told", None))
    _rename(header["schema"])
    return header


def _rename(part: Any) -> None:
    """Give the lattices and maps within part of a header their present names."""
    if isinstance(part, dict):
        for old, new in (("ruler", "lattice"), ("curve", "transform" if "codec" in part else "inner")):
            if old in part:
                part[new] = part.pop(old)
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _rename(inner)


def _without_classes(header: Header) -> Header:
    """23: networks were mixed with margins alone."""
    header["density"].setdefault("classes", None)
    return header


MIGRATIONS: dict[int, Callable[[Header], Header]] = {
    13: _without_ends,
    14: _without_formulas,
    15: _without_growth,
    16: _without_least_gain,
    17: _without_bends,
    18: _without_held_out,
    19: _without_held_out,
    20: _without_energy,
    21: _without_second_potential,
    22: _in_present_words,
    23: _without_classes,
}
