"""From encoded rows to a fitted density."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.anyorder.fitting import fit_anyorder
from ctem.densities.anyorder.settings import Settings
from ctem.densities.tilted import Pace, Plan, TiltedDensity, fit_energy
from ctem.tables.answers.heldout import energy_held_out
from ctem.tables.io.frame import Frame
from ctem.tables.io.rows import taken
from ctem.tables.schema import Schema
from ctem.training.borrowed import checked_sample_weight
from ctem.training.loop import Refresh
from ctem.training.processes import team

__all__ = ["fit_density", "settings_for", "weighted_rows"]

WEIGHED = 0.3  # share of ``max_time`` for the energy, at most
CHECK = 0.05  # share of ``max_time`` for what comes after, at least
PLANS = {
    "quick": Plan(draws=2.0, rate=0.1, trees=800, patience=60, steps=500),
    "default": Plan(),
    "best": Plan(rounds=2, steps=3000),
}
JUDGED = 150.0  # draws that take as long as judging the fewest rows of many columns
NETWORKS = 2  # of an energy that has any
REQUESTED = ("width", "blocks", "members", "orders", "batch_size", "learning_rate", "weight_decay")


def weighted_rows(frame: Frame, sample_weight: Any) -> tuple[Frame, Tensor | None]:
    """The rows of weight > 0, and their weights; None for no weights, and where they are all the same.

    >>> from ctem.tables.io.frame import read_frame
    >>> frame, weights = weighted_rows(read_frame([[1.0], [2.0], [3.0]]), [1.0, 0.0, 2.0])
    >>> len(frame), weights
    (2, tensor([1., 2.], dtype=torch.float64))
    """
    if sample_weight is None:
        return frame, None
    weights = checked_sample_weight(sample_weight, np.empty((len(frame), 1)))
    with np.errstate(over="ignore"):
        finite = np.isfinite(weights.sum())
    if not finite:
        raise ValueError(
            f"sample_weight: expected weights of a finite sum; the largest is {weights.max():g}."
        )
    kept = weights > 0
    positive = weights[kept]
    return taken(frame, kept), torch.from_numpy(positive) if (positive != positive[:1]).any() else None


def settings_for(arguments: Mapping[str, Any], schema: Schema, rows: int) -> Settings:
    """The settings that suit a table of so many rows, with what the arguments of ``CTEM`` request.

    >>> from ctem import CTEM
    >>> from ctem.tables.io.frame import read_frame
    >>> schema = Schema.fit(read_frame([[0.5, 1.0], [2.5, 1.5], [1.0, 3.0]]))
    >>> settings_for(CTEM(width=16).get_params(), schema, rows=3).width
    16
    """
    reals = len(schema.space.reals)
    suited = Settings.suited(rows, schema.space.dim, arguments["effort"], reals=reals)
    return suited.changed(rows, steps=arguments["max_steps"], **{key: arguments[key] for key in REQUESTED})


def fit_density(
    arguments: Mapping[str, Any],
    schema: Schema,
    settings: Settings,
    x: Tensor,
    weights: Tensor | None,
    held_out: Tensor | None,
    seed: int,
    refresh: Refresh | None = None,
) -> AnyOrderDensity:
    """Train what the arguments of ``CTEM`` ask for.

    Arguments:
        arguments: of the constructor.
        schema: the columns.
        settings: of ``settings_for``.
        x: encoded rows (n, d), nan where hidden.
        weights: (n,), or None for equal ones.
        held_out: encoded rows to stop by, or None for some of x.
        seed: of everything random.
        refresh: brings other rows into x while it trains, where x is a part of a larger table.

    >>> import torch
    >>> from ctem import CTEM
    >>> from ctem.tables.io.frame import read_frame
    >>> frame = read_frame(torch.randn(50, 1, generator=torch.Generator().manual_seed(0)).numpy())
    >>> schema, arguments = Schema.fit(frame), CTEM(max_steps=2, width=8, members=1).get_params()
    >>> x = schema.encode(frame).x
    >>> fit_density(arguments, schema, settings_for(arguments, schema, 50), x, None, None, seed=0).base.space.dim
    1
    """
    how: dict[str, Any] = {"checkpoint": arguments["checkpoint"], "progress": bool(arguments["verbose"])}
    about: dict[str, Any] = {"weights": weights, "held_out": held_out}
    tilted, plan = arguments["energy"] is not None, _plan(arguments["effort"], arguments["energy"])
    limits: dict[str, Any] = {"parents": schema.parents, "jitter": schema.preparation, "refresh": refresh}
    limits |= {"ties": schema.ties, "rules": schema.keeper}
    budget = _Budget(arguments["max_time"], x, schema.parents, plan if tilted else None, seed)
    if budget.max_time is not None:
        limits["max_time"] = budget.learning
        if budget.max_time:  # else there is no time for an energy, nor to see how long one would take
            limits["leaving"] = budget.leaving
    density = fit_anyorder(schema.space, x, settings, seed=seed, **limits, **about, **how)
    if tilted and not density.history.interrupted:
        density = _tilted(density, schema, x, weights, held_out, seed, plan, budget.until)
    return density


class _Budget:
    """The seconds of a fit, and how many of them are for what comes after the networks.

    Arguments:
        max_time: seconds, or None for no limit.
        x: encoded rows of the data (n, d).
        parents: for a real column that exists only where a category has code 0, that category.
        plan: of the energy, if there is to be one.
        seed: of draws by which the speed is measured.

    >>> _Budget(100.0, torch.zeros(9, 500), {}, None, 0).learning
    95.0
    """

    def __init__(
        self, max_time: float | None, x: Tensor, parents: Mapping[int, int], plan: Plan | None, seed: int
    ):
        self.began, self.max_time, self.judging = time.perf_counter(), max_time, 0.0
        self.x, self.parents, self.plan, self.seed = x, parents, plan, seed

    @property
    def learning(self) -> float:
        """Seconds in which the density should be learned: some are left to judge it."""
        assert self.max_time is not None
        return max(0.0, self.max_time - max(CHECK * self.max_time, self.judging))

    @property
    def until(self) -> float | None:
        """The moment at which it should be learned."""
        return None if self.max_time is None else self.began + self.learning

    def leaving(self, density: AnyOrderDensity) -> float:
        """How many of these seconds are not for networks, by an untrained density of the same speed."""
        assert self.max_time is not None
        generator = torch.Generator(density.base.log_table.device).manual_seed(self.seed)
        planned, pace = self.learning, Pace.of(density, generator, self.x, self.parents)
        self.judging = JUDGED * pace.draw
        return planned - self.learning + self._of_energy(pace, WEIGHED * self.max_time)

    def _of_energy(self, pace: Pace, most: float) -> float:
        """About how long it takes to learn an energy, at most so long; 0 where that is too short."""
        rows, columns = self.x.shape
        plan = None if self.plan is None else self.plan.sized(columns, rows)
        if plan is None or not plan.within(most, pace, columns).learns:
            return 0.0
        return min(plan.seconds(rows, pace, columns), most)


def _plan(effort: str, energy: str | None) -> Plan:
    """How long an energy is learned, and of what it is made."""
    plan = PLANS[effort]
    if energy == "networks":
        return plan._replace(rounds=0, networks=NETWORKS)
    if energy == "both":
        return plan._replace(networks=NETWORKS)
    return plan


def _tilted(
    density: AnyOrderDensity,
    schema: Schema,
    x: Tensor,
    weights: Tensor | None,
    held_out: Tensor | None,
    seed: int,
    plan: Plan,
    until: float | None = None,
) -> AnyOrderDensity:
    """The density times an energy, if one gains on rows that neither has seen; else the density itself."""
    if held_out is None:
        held = torch.from_numpy(np.concatenate(energy_held_out(len(x), density.net.members, seed))).to(
            x.device
        )
        seen = torch.ones(len(x), dtype=torch.bool, device=x.device).index_fill(0, held, False)
        rows, held_out, weights = x[seen], x[held], None if weights is None else weights[seen.cpu()]
    else:
        rows = x
    energy = team().agreed(
        lambda: fit_energy(
            density,
            rows,
            held_out,
            schema.unordered,
            plan,
            parents=schema.parents,
            atoms=schema.atoms,
            groups=[group for group in schema.owner if group],
            weights=weights,
            snap=schema.snapped,
            recut=schema.between_cells,
            seed=seed,
            until=until,
        )
    )
    return density if energy is None else TiltedDensity(density, energy, schema.snapped)
