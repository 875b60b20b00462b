"""A model from a header and tensors; nothing is built before its sizes and types are checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctem.bases import ProductBase
from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.anyorder.inputs import Inputs
from ctem.densities.anyorder.network import AnyOrderNet
from ctem.densities.anyorder.settings import Settings
from ctem.densities.anyorder.tails import outermost
from ctem.densities.anyorder.ties import Ties
from ctem.densities.anyorder.worth import NEVER, Worth
from ctem.densities.residuals import MAX_SCORES
from ctem.fitting.arguments import KEPT, check_arguments
from ctem.partition import LogZ
from ctem.persistence.models.classes import rebuilt_classes
from ctem.persistence.models.consistency import (
    LARGEST,
    MOST_DRAWS,
    check_as_written,
    check_columns,
    check_held_out,
    check_rules,
    check_sizes,
    number,
)
from ctem.persistence.models.energies import rebuilt_energy
from ctem.persistence.models.fitted import Fitted, Origin
from ctem.persistence.models.writing import tensors_of
from ctem.persistence.sealed import MODEL, Header, part, short
from ctem.spaces import Real, Space
from ctem.tables.answers.density import find_device, in_float32
from ctem.tables.answers.heldout import HeldOut
from ctem.tables.answers.missingness import GapNet, Missingness, space_with_flags
from ctem.tables.io.frame import TableType
from ctem.tables.schema import Schema
from ctem.training import History

__all__ = ["load"]

SETTINGS = {*KEPT, "columns", "random_state"}
MOST_ORDERS = 1000  # a small file cannot ask for much work
LARGEST_SIZE = 2**31  # of a network, whose tensors have to be as large
NETWORK: dict[str, tuple[float, float]] = {
    "width": (1, LARGEST_SIZE),
    "blocks": (1, LARGEST_SIZE),
    "members": (1, LARGEST_SIZE),
    "harmonics": (0, 64),
    "dropout": (0.0, 0.999999),
}
LONGEST_NAME = 99  # characters of a method of log Z
TINIEST = 1e-30  # nats or share that is not 0
LEAST_SHARE = 2.0**-25  # that a network can be believed by: an interval is halved 24 times to find it
FINEST_LEVEL = 1e-7  # of real columns: the finer, the more nodes a column is resolved into
VAST = 1e300  # of a history, whose whole numbers may have any number of digits in a file


def load(path: str | Path, device: str = "auto") -> Fitted:
    """What a file holds; a truncated, foreign or malicious one gives one ValueError and runs nothing.

    >>> load("absent.ctem")
    Traceback (most recent call last):
    ...
    FileNotFoundError: load: no file at absent.ctem.
    """
    header, tensors = MODEL.read(Path(path))
    try:
        with in_float32():
            return _rebuilt(header, tensors, device)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        raise ValueError(f"load: {path} is not a whole ctem model: {short(error)}") from None


def _rebuilt(header: Header, tensors: dict[str, Tensor], device: str) -> Fitted:
    arguments = dict(header["settings"])
    if set(arguments) != SETTINGS:
        raise ValueError(f"settings: expected {sorted(SETTINGS)}; got {sorted(arguments)}.")
    arguments["kinds"] = _requested_kinds(arguments.pop("columns"))
    check_arguments(arguments)
    if arguments["missing"] not in ("hidden", "state") or not isinstance(header["named"], bool):
        raise ValueError("settings: expected missing='hidden' or 'state', and named true or false.")
    table_type, schema = TableType.from_json(header["kind"]), Schema.from_json(header["schema"])
    if tuple(schema.columns) != table_type.names:
        raise ValueError("kind and schema: expected the same columns in both.")
    check_as_written("kind", header["kind"], table_type.to_json())
    check_as_written("schema", header["schema"], schema.to_json())
    check_columns(table_type, schema, arguments["kinds"])
    settings = Settings(**_checked(Settings(), header["trained"]))
    origin = _origin(header["provenance"])
    check_rules(schema, origin.rows)
    _check_tensors(tensors)
    base = _base(schema.space, tensors["base.log_table"]).to(find_device(device))
    density = _any_order(schema, base, header, tensors)
    held_out = HeldOut.from_json(header["held_out"])
    check_as_written("held_out", header["held_out"], held_out.to_json())
    check_held_out(held_out, density.net.members)
    holes = _missingness(schema, header["missingness"], tensors)
    about = table_type, bool(header["named"]), schema, settings
    fitted = Fitted(arguments, *about, density, origin, held_out, holes)
    if set(tensors) != (expected := set(tensors_of(fitted))):
        raise ValueError(
            f"tensors: expected those of the model alone; got also {sorted(set(tensors) - expected)[:3]}."
        )
    return fitted


def _requested_kinds(record: Header | None) -> dict[str, Any] | None:
    """The requested kinds: names of kinds, or the ends of a real column."""
    if record is None:
        return None
    return {name: kind if isinstance(kind, str) else _bounded(kind) for name, kind in record.items()}


def _bounded(ends: Header) -> Real:
    low, high = (None if ends[key] is None else float(ends[key]) for key in ("low", "high"))
    return Real(low=low, high=high)


def _origin(record: Header) -> Origin:
    independent = float(record["metrics"]["baseline"])
    if (
        not math.isfinite(independent)
        or not 0 <= int(record["seed"]) < 2**64
        or not 2 <= int(record["rows"]) < 2**64
    ):
        raise ValueError(f"provenance: expected a seed, rows ≥ 2 and a baseline; got {record}.")
    return Origin(int(record["seed"]), int(record["rows"]), str(record["data_sha256"]), independent)


def _any_order(
    schema: Schema, base: ProductBase, header: Header, tensors: dict[str, Tensor]
) -> AnyOrderDensity:
    record, dim, parents = header["density"], schema.space.dim, schema.parents
    net = _any_order_net(base, record["network"], tensors, schema.ties)
    net.believe(_worth(record["worth"], net))
    net.classes = rebuilt_classes(base, net.members, record["classes"], part(tensors, "classes."))
    if not 1 <= len(record["orders"]) <= MOST_ORDERS:
        raise ValueError(f"orders: expected 1 to {MOST_ORDERS}; got {len(record['orders'])}.")
    orders = [list(order) for order in record["orders"]]
    _check_orders(orders, dim, parents)
    late = [float(value) for value in record["late"]]
    if len(late) != dim or not all(0 <= value <= 1 for value in late):
        raise ValueError(f"late: expected a share for each of {dim} columns.")
    level, history = _checked_level(record["level"]), _history(header["history"])
    about: dict[str, Any] = {"parents": parents, "late": late, "rules": schema.keeper}
    plain = AnyOrderDensity(net, level, orders, **about, history=history)
    return rebuilt_energy(plain, schema, record["energy"], part(tensors, "energy."), _log_z)


def _worth(record: Header, net: AnyOrderNet) -> Worth:
    """How far each column is believed."""
    dim, tied = net.space.dim, [] if net.ties is None else net.ties.used
    nats = _numbers_of(record["nats"], dim, LARGEST)
    heard = tuple(record["heard"])
    if len(heard) != dim or not all(type(each) is bool for each in heard) or not all(heard[j] for j in tied):
        raise ValueError(f"worth: expected true or false for each of {dim} columns, and true for tied ones.")
    reach = number("reach", record["reach"], outermost(0), NEVER)
    shares = _numbers_of(record["share"], dim, 1.0)
    if any(0 < share < LEAST_SHARE for share in shares):
        raise ValueError(f"worth: expected shares of 0, or from {LEAST_SHARE:g} to 1.")
    return Worth(shares, heard, nats, reach)


def _numbers_of(values: list[Any], count: int, most: float) -> tuple[float, ...]:
    if len(values) != count:
        raise ValueError(f"worth: expected {count} numbers; got {len(values)}.")
    if any(0 < value < TINIEST for value in values):
        raise ValueError("worth: expected 0, or more than what chance makes of it.")
    return tuple(number("worth", value, 0, most) for value in values)


def _missingness(
    schema: Schema, groups: list[list[str]] | None, tensors: dict[str, Tensor]
) -> Missingness | None:
    """Where cells are missing; every column in one group at most, and a network of the sizes of its tensors."""
    if groups is None:
        return None
    names, weights = [name for group in groups for name in group], part(tensors, "gaps.")
    known = [name for name in schema.columns if name not in schema.left_out]
    if not groups or not all(groups) or len(set(names)) < len(names) or not set(names) <= set(known):
        raise ValueError("missingness: expected groups of columns, each column once.")
    base = _base(space_with_flags(schema, groups), weights.pop("log_table"))
    inputs, width = weights["first"].shape
    if inputs != Inputs(base).size:  # before anything of that size is made
        raise ValueError(f"missingness: expected {Inputs(base).size} inputs; got {inputs}.")
    net = GapNet(base, len(groups), width)
    _load(net, weights)
    return Missingness(schema, tuple(map(tuple, groups)), net)


def _check_orders(orders: list[list[Any]], dim: int, parents: Mapping[int, int]) -> None:
    fine = True
    for order in orders:
        fine &= all(type(j) is int for j in order) and sorted(order) == list(range(dim))
        fine &= all(order.index(parent) < order.index(child) for child, parent in parents.items())
    if not fine:
        raise ValueError(f"orders: expected orders of {dim} columns.")


def _checked_level(value: Any) -> float:
    level = float(value)
    if not FINEST_LEVEL <= level < 1:
        raise ValueError(f"level: expected a number in [{FINEST_LEVEL}, 1); got {level}.")
    return level


def _check_tensors(tensors: Mapping[str, Tensor]) -> None:
    for name, value in tensors.items():
        if name.startswith("energy."):
            continue  # of several types: ``rebuilt_energy`` checks them
        padded = name.endswith("log_table")  # −inf where a column has fewer values than another
        fine = value.dtype == torch.float32 and bool((value.isfinite() | (padded & (value < 0))).all())
        if not fine:
            raise ValueError(f"tensor {name!r}: expected finite float32 numbers; got {value.dtype}.")


def _any_order_net(
    base: ProductBase, options: Header, tensors: dict[str, Tensor], ties: Ties | None
) -> AnyOrderNet:
    """The network, after a check that its sizes are those of the tensors: a small file cannot ask for much memory."""
    check_sizes("network", options, NETWORK)
    if 0 < options["dropout"] < LEAST_SHARE:
        raise ValueError(f"network: expected dropout of 0, or above {LEAST_SHARE:g}; got {options}.")
    weights = part(tensors, "net.")
    members, inputs, width = weights["first.weight"].shape
    blocks = len({name.split(".")[1] for name in weights if name.startswith("body.")})
    sizes = {"members": members, "width": width, "blocks": blocks}
    if any(options[key] != size for key, size in sizes.items()) or options["harmonics"] > inputs:
        raise ValueError(f"network: expected the sizes of its tensors, {sizes}; got {options}.")
    values = sum(base.space.sizes)  # each has an indicator among the inputs
    least = members * (width * max(inputs, values // 2) + blocks * width**2)
    if sum(tensor.numel() for tensor in weights.values()) < least:
        raise ValueError(f"network: expected at least {least} numbers in tensors, for {sizes}.")
    correlation = tensors.get("correlation")
    if correlation is not None:
        scores = len(base.space.reals) + sum(base.space.sizes[j] > 2 for j in base.space.ordinals)
        _check_correlation(correlation, scores)
        correlation = correlation.to(base.log_table.device)
    net = AnyOrderNet(base, **options, correlation=correlation, ties=ties)
    _load(net, weights)
    return net


def _load(net: torch.nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """The parameters, all of them and no others; buffers are made anew from the base."""
    expected = dict(net.named_parameters())
    if set(expected) != set(tensors):
        raise ValueError(f"network: expected tensors {sorted(expected)}; got {sorted(tensors)}.")
    with torch.no_grad():
        for name, value in tensors.items():
            if expected[name].shape != value.shape:
                raise ValueError(f"tensor {name!r}: expected shape {tuple(expected[name].shape)}.")
            expected[name].copy_(value)


def _check_correlation(c: Tensor, scores: int) -> None:
    if c.shape != (scores, scores) or not 2 <= scores <= MAX_SCORES:
        raise ValueError(f"correlation: expected one of {scores} scores; got shape {tuple(c.shape)}.")
    unit = torch.allclose(c, c.T, atol=1e-5) and torch.allclose(c.diagonal(), torch.ones(len(c)), atol=1e-4)
    if not unit or not float(torch.linalg.eigvalsh(c.double()).min()) > 0:
        raise ValueError("correlation: expected a symmetric, positive matrix with ones on its diagonal.")


def _base(space: Space, log_table: Tensor) -> ProductBase:
    """The base with exactly this table: features of the network are made from it."""
    sizes = [space.sizes[j] for j in space.discretes]
    if log_table.shape != (max(len(sizes), 1), max(sizes, default=1)):
        raise ValueError(
            f"base: expected a table for columns of {sizes} values; got {tuple(log_table.shape)}."
        )
    base = ProductBase(space)
    total = log_table[: len(sizes)].double().exp().sum(1)
    whole = bool((log_table.isfinite() == base.log_table.isfinite()).all())
    if not whole or not bool(((total - 1).abs() < 1e-3).all()):
        raise ValueError("base: expected a probability > 0 for every value of every column, 1 in all.")
    base.load_state_dict({"log_table": log_table})
    return base


def _history(data: Header) -> History:
    record = _checked(History(), {**data, "best_loss": 0.0})
    best = math.inf if data["best_loss"] is None else float(data["best_loss"])
    history = History(**{**record, "best_loss": best})
    columns = history.step, history.loss, history.held_out
    if not len(history.step) == len(history.loss) or len(history.held_out) not in (0, len(history.step)):
        raise ValueError("history: expected columns of one length.")
    told = [value for column in columns for value in column] + [history.best_step, history.seconds]
    if not all(type(value) in (int, float) and abs(value) < VAST for value in told):
        raise ValueError(f"history: expected numbers up to {VAST:g}.")
    return history


def _log_z(data: Header) -> LogZ:
    stderr, ess = data["stderr"], data["ess"]
    if not isinstance(data["method"], str) or len(data["method"]) > LONGEST_NAME:
        raise ValueError(f"log_z: expected the name of a method; got {data['method']!r:.40}.")
    return LogZ(
        number("log_z.value", data["value"], -LARGEST, LARGEST),
        math.nan if stderr is None else number("log_z.stderr", stderr, 0, LARGEST),
        math.inf if ess is None else number("log_z.ess", ess, 0.999, MOST_DRAWS),
        data["method"],
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
