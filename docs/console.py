"""Run the commands and the code of pages again and put in what they print.

    python docs/console.py docs/walkthrough.md docs/guides/*.md        (or: make walkthrough)

Of a page of commands, every block that begins with ``$``: they run one after the other in one empty folder, each in a
shell that stops at its first error. What is cut from an output is cut by the command itself (``head``, ``cut``), so that
the page is what a reader would see. Of a guide, every block of Python that a block of text follows: it has what the code
prints, and the value of its last line as a notebook shows it.
"""

import ast
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SHELL = re.compile(r"```\n(\$ .*?)```", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```(\n\n```text\n.*?```)?", re.DOTALL)
GUIDES = Path(__file__).parent / "guides"
WIDTH = "100"  # of a table on a terminal


def commands(block: str, folder: str, environment: dict[str, str]) -> str:
    """The block with every command followed by what it prints now."""
    found = []
    for command in [line for line in block.splitlines() if line.startswith("$ ")]:
        print(command, flush=True)
        shell = ["bash", "-o", "pipefail", "-c", f"{{ {command[2:]}; }} 2>&1"]
        run = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        found += [command, *(line.rstrip() for line in run.stdout.splitlines())]
    return "\n".join(found) + "\n"


def printed(code: str, space: dict[str, object]) -> str:
    """What a block of Python prints, and its last value."""
    *body, last = ast.parse(code).body
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(ast.Module(body, []), "guide", "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "guide", "eval"), space)
            print("" if value is None else value)
        else:
            exec(compile(ast.Module([last], []), "guide", "exec"), space)
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())


def shown(match: re.Match[str], space: dict[str, object]) -> str:
    """A block of Python, with its output if it has one."""
    text = printed(match[1], space)
    return f"```python\n{match[1]}```" + (f"\n\n```text\n{text}\n```" if match[2] else "")


def guide(path: Path, space: dict[str, object]) -> None:
    """Rewrite one guide, in the names that the index of the guides makes."""
    text = path.read_text("utf-8")
    if "```text\n" in text:
        print(path, flush=True)
        path.write_text(PYTHON.sub(lambda match: shown(match, space), text), "utf-8")


def page(path: Path) -> None:
    """Rewrite one page of commands."""
    here = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": here, "COLUMNS": WIDTH}
    with tempfile.TemporaryDirectory() as folder:
        text = SHELL.sub(
            lambda match: f"```\n{commands(match[1], folder, environment)}```", path.read_text("utf-8")
        )
    path.write_text(text, "utf-8")


def main(paths: list[Path]) -> None:
    """Rewrite all; guides share one fit."""
    guides = [path for path in paths if path.parent.resolve() == GUIDES.resolve() and path.stem != "index"]
    for path in paths:
        if path.parent.resolve() != GUIDES.resolve():
            page(path)
    if guides:
        space: dict[str, object] = {}
        printed(PYTHON.findall((GUIDES / "index.md").read_text("utf-8"))[0][0], space)
        space["pd"].set_option("display.width", 120, "display.max_columns", None)
        for path in guides:
            guide(path, dict(space))


if __name__ == "__main__":
    main([Path(each) for each in sys.argv[1:]])
