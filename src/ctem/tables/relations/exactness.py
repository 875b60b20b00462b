"""Drawn numbers that meet a formula but for the rounding of float32 meet it to the last digit.

Rows are drawn in float32 and in scores of the columns. A copy of a column without a lattice would come back a millionth
of its scale beside it, and no drawn row would have the two equal, where most rows of the table do. Columns on a lattice
are exact already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ctem.tables.encoding.codecs import Codec, Numbers
from ctem.tables.io.cells import Cells
from ctem.tables.margins.bounds import Bounded
from ctem.tables.relations.formulas import Formula
from ctem.tables.relations.functions import Affine
from ctem.tables.relations.kept_rules import KeptRule

__all__ = ["exact", "sums_of"]

NEAR = 1e-5  # of a column's scale, or of how far out a value is: what float32 may be off by

Mask = NDArray[np.bool_]
Vector = NDArray[np.float64]


def exact(
    columns: Mapping[str, Cells],
    formulas: Sequence[Formula],
    codecs: Mapping[str, Codec],
    drawn: Mapping[str, Mask] | None = None,
) -> dict[str, Cells]:
    """The columns with numbers that nearly meet a formula in float64 made to meet it.

    Sums come first, then copies, then differences, and what a formula has used stays in its row: a difference is the
    last digit off where the sum is exact.

    Arguments:
        columns: cells by name.
        formulas: of the columns.
        codecs: of the columns.
        drawn: which cells of a column may be changed; all when None.

    >>> from ctem.tables.schema import Schema
    >>> from ctem.tables.io.frame import read_frame
    >>> x = np.random.default_rng(0).normal(size=200)
    >>> schema = Schema.fit(read_frame(np.column_stack([x, x])))
    >>> off = {"x0": Cells("float", np.array([0.1]), np.zeros(1, bool))}
    >>> off |= {"x1": Cells("float", np.array([0.1 + 1e-7]), np.zeros(1, bool))}
    >>> found = schema.exact(off)
    >>> bool(found["x0"].values == found["x1"].values)
    True
    """
    made = dict(columns)
    used = {name: np.zeros(len(cells), bool) for name, cells in made.items()}
    for formula in sorted(formulas, key=_rank):
        codec, cells = codecs[formula.target], made[formula.target]
        if not formula.share or not isinstance(codec, Numbers) or codec.lattice.step or cells.type != "float":
            continue
        names = [formula.target, *(name for name, _ in formula.terms)]
        value = sum(sign * made[name].values.astype(np.float64) for name, sign in formula.terms)
        meets = _nearly(codec, cells.values, np.asarray(value))
        meets &= ~np.any([made[name].missing for name in names], axis=0)
        change = meets & ~used[formula.target]
        change &= True if drawn is None else drawn.get(formula.target, np.zeros(len(change), bool))
        made[formula.target] = replace(cells, values=np.where(change, value, cells.values))
        for name in names:
            used[name] |= change | (meets & (value == cells.values))
    return made


def _nearly(codec: Numbers, measured: Vector, value: Vector) -> Mask:
    """Where values are those of a formula up to rounding, and these lie within the ends of the column."""
    low, high = codec.transform.edges if isinstance(codec.transform, Bounded) else (-np.inf, np.inf)
    far = np.abs(measured - codec.transform.location) + codec.transform.scale
    return np.asarray((np.abs(measured - value) <= NEAR * far) & (low <= value) & (value <= high))


def sums_of(rules: Sequence[KeptRule]) -> list[Formula]:
    """The rules that are copies, sums and differences, as formulas.

    >>> from ctem.tables.relations.kept_rules import Term
    >>> sums_of([KeptRule("b", (Term("a"),), Affine((1.0,), 0.0), 0.99, 0.99, 80, 0, (), True)])
    [Formula(target='b', terms=(('a', 1),), share=0.99)]
    """
    sums = []
    for rule in rules:
        function, names = rule.function, [term.column for term in rule.terms if not term.part]
        plain = isinstance(function, Affine) and function.constant == 0 and len(names) == len(rule.terms)
        if plain and isinstance(function, Affine) and set(map(abs, function.factors)) == {1.0}:
            signs = map(int, function.factors)
            sums.append(Formula(rule.target, tuple(zip(names, signs, strict=True)), rule.share))
    return sums


def _rank(formula: Formula) -> tuple[bool, int]:
    return any(sign < 0 for _, sign in formula.terms), -len(formula.terms)
