"""Loaders for public data: penguins, which come with the package; benchmarks, from a folder, from $CTEM_DATA, or
downloaded once with a checksum.
"""

from ctem.datasets.bits import BINARY, Splits, load_binary
from ctem.datasets.digits import Digits, load_binarized_mnist, load_mnist
from ctem.datasets.silhouettes import load_caltech
from ctem.datasets.tables import TABLES, TableFile, load_penguins, load_table

__all__ = [
    "BINARY",
    "TABLES",
    "Digits",
    "Splits",
    "TableFile",
    "load_binarized_mnist",
    "load_binary",
    "load_caltech",
    "load_mnist",
    "load_penguins",
    "load_table",
]
