"""The package as a whole: light to import, and every public name can be found, read and tried."""

import importlib
import importlib.metadata
import inspect
import pkgutil
import subprocess
import sys

import pytest

import ctem

HEAVY = ("matplotlib", "pandas", "polars", "arviz", "arviz_base", "arviz_stats", "xarray", "zuko")
# __main__ runs the command line when imported
MODULES = ["ctem"] + [
    module.name
    for module in pkgutil.walk_packages(ctem.__path__, "ctem.")
    if not module.name.endswith(".__main__")
]
NAMES = [
    (module, name) for module in MODULES for name in getattr(importlib.import_module(module), "__all__", [])
]


def test_import_is_silent_and_loads_no_optional_package_and_the_report_draws_by_itself():
    code = f"""
import sys, ctem
found = [name for name in {HEAVY} if name in sys.modules]
import ctem.report
sys.exit(', '.join(found + [name for name in sys.modules if name == 'matplotlib']) or 0)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr, run.returncode) == ("", "", 0)


def test_the_version_is_the_installed_one():
    assert ctem.__version__ == importlib.metadata.version("ctem")


def test_the_root_fits_a_screen():
    assert len(ctem.__all__) <= 32, "what most work starts with; the rest is imported from its module"


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_every_public_name_exists(module, name):
    assert hasattr(importlib.import_module(module), name), f"{module}.__all__ lists {name!r} in vain"


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_every_public_class_and_function_has_a_doctest(module, name):
    thing = getattr(importlib.import_module(module), name)
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return  # a constant or a type alias
    assert thing.__doc__, f"{module}.{name} has no docstring"
    assert ">>>" in thing.__doc__, f"the docstring of {module}.{name} has no doctest"
