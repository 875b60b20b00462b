"""Model files as their parts, and files made of parts whose checksum is right whatever they hold."""

import json
from functools import reduce

from safetensors import safe_open
from safetensors.torch import save_file

from ctem.persistence.sealed import digest

EVIL = (
    10**12,
    -1,
    1e308,
    1e-300,
    float("nan"),
    float("inf"),
    "x",
    None,
    [],
    {},
    True,
    [0] * 5,
    10**400,
    "A" * 10**5,
)


def parts(path):
    """Tensors and metadata of a file."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def write(path, tensors, metadata, header):
    """A file whose hash is right."""
    text = json.dumps(header)
    signed = {"model": text, "sha256": digest(text, tensors, metadata["version"])}
    save_file(tensors, path, {**metadata, **signed})


def crafted(whole, path, change):
    """A file with another header, other tensors or another version: ``change`` gets all, and may return a header."""
    tensors, metadata = parts(whole)
    header = json.loads(metadata["model"])
    changed = change(header, tensors, metadata)
    write(path, tensors, metadata, changed if isinstance(changed, dict) else header)


def places_in(header, at=()):
    """Paths to every value in a header: of a list of numbers or words the first and the last."""
    yield at
    if isinstance(header, dict):
        for key, value in header.items():
            yield from places_in(value, (*at, key))
    elif isinstance(header, list) and header:
        parts = isinstance(header[0], dict)
        for i in range(len(header)) if parts else sorted({0, len(header) - 1}):
            yield from places_in(header[i], (*at, i))


def put(header, place, value):
    """Another value at a place of a header."""
    reduce(lambda part, key: part[key], place[:-1], header)[place[-1]] = value
