"""Pages that lie elsewhere in the repository: results, made from their JSON files, notes on them, and the changelog.

Pages in docs/ link to them as they lie in the repository, so that the links work there too; here the links are turned
to the copies in the site.
"""

import json
import re
import shutil
from pathlib import Path

from experiments.pages import number, pages
from experiments.results import RESULTS

__all__ = ["setup"]

ROOT = Path(__file__).parents[2]
NOTES = ROOT / "experiments" / "notes"
COPIES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
MOVED = (
    (r"\]\((?:\.\./)+experiments/results/README\.md", "](/results/index.md"),
    (r"\]\((?:\.\./)+experiments/results/", "](/results/"),
    (r"\]\(\.\./\.\./docs/", "](/"),
    (r"\]\(\.\./notes/", "](/results/notes/"),
    (r"\]\(\.\./CHANGELOG\.md", "](/changelog.md"),
    (r"\]\(\.\./CONTRIBUTING\.md", "](/contributing.md"),
)
TOGETHER = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"  # a number and its spread stay on one line
MINUS = re.compile(r"(?<=[ *])-(?=\d)")


def _copy(app):
    site = Path(app.srcdir)
    results = site / "results"
    shutil.rmtree(results, ignore_errors=True)
    (results / "notes").mkdir(parents=True)
    found = pages()
    for name, text in found.items():
        whole = MINUS.sub("−", _listed(text, found, name)).replace(" ± ", TOGETHER)
        (results / name.replace("README", "index")).write_text(whole, "utf-8")
    for path in [*RESULTS.glob("*.png"), *RESULTS.glob("*.json")]:
        shutil.copy(path, results)
    for path in NOTES.glob("*.md"):
        shutil.copy(path, results / "notes")
    for source, target in COPIES.items():
        shutil.copy(ROOT / source, site / target)


def _listed(text, found, name):
    """The index also lists its pages for the side bar."""
    if name != "README.md":
        return text
    entries = [page.removesuffix(".md") for page in found if page != "README.md"]
    notes = [f"notes/{path.stem}" for path in sorted(NOTES.glob("*.md"))]
    return text + "\n".join(["", "```{toctree}", ":hidden:", "", *entries, *notes, "```", ""])


def _bench():
    """Seconds and rates of the default call, from the results."""
    files = {"two cores": "bench-nats-main-cpu", "H200": "bench-nats-main-cuda"}
    metrics = {
        "fit, seconds": "fit, seconds",
        "rows scored a second": "rows per second, scored",
        "rows drawn a second": "rows per second, drawn",
    }
    cells, columns = {}, [f"{what}, {where}" for what in metrics for where in files]
    for where, name in files.items():
        for record in json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["records"]:
            what = next((key for key, metric in metrics.items() if metric == record["metric"]), None)
            if what and record["system"] == "CTEM":
                row = cells.setdefault(record["dataset"], {})
                row[f"{what}, {where}"] = number(float(f"{record['mean']:.2g}"), 2)
    lines = [["table", *columns], ["---"] * (1 + len(columns))]
    lines += [[name, *(row.get(column, "") for column in columns)] for name, row in cells.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _turn(app, docname, source):
    if docname == "speed":
        source[0] = source[0].replace("<!-- bench -->", _bench())
    for pattern, target in MOVED:
        source[0] = re.sub(pattern, target, source[0])


def setup(app):
    """What Sphinx calls."""
    app.connect("builder-inited", _copy, priority=100)
    app.connect("source-read", _turn)
    return {"parallel_read_safe": True}
