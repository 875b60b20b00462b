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
from ctem.cli.commands import Check
from ctem.spaces import Space

__all__ = ["named"]


def check(options: Check) -> None:
    """Print the verdict; the exit status is 1 for a fault, and 2 for no statement."""
    f = named("potential", options.potential)
    where = getattr(f, "space", None) if options.space is None else named("space", options.space)
    if not isinstance(where, Space):
        raise ValueError(f"--space: expected a ctem.Space, or a potential with one; got {where!r}.")
    samples, train, test = (
        None if path is None else _numbers(path) for path in (options.samples, options.train, options.test)
    )
    verdict = referee(
        f,
        where,
        samples,
        options.budget,
        claimed=options.claimed,
        train=train,
        test=test,
        lattice=options.lattice,
        random_state=options.seed,
        device=options.device,
    )
    if options.output is not None:
        verdict.save(options.output)
    print(json.dumps(verdict.to_json(), indent=1, ensure_ascii=False) if options.as_json else verdict)
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
