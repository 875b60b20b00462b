"""Write locks/install.txt and locks/dev.txt: what `make install` and `make install-dev` take, with hashes of its files.

Versions stand in constraints.txt, and nowhere else; this adds what the packages need in turn, on every platform, and
the hashes of all their files. Torch is left out, and with it CUDA: each package index has its own builds of it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESOLVER = "uv==0.13.7"
PYTHON = "3.11.5"  # the oldest that the pinned versions run on
EXTRAS = {"install": ("plot",), "dev": ("dev",)}
UNHASHED = re.compile(r"(torch|triton|cuda-\w+|nvidia-[\w-]+)==")  # builds that differ from index to index
HEAD = "# Written by `make lock` from pyproject.toml and constraints.txt; torch is installed by its version alone.\n"


def resolver(folder: Path) -> Path:
    """The resolver, in an environment of its own."""
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-qq", RESOLVER], check=True)
    return folder / "bin" / "uv"


def resolved(uv: Path, extras: tuple[str, ...], build: Path) -> str:
    """Every package for these extras and for building the project, on all platforms, with the hashes of its files."""
    requested = [part for extra in extras for part in ("--extra", extra)]
    wide = ("--universal", "--generate-hashes", "--python-version", PYTHON)
    plain = ("--no-header", "--no-annotate", "--no-python-downloads", "--system-certs", "--quiet")
    files = ("-c", ROOT / "constraints.txt", ROOT / "pyproject.toml", build)
    command = (uv, "--no-config", "pip", "compile", *wide, *plain, *requested, *files)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def hashed(text: str) -> list[str]:
    """The packages whose files are the same everywhere; each begins at the left margin, its hashes are indented."""
    packages = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    return [package for package in packages if package and not UNHASHED.match(package)]


def main() -> None:
    """Write both files, or stop with the message of the resolver; the second takes in the first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build.in"
        build.write_text("\n".join([*project["build-system"]["requires"], "editables"]) + "\n", "utf-8")
        uv = resolver(Path(folder) / "resolver")
        try:
            packages = {name: hashed(resolved(uv, extras, build)) for name, extras in EXTRAS.items()}
        except subprocess.CalledProcessError as error:
            sys.exit(f"the locks stay as they are: {error.stderr}")
    more = [package for package in packages["dev"] if package not in packages["install"]]
    (ROOT / "locks" / "install.txt").write_text(HEAD + "".join(packages["install"]), "utf-8")
    (ROOT / "locks" / "dev.txt").write_text(HEAD + "-r install.txt\n" + "".join(more), "utf-8")


if __name__ == "__main__":
    main()
