"""The rooms of the house: how many there are, what may import what, and how long a function may be."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
LAYERS = (  # each imports only those before it; a folder stands for the files that lie directly in it
    "persistence",
    "spaces",
    "bases",
    "energies",
    "matching.kernels",
    "matching",
    "training",
    "samplers",
    "partition",
    "densities",
    "densities.anyorder",
    "densities.sequences",
    "densities.spacetime",
    "densities.tilted",
    "tables.io",
    "tables.margins",
    "tables.encoding",
    "tables.relations",
    "tables.inference",
    "tables",
    "tables.answers",
    "energy_model",
    "fitting",
    "persistence.models",
    "estimators",
    "report",
    "checking",
    "cli",
    "__main__",
    "datasets",
    "benchmarks",
)
FILES = sorted(SOURCE.rglob("*.py"))
LONGEST = 40  # lines of a function


def module(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module(path): path for path in FILES}


@cache
def imports(path: Path) -> set[str]:
    """The modules of the library that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = (f"{node.module}.{alias.name}" for alias in node.names if alias.name != "__version__")
            found |= {name if name in NAMES else node.module for name in inner}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name in NAMES}


def layer(name: str) -> int:
    """A module's place among the layers: that of its folder, or its own at the top of the package."""
    inner = name.removeprefix("ctem.")
    folder = inner if NAMES[name].name == "__init__.py" or "." not in inner else inner.rpartition(".")[0]
    assert folder in LAYERS, f"{name}: its folder has no place in LAYERS of tests/test_layers.py"
    return LAYERS.index(folder)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"ctem"}))
def test_a_module_imports_only_from_its_own_layer_and_those_before(name):
    later = [other for other in imports(NAMES[name]) if other == "ctem" or layer(other) > layer(name)]
    assert not later, f"{name} imports {later}"


def test_no_two_modules_import_each_other_through_others():
    TopologicalSorter({name: imports(path) - {name} for name, path in NAMES.items()}).prepare()


def test_the_top_of_the_package_fits_one_screen():
    top = [path for path in (SOURCE / "ctem").iterdir() if path.name not in ("__pycache__", "py.typed")]
    assert len(top) <= 20
    assert sum(path.is_file() for path in top) <= 7


@pytest.mark.parametrize("path", FILES, ids=module)
def test_no_function_is_too_long(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            assert node.end_lineno - first.lineno < LONGEST, f"{path.name}: {node.name} wants splitting"
