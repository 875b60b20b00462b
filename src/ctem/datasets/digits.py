"""MNIST, grey and binarised."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctem.datasets.bits import Splits
from ctem.datasets.downloads import BENCHMARKS, check, read, root

__all__ = ["Digits", "load_binarized_mnist", "load_mnist"]

_IDX_SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist"
_IDX = {  # SHA-256 of the file, and of its .gz
    "train-images-idx3-ubyte": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    "train-labels-idx1-ubyte": (
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    "t10k-images-idx3-ubyte": (
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "t10k-labels-idx1-ubyte": (
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
}
_BINARIZED = (  # SHA-256 of the train, valid and test text
    "ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d",
    "1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2",
    "e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c",
)


class Digits(NamedTuple):
    """Grey images of digits, one per row, and what they show.

    >>> one = np.zeros((1, 784), np.uint8)
    >>> Digits(one, np.array([7]), one, np.array([2])).test_labels
    array([2])
    """

    train: NDArray[np.uint8]  # (n, 784), 0 … 255
    train_labels: NDArray[np.int64]
    test: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


def load_mnist(folder: str | Path | None = None) -> Digits:
    """MNIST: 60 000 and 10 000 grey images of 28 × 28 pixels, row by row (LeCun, Cortes & Burges).

    Arguments:
        folder: holds mnist/train-images-idx3-ubyte (or .gz) and so on; by default as in ``load_binary``.

    >>> load_mnist().train.shape  # doctest: +SKIP
    (60000, 784)
    """
    files = [
        _idx(name, read(root(folder) / "mnist" / name, f"{_IDX_SOURCE}/{name}.gz", *checksums))
        for name, checksums in _IDX.items()
    ]
    return Digits(files[0], files[1].astype(np.int64), files[2], files[3].astype(np.int64))


def load_binarized_mnist(folder: str | Path | None = None) -> Splits:
    """MNIST binarised once and for all, 50 000, 10 000 and 10 000 rows of 784 bits (Salakhutdinov & Murray 2008).

    The benchmark of likelihoods on bits: every pixel was drawn with its grey value as probability.

    Arguments:
        folder: holds binarized_mnist/binarized_mnist.npz, or binarized_mnist.train.data (or .data.gz) and so on; by
            default as in ``load_binary``.

    >>> load_binarized_mnist().test.shape  # doctest: +SKIP
    (10000, 784)
    """
    place = root(folder) / "binarized_mnist"
    packed = place / "binarized_mnist.npz"
    parts = _bits_of_npz(packed) if packed.exists() else _bits_of_texts(place)
    return Splits(*parts)


def _bits_of_npz(path: Path) -> list[NDArray[np.uint8]]:
    """The arrays of an npz file, checked by the text that they would be."""
    parts = []
    with np.load(path, allow_pickle=False) as file:
        for split, checksum in zip(Splits._fields, _BINARIZED, strict=True):
            bits = file[split].astype(np.uint8)
            text = np.full((len(bits), 2 * bits.shape[1]), ord(" "), np.uint8)
            text[:, ::2], text[:, -1] = bits + ord("0"), ord("\n")
            check(f"{path.name}, {split}", text.tobytes(), checksum)
            parts.append(bits)
    return parts


def _bits_of_texts(place: Path) -> list[NDArray[np.uint8]]:
    """The arrays of the three texts, one row a line, one character and a blank a bit."""
    parts = []
    for split, checksum in zip(Splits._fields, _BINARIZED, strict=True):
        name = f"binarized_mnist.{split}.data"
        text = np.frombuffer(read(place / name, f"{BENCHMARKS}/binarized_mnist/{name}", checksum), np.uint8)
        width = int((text == ord("\n")).argmax()) + 1
        parts.append(text.reshape(-1, width)[:, ::2] - np.uint8(ord("0")))
    return parts


def _idx(name: str, content: bytes) -> NDArray[np.uint8]:
    """An idx file of bytes: two zeros, the type 8, the number of axes, their lengths, the numbers."""
    head = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:head], ">u4").astype(int)
    if content[:3] != b"\0\0\x08" or len(content) != head + shape.prod():
        raise ValueError(f"{name}: expected an idx file of bytes; got one that begins with {content[:4]!r}.")
    numbers = np.frombuffer(content, np.uint8, offset=head)
    return numbers.reshape(shape[0], -1) if len(shape) > 1 else numbers
