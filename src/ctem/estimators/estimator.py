r"""The estimator: a table in; a normalised log-density, samples, imputations, conditionals and outliers out.

It behaves as estimators of scikit-learn do. ``ctem.tables.schema`` reads the columns,
``ctem.densities.anyorder`` fits, ``ctem.tables.answers.density`` answers.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import Tags, check_random_state, estimator_html_repr
from sklearn.utils.validation import check_is_fitted, validate_data

from ctem.densities.anyorder.density import AnyOrderDensity
from ctem.densities.anyorder.events import Probability
from ctem.densities.anyorder.settings import Settings
from ctem.estimators.notebook import model_html
from ctem.estimators.record import attributes_of, describe_model, fitted_of
from ctem.fitting.arguments import check_arguments, check_count, plain_arguments
from ctem.fitting.intake import Intake, intake
from ctem.fitting.learning import fit_density
from ctem.persistence.models.rebuilding import load
from ctem.persistence.models.writing import save
from ctem.tables.answers.conditional import Conditional, on_classes
from ctem.tables.answers.conditions import is_range
from ctem.tables.answers.density import TableDensity, in_float32
from ctem.tables.answers.events import TableEvent, conditional_probability, split_given
from ctem.tables.answers.heldout import HeldOut, check_held_out
from ctem.tables.answers.missingness import Missingness, fit_missingness
from ctem.tables.answers.outliers import Outliers, find_outliers, outlier_table
from ctem.tables.answers.realism import Realism, realism_of_tables, rows_to_compare
from ctem.tables.encoding.codecs import Constant, LeftOut
from ctem.tables.io.cells import Cells
from ctem.tables.io.delivery import Delivers, booleans_of, delivered
from ctem.tables.io.files import read_path
from ctem.tables.io.frame import Frame, TableType, build_frame, read_frame
from ctem.tables.io.given import (
    matched,
    named,
    partial_frame,
    positions,
    renamed,
    text_types,
    with_notations,
)
from ctem.tables.io.observed import filled
from ctem.tables.io.rows import taken
from ctem.tables.schema import Schema
from ctem.training.checkpoints import claimed
from ctem.training.cut import cut_by_time, overrun, still_improving
from ctem.training.devices import single_thread_after_fork, threads_that_help
from ctem.training.processes import team

__all__ = ["CTEM"]

Vector = NDArray[np.float64]
FEW = 100  # rows below which dependence between columns can hardly be learned


class CTEM(Delivers, DensityMixin, BaseEstimator):  # type: ignore[misc]
    """A density on tables of real, discrete and mixed columns, with missing cells.

        log ρ(X) = log ρ(x) + log|dx/dX|,      ρ(x) = b(x) e^{g(x)} / Z,
        b(x) = (1/C) Σ_c Π_j b(x_j | columns before j in order c)

    x is the encoded row. Networks know b(x_j | x_V) for every column j and every set V of visible columns, and their
    mean is taken. The energy g is learned by comparing rows with draws of b, and left out where it gains nothing. One
    normalised density answers everything: scores, samples, marginals, conditionals, imputations, outliers. A missing
    cell is a column that stays hidden. The reference measure is Lebesgue on real columns (dates: per day) and counting
    on the others. Settings do not depend on the device; last bits of a fit do.

    Arguments:
        kinds: name → Real(), Category() or Ordinal(), for columns whose kind should not be inferred.
        missing: "hidden" (a missing cell is unknown) or "state" (being missing is a value like another).
        unknown: what a new value of a listed column is: "reserve" (as likely as Good and Turing estimate from values
            that were seen once, so that scores stay finite) or "refuse" (an error).
        reading: how text is written, where that is not clear: a dict with some of decimal ("," or "."), dates
            ("dmy", "mdy" or "ymd") and na (more marks of missing cells).
        rules: sentences on what columns have to do with each other, beside what is found: "state from city" and
            "start <= end" are kept, "not state", "not state from city" and "not start <= end" are not.
        effort: "quick", "default" or "best": how large the networks are and how long they learn.
        energy: what g is, learned against draws of b and kept if it gains on held-out rows: "trees" (boosted, the
            pooled form of the paper's comparisons), "networks" (the paper's, with its loss), "both" (trees, then
            networks), "auto" (trees, which gain most for their time) or None.
        width, blocks: of every network; as the effort and the size of the table suggest when None, as all that follow.
        members: networks.
        orders: of the columns, in the mixture.
        batch_size: rows of a step for every network; of the first phase, where batches grow.
        learning_rate, weight_decay: of the training.
        max_steps: at most this many training steps.
        max_time: about this many seconds for the whole fit.
        random_state: a seed; the same one gives the same bits on the same machine.
        device: "auto" (CUDA where there is one), "cpu", "cuda".
        checkpoint: files CHECKPOINT.* that a killed fit resumes from; they belong to one fit, and stay until they are
            removed.
        verbose: 1 prints what was inferred and shows a progress bar.

    Attributes:
        schema_, density_: the columns, and the density of encoded rows.
        table_type_: library, names and dtypes of the table that came in.
        history_: columns step, loss, held_out of the training.
        settings_: what the settings came to.
        independent_score_: mean log-density of independent columns on the rows of fit, by their weights.
        held_out_: how rows that were held out did, and their scores, which p-values rest on.
        missingness_: where cells are missing, for ``sample(with_missing=True)``; None where none is.
        n_samples_seen_: rows of the fit, those of weight 0 left out.
        seed_, data_hash_: of the fit.
        n_features_in_, feature_names_in_: as in scikit-learn.

    >>> rng = np.random.default_rng(0)
    >>> side = rng.integers(2, size=400)
    >>> X = np.column_stack([side, 4 * side + rng.normal(size=400)])
    >>> model = CTEM(effort="quick", random_state=0).fit(X)
    >>> model.score(X) > model.independent_score_
    True
    >>> model.sample(3).shape
    (3, 2)
    """

    schema_: Schema
    density_: AnyOrderDensity
    table_type_: TableType
    history_: dict[str, list[Any]]
    settings_: Settings
    independent_score_: float
    held_out_: HeldOut
    missingness_: Missingness | None
    n_samples_seen_: int
    seed_: int
    data_hash_: str
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]

    def __init__(
        self,
        *,
        kinds: Mapping[str, Any] | None = None,
        missing: str = "hidden",
        unknown: str = "reserve",
        reading: Mapping[str, Any] | None = None,
        rules: Sequence[str] | None = None,
        effort: str = "default",
        energy: str | None = "auto",
        width: int | None = None,
        blocks: int | None = None,
        members: int | None = None,
        orders: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        max_steps: int | None = None,
        max_time: float | None = None,
        random_state: Any = None,
        device: str = "auto",
        checkpoint: str | Path | None = None,
        verbose: int = 0,
    ):
        self.kinds = kinds
        self.missing = missing
        self.unknown = unknown
        self.reading = reading
        self.rules = rules
        self.effort = effort
        self.energy = energy
        self.width = width
        self.blocks = blocks
        self.members = members
        self.orders = orders
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.max_steps = max_steps
        self.max_time = max_time
        self.random_state = random_state
        self.device = device
        self.checkpoint = checkpoint
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, X_val: Any = None, memory: str | float = "1GB"
    ) -> CTEM:
        """Fit to a NumPy, pandas, polars or pyarrow table, or to one that does not fit into memory.

        Arguments:
            X: a table; or the path of a CSV, Parquet or Arrow file, which is read as the command line reads it; or the
                URL of a Parquet file or folder, a ``pyarrow.dataset.Dataset``, a polars LazyFrame, a DuckDB relation,
                an iterator of tables (``ctem.tables.io.large``). All that takes a table takes a path as well.
            sample_weight: of the rows of a table; those of weight 0 are left out.
            X_val: rows to stop training and to choose by, instead of some of X.
            memory: bytes, or text such as "500MB", for the rows of what is no table. If they need more, the fit streams
                (``ctem.fitting.streaming``): two passes, and a temporary file of encoded rows.
        """
        self._learn(X, sample_weight, X_val, memory)
        return self

    @threads_that_help()
    def _learn(
        self, X: Any, sample_weight: Any = None, X_val: Any = None, memory: str | float = "1GB"
    ) -> Intake:
        """``fit``, and what it learned from, for estimators around this one that ask more of these rows."""
        began, arguments = time.perf_counter(), plain_arguments(self.get_params(deep=False))
        check_arguments(self.get_params(deep=False))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        # self keeps the names of an earlier fit until everything is there
        with intake(type(self)(), arguments, X, sample_weight, X_val, seed, memory) as data:
            for text in data.remarks:
                warnings.warn(text, UserWarning, stacklevel=4)
            read = time.perf_counter()
            if self.max_time is not None:
                arguments["max_time"] = max(arguments["max_time"] - (read - began), 0.0)
            rows = data.x, data.weights, data.held_out
            with in_float32(), claimed(self.checkpoint if team().first else None):
                density = fit_density(
                    arguments, data.schema, data.settings, *rows, seed, refresh=data.refresh
                )
        trained, table = time.perf_counter(), TableDensity(data.schema, density)
        weights = None if data.weights is None else data.weights.double().cpu().numpy()
        independent = float(np.average(table.independent(data.frame), weights=weights))
        end = None if self.max_time is None else began + self.max_time
        passes = data.settings.passes(density.history.step[-1] if density.history.step else 0)
        judged = check_held_out(table, data.frame, seed, data.kept, end, weights, passes)
        holes = self._learn_gaps(data, seed, end)
        validate_data(self, data.table, skip_check_array=True)
        self.schema_, self.settings_, self.seed_ = data.schema, data.settings, seed
        self.independent_score_, self.table_type_ = independent, data.frame.table_type
        self.n_samples_seen_, self.data_hash_ = data.rows, data.digest
        self._adopt(density)
        self.held_out_, self.missingness_ = judged, holes
        if data.rows < FEW:
            text = f"fitted on {data.rows} rows: below about {FEW}, little can be learned beyond independent columns."
            warnings.warn(text, UserWarning, stacklevel=4)
        if text := self._cut():
            warnings.warn(f"max_time: {text}.", UserWarning, stacklevel=4)
        seconds = read - began, trained - read, time.perf_counter() - trained
        if self.max_time is not None and (text := overrun(self.max_time, *seconds)):
            warnings.warn(f"max_time: {text}.", UserWarning, stacklevel=4)
        return data

    def _learn_gaps(self, data: Intake, seed: int, end: float | None) -> Missingness | None:
        """Where cells are missing, learned until ``max_time`` is over; None where they are a state."""
        if self.missing == "state":
            return None
        with in_float32():
            return fit_missingness(data.schema, data.frame, seed, data.weights, self.max_steps, end)

    def as_frame(self, X: Any, needed: Collection[str] | None = None) -> Frame:
        """X as a ``tables.io.frame.Frame`` in the names of fit, after the checks that every method here makes."""
        check_is_fitted(self)
        return self._read(X, needed)

    def score_samples(self, X: Any) -> Vector:
        """log ρ of every row, per unit of each real column, shape (n,): ``log_density(X)``.

        Missing cells are marginalised. Sums are float32, so that the last digits (about 1e-6, up to 1e-4 of a row
        that is far out) depend on the rows beside it.
        """
        check_is_fitted(self)
        return self._table.log_prob(self._read(X))

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of ``score_samples``."""
        return float(self.score_samples(X).mean())

    def log_density(
        self, X: Any, columns: Sequence[str | int] | None = None, given: Sequence[str | int] = ()
    ) -> Vector:
        """log ρ(columns | given) of every row, all other columns marginalised; shape (n,).

        log ρ(a) + log ρ(b | a) = log ρ(a, b) exactly if every order of the model has a before b. Otherwise they differ
        as far as the networks' conditionals disagree with each other: hundredths of a nat, up to half a nat and more
        where rows are few.

        Arguments:
            X: a table with these columns at least; missing cells are marginalised too.
            columns: names or positions; all that are not given when None.
            given: names or positions.
        """
        check_is_fitted(self)
        known = positions("given", given, self.table_type_)
        others = [j for j in range(self.n_features_in_) if j not in known]
        asked = others if columns is None else positions("columns", columns, self.table_type_)
        if set(asked) & set(known):
            raise ValueError(f"columns, given: expected no column in both; got {columns} and {given}.")
        needed = [self.table_type_.names[j] for j in (*asked, *known)]
        return self._table.log_conditional(self._read(X, needed), asked, known)

    def log_density_grad(self, X: Any) -> Vector:
        """∂ log ρ / ∂X, shape (n, columns), per unit of X (dates: per day).

        nan where there is none: discrete columns, numbers so frequent that they have a probability, and missing cells.
        Trees are constant between their cuts: an energy of trees adds nothing to the gradient.
        """
        check_is_fitted(self)
        return self._table.grad_log_prob(self._read(X))

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
            output: "pandas", "polars" or "arrow"; as set by ``set_output``, or as the table of fit, when None.
        """
        check_is_fitted(self)
        check_count("n_samples", n_samples)
        generator = self._generator(random_state)
        columns, known = _drawn_columns(self._table, self.table_type_, int(n_samples), generator, given)
        if with_missing and (holes := self.missingness_) is not None:
            columns = holes.applied(self.table_type_, columns, generator, known)
        table = build_frame(self.sampled_type_, columns)
        return delivered(
            table, self._output(output), self.sampled_type_.names, booleans_of(self.sampled_type_)
        )

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
        conditionals (``ctem.densities.anyorder.events``): the standard error is relative, however rare the event is. It
        also knows how far the networks disagree (``networks``), which more draws do not change.

        Arguments:
            event: conditions whose probability is asked for.
            given: conditions that hold; single values of a real column are given as they are.
            n_draws: about so many draws, at most.
            random_state: as in ``sample``.
            tolerance: fewer draws if their standard error falls below this share of P, or of 1 − P where that is
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
        asked, known = (
            named(each or {}, self.table_type_) for each in ((given, {}) if event is None else (event, given))
        )
        generator = self._generator(random_state)
        return conditional_probability(
            self._table, self.table_type_, asked, known, int(n_draws), generator, tolerance
        )

    def predict(self, X: Any, column: str | int | None = None) -> Any:
        """The most likely label, or the mean of a number, of one column given the other cells of each row, (n,).

        A column of 0 and 1 alone is labels. What X holds in that column does not matter.

        Arguments:
            column: its name or position; the last one when None.
        """
        distribution = self.conditional(X, column).distribution
        if set(distribution.values) == {0, 1}:
            return distribution.mode().to_numpy()
        cells = distribution.cells
        if distribution.has_mean and cells.type in ("int", "float") and cells.text is None:
            return distribution.expectation()
        return distribution.mean().to_numpy()

    def predict_proba(self, X: Any, column: str | int | None = None) -> Vector:
        """P(value | the other cells) for the values ``classes(column)``, (n, values).

        Of a number, the mass around each node of a fixed list; ``conditional`` also has the values of formulas.
        """
        answer, listed = self.conditional(X, column), self.conditional({}, column)
        return on_classes(answer.distribution, listed.distribution)

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
        j = _answered_position(self.schema_, self.table_type_, column)
        if isinstance(X, Mapping):
            known = named(X, self.table_type_)
            row = _one_row(self.schema_, self.table_type_, known)
            distribution = self._table.conditional(row, j, known)
        else:
            others = [name for i, name in enumerate(self.table_type_.names) if i != j]
            distribution = self._table.conditional(self.as_frame(X, others), j)
        return Conditional(distribution.displayed(self.table_type_.fields[j]))

    def impute(self, X: Any, method: str = "sample", n_draws: int = 1, random_state: Any = None) -> Any:
        """X with its missing cells filled in; what was observed stays bit for bit.

        Arguments:
            method: "sample" draws the missing cells of a row together, given its others; "mode" and "mean" take each
                by itself, given the observed ones (labels and booleans have no mean: their mode).
            n_draws: with "sample", more than one gives a list of tables: multiple imputation.
            random_state: as in ``sample``.
        """
        check_is_fitted(self)
        check_count("n_draws", n_draws)
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
        return self._imputed(*self._read_once(X), method, n_draws, random_state)

    def _imputed(
        self, X: Any, table: Frame, frame: Frame, method: str, n_draws: int = 1, random_state: Any = None
    ) -> Any:
        """The table X with its missing cells filled in, which was read as it is and in the columns of fit."""
        written = with_notations(table, self.table_type_)
        written = written if frame.table_type.backend != "numpy" else frame
        about = self._output(None), written.table_type.names, booleans_of(self.table_type_)
        if method != "sample":
            return delivered(filled(written, self._table.expected(frame, method), X), *about)
        generator = self._generator(random_state)
        drawn = (filled(written, self._table.completed(frame, generator), X) for _ in range(n_draws))
        tables = [delivered(table, *about) for table in drawn]
        return tables[0] if n_draws == 1 else tables

    def outliers(
        self, X: Any, n: int | None = None, alpha: float | None = None, as_frame: bool = False
    ) -> Any:
        """The strangest rows first, with a p-value, and what was expected in the cells that make them so.

        They are ordered by their ``p_values``, and by their ``outlier_scores`` where these are equal.

        Arguments:
            n: how many rows, at most; 10 when neither this nor alpha is given.
            alpha: those whose ``p_values`` is at most this; of ordinary rows, about this share is called strange.
            as_frame: a table of the library of X (pandas for an array) with columns row, score, p_value and why, and
                the rows themselves; else a list of ``Outlier``.
        """
        X, _, frame = self._read_once(X)
        if n is not None:
            check_count("n", n)
        if alpha is not None and not 0 < alpha <= 1:
            raise ValueError(f"alpha: expected a share in (0, 1]; got {alpha!r}.")
        most = 10 if n is None and alpha is None else n
        strangest = find_outliers(self._table, frame, self.held_out_, most, alpha)
        return outlier_table(strangest, X, frame) if as_frame else Outliers(strangest)

    def p_values(self, X: Any) -> Vector:
        """How strange every row is among rows that fit had not seen: the conformal p-value of its score, (n,).

        If a row comes from where the rows of fit came from, its p-value is at most α with probability at most about α,
        whatever the model (``ctem.tables.answers.heldout``). It depends on the row and the model alone, not on the
        other rows of X. Of a row of the fit it may be too high, as most networks have learned from that row.
        """
        frame = self.as_frame(X)
        return self.held_out_.p_values(self._table, frame)

    def outlier_scores(self, X: Any, by_column: bool = False) -> Vector:
        """How strange every row is, in nats beyond the average row of the model: higher is stranger; shape (n,).

        Every cell adds how unlikely it is given the cells before it, numbers in robust standard deviations of their
        column and repeated values smoothed, so that neither a column's unit nor its rounding decides who is strange; or
        how rare so unlikely a cell is in its column, if that is more. A missing cell adds 0, as an average one does,
        so that rows with gaps compare with complete ones. ``ctem.tables.answers.surprise`` has the formula.

        Arguments:
            by_column: what each column adds, shape (n, columns); a row sums to its score.
        """
        frame = self.as_frame(X)
        return self._table.surprises(frame) if by_column else self._table.surprise(frame)

    def realism(self, X: Any, random_state: Any = None) -> Realism | None:
        """How well sampled rows pass for those of X (``ctem.tables.answers.realism``); None for too few rows of X.

        1 if boosted trees cannot separate them, 0 if always; beside it the same of real rows among themselves. Sampled
        rows have gaps in the columns in which those of X have some.
        """
        frame, rows = self.as_frame(X), rows_to_compare(self.schema_.space.dim)
        real = taken(frame, np.random.default_rng(0).permutation(len(frame))[: 2 * rows])
        generator = self._generator(random_state)
        sampled = Frame(frame.table_type, self._table.sample(rows, generator))
        return realism_of_tables(self.schema_, self.missingness_, real, sampled, generator)

    def unseen(self, X: Any) -> NDArray[np.bool_]:
        """Which cells hold a value that fit never saw, shape (n, columns)."""
        frame = self.as_frame(X)
        return np.asarray(self.schema_.unseen(frame).numpy())

    def describe(self) -> dict[str, Any]:
        """What was inferred and how the fit went, as plain values for printing and reports."""
        check_is_fitted(self)
        return describe_model(self)

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file, atomically; see ``ctem.persistence``."""
        check_is_fitted(self)
        save(fitted_of(self), path)

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> CTEM:
        """The model that ``save`` wrote. Nothing in the file is run; a damaged or foreign one is refused."""
        fitted = load(path, device)
        model = cls(**fitted.arguments, device=device)
        for name, value in attributes_of(fitted).items():
            setattr(model, name, value)
        model._adopt(fitted.density)
        return model

    def _repr_html_(self) -> str:
        """The fitted model; scikit-learn's diagram of the settings before that."""
        return model_html(self) if hasattr(self, "schema_") else str(estimator_html_repr(self))

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _adopt(self, density: AnyOrderDensity) -> None:
        """Take a density as one's own."""
        single_thread_after_fork()
        history = density.history
        self.density_, self._table = density, TableDensity(self.schema_, density)
        self.history_ = {"step": history.step, "loss": history.loss, "held_out": history.held_out}

    def _read(self, X: Any, needed: Collection[str] | None = None) -> Frame:
        """X as a frame in the columns of fit: by name where there are names, else by position.

        Arguments:
            needed: columns that are missed if they are not there; all of the density when None.
        """
        return self._read_once(X, needed)[2]

    def _read_once(self, X: Any, needed: Collection[str] | None = None) -> tuple[Any, Frame, Frame]:
        """The table that X is or names, as a frame, and that in the columns of fit."""
        check_is_fitted(self)
        X = read_path(X, text_types(self.table_type_))
        frame = read_frame(X)
        return X, frame, self._as_fitted(X, frame, needed)

    def _as_fitted(self, X: Any, frame: Frame, needed: Collection[str] | None = None) -> Frame:
        if hasattr(self, "feature_names_in_") and frame.table_type.backend != "numpy":
            wanted = self.table_type_.names if needed is None else needed
            return matched(frame, self.table_type_, [n for n in wanted if n not in self.schema_.left_out])
        validate_data(self, X, skip_check_array=True, reset=False)
        return renamed(frame, self.table_type_)

    def _cut(self) -> str:
        """A remark on a fit that ``max_time`` cut while it still improved; nothing of others."""
        history = self.density_.history
        steps = history.step[-1] if history.step else 0
        cut = cut_by_time(self.max_time, steps, self.settings_.longest)
        return still_improving(history) if cut else ""

    def _generator(self, random_state: Any) -> torch.Generator:
        chosen = self.random_state if random_state is None else random_state
        seed = int(check_random_state(chosen).randint(2**31 - 1))
        return torch.Generator(self._table.device).manual_seed(seed)


def _drawn_columns(
    table: TableDensity, table_type: TableType, n: int, generator: torch.Generator, given: Any
) -> tuple[dict[str, Cells], Collection[str]]:
    """Columns of new rows, and the names of those that are given.

    Arguments:
        table: the density.
        table_type: of the table of fit.
        n: rows to draw; for each row, where ``given`` is a table.
        generator: of the draws.
        given: None, conditions by name, or a table with some of the columns.
    """
    if given is None:
        return table.sample(n, generator), ()
    given = named(given, table_type) if isinstance(given, Mapping) else given
    known, ranges = split_given(given, table.schema) if isinstance(given, Mapping) else (given, {})
    if ranges:
        event = TableEvent.of(table, table_type, known, ranges)
        return event.sample(n, generator), [*known, *ranges]
    rows, names = partial_frame(known, table_type)
    table.schema.check_seen(rows)
    many = taken(rows, np.repeat(np.arange(len(rows)), n))
    return table.completed(many, generator, names), names


def _one_row(schema: Schema, table_type: TableType, known: Mapping[str, Any]) -> Frame:
    """A row of which some cells are known."""
    for name, value in known.items():
        if is_range(value):
            raise ValueError(
                f"X: expected one value for {name!r}; got {value!r}. sample and probability take ranges and lists."
            )
    row = partial_frame(known, table_type)[0]
    schema.check_seen(row)
    return row


def _answered_position(schema: Schema, table_type: TableType, column: str | int | None) -> int:
    """The position of a column that the density describes: by name or position, the last one when None."""
    names = list(schema.columns)
    j = len(names) - 1 if column is None else positions("column", [column], table_type)[0]
    name, inferred = names[j], schema.columns[names[j]]
    if isinstance(inferred.codec, LeftOut):
        raise ValueError(
            f"column {name!r} is left out of the density ({inferred.reason}), so that nothing is known of it; "
            f"kinds={{{name!r}: 'category'}} takes it in."
        )
    if isinstance(inferred.codec, Constant) and not inferred.codec.values:
        raise ValueError(f"column {name!r} was always missing in fit, so that nothing is known of it.")
    return j
