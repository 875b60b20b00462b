"""Settings of a fit that takes a moment, for tests that ask what is done with a model and not how good it is."""

SMALL = {
    "max_steps": 12,
    "width": 16,
    "blocks": 1,
    "members": 2,
    "orders": 2,
    "batch_size": 64,
    "random_state": 0,
}
EXACT = {
    **SMALL,
    "energy": None,
}  # for laws that hold to the last digits; of an energy they do to the error of log Z
TINY = {  # where even that is too long; an energy would take ten times as long as all the rest
    "energy": None,
    "width": 4,
    "blocks": 1,
    "members": 1,
    "orders": 1,
    "batch_size": 16,
    "max_steps": 2,
    "random_state": 0,
}
