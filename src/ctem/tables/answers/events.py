"""Conditions on a table's columns, asked of its density: how likely they are, and rows that meet them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctem.densities.anyorder.events import Event, Particles, Probability, conditioned, estimate, resampled
from ctem.densities.tilted import TiltedDensity
from ctem.tables.answers.conditions import (
    LabelCondition,
    NoValueError,
    NumberCondition,
    check_state,
    compiled,
    is_range,
)
from ctem.tables.answers.density import TableDensity
from ctem.tables.encoding.codecs import LeftOut
from ctem.tables.io.cells import Cells, is_gap
from ctem.tables.io.frame import TableType
from ctem.tables.io.given import given_values, partial_frame
from ctem.tables.schema import Schema

__all__ = ["TableEvent", "conditional_probability", "split_given"]

SPARE = 2  # particles for every row that is drawn, to begin with
FEW = 0.5  # effective rows for every row that is drawn, below which there is a warning
MOST, MOST_PLAIN = 16, 64  # particles for every row that is drawn, at most; where they are plain draws
LEAST_PLAIN = 8192  # of those, before an event counts as impossible
PASS = 1024  # particles between two looks at the standard error
LOOKS = 2  # passes before the first look, since few islands do not know their spread


def split_given(given: Mapping[str, Any], schema: Schema) -> tuple[dict[str, Any], dict[str, Any]]:
    """Conditions that are single values, and those that are ranges or sets; by name.

    >>> from ctem.tables.io.frame import read_frame
    >>> schema = Schema.fit(read_frame(np.random.default_rng(0).normal(size=(9, 2))))
    >>> split_given({"x0": 1.0, "x1": (0, None)}, schema)
    ({'x0': 1.0}, {'x1': (0, None)})
    """
    if unknown := [name for name in given if name not in schema.columns]:
        raise ValueError(f"given: expected some of the columns {list(schema.columns)}; got {unknown[0]!r}.")
    listed = (np.ndarray, range)  # an array or a series of values is the list that it is
    given = {n: list(v) if isinstance(v, listed) or hasattr(v, "to_list") else v for n, v in given.items()}
    given = {name: None if is_gap(value) else value for name, value in given.items()}
    ranges = {name: value for name, value in given.items() if is_range(value)}
    for name, value in given.items():
        if isinstance(schema.columns[name].codec, LeftOut):
            raise ValueError(
                f"given: column {name!r} names the rows and is left out of the density; set its kind in kinds= of fit "
                "to keep it."
            )
        if value is None:
            check_state(name, schema.columns[name].codec, "given")
        _check_value(name, value, schema.columns[name].kind)
    return {name: value for name, value in given.items() if name not in ranges}, ranges


def _check_value(name: str, value: Any, kind: str) -> None:
    """Refuse what was meant as a range and is none."""
    text = isinstance(value, str) and ".." in value and kind != "category"
    if text or isinstance(value, slice | Mapping):
        raise ValueError(
            f"given: column {name!r}: expected a value, a range (low, high) with None for an open end, or a list of "
            f"these, such as given={{{name!r}: (30, 40)}}; got {value!r}."
        )


@dataclass(frozen=True)
class TableEvent:
    """Conditions on columns, given the known cells of a row.

    Arguments:
        table: the columns and the density.
        conditions: on columns, by name.
        known: one encoded row (1, d), nan where nothing is known.

    >>> from ctem.densities.anyorder import AnyOrderNet
    >>> from ctem.bases import ProductBase
    >>> from ctem.densities.anyorder.density import AnyOrderDensity
    >>> from ctem.tables.io.frame import read_frame
    >>> frame = read_frame(np.array([["Oslo"], ["Bergen"], ["Oslo"], ["Bergen"]]))
    >>> schema = Schema.fit(frame)
    >>> density = AnyOrderDensity(AnyOrderNet(ProductBase(schema.space)), 0.01, [[0]])
    >>> event = TableEvent.of(TableDensity(schema, density), frame.table_type, {}, {"x0": ["Oslo"]})
    >>> round(event.probability(256, torch.Generator().manual_seed(0)).value, 3)
    0.5
    """

    table: TableDensity
    conditions: Mapping[str, LabelCondition | NumberCondition]
    known: Tensor

    @classmethod
    def of(
        cls, table: TableDensity, kind: TableType, known: Mapping[str, Any], asked: Mapping[str, Any]
    ) -> TableEvent:
        """From the conditions of a user."""
        frame, names = partial_frame(known, kind)
        table.schema.check_seen(frame)
        return cls(table, _conditions(asked, kind, table.schema, "given"), table.encode_given(frame, names))

    def also(self, kind: TableType, asked: Mapping[str, Any]) -> TableEvent:
        """With more conditions; ``NoValueError`` if no value of a column meets one of them."""
        more = _conditions(asked, kind, self.table.schema, "event")
        return replace(self, conditions={**more, **self.conditions})

    def probability(self, n: int, generator: torch.Generator, tolerance: float = 0.0) -> Probability:
        """P(conditions | known) by about n particles; exactly 1 without any condition.

        Fewer if the standard error is below ``tolerance`` times the smaller of P and 1 − P.
        """
        tilted = isinstance(self.table.density, TiltedDensity)  # an energy weighs what is known
        if not self.conditions and not (tilted and not bool(self.known.isnan().all())):
            return Probability(1.0, 0.0, math.inf)
        drawn: list[Particles] = []
        for done in range(-(-n // PASS)):
            if done >= LOOKS and _is_known(estimate(drawn), tolerance):
                break
            drawn.append(self._swarm(min(n, PASS), generator))
        known = estimate(drawn)
        if self.table.density.is_tied(self._allowed()) and not known.value:
            return Probability(0.0, 1 / sum(len(part.x) for part in drawn), 0.0)  # rarer than draws can show
        self._check_met(drawn)
        return known

    def _rough(self, generator: torch.Generator) -> float:
        """P(conditions | known) by one pass."""
        if not self.conditions:
            return 1.0
        return estimate([self._swarm(PASS, generator)]).value

    def sample(self, n: int, generator: torch.Generator) -> dict[str, Cells]:
        """Columns of n rows that meet the conditions.

        Particles are added until their effective number is n; after so many for every row there is a warning.
        """
        tied = self.table.density.is_tied(self._allowed())
        most = max(n * MOST_PLAIN, LEAST_PLAIN) if tied else n * MOST
        particles = self._particles(SPARE * n, generator)
        ess = estimate(particles).ess
        while not ess >= n and sum(len(swarm.x) for swarm in particles) < most:  # nan: none fits
            particles += self._particles(SPARE * n, generator)
            ess = estimate(particles).ess
        self._check_met(particles)
        if ess < FEW * n:
            text = f"given: {n} rows rest on {ess:.0f} effective draws, so that some of them are alike."
            warnings.warn(text, UserWarning, stacklevel=4)
        return self._decode(resampled(particles, n, generator), generator)

    def _particles(self, n: int, generator: torch.Generator) -> list[Particles]:
        """About n particles."""
        particles = [self._swarm(n, generator)]
        while sum(len(swarm.x) for swarm in particles) < n:
            particles.append(self._swarm(n, generator))
        return particles

    def _swarm(self, n: int, generator: torch.Generator) -> Particles:
        density = self.table.density
        return conditioned(density, self.known, Event(self._allowed()), generator, n)

    def _check_met(self, particles: list[Particles]) -> None:
        if not any(bool(swarm.log_weight.isfinite().any()) for swarm in particles):
            names = ", ".join(map(repr, self.conditions))
            raise ValueError(f"given: no row fits {names} together; widen a condition.")

    def _allowed(self) -> dict[int, Tensor]:
        """What encoded columns may hold."""
        owner, allowed = self._owner, {}
        for name, condition in self.conditions.items():
            encoded = condition.encoded(owner[name])
            allowed.update({j: limits.to(self.known) for j, limits in encoded.items()})
        return allowed

    def _decode(self, x: Tensor, generator: torch.Generator) -> dict[str, Cells]:
        columns = self.table.schema.decode(x.cpu(), generator)
        for name, condition in self.conditions.items():
            columns[name] = condition.decode(x[:, list(self._owner[name])].cpu(), generator)
        free = {name: np.ones(len(x), bool) for name in columns if name not in self.conditions}
        return self.table.schema.exact(columns, free)

    @property
    def _owner(self) -> dict[str, tuple[int, ...]]:
        return dict(zip(self.table.schema.columns, self.table.schema.owner, strict=True))


def _conditions(
    asked: Mapping[str, Any], kind: TableType, schema: Schema, what: str
) -> dict[str, LabelCondition | NumberCondition]:
    return compiled(given_values(what, asked, kind), schema, what)


def _is_known(p: Probability, tolerance: float) -> bool:
    """Whether the standard error is small enough."""
    return p.value > 0 and p.stderr <= tolerance * min(p.value, abs(1 - p.value))


def conditional_probability(
    table: TableDensity,
    kind: TableType,
    event: Mapping[str, Any],
    given: Mapping[str, Any],
    n: int,
    generator: torch.Generator,
    tolerance: float = 0.0,
) -> Probability:
    """P(event | given) = P(event, ranges of given | values of given) / P(ranges of given | values of given).

    Each of the two is drawn until its standard error is below its part of the tolerance. An event that no value of a
    column meets has probability 0. The standard error of the answer also knows how far the networks disagree.

    >>> from ctem import CTEM
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = CTEM(max_steps=2, width=8, energy=None, random_state=0).fit(X)
    >>> 0.3 < model.probability({"x0": (0, None)}, given={"x1": (0, 1)}, n_draws=256).value < 0.7
    True
    """
    if both := [name for name in event if name in given]:
        raise ValueError(f"event, given: expected no column in both; got {both[0]!r}.")
    values, others = split_given(event, table.schema)
    event = {name: {**values, **others}[name] for name in event}
    known, ranges = split_given(given, table.schema)
    error = tolerance / math.sqrt(2) if ranges else tolerance
    outer = TableEvent.of(table, kind, known, ranges)
    try:
        inner = outer.also(kind, event)
    except NoValueError:
        return Probability(0.0, 0.0, math.inf)
    part, whole = (compiled.probability(n, generator, error) for compiled in (inner, outer))
    value = min(part.value / whole.value, 1.0)
    ess = min(part.ess, whole.ess)
    if not part.value:
        return Probability(value, 0.0, ess)
    of_draws = value * math.hypot(part.stderr / part.value, whole.stderr / whole.value)
    networks = _disagreement(inner, outer, generator)
    return Probability(value, math.hypot(of_draws, networks), ess, networks)


def _disagreement(inner: TableEvent, outer: TableEvent, generator: torch.Generator) -> float:
    """The standard error of P(inner) / P(outer) by which its networks disagree, or its orders if there is one network.

    The networks were trained on different rows from different weights, so that the spread of their answers over √K is
    the error of their mean. They draw with the same random numbers; what noise is left adds to the spread. An energy is
    common to all of them, and plays no part.
    """
    density = inner.table.density
    plain = density.plain if isinstance(density, TiltedDensity) else density
    every = [plain.altered(member=k) for k in range(plain.net.members)]
    if len(every) == 1:
        every = [plain.altered(orders=[order]) for order in plain.orders]
    if len(every) == 1 or not inner.conditions:
        return 0.0
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator, device=generator.device))
    answers = []
    for each in every:
        alone = torch.Generator(generator.device).manual_seed(seed)
        table = TableDensity(inner.table.schema, each)
        part, whole = (replace(event, table=table)._rough(alone) for event in (inner, outer))
        answers.append(min(part / whole, 1.0) if whole else 0.0)
    return float(np.std(answers, ddof=1)) / math.sqrt(len(answers))
