"""What `make install` takes: the pinned versions, each file by its hash, and everything that they need in turn."""

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest

pytest.importorskip("packaging")
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from locks.write import EXTRAS, UNHASHED

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def text(lock):
    """The lock with the lock that it takes in."""
    own = (ROOT / "locks" / f"{lock}.txt").read_text("utf-8")
    return re.sub(r"^-r (\w+)\.txt$", lambda found: text(found[1]), own, flags=re.MULTILINE)


def packages(lock):
    """Name and version → the hashes."""
    blocks = re.split(r"^(?=[^\s#])", text(lock), flags=re.MULTILINE)[1:]
    found = {re.match(r"([\w.-]+)==(\S+)", block).groups(): block for block in blocks}
    assert len(found) == len(blocks)
    return {
        key: re.findall(r"--hash=sha256:([0-9a-f]{64})(?= \\\n|\n)", block) for key, block in found.items()
    }


def pinned():
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


@pytest.mark.parametrize("lock", EXTRAS)
def test_every_locked_package_has_the_pinned_version_and_hashes_and_names_no_index(lock):
    found = packages(lock)
    assert {name: version for name, version in found} == {name: pinned()[name] for name, _ in found}
    assert [name for (name, _), hashes in found.items() if not hashes] == []
    assert "://" not in text(lock)
    assert "index" not in text(lock)


def needed(requirements, extras=()):
    """The names that these requirements ask for on this machine, and what those need in turn."""
    found, todo = set(), [(Requirement(each), extras) for each in requirements]
    while todo:
        asked, extras = todo.pop()
        wanted = not asked.marker or any(asked.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        name = canonicalize_name(asked.name)
        if wanted and (name, frozenset(asked.extras)) not in found:
            found.add((name, frozenset(asked.extras)))
            todo += [(Requirement(each), tuple(asked.extras)) for each in requires(name) or ()]
    return {name for name, _ in found} - {"ctem"}


@pytest.mark.parametrize("lock", EXTRAS)
def test_what_the_project_and_its_extras_need_is_locked_or_comes_with_torch(lock):
    locked = {name for name, _ in packages(lock)}
    missing = needed([f"ctem[{','.join(EXTRAS[lock])}]"]) - locked
    assert "torch" in missing & pinned().keys()
    assert [name for name in missing if not UNHASHED.match(f"{name}==")] == []


def test_the_backend_that_builds_the_project_is_locked_in_the_version_that_the_project_asks_for():
    (backend,) = PROJECT["build-system"]["requires"]
    assert tuple(backend.split("==")) in packages("install")
    assert "editables" in {name for name, _ in packages("install")}  # for what is installed with -e
