"""The command ``ctem check``: a log-potential by its name, a verdict on standard output."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ctem.checking import check as referee
from ctem.spaces import Space

__all__ = ["named"]


def check(
    potential: str,
    space: str | None,
    samples: Path | None,
    claimed: float | None,
    train: Path | None,
    test: Path | None,
    lattice: tuple[int, int] | None,
    budget: str,
    output: Path | None,
    as_json: bool,
    seed: int,
    device: str,
) -> None:
    """Print the verdict; the exit status is 1 for a fault, and 2 for no statement."""
    f = named("potential", potential)
    where = getattr(f, "space", None) if space is None else named("space", space)
    if not isinstance(where, Space):
        raise ValueError(f"--space: expected a ctem.Space, or a potential with one; got {where!r}.")
    rows = {"samples": samples, "train": train, "test": test}
    read: dict[str, Any] = {name: None if path is None else _numbers(path) for name, path in rows.items()}
    options: dict[str, Any] = {
        "budget": budget,
        "claimed": claimed,
        "lattice": lattice,
        "random_state": seed,
        "device": device,
    }
    verdict = referee(f, where, **options | read)
    if output is not None:
        verdict.save(output)
    print(json.dumps(verdict.to_json(), indent=1, ensure_ascii=False) if as_json else verdict)
    if verdict.faults or verdict.verdict == "unknown":
        sys.exit(1 if verdict.faults else 2)


def named(what: str, name: str) -> Any:
    """What a module of the working directory, or an installed one, calls by this name.

    >>> named("potential", "math:pi")
    3.141592653589793
    """
    module, colon, inside = name.partition(":")
    if not colon or not module or not inside:
        raise ValueError(f"{what}: expected MODULE:NAME; got {name!r}.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    thing = import_module(module)
    for part in inside.split("."):
        if not hasattr(thing, part):
            raise ValueError(f"{what}: {module} has no {inside!r}.")
        thing = getattr(thing, part)
    return thing


def _numbers(path: Path) -> Any:
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    return np.loadtxt(path, delimiter=",", ndmin=2)
