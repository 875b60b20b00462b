"""Pages of the reference: one for every folder of the package, and every file at its top, with their public names."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import ctem

__all__ = ["pages", "setup"]

TABLES = ("CTEM", "CTEMImputer", "CTEMOutlier", "inspect", "Real", "Ordinal", "Category")
ASKED = ("fit", "score_samples", "sample", "impute", "conditional", "probability", "outliers", "predict")
FIRST = ("estimators", "report", "datasets")


def modules() -> dict[str, list[str]]:
    """Folder, or file at the top → its modules that have public names."""
    found: dict[str, list[str]] = {}
    for module in pkgutil.walk_packages(ctem.__path__, "ctem."):
        if module.name.endswith(".__main__"):
            continue
        if getattr(importlib.import_module(module.name), "__all__", None):
            inside = module.name.removeprefix("ctem.")
            folder = inside if module.ispkg else inside.rpartition(".")[0]
            found.setdefault(folder or inside, []).append(module.name)
    return dict(sorted(found.items(), key=lambda item: (*_place(item[0]), item[0])))


def _place(name: str) -> tuple[bool, int]:
    return name not in FIRST, FIRST.index(name) if name in FIRST else 0


def pages() -> dict[str, str]:
    """All pages by file name, in reStructuredText."""
    found = {f"{folder}.rst": _page(folder, names) for folder, names in modules().items()}
    return {"index.rst": _index(list(found))} | found


def _index(names: list[str]) -> str:
    entries = "\n".join(f"   {name.removesuffix('.rst')}" for name in names)
    lines = [
        *_heading("Reference", "="),
        "Every public name, from its docstring; the examples in them are run by ``make test``.",
        "",
        *_heading("For tables", "-"),
        "From ``ctem``:",
        "",
        *_links([(name, getattr(ctem, name)) for name in TABLES]),
        "And from modules of their own:",
        "",
        *_contents(names[: len(FIRST)]),
        *_heading("For research and for builders", "-"),
        "The paper's pieces, from ``ctem``:",
        "",
        *_links(
            [(name, getattr(ctem, name)) for name in ctem.__all__ if name not in ("__version__", *TABLES)]
        ),
        "What all of it is made of:",
        "",
        *_contents(names[len(FIRST) :]),
        ".. toctree::",
        "   :hidden:",
        "   :maxdepth: 1",
        "",
        entries,
        "",
        "See also the :doc:`/glossary` and the :doc:`/file-format`.",
    ]
    return "\n".join(lines) + "\n"


def _contents(names: list[str]) -> list[str]:
    """Modules, each with the first line of its docstring."""
    lines = [".. list-table::", "   :widths: 25 75", ""]
    for name in (each.removesuffix(".rst") for each in names):
        first = _sentence(importlib.import_module(f"ctem.{name}"))
        lines += [f"   * - :doc:`ctem.{name} <{name}>`", f"     - {_escaped(first)}"]
    return [*lines, ""]


def _page(folder: str, names: list[str]) -> str:
    lines = _heading(f"ctem.{folder}", "=")
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
    if name == "ctem.estimators.estimator":
        lines += _methods(ctem.CTEM)
    for each, thing in own:
        lines += _directive(name, each, thing)
    return lines


def _methods(kind: type) -> list[str]:
    """What can be asked of a model, each with its first line."""
    lines = [
        f"What a ``{kind.__name__}`` does, in a line each:",
        "",
        ".. list-table::",
        "   :widths: 25 75",
        "",
    ]
    found = sorted(inspect.getmembers(kind, inspect.isfunction), key=lambda item: _asked(item[0]))
    for name, thing in found:
        ours = thing.__module__.startswith("ctem") and not name.startswith("_") and inspect.getdoc(thing)
        if ours and name != "as_frame" and not name.endswith("_request"):
            path = f"{kind.__module__}.{kind.__name__}.{name}"
            lines += [f"   * - :py:obj:`{name} <{path}>`", f"     - {_escaped(ours.split(chr(10))[0])}"]
    return [*lines, ""]


def _asked(name: str) -> int:
    return ASKED.index(name) if name in ASKED else len(ASKED)


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
        first = _sentence(thing)
        home = getattr(thing, "__module__", "ctem")
        lines += [f"   * - :py:obj:`{name} <{home}.{name}>`", f"     - {_escaped(first)}"]
    return [*lines, ""]


def _sentence(thing: object) -> str:
    """The first line of a docstring, or its first sentence where that is longer."""
    whole = (inspect.getdoc(thing) or "").split("\n\n")[0]
    first, _, _ = whole.partition("\n")
    return (
        first if first.endswith((".", ":")) else whole.replace("\n", " ").partition(". ")[0].rstrip(".") + "."
    )


def _escaped(text: str) -> str:
    from docstrings import escaped

    return escaped(text)


def _directive(module: str, name: str, thing: object) -> list[str]:
    path = f"{module}.{name}"
    if inspect.isclass(thing):
        inherited = ["   :inherited-members: DensityMixin"] if name == "CTEM" else []
        return [f".. autoclass:: {path}", "   :members:", *inherited, ""]
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
