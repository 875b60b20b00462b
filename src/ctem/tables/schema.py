"""A table's columns, understood: which kind each is and why, and the map between the table and encoded rows.

X (table) → read_frame → Schema.encode → x, log-density terms → …          … → x → Schema.decode → build_frame → X
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from ctem.densities.anyorder.ties import Tie, Ties
from ctem.spaces import Column, Space
from ctem.tables.encoding.codecs import Codec, Constant, Labels, LeftOut, Numbers, codec_from_json
from ctem.tables.encoding.lookup import never_seen
from ctem.tables.inference.gap_causes import gaps_in_words
from ctem.tables.inference.kinds import InferredColumn, infer_column, requested_kind
from ctem.tables.io.cells import Cells
from ctem.tables.io.frame import Frame
from ctem.tables.io.writings import Writing
from ctem.tables.margins.lattices import check_whole
from ctem.tables.relations.exactness import exact, sums_of
from ctem.tables.relations.formulas import CodecUnits, Formula
from ctem.tables.relations.kept_orders import KeptOrder
from ctem.tables.relations.kept_rules import KeptRule
from ctem.tables.relations.label_pairs import LabelPair
from ctem.tables.relations.pair_keeper import LabelColumn, PairKeeper
from ctem.tables.relations.quantities import quantity_of
from ctem.tables.relations.relations import Relations, relations
from ctem.tables.relations.rule_keeper import RuleKeeper
from ctem.tables.relations.wishes import read_wishes

__all__ = ["Description", "Encoded", "Schema", "readings", "reasons", "requested_kinds"]

VERSION = 1
BEYOND = 9.0  # where an atom at the very end of a column lies, among encoded numbers
KINDS = ("real", "ordinal", "category", "constant", "identifier", "text")


@dataclass(frozen=True)
class Encoded:
    """Encoded rows, and what turns their log-density into one of the table.

    Arguments:
        x: shape (n, d); nan for missing cells and for the real part of an atom.
        log_det: float64, shape (n, columns of the table): add the terms of the observed cells to log ρ(x).

    >>> Encoded(torch.zeros(2, 1), torch.zeros(2, 1)).x.shape
    torch.Size([2, 1])
    """

    x: Tensor
    log_det: Tensor


@dataclass(frozen=True)
class Description:
    """What was understood of one column.

    >>> str(Description("age", "real", "whole numbers; never below 0"))
    'age: real (whole numbers; never below 0)'
    """

    name: str
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.kind} ({self.reason})"


@dataclass(frozen=True)
class Schema:
    """The columns of a table and their codecs.

    >>> import numpy as np
    >>> from ctem.tables.io.frame import read_frame
    >>> X = np.random.default_rng(0).normal(size=(100, 2)) * [1.0, 50.0]
    >>> frame = read_frame(X)
    >>> schema = Schema.fit(frame)
    >>> print(schema.describe()[1])
    x1: real (numbers)
    >>> encoded = schema.encode(frame)
    >>> encoded.x.shape, encoded.log_det.dtype
    (torch.Size([100, 2]), torch.float64)
    >>> bool(np.allclose(schema.decode(encoded.x)["x1"].values, X[:, 1], rtol=1e-4))
    True
    """

    columns: dict[str, InferredColumn]
    formulas: tuple[Formula, ...] = ()
    rules: tuple[KeptRule, ...] = ()
    orders: tuple[KeptOrder, ...] = ()
    pairs: tuple[LabelPair, ...] = ()

    @classmethod
    def fit(
        cls,
        frame: Frame,
        kinds: Mapping[str, Any] | None = None,
        missing: str = "hidden",
        unknown: str = "reserve",
        rules: Sequence[str] | None = None,
        weights: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> Schema:
        """Read the kind of every column off its values.

        Arguments:
            kinds: requested by the user: name → Real(), Category(), Ordinal(), the class, or "real" and so on.
            missing: "hidden", a missing cell is unknown; or "state", being missing is a value like another,
                in columns where it occurs.
            unknown: "reserve", listed values keep some probability for those that were never seen; or "refuse".
            rules: sentences on rules that are kept, or not (``ctem.tables.relations.wishes``).
            weights: of a column how many rows each of its cells stands for, by name; 1 where there is none.
        """
        if missing not in ("hidden", "state"):
            raise ValueError(f"missing: expected 'hidden' or 'state'; got {missing!r}.")
        if unknown not in ("reserve", "refuse"):
            raise ValueError(f"unknown: expected 'reserve' or 'refuse'; got {unknown!r}.")
        requested = requested_kinds(frame, kinds)
        how = missing == "state", unknown == "reserve", frame.table_type.backend != "numpy"
        columns = {
            name: infer_column(name, cells, requested.get(name), *how, (weights or {}).get(name))
            for name, cells in frame.displayed().columns.items()  # moments in the zone that they are lived in
        }
        if not any(inferred.codec.columns(name) for name, inferred in columns.items()):
            kept = [name for name, inferred in columns.items() if isinstance(inferred.codec, LeftOut)]
            insist = (
                f" {kept[0]!r} is left out: kinds={{{kept[0]!r}: 'category'}} takes it in." if kept else ""
            )
            raise ValueError(
                f"X: expected a column that varies; all {len(columns)} hold one value over {len(frame)} sample(s)."
                + insist
            )
        wishes = read_wishes(rules, columns)
        codecs = {name: column.codec for name, column in columns.items()}
        related = relations(codecs, frame.columns, wishes)
        whys = {name: column.reason for name, column in columns.items()}
        whys = reasons(frame, whys, codecs, related, with_gaps=missing == "hidden")
        for pair in related.pairs:
            codec = codecs[pair.column]
            assert isinstance(codec, Labels)
            codecs[pair.column] = codec.kept_apart()
        made = {name: InferredColumn(codecs[name], c.kind, whys[name]) for name, c in columns.items()}
        return cls(made, *related)

    @cached_property
    def _codecs(self) -> tuple[tuple[str, Codec, tuple[int, ...]], ...]:
        """Name, codec and encoded columns of each column of the table."""
        pairs = zip(self.columns.items(), self.owner, strict=True)
        return tuple((name, inferred.codec, group) for (name, inferred), group in pairs)

    @cached_property
    def left_out(self) -> tuple[str, ...]:
        """The columns that the density leaves out."""
        return tuple(name for name, codec, _ in self._codecs if isinstance(codec, LeftOut))

    @cached_property
    def space(self) -> Space:
        """The space of encoded rows."""
        return Space({name: column for part in self._parts.values() for name, column in part.items()})

    @cached_property
    def owner(self) -> tuple[tuple[int, ...], ...]:
        """The encoded columns of each column of the table; none for a constant one."""
        groups, start = [], 0
        for part in self._parts.values():
            groups.append(tuple(range(start, start + len(part))))
            start += len(part)
        return tuple(groups)

    @cached_property
    def parents(self) -> dict[int, int]:
        """Real part → its atom column, whose code 0 means that the real part exists."""
        return {group[1]: group[0] for group in self.owner if len(group) == 2}

    @cached_property
    def atoms(self) -> dict[int, Tensor]:
        """Real part → for each code of its atom column, T of the number that it stands for; nan for none."""
        atoms = {}
        for _, codec, group in self._codecs:
            if isinstance(codec, Numbers) and len(group) == 2:
                numbers = codec.transform(torch.tensor(codec.atoms, dtype=torch.float64))
                listed = [math.nan, *numbers.clamp(-BEYOND, BEYOND).tolist(), math.nan]
                atoms[group[1]] = torch.tensor(listed, dtype=torch.float64)
        return atoms

    @cached_property
    def unordered(self) -> tuple[int, ...]:
        """For each encoded column how many codes without an order it has; 0 for numbers, grades and dates."""
        sizes = [0] * self.space.dim
        for _, codec, group in self._codecs:
            listed = isinstance(codec, Labels) and codec.type in ("label", "bool") and not codec.ordered
            if group and (listed or len(group) == 2):
                sizes[group[0]] = self.space.sizes[group[0]]
        return tuple(sizes)

    @cached_property
    def dequantised(self) -> tuple[int, ...]:
        """Encoded columns that ``jitter`` moves."""
        return tuple(
            g[-1] for _, codec, g in self._codecs if isinstance(codec, Numbers) and codec.lattice.width
        )

    def encode(self, frame: Frame, dtype: torch.dtype = torch.float32) -> Encoded:
        """Rows of a table to encoded rows; every value is checked against what fit saw.

        A frame of a NumPy array is taken by position, any other by name.
        """
        blocks, terms = [], []
        for (name, codec, _), cells in zip(self._codecs, self._matched(frame), strict=True):
            block, term = codec.encode(name, cells)
            blocks.append(block.to(dtype))
            terms.append(term)
        return Encoded(torch.cat(blocks, 1), torch.stack(terms, 1))

    def unseen(self, frame: Frame) -> Tensor:
        """Which cells hold a value that fit never saw: a mask (n, columns of the table).

        >>> import numpy as np
        >>> from ctem.tables.io.frame import read_frame
        >>> schema = Schema.fit(read_frame(np.array([[1.0, 7.0], [2.0, 7.0]])))
        >>> schema.unseen(read_frame(np.array([[3.0, 7.0]])))
        tensor([[ True, False]])
        """
        pairs = zip(self._codecs, self._matched(frame), strict=True)
        return torch.stack([codec.unseen(name, cells) for (name, codec, _), cells in pairs], 1)

    def check_seen(self, frame: Frame) -> None:
        """An error that names the first cell with a value that fit never saw, or that its column cannot hold."""
        matched = self._matched(frame)
        for (name, codec, _), cells in zip(self._codecs, matched, strict=True):
            if isinstance(codec, Numbers):
                check_whole(name, cells, codec.lattice)
        unseen = self.unseen(frame)
        if bool(unseen.any()):
            j = int(unseen.any(0).long().argmax())
            row, cells, (name, codec, _) = int(unseen[:, j].long().argmax()), matched[j], self._codecs[j]
            if isinstance(codec, Constant | Labels):
                raise never_seen(name, cells, codec, row)
            if isinstance(codec, Numbers):
                raise codec.outside(name, cells, row)

    def decode(self, x: Tensor, generator: Generator | None = None) -> dict[str, Cells]:
        """Encoded rows (n, d) to the table's values, for ``build_frame``; nan cells come back missing.

        The generator draws among rare values that share a code.
        """
        if x.ndim != 2 or x.shape[1] != self.space.dim:
            raise ValueError(f"x: expected shape (n, {self.space.dim}); got {tuple(x.shape)}.")
        parts = zip(self._codecs, x.split([len(group) for group in self.owner], 1), strict=True)
        return {name: codec.decode(part, generator) for (name, codec, _), part in parts}

    def exact(
        self, columns: Mapping[str, Cells], drawn: Mapping[str, NDArray[np.bool_]] | None = None
    ) -> dict[str, Cells]:
        """Columns in which drawn numbers meet the formulas to the last digit (``ctem.tables.relations.exactness``)."""
        codecs = {name: codec for name, codec, _ in self._codecs}
        return exact(columns, [*sums_of(self.rules), *self.formulas], codecs, drawn)

    def jitter(self, x: Tensor, generator: Generator) -> Tensor:
        """Rows for training: dequantised columns moved to a uniform point of their cell, T(X + w(U − ½)).

        Works on x's device, where the generator must live; nothing else changes.
        """
        x = x.clone()
        for _, codec, group in self._codecs:
            if isinstance(codec, Numbers) and codec.lattice.width:
                x[:, group[-1]] = codec.jitter(x[:, group[-1]], generator)
        return x

    def snapped(self, x: Tensor) -> Tensor:
        """Whole encoded rows as they would come back: numbers on their lattice, and at an atom where they meet one."""
        out = x.clone()
        for name, codec, group in self._codecs:
            if isinstance(codec, Numbers) and (codec.lattice.step or codec.atoms):
                out[:, list(group)] = codec.encode(name, codec.decode(x[:, list(group)]))[0].to(x)
        return out

    def between_cells(self, j: int, cuts: Tensor) -> Tensor:
        """Cuts of an encoded column (c,), each moved to the nearest border of two cells of its lattice, if it has one.

        What is constant between such cuts is constant on every cell, as a value that was rounded asks for.
        """
        codec = next((codec for _, codec, group in self._codecs if group and group[-1] == j), None)
        if not isinstance(codec, Numbers) or not codec.lattice.step:
            return cuts
        half = codec.lattice.step / codec.lattice.per / 2
        moved = codec.transform(codec.lattice.snap(codec.transform.inverse(cuts) - half) + half)
        fine = bool(moved.isfinite().all()) and bool((moved.diff() > 0).all())
        return moved if fine else cuts

    @property
    def preparation(self) -> Callable[[Tensor, Generator], Tensor] | None:
        """What rows need before an any-order density is trained on them; None for nothing."""
        return self._prepared if self.dequantised or self.formulas else None

    def _prepared(self, x: Tensor, generator: Generator) -> Tensor:
        """Jittered rows, with the cells of their ties behind them."""
        moved = self.jitter(x, generator)
        if self.ties is None:
            return moved
        return torch.cat([moved, self.ties.to(x.device).all_ends(x).flatten(1).to(x.dtype)], 1)

    @cached_property
    def ties(self) -> Ties | None:
        """The formulas as the density takes them; None where there are none."""
        if not self.formulas:
            return None
        numbers = {name: (g[-1], codec) for name, codec, g in self._codecs if isinstance(codec, Numbers)}
        units = CodecUnits(dict(numbers.values()), self.parents)
        ties = [
            Tie(numbers[f.target][0], tuple((numbers[name][0], sign) for name, sign in f.terms), f.share)
            for f in self.formulas
        ]
        return Ties(ties, units, self.parents)

    @cached_property
    def keeper(self) -> RuleKeeper | None:
        """The rules as the density takes them; None where there are none."""
        if not self.rules and not self.orders and not self.pairs:
            return None
        made = {name: quantity_of(codec, group) for name, codec, group in self._codecs}
        known = {name: quantity for name, quantity in made.items() if quantity is not None}
        listed = {n: LabelColumn(codec, g[0]) for n, codec, g in self._codecs if isinstance(codec, Labels)}
        return RuleKeeper(self.rules, self.orders, known, PairKeeper(self.pairs, listed))

    def describe(self) -> list[Description]:
        """Name, kind and reason of every column."""
        return [Description(name, inferred.kind, inferred.reason) for name, inferred in self.columns.items()]

    def to_json(self) -> dict[str, Any]:
        """This schema as plain JSON."""
        columns = [
            {"name": name, "kind": c.kind, "reason": c.reason, "codec": c.codec.to_json()}
            for name, c in self.columns.items()
        ]
        record = {
            "version": VERSION,
            "columns": columns,
            "formulas": [formula.to_json() for formula in self.formulas],
        }
        rules, orders = [rule.to_json() for rule in self.rules], [order.to_json() for order in self.orders]
        pairs = [pair.to_json() for pair in self.pairs]
        more = (("rules", rules), ("orders", orders), ("pairs", pairs))
        return record | {key: some for key, some in more if some}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        """The schema that ``to_json`` wrote; anything else is refused with the reason."""
        if not isinstance(data, Mapping) or data.get("version") != VERSION:
            raise ValueError(
                f"schema: expected version {VERSION}; this is another file, or of another version."
            )
        columns: dict[str, InferredColumn] = {}
        try:
            for column in data["columns"]:
                name, kind, reason = column["name"], column["kind"], column["reason"]
                if not isinstance(name, str) or name in columns or kind not in KINDS:
                    raise ValueError(
                        f"expected new names and kinds of {', '.join(KINDS)}; got {name!r}, {kind!r}"
                    )
                columns[name] = InferredColumn(codec_from_json(column["codec"]), kind, str(reason))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"schema: column {len(columns)} cannot be read: {error!r}.") from None
        schema = cls(columns, *_related(data, columns))
        if not schema._parts or not any(schema._parts.values()):
            raise ValueError("schema: expected at least one column that varies.")
        return schema

    @cached_property
    def _parts(self) -> dict[str, dict[str, Column]]:
        """Encoded columns by column of the table, with names made unique."""
        taken, parts = set(self.columns), {}
        for name, inferred in self.columns.items():
            made: dict[str, Column] = {}
            for title, column in inferred.codec.columns(name).items():
                while title != name and title in taken:
                    title += "′"
                taken.add(title)
                made[title] = column
            parts[name] = made
        return parts

    def _matched(self, frame: Frame) -> list[Cells]:
        """The frame's columns in the order of fit."""
        if len(frame.columns) != len(self.columns):
            raise ValueError(
                f"X has {len(frame.columns)} features, but Schema is expecting {len(self.columns)} features as input: "
                f"{_some(self.columns)}."
            )
        if frame.table_type.backend == "numpy":
            return list(frame.columns.values())
        absent = [name for name in self.columns if name not in frame.columns]
        if absent:
            raise ValueError(f"X: expected column {absent[0]!r}, as in fit; got {_some(frame.columns)}.")
        return [frame.columns[name] for name in self.columns]


def _related(data: Mapping[str, Any], columns: Mapping[str, InferredColumn]) -> Relations:
    """The formulas of a file, and its rules, orders and pairs, which are left out of it where there are none."""
    codecs = {name: column.codec for name, column in columns.items()}
    real = [name for name, codec in codecs.items() if isinstance(codec, Numbers)]
    made = {name: quantity_of(codec, ()) for name, codec in codecs.items()}
    known = {name: quantity for name, quantity in made.items() if quantity is not None}
    numbers = [name for name, quantity in known.items() if quantity.kind != "label"]
    try:
        formulas = tuple(Formula.from_json(entry, real) for entry in data["formulas"])
        rules = tuple(KeptRule.from_json(rule, known) for rule in data.get("rules", []))
        TopologicalSorter({rule.target: rule.columns for rule in rules if rule.leads}).prepare()  # no circle
        orders = tuple(KeptOrder.from_json(order, numbers) for order in data.get("orders", []))
        pairs = tuple(LabelPair.from_json(pair, codecs) for pair in data.get("pairs", []))
        return Relations(formulas, rules, orders, pairs)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"schema: {error}.") from None


def requested_kinds(frame: Frame, kinds: Mapping[str, Any] | None) -> dict[str, Column]:
    """The requests of the user about columns that are in the table.

    >>> from ctem.tables.io.frame import read_frame
    >>> requested_kinds(read_frame([[1.0], [2.0]]), {"x1": "real"})
    Traceback (most recent call last):
    ...
    ValueError: kinds: 'x1' is not in the table, which has 'x0'.
    """
    requested = {name: requested_kind(name, kind) for name, kind in (kinds or {}).items()}
    strange = [name for name in requested if name not in frame.columns]
    if strange:
        raise ValueError(f"kinds: {strange[0]!r} is not in the table, which has {_some(frame.columns)}.")
    return requested


def readings(frame: Frame) -> dict[str, str]:
    """How text was read, in words, for the columns in which it stands for something else.

    >>> from ctem.tables.io.frame import read_frame
    >>> from ctem.tables.io.recognition import Reading, recognised
    >>> readings(recognised(read_frame([["12 %"], ["7 %"]]), Reading(), {}))
    {'x0': "text such as '12 %', read as numbers"}
    """
    written = {field.name: field.written for field in frame.table_type.fields if field.written is not None}
    words = {name: Writing.from_json(how).sentence() for name, how in written.items()}
    return {name: sentence for name, sentence in words.items() if sentence}


def reasons(
    frame: Frame,
    whys: Mapping[str, str],
    codecs: Mapping[str, Codec],
    related: Relations,
    with_gaps: bool = True,
) -> dict[str, str]:
    """Why each column is what it is: how text in it was read, what its values are, its relations, its gaps.

    Arguments:
        whys: what is known of the values, by name.
        codecs: of the columns that can be fitted.
        related: the relations between them.
        with_gaps: name the other columns on which gaps depend.

    >>> from ctem.tables.io.frame import read_frame
    >>> reasons(read_frame([[1.0], [2.0]]), {"x0": "numbers"}, {}, Relations((), (), (), ()))
    {'x0': 'numbers'}
    """
    present = {n: frame.columns[n] for n, codec in codecs.items() if not isinstance(codec, LeftOut)}
    parts = [readings(frame), whys, related.in_words(), gaps_in_words(present) if with_gaps else {}]
    return {name: "; ".join(filter(None, (part.get(name) for part in parts))) for name in whys}


def _some(names: Mapping[str, Any]) -> str:
    listed = ", ".join(map(repr, list(names)[:5]))
    return listed if len(names) <= 5 else f"{listed}, … ({len(names)} in all)"
