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


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_exists_and_every_class_and_function_has_a_doctest(module):
    public = importlib.import_module(module)
    for name in getattr(public, "__all__", []):
        assert hasattr(public, name), f"{module}.__all__ lists {name!r} in vain"
        thing = getattr(public, name)
        if inspect.isclass(thing) or inspect.isroutine(thing):  # not a constant or a type alias
            assert thing.__doc__, f"{module}.{name} has no docstring"
            assert ">>>" in thing.__doc__, f"the docstring of {module}.{name} has no doctest"
