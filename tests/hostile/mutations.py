"""Headers of model files with one value changed, of which none may be accepted that no fit could have written."""

import copy


def places_in(header, at=()):
    """Paths to every value in a header: of a list the first and the last."""
    yield at
    if isinstance(header, dict):
        for key, value in header.items():
            yield from places_in(value, (*at, key))
    elif isinstance(header, list) and header:
        for i in sorted({0, len(header) - 1}):
            yield from places_in(header[i], (*at, i))


def put(header, place, value):
    """A header with another value at a place."""
    made = copy.deepcopy(header)
    inner = made
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return made


HARMLESS = ("settings", "trained", "history", "provenance", "reason", "gap", "late", "original")
# of a column's curve; scores of held-out rows; of a sum; how a number is written
FREE = {
    "location",
    "knots",
    "scores",
    "slopes",
    "folds",
    "factors",
    "constant",
    "seen",
    "written",
    "decimals",
}
OLDER = {"seen", "held_out", "worth", "nats"}  # what a model of an older format does not have
EVIL = (
    10**12,
    -1,
    1e308,
    1e-300,
    float("nan"),
    float("inf"),
    "x",
    None,
    [],
    {},
    True,
    [0] * 5,
    10**400,
    "A" * 10**5,
)


def made_up(header, rng):
    """Places in a header and what is put there, where it matters; the same ones every time."""
    places = [p for p in places_in(header) if p and not set(p) & set(HARMLESS)]
    while True:
        place, value = places[int(rng.integers(len(places)))], EVIL[int(rng.integers(len(EVIL)))]
        if not plausible(header, place, value):
            yield place, value


def plausible(header, place, value):
    """Whether the header may then be that of another model, which answers for itself: it has free numbers."""
    for key in place:
        header = header[key]
    same = type(value) is type(header) and value == header
    same = same or (place[-1] in OLDER and value is None)
    same = same or ("seen" in place and type(value) is int and value < 2**63)  # one cell may be far out
    same = same or ("written" in place and type(value) is type(header) is bool)
    same = same or ("values" in place and type(value) is type(header) is int)  # another label
    return same or (bool(FREE & set(place)) and type(value) in (int, float) and abs(value) <= 1)
