"""Ours without noise levels: K-fold cross-fitted energies that tilt N(0, I), and how their default is chosen.

Everything is decided by rows that a network has not seen: the step and the weight decay by the out-of-fold loss, which
is a proper score for one kernel, and what changes the kernel by out-of-fold nats, which compare between kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from batched import Member, Networks, Pairs, Trained, train
from continuous_sets import Fitted, Group, Table, tables
from ctem import Recipe, brier, log_score
from learned import Energy, Mixture, normalise_by_importance, normalise_on_plane

IMPORTANCE_DRAWS = 200_000
CHOICE_FOLDS = 5  # candidates are compared with fewer folds than are used, for speed
RECIPE = Recipe(steps=4000, learning_rate=1e-3, ema=0.99, evaluate_every=100)


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Ours without noise levels: the one default.

    Arguments:
        rates: β of the comparisons y = √(1−β²) x + βξ in standardised units, in turn.
        weight_decays: the out-of-fold loss chooses one of them for every table.
        folds: K.
        log_rule: the log score instead of the paper's Brier score.
        squares: the networks see bounded squares of the columns too.
    """

    rates: tuple[float, ...] = (0.5, 0.25)
    weight_decays: tuple[float, ...] = (0.2, 1.0, 5.0)
    folds: int = 8
    log_rule: bool = True
    squares: bool = False
    recipe: Recipe = RECIPE


PLAIN = Plain()
QUICK = {"steps": 20, "evaluate_every": 10}


def shortened(plain: Plain) -> Plain:
    return replace(plain, folds=2, recipe=replace(plain.recipe, **QUICK))


class CrossFit(NamedTuple):
    """K networks for every table and weight decay, each without one fold, and one network on all rows."""

    networks: Networks
    trained: Trained
    keys: list[tuple[int, float, int | None]]  # (table, weight decay, fold left out) of every member


def folds_of(table: Table, k: int) -> list[Tensor]:
    """Row numbers of K folds of (nearly) equal size, shuffled by the table's seed."""
    order = torch.randperm(len(table.X), generator=torch.Generator().manual_seed(table.seed))
    return list(order.tensor_split(k))


def fold_members(
    rows: list[Table], decays: Sequence[float], k: int, whole: bool
) -> tuple[list[Member], list[tuple[int, float, int | None]]]:
    """A member for every table, weight decay and fold left out, with ``whole`` one more on all rows; their keys."""
    members, keys = [], []
    for i, table in enumerate(rows):
        x, folds = table.space.encode(table.X), folds_of(table, k)
        for decay in decays:
            for out in [*range(k), *([None] if whole else [])]:
                kept = [fold for j, fold in enumerate(folds) if j != out]
                seed = 1000 * table.seed + (k if out is None else out)
                held_out = x[folds[out or 0]]
                members.append(Member(x=x[torch.cat(kept)], held_out=held_out, weight_decay=decay, seed=seed))
                keys.append((i, decay, out))
    return members, keys


def cross_fit(
    group: Group, rows: list[Table], device: str, plain: Plain, width: int, whole: bool = True
) -> CrossFit:
    """All networks of the group as one program; ``whole`` adds those on all rows."""
    networks = Networks(group.dim, width, squares=plain.squares)
    members, keys = fold_members(rows, plain.weight_decays, plain.folds, whole)
    rule = log_score if plain.log_rule else brier
    pairs = Pairs(networks, members, device, rates=plain.rates, batch_size=plain.recipe.batch_size, rule=rule)
    return CrossFit(networks, train(networks, members, pairs, plain.recipe), keys)


class Choice(NamedTuple):
    """What the out-of-fold loss chose for one table."""

    evaluation: int
    decay: float
    loss: float


def choose(fit: CrossFit, table: int, decays: Sequence[float]) -> Choice:
    """The evaluation and weight decay with the lowest mean out-of-fold loss: the truth is not looked at."""
    found = []
    for decay in decays:
        mine = [j for j, key in enumerate(fit.keys) if key[:2] == (table, decay) and key[2] is not None]
        losses = fit.trained.held_out[:, mine].mean(1)
        found.append(Choice(int(losses.argmin()), decay, float(losses.min())))
    return min(found, key=lambda choice: choice.loss)


def fit_ours(
    group: Group, rows: list[Table], device: str, quick: bool, plain: Plain = PLAIN
) -> Iterator[Fitted]:
    """The mixture of the K cross-fitted networks, and the one network on all rows at the same step."""
    plain = shortened(plain) if quick else plain
    fit = cross_fit(group, rows, device, plain, 32 if quick else group.width)
    choices = [choose(fit, i, plain.weight_decays) for i in range(len(rows))]
    for system, whole in ((f"ours, plain, {plain.folds} folds", False), ("ours, plain, one network", True)):
        found = [energy_of(fit, i, rows[i], choice, whole) for i, choice in enumerate(choices)]
        facts = []
        for energy, table, choice in zip(found, rows, choices, strict=True):
            chosen = {
                "step chosen out of fold": fit.trained.steps[choice.evaluation],
                "weight decay chosen out of fold": choice.decay,
            }
            facts.append(normalise(energy, table, quick) | chosen)
        yield Fitted(system, found, facts, fit.trained.seconds)


def energy_of(fit: CrossFit, table: int, row: Table, choice: Choice, whole: bool) -> Energy:
    """The networks of one table at its chosen step: those of the folds, or the one on all rows."""
    mine = [
        j for j, (i, d, out) in enumerate(fit.keys) if (i, d, out is None) == (table, choice.decay, whole)
    ]
    return Energy(fit.networks, fit.trained.parameters[choice.evaluation, mine], row.space, tilted=True)


def normalise(energy: Mixture, table: Table, quick: bool) -> dict[str, float]:
    """Over the whole plane by the trapezoidal rule, by importance sampling from N(0, I) in more dimensions."""
    if table.space.dim > 2:
        return importance_facts(energy, table, quick)
    normalise_on_plane(energy, table.space, points=101 if quick else 513)
    return {}


def importance_facts(energy: Mixture, table: Table, quick: bool) -> dict[str, float]:
    found = normalise_by_importance(energy, table.space, 2000 if quick else IMPORTANCE_DRAWS)
    return {"standard error of log Z": found.stderr, "effective samples of log Z": found.ess}


def varied(**changes: float) -> Plain:
    """The default with another recipe."""
    return replace(PLAIN, recipe=replace(RECIPE, **changes))


CANDIDATES = {
    "default": PLAIN,
    "squares": replace(PLAIN, squares=True),
    "Brier": replace(PLAIN, log_rule=False),
    "squares, Brier": replace(PLAIN, squares=True, log_rule=False),
    "β = 0.25": replace(PLAIN, rates=(0.25,)),
    "β = 0.35, 0.15": replace(PLAIN, rates=(0.35, 0.15)),
    "learning rate 2e-3": varied(learning_rate=2e-3),
    "EMA 0.998": varied(ema=0.998),
    "2500 steps": varied(steps=2500),
}


def out_of_fold_nats(fit: CrossFit, i: int, table: Table, choice: Choice, plain: Plain, quick: bool) -> float:
    """Mean log-density of the rows under the network that did not see them: comparable between kernels."""
    total = 0.0
    energy = energy_of(fit, i, table, choice, whole=False)
    normalise(energy, table, quick)
    for k, fold in enumerate(folds_of(table, plain.folds)):
        one = Energy(fit.networks, energy.parameters[k : k + 1], table.space, tilted=True)
        one.log_z = energy.log_z[k : k + 1]
        total += float(one.log_density(torch.as_tensor(table.X[fold])).sum())
    return total / len(table.X)


def candidate_nats(
    plain: Plain, group: Group, seeds: range, device: str, quick: bool
) -> dict[str, list[float]]:
    """Out-of-fold nats of every set of the group, one value a seed; step and weight decay as the default chooses."""
    plain = shortened(plain) if quick else replace(plain, folds=CHOICE_FOLDS)
    rows = tables(group, seeds, quick)
    fit = cross_fit(group, rows, device, plain, 32 if quick else group.width, whole=False)
    found: dict[str, list[float]] = {}
    for i, table in enumerate(rows):
        choice = choose(fit, i, plain.weight_decays)
        found.setdefault(table.name, []).append(out_of_fold_nats(fit, i, table, choice, plain, quick))
    return found
