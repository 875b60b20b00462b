r"""How a density does on rows that it has not seen, and conformal p-values from their scores.

Every network of a fit is blind to a fold of the rows (``densities.anyorder.fitting``), and its density alone scores
them. A new row is scored by the density of one network, too, which a hash of the row chooses. So both are draws of the
same mixture over the networks: if new rows come from where the table comes from, the scores are exchangeable, and

    p(row) = ( 1 + #{held-out rows at least as strange} ) / ( 1 + #{held-out rows} )

is at most α with probability α, down to 1 / (1 + #{held-out rows}). The mean of the networks would not do, nor would
the mean of their p-values: a row is rarely as strange to all of them as it is to one, so that small p-values would be
too rare.

Reference: V. Vovk, Cross-conformal predictors, 2015.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.anyorder.fitting import FOLDS
from ctem.densities.tilted import TiltedDensity
from ctem.tables.answers.density import TableDensity
from ctem.tables.answers.realism import Realism
from ctem.tables.io.frame import Frame
from ctem.tables.io.rows import chunks, taken

__all__ = [
    "Fold",
    "HeldOut",
    "check_held_out",
    "energy_held_out",
    "held_out_parts",
    "judged_rows",
    "rank_p_values",
    "row_hashes",
    "unseen_rows",
]

Vector = NDArray[np.float64]
MOST = 2000  # held-out rows that are scored, of all networks together
HELD, MOST_HELD = 0.15, 20_000  # share of the rows that an energy does not see, and at most so many
CELLS = 2**17  # of them, at most: a row of many columns has many conditionals
TIE = 1e-4  # nats
STEP, GONE = 1 / 64, 2.0**50  # of encoded cells by which a network is chosen; what stands for a missing one
AT_A_TIME, PIECE = 256, 2**14  # rows that are scored before the clock is looked at, and passes that they take
SHARE, LEARNING = (
    0.15,
    3,
)  # of the training's work, for scoring; passes of scoring that one of training is worth
LEAST, FREE = 300, 2**17  # rows that are scored, and passes that may be, however short the training was
REPEATED = 5  # times that a held-out row is there, from which new rows like it are to be expected
EVERY = -1  # the member of a fold that no network has seen: all of them score it
PLAIN = ("rows", "log_density", "independent", "gain")


class Fold(NamedTuple):
    """Sorted scores of the rows that one member has not seen; ``EVERY`` stands for all members.

    >>> Fold(0, np.array([0.5, 2.0])).scores.max()
    np.float64(2.0)
    """

    member: int
    scores: Vector


@dataclass(frozen=True)
class HeldOut:
    """Held-out rows: how many, their mean log-density and that of independent columns, and their scores.

    Arguments:
        rows: how many.
        log_density: mean in nats a row, each by a network that has not seen the row.
        independent: mean log-density of independent columns.
        gain, stderr: the mean difference of the two, and its standard error.
        folds: the scores.
        realism: how well samples pass for real rows, if that was looked at.

    >>> HeldOut(100, -3.0, -5.0, 2.0, 0.1, ()).gain
    2.0
    """

    rows: int
    log_density: float
    independent: float
    gain: float
    stderr: float
    folds: tuple[Fold, ...]
    realism: Realism | None = None

    def p_values(self, table: TableDensity, frame: Frame) -> Vector:
        """The conformal p-value of every row: its score by one network, among the scores of all folds."""
        held_out = np.sort(np.concatenate([fold.scores for fold in self.folds]))
        hashes = [row_hashes(table.encode(part)[0]) for part in chunks(frame)]
        judge = np.concatenate(hashes) % np.uint64(len(self.folds))
        new = np.empty(len(frame))
        for k, fold in enumerate(self.folds):
            rows = judge == k
            if rows.any():
                new[rows] = table.of_member(fold.member).surprise(taken(frame, rows))
        return rank_p_values(held_out, new)

    def summary(self) -> dict[str, Any]:
        """Everything but the scores, as plain values; a standard error that is not known is None."""
        stderr = self.stderr if math.isfinite(self.stderr) else None
        realism = None if self.realism is None else self.realism._asdict()
        return {**{name: getattr(self, name) for name in PLAIN}, "stderr": stderr, "realism": realism}

    def to_json(self) -> dict[str, Any]:
        """This record as plain JSON."""
        return {**self.summary(), "folds": [[fold.member, fold.scores.tolist()] for fold in self.folds]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HeldOut:
        """The record that ``to_json`` wrote; anything else is refused.

        >>> HeldOut.from_json(HeldOut(2, -3.0, -5.0, 2.0, 0.1, (Fold(0, np.array([1.0, 2.0])),)).to_json()).rows
        2
        """
        folds = tuple(Fold(int(member), np.array(scores, np.float64)) for member, scores in data["folds"])
        rows, *means = (float(data[name]) for name in PLAIN)
        stderr = math.inf if data["stderr"] is None else float(data["stderr"])
        fine = all(fold.scores.ndim == 1 and bool(np.isfinite(fold.scores).all()) for fold in folds)
        total = sum(len(fold.scores) for fold in folds)
        if not fine or not np.isfinite(means).all() or stderr < 0 or rows != total:
            raise ValueError("held_out: expected finite scores, as many as there are rows, and finite means.")
        sorted_folds = tuple(Fold(fold.member, np.sort(fold.scores)) for fold in folds)
        log_density, independent, gain = means
        realism = data.get("realism")
        realism = None if realism is None else Realism(float(realism["samples"]), float(realism["ceiling"]))
        if realism is not None and not all(0 <= share <= 1 for share in realism):
            raise ValueError(f"realism: expected shares in [0, 1]; got {realism}.")
        return cls(int(rows), log_density, independent, gain, stderr, sorted_folds, realism)

    def __str__(self) -> str:
        passing = "" if self.realism is None else f"; {self.realism}"
        gain = f"{abs(self.gain):.2f} ± {self.stderr:.2f} {'worse' if self.gain < 0 else 'better'}"
        return (
            f"held-out rows {self.log_density:.2f} nats, {gain} than independent "
            f"columns ({self.rows} rows){passing}"
        )


def rank_p_values(held_out: Vector, new: Vector) -> Vector:
    """(1 + #{held-out scores ≥ the new one}) / (1 + #held-out scores), for sorted scores (h,) and new ones (n,).

    Scores that are nearly alike are ties: the last digits of a score depend on the rows that are scored with it.

    >>> rank_p_values(np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0, 9.0]))
    array([1.  , 0.75, 0.25])
    """
    above = len(held_out) - np.searchsorted(held_out, new - TIE, side="left")
    return np.asarray((1 + above) / (1 + len(held_out)))


def row_hashes(x: Tensor) -> NDArray[np.uint64]:
    """A hash of each encoded row (n, d), of its cells in steps of ``STEP``: last digits make no difference.

    >>> row_hashes(torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 2.0], [1.0, torch.nan]])) % np.uint64(5)
    array([0, 0, 3, 1], dtype=uint64)
    """
    steps = (x.double() / STEP).round().nan_to_num(nan=GONE).clamp(-GONE, GONE).long().cpu().numpy()
    mixed = np.zeros(len(x), np.uint64)
    for cells in steps.view(np.uint64).T:  # SplitMix64, one column after the other
        mixed = (mixed ^ cells) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def unseen_rows(n: int, members: int, seed: int) -> list[NDArray[np.int64]]:
    """The rows that each member of a fit to n rows has not seen, as ``split_rows`` of the any-order density has them.

    >>> [len(rows) for rows in unseen_rows(20, 2, seed=0)]
    [2, 2]
    """
    folds = max(members, min(FOLDS, n))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()
    return [order[k::folds] for k in range(members)]


def energy_held_out(n: int, members: int, seed: int) -> list[NDArray[np.int64]]:
    """Of the rows that each member has not seen, those that an energy does not see either.

    >>> [len(rows) for rows in energy_held_out(1000, 2, seed=0)]
    [75, 75]
    """
    each = math.ceil(min(HELD * n, MOST_HELD) / members)
    return [rows[:each] for rows in unseen_rows(n, members, seed)]


def blind_rows(density: AnyOrderDensity, n: int, seed: int) -> list[NDArray[np.int64]]:
    """The rows of a fit to n rows that each member has not seen, nor the energy where there is one.

    >>> from ctem import CTEM
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = CTEM(max_steps=2, width=8, members=2, batch_size=16, random_state=0).fit(X)
    >>> [len(rows) for rows in blind_rows(model.density_, 100, model.seed_)]
    [10, 10]
    """
    rows_of = energy_held_out if isinstance(density, TiltedDensity) else unseen_rows
    return rows_of(n, density.net.members, seed)


def check_held_out(
    table: TableDensity,
    frame: Frame,
    seed: int,
    held_out: Frame | None = None,
    until: float | None = None,
    weights: Vector | None = None,
    trained: int | None = None,
) -> HeldOut:
    """The scores of the held-out rows of a fit to ``frame``.

    Arguments:
        table: the fitted density.
        frame: the rows of fit.
        seed: of the fit, which chose the folds.
        held_out: rows that no network has seen, instead of the folds.
        until: the time of ``time.perf_counter`` after which no further rows are scored; some always are.
        weights: of the rows of fit, (n,): new rows are then strange or not among rows that are drawn by them.
        trained: rows that went through a network in training, by which it is chosen how many are scored.

    >>> from ctem import CTEM
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> CTEM(max_steps=2, width=8, members=2, batch_size=16, random_state=0).fit(X).held_out_.rows
    20
    """
    member = 0 if held_out is None else EVERY
    most = judged_rows(table.of_member(member), trained)
    if held_out is not None:
        return _judged(table, [(EVERY, taken(held_out, slice(0, most)))], until)
    return _judged(table, held_out_parts(table, frame, seed, most, weights), until)


def judged_rows(table: TableDensity, trained: int | None = None) -> int:
    """How many held-out rows are scored, after so many passes of training: a share of the work that these were.

    It counts work, not seconds, so that the same seed gives the same scores.

    >>> from ctem import CTEM
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = CTEM(max_steps=2, width=8, members=2, batch_size=16, random_state=0).fit(X)
    >>> judged_rows(TableDensity(model.schema_, model.density_), trained=0)
    2000
    """
    most = min(MOST, CELLS // table.schema.space.dim)
    if trained is None:
        return most
    affordable = max(FREE, SHARE * LEARNING * trained) / table.passes
    return min(most, max(LEAST, int(affordable)))


def held_out_parts(
    table: TableDensity, frame: Frame, seed: int, most: int, weights: Vector | None = None
) -> list[tuple[int, Frame]]:
    """The members that an any-order density uses, each with rows of its fit that it has not seen; so many at most.

    Where rows have weights, they are drawn by these, with replacement.

    >>> from ctem import CTEM
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = CTEM(max_steps=2, width=8, members=2, batch_size=16, random_state=0).fit(X)
    >>> table = TableDensity(model.schema_, model.density_)
    >>> [(member, len(rows)) for member, rows in held_out_parts(table, model.as_frame(X), model.seed_, most=2000)]
    [(0, 10), (1, 10)]
    """
    unseen, rng = blind_rows(table.density, len(frame), seed), np.random.default_rng(seed)
    parts = []
    for member, rows in ((k, rows) for k, rows in enumerate(unseen) if len(rows)):
        if weights is not None:  # as many, each as often as it weighs
            rows = rng.choice(rows, len(rows), p=weights[rows] / weights[rows].sum())
        parts.append((member, taken(frame, rows[: max(1, most // len(unseen))])))
    return parts


def _judged(table: TableDensity, parts: Sequence[tuple[int, Frame]], until: float | None = None) -> HeldOut:
    """Held-out rows judged by members that have not seen them; some rows of each in turn if time is limited."""
    log_density, independent, scores = list[Vector](), list[Vector](), list[Vector]()
    if until is not None:  # all members count when the time is over
        few = max(1, min(AT_A_TIME, PIECE // table.of_member(parts[0][0]).passes))
        pieces = [[(member, piece) for piece in chunks(part, few)] for member, part in parts]
        parts = [piece for turn in zip_longest(*pieces) for piece in turn if piece is not None]
    took = 0.0  # for the rows before
    for member, part in parts:
        began = time.perf_counter()
        if scores and until is not None and began + took > until:
            break
        log_p, score = table.of_member(member).log_prob_and_surprise(part)
        log_density.append(log_p)
        independent.append(table.independent(part))
        scores.append(score)
        took = time.perf_counter() - began
    scored = parts[: len(scores)]
    if until is None or time.perf_counter() < until:
        scores = _repeated_alike(table, scored, scores)
    by_member: dict[int, list[Vector]] = {}
    for (member, _), score in zip(scored, scores, strict=True):
        by_member.setdefault(member, []).append(score)
    folds = tuple(Fold(member, np.sort(np.concatenate(some))) for member, some in by_member.items())
    dependent, alone = np.concatenate(log_density), np.concatenate(independent)
    gain = dependent - alone
    stderr = float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
    means = float(dependent.mean()), float(alone.mean()), float(gain.mean())
    return HeldOut(len(gain), *means, stderr, folds)


def _repeated_alike(
    table: TableDensity, parts: Sequence[tuple[int, Frame]], scores: Sequence[Vector]
) -> list[Vector]:
    """The scores of parts, in which rows that repeat have one score, by the network that new rows like them have.

    It has seen such a row many times, whether or not it has seen this one.
    """
    members, hashes = list(dict(parts)), [row_hashes(table.encode(part)[0]) for _, part in parts]
    _, which, counts = np.unique(np.concatenate(hashes), return_inverse=True, return_counts=True)
    often = np.split(counts[which] >= REPEATED, np.cumsum([len(some) for some in hashes])[:-1])
    out = []
    for (_, part), some, repeated, before in zip(parts, hashes, often, scores, strict=True):
        after, judge = before.copy(), some % np.uint64(len(members))
        for k, member in enumerate(members):
            rows = repeated & (judge == k)
            if rows.any():
                after[rows] = table.of_member(member).surprise(taken(part, rows))
        out.append(after)
    return out
