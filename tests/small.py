"""Settings of a fit that takes a moment, for tests that ask what is done with a model and not how good it is."""

SMALL = {
    "max_steps": 20,
    "width": 16,
    "blocks": 1,
    "members": 2,
    "orders": 2,
    "batch_size": 64,
    "random_state": 0,
}
