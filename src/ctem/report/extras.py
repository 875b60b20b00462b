"""Sections on what is missing, on the map of dependence, and on privacy."""

from __future__ import annotations

import numpy as np

from ctem.report.axes import plain_text
from ctem.report.charts import heat
from ctem.report.findings import Findings
from ctem.report.markup import name_of, tag, text

MAPPED = 24  # columns in the map, at most
NAMED = 6  # columns of a pattern that are named
HIDDEN = (
    "Missing cells are unknown to the model: fit uses what was observed, scores marginalise, and samples have gaps "
    "only if asked (with_missing)."
)
STATE = "A gap is a value to the model, which it scores and draws as any other."


def missing(findings: Findings) -> tuple[str, str] | None:
    """Which cells are missing together."""
    if not findings.patterns:
        return None
    gaps = STATE if findings.gaps_are_values else HIDDEN
    about = tag("p", f"Which columns are missing together, the most common patterns first. {gaps}")
    head = tag("th", "Missing together") + tag("th", "Rows", "n") + tag("th", "Share", "n")
    rows = "".join(
        tag(
            "tr",
            tag("td", _names(pattern.columns))
            + tag("td", f"{pattern.rows:,}", "n", data_name="rows:")
            + tag("td", f"{pattern.rows / findings.rows:.1%}", "n"),
        )
        for pattern in findings.patterns
    )
    return about, tag("table", tag("thead", tag("tr", head)) + tag("tbody", rows), "stack")


def _names(columns: tuple[str, ...]) -> str:
    if not columns:
        return tag("span", "nothing", "muted")
    more = f" and {len(columns) - NAMED} more" if len(columns) > NAMED else ""
    return ", ".join(name_of(name) for name in columns[:NAMED]) + more


def dependence_map(findings: Findings) -> str:
    """Mutual information of all pairs as two tables of shades, real beside sampled; nothing for few or many columns."""
    d = len(findings.marginals)
    if not 3 <= d <= MAPPED:
        return ""
    names = [plain_text(marginal.axis.name) for marginal in findings.marginals]
    tables = [np.zeros((d, d)) for _ in range(2)]
    for pair in findings.pairs:
        for table, value in zip(tables, (pair.real, pair.sampled), strict=True):
            table[pair.first, pair.second] = table[pair.second, pair.first] = max(value, 0.0)
    top = max(float(tables[0].max()), float(tables[1].max()), 1e-9)
    longest = min(12, max(map(len, names)))
    sides = (("Your data", "real"), ("Sampled", "sampled"))
    twin = "".join(
        tag(
            "div",
            tag("p", side, "side")
            + heat(f"map of dependence, {kind}", kind, table, top, names, names, longest),
        )
        for (side, kind), table in zip(sides, tables, strict=True)
    )
    words = f"The map of dependence: the darkest pair has {top:.2f} nats of mutual information."
    return tag("figure", tag("div", twin, "twin") + tag("figcaption", words))


def privacy(findings: Findings) -> tuple[str, str] | None:
    """What the model gives away of the rows of its fit."""
    if (audit := findings.privacy) is None:
        return None
    about = tag(
        "p",
        "How much the model gives away of the rows that it was fitted to, against rows that were held out. It is "
        "evidence about these attacks, no proof and no differential privacy.",
    )
    facts = (
        ("Samples nearer to rows of the fit", f"{audit.nearer:.3f} ± {audit.nearer_stderr:.3f}", "0.5"),
        ("Samples that copy a row of the fit", f"{audit.copies:.2%}", f"{audit.copies_unseen:.2%}"),
        ("Nearest over second nearest distance", f"{audit.ratio:.2f}", f"{audit.ratio_unseen:.2f}"),
        ("Membership by likelihood ratio, AUC", f"{audit.attack:.3f} ± {audit.attack_stderr:.3f}", "0.5"),
    )
    head = tag("th", "Attack") + tag("th", "This model", "n") + tag("th", "Nothing given away", "n")
    rows = "".join(
        tag("tr", tag("td", what) + tag("td", value, "n") + tag("td", none, "n", data_name="nothing:"))
        for what, value, none in facts
    )
    alarms = audit.alarms()
    words = "No alarm." if not alarms else "Alarm: " + "; ".join(alarms) + "."
    return about, tag("table", tag("thead", tag("tr", head)) + tag("tbody", rows), "stack") + tag(
        "p", text(words), "muted after"
    )
