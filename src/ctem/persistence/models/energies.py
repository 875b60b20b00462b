"""The energy of a tilted density from a header and tensors; every array is checked before it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.tilted import Energy, Networks, TiltedDensity, Trees
from ctem.partition import LogZ
from ctem.persistence.models.consistency import check_sizes, number
from ctem.persistence.sealed import part
from ctem.tables.schema import Schema

__all__ = ["rebuilt_energy"]

MOST_ROUNDS = 20
MOST_TREES = 20_000  # of a round
NETWORKS = "networks."
NETWORK = {"members": (1, 100), "width": (1, 4096), "depth": (1, 20)}
FARTHEST = 1e4  # nats of anything here
FIELDS = {"biases", "partial", "log_z", "ceiling", "gain", "stderr", "networks", "margins"}


def rebuilt_energy(
    plain: AnyOrderDensity,
    schema: Schema,
    header: Mapping[str, Any] | None,
    tensors: Mapping[str, Tensor],
    log_z: Callable[[Any], LogZ],
) -> AnyOrderDensity:
    """The density with the energy that a file holds beside it; the density itself if there is none.

    Arguments:
        plain: the density of the networks.
        schema: the columns.
        header: the record of the energy that ``persistence.models.writing`` made.
        tensors: those whose names began with "energy.", without that.
        log_z: reads the record of a constant.

    >>> from ctem.bases import ProductBase
    >>> from ctem.densities.anyorder.network import AnyOrderNet
    >>> from ctem.spaces import Category, Space
    >>> plain = AnyOrderDensity(AnyOrderNet(ProductBase(Space([Category(2)])), width=8), 1e-3, [[0]])
    >>> rebuilt_energy(plain, None, None, {}, LogZ) is plain
    True
    """
    if header is None:
        return plain
    if set(header) != FIELDS or not 0 <= len(header["biases"]) <= MOST_ROUNDS:
        raise ValueError(f"energy: expected {sorted(FIELDS)} and at most {MOST_ROUNDS} rounds.")
    biases = [*header["biases"], header["partial"]]
    if header["margins"] is not None:
        biases.append(header["margins"])
    arrays: list[dict[str, Tensor]] = [{} for _ in biases]
    networks = _networks(header["networks"], schema, tensors)
    for name, tensor in tensors.items():
        if name.startswith(NETWORKS) and networks is not None:
            continue
        place, _, field = name.partition(".")
        if not (place.isascii() and place.isdigit()) or int(place) >= len(arrays):
            raise ValueError(f"energy: expected arrays of {len(arrays)} sums of trees; got {name!r:.40}.")
        arrays[int(place)][field] = tensor
    if any(len(array.get("value", ())) > MOST_TREES for array in arrays):
        raise ValueError(f"energy: expected at most {MOST_TREES} trees in a round.")
    sums = [
        Trees.of_tensors(array, schema.unordered, number("energy.bias", bias, -FARTHEST, FARTHEST))
        for array, bias in zip(arrays, biases, strict=True)
    ]
    margins = None if header["margins"] is None else sums.pop()
    *rounds, partial = sums
    energy = Energy(
        rounds=tuple(rounds),
        partial=partial,
        log_z=log_z(header["log_z"]),
        ceiling=number("energy.ceiling", header["ceiling"], 0, 10),
        gain=number("energy.gain", header["gain"], 0, FARTHEST),
        stderr=number("energy.stderr", header["stderr"], 0, FARTHEST),
        atoms=schema.atoms,
        parents=schema.parents,
        networks=networks,
        margins=margins,
    )
    return TiltedDensity(plain, energy, schema.snapped)


def _networks(
    options: Mapping[str, Any] | None, schema: Schema, tensors: Mapping[str, Tensor]
) -> Networks | None:
    """The networks of an energy, if it has any."""
    if options is None:
        return None
    check_sizes("energy.networks", options, NETWORK)
    return Networks.of_tensors(part(tensors, NETWORKS), schema.unordered, options)
