"""Ours without noise levels, ``ctem.pairwise.fit_pairwise`` table by table, and how its default was chosen.

Everything is decided by rows that a network has not seen: the step and the weight decay by the out-of-fold loss, which
is a proper score for one kernel, and what changes the kernel by out-of-fold nats, which compare between kernels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from continuous_sets import BRIEF, Fitted, Group, Table, space_of, tables, units
from ctem import History, ProductBase, brier
from ctem.energies import MLPs
from ctem.pairwise import RECIPE, PairwiseDensity, fit_pairwise, folds_of
from ctem.partition import LogZ
from paper import log_z_facts

CHOICE_FOLDS = 5  # candidates are compared with fewer folds than are used, for speed
DEFAULTS: dict[str, Any] = {
    k: fit_pairwise.__kwdefaults__[k] for k in ("folds", "weight_decays", "rates", "rule", "recipe")
}
CANDIDATES: dict[str, dict[str, Any]] = {
    "default": {},
    "Brier": {"rule": brier},
    "β = 0.25": {"rates": (0.25,)},
    "β = 0.35, 0.15": {"rates": (0.35, 0.15)},
    "learning rate 2e-3": {"recipe": replace(RECIPE, learning_rate=2e-3)},
    "EMA 0.998": {"recipe": replace(RECIPE, ema=0.998)},
    "2500 steps": {"recipe": replace(RECIPE, steps=2500)},
}


class Ours:
    """A pairwise density of real columns in the user's units."""

    def __init__(self, density: PairwiseDensity):
        self.density, self.device = density, density.base.log_table.device
        self.location, self.scale = units(density.space).to(self.device)
        self.facts = {"members": density.net.members, "width": density.net.width}

    def encoded(self, X: Tensor) -> Tensor:
        return ((X.to(self.device) - self.location) / self.scale).float()

    def log_density(self, X: Tensor) -> Tensor:
        return (self.density.log_prob(self.encoded(X)) + self.density.space.log_det).cpu()

    def slope(self, X: Tensor) -> Tensor:
        return self.density.grad_log_prob(self.encoded(X)) / self.scale

    def state(self) -> dict[str, Tensor]:
        """The tensors it is made of; with ``facts`` enough for ``restored``."""
        log_z = torch.tensor([log_z.value for log_z in self.density.log_zs], dtype=torch.float64)
        own = {"units": torch.stack([self.location, self.scale]), "log_z": log_z}
        return {**self.density.net.state_dict(), **own}

    @classmethod
    def restored(cls, state: dict[str, Tensor], facts: dict[str, Any]) -> Ours:
        space, log_z = space_of(state.pop("units")), state.pop("log_z")
        net = MLPs(space, facts["members"], facts["width"])
        net.load_state_dict(state)
        log_zs = [LogZ(value, 0.0, float("inf"), "kept") for value in log_z.tolist()]
        base = ProductBase(space).to(log_z.device)
        return cls(PairwiseDensity(net.to(log_z.device), base, log_zs, History(), {}))


def settings_of(changes: dict[str, Any]) -> dict[str, Any]:
    """The default with changes, for the record."""
    found = DEFAULTS | changes
    return found | {"rule": found["rule"].__name__, "recipe": asdict(found["recipe"])}


def fit_table(table: Table, width: int, device: str, quick: bool, **changes: Any) -> PairwiseDensity:
    """The default, or one with changes, on one table."""
    if quick:
        width, recipe = 32, replace(DEFAULTS["recipe"], **BRIEF)
        changes |= {"folds": 2, "recipe": recipe, "log_z_draws": 2000}
    x = table.space.encode(table.X).to(device)
    return fit_pairwise(table.space, x, seed=table.seed, width=width, **changes)


def fit_ours(group: Group, rows: list[Table], device: str, quick: bool) -> Iterator[Fitted]:
    """The default on every table."""
    began = time.perf_counter()
    found = [fit_table(table, group.width, device, quick) for table in rows]
    seconds = time.perf_counter() - began
    facts = [
        {
            **log_z_facts(density.log_z),
            "step chosen out of fold": float(density.history.best_step),
            "weight decay chosen out of fold": density.settings["weight_decay"],
        }
        for density in found
    ]
    folds = found[0].net.members
    yield Fitted(f"ours, plain, {folds} folds", [Ours(density) for density in found], facts, seconds)


def out_of_fold_nats(density: PairwiseDensity, table: Table) -> float:
    """Mean log-density of the rows under the network that did not see them: comparable between kernels."""
    x = table.space.encode(table.X).to(density.base.log_table.device)
    each = density.log_prob_each(x).cpu() + table.space.log_det
    folds = folds_of(len(x), density.settings["folds"], table.seed)
    return float(sum(each[k, fold].sum() for k, fold in enumerate(folds))) / sum(map(len, folds))


def candidate_nats(
    changes: dict[str, Any], group: Group, seeds: range, device: str, quick: bool
) -> dict[str, list[float]]:
    """Out-of-fold nats of every set of the group, one value a seed; step and weight decay as the default chooses."""
    found: dict[str, list[float]] = {}
    for table in tables(group, seeds, quick):
        density = fit_table(table, group.width, device, quick, **({"folds": CHOICE_FOLDS} | changes))
        found.setdefault(table.name, []).append(out_of_fold_nats(density, table))
    return found
