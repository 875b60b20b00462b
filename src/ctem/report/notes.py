"""What to watch: the findings that a careful reader should know before trusting the rest."""

from __future__ import annotations

import math

import numpy as np

from ctem.report.axes import plain_text
from ctem.report.findings import Findings
from ctem.report.markup import signed, times_likelier
from ctem.training.cut import still_improving

__all__ = ["notes"]

FEW_ROWS = 100
FEW_DRAWS = 100.0
SURE, LARGE = (
    1.95,
    0.1,
)  # of Kolmogorov's distance: what chance gives once in a thousand times, and what matters


def notes(findings: Findings) -> list[str]:
    """Sentences, the gravest first; empty if there is nothing to note. Column names in them are not escaped.

    >>> import numpy as np
    >>> from ctem import CTEM
    >>> from ctem.report.findings import examine
    >>> X = np.random.default_rng(0).normal(size=(120, 1))
    >>> notes(examine(CTEM(max_steps=5, width=8, members=1, random_state=0).fit(X), X, None, 100, 0))[-1]
    'No held-out rows were given: log-densities here are of rows that the fit has seen and may flatter the model; ...'
    """
    remarks = [_gain(findings), _generality(findings), _shapes(findings), _dependence(findings)]
    remarks += [
        _levels(findings),
        *(f"Privacy: {alarm}." for alarm in (findings.privacy.alarms() if findings.privacy else [])),
    ]
    return [note for note in [*remarks, _training(findings), _few(findings), _seen(findings)] if note]


def _gain(findings: Findings) -> str:
    gain, rows = findings.gain
    if gain.value > 2 * (gain.stderr if gain.n > 1 else math.inf):
        return ""
    return (
        f"On the {rows} the model is not clearly better than independent columns "
        f"({signed(gain.value, '+.2f')} ± {gain.stderr:.2f} nats per row): "
        "there is little dependence, or too few rows to learn it."
    )


def _generality(findings: Findings) -> str:
    if len(findings.scores) < 2 or not findings.same_rows:
        return ""
    held, fit = findings.scores[0].gain, findings.scores[1].gain
    gap, noise = fit.value - held.value, math.hypot(held.stderr, fit.stderr)
    if not gap > max(3 * noise, 0.5):
        return ""
    return (
        f"Rows of the fit gain {gap:.2f} nats more than held-out rows ({times_likelier(gap)} times likelier): "
        "the model has partly memorised them."
    )


def _shapes(findings: Findings) -> str:
    off = [m for m in findings.marginals if m.is_off]
    if not off:
        return ""
    worst = sorted(off, key=lambda m: -m.difference)[:4]
    names = ", ".join(
        f"“{plain_text(m.axis.name)}” ({m.difference:.1%}, chance {m.chance:.1%})" for m in worst
    )
    names += ", …" * (len(off) > 4)
    total = len(findings.marginals)
    return f"Sampled and real values differ by more than chance in {len(off)} of {total} columns: {names}."


def _dependence(findings: Findings) -> str:
    strong = [pair for pair in findings.pairs if pair.real > 0.1]
    lost = [pair for pair in strong if pair.sampled < pair.real / 2]
    if not lost:
        return ""
    return (
        f"In {len(lost)} of {len(strong)} dependent pairs the samples keep less than half of the dependence."
    )


def _levels(findings: Findings) -> str:
    """Whether real rows have other log-densities than sampled ones; of rows that the fit has seen they do."""
    if len(findings.scores) < 2 and findings.same_rows:
        return ""
    real, drawn = np.sort(findings.scores[0].each), np.sort(findings.sampled_scores)
    at = np.concatenate([real, drawn])
    shares = [np.searchsorted(values, at, side="right") / len(values) for values in (real, drawn)]
    apart = float(np.abs(shares[0] - shares[1]).max())
    if apart < max(LARGE, SURE * math.sqrt(1 / len(real) + 1 / len(drawn))):
        return ""
    lower = np.median(real) < np.median(drawn)
    what = "rows that the model does not expect" if lower else "samples that are rougher than the data"
    return f"The log-densities of {findings.scores[0].rows} and of samples differ beyond chance: {what}."


def _training(findings: Findings) -> str:
    text = still_improving(findings.history)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _few(findings: Findings) -> str:
    if findings.fitted_rows >= FEW_ROWS:
        return ""
    rows = findings.fitted_rows
    return f"Fitted on {rows} rows: below about {FEW_ROWS}, little can be learned beyond independent columns."


def _seen(findings: Findings) -> str:
    if len(findings.scores) > 1:
        return ""
    what = "rows that the fit has seen" if findings.same_rows else "the table that was given"
    words = f"No held-out rows were given: log-densities here are of {what} and may flatter the model"
    return f"{words}; the gain above is not." if findings.gain[1] != findings.scores[0].rows else f"{words}."
