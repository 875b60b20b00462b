"""What a report holds, as plain values: a model and a table in, no HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctem.estimators.estimator import CTEM
from ctem.report.axes import Listed, display_text, lay_out
from ctem.report.compare import Marginal, Pair, compare_column, compare_pairs
from ctem.report.privacy import Privacy, audit, is_of_fit
from ctem.tables.answers.density import TableDensity
from ctem.tables.answers.heldout import EVERY, HeldOut
from ctem.tables.answers.outliers import Outlier, find_outliers
from ctem.tables.answers.realism import Realism, realism_of_tables
from ctem.tables.inspection import inspect_frame
from ctem.tables.io.cells import Cells
from ctem.tables.io.frame import Frame
from ctem.tables.io.rows import taken
from ctem.training import History

__all__ = ["ColumnFacts", "Mean", "Scores", "Strange", "examine"]

LARGEST = 20_000  # rows that are scored; a random choice of a larger table
PAIRED = 4_000  # rows in the dependence of pairs
AUDITED = 500  # samples and rows of the privacy section
STRANGE = 10  # outliers
PATTERNS = 8  # sets of columns that are missing together

Vector = NDArray[np.float64]
Strange = tuple[Outlier, Mapping[str, Cells]]  # an outlier, and its cells, one of each column


@dataclass(frozen=True)
class Mean:
    """A mean and its standard error s/√n.

    >>> Mean.of(np.array([1.0, 2.0, 3.0]))
    Mean(value=2.0, stderr=0.577..., n=3)
    """

    value: float
    stderr: float
    n: int

    @classmethod
    def of(cls, values: Vector) -> Mean:
        """From values; nan for the standard error of one."""
        n = len(values)
        return cls(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan, n)


@dataclass(frozen=True)
class ColumnFacts:
    """What was inferred about a column and why, its missing cells, a glance at its values, and what others know of it.

    >>> ColumnFacts("age", "real", "numbers", 2, "18 … 80").missing
    2
    """

    name: str
    kind: str
    reason: str
    missing: int
    glance: str
    nats_from_others: float | None = None  # nats on unseen rows


@dataclass(frozen=True)
class Scores:
    """Mean log-density of some rows in nats under the model and under independent columns, and their difference.

    >>> Scores.of("held-out rows", np.array([-1.0, -2.0]), np.array([-3.0, -3.0])).gain.value
    1.5
    """

    rows: str
    model: Mean
    independent: Mean
    gain: Mean
    each: Vector

    @classmethod
    def of(cls, rows: str, model: Vector, independent: Vector) -> Scores:
        """From the log-densities of the same rows."""
        return cls(rows, Mean.of(model), Mean.of(independent), Mean.of(model - independent), model)


@dataclass(frozen=True)
class Findings:
    """Everything a report shows, from ``examine``."""

    rows: int
    looked_at: int
    missing: int
    fitted_rows: int
    same_rows: bool
    columns: list[ColumnFacts]
    suspicions: list[str]  # what seems odd about the table
    scores: list[Scores]
    sampled_scores: Vector
    n_samples: int
    marginals: list[Marginal]
    pairs: list[Pair]
    real: Mapping[str, Cells]
    sampled: Mapping[str, Cells]
    outliers: list[Strange]
    history: History
    judged: HeldOut  # by the held-out rows of the fit
    realism: Realism | None
    patterns: list[tuple[tuple[str, ...], int]]  # columns that are missing together, in how many rows
    gaps_are_values: bool  # missing="state"
    privacy: Privacy | None
    name: str

    @property
    def gain(self) -> tuple[Mean, str]:
        """The gain over independent columns on the most honest rows that are there, and which these are."""
        scores, judged = self.scores[0], self.judged
        if len(self.scores) > 1 or not self.same_rows:
            return scores.gain, scores.rows
        return Mean(judged.gain, judged.stderr, judged.rows), "rows that the fit held out"


def examine(model: CTEM, X: Any, held_out: Any, n_samples: int, seed: int, name: str = "") -> Findings:
    """Look at a fitted model through a table.

    Arguments:
        model: a fitted estimator.
        X: the table to describe, usually that of the fit.
        held_out: rows that the fit did not see, or None.
        n_samples: rows to draw from the model.
        seed: of the draws and of the choice of rows.
        name: of the table.

    >>> X = np.random.default_rng(0).normal(size=(120, 2))
    >>> findings = examine(CTEM(max_steps=5, width=8, members=1, random_state=0).fit(X), X, None, 100, 0)
    >>> findings.same_rows, findings.scores[0].rows, len(findings.pairs)
    (True, 'rows of the fit', 1)
    """
    table, whole = TableDensity(model.schema_, model.density_), model.as_frame(X).displayed()
    generator = torch.Generator(table.device).manual_seed(seed)
    chosen = _chosen(whole, seed)
    frame, same = taken(whole, chosen), is_of_fit(model, whole)
    sampled = table.sample(n_samples, generator)
    scores = [_scores(table, frame, "rows of the fit" if same else "rows of the table")]
    if held_out is not None:
        other = model.as_frame(held_out)
        scores.insert(0, _scores(table, taken(other, _chosen(other, seed)), "held-out rows"))
    marginals = _marginals(model, frame, sampled)
    return Findings(
        rows=len(whole),
        looked_at=len(frame),
        missing=sum(int(cells.missing.sum()) for cells in whole.columns.values()),
        fitted_rows=model.n_samples_seen_,
        same_rows=same,
        columns=_columns(model, whole, marginals),
        suspicions=list(map(str, inspect_frame(whole, model.schema_.describe()).suspicions)),
        scores=scores,
        sampled_scores=table.log_prob(Frame(model.table_type_, sampled)),
        n_samples=n_samples,
        marginals=marginals,
        pairs=_pairs(marginals, frame, sampled),
        real=frame.columns,
        sampled=sampled,
        outliers=_outliers(model, table, frame, chosen),
        history=model.density_.history,
        judged=model.held_out_,
        realism=realism_of_tables(
            model.schema_, model.missingness_, frame, Frame(model.table_type_, sampled), generator, seed
        ),
        patterns=_patterns(whole),
        gaps_are_values=model.missing == "state",
        privacy=_privacy(model, X, held_out, seed) if same else None,
        name=name,
    )


def _chosen(frame: Frame, seed: int) -> NDArray[np.int64]:
    """Rows to look at: all, or a random choice that bounds the work."""
    n = len(frame)
    if n <= LARGEST:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, LARGEST, replace=False))


def _privacy(model: CTEM, X: Any, held_out: Any, seed: int) -> Privacy | None:
    """The audit; none of a model that kept no rows back."""
    if held_out is None and any(fold.member == EVERY for fold in model.held_out_.folds):
        return None
    return audit(model, X, held_out, seed, AUDITED)


def _scores(table: TableDensity, frame: Frame, rows: str) -> Scores:
    return Scores.of(rows, table.log_prob(frame), table.independent(frame))


def _marginals(model: CTEM, frame: Frame, sampled: Mapping[str, Cells]) -> list[Marginal]:
    marginals = []
    for name, inferred in model.schema_.columns.items():
        axis = lay_out(name, inferred.codec, frame.columns[name])
        if axis is not None:
            marginals.append(compare_column(axis, frame.columns[name], sampled[name]))
    return marginals


def _pairs(marginals: list[Marginal], frame: Frame, sampled: Mapping[str, Cells]) -> list[Pair]:
    if len(frame) > PAIRED:  # the choice of rows is sorted, so take every so many
        frame = taken(frame, np.linspace(0, len(frame) - 1, PAIRED).astype(np.int64))
    return compare_pairs(marginals, frame.columns, sampled)


def _columns(model: CTEM, frame: Frame, marginals: list[Marginal]) -> list[ColumnFacts]:
    drawn = {marginal.axis.name: marginal for marginal in marginals}
    from_others = TableDensity(model.schema_, model.density_).nats_from_others()
    return [
        ColumnFacts(
            column.name,
            column.kind,
            column.reason,
            int(frame.columns[column.name].missing.sum()),
            _glance(frame.columns[column.name], drawn.get(column.name)),
            nats,
        )
        for column, nats in zip(model.schema_.describe(), from_others, strict=True)
    ]


def _patterns(frame: Frame) -> list[tuple[tuple[str, ...], int]]:
    """The most common sets of missing columns, the empty one included; none where no cell is missing."""
    names = [name for name, cells in frame.columns.items() if cells.missing.any()]
    if not names:
        return []
    gone = np.stack([frame.columns[name].missing for name in names], 1)
    packed = np.packbits(gone, axis=1)
    _, first, counts = np.unique(packed, axis=0, return_index=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:PATTERNS]
    return [(tuple(np.array(names, object)[gone[first[i]]]), int(counts[i])) for i in order]


def _glance(cells: Cells, marginal: Marginal | None) -> str:
    """The range of numbers, the most common values of a category, the value of a constant."""
    known = np.flatnonzero(~cells.missing)
    if not len(known):
        return "—"
    if marginal is None:
        return display_text(cells, int(known[0]))
    if isinstance(marginal.axis, Listed) and not marginal.axis.ordered:
        top = list(zip(marginal.axis.labels, marginal.real, strict=True))[:3]
        return ", ".join(f"{label} {share:.0%}" for label, share in top)
    low, high = (int(known[pick(cells.values[known])]) for pick in (np.argmin, np.argmax))
    return f"{display_text(cells, low)} … {display_text(cells, high)}"


def _outliers(model: CTEM, table: TableDensity, frame: Frame, chosen: NDArray[np.int64]) -> list[Strange]:
    outliers = find_outliers(table, frame, model.held_out_, STRANGE)
    places = [outlier.row for outlier in outliers]
    return [
        (replace(outlier, row=int(chosen[i])), taken(frame, slice(i, i + 1)).columns)
        for i, outlier in zip(places, outliers, strict=True)
    ]
