"""The page of promises: the tests that it names exist, and the counts that it states are theirs."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf8")
COUNTS = {
    "kills": ("test_kills", lambda m: m.KILLS),
    "flips": ("test_model_files", lambda m: m.FLIPS),
    "truncations": ("test_model_files", lambda m: m.TRUNCATIONS),
    "crafted files": ("test_model_files", lambda m: m.CRAFTED),
    "of them made to exhaust": ("test_model_files", lambda m: len(m.BOMBS)),
    "hostile names": ("test_names", lambda m: len(m.NAMES)),
    "tables with relations and gaps": ("test_events", lambda m: m.FEW),
    "kinds of input": ("test_inputs", lambda m: len(m.FITTED) + len(m.REFUSED)),
    "well-formed ugly files": ("test_ugly_csv", lambda m: m.WELL_FORMED),
    "spoiled files": ("test_ugly_csv", lambda m: m.MALFORMED),
}


def test_every_test_that_the_page_names_exists():
    named = set(re.findall(r"tests/[a-z_/]+\.py", PAGE))
    assert len(named) > 10
    assert not [path for path in named if not (ROOT / path).is_file()]


@pytest.mark.parametrize("what", COUNTS)
def test_the_page_counts_as_the_tests_do(what, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests" / "hostile")
    name, count = COUNTS[what]
    fresh = name not in sys.modules
    found = count(import_module(name))
    if fresh:
        sys.modules.pop(name)
    assert f"{found} {what}" in PAGE


def test_every_promise_names_a_test():
    promises = [
        line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| promise")
    ]
    assert len(promises) > 20
    assert not [line for line in promises if not re.search(r"tests/[a-z_/]+\.py", line)]


def test_numbers_of_long_tests_are_those_that_they_try():
    for words, path, number in (
        ("600 fuzzed tables", "test_fuzz.py", "max_examples=600"),
        ("300 changes of a header", "test_crafted_headers.py", "SOME, FEW, MANY = 300, 40, 300"),
        (
            "three made-up tables",
            "test_p_values.py",
            'QUICKLY = ("heavy tails", "gaps", "a value of its own")',
        ),
    ):
        assert words in PAGE
        assert number in (ROOT / "tests" / path).read_text(encoding="utf8")
