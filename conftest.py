"""What takes longest of a small fit, its energy and its realism, is short in tests and in examples of docstrings.

A short plan has all that a whole one has, two rounds and draws for log Z, so that what holds of every energy can be
seen of it; a judge of samples is trained on one partition of the rows and not on three.
"""

import pytest

from ctem.densities.tilted import Plan
from ctem.fitting import learning
from ctem.tables.answers import realism

SHORT = Plan(rounds=2, draws=2.0, trees=60, patience=10, fresh=2000, steps=200)


@pytest.fixture(scope="session", autouse=True)
def _short_fits():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "PLANS", dict.fromkeys(learning.PLANS, SHORT))
        patch.setattr(realism, "REPEATS", 1)
        yield
