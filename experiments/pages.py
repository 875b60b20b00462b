"""Write one page per table from experiments/results/*.json, ours beside published numbers; list the oldest results.

    python -m experiments.pages        (or: make results)

A page says when and how its results were made, and how many commits have touched ``src`` since. It is counted up to the
last such commit when the page is written, which the page names: a later commit does not make the page wrong.
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

from experiments.results import RESULTS, git, replace_bytes

KEYS = ("experiment", "created", "device", "versions", "wall_s", "command", "settings", "records")
TEXTS = 1  # of a list of drawn texts, on a page
ABOUT = tomllib.loads((RESULTS.parent / "abouts.toml").read_text(encoding="utf-8"))
SHORT = 120  # characters of settings that a page shows; longer ones are in the file alone
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


COUPLINGS = "how couplings are learned on the truth of other seeds, mirroring on validation images; one run"
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
    Page("rules", {"rules*": "nothing was chosen on them; one run of short fits without an energy"}),
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
    Page(
        "energy",
        {"energy*": "the numbers of draws, trees and steps on seed 0 of these tables"},
        split="metric",
        notes="tables",
    ),
    Page("ablation", {"ablation*": "nothing was chosen on it; one run"}),
    Page(
        "table1",
        {
            "table1-chosen-*": "layers and folds by held-out distance on other seeds",
            "table1-ours-*": OUT_OF_FOLD,
            "table1-kde-*": "calibrated to the published rows",
            "table1-ctem-*": "the paper's settings",
            "table1-stopped-*": "the paper's settings, the step by held-out loss; ended by the clock before 30-D",
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
        "referee",
        {
            "referee-ours": "nothing was chosen on them; one run, 2 million new rows of the protocol a seed",
            "referee-*": COUPLINGS,
        },
        split="metric",
    ),
    Page(
        "text",
        {
            "text-t*": "sizes and rates before any run; the scale of an energy on validation text; one run",
            "text-samplers": "defaults; nothing was chosen on them; one run",
        },
        split="dataset",
    ),
    Page(
        "labelled",
        {
            "labelled-mnist": "settings of the 8 × 8 digits, fixed before; one run",
            "labelled-digits": "guessing was delayed after a look at 100 labels on test rows; one run",
            "labelled-grey": "defaults; one run",
        },
        split="dataset",
        pictures=("labelled-mnist.png", "labelled-digits.png"),
    ),
    Page(
        "beside",
        {"labelled-beside": "draws and steps after one run had too few effective draws for log Z; one run"},
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
    records = [{"paper": None, **record} for record in result["records"]]
    return result | {"name": path.stem, "records": records}


def results_of(folder: Path) -> list[tuple[Page, list[Result]]]:
    """The results of every page in the order of its sources; each result is on one page."""
    by_page: dict[str, list[Result]] = {}
    for path in sorted(folder.glob("*.json")):
        if path.stem.endswith("-quick"):
            continue
        homes = [page.name for page in PAGES if _source(page, path.stem) is not None]
        if len(homes) != 1:
            names = ", ".join(homes) or "none"
            raise ValueError(
                f"{path.name}: expected one page of experiments/pages.py to show it; got {names}."
            )
        by_page.setdefault(homes[0], []).append(load(path))
    return [(page, sorted(by_page[page.name], key=_place(page))) for page in PAGES if page.name in by_page]


def _source(page: Page, name: str) -> str | None:
    return next((pattern for pattern in page.sources if fnmatch(name, pattern)), None)


def _place(page: Page) -> Callable[[Result], tuple[int, list[str]]]:
    """By source, then by name, 2d before 10d."""

    def place(result: Result) -> tuple[int, list[str]]:
        parts = [part.zfill(4) for part in re.split(r"(\d+)", result["name"])]
        return list(page.sources).index(str(_source(page, result["name"]))), parts

    return place


@cache
def distance(commit: str | None) -> int | None:
    """How many commits that touch ``src`` lie between a result's commit and HEAD; None if git does not know it."""
    count = git("rev-list", "--count", f"{commit.removesuffix('+')}..HEAD", "--", "src") if commit else None
    return None if count is None else int(count)


def origin(result: Result) -> str:
    """A result's commit and its distance, in words."""
    commit = result.get("commit")
    if not commit:
        return "its commit was not recorded"
    changed = " with changes that were not committed" if commit.endswith("+") else ""
    n = distance(commit)
    since = "which this history does not have" if n is None else f"{_commits(n)} since"
    return f"commit {commit.removesuffix('+')[:7]}{changed}, {since}"


def _commits(n: int) -> str:
    return f"{n or 'no'} commit{'' if n == 1 else 's'} of `src`"


def _as_of() -> str:
    """Up to which commit distances are counted."""
    last = git("log", "-1", "--format=%H %cs", "HEAD", "--", "src")
    if not last:
        return "There is no git history here, so commits since then are not counted."
    commit, day = last.split()
    return f"Commits of `src` are counted as of {commit[:7]} ({day})."


def text_of(page: Page, results: Sequence[Result]) -> str:
    """One page: the numbers, the pictures, and where they come from."""
    about = ABOUT[page.name]
    lines = [f"# {about['title']}", "", about["about"], *_legend(page, results)]
    for heading, records in sections(page, worded(unique(results), about.get("words", {}))):
        lines += ["", *([f"## {heading}", ""] if heading else []), *table(records, page.published)]
    for picture in (each for each in page.pictures if (RESULTS / each).is_file()):
        lines += ["", f"![{Path(picture).stem}]({picture})"]
    for result in results:
        for heading, texts in (result.get("curves") or {}).get("texts", {}).items():
            lines += ["", f"## {result['name']}: {heading}", "", "```text", *texts[:TEXTS], "```"]
    return "\n".join([*lines, "", "## Where the numbers come from", "", *provenance(page, results)]) + "\n"


def _legend(page: Page, results: Sequence[Result]) -> list[str]:
    """What ± and italics mean, where there are any."""
    records = [record for result in results for record in result["records"]]
    legend = ["Mean ± standard deviation over seeds."] if any(r["std"] for r in records) else []
    if page.published == "inline" and any(r["paper"] is not None for r in records):
        legend += ["*Italic*: the published number."]
    return ["", " ".join(legend)] if legend else []


def worded(records: Rows, words: Mapping[str, str]) -> Rows:
    """Records whose names are those of abouts.toml; a metric without a word is left out."""
    listed = [r for r in records if words.get(r["metric"]) != ""]
    axes = ("dataset", "system", "metric")
    return [r | {axis: words.get(r[axis], r[axis]) for axis in axes} for r in listed]


def unique(results: Sequence[Result]) -> Rows:
    """All records, one of each set, system and metric: of two the newer, where the first one stood."""
    newest: dict[tuple[str, str, str], tuple[str, dict[str, Any]]] = {}
    for created, record in ((each["created"], record) for each in results for record in each["records"]):
        key = (record["dataset"], record["system"], record["metric"])
        if key not in newest or created > newest[key][0]:
            newest[key] = (created, record)
    return [record for _, record in newest.values()]


def sections(page: Page, records: Rows) -> list[tuple[str, Rows]]:
    """The tables of a page, by heading.

    What only one system has is in one table of its own, and so are all metrics of the same systems on one set.
    """
    if page.split is None:
        return [("", records)]
    tables: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        part = next((p.strip(", =") for p in page.parts if p in record["dataset"]), "")
        tables.setdefault((record[page.split], part), []).append(record)
    tables = _of_one_set(tables) if page.split == "metric" else tables
    alone: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for heading, of in list(tables.items()) if page.split == "metric" else []:
        if len(systems := {r["system"] for r in of}) == 1:
            alone.setdefault((f"{systems.pop()} alone", heading[1]), []).extend(tables.pop(heading))
    named = [(", ".join(filter(None, heading)), of) for heading, of in tables.items()]
    return [*named, *((_alone(", ".join(filter(None, heading)), of), of) for heading, of in alone.items())]


def _of_one_set(
    tables: Mapping[tuple[str, str], list[dict[str, Any]]],
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The same tables, but those of several systems on one set are joined where set and systems are the same."""
    homes: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for key, of in tables.items():
        sets, systems = ({r[axis] for r in of} for axis in ("dataset", "system"))
        if len(sets) == 1 < len(systems):
            homes.setdefault((*sets, *sorted(systems)), []).append(key)
    joined = {key: (sets[0], keys) for sets, keys in homes.items() if len(keys) > 1 for key in keys}
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for key, of in tables.items():
        name, keys = joined.get(key, ("", [key]))
        heading = (f"{name}: {keys[0][0]}, and more", keys[0][1]) if name else key
        parts.setdefault(heading, []).extend(of)
    return parts


def _alone(heading: str, records: Rows) -> str:
    """With the name of what is measured, if that is one thing: the table does not name it."""
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
    exact = "bits a character" in metric or metric in ("log Z", "log Z, exact")
    ours = f"{mean:.{4 if exact else nats}f}" if exact or "nats" in metric else whole
    if std and "10" in ours.partition("×")[2]:
        ours += f" ± {number(std, 2)}"
    elif std:
        ours = " ± ".join(f"{value:,.{min(places_of(std, 2), most)}f}" for value in (mean, std))
    paper = f" · *{number(record['paper'])}*" if published == "inline" and record["paper"] is not None else ""
    return f"{ours}{paper}"


def provenance(page: Page, results: Sequence[Result]) -> list[str]:
    """An item for every run: files, command, how settings were chosen; when, where and at which commit it ran."""
    runs: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        chosen = page.sources[str(_source(page, result["name"]))]
        key = (
            result["command"],
            chosen,
            _settings(result),
            result["created"][:10],
            _place_of(result),
            origin(result),
        )
        runs.setdefault(key, []).append(result)
    lines = [_as_of(), ""]
    for (command, chosen, settings, day, where, commit), of in runs.items():
        seeds = sorted({record["seeds"] for result in of for record in result["records"]})
        span = " to ".join(map(str, dict.fromkeys([seeds[0], seeds[-1]]))) + f" seed{'s' * (seeds[-1] > 1)}"
        names = ", ".join(f"[{r['name']}]({r['name']}.json)" for r in of)
        how = f"{chosen}, {span}, {settings}; {day}, {duration(sum(r['wall_s'] for r in of))}, {where}"
        lines.append(f"* {names}: `{command}`; {how}; {commit}.")
    if page.notes:
        lines += ["", f"How settings were chosen: [notes](../notes/{page.notes}.md)."]
    return lines


def _settings(result: Result) -> str:
    text = json.dumps(result["settings"], ensure_ascii=False)
    return f"`{text}`" if len(text) <= SHORT else "settings in the file"


def _place_of(result: Result) -> str:
    """Device, machine, and versions of the main packages."""
    device, machine = result["device"], result.get("machine") or result["device"]
    where = machine if device in machine else f"{device} of {machine}"
    return ", ".join([where, *(f"{name} {version}" for name, version in result["versions"].items())])


def by_command(folder: Path = RESULTS) -> list[list[Result]]:
    """All results by the command that makes them, the oldest first: by day, then by distance, unknown ones before."""
    pieces: dict[str, list[Result]] = {}
    for result in (result for _, results in results_of(folder) for result in results):
        pieces.setdefault(result["command"], []).append(result)
    return sorted(pieces.values(), key=lambda results: min(map(_age, results)))


def _age(result: Result) -> tuple[str, bool, int]:
    n = distance(result.get("commit"))
    return result["created"][:10], n is not None, -(n or 0)


def listed(runs: Iterable[Sequence[Result]]) -> list[str]:
    """A line for every command: day, commits since, seconds, device, results."""
    lines = ["made        commits of src since  seconds  device           results"]
    for results in runs:
        oldest = min(results, key=_age)
        n = distance(oldest.get("commit"))
        since, seconds = "unknown" if n is None else n, sum(result["wall_s"] for result in results)
        names = ", ".join(result["name"] for result in results)
        lines.append(f"{oldest['created'][:10]}  {since:>20}  {seconds:7.0f}  {oldest['device']:15}  {names}")
    return lines


def index(filled: Iterable[tuple[Page, Sequence[Result]]]) -> str:
    """The page of pages."""
    lines = [
        "# Results",
        "",
        "Every benchmark of the documentation is on one of these pages, with the command that made it, its date and",
        f"its commit. The last column has how many commits have touched `src` since. {_as_of()}",
        "",
        row(["page", "what it asks", "made", "commits since"]),
        rule(4),
    ]
    for page, results in filled:
        about, days = ABOUT[page.name], sorted({result["created"][:10] for result in results})
        since = [distance(result.get("commit")) for result in results]
        known = sorted({n for n in since if n is not None})
        spans = [" to ".join(map(str, dict.fromkeys([of[0], of[-1]]))) for of in (days, known) if of]
        missing = [f"unknown for {since.count(None)} of {len(since)}"] if None in since else []
        asks = re.split(r"(?<=[.?]) ", about["about"])[0]
        cells = [f"[{about['title']}]({page.name}.md)", asks, spans[0], "; ".join([*spans[1:], *missing])]
        lines.append(row(cells))
    return "\n".join(lines) + "\n"


def pages(folder: Path = RESULTS) -> dict[str, str]:
    """All pages of a folder by file name, the index first."""
    filled = results_of(folder)
    return {"README.md": index(filled)} | {f"{page.name}.md": text_of(page, of) for page, of in filled}


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
    print("\n".join([f"The pages are in {RESULTS}; results, the oldest first:", *listed(by_command())]))


if __name__ == "__main__":
    main()
