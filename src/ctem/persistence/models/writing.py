"""A fitted model to a file, all of it or nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ctem import __version__
from ctem.densities.tilted import Energy, TiltedDensity
from ctem.fitting.arguments import KEPT
from ctem.persistence.atomic import write_whole
from ctem.persistence.models.fitted import Fitted
from ctem.persistence.sealed import MODEL, Header
from ctem.spaces import Category, Ordinal, Real

__all__ = ["save", "tensors_of"]


def save(model: Fitted, path: str | Path) -> None:
    """Write a fitted model beside ``path``, to disk, and only then in its place (``ctem.persistence.atomic``).

    >>> import tempfile, numpy as np
    >>> from ctem import CTEM
    >>> X = np.random.default_rng(0).normal(size=(100, 1))
    >>> model = CTEM(max_steps=5, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(Path(folder) / "model.ctem")  # which calls this function
    ...     same = CTEM.load(Path(folder) / "model.ctem")
    >>> bool((same.score_samples(X) == model.score_samples(X)).all())
    True
    """
    write_whole(path, MODEL.content(_header(model), tensors_of(model)), "save")


def _header(model: Fitted) -> Header:
    return {
        "settings": _settings(model),
        "kind": model.table_type.to_json(),
        "named": model.named,
        "schema": model.schema.to_json(),
        "trained": asdict(model.settings),
        "density": _density(model),
        "history": _plain(asdict(model.density.history)),
        "held_out": model.held_out.to_json(),
        "missingness": None if model.missingness is None else list(map(list, model.missingness.groups)),
        "provenance": _provenance(model),
    }


def _provenance(model: Fitted) -> Header:
    history = model.density.history
    return {
        "ctem": __version__,
        "torch": torch.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": model.origin.seed,
        "rows": model.origin.rows,
        "data_sha256": model.origin.data_hash,
        "metrics": _plain(
            {
                "baseline": model.origin.independent_score,
                "best_loss": history.best_loss,
                "seconds": history.seconds,
            }
        ),
    }


def _settings(model: Fitted) -> Header:
    """The constructor's arguments that are plain."""
    params = model.arguments
    seed = params["random_state"]
    kinds = {name: _kind_name(kind) for name, kind in (params["kinds"] or {}).items()}
    return {
        **{key: params[key] for key in KEPT},
        "random_state": int(seed) if isinstance(seed, int) else None,
        "columns": kinds or None,
    }


def _kind_name(kind: Any) -> str | Header:
    if isinstance(kind, str):
        return kind
    if isinstance(kind, Real) and kind != Real():
        return {"low": _end(kind.low), "high": _end(kind.high)}
    made = kind if isinstance(kind, type) else type(kind)
    return {Real: "real", Ordinal: "ordinal", Category: "category"}[made]


def _end(end: float | None) -> float | str | None:
    return str(end) if end is not None and math.isinf(end) else end


def _density(model: Fitted) -> Header:
    density = model.density
    return {
        "network": density.net.options,
        "level": density.level,
        "orders": density.orders,
        "late": density.chain.late,
        "worth": density.net.worth._asdict(),
        "classes": None if density.net.classes is None else density.net.classes.groups,
        "energy": _energy(density.energy) if isinstance(density, TiltedDensity) else None,
    }


def _energy(energy: Energy) -> Header:
    return {
        "biases": [trees.bias for trees in energy.rounds],
        "partial": energy.partial.bias,
        "log_z": _plain(energy.log_z._asdict()),
        "ceiling": energy.ceiling,
        "gain": energy.gain,
        "stderr": energy.stderr,
        "networks": None if energy.networks is None else energy.networks.options,
        "margins": None if energy.margins is None else energy.margins.bias,
    }


def tensors_of(model: Fitted) -> dict[str, torch.Tensor]:
    """Of the base, the density's networks, the energy and the gaps.

    >>> import tempfile, numpy as np
    >>> from ctem import CTEM
    >>> from ctem.persistence.models.rebuilding import load
    >>> model = CTEM(max_steps=2, width=8, random_state=0).fit(np.random.default_rng(0).normal(size=(100, 1)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(Path(folder) / "model.ctem")
    ...     sorted(tensors_of(load(Path(folder) / "model.ctem")))[0]
    'base.log_table'
    """
    density = model.density
    tensors = {"base.log_table": density.base.log_table}
    tensors |= {f"net.{name}": value for name, value in density.net.named_parameters()}
    correlation = density.net.inputs.correlation
    if correlation is not None:
        tensors["correlation"] = correlation
    if (classes := density.net.classes) is not None:
        tensors |= {"classes.weight": classes.weight, "classes.chance": classes.chance}
    if isinstance(density, TiltedDensity):
        sums = *density.energy.rounds, density.energy.partial, density.energy.margins
        for k, trees in enumerate(filter(None, sums)):
            tensors |= {f"energy.{k}.{name}": value for name, value in trees.tensors().items()}
        if (networks := density.energy.networks) is not None:
            tensors |= {f"energy.networks.{name}": value for name, value in networks.tensors().items()}
    if model.missingness is not None:
        tensors["gaps.log_table"] = model.missingness.net.base.log_table
        tensors |= {f"gaps.{name}": value for name, value in model.missingness.net.named_parameters()}
    return tensors


def _plain(record: Mapping[str, Any]) -> Header:
    """Numbers that JSON has no word for as null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }
