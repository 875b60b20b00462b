"""Which columns of text hold numbers, dates or times, and how those are written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctem.tables.io.cells import Cells
from ctem.tables.io.frame import Frame, TableType
from ctem.tables.io.writings import DAY, GAPS, MARKERS, SPANS, Writing, span_seconds

__all__ = ["Reading", "plain_type", "read_written", "recognised"]

BEFORE = "$ € £ ¥ ₹ US$ R$ USD EUR GBP CHF kr Rs"  # numbers
AFTER = (
    "% ‰ ° °C °F € $ £ kr EUR USD kg g mg t lb lbs oz km m cm mm mi ft in mph km/h h hr hrs hours min mins minutes "
    "s sec ms days years yrs kB MB GB K V W kW kWh Hz l ml"
)
MARKS = (".", ".,", ",", ",.", ". ", ", ", ",\u00a0", ".'", ".’")  # of decimals, and of thousands behind it
ORDERS = {
    "ymd": ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d"),
    "mdy": ("%m/%d/%Y", "%m-%d-%Y", "%m.%d.%Y", "%m/%d/%y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y"),
    "dmy": (
        *("%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%d/%m/%y", "%d.%m.%y"),
        *("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y"),
    ),
}
TIMES = (
    *("", " %H:%M", " %H:%M:%S", "T%H:%M", "T%H:%M:%S", " %H:%M:%S.%f", "T%H:%M:%S.%f"),
    *(" %I:%M %p", " %I:%M:%S %p"),
)
MONTHS = (
    *("%Y-%m", "%Y/%m", "%m/%Y", "%m-%Y"),
    *("%b-%Y", "%b %Y", "%b. %Y", "%b, %Y", "%B %Y", "%B-%Y", "%B, %Y", "%Y %b", "%Y-%b", "%Y %B"),
)
YEARS = (1700, 2200)  # of months: other numbers of four digits may be parts of a code
BOOLEANS = (("True", "False"), ("TRUE", "FALSE"), ("true", "false"))
CODE = r"[+-]?0[\dxX]"  # how 00084 and 0x1F begin, which are codes, and no numbers
LONG = r"[+-]?\d{16,}"  # whole numbers that float64 may round
OFFSET = re.compile(r"(?<=\d)([+-]\d\d:?\d\d|Z)$")  # of a time from UTC
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")
TRIED = 50  # cells, before all are


@dataclass(frozen=True)
class Reading:
    """What the user sets of how text is written; None and nothing leave it to the text.

    Arguments:
        decimal: the mark within numbers, "." or ",".
        dates: the order of day, month and year: "dmy", "mdy" or "ymd".
        na: more text, or numbers, that mark a missing cell.

    >>> Reading.of({"decimal": ","}).decimal
    ','
    """

    decimal: str | None = None
    dates: str | None = None
    na: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None) -> Reading:
        """From a dict with some of decimal, dates and na."""
        settings = dict(settings or {})
        if unknown := [key for key in settings if key not in ("decimal", "dates", "na")]:
            raise ValueError(f"reading: expected some of 'decimal', 'dates' and 'na'; got {unknown[0]!r}.")
        made = cls(settings.get("decimal"), settings.get("dates"), tuple(map(str, settings.get("na") or ())))
        if made.decimal not in (None, ".", ","):
            raise ValueError(f"reading: expected decimal '.' or ','; got {made.decimal!r}.")
        if made.dates not in (None, *ORDERS):
            raise ValueError(f"reading: expected dates of {', '.join(ORDERS)}; got {made.dates!r}.")
        return made


def recognised(frame: Frame, reading: Reading, kinds: Mapping[str, str]) -> Frame:
    """The frame with columns of text as the numbers, dates and times that they hold.

    Arguments:
        reading: what the user sets for all columns.
        kinds: of some columns, as the user requests: "category" and "ordinal" stay text.

    >>> from ctem.tables.io.frame import read_frame
    >>> X = np.array([["12 %", "a"], ["7 %", "?"], ["30 %", "b"]])
    >>> read = recognised(read_frame(X), Reading(), {})
    >>> read.columns["x0"].values, read.columns["x1"].missing
    (array([12,  7, 30]), array([False,  True, False]))
    """
    writings = {
        field.name: _writing(frame.columns[field.name], reading, kinds.get(field.name))
        for field in frame.table_type.fields
    }
    return _converted(frame, {name: writing for name, writing in writings.items() if writing is not None})


def read_written(frame: Frame, table_type: TableType) -> Frame:
    """The frame with columns of text read as those of the fit were.

    >>> from ctem.tables.io.frame import read_frame
    >>> fitted = recognised(read_frame(np.array([["12 %", "a"], ["7 %", "b"], ["30 %", "b"]])), Reading(), {})
    >>> read_written(read_frame(np.array([["5 %", "a"]])), fitted.table_type).columns["x0"].values.tolist()
    [5]
    """
    written = {field.name: field.written for field in table_type.fields if field.name in frame.columns}
    return _converted(
        frame, {name: Writing.from_json(how) for name, how in written.items() if how is not None}
    )


def _converted(frame: Frame, writings: Mapping[str, Writing]) -> Frame:
    columns, fields = dict(frame.columns), {field.name: field for field in frame.table_type.fields}
    for name, writing in writings.items():
        cells = columns[name]
        if cells.type == "label":
            columns[name] = writing.cells(name, cells)
        elif writing.kind == "label" and cells.type in ("int", "float"):
            codes = [float(code) for code in writing.missing if NUMBER.fullmatch(code)]
            columns[name] = replace(cells, missing=cells.missing | np.isin(cells.values, codes))
        else:
            continue
        fields[name] = replace(fields[name], written=writing.to_json())
    return Frame(replace(frame.table_type, fields=tuple(fields.values())), columns)


def _writing(cells: Cells, reading: Reading, kind: str | None) -> Writing | None:
    """The notation of a column; None for what is no text, and for categories that the table declares."""
    if cells.type in ("int", "float"):
        return Writing("label", missing=reading.na) if reading.na else None
    if cells.type != "label" or cells.declared or not all(isinstance(label, str) for label in cells.labels):
        return None
    marks, codes = {*MARKERS, *reading.na}, np.unique(cells.values[~cells.missing]).tolist()
    used = dict.fromkeys(str(cells.labels[code]).strip() for code in codes)
    texts = [text for text in used if text not in marks]
    if kind not in ("category", "ordinal") and texts:
        made = next((writing for reader in READERS if (writing := reader(texts, reading)) is not None), None)
        if made is not None:
            first = replace(made, formats=made.formats[:1])  # an example of what is most common
            example = next((text for text in texts if first.parsed(text) is not None), texts[0])
            return replace(made, example=example, missing=tuple(sorted(marks & set(used))))
    gaps = (*gaps_of(kind), *reading.na)
    came = " and ".join(repr(text) for text in used if text and text in gaps)
    return Writing("label", example=came, missing=gaps)


def gaps_of(kind: str | None) -> tuple[str, ...]:
    """What marks a missing cell among labels: where the user requests labels, nothing but an empty cell.

    >>> "NA" in gaps_of(None), "NA" in gaps_of("category")
    (True, False)
    """
    return ("",) if kind in ("category", "ordinal") else GAPS


def plain_type(text: Any) -> Any:
    """The pyarrow type of text in Arrow's own notation: numbers, booleans, dates and times; None for any other.

    Arguments:
        text: a pyarrow array without blanks around; null where missing.

    >>> plain_type(pa.array(["1", "20"])), plain_type(pa.array(["007", "20"])), plain_type(pa.array(["2020-01-31"]))
    (DataType(int64), None, DataType(date32[day]))
    """
    if pc.any(pc.match_substring_regex(text, f"^{CODE}")).as_py():
        return None
    times = [pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("s", "ms", "us", "ns")]
    for kind in (pa.int64(), pa.uint64(), pa.float64(), pa.bool_(), pa.date32(), *times):
        try:
            text.slice(0, TRIED).cast(kind)  # Arrow words an error of every cell that it cannot cast
            made = text.cast(kind)
        except pa.ArrowInvalid:
            continue
        if pa.types.is_floating(kind):
            return None if _merged(text, made) else kind
        if pa.types.is_integer(kind) or pc.all(pc.equal(made.cast(pa.string()), text)).as_py():
            return kind
        known = text.drop_null().unique().to_pylist()  # a notation that a model keeps is left to it
        if pa.types.is_boolean(kind):
            return None if any(set(known) <= set(pair) for pair in BOOLEANS) else kind
        dated = _date(known, Reading())
        return kind if dated is None or "%z" in dated.formats[0] else None
    return None


def _merged(text: Any, numbers: Any) -> bool:
    """Whether whole numbers that differ are one float64: those of so many digits name something, and stay text."""
    whole = pc.all(pc.match_substring_regex(text, f"^{LONG}$")).as_py()
    return bool(whole) and pc.count_distinct(numbers).as_py() < pc.count_distinct(text).as_py()


def _number(texts: list[str], reading: Reading) -> Writing | None:
    if any(re.match(CODE, text) for text in texts) or not any(map(str.isdigit, texts[0])):
        return None
    if all(re.fullmatch(LONG, text) for text in texts) and plain_type(pa.array(texts)) is None:
        return None
    inside = [_inside(text) for text in texts]
    brackets, affixes = inside != texts, set(_affixes(inside[0]))
    for prefix, suffix in sorted(affixes, key=lambda pair: -len(pair[0]) - len(pair[1])):
        for decimal, thousands in ((mark[0], mark[1:]) for mark in MARKS):
            made = Writing("number", "", prefix, suffix, decimal, thousands, brackets=brackets)
            if reading.decimal in (None, decimal) and _reads(made, texts):
                grouped = thousands and any(re.search(rf"\d{re.escape(thousands)}\d", text) for text in texts)
                return replace(made, digits=_digits(inside, made), thousands=thousands if grouped else "")
    return None


def _inside(text: str) -> str:
    """What is in the brackets of a negative number, as accountants write it; other text as it is."""
    return text[1:-1].strip() if text[:1] == "(" and text[-1:] == ")" else text


def _affixes(text: str) -> Iterator[tuple[str, str]]:
    bare = text.lstrip("+-−").strip()
    for prefix in ("", *BEFORE.split()):
        if bare.startswith(prefix):
            yield prefix, ""
            for unit, space in product(AFTER.split(), ("", " ", "\u00a0")):
                if bare.endswith(space + unit):
                    yield prefix, space + unit


def _reads(made: Writing, texts: list[str]) -> bool:
    return all(made.parsed(text) is not None for text in texts)


def _digits(texts: list[str], made: Writing) -> int:
    """The most digits after the decimal mark; −1 with exponents or very many."""
    if any(re.search(r"\d[eE]", text) for text in texts):
        return -1
    most = max(len(text.removesuffix(made.suffix).partition(made.decimal)[2].strip()) for text in texts)
    return most if most <= 9 else -1


def _date(texts: list[str], reading: Reading) -> Writing | None:
    if not re.search(r"\d", texts[0]):
        return None
    offsets = {offset[0] if offset else "" for offset in map(OFFSET.search, texts)}
    suffix, zone = (offsets.pop(), "") if len(offsets) == 1 else ("", "" if "" in offsets else "%z")
    slashes = any("/" in text for text in texts)  # with dots and dashes the day comes first
    for order in [reading.dates] if reading.dates else ["mdy", "dmy"] if slashes else ["dmy", "mdy"]:
        forms = [day + time + zone for day, time in product((*ORDERS["ymd"], *ORDERS[order]), TIMES)]
        if used := _used_formats(texts, Writing("date", suffix=suffix), forms):
            fractions = [text.removesuffix(suffix).rpartition(".")[2] for text in texts if "." in text]
            digits = max(map(len, fractions)) if any("%f" in form for form in used) else -1
            return _as_padded(Writing("date", suffix=suffix, formats=used, digits=digits), texts[:TRIED])
    return None


def _month(texts: list[str], reading: Reading) -> Writing | None:
    """Months of a year: "Jan-2015", "2015-01"; they are counted, so that each is as long as the others."""
    if not re.search(r"\d", texts[0]):
        return None
    used = _used_formats(texts, Writing("month"), list(MONTHS))
    made = Writing("month", formats=used)
    if not used or not all(YEARS[0] <= int(made.parsed(text) or 0) // 12 < YEARS[1] for text in texts):
        return None
    return _as_padded(made, texts[:TRIED])


def _as_padded(made: Writing, texts: list[str]) -> Writing:
    """With zeros before numbers below ten (and units of which there are none), or without: as more texts have it."""

    def alike(writing: Writing) -> int:
        value = {text: writing.parsed(text) for text in texts}
        if made.kind == "date":
            moments = Cells(
                "moment", np.array([*value.values()], np.int64), np.zeros(len(value), bool), unit=made.unit
            )
            value = dict(zip(value, moments.to_list(), strict=True))
        return sum(writing.text(value[text]) == text for text in texts)

    loose = replace(made, padded=False)
    return made if alike(made) >= alike(loose) else loose


def _used_formats(texts: list[str], kind: Writing, forms: list[str]) -> tuple[str, ...]:
    """The formats that the texts are in, the most common first; none if some text is in none of them."""
    counts = Counter[str]()
    singles = {form: replace(kind, formats=(form,)) for form in forms}
    for text in texts:
        ordered = [form for form, _ in counts.most_common()] + [form for form in forms if form not in counts]
        form = next((form for form in ordered if singles[form].parsed(text) is not None), None)
        if form is None:
            return ()
        counts[form] += 1
    return tuple(form for form, _ in counts.most_common())


def _clock(texts: list[str], reading: Reading) -> Writing | None:
    seconds = all(text.count(":") == 2 for text in texts)
    padded = all(text.index(":") == 2 for text in texts if ":" in text)
    made = Writing("clock", padded=padded, seconds=seconds)
    if _reads(made, texts):
        return replace(made, cut=_cut(made, texts))
    longer = replace(made, kind="duration")
    return longer if _reads(longer, texts) else None


def _span(texts: list[str], reading: Reading) -> Writing | None:
    """Durations in units, of which one at least has two: "2h 46m", "50m"."""
    parts = [re.findall(r"\d+( ?)([a-zA-Z]+)(,? ?)(?=\d|$)", text) for text in texts]
    if max(map(len, parts)) < 2 or any(span_seconds(text) is None for text in texts):
        return None
    apart = Counter(end for cell in parts for *_, end in cell[:-1]).most_common(1)[0][0]
    seen = Counter((unit, space, end) for cell in parts for space, unit, end in cell).most_common()
    units = {SPANS[unit.lower()]: f"{space}{unit}" for (unit, space, _), _ in reversed(seen)}
    ordered = [units[size] for size in sorted(units, reverse=True)]
    made = Writing("duration", units=(*(f"{unit}{apart}" for unit in ordered[:-1]), ordered[-1]))
    return _as_padded(made, texts)


def _boolean(texts: list[str], reading: Reading) -> Writing | None:
    if {text.lower() for text in texts} - {"true", "false"}:
        return None
    pair = max(BOOLEANS, key=lambda pair: sum(text in pair for text in texts))
    return Writing("bool", prefix=pair[0], suffix=pair[1])


def _cut(made: Writing, texts: list[str]) -> int:
    """Where the widest time without any cell ends: the day is cut open there."""
    times = np.unique([int(made.parsed(text) or 0) * made.tick for text in texts])
    after = np.diff(np.append(times, times[0] + DAY))
    return int(times[(int(after.argmax()) + 1) % len(times)])


READERS = (_number, _date, _month, _clock, _span, _boolean)
