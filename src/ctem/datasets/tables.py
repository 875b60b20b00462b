"""Public tables of mixed columns, and the penguins, which come with the package."""

from __future__ import annotations

import importlib
import importlib.resources
import importlib.util
import io
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ctem.datasets.downloads import read, root
from ctem.tables.io.delivery import delivered
from ctem.tables.io.files import read_path

__all__ = ["TABLES", "TableFile", "load_penguins", "load_table"]


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
        dropped: columns that only number the rows.

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
    dropped: tuple[str, ...] = ()


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
_MAGIC = (
    *("length", "width", "size", "conc", "conc1", "asym", "m3_long", "m3_trans", "alpha", "dist"),
    "class",
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
    "beijing": TableFile(
        "beijing/PRSA_data_2010.1.1-2014.12.31.csv",
        f"{_UCI}/00381/PRSA_data_2010.1.1-2014.12.31.csv",
        "892e9559205d16d32623135c127a3951c12e46ea1e0b3093e107ce89a9fd60e2",
        missing="NA",
        dropped=("No",),
    ),
    "california": TableFile(
        "california/housing.csv",
        "https://raw.githubusercontent.com/ageron/handson-ml2/master/datasets/housing/housing.csv",
        "8a3727f4cf54ac1a327f69b1d5b4db54c5834ea81c6e4efc0d163300022a685e",
        missing="",
    ),
    "default": TableFile(
        "default/UCI_Credit_Card.csv",
        "https://archive.ics.uci.edu/dataset/350",  # a spreadsheet there: the text has to be in the folder
        "1dbd482cde20ce8b78b5721cf125646d318cef4f1ad30fe5803807447de13686",
        dropped=("ID",),
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
    "magic": TableFile(
        "magic/magic04.data",
        f"{_UCI}/magic/magic04.data",
        "e9314b7ebd4b4b59a3b3d65f7316663963777b16a46786877651dbbaa640b36a",
        _MAGIC,
    ),
    "shoppers": TableFile(
        "shoppers/online_shoppers_intention.csv",
        f"{_UCI}/00468/online_shoppers_intention.csv",
        "44b29f6ac84d6491bcf8d78e3cd544c10df910fe518293454174876f25956c4f",
    ),
    "titanic": TableFile(
        "titanic/titanic.csv",
        "https://raw.githubusercontent.com/mwaskom/seaborn-data/master/titanic.csv",
        "81787d320d7f7b03df935e91de8bd19e11d45c5bbcab86ef4d4a76dc91b7d4f2",
        missing="",
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
    ValueError: name: expected one of abalone, adult, adult-test, bank, ..., magic, shoppers, titanic; got 'iris'.
    """
    if name not in TABLES:
        raise ValueError(f"name: expected one of {', '.join(TABLES)}; got {name!r}.")
    try:
        pd = importlib.import_module("pandas")
    except ImportError as error:
        raise ImportError(f"load_table gives a pandas DataFrame: pip install pandas ({error}).") from None
    table = TABLES[name]
    text = read(root(folder) / "tables" / table.path, table.source, table.checksum)
    frame = pd.read_csv(
        io.BytesIO(text),
        sep=table.separator,
        names=list(table.names) or None,
        header=None if table.names else 0,
        skipinitialspace=True,
        na_values=[] if table.missing is None else [table.missing],
        keep_default_na=False,
        comment="|" if name == "adult-test" else None,  # its first line is no row
    ).drop(columns=list(table.dropped))
    if name == "adult-test":
        frame["income"] = frame["income"].str.rstrip(".")
    for column, levels in table.levels.items():
        frame[column] = pd.Categorical(frame[column], levels, ordered=True)
    return frame


def load_penguins(backend: Literal["pandas", "polars", "pyarrow"] | None = None) -> Any:
    """The Palmer penguins: 344 rows, 8 columns (text, real and whole numbers), 19 missing cells; CC0.

    Arguments:
        backend: the library of the table: "pandas", "polars" or "pyarrow"; the first of them that is installed when
            None.

    >>> load_penguins().shape
    (344, 8)
    """
    known: tuple[Literal["pandas", "polars", "pyarrow"], ...] = ("pandas", "polars", "pyarrow")
    if backend is None:
        backend = next(library for library in known if importlib.util.find_spec(library) is not None)
    if backend not in known:
        raise ValueError(f"backend: expected 'pandas', 'polars' or 'pyarrow'; got {backend!r}.")
    if importlib.util.find_spec(backend) is None:
        raise ImportError(f"load_penguins: {backend} is not installed; use another backend, or install it.")
    with importlib.resources.as_file(importlib.resources.files("ctem.datasets") / "penguins.csv") as path:
        table = read_path(path)
    return delivered(table, "arrow" if backend == "pyarrow" else backend, tuple(table.column_names))
