"""Run the commands of a page again and put in what they print: every block that begins with ``$``.

    python docs/console.py docs/walkthrough.md        (or: make walkthrough)

The commands of a page run one after the other in one empty folder, each in a shell that stops at its first error. What is
cut from an output is cut by the command itself (``head``, ``cut``), so that the page is what a reader would see.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r"```\n(\$ .*?)```", re.DOTALL)
WIDTH = "100"  # of a table on a terminal


def outputs(block: str, folder: str, environment: dict[str, str]) -> str:
    """The block with every command followed by what it prints now."""
    found = []
    for command in [line for line in block.splitlines() if line.startswith("$ ")]:
        print(command, flush=True)
        shell = ["bash", "-o", "pipefail", "-c", f"{{ {command[2:]}; }} 2>&1"]
        run = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        found += [command, *(line.rstrip() for line in run.stdout.splitlines())]
    return "\n".join(found) + "\n"


def main(path: Path) -> None:
    """Rewrite one page."""
    here = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": here, "COLUMNS": WIDTH}
    with tempfile.TemporaryDirectory() as folder:
        text = BLOCK.sub(
            lambda match: f"```\n{outputs(match[1], folder, environment)}```", path.read_text("utf-8")
        )
    path.write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
