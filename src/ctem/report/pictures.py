"""The figures of a report: a column or a pair of columns, real beside sampled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctem.report.axes import Axis, Listed, Tick, plain_text
from ctem.report.charts import heat, histograms, points
from ctem.report.compare import Marginal, Pair
from ctem.report.findings import Findings
from ctem.report.markup import name_of, tag, text
from ctem.tables.io.cells import Cells

__all__ = ["marginal_figure", "pair_figure"]

DOTS = 700  # points of a scatter
Vector = NDArray[np.float64]


def marginal_figure(marginal: Marginal, kind: str) -> str:
    """One column: bars of a category, a histogram of anything ordered.

    >>> from ctem.tables.encoding.codecs import Labels
    >>> from ctem.report.axes import lay_out
    >>> from ctem.report.compare import compare_column
    >>> cells = Cells("bool", np.array([True, False]), np.zeros(2, bool))
    >>> axis = lay_out("<b>", Labels("bool", (False, True), (0, 1), (1.0, 1.0)), cells)
    >>> "<b>" in marginal_figure(compare_column(axis, cells, cells), "category")
    False
    """
    axis = marginal.axis
    label = f"{plain_text(axis.name)}: shares of real and sampled values"
    if isinstance(axis, Listed) and not axis.ordered:
        picture = _bars(axis, marginal.real, marginal.sampled)
    else:
        gap = 0.12 if isinstance(axis, Listed) and axis.size <= 12 else 0.0
        picture = histograms(label, marginal.real, marginal.sampled, axis.ticks(), gap)
    head = tag("div", tag("h3", name_of(axis.name)) + tag("span", text(kind), "kind"), "head")
    beyond = ": beyond chance" if marginal.is_off else ""
    caption = f"Differs by {marginal.difference:.1%}; chance alone gives about {marginal.chance:.1%}{beyond}."
    return tag("figure", head + picture + tag("figcaption", caption))


def pair_figure(pair: Pair, findings: Findings, seed: int) -> str:
    """Two columns: shades where both are listed, points otherwise; real on the left, sampled on the right.

    >>> from ctem import CTEM
    >>> from ctem.report.findings import examine
    >>> X = np.random.default_rng(0).normal(size=(120, 2))
    >>> findings = examine(CTEM(max_steps=5, width=8, members=1, random_state=0).fit(X), X, None, 100, 0)
    >>> pair_figure(findings.pairs[0], findings, 0).count("<svg")
    2
    """
    across, up = (findings.marginals[j].axis for j in (pair.first, pair.second))
    if isinstance(across, Listed) and not isinstance(up, Listed):
        across, up = up, across
    both = isinstance(across, Listed) and isinstance(up, Listed)
    if both and up.ordered and not across.ordered:
        across, up = up, across
    draw = _shades if both else _dots
    title = tag("h3", f"{name_of(up.name)} {tag('span', 'against', 'muted')} {name_of(across.name)}")
    sides = zip(("Your data", "Sampled"), draw(across, up, findings, seed), strict=True)
    twin = tag("div", "".join(tag("div", tag("p", side, "side") + svg) for side, svg in sides), "twin")
    caption = f"Dependence: {pair.real:.2f} nats in the data, {pair.sampled:.2f} in the samples."
    return tag("figure", title + twin + tag("figcaption", caption))


def _bars(axis: Listed, real: Vector, sampled: Vector) -> str:
    """A bar for every value; many rare ones together have a share and no bar, which would dwarf those of one value."""
    alone = len(real) - axis.folded
    top = max(float(real[:alone].max()), float(sampled[:alone].max()), 1e-9)
    rows = []
    for i, (label, r, s) in enumerate(zip(axis.labels, real.tolist(), sampled.tolist(), strict=True)):
        track = f'<i style="width:{100 * r / top:.1f}%"></i><b style="width:{100 * s / top:.1f}%"></b>'
        bar = tag(
            "span",
            track if i < alone else f"together; {s:.0%} of the samples",
            "track" if i < alone else "muted",
        )
        cells = name_of(label) + bar + tag("span", f"{r:.1%}" if r < 0.1 else f"{r:.0%}")
        rows.append(tag("div", cells, "bar"))
    return tag("div", "".join(rows), "bars")


def _tables(across: Axis, up: Axis, findings: Findings) -> list[tuple[str, Cells, Cells]]:
    tables = (("real", findings.real), ("sampled", findings.sampled))
    return [(kind, table[across.name], table[up.name]) for kind, table in tables]


def _shades(across: Axis, up: Axis, findings: Findings, seed: int) -> list[str]:
    shares = []
    for _, first, second in _tables(across, up, findings):
        i, j = across.slots(first), up.slots(second)
        known = (i >= 0) & (j >= 0)
        table = np.zeros((across.size, up.size))
        np.add.at(table, (i[known], j[known]), 1.0 / max(int(known.sum()), 1))
        shares.append(table)
    top = max(float(shares[0].max()), float(shares[1].max()), 1e-9)
    below, beside = _spaced(across, 12), _spaced(up, 14)
    longest = min(12, max(map(len, beside)))
    label = f"{plain_text(up.name)} against {plain_text(across.name)}"
    kinds = ("real", "sampled")
    return [
        heat(f"{label}, {kind}", kind, share, top, below, beside, longest)
        for kind, share in zip(kinds, shares, strict=True)
    ]


def _dots(across: Axis, up: Axis, findings: Findings, seed: int) -> list[str]:
    rng, drawn = np.random.default_rng(seed), []
    beside = _raised(up)
    longest = min(12, max((len(tick) for _, tick in beside), default=1))
    label = f"{plain_text(up.name)} against {plain_text(across.name)}"
    tables = _tables(across, up, findings)
    known = [np.flatnonzero(~(first.missing | second.missing)) for _, first, second in tables]
    count = min(DOTS, *map(len, known))  # as many on both sides, so that the eye compares shapes
    for (kind, first, second), rows in zip(tables, known, strict=True):
        rows = rng.choice(rows, count, replace=False)
        x, y = (_scattered(axis, cells, rng)[rows] for axis, cells in ((across, first), (up, second)))
        y = 1 - y if _falls(up) else y
        drawn.append(points(f"{label}, {kind}", kind, x, y, across.ticks(), beside, longest))
    return drawn


def _scattered(axis: Axis, cells: Cells, rng: np.random.Generator) -> Vector:
    """Places; those of a listed value spread over its slot."""
    places = axis.places(cells)
    if not isinstance(axis, Listed):
        return places
    return places + rng.uniform(-0.33, 0.33, len(places)) / axis.size


def _falls(axis: Axis) -> bool:
    """Whether an axis reads from the top: categories do."""
    return not axis.ordered


def _raised(axis: Axis) -> list[Tick]:
    return [(1 - at if _falls(axis) else at, label) for at, label in axis.ticks()]


def _spaced(axis: Axis, most: int) -> list[str]:
    """A label per slot, every so many left empty where there would be too many."""
    labels = axis.labels if isinstance(axis, Listed) else ()
    step = -(-len(labels) // most)
    return [label if i % step == 0 else "" for i, label in enumerate(labels)]
