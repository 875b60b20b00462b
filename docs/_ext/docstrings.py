"""Docstrings of this library as reStructuredText.

They are written to be read in an editor: a first line, formulas that are indented, ``Arguments:``, doctests. Here a
formula becomes a literal block, the arguments become a list, and marks that mean something to Sphinx are escaped.
"""

import re
from collections.abc import Iterator

__all__ = ["setup", "to_rst"]

HEADINGS = ("Arguments:", "Attributes:")
CODE = re.compile(r"(``.+?``|:[a-z]+:`[^`]+`)")  # and roles


def to_rst(lines: list[str]) -> list[str]:
    """The lines of a docstring, as reStructuredText."""
    return [line for block in _blocks(lines) for line in [*_block(block), ""]]


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Runs of lines without a blank one; what is indented, or belongs to a heading, stays together."""
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            if block and _is_formula(block) and not line.startswith(" "):
                yield block
                block = []
            block.append(line)
        elif block:
            yield block
            block = []


def _is_formula(block: list[str]) -> bool:
    return block[0].startswith("    ")


def _block(block: list[str]) -> list[str]:
    if block[0].lstrip().startswith(">>>"):
        return block
    if block[0].strip() in HEADINGS:
        return [f"**{block[0].strip()[:-1]}**", "", *_fields(block[1:])]
    if _is_formula(block):
        return ["::", "", *block]
    return [_line(line) for line in block]


def _line(line: str) -> str:
    """A line of a paragraph or of a list."""
    return f"* {escaped(line[2:])}" if line.startswith("* ") else escaped(line)


def _fields(lines: list[str]) -> Iterator[str]:
    """``name: text``, indented by four, as a definition list."""
    for line in lines:
        if line.startswith("     "):
            yield "  " + escaped(line.strip())
            continue
        name, _, text = line.strip().partition(": ")
        yield from ("", f"``{name}``", "  " + escaped(text))


def escaped(text: str) -> str:
    """Text whose marks are plain, but for ``code``."""
    parts = CODE.split(text)
    return "".join(p if CODE.fullmatch(p) else re.sub(r"([\\*_|`])", r"\\\1", p) for p in parts)


def _skip(app, what, name, thing, skip, options):
    """What scikit-learn adds to every estimator, and documents itself."""
    foreign = str(getattr(thing, "__module__", "") or "").startswith("sklearn")
    return True if foreign or name.endswith("_request") else skip


def _process(app, what, name, thing, options, lines):
    lines[:] = to_rst(lines)


def setup(app):
    """What Sphinx calls."""
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True}
