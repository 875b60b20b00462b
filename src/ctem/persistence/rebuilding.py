"""A model from a header and tensors; nothing is built before its sizes and types are checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ctem.bases import ProductBase
from ctem.clocknet import ClockNet
from ctem.density import Density
from ctem.energies import MLP, Tilted
from ctem.partition import LogZ
from ctem.persistence.reading import SLOPES, Header, read, short
from ctem.plain import PlainDensity
from ctem.plans import Networks, Plan
from ctem.residuals import MAX_SCORES
from ctem.spaces import Space
from ctem.table.answers import find_device
from ctem.table.frames import Kind
from ctem.table.schema import Schema
from ctem.training import History, Recipe

if TYPE_CHECKING:
    from ctem.estimator import CTEM

__all__ = ["load"]

SETTINGS = {"columns", "max_steps", "max_time", "missing", "objective", "orders", "plan", "random_state"}


def load(cls: type[CTEM], path: str | Path, device: str = "auto") -> CTEM:
    """The model in a file; a truncated, foreign or malicious one gives one ValueError and runs nothing.

    >>> from ctem.estimator import CTEM
    >>> load(CTEM, "absent.ctem")
    Traceback (most recent call last):
    ...
    FileNotFoundError: load: no file at absent.ctem.
    """
    header, tensors = read(Path(path))
    try:
        return _rebuilt(cls, header, tensors, device)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        raise ValueError(f"load: {path} is not a whole ctem model: {short(error)}") from None


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
    level, device = _checked_level(header["level"]), find_device(model.device)
    _check_tensors(tensors)
    if model.objective == "plain":
        f = _plain_net(model.schema_.space, header["network"], tensors)
        return PlainDensity(f.to(device), plan, history, log_z, model.seed_)
    space, shape, parents = model.schema_.space, header["network"], model.schema_.parents
    of_slopes = {name.removeprefix(SLOPES): v for name, v in tensors.items() if name.startswith(SLOPES)}
    told = header["slopes"]
    if not (plan.slopes is None) == (told is None) == (not of_slopes):
        raise ValueError(f"plan: expected slopes as there are tensors of them; got {plan.slopes}.")
    own = {name: value for name, value in tensors.items() if not name.startswith(SLOPES)}
    net = _clock_net(space, shape, own).to(device)
    if not of_slopes:
        return Density(net, level, plan, history, log_z, model.seed_, parents)
    shared = {name: value for name, value in own.items() if name in ("base.log_table", "correlation")}
    slopes = _clock_net(space, told["network"], {**shared, **of_slopes}, slopes=True).to(device)
    fine, orders = _checked_level(told["level"]), told["orders"]
    if orders is not None:
        _check_orders(orders, slopes.members, space.dim, parents)
    return Density(net, level, plan, history, log_z, model.seed_, parents, slopes, fine, orders)


def _check_orders(orders: Any, members: int, dim: int, parents: Mapping[int, int]) -> None:
    every = [order for own in orders for order in own]
    fine = (
        len(orders) == members and all(orders) and all(sorted(order) == list(range(dim)) for order in every)
    )
    fine &= all(o.index(parent) < o.index(child) for o in every for child, parent in parents.items())
    if not fine:
        raise ValueError(f"orders: expected some of {dim} columns for each of {members} members.")


def _checked_level(value: Any) -> float:
    level = float(value)
    if not 0 <= level < 1:
        raise ValueError(f"level: expected a number in [0, 1); got {level}.")
    return level


def _check_tensors(tensors: Mapping[str, Tensor]) -> None:
    for name, value in tensors.items():
        padded = name.endswith("log_table")  # −inf where a column has fewer values than another
        fine = value.dtype == torch.float32 and bool((value.isfinite() | (padded & (value < 0))).all())
        if not fine:
            raise ValueError(f"tensor {name!r}: expected finite float32 numbers; got {value.dtype}.")


def _clock_net(space: Space, options: Header, tensors: dict[str, Tensor], slopes: bool = False) -> ClockNet:
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
    net = ClockNet(_base(space, tensors["base.log_table"]), **options, correlation=correlation, slopes=slopes)
    if correlation is not None:
        _check_correlation(correlation, len(net.scores))
    net.load_state_dict(tensors)
    return net


def _check_correlation(c: Tensor, scores: int) -> None:
    if c.shape != (scores, scores) or scores > MAX_SCORES:
        raise ValueError(
            f"correlation: expected one of {scores} scores, at most {MAX_SCORES}; got shape {tuple(c.shape)}."
        )
    unit = torch.allclose(c, c.T, atol=1e-5) and torch.allclose(c.diagonal(), torch.ones(scores), atol=1e-4)
    if not unit or not float(torch.linalg.eigvalsh(c.double()).min()) > 0:
        raise ValueError("correlation: expected a symmetric, positive matrix with ones on its diagonal.")


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
    plan, slopes = Plan.suited(1000, 1), data["slopes"]
    rest = {key: value for key, value in data.items() if key != "slopes"}
    known = _checked(replace(plan, slopes=None), {**rest, "recipe": _recipe(rest), "slopes": None})
    if slopes is None:
        return Plan(**known)
    like = Networks(width=1, blocks=1, members=1, recipe=plan.recipe)
    return Plan(**{**known, "slopes": Networks(**_checked(like, {**slopes, "recipe": _recipe(slopes)}))})


def _recipe(data: Header) -> Recipe:
    return Recipe(**_checked(Recipe(), data["recipe"]))


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
