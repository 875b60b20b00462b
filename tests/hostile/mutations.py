"""Changes of headers of model files: those that no fit could have written, and those that another fit might have.

The first must be refused. The second, too, or the file is that of another model, which answers for itself.
"""

import sys
from functools import reduce

from tests.model_files import EVIL, places_in

# of which no density is made
ASIDE = ("settings", "trained", "history", "provenance", "reason", "gap", "late", "original")
# of a curve and a lattice; scores of held-out rows; how a number is written
FREE = {
    "location",
    "knots",
    "scores",
    "slopes",
    "folds",
    "seen",
    "written",
    "decimals",
}
TERMS = {"factors", "constant"}  # of a sum: large enough to be seen
AFAR = {"atoms"}  # a value of its own may be anywhere
COUNTED = {"seen", "shift"}  # one cell, or the first moment, may be far out
WORDS = {"example", "prefix", "suffix", "unit", "missing"}  # of how cells are written
FLAGS = {"written", "ordered", "ranges"}
ABSENT = {"nats", "written", "low", "high"}  # no rows were held out; a column is not written, or has one end


def impossible(header):
    """Every place in a header with every value that no fit could have written there."""
    return [change for change in _all(header) if not _aside(change[0]) and not plausible(header, *change)]


def possible(header):
    """Every place with values that are like what is there, or that another fit might have written."""
    near = [(place, value) for place in places_in(header) if place for value in alike(at(header, place))]
    return near + [change for change in _all(header) if _aside(change[0]) or plausible(header, *change)]


def plausible(header, place, value):
    """Whether the header may then be that of another model: it has free numbers and words."""
    here, among, number = at(header, place), set(place), type(value) in (int, float)
    likewise = type(value) is type(here)
    return (
        (place[-1] in ABSENT and value is None)
        or (bool(FLAGS & among) and likewise and type(value) is bool)
        or ("values" in among and likewise and type(value) in (int, str))  # another label
        or ("missing" in among and value == [])
        or (place[-1] == "share" and likewise and type(value) is list and len(value) == len(here))
        or (bool(WORDS & among) and likewise and type(value) is str)
        or (bool(AFAR & among) and number and abs(value) <= sys.float_info.max)
        or (bool(COUNTED & among) and type(value) is int and abs(value) < 2**63)
        or (bool(TERMS & among) and number and 1e-6 <= abs(value) <= 1)
        or (bool(FREE & among) and number and abs(value) <= 1)
    )


def alike(here):
    """Values of the same type: a number beside it, the other flag, a longer word, a shorter or turned list."""
    if isinstance(here, bool) or here is None:
        return [not here]
    if isinstance(here, int):
        return [here + 1, here - 1, -here, 3 * here]
    if isinstance(here, float):
        return [here + 1, -here, 3 * here, here * (1 + 1e-9), 0.0]
    if isinstance(here, str):
        return [f"{here}x", here[:-1], here.swapcase()]
    if isinstance(here, list):
        return [here[:-1], here[::-1], here + here[-1:]]
    return [{key: here[key] for key in here if key != gone} for gone in here]


def at(header, place):
    """What is at a place of a header."""
    return reduce(lambda part, key: part[key], place, header)


def _all(header):
    """Places with values that are of another type, empty or out of all bounds; not with what is there."""
    changes = ((place, value) for place in places_in(header) if place for value in EVIL)
    return [(place, value) for place, value in changes if not _same(at(header, place), value)]


def _same(one, other):
    return type(one) is type(other) and one == other


def _aside(place):
    return not set(place).isdisjoint(ASIDE)
