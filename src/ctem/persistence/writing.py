"""A fitted model to a file, all of it or nothing."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from ctem.clocknet import ClockNet
from ctem.density import Density
from ctem.persistence.reading import FORMAT, SLOPES, Header
from ctem.plain import PlainDensity
from ctem.spaces import Category, Ordinal, Real

if TYPE_CHECKING:
    from ctem.estimator import CTEM

__all__ = ["save"]


def save(model: CTEM, path: str | Path) -> None:
    """Write a fitted model to a temporary sibling, to disk, and only then in place of ``path``.

    >>> import tempfile, numpy as np
    >>> from ctem import CTEM, Recipe
    >>> from ctem.plans import Plan
    >>> X = np.random.default_rng(0).normal(size=(100, 1))
    >>> plan = Plan(width=16, blocks=1, members=1, recipe=Recipe(steps=5), log_z_samples=200)
    >>> model = CTEM(plan=plan, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, Path(folder) / "model.ctem")
    ...     same = CTEM.load(Path(folder) / "model.ctem")
    >>> bool((same.score_samples(X) == model.score_samples(X)).all())
    True
    """
    target = Path(path)
    tensors = {name: value.detach().cpu().contiguous() for name, value in _tensors(model).items()}
    metadata = {
        "format": "ctem",
        "version": str(FORMAT),
        "model": json.dumps(_header(model), allow_nan=False),
    }
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        save_file(tensors, part, metadata=metadata)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)  # safetensors makes private files
        os.replace(part, target)
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"save: {target} could not be written ({error}); what was there is untouched."
        ) from None
    finally:
        part.unlink(missing_ok=True)


def _header(model: CTEM) -> Header:
    density = model.density_
    return {
        "settings": _settings(model),
        "kind": model.kind_.to_json(),
        "named": hasattr(model, "feature_names_in_"),
        "schema": model.schema_.to_json(),
        "plan": asdict(density.plan),
        "network": _options(density),
        "level": density.level,
        "slopes": _slopes(density),
        "log_z": _plain(density.log_z._asdict()),
        "history": _plain(asdict(density.history)),
        "provenance": _provenance(model),
    }


def _provenance(model: CTEM) -> Header:
    from ctem import __version__

    history = model.density_.history
    return {
        "ctem": __version__,
        "torch": torch.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": model.seed_,
        "rows": model.n_rows_,
        "data_sha256": model.data_hash_,
        "metrics": _plain(
            {"baseline": model.baseline_, "best_loss": history.best_loss, "seconds": history.seconds}
        ),
    }


def _settings(model: CTEM) -> Header:
    """The constructor's arguments that are plain; where a fit keeps its checkpoint belongs to that machine."""
    params = model.get_params(deep=False)
    plain = {key: params[key] for key in ("missing", "objective", "max_steps", "max_time", "orders")}
    seed = params["random_state"]
    columns = {name: _kind_name(kind) for name, kind in (params["columns"] or {}).items()}
    return {
        **{key: value.item() if hasattr(value, "item") else value for key, value in plain.items()},
        "random_state": int(seed) if isinstance(seed, int) or hasattr(seed, "item") else None,
        "columns": columns or None,
        "plan": None if params["plan"] is None else asdict(params["plan"]),
    }


def _kind_name(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    made = kind if isinstance(kind, type) else type(kind)
    return {Real: "real", Ordinal: "ordinal", Category: "category"}[made]


def _options(density: Density | PlainDensity) -> Header:
    return _shape(density.net) if isinstance(density, Density) else {"width": density.plan.width}


def _shape(net: ClockNet) -> Header:
    return {**{key: value for key, value in net.options.items() if key != "slopes"}, "members": net.members}


def _slopes(density: Density | PlainDensity) -> Header | None:
    if not isinstance(density, Density) or density.slopes is None:
        return None
    return {"network": _shape(density.slopes), "level": density.fine, "orders": density.orders}


def _tensors(model: CTEM) -> dict[str, torch.Tensor]:
    """Of the network, and under another name the weights of slopes, which have the same base."""
    density = model.density_
    if isinstance(density, PlainDensity):
        return dict(density.f.state_dict())
    slopes = {} if density.slopes is None else dict(density.slopes.named_parameters())
    return {**density.net.state_dict(), **{SLOPES + name: value for name, value in slopes.items()}}


def _plain(record: Mapping[str, Any]) -> Header:
    """Numbers that JSON has no word for as null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }
