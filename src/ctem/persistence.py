r"""Saved models: one ``.ctem`` file, which is a safetensors file with a JSON header.

One file rather than a folder, because a file can be replaced atomically: a crash, a full disk or an unwritable folder
leaves the old model as it was. It holds the weights, and in its header what came in, the schema, the plan, the history
and provenance. Nothing in it is ever run, and sizes and types are checked before anything is built.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ctem.bases import ProductBase
from ctem.clocknet import ClockNet
from ctem.density import Density, Plan
from ctem.energies import MLP, Tilted
from ctem.partition import LogZ
from ctem.plain import PlainDensity
from ctem.residuals import MAX_SCORES
from ctem.spaces import Category, Ordinal, Real, Space
from ctem.table.answers import find_device
from ctem.table.frames import Kind
from ctem.table.schema import Schema
from ctem.training import History, Recipe

if TYPE_CHECKING:
    from ctem.estimator import CTEM

__all__ = ["FORMAT", "load", "provenance", "save"]

FORMAT = 3  # raise it when the header changes, and say in MIGRATIONS how to read the one before
LARGEST_HEADER = 2**28
SETTINGS = {"columns", "max_steps", "max_time", "missing", "objective", "orders", "plan", "random_state"}
Header = dict[str, Any]


def save(model: CTEM, path: str | Path) -> None:
    """Write a fitted model to a temporary sibling, to disk, and only then in place of ``path``.

    >>> import tempfile, numpy as np
    >>> from ctem.estimator import CTEM
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
    tensors = {name: value.detach().cpu().contiguous() for name, value in _module(model).state_dict().items()}
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


def load(cls: type[CTEM], path: str | Path, device: str = "auto") -> CTEM:
    """The model in a file; a truncated, foreign or malicious one gives one ValueError and runs nothing.

    >>> from ctem.estimator import CTEM
    >>> load(CTEM, "absent.ctem")
    Traceback (most recent call last):
    ...
    FileNotFoundError: load: no file at absent.ctem.
    """
    header, tensors = _read(Path(path))
    try:
        return _rebuilt(cls, header, tensors, device)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        raise ValueError(f"load: {path} is not a whole ctem model: {_short(error)}") from None


def provenance(path: str | Path) -> Header:
    """Who made a saved model of what: versions, time, seed, data hash, metrics.

    >>> provenance("absent.ctem")
    Traceback (most recent call last):
    ...
    FileNotFoundError: load: no file at absent.ctem.
    """
    return _read(Path(path))[0]["provenance"]


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
    if isinstance(density, Density):
        return {**density.net.options, "members": density.net.members}
    return {"width": density.plan.width}


def _module(model: CTEM) -> torch.nn.Module:
    density = model.density_
    return density.net if isinstance(density, Density) else density.f


def _read(path: Path) -> tuple[Header, dict[str, Tensor]]:
    """Header, brought up to the present format, and tensors."""
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
        raise ValueError(f"load: {path} has a header that is not JSON ({_short(error)})") from None
    if not isinstance(header, dict):
        raise ValueError(f"load: {path} has a header that is not a JSON object.")
    try:
        for old in range(int(version), FORMAT):
            header = MIGRATIONS[old](header)
        return {**header, "provenance": dict(header["provenance"])}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"load: {path} is not a whole ctem model: {_short(error)}") from None


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


MIGRATIONS: dict[int, Callable[[Header], Header]] = {1: _with_provenance, 2: _as_it_is}


def _rebuilt(cls: type[CTEM], header: Header, tensors: dict[str, Tensor], device: str) -> CTEM:
    settings = dict(header["settings"])
    if set(settings) != SETTINGS:
        raise ValueError(f"settings: expected {sorted(SETTINGS)}; got {sorted(settings)}.")
    plan = None if settings["plan"] is None else _plan(settings["plan"])
    model = cls(**{**settings, "plan": plan}, device=device)
    model._check_settings()
    model.kind_, model.schema_ = Kind.from_json(header["kind"]), Schema.from_json(header["schema"])
    names = model.kind_.names
    if tuple(model.schema_.choices) != names:
        raise ValueError("kind and schema: expected the same columns in both.")
    model.n_features_in_ = len(names)
    if header["named"]:
        model.feature_names_in_ = np.array(names, object)
    origin = header["provenance"]
    model.seed_, model.n_rows_ = int(origin["seed"]), int(origin["rows"])
    model.data_hash_, model.baseline_ = str(origin["data_sha256"]), float(origin["metrics"]["baseline"])
    model._adopt(_density(model, header, tensors))
    return model


def _density(model: CTEM, header: Header, tensors: dict[str, Tensor]) -> Density | PlainDensity:
    plan, history, log_z = _plan(header["plan"]), _history(header["history"]), _log_z(header["log_z"])
    level, device = float(header["level"]), find_device(model.device)
    if not 0 <= level < 1:
        raise ValueError(f"level: expected a number in [0, 1); got {level}.")
    _check_tensors(tensors)
    if model.objective == "plain":
        f = _plain_net(model.schema_.space, header["network"], tensors)
        return PlainDensity(f.to(device), plan, history, log_z, model.seed_)
    net = _clock_net(model.schema_.space, header["network"], tensors)
    return Density(net.to(device), level, plan, history, log_z, model.seed_, model.schema_.parents)


def _check_tensors(tensors: Mapping[str, Tensor]) -> None:
    for name, value in tensors.items():
        padded = name.endswith("log_table")  # −inf where a column has fewer values than another
        fine = value.dtype == torch.float32 and bool((value.isfinite() | (padded & (value < 0))).all())
        if not fine:
            raise ValueError(f"tensor {name!r}: expected finite float32 numbers; got {value.dtype}.")


def _clock_net(space: Space, options: Header, tensors: dict[str, Tensor]) -> ClockNet:
    """The network, after a check that its sizes are those of the tensors: a small file cannot ask for much memory."""
    _check_options(options, {"width": int, "blocks": int, "harmonics": int, "members": int, "dropout": float})
    members, inputs, width = tensors["first.weight"].shape
    blocks = len({name.split(".")[1] for name in tensors if name.startswith("body.")})
    found = {"members": members, "width": width, "blocks": blocks}
    if any(options[key] != size for key, size in found.items()) or options["harmonics"] > inputs:
        raise ValueError(f"network: expected the sizes of its tensors, {found}; got {options}.")
    if sum(max(k - 1, 0) for k in space.sizes) + space.dim > inputs:
        raise ValueError(f"network: expected inputs for every column; got {inputs}.")
    correlation = tensors.get("correlation")
    if correlation is not None and not correlation.numel() <= MAX_SCORES**2:
        raise ValueError(f"network: expected a correlation of at most {MAX_SCORES} scores.")
    net = ClockNet(_base(space, tensors["base.log_table"]), **options, correlation=correlation)
    net.load_state_dict(tensors)
    return net


def _plain_net(space: Space, options: Header, tensors: dict[str, Tensor]) -> Tilted:
    _check_options(options, {"width": int})
    if tensors["g.layers.0.weight"].shape != (options["width"], sum(space.widths)):
        raise ValueError(f"network: expected the sizes of its tensors; got {options}.")
    f = Tilted(_base(space, tensors["base.log_table"]), MLP(space, width=options["width"]))
    f.load_state_dict(tensors)
    return f


def _base(space: Space, log_table: Tensor) -> ProductBase:
    """The base with exactly this table: features of the network are made from it."""
    sizes = [space.sizes[j] for j in space.discretes]
    if log_table.shape != (max(len(sizes), 1), max(sizes, default=1)):
        raise ValueError(
            f"base: expected a table for columns of {sizes} values; got {tuple(log_table.shape)}."
        )
    base = ProductBase(space)
    if not bool((log_table.isfinite() == base.log_table.isfinite()).all()):
        raise ValueError("base: expected a probability > 0 for every value of every column.")
    base.load_state_dict({"log_table": log_table})
    return base


def _check_options(options: Header, types: Mapping[str, type[int] | type[float]]) -> None:
    if set(options) != set(types):
        raise ValueError(f"network: expected {sorted(types)}; got {sorted(options)}.")
    for key, kind in types.items():
        value = options[key]
        least = 0 if key in ("dropout", "harmonics") else 1
        if isinstance(value, bool) or not isinstance(value, kind | int) or not value >= least:
            raise ValueError(f"network: expected {key} ≥ {least}, a {kind.__name__}; got {value!r}.")


def _plan(data: Header) -> Plan:
    recipe = Recipe(**_checked(Recipe(), data["recipe"]))
    return Plan(**_checked(Plan.suited(1000, 1), {**data, "recipe": recipe}))


def _history(data: Header) -> History:
    best = data["best_loss"]
    history = History(
        **{
            **_checked(History(), {**data, "best_loss": 0.0}),
            "best_loss": math.inf if best is None else float(best),
        }
    )
    if not len(history.step) == len(history.loss) or len(history.held_out) not in (0, len(history.step)):
        raise ValueError("history: expected columns of one length.")
    return history


def _log_z(data: Header) -> LogZ:
    stderr, ess = data["stderr"], data["ess"]
    return LogZ(
        float(data["value"]),
        math.nan if stderr is None else float(stderr),
        math.inf if ess is None else float(ess),
        str(data["method"]),
    )


def _checked(like: Any, data: Header) -> Header:
    """The fields of a dataclass, of the types that an example of it has."""
    name, known = type(like).__name__, {field.name for field in fields(like)}
    if set(data) != known:
        raise ValueError(f"{name}: expected {sorted(known)}; got {sorted(data)}.")
    for key, value in data.items():
        example = getattr(like, key)
        numbers = isinstance(example, float | None) and not isinstance(example, bool)
        kinds = (int, float, type(None)) if numbers else (type(example),)
        if isinstance(value, bool) != isinstance(example, bool) or not isinstance(value, kinds):
            raise ValueError(f"{name}: expected {key} like {example!r}; got {value!r}.")
    return data


def _plain(record: Mapping[str, Any]) -> Header:
    """Numbers that JSON has no word for as null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }


def _short(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, KeyError):
        text = f"{text} is not there."
    return text if len(text) < 400 else text[:400] + " …"
