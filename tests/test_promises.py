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
