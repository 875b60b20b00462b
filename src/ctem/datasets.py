"""Loaders for public data: penguins, which come with the package; benchmarks, from a folder, from $CTEM_DATA, or
downloaded once with a checksum.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib
import importlib.resources
import importlib.util
import io
import os
import urllib.request
import zipfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BINARY",
    "TABLES",
    "Digits",
    "Splits",
    "TableFile",
    "load_binarized_mnist",
    "load_binary",
    "load_mnist",
    "load_penguins",
    "load_table",
]

_SOURCE = "https://raw.githubusercontent.com/UCLA-StarAI/Density-Estimation-Datasets/master/datasets"

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
    root, parts = _root(folder), []
    for split, checksum in zip(Splits._fields, BINARY[name], strict=True):
        text = _read(
            root / "debd" / name / f"{name}.{split}.data", f"{_SOURCE}/{name}/{name}.{split}.data", checksum
        )
        parts.append(np.loadtxt(io.BytesIO(text), delimiter=",", ndmin=2))
    return Splits(*parts)


_IDX_SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist"
_IDX = {  # SHA-256 of the unpacked file
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
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
        _idx(name, _read(_root(folder) / "mnist" / name, f"{_IDX_SOURCE}/{name}.gz", checksum))
        for name, checksum in _IDX.items()
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
    place = _root(folder) / "binarized_mnist"
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
            _check(f"{path.name}, {split}", text.tobytes(), checksum)
            parts.append(bits)
    return parts


def _bits_of_texts(place: Path) -> list[NDArray[np.uint8]]:
    """The arrays of the three texts, one row a line, one character and a blank a bit."""
    parts = []
    for split, checksum in zip(Splits._fields, _BINARIZED, strict=True):
        name = f"binarized_mnist.{split}.data"
        text = np.frombuffer(_read(place / name, f"{_SOURCE}/binarized_mnist/{name}", checksum), np.uint8)
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


class TableFile(NamedTuple):
    """Where a table is kept, what it should be, and how its text is read.

    Arguments:
        path: below the folder's tables/.
        source: public address; after a # the member of a zip file.
        checksum: SHA-256 of the text.
        names: of the columns, for a file without a header.
        missing: how a missing cell is written; None if there is none.
        separator: between cells.
        levels: of ordered columns, from low to high.

    >>> TABLES["abalone"].names[-1]
    'rings'
    """

    path: str
    source: str
    checksum: str
    names: tuple[str, ...] = ()
    missing: str | None = None
    separator: str = ","
    levels: dict[str, tuple[str, ...]] = {}  # noqa: RUF012  read only


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_BROWNLEE = "https://raw.githubusercontent.com/jbrownlee/Datasets/master"  # UCI's rows, with commas
_ADULT = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
    "income",
)
_ABALONE = (
    *("sex", "length", "diameter", "height", "whole_weight", "shucked_weight", "viscera_weight"),
    *("shell_weight", "rings"),
)
_GERMAN = (
    *("status", "duration", "history", "purpose", "amount", "savings", "employment", "rate", "personal"),
    *("debtors", "residence", "property", "age", "plans", "housing", "credits", "job", "dependents"),
    *("telephone", "foreign", "class"),
)

TABLES: dict[str, TableFile] = {
    "abalone": TableFile(
        "abalone/abalone.data",
        f"{_BROWNLEE}/abalone.csv",
        "eb2de13be807e9bb9ec4128b9c89b98ab23d7739121cfd17b7dde69b46ba7bf6",
        _ABALONE,
    ),
    "adult": TableFile(
        "adult/adult.data",
        f"{_UCI}/adult/adult.data",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        _ADULT,
        missing="?",
    ),
    "adult-test": TableFile(
        "adult/adult.test",
        f"{_UCI}/adult/adult.test",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        _ADULT,
        missing="?",
    ),
    "bank": TableFile(
        "bank/bank-full.csv",
        f"{_UCI}/00222/bank.zip#bank-full.csv",
        "d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d",
        separator=";",
    ),
    "california": TableFile(
        "california/housing.csv",
        "https://raw.githubusercontent.com/ageron/handson-ml2/master/datasets/housing/housing.csv",
        "8a3727f4cf54ac1a327f69b1d5b4db54c5834ea81c6e4efc0d163300022a685e",
        missing="",
    ),
    "diamonds": TableFile(
        "diamonds/diamonds.csv",
        "https://raw.githubusercontent.com/tidyverse/ggplot2/main/data-raw/diamonds.csv",
        "9574730b03aba241d899c4a97511c5061b19358fab89510774fb6c24168345c4",
        levels={
            "cut": ("Fair", "Good", "Very Good", "Premium", "Ideal"),
            "color": tuple("JIHGFED"),
            "clarity": ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"),
        },
    ),
    "german": TableFile(
        "german/german.data",
        f"{_BROWNLEE}/german.csv",
        "ec12a88b9fc14d74ba646ea0410cf7ff4533bec2eb61652f8ad76796bbfec017",
        _GERMAN,
    ),
}


def load_table(name: str, folder: str | Path | None = None) -> Any:
    """One of the public mixed tables as a pandas DataFrame; "adult-test" is the second file of adult.

    Arguments:
        name: a key of ``TABLES``.
        folder: holds tables/adult/adult.data (or .data.gz) and so on; by default as in ``load_binary``.

    >>> load_table("iris")
    Traceback (most recent call last):
    ...
    ValueError: name: expected one of abalone, adult, adult-test, bank, california, diamonds, german; got 'iris'.
    """
    if name not in TABLES:
        raise ValueError(f"name: expected one of {', '.join(TABLES)}; got {name!r}.")
    try:
        pd = importlib.import_module("pandas")
    except ImportError as error:
        raise ImportError(f"load_table gives a pandas DataFrame: pip install pandas ({error}).") from None
    table = TABLES[name]
    text = _read(_root(folder) / "tables" / table.path, table.source, table.checksum)
    frame = pd.read_csv(
        io.BytesIO(text),
        sep=table.separator,
        names=list(table.names) or None,
        header=None if table.names else 0,
        skipinitialspace=True,
        na_values=[] if table.missing is None else [table.missing],
        keep_default_na=False,
        comment="|" if name == "adult-test" else None,  # its first line is no row
    )
    if name == "adult-test":
        frame["income"] = frame["income"].str.rstrip(".")
    for column, levels in table.levels.items():
        frame[column] = pd.Categorical(frame[column], levels, ordered=True)
    return frame


def load_penguins(backend: Literal["pandas", "polars", "pyarrow"] = "pandas") -> Any:
    """The Palmer penguins: 344 rows, 8 columns (text, real and whole numbers), 19 missing cells; CC0.

    Arguments:
        backend: the library of the table: "pandas", "polars" or "pyarrow".

    >>> load_penguins().shape
    (344, 8)
    """
    if backend not in ("pandas", "polars", "pyarrow"):
        raise ValueError(f"backend: expected 'pandas', 'polars' or 'pyarrow'; got {backend!r}.")
    if importlib.util.find_spec(backend) is None:
        raise ImportError(f"load_penguins: {backend} is not installed; say another backend, or install it.")
    text = (importlib.resources.files("ctem") / "data" / "penguins.csv").read_text(encoding="utf8")
    rows = list(csv.reader(text.splitlines()))
    columns = {name: _parsed(cells) for name, *cells in zip(*rows, strict=True)}
    return nw.from_dict(columns, backend=backend).to_native()


def _parsed(cells: list[str]) -> list[Any]:
    """Cells as whole numbers, numbers or text, whichever fits all; None for NA."""
    for kind in (int, float, str):
        try:
            return [None if cell == "NA" else kind(cell) for cell in cells]
        except ValueError:
            continue
    raise AssertionError("text fits every cell")


def _root(folder: str | Path | None) -> Path:
    return Path(folder or os.environ.get("CTEM_DATA") or Path.home() / ".cache" / "ctem")


def _read(path: Path, source: str, checksum: str) -> bytes:
    """The bytes of a file, or of its .gz, or of its download, checked."""
    packed = path.with_name(path.name + ".gz")
    if path.exists():
        text = path.read_bytes()
    elif packed.exists():
        text = gzip.decompress(packed.read_bytes())
    else:
        try:
            with urllib.request.urlopen(source, timeout=60) as reply:
                text = _member(reply.read(), source)
        except OSError as error:
            raise FileNotFoundError(
                f"{path} is not there and {source} could not be read ({error})."
            ) from None
        if hashlib.sha256(text).hexdigest() == checksum:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(path.name + ".part")
            part.write_bytes(text)
            os.replace(part, path)
    return _check(path.name, text, checksum)


def _check(name: str, text: bytes, checksum: str) -> bytes:
    found = hashlib.sha256(text).hexdigest()
    if found != checksum:
        raise ValueError(f"{name}: expected SHA-256 {checksum}; got {found}: another or a damaged file.")
    return text


def _member(content: bytes, source: str) -> bytes:
    """The content, unpacked if it is a .gz, or the member of a zip file that the source names after a #."""
    _, mark, member = source.partition("#")
    if source.endswith(".gz"):
        return gzip.decompress(content)
    return zipfile.ZipFile(io.BytesIO(content)).read(member) if mark else content
