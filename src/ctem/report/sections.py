"""The sections of a report: a mark, a title, what to see, and the thing itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ctem.report.axes import nice, plain_text
from ctem.report.charts import curves, diagonal, heat, histograms
from ctem.report.findings import ColumnFacts, Findings, Mean, Scores
from ctem.report.markup import error_bar, folding, name_of, signed, table, tag, text
from ctem.report.pictures import marginal_figure, pair_figure
from ctem.tables.answers.markup import cell_text
from ctem.tables.answers.outliers import Outlier

__all__ = ["sections"]

LISTED = 1000  # columns in the table
ODD = 30  # suspicions above it
DRAWN = 60  # columns with a picture
PAIRS, FEWEST = 8, 3  # pairs with a picture: at most, and at least
WEAK = 0.01  # nats of dependence below which a pair has none
DOTS = 3000  # pairs in the picture of all
MAPPED = 24  # columns in the map, at most
NAMED = 6  # columns of a pattern that are named
HIDDEN = (
    "Missing cells are unknown to the model: fit uses what was observed, scores marginalise, and samples have gaps "
    "only if asked (with_missing)."
)
STATE = "A gap is a value to the model, which it scores and draws as any other."
KEYS = '<p class="keys"><span class="key">Your data</span><span class="key model">Sampled</span></p>'
DOT_KEYS = (
    '<p class="keys"><span class="key dots">Your data</span><span class="key dots model">Sampled</span></p>'
)
LINE_KEYS = (
    '<p class="keys"><span class="key thin">Training</span><span class="key thin model">Held out</span></p>'
)


def sections(findings: Findings, origin: Mapping[str, Any], seed: int) -> list[tuple[str, str, str, str]]:
    """Mark, title, words and content, all of it HTML; an empty section is left out.

    >>> from ctem import CTEM
    >>> from ctem.report.findings import examine
    >>> X = np.random.default_rng(0).normal(size=(120, 1))
    >>> findings = examine(CTEM(max_steps=5, width=8, members=1, random_state=0).fit(X), X, None, 100, 0)
    >>> [mark for mark, *_ in sections(findings, {}, 0)]  # one column has no pairs
    ['columns', 'training', 'density', 'marginals', 'outliers', 'privacy', 'provenance']
    """
    every = [
        ("columns", "The table", _columns(findings)),
        ("missing", "Missing cells", _missing(findings)),
        ("training", "Training", _training(findings)),
        ("density", "Log-density", _density(findings)),
        ("marginals", "Column by column", _marginals(findings)),
        ("pairs", "Pairs", _pairs(findings, seed)),
        ("outliers", "Outliers", _outliers(findings)),
        ("privacy", "Privacy", _privacy(findings)),
        ("provenance", "Provenance", _provenance(origin)),
    ]
    return [(mark, title, *parts) for mark, title, parts in every if parts is not None]


def _columns(findings: Findings) -> tuple[str, str]:
    about = tag(
        "p", 'What each column was taken for, and why. Change it with <code class="mono">kinds=</code>.'
    ) + tag("p", _odd(findings.suspicions))
    about += tag(
        "p",
        "“From others” is how many nats the other columns give about this one, on rows that the fit held out; 0 for a "
        "column that depends on nothing that could be learned.",
    )
    heads = [
        ("Column", ""),
        ("Kind", ""),
        ("Why", ""),
        ("Values", ""),
        ("Missing", "n"),
        ("From others", "n"),
    ]
    rows = (_column_row(column, findings.rows) for column in findings.columns[:LISTED])
    rest = len(findings.columns) - LISTED
    more = tag("p", f"{rest:,} more columns are not listed.", "muted") if rest > 0 else ""
    return about, _suspicions(findings.suspicions) + table(heads, rows) + more


def _odd(suspicions: list[str]) -> str:
    return "Nothing seems odd about the table." if not suspicions else "Above the columns: what seems odd."


def _suspicions(suspicions: list[str]) -> str:
    """What seems odd about the table, as a list."""
    if not suspicions:
        return ""
    rest = len(suspicions) - ODD
    listed = "".join(tag("li", f"<bdi>{text(suspicion)}</bdi>") for suspicion in suspicions[:ODD])
    return tag("ul", listed + (tag("li", f"and {rest:,} more") if rest > 0 else ""), "odd")


def _column_row(column: ColumnFacts, rows: int) -> str:
    kind = tag("span", text(column.kind), f"kind {column.kind}")
    gaps = f"{column.missing:,} ({column.missing / rows:.1%})" if column.missing else "0"
    return (
        tag("td", name_of(column.name), "name")
        + tag("td", kind)
        + tag("td", folding(column.reason), "muted")
        + tag("td", f"<bdi>{text(column.glance, 120)}</bdi>", "glance")
        + tag("td", gaps, "n", data_name="missing:")
        + tag("td", _nats(column.nats_from_others), "n", data_name="from others:")
    )


def _nats(nats: float | None) -> str:
    """Nats; 0 is 0, and a dash stands for what is not known."""
    return "—" if nats is None else f"{nats:.2f}" if nats else "0"


def _missing(findings: Findings) -> tuple[str, str] | None:
    """Which cells are missing together."""
    if not findings.patterns:
        return None
    gaps = STATE if findings.gaps_are_values else HIDDEN
    about = tag("p", f"Which columns are missing together, the most common patterns first. {gaps}")
    heads = [("Missing together", ""), ("Rows", "n"), ("Share", "n")]
    rows = (
        tag("td", _names(columns))
        + tag("td", f"{count:,}", "n", data_name="rows:")
        + tag("td", f"{count / findings.rows:.1%}", "n")
        for columns, count in findings.patterns
    )
    return about, table(heads, rows)


def _names(columns: tuple[str, ...]) -> str:
    if not columns:
        return tag("span", "nothing", "muted")
    more = f" and {len(columns) - NAMED} more" if len(columns) > NAMED else ""
    return ", ".join(name_of(name) for name in columns[:NAMED]) + more


def _training(findings: Findings) -> tuple[str, str] | None:
    history = findings.history
    if not history.step:
        return None
    ended = "stopped when the held-out loss no longer fell" if history.stopped_early else "ran all its steps"
    about = tag(
        "p",
        "The loss is how badly hidden cells are predicted; lower is better. Where the held-out line parts from the "
        "training line, more steps only memorise.",
    )
    picture = curves(
        "training and held-out loss by step", history.step, history.loss, history.held_out, history.best_step
    )
    caption = (
        f"Loss by step. Best at step {history.best_step:,} (the dot); training {ended}, "
        f"{history.seconds:,.0f} s in all."
    )
    return about + LINE_KEYS, tag("figure", picture + tag("figcaption", caption), "wide")


def _density(findings: Findings) -> tuple[str, str]:
    about = tag(
        "p",
        "Mean log-density in nats per row, ± one standard error. The gain is taken row by row, so its error is smaller "
        "than that of its parts.",
    ) + tag(
        "p",
        "Real columns are counted per unit of the column, so the level depends on the units; the gain does not.",
    )
    heads = [("Rows", ""), ("Model", "n"), ("Independent columns", "n"), ("Gain", "n")]
    scores = table(heads, map(_score_row, findings.scores))
    return about + KEYS, scores + '<div class="gap"></div>' + _score_picture(findings)


def _score_row(scores: Scores) -> str:
    means = (("model", scores.model), ("independent", scores.independent), ("gain", scores.gain))
    first = tag("td", text(f"{scores.model.n:,} {scores.rows}"), "name")
    return first + "".join(tag("td", _mean(mean), "n", data_name=f"{name}:") for name, mean in means)


def _score_picture(findings: Findings) -> str:
    real, drawn = findings.scores[0].each, findings.sampled_scores
    low, high = np.quantile(np.concatenate([real, drawn]), [0.005, 0.995])
    high = high if high > low else low + 1.0
    edges = np.linspace(low, high, 1 + int(np.clip(2 * min(len(real), len(drawn)) ** 0.4, 6, 40)))
    shares = [np.histogram(np.clip(values, low, high), edges)[0] / len(values) for values in (real, drawn)]
    ticks = [((v - low) / (high - low), signed(v, ".6g")) for v in nice(float(low), float(high))]
    picture = histograms("log-density of real and sampled rows", shares[0], shares[1], ticks, width=460)
    caption = (
        f"Log-density of {findings.scores[0].rows} and of {len(drawn):,} sampled rows. They should look alike: real "
        "rows further left are rows that the model does not expect; further right, samples are rougher than the data."
    )
    return tag("figure", picture + tag("figcaption", caption), "wide")


def _marginals(findings: Findings) -> tuple[str, str] | None:
    if not findings.marginals:
        return None
    kinds = {column.name: column.kind for column in findings.columns}
    drawn, left = findings.marginals, ""
    if len(drawn) > DRAWN:
        drawn = sorted(drawn, key=lambda m: m.chance - m.difference)[:DRAWN]
        left = tag(
            "p",
            f"{DRAWN} of {len(findings.marginals):,} columns are drawn: those that differ most beyond chance first.",
        )
    about = (
        tag(
            "p",
            f"The table's values beside {findings.n_samples:,} rows drawn from the model. "
            "End bars hold all that lies beyond; a bar that would dwarf the others is cut, with its shares beside it.",
        )
        + left
        + KEYS
    )
    if any(m.missing for m in drawn):
        about += tag(
            "p",
            "Missing cells are left out; where they are many and not at random, the two may rightly differ.",
        )
    return about, tag("div", "".join(marginal_figure(m, kinds[m.axis.name]) for m in drawn), "grid")


def _pairs(findings: Findings, seed: int) -> tuple[str, str] | None:
    if not findings.pairs:
        return None
    count = len(findings.pairs)
    top = [pair for k, pair in enumerate(findings.pairs[:PAIRS]) if k < FEWEST or pair.real >= WEAK]
    which = f"Below, the {len(top)} most dependent of {count:,} pairs; axes" if count > 1 else "Axes"
    about = (
        tag(
            "p",
            "Dependence is mutual information in nats, 0 for independent columns. Points on the dashed line are pairs "
            "whose dependence the samples keep.",
        )
        + tag("p", f"{which} span the central 99% of real values.")
        + DOT_KEYS
    )
    figures = "".join(pair_figure(pair, findings, seed) for pair in top)
    overview = _overview(findings) if count > 2 else ""
    return about, tag("div", overview + _dependence_map(findings) + figures, "pairs")


def _overview(findings: Findings) -> str:
    pairs = findings.pairs[:DOTS]
    real, drawn = (np.array([getattr(pair, side) for pair in pairs]) for side in ("real", "sampled"))
    picture = diagonal(
        "dependence of every pair, real and sampled", real, drawn, "in the data", "in the samples"
    )
    which = (
        f"the {len(pairs):,} most dependent pairs" if len(findings.pairs) > DOTS else "every pair of columns"
    )
    return tag("figure", picture + tag("figcaption", f"Dependence in nats of {which}."), "square")


def _dependence_map(findings: Findings) -> str:
    """Mutual information of all pairs as two tables of shades, real beside sampled; nothing for few or many columns."""
    d = len(findings.marginals)
    if not 3 <= d <= MAPPED:
        return ""
    names = [plain_text(marginal.axis.name) for marginal in findings.marginals]
    tables = [np.zeros((d, d)) for _ in range(2)]
    for pair in findings.pairs:
        for shades, value in zip(tables, (pair.real, pair.sampled), strict=True):
            shades[pair.first, pair.second] = shades[pair.second, pair.first] = max(value, 0.0)
    top = max(float(tables[0].max()), float(tables[1].max()), 1e-9)
    longest = min(12, max(map(len, names)))
    sides = (("Your data", "real"), ("Sampled", "sampled"))
    twin = "".join(
        tag(
            "div",
            tag("p", side, "side")
            + heat(f"map of dependence, {kind}", kind, shades, top, names, names, longest),
        )
        for (side, kind), shades in zip(sides, tables, strict=True)
    )
    words = f"The map of dependence: the darkest pair has {top:.2f} nats of mutual information."
    return tag("figure", tag("div", twin, "twin") + tag("figcaption", words))


def _outliers(findings: Findings) -> tuple[str, str]:
    about = tag(
        "p",
        "The strangest rows first, counted from 0. The score of a row is in nats beyond the average row: how unlikely "
        "its cells are, or how rare so unlikely a cell is in its column. Neither units nor rounding matter; bars are "
        "what single cells add to it.",
    )
    outliers = [outlier for outlier, _ in findings.outliers]
    most = max((cell.nats for outlier in outliers for cell in outlier.cells), default=1.0)
    return about, tag("ol", "".join(_outlier(outlier, most) for outlier in outliers), "outliers")


def _outlier(row: Outlier, most: float) -> str:
    head = tag(
        "div",
        tag("h3", f"Row {row.row:,}")
        + tag("span", f"score {signed(row.score, '.2f')}, p {row.p_value:.2g}", "muted"),
    )
    causes = []
    for cell in row.cells:
        words = f"{name_of(cell.name)} is <strong><bdi>{text(cell_text(cell.value), 60)}</bdi></strong>"
        words += tag("span", f"; <bdi>{text(cell.remark, 150)}</bdi>", "muted")
        width = max(0.0, 100 * cell.nats / most)
        bar = f'<span><i style="width:{width:.0f}%"></i></span>{tag("span", f"{cell.nats:.1f}")}'
        causes.append(tag("div", tag("div", words) + tag("div", bar, "meter"), "cause"))
    return tag("li", head + tag("div", "".join(causes), "why"))


def _privacy(findings: Findings) -> tuple[str, str] | None:
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
    heads = [("Attack", ""), ("This model", "n"), ("Nothing given away", "n")]
    rows = (
        tag("td", what) + tag("td", value, "n") + tag("td", none, "n", data_name="nothing:")
        for what, value, none in facts
    )
    alarms = audit.alarms()
    words = "No alarm." if not alarms else "Alarm: " + "; ".join(alarms) + "."
    return about, table(heads, rows) + tag("p", text(words), "muted after")


def _provenance(origin: Mapping[str, Any]) -> tuple[str, str]:
    about = tag("p", "What is needed to make this report again.")
    rows = "".join(tag("dt", text(label)) + tag("dd", text(value, 2000)) for label, value in origin.items())
    return about, tag("dl", rows)


def _mean(mean: Mean) -> str:
    return f'{signed(mean.value, ".3f")} <span class="muted">± {error_bar(mean.stderr)}</span>'
