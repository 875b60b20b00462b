"""Strange rows: how strange, with what p-value, and what was expected in the cells that make them so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from ctem.tables.answers.density import TableDensity
from ctem.tables.answers.distributions import ColumnDistribution
from ctem.tables.answers.heldout import HeldOut
from ctem.tables.answers.markup import cell_text, table_html
from ctem.tables.encoding.codecs import Codec, Numbers
from ctem.tables.io.cells import Cells
from ctem.tables.io.frame import Field, Frame
from ctem.tables.io.rows import taken
from ctem.tables.margins.rhythms import DAY, Rhythm

__all__ = [
    "Outlier",
    "Outliers",
    "SuspiciousCell",
    "find_outliers",
    "outlier_columns",
    "outlier_table",
    "strangest_first",
]

Vector = NDArray[np.float64]
REASONS = 3  # cells that are explained in a row
LEAST = 1e-6  # p-values below are not distinguished
LIKELY, ORDINARY = 0.2, 0.5  # p-values from which a cell is no reason, and from which none is named at all
ADDS, RARE = 1.0, 0.05  # nats of a cell that must have a reason; a p-value among all rows that is one
COVERAGE = 0.9  # of the interval that is expected


@dataclass(frozen=True)
class SuspiciousCell:
    """A cell that makes its row strange, and what was expected there, given the other cells of the row.

    Arguments:
        name: of the column.
        nats: what it adds to the score of the row.
        value: what it holds.
        expected: the mean of a number, the most likely label.
        low, high: the central interval of a number that holds nine in ten; None for a label.
        p_value: how often a value at least as far out, a label at most as likely, or a moment at a time of the day or
            week that is at most as busy, would be there.
        unseen: fit never saw this value.
        when: "day" or "week" if it is the time of that which is unusual.
        alone: the other cells leave nothing else, as the parts do of a total; what was expected is that of any row.

    >>> print(SuspiciousCell("fare", 9.1, 512.3292, 26.55, 7.9, 90.0, 0.00012))
    fare 512.3, expected 26.55 (7.9 to 90; p 0.00012)
    """

    name: str
    nats: float
    value: Any
    expected: Any
    low: Any
    high: Any
    p_value: float
    unseen: bool = False
    when: str = ""
    alone: bool = False

    def __str__(self) -> str:
        return f"{self.name} {_short(self.value)}, {self.remark}"

    @property
    def remark(self) -> str:
        """What is strange about it, or what was expected."""
        if self.unseen:
            return "a value never seen"
        between = "" if self.low is None else f"{_short(self.low)} to {_short(self.high)}; "
        p = f"p {self.p_value:.2g}" if self.p_value >= LEAST else f"p < {LEAST:.0e}"
        if self.when:
            return f"an unusual time of the {self.when} ({p})"
        of = "expected of any row" if self.alone else "expected"
        return f"{of} {_short(self.expected)} ({between}{p})"


@dataclass(frozen=True)
class Outlier:
    """A strange row: its score, and what each of its columns adds to that, the most surprising first.

    The score is the sum over the columns, in nats beyond the average row: ``ctem.tables.answers.surprise``.

    Arguments:
        row: its number, from 0.
        score: nats beyond the average row.
        columns: name → nats that it adds.
        log_density: log ρ of the row, in the table's units.
        p_value: conformal (``ctem.tables.answers.heldout``).
        cells: the few that add most, with what was expected there.
        unseen: columns that hold a value never seen in fit.

    >>> Outlier(7, 4.5, {"city": 4.0, "age": 0.5}, -9.0, unseen=("city",)).score
    4.5
    """

    row: int
    score: float
    columns: dict[str, float]
    log_density: float
    p_value: float = np.nan
    cells: tuple[SuspiciousCell, ...] = ()
    unseen: tuple[str, ...] = ()

    def why(self, most: int = REASONS) -> str:
        """The cells that add most, in words: those that are unlikely given the others, or the least likely one.

        >>> cells = [SuspiciousCell(*each) for each in (("who", 4.0, "child", "child", None, None, 1.0),
        ...                                             ("sex", 3.0, "male", "female", None, None, 0.3))]
        >>> Outlier(7, 9.0, {}, -9.0, cells=tuple(cells)).why()
        'sex male, expected female (p 0.3)'
        """
        unlikely = [cell for cell in self.cells if cell.unseen or cell.p_value < LIKELY]
        least = sorted(self.cells, key=attrgetter("p_value"))[:1]
        if not unlikely and least and least[0].p_value > ORDINARY:
            return "no cell by itself: rare together"
        return "; ".join(map(str, (unlikely or least)[:most]))

    def __str__(self) -> str:
        return f"row {self.row}: {self.score:.2f} nats beyond the average row, p {self.p_value:.2g}. {self.why()}"


class Outliers(list[Outlier]):
    """Outliers as a list, which a notebook shows as a table and ``print`` as a line each.

    >>> Outliers([Outlier(7, 4.5, {"city": 4.5}, -9.0)])._repr_html_()[:6]
    '<table'
    """

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def _repr_html_(self) -> str:
        rows = [(row.row, f"{row.score:.2f}", f"{row.p_value:.2g}", row.why()) for row in self]
        return table_html(("row", "score, nats", "p-value", "why"), rows)


def strangest_first(score: Vector, p_values: Vector) -> NDArray[np.int64]:
    """Rows by their p-values, and by their scores where these are equal, so that any alpha cuts off the first of them.

    The score is of the whole model. A p-value compares the scores that single networks give a row with those of rows
    that they have not seen, so that the two do not always agree on the order of rows.

    >>> strangest_first(np.array([3.0, 9.0, 5.0]), np.array([0.5, 0.02, 0.02])).tolist()
    [1, 2, 0]
    """
    return np.lexsort((-score, p_values))


def find_outliers(
    table: TableDensity, frame: Frame, held_out: HeldOut, n: int | None, alpha: float | None = None
) -> list[Outlier]:
    """The n strangest rows, or those with a p-value of at most alpha; in the order of ``strangest_first``.

    Arguments:
        held_out: of the fit, for p-values.
        n: how many rows at most; all when None.
        alpha: the share of ordinary rows that may be called strange.

    >>> from ctem import CTEM
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = CTEM(max_steps=2, width=8, batch_size=16, random_state=0).fit(X)
    >>> [outlier.row for outlier in model.outliers([[0.0, 0.0], [9.0, 0.0]], 1)]
    [1]
    """
    surprises, names = table.surprises(frame), list(frame.columns)
    p = held_out.p_values(table, frame)
    rows = strangest_first(surprises.sum(1), p)
    if alpha is not None:
        rows = rows[p[rows] <= alpha]
    rows = rows[:n]
    if not len(rows):
        return []
    strange = taken(frame, rows)
    log_density, unseen = table.log_prob(strange), table.schema.unseen(strange).numpy()
    outliers = []
    for i, row in enumerate(rows.tolist()):
        nats = {names[j]: float(surprises[row, j]) for j in np.argsort(-surprises[row], kind="stable")}
        new = tuple(names[j] for j in np.flatnonzero(unseen[i]))
        outliers.append(Outlier(row, float(surprises[row].sum()), nats, float(log_density[i]), unseen=new))
    return _explained(table, strange, outliers, p[rows])


def outlier_columns(outliers: Sequence[Outlier]) -> dict[str, list[Any]]:
    """Outliers as columns for people: row, score, p_value, why.

    >>> outlier_columns([Outlier(7, 4.5678, {}, -9.0, 0.0123456)])
    {'row': [7], 'score': [4.57], 'p_value': [0.0123], 'why': ['']}
    """
    return {
        "row": [row.row for row in outliers],
        "score": [round(row.score, 2) for row in outliers],
        "p_value": [float(f"{row.p_value:.3g}") for row in outliers],
        "why": [row.why() for row in outliers],
    }


def outlier_table(outliers: Sequence[Outlier], X: Any, frame: Frame) -> Any:
    """The columns of ``outlier_columns`` and the rows themselves, in the library of X; pandas for an array.

    >>> from ctem.tables.io.frame import read_frame
    >>> X = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> outlier_table([Outlier(1, 4.5, {}, -9.0, 0.01)], X, read_frame(X)).columns.tolist()
    ['row', 'score', 'p_value', 'why', 'x0', 'x1']
    """
    backend: Any = frame.table_type.backend
    made = nw.from_dict(outlier_columns(outliers), backend="pandas" if backend == "numpy" else backend)
    rows = [outlier.row for outlier in outliers]
    if backend == "numpy":
        given = nw.from_dict(dict(zip(frame.columns, np.asarray(X)[rows].T, strict=True)), backend="pandas")
    else:
        given = nw.from_native(X, eager_only=True)[rows, :]
    if backend == "pandas":
        made = nw.from_native(made.to_native().set_axis(given.to_native().index), eager_only=True)
    given = given.rename({name: f"{name}_" for name in given.columns if name in made.columns})
    return nw.concat([made, given], how="horizontal").to_native()


def _explained(table: TableDensity, frame: Frame, outliers: list[Outlier], p: Vector) -> list[Outlier]:
    """Outliers with their p-values and their suspicious cells; each column is asked once."""
    names = list(frame.columns)
    fields = {field.name: field for field in frame.table_type.fields}
    cells: list[dict[str, SuspiciousCell]] = [{} for _ in outliers]
    reasons = [_reasons(row, frame, i) for i, row in enumerate(outliers)]
    for j, name in enumerate(names):
        rows = np.array([i for i, wanted in enumerate(reasons) if name in wanted], np.int64)
        if len(rows) and table.schema.owner[j]:
            part = taken(frame, rows)
            made = _suspicious(table.conditional(part, j), part.columns[name], fields[name])
            made = _or_alone(table, part, j, made, [outliers[i].columns[name] for i in rows], fields[name])
            made = _timed(made, table.schema.columns[name].codec, part.columns[name])
            for i, one in zip(rows, made, strict=True):
                new = name in outliers[i].unseen
                cells[i][name] = replace(one, name=name, nats=outliers[i].columns[name], unseen=new)
    return [
        replace(
            row, p_value=float(p[i]), cells=tuple(cells[i][name] for name in reasons[i] if name in cells[i])
        )
        for i, row in enumerate(outliers)
    ]


def _reasons(outlier: Outlier, frame: Frame, row: int) -> list[str]:
    """The observed cells that add most, of those that add something."""
    known = [name for name in outlier.columns if not frame.columns[name].missing[row]]
    return [name for name in known[:REASONS] if outlier.columns[name] > 0] or known[:1]


def _suspicious(expected: ColumnDistribution, cells: Cells, field: Field) -> list[SuspiciousCell]:
    """What was expected in the cells of one column."""
    cells, expected = field.displayed(cells), expected.displayed(field)
    tail = (1 - COVERAGE) / 2
    ends = [[None] * len(cells)] * 2
    if expected.has_mean:
        ends = [expected.quantile(share).to_list() for share in (tail, 1 - tail)]
    columns = cells.to_list(), expected.typical().to_list(), *ends, expected.p_values(cells).tolist()
    return [SuspiciousCell("", 0.0, *facts) for facts in zip(*columns, strict=True)]


def _or_alone(
    table: TableDensity, frame: Frame, j: int, made: list[SuspiciousCell], nats: Sequence[float], field: Field
) -> list[SuspiciousCell]:
    """The same cells; of those that add much and yet follow from the others, what was expected of any row.

    A total follows from its parts however large it is, and they from it: none of them would be a reason.
    """
    follows = np.flatnonzero(
        [one.p_value >= LIKELY and adds > ADDS for one, adds in zip(made, nats, strict=True)]
    )
    if not len(follows):
        return made
    name, part = list(frame.columns)[j], taken(frame, follows)
    gone = {other: replace(cells, missing=np.ones(len(cells), bool)) for other, cells in part.columns.items()}
    margin = table.conditional(replace(part, columns=gone | {name: part.columns[name]}), j)
    judged = list(made)
    for i, one in zip(follows, _suspicious(margin, part.columns[name], field), strict=True):
        if one.p_value < RARE:
            judged[i] = replace(one, alone=True)
    return judged


def _timed(made: list[SuspiciousCell], codec: Codec, cells: Cells) -> list[SuspiciousCell]:
    """The same cells; those whose time of the day or week is what is least likely of them have a note."""
    if not isinstance(codec, Numbers) or not isinstance(codec.transform.smooth, Rhythm):
        return made
    X, rhythm = codec.lattice.measure(cells), codec.transform.smooth
    when, quiet = "day" if rhythm.period == DAY else "week", rhythm.as_quiet(X)
    quiet[np.isin(X, codec.atoms)] = 1.0
    return [
        replace(one, p_value=float(p), when=when) if p < one.p_value else one
        for one, p in zip(made, quiet, strict=True)
    ]


def _short(value: Any) -> str:
    """A value for people, cut if long."""
    text = cell_text(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
