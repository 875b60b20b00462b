"""Rules that a user requests: which are to be kept, and which are not."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

__all__ = ["Wishes", "read_wishes"]

FORM = re.compile(r"(?P<no>not\s+)?(?P<first>.+?)(?:\s*(?:<=|≤)\s*(?P<high>.+)|\s+from\s+(?P<terms>.+))?")
SUCH_AS = "'state from city', 'time from hour and minute', 'start <= end', 'not state' or 'not start <= end'"


class Wishes(NamedTuple):
    """Rules and orders that are asked for, and those that are not wanted.

    >>> Wishes().rules
    ()
    """

    rules: tuple[tuple[str, tuple[str, ...]], ...] = ()  # a column, and those that it follows from
    orders: tuple[tuple[str, str], ...] = ()  # the lower and the higher column
    without: tuple[str, ...] = ()  # columns that no rule, formula or order is about
    not_from: tuple[tuple[str, frozenset[str]], ...] = ()
    unordered: tuple[tuple[str, str], ...] = ()

    def refuse(self, target: str, columns: Collection[str]) -> bool:
        """Whether a rule about a column that follows from others is not wanted."""
        return target in self.without or (target, frozenset(columns)) in self.not_from

    def refuse_order(self, low: str, high: str) -> bool:
        """Whether an order is not wanted."""
        return low in self.without or high in self.without or (low, high) in self.unordered


def read_wishes(sentences: Sequence[str] | None, names: Collection[str]) -> Wishes:
    """Wishes from sentences about columns of these names.

    >>> read_wishes(["state from city", "not start <= end"], ["state", "city", "start", "end"]).unordered
    (('start', 'end'),)
    >>> read_wishes(["state from town"], ["state", "city"])
    Traceback (most recent call last):
    ...
    ValueError: rules: 'state from town' is about 'town', which is not in the table.
    """
    wishes: dict[str, list[object]] = {field: [] for field in Wishes._fields}
    for sentence in sentences or ():
        match = FORM.fullmatch(sentence.strip()) if isinstance(sentence, str) else None
        if match is None:
            raise ValueError(f"rules: expected sentences such as {SUCH_AS}; got {sentence!r}.")
        no, first, high, terms = match.group("no", "first", "high", "terms")
        if high is not None:
            wishes["unordered" if no else "orders"].append(
                (_known(sentence, first, names), _known(sentence, high, names))
            )
        elif terms is not None:
            columns = [terms] if terms in names else re.split(r"\s*,\s*|\s+and\s+", terms)
            others, target = (
                tuple(_known(sentence, name, names) for name in columns),
                _known(sentence, first, names),
            )
            wishes["not_from" if no else "rules"].append((target, frozenset(others) if no else others))
        elif no:
            wishes["without"].append(_known(sentence, first, names))
        else:
            raise ValueError(f"rules: expected sentences such as {SUCH_AS}; got {sentence!r}.")
    return Wishes(**{field: tuple(values) for field, values in wishes.items()})  # type: ignore[arg-type]


def _known(sentence: str, name: str, names: Collection[str]) -> str:
    if name not in names:
        raise ValueError(f"rules: {sentence!r} is about {name!r}, which is not in the table.")
    return name
