"""Write experiments/RESULTS.md from experiments/results/*.json: ours beside published numbers.

python -m experiments.pages
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.results import RESULTS, changed, replace_bytes

PAGE = RESULTS.parent / "RESULTS.md"
KEYS = ("experiment", "created", "version", "device", "torch", "wall_s", "command", "settings", "records")
COLUMNS = ("dataset", "metric", "system", "mean ± std (seeds)", "published")


def page(folder: Path) -> str:
    """All results of a folder as Markdown, by file name; records in the order they were written."""
    files = [path for path in sorted(folder.glob("*.json")) if not path.stem.endswith("-quick")]
    head = (
        "# Results\n\nMade by `make results` from `experiments/results/*.json`; do not edit. "
        "std is over seeds (ddof = 1).\n"
        "*stale*: the code of the library that the run rests on has changed since.\n"
        "[CHOICES.md](CHOICES.md) says what was tried before each number, and what was chosen on the truth.\n"
    )
    sections = [section(load(path), pictures(path)) for path in files] or ["No results yet.\n"]
    return "\n".join([head, *sections])


def load(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    missing = [key for key in KEYS if key not in result]
    if missing:
        raise ValueError(f"{path.name}: expected the keys of results.write; missing {', '.join(missing)}.")
    return result


def pictures(path: Path) -> list[str]:
    """What a script drew: NAME.png and NAME-*.png beside NAME.json, relative to the page."""
    found = sorted([*path.parent.glob(f"{path.stem}.png"), *path.parent.glob(f"{path.stem}-*.png")])
    return [f"{path.parent.name}/{each.name}" for each in found]


def section(result: dict[str, Any], drawn: Sequence[str] = ()) -> str:
    """One experiment: where, when and how it ran, its settings, its pictures, its table."""
    facts = [
        result["device"],
        f"torch {result['torch']}",
        f"ctem {result['version']}",
        result["created"][:10],
        duration(result["wall_s"]),
        f"`{result['command']}`",
    ]
    modules = result.get("modules")
    stale = " (stale)" if not modules or changed(modules) else ""
    lines = [f"## {result['experiment']}{stale}", "", " · ".join(facts), ""]
    if result["settings"]:
        settings = ", ".join(f"{key}={compact(value)}" for key, value in result["settings"].items())
        lines += [f"Settings: `{settings}`", ""]
    for name in drawn:
        lines += [f"![{Path(name).stem}]({name})", ""]
    return "\n".join(lines + table(result["records"])) + "\n"


def table(records: Sequence[dict[str, Any]]) -> list[str]:
    """The rows of a table; a data set is named once, and there is no column for published numbers without any."""
    columns = COLUMNS if any(r["paper"] is not None for r in records) else COLUMNS[:-1]
    lines, before = [row(columns), row(["---"] * len(columns))], None
    for r in records:
        spread = "" if r["std"] is None else f" ± {number(r['std'])}"
        mean = f"{r['mean']:.3f}" if "nats" in r["metric"] else number(r["mean"])  # differences count there
        value = f"{mean}{spread} ({r['seeds']})"
        dataset = "" if r["dataset"] == before else r["dataset"]
        lines.append(row([dataset, r["metric"], r["system"], value, number(r["paper"])][: len(columns)]))
        before = r["dataset"]
    return lines


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def number(value: float | str | None) -> str:
    """Three significant digits; what was printed is left as it is, and thousands keep their whole part."""
    if value is None:
        return "—"
    if isinstance(value, str):
        return value
    size = abs(float(f"{value:.3g}"))  # as rounded, so that 999.6 is a thousand
    if size == 0:
        return "0"
    if size < 1e-3:
        return f"{value:.2e}"
    return f"{value:.0f}" if size >= 1000 else f"{value:#.3g}".removesuffix(".")


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def compact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    replace_bytes(PAGE, page(RESULTS).encode())
