"""Pages of the reference: one for every folder and file at the top of the package, with every public name in it."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import ctem

__all__ = ["pages", "setup"]

FIRST = ("estimator", "questions", "imputer", "outliers", "plot", "report", "privacy", "datasets")


def modules() -> dict[str, list[str]]:
    """Top-level name → its modules that have public names."""
    found: dict[str, list[str]] = {}
    for module in pkgutil.walk_packages(ctem.__path__, "ctem."):
        if module.name.endswith(".__main__"):
            continue
        if getattr(importlib.import_module(module.name), "__all__", None):
            found.setdefault(module.name.split(".")[1], []).append(module.name)
    return dict(sorted(found.items(), key=lambda item: (*_place(item[0]), item[0])))


def _place(name: str) -> tuple[bool, int]:
    return name not in FIRST, FIRST.index(name) if name in FIRST else 0


def pages() -> dict[str, str]:
    """All pages by file name, in reStructuredText."""
    found = {f"{top}.rst": _page(top, names) for top, names in modules().items()}
    return {"index.rst": _index(list(found))} | found


def _index(names: list[str]) -> str:
    entries = "\n".join(f"   {name.removesuffix('.rst')}" for name in names)
    lines = [
        *_heading("Reference", "="),
        "Every public name, from its docstring; the examples in them are run by ``make test``. The names in the",
        "table can be imported from ``ctem`` itself, the others from the module that they are listed under.",
        "",
        *_links([(name, getattr(ctem, name)) for name in ctem.__all__ if name != "__version__"]),
        "",
        ".. toctree::",
        "   :maxdepth: 1",
        "",
        entries,
        "",
        "See also the :doc:`/glossary` and the :doc:`/file-format`.",
    ]
    return "\n".join(lines) + "\n"


def _page(top: str, names: list[str]) -> str:
    lines = _heading(f"ctem.{top}", "=")
    for name in names:
        lines += _module(name, alone=len(names) == 1)
    return "\n".join(lines) + "\n"


def _module(name: str, alone: bool) -> list[str]:
    module = importlib.import_module(name)
    things = [(each, getattr(module, each)) for each in module.__all__]
    own = [(each, thing) for each, thing in things if _home(thing, name) == name]
    borrowed = [(each, thing) for each, thing in things if _home(thing, name) != name]
    lines = [] if alone else _heading(name, "-")
    lines += [f".. automodule:: {name}", "   :no-members:", ""]
    lines += _links(borrowed)
    for each, thing in own:
        lines += _directive(name, each, thing)
    return lines


def _home(thing: object, default: str) -> str:
    home = getattr(thing, "__module__", default)
    return home if isinstance(home, str) and home.startswith("ctem") and _documented(thing, home) else default


def _documented(thing: object, home: str) -> bool:
    return getattr(thing, "__name__", None) in getattr(importlib.import_module(home), "__all__", [])


def _links(things: list[tuple[str, object]]) -> list[str]:
    """Names that are documented elsewhere, each with its first line."""
    if not things:
        return []
    lines = [".. list-table::", "   :widths: 25 75", ""]
    for name, thing in things:
        first = (inspect.getdoc(thing) or "").split("\n")[0]
        home = getattr(thing, "__module__", "ctem")
        lines += [f"   * - :py:obj:`{name} <{home}.{name}>`", f"     - {_escaped(first)}"]
    return [*lines, ""]


def _escaped(text: str) -> str:
    from docstrings import escaped

    return escaped(text)


def _directive(module: str, name: str, thing: object) -> list[str]:
    path = f"{module}.{name}"
    if inspect.isclass(thing):
        inherited = ["   :inherited-members: DensityMixin"] if name == "CTEM" else []
        return [f".. autoclass:: {path}", "   :members:", *inherited, "   :show-inheritance:", ""]
    if inspect.isroutine(thing):
        return [f".. autofunction:: {path}", ""]
    return [f".. py:data:: {path}", ""]  # a constant or a type alias


def _heading(text: str, mark: str) -> list[str]:
    return [text, mark * len(text), ""]


def _write(app):
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def setup(app):
    """What Sphinx calls."""
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True}
