"""Changes of headers of model files, of which none may be accepted that no fit could have written."""

from tests.model_files import EVIL, places_in

HARMLESS = ("settings", "trained", "history", "provenance", "reason", "gap", "late", "original")
# of a column's curve; of its wall clock; scores of held-out rows; of a sum; how a number is written
FREE = {
    "location",
    "knots",
    "scores",
    "slopes",
    "turns",
    "offsets",
    "folds",
    "factors",
    "constant",
    "seen",
    "written",
    "decimals",
}
ABSENT = {"nats"}  # where no rows were held out to measure by


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
    same = same or (place[-1] in ABSENT and value is None)
    same = same or ("seen" in place and type(value) is int and value < 2**63)  # one cell may be far out
    same = same or ("written" in place and type(value) is type(header) is bool)
    same = same or ("values" in place and type(value) is type(header) is int)  # another label
    return same or (bool(FREE & set(place)) and type(value) in (int, float) and abs(value) <= 1)
