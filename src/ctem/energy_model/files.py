"""An energy model in one file: a safetensors file whose JSON header has the space, the kernel, the rule and log Z.

Code is not saved: a network, base, kernel or rule of one's own is named in the header as "own", and given again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctem import __version__
from ctem.bases import FittedBase, ProductBase
from ctem.energies import MLP, LookupEnergy
from ctem.energy_model.defaults import RULES
from ctem.energy_model.network import Shaped
from ctem.energy_model.records import kernel_from, kernel_record, space_from, space_record
from ctem.partition import LogZ
from ctem.persistence.atomic import write_whole
from ctem.persistence.sealed import Format, Header, part, short
from ctem.tables.answers.density import find_device
from ctem.training import History, Recipe

__all__ = ["load", "save"]

ENERGY = Format("ctem energy", "an energy model", 1, "e")
PLAIN = ("scale", "comparisons", "draws", "validation_fraction", "folds", "random_state")


def save(model: Any, path: str | Path) -> None:
    """Write a fitted ``EnergyModel``, whole or not at all.

    >>> import tempfile, numpy as np
    >>> from ctem import Category, EnergyModel, Recipe, Space
    >>> X = np.random.default_rng(0).integers(2, size=(100, 1))
    >>> model = EnergyModel(Space([Category(2)]), recipe=Recipe(steps=5), random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(Path(folder) / "energy.safetensors")  # which calls this function
    ...     same = EnergyModel.load(Path(folder) / "energy.safetensors")
    >>> bool((same.log_prob(X) == model.log_prob(X)).all())
    True
    """
    tensors = {
        f"net.{k}.{name}": value
        for k, net in enumerate(model.nets_)
        for name, value in net.state_dict().items()
    }
    if isinstance(model.base_, ProductBase | FittedBase):
        tensors |= {f"base.{name}": value for name, value in model.base_.state_dict().items()}
    write_whole(path, ENERGY.content(_header(model), tensors), "save")


def load(cls: Any, path: str | Path, net: Any, base: Any, kernel: Any, rule: Any, device: str) -> Any:
    """The model of a file; what is "own" in it is taken from the arguments.

    >>> from ctem import EnergyModel
    >>> EnergyModel.load("absent.safetensors")  # which calls this function
    Traceback (most recent call last):
    ...
    FileNotFoundError: load: no file at absent.safetensors.
    """
    header, tensors = ENERGY.read(Path(path))
    try:
        return _rebuilt(cls, header, tensors, net, base, kernel, rule, device)
    except (KeyError, TypeError) as error:
        raise ValueError(f"load: {path} is not a whole energy model: {short(error)}") from None


def _header(model: Any) -> Header:
    kind = type(model.base)
    base = None if model.base is None else kind.__name__ if kind in (ProductBase, FittedBase) else "own"
    rule = next((name for name, known in RULES.items() if model.rule in (name, known)), "own")
    return {
        "ctem": __version__,
        "space": space_record(model.space),
        "arguments": {name: getattr(model, name) for name in PLAIN},
        "recipe": None if model.recipe is None else asdict(model.recipe),
        "rule": rule,
        "kernel": None if model.kernel is None else kernel_record(model.kernel),
        "fitted_kernel": None if model.kernel_ is None else kernel_record(model.kernel_),
        "base": base,
        "net": _net_record(model),
        "seed": model.seed_,
        "box": model.box_,
        "log_zs": [{k: _number(v) for k, v in log_z._asdict().items()} for log_z in model.log_zs_],
        "histories": [{k: _number(v) for k, v in asdict(h).items()} for h in model.histories_],
    }


def _net_record(model: Any) -> dict[str, Any]:
    inner = model.nets_[0].net
    if model.net is None or type(inner) is MLP:
        linear = [layer for layer in inner.layers if isinstance(layer, torch.nn.Linear)]
        given = model.net is not None
        return {"kind": "MLP", "width": linear[0].out_features, "depth": len(linear) - 1, "given": given}
    return {"kind": "LookupEnergy" if type(inner) is LookupEnergy else "own", "given": True}


def _number(value: Any) -> Any:
    """Infinity, which JSON has no word for, as a string."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _back(record: Mapping[str, Any]) -> dict[str, Any]:
    return {k: float(v) if v in ("inf", "-inf", "nan") else v for k, v in record.items()}


def _rebuilt(
    cls: Any,
    header: Header,
    tensors: dict[str, Tensor],
    net: Any,
    base: Any,
    kernel: Any,
    rule: Any,
    device: str,
) -> Any:
    space, place = space_from(header["space"]), find_device(device)
    net = _net(header["net"], space, net)
    base = _base(header["base"], space, tensors, base)
    model = cls(
        space,
        net=net if header["net"]["given"] else None,
        base=None if base is None else base.to(place) if isinstance(base, torch.nn.Module) else base,
        kernel=kernel if kernel is not None else _kernel(header["kernel"], space),
        rule=rule if rule is not None else header["rule"],
        recipe=None if header["recipe"] is None else Recipe(**header["recipe"]),
        device=device,
        **header["arguments"],
    )
    model.seed_, model.box_ = header["seed"], [(low, high) for low, high in header["box"]]
    model.kernel_ = kernel if kernel is not None else _kernel(header["fitted_kernel"], space)
    model.base_ = model.base
    if model.base is None:
        model.base_ = FittedBase(space)
        model.base_.load_state_dict(part(tensors, "base."))
        model.base_.to(place)
    model.log_zs_ = [LogZ(**_back(record)) for record in header["log_zs"]]
    model.histories_ = [History(**_back(record)) for record in header["histories"]]
    model.nets_ = []
    for k in range(len(model.log_zs_)):
        g = Shaped(space, net)
        try:
            g.load_state_dict(part(tensors, f"net.{k}."))
        except RuntimeError as error:
            raise ValueError(f"net: expected the network that was saved; {short(error)}") from None
        model.nets_.append(g.to(place).eval())
    model.device_ = place
    return model


def _net(record: Mapping[str, Any], space: Any, given: Any) -> Any:
    if given is not None:
        return given
    if record["kind"] == "MLP":
        return MLP(space, record["width"], record["depth"])
    if record["kind"] == "LookupEnergy":
        return LookupEnergy(space)
    raise ValueError(
        "net: this model has a network of its own, which a file does not hold; load(path, net=…)."
    )


def _base(name: str | None, space: Any, tensors: Mapping[str, Tensor], given: Any) -> Any:
    if name is None or given is not None:
        return given
    if name == "own":
        raise ValueError(
            "base: this model has a base of its own, which a file does not hold; load(path, base=…)."
        )
    base = ProductBase(space) if name == "ProductBase" else FittedBase(space)
    base.load_state_dict(part(tensors, "base."))
    return base


def _kernel(record: Mapping[str, Any] | None, space: Any) -> Any:
    return None if record is None else kernel_from(record, space)
