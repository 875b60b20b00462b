r"""The estimator: a table in; a normalised log-density, samples, imputations, conditionals and outliers out.

Glue with scikit-learn's manners. ``ctem.table.schema`` reads the columns, ``ctem.fitting`` fits,
``ctem.table.answers`` answers.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from ctem.density import Density
from ctem.fitting import fit_density
from ctem.partition import LogZ
from ctem.persistence import load, save
from ctem.plain import PlainDensity, fit_plain
from ctem.plans import Plan
from ctem.table.answers import Outlier, TableDensity, find_device
from ctem.table.conditionals import Conditional
from ctem.table.frames import Frame, Kind, build_frame, read_frame
from ctem.table.given import partial_frame, positions, renamed
from ctem.table.rows import taken
from ctem.table.schema import Schema
from ctem.training import History

__all__ = ["CTEM"]

Vector = NDArray[np.float64]
FEW = 100  # rows below which dependence between columns can hardly be learned
CHECKED = 16  # rows on which one pass and chain rule are compared after a fit
APART = 0.5  # nats between them that are worth a warning
OBJECTIVES = ("auto", "clocks", "slopes", "plain")


class CTEM(DensityMixin, BaseEstimator):  # type: ignore[misc]
    """A density on tables of real, discrete and mixed columns, with missing cells.

        log ρ(X) = log b(x) + g(x) − log Z + log|dx/dX|

    x is the encoded row, b independent columns, g one network that knows every marginal: a missing cell is a hidden
    column. The reference measure is Lebesgue on real columns (dates: per day) and counting on the others.

    Arguments:
        columns: name → Real(), Category() or Ordinal(), for columns whose kind should not be inferred.
        missing: "hidden" (a missing cell is unknown) or "state" (being missing is a value like another).
        objective: "clocks", one potential for everything; "slopes", which trains other networks for the chain rule,
            so that exact answers are better and far faster; "auto", slopes where they pay (``Plan.suited``); or the
            paper's "plain": no missing cells, no conditionals, sampling by MCMC.
        plan: sizes and recipe; chosen from the size of the table when None.
        max_steps: at most this many training steps; annealing the rate adds at most half as many (not for "plain").
        max_time: about this many seconds for those steps (not for "plain"); annealing and log Z come on top.
        orders: of the columns, in exact densities, for each network; slopes have theirs chosen by held-out rows.
        random_state: a seed; the same one gives the same bits on the same machine.
        device: "auto" (CUDA where there is one), "cpu", "cuda".
        checkpoint: file that a killed fit resumes from.
        verbose: 1 prints what was inferred and shows a progress bar.

    Attributes:
        schema_, density_: the columns, and the density of encoded rows.
        kind_: what table came in.
        history_: columns step, loss, held_out of the training.
        log_z_: constant of the one-pass density, with its standard error.
        baseline_: mean log-density of independent columns on the rows of fit.
        n_rows_, seed_, data_hash_: of the fit.
        n_features_in_, feature_names_in_: as in scikit-learn.

    >>> rng = np.random.default_rng(0)
    >>> side = rng.integers(2, size=400)
    >>> X = np.column_stack([side, 4 * side + rng.normal(size=400)])
    >>> model = CTEM(max_steps=100, random_state=0).fit(X)
    >>> model.score(X) > model.baseline_
    True
    >>> model.sample(3).shape
    (3, 2)
    """

    schema_: Schema
    density_: Density | PlainDensity
    kind_: Kind
    history_: dict[str, list[Any]]
    log_z_: LogZ
    baseline_: float
    n_rows_: int
    seed_: int
    data_hash_: str
    n_features_in_: int

    def __init__(
        self,
        *,
        columns: Mapping[str, Any] | None = None,
        missing: str = "hidden",
        objective: str = "auto",
        plan: Plan | None = None,
        max_steps: int | None = None,
        max_time: float | None = None,
        orders: int = 4,
        random_state: Any = None,
        device: str = "auto",
        checkpoint: str | Path | None = None,
        verbose: int = 0,
    ):
        self.columns = columns
        self.missing = missing
        self.objective = objective
        self.plan = plan
        self.max_steps = max_steps
        self.max_time = max_time
        self.orders = orders
        self.random_state = random_state
        self.device = device
        self.checkpoint = checkpoint
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.objective != "plain"
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> CTEM:
        """Fit to a NumPy, pandas, polars or pyarrow table; rows of weight 0 are left out."""
        self._check_settings()
        frame = self._read(X, reset=True)
        frame, weights = _weighted(frame, sample_weight)
        if len(frame) < 2:
            raise ValueError(f"X: expected at least 2 rows (of weight > 0); got n_samples = {len(frame)}.")
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.kind_, self.n_rows_ = frame.kind, len(frame)
        self.schema_ = Schema.fit(frame, columns=self.columns, missing=self.missing)
        if self.verbose:
            _print_columns(self.schema_, len(frame))
        x = self.schema_.encode(frame).x.to(find_device(self.device))
        self.data_hash_ = hashlib.sha256(x.cpu().numpy().tobytes()).hexdigest()
        self._adopt(self._train(x, None if weights is None else weights.to(x.device)))
        self.baseline_ = float(self._table.independent(frame).mean())
        self._warn(x)
        return self

    def read(self, X: Any) -> Frame:
        """X as a ``ctem.table.frames.Frame`` in the names of fit, after the checks that every method here makes."""
        check_is_fitted(self)
        return self._read(X)

    def score_samples(self, X: Any, exact: bool = False) -> Vector:
        """log ρ of every row, per unit of each real column, shape (n,).

        Complete rows: one pass of the network less log Z, which is known to ``log_z_.stderr``. Rows with missing
        cells, and all rows with ``exact``: the chain rule, normalised by construction, many times slower, and in
        float32, so that the last digits (about 1e-6) depend on the rows beside it.
        """
        check_is_fitted(self)
        return self._table.log_prob(self._read(X), exact)

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of ``score_samples``."""
        return float(self.score_samples(X).mean())

    def log_density(
        self, X: Any, columns: Sequence[str | int] | None = None, given: Sequence[str | int] = ()
    ) -> Vector:
        """log ρ(columns | given) of every row by the chain rule, all other columns marginalised; shape (n,).

        Arguments:
            X: a table with all columns; missing cells are marginalised too.
            columns: names or positions; all that are not given when None.
            given: names or positions.
        """
        check_is_fitted(self)
        known = positions("given", given, self.kind_.names)
        others = [j for j in range(self.n_features_in_) if j not in known]
        asked = others if columns is None else positions("columns", columns, self.kind_.names)
        if set(asked) & set(known):
            raise ValueError(f"columns, given: expected no column in both; got {columns} and {given}.")
        return self._table.log_conditional(self._read(X), asked, known)

    def log_density_grad(self, X: Any) -> Vector:
        """∂ log ρ / ∂X, shape (n, columns), per unit of X (dates: per day).

        nan where there is none: discrete columns, atoms, and rows in which a cell is missing.
        """
        check_is_fitted(self)
        return self._table.grad_log_prob(self._read(X))

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Any:
        """A table of new rows, of the kind that was fitted; ``random_state=None`` uses the estimator's own."""
        check_is_fitted(self)
        _check_count("n_samples", n_samples)
        return build_frame(self.kind_, self._table.sample(int(n_samples), self._generator(random_state)))

    def conditional_sample(self, given: Any, n_samples: int = 1, random_state: Any = None) -> Any:
        """n_samples rows for every row of what is known, one row's after the other's, of the kind that was fitted.

        Arguments:
            given: a dict name → value for one row, or a table with some of the columns.
            n_samples: rows to draw for each.
            random_state: as in ``sample``.
        """
        check_is_fitted(self)
        _check_count("n_samples", n_samples)
        known = partial_frame(given, self.kind_)
        many = taken(known, np.repeat(np.arange(len(known)), n_samples))
        return build_frame(self.kind_, self._table.completed(many, self._generator(random_state)))

    def impute(self, X: Any, method: str = "sample", n_draws: int = 1, random_state: Any = None) -> Any:
        """X with its missing cells filled in; what was observed stays bit for bit.

        Arguments:
            method: "sample" draws the missing cells of a row together, given its others; "mode" and "mean" take each
                by itself, given the observed ones (labels and booleans have no mean: their mode).
            n_draws: with "sample", more than one gives a list of tables: multiple imputation.
            random_state: as in ``sample``.
        """
        check_is_fitted(self)
        _check_count("n_draws", n_draws)
        if method not in ("sample", "mode", "mean"):
            raise ValueError(f"method: expected 'sample', 'mode' or 'mean'; got {method!r}.")
        if n_draws > 1 and method != "sample":
            raise ValueError(
                f"n_draws: expected 1 with method={method!r}, which is not random; got {n_draws}."
            )
        if self.missing == "state":
            raise ValueError(
                "impute: missing='state' makes a missing cell a value, not a gap; fit with 'hidden'."
            )
        frame = self._read(X)
        if method != "sample":
            return build_frame(frame.kind, self._table.expected(frame, method))
        generator = self._generator(random_state)
        tables = [build_frame(frame.kind, self._table.completed(frame, generator)) for _ in range(n_draws)]
        return tables[0] if n_draws == 1 else tables

    def conditional(self, X: Any, column: str | int) -> Conditional:
        """The distribution of one column given the other observed cells of each row: values and probabilities."""
        check_is_fitted(self)
        (j,) = positions("column", [column], self.kind_.names)
        return self._table.conditional(self._read(X), j)

    def outliers(self, X: Any, n: int = 10) -> list[Outlier]:
        """The n rows of lowest density, the strangest first, with the columns that make them so."""
        check_is_fitted(self)
        _check_count("n", n)
        frame = self._read(X)
        log_density = self._table.log_prob(frame)
        rows = np.argsort(log_density, kind="stable")[:n]
        surprise = self._table.surprises(taken(frame, rows))
        return [
            Outlier.ranked(int(row), float(log_density[row]), self.kind_.names, each)
            for row, each in zip(rows, surprise, strict=True)
        ]

    def describe(self) -> dict[str, Any]:
        """What was inferred and how the fit went, as plain values for printing and reports."""
        check_is_fitted(self)
        history = self.density_.history
        return {
            "columns": [asdict(column) for column in self.schema_.describe()],
            "rows": self.n_rows_,
            "objective": self.objective,
            "baseline": self.baseline_,
            "log_z": self.log_z_._asdict(),
            "level": self.density_.level,
            "steps": history.step[-1] if history.step else 0,
            "best_step": history.best_step,
            "best_loss": history.best_loss,
            "seconds": history.seconds,
            "seed": self.seed_,
            "data_hash": self.data_hash_,
            "plan": asdict(self.density_.plan),
        }

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file, atomically; see ``ctem.persistence``."""
        check_is_fitted(self)
        save(self, path)

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> CTEM:
        """The model that ``save`` wrote. Nothing in the file is run; a damaged or foreign one is refused."""
        return load(cls, path, device)

    @property
    def _table(self) -> TableDensity:
        return TableDensity(self.schema_, self.density_)

    def _adopt(self, density: Density | PlainDensity) -> None:
        """Take a density as one's own."""
        history: History = density.history
        self.density_, self.log_z_ = density, density.log_z
        self.history_ = {"step": history.step, "loss": history.loss, "held_out": history.held_out}

    def _check_settings(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective: expected one of {OBJECTIVES}; got {self.objective!r}.")
        if self.plan is not None and not isinstance(self.plan, Plan):
            raise TypeError(f"plan: expected a ctem.plans.Plan or None; got {self.plan!r}.")
        _check_count("orders", self.orders)
        if self.max_steps is not None:
            _check_count("max_steps", self.max_steps)
        if self.max_time is not None and not self.max_time > 0:
            raise ValueError(f"max_time: expected seconds > 0; got {self.max_time!r}.")

    def _read(self, X: Any, reset: bool = False) -> Frame:
        """X as a frame; scikit-learn's checks of the names of columns and their number included."""
        frame = read_frame(X)
        validate_data(self, X, skip_check_array=True, reset=reset)
        return frame if reset else renamed(frame, self.kind_)

    def _train(self, x: Tensor, weights: Tensor | None) -> Density | PlainDensity:
        schema, plan = self.schema_, self._suited(x)
        shared: dict[str, Any] = {
            "seed": self.seed_,
            "weights": weights,
            "checkpoint": self.checkpoint,
            "progress": bool(self.verbose),
        }
        if self.objective == "plain":
            _need_whole_rows(schema, x)
            return fit_plain(schema.space, x, plan, **shared)
        jitter = schema.jitter if schema.dequantised else None
        return fit_density(
            schema.space, x, plan, parents=schema.parents, jitter=jitter, max_time=self.max_time, **shared
        )

    def _suited(self, x: Tensor) -> Plan:
        """The plan, with what was said in the constructor."""
        space, plan = self.schema_.space, self.plan
        if plan is None:
            features = sum(max(k - 1, 1) for k in space.sizes)
            plan = Plan.suited(len(x), features, x.is_cuda, len(space.reals) / space.dim)
        plan = replace(plan.limited(len(x), self.max_steps), orders=int(self.orders))
        slopes = plan.own if plan.slopes is None and self.objective == "slopes" else plan.slopes
        if slopes is None or self.objective in ("clocks", "plain"):
            return replace(plan, slopes=None)
        return replace(plan, slopes=slopes.limited(len(x), self.max_steps))

    def _generator(self, random_state: Any) -> torch.Generator:
        chosen = self.random_state if random_state is None else random_state
        seed = int(check_random_state(chosen).randint(2**31 - 1))
        return torch.Generator(self._table.device).manual_seed(seed)

    def _warn(self, x: Tensor) -> None:
        if len(x) < FEW:
            text = f"fitted on {len(x)} rows: below about {FEW}, little can be learned beyond independent columns."
            warnings.warn(text, UserWarning, stacklevel=3)
        if not isinstance(self.density_, Density):
            return
        rows = x[self._table.complete(x)][:CHECKED]
        if not len(rows):
            return
        gap = float((self.density_.log_prob(rows) - self.density_.log_prob_exact(rows)).mean())
        if abs(gap) > APART:
            text = (
                f"one pass and chain rule differ by {gap:+.2f} nats on {len(rows)} rows of X; "
                "score_samples(X, exact=True) is normalised by construction."
            )
            warnings.warn(text, UserWarning, stacklevel=3)


def _weighted(frame: Frame, sample_weight: Any) -> tuple[Frame, Tensor | None]:
    """The rows of weight > 0, and their weights."""
    if sample_weight is None:
        return frame, None
    weights = _check_sample_weight(sample_weight, np.empty((len(frame), 1)), ensure_non_negative=True)
    kept = weights > 0
    return taken(frame, kept), torch.from_numpy(weights[kept])


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}: expected a whole number ≥ 1; got {value!r}.")


def _need_whole_rows(schema: Schema, x: Tensor) -> None:
    gap = x.isnan().any(0)
    if bool(gap.any()):
        name = schema.space.names[int(gap.long().argmax())]
        raise ValueError(
            f"column {name!r} has missing cells or atoms, which objective='plain' cannot take; use 'auto'."
        )


def _print_columns(schema: Schema, rows: int) -> None:
    table = Table("column", "kind", "why", title=f"{rows} rows")
    for column in schema.describe():
        table.add_row(escape(column.name), column.kind, escape(column.reason))
    Console().print(table)
