"""Questions to a fitted density: rows under conditions, their probability, and any column given the others."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.anyorder.events import Probability
from ctem.fitting.arguments import check_count
from ctem.tables.answers.conditional import Conditional, on_classes
from ctem.tables.answers.conditions import is_range
from ctem.tables.answers.density import TableDensity
from ctem.tables.answers.events import TableEvent, conditional_probability, split_given
from ctem.tables.answers.heldout import HeldOut
from ctem.tables.answers.missingness import Missingness
from ctem.tables.answers.outliers import Outliers, find_outliers, outlier_table
from ctem.tables.answers.realism import ROWS, Realism, realism
from ctem.tables.encoding.codecs import Constant, LeftOut
from ctem.tables.io.cells import Cells
from ctem.tables.io.delivery import Delivers, delivered
from ctem.tables.io.frame import Frame, TableType, build_frame
from ctem.tables.io.given import partial_frame, positions
from ctem.tables.io.rows import taken
from ctem.tables.schema import Schema
from ctem.training.cut import still_improving

__all__ = ["Questions"]

Vector = NDArray[np.float64]


class Questions(Delivers):
    """What can be asked of a fitted ``CTEM``, which inherits these methods.

    >>> from ctem import CTEM
    >>> issubclass(CTEM, Questions)
    True
    """

    schema_: Schema
    table_type_: TableType
    density_: AnyOrderDensity
    missingness_: Missingness | None
    held_out_: HeldOut | None

    @property
    def _table(self) -> TableDensity:
        raise NotImplementedError

    def _generator(self, random_state: Any) -> torch.Generator:
        raise NotImplementedError

    def as_frame(self, X: Any, needed: Collection[str] | None = None) -> Frame:
        """X as a frame in the names of fit."""
        raise NotImplementedError

    @property
    def sampled_type_(self) -> TableType:
        """The type of tables that are drawn: that of fit, without columns that name the rows."""
        return self.table_type_.without(self.schema_.left_out)

    def sample(
        self,
        n_samples: int = 1,
        random_state: Any = None,
        given: Any = None,
        with_missing: bool = False,
        output: str | None = None,
    ) -> Any:
        """A table of new rows, of the kind that was fitted.

        Arguments:
            n_samples: rows to draw; for each row, where ``given`` is a table.
            random_state: a seed; the estimator's own when None.
            given: what is known, a dict name → condition or a table with some of the columns. A condition is a value,
                a range ``(low, high)`` with both ends included and None for an open one, or a list of values and
                ranges; None is a missing cell, with ``missing="state"``.
            with_missing: gaps as the data have them, each by what the other cells of the row hold, in columns that
                are not given (``ctem.tables.answers.missingness``). With ``missing="state"`` rows have them anyway.
            output: "pandas", "polars" or "arrow"; as ``set_output`` says, or as the table of fit, when None.
        """
        check_is_fitted(self)
        check_count("n_samples", n_samples)
        generator = self._generator(random_state)
        columns, known = self._drawn(int(n_samples), generator, given)
        if with_missing and (holes := self._missingness()) is not None:
            columns = holes.applied(self.table_type_, columns, generator, known)
        table = build_frame(self.sampled_type_, columns)
        return delivered(table, self._output(output), self.sampled_type_.names)

    def _drawn(
        self, n: int, generator: torch.Generator, given: Any
    ) -> tuple[dict[str, Cells], Collection[str]]:
        """Columns of new rows, and the names of those that are given."""
        if given is None:
            return self._table.sample(n, generator), ()
        known, ranges = split_given(given, self.schema_) if isinstance(given, Mapping) else (given, {})
        if ranges:
            event = TableEvent.of(self._table, self.table_type_, known, ranges)
            return event.sample(n, generator), [*known, *ranges]
        rows, names = partial_frame(known, self.table_type_)
        self.schema_.check_seen(rows)
        many = taken(rows, np.repeat(np.arange(len(rows)), n))
        return self._table.completed(many, generator, names), names

    def _missingness(self) -> Missingness | None:
        """Where cells are missing; None if they are a state, or none is."""
        late = self.density_.chain.late
        if self.missingness_ is None and any(late):
            raise ValueError(
                "with_missing: this model does not know where cells are missing (a file of an older format); "
                "fit it again."
            )
        return self.missingness_

    def probability(
        self,
        event: Mapping[str, Any] | None = None,
        given: Mapping[str, Any] | None = None,
        n_draws: int = 8192,
        random_state: Any = None,
        tolerance: float = 0.03,
    ) -> Probability:
        """P(event | given), or P(given) without an event, with its standard error.

        Both are dicts name → condition, as in ``sample``; P(30 ≤ age ≤ 40, city Oslo or Bergen) is
        ``probability({"age": (30, 40), "city": ["Oslo", "Bergen"]})``. Importance sampling by the density's own
        conditionals (``ctem.densities.anyorder.events``): the standard error is relative, however rare the event is.

        Arguments:
            event: conditions whose probability is asked for.
            given: conditions that hold; single values of a real column are given as they are.
            n_draws: about so many draws, at most.
            random_state: as in ``sample``.
            tolerance: fewer draws if the standard error falls below this share of P, or of 1 − P where that is
                smaller; 0 for all of them.
        """
        check_is_fitted(self)
        check_count("n_draws", n_draws)
        if not (event or given):
            raise ValueError("event, given: expected conditions, such as {'age': (30, 40)}; got none.")
        if not 0 <= tolerance < 1:
            raise ValueError(
                f"tolerance: expected a share, such as 0.03, or 0 for all draws; got {tolerance!r}."
            )
        if text := self._cut():
            warnings.warn(f"probability: the fit was {text}.", UserWarning, stacklevel=2)
        asked, known = (given, {}) if event is None else (event, given or {})
        generator = self._generator(random_state)
        return conditional_probability(
            self._table, self.table_type_, asked or {}, known, int(n_draws), generator, tolerance
        )

    def _cut(self) -> str:
        """What is said of a fit that ``max_time`` cut while it still improved; nothing of others."""
        return "" if getattr(self, "max_time", None) is None else still_improving(self.density_.history)

    def predict(self, X: Any, column: str | int | None = None) -> Any:
        """The most likely label, or the mean of a number, of one column given the other cells of each row, (n,).

        A column of 0 and 1 alone is labels. What X holds in that column does not matter.

        Arguments:
            column: its name or position; the last one when None.
        """
        found = self.conditional(X, column).distribution
        if set(found.values) == {0, 1}:
            return found.mode().to_numpy()
        if found.has_mean and found.cells.type in ("int", "float") and found.cells.text is None:
            return found.expectation()
        return found.mean().to_numpy()

    def predict_proba(self, X: Any, column: str | int | None = None) -> Vector:
        """P(value | the other cells) for the values ``classes(column)``, (n, values).

        Of a number, the mass around each node of a fixed list; ``conditional`` also has the values of formulas.
        """
        found, listed = self.conditional(X, column), self.conditional({}, column)
        return on_classes(found.distribution, listed.distribution)

    def classes(self, column: str | int | None = None) -> list[Any]:
        """The values of one column in the order of ``predict_proba``."""
        check_is_fitted(self)
        return self.conditional({}, column).values

    def conditional(self, X: Any, column: str | int | None = None) -> Conditional:
        """The distribution of one column given the other observed cells of each row: values and probabilities.

        Arguments:
            X: a table; or a dict name → value of what is known in one row.
            column: its name or position; the last one when None.
        """
        check_is_fitted(self)
        j = self._answered(column)
        if isinstance(X, Mapping):
            found = self._table.conditional(self._one_row(X), j, X)
        else:
            others = [name for i, name in enumerate(self.table_type_.names) if i != j]
            found = self._table.conditional(self.as_frame(X, others), j)
        return Conditional(found.told(self.table_type_.fields[j]))

    def outliers(
        self, X: Any, n: int | None = None, alpha: float | None = None, as_frame: bool = False
    ) -> Any:
        """The strangest rows first, with a p-value, and what was expected in the cells that make them so.

        They are ordered by their ``p_values``, and by their ``outlier_scores`` where these are equal.

        Arguments:
            n: how many rows, at most; 10 when neither this nor alpha is said.
            alpha: those whose ``p_values`` is at most this; of ordinary rows, about this share is called strange.
            as_frame: a table of the library of X (pandas for an array) with columns row, score, p_value and why, and
                the rows themselves; else a list of ``Outlier``.
        """
        frame = self.as_frame(X)
        if n is not None:
            check_count("n", n)
        if alpha is not None:
            if not 0 < alpha <= 1:
                raise ValueError(f"alpha: expected a share in (0, 1]; got {alpha!r}.")
            self._calibration()
        most = 10 if n is None and alpha is None else n
        found = find_outliers(self._table, frame, self.held_out_, most, alpha)
        return outlier_table(found, X, frame) if as_frame else Outliers(found)

    def p_values(self, X: Any) -> Vector:
        """How strange every row is among rows that fit had not seen: the conformal p-value of its score, (n,).

        If a row comes from where the rows of fit came from, its p-value is at most α with probability at most about α,
        whatever the model (``ctem.tables.answers.heldout``). It depends on the row and the model alone, not on the
        other rows of X. Of a row of the fit it may be too high, as most networks have learned from that row.
        """
        frame = self.as_frame(X)
        return self._calibration().p_values(self._table, frame)

    def outlier_scores(self, X: Any, by_column: bool = False) -> Vector:
        """How strange every row is, in nats beyond the average row of the model: higher is stranger; shape (n,).

        Every cell adds how unlikely it is given the cells before it, numbers in robust standard deviations of their
        column and repeated values smoothed, so that neither a column's unit nor its rounding says who is strange; or
        how rare so unlikely a cell is in its column, if that is more. A missing cell adds 0, as an average one does,
        so that rows with gaps compare with complete ones. ``ctem.tables.answers.surprise`` has the formula.

        Arguments:
            by_column: what each column adds, shape (n, columns); a row sums to its score.
        """
        frame = self.as_frame(X)
        return self._table.surprises(frame) if by_column else self._table.surprise(frame)

    def realism(self, X: Any, random_state: Any = None) -> Realism | None:
        """How well sampled rows pass for those of X (``ctem.tables.answers.realism``); None for too few rows of X.

        1 if boosted trees cannot tell them apart, 0 if always; beside it the same of real rows among themselves.
        """
        frame = self.as_frame(X)
        generator = self._generator(random_state)
        real = taken(frame, np.random.default_rng(0).permutation(len(frame))[: 2 * ROWS])
        sampled = Frame(self.table_type_, self._table.sample(ROWS, generator))
        x, drawn = (self.schema_.encode(each).x.numpy() for each in (real, sampled))
        return realism(x, drawn)

    def unseen(self, X: Any) -> NDArray[np.bool_]:
        """Which cells hold a value that fit never saw, shape (n, columns)."""
        frame = self.as_frame(X)
        return np.asarray(self.schema_.unseen(frame).numpy())

    def _one_row(self, known: Mapping[str, Any]) -> Frame:
        """A row of which some cells are known."""
        for name, value in known.items():
            if is_range(value):
                raise ValueError(
                    f"X: expected one value for {name!r}; got {value!r}. sample and probability take ranges and lists."
                )
        row = partial_frame(known, self.table_type_)[0]
        self.schema_.check_seen(row)
        return row

    def _calibration(self) -> HeldOut:
        if self.held_out_ is None:
            raise ValueError(
                "p-values: this model knows no held-out rows (it is from a file of an older format); fit it again."
            )
        return self.held_out_

    def _answered(self, column: str | int | None) -> int:
        """The position of a column that the density says something about."""
        j = self._position(column)
        name, found = list(self.schema_.columns.items())[j]
        if isinstance(found.codec, LeftOut):
            raise ValueError(
                f"column {name!r} is left out of the density ({found.reason}), so that nothing is known of it; "
                f"kinds={{{name!r}: 'category'}} insists."
            )
        if isinstance(found.codec, Constant) and not found.codec.values:
            raise ValueError(f"column {name!r} was always missing in fit, so that nothing is known of it.")
        return j

    def _position(self, column: str | int | None) -> int:
        names = self.table_type_.names
        return len(names) - 1 if column is None else positions("column", [column], names)[0]
