"""The binary density-estimation benchmarks."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctem.datasets.downloads import BENCHMARKS, read, root

__all__ = ["BINARY", "Splits", "load_binary"]

BINARY: dict[str, tuple[str, str, str]] = {  # SHA-256 of the train, valid and test file
    "bnetflix": (
        "73c87cf0635ec734cc0726a5c644b904ff33e81ea51f1049db0e77b787ebad7c",
        "7f0a3e597c6f305f707f9ecd2b2aa523c576cdb17fdc5d902fc832ebea5163de",
        "af73990782fd2f146d96059855c4f3bbb6a7a7caefc417ff620a3ed1415a2395",
    ),
    "book": (
        "e2458d1db3b9f2ad74a4034dee19c72213d20bd246a51750ef728041e130b6a7",
        "a111d7a024f88b062c60431306ad521dec64ec6cc2a2bca10503da647d1f0aaf",
        "94e7ec33fe7a84b4a92f248d8f0c0e35143f3cd56f5a609f4311c38218e420b9",
    ),
    "kdd": (
        "8d26e8e5baf164df3315bf33861e53052457200a9a57834eae027d84c6e28c12",
        "582aae9cf84785758869328d44295428395c53e5a091855ca0bf141a53c70765",
        "5cc76212353d13ffc98574c29c14b4b7b7363081acc3a76214e5ff2a5baa79b2",
    ),
    "kosarek": (
        "31ca93de99cf823c22fb207a81043834c887e52b71d86c586a4939be16a2206a",
        "5a4a5edc60b9c30a76b44fdc2978e976fec49c1544e850fe72a73ee60f760aa4",
        "c54cb99ae56399e26005daba5d56d92d215f73fbb46ce75b9a919690b2990225",
    ),
    "msnbc": (
        "92b1f4ed42ef87dafd6fe57c2e5c3b3dbc565157d2bc994a9b423898cd656e5e",
        "b937466c3e09b956b271438b2ff45ca4dc8b91890c9de6d02e486b0e22bf4e27",
        "60ff71cc017cfde0bd84f0cd383ccd29065f5c06a64404b77d28c4b26aa1aca5",
    ),
    "nltcs": (
        "e547a7aedad1dd2f7177030881ab1b92c7e24ae5464c71a0f1f89daecaf52b30",
        "93bbbf5c6febdc9bc6e5b5bfab636f4dc0685ab2896d24b23dd267794c3bfcf6",
        "f9ffa6b74b27dc03bee3203d157ee31079e80b13be40d0c0093d635c25aed523",
    ),
    "plants": (
        "1fb1219ff94068d12a563f9e81f8889a1885f41e867884cff608669300c6848f",
        "47834ed318b2d74f48e4b083226ef47fd446d41986012ceae19d230574821b34",
        "95f53c033cd1d86467aec2610dc5bfe014534206c2da4919f73bcab246ab8755",
    ),
    "tmovie": (
        "f76927e1b763487af99baa07e8de8e4641595cbdd57eb2ccddfff2ce5c33cb59",
        "5162bf6ba0cd3d94d5107a48f7a3be4c6f0ca2cc99ef9a2273fa5bb1787cf257",
        "805e27d91fb2bff00d0183a3e941721bf93050efdd45b77ffd79d4bb906168d6",
    ),
}


class Splits(NamedTuple):
    """Rows for training, choosing and testing.

    >>> Splits(np.zeros((2, 1)), np.zeros((1, 1)), np.zeros((1, 1))).train.shape
    (2, 1)
    """

    train: NDArray[Any]
    valid: NDArray[Any]
    test: NDArray[Any]


def load_binary(name: str, folder: str | Path | None = None) -> Splits:
    """One of the binary density-estimation benchmarks, 0/1 rows (n, d); cite the original papers.

    Arguments:
        name: a key of ``BINARY``.
        folder: holds debd/NAME/NAME.train.data (or .data.gz) and so on; by default $CTEM_DATA, else ~/.cache/ctem,
            into which missing files are downloaded.

    >>> load_binary("mnist")
    Traceback (most recent call last):
    ...
    ValueError: name: expected one of bnetflix, book, kdd, kosarek, msnbc, nltcs, plants, tmovie; got 'mnist'.
    """
    if name not in BINARY:
        raise ValueError(f"name: expected one of {', '.join(BINARY)}; got {name!r}.")
    place, parts = root(folder) / "debd" / name, []
    for split, checksum in zip(Splits._fields, BINARY[name], strict=True):
        file = f"{name}.{split}.data"
        text = read(place / file, f"{BENCHMARKS}/{name}/{file}", checksum)
        parts.append(np.loadtxt(io.BytesIO(text), delimiter=",", ndmin=2))
    return Splits(*parts)
