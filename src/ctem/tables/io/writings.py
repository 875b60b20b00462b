"""How people write numbers, dates and times as text: read into numbers, and written back the same way.

A :class:`Writing` is the notation of one column. ``ctem.tables.io.recognition`` reads it off the cells when a model is
fitted; it is kept with the type of the table, and every later table is read and written by it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctem.tables.io.cells import Cells, counts_of, factorise

__all__ = ["GAPS", "MARKERS", "SPANS", "Writing", "span_seconds"]

GAPS = (  # what marks a missing cell in any column: what ``pandas.read_csv`` takes for one, and a few more
    *("", "?", "NA", "N/A", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA", "n.a.", "N.A.", "NULL", "null", "None"),
    *("NaN", "nan", "-NaN", "-nan", "NaT", "1.#IND", "1.#QNAN", "-1.#IND", "-1.#QNAN"),
    *("#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!"),
)
MARKERS = (*GAPS, "-", "--", ".", "na", "none")  # among numbers, dates and times, where these are no labels
NOUNS = {  # of every kind: what a cell is, and what the column holds
    **{"number": ("a number", "numbers"), "date": ("a date", "dates"), "month": ("a month", "months")},
    **{"clock": ("a time of day", "times of day"), "duration": ("a duration", "durations")},
    **{"bool": ("a boolean", "booleans"), "label": ("text", "text")},
}
DATED, TIMED = ("date", "month"), ("clock", "duration")
THOUSANDS = ("", ",", ".", " ", "\u00a0", "'", "’")
DAY = 86_400
PARTS = {"y": "year", "m": "month", "d": "day", "b": "month"}
MOST_DIGITS = 15
SPANS = {  # seconds
    **dict.fromkeys(("d", "day", "days"), DAY),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
}


@dataclass(frozen=True)
class Writing:
    """The notation of a column of text.

    Arguments:
        kind: "number"; "date"; "month" (of a year); "clock" (a time of day); "duration"; "bool"; or "label", text in
            which only gaps are marked.
        example: a cell as it came; of "label", the marks of gaps that came, as a sentence has them.
        prefix, suffix: around every number or date: "$", " %", "+02:00"; of booleans, how true and false are spelled.
        decimal, thousands: marks within numbers; thousands may be empty.
        digits: after the decimal mark, as they are written back; −1 for as many as it takes.
        formats: of dates and months, as in ``datetime.strptime``; the first one is written back.
        padded: days, months and hours below ten are written with a zero.
        seconds: of times, are written.
        brackets: negative numbers are written in brackets: "($9.50)".
        units: of durations such as "2h 46m", what follows each number, the longest first: "h ", "m".
        cut: of times of day, where the day is cut open, in seconds: where there are no times.
        missing: text that marks a missing cell.

    >>> price = Writing("number", "$1,234.50", prefix="$", thousands=",", digits=2)
    >>> price.parsed("$1,234.50"), price.text(-9.5)
    (1234.5, '-$9.50')
    """

    kind: str
    example: str = ""
    prefix: str = ""
    suffix: str = ""
    decimal: str = "."
    thousands: str = ""
    digits: int = -1
    formats: tuple[str, ...] = ()
    padded: bool = True
    seconds: bool = False
    cut: int = 0
    missing: tuple[str, ...] = ()
    brackets: bool = False
    units: tuple[str, ...] = ()

    def parsed(self, text: str) -> float | int | None:
        """The value of a cell, in the numbers of ``cells``; None if it is not in this notation."""
        text = text.strip()
        if self.kind == "number":
            return self._number(text)
        if self.kind in DATED:
            return self._date(text)
        if self.kind == "bool":
            return {self.prefix.lower(): 1.0, self.suffix.lower(): 0.0}.get(text.lower())
        seconds = span_seconds(text) if self.units else _clock_seconds(text)
        if seconds is None or (self.kind == "clock" and seconds >= DAY):
            return None
        return float(seconds if self.kind == "duration" else (seconds - self.cut) % DAY // self.tick)

    def between(self, name: str, low: Any, high: Any) -> list[tuple[Any, Any]]:
        """Of times of day from one to another, the ranges of numbers; over midnight if the second is earlier.

        >>> evening = Writing("clock", "20:30", cut=14 * 3600)
        >>> evening.between("at", "08:00", "17:00"), evening.between("at", "22:00", "01:00")
        ([(0.0, 180.0), (1080.0, 1439.0)], [(480.0, 660.0)])
        """
        ends = [end.strftime("%H:%M:%S") if isinstance(end, dt.time) else end for end in (low, high)]
        if any(end is not None and not isinstance(end, str) for end in ends):
            return [(low, high)]
        last_second = ends[1] in (None, "24:00", "24:00:00")
        clock = ["00:00:00" if ends[0] is None else ends[0], "23:59:59" if last_second else ends[1]]
        first, last = (self.parsed(end) for end in clock)
        if first is None or last is None:
            strange = clock[0] if first is None else clock[1]
            raise ValueError(f"column {name!r}: expected {self.in_words()}; got {strange!r}.")
        return [(first, last)] if first <= last else [(0.0, last), (first, float(DAY // self.tick - 1))]

    @property
    def tick(self) -> int:
        """Seconds that one step of a time of day is long."""
        return 1 if self.seconds else 60

    def cells(self, name: str, labels: Cells) -> Cells:
        """Cells of numbers, moments or durations from cells of text; one that cannot be read is an error.

        But for booleans: what is none stays the text that it is, a label that was never seen.
        """
        marks = set(self.missing if self.kind == "label" else (*self.missing, *MARKERS))
        places = [i for i, label in enumerate(labels.labels) if str(label).strip() in marks]
        gone = labels.missing | np.isin(labels.values, places) if places else labels.missing
        if self.kind == "label":
            return replace(labels, missing=gone)
        table = [self.parsed(str(label)) for label in labels.labels] or [0]
        place = np.where(gone, 0, labels.values)
        wrong = np.array([value is None for value in table])[place] & ~gone
        if wrong.any() and self.kind == "bool":
            return _with_text(labels, gone, table)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"column {name!r}, row {labels.first + row}: expected {self.in_words()}, as in fit; "
                f"got {labels.labels[labels.values[row]]!r}."
            )
        return self._made(
            _numbers([0 if value is None else value for value in table])[place], gone, labels.first
        )

    def labels(self, cells: Cells) -> Cells:
        """Cells of text from what ``cells`` made."""
        if self.kind == "bool" and cells.type == "label":
            texts = (label if isinstance(label, str) else self.text(label) for label in cells.labels)
            return replace(cells, labels=tuple(texts))
        if self.kind == "label" or cells.type == "label":
            return cells
        if self.kind == "date":
            values = cells.to_list()
        else:
            values = (counts_of(cells, "s") if self.kind == "duration" else cells.values).tolist()
        known = [self.text(v) for v, gone in zip(values, cells.missing.tolist(), strict=True) if not gone]
        codes, labels = factorise(known, cells.missing)
        return Cells("label", codes, cells.missing, tuple(str(label) for label in labels))

    def text(self, value: Any) -> str:
        """One value as it is written."""
        if self.kind == "number":
            return self._digits(float(value))
        if self.kind == "date":
            return self._day(value)
        if self.kind == "month":  # counted from January of the year 0, held at the ends of the calendar
            year, month = divmod(min(max(int(value), 12), 12 * dt.MAXYEAR + 11), 12)
            return self._day(dt.datetime(year, month + 1, 1))
        if self.kind == "bool":
            return self.prefix if value else self.suffix
        if self.units:
            return self._span(int(value))
        seconds = int(value) if self.kind == "duration" else (int(value) * self.tick + self.cut) % DAY
        hours, minutes = divmod(seconds // 60, 60)
        text = f"{hours:02d}:{minutes:02d}" if self.padded else f"{hours}:{minutes:02d}"
        return f"{text}:{seconds % 60:02d}" if self.seconds else text

    def in_words(self) -> str:
        """What a cell of the column is."""
        return f"{NOUNS[self.kind][0]} such as {self.example!r}"

    def sentence(self) -> str:
        """How the column is read.

        >>> Writing("date", "3/21/2023", formats=("%m/%d/%Y",)).sentence()
        "text such as '3/21/2023', read as dates by month, day, year"
        """
        gaps = self.example if self.kind == "label" else " and ".join(map(repr, self.missing))
        also = f"{gaps} count{'' if ' and ' in gaps else 's'} as missing" if gaps else ""
        if self.kind == "label":
            return also
        order = [PARTS[letter.lower()] for letter in re.findall(r"%([YymdbB])", "".join(self.formats[:1]))]
        what = f"{NOUNS[self.kind][1]} by {', '.join(order)}" if order else NOUNS[self.kind][1]
        ways = f"written in {len(self.formats)} ways" if len(self.formats) > 1 else ""
        notes = "; ".join(filter(None, (ways, also)))
        return f"text such as {self.example!r}, read as {what}" + (f" ({notes})" if notes else "")

    def to_json(self) -> dict[str, Any]:
        """This record as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Writing:
        """The record that ``to_json`` wrote; anything else is refused.

        >>> Writing.from_json(Writing("clock", "08:30").to_json()).kind
        'clock'
        """
        lists = {name: data.get(name, ()) for name in ("formats", "missing", "units")}
        made = cls(**{**data, **{name: tuple(items) for name, items in lists.items()}})
        texts = (made.example, made.prefix, made.suffix, *made.formats, *made.missing, *made.units)
        fine = (
            made.kind in NOUNS
            and all(isinstance(items, list | tuple) for items in lists.values())
            and all(isinstance(text, str) and len(text) < 1000 for text in texts)
            and all(isinstance(flag, bool) for flag in (made.padded, made.seconds, made.brackets))
            and (made.decimal, made.thousands) in product(".,", THOUSANDS)
            and made.thousands != made.decimal
            and type(made.digits) is type(made.cut) is int
            and -1 <= made.digits <= MOST_DIGITS
            and 0 <= made.cut < DAY
            and (made.kind in DATED) == bool(made.formats)
            and all(_unit(unit) in SPANS for unit in made.units)
            and (made.kind in TIMED or (made.cut, made.seconds, made.units) == (0, False, ()))
            and (made.kind == "label" or made.parsed(made.example) is not None)
        )
        if not fine:
            raise ValueError(f"written: expected a notation of {', '.join(NOUNS)}; got {dict(data)}.")
        return made

    def _made(self, values: NDArray[Any], gone: NDArray[np.bool_], first: int) -> Cells:
        if self.kind == "number":
            if self.digits == 0 and values.dtype.kind in "iu":
                return Cells("int", values, gone, first=first)
            return Cells("float", np.where(gone, np.nan, values.astype(np.float64)), gone, first=first)
        counts = np.where(gone, 0, values).astype(bool if self.kind == "bool" else np.int64)
        if self.kind in ("clock", "month"):
            return Cells("int", counts, gone, first=first, text=self.text)
        type, unit = {"bool": ("bool", ""), "date": ("moment", self.unit), "duration": ("duration", "s")}[
            self.kind
        ]
        return Cells(type, counts, gone, unit=unit, first=first)

    @property
    def unit(self) -> str:
        """Of dates: days, seconds or microseconds."""
        joined = "".join(self.formats)
        return "us" if "%f" in joined else "s" if "%H" in joined or "%I" in joined else "D"

    def _number(self, text: str) -> float | int | None:
        text = text.removeprefix("+")
        sign, bare = ("-", text[1:].lstrip()) if text[:1] in ("-", "−") else ("", text)
        if self.brackets and text[:1] == "(" and text[-1:] == ")":
            sign, bare = "-", text[1:-1].strip()
        if not bare.startswith(self.prefix) or not bare.endswith(self.suffix):
            return None
        bare = bare[len(self.prefix) : len(bare) - len(self.suffix)].strip()
        if not sign and bare[:1] in ("-", "−"):
            sign, bare = "-", bare[1:]
        if not number_pattern(self.decimal, self.thousands).fullmatch(bare):
            return None
        plain = sign + bare.replace(self.thousands or "\0", "").replace(self.decimal, ".")
        whole = bare.isdecimal() or (self.thousands and plain.lstrip("-").isdecimal())
        return int(plain) if whole else float(plain)

    def _digits(self, value: float) -> str:
        text = f"{abs(value):,.{self.digits}f}" if self.digits >= 0 else f"{abs(value):,.15g}"
        text = text.replace(",", "\0").replace(".", self.decimal).replace("\0", self.thousands)
        below = value < 0 and re.search("[1-9]", text)
        whole = f"{self.prefix}{text}{self.suffix}"
        return whole if not below else f"({whole})" if self.brackets else f"-{whole}"

    def _span(self, seconds: int) -> str:
        """Seconds in units, the longest first; those of which there are none only if padded."""
        text = ""
        for unit in self.units:
            count, seconds = divmod(seconds, SPANS[_unit(unit)])
            if count or self.padded:
                text += f"{count}{unit}"
        return (text or f"0{self.units[-1]}").rstrip(" ,")

    def _date(self, text: str) -> float | None:
        if not text.endswith(self.suffix):
            return None
        bare = text.removesuffix(self.suffix)
        for form in self.formats:
            try:
                exact = _iso(form)
                quick = exact is not None and exact.fullmatch(bare)
                moment = dt.datetime.fromisoformat(bare) if quick else dt.datetime.strptime(bare, form)
            except ValueError:
                continue
            if moment.tzinfo is not None:
                moment = moment.astimezone(dt.UTC).replace(tzinfo=None)
            if self.kind == "month":
                return float(12 * moment.year + moment.month - 1)
            return float((np.datetime64(moment, "us")).astype(f"M8[{self.unit}]").astype(np.int64))
        return None

    def _day(self, value: Any) -> str:
        moment = value if isinstance(value, dt.datetime) else dt.datetime(value.year, value.month, value.day)
        form = self.formats[0].replace("%z", "")
        text = moment.strftime(form).replace(moment.strftime("%Y"), f"{moment.year:04d}", 1)
        if "%f" in form and 0 <= self.digits < 6:
            text = text[: len(text) - 6 + self.digits]
        zone = "+00:00" if form != self.formats[0] else self.suffix
        return (text if self.padded else re.sub(r"(?<!\d)0(?=\d)", "", text)) + zone


@cache
def _iso(form: str) -> re.Pattern[str] | None:
    """What a format of ISO makes, which Python reads twenty times as fast as other formats; None for those."""
    if not re.fullmatch(r"%Y-%m-%d(?:[ T]%H:%M(?::%S(?:\.%f)?)?)?", form):
        return None
    digits = {"%Y": r"\d{4}", "%f": r"\d{6}"}
    parts = re.sub(r"\.", r"[.]", form)
    return re.compile(re.sub(r"%\w", lambda match: digits.get(match[0], r"\d\d"), parts), re.ASCII)


def _with_text(labels: Cells, gone: NDArray[np.bool_], known: Sequence[float | None]) -> Cells:
    """Booleans, and text that is none."""
    pairs = zip(labels.labels, known, strict=True)
    read = [label if value is None else bool(value) for label, value in pairs]
    listed = list(dict.fromkeys([*read, True, False]))
    codes = np.array([listed.index(item) for item in read])[np.where(gone, 0, labels.values)]
    return replace(labels, values=np.where(gone, -1, codes), missing=gone, labels=tuple(listed))


def _numbers(values: Sequence[float | int]) -> NDArray[Any]:
    """Whole numbers as such, where all are and 64 bits hold them; else float64."""
    if all(isinstance(value, int) for value in values):
        for kind in (np.int64, np.uint64):
            if np.iinfo(kind).min <= min(values) and max(values) <= np.iinfo(kind).max:
                return np.array(values, kind)
    return np.array(values, np.float64)


def number_pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    """The pattern of an unsigned number with these marks.

    >>> bool(number_pattern(",", ".").fullmatch("1.234,5")), bool(number_pattern(".", ",").fullmatch("3,14"))
    (True, False)
    """
    point = re.escape(decimal)
    plain = rf"(?:\d+(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?"
    if not thousands:
        return re.compile(plain)
    return re.compile(rf"(?:[1-9]\d{{0,2}}(?:{re.escape(thousands)}\d{{3}})+(?:{point}\d*)?|{plain})")


def _clock_seconds(text: str) -> int | None:
    match = re.fullmatch(r"(\d{1,4}):([0-5]\d)(?::([0-5]\d))?", text)
    if not match:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds


def span_seconds(text: str) -> int | None:
    """The seconds of a duration written in units, the longest first.

    >>> span_seconds("2h 46m"), span_seconds("1 day, 3 hours"), span_seconds("46m 2h")
    (9960, 97200, None)
    """
    if not re.fullmatch(r"\d+ ?[a-z]+(,? ?\d+ ?[a-z]+)*", text, re.IGNORECASE):
        return None
    parts = re.findall(r"(\d+) ?([a-z]+)", text, re.IGNORECASE)
    sizes = [SPANS.get(_unit(unit), 0) for _, unit in parts]
    if 0 in sizes or sizes != sorted(set(sizes), reverse=True):
        return None
    total = sum(int(count) * size for (count, _), size in zip(parts, sizes, strict=True))
    return total if total < 2**53 else None


def _unit(text: str) -> str:
    return text.strip(" ,").lower()
