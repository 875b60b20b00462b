"""What a careful person would ask about a table before trusting it: codes, copies, odd dates, mixed cells, rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctem.tables.inference.rules import codes_of, rules
from ctem.tables.inference.sentinels import sentinels
from ctem.tables.io.cells import Cells
from ctem.tables.io.frame import Frame
from ctem.tables.io.recognition import ORDERS, TIMES
from ctem.tables.io.writings import MARKERS, Writing, number_pattern

__all__ = ["Suspicion", "remarks", "suspicions", "unsure_dates"]

MOSTLY, SOME = 0.8, 5  # of the rows of a column of text, and different values, where others are out of place
LONG_AGO, FAR_AHEAD = np.datetime64("1700-01-01"), np.datetime64("2100-01-01")
HARDLY = 0.95  # of the cells missing
COPIED = 0.5  # of the rows; where more are copies, the table has few values
DAY_LIKE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T].*)?")


@dataclass(frozen=True)
class Suspicion:
    """Something odd, and what to do about it.

    Arguments:
        kind: "names", "code", "left out", "constant", "mostly missing", "date", "mixed", "spelling", "refused", "copied
            rows", "copied column" or "rule".
        columns: that it is about; none for the table as a whole.
        words: what is odd.
        advice: what to do.

    >>> print(Suspicion("constant", ("unit",), "'unit' holds one value", "drop it"))
    'unit' holds one value: drop it.
    """

    kind: str
    columns: tuple[str, ...]
    words: str
    advice: str

    def __str__(self) -> str:
        end = "" if self.advice.endswith("?") else "."
        return f"{self.words}: {self.advice}{end}"


def suspicions(columns: Mapping[str, Cells], kinds: Mapping[str, str]) -> list[Suspicion]:
    """What is odd about columns, one by one and together.

    Arguments:
        columns: name → cells.
        kinds: name → kind, as in a schema.

    >>> cells = Cells("int", np.array([31, 25, 47, 52, 999]), np.zeros(5, bool))
    >>> print(*suspicions({"age": cells}, {"age": "real"}))
    'age' holds 999 in 1 row, which looks like a code for missing: if it is one, reading={'na': ['999']} marks it.
    """
    alone = [odd for name, cells in columns.items() for odd in _about(name, cells, kinds[name])]
    return [
        *_names(columns),
        *alone,
        *_copied_rows(columns, kinds),
        *_copied_columns(columns, kinds),
        *_rules(columns, kinds),
    ]


def unsure_dates(frame: Frame) -> Iterator[Suspicion]:
    """Dates in which day and month cannot be distinguished, since no number is above 12.

    >>> from ctem.tables.io.frame import read_frame
    >>> from ctem.tables.io.recognition import Reading, recognised
    >>> print(*unsure_dates(recognised(read_frame([["03/04/2023"], ["05/06/2023"]]), Reading(), {})))
    'x0' is read by month, day, year ('03/04/2023'), but may be by day, month, year: if so, reading={'dates': 'dmy'}.
    """
    orders = {"%m": "month, day, year", "%d": "day, month, year"}
    for field in frame.table_type.fields:
        writing = Writing.from_json(field.written or {"kind": "label"})
        form = "".join(writing.formats[:1])
        if not re.match(r"%[dm][/-]%[dm]", form):
            continue
        cells = frame.columns[field.name]
        days = cells.values[~cells.missing].view(f"M8[{cells.unit}]").astype("M8[D]")
        months = days.astype("M8[M]")
        day = (days - months).astype(int) + 1
        if (day <= 12).all() and (day != months.astype(int) % 12 + 1).any():
            other, word = ("%d", "dmy") if form[:2] == "%m" else ("%m", "mdy")
            words = f"{field.name!r} is read by {orders[form[:2]]} ({writing.example!r}), but may be by {orders[other]}"
            yield Suspicion("date", (field.name,), words, f"if so, reading={{'dates': {word!r}}}")


def remarks(columns: Mapping[str, Cells], kinds: Mapping[str, str], rows: int | None = None) -> list[str]:
    """Remarks of a fit on columns: text that is mostly numbers or dates, and what is left out of the density.

    Arguments:
        columns, kinds: as of ``suspicions``.
        rows: of the table; cells beyond are of rows whose numbers are not known. All are known when None.

    >>> days = tuple(f"2023-01-{day:02d}" for day in range(1, 10)) + ("2023-02-31",)
    >>> print(*remarks({"due": Cells("label", np.arange(10), np.zeros(10, bool), days)}, {"due": "category"}))
    'due' holds dates, but also '2023-02-31' in 1 row (row 9), which no calendar has: mark those with na, or make ...
    """
    texts, apart = [str(odd) for odd in _names(columns)], list[str]()
    for name, cells in columns.items():
        distinct, counts = np.unique(cells.values[~cells.missing], return_counts=True)
        mixed = [str(odd) for odd in _mixed(name, cells, distinct, counts, kinds[name], rows)]
        texts += mixed
        if kinds[name] in ("identifier", "text") and not mixed:
            apart.append(name)
    return [*texts, *_apart(apart)]


def _names(columns: Mapping[str, Cells]) -> Iterator[Suspicion]:
    """Names that look like cells: of a file without a line of names, whose first row was taken for one."""
    numbers = [name for name in columns if number_pattern(".", "").fullmatch(name.lstrip("-"))]
    if 2 * len(numbers) >= len(columns) and not all(name.isdigit() for name in numbers):
        some = " and ".join(map(repr, numbers[:2]))
        yield Suspicion(
            "names",
            (),
            f"{len(numbers)} of {len(columns)} columns are named by numbers ({some})",
            "if these are cells of a first row, put a line of names before it",
        )


def _apart(names: list[str]) -> Iterator[str]:
    """One sentence on the columns that are left out of the density."""
    if names:
        what = "names the rows or is free text" if len(names) == 1 else "name the rows or are free text"
        advice = f"left out of the density; kinds={{{names[0]!r}: 'category'}} takes it in."
        yield f"{', '.join(map(repr, names[:3]))}{', …' * (len(names) > 3)} {what}: {advice}"


def _about(name: str, cells: Cells, kind: str) -> Iterator[Suspicion]:
    """What is odd about one column."""
    distinct, counts = np.unique(cells.values[~cells.missing], return_counts=True)
    if kind in ("identifier", "text"):
        mixed = list(_mixed(name, cells, distinct, counts, kind))
        what = "names its rows" if kind == "identifier" else "is free text"
        advice = f"it is left out of the density; kinds={{{name!r}: 'category'}} takes it in"
        yield from mixed or [Suspicion("left out", (name,), f"{name!r} {what}", advice)]
        return
    if len(distinct) < 2:
        what = "one value" if len(distinct) else "nothing"
        yield Suspicion("constant", (name,), f"{name!r} holds {what}", "drop it")
    if not len(distinct):
        return
    if (share := float(cells.missing.mean())) >= HARDLY:
        words = f"{name!r} is missing in {share:.1%} of the rows"
        yield Suspicion("mostly missing", (name,), words, "is it of use?")
    if cells.type in ("int", "float", "moment") and kind != "constant":
        yield from _odd_numbers(name, cells, distinct, counts)
    if cells.type == "label":
        yield from _mixed(name, cells, distinct, counts, kind)
        yield from _spellings(name, [str(cells.labels[code]) for code in distinct.tolist()])


def _odd_numbers(
    name: str, cells: Cells, distinct: NDArray[Any], counts: NDArray[Any]
) -> Iterator[Suspicion]:
    coded = sentinels(cells, distinct, counts, most=1.0)
    for i in np.flatnonzero(coded).tolist():
        code = distinct[i]
        code = _day(np.array(code).view(f"M8[{cells.unit}]")) if cells.type == "moment" else f"{code:g}"
        words = f"{name!r} holds {code} in {_rows(counts[i])}, which looks like a code for missing"
        yield Suspicion("code", (name,), words, f"if it is one, reading={{'na': [{code!r}]}} marks it")
    if cells.type != "moment":
        return
    days = distinct[~coded].view(f"M8[{cells.unit}]")
    for what, odd in (("before 1700", days < LONG_AGO), ("after 2100", days > FAR_AHEAD)):
        if odd.any():
            words = f"{name!r} holds days {what} in {_rows(counts[~coded][odd].sum())}, such as {_day(days[odd][0])}"
            yield Suspicion("date", (name,), words, "are they right?")


def _mixed(
    name: str, cells: Cells, distinct: NDArray[Any], counts: NDArray[Any], kind: str, rows: int | None = None
) -> Iterator[Suspicion]:
    """Text that is mostly numbers or dates."""
    if cells.type != "label":
        return
    texts = [str(cells.labels[code]).strip() for code in distinct.tolist()]
    known = np.array([text not in MARKERS for text in texts], bool)
    now = "all are labels" if kind == "category" else "the column is left out"
    for test, what in ((_is_number, "numbers"), (_is_day, "dates")):
        fits = np.array([test(text) for text in texts], bool)
        odd = known & ~fits
        if odd.any() and fits.sum() >= SOME and counts[fits].sum() >= MOSTLY * counts[known].sum():
            others = [text for text, flag in zip(texts, odd, strict=True) if flag]
            where = _where(cells, distinct[odd], rows)
            words = f"{name!r} holds {what}, but also {_some(others)} in {_rows(counts[odd].sum())}{where}"
            if what == "dates" and all(DAY_LIKE.fullmatch(text) for text in others):
                words, what = f"{words}, which no calendar has", "days"
            advice = f"mark those with na, or make them {what}; now {now}"
            yield Suspicion("date" if what == "days" else "mixed", (name,), words, advice)


def _where(cells: Cells, codes: NDArray[Any], rows: int | None) -> str:
    """The row of the only cell with one of these codes, or the first such row, if its number is known."""
    at = np.flatnonzero(np.isin(cells.values, codes) & ~cells.missing)
    if rows is not None and at[0] >= rows:
        return ""
    return f" ({'such as ' if len(at) > 1 else ''}row {cells.first + at[0]})"


def _is_number(text: str) -> bool:
    return any(number_pattern(".", mark).fullmatch(text.lstrip("+-")) for mark in ("", ","))


def _is_day(text: str) -> bool:
    return bool(DAY_LIKE.fullmatch(text)) and _CALENDARS.parsed(text) is not None


def _spellings(name: str, labels: list[str]) -> Iterator[Suspicion]:
    """Labels that differ in capitals and spaces only."""
    same: dict[str, list[str]] = {}
    for label in labels:
        same.setdefault(" ".join(label.split()).casefold(), []).append(label)
    many = [group for group in same.values() if len(group) > 1]
    if many:
        words = f"{name!r} spells {'one value' if len(many) == 1 else f'{len(many)} values'} in several ways"
        yield Suspicion("spelling", (name,), f"{words}, such as {_some(many[0])}", "make them one")


def _copied_rows(columns: Mapping[str, Cells], kinds: Mapping[str, str]) -> Iterator[Suspicion]:
    """Rows that are the same in every column but those that name the rows."""
    names = [name for name in columns if kinds[name] != "identifier"]
    if not names:
        return
    key = np.zeros(len(columns[names[0]]), np.int64)
    for name in names:
        codes = codes_of(columns[name]) + 1
        _, key = np.unique(key * (int(codes.max()) + 1) + codes, return_inverse=True)
    counts = np.bincount(key)
    copies = len(key) - len(counts)
    if 0 < copies < COPIED * len(key):
        first = int(np.flatnonzero(counts[key] > 1)[0])
        but = "" if len(names) == len(columns) else ", but for what names them"
        words = f"{_rows(copies)} {'is a copy of another' if copies == 1 else 'are copies of others'}"
        alike = np.flatnonzero(key == key[first])[:2].tolist()
        words += f" (rows {alike[0]} and {alike[1]}, counted from 0{but})"
        yield Suspicion("copied rows", (), words, "was something joined or entered twice?")


def _copied_columns(columns: Mapping[str, Cells], kinds: Mapping[str, str]) -> Iterator[Suspicion]:
    """Columns of numbers that hold the same in every row; ``rules`` finds those of few values."""
    seen: dict[bytes, str] = {}
    for name, cells in columns.items():
        if kinds[name] == "real" and cells.type in ("int", "float"):
            held = np.where(cells.missing, np.nan, cells.values.astype(np.float64)).tobytes()
            first = seen.setdefault(held, name)
            if first != name:
                words = f"{first!r} and {name!r} hold the same numbers"
                yield Suspicion("copied column", (first, name), words, "drop one of them")


def _rules(columns: Mapping[str, Cells], kinds: Mapping[str, str]) -> Iterator[Suspicion]:
    few = {name: cells for name, cells in columns.items() if kinds[name] in ("category", "ordinal")}
    for rule in rules({name: codes_of(cells) for name, cells in few.items()}):
        names = (rule.of, rule.column)
        if rule.mutual:
            words, advice = f"{rule.of!r} and {rule.column!r} hold the same", "one of them is enough"
        else:
            words, advice = f"{rule.column!r} follows from {rule.of!r}", "drawn rows keep to that"
        if len(rule.broken):
            row = f"{'such as ' if len(rule.broken) > 1 else ''}row {rule.broken[0]}"
            words, advice = f"{words} but in {_rows(len(rule.broken))} ({row})", "are those right?"
        yield Suspicion("rule", names, words, advice)


_CALENDARS = Writing(
    "date",
    formats=tuple(
        day + time for days in ORDERS.values() for day in days if "b" not in day.lower() for time in TIMES
    ),
)


def _rows(count: Any) -> str:
    return "1 row" if count == 1 else f"{int(count):,} rows"


def _day(moment: Any) -> str:
    return str(np.datetime_as_string(moment, unit="auto"))


def _some(labels: list[str]) -> str:
    texts = [repr(label if len(label) <= 40 else f"{label[:39]}…") for label in labels[:3]]
    return ", ".join(texts) + ", …" * (len(labels) > 3)
