"""The site: the code in its pages runs, it builds without a warning, and every link inside it leads somewhere."""

import importlib
import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SMALL = "CTEM(max_steps=20, width=16, blocks=1, members=2, orders=2, "
README = ROOT / "README.md"
ENERGIES = DOCS / "energies"
PAGES = [
    DOCS / "start.md",
    DOCS / "index.md",
    *sorted((DOCS / "guides").glob("*.md")),
    *sorted(ENERGIES.glob("*.md")),
]
MATCHING = ("kernels", "losses", "rivals", "noise", "connectivity", "spacetime")
PAPERS_HALF = [
    *("spaces", "bases", "energies", "energy_model", *(f"matching.{name}" for name in MATCHING)),
    *("training", "samplers", "samplers.diagnostics", "partition", "checking", "densities.sequences"),
]
LARGEST = 1_000_000  # bytes of a page, without its pictures


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), re.DOTALL)


LONG = [
    pytest.param(page, marks=pytest.mark.long, id=f"{page.parent.name}/{page.stem}")
    for page in PAGES
    if blocks(page) and page.stem != "tasks"
]
TASKS = dict(zip(("plane", "grid", "bits", "mixed", "digits"), blocks(ENERGIES / "tasks.md"), strict=True))


def small(code: str) -> str:
    """The same code with networks that are fitted in a second."""
    code = re.sub(r"\b(CTEM(?:Imputer|Outlier)?)\(", lambda m: SMALL.replace("CTEM", m[1]), code)
    code = re.sub(r"\bRecipe\(steps=[\d_]+", "Recipe(steps=300", code)
    return code.replace(", )", ")").replace(", verbose=1", "")


def names(path: Path) -> dict[str, object]:
    """What the guides say that is there at their beginning."""
    if path.parent.name != "guides" or path.stem == "index":
        return {}
    space: dict[str, object] = {}
    exec(small(blocks(DOCS / "guides" / "index.md")[0]), space)
    return space


@pytest.mark.parametrize("path", [pytest.param(README, id="README"), *LONG])
def test_the_code_of_a_page_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = names(path)
    for code in blocks(path):
        exec(compile(code if path.parent == ENERGIES else small(code), path.name, "exec"), space)


@pytest.mark.parametrize(
    "task", [pytest.param(t, marks=() if t == "grid" else pytest.mark.long) for t in TASKS]
)
def test_a_task_of_the_energies_is_short_and_as_near_to_the_truth_as_it_says(task):
    code = [line for line in TASKS[task].splitlines() if line.strip()]
    assert len(code) <= 15
    assert sum(line.startswith("assert ") for line in code) == 1
    exec(compile(TASKS[task], task, "exec"), {})


def test_every_public_name_of_the_papers_half_is_on_a_written_page():
    text = " ".join(path.read_text("utf-8") for path in ENERGIES.glob("*.md"))
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    written = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", prose))))
    names = {name for part in PAPERS_HALF for name in importlib.import_module(f"ctem.{part}").__all__}
    assert not names - written


def test_the_cost_page_is_what_its_script_makes_of_the_results():
    found = runpy.run_path(str(DOCS / "cost.py"))
    assert found["page"]() == (DOCS / "cost.md").read_text("utf-8")


def test_docstrings_become_text_in_which_only_code_is_marked(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "_ext")
    from docstrings import to_rst

    lines = [
        "log|x_j| of ``f_`` *now*:",
        "",
        "    a*b = |c|",
        "then more",
        "",
        "Arguments:",
        "    x_: rows, ``(n, d)``,",
        "        or *none*.",
    ]
    assert "\n".join(to_rst(lines)).split("\n") == [
        *("log\\|x\\_j\\| of ``f_`` \\*now\\*:", "", "::", "", "    a*b = |c|", "", "then more", ""),
        *("**Arguments**", "", "", "``x_``", "  rows, ``(n, d)``,", "  or \\*none\\*.", ""),
    ]


class Links(HTMLParser):
    """The marks of a page, and where it leads."""

    def __init__(self, page: Path):
        super().__init__()
        self.marks: set[str] = set()
        self.links: list[str] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.marks |= {found[key] for key in ("id", "name") if found.get(key)}
        self.links += [found[key] for key in ("href", "src") if found.get(key)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-E",
        "-W",
        "--keep-going",
        "-q",
        str(DOCS),
        str(folder),
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ})
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


@pytest.mark.long
def test_every_link_inside_the_site_leads_somewhere_and_no_page_is_large(site):
    pages = {page: Links(page) for page in site.rglob("*.html")}
    assert len(pages) > 60
    broken = []
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            mark = unquote(parts.fragment)
            if not target.is_file() or (mark and target in pages and mark not in pages[target].marks):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert not broken, broken[:20]
    large = [page.name for page in pages if page.stat().st_size > LARGEST]
    assert not large


@pytest.mark.long
def test_every_example_has_drawn_and_none_has_warned(site):
    examples = {path.stem for path in (DOCS / "examples").glob("plot_*.py")}
    drawn = {
        path.stem for path in (site / "gallery").glob("plot_*.html") if "_images/" in path.read_text("utf-8")
    }
    assert drawn == examples
    assert not [name for name in drawn if "Warning" in (site / "gallery" / f"{name}.html").read_text("utf-8")]
