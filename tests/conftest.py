"""Hypothesis tries the same examples every time; HYPOTHESIS_PROFILE=search tries new ones. Attacks are counted."""

import os
from collections import Counter

from hypothesis import settings

settings.register_profile("steady", derandomize=True)
settings.register_profile("search", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

TALLIES: dict[str, Counter[str]] = {}


def pytest_runtest_logreport(report):
    """Take in what a test of tests/hostile has counted; also from the process of a worker."""
    for name, value in report.user_properties if report.when == "call" else ():
        if name == "tally":
            what, endings = value
            TALLIES.setdefault(what, Counter()).update(endings)


def pytest_terminal_summary(terminalreporter):
    """One line for each kind of attack: how many there were, and how they ended."""
    if TALLIES:
        terminalreporter.section("attacks")
    for what, endings in sorted(TALLIES.items()):
        counts = ", ".join(f"{count} {ending}" for ending, count in sorted(endings.items()) if count)
        terminalreporter.line(f"{endings.total()} {what}: {counts}")
