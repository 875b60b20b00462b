r"""How much a model gives away of the rows that it was fitted to, measured against rows that it has not seen.

Every number compares rows of fit with held-out rows of the same kind: a model that has learned the population and
nothing of its rows treats both alike.

    nearer      share of samples that are nearer to rows of fit than to as many held-out rows         ½ if nothing leaks
    copies      share of samples that are a row of fit, cell by cell;  held-out rows (whole ones) are so by chance
    ratio       median of the distance to the nearest over that to the second nearest row of fit
    attack      AUC of the likelihood-ratio test  log ρ(row) − log Π_j ρ(x_j)  for "was in the fit"   ½ if nothing leaks

The last needs a density and is the attack of someone who holds the model itself, not samples alone. A good audit is
evidence, not a proof: it knows these attacks and no others, and is no differential privacy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor

from ctem.estimators.estimator import CTEM
from ctem.spaces import Category, Ordinal
from ctem.tables.answers.breaches import Breach, breaches
from ctem.tables.answers.density import TableDensity
from ctem.tables.answers.heldout import EVERY, blind_rows, unseen_rows
from ctem.tables.io.frame import Frame
from ctem.tables.io.rows import chunks, taken
from ctem.tables.schema import Schema

__all__ = ["Exposed", "Privacy", "audit"]

Vector = NDArray[np.float64]
ROWS = 2000  # samples, held-out rows and attacked rows, at most
NEIGHBOURS = 20_000  # rows of fit among which neighbours are looked for, at most
CHUNK = 256  # samples whose distances are held at a time
WORST = 5  # exposed rows that are named
SURE = 3.0  # standard errors beyond which a number is an alarm
TOLERATED = {"nearer": 0.53, "attack": 0.55}  # below, a number is no alarm however sure


class Exposed(NamedTuple):
    """A row of fit that the model knows well for one of its kind: its number and log-ratio in nats.

    >>> Exposed(12, 8.5).row
    12
    """

    row: int
    nats: float


@dataclass(frozen=True)
class Privacy:
    """What an audit found; ``…_unseen`` is the same of held-out rows, what is to be expected by chance.

    Arguments:
        samples, seen, unseen: how many samples, rows of fit and held-out rows were compared.
        nearer, nearer_stderr: share of samples nearer to rows of fit, and its standard error.
        copies, copies_unseen: share of samples, of held-out rows without gaps, that are a row of fit.
        ratio, ratio_unseen: median ratio of the nearest two distances to rows of fit.
        attack, attack_stderr: AUC of the likelihood-ratio test, and its standard error.
        exposed: the rows of fit of highest likelihood ratio.
        networks: how many were asked alone, if no held-out rows were given; 1 for the model as a whole.
        rules: how often samples break each rule and order that the model keeps.

    >>> Privacy(100, 50, 50, 0.51, 0.05, 0.0, 0.0, 0.8, 0.8, 0.5, 0.06, ()).alarms()
    []
    """

    samples: int
    seen: int
    unseen: int
    nearer: float
    nearer_stderr: float
    copies: float
    copies_unseen: float
    ratio: float
    ratio_unseen: float
    attack: float
    attack_stderr: float
    exposed: tuple[Exposed, ...]
    networks: int = 1
    rules: tuple[Breach, ...] = ()

    def alarms(self) -> list[str]:
        """What should not be, in words."""
        alarms = []
        for name, what in (
            ("nearer", "samples are nearer to rows of fit than to held-out rows"),
            ("attack", "the likelihood separates rows of fit from held-out ones"),
        ):
            value, stderr = getattr(self, name), getattr(self, f"{name}_stderr")
            if value > TOLERATED[name] and value > 0.5 + SURE * stderr:
                alarms.append(f"{what}: {value:.3f} ± {stderr:.3f}, where 0.5 is a guess")
        noise = math.sqrt(max(self.copies_unseen, 1 / self.unseen) * (1 / self.samples + 1 / self.unseen))
        if self.copies > self.copies_unseen + SURE * noise:
            alarms.append(
                f"{self.copies:.2%} of the samples are rows of fit; of held-out rows {self.copies_unseen:.2%} are"
            )
        return alarms

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON."""
        lists = {name: [entry._asdict() for entry in getattr(self, name)] for name in ("exposed", "rules")}
        return {**asdict(self), **lists, "alarms": self.alarms()}

    def __str__(self) -> str:
        rows = ", ".join(f"{row.row} ({row.nats:+.1f})" for row in self.exposed)
        alarms = self.alarms()
        how = f"each of {self.networks} networks alone, which gives away more than their mixture"
        verdict = ["no alarm"] if not alarms else [f"ALARM: {alarm}" for alarm in alarms]
        return "\n".join(
            [
                *([how] if self.networks > 1 else []),
                f"{self.samples} samples, {self.seen} rows of fit, {self.unseen} held-out rows",
                f"nearer to rows of fit than to others: {self.nearer:.3f} ± {self.nearer_stderr:.3f}  (0.5 is best)",
                f"copies of rows of fit: {self.copies:.2%} of samples, {self.copies_unseen:.2%} of held-out rows",
                f"nearest over second nearest distance: {self.ratio:.2f}, of held-out rows {self.ratio_unseen:.2f}",
                f"membership by likelihood ratio, AUC: {self.attack:.3f} ± {self.attack_stderr:.3f}  (0.5 is best)",
                f"most exposed rows of fit (nats over independent columns): {rows}",
                *map(str, self.rules),
                *verdict,
            ]
        )


def audit(model: CTEM, X: Any, holdout: Any = None, random_state: int = 0, n_samples: int = ROWS) -> Privacy:
    """Compare what a model does with the rows of its fit and with others.

    Without held-out rows each network of the model is asked alone, about the rows that it has not seen itself; that is
    for the table of fit only, and is the stricter test, as the mixture of all networks gives away less than each.

    Arguments:
        model: fitted.
        X: the rows of fit, or some of them.
        holdout: rows of the same kind that were not in the fit.
        random_state: a seed, of the samples and of which rows are looked at.
        n_samples: how many samples are drawn, and how many rows of both kinds are looked at, at most.

    >>> rng = np.random.default_rng(0)
    >>> X, others = rng.normal(size=(200, 2)), rng.normal(size=(200, 2))
    >>> model = CTEM(max_steps=20, width=8, batch_size=32, random_state=0).fit(X)
    >>> audit(model, X, others).alarms()
    []
    """
    frame, table = model.as_frame(X), TableDensity(model.schema_, model.density_)
    rng = np.random.default_rng(random_state)
    if holdout is None:
        parts = list(_folds(model, table, frame))
    else:
        parts = [_Part(table, np.arange(len(frame)), frame, model.as_frame(holdout))]
    pooled = _pooled([_judged(part, max(2, n_samples // len(parts)), rng) for part in parts])
    if table.schema.keeper is None:
        return pooled
    generator = torch.Generator(table.device).manual_seed(int(rng.integers(2**31)))
    return replace(pooled, rules=tuple(breaches(table.schema, table.sample(n_samples, generator))))


class _Part(NamedTuple):
    """A density, the rows that it has seen with their numbers, and rows that it has not."""

    table: TableDensity
    rows: NDArray[np.int64]
    seen: Frame
    unseen: Frame


class _Judged(NamedTuple):
    """The findings of one part, before they are pooled."""

    nearer: Vector  # of each sample: 1, ½ or 0
    copies: NDArray[np.bool_]
    copies_unseen: NDArray[np.bool_]
    ratio: Vector
    ratio_unseen: Vector
    scores: Vector  # log-ratios of rows of fit
    scores_unseen: Vector
    rows: NDArray[np.int64]


def is_of_fit(model: CTEM, frame: Frame) -> bool:
    """Whether these are the very rows of the fit."""
    digest = hashlib.sha256()
    for part in chunks(frame):
        digest.update(model.schema_.encode(part).x.numpy().tobytes())
    return digest.hexdigest() == model.data_hash_


def _folds(model: CTEM, table: TableDensity, frame: Frame) -> Iterator[_Part]:
    """One part for each network that the density uses."""
    held = model.held_out_
    if not is_of_fit(model, frame) or any(fold.member == EVERY for fold in held.folds):
        raise ValueError(
            "holdout: expected rows that were not in the fit, unless X is the very table of a fit without X_val; "
            f"got {len(frame)} rows of X, fit had {model.n_samples_seen_}."
        )
    missed = unseen_rows(len(frame), table.density.net.members, model.seed_)
    unseen = blind_rows(table.density, len(frame), model.seed_)
    for fold in held.folds:
        seen = np.setdiff1d(np.arange(len(frame)), missed[fold.member])
        yield _Part(table.of_member(fold.member), seen, taken(frame, seen), taken(frame, unseen[fold.member]))


def _judged(part: _Part, n: int, rng: np.random.Generator) -> _Judged:
    schema, table = part.table.schema, part.table
    size = min(n, len(part.unseen))
    rows = rng.permutation(len(part.seen))
    unseen = taken(part.unseen, rng.permutation(len(part.unseen))[:size])
    generator = torch.Generator(table.device).manual_seed(int(rng.integers(2**31)))
    drawn = Frame(part.seen.table_type, table.sample(n, generator))
    all_seen = schema.encode(taken(part.seen, rows[:NEIGHBOURS])).x
    x, away = schema.encode(drawn).x, schema.encode(unseen).x
    same = min(len(all_seen), len(away))  # as many rows on both sides
    near, far = (_nearest(schema, x, side[:same], 1)[:, 0] for side in (all_seen, away))
    attacked = rows[:n]
    return _Judged(
        ((near < far) + 0.5 * (near == far)).numpy(),
        _copied(schema, drawn, part.seen),
        _copied(schema, unseen, part.seen),
        _ratio(_nearest(schema, x, all_seen, 2)),
        _ratio(_nearest(schema, away, all_seen, 2)),
        _log_ratio(table, taken(part.seen, attacked)),
        _log_ratio(table, unseen),
        part.rows[attacked],
    )


def _pooled(parts: Sequence[_Judged]) -> Privacy:
    """The parts as one; areas under curves are averaged, as scores of different densities do not compare."""
    areas = [_area(part.scores, part.scores_unseen) for part in parts]
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _Judged._fields}
    n, unseen = len(joined["nearer"]), len(joined["scores_unseen"])
    order = np.argsort(-joined["scores"], kind="stable")
    best = np.unique(joined["rows"][order], return_index=True)[1]  # of each row, where it is most exposed
    worst = order[np.sort(best)[:WORST]]
    return Privacy(
        samples=n,
        seen=len(joined["scores"]),
        unseen=unseen,
        nearer=float(joined["nearer"].mean()),
        nearer_stderr=0.5 * math.sqrt(1 / n + 1 / unseen),
        copies=float(joined["copies"].mean()),
        copies_unseen=float(np.mean(joined["copies_unseen"])) if len(joined["copies_unseen"]) else 0.0,
        ratio=float(np.median(joined["ratio"])),
        ratio_unseen=float(np.median(joined["ratio_unseen"])),
        attack=float(np.mean([area for area, _ in areas])),
        attack_stderr=math.sqrt(sum(stderr**2 for _, stderr in areas)) / len(areas),
        exposed=tuple(Exposed(int(joined["rows"][i]), float(joined["scores"][i])) for i in worst),
        networks=len(parts),
    )


def _area(members: Vector, others: Vector) -> tuple[float, float]:
    """The area under the curve, and its standard error if members and others score alike."""
    m, n = len(members), len(others)
    truth = np.repeat([1, 0], [m, n])
    area = float(roc_auc_score(truth, np.concatenate([members, others])))
    return area, math.sqrt((m + n + 1) / (12 * m * n))


def _log_ratio(table: TableDensity, frame: Frame) -> Vector:
    return table.log_prob(frame) - table.independent(frame)


def _nearest(schema: Schema, a: Tensor, b: Tensor, count: int) -> Tensor:
    """Distances of rows a to their ``count`` nearest rows of b, (n, count)."""
    count = min(count, len(b))
    parts = [_distances(schema, part, b).topk(count, 1, largest=False).values for part in a.split(CHUNK)]
    return torch.cat(parts)


def _distances(schema: Schema, a: Tensor, b: Tensor) -> Tensor:
    """Σ over columns of |a − b| for numbers, in normal scores, and of a ≠ b for labels; a gap is 1 from any value.

    Ordered labels differ by their distance over the longest one.
    """
    total = a.new_zeros(len(a), len(b))
    for j, column in enumerate(schema.space.columns):
        one, other = a[:, j : j + 1], b[:, j]
        gap = one.isnan() ^ other.isnan()
        apart = (one.nan_to_num() - other.nan_to_num()).abs()
        if isinstance(column, Ordinal):
            apart = apart / (column.size - 1)
        elif isinstance(column, Category):
            apart = (apart > 0).to(apart.dtype)
        total += torch.where(gap, float(j not in schema.parents), apart)
    return total


def _ratio(distances: Tensor) -> Vector:
    """The nearest over the second nearest; 1 where both are 0."""
    near, next_ = distances[:, 0], distances[:, -1]
    return torch.where(next_ > 0, near / next_.clamp_min(1e-12), 1.0).double().numpy()


def _copied(schema: Schema, frame: Frame, seen: Frame) -> NDArray[np.bool_]:
    """Which rows are among those that were seen, in every encoded column.

    Rows with gaps do not count: samples have none, and rows without values are alike whatever a model gives away.
    """
    known = {row.tobytes() for row in schema.encode(seen).x.numpy()}
    x = schema.encode(frame).x
    columns = [j for j in range(schema.space.dim) if j not in schema.parents]
    whole = x[~x[:, columns].isnan().any(1)]
    return np.array([row.tobytes() in known for row in whole.numpy()], bool)
