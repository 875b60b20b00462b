"""The arguments of ``CTEM``: what each may be, and which of them a saved model keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from ctem.densities.anyorder.settings import EFFORTS

__all__ = ["KEPT", "check_arguments", "check_count", "plain_arguments"]

MOST = 2**31 - 1  # of anything that is counted
ENERGIES = ("auto", "trees", "networks", "both", None)
UNKNOWN = ("reserve", "refuse")
SUCH_AS = {"kinds": "{'city': 'category'}", "reading": "{'dates': 'dmy'}"}
NUMBERS = ("width", "blocks", "members", "orders", "batch_size", "max_steps")  # whole numbers ≥ 1, or None
KEPT = (  # written as they are; where a fit kept its checkpoint belongs to that machine
    "missing",
    "unknown",
    "reading",
    "effort",
    "energy",
    "width",
    "blocks",
    "members",
    "orders",
    "batch_size",
    "learning_rate",
    "weight_decay",
    "max_steps",
    "max_time",
)


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse what cannot be fitted with, by the name of the argument.

    >>> check_arguments({"effort": "swift", "energy": None})
    Traceback (most recent call last):
    ...
    ValueError: effort: expected one of ('quick', 'default', 'best'); got 'swift'.
    """
    for name, known in (("effort", EFFORTS), ("energy", ENERGIES), ("unknown", UNKNOWN)):
        if arguments[name] not in known:
            raise ValueError(f"{name}: expected one of {known}; got {arguments[name]!r}.")
    for name in NUMBERS:
        if arguments[name] is not None:
            check_count(name, arguments[name])
    for name in ("kinds", "reading"):
        if not isinstance(arguments.get(name), Mapping | None):
            raise ValueError(f"{name}: expected a dict, such as {SUCH_AS[name]}; got {arguments[name]!r}.")
    rules = arguments.get("rules")
    if rules is not None and (isinstance(rules, str) or not isinstance(rules, Sequence)):
        raise ValueError(f"rules: expected sentences, such as ['state from city']; got {rules!r}.")
    for name in ("learning_rate", "max_time"):
        value = arguments[name]
        if value is not None and not (_is_number(value) and 0 < value < math.inf):
            raise ValueError(f"{name}: expected a finite number > 0; got {value!r}.")
    decay = arguments["weight_decay"]
    if decay is not None and not (_is_number(decay) and 0 <= decay < math.inf):
        raise ValueError(f"weight_decay: expected a finite number ≥ 0; got {decay!r}.")
    checkpoint = arguments.get("checkpoint")  # a file keeps neither this nor kinds
    if checkpoint is not None and not Path(checkpoint).parent.is_dir():
        raise ValueError(
            f"checkpoint: expected a file in a folder that is there; there is no {Path(checkpoint).parent}."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def plain_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with numbers of NumPy as Python's, which have no range to overflow and can be written as JSON.

    >>> plain_arguments({"width": np.uint8(200)})
    {'width': 200}
    """
    return {key: value.item() if isinstance(value, np.generic) else value for key, value in arguments.items()}


def check_count(name: str, value: Any) -> None:
    """Refuse what is not a whole number ≥ 1.

    >>> check_count("n_samples", 0)
    Traceback (most recent call last):
    ...
    ValueError: n_samples: expected a whole number ≥ 1; got 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}: expected a whole number ≥ 1; got {value!r}.")
    if value > MOST:
        raise ValueError(f"{name}: expected at most {MOST}; got {value!r}.")
