"""Write one page per table from experiments/results/*.json, ours beside published numbers, and say which are stale.

    python -m experiments.pages        (or: make results)

A result is stale when a function that its run entered is nowhere in the library any more (``results.changed``), or when
it was made before results named their functions.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from experiments.results import RESULTS, changed, replace_bytes

KEYS = ("experiment", "created", "version", "device", "torch", "wall_s", "command", "settings", "records")
ABOUT = tomllib.loads((RESULTS.parent / "abouts.toml").read_text(encoding="utf-8"))
BEFORE = "before digests"  # why a result is stale that names no functions
OLDER = "older"
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

Result = dict[str, Any]
Rows = Sequence[dict[str, Any]]


class Page(NamedTuple):
    """One table or figure: the results that it shows, with how the settings of each came about.

    ``sources`` are patterns of file names; the first that fits says how a file's settings were chosen. There is a table
    for each value of ``split`` (and for each of ``parts`` that is in the name of a data set), or one for all.
    """

    name: str
    sources: Mapping[str, str]
    split: str | None = "metric"
    parts: Sequence[str] = ()
    pictures: Sequence[str] = ()
    published: str = "inline"  # in the cell, or a "column" of its own
    notes: str | None = None  # the file in experiments/notes that tells how the settings were chosen


OUT_OF_FOLD = "a draft on the truth, then out-of-fold nats"
PEERS = "peers' defaults, changed once in their favour"
DEFAULTS = "defaults, chosen on validation rows; one run"
BENCH = "everyone's defaults; one run"
GROUPS = (
    " columns",
    ", a step",
)  # of the bench's data sets: made-up tables that grow, and the budget of a step
PAGES = (
    Page("tables", {"tables-CTEM*": DEFAULTS, "tables-*": PEERS}, notes="tables"),
    Page("samples", {"samples*": DEFAULTS}, notes="tables"),
    Page("margins", {"margins*": DEFAULTS}, split=None),
    Page("titanic", {"titanic*": DEFAULTS}, notes="tables"),
    Page("harpoon", {"harpoon*": DEFAULTS}, notes="tables"),
    Page("adbench", {"adbench*": "the score on half of the sets"}, notes="tables"),
    Page("binary", {"binary*": DEFAULTS}, split=None, published="column", notes="tables"),
    Page(
        "imputation",
        {"imputation-peers": PEERS, "imputation-miceforest": PEERS, "imputation*": DEFAULTS},
        notes="tables",
    ),
    Page("uses", {"uses-peers": PEERS, "uses*": DEFAULTS}),
    Page("large", {"large*": "one run"}, split="dataset"),
    Page("bench-cpu", {"bench-*-cpu": BENCH}, parts=GROUPS, pictures=("bench-cpu.png",)),
    Page("bench-cuda", {"bench-*-cuda": BENCH}, parts=GROUPS, pictures=("bench-cuda.png",)),
    Page("ablation", {"ablation*": "nothing was chosen on it; one run"}),
    Page(
        "table1",
        {
            "table1-ours-*": OUT_OF_FOLD,
            "table1-kde-*": "calibrated to the published rows",
            "table1-ctem-*": "the paper's settings",
            "table1-[!c]*": "the paper's steps; widths and rates fixed once",
        },
        pictures=("../../docs/table1-densities.png",),
        notes="table1",
    ),
    Page(
        "figures",
        {"figures-*": "fits of Table 1"},
        pictures=tuple(f"../../docs/table1-{part}.png" for part in ("scores", "langevin", "sweep", "curves")),
        notes="table1",
    ),
    Page(
        "robustness",
        {"robustness*": "defaults of Table 1; nothing chosen on these sets"},
        notes="table1",
    ),
    Page(
        "table2",
        {"table2": "a draft on the truth, then held-out nats"},
        pictures=("table2.png",),
        notes="table2",
    ),
    Page(
        "choices",
        {"table1-choice": "seeds that no table uses", "table2_choices": "seed 0 of the five of Table 2"},
        notes="table1",
    ),
    Page(
        "stress",
        {"stress": "settings of Table 2 at half its width; seen once before"},
        parts=(", n = ", "radius", "path of 12 states"),
        pictures=("stress.png",),
        notes="table2",
    ),
    Page(
        "mixed",
        {"mixed": "width, rate and steps on the truth; stopping on held-out rows"},
        pictures=("mixed-marginal.png", "mixed-labels.png"),
        notes="mixed",
    ),
    Page(
        "images",
        {
            "mnist-slopes": "defaults; the second run followed a look at top-1",
            "mnist-*": "settings of the 8 × 8 digits, fixed before; one run",
            "digits-*": "the number of comparisons on test rows, the rest before",
        },
        split="dataset",
        pictures=tuple(f"{n}-{part}.png" for n in ("mnist", "digits") for part in ("samples", "curves")),
        notes="images",
    ),
)


def load(path: Path) -> Result:
    """One result, with its file's name."""
    result: Result = json.loads(path.read_text(encoding="utf-8"))
    missing = [key for key in KEYS if key not in result]
    if missing:
        raise ValueError(f"{path.name}: expected the keys of results.write; missing {', '.join(missing)}.")
    return result | {"name": path.stem}


def results_of(folder: Path) -> list[tuple[Page, list[Result]]]:
    """The results of every page in the order of its sources; each result is on one page."""
    found: dict[str, list[Result]] = {}
    for path in sorted(folder.glob("*.json")):
        if path.stem.endswith("-quick"):
            continue
        homes = [page.name for page in PAGES if _source(page, path.stem) is not None]
        if len(homes) != 1:
            names = ", ".join(homes) or "none"
            raise ValueError(
                f"{path.name}: expected one page of experiments/pages.py to show it; got {names}."
            )
        found.setdefault(homes[0], []).append(load(path))
    return [(page, sorted(found[page.name], key=_place(page))) for page in PAGES if page.name in found]


def _source(page: Page, name: str) -> str | None:
    return next((pattern for pattern in page.sources if fnmatch(name, pattern)), None)


def _place(page: Page) -> Callable[[Result], tuple[int, list[str]]]:
    """By source, then by name, 2d before 10d."""

    def place(result: Result) -> tuple[int, list[str]]:
        parts = [part.zfill(4) for part in re.split(r"(\d+)", result["name"])]
        return list(page.sources).index(str(_source(page, result["name"]))), parts

    return place


def stale(result: Result) -> str:
    """Why a result is stale: which functions have changed; "" if it is not."""
    if "code" not in result:
        return BEFORE
    gone = _changed(json.dumps(result["code"]))
    more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
    return f"{gone[0]}{more} changed" if gone else ""


@cache
def _changed(code: str) -> list[str]:
    return changed(json.loads(code))


def text_of(page: Page, results: Sequence[Result]) -> str:
    """One page: the numbers, the pictures, and where they come from."""
    about = ABOUT[page.name]
    lines = [f"# {about['title']}", "", about["about"], *_legend(page, results)]
    for heading, records in sections(page, worded(unique(results), about.get("words", {}))):
        lines += ["", *([f"## {heading}", ""] if heading else []), *table(records, page.published)]
    for picture in (each for each in page.pictures if (RESULTS / each).is_file()):
        lines += ["", f"![{Path(picture).stem}]({picture})"]
    return "\n".join([*lines, "", "## Where the numbers come from", "", *provenance(page, results)]) + "\n"


def _legend(page: Page, results: Sequence[Result]) -> list[str]:
    """What ± and italics mean, where there are any."""
    records = [record for result in results for record in result["records"]]
    said = ["Mean ± standard deviation over seeds."] if any(r["std"] for r in records) else []
    if page.published == "inline" and any(r["paper"] is not None for r in records):
        said += ["*Italic*: the published number."]
    return ["", " ".join(said)] if said else []


def worded(records: Rows, words: Mapping[str, str]) -> Rows:
    """Records whose names are those of abouts.toml; a metric without a word is left out."""
    shown = [r for r in records if words.get(r["metric"]) != ""]
    axes = ("dataset", "system", "metric")
    return [r | {axis: words.get(r[axis], r[axis]) for axis in axes} for r in shown]


def unique(results: Sequence[Result]) -> Rows:
    """All records, one of each set, system and metric: of two the newer, where the first one stood."""
    found: dict[tuple[str, str, str], tuple[str, dict[str, Any]]] = {}
    for created, record in ((each["created"], record) for each in results for record in each["records"]):
        key = (record["dataset"], record["system"], record["metric"])
        if key not in found or created > found[key][0]:
            found[key] = (created, record)
    return [record for _, record in found.values()]


def sections(page: Page, records: Rows) -> list[tuple[str, Rows]]:
    """The tables of a page, by heading; what only one system has is in one table of its own."""
    if page.split is None:
        return [("", records)]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        part = next((p.strip(", =") for p in page.parts if p in record["dataset"]), "")
        found.setdefault((record[page.split], part), []).append(record)
    alone: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for heading, of in list(found.items()) if page.split == "metric" else []:
        if len(systems := {r["system"] for r in of}) == 1:
            alone.setdefault((f"{systems.pop()} alone", heading[1]), []).extend(found.pop(heading))
    named = [(", ".join(filter(None, heading)), of) for heading, of in found.items()]
    return [*named, *((_alone(", ".join(filter(None, heading)), of), of) for heading, of in alone.items())]


def _alone(heading: str, records: Rows) -> str:
    """With the name of what is measured, if that is one thing: the table does not say it."""
    metrics = {record["metric"] for record in records}
    return f"{metrics.pop()}, {heading}" if len(metrics) == 1 else heading


def table(records: Rows, published: str = "inline") -> list[str]:
    """Sets, systems and metrics on two axes: what there is one of is left out, and the longer axis goes down."""
    axes = {axis: list(dict.fromkeys(r[axis] for r in records)) for axis in ("dataset", "system", "metric")}
    several = [axis for axis, values in axes.items() if len(values) > 1]
    down, across = _axes(axes, several)
    cells = {(_key(r, down), r[across]): r for r in records}
    more = [r for r in records if r["paper"] is not None] if published == "column" else []
    papers = {_key(r, down): str(number(r["paper"])) for r in more}
    columns, keys = axes[across], list(dict.fromkeys(_key(r, down) for r in records))
    same = _shared(keys)
    lines = [row([same.strip(), *columns, *(["published"] if more else [])])]
    lines.append(rule(1 + len(columns) + bool(more)))
    for key in keys:
        values = [_cell(cells.get((key, column)), published) for column in columns]
        lines.append(row([key.removeprefix(same), *values, *([papers.get(key, "—")] if more else [])]))
    return lines


def _shared(keys: Sequence[str]) -> str:
    """The words that all keys begin with."""
    pairs = zip(min(keys), max(keys), strict=False)
    common = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) if len(keys) > 1 else ""
    return common[: common.rfind(" ") + 1]


def _axes(axes: Mapping[str, Sequence[str]], several: Sequence[str]) -> tuple[list[str], str]:
    """What goes down (one axis or two) and what goes across."""
    if several == ["dataset", "metric"]:
        return ["dataset"], "metric"
    if len(several) == 2:
        long, short = sorted(several, key=lambda axis: -len(axes[axis]))
        return [long], short
    if len(several) < 2:
        return [*several, *([] if several else ["metric"])], "system" if several != ["system"] else "metric"
    return ["dataset", "metric"], "system"


def _key(record: dict[str, Any], down: Iterable[str]) -> str:
    return ", ".join(record[axis] for axis in down)


def _cell(record: dict[str, Any] | None, published: str) -> str:
    if record is None:
        return ""
    mean, std, metric = record["mean"], record["std"], record["metric"]
    nats = 2 if abs(mean) >= 10 else 3
    enough = {"nats": nats, "C2ST": 3, "seconds": 2, "AUC": 1 if mean > 1 else 3}  # decimals that are read
    most = next((n for word, n in enough.items() if word in metric), max(4, places_of(mean, 3)))
    whole = f"{mean:.0f}" if metric.startswith("columns") else number(mean)
    ours = f"{mean:.{nats}f}" if "nats" in metric else whole
    if std and "10" in ours.partition("×")[2]:
        ours += f" ± {number(std, 2)}"
    elif std:
        ours = " ± ".join(f"{value:,.{min(places_of(std, 2), most)}f}" for value in (mean, std))
    paper = f" · *{number(record['paper'])}*" if published == "inline" and record["paper"] is not None else ""
    return f"{ours}{paper}"


def provenance(page: Page, results: Sequence[Result]) -> list[str]:
    """An item for every run: its files, how settings were chosen, when and where it ran, its command, and its state."""
    runs: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        chosen, day = page.sources[str(_source(page, result["name"]))], result["created"][:10]
        key = result["command"], chosen, stale(result), day, result["device"], result.get("commit") or ""
        runs.setdefault(key, []).append(result)
    lines = []
    for (command, chosen, why, day, device, commit), of in runs.items():
        seeds = sorted({record["seeds"] for result in of for record in result["records"]})
        seconds = duration(sum(r["wall_s"] for r in of))
        names = ", ".join(f"[{r['name']}]({r['name']}.json)" for r in of)
        span = "seeds: " + (f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}")
        state = f"**{OLDER}**: {why}" if why else "current"
        made = [chosen, span, day, device, seconds, *([commit[:7]] if commit else [])]
        lines.append(f"* {names}: `{command}`; {', '.join(made)}; {state}.")
    if page.notes:
        lines += ["", f"How settings were chosen: [notes](../notes/{page.notes}.md)."]
    return lines


def index(found: Iterable[tuple[Page, Sequence[Result]]]) -> str:
    """The page of pages."""
    lines = [
        "# Results",
        "",
        "Every benchmark of the documentation is on one of these pages, with the command that made it. A result is",
        "*older* if a function of the library that its run entered has changed since; its page says which.",
        "",
        row(["page", "what it asks", "results"]),
        rule(3),
    ]
    for page, results in found:
        old, about = sum(bool(stale(result)) for result in results), ABOUT[page.name]
        state = f"{old} of {len(results)} older" if old else "current"
        lines.append(
            row([f"[{about['title']}]({page.name}.md)", re.split(r"(?<=[.?]) ", about["about"])[0], state])
        )
    return "\n".join(lines) + "\n"


def pages(folder: Path = RESULTS) -> dict[str, str]:
    """All pages of a folder by file name, the index first."""
    found = results_of(folder)
    return {"README.md": index(found)} | {f"{page.name}.md": text_of(page, of) for page, of in found}


def row(cells: Sequence[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in (c.replace("|", "\\|") for c in cells)) + "|"


def rule(columns: int) -> str:
    return "|-" * columns + "|"


def number(value: float | str | None, digits: int = 3) -> str:
    """So many significant digits; what was printed is left as it is."""
    if value is None or isinstance(value, str):
        return "—" if value is None else value
    size = abs(float(f"{value:.{digits}g}"))  # as rounded, so that 999.6 is a thousand
    if size and not 1e-5 <= size < 1e9:
        factor, power = f"{value:.{digits - 1}e}".split("e")
        return f"{factor} × 10{str(int(power)).translate(RAISED)}"
    if size >= 1e4:
        value = float(f"{value:.{digits}g}")
    return f"{value:,.{places_of(value, digits)}f}" if size else "0"


def places_of(value: float, digits: int) -> int:
    """Decimals that show so many significant digits."""
    rounded = float(f"{value:.{digits}g}")
    return max(0, digits - 1 - math.floor(math.log10(abs(rounded)))) if rounded else 0


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def main() -> None:
    for name, text in pages().items():
        replace_bytes(RESULTS / name, text.encode())
    found = [result for _, results in results_of(RESULTS) for result in results]
    old = [f"  {result['name']}: {why}" for result in found if (why := stale(result))]
    print("\n".join([f"{len(found)} results, {len(old)} stale; pages in {RESULTS}", *old]))


if __name__ == "__main__":
    main()
